//! How settings that are given become the engine's: a user's count first, then the scenario's, those of the
//! model's file, and [`DEFAULT`]. Merging is [`Hints::over`]; [`resolved`] completes the result.

use greenroom_engine::{Dry, Sampling, SuggestedSampling};
use greenroom_scenario::Hints;
use std::collections::BTreeMap;

/// Sampling settings where nothing else is given.
pub const DEFAULT: Sampling = Sampling {
    temperature: 0.7,
    top_k: 0,
    top_p: 0.95,
    min_p: 0.05,
    repetition_penalty: 1.05,
    repetition_window: 64,
    dry: Some(Dry { multiplier: 0.8, base: 1.75, allowed_length: 2 }),
    whole_words: true,
    canonical: true,
    frequency_penalty: 0.0,
    presence_penalty: 0.0,
    bias: BTreeMap::new(),
    seed: 0,
};

/// The settings of `base`, except for those that are given.
pub fn resolved(given: &Hints, base: &Sampling) -> Sampling {
    let off = Dry { multiplier: 0.0, ..Dry::default() };
    let dry = base.dry.unwrap_or(off);
    let dry = Dry {
        multiplier: given.dry_multiplier.unwrap_or(dry.multiplier),
        base: given.dry_base.unwrap_or(dry.base),
        allowed_length: given.dry_allowed_length.unwrap_or(dry.allowed_length),
    };
    Sampling {
        temperature: given.temperature.unwrap_or(base.temperature),
        top_k: given.top_k.unwrap_or(base.top_k),
        top_p: given.top_p.unwrap_or(base.top_p),
        min_p: given.min_p.unwrap_or(base.min_p),
        repetition_penalty: given.repetition_penalty.unwrap_or(base.repetition_penalty),
        repetition_window: given.repetition_window.unwrap_or(base.repetition_window),
        dry: (dry.multiplier > 0.0).then_some(dry),
        ..base.clone()
    }
}

/// What a model's file suggests, as given settings.
pub fn suggested(by: &SuggestedSampling) -> Hints {
    let SuggestedSampling { temperature, top_k, top_p, min_p, repetition_penalty, repetition_window } = *by;
    Hints { temperature, top_k, top_p, min_p, repetition_penalty, repetition_window, ..Hints::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_settings_replace_those_of_the_base() {
        assert_eq!(resolved(&Hints::default(), &DEFAULT), DEFAULT);
        let given = Hints { top_k: Some(3), dry_multiplier: Some(0.0), ..Hints::default() };
        let is = resolved(&given, &DEFAULT);
        assert_eq!(is, Sampling { top_k: 3, dry: None, ..DEFAULT });
        assert_eq!(resolved(&Hints::default(), &is), is);
        let given = Hints { dry_multiplier: Some(0.5), ..Hints::default() };
        assert_eq!(resolved(&given, &is).dry, Some(Dry { multiplier: 0.5, ..Dry::default() }));
    }
}
