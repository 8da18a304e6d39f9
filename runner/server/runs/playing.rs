//! What clients do with a run while it plays: `POST /v1/runs/{run}/pause`, `resume`, `step`, `stop`, and `answer`
//! in a human's place. The page of `run --watch` has the same routes for its one run.

use super::super::{App, AuthTenant, Refusal, Shared, body};
use crate::stage::{AnswerError, Control};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The runs that play now, by tenant and id.
#[derive(Debug, Default)]
pub(in crate::server) struct RunsInProgress(Mutex<BTreeMap<(String, String), Control>>);

/// A run that plays, until this is dropped.
pub(super) struct RunInProgress {
    app: Arc<App>,
    key: (String, String),
}

impl RunInProgress {
    pub(super) fn enter(app: &Arc<App>, tenant: &str, run: &str, control: Control) -> Self {
        let key = (tenant.to_string(), run.to_string());
        app.playing.all().insert(key.clone(), control);
        Self { app: app.clone(), key }
    }
}

impl Drop for RunInProgress {
    fn drop(&mut self) {
        self.app.playing.all().remove(&self.key);
    }
}

impl RunsInProgress {
    fn all(&self) -> MutexGuard<'_, BTreeMap<(String, String), Control>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerBody {
    path: String,
    text: String,
}

/// `POST /v1/runs/{run}/{action}`
pub(super) async fn act(
    State(app): Shared,
    AuthTenant(tenant): AuthTenant,
    Path((run, action)): Path<(String, String)>,
    bytes: Bytes,
) -> Result<Json<Value>, Refusal> {
    let control = app.playing.all().get(&(tenant.name.clone(), run.clone())).cloned();
    let control = control.ok_or_else(|| Refusal::missing("run", format!("no run `{run}` plays now")))?;
    perform_action(&control, &action, &bytes)
}

/// Does with a run what a request asks for.
pub(in crate::server) fn perform_action(
    control: &Control,
    action: &str,
    bytes: &Bytes,
) -> Result<Json<Value>, Refusal> {
    match action {
        "pause" => control.pause(),
        "resume" => control.resume(),
        "step" => control.step(),
        "stop" => control.stop(),
        "answer" => {
            let AnswerBody { path, text } = body::read(bytes)?;
            control.answer(&path, &text).map_err(|error| match &error {
                AnswerError::NotAsked(_) => Refusal::conflict(error.to_string()),
                AnswerError::Wrong(_) => Refusal::field("text", error.to_string()),
            })?;
        }
        _ => {
            let found = format!("there is no `{action}`; expected answer, pause, resume, step or stop");
            return Err(Refusal::missing("action", found));
        }
    }
    Ok(Json(json!({ "paused": control.is_paused() })))
}
