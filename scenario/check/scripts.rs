//! Replies that are written out, held against the turns of the plan: `list` and `script`, and which strategy
//! plays which phase.

use super::Checker;
use super::strategies::placed;
use crate::choice::text_of;
use crate::plan::{Plan, Turn};
use crate::{Agent, AgentId, Lifecycle, PhaseId, Scenario, Strategy};
use greenroom_yaml::Path;
use greenroom_yaml::diagnostic::Diagnostic;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Maximum number of turns that are named of those without an entry.
const MAX_NAMED: usize = 3;

/// Maximum number of texts of a list that may be the reply to a turn: with more, nothing is checked.
const MAX_SPAN: usize = 100;

/// The number of replies that a strategy has given before a turn, at least and at most.
#[derive(Clone, Copy, Default)]
struct ReplyCount {
    least: usize,
    most: usize,
}

impl Checker {
    /// Rejects written replies that fit none of their turns, and turns that have none.
    pub(super) fn scripted(&mut self, scenario: &Scenario) {
        let is_written = |agent: &Agent| {
            let is_fixed = |strategy: &Strategy| {
                matches!(strategy, Strategy::List(_) | Strategy::Script(_) | Strategy::ByPhase(_))
            };
            agent.strategy.as_ref().is_some_and(is_fixed)
        };
        if !scenario.agents.iter().any(is_written) {
            return;
        }
        let plan = scenario.plan();
        for (id, agent) in scenario.agents.iter().enumerate().filter(|(_, agent)| is_written(agent)) {
            let own: Vec<&Turn> =
                plan.order().map(|(_, turn)| turn).filter(|turn| turn.speaker == AgentId(id)).collect();
            self.has_entries(scenario, agent, &own);
            for (path, played, part) in placed(agent, &scenario.phases) {
                let played: HashSet<&str> = played.iter().map(|phase| phase.name.as_str()).collect();
                let is_played = |turn: &Turn| played.contains(scenario.phase(turn.phase).name.as_str());
                let turns: Vec<&Turn> = own.iter().copied().filter(|turn| is_played(turn)).collect();
                match part {
                    Strategy::List(texts) => {
                        self.list(scenario, agent, &path.key("list"), texts, &turns);
                    }
                    Strategy::Script(entries) => {
                        self.by_path(agent, &path.key("script"), entries, &turns, plan);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Each phase in which an agent has a turn has a strategy, and the others have none.
    fn has_entries(&mut self, scenario: &Scenario, agent: &Agent, own: &[&Turn]) {
        let Some(Strategy::ByPhase(entries)) = &agent.strategy else { return };
        let path = Path::default().key("agents").key(agent.key.clone()).key("strategy");
        let names: Vec<&str> = own.iter().map(|turn| scenario.phase(turn.phase).name.as_str()).collect();
        let without = names.iter().find(|name| entries.iter().all(|(phase, _)| phase != *name));
        if let Some(name) = without {
            let message = format!("`{}` has a turn in `{name}`, but no strategy for it", agent.key);
            self.error("missing", &path, message).help =
                Some(format!("add an entry, e.g. `{name}: {{ always: … }}`"));
        }
        for (phase, _) in entries.iter().filter(|(phase, _)| !names.contains(&phase.as_str())) {
            let message = format!("this has no effect: `{}` has no turn in `{phase}`", agent.key);
            self.unused(&path.key(phase.clone()), &message, "remove it, or let the agent speak there");
        }
    }

    /// Rejects texts of a list that can't be the reply to the turns that they come at.
    fn list(&mut self, scenario: &Scenario, agent: &Agent, path: &Path, texts: &[String], turns: &[&Turn]) {
        let n = texts.len();
        let mut wrong = BTreeSet::new();
        for (turn, count) in counted(scenario, agent, turns) {
            let span = count.most - count.least;
            if span > MAX_SPAN {
                continue;
            }
            let all: Vec<usize> = (count.least..=count.least + span.min(n - 1)).map(|at| at % n).collect();
            if !all.iter().any(|at| fits(&texts[*at], turn)) && wrong.insert(all[0]) {
                self.check_reply(agent, &path.index(all[0]), &texts[all[0]], turn);
            }
        }
        // What never comes up is still an option somewhere, unless it is misspelled.
        let choices: Vec<&&Turn> = turns.iter().filter(|turn| turn.constraint.is_some()).collect();
        let Some(first) = choices.first().filter(|_| choices.len() == turns.len()) else { return };
        let all = choices.iter().flat_map(|turn| &turn.constraint).flat_map(|of| &of.choice.options);
        let known: HashSet<String> =
            all.flat_map(|option| [text_of(&option.value), option.text.clone()]).collect();
        for (at, text) in texts.iter().enumerate() {
            if !known.contains(text) && wrong.insert(at) {
                let name = scenario.phase(first.phase).name.clone();
                let options = first.constraint.iter().flat_map(|of| of.choice.options.clone());
                let place = format!("of the choice in `{name}`");
                self.no_option(agent, &path.index(at), text, &place, &options.collect::<Vec<_>>());
            }
        }
    }

    /// Rejects a script that lacks turns, or names others, or whose replies do not fit.
    fn by_path(
        &mut self,
        agent: &Agent,
        path: &Path,
        entries: &[(String, String)],
        turns: &[&Turn],
        plan: &Plan,
    ) {
        let by_path: BTreeMap<&str, &Turn> = turns.iter().map(|turn| (turn.path.as_str(), *turn)).collect();
        for (of, text) in entries {
            let at = path.key(of.clone());
            match by_path.get(of.as_str()) {
                Some(turn) if !fits(text, turn) => self.check_reply(agent, &at, text, turn),
                Some(_) => {}
                None => self.no_turn(agent, &at, of, &by_path, plan),
            }
        }
        let has_entry = |turn: &&&Turn| entries.iter().any(|(of, _)| *of == turn.path);
        let without: Vec<&str> =
            turns.iter().filter(|turn| !has_entry(turn)).map(|turn| turn.path.as_str()).collect();
        if let Some(first) = without.first() {
            let named: Vec<String> = without.iter().take(MAX_NAMED).map(|path| format!("`{path}`")).collect();
            let more = match without.len().saturating_sub(MAX_NAMED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let message = format!("the script has no reply for {}{more}", named.join(", "));
            self.error("missing", path, message).help = Some(format!("add `{first}: …`"));
        }
    }

    fn no_turn(&mut self, agent: &Agent, path: &Path, of: &str, own: &BTreeMap<&str, &Turn>, plan: &Plan) {
        let span = self.tree.key(path);
        let message = match plan.find(of) {
            Some(_) => format!("`{of}` is not a turn that this script of `{}` plays", agent.key),
            None => format!("there is no turn `{of}`"),
        };
        let help = self.suggest(of, own.keys().copied());
        let help = help.unwrap_or_else(|| "`greenroom graph` lists the turns by their paths".into());
        let found = Diagnostic::error("unknown-turn", path.to_string(), span, message);
        self.push(found.help(help));
    }

    /// Reports a reply that does not fit its turn.
    fn check_reply(&mut self, agent: &Agent, path: &Path, text: &str, turn: &Turn) {
        if let Some(constraint) = &turn.constraint {
            self.no_option(agent, path, text, &format!("at {}", turn.path), &constraint.choice.options);
        } else if let Some(form) = &turn.form {
            self.fits_form(agent, path, text, &format!("the reply at {}", turn.path), form);
        }
    }
}

/// True if a text can be the reply to a turn, whatever happens before it.
fn fits(text: &str, turn: &Turn) -> bool {
    match (&turn.constraint, &turn.form) {
        (Some(constraint), _) => constraint.choice.find(text).is_some(),
        (None, Some(form)) => form.read(text).is_ok(),
        (None, None) => true,
    }
}

/// The turns of a strategy, each with the number of its replies before.
fn counted<'a>(scenario: &Scenario, agent: &Agent, turns: &[&'a Turn]) -> Vec<(&'a Turn, ReplyCount)> {
    let (mut count, mut phase, mut counted) = (ReplyCount::default(), PhaseId(0), Vec::new());
    let mut is_first = true;
    for turn in turns {
        if is_first || turn.phase != phase {
            let passed = if is_first { 0 } else { phase.0 + 1 };
            for id in (passed..=turn.phase.0).map(PhaseId) {
                let here = scenario.phase(id);
                if here.fresh && here.agents.contains(&turn.speaker) {
                    let is_certain = scenario.opens_if(id).next().is_none() && !here.is_cast_open();
                    count.least = 0;
                    count.most = if is_certain || id == turn.phase { 0 } else { count.most };
                }
            }
            if agent.lifecycle == Lifecycle::Ephemeral {
                count = ReplyCount::default();
            }
            (phase, is_first) = (turn.phase, false);
        }
        counted.push((*turn, count));
        count.most += 1;
        count.least += usize::from(turn.guard.is_empty());
    }
    counted
}
