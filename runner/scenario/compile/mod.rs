//! From a scenario to its plan: who reads what before each turn, and what therefore waits for what.
//!
//! Deliveries are worked out here, once, in graph order; so what an agent reads never depends on which turn
//! happened to finish first. Who speaks in a round is in `rounds`, how a phase votes in `votes`.

mod rounds;
mod votes;

use super::plan::{
    Announced, Audience, Condition, Constraint, Edge, Input, Plan, Purpose, TimelineId, Turn, TurnId,
};
use super::template::Template;
use super::{AgentId, Form, Lifecycle, PhaseId, Scenario};
use petgraph::graph::{DiGraph, NodeIndex};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

pub(super) use rounds::n_turns;

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
    let mut first = BTreeMap::new();
    for phase in (0..scenario.phases.len()).map(PhaseId) {
        first.insert((phase, 0), TurnId(compiler.graph.node_count()));
        compiler.phase(phase);
    }
    for node in compiler.graph.node_indices() {
        let turn = &compiler.graph[node];
        first.entry((turn.phase, turn.round)).or_insert(TurnId(node.index()));
    }
    let plan = Plan {
        first,
        graph: compiler.graph,
        next_use: compiler.next_use,
        unread: compiler.unread.into_iter().collect(),
    };
    assert!(!petgraph::algo::is_cyclic_directed(&plan.graph), "edges only go from earlier to later turns");
    // A path names a turn in transcripts and seeds it.
    let mut paths = HashSet::new();
    for turn in plan.graph.node_weights() {
        assert!(paths.insert(turn.path.as_str()), "two turns have the path {}", turn.path);
    }
    plan
}

struct Compiler<'a> {
    scenario: &'a Scenario,
    graph: DiGraph<Turn, Edge>,
    next_use: Vec<Option<TurnId>>,
    /// The inputs that each memory has not read yet.
    unread: BTreeMap<TimelineId, Vec<Input>>,
    /// Each memory's latest turn.
    last: BTreeMap<TimelineId, TurnId>,
    spoken_in: Vec<Vec<TurnId>>,
}

/// A turn about to be added.
struct Draft {
    speaker: AgentId,
    /// The end of the path, which makes it unique where an agent speaks twice in a round.
    suffix: String,
    cue: String,
    ask: Option<Arc<Template>>,
    guard: Vec<Condition>,
    constraint: Option<Constraint>,
    form: Option<Arc<Form>>,
    purpose: Purpose,
    audience: Audience,
    /// The first turn that its texts do not know of, where it is not the turn itself.
    known: Option<TurnId>,
}

impl Compiler<'_> {
    fn timeline(&self, agent: AgentId, phase: PhaseId) -> TimelineId {
        let ephemeral = self.scenario.agent(agent).lifecycle == Lifecycle::Ephemeral;
        TimelineId { agent, phase: ephemeral.then_some(phase) }
    }

    fn phase(&mut self, id: PhaseId) {
        let phase = self.scenario.phase(id);
        self.happens(id, &phase.agents, Input::Opening(id));
        let opens: Vec<_> = phase.when.iter().map(|_| Condition::Opens(id)).collect();
        let mut left = phase.max_turns.unwrap_or(usize::MAX);
        for round in 1..=phase.rounds {
            self.announce(id, round, false);
            let ends = phase.until.is_some() && round > 1;
            let ends = ends.then_some(Condition::GoesOn(id, round));
            let guard: Vec<_> = opens.iter().cloned().chain(ends).collect();
            self.round(id, round, &guard, &mut left);
            self.announce(id, round, true);
            if left == 0 {
                break;
            }
        }
        if let Some(decision) = phase.decision {
            self.decide(id, decision, &opens, &mut left);
        }
    }

    /// Lets all whom they name read the announcements before or after a round.
    fn announce(&mut self, phase: PhaseId, round: usize, is_after: bool) {
        let scenario = self.scenario;
        let known = TurnId(self.graph.node_count());
        let announcements = scenario.phase(phase).announcements.iter().enumerate();
        for (index, announcement) in announcements.filter(|(_, each)| each.is_after == is_after) {
            let announced = Announced { phase, round, index, known };
            self.happens(phase, &announcement.to, Input::Announced(announced));
        }
    }

    /// Adds a turn; it reads what its memory has not read yet.
    fn turn(&mut self, phase: PhaseId, round: usize, draft: Draft) -> TurnId {
        let Draft { speaker, suffix, cue, ask, guard, constraint, form, purpose, audience, known } = draft;
        let timeline = self.timeline(speaker, phase);
        let inputs = self.unread.insert(timeline, Vec::new()).unwrap_or_default();
        let key = &self.scenario.agent(speaker).key;
        let path = format!("{}/{round}/{key}{suffix}", self.scenario.phase(phase).name);
        let turn = Turn {
            path,
            phase,
            round,
            speaker,
            timeline,
            inputs,
            known: known.unwrap_or(TurnId(self.graph.node_count())),
            ask,
            cue,
            guard,
            // Whose turn is a choice, or gives the floor, says that alone.
            form: form.filter(|_| constraint.is_none()),
            constraint,
            purpose,
            audience,
        };
        let memory = self.last.get(&timeline).copied();
        let needed = self.needed(&turn, memory);
        let node = self.graph.add_node(turn);
        let id = TurnId(node.index());
        self.next_use.push(None);
        self.last.insert(timeline, id);
        if let Some(memory) = memory {
            self.graph.add_edge(NodeIndex::new(memory.0), node, Edge::Memory);
            self.next_use[memory.0] = Some(id);
        }
        for (needed, edge) in needed.into_iter().filter(|(needed, _)| Some(*needed) != memory) {
            self.graph.add_edge(NodeIndex::new(needed.0), node, edge);
        }
        self.spoken_in[phase.0].push(id);
        id
    }

    /// The turns that this one waits for, its own memory's aside: what it reads, and what decides about it.
    fn needed(&self, turn: &Turn, memory: Option<TurnId>) -> BTreeMap<TurnId, Edge> {
        let mut needed = BTreeMap::new();
        for condition in &turn.guard {
            needed.extend(self.deciding(turn, condition, memory).into_iter().map(|id| (id, Edge::Decides)));
        }
        let except = turn.constraint.iter().flat_map(|constraint| &constraint.except);
        needed.extend(except.map(|id| (*id, Edge::Decides)));
        let mut read = Vec::new();
        for input in &turn.inputs {
            match input {
                Input::Heard(turn) => read.push(*turn),
                Input::Announced(Announced { phase, round, index, known }) => {
                    let here = self.scenario.phase(*phase);
                    // Whether the round is played is known by then: the phase may end before, or a vote be unanimous.
                    let until = here.until.iter().filter(|_| *round > 1);
                    let own = (until.clone().next().is_some() || *round > here.rounds).then_some(phase);
                    let conditions = until.chain(&here.when).flat_map(|condition| &condition.phases);
                    let named = here.announcements[*index].text.quotes.iter().chain(conditions).chain(own);
                    let spoken = named.flat_map(|phase| &self.spoken_in[phase.0]);
                    read.extend(spoken.filter(|turn| *turn < known));
                }
                Input::Vote(phase, attempt) => read.extend(self.ballots(*phase, *attempt)),
                Input::Opening(phase) => {
                    let here = self.scenario.phase(*phase);
                    let opening = here.opening(turn.speaker).flat_map(|(_, template)| &template.quotes);
                    let when = here.when.iter().flat_map(|when| &when.phases);
                    read.extend(opening.chain(when).flat_map(|phase| &self.spoken_in[phase.0]));
                }
            }
        }
        let asked = turn.ask.iter().chain(turn.constraint.iter().filter_map(|c| c.choice.ask.as_ref()));
        let asked = asked.flat_map(|ask| &ask.quotes).flat_map(|phase| &self.spoken_in[phase.0]);
        read.extend(asked.filter(|id| **id < turn.known));
        needed.extend(read.into_iter().map(|id| (id, Edge::Hears)));
        needed
    }

    /// Turns that a condition looks at. What the memory's last turn in this phase waited for is done by then.
    fn deciding(&self, turn: &Turn, condition: &Condition, memory: Option<TurnId>) -> Vec<TurnId> {
        let said_in = |phases: &[PhaseId]| -> Vec<TurnId> {
            phases.iter().flat_map(|phase| &self.spoken_in[phase.0]).copied().collect()
        };
        let phase = self.scenario.phase(turn.phase);
        let before = memory.map(|id| &self.graph[NodeIndex::new(id.0)]);
        match condition {
            Condition::Opens(_) if before.is_some_and(|before| before.phase == turn.phase) => Vec::new(),
            Condition::Opens(_) => phase.when.as_ref().map_or(Vec::new(), |when| said_in(&when.phases)),
            Condition::GoesOn(id, round) => {
                let spoken = self.spoken_in[id.0].iter().copied();
                let last_round = spoken.filter(|id| self.graph[NodeIndex::new(id.0)].round + 1 == *round);
                let others = phase.until.iter().flat_map(|until| &until.phases).filter(|other| *other != id);
                let others: Vec<PhaseId> = others.copied().filter(|_| *round == 2).collect();
                last_round.chain(said_in(&others)).collect()
            }
            Condition::Holds(expression) => said_in(&expression.phases),
            Condition::Chose(id, _) | Condition::NotPlayed(id) => vec![*id],
            Condition::Undecided(id, attempt) => self.ballots(*id, attempt - 1).collect(),
        }
    }

    fn ballots(&self, phase: PhaseId, attempt: usize) -> impl Iterator<Item = TurnId> {
        let is_ballot = move |id: &TurnId| {
            let purpose = self.graph[NodeIndex::new(id.0)].purpose;
            matches!(purpose, Purpose::Ballot { attempt: of, .. } if of == attempt)
        };
        self.spoken_in[phase.0].iter().copied().filter(is_ballot)
    }

    /// Lets everybody else who can hear a turn hear it.
    fn deliver(&mut self, turn: TurnId) {
        let Turn { phase, speaker, audience, .. } = &self.graph[NodeIndex::new(turn.0)];
        let (phase, speaker) = (*phase, *speaker);
        let present = self.scenario.phase(phase).agents.iter().copied();
        let listeners: Vec<_> = present.filter(|other| *other != speaker && audience.hears(*other)).collect();
        self.happens(phase, &listeners, Input::Heard(turn));
    }

    fn happens(&mut self, phase: PhaseId, to: &[AgentId], input: Input) {
        for agent in to {
            let timeline = self.timeline(*agent, phase);
            self.unread.entry(timeline).or_default().push(input);
        }
    }
}
