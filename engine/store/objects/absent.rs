//! In the place of object stores where the program is built without them (feature `objects`): no address of one
//! can be made.

use crate::store::disk::Disk;
use crate::{Error, Result};
use std::convert::Infallible;
use std::str::FromStr;

/// Where an object store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectsAddress(Infallible);

impl ObjectsAddress {
    /// Name of a folder of copies.
    pub fn folder_name(&self) -> String {
        match self.0 {}
    }
}

impl std::fmt::Display for ObjectsAddress {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {}
    }
}

impl FromStr for ObjectsAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Err(Error::request(format!(
            "`{text}` is not a folder, and this program was built without object stores: use a release, or \
             build it with `--features objects`"
        )))
    }
}

/// An object store as a medium.
pub(crate) struct Objects;

impl Objects {
    pub(super) fn open(address: &ObjectsAddress, _: &str, _: bool, _: Disk) -> Result<Disk> {
        match address.0 {}
    }
}
