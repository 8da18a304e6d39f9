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
    /// The same where a model may write some white space around punctuation.
    pub(super) loose: String,
    /// Texts that a model may write in its place.
    others: Vec<String>,
}

/// How a text begins, white space aside.
pub(super) enum Found<'t> {
    /// With the whole markup, after which this follows.
    Whole(&'t str),
    /// With a part of it, and nothing else.
    Part,
    /// With something else.
    No,
}

impl Found<'_> {
    fn or(self, other: Self) -> Self {
        match (&self, &other) {
            (Found::Whole(_), _) | (Found::Part, Found::No) => self,
            _ => other,
        }
    }
}

/// How a text begins, if this is expected, white space aside.
fn find<'t>(expected: &str, text: &'t str) -> Found<'t> {
    let mut rest = text;
    for expected in expected.chars().filter(|c| !c.is_whitespace()) {
        rest = rest.trim_start();
        match rest.strip_prefix(expected) {
            Some(after) => rest = after,
            None if rest.is_empty() => return Found::Part,
            None => return Found::No,
        }
    }
    Found::Whole(rest)
}

impl Markup {
    pub(super) fn new(text: &str, tokenizer: &Tokenizer) -> Self {
        let pieces = tokenizer.fragments(text);
        let lark = |write: fn(&str) -> String| {
            let written = pieces.iter().map(|(special, text)| match special {
                Some(id) => format!("<[{id}]>"),
                None => write(text),
            });
            written.filter(|it| !it.is_empty()).collect::<Vec<_>>().join(" ")
        };
        let (lark, loose) = (lark(quoted), lark(loose));
        Self { text: text.to_owned(), lark, loose, pieces, others: Vec::new() }
    }

    /// This text, in whose place a model may write others.
    pub(super) fn or(text: &str, others: Vec<String>, tokenizer: &Tokenizer) -> Self {
        let own = Self::new(text, tokenizer);
        let of_others = others.iter().map(|text| Self::new(text, tokenizer).lark);
        let lark = [own.lark.clone()].into_iter().chain(of_others).collect::<Vec<_>>().join(" | ");
        Self { lark: format!("({lark})"), others, ..own }
    }

    /// How a text begins, white space aside.
    pub(super) fn find<'t>(&self, text: &'t str) -> Found<'t> {
        let all = [&self.text].into_iter().chain(&self.others);
        all.map(|expected| find(expected, text)).reduce(Found::or).unwrap_or(Found::No)
    }

    /// What follows it in a text that begins with it, white space aside.
    pub(super) fn after<'t>(&self, text: &'t str) -> Option<&'t str> {
        match self.find(text) {
            Found::Whole(rest) => Some(rest),
            Found::Part | Found::No => None,
        }
    }

    /// What follows it in a text that begins with it, but for spaces at its end.
    pub(super) fn strip<'t>(&self, text: &'t str) -> Option<&'t str> {
        text.strip_prefix(self.text.trim_end())
    }
}

/// A text as an expression of a grammar, white space around JSON's punctuation left open.
fn loose(text: &str) -> String {
    // (A model that would rather say something else would write it for ever.)
    const SPACE: &str = r"[ \t\n\r]{0,32}";
    if !text.contains(['{', '}', ',']) {
        return quoted(text);
    }
    let mut pattern = String::new();
    for c in text.chars() {
        let is_punctuation = "{}[]:,".contains(c);
        if (is_punctuation || c.is_whitespace()) && !pattern.ends_with(SPACE) {
            pattern += SPACE;
        }
        if !c.is_whitespace() {
            pattern += &regex::escape(&c.to_string()).replace('/', r"\/");
        }
        if is_punctuation {
            pattern += SPACE;
        }
    }
    // (Nothing follows what a call ends with.)
    let end = if text.ends_with(['}', ']']) { pattern.strip_suffix(SPACE) } else { None };
    format!("/{}/", end.unwrap_or(&pattern))
}

/// A text as a literal of a grammar.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
