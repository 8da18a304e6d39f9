//! Keeping what a turn left: blocks and tails after passes and at its end, the manifest once its record is on disk.

use super::Memory;
use super::session::{Pending, Session};
use crate::store::Found;
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

    /// The last step of a save: the manifest says what the session is now. Returns the bytes written.
    pub(crate) fn commit(&mut self, pending: &Pending) -> Result<u64> {
        let key = pending.manifest.session();
        self.claim_to_commit(&key)?;
        let Some(store) = &self.store else { return Ok(0) };
        let mut journal = self.journals.remove(&key).or_else(|| match store.read_manifest(&key) {
            Found::Whole((_, journal, _)) => Some(journal),
            _ => None,
        });
        let written = store.write_manifest(&pending.manifest, &mut journal, &pending.obsolete)?;
        self.journals.extend(journal.map(|journal| (key.clone(), journal)));
        self.saved(&key);
        if let Some(ahead) = &self.ahead {
            ahead.compact();
        }
        Ok(written)
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
