//! Agents of a scenario that are not models: controls of experiments, and a human at the terminal.
//!
//! The turns of a [`Strategy`] have no ids and no log-probabilities.

use super::{Backend, BoxFuture, ModelCard, Progress, Reply, Request, Session, Sink, Traffic};
use crate::prompt::OpenOptions;
use anyhow::{Context as _, bail};
use greenroom_scenario::diagnostic::printable;
use greenroom_scenario::files::typed_line;
use greenroom_scenario::{ChoiceOption, Strategy};
use std::io::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

/// A whole cast: strategies answer for the agents that have one, a backend for all others.
pub struct CastBackend {
    model: Arc<dyn Backend>,
    /// Humans answer one after the other.
    terminal: Arc<Mutex<()>>,
}

impl CastBackend {
    /// A cast in which all agents without a strategy are played by `model`.
    pub fn new(model: Arc<dyn Backend>) -> Self {
        Self { model, terminal: Arc::default() }
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
                        let terminal = self.terminal.clone();
                        let ask = move || {
                            let _one = terminal.lock().unwrap_or_else(PoisonError::into_inner);
                            ask_human(&request)
                        };
                        tokio::task::spawn_blocking(ask).await?
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

/// Shows what the agent reads and takes a line; for a choice, an option's number or text.
fn ask_human(request: &Request) -> anyhow::Result<String> {
    let open =
        request.choice.iter().flat_map(|options| options.open.iter().map(|id| &options.choice.options[*id]));
    let open: Vec<&ChoiceOption> = open.collect();
    let mut question = format!("\n{}\n", printable(&request.conversation.next));
    for (at, option) in open.iter().enumerate() {
        question += &format!("  {}: {}\n", at + 1, printable(&option.text));
    }
    loop {
        let asked = std::io::stderr().write_all(format!("{question}> ").as_bytes());
        asked.context("can't ask the human on standard error")?;
        let line = typed_line(std::io::stdin().lock()).context("can't read from the terminal")?;
        let Some(line) = line else {
            let _ = std::io::stderr().write_all(b"\n");
            bail!("the terminal was closed before the human answered");
        };
        let line = line.trim();
        if let Some(form) = &request.form {
            match form.read(line) {
                Ok(_) => return Ok(line.to_string()),
                Err(reason) => {
                    question = format!(
                        "`{}` does not have the required form: {}\n",
                        printable(line),
                        printable(&reason)
                    );
                    continue;
                }
            }
        }
        if open.is_empty() {
            return Ok(line.to_string());
        }
        let numbered = line.parse::<usize>().ok().and_then(|n| open.get(n.checked_sub(1)?));
        let named = open.iter().find(|option| option.text.eq_ignore_ascii_case(line));
        if let Some(option) = named.or(numbered) {
            return Ok(option.text.clone());
        }
        question = format!("`{}` is not an option; enter the number or the text of one\n", printable(line));
    }
}
