//! Recalling a session for a prompt: from memory, from disk, from a parent, or from blocks of equal content;
//! whatever is missing is computed again, and why it is missing is said. A [`Recalling`] goes there step by
//! step: what a step needs from disk is begun, and the step is taken once it is there.
//!
//! Tokens are counted as recomputed or prefilled by meaning: those up to the end of the last reply were read
//! or said before, so computing them again is `recomputed` (all of history, under `--cold`); the rest is
//! `prefilled`.
//!
//! Sealed blocks are looked up by content when a session begins or comes back short, so a kill between
//! transcript line and manifest costs at most a block. A run is named after its scenario, so that `cache ls`
//! and `rm` can speak of scenarios.

use super::Memory;
use super::at_rest::ReadAhead;
use super::io_pool::Begun;
use super::opening::Opening;
use super::restore::{BegunStates, BegunTail, LoadStats, OnDisk, ReadBlock, Reading, Restore, Wanted};
use super::session::Session;
use super::states::borders;
use crate::kv::layout::{BLOCK, Part};
use crate::kv::table::{BlockHash, BlockId, Parts};
use crate::store::Found;
use crate::store::numerics::Numerics;
use crate::text::prefix::{
    Matched, Relation, Segment, SegmentKind, align, common_prefix, compare, first_difference, flatten,
    is_raw, n_tokens,
};
use crate::{CacheSource, Divergence, MatchKind, Request, Retention, SessionKey};

/// A session made ready for a prompt: its sequence holds a beginning of the prompt, and no more.
pub(crate) struct Recalled {
    pub(crate) session: Session,
    pub(crate) kind: MatchKind,
    pub(crate) source: CacheSource,
    /// Prompt tokens whose keys and values are there.
    pub(crate) reused: usize,
    /// Prompt tokens that the session had read or said before, but whose keys and values are not there.
    pub(crate) recomputed: usize,
    pub(crate) bytes_read: u64,
    /// Milliseconds that the turn waited for reading, and that reading took while others were active.
    pub(crate) waited_ms: f64,
    pub(crate) prefetch_ms: f64,
    pub(crate) reason: Option<String>,
    pub(crate) divergence: Option<Divergence>,
    /// The devices that computed what is reused of an adopted memory.
    pub(crate) adopted: Option<String>,
    /// The prompt, if it had to be cut along with what the session holds.
    pub(crate) aligned: Option<Vec<Segment>>,
}

/// A session on its way to be ready for a prompt: it is out of the memory, and what it lacks is being read.
pub(crate) struct Recalling {
    key: SessionKey,
    pub(crate) session: Session,
    /// The prompt, if it had to be cut along with what the session holds.
    aligned: Option<Vec<Segment>>,
    matched: Matched,
    divergence: Option<Divergence>,
    /// Tokens of the prompt that were read or said in earlier turns.
    read_before: usize,
    /// Tokens up to the end of the prompt's first message, if it has messages.
    first_message: Option<usize>,
    is_fresh: bool,
    is_cold: bool,
    /// True if the session will be written to disk.
    persists: bool,
    ahead: ReadAhead,
    stats: LoadStats,
    /// Rows of the open block: read beside the blocks, which come first in memory.
    tail: Option<BegunTail>,
    step: RecallStep,
}

/// The step that a session is at.
enum RecallStep {
    /// What it has in common with the prompt.
    Own(Restore),
    /// Whole blocks after that, found by their content.
    Known(Known),
    /// The rows of its open block.
    Tail,
    /// States of recurrent layers, found by their content: those in memory, then those on disk.
    States(BegunStates),
    /// At most all tokens of the prompt but the last.
    Last(Restore),
    /// All of a memory that another device began, before it goes on.
    Adopt(Restore),
    /// It holds so many tokens of the prompt.
    Ready(usize),
}

/// Blocks that are looked for by content.
struct Known {
    first: usize,
    /// The blocks, and references to those that are in memory.
    wanted: Vec<Wanted>,
    held: Vec<Option<BlockId>>,
    reading: Reading,
    /// What was read of the blocks up to the first one that is missing; then it is asked which of their parts
    /// are on disk.
    read: Option<ReadKnown>,
}

/// Blocks that were read by content, and the question what else of them is on disk.
struct ReadKnown {
    blocks: Vec<Option<ReadBlock>>,
    asked: Option<Begun<Vec<OnDisk>>>,
}

impl Memory {
    /// Takes a session out, whose manifest was looked for, to make it ready for a prompt. `is_beside`: others
    /// are active.
    pub(crate) fn begin_recall(
        &mut self,
        request: &Request,
        prompt: &[Segment],
        opening: Opening,
        is_beside: bool,
    ) -> Recalling {
        let key = &request.session;
        let Opening { parent, reason, stats: LoadStats { waited_ms, .. }, .. } = opening;
        let mut stats = LoadStats { is_beside, waited_ms, ..LoadStats::default() };
        stats.reason = self.claims.begin(key).filter(|_| request.retention == Retention::Persistent);
        if request.retention == Retention::Persistent {
            stats.reason = stats.reason.or_else(|| self.storeless.clone());
        }
        self.collect();
        self.loader.iter_mut().for_each(|loader| loader.drop_hints(key));
        stats.reason = stats.reason.or_else(|| self.idle.take_warning(key)).or(reason);
        let known = self.idle.remove(key);
        let ahead = known.as_ref().map_or(ReadAhead::default(), |idle| idle.ahead);
        let mut session = match known.map(|idle| idle.session) {
            Some(session) if request.cold => session.restart(&self.context, &key.tenant, &mut self.arena),
            Some(session) => session,
            None if request.cold => self.fresh(request),
            None => {
                let of_parent = || self.idle.take_warning(request.parent.as_ref()?);
                stats.reason = stats.reason.take().or_else(of_parent);
                self.find(request, parent, &mut stats)
            }
        };
        let aligned = self.aligned(&mut session, prompt);
        let prompt = aligned.as_deref().unwrap_or(prompt);
        let is_fresh = session.segments.is_empty();
        let matched = compare(&session.segments, prompt);
        let read_before = match matched.relation {
            Relation::Exact => n_tokens(prompt),
            Relation::Extend => end_of_last_reply(prompt).max(matched.n_tokens),
            Relation::Diverge => matched.n_tokens,
        };
        let divergence = (matched.relation == Relation::Diverge)
            .then(|| divergence(&session.segments, prompt, matched.n_segments));
        stats.reason = divergence.as_ref().map(Divergence::to_string).or(stats.reason);
        let first_message = end_of_first_message(prompt);
        // The cached ids stay the authority for what matched; what follows is the prompt's own.
        session.tokens.truncate(matched.n_tokens);
        session.tokens.extend(flatten(&prompt[matched.n_segments..]));
        session.segments.truncate(matched.n_segments);
        let all: Vec<&Segment> = session.segments.iter().chain(&prompt[matched.n_segments..]).collect();
        let borders = borders(all, true);
        let n_alike = session.sequence.states().map_or(usize::MAX, |states| states.n_alike(&borders));
        session.rewind(matched.n_tokens.min(n_alike), &mut self.arena);
        session.sequence.states_mut().into_iter().for_each(|states| states.set_borders(borders.clone()));
        let tail = if request.cold { None } else { self.begin_tail(&session, &stats) };
        let step = RecallStep::Own(Restore::to(matched.n_tokens, &session));
        Recalling {
            key: key.clone(),
            session,
            aligned,
            matched,
            divergence,
            read_before,
            first_message,
            is_fresh,
            is_cold: request.cold,
            persists: self.persists(request),
            ahead,
            stats,
            tail,
            step,
        }
    }

    /// Continues with a session as far as what was read allows; true once it is ready.
    pub(crate) fn poll_recall(&mut self, loading: &mut Recalling) -> bool {
        loop {
            let Recalling { key, session, stats, .. } = loading;
            let next = match &mut loading.step {
                RecallStep::Own(restore) => {
                    if self.poll_restore(session, restore, stats).is_none() {
                        return false;
                    }
                    if loading.is_cold {
                        loading.to_last()
                    } else {
                        // A session that goes on reads what nobody has read, but for turns that did not end.
                        let anyone = loading.is_fresh || !self.unfinished.is_empty();
                        let end = if anyone { session.tokens.len() } else { loading.read_before };
                        self.begin_known(session, end, stats).map_or(RecallStep::Tail, RecallStep::Known)
                    }
                }
                RecallStep::Known(known) => {
                    if !self.poll_known(session, known, loading.persists, stats) {
                        return false;
                    }
                    RecallStep::Tail
                }
                RecallStep::Tail => {
                    if !self.poll_tail(session, &mut loading.tail, stats) {
                        return false;
                    }
                    if loading.is_fresh && session.sequence.states().is_none() {
                        self.prefixes.reuse(session, loading.first_message, &mut self.arena);
                    }
                    match self.begin_states(session, stats) {
                        Some(begun) => RecallStep::States(begun),
                        None => loading.to_last(),
                    }
                }
                RecallStep::States(begun) => {
                    let Some((found, span)) = begun.poll() else { return false };
                    stats.took(span);
                    if let Some(states) = session.sequence.states_mut() {
                        found.into_iter().flatten().for_each(|(at, hash)| states.add_stored(at, hash));
                    }
                    loading.to_last()
                }
                RecallStep::Last(restore) => {
                    let Some(n) = self.poll_restore(session, restore, stats) else { return false };
                    if self.must_adopt(session, n) {
                        // What is windowed is needed, too: nothing of it is on disk under the new addresses.
                        RecallStep::Adopt(Restore::all_to(n, session))
                    } else {
                        RecallStep::Ready(n)
                    }
                }
                RecallStep::Adopt(restore) => {
                    let Some(n) = self.poll_restore(session, restore, stats) else { return false };
                    match self.adopt(session, key, n) {
                        Ok(()) => RecallStep::Ready(n),
                        Err(reason) => {
                            stats.reason = Some(reason);
                            RecallStep::Adopt(Restore::all_to(0, session))
                        }
                    }
                }
                RecallStep::Ready(_) => return true,
            };
            loading.step = next;
        }
    }

    /// A session that is ready, with what it cost.
    pub(crate) fn finish_recall(&mut self, loading: Recalling) -> Recalled {
        let Recalling { key, mut session, matched, read_before, is_fresh, ahead, stats, .. } = loading;
        let RecallStep::Ready(reused) = loading.step else {
            unreachable!("it was polled until it was ready")
        };
        self.unfinished.forget(&key, &mut self.arena);
        session.forget_stored(session.tokens.len());
        let kind = match matched.relation {
            Relation::Exact => MatchKind::Exact, // even where it goes back to the border of its only block
            _ if reused == 0 => MatchKind::Cold,
            _ if is_fresh => MatchKind::Prefix,
            Relation::Extend => MatchKind::Extend,
            Relation::Diverge => MatchKind::Diverge,
        };
        let bytes_read = stats.bytes_read + ahead.bytes;
        let source = match (reused, bytes_read) {
            (0, _) => CacheSource::None,
            (_, 0) => CacheSource::Memory,
            _ => CacheSource::Disk,
        };
        let adopted = session.numerics.as_ref().and_then(Numerics::origin);
        Recalled {
            session,
            kind,
            source,
            reused,
            recomputed: read_before.saturating_sub(reused),
            bytes_read,
            waited_ms: stats.waited_ms + ahead.waited_ms,
            prefetch_ms: stats.hidden_ms + ahead.ms,
            reason: stats.reason,
            divergence: loading.divergence,
            adopted,
            aligned: loading.aligned,
        }
    }

    /// Takes a session back whose turn will not begin.
    pub(crate) fn give_up(&mut self, loading: Recalling, next_use: Option<u64>) {
        let Recalling { key, mut session, step, .. } = loading;
        if let RecallStep::Known(known) = step {
            known.held.into_iter().flatten().for_each(|id| self.arena.release(id));
        }
        let n = n_tokens(&session.segments);
        session.tokens.truncate(n);
        session.rewind(n, &mut self.arena);
        session.sequence.end_turn(&mut self.arena);
        self.take_back(key.clone(), session, next_use);
        self.saved(&key);
    }

    /// A prompt, cut along with what a session holds, if one of them is raw.
    fn aligned(&self, session: &mut Session, prompt: &[Segment]) -> Option<Vec<Segment>> {
        if session.segments.is_empty() || !is_raw(prompt) && !is_raw(&session.segments) {
            return None;
        }
        let mut aligned = prompt.to_vec();
        let text = |ids: &[u32]| self.tokenizer.as_ref().map_or(String::new(), |known| known.decode(ids));
        align(&mut session.segments, &mut aligned, &text);
        Some(aligned)
    }

    /// A session that was not at rest in memory: its parent's, else one that has read nothing.
    fn find(&mut self, request: &Request, parent: Option<Session>, stats: &mut LoadStats) -> Session {
        let Some(key) = &request.parent else { return self.fresh(request) };
        if let Some(idle) = self.idle.get_mut(key) {
            stats.bytes_read += std::mem::take(&mut idle.ahead).bytes;
            return idle.session.fork(&mut self.arena);
        }
        parent.unwrap_or_else(|| self.fresh(request))
    }

    /// A session that has read nothing.
    pub(super) fn fresh(&self, request: &Request) -> Session {
        Session::new(&self.context, &request.session.tenant)
    }

    /// Makes states known that are in memory, and begins to look for others on disk; `None`: there are none to
    /// look for.
    fn begin_states(&mut self, session: &mut Session, stats: &LoadStats) -> Option<BegunStates> {
        let sequence = &session.sequence;
        let states = sequence.states()?;
        let end = sequence.len().min(session.tokens.len().saturating_sub(1));
        let blocks = (1..=end / BLOCK).map(|block| block * BLOCK);
        let borders = states.borders().iter().copied().filter(|at| *at <= end && sequence.border(*at) == *at);
        let wanted: Vec<usize> = blocks.chain(borders).filter(|at| states.hash(*at).is_none()).collect();
        // One that is known already serves as well as those before it.
        let known = states.known().map(|(at, ..)| at).filter(|at| *at <= end).max().unwrap_or(0);
        let (mut absent, mut found) = (Vec::new(), Vec::new());
        for at in wanted.into_iter().filter(|at| *at > known) {
            let hash = sequence.address(&session.tokens, at);
            match self.arena.find((hash, Part::State)) {
                Some(id) => found.push((at, hash, id)),
                None => absent.push((at, hash)),
            }
        }
        let states = session.sequence.states_mut()?;
        let best = found.iter().map(|(at, ..)| *at).max().unwrap_or(0);
        found.into_iter().for_each(|(at, hash, id)| states.add(at, hash, Some(id), false, &mut self.arena));
        absent.retain(|(at, _)| *at > best);
        if absent.is_empty() { None } else { self.begin_states_on_disk(absent, stats) }
    }

    /// Begins to look for whole blocks up to token `end`, by content; `None`: there are none to look for.
    fn begin_known(&mut self, session: &Session, end: usize, stats: &LoadStats) -> Option<Known> {
        let first = session.sequence.len() / BLOCK;
        let end_block = end.min(session.tokens.len()) / BLOCK;
        if end_block <= first {
            return None;
        }
        let hashes = session.sequence.chain(&session.tokens[..end_block * BLOCK], first);
        let global = |(hash, index): (BlockHash, usize)| (index, (hash, Part::Global));
        let wanted: Vec<Wanted> = hashes.into_iter().zip(first..).map(global).collect();
        let held: Vec<Option<BlockId>> = wanted.iter().map(|(_, key)| self.arena.find(*key)).collect();
        let absent = wanted.iter().zip(&held).filter(|(_, held)| held.is_none()).map(|(wanted, _)| *wanted);
        let reading = self.begin_reading(absent.collect(), stats);
        Some(Known { first, wanted, held, reading, read: None })
    }

    /// Continues to look for whole blocks, and appends those that it finds, in memory or on disk, until one
    /// is missing; true once that is over. Windows are left to [`Restore`].
    fn poll_known(
        &mut self,
        session: &mut Session,
        known: &mut Known,
        persists: bool,
        stats: &mut LoadStats,
    ) -> bool {
        if known.read.is_none() {
            let Some(read) = self.poll_reading(&mut known.reading, stats) else { return false };
            let mut read = read.into_iter();
            let of_block = |held: &Option<BlockId>| if held.is_some() { None } else { read.next().flatten() };
            let read: Vec<Option<ReadBlock>> = known.held.iter().map(of_block).collect();
            let asked = known.wanted.iter().take(known.n_found(&read) + 1);
            let hashes: Vec<BlockHash> = asked.map(|(_, key)| key.0).collect();
            let asked = self.begin_on_disk(&hashes, stats);
            known.read = Some(ReadKnown { blocks: read, asked });
        }
        let Some(ReadKnown { asked, .. }) = &known.read else { return false };
        let on_disk = match asked {
            None => vec![[false; 2]; known.wanted.len()],
            Some(asked) => {
                let Some((on_disk, _)) = asked.poll() else { return false };
                on_disk.concat()
            }
        };
        let read = known.read.take().map_or(Vec::new(), |read| read.blocks);
        self.append(session, known, (read, on_disk), persists, stats);
        known.held.drain(..).flatten().for_each(|id| self.arena.release(id));
        true
    }

    fn append(
        &mut self,
        session: &mut Session,
        known: &mut Known,
        (read, on_disk): (Vec<Option<ReadBlock>>, OnDisk),
        persists: bool,
        stats: &mut LoadStats,
    ) {
        let windows = self.context.layout.window().is_some();
        let has_window = |((_, key), on_disk): (&Wanted, &[bool; 2])| {
            self.arena.holds((key.0, Part::Windowed)) || on_disk[Part::Windowed as usize]
        };
        let has_window: Vec<bool> = known.wanted.iter().zip(&on_disk).map(has_window).collect();
        let first = known.first;
        let n_found = known.n_found(&read);
        let whole =
            if windows && !persists { self.whole_windows(session, first, &has_window[..n_found]) } else { 0 };
        let blocks = known.wanted.iter().zip(&mut known.held).zip(read).zip(on_disk);
        for ((((index, key), held), read), on_disk) in blocks {
            let (index, hash) = (*index, key.0);
            let window = if windows { self.arena.find((hash, Part::Windowed)) } else { None };
            let stored = self.context.layout.parts().all(|part| on_disk[part as usize]);
            // What the disk lacks must be kept in memory, or it could never be written.
            if windows && window.is_none() && !on_disk[Part::Windowed as usize] && index - first >= whole {
                break;
            }
            let Some(id) = held.take().or_else(|| self.take(*key, read, stats)) else {
                window.into_iter().for_each(|id| self.arena.release(id));
                break;
            };
            if session.sequence.len() > index * BLOCK {
                session.truncate_to_block(&mut self.arena); // of a part of this block
            }
            let mut parts: Parts = [Some(id), None];
            parts[Part::Windowed as usize] = window;
            session.sequence.push_block(hash, parts);
            if stored && session.stored_blocks == index {
                session.stored_blocks = index + 1;
            }
        }
    }

    /// The most blocks after the first `first` of a session after which a row finds all that it sees of
    /// windowed layers; `has_window`: of which blocks there that is known.
    fn whole_windows(&self, session: &Session, first: usize, has_window: &[bool]) -> usize {
        let Some(window) = self.context.layout.window() else { return 0 };
        let table = session.sequence.table();
        let has = |block: usize| match block.checked_sub(first) {
            Some(behind) => has_window[behind],
            None => table.holds(block, Part::Windowed) || block < session.stored_blocks,
        };
        let is_whole = |n: &usize| {
            let end = first + n;
            ((end * BLOCK + 1).saturating_sub(window) / BLOCK..end).all(has)
        };
        (1..=has_window.len()).rev().find(is_whole).unwrap_or(0)
    }
}

impl Known {
    /// Number of blocks, from the first on, that are in memory or were read.
    fn n_found(&self, read: &[Option<ReadBlock>]) -> usize {
        let is_found = |(held, read): &(&Option<BlockId>, &Option<ReadBlock>)| {
            held.is_some() || matches!(read, Some(Found::Whole(_)))
        };
        self.held.iter().zip(read).take_while(is_found).count()
    }
}

impl Recalling {
    /// Addresses of the blocks that it has or may find.
    pub(crate) fn hashes(&self) -> Vec<BlockHash> {
        self.session.sequence.chain(&self.session.tokens, 0)
    }

    /// At least one token is fed: its logits choose the first token of the reply.
    fn to_last(&self) -> RecallStep {
        RecallStep::Last(Restore::standing(self.session.tokens.len().saturating_sub(1), &self.session))
    }
}

/// Tokens up to the end of the last reply in a prompt: all of that was read or said in earlier turns.
fn end_of_last_reply(prompt: &[Segment]) -> usize {
    let last = prompt.iter().rposition(|s| s.kind == SegmentKind::Reply);
    last.map_or(0, |last| n_tokens(&prompt[..=last]))
}

/// The place where a prompt departs from what was cached, whose first `at` segments it begins with.
fn divergence(cached: &[Segment], prompt: &[Segment], at: usize) -> Divergence {
    let (in_text, in_ids) = match (cached.get(at), prompt.get(at)) {
        (Some(old), Some(new)) if old.kind == new.kind => {
            let differs = old.text != new.text;
            (
                if differs { first_difference(&old.text, &new.text) } else { 0 },
                common_prefix(&old.ids, &new.ids),
            )
        }
        _ => (0, 0),
    };
    let character = in_text + prompt[..at].iter().map(|s| s.text.chars().count()).sum::<usize>();
    // The cached ids stay those of what is in common.
    let token = in_ids + n_tokens(&cached[..at]);
    let excerpt = |segments: &[Segment]| {
        let text = segments.iter().flat_map(|s| s.text.chars());
        text.skip(character.saturating_sub(Divergence::BEFORE)).take(Divergence::LENGTH).collect()
    };
    Divergence { token, character, held: excerpt(cached), asked: excerpt(prompt) }
}

/// Tokens of a prompt up to the end of its first message; `None`: it has no messages.
fn end_of_first_message(prompt: &[Segment]) -> Option<usize> {
    let first = prompt.iter().position(|segment| segment.kind == SegmentKind::Message)?;
    Some(n_tokens(&prompt[..=first]))
}

#[cfg(test)]
use std::task::Poll;

#[cfg(test)]
/// Asks again until it is ready.
pub(crate) fn now<T>(mut poll: impl FnMut() -> Poll<T>) -> T {
    loop {
        if let Poll::Ready(ready) = poll() {
            return ready;
        }
        std::thread::yield_now();
    }
}

#[cfg(test)]
impl Memory {
    /// Makes a session ready for a prompt, and waits for it.
    pub(crate) fn recall(&mut self, request: &Request, prompt: &[Segment]) -> crate::Result<Recalled> {
        let mut opening = self.open_now(request)?;
        now(|| if self.awaits(request, &mut opening, false) { Poll::Pending } else { Poll::Ready(()) });
        let mut loading = self.begin_recall(request, prompt, opening, false);
        now(|| if self.poll_recall(&mut loading) { Poll::Ready(()) } else { Poll::Pending });
        Ok(self.finish_recall(loading))
    }

    /// What the session of a request has read and said, once that was waited for.
    pub(crate) fn known_now(&mut self, request: &Request) -> crate::Result<&[Segment]> {
        self.open_now(request)?;
        Ok(self.known(request))
    }

    /// Finds what a session has read, and waits for it.
    pub(crate) fn open_now(&mut self, request: &Request) -> crate::Result<Opening> {
        let mut opening = Opening::default();
        now(|| {
            self.take_forks();
            self.expect(&request.session);
            match self.poll_opening(request, &mut opening) {
                Ok(false) => Poll::Pending,
                found => Poll::Ready(found),
            }
        })?;
        Ok(opening)
    }
}
