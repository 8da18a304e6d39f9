//! The bytes of the cache: sealed blocks, f16 rows, and the arena that holds the sealed ones once each.

use super::layout::{BLOCK, KvLayout, LayerLayout, TensorLayout};
use super::pool::{BlockId, Pool};
use super::table::BlockHash;
use crate::kernels::attention::{TILE, Tile};
use crate::quant::quantize_row;
use half::f16;
use rayon::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;

/// Keys or values of one layer in a sealed block, head by head.
#[derive(Debug, PartialEq)]
pub(crate) enum Packed {
    /// `[n_heads, 256, dim]`, as the rows were.
    F16(Vec<f16>),
    /// `codes: [n_heads, 256, words]`, `scales` and `biases`: `[n_heads, 256, n_groups]`.
    Coded { bits: u32, codes: Vec<u32>, scales: Vec<f16>, biases: Vec<f16> },
}

/// One layer of a sealed block.
#[derive(Debug, PartialEq)]
pub(crate) struct LayerBlock {
    pub(crate) k: Packed,
    pub(crate) v: Packed,
}

/// 256 tokens, all layers: immutable.
#[derive(Debug, PartialEq)]
pub(crate) struct SealedBlock {
    pub(crate) layers: Vec<LayerBlock>,
}

impl Packed {
    /// Packs 256 rows `[256, n_heads * dim]`. A head's row is quantized alone: threads change nothing.
    pub(crate) fn seal(layout: TensorLayout, rows: &[f16]) -> Self {
        let TensorLayout { n_heads, dim, .. } = layout;
        assert_eq!(rows.len(), BLOCK * layout.row(), "a block is sealed when it is full");
        let row = |head: usize, token: usize| &rows[token * layout.row() + head * dim..][..dim];
        let places = (0..n_heads).flat_map(|head| (0..BLOCK).map(move |token| (head, token)));
        let Some(bits) = layout.bits() else {
            return Self::F16(places.flat_map(|(head, token)| row(head, token)).copied().collect());
        };
        let (words, n_groups) = (layout.words(bits), layout.n_groups());
        let mut codes = vec![0; n_heads * BLOCK * words];
        let mut scales = vec![f16::ZERO; n_heads * BLOCK * n_groups];
        let mut biases = scales.clone();
        codes
            .par_chunks_mut(words)
            .zip(scales.par_chunks_mut(n_groups))
            .zip(biases.par_chunks_mut(n_groups))
            .enumerate()
            .with_min_len(64)
            .for_each(|(place, ((codes, scales), biases))| {
                let x: Vec<f32> = row(place / BLOCK, place % BLOCK).iter().map(|x| x.to_f32()).collect();
                quantize_row(&x, bits, codes, scales, biases);
            });
        Self::Coded { bits, codes, scales, biases }
    }

    /// Tile `tile` (0 to 7) of a head.
    pub(crate) fn tile(&self, layout: TensorLayout, head: usize, tile: usize) -> Tile<'_> {
        let token = head * BLOCK + tile * TILE;
        match self {
            Self::F16(rows) => Tile::F16 { rows: &rows[token * layout.dim..], stride: layout.dim },
            Self::Coded { bits, codes, scales, biases } => Tile::Coded {
                bits: *bits,
                codes: &codes[token * layout.words(*bits)..],
                scales: &scales[token * layout.n_groups()..],
                biases: &biases[token * layout.n_groups()..],
            },
        }
    }
}

/// The f16 rows of (part of) one block, all layers.
#[derive(Debug)]
pub(crate) struct Rows {
    /// Per layer: keys `[n, n_heads * dim]` and values.
    layers: Vec<(Vec<f16>, Vec<f16>)>,
}

impl Rows {
    /// No rows yet.
    pub(crate) fn new(layout: &KvLayout) -> Self {
        Self { layers: layout.layers.iter().map(|_| (Vec::new(), Vec::new())).collect() }
    }

    /// Adds keys and values of whole tokens to a layer.
    pub(crate) fn push(&mut self, layer: usize, k: &[f32], v: &[f32]) {
        let (keys, values) = &mut self.layers[layer];
        keys.extend(k.iter().map(|x| f16::from_f32(*x)));
        values.extend(v.iter().map(|x| f16::from_f32(*x)));
    }

    /// Tokens held in a layer (in a pass, lower layers are ahead of higher ones).
    pub(crate) fn len(&self, layer: usize, layout: LayerLayout) -> usize {
        self.layers[layer].0.len() / layout.k.row()
    }

    /// Forgets all tokens from `n` on.
    pub(crate) fn truncate(&mut self, n: usize, layout: &KvLayout) {
        for ((k, v), layer) in self.layers.iter_mut().zip(&layout.layers) {
            k.truncate(n * layer.k.row());
            v.truncate(n * layer.v.row());
        }
    }

    /// Packs a layer of a full block.
    pub(crate) fn seal(&self, layer: usize, layout: LayerLayout) -> LayerBlock {
        let (k, v) = &self.layers[layer];
        LayerBlock { k: Packed::seal(layout.k, k), v: Packed::seal(layout.v, v) }
    }

    /// Tile `tile` (0 to 7) of keys and values of a head.
    pub(crate) fn tile(
        &self,
        layer: usize,
        layout: LayerLayout,
        head: usize,
        tile: usize,
    ) -> (Tile<'_>, Tile<'_>) {
        let (k, v) = &self.layers[layer];
        let of = |rows: &'_ [f16], t: TensorLayout| (tile * TILE * t.row() + head * t.dim).min(rows.len());
        (
            Tile::F16 { rows: &k[of(k, layout.k)..], stride: layout.k.row() },
            Tile::F16 { rows: &v[of(v, layout.v)..], stride: layout.v.row() },
        )
    }

    /// Tokens `range` as bytes for the tail log: token by token, layer by layer, keys then values.
    pub(crate) fn to_bytes(&self, range: std::ops::Range<usize>, layout: &KvLayout) -> Vec<u8> {
        let mut out = Vec::with_capacity(range.len() * layout.row_bytes());
        for token in range {
            for ((k, v), layer) in self.layers.iter().zip(&layout.layers) {
                out.extend_from_slice(bytemuck::cast_slice(&k[token * layer.k.row()..][..layer.k.row()]));
                out.extend_from_slice(bytemuck::cast_slice(&v[token * layer.v.row()..][..layer.v.row()]));
            }
        }
        out
    }

    /// Adds tokens from [`Rows::to_bytes`]; `bytes` is a whole number of tokens.
    pub(crate) fn push_bytes(&mut self, bytes: &[u8], layout: &KvLayout) {
        let half = |pair: &[u8]| f16::from_le_bytes([pair[0], pair[1]]);
        for token in bytes.chunks_exact(layout.row_bytes()) {
            let mut rest = token;
            for ((k, v), layer) in self.layers.iter_mut().zip(&layout.layers) {
                for (rows, n) in [(k, layer.k.row()), (v, layer.v.row())] {
                    let (piece, after) = rest.split_at(2 * n);
                    rows.extend(piece.chunks_exact(2).map(half));
                    rest = after;
                }
            }
        }
    }

    /// Bytes allocated.
    pub(crate) fn bytes(&self) -> u64 {
        self.layers.iter().map(|(k, v)| 2 * (k.capacity() + v.capacity()) as u64).sum()
    }
}

/// All sealed blocks in memory, each content once.
pub(crate) struct Arena {
    pool: Pool,
    block_bytes: u64,
    blocks: HashMap<BlockId, (BlockHash, Arc<SealedBlock>)>,
    by_hash: HashMap<BlockHash, BlockId>,
}

impl Arena {
    /// An empty arena for blocks of one layout; `budget` in bytes.
    pub(crate) fn new(layout: &KvLayout, budget: u64) -> Self {
        let block_bytes = (layout.sealed_bytes() * BLOCK) as u64;
        Self { pool: Pool::new(budget), block_bytes, blocks: HashMap::new(), by_hash: HashMap::new() }
    }

    /// A reference to the block with this content, if it is here.
    pub(crate) fn find(&mut self, hash: BlockHash) -> Option<BlockId> {
        let id = *self.by_hash.get(&hash)?;
        self.pool.retain(id);
        Some(id)
    }

    /// Takes a block in; equal content that is already here is shared.
    pub(crate) fn insert(&mut self, hash: BlockHash, block: SealedBlock) -> BlockId {
        if let Some(id) = self.find(hash) {
            return id;
        }
        let id = self.pool.allocate(self.block_bytes);
        self.blocks.insert(id, (hash, Arc::new(block)));
        self.by_hash.insert(hash, id);
        id
    }

    /// The bytes of a block that the caller holds a reference to.
    pub(crate) fn get(&self, id: BlockId) -> &Arc<SealedBlock> {
        &self.blocks[&id].1
    }

    /// Gives a reference back.
    pub(crate) fn release(&mut self, id: BlockId) {
        if self.pool.release(id) {
            let (hash, _) = self.blocks.remove(&id).expect("a live block has bytes");
            self.by_hash.remove(&hash);
        }
    }

    /// Whether blocks and `others` bytes exceed the budget.
    pub(crate) fn exceeds(&self, others: u64) -> bool {
        self.pool.exceeds(others)
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
        if let Packed::Coded { codes, .. } = &mut block.layers[0].k {
            codes[0] ^= 8;
        }
    }
}
