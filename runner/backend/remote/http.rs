//! HTTP to an engine: whole answers and streams of events, which requests may be repeated, and failures in
//! words.
//!
//! The key goes into one header and nowhere else: server responses are searched for it before anyone reads
//! them.

use super::pace::Pace;
use crate::scenario::{Api, EngineAddress};
use anyhow::{Context as _, anyhow};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _};
use std::time::Duration;
use tokio::sync::mpsc;
use ureq::http::{HeaderValue, Response, StatusCode, header};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body, Timeout};

/// Longest time to reach an engine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest answer.
const MAX_ANSWER_BYTES: u64 = 64 << 20;
/// Characters of a server's own words that are quoted.
const QUOTED: usize = 300;
/// Attempts at one request.
const MAX_ATTEMPTS: u32 = 6;
/// Longest wait before another one.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// Failure of a request.
#[derive(Debug)]
pub(super) enum HttpFailure {
    /// Another attempt may succeed, after this time if the server names one.
    Transient(anyhow::Error, Option<Duration>),
    /// A person has to fix it.
    Permanent(anyhow::Error),
}

impl HttpFailure {
    /// Reports and waits before attempt `n` (from 1) is repeated.
    ///
    /// # Errors
    /// Another attempt would be of no use, or there were enough.
    fn before_another(self, attempt: u32) -> anyhow::Result<Duration> {
        match self {
            Self::Transient(error, after) if attempt < MAX_ATTEMPTS => {
                let wait = wait_before(attempt, after);
                tracing::warn!("{error:#}; retrying in {:.1} s", wait.as_secs_f64());
                Ok(wait)
            }
            Self::Transient(error, _) => Err(error.context(format!(
                "no answer after {MAX_ATTEMPTS} attempts; continue from here with --resume"
            ))),
            Self::Permanent(error) => Err(error),
        }
    }
}

/// Asks at the pace that is allowed until there is an answer, or asking again has no use. An attempt gives
/// the answer and its tokens.
pub(super) async fn with_retries<T, F>(pace: &Pace, attempt: impl Fn() -> F) -> anyhow::Result<T>
where
    F: Future<Output = Result<(T, usize), HttpFailure>>,
{
    let mut n = 1;
    loop {
        let place = pace.enter().await?;
        match attempt().await {
            Ok((answer, tokens)) => {
                pace.spend(tokens);
                return Ok(answer);
            }
            Err(failure) => {
                drop(place);
                tokio::time::sleep(failure.before_another(n)?).await;
            }
        }
        n += 1;
    }
}

impl From<HttpFailure> for anyhow::Error {
    fn from(failure: HttpFailure) -> Self {
        let (HttpFailure::Transient(error, _) | HttpFailure::Permanent(error)) = failure;
        error
    }
}

impl From<anyhow::Error> for HttpFailure {
    fn from(error: anyhow::Error) -> Self {
        Self::Permanent(error)
    }
}

/// Speaks to one engine.
#[derive(Clone)]
pub(super) struct Http {
    agent: Agent,
    url: String,
    headers: Vec<(&'static str, HeaderValue)>,
    /// The key, to be kept out of messages.
    key: Option<String>,
    key_env: Option<String>,
}

impl Http {
    /// As an address says.
    ///
    /// # Errors
    /// The variable that is to hold the key does not.
    pub(super) fn new(address: &EngineAddress) -> anyhow::Result<Self> {
        let key = address.key_env.as_ref().map(|name| {
            let key = std::env::var(name).ok().filter(|key| !key.trim().is_empty());
            key.map(|key| key.trim().to_string()).with_context(|| {
                format!(
                    "the key of {} is expected in the environment variable {name}, which is not set",
                    address.host()
                )
            })
        });
        let key = key.transpose()?;
        let mut headers = Vec::new();
        if let Some(key) = &key {
            let (name, value) = match address.api {
                Api::Anthropic => ("x-api-key", key.clone()),
                _ => ("authorization", format!("Bearer {key}")),
            };
            let mut value =
                HeaderValue::from_str(&value).ok().context("the key contains invalid characters")?;
            value.set_sensitive(true);
            headers.push((name, value));
        }
        if address.api == Api::Anthropic {
            headers.push(("anthropic-version", HeaderValue::from_static("2023-06-01")));
        }
        // The system's certificates, so that those of a company's proxy count.
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let silence = Some(Duration::from_secs(address.timeout));
        let config = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .max_redirects(0) // a key goes to no other server
            .max_idle_connections(0) // one that a server has closed meanwhile would cost an attempt
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(silence)
            .timeout_per_read(silence);
        let (url, key_env) = (address.url.clone(), address.key_env.clone());
        Ok(Self { agent: config.build().into(), url, headers, key, key_env })
    }

    /// Asks for a value.
    pub(super) fn get(&self, path: &str) -> Result<Value, HttpFailure> {
        let url = format!("{}{path}", self.url);
        let mut request = self.agent.get(&url);
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        self.whole(&url, request.call())
    }

    /// Sends a value, and reads the answer as a whole; null where there is none.
    pub(super) fn post(&self, path: &str, body: &Value) -> Result<Value, HttpFailure> {
        let url = format!("{}{path}", self.url);
        self.whole(&url, self.send(&url, body, &[]))
    }

    fn send(
        &self,
        url: &str,
        body: &Value,
        more: &[(&'static str, String)],
    ) -> Result<Response<Body>, ureq::Error> {
        let mut request = self.agent.post(url).header(header::CONTENT_TYPE, "application/json");
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        for (name, value) in more {
            request = request.header(*name, value);
        }
        request.send(body.to_string())
    }

    fn whole(&self, url: &str, answer: Result<Response<Body>, ureq::Error>) -> Result<Value, HttpFailure> {
        let mut response = self.accepted(url, answer)?;
        let body = response.body_mut().with_config().limit(MAX_ANSWER_BYTES).read_to_vec();
        let body = body.map_err(|error| self.unanswered(url, error))?;
        if body.is_empty() {
            return Ok(Value::Null);
        }
        let value = serde_json::from_slice(&body);
        value.map_err(|error| HttpFailure::Permanent(anyhow!("the answer of {url} is not JSON: {error}")))
    }

    /// Sends a value, and hands over each event of the answer as it comes, from a thread of its own. An
    /// answer that is dropped is given up.
    pub(super) fn stream(
        &self,
        path: &str,
        body: Value,
        more: Vec<(&'static str, String)>,
    ) -> mpsc::UnboundedReceiver<Result<Value, HttpFailure>> {
        let (events, read) = mpsc::unbounded_channel();
        let (http, url) = (self.clone(), format!("{}{path}", self.url));
        tokio::task::spawn_blocking(move || {
            let response = match http.accepted(&url, http.send(&url, &body, &more)) {
                Ok(response) => response,
                Err(failure) => return drop(events.send(Err(failure))),
            };
            let mut lines = BufReader::new(response.into_body().into_reader().take(MAX_ANSWER_BYTES));
            loop {
                let mut line = Vec::new();
                let failure = match lines.read_until(b'\n', &mut line) {
                    Ok(0) if lines.get_ref().limit() == 0 => HttpFailure::Permanent(anyhow!(
                        "{url}: the answer has more than {MAX_ANSWER_BYTES} bytes"
                    )),
                    Ok(0) => return, // whether it was whole, the reader sees
                    Ok(_) => match event(&line) {
                        None => {
                            if events.is_closed() {
                                return;
                            }
                            continue;
                        }
                        Some(Ok(event)) => match events.send(Ok(event)) {
                            Ok(()) => continue,
                            Err(_) => return,
                        },
                        Some(Err(error)) => {
                            HttpFailure::Transient(anyhow!("{url}: an event is not JSON: {error}"), None)
                        }
                    },
                    Err(error) => {
                        HttpFailure::Transient(anyhow!("{url} ended early: {}", in_words(&error)), None)
                    }
                };
                return drop(events.send(Err(failure)));
            }
        });
        read
    }

    /// An answer, if it is none of a refusal.
    fn accepted(
        &self,
        url: &str,
        answer: Result<Response<Body>, ureq::Error>,
    ) -> Result<Response<Body>, HttpFailure> {
        let mut response = answer.map_err(|error| self.unanswered(url, error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let after = response.headers().get(header::RETRY_AFTER).and_then(|after| after.to_str().ok());
        let after = after.and_then(|after| Duration::try_from_secs_f64(after.trim().parse().ok()?).ok());
        let body = response.body_mut().with_config().limit(1 << 20).read_to_vec().unwrap_or_default();
        let said = self.without_key(&server_message(&body));
        let said = if said.is_empty() { String::new() } else { format!(": {said}") };
        Err(match status {
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS => {
                HttpFailure::Transient(anyhow!("{url} answered {status}{said}"), after)
            }
            status if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED => {
                HttpFailure::Transient(anyhow!("{url} answered {status}{said}"), after)
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let help = match &self.key_env {
                    Some(name) => format!("the key in {name} was rejected"),
                    None => "it requires a key; name its environment variable with `key_env`".to_string(),
                };
                HttpFailure::Permanent(anyhow!("{url} answered {status}{said}; {help}"))
            }
            _ => HttpFailure::Permanent(anyhow!("{url} answered {status}{said}")),
        })
    }

    fn unanswered(&self, url: &str, error: ureq::Error) -> HttpFailure {
        let error = match error {
            ureq::Error::Io(error) => anyhow!("{url}: {}", in_words(&error)),
            ureq::Error::HostNotFound => {
                return HttpFailure::Permanent(anyhow!("{url}: unknown host, or no network"));
            }
            ureq::Error::ConnectionFailed => {
                anyhow!("{url}: connection refused; check that the server is running")
            }
            ureq::Error::Timeout(Timeout::Connect) => {
                anyhow!("{url}: not reached within {} s", CONNECT_TIMEOUT.as_secs())
            }
            ureq::Error::Timeout(_) => anyhow!("{url}: no answer in time (`timeout`)"),
            error => {
                return HttpFailure::Permanent(anyhow!("{url}: {}", self.without_key(&error.to_string())));
            }
        };
        HttpFailure::Transient(error, None)
    }

    /// External text, without the key that it may repeat.
    fn without_key(&self, text: &str) -> String {
        match &self.key {
            Some(key) => text.replace(key.as_str(), "…"),
            None => text.to_string(),
        }
    }
}

/// The wait before attempt number `n` (from 1): longer each time, and by chance, so that many don't come back
/// at once.
fn wait_before(n: u32, after: Option<Duration>) -> Duration {
    let longest = Duration::from_millis(500).saturating_mul(1 << n.min(10)).min(MAX_WAIT);
    let chance = getrandom::u32().unwrap_or(u32::MAX / 2);
    let jittered = longest.mul_f64(0.5 + 0.5 * f64::from(chance) / f64::from(u32::MAX));
    after.map_or(jittered, |after| after.min(MAX_WAIT * 4) + jittered / 8)
}

/// The value of a line of a stream of events, or of an answer in one piece; `None`: it holds none.
fn event(line: &[u8]) -> Option<serde_json::Result<Value>> {
    let whole = Some(line).filter(|line| line.starts_with(b"{"));
    let data = line.strip_prefix(b"data:").or(whole)?.trim_ascii();
    (data != b"[DONE]" && !data.is_empty()).then(|| serde_json::from_slice(data))
}

/// A server's error message: that of its JSON, else the beginning of its text.
fn server_message(body: &[u8]) -> String {
    let value: Option<Value> = serde_json::from_slice(body).ok();
    let message = value.as_ref().and_then(|value| {
        ["/error/message", "/message", "/error", "/detail"].iter().find_map(|at| value.pointer(at)?.as_str())
    });
    let text = message.map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_string);
    crate::diagnostic::printable(text.trim()).chars().take(QUOTED).collect()
}

fn in_words(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::ConnectionRefused => "connection refused; check that the server is running".to_string(),
        ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::UnexpectedEof => {
            "the connection was lost".to_string()
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_distinguished_from_other_lines() {
        assert_eq!(event(b"data: {\"a\": 1}\r\n").unwrap().unwrap()["a"], 1);
        for other in [&b"\n"[..], b": ping\n", b"event: done\n", b"data: [DONE]\n", b"data:\n"] {
            assert!(event(other).is_none());
        }
        assert!(event(b"data: {\n").unwrap().is_err());
        assert_eq!(event(b"{\"a\": 1}").unwrap().unwrap()["a"], 1, "an answer in one piece");
    }

    #[test]
    fn refusals_are_quoted_in_their_own_words() {
        assert_eq!(server_message(br#"{"error": {"message": "too long", "code": 1}}"#), "too long");
        assert_eq!(server_message(br#"{"error": "gone"}"#), "gone");
        assert_eq!(server_message(b"<html>busy</html>"), "<html>busy</html>");
        assert_eq!(server_message(&[b'a'; 1000]).len(), QUOTED);
    }

    #[test]
    fn waits_grow_and_heed_the_server() {
        for n in 1..12 {
            let wait = wait_before(n, None);
            assert!(wait <= MAX_WAIT && wait >= Duration::from_millis(500), "{n}: {wait:?}");
        }
        assert!(wait_before(1, Some(Duration::from_secs(7))) >= Duration::from_secs(7));
    }
}
