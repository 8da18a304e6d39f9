//! Most memory that a process takes with a long context, by cache format: a process for each.

use super::lab::{Ask, Bench};
use super::report::{Cell, Figures, Row};
use super::speed::at_least_one;
use anyhow::{Context as _, bail};
use serde_json::Value;
use std::process::Command;

/// Peak memory with a long context, f16 against q4 (each in a process of its own; Linux)
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example: greenroom bench memory --shape 1b --context 16384")]
pub(super) struct Args {
    /// Tokens of the prompt
    #[arg(long, value_name = "N", default_value_t = 16384, value_parser = at_least_one)]
    context: usize,
    /// Measure the format of --kv in this process
    #[arg(long, hide = true)]
    here: bool,
}

/// Tokens that are generated after the prompt.
const N_TOKENS: usize = 16;

impl Args {
    pub(super) fn run(&self, bench: &mut Bench) -> anyhow::Result<Figures> {
        if self.here {
            return Ok(Figures { rows: vec![self.measure(bench)?], notes: Vec::new() });
        }
        let mut figures = Figures::default();
        for kv in ["f16", "q4"] {
            bench.say(format!("{} tokens with a {kv} cache", self.context));
            figures.rows.push(self.in_a_process(bench, kv)?);
        }
        figures.notes.push(
            "Peak: VmHWM, mapped pages of the model file included. Rest: peak less model file and cache."
                .to_owned(),
        );
        Ok(figures)
    }

    fn measure(&self, bench: &mut Bench) -> anyhow::Result<Row> {
        let lab = bench.open(None)?;
        let agent = bench.agent();
        let text = bench.text(&agent, self.context)?;
        let timed = lab.turn(&agent, Ask { text, n_tokens: N_TOKENS, cold: true })?;
        let n = timed.computed() + timed.usage.generated;
        let (file, cache) = (bench.info().file_bytes, bench.cache_bytes(n)?);
        let peak = peak_bytes()?;
        Ok(vec![
            ("kv", Cell::Text(bench.common.kv.word().to_owned())),
            ("tokens", Cell::Count(n)),
            ("model_file", Cell::Bytes(file)),
            ("cache", Cell::Bytes(cache)),
            ("peak", Cell::Bytes(peak)),
            ("rest", Cell::Bytes(peak.saturating_sub(file + cache))),
        ])
    }

    /// The row that this program finds when it measures one format.
    fn in_a_process(&self, bench: &Bench, kv: &str) -> anyhow::Result<Row> {
        let common = &bench.common;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "memory", "--here", "--json", "--kv", kv]);
        command.args(["--context", &self.context.to_string()]);
        match &common.model {
            Some(model) => command.args(["--model", model]),
            None => command.args(["--shape", &common.shape, "--weights", &common.weights]),
        };
        if let Some(folder) = &common.shape_dir {
            command.arg("--shape-dir").arg(folder);
        }
        if let Some(threads) = common.threads {
            command.args(["--threads", &threads.to_string()]);
        }
        let output = command.output().context("can't start this program again")?;
        if !output.status.success() {
            bail!("with a {kv} cache: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let answer: Value = serde_json::from_slice(&output.stdout)?;
        let number = |name: &str| {
            answer["rows"][0][name].as_u64().with_context(|| format!("the process did not say its `{name}`"))
        };
        Ok(vec![
            ("kv", Cell::Text(kv.to_owned())),
            ("tokens", Cell::Count(number("tokens")? as usize)),
            ("model_file", Cell::Bytes(number("model_file")?)),
            ("cache", Cell::Bytes(number("cache")?)),
            ("peak", Cell::Bytes(number("peak")?)),
            ("rest", Cell::Bytes(number("rest")?)),
        ])
    }
}

/// The most memory that this process ever held.
fn peak_bytes() -> anyhow::Result<u64> {
    let status =
        std::fs::read_to_string("/proc/self/status").context("peak memory is known on Linux only")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    Ok(kib.context("/proc/self/status does not tell the peak memory")? * 1024)
}
