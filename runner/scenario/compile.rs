//! From a scenario to its plan: who reads what before each turn, and what therefore waits for what.
//!
//! Deliveries are worked out here, once, in graph order; so what an agent reads never depends on which turn
//! happened to finish first.

use super::plan::{Edge, Guard, Input, Plan, TimelineId, Turn, TurnId};
use super::{AgentId, Lifecycle, PhaseId, Scenario, Topology};
use petgraph::graph::{DiGraph, NodeIndex};
use std::collections::{BTreeMap, BTreeSet};

/// Unrolls a scenario.
pub fn compile(scenario: &Scenario) -> Plan {
    let mut compiler = Compiler {
        scenario,
        graph: DiGraph::new(),
        next_use: Vec::new(),
        unread: BTreeMap::new(),
        last: BTreeMap::new(),
        spoken_in: vec![Vec::new(); scenario.phases.len()],
    };
    for phase in 0..scenario.phases.len() {
        compiler.phase(PhaseId(phase));
    }
    let plan = Plan {
        graph: compiler.graph,
        next_use: compiler.next_use,
        unread: compiler.unread.into_iter().collect(),
    };
    assert!(!petgraph::algo::is_cyclic_directed(&plan.graph), "edges only go from earlier to later turns");
    plan
}

/// Number of turns that a scenario unrolls into, without unrolling it.
pub(super) fn n_turns(agents: usize, rounds: usize, max_turns: Option<usize>) -> usize {
    let all = agents.saturating_mul(rounds);
    max_turns.map_or(all, |most| most.min(all))
}

struct Compiler<'a> {
    scenario: &'a Scenario,
    graph: DiGraph<Turn, Edge>,
    next_use: Vec<Option<TurnId>>,
    /// What each memory has not read yet.
    unread: BTreeMap<TimelineId, Vec<Input>>,
    /// Each memory's latest turn.
    last: BTreeMap<TimelineId, TurnId>,
    spoken_in: Vec<Vec<TurnId>>,
}

impl Compiler<'_> {
    fn timeline(&self, agent: AgentId, phase: PhaseId) -> TimelineId {
        let ephemeral = self.scenario.agent(agent).lifecycle == Lifecycle::Ephemeral;
        TimelineId { agent, phase: ephemeral.then_some(phase) }
    }

    fn phase(&mut self, id: PhaseId) {
        let phase = self.scenario.phase(id);
        for agent in &phase.agents {
            let timeline = self.timeline(*agent, id);
            self.unread.entry(timeline).or_default().push(Input::Opening(id));
        }
        let mut left = n_turns(phase.agents.len(), phase.rounds, phase.max_turns);
        for round in 1..=phase.rounds {
            let speakers = &phase.agents[..left.min(phase.agents.len())];
            if speakers.is_empty() {
                break;
            }
            left -= speakers.len();
            match phase.topology {
                Topology::RoundRobin | Topology::TurnByTurn => {
                    for speaker in speakers {
                        let turn = self.turn(id, round, *speaker);
                        self.deliver(id, *speaker, turn);
                    }
                }
                Topology::Broadcast => {
                    let turns: Vec<_> = speakers.iter().map(|s| (*s, self.turn(id, round, *s))).collect();
                    turns.into_iter().for_each(|(speaker, turn)| self.deliver(id, speaker, turn));
                }
            }
        }
    }

    fn turn(&mut self, phase: PhaseId, round: usize, speaker: AgentId) -> TurnId {
        let timeline = self.timeline(speaker, phase);
        let inputs = self.unread.insert(timeline, Vec::new()).unwrap_or_default();
        let agent = self.scenario.agent(speaker);
        let turn = Turn {
            path: format!("{}/{round}/{}", self.scenario.phase(phase).name, agent.key),
            phase,
            round,
            speaker,
            timeline,
            inputs: inputs.clone(),
            cue: format!("[Your turn, {}.]", agent.name),
            guard: Guard::Always,
            constraint: None,
        };
        let node = self.graph.add_node(turn);
        let id = TurnId(node.index());
        self.next_use.push(None);
        let memory = self.last.insert(timeline, id);
        if let Some(memory) = memory {
            self.graph.add_edge(NodeIndex::new(memory.0), node, Edge::Memory);
            self.next_use[memory.0] = Some(id);
        }
        for needed in self.needed(&inputs, speaker).into_iter().filter(|needed| Some(*needed) != memory) {
            self.graph.add_edge(NodeIndex::new(needed.0), node, Edge::Hears);
        }
        self.spoken_in[phase.0].push(id);
        id
    }

    /// Turns whose words stand in these inputs: heard, or quoted by an opening.
    fn needed(&self, inputs: &[Input], speaker: AgentId) -> BTreeSet<TurnId> {
        let mut needed = BTreeSet::new();
        for input in inputs {
            match input {
                Input::Heard(turn) => {
                    needed.insert(*turn);
                }
                Input::Opening(phase) => {
                    let opening = self.scenario.phase(*phase).opening(speaker);
                    let quoted = opening.flat_map(|(_, template)| &template.quotes);
                    needed.extend(quoted.flat_map(|quoted| &self.spoken_in[quoted.0]));
                }
            }
        }
        needed
    }

    fn deliver(&mut self, phase: PhaseId, speaker: AgentId, turn: TurnId) {
        for other in self.scenario.phase(phase).agents.iter().filter(|other| **other != speaker) {
            let timeline = self.timeline(*other, phase);
            self.unread.entry(timeline).or_default().push(Input::Heard(turn));
        }
    }
}
