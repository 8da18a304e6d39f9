//! Where each name of a scenario stands: in keys, in values, and in the code of texts and expressions.

use super::document::Document;
use super::names::{CodeKind, DECLARING, Symbol, agents, code_at, keys, keys_of, phases};
use crate::diagnostic::Span;
use crate::scenario::template::{FILTERS, FUNCTIONS, Mention, Word, mentions};
use crate::scenario::{NodePlace, Path, PathStep, Tree};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A place at which a name stands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Occurrence {
    pub(super) span: Span,
    pub(super) symbol: Symbol,
    pub(super) role: Role,
}

/// What an occurrence is of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    Definition,
    Use,
    /// A text that is an agent's key, and may be the agent or only a text.
    Possible,
    /// A use that the file writes with escapes; its place is the whole value.
    Escaped,
}

/// Results of a phase that are looked up by agent.
const BY_AGENT: [&str; 7] = ["choices", "history", "said", "replies", "reply_history", "calls", "messages"];
/// Names in code that are looked up by agent, or list agents.
const AGENTS: [&str; 4] = ["agents", "payoffs", "cast", "others"];
/// Fields with texts of the author's: an agent's key among them may mean the agent.
const DATA: [&str; 8] =
    ["variables", "state", "traits", "answer", "one_of", "strategy", "matrix", "arguments"];
/// Strategies with a setting, which are no names of phases.
const STRATEGIES: [&str; 4] = ["always", "random", "list", "script"];

/// All occurrences of names in a document, in the order of the text.
pub(super) fn occurrences(document: &Document, tree: &Tree) -> Vec<Occurrence> {
    let judges = tree.places().into_iter().filter(is_judge_name);
    let judges = judges.filter_map(|place| place.text).chain(keys(tree, "judges"));
    // Judges without a name have one all the same.
    let unnamed = document.scenario.iter().flat_map(|scenario| &scenario.phases);
    let unnamed = unnamed.filter(|phase| phase.is_judge).map(|phase| phase.name.clone());
    let values = DECLARING.into_iter().filter(|field| *field != "outcome");
    let mut finder = Finder {
        tree,
        text: &document.text,
        agents: agents(document, tree).into_iter().collect(),
        phases: phases(tree).into_iter().filter_map(|phase| phase.text).collect(),
        judges: judges.chain(unnamed).collect(),
        tools: keys(tree, "tools"),
        values: values
            .flat_map(|field| keys(tree, field).into_iter().map(move |name| (name, field)))
            .collect(),
        data: ["variables", "state"].map(|field| tree.json_at(&Path::default().key(field))),
        found: BTreeSet::new(),
    };
    tree.places().iter().for_each(|place| finder.place(place));
    finder.found.into_iter().collect()
}

/// The occurrence at a byte.
pub(super) fn at(document: &Document, tree: &Tree, offset: usize) -> Option<Occurrence> {
    let found = occurrences(document, tree).into_iter();
    found.filter(|found| (found.span.start..=found.span.end).contains(&offset)).min_by_key(|found| {
        let Span { start, end, .. } = found.span;
        (end - start, std::cmp::Reverse(start))
    })
}

/// True of the name of a judge beside an assertion.
fn is_judge_name(place: &NodePlace) -> bool {
    !place.is_key && matches!(keys_of(&place.path)[..], ["assertions", "judge", "name"])
}

struct Finder<'a> {
    tree: &'a Tree,
    text: &'a str,
    agents: BTreeSet<String>,
    phases: BTreeSet<String>,
    judges: BTreeSet<String>,
    tools: Vec<String>,
    /// Variables, the state and intermediate values by name, with the field that declares them.
    values: BTreeMap<String, &'static str>,
    /// The variables, and the state's initial values.
    data: [Value; 2],
    found: BTreeSet<Occurrence>,
}

impl Finder<'_> {
    /// Adds an occurrence at bytes of a key's or value's text.
    fn put(&mut self, place: &NodePlace, at: Range<usize>, symbol: Symbol, role: Role) {
        let (span, role) = match place.word(self.text, at) {
            Some(span) => (span, role),
            None => (place.span, if role == Role::Possible { role } else { Role::Escaped }),
        };
        self.found.insert(Occurrence { span, symbol, role });
    }

    /// Adds a whole key or value.
    fn whole(&mut self, place: &NodePlace, symbol: Symbol, role: Role) {
        let text = place.text.as_deref().unwrap_or_default();
        let start = text.len() - text.trim_start().len();
        self.put(place, start..start + text.trim().len(), symbol, role);
    }

    fn place(&mut self, place: &NodePlace) {
        let Some(text) = place.text.as_deref() else { return };
        if place.is_key { self.key(place, text) } else { self.value(place, text) }
    }

    fn key(&mut self, place: &NodePlace, text: &str) {
        let name = text.to_owned();
        let defined = match keys_of(&place.path)[..] {
            ["agents", _] => Some(Symbol::Agent(name)),
            ["models", _] => Some(Symbol::Model(name)),
            ["tools", _] => Some(Symbol::Tool(name)),
            ["judges", _] => Some(Symbol::Judge(name)),
            [field, _] => {
                let field = DECLARING.into_iter().find(|of| *of == field);
                field.map(|field| Symbol::Value(field, name))
            }
            _ => None,
        };
        if let Some(symbol) = defined {
            return self.whole(place, symbol, Role::Definition);
        }
        let [.., PathStep::Key(_)] = &place.path.0[..] else { return };
        let around = place.path.0.iter().rev().nth(1).and_then(PathStep::as_key);
        match (&keys_of(&place.path)[..], around) {
            (["phases", .., "say" | "to" | "overhears", _], Some(_)) if self.agents.contains(text) => {
                self.whole(place, Symbol::Agent(text.to_owned()), Role::Use);
            }
            (["phases", .., "set", _], _) if self.values.get(text) == Some(&"state") => {
                self.whole(place, Symbol::Value("state", text.to_owned()), Role::Use);
            }
            (["agents", _, "strategy", _], _)
                if self.phases.contains(text) && !STRATEGIES.contains(&text) =>
            {
                self.whole(place, Symbol::Phase(text.to_owned()), Role::Use);
            }
            (["agents", _, "strategy", .., "script", _], _) => self.turn(place, text),
            (["variables" | "state", ..], _) => {
                let around = Path(place.path.0[..place.path.0.len() - 1].to_vec());
                let keys = self.tree.keys_at(&around);
                self.maybe_agent(place, text, keys.iter().all(|key| self.agents.contains(key)));
            }
            (path, Some(_)) if is_data(path) => self.maybe_agent(place, text, false),
            _ => {}
        }
    }

    /// The path of a turn: `PHASE/ROUND/AGENT`, or `PHASE.PASS/ROUND/AGENT` in a block.
    fn turn(&mut self, place: &NodePlace, text: &str) {
        let phase = text.split(['/', '.']).next().unwrap_or_default();
        if self.phases.contains(phase) {
            self.put(place, 0..phase.len(), Symbol::Phase(phase.to_owned()), Role::Use);
        }
        let Some((_, agent)) = text.rsplit_once('/') else { return };
        let agent = agent.split('.').next().unwrap_or_default();
        if self.agents.contains(agent) {
            let start = text.rfind('/').map_or(0, |at| at + 1);
            self.put(place, start..start + agent.len(), Symbol::Agent(agent.to_owned()), Role::Use);
        }
    }

    fn maybe_agent(&mut self, place: &NodePlace, text: &str, is_agent: bool) {
        if self.agents.contains(text) {
            let role = if is_agent { Role::Use } else { Role::Possible };
            self.whole(place, Symbol::Agent(text.to_owned()), role);
        }
    }

    fn value(&mut self, place: &NodePlace, text: &str) {
        let keys = keys_of(&place.path);
        let name = text.trim().to_owned();
        let is_agent = self.agents.contains(&name);
        let symbol = match keys[..] {
            ["phases", ref blocks @ .., "name"] if blocks.iter().all(|key| *key == "phases") => {
                return self.whole(place, Symbol::Phase(name), Role::Definition);
            }
            ["assertions", "judge", "name"] => {
                return self.whole(place, Symbol::Judge(name), Role::Definition);
            }
            ["include" | "cases"] | ["agents", _, "from"] | ["tools", _, "lookup"] => {
                Some(Symbol::File(name))
            }
            ["model" | "embeddings"]
            | ["agents" | "judges", _, "model"]
            | ["assertions", "judge", "model"] => Some(Symbol::Model(name)),
            ["phases", .., "model"] if !keys.contains(&"answer") => Some(Symbol::Model(name)),
            ["agents", _, "tools"] => Some(Symbol::Tool(name)),
            ["phases", .., "answer", "call"] if self.tools.contains(&name) => Some(Symbol::Tool(name)),
            ["payoff", "phase"] => Some(Symbol::Phase(name)),
            ["payoff", "players"]
            | ["judges", _, "agent"]
            | ["assertions", "judge", "agent"]
            | [
                "phases",
                ..,
                "agent" | "agents" | "pairs" | "moderator" | "by" | "to" | "among" | "otherwise",
            ]
            | ["phases", .., "to" | "overhears", _]
                if is_agent && !is_data(&keys) =>
            {
                Some(Symbol::Agent(name))
            }
            _ => None,
        };
        if let Some(symbol) = symbol {
            return self.whole(place, symbol, Role::Use);
        }
        match code_at(self.tree, &place.path) {
            // Names of items are declared before the list.
            Some(CodeKind::Expression) if keys.last() == Some(&"for") => {
                let list = text.find(" in ").map_or(0, |at| at + " in ".len());
                self.code(place, &format!("{}{}", " ".repeat(list), &text[list..]), true);
            }
            Some(CodeKind::Expression) => self.code(place, text, true),
            Some(CodeKind::Template) if is_code(text) => self.code(place, text, false),
            _ if matches!(keys[..], ["variables" | "state", ..]) => {
                let is_item = matches!(place.path.0.last(), Some(PathStep::Index(_)));
                let is_agent = is_item && is_agent && {
                    let list = Path(place.path.0[..place.path.0.len() - 1].to_vec());
                    self.is_by_agent(&self.tree.json_at(&list))
                };
                self.maybe_agent(place, text, is_agent);
            }
            _ if is_data(&keys) => self.maybe_agent(place, text, false),
            _ => {}
        }
    }

    fn code(&mut self, place: &NodePlace, text: &str, is_expression: bool) {
        for mention in mentions(text, is_expression) {
            match mention {
                Mention::Name(words) => self.name(place, &words),
                Mention::Field(word) => self.agent_in_code(place, &word, Role::Possible),
                Mention::Texts { texts, is_list, beside } => {
                    let beside: Vec<&str> = beside.iter().map(String::as_str).collect();
                    let all = is_list && texts.iter().all(|word| self.agents.contains(&word.text));
                    let is_agent = all || self.is_beside_agents(&beside);
                    let role = if is_agent { Role::Use } else { Role::Possible };
                    texts.iter().for_each(|word| self.agent_in_code(place, word, role));
                }
                Mention::Filter(word) if FILTERS.iter().any(|(name, _)| *name == word.text) => {
                    self.put(place, word.at, Symbol::Filter(word.text), Role::Use);
                }
                Mention::Filter(_) | Mention::Test(_) | Mention::Own(_) => {}
            }
        }
    }

    /// A text or a field in code, if it is an agent's key.
    fn agent_in_code(&mut self, place: &NodePlace, word: &Word, role: Role) {
        if self.agents.contains(&word.text) {
            self.put(place, word.at.clone(), Symbol::Agent(word.text.clone()), role);
        }
    }

    /// A name in code, with the fields that are looked up in it.
    fn name(&mut self, place: &NodePlace, words: &[Word]) {
        let [word, fields @ ..] = words else { return };
        let name = word.text.as_str();
        let put = |finder: &mut Self, word: &Word, symbol: fn(String) -> Symbol| {
            finder.put(place, word.at.clone(), symbol(word.text.clone()), Role::Use);
        };
        if let Some(symbol) = self.result(name) {
            put(self, word, symbol);
            return self.results(place, fields);
        }
        // A phase of a certain pass: `phases['talk.2']`.
        let of_pass = |word: &Word| {
            let (phase, _) = word.text.split_once('.')?;
            let at = word.at.start..word.at.start + phase.len();
            Some(Word { text: phase.to_owned(), at })
        };
        if let Some(field) = self.values.get(name).copied() {
            self.put(place, word.at.clone(), Symbol::Value(field, name.to_owned()), Role::Use);
            return self.fields(place, fields, self.data_of(field, name).cloned().as_ref());
        }
        if self.agents.contains(name) {
            return put(self, word, Symbol::Agent);
        }
        match (name, fields) {
            ("phases", [phase, rest @ ..]) => {
                let of_pass = of_pass(phase);
                let phase = of_pass.as_ref().unwrap_or(phase);
                if let Some(symbol) = self.result(&phase.text) {
                    put(self, phase, symbol);
                }
                self.results(place, rest);
            }
            ("variables", [variable, rest @ ..]) => {
                self.put(
                    place,
                    variable.at.clone(),
                    Symbol::Value("variables", variable.text.clone()),
                    Role::Use,
                );
                self.fields(place, rest, self.data_of("variables", &variable.text).cloned().as_ref());
            }
            ("outcome", [outcome, rest @ ..]) => {
                self.put(
                    place,
                    outcome.at.clone(),
                    Symbol::Value("outcome", outcome.text.clone()),
                    Role::Use,
                );
                self.fields(place, rest, None);
            }
            ("agents" | "payoffs", [agent, ..]) => {
                self.agent_in_code(place, agent, Role::Use);
            }
            _ if FUNCTIONS.iter().any(|(function, _)| *function == name) => put(self, word, Symbol::Function),
            _ => self.fields(place, fields, None),
        }
    }

    /// Whose results a name stands for.
    fn result(&self, name: &str) -> Option<fn(String) -> Symbol> {
        if self.phases.contains(name) {
            return Some(Symbol::Phase);
        }
        self.judges.contains(name).then_some(Symbol::Judge)
    }

    /// The fields looked up in a phase.
    fn results(&mut self, place: &NodePlace, fields: &[Word]) {
        match fields {
            [field, agent, rest @ ..] if BY_AGENT.contains(&field.text.as_str()) => {
                self.agent_in_code(place, agent, Role::Use);
                self.fields(place, rest, None);
            }
            [_, rest @ ..] => self.fields(place, rest, None),
            [] => {}
        }
    }

    /// The fields looked up in a value, if it is known.
    fn fields(&mut self, place: &NodePlace, fields: &[Word], mut value: Option<&Value>) {
        for word in fields {
            let is_agent = value.is_some_and(|value| value.is_object() && self.is_by_agent(value));
            self.agent_in_code(place, word, if is_agent { Role::Use } else { Role::Possible });
            value = value.and_then(|value| value.get(&word.text));
        }
    }

    fn data_of(&self, field: &str, name: &str) -> Option<&Value> {
        match field {
            "variables" => self.data[0].get(name),
            "state" => self.data[1].get(name),
            _ => None,
        }
    }

    /// True of a list of agents' keys, and of a mapping by them.
    fn is_by_agent(&self, value: &Value) -> bool {
        match value {
            Value::Array(items) => {
                !items.is_empty()
                    && items.iter().all(|item| item.as_str().is_some_and(|text| self.agents.contains(text)))
            }
            Value::Object(fields) => !fields.is_empty() && fields.keys().all(|key| self.agents.contains(key)),
            _ => false,
        }
    }

    /// True of what texts that are compared with it are keys of agents for.
    fn is_beside_agents(&self, beside: &[&str]) -> bool {
        match beside {
            ["me"] | ["me", "key"] => true,
            ["phases", phase, field] | [phase, field] if self.result(phase).is_some() => {
                BY_AGENT.contains(field)
            }
            [name] if AGENTS.contains(name) => true,
            ["variables", name, rest @ ..] | [name, rest @ ..] => {
                let field = self.values.get(*name).copied().unwrap_or_default();
                let of = rest.iter().try_fold(self.data_of(field, name), |of, key| Some(of?.get(*key)));
                of.flatten().is_some_and(|of| self.is_by_agent(of))
            }
            [] => false,
        }
    }
}

/// True of a path to an author's own data.
fn is_data(keys: &[&str]) -> bool {
    keys.iter().any(|key| DATA.contains(key)) || keys.contains(&"schema")
}

/// True of a text with code.
fn is_code(text: &str) -> bool {
    crate::scenario::template::is_code(text) || text.contains("${")
}
