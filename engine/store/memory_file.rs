//! The file of one session's memory: what [`Engine::export`](crate::Engine::export) writes and
//! [`Engine::import`](crate::Engine::import) reads.
//!
//! ```text
//! `greenroom memory`, version (u32)
//! head                 JSON: what computed it, segments (texts and ids), which parts of which blocks follow, number of rows
//! a part of a block    as kv/format.rs has it; block by block, layers that see everything first
//! rows                 f16 rows of the open block, if there are any
//! states               those of recurrent layers, as kv/format.rs has them; in the order of their positions
//! mac                  blake3, keyed with the secret of the cache folder, over all bytes before it
//! ```
//! All but the first line and the mac are frames: length (u64), blake3 of the payload, payload. Numbers are
//! little endian.
//!
//! A file that is not whole is refused. One that is whole gives its segments, and its keys and values only if
//! this folder wrote it, for what computes here: sealed blocks are shared by their ids, so altered ones would
//! be everybody's.

use super::manifest::Identity;
use crate::kv::format::{BlockBytes, BlockFormat, StateFormat};
use crate::kv::layout::{BLOCK, KvLayout, Part};
use crate::text::prefix::Segment;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::sync::Arc;

const MAGIC: &[u8; 16] = b"greenroom memory";
const VERSION: u32 = 1;
/// Maximum bytes of a head: as of a manifest.
const MAX_HEAD_BYTES: u64 = super::manifest::MAX_MANIFEST_BYTES;

/// Parts of a block, by [`Part`], as far as they are there.
pub(crate) type BlockParts = [Option<Arc<BlockBytes>>; 2];

/// A session's memory outside of an engine.
pub(crate) struct SessionExport {
    pub(crate) identity: Identity,
    pub(crate) segments: Vec<Segment>,
    pub(crate) blocks: Vec<BlockParts>,
    /// Rows after the blocks: number of tokens, and their bytes.
    pub(crate) n_rows: usize,
    pub(crate) rows: Vec<u8>,
    /// States of recurrent layers, by position.
    pub(crate) states: Vec<(usize, Arc<BlockBytes>)>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    identity: Identity,
    segments: Vec<Segment>,
    /// Which parts of each block follow.
    blocks: Vec<[bool; 2]>,
    rows: usize,
    /// Positions of the states that follow.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    states: Vec<usize>,
}

impl SessionExport {
    /// Tokens that it has read and said.
    pub(crate) fn n_tokens(&self) -> usize {
        self.segments.iter().map(|segment| segment.ids.len()).sum()
    }

    /// True if no part of a block is missing.
    pub(crate) fn is_complete(&self, layout: &KvLayout) -> bool {
        self.blocks.iter().all(|parts| layout.parts().all(|part| parts[part as usize].is_some()))
    }

    /// Writes the file; returns its bytes.
    ///
    /// # Errors
    /// `to` can't be written.
    pub(crate) fn write(&self, secret: &[u8; 32], to: &mut dyn Write) -> Result<u64> {
        let mut out = Signed { mac: mac(secret), to, n_bytes: 0 };
        out.put(MAGIC)?;
        out.put(&VERSION.to_le_bytes())?;
        let head = Head {
            identity: self.identity.clone(),
            segments: self.segments.clone(),
            blocks: self.blocks.iter().map(|parts| parts.each_ref().map(Option::is_some)).collect(),
            rows: self.n_rows,
            states: self.states.iter().map(|(at, _)| *at).collect(),
        };
        let head = serde_json::to_vec(&head)
            .map_err(|e| Error::internal(format!("can't encode a memory's head: {e}")))?;
        if head.len() as u64 > MAX_HEAD_BYTES {
            let found = format!(
                "the memory's texts take {} bytes; at most {MAX_HEAD_BYTES} can be exported",
                head.len()
            );
            return Err(Error::request(found));
        }
        out.frame(&head)?;
        for block in self.blocks.iter().flatten().flatten() {
            out.frame(block.as_bytes())?;
        }
        if self.n_rows > 0 {
            out.frame(&self.rows)?;
        }
        for (_, state) in &self.states {
            out.frame(state.as_bytes())?;
        }
        let mac = out.mac.finalize();
        out.put(mac.as_bytes())?;
        out.to.flush().map_err(|e| unwritten(&e))?;
        Ok(out.n_bytes)
    }

    /// Reads a file for a cache of an identity, with the reason if its blocks and rows are not returned: they
    /// are then left out, and the caller must check the segments.
    ///
    /// # Errors
    /// The file is not whole, or can't be read.
    pub(crate) fn read(
        from: &mut dyn Read,
        secret: Option<&[u8; 32]>,
        here: &Identity,
        layout: &KvLayout,
    ) -> Result<(Self, Option<String>)> {
        let mut input = Checked { mac: secret.map(mac), from, at: 0 };
        input.begin()?;
        let (payload, sum) = input.whole_frame("its head", MAX_HEAD_BYTES)?;
        if blake3::hash(&payload) != sum {
            return Err(broken("the checksum of its head does not match"));
        }
        let head: Head =
            serde_json::from_slice(&payload).map_err(|e| broken(format!("can't read its head: {e}")))?;
        drop(payload);
        head.validate()?;
        let Head { identity, segments, blocks, rows: n_rows, states } = head;
        let mut reason = here.differs(&identity).or_else(|| {
            secret.is_none().then(|| "the file is not trusted, because the folder is encrypted".to_owned())
        });
        let (rows, none) = (Vec::new(), Vec::new());
        let mut read = Self { identity, segments, blocks: Vec::new(), n_rows, rows, states: none };
        let formats = Part::OF_BLOCKS.map(|part| BlockFormat::new(layout, part));
        let known: Vec<Part> = layout.parts().collect();
        for (index, parts) in blocks.iter().enumerate() {
            let mut found = BlockParts::default();
            for part in Part::OF_BLOCKS.into_iter().filter(|part| parts[*part as usize]) {
                let what = format!("block {index}");
                if reason.is_some() {
                    input.skip_frame(&what)?;
                    continue;
                }
                if !known.contains(&part) {
                    return Err(broken(format!("{what} has layers with a window, but the model has none")));
                }
                let mut block = BlockBytes::zeroed(formats[part as usize].len(index == 0));
                let sum = input.frame(&what, Some(block.len() as u64))?.1;
                input.take(&what, block.as_bytes_mut())?;
                reason = unlike(&what, block.as_bytes(), sum);
                found[part as usize] = Some(Arc::new(block));
            }
            read.blocks.push(found);
        }
        if n_rows > 0 && reason.is_some() {
            input.skip_frame("its rows")?;
        } else if n_rows > 0 {
            let n_bytes = (n_rows * layout.row_bytes()) as u64;
            let sum = input.frame("its rows", Some(n_bytes))?.1;
            read.rows = input.bytes("its rows", n_bytes)?;
            reason = unlike("its rows", &read.rows, sum);
        }
        for at in states {
            let what = format!("the state after {at} tokens");
            if reason.is_some() {
                input.skip_frame(&what)?;
                continue;
            }
            if !layout.has_states() {
                return Err(broken(format!("it has {what}, but the model has no recurrent layers")));
            }
            let mut state = BlockBytes::zeroed(StateFormat::new(layout).len());
            let sum = input.frame(&what, Some(state.len() as u64))?.1;
            input.take(&what, state.as_bytes_mut())?;
            reason = unlike(&what, state.as_bytes(), sum);
            read.states.push((at, Arc::new(state)));
        }
        let is_ours = input.end()?;
        reason = reason.or_else(|| {
            (!is_ours)
                .then(|| "it was not exported from this cache folder, or was changed afterwards".to_owned())
        });
        if reason.is_some() {
            (read.blocks, read.n_rows, read.rows) = (Vec::new(), 0, Vec::new());
            read.states.clear();
        }
        Ok((read, reason))
    }
}

impl Head {
    fn validate(&self) -> Result<()> {
        let n_ids: usize = self.segments.iter().map(|segment| segment.ids.len()).sum();
        let n_held = self.blocks.len().checked_mul(BLOCK).and_then(|n| n.checked_add(self.rows));
        if n_ids == 0 {
            return Err(broken("it contains no tokens"));
        }
        if self.rows >= BLOCK || n_held.is_none_or(|n_held| n_held > n_ids) {
            return Err(broken(format!(
                "its head names {} blocks of {BLOCK} tokens and {} rows, but its texts have {n_ids} tokens",
                self.blocks.len(),
                self.rows
            )));
        }
        let n_held = n_held.unwrap_or(0);
        let is_before = |(at, next): (&usize, Option<&usize>)| {
            *at > 0 && *at <= n_held && next.is_none_or(|next| at < next)
        };
        let nexts = self.states.iter().skip(1).map(Some).chain([None]);
        if !self.states.iter().zip(nexts).all(is_before) {
            return Err(broken(format!(
                "its head names states after {:?} tokens; expected ascending positions up to {n_held}",
                self.states
            )));
        }
        if let Some(index) = self.blocks.iter().position(|parts| !parts[Part::Global as usize]) {
            return Err(broken(format!("block {index} lacks the layers that see everything")));
        }
        Ok(())
    }
}

/// A file of these frames, its checksums and mac right.
///
/// # Errors
/// None.
#[cfg(feature = "fixtures")]
pub(crate) fn file_of(frames: &[&[u8]], secret: &[u8; 32]) -> Result<Vec<u8>> {
    let mut file = Vec::new();
    let mut out = Signed { mac: mac(secret), to: &mut file, n_bytes: 0 };
    out.put(MAGIC)?;
    out.put(&VERSION.to_le_bytes())?;
    frames.iter().try_for_each(|frame| out.frame(frame))?;
    let mac = out.mac.finalize();
    out.put(mac.as_bytes())?;
    Ok(file)
}

/// Reason why what was read is not what its checksum says; `None`: it is.
fn unlike(what: &str, bytes: &[u8], sum: blake3::Hash) -> Option<String> {
    (blake3::hash(bytes) != sum).then(|| format!("{what}: the checksum does not match"))
}

fn mac(secret: &[u8; 32]) -> blake3::Hasher {
    blake3::Hasher::new_keyed(&blake3::derive_key("greenroom 2026 export mac", secret))
}

fn broken(found: impl AsRef<str>) -> Error {
    Error::request(format!("the file is not a complete memory: {}", found.as_ref()))
}

fn unwritten(e: &std::io::Error) -> Error {
    Error::store(format!("can't write the export: {e}"))
}

/// A writer that signs its output.
struct Signed<'a> {
    mac: blake3::Hasher,
    to: &'a mut dyn Write,
    n_bytes: u64,
}

impl Signed<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.mac.update(bytes);
        self.n_bytes += bytes.len() as u64;
        self.to.write_all(bytes).map_err(|e| unwritten(&e))
    }

    fn frame(&mut self, payload: &[u8]) -> Result<()> {
        self.put(&(payload.len() as u64).to_le_bytes())?;
        self.put(blake3::hash(payload).as_bytes())?;
        self.put(payload)
    }
}

/// A reader that signs its input, and reports a premature end.
struct Checked<'a> {
    mac: Option<blake3::Hasher>,
    from: &'a mut dyn Read,
    at: u64,
}

impl Checked<'_> {
    fn begin(&mut self) -> Result<()> {
        let (mut magic, mut version) = ([0; MAGIC.len()], [0; 4]);
        self.take("its beginning", &mut magic)?;
        if magic != *MAGIC {
            return Err(broken("it does not begin like a file that Greenroom exported"));
        }
        self.take("its version", &mut version)?;
        match u32::from_le_bytes(version) {
            VERSION => Ok(()),
            other => Err(broken(format!("its version is {other}; expected {VERSION}"))),
        }
    }

    fn take(&mut self, what: &str, bytes: &mut [u8]) -> Result<()> {
        let at = self.at;
        self.from.read_exact(bytes).map_err(|e| match e.kind() {
            std::io::ErrorKind::UnexpectedEof => {
                broken(format!("it ends too early: {what} begins at byte {at} and has {} bytes", bytes.len()))
            }
            _ => Error::store(format!("can't read the file: {e}")),
        })?;
        self.at += bytes.len() as u64;
        if let Some(mac) = &mut self.mac {
            mac.update(bytes);
        }
        Ok(())
    }

    /// Length and checksum of the frame that follows.
    fn frame(&mut self, what: &str, expected: Option<u64>) -> Result<(u64, blake3::Hash)> {
        let (mut length, mut sum) = ([0; 8], [0; 32]);
        self.take(what, &mut length)?;
        let length = u64::from_le_bytes(length);
        if let Some(expected) = expected.filter(|expected| *expected != length) {
            return Err(broken(format!("{what} has {length} bytes; expected {expected}")));
        }
        self.take(what, &mut sum)?;
        Ok((length, blake3::Hash::from_bytes(sum)))
    }

    /// `n` bytes. Memory for them is taken as they come.
    fn bytes(&mut self, what: &str, n: u64) -> Result<Vec<u8>> {
        const PIECE: u64 = 1 << 20;
        let (mut bytes, mut left) = (Vec::new(), n);
        while left > 0 {
            let (start, piece) = (bytes.len(), left.min(PIECE));
            bytes.resize(start + piece as usize, 0);
            self.take(what, &mut bytes[start..])?;
            left -= piece;
        }
        Ok(bytes)
    }

    fn whole_frame(&mut self, what: &str, most: u64) -> Result<(Vec<u8>, blake3::Hash)> {
        let (length, sum) = self.frame(what, None)?;
        if length > most {
            return Err(broken(format!("{what} has {length} bytes; expected at most {most}")));
        }
        Ok((self.bytes(what, length)?, sum))
    }

    fn skip_frame(&mut self, what: &str) -> Result<()> {
        let (mut left, _) = self.frame(what, None)?;
        let mut piece = vec![0; 64 << 10];
        while left > 0 {
            let n = left.min(piece.len() as u64) as usize;
            self.take(what, &mut piece[..n])?;
            left -= n as u64;
        }
        Ok(())
    }

    /// The end: tells whether its mac is that of the secret.
    fn end(&mut self) -> Result<bool> {
        let expected = self.mac.take().map(|mac| mac.finalize());
        let mut found = [0; 32];
        self.take("its mac", &mut found)?;
        let mut more = [0; 1];
        match self.from.read(&mut more) {
            Ok(0) => {}
            Ok(_) => return Err(broken(format!("there are bytes after its end at byte {}", self.at))),
            Err(e) => return Err(Error::store(format!("can't read the file: {e}"))),
        }
        // In constant time.
        Ok(expected.is_some_and(|expected| expected == blake3::Hash::from_bytes(found)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::prefix::SegmentKind;

    /// Numbers of a file are checked before anything is computed from them.
    #[test]
    fn a_head_whose_numbers_are_absurd_is_refused() {
        let context = crate::memory::session::CacheContext::of_test(Arc::new(KvLayout::uniform(
            0,
            1,
            16,
            crate::KvFormat::Q4,
        )));
        let ids: Vec<u32> = vec![7; 2 * BLOCK];
        let segment = Segment { kind: SegmentKind::Raw, text: "".into(), ids: ids.into(), guessed: false };
        let head = |n_blocks: usize, rows: usize| Head {
            identity: context.identity.clone(),
            segments: vec![segment.clone()],
            blocks: vec![[true, false]; n_blocks],
            rows,
            states: Vec::new(),
        };
        assert!(head(1, BLOCK - 1).validate().is_ok());
        for (n_blocks, rows) in [(1, usize::MAX), (1, usize::MAX - BLOCK + 1), (0, BLOCK), (2, 1), (3, 0)] {
            let refused = head(n_blocks, rows).validate().map_err(|error| error.to_string());
            assert!(refused.is_err_and(|error| error.contains("blocks of 256 tokens")), "{n_blocks}, {rows}");
        }
    }
}
