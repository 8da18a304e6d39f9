//! Single kernels with arguments at random, for `benches/kernels.rs`: what a kernel costs without the house around it.

use crate::fixtures::Dtype;
use crate::kernels::attention::{Queries, Rule, attend};
use crate::kernels::linear::{self, Activations};
use crate::kernels::panel::{Format, Packed};
use crate::kernels::slab::Slabs;
use crate::kernels::{Isa, seal};
use crate::kv::blocks::Arena;
use crate::kv::layout::{BLOCK, KvLayout};
use crate::kv::sequence::Sequence;
use crate::kv::table::BlockHash;
use crate::{KvFormat, Result};
use std::sync::Arc;

/// Numbers between -0.5 and 0.5.
fn noise(n: usize) -> Vec<f32> {
    let bits = |i: u32| (i.wrapping_mul(0x9e37_79b9) ^ (i >> 7)).wrapping_mul(0x85eb_ca6b) >> 8;
    (0..n as u32).map(|i| bits(i) as f32 / (1 << 24) as f32 - 0.5).collect()
}

/// A product of `n_rows` activations with a matrix `[n_out, k]`, activations quantized anew each time; on one thread.
///
/// # Errors
/// There is no memory for it.
pub fn product(dtype: Dtype, n_out: usize, k: usize, n_rows: usize) -> Result<impl FnMut() -> f32> {
    let isa = Isa::detect();
    let format = match dtype {
        Dtype::F32 => Format::F32,
        Dtype::F16 => Format::F16,
        Dtype::BF16 => Format::Bf16,
        Dtype::Q4_0 => Format::Q4_0,
        Dtype::Q8_0 => Format::Q8_0,
        Dtype::Q5K => Format::Q5K,
        Dtype::Q6K => Format::Q6K,
        Dtype::Q4K | Dtype::Q4KM => Format::Q4K,
        Dtype::MXFP4 => Format::Mxfp4,
    };
    let rows = vec![0x11; n_out * format.row_bytes(k)];
    let weights = Packed::pack(&mut Slabs::default(), format, n_out, k, &rows)
        .map_err(|e| crate::Error::model(format!("no memory for a matrix: {e}")))?;
    let x = noise(n_rows * k);
    Ok(move || {
        let x = Activations::new(isa, &x, k, &[&weights]);
        linear::linear(isa, &x, &[&weights], None)[0]
    })
}

/// Attention of `n_rows` rows (at most 16) with 4 query heads of width 64 to one KV head, `depth` tokens before them.
pub fn attention(kv: KvFormat, depth: usize, n_rows: usize) -> impl FnMut() -> f32 {
    let isa = Isa::detect();
    let layout = Arc::new(KvLayout::uniform(1, 1, 64, kv));
    let mut arena = Arena::new(&layout, u64::MAX);
    let mut sequence = Sequence::new(layout.clone(), BlockHash::root("probe"));
    let first = depth.next_multiple_of(BLOCK);
    let end = first + n_rows;
    let (ids, x) = (vec![0; end], noise(end * 64));
    sequence.write(isa, 0, 0, &x, &x);
    sequence.finish_pass(&ids, &ids, &mut arena);
    let sealed = sequence.sealed(&arena);
    let q = noise(n_rows * 4 * 64);
    move || {
        let rule = Rule { scale: 0.125, window: None, soft_cap: None, sinks: None };
        let queries = Queries { q: &q, first, n_rows, group: 4, k_dim: 64, v_dim: 64, rule };
        attend(isa, &queries, &sequence.view(&sealed, 0, 0, first / BLOCK))[0]
    }
}

/// Quantizing 256 rows of a head of width 64.
pub fn sealing(bits: u32) -> impl FnMut() -> usize {
    let (isa, x) = (Isa::detect(), noise(BLOCK * 64));
    move || seal::quantize(isa, &x, 64, bits).codes.len()
}
