//! The results of a run: decisions, payoffs, outcomes, assertions, evaluated over what was said, without a
//! model.

use crate::prompt::{Memories, PromptError};
use crate::transcript::{AssertionRecord, Footer, OutcomeRecord, VerdictRecord};
use greenroom_scenario::render::{self, evaluate_with};
use greenroom_scenario::results::{History, Outcome, payoffs, results};
use greenroom_scenario::template::{Expression, TemplateError};
use greenroom_scenario::{Chosen, PhaseId, Scenario};
use serde_json::{Map, Value};
use std::sync::Arc;

/// The end of a run, as its transcript records it. An expression that fails is recorded as such: nothing of
/// the run is lost.
///
/// # Errors
/// A change of the state that fails: no run gets so far.
pub fn footer(memories: &Memories) -> Result<Footer, PromptError> {
    let scenario = memories.scenario();
    let said = memories.history()?;
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
    // Of the passes of a block, those that were played.
    let decided = deciding.filter(|(id, phase)| phase.pass.is_none() || said.has(PhaseId(*id)));
    let decisions = decided.map(|(id, phase)| (phase.part.clone(), decision(id))).collect();
    let payoffs = payoffs(scenario, &said).unwrap_or_else(|error| {
        tracing::warn!("the payoff can't be computed: {error}");
        None
    });
    let mut known = Map::new();
    let mut outcomes = Vec::new();
    for (name, expression) in &scenario.outcomes {
        let value = value(scenario, expression, &said, &known);
        let (value, error) =
            value.map_or_else(|error| (Value::Null, Some(error.message)), |value| (value, None));
        known.insert(name.clone(), value.clone());
        outcomes.push(OutcomeRecord { name: name.clone(), value, error });
    }
    for (name, value) in scenario.ending.iter().flat_map(|ending| ending.outcomes(scenario, &said)) {
        let (value, error) = value.map_or_else(|error| (Value::Null, Some(error)), |value| (value, None));
        known.insert(name.to_string(), value.clone());
        outcomes.push(OutcomeRecord { name: name.to_string(), value, error });
    }
    let assertions = scenario.assertions.iter().map(|assertion| {
        let held = holds(scenario, &assertion.that, &said, &known);
        let (holds, error) = held.map_or_else(|error| (false, Some(error.message)), |holds| (holds, None));
        let judge = assertion.that.scope.verdict;
        let verdict = judge.map(|judge| {
            let asked = memories.plan().turn(memories.plan().begin_of(judge, 1).turns);
            let value = results(scenario, judge, &said).verdict;
            VerdictRecord { turn: asked.path.clone(), value }
        });
        let (that, why) = (assertion.that.text.clone(), assertion.why.clone());
        AssertionRecord { that, why, share: assertion.share, holds, error, verdict }
    });
    let assertions = assertions.collect();
    Ok(Footer { turns, skipped, choices, invalid, decisions, payoffs, outcomes, assertions })
}

/// The value of an outcome, where the values of those above it are known.
///
/// # Errors
/// The expression fails.
pub fn value(
    scenario: &Arc<Scenario>,
    expression: &Expression,
    said: &Arc<History>,
    known: &Map<String, Value>,
) -> Result<Value, TemplateError> {
    evaluate_with(scenario, expression, said, [("outcome", Value::Object(known.clone()))])
}

/// True if an assertion holds, where the values of outcomes are known.
///
/// # Errors
/// The expression fails.
pub fn holds(
    scenario: &Arc<Scenario>,
    that: &Expression,
    said: &Arc<History>,
    known: &Map<String, Value>,
) -> Result<bool, TemplateError> {
    render::holds(scenario, that, said, [("outcome", Value::Object(known.clone()))])
}

/// The values of some outcomes; null where one fails.
pub fn values(
    scenario: &Arc<Scenario>,
    outcomes: &[(String, Expression)],
    said: &Arc<History>,
) -> Map<String, Value> {
    let mut known = Map::new();
    for (name, expression) in outcomes {
        let value = value(scenario, expression, said, &known).unwrap_or_default();
        known.insert(name.clone(), value);
    }
    known
}
