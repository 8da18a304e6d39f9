//! Stop strings: every reply ends where it would continue as a script.
//!
//! Small models copy what they read: they give themselves the next cue, tell the scene again, or write the lines of others. Text
//! that these rules find is neither heard nor kept in the speaker's memory (the engine cuts before it), and no reply begins
//! with it.
//!
//! The strings are cues, brackets at the beginning of a line, names with a colon, and the first three words of each text of the
//! stage that the agent has read. All follow from cast and timeline, so replays need no record of them.

use crate::scenario::Scenario;
use crate::timeline::Event;
use std::collections::BTreeSet;

/// Words of a text of the stage by which a copy is known.
const N_WORDS: usize = 3;

/// The strings before which the replies of an agent end to whom this has happened: a cue; a line in brackets, which is a direction; a line
/// that begins as a text of the stage does that the agent has read; and a name with a colon, as a script has it before each speech.
pub(super) fn stop_strings(scenario: &Scenario, events: &[Event]) -> Vec<String> {
    let heads = scenario.language.cue_heads().into_iter().flat_map(|(cue, bare)| [cue, format!("\n{bare}")]);
    let cues = ["\n[", "\n("].into_iter().map(str::to_string).chain(heads);
    let names = scenario.cast().map(|(_, agent)| agent.name.as_str()).chain(scenario.language.speakers());
    let headers = names.flat_map(|name| {
        let capitals = name.to_uppercase();
        [
            format!("\n{name}:"),
            format!(" {name}:"),
            format!("\n{capitals}:"),
            format!("\n{name} ("),
            format!("\n*{name}"),
            format!("\n**{name}"),
        ]
    });
    let stage = events.iter().filter_map(|event| match event {
        Event::Stage { text, .. } => first_words(text),
        _ => None,
    });
    let copies: BTreeSet<&str> = stage.collect();
    let copies = copies.into_iter().map(|words| format!("\n{words}"));
    cues.into_iter().chain(headers).chain(copies).collect()
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
}
