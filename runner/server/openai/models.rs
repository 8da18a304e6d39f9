//! The list of models.

use super::super::Shared;
use super::super::error::Refusal;
use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

/// `GET /v1/models`
pub(super) async fn list(State(app): Shared) -> Json<Value> {
    let data: Vec<Value> = app.models.names().filter_map(|name| app.models.described(name)).collect();
    Json(json!({ "object": "list", "data": data }))
}

/// `GET /v1/models/{name}`
pub(super) async fn one(State(app): Shared, Path(name): Path<String>) -> Result<Json<Value>, Refusal> {
    let found = app.models.described(&name);
    found.map(Json).ok_or_else(|| Refusal::no_model(format!("the model `{name}` does not exist")))
}
