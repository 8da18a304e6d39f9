//! The conversation of a stored memory, read from its segments, so that an agent can continue after a
//! restart.
//!
//! Texts and ids are the segments' own. What a chat template says around them tells how much each reply was
//! to be thought about, and which replies were calls. The tools themselves can't be read back from a prompt:
//! they must be set again.

use super::chat::{Chat, PARAGRAPH};
use super::prefix::{Segment, SegmentKind};
use super::render::SkeletonPiece;
use super::tokenizer::Tokenizer;
use crate::{Conversation, Exchange, Reasoning, ReplyContent, Tools};
use std::sync::Arc;

/// The conversation of a memory that was read with these tools. It may be another one (other tools, another
/// template): that shows when its prompt is compared with the segments.
///
/// # Errors
/// Why the segments are of no conversation.
pub(crate) fn conversation(
    segments: &[Segment],
    tools: Option<&Arc<Tools>>,
    chat: &Chat,
    tokenizer: &Tokenizer,
) -> Result<Conversation, &'static str> {
    let chat = chat.used(tools.is_some());
    let turns: Vec<&[Segment]> = segments.split_inclusive(|s| s.kind == SegmentKind::Reply).collect();
    let (mut system, mut exchanges) = (None, Vec::new());
    for (n, turn) in turns.iter().enumerate() {
        let Some((reply, read)) = turn.split_last().filter(|(reply, _)| reply.kind == SegmentKind::Reply)
        else {
            return Err("it does not end with a reply");
        };
        if read.iter().any(|segment| segment.kind == SegmentKind::Raw) {
            return Err("it was read as raw text or token ids, not as a conversation");
        }
        let messages = || read.iter().filter(|segment| segment.kind == SegmentKind::Message);
        let user = match (n, messages().count()) {
            (_, 1) | (0, 2) => messages().next_back().map_or(String::new(), |user| user.text.to_string()),
            _ => return Err("its messages are not those of a conversation"),
        };
        if n == 0 && messages().count() == 2 {
            system = messages().next().map(|system| system.text.to_string());
        }
        exchanges.push(Exchange::new(user, ReplyContent::Ids(reply.ids.clone())));
    }
    let has_system = system.is_some();
    let begins_as_call = |turn: &[Segment]| {
        let Some(((reply, read), tools)) = turn.split_last().zip(tools) else { return false };
        let prompt = read.last().map_or("", |last| &last.text);
        let thoughts = chat.replies(Reasoning::None).thoughts.clone().after_prompt(prompt);
        chat.calls().are_in(&reply.ids, &reply.text[thoughts.parts(&reply.text).speech], tools)
    };
    let mut reasoning = Reasoning::None;
    for (n, turn) in turns.iter().enumerate() {
        let read = &turn[..turn.len() - 1];
        // As at the turn before, if that fits.
        let candidates = || [reasoning].into_iter().chain(Reasoning::ALL);
        if n == 0 {
            let fits = |it: &Reasoning| {
                let first = chat.first(tools, has_system, *it, tokenizer);
                // There may be a begin-of-sequence token before it.
                first.is_ok_and(|pieces| fits(&pieces, read) || read.len() > 1 && fits(&pieces, &read[1..]))
            };
            reasoning = candidates().find(fits).unwrap_or_default();
        } else {
            let likely = begins_as_call(turns[n - 1]);
            let both = candidates().flat_map(|it| [(likely, it), (!likely, it)]);
            let reply = turns[n - 1].last().map_or("", |reply| &reply.text);
            let called = || chat.called(reply, tools, tokenizer);
            let fits = |is_call: bool, it: Reasoning| {
                let called: Option<&dyn Fn() -> String> = if is_call { Some(&called) } else { None };
                fits(&chat.between(called, it), read)
            };
            let found = both.into_iter().find(|(is_call, it)| fits(*is_call, *it));
            let (was_call, it) = found.unwrap_or((likely, reasoning));
            reasoning = it;
            if was_call {
                exchanges[n - 1].reply = as_call(&exchanges[n - 1].reply);
                if chat.knows_tools(reasoning) {
                    exchanges[n].user = chat.calls().own().read_result(&exchanges[n].user);
                }
            }
        }
        exchanges[n].reasoning = reasoning;
    }
    if let (Some(tools), Some((last, turn))) = (tools, exchanges.last_mut().zip(turns.last())) {
        // What follows a reply tells whether it was a call; nothing follows the last one.
        if begins_as_call(turn) {
            last.reply = as_call(&last.reply);
        }
        if !chat.knows_tools(reasoning) {
            system = without_instructions(system, &mut exchanges[0].user, &tools.instructions);
        }
    }
    let tools = tools.cloned();
    Ok(Conversation { system, tools, exchanges, reasoning, ..Conversation::default() })
}

/// The system text alone, where instructions follow it; both may have been put before the first user text.
fn without_instructions(system: Option<String>, user: &mut String, instructions: &str) -> Option<String> {
    let own = |text: &str| {
        let own = text.strip_suffix(instructions)?;
        own.strip_suffix(PARAGRAPH).map(str::to_owned)
    };
    if let Some(system) = &system {
        return own(system);
    }
    let at = user.find(&format!("{instructions}{PARAGRAPH}"))?;
    let system = own(&user[..at + instructions.len()]);
    user.replace_range(..at + instructions.len() + PARAGRAPH.len(), "");
    system
}

fn as_call(reply: &ReplyContent) -> ReplyContent {
    match reply {
        ReplyContent::Ids(ids) => ReplyContent::Call(ids.clone()),
        other => other.clone(),
    }
}

/// Tells whether segments are these pieces, filled in.
fn fits(pieces: &[SkeletonPiece], segments: &[Segment]) -> bool {
    let fits = |(piece, segment): (&SkeletonPiece, &Segment)| match piece {
        SkeletonPiece::Text(text) => segment.kind == SegmentKind::Template && *segment.text == **text,
        SkeletonPiece::Content(_) => segment.kind == SegmentKind::Message,
    };
    pieces.len() == segments.len() && pieces.iter().zip(segments).all(fits)
}
