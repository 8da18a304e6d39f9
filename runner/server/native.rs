//! llama.cpp's own completion of a text or token ids, `/completion`, and of code around a gap, `/infill`.

use super::answer::CompletedReply;
use super::ask::{AnswerSettings, Ask, AskSubject, ReplyPiece, scope};
use super::controls::controls;
use super::error::Refusal;
use super::openai::{explained, warn};
use super::stream::{EventEncoder, Frame, respond};
use super::{App, AuthTenant, Shared, body};
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use greenroom_engine::{MAX_TOP_LOGPROBS, Prompt, StopReason, TokenLogprob};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// Unsupported fields that would change the reply, or what is reported of it.
const UNSUPPORTED: [&str; 3] = ["post_sampling_probs", "image_data", "multimodal_data"];

/// The routes.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/completion", post(complete))
        .route("/infill", post(infill))
        .route("/v1/rerank", post(rerank))
}

#[derive(Deserialize)]
struct CompletionBody {
    model: String,
    #[serde(default)]
    prompt: Value,
    /// Number of alternatives whose log-probabilities are returned with each token's.
    #[serde(default)]
    n_probs: usize,
    #[serde(default)]
    return_tokens: bool,
    /// False: nothing of an earlier memory is used.
    #[serde(default = "yes")]
    cache_prompt: bool,
    stream: Option<bool>,
    /// Fields of the answer, all others are left out; `a/b` is the field `b` of `a`.
    #[serde(default)]
    response_fields: Vec<String>,
    #[serde(default)]
    greenroom: bool,
    // Of `/infill`.
    #[serde(default)]
    input_prefix: String,
    #[serde(default)]
    input_suffix: String,
    #[serde(default)]
    input_extra: Vec<ExtraFile>,
}

/// Another file that code around a gap may use.
#[derive(Deserialize)]
struct ExtraFile {
    filename: Option<String>,
    text: String,
}

/// `POST /completion`
async fn complete(
    State(app): Shared,
    AuthTenant(tenant): AuthTenant,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Response, Refusal> {
    let (body, settings) = read(&app, &bytes)?;
    let served = app.models.get(&body.model).await?;
    // A list of texts and ids is one prompt.
    let piece = |piece: &Value| match piece {
        Value::String(text) => Ok(served.engine().encode(text, true)?),
        piece => piece.as_u64().and_then(|id| u32::try_from(id).ok()).map(|id| vec![id]).ok_or_else(|| {
            Refusal::field("prompt", format!("`prompt` has {piece}; expected texts and token ids"))
        }),
    };
    let prompt = match &body.prompt {
        Value::String(text) => Prompt::Text(text.clone()),
        Value::Array(pieces) => {
            let ids: Vec<Vec<u32>> = pieces.iter().map(piece).collect::<Result<_, _>>()?;
            Prompt::Ids(ids.concat().into())
        }
        _ => {
            return Err(Refusal::field(
                "prompt",
                "`prompt` is missing: a text, or a list of texts and token ids",
            ));
        }
    };
    answer(&app, "/completion", (tenant, &headers), (prompt, settings), &body).await
}

/// `POST /infill`
async fn infill(
    State(app): Shared,
    AuthTenant(tenant): AuthTenant,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Response, Refusal> {
    let (body, settings) = read(&app, &bytes)?;
    let served = app.models.get(&body.model).await?;
    let others = body.input_extra.iter();
    let others: Vec<(&str, &str)> =
        others.map(|file| (file.filename.as_deref().unwrap_or("other"), file.text.as_str())).collect();
    let begun = body.prompt.as_str().unwrap_or_default();
    let around = (body.input_prefix.as_str(), body.input_suffix.as_str());
    let ids = served.engine().prompter().infill(around, begun, &others)?;
    let Some(ids) = ids else {
        let found =
            format!("the model `{}` has no tokens for code around a gap; use /completion", body.model);
        return Err(Refusal::field("model", found));
    };
    answer(&app, "/infill", (tenant, &headers), (Prompt::Ids(ids.into()), settings), &body).await
}

/// `POST /v1/rerank`
async fn rerank() -> Refusal {
    Refusal::unsupported("reranking is not supported: these models generate text")
}

fn read(app: &App, bytes: &[u8]) -> Result<(CompletionBody, AnswerSettings), Refusal> {
    let value = body::with_model(bytes, &app.models)?;
    body::refuse(&value, &UNSUPPORTED)?;
    let settings = controls(&value)?;
    let body: CompletionBody = body::of_value(value)?;
    let logprobs = (body.n_probs > 0).then_some(body.n_probs.min(MAX_TOP_LOGPROBS));
    let settings = AnswerSettings { logprobs, cold: !body.cache_prompt, ..settings };
    Ok((body, settings))
}

async fn answer(
    app: &Arc<App>,
    route: &'static str,
    (tenant, headers): (Arc<super::tenants::Tenant>, &HeaderMap),
    (prompt, settings): (Prompt, AnswerSettings),
    body: &CompletionBody,
) -> Result<Response, Refusal> {
    let mut reply = NativeReply {
        model: body.model.clone(),
        prompt: match &prompt {
            Prompt::Text(text) => text.clone(),
            _ => String::new(),
        },
        settings: settings.clone(),
        gives_tokens: body.return_tokens,
        explains: body.greenroom,
        fields: body.response_fields.clone(),
        n_prompt: 0,
    };
    let subject = AskSubject::Raw(prompt, scope(None, headers));
    let ask = Ask { route, tenant, model: body.model.clone(), subject, settings, n: 1 };
    let admitted = ask.admit(app).await?;
    reply.n_prompt = admitted.prompt_tokens();
    if body.stream.unwrap_or(false) {
        return Ok(respond(admitted, reply));
    }
    let answers = admitted.play(None).await?;
    let answer = answers.first().ok_or_else(|| Refusal::internal("the request ended without an answer"))?;
    Ok(Json(reply.whole(answer)).into_response())
}

/// An answer in llama.cpp's form.
struct NativeReply {
    model: String,
    prompt: String,
    settings: AnswerSettings,
    gives_tokens: bool,
    explains: bool,
    fields: Vec<String>,
    n_prompt: usize,
}

impl NativeReply {
    fn whole(&self, answer: &CompletedReply) -> Value {
        let mut whole = self.last(answer);
        whole["content"] = json!(answer.completion.text);
        if self.gives_tokens {
            whole["tokens"] = json!(answer.completion.ids);
        }
        if self.settings.logprobs.is_some() {
            whole["completion_probabilities"] = probabilities(&answer.completion.logprobs);
        }
        self.only_asked(whole)
    }

    /// The fields that were asked for.
    fn only_asked(&self, answer: Value) -> Value {
        if self.fields.is_empty() {
            return answer;
        }
        let field = |path: &String| {
            let value = answer.pointer(&format!("/{path}"))?;
            Some((path.clone(), value.clone()))
        };
        self.fields.iter().filter_map(field).collect::<serde_json::Map<_, _>>().into()
    }

    /// The last part: what the reply came to.
    fn last(&self, answer: &CompletedReply) -> Value {
        let completion = &answer.completion;
        let (usage, sampling) = (&completion.usage, &self.settings.sampling);
        let (kind, word) = match completion.stop {
            StopReason::Length | StopReason::Sentence => ("limit", ""),
            StopReason::StopString => ("word", completion.stop_string.as_deref().unwrap_or_default()),
            _ => ("eos", ""),
        };
        let (n, said) = (answer.prompt_tokens(), answer.n_tokens());
        let (read_ms, said_ms) = (usage.ttft_ms, answer.said_ms());
        let a_second = |n: usize, ms: f64| if ms > 0.0 { n as f64 / ms * 1e3 } else { 0.0 };
        let a_token = |ms: f64, n: usize| if n > 0 { ms / n as f64 } else { 0.0 };
        let mut last = json!({
            "index": 0,
            "content": "",
            "tokens": [],
            "id_slot": 0,
            "stop": true,
            "model": self.model,
            "tokens_predicted": said,
            "tokens_evaluated": n,
            "generation_settings": {
                "seed": answer.seed,
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
                "min_p": sampling.min_p,
                "repeat_penalty": sampling.repetition_penalty,
                "frequency_penalty": sampling.frequency_penalty,
                "presence_penalty": sampling.presence_penalty,
                "n_predict": self.settings.max_tokens.map_or(json!(-1), |n| json!(n)),
                "stop": self.settings.stop,
                "n_probs": self.settings.logprobs.unwrap_or(0),
            },
            "prompt": self.prompt,
            "has_new_line": completion.text.contains('\n'),
            "truncated": false,
            "stop_type": kind,
            "stopping_word": word,
            "tokens_cached": n + said,
            "timings": {
                "cache_n": usage.reused,
                "prompt_n": n - usage.reused,
                "prompt_ms": read_ms,
                "prompt_per_token_ms": a_token(read_ms, n - usage.reused),
                "prompt_per_second": a_second(n - usage.reused, read_ms),
                "predicted_n": said,
                "predicted_ms": said_ms,
                "predicted_per_token_ms": a_token(said_ms, said),
                "predicted_per_second": a_second(said, said_ms),
            },
        });
        if self.explains {
            last["greenroom"] = explained(answer);
        }
        warn(&mut last, answer);
        last
    }

    fn part(&self, content: &str) -> Value {
        json!({
            "index": 0, "content": content, "tokens": [], "stop": false, "id_slot": 0,
            "tokens_evaluated": self.n_prompt,
        })
    }
}

impl EventEncoder for NativeReply {
    fn begin(&mut self) -> Vec<Frame> {
        Vec::new()
    }

    fn piece(&mut self, _: usize, piece: ReplyPiece) -> Vec<Frame> {
        let part = match piece {
            ReplyPiece::Thought(text) | ReplyPiece::Text(text) => self.part(&text),
            ReplyPiece::Logprobs(tokens) => {
                let mut part = self.part("");
                part["completion_probabilities"] = probabilities(&tokens);
                part
            }
            ReplyPiece::Ended(answer) => self.only_asked(self.last(&answer)),
            // A prompt without a chat template has no tools.
            ReplyPiece::Begun | ReplyPiece::Called(_) | ReplyPiece::Arguments(_) => return Vec::new(),
        };
        vec![Frame::data(&part)]
    }

    fn end(&mut self) -> Vec<Frame> {
        Vec::new()
    }

    fn fail(&mut self, refusal: &Refusal) -> Vec<Frame> {
        vec![Frame::data(&refusal.openai())]
    }
}

/// Tokens with their log-probabilities.
fn probabilities(tokens: &[TokenLogprob]) -> Value {
    let one = |id: u32, bytes: &[u8], logprob: f32| json!({ "id": id, "token": String::from_utf8_lossy(bytes), "bytes": bytes, "logprob": logprob });
    let tokens = tokens.iter().map(|token| {
        let mut described = one(token.id, &token.bytes, token.logprob);
        described["top_logprobs"] =
            token.top.iter().map(|top| one(top.id, &top.bytes, top.logprob)).collect();
        described
    });
    tokens.collect()
}

fn yes() -> bool {
    true
}
