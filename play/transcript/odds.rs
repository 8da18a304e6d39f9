//! Odds of a choice's options, from a recording alone. The shares repeat the rule of
//! `engine/turns/sampler/mod.rs` (`draw`) for display, since a transcript is read without an engine;
//! `tests/runner/odds.rs` checks one against the other.

use super::Transcript;
use super::record::{ChoiceRecord, Header, OptionRecord, TurnRecord};
use greenroom_scenario::diagnostic::printable;

/// Probabilities of a choice's options.
#[derive(Clone, Debug, PartialEq)]
pub struct Odds {
    /// Probability with which each option was drawn: in proportion to `exp(log-probability / temperature)`;
    /// at temperature 0 all of it is the most likely option's, the first among equals. Filters and penalties
    /// of tokens have no part in it.
    pub shares: Vec<f64>,
    /// Probability that the model's own reply is one of these options: all that it might say is 1, regardless
    /// of the temperature.
    pub mass: f64,
}

impl Odds {
    /// Mass below which shares mean little: they compare options that the model would hardly give.
    pub const LOW_MASS: f64 = 0.1;

    /// Tells whether the model would almost always have said something else.
    pub fn is_low(&self) -> bool {
        self.mass < Self::LOW_MASS
    }

    /// A mass in per cent.
    pub fn in_percent(mass: f64) -> String {
        match 100.0 * mass {
            mass if mass < 0.1 => "under 0.1 %".to_string(),
            mass if mass < 10.0 => format!("{mass:.1} %"),
            mass => format!("{mass:.0} %"),
        }
    }
}

impl Header {
    /// The odds of the choice of a turn, the line `line` (from 0) of them, at the temperature at which it was
    /// drawn; `None` where no model was asked.
    pub fn odds(&self, turn: &TurnRecord, line: usize) -> Option<Odds> {
        turn.constraint.as_ref()?.odds(self.sampling_of(turn, line).temperature)
    }
}

impl Transcript {
    /// The options of a turn and how likely each was drawn, as text, e.g. `kept 31 %, broken 69 %`; `None`
    /// where no model was asked.
    pub fn shares(&self, path: &str) -> Option<String> {
        let line = self.turns.iter().position(|turn| turn.record.path == path)?;
        let turn = &self.turns[line].record;
        let odds = self.header.record.odds(turn, line)?;
        Some(turn.constraint.as_ref()?.shares_in_words(&odds))
    }
}

impl ChoiceRecord {
    /// Its options and how likely each was drawn, e.g. `kept 31 %, broken 69 %`.
    pub fn shares_in_words(&self, odds: &Odds) -> String {
        let share = |(option, share): (&OptionRecord, &f64)| {
            format!("{} {:.0} %", printable(&option.text), 100.0 * share)
        };
        self.options.iter().zip(&odds.shares).map(share).collect::<Vec<_>>().join(", ")
    }

    /// The odds of each option being drawn at a temperature, and of any being said; `None` where no model was
    /// asked.
    pub fn odds(&self, temperature: f32) -> Option<Odds> {
        if self.options.iter().all(|option| option.logprob.is_none()) {
            return None;
        }
        // JSON has no infinity: beside options that have a log-probability, null is that of an impossible
        // one.
        let logprob = |logprob: Option<f32>| logprob.map_or(f64::NEG_INFINITY, f64::from);
        let logprobs: Vec<f64> = self.options.iter().map(|option| logprob(option.logprob)).collect();
        let mass: f64 = logprobs.iter().map(|logprob| libm::exp(*logprob)).sum();
        let weighed = if self.normalize.is_some() { self.by_length(&logprobs) } else { logprobs };
        Some(Odds { shares: shares(&weighed, temperature), mass: mass.min(1.0) })
    }
}

impl ChoiceRecord {
    /// Log-probabilities by byte of the texts, times the mean number of bytes: as the engine weighs them
    /// (`by_length`).
    fn by_length(&self, logprobs: &[f64]) -> Vec<f64> {
        let logprobs: Vec<f32> = logprobs.iter().map(|logprob| *logprob as f32).collect();
        let texts = self.options.iter().map(|option| option.text.as_str());
        greenroom_engine::by_length(&logprobs, texts).into_iter().map(f64::from).collect()
    }
}

fn shares(logprobs: &[f64], temperature: f32) -> Vec<f64> {
    let better = |best: usize, at: usize| if logprobs[at] > logprobs[best] { at } else { best };
    let best = (0..logprobs.len()).reduce(better).unwrap_or(0);
    let certain = || (0..logprobs.len()).map(|at| if at == best { 1.0 } else { 0.0 }).collect();
    if temperature <= 0.0 {
        return certain();
    }
    let weight = |logprob: &f64| libm::exp((logprob - logprobs[best]) / f64::from(temperature));
    let weights: Vec<f64> = logprobs.iter().map(weight).map(|w| if w.is_nan() { 0.0 } else { w }).collect();
    let total: f64 = weights.iter().sum();
    // Only a damaged log-probability (infinite) leaves no weight at all.
    if total > 0.0 { weights.iter().map(|weight| weight / total).collect() } else { certain() }
}
