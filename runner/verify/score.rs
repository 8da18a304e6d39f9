//! Lets a model read a recording (teacher forcing): where would its seeded sampler have said something else?
//!
//! A score is a play: the stage plays the recording, and each reply is read by the model
//! (`Constraint::Follow`) before the recorded one is handed on. What is read in one go has the logits of what
//! was decoded, so a surprise is a fact about the model, never about how it was asked. Choices are weighed
//! again.

use super::fitting::Fitting;
use crate::backend::{Backend, BoxFuture, ModelCard, Reply, Request, Session, Sink};
use crate::scenario::language::Language;
use crate::scenario::{Choice, Chosen};
use crate::stage::{RecordedRetrievals, asked_again};
use crate::transcript::{Recorded, Recorder, TurnRecord, call_of, summary_of};
use anyhow::Context as _;
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

/// A model's score of the recorded replies.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Score {
    /// Replies that were read.
    pub turns: usize,
    /// Draws that were compared: the replies' tokens and ends, and the choices.
    pub tokens: usize,
    /// Mean log-probability of the recorded tokens, in nats; null where there is none.
    pub mean_logprob: Option<f64>,
    /// Places where the sampler draws something else, in plan order.
    pub surprises: Vec<Surprise>,
}

/// A place where the sampler draws something else than what is recorded.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Surprise {
    /// The turn.
    pub path: String,
    /// Line in the recording.
    pub line: usize,
    /// Number of the token in the reply, from 1; one more than the reply has: its end.
    pub token: usize,
    /// The reply up to there.
    pub before: String,
    /// The record: a token, an option or an end, as text.
    pub recorded: String,
    /// The sampler's draw, as text.
    pub drawn: String,
    /// Natural log-probability, to this model, of what is recorded: a token, or an option of a choice; null
    /// at an end.
    pub logprob: Option<f32>,
    /// That of what the sampler draws.
    pub drawn_logprob: Option<f32>,
}

/// Scores a recording that fits.
pub(super) fn score(fitting: &Fitting<'_>, model: &Arc<dyn Backend>) -> anyhow::Result<Score> {
    let lines = fitting.transcript.turns.iter();
    let recorded: RecordedLines =
        Arc::new(lines.map(|turn| (turn.record.path.clone(), turn.clone())).collect());
    let forked = fitting.transcript.header.record.forked.iter();
    let given: Arc<HashSet<String>> =
        Arc::new(forked.flat_map(|forked| &forked.said).map(|said| said.turn.clone()).collect());
    let found: Arc<Mutex<Vec<TurnScore>>> = Arc::default();
    let readers = fitting.players(model)?.map(|model| {
        let (recorded, given, found) = (recorded.clone(), given.clone(), found.clone());
        Arc::new(ReadingBackend { recorded, given, model, found })
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(fitting.play(
        readers,
        Recorder::verify(fitting.transcript),
        RecordedRetrievals::of(fitting.transcript),
        false,
    ))?;
    let mut found = std::mem::take(&mut *found.lock().unwrap_or_else(PoisonError::into_inner));
    found.sort_by_key(|turn| turn.line);
    let mut score = Score { turns: found.len(), ..Score::default() };
    let (mut sum, mut n) = (0.0, 0);
    for turn in found {
        score.tokens += turn.draws;
        sum += turn.logprob;
        n += turn.n_logprobs;
        score.surprises.extend(turn.surprises);
    }
    score.mean_logprob = (n > 0).then(|| sum / n as f64);
    Ok(score)
}

/// Score of one turn.
struct TurnScore {
    line: usize,
    draws: usize,
    logprob: f64,
    n_logprobs: usize,
    surprises: Vec<Surprise>,
}

/// Lines by path.
type RecordedLines = Arc<HashMap<String, Recorded<TurnRecord>>>;

/// Answers with what is recorded, once the model has read it.
struct ReadingBackend {
    /// Lines by path.
    recorded: RecordedLines,
    /// Paths of the turns whose replies were given from outside.
    given: Arc<HashSet<String>>,
    model: Arc<dyn Backend>,
    found: Arc<Mutex<Vec<TurnScore>>>,
}

impl ReadingBackend {
    async fn read(&self, request: Request) -> anyhow::Result<Reply> {
        let call = request.may_call.then(|| self.recorded.get(&call_of(&request.path, request.n_calls + 1)));
        let line = call.flatten().or_else(|| self.recorded.get(&request.path));
        let line = line.context("a turn that is not recorded")?;
        let (recorded, recorded_at) =
            (Reply::recorded(&line.record, request.choice.as_ref()), line.record.path.clone());
        let line = line.line;
        if request.strategy.is_some() {
            return Ok(recorded);
        }
        let (path, options) = (recorded_at, request.choice.clone());
        let request = asked_again(request, recorded.rejected.len());
        let asked = Request { follow: Some(recorded.ids.clone()), ..request };
        let read = self.model.reply(asked, Box::new(|_| {})).await?;
        if self.given.contains(&path) {
            return Ok(recorded);
        }
        let found = match options {
            Some(options) if read.followed.is_empty() && !read.logprobs.is_empty() => {
                chosen(path, line, &options.choice, &recorded, &read)
            }
            _ => self.followed(path, line, &recorded, &read),
        };
        self.found.lock().unwrap_or_else(PoisonError::into_inner).push(found);
        Ok(recorded)
    }

    fn followed(&self, path: String, line: usize, recorded: &Reply, read: &Reply) -> TurnScore {
        let n = recorded.ids.len();
        let text = |ids: &[u32]| self.model.text(ids);
        let mut surprises = Vec::new();
        for (at, (id, token)) in recorded.ids.iter().zip(&read.followed).enumerate() {
            if token.drawn != *id {
                surprises.push(Surprise {
                    path: path.clone(),
                    line,
                    token: at + 1,
                    before: text(&recorded.ids[..at]),
                    recorded: text(&[*id]),
                    drawn: text(&[token.drawn]),
                    logprob: Some(token.logprob),
                    drawn_logprob: Some(token.drawn_logprob),
                });
            }
        }
        if surprises.is_empty() && (read.ids != recorded.ids || read.stop != recorded.stop) {
            let more = text(read.ids.get(n..).unwrap_or_default());
            let ends = |reply: &Reply| reply.stop.word().replace('_', " ");
            let drawn = if more.is_empty() { ends(read) } else { format!("it continues: {more}") };
            let (recorded, before) = (ends(recorded), text(&recorded.ids));
            let (logprob, drawn_logprob) = (None, None);
            surprises.push(Surprise {
                path,
                line,
                token: n + 1,
                before,
                recorded,
                drawn,
                logprob,
                drawn_logprob,
            });
        }
        let logprob = read.followed.iter().map(|token| f64::from(token.logprob)).sum();
        TurnScore { line, draws: n + 1, logprob, n_logprobs: read.followed.len(), surprises }
    }
}

/// A choice is one draw among whole options.
fn chosen(path: String, line: usize, choice: &Choice, recorded: &Reply, read: &Reply) -> TurnScore {
    let logprob = |text: &str| {
        let Chosen::Option(wanted) = choice.read(text, &Language::default()) else { return None };
        read.logprobs.iter().find(|(option, _)| *option == wanted).map(|(_, logprob)| *logprob)
    };
    let surprise = (read.text != recorded.text).then(|| Surprise {
        path,
        line,
        token: 1,
        before: String::new(),
        recorded: recorded.text.clone(),
        drawn: read.text.clone(),
        logprob: logprob(&recorded.text),
        drawn_logprob: logprob(&read.text),
    });
    TurnScore { line, draws: 1, logprob: 0.0, n_logprobs: 0, surprises: surprise.into_iter().collect() }
}

impl Backend for ReadingBackend {
    fn card(&self) -> ModelCard {
        self.model.card()
    }

    fn reply(&self, request: Request, _sink: Sink) -> BoxFuture<'_, anyhow::Result<Reply>> {
        Box::pin(self.read(request))
    }

    fn overflows(&self, request: &Request) -> anyhow::Result<bool> {
        if request.n_calls == 0 {
            return Ok(self.recorded.contains_key(&summary_of(&request.path)));
        }
        // After a call the question is how much of its result there is room for.
        let called = self.recorded.get(&call_of(&request.path, request.n_calls));
        let is_cut = called.and_then(|line| line.record.call.as_ref()?.room).is_some();
        Ok(is_cut && self.model.overflows(request)?)
    }

    fn embed(&self, texts: Vec<String>) -> BoxFuture<'_, anyhow::Result<Vec<Vec<f32>>>> {
        self.model.embed(texts)
    }

    fn forget(&self, session: &Session) {
        self.model.forget(session);
    }
}
