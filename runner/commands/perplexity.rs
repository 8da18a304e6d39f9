//! `greenroom perplexity`: what a compressed cache costs, in the likelihood of a text.

use super::Exit;
use super::quality::{Common, TextArgs};
use crate::backend::Kv;
use crate::terminal::table;
use anyhow::ensure;
use serde_json::json;

/// Measure a text's perplexity with caches of several formats, beside the first of them
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: greenroom perplexity --text story.txt --kv f16,q8,q4,q4-plain,kv_config.json\n\n\
The text is read in windows of --ctx tokens, each from an empty cache and --stride tokens after the one before; a token is \
counted in the first window that holds it."
)]
pub(super) struct Args {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    text: TextArgs,
    /// Formats to compare: auto, f16, q8, q4, q8-plain and q4-plain (not rotated), files of `kv-config`
    #[arg(long, value_name = "KV,…", value_delimiter = ',', default_value = "f16,q8,q4,q4-plain,auto")]
    kv: Vec<Kv>,
    /// Tokens of a window [default: 2048, or the model's context]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    ctx: Option<u32>,
    /// Tokens between the beginnings of windows [default: half of --ctx]
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

/// Windows of `ctx` tokens, `stride` apart, over `n` tokens: every token but the first is counted once.
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
    ensure!(ctx > 1, "the model's context of {ctx} is too short");
    ensure!(stride < ctx, "--stride {stride} leaves tokens out: windows are {ctx} tokens long");
    ensure!(ids.len() > 1, "the text has {} tokens; at least two are needed", ids.len());
    let windows = windows(ids.len(), ctx, stride);
    let formats = subject.formats(&args.kv)?;
    let mut found = Vec::new();
    for format in &formats {
        let (mut sum, mut n) = (0.0, 0);
        for (i, window) in windows.iter().enumerate() {
            subject.say(format!("{}: window {} of {}", format.name, i + 1, windows.len()));
            let logprobs = subject.logprobs(&ids[window.start..window.end], format.kv.choice())?;
            let counted = &logprobs[window.counted - window.start - 1..];
            (sum, n) = (sum - counted.iter().sum::<f64>(), n + counted.len());
        }
        found.push((libm::exp(sum / n as f64), n));
    }
    subject.done();
    let per_token = |i: usize| formats[i].cost.mean(ctx as u64) as f64 / ctx as f64;
    let all = found.iter().enumerate().map(|(i, (perplexity, n))| {
        let (first, bytes) = (found[0].0, per_token(i));
        (
            formats[i].name.clone(),
            *perplexity,
            (perplexity / first - 1.0) * 100.0,
            bytes,
            bytes / per_token(0),
            *n,
        )
    });
    let all: Vec<_> = all.collect();
    if args.json {
        let rows = all.iter().map(|(kv, perplexity, percent, bytes, ratio, tokens)| {
            json!({ "kv": kv, "perplexity": perplexity, "percent": percent, "bytes_per_token": bytes,
                    "bytes_ratio": ratio, "tokens": tokens })
        });
        let (model, rows) = (&subject.prompter.model().name, rows.collect::<Vec<_>>());
        println!("{}", json!({ "model": model, "ctx": ctx, "stride": stride, "rows": rows }));
        return Ok(Exit::Pass);
    }
    println!("{}, {} tokens in windows of {ctx}, {stride} apart", subject.prompter.model().name, ids.len());
    let rows = all.into_iter().map(|(kv, perplexity, percent, bytes, ratio, _)| {
        vec![
            kv,
            format!("{perplexity:.4}"),
            format!("{percent:+.2} %"),
            format!("{bytes:.0}"),
            format!("{ratio:.3}"),
        ]
    });
    let versus = format!("vs {}", formats[0].name);
    println!("{}", table(&["cache", "perplexity", &versus, "bytes a token", "ratio"], rows.collect(), 1));
    Ok(Exit::Pass)
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
