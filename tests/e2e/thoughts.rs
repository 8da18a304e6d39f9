//! Reasoning before a reply, by models that say given tokens: what scenarios hear and record, and what the three
//! APIs give and count, whole and streamed.

use super::Stage;
use super::serve::Server;
use greenroom_engine::fixtures::RandomModel;
use serde_json::{Value, json};

/// A file with a real template and a model that says these tokens, the first of which its prompts end with.
pub(super) fn puppet(stage: &Stage, template: &str, control: &str, tokens: &[&str]) -> String {
    let template = std::fs::read_to_string(format!("tests/fixtures/templates/{template}.jinja")).unwrap();
    let control = control.split(' ').map(str::to_owned).collect();
    let model = RandomModel { template: Some(template), control, ..RandomModel::tiny(3) };
    let path = stage.path("puppet.gguf");
    std::fs::write(&path, model.saying(tokens)).unwrap();
    path.display().to_string()
}

fn qwen(stage: &Stage, tokens: &[&str]) -> String {
    puppet(stage, "Qwen-Qwen3-0.6B", "<think> </think> <tool_call> </tool_call>", tokens)
}

/// A template that opens the thought, where one is asked for.
fn deepseek(stage: &Stage, tokens: &[&str]) -> String {
    let control = "<｜User｜> <｜Assistant｜> <｜end▁of▁sentence｜> <think> </think>";
    puppet(stage, "deepseek-ai-DeepSeek-V3.1", control, tokens)
}

const SCENARIO: &str = "
agents: { ann: {}, ben: {} }
sampling: { temperature: 0, reasoning: high, reasoning_budget: 3 }
phases:
  - { name: talk, agents: [ann, ben], rounds: 2, sampling: { max_tokens: 5 }, prompt: Talk. }
";

#[test]
fn a_thought_that_the_limit_cuts_is_heard_by_nobody() {
    let stage = Stage::new();
    let model = deepseek(&stage, &["<think>", "h", "h", "</think>", "Y", "o"]);
    let scenario = stage.path("thoughts.yaml");
    std::fs::write(&scenario, SCENARIO).unwrap();
    let run = |name: &str, more: &[&str]| {
        let out = stage.path(name).display().to_string();
        let scenario = scenario.display().to_string();
        let args = ["run", &scenario, "--model", &model, "--out", &out];
        let done = stage.greenroom(&[&args[..], more].concat()).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        (out, String::from_utf8(done.stdout).unwrap())
    };
    let (out, shown) = run("run", &[]);
    let transcript = std::fs::read_to_string(format!("{out}/transcript.jsonl")).unwrap();
    let lines = transcript.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let turns: Vec<Value> = lines.filter(|line| line["type"] == "turn").collect();
    assert_eq!(turns.len(), 4, "{transcript}");
    for turn in &turns {
        assert_eq!((&turn["raw"], &turn["spoken"]), (&json!("hhh</think>Yo"), &json!("Yo")));
        assert_eq!(turn["speech"], json!([11, 13]));
        assert!(!turn["delta"].as_str().unwrap().contains("hhh"), "{turn}");
    }
    assert!(shown.contains("Yo") && !shown.contains("hhh"), "{shown}");
    let trace = std::fs::read_to_string(format!("{out}/trace.jsonl")).unwrap();
    assert_eq!(trace.matches("\"extend\"").count(), 2, "{trace}");
    // It is replayed without the model, and with it, token by token.
    for more in [&["replay", &out][..], &["replay", &out, "--rerun=exact", "--model", &model]] {
        let done = stage.greenroom(more).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&[done.stdout, done.stderr].concat()));
    }
}

/// The events of a stream, but for its last line.
fn events(text: &str) -> Vec<Value> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|line| *line != "[DONE]");
    data.map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(super) fn asked(server: &Server, path: &str, body: &Value) -> Value {
    let (status, text) = server.ask("POST", path, &body.to_string());
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

fn streamed(server: &Server, path: &str, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let (status, text) = server.ask("POST", path, &body.to_string());
    assert_eq!(status, 200, "{text}");
    events(&text)
}

fn with(mut body: Value, more: &Value) -> Value {
    more.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
    body
}

fn body(more: &Value) -> Value {
    let messages = json!([{ "role": "user", "content": "Go on." }]);
    with(json!({ "model": "puppet", "messages": messages, "temperature": 0, "max_tokens": 20 }), more)
}

#[test]
fn chat_completions_have_it_as_reasoning_content() {
    let stage = Stage::new();
    let model = qwen(&stage, &["\n", "<think>", "h", "m", "</think>", "Y", "o"]);
    let server = Server::start(&stage, &["--model", &model]);
    let path = "/v1/chat/completions";
    let thinks = body(&json!({ "reasoning_effort": "high" }));
    let reply = asked(&server, path, &thinks);
    let message = &reply["choices"][0]["message"];
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("hm"), &json!("Yo")), "{reply}");
    assert_eq!(reply["usage"]["completion_tokens_details"]["reasoning_tokens"], 4, "{reply}");
    let delta = |events: &[Value], name: &str| -> String {
        events.iter().filter_map(|chunk| chunk["choices"][0]["delta"][name].as_str()).collect()
    };
    let chunks = streamed(&server, path, &thinks);
    assert_eq!((delta(&chunks, "reasoning_content"), delta(&chunks, "content")), ("hm".into(), "Yo".into()));
    // A client sends back what it got, with the thought or without it: nothing is read again.
    let next = json!([
        { "role": "user", "content": "Go on." },
        { "role": "assistant", "content": "Yo", "reasoning_content": "hm" },
        { "role": "user", "content": "And?" },
    ]);
    let more = json!({ "messages": next, "reasoning_effort": "high", "greenroom": true });
    let again = asked(&server, path, &body(&more));
    assert_eq!(again["greenroom"]["match"], "extend", "{again}");
    assert_eq!(again["greenroom"]["recomputed"], 0, "{again}");
    // The switch is in the template's words, too; without it nothing is thought.
    let kwargs = json!({ "chat_template_kwargs": { "enable_thinking": true } });
    assert_eq!(asked(&server, path, &body(&kwargs))["choices"][0]["message"]["reasoning_content"], "hm");
    let prompt = |more: &Value| asked(&server, "/apply-template", &body(more))["prompt"].clone();
    assert!(prompt(&kwargs).as_str().unwrap().ends_with("assistant\n"));
    assert!(prompt(&json!({})).as_str().unwrap().ends_with("</think>\n\n"));
    let (status, refused) =
        server.ask("POST", path, &body(&json!({ "reasoning_effort": "lots" })).to_string());
    assert!(status == 400 && refused.contains("reasoning_effort"), "{refused}");
}

#[test]
fn messages_have_it_as_thinking_blocks() {
    let stage = Stage::new();
    let model = deepseek(&stage, &["<think>", "h", "h", "</think>", "Y", "o"]);
    let server = Server::start(&stage, &["--model", &model]);
    let enabled = body(&json!({ "thinking": { "type": "enabled", "budget_tokens": 3 } }));
    let reply = asked(&server, "/v1/messages", &enabled);
    let blocks = json!([
        { "type": "thinking", "thinking": "hhh", "signature": "" },
        { "type": "text", "text": "Yo", "citations": null },
    ]);
    assert_eq!((&reply["content"], &reply["stop_reason"]), (&blocks, &json!("end_turn")), "{reply}");
    let events = streamed(&server, "/v1/messages", &enabled);
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let deltas: Vec<&str> = events.iter().filter_map(|event| event["delta"]["type"].as_str()).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "content_block_start").count(), 2, "{kinds:?}");
    let signature = deltas.iter().position(|kind| *kind == "signature_delta").unwrap();
    assert!(deltas[..signature].iter().all(|kind| *kind == "thinking_delta"), "{deltas:?}");
    assert!(deltas[signature + 1..].iter().all(|kind| *kind == "text_delta"), "{deltas:?}");
    let thought: String = events.iter().filter_map(|event| event["delta"]["thinking"].as_str()).collect();
    assert_eq!(thought, "hhh");
}

#[test]
fn responses_have_it_as_an_item() {
    let stage = Stage::new();
    let model = qwen(&stage, &["\n", "<think>", "h", "m", "</think>", "Y", "o"]);
    let server = Server::start(&stage, &["--model", &model]);
    let asks = json!({
        "model": "puppet", "input": "Go on.", "temperature": 0, "max_output_tokens": 20,
        "reasoning": { "effort": "low" }, "greenroom": true,
    });
    let reply = asked(&server, "/v1/responses", &asks);
    let kinds: Vec<&Value> = reply["output"].as_array().unwrap().iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["reasoning", "message"], "{reply}");
    assert_eq!(reply["output"][0]["content"], json!([{ "type": "reasoning_text", "text": "hm" }]));
    assert_eq!(reply["output"][1]["content"][0]["text"], "Yo");
    assert_eq!(reply["usage"]["output_tokens_details"]["reasoning_tokens"], 4);
    assert_eq!(reply["reasoning"]["effort"], "low");
    let events = streamed(&server, "/v1/responses", &asks);
    let said = |kind: &str| -> String {
        let of_kind = events.iter().filter(|event| event["type"] == kind);
        of_kind.filter_map(|event| event["delta"].as_str()).collect()
    };
    assert_eq!(said("response.reasoning_text.delta"), "hm");
    assert_eq!(said("response.output_text.delta"), "Yo");
    // The next one continues it, by its id or by its items.
    let by_id = with(asks.clone(), &json!({ "input": "And?", "previous_response_id": reply["id"] }));
    assert_eq!(asked(&server, "/v1/responses", &by_id)["greenroom"]["match"], "extend");
}

#[test]
fn a_call_follows_a_thought_and_a_text_in_every_api() {
    let stage = Stage::new();
    let model = qwen(&stage, &["\n", "<think>", "h", "</think>", "Y", "<tool_call>", "{"]);
    let server = Server::start(&stage, &["--model", &model]);
    let schema = json!({ "type": "object", "properties": { "n": { "enum": [7] } }, "required": ["n"], "additionalProperties": false });
    let function = json!({ "name": "roll", "description": "Rolls.", "parameters": schema });
    let tools = json!([{ "type": "function", "function": function }]);
    let more = json!({ "tools": tools, "reasoning_effort": "high", "max_tokens": 90, "greenroom": true });
    let asks = body(&more);
    let reply = asked(&server, "/v1/chat/completions", &asks);
    let message = &reply["choices"][0]["message"];
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("h"), &json!("Y")), "{reply}");
    let call = &message["tool_calls"][0];
    assert_eq!(
        (&call["function"]["name"], &call["function"]["arguments"]),
        (&json!("roll"), &json!("{\"n\":7}"))
    );
    assert_eq!(reply["choices"][0]["finish_reason"], "tool_calls");
    // The result comes after one reply of text and call, not after an empty message of the user.
    let messages = json!([
        { "role": "user", "content": "Go on." }, message,
        { "role": "tool", "tool_call_id": call["id"], "content": "7" },
    ]);
    let next = asked(&server, "/v1/chat/completions", &with(asks, &json!({ "messages": messages })));
    assert_eq!(
        (&next["greenroom"]["match"], &next["greenroom"]["recomputed"]),
        (&json!("extend"), &json!(0))
    );
    let tool = json!({ "name": "roll", "description": "Rolls.", "input_schema": schema });
    let thinking = json!({ "type": "enabled", "budget_tokens": 50 });
    let asks = body(&json!({ "tools": [tool], "thinking": thinking, "max_tokens": 90 }));
    let kinds = |blocks: &Value| -> Vec<String> {
        blocks.as_array().unwrap().iter().map(|block| block["type"].as_str().unwrap().to_owned()).collect()
    };
    let reply = asked(&server, "/v1/messages", &asks);
    assert_eq!(kinds(&reply["content"]), ["thinking", "text", "tool_use"], "{reply}");
    let started = streamed(&server, "/v1/messages", &asks);
    let started: Vec<&Value> =
        started.iter().map(|event| &event["content_block"]["type"]).filter(|kind| !kind.is_null()).collect();
    assert_eq!(started, ["thinking", "text", "tool_use"]);
    let tool = with(function, &json!({ "type": "function" }));
    let asks = json!({
        "model": "puppet", "input": "Go on.", "temperature": 0, "max_output_tokens": 90,
        "tools": [tool], "reasoning": { "effort": "high" },
    });
    let reply = asked(&server, "/v1/responses", &asks);
    assert_eq!(kinds(&reply["output"]), ["reasoning", "message", "function_call"], "{reply}");
    let streamed = streamed(&server, "/v1/responses", &asks);
    let output = &streamed.last().unwrap()["response"]["output"];
    assert_eq!(kinds(output), ["reasoning", "message", "function_call"], "{output}");
}
