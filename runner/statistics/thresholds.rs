//! Assertions that need only a share of runs: over all runs of a cell, or of a condition where cases are
//! pooled.

use super::groups::Groups;
use super::interval::Estimate;
use super::subject::Subject;
use super::{Cell, Sample};
use crate::scenario::Share;
use indexmap::IndexMap;
use serde::Serialize;
use std::collections::BTreeMap;

/// An assertion that needs only a share of runs, in every cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Threshold {
    /// Its name: the expression, and the judge if there is one.
    pub that: String,
    /// What should be true, in the author's words.
    pub why: Option<String>,
    /// The share of runs in which it must hold.
    pub share: Share,
    /// Its number among the scenario's assertions, from 0.
    pub index: usize,
    /// By cell.
    pub cells: Vec<AssertionCount>,
}

/// The runs of a cell in which an assertion held.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AssertionCount {
    /// The cell, or the condition where cases are pooled, whatever else figures are grouped by.
    pub cell: usize,
    /// Its name; null: there is only one.
    pub condition: Option<String>,
    /// Complete runs.
    pub runs: usize,
    /// Those of them in which it held.
    pub held: usize,
    /// Those of them in which the expression failed; they count against the assertion.
    pub failed: usize,
    /// The share in which it held.
    pub estimate: Estimate,
    /// True if the share is as required.
    pub holds: bool,
}

impl Threshold {
    /// True if the share is as required in every cell.
    pub fn holds(&self) -> bool {
        self.cells.iter().all(|cell| cell.holds)
    }
}

impl AssertionCount {
    /// The counts as text, e.g. `held in 31 of 40 runs (78 %, 95 % confidence interval 62 to 88)`.
    pub fn words(&self) -> String {
        let percent = |share: f64| format!("{:.0}", 100.0 * share);
        let level = percent(super::CONFIDENCE);
        let interval = self.estimate.low.zip(self.estimate.high);
        let interval = interval.map_or_else(String::new, |(low, high)| {
            format!(", {level} % confidence interval {} to {}", percent(low), percent(high))
        });
        let rate = self
            .estimate
            .value
            .map_or_else(String::new, |value| format!(" ({} %{interval})", percent(value)));
        let failed = match self.failed {
            0 => String::new(),
            n => format!("; in {n} of them the expression failed"),
        };
        let plural = if self.runs == 1 { "" } else { "s" };
        format!("held in {} of {} run{plural}{rate}{failed}", self.held, self.runs)
    }
}

/// Counts of the runs of a cell: all, those in which it held, those in which the expression failed.
type RunCounts = BTreeMap<usize, [usize; 3]>;

/// Compares all such assertions with the shares that they need; `estimate` gives a subject's figure in a
/// group.
pub(super) fn thresholds(
    sample: &Sample,
    groups: &Groups,
    estimate: impl Fn(&Subject, usize) -> Option<Estimate>,
) -> Vec<Threshold> {
    let mut found: IndexMap<(usize, String), (Option<String>, Share, RunCounts)> = IndexMap::new();
    for run in sample.ordered() {
        let (Some(footer), Some((cell, _))) = (&run.transcript.footer, groups.of(run)) else { continue };
        for (index, assertion) in footer.record.assertions.iter().enumerate() {
            let Some(share) = assertion.share else { continue };
            let new = || (assertion.why.clone(), share, RunCounts::new());
            let (.., counts) = found.entry((index, assertion.name())).or_insert_with(new);
            let [runs, held, failed] = counts.entry(cell).or_default();
            *runs += 1;
            *held += usize::from(assertion.holds);
            *failed += usize::from(assertion.error.is_some());
        }
    }
    let threshold =
        |((index, that), (why, share, counts)): ((usize, String), (Option<String>, Share, RunCounts))| {
            let subject = Subject::Assertion { that: that.clone() };
            let cell = |(cell, [runs, held, failed]): (usize, [usize; 3])| {
                let estimate = estimate(&subject, cell).unwrap_or_else(|| Estimate::rate(held, runs));
                let condition = groups.values.get(cell).filter(|_| groups.values.len() > 1).map(Cell::name);
                let holds = share.admits(held, failed, runs);
                AssertionCount { cell, condition, runs, held, failed, estimate, holds }
            };
            let cells = counts.into_iter().map(cell).collect();
            Threshold { that, why, share, index, cells }
        };
    found.into_iter().map(threshold).collect()
}
