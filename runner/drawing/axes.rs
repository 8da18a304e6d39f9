//! The axes of a plot: amounts upwards, with lines at round values; categories side by side, with names.

use super::ink::{fitted, width};
use super::shapes::{centred, line, round, text};
use super::sheet::{MARGIN, WIDTH};
use std::ops::Range;
use svg::node::element::Group;

const SIZE: f64 = 11.5;
/// Height below the amounts, where places have their names.
const FOOT: f64 = 24.0;
/// Height above the amounts: half a label.
const HEAD: f64 = 6.0;
/// Greatest number of steps between round amounts.
const MAX_STEPS: i64 = 6;

/// Two axes on a panel.
pub(crate) struct Axes {
    across: AxisScale,
    up: AxisScale,
    /// Round amounts and how they are written.
    labels: Vec<(f64, String)>,
}

/// Numbers from one to another, and the places of these two on the panel.
struct AxisScale {
    values: Range<f64>,
    ends: (f64, f64),
}

impl AxisScale {
    /// Place of a number; what is beyond an end is at it.
    fn at(&self, value: f64) -> f64 {
        let part = (value - self.values.start) / (self.values.end - self.values.start);
        round(self.ends.0 + part.clamp(0.0, 1.0) * (self.ends.1 - self.ends.0))
    }
}

impl Axes {
    /// Axes of a panel of a height. The longer amounts are when written, the less is left for places.
    pub(crate) fn new(height: f64, across: Range<f64>, up: Range<f64>, written: fn(f64) -> String) -> Self {
        let labels: Vec<_> = ticks(&up).into_iter().map(|amount| (amount, written(amount))).collect();
        let left = labels.iter().map(|(_, label)| width(label, SIZE)).fold(38.0, f64::max);
        let across = AxisScale { values: across, ends: (round(MARGIN + left + 6.0), WIDTH - 12.0) };
        Self { across, up: AxisScale { values: up, ends: (height - FOOT, HEAD) }, labels }
    }

    /// Point of an amount at a place.
    pub(crate) fn at(&self, place: f64, amount: f64) -> (f64, f64) {
        (self.across.at(place), self.up.at(amount))
    }

    /// The axes with their labels. What all places are is said once, left of their names.
    pub(crate) fn draw(&self, what: &str, places: &[(f64, String)]) -> Group {
        let ((left, right), (bottom, top)) = (self.across.ends, self.up.ends);
        let grid = |from, to| line(from, to).set("class", "grid");
        let mut group =
            Group::new().add(grid((left, top), (left, bottom))).add(grid((left, bottom), (right, bottom)));
        for (amount, label) in &self.labels {
            let y = self.up.at(*amount);
            let label = text(label, left - 6.0, y + 4.0, SIZE, "muted").set("text-anchor", "end");
            group = group.add(grid((left, y), (right, y))).add(label);
        }
        let below = bottom + 16.0;
        if !what.is_empty() {
            group = group.add(text(what, MARGIN, below, SIZE, "muted"));
        }
        let room = (right - left) / places.len().max(1) as f64;
        for (place, name) in places.iter().filter(|(_, name)| !name.is_empty()) {
            let x = self.across.at(*place);
            group = group.add(centred(&fitted(name, SIZE, room), x, below, SIZE, "muted"));
        }
        group
    }
}

/// Round numbers within a range: multiples of 1, 2 or 5 times a power of ten. They are read from decimals,
/// which gives the nearest number of all on every machine.
fn ticks(range: &Range<f64>) -> Vec<f64> {
    let span = range.end - range.start;
    let written = format!("{:e}", span / MAX_STEPS as f64);
    let Some((_, power)) = written.split_once('e') else { return Vec::new() };
    let decimal = |n: i64| format!("{n}e{power}").parse::<f64>().unwrap_or_default();
    let few = |step: &i64| span / decimal(*step) < MAX_STEPS as f64;
    let step = [1, 2, 5, 10].into_iter().find(few).unwrap_or(20);
    let (first, last) = (range.start / decimal(step), range.end / decimal(step));
    (first.ceil() as i64..=last.floor() as i64).map(|n| decimal(n.saturating_mul(step))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(ticks(&(0.0..1.0)), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]);
        assert_eq!(ticks(&(-0.25..0.45)), [-0.2, 0.0, 0.2, 0.4]);
        assert_eq!(
            ticks(&(1e8 - 3.0..1e8 + 8.0)),
            [99_999_998.0, 1e8, 100_000_002.0, 100_000_004.0, 100_000_006.0, 100_000_008.0]
        );
        assert_eq!(ticks(&(-1e300..1e300)), [-1e300, -5e299, 0.0, 5e299, 1e300]);
        assert!(ticks(&(0.0..f64::INFINITY)).is_empty() && ticks(&(0.0..f64::NAN)).is_empty());
        for span in (1..2_000).map(|n| f64::from(n) * 0.37) {
            let n = ticks(&(-0.3 * span..0.7 * span)).len();
            assert!((2..=7).contains(&n), "{n} for {span}");
        }
    }
}
