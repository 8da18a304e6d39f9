//! Attention over tiles of a cache: packed codes in, context out, online softmax, no score matrix.
//!
//! Tiles are 32 tokens, aligned to absolute positions. A query row walks tiles 0, 1, 2, … up to its own
//! position, whatever rows stand beside it, so its arithmetic is fixed by its position alone. A tile is unpacked
//! to f32 once for all query heads of a KV head and all rows of a task; nothing larger than a tile is ever unpacked.

use super::{Isa, Kernel, LANES, Lanes, lanes, lanes_mut};
use half::f16;

/// Tokens of a tile.
pub(crate) const TILE: usize = 32;

/// Keys or values of the tokens of one tile, for one KV head.
#[derive(Clone, Copy)]
pub(crate) enum Tile<'a> {
    /// Half-precision rows; token t starts at `t * stride`.
    F16 { rows: &'a [f16], stride: usize },
    /// Packed codes `[token, head_dim * bits / 32]`, `scales` and `biases` `[token, n_groups]`, lowest bits first.
    Coded { bits: u32, codes: &'a [u32], scales: &'a [f16], biases: &'a [f16] },
}

/// Where a task finds the tiles of its KV head. All rows of a task see the same bytes in a tile.
pub(crate) trait Tiles: Sync {
    /// Keys and values of tile `tile` (tokens `32 * tile ..`), as rows of the task's block see them.
    fn tile(&self, tile: usize) -> (Tile<'_>, Tile<'_>);
}

/// Query rows of one KV head: `q: [n_rows, group, head_dim]`, row r at position `first + r`.
pub(crate) struct Queries<'a> {
    pub(crate) q: &'a [f32],
    pub(crate) first: usize,
    pub(crate) n_rows: usize,
    pub(crate) group: usize,
    pub(crate) head_dim: usize,
    /// Scale of the scores, usually `1 / sqrt(head_dim)`.
    pub(crate) scale: f32,
}

/// Causal softmax attention of `queries` over `tiles`, into `[n_rows, group, head_dim]`.
///
/// Online softmax as in Milakov & Gimelshein 2018 and FlashAttention (Dao et al. 2022).
pub(crate) fn attend(isa: Isa, queries: &Queries<'_>, tiles: &dyn Tiles) -> Vec<f32> {
    assert_eq!(queries.head_dim % LANES, 0, "head sizes are multiples of {LANES}");
    isa.run(Attend { queries, tiles })
}

struct Attend<'a> {
    queries: &'a Queries<'a>,
    tiles: &'a dyn Tiles,
}

/// The running softmax of one query head of one row.
#[derive(Clone, Copy)]
struct Running {
    max: f32,
    sum: f32,
}

impl Kernel for Attend<'_> {
    type Output = Vec<f32>;
    #[inline(always)]
    fn run<L: Lanes>(self) -> Vec<f32> {
        let Queries { q, first, n_rows, group, head_dim, scale } = *self.queries;
        let mut out = vec![0.0; n_rows * group * head_dim];
        let mut running = vec![Running { max: f32::NEG_INFINITY, sum: 0.0 }; n_rows * group];
        let (mut keys, mut values) = (vec![0.0; TILE * head_dim], vec![0.0; TILE * head_dim]);
        let last = first + n_rows - 1;
        for tile in 0..=last / TILE {
            let start = tile * TILE;
            let (k, v) = self.tiles.tile(tile);
            let n_loaded = TILE.min(last + 1 - start);
            unpack::<L>(k, n_loaded, head_dim, &mut keys);
            unpack::<L>(v, n_loaded, head_dim, &mut values);
            for row in 0..n_rows {
                if first + row < start {
                    continue;
                }
                let n_seen = TILE.min(first + row + 1 - start);
                for head in row * group..(row + 1) * group {
                    let q = &q[head * head_dim..][..head_dim];
                    let mut scores = scores::<L>(q, &keys, n_seen, scale);
                    let out = &mut out[head * head_dim..][..head_dim];
                    accumulate::<L>(&mut running[head], &mut scores, &values, n_seen, out);
                }
            }
        }
        for (out, running) in out.chunks_exact_mut(head_dim).zip(&running) {
            let inverse = 1.0 / running.sum;
            for x in out {
                *x *= inverse;
            }
        }
        out
    }
}

/// `scores[t] = scale * q · k[t]` for the first `n` tokens of a tile; the rest stays at -inf.
#[inline(always)]
fn scores<L: Lanes>(q: &[f32], keys: &[f32], n: usize, scale: f32) -> [f32; TILE] {
    let mut scores = [f32::NEG_INFINITY; TILE];
    for (score, key) in scores.iter_mut().zip(keys.chunks_exact(q.len())).take(n) {
        let mut sum = L::splat(0.0);
        for (q, k) in q.chunks_exact(LANES).zip(key.chunks_exact(LANES)) {
            sum = L::load(lanes(q)).fma(L::load(lanes(k)), sum);
        }
        *score = sum.sum() * scale;
    }
    scores
}

/// One step of the online softmax: rescales what stands in `out` and adds the tile's values.
#[inline(always)]
fn accumulate<L: Lanes>(
    running: &mut Running,
    scores: &mut [f32; TILE],
    values: &[f32],
    n: usize,
    out: &mut [f32],
) {
    let max = scores[..n].iter().fold(running.max, |a, b| if a > *b { a } else { *b });
    let mut old = [running.max - max; LANES];
    if running.max == f32::NEG_INFINITY {
        old = [-87.0; LANES]; // the first tile: there is nothing to rescale
    }
    L::load(&old.clone()).exp().store(&mut old);
    let shift = L::splat(max);
    for piece in scores.chunks_exact_mut(LANES) {
        L::load(lanes(piece)).sub(shift).exp().store(lanes_mut(piece));
    }
    let mut sum = running.sum * old[0];
    for weight in &scores[..n] {
        sum += weight;
    }
    *running = Running { max, sum };
    let rescale = L::splat(old[0]);
    for (at, piece) in out.chunks_exact_mut(LANES).enumerate() {
        let mut acc = L::load(lanes(piece)).mul(rescale);
        for (t, weight) in scores[..n].iter().enumerate() {
            let value = &values[t * out_stride(values) + at * LANES..][..LANES];
            acc = L::splat(*weight).fma(L::load(lanes(value)), acc);
        }
        acc.store(lanes_mut(piece));
    }
}

/// Floats of a token in an unpacked tile.
#[inline(always)]
fn out_stride(values: &[f32]) -> usize {
    values.len() / TILE
}

/// The first `n` tokens of a tile in f32, `[token, head_dim]`.
#[inline(always)]
fn unpack<L: Lanes>(tile: Tile<'_>, n: usize, head_dim: usize, out: &mut [f32]) {
    for (t, row) in out.chunks_exact_mut(head_dim).take(n).enumerate() {
        for (i, piece) in row.chunks_exact_mut(LANES).enumerate() {
            let at = i * LANES;
            let x = match tile {
                Tile::F16 { rows, stride } => L::load_f16(lanes(&rows[t * stride + at..][..LANES])),
                Tile::Coded { bits, codes, scales, biases } => {
                    let words = head_dim * bits as usize / 32;
                    let group = t * head_dim.div_ceil(crate::quant::GROUP) + at / crate::quant::GROUP;
                    let word = t * words + at * bits as usize / 32;
                    let codes = if bits == 4 {
                        L::load_u4(codes[word..word + 2].try_into().expect("two words"))
                    } else {
                        L::load_u8(codes[word..word + 4].try_into().expect("four words"))
                    };
                    codes.fma(L::splat(scales[group].to_f32()), L::splat(biases[group].to_f32()))
                }
            };
            x.store(lanes_mut(piece));
        }
    }
}
