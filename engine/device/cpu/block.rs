//! Sealed blocks and f16 rows as the kernels read and write them.
//!
//! Keys are kept 16 tokens to a vector ([`Keys`]), values token by token ([`Values`]); sealed, as
//! [`format`](crate::kv::format) has them.

use crate::kv::format::{LayerFormat, SideFormat};
use crate::kv::layout::{BLOCK, KvLayout, LayerLayout, TensorLayout};
use greenroom_kernels::attention::{Codes, Keys, TILE, Values};
use greenroom_kernels::quant::{EXACT, Scale};
use greenroom_kernels::shaping::Shaping;
use greenroom_kernels::threads::{self, for_rows};
use greenroom_kernels::{Isa, LANES, halves, seal};
use half::f16;
use std::ops::Range;

/// Settings for sealing a layer's rows.
#[derive(Clone, Copy)]
pub(crate) struct Sealing<'a> {
    pub(crate) isa: Isa,
    /// The block is the session's first one.
    pub(crate) is_first: bool,
    /// Constants that scale the keys and weight their errors; `None` if the model has none.
    pub(crate) shaping: Option<&'a Shaping>,
}

/// Keys or values of one head in codes.
struct CodedHead {
    codes: Vec<u32>,
    scales: Vec<Scale>,
    means: Vec<f16>,
    exact: Vec<f16>,
}

/// Packs a head's rows `[256, dim]`; `words` orders the codes.
fn seal_head(
    Sealing { isa, is_first, shaping }: Sealing<'_>,
    (layout, bits): (TensorLayout, u32),
    head: usize,
    mut rows: Vec<f32>,
    words: fn(&[u8], usize, u32) -> Vec<u32>,
) -> CodedHead {
    let n_groups = layout.n_groups();
    let n_exact = if is_first && layout.exact { EXACT } else { 0 };
    let exact = rows[..n_exact * layout.dim].iter().map(|x| f16::from_f32(*x)).collect();
    let means = if layout.centered { seal::center(isa, &mut rows, layout.dim, n_exact) } else { vec![] };
    let mut rows = match shaping.filter(|_| layout.shaped()) {
        Some(shaping) => seal::quantize_shaped(isa, &rows, layout.dim, shaping.feedback(head)),
        None => seal::quantize(isa, &rows, layout.dim, bits),
    };
    rows.scales[..n_exact * n_groups].fill(Scale::ONE);
    let by_group = |i: usize| rows.scales[i % BLOCK * n_groups + i / BLOCK];
    let scales = (0..rows.scales.len()).map(by_group).collect();
    CodedHead { codes: words(&rows.codes, layout.dim, bits), scales, means, exact }
}

impl CodedHead {
    /// Puts head `h` of a side to its place in a block.
    fn put(&self, side: &SideFormat, h: usize, block: &mut [u8]) {
        // Exact rows have no place in any block but the first.
        let mut put = |place: &Range<usize>, bytes: &[u8]| match bytes {
            [] => {}
            _ => block[place.start + h * bytes.len()..][..bytes.len()].copy_from_slice(bytes),
        };
        put(&side.codes, bytemuck::cast_slice(&self.codes));
        put(&side.scales, bytemuck::cast_slice(&self.scales));
        put(&side.means, bytemuck::cast_slice(&self.means));
        put(&side.exact, bytemuck::cast_slice(&self.exact));
    }
}

/// Tile `tile` (0 to 3) of keys and values of a head in a block.
pub(crate) fn tile<'a>(
    block: &'a [u8],
    format: &LayerFormat,
    head: usize,
    tile: usize,
) -> (Keys<'a>, Values<'a>) {
    let keys = keys(block, &format.k, head, tile);
    (keys, format.v.as_ref().map_or(Values::Keys(keys), |v| values(block, v, head, tile)))
}

fn keys<'a>(block: &'a [u8], side: &SideFormat, head: usize, tile: usize) -> Keys<'a> {
    match side.layout.bits() {
        None => half_keys(bytemuck::cast_slice(&block[side.codes.clone()]), side.layout, head, tile),
        Some(bits) => Keys::Coded {
            codes: codes(block, side, bits, head, tile),
            mean: of_head(block, &side.means, side.layout.n_heads, head),
            exact: exact(block, side, head, tile),
        },
    }
}

fn values<'a>(block: &'a [u8], side: &SideFormat, head: usize, tile: usize) -> Values<'a> {
    match side.layout.bits() {
        None => half_values(bytemuck::cast_slice(&block[side.codes.clone()]), side.layout, head, tile),
        Some(bits) => Values::Coded {
            codes: codes(block, side, bits, head, tile),
            exact: exact(block, side, head, tile),
        },
    }
}

fn codes<'a>(block: &'a [u8], side: &SideFormat, bits: u32, head: usize, tile: usize) -> Codes<'a> {
    let token = 4 * side.words(bits);
    let scales = &block[side.scales.clone()][head * side.layout.n_groups() * BLOCK + tile * TILE..];
    Codes {
        bits,
        codes: &block[side.codes.start + (head * BLOCK + tile * TILE) * token..][..TILE * token],
        scales: bytemuck::cast_slice(scales),
        stride: BLOCK,
    }
}

/// The exact rows of a tile: in the first one of a session's first block.
fn exact<'a>(block: &'a [u8], side: &SideFormat, head: usize, tile: usize) -> &'a [f16] {
    if tile > 0 || block.len() < side.exact.end {
        return &[];
    }
    of_head(block, &side.exact, side.layout.n_heads, head)
}

/// A head's share of what all heads have equally much of.
fn of_head<'a>(block: &'a [u8], place: &Range<usize>, n_heads: usize, head: usize) -> &'a [f16] {
    let n = place.len() / n_heads;
    bytemuck::cast_slice(&block[place.start + head * n..][..n])
}

/// Words of a head's keys `[256, dim]`, a byte each, in the order of [`Keys::Coded`].
fn key_words(codes: &[u8], dim: usize, bits: u32) -> Vec<u32> {
    let four = |token: usize, column: usize| {
        let at = token * dim + column;
        u32::from_le_bytes([codes[at], codes[at + 1], codes[at + 2], codes[at + 3]])
    };
    let width = 32 / bits as usize;
    let mut out = Vec::with_capacity(codes.len() / width);
    for first in (0..BLOCK).step_by(LANES) {
        for column in (0..dim).step_by(width) {
            out.extend((first..first + LANES).map(|token| match bits {
                4 => four(token, column) | four(token, column + 4) << 4,
                _ => four(token, column),
            }));
        }
    }
    out
}

/// Words of a head's values `[256, dim]`, a byte each, in the order of [`Values::Coded`].
fn value_words(codes: &[u8], dim: usize, bits: u32) -> Vec<u32> {
    let mut packed = Vec::new();
    if bits == 4 {
        packed.reserve_exact(codes.len().div_ceil(2));
        for piece in codes.chunks_exact(dim).flat_map(|row| row.chunks(2 * LANES)) {
            let (low, high) = piece.split_at(LANES);
            let high = high.iter().chain(std::iter::repeat(&0));
            packed.extend(low.iter().zip(high).map(|(low, high)| low | high << 4));
        }
    }
    let bytes = if bits == 4 { &packed } else { codes };
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn half_keys(rows: &[f16], layout: TensorLayout, head: usize, tile: usize) -> Keys<'_> {
    let stride = layout.row() * LANES;
    let at = tile * (TILE / LANES) * stride + head * layout.dim * LANES;
    Keys::F16 { vectors: &rows[at.min(rows.len())..], stride }
}

fn half_values(rows: &[f16], layout: TensorLayout, head: usize, tile: usize) -> Values<'_> {
    let at = tile * TILE * layout.row() + head * layout.dim;
    Values::F16 { rows: &rows[at.min(rows.len())..], stride: layout.row() }
}

/// The f16 rows of (part of) one block, all layers.
#[derive(Debug)]
pub(crate) struct F16Rows {
    layers: Vec<LayerRows>,
}

/// The f16 rows of a layer.
#[derive(Debug, Default)]
struct LayerRows {
    /// Tokens held.
    n: usize,
    /// `[n.div_ceil(16), n_heads, dim, 16]`: lanes past the last token are zeros or were another token's.
    keys: Vec<f16>,
    /// `[n, n_heads, dim]`; empty where values are a view of the keys.
    values: Vec<f16>,
}

impl LayerRows {
    /// Bytes allocated.
    fn bytes(&self) -> u64 {
        2 * (self.keys.capacity() + self.values.capacity()) as u64
    }

    /// Adds tokens whose bytes begin with this layer's keys, then its values.
    fn push_bytes<'a>(&mut self, tokens: impl ExactSizeIterator<Item = &'a [u8]>, layout: LayerLayout) {
        let k_row = layout.k.row();
        let first = self.n;
        self.n += tokens.len();
        self.keys.resize(self.n.div_ceil(LANES) * k_row * LANES, f16::ZERO);
        for (token, bytes) in (first..).zip(tokens) {
            let (k, v) = bytes[..layout.row_bytes()].split_at(2 * k_row);
            let vectors = self.keys[token / LANES * k_row * LANES..].chunks_exact_mut(LANES);
            let halves = k.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]));
            vectors.zip(halves).for_each(|(vector, half)| vector[token % LANES] = half);
            self.values.extend(v.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]])));
        }
    }
}

/// Floats that a task rounds, at least.
const FLOATS_PER_TASK: usize = 1 << 13;

/// Tokens that rows grow by: what is allocated stays near what is held.
const ROW_GROWTH: usize = 32;

fn grow(rows: &mut Vec<f16>, n: usize) {
    rows.reserve_exact(n.saturating_sub(rows.len()));
}

impl F16Rows {
    /// No rows yet.
    pub(crate) fn new(layout: &KvLayout) -> Self {
        Self { layers: layout.layers.iter().map(|_| LayerRows::default()).collect() }
    }

    /// Adds keys and values of whole tokens to a layer; `v` is empty where values are a view of the keys.
    /// Returns the bytes that are allocated for that.
    pub(crate) fn push(&mut self, isa: Isa, layer: usize, layout: LayerLayout, k: &[f32], v: &[f32]) -> u64 {
        let before = self.layers[layer].bytes();
        let LayerRows { n, keys, values } = &mut self.layers[layer];
        let (row, v_row) = (layout.k.row(), layout.stored_v().map_or(0, TensorLayout::row));
        let (first, all) = (*n, *n + k.len() / row);
        *n = all;
        grow(keys, all.next_multiple_of(ROW_GROWTH) * row);
        grow(values, all.next_multiple_of(ROW_GROWTH) * v_row);
        keys.resize(all.div_ceil(LANES) * row * LANES, f16::ZERO);
        values.resize(all * v_row, f16::ZERO);
        // Sixteen tokens share vectors of keys.
        let groups = first / LANES..all.div_ceil(LANES);
        let vectors = &mut keys[groups.start * row * LANES..];
        for_rows([vectors], groups.len(), FLOATS_PER_TASK / LANES / row, |range, [vectors]| {
            for (group, vectors) in (groups.start + range.start..).zip(vectors.chunks_exact_mut(row * LANES))
            {
                let tokens = first.max(group * LANES)..all.min((group + 1) * LANES);
                let k = &k[(tokens.start - first) * row..(tokens.end - first) * row];
                halves::interleave(isa, k, row, tokens.start % LANES, vectors);
            }
        });
        if v_row > 0 {
            for_rows(
                [&mut values[first * v_row..]],
                all - first,
                FLOATS_PER_TASK / v_row,
                |tokens, [values]| {
                    halves::round(isa, &v[tokens.start * v_row..tokens.end * v_row], values);
                },
            );
        }
        self.layers[layer].bytes() - before
    }

    /// Tokens held in a layer (in a pass, lower layers are ahead of higher ones).
    pub(crate) fn len(&self, layer: usize) -> usize {
        self.layers[layer].n
    }

    /// Forgets all tokens from `n` on.
    pub(crate) fn truncate(&mut self, n: usize, layout: &KvLayout) {
        for (rows, layer) in self.layers.iter_mut().zip(&layout.layers) {
            rows.n = rows.n.min(n);
            rows.keys.truncate(n.div_ceil(LANES) * layer.k.row() * LANES);
            rows.values.truncate(n * layer.stored_v().map_or(0, TensorLayout::row));
        }
    }

    /// Packs a layer of a full block to its place there.
    pub(crate) fn seal(&self, layer: usize, format: &LayerFormat, how: Sealing<'_>, block: &mut [u8]) {
        let LayerRows { n, keys, values } = &self.layers[layer];
        assert_eq!(*n, BLOCK, "a block is sealed when it is full");
        let mut heads = Vec::new();
        for (side, is_keys) in [(Some(&format.k), true), (format.v.as_ref(), false)] {
            let Some(side) = side else { continue };
            match side.layout.bits() {
                Some(bits) => heads.extend((0..side.layout.n_heads).map(|head| (side, bits, is_keys, head))),
                None => {
                    let halves = if is_keys { keys } else { values };
                    block[side.codes.clone()].copy_from_slice(bytemuck::cast_slice(halves));
                }
            }
        }
        // Heads are alone: threads change nothing.
        let sealed = threads::map(heads.len(), |task| {
            let (SideFormat { layout, .. }, bits, is_keys, head) = heads[task];
            let (row, columns) = (layout.row(), head * layout.dim..(head + 1) * layout.dim);
            if is_keys {
                let rows = halves::rows_of_vectors(how.isa, keys, row, columns);
                seal_head(how, (*layout, bits), head, rows, key_words)
            } else {
                let rows = halves::columns(how.isa, values, row, columns);
                seal_head(how, (*layout, bits), head, rows, value_words)
            }
        });
        for ((side, _, _, head), coded) in heads.iter().zip(sealed) {
            coded.put(side, *head, block);
        }
    }

    /// Tile `tile` (0 to 3) of keys and values of a head.
    pub(crate) fn tile(
        &self,
        layer: usize,
        layout: LayerLayout,
        head: usize,
        tile: usize,
    ) -> (Keys<'_>, Values<'_>) {
        let LayerRows { keys, values, .. } = &self.layers[layer];
        let keys = half_keys(keys, layout.k, head, tile);
        let values = layout.stored_v().map_or(Values::Keys(keys), |v| half_values(values, v, head, tile));
        (keys, values)
    }

    /// Tokens `range` as bytes, see [`format`](crate::kv::format).
    pub(crate) fn to_bytes(&self, range: std::ops::Range<usize>, layout: &KvLayout) -> Vec<u8> {
        let mut out = vec![f16::ZERO; range.len() * layout.row_bytes() / 2];
        let tokens = out.chunks_exact_mut(layout.row_bytes() / 2);
        for (token, out) in range.zip(tokens) {
            let mut rest = out;
            for (rows, layer) in self.layers.iter().zip(&layout.layers) {
                let (k, after) = rest.split_at_mut(layer.k.row());
                let (v, after) = after.split_at_mut(layer.stored_v().map_or(0, TensorLayout::row));
                let vectors = rows.keys[token / LANES * k.len() * LANES..].chunks_exact(LANES);
                k.iter_mut().zip(vectors).for_each(|(key, vector)| *key = vector[token % LANES]);
                v.copy_from_slice(&rows.values[token * v.len()..][..v.len()]);
                rest = after;
            }
        }
        bytemuck::cast_slice(&out).to_vec()
    }

    /// Adds tokens from [`F16Rows::to_bytes`]; `bytes` is a whole number of tokens. Layers are alone: threads
    /// share them.
    pub(crate) fn push_bytes(&mut self, bytes: &[u8], layout: &KvLayout) {
        let widths = layout.layers.iter().map(LayerLayout::row_bytes);
        let starts: Vec<usize> = widths
            .scan(0, |next, width| {
                let start = *next;
                *next += width;
                Some(start)
            })
            .collect();
        threads::for_items(&mut self.layers, |l, rows| {
            let tokens = bytes.chunks_exact(layout.row_bytes()).map(|token| &token[starts[l]..]);
            rows.push_bytes(tokens, layout.layers[l]);
        });
    }

    /// Bytes allocated.
    pub(crate) fn bytes(&self) -> u64 {
        self.layers.iter().map(LayerRows::bytes).sum()
    }
}
