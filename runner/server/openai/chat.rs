//! Chat completions.

use super::super::answer::CompletedReply;
use super::super::ask::{AnswerSettings, Ask, AskSubject, ReplyPiece, fresh_id, scope};
use super::super::controls::controls;
use super::super::dialogue::Dialogue;
use super::super::error::Refusal;
use super::super::models::now;
use super::super::stream::{EventEncoder, Frame, respond};
use super::super::thinking::ThinkingGiven;
use super::super::{App, AuthTenant, Shared, body};
use super::messages::{self, OpenAiMessage, OpenAiTool};
use super::words::{
    CacheOptions, StreamOptions, diagnostics, explained, finish_reason, logprobs, usage, warn,
};
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use greenroom_engine::TokenLogprob;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Unsupported fields that would change the reply.
const UNSUPPORTED: [&str; 4] = ["functions", "audio", "prediction", "web_search_options"];
/// Maximum number of replies to one request.
const MAX_REPLIES: usize = 16;

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct ChatBody {
    model: String,
    messages: Vec<OpenAiMessage>,
    n: Option<usize>,
    tools: Option<Vec<OpenAiTool>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    prompt_cache_key: Option<String>,
    prompt_cache_options: Option<CacheOptions>,
    /// Extension: how the prompt matched the memory.
    #[serde(default)]
    greenroom: bool,
}

/// What all parts of an answer have in common.
struct Completion {
    app: Arc<App>,
    tenant: String,
    id: String,
    created: u64,
    model: String,
    dialogue: Dialogue,
    explains: bool,
    compares: Option<String>,
    has_logprobs: bool,
    include_usage: bool,
    answers: Vec<CompletedReply>,
    /// Number of calls that each reply has begun.
    n_calls: BTreeMap<usize, usize>,
}

/// `POST /v1/chat/completions`
pub(in super::super) async fn complete(
    State(app): Shared,
    AuthTenant(tenant): AuthTenant,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Response, Refusal> {
    let value = body::with_model(&bytes, &app.models)?;
    body::refuse(&value, &UNSUPPORTED)?;
    let (controls, thinking) = (controls(&value)?, ThinkingGiven::read(&value)?);
    let body: ChatBody = body::of_value(value)?;
    let (tools, left) = messages::tools(body.tools.unwrap_or_default())?;
    let may_call = messages::calls(body.tool_choice.as_ref(), tools.as_deref())?;
    let mut dialogue = thinking.of(Dialogue::new(messages::lines(body.messages)?, tools, "messages")?);
    dialogue.warnings.extend(left);
    let n = body.n.unwrap_or(1);
    if n == 0 || n > MAX_REPLIES {
        return Err(Refusal::field("n", format!("{n} replies: expected 1 to {MAX_REPLIES}")));
    }
    let has_logprobs = body.logprobs.unwrap_or(false);
    if body.top_logprobs.is_some_and(|n| n > 0) && !has_logprobs {
        return Err(Refusal::field("top_logprobs", "this requires `logprobs: true`"));
    }
    let settings = AnswerSettings {
        max_thought_tokens: thinking.limit(),
        calls: may_call,
        parallel_tool_calls: body.parallel_tool_calls.unwrap_or(false),
        logprobs: has_logprobs.then_some(body.top_logprobs.unwrap_or(0)),
        ..controls
    };
    let mut completion = Completion {
        app: app.clone(),
        tenant: tenant.name.clone(),
        id: fresh_id("chatcmpl-"),
        created: now(),
        model: body.model.clone(),
        dialogue: dialogue.clone(),
        explains: body.greenroom,
        compares: body.prompt_cache_options.and_then(|options| options.comparison_response_id),
        has_logprobs,
        include_usage: StreamOptions::include_usage(body.stream_options.as_ref()),
        answers: Vec::new(),
        n_calls: BTreeMap::new(),
    };
    let subject = AskSubject::Dialogue(Box::new(dialogue), scope(body.prompt_cache_key, &headers));
    let ask = Ask { route: "/v1/chat/completions", tenant, model: body.model, subject, settings, n };
    let admitted = ask.admit(&app).await?;
    if body.stream.unwrap_or(false) {
        return Ok(respond(admitted, completion));
    }
    completion.answers = admitted.play(None).await?;
    Ok(Json(completion.whole()).into_response())
}

impl Completion {
    fn whole(&self) -> Value {
        let choices: Vec<Value> =
            self.answers.iter().enumerate().map(|(index, answer)| self.choice(index, answer)).collect();
        let mut whole = self.part("chat.completion", json!(choices));
        self.account(&mut whole);
        whole["usage"] = usage(&self.answers);
        whole
    }

    fn choice(&self, index: usize, answer: &CompletedReply) -> Value {
        let completion = &answer.completion;
        let mut message = json!({ "role": "assistant", "content": answer.speech(), "refusal": null });
        if !completion.thought().is_empty() {
            message["reasoning_content"] = json!(completion.thought());
        }
        let calls = answer.calls.iter().map(|call| {
            let function = json!({ "name": call.tool, "arguments": call.arguments });
            json!({ "id": fresh_id("call_"), "type": "function", "function": function })
        });
        let calls: Vec<Value> = calls.collect();
        if !calls.is_empty() {
            if answer.speech().is_empty() {
                message["content"] = Value::Null;
            }
            message["tool_calls"] = json!(calls);
        }
        json!({
            "index": index,
            "message": message,
            "logprobs": self.logprobs(completion.logprobs.get(completion.n_given..).unwrap_or_default()),
            "finish_reason": finish_reason(completion),
        })
    }

    fn logprobs(&self, tokens: &[TokenLogprob]) -> Value {
        if self.has_logprobs { json!({ "content": logprobs(tokens), "refusal": null }) } else { Value::Null }
    }

    fn part(&self, object: &str, choices: Value) -> Value {
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices,
        })
    }

    fn chunk(&self, index: usize, delta: &Value, finish_reason: Option<&str>) -> Value {
        let choice =
            json!({ "index": index, "delta": delta, "logprobs": null, "finish_reason": finish_reason });
        self.part("chat.completion.chunk", json!([choice]))
    }

    /// Extra fields of the last part: how the prompt matched the memory, and why it did not match better.
    fn account(&self, part: &mut Value) {
        let Some(answer) = self.answers.first() else { return };
        self.app.recent.keep(&self.tenant, &self.id, &self.model, &self.dialogue, answer);
        if self.explains {
            part["greenroom"] = explained(answer);
        }
        warn(part, answer);
        if let Some(earlier) = &self.compares {
            let asked = (&*self.app, self.tenant.as_str(), self.model.as_str());
            part["prompt_cache_diagnostics"] = diagnostics(asked, earlier, &self.dialogue, answer);
        }
    }
}

impl EventEncoder for Completion {
    fn begin(&mut self) -> Vec<Frame> {
        Vec::new()
    }

    fn piece(&mut self, index: usize, piece: ReplyPiece) -> Vec<Frame> {
        let chunk = match piece {
            ReplyPiece::Begun => self.chunk(index, &json!({ "role": "assistant", "content": "" }), None),
            ReplyPiece::Thought(text) => self.chunk(index, &json!({ "reasoning_content": text }), None),
            ReplyPiece::Text(text) => self.chunk(index, &json!({ "content": text }), None),
            ReplyPiece::Logprobs(tokens) => {
                let mut chunk = self.chunk(index, &json!({}), None);
                chunk["choices"][0]["logprobs"] = self.logprobs(&tokens);
                chunk
            }
            ReplyPiece::Called(tool) => {
                let n = *self.n_calls.entry(index).and_modify(|n| *n += 1).or_default();
                let (id, function) = (fresh_id("call_"), json!({ "name": tool, "arguments": "" }));
                let call = json!([{ "index": n, "id": id, "type": "function", "function": function }]);
                self.chunk(index, &json!({ "tool_calls": call }), None)
            }
            ReplyPiece::Arguments(text) => {
                let n = self.n_calls.get(&index);
                let call = json!([{ "index": n, "function": { "arguments": text } }]);
                self.chunk(index, &json!({ "tool_calls": call }), None)
            }
            ReplyPiece::Ended(answer) => {
                let chunk = self.chunk(index, &json!({}), Some(finish_reason(&answer.completion)));
                self.answers.push(*answer);
                chunk
            }
        };
        vec![Frame::data(&chunk)]
    }

    fn end(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        let mut chunk = self.part("chat.completion.chunk", json!([]));
        self.account(&mut chunk);
        if self.include_usage {
            chunk["usage"] = usage(&self.answers);
        }
        let warns = self.answers.first().is_some_and(|answer| !answer.warnings.is_empty());
        if self.include_usage || self.explains || warns || self.compares.is_some() {
            frames.push(Frame::data(&chunk));
        }
        frames.push(Frame::done());
        frames
    }

    fn fail(&mut self, refusal: &Refusal) -> Vec<Frame> {
        vec![Frame::data(&refusal.openai()), Frame::done()]
    }
}
