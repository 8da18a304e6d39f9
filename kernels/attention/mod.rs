//! Attention over tiles of a cache: packed codes in, context out, online softmax, no score matrix.
//!
//! Tiles are 64 tokens, aligned to absolute positions. A query walks tiles 0, 1, 2, … up to its own position,
//! whatever other queries there are, so its arithmetic is fixed by its position alone. Scores have one token
//! to a lane: coded keys meet the query in 8 bits (16 for 8-bit keys) in exact integer products, f16 keys
//! meet it in f32. Contexts have one column to a lane; a tile's values are unpacked once for all queries of a
//! task, and nothing larger than a tile ever is.
//!
//! Keys are stored 16 tokens to a vector (f16 rows too), so that scores have a token to a lane; queries meet
//! coded keys in 8 bits, 8-bit keys in 16. Values are stored by token; contexts have a column to a lane and
//! are summed in f32.

mod scores;
mod values;

use super::{Isa, Kernel, LANES, Lanes, lanes, lanes_mut};
use crate::quant::{GROUP, Scale};
use half::f16;
use scores::{CodedQueries, HalfKeys, common, put_exact};
use values::{gather, unpack};

/// Tokens of a tile.
pub const TILE: usize = 64;

/// Keys of the tokens of one tile, for one KV head: one token to a lane. The same bytes may be read as
/// values.
#[derive(Clone, Copy)]
pub enum Keys<'a> {
    /// Column d of tokens 16 v to 16 v + 15 is the vector at `v * stride + 16 * d`.
    F16 {
        /// The columns' vectors.
        vectors: &'a [f16],
        /// Elements from 16 tokens to the next 16.
        stride: usize,
    },
    /// See [`Codes`]; for each 16 tokens one vector of words for 8 columns (4 bits: columns 8j to 8j + 3 in
    /// the low halves of the bytes, 8j + 4 to 8j + 7 in the high ones) or 4 columns (8 bits).
    Coded {
        /// Codes and scales.
        codes: Codes<'a>,
        /// Mean of the block's keys, subtracted before coding, `[k_dim]`; empty if it was not.
        mean: &'a [f16],
        /// The tile's first keys, whole and exact, `[n, k_dim]`: they are read instead of their codes.
        exact: &'a [f16],
    },
}

/// Values of the tokens of one tile, for one KV head.
#[derive(Clone, Copy)]
pub enum Values<'a> {
    /// The first columns of the keys (the latent of MLA).
    Keys(Keys<'a>),
    /// Token t starts at `t * stride`; one column to a lane, as below.
    F16 {
        /// The tokens' rows.
        rows: &'a [f16],
        /// Elements from a token to the next.
        stride: usize,
    },
    /// See [`Codes`]; for each token and 32 columns 16 bytes, columns 0 to 15 in their low halves, 16 to 31
    /// in the high ones (4 bits), or one byte a column (8 bits).
    Coded {
        /// Codes and scales.
        codes: Codes<'a>,
        /// The tile's first values, whole and exact, `[n, v_dim]`: they are read instead of their codes, and
        /// have a scale of 1.
        exact: &'a [f16],
    },
}

/// Codes of a tile (`scale * level`, see [`crate::quant`]), and for each group of columns the tokens'
/// scales: group g from `g * stride` on.
#[derive(Clone, Copy)]
pub struct Codes<'a> {
    /// Bits of a code: 4 or 8.
    pub bits: u32,
    /// The codes, packed as [`Keys`] and [`Values`] say.
    pub codes: &'a [u8],
    /// Scales, `[groups, stride]`.
    pub scales: &'a [Scale],
    /// Scales from a group to the next.
    pub stride: usize,
}

/// Source of the tiles of a KV head of one sequence. All of a sequence's rows in a task see the same bytes in
/// a tile.
pub trait Tiles: Sync {
    /// Keys and values of tile `tile` (tokens `64 * tile ..`), as rows of the task's block see them.
    fn tile(&self, tile: usize) -> (Keys<'_>, Values<'_>);
}

/// Query rows of one KV head, of one sequence or of several that begin with the same tiles:
/// `q: [Σ n_rows, group, k_dim]`.
pub struct Queries<'a> {
    /// Queries, `[Σ n_rows, group, k_dim]`.
    pub q: &'a [f32],
    /// The sequences' rows, one after another.
    pub rows: &'a [QueryRows<'a>],
    /// Leading tiles that are the same for all sequences; none if there is a window.
    pub n_common: usize,
    /// Query heads that share the KV head.
    pub group: usize,
    /// Width of queries and keys.
    pub k_dim: usize,
    /// Width of values.
    pub v_dim: usize,
    /// What turns scores into weights.
    pub params: AttnParams<'a>,
}

/// Rows of one sequence: row r at position `first + r`. All lie in one tile.
#[derive(Clone, Copy)]
pub struct QueryRows<'a> {
    /// Position of the first row.
    pub first: usize,
    /// Number of rows.
    pub n: usize,
    /// The sequence's keys and values.
    pub tiles: &'a dyn Tiles,
}

/// Parameters that turn scores into weights.
#[derive(Clone, Copy)]
pub struct AttnParams<'a> {
    /// Factor of the scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Number of tokens that a row attends to, itself included; `None`: all before it.
    pub window: Option<usize>,
    /// Scores become `cap * tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// Score, for each head of the group, of a token that is not there: it takes weight and gives nothing.
    pub sinks: Option<&'a [f32]>,
}

/// Causal softmax attention, into `[Σ n_rows, group, v_dim]`.
///
/// Online softmax as in Milakov & Gimelshein 2018 and FlashAttention (Dao et al. 2022); sinks as in gpt-oss,
/// soft cap as in Gemma 2. Tiles that sequences have in common are unpacked once for all of them.
pub fn attend(isa: Isa, queries: &Queries<'_>) -> Vec<f32> {
    let Queries { rows, n_common, k_dim, v_dim, params, .. } = *queries;
    assert!(k_dim % LANES == 0 && v_dim % LANES == 0, "head sizes are multiples of {LANES}");
    let in_one_tile = |rows: &QueryRows<'_>| rows.first / TILE == (rows.first + rows.n - 1) / TILE;
    assert!(rows.iter().all(in_one_tile), "rows of a task lie in one tile");
    assert!(n_common == 0 || params.window.is_none(), "windows begin where each sequence stands");
    isa.run(Attend(queries))
}

struct Attend<'a>(&'a Queries<'a>);

/// Queries that go through a tile together.
const MAX_TILE_QUERIES: usize = 8;

/// The running softmax of a query.
#[derive(Clone, Copy)]
struct Running {
    max: f32,
    sum: f32,
}

/// Softmax weights of a tile's tokens, for the queries that go through it together.
struct SoftmaxWeights {
    /// Each query's weights of the tokens, for each group of columns, the values' scales included:
    /// `[n_groups, 8, 64]`.
    tokens: Vec<[[f32; TILE]; MAX_TILE_QUERIES]>,
    /// Factor for what the queries have accumulated so far.
    rescale: [f32; MAX_TILE_QUERIES],
}

/// Queries on their way through the tiles.
struct TileState<'a> {
    queries: &'a Queries<'a>,
    /// The queries, scaled.
    q: Vec<f32>,
    coded: Option<CodedQueries>,
    /// Position of each row.
    positions: Vec<usize>,
    running: Vec<Running>,
    scores: [[f32; TILE]; MAX_TILE_QUERIES],
    weights: SoftmaxWeights,
    /// A tile's values, `[64, v_dim]`.
    values: Vec<f32>,
    out: Vec<f32>,
}

impl Kernel for Attend<'_> {
    type Output = Vec<f32>;
    #[inline(always)]
    fn run<L: Lanes>(self) -> Vec<f32> {
        let Queries { rows, n_common, group, v_dim, params, .. } = *self.0;
        let mut state = TileState::new(self.0);
        for tile in 0..n_common {
            let tiles = rows[0].tiles;
            if tile + 1 < n_common {
                ask_for::<L>(tiles.tile(tile + 1), self.0.k_dim, v_dim);
            }
            let n_queries = state.running.len();
            state.read::<L>(tile, tiles.tile(tile), TILE, 0, n_queries);
        }
        let mut query = 0;
        for QueryRows { first, n, tiles } in rows {
            let oldest = params.window.map_or(0, |window| (first + 1).saturating_sub(window));
            let last = (first + n - 1) / TILE;
            for tile in n_common.max(oldest / TILE)..=last {
                if tile < last {
                    ask_for::<L>(tiles.tile(tile + 1), self.0.k_dim, v_dim);
                }
                let n_tokens = TILE.min(first + n - tile * TILE);
                state.read::<L>(tile, tiles.tile(tile), n_tokens, query, query + n * group);
            }
            query += n * group;
        }
        let TileState { mut out, running, .. } = state;
        for (out, running) in out.chunks_exact_mut(v_dim).zip(&running) {
            let inverse = L::splat(1.0 / running.sum);
            for piece in out.chunks_exact_mut(LANES) {
                L::load(lanes(piece)).mul(inverse).store(lanes_mut(piece));
            }
        }
        out
    }
}

impl<'a> TileState<'a> {
    fn new(queries: &'a Queries<'a>) -> Self {
        let Queries { rows, group, v_dim, params, .. } = *queries;
        let positions: Vec<usize> = rows.iter().flat_map(|rows| rows.first..rows.first + rows.n).collect();
        let n_queries = positions.len() * group;
        let sink = |i: usize| params.sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[i % group]);
        let start = |i| Running { max: sink(i), sum: if params.sinks.is_some() { 1.0 } else { 0.0 } };
        let tokens = vec![[[0.0; TILE]; MAX_TILE_QUERIES]; v_dim.div_ceil(GROUP)];
        Self {
            queries,
            q: queries.q.iter().map(|q| q * params.scale).collect(),
            coded: None,
            positions,
            running: (0..n_queries).map(start).collect(),
            scores: [[0.0; TILE]; MAX_TILE_QUERIES],
            weights: SoftmaxWeights { tokens, rescale: [1.0; MAX_TILE_QUERIES] },
            values: vec![0.0; TILE * v_dim],
            out: vec![0.0; n_queries * v_dim],
        }
    }

    /// Tokens of tile `tile` that a query sees.
    #[inline(always)]
    fn seen(&self, tile: usize, query: usize) -> (usize, usize) {
        let (position, start) = (self.positions[query / self.queries.group], tile * TILE);
        let from = match self.queries.params.window {
            None => 0,
            Some(window) => (position + 1).saturating_sub(window).saturating_sub(start),
        };
        (from.min(TILE), TILE.min(position + 1 - start))
    }

    /// Queries `query .. end` read a tile's first tokens.
    #[inline(always)]
    fn read<L: Lanes>(
        &mut self,
        tile: usize,
        (k, v): (Keys<'_>, Values<'_>),
        n_tokens: usize,
        mut query: usize,
        end: usize,
    ) {
        let Queries { k_dim, v_dim, params, .. } = *self.queries;
        unpack::<L>(v, n_tokens, v_dim, &mut self.values);
        while query < end {
            let n = MAX_TILE_QUERIES.min(end - query);
            let n_tokens = self.seen(tile, query + n - 1).1;
            let q = &self.q[query * k_dim..(query + n) * k_dim];
            match k {
                Keys::F16 { vectors, stride } => {
                    let keys = HalfKeys { q, head_dim: k_dim, vectors, stride };
                    keys.scores::<L>(n, n_tokens, &mut self.scores);
                }
                Keys::Coded { codes, mean, exact } => {
                    let digits = if codes.bits == 8 { 2 } else { 1 };
                    let coded = match &mut self.coded {
                        Some(coded) => coded,
                        none => none.insert(CodedQueries::new::<L>(&self.q, k_dim, digits)),
                    };
                    let shared = common::<L>(q, k_dim, mean);
                    coded.scores::<L>(query, n, n_tokens, codes, &shared, &mut self.scores);
                    put_exact::<L>(q, k_dim, exact, &mut self.scores);
                }
            }
            for m in 0..n {
                let seen = self.seen(tile, query + m);
                let (scores, running) = (&mut self.scores[m], &mut self.running[query + m]);
                online_softmax::<L>(scores, seen, params.soft_cap, running, v, &mut self.weights, m);
            }
            let out = &mut self.out[query * v_dim..(query + n) * v_dim];
            gather::<L>(&self.weights, n, n_tokens, &self.values, v_dim, out);
            query += n;
        }
    }
}

/// Asks memory for a tile's bytes: a tile is too short a run for the processor to foresee it.
#[inline(always)]
fn ask_for<L: Lanes>((k, v): (Keys<'_>, Values<'_>), k_dim: usize, v_dim: usize) {
    match k {
        Keys::F16 { vectors, stride } => {
            for piece in vectors.chunks(stride).take(TILE / LANES) {
                ask_for_bytes::<L>(bytemuck::cast_slice(&piece[..(k_dim * LANES).min(piece.len())]));
            }
        }
        Keys::Coded { codes, .. } => ask_for_codes::<L>(&codes, k_dim),
    }
    match v {
        Values::Keys(_) => {}
        Values::F16 { rows, stride } => {
            for piece in rows.chunks(stride).take(TILE) {
                ask_for_bytes::<L>(bytemuck::cast_slice(&piece[..v_dim.min(piece.len())]));
            }
        }
        Values::Coded { codes, .. } => ask_for_codes::<L>(&codes, v_dim),
    }
}

#[inline(always)]
fn ask_for_codes<L: Lanes>(codes: &Codes<'_>, head_dim: usize) {
    ask_for_bytes::<L>(codes.codes);
    for g in 0..head_dim.div_ceil(GROUP) {
        ask_for_bytes::<L>(bytemuck::cast_slice(&codes.scales[g * codes.stride..][..TILE]));
    }
}

#[inline(always)]
fn ask_for_bytes<L: Lanes>(bytes: &[u8]) {
    for line in bytes.chunks(64) {
        L::prefetch(line.as_ptr());
    }
}

/// One step of a query's online softmax: scores become weights of the tokens that it sees
/// (`seen.0 .. seen.1`).
#[inline(always)]
fn online_softmax<L: Lanes>(
    scores: &mut [f32; TILE],
    seen: (usize, usize),
    soft_cap: Option<f32>,
    running: &mut Running,
    values: Values<'_>,
    weights: &mut SoftmaxWeights,
    m: usize,
) {
    const N: usize = TILE / LANES;
    if seen.0 >= seen.1 {
        weights.rescale[m] = 1.0;
        weights.tokens.iter_mut().for_each(|tokens| tokens[m].fill(0.0));
        return;
    }
    let whole = seen == (0, TILE);
    let mut largest = L::splat(f32::NEG_INFINITY);
    let mut p: [L; N] = [largest; N];
    for (v, p) in p.iter_mut().enumerate() {
        let mut score = L::load(lanes(&scores[v * LANES..][..LANES]));
        if let Some(cap) = soft_cap {
            // tanh x = 1 - 2 / (e^2x + 1)
            let e = score.mul(L::splat(2.0 / cap)).exp();
            score = L::splat(-2.0).div(e.add(L::splat(1.0))).add(L::splat(1.0)).mul(L::splat(cap));
        }
        *p = if whole { score } else { keep(score, v, seen, f32::NEG_INFINITY) };
        largest = largest.max(*p);
    }
    let largest = largest.largest();
    let max = if running.max > largest { running.max } else { largest };
    // Most tiles do not change the maximum, and e^0 is 1 to the bit.
    let mut rescale = [1.0; LANES];
    if running.max != max {
        L::splat(running.max - max).exp().store(&mut rescale);
    }
    for (v, p) in p.iter_mut().enumerate() {
        let weight = p.sub(L::splat(max)).exp();
        *p = if whole { weight } else { keep(weight, v, seen, 0.0) };
    }
    let sum = p[0].add(p[1]).add(p[2].add(p[3])).sum();
    *running = Running { max, sum: running.sum * rescale[0] + sum };
    weights.rescale[m] = rescale[0];
    for (g, tokens) in weights.tokens.iter_mut().enumerate() {
        for (v, p) in p.iter().enumerate() {
            let scaled = match values {
                Values::F16 { .. } | Values::Keys(Keys::F16 { .. }) => *p,
                Values::Coded { codes, .. } | Values::Keys(Keys::Coded { codes, .. }) => {
                    let at = g * codes.stride + v * LANES;
                    p.mul(L::load_scales(lanes(&codes.scales[at..at + LANES])))
                }
            };
            scaled.store(lanes_mut(&mut tokens[m][v * LANES..][..LANES]));
        }
    }
}

/// Vector `v` of a tile's tokens with those not seen replaced.
#[inline(always)]
fn keep<L: Lanes>(x: L, v: usize, seen: (usize, usize), other: f32) -> L {
    let from = seen.0.saturating_sub(v * LANES).min(LANES);
    let to = seen.1.saturating_sub(v * LANES).min(LANES);
    x.keep(from, to, other)
}
