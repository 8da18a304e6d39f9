//! A tail: the f16 rows of a session's open block, a log that grows turn by turn. A manifest names its end.
//!
//! A tail belongs to one block. When the block seals, a new file begins; the latest of the old ones stay:
//! they have the rows for a session, or one with the same beginning, that goes back into a sealed block.

use super::cipher::{Cipher, OVERHEAD};
use super::found::Failure;
use super::log::{self, End};
use super::medium::Logs;
use super::source::Input;
use crate::Result;
use crate::kv::layout::{BLOCK, KvLayout};
use serde::{Deserialize, Serialize};

/// A tail as a manifest names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TailRef {
    /// File name in `tails/`.
    pub(crate) file: String,
    /// The block that its rows belong to.
    pub(crate) block: usize,
    /// Rows that count: the first ones that it has.
    pub(crate) rows: usize,
    /// End of its file, as far as it counts.
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

/// The name of a tail's log.
pub(super) fn name(tail: &TailRef) -> String {
    format!("tails/{}", tail.file)
}

/// Appends the rows that `tail` lacks, up to `n`, and moves it on. Returns the bytes written.
pub(super) fn append(
    logs: &dyn Logs,
    tail: &mut TailRef,
    n: usize,
    rows: Vec<u8>,
    cipher: &Cipher,
) -> Result<u64> {
    if n <= tail.rows {
        return Ok(0);
    }
    let written = log::append(logs, &name(tail), &mut tail.end, rows, cipher)?;
    tail.rows = n;
    Ok(written)
}

/// The bytes of a tail's rows; the error is the reason why they can't be trusted.
pub(crate) fn decode(
    bytes: &[u8],
    tail: &TailRef,
    layout: &KvLayout,
    cipher: &Cipher,
) -> Result<Vec<u8>, String> {
    let mut rows = Vec::with_capacity(tail.rows.min(BLOCK) * layout.row_bytes());
    let mut n = 0;
    check(bytes, tail, cipher, &mut |payload| {
        if payload.len() % layout.row_bytes() != 0 {
            return Err("a record is not a whole number of rows".to_owned());
        }
        n += payload.len() / layout.row_bytes();
        if n >= BLOCK {
            return Err(format!("{n} rows in an open block"));
        }
        rows.extend_from_slice(payload);
        Ok(())
    })?;
    if n < tail.rows {
        return Err(format!("it has {n} rows, but its manifest says {}", tail.rows));
    }
    rows.truncate(tail.rows * layout.row_bytes());
    Ok(rows)
}

/// Reads the records that count: they must end exactly where and how the manifest says.
fn check(
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
        each(payload)
    })
    .map_err(|broken| broken.reason)?;
    if last != tail.end {
        return Err("it is not the tail that its manifest names".to_owned());
    }
    Ok(())
}

/// Maximum bytes of a tail's file.
pub(super) const MAX_TAIL_BYTES: u64 = 1 << 30;

/// Maximum bytes that count of a tail: a record for each row.
pub(super) fn most(layout: &KvLayout) -> u64 {
    (BLOCK * (layout.row_bytes() + log::HEAD + OVERHEAD)) as u64
}

/// Checks a tail's whole file, including what follows its end: rows of an uncommitted turn, or a record that
/// a crash tore. Without a manifest's `tail` all of it is such.
///
/// # Errors
/// It is damaged, or can't be read.
pub(super) fn verify(
    input: &mut Input,
    name: &str,
    tail: Option<&TailRef>,
    cipher: &Cipher,
) -> Result<(), Failure> {
    let len = input.len();
    if len > MAX_TAIL_BYTES {
        return Err(format!("it has {len} bytes; expected at most {MAX_TAIL_BYTES}").into());
    }
    if tail.is_some_and(|tail| len < tail.end.bytes) {
        return Err("it is shorter than its manifest says".into());
    }
    // No record has more rows than a block, and no row more bytes than those that are there.
    let most = tail.map_or(MAX_TAIL_BYTES, |tail| BLOCK as u64 * (tail.end.bytes / tail.rows.max(1) as u64));
    let mut passed = tail.is_none();
    let broken = log::scan(input, len, name, most, &mut |source, record| {
        passed |= tail.is_some_and(|tail| record.end == tail.end);
        if cipher.encrypts() { Ok(record.open(source, cipher).map(drop)?) } else { Ok(()) }
    })?;
    match broken {
        Some(broken) if !broken.torn => Err(broken.reason.into()),
        _ if !passed => Err("it is not the tail that its manifest names".into()),
        _ => Ok(()),
    }
}
