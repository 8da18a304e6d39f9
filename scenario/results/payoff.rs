//! The payoffs of choices: looked up in a matrix or computed, round by round. Never from text.

use super::History;
use crate::choice::{Choice, text_of};
use crate::plan::Purpose;
use crate::template::{TemplateError, TemplateFault, evaluate_alone, evaluator};
use crate::{AgentId, Payoff, PayoffRule, PhaseId, Scenario};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Payoffs of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Payoffs {
    /// The unit of the payoffs.
    pub unit: String,
    /// Sum over all rounds that could be valued, by the player's key; null: none could.
    pub totals: BTreeMap<String, Option<f64>>,
    /// Round by round.
    pub rounds: Vec<PayoffRound>,
}

/// Payoffs of one round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PayoffRound {
    /// The phase, where those of several count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// The round.
    pub round: usize,
    /// Each player's choice; null: none, or invalid.
    pub choices: BTreeMap<String, Value>,
    /// Each player's payoff; null: a choice is missing, so nothing is looked up.
    pub values: Option<BTreeMap<String, f64>>,
}

/// What each player chose in a round: the option, and its result; none: nothing valid.
type RoundChoices = BTreeMap<AgentId, Option<(usize, Value)>>;

/// Values the choices made so far. `None`: the scenario has no payoff.
///
/// # Errors
/// An expression that fails, or that is not a number, with the field in the message.
pub fn payoffs(scenario: &Arc<Scenario>, said: &History) -> Result<Option<Payoffs>, TemplateError> {
    let Some(payoff) = &scenario.payoff else { return Ok(None) };
    let mut by_round: BTreeMap<(PhaseId, usize), RoundChoices> = BTreeMap::new();
    let of_players: BTreeMap<AgentId, &Arc<Choice>> =
        payoff.players.iter().copied().zip(&payoff.choices).collect();
    let lines =
        payoff.phases.iter().flat_map(|phase| said.lines(*phase).iter().map(move |line| (*phase, line)));
    for (phase, line) in lines.filter(|(_, line)| line.purpose == Purpose::Choice) {
        let Some((value, choice)) = line.chosen().zip(of_players.get(&line.speaker)) else { continue };
        // Of several choices in a round, the last counts.
        let option = choice.with_value(&value).map(|id| (id, value));
        by_round.entry((phase, line.round)).or_default().insert(line.speaker, option);
    }
    let key = |agent: &AgentId| scenario.agent(*agent).key.clone();
    let mut rounds = Vec::new();
    let value = valuation(scenario, payoff)?;
    for ((phase, round), made) in by_round {
        let of = |player: &AgentId| made.get(player).cloned().flatten();
        let players = scenario.players_in(payoff, phase);
        let choices = players.iter().map(|p| (key(p), of(p).map_or(Value::Null, |(_, value)| value)));
        let full: Option<Vec<(usize, Value)>> = players.iter().map(of).collect();
        let values = full.map(|full| value(&full)).transpose()?;
        let values = values.map(|values| players.iter().map(key).zip(values).collect());
        let phase = (payoff.phases.len() > 1).then(|| scenario.phase(phase).part.clone());
        rounds.push(PayoffRound { phase, round, choices: choices.collect(), values });
    }
    let total = |player: &AgentId| {
        let key = key(player);
        let values = rounds.iter().filter_map(|round| round.values.as_ref()?.get(&key).copied());
        let values: Vec<f64> = values.collect();
        (key, (!values.is_empty()).then(|| values.iter().sum()))
    };
    let totals = payoff.players.iter().map(total).collect();
    Ok(Some(Payoffs { unit: payoff.unit.clone(), totals, rounds }))
}

impl Scenario {
    /// The players whose choices in a phase are valued together: all, but in a block for each item of a list
    /// those who can be present in that pass.
    pub(crate) fn players_in(&self, payoff: &Payoff, phase: PhaseId) -> Vec<AgentId> {
        let is_of_item = self.passes_of(phase).any(|pass| self.pass(pass).item.is_some());
        let here = &self.phase(phase).agents;
        payoff.players.iter().copied().filter(|player| !is_of_item || here.contains(player)).collect()
    }
}

/// Payoffs of choices, for each player.
type Valuation<'a> = Box<dyn Fn(&[(usize, Value)]) -> Result<Vec<f64>, TemplateError> + 'a>;

/// Values the choices of rounds. An expression is compiled once for all of them.
fn valuation<'a>(scenario: &'a Arc<Scenario>, payoff: &'a Payoff) -> Result<Valuation<'a>, TemplateError> {
    let number = |value: Value, place: String| {
        let found = || TemplateError {
            kind: TemplateFault::Other,
            message: format!("{place}: {} is no number", text_of(&value)),
            line: 1,
        };
        value.as_f64().filter(|number| number.is_finite()).ok_or_else(found)
    };
    match &payoff.rule {
        PayoffRule::Matrix(table) => Ok(Box::new(move |chosen| {
            let ids: Vec<usize> = chosen.iter().map(|(id, _)| *id).collect();
            let Some(row) = table.get(&ids) else {
                let message = "the payoff has no entry for these choices".to_string();
                return Err(TemplateError { kind: TemplateFault::Other, message, line: 1 });
            };
            let value = |cell: &crate::template::Expression| {
                number(evaluate_alone(scenario, cell, [])?, cell.path.to_string())
            };
            row.iter().map(value).collect()
        })),
        PayoffRule::Each(expression) => {
            let evaluate = evaluator(scenario, expression)?;
            Ok(Box::new(move |chosen| {
                let value = |at: usize| {
                    let all: Vec<Value> = chosen.iter().map(|(_, value)| value.clone()).collect();
                    let others = all.iter().enumerate().filter(|(other, _)| *other != at);
                    let others = Value::Array(others.map(|(_, value)| value.clone()).collect());
                    let names = [("mine", all[at].clone()), ("others", others), ("all", Value::Array(all))];
                    let value = evaluate(&names)?;
                    number(value, expression.path.to_string())
                };
                (0..chosen.len()).map(value).collect()
            }))
        }
    }
}
