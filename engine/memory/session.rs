//! One session's memory: what it has read (segments, ids) and its keys and values, with what of them is on
//! disk.

use crate::kv::layout::{BLOCK, KvLayout, Part};
use crate::kv::table::{BlockHash, BlockId};
use crate::memory::arena::Arena;
use crate::memory::export::{Export, Rows, Sealed, Stored};
use crate::memory::sequence::Sequence;
use crate::memory::states::{States, borders};
use crate::store::manifest::{Identity, Manifest, Owner, Worth};
use crate::store::numerics::Numerics;
use crate::store::tail::TailRef;
use crate::store::{Found, Store};
use crate::text::prefix::{Segment, flatten};
use crate::{Result, SessionKey, SessionStatus};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Context of a cache: the same for all sessions of an engine.
#[derive(Clone)]
pub(crate) struct CacheContext {
    pub(crate) layout: Arc<KvLayout>,
    /// Identity of the tenant without a name.
    pub(crate) identity: Identity,
    /// Text that the key of an encrypted store adds to addresses.
    pub(crate) names: String,
    /// True if memories that other devices computed are adopted.
    pub(crate) adopt: bool,
}

impl CacheContext {
    /// Identity of a tenant's caches: what computes them, and how.
    pub(crate) fn identity_of(&self, tenant: &str) -> Identity {
        Identity { salt: tenant.to_owned(), ..self.identity.clone() }
    }

    /// Root of the addresses of a tenant's blocks: no two tenants share any.
    pub(crate) fn root_of(&self, tenant: &str) -> BlockHash {
        self.root(&self.identity_of(tenant))
    }

    /// Identity of a tenant's memory with other numerics than the context's, if it has such.
    pub(crate) fn identity_with(&self, tenant: &str, numerics: Option<&Numerics>) -> Identity {
        let ours = self.identity_of(tenant);
        Identity { numerics: numerics.map_or(ours.numerics, Numerics::to_string), ..ours }
    }

    /// Root of the addresses of an identity's blocks.
    pub(crate) fn root(&self, identity: &Identity) -> BlockHash {
        BlockHash::root(&format!("{}\n{}", identity.text(), self.names))
    }
}

#[cfg(test)]
impl CacheContext {
    /// The context of a model that tests make up.
    pub(crate) fn of_test(layout: Arc<KvLayout>) -> Self {
        let identity = Identity {
            model_name: "random".to_owned(),
            model: "7".to_owned(),
            layout: layout.describe(),
            numerics: "test".to_owned(),
            store: 1,
            salt: String::new(),
        };
        Self { layout, identity, names: String::new(), adopt: false }
    }
}

/// A session in memory. Of its keys and values some or all may be on disk alone: what it is made of is known
/// all the same.
pub(crate) struct Session {
    /// Segments that it has read and said.
    pub(crate) segments: Vec<Segment>,
    /// Their ids; after a loss the sequence may hold fewer.
    pub(crate) tokens: Vec<u32>,
    pub(crate) sequence: Sequence,
    /// Numerics of a memory that another device began; `None`: this one computed all of it.
    pub(crate) numerics: Option<Numerics>,
    /// Leading sealed blocks that are on disk.
    pub(crate) stored_blocks: usize,
    /// Sealed blocks that there were when they were last handed over to be written.
    flushed_blocks: usize,
    /// Those that were handed over and may still get there.
    sent_blocks: usize,
    /// The rows of the open block on disk.
    pub(crate) tail: Option<Tail>,
    /// Rows on disk of blocks that have sealed since, in order: a session that goes back into one need not
    /// compute them again.
    earlier: Vec<Tail>,
    /// Tail files that the next manifest no longer names.
    obsolete: Vec<String>,
}

/// Rows of a block on disk.
pub(crate) struct Tail {
    pub(crate) at: TailRef,
    file: File,
}

/// What may be done with a tail's file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum File {
    /// Rows follow those that are there.
    Open,
    /// It is reread: the file has more rows than count, or its block has sealed.
    Closed,
    /// It is another session's, and read.
    Borrowed,
}

/// Maximum number of tails of sealed blocks that stay on disk. A turn ended in each of these blocks.
const EARLIER: usize = 16;

/// Content of a commit: the manifest to write, and the tail files that it makes obsolete.
pub(crate) struct Pending {
    pub(crate) manifest: Manifest,
    pub(crate) obsolete: Vec<String>,
}

impl Pending {
    /// Bytes that it takes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        known_bytes(&self.manifest.segments, self.manifest.blocks.len() * BLOCK)
    }
}

impl Session {
    /// A session that has read nothing.
    pub(crate) fn new(context: &CacheContext, tenant: &str) -> Self {
        Self {
            segments: Vec::new(),
            tokens: Vec::new(),
            sequence: Sequence::new(context.layout.clone(), context.root_of(tenant)),
            numerics: None,
            stored_blocks: 0,
            flushed_blocks: 0,
            sent_blocks: 0,
            tail: None,
            earlier: Vec::new(),
            obsolete: Vec::new(),
        }
    }

    /// A session as its manifest has it, all of it on disk; `borrowed`: to begin another one with.
    pub(crate) fn stored_as(manifest: Manifest, borrowed: bool, context: &CacheContext) -> Self {
        let identity = &manifest.owner.identity;
        let others = (identity.numerics != context.identity.numerics).then_some(&identity.numerics);
        let mut sequence = Sequence::new(context.layout.clone(), context.root(identity));
        manifest.blocks.iter().for_each(|hash| sequence.push_absent(*hash));
        if let Some(states) = sequence.states_mut() {
            states.set_borders(borders(&manifest.segments, false));
            manifest.states.iter().for_each(|(at, hash)| states.add_stored(*at, *hash));
        }
        let tail = |at, file| Tail { at, file: if borrowed { File::Borrowed } else { file } };
        Self {
            tokens: flatten(&manifest.segments),
            segments: manifest.segments,
            stored_blocks: manifest.blocks.len(),
            tail: manifest.tail.map(|at| tail(at, File::Open)),
            earlier: manifest.earlier.into_iter().map(|at| tail(at, File::Closed)).collect(),
            numerics: others.map(|numerics| Numerics::parse(numerics)),
            sequence,
            ..Self::new(context, &identity.salt)
        }
    }

    /// A session with the same content, not yet on disk itself (it uses the original's files).
    pub(crate) fn fork(&self, arena: &mut Arena) -> Self {
        let sequence = self.sequence.fork(arena);
        let absent = self.tail.as_ref().filter(|_| sequence.open_rows().is_none());
        let borrow = |tail: &Tail| Tail { at: tail.at.clone(), file: File::Borrowed };
        Self {
            segments: self.segments.clone(),
            tokens: self.tokens.clone(),
            sequence,
            numerics: self.numerics.clone(),
            stored_blocks: self.stored_blocks,
            flushed_blocks: 0,
            sent_blocks: 0,
            tail: absent.map(borrow),
            earlier: self.earlier.iter().map(borrow).collect(),
            obsolete: Vec::new(),
        }
    }

    /// A session that has read nothing and takes this one's place.
    pub(crate) fn restart(mut self, context: &CacheContext, tenant: &str, arena: &mut Arena) -> Self {
        self.sequence.clear(arena);
        self.forget_stored(0);
        Self { obsolete: self.obsolete, ..Self::new(context, tenant) }
    }

    /// Gives all that it holds, which must be in memory, addresses from another root; none of it is on disk
    /// there.
    ///
    /// # Errors
    /// The device fails; then it holds nothing.
    pub(super) fn readdress(&mut self, root: BlockHash, arena: &mut Arena) -> Result<()> {
        (self.stored_blocks, self.flushed_blocks, self.sent_blocks) = (0, 0, 0);
        let tails = self.earlier.drain(..).chain(self.tail.take()).collect();
        self.retire(tails);
        self.sequence.readdress(root, &self.tokens, arena)
    }

    /// Goes back to at most `n` tokens of keys and values in memory; returns how many are left.
    pub(crate) fn truncate(&mut self, n: usize, arena: &mut Arena) -> usize {
        let kept = self.sequence.truncate(n, arena);
        self.forget_stored(n);
        kept
    }

    /// Goes back to `n` tokens, in memory or on disk.
    pub(crate) fn rewind(&mut self, n: usize, arena: &mut Arena) {
        self.sequence.rewind(n, arena);
        self.forget_stored(n);
    }

    /// Goes back to the end of the last sealed block.
    pub(crate) fn truncate_to_block(&mut self, arena: &mut Arena) {
        self.sequence.truncate_to_block(arena);
        self.forget_stored(self.sequence.len());
    }

    /// Forgets what is on disk past token `n`. (What is computed again below it is the same, bit for bit.) Of
    /// the tails it keeps the rows before that.
    pub(crate) fn forget_stored(&mut self, n: usize) {
        let n_blocks = self.sequence.table().len();
        self.stored_blocks = self.stored_blocks.min(n_blocks);
        self.sent_blocks = self.sent_blocks.min(n_blocks);
        let (block, n_rows) = (n / BLOCK, n % BLOCK);
        let past = self.tail.take_if(|tail| tail.at.end_token() > n);
        let mut past: Vec<Tail> =
            self.earlier.extract_if(.., |tail| tail.at.block >= block).chain(past).collect();
        if self.tail.is_none() && past.first().is_some_and(|tail| tail.at.block == block && n_rows > 0) {
            let mut tail = past.remove(0);
            if tail.at.rows > n_rows {
                tail.at.rows = n_rows;
                tail.close();
            }
            self.tail = Some(tail);
        }
        self.retire(past);
    }

    /// Takes back a commit that was not written: the next manifest releases the files that it would have
    /// released.
    pub(crate) fn uncommit(&mut self, pending: Option<Pending>) {
        self.obsolete.extend(pending.into_iter().flat_map(|pending| pending.obsolete));
    }

    /// The next manifest no longer names these tails.
    fn retire(&mut self, tails: Vec<Tail>) {
        let own = tails.into_iter().filter(|tail| tail.file != File::Borrowed);
        self.obsolete.extend(own.map(|tail| tail.at.file));
    }

    /// Drops its own rows of sealed blocks: its next manifest no longer names them.
    pub(super) fn retire_earlier(&mut self) {
        let own = self.earlier.extract_if(.., |tail| tail.file != File::Borrowed).collect();
        self.retire(own);
    }

    /// File of the rows of its open block, whatever session owns it.
    pub(crate) fn tail_file(&self) -> Option<&str> {
        self.tail.as_ref().map(|tail| &*tail.at.file)
    }

    /// Takes the place of another session of its name: its next manifest releases the files of that one.
    pub(super) fn replace(&mut self, mut before: Self, arena: &mut Arena) {
        before.sequence.clear(arena);
        before.forget_stored(0);
        self.obsolete.extend(before.obsolete);
    }

    fn tails(&self) -> impl Iterator<Item = &Tail> {
        self.earlier.iter().chain(&self.tail)
    }

    /// Puts rows from disk after its blocks; returns the bytes that were read for them.
    ///
    /// # Errors
    /// As text, why they can't be used.
    pub(super) fn put_tail(
        &mut self,
        tail: &TailRef,
        found: Found<(Vec<u8>, u64)>,
        arena: &mut Arena,
    ) -> Result<u64, String> {
        match found {
            Found::Whole((rows, bytes)) => {
                self.sequence.push_rows(arena.insert_rows(&rows), tail.rows);
                Ok(bytes)
            }
            Found::Damaged(reason) | Found::Unreadable(reason) => Err(reason),
            Found::Missing => Err("the tail of the cache is missing; it is computed again".to_owned()),
        }
    }

    /// Files of its tails, whatever session owns them.
    pub(crate) fn files(&self) -> impl Iterator<Item = String> {
        self.tails().map(|tail| tail.at.file.clone())
    }

    /// Files that are its own: its tails, and those that its next manifest would let go.
    pub(super) fn own_files(&self) -> impl Iterator<Item = String> {
        let tails = self.tails().filter(|tail| tail.file != File::Borrowed).map(|tail| &tail.at.file);
        tails.chain(&self.obsolete).cloned()
    }

    /// The tail on disk, if its rows are not in memory and belong to where the sequence ends.
    pub(crate) fn absent_tail(&self) -> Option<&TailRef> {
        let here = |tail: &&Tail| {
            tail.at.block * BLOCK == self.sequence.len() && self.sequence.open_rows().is_none()
        };
        self.tail.as_ref().filter(here).map(|tail| &tail.at)
    }

    /// Tells whether the rows of the open block are on disk, or there are none.
    fn rows_stored(&self) -> bool {
        let n = self.sequence.len();
        let covers = |tail: &Tail| tail.at.block == n / BLOCK && tail.at.end_token() >= n;
        self.sequence.open_rows().is_none() || self.tail.as_ref().is_some_and(covers)
    }

    /// Evicts something in memory that is on disk too; `false`: nothing is left to evict.
    pub(crate) fn evict(&mut self, arena: &mut Arena) -> bool {
        let end = self.sequence.len();
        let states = self.sequence.states_mut();
        if let Some(states) = states.filter(|states| states.evictable(end).is_some_and(|at| at != end)) {
            return states.evict(end, arena);
        }
        if self.rows_stored() && self.sequence.holds_rows() {
            self.sequence.truncate_to_block(arena);
            return true;
        }
        self.sequence.evict(self.stored_blocks, arena)
    }

    /// Tells whether [`Session::evict`] finds something.
    pub(crate) fn can_evict(&self) -> bool {
        let of_states = |states: &States| states.evictable(self.sequence.len()).is_some();
        self.rows_stored() && self.sequence.holds_rows()
            || self.sequence.states().is_some_and(of_states)
            || self.sequence.table().last_held(self.stored_blocks).is_some()
    }

    /// Gives up the last of what is in memory alone, to be computed again; `false`: nothing is left.
    pub(crate) fn evict_unsaved(&mut self, arena: &mut Arena) -> bool {
        let n = self.sequence.len();
        if self.sequence.states_mut().is_some_and(|states| states.evict_unsaved(n, arena)) {
            return true;
        }
        n > 0 && self.truncate((n - 1) / BLOCK * BLOCK, arena) < n
    }

    /// Bytes of what is known of it: ids, texts and addresses.
    pub(crate) fn known_bytes(&self) -> u64 {
        known_bytes(&self.segments, self.tokens.capacity().max(self.sequence.len()))
    }

    /// Its state at rest; saved, as far as its blocks and rows are on disk.
    pub(crate) fn status(&self, key: &SessionKey, arena: &Arena) -> SessionStatus {
        SessionStatus {
            key: key.clone(),
            tokens: self.tokens.len(),
            bytes_in_memory: self.sequence.bytes(arena) + self.known_bytes(),
            tokens_in_memory: self.sequence.n_held(),
            is_at_work: false,
            next_use: None,
            is_saved: self.stored_blocks == self.sequence.table().len()
                && self.rows_stored()
                && self.sequence.states().is_none_or(|states| states.unstored().next().is_none()),
        }
    }

    /// Sealed blocks that were not handed over to be written; `None`: there are none, or no more than the
    /// last time, when they could not be.
    pub(super) fn sealed(&mut self, context: &CacheContext, arena: &mut Arena) -> Option<Export> {
        let n = self.sequence.table().len();
        if n == std::mem::replace(&mut self.flushed_blocks, n) {
            return None;
        }
        let first = self.stored_blocks.max(std::mem::replace(&mut self.sent_blocks, n));
        (first < n).then(|| self.blocks_from(first, context, arena))
    }

    fn blocks_from(&self, first: usize, context: &CacheContext, arena: &mut Arena) -> Export {
        let mut export = Export::default();
        let table = self.sequence.table();
        for (index, (hash, parts)) in table.hashes().zip(table.parts()).enumerate().skip(first) {
            let held: Vec<BlockId> = parts.into_iter().flatten().collect();
            held.iter().for_each(|id| arena.retain(*id));
            export.held.extend(held);
            let bytes = |part: Part| (part, parts[part as usize].map(|id| arena.export(id)));
            let parts = context.layout.parts().map(bytes).collect();
            export.blocks.push(Sealed { index, hash, parts });
        }
        export
    }

    /// Everything that is not on disk yet. The session stays as it is until [`Session::note`] gets the
    /// result.
    pub(super) fn export(
        &mut self,
        key: &SessionKey,
        store: &Store,
        context: &CacheContext,
        arena: &mut Arena,
    ) -> Export {
        let mut export = self.blocks_from(self.stored_blocks, context, arena);
        for (at, hash, id) in self.sequence.states().iter().flat_map(|states| states.unstored()) {
            arena.retain(id);
            export.held.push(id);
            export.states.push(Sealed {
                index: at,
                hash,
                parts: vec![(Part::State, Some(arena.export(id)))],
            });
        }
        let (open, n) = (self.sequence.len() / BLOCK, self.sequence.len() % BLOCK);
        let goes_on =
            |tail: &Tail| tail.file == File::Open && tail.at.block == open && n > 0 && store.appends_tails();
        self.earlier.extend(self.tail.take_if(|tail| !goes_on(tail)));
        self.put_by(open);
        if let Some(rows) = self.sequence.open_rows() {
            let new = || Tail { at: TailRef::new(tail_name(store, key), open), file: File::Open };
            let tail = self.tail.get_or_insert_with(new).at.clone();
            let bytes = if tail.rows < n { arena.export_rows(rows, tail.rows..n) } else { Ok(Vec::new()) };
            export.rows = Some(Rows { tail, n, bytes });
        }
        export
    }

    /// Keeps the latest tails of the first `n` blocks, all of which have sealed.
    fn put_by(&mut self, n: usize) {
        let mut gone: Vec<Tail> =
            self.earlier.extract_if(.., |tail| tail.at.block >= n || tail.at.rows == 0).collect();
        let excess = self.earlier.len().saturating_sub(EARLIER);
        gone.extend(self.earlier.drain(..excess));
        self.retire(gone);
        self.earlier.iter_mut().for_each(Tail::close);
    }

    /// Records what is on disk by now. (The session may have gone back and diverged since it was handed
    /// over.)
    pub(crate) fn note(&mut self, stored: &Stored) {
        for (index, hash) in &stored.blocks {
            if *index == self.stored_blocks && self.sequence.table().hash(*index) == Some(*hash) {
                self.stored_blocks += 1;
            }
        }
        if let Some(states) = self.sequence.states_mut() {
            stored.states.iter().for_each(|(at, hash)| states.note_stored(*at, *hash));
        }
        if stored.error.is_some() {
            self.sent_blocks = self.stored_blocks;
        }
        if stored.lost_tail {
            self.tail.iter_mut().for_each(Tail::close);
        }
        let ours = |at: &&TailRef| self.tail.as_ref().is_some_and(|tail| tail.at.file == at.file);
        if let Some(at) = stored.tail.as_ref().filter(ours) {
            self.tail = Some(Tail { at: at.clone(), file: File::Open });
        }
    }

    /// Drops windowed layers of blocks that no later row sees, and that are on disk if the session is
    /// `stored` there.
    pub(crate) fn trim_window(&mut self, stored: bool, arena: &mut Arena) {
        self.sequence.trim_window(if stored { self.stored_blocks } else { usize::MAX }, arena);
    }

    /// The manifest to commit, once all of it is on disk. A token takes `token_ms` to compute.
    pub(super) fn pending(&mut self, key: &SessionKey, token_ms: f64, context: &CacheContext) -> Pending {
        let (run, agent) = (key.run.clone(), key.agent.clone());
        let identity = context.identity_with(&key.tenant, self.numerics.as_ref());
        let saved_at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let own = self.earlier.iter().filter(|tail| tail.file != File::Borrowed);
        let manifest = Manifest {
            owner: Owner { run, agent, identity },
            blocks: self.sequence.table().hashes().collect(),
            tail: self.tail.as_ref().map(|tail| tail.at.clone()),
            earlier: own.map(|tail| tail.at.clone()).collect(),
            states: self.sequence.states().map_or(Vec::new(), |states| states.stored().collect()),
            segments: self.segments.clone(),
            worth: Worth { saved_at, turns: 0, token_ms },
        };
        Pending { manifest, obsolete: std::mem::take(&mut self.obsolete) }
    }
}

impl Tail {
    /// From now on it is read only.
    fn close(&mut self) {
        if self.file == File::Open {
            self.file = File::Closed;
        }
    }
}

/// Bytes of the metadata of a session with these segments and `n` tokens: ids, texts and addresses.
pub(crate) fn known_bytes(segments: &[Segment], n_tokens: usize) -> u64 {
    let segment = |s: &Segment| size_of::<Segment>() + s.text.len() + 4 * s.ids.len();
    let segments: usize = segments.iter().map(segment).sum();
    (segments + 4 * n_tokens + 48 * (n_tokens / BLOCK)) as u64
}

/// A name that no earlier tail of the session has: the remains of a crash are never appended to.
fn tail_name(store: &Store, key: &SessionKey) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
    format!("{}.{now:x}.log", store.session_id(key))
}
