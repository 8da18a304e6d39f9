//! A figure and the interval around it; intervals of rates where each run is one trial.
//!
//! Paired differences of rates have Tango's score interval, means BCa with Hesterberg's expanded levels:
//! simulated at few runs, plain forms hold less often than they say.

use super::distribution::crossing;
use serde::Serialize;

/// Confidence level of the intervals.
pub const CONFIDENCE: f64 = 0.95;
/// Probability beyond each end of an interval.
pub(super) const TAIL: f64 = (1.0 - CONFIDENCE) / 2.0;
/// The standard normal quantile with `TAIL` above it.
const Z: f64 = 1.959_963_984_540_054;

/// A figure of some runs.
///
/// `low` and `high` are null where there is no interval; [`IntervalMethod`] says why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// Runs that it comes from, or cases where these are pooled; of a difference, pairs of them.
    pub n: usize,
    /// The figure; null: no run has it.
    pub value: Option<f64>,
    /// Lower end of the interval.
    pub low: Option<f64>,
    /// Upper end.
    pub high: Option<f64>,
    /// Method of the interval.
    pub method: IntervalMethod,
}

/// Method of an interval, or the reason why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum IntervalMethod {
    /// Wilson's score interval: each run is one trial.
    Wilson,
    /// Wilson's score interval with runs as trials: all trials of all runs had one result, so nothing is
    /// known about the differences between runs, and rounds of one run are not treated as independent.
    WilsonByRun,
    /// Tango's score interval of a difference of rates: each pair of runs is one trial.
    Tango,
    /// Bootstrap over whole runs, bias-corrected and accelerated, with the small-sample correction of levels.
    Bootstrap,
    /// An interval by Student's t, with a standard error that is clustered by case.
    Clustered,
    /// Wilson's score interval with the effective number of observations: runs of one case are not
    /// independent.
    WilsonClustered,
    /// Wilson's score interval with cases as trials: all runs of all cases had one result.
    WilsonByCase,
    /// An interval of a difference of rates, put together from the intervals of both and from how they vary
    /// together over cases.
    Joined,
    /// An interval of a difference, put together from those of both sides as if these were independent.
    Unpaired,
    /// No interval: too few runs for a bootstrap.
    TooFewRuns,
    /// No interval: fewer than two cases.
    TooFewCases,
    /// No interval: all runs are equal.
    Alike,
    /// No figure: no run has it.
    NoRuns,
}

/// A difference as it is shown: with its sign, and as 0 where the text has no other digit.
pub fn signed(value: f64, text: String) -> String {
    if text.trim_start_matches(['-', '−', '0', '.']).is_empty() {
        "0".to_string()
    } else if value > 0.0 {
        format!("+{text}")
    } else {
        text
    }
}

impl Estimate {
    /// The interval, with its ends as `text` shows them, or the reason why there is none.
    pub fn interval(&self, text: impl Fn(f64) -> String) -> String {
        match (self.low, self.high, self.method) {
            (Some(low), Some(high), _) => format!("[{}, {}]", text(low), text(high)),
            (_, _, IntervalMethod::Alike) => "all alike".to_string(),
            (_, _, IntervalMethod::TooFewRuns) => "too few runs".to_string(),
            (_, _, IntervalMethod::TooFewCases) => "too few cases".to_string(),
            _ => String::new(),
        }
    }

    /// A figure without an interval.
    pub(super) fn bare(n: usize, value: Option<f64>, method: IntervalMethod) -> Self {
        Self { n, value, low: None, high: None, method }
    }

    /// The rate of `hits` among `n` trials, a trial a run, with Wilson's interval.
    pub(super) fn rate(hits: usize, n: usize) -> Self {
        let value = (n > 0).then(|| hits as f64 / n as f64);
        match n {
            0 => Self::bare(0, None, IntervalMethod::NoRuns),
            1 => Self::bare(1, value, IntervalMethod::TooFewRuns),
            _ => {
                let (low, high) = wilson(hits as f64, n as f64);
                Self { n, value, low: Some(low), high: Some(high), method: IntervalMethod::Wilson }
            }
        }
    }

    /// The rate of the first runs of `n` pairs minus that of the second runs, with Tango's interval: `first`
    /// pairs have a hit in the first run alone, `second` pairs in the second alone.
    pub(super) fn paired_rates(first: usize, second: usize, n: usize) -> Self {
        let value = (n > 0).then(|| (first as f64 - second as f64) / n as f64);
        match n {
            0 => Self::bare(0, None, IntervalMethod::NoRuns),
            1 => Self::bare(1, value, IntervalMethod::TooFewRuns),
            _ => {
                let (low, high) = tango(first as f64, second as f64, n as f64);
                Self { n, value, low: Some(low), high: Some(high), method: IntervalMethod::Tango }
            }
        }
    }
}

/// Wilson's score interval of a rate: the values that a two-sided score test does not reject,
/// `(p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n)`.
///
/// E. B. Wilson, "Probable inference, the law of succession, and statistical inference", Journal of the
/// American Statistical Association 22 (1927), 209-212; recommended for small n by L. D. Brown, T. T. Cai and
/// A. DasGupta, "Interval estimation for a binomial proportion", Statistical Science 16 (2001), 101-133,
/// equation (4).
pub(super) fn wilson(hits: f64, n: f64) -> (f64, f64) {
    score(hits / n, n, Z)
}

/// The same of a rate p among n trials, which may be no whole number, with another quantile than the normal
/// one.
pub(super) fn score(p: f64, n: f64, z: f64) -> (f64, f64) {
    let z2 = z * z;
    let middle = (p + z2 / (2.0 * n)) / (1.0 + z2 / n);
    let half = z / (1.0 + z2 / n) * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt();
    // At no hits, and at nothing but hits, an end is 0 or 1 exactly, but for rounding.
    let low = if p <= 0.0 { 0.0 } else { (middle - half).max(0.0) };
    let high = if p >= 1.0 { 1.0 } else { (middle + half).min(1.0) };
    (low, high)
}

/// Tango's score interval of a difference of paired rates: the values that a two-sided score test does not
/// reject. With `b` and `c` pairs in which the first alone, or the second alone, is a hit, the test of a
/// difference d is `(b - c - n d) / √(n (2 q + d (1 - d)))`, where q is the most likely rate of the latter
/// under d.
///
/// T. Tango, "Equivalence test and confidence interval for the difference in proportions for the
/// paired-sample design", Statistics in Medicine 17 (1998), 891-908. It is to pairs what Wilson's interval is
/// to single trials; the other one that is recommended for few pairs, R. G. Newcombe's method 10 (the same
/// volume, 2635-2650), puts two of Wilson's together by an estimated correlation.
fn tango(b: f64, c: f64, n: f64) -> (f64, f64) {
    let score = |d: f64| {
        let half = (2.0 * n - b + c) * d - b - c;
        let q = ((half * half + 8.0 * n * c * d * (1.0 - d)).max(0.0).sqrt() - half) / (4.0 * n);
        let variance = n * (2.0 * q + d * (1.0 - d));
        let above = b - c - n * d;
        // Nothing varies at the ends, where all pairs would be equal.
        if variance > 0.0 { above / variance.sqrt() } else { above * f64::INFINITY }
    };
    let difference = (b - c) / n;
    let low = if b - c <= -n { -1.0 } else { crossing(-1.0, difference, |d| score(d) > Z) };
    let high = if b - c >= n { 1.0 } else { crossing(difference, 1.0, |d| score(d) > -Z) };
    (low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of scipy 1.17: `binomtest(hits, n).proportion_ci(method="wilson")`.
    #[test]
    fn wilson_agrees_with_the_books() {
        for (hits, n, low, high) in [
            (0, 10, 0.0, 0.277_532_8),
            (10, 10, 0.722_467_2, 1.0),
            (1, 20, 0.008_881_4, 0.236_131_2),
            (81, 263, 0.255_288_5, 0.366_209_6),
        ] {
            let rate = Estimate::rate(hits, n);
            assert!((rate.low.unwrap() - low).abs() < 1e-6, "{hits} of {n}: {rate:?}");
            assert!((rate.high.unwrap() - high).abs() < 1e-6, "{hits} of {n}: {rate:?}");
        }
    }

    #[test]
    fn one_run_has_no_interval() {
        let one = Estimate::rate(1, 1);
        assert_eq!(one, Estimate::bare(1, Some(1.0), IntervalMethod::TooFewRuns));
        assert_eq!(Estimate::rate(0, 0).value, None);
    }

    /// Values of an inversion of the score test that maximizes the likelihood under each difference
    /// numerically (scipy 1.17).
    #[test]
    fn tango_agrees_with_the_definition() {
        for (b, c, n, low, high) in [
            (12, 2, 59, 0.052_022_0, 0.296_960_9),
            (3, 1, 20, -0.124_118_3, 0.326_427_9),
            (0, 0, 15, -0.203_883_3, 0.203_883_3),
            (10, 0, 10, 0.444_934_4, 1.0),
            (6, 0, 20, 0.090_537_3, 0.518_972_8),
            (53, 16, 254, 0.084_290_5, 0.208_715_6),
        ] {
            let found = Estimate::paired_rates(b, c, n);
            assert!((found.low.unwrap() - low).abs() < 1e-6, "{b}, {c} of {n}: {found:?}");
            assert!((found.high.unwrap() - high).abs() < 1e-6, "{b}, {c} of {n}: {found:?}");
            let turned = Estimate::paired_rates(c, b, n);
            assert!((turned.low.unwrap() + found.high.unwrap()).abs() < 1e-12, "{turned:?}");
        }
        assert_eq!(Estimate::paired_rates(1, 0, 1), Estimate::bare(1, Some(1.0), IntervalMethod::TooFewRuns));
    }

    #[test]
    fn z_is_the_levels() {
        assert!((Z + super::super::distribution::normal_quantile(TAIL)).abs() < 1e-14);
    }
}
