//! Checks choices: their options, how a phase decides over them, and who makes them instead of the model.

use super::Checker;
use crate::scenario::choice::{Choice, ChoiceOption, Decision, Method, text_of};
use crate::scenario::schema::WrittenPhase;
use crate::scenario::source::Path;
use crate::scenario::{AgentId, PhaseId};
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
                let shuffle = fields.remove("shuffle").filter(|shuffle| !shuffle.is_null());
                let ask = fields.remove("ask").filter(|ask| !ask.is_null());
                self.no_more_fields(&fields, &path, "a choice", &["options", "shuffle", "ask"]);
                (options, shuffle, ask, path.key("options"))
            }
            given => (given, None, None, path.clone()),
        };
        let shuffle = shuffle.is_some_and(|given| {
            given.as_bool().unwrap_or_else(|| {
                self.error("type", &path.key("shuffle"), "`shuffle` is true or false").help =
                    Some("`shuffle: true` lists the options in an order drawn from the seed".into());
                false
            })
        });
        let ask = ask.and_then(|given| match given {
            Value::String(text) => self.template(Some(text), path.key("ask"), phase).map(Arc::new),
            _ => {
                self.error("type", &path.key("ask"), "`ask` is a text: the question").help =
                    Some("put it in quotes".into());
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
        if written.len() > MAX_OPTIONS {
            let message = format!("a choice has at most {MAX_OPTIONS} options; here are {}", written.len());
            self.error("too-many", path, message).help = Some("each option is weighed at every turn".into());
            return None;
        }
        let mut sound = true;
        for (value, text, path) in written {
            let (Some(value), Some(text)) = (scalar(&value), scalar(&text)) else {
                let help =
                    "options with texts are a mapping: `choice: { talk: I talk, silent: I stay silent }`";
                self.error("type", &path, "an option is a text, a number, true or false").help =
                    Some(help.into());
                return None;
            };
            let text = text_of(&text).trim().to_string();
            if text.is_empty() || text.chars().any(char::is_control) || text.chars().count() > 200 {
                self.error("bad-value", &path, "an option is one line of 1 to 200 characters").help =
                    Some("name the option in a few words; the question belongs into `ask`".into());
                sound = false;
                continue;
            }
            let same = |other: &ChoiceOption| other.text == text || text_of(&other.value) == text_of(&value);
            if options.iter().any(same) {
                let message = format!("the option `{text}` stands twice in this choice");
                self.error("duplicate-name", &path, message).help =
                    Some("options differ in their results and in their texts; remove or rename one".into());
                sound = false;
                continue;
            }
            options.push(ChoiceOption { value, text });
        }
        if sound && options.len() < 2 {
            let message =
                format!("a choice has at least two options; here is {}", ["none", "one"][options.len()]);
            self.error("bad-value", path, message).help = Some("e.g. `choice: [talk, silent]`".into());
        }
        (sound && options.len() > 1).then_some(options)
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
        let known = !self.is_broken(&here);
        if known && written.attempts.is_some() && mode.is_none_or(|mode| mode != "consensus") {
            let message = "`attempts` has no effect here: it bounds the votes of a `consensus`";
            self.unused(&path.key("attempts"), message, "remove it, or write `decision_mode: consensus`");
        }
        if known && written.coordinator.is_some() && mode.is_none_or(|mode| mode != "coordinator_decides") {
            let message = "`coordinator` has no effect here: it says who decides alone";
            let help = "remove it, or write `decision_mode: coordinator_decides`";
            self.unused(&path.key("coordinator"), message, help);
        }
        let mode = mode?;
        match choice {
            None if written.choice.is_none() && written.parse_choice.is_none() => {
                let message = format!("`{mode}` needs `choice`: the options to decide over");
                if !self.is_broken(&path.key("choice")) && !self.is_broken(&path.key("parse_choice")) {
                    self.missing(&here, &message, "e.g. `choice: [stay, leave]`");
                }
            }
            Some(Choice { method: Method::Parse, .. }) if mode == "ranked_choice" => {
                let message = "a ranking is decoded: use `choice` with `ranked_choice`";
                self.error("contradiction", &path.key("parse_choice"), message).help =
                    Some("write `choice` instead of `parse_choice`".into());
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
                    self.error("bad-value", &path.key("attempts"), message).help =
                        Some("without `attempts` it is three".into());
                }
                Decision::Consensus { attempts: attempts.min(MAX_ATTEMPTS) }
            }
            _ => Decision::Coordinator(self.with_role(
                written.coordinator.as_deref(),
                "coordinator",
                cast,
                (path, &here),
            )?),
        })
    }

    /// The agent that a phase names for a part, or the one of those present whose role it is.
    pub(super) fn with_role(
        &mut self,
        given: Option<&str>,
        role: &'static str,
        cast: &[AgentId],
        (path, here): (&Path, &Path),
    ) -> Option<AgentId> {
        if let Some(key) = given {
            let path = path.key(role);
            let id = self.agent_id(key, &path)?;
            self.present_here(id, key, cast, &path);
            return Some(id);
        }
        let is = |id: &&AgentId| self.names.agents[id.0].role.eq_ignore_ascii_case(role);
        let having: Vec<AgentId> = cast.iter().filter(is).copied().collect();
        if let [one] = having.as_slice() {
            return Some(*one);
        }
        let n_having = if having.is_empty() { "none".to_string() } else { having.len().to_string() };
        let message = format!("{n_having} of those present has the role `{role}`; one must");
        if !self.is_broken(&path.key("agents")) {
            let help = format!("name one with `{role}: KEY`, or give one agent `role: {role}`");
            if !self.is_broken(&path.key(role)) {
                self.missing(here, &message, &help);
            }
        }
        None
    }

    pub(super) fn no_more_fields(&mut self, fields: &Mapping, path: &Path, what: &str, known: &[&str]) {
        for key in fields.keys() {
            let key = scalar(key).map_or(String::new(), |key| text_of(&key));
            let path = path.key(key.clone());
            let span = self.spans.key(&path);
            let message = format!("{what} has no field `{key}`");
            let found = crate::diagnostic::Diagnostic::error("unknown-key", path.to_string(), span, message);
            self.push(found).help = self.suggest(&key, known.iter().copied());
        }
    }
}

pub(super) fn scalar(value: &Value) -> Option<serde_json::Value> {
    match value {
        Value::String(_) | Value::Bool(_) | Value::Number(_) => serde_json::to_value(value).ok(),
        _ => None,
    }
}
