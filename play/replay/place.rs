//! Compares a recording's header with its scenario: the cast, unnoticed differences, and the origin of a
//! drift.

use crate::prompt::Memories;
use crate::tools::Toolbox;
use crate::transcript::{AgentRecord, Cause, Drift, Header, PROGRAM};
use greenroom_scenario::{Path, Scenario, ToolKind, ToolSpec};
use serde::Serialize;
use std::collections::BTreeMap;

/// The cast as a header records it.
pub fn cast(memories: &Memories) -> BTreeMap<String, AgentRecord> {
    let scenario = memories.scenario();
    let record = |id: usize, agent: &greenroom_scenario::Agent| AgentRecord {
        name: agent.name.clone(),
        lifecycle: agent.lifecycle.word().to_string(),
        system: memories.system(greenroom_scenario::AgentId(id)).to_string(),
        strategy: agent.strategy.as_ref().map(ToString::to_string),
        model: agent.hints.model.clone(),
        tools: agent.tools.iter().map(|tool| scenario.tools[tool.0].key.clone()).collect(),
        max_calls: (!agent.tools.is_empty()).then_some(agent.max_calls),
    };
    scenario.agents.iter().enumerate().map(|(id, agent)| (agent.key.clone(), record(id, agent))).collect()
}

pub(super) fn cast_differs(header: &Header, memories: &Memories) -> Result<(), Drift> {
    let now = cast(memories);
    for (key, was) in &header.agents {
        let Some(is) = now.get(key) else {
            let detail = format!("the agent `{key}` no longer exists");
            return Err(Drift::new(format!("agents/{key}"), Cause::AgentChanged, detail).at_line(1));
        };
        let pairs = [("display_name", &was.name, &is.name), ("lifecycle", &was.lifecycle, &is.lifecycle)];
        let pairs = pairs.into_iter().chain([("system_prompt", &was.system, &is.system)]);
        let none = "the model".to_string();
        let of = |record: &'_ AgentRecord| record.strategy.clone().unwrap_or_else(|| none.clone());
        let (played_by, plays) = (of(was), of(is));
        let own = "the scenario's".to_string();
        let model = |record: &AgentRecord| record.model.clone().unwrap_or_else(|| own.clone());
        let (was_model, is_model) = (model(was), model(is));
        let calls = |record: &AgentRecord| match record.max_calls {
            Some(most) => format!("{}; at most {most} calls in a turn", record.tools.join(", ")),
            None => "none".to_string(),
        };
        let (was_tools, is_tools) = (calls(was), calls(is));
        let more = [
            ("strategy", &played_by, &plays),
            ("model", &was_model, &is_model),
            ("tools", &was_tools, &is_tools),
        ];
        let mut differing = pairs.chain(more).filter(|(_, was, is)| was != is);
        if let Some((field, was, is)) = differing.next() {
            let detail = format!("its {field} differs");
            let drift = Drift::new(format!("agents/{key}"), Cause::AgentChanged, detail);
            return Err(drift.texts(was.as_str(), is.as_str()).at_line(1));
        }
    }
    match now.keys().find(|key| !header.agents.contains_key(*key)) {
        Some(key) => {
            let detail = format!("the agent `{key}` is new");
            Err(Drift::new(format!("agents/{key}"), Cause::AgentChanged, detail).at_line(1))
        }
        None => Ok(()),
    }
}

/// A tool whose description has changed. What a server offers is known from the recording alone.
pub(super) fn tools_differ(header: &Header, scenario: &Scenario) -> Result<(), Drift> {
    let now = Toolbox::at_rest(scenario).specs_by_key(scenario);
    for tool in &scenario.tools {
        let (was, is) = (header.tools.get(&tool.key), now.get(&tool.key));
        if was != is && !matches!(tool.kind, ToolKind::Server(_)) {
            let text = |specs: Option<&Vec<ToolSpec>>| {
                specs.map_or_else(|| "none".into(), |specs| serde_json::json!(specs).to_string())
            };
            let detail = format!("the tool `{}` is described differently to agents", tool.key);
            let drift = Drift::new(format!("tools/{}", tool.key), Cause::ToolsChanged, detail);
            return Err(drift.texts(text(was), text(is)).at_line(1));
        }
    }
    Ok(())
}

/// Settings of all replies that the scenario gives otherwise now, those aside that the command line gave.
pub(super) fn settings_differ(header: &Header, scenario: &Scenario) -> Result<(), Drift> {
    let given = header.given.clone().unwrap_or_default();
    let (was, is) = (header.hints.without(&given), scenario.hints.without(&given));
    if was == is {
        return Ok(());
    }
    let detail = "the scenario's settings for all replies differ";
    Err(Drift::new("header", Cause::Settings, detail).texts(was.words(), is.words()).at_line(1))
}

/// The values of the case that was played, where the scenario's file of cases gives it others now.
pub(super) fn case_differs(header: &Header, scenario: &Scenario) -> Result<(), Drift> {
    let Some((was, is)) = scenario.case_differs(&header.overrides) else { return Ok(()) };
    let detail = "the case that was played has different values now";
    Err(Drift::new("header", Cause::Settings, detail).texts(was, is).at_line(1))
}

/// Variables that have another value than when the recording was made, or are new.
fn other_variables<'a>(scenario: &'a Scenario, header: &'a Header) -> impl Iterator<Item = &'a String> {
    let differs = |(name, value): &(&String, &serde_json::Value)| header.variables.get(*name) != Some(*value);
    scenario.variables.iter().filter(differs).map(|(name, _)| name)
}

/// Notes on a recording's origin for anyone who relies on it: no model gave the replies to these prompts, or
/// another version of the program recorded them.
pub fn provenance(header: &Header) -> Vec<String> {
    let mut notes = Vec::new();
    if header.carried.is_some() {
        notes.push(
            "its replies were carried over from another recording; no model has read these prompts (use \
             --rerun to play them)"
                .to_string(),
        );
    }
    if header.engine != PROGRAM {
        notes.push(format!("recorded by {}; this is {PROGRAM}", header.engine));
    }
    notes
}

/// Differences that no agent read or heard.
pub(super) fn notes(scenario: &Scenario, header: &Header) -> Vec<String> {
    let mut notes = Vec::new();
    if scenario.file_hash() != header.scenario.blake3 {
        notes.push("the scenario file has changed since then, but nothing that was read or said".to_string());
    }
    if scenario.id != header.scenario.id {
        notes.push(format!("the scenario's id was `{}` and is now `{}`", header.scenario.id, scenario.id));
    }
    for name in other_variables(scenario, header) {
        let was = header.variables.get(name).map_or("new".to_string(), |was| format!("{was} before"));
        notes.push(format!(
            "the variable `{name}` is {} ({was}), but nobody read it",
            scenario.variables[name]
        ));
    }
    notes
}

/// A place in the files of a scenario.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The field.
    pub field: String,
}

impl Place {
    /// Of a field.
    pub fn of(scenario: &Scenario, field: &Path) -> Self {
        let (file, line, _) = scenario.sources.place(scenario.tree.key(field));
        Self { file: file.to_string(), line, field: field.to_string() }
    }
}

/// The field of the scenario that a drift comes from, if it comes from there.
pub fn origin(scenario: &Scenario, header: &Header, drift: &Drift) -> Option<Place> {
    if let Some(key) = drift.path.strip_prefix("agents/") {
        let path = scenario.agent(scenario.agent_by_key(key)?).system_path.clone();
        return Some(Place::of(scenario, &path));
    }
    match drift.cause {
        Cause::ToolsChanged => tool(scenario, &drift.path),
        Cause::PromptChanged => prompt(scenario, header, drift),
        Cause::ChoiceChanged | Cause::FormChanged | Cause::ReadingChanged => choice(scenario, &drift.path),
        Cause::RuleChanged => rule(scenario, &drift.path),
        Cause::ResultsChanged => {
            let builtin_result = || change(scenario, drift).or_else(|| result(scenario, &drift.path));
            variable(scenario, header).or_else(builtin_result)
        }
        _ => None,
    }
}

/// The place of a turn's choice or form, or of its phase.
fn choice(scenario: &Scenario, path: &str) -> Option<Place> {
    let plan = scenario.plan();
    let turn = plan.turn(plan.find(path)?);
    let phase = || scenario.phase(turn.phase).path.clone();
    let choice = turn.constraint.as_ref().map(|constraint| &constraint.choice.path);
    let form = turn.form.as_ref().map(|form| &form.path);
    let field = choice.or(form).cloned().unwrap_or_else(phase);
    Some(Place::of(scenario, &field))
}

/// The rule that plays a turn's speaker.
fn rule(scenario: &Scenario, path: &str) -> Option<Place> {
    let plan = scenario.plan();
    let speaker = scenario.agent(plan.turn(plan.find(path)?).speaker);
    Some(Place::of(scenario, &Path::default().key("agents").key(&speaker.key).key("strategy")))
}

/// A tool, or the tools of the agent whose line it is.
fn tool(scenario: &Scenario, path: &str) -> Option<Place> {
    if let Some(key) = path.strip_prefix("tools/") {
        let tool = scenario.tools.iter().find(|tool| tool.key == key)?;
        return Some(Place::of(scenario, &tool.path));
    }
    let agent = path.rsplit('/').next()?.split('.').next()?;
    scenario.agent_by_key(agent)?;
    Some(Place::of(scenario, &Path::default().key("agents").key(agent).key("tools")))
}

/// The assignment that gives another state.
fn change(scenario: &Scenario, drift: &Drift) -> Option<Place> {
    let plan = scenario.plan();
    let change = plan.changes.iter().find(|change| *change.path == *drift.path)?;
    let values = |text: &str| serde_json::from_str::<BTreeMap<String, serde_json::Value>>(text).ok();
    let (was, now) = (values(&drift.recorded)?, values(&drift.now)?);
    let differs = |name: &str| was.get(name) != now.get(name);
    let other = change.set.iter().find(|each| differs(&each.name)).or(change.set.first())?;
    Some(Place::of(scenario, &other.value.path))
}

/// The place of the field that a result is worked out by.
fn result(scenario: &Scenario, name: &str) -> Option<Place> {
    let field = match name.strip_prefix("decisions.") {
        Some(phase) => scenario.phase(scenario.phase_by_name(phase)?).path.to_string(),
        None if name == "payoff" || name.starts_with("outcome.") => name.to_string(),
        None => return None,
    };
    Some(Place::of(scenario, &Path::parse(&field)))
}

/// The text of the scenario that reads otherwise than in a recording.
fn prompt(scenario: &Scenario, header: &Header, drift: &Drift) -> Option<Place> {
    let (phase, step) = (drift.path.split('/').next()?, drift.path.rsplit('/').next()?);
    let here = scenario.phase_by_name(phase)?;
    let agent = scenario.agent_by_key(step.split('.').next()?)?;
    // A prompt can hold the openings of earlier phases in which the agent did not speak, so a text that
    // changed by its hash is the better guess.
    let hashes = scenario.template_hashes();
    let phases = scenario.phases[..=here.0].iter().rev().filter(|phase| phase.agents.contains(&agent));
    let mut read = phases.flat_map(|phase| {
        let announced = phase.announcements.iter().map(|announcement| &announcement.text);
        phase.opening(agent).map(|(_, text)| text).chain(phase.query()).chain(phase.asks()).chain(announced)
    });
    // In an earlier edition a text stood elsewhere.
    let changed = |path: &Path| {
        let hash = hashes.get(&path.to_string());
        !header.templates.values().any(|recorded| Some(recorded) == hash)
    };
    if let Some(found) = read.find(|template| changed(&template.path)) {
        return Some(Place::of(scenario, &found.path));
    }
    variable(scenario, header)
}

/// The first variable that has another value.
fn variable(scenario: &Scenario, header: &Header) -> Option<Place> {
    let name = other_variables(scenario, header).next()?;
    Some(Place::of(scenario, &Path::default().key("variables").key(name.clone())))
}
