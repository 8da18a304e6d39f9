//! Sessions that come from outside or go there as a whole ([`SessionExport`]), or for good.

use super::Memory;
use super::Recalled;
use super::at_rest::Idle;
use super::fork::Fork;
use super::opening::Opening;
use super::restore::{BegunTail, LoadStats, Reading, Restore};
use super::saver::{Cost, Written};
use super::session::Session;
use super::states::{States, borders};
use crate::kv::layout::{BLOCK, Part};
use crate::kv::table::{BlockHash, Parts};
use crate::store::Store;
use crate::store::memory_file::{BlockParts, SessionExport};
use crate::store::remove::Unneeded;
use crate::text::prefix::{Segment, flatten};
use crate::{CacheSource, Error, MatchKind, Request, Result, SessionKey};
use std::collections::HashSet;
use std::task::Poll;

/// A memory from outside.
pub(crate) struct Import {
    pub(crate) session: SessionKey,
    pub(crate) segments: Vec<Segment>,
    /// Its keys and values, if they are taken as they are; else the segments are read.
    pub(crate) memory: Option<SessionExport>,
    /// True if what the session had before may go.
    pub(crate) replace: bool,
}

/// A session that is brought together to be given outside: it is out of the memory meanwhile.
pub(crate) struct Exporting {
    key: SessionKey,
    opening: Opening,
    /// The session, once it is known, and whether it is known without this.
    idle: Option<(Idle, bool)>,
    stats: LoadStats,
    tail: Option<BegunTail>,
    step: ExportStep,
}

/// The step that it is at.
enum ExportStep {
    /// Its manifest.
    Opening,
    /// Its blocks.
    Blocks(Restore),
    /// The rows of its open block.
    Tail,
    /// Windows of the past, as far as they are still anywhere.
    Windows(Reading),
}

impl Exporting {
    /// An export of a session at rest.
    pub(crate) fn new(key: SessionKey) -> Self {
        let (opening, idle, tail) = Default::default();
        // Active turns go first.
        let stats = LoadStats { is_beside: true, ..LoadStats::default() };
        Self { key, opening, idle, stats, tail, step: ExportStep::Opening }
    }

    /// The session.
    pub(crate) fn key(&self) -> &SessionKey {
        &self.key
    }

    /// What of it is known.
    pub(crate) fn session(&self) -> Option<&Session> {
        self.idle.as_ref().map(|(idle, _)| &idle.session)
    }

    /// It is not to be known any more afterwards.
    pub(crate) fn forget(&mut self) {
        self.idle.iter_mut().for_each(|(_, stays)| *stays = false);
    }
}

impl Memory {
    /// Continues to bring a session together; ready with all of it, as bytes.
    ///
    /// # Errors
    /// There is none, or the device fails.
    pub(crate) fn poll_export(&mut self, exporting: &mut Exporting) -> Poll<Result<SessionExport>> {
        loop {
            let Exporting { key, opening, idle, stats, tail, step } = &mut *exporting;
            if let (ExportStep::Opening, None) = (&step, &idle) {
                if self.is_being_read(key) {
                    return Poll::Pending;
                }
                let known = self.idle.remove(key).map(|idle| (idle, true));
                *idle = match known {
                    Some(known) => Some(known),
                    None => {
                        let Poll::Ready(found) = self.poll_own(key, opening, stats) else {
                            return Poll::Pending;
                        };
                        found.map(|(session, _)| (Idle::new(session, None, 0), false))
                    }
                };
                self.claims.take_out(key);
            }
            let Some((Idle { session, .. }, _)) = idle else {
                self.claims.rest(key);
                let reason = stats.reason.take().map_or(String::new(), |reason| format!(": {reason}"));
                let SessionKey { run, agent, .. } = &*key;
                let found = format!("there is no memory of agent `{agent}` of run `{run}`{reason}");
                return Poll::Ready(Err(Error::request(found)));
            };
            *step = match step {
                ExportStep::Opening => ExportStep::Blocks(Restore::to(session.sequence.len(), session)),
                ExportStep::Blocks(restore) => match self.poll_restore(session, restore, stats) {
                    None => return Poll::Pending,
                    Some(_) => ExportStep::Tail,
                },
                ExportStep::Tail => {
                    if !self.poll_tail(session, tail, stats) {
                        return Poll::Pending;
                    }
                    let absent: Vec<(usize, Part)> =
                        session.sequence.absent(session.sequence.len()).collect();
                    let absent = self.refill_held(session, absent);
                    ExportStep::Windows(self.begin_reading_each(absent, stats))
                }
                ExportStep::Windows(reading) => {
                    let Some(read) = self.poll_reading(reading, stats) else { return Poll::Pending };
                    let read = reading.wanted().iter().copied().zip(read);
                    self.refill(session, read, stats);
                    let exported = self.exported(key, session);
                    self.end_export(exporting);
                    return Poll::Ready(exported);
                }
            };
        }
    }

    /// Puts a session back that was being exported.
    pub(crate) fn end_export(&mut self, exporting: &mut Exporting) {
        let key = &exporting.key;
        match exporting.idle.take() {
            Some((idle, true)) => drop(self.idle.insert(key.clone(), idle)),
            Some((mut idle, false)) => idle.session.sequence.clear(&mut self.arena),
            None => {}
        }
        self.claims.rest(key);
    }

    /// All of a session that is in memory, as bytes.
    fn exported(&mut self, key: &SessionKey, session: &mut Session) -> Result<SessionExport> {
        let export = |parts: Parts| -> Result<BlockParts> {
            let mut out = BlockParts::default();
            for part in Part::OF_BLOCKS {
                out[part as usize] = parts[part as usize].map(|id| self.arena.export(id)).transpose()?;
            }
            Ok(out)
        };
        let blocks = session.sequence.table().parts().map(export).collect::<Result<Vec<_>>>()?;
        let n_rows = session.sequence.len() % BLOCK;
        let rows = session.sequence.open_rows().map(|rows| self.arena.export_rows(rows, 0..n_rows));
        let rows = rows.transpose()?.unwrap_or_default();
        // Those that it can go on from, or back to, with what is exported.
        let end = session.sequence.len();
        let known = session.sequence.states().into_iter().flat_map(States::known);
        let known = known.filter(|(at, ..)| *at <= end && (at % BLOCK == 0 || at / BLOCK == end / BLOCK));
        let states = known.filter_map(|(at, _, id)| Some((at, id?)));
        let states = states.map(|(at, id)| Ok((at, self.arena.export(id)?))).collect::<Result<Vec<_>>>()?;
        if self.store.is_some() {
            session.trim_window(true, &mut self.arena);
        }
        let identity = self.context.identity_with(&key.tenant, session.numerics.as_ref());
        Ok(SessionExport { identity, segments: session.segments.clone(), blocks, n_rows, rows, states })
    }

    /// Makes a session of a memory from outside that this one is to take as it is, whose run is claimed; what
    /// its name had is gone.
    pub(crate) fn install(
        &mut self,
        request: &Request,
        prompt: &[Segment],
        memory: SessionExport,
    ) -> Recalled {
        let key = &request.session;
        let reason = self.claims.begin(key).or_else(|| self.storeless.clone());
        self.idle.take_warning(key);
        let mut session = match self.idle.remove(key) {
            Some(idle) => idle.session.restart(&self.context, &key.tenant, &mut self.arena),
            None => self.fresh(request),
        };
        (session.segments, session.tokens) = (prompt.to_vec(), flatten(prompt));
        let parts = memory.blocks.iter().flatten().flatten();
        let states = memory.states.iter().map(|(_, state)| state.len() as u64).sum::<u64>();
        let room = parts.map(|block| block.len() as u64).sum::<u64>() + memory.rows.len() as u64 + states;
        self.make_room(room, None);
        if let Some(states) = session.sequence.states_mut() {
            states.set_borders(borders(prompt, false));
        }
        let hashes = session.sequence.chain(&session.tokens, 0);
        for (hash, blocks) in hashes.into_iter().zip(memory.blocks) {
            let mut parts = Parts::default();
            for (part, bytes) in Part::OF_BLOCKS.into_iter().zip(blocks) {
                parts[part as usize] = bytes.map(|bytes| self.arena.insert((hash, part), bytes));
            }
            session.sequence.push_block(hash, parts);
        }
        if memory.n_rows > 0 {
            session.sequence.push_rows(self.arena.insert_rows(&memory.rows), memory.n_rows);
        }
        for (at, bytes) in memory.states {
            let hash = session.sequence.address(&session.tokens, at);
            let id = self.arena.insert((hash, Part::State), bytes);
            let states = session.sequence.states_mut().expect("a memory with states is one of such a model");
            states.add(at, hash, Some(id), false, &mut self.arena);
        }
        let place = session.sequence.place(session.sequence.len());
        session.rewind(place, &mut self.arena);
        let (reused, n) = (session.sequence.len(), session.tokens.len());
        Recalled {
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
        }
    }

    /// Hands over the removal of the rows that a session at rest keeps only to go back, whose run is claimed;
    /// `false`: there is no disk. `spared` are files of rows that active turns continue with.
    pub(crate) fn drop_rows(&mut self, key: &SessionKey, mut spared: HashSet<String>) -> bool {
        // A session that went back, or was forked, may go on with the rows of a block that another one has
        // sealed.
        let at_rest = self.idle.values().map(|idle| &idle.session);
        let others = at_rest.chain(self.forks.iter().filter_map(Fork::copied));
        spared.extend(others.filter_map(Session::tail_file).map(str::to_owned));
        self.forget_rows(key);
        let lock = self.run_lock(key);
        let Some(saver) = &mut self.saver else { return false };
        let session = key.clone();
        let write = move |store: &Store| {
            Written::RowsDropped(lock.and_then(|lock| store.drop_rows(&lock, &session, &spared)))
        };
        saver.push(key, 0, Cost::default(), write);
        true
    }

    /// Forgets the rows that a session at rest keeps only to go back, and what its manifest holds: it is
    /// written again without them.
    pub(super) fn forget_rows(&mut self, key: &SessionKey) {
        if let Some(idle) = self.idle.get_mut(key) {
            idle.session.retire_earlier();
        }
        self.saver.iter_mut().for_each(|saver| drop(saver.take_journal(key)));
    }

    /// Drops a session that is not active from memory, and hands over the removal of its files, whose run is
    /// claimed; `None`: there is no disk, and so many sessions were dropped. `blocks` and `tails` are needed
    /// by others that are not at rest.
    pub(crate) fn remove(
        &mut self,
        key: &SessionKey,
        blocks: Vec<BlockHash>,
        tails: Vec<String>,
    ) -> Option<usize> {
        let mut unneeded = Unneeded::default();
        let known = self.idle.get(key);
        if let Some(idle) = known {
            unneeded.blocks.extend(idle.session.sequence.hashes());
            unneeded.tails.extend(idle.session.own_files());
        }
        let n_known = usize::from(known.is_some());
        self.forget(key);
        self.prefixes.forget(key, &mut self.arena);
        let lock = self.run_lock(key);
        let Some(saver) = &mut self.saver else { return Some(n_known) };
        unneeded.needed_blocks.extend(blocks);
        unneeded.needed_tails.extend(tails);
        let at_rest = self.idle.values().map(|idle| &idle.session);
        for session in at_rest.chain(self.forks.iter().filter_map(Fork::copied)) {
            unneeded.needed_blocks.extend(session.sequence.hashes());
            unneeded.needed_tails.extend(session.files());
        }
        let session = key.clone();
        saver.push(key, 0, Cost::default(), move |store| {
            let removed = lock.and_then(|lock| store.remove_session(&lock, &session, unneeded));
            Written::Removed(removed.map(|mut removed| {
                removed.sessions = removed.sessions.max(n_known);
                removed
            }))
        });
        None
    }

    /// True if files of a session may be removed now: none of it is being written, and its run is claimed. A
    /// run that `was_claimed` not before is the first to be given up afterwards.
    ///
    /// # Errors
    /// They may not.
    pub(crate) fn poll_to_clean(&mut self, key: &SessionKey, was_claimed: bool) -> Poll<Result<()>> {
        if self.is_committing(key) || self.is_forking(key) {
            return Poll::Pending;
        }
        if self.store.is_none() {
            return Poll::Ready(Ok(()));
        }
        let claimed = self.claim_to_write(key);
        if claimed.is_ready() && !was_claimed {
            self.claims.is_needed_no_more(key);
        }
        claimed
    }

    /// Tells whether a session's run is claimed, or about to be.
    pub(crate) fn is_claimed(&self, key: &SessionKey) -> bool {
        self.claims.is_claimed(key)
    }
}
