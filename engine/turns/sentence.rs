//! Ends of sentences, for replies that reach their token limit. Pure.
//!
//! The rule: a sentence ends with a terminator and the closing marks behind it, where a space or the end of the text follows;
//! full-width terminators need no space. What follows must not begin with a lower-case letter (`"Go!" he said`), and a full stop
//! ends no sentence behind a title or a single letter (`Mr.`, `J.`), or behind a number that begins a line (`3.`) or that may go on (`3.14`).

/// Terminators that need a space, or the end of the text, behind them.
const SPACED: &[char] = &['.', '!', '?', '…', '؟', '۔', '।'];
/// Terminators that need none.
const FULL_WIDTH: &[char] = &['。', '！', '？', '．', '｡'];
/// Marks that may stand between a terminator and the end of its sentence: quotes, brackets, emphasis.
const CLOSING: &[char] =
    &['"', '\'', '”', '’', '»', '›', ')', ']', '}', '*', '_', '`', '」', '』', '）', '】', '》', '〉', '］'];
/// Abbreviations that stand before a name or in the middle of a sentence.
const ABBREVIATIONS: &[&str] = &[
    "mr", "mrs", "ms", "dr", "prof", "st", "rev", "gen", "col", "capt", "lt", "sgt", "vs", "cf", "e.g", "i.e",
];

/// Tells whether `before` ends with a whole sentence (and spaces, perhaps), `after` being the rest of the text.
pub(crate) fn ends_sentence(before: &str, after: &str) -> bool {
    let whole = before.trim_end();
    let bare = whole.trim_end_matches(CLOSING);
    let Some(terminator) = bare.chars().next_back() else { return false };
    if FULL_WIDTH.contains(&terminator) {
        return !after.starts_with(CLOSING) && !after.starts_with(FULL_WIDTH);
    }
    let stands_apart =
        whole.len() < before.len() || after.is_empty() || after.starts_with(char::is_whitespace);
    if !SPACED.contains(&terminator) || !stands_apart || after.trim_start().starts_with(char::is_lowercase) {
        return false;
    }
    match bare.strip_suffix('.') {
        Some(line) if !line.ends_with('.') => !goes_on(line, whole.len() == before.len() && after.is_empty()),
        _ => true,
    }
}

/// Tells whether a full stop behind `text` ends no sentence; `is_last`: it is the last character that there is.
fn goes_on(text: &str, is_last: bool) -> bool {
    let line = text.rsplit('\n').next().unwrap_or(text);
    let (rest, word) = line.rsplit_once(char::is_whitespace).unwrap_or(("", line));
    let word = word.trim_start_matches(|c: char| !c.is_alphanumeric());
    let is_number = !word.is_empty() && word.chars().all(|c| c.is_ascii_digit() || c == '.' || c == ',');
    let is_letter = word.chars().count() == 1 && word.chars().all(char::is_alphabetic);
    is_number && (is_last || rest.trim().is_empty())
        || is_letter && word != "I"
        || ABBREVIATIONS.iter().any(|known| word.eq_ignore_ascii_case(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The longest beginning that ends with a sentence.
    fn whole(text: &str) -> &str {
        let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
        let last = ends.rev().find(|end| ends_sentence(&text[..*end], &text[*end..]));
        text[..last.unwrap_or(0)].trim_end()
    }

    #[test]
    fn sentences_end_by_rule() {
        let cases = [
            ("I know. You do", "I know."),
            ("I know. You do.", "I know. You do."),
            ("Is it? No! And", "Is it? No!"),
            ("no end in sight", ""),
            ("She said: \"Go.\" Then we", "She said: \"Go.\""),
            ("\"Go!\" he said. Then", "\"Go!\" he said."),
            ("\"Go!\" he said", ""),
            ("“Never.” (He smiled.) And then", "“Never.” (He smiled.)"),
            ("*She nods.* Well", "*She nods.*"),
            ("**No.** That", "**No.**"),
            ("No. Why", "No."),
            ("Well… Perhaps we", "Well…"),
            ("Well... Perhaps we", "Well..."),
            ("Well... perhaps we", ""),
            ("Ask Mr. Smith", ""),
            ("I did. Ask Mr.", "I did."),
            ("I did. Ask Dr. Who. He", "I did. Ask Dr. Who."),
            ("I did. J. Smith", "I did."),
            ("So am I. And", "So am I."),
            ("Plans, e.g. Lisbon", ""),
            ("It costs 3.14 in", ""),
            ("I pay. It costs 3.", "I pay."),
            ("It was 1990. Then", "It was 1990."),
            ("Two ways.\n1. Go.\n2. Stay", "Two ways.\n1. Go."),
            ("Two ways.\n1. Go\n2.", "Two ways."),
            ("see example.com for", ""),
            ("我知道。你", "我知道。"),
            ("他说：「走吧。」然后", "他说：「走吧。」"),
            ("真的？！是", "真的？！"),
            ("¿Vienes? Sí", "¿Vienes?"),
            ("", ""),
            ("...", "..."),
        ];
        for (text, expected) in cases {
            assert_eq!(whole(text), expected, "{text:?}");
        }
    }

    #[test]
    fn what_ended_stays_ended_when_more_is_said() {
        let text = "I did. Ask Mr. Smith (3.5 m.) tonight! \"Go.\" he said... 我。」 And 2. no";
        let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        for end in &ends {
            let before = &text[..*end];
            let known = |more: &&usize| !text[*end..**more].trim().is_empty();
            let verdicts: Vec<bool> = ends
                .iter()
                .filter(|more| *more > end)
                .filter(known)
                .map(|more| ends_sentence(before, &text[*end..*more]))
                .collect();
            assert!(verdicts.windows(2).all(|pair| pair[0] == pair[1]), "{before:?}: {verdicts:?}");
        }
    }
}
