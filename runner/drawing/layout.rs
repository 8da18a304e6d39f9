//! Places of things in a drawing: a column for each turn, a lane for each agent, a band for each phase.
//!
//! A turn is right of all that it waits for, so turns in one column may run together. Bands never cover each
//! other: a phase that would reach into an earlier one's is moved right as a whole, and only then are columns
//! more than the longest path.

use crate::scenario::{AgentId, Edge, PhaseId, Plan, TurnId};
use petgraph::algo::tred;
use petgraph::graph::NodeIndex;
use std::collections::{BTreeMap, BTreeSet};

/// The places of a plan's turns, phases and edges.
#[derive(Debug)]
pub(super) struct Layout {
    /// Column of each turn.
    pub(super) columns: Vec<usize>,
    /// Lane of each turn.
    pub(super) lanes: Vec<usize>,
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
    pub(super) fn new(plan: &Plan) -> Self {
        let speakers: BTreeSet<AgentId> = plan.order().map(|(_, turn)| turn.speaker).collect();
        let agents: Vec<AgentId> = speakers.into_iter().collect();
        let lane: BTreeMap<AgentId, usize> =
            agents.iter().enumerate().map(|(lane, id)| (*id, lane)).collect();
        let lanes: Vec<usize> = plan.order().map(|(_, turn)| lane[&turn.speaker]).collect();
        let (columns, bands) = columns(plan, &lanes);
        let memories = plan.order().flat_map(|(to, _)| {
            let needs = plan.needs(to).filter(|(_, edge)| *edge == Edge::Memory);
            needs.map(move |(from, _)| (from, to))
        });
        let memories = memories.collect();
        let links = links(plan, &columns);
        Self { columns, lanes, agents, bands, memories, links }
    }

    pub(super) fn n_columns(&self) -> usize {
        self.columns.iter().max().map_or(0, |last| last + 1)
    }
}

/// Phase by phase: the longest path, from the first column at which the phase's band is free of others.
fn columns(plan: &Plan, lanes: &[usize]) -> (Vec<usize>, Vec<Band>) {
    let mut phases: BTreeMap<PhaseId, Vec<TurnId>> = BTreeMap::new();
    for (id, turn) in plan.order() {
        phases.entry(turn.phase).or_default().push(id);
    }
    let mut columns = vec![0; plan.n_turns()];
    let mut bands: Vec<Band> = Vec::new();
    for (phase, turns) in phases {
        let mut first = 0;
        let band = loop {
            for turn in &turns {
                let after = plan.needs(*turn).map(|(from, _)| columns[from.0] + 1).max().unwrap_or(0);
                columns[turn.0] = after.max(first);
            }
            let range = |of: &[usize]| {
                let places = turns.iter().map(|turn| of[turn.0]);
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
fn links(plan: &Plan, columns: &[usize]) -> Vec<Link> {
    let nodes: Vec<NodeIndex> = plan.graph.node_indices().collect();
    let (sorted, _) = tred::dag_to_toposorted_adjacency_list::<_, u32>(&plan.graph, &nodes);
    let (reduced, _) = tred::dag_transitive_reduction_closure(&sorted);
    // Plan order is a topological order, so the sorted list has the plan's own indices.
    let keeps = |from: TurnId, to: TurnId| reduced.contains_edge(from.0 as u32, to.0 as u32);
    let mut heard: BTreeMap<Vec<TurnId>, Vec<TurnId>> = BTreeMap::new();
    let mut links = Vec::new();
    for (to, _) in plan.order() {
        let kept: Vec<(TurnId, Edge)> = plan.needs(to).filter(|(from, _)| keeps(*from, to)).collect();
        if kept.iter().all(|(_, edge)| *edge == Edge::Memory) {
            continue;
        }
        let mut from: Vec<TurnId> = kept.iter().map(|(from, _)| *from).collect();
        from.sort_unstable();
        let together = from.iter().all(|turn| columns[turn.0] == columns[from[0].0]);
        if from.len() > 2 && together {
            heard.entry(from).or_default().push(to);
        } else {
            let hears = kept.into_iter().filter(|(_, edge)| *edge == Edge::Hears);
            links.extend(hears.map(|(from, _)| Link { from: vec![from], to: vec![to] }));
        }
    }
    links.extend(heard.into_iter().map(|(from, to)| Link { from, to }));
    links
}
