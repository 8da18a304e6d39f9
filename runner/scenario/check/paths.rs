//! Warnings that follow the ways a run can take: phases that nothing leads to, conditions that can fail, results that
//! may not exist where they are used.
//!
//! Choices, votes and decisions have few values, so conditions over them are tried on all; what depends on words, counts
//! or payoffs is not.

use super::Checker;
use crate::diagnostic::Diagnostic;
use crate::scenario::choice::{Chosen, Method, text_of};
use crate::scenario::plan::{Audience, Purpose};
use crate::scenario::results::{Line, Said};
use crate::scenario::source::Path;
use crate::scenario::template::{Code, Expression, expression_names, holds};
use crate::scenario::{Decision, Phase, PhaseId, Scenario, Topology};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most combinations of results that a condition is tried on.
const MAX_CASES: usize = 4_096;
/// How long conditions are tried, at most.
const PATIENCE: Duration = Duration::from_millis(500);
/// Results that can be listed.
const FINITE: &[&str] = &["choices", "votes", "decision", "tied", "invalid", "played"];

/// What one phase may have come to, with words for it.
type Case = (String, Vec<Line>);

impl Checker {
    pub(super) fn paths(&mut self, scenario: &Arc<Scenario>) {
        let deadline = Instant::now() + PATIENCE;
        for (id, phase) in scenario.phases.iter().enumerate() {
            if let Some(when) = &phase.when {
                self.reachable(scenario, phase, when, deadline);
            }
            if Instant::now() > deadline {
                return;
            }
            self.exists(scenario, PhaseId(id), deadline);
        }
    }

    /// Tries a condition on all that the phases it names can come to.
    fn reachable(&mut self, scenario: &Arc<Scenario>, phase: &Phase, when: &Expression, deadline: Instant) {
        // What `--set` decides may be otherwise next time.
        let names = expression_names(&when.text).unwrap_or_default();
        let settable = names.iter().any(|name| name == "variables" || scenario.variables.contains_key(name));
        let Some(cases) = cases(scenario, &[when]) else { return };
        let mut possible = settable;
        for (words, said) in cases {
            if Instant::now() > deadline {
                return;
            }
            let said = Arc::new(said);
            if !happens(scenario, &when.phases, &said) {
                continue;
            }
            match holds(scenario, when, &said) {
                Ok(held) => possible |= held,
                Err(error) => {
                    let message = format!("`when` fails if {words}: {}", error.message);
                    let found = self.warn("may-fail", &when.path, message);
                    found.help =
                        Some("a result that does not exist is null: test it with `is not none` first".into());
                    return;
                }
            }
        }
        if !possible {
            let message = format!(
                "nothing leads to `{}`: whatever is chosen, `{}` does not hold",
                phase.name, when.text
            );
            let options = when.phases.iter().filter_map(|id| {
                let phase = scenario.phase(*id);
                let options = phase.choice.as_ref()?.options.iter();
                let options: Vec<String> = options.map(|option| format!("`{}`", option.value)).collect();
                Some(format!("the options of `{}` are {}", phase.name, options.join(", ")))
            });
            let options: Vec<String> = options.collect();
            let help = if options.is_empty() {
                "correct the condition, or remove the phase".into()
            } else {
                options.join("; ")
            };
            self.warn("unreachable", &when.path, message).help = Some(help);
        }
    }

    /// Warns of results that a text uses though the phase they come from may be skipped.
    fn exists(&mut self, scenario: &Arc<Scenario>, here: PhaseId, deadline: Instant) {
        let phase = scenario.phase(here);
        let opening = phase.agents.iter().flat_map(|agent| phase.opening(*agent).map(|(_, text)| text));
        let texts: BTreeMap<String, _> =
            opening.chain(phase.asks()).map(|text| (text.path.to_string(), text)).collect();
        for text in texts.into_values() {
            for from in text.quotes.iter().filter(|from| **from != here) {
                let (path, text, from) = (text.path.clone(), &text.text, scenario.phase(*from));
                let Some(skips) = &from.when else { continue };
                let code = Code::of(text);
                let used = FINITE.iter().filter(|field| **field != "played").find_map(|field| {
                    let name = format!("{}.{field}", from.name);
                    let at = text.match_indices(&name).map(|(at, _)| at).find(|at| code.contains(*at))?;
                    Some((at, name))
                });
                let tested =
                    ["played", "is none", "is not none", "default("].iter().any(|test| text.contains(test));
                let Some((at, name)) = used.filter(|_| !tested) else { continue };
                let guarded = phase.when.as_ref().is_some_and(|when| {
                    when.text.contains(&from.name)
                        || when.text == skips.text
                        || implies(scenario, when, skips)
                });
                if guarded || Instant::now() > deadline {
                    continue;
                }
                let line = code.line(at);
                let message = format!(
                    "`{name}` may not exist here: if `{}` does not hold, `{}` is skipped, and `{}` reads null",
                    skips.text, from.name, phase.name
                );
                let span = self.name_span(&path, line, &name);
                let found = Diagnostic::warning("may-be-missing", path.to_string(), span, message);
                self.push(
                    found.help(format!("test `{}.played`, or give `{}` a `when` too", from.name, phase.name)),
                );
            }
        }
    }

    fn warn(&mut self, code: &'static str, path: &Path, message: String) -> &mut Diagnostic {
        let span = self.spans.value(path);
        self.push(Diagnostic::warning(code, path.to_string(), span, message))
    }
}

/// All combinations of what the phases of some conditions can come to; `None`: too many, or they can't be listed.
fn cases(scenario: &Scenario, conditions: &[&Expression]) -> Option<Vec<(String, Said)>> {
    let mut all = vec![(Vec::new(), Said::default())];
    let phases: BTreeSet<PhaseId> = conditions.iter().flat_map(|when| &when.phases).copied().collect();
    for id in phases {
        let phase = scenario.phase(id);
        for text in conditions.iter().filter(|when| when.phases.contains(&id)).map(|when| &when.text) {
            let mentions = |field: &str| text.match_indices(&format!("{}.{field}", phase.name)).count();
            let listed: usize = FINITE.iter().map(|field| mentions(field)).sum();
            if mentions("") == 0 || listed != mentions("") || text.contains("payoffs") {
                return None;
            }
            // Counts grow with the rounds; one round is tried.
            let counted = mentions("votes") > 0 && phase.decision.is_none() || mentions("invalid") > 0;
            if counted && (phase.rounds > 1 || matches!(phase.decision, Some(Decision::Consensus { .. }))) {
                return None;
            }
        }
        let of_phase = of_phase(phase)?;
        if all.len().saturating_mul(of_phase.len()) > MAX_CASES {
            return None;
        }
        let with = |(words, said): &(Vec<String>, Said), (more, lines): &Case| {
            let (mut words, mut said) = (words.clone(), said.clone());
            words.push(more.clone());
            if !lines.is_empty() {
                said.0.insert(id, lines.clone());
            }
            (words, said)
        };
        all = all.iter().flat_map(|before| of_phase.iter().map(move |case| with(before, case))).collect();
    }
    Some(all.into_iter().map(|(words, said)| (words.join(" and "), said)).collect())
}

/// Whether a case can come about: each phase is played exactly if its own condition holds, as far as the case tells.
fn happens(scenario: &Arc<Scenario>, known: &[PhaseId], said: &Arc<Said>) -> bool {
    known.iter().all(|id| {
        let when = scenario.phase(*id).when.as_ref();
        let when = when.filter(|when| when.phases.iter().all(|phase| known.contains(phase)));
        let held = when.and_then(|when| holds(scenario, when, said).ok());
        held.is_none_or(|held| held == said.0.contains_key(id))
    })
}

/// Whether one condition never holds where another does not.
fn implies(scenario: &Arc<Scenario>, one: &Expression, other: &Expression) -> bool {
    let Some(cases) = cases(scenario, &[one, other]) else { return false };
    let known: Vec<PhaseId> = one.phases.iter().chain(&other.phases).copied().collect();
    cases.into_iter().map(|(_, said)| Arc::new(said)).all(|said| {
        let held = |when| holds(scenario, when, &said).unwrap_or(true);
        !happens(scenario, &known, &said) || !held(one) || held(other)
    })
}

/// What a phase can come to, one round of it.
fn of_phase(phase: &Phase) -> Option<Vec<Case>> {
    let mut cases: Vec<Case> = Vec::new();
    if phase.when.is_some() {
        cases.push((format!("`{}` is skipped", phase.name), Vec::new()));
    }
    let Some(choice) = phase.choice.as_ref() else {
        // Without options it comes to having been played, as far as a condition can list it.
        let listed = match &phase.topology {
            Topology::Script(turns) => turns.iter().all(|turn| turn.choice.is_none() && turn.when.is_none()),
            _ => true,
        };
        let line = line(*phase.speakers().first()?, Purpose::Speech, None);
        cases.push((format!("`{}` is played", phase.name), vec![line]));
        return listed.then_some(cases);
    };
    let speakers = phase.speakers();
    let all_choose =
        matches!(phase.topology, Topology::RoundRobin | Topology::TurnByTurn | Topology::Broadcast)
            && phase.max_turns.is_none_or(|most| most >= speakers.len());
    let (choosers, purpose) = match phase.decision {
        Some(Decision::Coordinator(one)) => (vec![one], Purpose::Ballot { attempt: 1, rank: 1 }),
        Some(_) => (speakers, Purpose::Ballot { attempt: 1, rank: 1 }),
        None if all_choose => (speakers, Purpose::Choice),
        None => return None,
    };
    let n_options = choice.options.len();
    // What is decoded is an option; what is searched for may not be found.
    let n_each = n_options + usize::from(choice.method == Method::Parse);
    let n_cases = choosers.iter().fold(1usize, |n, _| n.saturating_mul(n_each));
    if n_cases > MAX_CASES {
        return None;
    }
    for mut case in 0..n_cases {
        let (mut lines, mut words) = (Vec::new(), Vec::new());
        for chooser in &choosers {
            let option = case % n_each;
            case /= n_each;
            let chosen = if option < n_options { Chosen::Option(option) } else { Chosen::Invalid };
            let word = choice
                .options
                .get(option)
                .map_or("nothing valid".to_string(), |option| text_of(&option.value));
            words.push(word);
            lines.push(line(*chooser, purpose, Some((choice.clone(), chosen))));
        }
        cases.push((format!("`{}` has the choices {}", phase.name, words.join(", ")), lines));
    }
    Some(cases)
}

fn line(
    speaker: crate::scenario::AgentId,
    purpose: Purpose,
    choice: Option<(Arc<crate::scenario::Choice>, Chosen)>,
) -> Line {
    Line { speaker, round: 1, text: "…".into(), audience: Audience::All, purpose, choice }
}
