//! Plays a plan: ready turns go out to the backend, replies come in, timelines grow, the record is written.
//!
//! Turns run together where the plan allows it; the record is written in plan order all the same, and a
//! memory is saved only after its turn's line is on disk.
//!
//! A `Memory` successor starts after its predecessor's transcript line is written; a `Hears` successor as
//! soon as the reply is in.

mod again;
mod calls;
mod control;
mod discreet;
mod epochs;
mod known;
mod routes;
mod settings;
mod watch;

pub use again::{asked_again, sampled_again};
pub use control::{AnswerError, Control};
pub use discreet::Discreet;
pub use settings::{ModelHandle, RecordedRetrievals, Settings};
pub use watch::{Scene, Unwatched, Watch};

use crate::backend::{self, Backend, Call, Commit, Progress, Reply, Request, Sampling, Session, Usage};
use crate::lookup::Lookup;
use crate::outcome;
use crate::prompt::{Asked, Directions, Memories, Routing};
use crate::tools;
use crate::tools::cut_call;
use crate::trace::{Trace, TurnTrace};
use crate::transcript::{Footer, InterTurnRecord, Recorder, RouteRecord, TurnRecord};
use crate::walk::{follow, record_reply};
use anyhow::{anyhow, bail};
use greenroom_scenario::results::Outcome;
use greenroom_scenario::{Edge, Lifecycle, PhaseId, Plan, Scenario, Turn, TurnId};
use known::Known;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use watch::{direct, show};

/// How a performance ended.
#[derive(Debug, PartialEq)]
pub enum End {
    /// All turns were played; these are the results.
    Complete(Box<Footer>),
    /// It was stopped; the record is kept.
    Stopped,
}

/// A plan being played.
pub struct Stage {
    memories: Memories,
    plan: Arc<Plan>,
    scenario: Arc<Scenario>,
    backend: Arc<dyn Backend>,
    settings: Settings,
    lookup: Arc<Lookup>,
    /// Turns of phases whose speakers are being picked.
    routing: BTreeMap<PhaseId, Vec<TurnId>>,
    /// Lines of those who were picked, by the turn that each is before.
    routes: BTreeMap<TurnId, RouteRecord>,
    recorder: Recorder,
    /// The record of how the turns were computed.
    pub trace: Trace,
    /// The number of turns that each turn still waits for.
    waits_for: Vec<usize>,
    state: Vec<TurnState>,
    /// First turn that is not on record.
    next: usize,
    /// Changes of the state that are on record, or did not take place.
    n_changes: usize,
    /// First turn that failed: nothing after it is started.
    failed: Option<usize>,
    directions: Directions,
    /// First turn before which nothing has been shown yet of what the stage says.
    undirected: usize,
    /// When it was set.
    began: Instant,
}

enum TurnState {
    Waiting,
    /// A request is running: for a reply, or for the summary of a full memory before it.
    Running(Asked, Vec<TurnAnswer>),
    /// A tool is running, called instead of a reply.
    Calling(Asked, Box<Reply>, Vec<TurnAnswer>),
    /// What its full memory is to keep is being looked up.
    LookingUp,
    /// What its memory started over with, if it did, and the reply.
    Answered(Vec<TurnAnswer>),
    Failed(anyhow::Error),
    Skipped,
    Written,
}

struct TurnAnswer {
    line: TurnRecord,
    usage: Option<Usage>,
    commit: Option<Box<dyn Commit>>,
    at: Instant,
}

type Running = JoinSet<(TurnId, anyhow::Result<TaskResult>)>;

/// What a turn was waiting for.
enum TaskResult {
    Reply(Box<Reply>),
    /// What the tool that was called gave.
    Result(Call, tools::CallOutcome),
    /// How near each piece of its speaker's memory is to what the speaker has just heard.
    Nearness(Vec<f32>),
    /// The scores of those among whom the speakers of its phase are picked.
    Routed(Box<Routing>, Vec<Option<f64>>),
}

/// Everything that a turn needs to begin.
struct RunLoop<'a> {
    running: Running,
    sender: mpsc::UnboundedSender<(TurnId, Progress)>,
    watch: &'a mut dyn Watch,
    control: &'a Control,
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
            waits_for: Vec::new(),
            state: plan.order().map(|_| TurnState::Waiting).collect(),
            next: 0,
            n_changes: 0,
            failed: None,
            directions: Directions::of(&plan),
            undirected: 0,
            memories,
            plan,
            scenario,
            backend,
            settings,
            lookup: Arc::default(),
            routing: BTreeMap::new(),
            routes: BTreeMap::new(),
            recorder,
            trace,
            began: Instant::now(),
        }
    }

    /// Plays the turns whose replies are known already, those of a run that continues or is forked.
    ///
    /// # Errors
    /// A line that is not what would be written now, or the disk's.
    pub fn follow(&mut self, lines: Vec<TurnRecord>, watch: &mut dyn Watch) -> anyhow::Result<()> {
        let Self { memories, recorder, trace, settings, directions, undirected, .. } = self;
        let mut known = Known {
            plan: &self.plan,
            lines: lines.into_iter().peekable(),
            routes: &settings.retrievals.routes,
            recorder,
            trace,
            watch,
            settings,
            directions,
            undirected,
        };
        follow(memories, self.plan.end(), &mut known)?;
        let is_open = |(id, _): &(TurnId, &Turn)| *self.memories.outcome(*id) == Outcome::Open;
        self.next = self.plan.order().find(is_open).map_or(self.plan.end(), |(id, _)| id).0;
        (0..self.next).for_each(|id| self.drop_ephemeral(TurnId(id)));
        // The walk has reported everything before the turn at which it ended.
        self.n_changes = self.memories.changes(0, TurnId(self.next))?.0;
        Ok(())
    }

    /// Plays to the end, as it is controlled, or until `stop` is ready.
    ///
    /// # Errors
    /// The first turn, in plan order, that failed. The record is kept and can be resumed.
    pub async fn play(
        &mut self,
        watch: &mut dyn Watch,
        control: &Control,
        stop: impl Future<Output = ()>,
    ) -> anyhow::Result<End> {
        let (sender, mut progress) = mpsc::unbounded_channel();
        let open = |id| self.plan.needs(id).filter(|(needed, _)| needed.0 >= self.next).count();
        self.waits_for = self.plan.order().map(|(id, _)| open(id)).collect();
        let ready =
            (self.next..self.plan.n_turns()).filter(|id| self.waits_for[*id] == 0).map(TurnId).collect();
        let mut run_loop = RunLoop { running: Running::new(), sender, watch, control, ready };
        let mut pace = control.changes();
        let mut is_paused = false;
        tokio::pin!(stop);
        self.expect_all();
        direct(&self.memories, &self.directions, &mut self.undirected, TurnId(self.next), run_loop.watch);
        loop {
            if is_paused != control.is_paused() {
                is_paused = !is_paused;
                run_loop.watch.see(TurnId(self.next), Scene::Paused(is_paused));
            }
            while let Some(id) = self.may_begin(&run_loop.ready, control.is_paused()) {
                run_loop.ready.remove(&id);
                self.begin(id, &mut run_loop);
            }
            self.flush_ready(&mut run_loop).await?;
            if self.next == self.plan.n_turns() {
                break;
            }
            let is_held = control.is_paused();
            if self.may_begin(&run_loop.ready, is_held).is_some() {
                continue;
            }
            if run_loop.running.is_empty() && !is_held {
                bail!(
                    "{}: none of the turns it waits for is running",
                    self.plan.turn(TurnId(self.next)).path
                );
            }
            tokio::select! {
                biased;
                () = &mut stop => {
                    run_loop.running.shutdown().await;
                    return Ok(End::Stopped);
                }
                () = control.stopped() => {
                    run_loop.running.shutdown().await;
                    return Ok(End::Stopped);
                }
                () = pace.next() => {}
                Some((id, piece)) = progress.recv() => run_loop.watch.see(id, Scene::Progress(&piece)),
                Some(joined) = run_loop.running.join_next() => {
                    let (id, came) = joined.map_err(|error| anyhow::anyhow!("a turn was aborted: {error}"))?;
                    while let Ok((id, piece)) = progress.try_recv() {
                        run_loop.watch.see(id, Scene::Progress(&piece));
                    }
                    match came {
                        Ok(TaskResult::Reply(reply)) => self.answered(id, *reply, &mut run_loop),
                        Ok(TaskResult::Result(call, outcome)) => self.called(
                            id, call, outcome, &mut run_loop
                        ),
                        Ok(TaskResult::Nearness(scores)) => self.on_retrieved(id, &scores, &mut run_loop),
                        Ok(TaskResult::Routed(routing, scores)) => self.routed(
                            &routing, &scores, &mut run_loop
                        ),
                        Err(error) => self.fail(id, error),
                    }
                }
            }
        }
        let footer = outcome::footer(&self.memories)?;
        self.recorder.footer(footer.clone())?;
        Ok(End::Complete(Box::new(footer)))
    }

    /// Tells the backend when each agent speaks next, for memories that lie on disk from earlier.
    fn expect_all(&self) {
        let mut summed = BTreeSet::new();
        for (id, turn) in self.plan.order().skip(self.next) {
            let agent = self.scenario.agent(turn.speaker);
            let keeps = agent.lifecycle == Lifecycle::Permanent && agent.strategy.is_none();
            if keeps && summed.insert(turn.speaker) {
                let (own, parent) = (self.session(turn), self.settings.parents.get(&agent.key));
                let parent = parent.map(|parent| of_model(parent.clone(), turn));
                let memories = parent.iter().chain([&own]);
                let backend = self.backend_of(turn);
                memories.for_each(|memory| backend.hint_next_use(memory, id.0 as u64));
            }
        }
    }

    /// The turns on record.
    pub fn written(&self) -> impl Iterator<Item = &Turn> {
        let before = self.plan.order().take(self.next);
        before.filter(|(id, _)| *self.memories.outcome(*id) != Outcome::Skipped).map(|(_, turn)| turn)
    }

    /// The backend that a turn's model answers by.
    fn backend_of(&self, turn: &Turn) -> &Arc<dyn Backend> {
        let named = turn.hints.model.as_ref().and_then(|name| self.settings.models.get(name));
        named.map_or(&self.backend, |seat| &seat.backend)
    }

    fn session(&self, turn: &Turn) -> Session {
        let timeline = turn.timeline;
        let key = &self.scenario.agent(timeline.agent).key;
        let agent = match timeline.phase {
            Some(phase) => format!("{key}/{}", self.scenario.phase(phase).part),
            None => key.clone(),
        };
        of_model(Session { run: self.trace.run.clone(), agent }, turn)
    }

    /// The first of these turns that may begin now. A human is asked once all that is before has been shown.
    fn may_begin(&self, ready: &BTreeSet<TurnId>, is_paused: bool) -> Option<TurnId> {
        if is_paused {
            return None;
        }
        let is_human = |id: TurnId| self.scenario.is_human(self.plan.turn(id));
        ready.iter().copied().find(|id| id.0 == self.next || !is_human(*id))
    }

    /// A turn whose edges are fulfilled begins, or is skipped.
    fn begin(&mut self, id: TurnId, run_loop: &mut RunLoop<'_>) {
        if self.failed.is_some_and(|failed| failed < id.0) {
            return;
        }
        match self.is_routed(id, run_loop) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => return self.fail(id, error),
        }
        match self.memories.takes_place(id) {
            Ok(true) => {}
            Ok(false) if self.memories.given_reply(id).is_some() => {
                let path = &self.plan.turn(id).path;
                let error =
                    anyhow!("{path} is not played, so its text can't be set; fork without --say {path}=…");
                return self.fail(id, error);
            }
            Ok(false) => {
                self.memories.skip(id);
                self.state[id.0] = TurnState::Skipped;
                return self.release(id, &[Edge::Hears, Edge::Decides], run_loop);
            }
            Err(error) => return self.fail(id, error.into()),
        }
        run_loop.control.begins();
        if let Err(error) = self.ask(id, run_loop) {
            self.fail(id, error);
        }
    }

    /// Asks for a reply, once the speaker's memory has room for it.
    fn ask(&mut self, id: TurnId, run_loop: &mut RunLoop<'_>) -> anyhow::Result<()> {
        self.memories.hear(id)?;
        let asked = self.memories.ask(id)?;
        let request = self.request(&asked);
        if self.is_full(id, &request)? {
            return self.make_room(id, run_loop);
        }
        self.send(asked, self.unless_given(id, request)?, Vec::new(), run_loop);
        Ok(())
    }

    /// Asks for the reply of a turn whose memory has begun again, or that has called a tool: after these
    /// answers.
    fn ask_again(&mut self, id: TurnId, before: Vec<TurnAnswer>, run_loop: &mut RunLoop<'_>) {
        let asked = self.memories.ask(id).map_err(Into::into);
        let request = asked.and_then(|asked| {
            let request = self.unless_given(id, self.request(&asked))?;
            Ok((asked, request))
        });
        match request {
            Ok((asked, request)) => self.send(asked, request, before, run_loop),
            Err(error) => self.fail(id, error),
        }
    }

    /// A request to the speaker; where the reply is given from outside, to repeat it.
    fn unless_given(&self, id: TurnId, request: Request) -> anyhow::Result<Request> {
        match self.memories.given_reply(id) {
            Some(text) => backend::given(request, text),
            None => Ok(request),
        }
    }

    fn request(&self, asked: &Asked) -> Request {
        let turn = self.plan.turn(asked.id);
        let agent = self.scenario.agent(turn.speaker);
        let (sampling, max_tokens) = self.settings.of(asked.id, &self.memories.hints(asked.id));
        Request {
            index: asked.id.0,
            path: asked.path.clone(),
            session: self.session(turn),
            parent: self
                .settings
                .parents
                .get(&agent.key)
                .filter(|_| turn.timeline.phase.is_none())
                .map(|parent| of_model(parent.clone(), turn)),
            model: turn.hints.model.clone(),
            permanent: agent.lifecycle == Lifecycle::Permanent,
            conversation: asked.conversation.clone(),
            sampling: Sampling { seed: asked.seed, ..sampling },
            max_tokens,
            max_thought_tokens: self.memories.reasoning_budget(asked),
            stops: self.memories.stop_strings(asked),
            choice: asked.choice.clone(),
            form: asked.form.clone(),
            tools: self.settings.toolbox.offer(&self.scenario, agent),
            may_call: asked.may_call,
            must_call: asked.must_call.clone(),
            n_calls: asked.n_calls,
            max_calls: self.memories.max_calls(asked.id),
            follow: None,
            strategy: self.scenario.strategy_of(turn).cloned(),
            recalled: asked.recalled.clone(),
            next_use: self.plan.next_use[asked.id.0].map(|next| next.0 as u64),
            cold: self.settings.cold,
        }
    }

    /// Sends a request, after some answers to the same turn.
    fn send(&mut self, asked: Asked, request: Request, before: Vec<TurnAnswer>, run_loop: &mut RunLoop<'_>) {
        let (id, is_summary) = (asked.id, asked.is_summary);
        if !is_summary {
            let (turn, reads) = (self.plan.turn(id), asked.conversation.next.as_str());
            run_loop.watch.see(id, Scene::Started { turn, reads });
        }
        self.state[id.0] = TurnState::Running(asked, before);
        let (backend, sender) = (self.backend_of(self.plan.turn(id)).clone(), run_loop.sender.clone());
        // The receiver lives as long as the play; a piece that comes after its end is of no use to anybody.
        let sink = Box::new(move |piece| match piece {
            Progress::Text(_) if is_summary => {}
            piece => drop(sender.send((id, piece))),
        });
        run_loop.running.spawn(async move {
            (id, again::reply(backend, request, sink).await.map(|reply| TaskResult::Reply(Box::new(reply))))
        });
    }

    fn fail(&mut self, id: TurnId, error: anyhow::Error) {
        self.failed = Some(self.failed.map_or(id.0, |failed| failed.min(id.0)));
        self.state[id.0] = TurnState::Failed(error);
    }

    fn answered(&mut self, id: TurnId, mut reply: Reply, run_loop: &mut RunLoop<'_>) {
        let TurnState::Running(asked, mut answers) =
            std::mem::replace(&mut self.state[id.0], TurnState::Waiting)
        else {
            return self.fail(id, anyhow::anyhow!("{}: answered twice", self.plan.turn(id).path));
        };
        // What is no call where one has to be made is a failed one.
        let missing = asked.must_call.as_ref().map(|_| cut_call());
        if let Some(call) = reply.call.take().filter(|_| asked.may_call).or(missing) {
            return self.call(asked, reply, call, answers, run_loop);
        }
        let is_summary = asked.is_summary;
        if let Some(given) = self.memories.given_reply(id).filter(|_| !is_summary) {
            if reply.speech().trim() != given.trim() {
                let path = &self.plan.turn(id).path;
                return self.fail(
                    id,
                    anyhow!("{path}: the model can't say `{given}`; it says `{}`", reply.speech()),
                );
            }
            // It was not drawn.
            reply.logprobs.clear();
        }
        let line = record_reply(&mut self.memories, asked, &reply);
        // A summary's memory is replaced by that of the turn which follows, so it is not saved.
        let commit = reply.commit.filter(|_| !is_summary);
        answers.push(TurnAnswer { line, usage: reply.usage, commit, at: Instant::now() });
        if !is_summary {
            self.state[id.0] = TurnState::Answered(answers);
            return self.release(id, &[Edge::Hears, Edge::Decides], run_loop);
        }
        self.ask_again(id, answers, run_loop);
    }

    /// One thing less to wait for, for those that an edge of these kinds leads to.
    fn release(&mut self, id: TurnId, kinds: &[Edge], run_loop: &mut RunLoop<'_>) {
        for (next, edge) in self.plan.clone().feeds(id) {
            if kinds.contains(&edge) {
                self.waits_for[next.0] -= 1;
                if self.waits_for[next.0] == 0 {
                    run_loop.ready.insert(next);
                }
            }
        }
    }

    /// Writes the answered turns whose line is next, saves their memories, and lets their speakers continue.
    async fn flush_ready(&mut self, run_loop: &mut RunLoop<'_>) -> anyhow::Result<()> {
        let written = self.write_ready(run_loop).await;
        let synced = self.recorder.sync();
        written.and(synced)
    }

    async fn write_ready(&mut self, run_loop: &mut RunLoop<'_>) -> anyhow::Result<()> {
        loop {
            let id = TurnId(self.next);
            self.write_changes(id)?;
            self.write_route(id, run_loop.watch)?;
            let Some(state) = self.state.get_mut(self.next) else { return Ok(()) };
            match std::mem::replace(state, TurnState::Written) {
                TurnState::Answered(answers) => {
                    for answer in answers {
                        self.write(id, answer, run_loop.watch).await?;
                    }
                }
                TurnState::Skipped => run_loop.watch.see(id, Scene::Skipped),
                TurnState::Failed(error) => return Err(error),
                mut unfinished => {
                    // What a program has done is on record at once: it is not done again when the run
                    // continues.
                    let answers = match &mut unfinished {
                        TurnState::Running(_, before) | TurnState::Calling(_, _, before) => {
                            std::mem::take(before)
                        }
                        _ => Vec::new(),
                    };
                    *state = unfinished;
                    for answer in answers {
                        self.write(id, answer, run_loop.watch).await?;
                    }
                    return Ok(());
                }
            }
            self.next += 1;
            direct(&self.memories, &self.directions, &mut self.undirected, TurnId(self.next), run_loop.watch);
            self.drop_ephemeral(id);
            self.release(id, &[Edge::Memory], run_loop);
        }
    }

    /// Writes the changes of the state that take place before a turn; all before it is on record.
    fn write_changes(&mut self, id: TurnId) -> anyhow::Result<()> {
        let (n, lines) = self.memories.changes(self.n_changes, id)?;
        self.n_changes = n;
        lines.into_iter().try_for_each(|line| self.recorder.between(InterTurnRecord::State(line)))
    }

    async fn write(&mut self, id: TurnId, answer: TurnAnswer, watch: &mut dyn Watch) -> anyhow::Result<()> {
        let TurnAnswer { line, usage, commit, at } = answer;
        let is_new = self.recorder.turn(line.clone())?;
        let usage = match commit {
            Some(commit) => {
                self.recorder.sync()?; // a memory never has a turn that the transcript could lose
                Some(commit.commit().await?)
            }
            None => usage,
        };
        if is_new {
            let answered_ms = Some(at.duration_since(self.began).as_secs_f64() * 1e3);
            self.trace
                .turn(TurnTrace { answered_ms, ..TurnTrace::new(&line.path, &line.agent, usage.as_ref()) })?;
        }
        show(self.plan.turn(id), id, &line, usage.as_ref(), &self.settings, watch);
        Ok(())
    }

    /// An ephemeral agent forgets after its last turn of the phase, played or not.
    fn drop_ephemeral(&mut self, id: TurnId) {
        let plan = self.plan.clone();
        let turn = plan.turn(id);
        if turn.timeline.phase.is_some() && plan.next_use[id.0].is_none() {
            self.memories.forget(turn.timeline);
            self.backend_of(turn).forget(&self.session(turn));
        }
    }
}

/// A memory of a turn's model: each named model files those of a run under a name of its own, since one
/// engine adds to a run's.
fn of_model(session: Session, turn: &Turn) -> Session {
    match &turn.hints.model {
        Some(model) => Session { run: format!("{}.{model}", session.run), ..session },
        None => session,
    }
}
