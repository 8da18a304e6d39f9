//! The plan: turns as nodes, data dependencies as edges, nothing else.
//!
//! Turns with no path between them may run together. The order of [`Plan::order`] is one topological order,
//! the one in which transcripts are written: phase, round, cast.

use super::{AgentId, PhaseId, Scenario};
use petgraph::Direction;
use petgraph::graph::{DiGraph, NodeIndex};
use std::fmt::Write as _;

/// Index of a turn in plan order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TurnId(pub usize);

/// A memory: an agent for the run, or an agent for one phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TimelineId {
    /// Whose memory.
    pub agent: AgentId,
    /// The phase, for an ephemeral agent.
    pub phase: Option<PhaseId>,
}

/// One turn: who speaks, and what that agent reads first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// `phase/round/agent`: names the turn in transcripts and seeds it.
    pub path: String,
    /// The phase.
    pub phase: PhaseId,
    /// The round, from 1.
    pub round: usize,
    /// Who speaks.
    pub speaker: AgentId,
    /// Whose memory is extended.
    pub timeline: TimelineId,
    /// What has happened to the speaker since its last turn, in order.
    pub inputs: Vec<Input>,
    /// The line that asks for the reply.
    pub cue: String,
    /// Whether the turn takes place.
    pub guard: Guard,
    /// What the reply must look like.
    pub constraint: Option<Constraint>,
}

/// Something that an agent reads before its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// A phase opens.
    Opening(PhaseId),
    /// Somebody spoke.
    Heard(TurnId),
}

/// Whether a turn takes place; a skipped turn delivers nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Guard {
    /// It always does.
    #[default]
    Always,
}

/// A reply must be one of these options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constraint {
    /// The options.
    pub options: Vec<String>,
}

/// A data dependency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Edge {
    /// The speaker's previous turn.
    Memory,
    /// A message that the speaker must have heard (or is quoted).
    Hears,
}

/// A scenario unrolled into turns.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Turns and their dependencies; node index = [`TurnId`].
    pub graph: DiGraph<Turn, Edge>,
    /// For each turn, the next one of the same memory.
    pub next_use: Vec<Option<TurnId>>,
    /// What each memory has not read yet when the plan ends.
    pub unread: Vec<(TimelineId, Vec<Input>)>,
}

impl Plan {
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

    /// What a turn waits for.
    pub fn needs(&self, id: TurnId) -> impl Iterator<Item = (TurnId, Edge)> {
        use petgraph::visit::EdgeRef;
        let edges = self.graph.edges_directed(NodeIndex::new(id.0), Direction::Incoming);
        edges.map(|edge| (TurnId(edge.source().index()), *edge.weight()))
    }

    /// What waits for a turn.
    pub fn feeds(&self, id: TurnId) -> impl Iterator<Item = (TurnId, Edge)> {
        use petgraph::visit::EdgeRef;
        let edges = self.graph.edges_directed(NodeIndex::new(id.0), Direction::Outgoing);
        edges.map(|edge| (TurnId(edge.target().index()), *edge.weight()))
    }

    /// blake3 (hex) over turns and edges: what two plans must share to be the same.
    pub fn hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for (id, turn) in self.order() {
            let line = format!(
                "{}\0{}\0{:?}\0{:?}\0{:?}\n",
                turn.path, turn.cue, turn.inputs, turn.guard, turn.constraint
            );
            hasher.update(line.as_bytes());
            let mut needs: Vec<_> =
                self.needs(id).map(|(from, edge)| (from.0, edge == Edge::Memory)).collect();
            needs.sort_unstable();
            hasher.update(format!("{needs:?}\n").as_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }

    /// The graph in Graphviz's language.
    pub fn dot(&self, scenario: &Scenario) -> String {
        let mut out = format!("digraph \"{}\" {{\n  rankdir=LR;\n  node [shape=box];\n", scenario.id);
        for (phase_id, phase) in scenario.phases.iter().enumerate() {
            let label = phase.label.replace(['"', '\\'], "'");
            let _ = writeln!(out, "  subgraph cluster_{phase_id} {{\n    label=\"{label}\";");
            for (id, turn) in self.order().filter(|(_, turn)| turn.phase.0 == phase_id) {
                let name = scenario.agent(turn.speaker).name.replace(['"', '\\'], "'");
                let _ = writeln!(out, "    t{} [label=\"{name}\\nround {}\"];", id.0, turn.round);
            }
            out.push_str("  }\n");
        }
        for (from, edge, to) in self.edges() {
            let style = if edge == Edge::Memory { "solid" } else { "dashed" };
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
                let _ = writeln!(out, "    t{}[\"{name} · {}\"]", id.0, turn.round);
            }
            out.push_str("  end\n");
        }
        for (from, edge, to) in self.edges() {
            let arrow = if edge == Edge::Memory { "==>" } else { "-.->" };
            let _ = writeln!(out, "  t{} {arrow} t{}", from.0, to.0);
        }
        out
    }

    fn edges(&self) -> Vec<(TurnId, Edge, TurnId)> {
        let mut edges: Vec<_> = self
            .order()
            .flat_map(|(to, _)| self.needs(to).map(move |(from, edge)| (from, edge, to)))
            .collect();
        edges.sort_by_key(|(from, edge, to)| (to.0, from.0, *edge == Edge::Hears));
        edges
    }
}
