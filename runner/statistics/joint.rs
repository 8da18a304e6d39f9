//! Joint choices of agents, in each round of a phase in which several choose.

use super::observations::{LineKind, Observed};
use super::subject::{Rounds, Subject};
use crate::scenario::{AgentId, PhaseId, Purpose, text_of};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of agents whose choices are reported together; of more, hardly two rounds would be the
/// same.
const MAX_AGENTS: usize = 4;
/// Maximum number of combinations of which those that never happened are reported too.
const MAX_CELLS: usize = 16;

/// Each agent's choice in a round; `None`: invalid.
type AgentChoices = BTreeMap<AgentId, Option<String>>;

/// A phase of all runs.
#[derive(Default)]
struct Game {
    name: String,
    /// Agents who chose something in it, with their keys.
    agents: BTreeMap<AgentId, String>,
    /// Each agent's options, as the scenario lists them.
    options: BTreeMap<AgentId, Vec<String>>,
    /// True if an agent has several choices, of different options.
    is_mixed: bool,
    /// By run and round.
    rounds: BTreeMap<(usize, usize), AgentChoices>,
}

/// A subject, a run, and whether it happened there.
type JointEvent = (Subject, usize, bool);

/// The joint choices of every phase.
pub(super) fn events(observed: &[Observed<'_>]) -> Vec<JointEvent> {
    let mut events = Vec::new();
    for game in games(observed).into_values() {
        if (2..=MAX_AGENTS).contains(&game.agents.len()) && !game.is_mixed {
            game.events(&mut events);
        }
    }
    events
}

fn games(observed: &[Observed<'_>]) -> BTreeMap<PhaseId, Game> {
    let mut games: BTreeMap<PhaseId, Game> = BTreeMap::new();
    for turn in observed {
        let (Some(place), Some(made), Some(phase)) = (&turn.place, turn.choice(), turn.phase()) else {
            continue;
        };
        let (Some(choice), LineKind::Turn(Purpose::Choice)) = (&place.choice, place.kind) else { continue };
        let Some(agent) = turn.run.scenario.agent_by_key(&turn.record.agent) else { continue };
        let options: Vec<String> = choice.options.iter().map(|option| text_of(&option.value)).collect();
        let game =
            games.entry(place.phase).or_insert_with(|| Game { name: phase.to_string(), ..Game::default() });
        let known = game.options.entry(agent).or_insert_with(|| options.clone());
        game.is_mixed |= *known != options;
        game.agents.insert(agent, turn.record.agent.clone());
        let chosen = (!made.chosen.is_null()).then(|| text_of(&made.chosen));
        game.rounds.entry((turn.at, place.round)).or_default().insert(agent, chosen);
    }
    games
}

impl Game {
    fn events(mut self, events: &mut Vec<JointEvent>) {
        // A round in which an agent did not choose is not a joint choice.
        let n_agents = self.agents.len();
        self.rounds.retain(|_, made| made.len() == n_agents);
        let mut last: BTreeMap<usize, usize> = BTreeMap::new();
        for (run, round) in self.rounds.keys() {
            last.entry(*run).and_modify(|known| *known = (*known).max(*round)).or_insert(*round);
        }
        let is_long = self.rounds.len() > last.len();
        let combinations = self.combinations();
        for which in if is_long { vec![Rounds::Last, Rounds::All] } else { vec![Rounds::Last] } {
            for choices in &combinations {
                let subject = Subject::Joint {
                    phase: self.name.clone(),
                    agents: self.agents.values().cloned().collect(),
                    rounds: which,
                    choices: choices.clone(),
                };
                for ((run, round), made) in &self.rounds {
                    if which == Rounds::All || last.get(run) == Some(round) {
                        let happened = made.values().eq(choices);
                        events.push((subject.clone(), *run, happened));
                    }
                }
            }
        }
    }

    /// All combinations of options where they are few, else those that happened.
    fn combinations(&self) -> Vec<Vec<Option<String>>> {
        let happened: BTreeSet<Vec<Option<String>>> =
            self.rounds.values().map(|made| made.values().cloned().collect()).collect();
        let n_cells = self.options.values().map(Vec::len).fold(1, usize::saturating_mul);
        if n_cells > MAX_CELLS {
            return happened.into_iter().collect();
        }
        let longer = |known: Vec<Vec<Option<String>>>, options: &Vec<String>| -> Vec<Vec<Option<String>>> {
            let with = |before: Vec<Option<String>>| {
                let next = move |option: &String| [before.clone(), vec![Some(option.clone())]].concat();
                options.iter().map(next)
            };
            known.into_iter().flat_map(with).collect()
        };
        let mut all = self.options.values().fold(vec![Vec::new()], longer);
        let invalid = happened.into_iter().filter(|made| made.contains(&None));
        all.extend(invalid);
        all
    }
}
