//! The part of a reply that others hear: without reasoning and the speaker's own name, on one line.
//!
//! The agent itself remembers what it sampled; nothing here touches that.

const THINK: (&str, &str) = ("<think>", "</think>");
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const ENDS: [&str; 3] = ["<|end|>", "<|return|>", "<|start|>"];

/// The part of `raw`, said by `name`, that others hear. Empty: nothing was said.
pub fn spoken(name: &str, raw: &str) -> String {
    one_line(after_name(name, without_reasoning(raw).trim()))
}

/// The part of a reply that the rest can't change any more, for display while it streams. `may_reason`: the
/// template may have opened the reasoning, so nothing is certain before that ends.
pub fn spoken_so_far(name: &str, raw: &str, may_reason: bool) -> String {
    let raw = without_open_marker(raw);
    if may_reason && begin_of_speech(raw) == Some(0) {
        return String::new();
    }
    let text = without_reasoning(raw);
    let rest = after_name(name, text.trim_start());
    if may_become_name(name, rest) { String::new() } else { one_line(rest) }
}

/// True if a prompt that ends with this text has opened the reasoning.
pub fn opens_reasoning(prompt: &str) -> bool {
    prompt.trim_end().ends_with(THINK.0)
}

/// The offset at which the speech of a reply begins, after its reasoning; `None`: there is none in it, or
/// none yet.
pub(super) fn begin_of_speech(raw: &str) -> Option<usize> {
    if raw.contains(CHANNEL) {
        return begin_of_final(raw);
    }
    // A template may open the reasoning itself, so its end alone is enough.
    let opened = raw.find(THINK.1).filter(|end| !raw[..*end].contains(THINK.0));
    let mut begin = opened.map_or(0, |end| end + THINK.1.len());
    while raw[begin..].trim_start().starts_with(THINK.0) {
        begin += raw[begin..].find(THINK.1)? + THINK.1.len();
    }
    Some(begin)
}

/// The offset at which the first `final` channel of a harmony reply begins; all before it is reasoning or
/// tools.
fn begin_of_final(raw: &str) -> Option<usize> {
    let mut channels = raw.match_indices(CHANNEL).map(|(at, _)| at + CHANNEL.len());
    let begin = channels.find(|at| raw[*at..].trim_start().starts_with("final"))?;
    let channel = raw[begin..].split(CHANNEL).next()?;
    Some(begin + channel.find(MESSAGE)? + MESSAGE.len())
}

/// A reply without a marker at its end that is only half there: all before it could still turn into
/// reasoning.
pub(super) fn without_open_marker(raw: &str) -> &str {
    let held = raw.rfind('<').filter(|at| {
        let tail = &raw[*at..];
        [THINK.0, THINK.1, CHANNEL, MESSAGE].iter().chain(&ENDS).any(|marker| marker.starts_with(tail))
    });
    &raw[..held.unwrap_or(raw.len())]
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

fn without_reasoning(raw: &str) -> String {
    let Some(begin) = begin_of_speech(raw) else { return String::new() };
    let mut text = raw[begin..].to_string();
    if raw.contains(CHANNEL) {
        let end = ENDS.iter().filter_map(|end| text.find(end)).min();
        text.truncate(end.unwrap_or(text.len()));
        return text;
    }
    while let Some(start) = text.find(THINK.0) {
        let end = text[start..].find(THINK.1).map_or(text.len(), |end| start + end + THINK.1.len());
        text.replace_range(start..end, "");
    }
    text
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
            assert_eq!(spoken("Marco", raw), heard, "{raw:?}");
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
        let opened =
            ["he lies</think>Fine.", "Marco: no</think>Marco: Fine.", "a</think>b</think>c", "never closed"];
        let replies = replies.into_iter().flat_map(|raw| [(raw, false), (raw, true)]);
        for (raw, may_reason) in replies.chain(opened.map(|raw| (raw, true))) {
            let whole = spoken("Marco", raw);
            for (at, _) in raw.char_indices() {
                let part = spoken_so_far("Marco", &raw[..at], may_reason);
                assert!(whole.starts_with(part.trim_end()), "{part:?} of {raw:?}");
            }
        }
        assert_eq!(spoken_so_far("Marco", "he lies</think>Fine. I", true), "Fine. I");
    }
}
