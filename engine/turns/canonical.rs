//! Whether the ids of a text are those that it is encoded as.
//!
//! A text can be tokenized in more than one way. A model may sample any of them; a client that sends the reply back
//! sends its text. So that a reply's ids are always those of its text, a token with which they would differ is not
//! drawn (Vieira et al. 2025, "Language models over canonical byte-pair encodings").
//!
//! Every beginning of a reply is its text's encoding, so only what the next token can change is encoded again: a
//! stretch of the latest tokens, from the beginning of a word on. Of that the last few must be equal: where there is
//! no such word, the stretch may begin within a piece that is merged as a whole.

use crate::Result;
use crate::text::tokenizer::{After, Tokenizer};

/// Most tokens that are encoded again, and how many of them at least.
const STRETCH: std::ops::Range<usize> = 12..32;
/// Tokens at the end of a stretch that must be equal.
const EXAMINED: usize = 8;

/// Text that a reply says, as far as it is one stretch without special tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CanonicalText {
    /// Number of the reply's ids before it.
    pub(crate) begin: usize,
    /// What is before it.
    pub(crate) after: After,
}

impl CanonicalText {
    /// True if the reply's text would be encoded as other ids with this one, or be no UTF-8.
    pub(crate) fn is_broken_by(self, id: u32, ids: &[u32], tokenizer: &Tokenizer) -> bool {
        if tokenizer.is_special(id) {
            return false;
        }
        let from = self.stretch(ids, tokenizer);
        let all: Vec<u32> = ids[from..].iter().copied().chain([id]).collect();
        let mut bytes: Vec<u8> = all.iter().flat_map(|id| tokenizer.piece(*id)).copied().collect();
        let length = bytes.len();
        let whole = match str::from_utf8(&bytes) {
            Ok(_) => length,
            Err(error) if error.error_len().is_some() => return true,
            Err(error) => error.valid_up_to(),
        };
        complete(&mut bytes, whole);
        let Ok(text) = str::from_utf8(&bytes) else { return true };
        let encoded = self.encode(from, text, tokenizer).unwrap_or_default();
        let [said, read] = [&all, &encoded].map(|ids| ends(ids, tokenizer));
        // (A vocabulary may begin a text with a space; one that can't spell a text has fewer bytes for it, or others.)
        let Some(added) = read.last().and_then(|(end, _)| end.checked_sub(bytes.len())) else { return true };
        let read: Vec<(usize, u32)> =
            read.into_iter().map(|(end, id)| (end.saturating_sub(added), id)).collect();
        let first = if from == self.begin { None } else { said.len().checked_sub(EXAMINED + 1) };
        let first = first.map_or(0, |at| said[at].0 + 1);
        let last = said.len().checked_sub(2).map_or(0, |at| said[at].0);
        let until = if whole == length { length } else { last };
        let known = |ends: &[(usize, u32)]| -> Vec<(usize, u32)> {
            ends.iter().copied().filter(|(end, _)| (first..=until).contains(end)).collect()
        };
        // Of a token with which a character begins, what will follow decides; but it must not hold the end of a piece.
        known(&said) != known(&read)
            || (last + 1..length).contains(&whole) && read.iter().any(|(end, _)| *end == whole)
    }

    /// The ids of a reply with more text after them.
    ///
    /// # Errors
    /// The text can't be tokenized.
    pub(crate) fn with(self, ids: &[u32], text: &str, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
        let from = self.stretch(ids, tokenizer);
        let whole = tokenizer.decode(&ids[from..]) + text;
        Ok([&ids[..from], &self.encode(from, &whole, tokenizer)?].concat())
    }

    /// The ids of a stretch's text.
    fn encode(self, from: usize, text: &str, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
        // (The text of sampled ids holds the space that began them.)
        let is_begin = from == self.begin && !text.starts_with(' ');
        tokenizer.encode_message(text, if is_begin { self.after } else { After::Text })
    }

    /// Number of ids before the latest ones that are encoded again.
    fn stretch(self, ids: &[u32], tokenizer: &Tokenizer) -> usize {
        let latest = ids.len().saturating_sub(STRETCH.start);
        if ids.len() <= self.begin + STRETCH.end {
            return self.begin;
        }
        let begins_word = |at: &usize| {
            let [before, piece] = [at - 1, *at].map(|at| tokenizer.piece(ids[at]));
            let is_space = |byte: &u8| byte.is_ascii_whitespace();
            let is_word = piece.first() == Some(&b' ') && piece.get(1).is_some_and(u8::is_ascii_alphabetic);
            is_word && !before.last().is_some_and(is_space)
        };
        let earliest = ids.len() - STRETCH.end;
        let word = (earliest + 1..=latest).rev().find(begins_word);
        let whole = |at: &usize| tokenizer.piece(ids[*at]).first().is_some_and(|byte| byte & 0xc0 != 0x80);
        word.or_else(|| (self.begin..=earliest).rev().find(whole)).unwrap_or(self.begin)
    }
}

/// Where each token ends, and its id.
fn ends(ids: &[u32], tokenizer: &Tokenizer) -> Vec<(usize, u32)> {
    let mut end = 0;
    let ends = ids.iter().map(|id| {
        end += tokenizer.piece(*id).len();
        (end, *id)
    });
    ends.collect()
}

/// Completes a character that begins at an offset: with the first one that begins so.
fn complete(bytes: &mut Vec<u8>, begin: usize) {
    let Some(first) = bytes.get(begin).copied() else { return };
    let length = match first {
        0xf0.. => 4,
        0xe0.. => 3,
        _ => 2,
    };
    while bytes.len() < begin + length {
        let least = match (bytes.len() - begin, first) {
            (1, 0xe0) => 0xa0,
            (1, 0xf0) => 0x90,
            _ => 0x80,
        };
        bytes.push(least);
    }
}
