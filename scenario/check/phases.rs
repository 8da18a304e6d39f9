//! Checks the phases: who is present, what opens them, and how long they last.

use super::choices::{Answer, Vote};
use super::{Checker, is_identifier};
use crate::compile::{n_each_round, n_turns};
use crate::schema::{WrittenCount, WrittenExpression, WrittenPhase};
use crate::template::{ROUND_NAMES, evaluate_in, plain_variables};
use crate::{AgentId, Phase, PhaseId, ScriptTurn, Topology};
use greenroom_yaml::Path;
use greenroom_yaml::diagnostic::{Diagnostic, Span};
use std::sync::Arc;

/// Maximum number of messages that all its agents together may hear.
const MAX_HEARD: usize = 1_000_000;

impl Checker {
    /// Rejects a scenario whose agents hear, or are quoted, more than a plan can hold.
    pub(super) fn check_hearing(&mut self, phases: &[Phase]) {
        let n_quoted = |quoted: PhaseId| phases.get(quoted.0).map_or(0, n_turns);
        let of = |phase: &Phase| {
            let n_turns = n_turns(phase);
            let heard = n_turns.saturating_mul(phase.agents.len().saturating_sub(1));
            let opening = phase.agents.iter().flat_map(|agent| phase.opening(*agent));
            let conditions = || phase.when.iter().chain(&phase.until).chain(&phase.cast);
            let when = phase.agents.iter().flat_map(|_| conditions());
            let quotes = opening.flat_map(|(_, text)| text.needs()).chain(when.flat_map(|when| when.needs()));
            let read = quotes.map(n_quoted).fold(heard, usize::saturating_add);
            let announced = phase.announcements.iter().flat_map(|announced| {
                let quoted = announced.text.needs().map(n_quoted).fold(1, usize::saturating_add);
                announced.to.iter().map(move |_| quoted.saturating_mul(phase.rounds))
            });
            let read = announced.fold(read, usize::saturating_add);
            let asked = phase.asks().flat_map(|ask| ask.needs()).map(n_quoted).fold(0, usize::saturating_add);
            // A turn with conditions or a question of its own looks back on what these name, each time.
            let script = phase.script().iter().flat_map(|turn| &turn.when).flat_map(|when| when.needs());
            let script = script.map(n_quoted).fold(asked, usize::saturating_add).saturating_mul(phase.rounds);
            let matched = phase.matched().into_iter().flat_map(|pairs| pairs.needs()).map(n_quoted);
            let matched = matched.fold(0, usize::saturating_add).saturating_mul(n_turns);
            let barrier = if phase.until.is_some() { n_turns.saturating_mul(phase.agents.len()) } else { 0 };
            [script, matched, barrier].into_iter().fold(read, usize::saturating_add)
        };
        let judges = phases.iter().filter(|phase| phase.is_judge).count();
        let judged = phases.iter().map(n_turns).fold(0, usize::saturating_add).saturating_mul(judges);
        let all = phases.iter().map(of).fold(judged, usize::saturating_add);
        if all > MAX_HEARD {
            let message = format!("agents hear or read {all} messages; at most {MAX_HEARD} are allowed");
            self.error("too-long", &Path::default().key("phases"), message).help =
                Some("let fewer agents take part in a phase, lower its `rounds`, or quote less".into());
        }
    }

    pub(super) fn phase(&mut self, mut written: WrittenPhase, path: &Path, id: PhaseId) -> Phase {
        let name = self.phase_name(written.name.take(), path, id.0);
        let hints = self.hints(written.model.take(), written.sampling.take(), path);
        let (cast, present) = self.phase_cast(&mut written, path, id);
        let (openings, announcements) = self.said(written.say.take(), &cast, &path.key("say"), id);
        let audience = self.audience(written.to.take(), &cast, &path.key("to"));
        let overhears = self.overhears(written.overhears.take(), &cast, &path.key("overhears"));
        let voted = written.vote.take().and_then(|vote| self.vote(vote, &cast, &path.key("vote"), id));
        let ask = self.round_text(written.ask.take(), path.key("ask"), id).map(Arc::new);
        let Answer { choice, form, call } = self.answer(written.answer.take(), ask.clone(), path, id);
        let ask = ask.filter(|_| choice.is_none());
        if choice.is_some() && voted.is_some() {
            let message = "the turns of a phase choose, or it votes, not both";
            self.error("contradiction", &path.key("answer"), message).help =
                Some("use two phases, or give single `turns` their own `answer`".into());
        }
        let topology = self.topology(&mut written, &cast, path, id);
        let route = written.route.take();
        let when = written.when.and_then(|given| self.expression(given, path.key("when"), id, &[]));
        let until = PhaseId(id.0 + 1);
        let until =
            written.until.and_then(|given| self.expression(given, path.key("until"), until, ROUND_NAMES));
        let max_turns = self.count(written.max_turns, &path.key("max_turns"));
        let rounds = written.rounds.take().map(|given| self.rounds(given, path.key("rounds")));
        let label = self.known_text(written.label.take(), &path.key("label"));
        let [set_each_round, set] = self.sets(written.set, &path.key("set"), id);
        let Vote { choice: of_vote, decision, voters, is_secret } = voted.unwrap_or_default();
        let mut phase = Phase {
            label: label.unwrap_or_else(|| name.clone()),
            part: name.clone(),
            name,
            path: path.clone(),
            pass: None,
            cast: present,
            route: None,
            voters,
            is_secret_vote: is_secret,
            is_unheard: audience.is_none(),
            is_judge: false,
            topology,
            whispers: audience.unwrap_or_default(),
            overhears,
            when,
            until,
            choice: choice.or(of_vote),
            ask,
            form,
            call,
            decision,
            format: written.debate_format.and_then(|format| self.format(format, path, id)),
            initial: self.template(written.prompt, path.key("prompt"), id),
            openings,
            announcements,
            set_each_round,
            set,
            rounds: 1,
            max_turns,
            fresh: written.fresh.unwrap_or(false),
            hints,
            observers: cast.iter().copied().filter(|agent| self.names.agents[agent.0].is_silent).collect(),
            agents: cast,
        };
        let each_round = n_each_round(&phase).0.max(1);
        phase.rounds = rounds.unwrap_or_else(|| max_turns.map_or(1, |most| most.div_ceil(each_round)));
        if let Some(call) = &phase.call {
            let own = |agent: &AgentId| match &phase.topology {
                Topology::Script(turns) => {
                    turns.iter().any(|turn| turn.agent == *agent && !turn.has_answer())
                }
                _ => true,
            };
            let speakers: Vec<AgentId> = phase.speakers().into_iter().filter(own).collect();
            self.can_call(call, &speakers, path);
        }
        self.sensible(&phase, path);
        phase.route = route.and_then(|route| self.route(route, &phase, path, id));
        phase
    }

    /// Rejects a phase in which nothing happens, or who speaks may not.
    fn sensible(&mut self, phase: &Phase, path: &Path) {
        let speakers = phase.speakers();
        let cast = path.key("agents");
        if phase.agents.is_empty() || self.is_broken(&cast) {
            return;
        }
        if phase.rounds == 0 && !phase.announcements.is_empty() {
            let message = "texts before and after rounds have no effect here: no rounds are played";
            self.unused(&path.key("say"), message, "remove it, or set `rounds`");
        }
        if phase.rounds == 0 && phase.decision.is_none() {
            return self.is_read(phase, path);
        }
        if speakers.is_empty() {
            let message =
                "nobody speaks in this phase: all agents only listen, or only the moderator is left";
            self.missing(&cast, message, "add an agent who speaks");
            return;
        }
        if let Topology::Script(turns) = &phase.topology {
            for (at, turn) in
                turns.iter().enumerate().filter(|(_, turn)| phase.observers.contains(&turn.agent))
            {
                let key = &self.names.agents[turn.agent.0].key;
                let message = format!("`{key}` only listens, so it can't have a turn");
                self.error("contradiction", &path.key("turns").index(at).key("agent"), message).help =
                    Some("remove the turn, or the agent's `speaks: false`".into());
            }
        }
        let all_own = !phase.script().is_empty() && { phase.script().iter().all(ScriptTurn::has_answer) };
        if all_own
            && (phase.choice.is_some() && phase.decision.is_none()
                || phase.form.is_some()
                || phase.call.is_some())
        {
            let message = "`answer` has no effect here: every turn has its own";
            let help = "remove it, or remove the `answer` of the turns that should use it";
            self.unused(&path.key("answer"), message, help);
        }
        if phase.matched().is_some() && phase.max_turns.is_some() {
            let message =
                "`max_turns` can't be used with `pairs` of an expression, which sets how many speak";
            self.error("contradiction", &path.key("max_turns"), message).help =
                Some("set the number of `rounds`".into());
        }
        if phase.until.is_some() && phase.rounds < 2 && !self.is_broken(&path.key("rounds")) {
            let message = "`until` has no effect here: it ends a phase of several rounds early";
            self.unused(&path.key("until"), message, "set the maximum number of rounds with `rounds`");
        }
        let has_strategy = |agent: &AgentId| self.names.agents[agent.0].strategy.is_some();
        if phase.fresh && !phase.agents.iter().any(has_strategy) {
            let message = "`fresh` has no effect here: no agent in this phase has a strategy";
            self.unused(&path.key("fresh"), message, "remove it");
        }
        let moderated = matches!(phase.topology, Topology::Moderated { .. });
        if moderated && speakers.len() < 2 {
            let message = "a moderator needs at least two agents to choose from";
            self.missing(&cast, message, "add an agent, or leave `moderator` out");
        }
    }

    /// Rejects a phase without rounds and votes in which nothing is read; warns of what has no effect there.
    fn is_read(&mut self, phase: &Phase, path: &Path) {
        if phase.agents.iter().all(|agent| phase.opening(*agent).next().is_none()) {
            let message = "nothing happens in this phase: it has no rounds, no vote and nothing to read";
            self.error("bad-value", &path.key("rounds"), message).help =
                Some("leave `rounds` out for one round, or write a `prompt`".into());
            return;
        }
        let idle = [
            ("answer", phase.choice.is_some() || phase.form.is_some() || phase.call.is_some()),
            ("turns", !phase.script().is_empty()),
            ("until", phase.until.is_some()),
        ];
        for (field, _) in idle.into_iter().filter(|(_, is_there)| *is_there) {
            let message = format!("`{field}` has no effect here: no rounds are played");
            self.unused(&path.key(field), &message, "remove it, or set `rounds`");
        }
    }

    /// A field that is understood and has no effect here.
    pub(super) fn unused(&mut self, path: &Path, message: &str, help: &str) {
        let span = self.tree.key(path);
        self.push(Diagnostic::warning("no-effect", path.to_string(), span, message).help(help));
    }

    fn phase_name(&mut self, given: Option<String>, path: &Path, at: usize) -> String {
        let Some(name) = given else {
            self.missing(
                &path.key("name"),
                "a phase needs a `name`",
                "letters, digits and `_`, e.g. `name: talk`",
            );
            return format!("phase{}", at + 1);
        };
        if !is_identifier(&name) {
            let message = format!("`{name}` is not a valid phase name: use letters, digits and `_`");
            let help = format!("for example `{}`; `label` may be any text", identifier_from(&name));
            self.error("bad-name", &path.key("name"), message).help = Some(help);
        }
        name
    }

    pub(super) fn agent_id(&mut self, key: &str, path: &Path) -> Option<AgentId> {
        let id = self.names.agents.iter().position(|agent| agent.key == key).map(AgentId);
        if id.is_none() && !self.is_open(&["agents"]) {
            let span = self.tree.value(path);
            self.unknown_agent(key, path, span);
        }
        id
    }

    pub(super) fn unknown_agent(&mut self, key: &str, path: &Path, span: Span) {
        let agents = &self.names.agents;
        let help = match agents.iter().find(|agent| agent.name == key) {
            Some(agent) => Some(format!("use the agent's key here: `{}`", agent.key)),
            None => self.suggest(key, agents.iter().map(|agent| agent.key.as_str())),
        };
        let help = help.unwrap_or("the keys are on the left under `agents:`".into());
        let message = format!("there is no agent `{key}`");
        self.push(Diagnostic::error("unknown-agent", path.to_string(), span, message).help(help));
    }

    /// Rounds, as a number or an expression over variables.
    pub(super) fn rounds(&mut self, given: WrittenCount, path: Path) -> usize {
        let text = match given {
            WrittenCount::Number(n) => return usize::try_from(n).unwrap_or(usize::MAX),
            WrittenCount::Text(text) => text,
        };
        let Some(expression) = self.expression(WrittenExpression::Text(text), path, PhaseId(0), &[]) else {
            return 1;
        };
        if expression.scope.state {
            let message =
                format!("`{}` uses the state, but this is computed before the run", expression.text);
            self.error("forward-reference", &expression.path, message).help =
                Some("use variables; `until` can end it depending on what happens".into());
            return 1;
        }
        let message = match evaluate_in(plain_variables(&self.names.values), &expression, []) {
            Ok(value) => match value.as_u64() {
                Some(n) => return usize::try_from(n).unwrap_or(usize::MAX),
                None => format!("`{}` is {value}, expected a whole number", expression.text),
            },
            Err(error) => error.message,
        };
        self.error("bad-value", &expression.path, message).help =
            Some("write a number, or an expression over variables that returns one".into());
        1
    }

    /// A count of at least one.
    pub(super) fn count(&mut self, given: Option<u64>, path: &Path) -> Option<usize> {
        let given = given?;
        if given == 0 {
            let field = path.to_string();
            let field = field.rsplit('.').next().unwrap_or_default();
            self.error("bad-value", path, format!("`{field}` must be at least 1")).help =
                Some("leave the field out for the default".into());
            return None;
        }
        Some(usize::try_from(given).unwrap_or(usize::MAX))
    }
}

pub(super) fn identifier_from(name: &str) -> String {
    let plain: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' }).collect();
    if is_identifier(&plain) { plain } else { format!("p_{plain}") }
}
