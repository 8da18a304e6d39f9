//! `greenroom-lab simulate`: the cost of recorded runs on other engines, and at other sizes.

mod fleet;
mod play;
mod script;

use crate::bench::plot::Plot;
use crate::bench::report::{Figure, Figures, Row};
use anyhow::Context as _;
use fleet::{Capacity, Routing};
use greenroom::commands::Exit;
use play::{Outcome, Setting, play};
use script::Script;
use serde_json::json;
use std::path::PathBuf;

/// Play recorded runs against simulated engines: cache hits, time to first token, and cost
///
/// Dependencies between turns, and the lengths of prompts and replies, are those of the runs.
/// Without --agents, the runs are played once each, one after another, and compared with the recorded
/// measurements. docs/scale.md describes what is simulated and what is not.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: greenroom-lab simulate runs/gossip-1 --agents 10,1000,100000 --agents-per-worker \
                  100 --cache-tokens 200000"
)]
pub(super) struct Args {
    /// Folders of runs; if more are needed, they are repeated with other seeds
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Agents with a memory, in all active runs
    #[arg(long, value_name = "N", value_delimiter = ',')]
    agents: Vec<usize>,
    /// Runs active at once, without --agents
    #[arg(
        long, value_name = "N", default_value_t = 1, conflicts_with = "agents",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    jobs: u32,
    /// Workers
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    workers: u32,
    /// Agents per worker, which sets the number of workers
    #[arg(
        long, value_name = "N", conflicts_with = "workers", requires = "agents",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    agents_per_worker: Option<u32>,
    /// Capacity of a worker's cache, in tokens
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    cache_tokens: usize,
    /// Capacity of a worker's cache in sequences instead, like llama.cpp's slots
    #[arg(
        long, value_name = "N", conflicts_with = "cache_tokens",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    cache_sequences: Option<u32>,
    /// Tokens in a block; only whole blocks are reused [default: 16; with sequences 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    block: Option<u32>,
    /// How the worker that answers is chosen
    #[arg(
        long, value_delimiter = ',', value_name = "HOW", default_values = ["round-robin", "session", "prefix"]
    )]
    routing: Vec<Routing>,
    /// Requests that a worker answers at once [default: 8; with sequences, their number]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    slots: Option<u32>,
    /// Prompt tokens that a worker reads per second
    #[arg(long, value_name = "N", default_value_t = 10_000.0, value_parser = positive)]
    prefill: f64,
    /// Tokens generated per second for each reply
    #[arg(long, value_name = "N", default_value_t = 50.0, value_parser = positive)]
    decode: f64,
    /// Round trip to a worker in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 20.0, value_parser = positive)]
    latency: f64,
    /// Seconds between a reply and the next request
    #[arg(long, value_name = "S", default_value_t = 0.0, value_parser = positive)]
    think: f64,
    /// Seconds over which the starts of the first runs are spread
    #[arg(long, value_name = "S", default_value_t = 60.0, value_parser = positive)]
    spread: f64,
    /// Price of a worker per hour, in any currency
    #[arg(long, value_name = "PRICE", default_value_t = 2.0, value_parser = positive)]
    price: f64,
    /// Write hits.svg, ttft.svg and cost.svg, plotted over the number of agents, to this folder
    #[arg(long, value_name = "DIR", requires = "agents")]
    plots: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Rounds of all runs that are played for each number of agents: the caches fill in the first.
const ROUNDS: usize = 2;

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    let scripts = args.runs.iter().map(|run| Script::open(run)).collect::<anyhow::Result<Vec<_>>>()?;
    let figures = if args.agents.is_empty() { args.as_recorded(&scripts) } else { args.at_scale(&scripts)? };
    if args.json {
        println!(
            "{}",
            figures.json(json!({ "runs": scripts.len() }).as_object().cloned().unwrap_or_default())
        );
    } else {
        print!("{}", figures.text());
    }
    Ok(Exit::Pass)
}

impl Args {
    fn setting(&self, routing: Routing) -> Setting {
        let sequences = self.cache_sequences.map(|n| n as usize);
        Setting {
            n_workers: self.workers as usize,
            capacity: sequences.map_or(Capacity::Tokens(self.cache_tokens), Capacity::Sequences),
            block: self.block.map_or(if sequences.is_some() { 1 } else { 16 }, |n| n as usize),
            routing,
            slots: self
                .slots
                .map_or(sequences.unwrap_or(8), |n| n as usize)
                .min(sequences.unwrap_or(usize::MAX)),
            prefill: self.prefill.max(f64::MIN_POSITIVE),
            decode: self.decode.max(f64::MIN_POSITIVE),
            latency: self.latency / 1e3,
            think: self.think,
            n_runs: 0,
            at_once: self.jobs as usize,
            spread: 0.0,
        }
    }

    /// Plays each run once, for comparison with the measurements.
    fn as_recorded(&self, scripts: &[Script]) -> Figures {
        let scripts: &[Script] = &scripts.iter().map(Script::as_played).collect::<Vec<_>>();
        let steps = || scripts.iter().flat_map(|script| &script.steps);
        let measured = steps().map(|step| step.reused).sum::<usize>();
        let mut figures = Figures::default();
        for routing in &self.routing {
            let setting = Setting { n_runs: scripts.len(), ..self.setting(*routing) };
            let outcome = play(scripts, setting);
            let measured = percent(measured, outcome.prompts);
            let simulated = percent(outcome.reused, outcome.prompts);
            let mut row: Row = vec![("routing", Figure::Text(name(*routing)))];
            row.extend(hits(&outcome));
            row.push(("measured_percent", Figure::Measured(vec![measured])));
            row.push(("difference_in_points", Figure::Measured(vec![simulated - measured])));
            figures.rows.push(row);
        }
        figures.notes.push(
            "Hits: prompt tokens that were not computed, as a share of all prompt tokens. Known: tokens that \
             an agent had read or said before."
                .to_owned(),
        );
        figures
    }

    /// Many runs at once.
    fn at_scale(&self, scripts: &[Script]) -> anyhow::Result<Figures> {
        let mean = scripts.iter().map(|script| script.n_agents).sum::<usize>() as f64 / scripts.len() as f64;
        let mut figures = Figures::default();
        let (mut hit, mut ttft, mut cost) = (Vec::new(), Vec::new(), Vec::new());
        for routing in &self.routing {
            let mut lines = [const { Vec::new() }; 3];
            for agents in &self.agents {
                let at_once = ((*agents as f64 / mean.max(1.0)).round() as usize).max(1);
                let setting = self.setting(*routing);
                let workers =
                    self.agents_per_worker.map_or(setting.n_workers, |each| agents.div_ceil(each as usize));
                let setting = Setting {
                    n_workers: workers.max(1),
                    n_runs: at_once * ROUNDS,
                    at_once,
                    spread: self.spread,
                    ..setting
                };
                let outcome = play(scripts, setting);
                let seconds = setting.n_workers as f64 * outcome.seconds;
                let price = self.price * seconds / 3600.0 / outcome.requests as f64 * 1e3;
                let [median, late] = [0.5, 0.99].map(|share| outcome.ttft_at(share) * 1e3);
                let x = *agents as f64;
                lines[0].push((x, percent(outcome.reused, outcome.prompts)));
                lines[1].push((x, late));
                lines[2].push((x, price));
                let mut row: Row = vec![
                    ("routing", Figure::Text(name(*routing))),
                    ("agents", Figure::Count(*agents)),
                    ("workers", Figure::Count(setting.n_workers)),
                    ("requests", Figure::Count(outcome.requests)),
                ];
                row.extend(hits(&outcome));
                row.push(("ttft_ms", Figure::Measured(vec![median])));
                row.push(("ttft_p99_ms", Figure::Measured(vec![late])));
                row.push((
                    "requests_per_s",
                    Figure::Measured(vec![outcome.requests as f64 / outcome.seconds]),
                ));
                row.push(("price_per_1000", Figure::Measured(vec![price])));
                figures.rows.push(row);
            }
            let [hits, late, price] = lines;
            let name = match routing {
                Routing::RoundRobin => "round robin",
                Routing::Session => "session",
                Routing::Prefix => "prefix",
            };
            hit.push((name, hits));
            ttft.push((name, late));
            cost.push((name, price));
        }
        if let Some(folder) = &self.plots {
            std::fs::create_dir_all(folder).with_context(|| format!("can't make {}", folder.display()))?;
            for (file, what, unit, lines) in [
                ("hits", "Cached tokens", "% of prompts", hit),
                ("ttft", "Time to first token, 99th percentile", "ms", ttft),
                ("cost", "Price of 1,000 turns", "price", cost),
            ] {
                let plot = Plot { title: what.to_owned(), axes: ["agents", unit], lines };
                plot.draw(&folder.join(file).with_extension("svg"))?;
            }
        }
        Ok(figures)
    }
}

fn hits(outcome: &Outcome) -> Row {
    vec![
        ("prompt_tokens", Figure::Count(outcome.prompts)),
        ("known_percent", Figure::Measured(vec![percent(outcome.known, outcome.prompts)])),
        ("hit_percent", Figure::Measured(vec![percent(outcome.reused, outcome.prompts)])),
    ]
}

fn percent(part: usize, whole: usize) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

fn name(routing: Routing) -> String {
    use clap::ValueEnum as _;
    routing.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
}

fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if number.is_finite() && number >= 0.0 { Ok(number) } else { Err(format!("{text}: expected 0 or more")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use script::Step;

    /// Two agents who speak in turn: prompts of 100 tokens more each time, of which 60 are the same in all
    /// runs.
    fn script(n_turns: usize) -> Script {
        let step = |i: usize| {
            let (memory, round) = (i % 2, i / 2);
            let after = if i == 0 { Vec::new() } else { vec![i - 1] };
            Step {
                memory,
                prompt: 100 * (round + 1),
                known: 100 * round,
                reply: 20,
                after,
                ..Step::default()
            }
        };
        let alike = vec![vec![60, 10], vec![10, 60]];
        Script { steps: (0..n_turns).map(step).collect(), n_agents: 2, alike }
    }

    fn setting() -> Setting {
        Setting {
            n_workers: 1,
            capacity: Capacity::Tokens(10_000),
            block: 1,
            routing: Routing::RoundRobin,
            slots: 8,
            prefill: 1000.0,
            decode: 20.0,
            latency: 0.0,
            think: 0.0,
            n_runs: 1,
            at_once: 1,
            spread: 0.0,
        }
    }

    #[test]
    fn one_worker_with_room_reads_nothing_twice() {
        let outcome = play(&[script(6)], setting());
        assert_eq!((outcome.requests, outcome.prompts, outcome.known), (6, 1200, 600));
        assert_eq!(outcome.reused, 600);
        // Each prompt has 100 new tokens, each reply takes a second.
        assert!(outcome.ttft.iter().all(|seconds| (seconds - 0.1).abs() < 1e-9), "{:?}", outcome.ttft);
        assert!((outcome.seconds - 6.6).abs() < 1e-9);
        // Blocks round down; another run's reading of the same text helps.
        assert_eq!(play(&[script(6)], Setting { block: 64, ..setting() }).reused, 2 * (64 + 192));
        assert_eq!(play(&[script(6)], Setting { n_runs: 2, ..setting() }).reused, 1200 + 2 * 60);
    }

    #[test]
    fn round_robin_over_two_workers_finds_the_turn_before_elsewhere() {
        // Two agents alternate, so each worker always has the same one; of three workers none has the last
        // turn.
        let workers = |n_workers| Setting { n_workers, ..setting() };
        assert_eq!(play(&[script(6)], workers(2)).reused, 600);
        let lost = play(&[script(6)], workers(3)).reused;
        assert!(lost < 300, "{lost}");
        let routed = |routing| play(&[script(6)], Setting { routing, ..workers(3) }).reused;
        assert_eq!((routed(Routing::Session), routed(Routing::Prefix)), (600, 600));
    }

    #[test]
    fn a_cache_that_is_too_small_forgets_what_was_used_longest_ago() {
        let of = |capacity| play(&[script(8)], Setting { capacity, ..setting() }).reused;
        assert_eq!(of(Capacity::Tokens(10_000)), 2 * (100 + 200 + 300));
        let small = of(Capacity::Tokens(450));
        assert!((100..1200).contains(&small), "{small}");
        assert_eq!(of(Capacity::Sequences(2)), 1200);
        // With one slot each agent finds the other's sequence: the ten tokens that they have in common are
        // too few to count.
        assert_eq!(of(Capacity::Sequences(1)), 0);
    }

    #[test]
    fn turns_that_did_not_overlap_do_not_overlap_again() {
        let step = |memory: usize, began: f64, ended: f64| Step {
            memory,
            prompt: 10,
            began,
            ended,
            ..Step::default()
        };
        let steps =
            vec![step(0, 200.0, 300.0), step(1, 0.0, 100.0), step(2, 99.0, 198.0), step(3, 110.0, 290.0)];
        let played = Script { steps, ..script(0) }.as_played();
        let order: Vec<usize> = played.steps.iter().map(|step| step.memory).collect();
        let after: Vec<Vec<usize>> = played.steps.iter().map(|step| step.after.clone()).collect();
        assert_eq!(order, [1, 2, 3, 0]);
        assert_eq!(after, [vec![], vec![0], vec![0], vec![0, 1]]);
        // Where a trace does not say when turns ended, they stay as they are.
        assert_eq!(script(4).as_played().steps, script(4).steps);
    }

    #[test]
    fn requests_wait_for_slots_and_for_prompts_that_are_read() {
        let many = Setting { n_runs: 4, at_once: 4, slots: 1, ..setting() };
        let outcome = play(&[script(1)], many);
        let expected = [0.1, 1.14, 2.18, 3.22];
        let alike = outcome.ttft.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9);
        assert!(alike, "{:?}", outcome.ttft);
        let outcome = play(&[script(1)], Setting { slots: 4, ..many });
        assert!(outcome.ttft_at(1.0) < 0.5 && outcome.ttft_at(0.0) < 0.11, "{:?}", outcome.ttft);
    }
}
