//! What a reply may be, as written: a choice, a form, a grammar.

use super::values::{Scalar, Texts, WrittenExpression, WrittenTemplate};
use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

/// Options, 2 or more, in one of four forms. A list: `[share, take]`. A mapping from results to the texts that are said:
/// `{share: "I share", take: "I take more"}`. An expression that gives keys of agents, such as the name of a list in the state:
/// these agents, by their names. Or any of them under `options`, with settings beside it.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Choice", untagged)]
pub enum WrittenChoice {
    /// Results that are said as they stand.
    List(#[schemars(with = "Vec<Scalar>", extend("minItems" = 2, "maxItems" = 100))] Vec<Option<Scalar>>),
    /// An expression that gives agents.
    Text(String),
    /// Options with settings.
    Long(LongChoice),
    /// Results and the texts that are said for them.
    Texts(
        #[schemars(with = "IndexMap<String, Scalar>", extend("minProperties" = 2, "maxProperties" = 100))]
        Texts,
    ),
}

/// A choice with settings.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct LongChoice {
    /// The options: a list, a mapping from results to the texts that are said, or an expression that gives keys of agents.
    #[schemars(with = "Options")]
    pub options: Option<Options>,
    /// Whether the options are named in an order drawn from the turn's seed, against a liking for the first one. Default:
    /// `false`.
    #[serde(default)]
    pub shuffle: Option<bool>,
    /// What the options are weighed by. Default: `none`.
    #[serde(default)]
    pub normalize: Option<Normalize>,
    /// The question. Default: the options alone are named.
    #[serde(default)]
    pub ask: Option<WrittenTemplate>,
    /// Which of the options are open, worked out at each turn: an expression that gives a list of results; `me` is who chooses.
    /// A turn in which none is open is not played. Default: all.
    #[serde(default)]
    pub open: Option<WrittenExpression>,
}

/// Weights of options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Normalize {
    /// By how likely each text is as a whole. The default.
    None,
    /// By how likely each is for its length: its log-probability by byte, times the mean length of the options.
    Length,
}

/// Options of a choice.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(untagged)]
pub enum Options {
    /// An expression that gives agents.
    Text(String),
    /// Results that are said as they stand.
    List(#[schemars(with = "Vec<Scalar>", extend("minItems" = 2, "maxItems" = 100))] Vec<Option<Scalar>>),
    /// Results and the texts that are said for them.
    Texts(
        #[schemars(with = "IndexMap<String, Scalar>", extend("minProperties" = 2, "maxProperties" = 100))]
        Texts,
    ),
}

/// A form of replies: JSON. A reply that the limit of tokens cuts is `invalid`, and its value null.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Reply", deny_unknown_fields, extend("required" = ["schema"]))]
pub struct WrittenReply {
    /// A [JSON Schema](https://json-schema.org), e.g. `{ type: object, properties: { price: { type: integer } } }`, or the name of a
    /// `.json` file that holds one, its path relative to this file. Keys are said in the order of its `properties`.
    #[schemars(extend("type" = ["object", "string"], "pattern" = "\\.json$"))]
    pub schema: Option<Value>,
    /// Whether the agent is shown the schema where it is asked. Default: `true`.
    pub show: Option<bool>,
}

/// A form of replies: either `lark` or `regex`. A reply that the limit of tokens cuts is `invalid`, and its value null.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Grammar", deny_unknown_fields, extend(
    "oneOf" = [{ "required": ["lark"] }, { "required": ["regex"] }]
))]
pub struct WrittenGrammar {
    /// A grammar in [llguidance's dialect of Lark](https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md); it begins at
    /// `start`.
    pub lark: Option<String>,
    /// A regular expression for the whole reply.
    pub regex: Option<String>,
}
