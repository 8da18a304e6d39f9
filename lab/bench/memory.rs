//! Peak memory of a process with a long context, by cache format, with a process for each.

use super::lab::{Ask, Bench};
use super::process::{in_a_process, peak_bytes};
use super::report::{Figure, Figures, Row};
use super::speed::at_least_one;

/// Peak memory with a long context, f16 compared with q4 (each in its own process; Linux)
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example: greenroom-lab bench memory --shape 1b --context 16384")]
pub(super) struct Args {
    /// Tokens in the prompt
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
            bench.show_activity(format!("{} tokens with a {kv} cache", self.context));
            figures.rows.push(self.in_a_process(bench, kv)?);
        }
        figures.notes.push(
            "Peak: VmHWM, including mapped pages of the model file. Rest: peak minus model file and cache."
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
        let (file, cache) = (bench.info().file_bytes, bench.cost()?.mean(n as u64));
        let peak = peak_bytes()?;
        Ok(vec![
            ("kv", Figure::Text(bench.common.kv.word().to_owned())),
            ("tokens", Figure::Count(n)),
            ("model_file", Figure::Bytes(file)),
            ("cache", Figure::Bytes(cache)),
            ("peak", Figure::Bytes(peak)),
            ("rest", Figure::Bytes(peak.saturating_sub(file + cache))),
        ])
    }

    /// The row that this program finds when it measures one format.
    fn in_a_process(&self, bench: &mut Bench, kv: &str) -> anyhow::Result<Row> {
        let context = self.context.to_string();
        let answer = in_a_process(bench, &["memory", "--here", "--context", &context, "--kv", kv])?;
        Ok(vec![
            answer.text("kv")?,
            answer.count("tokens")?,
            answer.bytes("model_file")?,
            answer.bytes("cache")?,
            answer.bytes("peak")?,
            answer.bytes("rest")?,
        ])
    }
}
