//! Checks external segments: their ids must be what this model's tokenizer makes of their texts.

use super::chat::{Chat, reply_ids};
use super::prefix::{Segment, SegmentKind};
use super::tokenizer::Tokenizer;
use crate::{Error, Reasoning, Result};

/// Tells whether segments are some that a session here could hold.
///
/// # Errors
/// The first one that is not, and why.
pub(crate) fn check(segments: &[Segment], chat: &Chat, tokenizer: &Tokenizer) -> Result<()> {
    for (at, segment) in segments.iter().enumerate() {
        let wrong = |found: &str| {
            let kind = segment.kind;
            Err(Error::request(format!(
                "segment {at} ({kind:?}) of the memory does not belong to this model: {found}"
            )))
        };
        let n = tokenizer.n_vocab();
        if let Some(id) = segment.ids.iter().find(|id| **id as usize >= n) {
            return wrong(&format!("it has the token {id}, but the vocabulary has {n}"));
        }
        let after = tokenizer.after(segments[..at].iter().rev().find_map(|s| s.ids.last().copied()));
        let ids = match segment.kind {
            SegmentKind::Template => tokenizer.encode_template(&segment.text, after)?,
            SegmentKind::Message => tokenizer.encode_message(&segment.text, after)?,
            // A call has special tokens of its own.
            SegmentKind::Reply if segment.guessed && !chat.calls().is_marked(&segment.ids) => {
                let spelled = |reasoning| {
                    let lead = &chat.replies(reasoning).lead;
                    let text = segment.text.strip_prefix(&*tokenizer.decode(lead))?;
                    let ids = reply_ids(&segments[..at], lead, text, tokenizer).ok()?;
                    (ids == *segment.ids).then_some(ids)
                };
                let known = Reasoning::ALL.into_iter().find_map(spelled);
                known.map_or_else(|| reply_ids(&segments[..at], &[], &segment.text, tokenizer), Ok)?
            }
            SegmentKind::Reply | SegmentKind::Raw if tokenizer.decode(&segment.ids) != *segment.text => {
                return wrong("its text does not match its ids");
            }
            SegmentKind::Reply | SegmentKind::Raw => continue,
        };
        if ids != *segment.ids {
            return wrong("its ids do not match its text");
        }
    }
    Ok(())
}
