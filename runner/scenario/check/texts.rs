//! Checks the texts: templates parse, name only what exists by then, and a system text never varies.

use super::Checker;
use crate::diagnostic::{Diagnostic, suggest};
use crate::scenario::source::Path;
use crate::scenario::template::{self, STAGE_NAMES, SYSTEM_NAMES, Said, Template};
use crate::scenario::{AgentId, Phase, PhaseId, Scenario};
use std::sync::Arc;

/// Names that speak of what changes during a run.
const VARYING: &[&str] =
    &["turn", "turns", "round", "rounds", "phase", "phases", "messages", "cast", "others", "history", "now"];

impl Checker {
    /// A stage text; its names are checked when all phases are known.
    pub(super) fn template(&mut self, text: Option<String>, path: Path) -> Option<Template> {
        let (text, _, odd) = template::rewrite(&text?);
        for (line, inner) in odd {
            let span = self.spans.text_line(&self.source, &path, line);
            let message = format!("`${{{inner}}}` is not replaced: it stays as it stands");
            let found = Diagnostic::warning("plain-text", path.to_string(), span, message);
            let help = "only `${phase.messages[agent]}` is; for a variable write `{{ name }}`";
            self.push(found.help(help));
        }
        Some(Template { path, text, quotes: Vec::new() })
    }

    /// Renders the system texts, and refuses those that could vary within a run.
    pub(super) fn systems(&mut self, scenario: &mut Scenario, systems: &[Option<String>]) {
        for (id, given) in systems.iter().enumerate() {
            let agent = &scenario.agents[id];
            let Some(text) = given else {
                let role = agent.role.trim_end_matches('.');
                let role = if role.is_empty() { String::new() } else { format!(", {role}") };
                scenario.agents[id].system = format!("You are {}{role}.", agent.name);
                continue;
            };
            let path = agent.system_path.clone();
            let (text, quotes, _) = template::rewrite(text);
            for quote in &quotes {
                self.varying(&path, quote.line, &format!("{}.messages", quote.phase));
            }
            let n_before = self.found.len();
            let names = match template::names(&text) {
                Ok(names) => names,
                Err(error) => {
                    self.error_in("template", &path, error.line, error.message);
                    continue;
                }
            };
            for name in names.iter().filter(|name| !quotes.iter().any(|quote| quote.phase == **name)) {
                self.system_name(scenario, &path, &text, name);
            }
            if !quotes.is_empty() || self.found.len() > n_before {
                continue;
            }
            match template::render_system(scenario, &text, AgentId(id)) {
                Ok(text) => scenario.agents[id].system = text.trim().to_string(),
                Err(error) => {
                    self.error_in("template", &path, error.line, error.message);
                }
            }
        }
    }

    fn system_name(&mut self, scenario: &Scenario, path: &Path, text: &str, name: &str) {
        if scenario.variables.contains_key(name) || SYSTEM_NAMES.contains(&name) {
            return;
        }
        let line = template::line_of(text, name);
        if VARYING.contains(&name) || scenario.phase_by_name(name).is_some() {
            return self.varying(path, line, name);
        }
        let known = scenario.variables.keys().map(String::as_str).chain(SYSTEM_NAMES.iter().copied());
        let help = suggest(name, known);
        self.error_in(
            "undefined-variable",
            path,
            line,
            format!("`{name}` is not defined for a system prompt"),
        )
        .help = help;
    }

    fn varying(&mut self, path: &Path, line: usize, name: &str) {
        let message = format!("a system prompt can't use `{name}`: it would vary within the run");
        let help = "the system text must stay constant, so that an agent's memory is only ever extended; \
                    put what changes into the phase's prompts";
        self.error_in("varying-system-prompt", path, line, message).help = Some(help.into());
    }

    /// Checks the names in every stage text, and notes which earlier phases it quotes.
    pub(super) fn resolve_quotes(&mut self, scenario: &mut Scenario) {
        let mut phases = std::mem::take(&mut scenario.phases);
        for at in 0..phases.len() {
            let mut phase = phases[at].clone();
            let shared = [&mut phase.initial, &mut phase.initial_template, &mut phase.format];
            let texts = shared.into_iter().flatten().chain(phase.private.values_mut());
            for text in texts {
                self.stage_names(scenario, &phases, at, text);
            }
            phases[at] = phase;
        }
        scenario.phases = phases;
    }

    fn stage_names(&mut self, scenario: &Scenario, phases: &[Phase], here: usize, text: &mut Template) {
        let names = match template::names(&text.text) {
            Ok(names) => names,
            Err(error) => {
                self.error_in("template", &text.path, error.line, error.message);
                return;
            }
        };
        let quotes = template::rewrite(&text.text).1;
        for quote in quotes.iter().filter_map(|quote| Some((quote.agent.as_ref()?, quote.line))) {
            if scenario.agent_by_key(quote.0).is_none() {
                let help = suggest(quote.0, scenario.agents.iter().map(|agent| agent.key.as_str()));
                let message = format!("there is no agent `{}`", quote.0);
                self.error_in("unknown-agent", &text.path, quote.1, message).help = help;
            }
        }
        for name in names {
            let line = template::line_of(&text.text, &name);
            if let Some(at) = phases.iter().position(|phase| phase.name == name) {
                match at < here {
                    true => text.quotes.push(PhaseId(at)),
                    false => self.forward(&text.path, line, &phases[here].name, &name, at == here),
                }
            } else if name == "phases" {
                text.quotes.extend((0..here).map(PhaseId));
            } else if !scenario.variables.contains_key(&name)
                && !SYSTEM_NAMES.contains(&name.as_str())
                && !STAGE_NAMES.contains(&name.as_str())
                && scenario.agent_by_key(&name).is_none()
            {
                let quoted = quotes.iter().any(|quote| quote.phase == name);
                self.unknown_name(scenario, &phases[..here], &text.path, line, &name, quoted);
            }
        }
        text.quotes.sort_unstable();
        text.quotes.dedup();
    }

    fn forward(&mut self, path: &Path, line: usize, here: &str, name: &str, same: bool) {
        let message = match same {
            true => format!("`{name}` is this phase itself: nothing has been said in it when it opens"),
            false => format!("`{name}` is played after `{here}`: nothing has been said in it yet"),
        };
        self.error_in("forward-reference", path, line, message).help =
            Some("quote only phases that stand earlier in the file".into());
    }

    fn unknown_name(
        &mut self,
        scenario: &Scenario,
        earlier: &[Phase],
        path: &Path,
        line: usize,
        name: &str,
        quoted: bool,
    ) {
        let phases = earlier.iter().map(|phase| phase.name.as_str());
        if quoted {
            let help = suggest(name, phases);
            let found = self.error_in("unknown-phase", path, line, format!("there is no phase `{name}`"));
            found.help = help.or(Some("no phase stands before this one".into()));
            return;
        }
        let variables = scenario.variables.keys().map(String::as_str);
        let agents = scenario.agents.iter().map(|agent| agent.key.as_str());
        let fixed = SYSTEM_NAMES.iter().chain(STAGE_NAMES).copied();
        let help = suggest(name, variables.chain(agents).chain(phases).chain(fixed));
        self.error_in("undefined-variable", path, line, format!("`{name}` is not defined here")).help = help;
    }

    /// Renders every opening once, so that no run ends in its last template.
    pub(super) fn try_openings(&mut self, scenario: Scenario) -> Arc<Scenario> {
        let scenario = Arc::new(scenario);
        if self.has_errors() {
            return scenario;
        }
        let said = Arc::new(Said::default());
        for (id, phase) in scenario.phases.iter().enumerate() {
            for agent in &phase.agents {
                for (_, text) in phase.opening(*agent) {
                    let rendered = template::render_stage(&scenario, &text.text, PhaseId(id), *agent, &said);
                    if let Err(error) = rendered {
                        self.error_in("template", &text.path, error.line, error.message);
                    }
                }
            }
        }
        scenario
    }
}
