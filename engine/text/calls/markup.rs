//! Text of a template between the parts of a call: special tokens, and plain text.

use crate::text::tokenizer::Tokenizer;

/// A piece of a call: a special token, or text.
pub(crate) type CallPiece = (Option<u32>, String);

/// A stretch of a template's text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Markup {
    pub(super) text: String,
    pub(super) pieces: Vec<CallPiece>,
    /// The same in a grammar; empty: nothing.
    pub(super) lark: String,
}

impl Markup {
    pub(super) fn new(text: &str, tokenizer: &Tokenizer) -> Self {
        let pieces = tokenizer.fragments(text);
        let lark = pieces.iter().map(|(special, text)| match special {
            Some(id) => format!("<[{id}]>"),
            None => quoted(text),
        });
        Self { text: text.to_owned(), lark: lark.collect::<Vec<_>>().join(" "), pieces }
    }

    /// What follows it in a text that begins with it, but for spaces at its end.
    pub(super) fn strip<'t>(&self, text: &'t str) -> Option<&'t str> {
        text.strip_prefix(self.text.trim_end())
    }
}

/// A text as a literal of a grammar.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
