//! Turns: an agent hears a message, and its answer becomes part of its past.
//!
//! The answer is recorded before it is confirmed. If the client disconnects before that, or the turn fails,
//! the agent is unchanged; the engine need not read again what it has read by then.

use super::super::answer::CompletedReply;
use super::super::ask::{AnswerSettings, Ask, AskSubject, MAX_OPTIONS, ReplyPiece, random_seed};
use super::super::error::Refusal;
use super::super::stream::{EventEncoder, Frame, respond};
use super::super::{App, AuthTenant, Shared, body};
use super::agent::{NamedAgent, PastTurn};
use super::roster::HeldAgent;
use super::words;
use crate::sampling::resolved;
use crate::scenario::Hints;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use greenroom_engine::{Constraint, Grammar, ToolChoice};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct TurnBody {
    message: Option<String>,
    tool_results: Option<String>,
    max_tokens: Option<usize>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    seed: Option<u64>,
    stop: Option<Vec<String>>,
    reply: Option<FormBody>,
    grammar: Option<GrammarText>,
    choices: Option<Vec<String>>,
    #[serde(default)]
    stream: bool,
}

/// The form of a reply.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FormBody {
    schema: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum GrammarText {
    Lark(String),
    Regex(String),
}

/// The constraint that gives a reply its form.
enum ReplyConstraint {
    Free,
    Grammar(Grammar),
    OneOf(Vec<String>),
}

/// A turn as it is reported.
struct TurnReporter {
    app: Arc<App>,
    name: String,
    held: HeldAgent,
    message: String,
    options: Vec<String>,
}

/// `POST /v1/agents/{name}/turns`
pub(super) async fn turn(
    State(app): Shared,
    AuthTenant(tenant): AuthTenant,
    Path(name): Path<String>,
    bytes: Bytes,
) -> Result<Response, Refusal> {
    let body: TurnBody = body::read(&bytes)?;
    let held = app.roster.hold(&tenant.name, &name, app.timeout).await?;
    let (streams, message, settings) =
        (body.stream, body.heard_text(&held.agent)?, body.settings(&held.agent)?);
    let options = match &settings.constraint {
        Some(Constraint::OneOf(options)) => options.clone(),
        _ => Vec::new(),
    };
    let agent = &held.agent;
    let subject = AskSubject::Kept {
        conversation: agent.conversation(&message),
        memory: agent.memory.clone(),
        parent: agent.parent.clone(),
    };
    let model = agent.definition.model.clone();
    let ask = Ask { route: "/v1/agents/{name}/turns", tenant, model, subject, settings, n: 1 };
    let admitted = ask.admit(&app).await?;
    let telling = TurnReporter { app, name, held, message, options };
    if streams {
        return Ok(respond(admitted, telling));
    }
    let answers = admitted.play(None).await?;
    let answer = answers.first().ok_or_else(|| Refusal::internal("the engine returned no answer"))?;
    Ok(Json(telling.whole(answer)).into_response())
}

impl TurnBody {
    /// What the agent reads.
    fn heard_text(&self, agent: &NamedAgent) -> Result<String, Refusal> {
        let heard = match (&self.message, &self.tool_results) {
            (Some(message), None) => message,
            (None, Some(result)) if agent.awaits_result() => result,
            (None, Some(_)) => {
                return Err(Refusal::field("tool_results", "the agent's last reply was not a tool call"));
            }
            (Some(_), Some(_)) => {
                return Err(Refusal::field("tool_results", "expected `message` or `tool_results`, not both"));
            }
            (None, None) => return Err(Refusal::field("message", "`message` is missing")),
        };
        super::api::fits("message", heard)?;
        Ok(heard.clone())
    }

    fn settings(&self, agent: &NamedAgent) -> Result<AnswerSettings, Refusal> {
        let NamedAgent { definition, is_pinned, .. } = agent;
        let max_tokens = self.max_tokens.or(definition.max_tokens);
        if max_tokens == Some(0) {
            return Err(Refusal::field("max_tokens", "a reply needs at least 1 token"));
        }
        let seed = self.seed.unwrap_or_else(random_seed);
        let bounds = self.bounds()?;
        let calls = match (&definition.tools, &bounds) {
            (Some(_), ReplyConstraint::Free) => ToolChoice::Allowed,
            _ => ToolChoice::Never,
        };
        let (grammar, constraint) = match bounds {
            ReplyConstraint::Free => (None, None),
            ReplyConstraint::Grammar(grammar) => (Some(grammar), None),
            ReplyConstraint::OneOf(options) => (None, Some(Constraint::OneOf(options))),
        };
        let given = Hints {
            temperature: self.temperature.or(definition.temperature),
            top_p: self.top_p.or(definition.top_p),
            ..Hints::default()
        };
        let defaults = AnswerSettings::new(seed);
        Ok(AnswerSettings {
            sampling: resolved(&given, &defaults.sampling),
            max_tokens,
            stop: self.stop.clone().unwrap_or_else(|| definition.stop.clone()),
            constraint,
            grammar,
            calls,
            next_use: is_pinned.then_some(0),
            ..defaults
        })
    }

    fn bounds(&self) -> Result<ReplyConstraint, Refusal> {
        let (place, grammar) = match (&self.reply, &self.grammar, &self.choices) {
            (None, None, None) => return Ok(ReplyConstraint::Free),
            (Some(FormBody { schema }), None, None) => ("reply.schema", Grammar::json_schema(schema)),
            (None, Some(GrammarText::Lark(text)), None) => ("grammar.lark", Grammar::Lark(text.clone())),
            (None, Some(GrammarText::Regex(text)), None) => ("grammar.regex", Grammar::Regex(text.clone())),
            (None, None, Some(options)) => {
                if options.is_empty() || options.len() > MAX_OPTIONS {
                    let n = options.len();
                    return Err(Refusal::field(
                        "choices",
                        format!("{n} options: expected 1 to {MAX_OPTIONS}"),
                    ));
                }
                return Ok(ReplyConstraint::OneOf(options.clone()));
            }
            _ => return Err(Refusal::request("expected at most one of `reply`, `grammar` and `choices`")),
        };
        grammar.check().map_err(|error| Refusal::field(place, format!("{error}")))?;
        Ok(ReplyConstraint::Grammar(grammar))
    }
}

impl TurnReporter {
    /// Records the turn; returns the whole answer.
    fn whole(&self, answer: &CompletedReply) -> Value {
        let turn = self.app.roster.push_turn(&self.held, PastTurn::new(self.message.clone(), answer));
        words::answered(&self.name, turn, answer, &self.options)
    }
}

impl EventEncoder for TurnReporter {
    fn begin(&mut self) -> Vec<Frame> {
        Vec::new()
    }

    fn piece(&mut self, _: usize, piece: ReplyPiece) -> Vec<Frame> {
        match piece {
            ReplyPiece::Begun | ReplyPiece::Logprobs(_) => Vec::new(),
            ReplyPiece::Thought(text) => vec![Frame::named("thought", &json!({ "text": text }))],
            ReplyPiece::Text(text) => vec![Frame::named("text", &json!({ "text": text }))],
            ReplyPiece::Called(tool) => vec![Frame::named("call", &json!({ "tool": tool }))],
            ReplyPiece::Arguments(text) => vec![Frame::named("arguments", &json!({ "text": text }))],
            ReplyPiece::Ended(answer) => vec![Frame::named("done", &self.whole(&answer))],
        }
    }

    fn end(&mut self) -> Vec<Frame> {
        Vec::new()
    }

    fn fail(&mut self, refusal: &Refusal) -> Vec<Frame> {
        vec![Frame::named("error", &refusal.openai())]
    }
}
