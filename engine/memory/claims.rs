//! Claims on the runs that this process adds to: a lock for each; of runs at rest only a few stay locked, to
//! save open files.
//!
//! A lock can take as long as another machine's lease, so it is asked for on threads of its own: the turn
//! that needs it asks again when woken. It is kept while a session of its run is awaited or active.
//!
//! A run rests when all its sessions do, their manifests are up to date and nothing of it is being written.
//! Without its lock another process may go on with it, so nothing of it is known here any more either: it is
//! read from disk again.
//!
//! One process adds to a run (a lock for each run); any number share a folder. `cache rm` and `gc` want it
//! for themselves.
//!
//! Locks of runs are held for the active runs, and 32 more: a store that serves many runs has few files open.

use super::Memory;
use super::io_pool::{Begun, IoPool, Priority, Wake};
use super::saver::Saver;
use crate::store::{RunLock, Store};
use crate::{Error, ErrorKind, Result, SessionKey};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

/// Maximum number of runs that rest and are still claimed.
const RESTING: usize = 32;

/// Maximum number of locks that are waited for side by side.
const ASKED: usize = 4;

/// Age from which it is asked again whether another process still holds a lock.
const IN_USE_MAX_AGE: Duration = Duration::from_secs(10);

/// The locks of runs, and which sessions need theirs.
pub(super) struct Claims {
    runs: HashMap<Run, Claim>,
    /// Threads that wait for locks; none without a store. (They end once nobody waits for `runs`.)
    pool: Option<IoPool<Store>>,
    at_work: HashSet<SessionKey>,
    awaited: HashSet<SessionKey>,
    clock: u64,
}

/// A tenant and one of its runs.
type Run = (String, String);

fn run_of(session: &SessionKey) -> Run {
    (session.tenant.clone(), session.run.clone())
}

struct Claim {
    lock: Lock,
    last_use: u64,
}

enum Lock {
    /// It is asked for, once these runs' locks were given back.
    Asked(Begun<Result<RunLock>>, Vec<Run>),
    /// Another process held it then.
    InUse(Error, Instant),
    Held(Arc<RunLock>),
    /// There can be none, for this reason: nothing of the run is written.
    Refused(String),
}

impl Claims {
    /// Claims on nothing.
    pub(super) fn new(store: Option<&Arc<Store>>, wake: &Wake) -> Self {
        let pool = |store| IoPool::new("greenroom-claims", ASKED, Priority::Same, store, wake);
        let (runs, at_work, awaited, clock) = Default::default();
        Self { pool: store.map(pool), runs, at_work, awaited, clock }
    }

    /// A turn of a session is about to begin: from its claim on the run stays locked.
    pub(super) fn expect(&mut self, session: &SessionKey) {
        self.awaited.insert(session.clone());
    }

    /// The turn that a session was awaited for will not begin.
    pub(super) fn expect_no_more(&mut self, session: &SessionKey) {
        self.awaited.remove(session);
    }

    /// A session is taken for a turn. Returns the reason why nothing of it will be written, if so.
    pub(super) fn begin(&mut self, session: &SessionKey) -> Option<String> {
        self.expect_no_more(session);
        self.at_work.insert(session.clone());
        match &self.runs.get(&run_of(session))?.lock {
            Lock::Refused(reason) => Some(reason.clone()),
            Lock::Asked(..) | Lock::InUse(..) | Lock::Held(_) => None,
        }
    }

    /// A session is taken out for something else than a turn, which may still be awaited.
    pub(super) fn take_out(&mut self, session: &SessionKey) {
        self.at_work.insert(session.clone());
    }

    /// A session that was taken for a turn is at rest again.
    pub(super) fn rest(&mut self, session: &SessionKey) {
        self.at_work.remove(session);
    }

    /// Tells whether a session was taken for a turn.
    pub(super) fn is_at_work(&self, session: &SessionKey) -> bool {
        self.at_work.contains(session)
    }

    /// Tells whether a turn of a session is about to begin.
    pub(super) fn is_awaited(&self, session: &SessionKey) -> bool {
        self.awaited.contains(session)
    }

    /// Tells whether sessions of this one's run may be written.
    pub(super) fn holds(&self, session: &SessionKey) -> bool {
        self.lock(session).is_some_and(|lock| !lock.is_taken())
    }

    /// The lock of a session's run, if there is one.
    pub(super) fn lock(&self, session: &SessionKey) -> Option<&Arc<RunLock>> {
        match &self.runs.get(&run_of(session))?.lock {
            Lock::Held(lock) => Some(lock),
            Lock::Asked(..) | Lock::InUse(..) | Lock::Refused(_) => None,
        }
    }

    /// Tells whether a run's lock is being given back.
    fn is_leaving(&self, run: &Run) -> bool {
        let leaving = |claim: &Claim| matches!(&claim.lock, Lock::Asked(_, leaving) if leaving.contains(run));
        self.runs.values().any(leaving)
    }

    /// Gives up the runs that have rested longest, until there is room for one more; `is_busy` are those that
    /// can't be.
    fn leave(&mut self, mut is_busy: impl FnMut() -> HashSet<Run>) -> Vec<(Run, Lock)> {
        let mut left = Vec::new();
        while self.runs.len() >= RESTING {
            let mut busy = is_busy();
            busy.extend(self.at_work.iter().chain(&self.awaited).map(run_of));
            let is_resting = |(run, claim): &(&Run, &Claim)| {
                !busy.contains(*run) && !matches!(claim.lock, Lock::Asked(..))
            };
            let oldest = self.runs.iter().filter(is_resting).min_by_key(|(_, claim)| claim.last_use);
            let Some(run) = oldest.map(|(run, _)| run.clone()) else { break };
            left.extend(self.runs.remove(&run).map(|claim| (run, claim.lock)));
        }
        left
    }

    /// Begins to ask for the lock of a session's run, once those that were given up are given back.
    fn ask(&mut self, session: &SessionKey, left: Vec<(Run, Lock)>) {
        let Some(pool) = &self.pool else { return };
        let (leaving, locks): (Vec<Run>, Vec<Lock>) = left.into_iter().unzip();
        let wanted = session.clone();
        let lock = pool.begin(move |store| {
            drop(locks);
            store.claim(&wanted)
        });
        self.runs.insert(run_of(session), Claim { lock: Lock::Asked(lock, leaving), last_use: 0 });
    }

    /// Takes note of all answers, and of locks that another process has taken: from then on nothing of such a
    /// run is written. (Of a run that nobody needs any more nobody asks.)
    fn settle(&mut self) {
        for ((_, run), claim) in &mut self.runs {
            if matches!(&claim.lock, Lock::Held(lock) if lock.is_taken()) {
                let reason = format!(
                    "another process has continued with the memories of run {run} while this one was out of \
                     touch; what this one adds to them stays in RAM until it is started again"
                );
                tracing::warn!("{reason}");
                claim.lock = Lock::Refused(reason);
            }
            let Lock::Asked(begun, _) = &claim.lock else { continue };
            let Some((lock, _)) = begun.poll() else { continue };
            claim.lock = match lock {
                Ok(lock) => Lock::Held(Arc::new(lock)),
                Err(e) if e.kind() == ErrorKind::InUse => Lock::InUse(e, Instant::now()),
                Err(e) => {
                    tracing::warn!("the memories of run {run} stay in RAM: {e}");
                    Lock::Refused(format!("the memories of this run stay in RAM: {e}"))
                }
            };
        }
        let is_old = |at: &Instant| at.elapsed() > IN_USE_MAX_AGE;
        self.runs.retain(|_, claim| !matches!(&claim.lock, Lock::InUse(_, at) if is_old(at)));
    }

    /// State of the claim on a session's run; `None`: it was not asked for.
    fn poll(&mut self, session: &SessionKey) -> Option<Poll<Result<Option<String>>>> {
        self.settle();
        self.clock += 1;
        let run = run_of(session);
        let claim = self.runs.get_mut(&run)?;
        claim.last_use = self.clock;
        Some(match &claim.lock {
            Lock::Asked(..) => Poll::Pending,
            Lock::Held(_) => Poll::Ready(Ok(None)),
            Lock::Refused(reason) => Poll::Ready(Ok(Some(reason.clone()))),
            Lock::InUse(..) => match self.runs.remove(&run)?.lock {
                Lock::InUse(e, _) => Poll::Ready(Err(e)),
                _ => return None,
            },
        })
    }

    /// A run that was claimed to clean it is the first to be given up, so that to clean many runs costs the
    /// others nothing.
    pub(super) fn is_needed_no_more(&mut self, session: &SessionKey) {
        self.runs.get_mut(&run_of(session)).into_iter().for_each(|claim| claim.last_use = 0);
    }

    /// Tells whether the claim on a session's run is held or asked for.
    pub(super) fn is_claimed(&self, session: &SessionKey) -> bool {
        self.runs.get(&run_of(session)).is_some_and(|claim| !matches!(claim.lock, Lock::InUse(..)))
    }
}

impl Memory {
    /// The lock of a session's run, for a write that is handed over.
    ///
    /// # Errors
    /// It is not held.
    pub(super) fn run_lock(&self, session: &SessionKey) -> Result<Arc<RunLock>> {
        let unclaimed = || Error::store(format!("the memories of run {} are not claimed", session.run));
        self.claims.lock(session).cloned().ok_or_else(unclaimed)
    }

    /// Sees to it that no other process adds to the run of a session. Where there can be no lock its memory
    /// stays in RAM, and the reason is given.
    ///
    /// # Errors
    /// Another process adds to the run.
    pub(crate) fn claim(&mut self, session: &SessionKey) -> Poll<Result<Option<String>>> {
        if self.store.is_none() {
            return Poll::Ready(Ok(None));
        }
        if let Some(state) = self.claims.poll(session) {
            return state;
        }
        if self.claims.is_leaving(&run_of(session)) {
            return Poll::Pending;
        }
        let busy = || {
            let written = self.saver.iter().flat_map(Saver::sessions);
            let unsaved = self.idle.iter().filter(|(_, idle)| !idle.saved).map(|(session, _)| session);
            written.chain(unsaved).map(run_of).collect()
        };
        let left = self.claims.leave(busy);
        for (run, _) in &left {
            let sessions = self.idle.keys().filter(|session| run_of(session) == *run);
            let sessions: Vec<SessionKey> = sessions.cloned().collect();
            sessions.iter().for_each(|session| self.forget(session));
        }
        self.claims.ask(session, left);
        Poll::Pending
    }

    /// Sees to it that files of a session may be written or removed. (Its run may have been given up since an
    /// earlier turn's commit.)
    ///
    /// # Errors
    /// They may not.
    pub(crate) fn claim_to_write(&mut self, session: &SessionKey) -> Poll<Result<()>> {
        self.claim(session).map(|claimed| match claimed? {
            Some(reason) => Err(Error::store(reason)),
            None => Ok(()),
        })
    }
}
