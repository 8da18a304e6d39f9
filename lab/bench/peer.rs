//! Another engine on the same file, timed alternately with this one.

use super::lab::Bench;
use crate::candle::Candle;
use anyhow::Context as _;
use greenroom::backend::source;
use greenroom::commands::Exit;
use greenroom::files::{self, FileKind};
use greenroom_engine::ModelSource;
use std::io::{BufReader, Cursor};
use std::time::{Duration, Instant};

/// Engines that can be timed beside ours.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum Peer {
    /// candle-transformers' quantized llama, qwen2, qwen3 and gemma3
    Candle,
}

/// A running peer.
pub(super) struct Rival(Candle);

impl Peer {
    /// Runs the program again with `threads` for the peer, which takes their number only from the
    /// environment; `None` if this is that run.
    pub(super) fn start_again(self, threads: usize) -> anyhow::Result<Option<Exit>> {
        let Self::Candle = self;
        let names = ["RAYON_NUM_THREADS", "CANDLE_NUM_THREADS"];
        let threads = threads.to_string();
        if names.iter().all(|name| std::env::var(name).is_ok_and(|n| n == threads)) {
            return Ok(None);
        }
        let mut command = std::process::Command::new(std::env::current_exe()?);
        command.args(std::env::args_os().skip(1)).envs(names.map(|name| (name, &threads)));
        let status = command.status().context("can't start this program again")?;
        // That process has printed the error.
        Ok(Some(if status.success() { Exit::Pass } else { Exit::Environment }))
    }

    /// Loads the model of a measurement.
    pub(super) fn open(self, bench: &Bench) -> anyhow::Result<Rival> {
        let Self::Candle = self;
        bench.show_activity("loading the model into candle");
        let candle = match source(&bench.model) {
            ModelSource::Path(path) => {
                let file = files::open(&path, FileKind::Model)
                    .with_context(|| format!("can't read {}", path.display()))?;
                Candle::open(&mut BufReader::new(file))?
            }
            ModelSource::Bundled(_, bytes) => Candle::open(&mut Cursor::new(bytes))?,
            _ => anyhow::bail!("candle can't open this model"),
        };
        Ok(Rival(candle))
    }
}

impl Rival {
    /// Refuses what it can't do: `n` tokens at once after `depth` others, then `n_alone` one by one.
    pub(super) fn check(&self, depth: usize, n: usize, n_alone: usize) -> anyhow::Result<()> {
        self.0.check(depth, n)?;
        if n_alone > 0 { self.0.check(depth + n + n_alone - 1, 1) } else { Ok(()) }
    }

    /// A note for readers of its figures.
    pub(super) fn note(&self) -> String {
        let another = match self.0.family() {
            "gemma3" => " Its Gemma 3 differs: it does not use windows.",
            _ => "",
        };
        format!(
            "candle: candle-transformers on the same file with the same number of threads, keys and values \
             in f32.{another} To candle: ratio of our median to candle's. On shared cores, its threads wait \
             for each other; --threads 1 is then a better comparison."
        )
    }

    /// Tokens a second of reading `n` at once after `depth` others.
    pub(super) fn prefill(&mut self, depth: usize, n: usize) -> anyhow::Result<f64> {
        self.read(depth)?;
        let began = Instant::now();
        top(&self.0.feed(&ids(depth, n))?);
        Ok(rate(n, began.elapsed()))
    }

    /// Tokens a second of generating `n` after `depth` others.
    pub(super) fn decode(&mut self, depth: usize, n: usize) -> anyhow::Result<f64> {
        let mut next = self.read(depth)?;
        let began = Instant::now();
        for _ in 0..n {
            next = top(&self.0.feed(&[next])?);
        }
        Ok(rate(n, began.elapsed()))
    }

    /// Reads a history from the beginning; the most likely token after it.
    fn read(&mut self, depth: usize) -> anyhow::Result<u32> {
        self.0.forget();
        Ok(if depth > 0 { top(&self.0.feed(&ids(0, depth))?) } else { 0 })
    }
}

/// `n` ids at a position; speed does not depend on what they are.
fn ids(at: usize, n: usize) -> Vec<u32> {
    (at..at + n).map(|i| ((i * i + i / 7) % 256) as u32).collect()
}

/// The most likely token.
fn top(logits: &[f32]) -> u32 {
    let most = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    most.map_or(0, |(id, _)| id as u32)
}

fn rate(n: usize, time: Duration) -> f64 {
    n as f64 / time.as_secs_f64()
}
