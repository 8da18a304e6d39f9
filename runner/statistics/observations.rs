//! Turns of all runs with their place in the plan: what tables and figures are made of.

use super::{Run, Sample};
use crate::scenario::{Choice, PhaseId, Plan, Purpose, Scenario, compile};
use crate::transcript::{ChoiceRecord, Odds, TurnRecord, summary_of};
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
    /// `None`: the summary of a full memory.
    pub(super) purpose: Option<Purpose>,
    /// The choice that is made, if it is one.
    pub(super) choice: Option<Arc<Choice>>,
}

impl Planned {
    /// The turn's purpose, in a word.
    pub(super) fn word(&self) -> &'static str {
        match self.purpose {
            Some(Purpose::Speech) => "speech",
            Some(Purpose::Choice) => "choice",
            Some(Purpose::Ballot { .. }) => "vote",
            Some(Purpose::Floor) => "floor",
            None => "summary",
        }
    }

    /// Attempt and place of a ballot.
    pub(super) fn ballot(&self) -> Option<(usize, usize)> {
        match self.purpose {
            Some(Purpose::Ballot { attempt, rank }) => Some((attempt, rank)),
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
        let places =
            plans.entry(Arc::as_ptr(&run.scenario)).or_insert_with(|| places(&compile(&run.scenario)));
        for (line, turn) in run.transcript.turns.iter().enumerate() {
            let place = places.get(&turn.record.path).cloned();
            observed.push(Observed { run, at, line, record: &turn.record, place });
        }
    }
    observed
}

/// Every path that a transcript of this plan may have.
fn places(plan: &Plan) -> HashMap<String, Planned> {
    let turns = plan.order().flat_map(|(_, turn)| {
        let choice = turn.constraint.as_ref().map(|constraint| constraint.choice.clone());
        let place = Planned { phase: turn.phase, round: turn.round, purpose: Some(turn.purpose), choice };
        let summary = Planned { purpose: None, choice: None, ..place.clone() };
        [(turn.path.clone(), place), (summary_of(&turn.path), summary)]
    });
    turns.collect()
}
