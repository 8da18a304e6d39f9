//! Measures of a sample: each run's contribution to the mean of each subject.

use super::bootstrap::{Contribution, MeanKind};
use super::joint;
use super::observations::{LineKind, Observed, observe};
use super::subject::{AgentOption, AgentQuestion, Subject};
use super::table;
use super::tables::{distinct, in_cast_order};
use super::{Run, Sample};
use crate::scenario::{Purpose, text_of};
use crate::transcript::Footer;
use indexmap::IndexMap;
use serde_json::Value;
use std::collections::HashSet;

/// Most different texts of an outcome, or of a decision, that are counted one by one.
const MAX_TEXTS: usize = 12;

/// Each run's contribution to a subject's mean.
#[derive(Clone, Debug)]
pub(super) struct Measure {
    pub(super) kind: MeanKind,
    /// By the run's place in [`Measures::runs`].
    pub(super) parts: IndexMap<usize, Contribution>,
}

/// All subjects of a sample, in the order of reporting.
pub(super) struct Measures<'a> {
    /// The runs, by cell and seed.
    pub(super) runs: Vec<&'a Run>,
    pub(super) by_subject: IndexMap<Subject, Measure>,
    /// True if choices and payoffs are pooled over agents.
    over_agents: bool,
}

impl<'a> Measures<'a> {
    /// Measures a sample, with choices and payoffs pooled over agents if that is wanted.
    pub(super) fn new(sample: &'a Sample, over_agents: bool) -> Self {
        let mut measures = Self { runs: sample.ordered(), by_subject: IndexMap::new(), over_agents };
        measures.outcomes();
        measures.payoffs();
        measures.decisions();
        measures.checks();
        let observed = observe(sample);
        measures.choices(&observed);
        for (subject, run, happened) in joint::events(&observed) {
            measures.add_event(subject, run, happened);
        }
        measures
    }

    /// Adds an observation of a run to a subject.
    pub(super) fn add(&mut self, subject: Subject, kind: MeanKind, run: usize, value: f64) {
        self.measure(subject, kind).parts.entry(run).or_default().add(value);
    }

    /// The measure of a subject, without a contribution where it is new.
    fn measure(&mut self, subject: Subject, kind: MeanKind) -> &mut Measure {
        self.by_subject.entry(subject).or_insert_with(|| Measure { kind, parts: IndexMap::new() })
    }

    /// Adds whether something happened.
    pub(super) fn add_event(&mut self, subject: Subject, run: usize, happened: bool) {
        self.add(subject, MeanKind::Rate, run, f64::from(u8::from(happened)));
    }

    /// Footers of finished runs, with the runs' places.
    fn footers(&self) -> Vec<(usize, &'a Footer)> {
        let footer = |(at, run): (usize, &&'a Run)| Some((at, &run.transcript.footer.as_ref()?.record));
        self.runs.iter().enumerate().filter_map(footer).collect()
    }

    fn outcomes(&mut self) {
        let footers = self.footers();
        let names =
            footers.iter().flat_map(|(_, footer)| footer.outcomes.iter().map(|outcome| &outcome.name));
        for name in distinct(names) {
            let of = |(at, footer): &(usize, &'a Footer)| {
                let outcome = footer.outcomes.iter().find(|outcome| outcome.name == *name)?;
                Some((*at, &outcome.value)).filter(|(_, value)| !value.is_null())
            };
            let values: Vec<(usize, &Value)> = footers.iter().filter_map(of).collect();
            self.outcome(name, &values);
            if values.is_empty() {
                // Nothing is known of its type; that no run has a value is a figure nevertheless.
                self.measure(Subject::Outcome { outcome: name.clone(), value: None }, MeanKind::Mean);
            }
        }
    }

    fn outcome(&mut self, outcome: &str, values: &[(usize, &Value)]) {
        let subject = |value: Option<String>| Subject::Outcome { outcome: outcome.to_string(), value };
        match table::ColumnKind::of(values.iter().map(|(_, value)| *value)) {
            table::ColumnKind::Bool => {
                for (run, value) in values {
                    self.add_event(subject(None), *run, value.as_bool() == Some(true));
                }
            }
            table::ColumnKind::Int | table::ColumnKind::Float => {
                for (run, value) in values {
                    self.add(subject(None), MeanKind::Mean, *run, value.as_f64().unwrap_or_default());
                }
            }
            table::ColumnKind::Text
                if values.iter().any(|(_, value)| value.is_array() || value.is_object()) => {}
            table::ColumnKind::Text => {
                let texts: Vec<(usize, Option<String>)> =
                    values.iter().map(|(run, value)| (*run, Some(text_of(value)))).collect();
                self.texts(&texts, subject);
            }
        }
    }

    /// Adds how often each text was there, unless there are too many of them to tell.
    fn texts(&mut self, texts: &[(usize, Option<String>)], subject: impl Fn(Option<String>) -> Subject) {
        let mut kinds: Vec<&Option<String>> = texts.iter().map(|(_, text)| text).collect();
        kinds.sort_by_key(|text| (text.is_none(), *text));
        kinds.dedup();
        if kinds.len() > MAX_TEXTS {
            return;
        }
        for kind in kinds {
            for (run, text) in texts {
                self.add_event(subject(kind.clone()), *run, text == kind);
            }
        }
    }

    fn payoffs(&mut self) {
        let footers = self.footers();
        let keys = footers.iter().filter_map(|(_, footer)| footer.payoffs.as_ref());
        let keys = keys.flat_map(|payoffs| payoffs.totals.keys());
        for agent in in_cast_order(&self.runs, keys) {
            for (run, footer) in &footers {
                let Some(payoffs) = &footer.payoffs else { continue };
                let own = (!self.over_agents).then(|| agent.clone());
                let subject = Subject::Payoff { agent: own, unit: payoffs.unit.clone() };
                // That no run has one is a figure nevertheless.
                let measure = self.measure(subject, MeanKind::Mean);
                if let Some(total) = payoffs.totals.get(agent).copied().flatten() {
                    measure.parts.entry(*run).or_default().add(total);
                }
            }
        }
    }

    fn decisions(&mut self) {
        let footers = self.footers();
        for phase in distinct(footers.iter().flat_map(|(_, footer)| footer.decisions.keys())) {
            let text = |value: &Value| (!value.is_null()).then(|| text_of(value));
            let decided: Vec<(usize, Option<String>)> = footers
                .iter()
                .filter_map(|(run, footer)| Some((*run, text(footer.decisions.get(phase)?))))
                .collect();
            self.texts(&decided, |option| Subject::Decision { phase: phase.clone(), option });
        }
    }

    fn checks(&mut self) {
        for (run, footer) in self.footers() {
            if footer.assertions.iter().any(|assertion| assertion.share.is_none()) {
                self.add_event(Subject::Assertions, run, footer.holds());
            }
        }
        for (run, footer) in self.footers() {
            let of_many = footer.assertions.iter().filter(|assertion| assertion.share.is_some());
            // Two with different bounds may ask the same.
            let of_many: IndexMap<String, bool> = of_many.map(|each| (each.name(), each.holds)).collect();
            for (that, holds) in of_many {
                self.add_event(Subject::Assertion { that }, run, holds);
            }
        }
    }

    fn choices(&mut self, observed: &[Observed<'a>]) {
        let made = |turn: &'_ &Observed<'a>| turn.choice().is_some();
        for turn in observed.iter().filter(made) {
            let Some(choice) = turn.choice() else { continue };
            self.add_event(Subject::Invalid, turn.at, choice.chosen.is_null());
        }
        let is_invalid = |turn: &&Observed<'a>| turn.choice().is_some_and(|choice| choice.chosen.is_null());
        let unread: HashSet<AgentQuestion> =
            observed.iter().filter(is_invalid).filter_map(|turn| self.question(turn)).collect();
        for turn in observed.iter().filter(made) {
            self.choice(turn, &unread);
        }
        for turn in observed.iter().filter(made) {
            self.round(turn);
        }
    }

    /// Adds a choice: which option was chosen, or that none was if its question is among the `unread` (with
    /// these, the rates of a question's options add up to one), and how likely each was.
    fn choice(&mut self, turn: &Observed<'a>, unread: &HashSet<AgentQuestion>) {
        let (Some(place), Some(made)) = (&turn.place, turn.choice()) else { return };
        let (Some(choice), Some(question)) = (&place.choice, self.question(turn)) else { return };
        let (run, odds) = (turn.at, turn.odds());
        for option in &choice.options {
            let asked = AgentOption { question: question.clone(), option: text_of(&option.value) };
            self.add_event(Subject::Choice(asked.clone()), run, made.chosen == option.value);
            // In a ranking, what is taken already is no longer offered.
            let offered = made.options.iter().position(|other| other.value == option.value);
            if let Some(share) = offered.and_then(|at| odds.as_ref()?.shares.get(at).copied()) {
                self.add(Subject::Share(asked), MeanKind::Probability, run, share);
            }
        }
        if unread.contains(&question) {
            self.add_event(Subject::InvalidChoice(question.clone()), run, made.chosen.is_null());
        }
        if choice.options.iter().all(|option| option.value.is_number()) {
            let measure = self.measure(Subject::Number(question.clone()), MeanKind::Mean);
            if let Some(number) = made.chosen.as_f64() {
                measure.parts.entry(run).or_default().add(number);
            }
        }
        if let Some(odds) = odds {
            self.add(Subject::Mass(question), MeanKind::Probability, run, odds.mass);
        }
    }

    /// Adds a choice to the figures of its round.
    fn round(&mut self, turn: &Observed<'a>) {
        let (Some(place), Some(made)) = (&turn.place, turn.choice()) else { return };
        let (Some(choice), Some(question)) = (&place.choice, self.question(turn)) else { return };
        if place.kind == LineKind::Turn(Purpose::Floor) {
            return;
        }
        // A vote's attempts are its rounds.
        let round = place.ballot().map_or(place.round, |(attempt, _)| attempt);
        for option in &choice.options {
            let asked = AgentOption { question: question.clone(), option: text_of(&option.value) };
            self.add_event(Subject::Round { asked, round }, turn.at, made.chosen == option.value);
        }
    }

    /// The question of a turn.
    fn question(&self, turn: &Observed<'_>) -> Option<AgentQuestion> {
        let place = turn.place.as_ref()?;
        Some(AgentQuestion {
            phase: turn.phase()?.to_string(),
            agent: (!self.over_agents).then(|| turn.record.agent.clone()),
            purpose: place.word(),
            rank: place.ballot().map(|(_, rank)| rank),
        })
    }
}
