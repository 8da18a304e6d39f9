//! Checks forms of replies: the schema or grammar itself, what it can't be combined with, and that fixed
//! answers are in it.

use super::Checker;
use super::strategies::placed;
use crate::schema::LongAnswer;
use crate::{Agent, AgentId, Form, MAX_AGAIN, Phase, Strategy, Topology};
use greenroom_grammar::{Grammar, Relaxed};
use greenroom_yaml::Path;
use greenroom_yaml::diagnostic::Diagnostic;
use serde_json::Value;
use std::sync::Arc;

impl Checker {
    /// The form that an `answer` at a path describes, which is not a choice.
    pub(super) fn form(&mut self, written: LongAnswer, path: &Path) -> Option<Arc<Form>> {
        let LongAnswer { schema, show, regex, lark, .. } = written;
        let (grammar, field) = match (schema, regex, lark) {
            (Some(schema), ..) => (Grammar::json_schema(&schema), "schema"),
            (_, Some(regex), _) => (Grammar::Regex(regex), "regex"),
            (.., Some(lark)) => (Grammar::Lark(lark), "lark"),
            (None, None, None) => return None,
        };
        let (path, is_shown) = (path.key(field), field == "schema" && show.unwrap_or(true));
        let relaxed = self.relaxed(&grammar, &path)?;
        let then = format!("a reply that breaks it is asked for again, at most {MAX_AGAIN} times");
        self.left_out(&relaxed, &path, &then);
        let form = Form { path, grammar, relaxed, is_shown };
        // A value of null is that of a reply which is not in its form.
        if form.kind() == "schema" && form.relaxed.accepts("null").is_ok() {
            let message = "this schema allows `null`, which is reserved for invalid replies";
            self.error("bad-grammar", &form.path, message).help =
                Some("give the type of the reply, e.g. `type: object`".into());
            return None;
        }
        Some(Arc::new(form))
    }

    /// What can be enforced of a grammar; an error if it can't be used at all.
    fn relaxed(&mut self, grammar: &Grammar, path: &Path) -> Option<Relaxed> {
        let relaxed = grammar.relaxed().and_then(|relaxed| relaxed.grammar.check().map(|()| relaxed));
        let error = match relaxed {
            Ok(relaxed) => return Some(relaxed),
            Err(error) => error,
        };
        let (what, help) = match grammar {
            Grammar::JsonSchema(_) => ("schema", "`docs/patterns.md` lists the supported keywords"),
            Grammar::Lark(_) => {
                ("grammar", "a Lark grammar begins at the rule `start`, e.g. `start: \"yes\" | \"no\"`")
            }
            _ => (
                "regular expression",
                "it must match the whole reply, without `^` and `$`; look-around and back references are not \
                 supported",
            ),
        };
        self.error("bad-grammar", path, format!("this {what} can't be used: {error}")).help =
            Some(help.into());
        None
    }

    /// Warns of what can't be enforced of a schema while a text is written.
    pub(super) fn left_out(&mut self, relaxed: &Relaxed, path: &Path, then: &str) {
        // Integers are followed exactly; in alternatives of objects they are checked afterwards.
        const NUMBERS: &[&str] =
            &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "const", "enum"];
        for left in relaxed.left.iter().filter(|left| !NUMBERS.contains(&left.keyword.as_str())) {
            let (code, message) = match left.is_checked {
                true => (
                    "checked-afterwards",
                    format!(
                        "{left} can't be enforced while the text is written: it is checked afterwards, and \
                         {then}"
                    ),
                ),
                false => ("no-effect", format!("{left} has no effect: it can't be enforced")),
            };
            let help = match left.keyword.as_str() {
                "oneOf" => {
                    "its alternatives may overlap: use `anyOf`, or give each a required property whose \
                     `const` tells it from the others"
                }
                _ => "`docs/patterns.md` lists the keywords that are enforced while a text is written",
            };
            let span = self.tree.key(path);
            self.push(Diagnostic::warning(code, path.to_string(), span, message).help(help));
        }
    }

    /// Rejects rules whose answers are not in the requested form: each of these turns would be invalid.
    pub(super) fn answers_in_form(&mut self, agents: &[Agent], phases: &[Phase]) {
        for (id, agent) in agents.iter().enumerate() {
            for (path, played, part) in placed(agent, phases) {
                let (path, answer) = match part {
                    // The plan determines which of its texts is the reply to which turn.
                    Strategy::Human | Strategy::List(_) | Strategy::Script(_) | Strategy::ByPhase(_) => {
                        continue;
                    }
                    Strategy::Always(text) => (path.key("always"), text.as_str()),
                    Strategy::TitForTat | Strategy::Grim | Strategy::Random(_) => (path, ""),
                };
                let asked =
                    |phase: &&Phase| Some((phase.name.clone(), forms_of(phase, AgentId(id)).pop()?.clone()));
                let Some((phase, form)) = played.iter().find_map(asked) else { continue };
                let place = format!("replies in `{phase}`");
                self.fits_form(agent, &path, answer, &place, &form);
            }
        }
    }

    /// Rejects an answer that is not in a form.
    pub(super) fn fits_form(&mut self, agent: &Agent, path: &Path, answer: &str, place: &str, form: &Form) {
        let Err(reason) = form.read(answer) else { return };
        let what = if answer.is_empty() { "an empty answer".into() } else { format!("`{answer}`") };
        let message = format!(
            "{what} does not fit the form of {place}, and `{}` can give no other answer: {reason}",
            agent.key
        );
        let help = match &form.grammar {
            Grammar::JsonSchema(_) => match form.example() {
                Value::Null => "write keys in the order of the schema's `properties`".to_string(),
                example => format!("e.g. `{example}`; write keys in the order of the schema's `properties`"),
            },
            _ => "write an answer that the grammar allows, as `always` or `list`".to_string(),
        };
        self.error("bad-value", path, message).help = Some(help);
    }
}

/// The forms of an agent's replies in a phase.
fn forms_of(phase: &Phase, agent: AgentId) -> Vec<&Arc<Form>> {
    let shared = phase.form.as_ref();
    match &phase.topology {
        Topology::Script(turns) => turns
            .iter()
            .filter(|turn| turn.agent == agent)
            .filter_map(|turn| turn.form.as_ref().or(shared.filter(|_| turn.choice.is_none())))
            .collect(),
        _ => shared.into_iter().filter(|_| phase.speakers().contains(&agent)).collect(),
    }
}
