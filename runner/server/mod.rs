//! The server: memories that last, for clients of other providers' APIs.
//!
//! It has no memory rules of its own. A request becomes an engine request with the whole conversation, and
//! the engine finds what was read before. `sessions` decides which session a conversation continues.
//!
//! An API (`openai/`) reads bodies into an `ask`, which waits in the `queue` for its turn, and formats the
//! answer, whole or as a `stream`. `tenants` identifies clients, `models` keeps the models, `live` tracks
//! current activity.

mod agents;
mod anthropic;
mod ask;
mod body;
mod controls;
mod dialogue;
mod disk;
mod error;
mod journal;
mod live;
mod models;
mod openai;
mod openapi;
mod queue;
mod recent;
mod runs;
mod sessions;
mod small;
mod stream;
mod tenants;
mod thinking;
mod turns;
mod unread;
mod window;

pub use agents::Roster;
pub use models::Models;
pub use openai::StoredResponses;
pub use queue::Queue;
pub use runs::RunReporter;
pub use sessions::Sessions;
pub use tenants::Tenants;
pub use window::{Watched, watch};

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, FromRequestParts, MatchedPath, Request, State};
use axum::http::header::{CONNECTION, CONTENT_LENGTH};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use error::Refusal;
use live::Live;
use recent::Recent;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tenants::Tenant;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

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
    /// True if requests that use other machines' names are also answered.
    is_open: bool,
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
    /// True if it listens at an address that other machines reach.
    pub is_open: bool,
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
    let Config { models, sessions, kept, roster, tenants, queue, timeout, max_body, is_open } = config;
    let (ended, ending) = tokio::sync::watch::channel(false);
    let app = Arc::new(App {
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
        is_open,
    });
    if let Some(limit) = app.models.disk_limit() {
        tokio::spawn(disk::keep_within(limit, app.models.clone(), app.live.clone()));
    }
    let closing = app.clone();
    let stop = async move {
        stop.await;
        closing.queue.close();
        ended.send_replace(true);
    };
    axum::serve(listener, router(app)).with_graceful_shutdown(stop).await
}

fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/openapi.json", get(openapi::document))
        .merge(openai::routes())
        .merge(anthropic::routes())
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
    let (request, unread) = unread::lend(request);
    let response = match let_in(&app, request) {
        Ok(request) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    let is_whole = unread.drain(DRAINED * app.max_body).await;
    // The readers of bodies have their own error for this.
    let response = match response.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Refusal::too_large(app.max_body).into_response(),
        _ => response,
    };
    app.live.answered(&route, response.status().as_u16());
    let is_anthropics = route.starts_with("/v1/messages");
    let mut response = if is_anthropics { error::in_anthropics_form(response).await } else { response };
    if !is_whole {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Bodies are read to their end, up to this multiple of their maximum length.
const DRAINED: usize = 4;

/// Refuses unauthorized requests.
fn let_in(app: &App, mut request: Request) -> Result<Request, Refusal> {
    if let Some(tenant) = admitted(app, &request)? {
        request.extensions_mut().insert(tenant);
    }
    Ok(request)
}

/// The request's tenant. Health and the status page, which contain no data, need no key.
fn admitted(app: &App, request: &Request<Body>) -> Result<Option<Arc<Tenant>>, Refusal> {
    if !app.is_open {
        names_this_machine(request.headers())?;
    }
    let path = request.uri().path();
    let length = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    let is_too_large =
        length.and_then(|length| length.parse::<u64>().ok()).is_some_and(|n| n > app.max_body as u64);
    // A memory in a file is imported piece by piece.
    if is_too_large && !path.ends_with("/import") {
        return Err(Refusal::too_large(app.max_body));
    }
    let needs_a_key = path != "/health" && !window::needs_no_key(path);
    needs_a_key.then(|| app.tenants.identify(request.headers())).transpose()
}

/// Refuses a request that calls this machine by another's name: a page from another site can make a browser
/// call any address under that site's name (DNS rebinding).
fn names_this_machine(headers: &HeaderMap) -> Result<(), Refusal> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let host = text("host").unwrap_or_default();
    if !is_name_of_this_machine(host) {
        return Err(Refusal::forbidden(format!(
            "`{host}` is not a name of this machine; use 127.0.0.1 or localhost"
        )));
    }
    // A browser names the requesting page; it lets any page post plain text.
    match text("origin") {
        Some(origin) if !origin.split_once("://").is_some_and(|(_, host)| is_name_of_this_machine(host)) => {
            Err(Refusal::forbidden(format!("requests from pages of `{origin}` are refused")))
        }
        _ => Ok(()),
    }
}

fn is_name_of_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    ["127.0.0.1", "localhost", "::1"].contains(&name)
}

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
