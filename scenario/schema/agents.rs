//! Agents, their tools, memories and strategies, as written.

use super::values::{NAME, Scalar, WrittenTemplate, WrittenText};
use crate::hints::WrittenSampling;
use crate::{Keep, Lifecycle};
use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// An agent, one of the cast. All fields are optional: `ann:` alone is an agent named "ann".
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Agent", deny_unknown_fields)]
pub struct WrittenAgent {
    /// A table of agents: this entry becomes an agent for each row, and its key, such as `voters`, names the
    /// list of their keys in expressions. It is a `.csv` file whose first line names columns, or a `.jsonl`
    /// file with one object per line, with a path relative to the scenario. All other fields hold for each of
    /// them, and may use the columns as `me.COLUMN`.
    #[schemars(extend("pattern" = "\\.(csv|jsonl)$"))]
    pub from: Option<String>,
    /// So many agents of one kind: this entry becomes the agents `KEY_1`, `KEY_2` and so on, and its key, such as
    /// `guests`, names the list of their keys in expressions. All other fields hold for each of them, and may
    /// use its number as `me.n`.
    #[schemars(extend("minimum" = 1, "maximum" = 1000))]
    pub count: Option<u64>,
    /// With `from`, the column that the agents' keys are made of. Default: `key`.
    pub key: Option<String>,
    /// What else is known of the agent, by name: texts use it as `me.NAME` or `agents.KEY.NAME`.
    #[schemars(extend("propertyNames" = { "pattern": NAME }))]
    pub traits: Option<IndexMap<String, Value>>,
    /// The name that others see. Default: the key; with `from`, the column `display_name` or `name`.
    pub display_name: Option<WrittenText>,
    /// What the agent is, in any words, such as `innkeeper`.
    pub role: Option<WrittenText>,
    /// Whether it speaks in the phases in which it is present. `false`: it only listens. Default: `true`.
    pub speaks: Option<bool>,
    /// The system prompt. It is read once and never changes, so it can use variables, `me` and `role`, but
    /// nothing that happens during a run. Default: "You are NAME, ROLE."
    pub system_prompt: Option<WrittenTemplate>,
    /// How long its memory lasts.
    pub lifecycle: Option<Lifecycle>,
    /// Colour on a terminal and in pictures: a name such as `teal`, or `#rrggbb`.
    #[schemars(extend("oneOf" = colors()))]
    pub color: Option<String>,
    /// What answers instead of the model: a fixed strategy as a control for experiments, or a human at the
    /// terminal.
    pub strategy: Option<WrittenStrategy>,
    /// The tools that the agent may call, by their names under `tools`. It may call them whenever it speaks,
    /// but not when it chooses, votes or replies in a fixed form.
    pub tools: Option<Vec<Option<String>>>,
    /// Maximum number of tool calls in one turn, after which the agent must reply. Default: 4.
    #[schemars(range(min = 1, max = 16))]
    pub max_calls: Option<u64>,
    /// How its memory continues when the model's context is full.
    pub memory: Option<WrittenMemory>,
    /// The model that answers: a name under `models`. A turn's takes precedence, then its phase's, the agent's
    /// and the scenario's. A memory belongs to one model, so an agent with a permanent memory has the same
    /// model in all phases.
    pub model: Option<String>,
    /// How replies are sampled, limited and ended.
    pub sampling: Option<WrittenSampling>,
}

/// A tool: a built-in tool by name, or one that is defined here.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Tool", untagged)]
pub enum WrittenTool {
    /// `calculator`, `dice` (rolled with the turn's seed) or `notes` (kept for ever, even when a full memory
    /// loses other things).
    Text(String),
    /// Another tool, or a built-in one with its own description.
    Long(Box<LongTool>),
}

/// A tool: exactly one of `built_in`, `lookup`, `command`, `function` and `mcp`. Programs run with the rights of
/// the user who plays the scenario. They and servers are used only if `--allow-tools` permits them.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct LongTool {
    /// `calculator`, `dice` or `notes`, with its own `about`.
    pub built_in: Option<String>,
    /// A `.csv` or `.jsonl` file, with a path relative to this file. A call finds rows by their value in the
    /// column `key`.
    #[schemars(extend("pattern" = "\\.(csv|jsonl)$"))]
    pub lookup: Option<String>,
    /// The column that a `lookup` searches.
    pub key: Option<String>,
    /// A program and its arguments. It is started in this file's folder, reads the call's arguments as JSON
    /// and writes the result. If its exit code is not 0, the call has failed, and the last line of its
    /// standard error is the reason.
    #[schemars(extend("minItems" = 1))]
    pub command: Option<Vec<Option<String>>>,
    /// A function of the Python program that plays the scenario, by its name in `greenroom.run(…, tools=…)`.
    pub function: Option<String>,
    /// A Model Context Protocol server: a program and its arguments, or a URL. Its tools are named
    /// `NAME_TOOL`. Both need `--allow-tools`.
    pub mcp: Option<WrittenServer>,
    /// HTTP headers that are sent to a server with a URL: the name of each, and the environment variable that
    /// contains its value, e.g. `{ Authorization: MCP_TOKEN }`. A secret never stands in the file.
    #[schemars(with = "Option<IndexMap<String, VariableName>>")]
    pub headers: Option<IndexMap<String, Option<String>>>,
    /// The server's tools that may be called. Default: all.
    pub only: Option<Vec<Option<String>>>,
    /// What the tool does, in a sentence that agents read. Required for a `command` and a `function`.
    pub about: Option<WrittenText>,
    /// JSON Schema of the arguments of a `command` or a `function`, an object. The model's calls are constrained to it.
    #[schemars(with = "Value")]
    pub arguments: Option<Value>,
    /// Maximum duration of a call to a program, or of a request to a server, in seconds. Default: 10.
    #[schemars(range(min = 1, max = 600))]
    pub timeout: Option<u64>,
}

/// A Model Context Protocol server.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "McpServer", untagged)]
pub enum WrittenServer {
    /// A program and its arguments. It is started in this file's folder, and reads and writes messages.
    List(#[schemars(with = "Vec<String>", extend("minItems" = 1))] Vec<Option<String>>),
    /// The URL of a server that speaks the protocol over HTTP, e.g. `https://example.com/mcp`.
    Text(
        #[schemars(regex(pattern = r"^https?://[^/@\s]+(/\S*)?$"))]
        String,
    ),
}

/// The name of an environment variable.
#[derive(JsonSchema)]
#[schemars(rename = "VariableName")]
#[allow(dead_code, reason = "only a description")]
struct VariableName(#[schemars(regex(pattern = "^[A-Za-z_][A-Za-z0-9_]*$"))] String);

/// A full memory continues in a new epoch, which begins with the system prompt and what is kept. A piece is a
/// message that the agent has heard or said, or a paragraph of what the stage has told it. Each piece that is
/// kept is quoted with the turn or phase it comes from. What is kept takes at most half of the context.
/// `keep` is required.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Memory", deny_unknown_fields, extend("required" = ["keep"]))]
pub struct WrittenMemory {
    /// What is kept.
    pub keep: Option<Keep>,
    /// Maximum number of recent pieces to keep. Default: with `window` as many as fit, with `retrieve` 4.
    pub recent: Option<u64>,
    /// With `retrieve`, the maximum number of further pieces to keep: those nearest to what the agent has
    /// just heard, by the embeddings of its own model or of `embeddings`. Default: 8.
    #[schemars(extend("minimum" = 1))]
    pub nearest: Option<u64>,
}

/// A rule or a person that answers instead of the model: one of those below, or a mapping from the names of
/// all phases in which the agent has a turn to one of those below, e.g.
/// `{game: tit_for_tat, vote: {always: leave}}`.
///
/// A strategy knows what its agent has heard: it remembers the choices of others in all earlier rounds,
/// phases and passes of a block, unless a phase is `fresh`. Choices are alike if their options have the same
/// results. If no choice is asked for, `always`, `list` and `script` say their texts, and `tit_for_tat`,
/// `grim` and `random` say nothing. A reply of `always`, `list` or `script` that is not open is an error;
/// only in a ranking, `always` and `list` name the last option that remains instead of one that is ranked
/// already. A phase named like one of the strategies can't have an entry.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Strategies", untagged)]
pub enum WrittenStrategy {
    /// A strategy.
    Text(#[schemars(with = "StrategyKind")] String),
    /// Strategies by phase.
    Texts(#[schemars(with = "IndexMap<String, StrategyKind>", extend("minProperties" = 1))] StrategyFields),
}

/// The strategies, as the schema describes them; [`WrittenStrategy`] reads them.
#[derive(JsonSchema)]
#[schemars(rename = "Strategy", rename_all = "snake_case")]
#[allow(dead_code, reason = "only a description")]
enum StrategyKind {
    /// The first option, then whatever another player chose last. If that is not open, the first or the last
    /// that is.
    TitForTat,
    /// The first option until another player chooses a different one, then the last option for ever.
    Grim,
    /// Asks a human: at the terminal, or on the page of the run.
    Human,
    /// Always this option or text.
    Always(Scalar),
    /// The first option with this probability, from 0 to 1; otherwise one of the others.
    Random(#[schemars(range(min = 0, max = 1))] f64),
    /// One after the other over all turns of the agent, talk and choices alike, then again from the start. In
    /// a mapping by phase, over its turns in that phase, in all passes.
    List(#[schemars(extend("minItems" = 1))] Vec<Scalar>),
    /// A reply for each turn of the agent, by the turn's path in the transcript, `PHASE/ROUND/AGENT`, e.g.
    /// `game/1/ann` or, in a block, `game.2/1/ann`.
    Script(#[schemars(extend("minProperties" = 1))] IndexMap<String, Scalar>),
}

/// Entries of a mapping under `strategy`, in the order of the file: kinds of strategy, or strategies by
/// phase.
#[derive(Clone, Debug)]
pub struct StrategyFields(pub Vec<(String, StrategyField)>);

/// One of them.
#[derive(Clone, Debug)]
pub enum StrategyField {
    /// `always`.
    Always(Option<Scalar>),
    /// `random`.
    Random(Option<f64>),
    /// `list`.
    List(Option<Vec<Option<Scalar>>>),
    /// `script`.
    Script(Option<IndexMap<String, Option<Scalar>>>),
    /// Any other key.
    Of(Option<WrittenStrategy>),
}

impl<'de> Deserialize<'de> for StrategyFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = StrategyFields;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a strategy")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<StrategyFields, A::Error> {
        let mut fields = Vec::new();
        while let Some(key) = entries.next_key::<String>()? {
            let field = match key.as_str() {
                "always" => StrategyField::Always(entries.next_value()?),
                "random" => StrategyField::Random(entries.next_value()?),
                "list" => StrategyField::List(entries.next_value()?),
                "script" => StrategyField::Script(entries.next_value()?),
                _ => StrategyField::Of(entries.next_value()?),
            };
            fields.push((key, field));
        }
        Ok(StrategyFields(fields))
    }
}

/// Named colours, in any letter case.
pub const COLORS: &[&str] = &[
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
