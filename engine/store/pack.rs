//! Many small blocks in one file, so that a folder of small models does not end in a hundred thousand files.
//!
//! A pack holds the images of blocks as their own files held them, one after another, then an index (address,
//! part, offset and length of each), its length, its blake3 and a magic. It is written whole before the files
//! that it replaces go.
//!
//! A part of a block is one safetensors image, named by hash(identity, all ids up to its end): a file of its
//! own, until 256 small ones (below a MiB) have come together; then a pack takes them over, written whole
//! before they go. That copies a small block once more.

use super::found::Failure;
use super::medium::Blobs;
use super::short;
use super::source::{Input, stretch};
use crate::Result;
use crate::kv::layout::Part;
use crate::kv::table::{BlockHash, BlockKey};
use std::collections::{HashMap, HashSet};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::sync::Arc;

const MAGIC: &[u8; 8] = b"GRPACK01";
const ENTRY: usize = 32 + 1 + 8 + 8;
const FOOTER: usize = 8 + 32 + 8;

/// Location of an image.
#[derive(Clone, Debug)]
pub(super) struct ImageLocation {
    /// Name of the pack.
    pub(super) pack: Arc<str>,
    pub(super) offset: u64,
    pub(super) len: u64,
}

impl ImageLocation {
    /// The pack, and the stretch of it that is the image.
    pub(super) fn open(&self, blobs: &dyn Blobs) -> Result<(Input, (u64, u64)), Failure> {
        Ok((blobs.open(&self.pack)?, (self.offset, self.len)))
    }
}

/// Index of the packs of a folder.
#[derive(Debug, Default)]
pub(super) struct Packs {
    known: HashSet<String>,
    places: HashMap<BlockKey, ImageLocation>,
}

impl Packs {
    /// Looks at packs that were added or removed since the last look; one whose index is damaged is reported
    /// and skipped.
    pub(super) fn refresh(&mut self, blobs: &dyn Blobs) -> Result<()> {
        let packs = blobs.list("packs")?.into_iter().map(|(name, _)| name);
        let now: HashSet<String> = packs.filter(|name| name.ends_with(".pack")).collect();
        if now == self.known {
            return Ok(());
        }
        self.places.retain(|_, place| now.contains(&*place.pack));
        let mut known = now.clone();
        for name in now.difference(&self.known) {
            match index(blobs, name) {
                Ok(entries) => self.places.extend(entries),
                Err(Failure::Damaged(reason)) => {
                    tracing::warn!("{} is damaged: {reason}", short(name));
                }
                // Gone again, or readable the next time.
                Err(failure) => {
                    tracing::debug!("{}: {failure}", short(name));
                    known.remove(name);
                }
            }
        }
        self.known = known;
        Ok(())
    }

    pub(super) fn find(&self, key: BlockKey) -> Option<ImageLocation> {
        self.places.get(&key).cloned()
    }

    /// An image that failed a check is not looked at again.
    pub(super) fn forget(&mut self, key: BlockKey) {
        self.places.remove(&key);
    }
}

/// Maximum bytes of a pack, and of its index.
pub(super) const MAX_PACK_BYTES: u64 = 4 << 30;
const MAX_INDEX_BYTES: u64 = 16 << 20;

/// Reads the index of a pack.
///
/// # Errors
/// It can't be trusted, or can't be read.
pub(super) fn index(blobs: &dyn Blobs, name: &str) -> Result<Vec<(BlockKey, ImageLocation)>, Failure> {
    let wrong = |e: std::io::Error| Failure::io("its index", &e);
    let mut input = blobs.open(name)?;
    let end = input.len().checked_sub(FOOTER as u64).ok_or("it is too short for a pack")?;
    let mut footer = [0; FOOTER];
    input.seek(SeekFrom::Start(end)).and_then(|_| input.read_exact(&mut footer)).map_err(wrong)?;
    let (n, rest) = footer.split_at(8);
    let (sum, magic) = rest.split_at(32);
    let n = u64::from_le_bytes(n.try_into().expect("8 bytes"));
    let start =
        end.checked_sub(n).filter(|_| magic == MAGIC && n <= MAX_INDEX_BYTES && end <= MAX_PACK_BYTES);
    let start = start.ok_or("it does not end like a pack")?;
    let bytes = stretch(&mut input, (start, n))?;
    if blake3::hash(&bytes).as_bytes() != sum {
        return Err("the checksum of its index does not match".into());
    }
    Ok(decode(&bytes, start, name)?)
}

/// Checks the rest of a pack: its index, and that they lie one after another, with nothing between them.
///
/// # Errors
/// It is damaged, or can't be read.
pub(super) fn verify(blobs: &dyn Blobs, name: &str) -> Result<Vec<(BlockKey, ImageLocation)>, Failure> {
    let entries = index(blobs, name)?;
    let held: u64 = entries.iter().map(|(_, place)| place.len).sum();
    let rest = entries.len() * ENTRY + FOOTER;
    let contiguous = entries.windows(2).all(|pair| pair[0].1.offset + pair[0].1.len == pair[1].1.offset);
    let first = entries.first().map_or(0, |(_, place)| place.offset);
    if !contiguous || first != 0 || blobs.size(name) != Some(held + rest as u64) {
        return Err("it contains bytes that belong to no block".into());
    }
    Ok(entries)
}

/// The entries of an index; images lie before `start`.
pub(crate) fn decode_entries(bytes: &[u8], start: u64) -> Result<Vec<(BlockKey, u64, u64)>, String> {
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    if bytes.len() % ENTRY != 0 {
        return Err("its index ends inside an entry".to_owned());
    }
    let entry = |entry: &[u8]| {
        let hash = BlockHash(entry[..32].try_into().expect("32 bytes"));
        let part = Part::ALL.into_iter().find(|part| *part as u8 == entry[32]);
        let (offset, len) = (number(&entry[33..41]), number(&entry[41..]));
        let part = part.filter(|_| offset.checked_add(len).is_some_and(|end| end <= start));
        let part = part.ok_or("its index names blocks that it does not contain")?;
        Ok(((hash, part), offset, len))
    };
    bytes.chunks_exact(ENTRY).map(entry).collect()
}

fn decode(bytes: &[u8], start: u64, name: &str) -> Result<Vec<(BlockKey, ImageLocation)>, String> {
    let pack: Arc<str> = name.into();
    let place = |(key, offset, len)| (key, ImageLocation { pack: pack.clone(), offset, len });
    Ok(decode_entries(bytes, start)?.into_iter().map(place).collect())
}

/// A pack in the making.
#[derive(Default)]
pub(super) struct Builder {
    images: Vec<u8>,
    index: Vec<u8>,
}

impl Builder {
    pub(super) fn push(&mut self, (hash, part): BlockKey, image: &[u8]) {
        self.index.extend_from_slice(&hash.0);
        self.index.push(part as u8);
        self.index.extend_from_slice(&(self.images.len() as u64).to_le_bytes());
        self.index.extend_from_slice(&(image.len() as u64).to_le_bytes());
        self.images.extend_from_slice(image);
    }

    /// Bytes of the images.
    pub(super) fn len(&self) -> usize {
        self.images.len()
    }

    /// Writes the pack, if there is anything in it.
    pub(super) fn write(mut self, blobs: &dyn Blobs) -> Result<()> {
        if self.index.is_empty() {
            return Ok(());
        }
        let sum = blake3::hash(&self.index);
        self.images.extend_from_slice(&self.index);
        self.images.extend_from_slice(&(self.index.len() as u64).to_le_bytes());
        self.images.extend_from_slice(sum.as_bytes());
        self.images.extend_from_slice(MAGIC);
        blobs.put(&format!("packs/{}.pack", &sum.to_hex()[..40]), &self.images)
    }
}
