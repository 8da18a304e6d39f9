//! Sessions that come from outside or go there as a whole ([`SessionExport`]), or for good.

use super::Memory;
use super::Recalled;
use super::restore::LoadStats;
use super::session::Session;
use super::writer::{Cost, Written};
use crate::kv::layout::{BLOCK, Part};
use crate::kv::table::{BlockHash, Parts};
use crate::store::Store;
use crate::store::memory_file::{BlockParts, SessionExport};
use crate::store::remove::Unneeded;
use crate::text::prefix::{Segment, flatten};
use crate::{CacheSource, Error, MatchKind, Request, Result, SessionKey};
use std::collections::HashSet;

impl Memory {
    /// Tells whether a session that is not at work has a memory, in RAM or on disk; one on disk is known
    /// then.
    pub(crate) fn knows(&mut self, key: &SessionKey) -> bool {
        if !self.idle.contains_key(key) {
            self.hint_next_use(key, u64::MAX);
        }
        self.has(key)
    }

    /// Tells whether a session that is not at work has a memory, readable or not.
    pub(super) fn has(&self, key: &SessionKey) -> bool {
        self.idle.contains_key(key) || self.store.as_ref().is_some_and(|store| store.has_session(key))
    }

    /// All of a session at rest, as bytes.
    ///
    /// # Errors
    /// There is none, or the device fails.
    pub(crate) fn portable(&mut self, key: &SessionKey) -> Result<SessionExport> {
        let mut stats = LoadStats::default();
        self.wait_for(key, &mut stats);
        if let Some(mut idle) = self.idle.remove(key) {
            let portable = self.portable_of(key, &mut idle.session, &mut stats);
            self.idle.insert(key.clone(), idle);
            return portable;
        }
        let Some(mut session) = self.load(key, false, &mut stats) else {
            let reason = stats.reason.map_or(String::new(), |reason| format!(": {reason}"));
            let SessionKey { run, agent, .. } = key;
            return Err(Error::request(format!(
                "there is no memory of agent `{agent}` of run `{run}`{reason}"
            )));
        };
        self.journals.remove(key);
        let portable = self.portable_of(key, &mut session, &mut stats);
        session.sequence.clear(&mut self.arena);
        portable
    }

    fn portable_of(
        &mut self,
        key: &SessionKey,
        session: &mut Session,
        stats: &mut LoadStats,
    ) -> Result<SessionExport> {
        let n = session.sequence.len();
        self.restore(session, n, stats);
        self.restore_tail(session, stats);
        // Windows of the past, as far as they are still anywhere.
        let absent: Vec<(usize, Part)> = session.sequence.absent(session.sequence.len()).collect();
        for (block, part) in absent {
            self.refill(session, block, part, stats);
        }
        let export = |parts: Parts| -> Result<BlockParts> {
            let mut out = BlockParts::default();
            for part in Part::ALL {
                out[part as usize] = parts[part as usize].map(|id| self.arena.export(id)).transpose()?;
            }
            Ok(out)
        };
        let blocks = session.sequence.table().parts().map(export).collect::<Result<Vec<_>>>()?;
        let n_rows = session.sequence.len() % BLOCK;
        let rows = session.sequence.open_rows().map(|rows| self.arena.export_rows(rows, 0..n_rows));
        let rows = rows.transpose()?.unwrap_or_default();
        if self.store.is_some() {
            session.trim_window(true, &mut self.arena);
        }
        let identity = self.context.identity_with(&key.tenant, session.numerics.as_ref());
        Ok(SessionExport { identity, segments: session.segments.clone(), blocks, n_rows, rows })
    }

    /// Makes a session of a memory from outside that this one is to take as it is; what its name had is gone.
    ///
    /// # Errors
    /// Another process adds to the run.
    pub(crate) fn install(
        &mut self,
        request: &Request,
        prompt: &[Segment],
        memory: SessionExport,
    ) -> Result<Recalled> {
        let key = &request.session;
        let reason = self.claim(key)?.or_else(|| self.storeless.clone());
        self.wait_for(key, &mut LoadStats::default());
        let mut session = match self.idle.remove(key) {
            Some(idle) => idle.session.restart(&self.context, &key.tenant, &mut self.arena),
            None => self.fresh(request),
        };
        (session.segments, session.tokens) = (prompt.to_vec(), flatten(prompt));
        let parts = memory.blocks.iter().flatten().flatten();
        let room = parts.map(|block| block.len() as u64).sum::<u64>() + memory.rows.len() as u64;
        self.make_room(room, None);
        let hashes = session.sequence.root().chain(&session.tokens);
        for (hash, blocks) in hashes.into_iter().zip(memory.blocks) {
            let mut parts = Parts::default();
            for (part, bytes) in Part::ALL.into_iter().zip(blocks) {
                parts[part as usize] = bytes.map(|bytes| self.arena.insert((hash, part), bytes));
            }
            session.sequence.push_block(hash, parts);
        }
        if memory.n_rows > 0 {
            session.sequence.push_rows(self.arena.insert_rows(&memory.rows), memory.n_rows);
        }
        let (reused, n) = (session.sequence.len(), session.tokens.len());
        Ok(Recalled {
            session,
            kind: if reused == n { MatchKind::Exact } else { MatchKind::Extend },
            source: CacheSource::Memory,
            reused,
            recomputed: n - reused,
            bytes_read: 0,
            waited_ms: 0.0,
            prefetch_ms: 0.0,
            reason,
            divergence: None,
            adopted: None,
            aligned: None,
        })
    }

    /// Hands over the removal of the rows that a session at rest keeps only to go back; `false`: there is no
    /// disk. `spared` are files of rows that turns at work go on with.
    ///
    /// # Errors
    /// Another process adds to the run.
    pub(crate) fn drop_rows(&mut self, key: &SessionKey, mut spared: HashSet<String>) -> Result<bool> {
        self.wait_for_commits(key);
        if self.store.is_some() {
            self.claim_to_clean(key)?;
        }
        self.wait_for(key, &mut LoadStats::default());
        // A session that went back, or was forked, may go on with the rows of a block that another one has
        // sealed.
        spared.extend(self.idle.values().filter_map(|idle| idle.session.tail_file()).map(str::to_owned));
        self.forget_rows(key);
        let Some(writer) = &mut self.writer else { return Ok(false) };
        let session = key.clone();
        let write = move |store: &Store| Written::RowsDropped(store.drop_rows(&session, &spared));
        writer.push(key, 0, Cost::default(), write);
        Ok(true)
    }

    /// Forgets the rows that a session at rest keeps only to go back, and what its manifest holds: it is
    /// written again without them.
    pub(super) fn forget_rows(&mut self, key: &SessionKey) {
        if let Some(idle) = self.idle.get_mut(key) {
            idle.session.retire_earlier();
        }
        self.journals.remove(key);
    }

    /// Drops a session that is not at work from memory, and hands over the removal of its files; `None`:
    /// there is no disk, and so many sessions were dropped. `others` are the blocks that turns at work need.
    ///
    /// # Errors
    /// Another process adds to the run.
    pub(crate) fn remove(
        &mut self,
        key: &SessionKey,
        others: impl Iterator<Item = BlockHash>,
    ) -> Result<Option<usize>> {
        self.wait_for_commits(key);
        if self.store.is_some() {
            self.claim_to_clean(key)?;
        }
        self.wait_for(key, &mut LoadStats::default());
        let mut unneeded = Unneeded::default();
        let known = self.idle.get(key);
        if let Some(idle) = known {
            unneeded.blocks.extend(idle.session.sequence.table().hashes());
            unneeded.tails.extend(idle.session.own_files());
        }
        let n_known = usize::from(known.is_some());
        self.forget(key);
        self.drop_prefixes(key);
        let Some(writer) = &mut self.writer else { return Ok(Some(n_known)) };
        unneeded.needed_blocks.extend(others);
        for idle in self.idle.values() {
            unneeded.needed_blocks.extend(idle.session.sequence.table().hashes());
            unneeded.needed_tails.extend(idle.session.files());
        }
        let session = key.clone();
        writer.push(key, 0, Cost::default(), move |store| {
            let removed = store.remove_session(&session, unneeded);
            Written::Removed(removed.map(|mut removed| {
                removed.sessions = removed.sessions.max(n_known);
                removed
            }))
        });
        Ok(None)
    }
}
