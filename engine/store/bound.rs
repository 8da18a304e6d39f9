//! Keeping a folder within a bound: what may go, in which order, and when to stop.
//!
//! These rules are the same for a folder that is not in use ([`Folder::shrink`]) and for one in use
//! ([`Engine::shrink`](crate::Engine::shrink)); only the ways to remove something differ ([`Removal`]).
//!
//! Nothing is removed in vain: while something can't be read, blocks that it may need stay, so no session is
//! removed either; and what belongs to other keys or versions, or to no session, can't be freed by removing
//! sessions, so if it alone exceeds the bound, all sessions stay.
//!
//! An engine enforces the bound when it opens and closes, if it is alone in the folder then; a run may exceed
//! it in between. A server enforces it while it runs.

use super::cipher::Cipher;
use super::contents::Contents;
use super::disk::Disk;
use super::inventory::{Folder, Inventory, StoredSession};
use super::medium::Logs;
use super::sweep::Removed;
use super::{Bound, Failure, STORE_VERSION, files, manifest, short, tail};
use crate::Result;
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

/// Ways to remove things from a folder.
pub(crate) trait Removal {
    /// Removes what no session needs, if that can be determined.
    ///
    /// # Errors
    /// A file can't be removed.
    fn sweep(&mut self) -> Result<Removed>;

    /// Removes rows of sealed blocks that a session keeps only to go back into them. A session that is in use
    /// stays as it is.
    ///
    /// # Errors
    /// A file can't be written or removed.
    fn drop_rows(&mut self, session: &StoredSession) -> Result<Removed>;

    /// Removes sessions, in this order, until something can't be read. Those that are in use stay.
    ///
    /// # Errors
    /// A file can't be removed.
    fn remove(&mut self, sessions: &[StoredSession]) -> Result<Removed>;
}

/// Removal from a folder that no other process uses.
struct Alone<'a>(&'a Folder);

impl Removal for Alone<'_> {
    fn sweep(&mut self) -> Result<Removed> {
        self.0.remove_locked(&|_| false)
    }

    fn drop_rows(&mut self, session: &StoredSession) -> Result<Removed> {
        drop_rows(&*self.0.medium, &self.0.cipher, &session.id, &HashSet::new())
    }

    fn remove(&mut self, sessions: &[StoredSession]) -> Result<Removed> {
        let chosen: HashSet<&str> = sessions.iter().map(|session| &*session.id).collect();
        self.0.remove_locked(&|entry| chosen.contains(&*entry.id))
    }
}

impl StoredSession {
    /// Value of a session at `now` (seconds since the epoch): (seconds to compute again × expected use) ÷
    /// bytes, shared ones in equal parts. [`Folder::shrink`] removes the least valuable first.
    pub fn worth(&self, now: u64) -> f64 {
        let hours = now.saturating_sub(self.saved_at) as f64 / 3600.0;
        let use_ = self.turns as f64 / (1.0 + hours);
        (self.seconds * use_ + f64::MIN_POSITIVE) / self.share.max(1.0)
    }
}

impl Folder {
    /// Removes what no session needs, then rows that only serve to go back, then sessions, until what the
    /// store wrote takes at most `limit` bytes. Sessions with the least (seconds to compute again × expected
    /// use ÷ bytes) are removed first. Expected use grows with the number of turns, and falls with the time
    /// since the last one (hyperbolically, in hours).
    ///
    /// No session is removed while something can't be read ([`Removed::unread`]), nor where folders of other
    /// keys or newer versions alone take more than `limit` bytes: that would not help.
    ///
    /// # Errors
    /// Another process uses the folder, or a file can't be removed.
    pub fn shrink(&self, limit: u64) -> Result<Removed> {
        let _lock = self.lock()?;
        self.shrink_by(limit, &mut Alone(self))
    }

    /// [`Folder::shrink`], with these ways to remove things.
    ///
    /// # Errors
    /// As those of `removal`, or the folder can't be read.
    pub(crate) fn shrink_by(&self, limit: u64, removal: &mut dyn Removal) -> Result<Removed> {
        let mut removed = removal.sweep()?;
        let foreign = self.foreign_bytes()?;
        let excess = || self.own_bytes().saturating_add(foreign).saturating_sub(limit);
        let over = excess();
        if over == 0 {
            return Ok(removed);
        }
        let Inventory { mut entries, unnamed, unread } = self.least_valuable_first();
        removed.unread = removed.unread.max(unread);
        if unread == 0 && foreign.saturating_add(unnamed) > limit {
            if !self.place.is_warned.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    "{} can't be kept within {limit} bytes: its folders of other keys or versions take \
                     {foreign} bytes, and {unnamed} belong to no memory; no memory is removed",
                    self.place
                );
            }
            return Ok(removed);
        }
        let mut freed = 0;
        for entry in entries.iter().filter(|entry| entry.rows_to_go_back > 0) {
            if removed.unread > 0 || freed >= over {
                break;
            }
            let more = removal.drop_rows(entry)?;
            freed += more.bytes;
            removed += more;
        }
        if freed > 0 {
            entries = self.least_valuable_first().entries;
        }
        let mut candidates = entries.into_iter();
        loop {
            let over = excess();
            if over == 0 {
                return Ok(removed);
            }
            if removed.unread > 0 {
                tracing::warn!(
                    "{} takes {over} bytes more than it may, but no memory is removed while something can't \
                     be read",
                    self.place
                );
                return Ok(removed);
            }
            // A shared block is removed with its last owner, so removing what seems enough may not be.
            let (mut chosen, mut sum) = (Vec::new(), 0.0);
            while let Some(entry) = (sum < over as f64).then(|| candidates.next()).flatten() {
                sum += entry.share;
                chosen.push(entry);
            }
            if chosen.is_empty() {
                return Ok(removed); // what is left is in use, or of no session
            }
            removed += removal.remove(&chosen)?;
        }
    }

    /// All sessions, ordered by their current value.
    fn least_valuable_first(&self) -> Inventory {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let mut listing = self.entries();
        listing
            .entries
            .sort_by(|a, b| a.worth(now).total_cmp(&b.worth(now)).then_with(|| a.saved_at.cmp(&b.saved_at)));
        listing
    }

    /// [`Folder::shrink`], if no other process uses the folder now; logs the result, or why it was skipped.
    pub(crate) fn keep_within(&self, bound: Bound) {
        let limit = bound.bytes;
        let stored = || Ok::<_, crate::Error>(self.own_bytes() + self.foreign_bytes()?);
        if !bound.is_tidy && stored().is_ok_and(|stored| stored <= limit) {
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

    /// Bytes of what stores of this key and version wrote; of what others put there none count.
    pub(crate) fn own_bytes(&self) -> u64 {
        Contents::read(&*self.medium).bytes()
    }

    /// Bytes of what stores of other keys and versions wrote.
    fn foreign_bytes(&self) -> Result<u64> {
        let mut bytes = 0;
        for (other, version) in self.others()? {
            bytes += if version == STORE_VERSION {
                Contents::read(&Disk::at(&other)).bytes()
            } else {
                files::bytes_below(&other)?
            };
        }
        Ok(bytes)
    }
}

/// Removes the rows of sealed blocks that the session of an id keeps to go back into them, except `spared`
/// files. Going back there then computes part of a block again. A manifest that is not whole stays as it is:
/// what its last record says is not known, and to write it again without that would hide the damage.
pub(super) fn drop_rows(
    medium: &dyn Logs,
    cipher: &Cipher,
    id: &str,
    spared: &HashSet<String>,
) -> Result<Removed> {
    let mut removed = Removed::default();
    let name = super::manifest_name(id);
    let read = medium.open(&name).and_then(|mut input| input.whole(manifest::MAX_MANIFEST_BYTES));
    let bytes = match read {
        Ok(bytes) => bytes,
        Err(Failure::Unreadable(reason)) => {
            tracing::warn!("{}: {reason}", short(&name));
            removed.unread += 1;
            return Ok(removed);
        }
        Err(Failure::Missing | Failure::Damaged(_)) => return Ok(removed),
    };
    let Ok((mut manifest, journal, None)) = manifest::decode(&bytes, id, cipher) else { return Ok(removed) };
    let earlier = std::mem::take(&mut manifest.earlier);
    if earlier.is_empty() {
        return Ok(removed);
    }
    let rewritten = journal.rewritten(&manifest, id, cipher)?;
    // The manifest first: a crash in between leaves unneeded files, never incomplete memories.
    medium.put(&name, &rewritten)?;
    removed.bytes += (bytes.len() as u64).saturating_sub(rewritten.len() as u64);
    for rows in earlier.iter().filter(|rows| !spared.contains(&rows.file)) {
        removed.bytes += medium.remove(&tail::name(rows))?;
    }
    Ok(removed)
}
