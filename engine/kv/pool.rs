//! Block ids: who uses which, how many bytes that is, and who goes first when there are too many. No tensors.

/// A sealed block in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BlockId(u32);

/// Reference counts and bytes of all blocks, against a budget.
pub(crate) struct Pool {
    slots: Vec<Slot>,
    free: Vec<BlockId>,
    bytes: u64,
    budget: u64,
}

#[derive(Clone, Copy)]
struct Slot {
    references: u32,
    bytes: u64,
}

/// A session that could be evicted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate<K> {
    pub(crate) key: K,
    /// When it is needed next; `None`: not known.
    pub(crate) next_use: Option<u64>,
    /// When it was used last.
    pub(crate) last_use: u64,
}

impl Pool {
    /// An empty pool; `budget` in bytes.
    pub(crate) fn new(budget: u64) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), bytes: 0, budget }
    }

    /// A new block of `bytes`, referenced once.
    pub(crate) fn allocate(&mut self, bytes: u64) -> BlockId {
        self.bytes += bytes;
        let slot = Slot { references: 1, bytes };
        if let Some(id) = self.free.pop() {
            self.slots[id.0 as usize] = slot;
            return id;
        }
        self.slots.push(slot);
        BlockId(self.slots.len() as u32 - 1)
    }

    /// One more user of a block.
    pub(crate) fn retain(&mut self, id: BlockId) {
        self.slots[id.0 as usize].references += 1;
    }

    /// One user less; true if it was the last one and the block's bytes are to be freed.
    pub(crate) fn release(&mut self, id: BlockId) -> bool {
        let slot = &mut self.slots[id.0 as usize];
        assert!(slot.references > 0, "block {id:?} is released once too often");
        slot.references -= 1;
        if slot.references == 0 {
            self.bytes -= slot.bytes;
            self.free.push(id);
        }
        slot.references == 0
    }

    /// Bytes of all blocks in use; a shared one counts once.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that may be used.
    pub(crate) fn budget(&self) -> u64 {
        self.budget
    }

    /// Bytes by which the blocks and `others` (f16 rows, what is known of sessions) together exceed the budget.
    pub(crate) fn excess(&self, others: u64) -> u64 {
        (self.bytes + others).saturating_sub(self.budget)
    }
}

/// Who goes first: whoever is needed last (Belady 1966); whoever is not known to be needed at all goes before
/// anyone who is, the least recently used of them first.
pub(crate) fn victim<K: Copy>(candidates: impl Iterator<Item = Candidate<K>>) -> Option<K> {
    candidates.max_by_key(|c| (c.next_use.unwrap_or(u64::MAX), u64::MAX - c.last_use)).map(|c| c.key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_agent_that_is_needed_last_goes_first() {
        let c = |key, next_use, last_use| Candidate { key, next_use, last_use };
        assert_eq!(
            victim([c('a', Some(3), 0), c('b', Some(9), 1), c('c', Some(4), 2)].into_iter()),
            Some('b')
        );
        assert_eq!(victim([c('a', Some(3), 0), c('b', None, 5), c('c', None, 2)].into_iter()), Some('c'));
        assert_eq!(victim(std::iter::empty::<Candidate<char>>()), None);
    }

    proptest! {
        /// Against a plain model: a list of live references.
        #[test]
        fn counts_and_bytes_are_right(steps in proptest::collection::vec((0..3u8, 0..50usize), 0..200)) {
            let mut pool = Pool::new(0);
            let mut live: Vec<(BlockId, u64)> = Vec::new();
            for (step, n) in steps {
                match (step, live.len()) {
                    (0, _) | (_, 0) => {
                        let id = pool.allocate(n as u64);
                        prop_assert!(live.iter().all(|(other, _)| *other != id), "{:?} is in use", id);
                        live.push((id, n as u64));
                    }
                    (1, len) => {
                        let (id, bytes) = live[n % len];
                        pool.retain(id);
                        live.push((id, bytes));
                    }
                    (_, len) => {
                        let (id, _) = live.swap_remove(n % len);
                        prop_assert_eq!(pool.release(id), live.iter().all(|(other, _)| *other != id));
                    }
                }
                let mut once = live.clone();
                once.sort_unstable();
                once.dedup();
                prop_assert_eq!(pool.bytes(), once.iter().map(|(_, bytes)| bytes).sum::<u64>());
            }
        }
    }
}
