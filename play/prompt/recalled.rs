//! What a strategy remembers: the choices that its agent has heard, and how often it has replied.
//!
//! It knows what its agent has heard, by the plan's deliveries, from the agent's first turn on: over rounds,
//! phases, passes of blocks, and earlier runs that this one continues. A phase that is `fresh` cuts that off.
//! A run and a rehearsal of `check` ask the same function ([`Recollections::recall`]); they differ in what is
//! known of the turns before ([`KnownPast`]). It is carried forward from turn to turn, so that each processes
//! only what is new.

use crate::timeline::{Event, Timeline};
use greenroom_scenario::{
    AgentId, Choice, Input, PhaseId, Plan, Recalled, Scenario, Strategy, TimelineId, Turn, TurnId,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is known of the turns of a plan by now; none: it is unknown.
pub trait KnownPast {
    /// True if a turn was played.
    fn was_played(&self, id: TurnId) -> Option<bool>;
    /// The option that a turn chose, if it was played and chose one.
    fn option(&self, id: TurnId) -> Option<Option<usize>>;
    /// True if an agent was present in a phase whose agents are not always the same.
    fn was_present(&self, phase: PhaseId, agent: AgentId) -> Option<bool>;
    /// True if a phase with conditions was played.
    fn opened(&self, phase: PhaseId) -> Option<bool>;
}

/// What the strategies of a run remember, by memory.
#[derive(Clone, Debug, Default)]
pub struct Recollections {
    of: BTreeMap<TimelineId, Recollection>,
    n_looked: u64,
}

/// What an agent's strategies remember, up to a turn.
#[derive(Clone, Debug, Default)]
struct Recollection {
    /// The latest turn of the memory whose inputs are in here; `None`: nothing of this run is.
    at: Option<TurnId>,
    /// The first phase that was not searched for a fresh start.
    next_phase: usize,
    /// The fresh start from which on the agent remembers; `None`: it remembers all.
    since: Option<PhaseId>,
    /// True if it is unknown whether a phase with a fresh start was played.
    is_unclear: bool,
    heard: Vec<HeardChoice>,
    /// Replies in phases of each name; `None`: their number is unknown.
    n_replies: BTreeMap<String, Option<usize>>,
}

/// What others have chosen among the same results.
#[derive(Clone, Debug)]
struct HeardChoice {
    /// The first of the choices; all others have its results.
    of: Arc<Choice>,
    /// The option that was heard last.
    last: Option<usize>,
    /// For each option, whether it was heard.
    has_been: Vec<bool>,
    /// False if a choice is unknown.
    is_known: bool,
}

impl Recollections {
    /// What agents remember who bring these timelines from earlier runs.
    pub(super) fn of_earlier(timelines: &BTreeMap<TimelineId, Timeline>) -> Self {
        let of = timelines.iter().map(|(id, timeline)| (*id, Recollection::of_earlier(timeline)));
        Self { of: of.collect(), n_looked: 0 }
    }

    /// What the strategy of a turn's speaker remembers. `None`: the speaker has no strategy, or something
    /// that it depends on is unknown. The turns of a memory are requested in their order.
    pub fn recall(
        &mut self,
        scenario: &Scenario,
        plan: &Plan,
        id: TurnId,
        past: &dyn KnownPast,
    ) -> Option<Recalled> {
        let turn = plan.turn(id);
        let (hears, counts) = match scenario.strategy_of(turn)? {
            Strategy::TitForTat | Strategy::Grim => (true, false),
            Strategy::List(_) => (false, true),
            _ => return Some(Recalled::default()),
        };
        let own = self.of.entry(turn.timeline).or_insert_with(|| Recollection::new(turn.timeline));
        self.n_looked += own.advance(scenario, plan, id, past);
        if own.is_unclear {
            return None;
        }
        let choice = turn.constraint.as_ref().map(|constraint| &*constraint.choice).filter(|_| hears);
        let mut recalled = choice.map_or(Some(Recalled::default()), |choice| own.others(choice))?;
        if counts {
            recalled.n_replies = own.n_replies(scenario, turn)?;
        }
        Some(recalled)
    }

    /// The number of inputs, turns and phases processed since the last call.
    pub fn take_n_looked(&mut self) -> u64 {
        std::mem::take(&mut self.n_looked)
    }
}

impl Recollection {
    fn new(timeline: TimelineId) -> Self {
        Self { next_phase: timeline.phase.map_or(0, |phase| phase.0), ..Self::default() }
    }

    fn of_earlier(timeline: &Timeline) -> Self {
        let mut all = Self::default();
        for event in timeline.past().iter().chain(timeline.events()) {
            match event {
                Event::Heard { picked: Some(picked), .. } => {
                    all.hear(&picked.of, Some(Some(picked.option)));
                }
                Event::Said { phase, .. } => all.reply(phase, Some(true)),
                _ => {}
            }
        }
        all
    }

    /// Takes in what is new up to a turn; returns how much that was.
    fn advance(&mut self, scenario: &Scenario, plan: &Plan, id: TurnId, past: &dyn KnownPast) -> u64 {
        debug_assert!(
            self.at.is_none_or(|at| at <= id),
            "the turns of a memory are asked for in their order"
        );
        let turn = plan.turn(id);
        let mut n_looked = self.start_over(scenario, turn, past);
        let mut next = match self.at {
            Some(at) => plan.next_use[at.0],
            None => plan.first_use.get(&turn.timeline).copied(),
        };
        while let Some(own) = next.filter(|own| *own <= id) {
            if let Some(before) = self.at.filter(|before| Some(plan.turn(*before).phase) >= self.since) {
                self.reply(&scenario.phase(plan.turn(before).phase).name, past.was_played(before));
            }
            let inputs = &plan.turn(own).inputs;
            n_looked += 1 + inputs.len() as u64;
            for heard in inputs.iter().filter_map(heard_turn) {
                let other = plan.turn(heard);
                let Some(of) = other.constraint.as_ref().filter(|_| Some(other.phase) >= self.since) else {
                    continue;
                };
                let option = match is_there(scenario, other.phase, turn.speaker, past) {
                    Some(true) => past.option(heard),
                    Some(false) => continue,
                    None => None,
                };
                n_looked += self.hear(&of.choice, option);
            }
            self.at = Some(own);
            next = plan.next_use[own.0];
        }
        n_looked
    }

    /// Forgets what was before the latest phase up to a turn's own that is `fresh`, was played, and in which
    /// the speaker was present; returns how many phases were looked at.
    fn start_over(&mut self, scenario: &Scenario, turn: &Turn, past: &dyn KnownPast) -> u64 {
        let phases = self.next_phase..turn.phase.0 + 1;
        let n_looked = phases.len() as u64;
        for id in phases.map(PhaseId) {
            let phase = scenario.phase(id);
            if !phase.fresh || !phase.agents.contains(&turn.speaker) {
                continue;
            }
            let is_open = || {
                let is_certain = scenario.opens_if(id).next().is_none();
                if is_certain { Some(true) } else { past.opened(id) }
            };
            // In its own phase the speaker is there.
            let starts = match (id == turn.phase).then_some(true).or_else(is_open) {
                Some(true) if id != turn.phase => is_there(scenario, id, turn.speaker, past),
                known => known,
            };
            if starts == Some(true) {
                self.since = Some(id);
                self.heard.clear();
                self.n_replies.clear();
            }
            self.is_unclear = starts.is_none_or(|starts| !starts && self.is_unclear);
        }
        self.next_phase = self.next_phase.max(turn.phase.0 + 1);
        n_looked
    }

    /// Takes in a choice of another agent, if it is known, and its option, if it chose one; returns how many
    /// others it was compared with.
    fn hear(&mut self, choice: &Arc<Choice>, option: Option<Option<usize>>) -> u64 {
        let is_same = |heard: &HeardChoice| Arc::ptr_eq(&heard.of, choice) || heard.of.has_results_of(choice);
        let at = self.heard.iter().position(is_same).unwrap_or_else(|| {
            let has_been = vec![false; choice.options.len()];
            self.heard.push(HeardChoice { of: choice.clone(), last: None, has_been, is_known: true });
            self.heard.len() - 1
        });
        let heard = &mut self.heard[at];
        heard.is_known &= option.is_some();
        let option = option.flatten().and_then(|option| choice.options.get(option));
        if let Some(option) = option.and_then(|option| heard.of.with_value(&option.value)) {
            heard.last = Some(option);
            heard.has_been[option] = true;
        }
        at as u64
    }

    /// Takes in a turn of the agent in a phase of this name.
    fn reply(&mut self, phase: &str, was_played: Option<bool>) {
        if !self.n_replies.contains_key(phase) {
            self.n_replies.insert(phase.to_string(), Some(0));
        }
        if let Some(n) = self.n_replies.get_mut(phase) {
            *n = n.zip(was_played).map(|(n, was_played)| n + usize::from(was_played));
        }
    }

    /// What others chose among the results of a choice; `None`: some of it is unknown.
    fn others(&self, choice: &Choice) -> Option<Recalled> {
        let same = self.heard.iter().find(|heard| heard.of.has_results_of(choice));
        let Some(heard) = same else { return Some(Recalled::default()) };
        let here = |option: usize| choice.with_value(&heard.of.options[option].value);
        let mut chosen = (0..heard.has_been.len()).filter(|option| heard.has_been[*option]);
        heard.is_known.then(|| Recalled {
            last: heard.last.and_then(here),
            has_defected: chosen.any(|option| here(option) != Some(0)),
            n_replies: 0,
        })
    }

    /// The replies that the strategy of a turn has given; `None`: their number is unknown.
    fn n_replies(&self, scenario: &Scenario, turn: &Turn) -> Option<usize> {
        let is_by_phase = matches!(scenario.agent(turn.speaker).strategy, Some(Strategy::ByPhase(_)));
        let name = &scenario.phase(turn.phase).name;
        let same = self.n_replies.iter().filter(|(phase, _)| !is_by_phase || *phase == name);
        same.map(|(_, n)| *n).sum()
    }
}

/// The turn of which something was heard.
pub(super) fn heard_turn(input: &Input) -> Option<TurnId> {
    match input {
        Input::Heard(turn) => Some(*turn),
        _ => None,
    }
}

fn is_there(scenario: &Scenario, phase: PhaseId, agent: AgentId, past: &dyn KnownPast) -> Option<bool> {
    if scenario.phase(phase).is_cast_open() { past.was_present(phase, agent) } else { Some(true) }
}

#[cfg(test)]
mod tests;
