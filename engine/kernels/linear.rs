//! Weights × activations: `y[r, o] = Σ_k x[r, k] · w[o, k]`, for weights in f32, f16 and Q8_0.
//!
//! Activations stay in f32. A Q8_0 weight `d · q` is exact in f32 (11 + 8 significant bits), so all formats share
//! one dot product, the contract's: what a row gives does not depend on how many rows come with it.

use super::{Isa, Kernel, LANES, Lanes, lanes, padded};
use crate::quant::BlockQ8_0;
use half::f16;
use rayon::prelude::*;

/// A weight matrix `[n_out, k]`, row-major.
#[derive(Clone, Copy)]
pub(crate) enum Matrix<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    Q8_0(&'a [BlockQ8_0]),
}

/// Outputs that one task computes.
const OUTS_PER_TASK: usize = 32;
/// Below this many multiply-adds a product is not worth a second thread.
const SERIAL_MACS: usize = 1 << 17;

/// `x: [n_rows, k]` times `w: [n_out, k]` transposed, into `[n_rows, n_out]`.
pub(crate) fn linear(isa: Isa, x: &[f32], k: usize, w: Matrix<'_>, n_out: usize) -> Vec<f32> {
    let n_rows = x.len() / k;
    assert_eq!(x.len(), n_rows * k, "activations are [n_rows, {k}]");
    match w {
        Matrix::F32(w) => product(isa, x, k, w, k, n_rows, n_out),
        Matrix::F16(w) => product(isa, x, k, w, k, n_rows, n_out),
        Matrix::Q8_0(w) => product(isa, x, k, w, k / 32, n_rows, n_out),
    }
}

/// Rows `ids` of `w: [_, k]` in f32: an embedding lookup.
pub(crate) fn gather(w: Matrix<'_>, k: usize, ids: &[u32]) -> Vec<f32> {
    let mut out = Vec::with_capacity(ids.len() * k);
    for &id in ids {
        let at = id as usize;
        match w {
            Matrix::F32(w) => out.extend_from_slice(&w[at * k..][..k]),
            Matrix::F16(w) => out.extend(w[at * k..][..k].iter().map(|x| x.to_f32())),
            Matrix::Q8_0(w) => {
                for block in &w[at * k / 32..][..k / 32] {
                    let d = f16::from_bits(block.d).to_f32();
                    out.extend(block.qs.iter().map(|&q| d * f32::from(q)));
                }
            }
        }
    }
    out
}

/// The product computed transposed, `[n_out, n_rows]`, so that each task owns a contiguous piece; then turned.
fn product<T: Weight>(
    isa: Isa,
    x: &[f32],
    k: usize,
    w: &[T],
    stride: usize,
    n_rows: usize,
    n_out: usize,
) -> Vec<f32> {
    assert_eq!(w.len(), n_out * stride, "weights are [{n_out}, {k}]");
    let mut turned = vec![0.0; n_out * n_rows];
    if turned.is_empty() {
        return turned;
    }
    let task = |(i, out): (usize, &mut [f32])| {
        let w = &w[i * OUTS_PER_TASK * stride..][..out.len() / n_rows * stride];
        isa.run(Panel { x, k, w, stride, n_rows, out });
    };
    let pieces = OUTS_PER_TASK * n_rows;
    if n_rows * n_out * k < SERIAL_MACS {
        turned.chunks_mut(pieces).enumerate().for_each(task);
    } else {
        turned.par_chunks_mut(pieces).enumerate().for_each(task);
    }
    if n_rows == 1 {
        return turned;
    }
    let mut out = vec![0.0; n_out * n_rows];
    out.par_chunks_mut(n_out).enumerate().for_each(|(r, row)| {
        for (o, y) in row.iter_mut().enumerate() {
            *y = turned[o * n_rows + r];
        }
    });
    out
}

/// A format of weights: sixteen of a row, from element `at` on, in f32.
trait Weight: Copy + Sync {
    /// `at` is a multiple of 16 with 16 elements to come.
    fn load<L: Lanes>(row: &[Self], at: usize) -> L;
    /// The ragged end from `at` on, padded with zeros.
    fn load_end<L: Lanes>(row: &[Self], at: usize) -> L;
}

impl Weight for f32 {
    #[inline(always)]
    fn load<L: Lanes>(row: &[f32], at: usize) -> L {
        L::load(lanes(&row[at..at + LANES]))
    }
    #[inline(always)]
    fn load_end<L: Lanes>(row: &[f32], at: usize) -> L {
        L::load(&padded(row, at))
    }
}

impl Weight for f16 {
    #[inline(always)]
    fn load<L: Lanes>(row: &[f16], at: usize) -> L {
        L::load_f16(lanes(&row[at..at + LANES]))
    }
    #[inline(always)]
    fn load_end<L: Lanes>(row: &[f16], at: usize) -> L {
        L::load_f16(&padded(row, at))
    }
}

impl Weight for BlockQ8_0 {
    #[inline(always)]
    fn load<L: Lanes>(row: &[BlockQ8_0], at: usize) -> L {
        let block = &row[at / 32];
        let codes = L::load_i8(lanes(&block.qs[at % 32..at % 32 + LANES]));
        codes.mul(L::splat(f16::from_bits(block.d).to_f32()))
    }
    #[inline(always)]
    fn load_end<L: Lanes>(_: &[BlockQ8_0], _: usize) -> L {
        L::splat(0.0) // rows of Q8_0 are whole blocks of 32
    }
}

/// All rows of `x` against the rows of `w`, into `out: [w rows, n_rows]`.
struct Panel<'a, T> {
    x: &'a [f32],
    k: usize,
    w: &'a [T],
    stride: usize,
    n_rows: usize,
    out: &'a mut [f32],
}

impl<T: Weight> Kernel for Panel<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(mut self) {
        let n_out = self.w.len() / self.stride;
        let mut o = 0;
        while o + 4 <= n_out {
            let mut r = 0;
            while r + 4 <= self.n_rows {
                self.tile::<L, 4, 4>(r, o);
                r += 4;
            }
            while r < self.n_rows {
                self.tile::<L, 1, 4>(r, o);
                r += 1;
            }
            o += 4;
        }
        while o < n_out {
            for r in 0..self.n_rows {
                self.tile::<L, 1, 1>(r, o);
            }
            o += 1;
        }
    }
}

impl<T: Weight> Panel<'_, T> {
    /// `R` rows against `O` outputs: each weight vector is unpacked once for all R rows.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // r and o index three things at once
    fn tile<L: Lanes, const R: usize, const O: usize>(&mut self, r0: usize, o0: usize) {
        let mut sums = [[L::splat(0.0); O]; R];
        let mut at = 0;
        while at + LANES <= self.k {
            for o in 0..O {
                let weights = T::load::<L>(self.row(o0 + o), at);
                for r in 0..R {
                    let x = L::load(lanes(&self.x[(r0 + r) * self.k + at..][..LANES]));
                    sums[r][o] = x.fma(weights, sums[r][o]);
                }
            }
            at += LANES;
        }
        if at < self.k {
            for o in 0..O {
                let weights = T::load_end::<L>(self.row(o0 + o), at);
                for r in 0..R {
                    let x = L::load(&padded(&self.x[(r0 + r) * self.k..][..self.k], at));
                    sums[r][o] = x.fma(weights, sums[r][o]);
                }
            }
        }
        for o in 0..O {
            for r in 0..R {
                self.out[(o0 + o) * self.n_rows + r0 + r] = sums[r][o].sum();
            }
        }
    }

    #[inline(always)]
    fn row(&self, o: usize) -> &[T] {
        &self.w[o * self.stride..][..self.stride]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize, seed: u32) -> Vec<f32> {
        (0..n as u32)
            .map(|i| {
                let h = i.wrapping_mul(0x9e37_79b9).wrapping_add(seed.wrapping_mul(0x85eb_ca6b));
                (h ^ (h >> 15)).wrapping_mul(0x2c1b_3c6d) as f32 / u32::MAX as f32 - 0.5
            })
            .collect()
    }

    /// One body for all formats: right against f64, equal on all instruction sets, and independent of the batch.
    fn check<T: Weight>(w: &[T], exact: &[f32], k: usize, n_out: usize, wrap: fn(&[T]) -> Matrix<'_>) {
        let x = noise(9 * k, 1);
        let all = linear(Isa::Scalar, &x, k, wrap(w), n_out);
        for r in 0..9 {
            for o in 0..n_out {
                let pairs = x[r * k..][..k].iter().zip(&exact[o * k..][..k]);
                let sum: f64 = pairs.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                assert!((f64::from(all[r * n_out + o]) - sum).abs() < 1e-4, "row {r}, output {o}");
            }
        }
        for isa in Isa::available() {
            assert_eq!(linear(isa, &x, k, wrap(w), n_out), all, "{} differs from scalar", isa.name());
            for n in 1..9 {
                let some = linear(isa, &x[..n * k], k, wrap(w), n_out);
                assert_eq!(some, all[..n * n_out], "{} with {n} rows", isa.name());
            }
        }
    }

    #[test]
    fn f32_f16_and_q8_are_right_and_row_invariant() {
        for (k, n_out) in [(64, 5), (96, 67), (100, 33), (17, 2)] {
            let w = noise(n_out * k, 2);
            check(&w, &w, k, n_out, |w| Matrix::F32(w));
            let half: Vec<f16> = w.iter().map(|x| f16::from_f32(*x)).collect();
            let exact: Vec<f32> = half.iter().map(|x| x.to_f32()).collect();
            check(&half, &exact, k, n_out, |w| Matrix::F16(w));
            if k % 32 == 0 {
                let blocks = crate::quant::q8_0(&w);
                let exact = gather(Matrix::Q8_0(&blocks), n_out * k, &[0]);
                check(&blocks, &exact, k, n_out, |w| Matrix::Q8_0(w));
            }
        }
    }
}
