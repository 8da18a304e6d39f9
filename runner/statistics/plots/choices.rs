//! How often an option was chosen, round by round: a panel for each agent and option, a line for each cell.

use super::super::measures::{Offer, Subject};
use super::super::summary::{InCell, Summary};
use super::paper::{Area, Sheet, axes, color, line, mark, place, short};
use super::{Heading, Panel};
use indexmap::IndexMap;
use plotters::style::Color as _;
use std::collections::BTreeMap;

/// Figures of an option by round.
type ByRound<'a> = BTreeMap<usize, &'a [InCell]>;

/// The picture; `None` if nothing was chosen.
pub(super) fn sheet(summary: &Summary) -> Option<Sheet<'_>> {
    let mut asked: IndexMap<&Offer, ByRound<'_>> = IndexMap::new();
    for figure in &summary.figures {
        if let Subject::Round { asked: by, round } = &figure.subject {
            asked.entry(by).or_default().insert(*round, &figure.cells);
        }
    }
    let options = |by: &Offer| {
        let same = asked.keys().filter(|other| other.question == by.question);
        same.map(|other| &other.option).collect::<Vec<_>>()
    };
    let panels = asked.iter().filter_map(|(by, rounds)| {
        let options = options(by);
        // Of two options the second is what the first lacks.
        let is_rest = options.len() == 2 && options[1] == &by.option;
        (!is_rest).then(|| panel(summary, by, rounds.clone()))
    });
    let level = 100.0 * summary.confidence;
    let caption = format!(
        "Part of the runs in which the option was chosen; bars are Wilson's intervals at {level} %. Of two options \
         the second is what the first lacks."
    );
    let heading = Heading { title: "Choices".into(), caption: vec![caption], has_legend: true };
    Sheet::of(heading, panels.collect())
}

fn panel<'a>(summary: &'a Summary, asked: &Offer, rounds: ByRound<'a>) -> Panel<'a> {
    let runs = rounds.values().flat_map(|cells| cells.iter()).map(|cell| cell.observations);
    let (least, most) = (runs.clone().min().unwrap_or(0), runs.max().unwrap_or(0));
    let n = if least == most { format!("n = {most}") } else { format!("n = {least} to {most}") };
    let title = format!("{asked} ({n}{})", if summary.cells.len() > 1 { " each" } else { "" });
    let draw = move |area: &Area<'_>| match rounds.len() {
        1 => once(summary, area, &rounds),
        _ => by_round(summary, area, &rounds),
    };
    Panel { title, height: 150, draw: Box::new(draw) }
}

fn percent(share: &f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// Lines over rounds, moved aside a little so that bars don't cover each other.
fn by_round(summary: &Summary, area: &Area<'_>, rounds: &ByRound<'_>) -> anyhow::Result<()> {
    let (first, last) = (*rounds.keys().next().unwrap_or(&1), *rounds.keys().last().unwrap_or(&1));
    let step = (last - first) / 12 + 1;
    let rounds_shown = (first..=last).step_by(step);
    let places: Vec<(f64, String)> = rounds_shown.map(|round| (round as f64, round.to_string())).collect();
    let chart = axes(area, first as f64 - 0.5..last as f64 + 0.5, 0.0..1.0, &percent, ("round", &places))?;
    let n_cells = summary.cells.len();
    let points = |cell: usize| {
        let aside = (cell as f64 - (n_cells as f64 - 1.0) / 2.0) * (0.5 / n_cells as f64);
        let found = rounds
            .iter()
            .filter_map(move |(round, cells)| Some((*round, cells.iter().find(|c| c.cell == cell)?)));
        found.map(move |(round, cell)| (round as f64 + aside, cell)).collect::<Vec<(f64, &InCell)>>()
    };
    let at = |(x, cell): &(f64, &InCell)| Some(place(area, &chart, *x, cell.estimate.value?));
    // Lines first, so that none runs over another cell's points.
    for cell in 0..n_cells {
        for ends in points(cell).windows(2) {
            if let (Some(from), Some(to)) = (at(&ends[0]), at(&ends[1])) {
                line(area, [from, to], color(cell).mix(0.6).stroke_width(2))?;
            }
        }
    }
    for (x, in_cell) in (0..n_cells).flat_map(points) {
        point(area, &chart, x, in_cell)?;
    }
    Ok(())
}

/// A point for each cell, where there was one round.
fn once(summary: &Summary, area: &Area<'_>, rounds: &ByRound<'_>) -> anyhow::Result<()> {
    let n_cells = summary.cells.len();
    let names = summary.cells.iter().enumerate().map(|(at, cell)| (at as f64, short(cell)));
    let chart = axes(area, -0.5..n_cells as f64 - 0.5, 0.0..1.0, &percent, ("", &names.collect::<Vec<_>>()))?;
    for cell in rounds.values().flat_map(|cells| cells.iter()) {
        point(area, &chart, cell.cell as f64, cell)?;
    }
    Ok(())
}

fn point(area: &Area<'_>, chart: &super::paper::Chart<'_, '_>, x: f64, cell: &InCell) -> anyhow::Result<()> {
    let at = |y: f64| place(area, chart, x, y);
    if let (Some(low), Some(high)) = (cell.estimate.low, cell.estimate.high) {
        line(area, [at(low), at(high)], color(cell.cell).stroke_width(2))?;
    }
    cell.estimate.value.map_or(Ok(()), |value| mark(area, at(value), cell.cell))
}
