//! Tests that figures over cases agree with another implementation, `tests/runner/statistics/coverage.py`
//! (numpy, scipy 1.17, statsmodels 0.15), which made `golden.json`.

use super::bootstrap::{Contribution, MeanKind};
use super::clustered;
use super::comparisons::{Sides, benjamini_hochberg, holm, needed, unpaired};
use super::interval::Estimate;
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Golden {
    pooled: Vec<PooledSet>,
    paired: Vec<ComparedSet>,
    unpaired: Vec<ComparedSet>,
    corrections: Vec<Corrected>,
    power: Vec<Power>,
}

/// Sum and number of observations of each case, and the interval of their mean.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PooledSet {
    kind: String,
    cases: Vec<(f64, f64)>,
    value: f64,
    low: f64,
    high: f64,
}

/// The same of two conditions, and of their difference; p where all exchanges were tried.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ComparedSet {
    kind: String,
    sides: [Vec<(f64, f64)>; 2],
    value: f64,
    low: f64,
    high: f64,
    #[serde(default)]
    p: Option<f64>,
}

/// P-values, and the same corrected by statsmodels' `multipletests`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Corrected {
    p: Vec<f64>,
    holm: Vec<f64>,
    bh: Vec<f64>,
}

/// Number of pairs of statsmodels' `TTestPower`, from the noncentral distribution.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Power {
    n: usize,
    variance: f64,
    difference: f64,
    level: f64,
    statsmodels: f64,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../../tests/runner/statistics/golden.json")).unwrap()
}

fn kind(name: &str) -> MeanKind {
    if name == "rate" { MeanKind::Rate } else { MeanKind::Mean }
}

fn parts(cases: &[(f64, f64)]) -> Vec<Contribution> {
    cases.iter().map(|(sum, n)| Contribution { sum: *sum, n: *n }).collect()
}

fn assert_close(found: &Estimate, (value, low, high): (f64, f64, f64), set: &str) {
    let is_close = |found: Option<f64>, expected: f64| {
        found.is_some_and(|found| (found - expected).abs() < 1e-7 * expected.abs().max(1.0))
    };
    assert!(
        is_close(found.value, value) && is_close(found.low, low) && is_close(found.high, high),
        "{set}: {found:?}, expected {value} [{low}, {high}]"
    );
}

#[test]
fn intervals_over_cases_are_those_of_another_implementation() {
    let golden = golden();
    assert!(golden.pooled.len() > 30 && golden.paired.len() > 20 && golden.unpaired.len() > 20);
    for (at, set) in golden.pooled.iter().enumerate() {
        let found = clustered::mean(&parts(&set.cases), kind(&set.kind));
        assert_close(&found, (set.value, set.low, set.high), &format!("pooled {at}, {}", set.kind));
    }
    for (at, set) in golden.paired.iter().enumerate() {
        let [here, there] = set.sides.each_ref().map(|side| parts(side));
        let pairs: Vec<[Contribution; 2]> = here.iter().zip(&there).map(|(a, b)| [*a, *b]).collect();
        let found = clustered::difference(&pairs, kind(&set.kind));
        assert_close(&found, (set.value, set.low, set.high), &format!("paired {at}, {}", set.kind));
    }
    for (at, set) in golden.unpaired.iter().enumerate() {
        let [here, there] = set.sides.each_ref().map(|side| clustered::mean(&parts(side), kind(&set.kind)));
        let found = unpaired(&here, &there).unwrap();
        assert_close(&found, (set.value, set.low, set.high), &format!("unpaired {at}, {}", set.kind));
    }
}

#[test]
fn p_values_are_those_of_all_exchanges() {
    let sets = golden().paired;
    let tested: Vec<&ComparedSet> = sets.iter().filter(|set| set.p.is_some()).collect();
    assert!(tested.len() > 10);
    for (at, set) in tested.iter().enumerate() {
        let side = |side: &Vec<(f64, f64)>| parts(side).into_iter().enumerate().collect::<BTreeMap<_, _>>();
        let [here, there] = set.sides.each_ref().map(side);
        let found = Sides::new(&here, &there).p("a figure").unwrap_or(1.0);
        assert!((found - set.p.unwrap()).abs() < 1e-12, "{at}: {found}, expected {:?}", set.p);
    }
}

#[test]
fn corrected_p_values_are_those_of_statsmodels() {
    for row in golden().corrections {
        for (found, expected) in [(holm(&row.p), &row.holm), (benjamini_hochberg(&row.p), &row.bh)] {
            let is_close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-12;
            assert!(found.len() == expected.len() && found.iter().zip(expected).all(is_close), "{found:?}");
        }
    }
    assert!(holm(&[]).is_empty() && benjamini_hochberg(&[]).is_empty());
}

/// The formula leaves out what the noncentral distribution adds: a case or two.
#[test]
fn numbers_of_cases_are_nearly_those_of_statsmodels() {
    for row in golden().power {
        let found = needed(row.n, row.variance, row.difference, row.level).unwrap() as f64;
        assert!((found - row.statsmodels.ceil()).abs() <= 2.0, "{found}, not {}", row.statsmodels);
    }
    assert_eq!(needed(10, 0.1, 0.0, 0.05), None);
}

/// A sample of the exchanges gives nearly the p-value of all.
#[test]
fn many_pairs_are_exchanged_at_random() {
    // Of forty pairs, thirty differ: twenty-two in favour of the first. By scipy's `binomtest(22, 30)`.
    let trial = |sum| Contribution { sum, n: 1.0 };
    let side = |hits: fn(usize) -> bool| {
        (0..40).map(|at| (at, trial(f64::from(u8::from(hits(at)))))).collect::<BTreeMap<_, _>>()
    };
    let (here, there) = (side(|at| !(22..35).contains(&at)), side(|at| at >= 22 && !(30..35).contains(&at)));
    let sides = Sides::new(&here, &there);
    let p = sides.p("a figure").unwrap();
    assert!((p - 0.016_124_801_710_248).abs() < 0.005, "{p}");
    assert_eq!(p, sides.p("a figure").unwrap(), "the same every time");
    // Nothing can be said of pairs that are all equal.
    assert_eq!(Sides::new(&here, &here).p("a figure"), None);
}

/// Cases of which each is in one group only are divided anew.
#[test]
fn groups_without_common_cases_are_compared_unpaired() {
    let side = |from: usize, values: &[f64]| {
        let part = |(at, value): (usize, &f64)| (from + at, Contribution { sum: 2.0 * value, n: 2.0 });
        values.iter().enumerate().map(part).collect::<BTreeMap<_, _>>()
    };
    let (here, there) = (side(0, &[5.0, 6.0, 7.0, 8.0, 9.0]), side(10, &[1.0, 2.0, 3.0, 4.0, 4.5]));
    let sides = Sides::new(&here, &there);
    assert!(!sides.are_paired());
    // Two of the 252 divisions have a difference as great.
    let p = sides.p("a figure").unwrap();
    assert!((p - 2.0 / 252.0).abs() < 0.003, "{p}");
    // The variance is the sum of both: 1/5 of 2.5, and of 2.05 (a sample's, times 5/4 for ten cases' 10/9).
    let expected = 10.0 / 9.0 * (10.0 / 25.0 + 8.2 / 25.0);
    assert!((sides.variance().unwrap() - expected).abs() < 1e-9, "{:?}", sides.variance());
}
