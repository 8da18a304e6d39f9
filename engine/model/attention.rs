//! Attention of one layer as a candle custom op: rotates positions, writes the cache, seals, attends.

use super::calibration::Measured;
use super::ops::floats;
use super::spec::{DecoderSpec, LatentSpec};
use super::weights::Loader;
use crate::Result;
use crate::kernels::attention::{Queries, Rule, TILE, attend};
use crate::kernels::linear::{Activations, linear};
use crate::kernels::panel::Packed;
use crate::kernels::shaping::Shaping;
use crate::kernels::tasks::{map, n_threads};
use crate::kernels::{Isa, pointwise};
use crate::kv::layout::{BLOCK, LayerLayout};
use crate::kv::sequence::{Sealed, Sequence};
use candle_core::{CpuStorage, CustomOp1, Layout, Shape};
use std::cell::RefCell;

/// One layer's weights.
pub(crate) struct AttentionWeights {
    /// What the op's input is made by, side by side: queries, keys, values; or queries and latent.
    pub(crate) input: Vec<Packed>,
    heads: Heads,
    sinks: Option<Vec<f32>>,
    pub(crate) output: Packed,
    /// How keys are coded in 4 bits, once that was measured.
    pub(crate) shaping: Option<Shaping>,
}

/// How queries, keys and values come from the op's input.
enum Heads {
    /// As they are, after norms of each head where there are some.
    Plain { norms: Option<[Vec<f32>; 2]> },
    /// MLA with its up-projections absorbed: queries meet the latent itself (DeepSeek-V2, appendix C).
    Latent { spec: LatentSpec, norm: Vec<f32>, k_b: Vec<Packed>, v_b: Vec<Packed> },
}

impl AttentionWeights {
    /// Loads layer `l`.
    ///
    /// # Errors
    /// As [`Loader::matrix`].
    pub(crate) fn load(loader: &mut Loader<'_>, spec: &DecoderSpec, l: usize) -> Result<Self> {
        let name = |part: &str| format!("blk.{l}.{part}");
        let (d, n) = (spec.d_model, spec.n_heads);
        let (input, heads, out_width) = match spec.latent {
            None => {
                let (q, kv) = (n * spec.k_dim, spec.n_kv_heads * spec.k_dim);
                let input = [("attn_q", q), ("attn_k", kv), ("attn_v", kv)];
                let input = input.map(|(part, width)| loader.matrix(&name(part), width, d));
                let norms = if spec.family.head_norms {
                    let mut norm = |part| loader.vector(&name(part), spec.k_dim);
                    Some([norm("attn_q_norm")?, norm("attn_k_norm")?])
                } else {
                    None
                };
                (input.into_iter().collect::<Result<Vec<_>>>()?, Heads::Plain { norms }, q)
            }
            Some(latent) => {
                let LatentSpec { rank, nope, rope, value } = latent;
                let q = loader.matrix(&name("attn_q"), n * (nope + rope), d)?;
                let kv = loader.matrix(&name("attn_kv_a_mqa"), rank + rope, d)?;
                let norm = loader.vector(&name("attn_kv_a_norm"), rank)?;
                let k_b = loader.matrices(&name("attn_k_b"), n, rank, nope)?;
                let v_b = loader.matrices(&name("attn_v_b"), n, value, rank)?;
                (vec![q, kv], Heads::Latent { spec: latent, norm, k_b, v_b }, n * value)
            }
        };
        let sinks = spec.family.sinks.then(|| loader.vector(&name("attn_sinks"), n)).transpose()?;
        let output = loader.matrix(&name("attn_output"), d, out_width)?;
        Ok(Self { input, heads, sinks, output, shaping: None })
    }
}

/// Tokens of one sequence in a pass: rows `first_row ..` of the batch, positions `start ..`.
pub(crate) struct SpanState<'a> {
    pub(crate) sequence: &'a mut Sequence,
    pub(crate) sealed: Sealed,
    pub(crate) first_row: usize,
    pub(crate) start: usize,
    pub(crate) n: usize,
}

/// `[n_rows, …]`, the products with [`AttentionWeights::input`] → contexts, `[n_rows, n_heads * width of a head's values]`.
pub(crate) struct Attention<'a, 's> {
    pub(crate) isa: Isa,
    pub(crate) spec: &'a DecoderSpec,
    pub(crate) weights: &'a AttentionWeights,
    pub(crate) layout: LayerLayout,
    pub(crate) layer: usize,
    /// A table of cosines and sines for each row.
    pub(crate) rope: &'a [Vec<f32>],
    pub(crate) spans: &'a RefCell<Vec<SpanState<'s>>>,
    /// Takes note of queries, keys and values.
    pub(crate) watch: Option<&'a RefCell<Measured>>,
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

impl CustomOp1 for Attention<'_, '_> {
    fn name(&self) -> &'static str {
        "attention"
    }
    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let (n_rows, width) = layout.shape().dims2()?;
        let x = floats(storage, layout)?;
        let Projected { mut q, mut k, mut v } = match &self.weights.heads {
            Heads::Plain { norms } => self.plain(x, width, norms.as_ref()),
            Heads::Latent { spec, norm, k_b, .. } => self.latent(x, width, spec, norm, k_b),
        };
        let LayerLayout { k: keys, v: values, .. } = self.layout;
        if let Some(watch) = self.watch {
            watch.borrow_mut().add(self.spec, self.rope[0].len(), self.layout.window, [&q, &k, &v]);
        }
        let shaping = self.weights.shaping.as_ref().filter(|_| keys.shaped());
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
        let mut spans = self.spans.borrow_mut();
        for span in spans.iter_mut() {
            let rows = |row: usize| span.first_row * row..(span.first_row + span.n) * row;
            let new = (&k[rows(k_row)], &v[rows(v_row)]);
            span.sequence.write(self.isa, self.layer, span.start, new, shaping);
        }
        let mut out = self.attend(&q, n_rows, &spans);
        if values.rotated {
            pointwise::hadamard(self.isa, &mut out, &[values.dim]);
        }
        if let Heads::Latent { v_b, .. } = &self.weights.heads {
            out = by_head(self.isa, &out, values.dim, v_b);
        }
        let width = out.len() / n_rows;
        Ok((CpuStorage::F32(out), (n_rows, width).into()))
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

impl Attention<'_, '_> {
    fn plain(&self, x: &[f32], width: usize, norms: Option<&[Vec<f32>; 2]>) -> Projected {
        let DecoderSpec { n_heads, n_kv_heads, k_dim, norm_eps, .. } = *self.spec;
        let (q_row, kv_row) = (n_heads * k_dim, n_kv_heads * k_dim);
        let (mut q, mut k) = (columns(x, width, 0, q_row), columns(x, width, q_row, kv_row));
        let v = columns(x, width, q_row + kv_row, kv_row);
        if let Some([q_norm, k_norm]) = norms {
            q = pointwise::rms_norm(self.isa, &q, q_norm, norm_eps);
            k = pointwise::rms_norm(self.isa, &k, k_norm, norm_eps);
        }
        self.turn(&mut q, k_dim, 0);
        self.turn(&mut k, k_dim, 0);
        Projected { q, k, v }
    }

    fn latent(&self, x: &[f32], width: usize, spec: &LatentSpec, norm: &[f32], k_b: &[Packed]) -> Projected {
        let LatentSpec { rank, nope, rope, .. } = *spec;
        let DecoderSpec { n_heads, k_dim, norm_eps, .. } = *self.spec;
        let (head, q_row) = (nope + rope, n_heads * (nope + rope));
        let mut plain = columns(x, width, 0, q_row);
        self.turn(&mut plain, head, nope);
        let absorbed = by_head(self.isa, &plain, head, k_b);
        let heads = absorbed.chunks_exact(rank).zip(plain.chunks_exact(head));
        let q = heads.flat_map(|(absorbed, plain)| absorbed.iter().chain(&plain[nope..])).copied().collect();
        let latents = pointwise::rms_norm(self.isa, &columns(x, width, q_row, rank), norm, norm_eps);
        let turned = columns(x, width, q_row + rank, rope);
        let rows = latents.chunks_exact(rank).zip(turned.chunks_exact(rope));
        let mut k: Vec<f32> =
            rows.flat_map(|(latent, turned)| latent.iter().chain(turned)).copied().collect();
        self.turn(&mut k, k_dim, rank);
        Projected { q, k, v: Vec::new() }
    }

    /// Turns elements `first ..` of each head by the positions of their rows.
    fn turn(&self, x: &mut [f32], head_dim: usize, first: usize) {
        let tables: Vec<&[f32]> = self.rope.iter().map(Vec::as_slice).collect();
        pointwise::rope(x, head_dim, first, self.spec.family.pairs, &tables);
    }

    /// Splits the rows of all spans over heads and aligned groups of rows, and attends to each: `[n_rows, n_heads, v_dim]`.
    fn attend(&self, q: &[f32], n_rows: usize, spans: &[SpanState<'_>]) -> Vec<f32> {
        let DecoderSpec { n_heads, n_kv_heads, k_dim, v_dim, .. } = *self.spec;
        let group = n_heads / n_kv_heads;
        // A lone row has work for every thread.
        let split = n_threads().div_ceil((n_rows * n_kv_heads).max(1));
        let heads_per_task = group.div_ceil(split).min(HEADS_PER_TASK);
        let rows_per_task = (ROWS_PER_TASK * 4 / heads_per_task.next_power_of_two()).clamp(1, ROWS_PER_TASK);
        let mut tasks = Vec::new();
        for span in spans {
            let mut done = 0;
            while done < span.n {
                let first = span.start + done;
                let n = (rows_per_task - first % rows_per_task).min(span.n - done);
                for head in (0..n_heads).step_by(group) {
                    for first_head in (head..head + group).step_by(heads_per_task) {
                        let heads = heads_per_task.min(head + group - first_head);
                        tasks.push((span, span.first_row + done, first, n, first_head, heads));
                    }
                }
                done += n;
            }
        }
        let (isa, layer, window, scale) = (self.isa, self.layer, self.layout.window, self.spec.score_scale);
        let sinks = self.weights.sinks.as_deref();
        let contexts = map(tasks.len(), |task| {
            let (span, first_row, first, n_rows, head, group_of_task) = tasks[task];
            let part_of = |r: usize| &q[(r * n_heads + head) * k_dim..][..group_of_task * k_dim];
            let q: Vec<f32> = (first_row..first_row + n_rows).flat_map(part_of).copied().collect();
            let sinks = sinks.map(|sinks| &sinks[head..head + group_of_task]);
            let rule = Rule { scale, window, soft_cap: None, sinks };
            let queries = Queries { q: &q, first, n_rows, group: group_of_task, k_dim, v_dim, rule };
            attend(isa, &queries, &span.sequence.view(&span.sealed, layer, head / group, first / BLOCK))
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
