//! Changes to a tree before it is read: a file of another format becomes one of ours, and new nodes have the
//! place of their origin.

use super::path::Path;
use super::scalar::Leaf;
use super::tree::{Data, MapEntry, Node, Origin, Tree};
use crate::diagnostic::Span;
use serde::Deserialize as _;
use serde_json::Value;
use std::collections::BTreeSet;

/// A field that was taken out of a mapping.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// Its position among the fields that the mapping had.
    pub at: usize,
    /// The place of its key.
    pub span: Span,
    pub(super) node: usize,
}

/// What is put into a tree: values of the file, others, and mappings and lists of both.
#[derive(Clone, Debug)]
pub enum Piece {
    /// The value of a field that was taken out.
    Taken(Taken),
    /// A value that is not in the file, and what it follows from.
    Value(Value, Option<Span>),
    /// A mapping.
    Map(Vec<(String, Piece)>),
    /// A list.
    List(Vec<Piece>),
}

impl Tree {
    /// The value at a path; null where there is none.
    pub fn json_at(&self, path: &Path) -> Value {
        let aside = BTreeSet::new();
        let value = self.find(path).map(|node| super::NodeReader::of(self, node, &aside));
        value.and_then(|reader| Value::deserialize(reader).ok()).unwrap_or_default()
    }

    /// The value of a field that was taken out.
    pub fn json_of(&self, taken: &Taken) -> Value {
        let aside = BTreeSet::new();
        Value::deserialize(super::NodeReader::of(self, taken.node, &aside)).unwrap_or_default()
    }

    /// An item of the list at a path, which stays there.
    pub fn item(&self, list: &Path, index: usize) -> Option<Taken> {
        let Data::Seq(items) = self.data(self.find(list)?) else { return None };
        let node = *items.get(index)?;
        Some(Taken { at: index, span: self.span(node), node })
    }

    /// Keys of the mapping at a path, in order; none where there is no mapping.
    pub fn keys_at(&self, path: &Path) -> Vec<String> {
        match self.find(path).map(|node| self.data(node)) {
            Some(Data::Map(entries)) => entries.iter().map(|entry| entry.key.clone()).collect(),
            _ => Vec::new(),
        }
    }

    /// Puts a field into the mapping at a path, or another value in its place; both stand where the field
    /// stood, else the mapping.
    pub fn put(&mut self, path: &Path, key: &str, value: &Value) {
        let Some(mapping) = self.mapping(path) else { return };
        let (span, name) = (self.value(&path.key(key)), self.key(&path.key(key)));
        let node = self.add(value, span);
        self.changed(mapping);
        let Data::Map(entries) = self.data_mut(mapping) else { return };
        match entries.iter_mut().find(|entry| entry.is(key)) {
            Some(entry) => entry.node = node,
            None => entries.push(MapEntry::new(key, name, node)),
        }
    }

    /// Takes a field out of the mapping at a path; `None`: there is none.
    pub fn take(&mut self, path: &Path, key: &str) -> Option<Taken> {
        let mapping = self.mapping(path)?;
        let Data::Map(entries) = self.data_mut(mapping) else { return None };
        let at = entries.iter().position(|entry| entry.is(key))?;
        let entry = entries.remove(at);
        self.changed(mapping);
        Some(Taken { at, span: entry.span, node: entry.node })
    }

    /// Puts a field into the mapping at a path, as its `at`-th; one that has its name already is replaced.
    pub fn insert(&mut self, path: &Path, at: usize, key: &str, piece: Piece) {
        let Some(mapping) = self.mapping(path) else { return };
        let around = self.value(path);
        let (span, node) = self.built(piece, around);
        self.changed(mapping);
        let Data::Map(entries) = self.data_mut(mapping) else { return };
        entries.retain(|entry| !entry.is(key));
        entries.insert(at.min(entries.len()), MapEntry::new(key, span, node));
    }

    fn mapping(&self, path: &Path) -> Option<usize> {
        self.find(path).or_else(|| self.root().filter(|_| path.0.is_empty()))
    }

    /// A node for a piece, and the place of its key. What is not in the file stands where its first part does.
    fn built(&mut self, piece: Piece, around: Span) -> (Span, usize) {
        let (data, span) = match piece {
            Piece::Taken(taken) => return (taken.span, taken.node),
            Piece::Value(value, span) => {
                let span = span.unwrap_or(around);
                return (span, self.add(&value, span));
            }
            Piece::Map(fields) => {
                let fields = fields.into_iter().map(|(key, piece)| {
                    let (span, node) = self.built(piece, around);
                    MapEntry::new(&key, span, node)
                });
                let fields: Vec<MapEntry> = fields.collect();
                let span = fields.first().map_or(around, |entry| entry.span);
                (Data::Map(fields), span)
            }
            Piece::List(items) => {
                let items: Vec<_> = items.into_iter().map(|item| self.built(item, around)).collect();
                let span = items.first().map_or(around, |(span, _)| *span);
                (Data::Seq(items.into_iter().map(|(_, node)| node).collect()), span)
            }
        };
        (
            span,
            self.push(Node {
                span,
                literal: false,
                data,
                start: span.start,
                end: span.end,
                origin: Origin::Made,
            }),
        )
    }

    /// Takes an item out of the list at a path.
    pub fn drop_item(&mut self, list: &Path, index: usize) {
        let Some(list) = self.find(list) else { return };
        self.changed(list);
        if let Data::Seq(items) = self.data_mut(list)
            && index < items.len()
        {
            items.remove(index);
        }
    }

    fn add(&mut self, value: &Value, span: Span) -> usize {
        let data = match value {
            Value::Null => Data::Leaf(Leaf::Null),
            Value::Bool(truth) => Data::Leaf(Leaf::Bool(*truth)),
            Value::Number(number) => Data::Leaf(Leaf::Number(number.clone())),
            Value::String(text) => Data::Leaf(Leaf::Text(text.clone())),
            Value::Array(items) => Data::Seq(items.iter().map(|item| self.add(item, span)).collect()),
            Value::Object(fields) => {
                let entry = |(key, value): (&String, &Value)| (key.clone(), self.add(value, span));
                let fields: Vec<(String, usize)> = fields.iter().map(entry).collect();
                Data::Map(fields.into_iter().map(|(key, node)| MapEntry::new(&key, span, node)).collect())
            }
        };
        self.push(Node { span, literal: false, data, start: span.start, end: span.end, origin: Origin::Made })
    }
}
