//! Agents and their answers in this API's words.

use super::super::ask::{Answer, calls};
use super::super::openai::explained;
use super::agent::{Agent, Past, Said, ToolSpec};
use greenroom_engine::{Completion, SessionStatus, StopReason, ToolCalls};
use serde_json::{Value, json};

/// An agent in a list.
pub(super) fn listed(name: &str, agent: &Agent) -> Value {
    json!({
        "name": name,
        "model": agent.definition.model,
        "turns": agent.past.len(),
        "tokens": agent.tokens(),
        "pinned": agent.is_pinned,
        "created": agent.created,
        "updated": agent.updated(),
    })
}

/// An agent with its definition.
pub(super) fn described(name: &str, agent: &Agent) -> Value {
    let definition = &agent.definition;
    let mut told = listed(name, agent);
    told["system"] = json!(definition.system);
    told["tools"] = definition.tools.iter().flat_map(|tools| &tools.list).map(tool).collect();
    told["temperature"] = json!(definition.temperature);
    told["top_p"] = json!(definition.top_p);
    told["max_tokens"] = json!(definition.max_tokens);
    told["stop"] = json!(definition.stop);
    told["awaits_result"] = json!(agent.awaits_result());
    told
}

/// A tool, as it is given.
fn tool(tool: &ToolSpec) -> Value {
    let ToolSpec { name, about, arguments } = tool;
    json!({ "type": "function", "function": { "name": name, "description": about, "parameters": arguments } })
}

/// Everything that an agent has read and said, turn by turn.
pub(super) fn conversation(agent: &Agent) -> Value {
    agent.past.iter().enumerate().map(|(at, past)| exchange(at + 1, past)).collect()
}

fn exchange(turn: usize, past: &Past) -> Value {
    let mut told =
        json!({ "turn": turn, "message": past.heard, "text": null, "tokens": past.tokens, "at": past.at });
    match &past.said {
        Said::Text(text) | Said::CutCall(text) => told["text"] = json!(text),
        Said::Call { tool, arguments } => told["call"] = json!({ "tool": tool, "arguments": arguments }),
    }
    told
}

/// State of a memory; `None`: it is not in RAM, but may be on disk.
pub(super) fn memory(known: Option<&SessionStatus>) -> Value {
    match known {
        None => json!({
            "is_hot": false, "is_at_work": false, "is_on_disk": null,
            "tokens": 0, "tokens_in_memory": 0, "bytes_in_memory": 0,
        }),
        Some(status) => json!({
            "is_hot": status.tokens_in_memory > 0,
            "is_at_work": status.is_at_work,
            "is_on_disk": status.is_saved,
            "tokens": status.tokens,
            "tokens_in_memory": status.tokens_in_memory,
            "bytes_in_memory": status.bytes_in_memory,
        }),
    }
}

/// An answer of an agent; `options` are those that it chose from.
pub(super) fn answered(name: &str, turn: usize, answer: &Answer, options: &[String]) -> Value {
    let completion = &answer.completion;
    let mut told = json!({
        "agent": name,
        "turn": turn,
        "text": completion.text,
        "stop": stop(completion),
        "seed": answer.seed,
        "usage": usage(answer),
        "greenroom": explained(answer),
    });
    if let Some(call) = calls(completion).first() {
        told["text"] = Value::Null;
        told["call"] = json!({ "tool": call.tool, "arguments": call.arguments });
    }
    if let Some(choice) = &completion.choice {
        let logprobs = options.iter().zip(&choice.logprobs);
        let logprobs = logprobs.map(|(option, logprob)| json!({ "option": option, "logprob": logprob }));
        told["choice"] = json!({
            "option": options.get(choice.chosen),
            "logprobs": logprobs.collect::<Vec<_>>(),
        });
    }
    told
}

/// Tokens of an answer.
pub(super) fn usage(answer: &Answer) -> Value {
    json!({
        "prompt_tokens": answer.prompt_tokens(),
        "cached_tokens": answer.completion.usage.reused,
        "completion_tokens": answer.completion.ids.len(),
    })
}

fn stop(completion: &Completion) -> &'static str {
    match (completion.stop, &completion.call) {
        (_, Some(ToolCalls::Complete(_))) => "call",
        (StopReason::StopString, _) => "stop_string",
        (StopReason::Length | StopReason::Sentence, _) => "length",
        _ => "end_of_turn",
    }
}
