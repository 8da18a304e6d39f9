//! Stop strings: every reply ends where it would continue as a script.
//!
//! Small models copy what they read: they give themselves the next cue, tell the scene again, or write the lines of others. Text
//! that these rules find is neither heard nor kept in the speaker's memory.
//!
//! The strings are cues, and at the beginning of a line brackets, names with a colon, and the first three words of each text of the
//! stage that the agent has read. All follow from cast and timeline, so replays need no record of them. An agent, a phase or a turn can
//! do without them (`stops: none`).
//!
//! A reply that is drawn here never begins with one: the token that would complete it is drawn again. What an engine elsewhere says is
//! cut here, whole as it came, by the same strings: they are not sent to it, since it would not say what it cut. There a string that
//! would leave nothing is passed over, and so are names where the reply begins with another's: it is a list.

use super::spoken::{behind_name, may_become_name};
use crate::scenario::Scenario;
use crate::timeline::Event;
use std::collections::BTreeSet;

/// Words of a text of the stage by which a copy is known.
const N_WORDS: usize = 3;
/// The marks around a thought.
const THINK: (&str, &str) = ("<think>", "</think>");

/// The strings before which the replies of an agent end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopStrings {
    /// The agent's own name.
    speaker: String,
    /// Names of the other speakers, and its own.
    names: Vec<String>,
    /// The strings that are no names.
    others: Vec<String>,
}

/// The way in which a reply that came from elsewhere is cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// The strings before which it ends.
    pub stop: Vec<String>,
    /// Its beginning that counts for nothing: the speaker's own name.
    pub head: String,
}

impl StopStrings {
    /// The strings for an agent to whom this has happened: a cue; a line in brackets, which is a direction; a line that begins as a text
    /// of the stage does that the agent has read; and a name with a colon, as a script has it before each speech.
    pub(super) fn new(scenario: &Scenario, speaker: &str, events: &[Event]) -> Self {
        let heads =
            scenario.language.cue_heads().into_iter().flat_map(|(cue, bare)| [cue, format!("\n{bare}")]);
        let cues = ["\n[", "\n("].into_iter().map(str::to_string).chain(heads);
        let names = scenario.cast().map(|(_, agent)| agent.name.as_str()).chain(scenario.language.speakers());
        let stage = events.iter().filter_map(|event| match event {
            Event::Stage { text, .. } => first_words(text),
            _ => None,
        });
        let copies: BTreeSet<&str> = stage.collect();
        Self {
            speaker: speaker.to_string(),
            names: names.map(str::to_string).collect(),
            others: cues.chain(copies.into_iter().map(|words| format!("\n{words}"))).collect(),
        }
    }

    /// No strings: a reply ends where the model ends it.
    pub(super) fn none(speaker: &str) -> Self {
        Self { speaker: speaker.to_string(), ..Self::default() }
    }

    /// All strings.
    pub fn all(&self) -> Vec<String> {
        self.others.iter().cloned().chain(self.names.iter().flat_map(|name| headers(name))).collect()
    }

    /// The way to cut a reply of which this has come; `None`: its beginning has to be known further.
    pub fn cut(&self, said: &str, has_ended: bool) -> Option<Cut> {
        let text = match behind_thought(said, has_ended) {
            Some(text) => text.trim_start(),
            None if has_ended => "",
            None => return None,
        };
        let rest = behind_name(&self.speaker, text);
        let head = text[..text.len() - rest.len()].trim_end().to_string();
        let others = self.names.iter().filter(|name| **name != self.speaker);
        let others: Vec<String> = others.flat_map(|name| headers(name)).collect();
        let lines = || others.iter().map(|header| header.trim_start());
        let is_open = may_become_name(&self.speaker, rest) || lines().any(|line| line.starts_with(rest));
        if is_open && !has_ended {
            return None;
        }
        let is_list = lines().any(|line| rest.starts_with(line));
        Some(Cut { stop: if is_list { self.others.clone() } else { self.all() }, head })
    }
}

/// A name as a script has it before a speech, at the beginning of a line.
fn headers(name: &str) -> [String; 5] {
    let capitals = name.to_uppercase();
    [
        format!("\n{name}:"),
        format!("\n{capitals}:"),
        format!("\n{name} ("),
        format!("\n*{name}"),
        format!("\n**{name}"),
    ]
}

/// The part of a reply after its reasoning; `None`: that goes on.
fn behind_thought(said: &str, has_ended: bool) -> Option<&str> {
    let text = said.trim_start();
    if text.starts_with(THINK.0) {
        return text.find(THINK.1).map(|at| &text[at + THINK.1.len()..]);
    }
    // A template may open the reasoning itself, so its end alone is enough.
    let end = text.find(THINK.1).filter(|_| has_ended);
    (has_ended || !THINK.0.starts_with(text)).then(|| end.map_or(text, |at| &text[at + THINK.1.len()..]))
}

/// The first words of a text's first line, without what marks their end, if it has enough of them and is no cue.
fn first_words(text: &str) -> Option<&str> {
    let line = text.trim_start().lines().next().filter(|line| !line.starts_with('['))?;
    let is_end = |(at, c): &(usize, char)| {
        !c.is_whitespace() && line[at + c.len_utf8()..].chars().next().is_none_or(char::is_whitespace)
    };
    let (at, last) = line.char_indices().filter(is_end).nth(N_WORDS - 1)?;
    Some(line[..at + last.len_utf8()].trim_end_matches(|c: char| !c.is_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_known_by_its_first_words() {
        for (text, words) in [
            ("The village hall. The mill stands empty.", Some("The village hall")),
            ("  one two  three four\nfive", Some("one two  three")),
            ("one two\nthree", None),
            ("[Your turn, Ann. Do speak.]", None),
            ("Été à la mer.", Some("Été à la")),
            ("", None),
        ] {
            assert_eq!(first_words(text), words, "{text:?}");
        }
    }

    fn of_ann() -> StopStrings {
        let names = ["Ann", "Ben", "Cas", "Marco"].map(str::to_string).to_vec();
        StopStrings { speaker: "Ann".into(), names, others: vec!["\n[".into()] }
    }

    #[test]
    fn names_count_for_nothing_where_a_reply_begins_with_another_and_the_own_name_is_left_out() {
        let stops = of_ann();
        for (said, head, is_list) in [
            ("Good day.", "", false),
            ("Ann: good day", "Ann:", false),
            ("**Ann:** good day", "**Ann:**", false),
            ("ann:  ANN: good day", "ann:  ANN:", false),
            ("Ben: 2\nCas: 1", "", true),
            ("Ann: Ben: 2\nCas: 1", "Ann:", true),
            ("**Marco**: COOPERATE", "", true),
            ("Bennett: hi", "", false),
            ("<think>Ben: no</think>\nAnn: good day", "Ann:", false),
            ("he lies</think>Ben: 2", "", true),
            ("", "", false),
        ] {
            let cut = stops.cut(said, true).unwrap();
            assert_eq!((cut.head.as_str(), cut.stop.len() == 1), (head, is_list), "{said:?}");
        }
    }

    #[test]
    fn what_is_decided_early_is_what_the_whole_reply_says() {
        let stops = of_ann();
        for said in [
            "Good day.",
            "Ann: good day",
            "**Ann:** good day",
            "ann:  ANN: good",
            "Ben: 2\nCas: 1",
            "Bennett",
            "An",
            "Anna: hi",
            "<think>Ben: no</think>\nAnn: good day",
            "<thin air",
            "Marco (loud): hi",
        ] {
            let whole = stops.cut(said, true);
            let ends = said.char_indices().map(|(at, _)| at);
            for early in ends.filter_map(|end| stops.cut(&said[..end], false)) {
                assert_eq!(Some(early), whole, "{said:?}");
            }
        }
        assert_eq!(stops.cut("Good", false), stops.cut("Good day", true));
    }
}
