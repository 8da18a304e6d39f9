//! Checks the phases: who takes part, who speaks when, and how long it lasts.

use super::{Checker, is_identifier};
use crate::diagnostic::{Diagnostic, suggest};
use crate::scenario::compile::n_turns;
use crate::scenario::schema::WrittenPhase;
use crate::scenario::source::Path;
use crate::scenario::template::Template;
use crate::scenario::{Agent, AgentId, Phase, Topology};
use indexmap::IndexMap;
use std::collections::BTreeMap;

/// Most turns that a scenario may unroll into.
const MAX_TURNS: usize = 10_000;
/// Most messages that all its agents together may hear.
const MAX_HEARD: usize = 1_000_000;

/// Debate formats: name and text.
const FORMATS: &[(&str, &str)] = &[
    ("free", include_str!("../../../templates/formats/free.jinja")),
    ("structured", include_str!("../../../templates/formats/structured.jinja")),
    ("pro_con", include_str!("../../../templates/formats/pro_con.jinja")),
    ("devils_advocate", include_str!("../../../templates/formats/devils_advocate.jinja")),
    ("socratic", include_str!("../../../templates/formats/socratic.jinja")),
    ("roundtable", include_str!("../../../templates/formats/roundtable.jinja")),
];

impl Checker {
    pub(super) fn phases(
        &mut self,
        written: Option<Vec<Option<WrittenPhase>>>,
        agents: &[Agent],
        path: &Path,
    ) -> Vec<Phase> {
        let written = written.unwrap_or_default();
        if written.is_empty() {
            self.error("missing", path, "a scenario needs at least one phase under `phases:`");
        }
        let mut phases: Vec<Phase> = Vec::new();
        let mut total = 0usize;
        for (at, phase) in written.into_iter().enumerate() {
            let path = path.index(at);
            let phase = self.phase(phase.unwrap_or_default(), agents, &path, at);
            if let Some(first) = phases.iter().position(|other| other.name == phase.name) {
                let first = self.spans.value(&Path::default().key("phases").index(first).key("name"));
                let message = format!("two phases are called `{}`", phase.name);
                let span = self.spans.value(&path.key("name"));
                let found = Diagnostic::error("duplicate-name", path.key("name").to_string(), span, message);
                self.push(found.related(first, "first here").help("give each phase its own name"));
            }
            total = total.saturating_add(turns_of(&phase));
            phases.push(phase);
        }
        if total > MAX_TURNS {
            let message = format!("the phases make {total} turns; at most {MAX_TURNS} are played");
            self.error("too-long", path, message).help =
                Some("lower `auto_rounds` or set `max_turns`".into());
            // Nothing later unrolls what is refused anyway.
            phases.iter_mut().for_each(|phase| phase.rounds = phase.rounds.min(1));
        }
        phases
    }

    /// Refuses a scenario whose agents hear, or are quoted, more than a plan can hold.
    pub(super) fn heard(&mut self, phases: &[Phase]) {
        let of = |phase: &Phase| {
            let heard = turns_of(phase).saturating_mul(phase.agents.len().saturating_sub(1));
            let quotes = phase.agents.iter().flat_map(|agent| phase.opening(*agent));
            let quoted = quotes.flat_map(|(_, text)| &text.quotes).map(|quoted| turns_of(&phases[quoted.0]));
            quoted.fold(heard, usize::saturating_add)
        };
        let all = phases.iter().map(of).fold(0, usize::saturating_add);
        if all > MAX_HEARD {
            let message = format!("agents hear or read {all} messages; at most {MAX_HEARD} are delivered");
            self.error("too-long", &Path::default().key("phases"), message).help =
                Some("let fewer agents take part in a phase, lower its `auto_rounds`, or quote less".into());
        }
    }

    fn phase(&mut self, written: WrittenPhase, agents: &[Agent], path: &Path, at: usize) -> Phase {
        let name = self.phase_name(written.name, path, at);
        let cast = self.phase_cast(written.agents, agents, path);
        let topology = self.topology(written.topology.as_deref(), path);
        self.decision(written.decision_mode.as_deref(), path);
        self.not_yet(&path.key("interactions"), written.interactions.is_some());
        let max_turns = self.count(written.max_turns, &path.key("max_turns"));
        let rounds = self.count(written.auto_rounds, &path.key("auto_rounds"));
        let for_all = |turns: usize| turns.div_ceil(cast.len().max(1));
        Phase {
            label: written.label.unwrap_or_else(|| name.clone()),
            name,
            topology,
            format: self.format(written.debate_format.as_deref(), path),
            initial: self.template(written.initial_prompt, path.key("initial_prompt")),
            initial_template: self
                .template(written.initial_prompt_template, path.key("initial_prompt_template")),
            private: self.private(written.per_agent_prompt_templates, agents, &cast, path),
            rounds: rounds.unwrap_or_else(|| max_turns.map_or(1, for_all)),
            max_turns,
            agents: cast,
        }
    }

    fn phase_name(&mut self, given: Option<String>, path: &Path, at: usize) -> String {
        let Some(name) = given else {
            self.error("missing", path, "a phase needs a `name`");
            return format!("phase{}", at + 1);
        };
        if !is_identifier(&name) {
            let message = format!("a phase's name is letters, digits and `_`: `{name}`");
            let help = format!("for example `{}`; `label` may be any text", identifier_from(&name));
            self.error("bad-name", &path.key("name"), message).help = Some(help);
        }
        name
    }

    fn phase_cast(
        &mut self,
        given: Option<Vec<Option<String>>>,
        agents: &[Agent],
        path: &Path,
    ) -> Vec<AgentId> {
        let path = path.key("agents");
        let given = given.unwrap_or_default();
        if given.is_empty() {
            self.error("missing", &path, "a phase needs `agents`: the keys of those who take part");
        }
        let mut cast = Vec::new();
        for (at, key) in given.into_iter().enumerate() {
            let path = path.index(at);
            let Some(key) = key else { continue };
            match self.agent_id(&key, agents, &path) {
                Some(id) if cast.contains(&id) => {
                    self.error("duplicate-name", &path, format!("`{key}` takes part twice in this phase"));
                }
                Some(id) => cast.push(id),
                None => {}
            }
        }
        cast
    }

    fn agent_id(&mut self, key: &str, agents: &[Agent], path: &Path) -> Option<AgentId> {
        let id = agents.iter().position(|agent| agent.key == key).map(AgentId);
        if id.is_none() {
            let help = suggest(key, agents.iter().map(|agent| agent.key.as_str()));
            let span = self.spans.key(path);
            let message = format!("there is no agent `{key}`");
            self.push(Diagnostic::error("unknown-agent", path.to_string(), span, message)).help = help;
        }
        id
    }

    fn topology(&mut self, given: Option<&str>, path: &Path) -> Topology {
        let path = path.key("topology");
        let known = [
            ("round_robin", Some(Topology::RoundRobin)),
            ("turn_by_turn", Some(Topology::TurnByTurn)),
            ("broadcast", Some(Topology::Broadcast)),
            ("whisper", None),
            ("interrupt", None),
            ("moderated", None),
        ];
        let Some(given) = given else { return Topology::RoundRobin };
        match self.word(&path, "topology", given, &known) {
            Some(Some(topology)) => topology,
            Some(None) => {
                let span = self.spans.value(&path);
                let message = format!("the topology `{given}` is read, but not executed yet");
                let warning = Diagnostic::warning("not-executed", path.to_string(), span, message);
                self.push(warning.help("this phase is played as `round_robin`, everybody hears everything"));
                Topology::RoundRobin
            }
            None => Topology::RoundRobin,
        }
    }

    fn decision(&mut self, given: Option<&str>, path: &Path) {
        let path = path.key("decision_mode");
        let known = ["none", "majority_vote", "ranked_choice", "coordinator_decides", "consensus"];
        let known = known.map(|name| (name, name));
        let Some(given) = given else { return };
        if self.word(&path, "decision mode", given, &known).is_some_and(|mode| mode != "none") {
            self.not_yet(&path, true);
        }
    }

    /// A count of at least one.
    fn count(&mut self, given: Option<u64>, path: &Path) -> Option<usize> {
        let given = given?;
        if given == 0 {
            self.error("bad-value", path, "this is at least 1").help =
                Some("leave the field out for the default".into());
            return None;
        }
        Some(usize::try_from(given).unwrap_or(usize::MAX))
    }

    fn format(&mut self, given: Option<&str>, path: &Path) -> Option<Template> {
        let path = path.key("debate_format");
        let text = self.word(&path, "debate format", given?, FORMATS)?;
        Some(Template { path, text: text.to_string(), quotes: Vec::new() })
    }

    fn private(
        &mut self,
        given: Option<IndexMap<String, Option<String>>>,
        agents: &[Agent],
        cast: &[AgentId],
        path: &Path,
    ) -> BTreeMap<AgentId, Template> {
        let path = path.key("per_agent_prompt_templates");
        let mut private = BTreeMap::new();
        for (key, text) in given.unwrap_or_default() {
            let path = path.key(key.clone());
            let Some(id) = self.agent_id(&key, agents, &path) else { continue };
            if !cast.contains(&id) {
                let message = format!("`{key}` does not take part in this phase, so nobody reads this text");
                let span = self.spans.key(&path);
                let found = Diagnostic::error("absent-agent", path.to_string(), span, message);
                self.push(found.help(format!("add `{key}` to `agents` or remove the text")));
            }
            if let Some(template) = self.template(text, path) {
                private.insert(id, template);
            }
        }
        private
    }
}

fn turns_of(phase: &Phase) -> usize {
    n_turns(phase.agents.len(), phase.rounds, phase.max_turns)
}

fn identifier_from(name: &str) -> String {
    let plain: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' }).collect();
    if is_identifier(&plain) { plain } else { format!("p_{plain}") }
}
