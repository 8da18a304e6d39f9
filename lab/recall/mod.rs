//! `greenroom-lab recall`: hash-hop. The prompt states pairs, then filler, and asks for the end of a chain of
//! pairs.
//!
//! The task is from OptIQ's measurements of KV precision: with a coarse cache, a model that can follow the
//! chains fails first at more hops and longer distances. Besides right and wrong it measures the margin, the
//! right value's log-probability minus the best wrong one's. The margin distinguishes caches even if a model
//! is always right, or never.

use crate::quality::{QualityCommon, Subject};
use anyhow::ensure;
use greenroom::backend::Kv;
use greenroom::commands::Exit;
use greenroom::terminal::table;
use greenroom_engine::Conversation;
use serde_json::json;

/// Ask for values stated long before, over chains of 1 to 3 hops, with several cache formats
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: greenroom-lab recall --model model.gguf --hops 1,2,3 --distance 500,2000,8000 \
                  --kv f16,q4"
)]
pub(super) struct Args {
    #[command(flatten)]
    common: QualityCommon,
    /// Formats to compare: auto, f16, q8, q8/q4 (keys/values), q4-m, q4, q8-plain and q4-plain (not rotated),
    /// files from `kv-config`
    #[arg(long, value_name = "KV,…", value_delimiter = ',', default_value = "f16,q8,q4,q4-plain,auto")]
    kv: Vec<Kv>,
    /// Lengths of the chains
    #[arg(
        long, value_name = "N,…", value_delimiter = ',', default_value = "1,2,3",
        value_parser = clap::value_parser!(u8).range(1..=3)
    )]
    hops: Vec<u8>,
    /// Approximate tokens in the prompt, most of them between the pairs and the question
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "300,600,1200")]
    distance: Vec<usize>,
    /// Questions for each cell
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u16).range(1..))]
    probes: u16,
    /// Number of pairs
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u8).range(6..=40))]
    pairs: u8,
    /// Seed for the choice of words
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Number of candidate values, including the right one.
const OPTIONS: usize = 6;

/// One question.
struct Probe {
    conversation: Conversation,
    /// The right value first.
    options: Vec<String>,
}

/// Pseudo-random numbers from a seed and a name, the same on all machines.
struct Dice(blake3::OutputReader);

impl Dice {
    fn new(seed: u64, name: &str) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("greenroom 2026 recall probe");
        Self(hasher.update(&seed.to_le_bytes()).update(name.as_bytes()).finalize_xof())
    }

    /// A number below `n`.
    fn below(&mut self, n: usize) -> usize {
        let mut bytes = [0; 8];
        self.0.fill(&mut bytes);
        (u64::from_le_bytes(bytes) % n.max(1) as u64) as usize
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

impl Probe {
    /// A question over `hops` links among `pairs`, with filler up to `length` tokens.
    fn new(subject: &Subject, dice: &mut Dice, hops: usize, pairs: usize, length: usize) -> Self {
        let mut words: Vec<&str> = include_str!("words.txt").lines().collect();
        dice.shuffle(&mut words);
        // Chains of equal length, no word twice.
        let chains: Vec<&[&str]> = words.chunks_exact(hops + 1).take((pairs / hops).max(2)).collect();
        let mut links: Vec<(&str, &str)> =
            chains.iter().flat_map(|c| c.windows(2).map(|w| (w[0], w[1]))).collect();
        dice.shuffle(&mut links);
        let mut lines: Vec<String> = links.iter().map(|(k, v)| format!("{k} = {v}")).collect();
        let (asked, right) = (chains[0][0], chains[0][hops]);
        let mut wrong: Vec<&str> = links.iter().map(|(_, v)| *v).filter(|v| *v != right).collect();
        dice.shuffle(&mut wrong);
        let question = match hops {
            1 => format!("Tom: {asked} = ?"),
            n => format!("Tom: {} steps from {asked}?", ["Two", "Three"][n - 2]),
        };
        let filler: Vec<&str> = include_str!("filler.txt").lines().collect();
        let mut tokens = 60 + subject.prompter.count(&lines.join("\n"));
        while tokens < length {
            let line = filler[dice.below(filler.len())];
            tokens += subject.prompter.count(line) + 1;
            lines.push(line.to_owned());
        }
        let next = format!("Remember these pairs.\n{}\n{question}\n[Your turn, Mara.]", lines.join("\n"));
        let system = "You are Mara, a clerk with a good memory. Answer with the word only.".to_owned();
        let conversation = Conversation { system: Some(system), next, ..Conversation::default() };
        let options =
            std::iter::once(right).chain(wrong).take(OPTIONS).map(|value| format!("{value}.")).collect();
        Self { conversation, options }
    }
}

/// Counts and margins of one cell of the table.
#[derive(Default)]
struct Point {
    greedy: usize,
    first: usize,
    margins: Vec<f64>,
    prompt_tokens: usize,
}

impl Point {
    fn add(&mut self, subject: &Subject, probe: &Probe, kv: &Kv) -> anyhow::Result<()> {
        let ranking = subject.engine.rank(&probe.conversation, &probe.options, Some(kv.choice()))?;
        let (right, wrong) = (ranking.options[0], &ranking.options[1..]);
        let best = wrong.iter().map(|option| option.logprob).fold(f32::NEG_INFINITY, f32::max);
        let margin = f64::from(right.logprob - best);
        self.greedy += usize::from(right.greedy);
        self.first += usize::from(margin > 0.0);
        self.margins.push(margin);
        self.prompt_tokens += ranking.prompt_tokens;
        Ok(())
    }
}

/// Mean and standard error.
fn mean(x: &[f64]) -> (f64, f64) {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / (n - 1.0).max(1.0);
    (mean, (variance / n).sqrt())
}

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    let subject = args.common.open()?;
    let formats = subject.formats(&args.kv)?;
    let most = args.distance.iter().copied().max().unwrap_or(0);
    ensure!(
        most.saturating_add(200) <= subject.context(),
        "a distance of {most} does not fit in the model's context of {}",
        subject.context()
    );
    let (mut rows, mut records) = (Vec::new(), Vec::new());
    for hops in &args.hops {
        for length in &args.distance {
            let mut cells: Vec<Point> = formats.iter().map(|_| Point::default()).collect();
            for i in 0..args.probes {
                subject.say(format!("{hops} hops, {length} tokens: question {} of {}", i + 1, args.probes));
                let mut dice = Dice::new(args.seed, &format!("{hops}/{length}/{i}"));
                let probe =
                    Probe::new(&subject, &mut dice, usize::from(*hops), usize::from(args.pairs), *length);
                for (cell, format) in cells.iter_mut().zip(&formats) {
                    cell.add(&subject, &probe, &format.kv)?;
                }
            }
            let n = f64::from(args.probes);
            for (cell, format) in cells.iter().zip(&formats) {
                let (margin, error) = mean(&cell.margins);
                // The same questions with both caches, because paired differences are more precise than
                // means.
                let pairs = cell.margins.iter().zip(&cells[0].margins);
                let (change, change_error) =
                    mean(&pairs.map(|(this, first)| this - first).collect::<Vec<_>>());
                let (greedy, first) = (cell.greedy as f64 / n, cell.first as f64 / n);
                let tokens = cell.prompt_tokens / usize::from(args.probes);
                records.push(json!({ "hops": hops, "tokens": tokens, "kv": format.name, "greedy": greedy,
                    "ranked_first": first, "margin": margin, "margin_error": error,
                    "change": change, "change_error": change_error, "probes": args.probes }));
                rows.push(vec![
                    hops.to_string(),
                    tokens.to_string(),
                    format.name.clone(),
                    format!("{greedy:.2}"),
                    format!("{first:.2}"),
                    format!("{margin:+.2} ± {error:.2}"),
                    format!("{change:+.3} ± {change_error:.3}"),
                ]);
            }
        }
    }
    subject.done();
    let name = &subject.prompter.model().name;
    if args.json {
        println!("{}", json!({ "model": name, "seed": args.seed, "rows": records }));
        return Ok(Exit::Pass);
    }
    let versus = format!("vs {}", formats[0].name);
    println!(
        "{name}, {} questions per cell; ranked first of {OPTIONS}; margin in nats ± standard error",
        args.probes
    );
    println!("{}", table(&["hops", "tokens", "cache", "greedy", "ranked first", "margin", &versus], rows, 3));
    Ok(Exit::Pass)
}
