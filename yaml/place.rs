//! The places of a file's keys and values, for queries by place: an editor's.

use super::path::Path;
use super::scalar::Leaf;
use super::tree::{Data, Tree};
use crate::diagnostic::Span;
use std::ops::Range;

/// A key or a value that is in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePlace {
    /// Path of the value; of a key that of its value.
    pub path: Path,
    /// Its place.
    pub span: Span,
    /// True of a key.
    pub is_key: bool,
    /// The text, of a key or of a value that is text.
    pub text: Option<String>,
    /// True of a block scalar (`|`, `>`), whose place begins with its text.
    pub is_block: bool,
}

impl NodePlace {
    /// The place of a word of the text in the file's `source`; `None` where the file writes it with escapes.
    pub fn word(&self, source: &str, word: Range<usize>) -> Option<Span> {
        let text = self.text.as_deref()?;
        let raw = source.get(self.span.start..)?;
        let start = if self.is_block { 0 } else { begin(raw) };
        let (before, raw) = raw.split_at(start);
        let quote = raw.chars().next().filter(|c| !self.is_block && matches!(c, '"' | '\''));
        // Of both, white space is passed over: a line break may be a space, several, or an escape.
        let (mut at, mut start) = (quote.map_or(0, char::len_utf8), None);
        for (n, c) in text[..word.end].char_indices().filter(|(_, c)| !c.is_whitespace()) {
            let rest = loop {
                at += raw[at..].len() - raw[at..].trim_start().len();
                match escape(&raw[at..]).filter(|_| quote == Some('"')) {
                    Some((n_bytes, true)) => at += n_bytes,
                    _ => break &raw[at..],
                }
            };
            if n == word.start {
                start = Some(at);
            }
            at += match quote {
                Some('"') if rest.starts_with('\\') => escape(rest)?.0,
                Some('\'') if rest.starts_with("''") => 2,
                _ if rest.starts_with(c) => c.len_utf8(),
                _ => return None,
            };
        }
        let start = start?;
        let begin = self.span.start + before.len();
        let span = Span { start: begin + start, end: begin + at, ..self.span };
        (raw.get(start..at)? == text.get(word)?).then_some(span)
    }
}

/// Where the text of a scalar begins: behind an anchor, a tag and the header of a block.
fn begin(raw: &str) -> usize {
    let mut rest = raw;
    while rest.starts_with(['&', '!']) {
        rest = rest.trim_start_matches(|c: char| !c.is_whitespace()).trim_start();
    }
    if rest.starts_with(['|', '>']) {
        rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
    }
    raw.len() - rest.len()
}

/// The bytes of the escape that a double-quoted text goes on with, and whether it means white space.
fn escape(text: &str) -> Option<(usize, bool)> {
    let mut chars = text.strip_prefix('\\')?.chars();
    let kind = chars.next()?;
    let n_digits = match kind {
        'x' => 2,
        'u' => 4,
        'U' => 8,
        _ => return Some((1 + kind.len_utf8(), kind.is_whitespace() || "ntrvfNLP_".contains(kind))),
    };
    let digits: String = chars.take(n_digits).collect();
    let c = char::from_u32(u32::from_str_radix(&digits, 16).ok()?)?;
    Some((2 + digits.len(), c.is_whitespace()))
}

impl Tree {
    /// All keys and values, each after what it is in. What an alias repeats is listed once more, in its first
    /// place.
    pub fn places(&self) -> Vec<NodePlace> {
        let mut places = Vec::new();
        let mut left: Vec<(Path, usize)> =
            self.root().map(|root| (Path::default(), root)).into_iter().collect();
        while let Some((path, node)) = left.pop() {
            let (span, mut text) = (self.span(node), None);
            let mut inner = Vec::new();
            match self.data(node) {
                Data::Leaf(Leaf::Text(leaf)) => text = Some(leaf.clone()),
                Data::Leaf(_) => {}
                Data::Seq(items) => {
                    inner.extend(items.iter().enumerate().map(|(at, node)| (path.index(at), *node)));
                }
                Data::Map(entries) => {
                    let keys = entries.iter().map(|entry| NodePlace {
                        path: path.key(&*entry.key),
                        span: entry.span,
                        is_key: true,
                        text: Some(entry.key.clone()),
                        is_block: false,
                    });
                    places.extend(keys);
                    inner.extend(entries.iter().map(|entry| (path.key(&*entry.key), entry.node)));
                }
            }
            let is_block = self.start(node) != span.start;
            places.push(NodePlace { path, span, is_key: false, text, is_block });
            left.extend(inner.into_iter().rev());
        }
        places
    }

    /// The innermost key or value at a byte of the `file`-th source.
    pub fn at(&self, file: usize, byte: usize) -> Option<NodePlace> {
        let holds = |place: &NodePlace| {
            let Span { file: in_file, start, end } = place.span;
            in_file == file && (start..=end).contains(&byte)
        };
        let places = self.places().into_iter().filter(holds);
        // Of two that meet there, the one that begins.
        places.min_by_key(|place| (place.span.end - place.span.start, std::cmp::Reverse(place.span.start)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnostic::Source;

    /// What the file has where a word of a value is.
    fn found(value: &str, word: &str) -> Option<(String, usize)> {
        let source = Source { name: String::new(), text: format!("a:\n  b: {value}\nc: d\n") };
        let (tree, _) = Tree::read(&source, 0);
        let place =
            tree.places().into_iter().find(|place| place.path.to_string() == "a.b" && !place.is_key)?;
        let at = place.text.as_ref()?.find(word)?;
        let span = place.word(&source.text, at..at + word.len())?;
        Some((source.text[span.start..span.end].to_owned(), span.start))
    }

    #[test]
    fn words_have_places_in_every_style() {
        for value in [
            "an ü ann",
            "'an ''ü'' ann'",
            "\"an \\\"\\u00fc\\n\\x20 ann\"",
            "\"an \\\n   ann\"",
            "an\n    ü\n\n    ann",
            "|\n    an\n      ü ann\n",
            "|1 # ann\n    an\n   \"ann",
            ">-\n    an ü\n\n    ann\n",
            "&a \"an ann\"",
            "&a |- # ann\n    an ann\n",
            "!!str &a an ann",
        ] {
            let expected = format!("  b: {value}\n").rfind("ann").unwrap() + 3;
            assert_eq!(found(value, "ann"), Some(("ann".to_owned(), expected)), "{value}");
        }
        assert_eq!(found("\"\\x61nn\"", "ann"), None);
        // A block with an anchor after another block.
        assert_eq!(found("&a |-\n    an ann\n  c: >\n    d", "ann"), Some(("ann".to_owned(), 21)));
        let source = "c: >\n  d\na:\n  b: &a |-\n    an ann\n";
        let source = Source { name: String::new(), text: source.to_owned() };
        let places = Tree::read(&source, 0).0.places();
        let place = places.iter().find(|place| place.text.as_deref() == Some("an ann")).unwrap();
        assert_eq!(place.word(&source.text, 3..6).map(|span| span.start), source.text.find("ann"));
    }
}
