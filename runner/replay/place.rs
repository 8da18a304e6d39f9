//! Holds a recording's header against its scenario: the cast, what nobody noticed, and where a drift comes from.

use crate::prompt::Memories;
use crate::scenario::{Path, Scenario};
use crate::transcript::{AgentRecord, Cause, Drift, Header};
use serde::Serialize;
use std::collections::BTreeMap;

/// What stands in a header about the cast.
pub fn cast(memories: &Memories) -> BTreeMap<String, AgentRecord> {
    let scenario = memories.scenario();
    let record = |id: usize, agent: &crate::scenario::Agent| AgentRecord {
        name: agent.name.clone(),
        lifecycle: agent.lifecycle.word().to_string(),
        system: memories.system(crate::scenario::AgentId(id)).to_string(),
        strategy: agent.strategy.as_ref().map(ToString::to_string),
    };
    scenario.agents.iter().enumerate().map(|(id, agent)| (agent.key.clone(), record(id, agent))).collect()
}

pub(super) fn cast_differs(header: &Header, memories: &Memories) -> Result<(), Drift> {
    let now = cast(memories);
    for (key, was) in &header.agents {
        let Some(is) = now.get(key) else {
            let detail = format!("there is no agent `{key}` any more");
            return Err(Drift::new(format!("agents/{key}"), Cause::AgentChanged, detail).at_line(1));
        };
        let pairs = [("display_name", &was.name, &is.name), ("lifecycle", &was.lifecycle, &is.lifecycle)];
        let pairs = pairs.into_iter().chain([("system_prompt", &was.system, &is.system)]);
        let none = "the model".to_string();
        let of = |record: &'_ AgentRecord| record.strategy.clone().unwrap_or_else(|| none.clone());
        let (played_by, plays) = (of(was), of(is));
        let mut differing = pairs.chain([("strategy", &played_by, &plays)]).filter(|(_, was, is)| was != is);
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

/// Differences that nobody read or heard.
pub(super) fn notes(scenario: &Scenario, header: &Header) -> Vec<String> {
    let mut notes = Vec::new();
    if scenario.file_hash() != header.scenario.blake3 {
        notes.push("the scenario file changed since, but nothing that was read or said".to_string());
    }
    if scenario.id != header.scenario.id {
        notes.push(format!("the scenario's id was `{}`, it is `{}` now", header.scenario.id, scenario.id));
    }
    notes
}

/// Where something stands in the files of a scenario.
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
        let (file, line, _) = scenario.sources.place(scenario.spans.key(field));
        Self { file: file.to_string(), line, field: field.to_string() }
    }
}

/// The field of the scenario that a drift comes from, if it comes from there.
pub fn origin(scenario: &Scenario, header: &Header, drift: &Drift) -> Option<Place> {
    if let Some(key) = drift.path.strip_prefix("agents/") {
        let path = scenario.agent(scenario.agent_by_key(key)?).system_path.clone();
        return Some(Place::of(scenario, &path));
    }
    if drift.cause != Cause::PromptChanged {
        return None;
    }
    let (phase, step) = (drift.path.split('/').next()?, drift.path.rsplit('/').next()?);
    let here = scenario.phase_by_name(phase)?;
    let agent = scenario.agent_by_key(step.split('.').next()?)?;
    // A prompt can hold the openings of earlier phases in which the agent did not speak, so a text that
    // changed by its hash is the better guess.
    let hashes = scenario.template_hashes();
    let phases = scenario.phases[..=here.0].iter().rev().filter(|phase| phase.agents.contains(&agent));
    let mut read = phases.flat_map(|phase| phase.opening(agent).map(|(_, text)| text).chain(phase.asks()));
    let changed = |path: &str| hashes.get(path) != header.templates.get(path);
    let found = read.find(|template| changed(&template.path.to_string()))?;
    Some(Place::of(scenario, &found.path))
}
