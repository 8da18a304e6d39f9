//! The models that are served.

use super::Shared;
use super::error::Refusal;
use crate::backend::{EmbeddedConfig, Loading, Share, locate, worded};
use anyhow::Context as _;
use axum::Json;
use axum::extract::{Path, State};
use greenroom_engine::Engine;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// Engines by the names that clients ask for.
pub struct Models {
    engines: BTreeMap<String, Engine>,
    /// Seconds since 1970 at which they were opened.
    opened: u64,
}

impl Models {
    /// Opens models, each under its name, with these settings; all live in one budget of memory.
    ///
    /// # Errors
    /// A model can't be found or opened.
    pub fn open(
        config: &EmbeddedConfig,
        given: &BTreeMap<String, String>,
        on_progress: &dyn Fn() -> Box<dyn FnMut(Loading) + Send>,
    ) -> anyhow::Result<Self> {
        let share = Some(Share::new(config.cache_memory));
        let mut engines = BTreeMap::new();
        for (name, model) in given {
            let config = EmbeddedConfig { model: locate(model)?, share: share.clone(), ..config.clone() };
            let engine = Engine::open(config.engine(), &mut *on_progress());
            engines
                .insert(name.clone(), engine.map_err(worded).with_context(|| format!("the model `{name}`"))?);
        }
        Ok(Self { engines, opened: now() })
    }

    /// The engine of that name.
    pub(super) fn get(&self, name: &str) -> Result<(&str, &Engine), Refusal> {
        let known = || self.engines.keys().cloned().collect::<Vec<_>>().join(", ");
        let found = self.engines.get_key_value(name);
        let found = found
            .ok_or_else(|| Refusal::no_model(format!("no model `{name}` is served: there is {}", known())))?;
        Ok((found.0, found.1))
    }

    fn told(&self, name: &str, engine: &Engine) -> Value {
        let info = engine.model();
        json!({
            "id": name,
            "object": "model",
            "created": self.opened,
            "owned_by": "greenroom",
            "greenroom": {
                "name": info.name,
                "family": info.family,
                "identity": info.identity,
                "context_length": info.context_length,
                "kv": engine.kv(),
                "numerics": info.numerics,
            },
        })
    }
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// `GET /v1/models`
pub(super) async fn list(State(app): Shared) -> Json<Value> {
    let models = &app.models;
    let data: Vec<Value> = models.engines.iter().map(|(name, engine)| models.told(name, engine)).collect();
    Json(json!({ "object": "list", "data": data }))
}

/// `GET /v1/models/{name}`
pub(super) async fn one(State(app): Shared, Path(name): Path<String>) -> Result<Json<Value>, Refusal> {
    let (name, engine) = app.models.get(&name)?;
    Ok(Json(app.models.told(name, engine)))
}
