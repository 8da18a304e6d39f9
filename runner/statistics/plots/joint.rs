//! What two agents chose together: a heat map for each cell, rows the first agent's options, columns the second's.

use super::super::measures::{Rounds, Subject};
use super::super::summary::{InCell, Summary};
use super::paper::{Area, GRID, INK, MUTED, Sheet, WIDTH, centred, color, label, letters, write};
use super::{Heading, Panel};
use crate::drawing::fitted;
use indexmap::IndexMap;
use plotters::prelude::Rectangle;
use plotters::style::Color as _;

const LEFT: i32 = 110;
const ROW: i32 = 46;

/// Phase, agents, which rounds, cell.
type Key<'a> = (&'a str, &'a [String], Rounds, usize);
/// What was chosen together, and how often.
type Map<'a> = IndexMap<(String, String), &'a InCell>;

/// The picture; `None` if no two agents chose together.
pub(super) fn sheet(summary: &Summary) -> Option<Sheet<'_>> {
    let mut maps: IndexMap<Key<'_>, Map<'_>> = IndexMap::new();
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
    let caption = format!(
        "How often both chose so in the same round, with the rate's interval at {level} %. Rounds of one run are not \
         taken for independent."
    );
    let heading =
        Heading { title: "Choices made together".into(), caption: vec![caption], has_legend: false };
    Sheet::of(heading, panels)
}

fn panel<'a>(summary: &'a Summary, (phase, agents, rounds, cell): Key<'a>, map: Map<'a>) -> Panel<'a> {
    let which = if rounds == Rounds::Last { "last round" } else { "all rounds" };
    let cells = summary.cells.get(cell).filter(|_| summary.cells.len() > 1);
    let of = cells.map_or(String::new(), |cell| format!(", {}", label(cell)));
    let n = map.values().next().map_or(0, |cell| cell.observations);
    let n = if cells.is_none() { format!(", n = {n}") } else { String::new() };
    let (mut rows, mut columns): (Vec<String>, Vec<String>) = map.keys().cloned().unzip();
    for names in [&mut rows, &mut columns] {
        let mut seen = Vec::new();
        names.retain(|name| {
            !seen.contains(name) && {
                seen.push(name.clone());
                true
            }
        });
    }
    let title = format!("{phase}, {which}{n}{of}");
    let height = 44 + ROW as u32 * rows.len() as u32 + 14;
    let draw = move |area: &Area<'_>| grid(area, agents, (&rows, &columns), &map);
    Panel { title, height, draw: Box::new(draw) }
}

fn grid(
    area: &Area<'_>,
    agents: &[String],
    (rows, columns): (&[String], &[String]),
    map: &Map<'_>,
) -> anyhow::Result<()> {
    let [first, second] = agents else { return Ok(()) };
    let width = (WIDTH as i32 - LEFT - 16) / columns.len().max(1) as i32;
    let small = || centred(letters(11.5, &MUTED));
    let middle = LEFT + width * columns.len() as i32 / 2;
    write(area, &fitted(second, 11.5, 300.0), (middle, 8), &small())?;
    for (at, name) in columns.iter().enumerate() {
        let x = LEFT + width * at as i32 + width / 2;
        write(area, &fitted(name, 11.5, f64::from(width)), (x, 26), &centred(letters(12.0, &INK)))?;
    }
    write(area, &fitted(first, 11.5, 90.0), (16, 26), &letters(11.5, &MUTED))?;
    for (down, row) in rows.iter().enumerate() {
        let y = 38 + ROW * down as i32;
        write(area, &fitted(row, 12.0, 90.0), (16, y + ROW / 2), &letters(12.0, &INK))?;
        for (across, column) in columns.iter().enumerate() {
            let x = LEFT + width * across as i32;
            let corners = [(x + 1, y + 1), (x + width - 1, y + ROW - 1)];
            let cell = map.get(&(row.clone(), column.clone()));
            field(area, corners, width, cell.copied())?;
        }
    }
    Ok(())
}

/// One combination: the deeper its colour, the more often it was.
fn field(area: &Area<'_>, corners: [(i32, i32); 2], width: i32, cell: Option<&InCell>) -> anyhow::Result<()> {
    area.draw(&Rectangle::new(corners, GRID.stroke_width(1)))?;
    let Some((cell, rate)) = cell.and_then(|cell| Some((cell, cell.estimate.value?))) else { return Ok(()) };
    // At most so deep that letters can be read on it, on either paper.
    area.draw(&Rectangle::new(corners, color(0).mix(0.7 * rate).filled()))?;
    let (x, y) = (corners[0].0 + width / 2, (corners[0].1 + corners[1].1) / 2);
    let count = cell.count.unwrap_or_default();
    let text = format!("{count} ({:.0} %)", 100.0 * rate);
    write(area, &fitted(&text, 12.0, f64::from(width)), (x, y - 8), &centred(letters(12.0, &INK)))?;
    let (Some(low), Some(high)) = (cell.estimate.low, cell.estimate.high) else { return Ok(()) };
    let text = format!("[{:.0}, {:.0}]", 100.0 * low, 100.0 * high);
    write(area, &fitted(&text, 11.0, f64::from(width)), (x, y + 9), &centred(letters(11.0, &INK)))
}
