//! A figure and the interval around it; intervals of rates where each run is one trial.

use serde::Serialize;
use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

/// How often intervals are to hold what they estimate, between 0.5 and 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Confidence(f64);

/// A figure of some runs.
///
/// `low` and `high` are null where there is no interval; [`Method`] says why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// Runs that it comes from; of a difference, pairs of runs.
    pub n: usize,
    /// The figure; null: no run has it.
    pub value: Option<f64>,
    /// Lower end of the interval.
    pub low: Option<f64>,
    /// Upper end.
    pub high: Option<f64>,
    /// Where the interval comes from.
    pub method: Method,
}

/// Where an interval comes from, or why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Wilson's score interval: each run is one trial.
    Wilson,
    /// Wilson's score interval with runs as trials: all trials of all runs came out alike, so nothing is known of how
    /// runs differ, and rounds of one run are not taken for independent.
    WilsonByRun,
    /// Bootstrap over whole runs, bias-corrected and accelerated, with the small-sample correction of levels.
    Bootstrap,
    /// No interval: fewer runs than a bootstrap can say anything from.
    TooFewRuns,
    /// No interval: all runs are alike.
    Alike,
    /// No figure: no run has it.
    NoRuns,
}

impl Confidence {
    /// A level.
    ///
    /// # Errors
    /// It does not lie above 0.5 and below 1.
    pub fn new(level: f64) -> Result<Self, String> {
        if level > 0.5 && level < 1.0 {
            return Ok(Self(level));
        }
        Err(format!("the confidence is {level}; it must lie between 0.5 and 1, e.g. 0.95"))
    }

    /// The level.
    pub fn level(self) -> f64 {
        self.0
    }

    /// What lies beyond each end.
    pub(super) fn tail(self) -> f64 {
        (1.0 - self.0) / 2.0
    }
}

impl Default for Confidence {
    fn default() -> Self {
        Self(0.95)
    }
}

impl Estimate {
    /// A figure without an interval.
    pub(super) fn bare(n: usize, value: Option<f64>, method: Method) -> Self {
        Self { n, value, low: None, high: None, method }
    }

    /// The rate of `hits` among `n` trials, a trial a run, with Wilson's interval.
    pub(super) fn rate(hits: usize, n: usize, confidence: Confidence) -> Self {
        let value = (n > 0).then(|| hits as f64 / n as f64);
        match n {
            0 => Self::bare(0, None, Method::NoRuns),
            1 => Self::bare(1, value, Method::TooFewRuns),
            _ => {
                let (low, high) = wilson(hits as f64, n as f64, confidence);
                Self { n, value, low: Some(low), high: Some(high), method: Method::Wilson }
            }
        }
    }
}

/// Wilson's score interval of a rate: the values that a two-sided score test does not reject,
/// `(p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n)`.
///
/// E. B. Wilson, "Probable inference, the law of succession, and statistical inference", Journal of the American
/// Statistical Association 22 (1927), 209-212; recommended for small n by L. D. Brown, T. T. Cai and A. DasGupta,
/// "Interval estimation for a binomial proportion", Statistical Science 16 (2001), 101-133, equation (4).
pub(super) fn wilson(hits: f64, n: f64, confidence: Confidence) -> (f64, f64) {
    let (p, z) = (hits / n, -normal_quantile(confidence.tail()));
    let z2 = z * z;
    let middle = (p + z2 / (2.0 * n)) / (1.0 + z2 / n);
    let half = z / (1.0 + z2 / n) * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt();
    // At no hits, and at nothing but hits, an end is 0 or 1 exactly, but for rounding.
    let low = if hits <= 0.0 { 0.0 } else { (middle - half).max(0.0) };
    let high = if hits >= n { 1.0 } else { (middle + half).min(1.0) };
    (low, high)
}

/// The standard normal distribution's value at x.
pub(super) fn normal(x: f64) -> f64 {
    Normal::standard().cdf(x)
}

/// Where the standard normal distribution reaches p.
pub(super) fn normal_quantile(p: f64) -> f64 {
    Normal::standard().inverse_cdf(p)
}

/// Where Student's distribution reaches p.
pub(super) fn t_quantile(p: f64, freedom: f64) -> f64 {
    // Its only error is a freedom that is not above zero.
    StudentsT::new(0.0, 1.0, freedom).map_or(f64::NEG_INFINITY, |t| t.inverse_cdf(p))
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
            let rate = Estimate::rate(hits, n, Confidence::default());
            assert!((rate.low.unwrap() - low).abs() < 1e-6, "{hits} of {n}: {rate:?}");
            assert!((rate.high.unwrap() - high).abs() < 1e-6, "{hits} of {n}: {rate:?}");
        }
    }

    #[test]
    fn one_run_has_no_interval() {
        let one = Estimate::rate(1, 1, Confidence::default());
        assert_eq!(one, Estimate::bare(1, Some(1.0), Method::TooFewRuns));
        assert_eq!(Estimate::rate(0, 0, Confidence::default()).value, None);
    }

    #[test]
    fn a_confidence_is_a_probability() {
        assert!(Confidence::new(0.9).is_ok());
        for level in [0.5, 1.0, 95.0, -1.0, f64::NAN] {
            assert!(Confidence::new(level).is_err(), "{level}");
        }
    }
}
