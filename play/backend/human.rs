//! Agents that a human plays: the question, and the seat from which it is answered: the terminal, a client of the run
//! (see [`Control`](crate::stage::Control)), or whichever answers first.

use super::{BoxFuture, Request};
use crate::prompt::OpenOptions;
use anyhow::{Context as _, anyhow};
use greenroom_scenario::diagnostic::printable;
use greenroom_scenario::files::typed_line;
use greenroom_scenario::{ChoiceOption, Form};
use std::io::Write as _;
use std::sync::{Arc, OnceLock};
use tokio::sync::{Mutex, mpsc};

/// What a human is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Question {
    /// The turn.
    pub path: String,
    /// The key of the human's agent.
    pub agent: String,
    /// The agent's system text.
    pub system: Option<String>,
    /// The agent's earlier turns, oldest first: what it heard, and what it said.
    pub past: Vec<(String, String)>,
    /// What the human's agent hears before it.
    pub heard: String,
    /// The options of a choice that may be taken; empty: any text is an answer.
    pub options: Vec<String>,
    /// The form that an answer must have.
    pub form: Option<Arc<Form>>,
}

impl Question {
    /// The question that a request to a human's agent is.
    pub(super) fn of(request: &Request) -> Self {
        let texts = |options: &OpenOptions| -> Vec<String> {
            let text = |option: &ChoiceOption| option.text.clone();
            options.open.iter().map(|id| text(&options.choice.options[*id])).collect()
        };
        let conversation = &request.conversation;
        let past = conversation.exchanges.iter();
        let (agent, _) = request.session.agent.split_once('/').unwrap_or((&request.session.agent, ""));
        Self {
            path: request.path.clone(),
            agent: agent.to_string(),
            system: conversation.system.clone(),
            past: past.map(|turn| (turn.user.clone(), turn.raw.to_string())).collect(),
            heard: conversation.next.clone(),
            options: request.choice.as_ref().map(texts).unwrap_or_default(),
            form: request.form.clone(),
        }
    }

    /// The reply that a line is: an option may be given by its number, or in other letters.
    ///
    /// # Errors
    /// What is wrong with it, and what is expected.
    pub fn read(&self, line: &str) -> Result<String, String> {
        let line = line.trim();
        if let Some(form) = &self.form {
            let read = form.read(line).map(|_| line.to_string());
            return read.map_err(|why| format!("`{line}` does not have the required form: {why}"));
        }
        if self.options.is_empty() {
            return Ok(line.to_string());
        }
        let named = self.options.iter().find(|option| option.eq_ignore_ascii_case(line));
        let numbered = || self.options.get(line.parse::<usize>().ok()?.checked_sub(1)?);
        let option = named.or_else(numbered).cloned();
        option.ok_or_else(|| format!("`{line}` is not an option; enter the number or the text of one"))
    }

    /// It as the terminal shows it.
    fn shown(&self) -> String {
        let options = self.options.iter().enumerate();
        let options = options.map(|(at, text)| format!("  {}: {}\n", at + 1, printable(text)));
        format!("\n{}\n{}", printable(&self.heard), options.collect::<String>())
    }
}

/// Where a human answers. Humans are asked one after the other.
pub trait HumanSeat: Send + Sync {
    /// Asks a question, and returns a reply to it ([`Question::read`]).
    fn ask(&self, question: Question) -> BoxFuture<'_, anyhow::Result<String>>;
}

/// The terminal of this process: questions on standard error, answers from standard input.
#[derive(Debug, Default)]
pub struct Terminal {
    /// Lines as they are typed, read by a thread that waits for them: an answer may come from elsewhere
    /// meanwhile.
    lines: OnceLock<Mutex<mpsc::Receiver<std::io::Result<String>>>>,
}

impl Terminal {
    fn lines() -> Mutex<mpsc::Receiver<std::io::Result<String>>> {
        // (A line or two may be read ahead; what is typed beyond that stays in the terminal.)
        let (lines, read) = mpsc::channel(1);
        std::thread::spawn(move || {
            while let Some(line) = typed_line(std::io::stdin().lock()).transpose() {
                if lines.blocking_send(line).is_err() {
                    return;
                }
            }
        });
        Mutex::new(read)
    }

    /// Drops lines that were typed so far.
    pub(crate) async fn forget_typed(&self) {
        if let Some(lines) = self.lines.get() {
            let mut lines = lines.lock().await;
            while lines.try_recv().is_ok() {}
        }
    }

    async fn answer(&self, question: &Question) -> anyhow::Result<String> {
        let mut shown = question.shown();
        loop {
            let asked = std::io::stderr().write_all(format!("{shown}> ").as_bytes());
            asked.context("can't ask the human on standard error")?;
            let line = self.lines.get_or_init(Self::lines).lock().await.recv().await;
            let Some(line) = line else {
                let _ = std::io::stderr().write_all(b"\n");
                return Err(anyhow!("the terminal was closed before the human answered"));
            };
            match question.read(&line.context("can't read from the terminal")?) {
                Ok(reply) => return Ok(reply),
                Err(why) => shown = format!("{}\n", printable(&why)),
            }
        }
    }
}

impl HumanSeat for Terminal {
    fn ask(&self, question: Question) -> BoxFuture<'_, anyhow::Result<String>> {
        Box::pin(async move { self.answer(&question).await })
    }
}
