//! `greenroom-lab perplexity`: the cost of a compressed cache, measured by the likelihood of a text.

use crate::quality::{Format, QualityCommon, Subject, TextArgs};
use anyhow::ensure;
use greenroom::backend::Kv;
use greenroom::commands::Exit;
use greenroom::terminal::table;
use greenroom_engine::FormatDivergence;
use serde_json::json;

/// Measure a text's perplexity with several cache formats, compared with the first
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: greenroom-lab perplexity --text story.txt --kv f16,q8,q4,q4-plain,kv_config.json\n\
                  \nThe text is read in windows of --ctx tokens, --stride tokens apart, each from an empty \
                  cache (and the begin-of-sequence token, if the model has one); a token is counted in the \
                  first window that contains it. All formats read each step side by side; the others are \
                  compared with the first."
)]
pub(super) struct Args {
    #[command(flatten)]
    common: QualityCommon,
    #[command(flatten)]
    text: TextArgs,
    /// Formats to compare: auto, f16, q8, q8/q4 (keys/values), q4-m, q4, q8-plain and q4-plain (not rotated),
    /// files from `kv-config`
    #[arg(long, value_name = "KV,…", value_delimiter = ',', default_value = "f16,q8,q4,q4-plain,auto")]
    kv: Vec<Kv>,
    /// Tokens in a window [default: 2048, or the model's context]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    ctx: Option<u32>,
    /// Tokens from one window's start to the next [default: half of --ctx]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    stride: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A window of the text: where it begins and ends, and the first of its tokens that is counted.
#[derive(Debug, PartialEq, Eq)]
struct Window {
    start: usize,
    counted: usize,
    end: usize,
}

/// Windows of `ctx` tokens, `stride` apart, over `n` tokens: every token except the first is counted once.
fn windows(n: usize, ctx: usize, stride: usize) -> Vec<Window> {
    let mut all: Vec<Window> = Vec::new();
    for start in (0..).step_by(stride) {
        let counted = all.last().map_or(start + 1, |last| last.end);
        let end = (start + ctx).min(n);
        if counted < end {
            all.push(Window { start, counted, end });
        }
        if end == n {
            return all;
        }
    }
    all
}

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    let subject = args.common.open()?;
    let ids = subject.read(args.text.text.as_deref(), args.text.special)?;
    let ctx = args.ctx.map_or(2048, |n| n as usize).min(subject.context());
    let stride = args.stride.map_or(ctx / 2, |n| n as usize);
    ensure!(ctx > 2, "the model's context of {ctx} is too short");
    let room = ctx - subject.engine.begin(&[]).len();
    ensure!(stride < room, "--stride {stride} skips tokens: a window has room for {room} tokens of the text");
    ensure!(ids.len() > 1, "the text has {} tokens; at least two are needed", ids.len());
    let windows = windows(ids.len(), room, stride);
    let formats = subject.formats(&args.kv)?;
    let n_read = windows.iter().map(|w| w.end - w.start + ctx - room).sum::<usize>();
    let (n, n_formats) = (ids.len(), formats.len());
    let bar = subject.progress(
        n_read,
        &format!(
            "{n} tokens in windows of {ctx}, {stride} apart: {n_read} to read with each of {n_formats} caches"
        ),
    );
    let choices: Vec<_> = formats.iter().map(|format| format.kv.choice().clone()).collect();
    let mut costs: Vec<FormatCost> = formats.iter().map(|_| FormatCost::default()).collect();
    for window in &windows {
        let window_ids = subject.engine.begin(&ids[window.start..window.end]);
        let n_begin = window_ids.len() - (window.end - window.start);
        subject.engine.compare(&window_ids, &choices, &mut |pos, found| {
            bar.inc(1);
            if window.start + pos + 1 >= window.counted + n_begin {
                costs.iter_mut().zip(found).for_each(|(cost, this)| cost.add(this, &found[0]));
            }
        })?;
    }
    bar.finish_and_clear();
    let all = formats.iter().zip(&costs).map(|(format, cost)| PerplexityRow::of(&subject, format, cost, ctx));
    let all: Vec<PerplexityRow> = all.collect::<Result<_, _>>()?;
    let first = &all[0];
    let model = &subject.prompter.model().name;
    if args.json {
        let rows: Vec<_> = all.iter().map(|row| row.json(first)).collect();
        println!("{}", json!({ "model": model, "ctx": ctx, "stride": stride, "rows": rows }));
        return Ok(Exit::Pass);
    }
    println!("{model}, {n} tokens in windows of {ctx}, {stride} apart");
    let versus = format!("vs {}", first.kv);
    let titles = [
        "cache",
        "bits",
        "perplexity",
        &versus,
        "mean KL",
        "99th percentile",
        "same top",
        "bytes per token",
        "ratio",
    ];
    println!("{}", table(&titles, all.iter().map(|row| row.cells(first)).collect(), 1));
    println!("KL: divergence of the next token's distribution from the one with {}, in nats", first.kv);
    Ok(Exit::Pass)
}

/// Figures of one format over a text's tokens.
#[derive(Default)]
struct FormatCost {
    /// Sum of the log-probabilities of the text's tokens.
    logprob: f64,
    divergences: Vec<f64>,
    same_top: usize,
}

impl FormatCost {
    /// Counts a token; `first` is the first format's result for it.
    fn add(&mut self, this: &FormatDivergence, first: &FormatDivergence) {
        let Some(logprob) = this.logprob else { return };
        self.logprob += logprob;
        self.divergences.push(this.divergence);
        self.same_top += usize::from(this.top == first.top);
    }
}

/// A row of the table.
struct PerplexityRow {
    kv: String,
    /// Bits of a cached number.
    bits: f64,
    perplexity: f64,
    /// Mean and 99th percentile of the divergences, in nats.
    divergence: [f64; 2],
    /// Share of tokens with the same most likely token as the first format.
    same_top: f64,
    bytes_per_token: f64,
    tokens: usize,
}

impl PerplexityRow {
    fn of(subject: &Subject, format: &Format, cost: &FormatCost, ctx: usize) -> anyhow::Result<Self> {
        let tokens = cost.divergences.len();
        let mut sorted = cost.divergences.clone();
        sorted.sort_by(f64::total_cmp);
        let mean = sorted.iter().sum::<f64>() / tokens as f64;
        let high = sorted[(tokens * 99).div_ceil(100).max(1) - 1];
        Ok(Self {
            kv: format.name.clone(),
            bits: subject.bits(format.kv.choice())?,
            perplexity: libm::exp(-cost.logprob / tokens as f64),
            divergence: [mean, high],
            same_top: cost.same_top as f64 / tokens as f64,
            bytes_per_token: format.cost.mean(ctx as u64) as f64 / ctx as f64,
            tokens,
        })
    }

    fn percent(&self, first: &Self) -> f64 {
        (self.perplexity / first.perplexity - 1.0) * 100.0
    }

    fn json(&self, first: &Self) -> serde_json::Value {
        let Self { kv, bits, perplexity, divergence, same_top, bytes_per_token, tokens } = self;
        json!({ "kv": kv, "bits": bits, "perplexity": perplexity, "percent": self.percent(first), "kl_mean": divergence[0],
                "kl_99": divergence[1], "same_top": same_top, "bytes_per_token": bytes_per_token,
                "bytes_ratio": bytes_per_token / first.bytes_per_token, "tokens": tokens })
    }

    fn cells(&self, first: &Self) -> Vec<String> {
        vec![
            self.kv.clone(),
            format!("{:.2}", self.bits),
            format!("{:.4}", self.perplexity),
            format!("{:+.2} %", self.percent(first)),
            format!("{:.5}", self.divergence[0]),
            format!("{:.5}", self.divergence[1]),
            format!("{:.2} %", self.same_top * 100.0),
            format!("{:.0}", self.bytes_per_token),
            format!("{:.3}", self.bytes_per_token / first.bytes_per_token),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_but_the_first_is_counted_once() {
        for (n, ctx, stride) in [(10, 4, 2), (11, 4, 3), (4, 8, 4), (9, 4, 1), (8, 4, 3), (2, 2, 1)] {
            let all = windows(n, ctx, stride);
            let counted: Vec<usize> = all.iter().flat_map(|w| w.counted..w.end).collect();
            assert_eq!(counted, (1..n).collect::<Vec<_>>(), "{n} {ctx} {stride}: {all:?}");
            assert!(all.iter().all(|w| w.end - w.start <= ctx && w.counted > w.start), "{all:?}");
        }
    }
}
