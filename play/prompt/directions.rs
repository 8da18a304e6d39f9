//! Lines of the stage while a plan is played, as a viewer sees them: announcements, results of votes, openings
//! of phases in which nobody has a turn, lines that a fork added. Each is before the turn that comes next, once,
//! no matter who reads it later.

use super::memories::Memories;
use crate::timeline::Event;
use greenroom_scenario::{AgentId, Announced, Input, PhaseId, Plan, Purpose, TurnId};
use std::collections::{BTreeMap, BTreeSet};

/// A line of the stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Direction {
    /// The phase that it belongs to.
    pub phase: PhaseId,
    /// The round, from 1.
    pub round: usize,
    /// Its readers; `None`: the whole cast of the phase.
    pub to: Option<Vec<AgentId>>,
    /// The text.
    pub text: String,
}

/// The lines of a plan that may be said, and who reads them, by the turn that they are before.
#[derive(Clone, Debug, Default)]
pub struct Directions(BTreeMap<TurnId, Vec<(Input, Vec<AgentId>)>>);

impl Directions {
    /// Those of a plan.
    pub fn of(plan: &Plan) -> Self {
        let mut ballots: BTreeMap<(PhaseId, usize), TurnId> = BTreeMap::new();
        for (id, turn) in plan.order() {
            if let Purpose::Ballot { attempt, .. } = turn.purpose {
                ballots.insert((turn.phase, attempt), TurnId(id.0 + 1));
            }
        }
        let spoken: BTreeSet<PhaseId> = plan.order().map(|(_, turn)| turn.phase).collect();
        let mut all = Self::default();
        let read = plan.order().map(|(_, turn)| (turn.speaker, &turn.inputs));
        let unread = plan.unread.iter().map(|(memory, inputs)| (memory.agent, inputs));
        for (agent, inputs) in read.chain(unread) {
            for input in inputs {
                let place = match input {
                    Input::Announced(announced) => announced.known.turns,
                    Input::Vote(phase, attempt) => match ballots.get(&(*phase, *attempt)) {
                        Some(place) => *place,
                        None => continue,
                    },
                    Input::Opening(phase) if !spoken.contains(phase) => plan.begin_of(*phase, 0).turns,
                    Input::Opening(_) | Input::Heard(_) | Input::Record(_) => continue,
                };
                all.add(place, *input, agent);
            }
        }
        all
    }

    /// Only the openings of phases in which nobody has a turn.
    pub fn of_silent_phases(plan: &Plan) -> Self {
        let mut all = Self::of(plan);
        let lines = all.0.values_mut();
        lines.for_each(|lines| lines.retain(|(input, _)| matches!(input, Input::Opening(_))));
        all
    }

    fn add(&mut self, place: TurnId, input: Input, agent: AgentId) {
        let here = self.0.entry(place).or_default();
        match here.iter_mut().find(|(other, _)| *other == input) {
            Some((_, readers)) if readers.contains(&agent) => {}
            Some((_, readers)) => readers.push(agent),
            None => here.push((input, vec![agent])),
        }
    }
}

impl Memories {
    /// The lines of the stage that are before a turn; all turns before it were played or skipped. An error in
    /// one that can't be rendered yet is reported where somebody reads it.
    pub fn directions(&self, all: &Directions, before: TurnId) -> Vec<Direction> {
        let mut lines = Vec::new();
        for (input, readers) in all.0.get(&before).into_iter().flatten() {
            let (phase, round) = match input {
                Input::Announced(Announced { phase, round, .. }) => (*phase, *round),
                Input::Vote(phase, _) => {
                    let last = before.0.checked_sub(1).map(|last| self.plan.turn(TurnId(last)).round);
                    (*phase, last.unwrap_or(1))
                }
                Input::Opening(phase) => (*phase, 1),
                Input::Heard(_) | Input::Record(_) => continue,
            };
            // Texts by reader: readers of the same text are together.
            let mut texts: Vec<(String, Vec<AgentId>)> = Vec::new();
            for reader in readers {
                let read = self.events("the stage", *reader, std::slice::from_ref(input)).unwrap_or_default();
                for text in read.into_iter().filter_map(text_of) {
                    match texts.iter_mut().find(|(other, _)| *other == text) {
                        Some((_, readers)) => readers.push(*reader),
                        None => texts.push((text, vec![*reader])),
                    }
                }
            }
            let present = |agent: &&AgentId| self.is_present("the stage", phase, **agent).unwrap_or(true);
            let cast: Vec<AgentId> =
                self.scenario.phase(phase).agents.iter().filter(present).copied().collect();
            let line = |(text, readers): (String, Vec<AgentId>)| {
                let is_for_all = cast.iter().all(|agent| readers.contains(agent));
                let mut to = readers;
                to.sort_by_key(|agent| cast.iter().position(|other| other == agent));
                Direction { phase, round, to: (!is_for_all).then_some(to), text }
            };
            lines.extend(texts.into_iter().map(line));
        }
        lines.extend(self.added_before(before));
        lines
    }
}

fn text_of(event: Event) -> Option<String> {
    match event {
        Event::Stage { text, .. } => Some(text),
        _ => None,
    }
}
