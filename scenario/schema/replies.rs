//! What a reply may be, as written: an option, or a text of a form.

use super::values::{Scalar, Texts, WrittenExpression};
use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

/// The form of a reply. The model can reply with nothing else. In its short forms a choice: a list of options,
/// `[share, take]`, or an expression that returns agent keys, such as the name of a list in the state. Else a
/// mapping with one of `one_of`, `some_of`, `schema`, `regex` and `lark`, or with `call`, or with both. A reply that the token limit cuts off is
/// `invalid`, and its value is null.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Answer", untagged)]
pub enum WrittenAnswer {
    /// Results that are said as they are.
    List(#[schemars(with = "Vec<Scalar>", extend("minItems" = 2, "maxItems" = 100))] Vec<Option<Scalar>>),
    /// An expression that returns agents.
    Text(String),
    /// A form with settings.
    Long(Box<LongAnswer>),
}

/// A form of a reply, with settings.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields, extend(
    "allOf" = [{ "anyOf": [
        { "required": ["one_of"] }, { "required": ["some_of", "size"] }, { "required": ["schema"] },
        { "required": ["regex"] }, { "required": ["lark"] }, { "required": ["call"] }
    ] }],
    "not" = { "anyOf": [
        { "required": ["one_of", "some_of"] }, { "required": ["one_of", "schema"] },
        { "required": ["one_of", "regex"] }, { "required": ["one_of", "lark"] },
        { "required": ["some_of", "schema"] }, { "required": ["some_of", "regex"] },
        { "required": ["some_of", "lark"] }, { "required": ["schema", "regex"] },
        { "required": ["schema", "lark"] }, { "required": ["regex", "lark"] }
    ] }
))]
pub struct LongAnswer {
    /// Two or more options: a list, a mapping from results to the texts that are said, such as
    /// `{ share: I share, take: I take more }`, or an expression that returns agent keys: the options are
    /// these agents, by name. The log-probability of each option is recorded.
    pub one_of: Option<Options>,
    /// As `one_of`, but the agent picks `size` different options, one after the other. In results its choice
    /// is the list of them; if fewer are open, it is shorter.
    pub some_of: Option<Options>,
    /// How many options of `some_of` are picked.
    #[schemars(extend("minimum" = 2, "maximum" = 100))]
    pub size: Option<u64>,
    /// The tool that the agent calls before it replies, by its name under `tools`; of an MCP server, by its
    /// full name. The speakers must have it among their `tools`. The call is in the phase's `calls`.
    pub call: Option<String>,
    /// Which options are open, evaluated at each turn: an expression that returns a list of results; `me` is
    /// the agent who chooses. A turn with no open options is not played. Default: all options.
    pub open: Option<WrittenExpression>,
    /// Whether the options are listed in an order drawn from the turn's seed, to counter a preference for the
    /// first one. Default: `false`.
    pub shuffle: Option<bool>,
    /// How the options are weighed. Default: `none`.
    pub normalize: Option<Normalize>,
    /// Whether the agent answers in its own words, which are then searched for the options. A reply is
    /// `invalid` if it is not clear which option it chooses: it names none, or two, or one in a sentence with
    /// a negation, or only in questions. Negations of many languages are known, also of those without spaces
    /// between words. A number counts with its sign and decimals: `-1` does not choose `1`, and `3.5` does not
    /// choose `3`. Default: `false`.
    pub free_text: Option<bool>,
    /// JSON of a [JSON Schema](https://json-schema.org), e.g.
    /// `{ type: object, properties: { price: { type: integer } } }`, or of one in a `.json` file, with a path
    /// relative to this file. Keys are written in the order of its `properties`.
    #[schemars(extend("type" = ["object", "string"], "pattern" = "\\.json$"))]
    pub schema: Option<Value>,
    /// Whether the schema is shown to the agent when it is asked. Default: `true`.
    pub show: Option<bool>,
    /// A regular expression for the whole reply.
    pub regex: Option<String>,
    /// A grammar in [llguidance's dialect of
    /// Lark](https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md); it begins at `start`.
    pub lark: Option<String>,
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
