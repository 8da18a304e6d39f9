//! Places of things in a drawing: a column for each turn, a lane for each agent, a band for each phase.
//!
//! A turn is right of all that it waits for, so turns in one column may run together. Bands never cover each
//! other: a phase that would reach into an earlier one's is moved right as a whole, and only then are columns
//! more than the longest path.

use crate::scenario::{AgentId, Edge, PhaseId, Plan, TurnId};
use petgraph::algo::tred;
use petgraph::graph::{DiGraph, NodeIndex};
use std::collections::{BTreeMap, BTreeSet};

/// What each turn of a drawing needs of others in it, in plan order.
type Needs = BTreeMap<TurnId, BTreeSet<(TurnId, Edge)>>;

/// The places of turns, their phases and edges.
#[derive(Debug)]
pub(super) struct Layout {
    /// Column and lane of each turn.
    pub(super) places: BTreeMap<TurnId, (usize, usize)>,
    /// Agents with a lane, from above.
    pub(super) agents: Vec<AgentId>,
    /// Phases with turns, in order.
    pub(super) bands: Vec<Band>,
    /// An agent's successive turns.
    pub(super) memories: Vec<(TurnId, TurnId)>,
    /// Links from turns to those that hear them.
    pub(super) links: Vec<Link>,
}

/// The rectangle of a phase, in columns and lanes; both ends are within.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Band {
    pub(super) phase: PhaseId,
    pub(super) columns: (usize, usize),
    pub(super) lanes: (usize, usize),
}

/// Turns that are all heard by the same turns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) from: Vec<TurnId>,
    pub(super) to: Vec<TurnId>,
}

impl Band {
    fn covers(&self, other: &Self) -> bool {
        let meet = |a: (usize, usize), b: (usize, usize)| a.0 <= b.1 && b.0 <= a.1;
        meet(self.columns, other.columns) && meet(self.lanes, other.lanes)
    }
}

impl Layout {
    /// The layout of some turns of a plan.
    pub(super) fn new(plan: &Plan, turns: &BTreeSet<TurnId>) -> Self {
        let needs = needs(plan, turns);
        let speakers: BTreeSet<AgentId> = turns.iter().map(|id| plan.turn(*id).speaker).collect();
        let agents: Vec<AgentId> = speakers.into_iter().collect();
        let lane: BTreeMap<AgentId, usize> =
            agents.iter().enumerate().map(|(lane, id)| (*id, lane)).collect();
        let lanes = turns.iter().map(|id| (*id, lane[&plan.turn(*id).speaker])).collect();
        let (columns, bands) = columns(plan, &needs, &lanes);
        let memories = needs.iter().flat_map(|(to, needs)| {
            let memory = needs.iter().filter(|(_, edge)| *edge == Edge::Memory);
            memory.map(|(from, _)| (*from, *to))
        });
        let memories = memories.collect();
        let links = links(&needs, &columns);
        let places = columns.iter().map(|(id, column)| (*id, (*column, lanes[id]))).collect();
        Self { places, agents, bands, memories, links }
    }

    pub(super) fn n_columns(&self) -> usize {
        self.places.values().map(|(column, _)| column + 1).max().unwrap_or(0)
    }

    pub(super) fn column(&self, turn: TurnId) -> usize {
        self.places.get(&turn).copied().unwrap_or_default().0
    }

    pub(super) fn lane(&self, turn: TurnId) -> usize {
        self.places.get(&turn).copied().unwrap_or_default().1
    }
}

/// What the turns need of each other. What a turn that is not among them would have read is read at the
/// agent's next one; what waited for it waits for what it waited for.
fn needs(plan: &Plan, turns: &BTreeSet<TurnId>) -> Needs {
    let mut all: Needs = BTreeMap::new();
    for (id, _) in plan.order() {
        let mut needs = BTreeSet::new();
        for (from, edge) in plan.needs(id) {
            if turns.contains(&from) {
                needs.insert((from, edge));
                continue;
            }
            let before = all.get(&from).into_iter().flatten();
            needs.extend(before.map(|(from, of)| match edge {
                Edge::Memory => (*from, *of),
                Edge::Hears | Edge::Decides => (*from, Edge::Decides),
            }));
        }
        all.insert(id, needs);
    }
    all.retain(|id, _| turns.contains(id));
    all
}

/// Phase by phase: the longest path, from the first column at which the phase's band is free of others.
fn columns(
    plan: &Plan,
    needs: &Needs,
    lanes: &BTreeMap<TurnId, usize>,
) -> (BTreeMap<TurnId, usize>, Vec<Band>) {
    let mut phases: BTreeMap<PhaseId, Vec<TurnId>> = BTreeMap::new();
    for id in needs.keys() {
        phases.entry(plan.turn(*id).phase).or_default().push(*id);
    }
    let mut columns: BTreeMap<TurnId, usize> = BTreeMap::new();
    let mut bands: Vec<Band> = Vec::new();
    for (phase, turns) in phases {
        let mut first = 0;
        let band = loop {
            for turn in &turns {
                let after = needs[turn].iter().filter_map(|(from, _)| Some(columns.get(from)? + 1)).max();
                columns.insert(*turn, after.unwrap_or(0).max(first));
            }
            let range = |of: &BTreeMap<TurnId, usize>| {
                let places = turns.iter().map(|turn| of[turn]);
                (places.clone().min().unwrap_or(0), places.max().unwrap_or(0))
            };
            let band = Band { phase, columns: range(&columns), lanes: range(lanes) };
            match bands.iter().filter(|other| band.covers(other)).map(|other| other.columns.1 + 1).max() {
                Some(free) => first = free,
                None => break band,
            }
        };
        bands.push(band);
    }
    (columns, bands)
}

/// Links for what is heard, as few as tell it: an edge that a longer way implies is left out, and where
/// several turns are heard by the same several, as after a broadcast, they meet in one link.
fn links(needs: &Needs, columns: &BTreeMap<TurnId, usize>) -> Vec<Link> {
    // Plan order is a topological order, so the sorted list has the graph's own indices.
    let index: BTreeMap<TurnId, u32> = needs.keys().copied().zip(0..).collect();
    let mut graph: DiGraph<(), ()> = DiGraph::with_capacity(needs.len(), 0);
    for _ in needs.keys() {
        graph.add_node(());
    }
    for (to, needs) in needs {
        let from: BTreeSet<TurnId> = needs.iter().map(|(from, _)| *from).collect();
        for from in from {
            graph.add_edge(NodeIndex::from(index[&from]), NodeIndex::from(index[to]), ());
        }
    }
    let nodes: Vec<NodeIndex> = graph.node_indices().collect();
    let (sorted, _) = tred::dag_to_toposorted_adjacency_list::<_, u32>(&graph, &nodes);
    let (reduced, _) = tred::dag_transitive_reduction_closure(&sorted);
    let mut heard: BTreeMap<Vec<TurnId>, Vec<TurnId>> = BTreeMap::new();
    let mut links = Vec::new();
    for (to, needs) in needs {
        let kept = || needs.iter().filter(|(from, _)| reduced.contains_edge(index[from], index[to]));
        if kept().all(|(_, edge)| *edge == Edge::Memory) {
            continue;
        }
        let from: BTreeSet<TurnId> = kept().map(|(from, _)| *from).collect();
        let from: Vec<TurnId> = from.into_iter().collect();
        let together = from.iter().all(|turn| columns[turn] == columns[&from[0]]);
        if from.len() > 2 && together {
            heard.entry(from).or_default().push(*to);
        } else {
            let hears = kept().filter(|(_, edge)| *edge == Edge::Hears);
            links.extend(hears.map(|(from, _)| Link { from: vec![*from], to: vec![*to] }));
        }
    }
    links.extend(heard.into_iter().map(|(from, to)| Link { from, to }));
    links
}
