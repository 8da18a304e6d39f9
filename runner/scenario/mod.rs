//! Scenarios: the file as written (`schema`), checked into what it means (`check`), and unrolled into a
//! graph of turns (`plan`, `compile`).
//!
//! Later stages trust a [`Scenario`]: every reference in it is resolved and every template parses.

mod check;
mod compile;
mod plan;
pub mod schema;
mod source;
pub mod template;

pub use check::{Loaded, Overrides, load, parse_override};
pub use compile::compile;
pub use plan::{Constraint, Edge, Guard, Input, Plan, TimelineId, Turn, TurnId};
pub use source::{Path, Spans, Step};

use crate::diagnostic::Source;
use std::collections::BTreeMap;
use std::sync::Arc;
use template::Template;

/// Index of an agent in [`Scenario::agents`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AgentId(pub usize);

/// Index of a phase in [`Scenario::phases`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PhaseId(pub usize);

/// A checked scenario.
#[derive(Debug)]
pub struct Scenario {
    /// Short name: letters, digits, `-` and `_`.
    pub id: String,
    /// Title shown to people.
    pub title: String,
    /// What it is about.
    pub description: String,
    /// Values for templates, overrides applied.
    pub variables: BTreeMap<String, serde_json::Value>,
    /// Who takes part, in the order of the file.
    pub agents: Vec<Agent>,
    /// What happens, in order.
    pub phases: Vec<Phase>,
    /// The file it was read from.
    pub source: Arc<Source>,
    /// Where things stand in the file.
    pub spans: Spans,
}

/// One agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    /// Key in the file.
    pub key: String,
    /// Name that others see.
    pub name: String,
    /// What the agent is; may be empty.
    pub role: String,
    /// The system text as rendered: constant for the whole run.
    pub system: String,
    /// Where the system text stands in the file.
    pub system_path: Path,
    /// How long it remembers.
    pub lifecycle: Lifecycle,
    /// Colour on a terminal.
    pub color: Option<Color>,
}

/// How long an agent remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifecycle {
    /// One timeline for the whole run, kept afterwards.
    Permanent,
    /// A fresh timeline in each phase.
    Ephemeral,
}

/// A colour on a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Color {
    /// One of the 256 terminal colours.
    Indexed(u8),
    /// Red, green, blue.
    Rgb(u8, u8, u8),
}

/// One phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Short name: letters, digits and `_`.
    pub name: String,
    /// Title shown to people.
    pub label: String,
    /// Who takes part, in speaking order.
    pub agents: Vec<AgentId>,
    /// Who speaks when.
    pub topology: Topology,
    /// Text of the debate format.
    pub format: Option<Template>,
    /// Opening for everybody.
    pub initial: Option<Template>,
    /// Opening rendered for each agent that has no private one.
    pub initial_template: Option<Template>,
    /// Private openings.
    pub private: BTreeMap<AgentId, Template>,
    /// Rounds to play.
    pub rounds: usize,
    /// Most turns of the phase.
    pub max_turns: Option<usize>,
}

/// Who speaks when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Each round, everybody once, in the order of `agents`; each hears those before.
    RoundRobin,
    /// The same order, counted in turns: `max_turns` alone says how long it goes on.
    TurnByTurn,
    /// Each round, all answer at once; they hear each other at the next round.
    Broadcast,
}

impl Scenario {
    /// The agent with an id of this scenario.
    pub fn agent(&self, id: AgentId) -> &Agent {
        &self.agents[id.0]
    }

    /// The phase with an id of this scenario.
    pub fn phase(&self, id: PhaseId) -> &Phase {
        &self.phases[id.0]
    }

    /// The agent with a key.
    pub fn agent_by_key(&self, key: &str) -> Option<AgentId> {
        self.agents.iter().position(|agent| agent.key == key).map(AgentId)
    }

    /// The phase with a name.
    pub fn phase_by_name(&self, name: &str) -> Option<PhaseId> {
        self.phases.iter().position(|phase| phase.name == name).map(PhaseId)
    }

    /// blake3 (hex) of the file's text.
    pub fn file_hash(&self) -> String {
        blake3::hash(self.source.text.as_bytes()).to_hex().to_string()
    }

    /// blake3 (hex) of every template, by path.
    pub fn template_hashes(&self) -> BTreeMap<String, String> {
        let hash = |text: &str| blake3::hash(text.as_bytes()).to_hex().to_string();
        let systems = self.agents.iter().map(|agent| (agent.system_path.to_string(), hash(&agent.system)));
        let stages = self.phases.iter().flat_map(|phase| {
            let shared = [&phase.format, &phase.initial, &phase.initial_template];
            shared.into_iter().flatten().chain(phase.private.values())
        });
        systems.chain(stages.map(|template| (template.path.to_string(), hash(&template.text)))).collect()
    }
}

impl Phase {
    /// The templates that make up an agent's opening, in the order in which it reads them.
    pub fn opening(&self, agent: AgentId) -> impl Iterator<Item = (Opening, &Template)> {
        let private = self.private.get(&agent);
        let for_each = if private.is_some() { None } else { self.initial_template.as_ref() };
        let shared = if for_each.is_some() { None } else { self.initial.as_ref() };
        let shared = shared.or(for_each).map(|template| (Opening::Phase, template));
        let private = private.map(|template| (Opening::Private, template));
        let format = self.format.as_ref().map(|template| (Opening::Format, template));
        shared.into_iter().chain(private).chain(format)
    }
}

/// Which part of a phase's opening a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// What everybody reads.
    Phase,
    /// What one agent alone reads.
    Private,
    /// The debate format.
    Format,
}
