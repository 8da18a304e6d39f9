//! Payoffs, assertions and judges, as written.

use super::replies::WrittenAnswer;
use super::values::{Key, Matrix, NAME, PhaseNames, WrittenExpression, WrittenTemplate, WrittenText};
use crate::hints::WrittenSampling;
use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

/// What the choices of a phase are worth. Values are looked up round by round, never parsed from what was
/// said. A round with a missing or invalid choice is not valued; if a player chooses several times in a
/// round, the last choice counts.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Payoff", deny_unknown_fields, extend(
    "required" = ["phase"],
    "oneOf" = [{ "required": ["matrix"] }, { "required": ["each"] }]
))]
pub struct WrittenPayoff {
    /// The phase whose choices count, or a list of phases. Each of their rounds counts once, in every pass of
    /// a block.
    pub phase: Option<PhaseNames>,
    /// The players. Default: all who choose in the phase, in order. All turns of a player must have the same
    /// options.
    #[schemars(with = "Option<Vec<Key>>")]
    pub players: Option<Vec<Option<Key>>>,
    /// What is counted, e.g. `years`. Default: `points`.
    pub unit: Option<WrittenText>,
    /// For each option of the first player, a table for each option of the second, and so on, down to a list
    /// with a number or an expression over variables for each player. Give either this or `each`.
    #[schemars(with = "Option<IndexMap<String, Value>>")]
    pub matrix: Option<Matrix>,
    /// One expression for every player, in which `mine` is the player's choice, `others` the list of the
    /// others' choices and `all` the list of all choices.
    pub each: Option<WrittenExpression>,
}

/// An expression, or one with a reason.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Assertion", untagged)]
pub enum WrittenAssertion {
    /// Only the expression.
    That(WrittenExpression),
    /// With a reason.
    Long(LongAssertion),
}

/// A condition that must be true, and the same in words.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct LongAssertion {
    /// The expression. With a `judge`, `verdict` is what the judge chose or replied; null if that was
    /// invalid.
    #[schemars(with = "WrittenExpression")]
    pub that: Option<WrittenExpression>,
    /// What should be true, in words; printed if the condition is false.
    #[serde(default)]
    pub why: Option<WrittenText>,
    /// Who is asked after all phases for a verdict that decides the assertion.
    #[serde(default)]
    pub judge: Option<Box<WrittenJudge>>,
    /// The share of many runs in which the condition must be true. Default: it must be true in every run.
    #[serde(default)]
    pub share: Option<WrittenShare>,
}

/// Bounds of the share of an experiment's runs in which a condition is true: over all cases and seeds,
/// separately for each combination of swept values. A run in which the expression fails counts against the
/// assertion. A single run shows the condition's value, but does not fail because of it.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Share", deny_unknown_fields, extend(
    "anyOf" = [{ "required": ["at_least"] }, { "required": ["at_most"] }]
))]
pub struct WrittenShare {
    /// The least share, from 0 to 1.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub at_least: Option<f64>,
    /// The greatest share, from 0 to 1.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub at_most: Option<f64>,
}

/// A question about what happened, and the form of the answer. It is asked in a turn after the last phase
/// that nobody hears. A member of the cast answers from memory. Without `agent`, a judge from outside first
/// reads everything that was said, including whispers and vote results.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Judge", deny_unknown_fields, extend(
    "required" = ["ask", "answer"]
))]
pub struct WrittenJudge {
    /// Short name of a judge beside an assertion: letters, digits and `_`. Outcomes and later assertions can
    /// use `NAME.verdict` like the result of a phase. Default: `judge`, or the first unused name of `judge_2`,
    /// `judge_3`, ….
    #[schemars(extend("pattern" = NAME))]
    pub name: Option<String>,
    /// The member of the cast who is asked. Default: a judge from outside.
    pub agent: Option<Key>,
    /// The question. It can use results, the state and variables.
    pub ask: Option<WrittenTemplate>,
    /// The form of the verdict.
    pub answer: Option<WrittenAnswer>,
    /// The model that answers: a name under `models`. A turn's takes precedence, then its phase's, the agent's
    /// and the scenario's. A memory belongs to one model, so an agent with a permanent memory has the same
    /// model in all phases.
    pub model: Option<String>,
    /// How replies are sampled, limited and ended.
    pub sampling: Option<WrittenSampling>,
}
