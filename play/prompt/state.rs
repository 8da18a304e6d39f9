//! The state at each point of a plan: computed from what was said, once, whenever something first asks for
//! it.

use super::memories::{Memories, PromptError};
use crate::transcript::StateRecord;
use greenroom_scenario::evaluate::assigned;
use greenroom_scenario::render::round_names;
use greenroom_scenario::results::{History, Outcome, StateValues};
use greenroom_scenario::template::Expression;
use greenroom_scenario::{Assignment, Change, Horizon, PhaseId, Trigger, TurnId};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

impl Memories {
    /// All that was said in some phases before a point of the plan, and, where a text or an expression uses
    /// it, the state there: anyone who does not use it does not wait for what decides about it.
    pub(super) fn history_at(
        &self,
        path: &str,
        phases: &[PhaseId],
        uses_state: bool,
        known: Horizon,
    ) -> Result<Arc<History>, PromptError> {
        let mut said = self.said_before(phases, known.turns);
        if uses_state {
            said.state = self.state(path, known.changes)?;
        }
        Ok(Arc::new(said))
    }

    /// Makes sure that what the state begins with could be computed, before anything is played.
    ///
    /// # Errors
    /// An expression that fails, or whose value is of another type with this seed.
    pub fn begins(&self) -> Result<(), PromptError> {
        self.state("state", 0).map(drop)
    }

    /// The state after the first `n` changes of the plan.
    fn state(&self, path: &str, n_changes: usize) -> Result<Arc<StateValues>, PromptError> {
        let at = |index: usize| self.states.0.get(index).and_then(OnceLock::get).cloned();
        let (mut done, state) = (0..n_changes)
            .rev()
            .find_map(|index| Some((index + 1, Ok(at(index)?))))
            .unwrap_or_else(|| (0, self.initial.clone()));
        let mut state = state.map_err(|(place, error)| self.failed(path, &place, error))?;
        let plan = self.plan.clone();
        for change in &plan.changes[done..n_changes] {
            if let Some(changed) = self.changed(path, change, &state)? {
                state = changed;
            }
            // The first to get here has computed the same.
            let _ = self.states.0[done].set(state.clone());
            done += 1;
        }
        Ok(state)
    }

    /// The state after a change; `None` if it does not take place.
    fn changed(
        &self,
        path: &str,
        change: &Change,
        state: &Arc<StateValues>,
    ) -> Result<Option<Arc<StateValues>>, PromptError> {
        let (phase, known) = (change.phase, change.known);
        let round = match change.after {
            Trigger::Phase => None,
            Trigger::Round(round) => Some(round),
            Trigger::Turn(turn) => Some(self.plan.turn(turn).round),
        };
        let takes_place = match change.after {
            Trigger::Phase => self.opens(path, phase)?,
            Trigger::Round(round) => self.opens(path, phase)? && self.has_round(path, phase, round)?,
            Trigger::Turn(turn) => matches!(self.outcomes[turn.0], Outcome::Said { .. }),
        };
        if !takes_place {
            return Ok(None);
        }
        let needed: Vec<PhaseId> =
            change.set.iter().flat_map(Assignment::expressions).flat_map(Expression::needs).collect();
        let mut said = self.said_before(&needed, known.turns);
        said.state = state.clone();
        let names: Vec<_> =
            round.into_iter().flat_map(|round| round_names(&self.scenario, phase, round)).collect();
        let state = assigned(&self.scenario, &change.set, &said, &names);
        for expression in change.set.iter().flat_map(Assignment::expressions) {
            let error = state.as_ref().err().filter(|(place, _)| *place == expression.path);
            self.note_evaluated(expression, error.map(|(_, error)| error));
            if error.is_some() {
                break;
            }
        }
        match state {
            Ok(state) => Ok(Some(state)),
            // What is made up may be nonsense.
            Err(_) if self.is_made_up => Ok(None),
            Err((place, error)) => Err(self.failed(path, &place, error)),
        }
    }

    /// The lines of all changes from `n_before` on that take place before a turn; also how many changes there
    /// are before it.
    ///
    /// # Errors
    /// An expression that fails.
    pub fn changes(&self, n_before: usize, end: TurnId) -> Result<(usize, Vec<StateRecord>), PromptError> {
        let plan = self.plan.clone();
        let due = plan
            .changes
            .iter()
            .enumerate()
            .skip(n_before)
            .take_while(|(_, change)| change.known.turns <= end);
        let (mut n, mut lines) = (n_before, Vec::new());
        for (index, change) in due {
            n = index + 1;
            let before = self.state(&change.path, index)?;
            let Some(after) = self.changed(&change.path, change, &before)? else { continue };
            let set = change.set.iter().filter_map(|each| {
                let value = after.get(&each.name)?;
                Some((each.name.clone(), value.clone()))
            });
            lines.push(StateRecord { path: change.path.clone(), set: set.collect::<BTreeMap<_, _>>() });
        }
        Ok((n, lines))
    }
}
