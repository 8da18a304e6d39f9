//! A run in this process, shown on the status page: `greenroom run --watch`.
//!
//! The player reports to a [`Watched`] what happens, as events of `/v1/runs`; [`watch`] serves the page that
//! shows it.

use super::super::error::Refusal;
use super::super::{Doors, runs};
use super::{PageEvent, pages, stream};
use crate::stage::Control;
use axum::body::Bytes;
use axum::extract::{Path, Request, State};
use axum::middleware::{self, Next};
use axum::response::sse;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch as latest};

/// What has happened in a run, for open pages and those opened later.
#[derive(Debug)]
pub struct Watched {
    past: Mutex<BTreeMap<u64, Happened>>,
    /// Number of the latest event.
    latest: latest::Sender<u64>,
}

/// An event of a run.
#[derive(Clone, Debug)]
struct Happened {
    name: &'static str,
    /// The turn that it belongs to; empty: none.
    path: String,
    /// Its JSON.
    data: String,
}

/// What handlers share.
#[derive(Clone)]
struct RunWindow {
    watched: Arc<Watched>,
    control: Control,
    ending: latest::Receiver<bool>,
}

impl Watched {
    /// A run before its first event.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { past: Mutex::default(), latest: latest::Sender::new(0) })
    }

    /// Reports an event of `/v1/runs` by its name and data.
    pub fn tell(&self, name: &'static str, data: &Value) {
        let path = data["path"].as_str().unwrap_or_default().to_string();
        let mut past = self.past();
        if name == "turn" {
            // It has the whole text, so pieces of it need not be kept.
            past.retain(|_, event| event.name != "text" || event.path != path);
        }
        let number = *self.latest.borrow() + 1;
        past.insert(number, Happened { name, path, data: data.to_string() });
        self.latest.send_replace(number);
    }

    /// Events after the one with a number.
    fn since(&self, number: u64) -> Vec<(u64, Happened)> {
        self.past().range(number + 1..).map(|(number, event)| (*number, event.clone())).collect()
    }

    fn past(&self) -> MutexGuard<'_, BTreeMap<u64, Happened>> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Shows a run until `stop` is ready, only on this machine, and lets it be controlled.
///
/// # Errors
/// The connection's.
pub async fn watch(
    watched: Arc<Watched>,
    control: Control,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let (ended, ending) = latest::channel(false);
    let router = Router::new()
        .route("/window/events", get(begin))
        .route("/window/run", get(events))
        .route("/v1/runs/{run}/{action}", post(act))
        .merge(pages::routes())
        .layer(middleware::from_fn(guarded))
        .with_state(RunWindow { watched, control, ending });
    let stop = async move {
        stop.await;
        ended.send_replace(true);
    };
    axum::serve(listener, router).with_graceful_shutdown(stop).await
}

async fn guarded(request: Request, next: Next) -> Response {
    match Doors::default().check(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// `GET /window/events`: there is a run to watch, and nothing else.
async fn begin(State(stage): State<RunWindow>) -> Response {
    let (events, read) = mpsc::channel::<PageEvent>(1);
    tokio::spawn(async move {
        let mut ending = stage.ending;
        let state = json!({ "full": true, "watch": true });
        if events.send(Ok(sse::Event::default().event("state").data(state.to_string()))).await.is_ok() {
            tokio::select! {
                () = events.closed() => {}
                _ = ending.changed() => {}
            }
        }
    });
    stream(read)
}

/// `POST /v1/runs/{run}/{action}`: there is one run.
async fn act(
    State(window): State<RunWindow>,
    Path((_, action)): Path<(String, String)>,
    bytes: Bytes,
) -> Result<Json<Value>, Refusal> {
    runs::perform_action(&window.control, &action, &bytes)
}

/// `GET /window/run`
async fn events(State(stage): State<RunWindow>) -> Response {
    let (events, read) = mpsc::channel::<PageEvent>(64);
    tokio::spawn(async move {
        let RunWindow { watched, mut ending, .. } = stage;
        let (mut news, mut number) = (watched.latest.subscribe(), 0);
        loop {
            // Before it is read, so that events in the meantime count as new.
            news.mark_unchanged();
            for (at, Happened { name, data, .. }) in watched.since(number) {
                number = at;
                if events.send(Ok(sse::Event::default().event(name).data(data))).await.is_err() {
                    return;
                }
            }
            tokio::select! {
                biased;
                () = events.closed() => return,
                changed = news.changed() => if changed.is_err() { return },
                _ = ending.changed() => return,
            }
        }
    });
    stream(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_turn_are_forgotten_once_it_is_said() {
        let watched = Watched::new();
        watched.tell("plan", &json!({ "phases": [] }));
        watched.tell("text", &json!({ "path": "a/1/x", "text": "Good" }));
        watched.tell("text", &json!({ "path": "a/1/y", "text": "No" }));
        watched.tell("turn", &json!({ "path": "a/1/x", "text": "Good evening." }));
        let names = |number| {
            watched.since(number).into_iter().map(|(at, event)| (at, event.name)).collect::<Vec<_>>()
        };
        assert_eq!(names(0), [(1, "plan"), (3, "text"), (4, "turn")]);
        assert_eq!(names(3), [(4, "turn")]);
        watched.tell("done", &json!({}));
        assert_eq!(names(4), [(5, "done")]);
    }
}
