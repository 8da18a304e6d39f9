//! What all cases of an experiment came to, and each of them: as tables for files, and as rows for people.
//!
//! | table | a row is | columns after the swept variables |
//! |---|---|---|
//! | `figures` | a figure over all cases of a condition | `figure`, `kind`, `cases`, `runs`, `missing`, `observations`, `count`, `value`, `low`, `high`, `method`, and for the difference to the condition `compared_with` `pairs`, `difference`, `difference_low`, `difference_high`, `difference_method`, `unpaired_low`, `unpaired_high`, `p`, `p_holm`, `p_bh`, `needed` |
//! | `cases` | a figure of one case in a condition | `case`, `figure`, `kind`, `runs`, `missing`, `observations`, `count`, `value` |
//!
//! Both begin with `condition`, its name.

use super::Cell;
use super::comparisons::Comparison;
use super::groups::CASE;
use super::interval::{Estimate, IntervalMethod};
use super::summary::{CellSummary, Figure, InCell, Summary};
use super::table::{ColumnKind, Table, Values};
use super::tables::Tables;
use crate::scenario::text_of;
use serde::Serialize;
use serde_json::Value;

/// Columns of either table that swept variables could be taken for; a variable of such a name is
/// `variable.NAME`.
const COLUMNS: [&str; 25] = [
    "condition",
    "case",
    "figure",
    "kind",
    "cases",
    "runs",
    "missing",
    "observations",
    "count",
    "value",
    "low",
    "high",
    "method",
    "difference",
    "difference_low",
    "difference_high",
    "difference_method",
    "compared_with",
    "pairs",
    "unpaired_low",
    "unpaired_high",
    "p",
    "p_holm",
    "p_bh",
    "needed",
];

/// Cases by figure.
#[derive(Clone, Debug)]
pub struct ByCase<'a> {
    /// The figures of the columns, over all cases.
    pub figures: Vec<&'a Figure>,
    /// A row for each case in each condition, in the order of the cells.
    pub rows: Vec<CaseRow<'a>>,
}

/// The figures of a case in a condition.
#[derive(Clone, Debug)]
pub struct CaseRow<'a> {
    /// The cell.
    pub cell: usize,
    /// The case.
    pub case: String,
    /// Index of the condition, by whose figures its distance is measured.
    pub condition: usize,
    /// Name of the condition, without what figures are grouped by; null: there is only one.
    pub condition_name: Option<String>,
    /// Runs.
    pub runs: usize,
    /// The figure of each column; `None`: no run has it.
    pub figures: Vec<Option<&'a InCell>>,
    /// Distance from the figures of all cases of the condition: the sum over the columns, each in units of
    /// its greatest distance.
    pub distance: f64,
}

impl CaseRow<'_> {
    /// Its runs that have a value of a figure, e.g. ` (3 of 6)`; empty if all have one.
    pub fn runs_with_value(&self, figure: &InCell) -> String {
        let has_gaps = figure.missing > 0 && figure.estimate.n > 0;
        let some = || format!(" ({} of {})", self.runs.saturating_sub(figure.missing), self.runs);
        has_gaps.then(some).unwrap_or_default()
    }
}

/// Tables of the figures by condition; that of cases only if the sample has any.
pub fn figure_tables(summary: &Summary) -> Tables {
    let shown = summary.shown();
    if shown.cells.is_empty() {
        return Tables(Vec::new());
    }
    let cases = shown.pools_cases().then(|| cases(summary, shown));
    Tables(std::iter::once(figures(shown)).chain(cases).collect())
}

/// The results of each case, as those of all cases have them; `None` if the sample has no cases.
pub fn by_case<'a>(summary: &'a Summary) -> Option<ByCase<'a>> {
    let pooled = summary.pooled.as_deref().filter(|pooled| pooled.pools_cases())?;
    let figures = pooled.main_figures();
    let of_cells: Vec<Option<&Figure>> = figures
        .iter()
        .map(|figure| summary.figures.iter().find(|own| own.subject == figure.subject))
        .collect();
    let row = |(cell, own): (usize, &CellSummary)| {
        let in_cell = |figure: &Option<&'a Figure>| {
            let cells = &(*figure)?.cells;
            cells.get(cells.binary_search_by_key(&cell, |other| other.cell).ok()?)
        };
        CaseRow {
            cell,
            case: own.values.get(CASE).map(text_of).unwrap_or_default(),
            condition: own.condition,
            condition_name: (own.values.len() > 1)
                .then(|| Cell { values: own.values.clone().into_iter().collect() }.condition()),
            runs: own.runs,
            figures: of_cells.iter().map(in_cell).collect(),
            distance: 0.0,
        }
    };
    let rows = summary.cells.iter().enumerate().filter(|(_, cell)| cell.runs > 0).map(row).collect();
    let mut by_case = ByCase { figures, rows };
    by_case.measure();
    Some(by_case)
}

impl ByCase<'_> {
    /// Computes how far each case is from all.
    fn measure(&mut self) {
        for (column, figure) in self.figures.iter().enumerate() {
            let apart = |row: &CaseRow<'_>| {
                let all = figure.cells.iter().find(|cell| cell.cell == row.condition)?.estimate.value?;
                Some((row.figures.get(column).copied().flatten()?.estimate.value? - all).abs())
            };
            let most = self.rows.iter().filter_map(apart).fold(0.0, f64::max);
            if most > 0.0 && most.is_finite() {
                let apart: Vec<f64> =
                    self.rows.iter().map(|row| apart(row).unwrap_or_default() / most).collect();
                self.rows.iter_mut().zip(apart).for_each(|(row, apart)| row.distance += apart);
            }
        }
    }

    /// The rows that are furthest from the figures of all cases, at most `most` of them, the furthest first.
    pub fn furthest(&self, most: usize) -> Vec<&CaseRow<'_>> {
        let mut rows: Vec<&CaseRow<'_>> = self.rows.iter().collect();
        rows.sort_by(|a, b| b.distance.total_cmp(&a.distance).then(a.cell.cmp(&b.cell)));
        rows.truncate(most);
        rows
    }
}

/// A table whose rows belong to conditions.
fn keyed(name: &'static str, pooled: &Summary, rows: &[usize]) -> Table {
    let mut table = Table::new(name);
    let name = |cell: &usize| pooled.cells.get(*cell).map(|cell| cell.name.as_str());
    table.add("condition", Values::texts(rows.iter().map(name)));
    for swept in pooled.cells.first().into_iter().flat_map(|cell| cell.values.keys()) {
        let value = |cell: &usize| pooled.cells.get(*cell).and_then(|cell| cell.values.get(swept));
        let kind = ColumnKind::of(pooled.cells.iter().filter_map(|cell| cell.values.get(swept)));
        let is_taken = COLUMNS.contains(&swept.as_str());
        let name = if is_taken { format!("variable.{swept}") } else { swept.clone() };
        table.add(name, kind.column(rows.iter().map(value)));
    }
    table
}

fn figures(pooled: &Summary) -> Table {
    let rows: Vec<(&Figure, &InCell)> = pooled
        .figures
        .iter()
        .flat_map(|figure| figure.cells.iter().map(move |cell| (figure, cell)))
        .collect();
    let mut table = keyed("figures", pooled, &rows.iter().map(|(_, cell)| cell.cell).collect::<Vec<_>>());
    add_subjects(&mut table, rows.iter().map(|(figure, _)| *figure));
    if pooled.pools_cases() {
        table.add("cases", Values::counts(rows.iter().map(|(_, cell)| Some(cell.estimate.n))));
    }
    add_counts(&mut table, pooled, rows.iter().map(|(_, cell)| *cell));
    let estimate = |of: fn(&Estimate) -> Option<f64>| {
        Values::Float(rows.iter().map(|(_, cell)| of(&cell.estimate)).collect())
    };
    table.add("low", estimate(|of| of.low));
    table.add("high", estimate(|of| of.high));
    table.add("method", Values::texts(rows.iter().map(|(_, cell)| Some(word(&cell.estimate.method)))));
    let differences = || rows.iter().map(|(_, cell)| cell.difference.as_ref());
    let difference =
        |of: fn(&Comparison) -> Option<f64>| Values::Float(differences().map(|found| of(found?)).collect());
    let to = |of: Option<&Comparison>| Some(pooled.cells.get(of?.to)?.name.as_str());
    table.add("compared_with", Values::texts(differences().map(to)));
    table.add("pairs", Values::counts(differences().map(|of| Some(of?.pairs))));
    table.add("difference", difference(|of| of.estimate.value));
    table.add("difference_low", difference(|of| of.estimate.low));
    table.add("difference_high", difference(|of| of.estimate.high));
    let method = |of: Option<&Comparison>| Some(word::<IntervalMethod>(&of?.estimate.method));
    table.add("difference_method", Values::texts(differences().map(method)));
    table.add("unpaired_low", difference(|of| of.unpaired.as_ref()?.low));
    table.add("unpaired_high", difference(|of| of.unpaired.as_ref()?.high));
    table.add("p", difference(|of| of.p));
    table.add("p_holm", difference(|of| of.p_holm));
    table.add("p_bh", difference(|of| of.p_bh));
    table.add("needed", Values::counts(differences().map(|of| of?.needed)));
    table
}

fn cases(summary: &Summary, pooled: &Summary) -> Table {
    let conditions: Vec<usize> = summary.cells.iter().map(|cell| cell.condition).collect();
    let rows: Vec<(&Figure, &InCell)> = summary
        .figures
        .iter()
        .flat_map(|figure| figure.cells.iter().map(move |cell| (figure, cell)))
        .filter(|(_, cell)| cell.cell < conditions.len())
        .collect();
    let own: Vec<usize> = rows.iter().map(|(_, cell)| conditions[cell.cell]).collect();
    let mut table = keyed("cases", pooled, &own);
    let case = |cell: &InCell| summary.cells.get(cell.cell)?.values.get(CASE).map(text_of);
    table.add("case", Values::texts(rows.iter().map(|(_, cell)| case(cell))));
    add_subjects(&mut table, rows.iter().map(|(figure, _)| *figure));
    add_counts(&mut table, summary, rows.iter().map(|(_, cell)| *cell));
    table
}

fn add_subjects<'a>(table: &mut Table, figures: impl Iterator<Item = &'a Figure> + Clone) {
    table.add("figure", Values::texts(figures.clone().map(|figure| Some(figure.name.as_str()))));
    let kind = |figure: &Figure| {
        let written = serde_json::to_value(&figure.subject).ok()?;
        written["kind"].as_str().map(str::to_string)
    };
    table.add("kind", Values::texts(figures.map(kind)));
}

fn add_counts<'a>(table: &mut Table, summary: &Summary, cells: impl Iterator<Item = &'a InCell> + Clone) {
    table.add("runs", Values::counts(cells.clone().map(|cell| Some(summary.runs(cell).0))));
    table.add("missing", Values::counts(cells.clone().map(|cell| Some(cell.missing))));
    table.add("observations", Values::counts(cells.clone().map(|cell| Some(cell.observations))));
    table.add("count", Values::counts(cells.clone().map(|cell| cell.count)));
    table.add("value", Values::Float(cells.map(|cell| cell.estimate.value).collect()));
}

/// The word for something in a file.
fn word<T: Serialize>(of: &T) -> String {
    serde_json::to_value(of).ok().as_ref().and_then(Value::as_str).unwrap_or_default().to_string()
}
