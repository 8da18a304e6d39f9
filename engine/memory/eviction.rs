//! The budget of memory: which session at rest gives up what. It loses what is on disk too, piece by piece,
//! and stays known: what it is made of, and when it is needed next.
//!
//! Copies of shared prefixes go first ([`prefixes`](super::prefixes)). Then eviction takes pieces, not
//! agents: parts of blocks and open rows that are on disk too, from the end of the agent that is needed last
//! (Belady; without a plan the least recently used). It stays known (ids, texts, addresses; counted in the
//! budget), so its next turn reads just what is missing. What is not on disk goes last of all: computing
//! costs some hundred times what reading does. A shared block stays while any session, at rest or active,
//! holds it.

use super::Memory;
use super::at_rest::Idle;
use crate::SessionKey;
use crate::memory::saver::Saver;
use std::sync::atomic::Ordering;

/// Kinds of memory that eviction may free, in this order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Eviction {
    /// Keys and values that are on disk too.
    Stored,
    /// Ids, texts and addresses of a session whose manifest is up to date.
    Known,
    /// What turns had read that did not end.
    Unfinished,
    /// Keys and values that would have to be computed again: some hundred times what reading costs.
    Unstored,
}

/// A session that could be evicted.
#[derive(Clone, Copy, Debug)]
struct Candidate<K> {
    key: K,
    /// Time of its next use; `None`: not known.
    next_use: Option<u64>,
    /// Time of its last use.
    last_use: u64,
}

/// Picks the session to evict first: the one needed last (Belady 1966). Sessions with no known next use go
/// before those with one, the least recently used of them first.
fn victim<K: Copy>(candidates: impl Iterator<Item = Candidate<K>>) -> Option<K> {
    candidates.max_by_key(|c| (c.next_use.unwrap_or(u64::MAX), u64::MAX - c.last_use)).map(|c| c.key)
}

impl Memory {
    /// Bytes that cached keys and values take now, what is known of sessions, and what is on its way from
    /// disk or to it.
    pub(crate) fn bytes(&self) -> u64 {
        let ahead = self.loader.as_ref().map_or(0, |loader| loader.ahead.room());
        let read = ahead + self.being_read.load(Ordering::Relaxed);
        let disk = read + self.saver.as_ref().map_or(0, Saver::bytes);
        self.arena.bytes() + self.idle.known_bytes() + self.at_work + disk
    }

    /// Bytes that all of it may take.
    pub(crate) fn budget(&self) -> u64 {
        self.share.as_ref().map_or(self.arena.budget(), |share| share.budget().0)
    }

    /// Bytes that the caches of all engines take which share the budget.
    pub(crate) fn all_bytes(&self) -> u64 {
        self.share.as_ref().map_or_else(|| self.bytes(), |share| share.bytes())
    }

    /// Evicts what is not needed soon until there is room for `n` more tokens; `false`: there is no such
    /// room.
    pub(crate) fn make_room_for(&mut self, n: usize) -> bool {
        self.make_room((n * self.context.layout.row_bytes()) as u64, None)
    }

    /// Evicts what is not needed soon until the budget holds; `at_work` as in [`Memory::at_work`].
    pub(crate) fn enforce_budget(&mut self, at_work: u64) {
        self.at_work = at_work;
        self.make_room(0, None);
    }

    /// Evicts until there is room for `more` bytes; for somebody who is needed at `needed_by` only what is
    /// needed later goes, and nothing that is not on disk. `false`: there is no such room.
    pub(super) fn make_room(&mut self, more: u64, needed_by: Option<u64>) -> bool {
        let kinds: &[Eviction] = match needed_by {
            Some(_) => &[Eviction::Stored],
            None => &[Eviction::Stored, Eviction::Known, Eviction::Unfinished, Eviction::Unstored],
        };
        let budget = self.budget();
        while self.bytes() + more > budget && self.prefixes.evict(&mut self.arena) {}
        let mut excess = (self.bytes() + more).saturating_sub(budget);
        for kind in kinds {
            let mut bytes = self.arena.bytes();
            while *kind == Eviction::Unfinished
                && excess > 0
                && (self.prefixes.evict(&mut self.arena) || self.unfinished.evict(&mut self.arena))
            {
                let left = self.arena.bytes();
                excess = excess.saturating_sub(bytes - left);
                bytes = left;
            }
            while excess > 0 {
                let candidates = self.idle.iter().filter(|(key, idle)| {
                    let later = needed_by.is_none_or(|by| idle.next_use().is_none_or(|next| next > by));
                    later
                        && idle.can_lose(*kind)
                        && !(*kind == Eviction::Known && self.claims.is_awaited(key))
                });
                let candidates = candidates.map(|(key, idle)| Candidate {
                    key,
                    next_use: idle.next_use(),
                    last_use: idle.last_use,
                });
                let Some(key) = victim(candidates).cloned() else { break };
                excess = self.evict(&key, *kind, excess);
            }
        }
        excess == 0
    }

    /// Takes from a session until `excess` bytes are freed or it has no more of that kind; returns what is
    /// left of them.
    fn evict(&mut self, key: &SessionKey, kind: Eviction, excess: u64) -> u64 {
        tracing::trace!("evicting from `{}`, {excess} bytes over the budget", key.agent);
        if kind == Eviction::Known {
            let known = self.idle.get(key).map_or(0, Idle::known_bytes);
            self.forget_known(key);
            return excess.saturating_sub(known);
        }
        let Some(idle) = self.idle.get_mut(key) else { return excess };
        let mut left = excess;
        while left > 0 {
            let before = self.arena.bytes();
            let gone = match kind {
                Eviction::Stored => idle.session.evict(&mut self.arena),
                _ => idle.session.evict_unsaved(&mut self.arena),
            };
            if !gone {
                break;
            }
            // A shared block stays for its other owners, who are needed sooner.
            left = left.saturating_sub(before - self.arena.bytes());
        }
        left
    }

    /// Drops a session from memory; its files stay.
    pub(crate) fn forget(&mut self, key: &SessionKey) {
        self.forget_known(key);
        self.unfinished.forget(key, &mut self.arena);
        self.drop_forks(key);
        self.loader.iter_mut().for_each(|loader| loader.drop_hints(key));
    }

    /// The same, but for blocks that a turn read which did not end.
    fn forget_known(&mut self, key: &SessionKey) {
        if let Some(mut idle) = self.idle.remove(key) {
            idle.session.sequence.clear(&mut self.arena);
        }
        self.saver.iter_mut().for_each(|saver| drop(saver.take_journal(key)));
        self.idle.take_warning(key);
    }
}

impl Idle {
    fn can_lose(&self, kind: Eviction) -> bool {
        match kind {
            Eviction::Stored => self.session.can_evict(),
            Eviction::Known => self.saved && !self.session.sequence.holds_any(),
            Eviction::Unfinished => false, // no session's own
            Eviction::Unstored => self.session.sequence.holds_any() && !self.session.can_evict(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_that_is_needed_last_goes_first() {
        let c = |key, next_use, last_use| Candidate { key, next_use, last_use };
        assert_eq!(
            victim([c('a', Some(3), 0), c('b', Some(9), 1), c('c', Some(4), 2)].into_iter()),
            Some('b')
        );
        assert_eq!(victim([c('a', Some(3), 0), c('b', None, 5), c('c', None, 2)].into_iter()), Some('c'));
        assert_eq!(victim(std::iter::empty::<Candidate<char>>()), None);
    }
}
