//! Grammars as plain data.

use serde_json::Value;

/// A grammar: what a reply may be, from its first byte to its last.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Grammar {
    /// JSON that a schema (its text) allows. Keys stand in the order of the schema's `properties`.
    JsonSchema(String),
    /// A grammar in llguidance's dialect of Lark; it begins at `start`.
    Lark(String),
    /// A regular expression for the whole reply: no anchors, no look-around.
    Regex(String),
    /// One of these, whichever the reply turns out to be in.
    Either(Vec<Grammar>),
}

impl Grammar {
    /// The grammar of JSON that a schema allows.
    pub fn json_schema(schema: &Value) -> Self {
        Self::JsonSchema(schema.to_string())
    }
}

/// Spaces between the tokens of JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spacing {
    /// One behind each `,` and `:`, so that a reply can't go on with spaces for ever.
    One,
    /// As they come.
    Any,
}
