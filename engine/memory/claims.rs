//! Claims on the runs that this process adds to: a lock for each; of runs at rest only a few stay locked, to
//! save open files.
//!
//! A run rests when all its sessions do, their manifests are up to date and nothing of it is being written.
//! Without its lock another process may go on with it, so nothing of it is known here any more either: it is
//! read from disk again.
//!
//! One process adds to a run (a lock for each run); any number share a folder. `cache rm` and `gc` want it
//! for themselves.
//!
//! Locks of runs are held for the runs at work, and 32 more: a store that serves many runs has few files
//! open.

use super::Memory;
use super::writer::Writer;
use crate::store::RunLock;
use crate::{Error, ErrorKind, Result, SessionKey};
use std::collections::{HashMap, HashSet};

/// Runs that rest and are still claimed, at most.
const RESTING: usize = 32;

/// The locks of runs, and which sessions are at work.
#[derive(Default)]
pub(super) struct Claims {
    held: HashMap<Run, Held>,
    at_work: HashSet<SessionKey>,
    clock: u64,
}

/// A tenant and one of its runs.
type Run = (String, String);

fn run_of(session: &SessionKey) -> Run {
    (session.tenant.clone(), session.run.clone())
}

struct Held {
    /// The lock, or why there could be none: then nothing of the run is written.
    lock: Result<RunLock, String>,
    last_use: u64,
}

impl Claims {
    /// A session that was taken for a turn is at rest again.
    pub(super) fn rests(&mut self, session: &SessionKey) {
        self.at_work.remove(session);
    }

    /// Tells whether a session was taken for a turn.
    pub(super) fn is_at_work(&self, session: &SessionKey) -> bool {
        self.at_work.contains(session)
    }

    /// Tells whether sessions of this one's run may be written.
    pub(super) fn holds(&self, session: &SessionKey) -> bool {
        self.held.get(&run_of(session)).is_some_and(|held| held.lock.is_ok())
    }
}

impl Memory {
    /// Sees to it that no other process adds to the run of a session that is about to be at work. Where there
    /// can be no lock its memory stays in RAM, and the reason is given.
    ///
    /// # Errors
    /// Another process adds to the run.
    pub(super) fn claim(&mut self, session: &SessionKey) -> Result<Option<String>> {
        let Some(store) = self.store.clone() else { return Ok(None) };
        if !self.claims.held.contains_key(&run_of(session)) {
            self.release();
            let lock = match store.claim(session) {
                Ok(lock) => Ok(lock),
                Err(e) if e.kind() == ErrorKind::InUse => return Err(e),
                Err(e) => {
                    tracing::warn!("the memories of run {} stay in RAM: {e}", session.run);
                    Err(format!("the memories of this run stay in RAM: {e}"))
                }
            };
            self.claims.held.insert(run_of(session), Held { lock, last_use: 0 });
        }
        self.claims.at_work.insert(session.clone());
        self.claims.clock += 1;
        let Some(held) = self.claims.held.get_mut(&run_of(session)) else { return Ok(None) };
        held.last_use = self.claims.clock;
        Ok(held.lock.as_ref().err().cloned())
    }

    /// Sees to it that a session's manifest may be written. (Its run may have been given up since an earlier
    /// turn's commit.)
    ///
    /// # Errors
    /// It may not.
    pub(super) fn claim_to_commit(&mut self, session: &SessionKey) -> Result<()> {
        if self.claims.holds(session) {
            return Ok(());
        }
        let at_work = self.claims.is_at_work(session);
        let reason = self.claim(session)?;
        if !at_work {
            self.claims.rests(session);
        }
        reason.map_or(Ok(()), |reason| Err(Error::store(reason)))
    }

    /// Sees to it that files of a session at rest may be removed. A run that was claimed for that alone is
    /// the first to be given up, so that to clean many runs costs the others nothing.
    ///
    /// # Errors
    /// They may not.
    pub(super) fn claim_to_clean(&mut self, session: &SessionKey) -> Result<()> {
        let was_held = self.claims.held.contains_key(&run_of(session));
        self.claim_to_commit(session)?;
        if let Some(held) = self.claims.held.get_mut(&run_of(session))
            && !was_held
        {
            held.last_use = 0;
        }
        Ok(())
    }

    /// Gives up the runs that have rested longest, until there is room for one more.
    fn release(&mut self) {
        while self.claims.held.len() >= RESTING {
            let busy: HashSet<Run> = self
                .claims
                .at_work
                .iter()
                .chain(self.writer.iter().flat_map(Writer::sessions))
                .chain(self.idle.iter().filter(|(_, idle)| !idle.saved).map(|(session, _)| session))
                .map(run_of)
                .collect();
            let resting = self.claims.held.iter().filter(|(run, _)| !busy.contains(*run));
            let Some(run) = resting.min_by_key(|(_, held)| held.last_use).map(|(run, _)| run.clone()) else {
                return;
            };
            let sessions: Vec<SessionKey> =
                self.idle.keys().filter(|session| run_of(session) == run).cloned().collect();
            sessions.iter().for_each(|session| self.forget(session));
            self.claims.held.remove(&run);
        }
    }
}
