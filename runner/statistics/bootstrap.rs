//! Intervals by resampling whole runs: of means, of shares over several rounds, of differences between paired
//! cells.
//!
//! A run is a cluster: its rounds are played by agents that remember each other, so they are not independent
//! trials. What is resampled is runs, with all that is in them (A. C. Davison and D. V. Hinkley, "Bootstrap
//! methods and their application", 1997, section 3.8); in a difference of cells, seeds, each with its run in
//! either cell.
//!
//! Ends are those of the bias-corrected and accelerated bootstrap (BCa: B. Efron, "Better bootstrap
//! confidence intervals", Journal of the American Statistical Association 82 (1987), 171-185), with levels
//! moved outwards for small samples as T. C. Hesterberg proposes ("What teachers should know about the
//! bootstrap", The American Statistician 69 (2015), 371-386, section 5.3): `Φ(-√(n/(n-1)) · t)`, where t is
//! Student's quantile with n-1 degrees of freedom. The percentile interval alone is too narrow below thirty
//! runs; the studentized one reaches its level but breaks down where a resample has no variation, which short
//! games often have. Tests simulate the coverage.
//!
//! Whole runs are resampled, never rounds: in a simulated game, rounds taken for trials hold the truth in two
//! thirds of samples instead of 95 of 100.

use super::distribution::{normal, normal_quantile, t_quantile};
use super::interval::{Estimate, IntervalMethod, TAIL, wilson};

/// Resamples of an interval.
const N_RESAMPLES: usize = 1999;
/// Fewest runs of an interval: of four, even the least and the greatest of all would hold the truth too
/// seldom.
const MIN_RUNS: usize = 5;

/// One run's contribution to a mean: a sum, and its number of observations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Contribution {
    pub(super) sum: f64,
    pub(super) n: f64,
}

/// The kind of mean to estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MeanKind {
    /// A mean of any numbers.
    Mean,
    /// A mean of zeros and ones.
    Rate,
    /// A mean of probabilities.
    Probability,
}

impl Contribution {
    /// One more observation.
    pub(super) fn add(&mut self, value: f64) {
        self.sum += value;
        self.n += 1.0;
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self { sum: self.sum + other.sum, n: self.n + other.n }
    }

    pub(super) fn minus(self, other: Self) -> Self {
        Self { sum: self.sum - other.sum, n: self.n - other.n }
    }

    /// True if it is one observation of something that happened or did not.
    pub(super) fn is_trial(&self) -> bool {
        self.n == 1.0 && (self.sum == 0.0 || self.sum == 1.0)
    }

    pub(super) fn mean(self) -> f64 {
        self.sum / self.n
    }
}

/// The mean over all observations of all runs, with its interval. Randomness comes from `name` alone.
pub(super) fn mean(name: &str, runs: &[Contribution], kind: MeanKind) -> Estimate {
    let runs: Vec<Contribution> = runs.iter().copied().filter(|run| run.n > 0.0).collect();
    let total = runs.iter().fold(Contribution::default(), |sum, run| sum.plus(*run));
    if total.n <= 0.0 {
        return Estimate::bare(0, None, IntervalMethod::NoRuns);
    }
    let n = runs.len();
    if kind != MeanKind::Mean && runs.iter().all(Contribution::is_trial) {
        return Estimate::rate(total.sum.round() as usize, n);
    }
    let clusters: Vec<[Contribution; 2]> = runs.iter().map(|run| [*run, Contribution::default()]).collect();
    let is_sure = kind != MeanKind::Mean && n > 1 && (total.sum == 0.0 || total.sum == total.n);
    if is_sure {
        let (low, high) = wilson(if total.sum > 0.0 { n as f64 } else { 0.0 }, n as f64);
        let (value, method) = (Some(total.mean()), IntervalMethod::WilsonByRun);
        return Estimate { n, value, low: Some(low), high: Some(high), method };
    }
    resampled(name, &clusters, |[all, _]| all.mean())
}

/// The mean of the pairs' first runs minus that of their second runs, with its interval.
pub(super) fn difference(name: &str, pairs: &[[Contribution; 2]], kind: MeanKind) -> Estimate {
    let pairs: Vec<[Contribution; 2]> =
        pairs.iter().copied().filter(|[here, there]| here.n > 0.0 && there.n > 0.0).collect();
    if pairs.is_empty() {
        return Estimate::bare(0, None, IntervalMethod::NoRuns);
    }
    if kind != MeanKind::Mean && pairs.iter().flatten().all(Contribution::is_trial) {
        let count = |wanted: [f64; 2]| pairs.iter().filter(|pair| pair.map(|run| run.sum) == wanted).count();
        return Estimate::paired_rates(count([1.0, 0.0]), count([0.0, 1.0]), pairs.len());
    }
    resampled(name, &pairs, |[here, there]| here.mean() - there.mean())
}

/// True of a deviation that is only rounding: all runs are equal.
pub(super) fn is_alike(deviation: f64, value: f64) -> bool {
    deviation.abs() < 1e-12 * value.abs().max(1.0)
}

fn resampled(name: &str, clusters: &[[Contribution; 2]], of: impl Fn([Contribution; 2]) -> f64) -> Estimate {
    let n = clusters.len();
    let add = |[a, b]: [Contribution; 2], [c, d]: &[Contribution; 2]| [a.plus(*c), b.plus(*d)];
    let total = clusters.iter().fold([Contribution::default(); 2], add);
    let value = of(total);
    let without = |[a, b]: &[Contribution; 2]| of([total[0].minus(*a), total[1].minus(*b)]);
    let jackknife: Vec<f64> = if n > 1 { clusters.iter().map(without).collect() } else { Vec::new() };
    if n > 1 && jackknife.iter().all(|other| is_alike(other - value, value)) {
        return Estimate::bare(n, Some(value), IntervalMethod::Alike);
    }
    if n < MIN_RUNS {
        return Estimate::bare(n, Some(value), IntervalMethod::TooFewRuns);
    }
    let mut draws = Draws::new(name, n);
    let mut drawn =
        || of((0..n).fold([Contribution::default(); 2], |sum, _| add(sum, &clusters[draws.next()])));
    let mut resamples: Vec<f64> = (0..N_RESAMPLES).map(|_| drawn()).collect();
    resamples.sort_by(f64::total_cmp);
    let (low, high) = bca(value, &resamples, &jackknife);
    Estimate { n, value: Some(value), low: Some(low), high: Some(high), method: IntervalMethod::Bootstrap }
}

/// Ends of the BCa interval, from sorted resamples and the estimates that lack one run each.
fn bca(value: f64, resamples: &[f64], jackknife: &[f64]) -> (f64, f64) {
    let (n, count) = (jackknife.len() as f64, resamples.len() as f64);
    // Resamples that equal the estimate count half; without that, few distinct values would look like bias.
    let below = resamples.iter().filter(|other| **other < value).count() as f64;
    let equal = resamples.iter().filter(|other| **other == value).count() as f64;
    let bias = normal_quantile(((below + equal / 2.0) / count).clamp(0.5 / count, 1.0 - 0.5 / count));
    let middle = jackknife.iter().sum::<f64>() / n;
    let deviations = || jackknife.iter().map(|other| middle - other);
    let (squares, cubes) =
        (deviations().map(|d| d * d).sum::<f64>(), deviations().map(|d| d * d * d).sum::<f64>());
    let acceleration = cubes / (6.0 * squares * squares.sqrt());
    let end = |z: f64| {
        let moved = bias + z;
        let stretch = 1.0 - acceleration * moved;
        // Far out in a tail the formula turns around; what it means there is the tail's end.
        let level = if stretch > 0.0 { normal(bias + moved / stretch) } else { f64::from(u8::from(z > 0.0)) };
        quantile(resamples, level)
    };
    let z = (n / (n - 1.0)).sqrt() * t_quantile(TAIL, jackknife.len() - 1);
    (end(z), end(-z))
}

/// A quantile of sorted values, between the two nearest.
fn quantile(sorted: &[f64], level: f64) -> f64 {
    let last = sorted.len() - 1;
    let at = level.clamp(0.0, 1.0) * last as f64;
    let (below, part) = (at.floor() as usize, at.fract());
    sorted[below] + part * (sorted[(below + 1).min(last)] - sorted[below])
}

/// Indices below a bound, equally likely, from a name: the same on every machine and in whatever order
/// figures come.
pub(super) struct Draws {
    bytes: blake3::OutputReader,
    buffer: [u8; 1024],
    at: usize,
    bound: u64,
}

impl Draws {
    pub(super) fn new(name: &str, bound: usize) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("greenroom 2026 bootstrap");
        hasher.update(name.as_bytes());
        Self { bytes: hasher.finalize_xof(), buffer: [0; 1024], at: 1024, bound: bound as u64 }
    }

    pub(super) fn next(&mut self) -> usize {
        if self.at == self.buffer.len() {
            self.bytes.fill(&mut self.buffer);
            self.at = 0;
        }
        let word = &self.buffer[self.at..self.at + 4];
        self.at += 4;
        let word = word.iter().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
        // Uneven by less than the bound's part of 2³².
        ((word * self.bound) >> 32) as usize
    }
}
