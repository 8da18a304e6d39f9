//! Quotas of tokens: what a request has used counts, also if its client leaves before the reply is complete.

use super::Stage;
use super::serve::Server;
use greenroom_engine::{Conversation, Request, Sampling, SessionKey};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// Requests after which it is certain that nothing was counted.
const MAX_TRIES: usize = 500;

/// Sends a request; the answer is read from what comes back.
fn send(server: &Server, key: &str, method: &str, path: &str, body: &Value) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let (body, host) = (body.to_string(), &server.address);
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nx-api-key: {key}\r\n");
    let length =
        format!("Content-Type: application/json\r\nConnection: close\r\nContent-Length: {}", body.len());
    write!(stream, "{head}{length}\r\n\r\n{body}").unwrap();
    BufReader::new(stream)
}

fn status(server: &Server, key: &str, method: &str, path: &str, body: &Value) -> (u16, String) {
    let mut answer = send(server, key, method, path, body);
    let mut head = String::new();
    answer.read_line(&mut head).unwrap();
    let rest: String = answer.lines().map_while(Result::ok).collect();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), rest)
}

/// A server, and the key of each of some tenants, all of whom may use up one token.
fn server(stage: &Stage, tenants: &[&str]) -> (Server, impl Fn(&str) -> String) {
    let key = |tenant: &str| format!("a-long-secret-of-{tenant}");
    let file = stage.path("keys.yaml");
    let line = |tenant: &&str| format!("- {{key: {}, tenant: {tenant}, token_quota: 1}}\n", key(tenant));
    let text: String = tenants.iter().map(line).collect();
    std::fs::write(&file, format!("keys:\n{text}")).unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    (Server::start(stage, &["--keys", &file.display().to_string()]), key)
}

/// True as soon as a tenant's quota is used up; asking costs no tokens.
fn is_used_up(server: &Server, key: &str) -> bool {
    let prompt = serde_json::to_value(asked("x").prompt).unwrap();
    let counted = json!({ "model": "understudy", "prompt": prompt });
    (0..MAX_TRIES).any(|_| {
        let (status, text) = status(server, key, "POST", "/v1/turns/count", &counted);
        assert!(status == 200 || status == 429 && text.contains("quota of 1 tokens"), "{status}: {text}");
        status == 429
    })
}

/// True if a line of an answer has text after the mark: an empty one may come before anything was computed.
fn is_text(line: &str, mark: &str) -> bool {
    line.split_once(mark).is_some_and(|(_, rest)| !rest.starts_with('"'))
}

/// A runner's request.
fn asked(text: &str) -> Request {
    let conversation = Conversation { next: text.to_string(), ..Conversation::default() };
    Request::new(SessionKey::new("r", "a"), conversation)
}

/// Requests of every API that streams, each of which takes long, with what marks the first text of its
/// answer.
fn streams() -> Vec<(&'static str, &'static str, Value, &'static str)> {
    let tale = "Tell me all that you know of the old mill. ".repeat(20);
    // Nothing ends before this: digits go on.
    let endless = "[0-9 ]{200}";
    let message = json!([{ "role": "user", "content": tale }]);
    let turn = Request {
        max_tokens: 1500,
        min_tokens: 1500,
        sampling: Sampling { seed: 3, ..Sampling::default() },
        ..asked(&tale)
    };
    let scenario = format!(
        "agents: {{ a: {{}}, b: {{}} }}\nphases: [ {{ name: p, agents: [a, b], rounds: 40, prompt: \
         \"{tale}\" }} ]"
    );
    vec![
        (
            "/v1/chat/completions",
            "chat",
            json!({ "model": "understudy", "messages": message, "stream": true, "max_tokens": 1500, "n": 4 }),
            "\"content\":\"",
        ),
        (
            "/v1/completions",
            "raw",
            json!({
                "model": "understudy", "prompt": tale, "stream": true, "max_tokens": 1500, "n": 2,
                "structured_outputs": { "regex": endless },
            }),
            "\"text\":\"",
        ),
        (
            "/v1/responses",
            "responses",
            json!({ "model": "understudy", "input": tale, "stream": true, "max_output_tokens": 1500 }),
            "output_text.delta",
        ),
        (
            "/v1/messages",
            "messages",
            json!({ "model": "understudy", "messages": message, "stream": true, "max_tokens": 1500 }),
            "\"text\":\"",
        ),
        (
            "/v1/agents/mira/turns",
            "agents",
            json!({ "message": tale, "stream": true, "max_tokens": 1500, "grammar": { "regex": endless } }),
            "event: text",
        ),
        (
            "/v1/turns",
            "turns",
            json!({ "version": greenroom::backend::wire::VERSION, "model": "understudy", "request": turn }),
            "\"text\":\"",
        ),
        ("/v1/runs", "runs", json!({ "scenario": scenario }), "event: text"),
    ]
}

#[test]
fn a_stream_that_is_abandoned_costs_what_it_has_used() {
    let (stage, streams) = (Stage::new(), streams());
    let tenants: Vec<&str> = streams.iter().map(|(_, tenant, ..)| *tenant).collect();
    let (server, key) = server(&stage, &tenants);
    for (path, tenant, body, mark) in streams {
        let key = key(tenant);
        if tenant == "agents" {
            let (status, text) =
                status(&server, &key, "PUT", "/v1/agents/mira", &json!({ "model": "understudy" }));
            assert_eq!(status, 201, "{text}");
        }
        let mut answer = send(&server, &key, "POST", path, &body);
        let (mut line, mut seen) = (String::new(), String::new());
        while !is_text(&line, mark) {
            line.clear();
            assert!(answer.read_line(&mut line).unwrap() > 0, "{path}: no text came: {seen}");
            seen += &line;
        }
        drop(answer);
        assert!(is_used_up(&server, &key), "{path}: an abandoned stream costs nothing");
    }
}

#[test]
fn embeddings_and_rankings_cost_what_they_read() {
    let stage = Stage::new();
    let (server, key) = server(&stage, &["embeds", "ranks"]);
    let input = json!({ "model": "understudy", "input": "The old mill stands empty." });
    assert_eq!(status(&server, &key("embeds"), "POST", "/v1/embeddings", &input).0, 200);
    assert!(is_used_up(&server, &key("embeds")));
    let agent = json!({ "model": "understudy" });
    assert_eq!(status(&server, &key("ranks"), "PUT", "/v1/agents/mira", &agent).0, 201);
    let weighed = json!({ "message": "Is the mill empty?", "options": ["yes", "no"] });
    assert_eq!(status(&server, &key("ranks"), "POST", "/v1/agents/mira/rank", &weighed).0, 200);
    assert!(is_used_up(&server, &key("ranks")));
}
