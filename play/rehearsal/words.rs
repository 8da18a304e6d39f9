//! Replies in a rehearsal: words that code depends on, and the description of a course of play.

use greenroom_scenario::results::History;
use greenroom_scenario::template::{Code, DRAWING};
use greenroom_scenario::{AgentId, Chosen, PhaseId, Purpose, Scenario, text_of};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Words that occur only in code which depends on more than each agent's latest choice.
pub(super) const LOOKS_BACK: &[&str] = &[
    "history",
    "votes",
    "invalid",
    "payoffs",
    "said",
    "messages",
    "replies",
    "reply_history",
    "calls",
    "phases",
];
/// Words that occur only in code which depends on what was said.
pub(super) const LOOKS_AT_WORDS: &[&str] = &["said", "messages", "replies", "reply_history", "calls"];
/// Names that mean something else to each reader.
pub(super) const OF_READER: &[&str] = &["me", "role", "display_name", "others"];
/// Maximum number of quoted words of a scenario that are said in rehearsals.
const MAX_QUOTED: usize = 6;
/// Maximum number of choices of a phase that a message lists.
const MAX_CHOICES: usize = 6;

/// True if one of these words occurs in a text.
pub(super) fn mentions(text: &str, words: &[&str]) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.split(|c| !is_word(c)).any(|word| words.contains(&word))
}

/// True of code that may draw by chance.
pub(super) fn draws(code: &str) -> bool {
    mentions(code, DRAWING)
}

/// Words that agents may say: none, few, many, a number, and what the scenario itself quotes.
pub(super) fn words(code: &[&str]) -> Vec<Arc<str>> {
    let mut words: Vec<Arc<str>> = ["a few words", "", "7"].map(Arc::from).to_vec();
    words.push("many words ".repeat(40).trim_end().into());
    for text in code {
        let pieces = Code::of(text);
        let pieces: Vec<&str> = pieces.pieces(text).map(|(_, piece)| piece).collect();
        let pieces = if pieces.is_empty() { vec![*text] } else { pieces };
        for quote in ['\'', '"'] {
            // What is between quotes is every second part.
            let quoted = pieces.iter().flat_map(|piece| piece.split(quote).skip(1).step_by(2));
            for word in quoted {
                if words.len() < 4 + MAX_QUOTED && !words.iter().any(|known| **known == *word) {
                    words.push(word.into());
                }
            }
        }
    }
    words
}

/// The results of some phases, as text; in the one that is being played there may be none yet.
pub(super) fn way(
    scenario: &Scenario,
    phases: &BTreeSet<PhaseId>,
    own: Option<PhaseId>,
    said: &History,
    has_words: bool,
) -> String {
    let of_phase = |id: &PhaseId| {
        let name = &scenario.phase(*id).name;
        let lines = said.lines(*id);
        if lines.is_empty() && own == Some(*id) {
            return format!("nothing has been said in `{name}` yet");
        }
        if lines.is_empty() {
            return format!("`{name}` is skipped");
        }
        let mut latest: BTreeMap<AgentId, String> = BTreeMap::new();
        let mut order = Vec::new();
        for line in lines {
            let (Some((choice, chosen)), true) = (&line.choice, line.chosen().is_some()) else { continue };
            if !order.contains(&line.speaker) {
                order.push(line.speaker);
            }
            let word = match chosen {
                Chosen::Option(option) => text_of(&choice.options[*option].value),
                Chosen::Invalid => "nothing valid".to_string(),
            };
            latest.insert(line.speaker, word);
        }
        if !order.is_empty() {
            let more = order.len().saturating_sub(MAX_CHOICES);
            let listed: Vec<&str> =
                order.iter().take(MAX_CHOICES).map(|agent| latest[agent].as_str()).collect();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            return format!("`{name}` has the choices {}{more}", listed.join(", "));
        }
        let speech = lines.iter().find(|line| line.purpose == Purpose::Speech).filter(|_| has_words);
        match speech.map(|line| line.text.chars().take(30).collect::<String>()) {
            Some(text) if text.is_empty() => format!("nothing is said in `{name}`"),
            Some(text) => format!("\"{text}\" is said in `{name}`"),
            None => format!("`{name}` is played"),
        }
    };
    let ways: Vec<String> = phases.iter().map(of_phase).collect();
    if ways.is_empty() { "anything happens".to_string() } else { ways.join(" and ") }
}
