//! Scenarios that are played on request: `POST /v1/runs`, whose answer is the run, event by event.
//!
//! An external scenario is only text: it names no files, calls no programs, and uses only served models, by
//! its own names or theirs. A run occupies a place in the queue until it ends. It also ends if its client
//! disconnects; its memories and record are then removed.

mod player;
mod playing;
mod telling;

pub(super) use playing::{RunsInProgress, perform_action};
pub use telling::RunReporter;

use super::ask::fresh_id;
use super::error::Refusal;
use super::live::RequestGuard;
use super::queue::Ticket;
use super::tenants::Tenant;
use super::{App, AuthTenant, Shared, body};
use crate::backend::Backend;
use crate::files::{self, FileKind};
use crate::rehearsal::load;
use crate::run::{MAX_TOKENS, RunOptions, perform};
use crate::scenario::{Hints, Loaded, Overrides, Scenario, ToolKind};
use crate::stage::{Control, End};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use player::Player;
use playing::RunInProgress;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_stream::wrappers::UnboundedReceiverStream;

/// The name of an external scenario, in messages and transcripts.
const NAME: &str = "scenario.yaml";
/// Interval after which an idle stream sends a comment, which also detects closed connections.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Events on their way to a client. A run's texts are small compared with its memories, so there is no limit.
type RunEvents = mpsc::UnboundedSender<Result<sse::Event, Infallible>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RunBody {
    scenario: String,
    #[serde(default)]
    variables: Map<String, Value>,
    #[serde(default)]
    seed: u64,
    max_tokens: Option<usize>,
    model: Option<String>,
    /// True if no turn begins before the run is resumed or stepped.
    #[serde(default)]
    paused: bool,
}

/// A run that is to be played.
struct ServedRun {
    /// What clients call it.
    id: String,
    scenario: Arc<Scenario>,
    player: Arc<Player>,
    options: RunOptions,
    entry: RequestGuard,
    deadline: Instant,
    limit: Duration,
    ending: watch::Receiver<bool>,
    _playing: RunInProgress,
}

/// The routes of this API.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/runs", post(play)).route("/v1/runs/{run}/{action}", post(playing::act))
}

/// `POST /v1/runs`: JSON, or a scenario's plain YAML.
async fn play(
    State(app): Shared,
    AuthTenant(tenant): AuthTenant,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Response, Refusal> {
    let body = RunBody::read(&headers, &bytes)?;
    tenant.ask()?;
    let limit = app.timeout;
    let deadline = Instant::now() + limit;
    let scenario = body.checked().await?;
    let models = models(&app, &scenario, body.model.as_deref())?;
    let player = players(&app, &tenant, &models).await?;
    let entry = app.live.enter(&tenant.name, "/v1/runs", models.get("").map_or("", String::as_str));
    let ticket = app.queue.enter(&tenant, false)?;
    let (id, options) = (fresh_id("run-"), body.options(models));
    let playing = RunInProgress::enter(&app, &tenant.name, &id, options.control.clone());
    let run = ServedRun {
        id,
        scenario,
        player,
        options,
        entry,
        deadline,
        limit,
        ending: app.ending.clone(),
        _playing: playing,
    };
    let (events, read) = mpsc::unbounded_channel();
    tokio::spawn(run.wait(ticket, events));
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
    Ok(Sse::new(UnboundedReceiverStream::new(read)).keep_alive(keep_alive).into_response())
}

impl RunBody {
    fn read(headers: &HeaderMap, bytes: &Bytes) -> Result<Self, Refusal> {
        let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let body: Self = if kind.contains("yaml") {
            let text =
                std::str::from_utf8(bytes).map_err(|_| Refusal::request("the scenario is not UTF-8"))?;
            let (scenario, variables) = (text.to_string(), Map::new());
            Self { scenario, variables, seed: 0, max_tokens: None, model: None, paused: false }
        } else {
            body::read(bytes)?
        };
        if body.max_tokens == Some(0) {
            return Err(Refusal::field("max_tokens", "a reply needs at least 1 token"));
        }
        let (found, most) = (body.scenario.len() as u64, FileKind::Scenario.max_bytes());
        if found > most {
            return Err(Refusal::field("scenario", format!("{found} bytes; expected at most {most}")));
        }
        Ok(body)
    }

    /// The scenario, if it may be played here.
    async fn checked(&self) -> Result<Arc<Scenario>, Refusal> {
        let (text, overrides) = (self.scenario.clone(), self.variables.clone());
        let overrides: Overrides = overrides.into_iter().collect();
        let loaded = tokio::task::spawn_blocking(move || load(NAME, &text, &overrides)).await;
        let Loaded { scenario, report, .. } = loaded.map_err(|error| Refusal::internal(error.to_string()))?;
        let scenario = scenario.ok_or_else(|| Refusal::field("scenario", report.render(false)))?;
        if let Some(tool) = scenario.tools.iter().find(|tool| !matches!(tool.kind, ToolKind::BuiltIn(..))) {
            let message = format!(
                "the tool `{}` is a program, a server or a function, which is not allowed here",
                tool.key
            );
            return Err(Refusal::field("scenario", message));
        }
        Ok(scenario)
    }

    fn options(&self, models: BTreeMap<String, String>) -> RunOptions {
        let given = Hints { max_tokens: self.max_tokens, ..Hints::default() };
        let control = Control::remote(false);
        if self.paused {
            control.pause();
        }
        RunOptions {
            seed: self.seed,
            max_tokens: self.max_tokens.unwrap_or(MAX_TOKENS as usize),
            given: given.names().map(str::to_string).collect(),
            models,
            control,
            ..RunOptions::default()
        }
    }
}

/// The served model for each model that a scenario names, and for the scenario itself under the empty name:
/// the requested one, or its own, or the only one. All have an entry, so that no name is ever looked up as a
/// file.
fn models(app: &App, scenario: &Scenario, asked: Option<&str>) -> Result<BTreeMap<String, String>, Refusal> {
    let served: Vec<&str> = app.models.names().collect();
    let mut models = BTreeMap::new();
    for (name, written) in &scenario.models {
        let found = [name, written].into_iter().find(|model| served.contains(&model.as_str()));
        let found = found.ok_or_else(|| {
            let known = served.join(", ");
            Refusal::no_model(format!(
                "the scenario's model `{name}` ({written}) is not served; available models: {known}"
            ))
        })?;
        models.insert(name.clone(), found.clone());
    }
    let own = || scenario.hints.model.as_ref().and_then(|name| models.get(name)).map(String::as_str);
    let usual =
        || if let [only] = served[..] { Some(only) } else { models.values().next().map(String::as_str) };
    let Some(own) = asked.or_else(own).or_else(usual) else {
        return Err(Refusal::field(
            "model",
            format!("`model` is missing; expected one of {}", served.join(", ")),
        ));
    };
    let own = own.to_string();
    models.insert(String::new(), own);
    Ok(models)
}

/// The models of a run, opened.
async fn players(
    app: &App,
    tenant: &Arc<Tenant>,
    models: &BTreeMap<String, String>,
) -> Result<Arc<Player>, Refusal> {
    let (mut own, mut named) = (None, BTreeMap::new());
    for (name, model) in models {
        let served = app.models.get(model).await?;
        if name.is_empty() {
            own = Some(served.clone());
        }
        let player: Arc<dyn Backend> = Arc::new(Player::new(served, tenant.clone(), BTreeMap::new()));
        named.insert(name.clone(), player);
    }
    let own = own.ok_or_else(|| Refusal::internal("the run has no model"))?;
    Ok(Arc::new(Player::new(own, tenant.clone(), named)))
}

impl ServedRun {
    /// Waits for a place, and plays.
    async fn wait(self, ticket: Ticket, events: RunEvents) {
        let place = tokio::select! {
            biased;
            () = events.closed() => return,
            () = sleep_until(self.deadline) => Err(Refusal::timed_out(self.limit)),
            place = ticket.wait() => place,
        };
        let played = match place {
            Err(refusal) => Err(refusal),
            Ok(place) => {
                let events = events.clone();
                // A run is watched on one thread.
                let played = tokio::task::spawn_blocking(move || {
                    let _place = place;
                    self.play(&events)
                });
                played.await.unwrap_or_else(|error| Err(Refusal::internal(error.to_string())))
            }
        };
        if let Err(refusal) = played {
            let details = json!({ "message": refusal.message(), "status": refusal.status().as_u16() });
            tell(&events, "error", &details);
        }
    }

    fn play(self, events: &RunEvents) -> Result<(), Refusal> {
        let Self { id, scenario, player, options, entry, deadline, limit, ending, _playing } = self;
        let folder = tempfile::tempdir();
        let folder = folder
            .map_err(|error| Refusal::internal(format!("can't create a folder for the run: {error}")))?;
        let mut telling = RunReporter::begin(scenario.clone(), &id, |name: &'static str, data: Value| {
            if name == "text" {
                entry.says(data["text"].as_str().unwrap_or_default());
            }
            tell(events, name, &data);
        });
        let stop = async {
            tokio::select! {
                () = events.closed() => {}
                () = out_of_time(deadline, limit, &options.control, &ending) => {}
            }
        };
        let performs = perform(&scenario, player, folder.path(), &options, &mut telling, stop);
        let performed = Handle::current().block_on(performs);
        let performed = performed.map_err(|error| Refusal::internal(format!("{error:#}")))?;
        let End::Complete(footer) = &performed.end else {
            if options.control.is_stopped() {
                tell(events, "stopped", &json!({ "turns": performed.n_written }));
                return Ok(());
            }
            return Err(Refusal::timed_out(limit)); // or nobody hears it
        };
        let text = files::read_text(&performed.transcript, FileKind::Transcript);
        let lines = text.map_err(|error| Refusal::internal(format!("can't read the transcript: {error}")))?;
        let lines = lines.lines().map(serde_json::from_str).collect::<serde_json::Result<Vec<Value>>>();
        let lines =
            lines.map_err(|error| Refusal::internal(format!("can't read the transcript: {error}")))?;
        telling.results(footer);
        let done = json!({
            "outcome": footer, "holds": footer.holds(), "transcript": lines, "cost": performed.summary,
        });
        tell(events, "done", &done);
        Ok(())
    }
}

/// Ready once a run has taken too long: to play, or to wait for humans and to be resumed; or once it waits and the
/// server ends.
async fn out_of_time(deadline: Instant, limit: Duration, control: &Control, ending: &watch::Receiver<bool>) {
    let (mut left, mut patience) = (deadline.saturating_duration_since(Instant::now()), limit);
    while !left.is_zero() && !patience.is_zero() {
        let step = left.min(patience).min(Duration::from_secs(1));
        sleep(step).await;
        match control.waits() {
            true if *ending.borrow() => return,
            true => patience = patience.saturating_sub(step),
            false => left = left.saturating_sub(step),
        }
    }
}

/// Sends an event; a client that has gone is ignored.
fn tell(events: &RunEvents, name: &'static str, data: &Value) {
    let _ = events.send(Ok(sse::Event::default().event(name).data(data.to_string())));
}
