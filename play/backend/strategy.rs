//! Agents of a scenario that are not models: controls of experiments, and humans.
//!
//! The turns of a [`Strategy`] have no ids and no log-probabilities.

use super::{
    Backend, BoxFuture, HumanSeat, ModelCard, Progress, Question, Reply, Request, Session, Sink, Traffic,
};
use crate::prompt::OpenOptions;
use anyhow::Context as _;
use greenroom_scenario::Strategy;
use std::sync::Arc;

/// A whole cast: strategies answer for the agents that have one, a backend for all others.
pub struct CastBackend {
    model: Arc<dyn Backend>,
    humans: Arc<dyn HumanSeat>,
}

impl CastBackend {
    /// A cast in which all agents without a strategy are played by `model`, and humans answer at a seat.
    pub fn new(model: Arc<dyn Backend>, humans: Arc<dyn HumanSeat>) -> Self {
        Self { model, humans }
    }
}

impl Backend for CastBackend {
    fn card(&self) -> ModelCard {
        self.model.card()
    }

    fn reply(&self, request: Request, sink: Sink) -> BoxFuture<'_, anyhow::Result<Reply>> {
        match request.strategy.clone() {
            None => self.model.reply(request, sink),
            Some(strategy) => Box::pin(async move {
                let path = request.path.clone();
                let text = match strategy {
                    Strategy::Human => {
                        let question = Question::of(&request);
                        let asked = self.humans.ask(question.clone());
                        sink(Progress::Asked(Box::new(question)));
                        asked.await
                    }
                    strategy => {
                        let offer = request.choice.as_ref().map(OpenOptions::offer);
                        let reply = strategy.reply(&path, request.sampling.seed, offer, &request.recalled);
                        reply.map_err(anyhow::Error::from)
                    }
                };
                let text = text.with_context(|| path)?;
                sink(Progress::Text(text.clone()));
                Ok(Reply::of_rule(text))
            }),
        }
    }

    fn named(&self, name: &str, model: &str) -> anyhow::Result<Option<Arc<dyn Backend>>> {
        self.model.named(name, model)
    }

    fn forget(&self, session: &Session) {
        self.model.forget(session);
    }

    fn hint_next_use(&self, session: &Session, next_use: u64) {
        self.model.hint_next_use(session, next_use);
    }

    fn traffic(&self) -> Option<Traffic> {
        self.model.traffic()
    }

    fn overflows(&self, request: &Request) -> anyhow::Result<bool> {
        if request.strategy.is_some() { Ok(false) } else { self.model.overflows(request) }
    }

    fn fills_half(&self, request: &Request) -> anyhow::Result<bool> {
        self.model.fills_half(request)
    }

    fn embed(&self, texts: Vec<String>) -> BoxFuture<'_, anyhow::Result<Vec<Vec<f32>>>> {
        self.model.embed(texts)
    }
}
