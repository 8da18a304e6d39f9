//! Servers of the Model Context Protocol, on their standard streams: which tools they have, and calls of
//! these.

use super::program::{Process, REPLACED};
use super::streams::ServerStreams;
use super::{Call, CallOutcome};
use anyhow::{Context as _, bail, ensure};
use greenroom_grammar::{Grammar, Relaxed};
use greenroom_scenario::ToolSpec;
use greenroom_scenario::tools::ToolServer;
use rmcp::model::CallToolRequestParams;
use rmcp::service::{RunningService, ServiceError};
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::{RoleClient, ServiceExt as _};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::timeout;

/// Maximum number of tools of a server that agents can be offered.
const MAX_TOOLS: usize = 128;
/// Bytes of a server's output that wait to be read.
const PIPE: usize = 64 << 10;
/// Maximum characters of a server's description of a tool.
const MAX_ABOUT: usize = 1_000;

/// A running server; it ends with this value.
pub(super) struct ServerClient {
    key: String,
    timeout: Duration,
    service: RunningService<RoleClient, ()>,
    process: Mutex<Process>,
    heard: Arc<ServerStreams>,
}

impl std::fmt::Debug for ServerClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("key", &self.key).finish_non_exhaustive()
    }
}

impl ServerClient {
    /// Starts a server in a folder and asks which tools it has; they are called `KEY_TOOL`.
    ///
    /// # Errors
    /// It does not start, does not answer in time, or has tools that can't be used.
    pub(super) async fn open(
        key: &str,
        server: &ToolServer,
        folder: &Path,
    ) -> anyhow::Result<(Self, Vec<ToolSpec>)> {
        let line = server.line.join(" ");
        let opened = Self::answer(key, server, folder).await;
        let (client, tools) = opened.with_context(|| format!("the tool server `{key}` ({line})"))?;
        let specs = specs(key, server, tools).with_context(|| format!("the tool server `{key}`"))?;
        Ok((client, specs))
    }

    async fn answer(
        key: &str,
        server: &ToolServer,
        folder: &Path,
    ) -> anyhow::Result<(Self, Vec<rmcp::model::Tool>)> {
        let mut process = Process::start(&server.line, folder).map_err(anyhow::Error::msg)?;
        let (stdin, stdout) = (process.child.stdin.take(), process.child.stdout.take());
        let (stdin, stdout) = (stdin.context("it has no pipes")?, stdout.context("it has no pipes")?);
        let heard = Arc::new(ServerStreams::default());
        if let Some(stderr) = process.child.stderr.take() {
            let heard = heard.clone();
            tokio::spawn(async move { heard.hear_error(stderr).await });
        }
        let (messages, to) = tokio::io::duplex(PIPE);
        let hearing = heard.clone();
        tokio::spawn(async move { hearing.pass_on(stdout, to).await });
        let wait = Duration::from_secs(server.timeout);
        let late = |_| anyhow::Error::msg(format!("no answer after {} s{}", server.timeout, heard.stray()));
        let transport = AsyncRwTransport::new_client(messages, stdin);
        let service = timeout(wait, ().serve(transport)).await.map_err(late)?;
        let service = match service {
            Ok(service) => service,
            Err(error) => bail!(match process.end().await {
                Some(status) =>
                    format!("it ended before it spoke the Model Context Protocol {}", heard.end(status).await),
                None => format!("it does not speak the Model Context Protocol: {error}{}", heard.stray()),
            }),
        };
        let tools = match timeout(wait, service.list_all_tools()).await.map_err(late)? {
            Ok(tools) => tools,
            Err(error) => bail!(match process.end().await {
                Some(status) => format!("it ended before it listed its tools {}", heard.end(status).await),
                None => format!("it does not list its tools: {error}{}", heard.stray()),
            }),
        };
        let process = process.into();
        Ok((Self { key: key.to_string(), timeout: wait, service, process, heard }, tools))
    }

    /// Calls one of its tools, with arguments that are in their schema.
    pub(super) async fn call(&self, call: &Call, arguments: Value) -> CallOutcome {
        let name = call.tool.strip_prefix(&self.key).and_then(|rest| rest.strip_prefix('_'));
        let name = name.unwrap_or(&call.tool).to_string();
        let mut params = CallToolRequestParams::new(name);
        params.arguments = arguments.as_object().cloned();
        let answered = timeout(self.timeout, self.service.call_tool(params)).await;
        if self.heard.was_odd() {
            tracing::warn!("what the server `{}` wrote is not UTF-8; {REPLACED}", self.key);
        }
        let late = || format!("no result after {} s{}", self.timeout.as_secs(), self.heard.stray());
        let result = match answered.map_err(|_| late())? {
            Ok(result) => result,
            Err(error) => return Err(self.failed(&error).await),
        };
        let text = match &result.structured_content {
            Some(value) if result.content.is_empty() => value.to_string(),
            _ => result.content.iter().map(read).collect::<Vec<_>>().join("\n"),
        };
        if result.is_error == Some(true) { Err(text) } else { Ok(text) }
    }

    /// The reason why a call failed; of a server that has ended, how it did.
    async fn failed(&self, error: &ServiceError) -> String {
        let (ServiceError::TransportClosed | ServiceError::TransportSend(_)) = error else {
            return error.to_string();
        };
        let status = self.process.lock().await.end().await;
        let end = match status {
            Some(status) => format!(" {}", self.heard.end(status).await),
            None => String::new(),
        };
        let reason = format!("the server `{}` has ended{end}", self.key);
        tracing::warn!("{reason}: its tools will fail from now on");
        reason
    }
}

/// The readable form of a part of a result: its text, or its type if it is anything else.
fn read(part: &rmcp::model::ContentBlock) -> String {
    let part = serde_json::to_value(part).unwrap_or_default();
    let text = part["text"].as_str().or(part["resource"]["text"].as_str());
    text.map_or_else(|| format!("[{}]", part["type"].as_str().unwrap_or("something")), str::to_string)
}

/// The specifications of a server's tools, those that its scenario selects.
fn specs(key: &str, server: &ToolServer, tools: Vec<rmcp::model::Tool>) -> anyhow::Result<Vec<ToolSpec>> {
    let known: Vec<String> = tools.iter().map(|tool| tool.name.to_string()).collect();
    for name in server.only.iter().flatten() {
        ensure!(known.contains(name), "it has no tool `{name}`; expected one of {}", known.join(", "));
    }
    let is_wanted = |name: &str| server.only.as_ref().is_none_or(|only| only.iter().any(|own| own == name));
    let wanted: Vec<_> = tools.into_iter().filter(|tool| is_wanted(&tool.name)).collect();
    ensure!(!wanted.is_empty(), "it has no tools");
    let n = wanted.len();
    ensure!(n <= MAX_TOOLS, "it has {n} tools; at most {MAX_TOOLS} are allowed: select some with `only`");
    let (mut specs, mut unusable): (Vec<ToolSpec>, Vec<String>) = Default::default();
    for tool in wanted {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if tool.name.is_empty() || tool.name.len() > 64 || !tool.name.chars().all(is_plain) {
            bail!("it has a tool named {:?}; exclude it with `only`", tool.name);
        }
        let mut arguments = tool.input_schema.as_ref().clone();
        // The protocol requires it; some servers do not comply.
        let kind = arguments.entry("type").or_insert_with(|| "object".into());
        let is_object = kind == "object";
        let arguments = Value::Object(arguments);
        match followed(&arguments, is_object) {
            Ok(relaxed) => note_left(key, &tool.name, &relaxed),
            Err(reason) => {
                let name = &tool.name;
                tracing::warn!(
                    "the tool server `{key}`: its tool `{name}` is left out: its arguments {reason}"
                );
                unusable.push(name.to_string());
                continue;
            }
        }
        let name = format!("{key}_{}", tool.name);
        ensure!(!specs.iter().any(|other| other.name == name), "it has two tools named `{}`", tool.name);
        let about = tool.description.as_deref().unwrap_or_default().trim().chars().take(MAX_ABOUT).collect();
        specs.push(ToolSpec { name, about, arguments });
    }
    ensure!(!specs.is_empty(), "the arguments of its tools ({}) can't be used", unusable.join(", "));
    Ok(specs)
}

/// The schema of a tool's arguments as masks can enforce it.
///
/// # Errors
/// The reason why it can't be used, after "its arguments".
fn followed(arguments: &Value, is_object: bool) -> Result<Relaxed, String> {
    if !is_object {
        return Err("are not an object".into());
    }
    let relaxed = Grammar::json_schema(arguments).relaxed();
    let relaxed = relaxed.and_then(|relaxed| relaxed.grammar.check().map(|()| relaxed));
    relaxed.map_err(|error| format!("can't be used: {error}"))
}

/// Notes what of a tool's schema can't be enforced while a call is written.
fn note_left(key: &str, tool: &str, relaxed: &Relaxed) {
    for left in &relaxed.left {
        let effect = if left.is_checked { "is checked when it is called" } else { "has no effect" };
        tracing::info!("the tool server `{key}`: in the arguments of its tool `{tool}`, {left} {effect}");
    }
}

#[cfg(all(test, unix))]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod tests {
    use super::*;

    /// A server in the shell: a tool that reads, one that fails, one that never answers.
    const SERVER: &str = r#"
while IFS= read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case "$line" in
    *'"method":"initialize"'*) r='{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"test","version":"1"}}';;
    *'"method":"tools/list"'*) r='{"tools":[{"name":"read","description":"Reads a file.","inputSchema":{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}},{"name":"fail","inputSchema":{"type":"object","properties":{}}},{"name":"wait","inputSchema":{"type":"object","properties":{}}}]}';;
    *'"name":"fail"'*) r='{"content":[{"type":"text","text":"no such file"}],"isError":true}';;
    *'"name":"wait"'*) continue;;
    *'"method":"tools/call"'*) r='{"content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]}';;
    *) continue;;
  esac
  printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$r"
done
"#;

    fn server(script: &str, only: Option<&[&str]>) -> ToolServer {
        let only = only.map(|only| only.iter().map(ToString::to_string).collect());
        ToolServer { line: ["sh", "-c", script].map(String::from).to_vec(), only, timeout: 2 }
    }

    fn opened<T>(
        server: &ToolServer,
        then: impl AsyncFnOnce(ServerClient, Vec<ToolSpec>) -> T,
    ) -> anyhow::Result<T> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (client, specs) = ServerClient::open("files", server, Path::new("")).await?;
            Ok(then(client, specs).await)
        })
    }

    fn refused(server: &ToolServer) -> String {
        format!("{:#}", opened(server, async |_, _| ()).expect_err("it can't be used"))
    }

    #[test]
    fn a_server_tells_its_tools_and_answers_calls() {
        let played = opened(&server(SERVER, None), async |client, specs| {
            let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
            assert_eq!(names, ["files_read", "files_fail", "files_wait"]);
            assert_eq!(specs[0].about, "Reads a file.");
            let call = async |tool: &str| {
                let arguments = serde_json::json!({ "name": "a" });
                let call = Call { tool: format!("files_{tool}"), arguments: arguments.clone() };
                client.call(&call, arguments).await
            };
            assert_eq!(call("read").await.as_deref(), Ok("one\ntwo"));
            assert_eq!(call("fail").await, Err("no such file".into()));
            assert_eq!(call("wait").await, Err("no result after 2 s".into()));
            assert_eq!(call("read").await.as_deref(), Ok("one\ntwo"), "it goes on");
        });
        played.unwrap();
    }

    #[test]
    fn tools_that_are_named_alone_can_be_called() {
        let names = opened(&server(SERVER, Some(&["read"])), async |_, specs| specs.len());
        assert_eq!(names.unwrap(), 1);
        let none = refused(&server(SERVER, Some(&["write"])));
        assert!(none.contains("no tool `write`; expected one of read, fail, wait"), "{none}");
    }

    #[test]
    fn a_program_that_is_no_server_is_reported() {
        for (script, why) in [
            ("exit 1", "Model Context Protocol"),
            ("yes", "the tool server `files`"),
            ("sleep 60", "no answer after 2 s"),
        ] {
            let message = refused(&server(script, None));
            assert!(message.contains(why), "{script}: {message}");
        }
        let none = ToolServer { line: vec!["greenroom-none".into()], only: None, timeout: 1 };
        assert!(refused(&none).contains("can't start `greenroom-none`"));
        // Its output and exit status are the reason.
        for script in [
            "echo starting >&2; echo no such file: notes.db >&2; exit 3",
            "read -r line; echo no such file: notes.db >&2; exit 3",
        ] {
            let message = refused(&server(script, None));
            assert!(
                message.contains("exit status: 3") && message.contains("`no such file: notes.db`"),
                "{message}"
            );
            assert!(!message.contains("does not speak"), "{message}");
        }
        let message = refused(&server("echo Content-Length: 52; sleep 60", None));
        assert!(message.contains("`Content-Length: 52`"), "{message}");
        let odd = SERVER.replace(r#""name":"read","#, r#""name":"re ad","#);
        assert!(refused(&server(&odd, None)).contains("exclude it with `only`"));
    }

    /// What a call of a tool gives whose server answers in a way.
    fn answered(result: &str) -> CallOutcome {
        let script = SERVER
            .replace(r#"{"content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]}"#, result);
        let script = script.replace(r#""result":%s}"#, r#""result":%b}"#);
        let call = Call { tool: "files_read".into(), arguments: serde_json::json!({ "name": "a" }) };
        opened(&server(&script, None), async |client, _| client.call(&call, call.arguments.clone()).await)
            .unwrap()
    }

    #[test]
    fn odd_results_are_read() {
        assert_eq!(answered(r#"{"content":[]}"#), Ok(String::new()), "an empty result is an empty text");
        // Bytes that are no UTF-8, written by the shell's printf.
        let latin1 = answered(r#"{"content":[{"type":"text","text":"caf\0351 cr\0350me"}]}"#);
        assert_eq!(latin1.as_deref(), Ok("caf\u{fffd} cr\u{fffd}me"));
    }

    #[test]
    fn a_server_that_ends_in_a_call_says_why() {
        let script = SERVER.replace(
            r#"*'"name":"wait"'*) continue;;"#,
            r#"*'"name":"wait"'*) echo segfault >&2; exit 139;;"#,
        );
        let call = Call { tool: "files_wait".into(), arguments: serde_json::json!({}) };
        let message = opened(&server(&script, None), async |client, _| {
            client.call(&call, call.arguments.clone()).await
        });
        let message = message.unwrap().unwrap_err();
        assert!(
            message.contains("has ended (exit status: 139)") && message.contains("`segfault`"),
            "{message}"
        );
    }
}
