//! The draw among tokens that are allowed, by noise that belongs to seed, place and token (see `turns/grammar`).
//!
//! The token of the greatest log-weight + Gumbel noise is that of the least exponential noise / weight: the first to
//! arrive, where each arrives at a time of its own. The others arrive after it, in the order in which they would be
//! drawn without those before them.

use super::{Row, filter_tokens, greatest};
use crate::Sampling;
use crate::device::exps;
use libm::log;

/// Chooses the next token among those that are allowed; `None`: there are none, or the logits are not probabilities.
pub(crate) fn choose_allowed(
    row: &Row<'_>,
    sampling: &Sampling,
    allows: impl Fn(u32) -> bool,
) -> Option<u32> {
    in_order(row, sampling, allows)?.next()
}

/// The tokens that are allowed, in the order of arrival; `None`: the logits are not probabilities. What the filters
/// leave of all tokens comes first; then all that is allowed counts.
pub(crate) fn in_order<'a>(
    row: &'a Row<'_>,
    sampling: &'a Sampling,
    allows: impl Fn(u32) -> bool + 'a,
) -> Option<impl Iterator<Item = u32> + 'a> {
    let maxima = row.maxima();
    let top = greatest(&maxima)?;
    let mut kept = Vec::new();
    if sampling.temperature > 0.0 && (sampling.top_k > 0 || sampling.top_p < 1.0 || sampling.min_p > 0.0) {
        kept = filter_tokens(row, &maxima, top, sampling);
        kept.retain(|(id, _)| allows(*id));
        kept.sort_unstable_by_key(|(id, _)| *id);
    }
    let ids: Vec<u32> = kept.iter().map(|(id, _)| *id).collect();
    let others = move || {
        let all = row.at_least(f32::NEG_INFINITY, &maxima, usize::MAX).unwrap_or_default();
        let is_other = |id: &u32| ids.binary_search(id).is_err() && allows(*id);
        Arrivals::new(all.into_iter().filter(|(id, _)| is_other(id)).collect(), row.n(), sampling)
    };
    let others = std::iter::once_with(others).flatten();
    Some(Arrivals::new(kept, row.n(), sampling).chain(others))
}

/// Tokens in the order of arrival. Most draws need the first one alone, so only a second one has all times computed.
struct Arrivals<'a> {
    /// In the order of their ids, with their logits.
    candidates: Vec<(u32, f32)>,
    n: usize,
    sampling: &'a Sampling,
    first: Option<u32>,
    others: Option<std::vec::IntoIter<u32>>,
}

impl<'a> Arrivals<'a> {
    fn new(mut candidates: Vec<(u32, f32)>, n: usize, sampling: &'a Sampling) -> Self {
        candidates.sort_unstable_by_key(|(id, _)| *id);
        Self { candidates, n, sampling, first: None, others: None }
    }

    fn first(&self) -> Option<u32> {
        let better = |best: (u32, f32), next: (u32, f32)| if next.1 > best.1 { next } else { best };
        let (likeliest, top) = self.candidates.iter().copied().reduce(better)?;
        if self.sampling.temperature <= 0.0 || !top.is_finite() {
            return Some(likeliest);
        }
        Some(first_to_arrive(&self.candidates, top, self.n, self.sampling).unwrap_or(likeliest))
    }

    /// All but the first one.
    fn others(&self, first: u32) -> Vec<u32> {
        let top = self.candidates.iter().map(|(_, logit)| *logit).fold(f32::NEG_INFINITY, f32::max);
        let temperature = f64::from(self.sampling.temperature);
        let mut timed: Vec<(f64, u32)> = Vec::with_capacity(self.candidates.len());
        if temperature <= 0.0 || !top.is_finite() {
            timed.extend(self.candidates.iter().map(|(id, logit)| (-f64::from(*logit), *id)));
        } else {
            with_noise(&self.candidates, self.n, self.sampling, |group, numbers| {
                let time = |(id, logit): &(u32, f32), number: f64| {
                    (log(-log(number)) - f64::from(logit - top) / temperature, *id)
                };
                timed.extend(group.iter().zip(numbers).map(|(one, number)| time(one, *number)));
            });
        }
        timed.retain(|(_, id)| *id != first);
        timed.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        timed.into_iter().map(|(_, id)| id).collect()
    }
}

impl Iterator for Arrivals<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        match (self.first, &mut self.others) {
            (None, _) => {
                self.first = self.first();
                self.first
            }
            (Some(_), Some(others)) => others.next(),
            (Some(first), None) => self.others.insert(self.others(first).into_iter()).next(),
        }
    }
}

/// Tokens whose noise is read at once.
const NOISE: usize = 512;

/// The token of the least exponential noise / weight.
fn first_to_arrive(candidates: &[(u32, f32)], top: f32, n: usize, sampling: &Sampling) -> Option<u32> {
    let mut best = (f64::INFINITY, None);
    let mut weights = [0.0; NOISE];
    with_noise(candidates, n, sampling, |group, numbers| {
        let weights = &mut weights[..group.len()];
        for (weight, (_, logit)) in weights.iter_mut().zip(group) {
            *weight = f64::from(logit - top) / f64::from(sampling.temperature);
        }
        exps(weights);
        for (((id, _), weight), number) in group.iter().zip(weights).zip(numbers) {
            // `-ln(number)` is at least `1 - number`: most need no logarithm.
            if *weight > 0.0 && (1.0 - number) < best.0 * *weight {
                let arrival = -log(*number) / *weight;
                if arrival < best.0 {
                    best = (arrival, Some(*id));
                }
            }
        }
    });
    best.1
}

/// Shows groups of candidates, which are in the order of their ids, with the noise of each: a number between 0 and 1.
fn with_noise(
    candidates: &[(u32, f32)],
    n: usize,
    sampling: &Sampling,
    mut see: impl FnMut(&[(u32, f32)], &[f64]),
) {
    let mut noise = blake3::Hasher::new_derive_key("greenroom 2026 sampling under a grammar");
    noise.update(&sampling.seed.to_le_bytes()).update(&(n as u64).to_le_bytes());
    let mut noise = noise.finalize_xof();
    let (mut bytes, mut numbers) = ([0; NOISE * 8], [0.0; NOISE]);
    for group in candidates.chunk_by(|a, b| a.0 as usize / NOISE == b.0 as usize / NOISE) {
        // Noise comes in blocks of eight tokens.
        let (start, end) = (group[0].0 / 8 * 8, group[group.len() - 1].0 + 1);
        let is_dense = group.len() * 8 >= (end - start) as usize;
        if is_dense {
            noise.set_position(u64::from(start) * 8);
            noise.fill(&mut bytes[..(end - start) as usize * 8]);
        }
        let numbers = &mut numbers[..group.len()];
        for (number, (id, _)) in numbers.iter_mut().zip(group) {
            let at = if is_dense { (id - start) as usize * 8 } else { 0 };
            if !is_dense {
                noise.set_position(u64::from(*id) * 8);
                noise.fill(&mut bytes[..8]);
            }
            let word = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
            *number = ((word >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        }
        see(group, numbers);
    }
}
