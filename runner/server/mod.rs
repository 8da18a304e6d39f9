//! The server: memories that last, for clients that speak the APIs of others.
//!
//! It has no rules of its own about memory. A request becomes an engine's, with the whole conversation; what of it was read before, the
//! engine finds. Which session a conversation goes on with is for `sessions` to say.

mod chat;
mod conversation;
mod error;
mod models;
mod reply;
mod sessions;

pub use models::Models;
pub use sessions::Sessions;

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use error::Refusal;
use serde_json::json;
use std::future::Future;
use std::io;
use std::sync::Arc;
use tokio::net::TcpListener;

/// Bytes of a request's body, at most.
const MAX_BODY: usize = 8 << 20;

/// All that requests are answered with.
pub struct App {
    /// The models that answer.
    pub models: Models,
    /// Which memory each conversation goes on with.
    pub sessions: Sessions,
}

/// Serves until `stop` is ready; what is being answered then is answered to its end.
///
/// # Errors
/// The connection's.
pub async fn serve(
    app: App,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    axum::serve(listener, router(Arc::new(app))).with_graceful_shutdown(stop).await
}

fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/health", get(async || Json(json!({ "status": "ok" }))))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{name}", get(models::one))
        .route("/v1/chat/completions", post(chat::complete))
        .fallback(async |request: Request| Refusal::not_found(request.method(), request.uri().path()))
        .method_not_allowed_fallback(async |request: Request| {
            Refusal::not_found(request.method(), request.uri().path())
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn(only_from_here))
        .with_state(app)
}

/// A page of another site can have a browser call any address under a name of its own (DNS rebinding): only names of this machine are
/// answered.
async fn only_from_here(request: Request, next: Next) -> Response {
    let host = request.headers().get("host").and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    if ["127.0.0.1", "localhost", "::1"].contains(&name) {
        return next.run(request).await;
    }
    Refusal::forbidden(format!("`{host}` is no name of this machine: use 127.0.0.1 or localhost"))
        .into_response()
}

type Shared = State<Arc<App>>;
