//! Agents and their answers in this API's words.

use super::super::answer::CompletedReply;
use super::super::openai::explained;
use super::agent::{NamedAgent, PastReply, PastTurn, SerializedTool};
use greenroom_engine::{Completion, SessionStatus, StopReason, ToolCalls};
use serde_json::{Value, json};

/// An agent in a list.
pub(super) fn listed(name: &str, agent: &NamedAgent) -> Value {
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
pub(super) fn described(name: &str, agent: &NamedAgent) -> Value {
    let definition = &agent.definition;
    let mut described = listed(name, agent);
    described["system"] = json!(definition.system);
    described["tools"] = definition.tools.iter().flat_map(|tools| &tools.list).map(tool).collect();
    described["temperature"] = json!(definition.temperature);
    described["top_p"] = json!(definition.top_p);
    described["max_tokens"] = json!(definition.max_tokens);
    described["stop"] = json!(definition.stop);
    described["awaits_result"] = json!(agent.awaits_result());
    described
}

/// A tool, as it is given.
fn tool(tool: &SerializedTool) -> Value {
    let SerializedTool { name, about, arguments } = tool;
    json!({ "type": "function", "function": { "name": name, "description": about, "parameters": arguments } })
}

/// Everything that an agent has read and said, turn by turn.
pub(super) fn conversation(agent: &NamedAgent) -> Value {
    agent.past.iter().enumerate().map(|(at, past)| exchange(at + 1, past)).collect()
}

fn exchange(turn: usize, past: &PastTurn) -> Value {
    let mut described =
        json!({ "turn": turn, "message": past.heard, "text": null, "tokens": past.tokens, "at": past.at });
    match &past.said {
        PastReply::Text(text) | PastReply::CutCall(text) => described["text"] = json!(text),
        PastReply::Call { tool, arguments } => {
            described["call"] = json!({ "tool": tool, "arguments": arguments })
        }
    }
    described
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
pub(super) fn answered(name: &str, turn: usize, answer: &CompletedReply, options: &[String]) -> Value {
    let completion = &answer.completion;
    let mut described = json!({
        "agent": name,
        "turn": turn,
        "text": completion.speech(),
        "stop": stop(completion),
        "seed": answer.seed,
        "usage": usage(answer),
        "greenroom": explained(answer),
    });
    if !completion.thought().is_empty() {
        described["thought"] = json!(completion.thought());
    }
    if let Some(ToolCalls::Complete(calls)) = &completion.call
        && let Some(call) = calls.first()
    {
        described["text"] = Value::Null;
        described["call"] = json!({ "tool": call.tool, "arguments": call.arguments });
    }
    if let Some(choice) = &completion.choice {
        let logprobs = options.iter().zip(&choice.logprobs);
        let logprobs = logprobs.map(|(option, logprob)| json!({ "option": option, "logprob": logprob }));
        described["choice"] = json!({
            "option": options.get(choice.chosen),
            "logprobs": logprobs.collect::<Vec<_>>(),
        });
    }
    described
}

/// Tokens of an answer.
pub(super) fn usage(answer: &CompletedReply) -> Value {
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
