//! Changes to a tree before it is read: a file of another format becomes one of ours, and new nodes have the
//! place of their origin.

use super::path::Path;
use super::scalar::Leaf;
use super::tree::{Data, MapEntry, Node, Tree};
use crate::diagnostic::Span;
use serde::Deserialize as _;
use serde_json::Value;
use std::collections::BTreeSet;

impl Tree {
    /// The value at a path; null where there is none.
    pub fn json_at(&self, path: &Path) -> Value {
        let aside = BTreeSet::new();
        let value = self.find(path).map(|node| super::NodeReader::of(self, node, &aside));
        value.and_then(|reader| Value::deserialize(reader).ok()).unwrap_or_default()
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
        let Some(mapping) = self.find(path).or_else(|| self.root().filter(|_| path.0.is_empty())) else {
            return;
        };
        let (span, name) = (self.value(&path.key(key)), self.key(&path.key(key)));
        let node = self.add(value, span);
        let Data::Map(entries) = self.data_mut(mapping) else { return };
        match entries.iter_mut().find(|entry| entry.is(key)) {
            Some(entry) => entry.node = node,
            None => entries.push(MapEntry::new(key, name, node)),
        }
    }

    /// Takes a field out of the mapping at a path.
    pub fn take(&mut self, path: &Path, key: &str) {
        let Some(mapping) = self.find(path).or_else(|| self.root().filter(|_| path.0.is_empty())) else {
            return;
        };
        if let Data::Map(entries) = self.data_mut(mapping) {
            entries.retain(|entry| !entry.is(key));
        }
    }

    /// Takes an item out of the list at a path.
    pub fn drop_item(&mut self, list: &Path, index: usize) {
        let Some(list) = self.find(list) else { return };
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
        self.push(Node { span, literal: false, data })
    }
}
