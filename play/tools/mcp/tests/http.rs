//! Servers over HTTP: a small one, whose answers each test writes.

use super::{opened, refused};
use crate::tools::mcp::messages::MAX_MESSAGE;
use crate::tools::{Call, CallOutcome};
use greenroom_scenario::tools::{ServerAddress, ToolServer};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A request as it came.
#[derive(Clone, Debug)]
struct Heard {
    verb: String,
    /// Lines of the head, in lower case but for the values of headers.
    headers: Vec<(String, String)>,
    body: Value,
}

impl Heard {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    fn method(&self) -> &str {
        self.body["method"].as_str().unwrap_or_default()
    }
}

/// An answer: status, headers, body. `None`: there is never one.
type Answer = Option<(&'static str, Vec<(&'static str, String)>, String)>;

/// A server that is running, and what it has heard.
struct Stub {
    url: String,
    heard: Arc<Mutex<Vec<Heard>>>,
}

impl Stub {
    fn new(answer: impl Fn(&Heard) -> Answer + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hearing = heard.clone();
        std::thread::spawn(move || {
            let mut silent = Vec::new();
            for stream in listener.incoming().map_while(Result::ok) {
                let Some(request) = read(&stream) else { continue };
                let answer = answer(&request);
                hearing.lock().unwrap().push(request);
                match answer {
                    Some(answer) => write(stream, &answer),
                    None => silent.push(stream),
                }
            }
        });
        Self { url, heard }
    }

    fn server(&self) -> ToolServer {
        let address = ServerAddress::Http { url: self.url.clone(), headers: Vec::new() };
        ToolServer { address, only: None, timeout: 10 }
    }

    /// What a call of the tool `read` gives.
    fn call(&self) -> CallOutcome {
        opened(&self.server(), async |client, _| client.call(&reading(), reading().arguments).await).unwrap()
    }

    fn heard(&self) -> Vec<Heard> {
        self.heard.lock().unwrap().clone()
    }

    fn methods(&self) -> Vec<String> {
        let heard = self.heard();
        let method = |heard: &Heard| match heard.method() {
            "" => heard.verb.clone(),
            method => method.to_string(),
        };
        heard.iter().map(method).collect()
    }
}

fn read(stream: &TcpStream) -> Option<Heard> {
    let mut lines = BufReader::new(stream);
    let mut first = String::new();
    lines.read_line(&mut first).ok()?;
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        lines.read_line(&mut line).ok()?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_string()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let mut body = vec![0; length.map_or(0, |(_, length)| length.parse().unwrap())];
    lines.read_exact(&mut body).ok()?;
    let verb = first.split(' ').next().unwrap_or_default().to_string();
    Some(Heard { verb, headers, body: serde_json::from_slice(&body).unwrap_or_default() })
}

/// The client may have gone before the end of a long answer.
fn write(mut stream: TcpStream, (status, headers, body): &(&str, Vec<(&str, String)>, String)) {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head =
        format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n", body.len());
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
}

fn json_answer(body: &Value) -> Answer {
    Some(("200 OK", vec![("Content-Type", "application/json".into())], body.to_string()))
}

fn result(request: &Heard, result: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": request.body["id"], "result": result })
}

fn text(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

fn refusal(status: &'static str, body: &str) -> Answer {
    Some((status, vec![("Content-Type", "text/plain".into())], body.into()))
}

fn reading() -> Call {
    Call { tool: "files_read".into(), arguments: json!({}) }
}

fn tool(name: &str) -> Value {
    json!({ "name": name, "description": "Reads.", "inputSchema": { "type": "object", "properties": {} } })
}

/// The answers of a server that does what it should, to all but calls.
fn usual(request: &Heard) -> Answer {
    match request.method() {
        "initialize" => {
            let info = json!({ "name": "test", "version": "1" });
            let given = json!({ "protocolVersion": "2025-03-26", "capabilities": {}, "serverInfo": info });
            json_answer(&result(request, &given))
        }
        "tools/list" => json_answer(&result(request, &json!({ "tools": [tool("read")] }))),
        _ => Some(("202 Accepted", Vec::new(), String::new())),
    }
}

/// A server that answers calls in a way.
fn calls(answer: impl Fn(&Heard) -> Answer + Send + 'static) -> Stub {
    Stub::new(move |request| if request.method() == "tools/call" { answer(request) } else { usual(request) })
}

#[test]
fn a_call_is_answered_in_json() {
    let stub = calls(|request| json_answer(&result(request, &text("one"))));
    assert_eq!(stub.call().as_deref(), Ok("one"));
    let expected = ["initialize", "notifications/initialized", "tools/list", "tools/call"];
    assert_eq!(stub.methods(), expected);
    let heard = stub.heard();
    assert_eq!(heard[0].body["params"]["protocolVersion"], "2025-06-18");
    assert_eq!(heard[0].header("mcp-protocol-version"), None);
    for request in &heard {
        assert_eq!(request.header("accept"), Some("application/json, text/event-stream"));
        assert_eq!(request.header("content-type"), Some("application/json"));
        assert_eq!(request.header("mcp-session-id"), None);
    }
    assert!(heard[1..].iter().all(|request| request.header("mcp-protocol-version") == Some("2025-03-26")));
    assert_eq!(heard[3].body["params"], json!({ "name": "read", "arguments": {} }));
}

#[test]
fn a_call_is_answered_in_a_stream_after_other_events() {
    let stub = calls(|request| {
        let other = result(&Heard { body: json!({ "id": 999 }), ..request.clone() }, &text("other"));
        let events = [
            json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": { "progress": 1 } }),
            json!({ "jsonrpc": "2.0", "id": "s1", "method": "sampling/createMessage", "params": {} }),
            other,
            result(request, &text("one")),
        ];
        let lines: String = events.iter().map(|event| format!("event: message\ndata: {event}\n\n")).collect();
        let headers = vec![("Content-Type", "text/event-stream; charset=utf-8".into())];
        Some(("200 OK", headers, format!(": hello\n\nid: 0\ndata:\n\n{lines}")))
    });
    assert_eq!(stub.call().as_deref(), Ok("one"));
    // What the server has asked for is answered, with an error.
    let heard = stub.heard();
    let answer = heard.iter().find(|request| request.body["id"] == "s1").unwrap();
    assert_eq!(answer.body["error"]["code"], -32601);
}

#[test]
fn a_stream_that_ends_early_is_a_failure() {
    let stub =
        calls(|_| Some(("200 OK", vec![("Content-Type", "text/event-stream".into())], ": hello\n\n".into())));
    assert!(stub.call().unwrap_err().contains("ended without a response"));
}

/// A server with sessions, of which each takes a number of calls before it expires.
fn with_sessions(n_calls: usize) -> Stub {
    let (n_begun, n_called) = (Mutex::new(0), Mutex::new(0));
    Stub::new(move |request| {
        let mut n_begun = n_begun.lock().unwrap();
        let mut n_called = n_called.lock().unwrap();
        if request.method() == "initialize" {
            (*n_begun, *n_called) = (*n_begun + 1, 0);
            let (status, mut headers, body) = usual(request)?;
            headers.push(("Mcp-Session-Id", format!("s{n_begun}")));
            return Some((status, headers, body));
        }
        if request.header("mcp-session-id") != Some(&format!("s{n_begun}")) {
            return refusal("400 Bad Request", "no session");
        }
        if request.method() == "tools/call" {
            *n_called += 1;
            return match *n_called <= n_calls {
                true => json_answer(&result(request, &text(&format!("session {n_begun}")))),
                false => refusal("404 Not Found", "no such session"),
            };
        }
        usual(request)
    })
}

#[test]
fn a_session_that_expired_is_begun_again_and_ended() {
    let stub = with_sessions(1);
    let outcomes = opened(&stub.server(), async |client, _| {
        let first = client.call(&reading(), json!({})).await;
        let second = client.call(&reading(), json!({})).await;
        client.close().unwrap().await.unwrap();
        [first, second]
    });
    assert_eq!(outcomes.unwrap(), [Ok("session 1".to_string()), Ok("session 2".to_string())]);
    let heard = stub.heard();
    let (last, begun) =
        (heard.last().unwrap(), heard.iter().filter(|request| request.method() == "initialize"));
    assert_eq!((last.verb.as_str(), last.header("mcp-session-id")), ("DELETE", Some("s2")));
    assert!(begun.clone().all(|request| request.header("mcp-session-id").is_none()));
    assert_eq!(begun.count(), 2);
}

#[test]
fn a_session_is_begun_again_once() {
    let stub = with_sessions(0);
    assert_eq!(stub.call(), Err("the server does not know the session that it has just begun".into()));
    assert_eq!(stub.methods().iter().filter(|method| *method == "initialize").count(), 2);
}

#[test]
fn calls_at_once_begin_one_new_session() {
    let stub = with_sessions(2);
    let outcomes = opened(&stub.server(), async |client, _| {
        for _ in 0..2 {
            client.call(&reading(), json!({})).await.unwrap();
        }
        let (one, other) = (reading(), reading());
        tokio::join!(client.call(&one, json!({})), client.call(&other, json!({})))
    });
    let expected = || Ok("session 2".to_string());
    assert_eq!(outcomes.unwrap(), (expected(), expected()));
    assert_eq!(stub.methods().iter().filter(|method| *method == "initialize").count(), 2);
}

#[test]
fn a_list_of_tools_has_pages() {
    let stub = Stub::new(|request| match (request.method(), request.body["params"]["cursor"].as_str()) {
        ("tools/list", None) => {
            json_answer(&result(request, &json!({ "tools": [tool("read")], "nextCursor": "more" })))
        }
        ("tools/list", Some("more")) => json_answer(&result(request, &json!({ "tools": [tool("write")] }))),
        _ => usual(request),
    });
    let names = opened(&stub.server(), async |_, specs| specs);
    let names: Vec<String> = names.unwrap().into_iter().map(|spec| spec.name).collect();
    assert_eq!(names, ["files_read", "files_write"]);
    let endless = Stub::new(|request| match request.method() {
        "tools/list" => json_answer(&result(request, &json!({ "tools": [], "nextCursor": "more" }))),
        _ => usual(request),
    });
    assert!(refused(&endless.server()).contains("more than 64 pages"));
}

#[test]
fn an_image_is_a_failed_call() {
    let image = json!({ "content": [{ "type": "image", "data": "", "mimeType": "image/png" }] });
    let stub = calls(move |request| json_answer(&result(request, &image)));
    assert_eq!(stub.call(), Err("the result contains an image, which agents can't read".into()));
}

#[test]
fn an_error_of_the_protocol_is_the_reason() {
    let stub = calls(|request| {
        let error = json!({ "code": -32602, "message": "unknown tool" });
        json_answer(&json!({ "jsonrpc": "2.0", "id": request.body["id"], "error": error }))
    });
    assert_eq!(stub.call(), Err("unknown tool (error -32602)".into()));
}

#[test]
fn refusals_name_their_status_and_reason() {
    let refusing = |answer: Answer| Stub::new(move |_| answer.clone());
    let redirect =
        Some(("302 Found", vec![("Location", "http://127.0.0.1:1/other".to_string())], String::new()));
    let page = Some(("200 OK", vec![("Content-Type", "text/html".to_string())], "<html>".to_string()));
    let error = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"no such tenant"}}"#;
    for (answer, why) in [
        (redirect, "answered 302 Found to `http://127.0.0.1:1/other`; redirects are not followed"),
        (refusal("401 Unauthorized", "\nlog in first\nbye"), "answered 401 Unauthorized: log in first"),
        (refusal("404 Not Found", ""), "answered 404 Not Found"),
        (refusal("500 Internal Server Error", error), "answered 500 Internal Server Error: no such tenant"),
        (page, "content of type `text/html`; expected JSON or a stream of events"),
    ] {
        let stub = refusing(answer);
        let message = refused(&stub.server());
        assert!(message.contains("the tool server `files` (http://") && message.contains(why), "{message}");
        assert_eq!(stub.heard().len(), 1, "nothing is asked for twice");
    }
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let address = ServerAddress::Http { url: format!("http://{port}/"), headers: Vec::new() };
    let message = refused(&ToolServer { address, only: None, timeout: 10 });
    assert!(message.contains("connection refused; check that the server is running"), "{message}");
}

#[test]
fn a_version_that_is_unknown_is_refused() {
    let stub =
        Stub::new(|request| json_answer(&result(request, &json!({ "protocolVersion": "1999-01-01" }))));
    let message = refused(&stub.server());
    assert!(message.contains("its version is `1999-01-01`; expected one of 2024-11-05"), "{message}");
}

#[test]
fn a_server_that_never_answers_is_given_up() {
    let silent = Stub::new(|_| None);
    let message = refused(&ToolServer { timeout: 1, ..silent.server() });
    assert!(message.contains("no answer after 1 s"), "{message}");
    let stub = calls(|_| None);
    let server = ToolServer { timeout: 1, ..stub.server() };
    let outcome = opened(&server, async |client, _| client.call(&reading(), json!({})).await);
    assert_eq!(outcome.unwrap(), Err("no result after 1 s".into()));
}

#[test]
fn answers_are_bounded() {
    let long = || "x".repeat(MAX_MESSAGE);
    let json = calls(move |request| json_answer(&result(request, &text(&long()))));
    assert!(json.call().unwrap_err().contains("has more than 8 MiB"));
    let events = calls(move |request| {
        let event = result(request, &text(&long()));
        Some(("200 OK", vec![("Content-Type", "text/event-stream".into())], format!("data: {event}\n\n")))
    });
    assert!(events.call().unwrap_err().contains("has more than 8 MiB"));
}

#[test]
fn headers_are_read_from_the_environment_and_repeated_nowhere() {
    // A variable that is set wherever tests run.
    let secret = std::env::var("PATH").unwrap();
    let stub = Stub::new(|request| {
        let sent = request.header("authorization").unwrap_or_default();
        if request.method() == "tools/call" { refusal("403 Forbidden", sent) } else { usual(request) }
    });
    let with = |variable: &str| {
        let headers = vec![("Authorization".to_string(), variable.to_string())];
        ToolServer { address: ServerAddress::Http { url: stub.url.clone(), headers }, ..stub.server() }
    };
    let outcome = opened(&with("PATH"), async |client, _| client.call(&reading(), json!({})).await);
    let message = outcome.unwrap().unwrap_err();
    assert!(message.ends_with("answered 403 Forbidden: …"), "{message}");
    assert!(stub.heard().iter().all(|request| request.header("authorization") == Some(secret.trim())));
    let n = stub.heard().len();
    let message = refused(&with("GREENROOM_NONE"));
    let why =
        "the header `Authorization` is expected in the environment variable GREENROOM_NONE, which is not set";
    assert!(message.contains(why), "{message}");
    assert_eq!(stub.heard().len(), n, "nothing was sent");
}
