//! What is computed once, whenever something first asks for it, and never changes: the state after each
//! change, who is present in each phase, which passes of blocks are played.

use greenroom_scenario::AgentId;
use greenroom_scenario::results::StateValues;
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

/// The state after each change that has been computed; what is in it never changes.
#[derive(Clone, Debug, Default)]
pub(super) struct States(pub(super) Vec<OnceLock<Arc<StateValues>>>);

impl States {
    pub(super) fn new(n_changes: usize) -> Self {
        Self((0..n_changes).map(|_| OnceLock::new()).collect())
    }
}

/// What has been computed once for each phase and each pass.
#[derive(Clone, Debug, Default)]
pub(super) struct Memo {
    pub(super) casts: Vec<OnceLock<Arc<BTreeSet<AgentId>>>>,
    pub(super) passes: Vec<OnceLock<bool>>,
}

impl Memo {
    pub(super) fn new(n_phases: usize, n_passes: usize) -> Self {
        Self {
            casts: (0..n_phases).map(|_| OnceLock::new()).collect(),
            passes: (0..n_passes).map(|_| OnceLock::new()).collect(),
        }
    }
}
