//! Writes under way: handed over by the engine's thread, done by a thread of their own, answered to the
//! engine's.
//!
//! One thread writes for all sessions, in the order in which things were handed over: so blocks are on disk
//! before the manifest that names them, and a session's later save comes after its earlier one. What waits
//! counts as memory; who has no room waits for it.

use super::Memory;
pub(crate) use super::export::Stored;
use super::io_pool::{IoPool, Priority, Wake};
use crate::kv::table::BlockId;
use crate::store::manifest::Journal;
use crate::store::{Removed, Store};
use crate::{Result, SessionKey};
use std::collections::{HashMap, VecDeque};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// Something that was to be written for a turn, and what came of it.
pub(crate) struct Answer {
    pub(crate) session: SessionKey,
    pub(crate) turn: u64,
    pub(crate) written: Written,
    /// References to blocks that were held for it.
    held: Vec<BlockId>,
}

/// The result of something that was to be written.
pub(crate) enum Written {
    /// Blocks of an active session.
    Blocks(Stored),
    /// All of a session whose turn has ended, but the manifest.
    Session(Stored),
    /// A manifest: its bytes, and what it holds by now.
    Manifest(Result<u64>, Option<Journal>),
    /// The files of a session are gone, or could not be removed.
    Removed(Result<Removed>),
    /// The rows that a session kept only to go back are gone, or could not be removed.
    RowsDropped(Result<Removed>),
}

/// The thread that writes, and what it was told to write.
pub(super) struct Saver {
    io_pool: IoPool<Store>,
    done: Sender<thread::Result<Written>>,
    answers: Receiver<thread::Result<Written>>,
    /// Writes without an answer yet, in order.
    under_way: VecDeque<UnderWay>,
    /// Answers that came while somebody waited for one.
    early: VecDeque<Answer>,
    /// Contents of the manifests of sessions that this engine saved.
    journals: HashMap<SessionKey, Journal>,
}

struct UnderWay {
    session: SessionKey,
    turn: u64,
    cost: Cost,
    /// True for a manifest: a turn that reads it must wait.
    is_manifest: bool,
}

/// Memory that something takes until it is written.
#[derive(Default)]
pub(super) struct Cost {
    pub(super) bytes: u64,
    /// References to blocks.
    pub(super) held: Vec<BlockId>,
}

impl Saver {
    /// Writes to `store`.
    pub(super) fn new(store: &Arc<Store>, wake: &Wake) -> Self {
        let io_pool = IoPool::new("greenroom-writer", 1, Priority::Low, store, wake);
        let (done, answers) = channel();
        let (under_way, early, journals) = Default::default();
        Self { io_pool, done, answers, under_way, early, journals }
    }

    /// Takes note of what a session's manifest holds.
    pub(super) fn know(&mut self, session: &SessionKey, journal: Journal) {
        self.journals.insert(session.clone(), journal);
    }

    /// Takes what a session's manifest holds, if that is known.
    pub(super) fn take_journal(&mut self, session: &SessionKey) -> Option<Journal> {
        self.journals.remove(session)
    }

    /// Hands over what a session wants to have written, for a turn.
    pub(super) fn push(
        &mut self,
        session: &SessionKey,
        turn: u64,
        cost: Cost,
        write: impl FnOnce(&Store) -> Written + Send + 'static,
    ) {
        self.enqueue(UnderWay { session: session.clone(), turn, cost, is_manifest: false }, write);
    }

    /// Hands over a manifest, or a wait for those before it.
    pub(super) fn push_manifest(
        &mut self,
        session: &SessionKey,
        turn: u64,
        bytes: u64,
        write: impl FnOnce(&Store) -> Written + Send + 'static,
    ) {
        let cost = Cost { bytes, held: Vec::new() };
        self.enqueue(UnderWay { session: session.clone(), turn, cost, is_manifest: true }, write);
    }

    fn enqueue(&mut self, under_way: UnderWay, write: impl FnOnce(&Store) -> Written + Send + 'static) {
        self.under_way.push_back(under_way);
        let done = self.done.clone();
        self.io_pool.push(write, move |written| drop(done.send(written)));
    }

    /// Bytes of memory that what is under way takes.
    pub(super) fn bytes(&self) -> u64 {
        self.under_way.iter().map(|under_way| under_way.cost.bytes).sum()
    }

    /// Sessions of which something is under way.
    pub(super) fn sessions(&self) -> impl Iterator<Item = &SessionKey> {
        self.under_way.iter().map(|under_way| &under_way.session)
    }

    /// True if a manifest of the session is under way.
    fn is_committing(&self, session: &SessionKey) -> bool {
        self.under_way.iter().any(|under_way| under_way.is_manifest && under_way.session == *session)
    }

    /// The next answer that nobody has taken, if there is one; a panic goes on here.
    fn answer(&mut self) -> Option<Answer> {
        if self.early.is_empty() {
            let written = self.answers.try_recv().ok()?;
            self.take_in(written);
        }
        self.early.pop_front()
    }

    /// Waits for an answer, to be taken later; `false`: nothing is under way.
    fn wait(&mut self) -> bool {
        let next = if self.under_way.is_empty() { None } else { self.answers.recv().ok() };
        next.map(|written| self.take_in(written)).is_some()
    }

    fn take_in(&mut self, written: thread::Result<Written>) {
        let written = written.unwrap_or_else(|panic| resume_unwind(panic));
        if let Some(UnderWay { session, turn, cost, .. }) = self.under_way.pop_front() {
            self.early.push_back(Answer { session, turn, written, held: cost.held });
        }
    }
}

impl Memory {
    /// The next thing that was written, or could not be; `None`: there is no more by now. Sessions at rest
    /// know of it already.
    pub(crate) fn written(&mut self) -> Option<Answer> {
        let mut answer = self.saver.as_mut()?.answer()?;
        answer.held.drain(..).for_each(|id| self.arena.release(id));
        match &mut answer.written {
            Written::Blocks(stored) => {
                if let Some(idle) = self.idle.get_mut(&answer.session) {
                    idle.session.note(stored);
                    idle.session.trim_window(true, &mut self.arena);
                }
            }
            Written::Session(_) => {}
            // It may have become known meanwhile, by the manifest from before.
            Written::Removed(removed) => {
                if removed.is_ok() {
                    self.forget(&answer.session);
                }
            }
            Written::RowsDropped(_) => self.forget_rows(&answer.session),
            Written::Manifest(result, journal) => {
                self.settle(&answer.session, result.is_ok(), journal.take());
            }
        }
        Some(answer)
    }

    /// Tells whether something is being written.
    pub(crate) fn is_writing(&self) -> bool {
        self.saver.as_ref().is_some_and(|saver| !saver.under_way.is_empty())
    }

    /// Waits until one more thing is written; `false`: nothing is under way.
    pub(crate) fn wait_for_a_write(&mut self) -> bool {
        self.saver.as_mut().is_some_and(Saver::wait)
    }

    /// True if a manifest of the session is being written.
    pub(super) fn is_committing(&self, session: &SessionKey) -> bool {
        self.saver.as_ref().is_some_and(|saver| saver.is_committing(session))
    }
}
