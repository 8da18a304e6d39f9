//! An agent as a value: a session of the engine, with its conversation and its settings.

use crate::engine::{Engine, Turn};
use crate::{
    Completion, Constraint, Conversation, Event, Exchange, Reasoning, ReplyContent, Request, Result,
    Retention, Sampling, SessionKey,
};
use futures_core::Stream;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// One agent of an [`Engine`]: what it has read and said, and how it answers.
///
/// ```
/// # use greenroom_engine::*;
/// # let model = ModelSource::Bundled("tiny", fixtures::RandomModel::tiny(1).bytes().leak());
/// # let engine = Engine::open(EngineConfig::new(model), &mut |_| {})?;
/// let mut ada = engine.agent("demo", "ada").system("You are Ada.").max_tokens(8);
/// let past = ada.extend("Rolf: Who are you?")?.finish()?;
/// let (mut stay, mut go) = (ada.fork("ada, who stays"), ada.fork("ada, who goes"));
/// let (mut stays, mut goes) = (stay.extend("Rolf: Stay.")?, go.extend("Rolf: Go.")?); // both at once
/// for (one, other) in stays.by_ref().zip(goes.by_ref()) {
///     println!("{:16} | {}", one?, other?);
/// }
/// let known = past.usage.prefilled + past.ids.len();
/// assert_eq!([stays.finish()?.usage.reused, goes.finish()?.usage.reused], [known, known]);
/// # Ok::<(), Error>(())
/// ```
///
/// Its memory (keys and values) is the engine's, under the names of run and agent: in RAM, and in the cache folder where
/// there is one. There is one agent of a name at a time; of two, each would take the memory back to its own conversation.
pub struct Agent<'e> {
    engine: &'e Engine,
    key: SessionKey,
    parent: Option<SessionKey>,
    conversation: Conversation,
    sampling: Sampling,
    max_tokens: usize,
    stop: Vec<String>,
    constraint: Option<Constraint>,
}

impl Engine {
    /// An agent of a run, which has read nothing. One that has, in an earlier process, gets [`Agent::history`].
    pub fn agent(&self, run: impl Into<String>, agent: impl Into<String>) -> Agent<'_> {
        Agent {
            engine: self,
            key: SessionKey::new(run, agent),
            parent: None,
            conversation: Conversation::default(),
            sampling: Sampling::default(),
            max_tokens: 256,
            stop: Vec::new(),
            constraint: None,
        }
    }
}

impl<'e> Agent<'e> {
    /// The system text, which all that it reads follows. Set later, it makes the agent read everything again.
    #[must_use]
    pub fn system(mut self, text: impl Into<String>) -> Self {
        self.conversation.system = Some(text.into());
        self
    }

    /// Sets the earlier exchanges. What the cache folder holds of them is reused; the rest is prefilled.
    #[must_use]
    pub fn history(mut self, exchanges: impl Into<Vec<Exchange>>) -> Self {
        self.conversation.exchanges = exchanges.into();
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
        self.sampling = sampling;
        self
    }

    /// Most tokens of a reply (256).
    #[must_use]
    pub fn max_tokens(mut self, n: usize) -> Self {
        self.max_tokens = n;
        self
    }

    /// Strings before which a reply ends.
    #[must_use]
    pub fn stop<S: Into<String>>(mut self, strings: impl IntoIterator<Item = S>) -> Self {
        self.stop = strings.into_iter().map(Into::into).collect();
        self
    }

    /// Constrains replies; `None` leaves them free.
    #[must_use]
    pub fn constraint(mut self, constraint: impl Into<Option<Constraint>>) -> Self {
        self.constraint = constraint.into();
        self
    }

    /// The key of its session, under which its memory is kept.
    pub fn key(&self) -> &SessionKey {
        &self.key
    }

    /// The conversation so far; `next` is empty.
    pub fn conversation(&self) -> &Conversation {
        &self.conversation
    }

    /// Starts a turn: the agent reads `text` and answers. The engine works on it whether or not anybody waits.
    ///
    /// # Errors
    /// The engine's thread has ended.
    pub fn extend(&mut self, text: impl Into<String>) -> Result<Reply<'_>> {
        let constraint = self.constraint.clone();
        self.turn(text.into(), constraint)
    }

    /// Starts a turn that is answered with one of `options`, by their log-probabilities ([`Constraint::OneOf`]), whatever
    /// replies must be otherwise.
    ///
    /// ```
    /// # use greenroom_engine::*;
    /// # let model = ModelSource::Bundled("tiny", fixtures::RandomModel::tiny(1).bytes().leak());
    /// # let engine = Engine::open(EngineConfig::new(model), &mut |_| {})?;
    /// let mut ada = engine.agent("demo", "ada").system("You are Ada.");
    /// let said = ada.choose("Rolf: Do you stay?", ["I stay.", "I go."])?.finish()?;
    /// let Choice { chosen, logprobs } = said.choice.expect("a choice");
    /// println!("{} ({:.3} against {:.3})", said.text, logprobs[chosen].exp(), logprobs[1 - chosen].exp());
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// The engine's thread has ended.
    pub fn choose<S: Into<String>>(
        &mut self,
        text: impl Into<String>,
        options: impl IntoIterator<Item = S>,
    ) -> Result<Reply<'_>> {
        let options = options.into_iter().map(Into::into).collect();
        self.turn(text.into(), Some(Constraint::OneOf(options)))
    }

    fn turn(&mut self, user: String, constraint: Option<Constraint>) -> Result<Reply<'_>> {
        let Self { engine, key, parent, conversation, sampling, max_tokens, stop, .. } = self;
        let turn_number = conversation.exchanges.len() as u64;
        let turn = engine.submit(Request {
            parent: parent.clone(),
            retention: Retention::Persistent,
            sampling: Sampling { seed: sampling.seed.wrapping_add(turn_number), ..sampling.clone() },
            max_tokens: *max_tokens,
            stop: stop.clone(),
            constraint,
            ..Request::new(key.clone(), Conversation { next: user.clone(), ..conversation.clone() })
        })?;
        Ok(Reply { turn, user, conversation })
    }

    /// An agent of the same run with the same past and the same settings: it reads none of it again.
    ///
    /// Its memory is this agent's as it stands now, in RAM or in the cache folder.
    #[must_use]
    pub fn fork(&self, agent: impl Into<String>) -> Agent<'e> {
        let key = SessionKey { agent: agent.into(), ..self.key.clone() };
        self.engine.fork(&self.key, &key);
        Agent {
            engine: self.engine,
            key,
            parent: Some(self.key.clone()),
            conversation: self.conversation.clone(),
            sampling: self.sampling.clone(),
            max_tokens: self.max_tokens,
            stop: self.stop.clone(),
            constraint: self.constraint.clone(),
        }
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
    conversation: &'a mut Conversation,
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
    pub fn finish(mut self) -> Result<Completion> {
        while let Some(event) = self.turn.blocking_next() {
            piece(event).transpose()?;
        }
        let completion = self.turn.blocking_commit()?;
        Ok(record(self.conversation, self.user, *completion))
    }

    /// [`Reply::finish`] for an async runtime.
    ///
    /// # Errors
    /// As [`Reply::finish`].
    pub async fn finish_async(mut self) -> Result<Completion> {
        while let Some(event) = self.turn.next().await {
            piece(event).transpose()?;
        }
        let completion = self.turn.commit().await?;
        Ok(record(self.conversation, self.user, *completion))
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

fn record(conversation: &mut Conversation, user: String, completion: Completion) -> Completion {
    let (reply, reasoning) = (ReplyContent::Ids(completion.ids.clone().into()), conversation.reasoning);
    conversation.exchanges.push(Exchange { user, reply, reasoning });
    completion
}

#[cfg(test)]
mod tests {
    use crate::fixtures::RandomModel;
    use crate::*;
    use futures_util::StreamExt as _;
    use std::path::Path;
    use std::pin::Pin;

    fn open(cache_dir: Option<&Path>) -> Engine {
        let model = ModelSource::Bundled("tiny", RandomModel::tiny(1).bytes().leak());
        let cache_dir = cache_dir.map(Path::to_path_buf);
        Engine::open(EngineConfig { cache_dir, ..EngineConfig::new(model) }, &mut |_| {}).unwrap()
    }

    fn ada(engine: &Engine) -> Agent<'_> {
        engine.agent("r", "ada").system("You are Ada.").max_tokens(12)
    }

    fn say(agent: &mut Agent<'_>, text: &str) -> Completion {
        agent.extend(text).unwrap().finish().unwrap()
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
        let said = reply.finish().unwrap();
        assert_eq!((pieces.as_str(), said.ids.len() > 3), (said.text.as_str(), true));
        assert_eq!(say(b, "Go on.").ids, said.ids);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let streaming = async {
            let mut reply = c.extend("Go on.").unwrap();
            let pieces = reply.stream().map(Result::unwrap).collect::<String>().await;
            (pieces, reply.finish_async().await.unwrap())
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
        let [b, c] = replies.map(|reply| reply.finish().unwrap());
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
        assert_eq!(at_work.finish().unwrap().ids, b.ids);
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
        drop(engine);
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
            assert_eq!(reply.finish().unwrap().text, pieces);
        }
        let said =
            [&mut ada, &mut control].map(|agent| agent.choose("Two.", options).unwrap().finish().unwrap());
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
        assert!(greedy.extend("Two.").unwrap().finish().is_err());
        assert_eq!(greedy.conversation().exchanges.len(), 1);
        let mut modest = greedy.max_tokens(12);
        assert_eq!(account(&say(&mut modest, "Two.").usage), (MatchKind::Extend, total(&first), 0));
    }

    #[test]
    fn replies_of_several_agents_run_at_once() {
        let engine = open(None);
        let mut agents: Vec<_> = (0..4).map(|n| engine.agent("r", format!("{n}")).max_tokens(12)).collect();
        let replies = agents.iter_mut().enumerate().map(|(n, agent)| agent.extend(format!("{n}")).unwrap());
        let replies: Vec<_> = replies.collect();
        let together = replies.into_iter().rev().map(|reply| reply.finish().unwrap().ids).rev();
        let together: Vec<_> = together.collect();
        for (n, ids) in together.iter().enumerate() {
            let mut alone = engine.agent("alone", format!("{n}")).max_tokens(12);
            assert_eq!(say(&mut alone, &format!("{n}")).ids, *ids);
        }
    }
}
