//! More agents than fit in memory, speaking in turn: what is evicted and reloaded, without changing any
//! reply.

use super::lab::{Ask, Bench, Lab, Timed};
use super::process::{Answer, in_a_process, peak_bytes};
use super::report::{Figure, Figures, Row};
use super::speed::{at_least_one, measured};
use anyhow::ensure;
use clap::ValueEnum;
use greenroom::backend::EmbeddedConfig;
use std::collections::BTreeMap;

/// Many agents with memory for a few: eviction by plan and by last use, compared with memory for all (Linux)
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example: greenroom-lab bench pressure --shape 1b --agents 40 --tokens 2048 --fit 6")]
pub(super) struct Args {
    /// Number of agents; they speak in turn
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = at_least_one)]
    agents: usize,
    /// Tokens that each agent reads first; the texts differ
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = at_least_one)]
    tokens: usize,
    /// Number of agents that fit in memory
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = at_least_one)]
    fit: usize,
    /// Number of rounds after that
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = at_least_one)]
    rounds: usize,
    /// New tokens in each turn of these rounds
    #[arg(long, value_name = "N", default_value_t = 32)]
    question: usize,
    /// Tokens in a reply
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = at_least_one)]
    reply: usize,
    /// Measure one way in this process
    #[arg(long, hide = true, value_name = "EVICTION")]
    here: Option<Eviction>,
}

/// Choice of the agent that leaves memory when it is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Eviction {
    /// Nobody: there is memory for all.
    None,
    /// The agent that speaks last of all, as the plan has it (Belady).
    NextUse,
    /// The agent that spoke longest ago.
    Lru,
}

impl Args {
    pub(super) fn run(&self, bench: &mut Bench) -> anyhow::Result<Figures> {
        if let Some(eviction) = self.here {
            return Ok(Figures { rows: vec![self.measure(bench, eviction)?], notes: Vec::new() });
        }
        let mut answers = Vec::new();
        for eviction in Eviction::value_variants() {
            bench.show_activity(format!("{} agents, eviction: {}", self.agents, eviction.word()));
            answers.push(self.in_a_process(bench, *eviction)?);
        }
        let replies = answers.iter().map(|answer| answer.text("replies")).collect::<Result<Vec<_>, _>>()?;
        let is_equal = replies.windows(2).all(|pair| pair[0] == pair[1]);
        let notes = vec![
            format!(
                "{} agents that have read {} tokens each speak in turn for {} rounds, with memory for {} of \
                 them. Turns, tokens and times are those of these rounds. Waited: time spent waiting for \
                 memories to be read; hidden: reading while others spoke. Peak: VmHWM, including mapped \
                 pages of the model file. Rest: peak minus model file and budget.",
                self.agents, self.tokens, self.rounds, self.fit
            ),
            format!("All replies of the three runs are {}.", if is_equal { "equal" } else { "NOT EQUAL" }),
        ];
        Ok(Figures { rows: answers.iter().map(row).collect::<Result<_, _>>()?, notes })
    }

    fn in_a_process(&self, bench: &mut Bench, eviction: Eviction) -> anyhow::Result<Answer> {
        let Self { agents, tokens, fit, rounds, question, reply, here: _ } = self;
        let numbers = [
            ("--agents", agents),
            ("--tokens", tokens),
            ("--fit", fit),
            ("--rounds", rounds),
            ("--question", question),
            ("--reply", reply),
        ];
        let numbers = numbers.map(|(name, n)| [name.to_owned(), n.to_string()]);
        let mut args = vec!["pressure", "--here", eviction.word()];
        args.extend(numbers.as_flattened().iter().map(String::as_str));
        in_a_process(bench, &args)
    }

    fn measure(&self, bench: &mut Bench, eviction: Eviction) -> anyhow::Result<Row> {
        let folder = tempfile::tempdir()?;
        let most = self.tokens + self.reply + self.rounds * (self.question + self.reply);
        let n_fit = if eviction == Eviction::None { self.agents } else { self.fit };
        let budget = bench.cost()?.most(most as u64) * n_fit as u64;
        let cache_memory = if eviction == Eviction::None { u64::MAX } else { budget };
        let config = EmbeddedConfig { cache_memory, ..bench.config(Some(folder.path())) };
        let lab = bench.open_with(&config)?;
        let (turns, replies) = self.play(bench, &lab, eviction)?;
        let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
        turns.iter().for_each(|turn| *kinds.entry(turn.kind()).or_default() += 1);
        let kinds: Vec<_> = kinds.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
        let (file, peak) = (bench.info().file_bytes, peak_bytes()?);
        Ok(vec![
            ("eviction", Figure::Text(eviction.word().to_owned())),
            ("turns", Figure::Text(kinds.join(", "))),
            ("from_disk", Figure::Count(turns.iter().filter(|turn| turn.usage.bytes_read > 0).count())),
            ("reloaded", Figure::Bytes(turns.iter().map(|turn| turn.usage.bytes_read).sum())),
            ("recomputed", Figure::Count(turns.iter().map(|turn| turn.usage.recomputed).sum())),
            ("waited_ms", sum(&turns, |turn| turn.usage.waited_ms)),
            ("prefetch_ms", sum(&turns, |turn| turn.usage.prefetch_ms)),
            ("ttft_ms", measured(&turns, Timed::ttft_ms)),
            ("model_file", Figure::Bytes(file)),
            ("budget", Figure::Bytes(budget)),
            ("peak", Figure::Bytes(peak)),
            ("rest", Figure::Bytes(peak.saturating_sub(file + budget))),
            ("replies", Figure::Text(replies)),
        ])
    }

    /// The turns after the first round, and a hash of all replies.
    fn play(&self, bench: &mut Bench, lab: &Lab, eviction: Eviction) -> anyhow::Result<(Vec<Timed>, String)> {
        let mut agents: Vec<_> = (0..self.agents).map(|_| (bench.agent(), None)).collect();
        let (mut turns, mut replies) = (Vec::new(), blake3::Hasher::new());
        for round in 0..=self.rounds {
            for (n, (agent, last)) in agents.iter_mut().enumerate() {
                bench.show_activity(format!(
                    "round {round} of {}, agent {} of {}",
                    self.rounds,
                    n + 1,
                    self.agents
                ));
                let next = (round < self.rounds).then_some((round + 1) * self.agents + n);
                agent.next_use = next.filter(|_| eviction != Eviction::Lru).map(|next| next as u64);
                let text = match last {
                    None => bench.text(agent, self.tokens)?,
                    Some(last) => bench.more(agent, last, self.question)?,
                };
                let turn = lab.turn(agent, Ask { text, n_tokens: self.reply, cold: false })?;
                agent.remember(&turn);
                let ids: Vec<u8> = turn.ids().iter().flat_map(|id| id.to_le_bytes()).collect();
                replies.update(&(ids.len() as u64).to_le_bytes()).update(&ids);
                if let Some(earlier) = last.replace(turn.clone()) {
                    ensure!(earlier.read() < turn.read(), "a turn read nothing new");
                    turns.push(turn);
                }
            }
        }
        Ok((turns, replies.finalize().to_hex()[..16].to_owned()))
    }
}

fn sum(turns: &[Timed], of: impl Fn(&Timed) -> f64) -> Figure {
    Figure::Count(turns.iter().map(of).sum::<f64>().round() as usize)
}

impl Eviction {
    fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::NextUse => "next-use",
            Self::Lru => "lru",
        }
    }
}

/// Row of the figures that [`Args::measure`] found in its process.
fn row(answer: &Answer) -> anyhow::Result<Row> {
    Ok(vec![
        answer.text("eviction")?,
        answer.text("turns")?,
        answer.count("from_disk")?,
        answer.bytes("reloaded")?,
        answer.count("recomputed")?,
        answer.count("waited_ms")?,
        answer.count("prefetch_ms")?,
        answer.measured("ttft_ms")?,
        answer.bytes("model_file")?,
        answer.bytes("budget")?,
        answer.bytes("peak")?,
        answer.bytes("rest")?,
        answer.text("replies")?,
    ])
}
