//! OpenAI's APIs.

mod chat;
mod messages;
mod models;
mod words;

use super::App;
use axum::Router;
use axum::routing::{get, post};
use std::sync::Arc;

/// The routes of these APIs.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/models", get(models::list))
        .route("/v1/models/{name}", get(models::one))
        .route("/v1/chat/completions", post(chat::complete))
}
