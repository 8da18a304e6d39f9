//! A YAML file as a tree of values with their places: line and column for diagnostics.
//!
//! It also finds what data can't show: duplicate keys, of which the first counts.

use super::explain::{SyntaxMistake, explain};
use super::path::{Path, PathStep};
use super::scalar::{Leaf, plain};
use crate::diagnostic::{Diagnostic, Source, Sources, Span};
use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Tag};
use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;

/// Maximum nesting that is accepted; scenarios need about six levels.
const MAX_DEPTH: usize = 64;
/// Maximum number of accepted values, with aliases expanded; scenarios need some hundred.
const MAX_VALUES: usize = 20_000;

/// The values of one file.
#[derive(Debug, Default)]
pub struct Tree {
    nodes: Vec<Node>,
    root: Option<usize>,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) span: Span,
    /// A literal block scalar (`|`) keeps its lines, so a line of its text is a line of the file.
    pub(super) literal: bool,
    pub(super) data: Data,
    /// The byte in the file where it begins: of a block scalar its `|` or `>`.
    pub(super) start: usize,
    /// The byte in the file where a collection ends, or the next token begins.
    pub(super) end: usize,
    /// Where it comes from.
    pub(super) origin: Origin,
}

/// Where a node comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Origin {
    /// It stands in the file.
    #[default]
    File,
    /// It stands in the file with other entries or items.
    Changed,
    /// It is not in the file; its span is that of what it follows from.
    Made,
}

impl Node {
    fn read(span: Span, literal: bool, data: Data) -> Self {
        Self { span, literal, data, start: span.start, end: span.end, origin: Origin::File }
    }
}

/// The content of a value; other values by their numbers.
#[derive(Debug)]
pub(super) enum Data {
    Leaf(Leaf),
    Map(Vec<MapEntry>),
    Seq(Vec<usize>),
}

/// A key and its value.
#[derive(Clone, Debug)]
pub(super) struct MapEntry {
    /// The key's text.
    pub(super) key: String,
    /// The key, read as a value.
    pub(super) kind: std::sync::Arc<Data>,
    pub(super) span: Span,
    pub(super) node: usize,
}

impl MapEntry {
    /// An entry that is not in the file; `span` is what it follows from.
    pub(super) fn new(key: &str, span: Span, node: usize) -> Self {
        let kind = std::sync::Arc::new(Data::Leaf(Leaf::Text(key.to_string())));
        Self { key: key.to_string(), kind, span, node }
    }

    pub(super) fn is(&self, key: &str) -> bool {
        self.key == key
    }
}

impl Tree {
    /// Reads the tree of the `file`-th source; mistakes of YAML itself and duplicate keys come back as
    /// diagnostics.
    pub fn read(source: &Source, file: usize) -> (Self, Vec<Diagnostic>) {
        let mut builder = Builder::new(&source.text, file);
        for event in Parser::new_from_str(&source.text) {
            let result = match event {
                Ok((event, span)) => builder.event(event, builder.span(span.start, span.end)),
                Err(error) => {
                    let at = builder.byte(error.marker());
                    let SyntaxMistake { at, message, help } = explain(error.info(), &source.text, at);
                    Err(wrong(Span { file, start: at, end: at }, message, help))
                }
            };
            if let Err(diagnostic) = result {
                builder.found.push(*diagnostic);
                break;
            }
        }
        (builder.tree, builder.found)
    }

    /// The value's span, or that of the nearest parent which exists.
    pub fn value(&self, path: &Path) -> Span {
        self.walk(path).map(|(_, _, node)| self.nodes[node].span).unwrap_or_default()
    }

    /// The key's span where the path ends in a key, else the value's.
    pub fn key(&self, path: &Path) -> Span {
        self.walk(path).map(|(_, key, node)| key.unwrap_or(self.nodes[node].span)).unwrap_or_default()
    }

    /// The place of a one-based line of a text value, where the file keeps its lines apart.
    pub fn text_line(&self, sources: &Sources, path: &Path, line: usize) -> Span {
        let Some((_, _, node)) = self.walk(path) else { return Span::default() };
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
            match &mut node.data {
                Data::Map(entries) => entries.iter_mut().for_each(|entry| entry.node += offset),
                Data::Seq(items) => items.iter_mut().for_each(|node| *node += offset),
                Data::Leaf(_) => {}
            }
        }
        self.nodes.extend(other.nodes);
        for key in keys {
            let Some(theirs) = self.entry(other_root + offset, key).cloned() else { continue };
            let Some(mine) = self.entry(root, key).map(|entry| entry.node) else {
                self.push_entries(root, vec![theirs]);
                continue;
            };
            let Data::Map(entries) = &self.nodes[theirs.node].data else { continue };
            let new =
                entries.iter().filter(|entry| self.entry(mine, &entry.key).is_none()).cloned().collect();
            self.push_entries(mine, new);
        }
    }

    /// Keys of the outermost mapping; `None`: the file is not a mapping.
    pub fn keys(&self) -> Option<impl Iterator<Item = &str>> {
        match &self.nodes[self.root?].data {
            Data::Map(entries) => Some(entries.iter().map(|entry| entry.key.as_str())),
            _ => None,
        }
    }

    /// The value at a path; `None`: there is none, or it is null.
    pub fn find(&self, path: &Path) -> Option<usize> {
        self.node(path).filter(|node| !matches!(self.nodes[*node].data, Data::Leaf(Leaf::Null)))
    }

    /// The value at a path, null or not; `None`: there is none.
    pub(super) fn node(&self, path: &Path) -> Option<usize> {
        self.walk(path).filter(|(n, ..)| *n == path.0.len()).map(|(.., node)| node)
    }

    /// All texts among the values, with their paths, in the order of the file.
    pub fn texts(&self) -> impl Iterator<Item = (Path, String)> {
        let mut stack: Vec<(Path, usize)> = self.root.iter().map(|root| (Path::default(), *root)).collect();
        std::iter::from_fn(move || {
            while let Some((path, node)) = stack.pop() {
                match &self.nodes[node].data {
                    Data::Leaf(Leaf::Text(text)) => return Some((path, text.clone())),
                    Data::Leaf(_) => {}
                    Data::Map(entries) => {
                        let below = entries.iter().rev().map(|entry| (path.key(&entry.key), entry.node));
                        stack.extend(below);
                    }
                    Data::Seq(items) => {
                        let below = items.iter().enumerate().rev().map(|(at, node)| (path.index(at), *node));
                        stack.extend(below);
                    }
                }
            }
            None
        })
    }

    pub(super) fn root(&self) -> Option<usize> {
        self.root
    }

    pub(super) fn span(&self, node: usize) -> Span {
        self.nodes[node].span
    }

    pub(super) fn data(&self, node: usize) -> &Data {
        &self.nodes[node].data
    }

    /// The number of items of the list at a path; 0: there is no list.
    pub fn n_items(&self, path: &Path) -> usize {
        match self.find(path).map(|node| &self.nodes[node].data) {
            Some(Data::Seq(items)) => items.len(),
            _ => 0,
        }
    }

    /// Gives a field of an item of the list at a path another name, or takes it out; what an alias repeats
    /// elsewhere stays as it is. False: there is no such field.
    pub fn rename(&mut self, list: &Path, index: usize, from: &str, to: Option<&str>) -> bool {
        let Some((list, item)) = self.find(list).zip(self.find(&list.index(index))) else { return false };
        let Node { span, start, end, data: Data::Map(entries), .. } = &self.nodes[item] else { return false };
        let (span, start, end) = (*span, *start, *end);
        if !entries.iter().any(|entry| entry.is(from)) {
            return false;
        }
        let mut entries = entries.clone();
        entries.retain(|entry| !entry.is(to.unwrap_or(from)));
        for entry in entries.iter_mut().filter(|entry| entry.is(from)) {
            entry.key = to.unwrap_or_default().to_string();
        }
        let copy = self.nodes.len();
        self.nodes.push(Node {
            span,
            literal: false,
            data: Data::Map(entries),
            start,
            end,
            origin: Origin::Changed,
        });
        if let Data::Seq(items) = &mut self.nodes[list].data {
            items[index] = copy;
        }
        true
    }

    pub(super) fn data_mut(&mut self, node: usize) -> &mut Data {
        &mut self.nodes[node].data
    }

    /// A node of the file has other entries than it has there.
    pub(super) fn changed(&mut self, node: usize) {
        if self.nodes[node].origin == Origin::File {
            self.nodes[node].origin = Origin::Changed;
        }
    }

    pub(super) fn origin(&self, node: usize) -> Origin {
        self.nodes[node].origin
    }

    /// The byte in the file where a value begins.
    pub(super) fn start(&self, node: usize) -> usize {
        self.nodes[node].start
    }

    /// The byte in the file where a collection ends, or the next token begins.
    pub(super) fn end(&self, node: usize) -> usize {
        self.nodes[node].end
    }

    pub(super) fn push(&mut self, node: Node) -> usize {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    fn entry(&self, node: usize, key: &str) -> Option<&MapEntry> {
        let Data::Map(entries) = &self.nodes[node].data else { return None };
        entries.iter().find(|entry| entry.is(key))
    }

    fn push_entries(&mut self, node: usize, new: Vec<MapEntry>) {
        if let Data::Map(entries) = &mut self.nodes[node].data {
            entries.extend(new);
        }
    }

    /// The number of steps that a path can be followed, the last key's place, and the value there.
    fn walk(&self, path: &Path) -> Option<(usize, Option<Span>, usize)> {
        let mut at = (0, None, self.root?);
        for step in &path.0 {
            let next = match (&self.nodes[at.2].data, step) {
                (Data::Map(_), PathStep::Key(key)) => {
                    self.entry(at.2, key).map(|entry| (Some(entry.span), entry.node))
                }
                (Data::Seq(items), PathStep::Index(index)) => items.get(*index).map(|node| (None, *node)),
                _ => None,
            };
            match next {
                Some((span, node)) => at = (at.0 + 1, span, node),
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
    /// The last line, column and byte that were looked up.
    last: Cell<(usize, usize, usize)>,
    tree: Tree,
    found: Vec<Diagnostic>,
    open: Vec<OpenCollection>,
    /// Finished nodes with the number of values in them.
    anchors: HashMap<usize, (usize, usize)>,
    /// Values so far, with aliases expanded.
    n_values: usize,
    n_documents: usize,
}

/// A key that waits for its value.
struct PendingKey {
    text: String,
    kind: Data,
    span: Span,
}

/// An open collection.
struct OpenCollection {
    node: usize,
    key: Option<PendingKey>,
    anchor: usize,
    /// Values before it.
    n_before: usize,
}

impl<'a> Builder<'a> {
    fn new(text: &'a str, file: usize) -> Self {
        let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        let (tree, found, open, anchors) = Default::default();
        let last = Cell::default();
        Self { text, file, lines, last, tree, found, open, anchors, n_values: 0, n_documents: 0 }
    }

    fn byte(&self, marker: &Marker) -> usize {
        let (line, column) = (marker.line().saturating_sub(1), marker.col());
        let Some(start) = self.lines.get(line) else { return self.text.len() };
        // Most events are further along the same line; from its start each time, a long line would take for
        // ever.
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
                    let text = "a second YAML document starts here; a scenario file must contain only one";
                    return Err(wrong(span, text, "remove `---`, or split the file in two"));
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                let data = Data::Leaf(scalar(&text, style, tag, span)?);
                if self.waits_for_key() {
                    return self.take_key(PendingKey { text: text.into_owned(), kind: data, span });
                }
                let literal = style == ScalarStyle::Literal;
                let start = match style {
                    ScalarStyle::Literal | ScalarStyle::Folded => self.header(span.start),
                    _ => span.start,
                };
                let node = self.add(Node { start, ..Node::read(span, literal, data) }, span)?;
                self.anchors.insert(anchor, (node, 1));
            }
            Event::Alias(anchor) => {
                if self.waits_for_key() {
                    let help = "write the key out; if the `*` is part of the key, put it in quotes";
                    return Err(wrong(span, "an alias can't be a key", help));
                }
                let node = self.anchors.get(&anchor).copied();
                let Some((node, n_values)) = node else {
                    let help = "write `&name` before an earlier value, which `*name` then repeats";
                    return Err(wrong(span, "this alias has no complete anchor before it", help));
                };
                self.count(n_values, span)?;
                self.attach(node);
            }
            Event::SequenceStart(anchor, None) => self.open(span, anchor, Data::Seq(Vec::new()))?,
            Event::MappingStart(anchor, None) => self.open(span, anchor, Data::Map(Vec::new()))?,
            Event::SequenceStart(_, Some(tag)) | Event::MappingStart(_, Some(tag)) => {
                return Err(tagged(&tag, span));
            }
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(OpenCollection { node, anchor, n_before, .. }) = self.open.pop() {
                    self.tree.nodes[node].end = span.end;
                    self.merge(node)?;
                    self.anchors.insert(anchor, (node, self.n_values - n_before));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Where the header of a block scalar begins whose text begins at a byte; there, if an anchor does.
    fn header(&self, text: usize) -> usize {
        let before = self.text[..text].trim_end();
        let line = before.rfind('\n').map_or(0, |at| at + 1);
        let comment = before[line..].rfind(" #").map_or(before.len(), |at| line + at);
        let header =
            before[..comment].trim_end_matches(|c: char| c.is_whitespace() || "+-123456789".contains(c));
        if header.ends_with(['|', '>']) { header.len() - 1 } else { text }
    }

    fn waits_for_key(&self) -> bool {
        let Some(OpenCollection { node, key, .. }) = self.open.last() else { return false };
        key.is_none() && matches!(self.tree.nodes[*node].data, Data::Map(_))
    }

    fn take_key(&mut self, key: PendingKey) -> Result<(), Box<Diagnostic>> {
        let Some(OpenCollection { node, key: waiting, .. }) = self.open.last_mut() else { return Ok(()) };
        if let Some(first) = self.tree.entry(*node, &key.text) {
            let message = format!("the key `{}` appears twice in one mapping", key.text);
            self.found.push(
                Diagnostic::error("duplicate-key", "", key.span, message)
                    .related(first.span, "first defined here")
                    .help("rename or remove one of the two"),
            );
        }
        *waiting = Some(key);
        Ok(())
    }

    /// Takes over what `<<` names: entries of a mapping, or of several, whose keys are not there yet.
    fn merge(&mut self, node: usize) -> Result<(), Box<Diagnostic>> {
        let Data::Map(entries) = &mut self.tree.nodes[node].data else { return Ok(()) };
        let Some(at) = entries.iter().position(|entry| entry.is("<<")) else { return Ok(()) };
        let merged = entries.remove(at);
        let sources = match self.tree.data(merged.node) {
            Data::Seq(items) => items.clone(),
            _ => vec![merged.node],
        };
        for source in sources {
            let Data::Map(theirs) = self.tree.data(source) else {
                let help = "`<<: *name` repeats a mapping `&name { … }`";
                return Err(wrong(merged.span, "`<<` must be given a mapping or a list of mappings", help));
            };
            let new = theirs.iter().filter(|entry| self.tree.entry(node, &entry.key).is_none());
            let new: Vec<MapEntry> = new.cloned().collect();
            self.tree.push_entries(node, new);
        }
        Ok(())
    }

    fn open(&mut self, span: Span, anchor: usize, data: Data) -> Result<(), Box<Diagnostic>> {
        if self.waits_for_key() {
            if self.text[..span.start].ends_with('{') && self.text[span.start..].starts_with('{') {
                let span = Span { start: span.start - 1, ..span };
                let help = "put the whole text in quotes, e.g. `\"{{ topic }}, please\"`";
                return Err(wrong(span, "`{{` without quotes begins a mapping, not a text", help));
            }
            return Err(wrong(span, "a key must be plain text", "put the text in quotes"));
        }
        if self.open.len() >= MAX_DEPTH {
            let message = format!("nested deeper than {MAX_DEPTH} levels");
            return Err(wrong(span, message, "a scenario needs about six levels"));
        }
        let n_before = self.n_values;
        let node = self.add(Node::read(span, false, data), span)?;
        self.open.push(OpenCollection { node, key: None, anchor, n_before });
        Ok(())
    }

    fn add(&mut self, node: Node, span: Span) -> Result<usize, Box<Diagnostic>> {
        self.count(1, span)?;
        self.tree.nodes.push(node);
        let id = self.tree.nodes.len() - 1;
        self.attach(id);
        Ok(id)
    }

    fn count(&mut self, n: usize, span: Span) -> Result<(), Box<Diagnostic>> {
        self.n_values += n;
        if self.n_values > MAX_VALUES {
            let message = format!("more than {MAX_VALUES} values, counting each use of an alias");
            return Err(wrong(span, message, "a scenario needs a few hundred; remove what is not needed"));
        }
        Ok(())
    }

    fn attach(&mut self, id: usize) {
        match self.open.last_mut() {
            None => self.tree.root = self.tree.root.or(Some(id)),
            Some(OpenCollection { node: parent, key, .. }) => {
                match (&mut self.tree.nodes[*parent].data, key.take()) {
                    // Of keys that appear twice the first counts.
                    (Data::Map(entries), Some(key)) if !entries.iter().any(|entry| entry.is(&key.text)) => {
                        let PendingKey { text, kind, span } = key;
                        entries.push(MapEntry { key: text, kind: kind.into(), span, node: id });
                    }
                    (Data::Seq(items), _) => items.push(id),
                    _ => {}
                }
            }
        }
    }
}

/// The value of a scalar: plain ones have a type, all others are texts.
fn scalar(
    text: &str,
    style: ScalarStyle,
    tag: Option<Cow<'_, Tag>>,
    span: Span,
) -> Result<Leaf, Box<Diagnostic>> {
    match tag {
        None if style == ScalarStyle::Plain => Ok(plain(text)),
        None => Ok(Leaf::Text(text.to_string())),
        Some(tag) if tag.is_yaml_core_schema() && tag.suffix == "str" => Ok(Leaf::Text(text.to_string())),
        Some(tag) => Err(tagged(&tag, span)),
    }
}

fn tagged(tag: &Tag, span: Span) -> Box<Diagnostic> {
    wrong(
        span,
        format!("this value has the tag `{tag}`; tags are not supported"),
        "write plain YAML, without tags",
    )
}
