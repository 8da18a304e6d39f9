//! Servers that are programs.

use super::{opened, refused};
use crate::tools::{Call, CallOutcome};
use greenroom_scenario::tools::{ServerAddress, ToolServer};

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
    let address = ServerAddress::Program(["sh", "-c", script].map(String::from).to_vec());
    ToolServer { address, only, timeout: 2 }
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
    let address = ServerAddress::Program(vec!["greenroom-none".into()]);
    let none = ToolServer { address, only: None, timeout: 1 };
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
    let script =
        SERVER.replace(r#"{"content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]}"#, result);
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
    let script = SERVER
        .replace(r#"*'"name":"wait"'*) continue;;"#, r#"*'"name":"wait"'*) echo segfault >&2; exit 139;;"#);
    let call = Call { tool: "files_wait".into(), arguments: serde_json::json!({}) };
    let message =
        opened(&server(&script, None), async |client, _| client.call(&call, call.arguments.clone()).await);
    let message = message.unwrap().unwrap_err();
    assert!(message.contains("has ended (exit status: 139)") && message.contains("`segfault`"), "{message}");
}

#[test]
fn an_image_is_a_failed_call() {
    let image = answered(r#"{"content":[{"type":"image","data":"","mimeType":"image/png"}]}"#);
    assert_eq!(image, Err("the result contains an image, which agents can't read".into()));
}

/// A server that asks before it answers.
#[test]
fn requests_of_a_server_are_answered() {
    let asking = r#"*'"name":"wait"'*) printf '{"jsonrpc":"2.0","id":"s","method":"roots/list"}\n'; read -r said
        r='{"content":[{"type":"text","text":"heard"}]}'; case "$said" in *-32601*) ;; *) exit 1;; esac;;"#;
    let script = SERVER.replace(r#"*'"name":"wait"'*) continue;;"#, asking);
    let call = Call { tool: "files_wait".into(), arguments: serde_json::json!({}) };
    let outcome =
        opened(&server(&script, None), async |client, _| client.call(&call, call.arguments.clone()).await);
    assert_eq!(outcome.unwrap().as_deref(), Ok("heard"));
}
