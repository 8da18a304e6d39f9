//! Estimates over cases that are played several times each. Runs of one case resemble each other, so the case
//! is the unit: a figure's uncertainty comes from how cases differ.
//!
//! With `s` the sum and `n` the number of observations of each of m cases, the figure is the ratio
//! `p = Σs / Σn`, its cluster-robust variance `v = m/(m-1) · Σ(s - p n)² / (Σn)²` (the linearized variance of
//! a ratio: W. G. Cochran, "Sampling techniques", 3rd edition, 1977, section 6.5; for a mean it is the
//! estimator of K.-Y. Liang and S. L. Zeger, Biometrika 73 (1986), 13-22, times m/(m-1)).
//!
//! - A mean has the interval `p ± t √v`, t being Student's quantile with m-1 degrees of freedom. The end to
//!   which the residuals are skewed is moved outwards by `g √v (1 + 2t²) / (6 √m)`, g being their skewness
//!   (N. J. Johnson, Journal of the American Statistical Association 73 (1978), 536-544, who moves both ends):
//!   of exponential means of twenty cases, `p ± t √v` holds the truth in 92 of 100 samples; of even ones with
//!   long tails, with both ends moved, in 87.
//! - A rate has Wilson's score interval, with t in place of the normal quantile and the *effective* number of
//!   observations `p (1-p) / v`, at most twice the real one, in place of n (E. L. Korn and B. I. Graubard, Survey
//!   Methodology 24 (1998), 193-201; N. Dean and M. Pagano, Journal of Survey Statistics and Methodology 3
//!   (2015), 484-503, find it among the best for few clusters). `p ± t √v` is too narrow near 0 and 1: with
//!   ten cases and a rate of 90 %, simulated, it holds the truth in 72 of 100 samples.
//! - A difference between two conditions is paired by case. With `e` the difference of a case's residuals
//!   `(s - p n) / Σn` in either, its variance is `m/(m-1) · Σe²`: the interval of means is as above, with e as
//!   the residuals. That of
//!   rates is put together from the ends (l, u) of both rates' intervals and the residuals' correlation r:
//!   `d - √((p-l)² + (u'-p')² - 2 r (p-l) (u'-p'))`, and likewise above (G. Y. Zou and A. Donner, Statistics
//!   in Medicine 27 (2008), 1693-1702; R. G. Newcombe's method 10 for paired rates, the same journal 17
//!   (1998), 2635-2650).
//!
//! If each case is one trial, these are Wilson's and Tango's intervals as for runs. Tests simulate the
//! coverage; `tests/runner/statistics/coverage.py` is another implementation.

use super::bootstrap::{Contribution, MeanKind, is_alike};
use super::distribution::t_quantile;
use super::interval::{Estimate, IntervalMethod, TAIL, score, wilson};

/// A ratio over cases.
struct Fit {
    value: f64,
    /// Each case's contribution to the ratio's error.
    residuals: Vec<f64>,
    /// Observations in all cases.
    n: f64,
}

impl Fit {
    /// `None`: no case has an observation.
    fn of(cases: &[Contribution]) -> Option<Self> {
        let total = cases.iter().fold(Contribution::default(), |sum, case| sum.plus(*case));
        let value = (total.n > 0.0).then(|| total.mean())?;
        let residuals = cases.iter().map(|case| (case.sum - value * case.n) / total.n).collect();
        Some(Self { value, residuals, n: total.n })
    }

    fn variance(&self) -> f64 {
        product(&self.residuals, &self.residuals)
    }
}

/// The cluster-robust covariance of two ratios.
fn product(a: &[f64], b: &[f64]) -> f64 {
    let m = a.len() as f64;
    m / (m - 1.0) * a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>()
}

/// The mean over all observations of all cases, with its interval.
pub(super) fn mean(cases: &[Contribution], kind: MeanKind) -> Estimate {
    let cases: Vec<Contribution> = cases.iter().copied().filter(|case| case.n > 0.0).collect();
    let Some(fit) = Fit::of(&cases) else { return Estimate::bare(0, None, IntervalMethod::NoRuns) };
    let m = cases.len();
    if m < 2 {
        return Estimate::bare(m, Some(fit.value), IntervalMethod::TooFewCases);
    }
    if cases.iter().all(Contribution::is_trial) {
        let hits = cases.iter().map(|case| case.sum).sum::<f64>();
        return Estimate::rate(hits.round() as usize, m);
    }
    let (value, variance) = (fit.value, fit.variance());
    let (low, high, method) = if kind == MeanKind::Rate && (value <= 0.0 || value >= 1.0) {
        // Nothing is known of how cases differ.
        let (low, high) = wilson(value.round() * m as f64, m as f64);
        (low, high, IntervalMethod::WilsonByCase)
    } else if kind == MeanKind::Rate {
        let effective = (value * (1.0 - value) / variance).min(2.0 * fit.n);
        let (low, high) = score(value, effective, -t_quantile(TAIL, m - 1));
        (low, high, IntervalMethod::WilsonClustered)
    } else if fit.residuals.iter().all(|residual| is_alike(*residual * fit.n, value)) {
        return Estimate::bare(m, Some(value), IntervalMethod::Alike);
    } else {
        let (low, high) =
            around(value, &fit.residuals, if kind == MeanKind::Mean { None } else { Some(0.0) });
        (low, high, IntervalMethod::Clustered)
    };
    Estimate { n: m, value: Some(value), low: Some(low), high: Some(high), method }
}

/// The mean of the pairs' first cases minus that of their second ones, with its interval.
pub(super) fn difference(pairs: &[[Contribution; 2]], kind: MeanKind) -> Estimate {
    let pairs: Vec<[Contribution; 2]> =
        pairs.iter().copied().filter(|[here, there]| here.n > 0.0 && there.n > 0.0).collect();
    let side = |at: usize| pairs.iter().map(|pair| pair[at]).collect::<Vec<_>>();
    let (here, there) = (side(0), side(1));
    let (Some(first), Some(second)) = (Fit::of(&here), Fit::of(&there)) else {
        return Estimate::bare(0, None, IntervalMethod::NoRuns);
    };
    let (m, value) = (pairs.len(), first.value - second.value);
    if m < 2 {
        return Estimate::bare(m, Some(value), IntervalMethod::TooFewCases);
    }
    if pairs.iter().flatten().all(Contribution::is_trial) {
        let count =
            |wanted: [f64; 2]| pairs.iter().filter(|pair| pair.map(|case| case.sum) == wanted).count();
        return Estimate::paired_rates(count([1.0, 0.0]), count([0.0, 1.0]), m);
    }
    let errors: Vec<f64> = first.residuals.iter().zip(&second.residuals).map(|(a, b)| a - b).collect();
    let scale = first.value.abs().max(second.value.abs());
    // Two rates of 0 or 1 have intervals though nothing varies: that of their difference comes from these.
    let is_sure = |fit: &Fit| kind == MeanKind::Rate && (fit.value == 0.0 || fit.value == 1.0);
    let are_sure = is_sure(&first) && is_sure(&second);
    if !are_sure && errors.iter().all(|error| is_alike(*error * first.n, scale)) {
        return Estimate::bare(m, Some(value), IntervalMethod::Alike);
    }
    let (low, high, method) = if kind == MeanKind::Rate {
        let (low, high) = joined((&mean(&here, kind), &first), (&mean(&there, kind), &second));
        (low, high, IntervalMethod::Joined)
    } else {
        let (low, high) = around(value, &errors, if kind == MeanKind::Mean { None } else { Some(-1.0) });
        (low, high, IntervalMethod::Clustered)
    };
    Estimate { n: m, value: Some(value), low: Some(low), high: Some(high), method }
}

/// The cluster-robust variance of the difference of both sides' ratios; `None`: it does not vary. A case that
/// only one side has is a pair whose other part has no observations.
pub(super) fn variance_of_difference(pairs: &[[Contribution; 2]]) -> Option<f64> {
    let side = |at: usize| Fit::of(&pairs.iter().map(|pair| pair[at]).collect::<Vec<_>>());
    let (first, second) = (side(0)?, side(1)?);
    let errors: Vec<f64> = first.residuals.iter().zip(&second.residuals).map(|(a, b)| a - b).collect();
    let scale = first.value.abs().max(second.value.abs());
    let varies = errors.iter().any(|error| !is_alike(*error * first.n, scale));
    Some(product(&errors, &errors)).filter(|variance| varies && variance.is_finite())
}

/// Both ends of the interval of a mean with these residuals: Student's, extended for skewness; from `least` to 1
/// if that is given.
fn around(value: f64, residuals: &[f64], least: Option<f64>) -> (f64, f64) {
    let m = residuals.len() as f64;
    let square = residuals.iter().map(|r| r * r).sum::<f64>() / m;
    let cube = residuals.iter().map(|r| r * r * r).sum::<f64>() / m;
    let (t, error) = (-t_quantile(TAIL, residuals.len() - 1), product(residuals, residuals).sqrt());
    let shift = cube / (square * square.sqrt()) * error * (1.0 + 2.0 * t * t) / (6.0 * m.sqrt());
    let (low, high) = (value - t * error + shift.min(0.0), value + t * error + shift.max(0.0));
    least.map_or((low, high), |least| (low.max(least), high.min(1.0)))
}

/// Ends of a difference of two rates, from those of either and from how they vary together.
fn joined((here, first): (&Estimate, &Fit), (there, second): (&Estimate, &Fit)) -> (f64, f64) {
    let room = |estimate: &Estimate, fit: &Fit| {
        let (low, high) = (estimate.low.unwrap_or(0.0), estimate.high.unwrap_or(1.0));
        (fit.value - low, high - fit.value)
    };
    let ((below, above), (other_below, other_above)) = (room(here, first), room(there, second));
    let both = (first.variance() * second.variance()).sqrt();
    let correlation = if both > 0.0 { product(&first.residuals, &second.residuals) / both } else { 0.0 };
    let reach = |a: f64, b: f64| (a * a + b * b - 2.0 * correlation * a * b).max(0.0).sqrt();
    let value = first.value - second.value;
    ((value - reach(below, other_above)).max(-1.0), (value + reach(above, other_below)).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(cases: &[(f64, f64)]) -> Vec<Contribution> {
        cases.iter().map(|(sum, n)| Contribution { sum: *sum, n: *n }).collect()
    }

    fn close(found: Option<f64>, expected: f64) {
        let found = found.unwrap();
        assert!((found - expected).abs() < 1e-6, "{found}, not {expected}");
    }

    /// By hand: five cases of two runs, with means 1, 2, 3, 4 and 10. Their mean is 4 and their standard
    /// deviation √(50/4), so the standard error √2.5 = 1.581139; t with 4 degrees of freedom is 2.776445. Their
    /// skewness is 36 / 10^1.5 = 1.138420, so the upper end is 2.202611 higher.
    #[test]
    fn means_of_equal_cases_have_students_interval_over_cases() {
        let found =
            mean(&parts(&[(2.0, 2.0), (4.0, 2.0), (6.0, 2.0), (8.0, 2.0), (20.0, 2.0)]), MeanKind::Mean);
        assert_eq!((found.n, found.value, found.method), (5, Some(4.0), IntervalMethod::Clustered));
        close(found.low, 4.0 - 2.776_445_1 * 1.581_138_8);
        close(found.high, 4.0 + 2.776_445_1 * 1.581_138_8 + 2.202_611_2);
    }

    /// The same numbers by another route: the variance of a ratio from the three sums of squares and
    /// products, `m/(m-1) (Σs² - 2 p Σsn + p² Σn²) / (Σn)²`, and the roots of the quadratic that Wilson's
    /// interval solves, found by bisection.
    #[test]
    fn rates_of_unequal_cases_agree_with_another_computation() {
        let cases = [(3.0, 4.0), (4.0, 4.0), (0.0, 2.0), (5.0, 6.0), (1.0, 3.0), (2.0, 2.0), (4.0, 5.0)];
        let sum = |of: fn(f64, f64) -> f64| cases.iter().map(|(s, n)| of(*s, *n)).sum::<f64>();
        let (p, n) = (sum(|s, _| s) / sum(|_, n| n), sum(|_, n| n));
        let squares = sum(|s, _| s * s) - 2.0 * p * sum(|s, n| s * n) + p * p * sum(|_, n| n * n);
        let variance = 7.0 / 6.0 * squares / (n * n);
        let effective = p * (1.0 - p) / variance;
        assert!(effective < n, "runs of a case are alike: {effective} of {n}");
        // Student's quantile with 6 degrees of freedom (scipy 1.17).
        let t = 2.446_911_851_144_969;
        let fits = |rate: f64| (p - rate).powi(2) * effective <= t * t * rate * (1.0 - rate);
        let end = |mut inside: f64, mut outside: f64| {
            for _ in 0..100 {
                let middle = (inside + outside) / 2.0;
                if fits(middle) { inside = middle } else { outside = middle }
            }
            inside
        };
        let found = mean(&parts(&cases), MeanKind::Rate);
        assert_eq!((found.n, found.method), (7, IntervalMethod::WilsonClustered));
        close(found.value, p);
        close(found.low, end(p, 0.0));
        close(found.high, end(p, 1.0));
    }

    #[test]
    fn one_run_of_each_case_is_a_trial() {
        let found = mean(&parts(&[(1.0, 1.0), (0.0, 1.0), (1.0, 1.0), (1.0, 1.0)]), MeanKind::Rate);
        assert_eq!(found, Estimate::rate(3, 4));
        let trial = |sum| Contribution { sum, n: 1.0 };
        let pairs: Vec<_> = [(1.0, 0.0), (1.0, 1.0), (0.0, 0.0), (0.0, 1.0), (1.0, 0.0)]
            .iter()
            .map(|(a, b)| [trial(*a), trial(*b)])
            .collect();
        assert_eq!(difference(&pairs, MeanKind::Rate), Estimate::paired_rates(2, 1, 5));
    }

    #[test]
    fn more_runs_of_the_same_cases_are_no_more_knowledge() {
        let once = parts(&[(1.0, 1.0), (2.5, 1.0), (4.0, 1.0), (4.5, 1.0)]);
        let tenfold: Vec<Contribution> =
            once.iter().map(|case| Contribution { sum: 10.0 * case.sum, n: 10.0 }).collect();
        let (one, ten) = (mean(&once, MeanKind::Mean), mean(&tenfold, MeanKind::Mean));
        close(ten.low, one.low.unwrap());
        close(ten.high, one.high.unwrap());
        // All runs of all cases are equal: cases are trials.
        let sure = mean(&parts(&[(4.0, 4.0); 10]), MeanKind::Rate);
        assert_eq!((sure.method, sure.high), (IntervalMethod::WilsonByCase, Some(1.0)));
        assert_eq!(sure.low, Estimate::rate(10, 10).low);
    }

    /// By hand: the differences within cases are 2, 3, 1, 2: their mean is 2, the standard error √(2/3)/2 =
    /// 0.408248, t is 3.182446.
    #[test]
    fn differences_of_means_are_those_within_cases() {
        let pairs: Vec<_> = [(12.0, 10.0), (23.0, 20.0), (31.0, 30.0), (42.0, 40.0)]
            .iter()
            .map(|(a, b)| [Contribution { sum: 3.0 * a, n: 3.0 }, Contribution { sum: 2.0 * b, n: 2.0 }])
            .collect();
        let found = difference(&pairs, MeanKind::Mean);
        assert_eq!((found.n, found.method), (4, IntervalMethod::Clustered));
        close(found.value, 2.0);
        close(found.low, 2.0 - 3.182_446_3 * 0.408_248_3);
        close(found.high, 2.0 + 3.182_446_3 * 0.408_248_3);
    }

    /// Without correlation the interval is that of two independent rates, by Newcombe's method 10 from
    /// either's ends.
    #[test]
    fn differences_of_rates_are_put_together_from_both_intervals() {
        let first = parts(&[(4.0, 4.0), (4.0, 4.0), (1.0, 4.0), (1.0, 4.0)]);
        let second = parts(&[(3.0, 4.0), (1.0, 4.0), (3.0, 4.0), (1.0, 4.0)]);
        let pairs: Vec<[Contribution; 2]> = first.iter().zip(&second).map(|(a, b)| [*a, *b]).collect();
        let found = difference(&pairs, MeanKind::Rate);
        let (a, b) = (mean(&first, MeanKind::Rate), mean(&second, MeanKind::Rate));
        let reach = |x: f64, y: f64| x.hypot(y);
        let (p, q) = (0.625, 0.5);
        assert_eq!((found.n, found.method), (4, IntervalMethod::Joined));
        close(found.value, p - q);
        close(found.low, p - q - reach(p - a.low.unwrap(), b.high.unwrap() - q));
        close(found.high, p - q + reach(a.high.unwrap() - p, q - b.low.unwrap()));
        let turned: Vec<[Contribution; 2]> = pairs.iter().map(|[a, b]| [*b, *a]).collect();
        close(difference(&turned, MeanKind::Rate).low, -found.high.unwrap());
    }

    /// Where nothing varies on either side, either rate still has an interval, and so has the difference.
    #[test]
    fn differences_of_sure_rates_are_put_together_too() {
        let of = |here: f64, there: f64| {
            let pair = [Contribution { sum: 2.0 * here, n: 2.0 }, Contribution { sum: 2.0 * there, n: 2.0 }];
            difference(&[pair; 8], MeanKind::Rate)
        };
        let never = mean(&parts(&[(0.0, 2.0); 8]), MeanKind::Rate).high.unwrap();
        let (clear, same) = (of(1.0, 0.0), of(1.0, 1.0));
        assert_eq!((clear.value, clear.high, clear.method), (Some(1.0), Some(1.0), IntervalMethod::Joined));
        close(clear.low, 1.0 - never.hypot(never));
        assert_eq!((same.value, same.method), (Some(0.0), IntervalMethod::Joined));
        close(same.low, -never);
        close(same.high, never);
    }

    #[test]
    fn where_there_is_no_interval_the_method_says_why() {
        assert_eq!(mean(&[], MeanKind::Rate), Estimate::bare(0, None, IntervalMethod::NoRuns));
        let one = mean(&parts(&[(3.0, 4.0)]), MeanKind::Rate);
        assert_eq!(one, Estimate::bare(1, Some(0.75), IntervalMethod::TooFewCases));
        let trial = Contribution { sum: 1.0, n: 1.0 };
        assert_eq!(mean(&[trial], MeanKind::Rate).method, IntervalMethod::TooFewCases);
        assert_eq!(difference(&[[trial, trial]], MeanKind::Rate).method, IntervalMethod::TooFewCases);
        let alike = mean(&parts(&[(6.0, 2.0), (9.0, 3.0)]), MeanKind::Mean);
        assert_eq!(alike, Estimate::bare(2, Some(3.0), IntervalMethod::Alike));
    }
}
