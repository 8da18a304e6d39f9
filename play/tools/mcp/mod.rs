//! Servers of the Model Context Protocol: which tools they have, and calls of these.
//!
//! All that is said to a server and read from it is here; [`transport`] brings it there, to a program's
//! standard streams or to a URL. The protocol is that of 2025-06-18, without anything but tools.

mod http;
mod messages;
mod process;
mod results;
mod specs;
mod sse;
#[cfg(test)]
mod tests;
mod transport;

use super::program::REPLACED;
use super::{Call, CallOutcome};
use anyhow::{Context as _, anyhow};
use greenroom_scenario::ToolSpec;
use greenroom_scenario::tools::{ServerAddress, ToolServer};
use http::HttpTransport;
use messages::Failure;
use process::ProcessTransport;
use serde_json::{Value, json};
use specs::{ListedTool, specs};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use transport::Transport;
use ureq::http::HeaderValue;

/// The version of the protocol that is asked for.
const VERSION: &str = "2025-06-18";
/// Versions that differ in nothing that is used here.
const KNOWN_VERSIONS: &[&str] = &["2024-11-05", "2025-03-26", VERSION, "2025-11-25"];
/// Maximum pages of a server's list of tools.
const MAX_PAGES: usize = 64;

/// A server that has been greeted; a program ends with this value.
pub(super) struct ServerClient {
    key: String,
    timeout: Duration,
    transport: Transport,
    next_id: AtomicU64,
    /// Held while a new session begins in the place of one that has expired.
    renewal: Mutex<()>,
}

impl std::fmt::Debug for ServerClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("key", &self.key).finish_non_exhaustive()
    }
}

impl ServerClient {
    /// Starts or finds a server and asks which tools it has; they are called `KEY_TOOL`. A program starts in
    /// `folder`.
    ///
    /// # Errors
    /// It does not start, does not answer in time, or has tools that can't be used.
    pub(super) async fn open(
        key: &str,
        server: &ToolServer,
        folder: &Path,
    ) -> anyhow::Result<(Self, Vec<ToolSpec>)> {
        let opened = Self::greet(key, server, folder).await;
        let (client, tools) =
            opened.with_context(|| format!("the tool server `{key}` ({})", server.address))?;
        let specs = specs(key, server, tools).with_context(|| format!("the tool server `{key}`"))?;
        Ok((client, specs))
    }

    async fn greet(key: &str, server: &ToolServer, folder: &Path) -> anyhow::Result<(Self, Vec<ListedTool>)> {
        let timeout = Duration::from_secs(server.timeout);
        let transport = match &server.address {
            ServerAddress::Program(line) => Transport::Process(ProcessTransport::start(line, folder)?.into()),
            ServerAddress::Http { url, headers } => {
                Transport::Http(HttpTransport::new(url, headers, timeout)?)
            }
        };
        let (next_id, renewal) = (AtomicU64::new(0), Mutex::new(()));
        let client = Self { key: key.to_string(), timeout, transport, next_id, renewal };
        let greeted = client.initialize().await;
        greeted.map_err(|failure| {
            client.not_open(failure, "spoke the Model Context Protocol", "speak the Model Context Protocol")
        })?;
        let tools = client.list().await;
        let tools =
            tools.map_err(|failure| client.not_open(failure, "listed its tools", "list its tools"))?;
        Ok((client, tools))
    }

    /// Agrees on a version of the protocol, which begins a session.
    async fn initialize(&self) -> Result<(), Failure> {
        let params = json!({
            "protocolVersion": VERSION,
            "capabilities": {},
            "clientInfo": { "name": "greenroom", "version": env!("CARGO_PKG_VERSION") },
        });
        let result = self.ask("initialize", &params).await?;
        let version = result["protocolVersion"].as_str().unwrap_or_default();
        if !KNOWN_VERSIONS.contains(&version) {
            let known = KNOWN_VERSIONS.join(", ");
            return Err(Failure::Refused(format!("its version is `{version}`; expected one of {known}")));
        }
        self.transport.agree_on(version);
        let notified = self.transport.notify(messages::notification("notifications/initialized"));
        timeout(self.timeout, notified).await.unwrap_or(Err(Failure::Late))
    }

    /// The tools that the server has.
    async fn list(&self) -> Result<Vec<ListedTool>, Failure> {
        let (mut tools, mut params) = (Vec::new(), json!({}));
        for _ in 0..MAX_PAGES {
            let mut page = self.request("tools/list", &params).await?;
            let listed: Result<Vec<ListedTool>, _> = serde_json::from_value(page["tools"].take());
            tools
                .extend(listed.map_err(|error| Failure::Refused(format!("the list is not valid: {error}")))?);
            match page["nextCursor"].as_str() {
                Some(cursor) => params = json!({ "cursor": cursor }),
                None => return Ok(tools),
            }
        }
        Err(Failure::Refused(format!("the list has more than {MAX_PAGES} pages")))
    }

    /// Calls one of its tools, with arguments that are in their schema.
    pub(super) async fn call(&self, call: &Call, arguments: Value) -> CallOutcome {
        let name = call.tool.strip_prefix(&self.key).and_then(|rest| rest.strip_prefix('_'));
        let name = name.unwrap_or(&call.tool);
        let answered = self.request("tools/call", &json!({ "name": name, "arguments": arguments })).await;
        if self.transport.was_odd() {
            tracing::warn!("what the server `{}` wrote is not UTF-8; {REPLACED}", self.key);
        }
        results::outcome(&answered.map_err(|failure| self.not_called(failure))?)
    }

    /// Ends its session, if it has one.
    pub(super) fn close(&self) -> Option<JoinHandle<()>> {
        self.transport.close()
    }

    /// Asks for a result, in a new session if the one that there was has expired.
    async fn request(&self, method: &str, params: &Value) -> Result<Value, Failure> {
        let session = self.transport.session();
        match self.ask(method, params).await {
            Err(Failure::Expired) => {
                self.renew(session).await?;
                self.ask(method, params).await
            }
            answered => answered,
        }
    }

    /// Begins a new session, unless another request has done so since.
    async fn renew(&self, expired: Option<HeaderValue>) -> Result<(), Failure> {
        let _alone = self.renewal.lock().await;
        if self.transport.session() == expired { self.initialize().await } else { Ok(()) }
    }

    /// Asks for a result.
    async fn ask(&self, method: &str, params: &Value) -> Result<Value, Failure> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let message = messages::request(id, method, params);
        timeout(self.timeout, self.transport.request(id, message)).await.unwrap_or(Err(Failure::Late))
    }

    /// The reason why a server can't be used: what it had not yet done, or does not do.
    fn not_open(&self, failure: Failure, done: &str, doing: &str) -> anyhow::Error {
        let stray = self.transport.stray();
        match failure {
            Failure::Ended(end) => anyhow!("it ended before it {done} {end}"),
            Failure::Refused(reason) => anyhow!("it does not {doing}: {reason}{stray}"),
            Failure::Late => anyhow!("no answer after {} s{stray}", self.timeout.as_secs()),
            Failure::Expired => anyhow!("{EXPIRED}"),
            Failure::Broken(reason) => anyhow!("{reason}{stray}"),
        }
    }

    /// The reason why a call failed; of a server that has ended, how it did.
    fn not_called(&self, failure: Failure) -> String {
        match failure {
            Failure::Ended(end) => {
                let reason = format!("the server `{}` has ended {end}", self.key);
                tracing::warn!("{reason}: its tools will fail from now on");
                reason
            }
            Failure::Late => {
                format!("no result after {} s{}", self.timeout.as_secs(), self.transport.stray())
            }
            Failure::Expired => EXPIRED.to_string(),
            Failure::Refused(reason) | Failure::Broken(reason) => reason,
        }
    }
}

const EXPIRED: &str = "the server does not know the session that it has just begun";
