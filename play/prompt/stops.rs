//! Stop strings: every reply ends where it would continue as a script.
//!
//! Small models copy what they read: they give themselves the next cue, tell the scene again, or write the
//! lines of others. Text that these rules find is neither heard nor kept in the speaker's memory.
//!
//! The strings are cues, and at the beginning of a line brackets, names with a colon, and the first three
//! words of each text of the stage that the agent has read. All follow from cast and timeline, so replays
//! need no record of them. An agent, a phase or a turn can do without them (`stops: none`).
//!
//! A reply that is drawn here never begins with one: the token that would complete it is drawn again. A
//! remote engine's reply is cut here, after it has arrived, by the same strings: they are not sent to the
//! engine, since it would not report what it cut. There a string that would leave nothing is ignored, and so
//! are names where the reply begins with another's: it is a list.

use super::spoken::{after_name, may_become_name};
use crate::timeline::Event;
use greenroom_engine::ThoughtForm;
use greenroom_scenario::Scenario;
use std::collections::BTreeSet;

/// Words of a text of the stage that identify a copy.
const N_WORDS: usize = 3;

/// The strings before which the replies of an agent end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopStrings {
    /// The agent's own name.
    speaker: String,
    /// Names of the other speakers, and its own.
    names: Vec<String>,
    /// The strings that are not names.
    others: Vec<String>,
}

/// The cut of a reply that came from a remote engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Offset at which its speech begins; the reasoning before is never cut.
    pub begin: usize,
    /// The strings before which the speech ends.
    pub stop: Vec<String>,
    /// The beginning of the speech that counts for nothing: the speaker's own name.
    pub head: String,
}

impl StopStrings {
    /// The strings for an agent to whom this has happened: a cue; a line in brackets, which is a direction; a
    /// line that begins as a text of the stage does that the agent has read; and a name with a colon, as a
    /// script has it before each speech.
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

    /// The cut of a whole reply with reasoning in this form. One that is all reasoning is not cut.
    pub fn cut(&self, said: &str, thoughts: &ThoughtForm) -> Cut {
        let begin = thoughts.parts(said).speech.start;
        if begin == said.len() {
            return Cut::default();
        }
        let text = said[begin..].trim_start();
        let rest = after_name(&self.speaker, text);
        let head = text[..text.len() - rest.len()].trim_end().to_string();
        let is_list = self.of_others().any(|header| rest.starts_with(header.trim_start()));
        Cut { begin, stop: if is_list { self.others.clone() } else { self.all() }, head }
    }

    /// The cut of a reply that begins so, whatever follows; `None`: its beginning has to be known further.
    pub fn cut_so_far(&self, said: &str, thoughts: &ThoughtForm) -> Option<Cut> {
        let said = thoughts.without_open_mark(said);
        let begin = thoughts.begin_so_far(said)?;
        let rest = after_name(&self.speaker, said[begin..].trim_start());
        let is_open = may_become_name(&self.speaker, rest)
            || self.of_others().any(|header| header.trim_start().starts_with(rest));
        (!is_open).then(|| self.cut(said, thoughts))
    }

    /// The names of others as they precede a speech.
    fn of_others(&self) -> impl Iterator<Item = String> {
        self.names.iter().filter(|name| **name != self.speaker).flat_map(|name| headers(name))
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

/// The first words of a text's first line, without what marks their end, if it has enough of them and is no
/// cue.
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

    /// Known marks of reasoning, which the template may have opened.
    fn known(may_reason: bool) -> ThoughtForm {
        let form = ThoughtForm::of_text();
        if may_reason { form.perhaps_opened() } else { form }
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
            (
                "<|channel|>analysis<|message|>Ben: \
                 1<|end|><|start|>assistant<|channel|>final<|message|>Ann: 2",
                "Ann:",
                false,
            ),
            (
                "<|channel|>analysis<|message|>Ann: \
                 1<|end|><|start|>assistant<|channel|>final<|message|>Ben: 2",
                "",
                true,
            ),
            ("", "", false),
        ] {
            let cut = stops.cut(said, &known(true));
            assert_eq!((cut.head.as_str(), cut.stop.len() == 1), (head, is_list), "{said:?}");
            assert!(said[cut.begin..].trim_start().starts_with(head), "{said:?}");
        }
        for said in ["<think>Ben: 1\nBen: 2", "<|channel|>analysis<|message|>hm\nBen: 2"] {
            assert_eq!(stops.cut(said, &known(true)), Cut::default(), "{said:?}");
        }
    }

    #[test]
    fn what_is_decided_early_is_what_the_whole_reply_says() {
        let stops = of_ann();
        let replies = [
            "Good day.",
            "Ann: good day",
            "**Ann:** good day",
            "ann:  ANN: good",
            "Ben: 2\nCas: 1",
            "Bennett",
            "An",
            "Anna: hi",
            "<think>Ben: no</think>\nAnn: good day",
            "<think>Ben: no</think> <think>yes</think>Ben: good day",
            "<thin air",
            "Marco (loud): hi",
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Ben: 2",
            "<|channel|>final<|message|>Hi.<|end|><|start|>assistant<|channel|>final<|message|>Ben: 2",
        ];
        let opened = [
            "he lies</think>Ben: 2",
            "Ann: no</think>Ben: 2",
            "Ben: no</think>Ann: hi",
            "no</think>a</think>Ben: 2",
        ];
        let replies = replies.into_iter().flat_map(|said| [(said, false), (said, true)]);
        for (said, may_reason) in replies.chain(opened.map(|said| (said, true))) {
            let whole = stops.cut(said, &known(may_reason));
            let ends = said.char_indices().map(|(at, _)| at);
            for early in ends.filter_map(|end| stops.cut_so_far(&said[..end], &known(may_reason))) {
                assert_eq!(early, whole, "{said:?}");
            }
        }
        let so_far = |said, may_reason| stops.cut_so_far(said, &known(may_reason));
        assert_eq!(so_far("Good", false), Some(stops.cut("Good day", &known(false))));
        assert_eq!(so_far("Good", true), None);
        let whole = stops.cut("he lies</think>Good day", &known(true));
        assert_eq!(so_far("he lies</think>Good", true), Some(whole));
    }
}
