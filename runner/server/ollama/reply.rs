//! An answer: whole, or line by line.

use super::super::answer::CompletedReply;
use super::super::ask::ReplyPiece;
use super::super::error::Refusal;
use super::super::openai::{explained, warn};
use super::super::stream::{EventEncoder, Frame};
use greenroom_engine::StopReason;
use serde_json::{Value, json};
use std::time::Instant;

/// Where an answer has its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// In a message (`/api/chat`).
    Message,
    /// In `response` (`/api/generate`).
    Response,
}

/// An answer.
pub(super) struct OllamaReply {
    pub(super) model: String,
    said: Said,
    explains: bool,
    began: Instant,
}

impl OllamaReply {
    pub(super) fn new(model: String, said: Said, explains: bool) -> Self {
        Self { model, said, explains, began: Instant::now() }
    }

    /// The whole answer.
    pub(super) fn whole(&self, answer: &CompletedReply) -> Value {
        let mut whole = self.part(answer.speech(), answer.completion.thought());
        self.conclude(&mut whole, answer);
        whole
    }

    /// A part with some text and thought.
    pub(super) fn part(&self, text: &str, thought: &str) -> Value {
        let mut part = json!({ "model": self.model, "created_at": jiff::Timestamp::now().to_string() });
        let place = match self.said {
            Said::Message => {
                part["message"] = json!({ "role": "assistant", "content": text });
                &mut part["message"]
            }
            Said::Response => {
                part["response"] = json!(text);
                &mut part
            }
        };
        if !thought.is_empty() {
            place["thinking"] = json!(thought);
        }
        part["done"] = json!(false);
        part
    }

    /// Adds the calls, why the reply ended, and its cost.
    fn conclude(&self, part: &mut Value, answer: &CompletedReply) {
        let completion = &answer.completion;
        let calls = answer.calls.iter().map(|call| {
            let call = call.as_read();
            json!({ "function": { "name": call.tool, "arguments": call.arguments } })
        });
        let calls: Vec<Value> = calls.collect();
        if !calls.is_empty() && self.said == Said::Message {
            part["message"]["tool_calls"] = json!(calls);
        }
        let is_cut = matches!(completion.stop, StopReason::Length | StopReason::Sentence);
        let nanoseconds = |milliseconds: f64| (milliseconds * 1e6) as u64;
        let usage = &completion.usage;
        part["done"] = json!(true);
        part["done_reason"] = json!(if is_cut { "length" } else { "stop" });
        part["total_duration"] = json!(self.began.elapsed().as_nanos() as u64);
        part["load_duration"] = json!(0);
        part["prompt_eval_count"] = json!(answer.prompt_tokens());
        part["prompt_eval_duration"] = json!(nanoseconds(usage.ttft_ms));
        part["eval_count"] = json!(answer.n_tokens());
        part["eval_duration"] = json!(nanoseconds(answer.said_ms()));
        if self.explains {
            part["greenroom"] = explained(answer);
        }
        warn(part, answer);
    }
}

impl EventEncoder for OllamaReply {
    fn begin(&mut self) -> Vec<Frame> {
        Vec::new()
    }

    fn piece(&mut self, _: usize, piece: ReplyPiece) -> Vec<Frame> {
        let part = match piece {
            ReplyPiece::Thought(text) => self.part("", &text),
            ReplyPiece::Text(text) => self.part(&text, ""),
            ReplyPiece::Ended(answer) => {
                let mut part = self.part("", "");
                self.conclude(&mut part, &answer);
                part
            }
            // Calls are whole in the last part.
            ReplyPiece::Begun
            | ReplyPiece::Called(_)
            | ReplyPiece::Arguments(_)
            | ReplyPiece::Logprobs(_) => {
                return Vec::new();
            }
        };
        vec![Frame::data(&part)]
    }

    fn end(&mut self) -> Vec<Frame> {
        Vec::new()
    }

    fn fail(&mut self, refusal: &Refusal) -> Vec<Frame> {
        vec![Frame::data(&refusal.ollama())]
    }
}
