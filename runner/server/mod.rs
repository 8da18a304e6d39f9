//! The server: memories that last, for clients of other providers' APIs.
//!
//! It has no memory rules of its own. A request becomes an engine request with the whole conversation, and
//! the engine finds what was read before. `sessions` decides which session a conversation continues.
//!
//! An API (`openai/`) reads bodies into an `ask`, which waits in the `queue` for its turn, and formats the
//! answer, whole or as a `stream`. `tenants` identifies clients, `models` keeps the models, `live` tracks
//! current activity.

mod agents;
mod answer;
mod anthropic;
mod ask;
mod body;
mod controls;
mod dialogue;
mod disk;
mod doors;
mod error;
mod journal;
mod live;
mod models;
mod native;
mod ollama;
mod openai;
mod openapi;
mod queue;
mod recent;
mod runs;
mod service;
mod sessions;
mod small;
mod stream;
mod tenants;
mod thinking;
mod turns;
mod unread;
mod window;

pub use agents::Roster;
pub use doors::Doors;
pub use models::{Models, Names};
pub use openai::StoredResponses;
pub use queue::Queue;
pub use runs::RunReporter;
pub use service::{Answer, Service};
pub use sessions::Sessions;
pub use tenants::Tenants;
pub use window::{Watched, watch};

use axum::extract::{DefaultBodyLimit, FromRequestParts, MatchedPath, Request, State};
use axum::http::header::CONNECTION;
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, Uri};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Router, ServiceExt};
use error::Refusal;
use greenroom_engine::Date;
use live::Live;
use recent::Recent;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tenants::Tenant;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tower::Layer as _;
use tower::util::MapRequestLayer;

/// Everything needed to answer requests.
pub struct App {
    models: Arc<Models>,
    sessions: Sessions,
    kept: StoredResponses,
    roster: Roster,
    tenants: Tenants,
    queue: Arc<Queue>,
    /// Places to tokenize prompts.
    tokenizing: Semaphore,
    live: Arc<Live>,
    recent: Recent,
    window: window::Glance,
    /// True once the server is shutting down.
    ending: tokio::sync::watch::Receiver<bool>,
    /// Time that a request may take.
    timeout: Duration,
    max_body: usize,
    doors: Doors,
    date: Option<Date>,
    playing: runs::RunsInProgress,
}

impl App {
    /// The day of conversations that begin now.
    fn today(&self) -> Date {
        self.date.unwrap_or_else(|| jiff::Zoned::now().date())
    }
}

/// Number of prompts that are tokenized at a time.
const TOKENIZING: usize = 2;

/// Settings of the server.
pub struct Config {
    /// The models that answer.
    pub models: Models,
    /// Which memory each conversation continues.
    pub sessions: Sessions,
    /// Stored responses.
    pub kept: StoredResponses,
    /// Named agents.
    pub roster: Roster,
    /// API keys and tenants.
    pub tenants: Tenants,
    /// Who is served next.
    pub queue: Arc<Queue>,
    /// Time that a request may take.
    pub timeout: Duration,
    /// Maximum bytes of a request's body.
    pub max_body: usize,
    /// The names and pages that it answers to.
    pub doors: Doors,
    /// The day of conversations, for chat templates that print one; `None`: the one on which they begin.
    pub date: Option<Date>,
}

/// Serves until `stop` is ready, then finishes the requests in progress.
///
/// # Errors
/// The connection's.
pub async fn serve(
    config: Config,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let (ended, ending) = tokio::sync::watch::channel(false);
    let app = app(config, ending);
    if let Some(limit) = app.models.disk_limit() {
        tokio::spawn(disk::keep_within(limit, app.models.clone(), app.live.clone()));
    }
    let closing = app.clone();
    let stop = async move {
        stop.await;
        closing.queue.close();
        ended.send_replace(true);
    };
    let router = MapRequestLayer::new(on_known_path).layer(router(app));
    axum::serve(listener, ServiceExt::<Request>::into_make_service(router)).with_graceful_shutdown(stop).await
}

/// What requests share; `ending` becomes true when the server ends.
fn app(config: Config, ending: tokio::sync::watch::Receiver<bool>) -> Arc<App> {
    let Config { models, sessions, kept, roster, tenants, queue, timeout, max_body, doors, date } = config;
    Arc::new(App {
        models: Arc::new(models),
        sessions,
        kept,
        roster,
        tenants,
        queue,
        tokenizing: Semaphore::new(TOKENIZING),
        live: Live::new(),
        recent: Recent::default(),
        window: window::Glance::default(),
        ending,
        timeout,
        max_body,
        doors,
        date,
        playing: runs::RunsInProgress::default(),
    })
}

/// Paths that clients also use without `/v1`.
const WITHOUT_VERSION: [&str; 6] =
    ["/chat/completions", "/completions", "/embeddings", "/models", "/responses", "/messages"];

/// A request on the path that is served: without slashes at its end, and with its version.
fn on_known_path(mut request: Request) -> Request {
    let path = request.uri().path();
    let bare = if path.len() > 1 { path.trim_end_matches('/') } else { path };
    let version = if WITHOUT_VERSION.contains(&bare) { "/v1" } else { "" };
    if bare.len() == path.len() && version.is_empty() {
        return request;
    }
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    let known = format!("{version}{}{query}", if bare.is_empty() { "/" } else { bare });
    if let Ok(uri) = Uri::try_from(known) {
        *request.uri_mut() = uri;
    }
    request
}

fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/openapi.json", get(openapi::document))
        .merge(openai::routes())
        .merge(anthropic::routes())
        .merge(native::routes())
        .merge(ollama::routes())
        .merge(agents::routes())
        .merge(runs::routes())
        .merge(turns::routes())
        .merge(small::routes())
        .merge(window::routes())
        .fallback(async |request: Request| Refusal::no_route(request.method(), request.uri().path()))
        .method_not_allowed_fallback(async |request: Request| {
            Refusal::no_route(request.method(), request.uri().path())
        })
        .layer(DefaultBodyLimit::max(app.max_body))
        .layer(middleware::from_fn_with_state(app.clone(), guarded))
        .with_state(app)
}

/// Admits authorized requests, and counts the answers.
async fn guarded(State(app): Shared, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str).to_string();
    let asked = request.headers().clone();
    let (request, unread) = unread::lend(request);
    let response = match app.doors.preflight(&request) {
        Some(answer) => answer,
        None => match doors::let_in(&app, request) {
            Ok(request) => next.run(request).await,
            Err(refusal) => refusal.into_response(),
        },
    };
    let is_whole = unread.drain(DRAINED * app.max_body).await;
    // The readers of bodies have their own error for this.
    let response = match response.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Refusal::too_large(app.max_body).into_response(),
        _ => response,
    };
    app.live.answered(&route, response.status().as_u16());
    let mut response = match () {
        () if route.starts_with("/v1/messages") => error::in_anthropics_form(response).await,
        () if route.starts_with("/api/") => error::in_ollamas_form(response).await,
        () => response,
    };
    app.doors.label(&asked, response.headers_mut());
    if !is_whole {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Bodies are read to their end, up to this multiple of their maximum length.
const DRAINED: usize = 4;

/// Who asks.
pub(crate) struct AuthTenant(Arc<Tenant>);

impl FromRequestParts<Arc<App>> for AuthTenant {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, Refusal> {
        let tenant = parts.extensions.get::<Arc<Tenant>>().cloned();
        tenant.map(Self).ok_or_else(|| Refusal::internal("the request was admitted without a tenant"))
    }
}

type Shared = State<Arc<App>>;

/// All routes, for the description of the API and its tests; the files of the window's page aside.
#[cfg(test)]
const ROUTES: &[(&str, &str)] = &[
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/responses"),
    ("GET", "/v1/responses/{id}"),
    ("DELETE", "/v1/responses/{id}"),
    ("GET", "/v1/responses/{id}/input_items"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/completion"),
    ("POST", "/infill"),
    ("POST", "/v1/rerank"),
    ("POST", "/api/chat"),
    ("POST", "/api/generate"),
    ("GET", "/api/tags"),
    ("GET", "/api/ps"),
    ("POST", "/api/show"),
    ("GET", "/api/version"),
    ("GET", "/v1/agents"),
    ("PUT", "/v1/agents/{name}"),
    ("GET", "/v1/agents/{name}"),
    ("DELETE", "/v1/agents/{name}"),
    ("POST", "/v1/agents/{name}/turns"),
    ("POST", "/v1/agents/{name}/fork"),
    ("POST", "/v1/agents/{name}/prewarm"),
    ("POST", "/v1/agents/{name}/pin"),
    ("POST", "/v1/agents/{name}/rank"),
    ("GET", "/v1/agents/{name}/export"),
    ("PUT", "/v1/agents/{name}/import"),
    ("POST", "/v1/runs"),
    ("POST", "/v1/runs/{run}/{action}"),
    ("POST", "/v1/turns"),
    ("POST", "/v1/turns/count"),
    ("POST", "/v1/turns/forget"),
    ("GET", "/health"),
    ("GET", "/metrics"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/apply-template"),
    ("GET", "/props"),
    ("GET", "/slots"),
    ("GET", "/openapi.json"),
    ("GET", "/"),
    ("GET", "/window/state"),
    ("GET", "/window/events"),
];
