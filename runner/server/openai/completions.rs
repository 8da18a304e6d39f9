//! Completions of texts and token ids, without a chat template. Several prompts are answered one after
//! another.

use super::super::ask::{AnswerSettings, Ask, AskSubject, PieceSender, fresh_id, random_seed, scope};
use super::super::controls::controls;
use super::super::error::Refusal;
use super::super::models::now;
use super::super::stream::respond_by;
use super::super::{App, AuthTenant, Shared, body};
use super::prompts::prompts;
use super::text_completion::TextCompletion;
use super::words::StreamOptions;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use greenroom_engine::Prompt;
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;

/// Maximum number of replies to one prompt.
const MAX_REPLIES: usize = 16;
/// Maximum number of prompts in one request.
const MAX_PROMPTS: usize = 64;
/// Maximum number of alternatives returned for a token.
const MAX_LOGPROBS: usize = 5;
/// Default maximum number of tokens in a reply.
const DEFAULT_MAX_TOKENS: usize = 16;

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct CompletionsBody {
    model: String,
    prompt: Value,
    n: Option<usize>,
    logprobs: Option<usize>,
    echo: Option<bool>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    prompt_cache_key: Option<String>,
    /// An extension: reports how each prompt matched the memory.
    #[serde(default)]
    greenroom: bool,
    /// vLLM's: returns the ids of each reply.
    return_token_ids: Option<bool>,
}

/// `POST /v1/completions`
pub(super) async fn complete(
    State(app): Shared,
    AuthTenant(tenant): AuthTenant,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Response, Refusal> {
    let value = body::with_model(&bytes, &app.models)?;
    let (mut controls, is_seeded) = (controls(&value)?, !value["seed"].is_null());
    if ["max_tokens", "n_predict"].iter().all(|name| value[*name].is_null()) {
        controls.max_tokens = Some(DEFAULT_MAX_TOKENS);
    }
    let mut body: CompletionsBody = body::of_value(value)?;
    body.check()?;
    let prompts = prompts(&body.prompt, "prompt", MAX_PROMPTS)?;
    let echoes = body.echo.unwrap_or(false);
    let echoed = if echoes { texts(&app, &body.model, &prompts).await? } else { Vec::new() };
    let mut completion = body.answer(echoed);
    let (settings, name) = (body.settings(controls), scope(body.prompt_cache_key.take(), &headers));
    let asks = prompts.into_iter().map(|prompt| {
        let mut settings = settings.clone();
        if !is_seeded {
            settings.sampling.seed = random_seed();
        }
        let subject = AskSubject::Raw(prompt, name.clone());
        let (tenant, model) = (tenant.clone(), body.model.clone());
        Ask { route: "/v1/completions", tenant, model, subject, settings, n: completion.n }
    });
    let asks = asks.collect::<Vec<Ask>>();
    let limit = app.timeout * u32::try_from(asks.len()).unwrap_or(1);
    let mut asks = asks.into_iter();
    let Some(first) = asks.next() else { return Err(Refusal::field("prompt", "`prompt` is empty")) };
    let first = first.admit(&app).await?;
    if body.stream.unwrap_or(false) {
        let play = move |pieces: PieceSender| async move {
            first.play(Some(&pieces)).await?;
            for ask in asks {
                ask.admit(&app).await?.play(Some(&pieces)).await?;
            }
            Ok::<(), Refusal>(())
        };
        return Ok(respond_by(limit, play, completion));
    }
    completion.answers = first.play(None).await?;
    for ask in asks {
        completion.answers.extend(ask.admit(&app).await?.play(None).await?);
    }
    Ok(Json(completion.whole()).into_response())
}

/// The texts of prompts.
async fn texts(app: &Arc<App>, model: &str, prompts: &[Prompt]) -> Result<Vec<String>, Refusal> {
    let served = app.models.get(model).await?;
    let text = |prompt: &Prompt| match prompt {
        Prompt::Text(text) => text.clone(),
        Prompt::Ids(ids) => served.engine().decode(ids),
        _ => String::new(),
    };
    Ok(prompts.iter().map(text).collect())
}

impl CompletionsBody {
    fn check(&self) -> Result<(), Refusal> {
        let n = self.n.unwrap_or(1);
        if n == 0 || n > MAX_REPLIES {
            return Err(Refusal::field("n", format!("{n} replies: expected 1 to {MAX_REPLIES}")));
        }
        if let Some(n) = self.logprobs.filter(|n| *n > MAX_LOGPROBS) {
            return Err(Refusal::field(
                "logprobs",
                format!("`logprobs` is {n}; expected at most {MAX_LOGPROBS}"),
            ));
        }
        if self.echo.unwrap_or(false) && self.logprobs.is_some() {
            let message = "`echo` with `logprobs` is not supported: log-probabilities cover only the reply";
            return Err(Refusal::field("echo", message));
        }
        Ok(())
    }

    /// The settings of all prompts; each gets a separate seed if none is given.
    fn settings(&self, controls: AnswerSettings) -> AnswerSettings {
        AnswerSettings { logprobs: self.logprobs, ..controls }
    }

    /// The answer, before any text.
    fn answer(&self, echoed: Vec<String>) -> TextCompletion {
        TextCompletion {
            id: fresh_id("cmpl-"),
            created: now(),
            model: self.model.clone(),
            n: self.n.unwrap_or(1),
            echoed,
            logprobs: self.logprobs,
            explains: self.greenroom,
            tells_ids: self.return_token_ids.unwrap_or(false),
            include_usage: StreamOptions::include_usage(self.stream_options.as_ref()),
            answers: Vec::new(),
            offset: 0,
        }
    }
}
