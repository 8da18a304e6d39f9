//! Joint choices of two agents: a heat map for each cell, rows the first agent's options, columns the
//! second's.

use super::super::subject::{Rounds, Subject};
use super::super::summary::{InCell, Summary};
use super::label;
use crate::drawing::{
    self, MARGIN, Panel, Sheet, WIDTH, centred, fitted, lines, rectangle, round, series, text,
};
use indexmap::{IndexMap, IndexSet};
use svg::node::element::Group;

/// Width left of the fields, where rows have their names.
const LEFT: f64 = 110.0;
const ROW: f64 = 46.0;
const SIZE: f64 = 11.5;
/// Height of a line of a name.
const LINE: f64 = 14.0;

/// Phase, agents, which rounds, cell.
type PlotKey<'a> = (&'a str, &'a [String], Rounds, usize);
/// The figure of each combination of choices.
type Map<'a> = IndexMap<(String, String), &'a InCell>;

/// The picture; `None` if no two agents chose together.
pub(super) fn sheet(summary: &Summary) -> Option<Sheet> {
    let mut maps: IndexMap<PlotKey<'_>, Map<'_>> = IndexMap::new();
    for figure in &summary.figures {
        let Subject::Joint { phase, agents, rounds, choices } = &figure.subject else { continue };
        let [row, column] = choices.as_slice() else { continue };
        let name = |choice: &Option<String>| choice.clone().unwrap_or_else(|| "(invalid)".into());
        for cell in &figure.cells {
            let map = maps.entry((phase, agents, *rounds, cell.cell)).or_default();
            map.insert((name(row), name(column)), cell);
        }
    }
    let panels = maps.into_iter().map(|(key, map)| panel(summary, key, map)).collect();
    let level = 100.0 * summary.confidence;
    let cluster = if summary.pools_cases() { "Runs of one case" } else { "Rounds of one run" };
    let caption = format!(
        "How often both chose so in the same round, with the rate's {level} % confidence interval. {cluster} \
         are not treated as independent."
    );
    super::sheet("Choices made together", Vec::new(), caption, panels)
}

fn panel(summary: &Summary, (phase, agents, rounds, cell): PlotKey<'_>, map: Map<'_>) -> Panel {
    let which = if rounds == Rounds::Last { "last round" } else { "all rounds" };
    let cell = summary.cells.get(cell).filter(|_| summary.cells.len() > 1);
    let n = map.values().next().map_or(0, |cell| cell.observations);
    let of = cell.map_or_else(|| format!("n = {n}"), label);
    let (height, drawing) = grid(agents, &map);
    Panel { title: format!("{phase}, {which}, {of}"), height, drawing }
}

/// The map of two agents, and how high it is.
fn grid(agents: &[String], map: &Map<'_>) -> (f64, Group) {
    let rows: IndexSet<&str> = map.keys().map(|(row, _)| row.as_str()).collect();
    let columns: IndexSet<&str> = map.keys().map(|(_, column)| column.as_str()).collect();
    let width = (WIDTH - LEFT - MARGIN) / columns.len().max(1) as f64;
    let names: Vec<_> = columns.iter().map(|name| lines(name, SIZE, width - 4.0, 2)).collect();
    let head = 22.0 + LINE * names.iter().map(Vec::len).max().unwrap_or(0) as f64;
    let (mut group, room) = (Group::new(), LEFT - MARGIN - 6.0);
    if let [first, second] = agents {
        let middle = (LEFT + WIDTH - MARGIN) / 2.0;
        group = group.add(centred(&fitted(second, SIZE, WIDTH - LEFT - MARGIN), middle, 10.0, SIZE, "muted"));
        group = group.add(text(&fitted(first, SIZE, room), MARGIN, head - 8.0, SIZE, "muted"));
    }
    for (at, name) in names.iter().enumerate() {
        let x = round(LEFT + width * (at as f64 + 0.5));
        for (above, name) in name.iter().rev().enumerate() {
            group = group.add(centred(name, x, head - 8.0 - LINE * above as f64, SIZE, "ink"));
        }
    }
    for (down, row) in rows.iter().enumerate() {
        let y = head + ROW * down as f64;
        let names = lines(row, SIZE, room, 3);
        let top = y + ROW / 2.0 + 4.0 - LINE * (names.len() as f64 - 1.0) / 2.0;
        for (below, name) in names.iter().enumerate() {
            group = group.add(text(name, MARGIN, top + LINE * below as f64, SIZE, "ink"));
        }
        for (across, column) in columns.iter().enumerate() {
            let cell = map.get(&(row.to_string(), column.to_string()));
            group = group.add(field((LEFT + width * across as f64, y), width, cell.copied()));
        }
    }
    (head + ROW * rows.len() as f64 + 4.0, group)
}

/// One combination: the deeper its colour, the more often it was.
fn field((x, y): (f64, f64), width: f64, cell: Option<&InCell>) -> Group {
    let area = rectangle((round(x + 1.0), y + 1.0), (round((width - 2.0).max(0.5)), ROW - 2.0));
    let Some((cell, rate)) = cell.and_then(|cell| Some((cell, cell.estimate.value?))) else {
        return Group::new().add(area.set("class", "grid"));
    };
    let count = cell.count.unwrap_or_default();
    let percent = format!("{:.0} %", 100.0 * rate);
    let label = [format!("{count} ({percent})"), percent, count.to_string()];
    let interval = cell.estimate.low.zip(cell.estimate.high);
    let interval = interval.map(|(low, high)| format!("[{:.0}, {:.0}]", 100.0 * low, 100.0 * high));
    let fits = |label: &String| drawing::width(label, SIZE) <= width - 4.0;
    let label = [(label.into_iter().find(fits), 19.0), (interval.filter(fits), 35.0)].into_iter();
    let label = label
        .filter_map(|(label, below)| Some(centred(&label?, round(x + width / 2.0), y + below, SIZE, "ink")));
    // At most so deep that letters can be read on it, on either paper.
    let depth = (700.0 * rate).round() / 1000.0;
    let area = area.set("class", series(0) + " field").set("fill-opacity", depth);
    label.fold(Group::new().add(area), Group::add)
}
