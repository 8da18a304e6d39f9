//! Sessions as a whole: forked, exported, imported, removed.

use super::Worker;
use super::errands::Errand;
use crate::memory::carry::{Exporting, Import};
use crate::memory::session::Session;
use crate::store::Removed;
use crate::store::memory_file::SessionExport;
use crate::{Error, ErrorKind, Event, Prompt, Request, Result, Retention, SessionKey};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

impl Worker {
    fn at_rest(&self, session: &SessionKey) -> Result<()> {
        if self.is_at_work(session) {
            let found = format!("agent `{}` is busy; wait until its turn has ended", session.agent);
            return Err(Error::new(ErrorKind::InUse, found));
        }
        Ok(())
    }

    fn not_awaited(&self, session: &SessionKey) -> Result<()> {
        if self.waiting.iter().any(|waiting| waiting.request.session == *session) {
            let found = format!("a request of agent `{}` is waiting for its turn", session.agent);
            return Err(Error::new(ErrorKind::InUse, found));
        }
        Ok(())
    }

    /// Checks that nothing is about to happen to a session.
    fn committed_at_rest(&self, session: &SessionKey) -> Result<()> {
        self.at_rest(session)?;
        self.not_awaited(session)?;
        if self.awaits_commit(session) {
            let found = format!("the last turn of agent `{}` waits for its commit", session.agent);
            return Err(Error::new(ErrorKind::InUse, found));
        }
        Ok(())
    }

    /// Gives a session the memory of another, unless a turn of it is active or waits for its commit.
    pub(super) fn fork(&mut self, from: &SessionKey, to: SessionKey, replace: bool) {
        if !self.is_at_work(&to) && !self.awaits_commit(&to) {
            self.reopen(&to);
            let exported = self.errands.iter().filter(|errand| errand.session() == from);
            let exported = exported.filter_map(Errand::exported).next();
            self.memory.fork(from, exported, to, replace);
        }
    }

    /// Gives all of a session.
    pub(super) fn export(&mut self, session: SessionKey, answer: oneshot::Sender<Result<SessionExport>>) {
        match self.at_rest(&session) {
            Ok(()) => {
                self.add_errand(Errand::Export { exporting: Box::new(Exporting::new(session)), answer })
            }
            Err(e) => drop(answer.send(Err(e))),
        }
    }

    /// Takes a session in, once there is room for it: that is a turn that says nothing.
    pub(super) fn import(&mut self, id: u64, import: Box<Import>, events: UnboundedSender<Event>) {
        let rests = self.at_rest(&import.session).and_then(|()| self.not_awaited(&import.session));
        if let Err(e) = rests {
            return drop(events.send(Event::Failed(e)));
        }
        let request = Request {
            retention: Retention::Persistent,
            max_tokens: 0,
            ..Request::new(import.session.clone(), Prompt::Ids([].into()))
        };
        self.wait_for_room(id, request, events, Some(import));
    }

    /// Drops the rows that a session keeps only to go back; answers once they are gone.
    pub(super) fn drop_rows(&mut self, session: SessionKey, answer: oneshot::Sender<Result<Removed>>) {
        match self.committed_at_rest(&session) {
            Ok(()) => {
                let was_claimed = self.memory.is_claimed(&session);
                self.add_errand(Errand::DropRows { session, was_claimed, answer });
            }
            Err(e) => drop(answer.send(Err(e))),
        }
        self.take_answers();
    }

    pub(super) fn begin_to_drop_rows(&mut self, session: &SessionKey) -> bool {
        let exported = self.errands.iter().filter_map(Errand::exported);
        let others = self.at_work().map(|turn| turn.session).chain(exported);
        let spared = others.filter_map(Session::tail_file).map(str::to_owned).collect();
        self.memory.drop_rows(session, spared)
    }

    /// Drops a session for good; answers once its files are gone. `to_make_room`: not one whose last turn
    /// waits for its commit.
    pub(super) fn remove(
        &mut self,
        session: SessionKey,
        to_make_room: bool,
        answer: oneshot::Sender<Result<Removed>>,
    ) {
        let rests = if to_make_room { self.committed_at_rest(&session) } else { self.at_rest(&session) };
        match rests {
            Ok(()) => {
                let was_claimed = self.memory.is_claimed(&session);
                self.add_errand(Errand::Remove { session, was_claimed, answer });
            }
            Err(e) => drop(answer.send(Err(e))),
        }
        self.take_answers();
    }

    pub(super) fn begin_to_remove(&mut self, session: &SessionKey) -> Option<usize> {
        self.reopen(session);
        let exported = self.errands.iter().filter_map(Errand::exported);
        let others: Vec<&Session> = self.at_work().map(|turn| turn.session).chain(exported).collect();
        let tails = others.iter().flat_map(|session| session.files()).collect();
        let held = others.iter().flat_map(|session| session.sequence.hashes());
        let pending = self.pending().filter(|(of, _)| *of != session);
        let pending = pending.flat_map(|(_, pending)| pending.manifest.blocks.iter().copied());
        let found = self.loading.iter().flat_map(|turn| turn.loading.hashes());
        let blocks = held.chain(pending).chain(found).collect();
        let begun = self.memory.remove(session, blocks, tails);
        self.draft_model.iter_mut().for_each(|model| model.forget(session));
        self.forget_pending(session);
        begun
    }
}
