//! `experiment.json`: the planned runs of an experiment's folder, written before the first run.

use super::{Design, value_text};
use crate::files::{self, FileKind};
use crate::run::Seeding;
use crate::scenario::Scenario;
use crate::transcript::{self, Transcript};
use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use std::path::{Component, Path, PathBuf};

/// Name of the file in an experiment's folder.
pub const FILE: &str = "experiment.json";

/// The planned runs of an experiment's folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExperimentRecord {
    /// The scenario's id.
    pub scenario: String,
    /// The cells.
    pub cells: Vec<CellRecord>,
    /// The seeds, the same in every cell.
    pub seeds: Vec<u64>,
    /// True if its runs are of cases, each with random numbers of its own. In experiments of earlier
    /// versions, which lack the field, all cases share random numbers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub seeds_by_case: bool,
}

/// A cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CellRecord {
    /// Its folder below the experiment's, if it has a separate one.
    pub folder: Option<String>,
    /// Each swept variable and its value, as text.
    pub values: Vec<(String, String)>,
}

impl CellRecord {
    /// The cell's folder below the experiment's.
    ///
    /// # Errors
    /// The path leads out of the experiment's folder.
    pub(super) fn own_folder(&self) -> anyhow::Result<PathBuf> {
        let folder = PathBuf::from(self.folder.as_deref().unwrap_or_default());
        if folder.components().all(|part| matches!(part, Component::Normal(_))) {
            return Ok(folder);
        }
        bail!("the folder `{}` of a cell leads out of the experiment's folder", folder.display())
    }
}

impl ExperimentRecord {
    /// The record of a design.
    pub fn of(design: &Design, scenario: &Scenario) -> Self {
        let cell = |(id, cell): (usize, &super::Variant)| CellRecord {
            folder: design
                .folder(id, 0)
                .parent()
                .map(|folder| folder.display().to_string())
                .filter(|f| !f.is_empty()),
            values: cell.values.iter().map(|(name, value)| (name.clone(), value_text(value))).collect(),
        };
        Self {
            scenario: scenario.id.clone(),
            cells: design.cells.iter().enumerate().map(cell).collect(),
            seeds: design.seeds.clone(),
            seeds_by_case: design.options.seeding == Seeding::ByCase
                && design.cells.iter().any(|cell| cell.scenario.case().is_some()),
        }
    }

    /// Folders of all runs, below the experiment's.
    fn runs(&self) -> anyhow::Result<Vec<PathBuf>> {
        let mut runs = Vec::new();
        for cell in &self.cells {
            let folder = cell.own_folder()?;
            runs.extend(self.seeds.iter().map(|seed| folder.join(format!("seed-{seed}"))));
        }
        Ok(runs)
    }

    /// Reads the record of a folder.
    ///
    /// # Errors
    /// It does not exist, or can't be read.
    pub fn open(folder: &Path) -> anyhow::Result<Self> {
        let file = folder.join(FILE);
        let text = files::read_text(&file, FileKind::Experiment);
        let text = text.with_context(|| format!("can't read {}", file.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is not an experiment record", file.display()))
    }

    /// Writes it to a folder. An existing record may grow (more seeds, more values after the last), but not
    /// change otherwise.
    ///
    /// # Errors
    /// The folder holds another experiment, or can't be written.
    pub fn settle(&self, folder: &Path) -> anyhow::Result<()> {
        let file = folder.join(FILE);
        let shown = file.display();
        match files::read_text(&file, FileKind::Experiment) {
            Ok(text) => {
                let was: Self = serde_json::from_str(&text).with_context(|| {
                    format!("{shown} is not an experiment record; move it away to start a new experiment")
                })?;
                if was == *self {
                    return Ok(());
                }
                if let Some(differs) = self.lacks(&was) {
                    bail!(
                        "{shown} belongs to another experiment: {differs}; choose another folder with --out"
                    );
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("can't read {shown}")),
        }
        std::fs::create_dir_all(folder).with_context(|| format!("can't create {}", folder.display()))?;
        let text = serde_json::to_string_pretty(self)? + "\n";
        files::replace(&file, text)
    }

    /// A description of the first thing that an earlier record has and this one lacks.
    fn lacks(&self, was: &Self) -> Option<String> {
        if was.scenario != self.scenario {
            return Some(format!("its scenario is `{}`", was.scenario));
        }
        let values = |cell: &CellRecord| {
            let values = cell.values.iter().map(|(name, value)| format!("{name}={value}"));
            let values = values.collect::<Vec<_>>().join(" ");
            if values.is_empty() { "no swept variables".to_string() } else { values }
        };
        let other = was.cells.iter().enumerate().find(|(at, cell)| self.cells.get(*at) != Some(cell));
        if let Some((at, cell)) = other {
            return Some(format!("its cell {at} has {}", values(cell)));
        }
        if was.seeds_by_case != self.seeds_by_case {
            let rule =
                |by_case| if by_case { "have different random numbers" } else { "share random numbers" };
            return Some(format!(
                "its cases {}, but here they {}",
                rule(was.seeds_by_case),
                rule(self.seeds_by_case)
            ));
        }
        let seed = was.seeds.iter().find(|seed| !self.seeds.contains(seed));
        seed.map(|seed| format!("it has runs with seed {seed}"))
    }
}

/// Folders of an experiment's runs that are complete in none of these parts.
///
/// # Errors
/// As [`merge`].
pub fn missing(parts: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut missing = Vec::new();
    for own in common(parts)?.runs()? {
        if complete(parts, &own)?.is_none() {
            missing.push(own);
        }
    }
    Ok(missing)
}

/// Joins the parts of an experiment into a new folder: all complete runs, as recorded. Returns their number.
///
/// # Errors
/// The parts are of different experiments, two of them have different versions of a run, or a file can't be
/// read or written.
pub fn merge(parts: &[PathBuf], into: &Path) -> anyhow::Result<usize> {
    let record = common(parts)?;
    if into.exists() {
        bail!("{} already exists; choose another folder with --out", into.display());
    }
    let mut n = 0;
    for own in record.runs()? {
        if let Some(from) = complete(parts, &own)? {
            copy_folder(&from, &into.join(&own))?;
            n += 1;
        }
    }
    record.settle(into)?;
    Ok(n)
}

/// The record that all parts have.
fn common(parts: &[PathBuf]) -> anyhow::Result<ExperimentRecord> {
    let Some((first, others)) = parts.split_first() else { bail!("there is nothing to merge") };
    let record = ExperimentRecord::open(first)?;
    for other in others {
        if ExperimentRecord::open(other)? != record {
            bail!(
                "{} and {} are of different experiments: their {FILE} differ",
                first.display(),
                other.display()
            );
        }
    }
    Ok(record)
}

/// The folder of a complete run in one of these parts; in several, it must be the same.
fn complete(parts: &[PathBuf], own: &Path) -> anyhow::Result<Option<PathBuf>> {
    let mut found: Option<(PathBuf, String)> = None;
    for part in parts {
        let folder = part.join(own);
        let file = folder.join(transcript::FILE);
        if !file.exists() {
            continue;
        }
        let Some(footer) = Transcript::open(&file)?.footer else { continue };
        match &found {
            None => found = Some((folder, footer.hash)),
            Some((_, hash)) if *hash == footer.hash => {}
            Some((other, _)) => bail!(
                "{} and {} are the same run, but differ in what was said; leave out one of the parts",
                other.display(),
                folder.display()
            ),
        }
    }
    Ok(found.map(|(folder, _)| folder))
}

/// Copies a run's files, including its copy of the scenario, but no links.
fn copy_folder(from: &Path, to: &Path) -> anyhow::Result<()> {
    for entry in walkdir::WalkDir::new(from) {
        let entry = entry.with_context(|| format!("can't read {}", from.display()))?;
        let place = to.join(entry.path().strip_prefix(from)?);
        if entry.file_type().is_dir() {
            std::fs::create_dir_all(&place).with_context(|| format!("can't create {}", place.display()))?;
        } else if entry.file_type().is_file() {
            files::copy_new(entry.path(), &place)?;
        }
    }
    Ok(())
}
