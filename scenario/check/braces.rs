//! Templates in fields that are not read in the course of a run: names, titles, options, tools. They are
//! rendered before it, from variables alone; where nothing is rendered, they are rejected.

use super::Checker;
use crate::read::{Typed, typed};
use crate::schema::{Scalar, WrittenText, json_schema};
use crate::template::{self, Code, NAME, environment, is_code, plain_variables};
use greenroom_yaml::diagnostic::{Diagnostic, Severity};
use greenroom_yaml::{Path, PathStep};
use serde_json::Value;

/// The remedy for braces that are meant to stay.
const LITERAL: &str = "for braces that stay in the text, write `{{ '{{' }}`";

/// Types in the schema whose texts are templates or expressions: these have errors of their own.
const CODE: [&str; 7] = ["Template", "Text", "Expression", "Assertion", "Cast", "Count", "Pairs"];

/// Types in the schema in which all texts have errors of their own: options and fixed answers are rendered,
/// texts of the stage have placeholders, and a grammar has its own syntax.
const WHOLE: [&str; 3] = ["Answer", "Strategies", "Language"];

/// What a text with braces is.
enum Standing {
    /// A template, an expression, or something in a language of its own.
    Code,
    /// A value that templates can print.
    Value,
    /// A part of a JSON Schema.
    Schema,
    /// Anything else.
    Plain,
}

impl Checker {
    /// A text that is rendered before the run.
    pub(super) fn known_text(&mut self, text: Option<WrittenText>, path: &Path) -> Option<String> {
        text.map(|WrittenText(text)| self.rendered(text, path))
    }

    /// A value that is rendered before the run, if it is a text.
    pub(super) fn known_scalar(&mut self, scalar: Scalar, path: &Path) -> Value {
        match scalar {
            Scalar::Text(text) => self.rendered(text, path).into(),
            other => other.into(),
        }
    }

    fn rendered(&mut self, text: String, path: &Path) -> String {
        if !is_code(&text) || self.steps.are_used_up() {
            return text;
        }
        let names = match template::names(&text) {
            Ok(names) => names,
            Err(error) => {
                self.template_error(path, &text, error);
                self.found.last_mut().into_iter().for_each(with_literal);
                return text;
            }
        };
        let is_known = |name: &String| name == "variables" || self.names.variables.contains(name);
        let unknown: Vec<String> = names.into_iter().filter(|name| !is_known(name)).collect();
        for name in &unknown {
            self.unknown_before(path, &text, name);
        }
        if !unknown.is_empty() {
            return text;
        }
        self.steps.spend(text.len() as u64 / 2);
        let values = &self.names.values;
        let render = || Ok(environment().template(NAME, &text)?.render(plain_variables(values))?);
        let rendered = self.steps.count(render);
        if self.steps.are_used_up() {
            self.too_many_steps(path);
        }
        rendered.unwrap_or_else(|error| {
            self.template_error(path, &text, error);
            text
        })
    }

    /// A name in a text that is not known before the run.
    fn unknown_before(&mut self, path: &Path, text: &str, name: &str) {
        if self.is_open(&["variables"]) {
            return;
        }
        let line = template::line_of(&Code::of(text), text, name);
        let known = self.names.variables.clone();
        let help = self.suggest(name, known.iter().map(String::as_str));
        let help = help.unwrap_or_else(|| "declare it under `variables:`".into());
        let message =
            format!("`{name}` is not a variable: this text is rendered before the run, from variables alone");
        self.error_at("undefined-variable", path, (line, name), message).help = Some(help);
        self.found.last_mut().into_iter().for_each(with_literal);
    }

    /// Rejects templates where nothing is rendered; warns of those in values, which are printed as they are.
    pub(super) fn unrendered(&mut self) {
        let texts: Vec<(Path, String)> = self.tree.texts().filter(|(_, text)| is_code(text)).collect();
        for (path, text) in texts {
            let span = self.tree.value(&path);
            let overlaps = |found: &Diagnostic| {
                found.severity == Severity::Error
                    && found.span.file == span.file
                    && found.span.start <= span.end
                    && span.start <= found.span.end
            };
            if self.found.iter().any(overlaps) {
                continue;
            }
            let field = path.0.iter().rev().find_map(|step| match step {
                PathStep::Key(key) => Some(key.clone()),
                PathStep::Index(_) => None,
            });
            let field = field.unwrap_or_default();
            let found = match self.standing(&path, &text) {
                Standing::Code => continue,
                Standing::Value => {
                    let message =
                        format!("the braces in `{field}` stay as they are: a value is printed, not rendered");
                    let help =
                        "put the template into the text that uses it, or compute the value under `let`";
                    Diagnostic::warning("plain-text", path.to_string(), span, message).help(help)
                }
                Standing::Schema => {
                    let message = "a schema can't use templates".to_string();
                    let help =
                        "write the text itself; the `prompt` or `ask` can say what depends on variables";
                    Diagnostic::error("template", path.to_string(), span, message).help(help)
                }
                Standing::Plain => {
                    let message = format!("`{field}` can't use templates: nothing is rendered here");
                    let help = if path.0.first() == Some(&PathStep::Key("models".into())) {
                        "write the value itself; `--model NAME=…` and `--sweep model.NAME=…` replace a model"
                    } else {
                        "write the value itself"
                    };
                    Diagnostic::error("template", path.to_string(), span, message).help(help)
                }
            };
            self.push(found);
        }
    }

    fn standing(&self, path: &Path, text: &str) -> Standing {
        let is_computed = path.0.len() == 2 && super::state::code_of(text).is_some();
        if path.0.first().and_then(PathStep::as_key) == Some("state") && is_computed {
            return Standing::Code;
        }
        if let Some("variables" | "state") = path.0.first().and_then(PathStep::as_key) {
            return Standing::Value;
        }
        let Typed { declared, way, .. } = typed(&self.tree, &path.0);
        let is_schema = |declared: &&Value| schemas().iter().any(|schema| std::ptr::eq(*schema, *declared));
        if way.iter().any(is_schema) {
            return schema(path, text);
        }
        let is_code = way.iter().any(|around| is_of(around, &WHOLE)) || is_of(declared, &CODE);
        if is_code { Standing::Code } else { Standing::Plain }
    }
}

/// The fields that hold a JSON Schema, as they are declared.
fn schemas() -> [&'static Value; 2] {
    let types = &json_schema().as_value()["$defs"];
    [&types["LongAnswer"]["properties"]["schema"], &types["LongTool"]["properties"]["arguments"]]
}

/// True of the declaration of a field with one of these types.
fn is_of(declared: &Value, types: &[&str]) -> bool {
    let forms = declared["anyOf"].as_array().map_or(&[][..], Vec::as_slice).iter().chain([declared]);
    let mut names = forms.filter_map(|form| form["$ref"].as_str()?.rsplit('/').next());
    names.any(|name| types.contains(&name))
}

/// A text in a schema: a pattern and braces that are not a template's are left alone.
fn schema(path: &Path, text: &str) -> Standing {
    let is_template =
        (text.contains("{{") && text.contains("}}")) || (text.contains("{%") && text.contains("%}"));
    let is_pattern = path.0.last().and_then(PathStep::as_key) == Some("pattern");
    if is_pattern || !is_template { Standing::Code } else { Standing::Schema }
}

fn with_literal(found: &mut Diagnostic) {
    found.help = found.help.take().map(|help| format!("{help}; {LITERAL}"));
}
