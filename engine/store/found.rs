//! Results of reading something stored: the thing, or one of three reasons why not. They must never be mixed
//! up: what is missing can be written, what is damaged is set aside, and what could not be read is left
//! alone, for it may be whole.

use std::fmt;
use std::io::{self, ErrorKind};

/// Result of reading a stored thing.
pub(crate) enum Found<T> {
    /// It is there and passed its checks.
    Whole(T),
    /// It is not there.
    Missing,
    /// It failed a check and was set aside; the reason.
    Damaged(String),
    /// The system could not read it; the reason.
    Unreadable(String),
}

/// Reason why a stored thing can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It is not there.
    Missing,
    /// It was read and is wrong, or is not a file at all: that will not change.
    Damaged(String),
    /// The system could not read it.
    Unreadable(String),
}

impl Failure {
    /// An error of the system while reading `what`. To end too early is a damage, of the file.
    pub(super) fn io(what: impl fmt::Display, e: &io::Error) -> Self {
        match e.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => Self::Missing,
            ErrorKind::UnexpectedEof => Self::Damaged(format!("{what} ends too early")),
            _ => Self::Unreadable(format!("{what} can't be read: {e}")),
        }
    }
}

impl From<String> for Failure {
    fn from(reason: String) -> Self {
        Self::Damaged(reason)
    }
}

impl From<&str> for Failure {
    fn from(reason: &str) -> Self {
        Self::Damaged(reason.to_owned())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("it is missing"),
            Self::Damaged(reason) | Self::Unreadable(reason) => f.write_str(reason),
        }
    }
}
