//! The bytes of the cache: sealed blocks, f16 rows, and the arena that holds the sealed ones once each.
//!
//! Keys are kept as the kernels read them, 16 tokens to a vector ([`Keys`]), values token by token ([`Values`]).

use super::layout::{BLOCK, KvLayout, LayerLayout, Part, TensorLayout};
use super::pool::{BlockId, Pool};
use super::table::BlockHash;
use crate::kernels::attention::{Codes, Keys, TILE, Values};
use crate::kernels::shaping::Shaping;
use crate::kernels::{Isa, LANES, seal, tasks};
use crate::quant::{EXACT, Scale};
use half::f16;
use std::collections::HashMap;
use std::sync::Arc;

/// Keys or values of one layer in a sealed block.
#[derive(Debug, PartialEq)]
pub(crate) enum Packed {
    /// As the rows were: keys `[16, n_heads, dim, 16]`, values `[256, n_heads, dim]`.
    F16(Vec<f16>),
    /// See [`Coded`].
    Coded(Coded),
}

/// Keys or values of one layer in codes. A head's token is `words` long.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Coded {
    /// Bits of a code.
    pub(crate) bits: u32,
    /// Keys `[n_heads, 16, words, 16]`, values `[n_heads, 256, words]`.
    pub(crate) codes: Vec<u32>,
    /// `[n_heads, n_groups, 256]`.
    pub(crate) scales: Vec<Scale>,
    /// What was taken off all rows, `[n_heads, dim]`; empty where nothing was ([`TensorLayout::centered`]).
    pub(crate) means: Vec<f16>,
    /// The first rows of a session as they were, `[n_heads, EXACT, dim]`, whose scales are 1; empty in all blocks but the first, and
    /// where there are none ([`TensorLayout::exact`]).
    pub(crate) exact: Vec<f16>,
}

/// One layer of a sealed block; no values where they are a view of the keys.
#[derive(Debug, PartialEq)]
pub(crate) struct LayerBlock {
    pub(crate) k: Packed,
    pub(crate) v: Option<Packed>,
}

impl LayerBlock {
    /// Tile `tile` (0 to 3) of keys and values of a head.
    pub(crate) fn tile(&self, layout: LayerLayout, head: usize, tile: usize) -> (Keys<'_>, Values<'_>) {
        let keys = self.k.keys(layout.k, head, tile);
        let values = self.v.as_ref().map_or(Values::Keys(keys), |v| v.values(layout.v, head, tile));
        (keys, values)
    }
}

/// How a layer's rows are sealed.
#[derive(Clone, Copy)]
pub(crate) struct Sealing<'a> {
    pub(crate) isa: Isa,
    /// The block is the session's first one.
    pub(crate) first: bool,
    /// What keys were scaled by, and their errors are weighed by, where the model has it.
    pub(crate) shaping: Option<&'a Shaping>,
}

/// 256 tokens, the layers of one part in order: immutable.
#[derive(Debug, PartialEq)]
pub(crate) struct SealedBlock {
    pub(crate) layers: Vec<LayerBlock>,
}

impl SealedBlock {
    /// Bytes of all numbers.
    pub(crate) fn bytes(&self) -> u64 {
        let sides = self.layers.iter().flat_map(|layer| std::iter::once(&layer.k).chain(&layer.v));
        sides.map(|packed| packed.bytes() as u64).sum()
    }
}

impl Packed {
    /// Packs each head of a block; `head(h)` gives its rows `[256, dim]`, `words` its codes' place. Heads are
    /// alone: threads change nothing.
    fn seal(
        Sealing { isa, first, shaping }: Sealing<'_>,
        layout: TensorLayout,
        bits: u32,
        head: impl Fn(usize) -> Vec<f32> + Sync,
        words: impl Fn(&[u8]) -> Vec<u32> + Sync,
    ) -> Self {
        let n_groups = layout.n_groups();
        let seal = |h: usize| -> Coded {
            let mut rows = head(h);
            let mut coded = Coded { bits, ..Coded::default() };
            let n_exact = if first && layout.exact { EXACT } else { 0 };
            coded.exact = rows[..n_exact * layout.dim].iter().map(|x| f16::from_f32(*x)).collect();
            if layout.centered {
                coded.means = seal::center(isa, &mut rows, layout.dim, n_exact);
            }
            let mut rows = match shaping.filter(|_| layout.shaped()) {
                Some(shaping) => seal::quantize_shaped(isa, &rows, layout.dim, shaping.feedback(h)),
                None => seal::quantize(isa, &rows, layout.dim, bits),
            };
            rows.scales[..n_exact * n_groups].fill(Scale::ONE);
            coded.codes = words(&rows.codes);
            let by_group = |i: usize| rows.scales[i % BLOCK * n_groups + i / BLOCK];
            coded.scales = (0..rows.scales.len()).map(by_group).collect();
            coded
        };
        let mut all = Coded { bits, ..Coded::default() };
        for head in tasks::map(layout.n_heads, seal) {
            all.codes.extend(head.codes);
            all.scales.extend(head.scales);
            all.means.extend(head.means);
            all.exact.extend(head.exact);
        }
        Self::Coded(all)
    }

    /// Bytes of all numbers.
    fn bytes(&self) -> usize {
        match self {
            Self::F16(rows) => 2 * rows.len(),
            Self::Coded(Coded { codes, scales, means, exact, .. }) => {
                4 * codes.len() + scales.len() + 2 * (means.len() + exact.len())
            }
        }
    }

    /// Tile `tile` (0 to 3) of a head's keys.
    pub(crate) fn keys(&self, layout: TensorLayout, head: usize, tile: usize) -> Keys<'_> {
        match self {
            Self::F16(rows) => half_keys(rows, layout, head, tile),
            Self::Coded(coded) => Keys::Coded {
                codes: coded.tile(layout, layout.key_words(coded.bits), head, tile),
                mean: of_head(&coded.means, layout.n_heads, head),
                exact: coded.exact(layout.n_heads, head, tile),
            },
        }
    }

    /// Tile `tile` (0 to 3) of a head's values.
    pub(crate) fn values(&self, layout: TensorLayout, head: usize, tile: usize) -> Values<'_> {
        match self {
            Self::F16(rows) => half_values(rows, layout, head, tile),
            Self::Coded(coded) => Values::Coded {
                codes: coded.tile(layout, layout.value_words(coded.bits), head, tile),
                exact: coded.exact(layout.n_heads, head, tile),
            },
        }
    }
}

impl Coded {
    fn tile(&self, layout: TensorLayout, words: usize, head: usize, tile: usize) -> Codes<'_> {
        let first = head * layout.n_groups() * BLOCK + tile * TILE;
        Codes {
            bits: self.bits,
            codes: bytemuck::cast_slice(&self.codes[(head * BLOCK + tile * TILE) * words..][..TILE * words]),
            scales: &self.scales[first..],
            stride: BLOCK,
        }
    }

    /// The exact rows of a tile.
    fn exact(&self, n_heads: usize, head: usize, tile: usize) -> &[f16] {
        if tile == 0 { of_head(&self.exact, n_heads, head) } else { &[] }
    }
}

/// A head's share of what all heads have equally much of.
fn of_head(all: &[f16], n_heads: usize, head: usize) -> &[f16] {
    let n = all.len() / n_heads;
    &all[head * n..][..n]
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
    let high = |piece: &[u8], i: usize| piece.get(LANES + i).map_or(0, |code| code << 4);
    let pack = |piece: &[u8]| -> [u8; LANES] { std::array::from_fn(|i| piece[i] | high(piece, i)) };
    let bytes: Vec<u8> = match bits {
        4 => codes.chunks_exact(dim).flat_map(|row| row.chunks(2 * LANES).flat_map(pack)).collect(),
        _ => codes.to_vec(),
    };
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
pub(crate) struct Rows {
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

/// Tokens that rows grow by: what is allocated stays near what is held.
const STEP: usize = 32;

fn grow(rows: &mut Vec<f16>, n: usize) {
    rows.reserve_exact(n.saturating_sub(rows.len()));
}

/// Where element `i` of a token's keys stands.
fn key_place(token: usize, i: usize, row: usize) -> usize {
    (token / LANES * row + i) * LANES + token % LANES
}

/// To half precision; what is too large becomes the largest number, so that no infinity spoils a neighbour's sum.
fn half_of(x: f32) -> f16 {
    f16::from_f32(x.clamp(f16::MIN.to_f32(), f16::MAX.to_f32()))
}

impl Rows {
    /// No rows yet.
    pub(crate) fn new(layout: &KvLayout) -> Self {
        Self { layers: layout.layers.iter().map(|_| LayerRows::default()).collect() }
    }

    /// Adds keys and values of whole tokens to a layer; `v` is empty where values are a view of the keys.
    pub(crate) fn push(&mut self, layer: usize, layout: LayerLayout, k: &[f32], v: &[f32]) {
        let LayerRows { n, keys, values } = &mut self.layers[layer];
        let row = layout.k.row();
        let all = *n + k.len() / row;
        grow(keys, all.next_multiple_of(STEP) * row);
        grow(values, all.next_multiple_of(STEP) * layout.stored_v().map_or(0, TensorLayout::row));
        for (token, k) in (*n..).zip(k.chunks_exact(row)) {
            if token.is_multiple_of(LANES) {
                keys.resize((token / LANES + 1) * row * LANES, f16::ZERO);
            }
            let vectors = keys[token / LANES * row * LANES..].chunks_exact_mut(LANES);
            vectors.zip(k).for_each(|(vector, x)| vector[token % LANES] = half_of(*x));
        }
        *n += k.len() / row;
        values.extend(v.iter().map(|x| half_of(*x)));
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

    /// Packs a layer of a full block.
    pub(crate) fn seal(&self, layer: usize, layout: LayerLayout, how: Sealing<'_>) -> LayerBlock {
        let LayerRows { n, keys, values } = &self.layers[layer];
        assert_eq!(*n, BLOCK, "a block is sealed when it is full");
        let (k, v) = (layout.k, layout.v);
        let key_head = |head: usize| -> Vec<f32> {
            let place = |i: usize| key_place(i / k.dim, head * k.dim + i % k.dim, k.row());
            (0..BLOCK * k.dim).map(|i| keys[place(i)].to_f32()).collect()
        };
        let value_head = |head: usize| -> Vec<f32> {
            let row =
                |row: &'_ [f16]| row[head * v.dim..][..v.dim].iter().map(|x| x.to_f32()).collect::<Vec<_>>();
            values.chunks_exact(v.row()).flat_map(row).collect()
        };
        LayerBlock {
            k: match k.bits() {
                None => Packed::F16(keys.clone()),
                Some(bits) => Packed::seal(how, k, bits, key_head, |codes| key_words(codes, k.dim, bits)),
            },
            v: layout.stored_v().map(|v| match v.bits() {
                None => Packed::F16(values.clone()),
                Some(bits) => Packed::seal(how, v, bits, value_head, |codes| value_words(codes, v.dim, bits)),
            }),
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

    /// Tokens `range` as bytes for the tail log: token by token, layer by layer, keys then values.
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

    /// Adds tokens from [`Rows::to_bytes`]; `bytes` is a whole number of tokens. Layers are alone: threads share them.
    pub(crate) fn push_bytes(&mut self, bytes: &[u8], layout: &KvLayout) {
        let widths = layout.layers.iter().map(LayerLayout::row_bytes);
        let starts: Vec<usize> = widths
            .scan(0, |next, width| {
                let start = *next;
                *next += width;
                Some(start)
            })
            .collect();
        tasks::for_items(&mut self.layers, |l, rows| {
            let tokens = bytes.chunks_exact(layout.row_bytes()).map(|token| &token[starts[l]..]);
            rows.push_bytes(tokens, layout.layers[l]);
        });
    }

    /// Bytes allocated.
    pub(crate) fn bytes(&self) -> u64 {
        self.layers.iter().map(|rows| 2 * (rows.keys.capacity() + rows.values.capacity()) as u64).sum()
    }
}

/// All parts of sealed blocks in memory, each content once.
pub(crate) struct Arena {
    pool: Pool,
    /// Bytes of each part of a block; the first of a session may have more.
    part_bytes: [u64; 2],
    blocks: HashMap<BlockId, (Key, Arc<SealedBlock>)>,
    by_key: HashMap<Key, BlockId>,
}

/// What a part of a block is known by.
type Key = (BlockHash, Part);

impl Arena {
    /// An empty arena for blocks of one layout; `budget` in bytes.
    pub(crate) fn new(layout: &KvLayout, budget: u64) -> Self {
        let part_bytes = Part::ALL.map(|part| layout.block_bytes(part));
        Self { pool: Pool::new(budget), part_bytes, blocks: HashMap::new(), by_key: HashMap::new() }
    }

    /// A reference to the part of the block with this content, if it is here.
    pub(crate) fn find(&mut self, hash: BlockHash, part: Part) -> Option<BlockId> {
        let id = *self.by_key.get(&(hash, part))?;
        self.pool.retain(id);
        Some(id)
    }

    /// Whether a part of the block with this content is here.
    pub(crate) fn holds(&self, hash: BlockHash, part: Part) -> bool {
        self.by_key.contains_key(&(hash, part))
    }

    /// Takes a part of a block in; equal content that is already here is shared.
    pub(crate) fn insert(&mut self, hash: BlockHash, part: Part, block: SealedBlock) -> BlockId {
        if let Some(id) = self.find(hash, part) {
            return id;
        }
        let id = self.pool.allocate(block.bytes());
        self.blocks.insert(id, ((hash, part), Arc::new(block)));
        self.by_key.insert((hash, part), id);
        id
    }

    /// The bytes of a block that the caller holds a reference to.
    pub(crate) fn get(&self, id: BlockId) -> &Arc<SealedBlock> {
        &self.blocks[&id].1
    }

    /// Gives a reference back.
    pub(crate) fn release(&mut self, id: BlockId) {
        if self.pool.release(id) {
            let (key, _) = self.blocks.remove(&id).expect("a live block has bytes");
            self.by_key.remove(&key);
        }
    }

    /// One more reference to a block.
    pub(crate) fn retain(&mut self, id: BlockId) {
        self.pool.retain(id);
    }

    /// Bytes by which blocks and `others` exceed the budget.
    pub(crate) fn excess(&self, others: u64) -> u64 {
        self.pool.excess(others)
    }

    /// Bytes that may be used.
    pub(crate) fn budget(&self) -> u64 {
        self.pool.budget()
    }

    /// Bytes of a part of a block (but a session's first).
    pub(crate) fn part_bytes(&self, part: Part) -> u64 {
        self.part_bytes[part as usize]
    }

    /// Bytes of all blocks.
    pub(crate) fn bytes(&self) -> u64 {
        self.pool.bytes()
    }

    /// Flips one bit of a stored code: the inert control of the exactness tests.
    #[cfg(test)]
    pub(crate) fn corrupt(&mut self, id: BlockId) {
        let (_, block) = self.blocks.get_mut(&id).expect("a live block");
        let block = Arc::get_mut(block).expect("not in use");
        if let Packed::Coded(coded) = &mut block.layers[0].k {
            coded.codes[EXACT + 1] ^= 8; // of a token that is not exact as well
        }
    }
}
