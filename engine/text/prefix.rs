//! Comparison of a prompt with what a cache holds: by characters, segment by segment. Pure.
//!
//! A prompt is a list of segments, each tokenized alone; a cache holds the same list. Only whole segments of
//! equal kind and text are reused, so a cold start reads exactly the ids that a warm one holds.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Source of a piece of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SegmentKind {
    /// Text that the chat template printed: special tokens are meant.
    Template,
    /// Text of a message: nothing in it is special.
    Message,
    /// A reply; its ids are the authority.
    Reply,
}

/// A piece of a prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Segment {
    pub(crate) kind: SegmentKind,
    pub(crate) text: String,
    pub(crate) ids: Arc<[u32]>,
    /// True if the ids were sampled; a reply given as text has ids that were guessed by the tokenizer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) guessed: bool,
}

impl Segment {
    /// Tells whether a cached segment serves for this one of a prompt.
    fn serves(cached: &Self, wanted: &Self) -> bool {
        cached.kind == wanted.kind
            && cached.text == wanted.text
            && (cached.ids == wanted.ids || cached.guessed || wanted.guessed)
    }
}

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Matched {
    /// Whole segments in common, from the start.
    pub(crate) n_segments: usize,
    /// Their tokens, as the cache holds them.
    pub(crate) n_tokens: usize,
    pub(crate) relation: Relation,
}

/// The paper's three outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relation {
    /// The prompt is what the cache holds.
    Exact,
    /// The prompt begins with all that the cache holds.
    Extend,
    /// They part before the end of what the cache holds.
    Diverge,
}

/// Compares what a cache holds with a prompt.
pub(crate) fn compare(cached: &[Segment], prompt: &[Segment]) -> Matched {
    let n_segments = cached.iter().zip(prompt).take_while(|(c, p)| Segment::serves(c, p)).count();
    let n_tokens = cached[..n_segments].iter().map(|s| s.ids.len()).sum();
    let relation = if n_segments < cached.len() {
        Relation::Diverge
    } else if n_segments < prompt.len() {
        Relation::Extend
    } else {
        Relation::Exact
    };
    Matched { n_segments, n_tokens, relation }
}

/// Offset, in characters, of the first difference of two texts, for messages.
pub(crate) fn first_difference(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(x, y)| x == y).count()
}

/// All ids of a list of segments.
pub(crate) fn flatten(segments: &[Segment]) -> Vec<u32> {
    segments.iter().flat_map(|s| s.ids.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn segment(kind: SegmentKind, text: &str) -> Segment {
        Segment { kind, text: text.to_owned(), ids: text.bytes().map(u32::from).collect(), guessed: false }
    }

    fn message(text: &str) -> Segment {
        segment(SegmentKind::Message, text)
    }

    #[test]
    fn the_three_outcomes() {
        let cached = [message("ab"), message("c")];
        let outcome = |prompt: &[Segment]| {
            let m = compare(&cached, prompt);
            (m.relation, m.n_segments, m.n_tokens)
        };
        assert_eq!(outcome(&[message("ab"), message("c")]), (Relation::Exact, 2, 3));
        assert_eq!(outcome(&[message("ab"), message("c"), message("d")]), (Relation::Extend, 2, 3));
        assert_eq!(outcome(&[message("ab"), message("x"), message("d")]), (Relation::Diverge, 1, 2));
        assert_eq!(outcome(&[message("ab")]), (Relation::Diverge, 1, 2));
        assert_eq!(compare(&[], &cached).relation, Relation::Extend);
    }

    #[test]
    fn kinds_must_agree_and_a_text_reply_matches_one_held_as_ids() {
        let template = segment(SegmentKind::Template, "ab");
        assert_eq!(compare(&[message("ab")], std::slice::from_ref(&template)).n_segments, 0);
        let sampled = Segment { ids: [1, 2, 3].into(), ..segment(SegmentKind::Reply, "hello") };
        let guessed = Segment { ids: [4].into(), guessed: true, ..sampled.clone() };
        let other = Segment { ids: [9].into(), ..sampled.clone() };
        assert_eq!(compare(std::slice::from_ref(&sampled), &[guessed]).n_tokens, 3);
        assert_eq!(compare(&[sampled], &[other]).n_segments, 0);
    }

    proptest! {
        #[test]
        fn what_is_reused_is_always_a_common_prefix(
            a in proptest::collection::vec("[ab]{0,2}", 0..6), b in proptest::collection::vec("[ab]{0,2}", 0..6),
        ) {
            let (a, b): (Vec<_>, Vec<_>) =
                (a.iter().map(|t| message(t)).collect(), b.iter().map(|t| message(t)).collect());
            let m = compare(&a, &b);
            prop_assert_eq!(&a[..m.n_segments], &b[..m.n_segments]);
            prop_assert_eq!(m.relation == Relation::Diverge, m.n_segments < a.len());
            prop_assert!(a.get(m.n_segments).is_none() || a.get(m.n_segments) != b.get(m.n_segments));
            prop_assert_eq!(&flatten(&a)[..m.n_tokens], &flatten(&b)[..m.n_tokens]);
        }
    }
}
