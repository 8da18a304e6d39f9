//! The results of a run: decisions, payoffs, outcomes, assertions, evaluated over what was said, without a model.

use crate::prompt::Memories;
use crate::scenario::render::{evaluate_with, holds_with};
use crate::scenario::results::{Outcome, payoffs, results};
use crate::scenario::{Chosen, PhaseId};
use crate::transcript::{AssertionRecord, Footer, OutcomeRecord};
use serde_json::{Map, Value};
use std::sync::Arc;

/// The end of a run, as its transcript records it. An expression that fails is recorded as such: nothing of the run is lost.
pub fn footer(memories: &Memories) -> Footer {
    let scenario = memories.scenario();
    let said = Arc::new(memories.said());
    let played = memories.plan().order().map(|(id, _)| memories.outcome(id));
    let (mut turns, mut skipped, mut choices, mut invalid) = (0, 0, 0, 0);
    for outcome in played {
        match outcome {
            Outcome::Said { choice, value, .. } => {
                turns += 1;
                choices += usize::from(choice.is_some());
                invalid += usize::from(*choice == Some(Chosen::Invalid) || *value == Some(Value::Null));
            }
            Outcome::Skipped => skipped += 1,
            Outcome::Open => {}
        }
    }
    let deciding = scenario.phases.iter().enumerate().filter(|(_, phase)| phase.decision.is_some());
    let decision = |id: usize| results(scenario, PhaseId(id), &said).decision;
    let decisions = deciding.map(|(id, phase)| (phase.name.clone(), decision(id))).collect();
    let payoffs = payoffs(scenario, &said).unwrap_or_else(|error| {
        tracing::warn!("the payoff can't be computed: {error}");
        None
    });
    let mut known = Map::new();
    let mut outcomes = Vec::new();
    for (name, expression) in &scenario.outcomes {
        let value = evaluate_with(scenario, expression, &said, [("outcome", Value::Object(known.clone()))]);
        let (value, error) =
            value.map_or_else(|error| (Value::Null, Some(error.message)), |value| (value, None));
        known.insert(name.clone(), value.clone());
        outcomes.push(OutcomeRecord { name: name.clone(), value, error });
    }
    let assertions = scenario.assertions.iter().map(|assertion| {
        let held = holds_with(scenario, &assertion.that, &said, [("outcome", Value::Object(known.clone()))]);
        let (holds, error) = held.map_or_else(|error| (false, Some(error.message)), |holds| (holds, None));
        AssertionRecord { that: assertion.that.text.clone(), why: assertion.why.clone(), holds, error }
    });
    let assertions = assertions.collect();
    Footer { turns, skipped, choices, invalid, decisions, payoffs, outcomes, assertions }
}
