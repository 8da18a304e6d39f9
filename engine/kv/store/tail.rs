//! The tail log: f16 rows of a session's open block, appended turn by turn.
//!
//! A header (magic, identity, block, bytes of a row) and records (row count, checksum, rows). A manifest names the
//! file and how much of it counts; what a crash left behind that is cut off by the next append.

use super::{io_error, private, short, sync_dir};
use crate::kv::blocks::Rows;
use crate::kv::layout::{BLOCK, KvLayout};
use crate::kv::table::BlockHash;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

const MAGIC: &[u8; 8] = b"GRTAIL01";
const HEADER: usize = 8 + 32 + 8 + 8;
const RECORD: usize = 8 + 32;

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
    /// Bytes of the file that count.
    pub(crate) bytes: u64,
}

fn header(block: usize, root: BlockHash, layout: &KvLayout) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&root.0);
    out.extend_from_slice(&(block as u64).to_le_bytes());
    out.extend_from_slice(&(layout.row_bytes() as u64).to_le_bytes());
    out
}

fn checksum(header: &[u8], first: usize, payload: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(header).update(&(first as u64).to_le_bytes()).update(payload);
    *hasher.finalize().as_bytes()
}

/// Appends the rows that `tail` lacks, up to `n`, to its file (made if it holds none yet) and updates `tail`.
/// Returns the bytes written.
pub(crate) fn append(
    dir: &Path,
    tail: &mut TailRef,
    n: usize,
    rows: &Rows,
    root: BlockHash,
    layout: &KvLayout,
) -> Result<u64> {
    if n <= tail.rows {
        return Ok(0);
    }
    let path = dir.join("tails").join(&tail.file);
    let header = header(tail.block, root, layout);
    let payload = rows.to_bytes(tail.rows..n, layout);
    let mut record = Vec::with_capacity(HEADER + RECORD + payload.len());
    if tail.bytes == 0 {
        record.extend_from_slice(&header);
    }
    record.extend_from_slice(&((n - tail.rows) as u64).to_le_bytes());
    record.extend_from_slice(&checksum(&header, tail.rows, &payload));
    record.extend_from_slice(&payload);
    let written = (|| {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        let mut file = private(&mut options).open(&path)?;
        file.set_len(tail.bytes)?; // rows of a turn that was never committed
        file.seek(SeekFrom::Start(tail.bytes))?;
        file.write_all(&record)?;
        file.sync_all()?;
        if tail.bytes == 0 { sync_dir(&path) } else { Ok(()) }
    })();
    written.map_err(|e: std::io::Error| io_error("write", &path, e))?;
    tail.rows = n;
    tail.bytes += record.len() as u64;
    Ok(record.len() as u64)
}

/// The rows of a tail; the error is the reason why they can't be trusted.
pub(crate) fn decode(
    bytes: &[u8],
    tail: &TailRef,
    root: BlockHash,
    layout: &KvLayout,
) -> Result<Rows, String> {
    let bytes = bytes.get(..tail.bytes as usize).ok_or("it is shorter than its manifest says")?;
    let expected = header(tail.block, root, layout);
    if bytes.get(..HEADER) != Some(expected.as_slice()) {
        return Err("its header is not this model's and block's".to_owned());
    }
    if tail.rows >= BLOCK {
        return Err(format!("{} rows in an open block", tail.rows));
    }
    let mut rows = Rows::new(layout);
    let (mut at, mut n) = (HEADER, 0usize);
    while at < bytes.len() {
        let piece = bytes.get(at..at + RECORD).ok_or("it ends inside a record")?;
        let (count, sum) = piece.split_at(8);
        let count = u64::from_le_bytes(count.try_into().expect("8 bytes"));
        let size = usize::try_from(count).ok().and_then(|c| c.checked_mul(layout.row_bytes()));
        let end = size.and_then(|s| (at + RECORD).checked_add(s));
        let payload =
            end.and_then(|end| bytes.get(at + RECORD..end)).ok_or("a record reaches past its end")?;
        if sum != checksum(&expected, n, payload) {
            return Err(format!("the checksum of the record at byte {at} does not match"));
        }
        rows.push_bytes(payload, layout);
        (n, at) = (n + count as usize, at + RECORD + payload.len());
    }
    if n < tail.rows {
        return Err(format!("it holds {n} rows, its manifest says {}", tail.rows));
    }
    rows.truncate(tail.rows, layout);
    Ok(rows)
}

/// Bytes of a tail's file, for the inventory.
pub(crate) fn size(dir: &Path, tail: &TailRef) -> Result<u64> {
    let path = dir.join("tails").join(&tail.file);
    let metadata = std::fs::metadata(&path).map_err(|e| Error::store(format!("{}: {e}", short(&path))))?;
    Ok(metadata.len())
}

/// Checks a tail by itself: every record that counts has the right checksum for the header that it stands behind.
pub(crate) fn verify(bytes: &[u8], tail: &TailRef) -> Result<(), String> {
    let bytes = bytes.get(..tail.bytes as usize).ok_or("it is shorter than its manifest says")?;
    let header = bytes.get(..HEADER).filter(|h| h.starts_with(MAGIC)).ok_or("it has no header")?;
    let row_bytes = u64::from_le_bytes(header[HEADER - 8..].try_into().expect("8 bytes"));
    let (mut at, mut n) = (HEADER, 0u64);
    while at < bytes.len() {
        let piece = bytes.get(at..at + RECORD).ok_or("it ends inside a record")?;
        let count = u64::from_le_bytes(piece[..8].try_into().expect("8 bytes"));
        let size = count.checked_mul(row_bytes).and_then(|s| usize::try_from(s).ok());
        let end = size.and_then(|s| (at + RECORD).checked_add(s));
        let payload =
            end.and_then(|end| bytes.get(at + RECORD..end)).ok_or("a record reaches past its end")?;
        if piece[8..] != checksum(header, n as usize, payload) {
            return Err(format!("the checksum of the record at byte {at} does not match"));
        }
        (n, at) = (n + count, at + RECORD + payload.len());
    }
    Ok(())
}
