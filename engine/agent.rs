//! An agent as a value: a session of the engine, with its conversation and its settings.
//!
//! The stored memory of its name is never replaced unasked: until the agent's first turn is saved, each turn
//! is compared with that memory, and refused if it would replace it.

use crate::engine::{Engine, Turn};
use crate::store::Found;
use crate::store::manifest::Manifest;
use crate::text::prefix::{Segment, compare, first_difference};
use crate::text::restore;
use crate::{
    Completion, Constraint, Conversation, Error, ErrorKind, Event, Exchange, Grammar, Prompt, Reasoning,
    ReplyContent, Request, Result, Retention, Sampling, SessionKey, ToolCalls, ToolChoice, Tools,
};
use futures_core::Stream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// One agent of an [`Engine`]: what it has read and said, and how it answers.
///
/// ```
/// # use greenroom_engine::*;
/// # let model = ModelSource::Bundled("tiny", fixtures::RandomModel::tiny(1).bytes().leak());
/// # let engine = Engine::open(EngineConfig::new(model))?;
/// let mut ada = engine.agent("demo", "ada").system("You are Ada.").max_tokens(8);
/// let past = ada.extend("Rolf: Who are you?")?.blocking_finish()?;
/// let (mut stay, mut go) = (ada.fork("ada, who stays"), ada.fork("ada, who goes"));
/// let (mut stays, mut goes) = (stay.extend("Rolf: Stay.")?, go.extend("Rolf: Go.")?); // both at once
/// for (one, other) in stays.by_ref().zip(goes.by_ref()) {
///     println!("{:16} | {}", one?, other?);
/// }
/// let known = past.usage.prefilled + past.ids.len();
/// assert_eq!([stays.blocking_finish()?.usage.reused, goes.blocking_finish()?.usage.reused], [known, known]);
/// # Ok::<(), Error>(())
/// ```
///
/// Its memory (keys and values) is the engine's, under the names of run and agent: in RAM, and in the cache
/// folder where there is one. There, a later process continues it with [`Engine::resume`]. There is one agent
/// of a name at a time; of two, each would take the memory back to its own conversation.
///
/// It is a handle that keeps its engine alive. It can be stored and sent to other threads and tasks.
pub struct Agent {
    engine: Engine,
    key: SessionKey,
    parent: Option<SessionKey>,
    conversation: Conversation,
    settings: Settings,
    /// Segments of the stored memory that it resumes, until its first turn is saved.
    resumed: Option<Vec<Segment>>,
    /// True if what is stored under its name is its own, or may be replaced.
    is_own: bool,
}

/// How an agent answers.
#[derive(Clone)]
struct Settings {
    sampling: Sampling,
    max_tokens: usize,
    max_thought_tokens: Option<usize>,
    whole_sentences: bool,
    stop: Vec<String>,
    constraint: Option<Constraint>,
    grammar: Option<Arc<Grammar>>,
    calls: ToolChoice,
    logprobs: Option<usize>,
}

impl Engine {
    /// An agent of a run, which has read nothing.
    ///
    /// If a memory is stored under its name, its turns are refused, so that nothing is lost by mistake:
    /// continue it with [`Engine::resume`], give its whole conversation ([`Agent::history`]), remove it
    /// ([`Engine::remove`]), or allow it to be replaced ([`Agent::replace`]).
    pub fn agent(&self, run: impl Into<String>, agent: impl Into<String>) -> Agent {
        Agent {
            engine: self.clone(),
            key: SessionKey::new(run, agent),
            parent: None,
            conversation: Conversation::default(),
            settings: Settings {
                sampling: Sampling::default(),
                max_tokens: 256,
                max_thought_tokens: None,
                whole_sentences: false,
                stop: Vec::new(),
                constraint: None,
                grammar: None,
                calls: ToolChoice::default(),
                logprobs: None,
            },
            resumed: None,
            is_own: false,
        }
    }

    /// The agent whose memory is stored in the cache folder: with the texts that it has read and the ids that
    /// it has said. Its next turn continues the memory, and computes none of it again.
    ///
    /// Settings ([`Agent::sampling`], [`Agent::max_tokens`] and the like) are not stored. If it had tools,
    /// set them again ([`Agent::tools`]); else its next turn is refused. The files are read on this thread.
    ///
    /// ```
    /// # use greenroom_engine::*;
    /// # let model: &'static [u8] = fixtures::RandomModel::tiny(1).bytes().leak();
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let config = EngineConfig::new(ModelSource::Bundled("tiny", model)).cache_dir(folder.path());
    /// # let engine = Engine::open(config.clone())?;
    /// # engine.agent("demo", "ada").max_tokens(8).extend("Rolf: Who are you?")?.blocking_finish()?;
    /// # drop(engine);
    /// let engine = Engine::open(config)?; // after a restart
    /// let mut ada = engine.resume("demo", "ada")?.max_tokens(8);
    /// for (read, said) in ada.past() {
    ///     println!("{read}\n{said}");
    /// }
    /// let said = ada.extend("Rolf: And who am I?")?.blocking_finish()?;
    /// assert_eq!((said.usage.kind, said.usage.recomputed), (MatchKind::Extend, 0));
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound`: there is no such memory; `Request`: the engine has no cache folder, another model computed
    /// the memory, or it is of no conversation; `Store`: it is damaged or can't be read.
    pub fn resume(&self, run: impl Into<String>, agent: impl Into<String>) -> Result<Agent> {
        let mut resumed = self.agent(run, agent);
        let SessionKey { run, agent, .. } = &resumed.key;
        if self.inner.store_handle.store.is_none() {
            return Err(Error::request(format!(
                "agent `{agent}` of run `{run}` can't be resumed: this engine stores no memories; set \
                 `cache_dir`"
            )));
        }
        let manifest = self.stored_memory(&resumed.key)?.ok_or_else(|| {
            let found = format!(
                "there is no stored memory of agent `{agent}` of run `{run}`; begin it with `Engine::agent`"
            );
            Error::new(ErrorKind::NotFound, found)
        })?;
        let (found, here) = (&manifest.owner.identity, &self.inner.store_handle.context.identity);
        if found.model != here.model {
            return Err(Error::request(format!(
                "the stored memory of agent `{agent}` of run `{run}` was computed by model `{}`, but this is \
                 `{}`; open that model",
                found.model_name, here.model_name
            )));
        }
        let refused = |reason| {
            Error::request(format!(
                "the stored memory of agent `{agent}` of run `{run}` can't be resumed: {reason}"
            ))
        };
        let conversation = resumed.restored(&manifest.segments, None).map_err(refused)?;
        (resumed.conversation, resumed.resumed) = (conversation, Some(manifest.segments));
        Ok(resumed)
    }

    /// What is stored of a session.
    fn stored_memory(&self, key: &SessionKey) -> Result<Option<Manifest>> {
        let Some(store) = &self.inner.store_handle.store else { return Ok(None) };
        match store.read_manifest(key) {
            Found::Whole((manifest, ..)) => Ok(Some(manifest)),
            Found::Missing => Ok(None),
            Found::Damaged(reason) | Found::Unreadable(reason) => {
                let SessionKey { run, agent, .. } = key;
                let found =
                    format!("the stored memory of agent `{agent}` of run `{run}` can't be used: {reason}");
                Err(Error::store(found))
            }
        }
    }
}

impl Agent {
    /// Sets the system text, which precedes everything that it reads. A turn after the system text has
    /// changed reads everything again.
    #[must_use]
    pub fn system(mut self, text: impl Into<String>) -> Self {
        self.conversation.system = Some(text.into());
        self
    }

    /// Sets the tools that it may call, from the beginning of its conversation on, and allows calls
    /// ([`Agent::calls`] says otherwise). A reply that is a call has [`Completion::call`]; what the agent
    /// reads next is the result.
    #[must_use]
    pub fn tools(mut self, tools: impl Into<Arc<Tools>>) -> Self {
        let tools = tools.into();
        let resumed = self.resumed.as_ref().and_then(|segments| {
            let [before, now] = [self.conversation.tools.as_ref(), Some(&tools)]
                .map(|tools| self.restored(segments, tools).ok());
            before.zip(now)
        });
        if let Some((before, now)) = resumed {
            // A system text that was set meanwhile stays.
            let system =
                if self.conversation.system == before.system { now.system } else { self.conversation.system };
            self.conversation = Conversation { system, reasoning: self.conversation.reasoning, ..now };
        }
        self.conversation.tools = Some(tools);
        if self.settings.calls == ToolChoice::Never {
            self.settings.calls = ToolChoice::Allowed;
        }
        self
    }

    /// Whether replies may be calls of its tools, or must be.
    #[must_use]
    pub fn calls(mut self, calls: ToolChoice) -> Self {
        self.settings.calls = calls;
        self
    }

    /// Sets the earlier exchanges. What the cache folder holds of them is reused; the rest is prefilled.
    #[must_use]
    pub fn history(mut self, exchanges: impl Into<Vec<Exchange>>) -> Self {
        self.conversation.exchanges = exchanges.into();
        self.resumed = None;
        self
    }

    /// Allows its first turn to replace a memory that is stored under its name.
    #[must_use]
    pub fn replace(mut self) -> Self {
        if let (Some(parent), false) = (&self.parent, self.is_own) {
            self.engine.fork(parent, &self.key, true);
        }
        self.is_own = true;
        self
    }

    /// How much it thinks before it replies, from the next turn on (not at all).
    #[must_use]
    pub fn reasoning(mut self, reasoning: Reasoning) -> Self {
        self.conversation.reasoning = reasoning;
        self
    }

    /// Sets the sampling parameters. The seed is that of the first turn; each later turn takes the next one.
    #[must_use]
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.settings.sampling = sampling;
        self
    }

    /// Maximum number of tokens in a thought ([`Request::max_thought_tokens`]); they count as the reply's, too.
    #[must_use]
    pub fn max_thought_tokens(mut self, n: usize) -> Self {
        self.settings.max_thought_tokens = Some(n);
        self
    }

    /// Maximum number of tokens in a reply (256).
    #[must_use]
    pub fn max_tokens(mut self, n: usize) -> Self {
        self.settings.max_tokens = n;
        self
    }

    /// True if a reply that reaches `max_tokens` ends with its last whole sentence
    /// ([`Request::whole_sentences`]).
    #[must_use]
    pub fn whole_sentences(mut self, whole: bool) -> Self {
        self.settings.whole_sentences = whole;
        self
    }

    /// Strings before which a reply ends.
    #[must_use]
    pub fn stop<S: Into<String>>(mut self, strings: impl IntoIterator<Item = S>) -> Self {
        self.settings.stop = strings.into_iter().map(Into::into).collect();
        self
    }

    /// Constrains replies; `None` leaves them free.
    #[must_use]
    pub fn constraint(mut self, constraint: impl Into<Option<Constraint>>) -> Self {
        self.settings.constraint = constraint.into();
        self
    }

    /// Sets the grammar that replies are in ([`Request::grammar`]); `None` leaves them free.
    #[must_use]
    pub fn grammar(mut self, grammar: impl Into<Option<Grammar>>) -> Self {
        self.settings.grammar = grammar.into().map(Arc::new);
        self
    }

    /// Asks for the log-probability of each token of a reply, and of the `top` likeliest ones in its place
    /// ([`Request::logprobs`]).
    #[must_use]
    pub fn logprobs(mut self, top: impl Into<Option<usize>>) -> Self {
        self.settings.logprobs = top.into();
        self
    }

    /// The key of its session, under which its memory is kept.
    pub fn key(&self) -> &SessionKey {
        &self.key
    }

    /// The engine that it belongs to.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The conversation so far; `next` is empty.
    pub fn conversation(&self) -> &Conversation {
        &self.conversation
    }

    /// The conversation so far as text: what it has read, and its reply.
    pub fn past(&self) -> impl Iterator<Item = (&str, String)> {
        self.conversation.exchanges.iter().map(|exchange| {
            let said = match &exchange.reply {
                ReplyContent::Ids(ids) | ReplyContent::Call(ids) => self.engine.decode(ids),
                ReplyContent::Text(text) => text.clone(),
                ReplyContent::CallText(text, call) => {
                    let call = serde_json::json!({ "tool": call.tool, "arguments": call.arguments });
                    format!("{text}{call}")
                }
            };
            (&*exchange.user, said)
        })
    }

    /// Starts a turn: the agent reads `text` and answers. The engine runs it whether or not the reply is
    /// polled.
    ///
    /// Before its first turn is saved this looks into the cache folder, on this thread.
    ///
    /// # Errors
    /// `Request`: the turn would replace a memory that is stored under the agent's name; `Closed`: the
    /// engine's thread has ended.
    pub fn extend(&mut self, text: impl Into<String>) -> Result<Reply<'_>> {
        let constraint = self.settings.constraint.clone();
        self.turn(text.into(), constraint)
    }

    /// Starts a turn that is answered with one of `options`, by their log-probabilities
    /// ([`Constraint::OneOf`]), overriding the agent's constraint.
    ///
    /// ```
    /// # use greenroom_engine::*;
    /// # let model = ModelSource::Bundled("tiny", fixtures::RandomModel::tiny(1).bytes().leak());
    /// # let engine = Engine::open(EngineConfig::new(model))?;
    /// let mut ada = engine.agent("demo", "ada").system("You are Ada.");
    /// let said = ada.choose("Rolf: Do you stay?", ["I stay.", "I go."])?.blocking_finish()?;
    /// let Choice { chosen, logprobs, .. } = said.choice.expect("a choice");
    /// println!("{} ({:.3} against {:.3})", said.text, logprobs[chosen].exp(), logprobs[1 - chosen].exp());
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Agent::extend`].
    pub fn choose<S: Into<String>>(
        &mut self,
        text: impl Into<String>,
        options: impl IntoIterator<Item = S>,
    ) -> Result<Reply<'_>> {
        let options = options.into_iter().map(Into::into).collect();
        self.turn(text.into(), Some(Constraint::OneOf(options)))
    }

    fn turn(&mut self, user: String, constraint: Option<Constraint>) -> Result<Reply<'_>> {
        let Settings {
            sampling,
            max_tokens,
            max_thought_tokens,
            whole_sentences,
            stop,
            grammar,
            calls,
            logprobs,
            constraint: _,
        } = self.settings.clone();
        let is_choice = matches!(constraint, Some(Constraint::OneOf(_)));
        let turn_number = self.conversation.exchanges.len() as u64;
        let prompt = Conversation { next: user.clone(), ..self.conversation.clone() };
        self.refuse_to_replace(&prompt)?;
        let turn = self.engine.submit(Request {
            parent: self.parent.clone(),
            retention: Retention::Persistent,
            sampling: Sampling { seed: sampling.seed.wrapping_add(turn_number), ..sampling },
            max_tokens,
            max_thought_tokens,
            whole_sentences,
            stop,
            constraint,
            grammar: grammar.filter(|_| !is_choice),
            calls: if is_choice { ToolChoice::Never } else { calls },
            logprobs,
            ..Request::new(self.key.clone(), Prompt::Chat(prompt))
        })?;
        Ok(Reply { turn, user, agent: self })
    }

    /// The conversation of a stored memory.
    fn restored(
        &self,
        segments: &[Segment],
        tools: Option<&Arc<Tools>>,
    ) -> Result<Conversation, &'static str> {
        let prompter = self.engine.prompter();
        restore::conversation(segments, tools, &prompter.chat, &prompter.tokenizer)
    }

    /// Refuses a turn that does not continue what is stored under the agent's name.
    fn refuse_to_replace(&self, conversation: &Conversation) -> Result<()> {
        if self.is_own {
            return Ok(());
        }
        let Some(manifest) = self.engine.stored_memory(&self.key)? else { return Ok(()) };
        let (held, prompter) = (&manifest.segments, self.engine.prompter());
        let prompt = prompter.chat.prompt_after(held, conversation, &prompter.tokenizer)?;
        let n = compare(held, &prompt).n_segments;
        if n == held.len() {
            return Ok(());
        }
        let differs = held.get(n).zip(prompt.get(n)).map_or(String::new(), |(held, asked)| {
            let excerpt = |text: &str| {
                let at = first_difference(&held.text, &asked.text).saturating_sub(20);
                text.chars().skip(at).take(60).collect::<String>()
            };
            format!(": `{}` was read where the agent now has `{}`", excerpt(&held.text), excerpt(&asked.text))
        });
        let SessionKey { run, agent, .. } = &self.key;
        let found = format!(
            "agent `{agent}` of run `{run}` has a stored memory of {} tokens, which this turn does not \
             continue{differs}",
            manifest.n_tokens()
        );
        let remedy = match self.resumed {
            Some(_) => "give it the system text and the tools that it had, or allow `Agent::replace`",
            None => {
                "continue it with `Engine::resume`, remove it with `Engine::remove`, or allow \
                 `Agent::replace`"
            }
        };
        Err(Error::request(format!("{found}; {remedy}")))
    }

    /// An agent of the same run with the same past and the same settings: it reads none of it again.
    ///
    /// Its memory is a copy of this agent's current memory, in RAM or in the cache folder. An earlier agent
    /// of its name, such as a fork that was not saved, loses what it had only in RAM. If another memory is
    /// stored under its name, its turns are refused, like those of [`Engine::agent`], unless
    /// [`Agent::replace`] permits replacing it; even then, none of its past is read again.
    #[must_use]
    pub fn fork(&self, agent: impl Into<String>) -> Agent {
        let key = SessionKey { agent: agent.into(), ..self.key.clone() };
        self.engine.fork(&self.key, &key, false);
        Agent {
            engine: self.engine.clone(),
            key,
            parent: Some(self.key.clone()),
            conversation: self.conversation.clone(),
            settings: self.settings.clone(),
            resumed: None,
            is_own: false,
        }
    }

    /// A turn is saved.
    fn record(&mut self, user: String, completion: &Completion) {
        let ids = completion.ids.clone().into();
        let reply = match completion.call {
            Some(ToolCalls::Complete(_)) => ReplyContent::Call(ids),
            Some(ToolCalls::Truncated) | None => ReplyContent::Ids(ids),
        };
        let reasoning = self.conversation.reasoning;
        self.conversation.exchanges.push(Exchange { user, reply, reasoning });
        (self.is_own, self.resumed) = (true, None);
    }
}

/// A reply being generated: an iterator over its text, piece by piece. [`Reply::stream`] is the same without
/// blocking.
///
/// [`Reply::finish`] makes the turn part of the agent. If the reply is dropped without that, the agent is as
/// it was before: an active turn is cancelled; of a finished one, nothing is kept on disk, and the agent's
/// next turn rolls the engine's memory back to before it (and reports
/// [`MatchKind::Diverge`](crate::MatchKind::Diverge)).
#[must_use = "a reply that is not finished is taken back"]
pub struct Reply<'a> {
    turn: Turn,
    user: String,
    agent: &'a mut Agent,
}

impl Reply<'_> {
    /// The pieces as a stream, for an async runtime.
    pub fn stream(&mut self) -> impl Stream<Item = Result<String>> + Send + Unpin {
        Pieces(&mut self.turn)
    }

    /// Waits for the end, saves the agent's memory, and records the exchange in its conversation.
    ///
    /// # Errors
    /// The turn failed, or can't be saved; the agent is as it was before.
    pub async fn finish(mut self) -> Result<Completion> {
        while let Some(event) = self.turn.next().await {
            piece(event).transpose()?;
        }
        let completion = *self.turn.commit().await?;
        self.agent.record(self.user, &completion);
        Ok(completion)
    }

    /// [`Reply::finish`] for callers without an async runtime.
    ///
    /// # Errors
    /// As [`Reply::finish`].
    pub fn blocking_finish(mut self) -> Result<Completion> {
        while let Some(event) = self.turn.blocking_next() {
            piece(event).transpose()?;
        }
        let completion = *self.turn.blocking_commit()?;
        self.agent.record(self.user, &completion);
        Ok(completion)
    }
}

/// Blocks until the next piece is there; not for use within an async runtime.
impl Iterator for Reply<'_> {
    type Item = Result<String>;

    fn next(&mut self) -> Option<Self::Item> {
        std::iter::from_fn(|| self.turn.blocking_next()).find_map(piece)
    }
}

struct Pieces<'a>(&'a mut Turn);

impl Stream for Pieces<'_> {
    type Item = Result<String>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        while let Some(event) = ready!(Pin::new(&mut *self.0).poll_next(cx)) {
            if let Some(piece) = piece(event) {
                return Poll::Ready(Some(piece));
            }
        }
        Poll::Ready(None)
    }
}

/// The text that an event adds, or the error that it reports; `None` for other events.
fn piece(event: Event) -> Option<Result<String>> {
    match event {
        Event::Text(text) => Some(Ok(text)),
        Event::Failed(error) => Some(Err(error)),
        Event::Prefill { .. } | Event::Thought(_) | Event::Call(_) | Event::Logprobs(_) | Event::Done(_) => {
            None
        }
    }
}

#[cfg(test)]
mod tests;
