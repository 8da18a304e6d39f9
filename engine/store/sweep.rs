//! Removing memories, and what no memory needs; bounding a folder.
//!
//! Removal takes the folder for itself: no other process may use it meanwhile. Nothing goes because it could not be read:
//! what is damaged is set aside first (and goes with a later sweep), and where something can't be read, what it may need stays.
//!
//! The bound on disk is kept when an engine opens and when it goes, if it is alone in the folder then; a run may exceed it
//! meanwhile.

use super::contents::{Contents, File};
use super::disk::Disk;
use super::inventory::{Entry, Folder};
use super::manifest::Manifest;
use super::medium::Logs as _;
use super::pack::{self, Builder};
use super::{Bound, Failure, STORE_VERSION, Store, files, manifest, short, tail, whole_image};
use crate::Result;
use crate::kv::table::BlockHash;
use crate::kv::table::BlockKey;
use std::collections::HashSet;
use std::time::{SystemTime, UNIX_EPOCH};

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

impl Entry {
    /// How much a session is worth keeping at `now` (seconds since the epoch): (seconds to compute again × expected use) ÷ bytes, shared
    /// ones in equal parts. [`Folder::shrink`] removes those first that are worth least.
    pub fn worth(&self, now: u64) -> f64 {
        let hours = now.saturating_sub(self.saved_at) as f64 / 3600.0;
        let use_ = self.turns as f64 / (1.0 + hours);
        (self.seconds * use_ + f64::MIN_POSITIVE) / self.share.max(1.0)
    }
}

impl Folder {
    /// Removes the sessions that `select` picks, then all that no session needs: blocks without an owner, what a crash left
    /// behind, what was set aside before, and what older versions of the store, which can't be read any more, left.
    ///
    /// # Errors
    /// Another process uses the folder, or a file can't be removed.
    pub fn remove(&self, select: &dyn Fn(&Entry) -> bool) -> Result<Removed> {
        let _lock = self.lock()?;
        self.remove_locked(select)
    }

    /// Removes all memories, whether they can be read or not, those of other keys too.
    ///
    /// # Errors
    /// Another process uses the folder, or a file can't be removed.
    pub fn clear(&self) -> Result<Removed> {
        let _lock = self.lock()?;
        let contents = Contents::read(&*self.medium);
        let mut removed =
            Removed { sessions: contents.manifests.len(), bytes: 0, unread: contents.unread.len() };
        // Manifests first: a crash in between leaves what nobody needs, never what lacks something.
        let sessions = contents.manifests.iter().chain(&contents.tails).map(|(_, file)| file);
        let blocks = contents.blocks.iter().map(|(_, file)| file).chain(&contents.packs);
        let rest = contents.runs.iter().chain(&contents.temporary).chain(&contents.damaged);
        for file in sessions.chain(blocks).chain(rest) {
            removed.bytes += self.medium.remove(&file.name)?;
        }
        for (name, reason) in &contents.foreign {
            self.set_aside(name, reason);
        }
        for (other, _) in self.others()? {
            let _lock = Disk::at(&other).alone()?.ok_or_else(|| self.in_use())?;
            removed.bytes += files::remove_folder(&other)?;
        }
        Ok(removed)
    }

    /// Removes what no session needs, then rows that only serve to go back, then sessions, until what the store wrote takes at most
    /// `limit` bytes. Those of the sessions go first for which (seconds to compute again × expected use ÷ bytes) is least. A session is expected to be used the more, the more turns it
    /// has had, and the less, the longer ago the last one was (hyperbolically, in hours).
    ///
    /// # Errors
    /// Another process uses the folder, or a file can't be removed.
    pub fn shrink(&self, limit: u64) -> Result<Removed> {
        let _lock = self.lock()?;
        let mut removed = self.remove_locked(&|_| false)?;
        let mut stored = self.stored_bytes()?;
        if stored <= limit {
            return Ok(removed);
        }
        let mut entries = self.least_valuable_first()?;
        let freed = self.drop_rows_to_go_back(&entries, stored - limit, &removed)?;
        removed.bytes += freed;
        stored = stored.saturating_sub(freed);
        if freed > 0 {
            entries = self.least_valuable_first()?;
        }
        // A shared block goes with its last owner, so removing what seems enough may not be.
        let mut left = entries.into_iter();
        // Where something can't be read no block goes: to give up sessions would free nothing.
        while removed.unread == 0 && stored > limit {
            let excess = (stored - limit) as f64;
            let mut chosen = HashSet::new();
            let mut sum = 0.0;
            while let Some(entry) = (sum < excess).then(|| left.next()).flatten() {
                sum += entry.share;
                chosen.insert(entry.id);
            }
            if chosen.is_empty() {
                break; // what is left belongs to other keys
            }
            let more = self.remove_locked(&|entry| chosen.contains(&entry.id))?;
            removed.sessions += more.sessions;
            removed.bytes += more.bytes;
            removed.unread += more.unread;
            stored = self.stored_bytes()?;
        }
        Ok(removed)
    }

    /// All sessions, by how much they are worth keeping now.
    pub(crate) fn least_valuable_first(&self) -> Result<Vec<Entry>> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let mut entries = self.list()?;
        entries
            .sort_by(|a, b| a.worth(now).total_cmp(&b.worth(now)).then_with(|| a.saved_at.cmp(&b.saved_at)));
        Ok(entries)
    }

    /// Removes the rows of sealed blocks that sessions keep to go back into them, beginning with the first of these sessions, until
    /// `excess` bytes are freed; returns how many are. Who goes back there then computes a part of a block again. Where something could
    /// not be read nothing goes.
    fn drop_rows_to_go_back(&self, entries: &[Entry], excess: u64, removed: &Removed) -> Result<u64> {
        let mut freed = 0;
        for entry in entries.iter().take_while(|_| removed.unread == 0) {
            if freed >= excess {
                break;
            }
            let name = super::manifest_name(&entry.id);
            // (A damaged one is set aside by the next sweep.)
            let Ok(bytes) = self.medium.open(&name).and_then(|mut input| input.whole(manifest::MOST)) else {
                continue;
            };
            let Ok((mut manifest, journal, _)) = manifest::decode(&bytes, &entry.id, &self.cipher) else {
                continue;
            };
            let earlier = std::mem::take(&mut manifest.earlier);
            if earlier.is_empty() {
                continue;
            }
            let rewritten = journal.rewritten(&manifest, &entry.id, &self.cipher)?;
            freed += (bytes.len() as u64).saturating_sub(rewritten.len() as u64);
            self.medium.put(&name, &rewritten)?;
            for tail in earlier {
                freed += self.medium.remove(&tail::name(&tail))?;
            }
        }
        Ok(freed)
    }

    /// [`Folder::shrink`], if nobody else uses the folder now: what it did, or why not, is logged.
    pub(crate) fn keep_within(&self, bound: Bound) {
        let limit = bound.bytes;
        if !bound.is_tidy && self.stored_bytes().is_ok_and(|stored| stored <= limit) {
            return;
        }
        match self.shrink(limit) {
            Ok(Removed { sessions: 0, .. }) => {}
            Ok(Removed { sessions, .. }) => {
                tracing::info!(
                    "{sessions} memories were removed from the cache folder to keep it within {limit} \
                    bytes"
                );
            }
            Err(e) => tracing::debug!("can't limit the cache folder: {e}"),
        }
    }

    /// Bytes of what stores wrote, of other keys and versions too; of what others put there none count.
    pub(crate) fn stored_bytes(&self) -> Result<u64> {
        let mut bytes = Contents::read(&*self.medium).bytes();
        for (other, version) in self.others()? {
            bytes += if version == STORE_VERSION {
                Contents::read(&Disk::at(&other)).bytes()
            } else {
                files::bytes_below(&other)?
            };
        }
        Ok(bytes)
    }

    fn remove_locked(&self, select: &dyn Fn(&Entry) -> bool) -> Result<Removed> {
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
            self.set_aside(name, reason);
        }
        let mut unread = contents.unread.clone();
        let needed = self.needed(&contents, &mut unread);
        if unread.is_empty() {
            let dead =
                |file: &File, needed: bool| if needed { Ok(0) } else { self.medium.remove(&file.name) };
            for (key, file) in &contents.blocks {
                removed.bytes += dead(file, needed.blocks.contains(&key.0))?;
            }
            for (name, file) in &contents.tails {
                removed.bytes += dead(file, needed.tails.contains(name))?;
            }
            removed.bytes += self.sweep_packs(&contents.packs, &needed.blocks, &mut unread)?;
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
        for (id, File { name, .. }) in &contents.manifests {
            match self.read_manifest(id, name) {
                Ok((manifest, _)) => needed.add(manifest),
                Err(Failure::Missing) => {}
                Err(Failure::Damaged(reason)) => self.set_aside(name, &reason),
                Err(Failure::Unreadable(reason)) => unread.push(format!("{}: {reason}", short(name))),
            }
        }
        needed
    }

    /// Writes packs that hold something dead anew, without it; returns the bytes freed.
    fn sweep_packs(
        &self,
        packs: &[File],
        needed: &HashSet<BlockHash>,
        unread: &mut Vec<String>,
    ) -> Result<u64> {
        let (mut freed, mut kept, mut builder, mut gone) = (0, 0, Builder::default(), Vec::new());
        for File { name, bytes } in packs {
            let live =
                |entries: &[(BlockKey, pack::Place)]| entries.iter().all(|(key, _)| needed.contains(&key.0));
            let rewritten = pack::index(&*self.medium, name).and_then(|entries| {
                if !entries.is_empty() && live(&entries) {
                    Ok(None)
                } else {
                    self.live_images(&entries, needed).map(Some)
                }
            });
            let images = match rewritten {
                Ok(None) | Err(Failure::Missing) => continue,
                Ok(Some(images)) => images,
                Err(Failure::Damaged(reason)) => {
                    self.set_aside(name, &reason);
                    continue;
                }
                Err(Failure::Unreadable(reason)) => {
                    unread.push(format!("{}: {reason}", short(name)));
                    continue;
                }
            };
            for (key, image) in images.whole {
                if builder.len() + image.len() > Store::PACK {
                    kept += builder.len() as u64;
                    std::mem::take(&mut builder).write(&*self.medium)?;
                }
                builder.push(key, &image);
            }
            freed += bytes;
            gone.push((name, images.damaged));
        }
        kept += builder.len() as u64;
        builder.write(&*self.medium)?;
        for (name, damaged) in gone {
            match damaged {
                Some(reason) => self.set_aside(name, &reason),
                None => drop(self.medium.remove(name)?),
            }
        }
        Ok(freed.saturating_sub(kept))
    }

    /// The images of a pack that are needed.
    fn live_images(
        &self,
        entries: &[(BlockKey, pack::Place)],
        needed: &HashSet<BlockHash>,
    ) -> Result<Images, Failure> {
        let mut images = Images::default();
        for (key, place) in entries.iter().filter(|(key, _)| needed.contains(&key.0)) {
            let (mut input, span) = place.open(&*self.medium)?;
            match whole_image(&self.cipher, &mut input, *key, span) {
                Ok(image) => images.whole.push((*key, image)),
                Err(Failure::Damaged(reason)) => images.damaged = Some(reason),
                Err(failure) => return Err(failure),
            }
        }
        Ok(images)
    }

    fn set_aside(&self, name: &str, reason: &str) {
        tracing::warn!("{} is damaged: {reason}; it is set aside", short(name));
        if let Err(e) = self.medium.set_aside(name) {
            tracing::warn!("{e}");
        }
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
        self.blocks.extend(manifest.blocks);
    }
}

/// Images of a pack that are needed: the whole ones, and the fault of one that is not.
#[derive(Default)]
struct Images {
    whole: Vec<(BlockKey, Vec<u8>)>,
    damaged: Option<String>,
}
