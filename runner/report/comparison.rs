//! The report of an experiment: cells side by side, their differences with intervals, plots, and links to the runs.

use super::{MARK, environment, text};
use crate::scenario::text_of;
use crate::statistics::{
    Estimate, Figure, InCell, Method, Rounds, Run, Sample, Subject, Summary, pictures, summarize,
};
use crate::transcript::Footer;
use anyhow::Context as _;
use minijinja::Value;
use minijinja::value::Serde;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;

/// Everything on the page.
#[derive(Debug, Serialize)]
struct Page {
    mark: Value,
    title: String,
    description: String,
    /// The counted runs, and the experiment's incomplete ones.
    n_runs: usize,
    n_missing: usize,
    confidence: String,
    cells: Vec<Cell>,
    /// Tables of figures; empty ones are not shown.
    tables: Vec<Table>,
    plots: Vec<Plot>,
    outcomes: Vec<String>,
    runs: Vec<RunRow>,
}

#[derive(Debug, Serialize)]
struct Cell {
    label: String,
    runs: usize,
    choices: usize,
    invalid: usize,
}

#[derive(Debug, Serialize)]
struct Table {
    title: &'static str,
    figures: Vec<Row>,
}

/// A figure in every cell that has it.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    cells: Vec<Entry>,
}

#[derive(Debug, Serialize)]
struct Entry {
    cell: usize,
    n: usize,
    value: String,
    interval: String,
    /// The difference from cell 0; empty for that cell.
    difference: String,
    difference_interval: String,
    /// True if the interval of the difference excludes zero.
    differs: bool,
}

#[derive(Debug, Serialize)]
struct Plot {
    name: &'static str,
    /// The picture as a data URL.
    source: Value,
}

#[derive(Debug, Serialize)]
struct RunRow {
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
    let page = Page {
        mark: Value::from_safe_string(MARK.to_string()),
        title: scenario.map_or(id, |scenario| &scenario.title).to_string(),
        description: scenario.map_or("", |scenario| scenario.description.trim()).to_string(),
        n_runs: sample.runs.len(),
        n_missing: n_planned.saturating_sub(sample.runs.len()),
        confidence: text::number(100.0 * summary.confidence),
        cells: cells(&summary),
        tables: tables(&summary),
        plots: pictures(sample, &summary).into_iter().map(plot).collect(),
        runs: sample.runs.iter().map(|run| run_row(run, &outcomes)).collect(),
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

fn cells(summary: &Summary) -> Vec<Cell> {
    let cell = |cell: &crate::statistics::CellSummary| {
        let values = cell.values.iter().map(|(name, value)| format!("{name} = {}", text_of(value)));
        let label = values.collect::<Vec<_>>().join(", ");
        let label = if label.is_empty() { "all runs".to_string() } else { label };
        Cell { label, runs: cell.runs, choices: cell.choices, invalid: cell.invalid }
    };
    summary.cells.iter().map(cell).collect()
}

fn tables(summary: &Summary) -> Vec<Table> {
    let is_result = |subject: &Subject| {
        matches!(
            subject,
            Subject::Outcome { .. }
                | Subject::Payoff { .. }
                | Subject::Decision { .. }
                | Subject::Assertions
                | Subject::Invalid
        )
    };
    let is_choice =
        |subject: &Subject| matches!(subject, Subject::Choice(asked) if asked.question.purpose != "floor");
    let is_joint = |subject: &Subject| matches!(subject, Subject::Joint { rounds: Rounds::Last, .. });
    let table = |title, is_in: &dyn Fn(&Subject) -> bool| {
        let figures = summary.figures.iter().filter(|figure| is_in(&figure.subject)).map(row).collect();
        Table { title, figures }
    };
    let all = [
        table("Results", &is_result),
        table("Choices: how often each was made", &is_choice),
        table("Choices made together in the last round", &is_joint),
    ];
    all.into_iter().filter(|table| !table.figures.is_empty()).collect()
}

fn row(figure: &Figure) -> Row {
    let name = match &figure.subject {
        Subject::Payoff { agent, unit } => format!("payoff of {agent}, {unit}"),
        Subject::Choice(asked) => asked.to_string(),
        Subject::Joint { phase, agents, choices, .. } => {
            let choices: Vec<&str> =
                choices.iter().map(|choice| choice.as_deref().unwrap_or("invalid")).collect();
            format!("{phase}: {} = {}", agents.join(" + "), choices.join(" + "))
        }
        other => other.to_string(),
    };
    Row { name, cells: figure.cells.iter().map(entry).collect() }
}

fn entry(cell: &InCell) -> Entry {
    let is_rate = cell.count.is_some();
    let difference = cell.difference.as_ref();
    let value = cell.estimate.value.map_or("–".to_string(), |value| {
        let unit = if is_rate { " %" } else { "" };
        scaled(value, is_rate) + unit
    });
    Entry {
        cell: cell.cell,
        n: cell.estimate.n,
        value,
        interval: interval(&cell.estimate, is_rate),
        difference: difference.and_then(|of| of.value).map_or(String::new(), |value| signed(value, is_rate)),
        difference_interval: difference.map_or(String::new(), |of| interval(of, is_rate)),
        differs: difference
            .is_some_and(|of| of.low.zip(of.high).is_some_and(|(low, high)| low > 0.0 || high < 0.0)),
    }
}

/// A value rounded for display; rates in per cent.
fn scaled(value: f64, is_rate: bool) -> String {
    if is_rate { format!("{:.0}", 100.0 * value) } else { text::number((value * 1e3).round() / 1e3) }
}

fn signed(value: f64, is_rate: bool) -> String {
    let shown = scaled(value, is_rate);
    if shown.trim_start_matches(['-', '−', '0', '.']).is_empty() {
        "0".to_string()
    } else if value > 0.0 {
        format!("+{shown}")
    } else {
        shown
    }
}

fn interval(estimate: &Estimate, is_rate: bool) -> String {
    match (estimate.low, estimate.high, estimate.method) {
        (Some(low), Some(high), _) => format!("[{}, {}]", scaled(low, is_rate), scaled(high, is_rate)),
        (_, _, Method::Alike) => "all alike".to_string(),
        (_, _, Method::TooFewRuns) => "too few runs".to_string(),
        _ => String::new(),
    }
}

fn run_row(run: &Run, outcomes: &[String]) -> RunRow {
    let footer = footer(run);
    let outcome = |name: &String| {
        let found = footer.and_then(|footer| footer.outcomes.iter().find(|outcome| outcome.name == *name));
        found.map_or(String::new(), |found| found.error.clone().unwrap_or_else(|| text::value(&found.value)))
    };
    RunRow {
        cell: run.cell,
        seed: run.seed,
        turns: footer.map_or(0, |footer| footer.turns),
        outcomes: outcomes.iter().map(outcome).collect(),
        holds: footer.filter(|footer| !footer.assertions.is_empty()).map(Footer::holds),
        report: format!("{}/{}", run.folder.replace('\\', "/"), super::FILE),
    }
}
