//! All sessions that are not at work, in memory and on disk.
//!
//! [`at_rest`] holds them; [`recall`] makes one ready for a prompt, which may share a prefix with earlier
//! ones ([`prefixes`]); [`adopt`] continues another device's, [`carry`] exports and imports whole ones,
//! [`commit`] keeps what its turn left, [`unfinished`] what a turn left that did not end, [`read_ahead`]
//! reads for who is needed next, [`eviction`] keeps the budget, [`claims`] other processes away. The disk is
//! a [`io_pool`]'s: reads side by side; what a session has ([`export`]) and its manifest through the
//! [`writer`], in order. A [`session`] is a [`sequence`] with what it has read; the [`arena`] knows which
//! blocks are in memory; a [`pass`] is planned over both.

mod adopt;
pub(crate) mod arena;
mod at_rest;
mod carry;
mod claims;
mod commit;
mod eviction;
mod export;
mod io_pool;
pub(crate) mod pass;
mod prefixes;
mod read_ahead;
mod recall;
mod restore;
pub(crate) mod sequence;
pub(crate) mod session;
mod unfinished;
pub(crate) mod writer;

pub(crate) use recall::Recalled;

use crate::device::Device;
use crate::share::Member;
use crate::store::Store;
use crate::store::manifest::Journal;
use crate::text::tokenizer::Tokenizer;
use crate::{Result, SessionKey, SessionStatus};
use arena::Arena;
use at_rest::{AtRest, Idle};
use claims::Claims;
use greenroom_kernels::threads::n_threads;
use io_pool::{IoPool, Priority};
use prefixes::Prefixes;
use read_ahead::Ahead;
use restore::LoadStats;
use session::{CacheContext, Session};
use std::collections::HashMap;
use std::sync::Arc;
use unfinished::Unfinished;
use writer::Writer;

/// Sessions in memory and on disk.
pub(crate) struct Memory {
    pub(crate) context: CacheContext,
    pub(crate) arena: Arena,
    pub(crate) store: Option<Arc<Store>>,
    /// Threads that read for whoever waits; none without a store.
    readers: Option<IoPool>,
    /// Reads ahead; none without a store.
    ahead: Option<Ahead>,
    /// Writes; none without a store.
    writer: Option<Writer>,
    idle: AtRest,
    unfinished: Unfinished,
    prefixes: Prefixes,
    /// Contents of the manifests of sessions that this engine saved.
    journals: HashMap<SessionKey, Journal>,
    /// Faults found in a session's memory before it was asked for, in words.
    load_warnings: HashMap<SessionKey, String>,
    claims: Claims,
    /// Reason why there is no store though there should be one.
    pub(crate) storeless: Option<String>,
    clock: u64,
    /// Bytes of sessions at work beside sealed blocks, and of manifests that wait.
    pub(crate) at_work: u64,
    /// The budget, where engines share one.
    pub(crate) share: Option<Arc<Member>>,
    /// Milliseconds that a token of a prompt takes, by the latest measure.
    pub(crate) token_ms: f64,
    /// Decodes what raw prompts are cut into.
    pub(crate) tokenizer: Option<Arc<Tokenizer>>,
}

/// Threads that read for a turn that waits from a disk, at most: no more than compute.
const READERS: usize = 4;

impl Memory {
    /// Nothing in memory yet; `budget` in bytes. Called where the threads are installed that compute.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn new(
        device: &Arc<dyn Device>,
        context: CacheContext,
        store: Option<Store>,
        budget: u64,
    ) -> Result<Self> {
        let arena = Arena::new(device, &context.layout, budget);
        let store = store.map(Arc::new);
        let readers = |store: &Arc<Store>| {
            IoPool::new("greenroom-reader", store.n_readers(n_threads().min(READERS)), Priority::Same, store)
        };
        let readers = store.as_ref().map(readers).transpose()?;
        let ahead = store.as_ref().map(|store| Ahead::new(store, context.layout.clone())).transpose()?;
        let writer = store.as_ref().map(Writer::new).transpose()?;
        if let Some(ahead) = &ahead {
            ahead.compact();
        }
        let (idle, journals, load_warnings) = (AtRest::default(), HashMap::new(), HashMap::new());
        let (claims, storeless, clock, at_work, token_ms) = (Claims::default(), None, 0, 0, 0.0);
        Ok(Self {
            context,
            arena,
            store,
            readers,
            ahead,
            writer,
            idle,
            unfinished: Unfinished::default(),
            prefixes: Prefixes::default(),
            journals,
            load_warnings,
            claims,
            storeless,
            clock,
            at_work,
            share: None,
            token_ms,
            tokenizer: None,
        })
    }

    /// Gives a session the memory of another as it stands now. What it had in RAM alone goes for that; what
    /// is stored of it is kept, unless `replace`: then its first turn replaces it. A session that is at work
    /// stays as it is. (One that has no memory and whose parent is not at rest in memory begins with that at
    /// its first turn.)
    pub(crate) fn fork(&mut self, from: &SessionKey, to: SessionKey, replace: bool) {
        if *from == to || self.claims.is_at_work(&to) {
            return;
        }
        self.wait_for_commits(&to);
        let is_stored = self.store.as_ref().is_some_and(|store| store.has_session(&to));
        // (Where nothing is stored, the first call of the two, without `replace`, has done it.)
        if is_stored != replace {
            return;
        }
        let mut stats = LoadStats::default();
        self.wait_for(&to, &mut stats);
        self.collect(None);
        let forked = match self.idle.get(from) {
            Some(idle) => Some(idle.session.fork(&mut self.arena)),
            None if is_stored || self.idle.contains_key(&to) => self.load(from, true, &mut stats),
            None => None,
        };
        let Some(mut session) = forked else { return };
        let before = match self.idle.remove(&to) {
            Some(idle) => Some(idle.session),
            None if is_stored => self.load(&to, false, &mut stats),
            None => None,
        };
        if let Some(before) = before {
            session.replace(before, &mut self.arena);
        }
        self.journals.remove(&to); // whoever adds to it claims its run first, and reads it then
        // The file of the other's tail goes when that agent goes on.
        self.restore_tail(&mut session, &mut stats);
        self.keep(to, session, None);
    }

    /// Makes a session known that will speak: it can be read ahead then.
    pub(crate) fn hint_next_use(&mut self, key: &SessionKey, next_use: u64) {
        if self.idle.hint_next_use(key, next_use) {
            return;
        }
        let mut stats = LoadStats::default();
        let session = self.load(key, false, &mut stats);
        self.load_warnings.extend(stats.reason.map(|reason| (key.clone(), reason)));
        if let Some(session) = session {
            self.journals.remove(key); // whoever adds to it claims its run first, and reads it then
            self.keep(key.clone(), session, Some(next_use));
            self.saved(key);
        }
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
        self.claims.rests(&key);
        self.keep(key, session, next_use);
    }

    /// Makes a session known that is not at work.
    fn keep(&mut self, key: SessionKey, session: Session, next_use: Option<u64>) {
        debug_assert!(!self.claims.is_at_work(&key), "a session at work is elsewhere");
        self.clock += 1;
        let idle = Idle::new(session, next_use, self.clock);
        if let Some(mut before) = self.idle.insert(key, idle) {
            before.session.sequence.clear(&mut self.arena);
        }
    }
}
