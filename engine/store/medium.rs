//! Media for a store's bytes: blobs, which are put whole and never change, and logs, which grow.
//!
//! Names are relative paths (`blocks/ab/….safetensors`, `manifests/….log`). [`disk`](super::disk) is a folder,
//! [`in_memory`](super::in_memory) is gone with the process.

use super::files::Source;
use super::found::Failure;
use crate::Result;
use std::io::{self, Read, Seek, SeekFrom};

/// Whole things by their names.
pub(crate) trait Blobs: Send + Sync {
    /// Opens a thing to read any range of it.
    ///
    /// # Errors
    /// It is missing, is no regular file, or can't be read.
    fn open(&self, name: &str) -> Result<Input, Failure>;

    /// Bytes of a thing; `None` if it is not there.
    fn size(&self, name: &str) -> Option<u64>;

    /// Puts a thing in its place, whole or not at all; another one of that name goes.
    ///
    /// # Errors
    /// It can't be written.
    fn put(&self, name: &str, bytes: &[u8]) -> Result<()>;

    /// The things below a folder, with their bytes, by name.
    ///
    /// # Errors
    /// The folder can't be read.
    fn list(&self, folder: &str) -> Result<Vec<(String, u64)>>;

    /// Removes a thing; returns the bytes that it had. One that is not there is no error.
    ///
    /// # Errors
    /// It can't be removed.
    fn remove(&self, name: &str) -> Result<u64>;

    /// Takes what failed a check out of the way, and keeps it.
    ///
    /// # Errors
    /// It can't be moved.
    fn set_aside(&self, name: &str) -> Result<()>;
}

/// Blobs, and things among them that grow by appending.
pub(crate) trait Logs: Blobs {
    /// Appends to a log whose first `at` bytes count; what lies behind them is cut off.
    ///
    /// # Errors
    /// It is shorter, or can't be written.
    fn append(&self, name: &str, at: u64, bytes: &[u8]) -> Result<()>;

    /// Tells whether a log can be appended to after its first `at` bytes.
    fn can_append(&self, name: &str, at: u64) -> bool;

    /// The right to write what goes by a name, until it is dropped; `None`: somebody else has it.
    ///
    /// # Errors
    /// Nobody can have it.
    fn lease(&self, name: &str) -> Result<Option<Lease>>;
}

/// Given back when it is dropped.
pub(crate) type Lease = Box<dyn Send>;

/// A thing that is being read.
pub(crate) struct Input {
    source: Box<dyn Source>,
    len: u64,
}

impl Input {
    /// `len` bytes of a source.
    pub(super) fn new(source: impl Source + 'static, len: u64) -> Self {
        Self { source: Box::new(source), len }
    }

    /// Bytes that it had when it was opened.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// All of it, at most `most` bytes.
    pub(super) fn whole(&mut self, most: u64) -> Result<Vec<u8>, Failure> {
        if self.len > most {
            return Err(format!("it has {} bytes, at most {most} are possible", self.len).into());
        }
        let len = self.len;
        super::files::stretch(self, (0, len))
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.source.read(buffer)
    }
}

impl Seek for Input {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.source.seek(to)
    }
}
