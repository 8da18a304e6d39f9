//! One agent's cache: sealed blocks, the f16 rows of the open one, and what a pass adds to them.
//!
//! Visibility is decided by absolute position: a row in block b reads all blocks before b sealed and its own block in
//! f16, however tokens arrived. In a pass each layer first writes its f16 rows, seals the blocks that they complete
//! from those values, then attends.
//!
//! Layers with a window need no more of a sequence's past than the window. What they hold of older blocks leaves memory by
//! [`Sequence::shed`]; all that a sequence at rest holds may leave it by [`Sequence::let_go`]. What is missing comes from disk
//! ([`Sequence::missing`], [`Sequence::refill`]), or the sequence goes back further.

use super::blocks::{Arena, LayerBlock, Rows, SealedBlock, Sealing};
use super::layout::{BLOCK, KvLayout, Part, TensorLayout};
use super::pool::BlockId;
use super::table::{BlockHash, BlockTable, Parts};
use crate::kernels::Isa;
use crate::kernels::attention::{Keys, TILE, Tiles, Values};
use crate::kernels::shaping::Shaping;
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
    /// Where the sequence stood when the turn began.
    start: usize,
    /// From where on it goes to and fro: see [`Sequence::hold`].
    held: Option<usize>,
    /// Rows that went through layer 0 since the turn began: counted where it happens.
    layer0_rows: usize,
}

impl Sequence {
    /// An empty sequence; `root` is the identity that its blocks' addresses start from.
    pub(crate) fn new(layout: Arc<KvLayout>, root: BlockHash) -> Self {
        let (table, rows) = (BlockTable::default(), BTreeMap::new());
        let (staged, held) = (Vec::new(), None);
        Self { layout, root, table, rows, len: 0, staged, start: 0, held, layer0_rows: 0 }
    }

    /// Tokens held.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// What is cached, and how.
    pub(crate) fn layout(&self) -> &Arc<KvLayout> {
        &self.layout
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

    /// Whether anything of it is in memory.
    pub(crate) fn holds_any(&self) -> bool {
        !self.rows.is_empty() || self.table.last_held(self.table.len()).is_some()
    }

    /// Rows that went through layer 0 since [`Sequence::begin_turn`].
    pub(crate) fn layer0_rows(&self) -> usize {
        self.layer0_rows
    }

    /// From now on the sequence can be truncated exactly to where it stands.
    pub(crate) fn begin_turn(&mut self) {
        self.start = self.len;
        self.layer0_rows = 0;
    }

    /// Until the turn ends the sequence can be truncated exactly to here, and to wherever it goes from here.
    pub(crate) fn hold(&mut self) {
        self.held = Some(self.len);
    }

    /// The turn stands: f16 rows stay for the open block only.
    pub(crate) fn end_turn(&mut self) {
        let open = self.len / BLOCK;
        self.start = self.len;
        self.held = None;
        self.rows.retain(|block, _| *block == open);
    }

    /// Appends a whole block that was computed before (by this agent or by another with equal ids).
    pub(crate) fn push_block(&mut self, hash: BlockHash, parts: Parts) {
        assert!(self.len % BLOCK == 0 && self.rows.is_empty(), "blocks are restored before rows");
        self.table.push(hash, parts);
        self.len += BLOCK;
    }

    /// Appends a block of which nothing is in memory.
    pub(crate) fn push_absent(&mut self, hash: BlockHash) {
        self.push_block(hash, Parts::default());
    }

    /// Takes over the open block's rows, `n` tokens.
    pub(crate) fn push_rows(&mut self, rows: Rows, n: usize) {
        assert!(self.len % BLOCK == 0 && n < BLOCK, "rows follow whole blocks");
        self.rows.insert(self.len / BLOCK, rows);
        self.len += n;
    }

    /// Goes back to at most `n` tokens, in all layers alike, and returns how many are left: fewer than `n` if `n` lies in a
    /// sealed block whose f16 rows are gone, which then goes back to its border, or if something that a row there sees is not in
    /// memory.
    pub(crate) fn truncate(&mut self, n: usize, arena: &mut Arena) -> usize {
        let mut kept = self.border(n);
        while let Some((block, part)) = self.missing(kept).next() {
            kept = if part == Part::Lasting { block * BLOCK } else { (kept - 1) / BLOCK * BLOCK };
        }
        self.cut(kept, arena);
        kept
    }

    /// Goes back to `n` tokens or the border before them, whatever is in memory of what is before that.
    pub(crate) fn cut(&mut self, n: usize, arena: &mut Arena) {
        let kept = self.border(n);
        if kept == self.len {
            return;
        }
        let block = kept / BLOCK;
        self.rows.retain(|b, _| *b < block || *b == block && kept % BLOCK != 0);
        if let Some(rows) = self.rows.get_mut(&block) {
            rows.truncate(kept % BLOCK, &self.layout);
        }
        for id in self.table.truncate(block) {
            arena.release(id);
        }
        self.len = kept;
        self.start = self.start.min(kept);
    }

    /// Goes back to the end of the last sealed block.
    pub(crate) fn drop_rows(&mut self) {
        self.rows.clear();
        self.len = self.table.len() * BLOCK;
    }

    /// The last place at or before `n` for which there are f16 rows, or that needs none.
    pub(crate) fn border(&self, n: usize) -> usize {
        let n = n.min(self.len);
        if n % BLOCK == 0 || self.rows.contains_key(&(n / BLOCK)) { n } else { n / BLOCK * BLOCK }
    }

    /// What a row at `n` sees of sealed blocks that is not in memory: lasting parts first.
    pub(crate) fn missing(&self, n: usize) -> impl Iterator<Item = (usize, Part)> {
        let sealed = (n / BLOCK).min(self.table.len());
        let first = self.layout.window().map_or(sealed, |window| (n + 1).saturating_sub(window) / BLOCK);
        let of = move |part: Part, blocks: std::ops::Range<usize>| {
            blocks.filter(move |block| !self.table.holds(*block, part)).map(move |block| (block, part))
        };
        of(Part::Lasting, 0..sealed).chain(of(Part::Windowed, first.min(sealed)..sealed))
    }

    /// Puts a part of a block in its place.
    pub(crate) fn refill(&mut self, block: usize, part: Part, id: BlockId) {
        self.table.set(block, part, id);
    }

    /// Lets go of a part of the last block before `limit` that has any in memory; `false`: there is none. The sequence must get
    /// it back before it goes on.
    pub(crate) fn let_go(&mut self, limit: usize, arena: &mut Arena) -> bool {
        let Some((block, part)) = self.table.last_held(limit) else { return false };
        self.table.take(block, part).into_iter().for_each(|id| arena.release(id));
        true
    }

    /// Lets go of windowed layers of blocks before `limit` that no row to come sees, even if the sequence goes back to where
    /// the turn began or it is held, or by a block.
    pub(crate) fn shed(&mut self, limit: usize, arena: &mut Arena) {
        let Some(window) = self.layout.window() else { return };
        let first = |n: usize| (n + 1).saturating_sub(window) / BLOCK;
        let at_start = first(self.start)..self.start / BLOCK;
        let at_end = (self.len / BLOCK).saturating_sub(1) * BLOCK;
        let at_end = first(self.held.map_or(at_end, |held| at_end.min(held)));
        for block in (0..limit.min(at_end)).filter(|block| !at_start.contains(block)) {
            if let Some(id) = self.table.take(block, Part::Windowed) {
                arena.release(id);
            }
        }
    }

    /// Gives all blocks back.
    pub(crate) fn clear(&mut self, arena: &mut Arena) {
        self.truncate(0, arena);
        self.rows.clear();
    }

    /// A second sequence with the same content; sealed blocks are shared.
    pub(crate) fn fork(&self, arena: &mut Arena) -> Self {
        let mut fork = Self::new(self.layout.clone(), self.root);
        for (hash, parts) in self.table.hashes().zip(self.table.parts()) {
            parts.into_iter().flatten().for_each(|id| arena.retain(id));
            fork.push_block(hash, parts);
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
    /// `k: [n, k_row]`, `v: [n, v_row]` (empty where values are a view of the keys), f32, rotated as the layout's formats want it;
    /// `shaping`: by what keys were scaled, if they were.
    pub(crate) fn write(
        &mut self,
        isa: Isa,
        layer: usize,
        start: usize,
        (k, v): (&[f32], &[f32]),
        shaping: Option<&Shaping>,
    ) {
        let layout = self.layout.layers[layer];
        let (k_row, v_row) = (layout.k.row(), layout.stored_v().map_or(0, TensorLayout::row));
        let n = k.len() / k_row;
        if layer == 0 {
            self.layer0_rows += n;
        }
        let mut done = 0;
        while done < n {
            let (block, at) = ((start + done) / BLOCK, (start + done) % BLOCK);
            let step = (BLOCK - at).min(n - done);
            let rows = self.rows.entry(block).or_insert_with(|| Rows::new(&self.layout));
            assert_eq!(rows.len(layer), at, "tokens are written in order");
            rows.push(layer, layout, &k[done * k_row..][..step * k_row], &v[done * v_row..][..step * v_row]);
            done += step;
            if at + step == BLOCK {
                let staged = block - self.table.len();
                if self.staged.len() <= staged {
                    self.staged.resize_with(staged + 1, Vec::new);
                }
                let how = Sealing { isa, first: block == 0, shaping };
                self.staged[staged].push(rows.seal(layer, layout, how));
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
            let mut by_part: [Vec<LayerBlock>; 2] = Default::default();
            for (layer, sealed) in layers.into_iter().enumerate() {
                by_part[self.layout.part_of(layer) as usize].push(sealed);
            }
            let mut parts: Parts = Default::default();
            for (part, layers) in Part::ALL.into_iter().zip(by_part).filter(|(_, layers)| !layers.is_empty())
            {
                parts[part as usize] = Some(arena.insert(hash, part, SealedBlock { layers }));
            }
            self.table.push(hash, parts);
        }
        let (open, start) = (self.len / BLOCK, self.start / BLOCK);
        let first = self.held.map_or(open, |held| held / BLOCK).min(open.saturating_sub(1));
        self.rows.retain(|block, _| *block >= first || *block == start);
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
    pub(crate) fn view<'a>(&'a self, sealed: &'a Sealed, layer: usize, head: usize, own: usize) -> View<'a> {
        View { sequence: self, sealed, layer, head, own }
    }

    /// The sealed blocks' bytes, for [`Sequence::view`].
    pub(crate) fn sealed(&self, arena: &Arena) -> Sealed {
        let parts =
            self.table.parts().map(|parts| parts.map(|id| id.map(|id| arena.get(id).clone()))).collect();
        let mut next = [0; 2];
        let place = |layer: usize| {
            let part = self.layout.part_of(layer);
            let index = next[part as usize];
            next[part as usize] += 1;
            (part, index)
        };
        Sealed { blocks: parts, places: (0..self.layout.layers.len()).map(place).collect() }
    }
}

/// The bytes of a sequence's sealed blocks, as far as they are in memory.
pub(crate) struct Sealed {
    blocks: Vec<[Option<Arc<SealedBlock>>; 2]>,
    /// Part of each layer, and which of the part's layers it is.
    places: Vec<(Part, usize)>,
}

impl Sealed {
    fn layer(&self, block: usize, layer: usize) -> &LayerBlock {
        let (part, index) = self.places[layer];
        let block = self.blocks[block][part as usize].as_ref();
        &block.expect("what a row sees is in memory").layers[index]
    }
}

/// The cache as rows of one block see it, for one layer and KV head.
pub(crate) struct View<'a> {
    sequence: &'a Sequence,
    sealed: &'a Sealed,
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
        let n_sealed = sealed.blocks.len();
        let sealed = match block < n_sealed {
            true => sealed.layer(block, layer),
            false => &sequence.staged[block - n_sealed][layer],
        };
        sealed.tile(layout, head, tile)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KvFormat;
    use crate::kernels::LANES;
    use crate::kernels::attention::{Codes, Queries, Rule, attend};
    use crate::kv::layout::LayerLayout;
    use crate::quant::{BYTES_ZERO, GROUP, LEVELS};

    const GROUP_OF_HEADS: usize = 3;

    fn noise(n: usize, seed: u32) -> Vec<f32> {
        let bits = |i: u32| (i ^ seed.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
        (0..n as u32).map(|i| (bits(i) ^ bits(i) >> 13) as f32 / u32::MAX as f32 * 4.0 - 2.0).collect()
    }

    /// Layers under test: (width of keys, width of values, values are the keys' first columns).
    const SHAPES: [(usize, usize, bool); 4] =
        [(96, 96, false), (80, 80, false), (64, 64, false), (192, 128, true)];

    fn layout((k_dim, v_dim, shared): (usize, usize, bool), format: KvFormat) -> Arc<KvLayout> {
        let mut layout = KvLayout::uniform(1, if shared { 1 } else { 2 }, k_dim, format);
        layout.layers[0] = LayerLayout { shared, ..layout.layers[0] };
        layout.layers[0].v.dim = v_dim;
        layout.layers[0].k.centered &= !shared;
        layout.layers[0].k.exact &= !shared;
        Arc::new(layout)
    }

    /// Number `column` of a token by the documented orders; a token is `dim` wide.
    fn code(codes: &Codes<'_>, token: usize, column: usize, dim: usize, keys: bool) -> f32 {
        let byte = |at: usize| codes.codes[at];
        let half = |at: usize, high: bool| if high { byte(at) >> 4 } else { byte(at) & 15 };
        let (vector, lane) = (token / LANES, token % LANES);
        let run = dim.div_ceil(32) * LANES;
        let code = match (keys, codes.bits) {
            (true, 8) => byte((vector * dim / 4 + column / 4) * 64 + 4 * lane + column % 4),
            (true, _) => half((vector * dim / 8 + column / 8) * 64 + 4 * lane + column % 4, column % 8 >= 4),
            (false, 8) => byte(token * dim + column),
            (false, _) => half(token * run + column / 32 * LANES + column % LANES, column % 32 >= LANES),
        };
        let level =
            if codes.bits == 4 { i32::from(LEVELS[usize::from(code)]) } else { i32::from(code) - BYTES_ZERO };
        codes.scales[column / GROUP * codes.stride + token].to_f32() * level as f32
    }

    /// Key and value of a token as the view has them.
    fn token(view: &View<'_>, token: usize, (k_dim, v_dim, _): (usize, usize, bool)) -> (Vec<f32>, Vec<f32>) {
        let (k, v) = view.tile(token / TILE);
        let t = token % TILE;
        let key = |k: Keys<'_>, d: usize| match k {
            Keys::F16 { vectors, stride } => vectors[t / LANES * stride + d * LANES + t % LANES].to_f32(),
            Keys::Coded { exact, .. } if t < exact.len() / k_dim => exact[t * k_dim + d].to_f32(),
            Keys::Coded { codes, mean, .. } => {
                code(&codes, t, d, k_dim, true) + mean.get(d).map_or(0.0, |mean| mean.to_f32())
            }
        };
        let value = |d: usize| match v {
            Values::F16 { rows, stride } => rows[t * stride + d].to_f32(),
            Values::Coded { exact, .. } if t < exact.len() / v_dim => exact[t * v_dim + d].to_f32(),
            Values::Coded { codes, .. } => code(&codes, t, d, v_dim, false),
            Values::Keys(keys) => key(keys, d),
        };
        ((0..k_dim).map(|d| key(k, d)).collect(), (0..v_dim).map(value).collect())
    }

    /// Attention of one query over tokens (key and value) that it sees, by its definition, in f64.
    fn naive(tokens: &[(Vec<f32>, Vec<f32>)], q: &[f32], rule: &Rule<'_>, sink: Option<f32>) -> Vec<f64> {
        let score = |k: &Vec<f32>| {
            let dot: f64 = q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
            let score = dot * f64::from(rule.scale);
            rule.soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
        };
        let weights: Vec<f64> = tokens.iter().map(|(k, _)| score(k).exp()).collect();
        let sum = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| f64::from(sink).exp());
        let column =
            |d: usize| tokens.iter().zip(&weights).map(|((_, v), w)| f64::from(v[d]) * w).sum::<f64>() / sum;
        (0..tokens[0].1.len()).map(column).collect()
    }

    /// The papers' ratio, of what is really allocated: averaged over lengths of 7.5 to 8.5 thousand tokens.
    #[test]
    fn four_bits_take_at_most_three_tenths_of_sixteen() {
        let bytes = |format| -> u64 {
            let layout = Arc::new(KvLayout::uniform(1, 2, 64, format));
            let mut arena = Arena::new(&layout, u64::MAX);
            let mut sequence = Sequence::new(layout, BlockHash::root("test"));
            let ids = vec![0; 8_500];
            let mut sum = 0;
            for end in (7_500..=8_500).step_by(25) {
                let start = sequence.len();
                let n = end - start;
                sequence.write(Isa::detect(), 0, start, (&noise(n * 128, 1), &noise(n * 128, 2)), None);
                sequence.finish_pass(&ids[start..end], &ids, &mut arena);
                sequence.end_turn();
                sum += arena.bytes() + sequence.row_bytes();
            }
            sum
        };
        let ratio = bytes(KvFormat::Q4) as f64 / bytes(KvFormat::F16) as f64;
        assert!(ratio < 0.28, "{ratio}");
        assert!(ratio > 0.26, "{ratio}: scales, means and open blocks take something");
    }

    /// What the caches of real shapes take in memory, beside what `greenroom models` promises. The papers' 4-bit caches take
    /// 108 KiB a token for Gemma 3 12B (all layers), 76 KiB for DeepSeek-V2-Lite (expanded heads), 36 KiB for Llama 3.1 8B.
    #[test]
    fn real_shapes_keep_what_models_promises() {
        let same = |n_layers: usize, n_heads, dim, every: usize, window| {
            let mut layout = KvLayout::uniform(n_layers, n_heads, dim, KvFormat::Q4);
            for (l, layer) in layout.layers.iter_mut().enumerate() {
                layer.window = (every > 0 && l % every != every - 1).then_some(window);
            }
            layout
        };
        let mut latent = same(27, 1, 576, 0, 0);
        for layer in &mut latent.layers {
            (layer.shared, layer.v.dim, layer.k.format) = (true, 512, KvFormat::Q8);
            (layer.k.centered, layer.k.exact) = (false, false);
        }
        let shapes = [
            ("Llama 3.1 8B", same(32, 8, 128, 0, 0)),
            ("Gemma 3 12B", same(48, 8, 256, 6, 1024)),
            ("gpt-oss 20B", same(24, 8, 64, 2, 128)),
            ("DeepSeek-V2-Lite", latent),
        ];
        let n = 2600;
        for (name, layout) in shapes {
            let layout = Arc::new(layout);
            let mut arena = Arena::new(&layout, u64::MAX);
            let mut sequence = Sequence::new(layout.clone(), BlockHash::root("test"));
            let ids = vec![0; n];
            while sequence.len() < n {
                let (start, end) = (sequence.len(), (sequence.len() + BLOCK).min(n));
                for (l, layer) in layout.layers.iter().enumerate() {
                    let width = |row: usize| noise((end - start) * row, 1);
                    let v = layer.stored_v().map_or(Vec::new(), |v| width(v.row()));
                    sequence.write(Isa::detect(), l, start, (&width(layer.k.row()), &v), None);
                }
                sequence.finish_pass(&ids[start..end], &ids, &mut arena);
                sequence.shed(usize::MAX, &mut arena);
            }
            sequence.end_turn();
            sequence.shed(usize::MAX, &mut arena);
            let (found, promised) = (arena.bytes() + sequence.row_bytes(), layout.cost().most(n as u64));
            let per_token = |bytes: u64| bytes as f64 / n as f64 / 1024.0;
            eprintln!(
                "{name}: {:.1} KiB a token at {n}, {:.1} promised",
                per_token(found),
                per_token(promised)
            );
            assert!(found <= promised && found * 2 > promised, "{name}: {found} bytes, {promised} promised");
        }
    }

    /// Attention on the packed cache is attention, with every rule, for rows alone and together, on all instruction sets.
    #[test]
    fn attention_is_right_with_windows_caps_sinks_and_latents() {
        let sinks = [0.5, -1.0, 2.0];
        // The rounding of queries to 8 bits (16 for 8-bit keys) is what sets the bounds.
        for (format, bound) in [(KvFormat::F16, 1e-5), (KvFormat::Q8, 1e-3), (KvFormat::Q4, 0.04)] {
            for shape in SHAPES {
                let (k_dim, v_dim, shared) = shape;
                let scale = 2.0 / (k_dim as f32).sqrt();
                let plain = Rule { scale, window: None, soft_cap: None, sinks: None };
                let rules = [
                    plain,
                    Rule { window: Some(100), ..plain },
                    Rule { window: Some(5), soft_cap: Some(3.0), ..plain },
                    Rule { sinks: Some(&sinks), window: Some(300), ..plain },
                ];
                let layout = layout(shape, format);
                let k_row = layout.layers[0].k.row();
                let mut arena = Arena::new(&layout, u64::MAX);
                let mut sequence = Sequence::new(layout.clone(), BlockHash::root("test"));
                let end = 2 * BLOCK + 48;
                let ids = vec![0; end];
                let v = if shared { Vec::new() } else { noise(end * k_row, 2) };
                sequence.write(Isa::SCALAR, 0, 0, (&noise(end * k_row, 1), &v), None);
                sequence.finish_pass(&ids, &ids, &mut arena);
                let sealed = sequence.sealed(&arena);
                let head = layout.layers[0].k.n_heads - 1;
                for (first, n_rows) in [(2 * BLOCK, 1), (2 * BLOCK + 32, 16)] {
                    let view = sequence.view(&sealed, 0, head, first / BLOCK);
                    let tokens: Vec<_> = (0..first + n_rows).map(|t| token(&view, t, shape)).collect();
                    let q = noise(n_rows * GROUP_OF_HEADS * k_dim, 3);
                    for rule in &rules {
                        let ask = |q: &[f32], first: usize, isa: Isa| {
                            let (n_rows, group) = (q.len() / (GROUP_OF_HEADS * k_dim), GROUP_OF_HEADS);
                            attend(
                                isa,
                                &Queries { q, first, n_rows, group, k_dim, v_dim, rule: *rule },
                                &view,
                            )
                        };
                        let together = ask(&q, first, Isa::SCALAR);
                        for isa in Isa::available() {
                            assert_eq!(ask(&q, first, isa), together, "{}", isa.name());
                        }
                        let contexts = together.chunks_exact(GROUP_OF_HEADS * v_dim);
                        for ((r, row), together) in
                            q.chunks_exact(GROUP_OF_HEADS * k_dim).enumerate().zip(contexts)
                        {
                            assert_eq!(ask(row, first + r, Isa::detect()), together, "row {r} alone");
                            let from = rule.window.map_or(0, |window| (first + r + 1).saturating_sub(window));
                            for (head, q) in row.chunks_exact(k_dim).enumerate() {
                                let sink = rule.sinks.map(|sinks| sinks[head]);
                                let exact = naive(&tokens[from..=first + r], q, rule, sink);
                                let ours = &together[head * v_dim..][..v_dim];
                                let off = exact.iter().zip(ours).map(|(a, b)| (a - f64::from(*b)).abs());
                                let off = off.fold(0.0, f64::max);
                                assert!(
                                    off < bound,
                                    "{format:?}, {shape:?}, row {r}, head {head}: off by {off}"
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}
