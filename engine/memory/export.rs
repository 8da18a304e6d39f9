//! Exports: the immutable bytes that a session hands over to be written, and what of it is on disk then.

use crate::kv::format::BlockBytes;
use crate::kv::layout::{KvLayout, Part};
use crate::kv::table::{BlockHash, BlockId};
use crate::store::Store;
use crate::store::tail::TailRef;
use crate::{Error, Result};
use std::sync::Arc;

/// Sealed blocks, and the rows after them.
#[derive(Default)]
pub(super) struct Export {
    pub(super) blocks: Vec<Sealed>,
    /// Sealed states; their indexes are positions.
    pub(super) states: Vec<Sealed>,
    pub(super) rows: Option<Rows>,
    /// References to the blocks: they stay in memory, and count there, until they are written.
    pub(super) held: Vec<BlockId>,
}

/// The block at an index, part by part; of one without bytes the disk has them. What a device could not give
/// is its error.
pub(super) struct Sealed {
    pub(super) index: usize,
    pub(super) hash: BlockHash,
    pub(super) parts: Vec<(Part, Option<Result<Arc<BlockBytes>>>)>,
}

/// Rows that a tail lacks, up to its `n`-th.
pub(super) struct Rows {
    pub(super) tail: TailRef,
    pub(super) n: usize,
    pub(super) bytes: Result<Vec<u8>>,
}

/// The part of an export that is on disk by now.
#[derive(Default)]
pub(crate) struct Stored {
    /// Indexes and addresses of the blocks.
    pub(super) blocks: Vec<(usize, BlockHash)>,
    /// Positions and addresses of the states.
    pub(super) states: Vec<(usize, BlockHash)>,
    pub(super) tail: Option<TailRef>,
    /// True if the file is gone that the rows were to be appended to: they go to another one, all of them.
    pub(crate) lost_tail: bool,
    /// Bytes that were written.
    pub(crate) bytes: u64,
    /// Reason why it is not all.
    pub(crate) error: Option<Error>,
}

impl Sealed {
    /// Writes what the disk lacks of it; returns the bytes written.
    fn write(self, store: &Store, layout: &KvLayout) -> Result<u64> {
        let Self { index, hash, parts } = self;
        let mut n_bytes = 0;
        for (part, bytes) in parts {
            match bytes {
                Some(bytes) => n_bytes += store.write_block((hash, part), index, &*bytes?, layout)?,
                None if store.has_block((hash, part)) => {}
                None => return Err(Error::store(format!("layers of block {index} are no longer in memory"))),
            }
        }
        Ok(n_bytes)
    }
}

impl Export {
    /// Bytes of memory in addition to the blocks that it holds.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = self.rows.as_ref().and_then(|rows| rows.bytes.as_ref().ok());
        bytes.map_or(0, |bytes| bytes.len() as u64)
    }

    /// Writes what the disk lacks of it: blocks first, then states, then the tail.
    pub(super) fn write(self, store: &Store, layout: &KvLayout) -> Stored {
        let mut stored = Stored::default();
        let written = self.write_in_order(&mut stored, store, layout);
        Stored { error: written.err(), ..stored }
    }

    fn write_in_order(self, stored: &mut Stored, store: &Store, layout: &KvLayout) -> Result<()> {
        for sealed in self.blocks {
            let known = (sealed.index, sealed.hash);
            stored.bytes += sealed.write(store, layout)?;
            stored.blocks.push(known);
        }
        for sealed in self.states {
            let known = (sealed.index, sealed.hash);
            stored.bytes += sealed.write(store, layout)?;
            stored.states.push(known);
        }
        if let Some(Rows { mut tail, n, bytes }) = self.rows {
            if tail.rows > 0 && !store.has_tail(&tail) {
                stored.lost_tail = true;
                return Ok(());
            }
            stored.bytes += store.append_tail(&mut tail, n, bytes?)?;
            stored.tail = Some(tail);
        }
        Ok(())
    }
}
