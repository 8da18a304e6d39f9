//! Checks expressions and what they, like templates, name of phases and their results.

use super::{Checker, Names};
use crate::diagnostic::suggest;
use crate::scenario::PhaseId;
use crate::scenario::choice::text_of;
use crate::scenario::source::Path;
use crate::scenario::template::{EXPRESSION_NAMES, Expression, PHASE_FIELDS, expression_names};
use crate::scenario::{Assertion, template};
use indexmap::IndexMap;
use serde_yaml::Value;

impl Checker {
    /// An expression that may use what phases before `end` came to, and the names in `more`.
    pub(super) fn expression(
        &mut self,
        given: Value,
        path: Path,
        end: PhaseId,
        more: &[&str],
    ) -> Option<Expression> {
        let text = match serde_json::to_value(&given) {
            Ok(
                value @ (serde_json::Value::String(_)
                | serde_json::Value::Bool(_)
                | serde_json::Value::Number(_)),
            ) => text_of(&value),
            _ => {
                self.error("type", &path, "an expression is a text such as `vote.decision == \'yes\'`");
                return None;
            }
        };
        let names = match expression_names(&text) {
            Ok(names) => names,
            Err(error) => {
                let found = self.error("expression", &path, format!("not an expression: {}", error.message));
                found.help = Some("write it without `{{ }}`, e.g. `vote.decision == \'yes\'`".into());
                return None;
            }
        };
        let mut phases = Vec::new();
        let mut sound = true;
        for name in names {
            if let Some(phase) = self.names.phase(&name) {
                sound &= self.is_over(&path, 1, phase, end);
                phases.push(phase);
            } else if name == "phases" {
                phases.extend((0..end.0).map(PhaseId));
            } else if name == "payoffs" {
                sound &= self.payoff_is_over(&path, 1, end, &mut phases);
            } else if !EXPRESSION_NAMES.contains(&name.as_str())
                && !self.names.variables.contains(&name)
                && !more.contains(&name.as_str())
            {
                let known = self.names.variables.iter().map(String::as_str);
                let before = self.names.phases.iter().take(end.0).map(String::as_str);
                let known =
                    known.chain(before).chain(EXPRESSION_NAMES.iter().copied()).chain(more.iter().copied());
                let help = suggest(&name, known);
                self.error("undefined-variable", &path, format!("`{name}` is not defined here")).help = help;
                sound = false;
            }
        }
        sound &= self.fields(&path, &text, false);
        phases.sort_unstable();
        phases.dedup();
        sound.then_some(Expression { path, text, phases })
    }

    /// Refuses to use a phase that is not over by then.
    pub(super) fn is_over(&mut self, path: &Path, line: usize, phase: PhaseId, end: PhaseId) -> bool {
        if phase < end {
            return true;
        }
        let name = self.names.phases[phase.0].clone();
        let message = match self.names.phases.get(end.0).filter(|here| **here != name) {
            None => format!("`{name}` is this phase itself: nothing has been said in it when it opens"),
            Some(here) => format!("`{name}` is played after `{here}`: nothing has been said in it yet"),
        };
        self.error_in("forward-reference", path, line, message).help =
            Some("name only phases that stand earlier in the file".into());
        false
    }

    /// Refuses `payoffs` where there are none yet; adds the phase that they come from.
    pub(super) fn payoff_is_over(
        &mut self,
        path: &Path,
        line: usize,
        end: PhaseId,
        phases: &mut Vec<PhaseId>,
    ) -> bool {
        let Some(phase) = self.names.payoff else {
            let message = "`payoffs` is used, but the scenario has no `payoff`".to_string();
            self.error_in("undefined-variable", path, line, message).help =
                Some("add `payoff:` with the phase whose choices count".into());
            return false;
        };
        phases.push(phase);
        self.is_over(path, line, phase, end)
    }

    /// Checks `phase.field` and `phase.field.agent` in an expression, or in the braces of a template.
    pub(super) fn fields(&mut self, path: &Path, text: &str, is_template: bool) -> bool {
        let mut sound = true;
        let line_of = |at: usize| if is_template { text[..at].matches('\n').count() + 1 } else { 1 };
        let names = std::mem::take(&mut self.names);
        for (at, phase, field, key) in results_named(text, &names) {
            if is_template && !template::in_braces(text, at) {
                continue;
            }
            let known = PHASE_FIELDS.contains(&field);
            if !known {
                let message = format!("`{phase}` is a phase; it has no `{field}`");
                self.error_in("unknown-field", path, line_of(at), message).help =
                    suggest(field, PHASE_FIELDS.iter().copied());
                sound = false;
            }
            let by_agent = ["choices", "history", "said"].contains(&field);
            if let Some(key) = key.filter(|key| by_agent && known && !names.has_agent(key)) {
                let help = suggest(key, names.agents.iter().map(|agent| agent.key.as_str()));
                let message = format!("there is no agent `{key}`");
                self.error_in("unknown-agent", path, line_of(at), message).help = help;
                sound = false;
            }
        }
        self.names = names;
        sound
    }

    pub(super) fn outcomes(
        &mut self,
        written: IndexMap<String, Value>,
        path: &Path,
    ) -> Vec<(String, Expression)> {
        let end = PhaseId(self.names.phases.len());
        let mut outcomes = Vec::new();
        for (name, given) in written {
            let path = path.key(name.clone());
            if !super::is_identifier(&name) {
                self.error(
                    "bad-name",
                    &path,
                    format!("an outcome\'s name is letters, digits and `_`: `{name}`"),
                );
            }
            if let Some(expression) = self.expression(given, path, end, &["outcome"]) {
                outcomes.push((name, expression));
            }
        }
        outcomes
    }

    pub(super) fn assertions(
        &mut self,
        written: Vec<Value>,
        path: &Path,
        outcomes: &[(String, Expression)],
    ) -> Vec<Assertion> {
        let end = PhaseId(self.names.phases.len());
        let more: &[&str] = if outcomes.is_empty() { &[] } else { &["outcome"] };
        let mut assertions = Vec::new();
        for (at, given) in written.into_iter().enumerate() {
            let path = path.index(at);
            let (that, why, path) = match given {
                Value::Mapping(fields) => {
                    for key in
                        fields.keys().filter_map(Value::as_str).filter(|key| !["that", "why"].contains(key))
                    {
                        let span = self.spans.key(&path.key(key));
                        let message = format!("an assertion has no field `{key}`");
                        let found = crate::diagnostic::Diagnostic::error(
                            "unknown-key",
                            path.to_string(),
                            span,
                            message,
                        );
                        self.push(found).help = suggest(key, ["that", "why"]);
                    }
                    let why = fields.get("why").and_then(Value::as_str).map(str::to_string);
                    let Some(that) = fields.get("that") else {
                        self.error(
                            "missing",
                            &path,
                            "an assertion needs `that`: the expression which must hold",
                        );
                        continue;
                    };
                    (that.clone(), why, path.key("that"))
                }
                that => (that, None, path),
            };
            if let Some(that) = self.expression(that, path, end, more) {
                assertions.push(Assertion { that, why });
            }
        }
        assertions
    }
}

/// Each `phase.field` or `phase.field.key` of a text: byte, phase, field, key.
fn results_named<'a>(text: &'a str, names: &'a Names) -> Vec<(usize, &'a str, &'a str, Option<&'a str>)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for phase in names.phases.iter().filter(|phase| !phase.is_empty()) {
        for (at, _) in text.match_indices(phase.as_str()) {
            let starts =
                !text[..at].chars().next_back().is_some_and(|c| is_word(c) || matches!(c, '.' | '"' | '\''));
            let Some(rest) = text[at + phase.len()..].strip_prefix('.').filter(|_| starts) else { continue };
            let word = |text: &'a str| &text[..text.find(|c| !is_word(c)).unwrap_or(text.len())];
            let field = word(rest);
            let rest = &rest[field.len()..];
            let quoted = |quote: char| rest.strip_prefix('[').and_then(|rest| rest.strip_prefix(quote));
            let key = rest.strip_prefix('.').or_else(|| quoted('"')).or_else(|| quoted('\'')).map(word);
            if !field.is_empty() {
                found.push((at, phase.as_str(), field, key));
            }
        }
    }
    found
}
