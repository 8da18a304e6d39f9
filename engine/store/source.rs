//! Something stored that is being read.

use super::found::Failure;
use std::io::{self, Read, Seek, SeekFrom};

/// Source of something stored: a file, or memory.
pub(crate) trait ByteSource: Read + Seek {}
impl<S: Read + Seek> ByteSource for S {}

/// The `n` bytes from `start` on. Allocation failures are errors.
pub(super) fn stretch(source: &mut dyn ByteSource, span: (u64, u64)) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    stretch_into(&mut bytes, source, span)?;
    Ok(bytes)
}

/// The same, in place of what was in `bytes`.
pub(super) fn stretch_into(
    bytes: &mut Vec<u8>,
    source: &mut dyn ByteSource,
    (start, n): (u64, u64),
) -> Result<(), Failure> {
    bytes.clear();
    let room = usize::try_from(n).ok().and_then(|n| bytes.try_reserve_exact(n).ok());
    room.ok_or_else(|| Failure::Unreadable(format!("there is not enough memory for its {n} bytes")))?;
    let read = source.seek(SeekFrom::Start(start)).and_then(|_| source.take(n).read_to_end(bytes));
    match read {
        Ok(read) if read as u64 == n => Ok(()),
        Ok(_) => Err("it ends too early".into()),
        Err(e) => Err(Failure::io("it", &e)),
    }
}

/// A thing that is being read.
pub(crate) struct Input {
    source: Box<dyn ByteSource>,
    len: u64,
}

impl Input {
    /// `len` bytes of a source.
    pub(super) fn new(source: impl ByteSource + 'static, len: u64) -> Self {
        Self { source: Box::new(source), len }
    }

    /// Bytes that it had when it was opened.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// All of it, at most `most` bytes.
    pub(super) fn whole(&mut self, most: u64) -> Result<Vec<u8>, Failure> {
        if self.len > most {
            return Err(format!("it has {} bytes; expected at most {most}", self.len).into());
        }
        let len = self.len;
        stretch(self, (0, len))
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.source.read(buffer)
    }
}

impl Seek for Input {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.source.seek(to)
    }
}
