//! `experiment.json`: what an experiment's folder is for, written before the first run.

use super::{Design, shown};
use crate::files::{self, Kind};
use crate::scenario::Scenario;
use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Name of the file in an experiment's folder.
pub const FILE: &str = "experiment.json";

/// The runs that an experiment's folder is for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The scenario's id.
    pub scenario: String,
    /// The cells.
    pub cells: Vec<CellRecord>,
    /// The seeds, the same in every cell.
    pub seeds: Vec<u64>,
}

/// A cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CellRecord {
    /// Its folder below the experiment's, if it has one of its own.
    pub folder: Option<String>,
    /// Each swept variable and its value, as text.
    pub values: Vec<(String, String)>,
}

impl Record {
    /// That of a design.
    pub fn of(design: &Design, scenario: &Scenario) -> Self {
        let cell = |(id, cell): (usize, &super::Variant)| CellRecord {
            folder: design
                .folder(id, 0)
                .parent()
                .map(|folder| folder.display().to_string())
                .filter(|f| !f.is_empty()),
            values: cell.values.iter().map(|(name, value)| (name.clone(), shown(value))).collect(),
        };
        Self {
            scenario: scenario.id.clone(),
            cells: design.cells.iter().enumerate().map(cell).collect(),
            seeds: design.seeds.clone(),
        }
    }

    /// Writes it into a folder. One that stands there may grow (more seeds, more values behind the last), not become another.
    ///
    /// # Errors
    /// The folder holds another experiment, or can't be written.
    pub fn settle(&self, folder: &Path) -> anyhow::Result<()> {
        let file = folder.join(FILE);
        let shown = file.display();
        match files::read_text(&file, Kind::Experiment) {
            Ok(text) => {
                let was: Self = serde_json::from_str(&text).with_context(|| {
                    format!("{shown} is no record of an experiment; move it away to begin anew")
                })?;
                if was == *self {
                    return Ok(());
                }
                if let Some(differs) = self.lacks(&was) {
                    bail!("{shown} is of another experiment: {differs}; choose another folder with --out");
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("can't read {shown}")),
        }
        std::fs::create_dir_all(folder).with_context(|| format!("can't create {}", folder.display()))?;
        let text = serde_json::to_string_pretty(self)? + "\n";
        let new = tempfile::NamedTempFile::new_in(folder);
        let mut new = new.with_context(|| format!("can't write {shown}"))?;
        std::io::Write::write_all(&mut new, text.as_bytes())
            .with_context(|| format!("can't write {shown}"))?;
        new.persist(&file).with_context(|| format!("can't write {shown}"))?;
        Ok(())
    }

    /// The first thing that an earlier record has and this one lacks, in words.
    fn lacks(&self, was: &Self) -> Option<String> {
        if was.scenario != self.scenario {
            return Some(format!("its scenario is `{}`", was.scenario));
        }
        let values = |cell: &CellRecord| {
            let values = cell.values.iter().map(|(name, value)| format!("{name}={value}"));
            let values = values.collect::<Vec<_>>().join(" ");
            if values.is_empty() { "no swept variable".to_string() } else { values }
        };
        let other = was.cells.iter().enumerate().find(|(at, cell)| self.cells.get(*at) != Some(cell));
        if let Some((at, cell)) = other {
            return Some(format!("its cell {at} is of {}", values(cell)));
        }
        let seed = was.seeds.iter().find(|seed| !self.seeds.contains(seed));
        seed.map(|seed| format!("it has runs with seed {seed}"))
    }
}
