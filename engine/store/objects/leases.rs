//! Leases in an object store: the exclusive right to write a name, as long as it is renewed.
//!
//! A lease is an object, created if absent, renewed by compare-and-swap at a third of its duration, and
//! removed when it is given back. A process that finds one watches it: if it has not changed for its
//! duration, its owner is gone, and it is taken over by compare-and-swap. So no other machine's clock
//! matters. An owner that could not renew in time considers it lost until it can.
//!
//! Every process that uses the store has a lease of its own; a process that wants to be alone writes its wish
//! first and then looks for others, and they do it in the opposite order, so one of two sees the other.

use super::REQUESTS;
use super::origin::{Origin, Put};
use crate::store::files;
use crate::store::found::Failure;
use crate::store::medium::{Exclusive, Lease};
use crate::{Error, ErrorKind, Result};
use object_store::{PutMode, UpdateVersion};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

/// Leases of processes, of runs, of a process that moves what several share, of a process that is alone.
const USERS: &str = "users";
const RUNS: &str = "runs";
const PACKS_LOCK: &str = "packs.lock";
const ALONE: &str = "alone";

/// Tells a lease by its name.
pub(super) fn is_lease(name: &str) -> bool {
    [USERS, RUNS, PACKS_LOCK, ALONE].contains(&name.split('/').next().unwrap_or_default())
}

/// The leases of one process.
pub(super) struct Leases {
    shared: Arc<LeasesShared>,
    /// That of the process.
    own: Option<Lease>,
    renewer: Option<JoinHandle<()>>,
}

struct LeasesShared {
    origin: Arc<Origin>,
    ttl: Duration,
    /// Names this process.
    owner: String,
    /// Leases written: what changes is rewritten, for a version may be a hash of what is written.
    n_written: AtomicU64,
    state: Mutex<LeasesState>,
    wake: Condvar,
}

#[derive(Default)]
struct LeasesState {
    held: BTreeMap<String, HeldLease>,
    closed: bool,
}

struct HeldLease {
    version: UpdateVersion,
    since: Moment,
    /// Another process has it by now.
    taken: bool,
}

/// A moment by a clock that stops while the machine sleeps, and by one that can be set.
#[derive(Clone, Copy)]
struct Moment(Instant, SystemTime);

impl Moment {
    fn now() -> Self {
        Self(Instant::now(), SystemTime::now())
    }
}

impl HeldLease {
    fn is_lost(&self, ttl: Duration) -> bool {
        let Moment(instant, time) = self.since;
        self.taken || instant.elapsed() >= ttl || time.elapsed().is_ok_and(|elapsed| elapsed >= ttl)
    }
}

/// A lease that is held; given back when it is dropped.
struct Given {
    shared: Arc<LeasesShared>,
    name: String,
}

/// What is in a lease's place.
enum LeaseStatus {
    Nothing,
    /// It was renewed while it was watched.
    Alive,
    /// It was not, for its whole time.
    Dead(UpdateVersion),
}

impl Leases {
    /// Makes this process one that uses the store, whose server is found to heed conditions.
    ///
    /// # Errors
    /// It can't be reached or written, does not heed conditions, or is being cleaned.
    pub(super) fn enter(origin: Arc<Origin>, ttl: Duration) -> Result<Self> {
        let owner = u128::from_le_bytes(files::random()?);
        let shared = Arc::new(LeasesShared {
            origin,
            ttl,
            owner: format!("{owner:032x}"),
            n_written: AtomicU64::new(0),
            state: Mutex::default(),
            wake: Condvar::new(),
        });
        let renews = shared.clone();
        let thread = thread::Builder::new().name("greenroom-leases".into()).spawn(move || renews.renew());
        let renewer = thread
            .map_err(|e| Error::new(ErrorKind::Closed, format!("can't start a thread for leases: {e}")))?;
        let mut leases = Self { shared, own: None, renewer: Some(renewer) };
        // A lost answer looks as if conditions were ignored; but not repeatedly.
        for _ in 0..3 {
            leases.own = leases.probe()?;
            if leases.own.is_some() {
                break;
            }
        }
        let place = leases.shared.origin.name();
        if leases.own.is_none() {
            return Err(Error::store(format!(
                "{place} ignores If-None-Match and If-Match when objects are put, so two machines could \
                 overwrite each other's memories; use a server that supports them"
            )));
        }
        if leases.is_held(ALONE)? {
            return Err(Error::new(
                ErrorKind::InUse,
                format!("{place} is being cleaned by another process; try again"),
            ));
        }
        Ok(leases)
    }

    /// Takes the lease of this process by every operation on leases; `None` if one does not respect its
    /// condition.
    fn probe(&self) -> Result<Option<Lease>> {
        let origin = &self.shared.origin;
        let name = format!("{USERS}/{:032x}", u128::from_le_bytes(files::random()?));
        let put = |mode| origin.put(&name, self.shared.text().as_bytes(), mode);
        let Put::Done(first) = put(PutMode::Create)? else { return Ok(None) };
        let again = put(PutMode::Create)?;
        let began = Moment::now();
        let swapped = put(PutMode::Update(first.clone()))?;
        let stale = put(PutMode::Update(first))?;
        if let (Put::Refused, Put::Done(version), Put::Refused) = (again, swapped, stale) {
            return Ok(Some(self.hold(&name, version, began)));
        }
        origin.remove(&name)?;
        Ok(None)
    }

    /// Takes a lease; `None`: a live process has it. Waits for its duration if that has to be found out.
    pub(super) fn claim(&self, name: &str) -> Result<Option<Lease>> {
        let mut mode = PutMode::Create;
        loop {
            if self.shared.state().held.contains_key(name) {
                return Ok(None);
            }
            let began = Moment::now();
            if let Put::Done(version) = self.shared.origin.put(name, self.shared.text().as_bytes(), mode)? {
                return Ok(Some(self.hold(name, version, began)));
            }
            match self.watch(name)? {
                LeaseStatus::Nothing => mode = PutMode::Create,
                LeaseStatus::Alive => return Ok(None),
                LeaseStatus::Dead(version) => mode = PutMode::Update(version),
            }
        }
    }

    /// The store for this process alone; `None`: others use it. What dead ones left of leases is removed.
    pub(super) fn alone(&self) -> Result<Option<Lease>> {
        let Some(lease) = self.claim(ALONE)? else { return Ok(None) };
        let origin = &self.shared.origin;
        let others = |folder| -> Result<Vec<String>> {
            let mut names: Vec<String> = origin.list(folder)?.into_iter().map(|(name, _)| name).collect();
            names.retain(|name| !self.shared.state().held.contains_key(name));
            Ok(names)
        };
        for some in others(USERS)?.chunks(REQUESTS) {
            // Each is watched for the time of a lease, so several are at once.
            let held = thread::scope(|scope| {
                let watched: Vec<_> = some.iter().map(|name| scope.spawn(|| self.is_held(name))).collect();
                let held = watched.into_iter().map(|thread| thread.join());
                held.map(|held| held.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                    .try_fold(false, |any, held| Ok::<_, Error>(any || held?))
            })?;
            if held {
                return Ok(None);
            }
        }
        for name in others(RUNS)? {
            origin.remove(&name)?;
        }
        Ok(Some(lease))
    }

    /// Returns whether a live process holds a lease; removes one of a dead owner.
    fn is_held(&self, name: &str) -> Result<bool> {
        match self.watch(name)? {
            LeaseStatus::Nothing => Ok(false),
            LeaseStatus::Alive => Ok(true),
            LeaseStatus::Dead(version) => {
                // Taken over first, so that no new one is removed.
                let text = self.shared.text();
                match self.shared.origin.put(name, text.as_bytes(), PutMode::Update(version))? {
                    Put::Done(_) => self.shared.origin.remove(name).map(|()| false),
                    Put::Refused => Ok(true),
                }
            }
        }
    }

    /// Renews what was not renewed in time, if nobody has taken it since.
    ///
    /// # Errors
    /// The lease of the process was taken: what it knows to be there may have been removed.
    pub(super) fn renew_lost(&self) -> Result<()> {
        self.shared.renew_lapsed(|_| true);
        let taken = |(name, held): (&String, &HeldLease)| held.taken && name.starts_with(USERS);
        if self.shared.state().held.iter().any(taken) {
            return Err(Error::store(format!(
                "this process lost contact with {} for more than {} s, and data that nobody needed there was \
                 removed in the meantime; start it again",
                self.shared.origin.name(),
                self.shared.ttl.as_secs()
            )));
        }
        Ok(())
    }

    /// Tells whether a lease was lost that is still held for one's own: then others may have written since.
    pub(super) fn is_any_lost(&self) -> bool {
        self.shared.state().held.values().any(|held| held.is_lost(self.shared.ttl))
    }

    fn hold(&self, name: &str, version: UpdateVersion, since: Moment) -> Lease {
        self.shared.state().held.insert(name.to_owned(), HeldLease { version, since, taken: false });
        self.shared.wake.notify_all();
        Box::new(Given { shared: self.shared.clone(), name: name.to_owned() })
    }

    /// Watches a lease until it changes, or has not for its duration.
    fn watch(&self, name: &str) -> Result<LeaseStatus> {
        let LeasesShared { origin, ttl, .. } = &*self.shared;
        let began = Instant::now();
        let mut first: Option<UpdateVersion> = None;
        loop {
            match (origin.get(name), &first) {
                (Err(Failure::Missing), _) => return Ok(LeaseStatus::Nothing),
                (Err(failure), _) => return Err(Error::store(format!("{name}: {failure}"))),
                // Its own write, whose answer was lost.
                (Ok((bytes, version)), _) if self.shared.wrote(&bytes) => {
                    return Ok(LeaseStatus::Dead(version));
                }
                (Ok((_, version)), Some(seen)) if *seen != version => return Ok(LeaseStatus::Alive),
                (Ok((_, version)), _) if began.elapsed() > *ttl => return Ok(LeaseStatus::Dead(version)),
                (Ok((_, version)), _) => first = Some(version),
            }
            thread::sleep((*ttl / 10).min(Duration::from_millis(500)));
        }
    }
}

impl LeasesShared {
    fn state(&self) -> MutexGuard<'_, LeasesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A lease's text: its owner, and a number that is new each time.
    fn text(&self) -> String {
        format!("{} {}\n", self.owner, self.n_written.fetch_add(1, Ordering::Relaxed))
    }

    fn wrote(&self, bytes: &[u8]) -> bool {
        bytes.starts_with(self.owner.as_bytes())
    }

    /// Renews those of these leases that were not renewed in time, if nobody has taken them.
    fn renew_lapsed(&self, these: impl Fn(&str) -> bool) {
        let lapsed = |name: &str, held: &HeldLease| these(name) && !held.taken && held.is_lost(self.ttl);
        for (name, version) in self.matching(lapsed) {
            self.renew_one(&name, version);
        }
    }

    fn matching(&self, is: impl Fn(&str, &HeldLease) -> bool) -> Vec<(String, UpdateVersion)> {
        let state = self.state();
        let held = state.held.iter().filter(|(name, held)| is(name, held));
        held.map(|(name, held)| (name.clone(), held.version.clone())).collect()
    }

    /// Renews all leases until the end.
    fn renew(&self) {
        let due = self.ttl / 3;
        let mut state = self.state();
        while !state.closed {
            let held = state.held.values().filter(|held| !held.taken);
            let next = held.map(|held| due.saturating_sub(held.since.0.elapsed())).min();
            // One that could not be renewed is due, and tried again soon.
            let wait = next.map_or(Duration::from_secs(3600), |next| next.max(self.ttl / 20));
            drop(self.wake.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner));
            for (name, version) in self.matching(|_, held| !held.taken && held.since.0.elapsed() >= due) {
                self.renew_one(&name, version);
            }
            state = self.state();
        }
    }

    fn renew_one(&self, name: &str, version: UpdateVersion) {
        let now = Moment::now();
        let put = match self.origin.put(name, self.text().as_bytes(), PutMode::Update(version)) {
            // It may have succeeded before, if its answer was lost.
            Ok(Put::Refused) => match self.origin.get(name) {
                Ok((bytes, version)) if self.wrote(&bytes) => Ok(Put::Done(version)),
                Ok(_) | Err(Failure::Missing) => Ok(Put::Refused),
                Err(failure) => Err(Error::store(format!("{name}: {failure}"))),
            },
            put => put,
        };
        let mut state = self.state();
        let Some(held) = state.held.get_mut(name) else { return };
        match put {
            Ok(Put::Done(version)) => (held.version, held.since) = (version, now),
            Ok(Put::Refused) => held.taken = true,
            Err(e) => tracing::debug!("{e}"),
        }
        if held.is_lost(self.ttl) {
            tracing::warn!("the lease {name} was lost; another process may continue with its memories");
        }
    }
}

impl Exclusive for Given {
    fn is_taken(&self) -> bool {
        self.shared.state().held.get(&self.name).is_none_or(|held| held.taken)
    }

    fn confirm(&self) -> Result<()> {
        self.shared.renew_lapsed(|name| name == self.name);
        if self.is_taken() {
            return Err(taken());
        }
        let lost = self.shared.state().held.get(&self.name).is_none_or(|held| held.is_lost(self.shared.ttl));
        let place = self.shared.origin.name();
        if lost {
            Err(Error::store(format!("a lease in {place} could not be renewed in time")))
        } else {
            Ok(())
        }
    }
}

/// The error of one who would write what another process has continued with.
pub(super) fn taken() -> Error {
    let reason = "another process has continued with this memory since this process lost its lease";
    Error::new(ErrorKind::InUse, reason)
}

impl Drop for Given {
    fn drop(&mut self) {
        let held = self.shared.state().held.remove(&self.name);
        if held.is_some_and(|held| !held.is_lost(self.shared.ttl))
            && let Err(e) = self.shared.origin.remove(&self.name)
        {
            tracing::debug!("{e}"); // it ends by itself
        }
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        self.own = None;
        self.shared.state().closed = true;
        self.shared.wake.notify_all();
        if let Some(renewer) = self.renewer.take() {
            let _ = renewer.join();
        }
    }
}
