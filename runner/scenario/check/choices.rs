//! Checks choices: their options, how a phase decides over them, and who makes them instead of the model.

use super::Checker;
use crate::diagnostic::suggest;
use crate::scenario::choice::{Choice, ChoiceOption, Decision, Method, text_of};
use crate::scenario::schema::WrittenPhase;
use crate::scenario::source::Path;
use crate::scenario::{AgentId, PhaseId, Strategy};
use serde_yaml::{Mapping, Value};
use std::sync::Arc;

/// Most options of a choice; each is scored.
const MAX_OPTIONS: usize = 100;
/// Most votes that a consensus may take.
const MAX_ATTEMPTS: usize = 100;

impl Checker {
    /// The choice that `choice` or `parse_choice` describes.
    pub(super) fn choice(
        &mut self,
        decode: Option<Value>,
        parse: Option<Value>,
        path: &Path,
        phase: PhaseId,
    ) -> Option<Arc<Choice>> {
        if decode.is_some() && parse.is_some() {
            let message = "`choice` and `parse_choice` exclude each other: a reply is decoded or parsed";
            self.error("contradiction", &path.key("parse_choice"), message).help =
                Some("keep `choice`, unless the agent is to answer in its own words".into());
            return None;
        }
        let (given, method, field) = match (decode, parse) {
            (Some(given), _) => (given, Method::Decode, "choice"),
            (_, Some(given)) => (given, Method::Parse, "parse_choice"),
            _ => return None,
        };
        let path = path.key(field);
        let (options, shuffle, ask, at) = match given {
            Value::Mapping(mut fields) if fields.contains_key("options") => {
                let options = fields.remove("options").unwrap_or_default();
                let shuffle = fields.remove("shuffle");
                let ask = fields.remove("ask");
                self.no_more_fields(&fields, &path, "a choice", &["options", "shuffle", "ask"]);
                (options, shuffle, ask, path.key("options"))
            }
            given => (given, None, None, path.clone()),
        };
        let shuffle = shuffle.is_some_and(|given| {
            given.as_bool().unwrap_or_else(|| {
                self.error("type", &path.key("shuffle"), "`shuffle` is true or false");
                false
            })
        });
        let ask = ask.and_then(|given| match given {
            Value::String(text) => self.template(Some(text), path.key("ask"), phase).map(Arc::new),
            _ => {
                self.error("type", &path.key("ask"), "`ask` is a text: the question");
                None
            }
        });
        let options = self.options(options, &at)?;
        Some(Arc::new(Choice { path, options, method, shuffle, ask }))
    }

    fn options(&mut self, given: Value, path: &Path) -> Option<Vec<ChoiceOption>> {
        let mut options = Vec::new();
        let written: Vec<(Value, Value, Path)> = match given {
            Value::Sequence(items) => {
                items.into_iter().enumerate().map(|(at, item)| (item.clone(), item, path.index(at))).collect()
            }
            Value::Mapping(texts) => {
                let keyed = texts.into_iter().map(|(key, text)| {
                    let path = key.as_str().map_or(path.clone(), |key| path.key(key));
                    (key, text, path)
                });
                keyed.collect()
            }
            _ => {
                let message =
                    "a choice is a list of options, or a mapping from results to the texts that are said";
                self.error("type", path, message).help = Some("e.g. `choice: [talk, silent]`".into());
                return None;
            }
        };
        for (value, text, path) in written {
            let (Some(value), Some(text)) = (scalar(&value), scalar(&text)) else {
                self.error("type", &path, "an option is a text, a number, true or false");
                continue;
            };
            let text = text_of(&text).trim().to_string();
            if text.is_empty() || text.chars().any(char::is_control) || text.chars().count() > 200 {
                self.error("bad-value", &path, "an option is one line of 1 to 200 characters");
                continue;
            }
            let same = |other: &ChoiceOption| other.text == text || text_of(&other.value) == text_of(&value);
            if options.iter().any(same) {
                self.error(
                    "duplicate-name",
                    &path,
                    format!("the option `{text}` stands twice in this choice"),
                );
                continue;
            }
            options.push(ChoiceOption { value, text });
        }
        if options.len() < 2 || options.len() > MAX_OPTIONS {
            let message = format!("a choice has 2 to {MAX_OPTIONS} options; here are {}", options.len());
            self.error("bad-value", path, message);
            return None;
        }
        Some(options)
    }

    /// How a phase decides; whoever it needs is named or has the role.
    pub(super) fn decision(
        &mut self,
        written: &WrittenPhase,
        cast: &[AgentId],
        choice: Option<&Choice>,
        path: &Path,
    ) -> Option<Decision> {
        let known = ["none", "majority_vote", "ranked_choice", "coordinator_decides", "consensus"];
        let known = known.map(|name| (name, name));
        let here = path.key("decision_mode");
        let mode = written
            .decision_mode
            .as_deref()
            .and_then(|given| self.word(&here, "decision mode", given, &known));
        let mode = mode.filter(|mode| *mode != "none");
        if written.attempts.is_some() && mode.is_none_or(|mode| mode != "consensus") {
            self.unused(&path.key("attempts"), "`attempts` bounds the votes of a `consensus`");
        }
        if written.coordinator.is_some() && mode.is_none_or(|mode| mode != "coordinator_decides") {
            self.unused(
                &path.key("coordinator"),
                "a coordinator decides where `decision_mode` is `coordinator_decides`",
            );
        }
        let mode = mode?;
        match choice {
            None if written.choice.is_none() && written.parse_choice.is_none() => {
                let message = format!("`{mode}` needs `choice`: the options to decide over");
                self.error("missing", &here, message).help = Some("e.g. `choice: [stay, leave]`".into());
            }
            Some(Choice { method: Method::Parse, .. }) if mode == "ranked_choice" => {
                let message = "a ranking is decoded: use `choice` with `ranked_choice`";
                self.error("contradiction", &path.key("parse_choice"), message);
            }
            _ => {}
        }
        Some(match mode {
            "majority_vote" => Decision::MajorityVote,
            "ranked_choice" => Decision::RankedChoice,
            "consensus" => {
                let attempts = self.count(written.attempts, &path.key("attempts")).unwrap_or(3);
                if attempts > MAX_ATTEMPTS {
                    let message = format!("a consensus takes at most {MAX_ATTEMPTS} votes");
                    self.error("bad-value", &path.key("attempts"), message);
                }
                Decision::Consensus { attempts: attempts.min(MAX_ATTEMPTS) }
            }
            _ => Decision::Coordinator(self.with_role(
                written.coordinator.as_deref(),
                "coordinator",
                cast,
                path,
            )?),
        })
    }

    /// The agent that a phase names for a part, or the one of those present whose role it is.
    pub(super) fn with_role(
        &mut self,
        given: Option<&str>,
        role: &'static str,
        cast: &[AgentId],
        path: &Path,
    ) -> Option<AgentId> {
        if let Some(key) = given {
            let path = path.key(role);
            let id = self.agent_id(key, &path)?;
            if !cast.contains(&id) {
                let message = format!("`{key}` does not take part in this phase");
                self.error("absent-agent", &path, message).help = Some(format!("add `{key}` to `agents`"));
            }
            return Some(id);
        }
        let is = |id: &&AgentId| self.names.agents[id.0].role.eq_ignore_ascii_case(role);
        let having: Vec<AgentId> = cast.iter().filter(is).copied().collect();
        if let [one] = having.as_slice() {
            return Some(*one);
        }
        let message = format!("{} of those present have the role `{role}`; one must", having.len());
        self.error("missing", path, message).help =
            Some(format!("name one with `{role}: KEY`, or give one agent `role: {role}`"));
        None
    }

    pub(super) fn strategy(&mut self, given: Value, path: &Path) -> Option<Strategy> {
        const NAMED: &[(&str, Option<Strategy>)] = &[
            ("tit_for_tat", Some(Strategy::TitForTat)),
            ("grim", Some(Strategy::Grim)),
            ("human", Some(Strategy::Human)),
        ];
        let shape =
            "a strategy is `tit_for_tat`, `grim`, `human`, `{always: X}`, `{random: p}` or `{list: [X, Y]}`";
        let fields = match given {
            Value::String(name) => {
                let known = NAMED.iter().find(|(known, _)| *known == name.trim());
                if known.is_none() {
                    let help = suggest(
                        &name,
                        NAMED.iter().map(|(known, _)| *known).chain(["always", "random", "list"]),
                    );
                    self.error("unknown-value", path, format!("`{name}` is no strategy: {shape}")).help =
                        help;
                }
                return known.and_then(|(_, strategy)| strategy.clone());
            }
            Value::Mapping(fields) if fields.len() == 1 => fields,
            _ => {
                self.error("type", path, shape);
                return None;
            }
        };
        let (key, value) = fields.into_iter().next()?;
        let text = |value: &Value| scalar(value).map(|value| text_of(&value));
        let found = match (key.as_str().unwrap_or_default(), &value) {
            ("always", value) => text(value).map(Strategy::Always),
            ("random", value) => value.as_f64().filter(|p| (0.0..=1.0).contains(p)).map(Strategy::Random),
            ("list", Value::Sequence(items)) if !items.is_empty() => {
                items.iter().map(text).collect::<Option<_>>().map(Strategy::List)
            }
            _ => None,
        };
        if found.is_none() {
            self.error("bad-value", path, shape).help = Some("p is a probability from 0 to 1".into());
        }
        found
    }

    pub(super) fn no_more_fields(&mut self, fields: &Mapping, path: &Path, what: &str, known: &[&str]) {
        for key in fields.keys() {
            let key = scalar(key).map_or(String::new(), |key| text_of(&key));
            let path = path.key(key.clone());
            let span = self.spans.key(&path);
            let message = format!("{what} has no field `{key}`");
            let found = crate::diagnostic::Diagnostic::error("unknown-key", path.to_string(), span, message);
            self.push(found).help = suggest(&key, known.iter().copied());
        }
    }
}

fn scalar(value: &Value) -> Option<serde_json::Value> {
    match value {
        Value::String(_) | Value::Bool(_) | Value::Number(_) => serde_json::to_value(value).ok(),
        _ => None,
    }
}
