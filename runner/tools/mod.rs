//! Tools at work: what agents are told of them, and what a call results in.
//!
//! What is built in is a function of the scenario, the call and its seed, so a replay works it out again. Programs and servers run only
//! where a model answers and they were allowed; what they gave is taken from the record afterwards.

use crate::scenario::{Agent, Scenario, ToolId, ToolKind, ToolSpec};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// Name of the tool.
    pub tool: String,
    /// Its arguments, an object.
    pub arguments: Value,
}

impl Call {
    /// Reads a call of the form `{"tool": NAME, "arguments": {…}}`; `None`: a text is none.
    pub fn read(text: &str) -> Option<Self> {
        let call: Self = serde_json::from_str(text).ok()?;
        call.arguments.is_object().then_some(call)
    }
}

/// What a call gave: a text, or the reason why it failed.
pub type Outcome = Result<String, String>;

/// What the model of an agent is told of its tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The tools.
    pub tools: Vec<ToolSpec>,
    /// How they are called, in words, for a model whose chat template knows no tools.
    pub instructions: String,
}

/// The tools of a scenario, ready to be called.
#[derive(Debug, Default)]
pub struct Toolbox {
    /// What there is behind each tool of the scenario, by [`ToolId`]; of a server as many as it says.
    specs: Vec<Vec<ToolSpec>>,
}

impl Toolbox {
    /// The tools that need no program to be started: all but those of servers.
    pub fn at_rest(scenario: &Scenario) -> Self {
        let specs = scenario.tools.iter().map(|tool| match &tool.kind {
            ToolKind::BuiltIn(_, spec) | ToolKind::Command(_, spec) => vec![spec.clone()],
            ToolKind::Server(_) => Vec::new(),
        });
        Self { specs: specs.collect() }
    }

    /// What the model of an agent is told; `None`: it has no tools.
    pub fn offer(&self, scenario: &Scenario, agent: &Agent) -> Option<Arc<Offer>> {
        let _ = (scenario, agent);
        None
    }

    /// The programs that agents may call, as commands.
    pub fn outside(scenario: &Scenario) -> Vec<String> {
        let _ = scenario;
        Vec::new()
    }

    /// The tools, servers started; `folder` is where programs start.
    ///
    /// # Errors
    /// A server can't be started, or does not say which tools it has.
    pub async fn open(scenario: &Scenario, folder: &Path) -> anyhow::Result<Self> {
        let _ = folder;
        Ok(Self::at_rest(scenario))
    }

    /// The tools with what a recording knows of servers.
    pub fn recorded(scenario: &Scenario, recorded: &BTreeMap<String, Vec<ToolSpec>>) -> Self {
        let mut toolbox = Self::at_rest(scenario);
        for (tool, specs) in scenario.tools.iter().zip(&mut toolbox.specs) {
            if let (ToolKind::Server(_), Some(was)) = (&tool.kind, recorded.get(&tool.key)) {
                specs.clone_from(was);
            }
        }
        toolbox
    }

    /// All specs, by the tools' names in the scenario.
    pub fn specs_by_key(&self, scenario: &Scenario) -> BTreeMap<String, Vec<ToolSpec>> {
        let specs = scenario.tools.iter().zip(&self.specs);
        specs.map(|(tool, specs)| (tool.key.clone(), specs.clone())).collect()
    }

    /// True if programs and servers may be called.
    pub fn is_open(&self) -> bool {
        false
    }

    /// What a call gives.
    pub async fn call(&self, id: ToolId, call: Call, seed: u64) -> Outcome {
        let _ = (id, call, seed);
        Err("not implemented".into())
    }

    /// The tool of that name which an agent may call.
    pub fn find(&self, agent: &Agent, name: &str) -> Option<(ToolId, &ToolSpec)> {
        let specs = agent.tools.iter().flat_map(|id| self.specs[id.0].iter().map(|spec| (*id, spec)));
        specs.into_iter().find(|(_, spec)| spec.name == name)
    }
}

/// The tool of that name which an agent may call; of a server's, whether it has one of that name is not known here.
pub fn named(scenario: &Scenario, agent: &Agent, name: &str) -> Option<ToolId> {
    let is_named = |id: &&ToolId| {
        let tool = &scenario.tools[id.0];
        match tool.kind {
            ToolKind::Server(_) => name.strip_prefix(&tool.key).is_some_and(|rest| rest.starts_with('_')),
            ToolKind::BuiltIn(..) | ToolKind::Command(..) => tool.key == name,
        }
    };
    agent.tools.iter().find(is_named).copied()
}

/// The folder in which a scenario's programs start: that of its file, or of the file of that name which a run's own copy was made of.
pub fn folder<'a>(scenario: &'a Scenario, copied: Option<&'a str>) -> &'a Path {
    let copied = copied.map(Path::new).filter(|file| file.is_file());
    let file = copied.unwrap_or(Path::new(&scenario.sources.main().name));
    file.parent().unwrap_or(Path::new(""))
}

/// A result as it is read and recorded: not longer than a turn has room for.
pub fn bounded(result: &str) -> String {
    result.to_string()
}

/// What a call of a tool that is built in gives; `None`: it is not.
pub fn worked_out(kind: &ToolKind, arguments: &Value, seed: u64) -> Option<Outcome> {
    let _ = (kind, arguments, seed);
    None
}
