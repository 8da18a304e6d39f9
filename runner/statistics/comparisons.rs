//! Differences between conditions: paired and unpaired intervals, tests, corrections for many comparisons, and
//! the number of cases (or runs) that would show a difference.
//!
//! - **Test.** If the condition made no difference, the two results of a case (or seed) could as well have
//!   been exchanged. The p-value is the share of all exchanges whose difference is at least as great as the
//!   observed one (R. A. Fisher, "The design of experiments", 1935, section 21); of one trial on either side
//!   this is the exact test of McNemar. Where there are too many exchanges, a random sample of them is taken,
//!   and the observed one is counted among them (B. Phipson and G. K. Smyth, Statistical Applications in
//!   Genetics and Molecular Biology 9 (2010), article 39). Two groups without common cases are divided anew at
//!   random.
//! - **Corrections.** S. Holm, Scandinavian Journal of Statistics 6 (1979), 65-70 (no false finding with 95 %
//!   probability); Y. Benjamini and Y. Hochberg, Journal of the Royal Statistical Society B 57 (1995), 289-300
//!   (of the findings, at most 5 % are expected to be false).
//! - **Unpaired interval.** From the ends of both intervals, as if the two were independent: the square-and-add
//!   method (G. Y. Zou and A. Donner, Statistics in Medicine 27 (2008), 1693-1702).
//! - **Power.** The paired t test needs the n cases for which `n ≥ m v (t(1-α/2k) + t(80 %))² / d²`, with d the
//!   observed difference, v its variance with the m cases that there are, t Student's quantile with n-1 degrees
//!   of freedom, k the number of comparisons (S.-C. Chow, J. Shao and H. Wang, "Sample size calculations in
//!   clinical research", 2nd edition, 2008, section 3.1).

use super::bootstrap::{Contribution, Draws, is_alike};
use super::clustered::variance_of_difference;
use super::distribution::{normal_quantile, t_quantile};
use super::interval::{CONFIDENCE, Estimate, IntervalMethod};
use serde::Serialize;
use std::collections::BTreeMap;

/// Probability of showing a difference that is as great as observed.
pub const POWER: f64 = 0.8;
/// Most pairs that differ of which all exchanges are tried.
const MAX_EXACT: usize = 13;
/// Random exchanges otherwise; with the observed one, 10,000.
const N_EXCHANGES: usize = 9_999;
/// Exchanges that are drawn at once.
const BITS: usize = 16;
/// Degrees of freedom from which on Student's quantile is taken for the normal one.
const MANY: usize = 1_000;

/// The difference between two conditions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Index of the condition that it is compared with.
    pub to: usize,
    /// Cases, or seeds where there are no cases, that both conditions have; 0: `estimate` is unpaired.
    pub pairs: usize,
    /// The difference of the means, paired by case, or by seed where there are no cases; unpaired if the
    /// conditions have fewer than two of them in common.
    #[serde(flatten)]
    pub estimate: Estimate,
    /// The difference as if the conditions had been played independently of each other; null: either has no
    /// interval, or `estimate` is unpaired already.
    pub unpaired: Option<Estimate>,
    /// The p-value; null: this difference is not one of the results, or there is nothing to compare.
    pub p: Option<f64>,
    /// The p-value, corrected for all comparisons of the summary by Holm.
    pub p_holm: Option<f64>,
    /// The same by Benjamini and Hochberg.
    pub p_bh: Option<f64>,
    /// Cases, or runs of each condition where there are none (without pairs: those of both together), that
    /// would show the difference with a probability of 80 % at the level of 5 %, corrected for the number of
    /// comparisons. Null: the difference is 0, or does not vary.
    pub needed: Option<usize>,
    /// Variance of the difference with the cases that there are; null: it does not vary.
    #[serde(skip)]
    pub(super) variance: Option<f64>,
}

/// What either side of a comparison contributes, by case or seed, where it has observations.
pub(super) struct Sides {
    /// Those of the cases that both sides have: here, there.
    pub(super) pairs: Vec<[Contribution; 2]>,
    /// All of either side: here, there.
    all: [Vec<Contribution>; 2],
}

impl Sides {
    pub(super) fn new<K: Ord>(here: &BTreeMap<K, Contribution>, there: &BTreeMap<K, Contribution>) -> Self {
        let own = |side: &BTreeMap<K, Contribution>| {
            side.values().copied().filter(|part| part.n > 0.0).collect::<Vec<_>>()
        };
        let pair = |(key, part): (&K, &Contribution)| Some([*part, *there.get(key)?]);
        let pairs = here.iter().filter_map(pair).filter(|[here, there]| here.n > 0.0 && there.n > 0.0);
        Self { pairs: pairs.collect(), all: [own(here), own(there)] }
    }

    /// True if cases are compared with themselves.
    pub(super) fn are_paired(&self) -> bool {
        self.pairs.len() > 1
    }

    /// Variance of the difference; `None`: it does not vary.
    pub(super) fn variance(&self) -> Option<f64> {
        if self.are_paired() {
            return variance_of_difference(&self.pairs);
        }
        let none = Contribution::default();
        let [here, there] = &self.all;
        let apart = here.iter().map(|part| [*part, none]).chain(there.iter().map(|part| [none, *part]));
        variance_of_difference(&apart.collect::<Vec<_>>())
    }

    /// The p-value of the difference. Randomness comes from `name` alone.
    pub(super) fn p(&self, name: &str) -> Option<f64> {
        if self.are_paired() { exchanged(name, &self.pairs) } else { divided(name, &self.all) }
    }
}

/// The difference of two independent estimates.
pub(super) fn unpaired(here: &Estimate, there: &Estimate) -> Option<Estimate> {
    let ends = |of: &Estimate| Some([of.value? - of.low?, of.high? - of.value?]);
    let ([below, above], [other_below, other_above]) = (ends(here)?, ends(there)?);
    let value = here.value? - there.value?;
    Some(Estimate {
        n: here.n + there.n,
        value: Some(value),
        low: Some(value - libm::hypot(below, other_above)),
        high: Some(value + libm::hypot(above, other_below)),
        method: IntervalMethod::Unpaired,
    })
}

/// The same, without an interval where either side has none.
pub(super) fn apart(here: &Estimate, there: &Estimate) -> Estimate {
    unpaired(here, there).unwrap_or_else(|| {
        let lacking = if here.low.is_none() { here } else { there };
        match here.value.zip(there.value) {
            Some((own, other)) => Estimate::bare(here.n + there.n, Some(own - other), lacking.method),
            None => Estimate::bare(0, None, IntervalMethod::NoRuns),
        }
    })
}

/// True if a difference is at least as great as the observed one, but for rounding.
fn is_as_great(difference: f64, observed: f64) -> bool {
    difference.abs() >= observed.abs() - 1e-9 * observed.abs().max(1e-3)
}

/// The p-value of pairs whose sides could have been exchanged; `None`: no pair differs, whatever is exchanged.
fn exchanged(name: &str, pairs: &[[Contribution; 2]]) -> Option<f64> {
    let sum = |side: usize| pairs.iter().fold(Contribution::default(), |sum, pair| sum.plus(pair[side]));
    let (here, there) = (sum(0), sum(1));
    let differing = pairs.iter().filter(|[here, there]| here != there);
    // What an exchange moves from one side to the other.
    let moved: Vec<Contribution> = differing.map(|[here, there]| there.minus(*here)).collect();
    if moved.is_empty() {
        return None;
    }
    let of = |moved: Contribution| here.plus(moved).mean() - there.minus(moved).mean();
    let observed = of(Contribution::default());
    // Which of these are exchanged: a bit each.
    let exchange = |moved: &[Contribution], bits: usize| {
        let chosen = moved.iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1);
        chosen.fold(Contribution::default(), |sum, (_, part)| sum.plus(*part))
    };
    if moved.len() <= MAX_EXACT {
        let all = 1usize << moved.len();
        let n = (0..all).filter(|bits| is_as_great(of(exchange(&moved, *bits)), observed)).count();
        return Some(n as f64 / all as f64);
    }
    let mut draws = Draws::new(&format!("exchange {name}"), 1 << BITS);
    let mut drawn = || {
        let parts = moved.chunks(BITS).map(|moved| exchange(moved, draws.next()));
        of(parts.fold(Contribution::default(), Contribution::plus))
    };
    let n = (0..N_EXCHANGES).filter(|_| is_as_great(drawn(), observed)).count();
    Some((n + 1) as f64 / (N_EXCHANGES + 1) as f64)
}

/// The p-value of two groups that could have been divided otherwise; `None`: one has fewer than two cases.
fn divided(name: &str, [here, there]: &[Vec<Contribution>; 2]) -> Option<f64> {
    if here.len() < 2 || there.len() < 2 {
        return None;
    }
    let n_here = here.len();
    let mut all = [here.as_slice(), there].concat();
    let sum = |parts: &[Contribution]| {
        parts.iter().fold(Contribution::default(), |sum, part| sum.plus(*part)).mean()
    };
    let of = |all: &[Contribution]| sum(&all[..n_here]) - sum(&all[n_here..]);
    let observed = of(&all);
    let mut draws = Draws::new(&format!("divide {name}"), 1 << 24);
    let mut n = 0;
    for _ in 0..N_EXCHANGES {
        // The first steps of a shuffle by Fisher and Yates.
        for at in 0..n_here {
            let other = at + draws.next() * (all.len() - at) / (1 << 24);
            all.swap(at, other);
        }
        n += usize::from(is_as_great(of(&all), observed));
    }
    Some((n + 1) as f64 / (N_EXCHANGES + 1) as f64)
}

/// P-values corrected by Holm's step-down method, in the order given.
pub(super) fn holm(values: &[f64]) -> Vec<f64> {
    let (order, n) = (ascending(values), values.len());
    let mut corrected = vec![0.0; n];
    let mut least = 0.0f64;
    for (rank, at) in order.into_iter().enumerate() {
        least = least.max((n - rank) as f64 * values[at]).min(1.0);
        corrected[at] = least;
    }
    corrected
}

/// P-values corrected by Benjamini's and Hochberg's step-up method, in the order given.
pub(super) fn benjamini_hochberg(values: &[f64]) -> Vec<f64> {
    let (order, n) = (ascending(values), values.len());
    let mut corrected = vec![0.0; n];
    let mut most = 1.0f64;
    for (rank, at) in order.into_iter().enumerate().rev() {
        most = most.min(n as f64 / (rank + 1) as f64 * values[at]);
        corrected[at] = most;
    }
    corrected
}

fn ascending(values: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    order
}

/// Corrects the p-values of all these comparisons, and computes how many cases each needs. Returns the number
/// of comparisons.
pub(super) fn correct(comparisons: &mut [&mut Comparison]) -> usize {
    let mut tested: Vec<&mut &mut Comparison> =
        comparisons.iter_mut().filter(|comparison| comparison.p.is_some()).collect();
    let values: Vec<f64> = tested.iter().filter_map(|comparison| comparison.p).collect();
    let corrected = holm(&values).into_iter().zip(benjamini_hochberg(&values));
    for (comparison, (holm, bh)) in tested.iter_mut().zip(corrected) {
        (comparison.p_holm, comparison.p_bh) = (Some(holm), Some(bh));
        comparison.needed = comparison.variance.zip(comparison.estimate.value).and_then(|(variance, d)| {
            needed(comparison.estimate.n, variance, d, (1.0 - CONFIDENCE) / values.len() as f64)
        });
    }
    values.len()
}

/// Cases that show a difference with a probability of [`POWER`] at a two-sided level, if `n` cases give it
/// this variance.
pub(super) fn needed(n: usize, variance: f64, difference: f64, level: f64) -> Option<usize> {
    let scale = n as f64 * variance / (difference * difference);
    if is_alike(difference, difference) || !scale.is_finite() || scale <= 0.0 {
        return None;
    }
    let quantile = |p: f64, n: usize| {
        if n > MANY { -normal_quantile(p) } else { -t_quantile(p, n.max(2) - 1) }
    };
    let wanted = |n: usize| {
        let both = quantile(level / 2.0, n) + quantile(1.0 - POWER, n);
        (scale * both * both).ceil().clamp(2.0, 1e15) as usize
    };
    // More cases have smaller quantiles, so this goes up to the least number that is enough.
    let mut n = wanted(MANY + 1);
    while n < wanted(n) {
        n += 1;
    }
    Some(n)
}
