//! Checks who answers instead of the model: the rule, and that what it says is an option where options are given.

use super::Checker;
use crate::scenario::choice::text_of;
use crate::scenario::schema::{Scalar, WrittenStrategy};
use crate::scenario::yaml::Path;
use crate::scenario::{Agent, AgentId, ChoiceOption, Decision, Phase, Strategy, Topology};
use std::collections::BTreeSet;

impl Checker {
    pub(super) fn strategy(&mut self, given: WrittenStrategy, path: &Path) -> Option<Strategy> {
        let (field, message) = match given {
            WrittenStrategy::TitForTat => return Some(Strategy::TitForTat),
            WrittenStrategy::Grim => return Some(Strategy::Grim),
            WrittenStrategy::Human => return Some(Strategy::Human),
            WrittenStrategy::Always(Some(answer)) => {
                let answer = self.known_scalar(answer, &path.key("always"));
                return Some(Strategy::Always(text_of(&answer)));
            }
            WrittenStrategy::Random(Some(p)) if (0.0..=1.0).contains(&p) => return Some(Strategy::Random(p)),
            WrittenStrategy::List(Some(answers)) if !answers.is_empty() => {
                let path = path.key("list");
                let answers = answers.into_iter().enumerate();
                let text = |(at, answer): (usize, Option<Scalar>)| {
                    Some(text_of(&self.known_scalar(answer?, &path.index(at))))
                };
                return answers.map(text).collect::<Option<_>>().map(Strategy::List);
            }
            WrittenStrategy::Always(_) => ("always", "`always` needs one option or text"),
            WrittenStrategy::Random(_) => ("random", "`random` needs a probability from 0 to 1"),
            WrittenStrategy::List(_) => ("list", "`list` needs a list of options or texts"),
        };
        let path = path.key(field);
        if !self.is_broken(&path) {
            let example = "e.g. `{ always: talk }`, `{ random: 0.5 }`, `{ list: [talk, silent] }`";
            self.error("bad-value", &path, message).help = Some(example.into());
        }
        None
    }

    /// Rejects fixed answers that are no option where the agent must choose: the run would end there.
    pub(super) fn answers(&mut self, agents: &[Agent], phases: &[Phase]) {
        for (id, agent) in agents.iter().enumerate() {
            let path = Path::default().key("agents").key(agent.key.clone()).key("strategy");
            let answers: Vec<(Path, &str)> = match &agent.strategy {
                Some(Strategy::Always(text)) => vec![(path.key("always"), text.as_str())],
                Some(Strategy::List(texts)) => {
                    let path = path.key("list");
                    texts.iter().enumerate().map(|(at, text)| (path.index(at), text.as_str())).collect()
                }
                _ => continue,
            };
            let mut met: Vec<(String, Vec<ChoiceOption>, BTreeSet<String>)> = Vec::new();
            for (phase, options) in phases.iter().flat_map(|phase| offered(agents, phase, AgentId(id))) {
                if !met.iter().any(|(_, other, _)| *other == options) {
                    let known =
                        options.iter().flat_map(|option| [text_of(&option.value), option.text.clone()]);
                    let known = known.collect();
                    met.push((phase, options, known));
                }
            }
            for (path, answer) in answers {
                // One phase is told of; the others are tried once this is right.
                let Some((place, options, _)) = met.iter().find(|(.., known)| !known.contains(answer)) else {
                    continue;
                };
                let values: Vec<String> = options.iter().map(|option| text_of(&option.value)).collect();
                let help = self.suggest(answer, values.iter().map(String::as_str));
                let message = format!(
                    "`{answer}` is not an option {place}, and `{}` can give no other answer",
                    agent.key
                );
                self.error("unknown-value", &path, message).help =
                    help.or(Some("write one of the options exactly as it is there".into()));
            }
        }
    }
}

/// The places in a phase where an agent must choose, in words, and the options.
fn offered(agents: &[Agent], phase: &Phase, agent: AgentId) -> Vec<(String, Vec<ChoiceOption>)> {
    let mut offered = Vec::new();
    let speaks = phase.speakers().contains(&agent);
    let place = |what: &str| format!("{what} `{}`", phase.name);
    let script = phase.script();
    let own = script.iter().filter(|turn| turn.agent == agent);
    let chooses = match phase.decision {
        Some(Decision::Coordinator(coordinator)) => coordinator == agent,
        None if !script.is_empty() => own.clone().any(|turn| turn.choice.is_none()),
        _ => speaks,
    };
    if let Some(choice) = phase.choice.as_ref().filter(|_| chooses) {
        offered.push((place("of the choice in"), choice.options.clone()));
    }
    for choice in own.filter_map(|turn| turn.choice.as_ref()) {
        offered.push((place("of its choice in"), choice.options.clone()));
    }
    let option = |value: serde_json::Value, text: &str| ChoiceOption { value, text: text.to_string() };
    match &phase.topology {
        Topology::Interrupt if speaks && phase.speakers().len() > 1 => {
            let options = vec![option(false.into(), "I wait"), option(true.into(), "I cut in")];
            offered.push((place("where it may cut in, in"), options));
        }
        Topology::Moderated(moderator) if *moderator == agent => {
            let speakers = phase.speakers().into_iter().map(|id| &agents[id.0]);
            let options = speakers.map(|agent| option(agent.key.clone().into(), &agent.name)).collect();
            offered.push((place("where it gives the floor, in"), options));
        }
        _ => {}
    }
    offered
}
