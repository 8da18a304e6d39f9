//! Requests on their way to be active turns: from stage to stage as other threads get done, into the budget,
//! and into a pass.

use super::Worker;
use crate::memory::carry::Import;
use crate::memory::opening::Opening;
use crate::memory::session::{Session, known_bytes};
use crate::turns::admission::{LoadingTurn, Prepared, Stage, Waiting};
use crate::turns::draft_model::DraftModel;
use crate::turns::turn::{ActiveTurn, Decode};
use crate::{Error, Event, Request, Result, SessionKey};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc::UnboundedSender;

/// Maximum number of requests that other threads prepare side by side: their prompts take memory.
const PREPARED: usize = 64;

/// What holds memory for a turn.
pub(super) struct AtWork<'a> {
    pub(super) request: &'a Request,
    pub(super) session: &'a Session,
    /// Bytes that the session may come to take.
    pub(super) need: u64,
    /// Bytes that it takes beside blocks and rows.
    pub(super) bytes: u64,
}

/// What becomes of a request for now.
enum Next {
    /// It waits for another thread.
    Waits,
    /// There is no room for it: later requests must not overtake it.
    IsFull,
    /// It has its room.
    Begins(Box<Opening>, Box<Prepared>),
}

impl Worker {
    /// Adds a request to those that wait.
    pub(super) fn wait_for_room(
        &mut self,
        id: u64,
        request: Request,
        events: UnboundedSender<Event>,
        import: Option<Box<Import>>,
    ) {
        let (request, began, stage) = (Arc::new(request), Instant::now(), Stage::Queued);
        self.waiting.push_back(Waiting { id, request, events, import, began, stage });
    }

    /// Continues with what other threads have got done: forks and errands, turns whose sessions are read,
    /// then waiting requests whose session is free, in order, as long as there is room for them.
    pub(super) fn admit(&mut self) {
        self.memory.take_forks();
        self.go_on_errands();
        for turn in std::mem::take(&mut self.loading) {
            self.load(turn);
        }
        if self.removals.is_empty() {
            self.admit_waiting();
        }
        self.held_up = self.active.is_empty();
        self.memory.look_ahead(self.active.len());
    }

    fn admit_waiting(&mut self) {
        let (mut is_full, mut n_prepared) = (self.embedding.is_next(), 0);
        for mut waiting in std::mem::take(&mut self.waiting) {
            let session = &waiting.request.session;
            if waiting.events.is_closed() {
                if !matches!(waiting.stage, Stage::Queued) {
                    self.memory.expect_no_more(session);
                }
                continue;
            }
            let waits = is_full
                || self.is_taken(session)
                || waiting.request.parent.as_ref().is_some_and(|parent| self.is_exporting(parent))
                || self.waiting.iter().any(|before| before.request.session == *session)
                || matches!(waiting.stage, Stage::Queued) && n_prepared >= PREPARED;
            if waits {
                self.waiting.push_back(waiting);
                continue;
            }
            match self.go_on(&mut waiting) {
                Ok(Next::Begins(opening, prepared)) => self.begin(waiting, *opening, *prepared),
                Ok(next) => {
                    is_full |= matches!(next, Next::IsFull);
                    n_prepared += 1;
                    self.waiting.push_back(waiting);
                }
                Err(e) => {
                    self.memory.expect_no_more(&waiting.request.session);
                    let _ = waiting.events.send(Event::Failed(e));
                }
            }
        }
    }

    /// Takes a request through its stages, as far as other threads are.
    ///
    /// # Errors
    /// It can't be served by a model with this context, or another process adds to its run.
    fn go_on(&mut self, waiting: &mut Waiting) -> Result<Next> {
        self.memory.expect(&waiting.request.session);
        loop {
            waiting.stage = match std::mem::replace(&mut waiting.stage, Stage::Queued) {
                Stage::Queued => {
                    waiting.began = Instant::now();
                    Stage::Opening(Opening::default())
                }
                Stage::Opening(mut opening) => {
                    if !self.memory.poll_opening(&waiting.request, &mut opening)? {
                        waiting.stage = Stage::Opening(opening);
                        return Ok(Next::Waits);
                    }
                    match waiting.import.take() {
                        Some(import) => {
                            let prepared = self.prepare_import(*import, &opening)?;
                            Stage::Ready(opening, Box::new(prepared))
                        }
                        None => {
                            let known = self.memory.known(&waiting.request).to_vec();
                            Stage::Encoding(opening, self.encoder.begin(&waiting.request, known))
                        }
                    }
                }
                Stage::Encoding(opening, encoding) => match encoding.poll() {
                    Some((prepared, _)) => Stage::Ready(opening, Box::new(prepared?)),
                    None => {
                        waiting.stage = Stage::Encoding(opening, encoding);
                        return Ok(Next::Waits);
                    }
                },
                Stage::Ready(mut opening, prepared) => {
                    // Its parent may have gone to work since, or left memory.
                    let is_open = self.memory.poll_opening(&waiting.request, &mut opening)?;
                    let is_full = is_open && !self.fits(prepared.need);
                    let is_beside = !self.active.is_empty();
                    if is_open && !is_full && !self.memory.awaits(&waiting.request, &mut opening, is_beside) {
                        return Ok(Next::Begins(Box::new(opening), prepared));
                    }
                    waiting.stage = Stage::Ready(opening, prepared);
                    return Ok(if is_full { Next::IsFull } else { Next::Waits });
                }
            };
        }
    }

    /// What is known of a session has changed: requests that wait for it, or begin with it, look again.
    pub(super) fn reopen(&mut self, session: &SessionKey) {
        let waiting = self.waiting.iter_mut().filter(|Waiting { request, .. }| {
            request.session == *session || request.parent.as_ref() == Some(session)
        });
        for Waiting { stage, .. } in waiting {
            let stays = match stage {
                Stage::Queued => true,
                Stage::Ready(_, prepared) => matches!(prepared.decode, Decode::Read), // it has its memory
                Stage::Opening(_) | Stage::Encoding(..) => false,
            };
            if !stays {
                *stage = Stage::Opening(Opening::default());
            }
        }
    }

    /// A turn has its room: its session is made ready, or given a memory from outside.
    fn begin(&mut self, waiting: Waiting, opening: Opening, mut prepared: Prepared) {
        let Waiting { id, request, events, began, .. } = waiting;
        if let Some(memory) = prepared.memory.take() {
            let recalled = self.memory.install(&request, &prepared.prompt, memory);
            let Prepared { prompt, decode, need, .. } = prepared;
            let request = Arc::unwrap_or_clone(request);
            self.active.push(ActiveTurn::new(id, request, prompt, decode, recalled, events, began, need));
            return self.enforce_budget();
        }
        let is_beside = !self.active.is_empty();
        let loading = self.memory.begin_recall(&request, &prepared.prompt, opening, is_beside);
        self.load(LoadingTurn { id, request, events, began, prepared, loading });
        self.enforce_budget();
    }

    /// Continues to make a turn's session ready; then the turn is active.
    fn load(&mut self, mut turn: LoadingTurn) {
        if turn.events.is_closed() {
            self.memory.give_up(turn.loading, turn.request.next_use);
            return self.enforce_budget();
        }
        if !self.memory.poll_recall(&mut turn.loading) {
            return self.loading.push(turn);
        }
        let LoadingTurn { id, request, events, began, prepared, loading } = turn;
        let Prepared { prompt, decode, limits, need, .. } = prepared;
        let mut recalled = self.memory.finish_recall(loading);
        let prompt = recalled.aligned.take().unwrap_or(prompt);
        tracing::debug!("`{}`: {} tokens recalled", request.session.agent, recalled.reused);
        let request = limits.of(Arc::unwrap_or_clone(request));
        self.active.push(ActiveTurn::new(id, request, prompt, decode, recalled, events, began, need));
        self.enforce_budget();
    }

    /// What active turns hold: those that are read, those that are computed, those that are written.
    pub(super) fn at_work(&self) -> impl Iterator<Item = AtWork<'_>> {
        let loading = self.loading.iter().map(|turn| {
            let (session, need) = (&turn.loading.session, turn.prepared.need);
            let bytes = known_bytes(&turn.prepared.prompt, session.tokens.len());
            AtWork { request: &turn.request, session, need, bytes }
        });
        let saving = self.saving.iter().map(|saving| &saving.turn);
        loading.chain(self.active.iter().chain(saving).map(|turn| {
            let (session, need, bytes) = (&turn.session, turn.need, turn.bytes());
            AtWork { request: &turn.request, session, need, bytes }
        }))
    }

    pub(super) fn is_at_work(&self, session: &SessionKey) -> bool {
        self.at_work().any(|turn| turn.request.session == *session)
    }

    /// True if a session can't begin a turn now.
    fn is_taken(&self, session: &SessionKey) -> bool {
        self.is_at_work(session) || self.memory.is_forking(session) || self.has_errand(session)
    }

    /// True if so many bytes fit beside all that is active, or nothing is.
    pub(super) fn fits(&self, need: u64) -> bool {
        let reserved = self.reserved().saturating_add(need);
        let is_alone = self.at_work().next().is_none() && self.embedding.need == 0;
        match &self.memory.share {
            Some(share) => share.may_begin(reserved, is_alone),
            None => is_alone || reserved <= self.memory.budget(),
        }
    }

    /// Bytes that what is active may come to take.
    pub(super) fn reserved(&self) -> u64 {
        let drafts = self.draft_model.as_ref().map_or(0, DraftModel::budget);
        self.at_work()
            .map(|turn| turn.need)
            .fold(self.embedding.need.saturating_add(drafts), u64::saturating_add)
    }

    fn prepare_import(&mut self, import: Import, opening: &Opening) -> Result<Prepared> {
        let Import { session, segments, memory, replace } = import;
        if self.memory.has(&session, opening) && !replace {
            let SessionKey { run, agent, .. } = &session;
            return Err(Error::request(format!(
                "agent `{agent}` of run `{run}` already has a memory; choose another name, or ask to replace it"
            )));
        }
        let (layout, context) = (&self.memory.context.layout, self.device.spec().context_length);
        Prepared::to_read(segments, memory, layout, context)
    }
}
