//! A message as the answer: whole, or event by event.

use super::super::App;
use super::super::answer::CompletedReply;
use super::super::ask::{ReplyPiece, fresh_id};
use super::super::dialogue::Dialogue;
use super::super::error::Refusal;
use super::super::openai::{explained, warn};
use super::super::recent::{Diagnosis, Reason};
use super::super::stream::{EventEncoder, Frame};
use greenroom_engine::{Call, Completion, StopReason, ToolCalls};
use serde_json::{Value, json};
use std::sync::Arc;

/// What all parts of an answer have in common.
pub(super) struct ReplyContext {
    pub(super) app: Arc<App>,
    pub(super) tenant: String,
    pub(super) id: String,
    pub(super) model: String,
    pub(super) dialogue: Dialogue,
    /// Maximum number of tokens that was asked for; a context may have less room.
    pub(super) max_tokens: usize,
    pub(super) explains: bool,
    /// The message whose prompt this one's is compared with.
    pub(super) earlier: Option<String>,
    pub(super) prompt_tokens: usize,
    pub(super) sent: SentBlocks,
}

/// Content blocks that a stream has sent.
#[derive(Debug, Default)]
pub(super) struct SentBlocks {
    /// Those that are whole; it is the index of the next one, too.
    n_whole: usize,
    /// The type of another one that has begun.
    open: Option<BlockKind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockKind {
    Thinking,
    Text,
    ToolUse,
}

impl ReplyContext {
    /// The message with its reply.
    pub(super) fn whole(&self, answer: &CompletedReply) -> Value {
        let completion = &answer.completion;
        let (thought, speech) = (completion.thought(), answer.speech());
        let thought = (!thought.is_empty()).then(|| thinking(thought));
        let speech = (!speech.is_empty()).then(|| text_block(speech));
        let calls = answer.calls.iter().map(|call| {
            let Call { tool, arguments } = call.as_read();
            // (Of a call that was cut there is no object.)
            tool_use(&tool, &if arguments.is_object() { arguments } else { json!({}) })
        });
        let content = thought.into_iter().chain(speech).chain(calls).collect();
        let mut message = self.message(&content, &usage(answer));
        let (reason, sequence) = self.stop(completion);
        message["stop_reason"] = json!(reason);
        message["stop_sequence"] = json!(sequence);
        self.account(&mut message, answer);
        message
    }

    fn message(&self, content: &Value, usage: &Value) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": null,
            "stop_sequence": null,
            "stop_details": null,
            "container": null,
            "diagnostics": null,
            "usage": usage,
        })
    }

    /// Why the reply ended, and at which of its stop sequences.
    fn stop<'a>(&self, completion: &'a Completion) -> (&'static str, Option<&'a str>) {
        match (completion.stop, &completion.call) {
            (StopReason::EndOfTurn, Some(ToolCalls::Complete(_))) => ("tool_use", None),
            (StopReason::StopString, _) => ("stop_sequence", completion.stop_string.as_deref()),
            (StopReason::Length | StopReason::Sentence, None) if completion.ids.len() < self.max_tokens => {
                ("model_context_window_exceeded", None)
            }
            (StopReason::Length | StopReason::Sentence, _) => ("max_tokens", None),
            _ => ("end_turn", None),
        }
    }

    /// Extra fields of the last part: how the prompt matched the memory, and why it did not match better.
    fn account(&self, message: &mut Value, answer: &CompletedReply) {
        self.app.recent.keep(&self.tenant, &self.id, &self.model, &self.dialogue, answer);
        if self.explains {
            message["greenroom"] = explained(answer);
        }
        warn(message, answer);
        if let Some(earlier) = &self.earlier {
            message["diagnostics"] = self.diagnosis(earlier, answer);
        }
    }

    /// Why the cache missed, compared with an earlier message; `null`: it did not.
    fn diagnosis(&self, earlier: &str, answer: &CompletedReply) -> Value {
        let found = self.app.recent.diagnose(&self.tenant, earlier, &self.model, &self.dialogue, answer);
        let changed =
            |kind: &str, missed: usize| json!({ "type": kind, "cache_missed_input_tokens": missed });
        let reason = match found {
            Diagnosis::Hit => return Value::Null,
            Diagnosis::NotFound => json!({ "type": "previous_message_not_found" }),
            Diagnosis::Miss { reason, missed, .. } => match reason {
                Reason::Model => changed("model_changed", missed),
                Reason::System => changed("system_changed", missed),
                Reason::Tools => changed("tools_changed", missed),
                Reason::Messages => changed("messages_changed", missed),
                Reason::Unavailable => json!({ "type": "unavailable" }),
            },
        };
        json!({ "cache_miss_reason": reason })
    }

    /// A content block begins.
    fn begin_block(&mut self, kind: BlockKind, block: &Value) -> Vec<Frame> {
        let mut frames = self.close();
        self.sent.open = Some(kind);
        let index = self.sent.n_whole;
        frames.push(event("content_block_start", json!({ "index": index, "content_block": block })));
        if index == 0 {
            frames.push(event("ping", json!({})));
        }
        frames
    }

    /// More of the content block that has begun.
    fn more(&self, delta: &Value) -> Frame {
        event("content_block_delta", json!({ "index": self.sent.n_whole, "delta": delta }))
    }

    /// The content block that has begun is whole.
    fn close(&mut self) -> Vec<Frame> {
        let Some(kind) = self.sent.open else { return Vec::new() };
        let mut frames = Vec::new();
        if kind == BlockKind::Thinking {
            frames.push(self.more(&json!({ "type": "signature_delta", "signature": "" })));
        }
        let index = self.sent.n_whole;
        self.sent = SentBlocks { n_whole: index + 1, open: None };
        frames.push(event("content_block_stop", json!({ "index": index })));
        frames
    }

    /// More of a thought or of text, whose block may have begun.
    fn extend(&mut self, kind: BlockKind, block: &Value, delta: &Value) -> Vec<Frame> {
        let is_open = self.sent.open == Some(kind);
        let mut frames = if is_open { Vec::new() } else { self.begin_block(kind, block) };
        frames.push(self.more(delta));
        frames
    }
}

/// What was thought before the reply. Nobody signs it: sent back it has no effect.
fn thinking(thought: &str) -> Value {
    json!({ "type": "thinking", "thinking": thought, "signature": "" })
}

fn text_block(text: &str) -> Value {
    json!({ "type": "text", "text": text, "citations": null })
}

fn tool_use(tool: &str, input: &Value) -> Value {
    json!({ "type": "tool_use", "id": fresh_id("toolu_"), "name": tool, "input": input })
}

/// Tokens of prompt and reply.
///
/// As Anthropic defines them, the prompt is the sum of three counts: tokens that were read from the cache,
/// tokens that were written to it, and `input_tokens`, which were neither. The engine keeps everything that
/// it computes of a prompt, so the last count is 0.
fn usage(answer: &CompletedReply) -> Value {
    let cost = &answer.completion.usage;
    counts(cost.prefilled + cost.recomputed, cost.reused, answer.n_tokens())
}

fn counts(written: usize, read: usize, said: usize) -> Value {
    json!({
        "input_tokens": 0,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": read,
        "output_tokens": said,
    })
}

fn event(name: &'static str, mut data: Value) -> Frame {
    data["type"] = json!(name);
    Frame::named(name, &data)
}

impl EventEncoder for ReplyContext {
    /// Claude Code gives a request up that says nothing for five minutes; a long prompt takes longer to read.
    fn idle(&self) -> Option<Frame> {
        Some(event("ping", json!({})))
    }

    /// How much of the prompt is in the cache is known only later: until then all of it counts as written.
    fn begin(&mut self) -> Vec<Frame> {
        let mut message = self.message(&json!([]), &counts(self.prompt_tokens, 0, 0));
        if self.earlier.is_some() {
            // In Anthropic's words: not known yet.
            message["diagnostics"] = json!({ "cache_miss_reason": null });
        }
        vec![event("message_start", json!({ "message": message }))]
    }

    fn piece(&mut self, _: usize, piece: ReplyPiece) -> Vec<Frame> {
        match piece {
            ReplyPiece::Begun | ReplyPiece::Logprobs(_) => Vec::new(),
            ReplyPiece::Thought(text) => {
                let delta = json!({ "type": "thinking_delta", "thinking": text });
                self.extend(BlockKind::Thinking, &thinking(""), &delta)
            }
            ReplyPiece::Text(text) if text.is_empty() => Vec::new(),
            ReplyPiece::Text(text) => {
                let delta = json!({ "type": "text_delta", "text": text });
                self.extend(BlockKind::Text, &text_block(""), &delta)
            }
            ReplyPiece::Called(tool) => self.begin_block(BlockKind::ToolUse, &tool_use(&tool, &json!({}))),
            ReplyPiece::Arguments(text) => {
                vec![self.more(&json!({ "type": "input_json_delta", "partial_json": text }))]
            }
            ReplyPiece::Ended(answer) => {
                let mut frames = self.close();
                let (reason, sequence) = self.stop(&answer.completion);
                let delta = json!({
                    "stop_reason": reason, "stop_sequence": sequence, "stop_details": null, "container": null,
                });
                let mut message = json!({ "delta": delta, "usage": usage(&answer) });
                self.account(&mut message, &answer);
                frames.push(event("message_delta", message));
                frames
            }
        }
    }

    fn end(&mut self) -> Vec<Frame> {
        vec![event("message_stop", json!({}))]
    }

    fn fail(&mut self, refusal: &Refusal) -> Vec<Frame> {
        vec![event("error", refusal.anthropic())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_of_a_prompt_add_up() {
        let counts = counts(3, 4, 5);
        let of = |name: &str| counts[name].as_u64().unwrap();
        assert_eq!(of("input_tokens") + of("cache_creation_input_tokens") + of("cache_read_input_tokens"), 7);
        assert_eq!(of("output_tokens"), 5);
    }
}
