//! The response object: the request, the reply and its cost.

use super::super::words::finish_reason;
use super::input::{Item, Status};
use crate::server::answer::CompletedReply;
use crate::server::error::Refusal;
use crate::server::models::now;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A response, as the API shows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ResponseObject {
    pub(super) id: String,
    pub(super) object: String,
    /// Seconds since 1970.
    pub(super) created_at: u64,
    pub(super) completed_at: Option<u64>,
    pub(super) status: Status,
    pub(super) error: Option<Value>,
    pub(super) incomplete_details: Option<Value>,
    pub(super) model: String,
    pub(super) output: Vec<Item>,
    pub(super) usage: Option<Value>,
    // The request, with defaults filled in.
    pub(super) background: bool,
    pub(super) instructions: Option<String>,
    pub(super) max_output_tokens: Option<usize>,
    pub(super) max_tool_calls: Option<usize>,
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) parallel_tool_calls: bool,
    pub(super) previous_response_id: Option<String>,
    pub(super) prompt_cache_key: Option<String>,
    pub(super) reasoning: Value,
    pub(super) safety_identifier: Option<String>,
    pub(super) service_tier: String,
    pub(super) store: bool,
    pub(super) temperature: f64,
    pub(super) text: Value,
    pub(super) tool_choice: Value,
    pub(super) tools: Vec<Value>,
    pub(super) top_logprobs: usize,
    pub(super) top_p: f64,
    pub(super) truncation: String,
    pub(super) user: Option<String>,
    /// Why the cache missed, compared with the given response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prompt_cache_diagnostics: Option<Value>,
    /// Ours: how the prompt met the memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) greenroom: Option<Value>,
}

impl ResponseObject {
    /// Completes the answer with these items.
    pub(super) fn conclude(&mut self, items: Vec<Item>, answer: &CompletedReply) {
        let is_cut = finish_reason(&answer.completion) == "length";
        self.status = if is_cut { Status::Incomplete } else { Status::Completed };
        self.incomplete_details = is_cut.then(|| json!({ "reason": "max_output_tokens" }));
        self.completed_at = (!is_cut).then(now);
        self.output = items;
        self.usage = Some(usage(answer));
    }

    /// The answer broke off.
    pub(super) fn fail(&mut self, refusal: &Refusal) {
        // The API defines only a few codes.
        let code = match refusal.status().as_u16() {
            429 => "rate_limit_exceeded",
            500.. => "server_error",
            _ => "invalid_prompt",
        };
        self.status = Status::Failed;
        self.error = Some(json!({ "code": code, "message": refusal.message() }));
    }
}

/// Tokens of the prompt and of the reply. The computed part of the prompt was written to the cache.
fn usage(answer: &CompletedReply) -> Value {
    let cost = &answer.completion.usage;
    let (read, said) = (answer.prompt_tokens(), answer.n_tokens());
    json!({
        "input_tokens": read,
        "input_tokens_details": {
            "cached_tokens": cost.reused,
            "cache_write_tokens": cost.prefilled + cost.recomputed,
        },
        "output_tokens": said,
        "output_tokens_details": { "reasoning_tokens": answer.completion.n_thought },
        "total_tokens": read + said,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_response_says_why_in_the_codes_of_the_api() {
        let mut response = ResponseObject::default();
        for (refusal, code) in [
            (Refusal::request("no"), "invalid_prompt"),
            (Refusal::too_many("full", std::time::Duration::from_secs(1)), "rate_limit_exceeded"),
            (Refusal::ending(), "server_error"),
        ] {
            response.fail(&refusal);
            assert_eq!(response.error, Some(json!({ "code": code, "message": refusal.message() })));
            assert_eq!(json!(response)["status"], "failed");
        }
    }

    #[test]
    fn a_response_is_read_as_it_is_shown() {
        let response =
            ResponseObject { id: "resp_1".to_string(), temperature: 0.7, ..ResponseObject::default() };
        let shown = json!(response);
        assert_eq!(shown["temperature"], 0.7);
        assert!(shown.get("greenroom").is_none());
        assert_eq!(serde_json::from_value::<ResponseObject>(shown).unwrap(), response);
    }
}
