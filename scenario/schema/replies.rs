//! What a reply may be, as written: a choice, a form, a grammar.

use super::values::{Scalar, Texts, WrittenExpression, WrittenTemplate};
use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

/// Two or more options, in one of four forms. A list: `[share, take]`. A mapping from results to the texts
/// that are said: `{share: "I share", take: "I take more"}`. An expression that returns agent keys, such as
/// the name of a list in the state: the options are these agents, by name. Or any of these forms under
/// `options`, with settings.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Choice", untagged)]
pub enum WrittenChoice {
    /// Results that are said as they are.
    List(#[schemars(with = "Vec<Scalar>", extend("minItems" = 2, "maxItems" = 100))] Vec<Option<Scalar>>),
    /// An expression that returns agents.
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
    /// The options: a list, a mapping from results to the texts that are said, or an expression that returns
    /// agent keys.
    #[schemars(with = "Options")]
    pub options: Option<Options>,
    /// Whether the options are listed in an order drawn from the turn's seed, to counter a preference for the
    /// first one. Default: `false`.
    #[serde(default)]
    pub shuffle: Option<bool>,
    /// How the options are weighed. Default: `none`.
    #[serde(default)]
    pub normalize: Option<Normalize>,
    /// The question. Default: only the options are listed.
    #[serde(default)]
    pub ask: Option<WrittenTemplate>,
    /// Which options are open, evaluated at each turn: an expression that returns a list of results; `me` is
    /// the agent who chooses. A turn with no open options is not played. Default: all options.
    #[serde(default)]
    pub open: Option<WrittenExpression>,
}

/// How options are weighed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Normalize {
    /// By how likely each text is as a whole. The default.
    None,
    /// By how likely each is for its length: its log-probability per byte, times the mean length of the
    /// options.
    Length,
}

/// Options of a choice.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(untagged)]
pub enum Options {
    /// An expression that returns agents.
    Text(String),
    /// Results that are said as they are.
    List(#[schemars(with = "Vec<Scalar>", extend("minItems" = 2, "maxItems" = 100))] Vec<Option<Scalar>>),
    /// Results and the texts that are said for them.
    Texts(
        #[schemars(with = "IndexMap<String, Scalar>", extend("minProperties" = 2, "maxProperties" = 100))]
        Texts,
    ),
}

/// A form of replies: JSON. A reply that is cut off by the token limit is `invalid`, and its value is null.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Reply", deny_unknown_fields, extend("required" = ["schema"]))]
pub struct WrittenReply {
    /// A [JSON Schema](https://json-schema.org), e.g.
    /// `{ type: object, properties: { price: { type: integer } } }`, or the name of a `.json` file that
    /// contains one, with a path relative to this file. Keys are written in the order of its `properties`.
    #[schemars(extend("type" = ["object", "string"], "pattern" = "\\.json$"))]
    pub schema: Option<Value>,
    /// Whether the schema is shown to the agent when it is asked. Default: `true`.
    pub show: Option<bool>,
}

/// A form of replies: either `lark` or `regex`. A reply that is cut off by the token limit is `invalid`, and
/// its value is null.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Grammar", deny_unknown_fields, extend(
    "oneOf" = [{ "required": ["lark"] }, { "required": ["regex"] }]
))]
pub struct WrittenGrammar {
    /// A grammar in [llguidance's dialect of
    /// Lark](https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md); it begins at `start`.
    pub lark: Option<String>,
    /// A regular expression for the whole reply.
    pub regex: Option<String>,
}
