//! Rates of options, round by round: a panel for each agent and option, a line for each cell.

use super::super::subject::{AgentOption, Subject};
use super::super::summary::{InCell, Summary};
use super::{columns, interval, legend};
use crate::drawing::{Axes, Panel, Sheet, line, mark, series};
use indexmap::IndexMap;
use std::collections::BTreeMap;
use svg::node::element::Group;

/// Height of a panel.
const HEIGHT: f64 = 150.0;

/// Figures of an option by round.
type ByRound<'a> = BTreeMap<usize, &'a [InCell]>;

/// The picture; `None` if nothing was chosen.
pub(super) fn sheet(summary: &Summary) -> Option<Sheet> {
    let mut asked: IndexMap<&AgentOption, ByRound<'_>> = IndexMap::new();
    for figure in &summary.figures {
        if let Subject::Round { asked: by, round } = &figure.subject {
            asked.entry(by).or_default().insert(*round, &figure.cells);
        }
    }
    let options = |by: &AgentOption| {
        let same = asked.keys().filter(|other| other.question == by.question);
        same.map(|other| &other.option).collect::<Vec<_>>()
    };
    let panels = asked.iter().filter_map(|(by, rounds)| {
        let options = options(by);
        // Of two options the second is what the first lacks.
        let is_rest = options.len() == 2 && options[1] == &by.option;
        (!is_rest).then(|| panel(summary, by, rounds))
    });
    let level = 100.0 * summary.confidence;
    let bars = if summary.pools_cases() {
        format!("{level} % confidence intervals, clustered by case")
    } else {
        format!("Wilson's {level} % confidence intervals")
    };
    let caption = format!(
        "Share of runs in which the option was chosen; bars are {bars}. With two options, the second is the \
         complement of the first."
    );
    super::sheet("Choices", legend(summary), caption, panels.collect())
}

fn panel(summary: &Summary, asked: &AgentOption, rounds: &ByRound<'_>) -> Panel {
    let runs = rounds.values().flat_map(|cells| cells.iter()).map(|cell| cell.observations);
    let (least, most) = (runs.clone().min().unwrap_or(0), runs.max().unwrap_or(0));
    let n = if least == most { format!("n = {most}") } else { format!("n = {least} to {most}") };
    let title = format!("{asked} ({n}{})", if summary.cells.len() > 1 { " each" } else { "" });
    let drawing = if rounds.len() == 1 { once(summary, rounds) } else { by_round(summary, rounds) };
    Panel { title, height: HEIGHT, drawing }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// Lines over rounds, moved aside a little so that bars don't cover each other.
fn by_round(summary: &Summary, rounds: &ByRound<'_>) -> Group {
    let (first, last) = (*rounds.keys().next().unwrap_or(&1), *rounds.keys().last().unwrap_or(&1));
    let step = (last - first) / 12 + 1;
    let shown = (first..=last).step_by(step).map(|round| (round as f64, round.to_string()));
    let axes = Axes::new(HEIGHT, first as f64 - 0.5..last as f64 + 0.5, 0.0..1.0, percent);
    let mut group = axes.draw("round", &shown.collect::<Vec<_>>());
    let n_cells = summary.cells.len();
    let points = |cell: usize| {
        let aside = (cell as f64 - (n_cells as f64 - 1.0) / 2.0) * (0.5 / n_cells as f64);
        let found = rounds
            .iter()
            .filter_map(move |(round, cells)| Some((*round, cells.iter().find(|c| c.cell == cell)?)));
        found.map(move |(round, cell)| (round as f64 + aside, cell)).collect::<Vec<(f64, &InCell)>>()
    };
    let at = |(x, cell): &(f64, &InCell)| Some(axes.at(*x, cell.estimate.value?));
    // Lines first, so that none runs over another cell's points.
    for cell in 0..n_cells {
        for ends in points(cell).windows(2) {
            let (Some(from), Some(to)) = (at(&ends[0]), at(&ends[1])) else { continue };
            let line = line(from, to).set("class", series(cell)).set("stroke-width", 2);
            group = group.add(line.set("stroke-opacity", 0.6));
        }
    }
    (0..n_cells).flat_map(points).filter_map(|(x, cell)| point(&axes, x, cell)).fold(group, Group::add)
}

/// A point for each cell, where there was one round.
fn once(summary: &Summary, rounds: &ByRound<'_>) -> Group {
    let axes = Axes::new(HEIGHT, -0.5..summary.cells.len() as f64 - 0.5, 0.0..1.0, percent);
    let cells = rounds.values().flat_map(|cells| cells.iter());
    let points = cells.filter_map(|cell| point(&axes, cell.cell as f64, cell));
    points.fold(axes.draw("", &columns(summary)), Group::add)
}

/// Mark and interval of a cell, if there is anything to mark.
fn point(axes: &Axes, x: f64, cell: &InCell) -> Option<Group> {
    let mark = mark(axes.at(x, cell.estimate.value?), cell.cell);
    Some(interval(axes, x, cell).into_iter().fold(mark, Group::add))
}
