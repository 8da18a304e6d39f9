//! Many runs of one scenario as numbers: tidy tables, figures with intervals, plots.
//!
//! Everything here is derived from finished transcripts alone, so equal runs give equal files, whatever the
//! machine's speed and the order of the runs. From a [`Sample`], [`tables`] makes one observation a row,
//! [`summarize`] the figures with their intervals, [`plots`] the pictures.
//!
//! ```
//! use greenroom::backend::Scripted;
//! use greenroom::statistics::{Cell, Run, Sample, summarize, tables};
//! use greenroom::{run, scenario, stage::Unwatched, transcript::Transcript};
//! use std::sync::Arc;
//!
//! let text = "
//! id: coin
//! agents: {ann: {}, ben: {}}
//! phases: [{name: toss, agents: [ann, ben], answer: [heads, tails]}]
//! outcome: {equal: toss.choices.ann == toss.choices.ben}
//! ";
//! let scenario = scenario::load("coin.yaml", text, &[]).scenario.expect("no mistakes");
//! let runtime = tokio::runtime::Builder::new_current_thread().build()?;
//! let folder = std::env::temp_dir().join(format!("greenroom-coin-{}", std::process::id()));
//! let mut sample = Sample { cells: vec![Cell::default()], runs: Vec::new() };
//! for seed in 0..20 {
//!     let backend = Scripted::new(move |request| {
//!         let is_even = (seed + request.path.len() as u64 + request.sampling.seed) % 2 == 0;
//!         Some(if is_even { "heads" } else { "tails" }.to_string())
//!     });
//!     let name = format!("run-{seed}");
//!     let options = run::RunOptions { seed, ..Default::default() };
//!     let (mut watch, place) = (Unwatched, folder.join(&name));
//!     let playing =
//!         run::perform(&scenario, Arc::new(backend), &place, &options, &mut watch, std::future::pending());
//!     let transcript = Transcript::open(&runtime.block_on(playing)?.transcript)?;
//!     sample.runs.push(Run { cell: 0, seed, folder: name, transcript, scenario: scenario.clone() });
//! }
//! assert_eq!(tables(&sample).get("choices").expect("a table").n_rows(), 40);
//! let summary = summarize(&sample);
//! let equal = summary.figures.iter().find(|figure| figure.name == "outcome equal").expect("a figure");
//! let equal = &equal.cells[0];
//! assert!(equal.estimate.low < equal.estimate.value && equal.estimate.value < equal.estimate.high);
//! std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod agreement;
mod bootstrap;
mod clustered;
mod comparisons;
#[cfg(test)]
mod coverage;
mod distribution;
mod files;
#[cfg(test)]
mod golden;
mod groups;
mod interval;
mod joint;
mod measures;
mod observations;
mod plots;
mod pooled;
mod scripts;
mod states;
mod subject;
mod summary;
mod table;
mod tables;
mod thresholds;

pub use agreement::Agreement;
pub use comparisons::{Comparison, POWER};
pub use groups::{CASE, Grouping};
pub use interval::{CONFIDENCE, Estimate, IntervalMethod, signed};
pub use plots::{pictures, plots};
pub use pooled::{ByCase, CaseRow, by_case, figure_tables};
pub use scripts::scripts;
pub use subject::{AgentOption, AgentQuestion, Rounds, Subject};
pub use summary::{CellSummary, Figure, InCell, Summary, summarize, summarize_by};
pub use table::{Column, Table, Values};
pub use tables::{Tables, tables, tables_by};
pub use thresholds::{AssertionCount, Threshold};

use crate::scenario::{Scenario, text_of};
use crate::transcript::Transcript;
use serde_json::Value;
use std::sync::Arc;

/// Runs of one scenario, by cell.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// The combinations of swept values; one without values where nothing was swept.
    pub cells: Vec<Cell>,
    /// The runs, in any order.
    pub runs: Vec<Run>,
}

/// A combination of swept variables' values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    /// Each swept variable and its value, in the order given.
    pub values: Vec<(String, Value)>,
}

/// A finished run.
#[derive(Clone, Debug)]
pub struct Run {
    /// Index of its cell.
    pub cell: usize,
    /// Root of all its turns' seeds. Runs of equal seed in several cells are paired.
    pub seed: u64,
    /// Its folder, relative, for people.
    pub folder: String,
    /// Its transcript.
    pub transcript: Transcript,
    /// Its scenario, with the cell's values.
    pub scenario: Arc<Scenario>,
}

impl Sample {
    /// The runs by cell and seed, so that nothing depends on the order in which they finished.
    fn ordered(&self) -> Vec<&Run> {
        let mut runs: Vec<&Run> = self.runs.iter().collect();
        runs.sort_by_key(|run| (run.cell, run.seed, &run.folder));
        runs
    }

    /// Names of the swept variables, in the order given.
    fn swept(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in self.cells.iter().flat_map(|cell| &cell.values) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        names
    }
}

impl Cell {
    /// Its values as text, e.g. `price=3, goods=figs`; `all runs` if it has none.
    pub fn name(&self) -> String {
        let text = |value: &Value| if value.is_null() { "none".to_string() } else { text_of(value) };
        let values = self.values.iter().map(|(name, value)| format!("{name}={}", text(value)));
        let name = values.collect::<Vec<_>>().join(", ");
        if name.is_empty() { "all runs".to_string() } else { name }
    }

    /// The name of its condition: of its values, all but the case.
    pub fn condition(&self) -> String {
        let of_case = |(name, _): &&(String, Value)| name == groups::CASE;
        let values = self.values.iter().skip(usize::from(self.values.first().as_ref().is_some_and(of_case)));
        Self { values: values.cloned().collect() }.name()
    }

    /// The value of a swept variable.
    fn value(&self, name: &str) -> Option<&Value> {
        self.values.iter().find(|(own, _)| own == name).map(|(_, value)| value)
    }
}
