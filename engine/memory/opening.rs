//! What a session has read and said, before its next turn's prompt is rendered: its run is claimed, and its
//! manifest read if it is on disk alone; of a new one its parent's.

use super::Memory;
use super::io_pool::ms_since;
use super::loader::BegunManifest;
use super::restore::LoadStats;
use super::session::Session;
use crate::store::Found;
use crate::store::log::Broken;
use crate::store::manifest::{Journal, Manifest};
use crate::text::prefix::Segment;
use crate::{Request, Result, Retention, SessionKey};
use std::task::Poll;
use std::time::Instant;

/// A search for what a session has read and said.
#[derive(Default)]
pub(crate) struct Opening {
    own: Look,
    parents: Look,
    /// Its parent's memory, which is on disk alone.
    pub(super) parent: Option<Session>,
    /// Reason why there is no such memory.
    pub(super) reason: Option<String>,
    /// What the looks took.
    pub(super) stats: LoadStats,
    /// Since when it waits for what is read ahead, while no turn is active.
    since: Option<Instant>,
}

/// A look at a session's manifest.
#[derive(Default)]
enum Look {
    #[default]
    ToCome,
    /// A read for a hint, which may be from before the run was claimed, so another one follows. But a damaged
    /// manifest is found once: it is set aside then.
    Hinted(BegunManifest),
    /// With the fault that the read before it found.
    UnderWay(BegunManifest, Option<String>),
    /// `is_there`: there is one, perhaps none that can be used.
    Over { is_there: bool },
}

impl Memory {
    /// A turn of a session is about to begin: from now on it stays known, and its run claimed.
    pub(crate) fn expect(&mut self, session: &SessionKey) {
        self.claims.expect(session);
    }

    /// The turn that a session was awaited for will not begin.
    pub(crate) fn expect_no_more(&mut self, session: &SessionKey) {
        self.claims.expect_no_more(session);
    }

    /// Continues to find what the session of a request has read and said; true once that is known, or that
    /// there is nothing.
    ///
    /// # Errors
    /// Another process adds to the run's sessions.
    pub(crate) fn poll_opening(&mut self, request: &Request, opening: &mut Opening) -> Result<bool> {
        let key = &request.session;
        if request.retention == Retention::Persistent {
            let Poll::Ready(claimed) = self.claim(key) else { return Ok(false) };
            claimed?;
        }
        if request.cold || self.idle.contains_key(key) {
            return Ok(true);
        }
        let Opening { own, parents, stats, .. } = opening;
        let Poll::Ready(found) = self.poll_look(key, own, false, stats) else { return Ok(false) };
        self.idle.warn(key, stats.reason.take());
        if let Some((session, journal)) = found {
            if let Some(saver) = &mut self.saver {
                saver.know(key, journal);
            }
            self.keep(key.clone(), session, request.next_use);
            self.saved(key);
            return Ok(true);
        }
        let Some(parent) = request.parent.as_ref().filter(|parent| !self.idle.contains_key(parent)) else {
            return Ok(true);
        };
        let Poll::Ready(found) = self.poll_look(parent, parents, true, stats) else { return Ok(false) };
        opening.reason = stats.reason.take().or(opening.reason.take());
        opening.parent = found.map(|(session, _)| session).or(opening.parent.take());
        Ok(true)
    }

    /// Tells whether what is being read ahead of the session of a request, or of its parent, is awaited.
    /// `is_beside`: others are active meanwhile.
    pub(crate) fn awaits(&mut self, request: &Request, opening: &mut Opening, is_beside: bool) -> bool {
        let own = std::iter::once(&request.session).chain(&request.parent);
        if own.fold(false, |awaits, session| awaits | self.is_being_read(session)) {
            opening.since = opening.since.or(Some(Instant::now()).filter(|_| !is_beside));
            return true;
        }
        if let (Some(since), Some(idle)) = (opening.since.take(), self.idle.get_mut(&request.session)) {
            let waited = ms_since(since);
            idle.ahead.waited_ms += waited;
            idle.ahead.ms = (idle.ahead.ms - waited).max(0.0); // what was waited for was not hidden
        }
        false
    }

    /// Tells whether a session that was looked for has a memory, in RAM or on disk, even one that can't be
    /// used.
    pub(crate) fn has(&self, key: &SessionKey, opening: &Opening) -> bool {
        self.idle.contains_key(key) || matches!(opening.own, Look::Over { is_there: true })
    }

    /// What the session of a request has read and said, so that a prompt which begins with it need not be
    /// tokenized again. One that is new may begin as its parent did.
    pub(crate) fn known(&self, request: &Request) -> &[Segment] {
        if request.cold {
            return &[];
        }
        let parent = || self.idle.get(request.parent.as_ref()?);
        let idle = self.idle.get(&request.session).or_else(parent);
        idle.map_or(&[], |idle| &idle.session.segments)
    }

    /// Continues to look at a session's own manifest; ready with the session as it says.
    pub(super) fn poll_own(
        &mut self,
        key: &SessionKey,
        opening: &mut Opening,
        stats: &mut LoadStats,
    ) -> Poll<Option<(Session, Journal)>> {
        self.poll_look(key, &mut opening.own, false, stats)
    }

    /// Continues to look at a manifest; ready with the session as it says, of whose keys and values nothing
    /// is read yet. `borrowed`: to begin another one with.
    fn poll_look(
        &mut self,
        key: &SessionKey,
        look: &mut Look,
        borrowed: bool,
        stats: &mut LoadStats,
    ) -> Poll<Option<(Session, Journal)>> {
        if matches!(look, Look::ToCome) {
            if self.is_committing(key) {
                return Poll::Pending;
            }
            let hinted = self.loader.as_mut().and_then(|loader| loader.take_over(key));
            *look = hinted.map_or_else(|| self.begin_look(key, None), Look::Hinted);
        }
        if let Look::Hinted(begun) = look {
            let Some((found, span)) = begun.poll() else { return Poll::Pending };
            stats.took(span);
            let fault = match found {
                Found::Damaged(fault) => Some(fault),
                _ => None,
            };
            *look = self.begin_look(key, fault);
        }
        let Look::UnderWay(begun, fault) = look else { return Poll::Ready(None) };
        let Some((found, span)) = begun.poll() else { return Poll::Pending };
        let (is_there, fault) = (matches!(found, Found::Whole(_) | Found::Unreadable(_)), fault.take());
        *look = Look::Over { is_there };
        stats.took(span);
        let opened = self.opened(key, found, borrowed, &mut stats.reason);
        stats.reason = stats.reason.take().or(fault);
        Poll::Ready(opened)
    }

    fn begin_look(&self, key: &SessionKey, fault: Option<String>) -> Look {
        let begun = self.begin_manifest(key);
        begun.map_or(Look::Over { is_there: false }, |begun| Look::UnderWay(begun, fault))
    }

    /// Begins to read a session's manifest; `None`: there is no disk.
    pub(super) fn begin_manifest(&self, key: &SessionKey) -> Option<BegunManifest> {
        let key = key.clone();
        Some(self.loader.as_ref()?.pool(false).begin(move |store| store.read_manifest(&key)))
    }

    /// A session as its manifest has it; nothing of its keys and values is read yet.
    pub(super) fn opened(
        &self,
        key: &SessionKey,
        found: Found<(Manifest, Journal, Option<Broken>)>,
        borrowed: bool,
        reason: &mut Option<String>,
    ) -> Option<(Session, Journal)> {
        let (manifest, journal, broken) = match found {
            Found::Missing => return None,
            Found::Damaged(found) | Found::Unreadable(found) => {
                *reason = Some(found);
                return None;
            }
            Found::Whole(found) => found,
        };
        let earlier = |broken: Broken| {
            format!("the manifest is damaged, so the state of an earlier turn is used: {}", broken.reason)
        };
        *reason = reason.take().or(broken.map(earlier));
        if let Some(refused) = self.refuses(key, &manifest.owner.identity) {
            *reason = Some(refused);
            return None;
        }
        Some((Session::stored_as(manifest, borrowed, &self.context), journal))
    }
}
