//! Reads what the next agents need while the present ones decode, and what one needs whose turn it is, if
//! others would wait for that. Its threads also pack small files.
//!
//! Read-ahead is for as many agents as are at work, no more: each place kept for the next one is taken from
//! those that Belady would keep.

use super::Memory;
use super::io_pool::{IoPool, Priority};
use super::restore::put_tail;
use crate::kv::format::BlockBytes;
use crate::kv::layout::KvLayout;
use crate::kv::layout::Part;
use crate::kv::table::BlockKey;
use crate::store::tail::TailRef;
use crate::store::{Found, Store};
use crate::text::prefix::{Segment, compare};
use crate::{Result, SessionKey};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;

/// Something of a session that is on disk.
#[derive(Clone, Debug)]
pub(super) enum Piece {
    /// A part of the block at an index.
    Block(usize, BlockKey),
    /// The rows after the blocks.
    Tail(TailRef),
}

/// Result of reading a piece.
pub(super) enum Bytes {
    Block(usize, BlockKey, Found<(BlockBytes, u64)>),
    Tail(TailRef, Found<(Vec<u8>, u64)>),
}

/// A read that is over.
pub(super) struct Fetched {
    pub(crate) session: SessionKey,
    pub(crate) bytes: Bytes,
    /// Milliseconds that it took.
    pub(crate) ms: f64,
    /// Bytes of memory that were set aside for it.
    room: u64,
}

/// Threads that read ahead, and what they were told to read.
pub(super) struct Ahead {
    io_pool: IoPool,
    layout: Arc<KvLayout>,
    done: Sender<thread::Result<Fetched>>,
    fetched: Receiver<thread::Result<Fetched>>,
    /// True once nobody takes what is still to be read.
    closing: Arc<AtomicBool>,
    /// Sessions whose pieces are on their way, one entry a piece.
    under_way: Vec<SessionKey>,
    room: u64,
}

impl Ahead {
    /// Threads that read from `store`.
    ///
    /// # Errors
    /// They can't be started.
    pub(super) fn new(store: &Arc<Store>, layout: Arc<KvLayout>) -> Result<Self> {
        // Who waits for a read doesn't wait until files are packed.
        let io_pool = IoPool::new("greenroom-ahead", 2, Priority::Low, store)?;
        let (done, fetched) = channel();
        let (closing, under_way) = (Arc::default(), Vec::new());
        Ok(Self { io_pool, layout, done, fetched, closing, under_way, room: 0 })
    }

    /// Reads a piece of a session, for which `room` bytes are set aside.
    pub(crate) fn fetch(&mut self, session: &SessionKey, piece: Piece, room: u64) {
        self.under_way.push(session.clone());
        self.room += room;
        let (session, layout, closing) = (session.clone(), self.layout.clone(), self.closing.clone());
        let task = move |store: &Store| {
            if closing.load(Ordering::Relaxed) {
                return None;
            }
            let began = Instant::now();
            let bytes = match piece {
                Piece::Block(index, key) => Bytes::Block(index, key, store.read_block(key, index, &layout)),
                Piece::Tail(tail) => {
                    let found = store.read_tail(&tail, &layout);
                    Bytes::Tail(tail, found)
                }
            };
            Some(Fetched { session, bytes, ms: began.elapsed().as_secs_f64() * 1e3, room })
        };
        let done = self.done.clone();
        self.io_pool.push(task, move |fetched| {
            if let Some(fetched) = fetched.map_or_else(|panic| Some(Err(panic)), |fetched| fetched.map(Ok)) {
                let _ = done.send(fetched);
            }
        });
    }

    /// Packs small files if there are many.
    pub(crate) fn compact(&self) {
        let task = |store: &Store| {
            if let Err(e) = store.compact() {
                tracing::warn!("can't pack small files: {e}");
            }
        };
        self.io_pool.push(task, drop);
    }

    /// Tells whether nothing is on its way.
    pub(crate) fn idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Bytes set aside for what is on its way.
    pub(crate) fn room(&self) -> u64 {
        self.room
    }

    /// Takes what was read since the last call; waits for the rest of `session`'s pieces.
    pub(crate) fn collect(&mut self, session: Option<&SessionKey>) -> Vec<Fetched> {
        let mut out = Vec::new();
        loop {
            let wait = session.is_some_and(|session| self.under_way.contains(session));
            let next = if wait { self.fetched.recv().ok() } else { self.fetched.try_recv().ok() };
            let Some(fetched) = next else { break };
            let fetched = fetched.unwrap_or_else(|panic| resume_unwind(panic));
            if let Some(at) = self.under_way.iter().position(|session| *session == fetched.session) {
                self.under_way.swap_remove(at);
            }
            self.room -= fetched.room;
            out.push(fetched);
        }
        out
    }
}

impl Drop for Ahead {
    /// Leaves what is still to be read; the crew waits for the read that it is in, at most.
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Relaxed);
    }
}

impl Memory {
    /// Takes in what was read ahead.
    pub(super) fn collect(&mut self, session: Option<&SessionKey>) {
        let Some(ahead) = &mut self.ahead else { return };
        for fetched in ahead.collect(session) {
            // Whoever is at work by now, or has gone, has no use for it.
            let Some(idle) = self.idle.get_mut(&fetched.session) else { continue };
            let bytes = match fetched.bytes {
                Bytes::Block(index, key, Found::Whole((block, bytes))) => {
                    let wanted = idle.session.sequence.table().hash(index) == Some(key.0)
                        && !idle.session.sequence.table().holds(index, key.1);
                    if wanted {
                        let id = self.arena.insert(key, Arc::new(block));
                        idle.session.sequence.refill(index, key.1, id);
                    }
                    bytes
                }
                Bytes::Tail(tail, found) if idle.session.absent_tail() == Some(&tail) => {
                    put_tail(&mut idle.session, &tail, found, &mut self.arena).unwrap_or_else(|reason| {
                        self.load_warnings.insert(fetched.session.clone(), reason);
                        0
                    })
                }
                Bytes::Block(.., Found::Damaged(reason) | Found::Unreadable(reason)) => {
                    self.load_warnings.insert(fetched.session.clone(), reason);
                    0
                }
                // What is missing is found so again when it is needed, and said then.
                _ => 0,
            };
            idle.ahead.bytes += bytes;
            idle.ahead.ms += fetched.ms;
        }
    }

    /// Begins to read what the agents that are needed next lack, as many of them as are at work now; makes
    /// room by evicting whoever is needed later.
    pub(crate) fn look_ahead(&mut self, n_active: usize) {
        self.collect(None);
        if n_active == 0 || self.ahead.as_ref().is_none_or(|ahead| !ahead.idle()) {
            return;
        }
        for (next_use, key) in self.idle.next(n_active) {
            self.read_ahead(&key, next_use, usize::MAX);
        }
    }

    /// Begins to read what a turn with this prompt needs of its session, whose turn it is now.
    pub(crate) fn fetch(&mut self, key: &SessionKey, prompt: &[Segment]) {
        if let Some(idle) = self.idle.get(key) {
            let matched = compare(&idle.session.segments, prompt);
            self.read_ahead(key, 0, matched.n_tokens);
        }
    }

    /// Tells whether something of a session is being read ahead.
    pub(crate) fn is_being_read(&mut self, key: &SessionKey) -> bool {
        self.collect(None);
        self.ahead.as_ref().is_some_and(|ahead| ahead.under_way.contains(key))
    }

    /// Begins to read what a session lacks of its first `n` tokens.
    fn read_ahead(&mut self, key: &SessionKey, next_use: u64, n: usize) {
        let Some(idle) = self.idle.get_mut(key) else { return };
        let sequence = &mut idle.session.sequence;
        let missing: Vec<(usize, Part)> = sequence.missing(n.min(sequence.len())).collect();
        let mut pieces = Vec::new();
        for (block, part) in missing {
            let Some(hash) = sequence.table().hash(block) else { continue };
            match self.arena.find((hash, part)) {
                Some(id) => sequence.refill(block, part, id),
                None => pieces.push((Piece::Block(block, (hash, part)), self.arena.part_bytes(part))),
            }
        }
        if let Some(tail) = idle.session.absent_tail() {
            let room = tail.rows * self.context.layout.row_bytes();
            pieces.push((Piece::Tail(tail.clone()), room as u64));
        }
        for (piece, room) in pieces {
            if !self.make_room(room, Some(next_use)) {
                return;
            }
            if let Some(ahead) = &mut self.ahead {
                ahead.fetch(key, piece, room);
            }
        }
    }
}
