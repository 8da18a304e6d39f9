//! Checks the texts: templates parse, name only what exists by then, and a system text never varies.

use super::expressions::ANY;
use super::{Checker, Steps, name_of, template_error};
use crate::compile::n_rounds_between;
use crate::language::Text;
use crate::render::{Reading, evaluate, render_stage};
use crate::results::History;
use crate::schema::WrittenTemplate;
use crate::template::{
    self, Code, OUTER, PASS_NAMES, ROUND_NAMES, STAGE_NAMES, SYSTEM_NAMES, Scope, Template, TemplateError,
};
use crate::{AgentId, Chance, PayoffRule, Phase, PhaseId, Scenario};
use greenroom_yaml::Path;
use greenroom_yaml::diagnostic::Diagnostic;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Bytes that all system texts may have together.
const MAX_SYSTEM_BYTES: usize = 64 << 20;

/// The first rounds in which a text that names the round is tried.
const MAX_ROUNDS: usize = 16;

/// Names that speak of what changes during a run.
const VARYING: &[&str] =
    &["turn", "turns", "round", "rounds", "phase", "phases", "messages", "cast", "others", "history", "now"];

impl Checker {
    /// A text of the stage, read as `phase` opens: what it names must be known by then.
    pub(super) fn template(
        &mut self,
        text: Option<WrittenTemplate>,
        path: Path,
        phase: PhaseId,
    ) -> Option<Template> {
        self.text(text, path, phase, false)
    }

    /// A text of the stage, read in rounds of `phase`.
    pub(super) fn round_text(
        &mut self,
        text: Option<WrittenTemplate>,
        path: Path,
        phase: PhaseId,
    ) -> Option<Template> {
        self.text(text, path, phase, true)
    }

    fn text(
        &mut self,
        text: Option<WrittenTemplate>,
        path: Path,
        phase: PhaseId,
        in_round: bool,
    ) -> Option<Template> {
        let (text, _, odd) = template::rewrite(&text?.0);
        let text = self.keep_lines(text, &path);
        for (line, inner) in odd {
            let span = self.name_span(&path, line, &format!("${{{inner}}}"));
            let message = format!("`${{{inner}}}` is not replaced: it stays in the text");
            let found = Diagnostic::warning("plain-text", path.to_string(), span, message);
            let help = "only `${phase.messages[agent]}` is replaced; for a variable write `{{ name }}`";
            self.push(found.help(help));
        }
        let mut text = Template { path, text, quotes: Vec::new(), scope: Scope::default() };
        self.stage_names(phase, in_round, &mut text);
        Some(text)
    }

    /// A text whose line breaks stay where Jinja keeps them, with a warning where an earlier rule took one.
    fn keep_lines(&mut self, text: String, path: &Path) -> String {
        if self.by_first_rules {
            return text;
        }
        let (kept, tags) = template::keep_lines(&text);
        let kept = kept.into_owned();
        for (line, tag) in tags {
            let span = self.tree.text_line(&self.sources, path, line);
            let message =
                format!("the line break after `{tag}` is kept, as in Jinja; earlier versions removed it");
            let signed = |sign: char| format!("{}{sign}{}", &tag[..tag.len() - 2], &tag[tag.len() - 2..]);
            let help = format!(
                "write `{}` to remove it, `{}` to keep it without this warning",
                signed('-'),
                signed('+')
            );
            self.push(Diagnostic::warning("line-break", path.to_string(), span, message).help(help));
        }
        kept
    }

    /// Renders the system texts, and refuses those that could vary within a run.
    pub(super) fn systems(&mut self, scenario: &mut Scenario, systems: &[Option<String>]) {
        let (mut steps, mut n_bytes) = (Steps::default(), 0);
        for (id, given) in systems.iter().enumerate() {
            let agent = &scenario.agents[id];
            let Some(text) = given else {
                let role = agent.role.trim_end_matches('.');
                let text = if role.is_empty() { Text::System } else { Text::SystemRole };
                let values = [("name", agent.name.as_str()), ("role", role)];
                scenario.agents[id].system = scenario.language.say(text, &values);
                continue;
            };
            let path = agent.system_path.clone();
            let (text, quotes, _) = template::rewrite(text);
            let text = self.keep_lines(text, &path);
            for quote in &quotes {
                self.varying(&path, quote.line, &format!("{}.messages", quote.phase));
            }
            let n_before = self.found.len();
            let names = match template::names(&text) {
                Ok(names) => names,
                Err(error) => {
                    self.template_error(&path, &text, error);
                    continue;
                }
            };
            for name in names.iter().filter(|name| !quotes.iter().any(|quote| quote.phase == **name)) {
                self.system_name(&path, &text, name);
            }
            if !quotes.is_empty() || self.found.len() > n_before {
                continue;
            }
            steps.spend((text.len() + scenario.agents.len()) as u64 / 2);
            let rendered = steps.count(|| template::render_system(scenario, &text, AgentId(id)));
            n_bytes += rendered.as_ref().map_or(0, String::len);
            if steps.are_used_up() {
                return self.too_many_steps(&path);
            }
            if n_bytes > MAX_SYSTEM_BYTES {
                let message = format!("the system texts up to this one have {n_bytes} bytes in total");
                let help =
                    format!("at most {MAX_SYSTEM_BYTES} are allowed: give such a text to fewer agents");
                self.error("too-many", &path, message).help = Some(help);
                return;
            }
            match rendered {
                Ok(text) => scenario.agents[id].system = text.trim().to_string(),
                Err(error) => self.template_error(&path, &text, error),
            }
        }
    }

    fn system_name(&mut self, path: &Path, text: &str, name: &str) {
        if self.names.variables.iter().any(|known| known == name) || SYSTEM_NAMES.contains(&name) {
            return;
        }
        let line = template::line_of(&Code::of(text), text, name);
        let varies =
            self.names.state.iter().any(|known| known == name) || self.intermediate_named(name).is_some();
        if varies || VARYING.contains(&name) || self.names.phase(name).is_some() {
            return self.varying(path, line, name);
        }
        if self.is_open(ANY) {
            return;
        }
        let known = self.names.variables.iter().map(String::as_str).chain(SYSTEM_NAMES.iter().copied());
        let help = self.suggest(name, known).unwrap_or("declare it under `variables:`".into());
        let message = format!("`{name}` is not defined for a system prompt");
        self.error_at("undefined-variable", path, (line, name), message).help = Some(help);
    }

    pub(super) fn unknown_agent_in(&mut self, path: &Path, line: usize, key: &str) {
        if !self.is_open(&["agents"]) {
            let span = self.name_span(path, line, key);
            self.unknown_agent(key, path, span);
        }
    }

    pub(super) fn template_error(&mut self, path: &Path, text: &str, error: TemplateError) {
        let span = self.name_span(path, error.line, name_of(&error));
        self.push(template_error(path, text, span, error));
    }

    fn varying(&mut self, path: &Path, line: usize, name: &str) {
        let message = format!("a system prompt can't use `{name}`, which varies within the run");
        let help = "the system text must stay constant, so that an agent's memory is only ever extended; \
                    put what changes into the phase's prompts";
        self.error_at("varying-system-prompt", path, (line, name), message).help = Some(help.into());
    }

    /// Checks the names in a text of the stage, and notes which phases it uses: earlier ones, in a round its
    /// own too.
    fn stage_names(&mut self, here: PhaseId, in_round: bool, text: &mut Template) {
        let end = PhaseId(here.0 + usize::from(in_round));
        let names = match template::names(&text.text) {
            Ok(names) => names,
            Err(error) => {
                self.template_error(&text.path, &text.text, error);
                return;
            }
        };
        let quotes = template::rewrite(&text.text).1;
        let quoted = quotes.iter().filter_map(|quote| Some((quote.line, quote.agent.as_ref()?)));
        for (line, agent) in quoted.collect::<BTreeSet<_>>() {
            if !self.names.has_agent(agent) {
                self.unknown_agent_in(&text.path, line, agent);
            }
        }
        let code = Code::of(&text.text);
        for name in names {
            let line = template::line_of(&code, &text.text, &name);
            if let Some(phase) = self.names.phase(&name) {
                if self.is_over(&text.path, (line, &name), phase, end) {
                    text.quotes.push(phase);
                }
            } else if name == "phases" {
                text.quotes.extend((0..end.0).map(PhaseId));
            } else if name == "payoffs" {
                text.scope.payoffs = true;
                self.payoff_is_over(&text.path, line, end, &mut text.quotes);
            } else if self.names.state.contains(&name) {
                text.scope.state = true;
            } else if let Some(known) = self.intermediate_named(&name) {
                let used = (&mut text.quotes, &mut text.scope);
                self.uses_intermediate(&text.path, (line, &name), known, end, used);
            } else if !self.is_known(&text.path, &name, in_round) {
                let quoted = quotes.iter().any(|quote| quote.phase == name);
                self.unknown_name(here, &text.path, line, &name, quoted);
            }
        }
        self.fields(&text.path, &text.text, true);
        text.quotes.sort_unstable();
        text.quotes.dedup();
    }

    /// True of a name that a text of the stage may use, phases and their results aside.
    fn is_known(&self, path: &Path, name: &str, in_round: bool) -> bool {
        self.names.variables.iter().any(|known| known == name)
            || SYSTEM_NAMES.contains(&name)
            || STAGE_NAMES.contains(&name)
            || in_round && ROUND_NAMES.contains(&name)
            || self.is_pass_name(path, name)
            || self.names.has_agent(name)
    }

    fn unknown_name(&mut self, here: PhaseId, path: &Path, line: usize, name: &str, quoted: bool) {
        if self.is_open(ANY) {
            return;
        }
        let phases = self.names.phases[..here.0].iter().map(String::as_str);
        if quoted {
            let help = self.suggest(name, phases).or(Some("no phase comes before this one".into()));
            let message = format!("there is no phase `{name}`");
            self.error_at("unknown-phase", path, (line, name), message).help = help;
            return;
        }
        let variables = self.names.variables.iter().chain(&self.names.state).map(String::as_str);
        let variables = variables.chain(self.names.lets.iter().map(|known| known.name.as_str()));
        let agents = self.names.agents.iter().map(|agent| agent.key.as_str());
        let fixed = SYSTEM_NAMES.iter().chain(STAGE_NAMES).copied();
        let help = self.suggest(name, variables.chain(agents).chain(phases).chain(fixed));
        let of_rounds = ROUND_NAMES.contains(&name).then(|| {
            "only texts of rounds can use it: `ask`, and `say` at `round_start` and `round_end`".into()
        });
        let of_blocks =
            PASS_NAMES.contains(&name).then(|| "only texts in a block (`repeat`) can use it".into());
        let of_inner =
            (name == OUTER).then(|| "only texts in a block inside another block can use it".into());
        let of_blocks = of_blocks.or(of_inner);
        let help = of_rounds.or(of_blocks).or(help).unwrap_or("declare it under `variables:`".into());
        let message = format!("`{name}` is not defined here");
        self.error_at("undefined-variable", path, (line, name), message).help = Some(help);
    }

    /// Renders every text that depends on nothing said, so that no run ends in its last template. Others are
    /// rehearsed.
    pub(super) fn try_texts(&mut self, scenario: Scenario) -> Arc<Scenario> {
        let scenario = Arc::new(scenario);
        if self.has_errors() {
            return scenario;
        }
        // Any draw will do.
        let chance = Some(Chance { here: 0, first: 0 });
        let (nothing, mut steps) = (Arc::new(History::default().drawing(chance)), Steps::default());
        let mut failed = BTreeSet::new();
        for (text, reading) in readings(&scenario) {
            if failed.contains(&text.path.to_string()) {
                continue;
            }
            steps.spend((text.text.len() + scenario.agents.len()) as u64 / 2);
            let rendered = steps.count(|| render_stage(&scenario, text, reading, &nothing));
            if let Err(error) = rendered {
                self.template_error(&text.path, &text.text, error);
                failed.insert(text.path.to_string());
            }
            if steps.are_used_up() {
                self.too_many_steps(&text.path);
                return scenario;
            }
        }
        if let Some(payoff) = &scenario.payoff
            && let PayoffRule::Matrix(table) = &payoff.rule
        {
            for cell in table.values().flatten() {
                steps.spend(cell.text.len() as u64);
                if !cell.text.parse::<f64>().is_ok_and(f64::is_finite) {
                    steps.spend(300 + scenario.phases.len() as u64);
                    steps.count(|| self.is_number(&scenario, cell));
                }
                if steps.are_used_up() {
                    self.too_many_steps(&cell.path);
                    return scenario;
                }
            }
        }
        scenario
    }

    pub(super) fn too_many_steps(&mut self, path: &Path) {
        let message = "the texts take too many steps to render: the scenario's limit is reached here";
        self.error("too-long", path, message).help =
            Some("shorten the loops, or compute lists once, under `variables`".into());
    }

    /// A cell of a payoff matrix depends on variables alone, so it can be known now.
    fn is_number(&mut self, scenario: &Arc<Scenario>, cell: &template::Expression) {
        let message = match evaluate(scenario, cell, &Arc::new(History::default())) {
            Ok(value) if value.as_f64().is_some_and(f64::is_finite) => return,
            Ok(value) => format!("`{}` is {value}, expected a number", cell.text),
            Err(error) => error.message,
        };
        self.error("bad-value", &cell.path, message).help =
            Some("write a number, or an expression over variables that are numbers".into());
    }
}

/// The rounds in which a text of rounds is tried: the first, and where it names the round, more, and the
/// last.
fn rounds_of(phase: &Phase, text: &Template) -> impl Iterator<Item = usize> {
    let n_rounds =
        if text.text.contains("round") { phase.rounds.max(1) + n_rounds_between(phase) } else { 1 };
    (1..=n_rounds.min(MAX_ROUNDS)).chain((n_rounds > MAX_ROUNDS).then_some(n_rounds))
}

/// The readings of texts that depend on nothing said; each phase's first agent first.
fn readings(scenario: &Scenario) -> Vec<(&Template, Reading)> {
    let mut readings = Vec::new();
    let most = scenario.phases.iter().map(|phase| phase.agents.len()).max().unwrap_or(0);
    for rank in 0..most {
        for (id, phase) in scenario.phases.iter().enumerate() {
            let Some(agent) = phase.agents.get(rank) else { continue };
            let opening = phase.opening(*agent).map(|(_, text)| text);
            let opening = opening.chain(phase.query().filter(|_| rank == 0)).map(|text| (text, None));
            let asked = phase.choices_asked(*agent).into_iter().filter_map(|choice| choice.ask.as_deref());
            let turns = phase.script().iter().filter(|turn| turn.agent == *agent);
            let asked = asked.chain(turns.filter_map(|turn| turn.ask.as_deref()));
            let announced = phase.announcements.iter().filter(|announced| announced.to.contains(agent));
            let of_rounds = asked.chain(announced.map(|announced| &announced.text));
            let of_rounds = of_rounds.flat_map(|text| rounds_of(phase, text).map(move |n| (text, Some(n))));
            let all =
                opening.chain(of_rounds).filter(|(text, _)| text.quotes.is_empty() && !text.scope.state);
            let reading = |round| Reading { phase: PhaseId(id), round, agent: *agent };
            readings.extend(all.map(|(text, round)| (text, reading(round))));
        }
    }
    readings
}
