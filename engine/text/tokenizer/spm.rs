//! SentencePiece's BPE: characters are merged, the pair whose token has the highest score first.
//!
//! Google's `bpe_model.cc` and llama.cpp's `llm_tokenizer_spm_session` do the same. There are no lists of
//! merges: two neighbours merge if what they spell together is a token. A space is written `▁`, and a
//! character that no token spells becomes its bytes' tokens.

use super::vocabulary::{TokenKind, Vocabulary};
use crate::Result;
use crate::model::gguf::{Gguf, Value};
use ahash::AHashMap;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Character that represents a space.
pub(super) const SPACE: &str = "▁";

/// An encoder of text without any special token.
pub(super) struct Spm {
    /// Id and score of each token that merging can make.
    tokens: AHashMap<Box<str>, (u32, f32)>,
    /// The token of each byte.
    bytes: Box<[Option<u32>; 256]>,
    unknown: Option<u32>,
    /// True if a text begins with an extra space.
    pub(super) adds_space: bool,
}

/// A stretch of the text that is one token, or one character; neighbours by their places in the list.
struct Symbol {
    start: usize,
    /// Its end; equal to `start` once it was merged into the one before it.
    end: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

/// Two neighbours that could merge. The greatest is merged next: highest score, then leftmost.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    /// Both together, in bytes: otherwise one of them has changed since.
    n_bytes: usize,
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Pair {}

impl Spm {
    /// The token that the vocabulary writes so.
    pub(super) fn id(&self, text: &str) -> Option<u32> {
        self.tokens.get(text).map(|(id, _)| *id)
    }

    /// An encoder for a vocabulary.
    ///
    /// # Errors
    /// Scores are missing or not as many as tokens; there is nothing to write an unknown character with.
    pub(super) fn new(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<Self> {
        let scores = scores(gguf, vocabulary.tokens.len())?;
        let normal = vocabulary.of(|kind| kind == TokenKind::Normal);
        let tokens = normal.map(|(text, id)| (Box::from(text), (id, scores[id as usize]))).collect();
        let mut bytes = Box::new([None; 256]);
        for (kind, id) in vocabulary.kinds.iter().zip(0..) {
            if let TokenKind::Byte(byte) = kind {
                bytes[usize::from(*byte)] = Some(id);
            }
        }
        let unknown = vocabulary.unknown;
        if unknown.is_none() && bytes.contains(&None) {
            let n = bytes.iter().flatten().count();
            return Err(gguf.error(format!(
                "its vocabulary has {n} of 256 byte tokens and no unknown token, so some characters can't be \
                 encoded"
            )));
        }
        let adds_space = gguf.get("tokenizer.ggml.add_space_prefix") != Some(&Value::Bool(false));
        Ok(Self { tokens, bytes, unknown, adds_space })
    }

    /// Adds the ids of a text whose spaces are written `▁`.
    pub(super) fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        let mut symbols: Vec<Symbol> = Vec::new();
        for (i, (start, c)) in text.char_indices().enumerate() {
            let end = start + c.len_utf8();
            let next = (end < text.len()).then_some(i + 1);
            symbols.push(Symbol { start, end, previous: i.checked_sub(1), next });
        }
        let mut queue: BinaryHeap<Pair> =
            (1..symbols.len()).filter_map(|i| self.pair(text, &symbols, Some(i - 1), Some(i))).collect();
        while let Some(Pair { left, right, n_bytes, .. }) = queue.pop() {
            let (start, end) = (symbols[left].start, symbols[right].end);
            let merged = symbols[left].end == start || symbols[right].start == end;
            if merged || end - start != n_bytes {
                continue;
            }
            let next = symbols[right].next;
            symbols[left].end = end;
            symbols[left].next = next;
            symbols[right].start = end;
            if let Some(next) = next {
                symbols[next].previous = Some(left);
            }
            queue.extend(self.pair(text, &symbols, symbols[left].previous, Some(left)));
            queue.extend(self.pair(text, &symbols, Some(left), next));
        }
        for symbol in symbols.iter().filter(|s| s.start < s.end) {
            self.write(&text[symbol.start..symbol.end], ids);
        }
    }

    fn pair(
        &self,
        text: &str,
        symbols: &[Symbol],
        left: Option<usize>,
        right: Option<usize>,
    ) -> Option<Pair> {
        let (left, right) = (left?, right?);
        let together = &text[symbols[left].start..symbols[right].end];
        let (_, score) = self.tokens.get(together)?;
        Some(Pair { score: *score, left, right, n_bytes: together.len() })
    }

    fn write(&self, piece: &str, ids: &mut Vec<u32>) {
        if let Some((id, _)) = self.tokens.get(piece) {
            return ids.push(*id);
        }
        let bytes: Option<Vec<u32>> = piece.bytes().map(|byte| self.bytes[usize::from(byte)]).collect();
        match bytes {
            Some(bytes) => ids.extend(bytes),
            None => ids.extend(self.unknown),
        }
    }
}

fn scores(gguf: &Gguf, n_tokens: usize) -> Result<Vec<f32>> {
    let key = "tokenizer.ggml.scores";
    let values = gguf.array(key).ok_or_else(|| {
        gguf.error(format!("`{key}` is missing; a `llama` tokenizer needs scores to merge"))
    })?;
    if values.len() != n_tokens {
        return Err(gguf.error(format!("`{key}` has {} scores for {n_tokens} tokens", values.len())));
    }
    let score = |value: &Value| match value {
        Value::Float(x) if !x.is_nan() => Ok(*x as f32),
        Value::Int(n) => Ok(*n as f32),
        other => Err(gguf.error(format!("`{key}` contains {other:?}; expected a number"))),
    };
    values.iter().map(score).collect()
}
