//! An API-neutral dialogue, line by line as clients send it, converted to what the engine reads.
//!
//! The engine's conversation alternates: the agent hears a text, and replies or calls a tool, whose result it
//! hears next. Neighbouring lines of one side are joined; several calls of one message become calls one after
//! another, each with its result.

use super::answer::CompletedReply;
use super::error::Refusal;
use greenroom_engine::{Call, Conversation, Exchange, ReplyContent, Tools};
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::Arc;

/// Maximum number of characters of a dialogue's title.
const MAX_TITLE: usize = 48;

/// A line of a dialogue.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DialogueLine {
    System(String),
    User(String),
    Assistant(String),
    /// The assistant calls a tool.
    Call {
        id: String,
        call: Call,
    },
    /// What a call gave.
    Result {
        id: String,
        text: String,
    },
}

/// A digest of a dialogue's beginning.
pub(super) type Digest = [u8; 32];

/// A conversation, with digests of its beginnings.
#[derive(Clone, Debug)]
pub(super) struct Dialogue {
    pub(super) conversation: Conversation,
    /// Digest of the system text.
    pub(super) system: Digest,
    /// Digest of the tools.
    pub(super) tools: Digest,
    /// Digest of system text, tools and the first text heard: this identifies the dialogue, however it
    /// continues.
    pub(super) root: Digest,
    /// Digest of everything up to the end of each reply, reply by reply.
    pub(super) chain: Vec<Digest>,
    /// What the reply begins with, as the client has it.
    pub(super) begun: String,
    /// What was not read as it was sent, a line each.
    pub(super) warnings: Vec<String>,
}

/// A conversation under construction.
#[derive(Default)]
struct DialogueDraft {
    system: Vec<String>,
    heard: Vec<String>,
    exchanges: Vec<Exchange>,
    /// Text before the calls of a message.
    said: String,
    /// Calls that wait for their results.
    open: VecDeque<(String, Call)>,
    /// True if the last line was the assistant's text.
    is_begun: bool,
    warnings: Vec<String>,
}

impl Dialogue {
    /// A dialogue of these lines. System lines before all others are the system text; later ones are heard as
    /// a user's, and so are all if there are no others. If the last line is the assistant's, the reply begins with
    /// it.
    ///
    /// # Errors
    /// Nothing is left to answer, or the last calls have no results; `field` names the messages.
    pub(super) fn new(
        lines: Vec<DialogueLine>,
        tools: Option<Arc<Tools>>,
        field: &str,
    ) -> Result<Self, Refusal> {
        let mut draft = DialogueDraft::default();
        for line in lines {
            draft.take(line).map_err(|message| Refusal::field(field, message))?;
        }
        if let Some((id, _)) = draft.open.front() {
            return Err(Refusal::field(field, format!("the call `{id}` has no result")));
        }
        let mut begun = String::new();
        if draft.is_begun
            && let Some(Exchange { user, reply: ReplyContent::Text(said), .. }) = draft.exchanges.pop()
        {
            (draft.heard, begun) = (vec![user], said);
        }
        if draft.heard.is_empty() && !draft.system.is_empty() {
            draft
                .warnings
                .push("there is no message but the system's; the model hears it as a user's".into());
            draft.heard = std::mem::take(&mut draft.system);
        }
        if draft.heard.is_empty() {
            return Err(Refusal::field(field, "there is no message to answer"));
        }
        let system = (!draft.system.is_empty()).then(|| draft.system.join("\n\n"));
        let next = draft.heard.join("\n\n");
        let exchanges = draft.exchanges;
        let conversation = Conversation { system, tools, exchanges, next, ..Conversation::default() };
        Ok(Self { begun, warnings: draft.warnings, ..Self::of(conversation) })
    }

    /// The dialogue that a conversation is; its replies are texts and calls, not ids.
    pub(super) fn of(conversation: Conversation) -> Self {
        let system = digest(&[], &[conversation.system.as_deref().unwrap_or_default()]);
        let tools = conversation.tools.as_ref().map_or(digest(&[], &[]), |tools| {
            let tool_texts = |tool: &greenroom_engine::Tool| {
                [tool.name.clone(), tool.about.clone(), tool.arguments.to_string()]
            };
            let texts: Vec<String> = tools.list.iter().flat_map(tool_texts).collect();
            digest(&[], &texts.iter().map(String::as_str).collect::<Vec<_>>())
        });
        let first = conversation.exchanges.first().map_or(&conversation.next, |first| &first.user);
        let root = digest(&[system, tools].concat(), &[first]);
        let mut last = root;
        let chain = conversation.exchanges.iter().map(|past| {
            last = with_reply(&last, &past.user, &ClientReply::of(&past.reply));
            last
        });
        let chain = chain.collect();
        Self { system, tools, root, chain, conversation, begun: String::new(), warnings: Vec::new() }
    }

    /// The first words that were heard in it, after what programs put before them between tags.
    pub(super) fn title(&self) -> String {
        let Conversation { exchanges, next, .. } = &self.conversation;
        let mut text = exchanges.first().map_or(next, |first| &first.user).trim_start();
        while let Some((tag, rest)) = text.strip_prefix('<').and_then(|rest| rest.split_once('>'))
            && let Some((_, after)) = rest.split_once(&format!("</{tag}>"))
            && !after.trim().is_empty()
        {
            text = after.trim_start();
        }
        let mut title = String::new();
        for word in text.split_whitespace() {
            let space = if title.is_empty() { "" } else { " " };
            let room = MAX_TITLE.saturating_sub(title.chars().count() + space.len());
            if word.chars().count() > room {
                let cut: String =
                    if title.is_empty() { word.chars().take(room).collect() } else { String::new() };
                return title + &cut + "…";
            }
            title += space;
            title += word;
        }
        title
    }

    /// The digest of everything up to the end of this reply to it.
    pub(super) fn with_reply(&self, reply: &CompletedReply) -> Digest {
        let (last, speech) = (self.chain.last().unwrap_or(&self.root), reply.completion.speech());
        // With several calls, only the first: they are read again one after another, each after the previous
        // one's result.
        let said = reply.calls.first().map(|call| call.as_read());
        let said = said.as_ref().map_or(ClientReply::Text(speech), |call| ClientReply::Call(speech, call));
        with_reply(last, &self.conversation.next, &said)
    }
}

impl DialogueDraft {
    fn take(&mut self, line: DialogueLine) -> Result<(), String> {
        self.is_begun = matches!(line, DialogueLine::Assistant(_));
        if !matches!(line, DialogueLine::Call { .. } | DialogueLine::Result { .. }) {
            self.close_calls();
        }
        match line {
            DialogueLine::System(text) if self.heard.is_empty() && self.exchanges.is_empty() => {
                self.system.push(text)
            }
            DialogueLine::System(text) | DialogueLine::User(text) => self.heard.push(text),
            DialogueLine::Assistant(text) => {
                match self.exchanges.last_mut().filter(|_| self.heard.is_empty()) {
                    Some(Exchange { reply: ReplyContent::Text(said), .. }) => {
                        said.push_str("\n\n");
                        said.push_str(&text);
                    }
                    _ => self.reply(ReplyContent::Text(text)),
                }
            }
            DialogueLine::Call { id, call } => {
                // A message may have text before its calls.
                let is_same = self.heard.is_empty() && self.open.is_empty();
                let last =
                    self.exchanges.pop_if(|last| is_same && matches!(last.reply, ReplyContent::Text(_)));
                if let Some(Exchange { user, reply: ReplyContent::Text(said), .. }) = last {
                    (self.heard, self.said) = (vec![user], said);
                }
                self.open.push_back((id, call));
            }
            DialogueLine::Result { id, text } => {
                let at = self.open.iter().position(|(open, _)| *open == id);
                match at.and_then(|at| self.open.remove(at)) {
                    Some((_, call)) => self.call(call, text),
                    None => {
                        self.close_calls();
                        let found = "is no call of the message before it; the model hears its result as a user's text";
                        self.warnings.push(format!("`{id}` {found}"));
                        self.heard.push(text);
                    }
                }
            }
        }
        Ok(())
    }

    fn call(&mut self, call: Call, result: String) {
        let said = std::mem::take(&mut self.said);
        self.reply(ReplyContent::CallText(said, call));
        self.heard.push(result);
    }

    /// Calls that were never answered have an empty result.
    fn close_calls(&mut self) {
        while let Some((id, call)) = self.open.pop_front() {
            self.warnings.push(format!("the call `{id}` has no result; the model reads an empty one"));
            self.call(call, String::new());
        }
    }

    fn reply(&mut self, reply: ReplyContent) {
        let user = std::mem::take(&mut self.heard).join("\n\n");
        self.exchanges.push(Exchange::new(user, reply));
    }
}

/// A reply as clients send it back.
enum ClientReply<'a> {
    Text(&'a str),
    /// A call, and the text before it.
    Call(&'a str, &'a Call),
}

impl<'a> ClientReply<'a> {
    fn of(reply: &'a ReplyContent) -> Self {
        match reply {
            ReplyContent::Text(text) => Self::Text(text),
            ReplyContent::CallText(said, call) => Self::Call(said, call),
            // Ids are inserted after the digests were computed.
            _ => Self::Text(""),
        }
    }
}

fn with_reply(before: &Digest, user: &str, said: &ClientReply<'_>) -> Digest {
    match said {
        ClientReply::Text(text) => digest(before, &[user, "text", text]),
        ClientReply::Call(said, call) => {
            let arguments = sorted(&call.arguments).to_string();
            let texts = [user, "call", &call.tool, &arguments, said.trim()];
            // (Without text there are no more of them, as always.)
            digest(before, if said.trim().is_empty() { &texts[..4] } else { &texts })
        }
    }
}

/// Clients may send arguments with their keys in another order.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().map(|(key, value)| (key.clone(), sorted(value))).collect();
            fields.sort_by(|(a, _), (b, _)| a.cmp(b));
            Value::Object(fields.into_iter().collect())
        }
        Value::Array(items) => items.iter().map(sorted).collect(),
        other => other.clone(),
    }
}

pub(super) fn digest(before: &[u8], texts: &[&str]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    hasher.update(before);
    for text in texts {
        hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
    }
    hasher.finalize().into()
}
