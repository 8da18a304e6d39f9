//! The part of a reply that others hear: its speech without the speaker's own name, on one line.
//!
//! The agent itself remembers what it sampled; nothing here touches that. A model's engine knows how its template
//! marks reasoning; a text from elsewhere is read by all known marks.

use crate::thoughts::KNOWN;

/// The part of a speech, by `name`, that others hear. Empty: nothing was said.
pub fn spoken(name: &str, speech: &str) -> String {
    one_line(after_name(name, KNOWN.without_thoughts(speech).trim()))
}

/// The part of a speech that the rest can't change any more, for display while it streams.
pub fn spoken_so_far(name: &str, speech: &str) -> String {
    let text = KNOWN.without_thoughts(KNOWN.without_open_mark(speech));
    let rest = after_name(name, text.trim_start());
    if may_become_name(name, rest) { String::new() } else { one_line(rest) }
}

/// The text after the name of its speaker and a colon, removed as often as they are repeated.
pub(super) fn after_name<'a>(name: &str, mut text: &'a str) -> &'a str {
    while let Some(rest) = without_name(name, text) {
        text = rest.trim_start();
    }
    text
}

/// True if a text may become the name of its speaker, with a colon, as it grows.
pub(super) fn may_become_name(name: &str, text: &str) -> bool {
    let (name, unsure) = (name.to_lowercase(), text.trim_start_matches('*').to_lowercase());
    let is_open = |rest: &str| rest.chars().all(|c| c == '*' || c.is_whitespace());
    name.starts_with(&unsure) || unsure.strip_prefix(&name).is_some_and(is_open)
}

/// The text after `Name:` (also `**Name:**`, `Name :` as in French, and with a wide colon), if it starts so,
/// in whatever case.
fn without_name<'a>(name: &str, text: &'a str) -> Option<&'a str> {
    let bare = text.trim_start_matches('*');
    let bold = bare.len() < text.len();
    let end = bare.char_indices().nth(name.chars().count()).map_or(bare.len(), |(at, _)| at);
    let (head, rest) = bare.split_at(end);
    if name.is_empty() || head.to_lowercase() != name.to_lowercase() {
        return None;
    }
    let rest =
        rest.trim_start_matches(|c: char| c == ' ' || c == '\u{a0}' || c == '\u{202f}' || bold && c == '*');
    let rest = rest.strip_prefix([':', '：'])?;
    Some(if bold { rest.trim_start_matches('*') } else { rest })
}

/// One line of a transcript is one message, whatever breaks a line.
pub(super) fn one_line(text: &str) -> String {
    let breaks = |c: char| matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}');
    text.split(breaks).map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thoughts::speech_of;

    #[test]
    fn reasoning_and_own_name_are_taken_off() {
        let cases = [
            ("Marco: I stay silent.", "I stay silent."),
            ("marco:  MARCO: twice", "twice"),
            ("**Marco:** bold", "bold"),
            ("Marco thinks: no", "Marco thinks: no"),
            ("<think>\nhe lies\n</think>\n\nFine.", "Fine."),
            ("he lies</think> Fine.", "Fine."),
            ("he lies</think><think>or not</think> Fine.", "Fine."),
            ("<think>a</think> <think>b</think>Fine <think>c</think>indeed.", "Fine indeed."),
            ("<think>never closed", ""),
            ("a\n\n  b \r\nc\u{2028}d", "a b c d"),
            (
                "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
                "Yes.",
            ),
            ("<|channel|>analysis<|message|>only thoughts", ""),
            ("Danny: I am Danny", "Danny: I am Danny"),
            ("Marco : bonjour", "bonjour"),
            ("MARCO：你好", "你好"),
            ("**Marco** : bold", "bold"),
            ("Marco", "Marco"),
            ("Marco:", ""),
            ("  ", ""),
        ];
        for (raw, heard) in cases {
            assert_eq!(spoken("Marco", &raw[speech_of(raw)]), heard, "{raw:?}");
        }
    }

    #[test]
    fn names_of_every_script_are_taken_off() {
        for (name, raw) in [
            ("Élodie", "élodie : bonjour"),
            ("ÉLODIE", "**Élodie:** bonjour"),
            ("Łukasz", "ŁUKASZ: bonjour"),
            ("助手", "助手：bonjour"),
            ("Ann Lee", "Ann Lee: bonjour"),
        ] {
            assert_eq!(spoken(name, raw), "bonjour", "{raw}");
        }
        assert_eq!(spoken("Ann", "Anna: hi"), "Anna: hi");
        assert_eq!(spoken("Ann", "Ann Lee: hi"), "Ann Lee: hi");
        assert_eq!(spoken("", ": hi"), ": hi");
    }

    #[test]
    fn what_streams_is_never_taken_back() {
        let replies = [
            "Marco: I stay silent.",
            "<think>he lies</think>Fine, <3 and so on.",
            "<think>he lies</think>Fine.</think> <think>Or not?</think>Fine.",
            "Marc is a name too",
            "a\n b\n\nc",
            "**Marco:** bold",
            "Marco : bonjour",
            "marco:  MARCO: twice",
            "Marco",
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
            "<|channel|>final<|message|>Yes.<|end|><|start|>assistant<|channel|>final<|message|>No.",
        ];
        for raw in replies {
            let speech = &raw[speech_of(raw)];
            let whole = spoken("Marco", speech);
            for (at, _) in speech.char_indices() {
                let part = spoken_so_far("Marco", &speech[..at]);
                assert!(whole.starts_with(part.trim_end()), "{part:?} of {raw:?}");
            }
        }
    }
}
