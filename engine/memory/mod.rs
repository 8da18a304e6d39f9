//! All sessions that are not at work: recalling them from memory or disk, keeping them, reading ahead for who is needed next.
//! Letting go of them is `eviction`'s.
//!
//! What is recomputed and what is prefilled is counted by meaning: tokens up to the end of the last reply were read or said
//! before, so computing them again is `recomputed` (all of history, under `--cold`); the rest is `prefilled`.
//!
//! Sealed blocks are looked up by content when a session begins or comes back short, so a kill between transcript line and
//! manifest costs at most a block. A run is named after its scenario, so that `cache ls` and `rm` can speak of scenarios.

pub(crate) mod arena;
mod claims;
mod eviction;
pub(crate) mod pass;
mod read_ahead;
pub(crate) mod sequence;
pub(crate) mod session;

use crate::device::Device;
use crate::kv::format::BlockBytes;
use crate::kv::layout::{BLOCK, Part};
use crate::kv::table::BlockId;
use crate::kv::table::{BlockHash, BlockKey, Parts};
use crate::memory::arena::Arena;
use crate::memory::read_ahead::{Ahead, Bytes, Piece};
use crate::memory::session::{CacheContext, Pending, Session};
use crate::store::log::Broken;
use crate::store::manifest::Journal;
use crate::store::tail::TailRef;
use crate::store::{Found, Store};
use crate::text::prefix::{Relation, Segment, SegmentKind, compare, first_difference, flatten};
use crate::threads::map;
use crate::{MatchKind, Request, Result, Retention, SessionKey, Source};
use claims::Claims;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Sessions in memory and on disk.
pub(crate) struct Memory {
    pub(crate) context: CacheContext,
    pub(crate) arena: Arena,
    pub(crate) store: Option<Arc<Store>>,
    /// Reads ahead; none without a store.
    ahead: Option<Ahead>,
    idle: HashMap<SessionKey, Idle>,
    /// What stands in the manifests of sessions that this engine saved.
    journals: HashMap<SessionKey, Journal>,
    /// What was found wrong with a session's memory before it was asked for.
    remarks: HashMap<SessionKey, String>,
    claims: Claims,
    /// Why there is no store though there should be one.
    pub(crate) storeless: Option<String>,
    clock: u64,
    /// Bytes of sessions at work beside sealed blocks, and of manifests that wait.
    pub(crate) at_work: u64,
    /// Milliseconds that a token of a prompt takes, by the latest measure.
    pub(crate) token_ms: f64,
}

struct Idle {
    session: Session,
    next_use: Option<u64>,
    last_use: u64,
    /// Bytes of what is known of it, whatever of its keys and values is in memory.
    known_bytes: u64,
    /// Whether its manifest is up to date: then it need not be known.
    saved: bool,
    ahead: ReadAhead,
}

/// What was read ahead for a session.
#[derive(Clone, Copy, Default)]
struct ReadAhead {
    bytes: u64,
    ms: f64,
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
    /// Milliseconds that the turn waited for reading, and that reading took while others were at work.
    pub(crate) waited_ms: f64,
    pub(crate) hidden_ms: f64,
    pub(crate) reason: Option<String>,
}

/// What a search for a session's memory found on its way.
#[derive(Default)]
struct Search {
    bytes_read: u64,
    waited_ms: f64,
    reason: Option<String>,
}

/// A part of the block at an index.
type Wanted = (usize, BlockKey);

/// A block from disk and the bytes that it took there.
type ReadBlock = Found<(BlockBytes, u64)>;

impl Memory {
    /// Nothing in memory yet; `budget` in bytes.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn new(
        device: &Arc<dyn Device>,
        context: CacheContext,
        store: Option<Store>,
        budget: u64,
    ) -> Result<Self> {
        let arena = Arena::new(device, &context.layout, budget);
        let store = store.map(Arc::new);
        let ahead =
            store.as_ref().map(|store| Ahead::new(store.clone(), context.layout.clone())).transpose()?;
        if let Some(ahead) = &ahead {
            ahead.compact();
        }
        let (idle, journals, remarks) = (HashMap::new(), HashMap::new(), HashMap::new());
        let (claims, storeless, clock, at_work, token_ms) = (Claims::default(), None, 0, 0, 0.0);
        Ok(Self {
            context,
            arena,
            store,
            ahead,
            idle,
            journals,
            remarks,
            claims,
            storeless,
            clock,
            at_work,
            token_ms,
        })
    }

    /// Finds a session's memory and makes it ready for a prompt.
    ///
    /// # Errors
    /// Another process adds to the run's sessions.
    pub(crate) fn recall(&mut self, request: &Request, prompt: &[Segment]) -> Result<Recalled> {
        let mut search = Search::default();
        if request.retention == Retention::Persistent {
            search.reason = self.claim(&request.session)?.or_else(|| self.storeless.clone());
        }
        self.wait_for(&request.session, &mut search);
        let known = self.idle.remove(&request.session);
        let ahead = known.as_ref().map_or(ReadAhead::default(), |idle| idle.ahead);
        let mut session = match known.map(|idle| idle.session) {
            Some(session) if request.cold => {
                session.restart(&self.context, &request.session.tenant, &mut self.arena)
            }
            Some(session) => session,
            None if request.cold => self.fresh(request),
            None => self.find(request, &mut search),
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
        session.rewind(matched.n_tokens, &mut self.arena);
        self.restore(&mut session, matched.n_tokens, &mut search);
        if !request.cold {
            let end = if fresh { ids.len() } else { read_before };
            self.append_known_blocks(&mut session, end, &mut search);
            self.restore_tail(&mut session, &mut search);
        }
        // At least one token is fed: its logits choose the first token of the reply.
        let last = session.tokens.len().saturating_sub(1);
        let reused = self.restore(&mut session, last, &mut search);
        session.forget_stored(session.tokens.len());
        let kind = match matched.relation {
            Relation::Exact => MatchKind::Exact, // even where it goes back to the border of its only block
            _ if reused == 0 => MatchKind::Cold,
            _ if fresh => MatchKind::Prefix,
            Relation::Extend => MatchKind::Extend,
            Relation::Diverge => MatchKind::Diverge,
        };
        let bytes_read = search.bytes_read + ahead.bytes;
        let source = match (reused, bytes_read) {
            (0, _) => Source::None,
            (_, 0) => Source::Memory,
            _ => Source::Disk,
        };
        let recomputed = read_before.saturating_sub(reused);
        let Search { waited_ms, reason, .. } = search;
        let hidden_ms = ahead.ms;
        Ok(Recalled { session, kind, source, reused, recomputed, bytes_read, waited_ms, hidden_ms, reason })
    }

    /// The session's own memory from disk, else its parent's, else nothing.
    fn find(&mut self, request: &Request, search: &mut Search) -> Session {
        if let Some(session) = self.load(&request.session, false, search) {
            return session;
        }
        let Some(parent) = &request.parent else { return self.fresh(request) };
        self.wait_for(parent, search);
        if let Some(idle) = self.idle.get_mut(parent) {
            search.bytes_read += std::mem::take(&mut idle.ahead).bytes;
            return idle.session.fork(&mut self.arena);
        }
        self.load(parent, true, search).unwrap_or_else(|| self.fresh(request))
    }

    /// A session that has read nothing.
    fn fresh(&self, request: &Request) -> Session {
        Session::new(&self.context, &request.session.tenant)
    }

    /// A session as its manifest has it; nothing of its keys and values is read yet.
    fn load(&mut self, key: &SessionKey, borrowed: bool, search: &mut Search) -> Option<Session> {
        let began = Instant::now();
        let found = self.store.as_ref()?.read_manifest(key);
        search.waited_ms += ms_since(began);
        let (manifest, journal, broken) = match found {
            Found::Missing => return None,
            Found::Damaged(reason) | Found::Unreadable(reason) => {
                search.reason = Some(reason);
                return None;
            }
            Found::Whole(found) => found,
        };
        let earlier = |broken: Broken| {
            format!("the manifest is damaged, the state of an earlier turn is used: {}", broken.reason)
        };
        search.reason = search.reason.take().or(broken.map(earlier));
        if let Some(reason) = self.context.identity_of(&key.tenant).differs(&manifest.owner.identity) {
            search.reason = Some(reason);
            return None;
        }
        let session = Session::stored_as(manifest, borrowed, &self.context);
        if !borrowed {
            self.journals.insert(key.clone(), journal);
        }
        Some(session)
    }

    /// Gives a session the memory of another as it stands now, if that is at rest in memory.
    pub(crate) fn fork(&mut self, from: &SessionKey, to: SessionKey) {
        self.collect(None);
        if let Some(idle) = self.idle.get(from) {
            let mut session = idle.session.fork(&mut self.arena);
            // The file of the other's tail goes when that agent goes on.
            self.restore_tail(&mut session, &mut Search::default());
            self.keep(to, session, None);
        }
    }

    /// Makes a session known that will speak: it can be read ahead then.
    pub(crate) fn expect(&mut self, key: &SessionKey, next_use: u64) {
        match self.idle.get_mut(key) {
            Some(idle) => idle.next_use = Some(next_use),
            None => {
                let mut search = Search::default();
                let session = self.load(key, false, &mut search);
                self.remarks.extend(search.reason.map(|reason| (key.clone(), reason)));
                if let Some(session) = session {
                    self.journals.remove(key); // whoever adds to it claims its run first, and reads it then
                    self.keep(key.clone(), session, Some(next_use));
                    self.saved(key);
                }
            }
        }
    }

    /// Takes a session back to at most `n` tokens; what it needs for that comes from memory or disk. Returns how many are left.
    fn restore(&mut self, session: &mut Session, n: usize, search: &mut Search) -> usize {
        let mut n = session.sequence.border(n);
        loop {
            let hash = |(block, part)| Some((block, (session.sequence.table().hash(block)?, part)));
            let wanted: Vec<Wanted> = session.sequence.missing(n).filter_map(hash).collect();
            let read = self.read_blocks(&wanted, search);
            let mut hole = None;
            for ((block, key), read) in wanted.into_iter().zip(read) {
                match self.take(key, read, search) {
                    Some(id) => session.sequence.refill(block, key.1, id),
                    None => hole = hole.or(Some((block, key.1))),
                }
            }
            n = match hole {
                None => return session.sequence.truncate(n, &mut self.arena),
                Some((block, Part::Global)) => {
                    let missing = "a block of the cache is missing: the rest is computed again";
                    search.reason.get_or_insert(missing.to_owned());
                    block * BLOCK
                }
                Some((_, Part::Windowed)) => n.saturating_sub(1) / BLOCK * BLOCK,
            };
            session.rewind(n, &mut self.arena);
        }
    }

    /// Appends whole blocks up to token `end`, found by content in memory or on disk, until one is missing. Windows are
    /// left to [`Memory::restore`].
    fn append_known_blocks(&mut self, session: &mut Session, end: usize, search: &mut Search) {
        let first = session.sequence.len() / BLOCK;
        let end_block = end.min(session.tokens.len()) / BLOCK;
        if end_block <= first {
            return;
        }
        let hashes = session.sequence.root().chain(&session.tokens[..end_block * BLOCK]);
        let global = |(index, hash): (usize, BlockHash)| (index, (hash, Part::Global));
        let wanted: Vec<Wanted> = hashes.into_iter().enumerate().skip(first).map(global).collect();
        let windows = self.context.layout.window().is_some();
        let read = self.read_blocks(&wanted, search);
        for ((index, key), read) in wanted.into_iter().zip(read) {
            let hash = key.0;
            // What the disk lacks must be kept in memory, or it could never be written.
            let window = if windows { self.arena.find((hash, Part::Windowed)) } else { None };
            let stored = self.context.layout.parts().all(|part| self.on_disk((hash, part)));
            if windows && window.is_none() && !self.on_disk((hash, Part::Windowed)) {
                break;
            }
            let Some(id) = self.take(key, read, search) else {
                window.into_iter().for_each(|id| self.arena.release(id));
                break;
            };
            if session.sequence.len() > index * BLOCK {
                session.truncate_to_block(&mut self.arena); // of a part of this block
            }
            let mut parts: Parts = [Some(id), None];
            parts[Part::Windowed as usize] = window;
            session.sequence.push_block(hash, parts);
            if stored && session.stored_blocks == index {
                session.stored_blocks = index + 1;
            }
        }
    }

    /// Reads the rows of the open block, if they are on disk alone.
    fn restore_tail(&mut self, session: &mut Session, search: &mut Search) {
        let (Some(store), Some(tail)) = (&self.store, session.absent_tail().cloned()) else { return };
        let began = Instant::now();
        let found = store.read_tail(&tail, &self.context.layout);
        search.waited_ms += ms_since(began);
        match put_tail(session, &tail, found, &mut self.arena) {
            Ok(bytes) => search.bytes_read += bytes,
            Err(reason) => search.reason = Some(reason),
        }
    }

    fn on_disk(&self, key: BlockKey) -> bool {
        self.store.as_ref().is_some_and(|store| store.has_block(key))
    }

    /// A reference to a part of a block: the one in memory, or what was read.
    fn take(&mut self, key: BlockKey, read: Option<ReadBlock>, search: &mut Search) -> Option<BlockId> {
        match (self.arena.find(key), read) {
            (Some(id), _) => Some(id),
            (None, Some(Found::Whole((block, bytes)))) => {
                search.bytes_read += bytes;
                Some(self.arena.insert(key, Arc::new(block)))
            }
            (None, Some(Found::Damaged(reason) | Found::Unreadable(reason))) => {
                search.reason = Some(reason);
                None
            }
            (None, _) => None,
        }
    }

    /// Reads from disk what is not in memory, several blocks at a time, after making room for it; nothing is read after the
    /// first one that is missing in both places.
    fn read_blocks(&mut self, wanted: &[Wanted], search: &mut Search) -> Vec<Option<ReadBlock>> {
        let here = |(_, key): &Wanted| self.arena.holds(*key) || self.on_disk(*key);
        let n = wanted.iter().take_while(|wanted| here(wanted)).count();
        let absent = |(_, key): &&Wanted| !self.arena.holds(*key);
        let room = wanted[..n].iter().filter(absent).map(|(_, key)| self.arena.part_bytes(key.1)).sum();
        self.make_room(room, None);
        let began = Instant::now();
        let here: Vec<bool> = wanted.iter().map(|(_, key)| self.arena.holds(*key)).collect();
        let (store, layout) = (self.store.as_deref(), &self.context.layout);
        let read = |i: usize| match (store, wanted[i]) {
            (Some(store), (index, key)) if i < n && !here[i] => Some(store.read_block(key, index, layout)),
            _ => None,
        };
        let read = map(wanted.len(), read);
        search.waited_ms += ms_since(began);
        read
    }

    /// Takes in what was read ahead; waits for the rest of a session's pieces.
    fn wait_for(&mut self, session: &SessionKey, search: &mut Search) {
        let began = Instant::now();
        self.collect(Some(session));
        let waited = ms_since(began);
        search.waited_ms += waited;
        search.reason = search.reason.take().or_else(|| self.remarks.remove(session));
        if let Some(idle) = self.idle.get_mut(session) {
            // What was waited for was not hidden.
            idle.ahead.ms = (idle.ahead.ms - waited).max(0.0);
        }
    }

    /// Takes in what was read ahead.
    fn collect(&mut self, session: Option<&SessionKey>) {
        let Some(ahead) = &mut self.ahead else { return };
        for fetched in ahead.collect(session) {
            // Whoever is at work by now, or has gone, has no use for it.
            let Some(idle) = self.idle.get_mut(&fetched.session) else { continue };
            let bytes = match fetched.bytes {
                Bytes::Block(index, key, Found::Whole((block, bytes))) => {
                    let wanted = idle.session.sequence.table().hash(index) == Some(key.0)
                        && !idle.session.sequence.table().holds(index, key.1);
                    if wanted {
                        let id = self.arena.insert(key, Arc::new(block));
                        idle.session.sequence.refill(index, key.1, id);
                    }
                    bytes
                }
                Bytes::Tail(tail, found) if idle.session.absent_tail() == Some(&tail) => {
                    put_tail(&mut idle.session, &tail, found, &mut self.arena).unwrap_or_else(|reason| {
                        self.remarks.insert(fetched.session.clone(), reason);
                        0
                    })
                }
                Bytes::Block(.., Found::Damaged(reason) | Found::Unreadable(reason)) => {
                    self.remarks.insert(fetched.session.clone(), reason);
                    0
                }
                // What is missing is found so again when it is needed, and said then.
                _ => 0,
            };
            idle.ahead.bytes += bytes;
            idle.ahead.ms += fetched.ms;
        }
    }

    /// Begins to read what the agents that are needed next lack, as many of them as are at work now; makes room by evicting
    /// whoever is needed later.
    pub(crate) fn look_ahead(&mut self, n_active: usize) {
        self.collect(None);
        if n_active == 0 || self.ahead.as_ref().is_none_or(|ahead| !ahead.idle()) {
            return;
        }
        let mut next: Vec<(u64, SessionKey)> =
            self.idle.iter().filter_map(|(key, idle)| Some((idle.next_use?, key.clone()))).collect();
        next.sort_by_key(|(next_use, _)| *next_use);
        for (next_use, key) in next.into_iter().take(n_active) {
            self.read_ahead(&key, next_use);
        }
    }

    fn read_ahead(&mut self, key: &SessionKey, next_use: u64) {
        let Some(idle) = self.idle.get_mut(key) else { return };
        let sequence = &mut idle.session.sequence;
        let missing: Vec<(usize, Part)> = sequence.missing(sequence.len()).collect();
        let mut pieces = Vec::new();
        for (block, part) in missing {
            let Some(hash) = sequence.table().hash(block) else { continue };
            match self.arena.find((hash, part)) {
                Some(id) => sequence.refill(block, part, id),
                None => pieces.push((Piece::Block(block, (hash, part)), self.arena.part_bytes(part))),
            }
        }
        if let Some(tail) = idle.session.absent_tail() {
            let room = tail.rows * self.context.layout.row_bytes();
            pieces.push((Piece::Tail(tail.clone()), room as u64));
        }
        for (piece, room) in pieces {
            if !self.make_room(room, Some(next_use)) {
                return;
            }
            if let Some(ahead) = &mut self.ahead {
                ahead.fetch(key, piece, room);
            }
        }
    }

    /// After a pass over a session: see [`Session::flush`].
    pub(crate) fn flush(&mut self, request: &Request, session: &mut Session) -> Result<u64> {
        let store = self.store.as_deref().filter(|_| request.retention == Retention::Persistent);
        session.flush(store, &self.context, &mut self.arena)
    }

    /// Writes what the disk lacks of a session; its manifest waits for [`Memory::commit`]. Also gives the bytes written.
    pub(crate) fn save(&mut self, key: &SessionKey, session: &mut Session) -> Result<Option<(Pending, u64)>> {
        let Some(store) = &self.store else { return Ok(None) };
        session.save(key, self.token_ms, store, &self.context, &self.arena).map(Some)
    }

    /// The last step of a save: the manifest says what the session is now. Returns the bytes written.
    pub(crate) fn commit(&mut self, pending: &Pending) -> Result<u64> {
        let key = pending.manifest.session();
        self.claim_to_commit(&key)?;
        let Some(store) = &self.store else { return Ok(0) };
        let mut journal = self.journals.remove(&key).or_else(|| match store.read_manifest(&key) {
            Found::Whole((_, journal, _)) => Some(journal),
            _ => None,
        });
        let written = store.write_manifest(&pending.manifest, &mut journal, &pending.obsolete)?;
        self.journals.extend(journal.map(|journal| (key.clone(), journal)));
        self.saved(&key);
        if let Some(ahead) = &self.ahead {
            ahead.compact();
        }
        Ok(written)
    }

    /// A save that gets no last step: the manifest stays as it was, and so do the tails that it names, until the next one.
    pub(crate) fn abandon(&mut self, key: &SessionKey, pending: Option<Pending>) {
        if let Some(idle) = self.idle.get_mut(key) {
            idle.session.uncommit(pending);
        }
        self.saved(key);
    }

    /// A session's manifest says all that it ever will of its last turn.
    pub(crate) fn saved(&mut self, key: &SessionKey) {
        if let Some(idle) = self.idle.get_mut(key) {
            idle.saved = true;
        }
    }

    /// Takes a session back after its turn.
    pub(crate) fn keep(&mut self, key: SessionKey, session: Session, next_use: Option<u64>) {
        self.claims.rests(&key);
        self.clock += 1;
        let known_bytes = session.known_bytes();
        let (last_use, saved, ahead) = (self.clock, false, ReadAhead::default());
        let idle = Idle { session, next_use, last_use, known_bytes, saved, ahead };
        if let Some(mut before) = self.idle.insert(key, idle) {
            before.session.sequence.clear(&mut self.arena);
        }
    }

    /// Whether a session's turns are written to disk.
    pub(crate) fn persists(&self, request: &Request) -> bool {
        request.retention == Retention::Persistent && self.claims.holds(&request.session)
    }
}

/// Puts rows from disk behind a session's blocks; the error says why they can't be.
fn put_tail(
    session: &mut Session,
    tail: &TailRef,
    found: Found<(Vec<u8>, u64)>,
    arena: &mut Arena,
) -> Result<u64, String> {
    let reason = match found {
        Found::Whole((rows, bytes)) => {
            session.sequence.push_rows(arena.insert_rows(&rows), tail.rows);
            return Ok(bytes);
        }
        Found::Damaged(reason) | Found::Unreadable(reason) => reason,
        Found::Missing => "the tail of the cache is missing: it is computed again".to_owned(),
    };
    Err(reason)
}

fn ms_since(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
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
