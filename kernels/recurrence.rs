//! Recurrent layers: a causal convolution of each channel, and a matrix for each head that every token
//! changes and reads.
//!
//! A head's matrix `S: [k_dim, v_dim]` meets a token's key k, query q and value v with a decay g and a
//! strength b:
//!
//! ```text
//! S ← g S        d = b (v − Sᵀ k)  or  b v        S ← S + k dᵀ        o = Sᵀ q
//! ```
//! The first d is the gated delta rule (Yang, Kautz & Hatamizadeh 2025, eq. 10), the second Mamba-2 (Dao & Gu
//! 2024) with B, C, x, Δ and exp(Δ A) for k, q, v, b and g. Tokens come one after another in f32. Columns of
//! S never meet, so work is split over heads and columns; sums over rows of S are those of the even rows plus
//! those of the odd ones.
//!
//! In memory a head is `[v_dim / 16, k_dim, 16]`: 16 columns beside each other.

use super::{Isa, Kernel, LANES, Lanes, lanes, lanes_mut};
use crate::{halves, threads};
use half::f16;
use std::ops::Range;

/// What a token adds to a head's matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// What the matrix does not yet have at the key.
    Delta,
    /// The value.
    Additive,
}

/// Columns `first .. first + n` of rows of `width`.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a> {
    /// All rows.
    pub rows: &'a [f32],
    /// Width of a row.
    pub width: usize,
    /// The first column.
    pub first: usize,
    /// Number of columns.
    pub n: usize,
}

impl<'a> Columns<'a> {
    #[inline(always)]
    fn row(self, row: usize) -> &'a [f32] {
        &self.rows[row * self.width + self.first..][..self.n]
    }
}

/// Tokens of a head, and some of its values' columns (16, or two times 16).
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    /// What they add.
    pub rule: Rule,
    /// `[n, k_dim]`.
    pub keys: Columns<'a>,
    /// `[n, k_dim]`.
    pub queries: Columns<'a>,
    /// `[n, 16 or 32]`.
    pub values: Columns<'a>,
    /// Decay and strength, `[n, 2]`.
    pub gates: Columns<'a>,
}

/// Takes `tile: [n / 16, k_dim, 16]` through some tokens; what they read goes to `out`, `[tokens, n]`, unless
/// that is empty.
pub fn walk(isa: Isa, tokens: Tokens<'_>, range: Range<usize>, tile: &mut [f32], out: &mut [f32]) {
    assert!(tokens.keys.n % 2 == 0 && tokens.keys.n == tokens.queries.n, "rows of a matrix come in pairs");
    assert_eq!(tile.len(), tokens.keys.n * tokens.values.n, "a tile is a head's columns");
    assert!(out.is_empty() || out.len() == range.len() * tokens.values.n, "each token reads its columns");
    isa.run(Walk { tokens, range, tile, out });
}

struct Walk<'a> {
    tokens: Tokens<'a>,
    range: Range<usize>,
    tile: &'a mut [f32],
    out: &'a mut [f32],
}

impl Kernel for Walk<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        match self.tokens.values.n / LANES {
            1 => walk_columns::<L, 1>(self),
            2 => walk_columns::<L, 2>(self),
            n => unreachable!("{n} vectors are no tile"),
        }
    }
}

#[inline(always)]
fn walk_columns<L: Lanes, const P: usize>(Walk { tokens, range, tile, out }: Walk<'_>) {
    let k_dim = tokens.keys.n;
    let (tile, _) = tile.as_chunks_mut::<LANES>();
    let tile = &mut tile[..P * k_dim];
    for (i, row) in range.enumerate() {
        let (keys, queries) = (&tokens.keys.row(row)[..k_dim], &tokens.queries.row(row)[..k_dim]);
        let (values, gates) = (tokens.values.row(row), tokens.gates.row(row));
        let (decay, strength) = (L::splat(gates[0]), L::splat(gates[1]));
        let mut change = [L::splat(0.0); P];
        for (change, values) in change.iter_mut().zip(values.chunks_exact(LANES)) {
            *change = L::load(lanes(values));
        }
        if tokens.rule == Rule::Delta {
            let mut sums = [[L::splat(0.0); P]; 2];
            for at in (0..k_dim).step_by(2) {
                for odd in 0..2 {
                    let key = L::splat(keys[at + odd]);
                    for p in 0..P {
                        let place = &mut tile[p * k_dim + at + odd];
                        let decayed = L::load(place).mul(decay);
                        decayed.store(place);
                        sums[odd][p] = decayed.fma(key, sums[odd][p]);
                    }
                }
            }
            for p in 0..P {
                change[p] = change[p].sub(sums[0][p].add(sums[1][p]));
            }
        }
        for change in &mut change {
            *change = change.mul(strength);
        }
        let mut sums = [[L::splat(0.0); P]; 2];
        for at in (0..k_dim).step_by(2) {
            for odd in 0..2 {
                let (key, query) = (L::splat(keys[at + odd]), L::splat(queries[at + odd]));
                for p in 0..P {
                    let place = &mut tile[p * k_dim + at + odd];
                    let mut now = L::load(place);
                    if tokens.rule == Rule::Additive {
                        now = now.mul(decay);
                    }
                    let now = change[p].fma(key, now);
                    now.store(place);
                    sums[odd][p] = now.fma(query, sums[odd][p]);
                }
            }
        }
        if !out.is_empty() {
            let (read, _) = out[i * P * LANES..][..P * LANES].as_chunks_mut::<LANES>();
            for p in 0..P {
                sums[0][p].add(sums[1][p]).store(&mut read[p]);
            }
        }
    }
}

/// Number format of sealed matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sealed {
    /// As they are.
    F32,
    /// Half precision.
    F16,
    /// 8 bits, and a scale (f32) for each column: its greatest element is ±127.
    Q8,
}

impl Sealed {
    /// Bytes of an element.
    pub fn element(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
            Self::Q8 => 1,
        }
    }

    /// Scales of `n` columns.
    pub fn n_scales(self, n: usize) -> usize {
        if self == Self::Q8 { n } else { 0 }
    }

    /// Rounds columns `tile: [n / 16, k_dim, 16]` to what they are sealed as, in place; also puts that into
    /// `bytes` and `scales: [n]`, unless they are empty.
    pub fn seal(self, isa: Isa, tile: &mut [f32], k_dim: usize, bytes: &mut [u8], scales: &mut [f32]) {
        assert!(bytes.is_empty() || bytes.len() == tile.len() * self.element(), "bytes of each element");
        match self {
            Self::F32 if bytes.is_empty() => {}
            Self::F32 => bytes.copy_from_slice(bytemuck::cast_slice(tile)),
            Self::F16 => {
                let mut rounded = vec![f16::ZERO; tile.len()];
                halves::round(isa, tile, &mut rounded);
                tile.iter_mut().zip(&rounded).for_each(|(x, half)| *x = half.to_f32());
                if !bytes.is_empty() {
                    bytes.copy_from_slice(bytemuck::cast_slice(&rounded));
                }
            }
            Self::Q8 => {
                let (mut codes, mut own) = (vec![0; tile.len()], vec![0.0; tile.len() / k_dim]);
                isa.run(Round { tile, k_dim, codes: &mut codes, scales: &mut own });
                if !bytes.is_empty() {
                    bytes.copy_from_slice(bytemuck::cast_slice(&codes));
                    scales.copy_from_slice(&own);
                }
            }
        }
    }

    /// Takes columns out of what [`Sealed::seal`] made of them.
    pub fn unseal(self, isa: Isa, bytes: &[u8], scales: &[f32], k_dim: usize, tile: &mut [f32]) {
        assert_eq!(bytes.len(), tile.len() * self.element(), "bytes of each element");
        match self {
            Self::F32 => bytemuck::cast_slice_mut::<f32, u8>(tile).copy_from_slice(bytes),
            Self::F16 => {
                for (x, half) in tile.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *x = f16::from_le_bytes(*half).to_f32();
                }
            }
            Self::Q8 => isa.run(Unround { codes: bytemuck::cast_slice(bytes), scales, k_dim, tile }),
        }
    }
}

struct Round<'a> {
    tile: &'a mut [f32],
    k_dim: usize,
    codes: &'a mut [i8],
    scales: &'a mut [f32],
}

impl Kernel for Round<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let size = self.k_dim * LANES;
        let vectors = self.tile.chunks_exact_mut(size).zip(self.codes.chunks_exact_mut(size));
        for ((tile, codes), scales) in vectors.zip(self.scales.chunks_exact_mut(LANES)) {
            let mut greatest = L::splat(0.0);
            for x in tile.chunks_exact(LANES) {
                greatest = greatest.max(L::load(lanes(x)).abs());
            }
            // A column of zeros has any scale but 0.
            let scale = greatest.mul(L::splat(1.0 / 127.0)).max(L::splat(f32::MIN_POSITIVE));
            scale.store(lanes_mut(scales));
            for (x, codes) in tile.chunks_exact_mut(LANES).zip(codes.chunks_exact_mut(LANES)) {
                let code = L::load(lanes(x)).div(scale).min(L::splat(127.0)).max(L::splat(-127.0)).round();
                code.store_i8(lanes_mut(codes));
                code.mul(scale).store(lanes_mut(x));
            }
        }
    }
}

struct Unround<'a> {
    codes: &'a [i8],
    scales: &'a [f32],
    k_dim: usize,
    tile: &'a mut [f32],
}

impl Kernel for Unround<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let size = self.k_dim * LANES;
        let vectors = self.tile.chunks_exact_mut(size).zip(self.codes.chunks_exact(size));
        for ((tile, codes), scales) in vectors.zip(self.scales.chunks_exact(LANES)) {
            let scale = L::load(lanes(scales));
            for (x, codes) in tile.chunks_exact_mut(LANES).zip(codes.chunks_exact(LANES)) {
                L::load_i8(lanes(codes)).mul(scale).store(lanes_mut(x));
            }
        }
    }
}

/// Causal convolution of each channel.
#[derive(Clone, Copy, Debug)]
pub struct Convolution<'a> {
    /// `[taps, channels]`, the oldest input's first.
    pub weights: &'a [f32],
    /// `[channels]`.
    pub bias: Option<&'a [f32]>,
    /// What comes out goes through SiLU.
    pub silu: bool,
    /// Number of channels.
    pub channels: usize,
}

/// A task convolves at least this many floats.
const FLOATS_PER_TASK: usize = 1 << 14;

/// Convolves `inputs: [taps - 1 + n, channels]` to `out: [n, channels]`.
pub fn convolve(isa: Isa, of: Convolution<'_>, inputs: &[f16], out: &mut [f32]) {
    let Convolution { weights, channels, .. } = of;
    let (taps, n) = (weights.len() / channels, out.len() / channels);
    assert!(channels % LANES == 0 && taps > 0, "channels are whole vectors");
    assert_eq!(inputs.len(), (taps - 1 + n) * channels, "inputs of each output");
    threads::for_rows([out], n, FLOATS_PER_TASK / channels, |rows, [out]| {
        let inputs = &inputs[rows.start * channels..(rows.end + taps - 1) * channels];
        isa.run(Convolve { of, inputs, out });
    });
}

struct Convolve<'a> {
    of: Convolution<'a>,
    inputs: &'a [f16],
    out: &'a mut [f32],
}

impl Kernel for Convolve<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Convolution { weights, bias, silu, channels } = self.of;
        let taps = weights.len() / channels;
        for (row, out) in self.out.chunks_exact_mut(channels).enumerate() {
            for at in (0..channels).step_by(LANES) {
                let mut sum = match bias {
                    Some(bias) => L::load(lanes(&bias[at..at + LANES])),
                    None => L::splat(0.0),
                };
                for tap in 0..taps {
                    let input = &self.inputs[(row + tap) * channels + at..][..LANES];
                    let weight = L::load(lanes(&weights[tap * channels + at..][..LANES]));
                    sum = L::load_f16(lanes(input)).fma(weight, sum);
                }
                if silu {
                    sum = sum.div(L::splat(1.0).add(L::splat(0.0).sub(sum).exp()));
                }
                sum.store(lanes_mut(&mut out[at..at + LANES]));
            }
        }
    }
}

/// `softplus(x + bias)`, and `exp` of that times a slope: the step of a state space and its decay, or a gate
/// and its decay.
pub fn decay(x: f32, bias: f32, slope: f32) -> (f32, f32) {
    let x = x + bias;
    // As every implementation has it: beyond 20 the softplus is the number itself.
    let step = if x > 20.0 { x } else { libm::log1pf(libm::expf(x)) };
    (step, libm::expf(step * slope))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize, seed: u32) -> Vec<f32> {
        let bits = |i: u32| (i ^ seed.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
        (0..n as u32).map(|i| (bits(i) ^ bits(i) >> 13) as f32 / u32::MAX as f32 * 2.0 - 1.0).collect()
    }

    const K: usize = 48;
    const V: usize = 32;
    const N: usize = 20;

    struct Case {
        keys: Vec<f32>,
        queries: Vec<f32>,
        values: Vec<f32>,
        gates: Vec<f32>,
    }

    impl Case {
        fn new() -> Self {
            let unit = |mut x: Vec<f32>| {
                for row in x.chunks_exact_mut(K) {
                    let norm = row.iter().map(|x| x * x).sum::<f32>().sqrt();
                    row.iter_mut().for_each(|x| *x /= norm);
                }
                x
            };
            Self {
                keys: unit(noise(N * K, 1)),
                queries: unit(noise(N * K, 2)),
                values: noise(N * V, 3),
                gates: noise(2 * N, 4).into_iter().map(|x| 0.75 + x / 4.0).collect(),
            }
        }

        fn tokens(&self, rule: Rule, columns: Range<usize>) -> Tokens<'_> {
            let all = |rows, width| Columns { rows, width, first: 0, n: width };
            Tokens {
                rule,
                keys: all(&self.keys, K),
                queries: all(&self.queries, K),
                values: Columns { rows: &self.values, width: V, first: columns.start, n: columns.len() },
                gates: all(&self.gates, 2),
            }
        }

        /// By the definition, in f64: what tokens read, `[n, v]`.
        fn naive(&self, rule: Rule) -> Vec<f64> {
            let mut s = vec![0f64; K * V];
            let mut out = Vec::new();
            for t in 0..N {
                let at = |x: &[f32], width: usize, i: usize| f64::from(x[t * width + i]);
                s.iter_mut().for_each(|x| *x *= at(&self.gates, 2, 0));
                for j in 0..V {
                    let has: f64 = (0..K).map(|i| s[i * V + j] * at(&self.keys, K, i)).sum();
                    let has = if rule == Rule::Delta { has } else { 0.0 };
                    let change = at(&self.gates, 2, 1) * (at(&self.values, V, j) - has);
                    (0..K).for_each(|i| s[i * V + j] += at(&self.keys, K, i) * change);
                    out.push((0..K).map(|i| s[i * V + j] * at(&self.queries, K, i)).sum());
                }
            }
            out
        }
    }

    #[test]
    fn tokens_change_and_read_a_matrix_as_by_definition() {
        let case = Case::new();
        for rule in [Rule::Delta, Rule::Additive] {
            let mut expected = None;
            for isa in Isa::available() {
                let (mut tile, mut out) = (vec![0.0; K * V], vec![0.0; N * V]);
                walk(isa, case.tokens(rule, 0..V), 0..N, &mut tile, &mut out);
                for (exact, ours) in case.naive(rule).iter().zip(&out) {
                    assert!((exact - f64::from(*ours)).abs() < 1e-5, "{rule:?}: {ours}, exactly {exact}");
                }
                // Columns alone, and tokens in parts, are the same to the bit; so is every instruction set.
                let mut alone = vec![0.0; K * LANES];
                let mut read = vec![0.0; N * LANES];
                let (first, rest) = read.split_at_mut(7 * LANES);
                walk(isa, case.tokens(rule, LANES..V), 0..7, &mut alone, first);
                walk(isa, case.tokens(rule, LANES..V), 7..N, &mut alone, rest);
                assert_eq!(alone, tile[K * LANES..]);
                assert!(read.chunks(LANES).zip(out.chunks(V)).all(|(a, b)| *a == b[LANES..]));
                let mut unread = vec![0.0; K * V];
                walk(isa, case.tokens(rule, 0..V), 0..N, &mut unread, &mut []);
                assert_eq!(unread, tile);
                assert_eq!(
                    *expected.get_or_insert((tile.clone(), out.clone())),
                    (tile, out),
                    "{}",
                    isa.name()
                );
            }
        }
    }

    #[test]
    fn what_is_sealed_is_what_goes_on() {
        for (format, bound) in [(Sealed::F32, 0.0), (Sealed::F16, 5e-4), (Sealed::Q8, 4e-3)] {
            let mut expected = None;
            for isa in Isa::available() {
                let mut exact = noise(K * V, 9);
                exact[..K * LANES].fill(0.0);
                let (mut tile, mut bytes) = (exact.clone(), vec![0; K * V * format.element()]);
                let mut scales = vec![0.0; format.n_scales(V)];
                format.seal(isa, &mut tile, K, &mut bytes, &mut scales);
                let mut again = vec![7.0; K * V];
                format.unseal(isa, &bytes, &scales, K, &mut again);
                assert_eq!(again, tile);
                let off = tile.iter().zip(&exact).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(off <= bound, "{format:?}: off by {off}");
                let mut unkept = exact.clone();
                format.seal(isa, &mut unkept, K, &mut [], &mut []);
                assert_eq!(unkept, tile);
                assert_eq!(*expected.get_or_insert(bytes.clone()), bytes, "{}", isa.name());
            }
        }
    }

    #[test]
    fn a_convolution_sees_the_inputs_before() {
        let (channels, taps, n) = (32, 4, 9);
        let inputs: Vec<f16> = noise((taps - 1 + n) * channels, 5).into_iter().map(f16::from_f32).collect();
        let (weights, bias) = (noise(taps * channels, 6), noise(channels, 7));
        for silu in [false, true] {
            let of = Convolution { weights: &weights, bias: Some(&bias), silu, channels };
            let mut expected = vec![0.0; n * channels];
            convolve(Isa::SCALAR, of, &inputs, &mut expected);
            for (i, ours) in expected.iter().enumerate() {
                let (row, channel) = (i / channels, i % channels);
                let tap = |t: usize| {
                    f64::from(weights[t * channels + channel])
                        * inputs[(row + t) * channels + channel].to_f64()
                };
                let sum = f64::from(bias[channel]) + (0..taps).map(tap).sum::<f64>();
                let exact = if silu { sum / (1.0 + (-sum).exp()) } else { sum };
                assert!((exact - f64::from(*ours)).abs() < 1e-5);
            }
            for isa in Isa::available() {
                let mut out = vec![0.0; n * channels];
                convolve(isa, of, &inputs, &mut out);
                assert_eq!(out, expected, "{}", isa.name());
                let mut last = vec![0.0; channels];
                convolve(isa, of, &inputs[(n - 1) * channels..], &mut last);
                assert_eq!(last, expected[(n - 1) * channels..]);
            }
        }
    }
}
