//! Recalling a session for a prompt: from memory, from disk, from a parent, or from blocks of equal content;
//! whatever is missing is computed again, and why it is missing is said.
//!
//! Tokens are counted as recomputed or prefilled by meaning: those up to the end of the last reply were read
//! or said before, so computing them again is `recomputed` (all of history, under `--cold`); the rest is
//! `prefilled`.
//!
//! Sealed blocks are looked up by content when a session begins or comes back short, so a kill between
//! transcript line and manifest costs at most a block. A run is named after its scenario, so that `cache ls`
//! and `rm` can speak of scenarios.

use super::Memory;
use super::at_rest::ReadAhead;
use super::restore::{LoadStats, Wanted, ms_since};
use super::session::Session;
use crate::kv::layout::{BLOCK, Part};
use crate::kv::table::{BlockHash, Parts};
use crate::store::Found;
use crate::store::log::Broken;
use crate::store::numerics::Numerics;
use crate::text::prefix::{
    Relation, Segment, SegmentKind, align, common_prefix, compare, first_difference, flatten, is_raw,
};
use crate::{CacheSource, Divergence, MatchKind, Request, Result, Retention, SessionKey};
use std::time::Instant;

/// A session made ready for a prompt: its sequence holds a beginning of the prompt, and no more.
pub(crate) struct Recalled {
    pub(crate) session: Session,
    pub(crate) kind: MatchKind,
    pub(crate) source: CacheSource,
    /// Prompt tokens whose keys and values are there.
    pub(crate) reused: usize,
    /// Prompt tokens that the session had read or said before, but whose keys and values are not there.
    pub(crate) recomputed: usize,
    pub(crate) bytes_read: u64,
    /// Milliseconds that the turn waited for reading, and that reading took while others were at work.
    pub(crate) waited_ms: f64,
    pub(crate) prefetch_ms: f64,
    pub(crate) reason: Option<String>,
    pub(crate) divergence: Option<Divergence>,
    /// The devices that computed what is reused of an adopted memory.
    pub(crate) adopted: Option<String>,
    /// The prompt, if it had to be cut along with what the session holds.
    pub(crate) aligned: Option<Vec<Segment>>,
}

impl Memory {
    /// What the session of a request has read and said, so that a prompt which begins with it need not be
    /// tokenized again: by its manifest, if it is on disk alone. One that is new may begin as its parent did.
    ///
    /// # Errors
    /// Another process adds to the run's sessions.
    pub(crate) fn known(&mut self, request: &Request) -> Result<&[Segment]> {
        let key = &request.session;
        if request.cold {
            return Ok(&[]);
        }
        if !self.idle.contains_key(key) {
            if request.retention == Retention::Persistent {
                self.claim(key)?;
                self.claims.rests(key); // until its turn begins
            }
            let mut stats = LoadStats::default();
            let session = self.load(key, false, &mut stats);
            self.load_warnings.extend(stats.reason.map(|reason| (key.clone(), reason)));
            if let Some(session) = session {
                self.keep(key.clone(), session, request.next_use);
                self.saved(key);
                self.idle.get_mut(key).into_iter().for_each(|idle| idle.ahead.waited_ms = stats.waited_ms);
            }
        }
        let parent = || self.idle.get(request.parent.as_ref()?);
        let idle = self.idle.get(key).or_else(parent);
        Ok(idle.map_or(&[], |idle| &idle.session.segments))
    }

    /// Finds a session's memory and makes it ready for a prompt.
    ///
    /// # Errors
    /// Another process adds to the run's sessions.
    pub(crate) fn recall(&mut self, request: &Request, prompt: &[Segment]) -> Result<Recalled> {
        let mut stats = LoadStats::default();
        if request.retention == Retention::Persistent {
            stats.reason = self.claim(&request.session)?.or_else(|| self.storeless.clone());
        }
        self.wait_for(&request.session, &mut stats);
        let known = self.idle.remove(&request.session);
        let ahead = known.as_ref().map_or(ReadAhead::default(), |idle| idle.ahead);
        let mut session = match known.map(|idle| idle.session) {
            Some(session) if request.cold => {
                session.restart(&self.context, &request.session.tenant, &mut self.arena)
            }
            Some(session) => session,
            None if request.cold => self.fresh(request),
            None => self.find(request, &mut stats),
        };
        let aligned = self.aligned(&mut session, prompt);
        let prompt = aligned.as_deref().unwrap_or(prompt);
        let ids = flatten(prompt);
        let history = end_of_last_reply(prompt);
        let fresh = session.segments.is_empty();
        let matched = compare(&session.segments, prompt);
        let read_before = match matched.relation {
            Relation::Exact => ids.len(),
            Relation::Extend => history.max(matched.n_tokens),
            Relation::Diverge => matched.n_tokens,
        };
        let divergence = (matched.relation == Relation::Diverge)
            .then(|| divergence(&session.segments, prompt, matched.n_segments));
        stats.reason = divergence.as_ref().map(Divergence::to_string).or(stats.reason);
        // The cached ids stay the authority for what matched; what follows is the prompt's own.
        session.tokens.truncate(matched.n_tokens);
        session.tokens.extend(flatten(&prompt[matched.n_segments..]));
        session.segments.truncate(matched.n_segments);
        session.rewind(matched.n_tokens, &mut self.arena);
        let tail = if request.cold { None } else { self.begin_tail(&session) };
        self.restore(&mut session, matched.n_tokens, &mut stats);
        if !request.cold {
            // A session that goes on reads what nobody has read, but for turns that did not end.
            let anyone = fresh || !self.unfinished.is_empty();
            let end = if anyone { ids.len() } else { read_before };
            let persists = self.persists(request);
            self.append_known_blocks(&mut session, end, persists, &mut stats);
            self.restore_begun_tail(&mut session, tail, &mut stats);
            if fresh {
                self.reuse_prefix(&mut session, prompt);
            }
        }
        // At least one token is fed: its logits choose the first token of the reply.
        let last = session.tokens.len().saturating_sub(1);
        let reused = self.restore(&mut session, last, &mut stats);
        let reused = self.adopt(&mut session, &request.session, reused, &mut stats);
        self.drop_unfinished(&request.session);
        session.forget_stored(session.tokens.len());
        let kind = match matched.relation {
            Relation::Exact => MatchKind::Exact, // even where it goes back to the border of its only block
            _ if reused == 0 => MatchKind::Cold,
            _ if fresh => MatchKind::Prefix,
            Relation::Extend => MatchKind::Extend,
            Relation::Diverge => MatchKind::Diverge,
        };
        let bytes_read = stats.bytes_read + ahead.bytes;
        let source = match (reused, bytes_read) {
            (0, _) => CacheSource::None,
            (_, 0) => CacheSource::Memory,
            _ => CacheSource::Disk,
        };
        let recomputed = read_before.saturating_sub(reused);
        let LoadStats { reason, .. } = stats;
        let (waited_ms, prefetch_ms) = (stats.waited_ms + ahead.waited_ms, ahead.ms);
        let adopted = session.numerics.as_ref().and_then(Numerics::origin);
        let found = Recalled {
            session,
            kind,
            source,
            reused,
            recomputed,
            bytes_read,
            waited_ms,
            prefetch_ms,
            reason,
            divergence,
            adopted,
            aligned,
        };
        Ok(found)
    }

    /// A prompt, cut along with what a session holds, if one of them is raw.
    fn aligned(&self, session: &mut Session, prompt: &[Segment]) -> Option<Vec<Segment>> {
        if session.segments.is_empty() || !is_raw(prompt) && !is_raw(&session.segments) {
            return None;
        }
        let mut aligned = prompt.to_vec();
        let text = |ids: &[u32]| self.tokenizer.as_ref().map_or(String::new(), |known| known.decode(ids));
        align(&mut session.segments, &mut aligned, &text);
        Some(aligned)
    }

    /// The session's own memory from disk, else its parent's, else nothing.
    fn find(&mut self, request: &Request, stats: &mut LoadStats) -> Session {
        if let Some(session) = self.load(&request.session, false, stats) {
            return session;
        }
        let Some(parent) = &request.parent else { return self.fresh(request) };
        self.wait_for(parent, stats);
        if let Some(idle) = self.idle.get_mut(parent) {
            stats.bytes_read += std::mem::take(&mut idle.ahead).bytes;
            return idle.session.fork(&mut self.arena);
        }
        self.load(parent, true, stats).unwrap_or_else(|| self.fresh(request))
    }

    /// A session that has read nothing.
    pub(super) fn fresh(&self, request: &Request) -> Session {
        Session::new(&self.context, &request.session.tenant)
    }

    /// A session as its manifest has it; nothing of its keys and values is read yet.
    pub(super) fn load(
        &mut self,
        key: &SessionKey,
        borrowed: bool,
        stats: &mut LoadStats,
    ) -> Option<Session> {
        let began = Instant::now();
        self.wait_for_commits(key);
        let session = key.clone();
        let found = self.readers.as_ref()?.one(move |store| store.read_manifest(&session));
        stats.waited_ms += ms_since(began);
        let (manifest, journal, broken) = match found {
            Found::Missing => return None,
            Found::Damaged(reason) | Found::Unreadable(reason) => {
                stats.reason = Some(reason);
                return None;
            }
            Found::Whole(found) => found,
        };
        let earlier = |broken: Broken| {
            format!("the manifest is damaged, so the state of an earlier turn is used: {}", broken.reason)
        };
        stats.reason = stats.reason.take().or(broken.map(earlier));
        if let Some(reason) = self.refuses(key, &manifest.owner.identity) {
            stats.reason = Some(reason);
            return None;
        }
        let session = Session::stored_as(manifest, borrowed, &self.context);
        if !borrowed {
            self.journals.insert(key.clone(), journal);
        }
        Some(session)
    }

    /// Appends whole blocks up to token `end`, found by content in memory or on disk, until one is missing.
    /// Windows are left to [`Memory::restore`]. `persists`: the session will be written to disk.
    fn append_known_blocks(
        &mut self,
        session: &mut Session,
        end: usize,
        persists: bool,
        stats: &mut LoadStats,
    ) {
        let first = session.sequence.len() / BLOCK;
        let end_block = end.min(session.tokens.len()) / BLOCK;
        if end_block <= first {
            return;
        }
        let hashes = session.sequence.root().chain(&session.tokens[..end_block * BLOCK]);
        let global = |(index, hash): (usize, BlockHash)| (index, (hash, Part::Global));
        let wanted: Vec<Wanted> = hashes.into_iter().enumerate().skip(first).map(global).collect();
        let windows = self.context.layout.window().is_some();
        let read = self.read_blocks(&wanted, stats);
        let found = wanted
            .iter()
            .zip(&read)
            .take_while(|((_, key), read)| self.arena.holds(*key) || matches!(read, Some(Found::Whole(_))));
        let n = found.count() + 1;
        let on_disk = self.on_disk(wanted.iter().take(n).map(|(_, key)| key.0).collect());
        let has_window = |(_, key): &Wanted, on_disk: &[bool; 2]| {
            self.arena.holds((key.0, Part::Windowed)) || on_disk[Part::Windowed as usize]
        };
        let has_window: Vec<bool> =
            wanted.iter().zip(&on_disk).map(|(wanted, on_disk)| has_window(wanted, on_disk)).collect();
        let whole =
            if windows && !persists { self.whole_windows(session, first, &has_window[..n - 1]) } else { 0 };
        for (((index, key), read), on_disk) in wanted.into_iter().zip(read).zip(on_disk) {
            let hash = key.0;
            let window = if windows { self.arena.find((hash, Part::Windowed)) } else { None };
            let stored = self.context.layout.parts().all(|part| on_disk[part as usize]);
            // What the disk lacks must be kept in memory, or it could never be written.
            if windows && window.is_none() && !on_disk[Part::Windowed as usize] && index - first >= whole {
                break;
            }
            let Some(id) = self.take(key, read, stats) else {
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

    /// The most blocks after the first `first` of a session after which a row finds all that it sees of
    /// windowed layers; `has_window`: of which blocks there that is known.
    fn whole_windows(&self, session: &Session, first: usize, has_window: &[bool]) -> usize {
        let Some(window) = self.context.layout.window() else { return 0 };
        let table = session.sequence.table();
        let has = |block: usize| match block.checked_sub(first) {
            Some(behind) => has_window[behind],
            None => table.holds(block, Part::Windowed) || block < session.stored_blocks,
        };
        let is_whole = |n: &usize| {
            let end = first + n;
            ((end * BLOCK + 1).saturating_sub(window) / BLOCK..end).all(has)
        };
        (1..=has_window.len()).rev().find(is_whole).unwrap_or(0)
    }

    /// Takes in what was read ahead; waits for the rest of a session's pieces.
    pub(super) fn wait_for(&mut self, session: &SessionKey, stats: &mut LoadStats) {
        let began = Instant::now();
        self.collect(Some(session));
        let waited = ms_since(began);
        stats.waited_ms += waited;
        stats.reason = stats.reason.take().or_else(|| self.load_warnings.remove(session));
        if let Some(idle) = self.idle.get_mut(session) {
            // What was waited for was not hidden.
            idle.ahead.ms = (idle.ahead.ms - waited).max(0.0);
        }
    }
}

/// Tokens up to the end of the last reply in a prompt: all of that was read or said in earlier turns.
fn end_of_last_reply(prompt: &[Segment]) -> usize {
    let last = prompt.iter().rposition(|s| s.kind == SegmentKind::Reply);
    last.map_or(0, |last| prompt[..=last].iter().map(|s| s.ids.len()).sum())
}

/// The place where a prompt departs from what was cached, whose first `at` segments it begins with.
fn divergence(cached: &[Segment], prompt: &[Segment], at: usize) -> Divergence {
    let (in_text, in_ids) = match (cached.get(at), prompt.get(at)) {
        (Some(old), Some(new)) if old.kind == new.kind => {
            let differs = old.text != new.text;
            (
                if differs { first_difference(&old.text, &new.text) } else { 0 },
                common_prefix(&old.ids, &new.ids),
            )
        }
        _ => (0, 0),
    };
    let character = in_text + prompt[..at].iter().map(|s| s.text.chars().count()).sum::<usize>();
    // The cached ids stay those of what is in common.
    let token = in_ids + cached[..at].iter().map(|s| s.ids.len()).sum::<usize>();
    let excerpt = |segments: &[Segment]| {
        let text = segments.iter().flat_map(|s| s.text.chars());
        text.skip(character.saturating_sub(Divergence::BEFORE)).take(Divergence::LENGTH).collect()
    };
    Divergence { token, character, held: excerpt(cached), asked: excerpt(prompt) }
}
