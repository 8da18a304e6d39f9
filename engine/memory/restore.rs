//! Bringing a session's keys and values back from disk: sealed blocks by their content, and the rows of its
//! open block.

use super::Memory;
use super::arena::Arena;
use super::io_pool::Begun;
use super::sequence::Sequence;
use super::session::Session;
use crate::Result;
use crate::kv::format::BlockBytes;
use crate::kv::layout::{BLOCK, Part};
use crate::kv::table::{BlockHash, BlockId, BlockKey};
use crate::store::tail::TailRef;
use crate::store::{Found, Store};
use std::sync::Arc;
use std::time::Instant;

/// Cost of a search for a session's memory, and the reason why something was not found.
#[derive(Default)]
pub(super) struct LoadStats {
    pub(super) bytes_read: u64,
    pub(super) waited_ms: f64,
    pub(super) reason: Option<String>,
}

/// A part of the block at an index.
pub(super) type Wanted = (usize, BlockKey);

/// A block from disk and the bytes that it took there.
pub(super) type ReadBlock = Found<(BlockBytes, u64)>;

/// Rows of an open block that are being read.
pub(super) type BegunTail = (TailRef, Begun<Found<(Vec<u8>, u64)>>);

/// Blocks that a reader looks up one after another, beside other readers: where a look is a request over the
/// net, all of them in turn would take longer than reading the blocks.
const SPAN: usize = 4;

impl Memory {
    /// Takes a session back to at most `n` tokens; what it needs for that comes from memory or disk. Returns
    /// how many are left.
    pub(super) fn restore(&mut self, session: &mut Session, n: usize, stats: &mut LoadStats) -> usize {
        self.restore_parts(session, n, |sequence, n| sequence.missing(n).collect(), stats)
    }

    /// [`Memory::restore`], with all that there is of the windowed layers.
    pub(super) fn restore_all(&mut self, session: &mut Session, n: usize, stats: &mut LoadStats) -> usize {
        self.restore_parts(session, n, |sequence, n| sequence.absent(n).collect(), stats)
    }

    /// Brings a part of a block back, if it is anywhere.
    pub(super) fn refill(&mut self, session: &mut Session, block: usize, part: Part, stats: &mut LoadStats) {
        let Some(hash) = session.sequence.table().hash(block) else { return };
        let wanted = [(block, (hash, part))];
        let read = self.read_blocks(&wanted, stats).pop().flatten();
        if let Some(id) = self.take((hash, part), read, stats) {
            session.sequence.refill(block, part, id);
        }
    }

    fn restore_parts(
        &mut self,
        session: &mut Session,
        n: usize,
        needed: fn(&Sequence, usize) -> Vec<(usize, Part)>,
        stats: &mut LoadStats,
    ) -> usize {
        let mut n = session.sequence.border(n);
        loop {
            let hash = |(block, part)| Some((block, (session.sequence.table().hash(block)?, part)));
            let needed = needed(&session.sequence, n).into_iter();
            let wanted: Vec<Wanted> = needed.filter_map(hash).collect();
            let read = self.read_blocks(&wanted, stats);
            let mut hole = None;
            for ((block, key), read) in wanted.into_iter().zip(read) {
                match self.take(key, read, stats) {
                    Some(id) => session.sequence.refill(block, key.1, id),
                    None => hole = hole.or(Some((block, key.1))),
                }
            }
            n = match hole {
                None => return session.sequence.truncate(n, &mut self.arena),
                Some((block, Part::Global)) => {
                    let missing = "a block of the cache is missing; the rest is computed again";
                    stats.reason.get_or_insert(missing.to_owned());
                    block * BLOCK
                }
                Some((_, Part::Windowed)) => n.saturating_sub(1) / BLOCK * BLOCK,
            };
            session.rewind(n, &mut self.arena);
        }
    }

    /// Begins to read the rows of the open block, if they are on disk alone: beside the blocks, which come
    /// first in memory.
    pub(super) fn begin_tail(&self, session: &Session) -> Option<BegunTail> {
        let (readers, tail) = (self.readers.as_ref()?, session.absent_tail()?.clone());
        let (wanted, layout) = (tail.clone(), self.context.layout.clone());
        Some((tail, readers.begin(move |store| store.read_tail(&wanted, &layout))))
    }

    /// Reads the rows of the open block, if they are on disk alone.
    pub(super) fn restore_tail(&mut self, session: &mut Session, stats: &mut LoadStats) {
        let tail = self.begin_tail(session);
        self.restore_begun_tail(session, tail, stats);
    }

    /// The same, with what was begun to be read; the session may have gone back since, so that its rows are
    /// others.
    pub(super) fn restore_begun_tail(
        &mut self,
        session: &mut Session,
        begun: Option<BegunTail>,
        stats: &mut LoadStats,
    ) {
        let Some(wanted) = session.absent_tail().cloned() else { return };
        let begun = begun.filter(|(tail, _)| *tail == wanted).or_else(|| self.begin_tail(session));
        let Some((tail, begun)) = begun else { return };
        let began = Instant::now();
        let found = begun.wait();
        stats.waited_ms += ms_since(began);
        match put_tail(session, &tail, found, &mut self.arena) {
            Ok(bytes) => stats.bytes_read += bytes,
            Err(reason) => stats.reason = Some(reason),
        }
    }

    /// Tells which parts of blocks are on disk.
    pub(super) fn on_disk(&self, blocks: Vec<BlockHash>) -> Vec<[bool; 2]> {
        let Some(readers) = self.readers.as_ref() else { return vec![[false; 2]; blocks.len()] };
        let parts: Vec<Part> = self.context.layout.parts().collect();
        let on_disk = move |store: &Store, hash| {
            Part::ALL.map(|part| parts.contains(&part) && store.has_block((hash, part)))
        };
        let task = |span: &[BlockHash]| {
            let (span, on_disk) = (span.to_vec(), on_disk.clone());
            move |store: &Store| -> Vec<_> { span.into_iter().map(|hash| on_disk(store, hash)).collect() }
        };
        readers.all(blocks.chunks(SPAN).map(task)).concat()
    }

    /// The number of parts, from the first on, that are in memory or on disk.
    fn n_there(&self, wanted: &[Wanted]) -> usize {
        let held = |(_, key): &Wanted| self.arena.holds(*key);
        let Some(readers) = self.readers.as_ref().filter(|_| !wanted.iter().all(held)) else {
            return wanted.iter().take_while(|wanted| held(wanted)).count();
        };
        let there: Vec<(BlockKey, bool)> = wanted.iter().map(|wanted| (wanted.1, held(wanted))).collect();
        let task = |span: &[(BlockKey, bool)]| {
            let span = span.to_vec();
            move |store: &Store| span.iter().take_while(|(key, held)| *held || store.has_block(*key)).count()
        };
        let spans = readers.all(there.chunks(SPAN).map(task));
        let whole = spans.iter().take_while(|n| **n == SPAN).count();
        whole * SPAN + spans.get(whole).unwrap_or(&0)
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

    /// Reads from disk what is not in memory, several blocks at a time, after making room for it; nothing is
    /// read after the first one that is missing in both places.
    pub(super) fn read_blocks(&mut self, wanted: &[Wanted], stats: &mut LoadStats) -> Vec<Option<ReadBlock>> {
        let held = |(_, key): &Wanted| self.arena.holds(*key);
        let n = self.n_there(wanted);
        let absent = |wanted: &&Wanted| !held(wanted);
        let room = wanted[..n].iter().filter(absent).map(|(_, key)| self.arena.part_bytes(key.1)).sum();
        self.make_room(room, None);
        let began = Instant::now();
        let absent: Vec<usize> = (0..n).filter(|i| !self.arena.holds(wanted[*i].1)).collect();
        let mut read: Vec<Option<ReadBlock>> = wanted.iter().map(|_| None).collect();
        if let Some(readers) = &self.readers {
            let task = |i: &usize| {
                let ((index, key), layout) = (wanted[*i], self.context.layout.clone());
                move |store: &Store| store.read_block(key, index, &layout)
            };
            let found = readers.all(absent.iter().map(task));
            absent.into_iter().zip(found).for_each(|(i, found)| read[i] = Some(found));
        }
        stats.waited_ms += ms_since(began);
        read
    }
}

/// Puts rows from disk after a session's blocks; the error says why they can't be.
pub(super) fn put_tail(
    session: &mut Session,
    tail: &TailRef,
    found: Found<(Vec<u8>, u64)>,
    arena: &mut Arena,
) -> Result<u64, String> {
    let reason = match found {
        Found::Whole((rows, bytes)) => {
            session.sequence.push_rows(arena.insert_rows(&rows), tail.rows);
            return Ok(bytes);
        }
        Found::Damaged(reason) | Found::Unreadable(reason) => reason,
        Found::Missing => "the tail of the cache is missing; it is computed again".to_owned(),
    };
    Err(reason)
}

pub(super) fn ms_since(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}
