//! Shared parts of all measurements: a model, an engine on it, agents whose prompts have known lengths, and
//! timed turns.

use super::BenchCommon;
use super::model;
use super::report::{Figures, machine};
use anyhow::{Context as _, bail};
use greenroom::backend::{EmbeddedConfig, ModelFile, source, worded};
use greenroom::terminal::bytes;
use greenroom_engine::{
    Completion, Conversation, Engine, EngineConfig, Event, Exchange, KvCost, ModelInfo, PromptEncoder,
    ReplyContent, Request, Retention, Sampling, SessionKey, Turn, Usage,
};
use indicatif::ProgressBar;
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

/// Words that are one token in most vocabularies; a random model's vocabulary has the first.
const WORDS: [&str; 16] = [
    " the", " of", " and", " to", " in", " is", " that", " it", " was", " for", " on", " are", " with",
    " as", " at", " be",
];

/// The model that is measured, and how.
pub(super) struct Bench {
    /// The common arguments.
    pub(super) common: BenchCommon,
    /// File of the model.
    pub(super) model: ModelFile,
    prompter: PromptEncoder,
    words: Vec<&'static str>,
    n_texts: usize,
    /// The arithmetic of the device that was opened last.
    pub(super) numerics: String,
    bar: ProgressBar,
}

/// An open engine.
pub(super) struct Lab {
    engine: Engine,
    persistent: bool,
    /// Milliseconds that opening it and a first short turn took.
    pub(super) load_ms: f64,
}

/// A session and everything that it has read and said.
pub(super) struct Player {
    key: SessionKey,
    conversation: Conversation,
    /// Time of its use after its next turn, if that is known.
    pub(super) next_use: Option<u64>,
}

/// One turn to measure.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    /// Text that the agent reads.
    pub(super) text: String,
    /// Exactly this many tokens are generated.
    pub(super) n_tokens: usize,
    /// Nothing cached is used.
    pub(super) cold: bool,
}

/// A turn in progress.
pub(super) struct Pending {
    turn: Turn,
    submitted: Instant,
    ended: Option<(Instant, Box<Completion>)>,
    text: String,
}

/// A turn that was measured.
#[derive(Clone, Debug)]
pub(super) struct Timed {
    /// The engine's account.
    pub(super) usage: Usage,
    /// Time of submission.
    pub(super) submitted: Instant,
    /// Time of its first token.
    pub(super) first: Instant,
    /// Time of its end.
    pub(super) done: Instant,
    exchange: Exchange,
}

impl Timed {
    /// Milliseconds from submission to the first token, time in the queue included.
    pub(super) fn ttft_ms(&self) -> f64 {
        (self.first - self.submitted).as_secs_f64() * 1e3
    }

    /// Tokens a second after the first.
    pub(super) fn decode_rate(&self) -> f64 {
        self.usage.generated as f64 / (self.done - self.first).as_secs_f64()
    }

    /// Tokens of the prompt that were computed.
    pub(super) fn computed(&self) -> usize {
        self.usage.prefilled + self.usage.recomputed
    }

    /// Tokens of the prompt.
    pub(super) fn read(&self) -> usize {
        self.usage.reused + self.computed()
    }

    /// The reply's text.
    pub(super) fn ids(&self) -> &[u32] {
        match &self.exchange.reply {
            ReplyContent::Ids(ids) | ReplyContent::Call(ids) => ids,
            _ => &[],
        }
    }

    /// Its tokens.
    fn n_tokens(&self) -> usize {
        self.ids().len()
    }

    /// Match between the prompt and the cache, in a word.
    pub(super) fn kind(&self) -> String {
        format!("{:?}", self.usage.kind).to_lowercase()
    }

    /// Prompt tokens computed a second.
    pub(super) fn prefill_rate(&self) -> f64 {
        self.computed() as f64 / self.ttft_ms() * 1e3
    }
}

impl Bench {
    /// Finds the model, or writes it (without weights, if none are wanted), and reads its tokenizer.
    pub(super) fn new(common: &BenchCommon, has_weights: bool) -> anyhow::Result<Self> {
        let bar = if console::Term::stderr().is_term() {
            ProgressBar::new_spinner()
        } else {
            ProgressBar::hidden()
        };
        bar.enable_steady_tick(Duration::from_millis(200));
        let model = model::find(common, has_weights, &bar)?;
        let prompter = PromptEncoder::open(&source(&model))?;
        let words: Vec<_> = WORDS.into_iter().filter(|word| prompter.count(word) == 1).collect();
        if words.is_empty() {
            bail!("{}: its vocabulary has no word that is a single token", prompter.model().name);
        }
        let numerics = prompter.model().numerics.clone();
        Ok(Self { common: common.clone(), model, prompter, words, n_texts: 0, numerics, bar })
    }

    /// The model's name, shape and identity.
    pub(super) fn info(&self) -> &ModelInfo {
        self.prompter.model()
    }

    /// Memory that one agent's cache takes.
    pub(super) fn cost(&self) -> anyhow::Result<KvCost> {
        Ok(self.prompter.kv_cost(self.common.kv.choice())?)
    }

    /// Repetitions of each measurement, counted from 0.
    pub(super) fn repeats(&self) -> std::ops::Range<u16> {
        0..self.common.repeat
    }

    /// The engine's configuration.
    pub(super) fn config(&self, cache_dir: Option<&Path>) -> EmbeddedConfig {
        EmbeddedConfig {
            device: self.common.device.clone(),
            kv: self.common.kv.clone(),
            cache_dir: cache_dir.map(Path::to_path_buf),
            threads: self.common.threads.map(usize::from),
            ..EmbeddedConfig::new(self.model.clone())
        }
    }

    /// Opens the engine and lets it touch all weights once; sessions are kept on disk if there is a cache
    /// folder.
    pub(super) fn open(&mut self, cache_dir: Option<&Path>) -> anyhow::Result<Lab> {
        self.open_with(&self.config(cache_dir))
    }

    /// [`Bench::open`] with another configuration.
    pub(super) fn open_with(&mut self, config: &EmbeddedConfig) -> anyhow::Result<Lab> {
        self.open_engine(config.engine())
    }

    /// [`Bench::open`], without guesses: each pass says one token.
    pub(super) fn open_without_guesses(&mut self, cache_dir: Option<&Path>) -> anyhow::Result<Lab> {
        let mut config = self.config(cache_dir).engine();
        config.drafts = false;
        self.open_engine(config)
    }

    fn open_engine(&mut self, config: EngineConfig) -> anyhow::Result<Lab> {
        self.show_activity("loading the model");
        let (began, persistent) = (Instant::now(), config.cache_dir.is_some());
        let engine = Engine::open(config)
            .map_err(worded)
            .with_context(|| format!("can't open the model {}", self.model))?;
        self.numerics.clone_from(&engine.model().numerics);
        let lab = Lab { engine, persistent: false, load_ms: 0.0 };
        let agent = self.agent();
        let text = self.text(&agent, 1)?;
        lab.turn(&agent, Ask { text, n_tokens: 1, cold: true })?;
        lab.forget(&agent);
        Ok(Lab { persistent, load_ms: began.elapsed().as_secs_f64() * 1e3, ..lab })
    }

    /// Shows the current activity on a terminal.
    pub(super) fn show_activity(&self, what: impl Into<String>) {
        self.bar.set_message(what.into());
    }

    /// A new agent that has read nothing.
    pub(super) fn agent(&mut self) -> Player {
        self.n_texts += 1;
        let key = SessionKey::new("bench", format!("agent {}", self.n_texts));
        Player { key, conversation: Conversation::default(), next_use: None }
    }

    /// A text never read before, for the agent's next turn, such that its whole prompt comes to `n` tokens
    /// (or to as few more as the chat template needs).
    pub(super) fn text(&mut self, agent: &Player, n: usize) -> anyhow::Result<String> {
        self.n_texts += 1;
        let mut conversation = agent.conversation.clone();
        // The number comes first: equal blocks of different agents would be found by their content.
        conversation.next = format!("{}:", self.n_texts);
        let missing = n.saturating_sub(self.prompter.prompt_tokens(&conversation)?);
        let words = (0..missing).map(|i| self.words[(i * i + i / 7 + self.n_texts) % self.words.len()]);
        Ok(conversation.next + &words.collect::<String>())
    }

    /// A text of `n` more tokens than the agent has read and said.
    pub(super) fn more(&mut self, agent: &Player, timed: &Timed, n: usize) -> anyhow::Result<String> {
        self.text(agent, timed.read() + timed.n_tokens() + n)
    }

    /// An agent that has read and said `depth` tokens (or the few more that the chat template needs), and the
    /// turn in which it did; it generated one of them.
    pub(super) fn primed(&mut self, lab: &Lab, depth: usize) -> anyhow::Result<(Player, Timed)> {
        let mut tries = 0;
        loop {
            let mut agent = self.agent();
            let text = self.text(&agent, depth.saturating_sub(1))?;
            let timed = lab.turn(&agent, Ask { text, n_tokens: 1, cold: true })?;
            tries += 1;
            // Half a character is cut off a reply; the history would then end one token before a block's
            // border, and a turn that goes back to it would read that block again.
            if timed.n_tokens() == 1 || tries == 8 {
                agent.remember(&timed);
                return Ok((agent, timed));
            }
            lab.forget(&agent);
        }
    }

    /// Shows what was found.
    pub(super) fn show(&self, figures: &Figures) -> anyhow::Result<()> {
        self.bar.finish_and_clear();
        let info = self.info();
        let command: Vec<String> = std::env::args().skip(1).collect();
        let command = format!("greenroom {}", command.join(" "));
        let date = jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string();
        let threads = self.common.threads();
        let (machine, kv) = (machine(), self.common.kv.word());
        if self.common.json {
            let facts = json!({
                "command": command,
                "date": date,
                "machine": machine,
                "model": {
                    "name": info.name,
                    "bytes": info.file_bytes,
                    "parameters": info.n_params,
                    "identity": info.identity,
                    "numerics": self.numerics,
                },
                "kv": kv,
                "device": self.common.device.to_string(),
                "threads": threads,
                "repeat": self.common.repeat,
            });
            let Value::Object(facts) = facts else { return Ok(()) };
            println!("{}", serde_json::to_string(&figures.json(facts))?);
            return Ok(());
        }
        let cpu = machine["cpu"].as_str().unwrap_or_default();
        let memory = bytes(machine["memory_bytes"].as_u64().unwrap_or_default());
        println!("{cpu}, {threads} of {} cores, {memory}", machine["cores"]);
        println!("{} ({}), {kv} cache, {}", info.name, bytes(info.file_bytes), self.numerics);
        println!("{date}, {command}");
        print!("{}", figures.text());
        Ok(())
    }
}

impl Player {
    /// The first message that it has read; empty if it has read nothing.
    pub(super) fn first_text(&self) -> &str {
        self.conversation.exchanges.first().map_or("", |exchange| exchange.user.as_str())
    }

    /// The turn becomes part of what the agent has read and said. Without this call the next turn rolls back
    /// to before it.
    pub(super) fn remember(&mut self, timed: &Timed) {
        self.conversation.exchanges.push(timed.exchange.clone());
    }
}

impl Lab {
    /// Starts a greedy turn.
    pub(super) fn submit(&self, agent: &Player, ask: Ask) -> anyhow::Result<Pending> {
        self.submit_with(agent, ask, Sampling { temperature: 0.0, ..Sampling::default() })
    }

    fn submit_with(&self, agent: &Player, ask: Ask, sampling: Sampling) -> anyhow::Result<Pending> {
        let Ask { text, n_tokens, cold } = ask;
        let mut conversation = agent.conversation.clone();
        conversation.next.clone_from(&text);
        let submitted = Instant::now();
        let turn = self.engine.submit(Request {
            retention: if self.persistent { Retention::Persistent } else { Retention::Ephemeral },
            sampling,
            max_tokens: n_tokens,
            min_tokens: n_tokens,
            next_use: agent.next_use,
            cold,
            ..Request::new(agent.key.clone(), conversation)
        })?;
        Ok(Pending { turn, submitted, ended: None, text })
    }

    /// One turn, alone.
    pub(super) fn turn(&self, agent: &Player, ask: Ask) -> anyhow::Result<Timed> {
        self.submit(agent, ask)?.wait()
    }

    /// The same, with other settings than greedy.
    pub(super) fn turn_with(&self, agent: &Player, ask: Ask, sampling: Sampling) -> anyhow::Result<Timed> {
        self.submit_with(agent, ask, sampling)?.wait()
    }

    /// Turns of several agents, submitted at once.
    pub(super) fn together(&self, asks: Vec<(&Player, Ask)>) -> anyhow::Result<Vec<Timed>> {
        let pending: Vec<_> =
            asks.into_iter().map(|(agent, ask)| self.submit(agent, ask)).collect::<Result<_, _>>()?;
        wait_for_all(pending)
    }

    /// Drops an agent's memory from RAM; what is on disk stays.
    pub(super) fn forget(&self, agent: &Player) {
        self.engine.forget(&agent.key);
    }
}

/// Waits on a thread each, so that the end of one is not seen late because of another.
pub(super) fn wait_for_all(pending: Vec<Pending>) -> anyhow::Result<Vec<Timed>> {
    std::thread::scope(|scope| {
        let waiting: Vec<_> = pending.into_iter().map(|turn| scope.spawn(|| turn.wait())).collect();
        let ended = waiting.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread that waited for a turn failed")))
        });
        ended.collect()
    })
}

impl Pending {
    /// Waits until the first piece of text is there, or the end.
    pub(super) fn wait_for_text(&mut self) -> anyhow::Result<()> {
        while self.ended.is_none() && !self.step()? {}
        Ok(())
    }

    /// Waits for the end; the times at which pieces of its text came.
    pub(super) fn times(mut self) -> anyhow::Result<Vec<Instant>> {
        let mut times = Vec::new();
        while self.ended.is_none() {
            if self.step()? {
                times.push(Instant::now());
            }
        }
        self.turn.blocking_commit()?;
        Ok(times)
    }

    /// Waits for the end, and saves.
    pub(super) fn wait(mut self) -> anyhow::Result<Timed> {
        while self.ended.is_none() {
            self.step()?;
        }
        let (done, completion) = self.ended.context("a turn that ended has a completion")?;
        let Completion { ids, usage, .. } = *completion;
        // The engine counts from when it started the turn, and knows its first token to the microsecond.
        let first = done - Duration::from_secs_f64((usage.total_ms - usage.ttft_ms).max(0.0) / 1e3);
        let exchange = Exchange::new(self.text, ReplyContent::Ids(ids.into()));
        let usage = self.turn.blocking_commit()?.usage;
        Ok(Timed { usage, submitted: self.submitted, first, done, exchange })
    }

    /// One event; whether it was text.
    fn step(&mut self) -> anyhow::Result<bool> {
        match self.turn.blocking_next().context("the engine ended the turn without an answer")? {
            Event::Text(_) | Event::Call(_) => return Ok(true),
            Event::Done(completion) => self.ended = Some((Instant::now(), completion)),
            Event::Failed(error) => return Err(error.into()),
            _ => {}
        }
        Ok(false)
    }
}
