//! Frequencies of draws against probabilities that are worked out here, from the definitions of the filters
//! alone: a chi-square test for every combination of settings. Seeds are fixed, so that it passes always or
//! never.

use super::tests::drawn;
use super::*;
use crate::Dry;

/// Draws of each combination.
const DRAWS: usize = 3000;

/// Probabilities of tokens: the plain definitions, with the platform's `exp`.
fn probabilities(logits: &[f32], reply: &[u32], penalties: &[(u32, f64)], sampling: &Sampling) -> Vec<f64> {
    let mut logits: Vec<f64> = logits.iter().map(|x| f64::from(*x)).collect();
    let penalty = f64::from(sampling.repetition_penalty);
    for (id, logit) in logits.iter_mut().enumerate() {
        if reply.contains(&(id as u32)) {
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
        }
    }
    penalties.iter().for_each(|(id, penalty)| logits[*id as usize] -= penalty);
    let scaled: Vec<f64> = logits.iter().map(|x| x / f64::from(sampling.temperature)).collect();
    let softmax = |x: &[f64]| -> Vec<f64> {
        let sum: f64 = x.iter().map(|x| x.exp()).sum();
        x.iter().map(|x| x.exp() / sum).collect()
    };
    let mut p = softmax(&scaled);
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*b].total_cmp(&p[*a]));
    let keep = |p: &mut Vec<f64>, ids: &[usize]| {
        let sum: f64 = ids.iter().map(|id| p[*id]).sum();
        *p = (0..p.len()).map(|id| if ids.contains(&id) { p[id] / sum } else { 0.0 }).collect();
    };
    if sampling.top_k > 0 {
        order.truncate(sampling.top_k);
        keep(&mut p, &order);
    }
    let most = p[order[0]];
    order.retain(|id| p[*id] >= most * f64::from(sampling.min_p));
    keep(&mut p, &order);
    let mut mass = 0.0;
    let needed = order.iter().position(|id| {
        mass += p[*id];
        mass >= f64::from(sampling.top_p)
    });
    order.truncate(needed.map_or(order.len(), |at| at + 1));
    keep(&mut p, &order);
    p
}

/// How far counts are from what is expected, in standard deviations of a normal variable (Wilson and Hilferty
/// 1931); cells of which fewer than 5 are expected count as one. `None`: there is one cell.
fn deviation(counts: &[usize], p: &[f64]) -> Option<f64> {
    let n: usize = counts.iter().sum();
    let mut cells: Vec<(f64, f64)> = Vec::new();
    let mut rare = (0.0, 0.0);
    for (count, p) in counts.iter().zip(p) {
        assert!(*p > 0.0 || *count == 0, "drawn, though its probability is 0");
        let expected = p * n as f64;
        if expected < 5.0 {
            rare = (rare.0 + *count as f64, rare.1 + expected);
        } else {
            cells.push((*count as f64, expected));
        }
    }
    if rare.1 >= 5.0 {
        cells.push(rare);
    } else if let Some(last) = cells.last_mut() {
        *last = (last.0 + rare.0, last.1 + rare.1);
    }
    let freedom = cells.len().checked_sub(1).filter(|n| *n > 0)? as f64;
    let chi_square: f64 = cells.iter().map(|(count, expected)| (count - expected).powi(2) / expected).sum();
    let part = 2.0 / (9.0 * freedom);
    Some(((chi_square / freedom).cbrt() - (1.0 - part)) / part.sqrt())
}

fn settings() -> Vec<Sampling> {
    let mut all = Vec::new();
    for temperature in [0.6, 1.0, 1.8] {
        for top_k in [0, 3, 30] {
            for top_p in [1.0, 0.9, 0.4] {
                for min_p in [0.0, 0.03, 0.3] {
                    for repetition_penalty in [1.0, 1.4] {
                        for dry in [None, Some(Dry::default())] {
                            let base = Sampling::default();
                            all.push(Sampling {
                                temperature,
                                top_k,
                                top_p,
                                min_p,
                                repetition_penalty,
                                dry,
                                seed: all.len() as u64,
                                ..base
                            });
                        }
                    }
                }
            }
        }
    }
    all
}

/// Logits of a vocabulary: a few likely tokens, many others.
fn logits(n: u32) -> Vec<f32> {
    (0..n).map(|id| ((id * 7919 + 13) % n) as f32).map(|rank| 4.0 - 1.3 * (1.0 + rank).ln()).collect()
}

/// Counts of the tokens that `n` seeds draw after a reply.
fn counts(logits: &[f32], reply: &[u32], said: &Said, sampling: &Sampling, n: usize) -> Vec<usize> {
    let mut counts = vec![0; logits.len()];
    for draw in 0..n as u64 {
        let sampling = Sampling { seed: sampling.seed * 1_000_000 + draw, ..sampling.clone() };
        let row = Row::new(logits, reply, said, &sampling);
        counts[choose(&row, &sampling).expect("numbers") as usize] += 1;
    }
    counts
}

#[test]
fn draws_of_all_settings_have_their_probabilities() {
    let logits = logits(80);
    let likely = |n: usize| {
        argmax(&logits.iter().map(|x| if *x > 3.2 - n as f32 { -9.0 } else { *x }).collect::<Vec<_>>())
    };
    // The third and fourth token were said in turn: one of them would go on as before.
    let reply = [likely(0), likely(1), 50, likely(0), likely(1)];
    let mut said = Said::default();
    reply.iter().for_each(|id| said.push(*id, b"x", None));
    let (mut deviations, mut n) = (Vec::new(), 0);
    for sampling in settings() {
        // "a b x a b": x followed a sequence of two before.
        let penalties: &[(u32, f64)] = if sampling.dry.is_some() { &[(50, 0.8)] } else { &[] };
        let p = probabilities(&logits, &reply, penalties, &sampling);
        let counts = counts(&logits, &reply, &said, &sampling, DRAWS);
        n += 1;
        if let Some(deviation) = deviation(&counts, &p) {
            assert!(deviation < 5.0, "{deviation:.1} standard deviations with {sampling:?}");
            deviations.push(deviation);
        }
    }
    assert!(n == 324 && deviations.len() > 200, "{} of {n} combinations leave a choice", deviations.len());
    // All of them together are neither too far from what is expected nor too near.
    let mean = deviations.iter().sum::<f64>() / deviations.len() as f64;
    assert!(mean.abs() < 4.0 / (deviations.len() as f64).sqrt(), "{mean:.2} in the mean");
}

#[test]
fn draws_from_many_tokens_have_their_probabilities() {
    let logits = logits(20_000);
    for (seed, temperature) in [(1, 0.7), (2, 1.0), (3, 2.5)] {
        for (top_k, top_p, min_p) in
            [(0, 1.0, 0.0), (0, 0.95, 0.0), (900, 1.0, 0.0), (0, 1.0, 1e-4), (5000, 0.8, 1e-5)]
        {
            let sampling = Sampling { temperature, top_k, top_p, min_p, seed, ..Sampling::default() };
            let p = probabilities_of_many(&logits, &sampling);
            let counts = counts(&logits, &[], &Said::default(), &sampling, 4000);
            let deviation = deviation(&counts, &p).expect("a choice");
            assert!(deviation < 5.0, "{deviation:.1} standard deviations with {sampling:?}");
        }
    }
}

/// [`probabilities`], where a search through a list for each token would take too long.
fn probabilities_of_many(logits: &[f32], sampling: &Sampling) -> Vec<f64> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    let sorted: Vec<f32> = order.iter().map(|id| logits[*id]).collect();
    let n = if sampling.top_k > 0 { sampling.top_k } else { logits.len() };
    let weight = |x: f32| (f64::from(x) / f64::from(sampling.temperature)).exp();
    let least = weight(sorted[0]) * f64::from(sampling.min_p);
    let weights: Vec<f64> = sorted[..n].iter().map(|x| weight(*x)).filter(|w| *w >= least).collect();
    let (total, mut mass) = (weights.iter().sum::<f64>(), 0.0);
    let mut p = vec![0.0; logits.len()];
    for (weight, id) in weights.iter().zip(&order) {
        p[*id] = *weight;
        mass += weight;
        if mass >= f64::from(sampling.top_p) * total {
            break;
        }
    }
    p.iter().map(|weight| weight / mass).collect()
}

#[test]
fn draws_under_a_mask_have_their_probabilities() {
    let logits = logits(80);
    let allows = |id: u32| id % 3 == 0;
    for (seed, top_p, top_k) in [(1, 1.0, 0), (2, 0.8, 0), (3, 1.0, 20)] {
        let sampling = Sampling { temperature: 1.2, top_p, top_k, seed, ..Sampling::default() };
        let mut p = probabilities(&logits, &[], &[], &sampling);
        let allowed: f64 = (0..).zip(&p).filter(|(id, _)| allows(*id)).map(|(_, p)| p).sum();
        (0..).zip(&mut p).for_each(|(id, p)| *p = if allows(id) { *p / allowed } else { 0.0 });
        let mut counts = vec![0; logits.len()];
        for draw in 0..DRAWS as u64 {
            let sampling = Sampling { seed: seed * 1_000_000 + draw, ..sampling.clone() };
            let id = choose_allowed(&Row::new(&logits, &[], &Said::default(), &sampling), &sampling, allows);
            counts[id.expect("an allowed token") as usize] += 1;
        }
        let deviation = deviation(&counts, &p).expect("a choice");
        assert!(deviation < 5.0, "{deviation:.1} standard deviations with {sampling:?}");
    }
}

#[test]
fn a_wrong_temperature_would_be_noticed() {
    let logits = logits(80);
    let sampling = Sampling { temperature: 1.0, ..Sampling::default() };
    let other = Sampling { temperature: 1.3, ..sampling.clone() };
    let found = deviation(
        &counts(&logits, &[], &Said::default(), &sampling, DRAWS),
        &probabilities(&logits, &[], &[], &other),
    );
    assert!(found.unwrap() > 5.0, "{found:?}");
    // A reply's n-th token has its own number.
    let replies: Vec<u32> = (0..200).map(|n| drawn(&logits, &vec![9; n], &sampling)).collect();
    assert!(replies.iter().collect::<std::collections::BTreeSet<_>>().len() > 20);
}
