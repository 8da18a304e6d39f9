//! What models there are.

use super::super::body;
use super::super::error::Refusal;
use super::super::{App, AuthTenant, Shared};
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use serde_json::{Value, json};

/// `GET /api/tags`: all models.
pub(super) async fn tags(State(app): Shared, AuthTenant(_): AuthTenant) -> Json<Value> {
    let models: Vec<Value> = app.models.names().map(|name| described(&app, name)).collect();
    Json(json!({ "models": models }))
}

/// `GET /api/ps`: those that are open.
pub(super) async fn running(State(app): Shared, AuthTenant(_): AuthTenant) -> Json<Value> {
    let open = app.models.at_hand();
    let models: Vec<Value> = open.iter().map(|served| described(&app, &served.name)).collect();
    Json(json!({ "models": models }))
}

/// `POST /api/show`: one model. It is opened: only then is known what it can do.
pub(super) async fn show(
    State(app): Shared,
    AuthTenant(tenant): AuthTenant,
    bytes: Bytes,
) -> Result<Json<Value>, Refusal> {
    let mut value = body::value(&bytes)?;
    if value["model"].is_null() && value.is_object() {
        value["model"] = value["name"].clone(); // older clients
    }
    let value = body::with_model(value.to_string().as_bytes(), &app.models)?;
    tenant.ask()?;
    let served = app.models.get(value["model"].as_str().unwrap_or_default()).await?;
    let (info, prompter) = (served.engine().model(), served.engine().prompter());
    let mut capabilities = vec!["completion", "tools"];
    capabilities.extend(prompter.thinks().then_some("thinking"));
    let mut shown = described(&app, &served.name);
    shown["modelfile"] = json!("");
    shown["parameters"] = json!("");
    shown["template"] = json!("");
    shown["capabilities"] = json!(capabilities);
    let context = format!("{}.context_length", info.family);
    shown["model_info"] = json!({ "general.architecture": info.family, context: info.context_length });
    Ok(Json(shown))
}

fn described(app: &App, name: &str) -> Value {
    let known = app.models.described(name).unwrap_or_default();
    let family = &known["greenroom"]["family"];
    json!({
        "name": name,
        "model": name,
        "modified_at": jiff::Timestamp::UNIX_EPOCH.to_string(),
        "size": known["greenroom"]["bytes"],
        "digest": known["greenroom"]["identity"],
        "details": {
            "format": "gguf",
            "family": family,
            "families": if family.is_null() { Value::Null } else { json!([family]) },
            "parameter_size": "",
            "quantization_level": "",
        },
    })
}
