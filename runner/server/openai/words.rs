//! Formats that OpenAI's APIs share: why a reply ended, its cost, its log-probabilities, why a cache missed.

use super::super::App;
use super::super::answer::CompletedReply;
use super::super::dialogue::Dialogue;
use super::super::recent::{Diagnosis, Reason};
use greenroom_engine::{Completion, StopReason, TokenLogprob, ToolCalls};
use serde::Deserialize;
use serde_json::{Value, json};

/// Options of a stream.
#[derive(Deserialize)]
pub(super) struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

impl StreamOptions {
    /// True if the last part should report the answer's cost.
    pub(super) fn include_usage(options: Option<&Self>) -> bool {
        options.is_some_and(|options| options.include_usage)
    }
}

/// Options of a prompt's cache.
#[derive(Default, Deserialize)]
pub(super) struct CacheOptions {
    /// The answer whose prompt this one is compared with.
    pub(super) comparison_response_id: Option<String>,
}

/// Why a reply ended.
pub(super) fn finish_reason(completion: &Completion) -> &'static str {
    match (completion.stop, &completion.call) {
        (StopReason::EndOfTurn, Some(ToolCalls::Complete(_))) => "tool_calls",
        (StopReason::Length | StopReason::Sentence, _) => "length",
        _ => "stop",
    }
}

/// Tokens of the prompt, those that were not computed for it, and tokens of all replies.
pub(super) fn usage(answers: &[CompletedReply]) -> Value {
    let prompt = answers.first().map_or(0, CompletedReply::prompt_tokens);
    let cached = answers.first().map_or(0, |answer| answer.completion.usage.reused);
    let said: usize = answers.iter().map(CompletedReply::n_tokens).sum();
    let thought: usize = answers.iter().map(|answer| answer.completion.n_thought).sum();
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": said,
        "total_tokens": prompt + said,
        "prompt_tokens_details": { "cached_tokens": cached, "audio_tokens": 0 },
        "completion_tokens_details": { "reasoning_tokens": thought, "audio_tokens": 0 },
    })
}

/// Tokens with their log-probabilities.
pub(super) fn logprobs(tokens: &[TokenLogprob]) -> Value {
    let one = |bytes: &[u8], logprob: f32| {
        json!({
            "token": String::from_utf8_lossy(bytes), "logprob": logprob, "bytes": bytes
        })
    };
    let tokens = tokens.iter().map(|token| {
        let mut token_value = one(&token.bytes, token.logprob);
        token_value["top_logprobs"] = token.top.iter().map(|top| one(&top.bytes, top.logprob)).collect();
        token_value
    });
    tokens.collect()
}

/// How the prompt matched the memory, in this server's format.
pub(in super::super) fn explained(answer: &CompletedReply) -> Value {
    let cost = &answer.completion.usage;
    json!({
        "match": cost.kind.word(),
        "source": cost.source.word(),
        "reused": cost.reused,
        "prefilled": cost.prefilled,
        "recomputed": cost.recomputed,
        "reason": cost.reason,
        "divergence": cost.divergence.as_ref().map(|place| json!({
            "token": place.token,
            "character": place.character,
            "held": place.held,
            "asked": place.asked,
        })),
        "choice": answer.completion.choice,
        "seed": answer.seed,
        "digest": answer.completion.digest,
        "ttft_ms": cost.ttft_ms,
        "total_ms": cost.total_ms,
    })
}

/// Says in an answer what of the request was not read as it was sent.
pub(in super::super) fn warn(part: &mut Value, answer: &CompletedReply) {
    if !answer.warnings.is_empty() {
        part["greenroom"]["warnings"] = json!(answer.warnings);
    }
}

/// Why the cache missed, compared with an earlier answer.
pub(super) fn diagnostics(
    (app, tenant, model): (&App, &str, &str),
    earlier: &str,
    dialogue: &Dialogue,
    answer: &CompletedReply,
) -> Value {
    match app.recent.diagnose(tenant, earlier, model, dialogue, answer) {
        Diagnosis::Hit => json!({ "type": "cache_hit" }),
        Diagnosis::NotFound => json!({ "type": "comparison_response_not_found" }),
        Diagnosis::Miss { reason: Reason::Unavailable, .. } => json!({ "type": "unavailable" }),
        Diagnosis::Miss { reason, missed, reusable } => json!({
            "type": "cache_miss",
            "cache_missed_tokens": missed,
            "comparison_reusable_tokens": reusable,
            "reason": match reason {
                Reason::Model => "model_changed",
                Reason::Tools => "tools_changed",
                _ => "input_changed",
            },
        }),
    }
}
