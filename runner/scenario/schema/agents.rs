//! Agents, their tools, memories and strategies, as written.

use super::values::{Scalar, WrittenTemplate};
use crate::scenario::hints::with_hints;
use crate::scenario::{Keep, Lifecycle};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

with_hints! {
/// Somebody who takes part. All fields may be left out: `ann:` alone is an agent called "ann".
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Agent", deny_unknown_fields)]
pub struct WrittenAgent {
    /// Name that others see. Default: the key.
    pub display_name: Option<String>,
    /// What the agent is, in any words. Three words have an effect: an `observer` hears and does not speak, a
    /// `moderator` gives the floor in `moderated` phases, a `coordinator` decides where `decision_mode` is
    /// `coordinator_decides`.
    pub role: Option<String>,
    /// The system text. It is read once and never changes, so it may use variables, `me` and `role`, but nothing that
    /// happens in a run. Default: "You are NAME, ROLE."
    pub system_prompt: Option<WrittenTemplate>,
    /// How long its memory lasts.
    pub lifecycle: Option<Lifecycle>,
    /// Colour on a terminal and in pictures: a name such as `teal`, or `#rrggbb`.
    #[schemars(extend("oneOf" = colors()))]
    pub color: Option<String>,
    /// Who answers instead of the model: a control for experiments, or a human at the terminal.
    pub strategy: Option<WrittenStrategy>,
    /// The tools that it may call, names under `tools`: whenever it is to speak, but not where it chooses, votes or replies in a form.
    pub tools: Option<Vec<Option<String>>>,
    /// Calls that it may make in one turn; then it must reply. Default: 4.
    #[schemars(range(min = 1, max = 16))]
    pub max_calls: Option<u64>,
    /// How its memory goes on when the model's context is full.
    pub memory: Option<WrittenMemory>,
    /// Another way to write `memory`: `fail` is `{ keep: all }`, `summarize` is `{ keep: summary }`.
    pub on_overflow: Option<Overflow>,
}
}

/// A tool: one of the program's own by its name, or another one.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Tool", untagged)]
pub enum WrittenTool {
    /// `calculator`, `dice` (rolled by the seed of the turn) or `notes` (remembered for ever, whatever else of a full memory is lost).
    Text(String),
    /// Another one, or one in other words.
    Long(Box<LongTool>),
}

/// A tool: exactly one of `built_in`, `lookup`, `command` and `mcp`. Programs and servers run with the rights of who plays the scenario,
/// and only where `--allow-tools` lets them.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct LongTool {
    /// `calculator`, `dice` or `notes`, with an `about` of its own.
    pub built_in: Option<String>,
    /// A `.csv` or `.jsonl` file, its path relative to this file: a call finds rows by what stands under `key`.
    #[schemars(extend("pattern" = "\\.(csv|jsonl)$"))]
    pub lookup: Option<String>,
    /// The column that a `lookup` looks in.
    pub key: Option<String>,
    /// A program and its arguments, started in this file's folder: it reads the call's arguments as JSON and writes the result. An exit
    /// code other than 0 is a call that failed; the last line of its standard error says why.
    #[schemars(extend("minItems" = 1))]
    pub command: Option<Vec<Option<String>>>,
    /// A server of the Model Context Protocol: a program and its arguments. Its tools are called `NAME_TOOL`.
    #[schemars(extend("minItems" = 1))]
    pub mcp: Option<Vec<Option<String>>>,
    /// Those of a server's tools that may be called. Default: all.
    pub only: Option<Vec<Option<String>>>,
    /// What it does, in a sentence: agents read that. A `command` needs it.
    pub about: Option<String>,
    /// JSON Schema of a `command`'s arguments, an object: a model's calls are in it.
    #[schemars(with = "Value")]
    pub arguments: Option<Value>,
    /// Seconds that a call of a program may take. Default: 10.
    #[schemars(range(min = 1, max = 600))]
    pub timeout: Option<u64>,
}

/// A memory that is full goes on in a new epoch, which begins with the system text and what is kept. A piece is a message that the agent
/// has heard or said, or a paragraph of what the stage has told it; each that is kept is quoted with the turn or phase that it comes from. What
/// is kept takes half of the context at most. Needs `keep`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Memory", deny_unknown_fields, extend("required" = ["keep"]))]
pub struct WrittenMemory {
    /// What is kept.
    pub keep: Option<Keep>,
    /// The most recent pieces, at most. Default: with `window` as many as fit, with `retrieve` 4.
    pub recent: Option<u64>,
    /// With `retrieve`, so many pieces more, at most: those nearest to what the agent has just heard, by the model's own embeddings or those of
    /// `embeddings`. Default: 8.
    #[schemars(extend("minimum" = 1))]
    pub nearest: Option<u64>,
}

/// What happens when an agent's context is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "OnOverflow")]
pub enum Overflow {
    /// The run ends.
    Fail,
    /// The agent writes down what it needs, and goes on with that.
    Summarize,
}

/// A rule, or a person, that answers instead of the model. It knows what the agent has heard, no more. Where no choice is
/// asked for, `always` and `list` say their texts, `tit_for_tat`, `grim` and `random` say nothing.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Strategy")]
pub enum WrittenStrategy {
    /// The first option, then what another player chose last.
    TitForTat,
    /// The first option until anybody chooses another, then the last option for ever.
    Grim,
    /// Asks at the terminal.
    Human,
    /// This option, or these words.
    Always(#[schemars(with = "Scalar")] Option<Scalar>),
    /// The first option with this probability, from 0 to 1; else one of the others.
    Random(#[schemars(with = "f64", range(min = 0, max = 1))] Option<f64>),
    /// One after the other, and again from the start.
    List(#[schemars(with = "Vec<Scalar>", extend("minItems" = 1))] Option<Vec<Option<Scalar>>>),
}

/// Colours that are known by name, in any case.
pub(crate) const COLORS: &[&str] = &[
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
