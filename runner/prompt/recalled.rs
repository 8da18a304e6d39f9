//! What a strategy remembers: the choices that its agent has heard, and how often it has replied.
//!
//! It knows what its agent has heard, by the plan's deliveries, from the agent's first turn on: over rounds, phases, passes of blocks, and
//! earlier runs that this one continues. A phase that is `fresh` cuts that off. A run and a rehearsal of `check` ask the same function
//! ([`recall`]); they differ in what is known of the turns before ([`Past`]).

use super::memories::{Memories, PromptError};
use crate::scenario::results::Outcome;
use crate::scenario::{
    AgentId, Choice, Chosen, Input, PhaseId, Plan, Recalled, Scenario, Strategy, Turn, TurnId,
};
use crate::timeline::Event;
use std::sync::Arc;

/// What is known of the turns of a plan by now; none: it is unknown.
pub trait Past {
    /// True if a turn was played.
    fn was_played(&self, id: TurnId) -> Option<bool>;
    /// The option that a turn chose, if it was played and chose one.
    fn option(&self, id: TurnId) -> Option<Option<usize>>;
    /// True if an agent was present in a phase whose agents are not always the same.
    fn was_present(&self, phase: PhaseId, agent: AgentId) -> Option<bool>;
    /// True if a phase with conditions was played.
    fn opened(&self, phase: PhaseId) -> Option<bool>;
}

/// What the strategy of a turn's speaker remembers, and the phase from which on, where one is `fresh`; none: something that it goes by
/// is unknown.
pub fn recall(
    scenario: &Scenario,
    plan: &Plan,
    id: TurnId,
    past: &dyn Past,
) -> Option<(Recalled, Option<PhaseId>)> {
    let (turn, mut recalled) = (plan.turn(id), Recalled::default());
    let (hears, counts) = match scenario.strategy_of(turn)? {
        Strategy::TitForTat | Strategy::Grim => (true, false),
        Strategy::List(_) => (false, true),
        _ => return Some((recalled, None)),
    };
    let choice = turn.constraint.as_ref().map(|constraint| &*constraint.choice).filter(|_| hears);
    let fresh = fresh_from(scenario, turn, past)?;
    let first = fresh.unwrap_or(PhaseId(0));
    let own = plan.order().take(id.0 + 1).filter(|(_, own)| own.timeline == turn.timeline);
    for (own_id, own) in own {
        for (heard, choice) in own.inputs.iter().filter_map(heard).zip(std::iter::repeat(choice)) {
            let (Some(choice), other) = (choice, plan.turn(heard)) else { break };
            let Some(of) = other.constraint.as_ref().filter(|_| other.phase >= first) else { continue };
            if choice.has_results_of(&of.choice) && is_there(scenario, other.phase, turn.speaker, past)? {
                let option = past.option(heard)?;
                let value = option.map(|option| &of.choice.options[option].value);
                recalled.others.extend(value.and_then(|value| choice.with_value(value)));
            }
        }
        if counts && own_id < id && own.phase >= first && is_same_part(scenario, turn, own.phase) {
            recalled.n_replies += usize::from(past.was_played(own_id)?);
        }
    }
    Some((recalled, fresh))
}

fn heard(input: &Input) -> Option<TurnId> {
    match input {
        Input::Heard(turn) => Some(*turn),
        _ => None,
    }
}

/// True if the strategy of a turn is that of the speaker's turns in another phase, too.
fn is_same_part(scenario: &Scenario, turn: &Turn, phase: PhaseId) -> bool {
    let is_by_phase = matches!(scenario.agent(turn.speaker).strategy, Some(Strategy::ByPhase(_)));
    !is_by_phase || scenario.phase(phase).name == scenario.phase(turn.phase).name
}

fn is_there(scenario: &Scenario, phase: PhaseId, agent: AgentId, past: &dyn Past) -> Option<bool> {
    if scenario.phase(phase).is_cast_open() { past.was_present(phase, agent) } else { Some(true) }
}

/// The latest phase up to a turn's own that is `fresh`, is played, and in which the speaker is present; none: there is none, or (outside)
/// it is unknown.
fn fresh_from(scenario: &Scenario, turn: &Turn, past: &dyn Past) -> Option<Option<PhaseId>> {
    for id in (0..=turn.phase.0).rev().map(PhaseId) {
        let phase = scenario.phase(id);
        if !phase.fresh || !phase.agents.contains(&turn.speaker) {
            continue;
        }
        let is_certain = id == turn.phase || scenario.opens_if(id).next().is_none();
        let opened = if is_certain { true } else { past.opened(id)? };
        if opened && (id == turn.phase || is_there(scenario, id, turn.speaker, past)?) {
            return Some(Some(id));
        }
    }
    Some(None)
}

impl Past for Memories {
    fn was_played(&self, id: TurnId) -> Option<bool> {
        Some(matches!(self.outcomes[id.0], Outcome::Said { .. }))
    }

    fn option(&self, id: TurnId) -> Option<Option<usize>> {
        Some(match &self.outcomes[id.0] {
            Outcome::Said { choice: Some(Chosen::Option(option)), .. } => Some(*option),
            _ => None,
        })
    }

    fn was_present(&self, phase: PhaseId, agent: AgentId) -> Option<bool> {
        self.is_present("a strategy", phase, agent).ok()
    }

    fn opened(&self, phase: PhaseId) -> Option<bool> {
        self.opens("a strategy", phase).ok()
    }
}

impl Memories {
    /// What the strategy of a turn's speaker remembers, who has heard what comes before the turn.
    pub(super) fn recalled(&self, id: TurnId) -> Result<Recalled, PromptError> {
        let turn = self.plan.turn(id);
        if self.scenario.strategy_of(turn).is_none() {
            return Ok(Recalled::default());
        }
        let Some((recalled, fresh)) = recall(&self.scenario, &self.plan, id, self) else {
            let (path, needed) = (turn.path.clone(), "what its strategy goes by".to_string());
            return Err(PromptError::TooEarly { path, needed });
        };
        Ok(if fresh.is_some() { recalled } else { self.with_brought(turn, recalled) })
    }

    /// The same with what the agent brought along from earlier runs.
    fn with_brought(&self, turn: &Turn, recalled: Recalled) -> Recalled {
        let n_brought = self.n_brought.get(&turn.timeline).copied().unwrap_or_default();
        let Some(timeline) = self.look(turn.timeline).filter(|_| n_brought > 0) else { return recalled };
        let choice = turn.constraint.as_ref().map(|constraint| &*constraint.choice);
        let is_by_phase = matches!(self.scenario.agent(turn.speaker).strategy, Some(Strategy::ByPhase(_)));
        let phase = &self.scenario.phase(turn.phase).name;
        let (mut others, mut n_replies) = (Vec::new(), 0);
        for event in timeline.past().iter().chain(timeline.events()).take(n_brought) {
            match event {
                Event::Heard { picked: Some(picked), .. } => {
                    let other = picked.of.options.get(picked.option);
                    let same = choice.filter(|choice| choice.has_results_of(&picked.of));
                    others.extend(same.and_then(|choice| choice.with_value(&other?.value)));
                }
                Event::Said { origin, .. } if !is_by_phase || phase_of(origin) == phase => n_replies += 1,
                _ => {}
            }
        }
        others.extend(recalled.others);
        Recalled { others, n_replies: n_replies + recalled.n_replies }
    }

    /// What a strategy remembered when it began again at each phase, and counted choices apart from talk: recordings made then
    /// hold what it replied.
    pub fn recalled_in_phase(&self, id: TurnId, n_exchanges: usize) -> Recalled {
        let turn = self.plan.turn(id);
        let Some(own) = turn.constraint.as_ref().map(|constraint| &*constraint.choice) else {
            return Recalled { others: Vec::new(), n_replies: n_exchanges };
        };
        let same = |other: &Turn| -> Option<Arc<Choice>> {
            let choice = &other.constraint.as_ref().filter(|_| other.phase == turn.phase)?.choice;
            own.has_results_of(choice).then(|| choice.clone())
        };
        let before = self.plan.order().take(id.0 + 1).filter(|(_, other)| other.timeline == turn.timeline);
        let heard = before.flat_map(|(_, other)| &other.inputs).filter_map(heard);
        let others = heard.filter_map(|heard| {
            let (option, choice) = (Past::option(self, heard)??, same(self.plan.turn(heard))?);
            own.with_value(&choice.options[option].value)
        });
        let said = self.plan.order().take(id.0).filter(|(id, other)| {
            other.speaker == turn.speaker
                && same(other).is_some()
                && matches!(self.outcomes[id.0], Outcome::Said { .. })
        });
        Recalled { others: others.collect(), n_replies: said.count() }
    }
}

/// The name of the phase of a turn, by the turn's path.
fn phase_of(path: &str) -> &str {
    path.split(['/', '.']).next().unwrap_or_default()
}
