//! Pictures of a sample: choices by round, payoffs, joint choices, the state over time. One self-contained SVG each, as wide as a
//! phone makes legible, readable on light and on dark paper.

mod choices;
mod joint;
mod payoffs;
mod states;

use super::{CellSummary, InCell, Sample, Summary};
use crate::drawing::{self, Axes, Panel, Sheet, WIDTH, line};
use crate::files;
use crate::scenario::text_of;
use anyhow::Context as _;
use std::path::{Path, PathBuf};
use svg::node::element::Line;

/// Most panels of a picture; what has no panel is in the tables and the summary.
const MAX_PANELS: usize = 24;
/// Size of the names below a panel.
const SIZE: f64 = 11.5;
/// Width that a panel's amounts take at most.
const AXIS: f64 = 90.0;

/// Draws what there is to draw, of each cell, or of each condition where cases are pooled, as `choices.svg`,
/// `payoffs.svg`, `joint.svg` and `state.svg`, into a folder that is made if it is not there, and returns their paths.
///
/// # Errors
/// The folder or a file can't be written.
pub fn plots(sample: &Sample, summary: &Summary, folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    std::fs::create_dir_all(folder).with_context(|| format!("can't write {}", folder.display()))?;
    let mut written = Vec::new();
    for (name, picture) in pictures(sample, summary) {
        let path = folder.join(name).with_extension("svg");
        files::write(&path, picture)?;
        written.push(path);
    }
    Ok(written)
}

/// The same pictures by their names, as SVG.
pub fn pictures(sample: &Sample, summary: &Summary) -> Vec<(&'static str, String)> {
    let summary = summary.shown();
    let sheets = [
        ("choices", choices::sheet(summary)),
        ("payoffs", payoffs::sheet(sample, summary)),
        ("joint", joint::sheet(summary)),
        ("state", states::sheet(sample, summary)),
    ];
    sheets.into_iter().filter_map(|(name, sheet)| Some((name, sheet?.draw()))).collect()
}

/// Only as many panels as can be looked at; none at all is not a picture.
fn sheet(title: &str, legend: Vec<String>, caption: String, mut panels: Vec<Panel>) -> Option<Sheet> {
    let more = panels.len().saturating_sub(MAX_PANELS);
    panels.truncate(MAX_PANELS);
    let mut caption = vec![caption];
    if more > 0 {
        caption.push(format!("{more} more are not drawn; their figures are in summary.json."));
    }
    (!panels.is_empty()).then(|| Sheet { title: title.into(), legend, panels, caption })
}

/// Names of the cells; none if there is only one, which needs no telling apart.
fn legend(summary: &Summary) -> Vec<String> {
    if summary.cells.len() > 1 { summary.cells.iter().map(label).collect() } else { Vec::new() }
}

/// A cell's values as text.
fn label(cell: &CellSummary) -> String {
    let name = &cell.name;
    match cell.cases {
        Some(cases) => format!("{name} ({} runs of {cases} cases)", cell.runs),
        None => format!("{name} ({} runs)", cell.runs),
    }
}

/// The cells side by side: their places and names; where these do not fit, the values alone, which the legend
/// explains.
fn columns(summary: &Summary) -> Vec<(f64, String)> {
    let room = (WIDTH - AXIS) / summary.cells.len().max(1) as f64;
    let fit = summary.cells.iter().all(|cell| drawing::width(&cell.name, SIZE) <= room);
    let short = |cell: &CellSummary| match cell.values.is_empty() {
        true => String::new(),
        false if fit => cell.name.clone(),
        false => cell.values.values().map(text_of).collect::<Vec<_>>().join(", "),
    };
    summary.cells.iter().enumerate().map(|(at, cell)| (at as f64, short(cell))).collect()
}

/// An estimate's interval; `None` if it has none.
fn interval(axes: &Axes, place: f64, cell: &InCell) -> Option<Line> {
    let (low, high) = (cell.estimate.low?, cell.estimate.high?);
    Some(line(axes.at(place, low), axes.at(place, high)).set("stroke-width", 2))
}
