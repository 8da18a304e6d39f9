//! From a scenario to its plan: who reads what before each turn, and what therefore waits for what.
//!
//! Deliveries are computed here, once, in graph order; so what an agent reads never depends on which turn
//! happened to finish first. Who speaks in a round is in `rounds`, how a phase votes in `votes`.

mod rounds;
mod votes;

use super::hints::Hints;
use super::plan::{
    Announced, Audience, Change, Condition, Constraint, Edge, Horizon, Input, Plan, Purpose, RoutePoint,
    TimelineId, Trigger, Turn, TurnId,
};
use super::template::Template;
use super::{AgentId, Assignment, Form, Lifecycle, Phase, PhaseId, Route, Scenario};
use petgraph::graph::{DiGraph, NodeIndex};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

pub(super) use rounds::{n_each_round, n_turns};
pub(super) use votes::n_rounds_between;

/// Unrolls a scenario.
pub(super) fn compile(scenario: &Scenario) -> Plan {
    let mut compiler = Compiler {
        scenario,
        graph: DiGraph::new(),
        next_use: Vec::new(),
        first_use: BTreeMap::new(),
        unread: BTreeMap::new(),
        last: BTreeMap::new(),
        spoken_in: vec![Vec::new(); scenario.phases.len()],
        begins: BTreeMap::new(),
        changes: Vec::new(),
        routes: BTreeMap::new(),
    };
    (0..scenario.phases.len()).for_each(|phase| compiler.phase(PhaseId(phase)));
    let plan = Plan {
        begins: compiler.begins,
        changes: compiler.changes,
        routes: compiler.routes,
        language: scenario.language.hash(),
        graph: compiler.graph,
        next_use: compiler.next_use,
        first_use: compiler.first_use,
        unread: compiler.unread.into_iter().collect(),
    };
    // petgraph's own test for cycles calls itself once a turn: a plan of thousands overflows the stack of a
    // thread.
    let is_onward = plan.graph.raw_edges().iter().all(|edge| edge.source() < edge.target());
    assert!(is_onward, "edges only go from earlier to later turns");
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
    first_use: BTreeMap<TimelineId, TurnId>,
    /// The inputs that each memory has not read yet.
    unread: BTreeMap<TimelineId, Vec<Input>>,
    /// Each memory's latest turn.
    last: BTreeMap<TimelineId, TurnId>,
    spoken_in: Vec<Vec<TurnId>>,
    begins: BTreeMap<(PhaseId, usize), Horizon>,
    changes: Vec<Change>,
    routes: BTreeMap<PhaseId, RoutePoint>,
}

/// A turn about to be added.
struct TurnDraft {
    speaker: AgentId,
    /// The end of the path, which makes it unique where an agent speaks twice in a round.
    suffix: String,
    cue: String,
    ask: Option<Arc<Template>>,
    guard: Vec<Condition>,
    constraint: Option<Constraint>,
    form: Option<Arc<Form>>,
    /// The tool to call first.
    call: Option<Arc<str>>,
    purpose: Purpose,
    audience: Audience,
    /// All that its texts know of, where it is not all before the turn.
    known: Option<Horizon>,
    /// Settings of this turn alone.
    hints: Hints,
}

impl Compiler<'_> {
    fn timeline(&self, agent: AgentId, phase: PhaseId) -> TimelineId {
        let ephemeral = self.scenario.agent(agent).lifecycle == Lifecycle::Ephemeral;
        TimelineId { agent, phase: ephemeral.then_some(phase) }
    }

    fn phase(&mut self, id: PhaseId) {
        let phase = self.scenario.phase(id);
        self.begins.insert((id, 0), self.horizon());
        self.reads_record(id);
        if let Some(route) = &phase.route {
            let point = self.route_point(route);
            self.routes.insert(id, point);
        }
        self.happens(id, &phase.agents, Input::Opening(id));
        let is_conditional = self.scenario.opens_if(id).next().is_some();
        let opens: Vec<_> = is_conditional.then_some(Condition::Opens(id)).into_iter().collect();
        let mut left = phase.max_turns.unwrap_or(usize::MAX);
        for round in 1..=phase.rounds {
            self.begins.insert((id, round), self.horizon());
            self.announce(id, round, false);
            let ends = phase.until.is_some() && round > 1;
            let ends = ends.then_some(Condition::NotYetEnded(id, round));
            let guard: Vec<_> = opens.iter().cloned().chain(ends).collect();
            self.round(id, round, &guard, &mut left);
            self.round_ends(id, round);
            if left == 0 {
                break;
            }
        }
        if let Some(decision) = phase.decision {
            self.decide(id, decision, &opens, &mut left);
        }
        self.change(id, Trigger::Phase, &phase.set);
    }

    /// A judge from outside reads all that the cast has said.
    fn reads_record(&mut self, id: PhaseId) {
        let scenario = self.scenario;
        let outside = |phase: &Phase| -> Vec<AgentId> {
            phase.agents.iter().copied().filter(|agent| scenario.agent(*agent).is_outside).collect()
        };
        let judges = outside(scenario.phase(id));
        if judges.is_empty() {
            return;
        }
        let of_cast = (0..id.0).map(PhaseId).filter(|before| !scenario.phase(*before).is_judge);
        of_cast.for_each(|before| self.happens(id, &judges, Input::Record(before)));
    }

    /// All that there is by now.
    fn horizon(&self) -> Horizon {
        Horizon { turns: TurnId(self.graph.node_count()), changes: self.changes.len() }
    }

    /// The state changes after a round, and is announced.
    fn round_ends(&mut self, id: PhaseId, round: usize) {
        self.change(id, Trigger::Round(round), &self.scenario.phase(id).set_each_round);
        self.announce(id, round, true);
    }

    /// Adds a change of the state, if there is something to change.
    fn change(&mut self, phase: PhaseId, after: Trigger, set: &Arc<[Assignment]>) {
        if set.is_empty() {
            return;
        }
        let name = &self.scenario.phase(phase).part;
        let path = match after {
            Trigger::Phase => name.clone(),
            Trigger::Round(round) => format!("{name}/{round}"),
            Trigger::Turn(turn) => self.graph[NodeIndex::new(turn.0)].path.clone(),
        };
        self.changes.push(Change { path, phase, after, set: set.clone(), known: self.horizon() });
    }

    /// Lets all agents named read the announcements before or after a round.
    fn announce(&mut self, phase: PhaseId, round: usize, is_after: bool) {
        let scenario = self.scenario;
        let known = self.horizon();
        let announcements = scenario.phase(phase).announcements.iter().enumerate();
        for (index, announcement) in announcements.filter(|(_, each)| each.is_after == is_after) {
            let announced = Announced { phase, round, index, known };
            self.happens(phase, &announcement.to, Input::Announced(announced));
        }
    }

    /// Adds a turn; it reads what its memory has not read yet.
    fn turn(&mut self, phase: PhaseId, round: usize, draft: TurnDraft) -> TurnId {
        let TurnDraft {
            speaker,
            suffix,
            cue,
            ask,
            mut guard,
            constraint,
            form,
            call,
            purpose,
            audience,
            known,
            hints,
        } = draft;
        guard.extend(self.scenario.phase(phase).is_cast_open().then_some(Condition::Present));
        guard.extend(self.can_choose(phase, purpose, constraint.as_ref()));
        let timeline = self.timeline(speaker, phase);
        let inputs = self.unread.insert(timeline, Vec::new()).unwrap_or_default();
        let (agent, here) = (self.scenario.agent(speaker), self.scenario.phase(phase));
        let path = format!("{}/{round}/{}{suffix}", here.part, agent.key);
        let hints = match agent.strategy {
            None => hints.over(&here.hints).over(&agent.hints),
            Some(_) => Hints::default(),
        };
        let turn = Turn {
            path,
            phase,
            round,
            speaker,
            timeline,
            inputs,
            known: known.unwrap_or(self.horizon()),
            ask,
            cue,
            guard,
            // A speaker whose turn is a choice, or gives the floor, says only that.
            form: form.filter(|_| constraint.is_none()),
            call,
            constraint,
            purpose,
            audience,
            hints,
        };
        let memory = self.last.get(&timeline).copied();
        let needed = self.needed(&turn, memory);
        let node = self.graph.add_node(turn);
        let id = TurnId(node.index());
        self.next_use.push(None);
        self.first_use.entry(timeline).or_insert(id);
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

    fn purpose(&self, turn: TurnId) -> Purpose {
        self.graph[NodeIndex::new(turn.0)].purpose
    }

    /// The condition of a choice whose options are not always open.
    fn can_choose(
        &self,
        phase: PhaseId,
        purpose: Purpose,
        constraint: Option<&Constraint>,
    ) -> Option<Condition> {
        let choice = &constraint?.choice;
        let is_floor = purpose == Purpose::Floor && self.scenario.phase(phase).is_cast_open();
        (choice.open.is_some() || is_floor).then_some(Condition::CanChoose)
    }

    /// The turns that this one waits for, its own memory's aside: what it reads, and what decides about it.
    fn needed(&self, turn: &Turn, memory: Option<TurnId>) -> BTreeMap<TurnId, Edge> {
        let mut needed = BTreeMap::new();
        for condition in &turn.guard {
            needed.extend(self.deciding(turn, condition, memory).into_iter().map(|id| (id, Edge::Decides)));
        }
        let except = turn.constraint.iter().flat_map(|constraint| &constraint.except);
        needed.extend(except.map(|id| (*id, Edge::Decides)));
        let mut read = self.reads(turn.speaker, &turn.inputs);
        read.extend(self.picked(turn));
        let asked = turn.ask.iter().chain(turn.constraint.iter().filter_map(|c| c.choice.ask.as_ref()));
        let asked = asked.flat_map(|ask| ask.needs()).flat_map(|phase| &self.spoken_in[phase.0]);
        read.extend(asked.filter(|id| **id < turn.known.turns));
        needed.extend(read.into_iter().map(|id| (id, Edge::Hears)));
        needed
    }

    /// The turns that reading these inputs waits for.
    fn reads(&self, reader: AgentId, inputs: &[Input]) -> Vec<TurnId> {
        let mut read = Vec::new();
        for input in inputs {
            match input {
                Input::Heard(turn) => read.push(*turn),
                Input::Announced(Announced { phase, round, index, known }) => {
                    let here = self.scenario.phase(*phase);
                    // Whether the round is played is known by then: the phase may end before, or a vote be
                    // unanimous.
                    let until = here.until.iter().filter(|_| *round > 1);
                    let own = (until.clone().next().is_some() || *round > here.rounds).then_some(phase);
                    let opens = self.scenario.opens_if(*phase).chain(&here.cast);
                    let conditions = until.chain(opens).flat_map(|condition| condition.needs());
                    let named = here.announcements[*index].text.needs().chain(conditions).chain(own.copied());
                    let spoken = named.flat_map(|phase| &self.spoken_in[phase.0]);
                    read.extend(spoken.filter(|turn| **turn < known.turns));
                }
                Input::Vote(phase, attempt) => read.extend(self.ballots(*phase, *attempt)),
                Input::Record(phase) => read.extend(&self.spoken_in[phase.0]),
                Input::Opening(phase) => {
                    let here = self.scenario.phase(*phase);
                    let opening = here.opening(reader).flat_map(|(_, template)| template.needs());
                    let when = self.scenario.opens_if(*phase).chain(&here.cast).flat_map(|when| when.needs());
                    read.extend(opening.chain(when).flat_map(|phase| &self.spoken_in[phase.0]));
                }
            }
        }
        read
    }

    /// Of each other phase whose speakers are picked, and of which a turn reads something, the first turn: by
    /// then it is known who they are.
    fn picked(&self, turn: &Turn) -> Vec<TurnId> {
        let phase_of = |input: &Input| match input {
            Input::Opening(phase) | Input::Vote(phase, _) | Input::Record(phase) => *phase,
            Input::Announced(announced) => announced.phase,
            Input::Heard(turn) => self.graph[NodeIndex::new(turn.0)].phase,
        };
        let routed = turn
            .inputs
            .iter()
            .map(phase_of)
            .filter(|phase| *phase != turn.phase && self.scenario.phase(*phase).route.is_some());
        routed.filter_map(|phase| self.spoken_in[phase.0].first().copied()).collect()
    }

    /// The point at which speakers are picked: all that the candidates have read by then, and what the query
    /// names.
    fn route_point(&self, route: &Arc<Route>) -> RoutePoint {
        let mut point = RoutePoint { route: route.clone(), unread: BTreeMap::new(), waits: Vec::new() };
        let named = route.query.needs().flat_map(|phase| self.spoken_in[phase.0].clone());
        point.waits.extend(named);
        for agent in &route.among {
            let of = TimelineId { agent: *agent, phase: None };
            let unread = self.unread.get(&of).cloned().unwrap_or_default();
            point.waits.extend(self.reads(*agent, &unread));
            point.waits.extend(self.last.get(&of));
            point.unread.insert(of, unread);
        }
        point.waits.sort_unstable();
        point.waits.dedup();
        point
    }

    /// Turns that a condition looks at. What the memory's last turn in this phase waited for is done by then.
    fn deciding(&self, turn: &Turn, condition: &Condition, memory: Option<TurnId>) -> Vec<TurnId> {
        let said_in = |phases: &mut dyn Iterator<Item = PhaseId>| -> Vec<TurnId> {
            phases.flat_map(|phase| &self.spoken_in[phase.0]).copied().collect()
        };
        // Those who choose at once know nothing of each other.
        let said_before = |phases: &mut dyn Iterator<Item = PhaseId>| -> Vec<TurnId> {
            said_in(phases).into_iter().filter(|id| *id < turn.known.turns).collect()
        };
        let phase = self.scenario.phase(turn.phase);
        let before = memory.map(|id| &self.graph[NodeIndex::new(id.0)]);
        match condition {
            Condition::Opens(_) if before.is_some_and(|before| before.phase == turn.phase) => Vec::new(),
            Condition::Opens(id) => said_in(&mut self.scenario.opens_if(*id).flat_map(|when| when.needs())),
            Condition::Present if before.is_some_and(|before| before.phase == turn.phase) => Vec::new(),
            Condition::Present => {
                let picked = self.routes.get(&turn.phase).map(|route| route.waits.clone());
                picked.unwrap_or_else(|| said_in(&mut phase.cast.iter().flat_map(|cast| cast.needs())))
            }
            Condition::Votes => {
                let among = phase.voters.iter().filter_map(|voters| voters.among.as_ref());
                said_before(&mut among.flat_map(|among| among.needs()))
            }
            Condition::CanChoose => {
                let open = turn.constraint.iter().filter_map(|constraint| constraint.choice.open.as_ref());
                said_before(&mut open.flat_map(|open| open.needs()))
            }
            Condition::NotYetEnded(id, round) => {
                let spoken = self.spoken_in[id.0].iter().copied();
                let last_round = spoken.filter(|id| self.graph[NodeIndex::new(id.0)].round + 1 == *round);
                let others = phase.until.iter().flat_map(|until| until.needs()).filter(|other| other != id);
                last_round.chain(said_in(&mut others.filter(|_| *round == 2))).collect()
            }
            Condition::Holds(expression) => said_in(&mut expression.needs()),
            Condition::Drawn(_) => Vec::new(),
            Condition::Paired(_, _, pairs) => {
                let begin =
                    self.begins.get(&(turn.phase, turn.round)).map_or(turn.known.turns, |at| at.turns);
                said_in(&mut pairs.needs()).into_iter().filter(|id| *id < begin).collect()
            }
            Condition::Chose(id, _) | Condition::Played(id) | Condition::NotPlayed(id) => vec![*id],
            Condition::Undecided(id, attempt) => self.ballots(*id, attempt - 1).collect(),
        }
    }

    fn ballots(&self, phase: PhaseId, attempt: usize) -> impl Iterator<Item = TurnId> {
        let is_ballot = move |id: &TurnId| {
            let purpose = self.purpose(*id);
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
