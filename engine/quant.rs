//! The 4- and 8-bit group format of cached keys and values, and Q8_0 for weights: the scalar reference.
//!
//! A group is 64 neighbours along the head dimension (the last one may be shorter). Its values are
//! `scale * code + bias` with f16 scale and bias, fitted by least squares; codes are packed in u32, lowest bits first.

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

/// Rounds of refitting: after the first the error falls by little, after the second by nothing to speak of.
const REFITS: usize = 2;

/// Quantizes one row of a head: `x: [head_dim]` into codes `[head_dim * bits / 32]`, scales and biases `[n_groups]`.
///
/// `head_dim * bits` is a multiple of 32 (the layout's invariant).
pub(crate) fn quantize_row(x: &[f32], bits: u32, codes: &mut [u32], scales: &mut [f16], biases: &mut [f16]) {
    codes.fill(0);
    for (g, group) in x.chunks(GROUP).enumerate() {
        let mut out = [0u8; GROUP];
        let (scale, bias) = fit(group, bits, &mut out);
        (scales[g], biases[g]) = (scale, bias);
        for (i, code) in out[..group.len()].iter().enumerate() {
            let bit = (g * GROUP + i) * bits as usize;
            codes[bit / 32] |= u32::from(*code) << (bit % 32);
        }
    }
}

/// Scale, bias and codes of a group with the least squared error among min/max and its least-squares refits.
fn fit(x: &[f32], bits: u32, codes: &mut [u8; GROUP]) -> (f16, f16) {
    let top = ((1u32 << bits) - 1) as f32;
    let (min, max) = x.iter().fold((f32::MAX, f32::MIN), |(lo, hi), v| (lo.min(*v), hi.max(*v)));
    let mut candidate = (f16::from_f32((max - min) / top), f16::from_f32(min));
    let mut best = candidate;
    let mut best_error = f32::INFINITY;
    for round in 0..=REFITS {
        let mut trial = [0u8; GROUP];
        let error = encode(x, candidate, top, &mut trial);
        if error < best_error || round == 0 {
            (best, best_error, *codes) = (candidate, error, trial);
        }
        candidate = least_squares(x, &trial[..x.len()]).unwrap_or(candidate);
    }
    best
}

/// The nearest codes under (scale, bias), and the squared error that they leave.
fn encode(x: &[f32], (scale, bias): (f16, f16), top: f32, codes: &mut [u8; GROUP]) -> f32 {
    let (scale, bias) = (scale.to_f32(), bias.to_f32());
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let mut error = 0.0;
    for (x, code) in x.iter().zip(codes) {
        let q = ((x - bias) * inverse).round().clamp(0.0, top);
        *code = q as u8;
        let e = x - q.mul_add(scale, bias);
        error += e * e;
    }
    error
}

/// The line `x ≈ scale * code + bias` of least squares; `None` if all codes are equal.
fn least_squares(x: &[f32], codes: &[u8]) -> Option<(f16, f16)> {
    let n = x.len() as f32;
    let (mut sc, mut sx, mut scc, mut scx) = (0.0f32, 0.0f32, 0.0f32, 0.0f32);
    for (x, c) in x.iter().zip(codes) {
        let c = f32::from(*c);
        sc += c;
        sx += x;
        scc += c * c;
        scx += c * x;
    }
    let spread = n * scc - sc * sc;
    if spread <= 0.0 {
        return None;
    }
    let scale = (n * scx - sc * sx) / spread;
    let bias = (sx - scale * sc) / n;
    let (scale, bias) = (f16::from_f32(scale), f16::from_f32(bias));
    (scale.is_finite() && bias.is_finite() && scale.to_f32() > 0.0).then_some((scale, bias))
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn roundtrip(x: &[f32], bits: u32) -> Vec<f32> {
        let n_groups = x.len().div_ceil(GROUP);
        let mut codes = vec![0; x.len() * bits as usize / 32];
        let (mut scales, mut biases) = (vec![f16::ZERO; n_groups], vec![f16::ZERO; n_groups]);
        quantize_row(x, bits, &mut codes, &mut scales, &mut biases);
        (0..x.len())
            .map(|i| {
                let bit = i * bits as usize;
                let code = (codes[bit / 32] >> (bit % 32)) & ((1 << bits) - 1);
                (code as f32).mul_add(scales[i / GROUP].to_f32(), biases[i / GROUP].to_f32())
            })
            .collect()
    }

    proptest! {
        #[test]
        fn error_stays_under_half_a_step_in_the_mean(
            x in proptest::collection::vec(-8.0f32..8.0, 80..=80), bits in prop_oneof![Just(4u32), Just(8)],
        ) {
            let y = roundtrip(&x, bits);
            for (x, y) in x.chunks(GROUP).zip(y.chunks(GROUP)) {
                let (min, max) = x.iter().fold((f32::MAX, f32::MIN), |(a, b), v| (a.min(*v), b.max(*v)));
                let step = (max - min) / ((1 << bits) - 1) as f32;
                let mse = x.iter().zip(y).map(|(x, y)| (x - y).powi(2)).sum::<f32>() / x.len() as f32;
                // Uniform rounding leaves step²/12; f16 scale and bias add a little.
                prop_assert!(mse.sqrt() <= step * 0.5 + 8.0 * 0.001, "rms {} of step {step}", mse.sqrt());
            }
        }
    }

    #[test]
    fn least_squares_beats_min_and_max() {
        let x: Vec<f32> = (0..64).map(|i| ((i * 37 % 64) as f32 / 64.0 - 0.5).powi(3) * 8.0).collect();
        let (min, max) = (-1.0f32, x.iter().fold(f32::MIN, |a, b| a.max(*b)));
        let error = |y: &[f32]| x.iter().zip(y).map(|(a, b)| (a - b).powi(2)).sum::<f32>();
        let mut codes = [0; GROUP];
        let plain = encode(&x, (f16::from_f32((max - min) / 15.0), f16::from_f32(min)), 15.0, &mut codes);
        assert!(error(&roundtrip(&x, 4)) < 0.95 * plain);
    }

    #[test]
    fn constant_groups_are_exact() {
        assert_eq!(roundtrip(&[0.5; 64], 4), vec![0.5; 64]);
        assert_eq!(roundtrip(&[0.0; 64], 8), vec![0.0; 64]);
    }
}
