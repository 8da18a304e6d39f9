//! Turns of all runs with their place in the plan: what tables and figures are made of.

use super::{Run, Sample};
use crate::scenario::{Choice, PhaseId, Plan, Purpose, Scenario};
use crate::transcript::{ChoiceRecord, Odds, TurnRecord, turn_of};
use std::collections::HashMap;
use std::sync::Arc;

/// A recorded turn and where the plan has it.
pub(super) struct Observed<'a> {
    /// Its run.
    pub(super) run: &'a Run,
    /// The run's place among all, by cell and seed.
    pub(super) at: usize,
    /// Its line's number among those of the run's turns, from 0.
    pub(super) line: usize,
    /// Its line.
    pub(super) record: &'a TurnRecord,
    /// `None`: the plan has no such turn, so the scenario is not the one that was played.
    pub(super) place: Option<Planned>,
}

/// A turn's place in the plan.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    pub(super) phase: PhaseId,
    pub(super) round: usize,
    /// What its line is.
    pub(super) kind: LineKind,
    /// The choice that is made, if it is one.
    pub(super) choice: Option<Arc<Choice>>,
}

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineKind {
    /// A turn.
    Turn(Purpose),
    /// What a full memory starts over with, before a turn.
    Summary,
    /// A call of a tool, before a turn.
    Call,
}

impl Planned {
    /// What the line is, in a word.
    pub(super) fn word(&self) -> &'static str {
        match self.kind {
            LineKind::Turn(Purpose::Speech) => "speech",
            LineKind::Turn(Purpose::Choice) => "choice",
            LineKind::Turn(Purpose::Ballot { .. }) => "vote",
            LineKind::Turn(Purpose::Floor) => "floor",
            LineKind::Summary => "summary",
            LineKind::Call => "call",
        }
    }

    /// Attempt and place of a ballot.
    pub(super) fn ballot(&self) -> Option<(usize, usize)> {
        match self.kind {
            LineKind::Turn(Purpose::Ballot { attempt, rank }) => Some((attempt, rank)),
            _ => None,
        }
    }
}

impl<'a> Observed<'a> {
    /// Name of the phase.
    pub(super) fn phase(&self) -> Option<&'a str> {
        self.place.as_ref().map(|place| self.run.scenario.phase(place.phase).name.as_str())
    }

    /// The choice that was made, if it was one.
    pub(super) fn choice(&self) -> Option<&'a ChoiceRecord> {
        self.record.constraint.as_ref()
    }

    /// Probabilities of that choice's options, if a model was asked.
    pub(super) fn odds(&self) -> Option<Odds> {
        self.run.transcript.header.record.odds(self.record, self.line)
    }
}

/// All turns of all runs, by cell, seed and plan order.
pub(super) fn observe(sample: &Sample) -> Vec<Observed<'_>> {
    let mut plans: HashMap<*const Scenario, HashMap<String, Planned>> = HashMap::new();
    let mut observed = Vec::new();
    for (at, run) in sample.ordered().into_iter().enumerate() {
        let places = plans.entry(Arc::as_ptr(&run.scenario)).or_insert_with(|| places(run.scenario.plan()));
        for (line, turn) in run.transcript.turns.iter().enumerate() {
            let place = place_of(&turn.record, places);
            observed.push(Observed { run, at, line, record: &turn.record, place });
        }
    }
    observed
}

/// The place of a line: its turn's, or that of the turn after it.
fn place_of(line: &TurnRecord, places: &HashMap<String, Planned>) -> Option<Planned> {
    let kind = if line.call.is_some() { LineKind::Call } else { LineKind::Summary };
    let before = || Some(Planned { kind, choice: None, ..places.get(turn_of(&line.path))?.clone() });
    if line.is_aside() { before() } else { places.get(&line.path).cloned() }
}

/// The places of all turns, by path.
fn places(plan: &Plan) -> HashMap<String, Planned> {
    let turns = plan.order().map(|(_, turn)| {
        let choice = turn.constraint.as_ref().map(|constraint| constraint.choice.clone());
        let kind = LineKind::Turn(turn.purpose);
        (turn.path.clone(), Planned { phase: turn.phase, round: turn.round, kind, choice })
    });
    turns.collect()
}
