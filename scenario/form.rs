//! Forms of replies: a JSON Schema or a grammar that a reply must be in, and the value that it is read as.

use greenroom_grammar::{Grammar, Mismatch, Relaxed};
use greenroom_yaml::Path;
use serde_json::Value;

/// Maximum number of retries of a reply that fails a check of complete replies.
pub const MAX_AGAIN: usize = 4;

/// A form of replies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    /// Its place in the file.
    pub path: Path,
    /// What a reply may be.
    pub grammar: Grammar,
    /// The same as masks can enforce it, and what is checked afterwards.
    pub relaxed: Relaxed,
    /// True if the agent is shown the schema where it is asked.
    pub is_shown: bool,
}

impl Form {
    /// `schema`, `lark` or `regex`.
    pub fn kind(&self) -> &'static str {
        self.grammar.kind()
    }

    /// The grammar's text.
    pub fn text(&self) -> &str {
        self.grammar.text()
    }

    /// blake3 (hex) of the grammar's text.
    pub fn hash(&self) -> String {
        blake3::hash(self.text().as_bytes()).to_hex().to_string()
    }

    /// The grammar that a reply follows while it is written.
    pub fn enforced(&self) -> &Grammar {
        &self.relaxed.grammar
    }

    /// The grammar that another engine is asked to follow.
    pub fn elsewhere(&self) -> &Grammar {
        &self.relaxed.elsewhere
    }

    /// True if a complete reply is checked for more than it follows while it is written.
    pub fn is_checked(&self) -> bool {
        self.relaxed.is_checked()
    }

    /// What a complete reply breaks of that, as text.
    pub fn broken_by(&self, reply: &str) -> Option<String> {
        match self.relaxed.accepts(reply.trim()) {
            Err(Mismatch::Invalid(reason)) => Some(reason),
            _ => None,
        }
    }

    /// The value of a reply: what its JSON says, the text itself under a grammar.
    ///
    /// # Errors
    /// The reason why it is not in the form, as text.
    pub fn read(&self, reply: &str) -> Result<Value, String> {
        let reply = if self.kind() == "schema" { reply.trim() } else { reply };
        self.relaxed.accepts(reply).map_err(|mismatch| mismatch.to_string())?;
        match self.grammar {
            Grammar::JsonSchema(_) => serde_json::from_str(reply).map_err(|error| error.to_string()),
            _ => Ok(reply.into()),
        }
    }

    /// The value of a short reply in this form, to try texts with; null: none was found.
    pub fn example(&self) -> Value {
        let text = self.relaxed.example();
        text.and_then(|text| self.read(&text).ok()).unwrap_or_default()
    }
}
