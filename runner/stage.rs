//! Plays a plan: ready turns go out to the backend, replies come in, timelines grow, the record is written.
//!
//! Turns run together where the plan allows it; the record is written in plan order all the same, and a
//! memory is saved only after its turn's line is on disk.

use crate::backend::{Backend, Progress, Reply, Request, Sampling, Session, Usage};
use crate::prompt::{Conversation, Memories};
use crate::scenario::{Edge, Lifecycle, Plan, Scenario, TimelineId, Turn, TurnId};
use crate::trace::{Trace, TurnTrace};
use crate::transcript::{Footer, Recorder, TurnRecord};
use anyhow::bail;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// How turns are to be answered.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Root of the turns' seeds.
    pub seed: u64,
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
        /// What it cost; `None`: it was replayed.
        usage: Option<&'a Usage>,
    },
}

/// Watches a plan being played.
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
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// All turns were played; the hash of all lines.
    Complete(String),
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
    stop_strings: Vec<String>,
    /// How many turns each turn still waits for.
    waits_for: Vec<usize>,
    state: Vec<State>,
    /// First turn that is not on record.
    next: usize,
    /// First turn that failed: nothing after it is started.
    failed: Option<usize>,
}

enum State {
    Waiting,
    Running(Conversation),
    Answered(Answer),
    Failed(anyhow::Error),
    Written,
}

struct Answer {
    delta: String,
    spoken: String,
    reply: Reply,
}

type Running = JoinSet<(TurnId, anyhow::Result<Reply>)>;

/// Seed of a turn: from the root seed and the turn's path, never from position or time. 53 bits, so that
/// every reader of JSON gets it whole.
pub fn turn_seed(root: u64, path: &str) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&root.to_le_bytes()).update(path.as_bytes());
    let mut first = [0u8; 8];
    hasher.finalize_xof().fill(&mut first);
    u64::from_le_bytes(first) >> 11
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
            stop_strings: scenario.agents.iter().map(|agent| format!("\n{}:", agent.name)).collect(),
            waits_for: plan.order().map(|(id, _)| plan.needs(id).count()).collect(),
            state: plan.order().map(|_| State::Waiting).collect(),
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
        let mut running = Running::new();
        tokio::pin!(stop);
        self.expect_all();
        let ready: Vec<_> = (0..self.plan.n_turns()).filter(|id| self.waits_for[*id] == 0).collect();
        for id in ready {
            self.start(TurnId(id), &mut running, &sender, watch);
        }
        loop {
            self.write_what_is_due(&mut running, &sender, watch).await?;
            if self.next == self.plan.n_turns() {
                break;
            }
            if running.is_empty() {
                bail!("{}: nothing it waits for is running", self.plan.turn(TurnId(self.next)).path);
            }
            tokio::select! {
                biased;
                () = &mut stop => {
                    running.shutdown().await;
                    return Ok(End::Stopped);
                }
                Some((id, piece)) = progress.recv() => watch.see(id, Scene::Progress(&piece)),
                Some(joined) = running.join_next() => {
                    let (id, reply) = joined.map_err(|error| anyhow::anyhow!("a turn broke off: {error}"))?;
                    while let Ok((id, piece)) = progress.try_recv() {
                        watch.see(id, Scene::Progress(&piece));
                    }
                    self.answered(id, reply, &mut running, &sender, watch);
                }
            }
        }
        let footer = Footer { turns: self.plan.n_turns(), outcomes: None, payoffs: None, assertions: None };
        Ok(End::Complete(self.recorder.footer(footer)?))
    }

    /// Tells the backend who will speak first when, for memories that lie on disk from earlier.
    fn expect_all(&self) {
        let mut told = BTreeSet::new();
        for (id, turn) in self.plan.order().skip(self.next) {
            let agent = self.scenario.agent(turn.speaker);
            if agent.lifecycle == Lifecycle::Permanent && told.insert(turn.speaker) {
                let (own, parent) = (self.session(turn.timeline), self.settings.parents.get(&agent.key));
                let memories = parent.into_iter().chain([&own]);
                memories.for_each(|memory| self.backend.expect(memory, id.0 as u64));
            }
        }
    }

    /// Number of turns on record.
    pub fn n_written(&self) -> usize {
        self.next
    }

    fn session(&self, timeline: TimelineId) -> Session {
        let key = &self.scenario.agent(timeline.agent).key;
        let agent = match timeline.phase {
            Some(phase) => format!("{key}/{}", self.scenario.phase(phase).name),
            None => key.clone(),
        };
        Session { run: self.trace.run.clone(), agent }
    }

    fn start(
        &mut self,
        id: TurnId,
        running: &mut Running,
        sender: &mpsc::UnboundedSender<(TurnId, Progress)>,
        watch: &mut dyn Watch,
    ) {
        if self.failed.is_some_and(|failed| failed < id.0) {
            return;
        }
        let plan = self.plan.clone();
        let turn = plan.turn(id);
        let prompt = match self.memories.prompt(id) {
            Ok(prompt) => prompt,
            Err(error) => return self.fail(id, error.into()),
        };
        self.state[id.0] = State::Running(prompt.conversation.clone());
        watch.see(id, Scene::Started(turn));
        let agent = self.scenario.agent(turn.speaker);
        let request = Request {
            index: id.0,
            path: turn.path.clone(),
            session: self.session(turn.timeline),
            parent: self.settings.parents.get(&agent.key).filter(|_| turn.timeline.phase.is_none()).cloned(),
            permanent: agent.lifecycle == Lifecycle::Permanent,
            conversation: prompt.conversation,
            sampling: self.settings.sampling.clone(),
            seed: turn_seed(self.settings.seed, &turn.path),
            max_tokens: self.settings.max_tokens,
            stop: self.stop_strings.clone(),
            next_use: plan.next_use[id.0].map(|next| next.0 as u64),
            cold: self.settings.cold,
        };
        let (backend, sender) = (self.backend.clone(), sender.clone());
        // The receiver lives as long as the play; a piece that comes after its end is of no use to anybody.
        let sink = Box::new(move |piece| drop(sender.send((id, piece))));
        running.spawn(async move { (id, backend.reply(request, sink).await) });
    }

    fn fail(&mut self, id: TurnId, error: anyhow::Error) {
        self.failed = Some(self.failed.map_or(id.0, |failed| failed.min(id.0)));
        self.state[id.0] = State::Failed(error);
    }

    fn answered(
        &mut self,
        id: TurnId,
        reply: anyhow::Result<Reply>,
        running: &mut Running,
        sender: &mpsc::UnboundedSender<(TurnId, Progress)>,
        watch: &mut dyn Watch,
    ) {
        let reply = match reply {
            Ok(reply) => reply,
            Err(error) => return self.fail(id, error),
        };
        let State::Running(conversation) = std::mem::replace(&mut self.state[id.0], State::Waiting) else {
            return self.fail(id, anyhow::anyhow!("{}: answered twice", self.plan.turn(id).path));
        };
        let delta = conversation.next.clone();
        let spoken = self.memories.say(id, conversation, &reply.ids, &reply.text);
        self.state[id.0] = State::Answered(Answer { delta, spoken, reply });
        self.release(id, Edge::Hears, running, sender, watch);
    }

    /// One thing less to wait for, for those that an edge of this kind leads to.
    fn release(
        &mut self,
        id: TurnId,
        kind: Edge,
        running: &mut Running,
        sender: &mpsc::UnboundedSender<(TurnId, Progress)>,
        watch: &mut dyn Watch,
    ) {
        let plan = self.plan.clone();
        let mut ready = Vec::new();
        for (next, edge) in plan.feeds(id) {
            if edge == kind {
                self.waits_for[next.0] -= 1;
                if self.waits_for[next.0] == 0 {
                    ready.push(next);
                }
            }
        }
        // The plan's order, so that equal runs send equal sequences of requests.
        ready.sort_unstable();
        ready.into_iter().for_each(|next| self.start(next, running, sender, watch));
    }

    /// Writes the answered turns whose line is next, saves their memories, and lets their speakers go on.
    async fn write_what_is_due(
        &mut self,
        running: &mut Running,
        sender: &mpsc::UnboundedSender<(TurnId, Progress)>,
        watch: &mut dyn Watch,
    ) -> anyhow::Result<()> {
        while let Some(state) = self.state.get_mut(self.next) {
            let answer = match state {
                State::Answered(_) | State::Failed(_) => match std::mem::replace(state, State::Written) {
                    State::Answered(answer) => answer,
                    State::Failed(error) => return Err(error),
                    _ => return Ok(()),
                },
                _ => return Ok(()),
            };
            let id = TurnId(self.next);
            self.write(id, answer, watch).await?;
            self.next += 1;
            self.release(id, Edge::Memory, running, sender, watch);
        }
        Ok(())
    }

    async fn write(&mut self, id: TurnId, answer: Answer, watch: &mut dyn Watch) -> anyhow::Result<()> {
        let plan = self.plan.clone();
        let turn = plan.turn(id);
        let Answer { delta, spoken, reply } = answer;
        let agent = self.scenario.agent(turn.speaker).key.clone();
        let is_new = self.recorder.turn(TurnRecord {
            path: turn.path.clone(),
            agent: agent.clone(),
            delta,
            tokens: reply.ids,
            raw: reply.text,
            spoken: spoken.clone(),
            stop: reply.stop.word().to_string(),
            constraint: None,
            seed: turn_seed(self.settings.seed, &turn.path),
        })?;
        let usage = match reply.commit {
            Some(commit) => Some(commit.commit().await?),
            None => reply.usage,
        };
        if is_new {
            self.trace.turn(TurnTrace::new(&turn.path, &agent, usage.as_ref()))?;
        }
        watch.see(id, Scene::Written { turn, spoken: &spoken, usage: usage.as_ref() });
        if turn.timeline.phase.is_some() && plan.next_use[id.0].is_none() {
            self.memories.forget(turn.timeline);
            self.backend.forget(&self.session(turn.timeline));
        }
        Ok(())
    }
}
