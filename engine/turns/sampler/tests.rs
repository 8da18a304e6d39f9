//! Draws against the rule's own words, in every way in which they are made.

use super::*;
use crate::Dry;
use crate::scoring::distribution::{Distribution, logprob};
use proptest::prelude::*;

/// The token that a row draws after a reply.
pub(super) fn drawn(logits: &[f32], reply: &[u32], sampling: &Sampling) -> u32 {
    choose(&Row::new(logits, reply, &Said::default(), sampling), sampling).expect("probabilities")
}

/// The rule, as documented at the top of [`likely`]: everything is sorted.
fn by_rule(logits: &[f32], number: f64, sampling: &Sampling) -> u32 {
    let tokens = kept_by_rule(logits, sampling);
    let top = tokens[0].1;
    let weight = |x: f32| exp(f64::from(x - top) / f64::from(sampling.temperature));
    let mass: f64 = tokens.iter().map(|(_, x)| weight(*x)).sum();
    let mut target = number * mass;
    for (id, x) in &tokens {
        target -= weight(*x);
        if target < 0.0 {
            return *id;
        }
    }
    tokens[tokens.len() - 1].0
}

fn kept_by_rule(logits: &[f32], sampling: &Sampling) -> Vec<(u32, f32)> {
    let mut tokens: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
    tokens.sort_by(likelier);
    let top = tokens[0].1;
    let weight = |x: f32| exp(f64::from(x - top) / f64::from(sampling.temperature));
    if sampling.top_k > 0 {
        tokens.truncate(sampling.top_k);
    }
    let n = tokens.iter().take_while(|(_, x)| weight(*x) >= f64::from(sampling.min_p)).count();
    tokens.truncate(n.max(1));
    let total: f64 = tokens.iter().map(|(_, x)| weight(*x)).sum();
    let (mut kept, mut mass) = (0, 0.0);
    while kept < tokens.len() && (kept == 0 || mass < f64::from(sampling.top_p) * total) {
        mass += weight(tokens[kept].1);
        kept += 1;
    }
    tokens.truncate(kept);
    tokens
}

/// A number between 0 and 1, neither of them: a logarithm of it is finite.
fn number(i: u64) -> f32 {
    let hash = i.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let bits = (hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 41;
    (bits as f32 + 0.5) / (1u64 << 23) as f32
}

/// Shapes of rows: peaked as a model's, flat, ties, and a few extremes.
fn row_of(shape: u64, n: u64, seed: u64) -> Vec<f32> {
    let x = |i: u64| number(i * 31 + seed * 1_000_003);
    let logit = |i: u64| match shape % 6 {
        0 => -4.0 * x(i).ln() - 3.0 * x(i + n),
        1 => (0..6).map(|j| x(i + j * n)).sum::<f32>() * 2.0,
        2 => x(i),
        3 => (-4.0 * x(i).ln()).round(),
        4 => 1.5,
        _ => (x(i) - 0.5) * 300.0,
    };
    (0..n).map(logit).collect()
}

fn filters(temperature: f32) -> impl Strategy<Value = Sampling> {
    let top_k = prop_oneof![3 => Just(0), 1 => Just(1), 1 => Just(40), 1 => Just(700), 1 => 1..6000usize];
    let top_p = prop_oneof![2 => Just(1.0), 1 => Just(0.9), 1 => 0.0..1f32];
    let min_p = prop_oneof![3 => Just(0.0), 1 => Just(0.05), 1 => Just(1e-6), 1 => Just(1.0), 1 => 0.0..1f32];
    (top_k, top_p, min_p, any::<u64>()).prop_map(move |(top_k, top_p, min_p, seed)| Sampling {
        temperature,
        top_k,
        top_p,
        min_p,
        seed,
        ..Sampling::default()
    })
}

fn any_sampling() -> impl Strategy<Value = Sampling> {
    prop_oneof![Just(0.3f32), Just(0.7), Just(1.0), Just(1.6), Just(40.0), Just(1e-3)].prop_flat_map(filters)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn every_way_draws_what_the_rule_draws(
        shape in 0..6u64, n in prop_oneof![1..300u64, 300..9000u64], seed in any::<u32>(), sampling in any_sampling(),
        odd in prop::sample::select(vec![f32::NEG_INFINITY, 0.0, -0.0, 1e30]), is_odd in any::<bool>(),
    ) {
        let mut logits = row_of(shape, n, u64::from(seed));
        if is_odd && n > 1 {
            logits[seed as usize % n as usize] = odd;
        }
        let number = uniform(sampling.seed, 0);
        let expected = by_rule(&logits, number, &sampling);
        prop_assert_eq!(drawn(&logits, &[], &sampling), expected);
        let row = Row::new(&logits, &[], &Said::default(), &sampling);
        let maxima = row.maxima();
        let top = greatest(&maxima).expect("probabilities");
        let by_likely = likely(&row, &maxima, top, &sampling);
        let mut by_bins = Bins::new(&logits, top, lowest(&maxima, top), &sampling);
        for (way, found) in [
            ("likely", by_likely.as_ref().and_then(|likely| likely.draw(number))),
            ("bins", by_bins.draw(number, &sampling)),
            ("sorted", sorted(&logits, &sampling).and_then(|all| all.draw(number))),
        ] {
            prop_assert!(
                found.is_none_or(|found| found == expected), "{}: {:?}, not {}", way, found, expected
            );
        }
        let mut expected = kept_by_rule(&logits, &sampling);
        expected.sort_unstable_by_key(|(id, _)| *id);
        let by_bins = by_bins.filter_tokens(&sampling);
        for found in [filter_tokens(&row, &maxima, top, &sampling)].into_iter().chain(by_bins) {
            let mut found = found;
            found.sort_unstable_by_key(|(id, _)| *id);
            prop_assert_eq!(&found, &expected);
        }
    }
}

#[test]
fn nearly_all_is_drawn_without_sorting() {
    let mut counts = [[0; 3]; 2];
    for seed in 0..600u64 {
        let logits = row_of(seed % 2, 32_000, seed);
        let sampling = Sampling {
            temperature: [0.7, 1.0][(seed / 2 % 2) as usize],
            top_k: [0, 0, 40, 1000][(seed / 4 % 4) as usize],
            top_p: [1.0, 0.9][(seed / 16 % 2) as usize],
            min_p: [0.0, 0.0, 0.05][(seed % 3) as usize],
            seed,
            ..Sampling::default()
        };
        let row = Row::new(&logits, &[], &Said::default(), &sampling);
        let maxima = row.maxima();
        let (top, number) = (greatest(&maxima).unwrap(), uniform(seed, 0));
        let of = &mut counts[(seed % 2) as usize];
        if likely(&row, &maxima, top, &sampling).is_some_and(|likely| likely.draw(number).is_some()) {
            of[0] += 1;
        } else if Bins::new(&logits, top, lowest(&maxima, top), &sampling).draw(number, &sampling).is_some() {
            of[1] += 1;
        } else {
            of[2] += 1;
        }
    }
    let [peaked, flat] = counts;
    assert!(peaked[0] > 200 && peaked[2] == 0, "peaked rows: {peaked:?}");
    assert!(flat[1] > 20 && flat[2] == 0, "flat rows: {flat:?}");
}

/// The likeliest of a row, as a device sorts them out.
fn best(logits: &[f32], most: usize, temperature: f32) -> Best {
    let mut all: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    let rest = all.split_off(most);
    let top = all[0].1;
    let rest = rest.iter().map(|(_, x)| ((x - top) / temperature.max(1e-3)).exp()).sum();
    Best { row: 0, least: all[most - 1].1, top, rest, candidates: all }
}

#[test]
fn the_likeliest_tokens_tell_what_all_would_or_nothing() {
    let (mut reported, mut asked) = (0, 0);
    for seed in 0..400u64 {
        let logits = row_of(0, 3000, seed);
        let pick = |of: &[f32]| of[(seed % of.len() as u64) as usize];
        let sampling = Sampling {
            temperature: pick(&[0.0, 0.7, 1.0, 1.6]),
            top_k: [0, 40, 2000][(seed / 4 % 3) as usize],
            top_p: [1.0, 0.9][(seed / 2 % 2) as usize],
            min_p: [0.0, 0.05, 1e-6][(seed / 5 % 3) as usize],
            repetition_penalty: [1.0, 1.3][(seed / 3 % 2) as usize],
            dry: (seed % 7 == 0).then(Dry::default),
            seed,
            ..Sampling::default()
        };
        // Within what a device says of the others' weight.
        let mut best = best(&logits, 300, sampling.temperature);
        best.rest *= [0.992, 1.0, 1.008][(seed % 3) as usize];
        // What was said are likely tokens.
        let reply: Vec<u32> = best.candidates.iter().map(|(id, _)| *id).take(seed as usize % 20).collect();
        let expected = drawn(&logits, &reply, &sampling);
        asked += 1;
        if let Some(found) = choose_among(&best, &reply, &Said::default(), &sampling) {
            reported += 1;
            assert_eq!(found, expected, "{sampling:?}");
        }
    }
    assert!(reported * 10 > asked * 7, "{reported} of {asked} were told");
}

#[test]
fn penalties_and_exclusions_are_as_if_the_row_had_them() {
    for seed in 0..200u64 {
        let logits = row_of(seed, 1000, seed);
        let reply: Vec<u32> = (0..90).map(|i| (number(i + seed * 100) * 1100.0) as u32).collect();
        let mut said = Said::default();
        let twice = [5u32, 6, 7, 8, 5, 6, 7];
        twice.iter().for_each(|id| said.push(*id, b"x", None));
        let sampling = Sampling {
            temperature: [0.0, 1.0][(seed / 2 % 2) as usize],
            repetition_penalty: [1.0, 1.3, 0.8][(seed % 3) as usize],
            repetition_window: [64, 0, 9][(seed / 4 % 3) as usize],
            dry: (seed % 2 == 0).then(Dry::default),
            seed,
            ..Sampling::default()
        };
        let mut expected = logits.clone();
        let recent: std::collections::BTreeSet<u32> =
            reply[reply.len() - sampling.repetition_window.min(90)..].iter().copied().collect();
        for id in recent.into_iter().filter(|id| *id < 1000) {
            let logit = &mut expected[id as usize];
            let penalty = sampling.repetition_penalty;
            *logit = if *logit >= 0.0 { *logit / penalty } else { *logit * penalty };
        }
        if let Some(dry) = sampling.dry {
            said.penalties(dry).into_iter().for_each(|(id, penalty)| expected[id as usize] -= penalty);
        }
        let mut row = Row::new(&logits, &reply, &said, &sampling);
        for id in [3, 999, 4000] {
            row.exclude(id);
            expected.get_mut(id as usize).into_iter().for_each(|logit| *logit = f32::NEG_INFINITY);
        }
        assert_eq!(*row.all(), expected);
        let pieces = expected.chunks(crate::device::LOGITS_PER_PIECE);
        let maxima: Vec<f32> = pieces.map(|p| p.iter().copied().fold(f32::NEG_INFINITY, f32::max)).collect();
        assert_eq!(row.maxima(), maxima);
        let found = choose(&row, &sampling).unwrap();
        if sampling.temperature > 0.0 {
            assert_eq!(found, by_rule(&expected, uniform(seed, 90), &sampling));
        } else {
            assert_eq!(found, argmax(&expected));
        }
    }
}

/// The order of arrival is that in which tokens are drawn, each without those before it.
#[test]
fn tokens_arrive_in_the_order_in_which_they_are_drawn() {
    let allows = |id: u32| id % 3 != 0;
    for (seed, temperature) in [(1, 1.0), (2, 0.2), (3, 0.0), (4, 3.0)] {
        for (top_k, top_p, min_p) in
            [(0, 1.0, 0.0), (40, 1.0, 0.0), (0, 0.8, 0.0), (0, 1.0, 0.1), (1, 1.0, 0.0)]
        {
            let sampling = Sampling { temperature, seed, top_k, top_p, min_p, ..Sampling::default() };
            let number = |id: u64| uniform(seed, id as usize) as f32;
            let logits: Vec<f32> = (0..3000).map(|id| (12.0 * number(id)).round() / 2.0).collect();
            let row = Row::new(&logits, &[], &Said::default(), &sampling);
            let arrived: Vec<u32> = in_order(&row, &sampling, allows).unwrap().take(70).collect();
            let mut drawn: Vec<u32> = Vec::new();
            while drawn.len() < arrived.len() {
                let next = choose_allowed(&row, &sampling, |id| allows(id) && !drawn.contains(&id)).unwrap();
                drawn.push(next);
            }
            assert_eq!(arrived, drawn, "{sampling:?}");
        }
    }
    let row = [1.0, 2.0, 3.0];
    let sampling = Sampling { temperature: 1.0, ..Sampling::default() };
    let row = Row::new(&row, &[], &Said::default(), &sampling);
    assert_eq!(in_order(&row, &sampling, |id| id != 1).unwrap().count(), 2);
    assert_eq!(in_order(&row, &sampling, |_| false).unwrap().count(), 0);
}

#[test]
fn what_is_not_a_row_of_probabilities_draws_nothing() {
    let found = |logits: &[f32], temperature| {
        let sampling = Sampling { temperature, ..Sampling::default() };
        let row = Row::new(logits, &[], &Said::default(), &sampling);
        let found = choose(&row, &sampling);
        // Scores are refused by the same rule.
        assert_eq!(found.is_some(), Distribution::of(logits).is_known(), "{logits:?}");
        assert_eq!(choose_allowed(&row, &sampling, |_| true).is_some(), found.is_some(), "{logits:?}");
        found
    };
    for temperature in [0.0, 1.0] {
        let mut logits = vec![f32::NEG_INFINITY; 700];
        assert_eq!(found(&logits, temperature), None);
        logits[300] = -9.0;
        assert_eq!(found(&logits, temperature), Some(300));
        // One logit is enough.
        for at in [0, 299, 300, 301, 639, 699] {
            for odd in [f32::NAN, f32::INFINITY] {
                let mut logits: Vec<f32> = (0..700).map(|i| number(i) * 9.0).collect();
                logits[at] = odd;
                assert_eq!(found(&logits, temperature), None, "{odd} at {at}");
                // Nor where that token can't be drawn.
                let sampling = Sampling { temperature, ..Sampling::default() };
                let mut row = Row::new(&logits, &[], &Said::default(), &sampling);
                row.exclude(at as u32);
                assert_eq!(choose(&row, &sampling), None, "{odd} at {at}, excluded");
            }
        }
    }
}

#[test]
fn filters_keep_what_they_should() {
    let logits = [3.0, 2.0, 1.0, 0.0];
    let base = Sampling { temperature: 1.0, ..Sampling::default() };
    let rate = |sampling: &Sampling, id: u32| {
        let n = 4000;
        // With the penalty off the reply's content does not matter, only its length.
        let hits = (0..n).filter(|i| drawn(&logits, &vec![9; *i], sampling) == id).count();
        hits as f64 / n as f64
    };
    assert_eq!(rate(&Sampling { top_k: 1, ..base.clone() }, 0), 1.0);
    assert_eq!(rate(&Sampling { top_p: 0.6, ..base.clone() }, 0), 1.0);
    assert_eq!(rate(&Sampling { min_p: 0.5, ..base.clone() }, 0), 1.0);
    assert!(rate(&Sampling { min_p: 0.3, ..base.clone() }, 1) > 0.2);
    assert_eq!(rate(&Sampling { temperature: 0.0, ..base.clone() }, 0), 1.0);
    let penalty = Sampling { temperature: 0.0, repetition_penalty: 2.0, ..base };
    assert_eq!(drawn(&logits, &[0], &penalty), 1);
}

#[test]
fn logprobs_sum_to_one() {
    let logits = [3.0, -2.0, 1.0, 0.5];
    let sum: f32 = (0..4).map(|id| logprob(&logits, id).exp()).sum();
    assert!((sum - 1.0).abs() < 1e-6);
    let any = |ids: &[u32]| Distribution::of(&logits).logprob_of_any(ids);
    assert!((any(&[2, 0, 2]).exp() - logprob(&logits, 0).exp() - logprob(&logits, 2).exp()).abs() < 1e-6);
    assert_eq!((any(&[1, 1, 9]), any(&[9])), (logprob(&logits, 1), f32::NEG_INFINITY));
}

#[test]
fn wholes_are_drawn_by_their_probabilities() {
    let logprobs = [-70.0, -71.0, f32::NEG_INFINITY, -70.0, f32::NAN];
    for (temperature, ratio) in [(1.0, 1f64.exp()), (2.0, 0.5f64.exp()), (0.5, 2f64.exp())] {
        let mut counts = [0f64; 5];
        for seed in 0..6000 {
            counts[draw(&logprobs, &Sampling { temperature, seed, ..Sampling::default() })] += 1.0;
        }
        assert_eq!((counts[2], counts[4]), (0.0, 0.0));
        assert!((counts[0] / counts[3] - 1.0).abs() < 0.1, "{counts:?}");
        assert!((counts[0] / counts[1] / ratio - 1.0).abs() < 0.2, "{counts:?} at {temperature}");
    }
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    assert_eq!((draw(&logprobs, &greedy), draw(&[-3.0, -1.0, -1.0], &greedy)), (0, 1));
}
