//! Attention over tiles of a cache: packed codes in, context out, online softmax, no score matrix.
//!
//! Tiles are 64 tokens, aligned to absolute positions. A query walks tiles 0, 1, 2, … up to its own position,
//! whatever queries stand beside it, so its arithmetic is fixed by its position alone. Scores have one token to a lane:
//! coded keys meet the query in 8 bits (16 for 8-bit keys) in exact integer products, f16 keys meet it in f32. Contexts have
//! one column to a lane; a tile's values are unpacked once for all queries of a task, and nothing larger than a tile ever is.

use super::{Isa, Kernel, LANES, Lanes, Words, lanes, lanes_mut};
use crate::quant::GROUP;
use half::f16;

/// Tokens of a tile.
pub(crate) const TILE: usize = 64;

/// Keys of the tokens of one tile, for one KV head: one token to a lane. The same bytes may be read as values.
#[derive(Clone, Copy)]
pub(crate) enum Keys<'a> {
    /// Column d of tokens 16 v to 16 v + 15 is the vector at `v * stride + 16 * d`.
    F16 { vectors: &'a [f16], stride: usize },
    /// See [`Codes`]; for each 16 tokens one vector of words for 8 columns (4 bits: columns 8j to 8j + 3 in the low halves of
    /// the bytes, 8j + 4 to 8j + 7 in the high ones) or 4 columns (8 bits).
    Coded(Codes<'a>),
}

/// Values of the tokens of one tile, for one KV head.
#[derive(Clone, Copy)]
pub(crate) enum Values<'a> {
    /// The first columns of the keys (the latent of MLA).
    Keys(Keys<'a>),
    /// Token t starts at `t * stride`; one column to a lane, as below.
    F16 { rows: &'a [f16], stride: usize },
    /// See [`Codes`]; for each token and 32 columns 16 bytes, columns 0 to 15 in their low halves, 16 to 31 in the high ones
    /// (4 bits), or one byte a column (8 bits).
    Coded(Codes<'a>),
}

/// Codes of a tile, and for each group of columns the tokens' scales and biases: group g from `g * stride` on.
#[derive(Clone, Copy)]
pub(crate) struct Codes<'a> {
    pub(crate) bits: u32,
    pub(crate) codes: &'a [u8],
    pub(crate) scales: &'a [f16],
    pub(crate) biases: &'a [f16],
    pub(crate) stride: usize,
}

/// Where a task finds the tiles of its KV head. All rows of a task see the same bytes in a tile.
pub(crate) trait Tiles: Sync {
    /// Keys and values of tile `tile` (tokens `64 * tile ..`), as rows of the task's block see them.
    fn tile(&self, tile: usize) -> (Keys<'_>, Values<'_>);
}

/// Query rows of one KV head: `q: [n_rows, group, k_dim]`, row r at position `first + r`. All rows lie in one tile.
pub(crate) struct Queries<'a> {
    pub(crate) q: &'a [f32],
    pub(crate) first: usize,
    pub(crate) n_rows: usize,
    pub(crate) group: usize,
    /// Width of queries and keys.
    pub(crate) k_dim: usize,
    /// Width of values.
    pub(crate) v_dim: usize,
    pub(crate) rule: Rule<'a>,
}

/// How scores become weights.
#[derive(Clone, Copy)]
pub(crate) struct Rule<'a> {
    /// Factor of the scores, usually `1 / sqrt(head_dim)`.
    pub(crate) scale: f32,
    /// How many tokens a row sees, itself included; `None`: all before it.
    pub(crate) window: Option<usize>,
    /// Scores become `cap * tanh(score / cap)`.
    pub(crate) soft_cap: Option<f32>,
    /// For each head of the group the score of a token that is not there: it takes weight and gives nothing.
    pub(crate) sinks: Option<&'a [f32]>,
}

/// Causal softmax attention of `queries` over `tiles`, into `[n_rows, group, v_dim]`.
///
/// Online softmax as in Milakov & Gimelshein 2018 and FlashAttention (Dao et al. 2022); sinks as in gpt-oss, soft cap as in
/// Gemma 2.
pub(crate) fn attend(isa: Isa, queries: &Queries<'_>, tiles: &dyn Tiles) -> Vec<f32> {
    let Queries { first, n_rows, k_dim, v_dim, .. } = *queries;
    assert!(k_dim % LANES == 0 && v_dim % LANES == 0, "head sizes are multiples of {LANES}");
    assert_eq!(first / TILE, (first + n_rows - 1) / TILE, "rows of a task lie in one tile");
    isa.run(Attend { queries, tiles })
}

struct Attend<'a> {
    queries: &'a Queries<'a>,
    tiles: &'a dyn Tiles,
}

/// Queries that go through a tile together.
const TOGETHER: usize = 8;

/// The running softmax of a query.
#[derive(Clone, Copy)]
struct Running {
    max: f32,
    sum: f32,
}

/// What a tile adds to the context of some queries.
struct Weights {
    /// For each group of columns, each query's weights of the tokens, the values' scales included: `[n_groups, 8, 64]`.
    tokens: Vec<[[f32; TILE]; TOGETHER]>,
    /// The values' biases, weighed: `[n_groups, 8]`.
    bias: Vec<[f32; TOGETHER]>,
    /// Factor of what the queries have gathered so far.
    rescale: [f32; TOGETHER],
}

impl Kernel for Attend<'_> {
    type Output = Vec<f32>;
    #[inline(always)]
    fn run<L: Lanes>(self) -> Vec<f32> {
        let Queries { first, n_rows, group, k_dim, v_dim, rule, .. } = *self.queries;
        let n_queries = n_rows * group;
        let n_groups = v_dim.div_ceil(GROUP);
        let q: Vec<f32> = self.queries.q.iter().map(|q| q * rule.scale).collect();
        let mut coded: Option<CodedQueries> = None;
        let mut out = vec![0.0; n_queries * v_dim];
        let sink = |i: usize| rule.sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[i % group]);
        let start = |i| Running { max: sink(i), sum: if rule.sinks.is_some() { 1.0 } else { 0.0 } };
        let mut running: Vec<Running> = (0..n_queries).map(start).collect();
        let mut scores = [[0.0; TILE]; TOGETHER];
        let mut weights = Weights {
            tokens: vec![[[0.0; TILE]; TOGETHER]; n_groups],
            bias: vec![[0.0; TOGETHER]; n_groups],
            rescale: [1.0; TOGETHER],
        };
        let mut values = vec![0.0; TILE * v_dim];
        let oldest = rule.window.map_or(0, |window| (first + 1).saturating_sub(window));
        let last = (first + n_rows - 1) / TILE;
        for tile in oldest / TILE..=last {
            let start = tile * TILE;
            let (k, v) = self.tiles.tile(tile);
            if tile < last {
                ask_for::<L>(self.tiles.tile(tile + 1), k_dim, v_dim);
            }
            let n_tokens = TILE.min(first + n_rows - start);
            unpack::<L>(v, n_tokens, v_dim, &mut values);
            // Which tokens of the tile a query sees.
            let seen = |query: usize| {
                let position = first + query / group;
                let from = rule
                    .window
                    .map_or(0, |window| (position + 1).saturating_sub(window).saturating_sub(start));
                (from.min(TILE), TILE.min(position + 1 - start))
            };
            for query in (0..n_queries).step_by(TOGETHER) {
                let n = TOGETHER.min(n_queries - query);
                let n_tokens = seen(query + n - 1).1;
                match k {
                    Keys::F16 { vectors, stride } => {
                        let keys = HalfKeys { q: &q[query * k_dim..], head_dim: k_dim, vectors, stride };
                        keys.scores::<L>(n, n_tokens, &mut scores);
                    }
                    Keys::Coded(k) => {
                        let digits = if k.bits == 8 { 2 } else { 1 };
                        let q = coded.get_or_insert_with(|| CodedQueries::new::<L>(&q, k_dim, digits));
                        q.scores::<L>(query, n, n_tokens, k, &mut scores);
                    }
                }
                for m in 0..n {
                    let (running, seen) = (&mut running[query + m], seen(query + m));
                    soften::<L>(&mut scores[m], seen, rule.soft_cap, running, v, &mut weights, m);
                }
                let out = &mut out[query * v_dim..(query + n) * v_dim];
                gather::<L>(&weights, n, n_tokens, &values, v_dim, out);
            }
        }
        for (out, running) in out.chunks_exact_mut(v_dim).zip(&running) {
            let inverse = L::splat(1.0 / running.sum);
            for piece in out.chunks_exact_mut(LANES) {
                L::load(lanes(piece)).mul(inverse).store(lanes_mut(piece));
            }
        }
        out
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
        Keys::Coded(codes) => ask_for_codes::<L>(&codes, k_dim),
    }
    match v {
        Values::Keys(_) => {}
        Values::F16 { rows, stride } => {
            for piece in rows.chunks(stride).take(TILE) {
                ask_for_bytes::<L>(bytemuck::cast_slice(&piece[..v_dim.min(piece.len())]));
            }
        }
        Values::Coded(codes) => ask_for_codes::<L>(&codes, v_dim),
    }
}

#[inline(always)]
fn ask_for_codes<L: Lanes>(codes: &Codes<'_>, head_dim: usize) {
    ask_for_bytes::<L>(codes.codes);
    for g in 0..head_dim.div_ceil(GROUP) {
        ask_for_bytes::<L>(bytemuck::cast_slice(&codes.scales[g * codes.stride..][..TILE]));
        ask_for_bytes::<L>(bytemuck::cast_slice(&codes.biases[g * codes.stride..][..TILE]));
    }
}

#[inline(always)]
fn ask_for_bytes<L: Lanes>(bytes: &[u8]) {
    for line in bytes.chunks(64) {
        L::prefetch(line.as_ptr());
    }
}

/// Scores over f16 keys: each column in turn, queries in f32.
struct HalfKeys<'a> {
    q: &'a [f32],
    head_dim: usize,
    vectors: &'a [f16],
    stride: usize,
}

impl HalfKeys<'_> {
    #[inline(always)]
    fn scores<L: Lanes>(&self, n: usize, n_tokens: usize, scores: &mut [[f32; TILE]; TOGETHER]) {
        let mut m = 0;
        while m < n {
            m += match n - m {
                8.. => self.some::<L, 8>(m, n_tokens, scores),
                4.. => self.some::<L, 4>(m, n_tokens, scores),
                2.. => self.some::<L, 2>(m, n_tokens, scores),
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
        scores: &mut [[f32; TILE]; TOGETHER],
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
struct CodedQueries {
    head_dim: usize,
    digits: Vec<Digit>,
}

struct Digit {
    /// `[n_queries, head_dim]`.
    codes: Vec<i8>,
    /// `[n_queries, n_groups]`: scale, and scale times the sum of the codes.
    scales: Vec<(f32, f32)>,
}

impl CodedQueries {
    #[inline(always)]
    fn new<L: Lanes>(q: &[f32], head_dim: usize, n_digits: usize) -> Self {
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
    fn scores<L: Lanes>(
        &self,
        query: usize,
        n: usize,
        n_tokens: usize,
        k: Codes<'_>,
        scores: &mut [[f32; TILE]; TOGETHER],
    ) {
        let mut m = 0;
        while m < n {
            m += match n - m {
                8.. => self.some::<L, 8>(query, m, n_tokens, k, scores),
                4.. => self.some::<L, 4>(query, m, n_tokens, k, scores),
                2.. => self.some::<L, 2>(query, m, n_tokens, k, scores),
                _ => self.some::<L, 1>(query, m, n_tokens, k, scores),
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
        scores: &mut [[f32; TILE]; TOGETHER],
    ) -> usize {
        let dim = self.head_dim;
        let n_groups = dim.div_ceil(GROUP);
        let vector_bytes = dim * k.bits as usize * LANES / 8;
        let nibbles = L::Words::splat(0x0f0f_0f0f);
        for v in 0..n_tokens.div_ceil(LANES) {
            let tokens = &k.codes[v * vector_bytes..][..vector_bytes];
            let mut sums = [L::splat(0.0); M];
            for g in 0..n_groups {
                let width = GROUP.min(dim - g * GROUP);
                let words =
                    &tokens[g * GROUP * k.bits as usize * LANES / 8..][..width * k.bits as usize * LANES / 8];
                let at = g * k.stride + v * LANES;
                let scale = L::load_f16(lanes(&k.scales[at..at + LANES]));
                let bias = L::load_f16(lanes(&k.biases[at..at + LANES]));
                for digit in &self.digits {
                    let mut rows: [&[i8]; M] = [&[]; M];
                    for i in 0..M {
                        rows[i] = &digit.codes[(query + m + i) * dim + g * GROUP..][..width];
                    }
                    let mut dots = [L::Words::splat(0); M];
                    for (j, vector) in words.chunks_exact(64).enumerate() {
                        let vector = L::Words::load(vector.try_into().expect("64 bytes"));
                        if k.bits == 4 {
                            let (low, high) = (vector.and(nibbles), vector.shr(4).and(nibbles));
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
                        let (q_scale, q_sum) = digit.scales[(query + m + i) * n_groups + g];
                        let product = L::from_words(dots[i]).mul(L::splat(q_scale));
                        sums[i] = product.fma(scale, bias.fma(L::splat(q_sum), sums[i]));
                    }
                }
            }
            for i in 0..M {
                sums[i].store(lanes_mut(&mut scores[m + i][v * LANES..][..LANES]));
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

/// Takes the 8-bit part of a group of a query's columns off `rest`: codes, then scale and scale times their sum.
#[inline(always)]
fn digit_of<L: Lanes>(rest: &mut [f32], codes: &mut [i8]) -> (f32, f32) {
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
    (scale, scale * sum as f32)
}

/// One step of a query's online softmax: scores become weights of the tokens that it sees (`seen.0 .. seen.1`).
#[inline(always)]
fn soften<L: Lanes>(
    scores: &mut [f32; TILE],
    seen: (usize, usize),
    soft_cap: Option<f32>,
    running: &mut Running,
    values: Values<'_>,
    weights: &mut Weights,
    m: usize,
) {
    const N: usize = TILE / LANES;
    if seen.0 >= seen.1 {
        weights.rescale[m] = 1.0;
        weights.bias.iter_mut().for_each(|bias| bias[m] = 0.0);
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
    let mut rescale = [0.0; LANES];
    L::splat(running.max - max).exp().store(&mut rescale);
    for (v, p) in p.iter_mut().enumerate() {
        let weight = p.sub(L::splat(max)).exp();
        *p = if whole { weight } else { keep(weight, v, seen, 0.0) };
    }
    let sum = p[0].add(p[1]).add(p[2].add(p[3])).sum();
    *running = Running { max, sum: running.sum * rescale[0] + sum };
    weights.rescale[m] = rescale[0];
    for (g, (tokens, bias)) in weights.tokens.iter_mut().zip(&mut weights.bias).enumerate() {
        match values {
            Values::F16 { .. } | Values::Keys(Keys::F16 { .. }) => {
                for (v, p) in p.iter().enumerate() {
                    p.store(lanes_mut(&mut tokens[m][v * LANES..][..LANES]));
                }
                bias[m] = 0.0;
            }
            Values::Coded(codes) | Values::Keys(Keys::Coded(codes)) => {
                let mut biases = L::splat(0.0);
                for (v, p) in p.iter().enumerate() {
                    let at = g * codes.stride + v * LANES;
                    let scale = L::load_f16(lanes(&codes.scales[at..at + LANES]));
                    p.mul(scale).store(lanes_mut(&mut tokens[m][v * LANES..][..LANES]));
                    biases = p.fma(L::load_f16(lanes(&codes.biases[at..at + LANES])), biases);
                }
                bias[m] = biases.sum();
            }
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

/// Rescales what stands in `out: [n, head_dim]` and adds the tile's values, token by token.
#[inline(always)]
fn gather<L: Lanes>(
    weights: &Weights,
    n: usize,
    n_tokens: usize,
    values: &[f32],
    head_dim: usize,
    out: &mut [f32],
) {
    let mut m = 0;
    while m < n {
        let step = match n - m {
            4.. => 4,
            2.. => 2,
            _ => 1,
        };
        let out = &mut out[m * head_dim..(m + step) * head_dim];
        let mut column = 0;
        while column < head_dim {
            let vectors = if head_dim - column >= 4 * LANES { 4 } else { 1 };
            let mut piece = Piece { weights, m, n_tokens, values, head_dim, column, out };
            match (step, vectors) {
                (4, 4) => piece.add::<L, 4, 4>(),
                (4, _) => piece.add::<L, 4, 1>(),
                (2, 4) => piece.add::<L, 2, 4>(),
                (2, _) => piece.add::<L, 2, 1>(),
                (_, 4) => piece.add::<L, 1, 4>(),
                (_, _) => piece.add::<L, 1, 1>(),
            }
            column += vectors * LANES;
        }
        m += step;
    }
}

/// Some columns of some queries, held in registers over a tile.
struct Piece<'a> {
    weights: &'a Weights,
    m: usize,
    n_tokens: usize,
    values: &'a [f32],
    head_dim: usize,
    column: usize,
    out: &'a mut [f32],
}

impl Piece<'_> {
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // i and c index several things at once
    fn add<L: Lanes, const M: usize, const C: usize>(&mut self) {
        let Self { weights, m, n_tokens, values, head_dim, column, .. } = *self;
        let group = column / GROUP;
        let mut tokens = [&[0.0; TILE]; M];
        let mut sums = [[L::splat(0.0); C]; M];
        for i in 0..M {
            tokens[i] = &weights.tokens[group][m + i];
            let (rescale, bias) = (weights.rescale[m + i], weights.bias[group][m + i]);
            for c in 0..C {
                let so_far = L::load(lanes(&self.out[i * head_dim + column + c * LANES..][..LANES]));
                sums[i][c] = so_far.fma(L::splat(rescale), L::splat(bias));
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

/// The first `n` tokens of a tile's values in f32, scales and biases left out, `[token, v_dim]`.
#[inline(always)]
fn unpack<L: Lanes>(values: Values<'_>, n: usize, v_dim: usize, out: &mut [f32]) {
    if let Values::Keys(keys) = values {
        return transpose::<L>(keys, n, v_dim, out);
    }
    for (t, row) in out.chunks_exact_mut(v_dim).take(n).enumerate() {
        match values {
            Values::F16 { rows, stride } => {
                let from = rows[t * stride..][..v_dim].chunks_exact(LANES);
                for (piece, half) in row.chunks_exact_mut(LANES).zip(from) {
                    L::load_f16(lanes(half)).store(lanes_mut(piece));
                }
            }
            Values::Coded(Codes { bits: 4, codes, .. }) => {
                let bytes = v_dim.div_ceil(2 * LANES) * LANES;
                let from = codes[t * bytes..][..bytes].chunks_exact(LANES);
                for (piece, bytes) in row.chunks_mut(2 * LANES).zip(from) {
                    let (low, high) = L::load_u4(lanes(bytes));
                    let (first, last) = piece.split_at_mut(LANES);
                    low.store(lanes_mut(first));
                    if !last.is_empty() {
                        high.store(lanes_mut(last));
                    }
                }
            }
            Values::Coded(Codes { codes, .. }) => {
                let from = codes[t * v_dim..][..v_dim].chunks_exact(LANES);
                for (piece, bytes) in row.chunks_exact_mut(LANES).zip(from) {
                    L::load_u8(lanes(bytes)).store(lanes_mut(piece));
                }
            }
            Values::Keys(_) => {}
        }
    }
}

/// The first `v_dim` columns of the first `n` tokens' keys, scales and biases left out, `[token, v_dim]`.
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
            Keys::Coded(k) => {
                // 16 columns of 16 tokens at a time: 2 vectors of words (4 bits) or 4 (8 bits), a token to a word.
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
                        L::load_u8(row).store(lanes_mut(&mut rows[t * v_dim + c * LANES..][..LANES]));
                    }
                }
            }
        }
    }
}
