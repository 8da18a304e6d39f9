//! From the file as written to a scenario that can be trusted: every reference resolved, every template
//! tried, and all that is wrong said at once with its place and a remedy.

mod cast;
mod fields;
mod phases;
mod texts;

use super::schema::{self, Written};
use super::source::{Path, Spans};
use super::{Agent, Phase, Scenario};
use crate::diagnostic::{Diagnostic, Report, Severity, Source, Span, suggest};
use serde_yaml::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Values from the command line that replace a scenario's variables.
pub type Overrides = Vec<(String, Value)>;

/// What became of a file: a scenario where it can be played, and everything there is to say about it.
#[derive(Debug)]
pub struct Loaded {
    /// The scenario, if there is no error.
    pub scenario: Option<Arc<Scenario>>,
    /// Errors and warnings.
    pub report: Report,
}

/// Reads and checks a scenario's text. `name` is what messages call the file.
pub fn load(name: &str, text: &str, overrides: &[(String, Value)]) -> Loaded {
    let source = Arc::new(Source { name: name.to_string(), text: text.to_string() });
    let (spans, mut found) = Spans::read(&source);
    let readable = !found.iter().any(|diagnostic| diagnostic.code == "yaml");
    let written = if readable { schema::read(&source, &spans, &mut found) } else { None };
    let mut checker = Checker { source: source.clone(), spans, found };
    let scenario = written.and_then(|written| checker.scenario(written, overrides));
    let mut diagnostics = checker.found;
    diagnostics.sort_by_key(|diagnostic| (diagnostic.span.start, diagnostic.severity));
    diagnostics.dedup();
    let report = Report { source, diagnostics };
    Loaded { scenario: scenario.filter(|_| report.n_errors() == 0), report }
}

/// `k=v` of `--set`, the value typed as YAML types it.
///
/// # Errors
/// In words, for the command line.
pub fn parse_override(text: &str) -> Result<(String, Value), String> {
    let (key, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    let value = serde_yaml::from_str(value).map_err(|error| format!("the value is not YAML: {error}"))?;
    Ok((key.trim().to_string(), value))
}

struct Checker {
    source: Arc<Source>,
    spans: Spans,
    found: Vec<Diagnostic>,
}

impl Checker {
    fn scenario(&mut self, written: Written, overrides: &[(String, Value)]) -> Option<Arc<Scenario>> {
        let top = Path::default();
        let id = self.id(written.id.as_deref());
        let variables = self.variables(written.variables.unwrap_or_default(), overrides);
        let (agents, systems) = self.agents(written.agents, &top.key("agents"));
        let phases = self.phases(written.phases, &agents, &top.key("phases"));
        self.not_yet(&top.key("outcome"), written.outcome.is_some());
        self.not_yet(&top.key("payoff"), written.payoff.is_some());
        self.one_meaning(&variables, &agents, &phases);
        let mut scenario = Scenario {
            title: written.title.unwrap_or_else(|| id.clone()),
            id,
            description: written.description.unwrap_or_default(),
            variables,
            agents,
            phases,
            source: self.source.clone(),
            spans: Spans::default(),
        };
        self.systems(&mut scenario, &systems);
        self.resolve_quotes(&mut scenario);
        self.heard(&scenario.phases);
        let scenario = self.try_openings(scenario);
        let mut scenario = Arc::into_inner(scenario)?;
        scenario.spans = std::mem::take(&mut self.spans);
        Some(Arc::new(scenario))
    }

    fn error(&mut self, code: &'static str, path: &Path, message: impl Into<String>) -> &mut Diagnostic {
        let span = self.spans.value(path);
        self.push(Diagnostic::error(code, path.to_string(), span, message))
    }

    fn push(&mut self, diagnostic: Diagnostic) -> &mut Diagnostic {
        let at = self.found.len();
        self.found.push(diagnostic);
        &mut self.found[at]
    }

    /// An error on a line of a text value.
    fn error_in(&mut self, code: &'static str, path: &Path, line: usize, message: String) -> &mut Diagnostic {
        let span = self.spans.text_line(&self.source, path, line);
        self.push(Diagnostic::error(code, path.to_string(), span, message))
    }

    /// A field that is understood and not executed yet is said to be so.
    fn not_yet(&mut self, path: &Path, given: bool) {
        if given {
            let span = self.spans.key(path);
            let message = format!("`{path}` is read, but not executed yet");
            let warning = Diagnostic::warning("not-executed", path.to_string(), span, message);
            self.push(warning.help("the run goes on as if the field were absent"));
        }
    }

    /// Looks a word up in a closed list.
    fn word<T: Copy>(&mut self, path: &Path, what: &str, given: &str, known: &[(&str, T)]) -> Option<T> {
        let wanted = given.trim();
        let hit = known.iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value);
        if hit.is_none() {
            let help = suggest(wanted, known.iter().map(|(name, _)| *name));
            self.error("unknown-value", path, format!("`{wanted}` is no {what}")).help = help;
        }
        hit
    }

    /// Templates name variables, agents and phases alike, so one name can't mean two of them.
    fn one_meaning(
        &mut self,
        variables: &BTreeMap<String, serde_json::Value>,
        agents: &[Agent],
        phases: &[Phase],
    ) {
        let mut seen: BTreeMap<String, (&str, Span)> = BTreeMap::new();
        let reserved = super::template::SYSTEM_NAMES.iter().chain(super::template::STAGE_NAMES);
        seen.extend(
            reserved.map(|name| (name.to_string(), ("a name that templates already have", Span::default()))),
        );
        let top = Path::default();
        let named = variables.keys().map(|k| (k.clone(), "a variable", top.key("variables").key(k.clone())));
        let agents = agents.iter().map(|a| (a.key.clone(), "an agent", top.key("agents").key(a.key.clone())));
        let phases = phases.iter().enumerate();
        let phases =
            phases.map(|(id, p)| (p.name.clone(), "a phase", top.key("phases").index(id).key("name")));
        let all: Vec<_> = named.chain(agents).chain(phases).collect();
        for (name, kind, path) in all {
            let span = if kind == "a phase" { self.spans.value(&path) } else { self.spans.key(&path) };
            match seen.get(&name) {
                // Two phases of one name have an error of their own.
                Some((other, _)) if *other == kind => {}
                Some((other, first)) => {
                    let message = format!("`{name}` is the name of {kind} and of {other}");
                    let mut found = Diagnostic::error("ambiguous-name", path.to_string(), span, message)
                        .help("templates could not tell them apart: rename one");
                    if first.end > 0 {
                        found = found.related(*first, "first here");
                    }
                    self.push(found);
                }
                None => {
                    seen.insert(name, (kind, span));
                }
            }
        }
    }

    fn has_errors(&self) -> bool {
        self.found.iter().any(|diagnostic| diagnostic.severity == Severity::Error)
    }
}

/// Letters, digits and `_`, not starting with a digit: what a template can name.
fn is_identifier(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.is_empty()
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}
