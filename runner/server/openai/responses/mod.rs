//! Responses: OpenAI's API with a memory of what was said, by the ids of responses.
//!
//! A request is read (`request`, `input`) into a dialogue, which includes the earlier response and its input.
//! `stream` turns the pieces of the answer into `events` and the resulting response object (`output`), which
//! is then `kept`.

mod events;
mod input;
mod kept;
mod output;
mod page;
mod request;
mod stream;

pub use kept::StoredResponses;

use crate::server::ask::{Ask, AskSubject, scope};
use crate::server::body;
use crate::server::dialogue::{Dialogue, DialogueLine};
use crate::server::error::Refusal;
use crate::server::stream::respond;
use crate::server::{App, AuthTenant, Shared};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, RawQuery, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use kept::ResponseRecord;
use request::ResponsesBody;
use serde_json::{Value, json};
use std::sync::Arc;
use stream::ResponseStream;

/// `POST /v1/responses`
pub(super) async fn create(
    State(app): Shared,
    AuthTenant(tenant): AuthTenant,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Response, Refusal> {
    let body = ResponsesBody::read(body::with_model(&bytes, &app.models)?)?;
    let mut items = match &body.previous_response_id {
        None => Vec::new(),
        Some(id) => kept_response(&app, &tenant.name, "previous_response_id", id)?.history(),
    };
    items.extend(input::items(&body.input)?);
    let (tools, left) = body.tools()?;
    let settings = body.settings(tools.as_deref())?;
    // Those of the earlier response are not carried over.
    let instructions =
        body.instructions.iter().filter(|text| !text.is_empty()).cloned().map(DialogueLine::System);
    let lines = instructions.chain(input::lines(&items)).collect();
    let mut dialogue = body.thinking.of(Dialogue::new(lines, tools, "input")?);
    dialogue.warnings.extend(left);
    let telling = ResponseStream::new(app.clone(), &tenant.name, &body, items, dialogue.clone());
    let subject = AskSubject::Dialogue(Box::new(dialogue), scope(body.prompt_cache_key, &headers));
    let ask = Ask { route: "/v1/responses", tenant, model: body.model, subject, settings, n: 1 };
    let admitted = ask.admit(&app).await?;
    if body.stream.unwrap_or(false) {
        return Ok(respond(admitted, telling));
    }
    Ok(Json(telling.whole(admitted).await?).into_response())
}

/// `GET /v1/responses/{id}`
pub(super) async fn one(
    State(app): Shared,
    AuthTenant(tenant): AuthTenant,
    Path(id): Path<String>,
) -> Result<Json<Value>, Refusal> {
    let record = kept_response(&app, &tenant.name, "response_id", &id)?;
    Ok(Json(json!(record.response)))
}

/// `DELETE /v1/responses/{id}`
pub(super) async fn remove(
    State(app): Shared,
    AuthTenant(tenant): AuthTenant,
    Path(id): Path<String>,
) -> Result<Json<Value>, Refusal> {
    if !app.kept.remove(&tenant.name, &id) {
        return Err(missing("response_id", &id));
    }
    Ok(Json(json!({ "id": id, "object": "response", "deleted": true })))
}

/// `GET /v1/responses/{id}/input_items`
pub(super) async fn input_items(
    State(app): Shared,
    AuthTenant(tenant): AuthTenant,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Refusal> {
    let record = kept_response(&app, &tenant.name, "response_id", &id)?;
    page::page(&record.input, query.as_deref().unwrap_or_default()).map(Json)
}

fn kept_response(app: &App, tenant: &str, param: &str, id: &str) -> Result<Arc<ResponseRecord>, Refusal> {
    app.kept.get(tenant, id).ok_or_else(|| missing(param, id))
}

fn missing(param: &str, id: &str) -> Refusal {
    Refusal::missing(param, format!("the response `{id}` does not exist, or is no longer stored"))
}
