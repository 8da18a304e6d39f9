//! One agent's cache: its sealed blocks, the f16 rows of the open one, and what a pass adds to them.
//!
//! Visibility is decided by absolute position: a row in block b reads all blocks before b sealed and its own
//! block in f16, however tokens arrived. This records, by ids, what is where; the bytes belong to a device.
//!
//! Layers with a window need no more of a sequence's past than the window. [`Sequence::trim_window`] drops
//! their older blocks from memory; [`Sequence::evict`] can drop all of a sequence at rest. What is missing
//! comes from disk ([`Sequence::missing`], [`Sequence::refill`]), or the sequence goes back further.

use super::arena::Arena;
use super::states::States;
use crate::Result;
use crate::device::PassSpan;
use crate::kv::layout::{BLOCK, KvLayout, Part};
use crate::kv::table::{BlockHash, BlockId, BlockTable, Parts, RowsId, within};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A sequence's keys and values.
pub(crate) struct Sequence {
    layout: Arc<KvLayout>,
    root: BlockHash,
    table: BlockTable,
    /// f16 rows by block; the open block's always, others while a turn can still reach back to them.
    rows: BTreeMap<usize, RowsId>,
    len: usize,
    /// What stays until the turn ends though the sequence goes on.
    retained: Vec<Retained>,
    /// Tokens that went through the model since the turn began.
    n_computed: usize,
    /// States of its recurrent layers; `None`: there are none.
    states: Option<States>,
}

/// The address of the first `n` tokens of a sequence with these blocks and borders.
fn address(root: BlockHash, table: &BlockTable, borders: &[usize], tokens: &[u32], n: usize) -> BlockHash {
    let block = n / BLOCK;
    let before = block.checked_sub(1).and_then(|last| table.hash(last)).unwrap_or(root);
    match n % BLOCK {
        0 => before,
        _ => before.then(&tokens[block * BLOCK..n], within(borders, block * BLOCK)),
    }
}

/// Something past of a sequence that stays in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retained {
    /// It can go back exactly there: the rows of its block stay, and the windows that a row there sees.
    Point(usize),
    /// It can go back there and to wherever it goes from there.
    From(usize),
    /// The rows of a block stay, those that come too, for [`Sequence::take_marked`].
    Rows(usize),
}

impl Sequence {
    /// An empty sequence; `root` is the identity that its blocks' addresses start from.
    pub(crate) fn new(layout: Arc<KvLayout>, root: BlockHash) -> Self {
        let (table, rows, retained) = (BlockTable::default(), BTreeMap::new(), vec![Retained::Point(0)]);
        let states = layout.has_states().then(States::default);
        Self { layout, root, table, rows, len: 0, retained, n_computed: 0, states }
    }

    /// States of its recurrent layers; `None`: there are none.
    pub(crate) fn states(&self) -> Option<&States> {
        self.states.as_ref()
    }

    /// As [`Sequence::states`].
    pub(crate) fn states_mut(&mut self) -> Option<&mut States> {
        self.states.as_mut()
    }

    fn borders(&self) -> &[usize] {
        self.states.as_ref().map_or(&[], States::borders)
    }

    /// Addresses of the whole blocks of `tokens`, which are all of the sequence, from block `first` on, all
    /// before which it holds.
    pub(crate) fn chain(&self, tokens: &[u32], first: usize) -> Vec<BlockHash> {
        let before = first.checked_sub(1).and_then(|last| self.table.hash(last)).unwrap_or(self.root);
        let borders: Vec<usize> = within(self.borders(), first * BLOCK).collect();
        before.chain(&tokens[first * BLOCK..], &borders)
    }

    /// The address of the first `n` of `tokens`, whose whole blocks it holds.
    pub(crate) fn address(&self, tokens: &[u32], n: usize) -> BlockHash {
        address(self.root, &self.table, self.borders(), tokens, n)
    }

    /// Addresses of all that it is made of: its blocks, and its states.
    pub(crate) fn hashes(&self) -> impl Iterator<Item = BlockHash> {
        self.table.hashes().chain(self.states.iter().flat_map(States::known).map(|(_, hash, _)| hash))
    }

    /// Ids of all of it that is in memory.
    pub(crate) fn ids(&self) -> impl Iterator<Item = BlockId> {
        let states = self.states.iter().flat_map(States::known).filter_map(|(.., id)| id);
        self.table.parts().flatten().flatten().chain(states)
    }

    /// Tokens held.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Address of the last sealed block, or the root where there is none.
    pub(crate) fn end(&self) -> BlockHash {
        self.table.last_hash().unwrap_or(self.root)
    }

    /// The sealed blocks.
    pub(crate) fn table(&self) -> &BlockTable {
        &self.table
    }

    /// The f16 rows of the open block, if it has any.
    pub(crate) fn open_rows(&self) -> Option<RowsId> {
        self.rows.get(&(self.len / BLOCK)).copied().filter(|_| self.len % BLOCK != 0)
    }

    /// Tells whether any f16 rows of it are in memory.
    pub(crate) fn holds_rows(&self) -> bool {
        !self.rows.is_empty()
    }

    /// Tells whether anything of it is in memory.
    pub(crate) fn holds_any(&self) -> bool {
        !self.rows.is_empty() || self.ids().next().is_some()
    }

    /// Tokens whose keys and values are in memory, in the layers that see everything.
    pub(crate) fn n_held(&self) -> usize {
        let sealed = (0..self.table.len()).filter(|block| self.table.holds(*block, Part::Global)).count();
        let open = if self.open_rows().is_some() { self.len % BLOCK } else { 0 };
        sealed * BLOCK + open
    }

    /// Bytes of its blocks and rows in memory, shared ones included.
    pub(crate) fn bytes(&self, arena: &Arena) -> u64 {
        let blocks: u64 = self.ids().map(|id| arena.block_bytes(id)).sum();
        let rows = |block: &usize| self.len.saturating_sub(block * BLOCK).min(BLOCK);
        let rows: usize = self.rows.keys().map(rows).sum();
        blocks + (rows * self.layout.row_bytes()) as u64
    }

    /// Tokens that went through the model since [`Sequence::begin_turn`].
    pub(crate) fn n_computed(&self) -> usize {
        self.n_computed
    }

    /// Begins a turn: from now on the sequence can be truncated exactly to its current end.
    pub(crate) fn begin_turn(&mut self) {
        let len = self.len;
        self.move_points(|_| len);
        self.n_computed = 0;
    }

    /// Until the turn ends the sequence can be truncated to `n`, too, as far as what a row there sees is in
    /// memory now.
    pub(crate) fn reach_back(&mut self, n: usize) {
        self.move_points(|point| point.min(n));
    }

    fn move_points(&mut self, to: impl Fn(usize) -> usize) {
        for retained in &mut self.retained {
            if let Retained::Point(point) = retained {
                *point = to(*point);
            }
        }
    }

    /// Until the turn ends the sequence can be truncated exactly to here, and to any later end.
    pub(crate) fn hold(&mut self) {
        self.retained.push(Retained::From(self.len));
        self.states.iter_mut().for_each(|states| states.hold(self.len));
    }

    /// Until the turn ends the rows of these blocks stay, those that come with it too, for
    /// [`Sequence::take_marked`].
    pub(crate) fn mark(&mut self, blocks: impl IntoIterator<Item = usize>) {
        self.retained.extend(blocks.into_iter().map(Retained::Rows));
        self.retained.dedup();
    }

    /// The marked blocks all of whose rows before token `end` are here, with the address of the block before
    /// and the rows, which stay until the next pass. They are marked no longer.
    pub(crate) fn take_marked(&mut self, end: usize) -> Vec<(usize, BlockHash, RowsId)> {
        let len = self.len;
        let is_whole = |retained: &mut Retained| match retained {
            Retained::Rows(block) => len >= end.min((*block + 1) * BLOCK),
            Retained::Point(_) | Retained::From(_) => false,
        };
        let whole: Vec<Retained> = self.retained.extract_if(.., is_whole).collect();
        let of = |retained| {
            let Retained::Rows(block) = retained else { return None };
            let before = block.checked_sub(1).map_or(Some(self.root), |before| self.table.hash(before))?;
            Some((block, before, *self.rows.get(&block)?))
        };
        whole.into_iter().filter_map(of).collect()
    }

    /// A reply ends here: states are sealed. `tokens` are all of the sequence.
    ///
    /// # Errors
    /// The device fails; then the states are those of an earlier place.
    pub(crate) fn end_reply(&mut self, tokens: &[u32], arena: &mut Arena) -> Result<()> {
        let Self { root, table, states: Some(states), len, .. } = self else { return Ok(()) };
        let borders = states.borders().to_vec();
        states.seal_end(*len, |n| address(*root, table, &borders, tokens, n), arena)
    }

    /// Commits the turn: f16 rows stay for the open block only.
    pub(crate) fn end_turn(&mut self, arena: &mut Arena) {
        if let Some(states) = &mut self.states {
            // At rest it stands where its state is sealed.
            states.drop_live(arena);
            let place = self.place(self.len);
            self.rewind(place, arena);
            self.states.iter_mut().for_each(|states| states.end_turn(place, arena));
        }
        let open = self.len / BLOCK;
        self.retained = vec![Retained::Point(self.len)];
        self.keep_rows(arena, |block| block == open);
    }

    /// Gives the rows of all other blocks back.
    fn keep_rows(&mut self, arena: &mut Arena, keep: impl Fn(usize) -> bool) {
        for (_, id) in self.rows.extract_if(.., |block, _| !keep(*block)) {
            arena.release_rows(id);
        }
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
    pub(crate) fn push_rows(&mut self, rows: RowsId, n: usize) {
        assert!(self.len % BLOCK == 0 && n < BLOCK, "rows follow whole blocks");
        self.rows.insert(self.len / BLOCK, rows);
        self.len += n;
    }

    /// Goes back to at most `n` tokens, in all layers, and returns how many are left: fewer than `n` if `n`
    /// lies in a sealed block whose f16 rows are gone, which then goes back to its border, or if something
    /// that a row there sees is not in memory.
    pub(crate) fn truncate(&mut self, n: usize, arena: &mut Arena) -> usize {
        let mut kept = self.place(n);
        while let Some((at, part)) = self.needed(kept).next() {
            kept = self.place(self.without((at, part), kept));
        }
        self.rewind(kept, arena);
        kept
    }

    /// The last place at or before `n` where it can stand if this part of a block or state can't be had.
    pub(crate) fn without(&self, (at, part): (usize, Part), n: usize) -> usize {
        match part {
            Part::Global => at * BLOCK,
            Part::Windowed => n.saturating_sub(1) / BLOCK * BLOCK,
            Part::State => self.states.as_ref().map_or(0, |states| states.before(at)),
        }
    }

    /// The last place at or before `n` of which all that a row there attends to is in memory.
    pub(crate) fn whole(&self, n: usize) -> usize {
        let mut kept = self.border(n);
        while let Some(missing) = self.missing(kept).next() {
            kept = self.without(missing, kept);
        }
        kept
    }

    /// The last place at or before `n` where it can go on: as [`Sequence::border`], and its recurrent layers
    /// have a state there.
    pub(crate) fn place(&self, n: usize) -> usize {
        let mut place = self.border(n);
        let Some(states) = &self.states else { return place };
        loop {
            if states.reaches(place) {
                return place;
            }
            place = self.border(states.before(place));
        }
    }

    /// As [`Sequence::missing`], and the state at `n` if it is needed.
    pub(crate) fn needed(&self, n: usize) -> impl Iterator<Item = (usize, Part)> {
        let state = self.states.as_ref().filter(|states| !states.is_ready_at(n)).map(|_| (n, Part::State));
        self.missing(n).chain(state)
    }

    /// Tells whether a part of a block, or a state, is in memory.
    pub(crate) fn holds(&self, (at, part): (usize, Part)) -> bool {
        match part {
            Part::State => self.states.as_ref().is_some_and(|states| states.holds(at)),
            Part::Global | Part::Windowed => self.table.holds(at, part),
        }
    }

    /// The address of a part of a block, or of a state, that it knows.
    pub(crate) fn hash_of(&self, (at, part): (usize, Part)) -> Option<BlockHash> {
        match part {
            Part::State => self.states.as_ref().and_then(|states| states.hash(at)),
            Part::Global | Part::Windowed => self.table.hash(at),
        }
    }

    /// Goes back to `n` tokens or the border before them, whatever is in memory of what is before that.
    pub(crate) fn rewind(&mut self, n: usize, arena: &mut Arena) {
        let kept = self.border(n);
        self.states.iter_mut().for_each(|states| states.rewind(kept, n, arena));
        if kept == self.len {
            return;
        }
        let block = kept / BLOCK;
        self.keep_rows(arena, |b| b < block || b == block && kept % BLOCK != 0);
        if let Some(rows) = self.rows.get(&block) {
            arena.truncate_rows(*rows, kept % BLOCK);
        }
        for id in self.table.truncate(block) {
            arena.release(id);
        }
        self.len = kept;
        self.reach_back(kept);
    }

    /// Goes back to the end of the last sealed block.
    pub(crate) fn truncate_to_block(&mut self, arena: &mut Arena) {
        self.keep_rows(arena, |_| false);
        self.len = self.table.len() * BLOCK;
    }

    /// The last place at or before `n` for which there are f16 rows, or that needs none.
    pub(crate) fn border(&self, n: usize) -> usize {
        let n = n.min(self.len);
        if n % BLOCK == 0 || self.rows.contains_key(&(n / BLOCK)) { n } else { n / BLOCK * BLOCK }
    }

    /// Parts of sealed blocks that a row at `n` attends to and that are not in memory: global parts first.
    pub(crate) fn missing(&self, n: usize) -> impl Iterator<Item = (usize, Part)> {
        let sealed = (n / BLOCK).min(self.table.len());
        let first = self.layout.window().map_or(sealed, |window| (n + 1).saturating_sub(window) / BLOCK);
        let of = move |part: Part, blocks: std::ops::Range<usize>| {
            blocks.filter(move |block| !self.table.holds(*block, part)).map(move |block| (block, part))
        };
        of(Part::Global, 0..sealed).chain(of(Part::Windowed, first.min(sealed)..sealed))
    }

    /// Parts of the first `n` tokens' sealed blocks that are not in memory, whether a row there attends to
    /// them or not.
    pub(crate) fn absent(&self, n: usize) -> impl Iterator<Item = (usize, Part)> {
        let sealed = (n / BLOCK).min(self.table.len());
        let parts = self.layout.parts().flat_map(move |part| (0..sealed).map(move |block| (block, part)));
        let states = self.states.iter().flat_map(States::known);
        let states =
            states.filter(move |(at, _, id)| *at <= n && id.is_none()).map(|(at, ..)| (at, Part::State));
        parts.filter(|(block, part)| !self.table.holds(*block, *part)).chain(states)
    }

    /// Gives its blocks, all of whose parts must be in memory, addresses from another root. `tokens` are all
    /// of the sequence.
    ///
    /// # Errors
    /// The device fails; then it holds nothing.
    pub(crate) fn readdress(&mut self, root: BlockHash, tokens: &[u32], arena: &mut Arena) -> Result<()> {
        self.root = root;
        let hashes = root.chain(&tokens[..self.table.len() * BLOCK], self.borders());
        for (block, hash) in hashes.into_iter().enumerate() {
            self.table.rename(block, hash);
            for part in Part::OF_BLOCKS {
                let Some(id) = self.table.take(block, part) else { continue };
                match arena.readdress(id, (hash, part)) {
                    Ok(id) => self.table.set(block, part, id),
                    Err(e) => {
                        self.clear(arena);
                        return Err(e);
                    }
                }
            }
        }
        let Self { table, states: Some(states), .. } = self else { return Ok(()) };
        let borders = states.borders().to_vec();
        let readdressed = states.readdress(|n| address(root, table, &borders, tokens, n), arena);
        if readdressed.is_err() {
            self.clear(arena);
        }
        readdressed
    }

    /// Puts a part of a block, or a state, in its place.
    pub(crate) fn refill(&mut self, at: usize, part: Part, id: BlockId, arena: &mut Arena) {
        match (part, &mut self.states) {
            (Part::State, Some(states)) => states.refill(at, id, arena),
            (Part::State, None) => arena.release(id),
            _ => self.table.set(at, part, id),
        }
    }

    /// Drops a state, or a part of the last block before `limit` that has any in memory; `false`: there is
    /// none. The sequence must get it back before it continues.
    pub(crate) fn evict(&mut self, limit: usize, arena: &mut Arena) -> bool {
        let end = self.len;
        if self.states.as_mut().is_some_and(|states| states.evict(end, arena)) {
            return true;
        }
        let Some((block, part)) = self.table.last_held(limit) else { return false };
        self.table.take(block, part).into_iter().for_each(|id| arena.release(id));
        true
    }

    /// Drops windowed layers of blocks before `limit` that no later row sees, even if the sequence goes back
    /// to the turn's beginning, to where it is held, or by a block.
    pub(crate) fn trim_window(&mut self, limit: usize, arena: &mut Arena) {
        let Some(window) = self.layout.window() else { return };
        let first = |n: usize| (n + 1).saturating_sub(window) / BLOCK;
        let at_end = first((self.len / BLOCK).saturating_sub(1) * BLOCK);
        let retained = &self.retained;
        let is_unseen = |block: &usize| {
            retained.iter().all(|retained| match retained {
                Retained::Point(n) => !(first(*n)..n / BLOCK).contains(block),
                Retained::From(n) => first(*n) > *block,
                Retained::Rows(_) => true,
            })
        };
        for block in (0..limit.min(at_end)).filter(is_unseen) {
            if let Some(id) = self.table.take(block, Part::Windowed) {
                arena.release(id);
            }
        }
    }

    /// Gives all blocks back.
    pub(crate) fn clear(&mut self, arena: &mut Arena) {
        self.states.iter_mut().for_each(|states| states.clear(arena));
        self.rewind(0, arena);
        self.keep_rows(arena, |_| false);
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
            fork.push_rows(arena.copy_rows(open, n), n);
        }
        fork.states = self.states.as_ref().map(|states| states.fork(arena));
        fork
    }

    /// Plans what a pass over the tokens up to `end` reads and writes, of which those after `certain` may not
    /// stay; `n_tokens` are known. [`Sequence::finish_pass`] or [`Sequence::abort_pass`] follows.
    pub(crate) fn plan_pass(
        &mut self,
        (certain, end): (usize, usize),
        n_tokens: usize,
        arena: &mut Arena,
    ) -> PassSpan {
        let (start, n) = (self.len, end - self.len);
        let state = self.states.as_mut().map(|states| states.plan((start, certain, end), n_tokens, arena));
        let (first, open) = (start / BLOCK, end / BLOCK);
        let blocks = first..end.div_ceil(BLOCK);
        let rows = blocks.map(|block| *self.rows.entry(block).or_insert_with(|| arena.new_rows()));
        let rows = rows.collect();
        let layout = self.layout.clone();
        let reserve = |block: usize| {
            let mut parts = Parts::default();
            layout.parts().for_each(|part| parts[part as usize] = Some(arena.reserve(part, block == 0)));
            parts
        };
        let completed = (first..open).map(reserve).collect();
        PassSpan { start, n, sealed: self.table.parts().collect(), rows, completed, state }
    }

    /// Ends a pass: what was sealed becomes part of the table. `tokens` are all of the sequence.
    pub(crate) fn finish_pass(&mut self, pass: PassSpan, tokens: &[u32], arena: &mut Arena) {
        self.len += pass.n;
        self.n_computed += pass.n;
        for parts in pass.completed {
            let block = self.table.len();
            let ids = &tokens[block * BLOCK..][..BLOCK];
            let hash = self.end().then(ids, within(self.borders(), block * BLOCK));
            let name = |part: Part| parts[part as usize].map(|id| arena.name(id, (hash, part)));
            self.table.push(hash, Part::OF_BLOCKS.map(name));
        }
        let Self { root, table, states, .. } = self;
        if let (Some(states), Some(span)) = (states, &pass.state) {
            let borders = states.borders().to_vec();
            states.finish(span, |n| address(*root, table, &borders, tokens, n), arena);
        }
        let last = (self.len / BLOCK).saturating_sub(1);
        let retained = std::mem::take(&mut self.retained);
        let stays = |block: usize| {
            retained.iter().any(|retained| match retained {
                Retained::Point(n) => block == n / BLOCK,
                Retained::From(n) => block >= n / BLOCK,
                Retained::Rows(marked) => block == *marked,
            })
        };
        self.keep_rows(arena, |block| block >= last || stays(block));
        self.retained = retained;
    }

    /// A pass failed: forgets what it wrote.
    pub(crate) fn abort_pass(&mut self, pass: PassSpan, arena: &mut Arena) {
        pass.completed.iter().flatten().flatten().for_each(|id| arena.release(*id));
        let (open, n) = (self.len / BLOCK, self.len % BLOCK);
        self.keep_rows(arena, |block| block < open || block == open && n > 0);
        if let Some(rows) = self.rows.get(&open) {
            arena.truncate_rows(*rows, n);
        }
        let len = self.len;
        if let (Some(states), Some(span)) = (&mut self.states, &pass.state)
            && !states.abort(span, len, arena)
        {
            let place = self.place(len);
            self.rewind(place, arena);
        }
    }
}
