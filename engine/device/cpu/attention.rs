//! Attention of one layer: applies positions, writes the cache, seals, attends.

use super::cache::{CpuCache, View};
use crate::device::{Pass, PassSpan};
use crate::kv::layout::{BLOCK, LayerLayout, Part};
use crate::kv::table::Parts;
use crate::model::calibration::Measured;
use crate::model::spec::{AttentionSpec, DecoderSpec, LatentSpec};
use crate::model::weights::{self, Heads};
use greenroom_kernels::activations::Activations;
use greenroom_kernels::attention::{AttnParams, Queries, QueryRows, TILE, attend};
use greenroom_kernels::floats::Floats;
use greenroom_kernels::linear::linear;
use greenroom_kernels::panel::Packed;
use greenroom_kernels::shaping::Shaping;
use greenroom_kernels::threads::{for_rows, map, n_threads};
use greenroom_kernels::{Isa, pointwise};
use std::ops::Range;

/// Attention of one layer in a pass.
pub(super) struct LayerAttention<'a> {
    pub(super) isa: Isa,
    pub(super) spec: &'a DecoderSpec,
    pub(super) own: AttentionSpec,
    pub(super) weights: &'a weights::AttentionWeights<Packed>,
    /// Constants for coding keys in 4 bits; `None` if they were not measured.
    pub(super) shaping: Option<&'a Shaping>,
    pub(super) layout: LayerLayout,
    pub(super) layer: usize,
    /// A table of cosines and sines for each row; `None`: positions turn nothing.
    pub(super) rope: Option<&'a [Vec<f32>]>,
    pub(super) pass: &'a Pass,
}

/// Maximum number of rows that share unpacked tiles: few enough that their states stay in cache, aligned so
/// that they share a tile.
const ROWS_PER_TASK: usize = 16;
const _: () = assert!(TILE % ROWS_PER_TASK == 0 && BLOCK % TILE == 0);
/// Maximum number of query heads of a task, which go through a tile together.
const MAX_TASK_HEADS: usize = 8;
/// Maximum number of rows of several sequences that share the tiles of a common prefix of blocks.
const MAX_SHARED_ROWS: usize = 16;

/// Rows of some sequences that are attended to together.
struct Together<'a> {
    members: Vec<TileRows<'a>>,
    /// Leading blocks that are the same in all of them.
    n_common: usize,
}

/// Rows of one sequence, in one tile.
#[derive(Clone, Copy)]
struct TileRows<'a> {
    span: &'a PassSpan,
    /// The first one's number in the pass, and its position.
    row: usize,
    position: usize,
    n: usize,
}

/// Floats of rows that a task prepares together, at least.
const FLOATS_PER_TASK: usize = 1 << 13;

/// Queries, keys and values of a batch.
struct Projected {
    /// `[n_rows, n_heads, k_dim]`.
    q: Floats,
    /// `[n_rows, n_kv_heads, k_dim]`.
    k: Floats,
    /// `[n_rows, n_kv_heads, v_dim]`; empty where values are a view of the keys.
    v: Floats,
}

impl LayerAttention<'_> {
    /// The products with [`weights::LayerAttention::input`], `[n_rows, …]` each → contexts,
    /// `[n_rows, n_heads * width of a head's values]`. `watch` records queries, keys and values.
    pub(super) fn run(&self, x: Vec<Floats>, cache: &mut CpuCache, watch: Option<&mut Measured>) -> Floats {
        let n_rows = self.pass.ids.len();
        let mut projected = match &self.weights.heads {
            Heads::Plain { value_norm, .. } => self.plain(x, value_norm.as_deref()),
            Heads::Latent { spec, queries, norm, k_b, .. } => {
                self.latent(x, spec, queries.as_ref(), norm, k_b)
            }
        };
        if let Some(watch) = watch.filter(|_| self.own.writes) {
            projected.by_rows(n_rows, |rows, q, k, _| self.norm_and_rope(rows, q, k));
            let Projected { q, k, v } = &projected;
            let n_rot = self.rope.map_or(0, |tables| tables[0].len());
            watch.add(&self.own, self.spec.family.pairs, n_rot, [q, k, v]);
            projected.by_rows(n_rows, |_, q, k, v| self.rotate(q, k, v));
        } else {
            projected.by_rows(n_rows, |rows, q, k, v| {
                self.norm_and_rope(rows, q, k);
                self.rotate(q, k, v);
            });
        }
        let Projected { q, k, v } = projected;
        let shaping = self.shaping.filter(|_| self.layout.k.shaped());
        let (k_row, v_row) = (k.len() / n_rows, v.len() / n_rows);
        let mut first = 0;
        for span in &self.pass.spans {
            let rows = |row: usize| first * row..(first + span.n) * row;
            if self.own.writes {
                cache.write(self.isa, self.layer, span, (&k[rows(k_row)], &v[rows(v_row)]), shaping);
            }
            first += span.n;
        }
        let out = self.attend(&q, n_rows, cache);
        match &self.weights.heads {
            Heads::Latent { v_b, .. } => by_head(self.isa, &out, self.layout.v.dim, v_b),
            Heads::Plain { .. } => out,
        }
    }

    /// Queries, keys and values by the matrices that there are: values may be made of what keys are, and a
    /// layer may have neither.
    fn plain(&self, x: Vec<Floats>, value_norm: Option<&[f32]>) -> Projected {
        let mut projected = Projected::of(x);
        if let Some(norm) = value_norm {
            if projected.v.is_empty() {
                projected.v = Floats::copy(&projected.k);
            }
            pointwise::rms_norm_in_place(self.isa, &mut projected.v, norm, self.spec.norm_eps);
        }
        projected
    }

    /// Norms and positions of some rows' queries and keys, in place.
    fn norm_and_rope(&self, rows: Range<usize>, q: &mut [f32], k: &mut [f32]) {
        // A latent's norms and positions are there already.
        if let Heads::Plain { norms, .. } = &self.weights.heads {
            let after_rope = self.spec.family.head_norms.is_some_and(|norms| norms.after_rope);
            let norm = |q: &mut [f32], k: &mut [f32]| {
                if let Some([q_norm, k_norm]) = norms {
                    pointwise::rms_norm_in_place(self.isa, q, q_norm, self.spec.norm_eps);
                    if !k.is_empty() {
                        pointwise::rms_norm_in_place(self.isa, k, k_norm, self.spec.norm_eps);
                    }
                }
            };
            if !after_rope {
                norm(q, k);
            }
            if let Some(tables) = self.rope {
                let (k_dim, pairs, tables) = (self.own.k_dim, self.spec.family.pairs, &tables[rows.clone()]);
                pointwise::rope(self.isa, q, k_dim, 0, pairs, tables);
                if !k.is_empty() {
                    pointwise::rope(self.isa, k, k_dim, 0, pairs, tables);
                }
            }
            if after_rope {
                norm(q, k);
            }
        }
        if let Some(temperature) = self.own.temperature {
            let width = q.len() / rows.len();
            for (row, position) in q.chunks_exact_mut(width).zip(self.pass.positions().skip(rows.start)) {
                let factor = temperature.factor(position);
                row.iter_mut().for_each(|x| *x *= factor);
            }
        }
    }

    /// Some rows as the cache's formats want them, in place.
    fn rotate(&self, q: &mut [f32], k: &mut [f32], v: &mut [f32]) {
        let LayerLayout { k: keys, v: values, .. } = self.layout;
        if let Some(shaping) = self.shaping.filter(|_| keys.shaped()) {
            shaping.scale_keys(k);
            shaping.scale_queries(q, self.own.group());
        }
        if keys.rotated {
            let parts = self.layout.key_parts();
            pointwise::hadamard(self.isa, q, &parts);
            pointwise::hadamard(self.isa, k, &parts);
        }
        if values.rotated {
            pointwise::hadamard(self.isa, v, &[values.dim]);
        }
    }

    fn latent(
        &self,
        x: Vec<Floats>,
        spec: &LatentSpec,
        queries: Option<&(Vec<f32>, Packed)>,
        norm: &[f32],
        k_b: &[Packed],
    ) -> Projected {
        let LatentSpec { rank, nope, rope, .. } = *spec;
        let (k_dim, norm_eps) = (self.own.k_dim, self.spec.norm_eps);
        let (head, pairs) = (nope + rope, self.spec.family.pairs);
        let Projected { q: mut plain, k: latent, .. } = Projected::of(x);
        if let Some((norm, matrix)) = queries {
            let x = Activations::normed(self.isa, &plain, norm, norm_eps, &[matrix]);
            plain = linear(self.isa, &x, &[matrix]).remove(0);
        }
        let turn = |x: &mut [f32], head: usize, first: usize| {
            if let Some(tables) = self.rope {
                pointwise::rope(self.isa, x, head, first, pairs, tables);
            }
        };
        turn(&mut plain, head, nope);
        let absorbed = by_head(self.isa, &plain, head, k_b);
        let heads = absorbed.chunks_exact(rank).zip(plain.chunks_exact(head));
        let q: Vec<f32> =
            heads.flat_map(|(absorbed, plain)| absorbed.iter().chain(&plain[nope..])).copied().collect();
        let latents = pointwise::rms_norm(self.isa, &columns(&latent, rank + rope, 0, rank), norm, norm_eps);
        let rows = latents.chunks_exact(rank).zip(latent.chunks_exact(rank + rope));
        let mut k: Vec<f32> =
            rows.flat_map(|(normed, latent)| normed.iter().chain(&latent[rank..])).copied().collect();
        turn(&mut k, k_dim, rank);
        Projected { q: q.into(), k: k.into(), v: Floats::new(0) }
    }

    /// Splits the rows of all spans over heads and aligned groups of rows, and attends to each:
    /// `[n_rows, n_heads, v_dim]`.
    fn attend(&self, q: &[f32], n_rows: usize, cache: &CpuCache) -> Floats {
        let AttentionSpec { n_heads, n_kv_heads, v_dim, .. } = self.own;
        let group = self.own.group();
        let groups = self.together(group);
        // Heads that would leave threads without work in the end are divided among them.
        let (n, n_threads) = (groups.len() * n_kv_heads, n_threads());
        let n_last = n % n_threads;
        let heads_of = |task: usize| {
            let split = if task < n - n_last { 1 } else { n_threads.div_ceil(n_last) };
            let heads_per_task = group.div_ceil(split).min(MAX_TASK_HEADS);
            let first = task % n_kv_heads * group;
            let heads = (first..first + group).step_by(heads_per_task);
            heads.map(move |head| head..(first + group).min(head + heads_per_task))
        };
        let tasks = (0..n).flat_map(|task| heads_of(task).map(move |heads| (task / n_kv_heads, heads)));
        let tasks: Vec<(usize, Range<usize>)> = tasks.collect();
        let contexts = map(tasks.len(), |task| {
            let (rows, heads) = &tasks[task];
            self.attend_together(&groups[*rows], heads.clone(), q, cache)
        });
        let mut out = Floats::new(n_rows * n_heads * v_dim);
        for ((rows, heads), contexts) in tasks.iter().zip(&contexts) {
            let width = heads.len() * v_dim;
            for (row, context) in groups[*rows].numbers().zip(contexts.chunks_exact(width)) {
                out[(row * n_heads + heads.start) * v_dim..][..width].copy_from_slice(context);
            }
        }
        out
    }

    /// The contexts of some rows for some heads of a KV head, `[Σ n, heads, v_dim]`.
    fn attend_together(
        &self,
        rows: &Together<'_>,
        heads: Range<usize>,
        q: &[f32],
        cache: &CpuCache,
    ) -> Vec<f32> {
        let AttentionSpec { n_heads, k_dim, v_dim, .. } = self.own;
        let Together { members, n_common } = rows;
        let numbers = rows.numbers();
        let kv_head = heads.start / self.own.group();
        let views: Vec<View<'_>> = members
            .iter()
            .map(|rows| cache.view(rows.span, self.layer, kv_head, rows.position / BLOCK))
            .collect();
        let rows: Vec<QueryRows<'_>> = members
            .iter()
            .zip(&views)
            .map(|(rows, tiles)| QueryRows { first: rows.position, n: rows.n, tiles })
            .collect();
        let mut own = Vec::new();
        for row in numbers {
            own.extend_from_slice(&q[(row * n_heads + heads.start) * k_dim..][..heads.len() * k_dim]);
        }
        let params = AttnParams {
            scale: self.own.score_scale,
            window: self.layout.window,
            soft_cap: self.own.soft_cap,
            sinks: self.weights.sinks.as_deref().map(|sinks| &sinks[heads.clone()]),
        };
        let (n_common, group) = (n_common * (BLOCK / TILE), heads.len());
        let mut contexts =
            attend(self.isa, &Queries { q: &own, rows: &rows, n_common, group, k_dim, v_dim, params });
        let values = self.layout.v;
        if values.rotated {
            pointwise::hadamard(self.isa, &mut contexts, &[values.dim]);
        }
        contexts
    }

    /// All rows of the pass in groups: rows of one sequence that share a tile, or last rows of several
    /// sequences with a common prefix.
    fn together(&self, group: usize) -> Vec<Together<'_>> {
        let rows_per_task =
            (ROWS_PER_TASK * 4 / group.min(MAX_TASK_HEADS).next_power_of_two()).clamp(1, ROWS_PER_TASK);
        let mut groups: Vec<Together<'_>> = Vec::new();
        let mut row = 0;
        for span in &self.pass.spans {
            let mut done = 0;
            while done < span.n {
                let position = span.start + done;
                let n = (rows_per_task - position % rows_per_task).min(span.n - done);
                let rows = TileRows { span, row, position, n };
                if !self.join(&mut groups, rows) {
                    groups.push(Together { members: vec![rows], n_common: 0 });
                }
                (row, done) = (row + n, done + n);
            }
        }
        groups
    }

    /// Adds a sequence's only row to those of others that have as much in common with it as they have with
    /// each other.
    fn join<'a>(&self, groups: &mut [Together<'a>], rows: TileRows<'a>) -> bool {
        if rows.span.n > 1 || self.layout.window.is_some() {
            return false;
        }
        let id = |parts: &Parts| parts[Part::Global as usize];
        for Together { members, n_common } in groups {
            let pairs = members[0].span.sealed.iter().zip(&rows.span.sealed);
            let n = pairs.take_while(|(a, b)| id(a).is_some() && id(a) == id(b)).count();
            let fits = n >= (*n_common).max(1) && members[0].span.n == 1 && members.len() < MAX_SHARED_ROWS;
            if fits {
                *n_common = if members.len() == 1 { n } else { *n_common };
                members.push(rows);
                return true;
            }
        }
        false
    }
}

impl Together<'_> {
    /// Numbers of its rows in the pass.
    fn numbers(&self) -> impl Iterator<Item = usize> {
        self.members.iter().flat_map(|rows| rows.row..rows.row + rows.n)
    }
}

impl Projected {
    /// The products with the matrices of queries, keys and, if there are three, values.
    fn of(products: Vec<Floats>) -> Self {
        let mut products = products.into_iter();
        let mut next = || products.next().unwrap_or_else(|| Floats::new(0));
        Self { q: next(), k: next(), v: next() }
    }

    /// Runs `task` on all rows, some at a time: their numbers, queries, keys and values.
    fn by_rows(
        &mut self,
        n_rows: usize,
        task: impl Fn(Range<usize>, &mut [f32], &mut [f32], &mut [f32]) + Sync,
    ) {
        let all: [&mut [f32]; 3] = [&mut self.q, &mut self.k, &mut self.v];
        let row: usize = all.iter().map(|floats| floats.len() / n_rows).sum();
        for_rows(all, n_rows, FLOATS_PER_TASK / row, |rows, [q, k, v]| task(rows, q, k, v));
    }
}

/// Columns `first .. first + n` of rows of `width`.
fn columns(x: &[f32], width: usize, first: usize, n: usize) -> Vec<f32> {
    x.chunks_exact(width).flat_map(|row| &row[first..first + n]).copied().collect()
}

/// Each head of `x: [n_rows, n_heads, width]`, its first elements, times its own matrix:
/// `[n_rows, n_heads, n_out]`.
fn by_head(isa: Isa, x: &[f32], width: usize, weights: &[Packed]) -> Floats {
    let (n_heads, n_out) = (weights.len(), weights.first().map_or(0, |w| w.n_out));
    let products = map(n_heads, |head| {
        let weights = &weights[head];
        let x = columns(x, n_heads * width, head * width, weights.k);
        linear(isa, &Activations::new(isa, &x, weights.k, &[weights]), &[weights]).remove(0).into_vec()
    });
    let mut out = Floats::new(x.len() / width * n_out);
    for (head, y) in products.iter().enumerate() {
        for (row, y) in out.chunks_exact_mut(n_heads * n_out).zip(y.chunks_exact(n_out)) {
            row[head * n_out..][..n_out].copy_from_slice(y);
        }
    }
    out
}
