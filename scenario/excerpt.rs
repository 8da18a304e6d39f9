//! The part of a plan that consists of some phases: what a rehearsal plays.

use super::PhaseId;
use super::plan::{Change, Condition, Constraint, Horizon, Plan, RoutePoint, Trigger, Turn, TurnId};
use petgraph::graph::DiGraph;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl Plan {
    /// The turns of some phases and the changes of the state in them, in the same order and under the same
    /// conditions. No agent reads anything in it, and no turn has edges: it is to be walked in order. All
    /// phases keep the points at which they begin.
    pub fn excerpt(&self, phases: &BTreeSet<PhaseId>) -> Excerpt {
        let points = Points::new(self, phases);
        let mut graph = DiGraph::new();
        for (_, turn) in self.order().filter(|(_, turn)| phases.contains(&turn.phase)) {
            graph.add_node(points.turn(turn));
        }
        let changes = self.changes.iter().filter(|change| phases.contains(&change.phase));
        let routes = self.routes.iter().filter(|(phase, _)| phases.contains(phase)).map(|(phase, point)| {
            let (route, unread, waits) = (point.route.clone(), BTreeMap::new(), Vec::new());
            (*phase, RoutePoint { route, unread, waits })
        });
        let plan = Self {
            next_use: vec![None; graph.node_count()],
            first_use: BTreeMap::new(),
            unread: Vec::new(),
            begins: self.begins.iter().map(|(at, known)| (*at, points.known(*known))).collect(),
            changes: changes.map(|change| points.change(change)).collect(),
            routes: routes.collect(),
            language: self.language.clone(),
            graph,
        };
        let of = self.order().filter(|(_, turn)| phases.contains(&turn.phase)).map(|(id, _)| id);
        Excerpt { plan: Arc::new(plan), whole: of.collect(), points }
    }
}

/// The part of a plan that consists of some phases.
#[derive(Clone, Debug)]
pub struct Excerpt {
    /// The plan of that part.
    pub plan: Arc<Plan>,
    /// The turns in the whole plan.
    whole: Vec<TurnId>,
    points: Points,
}

impl Excerpt {
    /// A turn of the part in the whole plan.
    pub fn whole(&self, id: TurnId) -> TurnId {
        self.whole[id.0]
    }

    /// A turn of the whole plan in the part, if it is there.
    pub fn id(&self, id: TurnId) -> TurnId {
        self.points.id(id)
    }

    /// A point of the whole plan in the part.
    pub fn map_horizon(&self, known: Horizon) -> Horizon {
        self.points.known(known)
    }
}

/// For each point of a plan, the same point of an excerpt.
#[derive(Clone, Debug)]
struct Points {
    turns: Vec<usize>,
    changes: Vec<usize>,
}

impl Points {
    fn new(plan: &Plan, phases: &BTreeSet<PhaseId>) -> Self {
        let turns = plan.order().map(|(_, turn)| phases.contains(&turn.phase));
        let changes = plan.changes.iter().map(|change| phases.contains(&change.phase));
        Self { turns: counted(turns), changes: counted(changes) }
    }

    fn id(&self, id: TurnId) -> TurnId {
        TurnId(self.turns[id.0])
    }

    fn known(&self, known: Horizon) -> Horizon {
        Horizon { turns: self.id(known.turns), changes: self.changes[known.changes] }
    }

    fn turn(&self, turn: &Turn) -> Turn {
        let guard = turn.guard.iter().map(|condition| match condition {
            Condition::Chose(id, option) => Condition::Chose(self.id(*id), *option),
            Condition::Played(id) => Condition::Played(self.id(*id)),
            Condition::NotPlayed(id) => Condition::NotPlayed(self.id(*id)),
            other => other.clone(),
        });
        let constraint = turn.constraint.as_ref().map(|constraint| {
            let except = constraint.except.iter().map(|id| self.id(*id)).collect();
            Constraint { except, ..constraint.clone() }
        });
        let (guard, known) = (guard.collect(), self.known(turn.known));
        Turn { inputs: Vec::new(), guard, constraint, known, ..turn.clone() }
    }

    fn change(&self, change: &Change) -> Change {
        let after = match change.after {
            Trigger::Turn(id) => Trigger::Turn(self.id(id)),
            other => other,
        };
        Change { after, known: self.known(change.known), ..change.clone() }
    }
}

/// How many are kept before each, and of all.
fn counted(kept: impl Iterator<Item = bool>) -> Vec<usize> {
    let mut n = 0;
    let mut before: Vec<usize> = vec![0];
    before.extend(kept.map(|is_kept| {
        n += usize::from(is_kept);
        n
    }));
    before
}
