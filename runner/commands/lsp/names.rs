//! The names of a scenario, and what the one at a place refers to.

use super::cursor::word_at;
use super::document::Document;
use crate::scenario::read::{Typed, typed};
use crate::scenario::schema::json_schema;
use crate::scenario::{NodePlace, Path, PathStep, Tree};
use serde_json::Value;
use std::collections::BTreeSet;

/// Something that has a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Symbol {
    Agent(String),
    Phase(String),
    Model(String),
    Tool(String),
    /// A name for texts and expressions, and the field that declares it: `variables`, `state`, `let` or
    /// `outcome`.
    Value(&'static str, String),
    /// Another file.
    File(String),
}

/// Fields that declare names for texts and expressions.
pub(super) const DECLARING: [&str; 4] = ["variables", "state", "let", "outcome"];

/// Agents by key: those of the text, then those of files that the scenario includes.
pub(super) fn agents(document: &Document, tree: &Tree) -> Vec<String> {
    let mut keys = tree.keys_at(&Path::default().key("agents"));
    let included =
        document.scenario.iter().flat_map(|scenario| scenario.agents.iter().map(|agent| &agent.key));
    keys.extend(included.cloned());
    let mut seen = BTreeSet::new();
    keys.retain(|key| seen.insert(key.clone()));
    keys
}

/// The places of the names of phases, in order.
pub(super) fn phases(tree: &Tree) -> Vec<NodePlace> {
    let is_name = |place: &NodePlace| {
        let steps = &place.path.0;
        let [.., PathStep::Key(list), PathStep::Index(_), PathStep::Key(field)] = &steps[..] else {
            return false;
        };
        !place.is_key && place.text.is_some() && list == "phases" && field == "name"
    };
    tree.places().into_iter().filter(is_name).collect()
}

/// Keys of the mapping that is a field of the scenario.
pub(super) fn keys(tree: &Tree, field: &str) -> Vec<String> {
    tree.keys_at(&Path::default().key(field))
}

/// The type of the value at a path; for an item of a list that may be written in several ways, the list's
/// type.
pub(super) fn type_of(tree: &Tree, path: &Path) -> Option<Typed> {
    let mut steps = &path.0[..];
    loop {
        let found = typed(tree, steps);
        match steps {
            _ if found.known == steps.len() => return Some(found),
            [before @ .., PathStep::Index(_)] => steps = before,
            _ => return None,
        }
    }
}

/// Names of all types that a value may have, and its possible words with their meanings.
#[derive(Debug, Default)]
pub(super) struct Forms {
    pub(super) types: BTreeSet<&'static str>,
    pub(super) words: Vec<(&'static str, &'static str)>,
    pub(super) is_truth: bool,
}

impl Forms {
    pub(super) fn of(declared: &'static Value) -> Self {
        let mut forms = Self::default();
        forms.add(declared);
        forms
    }

    fn add(&mut self, of: &'static Value) {
        if let Some(name) = of.get("$ref").and_then(|to| to.as_str()?.strip_prefix("#/$defs/")) {
            let target = &json_schema().as_value()["$defs"][name];
            if self.types.insert(name) {
                self.add(target);
            }
        }
        let described =
            |of: &'static Value| of.get("description").and_then(Value::as_str).unwrap_or_default();
        if let Some(word) = of.get("const").and_then(Value::as_str) {
            self.words.push((word, described(of)));
        }
        let words = of.get("enum").and_then(Value::as_array).into_iter().flatten();
        self.words.extend(words.filter_map(Value::as_str).map(|word| (word, "")));
        self.is_truth |= match &of["type"] {
            Value::Array(types) => types.iter().any(|of| of == "boolean"),
            of => of == "boolean",
        };
        let forms = ["anyOf", "oneOf"].into_iter().filter_map(|union| of.get(union)?.as_array()).flatten();
        forms.chain(of.get("items")).for_each(|form| self.add(form));
    }

    pub(super) fn has(&self, types: &[&str]) -> bool {
        types.iter().any(|of| self.types.contains(of))
    }
}

/// True if the place after `before` in a template is inside braces.
pub(super) fn in_braces(before: &str) -> bool {
    let last = |signs: [&str; 3]| signs.into_iter().filter_map(|sign| before.rfind(sign)).max();
    last(["{{", "{%", "${"]) > last(["}}", "%}", "}"])
}

/// What the name at a byte refers to.
pub(super) fn referent(document: &Document, tree: &Tree, offset: usize) -> Option<Symbol> {
    let place = tree.at(0, offset)?;
    let steps: Vec<&str> = place
        .path
        .0
        .iter()
        .filter_map(|step| match step {
            PathStep::Key(key) => Some(key.as_str()),
            PathStep::Index(_) => None,
        })
        .collect();
    let word = document.text.get(word_at(&document.text, offset)).unwrap_or_default().to_owned();
    let text = place.text.clone().unwrap_or_default();
    match steps[..] {
        ["agents", key] if place.is_key => return Some(Symbol::Agent(key.to_owned())),
        [.., "say" | "to" | "overhears", key] if place.is_key => {
            return Some(Symbol::Agent(key.to_owned()));
        }
        [.., "phases", "name"] if !place.is_key => return Some(Symbol::Phase(text)),
        ["include" | "cases"] if !place.is_key => return Some(Symbol::File(text)),
        [.., "model"] | ["embeddings"] if !place.is_key => return Some(Symbol::Model(text)),
        ["agents", _, "tools"] if !place.is_key => return Some(Symbol::Tool(text)),
        _ if place.is_key => return None,
        _ => {}
    }
    let forms = Forms::of(type_of(tree, &place.path)?.declared);
    if forms.has(&["PhaseNames"]) {
        return Some(Symbol::Phase(word));
    }
    let agents = agents(document, tree);
    if forms.has(&["Key", "Keys", "Cast"]) && agents.contains(&text) {
        return Some(Symbol::Agent(text));
    }
    let line = &document.text[..offset];
    let is_code = forms.has(&["Expression", "Cast", "Options", "Count"])
        || forms.has(&["Template", "Text"]) && in_braces(&line[place.span.start.min(line.len())..]);
    if !is_code {
        return None;
    }
    if phases(tree).iter().any(|phase| phase.text.as_ref() == Some(&word)) {
        return Some(Symbol::Phase(word));
    }
    if let Some(field) = DECLARING.into_iter().find(|field| keys(tree, field).contains(&word)) {
        return Some(Symbol::Value(field, word));
    }
    agents.contains(&word).then_some(Symbol::Agent(word))
}
