//! A reply on its way: the engine's events, until it is said and its memory is saved.

use super::App;
use super::conversation::Told;
use super::error::Refusal;
use super::sessions::Claim;
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use greenroom_engine::{
    Completion, Conversation, Engine, Event, Prompt, Request, Retention, Source, StopReason,
};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// Pieces of a reply that wait for a slow reader, at most: then the reader's turn waits.
const MAX_WAITING: usize = 64;

/// What is asked of which model, with which memory.
pub(super) struct Asked {
    pub(super) app: Arc<App>,
    pub(super) model: String,
    /// Conversations of different scopes never share a memory.
    pub(super) scope: String,
    pub(super) told: Told,
    pub(super) request: Request,
    /// Most tokens of the reply; `None`: as many as there is room for.
    pub(super) max_tokens: Option<usize>,
}

impl Asked {
    /// Lets the model answer, and a listener hear each piece. Dropped before it is ready, the turn is called off.
    ///
    /// # Errors
    /// The engine's, or nobody listens any more.
    pub(super) async fn play(mut self, listener: Option<&Listener>) -> Result<Completion, Refusal> {
        let (_, engine) = self.app.models.get(&self.model)?;
        let scope = format!("{}\n{}", engine.model().identity, self.scope);
        let claim = self.app.sessions.claim(&scope, &self.told);
        let Prompt::Chat(conversation) = &mut self.request.prompt else {
            unreachable!("chat completions ask with conversations")
        };
        claim.recall(conversation);
        self.request.max_tokens = self.max_tokens.unwrap_or(room(engine, conversation)?);
        self.request.session = Claim::key(&claim.name);
        self.request.parent = claim.parent.as_deref().map(Claim::key);
        self.request.retention = Retention::Persistent;
        let mut turn = engine.submit(self.request)?;
        while let Some(event) = turn.next().await {
            match event {
                Event::Text(text) => {
                    if let Some(listener) = listener
                        && !listener.hear(&text).await
                    {
                        return Err(Refusal::body("nobody listens any more"));
                    }
                }
                Event::Failed(error) => return Err(error.into()),
                Event::Prefill { .. } => {}
                Event::Done(_) => {
                    let completion = *turn.commit().await?;
                    claim.said(&self.told, &completion);
                    return Ok(completion);
                }
            }
        }
        Err(Refusal::unanswered())
    }
}

/// A client that reads a reply as it is said.
pub(super) struct Listener {
    events: mpsc::Sender<Result<sse::Event, Infallible>>,
    /// A piece of text in the API's form.
    form: Box<dyn Fn(&str) -> Value + Send + Sync>,
}

impl Listener {
    /// A listener, and the answer that it reads.
    pub(super) fn new(form: impl Fn(&str) -> Value + Send + Sync + 'static) -> (Self, Response) {
        let (events, read) = mpsc::channel(MAX_WAITING);
        let answer = Sse::new(ReceiverStream::new(read)).keep_alive(KeepAlive::default());
        (Self { events, form: Box::new(form) }, answer.into_response())
    }

    async fn hear(&self, text: &str) -> bool {
        self.tell((self.form)(text)).await
    }

    /// Sends an event; `false`: nobody listens any more.
    pub(super) async fn tell(&self, value: Value) -> bool {
        self.say(&value.to_string()).await
    }

    /// Sends an event that is no JSON.
    pub(super) async fn say(&self, data: &str) -> bool {
        self.events.send(Ok(sse::Event::default().data(data))).await.is_ok()
    }

    /// Ready when nobody listens any more.
    pub(super) async fn gone(&self) {
        self.events.closed().await;
    }
}

/// Tokens that a conversation leaves for its reply.
///
/// # Errors
/// It leaves none.
fn room(engine: &Engine, conversation: &Conversation) -> Result<usize, Refusal> {
    let (context, tokens) = (engine.model().context_length, engine.prompter().prompt_tokens(conversation)?);
    let room = context.saturating_sub(tokens);
    if room == 0 {
        return Err(Refusal::too_long(tokens, context));
    }
    Ok(room)
}

/// The word of OpenAI's APIs for why a reply ended.
pub(super) fn finish_reason(completion: &Completion) -> &'static str {
    match completion.stop {
        StopReason::EndOfTurn | StopReason::StopString => "stop",
        StopReason::Length | StopReason::Sentence => "length",
    }
}

/// Tokens of the prompt, those that were not computed for it, and tokens of the reply.
pub(super) fn usage(completion: &Completion) -> Value {
    let cost = &completion.usage;
    let (prompt, reply) = (cost.reused + cost.prefilled + cost.recomputed, completion.ids.len());
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": reply,
        "total_tokens": prompt + reply,
        "prompt_tokens_details": { "cached_tokens": cost.reused },
    })
}

/// How the prompt met the memory.
pub(super) fn explained(completion: &Completion) -> Value {
    let cost = &completion.usage;
    let source = match cost.source {
        Source::None => "none",
        Source::Memory => "memory",
        Source::Disk => "disk",
    };
    json!({
        "match": format!("{:?}", cost.kind).to_lowercase(),
        "source": source,
        "reused": cost.reused,
        "prefilled": cost.prefilled,
        "recomputed": cost.recomputed,
        "reason": cost.reason,
        "ttft_ms": cost.ttft_ms,
        "total_ms": cost.total_ms,
    })
}
