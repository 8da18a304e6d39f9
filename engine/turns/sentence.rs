//! Ends of sentences, for replies that reach their token limit. Pure.
//!
//! A text is read once, as it comes: [`TextEnd`] is what is known of it at a character, and [`Sentences`]
//! keeps the ends of tokens that end sentences. Whether one does is certain as soon as something follows that
//! is no space.
//!
//! The rule: a sentence ends with a terminator and the closing marks after it, where a space or the end of
//! the text follows; full-width terminators need no space. What follows must not begin with a lower-case
//! letter (`"Go!" he said`), and a full stop ends no sentence after a title or a single letter (`Mr.`, `J.`),
//! or after a number that begins a line (`3.`) or that may go on (`3.14`).

/// Terminators that need a space, or the end of the text, after them.
const SPACED: &[char] = &['.', '!', '?', '…', '؟', '۔', '।'];
/// Terminators that need none.
const FULL_WIDTH: &[char] = &['。', '！', '？', '．', '｡'];
/// Marks that may occur between a terminator and the end of its sentence: quotes, brackets, emphasis.
const CLOSING: &[char] =
    &['"', '\'', '”', '’', '»', '›', ')', ']', '}', '*', '_', '`', '」', '』', '）', '】', '》', '〉', '］'];
/// Abbreviations that occur before a name or in the middle of a sentence.
const ABBREVIATIONS: &[&str] = &[
    "mr", "mrs", "ms", "dr", "prof", "st", "rev", "gen", "col", "capt", "lt", "sgt", "vs", "cf", "e.g", "i.e",
];

/// Maximum characters of a word that are examined: abbreviations are shorter.
const MAX_WORD: usize = 8;

/// What is known of a text at its end: all that decides whether a sentence ends there.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct TextEnd {
    /// The last terminator, if only closing marks and then spaces follow it.
    terminator: Terminator,
    /// True if it ends with a space.
    is_apart: bool,
    /// True if its last character is a full stop.
    follows_stop: bool,
    word: Word,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Terminator {
    #[default]
    None,
    FullWidth,
    /// `may_go_on`: it ends no sentence where more follows; `may_go_on_at_end`: nor where it is the last
    /// character.
    Spaced {
        may_go_on: bool,
        may_go_on_at_end: bool,
    },
}

/// The word at the end of a text, from its first letter or digit on; its line is the part of a text after the
/// last line break.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Word {
    /// True if nothing else precedes it in its line.
    begins_line: bool,
    /// True if it has begun: a mark before its first letter or digit counts as well.
    has_begun: bool,
    /// Its first characters, and how many it has.
    start: [char; MAX_WORD],
    n: usize,
    /// True if all are digits, points or commas.
    is_number: bool,
}

impl Default for Word {
    fn default() -> Self {
        Self { begins_line: true, has_begun: false, start: ['\0'; MAX_WORD], n: 0, is_number: true }
    }
}

impl Word {
    fn push(&mut self, c: char) {
        if c == '\n' {
            *self = Self::default();
        } else if c.is_whitespace() {
            *self = Self { begins_line: self.begins_line && !self.has_begun, ..Self::default() };
        } else {
            self.has_begun = true;
            if self.n == 0 && !c.is_alphanumeric() {
                return;
            }
            if let Some(place) = self.start.get_mut(self.n) {
                *place = c;
            }
            self.n += 1;
            self.is_number &= c.is_ascii_digit() || c == '.' || c == ',';
        }
    }

    /// True if a full stop after it ends no sentence; `is_last`: it is the last character that there is.
    fn goes_on(&self, is_last: bool) -> bool {
        let start = &self.start[..self.n.min(MAX_WORD)];
        let is_letter = self.n == 1 && start[0].is_alphabetic();
        let is = |known: &str| {
            known.len() == self.n && known.chars().zip(start).all(|(a, b)| a.eq_ignore_ascii_case(b))
        };
        self.n > 0 && self.is_number && (is_last || self.begins_line)
            || is_letter && start[0] != 'I'
            || ABBREVIATIONS.iter().any(|known| is(known))
    }
}

impl TextEnd {
    fn push(&mut self, c: char) {
        if c.is_whitespace() {
            self.is_apart = true;
        } else {
            if FULL_WIDTH.contains(&c) {
                self.terminator = Terminator::FullWidth;
            } else if c == '.' && !self.follows_stop {
                let [may_go_on, may_go_on_at_end] = [false, true].map(|is_last| self.word.goes_on(is_last));
                self.terminator = Terminator::Spaced { may_go_on, may_go_on_at_end };
            } else if SPACED.contains(&c) {
                self.terminator = Terminator::Spaced { may_go_on: false, may_go_on_at_end: false };
            } else if self.is_apart || !CLOSING.contains(&c) {
                self.terminator = Terminator::None;
            }
            self.is_apart = false;
        }
        self.follows_stop = c == '.';
        self.word.push(c);
    }

    /// Tells whether a sentence ends here, where `next` follows, and `next_mark` as the first character that
    /// is no space.
    fn ends_sentence(&self, next: Option<char>, next_mark: Option<char>) -> bool {
        let Terminator::Spaced { may_go_on, may_go_on_at_end } = self.terminator else {
            let goes_on = |c: char| CLOSING.contains(&c) || FULL_WIDTH.contains(&c);
            return self.terminator == Terminator::FullWidth && !next.is_some_and(goes_on);
        };
        let stands_apart = self.is_apart || next.is_none_or(char::is_whitespace);
        let is_last = !self.is_apart && next.is_none();
        stands_apart
            && !next_mark.is_some_and(char::is_lowercase)
            && !if is_last { may_go_on_at_end } else { may_go_on }
    }
}

/// Ends of a text's tokens at which sentences end. Each byte is read once.
#[derive(Default)]
pub(crate) struct Sentences {
    /// What is known at the end of what was read.
    place: TextEnd,
    /// Bytes and tokens that were read.
    n_bytes: usize,
    n_tokens: usize,
    /// Numbers of tokens with which a sentence ends.
    whole: Vec<usize>,
    /// Numbers of tokens after which only spaces follow so far, and for each the offset and the next
    /// character.
    open: Vec<(usize, TextEnd, Option<char>)>,
    /// Characters and ends of tokens examined so far.
    #[cfg(test)]
    pub(crate) n_steps: usize,
}

impl Sentences {
    /// Reads on: `bytes` and the ends of their tokens are those of before and more; the last character is
    /// whole.
    pub(crate) fn read(&mut self, bytes: &[u8], ends: &[usize]) {
        let mut at = self.n_bytes;
        for chunk in bytes[at..].utf8_chunks() {
            for c in chunk.valid().chars() {
                self.pass_tokens(at, ends);
                self.push(c);
                at += c.len_utf8();
            }
            if !chunk.invalid().is_empty() {
                self.pass_tokens(at, ends);
                self.push(char::REPLACEMENT_CHARACTER);
                at += chunk.invalid().len();
            }
        }
        self.n_bytes = at;
        self.pass_tokens(at, ends);
    }

    /// The text ends here from now on: if more was read, it is read again.
    pub(crate) fn cut(&mut self, n_bytes: usize, n_tokens: usize) {
        if n_bytes < self.n_bytes || n_tokens < self.n_tokens {
            *self = Self::default();
        }
    }

    /// The last of the first `n` tokens with which a sentence ends, as far as that is certain.
    pub(crate) fn last(&self, n: usize) -> Option<usize> {
        let i = self.whole.partition_point(|token| *token <= n);
        i.checked_sub(1).map(|i| self.whole[i])
    }

    /// The same where nothing follows what was read.
    pub(crate) fn last_at_end(&self, n: usize) -> Option<usize> {
        let open = self.open.iter().rev().filter(|(token, ..)| *token <= n);
        let mut open = open.filter(|(_, place, next)| place.ends_sentence(*next, None));
        open.next().map(|(token, ..)| *token).or_else(|| self.last(n))
    }

    fn push(&mut self, c: char) {
        self.count(1);
        if c.is_whitespace() {
            // Only the latest ones are after no character yet.
            let latest = self.open.iter_mut().rev().take_while(|(.., next)| next.is_none());
            let n = latest.map(|open| open.2 = Some(c)).count();
            self.count(n);
        } else {
            self.count(self.open.len());
            let open = self.open.drain(..);
            let whole = open.filter(|(_, place, next)| place.ends_sentence(next.or(Some(c)), Some(c)));
            self.whole.extend(whole.map(|(token, ..)| token));
        }
        self.place.push(c);
    }

    /// Tokens that end at a character's beginning may end a sentence; those that end within one do not.
    fn pass_tokens(&mut self, at: usize, ends: &[usize]) {
        while let Some(end) = ends.get(self.n_tokens).filter(|end| **end <= at) {
            self.n_tokens += 1;
            self.count(1);
            // A place that is not an end of a sentence now is none later.
            if *end == at && self.place.terminator != Terminator::None {
                self.open.push((self.n_tokens, self.place, None));
            }
        }
    }

    /// Counts work, for tests.
    #[cfg_attr(not(test), expect(clippy::unused_self))]
    fn count(&mut self, _n: usize) {
        #[cfg(test)]
        {
            self.n_steps += _n;
        }
    }
}

/// Tells whether `before` ends with a whole sentence (and spaces, perhaps), `after` being the rest of the
/// text.
#[cfg(test)]
pub(crate) fn ends_sentence(before: &str, after: &str) -> bool {
    let mut place = TextEnd::default();
    before.chars().for_each(|c| place.push(c));
    place.ends_sentence(after.chars().next(), after.chars().find(|c| !c.is_whitespace()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Tells whether `before` ends with a whole sentence (and spaces, perhaps), `after` being the rest of the
    /// text: as it is defined.
    fn by_definition(before: &str, after: &str) -> bool {
        let whole = before.trim_end();
        let bare = whole.trim_end_matches(CLOSING);
        let Some(terminator) = bare.chars().next_back() else { return false };
        if FULL_WIDTH.contains(&terminator) {
            return !after.starts_with(CLOSING) && !after.starts_with(FULL_WIDTH);
        }
        let stands_apart =
            whole.len() < before.len() || after.is_empty() || after.starts_with(char::is_whitespace);
        if !SPACED.contains(&terminator)
            || !stands_apart
            || after.trim_start().starts_with(char::is_lowercase)
        {
            return false;
        }
        match bare.strip_suffix('.') {
            Some(line) if !line.ends_with('.') => {
                !goes_on(line, whole.len() == before.len() && after.is_empty())
            }
            _ => true,
        }
    }

    /// Tells whether a full stop after `text` ends no sentence; `is_last`: it is the last character that
    /// there is.
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

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn places_are_those_of_the_definition(text in r#"([a-eA-ZIé ]|Mr|e\.g|[0-9]|[.。！?!…,] ?|[\n \u{2028}]|["'”」)*_]){0,24}"#) {
            let ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
            for (before, after) in ends.map(|end| text.split_at(end)) {
                prop_assert_eq!(
                    ends_sentence(before, after), by_definition(before, after), "{:?}, {:?}", before, after
                );
            }
        }

        #[test]
        fn tokens_that_end_sentences_are_found_as_they_come(
            text in r#"([aIx] ?|Mr|[0-9]|[.。?!] ?|[\n ]|["”é☃]|�){0,20}"#,
            cuts in prop::collection::vec(0..6usize, 1..60), odd in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let mut bytes = text.into_bytes();
            if let Some(odd) = odd.filter(|_| !bytes.is_empty()) {
                let at = odd.index(bytes.len());
                bytes[at] = [0xff, 0xe2, 0x80][at % 3];
            }
            let (mut found, mut ends, mut certain) = (Sentences::default(), Vec::new(), Vec::new());
            for n in cuts {
                let end = (ends.last().copied().unwrap_or(0) + n).min(bytes.len());
                ends.push(end);
                // A character's end is certain where another one begins, or nothing follows.
                let is_whole = end == bytes.len() || bytes[end] & 0xc0 != 0x80;
                if is_whole && std::str::from_utf8(&bytes[..end]).is_ok() {
                    found.read(&bytes[..end], &ends);
                    let expected = (1..=ends.len()).rev().find(|n| {
                        let (before, after) = bytes[..end].split_at(ends[*n - 1]);
                        let (before, after) = (
                            String::from_utf8_lossy(before), String::from_utf8_lossy(after)
                        );
                        !after.trim().is_empty() && by_definition(&before, &after)
                    });
                    prop_assert_eq!(found.last(ends.len()), expected);
                    certain.extend(expected);
                }
            }
            let end = ends.last().copied().unwrap_or(0);
            if std::str::from_utf8(&bytes[..end]).is_ok() {
                found.read(&bytes[..end], &ends);
                let expected = (1..=ends.len()).rev().find(|n| {
                    let (before, after) = bytes[..end].split_at(ends[*n - 1]);
                    by_definition(&String::from_utf8_lossy(before), &String::from_utf8_lossy(after))
                });
                prop_assert_eq!(found.last_at_end(ends.len()), expected);
            }
            prop_assert!(certain.is_sorted());
        }
    }

    #[test]
    fn each_character_is_read_once() {
        for text in ["Mr. ", "a, b\n", "1.", ". ", "\n", "x", "。」", "☃ "] {
            let bytes = text.repeat(20_000).into_bytes();
            let (mut sentences, mut ends) = (Sentences::default(), Vec::new());
            let mut at = 0;
            while at < bytes.len() {
                at += text.chars().next().unwrap().len_utf8().max(bytes.len().min(at + text.len()) - at);
                ends.push(at);
                sentences.read(&bytes[..at], &ends);
                sentences.last(ends.len());
            }
            assert!(
                sentences.n_steps <= 4 * bytes.len(),
                "{} steps for {} bytes of {text:?}",
                sentences.n_steps,
                bytes.len()
            );
        }
    }

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
