//! All sessions that are not active, in memory and on disk.
//!
//! [`at_rest`] holds them; [`opening`] finds what one has read, [`recall`] makes it ready for a prompt, which
//! may share a prefix with earlier ones ([`prefixes`]); [`adopt`] continues another device's, [`fork`] begins
//! one with another's memory, [`carry`] exports and imports whole ones, [`commit`] keeps what its turn left,
//! [`unfinished`] what a turn left that did not end, [`read_ahead`] reads for who is needed next,
//! [`eviction`] keeps the budget, [`claims`] other processes away.
//!
//! Nothing here waits: reads ([`loader`]), writes ([`saver`]) and locks ([`claims`]) are begun on an
//! [`io_pool`], whose threads wake the engine's when they are done, and polled.
//!
//! A [`session`] is a [`sequence`] with what it has read; the [`arena`] knows which blocks are in memory; a
//! [`pass`] is planned over both.

mod adopt;
pub(crate) mod arena;
mod at_rest;
pub(crate) mod carry;
mod claims;
mod commit;
mod eviction;
mod export;
mod fork;
pub(crate) mod io_pool;
mod loader;
pub(crate) mod opening;
pub(crate) mod pass;
mod prefixes;
mod read_ahead;
pub(crate) mod recall;
mod restore;
pub(crate) mod saver;
pub(crate) mod sequence;
pub(crate) mod session;
pub(crate) mod states;
mod unfinished;

pub(crate) use recall::Recalled;

use crate::device::Device;
use crate::share::Member;
use crate::store::Store;
use crate::text::tokenizer::Tokenizer;
use crate::{SessionKey, SessionStatus};
use arena::Arena;
use at_rest::{AtRest, Idle};
use claims::Claims;
use fork::Fork;
use io_pool::Wake;
use loader::Loader;
use prefixes::Prefixes;
use saver::Saver;
use session::{CacheContext, Session};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use unfinished::Unfinished;

/// Sessions in memory and on disk.
pub(crate) struct Memory {
    pub(crate) context: CacheContext,
    pub(crate) arena: Arena,
    pub(crate) store: Option<Arc<Store>>,
    forks: VecDeque<Fork>,
    /// Reads; none without a store.
    loader: Option<Loader>,
    /// Writes; none without a store.
    saver: Option<Saver>,
    claims: Claims,
    wake: Wake,
    idle: AtRest,
    unfinished: Unfinished,
    prefixes: Prefixes,
    /// Reason why there is no store though there should be one.
    pub(crate) storeless: Option<String>,
    /// Bytes that are on their way from disk to turns and exports.
    being_read: Arc<AtomicU64>,
    /// Bytes of active sessions beside sealed blocks, and of manifests that wait.
    pub(crate) at_work: u64,
    /// The budget, where engines share one.
    pub(crate) share: Option<Arc<Member>>,
    /// Milliseconds that a token of a prompt takes, by the latest measure.
    pub(crate) token_ms: f64,
    /// Decodes what raw prompts are cut into.
    pub(crate) tokenizer: Option<Arc<Tokenizer>>,
}

impl Memory {
    /// Nothing in memory yet; `budget` in bytes. Called where the threads are installed that compute.
    pub(crate) fn new(
        device: &Arc<dyn Device>,
        context: CacheContext,
        store: Option<Store>,
        budget: u64,
    ) -> Self {
        let (arena, wake) = (Arena::new(device, &context.layout, budget), Wake::default());
        let store = store.map(Arc::new);
        let loader = |store| Loader::new(store, context.layout.clone(), &wake);
        Self {
            arena,
            loader: store.as_ref().map(loader),
            saver: store.as_ref().map(|store| Saver::new(store, &wake)),
            claims: Claims::new(store.as_ref(), &wake),
            store,
            context,
            wake,
            idle: AtRest::default(),
            unfinished: Unfinished::default(),
            prefixes: Prefixes::default(),
            forks: VecDeque::new(),
            storeless: None,
            being_read: Arc::default(),
            at_work: 0,
            share: None,
            token_ms: 0.0,
            tokenizer: None,
        }
    }

    /// Calls `wake`, on another thread, whenever something was read, written or locked.
    pub(crate) fn wake_by(&self, wake: impl Fn() + Send + Sync + 'static) {
        self.wake.set(wake);
    }

    /// What wakes the engine's thread.
    pub(crate) fn wake(&self) -> &Wake {
        &self.wake
    }

    /// State of all sessions at rest in memory.
    pub(crate) fn sessions(&self) -> Vec<SessionStatus> {
        let status = |(key, idle): (&SessionKey, &Idle)| {
            let status = idle.session.status(key, &self.arena);
            SessionStatus { next_use: idle.next_use(), is_saved: idle.saved && status.is_saved, ..status }
        };
        self.idle.iter().map(status).collect()
    }

    /// Takes a session back after its turn.
    pub(crate) fn take_back(&mut self, key: SessionKey, session: Session, next_use: Option<u64>) {
        self.claims.rest(&key);
        self.keep(key, session, next_use);
    }

    /// Makes a session known that is not active.
    fn keep(&mut self, key: SessionKey, session: Session, next_use: Option<u64>) {
        debug_assert!(!self.claims.is_at_work(&key), "a session at work is elsewhere");
        if let Some(mut before) = self.idle.add(key, session, next_use) {
            before.session.sequence.clear(&mut self.arena);
        }
    }
}
