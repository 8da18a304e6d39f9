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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KvFormat;
    use crate::kernels::LANES;
    use crate::kernels::attention::{Codes, Queries, Rule, attend};
    use crate::kv::layout::LayerLayout;
    use crate::quant::GROUP;

    const DIM: usize = 96;
    const GROUP_OF_HEADS: usize = 3;

    fn noise(n: usize, seed: u32) -> Vec<f32> {
        let bits = |i: u32| (i ^ seed.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
        (0..n as u32).map(|i| (bits(i) ^ bits(i) >> 13) as f32 / u32::MAX as f32 * 4.0 - 2.0).collect()
    }

    /// Byte or half byte `column` of a run of codes, by the documented orders.
    fn code(codes: &Codes<'_>, token: usize, column: usize, keys: bool) -> f32 {
        let byte = |at: usize| codes.codes[at];
        let half = |at: usize, high: bool| if high { byte(at) >> 4 } else { byte(at) & 15 };
        let (vector, lane) = (token / LANES, token % LANES);
        let code = match (keys, codes.bits) {
            (true, 8) => byte((vector * DIM / 4 + column / 4) * 64 + 4 * lane + column % 4),
            (true, _) => half((vector * DIM / 8 + column / 8) * 64 + 4 * lane + column % 4, column % 8 >= 4),
            (false, 8) => byte(token * DIM + column),
            (false, _) => half(token * DIM / 2 + column / 32 * LANES + column % LANES, column % 32 >= LANES),
        };
        let at = column / GROUP * codes.stride + token;
        f32::from(code).mul_add(codes.scales[at].to_f32(), codes.biases[at].to_f32())
    }

    /// Key and value of a token as the view has them.
    fn token(view: &View<'_>, token: usize) -> (Vec<f32>, Vec<f32>) {
        let (k, v) = view.tile(token / TILE);
        let t = token % TILE;
        let keys = |d: usize| match k {
            Keys::F16 { vectors, stride } => vectors[t / LANES * stride + d * LANES + t % LANES].to_f32(),
            Keys::Coded(codes) => code(&codes, t, d, true),
        };
        let values = |d: usize| match v {
            Values::F16 { rows, stride } => rows[t * stride + d].to_f32(),
            Values::Coded(codes) => code(&codes, t, d, false),
        };
        ((0..DIM).map(keys).collect(), (0..DIM).map(values).collect())
    }

    /// Attention of one query by its definition, in f64.
    fn naive(view: &View<'_>, q: &[f32], position: usize, rule: &Rule<'_>, sink: Option<f32>) -> Vec<f64> {
        let from = rule.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let tokens: Vec<_> = (from..=position).map(|t| token(view, t)).collect();
        let score = |k: &Vec<f32>| {
            let dot: f64 = q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
            let score = dot * f64::from(rule.scale);
            rule.soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
        };
        let weights: Vec<f64> = tokens.iter().map(|(k, _)| score(k).exp()).collect();
        let sum = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| f64::from(sink).exp());
        let column =
            |d: usize| tokens.iter().zip(&weights).map(|((_, v), w)| f64::from(v[d]) * w).sum::<f64>() / sum;
        (0..DIM).map(column).collect()
    }

    /// Attention on the packed cache is attention, with every rule, for rows alone and together, on all instruction sets.
    #[test]
    fn attention_is_right_with_windows_caps_and_sinks() {
        let sinks = [0.5, -1.0, 2.0];
        let plain = Rule { scale: 0.2, window: None, soft_cap: None, sinks: None };
        let rules = [
            plain,
            Rule { window: Some(100), ..plain },
            Rule { window: Some(5), soft_cap: Some(3.0), ..plain },
            Rule { sinks: Some(&sinks), window: Some(300), ..plain },
        ];
        // The rounding of queries to 8 bits (16 for 8-bit keys) is what sets the bounds.
        for (format, bound) in [(KvFormat::F16, 1e-5), (KvFormat::Q8, 1e-3), (KvFormat::Q4, 0.03)] {
            let layout = Arc::new(KvLayout::uniform(1, 2, DIM, format));
            let LayerLayout { k, .. } = layout.layers[0];
            let mut arena = Arena::new(&layout, u64::MAX);
            let mut sequence = Sequence::new(layout.clone(), BlockHash::root("test"));
            let end = 2 * BLOCK + 48;
            let ids = vec![0; end];
            sequence.write(Isa::Scalar, 0, 0, &noise(end * k.row(), 1), &noise(end * k.row(), 2));
            sequence.finish_pass(&ids, &ids, &mut arena);
            let sealed = sequence.sealed(&arena);
            for (first, n_rows) in [(2 * BLOCK, 1), (2 * BLOCK + 32, 16)] {
                let view = sequence.view(&sealed, 0, 1, first / BLOCK);
                let q = noise(n_rows * GROUP_OF_HEADS * DIM, 3);
                for rule in &rules {
                    let ask = |q: &[f32], first: usize, isa: Isa| {
                        let n_rows = q.len() / (GROUP_OF_HEADS * DIM);
                        let queries =
                            Queries { q, first, n_rows, group: GROUP_OF_HEADS, head_dim: DIM, rule: *rule };
                        attend(isa, &queries, &view)
                    };
                    let together = ask(&q, first, Isa::Scalar);
                    for isa in Isa::available() {
                        assert_eq!(ask(&q, first, isa), together, "{}", isa.name());
                    }
                    for (r, row) in q.chunks_exact(GROUP_OF_HEADS * DIM).enumerate() {
                        let alone = ask(row, first + r, Isa::detect());
                        assert_eq!(alone, together[r * row.len()..][..row.len()], "row {r} alone");
                        for (head, q) in row.chunks_exact(DIM).enumerate() {
                            let sink = rule.sinks.map(|sinks| sinks[head]);
                            let exact = naive(&view, q, first + r, rule, sink);
                            let ours = &alone[head * DIM..][..DIM];
                            let off = exact.iter().zip(ours).map(|(a, b)| (a - f64::from(*b)).abs());
                            let off = off.fold(0.0, f64::max);
                            assert!(off < bound, "{format:?}, row {r}, head {head}: off by {off}");
                        }
                    }
                }
            }
        }
    }
}
