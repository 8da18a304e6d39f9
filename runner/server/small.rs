//! The small routes of llama.cpp's server: health, metrics, tokenizing and detokenizing, and current
//! activity.
//!
//! If they need a model and only one is served, it need not be named. Only those that tokenize open a model.

use super::dialogue::Dialogue;
use super::error::Refusal;
use super::live::{ActiveRequest, RequestStage};
use super::models::Served;
use super::openai::{OpenAiMessage, OpenAiTool, lines, tools};
use super::thinking::ThinkingGiven;
use super::{App, AuthTenant, Shared, body};
use crate::transcript::PROGRAM;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::Uri;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use greenroom_engine::SessionStatus;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Type of the text of `/metrics`.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Deserialize)]
struct TokenizeBody {
    content: String,
    /// True if the begin-of-sequence token precedes it, where the model's texts begin with it.
    #[serde(default)]
    add_special: bool,
    /// True if special tokens are recognised in it.
    #[serde(default = "yes")]
    parse_special: bool,
    /// True if each token comes with its text.
    #[serde(default)]
    with_pieces: bool,
    model: Option<String>,
}

#[derive(Deserialize)]
struct DetokenizeBody {
    tokens: Vec<u32>,
    model: Option<String>,
}

/// Messages and tools, as with chat completions.
#[derive(Deserialize)]
struct TemplateBody {
    messages: Vec<OpenAiMessage>,
    tools: Option<Vec<OpenAiTool>>,
    model: Option<String>,
}

/// The routes.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/health", get(async || Json(json!({ "status": "ok" }))))
        .route("/metrics", get(metrics))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/apply-template", post(apply_template))
        .route("/props", get(props))
        .route("/slots", get(slots))
}

/// `GET /metrics`: totals of all tenants, without tenants' names.
async fn metrics(State(app): Shared) -> Response {
    let mut memory_bytes = 0;
    for served in app.models.at_hand() {
        // Engines share one budget: each reports the total of all.
        if let Ok(status) = served.engine().status().await {
            memory_bytes = memory_bytes.max(status.memory_bytes);
        }
    }
    ([(CONTENT_TYPE, OPEN_METRICS)], app.live.metrics(app.queue.load(), memory_bytes)).into_response()
}

/// `POST /tokenize`
async fn tokenize(
    State(app): Shared,
    AuthTenant(tenant): AuthTenant,
    bytes: Bytes,
) -> Result<Json<Value>, Refusal> {
    let body: TokenizeBody = body::read(&bytes)?;
    tenant.ask()?;
    let served = asked_for(&app, body.model.as_deref()).await?;
    let tokens = aside(move || {
        let engine = served.engine();
        let ids = engine.encode(&body.content, body.parse_special)?;
        let ids = if body.add_special { engine.begin(&ids) } else { ids };
        Ok(match body.with_pieces {
            false => json!(ids),
            true => ids.iter().map(|id| json!({ "id": id, "piece": engine.decode(&[*id]) })).collect(),
        })
    });
    let tokens = tokens.await?;
    Ok(Json(json!({ "tokens": tokens })))
}

/// `POST /detokenize`
async fn detokenize(
    State(app): Shared,
    AuthTenant(tenant): AuthTenant,
    bytes: Bytes,
) -> Result<Json<Value>, Refusal> {
    let body: DetokenizeBody = body::read(&bytes)?;
    tenant.ask()?;
    let served = asked_for(&app, body.model.as_deref()).await?;
    let n_vocab = served.engine().model().n_vocab;
    if let Some(id) = body.tokens.iter().find(|id| **id as usize >= n_vocab) {
        return Err(Refusal::field("tokens", format!("{id} is not in the vocabulary of {n_vocab} tokens")));
    }
    let content = aside(move || Ok(served.engine().decode(&body.tokens))).await?;
    Ok(Json(json!({ "content": content })))
}

/// `POST /apply-template`: the text that a model reads for these messages.
async fn apply_template(
    State(app): Shared,
    AuthTenant(tenant): AuthTenant,
    bytes: Bytes,
) -> Result<Json<Value>, Refusal> {
    let value = body::value(&bytes)?;
    let thinking = ThinkingGiven::read(&value)?;
    let body: TemplateBody = body::of_value(value)?;
    let (tools, _) = tools(body.tools.unwrap_or_default())?;
    let mut dialogue = thinking.of(Dialogue::new(lines(body.messages)?, tools, "messages")?);
    dialogue.conversation.date = Some(app.today());
    tenant.ask()?;
    let served = asked_for(&app, body.model.as_deref()).await?;
    let prompt = aside(move || Ok(served.engine().prompter().render(&dialogue.conversation)?)).await?;
    Ok(Json(json!({ "prompt": prompt })))
}

/// `GET /props`: a model's properties, and the server's. `is_sleeping`: the model is not open, and its
/// context is unknown.
async fn props(State(app): Shared, uri: Uri) -> Result<Json<Value>, Refusal> {
    let name = app.models.name(parameter(&uri, "model").as_deref())?;
    let open = app.models.at_hand().into_iter().find(|served| served.name == name);
    let n_ctx = open.as_ref().map(|served| served.engine().model().context_length);
    Ok(Json(json!({
        "default_generation_settings": { "n_ctx": n_ctx },
        "total_slots": app.queue.places(),
        "model_alias": name,
        "modalities": { "vision": false, "audio": false },
        "build_info": PROGRAM,
        "is_sleeping": open.is_none(),
    })))
}

/// `GET /slots`: the tenant's active and waiting requests, and its memories in RAM.
async fn slots(State(app): Shared, AuthTenant(tenant): AuthTenant) -> Json<Value> {
    let requests = app.live.requests(&tenant.name);
    let taken: BTreeSet<&str> = requests.iter().map(|request| request.memory.as_str()).collect();
    let (mut contexts, mut idle) = (BTreeMap::new(), Vec::new());
    for served in app.models.at_hand() {
        let n_ctx = served.engine().model().context_length;
        contexts.insert(served.name.clone(), n_ctx);
        // An engine that has ended is no longer open.
        let Ok(status) = served.engine().status().await else { continue };
        let own = status.sessions.iter().filter(|session| session.key.tenant == tenant.name);
        let own = own.filter(|session| !taken.contains(session.key.agent.as_str()));
        idle.extend(own.map(|session| memory_slot(session, &served.name, n_ctx)));
    }
    let at_work = requests.iter().map(|request| request_slot(request, contexts.get(&request.model)));
    let mut slots: Vec<Value> = at_work.chain(idle).collect();
    for (id, slot) in slots.iter_mut().enumerate() {
        slot["id"] = json!(id);
    }
    Json(json!(slots))
}

fn request_slot(request: &ActiveRequest, n_ctx: Option<&usize>) -> Value {
    let progress = match request.stage {
        RequestStage::Reading { done, total } => json!({ "processed": done, "total": total }),
        RequestStage::Waiting | RequestStage::Speaking => Value::Null,
    };
    json!({
        "id_task": request.id,
        "model": request.model,
        "memory": request.memory,
        "n_ctx": n_ctx,
        "is_processing": request.stage != RequestStage::Waiting,
        "prompt_progress": progress,
    })
}

fn memory_slot(session: &SessionStatus, model: &str, n_ctx: usize) -> Value {
    json!({
        "id_task": -1,
        "model": model,
        "memory": session.key.agent,
        "n_ctx": n_ctx,
        "is_processing": session.is_at_work,
        "n_tokens": session.tokens,
        "n_tokens_in_memory": session.tokens_in_memory,
        "bytes_in_memory": session.bytes_in_memory,
        "is_saved": session.is_saved,
    })
}

/// The requested model, opened if necessary.
async fn asked_for(app: &App, name: Option<&str>) -> Result<Arc<Served>, Refusal> {
    app.models.get(app.models.name(name)?).await
}

/// A parameter of a query.
fn parameter(uri: &Uri, name: &str) -> Option<String> {
    uri.query()?.split('&').find_map(|pair| {
        let (_, value) = pair.split_once('=').filter(|(key, _)| *key == name)?;
        Some(percent_decode_str(&value.replace('+', " ")).decode_utf8_lossy().into_owned())
    })
}

/// Lets other requests be answered during a long computation.
async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Refusal::internal(error.to_string()))?
}

fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_is_decoded() {
        let uri: Uri = "/props?a=b&model=my%20model+1&model=other".parse().unwrap();
        assert_eq!(parameter(&uri, "model").as_deref(), Some("my model 1"));
        assert_eq!(parameter(&uri, "mode"), None);
        assert_eq!(parameter(&"/props".parse().unwrap(), "model"), None);
    }
}
