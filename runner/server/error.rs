//! What is refused, and how clients are told: in OpenAI's form.

use axum::Json;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use greenroom_engine::{Error, ErrorKind, Remedy};
use serde_json::{Value, json};

/// A request that is not answered.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    message: String,
    /// The field that is wrong.
    param: Option<String>,
    code: Option<&'static str>,
}

impl Refusal {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None }
    }

    /// A field is wrong, or of what is not supported.
    pub(super) fn field(param: &str, message: impl Into<String>) -> Self {
        Self { param: Some(param.to_string()), ..Self::new(StatusCode::BAD_REQUEST, message) }
    }

    /// The body can't be read.
    pub(super) fn body(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(super) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, message)
    }

    /// A conversation is as long as the context, or longer.
    pub(super) fn too_long(tokens: usize, context: usize) -> Self {
        let message = format!(
            "the messages are {tokens} tokens long; the model's context holds {context}, the reply included"
        );
        Self { code: Some("context_length_exceeded"), ..Self::field("messages", message) }
    }

    /// The engine ended a turn without an answer.
    pub(super) fn unanswered() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "the engine is ending")
    }

    pub(super) fn no_model(message: impl Into<String>) -> Self {
        let refusal = Self::new(StatusCode::NOT_FOUND, message);
        Self { param: Some("model".to_string()), code: Some("model_not_found"), ..refusal }
    }

    pub(super) fn not_found(method: &Method, path: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("there is no {method} {path}"))
    }

    /// As clients read it.
    pub(super) fn json(&self) -> Value {
        let kind = if self.status.is_server_error() { "server_error" } else { "invalid_request_error" };
        json!({ "error": { "message": self.message, "type": kind, "param": self.param, "code": self.code } })
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match (error.kind(), error.remedy()) {
            (ErrorKind::Request, Some(Remedy::ShorterReply | Remedy::ShorterOptions)) => {
                let param = Some("messages".to_string());
                Self {
                    param,
                    code: Some("context_length_exceeded"),
                    ..Self::new(StatusCode::BAD_REQUEST, message)
                }
            }
            (ErrorKind::Request, _) => Self::new(StatusCode::BAD_REQUEST, message),
            (ErrorKind::Closed, _) => Self::new(StatusCode::SERVICE_UNAVAILABLE, message),
            _ => Self::new(StatusCode::INTERNAL_SERVER_ERROR, message),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, Json(self.json())).into_response()
    }
}
