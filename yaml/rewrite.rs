//! A changed tree as text: what did not change stands as it stood, with its comments and its style.
//!
//! Each node of the file is a range of its text. A node whose entries are the file's is its own text with the
//! parts below it replaced; a mapping that lost or gained fields is written entry by entry, each with the
//! comments that belong to it. What moved is written at its new depth.

use super::path::Path;
use super::scalar::{Leaf, plain};
use super::tree::{Data, MapEntry, Origin, Tree};
use crate::diagnostic::{Source, Span};

/// Width up to which a new mapping or list is written on one line.
const WIDTH: usize = 120;

impl Tree {
    /// The text of a changed tree that was read from `text`; `None`: the text repeats a part that changed by
    /// anchors (`&`, `*`, `<<`), so no text of this kind has the tree's data.
    pub fn rewritten(&self, text: &str) -> Option<String> {
        let root = self.root()?;
        let writer = Writer { tree: self, text };
        let start = self.start(root);
        let end = writer.end(root);
        let at = Layout { indent: column(text, start), is_flow: false };
        let written = format!("{}{}{}", &text[..start], writer.value(root, at)?, &text[end..]);
        let again = Source { name: String::new(), text: written };
        let (tree, found) = Self::read(&again, 0);
        (found.is_empty() && tree.json() == self.json()).then_some(again.text)
    }

    /// The place of a key and its value in `text`, without the comments and empty lines that follow; `None`:
    /// there is no such key.
    pub fn extent(&self, text: &str, path: &Path) -> Option<Span> {
        let node = self.node(path)?;
        let key = self.key(path);
        let end = Writer { tree: self, text }.end(node);
        // What an alias repeats ends before the key.
        Some(Span { end: end.max(key.end), ..key })
    }
}

/// Where a value is written.
#[derive(Clone, Copy)]
struct Layout {
    /// Columns before the entries of a block.
    indent: usize,
    /// True within `{ }` or `[ ]`.
    is_flow: bool,
}

impl Layout {
    fn deeper(self, columns: usize) -> Self {
        Self { indent: self.indent + columns, ..self }
    }
}

struct Writer<'a> {
    tree: &'a Tree,
    text: &'a str,
}

impl Writer<'_> {
    /// The byte after a value of the file, without the comments and empty lines that follow.
    fn end(&self, node: usize) -> usize {
        let start = self.tree.start(node);
        let below = self.below(node).into_iter().map(|below| self.end(below)).max();
        if self.tree.origin(node) == Origin::Made {
            return below.unwrap_or(start);
        }
        let own = &self.text[start..self.tree.end(node).max(start)];
        if matches!(self.tree.data(node), Data::Leaf(_)) {
            return start + own.trim_end().len();
        }
        if self.is_flow(node) {
            // The parser may end it behind the comment that follows.
            let is_comment = |line: &str| line.trim().is_empty() || line.trim().starts_with('#');
            let from = below.unwrap_or(start).saturating_sub(start);
            let closing = own.match_indices(['}', ']']).map(|(at, _)| at + 1).filter(|at| *at > from);
            let closed = closing.into_iter().find(|at| own[*at..].split('\n').all(is_comment));
            return start + closed.unwrap_or(own.trim_end().len());
        }
        // The parser ends a block where the next token begins.
        let is_text = |line: &str| !line.trim().is_empty() && !line.trim().starts_with('#');
        let lines: Vec<&str> = own.split_inclusive('\n').collect();
        let kept = lines.iter().rposition(|line| is_text(line)).map_or(0, |last| last + 1);
        let own = lines[..kept].iter().map(|line| line.len()).sum::<usize>();
        let own = start + self.text[start..start + own].trim_end().len();
        own.max(below.unwrap_or(0))
    }

    /// True of a scalar, and of what is in brackets.
    fn is_flow(&self, node: usize) -> bool {
        let starts = |open| self.text[self.tree.start(node)..].starts_with(open);
        match self.tree.data(node) {
            Data::Map(_) => starts('{'),
            Data::Seq(_) => starts('['),
            Data::Leaf(_) => true,
        }
    }

    fn is_block_text(&self, node: usize) -> bool {
        let is_text = matches!(self.tree.data(node), Data::Leaf(Leaf::Text(_)));
        is_text && self.text[self.tree.start(node)..].starts_with(['|', '>'])
    }

    fn below(&self, node: usize) -> Vec<usize> {
        match self.tree.data(node) {
            Data::Map(entries) => entries.iter().map(|entry| entry.node).collect(),
            Data::Seq(items) => items.clone(),
            Data::Leaf(_) => Vec::new(),
        }
    }

    fn is_made(&self, node: usize) -> bool {
        self.tree.origin(node) == Origin::Made
    }

    fn is_as_read(&self, node: usize) -> bool {
        self.tree.origin(node) == Origin::File
            && self.below(node).into_iter().all(|below| self.is_as_read(below))
    }

    /// The column that a value's further lines count from.
    fn base(&self, node: usize) -> usize {
        let start = self.tree.start(node);
        if self.is_flow(node) { indent_of_line(self.text, start) + 2 } else { column(self.text, start) }
    }

    /// A value's text, from its first character on.
    fn value(&self, node: usize, at: Layout) -> Option<String> {
        let needs_brackets = at.is_flow && (!self.is_flow(node) || self.is_block_text(node));
        match self.tree.origin(node) {
            Origin::Made => self.made(node, at),
            _ if needs_brackets => self.made(node, at),
            Origin::Changed if matches!(self.tree.data(node), Data::Map(_)) => self.changed(node, at),
            Origin::Changed => self.made(node, at),
            Origin::File => {
                let written = self.as_read(node)?;
                if at.is_flow
                    && matches!(self.tree.data(node), Data::Leaf(Leaf::Text(_)))
                    && ends_in_brackets(&written)
                {
                    return Some(quoted(self.tree, node));
                }
                Some(shifted(&written, self.base(node), at.indent))
            }
        }
    }

    /// The text of a node of the file, with the parts below it that changed.
    fn as_read(&self, node: usize) -> Option<String> {
        let (start, end) = (self.tree.start(node), self.end(node));
        let mut changed: Vec<usize> =
            self.below(node).into_iter().filter(|below| !self.is_as_read(*below)).collect();
        changed.sort_by_key(|below| self.tree.start(*below));
        let (mut written, mut from) = (String::new(), start);
        for below in changed {
            let (starts, ends) = (self.tree.start(below), self.end(below));
            // What an alias repeats stands elsewhere.
            if starts < from || ends > end {
                return None;
            }
            written.push_str(&self.text[from..starts]);
            let at = Layout { indent: self.base(below), is_flow: self.is_flow(node) };
            written.push_str(&self.value(below, at)?);
            from = ends;
        }
        written.push_str(self.text.get(from..end)?);
        Some(written)
    }

    /// A mapping of the file that has lost or gained fields.
    fn changed(&self, node: usize, at: Layout) -> Option<String> {
        let Data::Map(entries) = self.tree.data(node) else { return None };
        let (start, end) = (self.tree.start(node), self.end(node));
        if self.is_flow(node) {
            let at = Layout { is_flow: true, ..at };
            let fields = entries.iter().map(|entry| self.field(entry, at)).collect::<Option<Vec<_>>>()?;
            let is_long =
                at.indent + fields.iter().map(|field| field.chars().count() + 2).sum::<usize>() > WIDTH;
            if is_long && self.text[start..end].contains('\n') {
                let pad = " ".repeat(at.indent);
                return Some(format!("{{ {} }}", fields.join(&format!(",\n{pad}"))));
            }
            return Some(braces(&fields));
        }
        let pad = " ".repeat(at.indent);
        let mut lines: Vec<String> = Vec::new();
        for entry in entries {
            let mut comments = Vec::new();
            // Those above the mapping's first line are part of what it is in.
            self.comments(entry, start, &mut comments);
            let comments =
                comments.into_iter().map(|line| if line.is_empty() { line } else { format!("{pad}{line}") });
            lines.extend(comments);
            lines.push(format!("{pad}{}", self.field(entry, at)?));
        }
        Some(lines.join("\n").trim_start_matches(' ').to_string())
    }

    /// The comments and empty lines above an entry, and those of all that was taken into it.
    fn comments(&self, entry: &MapEntry, from: usize, found: &mut Vec<String>) {
        let line = entry.span.start - column(self.text, entry.span.start);
        if line > from {
            found.extend(comments_above(self.text, line));
        }
        if self.is_made(entry.node) {
            self.comments_within(entry.node, from, found, entry.span.start);
        }
    }

    fn comments_within(&self, node: usize, from: usize, found: &mut Vec<String>, known: usize) {
        match self.tree.data(node) {
            Data::Map(entries) => {
                for entry in entries {
                    let line = entry.span.start - column(self.text, entry.span.start);
                    if line > from && entry.span.start != known && !self.is_made(entry.node) {
                        let above = comments_above(self.text, line);
                        found.extend(above.into_iter().filter(|line| !line.is_empty()));
                    }
                    if self.is_made(entry.node) {
                        self.comments_within(entry.node, from, found, known);
                    } else {
                        let rest = rest_of_line(self.text, self.end(entry.node).max(entry.span.end));
                        found.extend(Some(rest.trim().to_string()).filter(|rest| !rest.is_empty()));
                    }
                }
            }
            Data::Seq(items) => {
                items.iter().for_each(|item| {
                    if self.is_made(*item) {
                        self.comments_within(*item, from, found, known);
                    }
                });
            }
            Data::Leaf(_) => {}
        }
    }

    /// `key: value`, with the comment behind it.
    fn field(&self, entry: &MapEntry, at: Layout) -> Option<String> {
        let node = entry.node;
        let key = self.key(entry);
        if self.is_made(node) {
            let inner = at.deeper(2);
            let line = self.made(node, Layout { is_flow: true, ..inner })?;
            let fits = self.fits_line(node) && at.indent + key.len() + 2 + line.chars().count() <= WIDTH;
            return Some(match at.is_flow || fits || self.below(node).is_empty() {
                true => format!("{key}: {line}"),
                false => {
                    format!("{key}:\n{}{}", " ".repeat(inner.indent), self.made(node, inner)?)
                }
            });
        }
        // An alias stays one.
        let behind = self.text[entry.span.end..].strip_prefix(':').unwrap_or("").trim_start_matches(' ');
        if let Some(alias) = behind.strip_prefix('*') {
            let name = alias.split([' ', '\n', ',', '}', ']']).next().unwrap_or("");
            return Some(format!("{key}: *{name}"));
        }
        let (start, end) = (self.tree.start(node), self.end(node));
        let rest = if at.is_flow { "" } else { rest_of_line(self.text, end.max(entry.span.end)) };
        if matches!(self.tree.data(node), Data::Leaf(Leaf::Null)) {
            return Some(format!("{key}:{}{rest}", if at.is_flow { " null" } else { "" }));
        }
        if at.is_flow || self.is_flow(node) {
            return Some(format!("{key}: {}{rest}", self.value(node, at.deeper(2))?));
        }
        // A list may stand under its key at the key's own depth.
        let depth = column(self.text, start).saturating_sub(indent_of_line(self.text, entry.span.start));
        let inner = at.deeper(depth);
        let pad = " ".repeat(inner.indent);
        let mut between = self.text.get(entry.span.end..start).unwrap_or("").lines().map(str::trim);
        let first = between.next().and_then(|line| line.find('#').map(|at| format!(" {}", &line[at..])));
        let comments = between.filter(|line| line.starts_with('#')).map(|line| format!("{pad}{line}\n"));
        let (first, comments) = (first.unwrap_or_default(), comments.collect::<String>());
        Some(format!("{key}:{first}\n{comments}{pad}{}{rest}", self.value(node, inner)?))
    }

    /// The key as it stands in the file, or a new one.
    fn key(&self, entry: &MapEntry) -> String {
        let there = &self.text[entry.span.start..entry.span.end];
        if there.trim_matches(['"', '\'']) == entry.key { there.to_string() } else { key_text(&entry.key) }
    }

    /// True if all in a new value can stand on one line.
    fn fits_line(&self, node: usize) -> bool {
        if self.is_made(node) {
            return self.below(node).into_iter().all(|below| self.fits_line(below));
        }
        let (start, end) = (self.tree.start(node), self.end(node));
        self.is_flow(node) && !self.is_block_text(node) && !self.text[start..end].contains('\n')
    }

    /// A value that is not in the file, or that stands in brackets now.
    fn made(&self, node: usize, at: Layout) -> Option<String> {
        let next = format!("\n{}", " ".repeat(at.indent));
        match self.tree.data(node) {
            Data::Leaf(_) => Some(quoted(self.tree, node)),
            Data::Map(entries) => {
                let fields = entries.iter().map(|entry| self.field(entry, at)).collect::<Option<Vec<_>>>()?;
                Some(if at.is_flow { braces(&fields) } else { fields.join(&next) })
            }
            Data::Seq(items) if at.is_flow => {
                let items = items.iter().map(|item| self.value(*item, at)).collect::<Option<Vec<_>>>()?;
                Some(format!("[{}]", items.join(", ")))
            }
            Data::Seq(items) => {
                let item = |item: &usize| {
                    let inner = at.deeper(2);
                    let line = self.value(*item, Layout { is_flow: true, ..inner })?;
                    let is_short = self.fits_line(*item) && inner.indent + line.chars().count() <= WIDTH;
                    Some(format!("- {}", if is_short { line } else { self.value(*item, inner)? }))
                };
                Some(items.iter().map(item).collect::<Option<Vec<_>>>()?.join(&next))
            }
        }
    }
}

/// Fields between braces.
fn braces(fields: &[String]) -> String {
    if fields.is_empty() { "{}".into() } else { format!("{{ {} }}", fields.join(", ")) }
}

fn key_text(key: &str) -> String {
    let is_plain = key.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && key.chars().all(|c| c.is_alphanumeric() || "_-./ ".contains(c));
    if is_plain && plain(key) == Leaf::Text(key.to_string()) { key.to_string() } else { json(key) }
}

fn json(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// True of a plain text that brackets would end or split.
fn ends_in_brackets(text: &str) -> bool {
    let is_quoted = text.starts_with(['"', '\'']);
    !is_quoted
        && (text.contains([',', '[', ']', '{', '}', '\n']) || text.contains(": ") || text.contains(" #"))
}

/// A scalar as it can stand anywhere.
fn quoted(tree: &Tree, node: usize) -> String {
    match tree.data(node) {
        Data::Leaf(Leaf::Null) => "null".into(),
        Data::Leaf(Leaf::Bool(truth)) => truth.to_string(),
        Data::Leaf(Leaf::Number(number)) => number.to_string(),
        Data::Leaf(Leaf::Text(text)) => {
            let is_word = text.starts_with(|c: char| c.is_alphabetic())
                && text.chars().all(|c| c.is_alphanumeric() || "_-".contains(c));
            if is_word && plain(text) == Leaf::Text(text.clone()) { text.clone() } else { json(text) }
        }
        Data::Map(_) | Data::Seq(_) => String::new(),
    }
}

/// The column of a byte.
fn column(text: &str, at: usize) -> usize {
    at - text[..at].rfind('\n').map_or(0, |newline| newline + 1)
}

/// The blanks and the dashes of lists with which a byte's line begins.
fn indent_of_line(text: &str, at: usize) -> usize {
    let line = text[at - column(text, at)..].lines().next().unwrap_or("");
    let rest = line.trim_start_matches(' ');
    let mut rest = rest;
    while let Some(item) = rest.strip_prefix("- ") {
        rest = item.trim_start_matches(' ');
    }
    line.len() - rest.len()
}

/// A text whose lines after the first are moved from one column to another.
fn shifted(text: &str, from: usize, to: usize) -> String {
    let mut lines = text.split('\n');
    let mut moved = lines.next().unwrap_or("").to_string();
    for line in lines {
        let words = line.trim_start_matches(' ');
        let indent = if words.is_empty() { 0 } else { (line.len() - words.len() + to).saturating_sub(from) };
        moved.push('\n');
        moved.extend(std::iter::repeat_n(' ', indent));
        moved.push_str(words);
    }
    moved
}

/// The comment that follows a value on its line, with the blanks before it.
fn rest_of_line(text: &str, at: usize) -> &str {
    let rest = text[at..].split('\n').next().unwrap_or("").trim_end();
    if rest.trim_start().starts_with('#') { rest } else { "" }
}

/// The comments and empty lines right above a line.
fn comments_above(text: &str, line: usize) -> Vec<String> {
    let is_comment = |line: &&str| line.trim().is_empty() || line.trim().starts_with('#');
    let mut found: Vec<String> =
        text[..line].lines().rev().take_while(is_comment).map(|line| line.trim().to_string()).collect();
    found.reverse();
    found
}

#[cfg(test)]
mod tests {
    use crate::diagnostic::Source;
    use crate::{Path, Piece, Tree};

    const FILE: &str = "\
# A file.
id: a # its name
heat: 0.5 # warm
# How many.
count: 3

phases:
  # The first.
  - name: one
    texts:
      # For Ann.
      ann: |-
        Two lines,
          one deeper.
      ben: plain, with a comma # why
    of: { a: [1, 2], # first
          b: \"two\" }

    rest: x

  - { name: two, texts: { ann: yes }, of: none } # {last}
# The end.
";

    fn read(text: &str) -> Tree {
        let (tree, found) = Tree::read(&Source { name: String::new(), text: text.into() }, 0);
        assert!(found.is_empty(), "{text}\\n{found:?}");
        tree
    }

    #[test]
    fn what_does_not_change_stands_as_it_stood() {
        let mut tree = read(FILE);
        assert_eq!(tree.rewritten(FILE).unwrap(), FILE);
        let top = Path::default();
        let taken = tree.take(&top, "id").unwrap();
        tree.insert(&top, taken.at, "id", Piece::Taken(taken));
        assert_eq!(tree.rewritten(FILE).unwrap(), FILE);
    }

    #[test]
    fn what_moves_takes_its_comments_along() {
        let mut tree = read(FILE);
        let top = Path::default();
        let heat = tree.take(&top, "heat").unwrap();
        let count = tree.take(&top, "count").unwrap();
        let both = [("heat", heat), ("count", count)].map(|(key, taken)| (key.into(), Piece::Taken(taken)));
        tree.insert(&top, heat.at, "settings", Piece::Map(both.into()));
        for at in 0..2 {
            let phase = top.key("phases").index(at);
            let of = tree.take(&phase, "of").unwrap();
            tree.insert(&phase, of.at, "answer", Piece::Taken(of));
            let texts = phase.key("texts");
            let said = tree.keys_at(&texts).into_iter().map(|key| {
                let text = tree.take(&texts, &key).unwrap();
                let to = ("to".into(), Piece::Value(key.into(), Some(text.span)));
                Piece::Map(vec![to, ("text".into(), Piece::Taken(text))])
            });
            let said = said.collect();
            let texts = tree.take(&phase, "texts").unwrap();
            tree.insert(&phase, texts.at, "say", Piece::List(said));
        }
        insta::assert_snapshot!(tree.rewritten(FILE).unwrap());
    }
}
