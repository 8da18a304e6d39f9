//! The events of a response, in order, and the response that they result in.

use super::super::words::{finish_reason, logprobs};
use super::input::{InputPart, InputRole, Item, ReasoningPart, Status};
use super::output::ResponseObject;
use crate::server::answer::{CompletedReply, SaidCall};
use crate::server::ask::{ReplyPiece, fresh_id};
use crate::server::error::Refusal;
use crate::server::stream::Frame;
use greenroom_engine::TokenLogprob;
use serde_json::{Value, json};

/// An unfinished response. Its output is a thought, perhaps, then a message, or calls, or both.
pub(super) struct ResponseEvents {
    pub(super) response: ResponseObject,
    has_logprobs: bool,
    saying: Saying,
    /// Complete items.
    done: Vec<Item>,
    /// Number of calls among the complete items.
    n_calls: usize,
    /// Number of the next event.
    next: u64,
}

/// The current item.
enum Saying {
    Nothing,
    Thought { id: String, text: String },
    Message { id: String, text: String },
    Call { id: String, call_id: String, name: String, arguments: String },
}

impl ResponseEvents {
    pub(super) fn new(response: ResponseObject, has_logprobs: bool) -> Self {
        Self { response, has_logprobs, saying: Saying::Nothing, done: Vec::new(), n_calls: 0, next: 0 }
    }

    pub(super) fn begin(&mut self) -> Vec<Frame> {
        vec![self.lifecycle("response.created"), self.lifecycle("response.in_progress")]
    }

    /// Events of a piece of the reply; the last piece completes the response.
    pub(super) fn piece(&mut self, piece: ReplyPiece) -> Vec<Frame> {
        match piece {
            ReplyPiece::Begun => Vec::new(),
            ReplyPiece::Thought(text) => self.think(&text),
            ReplyPiece::Text(text) => self.say(&text),
            ReplyPiece::Logprobs(tokens) => self.tell(&tokens),
            ReplyPiece::Called(tool) => self.call(&tool),
            ReplyPiece::Arguments(text) => self.pass(&text),
            ReplyPiece::Ended(answer) => self.finish(&answer),
        }
    }

    /// The last event, with the whole response.
    pub(super) fn end(&mut self) -> Vec<Frame> {
        let name = match self.response.status {
            Status::Incomplete => "response.incomplete",
            _ => "response.completed",
        };
        vec![self.lifecycle(name)]
    }

    pub(super) fn fail(&mut self, refusal: &Refusal) -> Vec<Frame> {
        let body = refusal.openai();
        let error = &body["error"];
        let error = json!({ "code": error["code"], "message": error["message"], "param": error["param"] });
        self.response.fail(refusal);
        vec![self.event("error", error), self.lifecycle("response.failed")]
    }

    fn lifecycle(&mut self, name: &'static str) -> Frame {
        let data = json!({ "response": self.response });
        self.event(name, data)
    }

    fn event(&mut self, name: &'static str, mut data: Value) -> Frame {
        data["type"] = json!(name);
        data["sequence_number"] = json!(self.next);
        self.next += 1;
        Frame::named(name, &data)
    }

    /// An event of the item.
    fn item(&mut self, name: &'static str, item: &Item) -> Frame {
        self.event(name, json!({ "output_index": self.done.len(), "item": item }))
    }

    /// An event of the only part of the current thought or message.
    fn part(&mut self, name: &'static str, mut data: Value) -> Frame {
        if let Saying::Thought { id, .. } | Saying::Message { id, .. } = &self.saying {
            data["item_id"] = json!(id);
        }
        data["output_index"] = json!(self.done.len());
        data["content_index"] = json!(0);
        self.event(name, data)
    }
}

impl ResponseEvents {
    /// Begins the thought, if it has not begun, and continues it.
    fn think(&mut self, text: &str) -> Vec<Frame> {
        let mut frames = Vec::new();
        if !matches!(self.saying, Saying::Thought { .. }) {
            frames = self.end_item(None, Status::Completed, &[]);
            let id = fresh_id("rs_");
            frames.push(self.item("response.output_item.added", &thought(&id, Status::InProgress, None)));
            self.saying = Saying::Thought { id, text: String::new() };
        }
        if let Saying::Thought { text: so_far, .. } = &mut self.saying {
            so_far.push_str(text);
        }
        frames.push(self.part("response.reasoning_text.delta", json!({ "delta": text })));
        frames
    }

    /// Begins the message, if it has not begun.
    fn open(&mut self) -> Vec<Frame> {
        if let Saying::Message { .. } = self.saying {
            return Vec::new();
        }
        let mut frames = self.end_item(None, Status::Completed, &[]);
        let id = fresh_id("msg_");
        frames.push(self.item("response.output_item.added", &message(&id, Status::InProgress, Vec::new())));
        self.saying = Saying::Message { id, text: String::new() };
        let part = json!({ "part": InputPart::output(String::new(), json!([])) });
        frames.push(self.part("response.content_part.added", part));
        frames
    }

    fn say(&mut self, text: &str) -> Vec<Frame> {
        let mut frames = self.open();
        if let Saying::Message { text: so_far, .. } = &mut self.saying {
            so_far.push_str(text);
        }
        frames.push(self.part("response.output_text.delta", json!({ "delta": text, "logprobs": [] })));
        frames
    }

    /// Log-probabilities of what was said before: an event without text.
    fn tell(&mut self, tokens: &[TokenLogprob]) -> Vec<Frame> {
        match self.saying {
            Saying::Message { .. } if self.has_logprobs => {
                let data = json!({ "delta": "", "logprobs": logprobs(tokens) });
                vec![self.part("response.output_text.delta", data)]
            }
            _ => Vec::new(),
        }
    }

    /// Begins a call, and completes what was before it.
    fn call(&mut self, tool: &str) -> Vec<Frame> {
        let mut frames = self.end_item(None, Status::Completed, &[]);
        let (id, call_id, name) = (fresh_id("fc_"), fresh_id("call_"), tool.to_string());
        let item = Item::FunctionCall {
            id: id.clone(),
            call_id: call_id.clone(),
            name: name.clone(),
            arguments: String::new(),
            status: Status::InProgress,
        };
        self.saying = Saying::Call { id, call_id, name, arguments: String::new() };
        frames.push(self.item("response.output_item.added", &item));
        frames
    }

    /// Continues the call's arguments.
    fn pass(&mut self, text: &str) -> Vec<Frame> {
        let Saying::Call { id, arguments, .. } = &mut self.saying else { return Vec::new() };
        arguments.push_str(text);
        let data = json!({ "item_id": id, "output_index": self.done.len(), "delta": text });
        vec![self.event("response.function_call_arguments.delta", data)]
    }

    /// Completes the item and the response.
    fn finish(&mut self, answer: &CompletedReply) -> Vec<Frame> {
        let completion = &answer.completion;
        let mut frames = self.catch_up(answer);
        let status =
            if finish_reason(completion) == "length" { Status::Incomplete } else { Status::Completed };
        let read = answer.calls.get(self.n_calls);
        frames.extend(self.end_item(read, status, completion.speech_logprobs()));
        self.response.conclude(std::mem::take(&mut self.done), answer);
        frames
    }

    /// Ends the current item; `read` is the call as it was parsed, if it is one, and `tokens` have the
    /// log-probabilities of a message.
    fn end_item(&mut self, read: Option<&SaidCall>, status: Status, tokens: &[TokenLogprob]) -> Vec<Frame> {
        let (mut frames, n) = (Vec::new(), self.done.len());
        let item = match std::mem::replace(&mut self.saying, Saying::Nothing) {
            Saying::Nothing => return frames,
            Saying::Thought { id, text } => {
                let data = json!({ "item_id": id, "output_index": n, "content_index": 0, "text": text });
                frames.push(self.event("response.reasoning_text.done", data));
                thought(&id, status, Some(text))
            }
            Saying::Message { id, text } => {
                let likely = if self.has_logprobs { logprobs(tokens) } else { json!([]) };
                let place = json!({ "item_id": id, "output_index": n, "content_index": 0 });
                let mut data = place.clone();
                (data["text"], data["logprobs"]) = (json!(text), likely.clone());
                frames.push(self.event("response.output_text.done", data));
                let (part, mut data) = (InputPart::output(text, likely), place);
                data["part"] = json!(part);
                frames.push(self.event("response.content_part.done", data));
                message(&id, status, vec![part])
            }
            Saying::Call { id, call_id, name, arguments } => {
                let arguments = checked(arguments, read);
                let data = json!({ "item_id": id, "output_index": n, "name": name, "arguments": arguments });
                frames.push(self.event("response.function_call_arguments.done", data));
                self.n_calls += 1;
                Item::FunctionCall { id, call_id, name, arguments, status }
            }
        };
        frames.push(self.item("response.output_item.done", &item));
        self.done.push(item);
        frames
    }

    /// Begins the items of a reply of which no piece came: it is empty, or was cut off before its call had a
    /// name.
    fn catch_up(&mut self, answer: &CompletedReply) -> Vec<Frame> {
        if !matches!(self.saying, Saying::Nothing) || !self.done.is_empty() {
            return Vec::new();
        }
        let mut frames = Vec::new();
        let thought = answer.completion.thought();
        if !thought.is_empty() {
            frames.extend(self.think(thought));
        }
        if !answer.speech().is_empty() {
            frames.extend(self.say(answer.speech()));
        }
        for call in &answer.calls {
            frames.extend(self.call(&call.tool));
            frames.extend(self.pass(&call.arguments));
        }
        if frames.is_empty() { self.open() } else { frames }
    }
}

fn message(id: &str, status: Status, content: Vec<InputPart>) -> Item {
    Item::Message { id: id.to_string(), role: InputRole::Assistant, status, content }
}

fn thought(id: &str, status: Status, text: Option<String>) -> Item {
    let content = text.map(|text| ReasoningPart::ReasoningText { text }).into_iter().collect();
    Item::Reasoning { id: id.to_string(), summary: Vec::new(), content, status }
}

/// The arguments of a call as they were said, or otherwise as they were parsed.
fn checked(arguments: String, read: Option<&SaidCall>) -> String {
    let parsed = |text: &str| serde_json::from_str::<Value>(text).ok();
    match read.filter(|call| parsed(&arguments) != parsed(&call.arguments)) {
        Some(call) => call.arguments.clone(),
        None => arguments,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use greenroom_engine::{
        CacheSource, Call, Completion, MatchKind, ReplyParts, StopReason, ToolCalls, Usage,
    };

    fn ended(text: &str, stop: StopReason, call: Option<ToolCalls>) -> ReplyPiece {
        let usage = Usage {
            kind: MatchKind::Extend,
            source: CacheSource::Memory,
            reused: 7,
            prefilled: 3,
            recomputed: 1,
            generated: 2,
            guessed: 0,
            guessed_right: 0,
            layer0_rows: 6,
            ttft_ms: 0.0,
            total_ms: 0.0,
            bytes_read: 0,
            bytes_written: 0,
            waited_ms: 0.0,
            prefetch_ms: 0.0,
            saved_ms: 0.0,
            memory_bytes: 0,
            reason: None,
            divergence: None,
            adopted: None,
        };
        let completion = Completion {
            ids: vec![1, 2],
            text: text.to_string(),
            parts: ReplyParts { thought: 0..0, speech: 0..if call.is_some() { 0 } else { text.len() } },
            n_thought: 0,
            n_given: 0,
            stop,
            stop_string: None,
            choice: None,
            call,
            call_ends: Vec::new(),
            followed: Vec::new(),
            logprobs: Vec::new(),
            digest: String::new(),
            usage,
        };
        let calls = match &completion.call {
            Some(ToolCalls::Complete(calls)) => &calls[..],
            _ => &[],
        };
        let said = |call: &Call| SaidCall { tool: call.tool.clone(), arguments: call.arguments.to_string() };
        let (calls, begun, warnings) = (calls.iter().map(said).collect(), String::new(), Vec::new());
        ReplyPiece::Ended(Box::new(CompletedReply {
            completion,
            seed: 0,
            calls,
            rejected: None,
            begun,
            warnings,
        }))
    }

    /// The events of a reply.
    fn events(pieces: Vec<ReplyPiece>) -> Vec<Value> {
        let mut events = ResponseEvents::new(ResponseObject::default(), false);
        let mut frames = events.begin();
        frames.extend(pieces.into_iter().flat_map(|piece| events.piece(piece)));
        frames.extend(events.end());
        let read = |(n, frame): (usize, Frame)| {
            let data: Value = serde_json::from_str(&frame.data).unwrap();
            assert_eq!(data["type"].as_str(), frame.name);
            assert_eq!(data["sequence_number"], n);
            data
        };
        frames.into_iter().enumerate().map(read).collect()
    }

    fn names(events: &[Value]) -> Vec<&str> {
        events.iter().map(|event| event["type"].as_str().unwrap().trim_start_matches("response.")).collect()
    }

    #[test]
    fn a_message_is_said_in_the_order_of_the_api() {
        let pieces = ["Hel", "lo"].map(|text| ReplyPiece::Text(text.to_string()));
        let pieces = [ReplyPiece::Begun].into_iter().chain(pieces).chain([ended(
            "Hello",
            StopReason::EndOfTurn,
            None,
        )]);
        let events = events(pieces.collect());
        assert_eq!(
            names(&events),
            [
                "created",
                "in_progress",
                "output_item.added",
                "content_part.added",
                "output_text.delta",
                "output_text.delta",
                "output_text.done",
                "content_part.done",
                "output_item.done",
                "completed",
            ]
        );
        let (done, whole) = (&events[8]["item"], &events[9]["response"]);
        assert_eq!(whole["output"], json!([done]));
        assert_eq!(done["content"][0]["text"], "Hello");
        assert_eq!(done["id"], events[2]["item"]["id"]);
        assert_eq!(done["id"], events[4]["item_id"]);
        assert_eq!(whole["status"], "completed");
        assert_eq!(whole["usage"]["input_tokens"], 11);
        assert_eq!(
            whole["usage"]["input_tokens_details"],
            json!({ "cached_tokens": 7, "cache_write_tokens": 4 })
        );
        assert_eq!(whole["usage"]["total_tokens"], 13);
    }

    #[test]
    fn a_call_is_said_in_the_order_of_the_api() {
        let call = ToolCalls::Complete(vec![Call { tool: "f".to_string(), arguments: json!({ "a": 1 }) }]);
        let pieces = vec![
            ReplyPiece::Begun,
            ReplyPiece::Called("f".to_string()),
            ReplyPiece::Arguments("{\"a\"".to_string()),
            ReplyPiece::Arguments(": 1}".to_string()),
            ended("markup", StopReason::EndOfTurn, Some(call)),
        ];
        let events = events(pieces);
        assert_eq!(
            names(&events),
            [
                "created",
                "in_progress",
                "output_item.added",
                "function_call_arguments.delta",
                "function_call_arguments.delta",
                "function_call_arguments.done",
                "output_item.done",
                "completed",
            ]
        );
        assert_eq!(events[5]["arguments"], "{\"a\": 1}");
        assert_eq!(events[6]["item"]["arguments"], "{\"a\": 1}");
        assert_eq!(events[6]["item"]["call_id"], events[2]["item"]["call_id"]);
        assert_eq!(events[7]["response"]["output"], json!([events[6]["item"]]));
    }

    #[test]
    fn several_calls_are_items_one_after_another() {
        let made = |tool: &str| Call { tool: tool.to_string(), arguments: json!({ "a": tool }) };
        let call_pieces = |tool: &str| {
            [ReplyPiece::Called(tool.to_string()), ReplyPiece::Arguments(made(tool).arguments.to_string())]
        };
        let whole = ToolCalls::Complete(vec![made("f"), made("g")]);
        let streamed = call_pieces("f").into_iter().chain(call_pieces("g")).collect();
        for pieces in [streamed, Vec::new()] {
            let mut pieces: Vec<ReplyPiece> = pieces;
            pieces.push(ended("markup", StopReason::EndOfTurn, Some(whole.clone())));
            let events = events(pieces);
            let of_call = [
                "output_item.added",
                "function_call_arguments.delta",
                "function_call_arguments.done",
                "output_item.done",
            ];
            assert_eq!(
                names(&events),
                [&["created", "in_progress"][..], &of_call, &of_call, &["completed"]].concat()
            );
            let places: Vec<&Value> = events[2..10].iter().map(|event| &event["output_index"]).collect();
            assert_eq!(json!(places), json!([0, 0, 0, 0, 1, 1, 1, 1]));
            assert_eq!(events[10]["response"]["output"], json!([events[5]["item"], events[9]["item"]]));
            assert_eq!(events[9]["item"]["arguments"], made("g").arguments.to_string());
        }
    }

    #[test]
    fn what_was_cut_is_incomplete() {
        let texts = vec![ReplyPiece::Text("Hel".to_string()), ended("Hel", StopReason::Length, None)];
        let calls = vec![
            ReplyPiece::Called("f".to_string()),
            ended("{", StopReason::Length, Some(ToolCalls::Truncated)),
        ];
        for pieces in [texts, calls, vec![ended("", StopReason::Length, None)]] {
            let events = events(pieces);
            let last = events.last().unwrap();
            assert_eq!(last["type"], "response.incomplete");
            assert_eq!(last["response"]["incomplete_details"]["reason"], "max_output_tokens");
            assert_eq!(last["response"]["output"][0]["status"], "incomplete");
        }
    }

    #[test]
    fn a_stream_that_breaks_off_says_why() {
        let mut events = ResponseEvents::new(ResponseObject::default(), false);
        let frames = events.fail(&Refusal::field("input", "no"));
        assert_eq!(
            frames.iter().map(|frame| frame.name).collect::<Vec<_>>(),
            [Some("error"), Some("response.failed")]
        );
        let error: Value = serde_json::from_str(&frames[0].data).unwrap();
        assert_eq!((&error["message"], &error["param"]), (&json!("no"), &json!("input")));
    }
}
