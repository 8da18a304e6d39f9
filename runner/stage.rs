//! Plays a plan: ready turns go out to the backend, replies come in, timelines grow, the record is written.
//!
//! Turns run together where the plan allows it; the record is written in plan order all the same, and a
//! memory is saved only after its turn's line is on disk.
//!
//! A `Memory` successor starts after its predecessor's transcript line is written; a `Hears` successor as soon as the reply is
//! in.

use crate::backend::{Backend, Options, Progress, Reply, Request, Sampling, Session, Stop, Usage};
use crate::outcome;
use crate::prompt::{Conversation, Heard, Memories};
use crate::scenario::results::Outcome;
use crate::scenario::{Edge, Lifecycle, Overflow, Plan, Scenario, Strategy, TimelineId, Turn, TurnId};
use crate::trace::{Trace, TurnTrace};
use crate::transcript::{ChoiceRecord, Footer, Odds, Recorder, TurnRecord, choice_record, summary_of};
use anyhow::bail;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// How turns are to be answered.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Most tokens of a reply.
    pub max_tokens: usize,
    /// Compute everything anew at each turn.
    pub cold: bool,
    /// The run that each agent (by key) brings its memory from.
    pub parents: BTreeMap<String, Session>,
}

/// What there is to see while a plan is played.
#[derive(Debug)]
pub enum Scene<'a> {
    /// A turn's prompt was sent.
    Started(&'a Turn),
    /// Something streams out of it.
    Progress(&'a Progress),
    /// It is on record.
    Written {
        /// The turn.
        turn: &'a Turn,
        /// What others heard.
        spoken: &'a str,
        /// Why the reply ended.
        stop: Stop,
        /// What it was a choice of.
        choice: Option<&'a ChoiceRecord>,
        /// How likely its options were; `None`: no model was asked.
        odds: Option<&'a Odds>,
        /// What it cost; `None`: it was replayed.
        usage: Option<&'a Usage>,
    },
    /// It does not take place.
    Skipped,
}

/// Watches a plan being played. A turn that does not take place is [`Scene::Skipped`], in plan order too.
pub trait Watch {
    /// Something happened to a turn. Turns that run together mix; `Written` comes in plan order.
    fn see(&mut self, id: TurnId, scene: Scene<'_>);
}

/// Watches nothing.
pub struct Unwatched;

impl Watch for Unwatched {
    fn see(&mut self, _id: TurnId, _scene: Scene<'_>) {}
}

/// How a performance ended.
#[derive(Debug, PartialEq)]
pub enum End {
    /// All turns were played; what they came to.
    Complete(Box<Footer>),
    /// It was stopped; what is on record stands.
    Stopped,
}

/// A plan being played.
pub struct Stage {
    memories: Memories,
    plan: Arc<Plan>,
    scenario: Arc<Scenario>,
    backend: Arc<dyn Backend>,
    settings: Settings,
    recorder: Recorder,
    /// How the turns were computed.
    pub trace: Trace,
    /// How many turns each turn still waits for.
    waits_for: Vec<usize>,
    state: Vec<State>,
    /// Summaries of full memories, until their turns are written.
    summaries: BTreeMap<TurnId, Answer>,
    /// First turn that is not on record.
    next: usize,
    /// First turn that failed: nothing after it is started.
    failed: Option<usize>,
}

enum State {
    Waiting,
    /// The speaker's memory is full; it is writing its summary.
    Summarizing(Conversation),
    Running(Conversation),
    Answered(Box<Answer>),
    Failed(anyhow::Error),
    Skipped,
    Written,
}

struct Answer {
    delta: String,
    heard: Heard,
    reply: Reply,
}

type Running = JoinSet<(TurnId, anyhow::Result<Reply>)>;

/// What a turn needs to begin.
struct Scope<'a> {
    running: Running,
    sender: mpsc::UnboundedSender<(TurnId, Progress)>,
    watch: &'a mut dyn Watch,
    /// Turns whose edges are fulfilled, in plan order, so that equal runs send equal sequences of requests.
    ready: BTreeSet<TurnId>,
}

impl Stage {
    /// Sets the stage.
    pub fn new(
        memories: Memories,
        backend: Arc<dyn Backend>,
        settings: Settings,
        recorder: Recorder,
        trace: Trace,
    ) -> Self {
        let (plan, scenario) = (memories.plan().clone(), memories.scenario().clone());
        Self {
            waits_for: plan.order().map(|(id, _)| plan.needs(id).count()).collect(),
            state: plan.order().map(|_| State::Waiting).collect(),
            summaries: BTreeMap::new(),
            next: 0,
            failed: None,
            memories,
            plan,
            scenario,
            backend,
            settings,
            recorder,
            trace,
        }
    }

    /// Plays to the end, or until `stop` is ready.
    ///
    /// # Errors
    /// The first turn, in plan order, that failed. What is on record stands and can be resumed.
    pub async fn play(
        &mut self,
        watch: &mut dyn Watch,
        stop: impl Future<Output = ()>,
    ) -> anyhow::Result<End> {
        let (sender, mut progress) = mpsc::unbounded_channel();
        let ready = (0..self.plan.n_turns()).filter(|id| self.waits_for[*id] == 0).map(TurnId).collect();
        let mut scope = Scope { running: Running::new(), sender, watch, ready };
        tokio::pin!(stop);
        self.expect_all();
        loop {
            while let Some(id) = self.may_begin(&scope.ready) {
                scope.ready.remove(&id);
                self.begin(id, &mut scope);
            }
            self.write_what_is_due(&mut scope).await?;
            if self.next == self.plan.n_turns() {
                break;
            }
            if self.may_begin(&scope.ready).is_some() {
                continue;
            }
            if scope.running.is_empty() {
                bail!("{}: nothing it waits for is running", self.plan.turn(TurnId(self.next)).path);
            }
            tokio::select! {
                biased;
                () = &mut stop => {
                    scope.running.shutdown().await;
                    return Ok(End::Stopped);
                }
                Some((id, piece)) = progress.recv() => scope.watch.see(id, Scene::Progress(&piece)),
                Some(joined) = scope.running.join_next() => {
                    let (id, reply) = joined.map_err(|error| anyhow::anyhow!("a turn broke off: {error}"))?;
                    while let Ok((id, piece)) = progress.try_recv() {
                        scope.watch.see(id, Scene::Progress(&piece));
                    }
                    self.answered(id, reply, &mut scope);
                }
            }
        }
        let footer = outcome::footer(&self.memories);
        self.recorder.footer(footer.clone())?;
        Ok(End::Complete(Box::new(footer)))
    }

    /// Tells the backend who will speak first when, for memories that lie on disk from earlier.
    fn expect_all(&self) {
        let mut told = BTreeSet::new();
        for (id, turn) in self.plan.order().skip(self.next) {
            let agent = self.scenario.agent(turn.speaker);
            let keeps = agent.lifecycle == Lifecycle::Permanent && agent.strategy.is_none();
            if keeps && told.insert(turn.speaker) {
                let (own, parent) = (self.session(turn.timeline), self.settings.parents.get(&agent.key));
                let memories = parent.into_iter().chain([&own]);
                memories.for_each(|memory| self.backend.expect(memory, id.0 as u64));
            }
        }
    }

    /// The turns on record.
    pub fn written(&self) -> impl Iterator<Item = &Turn> {
        let before = self.plan.order().take(self.next);
        before.filter(|(id, _)| *self.memories.outcome(*id) != Outcome::Skipped).map(|(_, turn)| turn)
    }

    fn session(&self, timeline: TimelineId) -> Session {
        let key = &self.scenario.agent(timeline.agent).key;
        let agent = match timeline.phase {
            Some(phase) => format!("{key}/{}", self.scenario.phase(phase).name),
            None => key.clone(),
        };
        Session { run: self.trace.run.clone(), agent }
    }

    /// The first of these turns that may begin now. A human is asked once all that stands before has been shown.
    fn may_begin(&self, ready: &BTreeSet<TurnId>) -> Option<TurnId> {
        let strategy = |id: TurnId| &self.scenario.agent(self.plan.turn(id).speaker).strategy;
        ready.iter().copied().find(|id| id.0 == self.next || !matches!(strategy(*id), Some(Strategy::Human)))
    }

    /// A turn whose edges are fulfilled begins, or is skipped.
    fn begin(&mut self, id: TurnId, scope: &mut Scope<'_>) {
        if self.failed.is_some_and(|failed| failed < id.0) {
            return;
        }
        match self.memories.takes_place(id) {
            Ok(true) => {}
            Ok(false) => {
                self.memories.skip(id);
                self.state[id.0] = State::Skipped;
                return self.release(id, &[Edge::Hears, Edge::Decides], scope);
            }
            Err(error) => return self.fail(id, error.into()),
        }
        if let Err(error) =
            self.sum_up(id, scope).and_then(|full| if full { Ok(()) } else { self.start(id, scope) })
        {
            self.fail(id, error);
        }
    }

    /// Asks for a summary if the speaker's memory is full and that is how it meets this.
    fn sum_up(&mut self, id: TurnId, scope: &mut Scope<'_>) -> anyhow::Result<bool> {
        let plan = self.plan.clone();
        let turn = plan.turn(id);
        if self.scenario.agent(turn.speaker).on_overflow != Overflow::Summarize {
            return Ok(false);
        }
        let preview = self.memories.preview(id)?;
        if !self.backend.overflows(&self.request(id, turn.path.clone(), preview.conversation))? {
            return Ok(false);
        }
        let prompt = self.memories.summary_prompt(id)?;
        self.state[id.0] = State::Summarizing(prompt.conversation.clone());
        let request = self.request(id, summary_of(&turn.path), prompt.conversation);
        self.send(id, Request { choice: None, ..request }, scope);
        Ok(true)
    }

    fn start(&mut self, id: TurnId, scope: &mut Scope<'_>) -> anyhow::Result<()> {
        let plan = self.plan.clone();
        let prompt = self.memories.prompt(id)?;
        self.state[id.0] = State::Running(prompt.conversation.clone());
        scope.watch.see(id, Scene::Started(plan.turn(id)));
        let request = self.request(id, plan.turn(id).path.clone(), prompt.conversation);
        self.send(id, request, scope);
        Ok(())
    }

    fn request(&self, id: TurnId, path: String, conversation: Conversation) -> Request {
        let turn = self.plan.turn(id);
        let agent = self.scenario.agent(turn.speaker);
        // What has been chosen so far is for strategies: a model has read it.
        let is_strategy = agent.strategy.is_some();
        let options = |(choice, open)| Options {
            choice,
            open,
            others: if is_strategy { self.memories.known_choices(id) } else { Vec::new() },
            n_before: if is_strategy { self.memories.n_choices_before(id) } else { 0 },
        };
        Request {
            index: id.0,
            session: self.session(turn.timeline),
            parent: self.settings.parents.get(&agent.key).filter(|_| turn.timeline.phase.is_none()).cloned(),
            permanent: agent.lifecycle == Lifecycle::Permanent,
            conversation,
            sampling: self.settings.sampling.clone(),
            seed: self.memories.seed(id, &path),
            max_tokens: self.settings.max_tokens,
            stop: self.memories.stop_strings(id),
            choice: self.memories.options(id).map(options),
            follow: None,
            strategy: agent.strategy.clone(),
            next_use: self.plan.next_use[id.0].map(|next| next.0 as u64),
            cold: self.settings.cold,
            path,
        }
    }

    fn send(&self, id: TurnId, request: Request, scope: &mut Scope<'_>) {
        let (backend, sender) = (self.backend.clone(), scope.sender.clone());
        let is_summary = matches!(self.state[id.0], State::Summarizing(_));
        // The receiver lives as long as the play; a piece that comes after its end is of no use to anybody.
        let sink = Box::new(move |piece| match piece {
            Progress::Text(_) if is_summary => {}
            piece => drop(sender.send((id, piece))),
        });
        scope.running.spawn(async move { (id, backend.reply(request, sink).await) });
    }

    fn fail(&mut self, id: TurnId, error: anyhow::Error) {
        self.failed = Some(self.failed.map_or(id.0, |failed| failed.min(id.0)));
        self.state[id.0] = State::Failed(error);
    }

    fn answered(&mut self, id: TurnId, reply: anyhow::Result<Reply>, scope: &mut Scope<'_>) {
        let reply = match reply {
            Ok(reply) => reply,
            Err(error) => return self.fail(id, error),
        };
        match std::mem::replace(&mut self.state[id.0], State::Waiting) {
            State::Summarizing(conversation) => {
                let spoken = self.memories.begin_epoch(id, &reply.text);
                let heard = Heard { spoken, choice: None };
                self.summaries.insert(id, Answer { delta: conversation.next, heard, reply });
                if let Err(error) = self.start(id, scope) {
                    self.fail(id, error);
                }
            }
            State::Running(conversation) => {
                let delta = conversation.next.clone();
                let heard = self.memories.say(id, conversation, &reply.ids, &reply.text);
                self.state[id.0] = State::Answered(Box::new(Answer { delta, heard, reply }));
                self.release(id, &[Edge::Hears, Edge::Decides], scope);
            }
            _ => self.fail(id, anyhow::anyhow!("{}: answered twice", self.plan.turn(id).path)),
        }
    }

    /// One thing less to wait for, for those that an edge of these kinds leads to.
    fn release(&mut self, id: TurnId, kinds: &[Edge], scope: &mut Scope<'_>) {
        for (next, edge) in self.plan.clone().feeds(id) {
            if kinds.contains(&edge) {
                self.waits_for[next.0] -= 1;
                if self.waits_for[next.0] == 0 {
                    scope.ready.insert(next);
                }
            }
        }
    }

    /// Writes the answered turns whose line is next, saves their memories, and lets their speakers go on.
    async fn write_what_is_due(&mut self, scope: &mut Scope<'_>) -> anyhow::Result<()> {
        while let Some(state) = self.state.get_mut(self.next) {
            let id = TurnId(self.next);
            match std::mem::replace(state, State::Written) {
                State::Answered(answer) => self.write(id, *answer, scope.watch).await?,
                State::Skipped => scope.watch.see(id, Scene::Skipped),
                State::Failed(error) => return Err(error),
                unfinished => {
                    *state = unfinished;
                    return Ok(());
                }
            }
            self.next += 1;
            self.leave(id);
            self.release(id, &[Edge::Memory], scope);
        }
        Ok(())
    }

    async fn write(&mut self, id: TurnId, answer: Answer, watch: &mut dyn Watch) -> anyhow::Result<()> {
        let plan = self.plan.clone();
        let turn = plan.turn(id);
        if let Some(summary) = self.summaries.remove(&id) {
            // Its memory is replaced by that of the turn which follows, so it is not saved.
            let path = summary_of(&turn.path);
            if self.record(id, path.clone(), &summary, None)? {
                let agent = &self.scenario.agent(turn.speaker).key;
                self.trace.turn(TurnTrace::new(&path, agent, summary.reply.usage.as_ref()))?;
            }
        }
        let constraint = self
            .memories
            .options(id)
            .map(|(choice, open)| choice_record(&choice, &open, answer.heard.choice, &answer.reply.logprobs));
        let is_new = self.record(id, turn.path.clone(), &answer, constraint.clone())?;
        let usage = match answer.reply.commit {
            Some(commit) => Some(commit.commit().await?),
            None => answer.reply.usage,
        };
        let agent = &self.scenario.agent(turn.speaker).key;
        if is_new {
            self.trace.turn(TurnTrace::new(&turn.path, agent, usage.as_ref()))?;
        }
        let (spoken, stop, choice) = (answer.heard.spoken.as_str(), answer.reply.stop, constraint.as_ref());
        let odds = choice.and_then(|choice| choice.odds(self.settings.sampling.temperature));
        watch.see(
            id,
            Scene::Written { turn, spoken, stop, choice, odds: odds.as_ref(), usage: usage.as_ref() },
        );
        Ok(())
    }

    fn record(
        &mut self,
        id: TurnId,
        path: String,
        answer: &Answer,
        constraint: Option<ChoiceRecord>,
    ) -> anyhow::Result<bool> {
        self.recorder.turn(TurnRecord {
            agent: self.scenario.agent(self.plan.turn(id).speaker).key.clone(),
            delta: answer.delta.clone(),
            tokens: answer.reply.ids.clone(),
            raw: answer.reply.text.clone(),
            spoken: answer.heard.spoken.clone(),
            stop: answer.reply.stop.word().to_string(),
            constraint,
            seed: self.memories.seed(id, &path),
            path,
        })
    }

    /// An ephemeral agent forgets after its last turn of the phase, played or not.
    fn leave(&mut self, id: TurnId) {
        let plan = self.plan.clone();
        let turn = plan.turn(id);
        if turn.timeline.phase.is_some() && plan.next_use[id.0].is_none() {
            self.memories.forget(turn.timeline);
            self.backend.forget(&self.session(turn.timeline));
        }
    }
}
