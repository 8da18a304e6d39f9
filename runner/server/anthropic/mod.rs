//! Anthropic's API: messages, and how many tokens they are.
//!
//! `messages` and `tools` read the request, `reply` formats the answer. Errors on these routes get
//! Anthropic's format here.

mod messages;
mod reply;
mod tools;

use super::ask::{AnswerSettings, Ask, AskSubject, fresh_id, scope};
use super::controls::controls;
use super::dialogue::Dialogue;
use super::error::{Refusal, in_anthropics_form};
use super::stream::respond;
use super::thinking::ThinkingGiven;
use super::{App, AuthTenant, Shared, body};
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
    /// Required, except for counting. With 0 the prompt is read, without a reply.
    max_tokens: Option<usize>,
    stream: Option<bool>,
    diagnostics: Option<Diagnostics>,
    /// Extension: how the prompt matched the memory.
    #[serde(default)]
    greenroom: bool,
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
        let (tools, left) = tools::tools(self.tools.take().unwrap_or_default())?;
        let calls = tools::calls(self.tool_choice.as_ref(), tools.as_deref())?;
        let lines = messages::lines(self.system.take(), std::mem::take(&mut self.messages))?;
        let mut dialogue = thinking.of(Dialogue::new(lines, tools, "messages")?);
        dialogue.warnings.extend(left);
        Ok((dialogue, calls))
    }

    fn thinking_given(&self) -> Result<ThinkingGiven, Refusal> {
        self.thinking.as_ref().map_or(Ok(ThinkingGiven::default()), Thinking::given)
    }

    /// How it is answered.
    fn settings(&self, calls: ToolChoice, controls: AnswerSettings) -> Result<AnswerSettings, Refusal> {
        if self.max_tokens.is_none() {
            let found = "`max_tokens` is missing: the maximum number of tokens in the reply";
            return Err(Refusal::field("max_tokens", found));
        }
        Ok(AnswerSettings {
            max_tokens: self.max_tokens,
            max_thought_tokens: self.thinking_given()?.limit(),
            calls,
            parallel_tool_calls: self.tool_choice.as_ref().is_some_and(WrittenToolChoice::is_joint),
            ..controls
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
    let value = body::with_model(&bytes, &app.models)?;
    body::refuse(&value, &UNSUPPORTED)?;
    let controls = controls(&value)?;
    let mut body: MessagesBody = body::of_value(value)?;
    let (dialogue, calls) = body.dialogue()?;
    let settings = body.settings(calls, controls)?;
    let mut reply = ReplyContext {
        app: app.clone(),
        tenant: tenant.name.clone(),
        id: fresh_id("msg_"),
        model: body.model.clone(),
        dialogue: dialogue.clone(),
        max_tokens: settings.max_tokens.unwrap_or(usize::MAX),
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
    let mut body: MessagesBody = body::of_value(body::with_model(&bytes, &app.models)?)?;
    let (mut dialogue, _) = body.dialogue()?;
    dialogue.conversation.date = Some(app.today());
    tenant.ask()?;
    let served = app.models.get(&body.model).await?;
    // Long texts take a while to tokenize; other requests are answered meanwhile.
    let counted =
        tokio::task::spawn_blocking(move || served.engine().prompter().prompt_tokens(&dialogue.conversation));
    let tokens = counted.await.map_err(|error| Refusal::internal(error.to_string()))??;
    Ok(Json(json!({ "input_tokens": tokens })))
}
