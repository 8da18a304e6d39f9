//! Keeping what a turn left: blocks and tails after passes and at its end, the manifest once its record is on
//! disk. All of it is handed over here and written elsewhere ([`saver`](super::saver)); nothing counts as
//! stored before its answer.

use super::Memory;
use super::export::Stored;
use super::saver::{Cost, Written};
use super::session::{Pending, Session};
#[cfg(test)]
use crate::memory::recall::now;
use crate::store::manifest::Journal;
use crate::store::{Found, RunLock, Store};
use crate::{Request, Result, Retention, SessionKey};

impl Memory {
    /// Ends a pass: windowed layers of blocks that no row to come sees leave memory; those of a session that
    /// is stored are handed over to be written first.
    pub(crate) fn flush(&mut self, turn: u64, request: &Request, session: &mut Session) {
        if self.context.layout.window().is_none() {
            return;
        }
        let stored = self.persists(request);
        let sealed = if stored { session.sealed(&self.context, &mut self.arena) } else { None };
        if let (Some(mut export), Some(saver)) = (sealed, &mut self.saver) {
            let layout = self.context.layout.clone();
            let cost = Cost { bytes: export.bytes(), held: std::mem::take(&mut export.held) };
            let write = move |store: &Store| Written::Blocks(export.write(store, &layout));
            saver.push(&request.session, turn, cost, write);
        }
        session.trim_window(stored, &mut self.arena);
    }

    /// Takes note of blocks that were written for an active session.
    pub(crate) fn note(&mut self, session: &mut Session, stored: &Stored) {
        session.note(stored);
        session.trim_window(true, &mut self.arena);
    }

    /// Hands over what the disk lacks of a session whose turn has ended; until that is written it must stay
    /// as it is. `false`: there is no disk.
    pub(crate) fn save(&mut self, turn: u64, key: &SessionKey, session: &mut Session) -> bool {
        let (Some(store), Some(saver)) = (&self.store, &mut self.saver) else { return false };
        let mut export = session.export(key, store, &self.context, &mut self.arena);
        let layout = self.context.layout.clone();
        let cost = Cost { bytes: export.bytes(), held: std::mem::take(&mut export.held) };
        saver.push(key, turn, cost, move |store| Written::Session(export.write(store, &layout)));
        true
    }

    /// Takes note of a save; returns the manifest that waits for [`Memory::commit`].
    ///
    /// # Errors
    /// Not all of it could be written.
    pub(crate) fn pending(&self, key: &SessionKey, session: &mut Session, stored: Stored) -> Result<Pending> {
        session.note(&stored);
        match stored.error {
            Some(e) => Err(e),
            None => Ok(session.pending(key, self.token_ms, &self.context)),
        }
    }

    /// Hands over the last step of a turn's save: the manifest that says what the session is now, whose run is
    /// claimed ([`Memory::claim_to_write`]). Where there is none, a later turn's says it all, and is waited
    /// for. `false`: there is nothing to wait for.
    pub(crate) fn commit(&mut self, turn: u64, key: &SessionKey, pending: Option<Pending>) -> bool {
        if pending.is_none() && !self.is_committing(key) {
            self.saved(key);
            return false;
        }
        let lock = self.run_lock(key);
        let Some(saver) = &mut self.saver else { return false };
        let journal = if pending.is_some() { saver.take_journal(key) } else { None };
        let bytes = pending.as_ref().map_or(0, Pending::bytes);
        saver.push_manifest(key, turn, bytes, move |store| match pending {
            Some(pending) => match lock {
                Ok(lock) => pending.write(&lock, journal, store),
                Err(e) => Written::Manifest(Err(e), None),
            },
            None => Written::Manifest(Ok(0), None),
        });
        true
    }

    /// A session's manifest was written or, unless `is_saved`, could not be.
    pub(super) fn settle(&mut self, key: &SessionKey, is_saved: bool, journal: Option<Journal>) {
        if !is_saved {
            return;
        }
        self.saved(key);
        // A later one begins with the journal of this one, whose file it reads; a session that was forgotten
        // has none.
        if !self.is_committing(key) && (self.idle.contains_key(key) || self.claims.is_at_work(key)) {
            let journal = self.saver.as_mut().zip(journal);
            journal.into_iter().for_each(|(saver, journal)| saver.know(key, journal));
        }
        self.loader.iter().for_each(|loader| loader.ahead.compact());
    }

    /// A save that gets no last step: the manifest stays as it was, and so do the tails that it names, until
    /// the next one.
    pub(crate) fn abandon(&mut self, key: &SessionKey, pending: Option<Pending>) {
        if let Some(idle) = self.idle.get_mut(key) {
            idle.session.uncommit(pending);
        }
        self.saved(key);
    }

    /// A session's manifest says all that it ever will of its last turn.
    pub(crate) fn saved(&mut self, key: &SessionKey) {
        if let Some(idle) = self.idle.get_mut(key) {
            idle.saved = true;
        }
    }

    /// True if a session's turns are written to disk.
    pub(crate) fn persists(&self, request: &Request) -> bool {
        request.retention == Retention::Persistent && self.claims.holds(&request.session)
    }
}

impl Pending {
    /// Writes the manifest; `journal` is what it holds, if that is known.
    fn write(self, lock: &RunLock, journal: Option<Journal>, store: &Store) -> Written {
        let mut journal = journal.or_else(|| match store.read_manifest(&self.manifest.session()) {
            Found::Whole((_, journal, _)) => Some(journal),
            _ => None,
        });
        let bytes = store.write_manifest(lock, &self.manifest, &mut journal, &self.obsolete);
        let journal = journal.filter(|_| bytes.is_ok());
        Written::Manifest(bytes, journal)
    }
}

#[cfg(test)]
impl Memory {
    /// [`Memory::flush`], and waits until what it hands over is on disk; returns the bytes written.
    pub(crate) fn flush_now(&mut self, request: &Request, session: &mut Session) -> Result<u64> {
        self.flush(0, request, session);
        if !self.wait_for_a_write() {
            return Ok(0);
        }
        let Some(Written::Blocks(stored)) = self.written().map(|answer| answer.written) else {
            panic!("only blocks are under way")
        };
        self.note(session, &stored);
        stored.error.map_or(Ok(stored.bytes), Err)
    }

    /// [`Memory::save`], and waits until it is on disk; also gives the bytes written.
    pub(crate) fn save_now(&mut self, key: &SessionKey, session: &mut Session) -> Result<(Pending, u64)> {
        let mut bytes = 0;
        loop {
            assert!(self.save(0, key, session) && self.wait_for_a_write());
            let Some(Written::Session(stored)) = self.written().map(|answer| answer.written) else {
                panic!("only a session is under way")
            };
            bytes += stored.bytes;
            if !stored.lost_tail {
                return Ok((self.pending(key, session, stored)?, bytes));
            }
            self.note(session, &stored);
        }
    }

    /// [`Memory::commit`], and waits until the manifest is on disk; returns the bytes written.
    pub(crate) fn commit_now(&mut self, pending: Pending) -> Result<u64> {
        let key = pending.manifest.session();
        now(|| self.claim_to_write(&key))?;
        assert!(self.commit(0, &key, Some(pending)) && self.wait_for_a_write());
        match self.written().map(|answer| answer.written) {
            Some(Written::Manifest(bytes, _)) => bytes,
            _ => panic!("only a manifest is under way"),
        }
    }
}
