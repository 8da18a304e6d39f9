//! What is being written: handed over by the engine's thread, done by a thread of its own, answered to the engine's.
//!
//! One thread writes for all sessions, in the order in which things were handed over: so blocks are on disk before the manifest that
//! names them, and a session's later save comes after its earlier one. What waits counts as memory; who has no room waits for it.

use super::Memory;
use super::crew::Crew;
use crate::store::Store;
use crate::store::manifest::Journal;
use crate::{Result, SessionKey};
use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// Something that was to be written for a turn, and what came of it.
pub(crate) struct Answer {
    pub(crate) session: SessionKey,
    pub(crate) turn: u64,
    pub(crate) written: Written,
}

/// What came of something that was to be written.
pub(crate) enum Written {
    /// A manifest: its bytes, and what it holds by now.
    Manifest(Result<u64>, Option<Journal>),
}

/// The thread that writes, and what it was told to write.
pub(super) struct Writer {
    crew: Crew,
    done: Sender<thread::Result<Answer>>,
    answers: Receiver<thread::Result<Answer>>,
    /// Tells the engine's thread that there is an answer.
    wake: Arc<dyn Fn() + Send + Sync>,
    /// What has no answer yet, in order.
    under_way: VecDeque<UnderWay>,
    /// Answers that came while somebody waited for one.
    early: VecDeque<Answer>,
}

struct UnderWay {
    session: SessionKey,
    /// Bytes of memory that it takes until then.
    bytes: u64,
}

impl Writer {
    /// A thread that writes to `store`.
    ///
    /// # Errors
    /// It can't be started.
    pub(super) fn new(store: &Arc<Store>) -> Result<Self> {
        let crew = Crew::new("greenroom-writer", 1, store)?;
        let (done, answers) = channel();
        let (under_way, early) = (VecDeque::new(), VecDeque::new());
        Ok(Self { crew, done, answers, wake: Arc::new(|| ()), under_way, early })
    }

    /// Hands something over to be written for a session's turn; it takes `bytes` of memory until it is.
    pub(super) fn push(
        &mut self,
        session: &SessionKey,
        turn: u64,
        bytes: u64,
        write: impl FnOnce(&Store) -> Written + Send + 'static,
    ) {
        self.under_way.push_back(UnderWay { session: session.clone(), bytes });
        let (session, done, wake) = (session.clone(), self.done.clone(), self.wake.clone());
        self.crew.push(write, move |written| {
            let _ = done.send(written.map(|written| Answer { session, turn, written }));
            wake();
        });
    }

    /// Bytes of memory that what is under way takes.
    pub(super) fn bytes(&self) -> u64 {
        self.under_way.iter().map(|under_way| under_way.bytes).sum()
    }

    /// Sessions of which something is under way.
    pub(super) fn sessions(&self) -> impl Iterator<Item = &SessionKey> {
        self.under_way.iter().map(|under_way| &under_way.session)
    }

    /// The next answer that nobody has taken, if there is one; a panic goes on here.
    fn answer(&mut self) -> Option<Answer> {
        self.early.pop_front().or_else(|| {
            let answer = self.answers.try_recv().ok()?;
            Some(self.over(answer))
        })
    }

    /// Waits for an answer, to be taken later; `false`: nothing is under way.
    fn wait(&mut self) -> bool {
        let next = if self.under_way.is_empty() { None } else { self.answers.recv().ok() };
        let Some(answer) = next else { return false };
        let answer = self.over(answer);
        self.early.push_back(answer);
        true
    }

    fn over(&mut self, answer: thread::Result<Answer>) -> Answer {
        self.under_way.pop_front();
        answer.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl Memory {
    /// Calls `wake`, on another thread, whenever there is something for [`Memory::written`].
    pub(crate) fn wake_by(&mut self, wake: impl Fn() + Send + Sync + 'static) {
        if let Some(writer) = &mut self.writer {
            writer.wake = Arc::new(wake);
        }
    }

    /// The next thing that was written, or could not be; `None`: there is no more by now.
    pub(crate) fn written(&mut self) -> Option<Answer> {
        let mut answer = self.writer.as_mut()?.answer()?;
        let Written::Manifest(result, journal) = &mut answer.written;
        self.settle(&answer.session, result.is_ok(), journal.take());
        Some(answer)
    }

    /// Waits until one more thing is written; `false`: nothing is under way.
    pub(crate) fn wait_for_a_write(&mut self) -> bool {
        self.writer.as_mut().is_some_and(Writer::wait)
    }

    /// Waits until all that was to be written of a session is.
    pub(super) fn wait_for_writes(&mut self, session: &SessionKey) {
        while self.is_being_written(session) && self.wait_for_a_write() {}
    }

    /// Tells whether something of a session is under way.
    pub(super) fn is_being_written(&self, session: &SessionKey) -> bool {
        self.writer.as_ref().is_some_and(|writer| writer.sessions().any(|other| other == session))
    }
}
