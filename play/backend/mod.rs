//! Backends, which answer turns: the trait [`Backend`] and its plain types.
//!
//! Here are a function for tests (`scripted`) and the agents of a scenario that are not models (`strategy`, `human`);
//! engines, in this process or remote, are the program's.

pub mod engine;
mod given;
mod human;
mod scripted;
mod strategy;

pub use crate::future::BoxFuture;
pub use engine::{call_room, conversation};
pub use given::given;
pub use greenroom_engine::cache::Traffic;
pub use greenroom_engine::{CacheSource, Call, Dry, ForcedToken, MatchKind, Sampling, StopReason, Usage};
pub use human::{HumanSeat, Question, Terminal};
pub use scripted::Scripted;
pub use strategy::CastBackend;

use crate::prompt::{Conversation, OpenOptions, StopStrings};
use crate::thoughts::speech_of;
use crate::tools::ToolOffer;
use crate::transcript::{CallRecord, ModelRecord, Rejected, TurnRecord};
use greenroom_scenario::{Form, Hints, Recalled, Strategy};
use std::ops::Range;
use std::sync::Arc;

/// Receives the progress of a turn.
pub type Sink = Box<dyn Fn(Progress) + Send + Sync>;

/// Answers turns.
pub trait Backend: Send + Sync {
    /// Describes the model for a transcript's header.
    fn card(&self) -> ModelCard;

    /// Answers one turn; progress goes to `sink` meanwhile.
    fn reply(&self, request: Request, sink: Sink) -> BoxFuture<'_, anyhow::Result<Reply>>;

    /// Drops the memory of a session that will not speak again.
    fn forget(&self, session: &Session);

    /// Says that a session, or one that begins with its memory, will speak at that turn of the plan.
    fn hint_next_use(&self, _session: &Session, _next_use: u64) {}

    /// The backend of a model that the scenario has under a name (empty: its own), and as it is found:
    /// opened, if it is not yet. `None`: this one answers for all.
    ///
    /// # Errors
    /// The model can't be found or opened.
    fn named(&self, _name: &str, _model: &str) -> anyhow::Result<Option<Arc<dyn Backend>>> {
        Ok(None)
    }

    /// What went to the object store of its memories and came back, since it was opened; `None` where there
    /// is none.
    fn traffic(&self) -> Option<Traffic> {
        None
    }

    /// Returns the sampling settings that the model's makers suggest, as far as they suggest any.
    fn suggested_sampling(&self) -> Hints {
        Hints::default()
    }

    /// Ids as text; empty where the backend knows no ids.
    fn text(&self, _ids: &[u32]) -> String {
        String::new()
    }

    /// Tells whether a prompt leaves no room for its reply and for a summary after it.
    ///
    /// # Errors
    /// The prompt can't be counted.
    fn overflows(&self, _request: &Request) -> anyhow::Result<bool> {
        Ok(false)
    }

    /// Tells whether a prompt takes more than half of the room that there is.
    ///
    /// # Errors
    /// The prompt can't be counted.
    fn fills_half(&self, request: &Request) -> anyhow::Result<bool> {
        self.overflows(request)
    }

    /// Embeds texts: for each a vector of length 1, all of one width.
    fn embed(&self, _texts: Vec<String>) -> BoxFuture<'_, anyhow::Result<Vec<Vec<f32>>>> {
        Box::pin(async { anyhow::bail!("{} does not support embeddings", self.card().model.name) })
    }
}

/// The model that answers, as transcripts describe it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelCard {
    /// The model.
    pub model: ModelRecord,
    /// Format of cached keys and values.
    pub kv: String,
    /// Kernel contract and version.
    pub numerics: String,
}

/// Names a memory: an agent (or agent and phase) of a run.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Session {
    /// The run.
    pub run: String,
    /// The agent, or `agent/phase` for an ephemeral agent.
    pub agent: String,
}

/// One turn to answer.
#[derive(Clone, Debug)]
pub struct Request {
    /// Number of the turn in plan order.
    pub index: usize,
    /// `phase/round/agent`.
    pub path: String,
    /// The memory to extend.
    pub session: Session,
    /// The memory to start from if that one is empty.
    pub parent: Option<Session>,
    /// Name of the model that is asked; `None`: the scenario's own.
    pub model: Option<String>,
    /// True if the memory outlives the run.
    pub permanent: bool,
    /// All that the agent has read and said.
    pub conversation: Conversation,
    /// Sampling settings, with the turn's seed.
    pub sampling: Sampling,
    /// Maximum number of tokens in the reply, besides those of its reasoning.
    pub max_tokens: usize,
    /// Maximum number of tokens of its reasoning.
    pub max_thought_tokens: usize,
    /// The reply ends before one of these.
    pub stops: StopStrings,
    /// The options that the reply chooses from.
    pub choice: Option<OpenOptions>,
    /// The form that the reply is to have.
    pub form: Option<Arc<Form>>,
    /// The tools that the agent knows.
    pub tools: Option<Arc<ToolOffer>>,
    /// True if the reply may be a call of one instead.
    pub may_call: bool,
    /// The tool that it has to be a call of.
    pub must_call: Option<Arc<str>>,
    /// The calls that the agent has made in this turn.
    pub n_calls: usize,
    /// Most calls that it may make in it.
    pub max_calls: usize,
    /// The ids of a recorded reply, to be read instead of sampling one.
    pub follow: Option<Vec<u32>>,
    /// The strategy that answers instead of the model.
    pub strategy: Option<Strategy>,
    /// What that remembers.
    pub recalled: Recalled,
    /// Plan-order number of the agent's next turn; `None`: this is its last.
    pub next_use: Option<u64>,
    /// Compute everything from scratch.
    pub cold: bool,
}

/// Progress of a turn, streamed while it is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The prompt is being read.
    Prefill {
        /// Tokens read.
        done: usize,
        /// Tokens to read.
        total: usize,
    },
    /// A piece of the reply's speech.
    Text(String),
    /// A human is asked for it.
    Asked(Box<Question>),
}

/// An answer.
pub struct Reply {
    /// Ids, as sampled.
    pub ids: Vec<u32>,
    /// The ids as text.
    pub text: String,
    /// The bytes of the text that are said to others: reasoning and calls are not.
    pub speech: Range<usize>,
    /// The reason why it ended.
    pub stop: StopReason,
    /// Text the remote engine generated after the cut.
    pub cut: String,
    /// The call that it is.
    pub call: Option<Call>,
    /// Log-probability of each option that was open, by its index; empty: there was no choice, or no model
    /// made it.
    pub logprobs: Vec<(usize, f32)>,
    /// Findings at each recorded id, if a recording was followed.
    pub followed: Vec<ForcedToken>,
    /// The replies before it that were rejected, so that it was asked for again.
    pub rejected: Vec<Rejected>,
    /// Its cost; `None`: it was not computed now.
    pub usage: Option<Usage>,
    /// To be called once the turn is on record.
    pub commit: Option<Box<dyn Commit>>,
}

impl Reply {
    /// A reply with no computation cost (recorded or scripted), its reasoning marked in a known way.
    pub fn of(ids: Vec<u32>, text: String, stop: StopReason) -> Self {
        let (cut, logprobs, followed, rejected) = Default::default();
        let (speech, call, usage, commit) = (speech_of(&text), None, None, None);
        Self { ids, text, speech, stop, cut, call, logprobs, followed, rejected, usage, commit }
    }

    /// What is said to others.
    pub fn speech(&self) -> &str {
        self.text.get(self.speech.clone()).unwrap_or_default()
    }

    /// A reply of a rule or a human.
    pub fn of_rule(text: String) -> Self {
        Self::of(Vec::new(), text, StopReason::EndOfTurn)
    }

    /// The reply that a line of a transcript holds, of these options.
    pub fn recorded(line: &TurnRecord, options: Option<&OpenOptions>) -> Self {
        let weighed = line.constraint.iter().flat_map(|constraint| &constraint.options);
        let option = |text: &str| options?.choice.options.iter().position(|option| option.text == text);
        let logprobs = weighed.filter_map(|was| Some((option(&was.text)?, was.logprob?))).collect();
        let call = line.call.as_ref().map(CallRecord::call);
        let cut = line.cut.clone();
        let rejected = line.form.as_ref().map(|form| form.rejected.clone()).unwrap_or_default();
        let speech = line.speech_in_raw();
        let reply = Self::of(line.tokens.clone(), line.raw.clone(), line.stop);
        Self { cut, logprobs, call, rejected, speech, ..reply }
    }
}

/// Saves a memory once its turn is on record.
pub trait Commit: Send {
    /// Saves; the final account comes back.
    fn commit(self: Box<Self>) -> BoxFuture<'static, anyhow::Result<Usage>>;
}
