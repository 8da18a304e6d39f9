//! A store that ends with the process: what a folder keeps, without one.

use super::found::Failure;
use super::medium::{Blobs, Exclusive, Lease, Logs};
use super::source::Input;
use crate::{Error, Result};
use std::collections::{BTreeMap, HashSet};
use std::io::Cursor;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Store in memory; a clone is the same store.
#[derive(Clone, Default)]
pub(crate) struct InMemory(Arc<Mutex<InMemoryState>>);

#[derive(Default)]
struct InMemoryState {
    things: BTreeMap<String, Arc<[u8]>>,
    leases: HashSet<String>,
}

impl InMemory {
    /// Another store, with what there is in this one.
    pub(crate) fn copy(&self) -> Self {
        let (things, leases) = (self.state().things.clone(), HashSet::new());
        Self(Arc::new(Mutex::new(InMemoryState { things, leases })))
    }

    fn state(&self) -> MutexGuard<'_, InMemoryState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A leased name.
struct NameLease(InMemory, String);

impl Exclusive for NameLease {}

impl Drop for NameLease {
    fn drop(&mut self) {
        self.0.state().leases.remove(&self.1);
    }
}

impl Blobs for InMemory {
    fn open(&self, name: &str) -> Result<Input, Failure> {
        let bytes = self.state().things.get(name).cloned().ok_or(Failure::Missing)?;
        let len = bytes.len() as u64;
        Ok(Input::new(Cursor::new(bytes), len))
    }

    fn size(&self, name: &str) -> Option<u64> {
        self.state().things.get(name).map(|bytes| bytes.len() as u64)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.state().things.insert(name.to_owned(), bytes.into());
        Ok(())
    }

    fn list(&self, folder: &str) -> Result<Vec<(String, u64)>> {
        let folder = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let state = self.state();
        let below = state.things.range(folder.clone()..).take_while(|(name, _)| name.starts_with(&folder));
        Ok(below.map(|(name, bytes)| (name.clone(), bytes.len() as u64)).collect())
    }

    fn remove(&self, name: &str) -> Result<u64> {
        Ok(self.state().things.remove(name).map_or(0, |bytes| bytes.len() as u64))
    }

    fn set_aside(&self, name: &str) -> Result<()> {
        self.remove(name).map(drop)
    }
}

impl Logs for InMemory {
    fn append(&self, name: &str, at: u64, bytes: &[u8]) -> Result<()> {
        let mut state = self.state();
        let before = state.things.get(name).map_or(&[][..], |before| before);
        let counts = usize::try_from(at).ok().and_then(|at| before.get(..at));
        let counts = counts.ok_or_else(|| Error::store(format!("{name} has fewer than {at} bytes")))?;
        let log = [counts, bytes].concat();
        state.things.insert(name.to_owned(), log.into());
        Ok(())
    }

    fn can_append(&self, name: &str, at: u64) -> bool {
        self.size(name).is_some_and(|bytes| bytes >= at)
    }

    fn lease(&self, name: &str) -> Result<Option<Lease>> {
        let is_new = self.state().leases.insert(name.to_owned());
        Ok(is_new.then(|| Box::new(NameLease(self.clone(), name.to_owned())) as Lease))
    }

    fn alone(&self) -> Result<Option<Lease>> {
        self.lease("lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::disk::Disk;

    /// Checks the promises of every medium.
    fn holds_what_it_promises(medium: &dyn Logs) {
        let read = |name: &str| medium.open(name).and_then(|mut input| input.whole(99));
        assert_eq!((read("packs/a"), medium.size("packs/a")), (Err(Failure::Missing), None));
        medium.put("packs/a", b"one").expect("a blob");
        medium.put("packs/a", b"two!").expect("a blob");
        medium.put("blocks/ab/c", b"three").expect("a blob");
        assert_eq!((read("packs/a"), medium.size("packs/a")), (Ok(b"two!".to_vec()), Some(4)));
        let list = |folder| medium.list(folder).expect("a list");
        assert_eq!(
            (list("packs"), list("blocks")),
            (vec![("packs/a".into(), 4)], vec![("blocks/ab/c".into(), 5)])
        );
        assert_eq!(list("windows"), []);
        assert!(!medium.can_append("tails/t", 0));
        medium.append("tails/t", 0, b"12345").expect("a log");
        medium.append("tails/t", 3, b"abc").expect("a log");
        assert_eq!(read("tails/t"), Ok(b"123abc".to_vec()));
        assert!(medium.can_append("tails/t", 6) && !medium.can_append("tails/t", 7));
        let lease = medium.lease("runs/r").expect("a lease");
        assert!(lease.is_some() && medium.lease("runs/r").expect("no lease").is_none());
        drop(lease);
        assert!(medium.lease("runs/r").expect("a lease").is_some());
        medium.set_aside("packs/a").expect("a move");
        assert_eq!(
            (medium.remove("blocks/ab/c").ok(), medium.remove("blocks/ab/c").ok()),
            (Some(5), Some(0))
        );
        assert_eq!((list("packs"), list("blocks")), (vec![], vec![]));
    }

    #[test]
    fn a_folder_and_memory_hold_what_they_promise() {
        holds_what_it_promises(&InMemory::default());
        let dir = tempfile::tempdir().expect("a folder");
        holds_what_it_promises(&Disk::open(dir.path().join("v1"), dir.path()).expect("a folder"));
    }
}
