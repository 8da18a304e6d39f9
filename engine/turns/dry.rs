//! DRY ("don't repeat yourself"): a sequence of tokens that was said before becomes less likely to be said
//! again.
//!
//! A token that would continue an earlier sequence of n tokens loses `multiplier * base^(n - allowed_length)`
//! of its logit (p-e-w, pull request 5677 of text-generation-webui; llama.cpp's sampler of this name has the
//! same parameters). What an agent read does not count, only what it said: its earlier replies and the
//! present one.
//!
//! DRY considers what the agent itself has said, never what it read: facts of a scene, names and others'
//! words may be repeated.
//!
//! A word is one token after a space and another one without. If only the first lost some of its logit, the other
//! one would win, and words would be glued together ("ofpaper"). So both count as the same (`Sampling::whole_words`), to the repetition penalty too.

use crate::Dry;
use crate::text::tokenizer::Tokenizer;
use libm::pow;
use std::collections::BTreeMap;

/// No sequence reaches across a token that holds one of these: repeated beginnings of lines, names, quotes
/// and emphasis are legitimate.
const BREAKERS: &[u8] = b"\n:\"*";
/// Most tokens beyond the allowed length that count: the penalty is prohibitive long before.
const MAX_BEYOND: usize = 50;

/// Tokens that an agent has said and still remembers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Said {
    /// `None` breaks sequences, as does a reply's end.
    ids: Vec<Option<u32>>,
    /// True if a token is the same with a space before it and without: `ids` are those without.
    whole_words: bool,
    /// Both tokens of each word, by either.
    spellings: BTreeMap<u32, [u32; 2]>,
}

impl Said {
    /// These replies, oldest first, and the beginning of another one.
    pub(crate) fn new<'a>(
        replies: impl Iterator<Item = &'a [u32]>,
        whole_words: bool,
        tokenizer: &Tokenizer,
    ) -> Self {
        let mut said = Self { whole_words, ..Self::default() };
        for reply in replies {
            reply.iter().for_each(|id| said.push(*id, tokenizer.piece(*id), Some(tokenizer)));
            said.ids.push(None);
        }
        said
    }

    /// Appends a token with these bytes.
    pub(crate) fn push(&mut self, id: u32, piece: &[u8], tokenizer: Option<&Tokenizer>) {
        if let Some(tokenizer) = tokenizer.filter(|_| self.whole_words && !self.spellings.contains_key(&id)) {
            let both = tokenizer.spellings(id);
            self.spellings.extend(both.map(|id| (id, both)));
        }
        let breaks = piece.iter().any(|byte| BREAKERS.contains(byte));
        self.ids.push((!breaks).then_some(self.spellings(id)[0]));
    }

    /// The tokens that count as one that was said, itself included.
    pub(crate) fn spellings(&self, id: u32) -> [u32; 2] {
        self.spellings.get(&id).copied().unwrap_or([id; 2])
    }

    /// Penalties to subtract from the next token's logits, by id. Takes time in proportion to what was said.
    pub(crate) fn penalties(&self, dry: Dry) -> BTreeMap<u32, f32> {
        let mut longest: BTreeMap<u32, usize> = BTreeMap::new();
        for (at, id) in self.ids.iter().enumerate() {
            let Some(id) = id else { continue };
            // The sequences that end here and at the end, from their ends on.
            let pairs = self.ids[..at].iter().rev().zip(self.ids.iter().rev());
            let equal = |(before, now): &(&Option<u32>, &Option<u32>)| before.is_some() && before == now;
            let n = pairs.take(dry.allowed_length.saturating_add(MAX_BEYOND)).take_while(equal).count();
            if n >= dry.allowed_length.max(1) {
                for id in self.spellings(*id) {
                    longest.entry(id).and_modify(|longest| *longest = n.max(*longest)).or_insert(n);
                }
            }
        }
        let penalty = |n: usize| {
            let beyond = (n - dry.allowed_length) as f64;
            // Bounded first: nothing times infinity would be no number.
            let growth = pow(f64::from(dry.base), beyond).min(f64::from(f32::MAX));
            (f64::from(dry.multiplier) * growth).min(f64::from(f32::MAX)) as f32
        };
        longest.into_iter().map(|(id, n)| (id, penalty(n))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Each letter is a token, as is each breaker.
    fn said(text: &str) -> Said {
        let mut said = Said::default();
        text.bytes().for_each(|byte| said.push(u32::from(byte), &[byte], None));
        said
    }

    fn penalty(text: &str, next: u8) -> f32 {
        said(text).penalties(Dry::default()).get(&u32::from(next)).copied().unwrap_or(0.0)
    }

    #[test]
    fn a_longer_sequence_costs_more_and_a_breaker_ends_it() {
        assert_eq!(penalty("abcd ab", b'c'), 0.8);
        assert!((penalty("abcd abc", b'd') - 0.8 * 1.75).abs() < 1e-6);
        assert_eq!(penalty("abcd abc", b'a'), 0.0);
        assert_eq!(penalty("abcd b", b'c'), 0.0, "one token is allowed");
        assert_eq!(penalty("ab:cd ab:c", b'd'), 0.0);
        assert_eq!(penalty("ab:cd ab", b':'), 0.0, "a breaker may come again");
        assert_eq!(penalty("xab yab xab", b'c'), 0.0, "it never went on so");
        assert_eq!(penalty("bcd abcd bc", b'd'), 0.8, "the longest counts, and the space differs");
        assert!(penalty(&"ab".repeat(500), b'a').is_finite());
        let steep = Dry { base: f32::MAX, ..Dry::default() };
        assert!(said(&"ab".repeat(500)).penalties(steep).values().all(|penalty| penalty.is_finite()));
        let off = Dry { multiplier: 0.0, ..steep };
        assert!(said(&"ab".repeat(500)).penalties(off).values().all(|penalty| *penalty == 0.0));
    }

    #[test]
    fn a_word_is_the_same_with_a_space_and_without() {
        let [of, of_after_space, paper, a] = [0, 1, 2, 4];
        let spellings = BTreeMap::from([(0, [0, 1]), (1, [0, 1]), (2, [3, 2]), (3, [3, 2])]);
        let mut said = Said { whole_words: true, spellings, ..Said::default() };
        for id in [a, of_after_space, paper, a, of] {
            said.push(id, b" word", None);
        }
        assert_eq!(said.penalties(Dry::default()).into_keys().collect::<Vec<_>>(), [2, 3]);
        let mut apart = Said::default();
        [a, of_after_space, paper, a, of].into_iter().for_each(|id| apart.push(id, b" word", None));
        assert!(apart.penalties(Dry::default()).is_empty(), "the ids differ");
    }

    /// Penalties by the definition: for each token, the longest sequence at the end that it followed before.
    fn by_definition(ids: &[Option<u32>], dry: Dry) -> BTreeMap<u32, f32> {
        let mut penalties = BTreeMap::new();
        for next in ids.iter().flatten() {
            let came = |n: &usize| {
                let sequence = &ids[ids.len() - n..];
                let follows = |at: usize| ids[at..at + n] == *sequence && ids[at + n] == Some(*next);
                sequence.iter().all(Option::is_some) && (0..ids.len() - n).any(follows)
            };
            let n = (dry.allowed_length..ids.len().min(MAX_BEYOND)).filter(came).max();
            if let Some(n) = n {
                let beyond = (n - dry.allowed_length) as i32;
                let penalty = f64::from(dry.multiplier) * f64::from(dry.base).powi(beyond);
                penalties.insert(*next, penalty as f32);
            }
        }
        penalties
    }

    proptest! {
        #[test]
        fn penalties_are_those_of_the_definition(text in "[abc:\n]{0,48}", allowed_length in 1usize..5) {
            let (said, dry) = (said(&text), Dry { allowed_length, ..Dry::default() });
            let (found, expected) = (said.penalties(dry), by_definition(&said.ids, dry));
            prop_assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
            for (id, penalty) in found {
                prop_assert!((penalty / expected[&id] - 1.0).abs() < 1e-5);
            }
        }
    }
}
