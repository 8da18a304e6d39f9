//! An agent as the roster keeps it: its definition, all that it has read and said, and the name of its
//! memory.
//!
//! Replies are kept as the sampled ids, so that the conversation is read exactly as it was said, together
//! with their texts for display.

use super::super::answer::CompletedReply;
use super::super::ask::fresh_id;
use super::super::models::now;
use greenroom_engine::{Conversation, Date, Exchange, ReplyContent, Tool, ToolCalls, Tools};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;

/// A named agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct NamedAgent {
    pub(super) definition: Definition,
    /// Name of its memory, which is never reused: an agent that is deleted and made again does not remember.
    pub(super) memory: String,
    /// For a fork: the memory that its own begins with.
    pub(super) parent: Option<String>,
    /// Turns that a fork shares with the original agent.
    pub(super) inherited: usize,
    /// True if its memory is evicted from RAM last.
    pub(super) is_pinned: bool,
    /// Seconds since 1970.
    pub(super) created: u64,
    /// The day on which it was made, for chat templates that print one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) date: Option<Date>,
    /// All turns, oldest first; in the journal each has a line of its own.
    #[serde(skip)]
    pub(super) past: Vec<PastTurn>,
}

/// Everything that defines an agent before it has read anything, and its default settings for answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Definition {
    /// Name of the model, as it is served.
    pub(super) model: String,
    pub(super) system: Option<String>,
    pub(super) tools: Option<Toolset>,
    pub(super) temperature: Option<f32>,
    pub(super) top_p: Option<f32>,
    pub(super) max_tokens: Option<usize>,
    pub(super) stop: Vec<String>,
}

/// The engine's [`Tools`], in serialized form.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Toolset {
    pub(super) list: Vec<SerializedTool>,
    /// The text that the agent first read, even if a later version of this program would word it differently.
    instructions: String,
}

/// The engine's [`Tool`], in serialized form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SerializedTool {
    pub(super) name: String,
    pub(super) about: String,
    pub(super) arguments: Value,
}

/// A turn of the past.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PastTurn {
    /// The message, or the result of the call before it.
    pub(super) heard: String,
    /// The reply, as it was sampled.
    pub(super) ids: Arc<[u32]>,
    pub(super) said: PastReply,
    /// Tokens of everything up to the end of the reply.
    pub(super) tokens: usize,
    /// Seconds since 1970.
    pub(super) at: u64,
}

/// What a reply was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PastReply {
    Text(String),
    /// A call of a tool: what is heard next is its result.
    Call {
        tool: String,
        arguments: Value,
    },
    /// The beginning of a call that was too long; the next text heard replaces its result.
    CutCall(String),
}

impl NamedAgent {
    /// An agent that has read nothing, made on a day.
    pub(super) fn new(definition: Definition, date: Option<Date>) -> Self {
        Self {
            definition,
            memory: fresh_id("agent-"),
            parent: None,
            inherited: 0,
            is_pinned: false,
            created: now(),
            date,
            past: Vec::new(),
        }
    }

    /// An agent with the first `n` turns of this one, which must have at least that many.
    pub(super) fn fork(&self, n: usize) -> Self {
        let (parent, past) = (Some(self.remembers_in().to_string()), self.past[..n].to_vec());
        Self { parent, inherited: n, past, ..Self::new(self.definition.clone(), self.date) }
    }

    /// The memory that holds its past: its own, or its parent's if it has not spoken since it was forked.
    pub(super) fn remembers_in(&self) -> &str {
        let has_spoken = self.past.len() > self.inherited;
        self.parent.as_deref().filter(|_| !has_spoken).unwrap_or(&self.memory)
    }

    /// Everything that it has read and said, and what it reads next.
    pub(super) fn conversation(&self, next: &str) -> Conversation {
        Conversation {
            system: self.definition.system.clone(),
            tools: self.definition.tools.as_ref().map(Toolset::tools),
            exchanges: self.past.iter().map(PastTurn::exchange).collect(),
            next: next.to_string(),
            date: self.date,
            ..Conversation::default()
        }
    }

    /// True if what it reads next is the result of a call.
    pub(super) fn awaits_result(&self) -> bool {
        self.past.last().is_some_and(|past| past.said.is_call())
    }

    /// Tokens of everything that it has read and said.
    pub(super) fn tokens(&self) -> usize {
        self.past.last().map_or(0, |past| past.tokens)
    }

    /// Seconds since 1970 at which it was made, or spoke last.
    pub(super) fn updated(&self) -> u64 {
        self.past.last().map_or(0, |past| past.at).max(self.created)
    }
}

impl Definition {
    /// Names of the fields in which another definition differs.
    pub(super) fn differences(&self, other: &Self) -> Vec<&'static str> {
        fn tools(of: &Definition) -> &[SerializedTool] {
            of.tools.as_ref().map_or(&[][..], |tools| &tools.list)
        }
        let fields = [
            ("model", self.model != other.model),
            ("system", self.system != other.system),
            ("tools", tools(self) != tools(other)),
            ("temperature", self.temperature != other.temperature),
            ("top_p", self.top_p != other.top_p),
            ("max_tokens", self.max_tokens != other.max_tokens),
            ("stop", self.stop != other.stop),
        ];
        fields.into_iter().filter_map(|(name, differs)| differs.then_some(name)).collect()
    }
}

impl Toolset {
    fn tools(&self) -> Arc<Tools> {
        let tool = |spec: &SerializedTool| Tool {
            name: spec.name.clone(),
            about: spec.about.clone(),
            arguments: spec.arguments.clone(),
        };
        Arc::new(Tools {
            list: self.list.iter().map(tool).collect(),
            instructions: self.instructions.clone(),
        })
    }
}

impl From<&Tools> for Toolset {
    fn from(tools: &Tools) -> Self {
        let spec = |tool: &Tool| SerializedTool {
            name: tool.name.clone(),
            about: tool.about.clone(),
            arguments: tool.arguments.clone(),
        };
        Self { list: tools.list.iter().map(spec).collect(), instructions: tools.instructions.clone() }
    }
}

impl PastTurn {
    /// A message and the answer to it.
    pub(super) fn new(heard: String, answer: &CompletedReply) -> Self {
        let completion = &answer.completion;
        let said = match &completion.call {
            None => PastReply::Text(completion.speech().to_string()),
            Some(ToolCalls::Complete(calls)) if !calls.is_empty() => {
                PastReply::Call { tool: calls[0].tool.clone(), arguments: calls[0].arguments.clone() }
            }
            Some(_) => PastReply::CutCall(completion.text.clone()),
        };
        let tokens = answer.prompt_tokens() + completion.ids.len();
        Self { heard, ids: completion.ids.as_slice().into(), said, tokens, at: now() }
    }

    fn exchange(&self) -> Exchange {
        let ids = self.ids.clone();
        let reply = if self.said.is_call() { ReplyContent::Call(ids) } else { ReplyContent::Ids(ids) };
        Exchange::new(self.heard.clone(), reply)
    }
}

impl PastReply {
    fn is_call(&self) -> bool {
        match self {
            Self::Text(_) => false,
            Self::Call { .. } | Self::CutCall(_) => true,
        }
    }
}
