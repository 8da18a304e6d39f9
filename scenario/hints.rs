//! Reply settings in a scenario: a model and how tokens are sampled. One mechanism for all of them, wherever
//! they are written.
//!
//! A turn of a written-out order takes precedence over its phase, that over the agent, that over the
//! scenario. The scenario's own are part of what a run begins with; [`Turn::hints`](super::Turn::hints) holds
//! the others, merged.

use super::{ChoiceMethod, Constraint, Scenario, Turn};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// How replies are sampled, limited and ended. The settings of a turn take precedence over those of its
/// phase, these over the agent's, and these over the scenario's.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Sampling", deny_unknown_fields)]
pub struct WrittenSampling {
    /// How randomly tokens are sampled; 0 is greedy. Default: the model's own temperature, or 0.7.
    /// `--temperature` overrides it.
    #[schemars(with = "Option<f64>", extend("minimum" = 0))]
    pub temperature: Option<f32>,
    /// Sample from the smallest set of tokens that reaches this probability. `--top-p` overrides it.
    #[schemars(with = "Option<f64>", extend("minimum" = 0, "maximum" = 1))]
    pub top_p: Option<f32>,
    /// Sample from this many of the most likely tokens; 0: from all. `--top-k` overrides it.
    #[schemars(with = "Option<u64>")]
    pub top_k: Option<usize>,
    /// Do not sample tokens less likely than this fraction of the most likely one. `--min-p` overrides it.
    #[schemars(with = "Option<f64>", extend("minimum" = 0, "maximum" = 1))]
    pub min_p: Option<f32>,
    /// Divides the logits of tokens already used in the reply; 1 is off. `--repetition-penalty` overrides it.
    #[schemars(with = "Option<f64>", extend("exclusiveMinimum" = 0))]
    pub repetition_penalty: Option<f32>,
    /// Maximum number of tokens in a reply. `--max-tokens` overrides it.
    #[schemars(with = "Option<u64>", extend("minimum" = 1, "maximum" = u32::MAX))]
    pub max_tokens: Option<usize>,
    /// How much a model reasons before a reply, if its chat template has a switch for it: `none` (the
    /// default), `low`, `medium` or `high`. A switch without levels treats everything except `none` as on; a
    /// model that always reasons is stopped at once by `none`. The agent remembers its reasoning; others don't
    /// hear it. Replies with a fixed `answer` are made without reasoning.
    pub reasoning: Option<Reasoning>,
    /// Maximum number of tokens of reasoning before a reply; then the model is made to speak. They do not
    /// count towards `max_tokens`. Default: 256 for `low`, 512 for `medium`, 1024 for `high`.
    #[schemars(with = "Option<u64>", extend("minimum" = 1, "maximum" = u32::MAX))]
    pub reasoning_budget: Option<usize>,
    /// Where replies end besides their own end and `max_tokens`. `script` (the default): where the reply would
    /// go on as a script, that is before a cue, and at the beginning of a line before a bracket, the name of a
    /// speaker with a colon, or a copy of a text that the agent has read. `none`: nowhere else, for analysts
    /// and minutes, whose replies list names.
    pub stops: Option<Stops>,
}

impl Hints {
    /// The reply settings that stand together in a file.
    pub fn written(model: Option<String>, sampling: Option<WrittenSampling>) -> Self {
        let WrittenSampling {
            temperature,
            top_p,
            top_k,
            min_p,
            repetition_penalty,
            max_tokens,
            reasoning,
            reasoning_budget,
            stops,
        } = sampling.unwrap_or_default();
        Self {
            model,
            temperature,
            top_p,
            top_k,
            min_p,
            repetition_penalty,
            max_tokens,
            reasoning,
            reasoning_budget,
            stops,
            repetition_window: None,
            dry_multiplier: None,
            dry_base: None,
            dry_allowed_length: None,
        }
    }
}

/// How much an agent reasons before it replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Reasoning {
    /// Not at all.
    #[default]
    None,
    /// A little.
    Low,
    /// Some.
    Medium,
    /// Much.
    High,
}

impl Reasoning {
    /// As scenarios write it.
    pub fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// As scenarios write it.
impl std::fmt::Display for Reasoning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word())
    }
}

impl Scenario {
    /// How much the speaker of a turn is to think. What is chosen among options, or has a form, begins with
    /// its first token.
    pub fn reasoning_of(&self, turn: &Turn) -> Reasoning {
        let is_weighed = |constraint: &Constraint| constraint.choice.method == ChoiceMethod::Decode;
        if turn.form.is_some() || turn.constraint.as_ref().is_some_and(is_weighed) {
            return Reasoning::None;
        }
        turn.hints.reasoning.or(self.hints.reasoning).unwrap_or_default()
    }

    /// Maximum number of tokens of the speaker's reasoning in a turn.
    pub fn reasoning_budget_of(&self, turn: &Turn) -> usize {
        let given = turn.hints.reasoning_budget.or(self.hints.reasoning_budget);
        match self.reasoning_of(turn) {
            Reasoning::None => 0,
            Reasoning::Low => given.unwrap_or(256),
            Reasoning::Medium => given.unwrap_or(512),
            Reasoning::High => given.unwrap_or(1024),
        }
    }
}

/// Where replies end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Stops {
    /// Where they would go on as a script.
    #[default]
    Script,
    /// Where the model ends them.
    None,
}

/// As scenarios write it.
impl std::fmt::Display for Stops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Script => "script",
            Self::None => "none",
        })
    }
}

/// Where a setting can be given for all turns, besides a request of the server and a model's file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Scenario,
    /// The command line overrides the scenario.
    ScenarioAndFlag,
    Flag,
    Nowhere,
}

/// The valid values of a setting.
#[derive(Clone, Copy)]
enum Range {
    Any,
    NonNegative,
    Positive,
    FromOne,
    Fraction,
    Whole,
    WholeFromOne,
}

impl Range {
    fn contains(self, value: f64) -> bool {
        let (is_whole, is_finite) = (value.fract() == 0.0, value <= f64::from(f32::MAX));
        match self {
            Self::Any => true,
            Self::NonNegative => value >= 0.0 && is_finite,
            Self::Positive => value as f32 > 0.0 && is_finite,
            Self::FromOne => value >= 1.0 && is_finite,
            Self::Fraction => (0.0..=1.0).contains(&value),
            Self::Whole => value >= 0.0 && is_whole,
            Self::WholeFromOne => value >= 1.0 && is_whole && value <= f64::from(u32::MAX),
        }
    }

    /// As messages say it.
    fn expected(self) -> &'static str {
        match self {
            Self::Any => "any value",
            Self::NonNegative => "a number of at least 0",
            Self::Positive => "a number above 0 (1: off)",
            Self::FromOne => "a number of at least 1",
            Self::Fraction => "a number from 0 to 1",
            Self::Whole => "a whole number (0: off)",
            Self::WholeFromOne => "a whole number of at least 1",
        }
    }
}

/// A setting's type.
trait Setting {
    /// Its value, if it is a number.
    fn number(&self) -> Option<f64> {
        None
    }
}

impl Setting for String {}
impl Setting for Reasoning {}
impl Setting for Stops {}

impl Setting for f32 {
    fn number(&self) -> Option<f64> {
        Some(f64::from(*self))
    }
}

impl Setting for usize {
    fn number(&self) -> Option<f64> {
        Some(*self as f64)
    }
}

/// A setting with a value that it can't have.
pub struct InvalidSetting {
    /// Its name, as files write it.
    pub name: &'static str,
    /// The value.
    pub value: String,
    /// The valid values, in words.
    pub expected: &'static str,
}

/// Defines [`Hints`] by one list of its settings: name, type, how the setting reads in a sentence, where it
/// can be given, and its valid values.
macro_rules! settings {
    ($($(#[$attribute:meta])* $name:ident: $type:ty, $words:literal, $place:ident, $range:ident;)*) => {
        /// Reply settings, as far as they are given: in a scenario, on the command line, by a model's makers.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Hints {
            $($(#[$attribute])* #[serde(skip_serializing_if = "Option::is_none")] pub $name: Option<$type>,)*
        }

        impl Hints {
            const SETTINGS: &[(&str, Place, Range)] =
                &[$((stringify!($name), Place::$place, Range::$range)),*];

            /// These, and those of `lower` that are not among them.
            pub fn over(&self, lower: &Self) -> Self {
                Self { $($name: self.$name.clone().or_else(|| lower.$name.clone()),)* }
            }

            /// Those that the command line does not give.
            pub fn without(&self, given: &Given) -> Self {
                Self { $($name: self.$name.clone().filter(|_| !given.contains(stringify!($name))),)* }
            }

            /// Takes out the settings that have invalid values.
            pub fn take_invalid(&mut self) -> Vec<InvalidSetting> {
                let mut invalid = Vec::new();
                $(
                    let (name, number) = (stringify!($name), self.$name.as_ref().and_then(Setting::number));
                    if let Some(expected) = number.and_then(|number| expected(name, number)) {
                        let value = self.$name.take().map_or(String::new(), |value| value.to_string());
                        invalid.push(InvalidSetting { name, value, expected });
                    }
                )*
                invalid
            }

            /// The names of those that are set.
            fn set(&self) -> impl Iterator<Item = &'static str> {
                [$(self.$name.as_ref().map(|_| stringify!($name))),*].into_iter().flatten()
            }

            /// In words, such as `model big, temperature 0.2`; empty where nothing is set.
            pub fn words(&self) -> String {
                let words = [$(self.$name.as_ref().map(|value| format!($words, value))),*];
                words.into_iter().flatten().collect::<Vec<_>>().join(", ")
            }
        }
    };
}

settings! {
    /// Name of the model.
    model: String, "model {}", Scenario, Any;
    /// 0: greedy.
    temperature: f32, "temperature {}", ScenarioAndFlag, NonNegative;
    /// 1: all.
    top_p: f32, "top-p {}", ScenarioAndFlag, Fraction;
    /// 0: all.
    top_k: usize, "top-k {}", ScenarioAndFlag, Whole;
    /// 0: all.
    min_p: f32, "min-p {}", ScenarioAndFlag, Fraction;
    /// 1: off.
    repetition_penalty: f32, "repetition penalty {}", ScenarioAndFlag, Positive;
    /// Tokens that the penalty looks back at.
    repetition_window: usize, "over tokens {}", Nowhere, Whole;
    /// The penalty on sequences that the agent has said before; 0: off.
    dry_multiplier: f32, "DRY multiplier {}", Flag, NonNegative;
    /// Factor by which that penalty grows with each token beyond the allowed length.
    dry_base: f32, "DRY base {}", Flag, FromOne;
    /// Length in tokens of the shortest sequence with that penalty.
    dry_allowed_length: usize, "DRY allowed length {}", Flag, Whole;
    /// Maximum number of tokens in a reply.
    max_tokens: usize, "at most {} tokens", ScenarioAndFlag, WholeFromOne;
    /// Reasoning before a reply.
    reasoning: Reasoning, "reasoning {}", Scenario, Any;
    /// Maximum number of tokens of it.
    reasoning_budget: usize, "of at most {} tokens", Scenario, WholeFromOne;
    /// Strings before which the reply ends.
    stops: Stops, "stops {}", Scenario, Any;
}

// No checked setting is NaN.
impl Eq for Hints {}

/// The valid values of a setting, in words, if this value is not valid.
pub fn expected(name: &str, value: f64) -> Option<&'static str> {
    let (_, _, range) = Hints::SETTINGS.iter().find(|(known, ..)| *known == name)?;
    (!range.contains(value)).then(|| range.expected())
}

/// Names of the settings given on the command line: they override the file's.
pub type Given = BTreeSet<String>;

impl Hints {
    /// Names of the settings that a scenario can give.
    pub fn of_scenarios() -> impl Iterator<Item = &'static str> {
        let is_given = |place: Place| matches!(place, Place::Scenario | Place::ScenarioAndFlag);
        Self::SETTINGS.iter().filter(move |(_, place, _)| is_given(*place)).map(|(name, ..)| *name)
    }

    /// Names of the settings of scenarios that the command line can override for all turns.
    pub fn overridable() -> impl Iterator<Item = &'static str> {
        Self::SETTINGS.iter().filter(|(_, place, _)| *place == Place::ScenarioAndFlag).map(|(name, ..)| *name)
    }

    /// The names of those that are set and that the command line can override.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.set().filter(|name| Self::overridable().any(|other| other == *name))
    }

    /// True if nothing is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_setting_counts_and_the_command_line_before_all() {
        let turn = Hints { temperature: Some(0.0), ..Hints::default() };
        let agent = Hints { temperature: Some(1.0), top_k: Some(5), model: Some("a".into()), ..turn.clone() };
        let merged = turn.over(&agent);
        assert_eq!(merged.words(), "model a, temperature 0, top-k 5");
        let given = Given::from(["temperature".to_string()]);
        assert_eq!(merged.without(&given).words(), "model a, top-k 5");
        let thinks = Hints { reasoning: Some(Reasoning::High), ..Hints::default() };
        assert_eq!(thinks.over(&merged).words(), "model a, temperature 0, top-k 5, reasoning high");
        let endless = Hints { stops: Some(Stops::None), ..Hints::default() };
        assert_eq!(endless.over(&thinks).words(), "reasoning high, stops none");
        assert_eq!(serde_json::to_string(&endless).unwrap(), r#"{"stops":"none"}"#);
        assert!(Hints::default().is_empty() && Hints::default().words().is_empty());
    }

    #[test]
    fn invalid_settings_are_taken_out_and_named() {
        let valid = Hints { top_k: Some(0), dry_multiplier: Some(0.0), ..Hints::default() };
        let mut given = Hints { top_p: Some(1.5), max_tokens: Some(0), dry_base: Some(0.5), ..valid.clone() };
        let invalid = given.take_invalid();
        let words = invalid.iter().map(|it| format!("{} {}: {}", it.name, it.value, it.expected));
        let named = [
            "top_p 1.5: a number from 0 to 1",
            "dry_base 0.5: a number of at least 1",
            "max_tokens 0: a whole number of at least 1",
        ];
        assert!(words.eq(named) && given == valid);
        assert!(Hints::overridable().all(|name| expected(name, f64::NAN).is_some()));
    }
}
