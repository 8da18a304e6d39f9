//! The end of a turn: what the disk lacks of its session is handed over to be written, then the session is at
//! rest and the turn done; its manifest waits for the turn's commit.
//!
//! Until its session is written a turn is active: nothing of the session leaves memory, and its next turn
//! waits. So a turn's last event says what was written of it, and what it would lose by a crash from then on
//! is its manifest alone.

use super::Worker;
use super::errands::Errand;
use crate::memory::saver::{Answer, Stored, Written};
use crate::memory::session::Pending;
use crate::turns::turn::ActiveTurn;
use crate::{Completion, Error, Event, Result, SessionKey};
use std::time::Instant;
use tokio::sync::oneshot;

/// A turn that waits for its commit.
pub(super) struct Finished {
    id: u64,
    pub(super) session: SessionKey,
    pub(super) pending: Option<Pending>,
    completion: Box<Completion>,
    began: Instant,
}

/// A turn that has ended, whose session is being written: until that is over the session is active.
pub(super) struct Saving {
    pub(super) turn: ActiveTurn,
    began: Instant,
}

/// A commit whose manifest is being written.
pub(super) struct Committing {
    finished: Finished,
    answer: oneshot::Sender<Result<Box<Completion>>>,
}

impl Worker {
    /// Turns that end here give their sessions back, once what the disk lacks of them is written.
    pub(super) fn finish_done(&mut self) {
        let (done, active) = std::mem::take(&mut self.active).into_iter().partition(ActiveTurn::is_done);
        self.active = active;
        let done: Vec<ActiveTurn> = done;
        for mut turn in done {
            let began = Instant::now();
            turn.end_sequence(&mut self.memory.arena);
            let persists = self.memory.persists(&turn.request);
            let is_saved = persists && self.memory.save(turn.id, &turn.request.session, &mut turn.session);
            let saving = Saving { turn, began };
            if is_saved {
                self.saving.push(saving);
            } else {
                self.finish(saving, None);
            }
        }
    }

    /// A turn's session is written, or could not be.
    fn saved(&mut self, id: u64, stored: Stored) {
        let Some(i) = self.saving.iter().position(|saving| saving.turn.id == id) else { return };
        let Saving { turn, .. } = &mut self.saving[i];
        if stored.lost_tail {
            turn.wrote(stored.bytes);
            self.memory.note(&mut turn.session, &stored);
            self.memory.save(id, &turn.request.session, &mut turn.session);
            return;
        }
        let saving = self.saving.remove(i);
        self.finish(saving, Some(stored));
    }

    /// A turn ends: its session is at rest, and what was written of it waits for its manifest.
    fn finish(&mut self, saving: Saving, stored: Option<Stored>) {
        let Saving { mut turn, began } = saving;
        turn.wrote(stored.as_ref().map_or(0, |stored| stored.bytes));
        let mut completion = Box::new(turn.complete(&self.tokenizer, &self.memory.context));
        let pending = |stored| self.memory.pending(&turn.request.session, &mut turn.session, stored);
        let saved = stored.map(pending).transpose();
        self.memory.flush(turn.id, &turn.request, &mut turn.session);
        completion.usage.total_ms = turn.elapsed_ms();
        completion.usage.saved_ms = completion.usage.reused as f64 * self.memory.token_ms;
        let ActiveTurn { id, request, session, events, .. } = turn;
        let key = request.session;
        self.memory.take_back(key.clone(), session, request.next_use);
        let pending = saved.unwrap_or_else(|e| {
            not_saved(&key.agent, &e, &mut completion);
            None
        });
        if events.is_closed() {
            // The caller went while it was written, and will not say so again.
            self.memory.abandon(&key, pending);
            return self.enforce_budget();
        }
        self.enforce_budget();
        completion.usage.memory_bytes = self.memory.all_bytes();
        let copy = completion.clone();
        self.finished.push(Finished { id, session: key, pending, completion, began });
        let _ = events.send(Event::Done(copy));
    }

    /// A finished turn's manifest is to be written.
    pub(super) fn commit(&mut self, id: u64, answer: oneshot::Sender<Result<Box<Completion>>>) {
        let Some(i) = self.finished.iter().position(|finished| finished.id == id) else {
            let _ = answer.send(Err(Error::request("this turn has not ended, or was committed before")));
            return;
        };
        let mut finished = self.finished.remove(i);
        let mut pending = finished.pending.take();
        if let Some(pending) = &mut pending {
            // This manifest says all that those of the session's earlier turns would, so they are written no
            // more.
            let earlier = self.finished[..i].iter_mut().filter(|f| f.session == finished.session);
            for before in earlier.filter_map(|f| f.pending.take()) {
                pending.obsolete.extend(before.obsolete);
            }
        }
        let session = finished.session.clone();
        self.committing.push_back(Committing { finished, answer });
        self.add_errand(Errand::Commit { session, turn: id, pending: pending.map(Box::new) });
    }

    /// A commit is over: its manifest is on disk, with so many bytes, or could not be written.
    pub(super) fn committed(&mut self, id: u64, written: Result<u64>) {
        let Some(i) = self.committing.iter().position(|committing| committing.finished.id == id) else {
            return;
        };
        let Some(Committing { mut finished, answer }) = self.committing.remove(i) else { return };
        let agent = &finished.session.agent;
        match written {
            Ok(bytes) => finished.completion.usage.bytes_written += bytes,
            Err(e) => not_saved(agent, &e, &mut finished.completion),
        }
        tracing::debug!("`{agent}` saved after {:?}", finished.began.elapsed());
        self.enforce_budget();
        let _ = answer.send(Ok(finished.completion));
    }

    /// Takes note of what was written meanwhile.
    pub(super) fn take_answers(&mut self) {
        while let Some(Answer { session, turn, written, .. }) = self.memory.written() {
            match written {
                Written::Blocks(stored) => self.blocks_written(&session, turn, &stored),
                Written::Session(stored) => self.saved(turn, stored),
                Written::Manifest(bytes, _) => self.committed(turn, bytes),
                Written::Removed(removed) | Written::RowsDropped(removed) => {
                    if let Some(answer) = self.removals.pop_front() {
                        let _ = answer.send(removed);
                    }
                }
            }
        }
    }

    /// Blocks of a session are written, or could not be: then they stay in memory; the turn's end tries
    /// again, and says so.
    fn blocks_written(&mut self, session: &SessionKey, id: u64, stored: &Stored) {
        if let Some(e) = &stored.error {
            tracing::debug!("`{}`: {e}", session.agent);
        }
        let (memory, active) = (&mut self.memory, self.active.iter_mut());
        if let Some(turn) = self.loading.iter_mut().find(|turn| turn.request.session == *session) {
            return turn.loading.session.note(stored);
        }
        let mut turns = active.chain(self.saving.iter_mut().map(|saving| &mut saving.turn));
        if let Some(turn) = turns.find(|turn| turn.request.session == *session) {
            memory.note(&mut turn.session, stored);
            // (Of a turn that was given up the next one counts nothing.)
            if turn.id == id {
                turn.wrote(stored.bytes);
            }
        }
    }

    /// Waits for all that is being written, so that the caller learns what came of it.
    pub(super) fn finish_writing(&mut self) {
        self.end_errands();
        while self.memory.wait_for_a_write() {
            self.take_answers();
        }
    }

    /// Tells whether a session's manifest is still to be written: its turn has ended, and waits for its
    /// commit.
    pub(super) fn awaits_commit(&self, session: &SessionKey) -> bool {
        self.finished.iter().any(|finished| finished.session == *session && finished.pending.is_some())
    }

    /// The manifests that are still to be written, and the sessions that they are of.
    pub(super) fn pending(&self) -> impl Iterator<Item = (&SessionKey, &Pending)> {
        let finished = self.finished.iter().filter_map(|f| Some((&f.session, f.pending.as_ref()?)));
        finished.chain(self.errands.iter().filter_map(Errand::pending))
    }

    /// No finished turn of a session will write its manifest.
    pub(super) fn forget_pending(&mut self, session: &SessionKey) {
        self.finished.iter_mut().filter(|f| f.session == *session).for_each(|f| f.pending = None);
        self.errands.iter_mut().for_each(|errand| errand.forget_pending(session));
    }

    /// A finished turn's manifest will not be written.
    pub(super) fn abandon(&mut self, id: u64) {
        let Some(i) = self.finished.iter().position(|finished| finished.id == id) else { return };
        let Finished { session, pending, .. } = self.finished.remove(i);
        let loading = self.loading.iter_mut().map(|turn| (&turn.request.session, &mut turn.loading.session));
        let active = self.active.iter_mut().chain(self.saving.iter_mut().map(|saving| &mut saving.turn));
        let active = active.map(|turn| (&turn.request.session, &mut turn.session));
        match loading.chain(active).find(|(key, _)| **key == session) {
            Some((_, at_work)) => at_work.uncommit(pending),
            None => self.memory.abandon(&session, pending),
        }
        self.enforce_budget();
    }
}

/// The turn stands in memory; that it can't be kept on disk is said, not hidden.
fn not_saved(agent: &str, e: &Error, completion: &mut Completion) {
    tracing::warn!("can't save agent `{agent}`: {e}");
    completion.usage.reason = Some(format!("not saved: {e}"));
}
