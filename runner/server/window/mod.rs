//! The status page, which shows a tenant what the server is doing.
//!
//! `pages` has the page and its two files, which contain no data and need no key. They request
//! `GET /window/events`, a stream of changes (`state`); `GET /window/state` returns the state once. Scenarios
//! are played through `/v1/runs`, whose events the page draws. The same page shows a run that plays in
//! another command (`run`: `greenroom run --watch`): there `/window/events` reports that, and `/window/run`
//! streams the run's events, in the format of `/v1/runs`.

mod pages;
mod run;
mod state;

pub(super) use pages::needs_no_key;
pub use run::{Watched, watch};
pub(super) use state::Glance;

use super::tenants::Tenant;
use super::{App, AuthTenant, Shared};
use axum::extract::State;
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::Value;
use state::{Looked, PageState, STATUS_EVERY, TenantView};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_stream::wrappers::ReceiverStream;

/// Interval for checking for changes.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Minimum time between two events.
const TELL_EVERY: Duration = Duration::from_millis(250);
/// Interval after which an idle stream sends a comment, which also detects closed pages.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// An event for a page.
type PageEvent = Result<sse::Event, Infallible>;

/// The routes of the window.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/window/state", get(state_now))
        .route("/window/events", get(events))
        .merge(pages::routes())
}

/// `GET /window/state`
async fn state_now(State(app): Shared, AuthTenant(tenant): AuthTenant) -> Json<Value> {
    let looked = Looked::now(&app, &tenant.name).await;
    let change = PageState::default().change(&TenantView::of(&app, &tenant.name, &looked));
    Json(change.unwrap_or_default())
}

/// `GET /window/events`
async fn events(State(app): Shared, AuthTenant(tenant): AuthTenant) -> Response {
    let (events, read) = mpsc::channel(1);
    tokio::spawn(tell(app, tenant, events));
    stream(read)
}

/// Events as they come, to their end.
fn stream(events: mpsc::Receiver<PageEvent>) -> Response {
    Sse::new(ReceiverStream::new(events)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}

/// Sends changes to a page, until it is closed or the server ends.
async fn tell(app: Arc<App>, tenant: Arc<Tenant>, events: mpsc::Sender<PageEvent>) {
    let mut ending = app.ending.clone();
    let mut tick = tokio::time::interval(LOOK_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut page = PageState::default();
    let mut sent_at: Option<Instant> = None;
    let mut looked = Looked::now(&app, &tenant.name).await;
    // A pass of the engine may take a while, and text arrives meanwhile.
    let mut looking = Box::pin(look_later(app.clone(), tenant.clone()));
    loop {
        tokio::select! {
            biased;
            () = events.closed() => return,
            _ = ending.changed() => return,
            new = &mut looking => {
                looked = new;
                looking = Box::pin(look_later(app.clone(), tenant.clone()));
                continue;
            }
            _ = tick.tick() => {}
        }
        if sent_at.is_some_and(|at| at.elapsed() < TELL_EVERY) {
            continue;
        }
        let Some(change) = page.change(&TenantView::of(&app, &tenant.name, &looked)) else { continue };
        sent_at = Some(Instant::now());
        let event = sse::Event::default().event("state").data(change.to_string());
        tokio::select! {
            biased;
            _ = ending.changed() => return,
            sent = events.send(Ok(event)) => if sent.is_err() { return },
        }
    }
}

/// The state of the memories, after an interval.
async fn look_later(app: Arc<App>, tenant: Arc<Tenant>) -> Arc<Looked> {
    tokio::time::sleep(STATUS_EVERY).await;
    Looked::now(&app, &tenant.name).await
}
