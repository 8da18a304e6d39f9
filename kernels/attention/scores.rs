//! Scores of some queries against a tile's keys: a token to a lane.

use super::{Codes, MAX_TILE_QUERIES, TILE};
use crate::quant::{BYTES_ZERO, GROUP, LEVELS_RAISED, LEVELS_ZERO};
use crate::{LANES, Lanes, Words, lanes, lanes_mut};
use half::f16;

/// Scores over f16 keys: each column in turn, queries in f32.
pub(super) struct HalfKeys<'a> {
    pub(super) q: &'a [f32],
    pub(super) head_dim: usize,
    pub(super) vectors: &'a [f16],
    pub(super) stride: usize,
}

impl HalfKeys<'_> {
    #[inline(always)]
    pub(super) fn scores<L: Lanes>(
        &self,
        n: usize,
        n_tokens: usize,
        scores: &mut [[f32; TILE]; MAX_TILE_QUERIES],
    ) {
        let mut m = 0;
        while m < n {
            m += match (n - m).min(L::SUMS) {
                8.. => self.some::<L, 8>(m, n_tokens, scores),
                4.. => self.some::<L, 4>(m, n_tokens, scores),
                3 => self.some::<L, 3>(m, n_tokens, scores),
                2 => self.some::<L, 2>(m, n_tokens, scores),
                _ => self.some::<L, 1>(m, n_tokens, scores),
            };
        }
    }

    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // i indexes queries and sums
    fn some<L: Lanes, const M: usize>(
        &self,
        m: usize,
        n_tokens: usize,
        scores: &mut [[f32; TILE]; MAX_TILE_QUERIES],
    ) -> usize {
        let mut rows: [&[f32]; M] = [&[]; M];
        for i in 0..M {
            rows[i] = &self.q[(m + i) * self.head_dim..][..self.head_dim];
        }
        for v in 0..n_tokens.div_ceil(LANES) {
            let vectors = &self.vectors[v * self.stride..][..self.head_dim * LANES];
            let mut sums = [L::splat(0.0); M];
            for (d, keys) in vectors.chunks_exact(LANES).enumerate() {
                let keys = L::load_f16(lanes(keys));
                for i in 0..M {
                    sums[i] = keys.fma(L::splat(rows[i][d]), sums[i]);
                }
            }
            for i in 0..M {
                sums[i].store(lanes_mut(&mut scores[m + i][v * LANES..][..LANES]));
            }
        }
        M
    }
}

/// Queries in digits of 8 bits: `q ≈ Σ_digit scale * code`, a scale for each group of columns.
pub(super) struct CodedQueries {
    head_dim: usize,
    digits: Vec<Digit>,
}

struct Digit {
    /// `[n_queries, head_dim]`.
    codes: Vec<i8>,
    /// `[n_queries, n_groups]`: scale, and sum of the codes.
    scales: Vec<(f32, i32)>,
}

impl CodedQueries {
    #[inline(always)]
    pub(super) fn new<L: Lanes>(q: &[f32], head_dim: usize, n_digits: usize) -> Self {
        let mut rest = q.to_vec();
        let mut digits: Vec<Digit> = Vec::new();
        for _ in 0..n_digits {
            let mut digit = Digit { codes: vec![0; q.len()], scales: Vec::new() };
            for (rest, codes) in rest.chunks_exact_mut(head_dim).zip(digit.codes.chunks_exact_mut(head_dim)) {
                for (rest, codes) in rest.chunks_mut(GROUP).zip(codes.chunks_mut(GROUP)) {
                    digit.scales.push(digit_of::<L>(rest, codes));
                }
            }
            digits.push(digit);
        }
        Self { head_dim, digits }
    }

    #[inline(always)]
    pub(super) fn scores<L: Lanes>(
        &self,
        query: usize,
        n: usize,
        n_tokens: usize,
        k: Codes<'_>,
        shared: &[f32; MAX_TILE_QUERIES],
        scores: &mut [[f32; TILE]; MAX_TILE_QUERIES],
    ) {
        let mut m = 0;
        while m < n {
            m += match (n - m).min(L::SUMS) {
                8.. => self.some::<L, 8>(query, m, n_tokens, k, shared, scores),
                4.. => self.some::<L, 4>(query, m, n_tokens, k, shared, scores),
                3 => self.some::<L, 3>(query, m, n_tokens, k, shared, scores),
                2 => self.some::<L, 2>(query, m, n_tokens, k, shared, scores),
                _ => self.some::<L, 1>(query, m, n_tokens, k, shared, scores),
            };
        }
    }

    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // i indexes queries and sums
    fn some<L: Lanes, const M: usize>(
        &self,
        query: usize,
        m: usize,
        n_tokens: usize,
        k: Codes<'_>,
        shared: &[f32; MAX_TILE_QUERIES],
        scores: &mut [[f32; TILE]; MAX_TILE_QUERIES],
    ) -> usize {
        let dim = self.head_dim;
        let n_groups = dim.div_ceil(GROUP);
        let vector_bytes = dim * k.bits as usize * LANES / 8;
        let nibbles = L::Words::splat(0x0f0f_0f0f);
        let zero = match k.bits {
            4 => LEVELS_ZERO,
            _ if L::Words::LESS_128 => BYTES_ZERO - 128,
            _ => BYTES_ZERO,
        };
        let n_vectors = n_tokens.div_ceil(LANES);
        for i in 0..M {
            scores[m + i][..n_vectors * LANES].fill(shared[m + i]);
        }
        for g in 0..n_groups {
            let width = GROUP.min(dim - g * GROUP);
            let (first, n_bytes) =
                (g * GROUP * k.bits as usize * LANES / 8, width * k.bits as usize * LANES / 8);
            for digit in &self.digits {
                let mut rows: [&[i8]; M] = [&[]; M];
                let (mut scales, mut starts) = ([0.0; M], [0; M]);
                for i in 0..M {
                    let sum;
                    rows[i] = &digit.codes[(query + m + i) * dim + g * GROUP..][..width];
                    (scales[i], sum) = digit.scales[(query + m + i) * n_groups + g];
                    // Levels are raised above 0; what that adds is taken off beforehand.
                    starts[i] = -zero * sum;
                }
                for v in 0..n_vectors {
                    let words = &k.codes[v * vector_bytes + first..][..n_bytes];
                    let at = g * k.stride + v * LANES;
                    let scale = L::load_scales(lanes(&k.scales[at..at + LANES]));
                    let mut dots = [L::Words::splat(0); M];
                    for i in 0..M {
                        dots[i] = L::Words::splat(starts[i]);
                    }
                    for (j, vector) in words.chunks_exact(64).enumerate() {
                        let vector = L::Words::load(vector.try_into().expect("64 bytes"));
                        if k.bits == 4 {
                            let low = vector.and(nibbles).look_up(&LEVELS_RAISED);
                            let high = vector.shr(4).and(nibbles).look_up(&LEVELS_RAISED);
                            for i in 0..M {
                                dots[i] = dots[i]
                                    .dot(low, quad(rows[i], 8 * j))
                                    .dot(high, quad(rows[i], 8 * j + 4));
                            }
                        } else {
                            for i in 0..M {
                                dots[i] = dots[i].dot_wide(vector, quad(rows[i], 4 * j));
                            }
                        }
                    }
                    for i in 0..M {
                        let score = lanes_mut(&mut scores[m + i][v * LANES..][..LANES]);
                        let dot = L::from_words(dots[i]).mul(L::splat(scales[i]));
                        dot.fma(scale, L::load(score)).store(score);
                    }
                }
            }
        }
        M
    }
}

/// Four codes of a row as one word.
#[inline(always)]
fn quad(row: &[i8], at: usize) -> i32 {
    let four: &[i8; 4] = row[at..at + 4].try_into().expect("four codes");
    bytemuck::cast(*four)
}

/// Takes the 8-bit part of a group of a query's columns off `rest`: codes, then their scale and their sum.
#[inline(always)]
fn digit_of<L: Lanes>(rest: &mut [f32], codes: &mut [i8]) -> (f32, i32) {
    let mut largest = L::splat(0.0);
    for x in rest.chunks_exact(LANES) {
        largest = largest.max(L::load(lanes(x)).abs());
    }
    let scale = largest.largest() / 127.0;
    let inverse = L::splat(if scale > 0.0 { 1.0 / scale } else { 0.0 });
    let mut sum = 0i32;
    for (x, codes) in rest.chunks_exact_mut(LANES).zip(codes.chunks_exact_mut(LANES)) {
        let value = L::load(lanes(x));
        let code = value.mul(inverse).max(L::splat(-127.0)).min(L::splat(127.0)).round();
        code.store_i8(lanes_mut(codes));
        code.fma(L::splat(-scale), value).store(lanes_mut(x));
        sum += codes.iter().map(|c| i32::from(*c)).sum::<i32>();
    }
    (scale, sum)
}

/// Product of a block's mean key with each of the queries `q: [n, dim]`, to be added to their scores; 0 if
/// `mean` is empty.
#[inline(always)]
pub(super) fn common<L: Lanes>(q: &[f32], dim: usize, mean: &[f16]) -> [f32; MAX_TILE_QUERIES] {
    let mut shared = [0.0; MAX_TILE_QUERIES];
    if !mean.is_empty() {
        for (q, shared) in q.chunks_exact(dim).zip(&mut shared) {
            *shared = product::<L>(q, mean);
        }
    }
    shared
}

/// Puts the scores of a tile's first keys, given exactly (`[n, dim]`), in the place of those by their codes.
#[inline(always)]
pub(super) fn put_exact<L: Lanes>(
    q: &[f32],
    dim: usize,
    exact: &[f16],
    scores: &mut [[f32; TILE]; MAX_TILE_QUERIES],
) {
    for (token, key) in exact.chunks_exact(dim).enumerate() {
        for (q, scores) in q.chunks_exact(dim).zip(scores.iter_mut()) {
            scores[token] = product::<L>(q, key);
        }
    }
}

/// The product of a query and a key, both `[dim]`.
#[inline(always)]
fn product<L: Lanes>(q: &[f32], key: &[f16]) -> f32 {
    let mut sum = L::splat(0.0);
    for (q, key) in q.chunks_exact(LANES).zip(key.chunks_exact(LANES)) {
        sum = L::load(lanes(q)).fma(L::load_f16(lanes(key)), sum);
    }
    sum.sum()
}
