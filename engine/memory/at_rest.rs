//! Sessions at rest, and in which order they are needed next.
//!
//! What a pass asks (how many bytes is known of them, who is needed next) costs the same however many there
//! are.

use super::session::Session;
use crate::SessionKey;
use std::collections::{BTreeSet, HashMap};
use std::ops::Deref;

/// Sessions at rest, by their keys.
#[derive(Default)]
pub(super) struct AtRest {
    sessions: HashMap<SessionKey, Idle>,
    /// Those whose next use is known.
    next: BTreeSet<(u64, SessionKey)>,
    known_bytes: u64,
    /// Sessions that came to rest so far.
    clock: u64,
    /// Faults found in a session's memory before it was asked for, as text.
    warnings: HashMap<SessionKey, String>,
}

/// A session at rest.
pub(super) struct Idle {
    pub(super) session: Session,
    next_use: Option<u64>,
    pub(super) last_use: u64,
    /// Bytes of its metadata, whatever of its keys and values is in memory.
    known_bytes: u64,
    /// True if its manifest is up to date: then it need not be known.
    pub(super) saved: bool,
    pub(super) ahead: ReadAhead,
}

/// What was read for a session before its turn.
#[derive(Clone, Copy, Default)]
pub(super) struct ReadAhead {
    /// Bytes of keys and values, and the milliseconds that reading them took while other turns were active.
    pub(super) bytes: u64,
    pub(super) ms: f64,
    /// Milliseconds that its prompt waited for its manifest.
    pub(super) waited_ms: f64,
}

impl Idle {
    /// A session that has just become idle.
    pub(super) fn new(session: Session, next_use: Option<u64>, last_use: u64) -> Self {
        let known_bytes = session.known_bytes();
        Self { session, next_use, last_use, known_bytes, saved: false, ahead: ReadAhead::default() }
    }

    /// Time of its next use; `None`: not known.
    pub(super) fn next_use(&self) -> Option<u64> {
        self.next_use
    }

    /// Bytes of what was known of it when it came to rest.
    pub(super) fn known_bytes(&self) -> u64 {
        self.known_bytes
    }
}

impl AtRest {
    /// Adds a session that has just come to rest; returns the one that had its key.
    pub(super) fn add(&mut self, key: SessionKey, session: Session, next_use: Option<u64>) -> Option<Idle> {
        self.clock += 1;
        self.insert(key, Idle::new(session, next_use, self.clock))
    }

    /// Adds a session; returns the one that had its key.
    pub(super) fn insert(&mut self, key: SessionKey, idle: Idle) -> Option<Idle> {
        let before = self.remove(&key);
        self.known_bytes += idle.known_bytes;
        self.next.extend(idle.next_use.map(|next_use| (next_use, key.clone())));
        self.sessions.insert(key, idle);
        before
    }

    /// Takes a session out.
    pub(super) fn remove(&mut self, key: &SessionKey) -> Option<Idle> {
        let idle = self.sessions.remove(key)?;
        self.known_bytes -= idle.known_bytes;
        if let Some(next_use) = idle.next_use {
            self.next.remove(&(next_use, key.clone()));
        }
        Some(idle)
    }

    /// A session, to be changed.
    pub(super) fn get_mut(&mut self, key: &SessionKey) -> Option<&mut Idle> {
        self.sessions.get_mut(key)
    }

    /// Says when a session is needed next; `false`: it is not at rest here.
    pub(super) fn hint_next_use(&mut self, key: &SessionKey, next_use: u64) -> bool {
        let Some(idle) = self.sessions.get_mut(key) else { return false };
        if let Some(before) = idle.next_use.replace(next_use) {
            self.next.remove(&(before, key.clone()));
        }
        self.next.insert((next_use, key.clone()));
        true
    }

    /// Keeps what was found wrong with a session's memory for its next turn.
    pub(super) fn warn(&mut self, key: &SessionKey, reason: Option<String>) {
        self.warnings.extend(reason.map(|reason| (key.clone(), reason)));
    }

    /// Takes what was found wrong with a session's memory.
    pub(super) fn take_warning(&mut self, key: &SessionKey) -> Option<String> {
        self.warnings.remove(key)
    }

    /// The `n` sessions that are needed next.
    pub(super) fn next(&self, n: usize) -> Vec<(u64, SessionKey)> {
        self.next.iter().take(n).cloned().collect()
    }

    /// Bytes of what is known of all of them.
    pub(super) fn known_bytes(&self) -> u64 {
        self.known_bytes
    }
}

impl Deref for AtRest {
    type Target = HashMap<SessionKey, Idle>;

    fn deref(&self) -> &Self::Target {
        &self.sessions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KvFormat;
    use crate::kv::layout::KvLayout;
    use crate::memory::session::CacheContext;
    use std::sync::Arc;

    /// Whatever is added, removed and expected, the result is that of looking at all of them.
    #[test]
    fn order_and_bytes_are_those_of_the_sessions() {
        let context = CacheContext::of_test(Arc::new(KvLayout::uniform(1, 1, 64, KvFormat::Q4)));
        let key = |n: u64| SessionKey::new("run", format!("agent {n}"));
        let mut at_rest = AtRest::default();
        for step in 0..2_000_u64 {
            let (draw, next_use) = (step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40, step * 31 % 97);
            let agent = key(draw % 13);
            match draw / 13 % 4 {
                0 => drop(at_rest.remove(&agent)),
                1 => assert_eq!(at_rest.hint_next_use(&agent, next_use), at_rest.contains_key(&agent)),
                of => {
                    let mut session = Session::new(&context, "");
                    session.tokens = vec![7; (draw % 50) as usize];
                    let idle = Idle::new(session, (of == 2).then_some(next_use), step);
                    let was_there = at_rest.contains_key(&agent);
                    assert_eq!(at_rest.insert(agent, idle).is_some(), was_there);
                }
            }
            let mut next: Vec<_> =
                at_rest.iter().filter_map(|(key, idle)| Some((idle.next_use()?, key.clone()))).collect();
            next.sort();
            next.truncate(3);
            assert_eq!(at_rest.next(3), next);
            assert_eq!(at_rest.known_bytes(), at_rest.values().map(Idle::known_bytes).sum::<u64>());
        }
    }
}
