//! What is computed once, whenever something first asks for it, and never changes: the state after each
//! change, who is present in each phase, which passes of blocks are played, which pairs speak in a round.

use greenroom_scenario::results::StateValues;
use greenroom_scenario::{AgentId, PhaseId, Plan, Scenario};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

/// The state after each change that has been computed; what is in it never changes.
#[derive(Clone, Debug, Default)]
pub(super) struct States(pub(super) Vec<OnceLock<Arc<StateValues>>>);

impl States {
    pub(super) fn new(n_changes: usize) -> Self {
        Self((0..n_changes).map(|_| OnceLock::new()).collect())
    }
}

/// Who speaks to whom in a round: first the first, then the second.
pub(super) type Pairs = Arc<[(AgentId, AgentId)]>;

/// What has been computed once for each phase and each pass.
#[derive(Clone, Debug, Default)]
pub(super) struct Memo {
    pub(super) casts: Vec<OnceLock<Arc<BTreeSet<AgentId>>>>,
    pub(super) passes: Vec<OnceLock<bool>>,
    /// For each round of a phase whose pairs an expression gives.
    pub(super) pairs: BTreeMap<(PhaseId, usize), OnceLock<Pairs>>,
}

impl Memo {
    pub(super) fn new(scenario: &Scenario, plan: &Plan) -> Self {
        let is_matched = |id: PhaseId| scenario.phase(id).matched().is_some();
        let rounds = plan.begins.keys().filter(|(phase, _)| is_matched(*phase));
        Self {
            casts: scenario.phases.iter().map(|_| OnceLock::new()).collect(),
            passes: scenario.passes.iter().map(|_| OnceLock::new()).collect(),
            pairs: rounds.map(|at| (*at, OnceLock::new())).collect(),
        }
    }
}
