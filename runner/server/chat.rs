//! OpenAI's chat completions.

use super::conversation::{Message, Told};
use super::error::Refusal;
use super::models::now;
use super::reply::{Asked, Listener, explained, finish_reason, usage};
use super::{App, Shared};
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use greenroom_engine::{Completion, Grammar, Request, Sampling, SessionKey};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// Fields that would change the reply, and are not supported.
const UNSUPPORTED: [&str; 9] = [
    "tools",
    "functions",
    "logprobs",
    "top_logprobs",
    "logit_bias",
    "frequency_penalty",
    "presence_penalty",
    "audio",
    "prediction",
];
/// Headers by which clients name a session.
const SESSION_HEADERS: [&str; 5] =
    ["x-session-id", "session-id", "x-claude-code-session-id", "x-dynamo-session-id", "thread-id"];

#[derive(Deserialize)]
struct Body {
    model: String,
    messages: Vec<Message>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    seed: Option<i64>,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    stop: Option<Stop>,
    response_format: Option<Format>,
    n: Option<u32>,
    #[serde(default)]
    stream: bool,
    #[serde(default)]
    stream_options: StreamOptions,
    prompt_cache_key: Option<String>,
    /// Ours: says how the prompt met the memory.
    #[serde(default)]
    greenroom: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Stop {
    One(String),
    Some(Vec<String>),
}

#[derive(Default, Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Format {
    Text,
    JsonObject,
    JsonSchema { json_schema: Schema },
}

#[derive(Deserialize)]
struct Schema {
    schema: Value,
}

/// All that the parts of an answer have in common.
struct Frame {
    id: String,
    created: u64,
    model: String,
    explains: bool,
}

/// `POST /v1/chat/completions`
pub(super) async fn complete(
    State(app): Shared,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refusal> {
    let body = read(&body)?;
    let (stream, include_usage) = (body.stream, body.stream_options.include_usage);
    let frame = Frame {
        id: format!("chatcmpl-{:016x}{:016x}", random()?, random()?),
        created: now(),
        model: body.model.clone(),
        explains: body.greenroom,
    };
    let asked = asked(app, &headers, body)?;
    if stream {
        return Ok(streamed(asked, frame, include_usage));
    }
    let completion = asked.play(None).await?;
    let message = json!({ "role": "assistant", "content": completion.text, "refusal": null });
    let choice = json!({
        "index": 0, "message": message, "logprobs": null, "finish_reason": finish_reason(&completion),
    });
    let mut whole = frame.part("chat.completion", json!([choice]));
    whole["usage"] = usage(&completion);
    if frame.explains {
        whole["greenroom"] = explained(&completion);
    }
    Ok(Json(whole).into_response())
}

/// Reads the body; what it asks for and can't have is refused by name.
fn read(body: &[u8]) -> Result<Body, Refusal> {
    let value: Value = serde_json::from_slice(body)
        .map_err(|error| Refusal::body(format!("the body is no JSON: {error}")))?;
    let is_set = |field: &&&str| match &value[**field] {
        Value::Null | Value::Bool(false) => false,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::Array(all) => !all.is_empty(),
        Value::Object(all) => !all.is_empty(),
        _ => true,
    };
    if let Some(field) = UNSUPPORTED.iter().find(is_set) {
        return Err(Refusal::field(field, format!("`{field}` is not supported")));
    }
    let body: Body = serde_path_to_error::deserialize(value).map_err(|error| {
        let (path, inner) = (error.path().to_string(), error.inner().to_string());
        if path == "." { Refusal::body(inner) } else { Refusal::field(&path, format!("{path}: {inner}")) }
    })?;
    match body.n {
        None | Some(1) => Ok(body),
        Some(n) => Err(Refusal::field("n", format!("one reply is given to a request, not {n}"))),
    }
}

fn asked(app: Arc<App>, headers: &HeaderMap, body: Body) -> Result<Asked, Refusal> {
    let told = Told::read(body.messages)?;
    app.models.get(&body.model)?;
    let named = SESSION_HEADERS.iter().find_map(|name| headers.get(*name)?.to_str().ok());
    let scope = body.prompt_cache_key.or(named.map(str::to_string)).unwrap_or_default();
    let grammar = match body.response_format {
        None | Some(Format::Text) => None,
        Some(Format::JsonObject) => Some(Grammar::json_schema(&json!({ "type": "object" }))),
        Some(Format::JsonSchema { json_schema }) => {
            let grammar = Grammar::json_schema(&json_schema.schema);
            let unusable = |error| Refusal::field("response_format.json_schema.schema", format!("{error}"));
            grammar.check().map_err(unusable)?;
            Some(grammar)
        }
    };
    let sampling = Sampling {
        temperature: body.temperature.unwrap_or(1.0),
        top_p: body.top_p.unwrap_or(1.0),
        seed: body.seed.map_or_else(random, |seed| Ok(seed.cast_unsigned()))?,
        ..Sampling::default()
    };
    let stop = match body.stop {
        None => Vec::new(),
        Some(Stop::One(stop)) => vec![stop],
        Some(Stop::Some(stop)) => stop,
    };
    let request = Request {
        sampling,
        stop,
        grammar: grammar.map(Arc::new),
        ..Request::new(SessionKey::new("", ""), told.conversation.clone())
    };
    let max_tokens = body.max_completion_tokens.or(body.max_tokens);
    Ok(Asked { app, model: body.model, scope, told, request, max_tokens })
}

/// The answer as events: pieces of text as they are said, why it ended, what it cost.
fn streamed(asked: Asked, frame: Frame, include_usage: bool) -> Response {
    let frame = Arc::new(frame);
    let of_text = frame.clone();
    let (listener, answer) = Listener::new(move |text| of_text.chunk(json!({ "content": text }), None));
    tokio::spawn(async move {
        if !listener.tell(frame.chunk(json!({ "role": "assistant", "content": "" }), None)).await {
            return;
        }
        let played = tokio::select! {
            played = asked.play(Some(&listener)) => played,
            () = listener.gone() => return,
        };
        let is_told = match played {
            Ok(completion) => frame.end(&completion, include_usage, &listener).await,
            Err(refusal) => listener.tell(refusal.json()).await,
        };
        if is_told {
            listener.say("[DONE]").await;
        }
    });
    answer
}

impl Frame {
    fn part(&self, object: &str, choices: Value) -> Value {
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices,
        })
    }

    fn chunk(&self, delta: Value, finish_reason: Option<&str>) -> Value {
        let choice = json!({ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish_reason });
        self.part("chat.completion.chunk", json!([choice]))
    }

    async fn end(&self, completion: &Completion, include_usage: bool, listener: &Listener) -> bool {
        let mut last = self.chunk(json!({}), Some(finish_reason(completion)));
        if self.explains {
            last["greenroom"] = explained(completion);
        }
        let is_told = listener.tell(last).await;
        if !include_usage || !is_told {
            return is_told;
        }
        let mut told = self.part("chat.completion.chunk", json!([]));
        told["usage"] = usage(completion);
        listener.tell(told).await
    }
}

fn random() -> Result<u64, Refusal> {
    getrandom::u64().map_err(|error| Refusal::body(format!("no random numbers: {error}")))
}
