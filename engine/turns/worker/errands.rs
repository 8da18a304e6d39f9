//! What is to be done with sessions at rest once other threads have done their part: exports, removals,
//! commits. Until then no turn of such a session begins.

use super::Worker;
use crate::memory::carry::Exporting;
use crate::memory::session::{Pending, Session};
use crate::store::Removed;
use crate::store::memory_file::SessionExport;
use crate::{Result, SessionKey};
use std::collections::HashSet;
use std::task::Poll;
use tokio::sync::oneshot;

/// Something to be done with a session at rest.
pub(super) enum Errand {
    Export {
        exporting: Box<Exporting>,
        answer: oneshot::Sender<Result<SessionExport>>,
    },
    /// A session goes for good. `was_claimed`: its run was claimed before.
    Remove {
        session: SessionKey,
        was_claimed: bool,
        answer: oneshot::Sender<Result<Removed>>,
    },
    /// The rows go that a session keeps only to go back.
    DropRows {
        session: SessionKey,
        was_claimed: bool,
        answer: oneshot::Sender<Result<Removed>>,
    },
    /// A turn's manifest is written, whose run may have been given up since it ended.
    Commit {
        session: SessionKey,
        turn: u64,
        pending: Option<Box<Pending>>,
    },
}

impl Errand {
    /// The session that is being exported.
    pub(super) fn exported(&self) -> Option<&Session> {
        match self {
            Self::Export { exporting, .. } => exporting.session(),
            _ => None,
        }
    }

    /// The manifest that is to be written, and its session.
    pub(super) fn pending(&self) -> Option<(&SessionKey, &Pending)> {
        match self {
            Self::Commit { session, pending, .. } => Some((session, pending.as_deref()?)),
            _ => None,
        }
    }

    /// The manifest of this session will not be written.
    pub(super) fn forget_pending(&mut self, of: &SessionKey) {
        if let Self::Commit { session, pending, .. } = self
            && session == of
        {
            *pending = None;
        }
    }

    pub(super) fn session(&self) -> &SessionKey {
        match self {
            Self::Export { exporting, .. } => exporting.key(),
            Self::Remove { session, .. } | Self::DropRows { session, .. } | Self::Commit { session, .. } => {
                session
            }
        }
    }
}

impl Worker {
    /// True if something is to be done with a session at rest.
    pub(super) fn has_errand(&self, session: &SessionKey) -> bool {
        self.errands.iter().any(|errand| errand.session() == session)
    }

    /// True if a session is being exported: then nobody else sees what of it is in memory.
    pub(super) fn is_exporting(&self, session: &SessionKey) -> bool {
        let is_export = |errand: &Errand| matches!(errand, Errand::Export { .. });
        self.errands.iter().any(|errand| is_export(errand) && errand.session() == session)
    }

    /// A session that is being exported is not to be known any more afterwards.
    pub(super) fn forget_exported(&mut self, session: &SessionKey) {
        for errand in &mut self.errands {
            if let Errand::Export { exporting, .. } = errand
                && exporting.key() == session
            {
                exporting.forget();
            }
        }
    }

    /// Adds something to be done, after all that is to be done with the session before.
    pub(super) fn add_errand(&mut self, errand: Errand) {
        self.errands.push_back(errand);
        self.go_on_errands();
    }

    /// Continues with what is to be done, in order for each session.
    pub(super) fn go_on_errands(&mut self) {
        let mut waiting = HashSet::new();
        for _ in 0..self.errands.len() {
            let Some(errand) = self.errands.pop_front() else { return };
            let session = errand.session().clone();
            let is_next = !waiting.contains(&session) && !self.memory.is_forking(&session);
            if let Some(errand) = if is_next { self.go_on_errand(errand) } else { Some(errand) } {
                waiting.insert(session);
                self.errands.push_back(errand);
            }
        }
    }

    /// Gives up all that is to be done, as the engine ends, but for commits whose run is claimed.
    pub(super) fn end_errands(&mut self) {
        for errand in std::mem::take(&mut self.errands) {
            if let Errand::Commit { session, .. } = &errand
                && self.memory.claim_to_write(session).is_ready()
            {
                self.go_on_errand(errand);
            }
        }
    }

    /// Continues with one; gives it back if it has to wait.
    fn go_on_errand(&mut self, mut errand: Errand) -> Option<Errand> {
        let ready = match &mut errand {
            Errand::Export { exporting, answer } => {
                if answer.is_closed() {
                    self.memory.end_export(exporting);
                    return None;
                }
                let Poll::Ready(exported) = self.memory.poll_export(exporting) else { return Some(errand) };
                self.enforce_budget();
                let Errand::Export { answer, .. } = errand else { return None };
                let _ = answer.send(exported);
                return None;
            }
            Errand::Commit { pending: None, .. } => Poll::Ready(Ok(())),
            Errand::Commit { session, .. } => self.memory.claim_to_write(session),
            Errand::Remove { session, was_claimed, .. } | Errand::DropRows { session, was_claimed, .. } => {
                self.memory.poll_to_clean(session, *was_claimed)
            }
        };
        let Poll::Ready(ready) = ready else { return Some(errand) };
        match errand {
            Errand::Commit { session, turn, pending } => {
                let begun = ready.map(|()| self.memory.commit(turn, &session, pending.map(|it| *it)));
                if !matches!(begun, Ok(true)) {
                    self.committed(turn, begun.map(|_| 0));
                }
            }
            Errand::Remove { session, answer, .. } => match ready.map(|()| self.begin_to_remove(&session)) {
                Ok(None) => self.removals.push_back(answer),
                Ok(Some(sessions)) => drop(answer.send(Ok(Removed { sessions, ..Removed::default() }))),
                Err(e) => drop(answer.send(Err(e))),
            },
            Errand::DropRows { session, answer, .. } => {
                match ready.map(|()| self.begin_to_drop_rows(&session)) {
                    Ok(true) => self.removals.push_back(answer),
                    Ok(false) => drop(answer.send(Ok(Removed::default()))),
                    Err(e) => drop(answer.send(Err(e))),
                }
            }
            Errand::Export { .. } => {}
        }
        None
    }
}
