//! Turns of a runner on another machine: it sends the same requests as to a local engine ([`wire`]), and
//! keeps the conversation.
//!
//! The memory is named by the runner's run and agent. The time of the agent's next turn is on the runner's
//! own clock, which can't be compared with other clients', so it is left out.

use super::ask::MAX_OPTIONS;
use super::error::Refusal;
use super::live::{RequestGuard, RequestStage};
use super::models::Served;
use super::queue::Ticket;
use super::tenants::Tenant;
use super::{App, AuthTenant, Shared, body, sessions};
use crate::backend::wire::{self, VERSION};
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use greenroom_engine::{Constraint, Event, Request, SessionKey};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// Maximum number of events that wait for a slow reader.
const MAX_WAITING: usize = 64;
/// Interval after which an idle stream sends a comment.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

type TurnEvents = mpsc::Sender<Result<sse::Event, Infallible>>;

/// The routes of runners.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/turns", post(turn))
        .route("/v1/turns/count", post(count))
        .route("/v1/turns/forget", post(forget))
}

/// A turn in the queue.
struct AdmittedTurn {
    served: Arc<Served>,
    request: Request,
    entry: RequestGuard,
    ticket: Ticket,
    limit: Duration,
}

/// `POST /v1/turns`
async fn turn(State(app): Shared, AuthTenant(tenant): AuthTenant, bytes: Bytes) -> Result<Response, Refusal> {
    let wire::WireTurn { version, model, mut request } = body::read(&bytes)?;
    if version != VERSION {
        let message = format!("`version` is {version}; expected version {VERSION}");
        return Err(Refusal::field("version", message));
    }
    if let Some(Constraint::OneOf(options)) = &request.constraint
        && options.len() > MAX_OPTIONS
    {
        let message = format!("{} options; expected at most {MAX_OPTIONS}", options.len());
        return Err(Refusal::field("request.constraint", message));
    }
    request.session = key(&tenant, &model, &request.session);
    request.parent = request.parent.map(|parent| key(&tenant, &model, &parent));
    request.next_use = None;
    request.meter = Some(tenant.meter());
    tenant.ask()?;
    let entry = app.live.enter(&tenant.name, "/v1/turns", &model);
    let served = app.models.get(&model).await?;
    let ticket = app.queue.enter(&tenant, true)?;
    let admitted = AdmittedTurn { served, request, entry, ticket, limit: app.timeout };
    let (events, read) = mpsc::channel(MAX_WAITING);
    tokio::spawn(async move {
        // It is cancelled if the reader disconnects.
        tokio::select! {
            biased;
            () = events.closed() => {}
            () = admitted.tell(&events) => {}
        }
    });
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
    Ok(Sse::new(ReceiverStream::new(read)).keep_alive(keep_alive).into_response())
}

impl AdmittedTurn {
    /// Plays the turn, and reports what happens.
    async fn tell(self, events: &TurnEvents) {
        let limit = self.limit;
        let played = tokio::time::timeout(limit, self.play(events)).await;
        if let Err(refusal) = played.unwrap_or_else(|_| Err(Refusal::timed_out(limit))) {
            let (message, status) = (refusal.message().to_string(), refusal.status().as_u16());
            send(events, &wire::WireEvent::Failed { message, status }).await;
        }
    }

    async fn play(self, events: &TurnEvents) -> Result<(), Refusal> {
        let Self { served, request, entry, ticket, .. } = self;
        let _place = ticket.wait().await?;
        entry.remembers(&request.session.agent);
        let mut turn = served.engine().submit(request)?;
        while let Some(event) = turn.next().await {
            match event {
                Event::Prefill { done, total } => {
                    entry.at(RequestStage::Reading { done, total });
                    send(events, &wire::WireEvent::Reading { done, total }).await;
                }
                Event::Text(text) => {
                    entry.says(&text);
                    send(events, &wire::WireEvent::Text(text)).await;
                }
                Event::Failed(error) => return Err(error.into()),
                Event::Done(_) => {
                    let completion = turn.commit().await?;
                    entry.ended(&completion);
                    send(events, &wire::WireEvent::Done(completion)).await;
                    return Ok(());
                }
                _ => {}
            }
        }
        Err(Refusal::ending())
    }
}

/// Sends an event; a client that has gone is ignored.
async fn send(events: &TurnEvents, event: &wire::WireEvent) {
    if let Ok(data) = serde_json::to_string(event) {
        let _ = events.send(Ok(sse::Event::default().data(data))).await;
    }
}

/// `POST /v1/turns/count`: tokens of a prompt.
async fn count(
    State(app): Shared,
    AuthTenant(tenant): AuthTenant,
    bytes: Bytes,
) -> Result<Json<Value>, Refusal> {
    let wire::Counted { model, prompt } = body::read(&bytes)?;
    tenant.ask()?;
    let served = app.models.get(&model).await?;
    let place = app.tokenizing.acquire().await.map_err(|_| Refusal::ending())?;
    let ids = tokio::task::spawn_blocking(move || served.engine().prompter().prompt_ids(&prompt));
    let ids = ids.await.map_err(|error| Refusal::internal(error.to_string()))??;
    drop(place);
    Ok(Json(json!({ "tokens": ids.len() })))
}

/// `POST /v1/turns/forget`: removes a memory that will not be used again.
async fn forget(
    State(app): Shared,
    AuthTenant(tenant): AuthTenant,
    bytes: Bytes,
) -> Result<StatusCode, Refusal> {
    let wire::Forgotten { model, run, agent } = body::read(&bytes)?;
    tenant.ask()?;
    let session = key(&tenant, &model, &SessionKey::new(run, agent));
    if let Some(served) = app.models.at_hand().into_iter().find(|served| served.name == model) {
        served.engine().forget(&session);
    }
    Ok(StatusCode::NO_CONTENT)
}

/// The server's name for a runner's memory.
fn key(tenant: &Tenant, model: &str, session: &SessionKey) -> SessionKey {
    sessions::key(&tenant.name, model, &format!("turn:{}/{}", session.run, session.agent))
}
