//! The date in prompts of templates that print one: that of a conversation's beginning, whatever the day.

use super::Stage;
use super::serve::Server;
use super::thoughts::{asked, puppet};
use serde_json::{Value, json};

#[test]
fn a_conversation_keeps_the_day_on_which_it_began() {
    let stage = Stage::new();
    let control = "<|start_header_id|> <|end_header_id|> <|eot_id|>";
    let model = puppet(&stage, "meta-llama-Llama-3.1-8B-Instruct", control, &["<|end_header_id|>", "Y", "o"]);
    let model = format!("llama={model}");
    let on = |date: &str| Server::start(&stage, &["--model", &model, "--date", date]);
    let chat = |server: &Server, texts: &[&str]| {
        let role = |n: usize| if n.is_multiple_of(2) { "user" } else { "assistant" };
        let messages = texts.iter().enumerate().map(|(n, text)| json!({ "role": role(n), "content": text }));
        let messages: Vec<Value> = messages.collect();
        let body = json!({ "messages": messages, "max_tokens": 2, "min_tokens": 2, "temperature": 0, "greenroom": true });
        asked(server, "/v1/chat/completions", &body)
    };
    let shown = |server: &Server| {
        let body = json!({ "messages": [{ "role": "user", "content": "Hi." }] });
        asked(server, "/apply-template", &body)["prompt"].as_str().unwrap().to_owned()
    };
    let agent = |server: &Server| {
        asked(server, "/v1/agents/ada/turns", &json!({ "message": "Hm?", "max_tokens": 2, "temperature": 0 }))
    };

    let server = on("2026-11-28");
    assert!(shown(&server).contains("Today Date: 28 Nov 2026\n"), "{}", shown(&server));
    let first = chat(&server, &["What day is it?"]);
    let (status, text) = server.ask("PUT", "/v1/agents/ada", &json!({ "model": "llama" }).to_string());
    assert_eq!(status, 201, "{text}");
    agent(&server);
    drop(server);

    // A day later the conversation goes on as it began, and others begin.
    let server = on("2026-11-29");
    assert!(shown(&server).contains("Today Date: 29 Nov 2026\n"), "{}", shown(&server));
    let said = first["choices"][0]["message"]["content"].as_str().unwrap();
    let then = chat(&server, &["What day is it?", said, "Still?"]);
    assert_eq!(
        (&then["greenroom"]["match"], &then["greenroom"]["recomputed"]),
        (&json!("extend"), &json!(0))
    );
    let other = chat(&server, &["What day is it?"]);
    let asked = other["greenroom"]["divergence"]["asked"].as_str().unwrap_or_default();
    assert!(asked.contains("Today Date: 29 Nov 2026"), "{other}");
    let turn = agent(&server);
    assert_eq!(
        (&turn["greenroom"]["match"], &turn["greenroom"]["recomputed"]),
        (&json!("extend"), &json!(0))
    );
    drop(server);

    let server = Server::start(&stage, &["--model", &model]);
    assert!(!shown(&server).contains("26 Jul 2024"), "{}", shown(&server));
}
