//! Payoffs, assertions and judges, as written.

use super::replies::{WrittenChoice, WrittenReply};
use super::values::{Key, Matrix, NAME, PhaseNames, WrittenExpression, WrittenTemplate};
use crate::scenario::hints::with_hints;
use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

/// What the choices of a phase are worth. It is looked up, round by round, and never read from words. A round in which a
/// choice is missing or invalid is not valued; where a player chooses several times in a round, the last one counts.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Payoff", deny_unknown_fields, extend(
    "required" = ["phase"],
    "oneOf" = [{ "required": ["matrix"] }, { "required": ["each"] }]
))]
pub struct WrittenPayoff {
    /// The phase whose choices count, or a list of phases; each of their rounds counts once, in every pass of a block.
    pub phase: Option<PhaseNames>,
    /// The players. Default: all who choose in the phase, in order. All turns of one player have the same options.
    #[schemars(with = "Option<Vec<Key>>")]
    pub players: Option<Vec<Option<Key>>>,
    /// What is counted, e.g. `years`. Default: `points`.
    pub unit: Option<String>,
    /// For each option of the first player a table for each option of the second, and so on, down to a list with a number
    /// or expression over variables for each player. Either this or `each`.
    #[schemars(with = "Option<IndexMap<String, Value>>")]
    pub matrix: Option<Matrix>,
    /// The same expression for every player, in which `mine` is its choice, `others` the list of the others' and `all` the
    /// list of all.
    pub each: Option<WrittenExpression>,
}

/// An expression, or one with a reason.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Assertion", untagged)]
pub enum WrittenAssertion {
    /// The expression alone.
    That(WrittenExpression),
    /// With a reason.
    Long(LongAssertion),
}

/// What must hold, and what it means if it does not.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct LongAssertion {
    /// The expression. Beside a `judge`, `verdict` is what the judge chose or replied; null: invalid.
    #[schemars(with = "WrittenExpression")]
    pub that: Option<WrittenExpression>,
    /// What it means if it does not hold; printed then.
    #[serde(default)]
    pub why: Option<String>,
    /// Who is asked, once all phases are over, for a verdict that decides the assertion.
    #[serde(default)]
    pub judge: Option<Box<WrittenJudge>>,
}

with_hints! {
/// A question about what happened, and the form of the answer. It is a turn after the last phase; nobody hears it. A member of the
/// cast answers from memory; without `agent`, a judge from outside first reads all that was said, whispers and results of votes
/// included.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Judge", deny_unknown_fields, extend(
    "required" = ["ask"],
    "oneOf" = [{ "required": ["choice"] }, { "required": ["reply"] }]
))]
pub struct WrittenJudge {
    /// Short name, by which outcomes and later assertions can use `NAME.verdict`, as the result of a phase: letters, digits and `_`.
    /// Default: `judge`, or the first of `judge_2`, `judge_3`, … that nothing else is called.
    #[schemars(extend("pattern" = NAME))]
    pub name: Option<String>,
    /// The member of the cast who is asked. Default: a judge from outside.
    pub agent: Option<Key>,
    /// The question. It may use results, the state and variables.
    pub ask: Option<WrittenTemplate>,
    /// What the verdict is one of. The model can say nothing else, and the log-probability of each option is recorded.
    pub choice: Option<WrittenChoice>,
    /// The form of the verdict: JSON that a schema allows.
    pub reply: Option<WrittenReply>,
}
}
