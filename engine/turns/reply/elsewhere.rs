//! Replies that a remote engine sampled, cut like those that are sampled here.

use super::opening::Opening;
use super::{ReplyPiece, ReplyText};
use crate::text::thoughts::ThoughtForm;
use crate::turns::dry::Said;
use crate::{StopConditions, StopReason};

impl ReplyText {
    /// A reply that is drawn by a remote engine, with thoughts of this form.
    fn from_elsewhere(ends: StopConditions<'_>, thoughts: ThoughtForm) -> Self {
        let reply = Self::new(ends.stop, ends.whole_sentences, Said::default());
        let (head, opening) = (ends.head.as_bytes().to_vec(), Opening::of_text(thoughts));
        Self { is_from_elsewhere: true, head, opening, ..reply }
    }
}

/// A reply with thoughts of this form that was sampled by a remote engine, cut like one that is sampled here: at
/// a stop string, and at its limit (`is_full`) after its last whole sentence, if requested. Returns its ids,
/// its text and why it ends.
pub(crate) fn cut<'a>(
    said: impl IntoIterator<Item = (u32, &'a [u8])>,
    thoughts: ThoughtForm,
    ends: StopConditions<'_>,
) -> (Vec<u32>, String, StopReason) {
    let is_full = ends.is_full;
    let mut reply = ReplyText::from_elsewhere(ends, thoughts);
    let met = said.into_iter().find_map(|(id, piece)| reply.push_bytes(id, piece));
    let stop = match met {
        Some(stop) => stop,
        None if !is_full => StopReason::EndOfTurn,
        None if reply.cut_to_sentences() => StopReason::Sentence,
        None => StopReason::Length,
    };
    reply.finish();
    let text = reply.text();
    (reply.ids, text, stop)
}

/// [`cut`] of a reply that is known as text alone.
pub(crate) fn cut_text(said: &str, ends: StopConditions<'_>) -> (String, StopReason) {
    let characters: Vec<&[u8]> = said.split_inclusive(|_| true).map(str::as_bytes).collect();
    let (_, text, stop) = cut(characters.into_iter().map(|bytes| (0, bytes)), ThoughtForm::of_text(), ends);
    (text, stop)
}

/// A reply that is streamed from a remote engine as text: the part that [`cut_reply`](crate::cut_reply)
/// keeps of its speech, whatever follows.
pub struct StreamedReply {
    reply: ReplyText,
    has_ended: bool,
}

impl StreamedReply {
    /// A reply of which nothing has come yet.
    pub fn new(ends: StopConditions<'_>) -> Self {
        Self { reply: ReplyText::from_elsewhere(ends, ThoughtForm::of_text()), has_ended: false }
    }

    /// Appends text, and gives what has become certain.
    pub fn push(&mut self, text: &str) -> Option<String> {
        if self.has_ended {
            return None;
        }
        let mut characters = text.split_inclusive(|_| true).map(str::as_bytes);
        self.has_ended = characters.any(|character| self.reply.push_bytes(0, character).is_some());
        let pieces = if self.has_ended { self.reply.finish() } else { self.reply.take_certain() };
        let speech = |piece| match piece {
            ReplyPiece::Text(text) => Some(text),
            ReplyPiece::Thought(_) | ReplyPiece::Call(_) => None,
        };
        pieces.into_iter().filter_map(speech).reduce(|text, more| text + &more)
    }
}
