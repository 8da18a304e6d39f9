//! Where every path of a YAML file stands: line and column for diagnostics.
//!
//! The data itself is read by serde_yaml, which forgets places; this walks the same text with an event
//! parser and keeps a tree of spans. It also finds what a data model can't show: duplicate keys.

use super::yaml::{Mistake, explain};
use crate::diagnostic::{Diagnostic, Source, Sources, Span};
use saphyr_parser::{Event, Marker, Parser, ScalarStyle};
use std::cell::Cell;
use std::collections::HashMap;

/// Deepest nesting that is accepted; scenarios need about six levels.
const MAX_DEPTH: usize = 64;
/// Most values that are accepted, what aliases stand for spelled out; scenarios need some hundred.
const MAX_VALUES: usize = 20_000;

/// One step of a path into the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A mapping's key.
    Key(String),
    /// A sequence's index.
    Index(usize),
}

/// A path into the data, e.g. `phases[2].agents`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path(pub Vec<Step>);

/// The tree of spans of one file.
#[derive(Debug, Default)]
pub struct Spans {
    nodes: Vec<Node>,
    root: Option<usize>,
}

#[derive(Debug)]
struct Node {
    span: Span,
    /// A literal block scalar (`|`) keeps its lines, so a line of its text is a line of the file.
    literal: bool,
    children: Children,
}

#[derive(Debug)]
enum Children {
    None,
    Map(Vec<(String, Span, usize)>),
    Seq(Vec<usize>),
}

impl Path {
    /// This path and one more key.
    pub fn key(&self, key: impl Into<String>) -> Self {
        let mut path = self.clone();
        path.0.push(Step::Key(key.into()));
        path
    }

    /// This path and one more index.
    pub fn index(&self, index: usize) -> Self {
        let mut path = self.clone();
        path.0.push(Step::Index(index));
        path
    }
}

impl Path {
    /// A path as [`std::fmt::Display`] writes it; keys with dots or brackets in them don't come back.
    pub fn parse(text: &str) -> Self {
        let mut steps = Vec::new();
        for part in text.split('.') {
            let (key, indices) = part.split_once('[').unwrap_or((part, ""));
            if !key.is_empty() {
                steps.push(Step::Key(key.to_string()));
            }
            let indices = indices.split(['[', ']']).filter_map(|index| index.parse().ok());
            steps.extend(indices.map(Step::Index));
        }
        Self(steps)
    }
}

impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            match step {
                Step::Key(key) if at > 0 => write!(f, ".{key}")?,
                Step::Key(key) => f.write_str(key)?,
                Step::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

impl Spans {
    /// Reads the tree of the `file`-th source; mistakes of YAML itself and duplicate keys come back as diagnostics.
    pub fn read(source: &Source, file: usize) -> (Self, Vec<Diagnostic>) {
        let mut builder = Builder::new(&source.text, file);
        for event in Parser::new_from_str(&source.text) {
            let result = match event {
                Ok((event, span)) => builder.event(event, builder.span(span.start, span.end)),
                Err(error) => {
                    let at = builder.byte(error.marker());
                    let Mistake { at, message, help } = explain(error.info(), &source.text, at);
                    Err(wrong(Span { file, start: at, end: at }, message, help))
                }
            };
            if let Err(diagnostic) = result {
                builder.found.push(*diagnostic);
                break;
            }
        }
        (builder.spans, builder.found)
    }

    /// The value's span, or that of the nearest parent which exists.
    pub fn value(&self, path: &Path) -> Span {
        self.walk(path).map(|(_, node)| self.nodes[node].span).unwrap_or_default()
    }

    /// The key's span where the path ends in a key, else the value's.
    pub fn key(&self, path: &Path) -> Span {
        self.walk(path).map(|(key, node)| key.unwrap_or(self.nodes[node].span)).unwrap_or_default()
    }

    /// The place of a one-based line of a text value, where the file keeps its lines apart.
    pub fn text_line(&self, sources: &Sources, path: &Path, line: usize) -> Span {
        let Some((_, node)) = self.walk(path) else { return Span::default() };
        let node = &self.nodes[node];
        let source = sources.of(node.span);
        if !node.literal {
            return node.span;
        }
        let from = node.span.start;
        let header = if source.text[from..].starts_with('|') { 1 } else { 0 };
        let mut start = from - source.text[..from].rfind('\n').map_or(from, |at| from - at - 1);
        for _ in 0..(line + header).saturating_sub(1) {
            match source.text[start..].find('\n') {
                Some(at) => start += at + 1,
                None => return node.span,
            }
        }
        let text = source.text[start..].lines().next().unwrap_or("");
        let indent = text.len() - text.trim_start().len();
        Span { start: start + indent, end: start + text.trim_end().len().max(indent), ..node.span }
    }

    /// Takes over what the top-level mappings `keys` of another tree have and those of this one lack.
    pub fn graft(&mut self, keys: &[&str], mut other: Self) {
        let (Some(root), Some(other_root)) = (self.root, other.root) else { return };
        let offset = self.nodes.len();
        for node in &mut other.nodes {
            match &mut node.children {
                Children::Map(entries) => entries.iter_mut().for_each(|(_, _, id)| *id += offset),
                Children::Seq(items) => items.iter_mut().for_each(|id| *id += offset),
                Children::None => {}
            }
        }
        self.nodes.extend(other.nodes);
        for key in keys {
            let Some(theirs) = self.entry(other_root + offset, key) else { continue };
            let Some((_, _, mine)) = self.entry(root, key) else {
                self.push_entries(root, vec![theirs]);
                continue;
            };
            let Children::Map(entries) = &self.nodes[theirs.2].children else { continue };
            let new: Vec<_> =
                entries.iter().filter(|(k, ..)| self.entry(mine, k).is_none()).cloned().collect();
            self.push_entries(mine, new);
        }
    }

    /// Keys of the outermost mapping; `None`: the file is no mapping.
    pub(super) fn keys(&self) -> Option<impl Iterator<Item = &str>> {
        match &self.nodes[self.root?].children {
            Children::Map(entries) => Some(entries.iter().map(|(key, ..)| key.as_str())),
            _ => None,
        }
    }

    fn entry(&self, node: usize, key: &str) -> Option<(String, Span, usize)> {
        let Children::Map(entries) = &self.nodes[node].children else { return None };
        entries.iter().find(|(k, ..)| k == key).cloned()
    }

    fn push_entries(&mut self, node: usize, new: Vec<(String, Span, usize)>) {
        if let Children::Map(entries) = &mut self.nodes[node].children {
            entries.extend(new);
        }
    }

    fn walk(&self, path: &Path) -> Option<(Option<Span>, usize)> {
        let mut at = (None, self.root?);
        for step in &path.0 {
            let next = match (&self.nodes[at.1].children, step) {
                (Children::Map(entries), Step::Key(key)) => {
                    entries.iter().find(|(k, ..)| k == key).map(|(_, span, node)| (Some(*span), *node))
                }
                (Children::Seq(items), Step::Index(index)) => items.get(*index).map(|node| (None, *node)),
                _ => None,
            };
            match next {
                Some(next) => at = next,
                None => break,
            }
        }
        Some(at)
    }
}

fn wrong(span: Span, message: impl Into<String>, help: impl Into<String>) -> Box<Diagnostic> {
    Box::new(Diagnostic::error("yaml", "", span, message).help(help))
}

/// Turns events into the tree, without recursion.
struct Builder<'a> {
    text: &'a str,
    file: usize,
    /// Byte where each line starts.
    lines: Vec<usize>,
    /// Line, column and byte that were asked for last.
    last: Cell<(usize, usize, usize)>,
    spans: Spans,
    found: Vec<Diagnostic>,
    open: Vec<Open>,
    /// Finished nodes with the number of values in them.
    anchors: HashMap<usize, (usize, usize)>,
    /// Values so far, what aliases stand for included.
    n_values: usize,
    n_documents: usize,
}

/// An open collection.
struct Open {
    node: usize,
    /// The key that waits for its value.
    key: Option<(String, Span)>,
    anchor: usize,
    /// Values before it.
    n_before: usize,
}

impl<'a> Builder<'a> {
    fn new(text: &'a str, file: usize) -> Self {
        let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        let (spans, found, open, anchors) = Default::default();
        let last = Cell::default();
        Self { text, file, lines, last, spans, found, open, anchors, n_values: 0, n_documents: 0 }
    }

    fn byte(&self, marker: &Marker) -> usize {
        let (line, column) = (marker.line().saturating_sub(1), marker.col());
        let Some(start) = self.lines.get(line) else { return self.text.len() };
        // Most events are further along the same line; from its start each time, a long line would take for ever.
        let (last_line, last_column, last) = self.last.get();
        let ahead = last_line == line && last_column <= column;
        let (from, skip) = if ahead { (last, column - last_column) } else { (*start, column) };
        let at = self.text[from..].char_indices().nth(skip).map_or(self.text.len(), |(at, _)| from + at);
        self.last.set((line, column, at));
        at
    }

    fn span(&self, start: Marker, end: Marker) -> Span {
        let (start, end) = (self.byte(&start), self.byte(&end));
        Span { file: self.file, start, end: end.max(start) }
    }

    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), Box<Diagnostic>> {
        match event {
            Event::DocumentStart(_) => {
                self.n_documents += 1;
                if self.n_documents > 1 {
                    let text = "a scenario file holds one YAML document, here a second one starts";
                    return Err(wrong(span, text, "remove `---`, or make it two files"));
                }
            }
            Event::Scalar(text, style, anchor, _) => {
                if self.waits_for_key() {
                    return self.take_key(text.into_owned(), span);
                }
                let literal = style == ScalarStyle::Literal;
                let node = self.add(Node { span, literal, children: Children::None }, span)?;
                self.anchors.insert(anchor, (node, 1));
            }
            Event::Alias(anchor) => {
                if self.waits_for_key() {
                    let help = "write the key out; if the star belongs to it, put it in quotes";
                    return Err(wrong(span, "an alias can't be a key", help));
                }
                let node = self.anchors.get(&anchor).copied();
                let Some((node, n_values)) = node else {
                    let help = "write `&name` before an earlier value, which `*name` then repeats";
                    return Err(wrong(span, "this alias names no finished anchor", help));
                };
                self.count(n_values, span)?;
                self.attach(node);
            }
            Event::SequenceStart(anchor, _) => self.open(span, anchor, Children::Seq(Vec::new()))?,
            Event::MappingStart(anchor, _) => self.open(span, anchor, Children::Map(Vec::new()))?,
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(Open { node, anchor, n_before, .. }) = self.open.pop() {
                    self.anchors.insert(anchor, (node, self.n_values - n_before));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn waits_for_key(&self) -> bool {
        let Some(Open { node, key, .. }) = self.open.last() else { return false };
        key.is_none() && matches!(self.spans.nodes[*node].children, Children::Map(_))
    }

    fn take_key(&mut self, key: String, span: Span) -> Result<(), Box<Diagnostic>> {
        let Some(Open { node, key: waiting, .. }) = self.open.last_mut() else { return Ok(()) };
        if let Children::Map(entries) = &self.spans.nodes[*node].children
            && let Some((_, first, _)) = entries.iter().find(|(k, ..)| *k == key)
        {
            let message = format!("the key `{key}` stands twice in one mapping");
            self.found.push(
                Diagnostic::error("duplicate-key", "", span, message)
                    .related(*first, "first here")
                    .help("rename or remove one of the two"),
            );
        }
        *waiting = Some((key, span));
        Ok(())
    }

    fn open(&mut self, span: Span, anchor: usize, children: Children) -> Result<(), Box<Diagnostic>> {
        if self.waits_for_key() {
            if self.text[..span.start].ends_with('{') && self.text[span.start..].starts_with('{') {
                let span = Span { start: span.start - 1, ..span };
                let help = "put the whole text in quotes, e.g. `\"{{ topic }}, please\"`";
                return Err(wrong(span, "`{{` without quotes begins a mapping, not a text", help));
            }
            return Err(wrong(span, "a key must be a plain text", "put the text in quotes"));
        }
        if self.open.len() >= MAX_DEPTH {
            let message = format!("nested deeper than {MAX_DEPTH} levels");
            return Err(wrong(span, message, "a scenario needs about six"));
        }
        let n_before = self.n_values;
        let node = self.add(Node { span, literal: false, children }, span)?;
        self.open.push(Open { node, key: None, anchor, n_before });
        Ok(())
    }

    fn add(&mut self, node: Node, span: Span) -> Result<usize, Box<Diagnostic>> {
        self.count(1, span)?;
        self.spans.nodes.push(node);
        let id = self.spans.nodes.len() - 1;
        self.attach(id);
        Ok(id)
    }

    fn count(&mut self, n: usize, span: Span) -> Result<(), Box<Diagnostic>> {
        self.n_values += n;
        if self.n_values > MAX_VALUES {
            let message = format!("more than {MAX_VALUES} values, what aliases stand for counted each time");
            return Err(wrong(span, message, "a scenario needs some hundred; leave out what is not needed"));
        }
        Ok(())
    }

    fn attach(&mut self, id: usize) {
        match self.open.last_mut() {
            None => self.spans.root = self.spans.root.or(Some(id)),
            Some(Open { node: parent, key, .. }) => {
                match (&mut self.spans.nodes[*parent].children, key.take()) {
                    (Children::Map(entries), Some((key, span))) => entries.push((key, span, id)),
                    (Children::Seq(items), _) => items.push(id),
                    _ => {}
                }
            }
        }
    }
}
