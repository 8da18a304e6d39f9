//! Sampling settings: a complete set ([`Sampling`]), and those that are given ([`GivenSampling`]). A user's
//! settings count first, then the scenario's, those of the model's file, the defaults here; a transcript
//! records the result.

use crate::transcript::{DryRecord, SamplingRecord};
use greenroom_scenario::Hints;

/// Settings by which tokens are chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0: greedy.
    pub temperature: f32,
    /// 0: all.
    pub top_k: usize,
    /// 1: all.
    pub top_p: f32,
    /// 0: all.
    pub min_p: f32,
    /// 1: off.
    pub repetition_penalty: f32,
    /// Tokens that the penalty looks back at.
    pub repetition_window: usize,
    /// The penalty on sequences that the agent has said before.
    pub dry: Option<DryRecord>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.7,
            top_k: 0,
            top_p: 0.95,
            min_p: 0.05,
            repetition_penalty: 1.1,
            repetition_window: 64,
            dry: Some(DryRecord::default()),
        }
    }
}

/// Sampling settings as far as they are given: by a user, or by a model's makers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GivenSampling {
    /// [`Sampling::temperature`].
    pub temperature: Option<f32>,
    /// [`Sampling::top_k`].
    pub top_k: Option<usize>,
    /// [`Sampling::top_p`].
    pub top_p: Option<f32>,
    /// [`Sampling::min_p`].
    pub min_p: Option<f32>,
    /// [`Sampling::repetition_penalty`].
    pub repetition_penalty: Option<f32>,
    /// [`Sampling::repetition_window`].
    pub repetition_window: Option<usize>,
    /// [`Sampling::dry`].
    pub dry: Option<Option<DryRecord>>,
}

impl GivenSampling {
    /// Completes these settings with those of `base`.
    pub fn over(&self, base: &Sampling) -> Sampling {
        Sampling {
            temperature: self.temperature.unwrap_or(base.temperature),
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(base.repetition_penalty),
            repetition_window: self.repetition_window.unwrap_or(base.repetition_window),
            dry: self.dry.unwrap_or(base.dry),
        }
    }
}

impl From<&Hints> for GivenSampling {
    fn from(hints: &Hints) -> Self {
        let Hints { temperature, top_p, top_k, min_p, repetition_penalty, .. } = hints.clone();
        Self { temperature, top_k, top_p, min_p, repetition_penalty, ..Self::default() }
    }
}

impl From<Sampling> for GivenSampling {
    fn from(sampling: Sampling) -> Self {
        let Sampling { temperature, top_k, top_p, min_p, repetition_penalty, repetition_window, dry } =
            sampling;
        Self {
            temperature: Some(temperature),
            top_k: Some(top_k),
            top_p: Some(top_p),
            min_p: Some(min_p),
            repetition_penalty: Some(repetition_penalty),
            repetition_window: Some(repetition_window),
            dry: Some(dry),
        }
    }
}

impl From<SamplingRecord> for Sampling {
    fn from(record: SamplingRecord) -> Self {
        let SamplingRecord { temperature, top_k, top_p, min_p, repetition_penalty, repetition_window, dry } =
            record;
        Self { temperature, top_k, top_p, min_p, repetition_penalty, repetition_window, dry }
    }
}

impl From<Sampling> for SamplingRecord {
    fn from(sampling: Sampling) -> Self {
        let Sampling { temperature, top_k, top_p, min_p, repetition_penalty, repetition_window, dry } =
            sampling;
        Self { temperature, top_k, top_p, min_p, repetition_penalty, repetition_window, dry }
    }
}
