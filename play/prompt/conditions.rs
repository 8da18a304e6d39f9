//! Conditions of turns: they depend on what comes before in plan order, never on what happened to finish
//! first.

use super::memories::{Memories, PromptError};
use greenroom_scenario::render::{holds, round_names};
use greenroom_scenario::results::{Outcome, Utterance, tally};
use greenroom_scenario::template::Expression;
use greenroom_scenario::{Chosen, Condition, Horizon, PhaseId, Purpose, TurnId, drawn_order};

impl Memories {
    /// Returns whether all conditions of a turn hold. Everything that they depend on must have been played or
    /// skipped.
    ///
    /// # Errors
    /// An expression that fails.
    pub fn takes_place(&mut self, id: TurnId) -> Result<bool, PromptError> {
        let plan = self.plan.clone();
        let turn = plan.turn(id);
        for condition in &turn.guard {
            let met = match condition {
                Condition::Opens(phase) => {
                    let opens = self.opens(&turn.path, *phase)?;
                    *self.decided.entry((*phase, 0)).or_insert(opens)
                }
                Condition::NotYetEnded(phase, round) => {
                    let goes_on = self.goes_on(&turn.path, *phase, *round)?;
                    *self.decided.entry((*phase, *round)).or_insert(goes_on)
                }
                Condition::Holds(expression) => {
                    self.holds(&turn.path, expression, Some((turn.phase, turn.round)), turn.known)?
                }
                Condition::Chose(asked, option) => {
                    let chosen = Some(Chosen::Option(*option));
                    matches!(&self.outcomes[asked.0], Outcome::Said { choice, .. } if *choice == chosen)
                }
                Condition::Played(other) => matches!(self.outcomes[other.0], Outcome::Said { .. }),
                Condition::NotPlayed(other) => self.outcomes[other.0] == Outcome::Skipped,
                Condition::Drawn(place) => {
                    let phase = self.scenario.phase(turn.phase);
                    let mut speakers = phase.speakers();
                    if let Some(cast) = self.cast(&turn.path, turn.phase)? {
                        speakers.retain(|speaker| cast.contains(speaker));
                    }
                    let begin = self.plan.begin_of(turn.phase, turn.round).turns;
                    let at = format!("{}/{}", phase.part, turn.round);
                    let order = drawn_order(self.seeds.chance(begin).here, &at, speakers.len());
                    order.get(*place).is_some_and(|nth| speakers[*nth] == turn.speaker)
                }
                Condition::Paired(one, other, pairs) => self.paired(turn, pairs)?.contains(&(*one, *other)),
                Condition::Present => self.is_present(&turn.path, turn.phase, turn.speaker)?,
                Condition::Votes => self.votes(turn)?,
                Condition::CanChoose => {
                    let choice = turn.constraint.as_ref().map(|constraint| &constraint.choice);
                    choice.map_or(Ok(true), |choice| Ok(!self.open_options(id, choice)?.is_empty()))?
                }
                Condition::Undecided(phase, attempt) => {
                    let lines = self.ballots_until(*phase, attempt - 1);
                    tally(self.scenario.phase(*phase), &lines).decision.is_none()
                }
            };
            if !met {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes all phases as played, whatever their conditions: to find everything that could be read. A text
    /// that can't be rendered with invented values is used as it is.
    pub fn open_all(&mut self) {
        self.is_made_up = true;
        self.decided = (0..self.scenario.phases.len()).map(|phase| ((PhaseId(phase), 0), true)).collect();
    }

    /// Takes only those phases and rounds as played that no condition decides about: for what is read at
    /// least.
    pub fn open_certain(&mut self) {
        self.is_made_up = true;
        let scenario = self.scenario.clone();
        for (id, phase) in scenario.phases.iter().enumerate() {
            let id = PhaseId(id);
            let is_certain = scenario.opens_if(id).next().is_none() && !phase.is_cast_open();
            self.decided.insert((id, 0), is_certain);
            for round in 1..=phase.rounds {
                self.decided.insert((id, round), round == 1 || phase.until.is_none());
            }
        }
        let later = self.plan.begins.keys().filter(|(id, round)| *round > scenario.phase(*id).rounds);
        let later: Vec<_> = later.copied().collect();
        later.into_iter().for_each(|at| _ = self.decided.insert(at, false));
    }

    /// Returns whether a phase is played at all.
    pub(super) fn opens(&self, path: &str, phase: PhaseId) -> Result<bool, PromptError> {
        if let Some(decided) = self.decided.get(&(phase, 0)) {
            return Ok(*decided);
        }
        if !self.is_in_pass(path, phase)? {
            return Ok(false);
        }
        let Some(when) = &self.scenario.phase(phase).when else { return Ok(true) };
        self.holds(path, when, None, self.plan.begin_of(phase, 0))
    }

    /// Returns whether the pass of the block that contains a phase is played, if there is one.
    pub(super) fn is_in_pass(&self, path: &str, phase: PhaseId) -> Result<bool, PromptError> {
        self.scenario.phase(phase).pass.map_or(Ok(true), |pass| self.pass_runs(path, pass))
    }

    /// Returns whether a round of a phase that opens is played: its `until` has held after no round before,
    /// and a vote asks for it if it comes after one.
    pub(super) fn has_round(&self, path: &str, phase: PhaseId, round: usize) -> Result<bool, PromptError> {
        let here = self.scenario.phase(phase);
        if self.is_made_up {
            return Ok(self.decided.get(&(phase, round)).copied().unwrap_or(true));
        }
        if round > here.rounds {
            let lines = self.ballots_until(phase, round - here.rounds);
            return Ok(tally(here, &lines).decision.is_none());
        }
        self.goes_on(path, phase, round)
    }

    /// Returns whether a phase's `until` has held after no round before this one.
    fn goes_on(&self, path: &str, phase: PhaseId, round: usize) -> Result<bool, PromptError> {
        let Some(until) = &self.scenario.phase(phase).until else { return Ok(true) };
        let known = (1..=round).rev().find_map(|at| Some((at, *self.decided.get(&(phase, at))?)));
        let (known, mut goes_on) = known.unwrap_or((1, true));
        for at in known + 1..=round {
            let begin = self.plan.begin_of(phase, at);
            goes_on = goes_on && !self.holds(path, until, Some((phase, at - 1)), begin)?;
        }
        Ok(goes_on)
    }

    /// Returns whether an expression holds before a turn; `round` is where it is asked in a phase.
    pub(super) fn holds(
        &self,
        path: &str,
        expression: &Expression,
        round: Option<(PhaseId, usize)>,
        known: Horizon,
    ) -> Result<bool, PromptError> {
        let said = self.history_at(path, &expression.phases, expression.scope.state, known)?;
        let names = round.into_iter().flat_map(|(phase, round)| round_names(&self.scenario, phase, round));
        self.evaluated(path, expression, holds(&self.scenario, expression, &said, names))
    }

    /// Everything said in a phase, except for votes after this attempt.
    pub(super) fn ballots_until(&self, phase: PhaseId, attempt: usize) -> Vec<Utterance> {
        let end = TurnId(self.plan.n_turns());
        let said = self.said_before(&[phase], end);
        let later =
            |line: &&Utterance| matches!(line.purpose, Purpose::Ballot { attempt: of, .. } if of > attempt);
        said.lines(phase).iter().filter(|line| !later(line)).cloned().collect()
    }
}
