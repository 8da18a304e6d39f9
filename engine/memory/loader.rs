//! Reads from the store, by threads: for turns that wait, ahead of those that will come, and of sessions that
//! will speak.

use super::Memory;
use super::io_pool::{Begun, IoPool, Priority, Wake};
use super::read_ahead::Ahead;
use crate::SessionKey;
use crate::kv::layout::KvLayout;
use crate::store::log::Broken;
use crate::store::manifest::{Journal, Manifest};
use crate::store::{Found, Store};
use greenroom_kernels::threads::n_threads;
use std::sync::Arc;

/// Maximum number of threads that read from a disk for a turn that waits: no more than compute.
const READERS: usize = 4;

/// A manifest that is being read, with what a writer must know to add to it.
pub(super) type BegunManifest = Begun<Found<(Manifest, Journal, Option<Broken>)>>;

/// Threads that read.
pub(super) struct Loader {
    hints: Vec<Hint>,
    pub(super) ahead: Ahead,
    /// For the turns that wait. (Last: it ends once nobody waits.)
    readers: IoPool<Store>,
}

/// A session that will speak, and is to be known then.
struct Hint {
    session: SessionKey,
    next_use: u64,
    /// Its manifest, once none of it is being written.
    manifest: Option<BegunManifest>,
}

impl Loader {
    /// Reads from `store`.
    pub(super) fn new(store: &Arc<Store>, layout: Arc<KvLayout>, wake: &Wake) -> Self {
        let n_readers = store.n_readers(n_threads().min(READERS));
        let readers = IoPool::new("greenroom-reader", n_readers, Priority::Same, store, wake);
        let ahead = Ahead::new(store, layout, wake);
        ahead.compact();
        Self { hints: Vec::new(), ahead, readers }
    }

    /// The threads that read for a turn that waits; `is_beside`: others compute, who go first.
    pub(super) fn pool(&self, is_beside: bool) -> &IoPool<Store> {
        if is_beside { self.ahead.io_pool() } else { &self.readers }
    }

    /// Forgets that a session will speak.
    pub(super) fn drop_hints(&mut self, session: &SessionKey) {
        self.hints.retain(|hint| hint.session != *session);
    }

    /// Drops the hints of a session; returns its manifest if that is being read for one.
    pub(super) fn take_over(&mut self, session: &SessionKey) -> Option<BegunManifest> {
        let hint = self.hints.iter_mut().find(|hint| hint.session == *session);
        let begun = hint.and_then(|hint| hint.manifest.take());
        self.drop_hints(session);
        begun
    }
}

impl Memory {
    /// Makes a session known that will speak: it can be read ahead then.
    pub(crate) fn hint_next_use(&mut self, key: &SessionKey, next_use: u64) {
        if !self.idle.hint_next_use(key, next_use)
            && let Some(loader) = &mut self.loader
        {
            match loader.hints.iter_mut().find(|hint| hint.session == *key) {
                Some(hint) => hint.next_use = next_use, // its manifest is being read already
                None => loader.hints.push(Hint { session: key.clone(), next_use, manifest: None }),
            }
            self.take_hints();
        }
    }

    /// Continues to make those sessions known.
    pub(crate) fn take_hints(&mut self) {
        let hints = self.loader.as_mut().map_or(Vec::new(), |loader| std::mem::take(&mut loader.hints));
        for mut hint in hints {
            let key = &hint.session;
            if self.claims.is_at_work(key) || self.idle.hint_next_use(key, hint.next_use) {
                continue;
            }
            if hint.manifest.is_none() && !self.is_committing(key) {
                hint.manifest = self.begin_manifest(key);
            }
            let Some((found, _)) = hint.manifest.as_ref().and_then(BegunManifest::poll) else {
                if let Some(loader) = &mut self.loader {
                    loader.hints.push(hint);
                }
                continue;
            };
            let mut reason = None;
            // A turn that adds to it claims its run first, and reads its journal then.
            let opened = self.opened(key, found, false, &mut reason);
            self.idle.warn(key, reason);
            if let Some((session, _)) = opened {
                self.keep(key.clone(), session, Some(hint.next_use));
                self.saved(key);
            }
        }
    }
}
