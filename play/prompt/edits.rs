//! Edits of a fork: replies that were given from outside, and lines that the stage adds. A header records
//! them, so that a replay knows what neither the scenario nor a model said.

use crate::transcript::Forked;
use greenroom_scenario::{AgentId, Plan, Scenario, TurnId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Edits of a fork, by the turns of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    /// Replies that nothing requests.
    pub(super) said: BTreeMap<TurnId, Arc<str>>,
    /// Added lines, the earliest first.
    pub(super) added: Vec<StageLine>,
}

/// A line that the stage adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StageLine {
    /// The turn that it is before.
    pub(super) before: TurnId,
    /// Its reader; `None`: the cast of that turn's phase.
    pub(super) to: Option<AgentId>,
    pub(super) text: String,
}

impl Edits {
    /// Those that a header records. One of a turn or an agent that is not there any more is left out.
    pub fn of(forked: &Forked, plan: &Plan, scenario: &Scenario) -> Self {
        let said =
            forked.said.iter().filter_map(|said| Some((plan.find(&said.turn)?, said.text.as_str().into())));
        let added = forked.told.iter().filter_map(|told| {
            let to = match &told.to {
                Some(key) => Some(scenario.agent_by_key(key)?),
                None => None,
            };
            Some(StageLine { before: plan.find(&told.before)?, to, text: told.text.clone() })
        });
        let (said, mut added): (_, Vec<StageLine>) = (said.collect(), added.collect());
        added.sort_by_key(|line| line.before);
        Self { said, added }
    }
}
