//! Plays a plan: ready turns go out to the backend, replies come in, timelines grow, the record is written.
//!
//! Turns run together where the plan allows it; the record is written in plan order all the same, and a
//! memory is saved only after its turn's line is on disk.
//!
//! A `Memory` successor starts after its predecessor's transcript line is written; a `Hears` successor as soon as the reply is
//! in.

mod epochs;
mod routes;

use crate::backend::{
    self, Backend, Commit, GivenSampling, Progress, Reply, Request, Sampling, Session, Usage,
};
use crate::lookup::Lookup;
use crate::outcome;
use crate::prompt::{Asked, Direction, Directions, Memories, Routing};
use crate::scenario::results::Outcome;
use crate::scenario::{Edge, Hints, Lifecycle, PhaseId, Plan, Scenario, Strategy, Turn, TurnId};
use crate::trace::{Trace, TurnTrace};
use crate::transcript::{
    Between, ChoiceRecord, Footer, Odds, Recorder, RouteRecord, Stop, Transcript, TurnRecord,
};
use crate::walk::{LineSource, follow, said};
use anyhow::{anyhow, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Settings for answering turns.
#[derive(Clone, Default)]
pub struct Settings {
    /// Sampling settings.
    pub sampling: Sampling,
    /// Most tokens of a reply.
    pub max_tokens: usize,
    /// Compute everything anew at each turn.
    pub cold: bool,
    /// The run that each agent (by key) brings its memory from.
    pub parents: BTreeMap<String, Session>,
    /// Other temperatures and limits before some turns, the earliest first.
    pub before: Vec<(TurnId, f32, usize)>,
    /// The models that the scenario names, with the sampling settings of turns that have none of their own.
    pub models: BTreeMap<String, Seat>,
    /// What memories are looked up by; `None`: the model of who is asked.
    pub embeddings: Option<Arc<dyn Backend>>,
    /// What a recording has looked up already: it is taken from there.
    pub looked_up: LookedUp,
}

/// What was looked up, by a recording.
#[derive(Clone, Debug, Default)]
pub struct LookedUp {
    /// Names of the pieces that memories begin anew with, by the paths of their lines.
    pub kept: BTreeMap<String, Vec<String>>,
    /// Who was picked to speak, by phase.
    pub routes: BTreeMap<String, RouteRecord>,
}

impl LookedUp {
    /// All that a recording has looked up.
    pub fn of(transcript: &Transcript) -> Self {
        let turns = transcript.turns.iter().map(|turn| &turn.record);
        let kept = turns.filter_map(|turn| Some((turn.path.clone(), turn.kept.clone()?)));
        let routes = transcript.routes().map(|route| (route.path.clone(), route.clone()));
        Self { kept: kept.collect(), routes: routes.collect() }
    }

    /// Adds what another recording has looked up, which counts before.
    pub fn extend(&mut self, other: Self) {
        self.kept.extend(other.kept);
        self.routes.extend(other.routes);
    }
}

/// A model that a scenario names, ready to answer.
#[derive(Clone)]
pub struct Seat {
    /// The backend that it answers by.
    pub backend: Arc<dyn Backend>,
    /// Sampling settings.
    pub sampling: Sampling,
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seat").field("sampling", &self.sampling).finish_non_exhaustive()
    }
}

impl Settings {
    /// The sampling settings of a turn, and the most tokens of its reply.
    fn of(&self, id: TurnId, hints: &Hints) -> (Sampling, usize) {
        let named = hints.model.as_ref().and_then(|name| self.models.get(name));
        let (mut base, mut max_tokens) =
            (named.map_or(&self.sampling, |seat| &seat.sampling).clone(), self.max_tokens);
        let earlier = self.before.iter().find(|(before, ..)| id < *before);
        if let Some((_, temperature, most)) = earlier.filter(|_| named.is_none()) {
            (base.temperature, max_tokens) = (*temperature, *most);
        }
        (GivenSampling::from(hints).over(&base), hints.max_tokens.unwrap_or(max_tokens))
    }
}

/// An event that can be watched while a plan is played.
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
        /// The text that others heard.
        spoken: &'a str,
        /// The reason why the reply ended.
        stop: Stop,
        /// The choice, if the reply was one.
        choice: Option<&'a ChoiceRecord>,
        /// The odds of its options; `None`: no model was asked.
        odds: Option<&'a Odds>,
        /// Its cost; `None`: it was replayed.
        usage: Option<&'a Usage>,
    },
    /// It does not take place.
    Skipped,
    /// Those who speak in its phase were picked.
    Routed(&'a RouteRecord),
    /// The stage says something before it; behind the last turn, too.
    Directed(&'a Direction),
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

/// The way a performance ended.
#[derive(Debug, PartialEq)]
pub enum End {
    /// All turns were played; these are the results.
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
    lookup: Arc<Lookup>,
    /// Turns of phases whose speakers are being picked.
    routing: BTreeMap<PhaseId, Vec<TurnId>>,
    /// Lines of those who were picked, by the turn that each stands before.
    routes: BTreeMap<TurnId, RouteRecord>,
    recorder: Recorder,
    /// The record of how the turns were computed.
    pub trace: Trace,
    /// The number of turns that each turn still waits for.
    waits_for: Vec<usize>,
    state: Vec<State>,
    /// First turn that is not on record.
    next: usize,
    /// Changes of the state that are on record, or did not take place.
    n_changes: usize,
    /// First turn that failed: nothing after it is started.
    failed: Option<usize>,
    directions: Directions,
    /// First turn before which nothing has been shown yet of what the stage says.
    undirected: usize,
}

enum State {
    Waiting,
    /// Somebody is asked: for a reply, or for the summary of a full memory before it.
    Running(Asked, Vec<Answer>),
    /// What its full memory is to keep is being looked up.
    LookingUp,
    /// What its memory began anew with, if it did, and the reply.
    Answered(Vec<Answer>),
    Failed(anyhow::Error),
    Skipped,
    Written,
}

struct Answer {
    line: TurnRecord,
    usage: Option<Usage>,
    commit: Option<Box<dyn Commit>>,
}

type Running = JoinSet<(TurnId, anyhow::Result<Came>)>;

/// What a turn was waiting for.
enum Came {
    Reply(Box<Reply>),
    /// How near each piece of its speaker's memory is to what the speaker has just heard.
    Nearness(Vec<f32>),
    /// The scores of those among whom the speakers of its phase are picked.
    Routed(Box<Routing>, Vec<Option<f64>>),
}

/// Everything that a turn needs to begin.
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
            waits_for: Vec::new(),
            state: plan.order().map(|_| State::Waiting).collect(),
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
        }
    }

    /// Plays the turns whose replies are known already, those of a run that goes on or is forked.
    ///
    /// # Errors
    /// A line that is not what would be written now, or the disk's.
    pub fn follow(&mut self, lines: Vec<TurnRecord>, watch: &mut dyn Watch) -> anyhow::Result<()> {
        let Self { memories, recorder, trace, settings, directions, undirected, .. } = self;
        let mut known = Known {
            plan: &self.plan,
            lines: lines.into_iter().peekable(),
            routes: &settings.looked_up.routes,
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
        (0..self.next).for_each(|id| self.leave(TurnId(id)));
        // The walk has told of all that comes before the turn at which it ended.
        self.n_changes = self.memories.changes(0, TurnId(self.next))?.0;
        Ok(())
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
        let open = |id| self.plan.needs(id).filter(|(needed, _)| needed.0 >= self.next).count();
        self.waits_for = self.plan.order().map(|(id, _)| open(id)).collect();
        let ready =
            (self.next..self.plan.n_turns()).filter(|id| self.waits_for[*id] == 0).map(TurnId).collect();
        let mut scope = Scope { running: Running::new(), sender, watch, ready };
        tokio::pin!(stop);
        self.expect_all();
        direct(&self.memories, &self.directions, &mut self.undirected, TurnId(self.next), scope.watch);
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
                    let (id, came) = joined.map_err(|error| anyhow::anyhow!("a turn broke off: {error}"))?;
                    while let Ok((id, piece)) = progress.try_recv() {
                        scope.watch.see(id, Scene::Progress(&piece));
                    }
                    match came {
                        Ok(Came::Reply(reply)) => self.answered(id, *reply, &mut scope),
                        Ok(Came::Nearness(scores)) => self.looked_up(id, &scores, &mut scope),
                        Ok(Came::Routed(routing, scores)) => self.routed(&routing, &scores, &mut scope),
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
        let mut told = BTreeSet::new();
        for (id, turn) in self.plan.order().skip(self.next) {
            let agent = self.scenario.agent(turn.speaker);
            let keeps = agent.lifecycle == Lifecycle::Permanent && agent.strategy.is_none();
            if keeps && told.insert(turn.speaker) {
                let (own, parent) = (self.session(turn), self.settings.parents.get(&agent.key));
                let parent = parent.map(|parent| of_model(parent.clone(), turn));
                let memories = parent.iter().chain([&own]);
                let backend = self.backend_of(turn);
                memories.for_each(|memory| backend.expect(memory, id.0 as u64));
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
        match self.is_routed(id, scope) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => return self.fail(id, error),
        }
        match self.memories.takes_place(id) {
            Ok(true) => {}
            Ok(false) if self.memories.given(id).is_some() => {
                let path = &self.plan.turn(id).path;
                let error = anyhow!(
                    "{path} is not played, so nothing can be said there; fork without --say {path}=…"
                );
                return self.fail(id, error);
            }
            Ok(false) => {
                self.memories.skip(id);
                self.state[id.0] = State::Skipped;
                return self.release(id, &[Edge::Hears, Edge::Decides], scope);
            }
            Err(error) => return self.fail(id, error.into()),
        }
        if let Err(error) = self.ask(id, scope) {
            self.fail(id, error);
        }
    }

    /// Asks for a reply, once the speaker's memory has room for it.
    fn ask(&mut self, id: TurnId, scope: &mut Scope<'_>) -> anyhow::Result<()> {
        self.memories.hear(id)?;
        let asked = self.memories.ask(id)?;
        let request = self.request(&asked);
        if self.is_full(id, &request)? {
            return self.make_room(id, scope);
        }
        self.send(asked, self.unless_given(id, request)?, Vec::new(), scope);
        Ok(())
    }

    /// A request to the speaker; where the reply is given from outside, to say just that.
    fn unless_given(&self, id: TurnId, request: Request) -> anyhow::Result<Request> {
        match self.memories.given(id) {
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
            sampling,
            seed: asked.seed,
            max_tokens,
            stop: self.memories.stop_strings(asked),
            choice: asked.choice.clone(),
            form: asked.form.clone(),
            follow: None,
            strategy: agent.strategy.clone(),
            next_use: self.plan.next_use[asked.id.0].map(|next| next.0 as u64),
            cold: self.settings.cold,
        }
    }

    /// Sends a request, after some answers to the same turn.
    fn send(&mut self, asked: Asked, request: Request, before: Vec<Answer>, scope: &mut Scope<'_>) {
        let (id, is_summary) = (asked.id, asked.is_summary);
        if !is_summary {
            scope.watch.see(id, Scene::Started(self.plan.turn(id)));
        }
        self.state[id.0] = State::Running(asked, before);
        let (backend, sender) = (self.backend_of(self.plan.turn(id)).clone(), scope.sender.clone());
        // The receiver lives as long as the play; a piece that comes after its end is of no use to anybody.
        let sink = Box::new(move |piece| match piece {
            Progress::Text(_) if is_summary => {}
            piece => drop(sender.send((id, piece))),
        });
        scope.running.spawn(async move {
            (id, backend.reply(request, sink).await.map(|reply| Came::Reply(Box::new(reply))))
        });
    }

    fn fail(&mut self, id: TurnId, error: anyhow::Error) {
        self.failed = Some(self.failed.map_or(id.0, |failed| failed.min(id.0)));
        self.state[id.0] = State::Failed(error);
    }

    fn answered(&mut self, id: TurnId, mut reply: Reply, scope: &mut Scope<'_>) {
        let State::Running(asked, mut answers) = std::mem::replace(&mut self.state[id.0], State::Waiting)
        else {
            return self.fail(id, anyhow::anyhow!("{}: answered twice", self.plan.turn(id).path));
        };
        let is_summary = asked.is_summary;
        if let Some(given) = self.memories.given(id).filter(|_| !is_summary) {
            if reply.text.trim() != given.trim() {
                let path = &self.plan.turn(id).path;
                return self
                    .fail(id, anyhow!("{path}: the model can't say `{given}`, it says `{}`", reply.text));
            }
            // Nobody drew it.
            reply.logprobs.clear();
        }
        let line = said(&mut self.memories, asked, &reply);
        // A summary's memory is replaced by that of the turn which follows, so it is not saved.
        let commit = reply.commit.filter(|_| !is_summary);
        answers.push(Answer { line, usage: reply.usage, commit });
        if !is_summary {
            self.state[id.0] = State::Answered(answers);
            return self.release(id, &[Edge::Hears, Edge::Decides], scope);
        }
        if let Err(error) = self.ask_in_new_epoch(id, answers, scope) {
            self.fail(id, error);
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
        loop {
            let id = TurnId(self.next);
            self.write_changes(id)?;
            self.write_route(id, scope.watch)?;
            let Some(state) = self.state.get_mut(self.next) else { return Ok(()) };
            match std::mem::replace(state, State::Written) {
                State::Answered(answers) => {
                    for answer in answers {
                        self.write(id, answer, scope.watch).await?;
                    }
                }
                State::Skipped => scope.watch.see(id, Scene::Skipped),
                State::Failed(error) => return Err(error),
                unfinished => {
                    *state = unfinished;
                    return Ok(());
                }
            }
            self.next += 1;
            direct(&self.memories, &self.directions, &mut self.undirected, TurnId(self.next), scope.watch);
            self.leave(id);
            self.release(id, &[Edge::Memory], scope);
        }
    }

    /// Writes the changes of the state that take place before a turn; all before it is on record.
    fn write_changes(&mut self, id: TurnId) -> anyhow::Result<()> {
        let (n, lines) = self.memories.changes(self.n_changes, id)?;
        self.n_changes = n;
        lines.into_iter().try_for_each(|line| self.recorder.between(Between::State(line)))
    }

    async fn write(&mut self, id: TurnId, answer: Answer, watch: &mut dyn Watch) -> anyhow::Result<()> {
        let Answer { line, usage, commit } = answer;
        let is_new = self.recorder.turn(line.clone())?;
        let usage = match commit {
            Some(commit) => Some(commit.commit().await?),
            None => usage,
        };
        if is_new {
            self.trace.turn(TurnTrace::new(&line.path, &line.agent, usage.as_ref()))?;
        }
        show(self.plan.turn(id), id, &line, usage.as_ref(), &self.settings, watch);
        Ok(())
    }

    /// An ephemeral agent forgets after its last turn of the phase, played or not.
    fn leave(&mut self, id: TurnId) {
        let plan = self.plan.clone();
        let turn = plan.turn(id);
        if turn.timeline.phase.is_some() && plan.next_use[id.0].is_none() {
            self.memories.forget(turn.timeline);
            self.backend_of(turn).forget(&self.session(turn));
        }
    }
}

/// Shows what the stage says before a turn, and before those that were not shown yet.
fn direct(
    memories: &Memories,
    directions: &Directions,
    undirected: &mut usize,
    until: TurnId,
    watch: &mut dyn Watch,
) {
    for id in (*undirected..=until.0).map(TurnId) {
        memories.directions(directions, id).iter().for_each(|line| watch.see(id, Scene::Directed(line)));
    }
    *undirected = (*undirected).max(until.0 + 1);
}

/// A memory of a turn's model: each named model files those of a run under a name of its own, since one engine adds to a run's.
fn of_model(session: Session, turn: &Turn) -> Session {
    match &turn.hints.model {
        Some(model) => Session { run: format!("{}.{model}", session.run), ..session },
        None => session,
    }
}

/// Shows the line of a turn; a summary is the speaker's own affair.
fn show(
    turn: &Turn,
    id: TurnId,
    line: &TurnRecord,
    usage: Option<&Usage>,
    settings: &Settings,
    watch: &mut dyn Watch,
) {
    if line.path == turn.path {
        let choice = line.constraint.as_ref();
        let odds = choice.and_then(|choice| choice.odds(settings.of(id, &line.hints).0.temperature));
        let (spoken, stop, odds) = (line.spoken.as_str(), line.stop, odds.as_ref());
        watch.see(id, Scene::Written { turn, spoken, stop, choice, odds, usage });
    }
}

/// Lines that are known before a run is played.
struct Known<'a> {
    plan: &'a Plan,
    lines: Peekable<std::vec::IntoIter<TurnRecord>>,
    routes: &'a BTreeMap<String, RouteRecord>,
    recorder: &'a mut Recorder,
    trace: &'a mut Trace,
    watch: &'a mut dyn Watch,
    settings: &'a Settings,
    directions: &'a Directions,
    undirected: &'a mut usize,
}

impl LineSource for Known<'_> {
    fn summary(&mut self, path: &str) -> Option<TurnRecord> {
        self.lines.next_if(|line| line.path == path)
    }

    fn line(&mut self, _turn: &Turn) -> anyhow::Result<Option<TurnRecord>> {
        Ok(self.lines.next())
    }

    fn said(&mut self, memories: &Memories, id: TurnId, line: TurnRecord) -> anyhow::Result<()> {
        direct(memories, self.directions, self.undirected, id, self.watch);
        if self.recorder.turn(line.clone())? {
            self.trace.turn(TurnTrace::new(&line.path, &line.agent, None))?;
        }
        let turn = self.plan.turn(id);
        if line.path == turn.path {
            self.watch.see(id, Scene::Started(turn));
        }
        show(turn, id, &line, None, self.settings, self.watch);
        Ok(())
    }

    fn skipped(&mut self, id: TurnId) {
        self.watch.see(id, Scene::Skipped);
    }

    fn route(&mut self, path: &str) -> anyhow::Result<Option<RouteRecord>> {
        Ok(self.routes.get(path).cloned())
    }

    fn between(&mut self, line: Between) -> anyhow::Result<()> {
        self.recorder.between(line.clone())?;
        if let Between::Route(route) = &line {
            let first = self.plan.order().find(|(_, turn)| turn.path.split('/').next() == Some(&route.path));
            first.into_iter().for_each(|(id, _)| self.watch.see(id, Scene::Routed(route)));
        }
        Ok(())
    }
}
