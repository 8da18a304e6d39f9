//! A turn as a request to an engine, independent of its API, and the engine's answer.

use crate::backend::Call;
use crate::backend::Sampling;
use crate::prompt::Conversation;
use crate::tools::{ToolOffer, read_call};
use greenroom_engine::Grammar;

/// What is asked.
pub(super) struct RemoteRequest<'a> {
    /// The model's name there.
    pub(super) model: &'a str,
    pub(super) prompt: &'a Prompt,
    pub(super) sampling: &'a Sampling,
    pub(super) max_tokens: usize,
    pub(super) bounds: ReplyBounds<'a>,
    /// The tools that may be called, where prompts are messages.
    pub(super) tools: Option<&'a ToolOffer>,
    /// The one that has to be called.
    pub(super) must_call: Option<&'a str>,
    /// How much is thought before the reply; empty: not at all.
    pub(super) effort: &'static str,
    /// The same for all turns of one memory, for engines that keep prompts by a key.
    pub(super) key: &'a str,
    /// Nothing cached is to be used.
    pub(super) cold: bool,
}

/// What the engine reads.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Prompt {
    Ids(Vec<u32>),
    Messages(Vec<Message>),
}

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Message {
    System(String),
    User(String),
    Assistant(String),
    /// A call of a tool, by the assistant.
    Call(Call),
    /// Its result.
    Result(String),
}

/// What a reply must be.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ReplyBounds<'a> {
    Free,
    OneOf(Vec<&'a str>),
    Grammar(&'a Grammar),
}

/// Why an engine ended a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    /// The turn has ended.
    Ended,
    /// At the limit.
    Full,
}

/// What an engine has said so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PartialReply {
    pub(super) ids: Vec<u32>,
    pub(super) text: String,
    /// Name and arguments of the tool that is called.
    pub(super) call: Option<(String, String)>,
    pub(super) finish: Option<Finish>,
    /// Tokens of the prompt, those of it that were cached, and tokens of the reply, as the engine counts
    /// them.
    pub(super) prompt_tokens: Option<usize>,
    pub(super) cached: Option<usize>,
    pub(super) reply_tokens: Option<usize>,
    /// Milliseconds that a token of the prompt took, if the engine says.
    pub(super) token_ms: Option<f64>,
}

/// A conversation as messages.
pub(super) fn messages(conversation: &Conversation) -> Vec<Message> {
    let mut list: Vec<Message> = conversation.system.clone().map(Message::System).into_iter().collect();
    let mut is_result = false;
    let mut reads = |text: &str, is_call: bool| {
        let message =
            if is_result { Message::Result(text.to_string()) } else { Message::User(text.to_string()) };
        is_result = is_call;
        message
    };
    for past in &conversation.exchanges {
        let call = read_call(&past.raw).filter(|_| past.is_call);
        list.push(reads(&past.user, call.is_some()));
        list.push(call.map_or_else(|| Message::Assistant(past.raw.to_string()), Message::Call));
    }
    list.push(reads(&conversation.next, false));
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::Exchange;
    use crate::scenario::Reasoning;
    use serde_json::json;
    use std::sync::Arc;

    #[test]
    fn a_call_is_sent_as_one_and_its_result_as_such() {
        let call = Call { tool: "dice".into(), arguments: json!({ "sides": 6 }) };
        let said = json!({ "tool": "dice", "arguments": { "sides": 6 } }).to_string();
        let exchange = |user: &str, raw: &str, is_call| Exchange {
            user: user.to_string(),
            ids: Arc::new([]),
            raw: raw.into(),
            is_call,
            reasoning: Reasoning::None,
        };
        let conversation = Conversation {
            exchanges: vec![exchange("Roll.", &said, true), exchange("4", "A four.", false)],
            next: "Again.".into(),
            ..Conversation::default()
        };
        assert_eq!(
            messages(&conversation),
            [
                Message::User("Roll.".into()),
                Message::Call(call),
                Message::Result("4".into()),
                Message::Assistant("A four.".into()),
                Message::User("Again.".into()),
            ]
        );
    }
}
