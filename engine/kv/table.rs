//! Ids and addresses of blocks, and a sequence's block table: which sealed blocks it is made of.
//!
//! A block is stored in two parts: layers with full attention, and layers with a window. What a window has
//! left is dropped from memory after each pass (`Sequence::trim_window`), of a stored session only once it is
//! on disk; the disk keeps all. A session that goes back further than a block or the turn reads the windows
//! that it needs there from disk (`memory/restore`); without a disk it goes back to where its windows are
//! complete, at worst to the beginning. Cost: one file of `windows/` for each block of the window. A trim
//! succeeds in all layers or none.

use super::layout::{BLOCK, Part};

/// A part of a sealed block in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BlockId(pub(crate) u32);

/// The f16 rows of a sequence in one block, in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RowsId(pub(crate) u32);

/// The state of a sequence's recurrent layers, in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct StateId(pub(crate) u32);

/// The sealed blocks of a sequence in order, each with the hash of all that it holds.
#[derive(Debug, Default)]
pub(crate) struct BlockTable {
    entries: Vec<(BlockHash, Parts)>,
}

/// Ids of a block's parts, by [`Part`]; `None`: not in memory.
pub(crate) type Parts = [Option<BlockId>; 2];

/// Address of a sealed block: hash of the cache's identity and all ids up to the block's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BlockHash(pub(crate) [u8; 32]);

/// Key of a part of a block, or of the state after a token, by the address of all up to it.
pub(crate) type BlockKey = (BlockHash, Part);

impl BlockHash {
    /// The root of all chains of one identity.
    pub(crate) fn root(identity: &str) -> Self {
        Self(blake3::derive_key("greenroom 2026 kv cache identity", identity.as_bytes()))
    }

    /// The address of `ids` (a block, or less) that follow the block at `self`. `borders`: numbers of ids
    /// among them after which states were sealed; none but in models with recurrent layers.
    pub(crate) fn then(self, ids: &[u32], borders: impl IntoIterator<Item = usize>) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        for id in ids {
            hasher.update(&id.to_le_bytes());
        }
        // At the end of what is addressed a border changes nothing of it. No id is as large as the mark.
        for border in borders.into_iter().filter(|border| (1..ids.len()).contains(border)) {
            hasher.update(&u32::MAX.to_le_bytes()).update(&(border as u32).to_le_bytes());
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// Addresses of all whole blocks of `ids`, starting at the root `self`; `borders` among all of them.
    pub(crate) fn chain(self, ids: &[u32], borders: &[usize]) -> Vec<Self> {
        let next = |hash: &mut Self, (first, block): (usize, &[u32])| {
            *hash = hash.then(block, within(borders, first * BLOCK));
            Some(*hash)
        };
        ids.chunks_exact(BLOCK).enumerate().scan(self, next).collect()
    }

    /// Lower-case hexadecimal.
    pub(crate) fn hex(self) -> String {
        blake3::Hash::from_bytes(self.0).to_hex().to_string()
    }

    /// Reads [`BlockHash::hex`].
    pub(crate) fn from_hex(hex: &str) -> Option<Self> {
        blake3::Hash::from_hex(hex).ok().map(|hash| Self(*hash.as_bytes()))
    }
}

/// Borders after the first `start` ids, as numbers of ids after these.
pub(crate) fn within(borders: &[usize], start: usize) -> impl Iterator<Item = usize> {
    borders.iter().filter_map(move |border| border.checked_sub(start))
}

impl BlockTable {
    /// Number of sealed blocks.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds a block at the end.
    pub(crate) fn push(&mut self, hash: BlockHash, parts: Parts) {
        self.entries.push((hash, parts));
    }

    /// Takes off all blocks from `n_blocks` on; the caller releases them.
    pub(crate) fn truncate(&mut self, n_blocks: usize) -> Vec<BlockId> {
        let gone = self.entries.drain(n_blocks.min(self.entries.len())..);
        gone.flat_map(|(_, parts)| parts.into_iter().flatten()).collect()
    }

    /// Ids of each block's parts, block by block.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Parts> {
        self.entries.iter().map(|(_, parts)| *parts)
    }

    /// Tells whether a part of a block is in memory.
    pub(crate) fn holds(&self, block: usize, part: Part) -> bool {
        self.entries.get(block).is_some_and(|(_, parts)| parts[part as usize].is_some())
    }

    /// Puts a part of a block in its place.
    pub(crate) fn set(&mut self, block: usize, part: Part, id: BlockId) {
        self.entries[block].1[part as usize] = Some(id);
    }

    /// Takes a part of a block off; the caller releases it.
    pub(crate) fn take(&mut self, block: usize, part: Part) -> Option<BlockId> {
        self.entries.get_mut(block)?.1[part as usize].take()
    }

    /// Gives a block another address.
    pub(crate) fn rename(&mut self, block: usize, hash: BlockHash) {
        self.entries[block].0 = hash;
    }

    /// Hashes in order.
    pub(crate) fn hashes(&self) -> impl Iterator<Item = BlockHash> {
        self.entries.iter().map(|(hash, _)| *hash)
    }

    /// The hash of a block.
    pub(crate) fn hash(&self, block: usize) -> Option<BlockHash> {
        self.entries.get(block).map(|(hash, _)| *hash)
    }

    /// The last block before `limit` of which something is in memory, with what it is.
    pub(crate) fn last_held(&self, limit: usize) -> Option<(usize, Part)> {
        let held = |(_, parts): &(BlockHash, Parts)| {
            Part::OF_BLOCKS.into_iter().find(|part| parts[*part as usize].is_some())
        };
        let blocks = self.entries.iter().take(limit).enumerate().rev();
        blocks.filter_map(|(block, entry)| Some((block, held(entry)?))).next()
    }

    /// The hash of the last block.
    pub(crate) fn last_hash(&self) -> Option<BlockHash> {
        self.entries.last().map(|(hash, _)| *hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_depends_on_identity_and_every_id_before() {
        let ids: Vec<u32> = (0..600).collect();
        let root = BlockHash::root("a");
        let chain = root.chain(&ids, &[]);
        assert_eq!(chain.len(), 2);
        assert_eq!(chain, root.chain(&ids[..512], &[]));
        assert_ne!(chain[1], BlockHash::root("b").chain(&ids, &[])[1]);
        let mut other = ids.clone();
        other[0] = 7;
        assert_ne!(chain[1], root.chain(&other, &[])[1]);
        // A border changes what follows it, and nothing before.
        assert_eq!(root.chain(&ids, &[256, 512, 550]), chain);
        assert_eq!(root.chain(&ids, &[300])[0], chain[0]);
        assert_ne!(root.chain(&ids, &[300])[1], chain[1]);
        assert_ne!(root.chain(&ids, &[300])[1], root.chain(&ids, &[301])[1]);
        assert_eq!(chain[0].then(&ids[256..512], [44]), root.chain(&ids, &[300])[1]);
        assert_eq!(BlockHash::from_hex(&chain[0].hex()), Some(chain[0]));
        assert_eq!(BlockHash::from_hex("../x"), None);
    }
}
