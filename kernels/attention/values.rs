//! Values of a tile: unpacked once for all queries, then gathered with their weights. A column to a lane.

use super::{Codes, Keys, SoftmaxWeights, TILE, Values};
use crate::quant::{BYTES_ZERO, GROUP, LEVELS};
use crate::{LANES, Lanes, lanes, lanes_mut};
use half::f16;

/// Rescales `out: [n, head_dim]` and adds the tile's values, token by token.
#[inline(always)]
pub(super) fn gather<L: Lanes>(
    weights: &SoftmaxWeights,
    n: usize,
    n_tokens: usize,
    values: &[f32],
    head_dim: usize,
    out: &mut [f32],
) {
    let mut m = 0;
    while m < n {
        let step = (n - m).min(4);
        let out = &mut out[m * head_dim..(m + step) * head_dim];
        let most = L::SUMS / step;
        let mut column = 0;
        while column < head_dim {
            let vectors = match ((head_dim - column) / LANES).min(most) {
                4.. => 4,
                2.. => 2,
                _ => 1,
            };
            let mut piece = RegisterTile { weights, m, n_tokens, values, head_dim, column, out };
            match (step, vectors) {
                (4, 4) => piece.add::<L, 4, 4>(),
                (4, 2) => piece.add::<L, 4, 2>(),
                (4, _) => piece.add::<L, 4, 1>(),
                (3, 4) => piece.add::<L, 3, 4>(),
                (3, 2) => piece.add::<L, 3, 2>(),
                (3, _) => piece.add::<L, 3, 1>(),
                (2, 4) => piece.add::<L, 2, 4>(),
                (2, 2) => piece.add::<L, 2, 2>(),
                (2, _) => piece.add::<L, 2, 1>(),
                (_, 4) => piece.add::<L, 1, 4>(),
                (_, 2) => piece.add::<L, 1, 2>(),
                (_, _) => piece.add::<L, 1, 1>(),
            }
            column += vectors * LANES;
        }
        m += step;
    }
}

/// Some columns of some queries, held in registers over a tile.
struct RegisterTile<'a> {
    weights: &'a SoftmaxWeights,
    m: usize,
    n_tokens: usize,
    values: &'a [f32],
    head_dim: usize,
    column: usize,
    out: &'a mut [f32],
}

impl RegisterTile<'_> {
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // i and c index several things at once
    fn add<L: Lanes, const M: usize, const C: usize>(&mut self) {
        let Self { weights, m, n_tokens, values, head_dim, column, .. } = *self;
        let group = column / GROUP;
        let mut tokens = [&[0.0; TILE]; M];
        let mut sums = [[L::splat(0.0); C]; M];
        for i in 0..M {
            tokens[i] = &weights.tokens[group][m + i];
            let rescale = weights.rescale[m + i];
            for c in 0..C {
                let so_far = L::load(lanes(&self.out[i * head_dim + column + c * LANES..][..LANES]));
                sums[i][c] = so_far.mul(L::splat(rescale));
            }
        }
        for (t, row) in values.chunks_exact(head_dim).take(n_tokens.min(TILE)).enumerate() {
            let row = &row[column..column + C * LANES];
            let mut vectors = [L::splat(0.0); C];
            for c in 0..C {
                vectors[c] = L::load(lanes(&row[c * LANES..][..LANES]));
            }
            for i in 0..M {
                let weight = L::splat(tokens[i][t]);
                for c in 0..C {
                    sums[i][c] = vectors[c].fma(weight, sums[i][c]);
                }
            }
        }
        for i in 0..M {
            for c in 0..C {
                sums[i][c].store(lanes_mut(&mut self.out[i * head_dim + column + c * LANES..][..LANES]));
            }
        }
    }
}

/// The first `n` tokens of a tile's values in f32, scales left out, `[token, v_dim]`.
#[inline(always)]
pub(super) fn unpack<L: Lanes>(values: Values<'_>, n: usize, v_dim: usize, out: &mut [f32]) {
    if let Values::Keys(keys) = values {
        return transpose::<L>(keys, n, v_dim, out);
    }
    for (t, row) in out.chunks_exact_mut(v_dim).take(n).enumerate() {
        match values {
            Values::F16 { rows, stride } => unpack_halves::<L>(&rows[t * stride..][..v_dim], row),
            Values::Coded { exact, .. } if t * v_dim < exact.len() => {
                unpack_halves::<L>(&exact[t * v_dim..][..v_dim], row);
            }
            Values::Coded { codes: Codes { bits: 4, codes, .. }, .. } => {
                let bytes = v_dim.div_ceil(2 * LANES) * LANES;
                let from = codes[t * bytes..][..bytes].chunks_exact(LANES);
                for (piece, bytes) in row.chunks_mut(2 * LANES).zip(from) {
                    let (low, high) = L::load_levels(lanes(bytes), &LEVELS);
                    let (first, last) = piece.split_at_mut(LANES);
                    low.store(lanes_mut(first));
                    if !last.is_empty() {
                        high.store(lanes_mut(last));
                    }
                }
            }
            Values::Coded { codes: Codes { codes, .. }, .. } => {
                let from = codes[t * v_dim..][..v_dim].chunks_exact(LANES);
                for (piece, bytes) in row.chunks_exact_mut(LANES).zip(from) {
                    L::load_u8(lanes(bytes)).sub(L::splat(BYTES_ZERO as f32)).store(lanes_mut(piece));
                }
            }
            Values::Keys(_) => {}
        }
    }
}

#[inline(always)]
fn unpack_halves<L: Lanes>(from: &[f16], row: &mut [f32]) {
    for (piece, half) in row.chunks_exact_mut(LANES).zip(from.chunks_exact(LANES)) {
        L::load_f16(lanes(half)).store(lanes_mut(piece));
    }
}

/// The first `v_dim` columns of the first `n` tokens' keys, scales left out, `[token, v_dim]`.
#[inline(always)]
fn transpose<L: Lanes>(keys: Keys<'_>, n: usize, v_dim: usize, out: &mut [f32]) {
    for (v, rows) in out.chunks_exact_mut(LANES * v_dim).take(n.div_ceil(LANES)).enumerate() {
        match keys {
            Keys::F16 { vectors, stride } => {
                let vectors = vectors[v * stride..].chunks_exact(LANES);
                for (column, vector) in vectors.take(v_dim).enumerate() {
                    let mut halves = [0.0; LANES];
                    L::load_f16(lanes(vector)).store(&mut halves);
                    for (t, x) in halves.into_iter().enumerate() {
                        rows[t * v_dim + column] = x;
                    }
                }
            }
            Keys::Coded { codes: k, .. } => {
                // 16 columns of 16 tokens at a time: 2 vectors of words (4 bits) or 4 (8 bits), a token to a
                // word.
                let row_words = k.codes.len() / TILE / 4;
                let vectors = k.codes[v * row_words * 64..].chunks_exact(32 * k.bits as usize);
                for (c, vectors) in vectors.take(v_dim / LANES).enumerate() {
                    let mut bytes = [[0; LANES]; LANES];
                    for (j, vector) in vectors.chunks_exact(64).enumerate() {
                        for (row, word) in bytes.iter_mut().zip(vector.chunks_exact(4)) {
                            let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                            if k.bits == 4 {
                                let (low, high) = (word & 0x0f0f_0f0f, word >> 4 & 0x0f0f_0f0f);
                                row[8 * j..8 * j + 4].copy_from_slice(&low.to_le_bytes());
                                row[8 * j + 4..8 * j + 8].copy_from_slice(&high.to_le_bytes());
                            } else {
                                row[4 * j..4 * j + 4].copy_from_slice(&word.to_le_bytes());
                            }
                        }
                    }
                    for (t, row) in bytes.iter().enumerate() {
                        let levels = match k.bits {
                            4 => L::load_levels(row, &LEVELS).0,
                            _ => L::load_u8(row).sub(L::splat(BYTES_ZERO as f32)),
                        };
                        levels.store(lanes_mut(&mut rows[t * v_dim + c * LANES..][..LANES]));
                    }
                }
            }
        }
    }
}
