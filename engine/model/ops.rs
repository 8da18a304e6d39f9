//! The kernels as candle custom ops. What candle's tensors can't carry (weights in the file, pool and block tables,
//! positions) is held by the op; activations are f32 tensors `[n_rows, width]`.

use super::spec::DecoderSpec;
use super::weights::Weights;
use crate::kernels::attention::{Queries, attend};
use crate::kernels::{Isa, linear, pointwise};
use crate::kv::blocks::SealedBlock;
use crate::kv::layout::{BLOCK, LayerLayout};
use crate::kv::sequence::Sequence;
use candle_core::{CpuStorage, CustomOp1, CustomOp2, CustomOp3, Layout, Result, Shape, bail};
use rayon::prelude::*;
use std::cell::RefCell;
use std::sync::Arc;

/// The contiguous f32 values behind a tensor.
fn floats<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let CpuStorage::F32(values) = storage else { bail!("activations are f32") };
    let Some((start, end)) = layout.contiguous_offsets() else { bail!("activations are contiguous") };
    Ok(&values[start..end])
}

/// `x: [n_rows, k]` → `[n_rows, n_out]`.
pub(crate) struct Linear<'a>(pub(crate) Isa, pub(crate) &'a Weights);

impl CustomOp1 for Linear<'_> {
    fn name(&self) -> &'static str {
        "linear"
    }
    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = floats(storage, layout)?;
        let out = linear::linear(self.0, x, self.1.k, self.1.matrix(), self.1.n_out);
        Ok((CpuStorage::F32(out), (x.len() / self.1.k, self.1.n_out).into()))
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

/// Gate and up, `[n_rows, d_ff]` each.
pub(crate) struct SwiGlu(pub(crate) Isa);

impl CustomOp2 for SwiGlu {
    fn name(&self) -> &'static str {
        "swiglu"
    }
    fn cpu_fwd(
        &self,
        gate: &CpuStorage,
        gl: &Layout,
        up: &CpuStorage,
        ul: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let mut out = floats(gate, gl)?.to_vec();
        pointwise::swiglu(self.0, &mut out, floats(up, ul)?);
        Ok((CpuStorage::F32(out), gl.shape().clone()))
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
/// `q: [n_rows, n_heads * head_dim]`, `k`, `v: [n_rows, n_kv_heads * head_dim]` → like q.
pub(crate) struct Attention<'a, 's> {
    pub(crate) isa: Isa,
    pub(crate) spec: &'a DecoderSpec,
    pub(crate) layout: LayerLayout,
    pub(crate) layer: usize,
    /// A table of cosines and sines for each row.
    pub(crate) rope: &'a [Vec<f32>],
    pub(crate) spans: &'a RefCell<Vec<SpanState<'s>>>,
}

/// Rows that share unpacked tiles: few enough that their states stay in cache, aligned so that they share a block.
const ROWS_PER_TASK: usize = 16;
const _: () = assert!(BLOCK % ROWS_PER_TASK == 0);

impl CustomOp3 for Attention<'_, '_> {
    fn name(&self) -> &'static str {
        "attention"
    }
    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        ql: &Layout,
        k: &CpuStorage,
        kl: &Layout,
        v: &CpuStorage,
        vl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (mut q, mut k) = (floats(q, ql)?.to_vec(), floats(k, kl)?.to_vec());
        let mut v = floats(v, vl)?.to_vec();
        let head_dim = self.spec.head_dim;
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
            let (k_row, v_row) = (self.layout.k.row(), self.layout.v.row());
            let rows = |row: usize| span.first_row * row..(span.first_row + span.n) * row;
            span.sequence.write(self.layer, span.start, &k[rows(k_row)], &v[rows(v_row)]);
        }
        let mut out = self.attend(&q, &spans);
        if self.layout.v.bits().is_some() {
            pointwise::hadamard(self.isa, &mut out, head_dim);
        }
        Ok((CpuStorage::F32(out), ql.shape().clone()))
    }
}

impl Attention<'_, '_> {
    /// Splits the rows of all spans over KV heads and aligned groups of rows, and attends to each.
    fn attend(&self, q: &[f32], spans: &[SpanState<'_>]) -> Vec<f32> {
        let (n_kv_heads, head_dim) = (self.spec.n_kv_heads, self.spec.head_dim);
        let group = self.spec.n_heads / n_kv_heads;
        let (row, part) = (self.spec.n_heads * head_dim, group * head_dim);
        let (isa, layer) = (self.isa, self.layer);
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
        let results: Vec<Vec<f32>> = tasks
            .par_iter()
            .map(|&(span, first_row, first, n_rows, head)| {
                let mut queries = Vec::with_capacity(n_rows * part);
                for r in first_row..first_row + n_rows {
                    queries.extend_from_slice(&q[r * row + head * part..][..part]);
                }
                let scale = 1.0 / (head_dim as f32).sqrt();
                let queries = Queries { q: &queries, first, n_rows, group, head_dim, scale };
                let view = span.sequence.view(&span.sealed, layer, head, first / BLOCK);
                attend(isa, &queries, &view)
            })
            .collect();
        let mut out = vec![0.0; q.len()];
        for ((_, first_row, _, n_rows, head), result) in tasks.iter().zip(&results) {
            for (r, context) in (*first_row..first_row + n_rows).zip(result.chunks_exact(part)) {
                out[r * row + head * part..][..part].copy_from_slice(context);
            }
        }
        out
    }
}
