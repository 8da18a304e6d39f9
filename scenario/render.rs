//! The values of names in templates and expressions: variables, agents, phases and their results.

use super::chance::{DRAWS, Draws};
use super::language::Text;
use super::results::{History, PhaseResults, Utterance, payoffs};
use super::template::{
    AgentObject, ByKey, Expression, NAME, OUTER, Scope, Template, TemplateError, by_key, constants,
    environment, evaluate_in, number, plain, variables,
};
use super::{AgentId, PassId, Path, Phase, PhaseId, Scenario};
use minijinja::value::{Object, Value};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

/// The transcript of a phase as one agent tells it: own lines as "You:", one line each; not what was
/// whispered to others, no ballots.
pub fn retell(scenario: &Scenario, lines: &[Utterance], perspective: AgentId) -> String {
    let line = |line: &Utterance| {
        if line.speaker == perspective {
            format!("{}: {}", scenario.language.text(Text::You), line.text)
        } else {
            format!("{}: {}", scenario.agent(line.speaker).name, line.text)
        }
    };
    let heard = lines.iter().filter(|line| line.known_to(perspective) && !line.text.is_empty());
    let retold: Vec<String> = heard.map(line).collect();
    if retold.is_empty() { scenario.language.text(Text::NoMessages).to_string() } else { retold.join("\n") }
}

/// Reading of a text of the stage: where, and by whom.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// The phase.
    pub phase: PhaseId,
    /// The round, for texts of rounds: they may use what the phase itself has come to. None as the phase
    /// opens.
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
    template: &Template,
    reading: Reading,
    said: &Arc<History>,
) -> Result<String, TemplateError> {
    let Reading { phase, round, agent } = reading;
    let mut context = constants(scenario, agent);
    context.extend(stated(said));
    let n_known = phase.0 + usize::from(round.is_some());
    context.extend(played(scenario, Some(phase), n_known, said)?);
    let here = scenario.phase(phase);
    let of_round = round.into_iter().flat_map(|round| round_names(scenario, phase, round));
    let of_round = of_round.map(|(name, value)| (name as &str, value));
    let names: Vec<(&str, serde_json::Value)> = of_round.chain(pass_names(scenario, here.pass)).collect();
    context.extend(names.into_iter().map(|(name, value)| (name.to_string(), plain(value))));
    context.insert("phase".into(), phase_constants(here));
    for (id, other) in scenario.cast() {
        context.insert(other.key.clone(), Value::from_object(AgentObject::new(other, id.0)));
    }
    let cast = |include: &dyn Fn(AgentId) -> bool| -> Value {
        let is_present = |id: &&AgentId| said.present.as_ref().is_none_or(|present| present.contains(id));
        let listed = here.agents.iter().filter(is_present).filter(|id| include(**id));
        listed.map(|id| Value::from_object(AgentObject::new(scenario.agent(*id), id.0))).collect()
    };
    context.insert("cast".into(), cast(&|_| true));
    context.insert("others".into(), cast(&|id| id != agent));
    intermediate(scenario, &template.scope, said, &mut context)?;
    let place = place(scenario, &template.path, Some(phase), &format!("round {}", round.unwrap_or(0)));
    context.extend(draws(said, &place));
    Ok(environment().template(NAME, &template.text)?.render(context)?)
}

/// Values of [`ROUND_NAMES`](super::template::ROUND_NAMES) in a round of a phase; a scenario's own names come
/// first.
pub fn round_names(
    scenario: &Scenario,
    phase: PhaseId,
    round: usize,
) -> impl Iterator<Item = (&'static str, serde_json::Value)> {
    free(scenario, [("round", round), ("rounds", scenario.phase(phase).rounds.max(round))])
}

/// Values of [`PASS_NAMES`](super::template::PASS_NAMES), of [`OUTER`] and of the items of blocks in a pass; a
/// scenario's own names come first.
pub fn pass_names(
    scenario: &Scenario,
    pass: Option<PassId>,
) -> impl Iterator<Item = (&str, serde_json::Value)> {
    let around = std::iter::successors(pass, |pass| scenario.pass(*pass).within);
    let items = around.filter_map(|pass| scenario.pass(pass).item.as_deref());
    let items = items.flat_map(|item| item.values.iter().map(|(name, value)| (name.as_str(), value.clone())));
    let pass = pass.map(|pass| scenario.pass(pass));
    let outer = pass.and_then(|pass| pass.within).map(|outer| scenario.pass(outer));
    let outer = outer.map(|outer| (OUTER, serde_json::json!({ "pass": outer.number, "passes": outer.of })));
    let own = pass.into_iter().flat_map(|pass| free(scenario, [("pass", pass.number), ("passes", pass.of)]));
    let own: Vec<(&str, serde_json::Value)> =
        own.chain(outer.filter(|(name, _)| is_free(scenario, name))).collect();
    own.into_iter().chain(items)
}

/// Numbers by names that a scenario has not taken itself.
fn free(
    scenario: &Scenario,
    names: [(&'static str, usize); 2],
) -> impl Iterator<Item = (&'static str, serde_json::Value)> {
    names.into_iter().filter(move |(name, _)| is_free(scenario, name)).map(|(name, n)| (name, n.into()))
}

/// True of a name that a scenario has not taken itself.
fn is_free(scenario: &Scenario, name: &str) -> bool {
    let is_value = scenario.variables.contains_key(name) || scenario.state.contains_key(name);
    let is_let = || scenario.lets.iter().any(|(known, _)| known == name);
    !is_value && !is_let() && scenario.agent_by_key(name).is_none() && scenario.phase_by_name(name).is_none()
}

/// The value of an expression.
///
/// # Errors
/// The error that minijinja found.
pub fn evaluate(
    scenario: &Arc<Scenario>,
    expression: &Expression,
    said: &Arc<History>,
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
    said: &Arc<History>,
    names: impl IntoIterator<Item = (&'a str, serde_json::Value)>,
) -> Result<serde_json::Value, TemplateError> {
    evaluate_in_context(scenario, variables(scenario), (expression, ""), said, names)
}

/// The same for one agent, which is `me`.
///
/// # Errors
/// The error that minijinja found.
pub fn evaluate_for<'a>(
    scenario: &Arc<Scenario>,
    expression: &Expression,
    agent: AgentId,
    said: &Arc<History>,
    names: impl IntoIterator<Item = (&'a str, serde_json::Value)>,
) -> Result<serde_json::Value, TemplateError> {
    let mut context = variables(scenario);
    let of = scenario.agent(agent).key.as_str();
    let me = AgentObject::new(scenario.agent(agent), agent.0);
    context.insert("me".into(), Value::from_object(me));
    evaluate_in_context(scenario, context, (expression, of), said, names)
}

/// `of`: whose value it is, if each agent has one.
fn evaluate_in_context<'a>(
    scenario: &Arc<Scenario>,
    mut context: BTreeMap<String, Value>,
    (expression, of): (&Expression, &str),
    said: &Arc<History>,
    names: impl IntoIterator<Item = (&'a str, serde_json::Value)>,
) -> Result<serde_json::Value, TemplateError> {
    context.extend(stated(said));
    let at = expression.scope.at;
    let n_known = at.map_or(scenario.phases.len(), |at| at.0 + 1);
    context.extend(played(scenario, at, n_known, said)?);
    let pass = expression.scope.pass.or_else(|| scenario.phase(at?).pass);
    context.extend(pass_names(scenario, pass).map(|(name, value)| (name.to_string(), plain(value))));
    let names: BTreeMap<String, serde_json::Value> =
        names.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
    let pass = expression.scope.pass.map_or(0, |pass| scenario.pass(pass).number);
    let place = place(scenario, &expression.path, at, &format!("pass {pass} {names:?} of {of}"));
    context.extend(names.into_iter().map(|(name, value)| (name, plain(value))));
    let verdict =
        expression.scope.verdict.map(|judge| plain(PhaseResults::new(scenario, judge, said).verdict()));
    context.extend(verdict.map(|verdict| ("verdict".to_string(), verdict)));
    intermediate(scenario, &expression.scope, said, &mut context)?;
    context.extend(draws(said, &place));
    evaluate_in(context, expression, [])
}

/// The state, by name.
fn stated(said: &History) -> impl Iterator<Item = (String, Value)> {
    said.state.iter().map(|(name, value)| (name.clone(), by_key(value)))
}

/// Where an expression or a text stands: its field, and which time of playing it. Other phases before it change
/// nothing of that.
fn place(scenario: &Scenario, path: &Path, phase: Option<PhaseId>, time: &str) -> String {
    let path = path.to_string();
    let Some(phase) = phase else { return format!("{path} {time}") };
    let in_phase = path.rsplit_once("phases[").and_then(|(_, rest)| rest.split_once(']'));
    format!("{}{} {time}", scenario.phase(phase).part, in_phase.map_or(path.as_str(), |(_, field)| field))
}

/// What can be drawn at a place, under its name.
fn draws(said: &History, place: &str) -> Option<(String, Value)> {
    Some((DRAWS.to_string(), Draws::at(said.chance?.here, place)))
}

/// Adds the intermediate values that something uses, each computed with those before it. What they draw is
/// theirs, wherever they are used.
fn intermediate(
    scenario: &Scenario,
    scope: &Scope,
    said: &History,
    context: &mut BTreeMap<String, Value>,
) -> Result<(), TemplateError> {
    for index in &scope.lets {
        let (name, expression) = &scenario.lets[*index];
        let drawn = said.chance.map(|chance| Draws::at(chance.first, &expression.path.to_string()));
        context.extend(drawn.map(|drawn| (DRAWS.to_string(), drawn)));
        let value = environment().expression(&expression.text)?.value(context.clone())?;
        context.insert(name.clone(), value);
    }
    Ok(())
}

/// True if an expression, which may use more names, holds: null, false, 0 and what is empty do not.
///
/// # Errors
/// The error that minijinja found.
pub fn holds<'a>(
    scenario: &Arc<Scenario>,
    expression: &Expression,
    said: &Arc<History>,
    names: impl IntoIterator<Item = (&'a str, serde_json::Value)>,
) -> Result<bool, TemplateError> {
    Ok(plain(evaluate_with(scenario, expression, said, names)?).is_true())
}

/// Phases by name, all of them as `phases`, and `payoffs`: what results are read by.
fn played(
    scenario: &Arc<Scenario>,
    at: Option<PhaseId>,
    n_known: usize,
    said: &Arc<History>,
) -> Result<BTreeMap<String, Value>, TemplateError> {
    let object = |id: PhaseId| Value::from_object(PhaseObject::new(id, scenario, said));
    let visible = scenario.visible(at, n_known, said).into_iter();
    let mut context: BTreeMap<String, Value> =
        visible.map(|(name, id)| (name.to_string(), object(id))).collect();
    let parts = scenario.phases.iter().enumerate().take(n_known).filter(|(_, phase)| phase.pass.is_some());
    let mut by_name: BTreeMap<String, Value> =
        parts.map(|(id, phase)| (phase.part.clone(), object(PhaseId(id)))).collect();
    by_name.extend(context.clone());
    context.insert("phases".into(), Value::from_object(PhasesByName(by_name)));
    let known =
        scenario.payoff.as_ref().is_some_and(|payoff| payoff.phases.iter().any(|phase| said.has(*phase)));
    if let Some(payoffs) = known.then(|| payoffs(scenario, said)).transpose()?.flatten() {
        let total = |(key, total): (String, Option<f64>)| (key, total.map_or(Value::from(()), number));
        let totals: BTreeMap<String, Value> = payoffs.totals.into_iter().map(total).collect();
        context.insert("payoffs".into(), ByKey::value(totals));
    } else if let Some(payoff) = &scenario.payoff {
        let none = payoff.players.iter().map(|player| (scenario.agent(*player).key.clone(), Value::from(())));
        context.insert("payoffs".into(), ByKey::value(none.collect()));
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

/// An earlier phase in a template: `messages[agent]`, `name`, `label`. What it came to is computed once,
/// however often a loop asks for it.
#[derive(Debug)]
struct PhaseObject {
    id: PhaseId,
    scenario: Arc<Scenario>,
    said: Arc<History>,
    messages: OnceLock<Value>,
    results: Mutex<BTreeMap<String, Value>>,
}

impl PhaseObject {
    fn new(id: PhaseId, scenario: &Arc<Scenario>, said: &Arc<History>) -> Self {
        let (scenario, said) = (scenario.clone(), said.clone());
        Self { id, scenario, said, messages: OnceLock::new(), results: Mutex::default() }
    }
}

/// The transcript of an earlier phase, by perspective.
#[derive(Debug)]
struct Messages {
    id: PhaseId,
    scenario: Arc<Scenario>,
    said: Arc<History>,
    texts: Mutex<BTreeMap<AgentId, Value>>,
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
                    Value::from_object(Messages { id, scenario, said, texts: Mutex::default() })
                };
                Some(self.messages.get_or_init(messages).clone())
            }
            field => {
                let mut known = self.results.lock().ok()?;
                if let Some(value) = known.get(field) {
                    return Some(value.clone());
                }
                let value = result(PhaseResults::new(&self.scenario, self.id, &self.said), field)?;
                known.insert(field.to_string(), value.clone());
                Some(value)
            }
        }
    }
}

/// A result of a phase by its name; `None`: there is none of that name.
fn result(of: PhaseResults<'_>, name: &str) -> Option<Value> {
    fn keyed<T: Into<serde_json::Value>>(values: BTreeMap<String, T>) -> Value {
        ByKey::value(values.into_iter().map(|(key, value)| (key, by_key(&value.into()))).collect())
    }
    Some(match name {
        "played" => of.played().into(),
        "rounds" => of.rounds().into(),
        "choices" => keyed(of.choices()),
        "history" => keyed(of.history()),
        "votes" => keyed(of.votes()),
        "decision" => by_key(&of.decision().0),
        "tied" => of.decision().1.into(),
        "invalid" => of.invalid().into(),
        "said" => keyed(of.said()),
        "replies" => keyed(of.replies()),
        "reply_history" => keyed(of.reply_history()),
        "calls" => keyed(of.calls()),
        "verdict" => by_key(&of.verdict()),
        _ => return None,
    })
}

/// Phases by name, looked up only.
#[derive(Debug)]
struct PhasesByName(BTreeMap<String, Value>);

impl Object for PhasesByName {
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
        let text = || retell(&self.scenario, self.said.lines(self.id), agent).into();
        Some(self.texts.lock().ok()?.entry(agent).or_insert_with(text).clone())
    }
}
