//! The edits of a fork in the memories of its agents: who reads an added line, and where.

use super::directions::Direction;
use super::edits::{Edits, StageLine};
use super::memories::{Memories, PromptError};
use crate::timeline::{Event, StageKind};
use greenroom_scenario::results::Outcome;
use greenroom_scenario::{AgentId, Input, Lifecycle, Purpose, TimelineId, TurnId};

impl Memories {
    /// The same, with the edits of a fork.
    pub fn with_edits(mut self, edits: Edits) -> Self {
        self.edits = edits;
        self
    }

    /// The reply that was given from outside to a turn, instead of its speaker's.
    pub fn given_reply(&self, id: TurnId) -> Option<&str> {
        self.edits.said.get(&id).map(AsRef::as_ref)
    }

    /// Events that inputs are to an agent, with the added lines that a memory reads from them on: those
    /// before `end` that it has not read at an earlier turn of its own.
    pub(super) fn events_with_added(
        &self,
        path: &str,
        of: TimelineId,
        mut inputs: &[Input],
        end: TurnId,
    ) -> Result<Vec<Event>, PromptError> {
        let mut events = Vec::new();
        let spoke = |id: &TurnId| matches!(self.outcomes[id.0], Outcome::Said { .. });
        let added = || self.edits.added.iter().filter(|line| self.reads(of, line) && line.before <= end);
        // Most runs have none.
        let last = added().next().and_then(|_| {
            let own = self.plan.order().take(end.0).filter(|(_, turn)| turn.timeline == of);
            own.map(|(id, _)| id).filter(spoke).last()
        });
        for line in added().filter(|line| last.is_none_or(|last| last < line.before)) {
            let later = |input: &Input| self.is_later(input, line.before);
            let (sooner, rest) = inputs.split_at(inputs.iter().position(later).unwrap_or(inputs.len()));
            events.extend(self.events(path, of.agent, sooner)?);
            let turn = self.plan.turn(line.before);
            let (origin, phase) = (turn.path.clone(), self.scenario.phase(turn.phase).part.clone());
            events.push(Event::Stage { kind: StageKind::Added, text: line.text.clone(), origin, phase });
            inputs = rest;
        }
        events.extend(self.events(path, of.agent, inputs)?);
        Ok(events)
    }

    /// Returns whether a memory is to read an added line.
    fn reads(&self, of: TimelineId, line: &StageLine) -> bool {
        let phase = self.plan.turn(line.before).phase;
        let meant = match line.to {
            Some(agent) => agent == of.agent,
            None => self.scenario.phase(phase).agents.contains(&of.agent),
        };
        meant && of.phase.is_none_or(|own| own == phase)
    }

    /// Returns whether something happens after the moment before a turn. What opens or is announced there is
    /// before the added line.
    fn is_later(&self, input: &Input, before: TurnId) -> bool {
        match input {
            Input::Heard(turn) => *turn >= before,
            Input::Opening(phase) => self.plan.begin_of(*phase, 0).turns > before,
            Input::Announced(announced) => announced.known.turns > before,
            Input::Record(phase) => self.plan.begin_of(*phase, 0).turns >= before,
            Input::Vote(phase, attempt) => self.plan.order().skip(before.0).any(|(_, turn)| {
                let of = matches!(turn.purpose, Purpose::Ballot { attempt: of, .. } if of == *attempt);
                of && turn.phase == *phase
            }),
        }
    }

    /// The lines that were added before a turn.
    pub(super) fn added_before(&self, before: TurnId) -> impl Iterator<Item = Direction> {
        let added = self.edits.added.iter().filter(move |line| line.before == before);
        added.map(|line| {
            let turn = self.plan.turn(line.before);
            let to = line.to.map(|agent| vec![agent]);
            Direction { phase: turn.phase, round: turn.round, to, text: line.text.clone() }
        })
    }

    /// Memories that an added line is still to be read by when the plan ends.
    pub(super) fn with_added(&self) -> Vec<TimelineId> {
        let is_permanent = |agent: &AgentId| self.scenario.agent(*agent).lifecycle == Lifecycle::Permanent;
        let permanent = (0..self.scenario.agents.len()).map(AgentId).filter(is_permanent);
        let memories = permanent.map(|agent| TimelineId { agent, phase: None });
        memories.filter(|of| self.edits.added.iter().any(|line| self.reads(*of, line))).collect()
    }
}
