//! Finds a cursor's place in a scenario, even if the text being typed is not valid YAML yet.

use crate::diagnostic::Source;
use crate::scenario::{Path, Tree};
use std::ops::Range;

/// Placeholder for the text being typed, so that the text around it can be read.
const MARK: &str = "zzcursorzz";

/// A way to read the text with something at the cursor.
pub(super) struct Cursor {
    /// The resulting text.
    pub(super) tree: Tree,
    /// The path of the key or the value.
    pub(super) path: Path,
    pub(super) at: At,
    /// The bytes of the word at the cursor.
    pub(super) word: Range<usize>,
}

/// What is at a cursor.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum At {
    Key,
    /// A value of one word.
    Value,
    /// A longer value: the text before the word.
    Text(String),
}

/// All ways to read the text, the most likely first.
pub(super) fn cursors(text: &str, offset: usize) -> Vec<Cursor> {
    let word = word_at(text, offset);
    let line = &text[text[..word.start].rfind('\n').map_or(0, |at| at + 1)..word.start];
    let opens = line.trim_start_matches([' ', '-']).is_empty() || line.trim_end().ends_with(['{', ',']);
    let has_colon = text[word.end..].starts_with(':');
    let (as_key, as_value) = (if has_colon { MARK.to_owned() } else { format!("{MARK}: ") }, MARK.to_owned());
    let typed = if opens { vec![as_key, as_value] } else { vec![as_value] };
    typed.into_iter().filter_map(|typed| cursor(text, &word, &typed)).collect()
}

fn cursor(text: &str, word: &Range<usize>, typed: &str) -> Option<Cursor> {
    let text = [&text[..word.start], typed, &text[word.end..]].concat();
    let (tree, found) = Tree::read(&Source { name: String::new(), text }, 0);
    if found.iter().any(|found| found.code == "yaml") {
        return None;
    }
    let marked = |text: &String| text.contains(MARK);
    let place = tree.places().into_iter().find(|place| place.text.as_ref().is_some_and(marked))?;
    let text = place.text.unwrap_or_default();
    let at = match text.split_once(MARK) {
        _ if place.is_key => At::Key,
        Some((before, after)) if !before.is_empty() || !after.is_empty() => At::Text(before.to_owned()),
        _ => At::Value,
    };
    Some(Cursor { tree, path: place.path, at, word: word.clone() })
}

/// The bytes of the word that contains a byte or ends before it.
pub(super) fn word_at(text: &str, offset: usize) -> Range<usize> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let offset = offset.min(text.len());
    let before = text[..offset].chars().rev().take_while(|c| is_word(*c)).map(char::len_utf8);
    let after = text[offset..].chars().take_while(|c| is_word(*c)).map(char::len_utf8);
    offset - before.sum::<usize>()..offset + after.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Paths and kinds of the ways to read a text with `¦` at the cursor.
    fn read(text: &str) -> Vec<(String, At)> {
        let offset = text.find('¦').unwrap();
        let found = cursors(&text.replace('¦', ""), offset);
        found.into_iter().map(|cursor| (cursor.path.to_string().replace(MARK, "?"), cursor.at)).collect()
    }

    #[test]
    fn keys_values_and_texts_are_distinguished() {
        let one = |path: &str, at: At| vec![(path.to_owned(), at)];
        assert_eq!(read("agents:\n  ann: { li¦ }\n")[0], ("agents.ann.?".to_owned(), At::Key));
        assert_eq!(
            read("phases:\n  - name: a\n    ¦\n    rounds: 2\n")[0],
            ("phases[0].?".to_owned(), At::Key)
        );
        assert_eq!(read("phases:\n  - { order: br¦ }\n"), one("phases[0].order", At::Value));
        assert_eq!(read("phases:\n  - agents: [ann, ¦]\n")[1], ("phases[0].agents[1]".to_owned(), At::Value));
        let when = At::Text("talk.votes.yes > ".to_owned());
        assert_eq!(read("phases:\n  - when: talk.votes.yes > ta¦\n"), one("phases[0].when", when));
        let prompt = At::Text("A line.\n{{ ".to_owned());
        let found = read("phases:\n  - prompt: |\n      A line.\n      {{ ¦ }}\n");
        assert_eq!(found[0], ("phases[0].prompt".to_owned(), prompt));
        // Nothing is known about a text that can't be read.
        assert_eq!(read("phases:\n  - [\n  ¦"), []);
    }

    #[test]
    fn a_word_ends_at_another_character() {
        assert_eq!(word_at("a.bcd e", 3), 2..5);
        assert_eq!(word_at("über", 2), 0..5);
        assert_eq!(word_at("", 7), 0..0);
    }
}
