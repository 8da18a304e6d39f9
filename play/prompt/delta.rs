//! Folds events into a conversation: between two replies, everything becomes one user message.

use crate::timeline::Event;
use greenroom_scenario::Reasoning;
use std::sync::Arc;

/// Everything that an agent has read and said, and what it reads next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversation {
    /// The system text.
    pub system: Option<String>,
    /// Past turns, oldest first.
    pub exchanges: Vec<Exchange>,
    /// The message to answer now: the delta of this turn.
    pub next: String,
    /// How much is thought about it.
    pub reasoning: Reasoning,
}

/// One past turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The text that the agent read.
    pub user: String,
    /// The ids that it sampled.
    pub ids: Arc<[u32]>,
    /// The ids as text.
    pub raw: Arc<str>,
    /// True if they are a call of a tool: what is read next is its result.
    pub is_call: bool,
    /// How much it was to think before.
    pub reasoning: Reasoning,
}

impl Conversation {
    /// Returns whether this conversation begins with `earlier` and the reply to it.
    pub fn extends(&self, earlier: &Conversation, ids: &[u32]) -> bool {
        let n = earlier.exchanges.len();
        self.system == earlier.system
            && self.exchanges.len() == n + 1
            && self.exchanges[..n] == earlier.exchanges[..]
            && self.exchanges[n].user == earlier.next
            && self.exchanges[n].reasoning == earlier.reasoning
            && *self.exchanges[n].ids == *ids
    }
}

/// The conversation that events amount to; `next` is empty if nothing happened since the last reply.
pub fn conversation<'a>(events: impl IntoIterator<Item = &'a Event>) -> Conversation {
    let mut folded = Conversation::default();
    let mut lines: Vec<String> = Vec::new();
    for event in events {
        match event {
            Event::System(text) => folded.system = Some(text.clone()),
            Event::Stage { text, .. } => lines.push(text.trim().to_string()),
            Event::Heard { from, text, .. } => lines.push(format!("{from}: {text}")),
            Event::Said { ids, raw, reasoning, .. } | Event::Called { ids, raw, reasoning, .. } => {
                let user = std::mem::take(&mut lines).join("\n");
                let (ids, raw, is_call) = (ids.clone(), raw.clone(), !event.is_said());
                folded.exchanges.push(Exchange { user, ids, raw, is_call, reasoning: *reasoning });
                if let Event::Called { result, .. } = event {
                    lines.push(result.clone());
                }
            }
        }
    }
    folded.next = lines.join("\n");
    folded
}
