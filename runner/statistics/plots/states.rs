//! Numbers of the state over time: a panel for each variable, or an agent's entry of one, a line for each cell.

use super::super::Sample;
use super::super::groups::Groups;
use super::super::states::state_values;
use super::super::summary::Summary;
use super::legend;
use crate::drawing::{Axes, Panel, Sheet, line, round, series};
use indexmap::IndexMap;
use svg::node::element::{Group, Polygon};

/// Height of a panel.
const HEIGHT: f64 = 160.0;
/// The part of the runs that a band leaves out at each of its edges.
const EDGE: f64 = 0.1;
/// Most places that are named along a panel.
const MAX_NAMED: usize = 12;

/// A run's values of one number, one after the other, and the run's cell.
type Trajectory = (usize, Vec<f64>);

/// The picture; `None` without numbers that change.
pub(super) fn sheet(sample: &Sample, summary: &Summary) -> Option<Sheet> {
    let groups = Groups::shown_groups(sample, &summary.grouping.by);
    let mut of: IndexMap<(String, Option<String>), IndexMap<*const super::super::Run, Trajectory>> =
        IndexMap::new();
    for state in state_values(sample) {
        let (Some(number), Some((cell, _))) = (state.value.as_f64(), groups.of(state.run)) else { continue };
        let key = (state.variable.to_string(), state.agent.map(str::to_string));
        let runs = of.entry(key).or_default();
        runs.entry(std::ptr::from_ref(state.run)).or_insert((cell, Vec::new())).1.push(number);
    }
    let panels = of.into_iter().filter_map(|((variable, agent), runs)| {
        let runs: Vec<Trajectory> = runs.into_values().collect();
        // One that is only there, or set once to what it ends with, is a result and no trajectory.
        let longest = runs.iter().map(|(_, values)| values.len()).max().filter(|longest| *longest > 2)?;
        let name = agent.map_or_else(|| variable.clone(), |agent| format!("{variable} of {agent}"));
        let title = format!("{name} (n = {})", runs.len());
        Some(Panel { title, height: HEIGHT, drawing: draw(&runs, longest, summary.cells.len())? })
    });
    let panels = panels.collect();
    let caption = format!(
        "Values of the state, each time they are set; 0 is before the first turn. Lines are means over runs; \
         bands hold the middle {:.0} % of them.",
        100.0 * (1.0 - 2.0 * EDGE)
    );
    super::sheet("State", legend(summary), caption, panels)
}

/// `None` for what no axis can hold.
fn draw(runs: &[Trajectory], longest: usize, n_cells: usize) -> Option<Group> {
    let values = || runs.iter().flat_map(|(_, values)| values.iter().copied());
    let (low, high) = values().fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
    let room = if high > low { (high - low) * 0.06 } else { low.abs().max(1.0) * 0.1 };
    let range = low - room..high + room;
    let size = low.abs().max(high.abs());
    if !(range.end - range.start).is_finite() || range.end - range.start <= 1e-9 * size {
        return None;
    }
    let axes = Axes::new(HEIGHT, -0.3..longest as f64 - 0.7, range, |value| value.to_string());
    let step = longest.div_ceil(MAX_NAMED).max(1);
    let places: Vec<(f64, String)> =
        (0..longest).step_by(step).map(|at| (at as f64, at.to_string())).collect();
    let mut group = axes.draw("change", &places);
    for cell in 0..n_cells {
        let own: Vec<&[f64]> =
            runs.iter().filter(|(other, _)| *other == cell).map(|(_, values)| values.as_slice()).collect();
        let points: Vec<Point> = (0..longest).map_while(|at| Point::of(&own, at)).collect();
        group = group.add(band(&axes, &points).set("class", series(cell)).set("fill-opacity", 0.18));
        for (at, ends) in points.windows(2).enumerate() {
            let (from, to) = (axes.at(at as f64, ends[0].mean), axes.at(at as f64 + 1.0, ends[1].mean));
            group = group.add(line(from, to).set("class", series(cell)).set("stroke-width", 2));
        }
    }
    Some(group)
}

/// A cell's runs at one place.
struct Point {
    mean: f64,
    low: f64,
    high: f64,
}

impl Point {
    /// `None` where no run goes so far.
    fn of(runs: &[&[f64]], at: usize) -> Option<Self> {
        let mut values: Vec<f64> = runs.iter().filter_map(|values| values.get(at).copied()).collect();
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        let quantile = |share: f64| {
            let place = share * last as f64;
            let below = values[place.floor() as usize];
            below + (values[place.ceil() as usize] - below) * place.fract()
        };
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        Some(Self { mean, low: quantile(EDGE), high: quantile(1.0 - EDGE) })
    }
}

/// The area between a cell's lower and upper quantiles.
fn band(axes: &Axes, points: &[Point]) -> Polygon {
    let upper = points.iter().enumerate().map(|(at, point)| axes.at(at as f64, point.high));
    let lower = points.iter().enumerate().rev().map(|(at, point)| axes.at(at as f64, point.low));
    let corners = upper.chain(lower).map(|(x, y)| format!("{},{}", round(x), round(y)));
    Polygon::new().set("points", corners.collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::Point;

    #[test]
    fn a_band_holds_the_middle_of_the_runs() {
        let runs: Vec<Vec<f64>> = (0..11).map(|n| vec![f64::from(n), 5.0]).collect();
        let runs: Vec<&[f64]> = runs.iter().map(Vec::as_slice).collect();
        let point = Point::of(&runs, 0).unwrap();
        assert_eq!((point.mean, point.low, point.high), (5.0, 1.0, 9.0));
        assert!(Point::of(&runs, 2).is_none() && Point::of(&[], 0).is_none());
    }
}
