//! What names stand for in templates and expressions: variables, agents, phases and what they came to.

use super::{Expression, Mistake, NAME, TemplateError, environment};
use crate::scenario::results::{Line, Said, payoffs, results};
use crate::scenario::{Agent, AgentId, Phase, PhaseId, Scenario};
use minijinja::value::{Object, ObjectRepr, Serde, Value};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

/// The transcript of a phase as one agent tells it: own lines as "You:", one line each; not what was whispered to
/// others, no ballots.
pub fn told(scenario: &Scenario, lines: &[Line], perspective: AgentId) -> String {
    let line = |line: &Line| match line.speaker == perspective {
        true => format!("You: {}", line.text),
        false => format!("{}: {}", scenario.agent(line.speaker).name, line.text),
    };
    let heard = lines.iter().filter(|line| line.known_to(perspective) && !line.text.is_empty());
    let told: Vec<String> = heard.map(line).collect();
    if told.is_empty() { "(no messages yet)".to_string() } else { told.join("\n") }
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
    context.extend(played(scenario, &scenario.phases[..phase.0], said)?);
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
    Ok(environment().template(NAME, template)?.render(context)?)
}

/// The value of an expression.
///
/// # Errors
/// What minijinja found.
pub fn evaluate(
    scenario: &Arc<Scenario>,
    expression: &Expression,
    said: &Arc<Said>,
) -> Result<serde_json::Value, TemplateError> {
    evaluate_with(scenario, expression, said, [])
}

/// The value of an expression that may use more names.
///
/// # Errors
/// What minijinja found.
pub fn evaluate_with<'a>(
    scenario: &Arc<Scenario>,
    expression: &Expression,
    said: &Arc<Said>,
    names: impl IntoIterator<Item = (&'a str, serde_json::Value)>,
) -> Result<serde_json::Value, TemplateError> {
    let mut context = variables(scenario);
    context.extend(played(scenario, &scenario.phases, said)?);
    context.extend(names.into_iter().map(|(name, value)| (name.to_string(), plain(value))));
    let value = environment().expression(&expression.text)?.value(context)?;
    if value.is_undefined() {
        let message = format!("`{}` has no value: it names something that there is not", expression.text);
        return Err(TemplateError { kind: Mistake::Other, message, line: 1 });
    }
    let message = |error| format!("`{}` has no plain value: {error}", expression.text);
    serde_json::to_value(&value).map_err(|error| TemplateError {
        kind: Mistake::Other,
        message: message(error),
        line: 1,
    })
}

/// Tells whether an expression holds: null, false, 0 and what is empty do not.
///
/// # Errors
/// What minijinja found.
pub fn holds(
    scenario: &Arc<Scenario>,
    expression: &Expression,
    said: &Arc<Said>,
) -> Result<bool, TemplateError> {
    holds_with(scenario, expression, said, [])
}

/// Tells whether an expression that may use more names holds.
///
/// # Errors
/// What minijinja found.
pub fn holds_with<'a>(
    scenario: &Arc<Scenario>,
    expression: &Expression,
    said: &Arc<Said>,
    names: impl IntoIterator<Item = (&'a str, serde_json::Value)>,
) -> Result<bool, TemplateError> {
    Ok(plain(evaluate_with(scenario, expression, said, names)?).is_true())
}

/// Phases by name, all of them as `phases`, and `payoffs`: what results are read by.
fn played(
    scenario: &Arc<Scenario>,
    phases: &[Phase],
    said: &Arc<Said>,
) -> Result<BTreeMap<String, Value>, TemplateError> {
    let object = |id: usize| PhaseObject::new(PhaseId(id), scenario, said);
    let named = |(id, phase): (usize, &Phase)| (phase.name.clone(), Value::from_object(object(id)));
    let mut context: BTreeMap<String, Value> = phases.iter().enumerate().map(named).collect();
    context.insert("phases".into(), Value::from_object(Named(context.clone())));
    let known = scenario.payoff.as_ref().is_some_and(|payoff| said.0.contains_key(&payoff.phase));
    if let Some(payoffs) = known.then(|| payoffs(scenario, said)).transpose()?.flatten() {
        let total = |(key, total): (String, Option<f64>)| (key, total.map_or(Value::from(()), number));
        let totals: BTreeMap<String, Value> = payoffs.totals.into_iter().map(total).collect();
        context.insert("payoffs".into(), Value::from(totals));
    } else if let Some(payoff) = &scenario.payoff {
        let none = payoff.players.iter().map(|player| (scenario.agent(*player).key.clone(), ()));
        context.insert("payoffs".into(), plain(none.collect::<BTreeMap<_, _>>()));
    }
    Ok(context)
}

/// Renders a system text: variables and constants of the agent, nothing that changes within a run.
///
/// # Errors
/// What minijinja found, with the line.
pub fn render_system(scenario: &Scenario, template: &str, agent: AgentId) -> Result<String, TemplateError> {
    Ok(environment().template(NAME, template)?.render(constants(scenario, agent))?)
}

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
    ]);
    context.extend(variables(scenario));
    context
}

fn variables(scenario: &Scenario) -> BTreeMap<String, Value> {
    let one = |(name, value): (&String, &serde_json::Value)| (name.clone(), Value::from(Serde(value)));
    let mut context: BTreeMap<String, Value> = scenario.variables.iter().map(one).collect();
    context.insert("variables".to_string(), Value::from(Serde(&scenario.variables)));
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

/// An earlier phase in a template: `messages[agent]`, `name`, `label`. What it came to is worked out once, however often a
/// loop asks for it.
#[derive(Debug)]
struct PhaseObject {
    id: PhaseId,
    scenario: Arc<Scenario>,
    said: Arc<Said>,
    messages: OnceLock<Value>,
    results: OnceLock<Value>,
}

impl PhaseObject {
    fn new(id: PhaseId, scenario: &Arc<Scenario>, said: &Arc<Said>) -> Self {
        let (scenario, said) = (scenario.clone(), said.clone());
        Self { id, scenario, said, messages: OnceLock::new(), results: OnceLock::new() }
    }
}

/// What was said in an earlier phase, by perspective.
#[derive(Debug)]
struct Messages {
    id: PhaseId,
    scenario: Arc<Scenario>,
    said: Arc<Said>,
    told: Mutex<BTreeMap<AgentId, Value>>,
}

impl Object for PhaseObject {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let phase = self.scenario.phase(self.id);
        match key.as_str()? {
            "name" => Some(phase.name.clone().into()),
            "label" => Some(phase.label.clone().into()),
            "messages" => {
                let messages = || {
                    let (id, scenario, said) = (self.id, self.scenario.clone(), self.said.clone());
                    Value::from_object(Messages { id, scenario, said, told: Mutex::default() })
                };
                Some(self.messages.get_or_init(messages).clone())
            }
            field => {
                let results = || plain(results(&self.scenario, self.id, &self.said));
                self.results.get_or_init(results).get_attr(field).ok().filter(|value| !value.is_undefined())
            }
        }
    }
}

/// Phases by name, looked up only.
#[derive(Debug)]
struct Named(BTreeMap<String, Value>);

impl Object for Named {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_str()?).cloned()
    }
}

impl Object for Messages {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let agent = match key.downcast_object_ref::<AgentObject>() {
            Some(agent) => agent.id,
            None => self.scenario.agent_by_key(key.as_str()?)?,
        };
        let text = || told(&self.scenario, self.said.lines(self.id), agent).into();
        Some(self.told.lock().ok()?.entry(agent).or_insert_with(text).clone())
    }
}

fn plain(value: impl serde::Serialize) -> Value {
    Value::from(Serde(value))
}

/// Whole numbers print without a point.
fn number(value: f64) -> Value {
    let whole = value.fract() == 0.0 && value.abs() < 1e15;
    if whole { Value::from(value as i64) } else { Value::from(value) }
}
