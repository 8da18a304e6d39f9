//! The engine's thread: takes requests, plans passes, runs them, samples, emits, saves.

use crate::chat::{Chat, reply_ids};
use crate::memory::Memory;
use crate::model::decoder::Wanted;
use crate::model::{Decoder, Span};
use crate::prefix::flatten;
use crate::schedule::{Load, Pace, plan};
use crate::scratch::Scratch;
use crate::session::Pending;
use crate::tokenizer::Tokenizer;
use crate::turn::{ActiveTurn, Saying};
use crate::{
    Completion, Conversation, Error, ErrorKind, Event, KvChoice, RankedOption, Ranking, Request, Result,
    SessionKey, TokenScore, sampler,
};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvError, TryRecvError};
use std::time::Instant;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

/// What the front asks of the thread.
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
    },
    Expect {
        session: SessionKey,
        next_use: u64,
    },
    Forget {
        session: SessionKey,
    },
    Rank {
        conversation: Box<Conversation>,
        options: Vec<String>,
        kv: Option<KvChoice>,
        answer: std::sync::mpsc::Sender<Result<Ranking>>,
    },
    Score {
        ids: Vec<u32>,
        /// Other formats than the engine's.
        kv: Option<KvChoice>,
        scores: std::sync::mpsc::Sender<Result<TokenScore>>,
    },
}

/// A turn that waits for its commit.
struct Finished {
    session: SessionKey,
    pending: Option<Pending>,
    completion: Box<Completion>,
    began: Instant,
}

/// A request that waits for its session or for its first pass.
struct Waiting {
    id: u64,
    request: Box<Request>,
    events: UnboundedSender<Event>,
}

/// Everything that lives on the thread.
pub(crate) struct Worker {
    pub(crate) decoder: Decoder,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) chat: Arc<Chat>,
    pub(crate) memory: Memory,
    pace: Pace,
    waiting: VecDeque<Waiting>,
    active: Vec<ActiveTurn>,
    finished: HashMap<u64, Finished>,
    cursor: usize,
}

impl Worker {
    /// A worker with nothing to do.
    pub(crate) fn new(
        decoder: Decoder,
        tokenizer: Arc<Tokenizer>,
        chat: Arc<Chat>,
        memory: Memory,
        chunk: usize,
    ) -> Self {
        let (waiting, active, finished) = (VecDeque::new(), Vec::new(), HashMap::new());
        let pace = Pace::new(chunk);
        Self { decoder, tokenizer, chat, memory, pace, waiting, active, finished, cursor: 0 }
    }

    /// Serves commands until the front is gone.
    pub(crate) fn run(mut self, commands: &Receiver<Command>) {
        loop {
            let next = match self.active.is_empty() && self.waiting.is_empty() {
                true => commands.recv().map(Some).map_err(|RecvError| ()),
                false => match commands.try_recv() {
                    Ok(command) => Ok(Some(command)),
                    Err(TryRecvError::Empty) => Ok(None),
                    Err(TryRecvError::Disconnected) => Err(()),
                },
            };
            match next {
                Err(()) => return,
                Ok(Some(command)) => self.take(command),
                Ok(None) => {
                    self.admit();
                    self.step();
                }
            }
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Turn { id, request, events } => self.waiting.push_back(Waiting { id, request, events }),
            Command::Commit { id, answer } => {
                let _ = answer.send(self.commit(id));
            }
            Command::Abandon { id } => {
                if let Some(finished) = self.finished.remove(&id) {
                    self.memory.abandon(&finished.session, finished.pending);
                }
                self.enforce_budget();
            }
            Command::Fork { from, to } => self.memory.fork(&from, to),
            Command::Expect { session, next_use } => self.memory.expect(&session, next_use),
            Command::Forget { session } => self.memory.forget(&session),
            Command::Rank { conversation, options, kv, answer } => {
                let _ = answer.send(self.rank(&conversation, &options, kv.as_ref()));
            }
            Command::Score { ids, kv, scores } => {
                if let Err(e) = self.score(&ids, kv.as_ref(), &scores) {
                    let _ = scores.send(Err(e));
                }
            }
        }
    }

    /// Starts every waiting turn whose session is free.
    fn admit(&mut self) {
        for waiting in std::mem::take(&mut self.waiting) {
            let session = &waiting.request.session;
            let busy = self.active.iter().any(|t| t.request.session == *session)
                || self.waiting.iter().any(|w| w.request.session == *session);
            if busy {
                self.waiting.push_back(waiting);
            } else if !waiting.events.is_closed() {
                let events = waiting.events.clone();
                match self.begin(waiting) {
                    Ok(turn) => self.active.push(turn),
                    Err(e) => drop(events.send(Event::Failed(e))),
                }
            }
        }
        self.memory.look_ahead(self.active.len());
    }

    fn begin(&mut self, waiting: Waiting) -> Result<ActiveTurn> {
        let Waiting { id, request, events } = waiting;
        let began = Instant::now();
        let prompt = self.chat.prompt(&request.conversation, &self.tokenizer)?;
        let (n, most) = (flatten(&prompt).len(), self.decoder.spec.context_length);
        if n == 0 {
            return Err(Error::request("the prompt is empty"));
        }
        let saying = Saying::new(&request, &prompt, &self.tokenizer)?;
        let (longest, lower) = saying.longest(&request);
        if n + longest > most {
            return Err(Error::request(format!(
                "agent `{}`: a prompt of {n} tokens and a reply of up to {longest} do not fit in the model's context of {most}; \
                 shorten the scenario, lower {lower} or take a model with a longer context",
                request.session.agent
            )));
        }
        let rendered = began.elapsed();
        let recalled = self.memory.recall(&request, &prompt)?;
        tracing::debug!(
            "`{}`: prompt rendered in {rendered:.1?}, {} of {n} tokens recalled in {:.1?}",
            request.session.agent,
            recalled.reused,
            began.elapsed() - rendered
        );
        Ok(ActiveTurn::new(id, *request, prompt, saying, recalled, events, began))
    }

    /// One pass over all turns at work.
    fn step(&mut self) {
        self.drop_cancelled();
        let most_wanted = self.decoder.most_wanted();
        let loads: Vec<Load> = self.active.iter().map(|turn| turn.load(most_wanted)).collect();
        let shared = loads.iter().any(|l| l.decoding);
        let feed = plan(&loads, self.cursor, self.pace.chunk(shared));
        self.cursor = self.cursor.wrapping_add(1);
        let mut spans = Vec::new();
        let mut fed = Vec::new();
        for (i, (turn, n)) in self.active.iter_mut().zip(&feed).enumerate() {
            if *n > 0 {
                let end = turn.session.sequence.len() + n;
                let logits = turn.wanted(*n);
                spans.push(Span {
                    sequence: &mut turn.session.sequence,
                    tokens: &turn.session.tokens,
                    end,
                    logits,
                });
                fed.push(i);
            }
        }
        if spans.is_empty() {
            return;
        }
        let began = Instant::now();
        match self.decoder.forward(spans, &mut self.memory.arena) {
            Err(e) => self.fail(&fed, &e),
            Ok(logits) => {
                let rows = loads.iter().zip(&feed).filter(|(l, _)| !l.decoding).map(|(_, n)| n).sum();
                self.pace.learn(rows, began.elapsed());
                self.memory.token_ms = self.pace.row_ms();
                // Last first: a turn that fails gives its place to the last one.
                for (i, logits) in fed.into_iter().zip(logits).rev() {
                    self.settle(i);
                    self.advance(i, &logits);
                }
                self.finish_done();
                self.enforce_budget();
            }
        }
    }

    fn settle(&mut self, i: usize) {
        let turn = &mut self.active[i];
        if turn.weighs() {
            return; // no disk needs options that are not chosen
        }
        match self.memory.settle(&turn.request, &mut turn.session) {
            Ok(bytes) => turn.wrote(bytes),
            // What could not be written stays in memory; the turn's end tries again, and says so.
            Err(e) => tracing::debug!("`{}`: {e}", turn.request.session.agent),
        }
    }

    fn advance(&mut self, i: usize, logits: &[f32]) {
        let turn = &mut self.active[i];
        if !turn.decoding() {
            return turn.report_prefill();
        }
        let rows = logits.chunks_exact(self.decoder.n_vocab());
        let advanced = turn.advance(rows, &self.tokenizer, self.chat.eog(), &mut self.memory.arena);
        if let Err(e) = advanced {
            self.fail(&[i], &e);
        }
    }

    /// Turns that end here give their sessions back; what they wrote to disk waits for its manifest.
    fn finish_done(&mut self) {
        let (done, active) = std::mem::take(&mut self.active).into_iter().partition(ActiveTurn::done);
        self.active = active;
        let done: Vec<ActiveTurn> = done;
        for mut turn in done {
            let began = Instant::now();
            let mut completion = Box::new(turn.complete());
            let key = turn.request.session.clone();
            let mut pending = None;
            let mut failed = None;
            if self.memory.persists(&turn.request) {
                match self.memory.save(&key, &mut turn.session) {
                    Ok(Some((ready, bytes))) => {
                        pending = Some(ready);
                        completion.usage.bytes_written += bytes;
                    }
                    Ok(None) => {}
                    Err(e) => failed = Some(e),
                }
            }
            turn.session.sequence.end_turn();
            let _ = self.memory.settle(&turn.request, &mut turn.session);
            completion.usage.total_ms = turn.elapsed_ms();
            completion.usage.saved_ms = completion.usage.reused as f64 * self.memory.token_ms;
            self.memory.keep(key.clone(), turn.session, turn.request.next_use);
            completion.usage.memory_bytes = self.memory.bytes();
            if let Some(e) = failed {
                not_saved(&key.agent, &e, &mut completion);
            }
            let copy = completion.clone();
            self.finished.insert(turn.id, Finished { session: key, pending, completion, began });
            let _ = turn.events.send(Event::Done(copy));
        }
    }

    fn commit(&mut self, id: u64) -> Result<Box<Completion>> {
        let Some(mut finished) = self.finished.remove(&id) else {
            return Err(Error::request("this turn has not ended, or was committed before"));
        };
        if let Some(pending) = &mut finished.pending {
            // An earlier turn of the session that is committed later must not take the manifest back.
            let same = |earlier: &&mut Finished| earlier.session == finished.session;
            let earlier = self.finished.iter_mut().filter(|(other, _)| **other < id).map(|(_, turn)| turn);
            let outdated = earlier.filter(same).filter_map(|earlier| earlier.pending.take());
            pending.obsolete.extend(outdated.flat_map(|outdated| outdated.obsolete));
            match self.memory.commit(pending) {
                Ok(bytes) => finished.completion.usage.bytes_written += bytes,
                Err(e) => not_saved(&finished.session.agent, &e, &mut finished.completion),
            }
            tracing::debug!("`{}` saved after {:?}", finished.session.agent, finished.began.elapsed());
        }
        self.enforce_budget();
        Ok(finished.completion)
    }

    fn enforce_budget(&mut self) {
        let at_work = self.active.iter().map(|turn| turn.session.sequence.row_bytes()).sum();
        self.memory.enforce_budget(at_work);
    }

    fn drop_cancelled(&mut self) {
        let (cancelled, active) =
            std::mem::take(&mut self.active).into_iter().partition(ActiveTurn::cancelled);
        self.active = active;
        let cancelled: Vec<ActiveTurn> = cancelled;
        for turn in cancelled {
            self.give_back(turn);
        }
    }

    fn fail(&mut self, turns: &[usize], e: &Error) {
        for i in turns.iter().rev() {
            let turn = self.active.swap_remove(*i);
            let _ = turn.events.send(Event::Failed(Error::new(e.kind(), e.to_string())));
            self.give_back(turn);
        }
    }

    /// A turn that did not end leaves its session as it found it.
    fn give_back(&mut self, mut turn: ActiveTurn) {
        let n = flatten(&turn.session.segments).len();
        turn.session.tokens.truncate(n);
        turn.session.truncate(n, &mut self.memory.arena);
        turn.session.sequence.end_turn();
        self.memory.keep(turn.request.session.clone(), turn.session, turn.request.next_use);
        self.memory.saved(&turn.request.session);
    }

    /// An empty cache, in the engine's formats or others.
    fn scratch(&self, kv: Option<&KvChoice>) -> Result<Scratch> {
        Ok(Scratch::new(match kv {
            None => self.memory.context.layout.clone(),
            Some(kv) => Arc::new(self.decoder.spec.kv_layout(kv)?),
        }))
    }

    /// Log-probabilities of `ids[1..]`, from an empty cache.
    fn score(
        &self,
        ids: &[u32],
        kv: Option<&KvChoice>,
        scores: &std::sync::mpsc::Sender<Result<TokenScore>>,
    ) -> Result<()> {
        let gone = |_| Error::new(ErrorKind::Closed, "nobody listens to the scores any more");
        self.scratch(kv)?.read(&self.decoder, ids, Wanted::All, &mut |pos, logits| {
            let Some(&id) = ids.get(pos + 1) else { return Ok(()) };
            let (logprob, top) = (sampler::logprob(logits, id), sampler::argmax(logits));
            scores.send(Ok(TokenScore { pos: pos + 1, id, logprob, top })).map_err(gone)
        })
    }

    /// How likely each option is as the reply to a conversation.
    fn rank(
        &self,
        conversation: &Conversation,
        options: &[String],
        kv: Option<&KvChoice>,
    ) -> Result<Ranking> {
        let segments = self.chat.prompt(conversation, &self.tokenizer)?;
        let prompt = flatten(&segments);
        if prompt.is_empty() {
            return Err(Error::request("the prompt is empty"));
        }
        let mut scratch = self.scratch(kv)?;
        let mut first = Vec::new();
        scratch.read(&self.decoder, &prompt, Wanted::Last, &mut |_, logits| {
            first = logits.to_vec();
            Ok(())
        })?;
        let rank = |option: &String| {
            let ids = [&prompt[..], &reply_ids(&segments, option, &self.tokenizer)?].concat();
            let mut ranked = RankedOption { logprob: 0.0, greedy: true };
            let mut see = |pos: usize, logits: &[f32]| {
                if let Some(&id) = ids.get(pos + 1) {
                    ranked.logprob += sampler::logprob(logits, id);
                    ranked.greedy &= sampler::argmax(logits) == id;
                }
                Ok(())
            };
            see(prompt.len() - 1, &first)?;
            scratch.sequence.begin_turn();
            scratch.read(&self.decoder, &ids, Wanted::All, &mut see)?;
            scratch.sequence.truncate(prompt.len(), &mut scratch.arena);
            Ok(ranked)
        };
        let options = options.iter().map(rank).collect::<Result<_>>()?;
        Ok(Ranking { prompt_tokens: prompt.len(), options })
    }
}

/// The turn stands in memory; that it can't be kept on disk is said, not hidden.
fn not_saved(agent: &str, e: &Error, completion: &mut Completion) {
    tracing::warn!("agent `{agent}` could not be saved: {e}");
    completion.usage.reason = Some(format!("not saved: {e}"));
}
