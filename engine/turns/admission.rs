//! Requests that wait: for their session, or for room in memory beside the turns at work.
//!
//! A turn begins when all that it may come to take, at its longest, fits in the budget together with what the
//! turns at work may come to take; a turn that alone exceeds the budget is played alone. So what is at work
//! never has to be evicted.
//!
//! A turn reserves all that it may come to take: whatever is at work is never evicted, so nothing is computed
//! twice for want of room, and the order of turns is kept. That is more than most turns use; a budget that is
//! tight for its agents plays them one after the other.

use crate::kv::layout::KvLayout;
use crate::memory::{Memory, session};
use crate::store::memory_file::SessionExport;
use crate::text::chat::Chat;
use crate::text::prefix::{Segment, flatten};
use crate::text::raw::segments;
use crate::text::tokenizer::Tokenizer;
use crate::turns::turn::Decode;
use crate::{Error, Event, Request, Result};
use std::time::Instant;
use tokio::sync::mpsc::UnboundedSender;

/// A request that waits.
pub(crate) struct Waiting {
    pub(crate) id: u64,
    pub(crate) request: Box<Request>,
    pub(crate) events: UnboundedSender<Event>,
    /// Its prompt, once it was its turn to ask for room.
    pub(crate) prepared: Option<Prepared>,
    /// True once its session is being read from disk, beside the turns at work.
    pub(crate) is_fetched: bool,
}

/// A request as the model reads it.
pub(crate) struct Prepared {
    pub(crate) prompt: Vec<Segment>,
    pub(crate) decode: Decode,
    /// Bytes that the session takes when the reply is as long as it may be, at most.
    pub(crate) need: u64,
    pub(crate) began: Instant,
    /// Keys and values from outside that it begins with, instead of the session's own.
    pub(crate) memory: Option<SessionExport>,
}

impl Waiting {
    /// Bytes of memory that the turn takes, at most; its prompt is rendered for that, once.
    ///
    /// # Errors
    /// The request can't be served by a model with this context, or another process adds to its run.
    pub(crate) fn need(
        &mut self,
        memory: &mut Memory,
        chat: &Chat,
        tokenizer: &Tokenizer,
        context_length: usize,
    ) -> Result<u64> {
        if let Some(prepared) = &self.prepared {
            return Ok(prepared.need);
        }
        let prepared = Prepared::new(&mut self.request, memory, chat, tokenizer, context_length)?;
        Ok(self.prepared.insert(prepared).need)
    }
}

impl Prepared {
    fn new(
        request: &mut Request,
        memory: &mut Memory,
        chat: &Chat,
        tokenizer: &Tokenizer,
        context_length: usize,
    ) -> Result<Self> {
        let began = Instant::now();
        let agent = &request.session.agent;
        let layout = memory.context.layout.clone();
        let prompt = segments(&request.prompt, memory.known(request)?, chat, tokenizer)?;
        let n = flatten(&prompt).len();
        if n == 0 {
            return Err(Error::request("the prompt is empty"));
        }
        // A reply may need less room than a call that breaks off anyway.
        request.max_call_tokens = request.max_call_tokens.min(context_length.saturating_sub(n));
        let decode = Decode::new(request, &prompt, chat.calls(), tokenizer)?;
        let (longest, remedy) = decode.longest(request);
        let Some(all) = n.checked_add(longest).filter(|all| *all <= context_length) else {
            return Err(Error::request(format!(
                "agent `{agent}`: a prompt of {n} tokens and a reply of up to {longest} do not fit in the model's context of \
                 {context_length}"
            ))
            .with_remedy(remedy));
        };
        let in_rows = if matches!(decode, Decode::ScoreOptions(_)) { longest } else { 0 };
        let need = layout.at_work(all, in_rows) + session::known_bytes(&prompt, all);
        tracing::debug!("`{agent}`: prompt rendered in {:.1?}, at most {need} bytes", began.elapsed());
        Ok(Self { prompt, decode, need, began, memory: None })
    }

    /// A prompt that is read, or begun with in the part that `memory` holds, and not answered.
    ///
    /// # Errors
    /// It does not fit in the model's context.
    pub(crate) fn to_read(
        prompt: Vec<Segment>,
        memory: Option<SessionExport>,
        layout: &KvLayout,
        context_length: usize,
    ) -> Result<Self> {
        let n = flatten(&prompt).len();
        if n == 0 || n > context_length {
            return Err(Error::request(format!(
                "the memory has {n} tokens; expected at least one, and no more than fit in the model's context of \
                    {context_length}"
            )));
        }
        let need = layout.at_work(n, 0) + session::known_bytes(&prompt, n);
        Ok(Self { prompt, decode: Decode::Read, need, began: Instant::now(), memory })
    }
}
