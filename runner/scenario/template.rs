//! minijinja as scenarios use it: what a template may name, and how the seeds' `${…}` becomes safe.
//!
//! Strict: an undefined name is an error. What a template printed is data and is never rendered again, so a
//! reply that holds `{{ }}` or `${ }` is only text. Rendering for a particular agent is in `prompt/`.

use super::source::Path;
use super::{Agent, AgentId, Phase, PhaseId, Scenario};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Object, ObjectRepr, Serde, Value};
use minijinja::{Environment, UndefinedBehavior};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Steps that one template may take before it is called endless.
const FUEL: u64 = 2_000_000;

/// A template of a scenario: where it stands and what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// Path of the field.
    pub path: Path,
    /// The text, `${…}` rewritten; ready for minijinja.
    pub text: String,
    /// Earlier phases whose messages it may quote.
    pub quotes: Vec<PhaseId>,
}

/// A quoted transcript in a template, found without rendering it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quote {
    /// Name of the phase.
    pub phase: String,
    /// Name of the agent, where it is written out.
    pub agent: Option<String>,
    /// One-based line in the template.
    pub line: usize,
}

/// Something said in a phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Who said it.
    pub speaker: AgentId,
    /// What others heard.
    pub text: String,
}

/// Everything said so far, by phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said(pub BTreeMap<PhaseId, Vec<Line>>);

/// A template's error: what, and on which of its lines.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TemplateError {
    /// What went wrong.
    pub message: String,
    /// One-based line in the template.
    pub line: usize,
}

impl From<minijinja::Error> for TemplateError {
    fn from(error: minijinja::Error) -> Self {
        let message = match error.detail() {
            Some(detail) => format!("{}: {detail}", error.kind()),
            None => error.kind().to_string(),
        };
        Self { message, line: error.line().unwrap_or(1) }
    }
}

/// The environment all scenario templates are parsed and rendered in.
pub fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().unwrap_or_default());
    env.set_fuel(Some(FUEL));
    env.set_debug(true);
    env
}

/// Names that a template uses and does not define itself.
///
/// # Errors
/// The template's syntax, with the line.
pub fn names(text: &str) -> Result<Vec<String>, TemplateError> {
    let env = environment();
    let template = env.template_from_str(text)?;
    let globals: Vec<&str> = env.globals().map(|(name, _)| name).collect();
    let undeclared = template.undeclared_variables(false);
    let mut names: Vec<String> =
        undeclared.into_iter().filter(|name| !globals.contains(&name.as_str())).collect();
    names.sort();
    Ok(names)
}

/// Line of a template on which a name first stands inside braces.
pub fn line_of(text: &str, name: &str) -> usize {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut places = text.match_indices(name).filter(|(at, _)| {
        let before = text[..*at].chars().next_back().is_some_and(|c| is_word(c) || c == '.');
        let after = text[at + name.len()..].chars().next().is_some_and(is_word);
        !before && !after && in_braces(text, *at)
    });
    places.next().map_or(1, |(at, _)| text[..at].matches('\n').count() + 1)
}

fn in_braces(text: &str, at: usize) -> bool {
    let open = text[..at].rfind("{{").max(text[..at].rfind("{%"));
    let close = text[..at].rfind("}}").max(text[..at].rfind("%}"));
    open.is_some_and(|open| close.is_none_or(|close| close < open))
}

/// Rewrites `${phase.messages[agent]}` into an expression; returns the quotes found in either syntax, and
/// the lines of other `${…}`, which stay as they are.
pub fn rewrite(text: &str) -> (String, Vec<Quote>, Vec<(usize, String)>) {
    let (mut out, mut quotes, mut odd) = (String::with_capacity(text.len()), Vec::new(), Vec::new());
    let mut rest = text;
    let line = |rest: &str| text[..text.len() - rest.len()].matches('\n').count() + 1;
    while let Some(at) = rest.find("${") {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let raw = out.rfind("{% raw %}").max(out.rfind("{%- raw %}"));
        let is_raw = raw.is_some_and(|raw| !out[raw..].contains("endraw"));
        match rest.find('}').map(|end| &rest[2..end]).filter(|inner| !inner.contains('\n')) {
            Some(inner) if !is_raw => {
                match seed_quote(inner) {
                    Some((phase, agent)) => {
                        out.push_str(&format!("{{{{ {phase}.messages[\"{agent}\"] }}}}"));
                        let (phase, agent) = (phase.to_string(), Some(agent.to_string()));
                        quotes.push(Quote { phase, agent, line: line(rest) });
                    }
                    None => {
                        odd.push((line(rest), inner.to_string()));
                        out.push_str(&rest[..inner.len() + 3]);
                    }
                }
                rest = &rest[inner.len() + 3..];
            }
            _ => {
                out.push_str("${");
                rest = &rest[2..];
            }
        }
    }
    out.push_str(rest);
    quotes.extend(braced_quotes(text));
    (out, quotes, odd)
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// `phase.messages[agent]`, as the seeds write it.
fn seed_quote(inner: &str) -> Option<(&str, &str)> {
    let (phase, rest) = inner.split_once(".messages[")?;
    let agent = rest.strip_suffix(']')?.trim().trim_matches(['"', '\'']);
    (is_name(phase) && is_name(agent)).then_some((phase, agent))
}

/// `{{ phase.messages["agent"] }}`; without quotes the key may be any expression.
fn braced_quotes(text: &str) -> Vec<Quote> {
    const MARK: &str = ".messages[";
    let places = text.match_indices(MARK).filter(|(at, _)| in_braces(text, *at));
    let quote = |(at, _): (usize, &str)| {
        let before = &text[..at];
        let tail = before.char_indices().rev().take_while(|(_, c)| c.is_alphanumeric() || *c == '_').last();
        let phase = &before[tail.map_or(at, |(start, _)| start)..];
        let key = text[at + MARK.len()..].split(']').next().unwrap_or("").trim();
        let quoted = key.len() > 1 && key.starts_with(['"', '\'']);
        let agent = quoted.then(|| key.trim_matches(['"', '\'']).to_string());
        let line = before.matches('\n').count() + 1;
        (!phase.is_empty()).then(|| Quote { phase: phase.to_string(), agent, line })
    };
    places.filter_map(quote).collect()
}

/// The transcript of a phase as one agent tells it: own lines as "You:", one line each.
pub fn told(scenario: &Scenario, lines: &[Line], perspective: AgentId) -> String {
    if lines.is_empty() {
        return "(no messages yet)".to_string();
    }
    let line = |line: &Line| match line.speaker == perspective {
        true => format!("You: {}", line.text),
        false => format!("{}: {}", scenario.agent(line.speaker).name, line.text),
    };
    lines.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Renders a stage text for one agent at the opening of a phase.
///
/// # Errors
/// What minijinja found, with the line.
pub fn render_stage(
    scenario: &Arc<Scenario>,
    template: &str,
    phase: PhaseId,
    agent: AgentId,
    said: &Arc<Said>,
) -> Result<String, TemplateError> {
    let mut context = constants(scenario, agent);
    let quotable =
        |id: usize| PhaseObject { id: PhaseId(id), scenario: scenario.clone(), said: said.clone() };
    let mut phases = BTreeMap::new();
    for (id, earlier) in scenario.phases.iter().enumerate().take(phase.0) {
        context.insert(earlier.name.clone(), Value::from_object(quotable(id)));
        phases.insert(earlier.name.clone(), Value::from_object(quotable(id)));
    }
    context.insert("phases".into(), Value::from(phases));
    let here = scenario.phase(phase);
    context.insert("phase".into(), phase_constants(here));
    for (key, other) in scenario.agents.iter().enumerate().map(|(id, a)| (&a.key, AgentObject::new(a, id))) {
        context.insert(key.clone(), Value::from_object(other));
    }
    let cast = |include: &dyn Fn(AgentId) -> bool| -> Value {
        let listed = here.agents.iter().filter(|id| include(**id));
        listed.map(|id| Value::from_object(AgentObject::new(scenario.agent(*id), id.0))).collect()
    };
    context.insert("cast".into(), cast(&|_| true));
    context.insert("others".into(), cast(&|id| id != agent));
    Ok(environment().render_str(template, context)?)
}

/// Renders a system text: variables and constants of the agent, nothing that changes within a run.
///
/// # Errors
/// What minijinja found, with the line.
pub fn render_system(scenario: &Scenario, template: &str, agent: AgentId) -> Result<String, TemplateError> {
    Ok(environment().render_str(template, constants(scenario, agent))?)
}

/// Names that a system text may use beside the variables.
pub const SYSTEM_NAMES: &[&str] = &["me", "agents", "scenario", "variables", "display_name", "role"];

/// Names that only a stage text may use, beside agents and earlier phases.
pub const STAGE_NAMES: &[&str] = &["phase", "phases", "cast", "others"];

fn constants(scenario: &Scenario, agent: AgentId) -> BTreeMap<String, Value> {
    let me = scenario.agent(agent);
    let agents = scenario.agents.iter().enumerate();
    let agents = agents.map(|(id, a)| (a.key.clone(), Value::from_object(AgentObject::new(a, id))));
    let agents: BTreeMap<String, Value> = agents.collect();
    let about = [("id", &scenario.id), ("title", &scenario.title), ("description", &scenario.description)];
    let about = about.map(|(name, text)| (name, Value::from(text.as_str())));
    let mut context = BTreeMap::from([
        ("me".to_string(), Value::from_object(AgentObject::new(me, agent.0))),
        ("display_name".to_string(), Value::from(me.name.clone())),
        ("role".to_string(), Value::from(me.role.clone())),
        ("agents".to_string(), Value::from(agents)),
        ("scenario".to_string(), Value::from(BTreeMap::from(about))),
        ("variables".to_string(), Value::from(Serde(&scenario.variables))),
    ]);
    for (name, value) in &scenario.variables {
        context.insert(name.clone(), Value::from(Serde(value)));
    }
    context
}

fn phase_constants(phase: &Phase) -> Value {
    let fields = [
        ("name", Value::from(phase.name.clone())),
        ("label", Value::from(phase.label.clone())),
        ("rounds", Value::from(phase.rounds)),
    ];
    Value::from(BTreeMap::from(fields))
}

/// An agent in a template: prints its display name, has `key`, `display_name`, `role`.
#[derive(Debug)]
struct AgentObject {
    id: AgentId,
    key: String,
    name: String,
    role: String,
}

impl AgentObject {
    fn new(agent: &Agent, id: usize) -> Self {
        let (key, name, role) = (agent.key.clone(), agent.name.clone(), agent.role.clone());
        Self { id: AgentId(id), key, name, role }
    }
}

impl Object for AgentObject {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match key.as_str()? {
            "key" => Some(self.key.clone().into()),
            "display_name" | "name" => Some(self.name.clone().into()),
            "role" => Some(self.role.clone().into()),
            _ => None,
        }
    }

    fn render(self: &Arc<Self>, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

/// An earlier phase in a template: `messages[agent]`, `name`, `label`.
#[derive(Debug)]
struct PhaseObject {
    id: PhaseId,
    scenario: Arc<Scenario>,
    said: Arc<Said>,
}

/// What was said in an earlier phase, by perspective.
#[derive(Debug)]
struct Messages(PhaseObject);

impl Object for PhaseObject {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let phase = self.scenario.phase(self.id);
        match key.as_str()? {
            "name" => Some(phase.name.clone().into()),
            "label" => Some(phase.label.clone().into()),
            "messages" => {
                let (scenario, said) = (self.scenario.clone(), self.said.clone());
                Some(Value::from_object(Messages(PhaseObject { id: self.id, scenario, said })))
            }
            _ => None,
        }
    }
}

impl Object for Messages {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let PhaseObject { id, scenario, said } = &self.0;
        let agent = match key.downcast_object_ref::<AgentObject>() {
            Some(agent) => agent.id,
            None => scenario.agent_by_key(key.as_str()?)?,
        };
        let lines = said.0.get(id).map(Vec::as_slice).unwrap_or_default();
        Some(told(scenario, lines, agent).into())
    }
}
