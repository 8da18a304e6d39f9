//! Named agents with a memory that lasts: a client sends only the new message, the server keeps the
//! conversation.
//!
//! An [`agent`] is a definition, everything that was read and said, and the name of a memory in the engine;
//! the [`roster`] keeps the agents of all tenants, and lets one request at a time change each. The engine
//! decides what the memory holds: if something is missing or different, the conversation is read again.

mod agent;
mod api;
mod rank;
mod roster;
mod transfer;
mod turns;
mod words;

pub(super) use roster::KnownAgent;
pub use roster::Roster;

use super::App;
use axum::Router;
use axum::routing::{get, post, put};
use std::sync::Arc;

/// The routes of this API.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/agents", get(api::list))
        .route("/v1/agents/{name}", get(api::one).put(api::put).delete(api::delete))
        .route("/v1/agents/{name}/turns", post(turns::turn))
        .route("/v1/agents/{name}/fork", post(api::fork))
        .route("/v1/agents/{name}/prewarm", post(api::prewarm))
        .route("/v1/agents/{name}/pin", post(api::pin))
        .route("/v1/agents/{name}/rank", post(rank::rank))
        .route("/v1/agents/{name}/export", get(transfer::export))
        .route("/v1/agents/{name}/import", put(transfer::import))
}
