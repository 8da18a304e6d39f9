//! Removing one session, or its rows to go back, while the folder is in use: of a session its manifest, its
//! tails, and the blocks that nothing else needs.
//!
//! The engine knows its own needs; the manifests have those of other sessions. Another process that has just
//! found a block and not yet committed computes it again when it misses it: a miss with a reason, like any
//! lost block.

use super::found::Failure;
use super::manifest::{self, Manifest};
use super::repack::repack;
use super::{Removed, RunLock, Store, block_name, bound, manifest_name};
use crate::kv::layout::Part;
use crate::kv::table::BlockHash;
use crate::{Result, SessionKey};
use std::collections::HashSet;

/// What of a session's files may go, and what is needed elsewhere in the process.
#[derive(Default)]
pub(crate) struct Unneeded {
    /// Blocks of the session.
    pub(crate) blocks: HashSet<BlockHash>,
    /// Files of its tails.
    pub(crate) tails: HashSet<String>,
    /// Blocks of other sessions.
    pub(crate) needed_blocks: HashSet<BlockHash>,
    /// Files of tails that other sessions begin with.
    pub(crate) needed_tails: HashSet<String>,
}

impl Store {
    /// Tells whether a session has a manifest.
    pub(crate) fn has_session(&self, session: &SessionKey) -> bool {
        self.medium.size(&manifest_name(&self.session_id(session))).is_some()
    }

    /// Removes a session. Where a manifest can't be read, blocks that it may need stay, until the folder is
    /// swept.
    ///
    /// # Errors
    /// The run's lock is lost, a file can't be removed, or another process packs blocks for long.
    pub(crate) fn remove_session(
        &self,
        lock: &RunLock,
        session: &SessionKey,
        unneeded: Unneeded,
    ) -> Result<Removed> {
        lock.0.confirm()?;
        let _lease = self.lease_packs()?;
        let Unneeded { blocks: mut dead, mut tails, needed_blocks, needed_tails } = unneeded;
        let name = manifest_name(&self.session_id(session));
        let mut removed = Removed { sessions: self.has_session(session).into(), ..Removed::default() };
        if let Ok(manifest) = self.manifest_at(&name) {
            tails.extend(manifest.tails().map(|tail| tail.file.clone()));
            dead.extend(manifest.hashes());
        }
        // The manifest first: a crash in between leaves unneeded files, never incomplete memories.
        removed.bytes += self.medium.remove(&name)?;
        for tail in tails.difference(&needed_tails) {
            removed.bytes += self.medium.remove(&format!("tails/{tail}"))?;
        }
        dead.retain(|hash| !needed_blocks.contains(hash));
        for (other, _) in self.medium.list("manifests")? {
            match self.manifest_at(&other) {
                Ok(manifest) => {
                    for hash in &manifest.hashes() {
                        dead.remove(hash);
                    }
                }
                Err(Failure::Unreadable(reason)) => {
                    tracing::warn!("{}: {reason}; blocks that it may need are kept", super::short(&other));
                    removed.unread += 1;
                }
                Err(Failure::Missing | Failure::Damaged(_)) => {}
            }
        }
        if removed.unread == 0 && !dead.is_empty() {
            for hash in &dead {
                for part in Part::ALL {
                    removed.bytes += self.medium.remove(&block_name((*hash, part)))?;
                }
            }
            let packs = self.medium.list("packs")?.into_iter().filter(|(name, _)| name.ends_with(".pack"));
            let repacked = repack(&*self.medium, &self.cipher, packs, &|hash| dead.contains(hash))?;
            repacked.unread.iter().for_each(|reason| tracing::warn!("{reason}; it is kept"));
            removed.bytes += repacked.freed;
            removed.unread += repacked.unread.len();
        }
        Ok(removed)
    }

    /// Removes the rows of sealed blocks that a session keeps only to go back into them, except `spared`
    /// files.
    ///
    /// # Errors
    /// The run's lock is lost, or a file can't be written or removed.
    pub(crate) fn drop_rows(
        &self,
        lock: &RunLock,
        session: &SessionKey,
        spared: &HashSet<String>,
    ) -> Result<Removed> {
        lock.0.confirm()?;
        bound::drop_rows(&*self.medium, &self.cipher, &self.session_id(session), spared)
    }

    fn manifest_at(&self, name: &str) -> Result<Manifest, Failure> {
        let id = super::short(name).strip_suffix(".log").ok_or(Failure::Missing)?;
        let bytes = self.medium.open(name)?.whole(manifest::MAX_MANIFEST_BYTES)?;
        Ok(manifest::decode(&bytes, id, &self.cipher)?.0)
    }
}
