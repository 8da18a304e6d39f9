//! What comes back: [`Event`]s, and the [`Completion`] that they end with; ranks and scores.

use crate::Call;
pub use crate::text::thoughts::{ReplyParts, ThoughtForm};
use serde::{Deserialize, Serialize};

/// Gives each variant its name in lower case, by which it is shown and read.
macro_rules! words {
    ($type:ident: $($variant:ident $word:literal),*) => {
        impl $type {
            /// Its name in lower case.
            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.word())
            }
        }

        impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(word: &str) -> std::result::Result<Self, String> {
                match word {
                    $($word => Ok(Self::$variant),)*
                    _ => Err(format!("`{word}` is not known; expected one of {}", [$($word),*].join(", "))),
                }
            }
        }
    };
}

/// A tool call in a partial reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallSoFar<'a> {
    /// Name of the tool.
    pub tool: &'a str,
    /// The beginning of its arguments, the text of a JSON object.
    pub arguments: String,
}

/// What a reply that calls a tool came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ToolCalls {
    /// Whole calls, their arguments in the tools' schemas: one, or several with
    /// [`Request::parallel_tool_calls`](crate::Request::parallel_tool_calls).
    Complete(Vec<Call>),
    /// The beginning of one: [`Request::max_call_tokens`](crate::Request::max_call_tokens) cut it.
    Truncated,
}

/// Record of a choice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// Index of the option that was drawn, counted from 0 in the order in which they were given.
    pub chosen: usize,
    /// The natural log-probability of each option in that order: the sum over its tokens, as the tokenizer
    /// cuts it, after the prompt, in the model's own distribution (no temperature, no filter, no penalty). It
    /// is the probability of replies that begin with the option, as in [`crate::Engine::rank`].
    ///
    /// An option whose tokens another one begins with counts only where the model would then end its turn:
    /// how likely that is is added to it. So no reply counts for two options.
    pub logprobs: Vec<f32>,
}

/// The log-probability of one token of a reply ([`Request::logprobs`](crate::Request::logprobs)).
///
/// Log-probabilities are natural, in the model's own distribution (no temperature, no filter, no penalty, no
/// grammar): what a token has there says nothing of how it was drawn.
///
/// # Examples
/// ```
/// # use greenroom_engine::*;
/// # let model: &'static [u8] = fixtures::RandomModel::tiny(1).bytes().leak();
/// # let engine = Engine::open(EngineConfig::new(ModelSource::Bundled("tiny", model)))?;
/// let mut ada = engine.agent("demo", "ada").max_tokens(4).logprobs(3);
/// let reply = ada.extend("Rolf: Who are you?")?.blocking_finish()?;
/// for token in &reply.logprobs {
///     let likeliest = &token.top[0];
///     assert!(token.top.len() == 3 && token.logprob <= likeliest.logprob);
/// }
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// The token.
    pub id: u32,
    /// Its text; a character may be spread over several tokens.
    pub bytes: Vec<u8>,
    /// Its log-probability after the prompt and the reply's tokens before it.
    pub logprob: f32,
    /// The most likely tokens at this position, most likely first (ties: lowest id first): as many as were
    /// requested.
    pub top: Vec<TopLogprob>,
}

/// One of the most likely tokens in a place ([`TokenLogprob::top`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopLogprob {
    /// The token.
    pub id: u32,
    /// Its text, as bytes.
    pub bytes: Vec<u8>,
    /// Its natural log-probability.
    pub logprob: f32,
}

/// One token of a reply that was followed ([`Constraint::Follow`](crate::Constraint::Follow)).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForcedToken {
    /// The id that the sampler draws here, with the request's seed and parameters. Differs from the recorded
    /// id: a mismatch.
    pub drawn: u32,
    /// The recorded id's natural log-probability, in the model's own distribution.
    pub logprob: f32,
    /// Log-probability of the drawn id.
    pub drawn_logprob: f32,
}

/// Reason why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum StopReason {
    /// The model ended its turn.
    EndOfTurn,
    /// A stop string was met; the reply was cut before it.
    StopString,
    /// `max_tokens` was reached, and the reply ends at that token.
    Length,
    /// `max_tokens` was reached, and the reply was cut after its last whole sentence
    /// ([`Request::whole_sentences`](crate::Request::whole_sentences)).
    Sentence,
}

words!(StopReason: EndOfTurn "end_of_turn", StopString "stop_string", Length "length", Sentence "sentence");

/// How the prompt matched the session's cached tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum MatchKind {
    /// Nothing was reused.
    #[default]
    Cold,
    /// A new session found equal sealed blocks of another.
    Prefix,
    /// The prompt begins with all that was cached.
    Extend,
    /// The prompt is exactly what was cached.
    Exact,
    /// The prompt differs from what was cached; everything before the difference was reused.
    Diverge,
}

words!(MatchKind: Cold "cold", Prefix "prefix", Extend "extend", Exact "exact", Diverge "diverge");

/// Source of the reused part of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum CacheSource {
    /// Nothing was reused.
    #[default]
    None,
    /// It was in memory.
    Memory,
    /// It was read from disk.
    Disk,
}

words!(CacheSource: None "none", Memory "memory", Disk "disk");

/// Cost of a turn. `prefilled + recomputed + generated == layer0_rows`, always.
///
/// # Examples
/// ```
/// # use greenroom_engine::*;
/// # let model: &'static [u8] = fixtures::RandomModel::tiny(1).bytes().leak();
/// # let engine = Engine::open(EngineConfig::new(ModelSource::Bundled("tiny", model)))?;
/// let mut ada = engine.agent("demo", "ada").max_tokens(8);
/// let first = ada.extend("Rolf: Who are you?")?.blocking_finish()?.usage;
/// assert_eq!((first.kind, first.reused), (MatchKind::Cold, 0));
/// let second = ada.extend("Rolf: And who am I?")?.blocking_finish()?.usage;
/// assert_eq!((second.kind, second.source, second.recomputed), (MatchKind::Extend, CacheSource::Memory, 0));
/// assert_eq!(second.prefilled + second.recomputed + second.generated, second.layer0_rows);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Match between the prompt and the cache.
    pub kind: MatchKind,
    /// Source of the reused tokens.
    pub source: CacheSource,
    /// Prompt tokens whose keys and values were reused.
    pub reused: usize,
    /// Prompt tokens that were new to the session.
    pub prefilled: usize,
    /// Tokens that the session had already read or said, computed again.
    pub recomputed: usize,
    /// Rows that the reply took: its own tokens, and of a choice also those that were read to weigh the
    /// options.
    pub generated: usize,
    /// Tokens that were drafted (prompt lookup or draft model) and went through the model, right or wrong;
    /// `layer0_rows` does not count those that were not accepted.
    pub guessed: usize,
    /// Drafted tokens that were accepted.
    pub guessed_right: usize,
    /// Rows that went through layer 0, counted there, without drafted tokens that were not accepted.
    pub layer0_rows: usize,
    /// Milliseconds from the start of the turn's work to its first token.
    pub ttft_ms: f64,
    /// Milliseconds of the whole turn, saving included.
    pub total_ms: f64,
    /// Bytes read from the store, read ahead or not.
    pub bytes_read: u64,
    /// Bytes written to the store by this turn.
    pub bytes_written: u64,
    /// Milliseconds that the turn waited for its memory to be read.
    pub waited_ms: f64,
    /// Milliseconds that its memory was read ahead, while other turns were active.
    pub prefetch_ms: f64,
    /// Milliseconds that the reused tokens would have taken to compute, by the latest measure of a prompt's
    /// token.
    pub saved_ms: f64,
    /// Bytes that cached keys and values of all sessions took in memory at the turn's end.
    pub memory_bytes: u64,
    /// Reason why a cache was not used, or not wholly: a damaged file, another model, a difference in the
    /// text.
    pub reason: Option<String>,
    /// The place where the prompt left what the session held (or a new one's parent); `None`: it began with
    /// all of that.
    pub divergence: Option<Divergence>,
    /// Numerics of the devices that computed the first of the reused tokens, where the session's memory was
    /// adopted ([`EngineConfig::adopt`](crate::EngineConfig::adopt)).
    pub adopted: Option<String>,
}

/// Where the prompt diverges from the cached tokens, and both texts there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Divergence {
    /// Index of the first prompt token that is not in common; the prompt's length where it ends before what
    /// was held.
    pub token: usize,
    /// Offset of the difference in the rendered prompt, in characters. (Text that was read as another kind of
    /// text, or as other tokens, is different from its beginning on.)
    pub character: usize,
    /// Text that was held, from up to [`Divergence::BEFORE`] characters before the difference on:
    /// [`Divergence::LENGTH`] characters at most.
    pub held: String,
    /// Text that was requested, from the same position on.
    pub asked: String,
}

impl Divergence {
    /// Maximum number of characters before the difference that the texts begin with.
    pub const BEFORE: usize = 20;
    /// Maximum number of characters of each text.
    pub const LENGTH: usize = 80;
}

/// The difference as text.
impl std::fmt::Display for Divergence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { token, character, .. } = self;
        write!(f, "the prompt differs from what was read, from character {character} on (token {token})")
    }
}

/// A finished reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// The reply's token ids, without end-of-turn.
    pub ids: Vec<u32>,
    /// The ids decoded, special tokens included; it ends with a whole character. Of a choice: the option as
    /// it was given (vocabularies that begin a text with a space begin its ids with it, too).
    pub text: String,
    /// Its thought and its speech in `text`.
    #[serde(default)]
    pub parts: ReplyParts,
    /// Number of its tokens that are of a thought, marks included.
    #[serde(default)]
    pub n_thought: usize,
    /// Number of its first tokens that somebody else has said for it ([`Constraint::Begin`](crate::Constraint::Begin)).
    #[serde(default)]
    pub n_given: usize,
    /// Reason why it ended.
    pub stop: StopReason,
    /// The stop string that ended it.
    pub stop_string: Option<String>,
    /// Record of the choice, if it was one of [`Constraint::OneOf`](crate::Constraint::OneOf).
    pub choice: Option<Choice>,
    /// The reply's tool calls, if any.
    pub call: Option<ToolCalls>,
    /// For each complete call, the number of ids up to its end.
    pub call_ends: Vec<usize>,
    /// Findings at each recorded token, if it followed a recording
    /// ([`Constraint::Follow`](crate::Constraint::Follow)).
    pub followed: Vec<ForcedToken>,
    /// The log-probability of each of `ids`, if requested ([`Request::logprobs`](crate::Request::logprobs));
    /// else empty.
    pub logprobs: Vec<TokenLogprob>,
    /// Hash (blake3, in hex) of everything that determines the bits of this reply and of the session. It is
    /// the same whether the prompt was prefilled, cached, restored, forked or batched with others, and names
    /// no tenant and no session.
    ///
    /// Hashes, in this order, the text `greenroom completion 1`; the model's identity
    /// ([`ModelInfo::identity`](crate::ModelInfo::identity)), the layout and formats of the cache, and the
    /// numerics that its blocks are computed with; the version of the store; the ids of the prompt as they
    /// are in the session (a past reply that was given as text has the ids that were sampled, if the session
    /// held it); the reply's ids; [`Sampling::seed`](crate::Sampling::seed). Each text is its length in bytes
    /// and its UTF-8, each list of ids its length and each id as 4 bytes; lengths, the version and the seed
    /// are 8 bytes; all numbers are little-endian.
    pub digest: String,
    /// Cost of the turn.
    pub usage: Usage,
}

impl Completion {
    /// What it thought before it spoke, without marks; empty: nothing.
    pub fn thought(&self) -> &str {
        self.text.get(self.parts.thought.clone()).unwrap_or_default()
    }

    /// Log-probabilities of the tokens of its speech, if requested.
    pub fn speech_logprobs(&self) -> &[TokenLogprob] {
        let mut end = 0;
        let ends: Vec<usize> = self
            .logprobs
            .iter()
            .map(|token| {
                end += token.bytes.len();
                end
            })
            .collect();
        let begin = ends.partition_point(|end| *end <= self.parts.speech.start);
        let is_all = self.parts.speech.end >= self.text.len();
        let end = if is_all { ends.len() } else { ends.partition_point(|end| *end <= self.parts.speech.end) };
        self.logprobs.get(begin..end.max(begin)).unwrap_or_default()
    }

    /// What it says to others: its text without a thought, marks and calls.
    pub fn speech(&self) -> &str {
        self.text.get(self.parts.speech.clone()).unwrap_or_default()
    }
}

/// Event of a turn. `Done` or `Failed` is the last one.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// The prompt is being read: `done` of `total` new tokens so far.
    Prefill {
        /// Tokens read.
        done: usize,
        /// Tokens to read.
        total: usize,
    },
    /// A piece of the reply's thought, which precedes its text.
    Thought(String),
    /// A piece of the reply: text that no stop string and no limit can take back.
    Text(String),
    /// A piece of a call of a tool that the reply is, or ends with, markup included;
    /// [`PromptEncoder::calls_so_far`](crate::PromptEncoder::calls_so_far) reads all of them together. After
    /// it comes no text.
    Call(String),
    /// Log-probabilities of the reply's next tokens, if requested
    /// ([`Request::logprobs`](crate::Request::logprobs)): directly after the `Thought`, `Text` or `Call` with which
    /// these tokens became certain. Tokens that stream no text of their own come at the end of the turn. The
    /// complete list is [`Completion::logprobs`].
    Logprobs(Vec<TokenLogprob>),
    /// The reply is complete, and its blocks and tail are on disk (if the session is stored); only the
    /// manifest is missing until [`crate::Turn::commit`]: the moment for a caller to write its own record.
    Done(Box<Completion>),
    /// The turn failed; the session is as it was before.
    Failed(crate::Error),
}

/// One scored token of [`crate::Engine::score`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenScore {
    /// Position of the scored token (the first token has no score).
    pub pos: usize,
    /// The token at this position.
    pub id: u32,
    /// Its natural log-probability given the tokens before it.
    pub logprob: f32,
    /// The most likely id there.
    pub top: u32,
}

/// Next-token figures of one cache format, from [`crate::Engine::compare`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FormatDivergence {
    /// Natural log-probability of the token that follows; `None` after the last one.
    pub logprob: Option<f64>,
    /// The most likely id.
    pub top: u32,
    /// Kullback–Leibler divergence of the next token's distribution from that with the first format, in nats.
    pub divergence: f64,
}

/// Result of [`crate::Engine::rank`].
#[derive(Clone, Debug, PartialEq)]
pub struct Ranking {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// The options, in order.
    pub options: Vec<RankedOption>,
}

/// One option as a reply.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankedOption {
    /// Its natural log-probability, all its tokens taken together.
    pub logprob: f32,
    /// True if each of its tokens is the most likely one at its position.
    pub greedy: bool,
}
