//! One agent's cache: sealed blocks, the f16 rows of the open one, and what a pass adds to them.
//!
//! Visibility is decided by absolute position: a row in block b reads all blocks before b sealed and its own block in
//! f16, however tokens arrived. In a pass each layer first writes its f16 rows, seals the blocks that they complete
//! from those values, then attends.

use super::blocks::{Arena, LayerBlock, Rows, SealedBlock};
use super::layout::{BLOCK, KvLayout};
use super::pool::BlockId;
use super::table::{BlockHash, BlockTable};
use crate::kernels::Isa;
use crate::kernels::attention::{Keys, TILE, Tiles, Values};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A sequence's keys and values.
pub(crate) struct Sequence {
    layout: Arc<KvLayout>,
    root: BlockHash,
    table: BlockTable,
    /// f16 rows by block; the open block's always, others while a turn can still reach back to them.
    rows: BTreeMap<usize, Rows>,
    len: usize,
    /// Blocks completed in the running pass, layer by layer; the first one follows the table's last.
    staged: Vec<Vec<LayerBlock>>,
    /// The block that was open when the turn began.
    pinned: usize,
    /// Rows that went through layer 0 since the turn began: counted where it happens.
    layer0_rows: usize,
}

impl Sequence {
    /// An empty sequence; `root` is the identity that its blocks' addresses start from.
    pub(crate) fn new(layout: Arc<KvLayout>, root: BlockHash) -> Self {
        let (table, rows) = (BlockTable::default(), BTreeMap::new());
        Self { layout, root, table, rows, len: 0, staged: Vec::new(), pinned: 0, layer0_rows: 0 }
    }

    /// Tokens held.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The sealed blocks.
    pub(crate) fn table(&self) -> &BlockTable {
        &self.table
    }

    /// The f16 rows of the open block, if it has any.
    pub(crate) fn open_rows(&self) -> Option<&Rows> {
        self.rows.get(&(self.len / BLOCK)).filter(|_| self.len % BLOCK != 0)
    }

    /// Bytes of f16 rows (sealed blocks are counted by the arena).
    pub(crate) fn row_bytes(&self) -> u64 {
        self.rows.values().map(Rows::bytes).sum()
    }

    /// Rows that went through layer 0 since [`Sequence::begin_turn`].
    pub(crate) fn layer0_rows(&self) -> usize {
        self.layer0_rows
    }

    /// From now on the sequence can be truncated exactly to where it stands.
    pub(crate) fn begin_turn(&mut self) {
        self.pinned = self.len / BLOCK;
        self.layer0_rows = 0;
    }

    /// The turn stands: f16 rows stay for the open block only.
    pub(crate) fn end_turn(&mut self) {
        let open = self.len / BLOCK;
        self.rows.retain(|block, _| *block == open);
    }

    /// Appends a whole block that was computed before (by this agent or by another with equal ids).
    pub(crate) fn push_block(&mut self, hash: BlockHash, id: BlockId) {
        assert!(self.len % BLOCK == 0 && self.rows.is_empty(), "blocks are restored before rows");
        self.table.push(hash, id);
        self.len += BLOCK;
    }

    /// Takes over the open block's rows, `n` tokens.
    pub(crate) fn push_rows(&mut self, rows: Rows, n: usize) {
        assert!(self.len % BLOCK == 0 && n < BLOCK, "rows follow whole blocks");
        self.rows.insert(self.len / BLOCK, rows);
        self.len += n;
    }

    /// Goes back to at most `n` tokens and returns how many are left: fewer than `n` if `n` lies in a sealed block
    /// whose f16 rows are gone, which then goes back to its border.
    pub(crate) fn truncate(&mut self, n: usize, arena: &mut Arena) -> usize {
        if n >= self.len {
            return self.len;
        }
        let block = n / BLOCK;
        self.rows.retain(|b, _| *b <= block);
        let kept = match self.rows.get_mut(&block) {
            Some(rows) if n % BLOCK != 0 => {
                rows.truncate(n % BLOCK, &self.layout);
                n
            }
            _ => {
                self.rows.remove(&block);
                block * BLOCK
            }
        };
        for id in self.table.truncate(block) {
            arena.release(id);
        }
        self.len = kept;
        kept
    }

    /// Gives all blocks back.
    pub(crate) fn clear(&mut self, arena: &mut Arena) {
        self.truncate(0, arena);
        self.rows.clear();
    }

    /// A second sequence with the same content; sealed blocks are shared.
    pub(crate) fn fork(&self, arena: &mut Arena) -> Self {
        let mut fork = Self::new(self.layout.clone(), self.root);
        for hash in self.table.hashes() {
            let id = arena.find(hash).expect("a table's blocks are in the arena");
            fork.push_block(hash, id);
        }
        if let Some(open) = self.open_rows() {
            let n = self.len % BLOCK;
            let mut rows = Rows::new(&self.layout);
            rows.push_bytes(&open.to_bytes(0..n, &self.layout), &self.layout);
            fork.push_rows(rows, n);
        }
        fork
    }

    /// In a pass: writes keys and values of tokens `start ..` to a layer and seals what they complete.
    ///
    /// `k: [n, k_row]`, `v: [n, v_row]`, f32, rotated as the layout's formats want it.
    pub(crate) fn write(&mut self, isa: Isa, layer: usize, start: usize, k: &[f32], v: &[f32]) {
        let layout = self.layout.layers[layer];
        let (k_row, v_row) = (layout.k.row(), layout.v.row());
        let n = k.len() / k_row;
        if layer == 0 {
            self.layer0_rows += n;
        }
        let mut done = 0;
        while done < n {
            let (block, at) = ((start + done) / BLOCK, (start + done) % BLOCK);
            let step = (BLOCK - at).min(n - done);
            let rows = self.rows.entry(block).or_insert_with(|| Rows::new(&self.layout));
            assert_eq!(rows.len(layer, layout), at, "tokens are written in order");
            rows.push(layer, layout, &k[done * k_row..][..step * k_row], &v[done * v_row..][..step * v_row]);
            done += step;
            if at + step == BLOCK {
                let staged = block - self.table.len();
                if self.staged.len() <= staged {
                    self.staged.resize_with(staged + 1, Vec::new);
                }
                self.staged[staged].push(rows.seal(isa, layer, layout));
            }
        }
    }

    /// After a pass over `ids` (the tokens from the sequence's end on): what was sealed becomes part of the table.
    pub(crate) fn finish_pass(&mut self, ids: &[u32], tokens: &[u32], arena: &mut Arena) {
        self.len += ids.len();
        assert!(tokens.len() >= self.len, "all tokens of the sequence are given");
        for layers in std::mem::take(&mut self.staged) {
            let block = self.table.len();
            let before = self.table.last_hash().unwrap_or(self.root);
            let hash = before.then(&tokens[block * BLOCK..][..BLOCK]);
            self.table.push(hash, arena.insert(hash, SealedBlock { layers }));
        }
        let open = self.len / BLOCK;
        self.rows.retain(|block, _| *block == open || *block + 1 == open || *block == self.pinned);
    }

    /// A pass failed: forgets what it wrote.
    pub(crate) fn abort_pass(&mut self) {
        self.staged.clear();
        let (len, layout) = (self.len, self.layout.clone());
        self.rows.retain(|block, _| block * BLOCK <= len);
        if let Some(rows) = self.rows.get_mut(&(len / BLOCK)) {
            rows.truncate(len % BLOCK, &layout);
        }
    }

    /// What rows of block `own` see of a KV head in a layer.
    pub(crate) fn view<'a>(
        &'a self,
        sealed: &'a [Arc<SealedBlock>],
        layer: usize,
        head: usize,
        own: usize,
    ) -> View<'a> {
        View { sequence: self, sealed, layer, head, own }
    }

    /// The sealed blocks' bytes, for [`Sequence::view`].
    pub(crate) fn sealed(&self, arena: &Arena) -> Vec<Arc<SealedBlock>> {
        self.table.ids().map(|id| arena.get(id).clone()).collect()
    }
}

/// The cache as rows of one block see it, for one layer and KV head.
pub(crate) struct View<'a> {
    sequence: &'a Sequence,
    sealed: &'a [Arc<SealedBlock>],
    layer: usize,
    head: usize,
    own: usize,
}

impl Tiles for View<'_> {
    fn tile(&self, tile: usize) -> (Keys<'_>, Values<'_>) {
        let Self { sequence, sealed, layer, head, own } = *self;
        let layout = sequence.layout.layers[layer];
        let (block, tile) = (tile / (BLOCK / TILE), tile % (BLOCK / TILE));
        if block == own {
            return sequence.rows[&block].tile(layer, layout, head, tile);
        }
        let packed = match sealed.get(block) {
            Some(block) => &block.layers[layer],
            None => &sequence.staged[block - sealed.len()][layer],
        };
        (packed.k.keys(layout.k, head, tile), packed.v.values(layout.v, head, tile))
    }
}
