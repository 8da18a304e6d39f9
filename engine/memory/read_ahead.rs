//! Reads what the next agents need while the present ones decode, and what one needs whose turn it is, if
//! others would wait for that. Its threads also pack small files.
//!
//! Read-ahead is for as many agents as are active, no more: each place kept for the next one is taken from
//! those that Belady would keep.

use super::Memory;
use super::io_pool::{Begun, IoPool, Priority, Wake, ms_since};
use crate::SessionKey;
use crate::kv::format::BlockBytes;
use crate::kv::layout::KvLayout;
use crate::kv::layout::Part;
use crate::kv::table::BlockKey;
use crate::store::tail::TailRef;
use crate::store::{Found, Store};
use std::sync::Arc;
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
    session: SessionKey,
    bytes: Bytes,
    /// Milliseconds that it took.
    ms: f64,
}

/// A piece that is being read.
struct UnderWay {
    session: SessionKey,
    /// Bytes of memory that are set aside for it.
    room: u64,
    /// What it gives, and the milliseconds that it takes.
    begun: Begun<(Bytes, f64)>,
}

/// Threads that read ahead, and what they were told to read.
pub(super) struct Ahead {
    under_way: Vec<UnderWay>,
    layout: Arc<KvLayout>,
    /// Last: it ends once nobody waits for what is under way.
    io_pool: IoPool<Store>,
}

/// Threads that read ahead from a disk.
const THREADS: usize = 2;

impl Ahead {
    /// Reads from `store`.
    pub(super) fn new(store: &Arc<Store>, layout: Arc<KvLayout>, wake: &Wake) -> Self {
        // Who waits for a read doesn't wait until files are packed.
        let n_threads = store.n_readers(THREADS).max(THREADS);
        let io_pool = IoPool::new("greenroom-ahead", n_threads, Priority::Low, store, wake);
        Self { under_way: Vec::new(), layout, io_pool }
    }

    /// The threads: lower priority than compute threads.
    pub(super) fn io_pool(&self) -> &IoPool<Store> {
        &self.io_pool
    }

    /// Reads a piece of a session, for which `room` bytes are set aside.
    fn fetch(&mut self, session: &SessionKey, piece: Piece, room: u64) {
        let layout = self.layout.clone();
        let begun = self.io_pool.begin(move |store: &Store| {
            let began = Instant::now();
            let bytes = match piece {
                Piece::Block(index, key) => Bytes::Block(index, key, store.read_block(key, index, &layout)),
                Piece::Tail(tail) => {
                    let found = store.read_tail(&tail, &layout);
                    Bytes::Tail(tail, found)
                }
            };
            (bytes, ms_since(began))
        });
        self.under_way.push(UnderWay { session: session.clone(), room, begun });
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
        self.under_way.iter().map(|under_way| under_way.room).sum()
    }

    /// Tells whether a piece of a session is on its way.
    fn is_reading(&self, session: &SessionKey) -> bool {
        self.under_way.iter().any(|under_way| under_way.session == *session)
    }

    /// Takes what was read since the last call.
    fn collect(&mut self) -> Vec<Fetched> {
        let mut fetched = Vec::new();
        self.under_way.retain(|UnderWay { session, begun, .. }| {
            let Some(((bytes, ms), _)) = begun.poll() else { return true };
            fetched.push(Fetched { session: session.clone(), bytes, ms });
            false
        });
        fetched
    }
}

impl Memory {
    /// Takes in what was read ahead.
    pub(super) fn collect(&mut self) {
        let Some(loader) = &mut self.loader else { return };
        for fetched in loader.ahead.collect() {
            // A session that is active by now, or has gone, has no use for it.
            let Some(idle) = self.idle.get_mut(&fetched.session) else { continue };
            let read = match fetched.bytes {
                Bytes::Block(index, key, Found::Whole((block, bytes))) => {
                    let sequence = &mut idle.session.sequence;
                    let is_known = sequence.hash_of((index, key.1)) == Some(key.0);
                    if is_known && !sequence.holds((index, key.1)) {
                        let id = self.arena.insert(key, Arc::new(block));
                        sequence.refill(index, key.1, id, &mut self.arena);
                    }
                    Ok(bytes)
                }
                Bytes::Tail(tail, found) if idle.session.absent_tail() == Some(&tail) => {
                    idle.session.put_tail(&tail, found, &mut self.arena)
                }
                Bytes::Block(.., Found::Damaged(reason) | Found::Unreadable(reason)) => Err(reason),
                // What is missing is found so again when it is needed, and said then.
                _ => Ok(0),
            };
            idle.ahead.bytes += *read.as_ref().unwrap_or(&0);
            idle.ahead.ms += fetched.ms;
            self.idle.warn(&fetched.session, read.err());
        }
    }

    /// Begins to read what the agents that are needed next lack, as many of them as are active now; makes
    /// room by evicting those that are needed later.
    pub(crate) fn look_ahead(&mut self, n_active: usize) {
        self.collect();
        self.take_hints();
        if n_active == 0 || self.loader.as_ref().is_none_or(|loader| !loader.ahead.idle()) {
            return;
        }
        for (next_use, key) in self.idle.next(n_active) {
            self.read_ahead(&key, next_use);
        }
    }

    /// Tells whether something of a session is being read ahead.
    pub(crate) fn is_being_read(&mut self, key: &SessionKey) -> bool {
        self.collect();
        self.loader.as_ref().is_some_and(|loader| loader.ahead.is_reading(key))
    }

    /// Begins to read what a session lacks.
    fn read_ahead(&mut self, key: &SessionKey, next_use: u64) {
        let Some(idle) = self.idle.get_mut(key) else { return };
        let sequence = &mut idle.session.sequence;
        let last = sequence.states().and_then(|states| states.known().last());
        let state = last.filter(|(.., id)| id.is_none()).map(|(at, ..)| (at, Part::State));
        let missing: Vec<(usize, Part)> = sequence.missing(sequence.len()).chain(state).collect();
        let mut pieces = Vec::new();
        for (at, part) in missing {
            let Some(hash) = sequence.hash_of((at, part)) else { continue };
            match self.arena.find((hash, part)) {
                Some(id) => sequence.refill(at, part, id, &mut self.arena),
                None => pieces.push((Piece::Block(at, (hash, part)), self.arena.part_bytes(part))),
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
            if let Some(loader) = &mut self.loader {
                loader.ahead.fetch(key, piece, room);
            }
        }
    }
}
