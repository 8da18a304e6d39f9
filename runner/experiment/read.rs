//! Reads an experiment's folder: its runs, each with the scenario that was played.

use super::record::{CellRecord, ExperimentRecord, FILE};
use super::scores::scored;
use crate::replay::{Search, load_scenario};
use crate::scenario::Scenario;
use crate::statistics::{Cell, Run, Sample};
use crate::transcript::{self, Header, Transcript};
use anyhow::{Context as _, ensure};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// Maximum number of runs that are searched for in a folder.
const MAX_RUNS: usize = 1_000_000;

/// An experiment's record and its complete runs, by cell and seed.
///
/// # Errors
/// The record or a run can't be read, or the scenario of a run can't be found.
pub fn read(folder: &Path, search: &Search) -> anyhow::Result<(ExperimentRecord, Sample)> {
    let (record, file) = (ExperimentRecord::open(folder)?, folder.join(FILE));
    let n_runs = record.cells.len().saturating_mul(record.seeds.len());
    ensure!(n_runs <= MAX_RUNS, "{} lists {n_runs} runs; expected at most {MAX_RUNS}", file.display());
    let mut sample = Sample::default();
    for (at, cell) in record.cells.iter().enumerate() {
        let mut scenario: Option<Arc<Scenario>> = None;
        let mut values = None;
        for seed in &record.seeds {
            let own = cell.own_folder()?.join(format!("seed-{seed}"));
            let file = folder.join(&own).join(transcript::FILE);
            if !file.exists() {
                continue;
            }
            let transcript = Transcript::open(&file)?;
            if transcript.footer.is_none() {
                continue;
            }
            let header = &transcript.header.record;
            let of_cell = match &scenario {
                Some(known) => known.clone(),
                None => open(&file, header, search)?,
            };
            scenario = Some(of_cell.clone());
            values.get_or_insert_with(|| typed(cell, header));
            let transcript = scored(transcript, &folder.join(&own))?;
            let folder = own.display().to_string();
            sample.runs.push(Run { cell: at, seed: *seed, folder, transcript, scenario: of_cell });
        }
        let as_text =
            || cell.values.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
        sample.cells.push(Cell { values: values.unwrap_or_else(as_text) });
    }
    Ok((record, sample))
}

fn open(file: &Path, header: &Header, search: &Search) -> anyhow::Result<Arc<Scenario>> {
    let loaded = load_scenario(file, header, search)?;
    let shown = file.display();
    loaded
        .scenario
        .with_context(|| format!("the scenario of {shown} has errors:\n{}", loaded.report.render(false)))
}

/// The values of a cell with their types, taken from its runs.
fn typed(cell: &CellRecord, header: &Header) -> Vec<(String, Value)> {
    let value = |(name, text): &(String, String)| {
        let set = header.overrides.iter().rfind(|(other, _)| other == name);
        (name.clone(), set.map_or_else(|| text.as_str().into(), |(_, value)| value.clone()))
    };
    cell.values.iter().map(value).collect()
}
