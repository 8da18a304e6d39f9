//! A reply as words: in lower case, with the sentence and the clause of each.
//!
//! Where a script puts no spaces between words (Chinese, Japanese, Korean with its particles, Thai, …), each
//! character is a word, so that a name is found wherever its characters occur.
//!
//! A number is one word, with its sign and its decimal point: `-1` is not a `1`, and `3.5` is not a `3`. A
//! plus changes no number and is left out.

use super::Language;

/// A word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    /// In lower case.
    pub(crate) text: String,
    /// Number of its sentence.
    pub(crate) sentence: usize,
    /// Number of its clause, over all sentences.
    pub(crate) clause: usize,
    /// True if nothing stands between it and the word before.
    pub(crate) is_joined: bool,
}

/// The words of a text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Words {
    /// In their order.
    pub(crate) all: Vec<Word>,
    /// Numbers of the sentences that are questions.
    questions: Vec<usize>,
    word: String,
    sentence: usize,
    clause: usize,
    is_joined: bool,
    /// True after a point that is part of an abbreviation.
    is_abbreviated: bool,
}

/// Abbreviations whose point ends no sentence.
const ABBREVIATIONS: [&str; 10] = ["mr", "mrs", "ms", "mx", "dr", "prof", "st", "vs", "bzw", "sr"];

impl Language {
    /// The words of a text. Apostrophes stay in them, except after an elision, which is a word of its own.
    pub(crate) fn words(&self, text: &str) -> Words {
        let mut words = Words::default();
        let mut before = None;
        for (at, c) in text.char_indices() {
            let rest = &text[at + c.len_utf8()..];
            match c {
                '’' | '\'' | 'ʼ' | '‘' | '＇' if !words.word.is_empty() => {
                    words.word.push('\'');
                    if self.is_elision(&words.word) {
                        words.push_word();
                    }
                }
                c if is_unspaced(c) => {
                    words.end_word();
                    words.word.push(c);
                    words.end_word();
                }
                c if c.is_alphanumeric() || is_mark(c) && !words.word.is_empty() => {
                    words.word.extend(c.to_lowercase());
                }
                c if is_minus(c)
                    && words.word.is_empty()
                    && !before.is_some_and(is_sign)
                    && is_number(rest) =>
                {
                    words.word.push('-');
                }
                '.' | ',' if words.word.ends_with(char::is_numeric) && rest.starts_with(char::is_numeric) => {
                    words.word.push(c);
                }
                '.' if words.is_before_number()
                    && before != Some('.')
                    && rest.starts_with(char::is_numeric) =>
                {
                    words.word.push_str("0.");
                }
                '.' if words.is_abbreviation(rest.chars().next()) => {
                    words.separate();
                    words.is_abbreviated = true;
                }
                c => words.separator(c),
            }
            before = Some(c);
        }
        words.end_word();
        words
    }
}

impl Words {
    /// True if a sentence asks.
    pub(crate) fn is_question(&self, sentence: usize) -> bool {
        self.questions.contains(&sentence)
    }

    /// True for one character of a script without spaces.
    pub(crate) fn is_one_character(&self) -> bool {
        matches!(&self.all[..], [word] if word.text.chars().count() == 1 && word.text.contains(is_unspaced))
    }

    /// True if no other word stands directly before or after these.
    pub(crate) fn are_apart(&self, from: usize, to: usize) -> bool {
        let is_joined = |at: usize| self.all.get(at).is_some_and(|word| word.is_joined);
        !is_joined(from) && !is_joined(to)
    }

    /// Ends the word so far, without apostrophes after it.
    fn end_word(&mut self) {
        self.word.truncate(self.word.trim_end_matches('\'').len());
        self.push_word();
    }

    fn push_word(&mut self) {
        let text = std::mem::take(&mut self.word);
        if !text.is_empty() {
            let (sentence, clause, is_joined) = (self.sentence, self.clause, self.is_joined);
            self.all.push(Word { text, sentence, clause, is_joined });
            self.is_joined = true;
        }
    }

    fn separate(&mut self) {
        self.end_word();
        (self.is_joined, self.is_abbreviated) = (false, false);
    }

    fn separator(&mut self, c: char) {
        self.separate();
        if matches!(c, '?' | '？' | '؟' | '⸮' | '՞') {
            // `!?` asks, too.
            self.questions.extend(self.all.last().map(|word| word.sentence));
        }
        let ends_sentence = is_end(c);
        self.sentence += usize::from(ends_sentence);
        self.clause += usize::from(ends_sentence || is_clause_end(c));
    }

    /// True where a number can begin: the word so far is empty, or a sign.
    fn is_before_number(&self) -> bool {
        matches!(self.word.as_str(), "" | "-")
    }

    /// True if the point after the word so far ends no sentence, given the next character.
    fn is_abbreviation(&self, next: Option<char>) -> bool {
        let is_letter = |text: &str| text.chars().count() == 1 && text.chars().all(char::is_alphabetic);
        // `e.g. this`: the first point is within the abbreviation, the second after it.
        let inside = is_letter(&self.word) && next.is_some_and(char::is_alphabetic);
        let after = is_letter(&self.word) && self.is_abbreviated;
        inside || after || ABBREVIATIONS.contains(&self.word.as_str())
    }
}

fn is_minus(c: char) -> bool {
    matches!(c, '-' | '\u{2010}' | '\u{2011}' | '\u{2013}' | '\u{2212}' | '\u{FE63}' | '\u{FF0D}')
}

fn is_sign(c: char) -> bool {
    is_minus(c) || matches!(c, '+' | '\u{FF0B}')
}

/// True if a text begins with the digits of a number, or with its decimal point.
fn is_number(text: &str) -> bool {
    text.strip_prefix('.').unwrap_or(text).starts_with(char::is_numeric)
}

fn is_end(c: char) -> bool {
    matches!(
        c,
        '.' | '!'
            | '?'
            | ';'
            | '\n'
            | '。'
            | '．'
            | '！'
            | '？'
            | '；'
            | '؟'
            | '؛'
            | '۔'
            | '।'
            | '॥'
            | '።'
            | '՞'
            | '⸮'
            | '｡'
    )
}

fn is_clause_end(c: char) -> bool {
    matches!(c, ',' | ':' | '–' | '—' | '(' | ')' | '，' | '、' | '：' | '،' | '（' | '）' | '…')
}

/// True for characters of scripts that put no spaces between words, or write particles onto them.
pub(crate) fn is_unspaced(c: char) -> bool {
    matches!(u32::from(c),
        0x0E00..=0x0EFF          // Thai, Lao
        | 0x1000..=0x109F        // Myanmar
        | 0x1100..=0x11FF        // Hangul, decomposed
        | 0x1780..=0x17FF        // Khmer
        | 0x3005..=0x3007        // Han: iteration mark, zero
        | 0x3040..=0x30FA | 0x30FC..=0x30FF | 0x31F0..=0x31FF | 0xFF66..=0xFF9F // kana
        | 0x3400..=0x4DBF | 0x4E00..=0x9FFF | 0xF900..=0xFAFF | 0x20000..=0x323AF // Han
        | 0xAC00..=0xD7AF) // Hangul
}

/// True for combining marks, which belong to the letter before.
fn is_mark(c: char) -> bool {
    matches!(u32::from(c),
        0x0300..=0x036F | 0x0483..=0x0489 | 0x0591..=0x05BD | 0x05BF..=0x05C7 | 0x0610..=0x061A | 0x064B..=0x065F | 0x0670
        | 0x0900..=0x0903 | 0x093A..=0x094F | 0x0951..=0x0957 | 0x0981..=0x0983 | 0x09BC..=0x09CD | 0x0A01..=0x0A03
        | 0x0A3C..=0x0A4D | 0x0B82 | 0x0BBE..=0x0BCD | 0x0C00..=0x0C04 | 0x0C3E..=0x0C56 | 0x1AB0..=0x1AFF | 0x1DC0..=0x1DFF
        | 0x200C..=0x200D | 0x20D0..=0x20FF | 0xFE20..=0xFE2F)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<(String, usize, usize)> {
        let words = Language::default().words(text);
        words.all.into_iter().map(|word| (word.text, word.sentence, word.clause)).collect()
    }

    #[test]
    fn sentences_and_clauses_are_numbered_and_abbreviations_end_none() {
        let word = |text: &str, sentence, clause| (text.to_string(), sentence, clause);
        assert_eq!(
            words("No, e.g. Mr. X. Don’t!"),
            [
                word("no", 0, 0),
                word("e", 0, 1),
                word("g", 0, 1),
                word("mr", 0, 1),
                word("x", 0, 1),
                word("don't", 1, 2)
            ]
        );
        assert_eq!(words("Plan B. Go.").last(), Some(&word("go", 1, 1)));
    }

    #[test]
    fn a_number_is_one_word_with_its_sign_and_its_decimal_point() {
        let texts = |text: &str| words(text).into_iter().map(|word| word.0).collect::<Vec<_>>().join(" ");
        for (text, expected) in [
            ("-1", "-1"),
            ("\u{2212}1, +2", "-1 2"),
            ("3.5. 3,5, 1,000.50!", "3.5 3,5 1,000.50"),
            (".5 -.5", "0.5 -0.5"),
            ("我选-1", "我 选 -1"),
            ("(-1): -2%", "-1 -2"),
            // A hyphen, a range, a list and a sentence end.
            ("Player-2 1-2 --3 - 4", "player 2 1 2 3 4"),
            ("1. A 2.B ...5", "1 a 2 b 5"),
            ("- + % .", ""),
        ] {
            assert_eq!(texts(text), expected, "{text}");
        }
    }

    #[test]
    fn characters_of_scripts_without_spaces_are_words() {
        let texts = |text: &str| words(text).into_iter().map(|word| word.0).collect::<Vec<_>>();
        assert_eq!(texts("我投Player2。"), ["我", "投", "player2"]);
        assert_eq!(texts("옥수에게"), ["옥", "수", "에", "게"]);
        assert_eq!(texts("E\u{301}lodie"), ["e\u{301}lodie"]);
        let asked = Language::default().words("A. B!? C");
        assert!(!asked.is_question(0) && asked.is_question(1) && !asked.is_question(2));
    }
}
