//! Quantizing rows of keys and values: groups of up to 64 neighbours, `scale * code + bias`, fitted by least squares.

use super::{Isa, Kernel, LANES, Lanes, lanes, lanes_mut};
use crate::quant::GROUP;
use half::f16;

/// Rounds of refitting: after the first the error falls by little, after the second by nothing to speak of.
const REFITS: usize = 2;

/// Rows of a head in codes.
#[derive(Debug, PartialEq)]
pub(crate) struct CodedRows {
    /// `[n_rows, dim]`, a byte each.
    pub(crate) codes: Vec<u8>,
    /// `[n_rows, n_groups]`.
    pub(crate) scales: Vec<f16>,
    /// `[n_rows, n_groups]`.
    pub(crate) biases: Vec<f16>,
}

/// Quantizes `x: [n_rows, dim]` to codes of `bits` bits; `dim` is a multiple of 16.
pub(crate) fn quantize(isa: Isa, x: &[f32], dim: usize, bits: u32) -> CodedRows {
    assert!(x.len() % dim == 0 && dim % LANES == 0, "rows are whole vectors");
    let n_groups = x.len() / dim * dim.div_ceil(GROUP);
    let (mut codes, mut scales) = (vec![0; x.len()], vec![f16::ZERO; n_groups]);
    let mut biases = scales.clone();
    let groups = scales.iter_mut().zip(&mut biases);
    let rows = x.chunks_exact(dim).zip(codes.chunks_exact_mut(dim));
    let pieces = rows.flat_map(|(x, codes)| x.chunks(GROUP).zip(codes.chunks_mut(GROUP)));
    for ((x, codes), (scale, bias)) in pieces.zip(groups) {
        (*scale, *bias) = isa.run(Fit { x, bits, codes });
    }
    CodedRows { codes, scales, biases }
}

/// Scale, bias and codes of a group with the least squared error among min/max and its least-squares refits.
struct Fit<'a> {
    x: &'a [f32],
    bits: u32,
    codes: &'a mut [u8],
}

impl Kernel for Fit<'_> {
    type Output = (f16, f16);
    #[inline(always)]
    fn run<L: Lanes>(self) -> (f16, f16) {
        let top = ((1u32 << self.bits) - 1) as f32;
        let (mut low, mut high) = (L::splat(f32::INFINITY), L::splat(f32::NEG_INFINITY));
        for x in self.x.chunks_exact(LANES) {
            let x = L::load(lanes(x));
            (low, high) = (low.min(x), high.max(x));
        }
        let (min, max) = (-L::splat(0.0).sub(low).largest(), high.largest());
        let mut candidate = (f16::from_f32((max - min) / top), f16::from_f32(min));
        let mut best = candidate;
        let mut best_error = f32::INFINITY;
        for round in 0..=REFITS {
            let mut codes = [0.0; GROUP];
            let (error, line) = encode::<L>(self.x, candidate, top, &mut codes);
            if error < best_error || round == 0 {
                (best, best_error) = (candidate, error);
                for (codes, out) in codes.chunks_exact(LANES).zip(self.codes.chunks_exact_mut(LANES)) {
                    // Bytes are stored as signed ones: shifted down, and their top bit turned back.
                    let mut bytes = [0i8; LANES];
                    L::load(lanes(codes)).sub(L::splat(128.0)).store_i8(&mut bytes);
                    out.iter_mut().zip(bytes).for_each(|(o, b)| *o = b.cast_unsigned() ^ 0x80);
                }
            }
            candidate = line.unwrap_or(candidate);
        }
        best
    }
}

/// The nearest codes under (scale, bias); the squared error that they leave; the line `x ≈ scale * code + bias` of least
/// squares through them, `None` if all codes are equal.
#[inline(always)]
fn encode<L: Lanes>(
    x: &[f32],
    (scale, bias): (f16, f16),
    top: f32,
    codes: &mut [f32; GROUP],
) -> (f32, Option<(f16, f16)>) {
    let (scale, bias) = (scale.to_f32(), bias.to_f32());
    let inverse = L::splat(if scale == 0.0 { 0.0 } else { 1.0 / scale });
    let zero = L::splat(0.0);
    let (mut error, mut sc, mut sx, mut scc, mut scx) = (zero, zero, zero, zero, zero);
    for (x, out) in x.chunks_exact(LANES).zip(codes.chunks_exact_mut(LANES)) {
        let x = L::load(lanes(x));
        let code = x.sub(L::splat(bias)).mul(inverse).max(zero).min(L::splat(top)).round();
        code.store(lanes_mut(out));
        let off = x.sub(code.fma(L::splat(scale), L::splat(bias)));
        error = off.fma(off, error);
        (sc, sx) = (sc.add(code), sx.add(x));
        (scc, scx) = (code.fma(code, scc), code.fma(x, scx));
    }
    let (n, sc, sx, scc, scx) = (x.len() as f32, sc.sum(), sx.sum(), scc.sum(), scx.sum());
    let spread = n * scc - sc * sc;
    let slope = (n * scx - sc * sx) / spread;
    let line = (f16::from_f32(slope), f16::from_f32((sx - slope * sc) / n));
    let usable = spread > 0.0 && line.0.is_finite() && line.1.is_finite() && line.0.to_f32() > 0.0;
    (error.sum(), usable.then_some(line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn roundtrip(x: &[f32], bits: u32) -> Vec<f32> {
        let rows = quantize(Isa::SCALAR, x, x.len(), bits);
        let value = |(i, code): (usize, &u8)| {
            f32::from(*code).mul_add(rows.scales[i / GROUP].to_f32(), rows.biases[i / GROUP].to_f32())
        };
        rows.codes.iter().enumerate().map(value).collect()
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
            for isa in Isa::available() {
                prop_assert_eq!(quantize(isa, &x, 80, bits), quantize(Isa::SCALAR, &x, 80, bits), "{}", isa.name());
            }
        }
    }

    #[test]
    fn least_squares_beats_min_and_max() {
        let x: Vec<f32> = (0..64).map(|i| ((i * 37 % 64) as f32 / 64.0 - 0.5).powi(3) * 8.0).collect();
        let (min, max) = (-1.0f32, x.iter().fold(f32::MIN, |a, b| a.max(*b)));
        let step = (max - min) / 15.0;
        let off = |x: f32| x - (((x - min) / step).round() * step + min);
        let plain: f32 = x.iter().map(|x| off(*x).powi(2)).sum();
        let ours: f32 = x.iter().zip(roundtrip(&x, 4)).map(|(a, b)| (a - b).powi(2)).sum();
        assert!(ours < 0.95 * plain);
    }

    #[test]
    fn constant_groups_are_exact() {
        assert_eq!(roundtrip(&[0.5; 64], 4), vec![0.5; 64]);
        assert_eq!(roundtrip(&[0.0; 64], 8), vec![0.0; 64]);
    }
}
