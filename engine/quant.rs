//! The 4- and 8-bit group format of cached keys and values, and Q8_0 for weights.
//!
//! A group is 64 neighbours along the head dimension (the last one may be shorter). Its values are
//! `scale * code + bias` with f16 scale and bias; `kernels/seal.rs` fits them.

use half::f16;

/// 32 weights of GGUF type Q8_0: `d * qs[i]`.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct BlockQ8_0 {
    /// Scale, as IEEE half bits.
    pub(crate) d: u16,
    /// Codes.
    pub(crate) qs: [i8; 32],
}
const _: () = assert!(size_of::<BlockQ8_0>() == 34);

/// Values of a group.
pub(crate) const GROUP: usize = 64;

/// Weights as GGUF Q8_0: blocks of 32 with scale `max|x| / 127`. `x.len()` is a multiple of 32.
pub(crate) fn q8_0(x: &[f32]) -> Vec<BlockQ8_0> {
    x.chunks_exact(32)
        .map(|x| {
            let d = f16::from_f32(x.iter().fold(0.0f32, |m, v| m.max(v.abs())) / 127.0);
            let inverse = if d.to_f32() == 0.0 { 0.0 } else { 1.0 / d.to_f32() };
            let qs = std::array::from_fn(|i| (x[i] * inverse).round().clamp(-127.0, 127.0) as i8);
            BlockQ8_0 { d: d.to_bits(), qs }
        })
        .collect()
}
