//! The ways to a server.

use super::http::HttpTransport;
use super::messages::Failure;
use super::process::ProcessTransport;
use serde_json::Value;
use tokio::task::JoinHandle;
use ureq::http::HeaderValue;

/// The way to a server.
pub(super) enum Transport {
    /// The standard streams of a program.
    Process(Box<ProcessTransport>),
    /// Requests to a URL.
    Http(HttpTransport),
}

impl Transport {
    /// Sends a request with this number, and waits for its result.
    pub(super) async fn request(&self, id: u64, message: Value) -> Result<Value, Failure> {
        match self {
            Self::Process(process) => process.request(id, &message).await,
            Self::Http(http) => http.request(id, message).await,
        }
    }

    /// Sends a message that has no response.
    pub(super) async fn notify(&self, message: Value) -> Result<(), Failure> {
        match self {
            Self::Process(process) => process.notify(&message),
            Self::Http(http) => http.notify(message).await,
        }
    }

    /// Notes the version of the protocol that was agreed on.
    pub(super) fn agree_on(&self, version: &str) {
        if let Self::Http(http) = self {
            http.agree_on(version);
        }
    }

    /// The session's id, if there is one.
    pub(super) fn session(&self) -> Option<HeaderValue> {
        match self {
            Self::Process(_) => None,
            Self::Http(http) => http.session_id(),
        }
    }

    /// True if something that the server said since the last call of this was not UTF-8.
    pub(super) fn was_odd(&self) -> bool {
        match self {
            Self::Process(process) => process.was_odd(),
            Self::Http(http) => http.was_odd(),
        }
    }

    /// What else a server wrote, as the end of a reason.
    pub(super) fn stray(&self) -> String {
        match self {
            Self::Process(process) => process.stray(),
            Self::Http(_) => String::new(),
        }
    }

    /// Ends the session, if there is one.
    pub(super) fn close(&self) -> Option<JoinHandle<()>> {
        match self {
            Self::Process(_) => None,
            Self::Http(http) => http.close(),
        }
    }
}
