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
    /// A stretch of a prompt that was given as ids, or as one text for all; its ids are the authority.
    Raw,
}

/// A piece of a prompt; a clone shares its text and ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Segment {
    pub(crate) kind: SegmentKind,
    pub(crate) text: Arc<str>,
    pub(crate) ids: Arc<[u32]>,
    /// True if the ids were sampled; a reply given as text has ids that were guessed by the tokenizer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) guessed: bool,
}

impl Segment {
    /// Returns whether a cached segment can be used for this one of a prompt.
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
    let n_tokens = n_tokens(&cached[..n_segments]);
    let relation = if n_segments < cached.len() {
        Relation::Diverge
    } else if n_segments < prompt.len() {
        Relation::Extend
    } else {
        Relation::Exact
    };
    Matched { n_segments, n_tokens, relation }
}

/// Tells whether there is a raw segment among some.
pub(crate) fn is_raw(segments: &[Segment]) -> bool {
    segments.iter().any(|segment| segment.kind == SegmentKind::Raw)
}

/// Cuts what a cache holds and a prompt, one of which is raw, so that they have the segments in common whose
/// ids are the same. `text` decodes ids.
///
/// A raw prompt is compared token by token, and takes on the segments that the cache has. A rendered one
/// keeps its own, so that a session holds what a cold start would: of a raw cache those are reused which end
/// within the common ids.
pub(crate) fn align(cached: &mut Vec<Segment>, prompt: &mut Vec<Segment>, text: &dyn Fn(&[u32]) -> String) {
    let first = compare(cached, prompt).n_segments;
    if first == cached.len() || !is_raw(&cached[first..]) && !is_raw(&prompt[first..]) {
        return;
    }
    let (held, asked) = (flatten(&cached[first..]), flatten(&prompt[first..]));
    let n = common_prefix(&held, &asked);
    if is_raw(&prompt[first..]) {
        let kept = first..cut(cached, first, n, text);
        prompt.splice(first.., cached[kept].iter().cloned());
        if n < asked.len() {
            prompt.push(raw(&asked[n..], text));
        }
    } else {
        let (mut n_tokens, mut end) = (0, first);
        while let Some(segment) = prompt.get(end).filter(|s| n_tokens + s.ids.len() <= n) {
            n_tokens += segment.ids.len();
            end += 1;
        }
        let kept = first..cut(cached, first, n_tokens, text);
        cached.splice(kept, prompt[first..end].iter().cloned());
    }
}

/// Cuts the segments from `first` on after `n` of their tokens; returns the index of the first one after the
/// cut.
fn cut(segments: &mut Vec<Segment>, first: usize, n: usize, text: &dyn Fn(&[u32]) -> String) -> usize {
    let (mut at, mut left) = (first, n);
    while let Some(segment) = segments.get(at).filter(|segment| segment.ids.len() <= left) {
        left -= segment.ids.len();
        at += 1;
    }
    if left > 0 {
        let (before, after) = segments[at].ids.split_at(left);
        let pieces = [raw(before, text), raw(after, text)];
        segments.splice(at..=at, pieces);
        at += 1;
    }
    at
}

/// A raw segment.
pub(crate) fn raw(ids: &[u32], text: &dyn Fn(&[u32]) -> String) -> Segment {
    Segment { kind: SegmentKind::Raw, text: text(ids).into(), ids: ids.into(), guessed: false }
}

/// Length of the common prefix of two sequences.
///
/// ```
/// assert_eq!(greenroom_engine::common_prefix(&[1, 2, 3], &[1, 2, 4, 5]), 2);
/// ```
pub fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Length of the longest proper beginning of a pattern that a sequence ends with.
pub(crate) fn overlap<T: PartialEq>(sequence: &[T], pattern: &[T]) -> usize {
    let longest = sequence.len().min(pattern.len().saturating_sub(1));
    (1..=longest).rev().find(|n| sequence.ends_with(&pattern[..*n])).unwrap_or(0)
}

/// Offset, in characters, of the first difference of two texts, for messages.
pub(crate) fn first_difference(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(x, y)| x == y).count()
}

/// The length without a character that is begun but not ended.
pub(crate) fn whole_characters(bytes: &[u8]) -> usize {
    let tail = bytes.len().saturating_sub(3);
    for at in (tail..bytes.len()).rev() {
        let needs = match bytes[at] {
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            0x80..=0xbf => continue,
            _ => 1,
        };
        return if at + needs > bytes.len() { at } else { bytes.len() };
    }
    bytes.len()
}

/// Tokens of a list of segments.
pub(crate) fn n_tokens(segments: &[Segment]) -> usize {
    segments.iter().map(|s| s.ids.len()).sum()
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
        Segment { kind, text: text.into(), ids: text.bytes().map(u32::from).collect(), guessed: false }
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

    fn spelled(ids: &[u32]) -> String {
        ids.iter().map(|id| char::from(*id as u8)).collect()
    }

    /// Aligns what is held with what is asked, and compares them then: relation, segments and tokens in
    /// common.
    fn aligned(held: &[Segment], asked: &[Segment]) -> (Relation, usize, usize) {
        let (mut cached, mut prompt) = (held.to_vec(), asked.to_vec());
        align(&mut cached, &mut prompt, &spelled);
        assert_eq!((flatten(&cached), flatten(&prompt)), (flatten(held), flatten(asked)));
        let m = compare(&cached, &prompt);
        (m.relation, m.n_segments, m.n_tokens)
    }

    #[test]
    fn raw_prompts_are_compared_by_ids() {
        let raw = |text: &str| segment(SegmentKind::Raw, text);
        let held = [raw("ab"), segment(SegmentKind::Reply, "cd")];
        let asked = |text: &str| aligned(&held, &[raw(text)]);
        assert_eq!(asked("abcdef"), (Relation::Extend, 2, 4));
        assert_eq!(asked("abcd"), (Relation::Exact, 2, 4));
        assert_eq!(asked("abcx"), (Relation::Diverge, 2, 3));
        assert_eq!(asked("ab"), (Relation::Diverge, 1, 2));
        assert_eq!(asked("x"), (Relation::Diverge, 0, 0));
        assert_eq!(asked("a"), (Relation::Diverge, 1, 1));
        // A rendered cache is compared with a raw prompt token by token; a rendered prompt takes whole
        // segments from a raw cache.
        let rendered =
            [segment(SegmentKind::Template, "<"), message("ab"), segment(SegmentKind::Template, ">")];
        assert_eq!(aligned(&rendered, &[raw("<ab>c")]), (Relation::Extend, 3, 4));
        assert_eq!(aligned(&rendered, &[raw("<ax")]), (Relation::Diverge, 2, 2));
        assert_eq!(aligned(&[raw("<ab>")], &rendered), (Relation::Exact, 3, 4));
        assert_eq!(aligned(&[raw("<a")], &rendered), (Relation::Diverge, 1, 1));
        assert_eq!(
            aligned(&[raw("<ab"), segment(SegmentKind::Reply, "c")], &rendered),
            (Relation::Diverge, 2, 3)
        );
        assert_eq!(aligned(&[], &[raw("a")]), (Relation::Extend, 0, 0));
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
