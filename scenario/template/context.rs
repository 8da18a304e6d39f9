//! Names whose meaning does not change within a run: variables, agents, the scenario.

use super::{ByKey, Expression, NAME, TemplateError, TemplateFault, environment};
use crate::{Agent, AgentId, Scenario};
use minijinja::value::{Object, ObjectRepr, Serde, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Renders a system text: variables and constants of the agent, nothing that changes within a run.
///
/// # Errors
/// The error that minijinja found, with the line.
pub fn render_system(scenario: &Scenario, template: &str, agent: AgentId) -> Result<String, TemplateError> {
    Ok(environment().template(NAME, template)?.render(constants(scenario, agent))?)
}

/// The value of an expression over variables and some more names.
///
/// # Errors
/// The error that minijinja found.
pub fn evaluate_alone<'a>(
    scenario: &Scenario,
    expression: &Expression,
    names: impl IntoIterator<Item = (&'a str, serde_json::Value)>,
) -> Result<serde_json::Value, TemplateError> {
    evaluate_in(variables(scenario), expression, names)
}

/// The value of an expression in a context, and with some more names.
pub(crate) fn evaluate_in<'a>(
    context: BTreeMap<String, Value>,
    expression: &Expression,
    names: impl IntoIterator<Item = (&'a str, serde_json::Value)>,
) -> Result<serde_json::Value, TemplateError> {
    let program = environment().expression(&expression.text)?;
    plain_value(&program.value(with_names(context, names))?, expression)
}

/// A name and its meaning.
type NamedValue<'a> = (&'a str, serde_json::Value);
/// The value of an expression.
type EvalResult = Result<serde_json::Value, TemplateError>;

/// An expression over variables that is compiled once, to be evaluated with several sets of more names.
///
/// # Errors
/// The error that minijinja found.
pub fn evaluator<'e>(
    scenario: &Scenario,
    expression: &'e Expression,
) -> Result<impl Fn(&[NamedValue<'_>]) -> EvalResult + 'e, TemplateError> {
    let (program, context) = (environment().expression(&expression.text)?, variables(scenario));
    Ok(move |names: &[NamedValue<'_>]| {
        plain_value(&program.value(with_names(context.clone(), names.iter().cloned()))?, expression)
    })
}

fn with_names<'a>(
    mut context: BTreeMap<String, Value>,
    names: impl IntoIterator<Item = (&'a str, serde_json::Value)>,
) -> BTreeMap<String, Value> {
    context.extend(names.into_iter().map(|(name, value)| (name.to_string(), plain(value))));
    context
}

fn plain_value(value: &Value, expression: &Expression) -> Result<serde_json::Value, TemplateError> {
    let failed = |message| TemplateError { kind: TemplateFault::Other, message, line: 1 };
    if value.is_undefined() {
        let text = &expression.text;
        return Err(failed(format!("`{text}` has no value: it is undefined")));
    }
    let mut value = serde_json::to_value(value)
        .map_err(|error| failed(format!("`{}` has no plain value: {error}", expression.text)))?;
    value.sort_all_objects();
    Ok(value)
}

pub(crate) fn constants(scenario: &Scenario, agent: AgentId) -> BTreeMap<String, Value> {
    let me = scenario.agent(agent);
    let agents =
        scenario.cast().map(|(id, a)| (a.key.clone(), Value::from_object(AgentObject::new(a, id.0))));
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

pub(crate) fn variables(scenario: &Scenario) -> BTreeMap<String, Value> {
    plain_variables(&scenario.variables)
}

pub(crate) fn plain_variables(variables: &BTreeMap<String, serde_json::Value>) -> BTreeMap<String, Value> {
    let one = |(name, value): (&String, &serde_json::Value)| (name.clone(), by_key(value));
    let mut context: BTreeMap<String, Value> = variables.iter().map(one).collect();
    context.insert("variables".to_string(), ByKey::value(context.clone()));
    context
}

/// An agent in a template: prints its display name, has `key`, `display_name`, `role`.
#[derive(Debug)]
pub(crate) struct AgentObject {
    pub(crate) id: AgentId,
    key: String,
    name: String,
    role: String,
    traits: Arc<BTreeMap<String, serde_json::Value>>,
}

impl AgentObject {
    pub(crate) fn new(agent: &Agent, id: usize) -> Self {
        let (key, name, role) = (agent.key.clone(), agent.name.clone(), agent.role.clone());
        Self { id: AgentId(id), key, name, role, traits: agent.traits.clone() }
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
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
            other => self.traits.get(other).map(by_key),
        }
    }

    fn render(self: &Arc<Self>, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

/// A value of a file or a reply: its mappings can be looked up by numbers and by agents, too.
pub(crate) fn by_key(value: &serde_json::Value) -> Value {
    match value {
        serde_json::Value::Object(fields) => {
            ByKey::value(fields.iter().map(|(key, value)| (key.clone(), by_key(value))).collect())
        }
        serde_json::Value::Array(items) => Value::from(items.iter().map(by_key).collect::<Vec<Value>>()),
        other => plain(other),
    }
}

pub(crate) fn plain(value: impl serde::Serialize) -> Value {
    Value::from(Serde(value))
}

/// Whole numbers print without a point.
pub(crate) fn number(value: f64) -> Value {
    let whole = value.fract() == 0.0 && value.abs() < 1e15;
    if whole { Value::from(value as i64) } else { Value::from(value) }
}
