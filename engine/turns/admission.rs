//! Requests that wait: for their session, for what is done on other threads, and for room in memory beside
//! the active turns.
//!
//! A request whose session is free goes through the stages of [`Stage`]; whatever takes its time there is
//! begun on a pool and polled, so no active turn waits for it. A request that is ready before one that came
//! earlier begins before it; one that finds no room lets nobody past.
//!
//! A turn begins when all that it may come to take, at its longest, fits in the budget together with what the
//! active turns may come to take; a turn that alone exceeds the budget is played alone. So what is active
//! never has to be evicted.
//!
//! A turn reserves all that it may come to take: what is active is never evicted, so nothing is computed
//! twice for want of room. That is more than most turns use; a budget that is tight for its agents plays them
//! one after the other.

use crate::kv::layout::KvLayout;
use crate::memory::carry::Import;
use crate::memory::io_pool::{Begun, IoPool, Priority, Wake};
use crate::memory::opening::Opening;
use crate::memory::recall::Recalling;
use crate::memory::session;
use crate::store::memory_file::SessionExport;
use crate::text::chat::Chat;
use crate::text::prefix::{Segment, n_tokens};
use crate::text::raw::segments;
use crate::text::tokenizer::Tokenizer;
use crate::turns::turn::Decode;
use crate::{Error, Event, Request, Result, fault};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc::UnboundedSender;

/// A request that waits.
pub(crate) struct Waiting {
    pub(crate) id: u64,
    pub(crate) request: Arc<Request>,
    pub(crate) events: UnboundedSender<Event>,
    /// A memory from outside that its session is to have; then it says nothing.
    pub(crate) import: Option<Box<Import>>,
    pub(crate) began: Instant,
    pub(crate) stage: Stage,
}

/// The stage that a request is at, before its turn is active.
pub(crate) enum Stage {
    /// It waits for its session, or for those before it.
    Queued,
    /// Its run is claimed, and what its session has read is looked up.
    Opening(Opening),
    /// Its prompt is rendered and tokenized, its grammar compiled.
    Encoding(Opening, Begun<Result<Prepared>>),
    /// It waits for room.
    Ready(Opening, Box<Prepared>),
}

/// A turn that has its room, whose session is being made ready.
pub(crate) struct LoadingTurn {
    pub(crate) id: u64,
    pub(crate) request: Arc<Request>,
    pub(crate) events: UnboundedSender<Event>,
    pub(crate) began: Instant,
    pub(crate) prepared: Prepared,
    pub(crate) loading: Recalling,
}

/// A request as the model reads it.
pub(crate) struct Prepared {
    pub(crate) prompt: Vec<Segment>,
    pub(crate) decode: Decode,
    /// The request's limits, or less where the context ends.
    pub(crate) limits: Limits,
    /// Maximum bytes that the session takes, when the reply is as long as it may be.
    pub(crate) need: u64,
    /// Keys and values from outside that it begins with, instead of the session's own.
    pub(crate) memory: Option<SessionExport>,
}

/// Most tokens of a reply, and of one that is a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) max_tokens: usize,
    pub(crate) max_call_tokens: usize,
}

impl Limits {
    /// A request with these limits.
    pub(crate) fn of(self, request: Request) -> Request {
        let Self { max_tokens, max_call_tokens } = self;
        Request { max_tokens, max_call_tokens, ..request }
    }
}

/// Threads that read requests as the model does.
pub(crate) struct Encoder(IoPool<Encoding>);

/// What that takes.
struct Encoding {
    tokenizer: Arc<Tokenizer>,
    chat: Arc<Chat>,
    layout: Arc<KvLayout>,
    context_length: usize,
}

/// Requests that are read side by side: one with a large grammar holds up no other.
const THREADS: usize = 2;

impl Encoder {
    /// Two threads, started when needed.
    pub(crate) fn new(
        tokenizer: Arc<Tokenizer>,
        chat: Arc<Chat>,
        layout: Arc<KvLayout>,
        context_length: usize,
        wake: &Wake,
    ) -> Self {
        let encoding = Arc::new(Encoding { tokenizer, chat, layout, context_length });
        Self(IoPool::new("greenroom-encoder", THREADS, Priority::Low, &encoding, wake))
    }

    /// Begins to read a request, whose session has read `known`.
    pub(crate) fn begin(&self, request: &Arc<Request>, known: Vec<Segment>) -> Begun<Result<Prepared>> {
        let request = request.clone();
        self.0.begin(move |encoding| encoding.prepare(&request, &known))
    }
}

impl Encoding {
    /// # Errors
    /// The request can't be served by a model with this context.
    fn prepare(&self, request: &Request, known: &[Segment]) -> Result<Prepared> {
        let (began, agent) = (Instant::now(), &request.session.agent);
        fault::encode_point(agent);
        let prompt = segments(&request.prompt, known, &self.chat, &self.tokenizer)?;
        let n = n_tokens(&prompt);
        if n == 0 {
            return Err(Error::request("the prompt is empty"));
        }
        let room = self.context_length.saturating_sub(n);
        let decode = Decode::new(request, &prompt, &self.chat, &self.tokenizer)?;
        // A reply may need less room than a call that breaks off anyway.
        let mut asked = request.clone();
        asked.max_call_tokens = asked.max_call_tokens.min(room);
        if asked.fits_context {
            asked.max_tokens = asked.max_tokens.min(room);
            let beyond = decode.longest(&asked).0.saturating_sub(room);
            if beyond > 0 {
                asked.max_tokens = asked.max_tokens.saturating_sub(beyond).max(1);
                asked.max_call_tokens = asked.max_call_tokens.saturating_sub(beyond).max(1);
            }
        }
        let limits = Limits { max_tokens: asked.max_tokens, max_call_tokens: asked.max_call_tokens };
        let (longest, remedy) = decode.longest(&asked);
        let Some(all) = n.checked_add(longest).filter(|all| *all <= self.context_length) else {
            return Err(Error::request(format!(
                "a prompt of {n} tokens and a reply of up to {longest} do not fit in the model's context of {}",
                self.context_length
            ))
            .with_remedy(remedy));
        };
        let in_rows = if matches!(decode, Decode::ScoreOptions(_)) { longest } else { 0 };
        let need = self.layout.at_work(all, in_rows) + session::known_bytes(&prompt, all);
        tracing::debug!("`{agent}`: prompt rendered in {:.1?}, at most {need} bytes", began.elapsed());
        Ok(Prepared { prompt, decode, limits, need, memory: None })
    }
}

impl Prepared {
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
        let n = n_tokens(&prompt);
        if n == 0 || n > context_length {
            return Err(Error::request(format!(
                "the memory has {n} tokens; expected at least one, and no more than fit in the model's context of \
                    {context_length}"
            )));
        }
        let need = layout.at_work(n, 0) + session::known_bytes(&prompt, n);
        let limits = Limits { max_tokens: 0, max_call_tokens: 0 };
        Ok(Self { prompt, decode: Decode::Read, limits, need, memory })
    }
}
