//! Seeded sampling: from logits to a token. The n-th choice of a request depends on its seed and n alone, on every machine: `exp` and
//! `log` are those of the libm crate, since the platforms' own differ in last digits.
//!
//! Sampling randomness is blake3(seed, index): the same in every version of every library.
//!
//! The rule by which options are drawn stands twice, for the runner shows it without an engine; a test ties them.

use crate::Sampling;
use crate::device::Best;
use crate::scoring::distribution::argmax;
use crate::turns::dry::Said;
use libm::{exp, log};
use std::collections::HashSet;

/// Chooses the next token of a reply from `logits: [n_vocab]`; `reply` are its tokens so far, `said` those and all earlier ones.
///
/// The repetition penalty looks at the reply alone: what others said, their names above all, may be repeated.
pub(crate) fn choose(logits: &[f32], reply: &[u32], said: &Said, sampling: &Sampling) -> u32 {
    let logits = all_penalized(logits, reply, said, sampling);
    if sampling.temperature <= 0.0 {
        return argmax(&logits);
    }
    let candidates = candidates(&logits, sampling);
    let all = Best { candidates, least: f32::NEG_INFINITY, ..Best::default() };
    draw_token(all, reply.len(), sampling).unwrap_or(0)
}

/// Chooses the next token among those that are allowed, by noise that belongs to seed, place and token (see `turns/grammar`); `None`:
/// there are none. What the filters leave of all tokens comes first; where nothing of it is allowed, all that is allowed counts.
pub(crate) fn choose_allowed(
    logits: &[f32],
    reply: &[u32],
    said: &Said,
    sampling: &Sampling,
    allows: impl Fn(u32) -> bool,
) -> Option<u32> {
    let logits = all_penalized(logits, reply, said, sampling);
    let mut candidates: Vec<(u32, f32)> =
        (0..).zip(logits.iter().copied()).filter(|(_, x)| !x.is_nan()).collect();
    let filters = sampling.top_k > 0 || sampling.top_p < 1.0 || sampling.min_p > 0.0;
    if filters && sampling.temperature > 0.0 {
        let mut likely = self::candidates(&logits, sampling);
        likely.sort_unstable_by(likelier);
        likely.truncate(n_likely(&likely, sampling));
        let some: Vec<_> = likely.into_iter().filter(|(id, _)| allows(*id)).collect();
        if !some.is_empty() {
            candidates = some;
        }
    }
    candidates.retain(|(id, _)| allows(*id));
    let better = |best: (u32, f32), next: (u32, f32)| if next.1 > best.1 { next } else { best };
    let (first, top) = candidates.iter().copied().reduce(better)?;
    if sampling.temperature <= 0.0 || !top.is_finite() {
        return Some(first);
    }
    let mut noise = blake3::Hasher::new_derive_key("greenroom 2026 sampling under a grammar");
    noise.update(&sampling.seed.to_le_bytes()).update(&(reply.len() as u64).to_le_bytes());
    let mut noise = noise.finalize_xof();
    // The greatest of log-weight + Gumbel noise is the least of exponential noise / weight.
    let mut best = (f64::INFINITY, first);
    for (id, logit) in candidates {
        let weight = exp(f64::from(logit - top) / f64::from(sampling.temperature));
        let mut bytes = [0; 8];
        noise.set_position(u64::from(id) * 8);
        noise.fill(&mut bytes);
        let number = ((u64::from_le_bytes(bytes) >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        // `-ln(number)` is at least `1 - number`: most need no logarithm.
        if weight > 0.0 && (1.0 - number) < best.0 * weight {
            let arrival = -log(number) / weight;
            if arrival < best.0 {
                best = (arrival, id);
            }
        }
    }
    Some(best.1)
}

/// The likelier one first. Ties are broken by id, so that the order is the same everywhere.
fn likelier(a: &(u32, f32), b: &(u32, f32)) -> std::cmp::Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// The tokens that `min_p` and `top_k` may leave, in no order: finding them takes time in proportion to the vocabulary, sorting what
/// they leave takes none.
fn candidates(logits: &[f32], sampling: &Sampling) -> Vec<(u32, f32)> {
    let top = logits.iter().copied().filter(|x| !x.is_nan()).fold(f32::NEG_INFINITY, f32::max);
    let min_p = f64::from(sampling.min_p);
    // A little lower than where a weight is `min_p`: the weights themselves decide.
    let least = f64::from(top) + f64::from(sampling.temperature) * (log(min_p) - 1e-6) - 1e-6;
    let may_stay = |x: f32| !x.is_nan() && (min_p <= 0.0 || f64::from(x) >= least || x == top);
    let mut candidates: Vec<(u32, f32)> =
        (0..).zip(logits.iter().copied()).filter(|(_, x)| may_stay(*x)).collect();
    if (1..candidates.len()).contains(&sampling.top_k) {
        candidates.select_nth_unstable_by(sampling.top_k, likelier);
        candidates.truncate(sampling.top_k);
    }
    candidates
}

/// The number of tokens, likeliest first, that the filters leave.
fn n_likely(candidates: &[(u32, f32)], sampling: &Sampling) -> usize {
    let Some(&(_, top)) = candidates.first() else { return 0 };
    let n_top = if sampling.top_k > 0 { sampling.top_k.min(candidates.len()) } else { candidates.len() };
    let weight = |x: f32| exp(f64::from(x - top) / f64::from(sampling.temperature));
    let weights = candidates[..n_top].iter().map(|(_, x)| weight(*x));
    let weights: Vec<f64> = weights.take_while(|weight| *weight >= f64::from(sampling.min_p)).collect();
    let total: f64 = weights.iter().sum();
    let mut mass = 0.0;
    let mut kept = 0;
    while kept < weights.len() && (kept == 0 || mass < f64::from(sampling.top_p) * total) {
        mass += weights[kept];
        kept += 1;
    }
    kept.max(1)
}

/// The token that [`choose`] chooses, if it can be told by the likeliest tokens, at the sampling's temperature. Penalties lower logits, so
/// what is not among the candidates stays below them.
pub(crate) fn choose_among(best: &Best, reply: &[u32], said: &Said, sampling: &Sampling) -> Option<u32> {
    if sampling.repetition_penalty < 1.0 {
        return None;
    }
    let mut best = best.clone();
    let seen = &reply[reply.len().saturating_sub(sampling.repetition_window)..];
    let dry = sampling.dry.map(|dry| said.penalties(dry)).unwrap_or_default();
    for (id, logit) in &mut best.candidates {
        if sampling.repetition_penalty != 1.0 && seen.contains(id) {
            *logit = repeated(*logit, sampling.repetition_penalty);
        }
        *logit -= dry.get(id).copied().unwrap_or(0.0);
    }
    draw_token(best, reply.len(), sampling)
}

/// Draws the `n`-th token of a reply. `None`: that depends on tokens that are not among the candidates.
fn draw_token(best: Best, n: usize, sampling: &Sampling) -> Option<u32> {
    let Best { mut candidates, least, top: highest, rest, .. } = best;
    candidates.sort_unstable_by(likelier);
    // What was lowered below the least stands among tokens that are not known.
    let n_certain = candidates.partition_point(|(_, x)| *x >= least);
    let n_lowered = candidates.len() - n_certain;
    candidates.truncate(n_certain);
    let &(first, top) = candidates.first()?;
    if sampling.temperature <= 0.0 {
        return Some(first);
    }
    let weight = |x: f32| exp(f64::from(x - top) / f64::from(sampling.temperature));
    // The weight of all others, at most.
    let mut others = f64::from(rest) * weight(highest) * 1.01 + n_lowered as f64 * weight(least);
    if sampling.top_k > 0 && sampling.top_k <= candidates.len() {
        candidates.truncate(sampling.top_k);
        others = 0.0;
    } else if sampling.top_k > 0 && others > 0.0 {
        return None;
    }
    let likely = |weight: &f64| *weight >= f64::from(sampling.min_p);
    let weights: Vec<f64> = candidates.iter().map(|(_, x)| weight(*x)).take_while(likely).collect();
    if weights.is_empty() {
        return Some(first); // an infinite logit has no weight
    }
    if weights.len() < candidates.len() || !likely(&weight(least)) {
        others = 0.0;
    }
    let total: f64 = weights.iter().sum();
    let number = uniform(sampling.seed, n);
    // The place of the token drawn if all weighs so much: it grows with the total, so that two of them hold all between.
    let place = |total: f64| {
        let mut kept = 0;
        let mut mass = 0.0;
        while kept < weights.len() && (kept == 0 || mass < f64::from(sampling.top_p) * total) {
            mass += weights[kept];
            kept += 1;
        }
        let beyond = kept == weights.len() && others > 0.0;
        let mut target = number * if beyond { total.max(mass) } else { mass };
        for (i, weight) in weights[..kept].iter().enumerate() {
            target -= weight;
            if target < 0.0 {
                return i;
            }
        }
        if beyond { kept } else { kept - 1 }
    };
    let drawn = place(total);
    if others > 0.0 && (place((total + others) * (1.0 + 1e-9)) != drawn || drawn == weights.len()) {
        return None;
    }
    candidates.get(drawn).map(|(id, _)| *id)
}

/// Draws one of several wholes by their log-probabilities: each with a probability in proportion to `exp(logprob / temperature)`;
/// at temperature 0 the most likely one, the first among equals. What filters and penalizes tokens has no part in it.
///
/// So are choices made ([`crate::Constraint::OneOf`]); it serves as well for what [`crate::Engine::rank`] found.
///
/// ```
/// use greenroom_engine::{Sampling, draw};
///
/// let drawn = |temperature| (0..100).map(|seed| draw(&[-9.0, -8.0], &Sampling { temperature, seed, ..Sampling::default() })).sum();
/// let (greedy, sampled): (usize, usize) = (drawn(0.0), drawn(1.0));
/// assert!(greedy == 100 && (55..90).contains(&sampled)); // 73 are expected
/// ```
pub fn draw(logprobs: &[f32], sampling: &Sampling) -> usize {
    let best = argmax(logprobs) as usize;
    if sampling.temperature <= 0.0 {
        return best;
    }
    let top = logprobs.get(best).map_or(0.0, |x| f64::from(*x));
    let weight = |x: &f32| exp((f64::from(*x) - top) / f64::from(sampling.temperature));
    let weights: Vec<f64> = logprobs.iter().map(weight).map(|w| if w.is_nan() { 0.0 } else { w }).collect();
    let mut target = uniform(sampling.seed, 0) * weights.iter().sum::<f64>();
    for (i, weight) in weights.iter().enumerate() {
        target -= weight;
        if target < 0.0 {
            return i;
        }
    }
    weights.iter().rposition(|weight| *weight > 0.0).unwrap_or(best)
}

/// Length-normalized log-probabilities of whole texts: each by byte of its text, times the mean number of bytes, so that they stay as
/// far apart as before where all are of one length. (By bytes and not by tokens, as in lm-eval's `acc_norm`: another vocabulary
/// changes nothing.) [`draw`] takes them as it takes log-probabilities.
pub fn by_length<'a>(logprobs: &[f32], texts: impl IntoIterator<Item = &'a str>) -> Vec<f32> {
    let lengths: Vec<f32> = texts.into_iter().map(|text| text.len().max(1) as f32).collect();
    let mean = lengths.iter().sum::<f32>() / lengths.len().max(1) as f32;
    logprobs.iter().zip(&lengths).map(|(logprob, length)| logprob * mean / length).collect()
}

/// Logits with all penalties, those of DRY too.
fn all_penalized(logits: &[f32], reply: &[u32], said: &Said, sampling: &Sampling) -> Vec<f32> {
    let mut logits = penalized(logits, reply, sampling);
    for (id, penalty) in sampling.dry.map(|dry| said.penalties(dry)).unwrap_or_default() {
        if let Some(logit) = logits.get_mut(id as usize) {
            *logit -= penalty;
        }
    }
    logits
}

fn penalized(logits: &[f32], reply: &[u32], sampling: &Sampling) -> Vec<f32> {
    let recent = &reply[reply.len().saturating_sub(sampling.repetition_window)..];
    if sampling.repetition_penalty == 1.0 || recent.is_empty() {
        return logits.to_vec();
    }
    let mut penalized = logits.to_vec();
    let mut seen = HashSet::new();
    for id in recent.iter().filter(|id| seen.insert(**id)) {
        if let Some(logit) = penalized.get_mut(*id as usize) {
            *logit = repeated(*logit, sampling.repetition_penalty);
        }
    }
    penalized
}

/// The logit of a token that was said before (Keskar et al. 2019).
fn repeated(logit: f32, penalty: f32) -> f32 {
    if logit >= 0.0 { logit / penalty } else { logit * penalty }
}

/// A number in [0, 1): blake3 of seed and index, the same on every machine and in every version.
fn uniform(seed: u64, index: usize) -> f64 {
    let mut bytes = [0u8; 16];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..].copy_from_slice(&(index as u64).to_le_bytes());
    let hash = blake3::derive_key("greenroom 2026 sampling", &bytes);
    let word = u64::from_le_bytes(hash[..8].try_into().expect("8 bytes"));
    (word >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dry;
    use crate::scoring::distribution::{Distribution, logprob};

    fn rate(sampling: &Sampling, logits: &[f32], id: u32) -> f64 {
        let n = 4000;
        // With the penalty off the reply's content does not matter, only its length.
        let hits = (0..n).filter(|i| choose(logits, &vec![9; *i], &Said::default(), sampling) == id).count();
        hits as f64 / n as f64
    }

    #[test]
    fn choices_follow_the_distribution_and_repeat_with_the_seed() {
        let logits = [0.0, 2f32.ln(), f32::NEG_INFINITY, 0.0];
        let plain = Sampling { temperature: 1.0, seed: 3, ..Sampling::default() };
        assert!((rate(&plain, &logits, 1) - 0.5).abs() < 0.03);
        assert!((rate(&plain, &logits, 3) - 0.25).abs() < 0.03);
        assert_eq!(rate(&plain, &logits, 2), 0.0);
        let draw = |seed| -> Vec<u32> {
            let sampling = Sampling { seed, ..plain.clone() };
            (0..40).map(|i| choose(&logits, &vec![9; i], &Said::default(), &sampling)).collect()
        };
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
    }

    #[test]
    fn filters_keep_what_they_should() {
        let logits = [3.0, 2.0, 1.0, 0.0];
        let base = Sampling { temperature: 1.0, ..Sampling::default() };
        assert_eq!(rate(&Sampling { top_k: 1, ..base.clone() }, &logits, 0), 1.0);
        assert_eq!(rate(&Sampling { top_p: 0.6, ..base.clone() }, &logits, 0), 1.0);
        assert_eq!(rate(&Sampling { min_p: 0.5, ..base.clone() }, &logits, 0), 1.0);
        assert!(rate(&Sampling { min_p: 0.3, ..base.clone() }, &logits, 1) > 0.2);
        assert_eq!(rate(&Sampling { temperature: 0.0, ..base.clone() }, &logits, 0), 1.0);
        let penalty = Sampling { temperature: 0.0, repetition_penalty: 2.0, ..base };
        assert_eq!(choose(&logits, &[0], &Said::default(), &penalty), 1);
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
        let (mut told, mut asked) = (0, 0);
        for seed in 0..400u64 {
            let x = |i: u64| ((i * 2_654_435_761 + seed * 97) % 10_007) as f32 / 10_007.0;
            let logits: Vec<f32> = (0..3000).map(|i| -4.0 * x(i).ln() - 3.0 * x(i + 9)).collect();
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
            let best = best(&logits, 300, sampling.temperature);
            // What was said are likely tokens.
            let reply: Vec<u32> =
                best.candidates.iter().map(|(id, _)| *id).take(seed as usize % 20).collect();
            let expected = choose(&logits, &reply, &Said::default(), &sampling);
            asked += 1;
            if let Some(found) = choose_among(&best, &reply, &Said::default(), &sampling) {
                told += 1;
                assert_eq!(found, expected, "{sampling:?}");
            }
        }
        assert!(told * 10 > asked * 7, "{told} of {asked} were told");
    }

    #[test]
    fn what_is_filtered_before_it_is_sorted_draws_the_same() {
        for seed in 0..600u64 {
            let x = |i: u64| ((i * 2_654_435_761 + seed * 97) % 10_007) as f32 / 10_007.0;
            let mut logits: Vec<f32> =
                (0..700).map(|i| (-4.0 * x(i).ln() - 3.0 * x(i + 9)).round()).collect();
            logits[seed as usize % 700] =
                [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0][seed as usize % 4];
            let sampling = Sampling {
                temperature: [0.3, 1.0, 1.6, 40.0][(seed / 4 % 4) as usize],
                top_k: [0, 1, 40, 699, 700, 701][(seed % 6) as usize],
                top_p: [1.0, 0.9][(seed / 2 % 2) as usize],
                min_p: [0.0, 0.05, 1e-6, 1.0, 0.5][(seed / 5 % 5) as usize],
                seed,
                ..Sampling::default()
            };
            let candidates = (0..).zip(logits.iter().copied()).filter(|(_, x)| !x.is_nan()).collect();
            let all = Best { candidates, least: f32::NEG_INFINITY, ..Best::default() };
            let expected = draw_token(all, 0, &sampling).unwrap_or(0);
            assert_eq!(choose(&logits, &[], &Said::default(), &sampling), expected, "{sampling:?}");
        }
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
}
