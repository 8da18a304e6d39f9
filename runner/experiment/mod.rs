//! Many runs of one scenario: all combinations of swept variables' values (the cells), each with the same
//! seeds.
//!
//! [`Design`] defines the runs, and [`play()`] plays them into a folder: `experiment.json` first, then a
//! folder for each run. Runs are independent of each other and of how many are played at once, so an
//! interrupted experiment can be resumed.

mod judge;
mod play;
mod read;
mod record;
mod scores;
mod tuning;

pub use judge::{experiments, judge};
pub use play::{EndedRun, PlayedCounts, play, transcripts};
pub use read::read;
pub use record::{CellRecord, ExperimentRecord, FILE, merge, missing};
pub use scores::{SCORES, Scores, read_scores, write_scores};
pub use tuning::Tuning;

use crate::run::RunOptions;
use crate::scenario::{Agent, Scenario, parse, text_of};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use crate::statistics::CASE;

/// A variable and its values.
pub type Sweep = (String, Vec<Value>);

/// The runs to play.
#[derive(Clone, Debug)]
pub struct Design {
    /// Combinations of the swept variables' values; one without any if nothing is swept.
    pub cells: Vec<Variant>,
    /// The runs' seeds, the same in every cell, so that differences between cells of one case are not due to
    /// chance.
    pub seeds: Vec<u64>,
    /// Settings of each run, except for the seed, which is the design's.
    pub options: RunOptions,
    /// The part of the runs that is played here; `None`: all.
    pub shard: Option<Shard>,
}

/// One of several parts of an experiment's runs, each played on a separate machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Its number, from 1.
    pub number: usize,
    /// The number of parts.
    pub of: usize,
}

impl std::str::FromStr for Shard {
    type Err = String;

    /// Reads `K/N`.
    fn from_str(text: &str) -> Result<Self, String> {
        let parts =
            text.split_once('/').and_then(|(k, n)| Some((k.trim().parse().ok()?, n.trim().parse().ok()?)));
        match parts {
            Some((number, of)) if (1..=of).contains(&number) => Ok(Self { number, of }),
            _ => Err("expected K/N with K from 1 to N, e.g. 2/8".into()),
        }
    }
}

/// One combination of values.
#[derive(Clone, Debug)]
pub struct Variant {
    /// Each swept variable or setting and its value, in the order in which they were given.
    pub values: Vec<(String, Value)>,
    /// The scenario with these values.
    pub scenario: Arc<Scenario>,
    /// The values that are settings, not variables.
    pub tuning: Tuning,
}

/// Parses `NAME=VALUE,VALUE,…`; the values are YAML, so one with a comma in it is quoted.
///
/// # Errors
/// A description of what was expected.
pub fn parse_sweep(text: &str) -> Result<Sweep, String> {
    let (name, values) = text.split_once('=').ok_or("expected NAME=VALUE,VALUE,…")?;
    let values =
        parse(&format!("[{values}]")).map_err(|error| format!("not a list of YAML values: {error}"))?;
    let Value::Array(values) = values else { return Err("not a list of YAML values".into()) };
    if values.is_empty() {
        return Err("expected at least one value".into());
    }
    let twice = values.iter().enumerate().find(|(at, value)| values[..*at].contains(value));
    if let Some((_, value)) = twice {
        return Err(format!("the value {} is given twice", value_text(value)));
    }
    Ok((name.trim().to_string(), values))
}

/// All combinations of the values of some variables; the last variable's change fastest.
pub fn combinations(sweeps: &[Sweep]) -> Vec<Vec<(String, Value)>> {
    let mut cells = vec![Vec::new()];
    for (name, values) in sweeps {
        let with = |cell: &Vec<(String, Value)>, value: &Value| {
            cell.iter().cloned().chain([(name.clone(), value.clone())]).collect()
        };
        cells = cells.iter().flat_map(|cell| values.iter().map(move |value| with(cell, value))).collect();
    }
    cells
}

/// True of a folder whose experiment an earlier version began: all its cases share random numbers, and those
/// of runs that are added to it must, too. `is_of_one` if it repeats a single case; else an experiment
/// without cases in its record shares nothing.
///
/// # Errors
/// The record of the experiment can't be read.
pub fn shares_seeds(folder: &Path, is_of_one: bool) -> anyhow::Result<bool> {
    if !folder.join(FILE).exists() {
        return Ok(false);
    }
    let record = ExperimentRecord::open(folder)?;
    let is_of_case = |cell: &CellRecord| cell.values.first().is_some_and(|(name, _)| name == CASE);
    Ok(!record.seeds_by_case && (is_of_one || record.cells.iter().any(is_of_case)))
}

impl Design {
    /// The folder of a run, below the experiment's.
    pub fn folder(&self, cell: usize, seed: u64) -> PathBuf {
        let values = &self.cells[cell].values;
        let run = format!("seed-{seed}");
        if values.is_empty() {
            return run.into();
        }
        let name: Vec<String> =
            values.iter().map(|(name, value)| format!("{name}={}", value_text(value))).collect();
        // Values are free text; the number distinguishes those with characters that a path can't have.
        let plain = |c: char| if c.is_ascii_alphanumeric() || "=.,_-".contains(c) { c } else { '_' };
        let name: String = name.join(",").chars().map(plain).take(80).collect();
        PathBuf::from(format!("{cell}-{name}")).join(run)
    }

    /// Tells whether a human answers in any of its runs; a human can answer in only one at a time.
    pub fn has_humans(&self) -> bool {
        let mut agents = self.cells.iter().flat_map(|cell| &cell.scenario.agents);
        agents.any(Agent::is_human)
    }

    /// The runs that are played here, as (cell, seed). Those of one seed follow each other, because they have
    /// the same beginning and share what they have read. So a shard has whole seeds if there are at least as
    /// many seeds as shards.
    pub fn runs(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let (n_cells, by_seed) =
            (self.cells.len(), self.shard.is_some_and(|shard| self.seeds.len() >= shard.of));
        let all = self.seeds.iter().enumerate().flat_map(move |(at, seed)| {
            (0..n_cells).map(move |cell| (if by_seed { at } else { at * n_cells + cell }, cell, *seed))
        });
        let is_here = |at: usize| self.shard.is_none_or(|Shard { number, of }| at % of == number - 1);
        all.filter(move |(at, ..)| is_here(*at)).map(|(_, cell, seed)| (cell, seed))
    }

    /// Settings of a cell's run with this seed.
    fn options(&self, cell: usize, seed: u64) -> RunOptions {
        let options = self.cells[cell].tuning.over(&self.options);
        RunOptions { seed, resume: true, continues: None, fork: None, ..options }
    }
}

/// A value in one line.
pub fn value_text(value: &Value) -> String {
    serde_json::to_value(value).map_or_else(|_| String::new(), |value| text_of(&value))
}
