//! A store in an object store (S3, Google Cloud Storage, Azure), with a folder in front of it.
//!
//! An agent that slept on one machine wakes on another. Names are those of a folder ([`super`]), below the
//! address's prefix.
//!
//! - **Blocks, windows and tails** never change: their names are hashes or random. They are put if absent,
//!   and once they are in the folder in front they are read from there.
//! - **Manifests** are read from the object store each time, and written by compare-and-swap with the version
//!   that was read. Nothing grows by appending: a manifest is written whole, a turn's tail is a new object.
//! - **Leases** ([`leases`]) are objects that expire: one of each process that uses the store, one of each
//!   run that it adds to. A process that has lost that of a run writes nothing of the run any more. Unneeded
//!   files are removed by a process that is alone.
//! - Everything is encrypted before it leaves, with the names, unless the address says `plaintext=true`.
//!
//! A memory is a function of the tokens that were read, so a second writer writes nothing wrong: at worst
//! tokens are computed again.

mod address;
mod http;
mod leases;
mod origin;
#[cfg(test)]
mod tests;

use super::disk::Disk;
use super::files;
use super::found::Failure;
use super::medium::{Blobs, Lease, ListFolder, Logs, Traffic, by_folder};
use super::source::Input;
use crate::{Error, Result, fault};
pub use address::ObjectsAddress;
use http::TrafficCounts;
use leases::Leases;
use object_store::{PutMode, UpdateVersion};
use origin::{Origin, Put};
use std::collections::{HashMap, HashSet};
use std::io::Cursor;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of requests worth making in parallel: each waits for the network most of its time.
const REQUESTS: usize = 16;
/// Folders of what never changes under its name.
const FIXED: [&str; 5] = ["blocks/", "windows/", "states/", "tails/", "packs/"];
/// Folders of what is replaced by compare-and-swap.
const SWAPPED: &str = "manifests/";

/// An object store as a medium.
pub(crate) struct Objects {
    leases: Leases,
    origin: Arc<Origin>,
    /// Copies of what never changes.
    front: Disk,
    state: Mutex<ObjectsState>,
}

#[derive(Default)]
struct ObjectsState {
    /// Versions of what is swapped, as they were last read or written.
    versions: HashMap<String, UpdateVersion>,
    /// What is known to be in the object store: nothing is removed while this process holds a lease.
    there: HashSet<String>,
}

impl Objects {
    /// Opens the store at an address; `root` is the folder in it of one store version and key.
    ///
    /// # Errors
    /// It can't be reached or written, does not heed conditions, or is being cleaned; or memories would lie
    /// there in the clear.
    pub(super) fn open(
        address: &ObjectsAddress,
        root: &str,
        is_encrypted: bool,
        front: Disk,
    ) -> Result<Self> {
        if !is_encrypted && !address.allows_plaintext() {
            return Err(Error::request(format!(
                "memories in {address} would not be encrypted; set a secret (`openssl rand -hex 32`) with \
                 GREENROOM_CACHE_KEY or --cache-key-file, the same on all machines, or add plaintext=true to \
                 the address"
            )));
        }
        let traffic = Arc::new(TrafficCounts::default());
        let store = address.connect(&traffic)?;
        let origin = Origin::new(store, address.prefix()?.join(root), address.to_string(), traffic)?;
        Self::on(origin, address.lease(), front)
    }

    fn on(origin: Origin, ttl: std::time::Duration, front: Disk) -> Result<Self> {
        let origin = Arc::new(origin);
        Ok(Self { leases: Leases::enter(origin.clone(), ttl)?, origin, front, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, ObjectsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads an object; a copy of what never changes stays in front.
    fn fetch(&self, name: &str) -> Result<Vec<u8>, Failure> {
        fault::read_point().map_err(|e| Failure::io("it", &e))?;
        let (bytes, version) = self.origin.get(name)?;
        if is_fixed(name) {
            self.state().there.insert(name.to_owned());
            // Where there is no room in front it is fetched again the next time.
            if let Err(e) = self.front.put(name, &bytes) {
                tracing::debug!("{e}");
            }
        } else {
            self.state().versions.insert(name.to_owned(), version);
        }
        Ok(bytes)
    }

    /// Puts what never changes, unless it is there.
    fn put_fixed(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        let is_new = matches!(self.origin.put(name, bytes, PutMode::Create)?, Put::Done(_));
        self.state().there.insert(name.to_owned());
        if let Err(e) = self.front.put(name, bytes) {
            tracing::debug!("{e}");
        }
        Ok(is_new)
    }

    /// Replaces what has not changed since it was last read or written, except by a process without the right
    /// to.
    fn swap(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.leases.renew_lost()?;
        let known = self.state().versions.get(name).cloned();
        let mut mode = known.map_or(PutMode::Create, PutMode::Update);
        for _ in 0..3 {
            if let Put::Done(version) = self.origin.put(name, bytes, mode)? {
                self.state().versions.insert(name.to_owned(), version);
                return Ok(());
            }
            mode = match self.origin.get(name) {
                // It succeeded before: its answer was lost.
                Ok((found, version)) if found == bytes => {
                    self.state().versions.insert(name.to_owned(), version);
                    return Ok(());
                }
                Ok((_, version)) if !self.leases.is_any_lost() => PutMode::Update(version),
                Ok(_) => break,
                Err(Failure::Missing) => PutMode::Create,
                Err(failure) => return Err(Error::store(format!("{name}: {failure}"))),
            };
        }
        self.state().versions.remove(name);
        Err(leases::taken())
    }
}

fn is_fixed(name: &str) -> bool {
    FIXED.iter().any(|folder| name.starts_with(folder))
}

impl Blobs for Objects {
    fn open(&self, name: &str) -> Result<Input, Failure> {
        let in_front = if is_fixed(name) { self.front.open(name) } else { Err(Failure::Missing) };
        in_front.or_else(|_| {
            let bytes = self.fetch(name)?;
            let len = bytes.len() as u64;
            Ok(Input::new(Cursor::new(bytes), len))
        })
    }

    fn size(&self, name: &str) -> Option<u64> {
        if self.state().there.contains(name)
            && let Some(bytes) = self.front.size(name)
        {
            return Some(bytes);
        }
        let size = self.origin.size(name).unwrap_or_else(|e| {
            tracing::warn!("{e}");
            None
        });
        if size.is_some() && is_fixed(name) {
            self.state().there.insert(name.to_owned());
        }
        size
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let point = || fault::write_point().map_err(|e| files::io_error("write", name.as_ref(), e));
        point()?;
        if is_fixed(name) {
            self.put_fixed(name, bytes)?;
        } else if name.starts_with(SWAPPED) {
            self.swap(name, bytes)?;
        } else {
            self.origin.put(name, bytes, PutMode::Overwrite)?;
        }
        point()
    }

    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        fault::write_point().map_err(|e| files::io_error("write", name.as_ref(), e))?;
        if self.state().there.contains(name) {
            return Ok(false);
        }
        self.put_fixed(name, bytes)
    }

    fn gathers(&self) -> bool {
        false
    }

    fn list(&self, folder: &str) -> Result<Vec<(String, u64)>> {
        self.origin.list(folder)
    }

    fn listing(&self) -> Result<ListFolder<'_>> {
        let mut things = self.list("")?;
        things.retain(|(name, _)| !leases::is_lease(name));
        Ok(by_folder(things))
    }

    fn remove(&self, name: &str) -> Result<u64> {
        fault::write_point().map_err(|e| files::io_error("remove", name.as_ref(), e))?;
        let mut state = self.state();
        state.there.remove(name);
        state.versions.remove(name);
        drop(state);
        let bytes = self.front.size(name);
        let bytes = bytes.map_or_else(|| self.origin.size(name), |bytes| Ok(Some(bytes)))?;
        self.origin.remove(name)?;
        let _ = self.front.remove(name);
        Ok(bytes.unwrap_or(0))
    }

    fn set_aside(&self, name: &str) -> Result<()> {
        // A copy in front may be all that is damaged: then the next look finds the object itself.
        let in_front = is_fixed(name) && self.front.size(name).is_some();
        if in_front {
            self.front.set_aside(name)?;
        }
        let is_fetched = !is_fixed(name) || self.state().there.remove(name);
        if is_fetched {
            self.origin.copy(name, &format!("{}/{}", super::contents::DAMAGED, name.replace('/', ".")))?;
            self.origin.remove(name)?;
            self.state().versions.remove(name);
        }
        Ok(())
    }
}

impl Logs for Objects {
    fn append(&self, name: &str, at: u64, bytes: &[u8]) -> Result<()> {
        match at {
            0 => self.put(name, bytes),
            _ => Err(Error::store(format!("{name}: nothing grows in an object store"))),
        }
    }

    fn appends(&self) -> bool {
        false
    }

    fn can_append(&self, _: &str, _: u64) -> bool {
        false
    }

    fn lease(&self, name: &str) -> Result<Option<Lease>> {
        self.leases.claim(name)
    }

    fn alone(&self) -> Result<Option<Lease>> {
        self.leases.alone()
    }

    fn n_readers(&self, _: usize) -> usize {
        REQUESTS
    }

    fn traffic(&self) -> Option<Traffic> {
        Some(self.origin.traffic())
    }
}
