//! Removing memories, and what no memory needs. Which memories go to keep a folder within a bound is in
//! [`super::bound`].
//!
//! Removal needs the folder exclusively: no other process may use it meanwhile. Nothing is removed because it
//! could not be read: what is damaged is set aside first (and removed by a later sweep), and where something
//! can't be read, what it may need stays.

use super::contents::{Contents, SizedFile};
use super::disk::Disk;
use super::inventory::{Folder, StoredSession};
use super::manifest::Manifest;
use super::medium::Logs as _;
use super::repack::repack;
use super::{Failure, STORE_VERSION, files, set_aside, short};
use crate::Result;
use crate::kv::table::BlockHash;
use std::collections::HashSet;
use std::ops::AddAssign;

/// Result of a removal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Sessions removed.
    pub sessions: usize,
    /// Bytes freed.
    pub bytes: u64,
    /// Files and folders that could not be read: what they may need was kept.
    pub unread: usize,
}

impl AddAssign for Removed {
    fn add_assign(&mut self, more: Self) {
        self.sessions += more.sessions;
        self.bytes += more.bytes;
        self.unread += more.unread;
    }
}

impl Folder {
    /// Removes the sessions that `select` picks, then all that no session needs: blocks without an owner,
    /// files left by a crash, what was set aside before, and what older versions of the store, which can't be
    /// read any more, left.
    ///
    /// # Errors
    /// Another process uses the folder, or a file can't be removed.
    pub fn remove(&self, select: &dyn Fn(&StoredSession) -> bool) -> Result<Removed> {
        let _lock = self.lock()?;
        self.remove_locked(select)
    }

    /// Removes all memories, readable or not, those of other keys too.
    ///
    /// # Errors
    /// Another process uses the folder, or a file can't be removed.
    pub fn clear(&self) -> Result<Removed> {
        let _lock = self.lock()?;
        let contents = Contents::read(&*self.medium);
        let mut removed =
            Removed { sessions: contents.manifests.len(), bytes: 0, unread: contents.unread.len() };
        // Manifests first: a crash in between leaves unneeded files, never incomplete memories.
        let sessions = contents.manifests.iter().chain(&contents.tails).map(|(_, file)| file);
        let blocks = contents.blocks.iter().map(|(_, file)| file).chain(&contents.packs);
        let rest = contents.runs.iter().chain(&contents.temporary).chain(&contents.damaged);
        for file in sessions.chain(blocks).chain(rest) {
            removed.bytes += self.medium.remove(&file.name)?;
        }
        for (name, reason) in &contents.foreign {
            set_aside(&*self.medium, name, reason);
        }
        for (other, _) in self.others()? {
            let _lock = Disk::at(&other).alone()?.ok_or_else(|| self.in_use())?;
            removed.bytes += files::remove_folder(&other)?;
        }
        Ok(removed)
    }

    pub(super) fn remove_locked(&self, select: &dyn Fn(&StoredSession) -> bool) -> Result<Removed> {
        let mut removed = Removed::default();
        for entry in self.list()?.iter().filter(|entry| select(entry)) {
            removed.bytes += self.medium.remove(&super::manifest_name(&entry.id))?;
            removed.sessions += 1;
        }
        self.sweep(&mut removed)?;
        for (old, _) in self.others()?.iter().filter(|(_, version)| *version < STORE_VERSION) {
            removed.bytes += files::remove_folder(old)?;
        }
        Ok(removed)
    }

    /// Removes what no manifest names.
    fn sweep(&self, removed: &mut Removed) -> Result<()> {
        let contents = Contents::read(&*self.medium);
        for file in contents.damaged.iter().chain(&contents.temporary).chain(&contents.runs) {
            removed.bytes += self.medium.remove(&file.name)?;
        }
        for (name, reason) in &contents.foreign {
            set_aside(&*self.medium, name, reason);
        }
        let mut unread = contents.unread.clone();
        let needed = self.needed(&contents, &mut unread);
        if unread.is_empty() {
            let dead =
                |file: &SizedFile, needed: bool| if needed { Ok(0) } else { self.medium.remove(&file.name) };
            for (key, file) in &contents.blocks {
                removed.bytes += dead(file, needed.blocks.contains(&key.0))?;
            }
            for (name, file) in &contents.tails {
                removed.bytes += dead(file, needed.tails.contains(name))?;
            }
            let packs = contents.packs.iter().map(|file| (file.name.clone(), file.bytes));
            let repacked = repack(&*self.medium, &self.cipher, packs, &|hash| !needed.blocks.contains(hash))?;
            removed.bytes += repacked.freed;
            unread.extend(repacked.unread);
        }
        for reason in &unread {
            tracing::warn!("{reason}; what it may need is kept");
        }
        removed.unread = unread.len();
        Ok(())
    }

    /// Reads which blocks and tails the manifests name. One that is damaged names nothing and is set aside.
    fn needed(&self, contents: &Contents, unread: &mut Vec<String>) -> Needed {
        let mut needed = Needed::default();
        for (id, SizedFile { name, .. }) in &contents.manifests {
            match self.read_manifest(id, name) {
                Ok((manifest, _)) => needed.add(manifest),
                Err(Failure::Missing) => {}
                Err(Failure::Damaged(reason)) => set_aside(&*self.medium, name, &reason),
                Err(Failure::Unreadable(reason)) => unread.push(format!("{}: {reason}", short(name))),
            }
        }
        needed
    }
}

/// Blocks and tails that the manifests of a folder name.
#[derive(Default)]
struct Needed {
    blocks: HashSet<BlockHash>,
    tails: HashSet<String>,
}

impl Needed {
    fn add(&mut self, manifest: Manifest) {
        self.tails.extend(manifest.tails().map(|tail| tail.file.clone()));
        self.blocks.extend(manifest.hashes());
    }
}
