//! Ollama's API, as far as it answers: chat, generation, and what models there are. Its answers are lines of JSON, one
//! after another unless `stream` is false; its errors are an object with an `error`.

mod messages;
mod models;
mod reply;

use super::ask::{AnswerSettings, Ask, AskSubject, scope};
use super::controls::controls;
use super::dialogue::{Dialogue, DialogueLine};
use super::error::{Refusal, in_ollamas_form};
use super::stream::respond_in_lines;
use super::tenants::Tenant;
use super::thinking::ThinkingGiven;
use super::{App, AuthTenant, Shared, body, openai};
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::middleware::map_response;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use greenroom_engine::{Prompt, ToolChoice};
use messages::OllamaMessage;
use reply::{OllamaReply, Said};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// Unsupported fields that would change the reply.
const UNSUPPORTED: [&str; 4] = ["suffix", "template", "images", "context"];
/// Options where a request gives none, as Ollama has them.
const DEFAULTS: [(&str, f64); 3] = [("temperature", 0.8), ("top_k", 40.0), ("top_p", 0.9)];

/// The routes.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/api/chat", post(chat))
        .route("/api/generate", post(generate))
        .route("/api/tags", get(models::tags))
        .route("/api/ps", get(models::running))
        .route("/api/show", post(models::show))
        .route("/api/version", get(async || Json(json!({ "version": env!("CARGO_PKG_VERSION") }))))
        .layer(map_response(in_ollamas_form))
}

#[derive(Deserialize)]
struct OllamaBody {
    model: String,
    #[serde(default)]
    messages: Vec<OllamaMessage>,
    tools: Option<Vec<openai::OpenAiTool>>,
    #[serde(default)]
    prompt: String,
    #[serde(default)]
    system: String,
    #[serde(default)]
    raw: bool,
    stream: Option<bool>,
    /// An extension: how the prompt matched the memory.
    #[serde(default)]
    greenroom: bool,
}

/// `POST /api/chat`
async fn chat(
    State(app): Shared,
    AuthTenant(tenant): AuthTenant,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Response, Refusal> {
    let (body, settings, thinking) = read(&app, &bytes)?;
    if body.messages.is_empty() {
        return Ok(loaded(&body.model, Said::Message));
    }
    let (tools, left) = openai::tools(body.tools.unwrap_or_default())?;
    let calls = if tools.is_some() { ToolChoice::Allowed } else { ToolChoice::Never };
    let mut dialogue = thinking.of(Dialogue::new(messages::lines(body.messages)?, tools, "messages")?);
    dialogue.warnings.extend(left);
    let subject = AskSubject::Dialogue(Box::new(dialogue), scope(None, &headers));
    let settings = AnswerSettings { calls, ..settings };
    let reply = OllamaReply::new(body.model, Said::Message, body.greenroom);
    answer(&app, tenant, "/api/chat", (subject, settings), (reply, body.stream)).await
}

/// `POST /api/generate`
async fn generate(
    State(app): Shared,
    AuthTenant(tenant): AuthTenant,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Response, Refusal> {
    let (body, settings, thinking) = read(&app, &bytes)?;
    if body.prompt.is_empty() {
        return Ok(loaded(&body.model, Said::Response));
    }
    let subject = if body.raw {
        AskSubject::Raw(Prompt::Text(body.prompt), scope(None, &headers))
    } else {
        let system = (!body.system.is_empty()).then_some(DialogueLine::System(body.system));
        let lines = system.into_iter().chain([DialogueLine::User(body.prompt)]).collect();
        let dialogue = thinking.of(Dialogue::new(lines, None, "prompt")?);
        AskSubject::Dialogue(Box::new(dialogue), scope(None, &headers))
    };
    let reply = OllamaReply::new(body.model, Said::Response, body.greenroom);
    answer(&app, tenant, "/api/generate", (subject, settings), (reply, body.stream)).await
}

/// The body of a request. Its options are settings like any other's.
fn read(app: &App, bytes: &[u8]) -> Result<(OllamaBody, AnswerSettings, ThinkingGiven), Refusal> {
    let value = body::with_model(bytes, &app.models)?;
    body::refuse(&value, &UNSUPPORTED)?;
    let mut asked = match &value["options"] {
        Value::Null => json!({}),
        options if options.is_object() => options.clone(),
        options => {
            return Err(Refusal::field("options", format!("`options` is {options}; expected an object")));
        }
    };
    asked["format"] = value["format"].clone();
    for (name, default) in DEFAULTS {
        if asked[name].is_null() {
            asked[name] = if name == "top_k" { json!(default as usize) } else { json!(default) };
        }
    }
    let thinking = ThinkingGiven::read(&json!({ "reasoning_effort": value["think"] }))?;
    let settings = AnswerSettings { max_thought_tokens: thinking.limit(), ..controls(&asked)? };
    Ok((body::of_value(value)?, settings, thinking))
}

async fn answer(
    app: &Arc<App>,
    tenant: Arc<Tenant>,
    route: &'static str,
    (subject, settings): (AskSubject, AnswerSettings),
    (reply, stream): (OllamaReply, Option<bool>),
) -> Result<Response, Refusal> {
    let ask = Ask { route, tenant, model: reply.model.clone(), subject, settings, n: 1 };
    let admitted = ask.admit(app).await?;
    if stream.unwrap_or(true) {
        return Ok(respond_in_lines(admitted, reply));
    }
    let answers = admitted.play(None).await?;
    let answer = answers.first().ok_or_else(|| Refusal::internal("the request ended without an answer"))?;
    Ok(Json(reply.whole(answer)).into_response())
}

/// The answer to a request without a prompt, by which clients have a model loaded.
fn loaded(model: &str, said: Said) -> Response {
    let mut reply = OllamaReply::new(model.to_string(), said, false).part("", "");
    (reply["done"], reply["done_reason"]) = (json!(true), json!("load"));
    Json(reply).into_response()
}
