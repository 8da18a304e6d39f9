//! The server as clients meet it: what they get, what is read twice, who disturbs whom, what is refused.

use super::Stage;
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server, which ends with this value.
pub(super) struct Server {
    child: Child,
    pub(super) address: String,
}

impl Server {
    pub(super) fn start(stage: &Stage, more: &[&str]) -> Self {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("greenroom"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--threads", "1", "--cache-dir"]);
        command.arg(stage.path("cache")).args(more).env("HOME", stage.dir.path());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let mut printed = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut printed).unwrap();
        let address = printed.split("http://").nth(1).and_then(|rest| rest.split('/').next());
        Self { address: address.unwrap_or_else(|| panic!("{printed}")).to_string(), child }
    }

    /// Ends it as a service manager does; what it exits with.
    fn end(mut self) -> Option<i32> {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(20) {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("it does not end");
    }

    fn open(&self, method: &str, path: &str, host: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let n = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n");
        write!(stream, "{head}Connection: close\r\nContent-Length: {n}\r\n\r\n{body}").unwrap();
        stream
    }

    /// Status and body of an answer.
    pub(super) fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        answer(self.open(method, path, &self.address, body))
    }

    fn chat(&self, body: &Value) -> Value {
        let (status, text) = self.ask("POST", "/v1/chat/completions", &body.to_string());
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn answer(mut stream: TcpStream) -> (u16, String) {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    let all = String::from_utf8(all).unwrap();
    let (head, body) = all.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{all}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    if !head.to_lowercase().contains("transfer-encoding: chunked") {
        return (status, body.to_string());
    }
    let (mut whole, mut rest) = (String::new(), body);
    while let Some((n, after)) = rest.split_once("\r\n") {
        let n = usize::from_str_radix(n, 16).unwrap();
        whole += &after[..n];
        rest = &after[n + 2..];
    }
    (status, whole)
}

fn asked(messages: &[(&str, &str)], seed: u64) -> Value {
    let messages: Vec<Value> =
        messages.iter().map(|(role, text)| json!({ "role": role, "content": text })).collect();
    json!({
        "model": "understudy", "messages": messages, "seed": seed, "max_tokens": 24, "greenroom": true,
    })
}

fn text(reply: &Value) -> &str {
    reply["choices"][0]["message"]["content"].as_str().unwrap_or_else(|| panic!("{reply}"))
}

/// What a server says that has read nothing, and knows how replies were said.
fn alone(stage: &Stage, body: &Value) -> Value {
    let fresh = Stage::new();
    std::fs::create_dir_all(fresh.path("cache/server")).unwrap();
    std::fs::copy(stage.path("cache/server/sessions.jsonl"), fresh.path("cache/server/sessions.jsonl"))
        .unwrap();
    Server::start(&fresh, &[]).chat(body)
}

const SYSTEM: (&str, &str) = ("system", "You are Mira. You grow melons beside an old well.");

#[test]
fn nothing_is_read_twice_not_even_after_a_restart() {
    let stage = Stage::new();
    let server = Server::start(&stage, &[]);
    let one = [SYSTEM, ("user", "Good evening, Mira. How are the melons?")];
    let first = server.chat(&asked(&one, 1));
    let two = [&one[..], &[("assistant", text(&first)), ("user", "And the well?")]].concat();
    let second = server.chat(&asked(&two, 2));
    let (before, cost) = (&first["usage"], &second["usage"]);
    assert_eq!(second["greenroom"]["match"], "extend", "{second}");
    assert_eq!(cost["prompt_tokens_details"]["cached_tokens"], before["total_tokens"], "{second}");
    assert_eq!(second["greenroom"]["recomputed"], 0);
    assert_eq!(server.end(), Some(0));
    let server = Server::start(&stage, &[]);
    let three = [&two[..], &[("assistant", text(&second)), ("user", "Good night.")]].concat();
    let third = server.chat(&asked(&three, 3));
    assert_eq!(third["greenroom"]["source"], "disk", "{third}");
    assert_eq!(third["usage"]["prompt_tokens_details"]["cached_tokens"], cost["total_tokens"], "{third}");
    // The same without any memory but of what was said.
    let cold = alone(&stage, &asked(&three, 3));
    assert_eq!((text(&cold), &cold["greenroom"]["match"]), (text(&third), &json!("cold")));
}

#[test]
fn clients_who_begin_alike_share_what_they_read_and_never_disturb_each_other() {
    let stage = Stage::new();
    let server = Server::start(&stage, &[]);
    let one = [SYSTEM, ("user", "Good evening, Mira. How are the melons this year, after so little rain?")];
    let first = server.chat(&asked(&one, 1));
    let said = text(&first).to_string();
    let branch = |word: &'static str| [&one[..], &[("assistant", said.as_str()), ("user", word)]].concat();
    let (left, right) = (branch("Left."), branch("Right, then."));
    let (to_left, to_right) = (server.chat(&asked(&left, 2)), server.chat(&asked(&right, 3)));
    for (reply, kind) in [(&to_left, "extend"), (&to_right, "diverge")] {
        assert_eq!(reply["greenroom"]["match"], kind, "{reply}");
        let cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        assert!(cached >= first["usage"]["total_tokens"].as_u64().map(|n| n - 1), "{reply}");
    }
    // Each is resumed where it was.
    for (branch, reply, seed) in [(&left, &to_left, 4), (&right, &to_right, 5), (&left, &to_left, 4)] {
        let more = [&branch[..], &[("assistant", text(reply)), ("user", "Go on.")]].concat();
        let next = server.chat(&asked(&more, seed));
        let cached = &next["usage"]["prompt_tokens_details"]["cached_tokens"];
        assert!(cached.as_u64() >= reply["usage"]["total_tokens"].as_u64().map(|n| n - 1), "{next}");
        assert_eq!(
            text(&alone(&stage, &asked(&more, seed))),
            text(&next),
            "what it says is what it says alone"
        );
    }
}

#[test]
fn a_stream_says_what_the_whole_reply_says() {
    let stage = Stage::new();
    let server = Server::start(&stage, &[]);
    let mut body = asked(&[SYSTEM, ("user", "Tell me of the well.")], 7);
    let whole = server.chat(&body);
    body["stream"] = json!(true);
    body["stream_options"] = json!({ "include_usage": true });
    let (status, events) = server.ask("POST", "/v1/chat/completions", &body.to_string());
    assert_eq!(status, 200, "{events}");
    let data: Vec<&str> = events.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(data.last(), Some(&"[DONE]"), "{events}");
    let chunks: Vec<Value> =
        data[..data.len() - 1].iter().map(|chunk| serde_json::from_str(chunk).unwrap()).collect();
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let said: String =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(said, text(&whole));
    let [.., last, usage] = &chunks[..] else { panic!("{events}") };
    assert_eq!(last["choices"][0]["finish_reason"], whole["choices"][0]["finish_reason"]);
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
    assert!(
        chunks
            .iter()
            .all(|chunk| chunk["object"] == "chat.completion.chunk" && chunk["id"] == chunks[0]["id"])
    );
}

#[test]
fn a_reply_has_the_form_that_is_asked_for() {
    let stage = Stage::new();
    let server = Server::start(&stage, &[]);
    let mut body = asked(&[SYSTEM, ("user", "Name a price.")], 3);
    let schema = json!({
        "type": "object", "properties": { "price": { "type": "integer", "minimum": 1, "maximum": 9 } },
        "required": ["price"], "additionalProperties": false,
    });
    body["response_format"] =
        json!({ "type": "json_schema", "json_schema": { "name": "p", "schema": schema } });
    let reply = server.chat(&body);
    let value: Value = serde_json::from_str(text(&reply)).unwrap();
    assert!((1..=9).contains(&value["price"].as_i64().unwrap()), "{reply}");
}

#[test]
fn what_can_not_be_had_is_refused_by_name() {
    let stage = Stage::new();
    let server = Server::start(&stage, &[]);
    let fine = asked(&[("user", "Hello.")], 1);
    let with = |field: &str, value: Value| {
        let mut body = fine.clone();
        body[field] = value;
        body.to_string()
    };
    let image =
        json!([{ "role": "user", "content": [{ "type": "image_url", "image_url": { "url": "x" } }] }]);
    let long = json!([{ "role": "user", "content": "word ".repeat(20_000) }]);
    for (body, status, param, word) in [
        ("{".to_string(), 400, json!(null), "not JSON"),
        (with("tool_choice", json!("required")), 400, json!("tool_choice"), "no tools"),
        (with("typical_p", json!(0.5)), 400, json!("typical_p"), "not supported"),
        (with("n", json!(99)), 400, json!("n"), "1 to 16"),
        (with("model", json!("gpt-4o")), 404, json!("model"), "available models: understudy"),
        (with("messages", image), 400, json!("messages[0].content[0]"), "image_url"),
        (with("messages", json!([])), 400, json!("messages"), "no message"),
        (with("messages", json!([{ "role": "wizard" }])), 400, json!("messages[0].role"), "wizard"),
        (with("messages", long), 400, json!("messages"), "context"),
        (with("temperature", json!(-1)), 400, json!(null), "temperature"),
    ] {
        let (found, text) = server.ask("POST", "/v1/chat/completions", &body);
        let printed: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
        assert_eq!((found, &printed["error"]["param"]), (status, &param), "{text}");
        assert!(printed["error"]["message"].as_str().unwrap().contains(word), "{text}");
    }
    assert_eq!(server.ask("GET", "/nothing", "").0, 404);
    assert_eq!(server.ask("GET", "/v1/chat/completions", "").0, 404);
    // Its length alone says that it is too large.
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let (host, n) = (&server.address, 9 << 20);
    write!(stream, "POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {n}\r\n\r\n")
        .unwrap();
    assert_eq!(answer(stream).0, 413);
    // A page of another site, by a name that leads here.
    let (status, text) = answer(server.open("GET", "/v1/models", "evil.example:8080", ""));
    assert!(status == 403 && text.contains("not a name of this machine"), "{text}");
    let (status, text) = server.ask("GET", "/v1/models", "");
    assert!(status == 200 && text.contains(r#""id":"understudy""#), "{text}");
}

#[test]
fn a_client_that_goes_away_takes_nothing_with_it() {
    let stage = Stage::new();
    let server = Server::start(&stage, &[]);
    let mut body = asked(&[SYSTEM, ("user", "Tell me everything about the well, and leave nothing out.")], 7);
    let short = server.chat(&body);
    body["stream"] = json!(true);
    body["max_tokens"] = json!(900);
    for _ in 0..4 {
        let mut stream = server.open("POST", "/v1/chat/completions", &server.address, &body.to_string());
        let mut piece = [0; 64];
        let _ = stream.read(&mut piece).unwrap();
    }
    let began = Instant::now();
    assert_eq!(server.ask("GET", "/health", "").0, 200);
    body["stream"] = json!(false);
    body["max_tokens"] = json!(24);
    assert_eq!(text(&server.chat(&body)), text(&short));
    assert!(began.elapsed() < Duration::from_secs(20));
    assert_eq!(server.end(), Some(0));
}
