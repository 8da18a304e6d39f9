//! Grammars of replies: JSON Schema, Lark and regular expressions, as masks over the tokens of a vocabulary.
//!
//! A [`Grammar`] is plain data. A [`Vocabulary`] compiles it for a model's tokens, and a [`Matcher`] follows one reply through it. Over
//! single bytes ([`Grammar::check`], [`Grammar::accepts`]) nothing of a model is needed. All work is bounded by counted steps
//! (`bounds`): a grammar from a file is compiled or refused, on every machine alike.
#![forbid(unsafe_code)]

mod bounds;
mod matcher;
mod vocabulary;

pub use matcher::{Mask, Matcher};
pub use vocabulary::Vocabulary;

use llguidance::JsonCompileOptions;
use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};
use std::sync::LazyLock;

/// A grammar: what a reply may be, from its first byte to its last.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Grammar {
    /// JSON that a schema (its text) allows. Keys stand in the order of the schema's `properties`.
    JsonSchema(String),
    /// A grammar in llguidance's dialect of Lark; it begins at `start`.
    Lark(String),
    /// A regular expression for the whole reply: no anchors, no look-around.
    Regex(String),
}

/// A grammar that can't be used, or that has become too costly at a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The place where a text leaves its grammar.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The text goes on in a way that the grammar does not.
    #[error("behind `{before}` the grammar does not go on with `{found}`")]
    Unexpected {
        /// What stands before that place; only the end of it, if it is long.
        before: String,
        /// The character that stands there.
        found: char,
    },
    /// The text ends too soon.
    #[error("it ends too soon, behind `{before}`")]
    Incomplete {
        /// The end of the text.
        before: String,
    },
    /// The grammar can't be used.
    #[error(transparent)]
    Grammar(#[from] Error),
}

/// Characters that a [`Mismatch`] quotes.
const QUOTED: usize = 40;
/// Longest example, in bytes.
const MAX_EXAMPLE: usize = 2_000;

impl Grammar {
    /// The grammar of JSON that a schema allows.
    pub fn json_schema(schema: &Value) -> Self {
        Self::JsonSchema(schema.to_string())
    }

    /// Says if the grammar can be compiled.
    ///
    /// # Errors
    /// What is wrong with it, not supported, or beyond a bound.
    pub fn check(&self) -> Result<()> {
        bytes()?.spaced(self, Spacing::Any).map(|_| ())
    }

    /// Says if a whole text is in the grammar. JSON may be spaced as it likes.
    ///
    /// # Errors
    /// The first place where it is not.
    pub fn accepts(&self, text: &str) -> Result<(), Mismatch> {
        let mut matcher = bytes()?.spaced(self, Spacing::Any)?;
        for (at, byte) in text.bytes().enumerate() {
            if !matcher.allows(u32::from(byte))? {
                // Within a character the place is the character's.
                let at = (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
                let found = text[at..].chars().next().unwrap_or_default();
                return Err(Mismatch::Unexpected { before: end_of(&text[..at]), found });
            }
            matcher.take(u32::from(byte))?;
        }
        if matcher.may_end()? { Ok(()) } else { Err(Mismatch::Incomplete { before: end_of(text) }) }
    }

    /// A short text that is in the grammar, if one is found without looking back: what closes something is taken before what opens or
    /// goes on.
    pub fn example(&self) -> Option<String> {
        let mut matcher = bytes().ok()?.spaced(self, Spacing::Any).ok()?;
        let mut text = Vec::new();
        while !matcher.may_end().ok()? {
            let mask = matcher.mask().ok()?;
            let letters = (b'a'..=b'z').chain(b'!'..=b'~').chain(b' '..=b' ').chain(0..=255);
            let mut bytes = br#""}]1,:"#.iter().copied().chain(letters);
            let next = bytes.find(|byte| mask.allows(u32::from(*byte)))?;
            matcher.take(u32::from(next)).ok()?;
            text.push(next);
            if text.len() > MAX_EXAMPLE {
                return None;
            }
        }
        String::from_utf8(text).ok()
    }

    /// As llguidance has it.
    fn compiled_form(&self, spacing: Spacing) -> Result<TopLevelGrammar> {
        bounds::within(self)?;
        Ok(match self {
            Self::JsonSchema(text) => {
                let mut schema: Value = serde_json::from_str(text).map_err(|e| Error(e.to_string()))?;
                if schema == Value::Bool(true) {
                    schema = json!({});
                }
                let Value::Object(fields) = &schema else {
                    return Err(Error("a schema is a mapping, e.g. `{ type: object }`".into()));
                };
                if fields.contains_key("x-guidance") {
                    return Err(Error("`x-guidance` can't be set".into()));
                }
                let is_any = spacing == Spacing::Any;
                let options = JsonCompileOptions {
                    item_separator: if is_any { "," } else { ", " }.into(),
                    key_separator: if is_any { ":" } else { ": " }.into(),
                    whitespace_flexible: is_any,
                    ..JsonCompileOptions::default()
                };
                options.apply_to(&mut schema);
                TopLevelGrammar::from_json_schema(schema)
            }
            Self::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
            Self::Regex(text) => TopLevelGrammar::from_regex(text),
        })
    }
}

/// Spaces between the tokens of JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spacing {
    /// One behind each `,` and `:`, so that a reply can't go on with spaces for ever.
    One,
    /// As they come.
    Any,
}

/// All bytes as tokens.
fn bytes() -> Result<&'static Vocabulary> {
    static BYTES: LazyLock<Result<Vocabulary>> = LazyLock::new(|| {
        let all: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
        Vocabulary::new(all.iter().map(|byte| Some(&byte[..])))
    });
    BYTES.as_ref().map_err(Clone::clone)
}

fn end_of(text: &str) -> String {
    let n = text.chars().count();
    text.chars().skip(n.saturating_sub(QUOTED)).collect()
}

/// What llguidance says, without the state of its parser and without its traces.
fn plain(message: &str) -> Error {
    let cut = ["\n<state>", "\n<non-verbose/>", "\n<backtrace>"].iter().filter_map(|mark| message.find(mark)).min();
    let message = message[..cut.unwrap_or(message.len())].trim();
    let line = |mark: &str| message.split(mark).nth(1).and_then(|rest| rest.lines().next());
    if let Some(reason) = line("\nerror: ").filter(|_| message.contains("regex parse error")) {
        return Error(format!("the regular expression can't be read: {reason}"));
    }
    if let Some(found) = line("Resource '").and_then(|rest| rest.split('\'').next()) {
        return Error(format!("`{found}` is not in the schema, and nothing is fetched"));
    }
    Error(message.to_string())
}
