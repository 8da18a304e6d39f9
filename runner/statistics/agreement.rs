//! Agreement of judges who choose between the same options, over all runs: Krippendorff's alpha (Krippendorff
//! 2011, "Computing Krippendorff's alpha-reliability"), and Cohen's kappa (Cohen 1960) of two.
//!
//! A run is a unit and a judge a coder; an invalid verdict is missing. Options that are all numbers are on an
//! interval scale, others are names.

use super::observations::Observed;
use crate::scenario::text_of;
use indexmap::IndexMap;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// How far judges of the same options agree.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Agreement {
    /// The judges, by name.
    pub judges: Vec<String>,
    /// Runs with two verdicts or more.
    pub runs: usize,
    /// True if the options are numbers, and a difference counts by its square.
    pub is_interval: bool,
    /// Krippendorff's alpha: 1 if all agree, 0 if as by chance. Null: all verdicts are equal, or there are
    /// too few.
    pub alpha: Option<f64>,
    /// Cohen's kappa of two judges, over the runs in which both have a verdict. Null likewise.
    pub kappa: Option<f64>,
}

/// Verdicts of one run: of each judge, the place of its option.
type Unit = Vec<Option<usize>>;

/// Judges with the same options.
struct Panel {
    options: Vec<Value>,
    judges: Vec<String>,
    /// By run, each judge's verdict.
    units: BTreeMap<usize, BTreeMap<String, usize>>,
}

/// The agreement of each group of judges with the same options.
pub(super) fn agreements(observed: &[Observed<'_>]) -> Vec<Agreement> {
    let mut panels: IndexMap<String, Panel> = IndexMap::new();
    for turn in observed {
        let (Some(place), Some(made), Some(judge)) = (&turn.place, turn.choice(), turn.phase()) else {
            continue;
        };
        let Some(choice) = place.choice.as_ref().filter(|_| turn.run.scenario.phase(place.phase).is_judge)
        else {
            continue;
        };
        let options: Vec<Value> = choice.options.iter().map(|option| option.value.clone()).collect();
        let key = options.iter().map(text_of).collect::<Vec<_>>().join("\n");
        let panel = panels.entry(key).or_insert_with(|| Panel {
            options,
            judges: Vec::new(),
            units: BTreeMap::new(),
        });
        if !panel.judges.iter().any(|known| known == judge) {
            panel.judges.push(judge.to_string());
        }
        if let Some(at) = panel.options.iter().position(|option| *option == made.chosen) {
            panel.units.entry(turn.at).or_default().insert(judge.to_string(), at);
        }
    }
    panels.into_values().filter(|panel| panel.judges.len() > 1).map(Panel::agreement).collect()
}

impl Panel {
    fn agreement(self) -> Agreement {
        let Self { options, judges, units } = self;
        let of = |verdicts: &BTreeMap<String, usize>| {
            judges.iter().map(|judge| verdicts.get(judge).copied()).collect()
        };
        let units: Vec<Unit> = units.values().map(of).collect();
        let numbers: Option<Vec<f64>> = options.iter().map(Value::as_f64).collect();
        let distance = |one: usize, other: usize| match &numbers {
            Some(numbers) => square(numbers[one] - numbers[other]),
            None => f64::from(u8::from(one != other)),
        };
        let runs = units.iter().filter(|unit| unit.iter().flatten().count() > 1).count();
        let alpha = alpha(&units, options.len(), distance);
        let kappa = if judges.len() == 2 { kappa(&units, options.len()) } else { None };
        Agreement { judges, runs, is_interval: numbers.is_some(), alpha, kappa }
    }
}

fn square(value: f64) -> f64 {
    value * value
}

/// One minus the observed disagreement, divided by that of verdicts drawn from all at random.
fn alpha(units: &[Unit], n_options: usize, distance: impl Fn(usize, usize) -> f64) -> Option<f64> {
    let mut counts = vec![0.0; n_options];
    let mut observed = 0.0;
    for unit in units {
        let verdicts: Vec<usize> = unit.iter().flatten().copied().collect();
        if verdicts.len() < 2 {
            continue;
        }
        verdicts.iter().for_each(|verdict| counts[*verdict] += 1.0);
        let pairs = verdicts.iter().flat_map(|one| verdicts.iter().map(|other| distance(*one, *other)));
        observed += pairs.sum::<f64>() / (verdicts.len() - 1) as f64;
    }
    let n: f64 = counts.iter().sum();
    let pairs = (0..n_options).flat_map(|one| (0..n_options).map(move |other| (one, other)));
    let expected: f64 = pairs.map(|(one, other)| counts[one] * counts[other] * distance(one, other)).sum();
    (expected > 0.0).then(|| 1.0 - (n - 1.0) * observed / expected)
}

/// Agreement beyond that of two judges who choose with the same shares independently.
fn kappa(units: &[Unit], n_options: usize) -> Option<f64> {
    let pairs: Vec<(usize, usize)> = units.iter().filter_map(|unit| Some((unit[0]?, unit[1]?))).collect();
    let n = pairs.len() as f64;
    let agreed = pairs.iter().filter(|(one, other)| one == other).count() as f64 / n;
    let share = |option: usize, of: fn(&(usize, usize)) -> usize| {
        pairs.iter().filter(|pair| of(pair) == option).count() as f64 / n
    };
    let by_chance: f64 =
        (0..n_options).map(|option| share(option, |pair| pair.0) * share(option, |pair| pair.1)).sum();
    (n > 0.0 && by_chance < 1.0).then(|| (agreed - by_chance) / (1.0 - by_chance))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reliability data of Krippendorff's article: four coders, twelve units, missing values.
    fn units() -> Vec<Unit> {
        let rows: [[char; 12]; 4] = [
            ['1', '2', '3', '3', '2', '1', '4', '1', '2', ' ', ' ', ' '],
            ['1', '2', '3', '3', '2', '2', '4', '1', '2', '5', ' ', '3'],
            [' ', '3', '3', '3', '2', '3', '4', '2', '2', '5', '1', ' '],
            ['1', '2', '3', '3', '2', '4', '4', '1', '2', '5', '1', ' '],
        ];
        let verdict = |c: char| c.to_digit(10).map(|digit| digit as usize - 1);
        (0..12).map(|unit| rows.iter().map(|row| verdict(row[unit])).collect()).collect()
    }

    #[test]
    fn alpha_is_that_of_the_article() {
        let names = alpha(&units(), 5, |one, other| f64::from(u8::from(one != other))).unwrap();
        let numbers = alpha(&units(), 5, |one, other| square(one as f64 - other as f64)).unwrap();
        assert!((names - 0.743).abs() < 0.0005 && (numbers - 0.849).abs() < 0.0005, "{names}, {numbers}");
    }

    #[test]
    fn kappa_is_that_of_a_table() {
        // 20 times both yes, 15 times both no, 5 and 10 times one of each.
        let of = |n: usize, one: usize, other: usize| vec![vec![Some(one), Some(other)]; n];
        let units =
            [of(20, 0, 0), of(5, 0, 1), of(10, 1, 0), of(15, 1, 1), vec![vec![Some(0), None]]].concat();
        assert!((kappa(&units, 2).unwrap() - 0.4).abs() < 1e-12);
        assert_eq!(kappa(&of(3, 0, 0), 2), None, "all are equal");
        assert_eq!((kappa(&[], 2), alpha(&[], 2, |_, _| 1.0)), (None, None));
    }
}
