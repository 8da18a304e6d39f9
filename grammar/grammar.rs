//! Grammars as plain data.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A grammar: what a reply may be, from its first byte to its last.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Grammar {
    /// JSON that a schema (its text) allows. Keys are in the order of the schema's `properties`.
    JsonSchema(String),
    /// A grammar in llguidance's dialect of Lark; it begins at `start`.
    Lark(String),
    /// A regular expression for the whole reply: no anchors, no look-around.
    Regex(String),
}

impl Grammar {
    /// The grammar of JSON that a schema allows.
    pub fn json_schema(schema: &Value) -> Self {
        Self::JsonSchema(schema.to_string())
    }

    /// `schema`, `lark` or `regex`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::JsonSchema(_) => "schema",
            Self::Lark(_) => "lark",
            Self::Regex(_) => "regex",
        }
    }

    /// Its text.
    pub fn text(&self) -> &str {
        match self {
            Self::JsonSchema(text) | Self::Lark(text) | Self::Regex(text) => text,
        }
    }
}

/// Spaces between the tokens of JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spacing {
    /// One after each `,` and `:`, so that a reply can't continue with spaces for ever.
    One,
    /// As they come.
    Any,
}
