//! The names of a scenario, and what the one at a place refers to.

use super::document::Document;
use crate::scenario::read::{Typed, typed};
use crate::scenario::schema::json_schema;
use crate::scenario::{NodePlace, Path, PathStep, Tree};
use serde_json::Value;
use std::collections::BTreeSet;

/// Something that has a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Symbol {
    Agent(String),
    Phase(String),
    Judge(String),
    Model(String),
    Tool(String),
    /// A name for texts and expressions, and the field that declares it: `variables`, `state`, `let` or
    /// `outcome`.
    Value(&'static str, String),
    /// A filter of the language.
    Filter(String),
    /// A function of the language.
    Function(String),
    /// Another file.
    File(String),
}

impl Symbol {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Agent(name)
            | Self::Phase(name)
            | Self::Judge(name)
            | Self::Model(name)
            | Self::Tool(name)
            | Self::Value(_, name)
            | Self::Filter(name)
            | Self::Function(name)
            | Self::File(name) => name,
        }
    }

    /// The kind, as a sentence says it.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Agent(_) => "an agent",
            Self::Phase(_) => "a phase",
            Self::Judge(_) => "a judge",
            Self::Model(_) => "a model",
            Self::Tool(_) => "a tool",
            Self::Value("variables", _) => "a variable",
            Self::Value("state", _) => "something in the state",
            Self::Value("let", _) => "an intermediate value",
            Self::Value(..) => "an outcome",
            Self::Filter(_) => "a filter",
            Self::Function(_) => "a function",
            Self::File(_) => "a file",
        }
    }

    /// The same with another name.
    pub(super) fn renamed(&self, name: &str) -> Self {
        let name = name.to_owned();
        match self {
            Self::Agent(_) => Self::Agent(name),
            Self::Phase(_) => Self::Phase(name),
            Self::Judge(_) => Self::Judge(name),
            Self::Model(_) => Self::Model(name),
            Self::Tool(_) => Self::Tool(name),
            Self::Value(field, _) => Self::Value(field, name),
            Self::Filter(_) => Self::Filter(name),
            Self::Function(_) => Self::Function(name),
            Self::File(_) => Self::File(name),
        }
    }
}

/// Fields that declare names for texts and expressions.
pub(super) const DECLARING: [&str; 4] = ["variables", "state", "let", "outcome"];

/// Agents by key: those of the text, then those of files that the scenario includes.
pub(super) fn agents(document: &Document, tree: &Tree) -> Vec<String> {
    let mut keys = tree.keys_at(&Path::default().key("agents"));
    let included = document.scenario.iter().flat_map(|scenario| scenario.cast().map(|(_, agent)| &agent.key));
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

/// The kind of code that a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CodeKind {
    /// An expression.
    Expression,
    /// A text with code in braces.
    Template,
}

/// The kind of code that a value at a path is; `None`: it is none.
pub(super) fn code_at(tree: &Tree, path: &Path) -> Option<CodeKind> {
    let keys = keys_of(path);
    match keys[..] {
        // A text of the state may be computed when a run begins.
        ["state", _] if matches!(path.0.last(), Some(PathStep::Key(_))) => return Some(CodeKind::Template),
        ["variables" | "state", ..] | ["phases", .., "set", "after"] => return None,
        ["phases", .., "for"] => return Some(CodeKind::Expression),
        ["payoff", "matrix", ..] => return Some(CodeKind::Expression),
        // Their texts may use variables.
        ["agents", _, "strategy", ..] => return Some(CodeKind::Template),
        _ => {}
    }
    let forms = Forms::of(type_of(tree, path)?.declared);
    let is_turns = matches!(keys[..], ["phases", .., "agent"]);
    if forms.has(&["Expression", "Cast", "Count", "Pairs", "Answer", "Options"])
        || is_turns && forms.has(&["Key"])
    {
        return Some(CodeKind::Expression);
    }
    forms.has(&["Template", "Text", "Scalar"]).then_some(CodeKind::Template)
}

/// The keys of a path.
pub(super) fn keys_of(path: &Path) -> Vec<&str> {
    path.0.iter().filter_map(PathStep::as_key).collect()
}
