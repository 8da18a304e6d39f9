//! Everything said, and what it amounts to: choices, votes, decisions, payoffs. Pure: from lines to values.
//!
//! Nothing here guesses: a choice that was not made, or could not be read, is null, and counted as invalid
//! where it was requested.

mod payoff;
mod vote;

pub use payoff::{PayoffRound, Payoffs, payoffs};
pub use vote::{Tally, tally};

use super::choice::{Chosen, text_of};
use super::plan::{Audience, Plan, Purpose, Turn};
use super::{AgentId, Choice, Phase, PhaseId, Scenario, TurnId};
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Something said in a phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Utterance {
    /// The speaker.
    pub speaker: AgentId,
    /// The round, from 1.
    pub round: usize,
    /// The text that others heard; may be empty.
    pub text: Arc<str>,
    /// The agents who heard it.
    pub audience: Audience,
    /// Its purpose.
    pub purpose: Purpose,
    /// The choice that it made, and what was chosen.
    pub choice: Option<(Arc<Choice>, Chosen)>,
    /// The value of a reply that has a form; null: it is not in it.
    pub value: Option<Value>,
    /// The calls of tools before it.
    pub calls: Vec<Value>,
}

/// Values of the state by name.
pub type StateValues = BTreeMap<String, Value>;

/// All that has happened: everything said, by phase, and what the state has come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    lines: BTreeMap<PhaseId, Vec<Utterance>>,
    /// Phases in which something was said, those whose lines are not here included.
    played: BTreeSet<PhaseId>,
    /// The state.
    pub state: Arc<StateValues>,
    /// The agents present where it is read, if not all of the phase's cast are.
    pub present: Option<Arc<BTreeSet<AgentId>>>,
}

/// The outcome of a turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    /// It has not been played yet.
    #[default]
    Open,
    /// It did not take place.
    Skipped,
    /// It was played.
    Said {
        /// The text that others heard.
        text: Arc<str>,
        /// The option chosen, where a choice was requested.
        choice: Option<Chosen>,
        /// The value of the reply, where it has a form; null: it is not in it.
        value: Option<Value>,
        /// The calls of tools that its speaker made before it: `tool`, `arguments`, `result`, `failed`.
        calls: Vec<Value>,
    },
}

impl History {
    /// Everything said in some phases by turns before `end`, in plan order whatever the order of playing. It
    /// holds no state.
    pub fn before(plan: &Plan, outcomes: &[Outcome], phases: &[PhaseId], end: TurnId) -> Self {
        let mut said = Self::default();
        if phases.is_empty() {
            return said;
        }
        let mut latest = None;
        for (id, turn) in plan.order().take(end.0) {
            let Outcome::Said { text, choice, value, calls } = &outcomes[id.0] else { continue };
            if phases.contains(&turn.phase) {
                let (value, calls) = (value.clone(), calls.clone());
                let line = Utterance { value, calls, ..Utterance::new(turn, text, *choice) };
                said.push(turn.phase, line);
            }
            if latest.replace(turn.phase) != Some(turn.phase) {
                said.played.insert(turn.phase);
            }
        }
        said
    }

    /// The lines of a phase.
    pub fn lines(&self, phase: PhaseId) -> &[Utterance] {
        self.lines.get(&phase).map(Vec::as_slice).unwrap_or_default()
    }

    /// Adds a line.
    pub fn push(&mut self, phase: PhaseId, line: Utterance) {
        self.lines.entry(phase).or_default().push(line);
        self.played.insert(phase);
    }

    /// True if something was said in a phase, whether or not its lines are here.
    pub fn was_played(&self, phase: PhaseId) -> bool {
        self.played.contains(&phase)
    }

    /// The phases that were played.
    pub fn phases(&self) -> impl Iterator<Item = PhaseId> {
        self.lines.keys().copied()
    }

    /// True if a phase was played.
    pub fn has(&self, phase: PhaseId) -> bool {
        self.lines.contains_key(&phase)
    }
}

impl Utterance {
    pub(crate) fn new(turn: &Turn, text: &Arc<str>, chosen: Option<Chosen>) -> Self {
        Self {
            speaker: turn.speaker,
            round: turn.round,
            text: text.clone(),
            audience: turn.audience.clone(),
            purpose: turn.purpose,
            choice: turn.constraint.as_ref().map(|constraint| constraint.choice.clone()).zip(chosen),
            value: None,
            calls: Vec::new(),
        }
    }

    /// True if it may be shown to an agent.
    pub fn known_to(&self, agent: AgentId) -> bool {
        self.speaker == agent || self.audience.hears(agent)
    }

    /// The option of the phase that it chose: a choice, or the first place of a ballot. Null: invalid.
    pub fn chosen(&self) -> Option<Value> {
        let counts = matches!(self.purpose, Purpose::Choice | Purpose::Ballot { rank: 1, .. });
        let (choice, chosen) = self.choice.as_ref().filter(|_| counts)?;
        Some(match chosen {
            Chosen::Option(id) => choice.options[*id].value.clone(),
            Chosen::Invalid => Value::Null,
        })
    }
}

/// The results of a phase, as templates and expressions see them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Results {
    /// True if it was played.
    pub played: bool,
    /// Rounds that were played.
    pub rounds: usize,
    /// Each agent's latest choice, by key; null: none, or invalid.
    pub choices: BTreeMap<String, Value>,
    /// All choices of each agent, oldest first.
    pub history: BTreeMap<String, Vec<Value>>,
    /// The number of times each option was chosen, in any turn; where the phase decides, in its last vote.
    pub votes: BTreeMap<String, usize>,
    /// The decision; null: none.
    pub decision: Value,
    /// True if nothing was decided because options were level.
    pub tied: bool,
    /// Choices that could not be read as an option.
    pub invalid: usize,
    /// The words of each agent, by key, one line per utterance.
    pub said: BTreeMap<String, String>,
    /// The value of each agent's latest reply that has a form, by key; null: none, or invalid.
    pub replies: BTreeMap<String, Value>,
    /// All such values of each agent, oldest first.
    pub reply_history: BTreeMap<String, Vec<Value>>,
    /// The calls of tools of each agent, by key, oldest first: `tool`, `arguments`, `result`, `failed`.
    pub calls: BTreeMap<String, Vec<Value>>,
    /// What a judge chose or replied, in the phase in which one is asked; null: nothing valid.
    pub verdict: Value,
}

/// The results of a phase.
pub fn results(scenario: &Scenario, phase: PhaseId, said: &History) -> Results {
    let lines = said.lines(phase);
    let here = scenario.phase(phase);
    let key = |agent: AgentId| scenario.agent(agent).key.clone();
    let mut results = Results { played: !lines.is_empty(), ..Results::default() };
    for agent in &here.agents {
        results.choices.insert(key(*agent), Value::Null);
        results.history.insert(key(*agent), Vec::new());
        results.said.insert(key(*agent), String::new());
        results.replies.insert(key(*agent), Value::Null);
        results.reply_history.insert(key(*agent), Vec::new());
        results.calls.insert(key(*agent), Vec::new());
    }
    for line in lines {
        results.rounds = results.rounds.max(line.round);
        if matches!(line.purpose, Purpose::Speech | Purpose::Choice) && !line.text.is_empty() {
            let said = results.said.entry(key(line.speaker)).or_default();
            if !said.is_empty() {
                said.push('\n');
            }
            said.push_str(&line.text);
        }
        results.calls.entry(key(line.speaker)).or_default().extend(line.calls.iter().cloned());
        if let Some(value) = line.chosen() {
            results.choices.insert(key(line.speaker), value.clone());
            results.history.entry(key(line.speaker)).or_default().push(value);
        }
        if let Some(value) = &line.value {
            results.replies.insert(key(line.speaker), value.clone());
            results.reply_history.entry(key(line.speaker)).or_default().push(value.clone());
        }
        let invalid = matches!(line.choice, Some((_, Chosen::Invalid))) || line.value == Some(Value::Null);
        results.invalid += usize::from(invalid);
    }
    if let Some(line) = lines.last().filter(|_| here.is_judge) {
        results.verdict = line.chosen().or_else(|| line.value.clone()).unwrap_or_default();
    }
    let tally = tally(here, lines);
    let value =
        |id: usize| here.choice.as_ref().map_or(Value::Null, |choice| choice.options[id].value.clone());
    results.decision = tally.decision.map_or(Value::Null, value);
    results.tied = tally.tied;
    results.votes = match here.decision {
        Some(_) => tally.votes.iter().enumerate().map(|(id, n)| (text_of(&value(id)), *n)).collect(),
        None => chosen(here, lines),
    };
    results
}

/// The number of times each option of a phase's turns was chosen. An option that several turns offer counts
/// in each.
fn chosen(phase: &Phase, lines: &[Utterance]) -> BTreeMap<String, usize> {
    let offered = phase.choices().flat_map(|choice| &choice.options);
    let mut votes: BTreeMap<String, usize> = offered.map(|option| (text_of(&option.value), 0)).collect();
    for value in lines.iter().filter_map(Utterance::chosen).filter(|value| !value.is_null()) {
        *votes.entry(text_of(&value)).or_default() += 1;
    }
    votes
}
