//! Seeded sampling: from logits to a token. The n-th choice of a request depends on its seed and n alone, on
//! every machine: `exp` and `log` are those of the libm crate, since the platforms' own differ in last
//! digits.
//!
//! Sampling randomness is blake3(seed, index): the same in every version of every library. [`likely`] has the
//! rule that maps a number to a token.
//!
//! A draw takes a few passes over the vocabulary and no more: the likeliest tokens are sorted, and the weight
//! of the others is estimated; where that leaves doubt, tokens are weighed by [`bins`]; only where that does,
//! too, is everything sorted. All three draw the same token, because each of the first two knows its error.
//!
//! The weights of options are computed a second time in `greenroom-play`, for display; a test compares both.

mod allowed;
mod bins;
#[cfg(test)]
mod chances;
mod likely;
mod row;
#[cfg(test)]
mod tests;

use crate::Sampling;
use crate::device::{Below, Best, ERROR};
use crate::scoring::distribution::argmax;
use crate::turns::dry::Said;
use bins::Bins;
use libm::{exp, log};
use likely::{Likely, likelier};

pub(crate) use allowed::{choose_allowed, in_order};
pub(crate) use row::Row;

/// Pieces of a row whose greatest logits are among the likeliest tokens, at least: these are sorted for every
/// draw.
const SORTED: usize = 256;
/// Maximum number of tokens that are sorted for a draw; where there are more, they are weighed by bins.
const MAX_SORTED: usize = 4096;
/// Relative error of the others' weight that a device says.
const DEVICE_ERROR: f64 = 0.01;

/// Chooses the next token of a reply. `None`: the logits are not probabilities, as in
/// [`Distribution::is_known`](crate::scoring::distribution::Distribution::is_known).
pub(crate) fn choose(row: &Row<'_>, sampling: &Sampling) -> Option<u32> {
    let maxima = row.maxima();
    let top = greatest(&maxima)?;
    if sampling.temperature <= 0.0 {
        return first_of(row, &maxima, top);
    }
    let number = uniform(sampling.seed, row.n());
    let likely = likely(row, &maxima, top, sampling);
    likely.and_then(|likely| likely.draw(number)).or_else(|| {
        let logits = row.all();
        let mut bins = Bins::new(&logits, top, lowest(&maxima, top), sampling);
        bins.draw(number, sampling).or_else(|| sorted(&logits, sampling)?.draw(number))
    })
}

/// The greatest logit of all pieces; `None`: it is infinite, or a logit is NaN.
fn greatest(maxima: &[f32]) -> Option<f32> {
    let greater = |x: f32, y: f32| if y > x || y.is_nan() { y } else { x };
    maxima.iter().copied().reduce(greater).filter(|top| top.is_finite())
}

/// A logit below which few tokens have any weight, by the greatest ones of all pieces.
fn lowest(maxima: &[f32], top: f32) -> f32 {
    let least = maxima.iter().copied().filter(|x| x.is_finite()).fold(top, f32::min);
    top - 3.0 * (top - least)
}

/// The first token with the greatest logit.
fn first_of(row: &Row<'_>, maxima: &[f32], top: f32) -> Option<u32> {
    row.at_least(top, maxima, usize::MAX)?.first().map(|(id, _)| *id)
}

/// The likeliest tokens of a row, as far as these need no more than [`MAX_SORTED`].
fn likely(row: &Row<'_>, maxima: &[f32], top: f32, sampling: &Sampling) -> Option<Likely> {
    let nth = |n: usize| {
        let mut maxima = maxima.to_vec();
        *maxima.select_nth_unstable_by(n, |a, b| b.total_cmp(a)).1
    };
    // `min_p` and `top_k` leave no token below these: each of that many pieces has one that is likelier.
    let of_min_p = (sampling.min_p > 0.0).then(|| least_of(top, sampling));
    let of_top_k = (1..=maxima.len()).contains(&sampling.top_k).then(|| nth(sampling.top_k - 1));
    let bound = [of_min_p, of_top_k].into_iter().flatten().reduce(f32::max);
    let few = maxima.len() <= 4;
    let least =
        bound.unwrap_or_else(|| if few { f32::NEG_INFINITY } else { nth(SORTED.min(maxima.len() / 2)) });
    let candidates = row.at_least(least, maxima, MAX_SORTED)?;
    let mut best = Best { candidates, least, top, ..Best::default() };
    if bound.is_none() {
        let below = Below { threshold: least, top, temperature: sampling.temperature };
        best.rest = row.weights_below(below) as f32;
    }
    Likely::new(best, ERROR, sampling)
}

/// A logit a little lower than where a weight is `min_p`: the weights themselves decide.
fn least_of(top: f32, sampling: &Sampling) -> f32 {
    let to_least = f64::from(sampling.temperature) * (log(f64::from(sampling.min_p)) - 1e-6);
    ((f64::from(top) + to_least - 1e-6) as f32).next_down()
}

/// All tokens in order, but for those that `min_p` and `top_k` leave out.
fn sorted(logits: &[f32], sampling: &Sampling) -> Option<Likely> {
    let candidates = (0..).zip(logits.iter().copied()).collect();
    Likely::new(Best { candidates, least: f32::NEG_INFINITY, ..Best::default() }, 0.0, sampling)
}

/// The tokens that the filters keep, in no order.
fn filter_tokens(row: &Row<'_>, maxima: &[f32], top: f32, sampling: &Sampling) -> Vec<(u32, f32)> {
    let likely = likely(row, maxima, top, sampling);
    if let Some(kept) = likely.as_ref().and_then(Likely::filtered_tokens) {
        return kept.to_vec();
    }
    let logits = row.all();
    let kept = Bins::new(&logits, top, lowest(maxima, top), sampling).filter_tokens(sampling);
    kept.or_else(|| Some(sorted(&logits, sampling)?.filtered_tokens()?.to_vec())).unwrap_or_default()
}

/// The token that [`choose`] chooses, if the likeliest tokens determine it, at the sampling's temperature.
/// Penalties lower logits, so what is not among the candidates stays below them.
pub(crate) fn choose_among(best: &Best, reply: &[u32], said: &Said, sampling: &Sampling) -> Option<u32> {
    let added = row::added(reply, sampling);
    if sampling.repetition_penalty < 1.0 || added.values().any(|added| *added > 0.0) {
        return None;
    }
    let mut best = best.clone();
    let used = row::used(reply, said, sampling);
    let dry = sampling.dry.map(|dry| said.penalties(dry)).unwrap_or_default();
    for (id, logit) in &mut best.candidates {
        if used.contains(id) {
            *logit = row::repeated(*logit, sampling.repetition_penalty);
        }
        *logit -= dry.get(id).copied().unwrap_or(0.0);
        *logit += added.get(id).copied().unwrap_or(0.0);
    }
    if sampling.temperature <= 0.0 {
        let first = best.candidates.into_iter().filter(|(_, x)| *x >= best.least).min_by(likelier);
        return first.map(|(id, _)| id);
    }
    Likely::new(best, DEVICE_ERROR, sampling)?.draw(uniform(sampling.seed, reply.len()))
}

/// Draws one of several wholes by their log-probabilities: each with a probability in proportion to
/// `exp(logprob / temperature)`; at temperature 0 the most likely one, the first among equals. What filters
/// and penalizes tokens has no part in it.
///
/// Choices are drawn this way ([`crate::Constraint::OneOf`]); it also suits the result of
/// [`crate::Engine::rank`].
///
/// ```
/// use greenroom_engine::{Sampling, draw};
///
/// let sampling = |temperature, seed| Sampling { temperature, seed, ..Sampling::default() };
/// let drawn = |temperature| (0..100).map(|seed| draw(&[-9.0, -8.0], &sampling(temperature, seed))).sum();
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

/// Length-normalized log-probabilities of whole texts: each by byte of its text, times the mean number of
/// bytes, so that they stay as far apart as before where all are of one length. (By bytes and not by tokens,
/// as in lm-eval's `acc_norm`: another vocabulary changes nothing.) [`draw`] takes them as it takes
/// log-probabilities.
///
/// # Examples
/// ```
/// let shares = greenroom_engine::by_length(&[-6.0, -4.0], ["a long option", "short"]);
/// assert_eq!(shares.len(), 2);
/// ```
pub fn by_length<'a>(logprobs: &[f32], texts: impl IntoIterator<Item = &'a str>) -> Vec<f32> {
    let lengths: Vec<f32> = texts.into_iter().map(|text| text.len().max(1) as f32).collect();
    let mean = lengths.iter().sum::<f32>() / lengths.len().max(1) as f32;
    logprobs.iter().zip(&lengths).map(|(logprob, length)| logprob * mean / length).collect()
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
