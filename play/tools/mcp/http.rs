//! Servers over HTTP ("streamable HTTP"): each message is posted to one URL; the response is JSON or a stream
//! of events.
//!
//! Requests block threads of their own. The values of headers are secrets: they go to this URL alone, so
//! redirects are not followed, and messages repeat none of them.

use super::messages::{self, Failure, Incoming, MAX_MESSAGE};
use super::sse::Events;
use crate::tools::streams::first_line;
use anyhow::{Context as _, anyhow};
use serde_json::Value;
use std::borrow::Cow;
use std::io::{BufReader, ErrorKind, Read as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::{JoinHandle, spawn_blocking};
use ureq::http::{HeaderName, HeaderValue, Response, StatusCode, header};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

static SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
static VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");

/// Time for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Time for the end of a session, which nobody depends on.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time that a request's thread outlives the request, which has the message for what is late.
const GRACE: Duration = Duration::from_secs(1);
/// Bytes of a refusal that are read.
const MAX_REFUSAL: u64 = 64 << 10;
/// Bytes of a value that can be a secret: shorter ones, such as `1`, would be found everywhere.
const MIN_SECRET: usize = 8;

/// A server at a URL.
pub(super) struct HttpTransport(Arc<HttpServer>);

struct HttpServer {
    agent: Agent,
    url: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// Values of headers and their words, longest first.
    secrets: Vec<String>,
    session: Mutex<HttpSession>,
    /// True if something was not UTF-8 since it was last asked.
    is_odd: AtomicBool,
}

/// What is sent with each message after the first.
#[derive(Clone, Default)]
struct HttpSession {
    id: Option<HeaderValue>,
    version: Option<HeaderValue>,
}

impl HttpTransport {
    /// A server, with headers whose values are in the environment.
    ///
    /// # Errors
    /// An environment variable is not set or holds no valid value.
    pub(super) fn new(url: &str, named: &[(String, String)], timeout: Duration) -> anyhow::Result<Self> {
        let (mut headers, mut secrets) = (Vec::new(), Vec::new());
        for (name, variable) in named {
            let secret = secret(name, variable)?;
            let mut value = HeaderValue::from_str(&secret).ok().with_context(|| {
                format!("the environment variable {variable} contains characters that a header can't")
            })?;
            value.set_sensitive(true);
            let name = HeaderName::try_from(name).ok();
            headers.push((name.context("a header has an invalid name")?, value));
            secrets.extend(secret.split_whitespace().map(str::to_string));
            secrets.push(secret);
        }
        secrets.retain(|secret| secret.len() >= MIN_SECRET);
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        // The system's certificates, so that those of a company's proxy count.
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let config = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .max_redirects(0)
            .max_idle_connections(0) // one that a server has closed meanwhile would cost a call
            .timeout_connect(Some(CONNECT_TIMEOUT.min(timeout)))
            .timeout_global(Some(timeout + GRACE));
        Ok(Self(Arc::new(HttpServer {
            agent: config.build().into(),
            url: url.to_string(),
            headers,
            secrets,
            session: Mutex::default(),
            is_odd: AtomicBool::new(false),
        })))
    }

    /// Posts a request, and waits for its result.
    pub(super) async fn request(&self, id: u64, message: Value) -> Result<Value, Failure> {
        let server = self.0.clone();
        blocking(move || {
            let response = server.post(&message)?;
            server.result(id, response)
        })
        .await
    }

    /// Posts a message that has no response.
    pub(super) async fn notify(&self, message: Value) -> Result<(), Failure> {
        let server = self.0.clone();
        blocking(move || server.post(&message).map(drop)).await
    }

    /// Notes the version of the protocol that was agreed on.
    pub(super) fn agree_on(&self, version: &str) {
        self.0.session().version = HeaderValue::from_str(version).ok();
    }

    /// The session's id, if the server gave one.
    pub(super) fn session_id(&self) -> Option<HeaderValue> {
        self.0.session().id.clone()
    }

    /// True if something that the server said since the last call of this was not UTF-8.
    pub(super) fn was_odd(&self) -> bool {
        self.0.is_odd.swap(false, Ordering::Relaxed)
    }

    /// Ends the session, if there is one.
    pub(super) fn close(&self) -> Option<JoinHandle<()>> {
        let session = std::mem::take(&mut *self.0.session());
        session.id.as_ref()?;
        let server = self.0.clone();
        Some(spawn_blocking(move || server.end(&session)))
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    spawn_blocking(work).await.unwrap_or_else(|error| Err(Failure::Broken(error.to_string())))
}

/// The value of a header.
fn secret(name: &str, variable: &str) -> anyhow::Result<String> {
    let secret = std::env::var(variable).ok().map(|secret| secret.trim().to_string());
    secret.filter(|secret| !secret.is_empty()).ok_or_else(|| {
        anyhow!(
            "the value of the header `{name}` is expected in the environment variable {variable}, which is \
             not set"
        )
    })
}

impl HttpServer {
    fn session(&self) -> std::sync::MutexGuard<'_, HttpSession> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts a message, and returns what is not a refusal. The first of a session begins it.
    fn post(&self, message: &Value) -> Result<Response<Body>, Failure> {
        let begins = message["method"] == "initialize";
        let session = if begins { HttpSession::default() } else { self.session().clone() };
        let request = self
            .agent
            .post(&self.url)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json, text/event-stream");
        let request =
            self.sent_with(&session).fold(request, |request, (name, value)| request.header(name, value));
        let response = request.send(message.to_string()).map_err(|error| self.unanswered(error))?;
        let response = self.accepted(response, session.id.is_some())?;
        if begins {
            *self.session() = HttpSession { id: response.headers().get(&SESSION).cloned(), version: None };
        }
        Ok(response)
    }

    fn end(&self, session: &HttpSession) {
        let request = self.agent.delete(&self.url).config().timeout_global(Some(CLOSE_TIMEOUT)).build();
        let request =
            self.sent_with(session).fold(request, |request, (name, value)| request.header(name, value));
        // A server may not let its sessions be ended.
        let _ = request.call();
    }

    fn sent_with<'a>(
        &'a self,
        session: &'a HttpSession,
    ) -> impl Iterator<Item = (&'a HeaderName, &'a HeaderValue)> {
        let of_session = [(&SESSION, &session.id), (&VERSION, &session.version)];
        let of_session = of_session.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        self.headers.iter().map(|(name, value)| (name, value)).chain(of_session)
    }

    fn accepted(&self, mut response: Response<Body>, had_session: bool) -> Result<Response<Body>, Failure> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        if status == StatusCode::NOT_FOUND && had_session {
            return Err(Failure::Expired);
        }
        let url = &self.url;
        if status.is_redirection() {
            let to = response.headers().get(header::LOCATION).and_then(|to| to.to_str().ok());
            let to = to.map(|to| format!(" to `{to}`")).unwrap_or_default();
            return Err(self.broken(&format!(
                "{url} answered {status}{to}; redirects are not followed: give the URL that it leads to"
            )));
        }
        let mut body = Vec::new();
        // What can be read of it is enough.
        let _ = response.body_mut().as_reader().take(MAX_REFUSAL).read_to_end(&mut body);
        let said = refusal(&body).map(|said| format!(": {said}")).unwrap_or_default();
        Err(self.broken(&format!("{url} answered {status}{said}")))
    }

    /// The result of a request, from its response.
    fn result(&self, id: u64, response: Response<Body>) -> Result<Value, Failure> {
        let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind =
            kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim().to_ascii_lowercase();
        match kind.as_str() {
            "application/json" => self.in_json(id, response),
            "text/event-stream" => self.in_events(id, response),
            other => {
                let found =
                    if other.is_empty() { "nothing".into() } else { format!("content of type `{other}`") };
                Err(self.broken(&format!(
                    "{} answered with {found}; expected JSON or a stream of events: check that it is the URL of \
                     a Model Context Protocol server",
                    self.url
                )))
            }
        }
    }

    fn in_json(&self, id: u64, response: Response<Body>) -> Result<Value, Failure> {
        let mut body = Vec::new();
        let mut bounded = response.into_body().into_reader().take(MAX_MESSAGE as u64 + 1);
        bounded.read_to_end(&mut body).map_err(|error| self.lost(error))?;
        if body.len() > MAX_MESSAGE {
            return Err(self.too_long());
        }
        let value = serde_json::from_str(&self.text(&body));
        let value: Value = value
            .map_err(|error| self.broken(&format!("the answer of {} is not JSON: {error}", self.url)))?;
        let unanswered =
            || self.broken(&format!("the answer of {} is not a response to the request", self.url));
        self.look_for(id, value).unwrap_or_else(|| Err(unanswered()))
    }

    fn in_events(&self, id: u64, response: Response<Body>) -> Result<Value, Failure> {
        let bounded = response.into_body().into_reader().take(MAX_MESSAGE as u64 + 1);
        let mut events = Events::new(BufReader::new(bounded));
        while let Some(data) = events.next().map_err(|error| self.lost(error))? {
            let value = serde_json::from_str(&self.text(&data)).ok();
            if let Some(outcome) = value.and_then(|value| self.look_for(id, value)) {
                return outcome;
            }
        }
        if events.stream().get_ref().limit() == 0 {
            return Err(self.too_long());
        }
        Err(self.broken(&format!("the stream of {} ended without a response", self.url)))
    }

    /// The outcome of a request, if it is among some messages. Requests of the server are answered.
    fn look_for(&self, id: u64, value: Value) -> Option<Result<Value, Failure>> {
        let mut found = None;
        for message in messages::read(value) {
            match message {
                // An error without an id can only be meant for the request that this is the answer to.
                Incoming::Response { id: of, outcome }
                    if of == Some(id) || of.is_none() && outcome.is_err() =>
                {
                    found = Some(outcome.map_err(|reason| Failure::Refused(self.without_secrets(&reason))));
                }
                // Whether the server takes the answer is its own affair.
                Incoming::Request(answer) => _ = self.post(&answer),
                Incoming::Response { .. } | Incoming::Other => {}
            }
        }
        found
    }

    fn text<'b>(&self, bytes: &'b [u8]) -> Cow<'b, str> {
        let text = String::from_utf8_lossy(bytes);
        self.is_odd.fetch_or(matches!(text, Cow::Owned(_)), Ordering::Relaxed);
        text
    }

    /// The failure of a request that has no answer at all.
    fn unanswered(&self, error: ureq::Error) -> Failure {
        let url = &self.url;
        match error {
            ureq::Error::Timeout(_) => Failure::Late,
            ureq::Error::Io(error) => self.lost(error),
            ureq::Error::HostNotFound => self.broken(&format!("{url}: unknown host, or no network")),
            ureq::Error::ConnectionFailed => self.broken(&format!("{url}: {REFUSED}")),
            error => self.broken(&format!("{url}: {error}")),
        }
    }

    /// The failure of a request whose connection failed.
    fn lost(&self, error: std::io::Error) -> Failure {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<ureq::Error>());
        if error.kind() == ErrorKind::TimedOut || matches!(inner, Some(ureq::Error::Timeout(_))) {
            return Failure::Late;
        }
        let why = match error.kind() {
            ErrorKind::ConnectionRefused => REFUSED.to_string(),
            ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::UnexpectedEof => {
                "the connection was lost".to_string()
            }
            _ => error.to_string(),
        };
        self.broken(&format!("{}: {why}", self.url))
    }

    fn too_long(&self) -> Failure {
        self.broken(&format!("the answer of {} has more than {} MiB", self.url, MAX_MESSAGE >> 20))
    }

    fn broken(&self, reason: &str) -> Failure {
        Failure::Broken(self.without_secrets(reason))
    }

    /// External text, without the secrets that it may repeat.
    fn without_secrets(&self, text: &str) -> String {
        self.secrets.iter().fold(text.to_string(), |text, secret| text.replace(secret.as_str(), "…"))
    }
}

const REFUSED: &str = "connection refused; check that the server is running";

/// A server's reason for a refusal: the message in its JSON, else the first line of its text.
fn refusal(body: &[u8]) -> Option<String> {
    let value: Option<Value> = serde_json::from_slice(body).ok();
    let message = value.as_ref().and_then(|value| {
        ["/error/message", "/message", "/error", "/detail"].iter().find_map(|at| value.pointer(at)?.as_str())
    });
    first_line(&message.map_or_else(|| String::from_utf8_lossy(body), Cow::Borrowed))
}
