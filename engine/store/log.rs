//! An append-only file of records, each chained to the one before: what a crash tears is the last record
//! alone.
//!
//! A record is its payload's length (u32, little endian), a blake3 keyed with the checksum before it, and the
//! payload (encrypted where the store is). The first one is keyed with the file's name: a file in another's
//! place is not read.
//!
//! Manifests and tails are logs: records chained by checksums that begin with the file's name. The design had
//! a manifest replaced whole at each turn; for a small model that alone was more than a twentieth of all that
//! was written. A torn last record is the turn before; a tail counts only if it ends exactly as its manifest
//! says, so files of other agents or of another moment don't pass.

use super::cipher::Cipher;
use super::found::Failure;
use super::medium::Logs;
use super::source::{ByteSource, stretch};
use crate::Result;
use serde::{Deserialize, Serialize};
use std::io::{self, Cursor, Read as _, SeekFrom};

/// Bytes of a record before its payload.
pub(super) const HEAD: usize = 4 + 32;
/// Maximum bytes of a record.
pub(super) const MAX_RECORD_BYTES: u64 = 1 << 30;

/// End of a log: the bytes that count, and the last checksum, which covers all before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct End {
    pub(crate) bytes: u64,
    pub(crate) sum: String,
}

impl End {
    /// The end of a log without records.
    pub(crate) fn empty(name: &str) -> Self {
        let start = blake3::derive_key("greenroom 2026 store log", name.as_bytes());
        Self { bytes: 0, sum: blake3::Hash::from_bytes(start).to_hex().to_string() }
    }

    fn key(&self) -> [u8; 32] {
        // One that is not a checksum fits no record.
        blake3::Hash::from_hex(&self.sum).map_or([0; 32], |hash| *hash.as_bytes())
    }
}

/// A record that follows `end`, which moves on; returns its bytes.
pub(crate) fn record(end: &mut End, payload: Vec<u8>, cipher: &Cipher) -> Result<Vec<u8>> {
    let key = end.key();
    let payload = cipher.seal(&key, payload)?;
    let n = u32::try_from(payload.len()).ok().filter(|n| u64::from(*n) <= MAX_RECORD_BYTES);
    let n = n.ok_or_else(|| crate::Error::store("can't write a record of more than 1 GiB"))?;
    let sum = blake3::keyed_hash(&key, &payload);
    let record = [&n.to_le_bytes()[..], sum.as_bytes(), &payload].concat();
    *end = End { bytes: end.bytes + record.len() as u64, sum: sum.to_hex().to_string() };
    Ok(record)
}

/// Appends a record to the log called `name`; `end` moves once it is written. Returns the bytes written.
pub(super) fn append(
    logs: &dyn Logs,
    name: &str,
    end: &mut End,
    payload: Vec<u8>,
    cipher: &Cipher,
) -> Result<u64> {
    let mut next = end.clone();
    let record = record(&mut next, payload, cipher)?;
    logs.append(name, end.bytes, &record)?;
    *end = next;
    Ok(record.len() as u64)
}

/// Reason why reading a log ended before its bytes did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    pub(crate) reason: String,
    /// It ends inside a record, as after a crash.
    pub(crate) torn: bool,
}

impl From<String> for Broken {
    fn from(reason: String) -> Self {
        Self { reason, torn: false }
    }
}

/// A record whose checksum is right.
pub(super) struct Record {
    /// Offset and length of its payload, in bytes.
    pub(super) payload: (u64, u64),
    /// Key of its checksum, to which the payload is bound too.
    key: [u8; 32],
    /// End of the log after this record.
    pub(super) end: End,
}

impl Record {
    /// The payload, decrypted.
    pub(super) fn open(&self, source: &mut dyn ByteSource, cipher: &Cipher) -> Result<Vec<u8>, Failure> {
        let payload = stretch(source, self.payload)?;
        Ok(cipher.open(&self.key, payload)?)
    }
}

/// Checks a log's records in `len` bytes from the start, a piece of each at a time, and hands them to `each`,
/// which may read the source. Gives why it ended before the bytes did; a record of more than `most` bytes is
/// never written.
///
/// # Errors
/// The source can't be read, or `each` says no.
pub(super) fn scan(
    source: &mut dyn ByteSource,
    len: u64,
    name: &str,
    most: u64,
    each: &mut dyn FnMut(&mut dyn ByteSource, &Record) -> Result<(), Failure>,
) -> Result<Option<Broken>, Failure> {
    let wrong = |e: io::Error| Failure::io("it", &e);
    let mut end = End::empty(name);
    while end.bytes < len {
        let (at, rest) = (end.bytes, len - end.bytes);
        let torn = || Broken { reason: format!("the record at byte {at} is incomplete"), torn: true };
        let mut head = [0; HEAD];
        let there = rest.min(HEAD as u64);
        source.seek(SeekFrom::Start(at)).map_err(wrong)?;
        source.read_exact(&mut head[..there as usize]).map_err(wrong)?;
        let [a, b, c, d, sum @ ..] = head;
        let n = u64::from(u32::from_le_bytes([a, b, c, d]));
        if there < HEAD as u64 && n <= most {
            return Ok(Some(torn()));
        }
        let left = rest - there;
        let key = end.key();
        let mut hasher = blake3::Hasher::new_keyed(&key);
        // All that is left where the record is longer: if just that has the checksum, the length is what is
        // wrong.
        hasher.update_reader((&mut *source).take(n.min(left).min(most))).map_err(wrong)?;
        let found = hasher.finalize();
        let right = found.as_bytes() == &sum;
        if n > left && n <= most && !right {
            return Ok(Some(torn()));
        }
        if n > left || n > most || !right {
            let reason = format!("the checksum of the record at byte {at} does not match");
            return Ok(Some(reason.into()));
        }
        end = End { bytes: at + HEAD as u64 + n, sum: found.to_hex().to_string() };
        each(source, &Record { payload: (at + HEAD as u64, n), key, end: end.clone() })?;
    }
    Ok(None)
}

/// Takes a payload and where it ends, and says whether to continue.
pub(super) type Each<'a> = dyn FnMut(&[u8], &End) -> Result<(), String> + 'a;

/// Reads records from the start.
pub(super) fn read(bytes: &[u8], name: &str, cipher: &Cipher, each: &mut Each<'_>) -> Result<(), Broken> {
    let len = bytes.len() as u64;
    let read = scan(&mut Cursor::new(bytes), len, name, MAX_RECORD_BYTES, &mut |source, record| {
        if cipher.encrypts() {
            return Ok(each(&record.open(source, cipher)?, &record.end)?);
        }
        let (start, n) = record.payload; // inside: its checksum was right
        Ok(each(&bytes[start as usize..][..n as usize], &record.end)?)
    });
    match read {
        Ok(None) => Ok(()),
        Ok(Some(broken)) => Err(broken),
        Err(failure) => Err(failure.to_string().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn payloads(bytes: &[u8], name: &str) -> (Vec<Vec<u8>>, Result<(), Broken>) {
        let mut out = Vec::new();
        let read = read(bytes, name, &Cipher::new(None), &mut |payload, _| {
            out.push(payload.to_vec());
            Ok(())
        });
        (out, read)
    }

    proptest! {
        /// Damage to the bytes, of whatever kind, leaves a prefix of what was written.
        #[test]
        fn a_damaged_log_is_a_shorter_one(
            written in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 1..6),
            cut in any::<prop::sample::Index>(),
            flip in any::<prop::sample::Index>(),
        ) {
            let (mut end, mut bytes) = (End::empty("a"), Vec::new());
            for payload in &written {
                bytes.extend(record(&mut end, payload.clone(), &Cipher::new(None)).expect("a record"));
            }
            prop_assert_eq!(end.bytes, bytes.len() as u64);
            prop_assert_eq!(payloads(&bytes, "a"), (written.clone(), Ok(())));
            prop_assert_eq!(payloads(&bytes, "b").0.len(), 0);
            let (short, _) = payloads(&bytes[..cut.index(bytes.len())], "a");
            prop_assert_eq!(&short[..], &written[..short.len()]);
            let at = flip.index(bytes.len());
            bytes[at] ^= 4;
            let (flipped, read) = payloads(&bytes, "a");
            prop_assert!(flipped.len() < written.len() && read.is_err());
            prop_assert_eq!(&flipped[..], &written[..flipped.len()]);
        }
    }
}
