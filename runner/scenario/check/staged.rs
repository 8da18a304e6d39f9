//! What a rehearsal works out as it goes: the state, who is present, which passes of blocks are played, which options are open.

use super::rehearsal::{Look, Moment, Play, Steps};
use crate::scenario::choice::Choice;
use crate::scenario::evaluate::{assigned, present};
use crate::scenario::plan::{Change, Occasion, Purpose, Turn, TurnId};
use crate::scenario::render::round_names;
use crate::scenario::template::{Expression, TemplateError};
use crate::scenario::{AgentId, PassId, PhaseId};
use std::collections::BTreeSet;
use std::sync::Arc;

impl Play<'_> {
    /// True if a phase opens; computed once.
    pub(super) fn opens(
        &mut self,
        phase: PhaseId,
        steps: &mut Steps,
        look: &mut Look<'_>,
    ) -> Result<bool, TemplateError> {
        if let Some(opens) = self.decided.get(&(phase, 0)) {
            return Ok(*opens);
        }
        let scenario = self.rehearsal.scenario.clone();
        let here = scenario.phase(phase);
        let mut opens = here.pass.map_or(Ok(true), |pass| self.goes_around(pass, steps, look))?;
        if let Some(when) = here.when.as_ref().filter(|_| opens) {
            opens = self.rehearsal.holds(when, None, &self.said, steps)?;
        }
        Ok(*self.decided.entry((phase, 0)).or_insert(opens))
    }

    /// True if a pass of a block is played. Where its phases are not all rehearsed, the first that is asks.
    fn goes_around(
        &mut self,
        pass: PassId,
        steps: &mut Steps,
        look: &mut Look<'_>,
    ) -> Result<bool, TemplateError> {
        if let Some(known) = self.passes.get(&pass) {
            return Ok(*known);
        }
        let scenario = self.rehearsal.scenario.clone();
        let here = scenario.pass(pass);
        let mut plays = here.within.map_or(Ok(true), |within| self.goes_around(within, steps, look))?;
        if let Some(before) = here.before.filter(|_| plays) {
            plays = self.goes_around(before, steps, look)?;
            if let Some(until) = scenario.pass(before).until.as_ref().filter(|_| plays) {
                plays = !self.asked(until, steps, look)?;
            }
        }
        if let Some(when) = here.when.as_ref().filter(|_| plays) {
            plays = self.asked(when, steps, look)?;
        }
        Ok(*self.passes.entry(pass).or_insert(plays))
    }

    fn asked(
        &self,
        condition: &Expression,
        steps: &mut Steps,
        look: &mut Look<'_>,
    ) -> Result<bool, TemplateError> {
        let held = self.rehearsal.holds(condition, None, &self.said, steps);
        look(Moment::Condition(condition, &held), &self.said, steps);
        held
    }

    /// True if an agent is present in a phase.
    pub(super) fn is_present(
        &mut self,
        phase: PhaseId,
        agent: AgentId,
        steps: &mut Steps,
        look: &mut Look<'_>,
    ) -> Result<bool, TemplateError> {
        let Some(cast) = &self.rehearsal.scenario.phase(phase).cast else { return Ok(true) };
        if !self.casts.contains_key(&phase) {
            let found = self.agents(cast, steps, look)?;
            self.casts.insert(phase, found);
        }
        Ok(self.casts[&phase].contains(&agent))
    }

    /// True if the speaker of a ballot votes.
    pub(super) fn votes(
        &self,
        turn: &Turn,
        steps: &mut Steps,
        look: &mut Look<'_>,
    ) -> Result<bool, TemplateError> {
        let voters = self.rehearsal.scenario.phase(turn.phase).voters.as_ref();
        let Some(among) = voters.and_then(|voters| voters.among.as_ref()) else { return Ok(true) };
        Ok(self.agents(among, steps, look)?.contains(&turn.speaker))
    }

    fn agents(
        &self,
        expression: &Expression,
        steps: &mut Steps,
        look: &mut Look<'_>,
    ) -> Result<BTreeSet<AgentId>, TemplateError> {
        steps.spend(self.rehearsal.steps_of(expression, &self.said));
        let said = self.said.only(&expression.phases);
        let found = steps.count(|| present(&self.rehearsal.scenario, expression, &said, &[]));
        look(Moment::Worked(expression, found.as_ref().err()), &self.said, steps);
        found
    }

    /// The options of a turn that are open, those taken already aside.
    pub(super) fn open(
        &mut self,
        turn: &Turn,
        choice: &Choice,
        steps: &mut Steps,
        look: &mut Look<'_>,
    ) -> Result<Vec<usize>, TemplateError> {
        let scenario = self.rehearsal.scenario.clone();
        let mut open: Vec<usize> = (0..choice.options.len()).collect();
        if let Some(expression) = &choice.open {
            steps.spend(self.rehearsal.steps_of(expression, &self.said));
            let names: Vec<_> = round_names(&scenario, turn.phase, turn.round).collect();
            let said = self.said.only(&expression.phases);
            let found = steps.count(|| choice.open_among(&scenario, expression, turn.speaker, &said, &names));
            look(Moment::Worked(expression, found.as_ref().err()), &self.said, steps);
            open = found?;
        }
        if turn.purpose == Purpose::Floor && scenario.phase(turn.phase).cast.is_some() {
            let mut here = Vec::new();
            for option in open {
                let agent = choice.options[option].value.as_str().and_then(|key| scenario.agent_by_key(key));
                if agent.map_or(Ok(true), |agent| self.is_present(turn.phase, agent, steps, look))? {
                    here.push(option);
                }
            }
            open = here;
        }
        let taken: BTreeSet<usize> = self.taken(turn);
        open.retain(|option| !taken.contains(option));
        Ok(open)
    }

    /// Lets the state change as it does before a turn.
    pub(super) fn change(
        &mut self,
        end: TurnId,
        steps: &mut Steps,
        look: &mut Look<'_>,
    ) -> Result<(), TemplateError> {
        let rehearsal = self.rehearsal;
        while let Some(change) =
            rehearsal.plan.changes.get(self.n_changes).filter(|change| change.known.turns <= end)
        {
            self.n_changes += 1;
            if self.phases.contains(&change.phase) && self.follows(change, steps, look)? {
                let names = match change.after {
                    Occasion::Phase => None,
                    Occasion::Round(round) => Some(round),
                    Occasion::Turn(turn) => Some(rehearsal.plan.turn(turn).round),
                };
                let names = names.into_iter();
                let names: Vec<_> =
                    names.flat_map(|round| round_names(&rehearsal.scenario, change.phase, round)).collect();
                for each in change.set.iter() {
                    steps.spend(rehearsal.steps_of(&each.value, &self.said));
                    let set = std::slice::from_ref(each);
                    let state = steps.count(|| assigned(&rehearsal.scenario, set, &self.said, &names));
                    let state = state.map_err(|(_, error)| error);
                    look(Moment::Worked(&each.value, state.as_ref().err()), &self.said, steps);
                    Arc::make_mut(&mut self.said).state = state?;
                }
            }
        }
        Ok(())
    }

    /// True if what a change follows took place.
    fn follows(
        &mut self,
        change: &Change,
        steps: &mut Steps,
        look: &mut Look<'_>,
    ) -> Result<bool, TemplateError> {
        Ok(match change.after {
            Occasion::Phase => self.opens(change.phase, steps, look)?,
            Occasion::Round(round) => {
                let goes_on = self.decided.get(&(change.phase, round)).copied().unwrap_or(true);
                self.opens(change.phase, steps, look)? && goes_on
            }
            Occasion::Turn(turn) => self.was_played(turn),
        })
    }
}
