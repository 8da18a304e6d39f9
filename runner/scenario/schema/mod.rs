//! The scenario file as written: every field optional, nothing resolved.
//!
//! `read` makes a [`Written`] of a file; what the fields mean is decided in `check`. Its documentation is the author's:
//! `greenroom schema` and the reference of all fields are made from it. Every field accepts null, which is how a value that could
//! not be read is set aside.

mod agents;
mod phases;
mod replies;
mod results;
mod values;

use super::Api;
use super::hints::with_hints;
pub use agents::*;
use indexmap::IndexMap;
pub use phases::*;
pub use replies::*;
pub use results::*;
use schemars::{JsonSchema, Schema, schema_for};
use serde::Deserialize;
use serde_json::Value;
use std::sync::LazyLock;
pub use values::*;

with_hints! {
/// Who takes part, and what happens, phase by phase.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Scenario", title = "Greenroom scenario", deny_unknown_fields, extend("required" = ["phases"]))]
pub struct Written {
    /// Short name, used for folders and memories: letters, digits, `-` and `_`. Default: the file's name.
    #[schemars(regex(pattern = "^[A-Za-z0-9_-]{1,100}$"))]
    pub id: Option<String>,
    /// Title shown to people. Default: the id.
    pub title: Option<String>,
    /// What it is about.
    pub description: Option<String>,
    /// Values for templates and expressions: texts, numbers, lists, mappings. `--set name=value` overrides one,
    /// `--set name.part=value` a part of one.
    #[schemars(extend("propertyNames" = { "pattern": NAME }))]
    pub variables: Option<IndexMap<String, Value>>,
    /// A table of cases, for each of which the scenario is played once: a `.csv` file whose first line names variables (or parts of them,
    /// such as `stakes.reward`), or a `.jsonl` file with an object in each line; its path relative to this file. Values have the types that
    /// the variables have here. A column `case` names the cases; without it they have numbers, from 1.
    #[schemars(extend("pattern" = "\\.(csv|jsonl)$"))]
    pub cases: Option<String>,
    /// What changes as the scenario is played, by name, with its first value: a number, a text, true or false, a list, a mapping
    /// (such as one by agent). `set` changes it; texts and expressions use it like a variable. It keeps its type, unless it
    /// begins as null.
    #[schemars(extend("propertyNames" = { "pattern": NAME }))]
    pub state: Option<IndexMap<String, Value>>,
    /// Intermediate values, by name: expressions that texts and other expressions can use by their names. One may use those
    /// above it. It is worked out wherever it is used, from what is known there.
    #[serde(rename = "let")]
    #[schemars(with = "Option<IndexMap<String, WrittenExpression>>", extend("propertyNames" = { "pattern": NAME }))]
    pub lets: Option<IndexMap<String, Option<WrittenExpression>>>,
    /// Files whose `agents`, `variables` and `models` are taken over, paths relative to this file. What stands here wins.
    pub include: Option<Vec<Option<String>>>,
    /// Models by name, for `model`: a GGUF file (its path relative to this file, or absolute), a name that `greenroom pull` lists,
    /// `hf:ORG/REPO/FILE.gguf`, the bundled `understudy`, or an engine elsewhere (`remote`). `--model NAME=…` puts another in its place.
    #[schemars(with = "Option<IndexMap<String, WrittenModel>>", extend("propertyNames" = { "pattern": NAME }))]
    pub models: Option<IndexMap<String, Option<WrittenModel>>>,
    /// The model that memories are looked up by: a name under `models`. Any model of a known family serves, an embedding model best. Default:
    /// each agent's own.
    pub embeddings: Option<String>,
    /// Tools that agents may call before they reply, by name. A call and its result stay in the agent's own memory: nobody hears them. A
    /// transcript holds both, and a replay calls nothing.
    #[schemars(extend("propertyNames" = { "pattern": NAME }))]
    pub tools: Option<IndexMap<String, Option<WrittenTool>>>,
    /// The language of what the stage itself says: cues, votes, rules of debates. Default: `en`.
    pub language: Option<WrittenLanguage>,
    /// Who takes part, by key: letters, digits and `_`.
    #[schemars(extend("propertyNames" = { "pattern": NAME }))]
    pub agents: Option<IndexMap<String, Option<WrittenAgent>>>,
    /// What happens, in order: phases, and blocks of them that are repeated.
    #[schemars(extend("minItems" = 1))]
    pub phases: Option<Vec<Option<WrittenPart>>>,
    /// What the choices of one phase are worth to the players.
    pub payoff: Option<WrittenPayoff>,
    /// Results to compute at the end, by name. One may use those above it, as `outcome.NAME`.
    #[schemars(with = "Option<IndexMap<String, WrittenExpression>>", extend("propertyNames" = { "pattern": NAME }))]
    pub outcome: Option<IndexMap<String, Option<WrittenExpression>>>,
    /// What must hold at the end. If something does not, it is named and the exit code is 1.
    #[schemars(with = "Option<Vec<WrittenAssertion>>")]
    pub assertions: Option<Vec<Option<WrittenAssertion>>>,
    /// Hints for displays; not read.
    #[schemars(with = "Value")]
    pub ui: Option<Value>,
}
}

/// A model.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Model", untagged)]
pub enum WrittenModel {
    /// A file, a name, or an engine's address: `API+URL`.
    Text(
        #[schemars(extend("not" = { "pattern": "^https?://" }))]
        String,
    ),
    /// An engine elsewhere.
    Long(Box<RemoteModel>),
}

/// An engine in another process or on another machine. What agents read goes there, and only where `--allow-remote` lets it.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields, extend("required" = ["remote", "api"]))]
pub struct RemoteModel {
    /// The base of its URLs, e.g. `http://127.0.0.1:8080`; for `openai` with `/v1`.
    #[schemars(regex(pattern = r"^https?://[^/@\s]+(/\S*)?$"))]
    pub remote: Option<String>,
    /// The words in which it is asked: `greenroom` (`greenroom serve`), `llamacpp`, `vllm`, `sglang` (all by token ids), `openai` or
    /// `anthropic` (by messages).
    #[schemars(extend("enum" = Api::ALL.map(|(name, _)| name)))]
    pub api: Option<String>,
    /// The model's name there. Default: the only one that there is.
    pub model: Option<String>,
    /// The environment variable that holds its key.
    pub key_env: Option<String>,
    /// A model file here that has the model's tokenizer and chat template; `llamacpp`, `vllm` and `sglang` need one. Its weights are not
    /// read.
    pub tokenizer: Option<String>,
    /// Requests at once. Default: 4.
    #[schemars(extend("minimum" = 1))]
    pub slots: Option<u64>,
    /// Requests a minute, at most.
    #[schemars(extend("minimum" = 1))]
    pub requests_per_minute: Option<u64>,
    /// Tokens a minute, at most, of prompts and replies.
    #[schemars(extend("minimum" = 1))]
    pub tokens_per_minute: Option<u64>,
    /// Tokens of prompts and replies after which the run stops.
    #[schemars(extend("minimum" = 1))]
    pub budget: Option<u64>,
    /// Seconds of silence after which a request is given up and made again. Default: 600.
    #[schemars(extend("minimum" = 1))]
    pub timeout: Option<u64>,
    /// Tokens that the model's context holds, where the engine does not say.
    #[schemars(extend("minimum" = 1))]
    pub context: Option<u64>,
}

/// The texts that the stage itself says: a language by its name, or a table of texts in place of those of a language. In a text
/// `{name}` stands for a value; which there are stands beside each.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Language", untagged)]
pub enum WrittenLanguage {
    /// A language that is built in.
    Text(String),
    /// Texts by their names; `base` names the language of the others.
    Texts(IndexMap<String, Option<String>>),
}

/// The JSON Schema of scenario files.
pub fn json_schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(|| {
        let mut schema = schema_for!(Written);
        super::names::add_to(&mut schema);
        super::language::add_to(&mut schema);
        // In the order of their names, whatever the features that other crates ask of serde_json.
        let mut value = schema.to_value();
        value.sort_all_objects();
        value.try_into().unwrap_or_default()
    });
    &SCHEMA
}
