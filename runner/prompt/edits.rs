//! Edits of a fork: replies that were given from outside, and lines that the stage adds. A header records them, so that
//! a replay knows what neither the scenario nor a model said.

use super::memories::{Memories, PromptError};
use crate::scenario::results::Outcome;
use crate::scenario::{AgentId, Input, Lifecycle, Plan, Purpose, Scenario, TimelineId, TurnId};
use crate::timeline::{Event, StageKind};
use crate::transcript::Forked;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Edits of a fork, by the turns of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    /// Replies that nobody is asked for.
    said: BTreeMap<TurnId, Arc<str>>,
    /// Added lines, the earliest first.
    told: Vec<Told>,
}

/// A line that the stage adds.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    /// The turn that it stands before.
    before: TurnId,
    /// Its reader; `None`: the cast of that turn's phase.
    to: Option<AgentId>,
    text: String,
}

impl Edits {
    /// Those that a header records. One of a turn or an agent that is not there any more is left out.
    pub fn of(forked: &Forked, plan: &Plan, scenario: &Scenario) -> Self {
        let said =
            forked.said.iter().filter_map(|said| Some((plan.find(&said.turn)?, said.text.as_str().into())));
        let told = forked.told.iter().filter_map(|told| {
            let to = match &told.to {
                Some(key) => Some(scenario.agent_by_key(key)?),
                None => None,
            };
            Some(Told { before: plan.find(&told.before)?, to, text: told.text.clone() })
        });
        let (said, mut told): (_, Vec<Told>) = (said.collect(), told.collect());
        told.sort_by_key(|told| told.before);
        Self { said, told }
    }
}

impl Memories {
    /// The same, with the edits of a fork.
    pub fn with_edits(mut self, edits: Edits) -> Self {
        self.edits = edits;
        self
    }

    /// The reply that was given from outside to a turn, instead of its speaker's.
    pub fn given(&self, id: TurnId) -> Option<&str> {
        self.edits.said.get(&id).map(AsRef::as_ref)
    }

    /// Events that inputs are to an agent, with the added lines that a memory reads from them on: those before `end` that it has
    /// not read at an earlier turn of its own.
    pub(super) fn events_with_added(
        &self,
        path: &str,
        of: TimelineId,
        mut inputs: &[Input],
        end: TurnId,
    ) -> Result<Vec<Event>, PromptError> {
        let mut events = Vec::new();
        let spoke = |id: &TurnId| matches!(self.outcomes[id.0], Outcome::Said { .. });
        let added = || self.edits.told.iter().filter(|told| self.reads(of, told) && told.before <= end);
        // Most runs have none.
        let last = added().next().and_then(|_| {
            let own = self.plan.order().take(end.0).filter(|(_, turn)| turn.timeline == of);
            own.map(|(id, _)| id).filter(spoke).last()
        });
        for told in added().filter(|told| last.is_none_or(|last| last < told.before)) {
            let later = |input: &Input| self.is_later(input, told.before);
            let (sooner, rest) = inputs.split_at(inputs.iter().position(later).unwrap_or(inputs.len()));
            events.extend(self.events(path, of.agent, sooner)?);
            let origin = self.plan.turn(told.before).path.clone();
            events.push(Event::Stage { kind: StageKind::Added, text: told.text.clone(), origin });
            inputs = rest;
        }
        events.extend(self.events(path, of.agent, inputs)?);
        Ok(events)
    }

    /// Tells whether a memory is to read an added line.
    fn reads(&self, of: TimelineId, told: &Told) -> bool {
        let phase = self.plan.turn(told.before).phase;
        let meant = match told.to {
            Some(agent) => agent == of.agent,
            None => self.scenario.phase(phase).agents.contains(&of.agent),
        };
        meant && of.phase.is_none_or(|own| own == phase)
    }

    /// Tells whether something happens after the moment before a turn. What opens or is announced there stands before the added line.
    fn is_later(&self, input: &Input, before: TurnId) -> bool {
        match input {
            Input::Heard(turn) => *turn >= before,
            Input::Opening(phase) => self.plan.first_of(*phase, 0).is_some_and(|first| first > before),
            Input::Announced(announced) => announced.known > before,
            Input::Vote(phase, attempt) => self.plan.order().skip(before.0).any(|(_, turn)| {
                let of = matches!(turn.purpose, Purpose::Ballot { attempt: of, .. } if of == *attempt);
                of && turn.phase == *phase
            }),
        }
    }

    /// Memories that an added line is still to be read by when the plan ends.
    pub(super) fn with_added(&self) -> Vec<TimelineId> {
        let is_permanent = |agent: &AgentId| self.scenario.agent(*agent).lifecycle == Lifecycle::Permanent;
        let permanent = (0..self.scenario.agents.len()).map(AgentId).filter(is_permanent);
        let memories = permanent.map(|agent| TimelineId { agent, phase: None });
        memories.filter(|of| self.edits.told.iter().any(|told| self.reads(*of, told))).collect()
    }
}
