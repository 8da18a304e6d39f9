//! The values of names in templates and expressions: variables, agents, phases and their results.

use super::results::{Results, Said, Utterance, payoffs, results};
use super::template::{
    AgentObject, Expression, NAME, TemplateError, constants, environment, evaluate_in, number, plain,
    variables,
};
use super::{AgentId, Phase, PhaseId, Scenario};
use minijinja::value::{Enumerator, Object, Value};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

/// The transcript of a phase as one agent tells it: own lines as "You:", one line each; not what was whispered to
/// others, no ballots.
pub fn told(scenario: &Scenario, lines: &[Utterance], perspective: AgentId) -> String {
    let line = |line: &Utterance| {
        if line.speaker == perspective {
            format!("You: {}", line.text)
        } else {
            format!("{}: {}", scenario.agent(line.speaker).name, line.text)
        }
    };
    let heard = lines.iter().filter(|line| line.known_to(perspective) && !line.text.is_empty());
    let told: Vec<String> = heard.map(line).collect();
    if told.is_empty() { "(no messages yet)".to_string() } else { told.join("\n") }
}

/// Reading of a text of the stage: where, and by whom.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// The phase.
    pub phase: PhaseId,
    /// The round, for texts of rounds: they may use what the phase itself has come to. None as the phase opens.
    pub round: Option<usize>,
    /// The reader.
    pub agent: AgentId,
}

/// Renders a text of the stage for one reader.
///
/// # Errors
/// The error that minijinja found, with the line.
pub fn render_stage(
    scenario: &Arc<Scenario>,
    template: &str,
    reading: Reading,
    said: &Arc<Said>,
) -> Result<String, TemplateError> {
    let Reading { phase, round, agent } = reading;
    let mut context = constants(scenario, agent);
    let n_known = phase.0 + usize::from(round.is_some());
    context.extend(played(scenario, &scenario.phases[..n_known], said)?);
    let here = scenario.phase(phase);
    let names = round.into_iter().flat_map(|round| round_names(scenario, phase, round));
    context.extend(names.map(|(name, value)| (name.to_string(), plain(value))));
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

/// What [`ROUND_NAMES`](super::template::ROUND_NAMES) stand for in a round of a phase; a scenario's own names come first.
pub fn round_names(
    scenario: &Scenario,
    phase: PhaseId,
    round: usize,
) -> impl Iterator<Item = (&'static str, serde_json::Value)> {
    let names = [("round", round), ("rounds", scenario.phase(phase).rounds.max(round))];
    let is_free = |name: &str| {
        let is_other = scenario.variables.contains_key(name) || scenario.agent_by_key(name).is_some();
        !is_other && scenario.phase_by_name(name).is_none()
    };
    names.into_iter().filter(move |(name, _)| is_free(name)).map(|(name, n)| (name, n.into()))
}

/// The value of an expression.
///
/// # Errors
/// The error that minijinja found.
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
/// The error that minijinja found.
pub fn evaluate_with<'a>(
    scenario: &Arc<Scenario>,
    expression: &Expression,
    said: &Arc<Said>,
    names: impl IntoIterator<Item = (&'a str, serde_json::Value)>,
) -> Result<serde_json::Value, TemplateError> {
    let mut context = variables(scenario);
    context.extend(played(scenario, &scenario.phases, said)?);
    evaluate_in(context, expression, names)
}

/// True if an expression holds: null, false, 0 and what is empty do not.
///
/// # Errors
/// The error that minijinja found.
pub fn holds(
    scenario: &Arc<Scenario>,
    expression: &Expression,
    said: &Arc<Said>,
) -> Result<bool, TemplateError> {
    holds_with(scenario, expression, said, [])
}

/// True if an expression that may use more names holds.
///
/// # Errors
/// The error that minijinja found.
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
        context.insert("payoffs".into(), ByAgent::value(totals));
    } else if let Some(payoff) = &scenario.payoff {
        let none = payoff.players.iter().map(|player| (scenario.agent(*player).key.clone(), Value::from(())));
        context.insert("payoffs".into(), ByAgent::value(none.collect()));
    }
    Ok(context)
}

fn phase_constants(phase: &Phase) -> Value {
    let fields = [
        ("name", Value::from(phase.name.clone())),
        ("label", Value::from(phase.label.clone())),
        ("rounds", Value::from(phase.rounds)),
    ];
    Value::from(BTreeMap::from(fields))
}

/// An earlier phase in a template: `messages[agent]`, `name`, `label`. What it came to is worked out once, however often a
/// loop asks for it.
#[derive(Debug)]
struct PhaseObject {
    id: PhaseId,
    scenario: Arc<Scenario>,
    said: Arc<Said>,
    messages: OnceLock<Value>,
    results: OnceLock<BTreeMap<&'static str, Value>>,
}

impl PhaseObject {
    fn new(id: PhaseId, scenario: &Arc<Scenario>, said: &Arc<Said>) -> Self {
        let (scenario, said) = (scenario.clone(), said.clone());
        Self { id, scenario, said, messages: OnceLock::new(), results: OnceLock::new() }
    }
}

/// The transcript of an earlier phase, by perspective.
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
                let results = || shown(results(&self.scenario, self.id, &self.said));
                self.results.get_or_init(results).get(field).cloned()
            }
        }
    }
}

/// The results of a phase, field by field.
fn shown(results: Results) -> BTreeMap<&'static str, Value> {
    let Results {
        played,
        rounds,
        choices,
        history,
        votes,
        decision,
        tied,
        invalid,
        said,
        replies,
        reply_history,
    } = results;
    fn of_agents<T: serde::Serialize>(values: BTreeMap<String, T>) -> Value {
        ByAgent::value(values.into_iter().map(|(key, value)| (key, plain(value))).collect())
    }
    BTreeMap::from([
        ("played", played.into()),
        ("rounds", rounds.into()),
        ("choices", of_agents(choices)),
        ("history", of_agents(history)),
        ("votes", plain(votes)),
        ("decision", plain(decision)),
        ("tied", tied.into()),
        ("invalid", invalid.into()),
        ("said", of_agents(said)),
        ("replies", of_agents(replies)),
        ("reply_history", of_agents(reply_history)),
    ])
}

/// Values by agent: looked up by key, or by the agent itself.
#[derive(Debug)]
struct ByAgent(BTreeMap<String, Value>);

impl ByAgent {
    fn value(values: BTreeMap<String, Value>) -> Value {
        Value::from_object(Self(values))
    }
}

impl Object for ByAgent {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match key.downcast_object_ref::<AgentObject>() {
            Some(agent) => self.0.get(agent.key()).cloned(),
            None => self.0.get(key.as_str()?).cloned(),
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.keys().map(|key| Value::from(key.as_str())).collect())
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
