//! Inputs and outputs of the engine: plain data, no behaviour.
//!
//! A [`Request`] asks for one reply of one agent; [`Event`]s stream back and end with a [`Completion`].

pub use greenroom_grammar::Grammar;
use std::path::PathBuf;
use std::sync::Arc;

/// Source of a model.
#[derive(Clone, Debug)]
pub enum ModelSource {
    /// A GGUF file, memory-mapped.
    Path(PathBuf),
    /// A GGUF compiled into the program; the name is used in messages.
    Bundled(&'static str, &'static [u8]),
}

/// Names one sequence's memory: an agent of a run of a tenant. All are free text; files are named by their hash.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversation {
    /// The system text: constant for as long as the session lives.
    pub system: Option<String>,
    /// The tools that the agent may call: constant, too.
    pub tools: Option<Arc<Tools>>,
    /// Past turns, oldest first.
    pub exchanges: Vec<Exchange>,
    /// The user message to answer now.
    pub next: String,
    /// How much it is thought about before it is answered.
    pub reasoning: Reasoning,
}

/// One past turn: a user message and the reply to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Text that the agent read.
    pub user: String,
    /// Reply that the agent gave.
    pub reply: ReplyContent,
    /// How much it was to think before it. A part of what it read: most templates say so right before a reply.
    pub reasoning: Reasoning,
}

impl Exchange {
    /// A user message and the reply to it, without reasoning.
    pub fn new(user: String, reply: ReplyContent) -> Self {
        Self { user, reply, reasoning: Reasoning::None }
    }
}

/// How much an agent thinks before it replies, where the model's chat template has a switch for it (`enable_thinking`, `thinking` or
/// `reasoning_effort`); elsewhere it changes nothing. A template that only knows on and off takes all but `None` as on; one that can't
/// turn it off takes `None` as `Low`. One that says it at a conversation's beginning takes the first reply's for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyContent {
    /// Token ids, exactly as sampled.
    Ids(Arc<[u32]>),
    /// Text of unknown tokenization.
    Text(String),
    /// Token ids of a call ([`Completion::call`]): what the agent reads next is its result.
    Call(Arc<[u32]>),
    /// A call of unknown tokenization, from an outside client: spelled as the model's template writes calls, its JSON with a space
    /// behind `,` and `:`. Like [`ReplyContent::Text`] it is what was sampled where the text is the same. What the agent reads next is
    /// its result.
    CallText(Call),
}

/// All that is read before a reply.
///
/// A raw prompt ([`Prompt::Text`], [`Prompt::Ids`]) is compared with what its session holds token by token: one that begins with an earlier
/// prompt and its reply extends them, whatever they were given as. It has no past replies, so [`Sampling::dry`] looks at the reply
/// alone, and no tools. Where its ids are those of a rendered conversation, so are the bits of the reply.
///
/// ```
/// use greenroom_engine::*;
///
/// # let model: &'static [u8] = fixtures::RandomModel::tiny(1).bytes().leak();
/// let engine = Engine::open(EngineConfig::new(ModelSource::Bundled("tiny", model)), &mut |_| {})?;
/// let request = Request { max_tokens: 8, ..Request::new(SessionKey::new("demo", "ada"), Prompt::Text("Once upon".to_owned())) };
/// let mut turn = engine.submit(request)?;
/// while let Some(event) = turn.blocking_next() {
///     if let Event::Text(text) = event {
///         print!("{text}");
///     }
/// }
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// A conversation, rendered through the model's chat template.
    Chat(Conversation),
    /// A text as it is, tokenized as a whole: special tokens are recognised in it, and it begins with the begin-of-sequence token once
    /// where the model's texts do.
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tools {
    /// The tools.
    pub list: Vec<Tool>,
    /// How they are called, in words, for a model whose chat template knows no tools: it stands behind the system text. Such a model
    /// calls by `{"tool": NAME, "arguments": {…}}`; any other one as its template writes calls.
    pub instructions: String,
}

/// A tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// What it does, in words.
    pub about: String,
    /// JSON Schema of its arguments, an object.
    pub arguments: serde_json::Value,
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Name of the tool.
    pub tool: String,
    /// Its arguments.
    pub arguments: serde_json::Value,
}

/// Whether a reply may be a call of a tool, or must be one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Calls {
    /// It is what it says.
    #[default]
    Never,
    /// It may: once it begins as a call it is under the tool's schema, and neither `stop` nor `whole_sentences` cut it. One that does not
    /// is what it would have been without tools.
    Allowed,
    /// Not any more: a token that a call begins with is drawn again.
    Over,
    /// It is a call of one of the tools: the markup or the text that a call begins with is said whatever would have been drawn, and the
    /// rest is under the tools' schemas. What the agent reads is the same as with [`Calls::Allowed`]. The reply can't have a grammar of
    /// its own.
    Required,
    /// The same, of the tool with this name.
    Named(Arc<str>),
}

/// A call of a tool as far as it is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallSoFar<'a> {
    /// Name of the tool.
    pub tool: &'a str,
    /// The beginning of its arguments, the text of a JSON object.
    pub arguments: &'a str,
}

/// What a reply that calls a tool came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Called {
    /// Whole calls, their arguments in the tools' schemas: one, or several with [`Request::joint_calls`].
    Whole(Vec<Call>),
    /// The beginning of one: [`Request::max_call_tokens`] cut it.
    Cut,
}

/// Sampling parameters. Defaults: temperature 0.8 (not greedy), no filters, no penalty.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 means greedy.
    pub temperature: f32,
    /// Keep only the k most likely tokens (0: all).
    pub top_k: usize,
    /// Keep the smallest set of tokens whose probability reaches this (1: all).
    pub top_p: f32,
    /// Drop tokens less likely than this share of the most likely one (0: none).
    pub min_p: f32,
    /// Divide positive logits (multiply negative ones) of tokens that this reply has already used by this (1: off).
    pub repetition_penalty: f32,
    /// Number of the reply's latest tokens that the penalty looks at.
    pub repetition_window: usize,
    /// Penalizes sequences of tokens that the agent has said before, in this reply or earlier ones (`None`: off).
    pub dry: Option<Dry>,
    /// Seeds this request's choices: equal prompt, parameters and seed give an equal reply.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            repetition_window: 64,
            dry: None,
            seed: 0,
        }
    }
}

/// DRY, "don't repeat yourself": a token that would continue a sequence of n tokens as it went on before loses
/// `multiplier * base^(n - allowed_length)` of its logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dry {
    /// Penalty for a sequence of `allowed_length` tokens.
    pub multiplier: f32,
    /// Factor by which the penalty grows with each further token.
    pub base: f32,
    /// Shorter sequences cost nothing.
    pub allowed_length: usize,
}

impl Default for Dry {
    /// The usual parameters.
    fn default() -> Self {
        Self { multiplier: 0.8, base: 1.75, allowed_length: 2 }
    }
}

impl Sampling {
    /// Tells whether every number is one that it may be.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Request`]: the first that is not, and what it may be.
    pub fn validate(&self) -> crate::Result<()> {
        let share = 0.0..=1.0;
        let is_amount = |number: f32| number.is_finite() && number >= 0.0;
        let (penalty, temperature) = (self.repetition_penalty, self.temperature);
        let dry = self.dry.unwrap_or_default();
        for (name, found, fits, expected) in [
            ("temperature", temperature, is_amount(temperature), "0 or more, 0 for greedy"),
            ("top_p", self.top_p, share.contains(&self.top_p), "from 0 to 1"),
            ("min_p", self.min_p, share.contains(&self.min_p), "from 0 to 1"),
            ("repetition_penalty", penalty, is_amount(penalty) && penalty > 0.0, "above 0, 1 for none"),
            ("dry.multiplier", dry.multiplier, is_amount(dry.multiplier), "0 or more"),
            ("dry.base", dry.base, is_amount(dry.base) && dry.base >= 1.0, "1 or more"),
        ] {
            if !fits {
                let detail = format!("the sampling's {name} is {found}; expected a number {expected}");
                return Err(crate::Error::request(detail));
            }
        }
        Ok(())
    }
}

/// Place where a session is kept when its turn is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// Kept in memory and on disk: a permanent agent.
    Persistent,
    /// Kept in memory until [`crate::Engine::forget`]: an agent that lives for a phase.
    Ephemeral,
}

/// Asks for one reply.
#[derive(Clone, Debug)]
pub struct Request {
    /// Session whose memory is used and extended.
    pub session: SessionKey,
    /// A session to start from when this one has no memory yet (`run --continue`).
    pub parent: Option<SessionKey>,
    /// Place where the session is kept afterwards.
    pub retention: Retention,
    /// All that is read before the reply; the engine works out what of it is already in the cache.
    pub prompt: Prompt,
    /// Sampling parameters.
    pub sampling: Sampling,
    /// Stop after this many tokens. A choice is never cut.
    pub max_tokens: usize,
    /// Tokens before which no end-of-turn token can be sampled. Stop strings still cut, and a choice has as many tokens as it
    /// has.
    pub min_tokens: usize,
    /// The reply ends before the first token that overlaps one of these. One that begins with a line break is also met at the
    /// beginning of the reply. Where that would leave nothing, the token that completes it is not drawn. A choice is never cut.
    pub stop: Vec<String>,
    /// A reply that reaches `max_tokens` ends with its last whole sentence, if it has one; what follows it is dropped.
    pub whole_sentences: bool,
    /// Tokens after which a call of a tool is cut, in the place of `max_tokens`; fewer where the context ends.
    pub max_call_tokens: usize,
    /// Constraint on the reply; `None`: it is free.
    pub constraint: Option<Constraint>,
    /// True if the options of a choice are drawn by their log-probability by length ([`by_length`](crate::by_length)), so that a long
    /// text is not unlikely for its length alone.
    pub by_length: bool,
    /// Grammar that the reply is in; `None`: any text. It ends when the grammar is complete; what `max_tokens` cuts is not in it.
    /// `stop`, `min_tokens` and `whole_sentences` have no effect then, and a choice ([`Constraint::OneOf`]) can't have one.
    ///
    /// At each position the token is drawn as it would be without a grammar. If the grammar does not allow it, another one is drawn
    /// among those that it allows, in proportion to their probabilities, by numbers that belong to the seed, the position and the
    /// token. So a grammar never moves later draws: a free reply that is in a grammar is also the reply under it, and a reply under
    /// one grammar is also that under each narrower grammar which allows it.
    pub grammar: Option<Arc<Grammar>>,
    /// Whether the reply may be a call of one of the conversation's tools instead. One that has a grammar of its own is never a call.
    pub calls: Calls,
    /// True if a reply that is a call may go on with another one, where the model's template can write several: behind each the model
    /// ends the reply or begins the next, whichever it draws. The reply's ids end with the last whole call. (What the agent reads next is
    /// the result of one call; several are remembered as calls one after another.)
    pub joint_calls: bool,
    /// `Some(n)`: the log-probability of each token of the reply comes with it ([`Completion::logprobs`]), and the `n` most likely
    /// tokens in its place, [`MOST_TOP_LOGPROBS`] at most. It changes no token.
    pub logprobs: Option<usize>,
    /// Time of the agent's next turn (any monotonic scale, e.g. turns from the start); `None`: unknown.
    /// The agent that is needed last is evicted first.
    pub next_use: Option<u64>,
    /// Drop what is cached before the turn and look nothing up: everything is computed anew.
    pub cold: bool,
}

impl Request {
    /// Asks for the reply to a prompt: of 256 tokens at most, drawn with the default [`Sampling`], by an agent whose memory is not kept
    /// on disk.
    pub fn new(session: SessionKey, prompt: impl Into<Prompt>) -> Self {
        Self {
            session,
            parent: None,
            retention: Retention::Ephemeral,
            prompt: prompt.into(),
            sampling: Sampling::default(),
            max_tokens: 256,
            min_tokens: 0,
            stop: Vec::new(),
            whole_sentences: false,
            max_call_tokens: 256,
            constraint: None,
            by_length: false,
            grammar: None,
            calls: Calls::default(),
            joint_calls: false,
            logprobs: None,
            next_use: None,
            cold: false,
        }
    }

    /// Tells whether the request is one that an engine can take, as far as that shows without the model.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Request`]: the first fault, and what was expected.
    pub(crate) fn validate(&self) -> crate::Result<()> {
        self.sampling.validate()?;
        if self.parent.as_ref().is_some_and(|parent| parent.tenant != self.session.tenant) {
            return Err(crate::Error::request("a session can't begin with the memory of another tenant's"));
        }
        if let Some(n) = self.logprobs.filter(|n| *n > MOST_TOP_LOGPROBS) {
            let found = format!("logprobs is {n}; expected {MOST_TOP_LOGPROBS} or fewer");
            return Err(crate::Error::request(found));
        }
        self.validate_calls()
    }

    fn validate_calls(&self) -> crate::Result<()> {
        let (Calls::Required | Calls::Named(_)) = &self.calls else { return Ok(()) };
        let tools = self
            .prompt
            .conversation()
            .and_then(|conversation| conversation.tools.as_ref())
            .map_or(&[][..], |tools| &tools.list);
        let names = || tools.iter().map(|tool| format!("`{}`", tool.name)).collect::<Vec<_>>().join(", ");
        let found = match &self.calls {
            _ if self.grammar.is_some() => "a reply that must be a call can't have a grammar".to_owned(),
            _ if tools.is_empty() => "the reply must be a call, but the conversation has no tools".to_owned(),
            Calls::Named(name) if tools.iter().all(|tool| tool.name != **name) => {
                format!("the reply must be a call of `{name}`; the conversation's tools are {}", names())
            }
            _ => return Ok(()),
        };
        Err(crate::Error::request(found))
    }
}

/// Likely tokens that are told for each token of a reply, at most ([`Request::logprobs`]).
pub const MOST_TOP_LOGPROBS: usize = 20;

/// Constraint on a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Constraint {
    /// Exactly one of these texts, drawn as a whole: option i with a probability in proportion to
    /// `exp(logprobs[i] / temperature)`, at temperature 0 the most likely one (the first among equals). The prompt is read once,
    /// and behind it each token that options have in common, but for their last ones.
    ///
    /// Of [`Sampling`] only temperature and seed count. [`Completion::choice`] says what each option's log-probability was
    /// ([`Choice::logprobs`] says what that means).
    ///
    /// Refused: an empty list, an empty option, a text that stands there twice, two texts that are the same tokens, and one that
    /// the vocabulary can't spell.
    OneOf(Vec<String>),
    /// These token ids, recorded earlier: they are read in one go instead of being sampled (teacher forcing), and
    /// [`Completion::followed`] says at each of them what would have been drawn. Behind them the reply goes on freely, so
    /// that it ends as recorded or shows that it would not.
    ///
    /// Refused: an id that the vocabulary has not.
    Follow(Vec<u32>),
}

/// Record of a choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Index of the option that was drawn, counted from 0 in the order in which they were given.
    pub chosen: usize,
    /// The natural log-probability of each option in that order: of all its tokens, as the tokenizer cuts it, one after the other
    /// behind the prompt, in the model's own distribution (no temperature, no filter, no penalty). It is that of replies that
    /// begin with the option, as in [`crate::Engine::rank`].
    ///
    /// An option whose tokens another one begins with counts only where the model would then end its turn: how likely that is
    /// is added to it. So no reply counts for two options.
    pub logprobs: Vec<f32>,
}

/// The log-probability of one token of a reply ([`Request::logprobs`]).
///
/// Log-probabilities are natural, in the model's own distribution (no temperature, no filter, no penalty, no grammar): what a token
/// has there says nothing of how it was drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub id: u32,
    /// Its text; a character may be spread over several tokens.
    pub bytes: Vec<u8>,
    /// Its log-probability behind the prompt and the reply's tokens before it.
    pub logprob: f32,
    /// The most likely tokens in its place, likeliest first (the lowest id first among equals): as many as were asked for.
    pub top: Vec<TopLogprob>,
}

/// One of the most likely tokens in a place ([`TokenLogprob::top`]).
#[derive(Clone, Debug, PartialEq)]
pub struct TopLogprob {
    /// The token.
    pub id: u32,
    /// Its text, as bytes.
    pub bytes: Vec<u8>,
    /// Its natural log-probability.
    pub logprob: f32,
}

/// One token of a reply that was followed ([`Constraint::Follow`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Followed {
    /// The id that the sampler draws here, with the request's seed and parameters. Another one than the recorded: a surprise.
    pub drawn: u32,
    /// The recorded id's natural log-probability, in the model's own distribution.
    pub logprob: f32,
    /// Log-probability of the drawn id.
    pub drawn_logprob: f32,
}

/// Reason why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StopReason {
    /// The model ended its turn.
    EndOfTurn,
    /// A stop string was met; the reply was cut before it.
    StopString,
    /// `max_tokens` was reached, and the reply ends wherever it had come to.
    Length,
    /// `max_tokens` was reached, and the reply was cut behind its last whole sentence ([`Request::whole_sentences`]).
    Sentence,
}

/// Match between a prompt and what the cache held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatchKind {
    /// Nothing was reused.
    Cold,
    /// A new session found equal sealed blocks of another.
    Prefix,
    /// The prompt begins with all that was cached.
    Extend,
    /// The prompt is exactly what was cached.
    Exact,
    /// The prompt differs from what was cached; what stands before the difference was reused.
    Diverge,
}

/// Source of the reused part of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Nothing was reused.
    None,
    /// It was in memory.
    Memory,
    /// It was read from disk.
    Disk,
}

/// Cost of a turn. `prefilled + recomputed + generated == layer0_rows`, always.
#[derive(Clone, Debug, PartialEq)]
pub struct Usage {
    /// Match between the prompt and the cache.
    pub kind: MatchKind,
    /// Source of the reused tokens.
    pub source: Source,
    /// Prompt tokens whose keys and values were reused.
    pub reused: usize,
    /// Prompt tokens that were new to the session.
    pub prefilled: usize,
    /// Tokens that the session had already read or said, computed again.
    pub recomputed: usize,
    /// Rows that the reply took: its own tokens, and of a choice also those that were read to weigh the options.
    pub generated: usize,
    /// Rows that really went through layer 0, counted there.
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
    /// Milliseconds that its memory was read ahead, while others were at work.
    pub hidden_ms: f64,
    /// Milliseconds that the reused tokens would have taken to compute, by the latest measure of a prompt's token.
    pub saved_ms: f64,
    /// Bytes that cached keys and values of all sessions took in memory at the turn's end.
    pub memory_bytes: u64,
    /// Reason why a cache was not used, or not wholly: a damaged file, another model, a difference in the text.
    pub reason: Option<String>,
    /// The place where the prompt left what the session held (or a new one's parent); `None`: it began with all of that.
    pub divergence: Option<Divergence>,
    /// Numerics of the devices that computed the first of the reused tokens, where the session's memory was adopted
    /// ([`EngineConfig::adopt`](crate::EngineConfig::adopt)).
    pub adopted: Option<String>,
}

/// The place where a prompt left what its session held, and both texts there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// Index of the first prompt token that is not in common; the prompt's length where it ends before what was held.
    pub token: usize,
    /// Offset of the difference in the rendered prompt, in characters. (Text that was read as another kind of text, or as other tokens,
    /// is different from its beginning on.)
    pub character: usize,
    /// Text that was held, from up to [`Divergence::BEFORE`] characters before the difference on: [`Divergence::LENGTH`] characters at
    /// most.
    pub held: String,
    /// Text that was asked for, from the same place on.
    pub asked: String,
}

impl Divergence {
    /// Characters before the difference that the texts begin with, at most.
    pub const BEFORE: usize = 20;
    /// Characters of each text, at most.
    pub const LENGTH: usize = 80;
}

/// The difference in words.
impl std::fmt::Display for Divergence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { token, character, .. } = self;
        write!(f, "the prompt differs from what was read from its character {character} on (token {token})")
    }
}

/// A finished reply.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// The reply's token ids, without end-of-turn.
    pub ids: Vec<u32>,
    /// The ids decoded, special tokens included; it ends with a whole character. Of a choice: the option as it was given
    /// (vocabularies that begin a text with a space begin its ids with it, too).
    pub text: String,
    /// Reason why it ended.
    pub stop: StopReason,
    /// The stop string that ended it.
    pub stop_string: Option<String>,
    /// Record of the choice, if it was one of [`Constraint::OneOf`].
    pub choice: Option<Choice>,
    /// The calls of tools that the reply is; `None`: it is none.
    pub call: Option<Called>,
    /// Numbers of ids by which its whole calls end.
    pub call_ends: Vec<usize>,
    /// Findings at each recorded token, if it followed a recording ([`Constraint::Follow`]).
    pub followed: Vec<Followed>,
    /// The log-probability of each of `ids`, if that was asked for ([`Request::logprobs`]); else empty.
    pub logprobs: Vec<TokenLogprob>,
    /// Hash (blake3, in hex) of what decides the bits of this reply and of what was read and said. It is the same whether the prompt was
    /// read anew, cached, restored, forked or read beside others, and names no tenant and no session.
    ///
    /// Hashed are, in this order: the text `greenroom completion 1`; the model's identity ([`ModelInfo::identity`]), the layout and
    /// formats of the cache, and the numerics that its blocks are computed with; the version of the store; the ids of the prompt as they
    /// stand in the session (a past reply that was given as text has the ids that were sampled, if the session held it); the reply's
    /// ids; [`Sampling::seed`]. Each text is its length in bytes and its UTF-8, each list of ids its length and each id as 4 bytes;
    /// lengths, the version and the seed are 8 bytes; all numbers are little-endian.
    pub digest: String,
    /// Cost of the turn.
    pub usage: Usage,
}

/// Event of a turn. `Done` or `Failed` is the last one.
#[derive(Debug)]
pub enum Event {
    /// The prompt is being read: `done` of `total` new tokens so far.
    Prefill {
        /// Tokens read.
        done: usize,
        /// Tokens to read.
        total: usize,
    },
    /// A piece of the reply: text that no stop string and no limit can take back.
    Text(String),
    /// A piece of a reply that is a call of a tool, markup included; [`Prompter::calls_so_far`](crate::Prompter::calls_so_far) reads all
    /// of them together. A reply's pieces are all text, or all of a call.
    Call(String),
    /// Log-probabilities of the reply's next tokens, if they were asked for ([`Request::logprobs`]): directly after the `Text` or
    /// `Call` with which these tokens became certain. Tokens without text of their own that is streamed come at the turn's end. All of them together are [`Completion::logprobs`].
    Logprobs(Vec<TokenLogprob>),
    /// The reply stands (committed to the cache in memory), before it is saved: the moment for a caller to
    /// write its own record. The manifest on disk follows only after [`crate::Turn::commit`].
    Done(Box<Completion>),
    /// The turn failed; the session is as it was before.
    Failed(crate::Error),
}

/// One scored token of [`crate::Engine::score`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenScore {
    /// Position of the scored token (the first token has no score).
    pub pos: usize,
    /// The token that stands there.
    pub id: u32,
    /// Its natural log-probability given the tokens before it.
    pub logprob: f32,
    /// The most likely id there.
    pub top: u32,
}

/// Next-token figures of one cache format, from [`crate::Engine::compare`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// Natural log-probability of the token that follows; `None` behind the last one.
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
    /// True if each of its tokens is the most likely one where it stands.
    pub greedy: bool,
}

/// Numeric format of cached keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// IEEE half precision, unrotated.
    F16,
    /// 8-bit codes with a scale for 64 of them, rotated; keys around their block's mean.
    Q8,
    /// 4-bit codes with a scale for 64 of them, rotated; keys around their block's mean.
    #[default]
    Q4,
}

/// Formats of a model's keys and values once their block is sealed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KvChoice {
    /// The family's own: [`KvChoice::Mixture`], but 8 bits for keys that have a bias (their outliers break 4 bits) and for a latent
    /// (which all heads share, and which is small in 8 bits already); or what the self-check finds the model to need
    /// ([`EngineConfig::self_check`](crate::EngineConfig::self_check)).
    #[default]
    Auto,
    /// Four bits, but eight for the keys of one layer in six, those whose keys bear 4 bits worst: 4.5 bits a number. Which they are is
    /// measured when a model is opened for the first time. Layers that see everything and layers with a window are counted apart; a
    /// model of fewer than six has none.
    Mixture,
    /// Keys and values of all layers alike.
    Uniform(KvFormat),
    /// All layers alike, keys and values each in their own.
    Sides(KvLayer),
    /// All alike, and codes not rotated: to measure what the rotation is worth.
    Unrotated(KvFormat),
    /// Layer by layer.
    Mixed(Vec<KvLayer>),
}

/// Formats of one layer; where values are a view of the keys (a latent), `k` is for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayer {
    /// Format of keys.
    pub k: KvFormat,
    /// Format of values.
    pub v: KvFormat,
}

/// Memory that one agent's cache takes between its turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvCost {
    /// Bytes of a sealed token in layers that see everything.
    pub global: u64,
    /// Bytes of a sealed token in layers with a window; 0: there are none.
    pub windowed: u64,
    /// Tokens that such layers hold, at most.
    pub window: u64,
    /// Bytes of what is kept exact of the first tokens, beside their codes.
    pub exact: u64,
    /// Bytes of one of the newest tokens, which are not sealed yet.
    pub open: u64,
    /// Tokens that are not sealed yet, at most.
    pub most_open: u64,
}

impl KvCost {
    /// Bytes of `tokens` tokens, at most.
    pub fn most(&self, tokens: u64) -> u64 {
        self.bytes(tokens, self.most_open.min(tokens))
    }

    /// Bytes of about `tokens` tokens, on average: half a block is not sealed yet.
    pub fn mean(&self, tokens: u64) -> u64 {
        self.bytes(tokens, self.most_open.div_ceil(2).min(tokens))
    }

    fn bytes(&self, tokens: u64, open: u64) -> u64 {
        let sealed = tokens - open;
        let windowed = self.windowed.saturating_mul(sealed.min(self.window));
        let open = self.open.saturating_mul(open).saturating_add(if sealed > 0 { self.exact } else { 0 });
        self.global.saturating_mul(sealed).saturating_add(windowed).saturating_add(open)
    }

    /// The longest context that takes at most `bytes`.
    pub fn longest(&self, bytes: u64) -> u64 {
        let Some(rest) = bytes.checked_sub(self.open.saturating_mul(self.most_open)) else {
            return bytes / self.open.max(1);
        };
        let rest = rest.saturating_sub(self.exact);
        let sealed = match rest.checked_sub(self.windowed.saturating_mul(self.window)) {
            // The window is full: what is left goes to the layers that see everything.
            Some(rest) if rest / self.global.max(1) >= self.window => rest / self.global.max(1),
            _ => rest / self.global.saturating_add(self.windowed).max(1),
        };
        sealed + self.most_open
    }
}

/// Description of a model, as plain data.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// `general.name` of the file, else the file's name.
    pub name: String,
    /// `general.architecture`.
    pub family: String,
    /// blake3 (hex) over weights, tokenizer and chat template: what transcripts and caches name.
    pub identity: String,
    /// Kernel contract and its version, as it stands in caches and transcripts.
    pub numerics: String,
    /// Number of layers.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key/value heads.
    pub n_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Vocabulary size.
    pub n_vocab: usize,
    /// Most positions that the file promises.
    pub context_length: usize,
    /// Number of parameters.
    pub n_params: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Effects of the chat template on history (and what was done about them), a line each.
    pub template_audit: Vec<String>,
    /// Sampling that the model's makers suggest.
    pub sampling: SuggestedSampling,
}

/// Sampling that a model's file suggests (`general.sampling.*`): nothing applies it by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SuggestedSampling {
    /// [`Sampling::temperature`].
    pub temperature: Option<f32>,
    /// [`Sampling::top_k`].
    pub top_k: Option<usize>,
    /// [`Sampling::top_p`].
    pub top_p: Option<f32>,
    /// [`Sampling::min_p`].
    pub min_p: Option<f32>,
    /// [`Sampling::repetition_penalty`].
    pub repetition_penalty: Option<f32>,
    /// [`Sampling::repetition_window`].
    pub repetition_window: Option<usize>,
}

/// State of an engine, from [`crate::Engine::status`].
#[derive(Clone, Debug, PartialEq)]
pub struct EngineStatus {
    /// Turns at work, those that are being saved included.
    pub active: usize,
    /// Requests that wait for their session, or for room in memory.
    pub waiting: usize,
    /// Bytes that cached keys and values take in memory, with what is known of sessions: of all engines that share the budget.
    pub memory_bytes: u64,
    /// Bytes that these may take.
    pub budget_bytes: u64,
    /// Milliseconds that a token of a prompt takes, by the latest measure; 0: none was read yet.
    pub token_ms: f64,
    /// The sessions that are known in memory, by tenant, run and agent. (On disk there may be others: [`crate::Engine::stored`].)
    pub sessions: Vec<SessionStatus>,
}

/// What came of taking in a session's memory ([`crate::Engine::import`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Tokens that the session holds.
    pub tokens: usize,
    /// True if keys and values are those of the file; false if the engine has read the texts again.
    pub is_verbatim: bool,
    /// Reason why it had to read them, or why the session is not saved.
    pub reason: Option<String>,
}

/// State of one session in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionStatus {
    /// The session.
    pub key: SessionKey,
    /// Tokens that it has read and said; at work, those of the prompt and of the reply so far.
    pub tokens: usize,
    /// Bytes of its keys and values in memory, and of its ids, texts and addresses. A block that sessions share counts in each of them.
    pub bytes_in_memory: u64,
    /// Tokens whose keys and values are in memory, in the layers that see everything; the others are on disk, or will be computed again.
    pub tokens_in_memory: usize,
    /// True if a turn is at work on it, or its turn's end is being saved.
    pub is_at_work: bool,
    /// Time of its next turn, as it was given last ([`Request::next_use`]).
    pub next_use: Option<u64>,
    /// True if all of it is on disk.
    pub is_saved: bool,
}
