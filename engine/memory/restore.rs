//! Bringing a session's keys and values back from disk: sealed blocks by their content, and the rows of its
//! open block. Whatever is read is begun here and polled until it is there; nothing waits.

use super::Memory;
use super::io_pool::{Begun, TaskTime};
use super::loader::Loader;
use super::sequence::Sequence;
use super::session::Session;
use crate::kv::format::BlockBytes;
use crate::kv::layout::Part;
use crate::kv::table::{BlockHash, BlockId, BlockKey};
use crate::store::tail::TailRef;
use crate::store::{Found, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Cost of a search for a session's memory, and the reason why something was not found.
#[derive(Default)]
pub(super) struct LoadStats {
    /// True if it is read while others are active.
    pub(super) is_beside: bool,
    pub(super) bytes_read: u64,
    /// Milliseconds that reading took while no turn was active, and while others were.
    pub(super) waited_ms: f64,
    pub(super) hidden_ms: f64,
    pub(super) reason: Option<String>,
    /// End of the latest time that was counted.
    pub(super) counted_to: Option<Instant>,
}

impl LoadStats {
    /// Counts the time of a task; what ran beside it counts once.
    pub(super) fn took(&mut self, span: TaskTime) {
        let began = self.counted_to.map_or(span.began, |counted_to| counted_to.max(span.began));
        let ms = span.ended.saturating_duration_since(began).as_secs_f64() * 1e3;
        *(if self.is_beside { &mut self.hidden_ms } else { &mut self.waited_ms }) += ms;
        self.counted_to = Some(began.max(span.ended));
    }
}

/// A part of the block at an index, or the state at a position.
pub(super) type Wanted = (usize, BlockKey);

/// A block from disk and the bytes that it took there.
pub(super) type ReadBlock = Found<(BlockBytes, u64)>;

/// Rows of an open block that are being read.
pub(super) type BegunTail = (TailRef, Begun<Found<(Vec<u8>, u64)>>);

/// Which of some states are on disk, by position.
pub(super) type BegunStates = Begun<Vec<Vec<(usize, BlockHash)>>>;

/// Parts of blocks that are being read, none of which was in memory.
pub(super) struct Reading {
    wanted: Vec<Wanted>,
    step: ReadStep,
}

enum ReadStep {
    /// There is no disk.
    Nowhere,
    /// The disk is asked for the first one that it lacks: nothing after it is read.
    Counting(Begun<Vec<usize>>),
    Blocks(Begun<Vec<ReadBlock>>, #[expect(dead_code, reason = "it is held")] Reserved),
}

/// Bytes that are on their way from disk, as a part of the budget until they are dropped.
pub(super) struct Reserved(Arc<AtomicU64>, u64);

impl Reserved {
    fn new(total: &Arc<AtomicU64>, bytes: u64) -> Self {
        total.fetch_add(bytes, Ordering::Relaxed);
        Self(total.clone(), bytes)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// A session on its way to its first `n` tokens, or fewer where something is missing.
pub(super) struct Restore {
    n: usize,
    needed: fn(&Sequence, usize) -> Vec<(usize, Part)>,
    /// True if the sequence goes on from there: its recurrent layers need a state.
    stands: bool,
    reading: Option<Reading>,
}

impl Restore {
    /// To at most `n` tokens, with what a row there attends to.
    pub(super) fn to(n: usize, session: &Session) -> Self {
        let needed = |sequence: &Sequence, n: usize| sequence.missing(n).collect();
        Self { n: session.sequence.border(n), needed, stands: false, reading: None }
    }

    /// To the last place at or before `n` from where the sequence can go on.
    pub(super) fn standing(n: usize, session: &Session) -> Self {
        let needed = |sequence: &Sequence, n: usize| sequence.needed(n).collect();
        Self { n: session.sequence.place(n), needed, stands: true, reading: None }
    }

    /// The same, with all that there is of the windowed layers.
    pub(super) fn all_to(n: usize, session: &Session) -> Self {
        let needed = |sequence: &Sequence, n: usize| sequence.absent(n).collect();
        Self { needed, ..Self::standing(n, session) }
    }
}

/// Blocks that a reader looks up one after another, beside other readers: where a look is a request over the
/// net, all of them in turn would take longer than reading the blocks.
const SPAN: usize = 4;

impl Memory {
    /// Continues to take a session back to so many tokens; returns how many are left once it is there.
    pub(super) fn poll_restore(
        &mut self,
        session: &mut Session,
        restore: &mut Restore,
        stats: &mut LoadStats,
    ) -> Option<usize> {
        loop {
            let Some(reading) = &mut restore.reading else {
                let needed = (restore.needed)(&session.sequence, restore.n);
                let absent = self.refill_held(session, needed);
                if absent.is_empty() {
                    return Some(self.restored(session, restore));
                }
                restore.reading = Some(self.begin_reading(absent, stats));
                continue;
            };
            let read = self.poll_reading(reading, stats)?;
            let wanted = restore.reading.take().map_or(Vec::new(), |reading| reading.wanted);
            let hole = self.refill(session, wanted.into_iter().zip(read), stats);
            let Some((at, (_, part))) = hole else { return Some(self.restored(session, restore)) };
            let missing = match part {
                Part::Global => Some("a block of the cache is missing; the rest is computed again"),
                Part::State => {
                    Some("a state of the cache is missing; what followed an earlier one is computed again")
                }
                Part::Windowed => None,
            };
            missing.into_iter().for_each(|missing| {
                stats.reason.get_or_insert(missing.to_owned());
            });
            restore.n = session.sequence.without((at, part), restore.n);
            if let (Part::State, Some(states)) = (part, session.sequence.states_mut()) {
                states.forget(at, &mut self.arena);
            }
            restore.n = if restore.stands { session.sequence.place(restore.n) } else { restore.n };
            session.rewind(restore.n, &mut self.arena);
        }
    }

    /// What was needed is there, or was given up.
    fn restored(&mut self, session: &mut Session, restore: &Restore) -> usize {
        if restore.stands {
            return session.sequence.truncate(restore.n, &mut self.arena);
        }
        let kept = session.sequence.whole(restore.n);
        session.sequence.rewind(kept, &mut self.arena);
        kept
    }

    /// Gives a session those parts of its blocks that are in memory; returns the others.
    pub(super) fn refill_held(&mut self, session: &mut Session, parts: Vec<(usize, Part)>) -> Vec<Wanted> {
        let mut absent = Vec::new();
        for (at, part) in parts {
            let Some(hash) = session.sequence.hash_of((at, part)) else { continue };
            match self.arena.find((hash, part)) {
                Some(id) => session.sequence.refill(at, part, id, &mut self.arena),
                None => absent.push((at, (hash, part))),
            }
        }
        absent
    }

    /// Gives a session parts that were read; returns the first one that was not.
    pub(super) fn refill(
        &mut self,
        session: &mut Session,
        read: impl Iterator<Item = (Wanted, Option<ReadBlock>)>,
        stats: &mut LoadStats,
    ) -> Option<Wanted> {
        let mut hole = None;
        for ((at, key), read) in read {
            match self.take(key, read, stats) {
                Some(id) => session.sequence.refill(at, key.1, id, &mut self.arena),
                None => hole = hole.or(Some((at, key))),
            }
        }
        hole
    }

    /// Begins to read the rows of the open block, if they are on disk alone.
    pub(super) fn begin_tail(&self, session: &Session, stats: &LoadStats) -> Option<BegunTail> {
        let (loader, tail) = (self.loader.as_ref()?, session.absent_tail()?.clone());
        let (wanted, layout) = (tail.clone(), self.context.layout.clone());
        let read = move |store: &Store| store.read_tail(&wanted, &layout);
        Some((tail, loader.pool(stats.is_beside).begin(read)))
    }

    /// Continues to give a session the rows of its open block; `begun` were begun to be read before, and the
    /// session may have gone back since, so that its rows are others. Returns true once it has them, or they
    /// can't be had.
    pub(super) fn poll_tail(
        &mut self,
        session: &mut Session,
        begun: &mut Option<BegunTail>,
        stats: &mut LoadStats,
    ) -> bool {
        let Some(wanted) = session.absent_tail().cloned() else { return true };
        if begun.as_ref().is_none_or(|(tail, _)| *tail != wanted) {
            *begun = self.begin_tail(session, stats);
        }
        let Some((tail, reading)) = begun else { return true };
        let Some((found, span)) = reading.poll() else { return false };
        stats.took(span);
        match session.put_tail(tail, found, &mut self.arena) {
            Ok(bytes) => stats.bytes_read += bytes,
            Err(reason) => stats.reason = Some(reason),
        }
        *begun = None;
        true
    }

    /// Asks which parts of blocks are on disk; `None`: there is no disk.
    pub(super) fn begin_on_disk(
        &self,
        blocks: &[BlockHash],
        stats: &LoadStats,
    ) -> Option<Begun<Vec<OnDisk>>> {
        let parts: Vec<Part> = self.context.layout.parts().collect();
        let on_disk = move |store: &Store, hash| {
            Part::OF_BLOCKS.map(|part| parts.contains(&part) && store.has_block((hash, part)))
        };
        let task = |span: &[BlockHash]| {
            let (span, on_disk) = (span.to_vec(), on_disk.clone());
            move |store: &Store| -> OnDisk { span.into_iter().map(|hash| on_disk(store, hash)).collect() }
        };
        let pool = self.loader.as_ref()?.pool(stats.is_beside);
        Some(pool.begin_all(blocks.chunks(SPAN).map(task).collect()))
    }

    /// Begins to read parts of blocks, none of which is in memory, up to the first one that the disk lacks.
    pub(super) fn begin_reading(&self, wanted: Vec<Wanted>, stats: &LoadStats) -> Reading {
        let task = |span: &[Wanted]| {
            let span = span.to_vec();
            move |store: &Store| span.iter().take_while(|(_, key)| store.has_block(*key)).count()
        };
        let step = match &self.loader {
            None => ReadStep::Nowhere,
            Some(loader) => {
                let spans = wanted.chunks(SPAN).map(task).collect();
                ReadStep::Counting(loader.pool(stats.is_beside).begin_all(spans))
            }
        };
        Reading { wanted, step }
    }

    /// Begins to read parts of blocks, whichever of them there are.
    pub(super) fn begin_reading_each(&mut self, wanted: Vec<Wanted>, stats: &LoadStats) -> Reading {
        let step = self.begin_blocks(&wanted, stats);
        Reading { wanted, step }
    }

    fn begin_blocks(&mut self, wanted: &[Wanted], stats: &LoadStats) -> ReadStep {
        let room = wanted.iter().map(|(_, key)| self.arena.part_bytes(key.1)).sum();
        self.make_room(room, None);
        let layout = self.context.layout.clone();
        let task = |wanted: &Wanted| {
            let ((index, key), layout) = (*wanted, layout.clone());
            move |store: &Store| store.read_block(key, index, &layout)
        };
        let pool =
            |loader: &Loader| loader.pool(stats.is_beside).begin_all(wanted.iter().map(task).collect());
        let reserved = Reserved::new(&self.being_read, room);
        self.loader.as_ref().map_or(ReadStep::Nowhere, |loader| ReadStep::Blocks(pool(loader), reserved))
    }

    /// Continues to read, after making room; returns what was read of each part once all of it is there.
    pub(super) fn poll_reading(
        &mut self,
        reading: &mut Reading,
        stats: &mut LoadStats,
    ) -> Option<Vec<Option<ReadBlock>>> {
        let mut read: Vec<Option<ReadBlock>> = loop {
            match &reading.step {
                ReadStep::Nowhere => break Vec::new(),
                ReadStep::Counting(begun) => {
                    let (spans, span) = begun.poll()?;
                    stats.took(span);
                    let whole = spans.iter().take_while(|n| **n == SPAN).count();
                    let n = whole * SPAN + spans.get(whole).unwrap_or(&0);
                    reading.step = self.begin_blocks(&reading.wanted[..n], stats);
                }
                ReadStep::Blocks(begun, _) => {
                    let (found, span) = begun.poll()?;
                    stats.took(span);
                    break found.into_iter().map(Some).collect();
                }
            }
        };
        read.resize_with(reading.wanted.len(), || None);
        Some(read)
    }

    /// A reference to a part of a block: the one in memory, or what was read.
    pub(super) fn take(
        &mut self,
        key: BlockKey,
        read: Option<ReadBlock>,
        stats: &mut LoadStats,
    ) -> Option<BlockId> {
        match (self.arena.find(key), read) {
            (Some(id), _) => Some(id),
            (None, Some(Found::Whole((block, bytes)))) => {
                stats.bytes_read += bytes;
                Some(self.arena.insert(key, Arc::new(block)))
            }
            (None, Some(Found::Damaged(reason) | Found::Unreadable(reason))) => {
                stats.reason = Some(reason);
                None
            }
            (None, _) => None,
        }
    }
}

impl Memory {
    /// Asks which of these states are on disk; `None`: there is no disk.
    pub(super) fn begin_states_on_disk(
        &self,
        states: Vec<(usize, BlockHash)>,
        stats: &LoadStats,
    ) -> Option<BegunStates> {
        let task = |span: &[(usize, BlockHash)]| {
            let span = span.to_vec();
            move |store: &Store| {
                span.into_iter().filter(|(_, hash)| store.has_block((*hash, Part::State))).collect()
            }
        };
        let pool = self.loader.as_ref()?.pool(stats.is_beside);
        Some(pool.begin_all(states.chunks(SPAN).map(task).collect()))
    }
}

/// Of some blocks, which of their parts are on disk.
pub(super) type OnDisk = Vec<[bool; 2]>;

impl Reading {
    /// The parts that were asked for.
    pub(super) fn wanted(&self) -> &[Wanted] {
        &self.wanted
    }
}
