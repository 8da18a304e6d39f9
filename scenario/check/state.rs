//! Checks the state, what changes it, and intermediate values.

use super::{Checker, is_identifier};
use crate::evaluate::{drawn_alone, kind};
use crate::schema::{WrittenExpression, WrittenSet, WrittenSets};
use crate::template::{Expression, ROUND_NAMES};
use crate::{Assignment, PhaseId};
use greenroom_yaml::Path;
use greenroom_yaml::diagnostic::Diagnostic;
use indexmap::IndexMap;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An intermediate value as others see it: all that it uses.
#[derive(Clone, Debug)]
pub(super) struct Intermediate {
    pub(super) name: String,
    /// None: it has a mistake of its own.
    pub(super) value: Option<Expression>,
}

/// When the changes of a mapping are made, and for which agents.
const AFTER: &str = "after";
const EACH: &str = "each";

/// Seeds that a value computed when a run begins is tried with.
const N_TRIED: u64 = 32;

/// The expression of a text that is nothing else: `{{ EXPRESSION }}`.
pub(super) fn code_of(text: &str) -> Option<&str> {
    let inside = text.trim().strip_prefix("{{")?.strip_suffix("}}")?;
    (!inside.contains("{{") && !inside.contains("}}")).then(|| inside.trim())
}

impl Checker {
    /// The state's first values, and those that are computed when a run begins: a text that is nothing but an
    /// expression in braces.
    pub(super) fn state(
        &mut self,
        written: IndexMap<String, Value>,
        path: &Path,
    ) -> (BTreeMap<String, Value>, Vec<(String, Expression)>) {
        let (mut state, mut computed) = (BTreeMap::new(), Vec::new());
        for (name, mut value) in written {
            let meaning = match &*name {
                AFTER => Some("when"),
                EACH => Some("for which agents"),
                _ => None,
            };
            if let Some(meaning) = meaning {
                let message = format!(
                    "`{name}` says {meaning} `set` changes the state, so nothing in it can have this name"
                );
                let path = path.key(name);
                let found = Diagnostic::error("bad-name", path.to_string(), self.tree.key(&path), message);
                self.push(found.help("rename it"));
            } else if self.is_name(&name, &path.key(name.clone()), "something in the state") {
                if let Some(text) = value.as_str().and_then(code_of) {
                    let (text, path) = (WrittenExpression::Text(text.to_string()), path.key(name.clone()));
                    let expression = self.expression(text, path, PhaseId(0), &[]);
                    value = expression.as_ref().map_or(Value::Null, |expression| self.sample(expression));
                    computed.extend(expression.map(|expression| (name.clone(), expression)));
                }
                value.sort_all_objects();
                state.insert(name, value);
            }
        }
        (state, computed)
    }

    /// A value that a run may begin with. All seeds have to give values of one type, which this tries with
    /// some.
    fn sample(&mut self, expression: &Expression) -> Value {
        let mut sample = Value::Null;
        for root in 0..N_TRIED {
            let message = match drawn_alone(&self.names.values, expression, root) {
                Err(error) => error.message,
                Ok(value) if root > 0 && kind(&value) != kind(&sample) => {
                    format!("this is {} with one seed and {} with another", kind(&sample), kind(&value))
                }
                Ok(value) => {
                    if root == 0 {
                        sample = value;
                    }
                    continue;
                }
            };
            self.error("expression", &expression.path, message).help =
                Some("a value in the state keeps its type; it can use variables, and draw by chance".into());
            break;
        }
        sample
    }

    /// Reads the intermediate values. Where one may be used depends on what it uses, which is checked where
    /// it is.
    pub(super) fn intermediate(&mut self, written: IndexMap<String, Option<WrittenExpression>>, path: &Path) {
        let end = PhaseId(self.names.phases.len());
        for (name, value) in written {
            let path = path.key(name.clone());
            if !self.is_name(&name, &path, "an intermediate value") {
                continue;
            }
            let value = value.and_then(|value| self.expression(value, path, end, &[]));
            self.names.lets.push(Intermediate { name, value });
        }
    }

    fn is_name(&mut self, name: &str, path: &Path, what: &str) -> bool {
        let fits = is_identifier(name);
        if !fits {
            let span = self.tree.key(path);
            let message = format!("`{name}` is not a valid name for {what}: use letters, digits and `_`");
            let help = format!("for example `{}`", super::phases::identifier_from(name));
            self.push(Diagnostic::error("bad-name", path.to_string(), span, message).help(help));
        }
        fits
    }

    /// What `set` changes after each round of a phase, and after the phase.
    pub(super) fn sets(
        &mut self,
        written: Option<WrittenSets>,
        path: &Path,
        phase: PhaseId,
    ) -> [Arc<[Assignment]>; 2] {
        let written: Vec<(WrittenSet, Path)> = match written {
            None => Vec::new(),
            Some(WrittenSets::Long(set)) => vec![(set, path.clone())],
            Some(WrittenSets::List(sets)) => {
                if sets.is_empty() {
                    self.unused(path, "nothing is set here", "remove it, or write e.g. `{ pot: pot + 1 }`");
                }
                let sets = sets.into_iter().enumerate();
                sets.filter_map(|(at, set)| Some((set?, path.index(at)))).collect()
            }
        };
        let (mut round, mut after_phase) = (Vec::new(), Vec::new());
        for (mut set, path) in written {
            let after = set.shift_remove(AFTER).flatten().map(WrittenExpression::text);
            let here = path.key(AFTER);
            let is_round = match after {
                None => Some(false),
                Some(word) => self.word(&here, "moment", &word, &[("phase", false), ("round", true)]),
            };
            let Some(is_round) = is_round else { continue };
            let set = self.set(Some(set), &path, phase, is_round);
            if is_round { &mut round } else { &mut after_phase }.extend(set.iter().cloned());
        }
        [round.into(), after_phase.into()]
    }

    /// What `set` changes after a turn, a round or a phase; it may use what the phase itself came to.
    pub(super) fn set(
        &mut self,
        written: Option<IndexMap<String, Option<WrittenExpression>>>,
        path: &Path,
        phase: PhaseId,
        in_round: bool,
    ) -> Arc<[Assignment]> {
        let Some(written) = written else { return Arc::default() };
        let mut written = written;
        let each = written.shift_remove(EACH).flatten();
        if written.is_empty() {
            self.unused(path, "nothing is set here", "remove it, or write e.g. `{ pot: pot + 1 }`");
        }
        let end = PhaseId(phase.0 + 1);
        let more = if in_round { ROUND_NAMES } else { &[] };
        let each = each.and_then(|each| self.expression(each, path.key(EACH), end, more));
        let more = match (&each, in_round) {
            (None, _) => more,
            (Some(_), true) => &["me", "round", "rounds"],
            (Some(_), false) => &["me"],
        };
        let mut set = Vec::new();
        for (name, value) in written {
            let path = path.key(name.clone());
            let initial = self.names.initial.get(&name);
            if each.is_some() && initial.is_some_and(|value| !value.is_object() && !value.is_null()) {
                let message = format!("`{name}` is no mapping by agent, so `each` can't change its entries");
                let span = self.tree.key(&path);
                let found = Diagnostic::error("type", path.to_string(), span, message);
                let help = format!("declare it as one, e.g. `state: {{ {name}: {{ ann: 0, ben: 0 }} }}`");
                self.push(found.help(help));
                continue;
            }
            if !self.names.state.contains(&name) && !self.is_open(&["state"]) {
                let span = self.tree.key(&path);
                let message = format!("`{name}` is not in the state, so it can't be set");
                let known = self.names.state.iter().map(String::as_str);
                let help = self.suggest(&name, known);
                let help =
                    help.unwrap_or(format!("declare it with an initial value: `state: {{ {name}: … }}`"));
                self.push(Diagnostic::error("unknown-state", path.to_string(), span, message).help(help));
                continue;
            }
            let value = value.and_then(|value| self.expression(value, path, end, more));
            set.extend(value.map(|value| Assignment { name, each: each.clone(), value }));
        }
        set.into()
    }

    /// The intermediate value of this name: its index, and what it uses.
    pub(super) fn intermediate_named(&self, name: &str) -> Option<(usize, Option<Expression>)> {
        let index = self.names.lets.iter().position(|known| known.name == name)?;
        Some((index, self.names.lets[index].value.clone()))
    }
}
