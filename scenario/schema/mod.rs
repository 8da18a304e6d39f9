//! The scenario file as written: every field optional, nothing resolved.
//!
//! `read` makes a [`Written`] of a file; what the fields mean is decided in `check`. Its documentation is the
//! author's: `greenroom schema` and the reference of all fields are made from it. Every field accepts null,
//! which is how a value that could not be read is set aside.

mod agents;
mod phases;
mod replies;
mod results;
mod values;

use super::Api;
use super::hints::WrittenSampling;
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

/// Who takes part, and what happens, phase by phase.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(
    rename = "Scenario", title = "Greenroom scenario", deny_unknown_fields, extend("required" = ["phases"])
)]
pub struct Written {
    /// Short name, used for folders and memories: letters, digits, `-` and `_`. Default: the file's name.
    #[schemars(regex(pattern = "^[A-Za-z0-9_-]{1,100}$"))]
    pub id: Option<String>,
    /// Title shown to people. Default: the id.
    pub title: Option<WrittenText>,
    /// What the scenario is about.
    pub description: Option<WrittenText>,
    /// Values for templates and expressions: texts, numbers, lists, mappings. `--set name=value` overrides a
    /// variable, `--set name.part=value` a part of one. A value from elsewhere must have the type of the
    /// value here, unless that is null.
    #[schemars(extend("propertyNames" = { "pattern": NAME }))]
    pub variables: Option<IndexMap<String, Value>>,
    /// A table of cases; the scenario is played once for each. It is a `.csv` file whose first line names
    /// variables (or parts of them, such as `stakes.reward`), or a `.jsonl` file with one object per line,
    /// with a path relative to this file. Values must have the types that the variables have here. A column
    /// `case` names the cases; without it they are numbered from 1.
    #[schemars(extend("pattern" = "\\.(csv|jsonl)$"))]
    pub cases: Option<String>,
    /// Values that change while the scenario is played, by name, with their initial value: a number, a text,
    /// true or false, a list, or a mapping (for example by agent). A text that is nothing but `{{ EXPRESSION }}`
    /// is computed when a run begins: it can use variables, and draw by chance. `set` changes the values; texts
    /// and expressions use them like variables. A value keeps its type, unless it begins as null.
    #[schemars(extend("propertyNames" = { "pattern": NAME }))]
    pub state: Option<IndexMap<String, Value>>,
    /// Intermediate values, by name: expressions that texts and other expressions can use by name. An
    /// expression can use those above it. It is evaluated wherever it is used, with the values available
    /// there.
    #[serde(rename = "let")]
    #[schemars(
        with = "Option<IndexMap<String, WrittenExpression>>", extend("propertyNames" = { "pattern": NAME })
    )]
    pub lets: Option<IndexMap<String, Option<WrittenExpression>>>,
    /// Files whose `agents`, `variables` and `models` are included, with paths relative to this file.
    /// Definitions in this file take precedence.
    pub include: Option<Vec<Option<String>>>,
    /// Models by name, for `model`: a GGUF file (its path relative to this file, or absolute), a name that
    /// `greenroom models` or `greenroom pull` lists (such as `ollama:NAME`), `hf:ORG/REPO/FILE.gguf`, the
    /// bundled `understudy`, or a remote engine (`remote`). `--model NAME=…` replaces it with another.
    #[schemars(
        with = "Option<IndexMap<String, WrittenModel>>", extend("propertyNames" = { "pattern": NAME })
    )]
    pub models: Option<IndexMap<String, Option<WrittenModel>>>,
    /// The model whose embeddings are used to look up memories: a name under `models`. Any model of a known
    /// family works; an embedding model works best. Default: each agent's own model.
    pub embeddings: Option<String>,
    /// Tools that agents may call before they reply, by name. A call and its result stay in the agent's own
    /// memory; nobody hears them. The transcript records both, so a replay calls no tools.
    #[schemars(extend("propertyNames" = { "pattern": NAME }))]
    pub tools: Option<IndexMap<String, Option<WrittenTool>>>,
    /// The language of the stage's own texts: cues, votes, debate rules. Default: `en`.
    pub language: Option<WrittenLanguage>,
    /// Who takes part, by key: letters, digits and `_`.
    #[schemars(extend("propertyNames" = { "pattern": NAME }))]
    pub agents: Option<IndexMap<String, Option<WrittenAgent>>>,
    /// What happens, in order: phases, and blocks of phases that are repeated.
    #[schemars(extend("minItems" = 1))]
    pub phases: Option<Vec<Option<WrittenPart>>>,
    /// What the choices of one phase are worth to the players.
    pub payoff: Option<WrittenPayoff>,
    /// Judges by name: questions about what happened, asked after all phases. Outcomes and assertions can use
    /// `NAME.verdict`. A judge whose verdict decides one assertion may stand beside it instead (`judge`).
    #[schemars(
        with = "Option<IndexMap<String, WrittenJudge>>", extend("propertyNames" = { "pattern": NAME })
    )]
    pub judges: Option<IndexMap<String, Option<Box<WrittenJudge>>>>,
    /// Results to compute at the end, by name. A result can use those above it, as `outcome.NAME`.
    #[schemars(
        with = "Option<IndexMap<String, WrittenExpression>>", extend("propertyNames" = { "pattern": NAME })
    )]
    pub outcome: Option<IndexMap<String, Option<WrittenExpression>>>,
    /// Conditions that must be true at the end. If one is false, it is reported and the exit code is 1.
    #[schemars(with = "Option<Vec<WrittenAssertion>>")]
    pub assertions: Option<Vec<Option<WrittenAssertion>>>,
    /// The model that answers: a name under `models`. A turn's takes precedence, then its phase's, the agent's
    /// and the scenario's. A memory belongs to one model, so an agent with a permanent memory has the same
    /// model in all phases.
    pub model: Option<String>,
    /// How replies are sampled, limited and ended.
    pub sampling: Option<WrittenSampling>,
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
    /// A remote engine.
    Long(Box<RemoteModel>),
}

/// An engine in another process or on another machine. What agents read is sent to it, but only if
/// `--allow-remote` permits it.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields, extend("required" = ["remote", "api"]))]
pub struct RemoteModel {
    /// Its base URL, e.g. `http://127.0.0.1:8080`; for `openai`, include `/v1`.
    #[schemars(regex(pattern = r"^https?://[^/@\s]+(/\S*)?$"))]
    pub remote: Option<String>,
    /// The API that it is called with: `greenroom` (`greenroom serve`), `llamacpp`, `vllm`, `sglang` (all by
    /// token ids), `openai` or `anthropic` (by messages).
    #[schemars(extend("enum" = Api::ALL.map(|(name, _)| name)))]
    pub api: Option<String>,
    /// The model's name on that engine. Default: its only model.
    pub model: Option<String>,
    /// The environment variable that contains its API key.
    pub key_env: Option<String>,
    /// A local model file with the model's tokenizer and chat template. Required for `llamacpp`, `vllm` and
    /// `sglang`. Its weights are not read.
    pub tokenizer: Option<String>,
    /// Maximum number of concurrent requests. Default: 4.
    #[schemars(extend("minimum" = 1))]
    pub slots: Option<u64>,
    /// Maximum number of requests per minute.
    #[schemars(extend("minimum" = 1))]
    pub requests_per_minute: Option<u64>,
    /// Maximum number of tokens per minute, in prompts and replies.
    #[schemars(extend("minimum" = 1))]
    pub tokens_per_minute: Option<u64>,
    /// Number of tokens, in prompts and replies, after which the run stops.
    #[schemars(extend("minimum" = 1))]
    pub budget: Option<u64>,
    /// Seconds without a response after which a request is abandoned and retried. Default: 600.
    #[schemars(extend("minimum" = 1))]
    pub timeout: Option<u64>,
    /// Size of the model's context in tokens, if the engine does not report it.
    #[schemars(extend("minimum" = 1))]
    pub context: Option<u64>,
}

/// The stage's own texts: a language by name, or a table of texts that replace those of a language. In a
/// text, `{name}` is a placeholder; the placeholders of each text are listed with it.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Language", untagged)]
pub enum WrittenLanguage {
    /// A built-in language.
    Text(String),
    /// Texts by name; `base` is the language of the others.
    Texts(IndexMap<String, Option<String>>),
}

/// The JSON Schema of scenario files.
pub fn json_schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(|| {
        let mut schema = schema_for!(Written);
        super::language::add_to(&mut schema);
        // In the order of their names, whatever the features that other crates ask of serde_json.
        let mut value = schema.to_value();
        value.sort_all_objects();
        value.try_into().unwrap_or_default()
    });
    &SCHEMA
}
