//! Attention of one layer: applies positions, writes the cache, seals, attends.

use super::cache::CpuCache;
use super::kernels::attention::{AttnParams, Queries, TILE, attend};
use super::kernels::linear::{Activations, linear};
use super::kernels::panel::Packed;
use super::kernels::shaping::Shaping;
use super::kernels::{Isa, pointwise};
use crate::device::Pass;
use crate::kv::layout::{BLOCK, LayerLayout};
use crate::model::calibration::Measured;
use crate::model::spec::{DecoderSpec, LatentSpec};
use crate::model::weights::{self, Heads};
use crate::threads::{map, n_threads};

/// Attention of one layer in a pass.
pub(super) struct Attention<'a> {
    pub(super) isa: Isa,
    pub(super) spec: &'a DecoderSpec,
    pub(super) weights: &'a weights::Attention<Packed>,
    /// Constants for coding keys in 4 bits; `None` if they were not measured.
    pub(super) shaping: Option<&'a Shaping>,
    pub(super) layout: LayerLayout,
    pub(super) layer: usize,
    /// A table of cosines and sines for each row.
    pub(super) rope: &'a [Vec<f32>],
    pub(super) pass: &'a Pass,
}

/// Rows that share unpacked tiles, at most: few enough that their states stay in cache, aligned so that they share a tile.
const ROWS_PER_TASK: usize = 16;
const _: () = assert!(TILE % ROWS_PER_TASK == 0 && BLOCK % TILE == 0);
/// Query heads of a task, at most: what goes through a tile together.
const HEADS_PER_TASK: usize = 8;

/// Queries, keys and values of a batch, positions turned in.
struct Projected {
    /// `[n_rows, n_heads, k_dim]`.
    q: Vec<f32>,
    /// `[n_rows, n_kv_heads, k_dim]`.
    k: Vec<f32>,
    /// `[n_rows, n_kv_heads, v_dim]`; empty where values are a view of the keys.
    v: Vec<f32>,
}

impl Attention<'_> {
    /// `x: [n_rows, …]`, the products with [`weights::Attention::input`] → contexts, `[n_rows, n_heads * width of a head's values]`.
    /// `watch` takes note of queries, keys and values.
    pub(super) fn run(&self, x: &[f32], cache: &mut CpuCache, watch: Option<&mut Measured>) -> Vec<f32> {
        let n_rows = self.pass.ids.len();
        let width = x.len() / n_rows;
        let Projected { mut q, mut k, mut v } = match &self.weights.heads {
            Heads::Plain { norms } => self.plain(x, width, norms.as_ref()),
            Heads::Latent { spec, norm, k_b, .. } => self.latent(x, width, spec, norm, k_b),
        };
        let LayerLayout { k: keys, v: values, .. } = self.layout;
        if let Some(watch) = watch {
            watch.add(self.spec, self.rope[0].len(), self.layout.window, [&q, &k, &v]);
        }
        let shaping = self.shaping.filter(|_| keys.shaped());
        if let Some(shaping) = shaping {
            shaping.scale_keys(&mut k);
            shaping.scale_queries(&mut q, self.spec.n_heads / self.spec.n_kv_heads);
        }
        if keys.rotated {
            let parts = self.layout.key_parts();
            pointwise::hadamard(self.isa, &mut q, &parts);
            pointwise::hadamard(self.isa, &mut k, &parts);
        }
        if values.rotated {
            pointwise::hadamard(self.isa, &mut v, &[values.dim]);
        }
        let (k_row, v_row) = (k.len() / n_rows, v.len() / n_rows);
        let mut first = 0;
        for span in &self.pass.spans {
            let rows = |row: usize| first * row..(first + span.n) * row;
            cache.write(self.isa, self.layer, span, (&k[rows(k_row)], &v[rows(v_row)]), shaping);
            first += span.n;
        }
        let mut out = self.attend(&q, n_rows, cache);
        if values.rotated {
            pointwise::hadamard(self.isa, &mut out, &[values.dim]);
        }
        match &self.weights.heads {
            Heads::Latent { v_b, .. } => by_head(self.isa, &out, values.dim, v_b),
            Heads::Plain { .. } => out,
        }
    }

    fn plain(&self, x: &[f32], width: usize, norms: Option<&[Vec<f32>; 2]>) -> Projected {
        let DecoderSpec { n_heads, n_kv_heads, k_dim, norm_eps, .. } = *self.spec;
        let (q_row, kv_row) = (n_heads * k_dim, n_kv_heads * k_dim);
        let (mut q, mut k) = (columns(x, width, 0, q_row), columns(x, width, q_row, kv_row));
        let v = columns(x, width, q_row + kv_row, kv_row);
        if let Some([q_norm, k_norm]) = norms {
            q = pointwise::rms_norm(self.isa, &q, q_norm, norm_eps);
            k = pointwise::rms_norm(self.isa, &k, k_norm, norm_eps);
        }
        self.apply_rope(&mut q, k_dim, 0);
        self.apply_rope(&mut k, k_dim, 0);
        Projected { q, k, v }
    }

    fn latent(&self, x: &[f32], width: usize, spec: &LatentSpec, norm: &[f32], k_b: &[Packed]) -> Projected {
        let LatentSpec { rank, nope, rope, .. } = *spec;
        let DecoderSpec { n_heads, k_dim, norm_eps, .. } = *self.spec;
        let (head, q_row) = (nope + rope, n_heads * (nope + rope));
        let mut plain = columns(x, width, 0, q_row);
        self.apply_rope(&mut plain, head, nope);
        let absorbed = by_head(self.isa, &plain, head, k_b);
        let heads = absorbed.chunks_exact(rank).zip(plain.chunks_exact(head));
        let q = heads.flat_map(|(absorbed, plain)| absorbed.iter().chain(&plain[nope..])).copied().collect();
        let latents = pointwise::rms_norm(self.isa, &columns(x, width, q_row, rank), norm, norm_eps);
        let turned = columns(x, width, q_row + rank, rope);
        let rows = latents.chunks_exact(rank).zip(turned.chunks_exact(rope));
        let mut k: Vec<f32> =
            rows.flat_map(|(latent, turned)| latent.iter().chain(turned)).copied().collect();
        self.apply_rope(&mut k, k_dim, rank);
        Projected { q, k, v: Vec::new() }
    }

    /// Rotary embedding of elements `first ..` of each head by the positions of their rows.
    fn apply_rope(&self, x: &mut [f32], head_dim: usize, first: usize) {
        let tables: Vec<&[f32]> = self.rope.iter().map(Vec::as_slice).collect();
        pointwise::rope(x, head_dim, first, self.spec.family.pairs, &tables);
    }

    /// Splits the rows of all spans over heads and aligned groups of rows, and attends to each: `[n_rows, n_heads, v_dim]`.
    fn attend(&self, q: &[f32], n_rows: usize, cache: &CpuCache) -> Vec<f32> {
        let DecoderSpec { n_heads, n_kv_heads, k_dim, v_dim, .. } = *self.spec;
        let group = n_heads / n_kv_heads;
        // A lone row has work for every thread.
        let split = n_threads().div_ceil((n_rows * n_kv_heads).max(1));
        let heads_per_task = group.div_ceil(split).min(HEADS_PER_TASK);
        let rows_per_task = (ROWS_PER_TASK * 4 / heads_per_task.next_power_of_two()).clamp(1, ROWS_PER_TASK);
        let mut tasks = Vec::new();
        let mut first_row = 0;
        for span in &self.pass.spans {
            let mut done = 0;
            while done < span.n {
                let first = span.start + done;
                let n = (rows_per_task - first % rows_per_task).min(span.n - done);
                for head in (0..n_heads).step_by(group) {
                    for first_head in (head..head + group).step_by(heads_per_task) {
                        let heads = heads_per_task.min(head + group - first_head);
                        tasks.push((span, first_row + done, first, n, first_head, heads));
                    }
                }
                done += n;
            }
            first_row += span.n;
        }
        let (isa, layer, window, scale) = (self.isa, self.layer, self.layout.window, self.spec.score_scale);
        let sinks = self.weights.sinks.as_deref();
        let contexts = map(tasks.len(), |task| {
            let (span, first_row, first, n_rows, head, group_of_task) = tasks[task];
            let part_of = |r: usize| &q[(r * n_heads + head) * k_dim..][..group_of_task * k_dim];
            let q: Vec<f32> = (first_row..first_row + n_rows).flat_map(part_of).copied().collect();
            let sinks = sinks.map(|sinks| &sinks[head..head + group_of_task]);
            let params = AttnParams { scale, window, soft_cap: None, sinks };
            let queries = Queries { q: &q, first, n_rows, group: group_of_task, k_dim, v_dim, params };
            attend(isa, &queries, &cache.view(span, layer, head / group, first / BLOCK))
        });
        let mut out = vec![0.0; n_rows * n_heads * v_dim];
        for ((_, first_row, _, _, head, heads), context) in tasks.iter().zip(&contexts) {
            for (r, context) in context.chunks_exact(heads * v_dim).enumerate() {
                out[((first_row + r) * n_heads + head) * v_dim..][..context.len()].copy_from_slice(context);
            }
        }
        out
    }
}

/// Columns `first .. first + n` of rows of `width`.
fn columns(x: &[f32], width: usize, first: usize, n: usize) -> Vec<f32> {
    x.chunks_exact(width).flat_map(|row| &row[first..first + n]).copied().collect()
}

/// Each head of `x: [n_rows, n_heads, width]`, its first elements, through a matrix of its own: `[n_rows, n_heads, n_out]`.
fn by_head(isa: Isa, x: &[f32], width: usize, weights: &[Packed]) -> Vec<f32> {
    let (n_heads, n_out) = (weights.len(), weights.first().map_or(0, |w| w.n_out));
    let products = map(n_heads, |head| {
        let weights = &weights[head];
        let x = columns(x, n_heads * width, head * width, weights.k);
        linear(isa, &Activations::new(isa, &x, weights.k, &[weights]), &[weights], None)
    });
    let mut out = vec![0.0; x.len() / width * n_out];
    for (head, y) in products.iter().enumerate() {
        for (row, y) in out.chunks_exact_mut(n_heads * n_out).zip(y.chunks_exact(n_out)) {
            row[head * n_out..][..n_out].copy_from_slice(y);
        }
    }
    out
}
