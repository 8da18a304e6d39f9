//! Judges an experiment as a whole, from its recordings as they were replayed: the assertions that need a
//! share of runs, and the figures over all cases.

use super::read::read;
use super::record::{ExperimentRecord, FILE};
use crate::replay::{Place, Search};
use crate::scenario::Path as Field;
use crate::statistics::{
    AssertionCount, CASE, Estimate, Figure, InCell, Sample, Summary, Threshold, summarize,
};
use crate::transcript;
use crate::verify::{Problem, ProblemKind, Verdict, plain};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use walkdir::WalkDir;

/// The experiments in the given folders and below them.
pub fn experiments(paths: &[PathBuf]) -> Vec<PathBuf> {
    let files = paths.iter().filter(|path| path.is_dir()).flat_map(|path| {
        let entries = WalkDir::new(path).sort_by_file_name().into_iter().flatten();
        entries.filter(|entry| entry.file_type().is_file() && entry.file_name() == FILE)
    });
    let mut seen = HashSet::new();
    files
        .filter_map(|entry| Some(plain(entry.path().parent()?)))
        .filter(|folder| seen.insert(folder.clone()))
        .collect()
}

/// Verdicts on an experiment's figures over its runs, given those on its recordings; none if it has neither
/// cases nor assertions that need a share of runs.
pub fn judge(folder: &Path, search: &Search, judged: &[Verdict]) -> Vec<Verdict> {
    let own: Vec<&Verdict> =
        judged.iter().filter(|verdict| Path::new(&verdict.file).starts_with(folder)).collect();
    let footers = own.iter().filter_map(|verdict| verdict.footer.as_ref());
    let needs_shares =
        footers.flat_map(|footer| &footer.assertions).any(|assertion| assertion.share.is_some());
    let record = ExperimentRecord::open(folder);
    let has_cases = record.as_ref().is_ok_and(|record| {
        record.cells.first().and_then(|cell| cell.values.first()).is_some_and(|(name, _)| name == CASE)
    });
    if !needs_shares && !has_cases {
        return Vec::new();
    }
    let file = folder.join(FILE).display().to_string();
    let search = Search { file_first: true, ..search.clone() };
    let (record, mut sample) = match record.and_then(|_| read(folder, &search)) {
        Ok(found) => found,
        Err(error) => {
            let mut verdict = blank(file, None, "figures over all runs".to_string());
            verdict.problems.push(Problem::of_error(&error, None));
            return vec![verdict];
        }
    };
    as_replayed(folder, &mut sample, &own);
    let summary = summarize(&sample);
    let lacking = (record.cells.len() * record.seeds.len()).saturating_sub(sample.runs.len());
    let notes: Vec<String> = (lacking > 0)
        .then(|| {
            format!(
                "{lacking} of the experiment's runs are incomplete, so its assertions over many \
                          runs are not judged"
            )
        })
        .into_iter()
        .collect();
    let mut verdicts = Vec::new();
    if let Some(pooled) = summary.pooled.as_deref() {
        let (cases, runs) = (record.cells.len() / pooled.cells.len().max(1), sample.runs.len());
        let of = format!("all {cases} cases, {runs} runs");
        let mut verdict = blank(file.clone(), Some(record.scenario.clone()), of);
        verdict.figures = figures(pooled);
        verdicts.push(verdict);
    }
    for threshold in &summary.assertions {
        let of_cell = |cell| {
            let mut verdict = threshold_verdict(&file, &record, &sample, (threshold, cell));
            // Of a part of an experiment it is not known yet.
            verdict.problems.retain(|_| lacking == 0);
            verdict
        };
        verdicts.extend(threshold.cells.iter().map(of_cell));
    }
    if let Some(first) = verdicts.first_mut() {
        first.notes = notes;
    }
    verdicts
}

/// Takes the results of the replay, in which assertions are those of the scenario as it is now.
fn as_replayed(folder: &Path, sample: &mut Sample, judged: &[&Verdict]) {
    let by_file: HashMap<&Path, &&Verdict> =
        judged.iter().map(|verdict| (Path::new(&verdict.file), verdict)).collect();
    for run in &mut sample.runs {
        let file = folder.join(&run.folder).join(transcript::FILE);
        let replayed = by_file.get(file.as_path()).and_then(|verdict| verdict.footer.clone());
        if let (Some(footer), Some(replayed)) = (&mut run.transcript.footer, replayed) {
            footer.record = replayed;
        }
    }
}

/// A verdict without findings.
fn blank(file: String, scenario: Option<String>, of: String) -> Verdict {
    Verdict { of: Some(of), scenario, ..Verdict::new(file) }
}

/// The verdict on an assertion in a cell.
fn threshold_verdict(
    file: &str,
    record: &ExperimentRecord,
    sample: &Sample,
    (threshold, cell): (&Threshold, &AssertionCount),
) -> Verdict {
    let values = cell.condition.as_ref().map_or_else(String::new, |name| format!(" ({name})"));
    let of = format!("`{}` in {} of runs{values}", threshold.that, threshold.share);
    let mut verdict = blank(file.to_string(), Some(record.scenario.clone()), of);
    verdict.figures.push(cell.words());
    if !cell.holds {
        let field = format!("assertions[{}].share", threshold.index);
        let place = sample.runs.first().map(|run| Place::of(&run.scenario, &Field::parse(&field)));
        let required = format!("required: {}", threshold.share);
        verdict.problems.push(Problem {
            kind: ProblemKind::Assertion,
            at: field,
            title: format!("`{}` {}{values}", threshold.that, cell.words()),
            detail: threshold.why.clone().into_iter().chain([required]).collect::<Vec<_>>().join("\n"),
            recorded: String::new(),
            now: String::new(),
            line: None,
            place,
        });
    }
    verdict
}

/// The results over all cases, a line each.
fn figures(pooled: &Summary) -> Vec<String> {
    let all = pooled.figures.iter().filter(|figure| figure.subject.is_result());
    all.flat_map(|figure| figure.cells.iter().map(|cell| line(pooled, figure, cell))).collect()
}

fn line(pooled: &Summary, figure: &Figure, cell: &InCell) -> String {
    let is_rate = cell.count.is_some();
    let number = |value: f64| {
        if is_rate { format!("{:.1}", 100.0 * value) } else { format!("{}", (value * 1e4).round() / 1e4) }
    };
    let Estimate { n, value, low, high, .. } = &cell.estimate;
    let unit = if is_rate { " %" } else { "" };
    let value = value.map_or("no value".to_string(), |value| number(value) + unit);
    let interval = low
        .zip(*high)
        .map_or_else(String::new, |(low, high)| format!(" [{}, {}]", number(low), number(high)));
    let name = pooled.cells.get(cell.cell).map(|cell| &cell.name).filter(|_| pooled.cells.len() > 1);
    let values = name.map_or_else(String::new, |name| format!(" ({name})"));
    format!("{}{values}: {value}{interval}, {n} cases, {} runs", figure.name, pooled.runs_in_words(cell))
}
