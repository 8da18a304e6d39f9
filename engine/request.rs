//! A [`Request`] for one reply of one agent, with its limits.

use crate::{Meter, Prompt, SessionKey};
pub use greenroom_grammar::Grammar;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Whether a reply may be a call of a tool, or must be one.
///
/// # Examples
/// ```
/// use greenroom_engine::*;
///
/// let choice = ToolChoice::Named("weather".into());
/// assert_ne!(choice, ToolChoice::default());
/// assert_eq!(ToolChoice::default(), ToolChoice::Never);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ToolChoice {
    /// Text only.
    #[default]
    Never,
    /// Text or a call: once it begins as a call it is under the tool's schema, and neither `stop` nor
    /// `whole_sentences` cut it. One that does not is what it would have been without tools.
    Allowed,
    /// Tools are in the prompt, but calls are forbidden: a token that a call begins with is drawn again.
    Forbidden,
    /// It is a call of one of the tools: the markup or the text that a call begins with is forced, and the
    /// rest is under the tools' schemas. What the agent reads is the same as with [`ToolChoice::Allowed`].
    /// The reply can't have a grammar of its own.
    Required,
    /// The same, of the tool with this name.
    Named(Arc<str>),
}

/// Sampling parameters. Defaults: temperature 0.8 (not greedy), no filters, no penalty.
///
/// # Examples
/// ```
/// use greenroom_engine::Sampling;
///
/// let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
/// assert!(greedy.validate().is_ok());
/// let impossible = Sampling { top_p: 1.5, ..greedy };
/// assert_eq!(
///     impossible.validate().unwrap_err().to_string(),
///     "the sampling's top_p is 1.5; expected a number from 0 to 1"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object of sampling settings")]
pub struct Sampling {
    /// 0 means greedy.
    pub temperature: f32,
    /// Keep only the k most likely tokens (0: all).
    pub top_k: usize,
    /// Keep the smallest set of tokens whose probability reaches this (1: all).
    pub top_p: f32,
    /// Drop tokens less likely than this share of the most likely one (0: none).
    pub min_p: f32,
    /// Divide positive logits (multiply negative ones) of tokens that this reply has already used by this (1:
    /// off).
    pub repetition_penalty: f32,
    /// Number of the reply's latest tokens that the penalty considers.
    pub repetition_window: usize,
    /// Penalizes sequences of tokens that the agent has said before, in this reply or earlier ones (`None`:
    /// off).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dry: Option<Dry>,
    /// To penalties a token is the same with a space before it and without.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole_words: bool,
    /// True if the reply's ids are always those of its text: a token that would change how the text before it is
    /// tokenized is not drawn.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub canonical: bool,
    /// Subtracted from the logits of tokens that this reply has already used, times how often (0: off).
    #[serde(default, skip_serializing_if = "is_none")]
    pub frequency_penalty: f32,
    /// Subtracted from the logits of tokens that this reply has already used (0: off).
    #[serde(default, skip_serializing_if = "is_none")]
    pub presence_penalty: f32,
    /// Added to the logits of tokens.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub bias: BTreeMap<u32, f32>,
    /// Seeds this request's choices: equal prompt, parameters and seed give an equal reply. Left out of JSON
    /// where it is 0, as in settings that are not a request's.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub seed: u64,
}

fn is_none(amount: &f32) -> bool {
    *amount == 0.0
}

fn is_zero(seed: &u64) -> bool {
    *seed == 0
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
            whole_words: false,
            canonical: false,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            bias: BTreeMap::new(),
            seed: 0,
        }
    }
}

/// DRY, "don't repeat yourself": a token that would continue an earlier sequence of n tokens loses
/// `multiplier * base^(n - allowed_length)` of its logit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object of DRY settings")]
pub struct Dry {
    /// Penalty for a sequence of `allowed_length` tokens.
    pub multiplier: f32,
    /// Growth factor of the penalty for each further token.
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
        let (frequency, presence) = (self.frequency_penalty, self.presence_penalty);
        let bias = self.bias.values().copied().find(|bias| !bias.is_finite()).unwrap_or_default();
        for (name, found, fits, expected) in [
            ("temperature", temperature, is_amount(temperature), "0 or more, 0 for greedy"),
            ("top_p", self.top_p, share.contains(&self.top_p), "from 0 to 1"),
            ("min_p", self.min_p, share.contains(&self.min_p), "from 0 to 1"),
            ("repetition_penalty", penalty, is_amount(penalty) && penalty > 0.0, "above 0, 1 for none"),
            ("dry.multiplier", dry.multiplier, is_amount(dry.multiplier), "0 or more"),
            ("dry.base", dry.base, is_amount(dry.base) && dry.base >= 1.0, "1 or more"),
            ("frequency_penalty", frequency, frequency.is_finite(), "that is finite"),
            ("presence_penalty", presence, presence.is_finite(), "that is finite"),
            ("bias", bias, bias.is_finite(), "that is finite"),
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Retention {
    /// Kept in memory and on disk: a permanent agent.
    Persistent,
    /// Kept in memory until [`crate::Engine::forget`]: an agent that lives for a phase.
    Ephemeral,
}

/// Asks for one reply.
///
/// # Examples
/// ```
/// # use greenroom_engine::*;
/// # let model: &'static [u8] = fixtures::RandomModel::tiny(1).bytes().leak();
/// # let engine = Engine::open(EngineConfig::new(ModelSource::Bundled("tiny", model)))?;
/// let past = Exchange::new("Rolf: Hello.".into(), ReplyContent::Text("Hello, Rolf.".into()));
/// let conversation = Conversation {
///     system: Some("You are Ada.".into()),
///     exchanges: vec![past],
///     next: "Rolf: Who are you?".into(),
///     ..Conversation::default()
/// };
/// let request = Request {
///     max_tokens: 8,
///     stop: vec!["\nRolf:".into()],
///     sampling: Sampling { seed: 7, ..Sampling::default() },
///     ..Request::new(SessionKey::new("demo", "ada"), conversation)
/// };
/// let mut turn = engine.submit(request)?;
/// while let Some(event) = turn.blocking_next() {
///     match event {
///         Event::Text(text) => print!("{text}"),
///         Event::Done(completion) => println!(" ({} tokens)", completion.ids.len()),
///         Event::Failed(error) => return Err(error),
///         _ => {}
///     }
/// }
/// turn.blocking_commit()?;
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
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
    /// True if a reply that the context has less room for is as long as there is room; false: its request is
    /// refused.
    #[serde(default)]
    pub fits_context: bool,
    /// Tokens after which a thought before the reply is ended, by what the model's template ends one with; 0
    /// ends one that the prompt has opened at once, `None` lets it think.
    pub max_thought_tokens: Option<usize>,
    /// True if a thought's tokens count for `max_tokens`, too.
    pub counts_thought: bool,
    /// Tokens before which no end-of-turn token can be sampled. Stop strings still cut, and a choice has as
    /// many tokens as it has.
    pub min_tokens: usize,
    /// Tokens that end the reply as the model's end-of-turn tokens do.
    #[serde(default)]
    pub end_ids: Vec<u32>,
    /// The reply ends before the first token that overlaps one of these. One that begins with a line break is
    /// also met at the beginning of the reply. Where that would leave nothing, the token that completes it is
    /// not drawn. A choice is never cut.
    pub stop: Vec<String>,
    /// True if a stop string cuts the reply where it begins, though that be within a token, and whether or not
    /// anything is left: what the APIs of chat services promise. What remains of a token that is cut is
    /// tokenized again. Line breaks at the beginning of `stop` are then like any character.
    #[serde(default)]
    pub exact_stops: bool,
    /// A reply that reaches `max_tokens` ends with its last whole sentence, if it has one; what follows it is
    /// dropped.
    pub whole_sentences: bool,
    /// Tokens after which a call of a tool is cut, in the place of `max_tokens`; fewer where the context
    /// ends.
    pub max_call_tokens: usize,
    /// Constraint on the reply; `None`: it is free.
    pub constraint: Option<Constraint>,
    /// True if the options of a choice are drawn by length-normalized log-probability
    /// ([`by_length`](crate::by_length)), so that a long text is not unlikely for its length alone.
    pub by_length: bool,
    /// Grammar that the reply is in; `None`: any text. It ends when the grammar is complete; what
    /// `max_tokens` cuts is not in it. `stop`, `min_tokens` and `whole_sentences` have no effect then, and a
    /// choice ([`Constraint::OneOf`]) can't have one.
    ///
    /// At each position the token is drawn as it would be without a grammar. If the grammar does not allow
    /// it, another one is drawn among those that it allows, in proportion to their probabilities, by numbers
    /// that belong to the seed, the position and the token. So a grammar never moves later draws: a free
    /// reply that is in a grammar is also the reply under it, and a reply under one grammar is also that
    /// under each narrower grammar which allows it.
    pub grammar: Option<Arc<Grammar>>,
    /// Whether the reply may be a call of one of the conversation's tools instead. One that has a grammar of
    /// its own is never a call.
    pub calls: ToolChoice,
    /// True if a reply that is a call may continue with another, where the model's template can write
    /// several: after each the model draws whether to end the reply or begin the next. The reply's ids end
    /// with the last whole call. (The agent's next input is the result of one call; several calls are
    /// remembered one after another.)
    pub parallel_tool_calls: bool,
    /// `Some(n)`: the log-probability of each token of the reply comes with it
    /// ([`Completion::logprobs`](crate::Completion::logprobs)), and the `n` most likely tokens in its place,
    /// [`MAX_TOP_LOGPROBS`] at most. It changes no token.
    pub logprobs: Option<usize>,
    /// Time of the agent's next turn (any monotonic scale, e.g. turns from the start); `None`: unknown.
    /// The agent that is needed last is evicted first.
    pub next_use: Option<u64>,
    /// Drop what is cached before the turn and look nothing up: everything is computed from scratch.
    pub cold: bool,
    /// Counts the tokens that are computed for the request, while they are.
    #[serde(skip)]
    pub meter: Option<Meter>,
}

impl Request {
    /// Asks for the reply to a prompt: of 256 tokens at most, drawn with the default [`Sampling`], by an
    /// agent whose memory is not kept on disk.
    pub fn new(session: SessionKey, prompt: impl Into<Prompt>) -> Self {
        Self {
            session,
            parent: None,
            retention: Retention::Ephemeral,
            prompt: prompt.into(),
            sampling: Sampling::default(),
            max_tokens: 256,
            fits_context: false,
            max_thought_tokens: None,
            counts_thought: true,
            min_tokens: 0,
            end_ids: Vec::new(),
            stop: Vec::new(),
            exact_stops: false,
            whole_sentences: false,
            max_call_tokens: 256,
            constraint: None,
            by_length: false,
            grammar: None,
            calls: ToolChoice::default(),
            parallel_tool_calls: false,
            logprobs: None,
            next_use: None,
            cold: false,
            meter: None,
        }
    }

    /// Checks whether an engine can take the request, as far as that can be determined without the model.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Request`]: the first fault, and what was expected.
    pub(crate) fn validate(&self) -> crate::Result<()> {
        self.sampling.validate()?;
        if self.parent.as_ref().is_some_and(|parent| parent.tenant != self.session.tenant) {
            return Err(crate::Error::request("a session can't begin with the memory of another tenant"));
        }
        if let Some(n) = self.logprobs.filter(|n| *n > MAX_TOP_LOGPROBS) {
            let found = format!("logprobs is {n}; expected at most {MAX_TOP_LOGPROBS}");
            return Err(crate::Error::request(found));
        }
        self.validate_calls()
    }

    fn validate_calls(&self) -> crate::Result<()> {
        let (ToolChoice::Required | ToolChoice::Named(_)) = &self.calls else { return Ok(()) };
        let tools = self
            .prompt
            .conversation()
            .and_then(|conversation| conversation.tools.as_ref())
            .map_or(&[][..], |tools| &tools.list);
        let names = || tools.iter().map(|tool| format!("`{}`", tool.name)).collect::<Vec<_>>().join(", ");
        let found = match &self.calls {
            _ if self.grammar.is_some() => "a reply that must be a call can't have a grammar".to_owned(),
            _ if tools.is_empty() => "the reply must be a call, but the conversation has no tools".to_owned(),
            ToolChoice::Named(name) if tools.iter().all(|tool| tool.name != **name) => {
                format!("the reply must be a call of `{name}`, but the conversation's tools are {}", names())
            }
            _ => return Ok(()),
        };
        Err(crate::Error::request(found))
    }
}

/// Maximum number of likely tokens reported for each token of a reply ([`Request::logprobs`]).
pub const MAX_TOP_LOGPROBS: usize = 20;

/// Constraint on a reply.
///
/// # Examples
/// ```
/// # use greenroom_engine::*;
/// # let model: &'static [u8] = fixtures::RandomModel::tiny(1).bytes().leak();
/// # let engine = Engine::open(EngineConfig::new(ModelSource::Bundled("tiny", model)))?;
/// let options = ["left", "right"].map(String::from).to_vec();
/// let mut ada = engine.agent("demo", "ada").constraint(Constraint::OneOf(options.clone()));
/// let reply = ada.extend("Rolf: Left or right?")?.blocking_finish()?;
/// let choice = reply.choice.expect("a choice");
/// assert_eq!(reply.text, options[choice.chosen]);
/// assert_eq!(choice.logprobs.len(), options.len());
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Constraint {
    /// Exactly one of these texts, drawn as a whole: option i with a probability in proportion to
    /// `exp(logprobs[i] / temperature)`, at temperature 0 the most likely one (the first among equals). The
    /// prompt is read once, and after it each token that options have in common, but for their last ones.
    ///
    /// Of [`Sampling`] only temperature and seed count. [`Completion::choice`](crate::Completion::choice)
    /// says what each option's log-probability was ([`Choice::logprobs`](crate::Choice::logprobs) says what
    /// that means).
    ///
    /// Rejected: an empty list, an empty option, a duplicate text, two texts that are the same tokens, and
    /// one that the vocabulary can't spell.
    OneOf(Vec<String>),
    /// These token ids, recorded earlier: they are read in one prefill instead of being sampled (teacher
    /// forcing), and [`Completion::followed`](crate::Completion::followed) has what would have been drawn at
    /// each. After them the reply continues freely, so that it ends as recorded or shows that it would not.
    ///
    /// Refused: an id that the vocabulary has not.
    Follow(Vec<u32>),
    /// The reply begins with these token ids, which somebody else has said for it: they are read in one prefill, and
    /// the reply goes on freely. They count for no limit, and no stop string is looked for in them.
    ///
    /// Refused: an id that the vocabulary has not.
    Begin(Vec<u32>),
}
