//! What this machine could do at most, what a model asks of it, and how much of that is reached.

use super::lab::{Ask, Bench};
use super::report::{Figure, Figures, Row, median};
use super::speed::at_least_one;
use greenroom::backend::source;
use greenroom_engine::probes::{TokenWork, peaks};
use greenroom_engine::{Isa, Sampling};

/// Speeds as shares of what this machine's memory and arithmetic allow
///
/// First the machine's rates are measured: bytes read from memory, multiply-adds of 8-bit codes and of f32, each
/// with all threads and nothing else. A decoded token reads all weights and the cache once; a prompt's token is
/// multiplied with all weights in 8 bits, and attends in 8 bits (scores) and f32 (values). No pass can be faster.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example: greenroom-lab bench limits --model qwen2.5-coder-0.5b --tokens 512,2048")]
pub(super) struct Args {
    /// Tokens of prompts
    #[arg(
        long, value_name = "N", value_delimiter = ',', default_values_t = [512, 2048, 8000],
        value_parser = at_least_one
    )]
    tokens: Vec<usize>,
    /// Tokens in the session before decoding
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [0, 4096])]
    depth: Vec<usize>,
    /// Tokens to generate
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one)]
    decode: usize,
}

/// Tokens of a short prompt.
const SHORT: usize = 16;

impl Args {
    pub(super) fn run(&self, bench: &mut Bench) -> anyhow::Result<Figures> {
        bench.show_activity("measuring the machine");
        let peaks = peaks(bench.common.threads())?;
        let work = TokenWork::of(&source(&bench.model), bench.common.kv.choice())?;
        // Guesses would say several tokens in a pass.
        let lab = bench.open_without_guesses(None)?;
        let mut figures = Figures::default();
        for tokens in &self.tokens {
            let (mut rates, mut n) = (Vec::new(), 0);
            for _ in bench.repeats() {
                bench.show_activity(format!("prefill of {tokens}"));
                let agent = bench.agent();
                let text = bench.text(&agent, *tokens)?;
                let timed = lab.turn(&agent, Ask { text, n_tokens: 1, cold: true })?;
                lab.forget(&agent);
                n = timed.computed();
                rates.push(timed.prefill_rate());
            }
            figures.rows.push(row("prefill", (0, n), rates, work.prefill_seconds(n, &peaks)));
        }
        for depth in &self.depth {
            bench.show_activity(format!("reading {depth} tokens of history"));
            let (agent, primed) = bench.primed(&lab, *depth)?;
            let (mut rates, mut n) = (Vec::new(), 0);
            for seed in bench.repeats() {
                bench.show_activity(format!("decoding at depth {depth}"));
                let text = bench.more(&agent, &primed, SHORT)?;
                let ask = Ask { text, n_tokens: self.decode, cold: false };
                let hot = Sampling { temperature: 1.0, seed: seed.into(), ..Sampling::default() };
                let timed = lab.turn_with(&agent, ask, hot)?;
                n = timed.read();
                rates.push(timed.decode_rate());
            }
            lab.forget(&agent);
            let seconds = work.decode_seconds(n + self.decode / 2, &peaks);
            let all = self.decode as f64;
            let seconds = (seconds.0 * all, seconds.1 * all);
            figures.rows.push(row("decode", (n, self.decode), rates, seconds));
        }
        figures.notes.push(format!(
            "Machine: {:.1} GB/s read from memory, {:.2} T multiply-adds/s of 8-bit codes, {:.2} T of f32; {}.",
            peaks.bytes / 1e9,
            peaks.int8_macs / 1e12,
            peaks.f32_macs / 1e12,
            Isa::detect().name()
        ));
        figures.notes.push(format!(
            "Model: a decoded token reads {:.0} MB of weights, a prompt's token takes {:.2} G multiply-adds with \
             them. Decoding at temperature 1, without guesses.",
            work.weight_bytes as f64 / 1e6,
            work.weight_macs as f64 / 1e9
        ));
        Ok(figures)
    }
}

/// Seconds are those that it takes at least: with weights, and with what is attended to.
fn row(what: &str, (depth, tokens): (usize, usize), rates: Vec<f64>, (weights, context): (f64, f64)) -> Row {
    let limit = tokens as f64 / (weights + context);
    let share = median(&rates) / limit;
    vec![
        ("what", Figure::Text(what.to_owned())),
        ("depth", Figure::Count(depth)),
        ("tokens", Figure::Count(tokens)),
        ("tokens_per_s", Figure::Measured(rates)),
        ("limit", Figure::Measured(vec![limit])),
        ("share_of_limit", Figure::Ratio(share)),
        ("context_share", Figure::Ratio(context / (weights + context))),
    ]
}
