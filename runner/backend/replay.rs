//! A recording as a backend: each turn is answered with what was recorded for exactly what is read now.
//!
//! What does not fit is drift. A turn beyond the recording goes on to another backend only if one was given
//! (`run --resume`); without, a miss never reaches a model.

use super::{Backend, BoxFuture, ModelCard, Reply, Request, Session, Sink, Stop, played};
use crate::scenario::Strategy;
use crate::transcript::{Cause, Drift, Recorded, Transcript, TurnRecord, summary_of};
use std::collections::HashMap;
use std::sync::Arc;

/// Recorded replies, and what answers after their end.
pub struct Replay {
    /// Turns by path: what was skipped has none.
    turns: HashMap<String, Recorded<TurnRecord>>,
    card: ModelCard,
    then: Option<Then>,
}

/// What answers where there is no record.
struct Then {
    backend: Arc<dyn Backend>,
    /// The first turn of the plan that it may answer.
    from: usize,
}

impl Replay {
    /// The recording alone.
    pub fn new(transcript: &Transcript) -> Self {
        let header = &transcript.header.record;
        let card = ModelCard {
            model: header.model.clone(),
            kv: header.kv.clone(),
            numerics: header.numerics.clone(),
        };
        let turns = transcript.turns.iter().map(|turn| (turn.record.path.clone(), turn.clone()));
        Self { turns: turns.collect(), card, then: None }
    }

    /// The recording, then a backend that goes on, from turn `from` of the plan at the earliest.
    pub fn then(transcript: &Transcript, backend: Arc<dyn Backend>, from: usize) -> Self {
        let (card, then) = (backend.card(), Some(Then { backend, from }));
        Self { card, then, ..Self::new(transcript) }
    }

    /// Who answers a turn that is not on record.
    fn beyond(&self, request: &Request) -> Option<&dyn Backend> {
        let then = self.then.as_ref().filter(|then| request.index >= then.from)?;
        (!self.turns.contains_key(&request.path)).then_some(then.backend.as_ref())
    }

    fn recorded(&self, request: &Request) -> Result<Reply, Drift> {
        let Some(turn) = self.turns.get(&request.path) else {
            let detail = "the recording ends before this turn";
            return Err(Drift::new(&request.path, Cause::LineMissing, detail));
        };
        let was = &turn.record;
        let drift = |cause, detail: &str| Drift::new(&request.path, cause, detail).at_line(turn.line);
        if was.delta != request.conversation.next {
            let cause = if turn.intact { Cause::PromptChanged } else { Cause::RecordAltered };
            return Err(
                drift(cause, "what the agent reads differs").texts(&was.delta, &request.conversation.next)
            );
        }
        let stop = Stop::from_word(&was.stop);
        let (true, Some(stop)) = (turn.intact, stop) else {
            return Err(drift(Cause::RecordAltered, "the line does not fit its hash"));
        };
        if let Some(strategy) = request.strategy.as_ref().filter(|strategy| **strategy != Strategy::Human) {
            let n_replies = request.conversation.exchanges.len();
            let said = played(strategy, request.seed, n_replies, request.choice.as_ref());
            let said = said.map_err(|error| drift(Cause::RuleChanged, &error.to_string()))?;
            if said != was.raw {
                let detail = "what is said differs; a rule plays this agent, no model";
                return Err(drift(Cause::RuleChanged, detail).texts(&was.raw, said));
            }
        }
        let recorded = was.constraint.iter().flat_map(|constraint| &constraint.options);
        let option = |text: &str| request.choice.as_ref()?.choice.options.iter().position(|o| o.text == text);
        let logprobs = recorded.filter_map(|was| Some((option(&was.text)?, was.logprob?))).collect();
        let (ids, text) = (was.tokens.clone(), was.raw.clone());
        Ok(Reply { logprobs, ..Reply::of(ids, text, stop) })
    }
}

impl Backend for Replay {
    fn card(&self) -> ModelCard {
        self.card.clone()
    }

    fn reply(&self, request: Request, sink: Sink) -> BoxFuture<'_, anyhow::Result<Reply>> {
        match self.beyond(&request) {
            Some(backend) => backend.reply(request, sink),
            None => Box::pin(async move { Ok(self.recorded(&request)?) }),
        }
    }

    fn expect(&self, session: &Session, next_use: u64) {
        if let Some(then) = &self.then {
            then.backend.expect(session, next_use);
        }
    }

    fn overflows(&self, request: &Request) -> anyhow::Result<bool> {
        let summed_up = self.turns.contains_key(&summary_of(&request.path));
        match self.beyond(request) {
            Some(backend) if !summed_up => backend.overflows(request),
            _ => Ok(summed_up),
        }
    }

    fn forget(&self, session: &Session) {
        if let Some(then) = &self.then {
            then.backend.forget(session);
        }
    }
}
