//! The kernels as candle custom ops. What candle's tensors can't carry (weights in the file, pool and block tables,
//! positions) is held by the op; activations are f32 tensors `[n_rows, width]`.

use super::spec::DecoderSpec;
use crate::kernels::attention::{Queries, Rule, TILE, attend};
use crate::kernels::linear::{self, Activations};
use crate::kernels::panel::Packed;
use crate::kernels::tasks::map;
use crate::kernels::{Isa, pointwise};
use crate::kv::blocks::SealedBlock;
use crate::kv::layout::{BLOCK, LayerLayout};
use crate::kv::sequence::Sequence;
use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, bail};
use std::cell::RefCell;
use std::sync::Arc;

/// The contiguous f32 values behind a tensor.
fn floats<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let CpuStorage::F32(values) = storage else { bail!("activations are f32") };
    let Some((start, end)) = layout.contiguous_offsets() else { bail!("activations are contiguous") };
    Ok(&values[start..end])
}

/// `x: [n_rows, k]` → the products with each matrix side by side, `[n_rows, Σ n_out]`.
pub(crate) struct Linear<'a>(pub(crate) Isa, pub(crate) &'a [&'a Packed]);

impl CustomOp1 for Linear<'_> {
    fn name(&self) -> &'static str {
        "linear"
    }
    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (n_rows, k) = layout.shape().dims2()?;
        let x = Activations::new(self.0, floats(storage, layout)?, k, self.1);
        let width: usize = self.1.iter().map(|w| w.n_out).sum();
        Ok((CpuStorage::F32(linear::linear(self.0, &x, self.1, None)), (n_rows, width).into()))
    }
}

/// `x: [n_rows, k]` and a residual `[n_rows, n_out]` → the residual with the product added.
pub(crate) struct AddLinear<'a>(pub(crate) Isa, pub(crate) &'a Packed);

impl CustomOp2 for AddLinear<'_> {
    fn name(&self) -> &'static str {
        "add-linear"
    }
    fn cpu_fwd(
        &self,
        storage: &CpuStorage,
        layout: &Layout,
        residual: &CpuStorage,
        residual_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let Self(isa, weights) = *self;
        let x = Activations::new(isa, floats(storage, layout)?, weights.k, &[weights]);
        let out = linear::linear(isa, &x, &[weights], Some(floats(residual, residual_layout)?));
        Ok((CpuStorage::F32(out), residual_layout.shape().clone()))
    }
}

/// `x: [n_rows, k]` → `silu(gate x) · up x`, `[n_rows, d_ff]`.
pub(crate) struct Gated<'a>(pub(crate) Isa, pub(crate) &'a Packed, pub(crate) &'a Packed);

impl CustomOp1 for Gated<'_> {
    fn name(&self) -> &'static str {
        "gated"
    }
    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let Self(isa, gate, up) = *self;
        let (n_rows, k) = layout.shape().dims2()?;
        let x = Activations::new(isa, floats(storage, layout)?, k, &[gate, up]);
        Ok((CpuStorage::F32(linear::gated(isa, &x, gate, up)), (n_rows, gate.n_out).into()))
    }
}

/// `x: [n_rows, n]` → the same shape, normed.
pub(crate) struct RmsNorm<'a>(pub(crate) Isa, pub(crate) &'a [f32], pub(crate) f32);

impl CustomOp1 for RmsNorm<'_> {
    fn name(&self) -> &'static str {
        "rms-norm"
    }
    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let out = pointwise::rms_norm(self.0, floats(storage, layout)?, self.1, self.2);
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }
}

/// Tokens of one sequence in a pass: rows `first_row ..` of the batch, positions `start ..`.
pub(crate) struct SpanState<'a> {
    pub(crate) sequence: &'a mut Sequence,
    pub(crate) sealed: Vec<Arc<SealedBlock>>,
    pub(crate) first_row: usize,
    pub(crate) start: usize,
    pub(crate) n: usize,
}

/// Attention of one layer: rotates positions, writes the cache, seals, attends.
///
/// `[n_rows, (n_heads + 2 n_kv_heads) * head_dim]`, queries, keys and values side by side → `[n_rows, n_heads * head_dim]`.
pub(crate) struct Attention<'a, 's> {
    pub(crate) isa: Isa,
    pub(crate) spec: &'a DecoderSpec,
    pub(crate) layout: LayerLayout,
    pub(crate) layer: usize,
    /// A table of cosines and sines for each row.
    pub(crate) rope: &'a [Vec<f32>],
    pub(crate) spans: &'a RefCell<Vec<SpanState<'s>>>,
}

/// Rows that share unpacked tiles: few enough that their states stay in cache, aligned so that they share a tile.
const ROWS_PER_TASK: usize = 16;
const _: () = assert!(TILE % ROWS_PER_TASK == 0 && BLOCK % TILE == 0);

impl CustomOp1 for Attention<'_, '_> {
    fn name(&self) -> &'static str {
        "attention"
    }
    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let DecoderSpec { n_heads, head_dim, .. } = *self.spec;
        let (q_row, k_row, v_row) = (n_heads * head_dim, self.layout.k.row(), self.layout.v.row());
        let (n_rows, width) = layout.shape().dims2()?;
        let columns = |first: usize, n: usize, x: &[f32]| -> Vec<f32> {
            x.chunks_exact(width).flat_map(|row| &row[first..first + n]).copied().collect()
        };
        let x = floats(storage, layout)?;
        let mut q = columns(0, q_row, x);
        let (mut k, mut v) = (columns(q_row, k_row, x), columns(q_row + k_row, v_row, x));
        let n_rot = self.spec.rope.n_rot;
        let tables: Vec<&[f32]> = self.rope.iter().map(Vec::as_slice).collect();
        pointwise::rope(&mut q, head_dim, n_rot, &tables);
        pointwise::rope(&mut k, head_dim, n_rot, &tables);
        if self.layout.k.bits().is_some() {
            pointwise::hadamard(self.isa, &mut q, head_dim);
            pointwise::hadamard(self.isa, &mut k, head_dim);
        }
        if self.layout.v.bits().is_some() {
            pointwise::hadamard(self.isa, &mut v, head_dim);
        }
        let mut spans = self.spans.borrow_mut();
        for span in spans.iter_mut() {
            let rows = |row: usize| span.first_row * row..(span.first_row + span.n) * row;
            span.sequence.write(self.isa, self.layer, span.start, &k[rows(k_row)], &v[rows(v_row)]);
        }
        let mut out = self.attend(&q, &spans);
        if self.layout.v.bits().is_some() {
            pointwise::hadamard(self.isa, &mut out, head_dim);
        }
        Ok((CpuStorage::F32(out), (n_rows, q_row).into()))
    }
}

impl Attention<'_, '_> {
    /// Splits the rows of all spans over KV heads and aligned groups of rows, and attends to each.
    fn attend(&self, q: &[f32], spans: &[SpanState<'_>]) -> Vec<f32> {
        let DecoderSpec { n_heads, n_kv_heads, head_dim, .. } = *self.spec;
        let group = n_heads / n_kv_heads;
        let (row, part) = (n_heads * head_dim, group * head_dim);
        let rule = Rule { scale: 1.0 / (head_dim as f32).sqrt(), window: None, soft_cap: None, sinks: None };
        let mut tasks = Vec::new();
        for span in spans {
            let mut done = 0;
            while done < span.n {
                let first = span.start + done;
                let n = (ROWS_PER_TASK - first % ROWS_PER_TASK).min(span.n - done);
                tasks.extend((0..n_kv_heads).map(|head| (span, span.first_row + done, first, n, head)));
                done += n;
            }
        }
        let (isa, layer) = (self.isa, self.layer);
        let contexts = map(tasks.len(), |task| {
            let (span, first_row, first, n_rows, head) = tasks[task];
            let part_of = |r: usize| &q[r * row + head * part..][..part];
            let q: Vec<f32> = (first_row..first_row + n_rows).flat_map(part_of).copied().collect();
            let queries = Queries { q: &q, first, n_rows, group, head_dim, rule };
            attend(isa, &queries, &span.sequence.view(&span.sealed, layer, head, first / BLOCK))
        });
        let mut out = vec![0.0; q.len()];
        for ((_, first_row, _, _, head), context) in tasks.iter().zip(&contexts) {
            for (r, context) in context.chunks_exact(part).enumerate() {
                out[(first_row + r) * row + head * part..][..part].copy_from_slice(context);
            }
        }
        out
    }
}
