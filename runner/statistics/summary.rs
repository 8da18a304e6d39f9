//! Figures of a sample with their intervals, by cell, and how cells differ from the first one.

use super::Sample;
use super::bootstrap::{Kind, Part, difference, mean};
use super::interval::{CONFIDENCE, Estimate};
use super::measures::{Measure, Measures};
use super::subject::Subject;
use crate::files;
use anyhow::Context as _;
use indexmap::IndexMap;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Figures of a sample.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Confidence level of the intervals.
    pub confidence: f64,
    /// The cells.
    pub cells: Vec<CellSummary>,
    /// The figures.
    pub figures: Vec<Figure>,
}

/// A combination of swept values, and how often it was played.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CellSummary {
    /// The swept variables' values.
    pub values: IndexMap<String, Value>,
    /// Runs.
    pub runs: usize,
    /// Those of them that came to their end.
    pub complete: usize,
    /// Choices that were made.
    pub choices: usize,
    /// Those of them that could not be read as an option.
    pub invalid: usize,
}

/// One figure, in every cell that has it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Its name, from which its resamples come.
    pub name: String,
    /// Its subject.
    #[serde(flatten)]
    pub subject: Subject,
    /// By cell.
    pub cells: Vec<InCell>,
}

/// A figure in one cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InCell {
    /// The cell.
    pub cell: usize,
    /// Observations in all runs: choices, rounds, results.
    pub observations: usize,
    /// Number of them that were what the figure counts; null: it is no count.
    pub count: Option<usize>,
    /// The mean over the observations.
    pub estimate: Estimate,
    /// The mean minus the first cell's, over the seeds that both have.
    pub difference: Option<Estimate>,
}

impl Summary {
    /// Writes `summary.json` into a folder, which is made if it is not there, and says which file that is.
    ///
    /// # Errors
    /// The folder or the file can't be written.
    pub fn write(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        let path = folder.join("summary.json");
        let can_not = || format!("can't write {}", path.display());
        std::fs::create_dir_all(folder).with_context(can_not)?;
        let text = serde_json::to_string_pretty(self)? + "\n";
        files::write(&path, text)?;
        Ok(path)
    }
}

/// Estimates everything that there is to estimate.
pub fn summarize(sample: &Sample) -> Summary {
    let measures = Measures::new(sample);
    let figures = measures.by_subject.iter().map(|(subject, measure)| {
        let name = subject.to_string();
        let cells = in_cells(&name, subject, measure, &measures);
        Figure { name, subject: subject.clone(), cells }
    });
    Summary { confidence: CONFIDENCE, cells: cells(sample), figures: figures.collect() }
}

fn cells(sample: &Sample) -> Vec<CellSummary> {
    let cell = |(at, cell): (usize, &super::Cell)| {
        let runs = || sample.runs.iter().filter(|run| run.cell == at);
        let footers = || runs().filter_map(|run| run.transcript.footer.as_ref());
        CellSummary {
            values: cell.values.iter().cloned().collect(),
            runs: runs().count(),
            complete: footers().count(),
            // A transcript is a file from outside: no figure in it may overflow a sum.
            choices: footers().fold(0, |sum, footer| sum.saturating_add(footer.record.choices)),
            invalid: footers().fold(0, |sum, footer| sum.saturating_add(footer.record.invalid)),
        }
    };
    sample.cells.iter().enumerate().map(cell).collect()
}

fn in_cells(name: &str, subject: &Subject, measure: &Measure, measures: &Measures<'_>) -> Vec<InCell> {
    let mut by_cell: BTreeMap<usize, BTreeMap<u64, Part>> = BTreeMap::new();
    for (run, part) in &measure.parts {
        let run = measures.runs[*run];
        by_cell.entry(run.cell).or_default().insert(run.seed, *part);
    }
    let is_count = measure.kind == Kind::Rate && !matches!(subject, Subject::Share(_) | Subject::Mass(_));
    let in_cell = |(cell, parts): (&usize, &BTreeMap<u64, Part>)| {
        let runs: Vec<Part> = parts.values().copied().collect();
        let sum: f64 = runs.iter().map(|run| run.sum).sum();
        let first = by_cell.get(&0).filter(|_| *cell > 0);
        let pair =
            |(seed, here): (&u64, &Part), first: &BTreeMap<u64, Part>| Some([*here, *first.get(seed)?]);
        let difference = first.map(|first| {
            let pairs: Vec<[Part; 2]> = parts.iter().filter_map(|part| pair(part, first)).collect();
            difference(name, &pairs, measure.kind)
        });
        InCell {
            cell: *cell,
            observations: runs.iter().map(|run| run.n).sum::<f64>() as usize,
            count: is_count.then_some(sum.round() as usize),
            estimate: mean(name, &runs, measure.kind),
            difference,
        }
    };
    by_cell.iter().map(in_cell).collect()
}
