//! The secret of a folder, which authenticates its own exports.

use super::found::Failure;
use super::medium::Lease;
use super::{Store, files};
use crate::{Error, ErrorKind, Result};
use std::time::Duration;

/// Name of its file.
pub(super) const SECRET: &str = "export.key";
/// Bytes of it.
pub(super) const LEN: u64 = 32;

/// Tells whether a file is one that a crash left of it.
pub(super) fn is_unfinished(name: &str) -> bool {
    name.strip_prefix("export.").is_some_and(|rest| rest.starts_with(files::TEMPORARY))
}

impl Store {
    /// The secret that this folder's exports are signed with; created on first use.
    ///
    /// # Errors
    /// It can't be read or made.
    pub(crate) fn export_secret(&self) -> Result<[u8; 32]> {
        // The second process reads what the first one made.
        let _lease = self.lease_packs()?;
        match self.medium.open(SECRET).and_then(|mut input| input.whole(LEN)) {
            Ok(found) => found.try_into().map_err(|found: Vec<u8>| {
                Error::store(format!("{SECRET} has {} bytes; expected {LEN}; remove it", found.len()))
            }),
            Err(Failure::Missing) => {
                let secret = random_secret()?;
                self.medium.put(SECRET, &secret)?;
                Ok(secret)
            }
            Err(failure) => Err(Error::store(format!("{SECRET}: {failure}"))),
        }
    }

    /// The right to move what is in packs; waits for it, as its holder is soon done.
    ///
    /// # Errors
    /// Another process keeps it, or it can't be had.
    pub(super) fn lease_packs(&self) -> Result<Lease> {
        for _ in 0..500 {
            if let Some(lease) = self.medium.lease("packs.lock")? {
                return Ok(lease);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(Error::new(ErrorKind::InUse, "another process is packing blocks of the cache folder; try again"))
    }

    /// Tells whether what is stored is encrypted.
    pub(crate) fn encrypts(&self) -> bool {
        self.cipher.encrypts()
    }
}

/// A new secret.
///
/// # Errors
/// The system has no random numbers.
pub(crate) fn random_secret() -> Result<[u8; 32]> {
    files::random()
}
