//! How likely options are as an agent's reply, without playing a turn.
//!
//! A temporary memory begins with the agent's, reads the message, and weighs the options; then it is removed.
//! The agent is locked meanwhile, so that the ranking comes after earlier turns.

use super::super::ask::{MAX_OPTIONS, random};
use super::super::error::Refusal;
use super::super::live::RequestGuard;
use super::super::sessions;
use super::super::tenants::Tenant;
use super::super::{AuthTenant, Shared, body};
use super::agent::NamedAgent;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use greenroom_engine::{
    Completion, Constraint, Engine, Event, Request, Retention, Sampling, SessionKey, by_length,
};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RankBody {
    message: String,
    options: Vec<String>,
    /// Shares use log-probability divided by length, so that a long text is not unlikely because of its
    /// length alone.
    #[serde(default)]
    by_length: bool,
}

/// A memory that is forgotten when this is dropped.
struct Probe<'a> {
    engine: &'a Engine,
    key: SessionKey,
}

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        self.engine.forget(&self.key);
    }
}

/// `POST /v1/agents/{name}/rank`
pub(super) async fn rank(
    State(app): Shared,
    AuthTenant(tenant): AuthTenant,
    Path(name): Path<String>,
    bytes: Bytes,
) -> Result<Json<Value>, Refusal> {
    let body: RankBody = body::read(&bytes)?;
    let n = body.options.len();
    if !(2..=MAX_OPTIONS).contains(&n) {
        return Err(Refusal::field("options", format!("{n} options: expected 2 to {MAX_OPTIONS}")));
    }
    super::api::fits("message", &body.message)?;
    let held = app.roster.hold(&tenant.name, &name, app.timeout).await?;
    tenant.ask()?;
    let model = &held.agent.definition.model;
    let entry = app.live.enter(&tenant.name, "/v1/agents/{name}/rank", model);
    let served = app.models.get(model).await?;
    let ticket = app.queue.enter(&tenant, true)?;
    let weighs = async {
        let _place = ticket.wait().await?;
        weighed(served.engine(), &entry, &tenant, &held.agent, &body).await
    };
    let ended = tokio::time::timeout(app.timeout, weighs).await;
    let completion = ended.unwrap_or_else(|_| Err(Refusal::timed_out(app.timeout)))?;
    rank_result(&body, &completion).map(Json)
}

async fn weighed(
    engine: &Engine,
    entry: &RequestGuard,
    tenant: &Tenant,
    agent: &NamedAgent,
    body: &RankBody,
) -> Result<Completion, Refusal> {
    let key = |name: &str| sessions::key(&tenant.name, &agent.definition.model, name);
    let probe = Probe { engine, key: key(&format!("{}?rank{:016x}", agent.memory, random())) };
    entry.remembers(&agent.memory);
    let request = Request {
        parent: Some(key(agent.remembers_in())),
        retention: Retention::Ephemeral,
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        constraint: Some(Constraint::OneOf(body.options.clone())),
        meter: Some(tenant.meter()),
        ..Request::new(probe.key.clone(), agent.conversation(&body.message))
    };
    let mut turn = engine.submit(request)?;
    while let Some(event) = turn.next().await {
        match event {
            Event::Done(_) => {
                let completion = *turn.commit().await?;
                entry.ended(&completion);
                return Ok(completion);
            }
            Event::Failed(error) => return Err(error.into()),
            _ => {}
        }
    }
    Err(Refusal::ending())
}

fn rank_result(body: &RankBody, completion: &Completion) -> Result<Value, Refusal> {
    let choice = completion.choice.as_ref();
    let logprobs = &choice.ok_or_else(|| Refusal::internal("the engine returned no options"))?.logprobs;
    let shares = match body.by_length {
        true => shares(&by_length(logprobs, body.options.iter().map(String::as_str))),
        false => shares(logprobs),
    };
    let options = body.options.iter().zip(logprobs).zip(shares);
    let options = options
        .map(|((option, logprob), share)| json!({ "option": option, "logprob": logprob, "share": share }));
    let usage = &completion.usage;
    Ok(json!({
        "options": options.collect::<Vec<_>>(),
        "usage": {
            "prompt_tokens": usage.reused + usage.prefilled + usage.recomputed,
            "cached_tokens": usage.reused,
            "completion_tokens": usage.generated,
        },
    }))
}

/// Softmax at temperature 1.
fn shares(logprobs: &[f32]) -> Vec<f64> {
    let most = logprobs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = logprobs.iter().map(|logprob| libm::exp(f64::from(logprob - most))).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn shares_are_in_proportion_to_probabilities() {
        let shares = super::shares(&[-1000.0, -1000.0 - std::f32::consts::LN_2]);
        assert!((shares[0] - 2.0 / 3.0).abs() < 1e-4 && (shares[1] - 1.0 / 3.0).abs() < 1e-4, "{shares:?}");
    }
}
