//! What the strategies of a run remember: all of its turns are known.

use super::memories::{Memories, PromptError};
use super::recalled::{KnownPast, heard_turn};
use greenroom_scenario::results::Outcome;
use greenroom_scenario::{AgentId, Choice, Chosen, PhaseId, Recalled, Turn, TurnId};
use std::sync::Arc;

impl KnownPast for Memories {
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
    /// What the strategy of a turn's speaker remembers; nothing where there is none.
    pub(super) fn recalled(&mut self, id: TurnId) -> Result<Recalled, PromptError> {
        let (scenario, plan) = (self.scenario.clone(), self.plan.clone());
        let turn = plan.turn(id);
        if scenario.strategy_of(turn).is_none() {
            return Ok(Recalled::default());
        }
        let mut recollections = std::mem::take(&mut self.recollections);
        let recalled = recollections.recall(&scenario, &plan, id, self);
        self.recollections = recollections;
        recalled.ok_or_else(|| PromptError::TooEarly {
            path: turn.path.clone(),
            needed: "what its strategy goes by".to_string(),
        })
    }

    /// What a strategy remembered when it began again at each phase, and counted choices apart from talk:
    /// recordings made then hold what it replied.
    pub fn recalled_in_phase(&self, id: TurnId, n_exchanges: usize) -> Recalled {
        let turn = self.plan.turn(id);
        let Some(own) = turn.constraint.as_ref().map(|constraint| &*constraint.choice) else {
            return Recalled { n_replies: n_exchanges, ..Recalled::default() };
        };
        let same = |other: &Turn| -> Option<Arc<Choice>> {
            let choice = &other.constraint.as_ref().filter(|_| other.phase == turn.phase)?.choice;
            own.has_results_of(choice).then(|| choice.clone())
        };
        let before = self.plan.order().take(id.0 + 1).filter(|(_, other)| other.timeline == turn.timeline);
        let heard = before.flat_map(|(_, other)| &other.inputs).filter_map(heard_turn);
        let others = heard.filter_map(|heard| {
            let (option, choice) = (KnownPast::option(self, heard)??, same(self.plan.turn(heard))?);
            own.with_value(&choice.options[option].value)
        });
        let said = self.plan.order().take(id.0).filter(|(id, other)| {
            other.speaker == turn.speaker
                && same(other).is_some()
                && matches!(self.outcomes[id.0], Outcome::Said { .. })
        });
        let mut recalled = Recalled { n_replies: said.count(), ..Recalled::default() };
        for option in others {
            recalled.has_defected |= option != 0;
            recalled.last = Some(option);
        }
        recalled
    }
}
