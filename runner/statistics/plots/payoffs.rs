//! Distributions of payoffs: a panel for each agent, a column for each cell. The wider a bar, the more runs
//! came to that value, so that few runs and many, equal values and different ones, are all seen for what they
//! are.

use super::super::Sample;
use super::super::bootstrap::Contribution;
use super::super::groups::Groups;
use super::super::measures::Measures;
use super::super::subject::Subject;
use super::super::summary::{Figure, InCell, Summary};
use super::{columns, interval, legend};
use crate::drawing::{Axes, Panel, Sheet, rectangle, round, series};
use std::ops::Range;
use svg::node::element::{Circle, Group};

/// Most different values that have a bar each; more are put into as many bins.
const MAX_BARS: usize = 15;
/// Height of a panel.
const HEIGHT: f64 = 190.0;
/// Half the width of the longest bar, of a column's width of one.
const HALF: f64 = 0.42;

/// The picture; `None` without payoffs.
pub(super) fn sheet(sample: &Sample, summary: &Summary) -> Option<Sheet> {
    let (measures, groups) = (
        Measures::new(sample, summary.grouping.over_agents),
        Groups::shown_groups(sample, &summary.grouping.by),
    );
    let mut panels = Vec::new();
    for figure in &summary.figures {
        let (Subject::Payoff { agent, unit }, Some(measure)) =
            (&figure.subject, measures.by_subject.get(&figure.subject))
        else {
            continue;
        };
        let total =
            |(run, part): (&usize, &Contribution)| Some((groups.of(measures.runs[*run])?.0, part.mean()));
        let totals: Vec<(usize, f64)> = measure.parts.iter().filter_map(total).collect();
        let Some(bars) = Bars::new(&totals, summary.cells.len()) else { continue };
        let title = format!(
            "{}{unit} (n = {}; widest bar {:.0} %)",
            agent.as_ref().map_or(String::new(), |agent| format!("{agent}, ")),
            counts(summary, figure),
            100.0 * bars.widest
        );
        panels.push(Panel { title, height: HEIGHT, drawing: draw(summary, figure, &bars) });
    }
    let level = 100.0 * summary.confidence;
    let lines =
        if summary.pools_cases() { "confidence intervals, clustered by case" } else { "bootstrap intervals" };
    let caption = format!(
        "Sum over a run's rounds. The wider a bar, the larger the share of the condition's runs with \
         this value. Points are means; their lines are {level} % {lines}."
    );
    super::sheet("Payoffs", legend(summary), caption, panels)
}

/// Runs of the cells, once if they are equal.
fn counts(summary: &Summary, figure: &Figure) -> String {
    let mut counts: Vec<String> = figure.cells.iter().map(|cell| summary.runs(cell).1.to_string()).collect();
    counts.dedup();
    counts.join(", ")
}

/// Bars of a cell: from, to, and the part of its runs.
fn bars(values: &[f64], edges: &[(f64, f64)]) -> Vec<(f64, f64, f64)> {
    let within = |(low, high): &(f64, f64)| values.iter().filter(|v| low <= *v && *v < high).count();
    edges.iter().map(|edge| (edge.0, edge.1, within(edge) as f64 / values.len().max(1) as f64)).collect()
}

/// Lower and upper edges of the bars, by all cells' values: around each value, or bins of equal width.
fn edges(totals: &[(usize, f64)]) -> Vec<(f64, f64)> {
    let mut values: Vec<f64> = totals.iter().map(|(_, value)| *value).collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    let (Some(low), Some(high)) = (values.first().copied(), values.last().copied()) else {
        return Vec::new();
    };
    let range = high - low;
    let gaps = values.windows(2).map(|pair| pair[1] - pair[0]);
    if values.len() <= MAX_BARS {
        let most = if range > 0.0 { range / 12.0 } else { low.abs().max(1.0) / 60.0 };
        let half = gaps.fold(most, f64::min).max(range / 100.0) * 0.4;
        return values.into_iter().map(|value| (value - half, value + half)).collect();
    }
    let width = range / MAX_BARS as f64;
    let bin = |at: usize| (low + at as f64 * width, low + (at + 1) as f64 * width);
    let mut bins: Vec<(f64, f64)> = (0..MAX_BARS).map(bin).collect();
    // The greatest value is on the last edge, which belongs to no bar.
    if let Some(last) = bins.last_mut() {
        last.1 += range * 1e-9;
    }
    bins
}

/// The bars of all cells.
struct Bars {
    /// From and to.
    range: Range<f64>,
    /// Of each cell.
    cells: Vec<Vec<(f64, f64, f64)>>,
    /// Part of its cell's runs that the widest bar is.
    widest: f64,
}

impl Bars {
    /// `None` for what no axis can hold.
    fn new(totals: &[(usize, f64)], n_cells: usize) -> Option<Self> {
        let edges = edges(totals);
        let (low, high) = (edges.first()?.0, edges.last()?.1);
        // If all runs are equal, a margin that makes the bar visibly one value.
        let room = if edges.len() == 1 { (high - low) * 5.0 } else { (high - low) * 0.06 };
        let range = low - room..high + room;
        // Beyond the greatest numbers there is no scale, and among those next to each other there are no
        // round ones.
        let (span, size) = (range.end - range.start, low.abs().max(high.abs()));
        if !(span.is_finite() && span > 1e-9 * size && span > 1e-290) {
            return None;
        }
        let own =
            |cell: usize| totals.iter().filter(move |(other, _)| *other == cell).map(|(_, value)| *value);
        let cells: Vec<_> = (0..n_cells).map(|cell| bars(&own(cell).collect::<Vec<_>>(), &edges)).collect();
        let widest = cells.iter().flatten().map(|(.., part)| *part).fold(0.0, f64::max);
        Some(Self { range, cells, widest })
    }
}

fn draw(summary: &Summary, figure: &Figure, bars: &Bars) -> Group {
    let axes = Axes::new(HEIGHT, -0.5..summary.cells.len() as f64 - 0.5, bars.range.clone(), amount);
    let mut group = axes.draw("", &columns(summary));
    for (cell, bars_of) in bars.cells.iter().enumerate() {
        for (low, high, part) in bars_of.iter().filter(|(.., part)| *part > 0.0) {
            // One scale for all cells, so that widths can be compared.
            let half = HALF * part / bars.widest;
            let (from, to) = (axes.at(cell as f64 - half, *high), axes.at(cell as f64 + half, *low));
            let bar = rectangle(from, (round(to.0 - from.0), round(to.1 - from.1)));
            group = group.add(bar.set("class", series(cell)).set("fill-opacity", 0.45));
        }
    }
    figure.cells.iter().filter_map(|cell| mean(&axes, cell)).fold(group, Group::add)
}

/// A value on an axis.
fn amount(value: f64) -> String {
    match value.abs() {
        size if size != 0.0 && !(1e-4..1e7).contains(&size) => format!("{value:e}"),
        _ => value.to_string(),
    }
}

/// A cell's mean and its interval, if it has one.
fn mean(axes: &Axes, cell: &InCell) -> Option<Group> {
    let (x, y) = axes.at(cell.cell as f64, cell.estimate.value?);
    let mean = Group::new().set("class", "mean").add(Circle::new().set("cx", x).set("cy", y).set("r", 2.5));
    Some(interval(axes, cell.cell as f64, cell).into_iter().fold(mean, Group::add))
}
