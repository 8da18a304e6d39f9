//! Messages of a chat as a conversation: what an agent has read and said, and what it reads next.

use super::error::Refusal;
use greenroom_engine::{Conversation, Exchange, ReplyContent};
use serde::Deserialize;

/// A message of a chat.
#[derive(Debug, Deserialize)]
pub(super) struct Message {
    role: Role,
    #[serde(default)]
    content: Option<Content>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Role {
    System,
    Developer,
    User,
    Assistant,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    text: Option<String>,
}

/// A digest of a conversation's beginning.
pub(super) type Digest = [u8; 32];

/// A conversation, with digests of its beginnings.
pub(super) struct Told {
    pub(super) conversation: Conversation,
    /// Digest of the system text and the first user message: what the conversation is, whatever comes of it.
    pub(super) root: Digest,
    /// Digest of all that stands before each reply's end, reply by reply.
    pub(super) chain: Vec<Digest>,
}

impl Told {
    /// Reads messages. System messages at the beginning are the system text; neighbours of one side are one message.
    pub(super) fn read(messages: Vec<Message>) -> Result<Self, Refusal> {
        let (mut system, mut heard, mut exchanges) = (Vec::new(), Vec::new(), Vec::<Exchange>::new());
        for (at, message) in messages.into_iter().enumerate() {
            let text = text(message.content, at)?;
            match message.role {
                Role::System | Role::Developer if heard.is_empty() && exchanges.is_empty() => {
                    system.push(text)
                }
                Role::System | Role::Developer | Role::User => heard.push(text),
                Role::Assistant => match exchanges.last_mut().filter(|_| heard.is_empty()) {
                    Some(Exchange { reply: ReplyContent::Text(said), .. }) => {
                        said.push_str("\n\n");
                        said.push_str(&text);
                    }
                    _ => {
                        let user = std::mem::take(&mut heard).join("\n\n");
                        exchanges.push(Exchange { user, reply: ReplyContent::Text(text) });
                    }
                },
            }
        }
        if heard.is_empty() {
            return Err(Refusal::field(
                "messages",
                "the last message must be a user's: it is what is answered",
            ));
        }
        let system = (!system.is_empty()).then(|| system.join("\n\n"));
        let conversation = Conversation { system, tools: None, exchanges, next: heard.join("\n\n") };
        let first = conversation.exchanges.first().map_or(&conversation.next, |first| &first.user);
        let root = digest(&[], &[conversation.system.as_deref().unwrap_or_default(), first]);
        let chain = chain(&root, &conversation.exchanges);
        Ok(Self { conversation, root, chain })
    }

    /// The digest of all that stands before the end of this reply to it.
    pub(super) fn with_reply(&self, reply: &str) -> Digest {
        let last = self.chain.last().unwrap_or(&self.root);
        digest(last, &[&self.conversation.next, reply])
    }
}

fn chain(root: &Digest, exchanges: &[Exchange]) -> Vec<Digest> {
    let mut last = *root;
    let next = |past: &Exchange| {
        let ReplyContent::Text(reply) = &past.reply else { return last };
        last = digest(&last, &[&past.user, reply]);
        last
    };
    exchanges.iter().map(next).collect()
}

fn digest(before: &[u8], texts: &[&str]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    hasher.update(before);
    for text in texts {
        hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
    }
    hasher.finalize().into()
}

/// The text of a message's content.
fn text(content: Option<Content>, at: usize) -> Result<String, Refusal> {
    let parts = match content {
        None => return Ok(String::new()),
        Some(Content::Text(text)) => return Ok(text),
        Some(Content::Parts(parts)) => parts,
    };
    let texts = parts.into_iter().enumerate().map(|(n, part)| match (part.kind.as_str(), part.text) {
        ("text" | "input_text" | "output_text", Some(text)) => Ok(text),
        (kind, _) => {
            let place = format!("messages[{at}].content[{n}]");
            Err(Refusal::field(
                &place,
                format!("a part of the type `{kind}` can't be read: these models read text"),
            ))
        }
    });
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
}
