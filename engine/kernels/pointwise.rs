//! What happens to single rows: RMS norm, rotary embedding, SwiGLU, Hadamard rotation.

use super::tasks::{Shared, for_ranges};
use super::{Isa, Kernel, LANES, Lanes, lanes, lanes_mut, padded};

/// Rows are given to threads in pieces of at least this many floats.
const FLOATS_PER_TASK: usize = 1 << 14;

/// Runs `task` on pieces of `x`, each a whole number of rows of `width`; with the first row's number.
fn for_rows(x: &mut [f32], width: usize, task: impl Fn(usize, &mut [f32]) + Sync) {
    let n_rows = x.len() / width;
    let shared = Shared::new(x);
    for_ranges(n_rows, FLOATS_PER_TASK / width, |rows| {
        // SAFETY: each row belongs to one range.
        task(rows.start, unsafe { shared.part(rows.start * width..rows.end * width) });
    });
}

/// RMS norm (Zhang & Sennrich 2019) of `x: [n_rows, n]`: `x / sqrt(mean(x²) + eps) * weight`.
pub(crate) fn rms_norm(isa: Isa, x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let mut out = x.to_vec();
    for_rows(&mut out, weight.len(), |_, rows| isa.run(RmsNorm { rows, weight, eps }));
    out
}

struct RmsNorm<'a> {
    rows: &'a mut [f32],
    weight: &'a [f32],
    eps: f32,
}

impl Kernel for RmsNorm<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let n = self.weight.len();
        for row in self.rows.chunks_exact_mut(n) {
            let mut sum = L::splat(0.0);
            for at in (0..n).step_by(LANES) {
                let x = L::load(&padded(row, at));
                sum = x.fma(x, sum);
            }
            let scale = L::splat(1.0 / (sum.sum() / n as f32 + self.eps).sqrt());
            for (piece, weight) in row.chunks_mut(LANES).zip(self.weight.chunks(LANES)) {
                let mut scaled = [0.0; LANES];
                L::load(&padded(piece, 0)).mul(scale).mul(L::load(&padded(weight, 0))).store(&mut scaled);
                piece.copy_from_slice(&scaled[..piece.len()]);
            }
        }
    }
}

/// SwiGLU (Shazeer 2020): `gate · sigmoid(gate) · up`, elementwise, in place of the gate.
pub(super) struct SwiGlu<'a>(pub(super) &'a mut [f32], pub(super) &'a [f32]);

impl Kernel for SwiGlu<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let one = L::splat(1.0);
        for (gate, up) in self.0.chunks_mut(LANES).zip(self.1.chunks(LANES)) {
            let (g, u) = (L::load(&padded(gate, 0)), L::load(&padded(up, 0)));
            let y = g.mul(u).div(one.add(L::splat(0.0).sub(g).exp()));
            let mut lanes = [0.0; LANES];
            y.store(&mut lanes);
            gate.copy_from_slice(&lanes[..gate.len()]);
        }
    }
}

/// Rotary embedding (Su et al. 2021) of `x: [n_rows, n_heads, head_dim]`, in place; the pairs that turn together are
/// `(2i, 2i + 1)`, as llama.cpp's converter lays llama's heads out ("NORM").
///
/// `tables[r]` holds the cosines and then the sines of row r's position, `n_rot / 2` each; elements from `n_rot`
/// on pass through.
pub(crate) fn rope(x: &mut [f32], head_dim: usize, n_rot: usize, tables: &[&[f32]]) {
    let width = x.len() / tables.len();
    for_rows(x, width, |first, rows| {
        for (row, table) in rows.chunks_exact_mut(width).zip(&tables[first..]) {
            let (cos, sin) = table.split_at(n_rot / 2);
            for head in row.chunks_exact_mut(head_dim) {
                for ((pair, cos), sin) in head[..n_rot].chunks_exact_mut(2).zip(cos).zip(sin) {
                    (pair[0], pair[1]) = (pair[0] * cos - pair[1] * sin, pair[0] * sin + pair[1] * cos);
                }
            }
        }
    });
}

/// The block-diagonal Hadamard rotation of each head of `x: [.., head_dim]`, in place; it is its own inverse.
///
/// Blocks are the largest power of two that divides `head_dim`; each is multiplied by `H / sqrt(n)`.
pub(crate) fn hadamard(isa: Isa, x: &mut [f32], head_dim: usize) {
    let block = 1 << head_dim.trailing_zeros();
    for_rows(x, block, |_, x| isa.run(Hadamard { x, block }));
}

struct Hadamard<'a> {
    x: &'a mut [f32],
    block: usize,
}

impl Kernel for Hadamard<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let scale = 1.0 / (self.block as f32).sqrt();
        for block in self.x.chunks_exact_mut(self.block) {
            let mut half = 1;
            while half < block.len() {
                for pair in block.chunks_exact_mut(2 * half) {
                    let (low, high) = pair.split_at_mut(half);
                    butterflies::<L>(low, high);
                }
                half *= 2;
            }
            for x in block {
                *x *= scale;
            }
        }
    }
}

/// `(a, b)` becomes `(a + b, a - b)`, lane by lane: every lane is alone, so the width changes nothing.
#[inline(always)]
fn butterflies<L: Lanes>(low: &mut [f32], high: &mut [f32]) {
    if low.len() >= LANES {
        for (a, b) in low.chunks_exact_mut(LANES).zip(high.chunks_exact_mut(LANES)) {
            let (x, y) = (L::load(lanes(a)), L::load(lanes(b)));
            x.add(y).store(lanes_mut(a));
            x.sub(y).store(lanes_mut(b));
        }
    } else {
        for (a, b) in low.iter_mut().zip(high) {
            (*a, *b) = (*a + *b, *a - *b);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wave(n: usize) -> Vec<f32> {
        (0..n).map(|i| (i as f32 * 0.37).sin() * 3.0).collect()
    }

    #[test]
    fn hadamard_is_orthogonal_and_its_own_inverse() {
        for head_dim in [64, 80, 96, 128, 192] {
            let x = wave(3 * head_dim);
            let mut y = x.clone();
            hadamard(Isa::Scalar, &mut y, head_dim);
            assert!(
                x.iter().zip(&y).any(|(a, b)| (a - b).abs() > 0.1),
                "head_dim {head_dim}: nothing turned"
            );
            let norm = |v: &[f32]| v.iter().map(|x| x * x).sum::<f32>();
            assert!((norm(&x) / norm(&y) - 1.0).abs() < 1e-5, "head_dim {head_dim}: length changed");
            for isa in Isa::available() {
                let mut same = x.clone();
                hadamard(isa, &mut same, head_dim);
                assert_eq!(same, y, "{} differs from scalar", isa.name());
            }
            hadamard(Isa::Scalar, &mut y, head_dim);
            assert!(
                x.iter().zip(&y).all(|(a, b)| (a - b).abs() < 1e-5),
                "head_dim {head_dim}: not its inverse"
            );
        }
    }

    #[test]
    fn norm_and_swiglu_agree_with_f64_and_across_sets() {
        let (x, w) = (wave(100), wave(50));
        let norm = rms_norm(Isa::Scalar, &x, &w, 1e-5);
        for row in 0..2 {
            let row_x = &x[row * 50..][..50];
            let mean = row_x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / 50.0;
            for i in 0..50 {
                let exact = f64::from(row_x[i]) / (mean + 1e-5).sqrt() * f64::from(w[i]);
                assert!((f64::from(norm[row * 50 + i]) - exact).abs() < 1e-5);
            }
        }
        let mut glu = x.clone();
        Isa::Scalar.run(SwiGlu(&mut glu, &wave(100)));
        for (i, y) in glu.iter().enumerate() {
            let (g, u) = (f64::from(x[i]), f64::from(wave(100)[i]));
            assert!((f64::from(*y) - g * u / (1.0 + (-g).exp())).abs() < 1e-5);
        }
        for isa in Isa::available() {
            assert_eq!(rms_norm(isa, &x, &w, 1e-5), norm);
            let mut same = x.clone();
            isa.run(SwiGlu(&mut same, &wave(100)));
            assert_eq!(same, glu);
        }
    }

    #[test]
    fn rope_turns_pairs_by_their_angle() {
        let table: Vec<f32> = [0.3f32.cos(), 1.0, 0.3f32.sin(), 0.0].to_vec();
        let mut x = vec![1.0, 0.0, 2.0, 3.0, 9.0];
        rope(&mut x, 5, 4, &[&table]);
        assert_eq!(x, [0.3f32.cos(), 0.3f32.sin(), 2.0, 3.0, 9.0]);
    }
}
