//! Anthropic's API: messages, and how many tokens they are.
//!
//! `messages` and `tools` read the request, `reply` formats the answer. Errors on these routes get
//! Anthropic's format here.

mod messages;
mod reply;
mod tools;

use super::ask::{AnswerSettings, Ask, AskSubject, fresh_id, random_seed, scope};
use super::dialogue::Dialogue;
use super::error::{Refusal, in_anthropics_form};
use super::openai::schema;
use super::stream::respond;
use super::thinking::ThinkingGiven;
use super::{App, AuthTenant, Shared, body};
use crate::scenario::Hints;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::map_response;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use greenroom_engine::ToolChoice;
use messages::{AnthropicMessage, MessageBlocks};
use reply::{ReplyContext, SentBlocks};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use tools::{AnthropicTool, Thinking, WrittenToolChoice};

/// Unsupported fields that would change the reply.
const UNSUPPORTED: [&str; 3] = ["container", "mcp_servers", "output_format"];

/// A request. `cache_control` may appear anywhere and has no effect, because everything that is read is kept.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct MessagesBody {
    model: String,
    messages: Vec<AnthropicMessage>,
    system: Option<MessageBlocks>,
    tools: Option<Vec<AnthropicTool>>,
    tool_choice: Option<WrittenToolChoice>,
    thinking: Option<Thinking>,
    output_config: Option<OutputConfig>,
    /// Required, except for counting. With 0 the prompt is read, without a reply.
    max_tokens: Option<usize>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<usize>,
    stop_sequences: Option<Vec<String>>,
    stream: Option<bool>,
    diagnostics: Option<Diagnostics>,
    /// Extension: how the prompt matched the memory.
    #[serde(default)]
    greenroom: bool,
    /// Ours: seeds the reply.
    seed: Option<i64>,
}

/// The form of a reply; its effort changes nothing.
#[derive(Deserialize)]
struct OutputConfig {
    format: Option<OutputFormat>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum OutputFormat {
    JsonSchema { schema: Value },
}

#[derive(Deserialize)]
struct Diagnostics {
    /// The message whose prompt this one is compared with.
    previous_message_id: Option<String>,
}

/// The routes of this API.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/messages", post(create))
        .route("/v1/messages/count_tokens", post(count))
        .layer(map_response(in_anthropics_form))
        .layer(map_response(identified))
}

/// Gives each answer an id, which clients show with errors.
async fn identified(mut response: Response) -> Response {
    if let Ok(id) = HeaderValue::try_from(fresh_id("req_")) {
        response.headers_mut().insert("request-id", id);
    }
    response
}

impl MessagesBody {
    /// What is answered, and which calls the reply may make.
    fn dialogue(&mut self) -> Result<(Dialogue, ToolChoice), Refusal> {
        let thinking = self.thinking_given()?;
        let tools = tools::tools(self.tools.take().unwrap_or_default())?;
        let calls = tools::calls(self.tool_choice.as_ref(), tools.as_deref())?;
        let lines = messages::lines(self.system.take(), std::mem::take(&mut self.messages))?;
        Ok((thinking.of(Dialogue::new(lines, tools, "messages")?), calls))
    }

    fn thinking_given(&self) -> Result<ThinkingGiven, Refusal> {
        self.thinking.as_ref().map_or(Ok(ThinkingGiven::default()), Thinking::given)
    }

    /// How it is answered, by a model with a context of `context` tokens.
    ///
    /// Clients ask for tens of thousands of tokens without checking the model. If that is the model's context
    /// or more, the reply may be as long as there is room, and then ends with
    /// `model_context_window_exceeded`.
    fn settings(&mut self, calls: ToolChoice, context: usize) -> Result<AnswerSettings, Refusal> {
        let max_tokens = self.max_tokens.ok_or_else(|| {
            Refusal::field("max_tokens", "`max_tokens` is missing: the maximum number of tokens in the reply")
        })?;
        let grammar = match self.output_config.take().and_then(|config| config.format) {
            None => None,
            Some(OutputFormat::JsonSchema { schema: form }) => {
                Some(schema(&form, "output_config.format.schema")?)
            }
        };
        let seed = self.seed.map_or_else(random_seed, i64::cast_unsigned);
        let Self { temperature, top_p, top_k, .. } = *self;
        let given = Hints { temperature, top_p, top_k, ..Hints::default() };
        Ok(AnswerSettings {
            max_tokens: (max_tokens < context).then_some(max_tokens),
            max_thought_tokens: self.thinking_given()?.limit(),
            stop: self.stop_sequences.take().unwrap_or_default(),
            grammar,
            calls,
            parallel_tool_calls: self.tool_choice.as_ref().is_some_and(WrittenToolChoice::is_joint),
            ..AnswerSettings::sampled(&given, seed)
        })
    }
}

/// `POST /v1/messages`
async fn create(
    State(app): Shared,
    AuthTenant(tenant): AuthTenant,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Response, Refusal> {
    let value = body::value(&bytes)?;
    body::refuse(&value, &UNSUPPORTED)?;
    let mut body: MessagesBody = body::of_value(value)?;
    let (dialogue, calls) = body.dialogue()?;
    let context = app.models.get(&body.model).await?.engine().model().context_length;
    let settings = body.settings(calls, context)?;
    let mut reply = ReplyContext {
        app: app.clone(),
        tenant: tenant.name.clone(),
        id: fresh_id("msg_"),
        model: body.model.clone(),
        dialogue: dialogue.clone(),
        is_bounded: settings.max_tokens.is_some(),
        explains: body.greenroom,
        earlier: body.diagnostics.and_then(|asked| asked.previous_message_id),
        prompt_tokens: 0,
        sent: SentBlocks::default(),
    };
    let subject = AskSubject::Dialogue(Box::new(dialogue), scope(None, &headers));
    let ask = Ask { route: "/v1/messages", tenant, model: body.model, subject, settings, n: 1 };
    let admitted = ask.admit(&app).await?;
    reply.prompt_tokens = admitted.prompt_tokens();
    if body.stream.unwrap_or(false) {
        return Ok(respond(admitted, reply));
    }
    let answers = admitted.play(None).await?;
    let answer = answers.first().ok_or_else(|| Refusal::internal("the request ended without an answer"))?;
    Ok(Json(reply.whole(answer)).into_response())
}

/// `POST /v1/messages/count_tokens`
async fn count(
    State(app): Shared,
    AuthTenant(tenant): AuthTenant,
    bytes: Bytes,
) -> Result<Json<Value>, Refusal> {
    let mut body: MessagesBody = body::read(&bytes)?;
    let (dialogue, _) = body.dialogue()?;
    tenant.ask()?;
    let served = app.models.get(&body.model).await?;
    // Long texts take a while to tokenize; other requests are answered meanwhile.
    let counted =
        tokio::task::spawn_blocking(move || served.engine().prompter().prompt_tokens(&dialogue.conversation));
    let tokens = counted.await.map_err(|error| Refusal::internal(error.to_string()))??;
    Ok(Json(json!({ "input_tokens": tokens })))
}
