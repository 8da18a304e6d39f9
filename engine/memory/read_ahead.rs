//! Reads what the next agents need while the present ones decode, on a thread of its own; between reads it packs small files.
//!
//! Read-ahead (`ahead.rs`) is for as many agents as are at work, no more: each place kept for the next one is taken from those
//! that Belady would keep.

use crate::kv::format::BlockBytes;
use crate::kv::layout::KvLayout;
use crate::kv::table::BlockKey;
use crate::store::tail::TailRef;
use crate::store::{Found, Store};
use crate::{Error, ErrorKind, Result, SessionKey};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

/// Something of a session that is on disk.
#[derive(Clone, Debug)]
pub(crate) enum Piece {
    /// A part of the block at an index.
    Block(usize, BlockKey),
    /// The rows after the blocks.
    Tail(TailRef),
}

/// What was read.
pub(crate) enum Bytes {
    Block(usize, BlockKey, Found<(BlockBytes, u64)>),
    Tail(TailRef, Found<(Vec<u8>, u64)>),
}

/// A read that is over.
pub(crate) struct Fetched {
    pub(crate) session: SessionKey,
    pub(crate) bytes: Bytes,
    /// Milliseconds that it took.
    pub(crate) ms: f64,
    /// Bytes of memory that were set aside for it.
    room: u64,
}

enum Job {
    Fetch { session: SessionKey, piece: Piece, room: u64 },
    Compact,
}

/// The thread, and what it was told to read.
pub(crate) struct Ahead {
    jobs: Option<Sender<Job>>,
    fetched: Receiver<Fetched>,
    thread: Option<JoinHandle<()>>,
    /// Whose pieces are on their way, one entry each.
    under_way: Vec<SessionKey>,
    room: u64,
}

impl Ahead {
    /// A thread that reads from `store`.
    ///
    /// # Errors
    /// It can't be started.
    pub(crate) fn new(store: Arc<Store>, layout: Arc<KvLayout>) -> Result<Self> {
        let (jobs, todo) = channel();
        let (done, fetched) = channel();
        let body = move || {
            for job in todo {
                match job {
                    Job::Fetch { session, piece, room } => {
                        let began = Instant::now();
                        let bytes = match piece {
                            Piece::Block(index, key) => {
                                Bytes::Block(index, key, store.read_block(key, index, &layout))
                            }
                            Piece::Tail(tail) => {
                                let found = store.read_tail(&tail, &layout);
                                Bytes::Tail(tail, found)
                            }
                        };
                        let ms = began.elapsed().as_secs_f64() * 1e3;
                        if done.send(Fetched { session, bytes, ms, room }).is_err() {
                            return; // the engine has gone
                        }
                    }
                    Job::Compact => {
                        if let Err(e) = store.compact() {
                            tracing::warn!("small files could not be packed: {e}");
                        }
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("greenroom-ahead".to_owned()).spawn(body);
        let thread = thread.map_err(|e| {
            Error::new(ErrorKind::Closed, format!("a thread to read ahead can't be started: {e}"))
        })?;
        Ok(Self { jobs: Some(jobs), fetched, thread: Some(thread), under_way: Vec::new(), room: 0 })
    }

    /// Reads a piece of a session, for which `room` bytes are set aside.
    pub(crate) fn fetch(&mut self, session: &SessionKey, piece: Piece, room: u64) {
        self.under_way.push(session.clone());
        self.room += room;
        self.tell(Job::Fetch { session: session.clone(), piece, room });
    }

    /// Packs small files if there are many.
    pub(crate) fn compact(&self) {
        self.tell(Job::Compact);
    }

    fn tell(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(job); // the thread ends after this, never before
        }
    }

    /// Whether nothing is on its way.
    pub(crate) fn idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Bytes set aside for what is on its way.
    pub(crate) fn room(&self) -> u64 {
        self.room
    }

    /// What was read since the last call; waits for the rest of `session`'s pieces.
    pub(crate) fn collect(&mut self, session: Option<&SessionKey>) -> Vec<Fetched> {
        let mut out = Vec::new();
        loop {
            let wait = session.is_some_and(|session| self.under_way.contains(session));
            let next = if wait { self.fetched.recv().ok() } else { self.fetched.try_recv().ok() };
            let Some(fetched) = next else { break };
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
    /// Waits until the thread has ended (the read that it is in, at most), so that the cache folder is free again.
    fn drop(&mut self) {
        self.jobs = None;
        self.fetched = channel().1; // nobody takes what is still to be read
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
