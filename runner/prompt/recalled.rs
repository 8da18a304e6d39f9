//! What a strategy remembers: the choices that its agent has heard, and how often it has replied.
//!
//! Both are read off the agent's timeline, so a strategy knows what its agent knows, from its first turn on: over rounds,
//! phases, passes of blocks, and earlier runs that this one continues. A phase that is `fresh` cuts that off.

use super::memories::{Memories, PromptError};
use crate::scenario::results::Outcome;
use crate::scenario::{Choice, Chosen, Input, PhaseId, Recalled, Strategy, Turn, TurnId};
use crate::timeline::{Event, Timeline};
use std::collections::HashSet;
use std::sync::Arc;

impl Memories {
    /// What the strategy of a turn's speaker remembers, who has heard what comes before the turn.
    pub(super) fn recalled(&self, id: TurnId) -> Result<Recalled, PromptError> {
        let turn = self.plan.turn(id);
        let remembers =
            |rule: &&Strategy| matches!(rule, Strategy::TitForTat | Strategy::Grim | Strategy::List(_));
        let rule = self.scenario.strategy_of(turn).filter(remembers);
        let Some(timeline) = self.look(turn.timeline).filter(|_| rule.is_some()) else {
            return Ok(Recalled::default());
        };
        let phase = &self.scenario.phase(turn.phase).name;
        let is_by_phase = matches!(self.scenario.agent(turn.speaker).strategy, Some(Strategy::ByPhase(_)));
        let choice = turn.constraint.as_ref().map(|constraint| &*constraint.choice);
        let mut recalled = Recalled::default();
        for event in self.since_fresh(turn, timeline)? {
            match event {
                Event::Heard { picked: Some(picked), .. } => {
                    let other = picked.of.options.get(picked.option);
                    let same = choice.filter(|choice| choice.has_results_of(&picked.of));
                    recalled.others.extend(same.and_then(|choice| choice.with_value(&other?.value)));
                }
                Event::Said { origin, .. } if !is_by_phase || phase_of(origin) == phase => {
                    recalled.n_replies += 1;
                }
                _ => {}
            }
        }
        Ok(recalled)
    }

    /// The events that a strategy goes by: all, or those since the latest phase that is `fresh` and in which the speaker was present.
    fn since_fresh<'a>(
        &self,
        turn: &Turn,
        timeline: &'a Timeline,
    ) -> Result<impl Iterator<Item = &'a Event>, PromptError> {
        let (past, events) = (timeline.past(), timeline.events());
        let begin = match self.fresh_from(turn)? {
            None => 0,
            Some(first) => {
                let here = &self.scenario.phases[first.0..=turn.phase.0];
                let here: HashSet<&str> = here.iter().map(|phase| phase.part.as_str()).collect();
                let is_before = |event: &Event| match event {
                    Event::Heard { origin, .. } | Event::Said { origin, .. } => {
                        !here.contains(part_of(origin))
                    }
                    _ => false,
                };
                let all = past.iter().chain(events);
                let before = all.enumerate().filter(|(_, event)| is_before(event)).last();
                let n_brought = self.n_brought.get(&turn.timeline).copied().unwrap_or_default();
                before.map_or(0, |(at, _)| at + 1).max(n_brought)
            }
        };
        Ok(past.iter().chain(events).skip(begin))
    }

    /// The latest phase up to a turn's own that is `fresh`, is played, and in which the speaker is present.
    fn fresh_from(&self, turn: &Turn) -> Result<Option<PhaseId>, PromptError> {
        for id in (0..=turn.phase.0).rev().map(PhaseId) {
            let phase = self.scenario.phase(id);
            if phase.fresh
                && phase.agents.contains(&turn.speaker)
                && self.opens(&turn.path, id)?
                && self.is_present(&turn.path, id, turn.speaker)?
            {
                return Ok(Some(id));
            }
        }
        Ok(None)
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
        let heard = before.flat_map(|(_, other)| &other.inputs).filter_map(|input| match input {
            Input::Heard(heard) => Some(*heard),
            _ => None,
        });
        let others = heard.filter_map(|heard| match &self.outcomes[heard.0] {
            Outcome::Said { choice: Some(Chosen::Option(option)), .. }
                if self.is_present(&turn.path, turn.phase, turn.speaker).unwrap_or(true) =>
            {
                own.with_value(&same(self.plan.turn(heard))?.options[*option].value)
            }
            _ => None,
        });
        let said = self.plan.order().take(id.0).filter(|(id, other)| {
            other.speaker == turn.speaker
                && same(other).is_some()
                && matches!(self.outcomes[id.0], Outcome::Said { .. })
        });
        Recalled { others: others.collect(), n_replies: said.count() }
    }
}

/// The name in transcripts of the phase of a turn, by the turn's path.
fn part_of(path: &str) -> &str {
    path.split('/').next().unwrap_or_default()
}

/// The name of the phase of a turn.
fn phase_of(path: &str) -> &str {
    part_of(path).split('.').next().unwrap_or_default()
}
