//! Bookkeeping of what the cache holds in memory, by ids: parts of sealed blocks, each content once, and f16
//! rows; their users, and their bytes against a budget. The bytes themselves are a device's.

use crate::Result;
use crate::device::{Cache, Device, Output, Pass, StateSpan};
use crate::kv::format::{BlockBytes, BlockFormat};
use crate::kv::layout::{KvLayout, Part};
use crate::kv::table::{BlockId, BlockKey, RowsId, StateId};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Blocks and rows of one layout on one device.
pub(crate) struct Arena {
    device: Arc<dyn Device>,
    cache: Box<dyn Cache>,
    /// Slots by [`BlockId`].
    blocks: Vec<Slot>,
    free_blocks: Vec<BlockId>,
    by_key: HashMap<BlockKey, BlockId>,
    block_bytes: u64,
    n_rows: u32,
    free_rows: Vec<RowsId>,
    n_states: u32,
    free_states: Vec<StateId>,
    /// Bytes of a sealed state.
    state_bytes: u64,
    /// Formats of each part of a block.
    formats: [BlockFormat; 2],
    budget: u64,
}

/// A block's users and size.
#[derive(Clone, Copy)]
struct Slot {
    references: u32,
    bytes: u64,
    /// None while it is being sealed, or where another block has the same content.
    key: Option<BlockKey>,
}

impl Arena {
    /// Nothing in memory yet; `budget` in bytes.
    pub(crate) fn new(device: &Arc<dyn Device>, layout: &Arc<KvLayout>, budget: u64) -> Self {
        Self {
            device: device.clone(),
            cache: device.cache(layout.clone()),
            blocks: Vec::new(),
            free_blocks: Vec::new(),
            by_key: HashMap::new(),
            block_bytes: 0,
            n_rows: 0,
            free_rows: Vec::new(),
            n_states: 0,
            free_states: Vec::new(),
            state_bytes: layout.state_bytes(),
            formats: Part::OF_BLOCKS.map(|part| BlockFormat::new(layout, part)),
            budget,
        }
    }

    /// The device that holds these blocks and rows.
    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Runs a pass over its sequences.
    ///
    /// # Errors
    /// As [`Device::run`].
    pub(crate) fn run(&mut self, pass: &Pass) -> Result<Output> {
        self.device.run(pass, &mut *self.cache, None)
    }

    /// The bytes.
    #[cfg(any(test, feature = "fixtures"))]
    pub(crate) fn cache(&mut self) -> &mut dyn Cache {
        &mut *self.cache
    }

    /// A reference to the part of the block with this content, if it is here.
    pub(crate) fn find(&mut self, key: BlockKey) -> Option<BlockId> {
        let id = *self.by_key.get(&key)?;
        self.retain(id);
        Some(id)
    }

    /// Tells whether a part of the block with this content is here.
    pub(crate) fn holds(&self, key: BlockKey) -> bool {
        self.by_key.contains_key(&key)
    }

    /// Takes a part of a block in; equal content that is already here is shared.
    pub(crate) fn insert(&mut self, key: BlockKey, bytes: Arc<BlockBytes>) -> BlockId {
        if let Some(id) = self.find(key) {
            return id;
        }
        let id = self.allocate(bytes.len() as u64);
        self.cache.import_block(id, key.1, bytes);
        self.name(id, key)
    }

    /// A place for a part of a block that is about to be sealed, referenced once.
    pub(crate) fn reserve(&mut self, part: Part, is_first: bool) -> BlockId {
        self.allocate(self.formats[part as usize].len(is_first) as u64)
    }

    /// A place for a state that is about to be sealed, referenced once.
    pub(crate) fn reserve_state(&mut self) -> BlockId {
        self.allocate(self.state_bytes)
    }

    /// An id for a state at work.
    pub(crate) fn new_state(&mut self) -> StateId {
        self.free_states.pop().unwrap_or_else(|| {
            self.n_states += 1;
            StateId(self.n_states - 1)
        })
    }

    /// See [`Cache::load_state`].
    pub(crate) fn load_state(&mut self, id: StateId, at: usize, from: Option<BlockId>) {
        self.cache.load_state(id, at, from);
    }

    /// See [`Cache::truncate_state`].
    pub(crate) fn truncate_state(&mut self, id: StateId, n: usize) {
        self.cache.truncate_state(id, n);
    }

    /// Gives a state at work back.
    pub(crate) fn release_state(&mut self, id: StateId) {
        self.cache.free_state(id);
        self.free_states.push(id);
    }

    /// See [`Device::seal`].
    ///
    /// # Errors
    /// As there.
    pub(crate) fn seal_state(&mut self, span: &StateSpan) -> Result<()> {
        self.device.seal(span, &mut *self.cache)
    }

    fn allocate(&mut self, bytes: u64) -> BlockId {
        self.block_bytes += bytes;
        let slot = Slot { references: 1, bytes, key: None };
        if let Some(id) = self.free_blocks.pop() {
            self.blocks[id.0 as usize] = slot;
            return id;
        }
        self.blocks.push(slot);
        BlockId(self.blocks.len() as u32 - 1)
    }

    /// Says what a reserved block holds by now. Equal content that is already here takes its place.
    pub(crate) fn name(&mut self, id: BlockId, key: BlockKey) -> BlockId {
        if let Some(known) = self.find(key) {
            self.release(id);
            return known;
        }
        self.blocks[id.0 as usize].key = Some(key);
        self.by_key.insert(key, id);
        id
    }

    /// Gives a block that the caller holds a reference to another key: as it is, or, where others hold it
    /// too, as a copy. Equal content that is already here takes its place.
    ///
    /// # Errors
    /// The device fails; then the reference is given back.
    pub(crate) fn readdress(&mut self, id: BlockId, key: BlockKey) -> Result<BlockId> {
        if let Some(known) = self.find(key) {
            self.release(id);
            return Ok(known);
        }
        if self.is_shared(id) {
            let bytes = self.export(id);
            self.release(id);
            return Ok(self.insert(key, bytes?));
        }
        if let Some(before) = self.blocks[id.0 as usize].key.take() {
            self.by_key.remove(&before);
        }
        Ok(self.name(id, key))
    }

    /// Tells whether a block has more than one user.
    pub(crate) fn is_shared(&self, id: BlockId) -> bool {
        self.blocks[id.0 as usize].references > 1
    }

    /// One more reference to a block.
    pub(crate) fn retain(&mut self, id: BlockId) {
        self.blocks[id.0 as usize].references += 1;
    }

    /// Gives a reference back.
    pub(crate) fn release(&mut self, id: BlockId) {
        let slot = &mut self.blocks[id.0 as usize];
        assert!(slot.references > 0, "block {id:?} is released once too often");
        slot.references -= 1;
        if slot.references == 0 {
            self.block_bytes -= slot.bytes;
            if let Some(key) = slot.key.take() {
                self.by_key.remove(&key);
            }
            self.cache.free_block(id);
            self.free_blocks.push(id);
        }
    }

    /// The bytes of a block that the caller holds a reference to.
    ///
    /// # Errors
    /// The device fails.
    pub(crate) fn export(&self, id: BlockId) -> Result<Arc<BlockBytes>> {
        self.cache.export_block(id)
    }

    /// An id for rows to come.
    pub(crate) fn new_rows(&mut self) -> RowsId {
        self.free_rows.pop().unwrap_or_else(|| {
            self.n_rows += 1;
            RowsId(self.n_rows - 1)
        })
    }

    /// Takes rows in, as bytes.
    pub(crate) fn insert_rows(&mut self, bytes: &[u8]) -> RowsId {
        let id = self.new_rows();
        self.cache.import_rows(id, bytes);
        id
    }

    /// The bytes of some tokens of rows.
    ///
    /// # Errors
    /// The device fails.
    pub(crate) fn export_rows(&self, id: RowsId, tokens: Range<usize>) -> Result<Vec<u8>> {
        self.cache.export_rows(id, tokens)
    }

    /// Rows that begin as the first `n` of others.
    pub(crate) fn copy_rows(&mut self, from: RowsId, n: usize) -> RowsId {
        let id = self.new_rows();
        self.cache.copy_rows(from, id, n);
        id
    }

    /// Forgets all but the first `n` tokens of rows.
    pub(crate) fn truncate_rows(&mut self, id: RowsId, n: usize) {
        self.cache.truncate_rows(id, n);
    }

    /// Gives rows back.
    pub(crate) fn release_rows(&mut self, id: RowsId) {
        self.cache.free_rows(id);
        self.free_rows.push(id);
    }

    /// Bytes by which its total plus `others` exceeds the budget.
    #[cfg(test)]
    pub(crate) fn excess(&self, others: u64) -> u64 {
        (self.bytes() + others).saturating_sub(self.budget)
    }

    /// Bytes that may be used.
    pub(crate) fn budget(&self) -> u64 {
        self.budget
    }

    /// Bytes of a block.
    pub(crate) fn block_bytes(&self, id: BlockId) -> u64 {
        self.blocks[id.0 as usize].bytes
    }

    /// Bytes of a part of a block (but a session's first).
    pub(crate) fn part_bytes(&self, part: Part) -> u64 {
        self.formats.get(part as usize).map_or(self.state_bytes, |format| format.len(false) as u64)
    }

    /// Bytes of all blocks and sealed states in use, a shared one once, and of all rows and states at work.
    pub(crate) fn bytes(&self) -> u64 {
        self.block_bytes + self.cache.open_bytes()
    }

    /// Bytes of all sealed blocks in use.
    #[cfg(test)]
    pub(crate) fn sealed_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Flips one bit of a stored code: the inert control of the exactness tests.
    #[cfg(test)]
    pub(crate) fn corrupt(&mut self, id: BlockId) {
        let mut bytes = (*self.export(id).expect("a block")).clone();
        bytes.as_bytes_mut()[4 * greenroom_kernels::quant::EXACT + 4] ^= 8; // of a token that is not exact as well
        let part = self.blocks[id.0 as usize].key.expect("a sealed block").1;
        self.cache.free_block(id);
        self.cache.import_block(id, part, Arc::new(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu::Cpu;
    use crate::fixtures::RandomModel;
    use crate::model::gguf::Gguf;
    use crate::{KvFormat, ModelSource};
    use greenroom_kernels::Isa;
    use proptest::prelude::*;

    fn arena() -> Arena {
        let bytes: &'static [u8] = RandomModel::tiny(1).bytes().leak();
        let gguf = Arc::new(Gguf::open(&ModelSource::Bundled("random", bytes)).expect("a model"));
        let device: Arc<dyn Device> =
            Arc::new(Cpu::load(&gguf, Isa::detect(), &mut |_, _| {}).expect("a device"));
        Arena::new(&device, &Arc::new(KvLayout::uniform(1, 1, 16, KvFormat::Q4)), 0)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// Against a plain model: a list of live references, and what each block holds.
        #[test]
        fn references_contents_and_bytes_are_right(steps in proptest::collection::vec((0..4u8, 0..20u8), 0..200)) {
            let mut arena = arena();
            let mut live: Vec<(BlockId, u8)> = Vec::new();
            let key = |content: u8| (crate::kv::table::BlockHash([content; 32]), Part::Global);
            let n_bytes = arena.formats[0].len(false);
            for (step, n) in steps {
                match (step, live.len()) {
                    (0, _) | (_, 0) => {
                        let mut bytes = BlockBytes::zeroed(n_bytes);
                        bytes.as_bytes_mut().fill(n);
                        live.push((arena.insert(key(n), Arc::new(bytes)), n));
                    }
                    (1, len) => {
                        let (id, content) = live[usize::from(n) % len];
                        arena.retain(id);
                        live.push((id, content));
                    }
                    (2, _) => live.extend(arena.find(key(n)).map(|id| (id, n))),
                    (_, len) => {
                        let (id, content) = live.swap_remove(usize::from(n) % len);
                        arena.release(id);
                        prop_assert_eq!(arena.holds(key(content)), live.iter().any(|(other, _)| *other == id));
                    }
                }
                for (id, content) in &live {
                    prop_assert!(arena.export(*id).expect("a block").as_bytes().iter().all(|byte| byte == content));
                }
                let mut once = live.clone();
                once.sort_unstable();
                once.dedup();
                prop_assert_eq!(arena.bytes(), (once.len() * n_bytes) as u64);
            }
        }
    }
}
