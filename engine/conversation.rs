//! What is read: conversations, texts and ids, and the tools that an agent knows.

pub use jiff::civil::Date;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The day of conversations that have none of their own: the one that Llama's templates print without a clock.
pub(crate) const FIXED_DATE: Date = jiff::civil::date(2024, 7, 26);

/// Names one sequence's memory: an agent of a run of a tenant. All are free text; files are named by their
/// hash.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionKey {
    /// Name of the tenant; tenants share nothing, in RAM or on disk. May be empty.
    pub tenant: String,
    /// The run that the memory belongs to.
    pub run: String,
    /// The agent (or agent and phase, for one that forgets).
    pub agent: String,
}

impl SessionKey {
    /// An agent of a run, of the tenant without a name.
    pub fn new(run: impl Into<String>, agent: impl Into<String>) -> Self {
        Self { tenant: String::new(), run: run.into(), agent: agent.into() }
    }
}

/// Everything that an agent has read and said, and what it reads next.
///
/// The engine renders it through the model's chat template, append-only: the prompt of the next turn always
/// begins with this prompt, the reply included.
///
/// # Examples
/// ```
/// # use greenroom_engine::*;
/// # let model: &'static [u8] = fixtures::RandomModel::tiny(1).bytes().leak();
/// # let engine = Engine::open(EngineConfig::new(ModelSource::Bundled("tiny", model)))?;
/// let mut conversation = Conversation { next: "Rolf: Hello.".into(), ..Conversation::default() };
/// let prompt = engine.prompter().render(&conversation)?;
/// let reply = ReplyContent::Text("Hello, Rolf.".into());
/// conversation.exchanges.push(Exchange::new(std::mem::take(&mut conversation.next), reply));
/// conversation.next = "Rolf: Who are you?".into();
/// assert!(engine.prompter().render(&conversation)?.starts_with(&prompt));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conversation {
    /// The system text: constant for the life of the session.
    pub system: Option<String>,
    /// The tools that the agent may call: constant, too.
    pub tools: Option<Arc<Tools>>,
    /// Past turns, oldest first.
    pub exchanges: Vec<Exchange>,
    /// The user message to answer now.
    pub next: String,
    /// How much it is thought about before it is answered.
    pub reasoning: Reasoning,
    /// The day that a chat template prints where it prints today's: that of the conversation's beginning,
    /// constant, too. `None`: 2024-07-26, for conversations that must be the same on any day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date: Option<Date>,
}

/// One past turn: a user message and the reply to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    /// Text that the agent read.
    pub user: String,
    /// Reply that the agent gave.
    pub reply: ReplyContent,
    /// How much it was to think before it. A part of what it read: most templates say so right before a
    /// reply.
    pub reasoning: Reasoning,
}

impl Exchange {
    /// A user message and the reply to it, without reasoning.
    pub fn new(user: String, reply: ReplyContent) -> Self {
        Self { user, reply, reasoning: Reasoning::None }
    }
}

/// How much an agent thinks before it replies, where the model's chat template has a switch for it
/// (`enable_thinking`, `thinking` or `reasoning_effort`); elsewhere it changes nothing. A template that only
/// knows on and off takes all but `None` as on; one that can't turn it off takes `None` as `Low`. One that
/// says it at a conversation's beginning takes the first reply's for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Reasoning {
    /// Not at all.
    #[default]
    None,
    /// A little.
    Low,
    /// Some.
    Medium,
    /// Much.
    High,
}

impl Reasoning {
    pub(crate) const ALL: [Self; 4] = [Self::None, Self::Low, Self::Medium, Self::High];
}

/// A past reply, by the ids that were sampled (the authority) or, from an outside client, as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ReplyContent {
    /// Token ids, exactly as sampled.
    Ids(Arc<[u32]>),
    /// Text of unknown tokenization.
    Text(String),
    /// Token ids of a call ([`Completion::call`](crate::Completion::call)): what the agent reads next is its
    /// result.
    Call(Arc<[u32]>),
    /// A call of unknown tokenization, from an outside client, after some text, perhaps: spelled as the model's
    /// template writes calls, its JSON with a space after `,` and `:`. Like [`ReplyContent::Text`] it is what was sampled where the
    /// text is the same. What the agent reads next is its result.
    CallText(String, Call),
}

/// All that is read before a reply.
///
/// A raw prompt ([`Prompt::Text`], [`Prompt::Ids`]) is compared with what its session holds token by token:
/// one that begins with an earlier prompt and its reply extends them, in whatever form they were given. It
/// has no tools and no past replies, so [`Sampling::dry`](crate::Sampling::dry) considers the reply alone. If
/// its ids are those of a rendered conversation, the reply has the same bits.
///
/// ```
/// use greenroom_engine::*;
///
/// # let model: &'static [u8] = fixtures::RandomModel::tiny(1).bytes().leak();
/// let engine = Engine::open(EngineConfig::new(ModelSource::Bundled("tiny", model)))?;
/// let prompt = Prompt::Text("Once upon".to_owned());
/// let request = Request { max_tokens: 8, ..Request::new(SessionKey::new("demo", "ada"), prompt) };
/// let mut turn = engine.submit(request)?;
/// while let Some(event) = turn.blocking_next() {
///     if let Event::Text(text) = event {
///         print!("{text}");
///     }
/// }
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Prompt {
    /// A conversation, rendered through the model's chat template.
    Chat(Conversation),
    /// A text as it is, tokenized as a whole: special tokens are recognised in it, and it begins with the
    /// begin-of-sequence token once where the model's texts do.
    Text(String),
    /// Token ids as they are.
    Ids(Arc<[u32]>),
}

impl Prompt {
    /// The conversation, if it is one.
    pub fn conversation(&self) -> Option<&Conversation> {
        match self {
            Self::Chat(conversation) => Some(conversation),
            Self::Text(_) | Self::Ids(_) => None,
        }
    }

    /// The conversation, to change it, if it is one.
    pub fn conversation_mut(&mut self) -> Option<&mut Conversation> {
        match self {
            Self::Chat(conversation) => Some(conversation),
            Self::Text(_) | Self::Ids(_) => None,
        }
    }
}

impl From<Conversation> for Prompt {
    fn from(conversation: Conversation) -> Self {
        Self::Chat(conversation)
    }
}

/// The tools that an agent may call.
///
/// # Examples
/// ```
/// use greenroom_engine::{Tool, Tools};
/// use serde_json::json;
///
/// let weather = Tool {
///     name: "weather".into(),
///     about: "The weather in a city.".into(),
///     arguments: json!({ "type": "object", "properties": { "city": { "type": "string" } } }),
/// };
/// let instructions = "Call by {\"tool\": …, \"arguments\": …}.".into();
/// let tools = Tools { list: vec![weather], instructions };
/// assert_eq!(tools.list[0].name, "weather");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tools {
    /// The tools.
    pub list: Vec<Tool>,
    /// How to call them, as text, for a model whose chat template has no tools: inserted after the system
    /// text. Such a model calls by `{"tool": NAME, "arguments": {…}}`, any other as its template writes
    /// calls.
    pub instructions: String,
}

/// A tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// What it does, as text.
    pub about: String,
    /// JSON Schema of its arguments, an object.
    pub arguments: serde_json::Value,
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// Name of the tool.
    pub tool: String,
    /// Its arguments.
    pub arguments: serde_json::Value,
}
