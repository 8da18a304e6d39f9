//! The engine's thread: takes requests, plans passes, runs them, samples, emits, has them saved.
//!
//! It computes, and waits for nothing else. A turn that is not active is at a stage
//! ([`admission`](super::admission); in the end [`ending`]), and what takes its time there is done on other
//! threads: its run's lock, its session's manifest, its prompt's tokens, its grammar, its blocks, its writes.
//! They wake this thread, which continues with it between two passes. So a turn's last event says what was
//! written, and the others decode meanwhile.
//!
//! A pass that fails is taken again turn by turn: the turn that is to blame fails alone, and row invariance
//! makes it the same bits. A fault of the engine itself (a panic on its thread) is sent to all turns, as
//! `ErrorKind::Internal`.

mod admitting;
pub(crate) mod carry;
mod embedding;
mod ending;
mod errands;
mod status;

use crate::device::Device;
use crate::memory::Memory;
use crate::memory::carry::Import;
use crate::memory::pass::{Span, SpanLogits, Wanted, forward_best, most_wanted};
use crate::scoring::compare::Comparison;
use crate::scoring::embedding::EmbeddingSender;
use crate::scoring::job::{Comparing, Figures, Job, Ranker, Scoring};
use crate::scoring::scratch::ScratchSequence;
use crate::store::Removed;
use crate::store::memory_file::SessionExport;
use crate::text::chat::Chat;
use crate::text::tokenizer::Tokenizer;
use crate::turns::admission::{Encoder, LoadingTurn, Waiting};
use crate::turns::draft_model::{DraftModel, Terms};
use crate::turns::schedule::{Guessing, Load, Pace, plan};
use crate::turns::turn::ActiveTurn;
use crate::{
    Completion, EngineStatus, Error, ErrorKind, Event, KvChoice, Meter, Ranking, Request, Result, SessionKey,
    TokenScore,
};
use embedding::Embedding;
use ending::{Committing, Finished, Saving};
use errands::Errand;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

/// A command to the engine's thread.
pub(crate) enum Command {
    Turn {
        id: u64,
        request: Box<Request>,
        events: UnboundedSender<Event>,
    },
    /// Write the manifest of a finished turn.
    Commit {
        id: u64,
        answer: oneshot::Sender<Result<Box<Completion>>>,
    },
    /// A finished turn's manifest will not be written.
    Abandon {
        id: u64,
    },
    Fork {
        from: SessionKey,
        to: SessionKey,
        /// True if what is stored of `to` may be replaced.
        replace: bool,
    },
    HintNextUse {
        session: SessionKey,
        next_use: u64,
    },
    Forget {
        session: SessionKey,
    },
    /// All of a session is asked for.
    Export {
        session: SessionKey,
        answer: oneshot::Sender<Result<SessionExport>>,
    },
    /// A session is taken in from outside.
    Import {
        id: u64,
        import: Box<Import>,
        events: UnboundedSender<Event>,
    },
    /// Delete a session.
    Remove {
        session: SessionKey,
        /// True if nobody asked for just this session to go: then one whose last turn waits for its commit
        /// stays.
        to_make_room: bool,
        answer: oneshot::Sender<Result<Removed>>,
    },
    /// Drop its rollback rows: those that a session keeps only to go back.
    DropRows {
        session: SessionKey,
        answer: oneshot::Sender<Result<Removed>>,
    },
    Status {
        answer: oneshot::Sender<EngineStatus>,
    },
    /// How likely are options, as ids, as the reply to a prompt?
    Rank {
        prompt: Vec<u32>,
        /// Where states of recurrent layers are sealed in it besides the ends of blocks.
        borders: Vec<usize>,
        options: Vec<Vec<u32>>,
        kv: Option<KvChoice>,
        answer: Sender<Result<Ranking>>,
    },
    /// Texts, as ids, are embedded.
    Embed {
        texts: Vec<Vec<u32>>,
        meter: Option<Meter>,
        answer: EmbeddingSender,
    },
    Score {
        ids: Vec<u32>,
        /// Other formats than the engine's.
        kv: Option<KvChoice>,
        scores: Sender<Result<TokenScore>>,
    },
    Compare {
        ids: Vec<u32>,
        formats: Vec<KvChoice>,
        figures: Figures,
    },
    /// Something was done on another thread.
    Woken,
    /// Engines that share the budget have less to take, or need some.
    Shared,
    /// All `Engine` handles are dropped; turns may still hold senders.
    Close,
}

/// Everything that lives on the thread.
pub(crate) struct Worker {
    waiting: VecDeque<Waiting>,
    loading: Vec<LoadingTurn>,
    /// What is to be done with sessions at rest, in order.
    errands: VecDeque<Errand>,
    /// Its threads and those of the memory end once nobody waits for them: they stand after those that do.
    encoder: Encoder,
    pub(crate) memory: Memory,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) chat: Arc<Chat>,
    pace: Pace,
    active: Vec<ActiveTurn>,
    /// Turns whose sessions are being written, in the order in which they ended.
    saving: Vec<Saving>,
    /// Finished turns, in the order in which they ended.
    finished: Vec<Finished>,
    /// Those whose manifests are being written, in order.
    committing: VecDeque<Committing>,
    /// Scoring jobs; they run a pass at a time, between passes over turns.
    jobs: VecDeque<Box<dyn Job>>,
    embedding: Embedding,
    /// Callers that wait for the removal of a session or of its rows, in order: until it is over no turn
    /// begins, which could find what is about to go.
    removals: VecDeque<oneshot::Sender<Result<Removed>>>,
    /// True if nothing can be computed before something was done on another thread.
    held_up: bool,
    cursor: usize,
    /// How tokens of replies are guessed; `None`: they are not.
    guessing: Option<Guessing>,
    /// Guesses those that were not said before.
    draft_model: Option<DraftModel>,
}

impl Worker {
    /// A worker with nothing to do.
    pub(crate) fn new(
        device: Arc<dyn Device>,
        tokenizer: Arc<Tokenizer>,
        chat: Arc<Chat>,
        memory: Memory,
        chunk: usize,
        guessing: Option<Guessing>,
        draft_model: Option<DraftModel>,
    ) -> Self {
        let (layout, context) = (memory.context.layout.clone(), device.spec().context_length);
        let encoder = Encoder::new(tokenizer.clone(), chat.clone(), layout, context, memory.wake());
        Self {
            device,
            tokenizer,
            chat,
            memory,
            pace: Pace::new(chunk),
            encoder,
            waiting: VecDeque::new(),
            loading: Vec::new(),
            active: Vec::new(),
            saving: Vec::new(),
            finished: Vec::new(),
            committing: VecDeque::new(),
            jobs: VecDeque::new(),
            embedding: Embedding::default(),
            errands: VecDeque::new(),
            removals: VecDeque::new(),
            held_up: false,
            cursor: 0,
            guessing,
            draft_model,
        }
    }

    /// Serves commands until the engine is closed. A panic ends it too: its message is stored in `fault` and
    /// sent to all unfinished turns.
    pub(crate) fn run(mut self, commands: &Receiver<Command>, fault: &OnceLock<String>) {
        let end =
            match catch_unwind(AssertUnwindSafe(|| {
                self.serve(commands);
                self.finish_writing();
            })) {
                Ok(()) => Error::new(ErrorKind::Closed, "the engine was closed before the turn ended"),
                Err(panic) => {
                    let said = panic.downcast_ref::<String>().map(String::as_str);
                    let said = said.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it gave no reason");
                    Error::internal(fault.get_or_init(|| {
                        format!("the engine failed because of a bug (please report it): {said}")
                    }))
                }
            };
        let saving = self.saving.iter().map(|saving| &saving.turn);
        let turns = self.active.iter().chain(saving).map(|turn| &turn.events);
        let turns = turns.chain(self.loading.iter().map(|loading| &loading.events));
        for events in turns.chain(self.waiting.iter().map(|waiting| &waiting.events)) {
            let _ = events.send(Event::Failed(Error::new(end.kind(), end.to_string())));
        }
    }

    fn serve(&mut self, commands: &Receiver<Command>) {
        loop {
            let next = match commands.try_recv() {
                Err(TryRecvError::Empty) => {
                    // First of all: who begins may ask for what they had read.
                    self.drop_cancelled();
                    self.admit();
                    self.step();
                    self.go_on_embedding();
                    self.step_job();
                    self.report();
                    if !self.held_up || !self.jobs.is_empty() || self.embedding.is_ready() {
                        continue;
                    }
                    commands.recv().ok()
                }
                next => next.ok(),
            };
            match next {
                None | Some(Command::Close) => return,
                Some(command) => self.take(command),
            }
        }
    }

    fn take(&mut self, command: Command) {
        self.embedding.waits = false;
        match command {
            Command::Turn { id, request, events } => {
                self.wait_for_room(id, *request, events, None);
            }
            Command::Commit { id, answer } => self.commit(id, answer),
            Command::Woken => self.take_answers(),
            Command::Shared => self.enforce_budget(),
            Command::Abandon { id } => self.abandon(id),
            Command::Fork { from, to, replace } => self.fork(&from, to, replace),
            // An active session says at its end when it is needed next.
            Command::HintNextUse { session, .. } if self.is_at_work(&session) => {}
            Command::HintNextUse { session, next_use } => self.memory.hint_next_use(&session, next_use),
            Command::Forget { session } => {
                self.reopen(&session);
                self.forget_exported(&session);
                self.draft_model.iter_mut().for_each(|model| model.forget(&session));
                self.memory.forget(&session);
            }
            Command::Export { session, answer } => self.export(session, answer),
            Command::Import { id, import, events } => self.import(id, import, events),
            Command::Remove { session, to_make_room, answer } => {
                self.remove(session, to_make_room, answer);
            }
            Command::DropRows { session, answer } => self.drop_rows(session, answer),
            Command::Status { answer } => drop(answer.send(self.status())),
            Command::Rank { prompt, borders, options, kv, answer } => match self.scratch(kv.as_ref()) {
                Ok(scratch) => {
                    let prompt = (prompt, borders);
                    self.jobs.push_back(Box::new(Ranker::new(scratch, prompt, &options, answer)));
                }
                Err(e) => drop(answer.send(Err(e))),
            },
            Command::Embed { texts, meter, answer } => self.embed(texts, meter, answer),
            Command::Score { ids, kv, scores } => match self.scratch(kv.as_ref()) {
                Ok(scratch) => self.jobs.push_back(Box::new(Scoring { scratch, ids, scores })),
                Err(e) => drop(scores.send(Err(e))),
            },
            Command::Compare { ids, formats, figures } => match self.comparison(ids, &formats) {
                Ok(comparison) => self.jobs.push_back(Box::new(Comparing { comparison, figures })),
                Err(e) => drop(figures.send(Err(e))),
            },
            Command::Close => unreachable!("it ends the thread"),
        }
    }

    /// One pass over all active turns.
    fn step(&mut self) {
        let most_wanted = most_wanted(&*self.device);
        let loads: Vec<Load> = self.active.iter().map(|turn| turn.load(most_wanted)).collect();
        let shared = loads.iter().any(|l| l.decoding);
        let mut feed = plan(&loads, self.cursor, self.pace.chunk(shared));
        self.cursor = self.cursor.wrapping_add(1);
        // What is being written can't leave memory before it is. Prompts that have no room wait for that; a
        // turn that decodes has room of its own.
        let waits = !self.memory.make_room_for(feed.iter().sum()) && self.memory.is_writing();
        if waits {
            feed.iter_mut().zip(&loads).filter(|(_, load)| !load.decoding).for_each(|(feed, _)| *feed = 0);
        }
        let fed: Vec<usize> = (0..feed.len()).filter(|i| feed[*i] > 0).collect();
        if fed.is_empty() {
            self.held_up |= waits && !self.active.iter().any(ActiveTurn::is_done);
            return self.finish_done(); // of one that came from outside all is there
        }
        let share = self.memory.share.clone();
        let baton = share.as_ref().map(|share| share.baton());
        let began = Instant::now();
        let logits: Vec<Result<SpanLogits>> = match self.pass(&fed, &feed, true) {
            Ok(logits) => {
                let rows = loads.iter().zip(&feed).filter(|(l, _)| !l.decoding).map(|(_, n)| n).sum();
                self.pace.learn(rows, began.elapsed());
                if rows == 0 {
                    self.pace.learn_step(fed.len(), feed.iter().sum(), began.elapsed());
                }
                self.memory.token_ms = self.pace.row_ms();
                logits.into_iter().map(Ok).collect()
            }
            Err(e) if fed.len() == 1 => vec![Err(e)],
            // The turn that is to blame fails alone.
            Err(_) => {
                let alone = |i: &usize| self.pass(&[*i], &feed, false).map(|mut logits| logits.remove(0));
                fed.iter().map(alone).collect()
            }
        };
        // Last first: a turn that fails gives its place to the last one.
        for (i, logits) in fed.into_iter().zip(logits).rev() {
            let advanced = logits.and_then(|logits| {
                self.flush(i);
                self.advance(i, logits)
            });
            self.active[i].meter();
            if let Err(e) = advanced {
                self.fail(i, e);
            }
        }
        drop(baton);
        self.finish_done();
        self.enforce_budget();
    }

    /// The next `feed[i]` tokens of each of the turns `fed` (ascending) go through the model; the wanted
    /// logits of each, or `best` the likeliest tokens. (Of these all logits can be had until the next pass.)
    fn pass(&mut self, fed: &[usize], feed: &[usize], best: bool) -> Result<Vec<SpanLogits>> {
        let callers: Vec<_> = fed.iter().map(|i| self.active[*i].events.clone()).collect();
        let is_awaited = Box::new(move || callers.iter().any(|events| !events.is_closed()));
        let turns = self.active.iter_mut().enumerate().filter(|(i, _)| fed.contains(i));
        let spans = turns.map(|(i, turn)| {
            let end = turn.session.sequence.len() + feed[i];
            let logits = match turn.requested_logits(feed[i]) {
                Wanted::Best(_) if !best => Wanted::Last,
                wanted => wanted,
            };
            let certain = turn.certain().min(end);
            Span { sequence: &mut turn.session.sequence, tokens: &turn.session.tokens, end, certain, logits }
        });
        forward_best(spans.collect(), Some(is_awaited), &mut self.memory.arena)
    }

    fn flush(&mut self, i: usize) {
        let turn = &mut self.active[i];
        if turn.is_speculative() {
            return; // no disk needs what may not stay
        }
        self.memory.flush(turn.id, &turn.request, &mut turn.session);
    }

    fn advance(&mut self, i: usize, logits: SpanLogits) -> Result<()> {
        let n_active = self.active.len();
        let turn = &mut self.active[i];
        let prompt_len = turn.prompt_len();
        self.memory.keep_prefix(&turn.request.session, &mut turn.session, prompt_len);
        if !turn.decoding() {
            turn.report_prefill();
            return Ok(());
        }
        let (tokenizer, arena) = (&self.tokenizer, &mut self.memory.arena);
        let eog = [self.chat.eog(), &turn.request.end_ids].concat();
        let eog = &eog[..];
        let logits = match logits {
            SpanLogits::All(logits) => logits,
            SpanLogits::Best(best) if turn.advance_by(&best, tokenizer, eog, arena)? => return Ok(()),
            SpanLogits::Best(best) => self.device.logits(best.row)?,
        };
        turn.advance(logits.chunks_exact(self.device.n_vocab()), tokenizer, eog, arena)?;
        if let Some(guessing) = &self.guessing {
            let most = most_wanted(&*self.device);
            let cost = guessing.row_cost(&self.pace, n_active, self.cursor);
            turn.guess(cost, most, eog);
            if let (Some(model), Some(token_s)) = (&mut self.draft_model, guessing.token_s(&self.pace)) {
                turn.guess_by(model, Terms { row: cost, token_s, most }, eog);
            }
        }
        Ok(())
    }

    /// Bytes of active sessions beside sealed blocks, and of manifests that wait.
    fn bytes_at_work(&self) -> u64 {
        let pending = self.pending().map(|(_, pending)| pending.bytes());
        self.at_work()
            .map(|turn| turn.bytes)
            .chain(pending)
            .chain(self.draft_model.as_ref().map(DraftModel::bytes))
            .fold(self.embedding.need, u64::saturating_add)
    }

    fn enforce_budget(&mut self) {
        let request = self.memory.share.as_ref().map(|share| share.budget().1);
        self.memory.enforce_budget(self.bytes_at_work());
        self.report_answer(request.unwrap_or(0));
    }

    /// Tells the engines that share the budget what this one takes.
    fn report(&self) {
        self.report_answer(0);
    }

    fn report_answer(&self, request: u64) {
        if let Some(share) = &self.memory.share {
            let waits = self.embedding.waits || !self.waiting.is_empty();
            share.report(self.memory.bytes(), self.reserved(), request, waits);
        }
    }

    /// Ends the turns whose callers have gone. That is seen between two passes; a pass for which nobody waits
    /// any more breaks off after one of its layers.
    fn drop_cancelled(&mut self) {
        let (cancelled, active) =
            std::mem::take(&mut self.active).into_iter().partition(ActiveTurn::cancelled);
        self.active = active;
        let cancelled: Vec<ActiveTurn> = cancelled;
        for turn in cancelled {
            self.give_back(turn);
        }
    }

    fn fail(&mut self, i: usize, e: Error) {
        let turn = self.active.swap_remove(i);
        let _ = turn.events.send(Event::Failed(e));
        self.give_back(turn);
    }

    /// A turn that did not end leaves its session as it found it; what it read stays in memory for a while.
    fn give_back(&mut self, turn: ActiveTurn) {
        let prompt_len = turn.prompt_len();
        let ActiveTurn { request, session, .. } = turn;
        self.memory.give_back(request.session, session, prompt_len, request.next_use);
    }

    /// An empty cache, in the engine's formats or others.
    fn scratch(&self, kv: Option<&KvChoice>) -> Result<ScratchSequence> {
        let layout = match kv {
            None => self.memory.context.layout.clone(),
            Some(kv) => Arc::new(self.device.spec().kv_layout(kv)?),
        };
        Ok(ScratchSequence::new(&self.device, layout))
    }

    /// One pass of the job whose turn it is.
    fn step_job(&mut self) {
        let Some(mut job) = self.jobs.pop_front() else { return };
        let share = self.memory.share.clone();
        let _baton = share.as_ref().map(|share| share.baton());
        match job.step() {
            Ok(true) => {}
            Ok(false) => self.jobs.push_back(job),
            Err(e) => job.fail(e),
        }
    }

    fn comparison(&self, ids: Vec<u32>, formats: &[KvChoice]) -> Result<Comparison> {
        let layout = |kv: &KvChoice| Ok(Arc::new(self.device.spec().kv_layout(kv)?));
        let layouts: Vec<_> = formats.iter().map(layout).collect::<Result<_>>()?;
        Ok(Comparison::new(&self.device, &layouts, ids))
    }
}
