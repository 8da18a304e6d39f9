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
use super::{AgentId, Chance, Choice, Phase, PhaseId, Scenario, TurnId};
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
    /// True of one more pick, after those of the speaker's turns before it.
    pub is_next_pick: bool,
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
    /// Roots of what is drawn where it is read; `None`: nothing can be.
    pub chance: Option<Chance>,
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

    /// The same, with roots of draws.
    pub fn drawing(self, chance: Option<Chance>) -> Self {
        Self { chance, ..self }
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
            is_next_pick: turn
                .constraint
                .as_ref()
                .is_some_and(|constraint| turn.purpose == Purpose::Choice && !constraint.except.is_empty()),
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
        let (choice, chosen) = self.choice.as_ref().filter(|_| self.counts())?;
        Some(match chosen {
            Chosen::Option(id) => choice.options[*id].value.clone(),
            Chosen::Invalid => Value::Null,
        })
    }

    /// The same; several picks are one list.
    fn picked(&self) -> Option<Picked> {
        let (value, (choice, _)) = (self.chosen()?, self.choice.as_ref()?);
        Some(match choice.n_picks {
            1 => Picked::All(value),
            _ if self.is_next_pick => Picked::Next(value),
            _ => Picked::All(Value::Array(vec![value])),
        })
    }

    /// The same by its number, if it is valid.
    fn chosen_option(&self) -> Option<(&Arc<Choice>, usize)> {
        match self.choice.as_ref().filter(|_| self.counts())? {
            (choice, Chosen::Option(id)) => Some((choice, *id)),
            (_, Chosen::Invalid) => None,
        }
    }

    /// True if a choice of it is one of the phase.
    fn counts(&self) -> bool {
        matches!(self.purpose, Purpose::Choice | Purpose::Ballot { rank: 1, .. })
    }
}

/// A choice, or one more pick of the choice before it.
enum Picked {
    All(Value),
    Next(Value),
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
    let of = PhaseResults::new(scenario, phase, said);
    let (decision, tied) = of.decision();
    Results {
        played: of.played(),
        rounds: of.rounds(),
        choices: of.choices(),
        history: of.history(),
        votes: of.votes(),
        decision,
        tied,
        invalid: of.invalid(),
        said: of.said(),
        replies: of.replies(),
        reply_history: of.reply_history(),
        calls: of.calls(),
        verdict: of.verdict(),
    }
}

/// The results of a phase, each computed when it is asked for: a condition that asks for one is evaluated at every
/// turn.
#[derive(Clone, Copy)]
pub(crate) struct PhaseResults<'a> {
    scenario: &'a Scenario,
    phase: &'a Phase,
    lines: &'a [Utterance],
}

impl<'a> PhaseResults<'a> {
    pub(crate) fn new(scenario: &'a Scenario, phase: PhaseId, said: &'a History) -> Self {
        Self { scenario, phase: scenario.phase(phase), lines: said.lines(phase) }
    }

    pub(crate) fn played(&self) -> bool {
        !self.lines.is_empty()
    }

    pub(crate) fn rounds(&self) -> usize {
        self.lines.iter().map(|line| line.round).max().unwrap_or_default()
    }

    pub(crate) fn choices(&self) -> BTreeMap<String, Value> {
        self.by_agent(Utterance::picked, |latest, picked| match picked {
            Picked::All(value) => *latest = value,
            Picked::Next(value) => latest.as_array_mut().into_iter().for_each(|all| all.push(value.clone())),
        })
    }

    pub(crate) fn history(&self) -> BTreeMap<String, Vec<Value>> {
        self.by_agent(Utterance::picked, |all: &mut Vec<Value>, picked| match picked {
            Picked::All(value) => all.push(value),
            Picked::Next(value) => {
                let latest = all.last_mut().and_then(Value::as_array_mut);
                latest.into_iter().for_each(|latest| latest.push(value.clone()));
            }
        })
    }

    pub(crate) fn said(&self) -> BTreeMap<String, String> {
        let is_heard = |line: &Utterance| matches!(line.purpose, Purpose::Speech | Purpose::Choice);
        let text = |line: &'a Utterance| Some(&line.text).filter(|text| is_heard(line) && !text.is_empty());
        self.by_agent(text, |said: &mut String, text| {
            if !said.is_empty() {
                said.push('\n');
            }
            said.push_str(text);
        })
    }

    pub(crate) fn replies(&self) -> BTreeMap<String, Value> {
        self.by_agent(|line| line.value.as_ref(), |latest, value| *latest = value.clone())
    }

    pub(crate) fn reply_history(&self) -> BTreeMap<String, Vec<Value>> {
        self.by_agent(|line| line.value.as_ref(), |all: &mut Vec<Value>, value| all.push(value.clone()))
    }

    pub(crate) fn calls(&self) -> BTreeMap<String, Vec<Value>> {
        self.by_agent(|line| Some(&line.calls), |all: &mut Vec<Value>, calls| all.extend_from_slice(calls))
    }

    pub(crate) fn invalid(&self) -> usize {
        let is_invalid = |line: &&Utterance| {
            matches!(line.choice, Some((_, Chosen::Invalid))) || line.value == Some(Value::Null)
        };
        self.lines.iter().filter(is_invalid).count()
    }

    pub(crate) fn verdict(&self) -> Value {
        let last = self.lines.last().filter(|_| self.phase.is_judge);
        last.and_then(|line| line.chosen().or_else(|| line.value.clone())).unwrap_or_default()
    }

    /// What was decided, and whether nothing was because options were level.
    pub(crate) fn decision(&self) -> (Value, bool) {
        let tally = tally(self.phase, self.lines);
        (tally.decision.map_or(Value::Null, |id| self.option(id)), tally.tied)
    }

    pub(crate) fn votes(&self) -> BTreeMap<String, usize> {
        if self.phase.decision.is_none() {
            return self.chosen();
        }
        let votes = tally(self.phase, self.lines).votes;
        votes.iter().enumerate().map(|(id, n)| (text_of(&self.option(id)), *n)).collect()
    }

    fn option(&self, id: usize) -> Value {
        self.phase.choice.as_ref().map_or(Value::Null, |choice| choice.options[id].value.clone())
    }

    /// The number of times each option of the phase's turns was chosen. An option that several turns offer counts
    /// in each.
    fn chosen(&self) -> BTreeMap<String, usize> {
        let offered = self.phase.choices().flat_map(|choice| &choice.options);
        let mut votes: BTreeMap<String, usize> = offered.map(|option| (text_of(&option.value), 0)).collect();
        let mut counts: Vec<(&Arc<Choice>, Vec<usize>)> = Vec::new();
        for (choice, id) in self.lines.iter().filter_map(Utterance::chosen_option) {
            let known = counts.iter().position(|(known, _)| Arc::ptr_eq(known, choice));
            let at = known.unwrap_or_else(|| {
                counts.push((choice, vec![0; choice.options.len()]));
                counts.len() - 1
            });
            counts[at].1[id] += 1;
        }
        for (choice, counts) in counts {
            for (option, n) in choice.options.iter().zip(counts).filter(|(_, n)| *n > 0) {
                if !option.value.is_null() {
                    *votes.entry(text_of(&option.value)).or_default() += n;
                }
            }
        }
        votes
    }

    /// Values of each agent's lines, by key; those of the phase all have one.
    fn by_agent<T: Default, V>(
        &self,
        value: impl Fn(&'a Utterance) -> Option<V>,
        add: impl Fn(&mut T, V),
    ) -> BTreeMap<String, T> {
        let mut values: BTreeMap<AgentId, T> =
            self.phase.agents.iter().map(|agent| (*agent, T::default())).collect();
        for line in self.lines {
            if let Some(value) = value(line) {
                add(values.entry(line.speaker).or_default(), value);
            }
        }
        let keyed = values.into_iter();
        keyed.map(|(agent, value)| (self.scenario.agent(agent).key.clone(), value)).collect()
    }
}
