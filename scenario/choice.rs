//! Choices: options, how a reply is read as one of them, and how votes over them decide.
//!
//! Level options of a ranking go at once: the order of listing decides nothing.

use super::AgentId;
use super::language::Language;
use super::parse::parse;
use super::template::{Expression, Template};
use greenroom_yaml::Path;
use serde_json::Value;
use std::sync::Arc;

/// Options of which a reply must be one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Its place in the file.
    pub path: Path,
    /// The options, as written.
    pub options: Vec<ChoiceOption>,
    /// How a reply becomes an option.
    pub method: ChoiceMethod,
    /// True if options are listed in an order drawn from the turn's seed.
    pub shuffle: bool,
    /// True if options are weighed by their log-probability by length.
    pub by_length: bool,
    /// The question.
    pub ask: Option<Arc<Template>>,
    /// The results that are open, where not all are.
    pub open: Option<Expression>,
    /// The number of options that are picked, one after the other.
    pub n_picks: usize,
}

/// One option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChoiceOption {
    /// The value that expressions see.
    pub value: Value,
    /// The text that is said.
    pub text: String,
}

/// A way in which a reply becomes an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChoiceMethod {
    /// The model can only say one of the options.
    Decode,
    /// A free reply is searched for the options.
    Parse,
}

/// The reading of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// An option, by index.
    Option(usize),
    /// None that could be determined.
    Invalid,
}

/// A way in which a phase decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The option with most votes.
    MajorityVote,
    /// Instant run-off over full rankings.
    RankedChoice,
    /// The option that one agent chooses.
    Coordinator(AgentId),
    /// All must agree, out of this many votes.
    Consensus {
        /// Votes, with a round of talk between them.
        attempts: usize,
    },
}

impl Choice {
    /// The option that a reply is.
    pub fn read(&self, reply: &str, language: &Language) -> Chosen {
        match self.method {
            ChoiceMethod::Decode => self.exactly(reply),
            ChoiceMethod::Parse => self.parse(reply, language),
        }
    }

    /// The option with this result or text.
    pub fn find(&self, wanted: &str) -> Option<usize> {
        let is = |option: &ChoiceOption| text_of(&option.value) == wanted || option.text == wanted;
        self.options.iter().position(is)
    }

    /// The text of the option chosen.
    pub fn text_of(&self, chosen: Chosen) -> Option<&str> {
        match chosen {
            Chosen::Option(option) => Some(&self.options[option].text),
            Chosen::Invalid => None,
        }
    }

    /// The option with this result.
    pub fn with_value(&self, wanted: &Value) -> Option<usize> {
        self.options.iter().position(|option| option.value == *wanted)
    }

    /// True if two choices have the same results, in whatever order.
    pub fn has_results_of(&self, other: &Self) -> bool {
        self.options.len() == other.options.len()
            && other.options.iter().all(|option| self.with_value(&option.value).is_some())
    }

    fn parse(&self, reply: &str, language: &Language) -> Chosen {
        let values: Vec<String> = self.options.iter().map(|option| text_of(&option.value)).collect();
        let names = self.options.iter().zip(&values).map(|(option, value)| vec![option.text.as_str(), value]);
        parse(&names.collect::<Vec<_>>(), reply, language).map_or(Chosen::Invalid, Chosen::Option)
    }

    fn exactly(&self, reply: &str) -> Chosen {
        let is = |option: &ChoiceOption| option.text == reply.trim();
        self.options.iter().position(is).map_or(Chosen::Invalid, Chosen::Option)
    }
}

/// A result as text: strings as they are, everything else as JSON.
pub fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(options: &[(&str, &str)]) -> Choice {
        let options = options.iter().map(|(value, text)| ChoiceOption {
            value: Value::String((*value).into()),
            text: (*text).into(),
        });
        Choice {
            path: Path::default(),
            options: options.collect(),
            method: ChoiceMethod::Parse,
            shuffle: false,
            by_length: false,
            ask: None,
            open: None,
            n_picks: 1,
        }
    }

    #[test]
    fn only_a_clear_answer_is_one() {
        let choice = choice(&[("talk", "I talk"), ("silent", "I stay silent")]);
        for (reply, expected) in [
            ("I talk.", Some(0)),
            ("My answer: TALK", Some(0)),
            ("“I stay silent”, he said", Some(1)),
            ("I will stay silent", Some(1)),
            ("I talk. I really talk!", Some(0)),
            ("I won't talk.", None),
            ("I do not talk. I stay silent.", None),
            ("I won’t confess, I'm staying silent", None),
            ("talk, because silent is worse", None),
            ("I am talkative", None),
            ("never", None),
            ("", None),
            ("No! Silent? I talk.", None),
        ] {
            let expected = expected.map_or(Chosen::Invalid, Chosen::Option);
            assert_eq!(choice.read(reply, &Language::default()), expected, "{reply}");
        }
    }

    #[test]
    fn the_longer_option_wins_where_one_is_part_of_the_other() {
        let choice = choice(&[("stay", "stay"), ("stay_silent", "stay silent")]);
        assert_eq!(choice.read("We stay silent.", &Language::default()), Chosen::Option(1));
        assert_eq!(choice.read("We stay.", &Language::default()), Chosen::Option(0));
        assert_eq!(choice.read("stay silent or stay", &Language::default()), Chosen::Invalid);
    }
}
