//! Checks the cast: keys, names, lifecycles.

use super::topology::NOBODY;
use super::{Checker, is_identifier};
use crate::schema::WrittenAgent;
use crate::{Agent, Lifecycle};
use greenroom_yaml::Path;
use greenroom_yaml::diagnostic::Diagnostic;
use indexmap::IndexMap;
use std::collections::BTreeMap;

/// The agent itself, in its texts.
const ME: &str = "me";
/// Attributes that every agent has.
const ATTRIBUTES: [&str; 4] = ["key", "display_name", "name", "role"];

/// Maximum number of agents of a scenario: templates name all of them, for each of them.
const MAX_AGENTS: usize = 1_000;

impl Checker {
    /// The agents, and the system prompt that each was given.
    pub(super) fn agents(
        &mut self,
        written: Option<IndexMap<String, Option<WrittenAgent>>>,
        path: &Path,
    ) -> (Vec<Agent>, Vec<Option<String>>) {
        let written = written.unwrap_or_default();
        if written.is_empty() && !self.is_open(&["agents"]) {
            let message = "a scenario needs at least one agent under `agents:`";
            self.missing(
                path,
                message,
                "e.g. `agents: { ann: { display_name: Ann } }`, or a cast from a file: `--agents FILE`",
            );
        }
        if written.len() > MAX_AGENTS {
            let message =
                format!("the scenario has {} agents; at most {MAX_AGENTS} are allowed", written.len());
            self.error("too-many", path, message).help = Some("split the scenario".into());
        }
        let (mut agents, mut systems): (Vec<Agent>, _) = (Vec::new(), Vec::new());
        for (key, agent) in written.into_iter().take(MAX_AGENTS) {
            let path = path.key(key.clone());
            let agent = agent.unwrap_or_default();
            systems.push(agent.system_prompt.clone().map(|text| text.0));
            let agent = self.agent(key, agent, &path);
            if let Some(twin) = agents.iter().find(|other| other.name == agent.name) {
                let message =
                    format!("`{}` and `{}` are both called \"{}\"", twin.key, agent.key, agent.name);
                let first = self.tree.key(&Path::default().key("agents").key(twin.key.clone()));
                let found =
                    Diagnostic::error("duplicate-name", path.to_string(), self.tree.key(&path), message)
                        .related(first, "the other agent")
                        .help("agents hear each other by display name: give each its own");
                self.push(found);
            }
            agents.push(agent);
        }
        (agents, systems)
    }

    fn agent(&mut self, key: String, mut written: WrittenAgent, path: &Path) -> Agent {
        if !is_identifier(&key) {
            let span = self.tree.key(path);
            let message = format!("`{key}` is not a valid agent key: use letters, digits and `_`");
            let found = Diagnostic::error("bad-name", path.to_string(), span, message);
            let plain = super::phases::identifier_from(&key);
            self.push(found.help(format!("for example `{plain}`; `display_name` may be any text")));
        }
        let hints = self.hints(written.model.take(), written.sampling.take(), path);
        // Its own texts may use them.
        let others = written.traits.as_ref().map(|traits| {
            let traits = traits.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
            let others = (self.names.variables.clone(), self.names.values.clone());
            self.names.variables.push(ME.into());
            self.names.values.insert(ME.into(), serde_json::Value::Object(traits));
            others
        });
        let traits = self.traits(written.traits.take(), path);
        if key == NOBODY {
            let span = self.tree.key(path);
            let message = format!("`{key}` says who hears something in `to`, so no agent can have this key");
            let found = Diagnostic::error("bad-name", path.to_string(), span, message);
            self.push(found.help("rename it; `display_name` may be any text"));
        }
        let name = self.known_text(written.display_name.take(), &path.key("display_name"));
        let name = name.unwrap_or_else(|| key.clone());
        let name = name.trim().to_string();
        if name.is_empty() || name.chars().any(char::is_control) || name.chars().count() > 80 {
            let message = "a display name must be one line of 1 to 80 characters";
            self.error("bad-name", &path.key("display_name"), message).help =
                Some("put a longer description into `role` or `system_prompt`".into());
        }
        let role = self.known_text(written.role.take(), &path.key("role"));
        if let Some(others) = others {
            (self.names.variables, self.names.values) = others;
        }
        let memory = self.memory(written.memory.take(), path);
        let is_played_by_rule = written.strategy.is_some();
        let (tools, max_calls) =
            self.tools_of(written.tools.take(), written.max_calls, is_played_by_rule, path);
        let color = written.color.as_deref().and_then(|given| self.color(&path.key("color"), given));
        Agent {
            key,
            name,
            role: role.unwrap_or_default().trim().to_string(),
            system: String::new(),
            system_path: path.key("system_prompt"),
            traits: traits.into(),
            lifecycle: written.lifecycle.unwrap_or(Lifecycle::Permanent),
            is_silent: written.speaks == Some(false),
            color,
            strategy: written.strategy.and_then(|given| self.strategy(given, &path.key("strategy"))),
            memory,
            hints,
            tools,
            max_calls,
            is_outside: false,
        }
    }

    fn traits(
        &mut self,
        written: Option<IndexMap<String, serde_json::Value>>,
        path: &Path,
    ) -> BTreeMap<String, serde_json::Value> {
        let mut traits = BTreeMap::new();
        for (name, mut value) in written.unwrap_or_default() {
            let path = path.key("traits").key(name.clone());
            // Columns that name agents have been read.
            if ATTRIBUTES.contains(&name.as_str()) {
                if self.tree.find(&path).is_some() {
                    let message = format!("every agent has `{name}` already, so it can't be a trait");
                    let span = self.tree.key(&path);
                    let found = Diagnostic::error("bad-name", path.to_string(), span, message);
                    self.push(found.help("rename it"));
                }
                continue;
            }
            if !is_identifier(&name) {
                let message =
                    format!("`{name}` is not a valid name for a trait: use letters, digits and `_`");
                let span = self.tree.key(&path);
                let found = Diagnostic::error("bad-name", path.to_string(), span, message);
                self.push(found.help(format!("for example `{}`", super::phases::identifier_from(&name))));
                continue;
            }
            value.sort_all_objects();
            traits.insert(name, value);
        }
        traits
    }
}
