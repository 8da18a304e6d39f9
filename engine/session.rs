//! One session's memory: what it has read (segments, ids) and its keys and values, with what of them is on disk.

use crate::kv::blocks::Arena;
use crate::kv::layout::{BLOCK, KvLayout};
use crate::kv::sequence::Sequence;
use crate::kv::store::manifest::{Identity, Manifest};
use crate::kv::store::tail::{self, TailRef};
use crate::kv::store::{Store, session_id};
use crate::kv::table::BlockHash;
use crate::prefix::Segment;
use crate::{Error, Result, SessionKey};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// What a cache is for: the same for all sessions of an engine.
#[derive(Clone)]
pub(crate) struct CacheContext {
    pub(crate) layout: Arc<KvLayout>,
    pub(crate) identity: Identity,
    pub(crate) root: BlockHash,
}

/// A session in memory.
pub(crate) struct Session {
    /// What it has read and said.
    pub(crate) segments: Vec<Segment>,
    /// Their ids; after a loss on disk the sequence may hold fewer.
    pub(crate) tokens: Vec<u32>,
    pub(crate) sequence: Sequence,
    /// Leading sealed blocks that are on disk.
    pub(crate) stored_blocks: usize,
    /// Sealed blocks that there were when they were last written.
    pub(crate) settled_blocks: usize,
    pub(crate) tail: Option<TailRef>,
    /// Tail files that the next manifest no longer names.
    pub(crate) obsolete: Vec<String>,
}

/// What a commit writes.
pub(crate) struct Pending {
    manifest: Manifest,
    obsolete: Vec<String>,
}

impl Session {
    /// A session that has read nothing.
    pub(crate) fn new(context: &CacheContext) -> Self {
        Self {
            segments: Vec::new(),
            tokens: Vec::new(),
            sequence: Sequence::new(context.layout.clone(), context.root),
            stored_blocks: 0,
            settled_blocks: 0,
            tail: None,
            obsolete: Vec::new(),
        }
    }

    /// A session with the same content, not yet on disk itself (its sealed blocks are, if the original's are).
    pub(crate) fn fork(&self, arena: &mut Arena) -> Self {
        Self {
            segments: self.segments.clone(),
            tokens: self.tokens.clone(),
            sequence: self.sequence.fork(arena),
            stored_blocks: self.stored_blocks,
            settled_blocks: 0,
            tail: None,
            obsolete: Vec::new(),
        }
    }

    /// Goes back to at most `n` tokens of keys and values; returns how many are left.
    pub(crate) fn truncate(&mut self, n: usize, arena: &mut Arena) -> usize {
        let kept = self.sequence.truncate(n, arena);
        self.forget_stored(kept);
        kept
    }

    /// Goes back to the end of the last sealed block.
    pub(crate) fn drop_rows(&mut self) {
        self.sequence.drop_rows();
        self.forget_stored(self.sequence.len());
    }

    /// What is on disk past token `kept` counts no more.
    fn forget_stored(&mut self, kept: usize) {
        self.stored_blocks = self.stored_blocks.min(self.sequence.table().len());
        let past = |tail: &TailRef| tail.block * BLOCK + tail.rows > kept;
        if let Some(tail) = self.tail.take_if(|tail| past(tail)) {
            self.obsolete.push(tail.file);
        }
    }

    /// After a pass: windowed layers of blocks that no row to come sees leave memory; those of a session that is stored are
    /// written first. Returns the bytes written.
    pub(crate) fn settle(
        &mut self,
        store: Option<&Store>,
        context: &CacheContext,
        arena: &mut Arena,
    ) -> Result<u64> {
        if context.layout.window().is_none() {
            return Ok(0);
        }
        // What can't be written is tried again when there is more, not at every token.
        let n = self.sequence.table().len();
        let more = n != std::mem::replace(&mut self.settled_blocks, n);
        let written = match store.filter(|_| more) {
            Some(store) => self.save_blocks(store, context, arena)?,
            None => 0,
        };
        self.sequence.shed(if store.is_some() { self.stored_blocks } else { usize::MAX }, arena);
        Ok(written)
    }

    /// Writes the sealed blocks that the disk lacks; returns the bytes written.
    fn save_blocks(&mut self, store: &Store, context: &CacheContext, arena: &Arena) -> Result<u64> {
        let mut written = 0;
        let table = self.sequence.table();
        for (index, (hash, parts)) in table.hashes().zip(table.parts()).enumerate().skip(self.stored_blocks) {
            for part in context.layout.parts() {
                written += match parts[part as usize] {
                    Some(id) => store.write_block((hash, part), index, arena.get(id), &context.layout)?,
                    None if store.has_block(hash, part) => 0,
                    None => {
                        return Err(Error::store(format!("layers of block {index} are no longer in memory")));
                    }
                };
            }
            self.stored_blocks = index + 1;
        }
        Ok(written)
    }

    /// Writes what the disk lacks, blocks first, then the tail; returns the manifest to commit and the bytes written.
    pub(crate) fn save(
        &mut self,
        key: &SessionKey,
        store: &Store,
        context: &CacheContext,
        arena: &Arena,
    ) -> Result<(Pending, u64)> {
        let mut written = self.save_blocks(store, context, arena)?;
        let blocks = self.sequence.table().hashes().map(BlockHash::hex).collect();
        let (open, n) = (self.sequence.len() / BLOCK, self.sequence.len() % BLOCK);
        if let Some(tail) = self.tail.take_if(|tail| tail.block != open || n == 0) {
            self.obsolete.push(tail.file);
        }
        if let Some(rows) = self.sequence.open_rows() {
            let tail = self.tail.get_or_insert_with(|| TailRef {
                file: tail_name(key),
                block: open,
                rows: 0,
                bytes: 0,
            });
            written += tail::append(store.dir(), tail, n, rows, context.root, &context.layout)?;
        }
        let manifest = Manifest {
            run: key.run.clone(),
            agent: key.agent.clone(),
            identity: context.identity.clone(),
            blocks,
            tail: self.tail.clone(),
            n_tokens: self.sequence.len(),
            segments: self.segments.clone(),
            saved_at: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        };
        Ok((Pending { manifest, obsolete: std::mem::take(&mut self.obsolete) }, written))
    }
}

impl Pending {
    /// The last step of a save: the manifest takes the place of the one before.
    pub(crate) fn commit(&self, store: &Store) -> Result<u64> {
        store.write_manifest(&self.manifest, &self.obsolete)
    }
}

/// A name that no earlier tail of the session has: what a crash left behind is never appended to.
fn tail_name(key: &SessionKey) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
    format!("{}.{now:x}.tail", session_id(key))
}
