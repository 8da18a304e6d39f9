//! Managing memories while the engine runs: export and import as files, removal, listing.

use crate::cache::{Removed, StoredSession};
use crate::engine::Engine;
use crate::memory::carry::Import;
use crate::store::bound::Removal;
use crate::store::memory_file::SessionExport;
use crate::store::secret::random_secret;
use crate::text::check::check;
use crate::turns::worker::Command;
use crate::{Error, ErrorKind, Event, Imported, Result, SessionKey};
use std::io::{Read, Write};

impl Engine {
    /// Writes all of a session's memory as one file: what it has read and said, and its keys and values;
    /// returns its bytes. The file is signed with the cache folder's secret (of an engine without a folder:
    /// with the engine's), so that [`Engine::import`] knows it. It is not encrypted, and names the tenant.
    ///
    /// Call it where blocking is allowed: it waits for the engine, and writes on this thread. `to` is written
    /// in many pieces: buffer it.
    ///
    /// ```
    /// use greenroom_engine::*;
    ///
    /// # let model: &'static [u8] = fixtures::RandomModel::tiny(1).bytes().leak();
    /// let engine = Engine::open(EngineConfig::new(ModelSource::Bundled("tiny", model)))?;
    /// let mut ada = engine.agent("demo", "ada").max_tokens(8);
    /// ada.extend("Who are you?")?.blocking_finish()?;
    /// let mut file = Vec::new();
    /// engine.export(ada.key(), &mut file)?;
    /// let imported = engine.import(&mut &file[..], &SessionKey::new("demo", "twin"), false)?;
    /// assert!(imported.is_verbatim);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// `Request`: there is no such memory, or the engine's memories are encrypted, which an export
    /// would not be; `InUse`: a turn of the session is active; `Store`: `to` or the secret can't be written.
    pub fn export(&self, session: &SessionKey, to: &mut dyn Write) -> Result<u64> {
        if self.encrypts() {
            return Err(Error::request(
                "the memories of this engine are encrypted, but an export would not be, so it is refused",
            ));
        }
        let secret = self.secret()?;
        let session = session.clone();
        let answer = self.request(|answer| Command::Export { session, answer })?;
        answer.blocking_recv().map_err(|_| self.closed())??.write(&secret, to)
    }

    /// Gives a session the memory of a file that [`Engine::export`] wrote.
    ///
    /// The file is checked, never trusted. Its keys and values are taken as they are if this cache folder (or
    /// engine without one) signed them, for the same tenant, model, formats and numerics. Otherwise only its
    /// texts and ids are taken, which must match under this model's tokenizer, and the engine prefills them;
    /// [`Imported::reason`] says why. A damaged part of the keys and values is such a reason, too.
    ///
    /// The session's previous memory is removed only if `replace` is set. Call it where blocking is allowed:
    /// it waits until the memory is read and saved.
    ///
    /// # Errors
    /// `Request`: the file is not whole, its texts are not of this model, they do not fit in its
    /// context, or the session has a memory already; `InUse`: a turn of the session is active or waiting;
    /// `Store`: `from` can't be read.
    pub fn import(&self, from: &mut dyn Read, session: &SessionKey, replace: bool) -> Result<Imported> {
        let context = &self.inner.store_handle.context;
        let secret = if self.encrypts() { None } else { Some(self.secret()?) };
        let here = context.identity_of(&session.tenant);
        let (memory, reason) = SessionExport::read(from, secret.as_ref(), &here, &context.layout)?;
        // What is to be written must be complete: in memory alone, windows reach only as far as they are
        // kept.
        let lacks = || {
            let lacks = self.inner.store_handle.store.is_some() && !memory.is_complete(&context.layout);
            lacks.then(|| "it lacks layers with a window in the form that the folder stores".to_owned())
        };
        let reason = reason.or_else(lacks);
        if reason.is_some() {
            check(&memory.segments, &self.prompter().chat, &self.prompter().tokenizer)?;
        }
        let (tokens, is_verbatim, segments) = (memory.n_tokens(), reason.is_none(), memory.segments.clone());
        let memory = is_verbatim.then_some(memory);
        let import = Box::new(Import { session: session.clone(), segments, memory, replace });
        let mut turn = self.begin_turn(|id, events| Command::Import { id, import, events })?;
        loop {
            match turn.blocking_next() {
                Some(Event::Done(_)) => break,
                Some(Event::Failed(error)) => return Err(error),
                Some(_) => {}
                None => return Err(self.closed()),
            }
        }
        let reason = reason.or(turn.blocking_commit()?.usage.reason);
        Ok(Imported { tokens, is_verbatim, reason })
    }

    /// Deletes a session: from RAM, and its manifest, tail and blocks from the cache folder, unless other
    /// sessions need them. Its uncommitted turns can't be saved any more. No turn begins while it is deleted.
    ///
    /// The folder may be in use by other processes. What one of them has just found there and not yet
    /// committed may be removed; it is then computed again. The result counts the sessions (0 or 1) and bytes
    /// removed; where a manifest could not be read ([`Removed::unread`]) blocks stay until `cache gc`.
    ///
    /// # Errors
    /// `InUse`: a turn of the session is active, or another process uses its run; `Store`: a file
    /// can't be removed.
    pub async fn remove(&self, session: &SessionKey) -> Result<Removed> {
        let (session, to_make_room) = (session.clone(), false);
        let answer = self.request(|answer| Command::Remove { session, to_make_room, answer })?;
        answer.await.map_err(|_| self.closed())?
    }

    /// [`Engine::remove`] for callers without an async runtime.
    ///
    /// # Errors
    /// As [`Engine::remove`].
    pub fn blocking_remove(&self, session: &SessionKey) -> Result<Removed> {
        self.remove_one(session, false)
    }

    /// Removes rows kept only for rollback, then the least valuable sessions of all tenants, from the cache
    /// folder until it takes at most `limit` bytes, while the engine runs. The rules are those of
    /// [`Folder::shrink`](crate::cache::Folder::shrink), but what no session needs stays. Active sessions,
    /// those with a waiting request or commit, and those of runs that other engines use, stay as they are.
    /// Nothing happens without a folder. Call it where blocking is allowed.
    ///
    /// # Errors
    /// `Store`: the folder can't be read, or a file can't be written or removed; `Closed`: the engine's
    /// thread has ended.
    pub fn shrink(&self, limit: u64) -> Result<Removed> {
        match self.inner.store_handle.folder() {
            Some(folder) => folder.shrink_by(limit, &mut InUse(self)),
            None => Ok(Removed::default()),
        }
    }

    /// The sessions of a tenant that are stored in the cache folder, by run and agent; none without a folder.
    /// The folder's files are read on this thread, while the engine continues: a session that is being saved
    /// is reported as it was before or after. Manifests that can't be read are left out.
    ///
    /// # Errors
    /// The folder can't be read.
    pub fn stored(&self, tenant: &str) -> Result<Vec<StoredSession>> {
        let Some(folder) = self.inner.store_handle.folder() else { return Ok(Vec::new()) };
        let mut entries = folder.list()?;
        entries.retain(|entry| entry.session.tenant == tenant);
        Ok(entries)
    }

    fn remove_one(&self, session: &SessionKey, to_make_room: bool) -> Result<Removed> {
        let session = session.clone();
        let answer = self.request(|answer| Command::Remove { session, to_make_room, answer })?;
        answer.blocking_recv().map_err(|_| self.closed())?
    }

    /// Drops the rows of sealed blocks that a session keeps only to go back into them. While they go no turn
    /// begins.
    fn drop_rows(&self, session: &SessionKey) -> Result<Removed> {
        let session = session.clone();
        let answer = self.request(|answer| Command::DropRows { session, answer })?;
        answer.blocking_recv().map_err(|_| self.closed())?
    }

    fn encrypts(&self) -> bool {
        self.inner.store_handle.store.as_ref().is_some_and(|store| store.encrypts())
    }

    fn secret(&self) -> Result<[u8; 32]> {
        if let Some(secret) = self.inner.store_handle.secret.get() {
            return Ok(*secret);
        }
        let secret = match &self.inner.store_handle.store {
            Some(store) => store.export_secret()?,
            None => random_secret()?,
        };
        Ok(*self.inner.store_handle.secret.get_or_init(|| secret))
    }
}

/// Removal from the folder of a running engine: by its thread, which knows what is in use.
struct InUse<'a>(&'a Engine);

impl Removal for InUse<'_> {
    /// No manifest names yet what active turns have written, so it can't be distinguished from what no
    /// session needs.
    fn sweep(&mut self) -> Result<Removed> {
        Ok(Removed::default())
    }

    fn drop_rows(&mut self, session: &StoredSession) -> Result<Removed> {
        unless_in_use(self.0.drop_rows(&session.session))
    }

    fn remove(&mut self, sessions: &[StoredSession]) -> Result<Removed> {
        let mut removed = Removed::default();
        for entry in sessions {
            removed += unless_in_use(self.0.remove_one(&entry.session, true))?;
            if removed.unread > 0 {
                break;
            }
        }
        Ok(removed)
    }
}

/// Nothing is removed of what is in use.
fn unless_in_use(removed: Result<Removed>) -> Result<Removed> {
    match removed {
        Err(e) if e.kind() == ErrorKind::InUse => Ok(Removed::default()),
        removed => removed,
    }
}
