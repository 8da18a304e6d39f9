//! Agents as things to make, look at, copy and delete.

use super::super::ask::{AnswerSettings, Ask, AskSubject};
use super::super::error::Refusal;
use super::super::models::Served;
use super::super::openai::{OpenAiTool, tools};
use super::super::tenants::Tenant;
use super::super::{App, AuthTenant, Shared, body, sessions};
use super::agent::{Definition, NamedAgent, Toolset};
use super::words;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use greenroom_engine::{Engine, Sampling, SessionKey, SessionStatus};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::sync::Arc;

/// Maximum number of characters in a name.
const MAX_NAME: usize = 128;
/// Maximum size of a journal line's content as JSON, in bytes.
const MAX_BYTES: usize = 4 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Put {
    model: String,
    system: Option<String>,
    tools: Option<Vec<OpenAiTool>>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    max_tokens: Option<usize>,
    #[serde(default)]
    stop: Vec<String>,
    /// True if an agent of another definition starts over with this one.
    #[serde(default)]
    replace: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ForkBody {
    name: String,
    /// Turns that the copy shares with the agent; by default all.
    at: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pin {
    pinned: bool,
}

/// `PUT /v1/agents/{name}`
pub(super) async fn put(
    State(app): Shared,
    AuthTenant(tenant): AuthTenant,
    Path(name): Path<String>,
    bytes: Bytes,
) -> Result<(StatusCode, Json<Value>), Refusal> {
    is_name("name", &name)?;
    let body: Put = body::read(&bytes)?;
    let (replaces, definition) = (body.replace, body.definition(&app)?);
    if app.roster.add(&tenant.name, &name, NamedAgent::new(definition.clone(), Some(app.today())))? {
        let agent = app.roster.find(&tenant.name, &name)?;
        return Ok((StatusCode::CREATED, Json(words::described(&name, &agent))));
    }
    let mut agent = app.roster.find(&tenant.name, &name)?;
    let differences = agent.definition.differences(&definition);
    if !differences.is_empty() {
        if !replaces {
            let fields = differences.join(", ");
            return Err(Refusal::conflict(format!(
                "the agent `{name}` exists with another definition ({fields}); use `replace: true` to \
                 replace it"
            )));
        }
        let held = app.roster.hold(&tenant.name, &name, app.timeout).await?;
        remove_memory(&app, &tenant, &held.agent).await?;
        agent = NamedAgent::new(definition, Some(app.today()));
        app.roster.replace(&held, agent.clone());
    }
    Ok((StatusCode::OK, Json(words::described(&name, &agent))))
}

impl Put {
    fn definition(self, app: &App) -> Result<Definition, Refusal> {
        let Self { model, system, tools: entries, temperature, top_p, max_tokens, stop, replace: _ } = self;
        if !app.models.names().any(|name| name == model) {
            let known: Vec<&str> = app.models.names().collect();
            return Err(Refusal::no_model(format!(
                "the model `{model}` does not exist; available models: {}",
                known.join(", ")
            )));
        }
        if max_tokens == Some(0) {
            return Err(Refusal::field("max_tokens", "a reply needs at least 1 token"));
        }
        let (heat, share) = (temperature.unwrap_or(1.0), top_p.unwrap_or(1.0));
        Sampling { temperature: heat, top_p: share, ..Sampling::default() }.validate()?;
        let (tools, left) = tools(entries.unwrap_or_default())?;
        if let Some(left) = left.into_iter().next() {
            return Err(Refusal::field("tools", left));
        }
        let tools = tools.as_deref().map(Toolset::from);
        let definition = Definition { model, system, tools, temperature, top_p, max_tokens, stop };
        fits("system", &definition)?;
        Ok(definition)
    }
}

/// `GET /v1/agents`
pub(super) async fn list(State(app): Shared, AuthTenant(tenant): AuthTenant) -> Json<Value> {
    Json(json!({ "object": "list", "data": app.roster.list(&tenant.name, words::listed) }))
}

/// `GET /v1/agents/{name}`; `?conversation=true` also returns what it has read and said.
pub(super) async fn one(
    State(app): Shared,
    AuthTenant(tenant): AuthTenant,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Refusal> {
    let agent = app.roster.find(&tenant.name, &name)?;
    let mut described = words::described(&name, &agent);
    let known = match open(&app, &agent) {
        Some(served) => status(served.engine(), &key(&tenant, &agent)).await?,
        None => None,
    };
    described["memory"] = words::memory(known.as_ref());
    let query = query.unwrap_or_default();
    if query.split('&').any(|pair| matches!(pair, "conversation" | "conversation=1" | "conversation=true")) {
        described["conversation"] = words::conversation(&agent);
    }
    Ok(Json(described))
}

/// `DELETE /v1/agents/{name}`: waits for a turn in progress.
pub(super) async fn delete(
    State(app): Shared,
    AuthTenant(tenant): AuthTenant,
    Path(name): Path<String>,
) -> Result<Json<Value>, Refusal> {
    let held = app.roster.hold(&tenant.name, &name, app.timeout).await?;
    remove_memory(&app, &tenant, &held.agent).await?;
    app.roster.remove(&held);
    Ok(Json(json!({ "name": name, "deleted": true })))
}

/// `POST /v1/agents/{name}/fork`: an agent with the same past, which begins with this one's memory. A reply
/// in progress is not part of it.
pub(super) async fn fork(
    State(app): Shared,
    AuthTenant(tenant): AuthTenant,
    Path(name): Path<String>,
    bytes: Bytes,
) -> Result<(StatusCode, Json<Value>), Refusal> {
    let ForkBody { name: other, at } = body::read(&bytes)?;
    is_name("name", &other)?;
    let agent = app.roster.find(&tenant.name, &name)?;
    let turns = agent.past.len();
    let at = at.unwrap_or(turns);
    if at > turns {
        return Err(Refusal::field(
            "at",
            format!("the agent has {turns} turns; expected at most this number"),
        ));
    }
    let forked = agent.fork(at);
    if !app.roster.add(&tenant.name, &other, forked.clone())? {
        return Err(Refusal::conflict(format!("the agent `{other}` already exists")));
    }
    Ok((StatusCode::CREATED, Json(words::described(&other, &forked))))
}

/// `POST /v1/agents/{name}/prewarm`: brings an agent's memory into RAM, from disk or by reading the
/// conversation.
///
/// That needs a prompt, so the conversation is read with an empty message after it. The memory then also
/// contains the beginning of that message and the markup that a reply begins with, about ten tokens. The next
/// turn differs from it where its message begins; it goes back there and continues. So it reports `diverge`,
/// and reads nothing twice, or less than a block if one was sealed just there. A memory that is in RAM
/// already is left as it is.
pub(super) async fn prewarm(
    State(app): Shared,
    AuthTenant(tenant): AuthTenant,
    Path(name): Path<String>,
) -> Result<Json<Value>, Refusal> {
    let held = app.roster.hold(&tenant.name, &name, app.timeout).await?;
    let agent = &held.agent;
    let (model, key) = (agent.definition.model.clone(), key(&tenant, agent));
    let served = app.models.get(&model).await?;
    served.engine().hint_next_use(&key, 0);
    let mut known = status(served.engine(), &key).await?;
    if known.as_ref().is_none_or(|status| status.tokens_in_memory < status.tokens) {
        let subject = AskSubject::Kept {
            conversation: agent.conversation(""),
            memory: agent.memory.clone(),
            parent: agent.parent.clone(),
        };
        let settings = AnswerSettings { max_tokens: Some(0), next_use: Some(0), ..AnswerSettings::new(0) };
        let ask = Ask { route: "/v1/agents/{name}/prewarm", tenant, model, subject, settings, n: 1 };
        ask.admit(&app).await?.play(None).await?;
        known = status(served.engine(), &key).await?;
    }
    Ok(Json(json!({ "name": name, "memory": words::memory(known.as_ref()) })))
}

/// `POST /v1/agents/{name}/pin`: the memory of a pinned agent always counts as needed next, so that others
/// are evicted from RAM before it.
pub(super) async fn pin(
    State(app): Shared,
    AuthTenant(tenant): AuthTenant,
    Path(name): Path<String>,
    bytes: Bytes,
) -> Result<Json<Value>, Refusal> {
    let Pin { pinned } = body::read(&bytes)?;
    let agent = app.roster.pin(&tenant.name, &name, pinned)?;
    if let Some(served) = open(&app, &agent).filter(|_| pinned) {
        served.engine().hint_next_use(&key(&tenant, &agent), 0);
    }
    Ok(Json(words::listed(&name, &agent)))
}

/// The engine's key of an agent's memory.
pub(super) fn key(tenant: &Tenant, agent: &NamedAgent) -> SessionKey {
    sessions::key(&tenant.name, &agent.definition.model, &agent.memory)
}

/// An agent's model, if it is open: describing an agent opens nothing.
fn open(app: &App, agent: &NamedAgent) -> Option<Arc<Served>> {
    app.models.at_hand().into_iter().find(|served| served.name == agent.definition.model)
}

/// What an engine knows of a memory.
async fn status(engine: &Engine, key: &SessionKey) -> Result<Option<SessionStatus>, Refusal> {
    let known = engine.status().await?.sessions;
    Ok(known.into_iter().find(|status| status.key == *key))
}

/// Removes an agent's memory. Memories of a model that is no longer served can't be removed here; use
/// `greenroom cache`.
async fn remove_memory(app: &Arc<App>, tenant: &Tenant, agent: &NamedAgent) -> Result<(), Refusal> {
    let model = &agent.definition.model;
    if !app.models.names().any(|name| name == model) {
        return Ok(());
    }
    remove(app.models.get(model).await?.engine(), &key(tenant, agent)).await
}

async fn remove(engine: &Engine, key: &SessionKey) -> Result<(), Refusal> {
    engine.remove(key).await?;
    Ok(())
}

/// Refuses an invalid name. (Names are never used as file names.)
pub(super) fn is_name(field: &str, name: &str) -> Result<(), Refusal> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let fits = !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(is_allowed);
    if fits && !name.starts_with('.') {
        return Ok(());
    }
    Err(Refusal::field(
        field,
        format!(
            "expected a name of 1 to {MAX_NAME} of the characters A–Z, a–z, 0–9, `-`, `_`, `.` that does not \
             begin with a dot"
        ),
    ))
}

/// Refuses what would be too long for a line of the journal.
pub(super) fn fits(field: &str, value: &impl Serialize) -> Result<(), Refusal> {
    let bytes = serde_json::to_vec(value).map_err(|error| Refusal::internal(error.to_string()))?.len();
    if bytes > MAX_BYTES {
        return Err(Refusal::field(field, format!("{bytes} bytes; expected at most {MAX_BYTES}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::is_name;

    #[test]
    fn a_name_is_short_and_plain() {
        for name in ["a", "ada_2.x-Y", "n".repeat(128).as_str()] {
            assert!(is_name("name", name).is_ok(), "{name}");
        }
        for name in ["", ".", "..", ".ada", "a b", "a/b", "ä", "a\n", "a?b", "n".repeat(129).as_str()] {
            assert_eq!(is_name("name", name).unwrap_err().status(), 400, "{name}");
        }
    }
}
