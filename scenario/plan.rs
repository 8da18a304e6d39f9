//! The plan: turns as nodes, data dependencies as edges, nothing else.
//!
//! Turns with no path between them may run together. The order of [`Plan::order`] is one topological order,
//! the one in which transcripts are written: phase, round, cast.

use super::hints::Hints;
use super::template::{Expression, Template};
use super::{AgentId, Assignment, CaseId, Chance, Choice, Form, PhaseId, Route, Scenario};
use petgraph::Direction;
use petgraph::graph::{DiGraph, NodeIndex};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

/// Index of a turn in plan order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TurnId(pub usize);

/// A memory: an agent for the run, or an agent for one phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TimelineId {
    /// The agent whose memory it is.
    pub agent: AgentId,
    /// The phase, for an ephemeral agent.
    pub phase: Option<PhaseId>,
}

/// Everything before a point of the plan: what is read or decided there knows of it, and of nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Horizon {
    /// The first turn after the point.
    pub turns: TurnId,
    /// The number of changes of the state before it.
    pub changes: usize,
}

/// One turn: who speaks, and what that agent reads first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// `phase/round/agent`, and after a dot a suffix that makes it unique: names the turn in transcripts and
    /// seeds it.
    pub path: String,
    /// The phase.
    pub phase: PhaseId,
    /// The round, from 1; votes belong to the round before them.
    pub round: usize,
    /// The speaker.
    pub speaker: AgentId,
    /// The memory that is extended.
    pub timeline: TimelineId,
    /// Everything that has happened to the speaker since its last turn, in order.
    pub inputs: Vec<Input>,
    /// All that its own texts know of: turns that are played at once know nothing of each other.
    pub known: Horizon,
    /// The question to the speaker, before the cue.
    pub ask: Option<Arc<Template>>,
    /// The line that asks for the reply.
    pub cue: String,
    /// All of these must hold for the turn to take place; a skipped turn delivers nothing.
    pub guard: Vec<Condition>,
    /// The constraint on the reply.
    pub constraint: Option<Constraint>,
    /// The form of the reply.
    pub form: Option<Arc<Form>>,
    /// The tool that the speaker has to call before it replies.
    pub call: Option<Arc<str>>,
    /// The purpose of the reply.
    pub purpose: Purpose,
    /// The agents who hear it.
    pub audience: Audience,
    /// Settings of the reply, the scenario's own aside; none where a strategy answers.
    pub hints: Hints,
}

/// Something that an agent reads before its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// A phase opens.
    Opening(PhaseId),
    /// An agent spoke.
    Heard(TurnId),
    /// A vote is over: its result, in this attempt of the phase.
    Vote(PhaseId, usize),
    /// The stage announces something of a round.
    Announced(Announced),
    /// All that was said in a phase, for a judge from outside.
    Record(PhaseId),
}

/// An announcement of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Announced {
    /// The phase.
    pub phase: PhaseId,
    /// The round, from 1.
    pub round: usize,
    /// Which of the phase's announcements.
    pub index: usize,
    /// All that it knows of.
    pub known: Horizon,
}

/// A change of the state, where it is in the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The path of its line in a transcript: of a phase, of a round (`phase/round`) or of a turn.
    pub path: String,
    /// The phase.
    pub phase: PhaseId,
    /// What it follows.
    pub after: Trigger,
    /// The new values.
    pub set: Arc<[Assignment]>,
    /// All that it knows of.
    pub known: Horizon,
}

/// What a change of the state follows; it takes place if that did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// The phase.
    Phase,
    /// A round of it.
    Round(usize),
    /// A turn.
    Turn(TurnId),
}

/// A condition on what happened before a turn, for it to take place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The phase's `when` held as it began.
    Opens(PhaseId),
    /// The phase's `until` has held after no round before this one.
    NotYetEnded(PhaseId, usize),
    /// This turn's own `when` holds, given the turns before it.
    Holds(Expression),
    /// That turn took place and was this option.
    Chose(TurnId, usize),
    /// That turn took place.
    Played(TurnId),
    /// That turn did not take place.
    NotPlayed(TurnId),
    /// No vote of the phase before this attempt was unanimous.
    Undecided(PhaseId, usize),
    /// The speaker has this place, from 0, in the order drawn for the round.
    Drawn(usize),
    /// This expression pairs the first of the two with the second, in this round.
    Paired(AgentId, AgentId, Arc<Expression>),
    /// The speaker is present in the phase.
    Present,
    /// The speaker is one of the phase's voters.
    Votes,
    /// At least one of the options is open.
    CanChoose,
}

/// A reply must be one of the options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constraint {
    /// The options.
    pub choice: Arc<Choice>,
    /// Turns whose options are taken already: the higher places of a ranking.
    pub except: Vec<TurnId>,
}

/// The purpose of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To be heard.
    Speech,
    /// To choose an option of the phase.
    Choice,
    /// A vote: in which attempt, for which place of the ranking (both from 1).
    Ballot {
        /// The vote.
        attempt: usize,
        /// The place.
        rank: usize,
    },
    /// Determines who speaks next: the moderator's choice, or an answer to whether to cut in.
    Floor,
}

/// The agents who hear a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Everybody present.
    All,
    /// Some, and who overhears it.
    Whisper {
        /// The agents for whom it is meant.
        to: Vec<AgentId>,
        /// The agents who observe the speaker.
        by: Vec<AgentId>,
    },
    /// Nobody: ballots.
    Nobody,
}

impl Audience {
    /// True if an agent who is present hears it.
    pub fn hears(&self, agent: AgentId) -> bool {
        match self {
            Self::All => true,
            Self::Whisper { to, by } => to.contains(&agent) || by.contains(&agent),
            Self::Nobody => false,
        }
    }
}

/// A data dependency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Edge {
    /// The speaker's previous turn.
    Memory,
    /// A message that the speaker must have heard (or is quoted).
    Hears,
    /// Something that decides whether the turn takes place, or what it may choose.
    Decides,
}

/// A scenario unrolled into turns.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Turns and their dependencies; node index = [`TurnId`].
    pub graph: DiGraph<Turn, Edge>,
    /// For each turn, the next one of the same memory.
    pub next_use: Vec<Option<TurnId>>,
    /// The first turn of each memory.
    pub first_use: BTreeMap<TimelineId, TurnId>,
    /// The inputs that each memory has not read yet when the plan ends.
    pub unread: Vec<(TimelineId, Vec<Input>)>,
    /// The beginning of each phase (round 0) and of each of its rounds.
    pub begins: BTreeMap<(PhaseId, usize), Horizon>,
    /// All changes of the state, in order.
    pub changes: Vec<Change>,
    /// Where speakers are picked, by phase.
    pub routes: BTreeMap<PhaseId, RoutePoint>,
    /// Hash of what the stage says, where it is not English.
    pub language: Option<String>,
}

/// The point at which the speakers of a phase are picked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutePoint {
    /// How they are picked.
    pub route: Arc<Route>,
    /// What the candidates have not read yet by then.
    pub unread: BTreeMap<TimelineId, Vec<Input>>,
    /// The turns that it waits for.
    pub waits: Vec<TurnId>,
}

/// Seed of a turn: from the root seed and the turn's path, never from position or time. 53 bits, so that
/// every reader of JSON gets it whole.
pub fn turn_seed(root: u64, path: &str) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&root.to_le_bytes()).update(path.as_bytes());
    let mut first = [0u8; 8];
    hasher.finalize_xof().fill(&mut first);
    u64::from_le_bytes(first) >> 11
}

/// The source of the seeds of a run's turns: a root, and, for a run forked from others, the roots of its
/// first turns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seeds {
    root: u64,
    /// Roots of the turns before a turn, where that is another; the earliest first.
    before: Vec<(TurnId, u64)>,
}

impl From<u64> for Seeds {
    fn from(root: u64) -> Self {
        Self { root, before: Vec::new() }
    }
}

impl Seeds {
    /// A root, and other roots before some turns, the earliest first.
    pub fn new(root: u64, before: Vec<(TurnId, u64)>) -> Self {
        Self { root, before }
    }

    /// These seeds in a run of a case, which has random numbers of its own; `None`: as they are.
    pub fn of_case(self, case: Option<&CaseId>) -> Self {
        let Some(case) = case else { return self };
        let before = self.before.into_iter().map(|(before, root)| (before, case.root(root))).collect();
        Self { root: case.root(self.root), before }
    }

    /// Seed of the turn `id`, or of its summary, whose path is given.
    pub fn of(&self, id: TurnId, path: &str) -> u64 {
        turn_seed(self.root_at(id), path)
    }

    /// Roots of draws before the turn `id`.
    pub fn chance(&self, id: TurnId) -> Chance {
        Chance { here: self.root_at(id), first: self.root_at(TurnId(0)) }
    }

    fn root_at(&self, id: TurnId) -> u64 {
        let earlier = self.before.iter().find(|(before, _)| id < *before);
        earlier.map_or(self.root, |(_, root)| *root)
    }
}

impl Turn {
    /// The round and what the turn is for, as text; `?` where it may be skipped.
    pub fn label(&self) -> String {
        let what = match self.purpose {
            Purpose::Speech => String::new(),
            Purpose::Choice => ", choice".to_string(),
            Purpose::Ballot { attempt: 1, rank: 1 } => ", vote".to_string(),
            Purpose::Ballot { attempt, rank } => format!(", vote {attempt}.{rank}"),
            Purpose::Floor => ", floor".to_string(),
        };
        format!("round {}{what}{}", self.round, if self.guard.is_empty() { "" } else { "?" })
    }
}

impl Plan {
    /// The turn of that path.
    pub fn find(&self, path: &str) -> Option<TurnId> {
        self.order().find(|(_, turn)| turn.path == path).map(|(id, _)| id)
    }

    /// Number of turns.
    pub fn n_turns(&self) -> usize {
        self.graph.node_count()
    }

    /// All turns in the order of the transcript.
    pub fn order(&self) -> impl Iterator<Item = (TurnId, &Turn)> {
        self.graph.node_indices().map(|node| (TurnId(node.index()), &self.graph[node]))
    }

    /// A turn of this plan.
    pub fn turn(&self, id: TurnId) -> &Turn {
        &self.graph[NodeIndex::new(id.0)]
    }

    /// The dependencies of a turn: those that it waits for.
    pub fn needs(&self, id: TurnId) -> impl Iterator<Item = (TurnId, Edge)> {
        use petgraph::visit::EdgeRef;
        let edges = self.graph.edges_directed(NodeIndex::new(id.0), Direction::Incoming);
        edges.map(|edge| (TurnId(edge.source().index()), *edge.weight()))
    }

    /// The point after the last turn.
    pub fn end(&self) -> TurnId {
        TurnId(self.n_turns())
    }

    /// All of the plan.
    pub fn all(&self) -> Horizon {
        Horizon { turns: self.end(), changes: self.changes.len() }
    }

    /// The beginning of a phase (round 0), or of a round of it. What is not planned begins after all.
    pub fn begin_of(&self, phase: PhaseId, round: usize) -> Horizon {
        self.begins.get(&(phase, round)).copied().unwrap_or(self.all())
    }

    /// The dependents of a turn: those that wait for it.
    pub fn feeds(&self, id: TurnId) -> impl Iterator<Item = (TurnId, Edge)> {
        use petgraph::visit::EdgeRef;
        let edges = self.graph.edges_directed(NodeIndex::new(id.0), Direction::Outgoing);
        edges.map(|edge| (TurnId(edge.target().index()), *edge.weight()))
    }

    /// The graph in Graphviz's language.
    pub fn dot(&self, scenario: &Scenario) -> String {
        let mut out = format!("digraph \"{}\" {{\n  rankdir=LR;\n  node [shape=box];\n", scenario.id);
        for (phase_id, phase) in scenario.phases.iter().enumerate() {
            let label = phase.label.replace(['"', '\\'], "'");
            let _ = writeln!(out, "  subgraph cluster_{phase_id} {{\n    label=\"{label}\";");
            for (id, turn) in self.order().filter(|(_, turn)| turn.phase.0 == phase_id) {
                let name = scenario.agent(turn.speaker).name.replace(['"', '\\'], "'");
                let what = turn.label();
                let _ = writeln!(out, "    t{} [label=\"{name}\\n{what}\"];", id.0);
            }
            out.push_str("  }\n");
        }
        for (from, edge, to) in self.edges() {
            let style = match edge {
                Edge::Memory => "solid",
                Edge::Hears => "dashed",
                Edge::Decides => "dotted",
            };
            let _ = writeln!(out, "  t{} -> t{} [style={style}];", from.0, to.0);
        }
        out.push_str("}\n");
        out
    }

    /// The graph in Mermaid's language.
    pub fn mermaid(&self, scenario: &Scenario) -> String {
        let mut out = String::from("flowchart LR\n");
        for (phase_id, phase) in scenario.phases.iter().enumerate() {
            let label = phase.label.replace('"', "'");
            let _ = writeln!(out, "  subgraph p{phase_id} [\"{label}\"]");
            for (id, turn) in self.order().filter(|(_, turn)| turn.phase.0 == phase_id) {
                let name = scenario.agent(turn.speaker).name.replace('"', "'");
                let _ = writeln!(out, "    t{}[\"{name} · {}\"]", id.0, turn.label());
            }
            out.push_str("  end\n");
        }
        for (from, edge, to) in self.edges() {
            let arrow = match edge {
                Edge::Memory => "==>",
                Edge::Hears => "-.->",
                Edge::Decides => "-- if -->",
            };
            let _ = writeln!(out, "  t{} {arrow} t{}", from.0, to.0);
        }
        out
    }

    fn edges(&self) -> Vec<(TurnId, Edge, TurnId)> {
        let mut edges: Vec<_> = self
            .order()
            .flat_map(|(to, _)| self.needs(to).map(move |(from, edge)| (from, edge, to)))
            .collect();
        edges.sort_by_key(|(from, edge, to)| (to.0, from.0, *edge as u8));
        edges
    }
}
