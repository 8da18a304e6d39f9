//! Values of the state over time: those that a run begins with, and each that was set.

use super::{Run, Sample};
use crate::replay::seeds;
use crate::scenario::{PhaseId, Trigger, TurnId, evaluate};
use crate::transcript::InterTurnRecord;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::HashMap;

/// A value of the state, or an agent's entry of a mapping by agent.
pub(super) struct StateValue<'a> {
    pub(super) run: &'a Run,
    /// The change's path in the transcript; `None`: it is there before the first turn.
    pub(super) path: Option<&'a str>,
    /// The phase whose end, round or turn changed it; `None` also where the plan has no such change.
    pub(super) phase: Option<PhaseId>,
    /// The round, if it is not the phase as a whole that changed it.
    pub(super) round: Option<usize>,
    pub(super) agent: Option<&'a str>,
    pub(super) variable: &'a str,
    pub(super) value: Cow<'a, Value>,
}

/// All values of all runs, in the order in which they were set.
pub(super) fn state_values(sample: &Sample) -> Vec<StateValue<'_>> {
    let mut found = Vec::new();
    for run in sample.ordered() {
        let plan = run.scenario.plan();
        let chance = seeds(&run.transcript.header.record, plan).chance(TurnId(0));
        let mut initial = evaluate::initial(&run.scenario, chance).unwrap_or_default();
        for variable in run.scenario.state.keys() {
            entries(run, &initial.remove(variable).unwrap_or_default(), |agent, value| {
                let agent = agent.and_then(|key| run.scenario.agent_by_key(key));
                let agent = agent.map(|id| run.scenario.agent(id).key.as_str());
                let (path, value) = (None, Cow::Owned(value.clone()));
                found.push(StateValue { run, path, phase: None, round: None, agent, variable, value });
            });
        }
        let changes: HashMap<&str, (PhaseId, Trigger)> =
            plan.changes.iter().map(|change| (change.path.as_str(), (change.phase, change.after))).collect();
        for line in &run.transcript.between {
            let InterTurnRecord::State(record) = &line.record else { continue };
            let place = changes.get(record.path.as_str());
            let round = place.and_then(|(_, after)| match after {
                Trigger::Phase => None,
                Trigger::Round(round) => Some(*round),
                Trigger::Turn(turn) => Some(plan.turn(*turn).round),
            });
            let (path, phase) = (Some(record.path.as_str()), place.map(|(phase, _)| *phase));
            for (variable, value) in &record.set {
                entries(run, value, |agent, value| {
                    let value = Cow::Borrowed(value);
                    found.push(StateValue { run, path, phase, round, agent, variable, value });
                });
            }
        }
    }
    found
}

/// The entries of a mapping by agent, else the value itself.
fn entries<'v>(run: &Run, value: &'v Value, mut each: impl FnMut(Option<&'v str>, &'v Value)) {
    let is_agent = |key: &String| run.scenario.agent_by_key(key).is_some();
    match value.as_object().filter(|entries| !entries.is_empty() && entries.keys().all(is_agent)) {
        Some(entries) => entries.iter().for_each(|(agent, value)| each(Some(agent), value)),
        None => each(None, value),
    }
}
