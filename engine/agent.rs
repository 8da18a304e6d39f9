//! An agent as a value: a session of the engine, with its conversation and its settings.
//!
//! What it stands on is never lost unasked: until its first turn is saved, each turn is compared with the memory that is stored under
//! its name, and refused where it would replace that.

use crate::engine::{Engine, Turn};
use crate::store::Found;
use crate::store::manifest::Manifest;
use crate::text::prefix::{Segment, compare, first_difference};
use crate::text::restore;
use crate::{
    Called, Calls, Completion, Constraint, Conversation, Error, ErrorKind, Event, Exchange, Grammar, Prompt,
    Reasoning, ReplyContent, Request, Result, Retention, Sampling, SessionKey, Tools,
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
/// Its memory (keys and values) is the engine's, under the names of run and agent: in RAM, and in the cache folder where
/// there is one. There, a later process continues it with [`Engine::resume`]. There is one agent of a name at a time; of two, each would
/// take the memory back to its own conversation.
///
/// It is a handle to its engine, which lives as long as it. It can be stored and sent to other threads and tasks.
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
    whole_sentences: bool,
    stop: Vec<String>,
    constraint: Option<Constraint>,
    grammar: Option<Arc<Grammar>>,
    calls: Calls,
    logprobs: Option<usize>,
}

impl Engine {
    /// An agent of a run, which has read nothing.
    ///
    /// If a memory is stored under its name, its turns are refused, so that nothing is lost by mistake: continue it with
    /// [`Engine::resume`], give its whole conversation ([`Agent::history`]), remove it ([`Engine::remove`]), or allow it to be replaced
    /// ([`Agent::replace`]).
    pub fn agent(&self, run: impl Into<String>, agent: impl Into<String>) -> Agent {
        Agent {
            engine: self.clone(),
            key: SessionKey::new(run, agent),
            parent: None,
            conversation: Conversation::default(),
            settings: Settings {
                sampling: Sampling::default(),
                max_tokens: 256,
                whole_sentences: false,
                stop: Vec::new(),
                constraint: None,
                grammar: None,
                calls: Calls::default(),
                logprobs: None,
            },
            resumed: None,
            is_own: false,
        }
    }

    /// The agent whose memory is stored in the cache folder: with the texts that it has read and the ids that it has said. Its next turn
    /// continues the memory, and computes none of it again.
    ///
    /// Settings ([`Agent::sampling`], [`Agent::max_tokens`] and the like) are not stored. If it had tools, set them again
    /// ([`Agent::tools`]); else its next turn is refused. The files are read on this thread.
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
    /// `NotFound`: there is no such memory; `Request`: the engine has no cache folder, another model computed the memory, or it is of
    /// no conversation; `Store`: it is damaged or can't be read.
    pub fn resume(&self, run: impl Into<String>, agent: impl Into<String>) -> Result<Agent> {
        let mut resumed = self.agent(run, agent);
        let SessionKey { run, agent, .. } = &resumed.key;
        if self.inner.keeping.store.is_none() {
            return Err(Error::request(format!(
                "agent `{agent}` of run `{run}` can't be resumed: this engine stores no memories; set `cache_dir`"
            )));
        }
        let manifest = self.stored_memory(&resumed.key)?.ok_or_else(|| {
            let found = format!(
                "there is no stored memory of agent `{agent}` of run `{run}`; begin it with `Engine::agent`"
            );
            Error::new(ErrorKind::NotFound, found)
        })?;
        let (found, here) = (&manifest.owner.identity, &self.inner.keeping.context.identity);
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
        let Some(store) = &self.inner.keeping.store else { return Ok(None) };
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
    /// Sets the system text, which precedes everything that it reads. A turn after the system text has changed reads everything again.
    #[must_use]
    pub fn system(mut self, text: impl Into<String>) -> Self {
        self.conversation.system = Some(text.into());
        self
    }

    /// Sets the tools that it may call, from the beginning of its conversation on, and allows calls ([`Agent::calls`] says otherwise).
    /// A reply that is a call has [`Completion::call`]; what the agent reads next is the result.
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
        if self.settings.calls == Calls::Never {
            self.settings.calls = Calls::Allowed;
        }
        self
    }

    /// Whether replies may be calls of its tools, or must be.
    #[must_use]
    pub fn calls(mut self, calls: Calls) -> Self {
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

    /// Most tokens of a reply (256).
    #[must_use]
    pub fn max_tokens(mut self, n: usize) -> Self {
        self.settings.max_tokens = n;
        self
    }

    /// True if a reply that reaches its most tokens ends with its last whole sentence ([`Request::whole_sentences`]).
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

    /// Asks for the log-probability of each token of a reply, and of so many of the likeliest ones in its place
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
                ReplyContent::CallText(call) => {
                    serde_json::json!({ "tool": call.tool, "arguments": call.arguments }).to_string()
                }
            };
            (&*exchange.user, said)
        })
    }

    /// Starts a turn: the agent reads `text` and answers. The engine works on it whether or not anybody waits.
    ///
    /// Before its first turn is saved this looks into the cache folder, on this thread.
    ///
    /// # Errors
    /// `Request`: the turn would replace a memory that is stored under the agent's name; `Closed`: the engine's thread has ended.
    pub fn extend(&mut self, text: impl Into<String>) -> Result<Reply<'_>> {
        let constraint = self.settings.constraint.clone();
        self.turn(text.into(), constraint)
    }

    /// Starts a turn that is answered with one of `options`, by their log-probabilities ([`Constraint::OneOf`]), whatever
    /// replies must be otherwise.
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
        let Settings { sampling, max_tokens, whole_sentences, stop, grammar, calls, logprobs, .. } =
            self.settings.clone();
        let is_choice = matches!(constraint, Some(Constraint::OneOf(_)));
        let turn_number = self.conversation.exchanges.len() as u64;
        let prompt = Conversation { next: user.clone(), ..self.conversation.clone() };
        self.refuse_to_replace(&prompt)?;
        let turn = self.engine.submit(Request {
            parent: self.parent.clone(),
            retention: Retention::Persistent,
            sampling: Sampling { seed: sampling.seed.wrapping_add(turn_number), ..sampling },
            max_tokens,
            whole_sentences,
            stop,
            constraint,
            grammar: grammar.filter(|_| !is_choice),
            calls: if is_choice { Calls::Never } else { calls },
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
        let prompt = prompter.chat.prompt_behind(held, conversation, &prompter.tokenizer)?;
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
            "agent `{agent}` of run `{run}` has a stored memory of {} tokens, which this turn does not continue{differs}",
            manifest.n_tokens()
        );
        let remedy = match self.resumed {
            Some(_) => "give it the system text and the tools that it had, or allow `Agent::replace`",
            None => {
                "continue it with `Engine::resume`, remove it with `Engine::remove`, or allow `Agent::replace`"
            }
        };
        Err(Error::request(format!("{found}; {remedy}")))
    }

    /// An agent of the same run with the same past and the same settings: it reads none of it again.
    ///
    /// Its memory is this agent's as it stands now, in RAM or in the cache folder. If another memory is stored under its name, its turns
    /// are refused, as those of [`Engine::agent`].
    #[must_use]
    pub fn fork(&self, agent: impl Into<String>) -> Agent {
        let key = SessionKey { agent: agent.into(), ..self.key.clone() };
        self.engine.fork(&self.key, &key);
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
            Some(Called::Whole(_)) => ReplyContent::Call(ids),
            Some(Called::Cut) | None => ReplyContent::Ids(ids),
        };
        let reasoning = self.conversation.reasoning;
        self.conversation.exchanges.push(Exchange { user, reply, reasoning });
        (self.is_own, self.resumed) = (true, None);
    }
}

/// A reply on its way: an iterator over its text, piece by piece. [`Reply::stream`] is the same without blocking.
///
/// [`Reply::finish`] makes the turn a part of the agent. Dropped without that, the agent is as it was before: a turn at work
/// is cancelled, and of one that had ended nothing is kept on disk, while the engine's memory goes back to before it
/// at the agent's next turn (which then says [`MatchKind::Diverge`](crate::MatchKind::Diverge)).
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
        Event::Prefill { .. } | Event::Call(_) | Event::Logprobs(_) | Event::Done(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::fixtures::RandomModel;
    use crate::*;
    use futures_util::StreamExt as _;
    use std::path::Path;
    use std::pin::Pin;
    use std::sync::Arc;

    fn open(cache_dir: Option<&Path>) -> Engine {
        let model = ModelSource::Bundled("tiny", RandomModel::tiny(1).bytes().leak());
        let cache_dir = cache_dir.map(Path::to_path_buf);
        Engine::open(EngineConfig { cache_dir, ..EngineConfig::new(model) }).unwrap()
    }

    fn ada(engine: &Engine) -> Agent {
        engine.agent("r", "ada").system("You are Ada.").max_tokens(12)
    }

    fn say(agent: &mut Agent, text: &str) -> Completion {
        agent.extend(text).unwrap().blocking_finish().unwrap()
    }

    /// Kind of a turn, with the tokens that it reused and recomputed.
    fn account(usage: &Usage) -> (MatchKind, usize, usize) {
        (usage.kind, usage.reused, usage.recomputed)
    }

    /// Tokens read and said by the end of a turn.
    fn total(said: &Completion) -> usize {
        said.usage.reused + said.usage.prefilled + said.usage.recomputed + said.ids.len()
    }

    #[test]
    fn pieces_are_the_completion_however_they_are_taken() {
        let engine = open(None);
        let mut agents = ["a", "b", "c"].map(|name| engine.agent("r", name).max_tokens(12));
        let [a, b, c] = &mut agents;
        let mut reply = a.extend("Go on.").unwrap();
        let pieces: String = reply.by_ref().map(Result::unwrap).collect();
        let said = reply.blocking_finish().unwrap();
        assert_eq!((pieces.as_str(), said.ids.len() > 3), (said.text.as_str(), true));
        assert_eq!(say(b, "Go on.").ids, said.ids);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let streaming = async {
            let mut reply = c.extend("Go on.").unwrap();
            let pieces = reply.stream().map(Result::unwrap).collect::<String>().await;
            (pieces, reply.finish().await.unwrap())
        };
        let streaming: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(streaming); // on any thread
        let (pieces, streamed) = runtime.block_on(streaming);
        assert_eq!((pieces, streamed.ids), (said.text, said.ids));
        assert_eq!(agents[0].conversation(), agents[2].conversation());
        assert_eq!(agents[0].conversation().exchanges[0].user, "Go on.");
    }

    #[test]
    fn a_fork_reads_nothing_again() {
        let folder = tempfile::tempdir().unwrap();
        let engine = open(Some(folder.path()));
        let mut ada = ada(&engine);
        let read = "a long story ".repeat(40); // more than a block
        let known = total(&say(&mut ada, &read));
        let mut twins = ["b", "c"].map(|name| ada.fork(name));
        let replies = twins.each_mut().map(|twin| twin.extend("And then?").unwrap());
        let [b, c] = replies.map(|reply| reply.blocking_finish().unwrap());
        assert_eq!(account(&b.usage), (MatchKind::Extend, known, 0));
        assert_eq!((account(&c.usage), &c.ids), (account(&b.usage), &b.ids));
        engine.forget(ada.key()); // it is on disk only
        let [mut late, mut later] = ["d", "e"].map(|name| ada.fork(name));
        let d = say(&mut late, "And then?");
        assert_eq!((account(&d.usage), d.usage.source), (account(&b.usage), Source::Disk));
        assert_eq!(d.ids, b.ids);
        let at_work = ada.extend("And then?").unwrap();
        let e = say(&mut later, "And then?");
        assert_eq!((account(&e.usage), &e.ids), (account(&b.usage), &b.ids));
        assert_eq!(at_work.blocking_finish().unwrap().ids, b.ids);
        assert_eq!(account(&say(&mut late, "And?").usage), (MatchKind::Extend, total(&d), 0));
    }

    #[test]
    fn a_reply_that_is_dropped_changes_nothing() {
        let (folder, expected) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (engine, other) = (open(Some(folder.path())), open(Some(expected.path())));
        let (mut ada, mut control) = (ada(&engine), ada(&other));
        let first = say(&mut ada, "One.");
        assert_eq!(say(&mut control, "One.").ids, first.ids);
        drop(ada.extend("Not this.").unwrap()); // at work, or not begun
        let mut ended = ada.extend("Nor this.").unwrap();
        assert!(ended.by_ref().count() > 0);
        drop(ended);
        assert_eq!(ada.conversation(), control.conversation());
        let second = say(&mut ada, "Two.");
        // The template's text around the message that was taken back is there already.
        assert!(second.usage.reused >= total(&first) && second.usage.recomputed == 0, "{:?}", second.usage);
        assert_eq!(second.ids, say(&mut control, "Two.").ids);
        // What is on disk knows nothing of a turn that ended and was dropped.
        let mut ended = ada.extend("Nor this.").unwrap();
        assert!(ended.by_ref().count() > 0);
        drop(ended);
        let past = ada.conversation().exchanges.clone();
        drop((ada, engine)); // an agent is a handle to its engine
        let engine = open(Some(folder.path()));
        let mut ada = self::ada(&engine).history(past);
        let third = say(&mut ada, "Three.");
        assert_eq!(account(&third.usage), (MatchKind::Extend, total(&second), 0));
        assert_eq!(third.ids, say(&mut control, "Three.").ids);
    }

    #[test]
    fn a_choice_is_an_agents_turn_too() {
        let (engine, other) = (open(None), open(None));
        let (mut ada, mut control) = (ada(&engine), ada(&other));
        let options = ["I stay.", "I stand by you.", "I go."];
        for (n, agent) in [&mut ada, &mut control].into_iter().enumerate() {
            if n == 0 {
                drop(agent.choose("One.", options).unwrap()); // at work, or not begun
                let mut ended = agent.choose("One.", ["Two.", "Three."]).unwrap();
                assert!(ended.by_ref().count() == 1);
                drop(ended);
            }
            let mut reply = agent.choose("One.", options).unwrap();
            let pieces: String = reply.by_ref().map(Result::unwrap).collect();
            assert!(options.contains(&pieces.as_str()), "{pieces}");
            assert_eq!(reply.blocking_finish().unwrap().text, pieces);
        }
        let said = [&mut ada, &mut control]
            .map(|agent| agent.choose("Two.", options).unwrap().blocking_finish().unwrap());
        assert_eq!((&said[0].choice, &said[0].ids), (&said[1].choice, &said[1].ids));
        let free = [&mut ada, &mut control].map(|agent| say(agent, "Three."));
        assert_eq!((&free[0].choice, &free[0].ids), (&None, &free[1].ids));
        assert_eq!(account(&free[0].usage), account(&free[1].usage));
    }

    #[test]
    fn a_failed_turn_is_an_error_and_changes_nothing() {
        let engine = open(None);
        let mut ada = ada(&engine);
        let first = say(&mut ada, "One.");
        let mut greedy = ada.fork("b").max_tokens(usize::MAX / 2);
        let pieces: Vec<_> = greedy.extend("Two.").unwrap().collect();
        assert!(matches!(&pieces[..], [Err(e)] if e.kind() == ErrorKind::Request), "{pieces:?}");
        assert!(greedy.extend("Two.").unwrap().blocking_finish().is_err());
        assert_eq!(greedy.conversation().exchanges.len(), 1);
        let mut modest = greedy.max_tokens(12);
        assert_eq!(account(&say(&mut modest, "Two.").usage), (MatchKind::Extend, total(&first), 0));
    }

    /// Texts that an agent has read and said.
    fn past(agent: &Agent) -> Vec<(String, String)> {
        agent.past().map(|(read, said)| (read.to_owned(), said)).collect()
    }

    #[test]
    fn a_resumed_agent_goes_on_as_if_there_had_been_no_restart() {
        let (folder, expected) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let control_engine = open(Some(expected.path()));
        let mut control = ada(&control_engine);
        let mut known = 0;
        for (n, text) in ["One.", "Two.", &"three ".repeat(70), "Four."].into_iter().enumerate() {
            let engine = open(Some(folder.path())); // a restart before each turn
            let mut ada =
                if n == 0 { ada(&engine) } else { engine.resume("r", "ada").unwrap().max_tokens(12) };
            assert_eq!((ada.conversation(), past(&ada)), (control.conversation(), past(&control)));
            let (said, expected) = (say(&mut ada, text), say(&mut control, text));
            assert_eq!(said.ids, expected.ids);
            if n > 0 {
                assert_eq!(account(&said.usage), (MatchKind::Extend, known, 0));
            }
            known = total(&said);
        }
    }

    #[test]
    fn a_stored_memory_is_never_replaced_unasked() {
        let folder = tempfile::tempdir().unwrap();
        let key = SessionKey::new("r", "ada");
        let first = {
            let engine = open(Some(folder.path()));
            let (mut ada, mut bob) = (ada(&engine), engine.agent("r", "bob").max_tokens(12));
            let _ = say(&mut bob, "I am Bob.");
            say(&mut ada, "One.")
        };
        let engine = open(Some(folder.path()));
        let refused = |agent: &mut Agent, expected: &str| {
            let error = agent.extend("Two.").map(drop).unwrap_err();
            assert!(error.kind() == ErrorKind::Request && error.to_string().contains(expected), "{error}");
        };
        refused(&mut ada(&engine), "continue it with `Engine::resume`");
        refused(&mut engine.agent("r", "ada").system("You are Eve."), "`Engine::remove`");
        refused(&mut engine.resume("r", "ada").unwrap().system("You are Eve."), "that it had");
        let mut resumed = engine.resume("r", "ada").unwrap().max_tokens(12);
        refused(&mut resumed.fork("bob"), "agent `bob` of run `r` has a stored memory");
        assert_eq!(past(&engine.resume("r", "bob").unwrap())[0].0, "I am Bob.");
        assert_eq!(past(&resumed), [("One.".to_owned(), first.text.clone())]);
        let second = say(&mut resumed, "Two.");
        assert_eq!(account(&second.usage), (MatchKind::Extend, total(&first), 0));
        assert_eq!(past(&engine.resume("r", "ada").unwrap()).len(), 2);
        // Whoever asks for it may.
        let mut anew = ada(&engine).replace();
        let _ = say(&mut anew, "Zero.");
        assert_eq!(past(&engine.resume("r", "ada").unwrap())[0].0, "Zero.");
        engine.blocking_remove(&key).unwrap();
        assert!(engine.resume("r", "ada").err().unwrap().to_string().contains("`Engine::agent`"));
        let _ = say(&mut ada(&engine), "One.");
        assert_eq!(past(&engine.resume("r", "ada").unwrap()).len(), 1);
        assert!(open(None).resume("r", "ada").err().unwrap().to_string().contains("`cache_dir`"));
    }

    #[test]
    fn what_another_model_or_a_raw_prompt_left_is_not_resumed() {
        let folder = tempfile::tempdir().unwrap();
        let engine = open(Some(folder.path()));
        let _ = say(&mut ada(&engine), "One.");
        let raw = Request {
            retention: Retention::Persistent,
            max_tokens: 4,
            ..Request::new(SessionKey::new("r", "raw"), Prompt::Text("Once upon".to_owned()))
        };
        let mut turn = engine.submit(raw).unwrap();
        while turn.blocking_next().is_some() {}
        turn.blocking_commit().unwrap();
        assert!(engine.resume("r", "raw").err().unwrap().to_string().contains("raw text"));
        assert!(engine.agent("r", "raw").extend("Hm?").map(drop).is_err());
        drop(engine);
        let model = ModelSource::Bundled("other", RandomModel::tiny(2).bytes().leak());
        let other = Engine::open(EngineConfig::new(model).cache_dir(folder.path())).unwrap();
        let error = other.resume("r", "ada").err().unwrap().to_string();
        assert!(error.contains("was computed by model"), "{error}");
        let error = ada(&other).extend("Two.").map(drop).unwrap_err().to_string();
        assert!(error.contains("`Engine::resume`"), "{error}");
        drop(other);
        assert_eq!(past(&open(Some(folder.path())).resume("r", "ada").unwrap()).len(), 1);
    }

    /// With tools, calls of them, and reasoning, in a template that knows both and in one that knows neither.
    #[test]
    fn what_an_agent_was_given_is_resumed_too() {
        let arguments =
            serde_json::json!({ "type": "object", "properties": {}, "additionalProperties": false });
        let tool = Tool { name: "look".into(), about: "Looks".into(), arguments };
        let tools = Arc::new(Tools { list: vec![tool], instructions: "You may call tools.".into() });
        for template in [None, Some("Qwen-Qwen3-0.6B"), Some("calls-as-text")] {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/templates");
            let read = |name| std::fs::read_to_string(root.join(format!("{name}.jinja"))).unwrap();
            let tiny = RandomModel::tiny(1);
            let model = RandomModel { template: template.map(read).or(tiny.template.clone()), ..tiny };
            let folder = tempfile::tempdir().unwrap();
            let model = ModelSource::Bundled("tiny", model.bytes().leak());
            let config = EngineConfig::new(model).cache_dir(folder.path());
            for system in [None, Some("You are Ada.")] {
                let name = system.unwrap_or("nobody");
                let engine = Engine::open(config.clone()).unwrap();
                let mut ada = engine.agent("r", name).tools(tools.clone()).max_tokens(12);
                ada = if let Some(system) = system { ada.system(system) } else { ada };
                let _ = say(&mut ada, "One.");
                ada = ada.reasoning(Reasoning::High).calls(Calls::Required);
                assert!(say(&mut ada, "Two.").call.is_some());
                ada = ada.reasoning(Reasoning::None);
                let known = total(&say(&mut ada, "Nothing to see."));
                let expected = ada.conversation().clone();
                drop((ada, engine));
                let engine = Engine::open(config.clone()).unwrap();
                let mut ada = engine.resume("r", name).unwrap().tools(tools.clone()).max_tokens(12);
                let mut found = ada.conversation().clone();
                if template != Some("Qwen-Qwen3-0.6B") {
                    // No prompt of this template says how much was to be thought.
                    let thought = expected.exchanges.iter().map(|exchange| exchange.reasoning);
                    found.exchanges.iter_mut().zip(thought).for_each(|(it, thought)| it.reasoning = thought);
                }
                assert_eq!(found, expected, "{system:?}, {template:?}");
                let said = say(&mut ada, "Three.");
                assert_eq!(account(&said.usage), (MatchKind::Extend, known, 0));
                if template.is_some() {
                    let without = engine.resume("r", name).unwrap().extend("Four.").map(drop).unwrap_err();
                    assert!(without.to_string().contains("the tools that it had"), "{without}");
                }
            }
        }
    }

    #[test]
    fn an_agent_is_stored_and_spawned() {
        struct Cast {
            ada: Agent,
        }
        fn is_free<T: Send + 'static>(_: &T) {}
        let mut cast = Cast { ada: ada(&open(None)) }; // the engine lives on in its agent
        is_free(&cast.ada);
        let expected = say(&mut ada(&open(None)), "One.");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let spawned = runtime.spawn(async move {
            let said = cast.ada.extend("One.").unwrap().finish().await.unwrap();
            (said, cast)
        });
        let (said, cast) = runtime.block_on(spawned).unwrap();
        assert_eq!((said.ids, cast.ada.conversation().exchanges.len()), (expected.ids, 1));
        let mut ada = cast.ada.grammar(Grammar::Regex("yes|no".to_owned())).logprobs(2);
        let said = say(&mut ada, "Well?");
        assert!(["yes", "no"].contains(&&*said.text), "{}", said.text);
        assert_eq!((said.logprobs.len(), said.logprobs[0].top.len()), (said.ids.len(), 2));
    }

    #[test]
    fn replies_of_several_agents_run_at_once() {
        let engine = open(None);
        let mut agents: Vec<_> = (0..4).map(|n| engine.agent("r", format!("{n}")).max_tokens(12)).collect();
        let replies = agents.iter_mut().enumerate().map(|(n, agent)| agent.extend(format!("{n}")).unwrap());
        let replies: Vec<_> = replies.collect();
        let together = replies.into_iter().rev().map(|reply| reply.blocking_finish().unwrap().ids).rev();
        let together: Vec<_> = together.collect();
        for (n, ids) in together.iter().enumerate() {
            let mut alone = engine.agent("alone", format!("{n}")).max_tokens(12);
            assert_eq!(say(&mut alone, &format!("{n}")).ids, *ids);
        }
    }
}
