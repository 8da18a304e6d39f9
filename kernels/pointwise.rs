//! Operations on single rows: RMS norm, rotary embedding, gated activations, softmax, Hadamard rotation.

use super::{Isa, Kernel, LANES, Lanes, lanes, lanes_mut, padded};
use crate::floats::Floats;
use crate::threads;

/// Activation of a gated feed-forward: `act(gate) · up`, elementwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// SwiGLU (Shazeer 2020): `gate · sigmoid(gate) · up`.
    Silu,
    /// GeGLU (Shazeer 2020) with the tanh form of GELU (Hendrycks & Gimpel 2016).
    Gelu,
    /// gpt-oss: `gate` at most 7, `up` within ±7, `gate · sigmoid(1.702 gate) · (up + 1)`.
    Clamped,
    /// Nemotron (So et al. 2021): `max(gate, 0)² · up`; there it has no gate.
    SquaredRelu,
}

/// Pairs of a head's elements that turn together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeLayout {
    /// `(2i, 2i + 1)`, as llama.cpp's converter lays llama's heads out ("NORM").
    Interleaved,
    /// `(i, i + n_rot / 2)` ("NEOX").
    NeoX,
}

/// Rows are given to threads in pieces of at least this many floats.
const FLOATS_PER_TASK: usize = 1 << 14;

/// Runs `task` on pieces of `x`, each a whole number of rows of `width`; with the first row's number.
fn for_rows(x: &mut [f32], width: usize, task: impl Fn(usize, &mut [f32]) + Sync) {
    let n_rows = x.len() / width;
    threads::for_rows([x], n_rows, FLOATS_PER_TASK / width, |rows, [x]| task(rows.start, x));
}

/// RMS norm (Zhang & Sennrich 2019) of `x: [n_rows, n]`: `x / sqrt(mean(x²) + eps) * weight`.
pub fn rms_norm(isa: Isa, x: &[f32], weight: &[f32], eps: f32) -> Floats {
    let mut out = Floats::copy(x);
    rms_norm_in_place(isa, &mut out, weight, eps);
    out
}

/// [`rms_norm`], in the place of its input.
pub fn rms_norm_in_place(isa: Isa, x: &mut [f32], weight: &[f32], eps: f32) {
    for_rows(x, weight.len(), |_, rows| isa.run(RmsNorm { rows, weight, eps }));
}

/// [`rms_norm`] in the place of its input, and `base` added to it.
pub fn rms_norm_onto(isa: Isa, x: &mut [f32], weight: &[f32], eps: f32, base: &[f32]) {
    for_rows(x, weight.len(), |row, rows| {
        isa.run(RmsNorm { rows, weight, eps });
        rows.iter_mut().zip(&base[row * weight.len()..]).for_each(|(x, base)| *x += base);
    });
}

/// Rows of `x: [n_rows, n]` less their mean: the RMS norm of these is the rows' norm around it (Ba et al. 2016,
/// without a bias). Sums are of sixteen lanes, in order.
pub fn centered(x: &[f32], n: usize) -> Floats {
    let mut out = Floats::copy(x);
    for_rows(&mut out, n, |_, rows| {
        for row in rows.chunks_exact_mut(n) {
            let mut sums = [0f32; LANES];
            for part in row.chunks(LANES) {
                sums.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
            }
            let mean = sums.iter().sum::<f32>() / n as f32;
            row.iter_mut().for_each(|x| *x -= mean);
        }
    });
    out
}

/// See [`rms_norm`].
pub(super) struct RmsNorm<'a> {
    pub(super) rows: &'a mut [f32],
    pub(super) weight: &'a [f32],
    pub(super) eps: f32,
}

impl Kernel for RmsNorm<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let n = self.weight.len();
        for row in self.rows.chunks_exact_mut(n) {
            let mut sum = L::splat(0.0);
            for x in row.chunks(LANES) {
                let x = if x.len() == LANES { L::load(lanes(x)) } else { L::load(&padded(x, 0)) };
                sum = x.fma(x, sum);
            }
            let scale = L::splat(1.0 / (sum.sum() / n as f32 + self.eps).sqrt());
            if n % LANES == 0 {
                for (piece, weight) in row.chunks_exact_mut(LANES).zip(self.weight.chunks_exact(LANES)) {
                    let scaled = L::load(lanes(piece)).mul(scale).mul(L::load(lanes(weight)));
                    scaled.store(lanes_mut(piece));
                }
                continue;
            }
            for (piece, weight) in row.chunks_mut(LANES).zip(self.weight.chunks(LANES)) {
                let mut scaled = [0.0; LANES];
                L::load(&padded(piece, 0)).mul(scale).mul(L::load(&padded(weight, 0))).store(&mut scaled);
                piece.copy_from_slice(&scaled[..piece.len()]);
            }
        }
    }
}

/// A gated activation in place of the gate; whole vectors.
pub(super) struct Gate<'a>(pub(super) Activation, pub(super) &'a mut [f32], pub(super) &'a [f32]);

impl Kernel for Gate<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self(activation, gates, ups) = self;
        for (gate, up) in gates.chunks_exact_mut(LANES).zip(ups.chunks_exact(LANES)) {
            let (g, u) = (L::load(lanes(gate)), L::load(lanes(up)));
            let y = match activation {
                Activation::Silu => silu(g, 1.0).mul(u),
                // 0.5 (1 + tanh z) = sigmoid(2 z), z = sqrt(2 / pi) (x + 0.044715 x^3)
                Activation::Gelu => {
                    let z = g.mul(g).fma(L::splat(0.044_715), L::splat(1.0)).mul(g);
                    g.mul(sigmoid_of(z.mul(L::splat(1.595_769)))).mul(u)
                }
                Activation::Clamped => {
                    let u = u.max(L::splat(-7.0)).min(L::splat(7.0)).add(L::splat(1.0));
                    silu(g.min(L::splat(7.0)), 1.702).mul(u)
                }
                Activation::SquaredRelu => {
                    let positive = g.max(L::splat(0.0));
                    positive.mul(positive).mul(u)
                }
            };
            y.store(lanes_mut(gate));
        }
    }
}

#[inline(always)]
fn sigmoid_of<L: Lanes>(x: L) -> L {
    let one = L::splat(1.0);
    one.div(one.add(L::splat(0.0).sub(x).exp()))
}

/// `x · sigmoid(slope x)`.
#[inline(always)]
fn silu<L: Lanes>(x: L, slope: f32) -> L {
    x.div(L::splat(1.0).add(x.mul(L::splat(-slope)).exp()))
}

/// A gated activation in the place of the gate, elementwise.
pub fn gate(isa: Isa, activation: Activation, gates: &mut [f32], ups: &[f32]) {
    let whole = gates.len() / LANES * LANES;
    let (gates, rest) = gates.split_at_mut(whole);
    isa.run(Gate(activation, gates, &ups[..whole]));
    if !rest.is_empty() {
        let mut last = padded(rest, 0);
        isa.run(Gate(activation, &mut last, &padded(&ups[whole..], 0)));
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// An activation alone, in place.
pub fn activate(isa: Isa, activation: Activation, x: &mut [f32]) {
    let ones = vec![1.0; x.len()];
    gate(isa, activation, x, &ones);
}

/// The sigmoid of each number, in place.
pub fn sigmoid(isa: Isa, x: &mut [f32]) {
    isa.run(Sigmoid(x));
}

struct Sigmoid<'a>(&'a mut [f32]);

impl Kernel for Sigmoid<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        each::<L>(self.0, sigmoid_of);
    }
}

/// `cap · tanh(x / cap)` of each number, in place.
pub fn soft_cap(isa: Isa, x: &mut [f32], cap: f32) {
    for_rows(x, 1, |_, x| isa.run(SoftCap { x, cap }));
}

struct SoftCap<'a> {
    x: &'a mut [f32],
    cap: f32,
}

impl Kernel for SoftCap<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { x, cap } = self;
        // tanh z = 2 sigmoid(2 z) - 1
        let (slope, double, cap) = (L::splat(2.0 / cap), L::splat(2.0 * cap), L::splat(-cap));
        each::<L>(x, |x| sigmoid_of(x.mul(slope)).fma(double, cap));
    }
}

/// Replaces each number, some at a time.
#[inline(always)]
fn each<L: Lanes>(x: &mut [f32], of: impl Fn(L) -> L) {
    for piece in x.chunks_mut(LANES) {
        let mut lanes = [0.0; LANES];
        of(L::load(&padded(piece, 0))).store(&mut lanes);
        piece.copy_from_slice(&lanes[..piece.len()]);
    }
}

/// Softmax of one row, in place.
pub fn softmax(isa: Isa, x: &mut [f32]) {
    isa.run(Softmax(x));
}

struct Softmax<'a>(&'a mut [f32]);

impl Kernel for Softmax<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let mut max = f32::NEG_INFINITY;
        for x in self.0.iter() {
            max = if *x > max { *x } else { max };
        }
        let mut sum = 0.0;
        for piece in self.0.chunks_mut(LANES) {
            let mut lanes = [0.0; LANES];
            L::load(&padded(piece, 0)).sub(L::splat(max)).exp().store(&mut lanes);
            for (x, e) in piece.iter_mut().zip(lanes) {
                *x = e;
                sum += e;
            }
        }
        for x in self.0.iter_mut() {
            *x /= sum;
        }
    }
}

/// Rotary embedding (Su et al. 2021) of `x: [n_rows, n_heads, head_dim]`, in place: elements `first ..` of
/// each head turn.
///
/// `tables[r]` holds the cosines and then the sines of row r's position; as many elements turn as it is long.
pub fn rope(isa: Isa, x: &mut [f32], head_dim: usize, first: usize, pairs: RopeLayout, tables: &[Vec<f32>]) {
    let width = x.len() / tables.len();
    for_rows(x, width, |row, rows| {
        for (row, table) in rows.chunks_exact_mut(width).zip(&tables[row..]) {
            isa.run(Rope { row, head_dim, first, pairs, table });
        }
    });
}

struct Rope<'a> {
    row: &'a mut [f32],
    head_dim: usize,
    first: usize,
    pairs: RopeLayout,
    table: &'a [f32],
}

impl Kernel for Rope<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { row, head_dim, first, pairs, table } = self;
        let (cos, sin) = table.split_at(table.len() / 2);
        for head in row.chunks_exact_mut(head_dim) {
            let turned = &mut head[first..first + table.len()];
            match pairs {
                RopeLayout::Interleaved => {
                    for ((pair, cos), sin) in turned.chunks_exact_mut(2).zip(cos).zip(sin) {
                        (pair[0], pair[1]) = turn(pair[0], pair[1], *cos, *sin);
                    }
                }
                RopeLayout::NeoX => {
                    let (a, b) = turned.split_at_mut(cos.len());
                    for (((a, b), cos), sin) in a.iter_mut().zip(b).zip(cos).zip(sin) {
                        (*a, *b) = turn(*a, *b, *cos, *sin);
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn turn(a: f32, b: f32, cos: f32, sin: f32) -> (f32, f32) {
    (a * cos - b * sin, a * sin + b * cos)
}

/// The block-diagonal Hadamard rotation of rows of `x`, in place; it is its own inverse.
///
/// A row is made of parts `widths` wide, side by side (one for a plain head), and each part of blocks: its
/// powers of two, the largest first (96 = 64 + 32). A block of n is multiplied by `H / sqrt(n)`.
pub fn hadamard(isa: Isa, x: &mut [f32], widths: &[usize]) {
    let blocks: Vec<usize> = widths.iter().flat_map(|width| powers_of_two(*width)).collect();
    for_rows(x, widths.iter().sum(), |_, x| isa.run(Hadamard { x, blocks: &blocks }));
}

/// The powers of two that add up to `n`, the largest first.
fn powers_of_two(n: usize) -> impl Iterator<Item = usize> {
    (0..usize::BITS).rev().map(|bit| 1 << bit).filter(move |power| n & power != 0)
}

struct Hadamard<'a> {
    /// Whole rows.
    x: &'a mut [f32],
    blocks: &'a [usize],
}

impl Kernel for Hadamard<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let mut rest = self.x;
        while !rest.is_empty() {
            for n in self.blocks {
                let (block, after) = rest.split_at_mut(*n);
                rest = after;
                rotate::<L>(block);
            }
        }
    }
}

#[inline(always)]
fn rotate<L: Lanes>(block: &mut [f32]) {
    let scale = 1.0 / (block.len() as f32).sqrt();
    let mut half = 1;
    if block.len() >= LANES {
        for piece in block.chunks_exact_mut(LANES) {
            let mut x = *lanes(piece);
            x = exchange::<1>(x);
            x = exchange::<2>(x);
            x = exchange::<4>(x);
            x = exchange::<8>(x);
            piece.copy_from_slice(&x);
        }
        half = LANES;
    }
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

/// [`butterflies`] of lanes that are `HALF` apart.
#[inline(always)]
fn exchange<const HALF: usize>(x: [f32; LANES]) -> [f32; LANES] {
    let mut y = [0.0; LANES];
    for i in 0..LANES {
        let other = x[i ^ HALF];
        y[i] = if i & HALF == 0 { x[i] + other } else { other - x[i] };
    }
    y
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
        for widths in [&[64][..], &[80], &[96], &[128], &[192], &[512, 64], &[48, 16]] {
            let head_dim: usize = widths.iter().sum();
            let x = wave(3 * head_dim);
            let mut y = x.clone();
            hadamard(Isa::SCALAR, &mut y, widths);
            assert!(
                x.iter().zip(&y).any(|(a, b)| (a - b).abs() > 0.1),
                "head_dim {head_dim}: nothing turned"
            );
            let norm = |v: &[f32]| v.iter().map(|x| x * x).sum::<f32>();
            assert!((norm(&x) / norm(&y) - 1.0).abs() < 1e-5, "head_dim {head_dim}: length changed");
            for isa in Isa::available() {
                let mut same = x.clone();
                hadamard(isa, &mut same, widths);
                assert_eq!(same, y, "{} differs from scalar", isa.name());
            }
            // What is left of a boundary stays left of it.
            let mut left = x[..widths[0]].to_vec();
            hadamard(Isa::SCALAR, &mut left, &widths[..1]);
            assert_eq!(left, y[..widths[0]]);
            hadamard(Isa::SCALAR, &mut y, widths);
            assert!(
                x.iter().zip(&y).all(|(a, b)| (a - b).abs() < 1e-5),
                "head_dim {head_dim}: not its inverse"
            );
        }
    }

    #[test]
    fn norm_and_gates_agree_with_f64_and_across_sets() {
        let (x, w) = (wave(100), wave(50));
        let norm = rms_norm(Isa::SCALAR, &x, &w, 1e-5);
        for row in 0..2 {
            let row_x = &x[row * 50..][..50];
            let mean = row_x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / 50.0;
            for i in 0..50 {
                let exact = f64::from(row_x[i]) / (mean + 1e-5).sqrt() * f64::from(w[i]);
                assert!((f64::from(norm[row * 50 + i]) - exact).abs() < 1e-5);
            }
        }
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let gelu = |x: f64| {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
        };
        let all = [Activation::Silu, Activation::Gelu, Activation::Clamped, Activation::SquaredRelu];
        for activation in all {
            let (gates, ups) = (wave(96).iter().map(|x| 4.0 * x).collect::<Vec<f32>>(), wave(96));
            let mut ours = gates.clone();
            Isa::SCALAR.run(Gate(activation, &mut ours, &ups));
            for (i, y) in ours.iter().enumerate() {
                let (g, u) = (f64::from(gates[i]), f64::from(ups[i]));
                let exact = match activation {
                    Activation::Silu => g * sigmoid(g) * u,
                    Activation::Gelu => gelu(g) * u,
                    Activation::Clamped => {
                        let g = g.min(7.0);
                        g * sigmoid(1.702 * g) * (u.clamp(-7.0, 7.0) + 1.0)
                    }
                    Activation::SquaredRelu => g.max(0.0).powi(2) * u,
                };
                let bound = 2e-5 * exact.abs().max(1.0);
                assert!((f64::from(*y) - exact).abs() < bound, "{activation:?}({g}, {u}) = {y}, not {exact}");
            }
            for isa in Isa::available() {
                let mut same = gates.clone();
                isa.run(Gate(activation, &mut same, &ups));
                assert_eq!(same, ours);
            }
        }
        let mut p = x[..21].to_vec();
        softmax(Isa::SCALAR, &mut p);
        let sum: f64 = x[..21].iter().map(|x| f64::from(*x).exp()).sum();
        assert!(x.iter().zip(&p).all(|(x, p)| (f64::from(*x).exp() / sum - f64::from(*p)).abs() < 1e-6));
        for isa in Isa::available() {
            assert!(*rms_norm(isa, &x, &w, 1e-5) == *norm);
            let mut same = x[..21].to_vec();
            softmax(isa, &mut same);
            assert_eq!(same, p);
        }
    }

    #[test]
    fn rope_turns_pairs_by_their_angle() {
        let table: Vec<f32> = [0.3f32.cos(), 1.0, 0.3f32.sin(), 0.0].to_vec();
        let (cos, sin) = (0.3f32.cos(), 0.3f32.sin());
        let mut x = vec![1.0, 0.0, 2.0, 3.0, 9.0];
        rope(Isa::SCALAR, &mut x, 5, 0, RopeLayout::Interleaved, std::slice::from_ref(&table));
        assert_eq!(x, [cos, sin, 2.0, 3.0, 9.0]);
        let mut x = vec![7.0, 1.0, 2.0, 0.0, 3.0];
        rope(Isa::SCALAR, &mut x, 5, 1, RopeLayout::NeoX, std::slice::from_ref(&table));
        assert_eq!(x, [7.0, cos, 2.0, sin, 3.0]);
    }
}
