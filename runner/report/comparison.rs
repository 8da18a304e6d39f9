//! The report of an experiment: cells side by side, their differences with intervals, plots, and links to the
//! runs.

use super::{MARK, environment, text};
use crate::statistics::{
    ByCase, CaseRow, Figure, InCell, Rounds, Run, Sample, Subject, Summary, by_case, pictures, signed,
    summarize,
};
use crate::transcript::Footer;
use anyhow::Context as _;
use minijinja::Value;
use minijinja::value::Serde;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use std::collections::HashMap;

/// Everything on the page.
#[derive(Debug, Serialize)]
struct ComparisonPage {
    mark: Value,
    title: String,
    description: String,
    /// The counted runs, and the experiment's incomplete ones.
    n_runs: usize,
    n_missing: usize,
    confidence: String,
    /// The word for what figures are grouped by: cell, or condition where cases are pooled.
    group: &'static str,
    cells: Vec<CellView>,
    /// Figures left out because some rounds have no payoff.
    rounds_without_payoff: usize,
    /// Assertions that need a share of runs.
    assertions: Vec<ThresholdRow>,
    /// Tables of figures; empty ones are not shown.
    tables: Vec<FigureTable>,
    /// Each case, where there are cases.
    cases: Option<Cases>,
    plots: Vec<Plot>,
    outcomes: Vec<String>,
    runs: Vec<RunRow>,
}

#[derive(Debug, Serialize)]
struct CellView {
    label: String,
    cases: Option<usize>,
    runs: usize,
    choices: usize,
    invalid: usize,
}

#[derive(Debug, Serialize)]
struct FigureTable {
    title: &'static str,
    /// True if some runs have no value of one of its figures.
    lacks_runs: bool,
    figures: Vec<FigureRow>,
}

/// A figure in every cell that has it.
#[derive(Debug, Serialize)]
struct FigureRow {
    name: String,
    cells: Vec<FigureView>,
}

#[derive(Debug, Serialize)]
struct FigureView {
    cell: usize,
    /// Cases, where they are pooled.
    cases: Option<usize>,
    /// Runs, e.g. `9 of 12` if the others have no value.
    runs: String,
    value: String,
    interval: String,
    /// The difference from cell 0; empty for that cell.
    difference: String,
    difference_interval: String,
    /// True if the interval of the difference excludes zero.
    differs: bool,
}

/// An assertion that needs a share of runs, in a cell.
#[derive(Debug, Serialize)]
struct ThresholdRow {
    that: String,
    why: Option<String>,
    cell: usize,
    words: String,
    required: String,
    holds: bool,
}

/// Cases by figure.
#[derive(Debug, Serialize)]
struct Cases {
    names: Vec<String>,
    rows: Vec<CaseView>,
}

#[derive(Debug, Serialize)]
struct CaseView {
    case: String,
    condition: usize,
    runs: usize,
    values: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Plot {
    name: &'static str,
    /// The picture as a data URL.
    source: Value,
}

#[derive(Debug, Serialize)]
struct RunRow {
    /// Its case, if it is played with one.
    case: Option<String>,
    cell: usize,
    seed: u64,
    turns: usize,
    outcomes: Vec<String>,
    holds: Option<bool>,
    /// Path of its report, from the experiment's folder.
    report: String,
}

/// The page of an experiment. Identical runs give identical pages. `n_planned`: the experiment's planned
/// runs.
///
/// # Errors
/// A built-in template fails, which is a bug.
pub fn comparison(id: &str, sample: &Sample, n_planned: usize) -> anyhow::Result<String> {
    let summary = summarize(sample);
    let shown = summary.shown();
    let scenario = sample.runs.first().map(|run| &run.scenario);
    let mut outcomes: Vec<String> = Vec::new();
    for outcome in sample.runs.iter().filter_map(footer).flat_map(|footer| &footer.outcomes) {
        if !outcomes.contains(&outcome.name) {
            outcomes.push(outcome.name.clone());
        }
    }
    let plot = |(name, svg): (&'static str, String)| {
        let address = format!("data:image/svg+xml,{}", utf8_percent_encode(&svg, NON_ALPHANUMERIC));
        Plot { name, source: Value::from_safe_string(address) }
    };
    let by_case = by_case(&summary);
    let by_cell: HashMap<usize, &CaseRow<'_>> =
        by_case.iter().flat_map(|by_case| &by_case.rows).map(|row| (row.cell, row)).collect();
    let case_of = |run: &Run| by_cell.get(&run.cell).copied();
    let page = ComparisonPage {
        mark: Value::from_safe_string(MARK.to_string()),
        title: scenario.map_or(id, |scenario| &scenario.title).to_string(),
        description: scenario.map_or("", |scenario| scenario.description.trim()).to_string(),
        n_runs: sample.runs.len(),
        n_missing: n_planned.saturating_sub(sample.runs.len()),
        confidence: text::number(100.0 * summary.confidence),
        group: if shown.pools_cases() { "condition" } else { "cell" },
        cells: cells(shown),
        rounds_without_payoff: shown.cells.iter().map(|cell| cell.rounds_without_payoff).sum(),
        assertions: thresholds(&summary),
        tables: tables(shown),
        cases: by_case.as_ref().map(cases),
        plots: pictures(sample, &summary).into_iter().map(plot).collect(),
        runs: sample.runs.iter().map(|run| run_row(run, &outcomes, case_of(run))).collect(),
        outcomes,
    };
    let environment = environment()?;
    let template = environment.get_template("experiment.html")?;
    template
        .render(Value::from(Serde(page)))
        .context("the template of an experiment's report failed (this is a bug in greenroom)")
}

fn footer(run: &Run) -> Option<&Footer> {
    run.transcript.footer.as_ref().map(|footer| &footer.record)
}

fn cells(summary: &Summary) -> Vec<CellView> {
    let cell = |cell: &crate::statistics::CellSummary| {
        let label = cell.label();
        let label = if label.is_empty() { "all runs".to_string() } else { label };
        CellView { label, cases: cell.cases, runs: cell.runs, choices: cell.choices, invalid: cell.invalid }
    };
    summary.cells.iter().map(cell).collect()
}

fn tables(summary: &Summary) -> Vec<FigureTable> {
    // Assertions over many runs have a table of their own.
    let is_result = |subject: &Subject| subject.is_result() && !matches!(subject, Subject::Assertion { .. });
    let is_choice = |subject: &Subject| match subject {
        Subject::Choice(asked) => asked.question.purpose != "floor",
        Subject::InvalidChoice(question) => question.purpose != "floor",
        _ => false,
    };
    let is_joint = |subject: &Subject| matches!(subject, Subject::Joint { rounds: Rounds::Last, .. });
    let table = |title, is_in: &dyn Fn(&Subject) -> bool| {
        let own = || summary.figures.iter().filter(|figure| is_in(&figure.subject));
        let lacks_runs = own().any(Figure::lacks_runs);
        FigureTable { title, lacks_runs, figures: own().map(|figure| row(summary, figure)).collect() }
    };
    let all = [
        table("Results", &is_result),
        table("Choices: how often each was made", &is_choice),
        table("Choices made together in the last round", &is_joint),
    ];
    all.into_iter().filter(|table| !table.figures.is_empty()).collect()
}

fn row(summary: &Summary, figure: &Figure) -> FigureRow {
    FigureRow { name: name(figure), cells: figure.cells.iter().map(|cell| entry(summary, cell)).collect() }
}

fn name(figure: &Figure) -> String {
    match &figure.subject {
        Subject::Payoff { agent, unit } => format!("payoff of {agent}, {unit}"),
        Subject::Choice(asked) => asked.to_string(),
        Subject::Joint { phase, agents, choices, .. } => {
            let choices: Vec<&str> =
                choices.iter().map(|choice| choice.as_deref().unwrap_or("invalid")).collect();
            format!("{phase}: {} = {}", agents.join(" + "), choices.join(" + "))
        }
        other => other.to_string(),
    }
}

/// A figure's value, a rate in per cent.
fn value(cell: &InCell) -> String {
    let is_rate = cell.count.is_some();
    cell.estimate.value.map_or("–".to_string(), |value| {
        let unit = if is_rate { " %" } else { "" };
        scaled(value, is_rate) + unit
    })
}

/// The assertions that need a share of runs, cell by cell.
fn thresholds(summary: &Summary) -> Vec<ThresholdRow> {
    let of = |threshold: &crate::statistics::Threshold| {
        let of_cell = |cell: &crate::statistics::AssertionCount| ThresholdRow {
            that: threshold.that.clone(),
            why: threshold.why.clone(),
            cell: cell.cell,
            words: cell.words(),
            required: threshold.share.to_string(),
            holds: cell.holds,
        };
        threshold.cells.iter().map(of_cell).collect::<Vec<_>>()
    };
    summary.assertions.iter().flat_map(of).collect()
}

/// Each case with its figures.
fn cases(by_case: &ByCase<'_>) -> Cases {
    let of_case = |row: &CaseRow<'_>| {
        let of_figure = |cell: &Option<&InCell>| match cell {
            Some(cell) => value(cell) + &row.runs_with_value(cell),
            None => "–".to_string(),
        };
        let values = row.figures.iter().map(of_figure).collect();
        CaseView { case: row.case.clone(), condition: row.condition, runs: row.runs, values }
    };
    let names = by_case.figures.iter().map(|figure| name(figure)).collect();
    Cases { names, rows: by_case.rows.iter().map(of_case).collect() }
}

fn entry(summary: &Summary, cell: &InCell) -> FigureView {
    let is_rate = cell.count.is_some();
    let difference = cell.difference.as_ref();
    FigureView {
        cell: cell.cell,
        cases: summary.pools_cases().then_some(cell.estimate.n),
        runs: summary.runs_in_words(cell),
        value: value(cell),
        interval: cell.estimate.interval(|end| scaled(end, is_rate)),
        difference: difference
            .and_then(|of| of.value)
            .map_or(String::new(), |value| signed(value, scaled(value, is_rate))),
        difference_interval: difference.map_or(String::new(), |of| of.interval(|end| scaled(end, is_rate))),
        differs: difference
            .is_some_and(|of| of.low.zip(of.high).is_some_and(|(low, high)| low > 0.0 || high < 0.0)),
    }
}

/// A value rounded for display; rates in per cent.
fn scaled(value: f64, is_rate: bool) -> String {
    if is_rate { format!("{:.0}", 100.0 * value) } else { text::number((value * 1e3).round() / 1e3) }
}

fn run_row(run: &Run, outcomes: &[String], of_case: Option<&CaseRow<'_>>) -> RunRow {
    let footer = footer(run);
    let outcome = |name: &String| {
        let found = footer.and_then(|footer| footer.outcomes.iter().find(|outcome| outcome.name == *name));
        found.map_or(String::new(), |found| found.error.clone().unwrap_or_else(|| text::value(&found.value)))
    };
    RunRow {
        case: of_case.map(|row| row.case.clone()),
        cell: of_case.map_or(run.cell, |row| row.condition),
        seed: run.seed,
        turns: footer.map_or(0, |footer| footer.turns),
        outcomes: outcomes.iter().map(outcome).collect(),
        holds: footer
            .filter(|footer| footer.assertions.iter().any(|assertion| assertion.share.is_none()))
            .map(Footer::holds),
        report: format!("{}/{}", run.folder.replace('\\', "/"), super::FILE),
    }
}
