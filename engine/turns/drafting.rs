//! Tokens that are guessed before they are drawn, so that one pass can check several (prompt lookup: Saxena
//! 2023; checked as in speculative decoding: Leviathan et al. 2023).
//!
//! A guess is never believed. After each one its row's logits are there, to the bit those of a pass of one
//! row; from them the token is drawn as ever, and where it is another one than was guessed, the rest of the
//! rows leave the sequence. So replies are the same with and without.
//!
//! Guesses what followed when the last tokens occurred in the sequence before: quotes, names, forms. Length:
//! as long as a guess is expected to save more time than its row costs. Both are learned, and learning costs
//! nothing: what would have been guessed is compared with the reply, guessed or not.

use std::collections::HashMap;

/// Minimum number of matching tokens before a guess.
const MIN_MATCH: usize = 3;
/// Maximum number of tokens in a guess.
const MAX_GUESS: usize = 15;
/// Tokens of the past in which the last ones are looked for.
const MAX_PAST_TOKENS: usize = 1 << 14;
/// Share of one more guess in what is known of its kind.
const LEARNING_RATE: f64 = 0.1;

/// Kinds of guesses, by the number of matching tokens before them.
const KINDS: usize = 5;
/// How often guesses are right before any was seen, by kind.
const INITIAL_ACCURACY: [f64; KINDS] = [0.3, 0.4, 0.5, 0.6, 0.7];

/// The kind of a guess after this many matching tokens.
fn kind(n_alike: usize) -> usize {
    match n_alike {
        0..=3 => 0,
        4 => 1,
        5..=7 => 2,
        8..=15 => 3,
        _ => 4,
    }
}

/// Guesses the tokens of one reply.
pub(crate) struct Drafter {
    /// The place after each sequence of [`MIN_MATCH`] tokens, the latest.
    places: HashMap<[u32; MIN_MATCH], usize>,
    /// Tokens up to which sequences are in `places`.
    n_known: usize,
    /// How often guesses of each kind are right.
    rates: [f64; KINDS],
    /// What was guessed last, or at least the first token that would have been, each with its kind; the next
    /// one last.
    expected: Vec<(u32, usize)>,
}

impl Drafter {
    /// Nothing is known yet.
    pub(crate) fn new() -> Self {
        Self { places: HashMap::new(), n_known: 0, rates: INITIAL_ACCURACY, expected: Vec::new() }
    }

    /// Records a token of the reply.
    pub(crate) fn see(&mut self, id: u32) {
        let Some((guess, kind)) = self.expected.pop() else { return };
        let is_right = guess == id;
        self.rates[kind] += LEARNING_RATE * (f64::from(u8::from(is_right)) - self.rates[kind]);
        if !is_right {
            self.expected.clear(); // what was guessed after it says nothing
        }
    }

    /// The tokens that are likely to follow these, `most` at most, where one more row of a pass costs so much
    /// of a token's time.
    pub(crate) fn guess(&mut self, tokens: &[u32], cost: f64, most: usize) -> Vec<u32> {
        self.expected.clear();
        let Some(place) = self.place(tokens) else { return Vec::new() };
        let alike = tokens[..place].iter().rev().zip(tokens.iter().rev()).take(16);
        let n_alike = alike.take_while(|(before, now)| before == now).count();
        let likely = &tokens[place..];
        let n = self.worth(n_alike, cost, most.min(MAX_GUESS).min(likely.len()));
        let expected = likely.iter().take(n.max(1)).enumerate().map(|(n, id)| (*id, kind(n_alike + n)));
        self.expected.extend(expected.rev());
        likely[..n].to_vec()
    }

    /// Number of guesses that pay, given the number of matching tokens before the first: each is right if all
    /// before it are, and then saves the time of a token.
    fn worth(&self, n_alike: usize, cost: f64, most: usize) -> usize {
        let mut likely = 1.0;
        let pays = |n: &usize| {
            likely *= self.rates[kind(n_alike + n)];
            likely > cost
        };
        (0..most).take_while(pays).count()
    }

    /// The place after the latest earlier tokens that are as the last ones.
    fn place(&mut self, tokens: &[u32]) -> Option<usize> {
        let first = self.n_known.max(tokens.len().saturating_sub(MAX_PAST_TOKENS)).max(MIN_MATCH);
        for end in first..tokens.len() {
            let sequence = tokens[end - MIN_MATCH..end].try_into().ok()?;
            self.places.insert(sequence, end);
        }
        self.n_known = tokens.len();
        self.places.get(tokens.get(tokens.len().checked_sub(MIN_MATCH)?..)?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_followed_before_is_guessed_as_far_as_it_pays() {
        let text: Vec<u32> = (0..40).chain([7, 7]).chain(10..16).collect();
        let mut drafter = Drafter::new();
        assert_eq!(drafter.guess(&text, 0.1, 9), [16, 17, 18], "0.5 * 0.5 * 0.6");
        assert!(drafter.guess(&text, 0.9, 9).is_empty(), "too dear");
        assert_eq!(drafter.guess(&text, 0.01, 2), [16, 17]);
        assert!(Drafter::new().guess(&[1, 2, 3, 4], 0.0, 9).is_empty(), "nothing stood there before");
        assert!(Drafter::new().guess(&[1, 2], 0.0, 9).is_empty());
        assert_eq!(Drafter::new().guess(&[1, 1, 1, 1], 0.0, 9), [1]);
    }

    #[test]
    fn what_is_wrong_is_not_guessed_for_long_and_what_is_right_is() {
        let mut drafter = Drafter::new();
        let text: Vec<u32> = (0..20).chain(5..8).collect();
        let mut n = 0;
        while !drafter.guess(&text, 0.2, 9).is_empty() {
            drafter.see(99);
            n += 1;
        }
        assert!((1..10).contains(&n), "{n} wrong guesses");
        // What would have been guessed is kept for comparison.
        for _ in 0..20 {
            drafter.guess(&text, 0.2, 9);
            drafter.see(8);
        }
        assert!(drafter.guess(&text, 0.2, 9).len() > 1);
    }
}
