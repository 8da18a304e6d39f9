//! Plays one scenario many times, to see what its runs share in one cache folder.

use super::lab::Bench;
use super::report::{Figure, Figures, Row};
use super::scenario::{Performance, PlayArgs, open, play};
use super::speed::at_least_one;
use greenroom::backend::Backend;
use greenroom::run::RunOptions;
use greenroom::scenario::Scenario;
use std::path::Path;
use std::sync::Arc;

/// A scenario played with many seeds, in one cache folder and in separate ones: bytes on disk, and tokens
/// prefilled
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example: greenroom-lab bench sharing --model understudy --repeats 200")]
pub(super) struct Args {
    #[command(flatten)]
    play: PlayArgs,
    /// Number of runs, with seeds 0, 1, …
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = at_least_one)]
    repeats: usize,
}

/// Cost of some runs.
#[derive(Default)]
struct SharingCost {
    /// Bytes of cache folders.
    bytes: u64,
    prefilled: usize,
    recomputed: usize,
    reused: usize,
    wall_s: f64,
}

impl Args {
    pub(super) fn run(&self, bench: &mut Bench) -> anyhow::Result<Figures> {
        let scenario = self.play.scenario()?;
        let shared = tempfile::tempdir()?;
        let together = open(bench, shared.path())?;
        let (mut one, mut separate, mut is_equal) = (SharingCost::default(), SharingCost::default(), true);
        for seed in 0..self.repeats {
            let own = tempfile::tempdir()?;
            bench.show_activity(format!("run {} of {}", seed + 1, self.repeats));
            let in_shared = self.play_on(&together, &scenario, seed)?;
            let in_own = self.play_on(&open(bench, own.path())?, &scenario, seed)?;
            is_equal &= in_shared.transcript == in_own.transcript;
            one.add(&in_shared);
            separate.add(&in_own);
            separate.bytes += bytes_in(own.path())?;
        }
        one.bytes = bytes_in(shared.path())?;
        let equal = if is_equal { "equal" } else { "NOT EQUAL" };
        let notes = vec![format!(
            "{} runs of {}, all on one engine, as `run --repeat` plays them, and on an engine for each; the \
             transcripts of both ways are {equal}. {} tokens were recomputed.",
            self.repeats,
            scenario.id,
            one.recomputed + separate.recomputed
        )];
        Ok(Figures { rows: rows(&one, &separate), notes })
    }

    /// One run; the record is deleted again.
    fn play_on(
        &self,
        backend: &Arc<dyn Backend>,
        scenario: &Arc<Scenario>,
        seed: usize,
    ) -> anyhow::Result<Performance> {
        let record = tempfile::tempdir()?;
        let options = RunOptions { seed: seed as u64, ..self.play.options() };
        play(scenario, backend, record.path(), &options)
    }
}

impl SharingCost {
    fn add(&mut self, played: &Performance) {
        self.prefilled += played.tokens.prefilled;
        self.recomputed += played.tokens.recomputed;
        self.reused += played.tokens.reused;
        self.wall_s += played.wall_s;
    }
}

fn rows(one: &SharingCost, separate: &SharingCost) -> Vec<Row> {
    let row = |what: &str, cell: &dyn Fn(&SharingCost) -> (Figure, f64)| -> Row {
        let ((one, a), (separate, b)) = (cell(one), cell(separate));
        vec![
            ("total", Figure::Text(what.to_owned())),
            ("one_folder", one),
            ("separate", separate),
            ("ratio", Figure::Ratio(a / b)),
        ]
    };
    let count = |n: usize| (Figure::Count(n), n as f64);
    vec![
        row("bytes on disk", &|cost| (Figure::Bytes(cost.bytes), cost.bytes as f64)),
        row("tokens prefilled", &|cost| count(cost.prefilled)),
        row("tokens reused", &|cost| count(cost.reused)),
        row("wall s", &|cost| (Figure::Measured(vec![cost.wall_s]), cost.wall_s)),
    ]
}

/// Bytes of all files in a folder.
fn bytes_in(folder: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() { bytes_in(&entry.path())? } else { metadata.len() };
    }
    Ok(bytes)
}
