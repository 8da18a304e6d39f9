//! The share of many runs in which an assertion must hold.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Bounds of a share of runs, both from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// The least share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
    /// The greatest share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
}

impl Share {
    /// True if the share of `held` among `runs` is within the bounds, however the `failed` runs, whose result
    /// is unknown, are counted.
    pub fn admits(&self, held: usize, failed: usize, runs: usize) -> bool {
        let share = |n: usize| n as f64 / runs.max(1) as f64;
        self.at_least.is_none_or(|least| share(held) >= least)
            && self.at_most.is_none_or(|most| share(held.saturating_add(failed)) <= most)
    }
}

impl fmt::Display for Share {
    /// As text, e.g. `at least 90 %`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the last digits of binary fractions, 7.000000000000001.
        let percent = |share: f64| (share * 1e8).round() / 1e6;
        match (self.at_least, self.at_most) {
            (Some(least), Some(most)) => {
                write!(f, "at least {} % and at most {} %", percent(least), percent(most))
            }
            (Some(least), None) => write!(f, "at least {} %", percent(least)),
            (None, Some(most)) => write!(f, "at most {} %", percent(most)),
            (None, None) => f.write_str("any share"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_inclusive_and_failures_count_against_either() {
        let least = Share { at_least: Some(0.9), at_most: None };
        assert!(least.admits(36, 0, 40) && !least.admits(35, 0, 40) && !least.admits(35, 5, 40));
        let most = Share { at_least: None, at_most: Some(0.05) };
        assert!(most.admits(2, 0, 40) && !most.admits(3, 0, 40) && !most.admits(2, 1, 40));
        for (runs, held) in (1..200).flat_map(|runs| (0..=runs).map(move |held| (runs, held))) {
            let exact = Share { at_least: Some(held as f64 / runs as f64), at_most: None };
            assert!(exact.admits(held, 0, runs) && (held == 0 || !exact.admits(held - 1, 0, runs)));
        }
    }

    #[test]
    fn a_share_reads_as_a_percentage() {
        let shown = |at_least, at_most| Share { at_least, at_most }.to_string();
        assert_eq!(shown(Some(0.9), None), "at least 90 %");
        assert_eq!(shown(None, Some(0.07)), "at most 7 %");
        assert_eq!(shown(Some(0.333), Some(0.6675)), "at least 33.3 % and at most 66.75 %");
    }
}
