//! OpenAI's APIs.

mod chat;
mod completions;
mod embeddings;
mod messages;
mod models;
mod prompts;
mod responses;
mod text_completion;
mod words;

pub(super) use messages::{FunctionEntry, OpenAiMessage, OpenAiTool, left_out, lines, offered, tools};
pub use responses::StoredResponses;
pub(super) use words::{explained, warn};

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
        .route("/v1/completions", post(completions::complete))
        .route("/v1/embeddings", post(embeddings::embed))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/{id}", get(responses::one).delete(responses::remove))
        .route("/v1/responses/{id}/input_items", get(responses::input_items))
}
