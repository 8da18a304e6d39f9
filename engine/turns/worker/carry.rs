//! Sessions as a whole: forked, exported, imported, removed.

use super::Worker;
use crate::store::Removed;
use crate::store::memory_file::SessionExport;
use crate::text::prefix::Segment;
use crate::turns::admission::{Prepared, Waiting};
use crate::{Error, ErrorKind, Event, Prompt, Request, Result, Retention, SessionKey};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

/// A memory from outside.
pub(crate) struct Import {
    pub(crate) session: SessionKey,
    pub(crate) segments: Vec<Segment>,
    /// Its keys and values, if they are taken as they are; else the segments are read.
    pub(crate) memory: Option<SessionExport>,
    /// True if what the session had before may go.
    pub(crate) replace: bool,
}

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

    /// Gives a session the memory of another, unless a turn of it is at work or waits for its commit.
    pub(super) fn fork(&mut self, from: &SessionKey, to: SessionKey, replace: bool) {
        if !self.is_at_work(&to) && !self.awaits_commit(&to) {
            self.memory.fork(from, to, replace);
        }
    }

    /// Gives all of a session.
    pub(super) fn export(&mut self, session: &SessionKey) -> Result<SessionExport> {
        self.at_rest(session)?;
        let portable = self.memory.portable(session);
        self.enforce_budget();
        portable
    }

    /// Takes a session in, once there is room for it: that is a turn that says nothing.
    pub(super) fn import(&mut self, id: u64, import: Import, events: UnboundedSender<Event>) {
        match self.prepare(import) {
            Ok((request, prepared)) => {
                let (request, prepared) = (Box::new(request), Some(prepared));
                self.waiting.push_back(Waiting { id, request, events, prepared, is_fetched: false });
            }
            Err(e) => drop(events.send(Event::Failed(e))),
        }
    }

    fn prepare(&mut self, import: Import) -> Result<(Request, Prepared)> {
        let Import { session, segments, memory, replace } = import;
        self.at_rest(&session)?;
        self.not_awaited(&session)?;
        if self.memory.knows(&session) && !replace {
            let SessionKey { run, agent, .. } = &session;
            return Err(Error::request(format!(
                "agent `{agent}` of run `{run}` already has a memory; choose another name, or ask to replace it"
            )));
        }
        let request = Request {
            retention: Retention::Persistent,
            max_tokens: 0,
            cold: true,
            ..Request::new(session, Prompt::Ids([].into()))
        };
        let (layout, context) = (&self.memory.context.layout, self.device.spec().context_length);
        let prepared = Prepared::to_read(segments, memory, layout, context)?;
        Ok((request, prepared))
    }

    /// Drops the rows that a session keeps only to go back; answers once they are gone.
    pub(super) fn drop_rows(&mut self, session: &SessionKey, answer: oneshot::Sender<Result<Removed>>) {
        match self.begin_to_drop_rows(session) {
            Ok(true) => self.removals.push_back(answer),
            Ok(false) => drop(answer.send(Ok(Removed::default()))),
            Err(e) => drop(answer.send(Err(e))),
        }
        self.take_answers();
    }

    fn begin_to_drop_rows(&mut self, session: &SessionKey) -> Result<bool> {
        self.committed_at_rest(session)?;
        let at_work = self.turns().filter_map(|turn| turn.session.tail_file()).map(str::to_owned).collect();
        self.memory.drop_rows(session, at_work)
    }

    /// Drops a session for good; answers once its files are gone. `to_make_room`: not one whose last turn
    /// waits for its commit.
    pub(super) fn remove(
        &mut self,
        session: &SessionKey,
        to_make_room: bool,
        answer: oneshot::Sender<Result<Removed>>,
    ) {
        let rests = if to_make_room { self.committed_at_rest(session) } else { self.at_rest(session) };
        match rests.and_then(|()| self.begin_to_remove(session)) {
            Ok(None) => self.removals.push_back(answer),
            Ok(Some(sessions)) => drop(answer.send(Ok(Removed { sessions, ..Removed::default() }))),
            Err(e) => drop(answer.send(Err(e))),
        }
        self.take_answers();
    }

    fn begin_to_remove(&mut self, session: &SessionKey) -> Result<Option<usize>> {
        let at_work = self.turns().flat_map(|turn| turn.session.sequence.table().hashes());
        let others = self.finished.iter().filter(|finished| finished.session != *session);
        let pending = others.filter_map(|finished| finished.pending.as_ref());
        let pending = pending.flat_map(|pending| pending.manifest.blocks.iter().copied());
        let needed: Vec<_> = at_work.chain(pending).collect();
        let begun = self.memory.remove(session, needed.into_iter())?;
        self.draft_model.iter_mut().for_each(|model| model.forget(session));
        self.forget_pending(session);
        Ok(begun)
    }
}
