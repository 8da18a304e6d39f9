//! States of a sequence's recurrent layers: where they are sealed, which of them stay, and where the one at
//! work can go back to.
//!
//! A state can't be cut back as rows can. So that a session goes on with the same bits whether it was computed
//! at once, in parts, or came from disk, states are **sealed** (rounded to their sealed format) in places that
//! depend on what is read alone: after every block of 256 tokens, before the token that a reply is drawn
//! from, and where a reply ends. What a sealed state is of is addressed by the hash of all before it, these
//! borders included, and so shared as blocks are.
//!
//! Of these places some stay: the last ones around replies, the one before the first reply, and a few blocks of
//! a long prompt. Going anywhere else means going back to the last of them, and computing forward again.

use super::arena::Arena;
use crate::Result;
use crate::device::{Seal, StateSpan};
use crate::kv::layout::{BLOCK, Part};
use crate::kv::table::{BlockHash, BlockId, StateId};
use crate::text::prefix::{Segment, SegmentKind};
use std::collections::BTreeMap;

/// States of one sequence.
#[derive(Default)]
pub(crate) struct States {
    /// Borders around replies, ascending.
    borders: Vec<usize>,
    /// Sealed states that are known, by position.
    sealed: BTreeMap<usize, SealedState>,
    live: Option<Live>,
    /// Places that the turn holds: they stay as long as it does.
    held: Vec<usize>,
}

/// A sealed state.
#[derive(Clone, Copy)]
struct SealedState {
    hash: BlockHash,
    /// Where it is in memory.
    id: Option<BlockId>,
    /// True if it is on disk.
    stored: bool,
}

/// The state at work.
struct Live {
    id: StateId,
    /// Tokens that it has seen; those after that are logged.
    at: usize,
    /// The first token that is logged.
    from: usize,
}

/// Borders whose states stay: those of the last four turns.
const KEPT_BORDERS: usize = 8;
/// Blocks of what is read whose states stay, about, besides the last two.
const KEPT_BLOCKS: usize = 4;
/// Tokens that a sequence can go back without computing any again, at least, once it has a state before them.
const LOGGED: usize = 32;
/// Most tokens behind its end that a state is kept ready to go back for.
pub(crate) const MOST_LOGGED: usize = 2 * BLOCK;

/// Borders around the replies of a conversation: before the token that each is drawn from, and at its end.
/// `is_answered`: one will follow.
pub(crate) fn borders<'a>(segments: impl IntoIterator<Item = &'a Segment>, is_answered: bool) -> Vec<usize> {
    let (mut borders, mut at) = (Vec::new(), 0);
    for segment in segments {
        let end = at + segment.ids.len();
        if segment.kind == SegmentKind::Reply {
            borders.extend([at.saturating_sub(1), end]);
        }
        at = end;
    }
    if is_answered {
        borders.push(at.saturating_sub(1));
    }
    borders.retain(|border| *border > 0);
    borders.dedup();
    borders
}

impl States {
    /// The borders of what is read from now on, those before included.
    pub(crate) fn set_borders(&mut self, borders: Vec<usize>) {
        self.borders = borders;
    }

    /// Tokens that it has read as with these borders: those up to the first border that it has not in common
    /// with them.
    pub(crate) fn n_alike(&self, borders: &[usize]) -> usize {
        let common = self.borders.iter().zip(borders).take_while(|(a, b)| a == b).count();
        let next = |borders: &[usize]| borders.get(common).copied().unwrap_or(usize::MAX);
        next(&self.borders).min(next(borders))
    }

    /// The borders.
    pub(crate) fn borders(&self) -> &[usize] {
        &self.borders
    }

    /// Positions, addresses and ids of all that is known.
    pub(crate) fn known(&self) -> impl Iterator<Item = (usize, BlockHash, Option<BlockId>)> {
        self.sealed.iter().map(|(at, state)| (*at, state.hash, state.id))
    }

    /// Those that are on disk.
    pub(crate) fn stored(&self) -> impl Iterator<Item = (usize, BlockHash)> {
        self.sealed.iter().filter(|(_, state)| state.stored).map(|(at, state)| (*at, state.hash))
    }

    /// Those in memory that are not on disk.
    pub(crate) fn unstored(&self) -> impl Iterator<Item = (usize, BlockHash, BlockId)> {
        let unstored = self.sealed.iter().filter(|(_, state)| !state.stored);
        unstored.filter_map(|(at, state)| Some((*at, state.hash, state.id?)))
    }

    /// Notes that one is on disk.
    pub(crate) fn note_stored(&mut self, at: usize, hash: BlockHash) {
        if let Some(state) = self.sealed.get_mut(&at).filter(|state| state.hash == hash) {
            state.stored = true;
        }
    }

    /// Makes one known.
    pub(crate) fn add(
        &mut self,
        at: usize,
        hash: BlockHash,
        id: Option<BlockId>,
        stored: bool,
        arena: &mut Arena,
    ) {
        let before = self.sealed.insert(at, SealedState { hash, id, stored });
        before.and_then(|state| state.id).into_iter().for_each(|id| arena.release(id));
    }

    /// Makes one known that is on disk.
    pub(crate) fn add_stored(&mut self, at: usize, hash: BlockHash) {
        self.sealed.entry(at).or_insert(SealedState { hash, id: None, stored: true });
    }

    /// One that was looked for is not there.
    pub(crate) fn forget(&mut self, at: usize, arena: &mut Arena) {
        let gone = self.sealed.remove(&at);
        gone.and_then(|state| state.id).into_iter().for_each(|id| arena.release(id));
    }

    /// The address of one.
    pub(crate) fn hash(&self, at: usize) -> Option<BlockHash> {
        self.sealed.get(&at).map(|state| state.hash)
    }

    /// Puts one in its place.
    pub(crate) fn refill(&mut self, at: usize, id: BlockId, arena: &mut Arena) {
        match self.sealed.get_mut(&at) {
            Some(state) if state.id.is_none() => state.id = Some(id),
            _ => arena.release(id),
        }
    }

    /// Tells whether one is in memory.
    pub(crate) fn holds(&self, at: usize) -> bool {
        self.sealed.get(&at).is_some_and(|state| state.id.is_some())
    }

    /// True if the sequence can stand at `n`: it does, its log reaches there, or the state there is known.
    pub(crate) fn reaches(&self, n: usize) -> bool {
        n == 0 || self.logs(n) || self.sealed.contains_key(&n)
    }

    /// True if nothing has to be read for the sequence to stand at `n`.
    pub(crate) fn is_ready_at(&self, n: usize) -> bool {
        n == 0 || self.logs(n) || self.sealed.get(&n).is_some_and(|state| state.id.is_some())
    }

    /// The last place before `n` whose state is known; 0 where there is none.
    pub(crate) fn before(&self, n: usize) -> usize {
        self.sealed.range(..n).next_back().map_or(0, |(at, _)| *at)
    }

    fn logs(&self, n: usize) -> bool {
        self.live.as_ref().is_some_and(|live| n >= live.at || self.base(live, n).is_some())
    }

    /// The last state in memory from which the log leads to `n`.
    fn base(&self, live: &Live, n: usize) -> Option<(usize, Option<BlockId>)> {
        let logged = live.from..n.max(live.from) + 1;
        let of_log = self.sealed.range(logged).rev().filter(|(at, _)| **at <= n);
        let in_memory = of_log.filter_map(|(at, state)| Some((*at, Some(state.id?)))).next();
        in_memory.or((live.from == 0).then_some((0, None)))
    }

    /// Goes back to `n` tokens; states after `known` are forgotten.
    pub(crate) fn rewind(&mut self, n: usize, known: usize, arena: &mut Arena) {
        for state in self.sealed.split_off(&(known + 1)).into_values() {
            state.id.into_iter().for_each(|id| arena.release(id));
        }
        let Some(live) = self.live.take() else { return };
        if n >= live.at {
            arena.truncate_state(live.id, n);
            self.live = Some(live);
            return;
        }
        match self.base(&live, n) {
            Some((at, from)) => {
                arena.truncate_state(live.id, n.max(live.at));
                arena.load_state(live.id, at, from);
                arena.truncate_state(live.id, n);
                self.live = Some(Live { at, from: at, ..live });
            }
            None => arena.release_state(live.id),
        }
    }

    /// From now on the sequence can go back to `n`, and to anywhere after it, for as long as the turn lasts.
    pub(crate) fn hold(&mut self, n: usize) {
        self.held.push(n);
    }

    /// Plans what a pass from `start` to `end` does, of which the tokens up to `certain` will stay; `n_tokens`
    /// are known.
    pub(crate) fn plan(
        &mut self,
        (start, certain, end): (usize, usize, usize),
        n_tokens: usize,
        arena: &mut Arena,
    ) -> StateSpan {
        let live = match self.live.take() {
            Some(live) => live,
            None => {
                let id = arena.new_state();
                arena.load_state(id, start, self.sealed.get(&start).and_then(|state| state.id));
                Live { id, at: start, from: start }
            }
        };
        let seals: Vec<Seal> = self
            .seals(live.at, end)
            .map(|at| {
                let stays = at <= certain && self.stays(at, n_tokens) && !self.sealed.contains_key(&at);
                Seal { at, to: stays.then(|| arena.reserve_state()) }
            })
            .collect();
        let in_memory = self.sealed.iter().filter(|(_, state)| state.id.is_some()).map(|(at, _)| *at);
        let made = seals.iter().filter(|seal| seal.to.is_some()).map(|seal| seal.at);
        let is_base = |at: &usize| (live.from..=certain).contains(at) && at + MOST_LOGGED >= certain;
        let bases: Vec<usize> = in_memory.chain(made).chain([0]).filter(is_base).collect();
        let least = self.held.iter().copied().min().unwrap_or(usize::MAX).min(certain.saturating_sub(LOGGED));
        let base = bases.iter().copied().filter(|at| *at <= least).max().or(bases.iter().copied().min());
        let keep = base.unwrap_or(certain).max(live.from);
        let span = StateSpan { id: live.id, certain, keep, seals };
        self.live = Some(live);
        span
    }

    /// Places after `at` and up to `end` where states are sealed.
    fn seals(&self, at: usize, end: usize) -> impl Iterator<Item = usize> {
        let blocks = (at / BLOCK + 1..=end / BLOCK).map(|block| block * BLOCK);
        let borders = self.borders.iter().copied().filter(move |border| *border > at && *border <= end);
        let mut all: Vec<usize> = blocks.chain(borders).collect();
        all.sort_unstable();
        all.dedup();
        all.into_iter()
    }

    /// True if the state there stays.
    fn stays(&self, at: usize, n_tokens: usize) -> bool {
        if let Ok(i) = self.borders.binary_search(&at) {
            return i == 0 || i + KEPT_BORDERS >= self.borders.len();
        }
        let n_blocks = n_tokens / BLOCK;
        let stride = n_blocks.div_ceil(KEPT_BLOCKS).max(1).next_power_of_two();
        at % (stride * BLOCK) == 0 || at % BLOCK == 0 && at / BLOCK + 1 >= n_blocks
    }

    /// A pass is over: what it sealed is known by its address.
    pub(crate) fn finish(
        &mut self,
        span: &StateSpan,
        address: impl Fn(usize) -> BlockHash,
        arena: &mut Arena,
    ) {
        for seal in &span.seals {
            let Some(id) = seal.to else { continue };
            let hash = address(seal.at);
            let id = arena.name(id, (hash, Part::State));
            self.add(seal.at, hash, Some(id), false, arena);
        }
        if let Some(live) = &mut self.live {
            (live.at, live.from) = (span.certain, span.keep.min(span.certain));
        }
    }

    /// A pass failed: the state stands again where a sealed one leads to `start`; `false`: none does.
    pub(crate) fn abort(&mut self, span: &StateSpan, start: usize, arena: &mut Arena) -> bool {
        span.seals.iter().filter_map(|seal| seal.to).for_each(|id| arena.release(id));
        let Some(live) = self.live.take() else { return true };
        arena.truncate_state(live.id, start);
        match self.base(&live, live.at) {
            Some((at, from)) => {
                arena.load_state(live.id, at, from);
                self.live = Some(Live { at, from: at, ..live });
                true
            }
            None => {
                arena.release_state(live.id);
                self.is_ready_at(start)
            }
        }
    }

    /// Seals the state at the end of a reply, `n` tokens.
    ///
    /// # Errors
    /// The device fails; then the state is gone.
    pub(crate) fn seal_end(
        &mut self,
        n: usize,
        address: impl Fn(usize) -> BlockHash,
        arena: &mut Arena,
    ) -> Result<()> {
        self.borders.retain(|border| *border < n);
        self.borders.extend((n > 0).then_some(n));
        let Some(live) = &self.live else { return Ok(()) };
        let seals = self.seals(live.at, n).map(|at| Seal { at, to: None }).collect::<Vec<_>>();
        let mut span = StateSpan { id: live.id, certain: n, keep: n, seals };
        // A state that stands there was sealed by the pass, as at the end of a block.
        if let Some(last) = span.seals.last_mut().filter(|seal| seal.at == n) {
            last.to = Some(arena.reserve_state());
        } else if !self.sealed.contains_key(&n) {
            span.seals.push(Seal { at: n, to: Some(arena.reserve_state()) });
        }
        let sealed = arena.seal_state(&span);
        if let Err(e) = sealed {
            span.seals.iter().filter_map(|seal| seal.to).for_each(|id| arena.release(id));
            self.drop_live(arena);
            return Err(e);
        }
        self.finish(&span, address, arena);
        Ok(())
    }

    /// The turn is over, with so many tokens: what does not stay is forgotten.
    pub(crate) fn end_turn(&mut self, n_tokens: usize, arena: &mut Arena) {
        self.held.clear();
        let gone: Vec<usize> = self.sealed.keys().copied().filter(|at| !self.stays(*at, n_tokens)).collect();
        gone.into_iter().for_each(|at| self.forget(at, arena));
    }

    /// Gives the state at work back.
    pub(crate) fn drop_live(&mut self, arena: &mut Arena) {
        if let Some(live) = self.live.take() {
            arena.release_state(live.id);
        }
    }

    /// Drops one from memory that is on disk, those on the way first; `false`: there is none. `end`: where the
    /// sequence ends.
    pub(crate) fn evict(&mut self, end: usize, arena: &mut Arena) -> bool {
        let Some(at) = self.evictable(end) else { return false };
        let id = self.sealed.get_mut(&at).and_then(|state| state.id.take());
        id.into_iter().for_each(|id| arena.release(id));
        true
    }

    /// What [`States::evict`] drops.
    pub(crate) fn evictable(&self, end: usize) -> Option<usize> {
        let mut stored = self.sealed.iter().filter(|(_, state)| state.stored && state.id.is_some());
        let first = stored.clone().map(|(at, _)| *at).find(|at| *at != end);
        first.or_else(|| stored.next().map(|(at, _)| *at))
    }

    /// Drops one from memory that is not on disk either, but not the one at `end`; `false`: there is none.
    pub(crate) fn evict_unsaved(&mut self, end: usize, arena: &mut Arena) -> bool {
        let at = self.sealed.iter().find(|(at, state)| **at != end && state.id.is_some()).map(|(at, _)| *at);
        at.map(|at| self.forget(at, arena)).is_some()
    }

    /// Gives all back.
    pub(crate) fn clear(&mut self, arena: &mut Arena) {
        self.drop_live(arena);
        let all: Vec<usize> = self.sealed.keys().copied().collect();
        all.into_iter().for_each(|at| self.forget(at, arena));
        (self.borders, self.held) = (Vec::new(), Vec::new());
    }

    /// The same states, of another sequence.
    pub(crate) fn fork(&self, arena: &mut Arena) -> Self {
        self.sealed.values().filter_map(|state| state.id).for_each(|id| arena.retain(id));
        Self { borders: self.borders.clone(), sealed: self.sealed.clone(), live: None, held: Vec::new() }
    }

    /// All get other addresses; none is on disk there.
    ///
    /// # Errors
    /// The device fails.
    pub(crate) fn readdress(
        &mut self,
        address: impl Fn(usize) -> BlockHash,
        arena: &mut Arena,
    ) -> Result<()> {
        for (at, state) in &mut self.sealed {
            (state.hash, state.stored) = (address(*at), false);
            if let Some(id) = state.id.take() {
                state.id = Some(arena.readdress(id, (state.hash, Part::State))?);
            }
        }
        self.sealed.retain(|_, state| state.id.is_some());
        Ok(())
    }
}
