//! Media for a store's bytes: blobs, which are put whole and never change, and logs, which grow.
//!
//! Names are relative paths (`blocks/ab/….safetensors`, `manifests/….log`). [`disk`](super::disk) is a
//! folder, [`objects`](super::objects) an object store behind a folder of copies,
//! [`in_memory`](super::in_memory) ends with the process.

use super::found::Failure;
use super::source::Input;
use crate::Result;
use std::fs::File;

/// Named blobs.
pub(crate) trait Blobs: Send + Sync {
    /// Opens a thing to read any range of it.
    ///
    /// # Errors
    /// It is missing, is not a regular file, or can't be read.
    fn open(&self, name: &str) -> Result<Input, Failure>;

    /// Bytes of a thing; `None` if it is not there.
    fn size(&self, name: &str) -> Option<u64>;

    /// Writes a file completely or not at all, replacing one of the same name.
    ///
    /// # Errors
    /// It can't be written.
    fn put(&self, name: &str, bytes: &[u8]) -> Result<()>;

    /// Puts a thing unless one of that name is there; tells whether it was put.
    ///
    /// # Errors
    /// It can't be written.
    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        let is_new = self.size(name).is_none();
        if is_new {
            self.put(name, bytes)?;
        }
        Ok(is_new)
    }

    /// Tells whether many small things are better gathered in few large ones ([`super::pack`]).
    fn gathers(&self) -> bool {
        true
    }

    /// The things below a folder ("": all), with their bytes, by name.
    ///
    /// # Errors
    /// The folder can't be read.
    fn list(&self, folder: &str) -> Result<Vec<(String, u64)>>;

    /// Everything there, to be walked folder by folder.
    ///
    /// # Errors
    /// It can't be read.
    fn listing(&self) -> Result<ListFolder<'_>> {
        Ok(by_folder(self.list("")?))
    }

    /// Removes a thing; returns the bytes that it had. One that is missing is not an error.
    ///
    /// # Errors
    /// It can't be removed.
    fn remove(&self, name: &str) -> Result<u64>;

    /// Moves what failed a check out of the way, and keeps it.
    ///
    /// # Errors
    /// It can't be moved.
    fn set_aside(&self, name: &str) -> Result<()>;
}

/// Blobs, and things among them that grow by appending.
pub(crate) trait Logs: Blobs {
    /// Appends to a log of which the first `at` bytes count; the rest is cut off.
    ///
    /// # Errors
    /// It is shorter, or can't be written.
    fn append(&self, name: &str, at: u64, bytes: &[u8]) -> Result<()>;

    /// Tells whether logs grow in place; else each is written once.
    fn appends(&self) -> bool {
        true
    }

    /// Tells whether a log can be appended to after its first `at` bytes.
    fn can_append(&self, name: &str, at: u64) -> bool;

    /// The exclusive right to write a name, until it is dropped; `None`: another process has it.
    ///
    /// # Errors
    /// It can't be leased.
    fn lease(&self, name: &str) -> Result<Option<Lease>>;

    /// Exclusive use of everything, until it is dropped; `None`: another process uses it.
    ///
    /// # Errors
    /// It can't be acquired.
    fn alone(&self) -> Result<Option<Lease>>;

    /// Number of reads worth doing in parallel, given the number of cores that compute.
    fn n_readers(&self, n_cores: usize) -> usize {
        n_cores
    }

    /// Network traffic so far; `None` where there is none.
    fn traffic(&self) -> Option<Traffic> {
        None
    }
}

/// An exclusive right; given back when it is dropped.
pub(crate) type Lease = Box<dyn Exclusive>;

/// An exclusive right, which another process may take from one that is out of touch for long.
pub(crate) trait Exclusive: Send + Sync {
    /// Tells whether another process has taken it, as far as is known without a request.
    fn is_taken(&self) -> bool {
        false
    }

    /// Makes sure that it is still held: then nobody else has written what it covers.
    ///
    /// # Errors
    /// `InUse`: another process has taken it; `Store`: that can't be determined.
    fn confirm(&self) -> Result<()> {
        Ok(())
    }
}

/// The right to what does not exist.
impl Exclusive for () {}

/// A locked file.
impl Exclusive for File {}

/// Lists the entries of a folder ("" is the topmost), sorted by name; none if it is not there.
pub(crate) type ListFolder<'a> = Box<dyn Fn(&str) -> Result<Vec<MediumEntry>> + 'a>;

/// Something in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MediumEntry {
    /// Its name in the folder; what is not Unicode in it is replaced.
    pub(crate) name: String,
    pub(crate) kind: EntryKind,
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    /// A regular file of this many bytes.
    File(u64),
    Folder,
    /// Something else, as text.
    Other(&'static str),
}

/// Traffic with an object store since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Traffic {
    /// HTTP requests, those that were repeated too.
    pub requests: u64,
    /// Bytes of bodies that were sent.
    pub sent: u64,
    /// Bytes of bodies that were received.
    pub received: u64,
}

impl std::ops::Add for Traffic {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let (requests, sent) = (self.requests + other.requests, self.sent + other.sent);
        Self { requests, sent, received: self.received + other.received }
    }
}

impl std::ops::Sub for Traffic {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        let (requests, sent) = (self.requests - other.requests, self.sent - other.sent);
        Self { requests, sent, received: self.received - other.received }
    }
}

/// Things with their bytes, sorted by name, as folders.
pub(crate) fn by_folder(things: Vec<(String, u64)>) -> ListFolder<'static> {
    Box::new(move |folder| {
        let below = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let mut entries: Vec<MediumEntry> = Vec::new();
        let inside = things.iter().filter_map(|(name, bytes)| Some((name.strip_prefix(&below)?, *bytes)));
        for (name, bytes) in inside {
            let (name, kind) = name
                .split_once('/')
                .map_or((name, EntryKind::File(bytes)), |(folder, _)| (folder, EntryKind::Folder));
            if entries.last().is_none_or(|last| last.name != name) {
                entries.push(MediumEntry { name: name.to_owned(), kind });
            }
        }
        Ok(entries)
    })
}
