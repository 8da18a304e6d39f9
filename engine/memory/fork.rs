//! Forks: a session begins with the memory of another as that stands now.
//!
//! What of it is in RAM is copied at once. Whether anything is stored of the new session, and what is on disk
//! alone, is read elsewhere; until then no turn of either begins.

use super::Memory;
use super::io_pool::Begun;
use super::session::Session;
use crate::SessionKey;
use crate::kv::layout::KvLayout;
use crate::store::log::Broken;
use crate::store::manifest::{Journal, Manifest};
use crate::store::tail::TailRef;
use crate::store::{Found, Store};
use std::collections::VecDeque;

/// A fork that was asked for.
pub(super) struct Fork {
    from: SessionKey,
    to: SessionKey,
    /// True if what is stored of `to` may be replaced.
    replace: bool,
    /// The memory of `from`, if that was in RAM.
    copied: Option<Session>,
    reading: Option<Begun<OnDisk>>,
}

/// What is on disk of the two.
struct OnDisk {
    from: Found<(Manifest, Journal, Option<Broken>)>,
    to: Found<(Manifest, Journal, Option<Broken>)>,
    is_stored: bool,
    /// The rows that the memory of `from` ends with.
    tail: Option<(TailRef, FoundRows)>,
}

/// The bytes of a tail's rows, and how many were read for them.
type FoundRows = Found<(Vec<u8>, u64)>;
impl Fork {
    /// The memory that was copied for it.
    pub(super) fn copied(&self) -> Option<&Session> {
        self.copied.as_ref()
    }
}

impl OnDisk {
    fn read(
        store: &Store,
        from: Option<&SessionKey>,
        to: &SessionKey,
        tail: Option<TailRef>,
        layout: &KvLayout,
    ) -> Self {
        let is_stored = store.has_session(to);
        let from = from.map_or(Found::Missing, |from| store.read_manifest(from));
        let ends_with = match &from {
            Found::Whole((manifest, ..)) => manifest.tail.clone(),
            _ => None,
        };
        let tail = tail.or(ends_with).map(|tail| {
            let rows = store.read_tail(&tail, layout);
            (tail, rows)
        });
        Self { from, to: store.read_manifest(to), is_stored, tail }
    }
}

impl Memory {
    /// Gives a session the memory of another as it stands now. What it had in RAM alone goes for that; what
    /// is stored of it is kept, unless `replace`: then its first turn replaces it. An active session stays as
    /// it is. (One that has no memory and whose parent is not at rest in memory begins with that at its first
    /// turn.) `exported`: `from`, while it is being exported.
    pub(crate) fn fork(
        &mut self,
        from: &SessionKey,
        exported: Option<&Session>,
        to: SessionKey,
        replace: bool,
    ) {
        if *from == to || self.claims.is_at_work(&to) {
            return;
        }
        let known = self.idle.get(from).map(|idle| &idle.session).or(exported);
        let copied = known.map(|session| session.fork(&mut self.arena));
        self.forks.push_back(Fork { from: from.clone(), to, replace, copied, reading: None });
        self.take_forks();
    }

    /// Tells whether a session is to be forked, or to become a fork.
    pub(crate) fn is_forking(&self, key: &SessionKey) -> bool {
        self.forks.iter().any(|fork| fork.from == *key || fork.to == *key)
    }

    /// Continues with the forks that were asked for, in order.
    pub(crate) fn take_forks(&mut self) {
        while let Some(mut fork) = self.forks.pop_front() {
            let waits = fork.reading.is_none()
                && (self.is_committing(&fork.to) || fork.copied.is_none() && self.is_committing(&fork.from));
            if fork.reading.is_none() && !waits {
                fork.reading = self.begin_fork(&fork);
            }
            let on_disk = match &fork.reading {
                Some(reading) => reading.poll().map(|(on_disk, _)| Some(on_disk)),
                None if waits => None,
                None => Some(None),
            };
            match on_disk {
                Some(on_disk) => self.finish_fork(fork, on_disk),
                None => return self.forks.push_front(fork),
            }
        }
    }

    /// Begins to read what is on disk of both; `None`: there is no disk.
    fn begin_fork(&self, fork: &Fork) -> Option<Begun<OnDisk>> {
        let from = fork.copied.is_none().then(|| fork.from.clone());
        let tail = fork.copied.as_ref().and_then(Session::absent_tail).cloned();
        let (to, layout) = (fork.to.clone(), self.context.layout.clone());
        let read = move |store: &Store| OnDisk::read(store, from.as_ref(), &to, tail, &layout);
        Some(self.loader.as_ref()?.pool(false).begin(read))
    }

    fn finish_fork(&mut self, fork: Fork, on_disk: Option<OnDisk>) {
        let Fork { from, to, replace, copied, .. } = fork;
        let is_stored = on_disk.as_ref().is_some_and(|on_disk| on_disk.is_stored);
        // (Where nothing is stored, the first call of the two, without `replace`, has done it.)
        if is_stored != replace {
            return copied.into_iter().for_each(|mut copied| copied.sequence.clear(&mut self.arena));
        }
        let none = (Found::Missing, Found::Missing, None);
        let (from_disk, to_disk, tail) = on_disk.map_or(none, |read| (read.from, read.to, read.tail));
        let forked = copied.or_else(|| {
            let is_known = is_stored || self.idle.contains_key(&to);
            let opened = self.opened(&from, from_disk, true, &mut None).filter(|_| is_known);
            opened.map(|(session, _)| session)
        });
        let Some(mut session) = forked else { return };
        let before = self.idle.remove(&to).map(|idle| idle.session);
        let stored = |to_disk| self.opened(&to, to_disk, false, &mut None).map(|(session, _)| session);
        if let Some(before) = before.or_else(|| stored(to_disk)) {
            session.replace(before, &mut self.arena);
        }
        // A turn that adds to it claims its run first, and reads its journal then.
        self.saver.iter_mut().for_each(|saver| drop(saver.take_journal(&to)));
        // The file of the other's tail goes when that agent goes on.
        if let Some((tail, found)) = tail.filter(|(tail, _)| session.absent_tail() == Some(tail)) {
            let _ = session.put_tail(&tail, found, &mut self.arena);
        }
        self.keep(to, session, None);
    }

    /// Forgets the forks that a session is to become.
    pub(super) fn drop_forks(&mut self, key: &SessionKey) {
        let (dropped, kept) = std::mem::take(&mut self.forks).into_iter().partition(|fork| fork.to == *key);
        self.forks = kept;
        let dropped: VecDeque<Fork> = dropped;
        for mut copied in dropped.into_iter().filter_map(|fork| fork.copied) {
            copied.sequence.clear(&mut self.arena);
        }
    }
}
