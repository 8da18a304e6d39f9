//! Media for a store's bytes: blobs, which are put whole and never change, and logs, which grow.
//!
//! Names are relative paths (`blocks/ab/….safetensors`, `manifests/….log`). [`disk`](super::disk) is a folder,
//! [`in_memory`](super::in_memory) is gone with the process.

use super::found::Failure;
use super::source::Input;
use crate::Result;

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
