//! The scenario file as written: every field optional, nothing resolved.
//!
//! [`Written`] is what serde_yaml reads (`read`); what the fields mean is decided in `check`. Its documentation is
//! the author's: `greenroom schema` and the reference of all fields are made from it.

use indexmap::IndexMap;
use schemars::{JsonSchema, Schema, schema_for};
use serde::Deserialize;
use serde_yaml::Value;
use std::sync::LazyLock;

/// A multi-agent scenario: who takes part, and what happens, phase by phase.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(title = "Greenroom scenario", deny_unknown_fields, extend("required" = ["phases"]))]
pub struct Written {
    /// Short name, used for folders and memories: letters, digits, `-` and `_`. Default: the file's name.
    #[schemars(regex(pattern = "^[A-Za-z0-9_-]{1,100}$"))]
    pub id: Option<String>,
    /// Title shown to people. Default: the id.
    pub title: Option<String>,
    /// What it is about.
    pub description: Option<String>,
    /// Values for templates and expressions; `--set name=value` overrides them, `--set a.b=value` a part of one.
    #[schemars(with = "Option<IndexMap<String, serde_json::Value>>", extend("propertyNames" = { "pattern": NAME }))]
    pub variables: Option<IndexMap<String, Value>>,
    /// Files whose `agents` and `variables` are taken over, paths relative to this file. What stands here wins.
    pub include: Option<Vec<Option<String>>>,
    /// Who takes part, by key: letters, digits and `_`.
    #[schemars(extend("propertyNames" = { "pattern": NAME }))]
    pub agents: Option<IndexMap<String, Option<WrittenAgent>>>,
    /// What happens, in order.
    #[schemars(extend("minItems" = 1))]
    pub phases: Option<Vec<Option<WrittenPhase>>>,
    /// What the choices of a phase are worth to the players.
    pub payoff: Option<WrittenPayoff>,
    /// Results to compute at the end: a name and an expression each.
    #[schemars(with = "Option<IndexMap<String, Expression>>", extend("propertyNames" = { "pattern": NAME }))]
    pub outcome: Option<IndexMap<String, Value>>,
    /// What must hold at the end; the exit code is 1 if something does not.
    #[schemars(with = "Option<Vec<WrittenAssertion>>")]
    pub assertions: Option<Vec<Value>>,
    /// Hints for displays; not read.
    #[schemars(with = "serde_json::Value")]
    pub ui: Option<Value>,
}

/// One agent.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct WrittenAgent {
    /// Name that others see. Default: the key.
    pub display_name: Option<String>,
    /// What the agent is, in any words. Three have an effect: an `observer` hears and does not speak, a `moderator`
    /// gives the floor in `moderated` phases, a `coordinator` decides where `decision_mode` is `coordinator_decides`.
    pub role: Option<String>,
    /// Template of the system text; it may use variables and the agent's own `me`, `role`, not what changes in a run.
    pub system_prompt: Option<String>,
    /// `permanent` (default): one memory for the whole run, kept afterwards. `ephemeral`: a fresh one in each phase.
    #[schemars(extend("enum" = ["permanent", "ephemeral", null]))]
    pub lifecycle: Option<String>,
    /// Colour on a terminal: a name or `#rrggbb`.
    #[schemars(extend("oneOf" = colors()))]
    pub color: Option<String>,
    /// Who answers instead of the model: a control for experiments, or a human at the terminal.
    #[schemars(with = "Option<WrittenStrategy>")]
    pub strategy: Option<Value>,
    /// What happens when the model's context is full: `fail` (default; `check` predicts it), or `summarize`: the agent
    /// writes down what it needs and goes on in a new epoch of its memory that begins with this.
    #[schemars(extend("enum" = ["fail", "summarize", null]))]
    pub on_overflow: Option<String>,
}

/// One phase.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields, extend(
    "required" = ["name", "agents"],
    "not" = { "anyOf": [{ "required": ["choice", "parse_choice"] }, { "required": ["topology", "turns"] }] }
))]
pub struct WrittenPhase {
    /// Short name, used in templates and paths: letters, digits and `_`.
    #[schemars(extend("pattern" = NAME))]
    pub name: Option<String>,
    /// Title shown to people. Default: the name.
    pub label: Option<String>,
    /// Keys of those who are present, in speaking order.
    #[schemars(extend("minItems" = 1))]
    pub agents: Option<Vec<Option<String>>>,
    /// Who speaks when. `round_robin` (default): each round everybody once, in order. `turn_by_turn`: the same, counted
    /// in `max_turns`. `broadcast`: each round all answer at once, unheard by each other. `whisper`: each round the pairs of
    /// `interactions` speak to each other, and only they hear it. `interrupt`: as round_robin; after each turn everybody
    /// else is asked whether to cut in, and the first in order who wants to speaks next. `moderated`: each round the
    /// moderator chooses who speaks.
    #[schemars(extend("enum" = ["round_robin", "turn_by_turn", "broadcast", "whisper", "interrupt", "moderated", null]))]
    pub topology: Option<String>,
    /// A text that opens the phase: rules of a debate.
    #[schemars(extend("enum" = ["free", "structured", "pro_con", "devils_advocate", "socratic", "roundtable", null]))]
    pub debate_format: Option<String>,
    /// How the phase decides, by a vote over the options of `choice` once the rounds are over. `majority_vote`: the option
    /// with most votes. `ranked_choice`: all rank all options; instant run-off. `coordinator_decides`: the coordinator
    /// alone. `consensus`: all must agree; if they don't, another round is played, `attempts` times in all.
    #[schemars(extend("enum" = ["none", "majority_vote", "ranked_choice", "coordinator_decides", "consensus", null]))]
    pub decision_mode: Option<String>,
    /// Template of the text that opens the phase for everybody.
    pub initial_prompt: Option<String>,
    /// The same, for agents without a private text; it may use `me`.
    pub initial_prompt_template: Option<String>,
    /// Private openings, by agent.
    pub per_agent_prompt_templates: Option<IndexMap<String, Option<String>>>,
    /// Rounds to play. Default: 1, or as many as `max_turns` needs. 0 is possible before a vote.
    pub auto_rounds: Option<u64>,
    /// Most turns of the phase; votes and the moderator's choices aside.
    #[schemars(extend("minimum" = 1))]
    pub max_turns: Option<u64>,
    /// The order of turns, written out: each round plays this list. It takes the place of `topology`.
    #[schemars(extend("minItems" = 1))]
    pub turns: Option<Vec<Option<WrittenTurn>>>,
    /// Who hears whom. Without it everybody present hears everything.
    pub interactions: Option<Vec<Option<WrittenInteraction>>>,
    /// The phase is only played if this expression holds when it begins.
    #[schemars(with = "Option<Expression>")]
    pub when: Option<Value>,
    /// The phase ends after the round in which this expression holds; `auto_rounds` is the bound.
    #[schemars(with = "Option<Expression>")]
    pub until: Option<Value>,
    /// Options of which every turn of the phase is one, or which the phase decides over. The model's reply is one of
    /// them exactly, and the log-probability of each is recorded.
    #[schemars(with = "Option<WrittenChoice>")]
    pub choice: Option<Value>,
    /// The same, but the agent answers in its own words, which are searched for the options. A reply that names none, two
    /// of them, or one beside a negation, is `invalid`.
    #[schemars(with = "Option<WrittenChoice>")]
    pub parse_choice: Option<Value>,
    /// Who gives the floor in a `moderated` phase. Default: the agent whose role is `moderator`.
    pub moderator: Option<String>,
    /// Who decides. Default: the agent whose role is `coordinator`.
    pub coordinator: Option<String>,
    /// Votes that a consensus may take. Default: 3.
    #[schemars(extend("minimum" = 1, "maximum" = 100))]
    pub attempts: Option<u64>,
}

/// One turn of a written-out order.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields, extend(
    "required" = ["agent"],
    "not" = { "required": ["choice", "parse_choice"] }
))]
pub struct WrittenTurn {
    /// Who speaks.
    pub agent: Option<String>,
    /// Template of what the speaker is asked.
    pub ask: Option<String>,
    /// The turn is only played if this expression holds.
    #[schemars(with = "Option<Expression>")]
    pub when: Option<Value>,
    /// As the phase's `choice`, for this turn.
    #[schemars(with = "Option<WrittenChoice>")]
    pub choice: Option<Value>,
    /// As the phase's `parse_choice`, for this turn.
    #[schemars(with = "Option<WrittenChoice>")]
    pub parse_choice: Option<Value>,
    /// Who hears it. Default: as `interactions` say.
    #[schemars(with = "Option<OneOrMany>")]
    pub to: Option<Value>,
}

/// An edge between agents of a phase.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields, extend("required" = ["from", "kind"]))]
pub struct WrittenInteraction {
    /// Who speaks; with `observe`, who listens.
    pub from: Option<String>,
    /// Whom it concerns: a key, or a list of keys. With `public` it may be left out: everybody.
    #[schemars(with = "Option<OneOrMany>")]
    pub to: Option<Value>,
    /// `public`: everybody hears what `from` says. `whisper`: only `to` does. `observe`: `from` hears what `to` says, whispers too.
    #[schemars(extend("enum" = ["public", "whisper", "observe", null]))]
    pub kind: Option<String>,
}

/// What choices are worth.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields, extend(
    "required" = ["phase"],
    "oneOf" = [{ "required": ["matrix"] }, { "required": ["each"] }]
))]
pub struct WrittenPayoff {
    /// The phase whose choices count; each of its rounds counts once.
    pub phase: Option<String>,
    /// Keys of the players. Default: all who choose in the phase, in order.
    pub players: Option<Vec<Option<String>>>,
    /// What is counted, e.g. `years`. Default: `points`.
    pub unit: Option<String>,
    /// A table for each player's option in turn, down to a list with a number or expression for each player:
    /// `{talk: {talk: [5, 5], silent: [0, 10]}, silent: {talk: [10, 0], silent: [2, 2]}}`.
    #[schemars(with = "Option<IndexMap<String, serde_json::Value>>")]
    pub matrix: Option<Value>,
    /// An expression for every player, where `mine` is its choice, `others` the list of the others' and `all` of all.
    #[schemars(with = "Option<Expression>")]
    pub each: Option<Value>,
}

/// A minijinja expression over variables and results, e.g. `vote.decision == 'yes' and payoffs.ann > 3`.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[allow(dead_code, reason = "the shape of a field that `check` reads by hand")]
enum Expression {
    Text(String),
    Number(f64),
    Fixed(bool),
}

/// One key or a list of keys.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[allow(dead_code, reason = "the shape of a field that `check` reads by hand")]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// A text, a number or a truth value.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[allow(dead_code, reason = "the shape of a field that `check` reads by hand")]
enum Scalar {
    Text(String),
    Number(f64),
    Truth(bool),
}

/// A list of options, a mapping from results to the texts that are said, or the long form with settings.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[allow(dead_code, reason = "the shape of a field that `check` reads by hand")]
enum WrittenChoice {
    List(#[schemars(extend("minItems" = 2, "maxItems" = 100))] Vec<Scalar>),
    Long(LongChoice),
    Texts(#[schemars(extend("minProperties" = 2, "maxProperties" = 100))] IndexMap<String, Scalar>),
}

/// A choice with settings.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[allow(dead_code, reason = "the shape of a field that `check` reads by hand")]
struct LongChoice {
    /// The options, or a mapping from results to the texts that are said.
    options: WrittenOptions,
    /// Whether the options are listed in an order drawn from the turn's seed. Default: false.
    #[serde(default)]
    shuffle: Option<bool>,
    /// Template of the question. Default: the options alone are named.
    #[serde(default)]
    ask: Option<String>,
}

#[derive(JsonSchema)]
#[schemars(untagged)]
#[allow(dead_code, reason = "the shape of a field that `check` reads by hand")]
enum WrittenOptions {
    List(#[schemars(extend("minItems" = 2, "maxItems" = 100))] Vec<Scalar>),
    Texts(#[schemars(extend("minProperties" = 2, "maxProperties" = 100))] IndexMap<String, Scalar>),
}

/// `tit_for_tat`: the first option, then what another player chose last. `grim`: the first option until anybody chooses
/// another, then the last one for ever. `human`: asks at the terminal. `{always: X}`; `{random: p}`: the first option with
/// probability p, else another; `{list: [X, Y]}`: one after the other, and again from the start.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[allow(dead_code, reason = "the shape of a field that `check` reads by hand")]
enum WrittenStrategy {
    #[schemars(extend("enum" = ["tit_for_tat", "grim", "human"]))]
    Named(String),
    With(StrategyWith),
}

#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
#[allow(dead_code, reason = "the shape of a field that `check` reads by hand")]
enum StrategyWith {
    Always(Scalar),
    Random(#[schemars(range(min = 0, max = 1))] f64),
    List(#[schemars(extend("minItems" = 1))] Vec<Scalar>),
}

/// An expression, or one with a reason.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[allow(dead_code, reason = "the shape of a field that `check` reads by hand")]
enum WrittenAssertion {
    That(Expression),
    Long(LongAssertion),
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[allow(dead_code, reason = "the shape of a field that `check` reads by hand")]
struct LongAssertion {
    /// The expression.
    that: Expression,
    /// What it means if it does not hold.
    #[serde(default)]
    why: Option<String>,
}

/// What a template can name.
const NAME: &str = "^[A-Za-z_][A-Za-z0-9_]*$";

/// Colours that are known by name, in any case.
pub(super) const COLORS: &[&str] = &[
    "black", "red", "green", "yellow", "blue", "magenta", "cyan", "white", "gray", "grey", "orange",
    "purple", "violet", "pink", "brown", "gold", "teal", "lime", "navy", "indigo",
];

fn colors() -> serde_json::Value {
    let any_case =
        |name: &&str| name.chars().map(|c| format!("[{c}{}]", c.to_ascii_uppercase())).collect::<String>();
    let names: Vec<String> = COLORS.iter().map(any_case).collect();
    let pattern = format!("^(#([0-9a-fA-F]{{3}}){{1,2}}|{})$", names.join("|"));
    serde_json::json!([{ "type": "null" }, { "type": "string", "pattern": pattern }])
}

/// The JSON Schema of scenario files.
pub fn json_schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(|| schema_for!(Written));
    &SCHEMA
}
