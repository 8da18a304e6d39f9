//! A tail: the f16 rows of a session's open block, a log that grows turn by turn. A manifest names its end.

use super::cipher::Cipher;
use super::log::{self, End};
use crate::Result;
use crate::kv::blocks::Rows;
use crate::kv::layout::{BLOCK, KvLayout};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A tail as a manifest names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TailRef {
    /// File name in `tails/`.
    pub(crate) file: String,
    /// The block that its rows belong to.
    pub(crate) block: usize,
    /// Rows that count.
    pub(crate) rows: usize,
    /// Where its file ends, as far as it counts.
    pub(crate) end: End,
}

impl TailRef {
    /// A tail without rows.
    pub(crate) fn new(file: String, block: usize) -> Self {
        let end = End::empty(&file);
        Self { file, block, rows: 0, end }
    }

    /// Position of the first token after it.
    pub(crate) fn end_token(&self) -> usize {
        self.block * BLOCK + self.rows
    }
}

/// Appends the rows that `tail` lacks, up to `n`, and moves it on. Returns the bytes written.
pub(super) fn append(
    tails: &Path,
    tail: &mut TailRef,
    n: usize,
    rows: &Rows,
    layout: &KvLayout,
    cipher: &Cipher,
) -> Result<u64> {
    if n <= tail.rows {
        return Ok(0);
    }
    let written =
        log::append(&tails.join(&tail.file), &mut tail.end, rows.to_bytes(tail.rows..n, layout), cipher)?;
    tail.rows = n;
    Ok(written)
}

/// The rows of a tail; the error is the reason why they can't be trusted.
pub(crate) fn decode(
    bytes: &[u8],
    tail: &TailRef,
    layout: &KvLayout,
    cipher: &Cipher,
) -> Result<Rows, String> {
    let mut rows = Rows::new(layout);
    let mut n = 0;
    check(bytes, tail, cipher, &mut |payload| {
        if payload.len() % layout.row_bytes() != 0 {
            return Err("a record is no whole number of rows".to_owned());
        }
        n += payload.len() / layout.row_bytes();
        if n >= BLOCK {
            return Err(format!("{n} rows in an open block"));
        }
        rows.push_bytes(payload, layout);
        Ok(())
    })?;
    if n != tail.rows {
        return Err(format!("it holds {n} rows, its manifest says {}", tail.rows));
    }
    Ok(rows)
}

/// Reads the records that count: they must end exactly where and how the manifest says.
pub(super) fn check(
    bytes: &[u8],
    tail: &TailRef,
    cipher: &Cipher,
    each: &mut dyn FnMut(&[u8]) -> Result<(), String>,
) -> Result<(), String> {
    let counts = usize::try_from(tail.end.bytes).ok().and_then(|n| bytes.get(..n));
    let counts = counts.ok_or("it is shorter than its manifest says")?;
    let mut last = End::empty(&tail.file);
    log::read(counts, &tail.file, cipher, &mut |payload, end| {
        last = end.clone();
        each(&payload)
    })
    .map_err(|broken| broken.reason)?;
    if last != tail.end {
        return Err("it is not the one that its manifest names".to_owned());
    }
    Ok(())
}
