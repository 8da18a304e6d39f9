//! The report of an experiment: conditions side by side, their differences with intervals and tests, plots, and
//! links to the runs.

use super::matrix::{Matrix, matrices, page_of};
use super::{MARK, environment, text};
use crate::statistics::{
    ByCase, CaseRow, Cell, Estimate, Figure, Grouping, InCell, Rounds, Run, Sample, Subject, Summary,
    by_case, pictures, signed, summarize_by,
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
    cells: Vec<CellView>,
    /// True if figures are pooled over cases.
    pools_cases: bool,
    /// Figures left out because some rounds have no payoff.
    rounds_without_payoff: usize,
    /// Assertions that need a share of runs.
    assertions: Vec<ThresholdRow>,
    /// Tables of figures; empty ones are not shown.
    tables: Vec<FigureTable>,
    /// How conditions differ.
    differences: Vec<DifferenceRow>,
    /// Differences that were tested.
    comparisons: usize,
    /// Each outcome of each run, by case and condition.
    matrices: Vec<Matrix>,
    /// Each case, where there are cases.
    cases: Option<Cases>,
    plots: Vec<Plot>,
    outcomes: Vec<String>,
    runs: Vec<RunRow>,
}

#[derive(Debug, Serialize)]
struct CellView {
    name: String,
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
    cell: String,
    /// Cases, where they are pooled.
    cases: Option<usize>,
    /// Runs, e.g. `9 of 12` if the others have no value.
    runs: String,
    value: String,
    interval: String,
}

/// The difference of a figure between two conditions.
#[derive(Debug, Serialize)]
struct DifferenceRow {
    name: String,
    cell: String,
    to: String,
    /// Cases or seeds that both have; null: the difference is unpaired.
    pairs: Option<usize>,
    value: String,
    interval: String,
    unpaired: String,
    /// The p-value, and the same corrected by Holm and by Benjamini and Hochberg.
    p: [String; 3],
    /// True if the corrected p-value is below 5 %.
    differs: bool,
    /// Cases, or runs of each condition, that are missing for 80 % power.
    more: String,
}

/// An assertion that needs a share of runs, in a cell.
#[derive(Debug, Serialize)]
struct ThresholdRow {
    that: String,
    why: Option<String>,
    cell: Option<String>,
    words: String,
    required: String,
    holds: bool,
}

/// Cases by figure.
#[derive(Debug, Serialize)]
struct Cases {
    names: Vec<String>,
    /// True if there are several conditions.
    has_conditions: bool,
    rows: Vec<CaseView>,
}

#[derive(Debug, Serialize)]
struct CaseView {
    case: String,
    condition: Option<String>,
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
    condition: String,
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
pub fn comparison(
    id: &str,
    sample: &Sample,
    grouping: &Grouping,
    n_planned: usize,
) -> anyhow::Result<String> {
    let summary = summarize_by(sample, grouping);
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
        cells: cells(shown),
        pools_cases: shown.pools_cases(),
        rounds_without_payoff: shown.cells.iter().map(|cell| cell.rounds_without_payoff).sum(),
        assertions: thresholds(&summary),
        tables: tables(shown),
        differences: differences(shown),
        comparisons: shown.comparisons,
        matrices: matrices(sample),
        cases: by_case.as_ref().map(cases),
        plots: pictures(sample, &summary).into_iter().map(plot).collect(),
        runs: sample.runs.iter().map(|run| run_row(sample, run, &outcomes, case_of(run))).collect(),
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
    let cell = |cell: &crate::statistics::CellSummary| CellView {
        name: cell.name.clone(),
        cases: cell.cases,
        runs: cell.runs,
        choices: cell.choices,
        invalid: cell.invalid,
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
        Subject::Payoff { agent: Some(agent), unit } => format!("payoff of {agent}, {unit}"),
        Subject::Payoff { agent: None, unit } => format!("payoff, {unit}"),
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
            cell: cell.condition.clone(),
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
        CaseView { case: row.case.clone(), condition: row.condition_name.clone(), runs: row.runs, values }
    };
    let names = by_case.figures.iter().map(|figure| name(figure)).collect();
    let has_conditions = by_case.rows.iter().any(|row| row.condition_name.is_some());
    Cases { names, has_conditions, rows: by_case.rows.iter().map(of_case).collect() }
}

fn entry(summary: &Summary, cell: &InCell) -> FigureView {
    let is_rate = cell.count.is_some();
    FigureView {
        cell: cell_name(summary, cell.cell),
        cases: summary.pools_cases().then_some(cell.estimate.n),
        runs: summary.runs_in_words(cell),
        value: value(cell),
        interval: cell.estimate.interval(|end| scaled(end, is_rate)),
    }
}

fn cell_name(summary: &Summary, cell: usize) -> String {
    summary.cells.get(cell).map_or(String::new(), |cell| cell.name.clone())
}

/// How figures differ between conditions.
fn differences(summary: &Summary) -> Vec<DifferenceRow> {
    let of_cell = |figure: &Figure, cell: &InCell| {
        let (comparison, is_rate) = (cell.difference.as_ref()?, cell.count.is_some());
        let estimate = &comparison.estimate;
        let interval = |of: &Estimate| of.interval(|end| scaled(end, is_rate));
        let probability = |p: Option<f64>| match p {
            None => "–".to_string(),
            Some(p) if p < 0.001 => "< 0.001".to_string(),
            Some(p) => format!("{p:.3}"),
        };
        let more = comparison.needed.map(|needed| needed.saturating_sub(estimate.n));
        let more = more.map_or("–".to_string(), |more| text::thousands(more as u64));
        Some(DifferenceRow {
            name: name(figure),
            cell: cell_name(summary, cell.cell),
            to: cell_name(summary, comparison.to),
            pairs: (comparison.pairs > 0).then_some(comparison.pairs),
            value: estimate.value.map_or("–".to_string(), |value| signed(value, scaled(value, is_rate))),
            interval: interval(estimate),
            unpaired: comparison.unpaired.as_ref().map_or(String::new(), interval),
            p: [comparison.p, comparison.p_holm, comparison.p_bh].map(probability),
            differs: comparison.p_holm.is_some_and(|p| p < 0.05),
            more,
        })
    };
    let figures = summary.compared_figures().into_iter();
    figures.flat_map(|figure| figure.cells.iter().filter_map(move |cell| of_cell(figure, cell))).collect()
}

/// A value rounded for display; rates in per cent.
fn scaled(value: f64, is_rate: bool) -> String {
    if is_rate { format!("{:.0}", 100.0 * value) } else { text::number((value * 1e3).round() / 1e3) }
}

fn run_row(sample: &Sample, run: &Run, outcomes: &[String], of_case: Option<&CaseRow<'_>>) -> RunRow {
    let footer = footer(run);
    let outcome = |name: &String| {
        let found = footer.and_then(|footer| footer.outcomes.iter().find(|outcome| outcome.name == *name));
        found.map_or(String::new(), |found| found.error.clone().unwrap_or_else(|| text::value(&found.value)))
    };
    RunRow {
        case: of_case.map(|row| row.case.clone()),
        condition: sample.cells.get(run.cell).map_or(String::new(), Cell::condition),
        seed: run.seed,
        turns: footer.map_or(0, |footer| footer.turns),
        outcomes: outcomes.iter().map(outcome).collect(),
        holds: footer
            .filter(|footer| footer.assertions.iter().any(|assertion| assertion.share.is_none()))
            .map(Footer::holds),
        report: page_of(run),
    }
}
