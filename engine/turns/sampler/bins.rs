//! Draws among all tokens of a row without sorting them: tokens are counted and weighed by bins of equal
//! width, and only the bins in which a filter or the draw ends are sorted.
//!
//! Sums are taken in another order than the rule's (see [`likely`](super::likely)), so places are found
//! twice, with a margin above the difference on either side. Where the two differ, nothing is said, and the
//! caller sorts. That is rare: among 262,144 tokens that are equally likely, one draw in 7,000.

use super::likely::likelier;
use crate::Sampling;
use crate::device::{LOGITS_PER_PIECE, near_exps};
use libm::{exp, log};

/// Bins: enough that one holds a few hundred tokens, few enough for a processor's first cache.
const BINS: usize = 2048;
/// The least weight that gets a bin of its own is `exp(-MAX_DEPTH)`.
const MAX_DEPTH: f32 = 60.0;

/// Tokens of a row by bins, likeliest first.
pub(super) struct Bins<'a> {
    logits: &'a [f32],
    top: f32,
    temperature: f64,
    /// Bins per unit of a logit.
    rate: f32,
    /// The bin of each token.
    bins: Vec<u16>,
    counts: Vec<usize>,
    /// Weights of each bin, summed up.
    sums: Vec<f64>,
    /// Sums differ from the rule's by at most so much.
    margin: f64,
    /// The bin that was sorted last, with weights.
    open: (usize, Vec<(u32, f32, f64)>),
}

/// A place in the order of tokens: after all bins before `bin`, and after `within` tokens of that one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    bin: usize,
    within: usize,
}

impl<'a> Bins<'a> {
    /// Counts and weighs; `lowest` is a logit below which there are few of any weight.
    pub(super) fn new(logits: &'a [f32], top: f32, lowest: f32, sampling: &Sampling) -> Self {
        let span = (top - lowest).min(MAX_DEPTH * sampling.temperature);
        let rate = BINS as f32 / span;
        let rate = if rate.is_finite() && rate > 0.0 { rate } else { 1.0 };
        let (temperature, scale) = (f64::from(sampling.temperature), 1.0 / f64::from(sampling.temperature));
        let (mut bins, mut counts) = (Vec::with_capacity(logits.len()), vec![0; BINS]);
        let mut sums = vec![0.0; BINS];
        let mut weights = [0.0; LOGITS_PER_PIECE];
        for piece in logits.chunks(LOGITS_PER_PIECE) {
            let weights = &mut weights[..piece.len()];
            for (weight, x) in weights.iter_mut().zip(piece) {
                *weight = f64::from(x - top) * scale;
            }
            near_exps(weights);
            let known = bins.len();
            bins.extend(piece.iter().map(|x| bin(top, rate, *x)));
            for (bin, weight) in bins[known..].iter().zip(weights) {
                counts[usize::from(*bin)] += 1;
                sums[usize::from(*bin)] += *weight;
            }
        }
        let margin = (1e-12 + logits.len() as f64 * 1e-15) * sums.iter().sum::<f64>();
        Self { logits, top, temperature, rate, bins, counts, sums, margin, open: (BINS, Vec::new()) }
    }

    /// The token that a number from 0 to 1 draws. `None`: sums in the rule's order decide.
    pub(super) fn draw(&mut self, number: f64, sampling: &Sampling) -> Option<u32> {
        let kept = self.kept_to(sampling)?;
        let target = number * self.mass(kept);
        let place = self.reach(target, kept)?;
        Some(self.open(place.bin)[place.within - 1].0)
    }

    /// The tokens that the filters keep. `None`: sums in the rule's order decide.
    pub(super) fn filter_tokens(&mut self, sampling: &Sampling) -> Option<Vec<(u32, f32)>> {
        let kept = self.kept_to(sampling)?;
        let before = |bin: &u16| usize::from(*bin) < kept.bin;
        let all = (0..).zip(self.logits.iter().copied()).zip(&self.bins);
        let mut tokens: Vec<_> = all.filter(|(_, bin)| before(bin)).map(|(token, _)| token).collect();
        if kept.within > 0 {
            tokens.extend(self.open(kept.bin)[..kept.within].iter().map(|(id, x, _)| (*id, *x)));
        }
        // The rule keeps none that would be lost in the sum.
        let least = tokens.iter().map(|(_, x)| *x).fold(self.top, f32::min);
        let is_lost = exp(f64::from(least - self.top) / self.temperature) < 1e-14 * self.mass(kept);
        (!is_lost).then_some(tokens)
    }

    /// The end of what the filters keep.
    fn kept_to(&mut self, sampling: &Sampling) -> Option<Rank> {
        let mut end = Rank { bin: BINS, within: 0 };
        if sampling.top_k > 0 {
            end = end.min(self.after(sampling.top_k));
        }
        if sampling.min_p > 0.0 {
            end = end.min(self.after_share(f64::from(sampling.min_p)));
        }
        if sampling.top_p < 1.0 {
            let share = f64::from(sampling.top_p) * self.mass(end);
            end = self.reach(share, end)?;
        }
        Some(end)
    }

    /// The place after the first `n` tokens.
    fn after(&self, n: usize) -> Rank {
        let mut before = 0;
        for (bin, count) in self.counts.iter().enumerate() {
            if before + count >= n {
                return Rank { bin, within: n - before };
            }
            before += count;
        }
        Rank { bin: BINS, within: 0 }
    }

    /// The place before the first token that weighs less than this.
    fn after_share(&mut self, min_p: f64) -> Rank {
        // The weights themselves decide near the logit that has this one.
        let near = |sign: f64| {
            let logit = f64::from(self.top) + self.temperature * (log(min_p) + sign * 1e-6) + sign * 1e-6;
            let logit = logit as f32;
            if sign > 0.0 { logit.next_up() } else { logit.next_down() }
        };
        let [first, last] = [1.0, -1.0].map(|sign| usize::from(bin(self.top, self.rate, near(sign))));
        for bin in first..=last {
            let tokens = self.open(bin);
            let within = tokens.iter().take_while(|(_, _, weight)| *weight >= min_p).count();
            if within < tokens.len() {
                return Rank { bin, within };
            }
        }
        Rank { bin: last + 1, within: 0 }
    }

    /// The weight of all tokens before a place.
    fn mass(&mut self, place: Rank) -> f64 {
        let whole: f64 = self.sums[..place.bin].iter().sum();
        let within = if place.within == 0 { &[] } else { &self.open(place.bin)[..place.within] };
        whole + within.iter().map(|(_, _, weight)| weight).sum::<f64>()
    }

    /// The place after the token with which the weight from the first one on reaches `target`. `None`: it is
    /// not certain which that is, or whether it comes before `end`.
    fn reach(&mut self, target: f64, end: Rank) -> Option<Rank> {
        let least = self.reach_exactly(target - self.margin)?;
        let most = self.reach_exactly(target + self.margin)?;
        (least == most && most <= end).then_some(most)
    }

    fn reach_exactly(&mut self, target: f64) -> Option<Rank> {
        let mut mass = 0.0;
        for bin in 0..BINS {
            if mass + self.sums[bin] > target {
                let place = self.open(bin).iter().position(|(_, _, weight)| {
                    mass += weight;
                    mass > target
                });
                if let Some(at) = place {
                    return Some(Rank { bin, within: at + 1 });
                }
            } else {
                mass += self.sums[bin];
            }
        }
        None
    }

    /// The tokens of a bin, in order, with the rule's weights.
    fn open(&mut self, bin: usize) -> &[(u32, f32, f64)] {
        if self.open.0 != bin {
            let mut tokens = Vec::with_capacity(self.counts.get(bin).copied().unwrap_or(0));
            for (i, bins) in self.bins.chunks(LOGITS_PER_PIECE).enumerate() {
                let n = bins.iter().fold(0u16, |n, of| n + u16::from(usize::from(*of) == bin));
                if n > 0 {
                    let ids = (i * LOGITS_PER_PIECE..).zip(bins).filter(|(_, of)| usize::from(**of) == bin);
                    tokens.extend(ids.map(|(id, _)| (id as u32, self.logits[id])));
                }
            }
            tokens.sort_unstable_by(likelier);
            let weight = |x: f32| exp(f64::from(x - self.top) / self.temperature);
            self.open = (bin, tokens.into_iter().map(|(id, x)| (id, x, weight(x))).collect());
        }
        &self.open.1
    }
}

/// The bin of a logit: it never falls where the logit falls.
fn bin(top: f32, rate: f32, logit: f32) -> u16 {
    let place = ((top - logit) * rate).clamp(0.0, (BINS - 1) as f32);
    // 2^23 leaves no room for a fraction: the lowest bits are the number.
    (place + 8_388_608.0).to_bits() as u16
}
