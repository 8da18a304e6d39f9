//! Text of a template between the parts of a call: special tokens, and plain text.

use crate::text::tokenizer::Tokenizer;

/// A stretch of a template's text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Markup {
    pub(super) text: String,
    /// The same in a grammar; empty: nothing.
    pub(super) lark: String,
}

impl Markup {
    pub(super) fn new(text: &str, tokenizer: &Tokenizer) -> Self {
        let fragments = tokenizer.fragments(text).into_iter();
        let lark =
            fragments.map(|(special, text)| special.map_or_else(|| quoted(&text), |id| format!("<[{id}]>")));
        Self { text: text.to_owned(), lark: lark.collect::<Vec<_>>().join(" ") }
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

/// Offsets of the special tokens in a template's text: where each begins and ends.
pub(super) fn special_spans(text: &str, tokenizer: &Tokenizer) -> Vec<(usize, usize)> {
    let mut at = 0;
    let fragments = tokenizer.fragments(text).into_iter().filter_map(|(special, fragment)| {
        let begin = at;
        at += fragment.len();
        special.map(|_| (begin, at))
    });
    fragments.collect()
}
