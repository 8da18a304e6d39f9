//! All sessions that are not at work: recalling them from memory or disk, keeping them, letting them go.

use crate::kernels::tasks::map;
use crate::kv::blocks::{Arena, SealedBlock};
use crate::kv::layout::{BLOCK, Part};
use crate::kv::pool::{BlockId, Candidate, victim};
use crate::kv::store::{Found, Store};
use crate::kv::table::{BlockHash, Parts};
use crate::prefix::{Relation, Segment, SegmentKind, compare, first_difference, flatten};
use crate::session::{CacheContext, Session};
use crate::{MatchKind, Request, Result, Retention, SessionKey, Source};
use std::collections::HashMap;

/// Sessions in memory and on disk.
pub(crate) struct Memory {
    pub(crate) context: CacheContext,
    pub(crate) arena: Arena,
    pub(crate) store: Option<Store>,
    idle: HashMap<SessionKey, Idle>,
    clock: u64,
}

struct Idle {
    session: Session,
    next_use: Option<u64>,
    last_use: u64,
}

/// A session made ready for a prompt: its sequence holds a beginning of the prompt, and no more.
pub(crate) struct Recalled {
    pub(crate) session: Session,
    pub(crate) kind: MatchKind,
    pub(crate) source: Source,
    /// Prompt tokens whose keys and values are there.
    pub(crate) reused: usize,
    /// Prompt tokens that the session had read or said before, but whose keys and values are not there.
    pub(crate) recomputed: usize,
    pub(crate) bytes_read: u64,
    pub(crate) reason: Option<String>,
}

/// What a search for a session's memory found on its way.
#[derive(Default)]
struct Search {
    bytes_read: u64,
    from_disk: bool,
    reason: Option<String>,
}

/// A part of the block at an index.
type Wanted = (usize, BlockHash, Part);

/// A block from disk and the bytes that it took there.
type ReadBlock = Found<(SealedBlock, u64)>;

impl Memory {
    /// Nothing in memory yet; `budget` in bytes.
    pub(crate) fn new(context: CacheContext, store: Option<Store>, budget: u64) -> Self {
        let arena = Arena::new(&context.layout, budget);
        Self { context, arena, store, idle: HashMap::new(), clock: 0 }
    }

    /// Finds a session's memory and makes it ready for a prompt.
    pub(crate) fn recall(&mut self, request: &Request, prompt: &[Segment]) -> Result<Recalled> {
        let mut search = Search::default();
        let known = self.idle.remove(&request.session).map(|idle| idle.session);
        let mut session = match known {
            Some(mut session) if request.cold => {
                session.truncate(0, &mut self.arena);
                Session::new(&self.context)
            }
            Some(session) => session,
            None if request.cold => Session::new(&self.context),
            None => self.find(request, &mut search)?,
        };
        let ids = flatten(prompt);
        let history = end_of_last_reply(prompt);
        let fresh = session.segments.is_empty();
        let matched = compare(&session.segments, prompt);
        let read_before = match matched.relation {
            Relation::Exact => ids.len(),
            Relation::Extend => history.max(matched.n_tokens),
            Relation::Diverge => matched.n_tokens,
        };
        if matched.relation == Relation::Diverge {
            search.reason = Some(difference(&session.segments, prompt, matched.n_segments));
        }
        // The cached ids stay the authority for what matched; what follows is the prompt's own.
        session.tokens.truncate(matched.n_tokens);
        session.tokens.extend(flatten(&prompt[matched.n_segments..]));
        session.segments.truncate(matched.n_segments);
        self.rewind(&mut session, matched.n_tokens, &mut search)?;
        if !request.cold {
            let end = if fresh { ids.len() } else { read_before };
            self.restore_blocks(&mut session, end, &mut search)?;
        }
        // At least one token is fed: its logits choose the first token of the reply.
        let last = session.tokens.len().saturating_sub(1);
        let reused = self.rewind(&mut session, last, &mut search)?;
        let kind = match matched.relation {
            Relation::Exact => MatchKind::Exact, // even where it goes back to the border of its only block
            _ if reused == 0 => MatchKind::Cold,
            _ if fresh => MatchKind::Prefix,
            Relation::Extend => MatchKind::Extend,
            Relation::Diverge => MatchKind::Diverge,
        };
        let source = match (reused, search.from_disk) {
            (0, _) => Source::None,
            (_, true) => Source::Disk,
            _ => Source::Memory,
        };
        let recomputed = read_before.saturating_sub(reused);
        Ok(Recalled {
            session,
            kind,
            source,
            reused,
            recomputed,
            bytes_read: search.bytes_read,
            reason: search.reason,
        })
    }

    /// The session's own memory from disk, else its parent's, else nothing.
    fn find(&mut self, request: &Request, search: &mut Search) -> Result<Session> {
        if let Some(session) = self.load(&request.session, search)? {
            return Ok(session);
        }
        let Some(parent) = &request.parent else { return Ok(Session::new(&self.context)) };
        if let Some(idle) = self.idle.get(parent) {
            return Ok(idle.session.fork(&mut self.arena));
        }
        let Some(mut session) = self.load(parent, search)? else { return Ok(Session::new(&self.context)) };
        session.tail = None; // the parent's file stays the parent's
        Ok(session)
    }

    /// Reads a session from disk: as much of it as is whole.
    fn load(&mut self, key: &SessionKey, search: &mut Search) -> Result<Option<Session>> {
        let Some(store) = &self.store else { return Ok(None) };
        let manifest = match store.read_manifest(key)? {
            Found::Missing => return Ok(None),
            Found::Damaged(reason) => {
                search.reason = Some(reason);
                return Ok(None);
            }
            Found::Whole(manifest) => manifest,
        };
        if let Some(reason) = self.context.identity.differs(&manifest.identity) {
            search.reason = Some(reason);
            return Ok(None);
        }
        let tokens = flatten(&manifest.segments);
        let tail_rows = manifest.tail.as_ref().map_or(0, |tail| tail.rows);
        if tokens.len() != manifest.n_tokens || tokens.len() != manifest.blocks.len() * BLOCK + tail_rows {
            search.reason = Some("the manifest's counts contradict each other".to_owned());
            return Ok(None);
        }
        let n_blocks = manifest.blocks.len();
        let mut session = Session { segments: manifest.segments, tokens, ..Session::new(&self.context) };
        self.restore_blocks(&mut session, n_blocks * BLOCK, search)?;
        self.rewind(&mut session, n_blocks * BLOCK, search)?;
        if session.sequence.len() < n_blocks * BLOCK {
            let missing = "a block of the cache is missing: the rest is computed again".to_owned();
            search.reason.get_or_insert(missing);
            return Ok(Some(session));
        }
        let (Some(store), Some(tail)) = (&self.store, manifest.tail) else { return Ok(Some(session)) };
        match store.read_tail(&tail, self.context.root, &self.context.layout)? {
            Found::Whole((rows, bytes)) if n_blocks == tail.block => {
                session.sequence.push_rows(rows, tail.rows);
                session.tail = Some(tail);
                search.bytes_read += bytes;
                search.from_disk = true;
            }
            Found::Damaged(reason) => search.reason = Some(reason),
            _ => search.reason = Some("the tail of the cache is missing: it is computed again".to_owned()),
        }
        Ok(Some(session))
    }

    /// Takes a session back to at most `n` tokens; the windows that it needs there come from memory or disk.
    fn rewind(&mut self, session: &mut Session, n: usize, search: &mut Search) -> Result<usize> {
        let mut to = session.sequence.border(n);
        loop {
            let hash = |block| Some((block, session.sequence.table().hash(block)?, Part::Windowed));
            let wanted: Vec<Wanted> = session.sequence.missing(to).filter_map(hash).collect();
            let read = self.read_blocks(&wanted)?;
            let found: Vec<_> = wanted
                .iter()
                .zip(read)
                .map_while(|(wanted, read)| self.take(*wanted, read, search))
                .collect();
            for ((block, ..), id) in wanted.iter().zip(&found) {
                session.sequence.refill(*block, *id);
            }
            if found.len() == wanted.len() || to == 0 {
                return Ok(session.truncate(n, &mut self.arena));
            }
            to = (to - 1) / BLOCK * BLOCK;
        }
    }

    /// Appends whole blocks up to token `end`, found by content in memory or on disk, until one is missing. Windows are
    /// left to [`Memory::rewind`].
    fn restore_blocks(&mut self, session: &mut Session, end: usize, search: &mut Search) -> Result<()> {
        let first = session.sequence.len() / BLOCK;
        let end_block = end.min(session.tokens.len()) / BLOCK;
        if end_block <= first {
            return Ok(());
        }
        let hashes = self.context.root.chain(&session.tokens[..end_block * BLOCK]);
        let lasting = |(index, hash)| (index, hash, Part::Lasting);
        let wanted: Vec<Wanted> = hashes.into_iter().enumerate().skip(first).map(lasting).collect();
        let windows = self.context.layout.window().is_some();
        let read = self.read_blocks(&wanted)?;
        for (wanted, read) in wanted.into_iter().zip(read) {
            let (index, hash, _) = wanted;
            // What the disk lacks must be kept in memory, or it could never be written.
            let window = if windows { self.arena.find(hash, Part::Windowed) } else { None };
            let stored = self.context.layout.parts().all(|part| self.on_disk(hash, part));
            if windows && window.is_none() && !self.on_disk(hash, Part::Windowed) {
                break;
            }
            let Some(id) = self.take(wanted, read, search) else {
                window.into_iter().for_each(|id| self.arena.release(id));
                break;
            };
            if session.sequence.len() > index * BLOCK {
                session.drop_rows(); // of a part of this block
            }
            let mut parts: Parts = [Some(id), None];
            parts[Part::Windowed as usize] = window;
            session.sequence.push_block(hash, parts);
            if stored && session.stored_blocks == index {
                session.stored_blocks = index + 1;
            }
        }
        Ok(())
    }

    fn on_disk(&self, hash: BlockHash, part: Part) -> bool {
        self.store.as_ref().is_some_and(|store| store.has_block(hash, part))
    }

    /// A reference to a part of a block: the one in memory, or what was read.
    fn take(
        &mut self,
        (_, hash, part): Wanted,
        read: Option<ReadBlock>,
        search: &mut Search,
    ) -> Option<BlockId> {
        match (self.arena.find(hash, part), read) {
            (Some(id), _) => Some(id),
            (None, Some(Found::Whole((block, bytes)))) => {
                search.bytes_read += bytes;
                search.from_disk = true;
                Some(self.arena.insert(hash, part, block))
            }
            (None, Some(Found::Damaged(reason))) => {
                search.reason = Some(reason);
                None
            }
            (None, _) => None,
        }
    }

    /// Reads from disk what is not in memory, several blocks at a time; nothing is read after the first one that is missing
    /// in both places.
    fn read_blocks(&self, wanted: &[Wanted]) -> Result<Vec<Option<ReadBlock>>> {
        let here = |(_, hash, part): &Wanted| self.arena.holds(*hash, *part) || self.on_disk(*hash, *part);
        let n = wanted.iter().take_while(|wanted| here(wanted)).count();
        let read = |i: usize| match (&self.store, wanted[i]) {
            (Some(store), (index, hash, part)) if i < n && !self.arena.holds(hash, part) => {
                store.read_block((hash, part), index, &self.context.layout).map(Some)
            }
            _ => Ok(None),
        };
        map(wanted.len(), read).into_iter().collect()
    }

    /// After a pass over a session: see [`Session::settle`].
    pub(crate) fn settle(&mut self, request: &Request, session: &mut Session) -> Result<u64> {
        let store = self.store.as_ref().filter(|_| request.retention == Retention::Persistent);
        session.settle(store, &self.context, &mut self.arena)
    }

    /// Takes a session back after its turn.
    pub(crate) fn keep(&mut self, key: SessionKey, session: Session, next_use: Option<u64>) {
        self.clock += 1;
        self.idle.insert(key, Idle { session, next_use, last_use: self.clock });
    }

    /// Lets sessions go until the budget holds; `pinned` sessions (a commit is still to come) stay.
    pub(crate) fn enforce_budget(&mut self, pinned: &dyn Fn(&SessionKey) -> bool) {
        while self.arena.exceeds(self.idle.values().map(|i| i.session.sequence.row_bytes()).sum()) {
            let candidates = self.idle.iter().filter(|(key, _)| !pinned(key)).map(|(key, idle)| Candidate {
                key,
                next_use: idle.next_use,
                last_use: idle.last_use,
            });
            let Some(key) = victim(candidates).cloned() else { return };
            tracing::debug!(
                "evicting agent `{}` ({} bytes of blocks in memory)",
                key.agent,
                self.arena.bytes()
            );
            self.forget(&key);
        }
    }

    /// Drops a session from memory; its files stay.
    pub(crate) fn forget(&mut self, key: &SessionKey) {
        if let Some(mut idle) = self.idle.remove(key) {
            idle.session.sequence.clear(&mut self.arena);
        }
    }

    /// Whether a session's turns are written to disk.
    pub(crate) fn persists(&self, request: &Request) -> bool {
        self.store.is_some() && request.retention == Retention::Persistent
    }
}

/// Tokens up to the end of the last reply in a prompt: all of that was read or said in earlier turns.
fn end_of_last_reply(prompt: &[Segment]) -> usize {
    let last = prompt.iter().rposition(|s| s.kind == SegmentKind::Reply);
    last.map_or(0, |last| prompt[..=last].iter().map(|s| s.ids.len()).sum())
}

/// Where a prompt parts from what was cached, in words.
fn difference(cached: &[Segment], prompt: &[Segment], at: usize) -> String {
    match (cached.get(at), prompt.get(at)) {
        (Some(old), Some(new)) if old.text != new.text => {
            let character = first_difference(&old.text, &new.text);
            format!(
                "segment {at} ({:?}) differs from what was read, from its character {character} on",
                new.kind
            )
        }
        (Some(_), Some(_)) => format!("segment {at} differs from what was read in its kind or ids"),
        _ => format!("the prompt ends {} segments before what was read", cached.len().saturating_sub(at)),
    }
}
