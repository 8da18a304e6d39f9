//! What is counted over many runs: assertions that need a share of them, and the cases of a data set side by
//! side.

use super::scale::{FigureStyle, shortened};
use super::tables::{TableRow, row};
use crate::diagnostic::printable;
use crate::statistics::{CaseRow, Figure, Subject, Summary, Threshold, by_case};
use console::truncate_str;

/// Most cases that are shown; of more, those that differ most.
const MAX_CASES: usize = 12;
/// Most figures of a case that are shown.
const MAX_FIGURES: usize = 6;
/// Most columns of a case's name, and of a figure's.
const MAX_NAME: usize = 20;

/// A row for each assertion that needs a share of runs, in each condition.
pub(super) fn assertions(summary: &Summary) -> Vec<TableRow> {
    let rows = |threshold: &Threshold| {
        let of_cell = |cell: &crate::statistics::AssertionCount| {
            let mut texts = row([("", shortened(&threshold.that))]);
            let name = cell.condition.as_ref().map(|name| ("condition".to_string(), shortened(name)));
            texts.extend(name);
            texts.extend(row([
                ("held in", format!("{} of {} runs", cell.held, cell.runs)),
                ("share", FigureStyle::Percent.value(&cell.estimate)),
                ("interval", FigureStyle::Percent.interval(&cell.estimate)),
                ("required", threshold.share.to_string()),
                ("", if cell.holds { "pass" } else { "FAILED" }.to_string()),
            ]));
            texts
        };
        threshold.cells.iter().map(of_cell).collect::<Vec<_>>()
    };
    summary.assertions.iter().flat_map(rows).collect()
}

/// Title and rows of the cases, or of those that differ most from all; `None` if there are no cases.
pub(super) fn cases(summary: &Summary) -> Option<(String, Vec<TableRow>)> {
    let by_case = by_case(summary)?;
    let is_assertion =
        |figure: &Figure| matches!(figure.subject, Subject::Assertion { .. } | Subject::Assertions);
    let mut columns: Vec<usize> = (0..by_case.figures.len()).collect();
    columns.sort_by_key(|column| !is_assertion(by_case.figures[*column]));
    columns.truncate(MAX_FIGURES);
    let hidden = by_case.figures.len() - columns.len();
    let (n, is_cut) = (by_case.rows.len(), by_case.rows.len() > MAX_CASES);
    let rows: Vec<&CaseRow<'_>> =
        if is_cut { by_case.furthest(MAX_CASES) } else { by_case.rows.iter().collect() };
    let mut title = if is_cut {
        format!("Cases that differ most from all, {MAX_CASES} of {n}")
    } else {
        "Cases".to_string()
    };
    if is_cut || hidden > 0 {
        title += if hidden > 0 { " (all, with more figures, in cases.csv)" } else { " (all in cases.csv)" };
    }
    let of_case = |case: &&CaseRow<'_>| {
        let mut texts = row([("case", cut(&case.case))]);
        texts.extend(case.condition_name.iter().map(|name| ("condition".to_string(), shortened(name))));
        texts.extend(row([("runs", case.runs.to_string())]));
        texts.extend(columns.iter().map(|column| (name(by_case.figures[*column]), value(case, *column))));
        texts
    };
    let rows = rows.iter().map(of_case).collect();
    Some((title, rows))
}

/// A case's figure, with the number of its runs where some of them have no value.
fn value(case: &CaseRow<'_>, column: usize) -> String {
    let Some(cell) = case.figures.get(column).copied().flatten() else { return "-".to_string() };
    FigureStyle::of(cell).value(&cell.estimate) + &case.runs_with_value(cell)
}

/// A figure's name as the head of a column.
fn name(figure: &Figure) -> String {
    let name = match &figure.subject {
        Subject::Outcome { outcome, value: None } => outcome.clone(),
        Subject::Outcome { outcome, value: Some(value) } => format!("{outcome} = {value}"),
        Subject::Payoff { agent: Some(agent), unit } => format!("{agent}, {unit}"),
        Subject::Payoff { agent: None, unit } => unit.clone(),
        Subject::Decision { phase, option } => {
            format!("{phase}: {}", option.as_deref().unwrap_or("nothing"))
        }
        Subject::Assertions => "assertions".to_string(),
        Subject::Assertion { that } => that.clone(),
        Subject::Number(question) => question.to_string(),
        Subject::Choice(asked) => asked.to_string(),
        other => other.to_string(),
    };
    cut(&name)
}

fn cut(text: &str) -> String {
    truncate_str(&printable(text), MAX_NAME, "…").into_owned()
}
