//! Errors that are returned instead of an answer, in each API's format.

use axum::Json;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use greenroom_engine::{Error, ErrorKind, Remedy};
use serde_json::{Value, json};
use std::time::Duration;

/// The reason why a request is not answered.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    message: String,
    /// The field at fault.
    param: Option<String>,
    code: Option<&'static str>,
    retry_after: Option<Duration>,
}

impl Refusal {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None, retry_after: None }
    }

    /// A field is wrong, or asks for what is not supported.
    pub(super) fn field(param: &str, message: impl Into<String>) -> Self {
        Self { param: Some(param.to_string()), ..Self::new(StatusCode::BAD_REQUEST, message) }
    }

    /// The request can't be read, or makes no sense as a whole.
    pub(super) fn request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// No key, or an unknown one.
    pub(super) fn unauthorized(message: impl Into<String>) -> Self {
        Self { code: Some("invalid_api_key"), ..Self::new(StatusCode::UNAUTHORIZED, message) }
    }

    pub(super) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, message)
    }

    /// A prompt that is as long as the context, or longer.
    pub(super) fn too_long(tokens: usize, context: usize) -> Self {
        let message =
            format!("the prompt has {tokens} tokens; the model's context is {context}, including the reply");
        Self { code: Some("context_length_exceeded"), ..Self::field("messages", message) }
    }

    /// A body beyond the limit.
    pub(super) fn too_large(max_body: usize) -> Self {
        let message = format!("the body is larger than {max_body} bytes (`--max-body`)");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    }

    /// The queue is full, or a rate limit is used up.
    pub(super) fn too_many(message: impl Into<String>, retry_after: Duration) -> Self {
        let refusal = Self::new(StatusCode::TOO_MANY_REQUESTS, message);
        Self { code: Some("rate_limit_exceeded"), retry_after: Some(retry_after), ..refusal }
    }

    /// The deadline has passed.
    pub(super) fn timed_out(limit: Duration) -> Self {
        let message = format!("not finished within {} s (`--timeout`)", limit.as_secs());
        Self { code: Some("timeout"), ..Self::new(StatusCode::GATEWAY_TIMEOUT, message) }
    }

    /// The server is shutting down.
    pub(super) fn ending() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down")
    }

    /// A fault of the server.
    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// Something that exists already, or is in use.
    pub(super) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, message)
    }

    /// What this server does not do.
    pub(super) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, message)
    }

    pub(super) fn no_model(message: impl Into<String>) -> Self {
        let refusal = Self::missing("model", message);
        Self { code: Some("model_not_found"), ..refusal }
    }

    /// A thing of that name does not exist.
    pub(super) fn missing(param: &str, message: impl Into<String>) -> Self {
        Self { param: Some(param.to_string()), ..Self::new(StatusCode::NOT_FOUND, message) }
    }

    pub(super) fn no_route(method: &Method, path: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("{method} {path} does not exist"))
    }

    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    pub(super) fn message(&self) -> &str {
        &self.message
    }

    /// In OpenAI's form.
    pub(super) fn openai(&self) -> Value {
        let kind = match self.status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        json!({ "error": { "message": self.message, "type": kind, "param": self.param, "code": self.code } })
    }

    /// In Anthropic's form.
    pub(super) fn anthropic(&self) -> Value {
        let kind = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            StatusCode::GATEWAY_TIMEOUT => "timeout_error",
            status if status.is_server_error() => "api_error",
            _ => "invalid_request_error",
        };
        json!({ "type": "error", "error": { "type": kind, "message": self.message } })
    }

    /// In Ollama's form.
    pub(super) fn ollama(&self) -> Value {
        json!({ "error": self.message })
    }

    fn respond(&self, body: Value) -> Response {
        let mut response = (self.status, Json(body)).into_response();
        if let Some(delay) = self.retry_after {
            let seconds = HeaderValue::from(delay.as_secs_f64().ceil().max(1.0) as u64);
            response.headers_mut().insert(RETRY_AFTER, seconds);
        }
        response
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match (error.kind(), error.remedy()) {
            (ErrorKind::Request, Some(Remedy::ShorterReply | Remedy::ShorterOptions)) => {
                Self { code: Some("context_length_exceeded"), ..Self::field("messages", message) }
            }
            (ErrorKind::Request, _) => Self::request(message),
            (ErrorKind::Closed, _) => Self::ending(),
            (ErrorKind::InUse, _) => Self::conflict(message),
            _ => Self::internal(message),
        }
    }
}

impl IntoResponse for Refusal {
    /// In OpenAI's form; a layer over Anthropic's paths converts it to theirs ([`in_anthropics_form`]).
    fn into_response(self) -> Response {
        let mut response = self.respond(self.openai());
        response.extensions_mut().insert(self);
        response
    }
}

/// Converts a refusal to Ollama's form.
pub(super) async fn in_ollamas_form(response: Response) -> Response {
    match response.extensions().get::<Refusal>() {
        Some(refusal) => refusal.respond(refusal.ollama()),
        None => response,
    }
}

/// Converts a refusal to Anthropic's form.
pub(super) async fn in_anthropics_form(response: Response) -> Response {
    match response.extensions().get::<Refusal>() {
        Some(refusal) => refusal.respond(refusal.anthropic()),
        None => response,
    }
}
