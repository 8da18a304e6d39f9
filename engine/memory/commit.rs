//! Keeping what a turn left: blocks and tails after passes and at its end, the manifest once its record is on disk.

use super::Memory;
use super::session::{Pending, Session};
use super::writer::Written;
use crate::store::manifest::Journal;
use crate::store::{Found, Store};
use crate::{Request, Result, Retention, SessionKey};

impl Memory {
    /// Flushes a session after a pass over it: see [`Session::flush`].
    pub(crate) fn flush(&mut self, request: &Request, session: &mut Session) -> Result<u64> {
        let store = self.store.as_deref().filter(|_| request.retention == Retention::Persistent);
        session.flush(store, &self.context, &mut self.arena)
    }

    /// Writes what the disk lacks of a session; its manifest waits for [`Memory::commit`]. Also gives the bytes written.
    pub(crate) fn save(&mut self, key: &SessionKey, session: &mut Session) -> Result<Option<(Pending, u64)>> {
        let Some(store) = &self.store else { return Ok(None) };
        session.save(key, self.token_ms, store, &self.context, &self.arena).map(Some)
    }

    /// Hands over the last step of a turn's save: the manifest that says what the session is now. Where there is none, a later
    /// turn's says it all, and is waited for. `false`: there is nothing to wait for.
    ///
    /// # Errors
    /// It may not be written.
    pub(crate) fn commit(&mut self, turn: u64, key: &SessionKey, pending: Option<Pending>) -> Result<bool> {
        let journal = match &pending {
            Some(_) => {
                self.claim_to_commit(key)?;
                self.journals.remove(key)
            }
            None if self.is_being_written(key) => None,
            None => {
                self.saved(key);
                return Ok(false);
            }
        };
        let Some(writer) = &mut self.writer else { return Ok(false) };
        let bytes = pending.as_ref().map_or(0, Pending::bytes);
        writer.push(key, turn, bytes, move |store| match pending {
            Some(pending) => pending.write(journal, store),
            None => Written::Manifest(Ok(0), None),
        });
        Ok(true)
    }

    /// A session's manifest was written or, unless `is_saved`, could not be.
    pub(super) fn settle(&mut self, key: &SessionKey, is_saved: bool, journal: Option<Journal>) {
        if !is_saved {
            return;
        }
        self.saved(key);
        // A later one begins with the journal of this one, whose file it reads; whoever was forgotten has none.
        if !self.is_being_written(key) && (self.idle.contains_key(key) || self.claims.is_at_work(key)) {
            self.journals.extend(journal.map(|journal| (key.clone(), journal)));
        }
        if let Some(ahead) = &self.ahead {
            ahead.compact();
        }
    }

    /// A save that gets no last step: the manifest stays as it was, and so do the tails that it names, until the next one.
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

    /// Tells whether a session's turns are written to disk.
    pub(crate) fn persists(&self, request: &Request) -> bool {
        request.retention == Retention::Persistent && self.claims.holds(&request.session)
    }
}

impl Pending {
    /// Writes the manifest; `journal` is what it holds, if that is known.
    fn write(self, journal: Option<Journal>, store: &Store) -> Written {
        let mut journal = journal.or_else(|| match store.read_manifest(&self.manifest.session()) {
            Found::Whole((_, journal, _)) => Some(journal),
            _ => None,
        });
        let bytes = store.write_manifest(&self.manifest, &mut journal, &self.obsolete);
        let journal = journal.filter(|_| bytes.is_ok());
        Written::Manifest(bytes, journal)
    }
}

#[cfg(test)]
impl Memory {
    /// Writes a manifest and waits until it is on disk; returns the bytes written.
    pub(crate) fn commit_now(&mut self, pending: Pending) -> Result<u64> {
        let key = pending.manifest.session();
        self.commit(0, &key, Some(pending))?;
        self.wait_for_writes(&key);
        match self.written().expect("an answer").written {
            Written::Manifest(bytes, _) => bytes,
        }
    }
}
