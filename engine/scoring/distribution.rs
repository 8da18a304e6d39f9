//! The distribution of logits.

use crate::device::{LOGITS_PER_PIECE, exps, maxima};
use libm::{exp, log};

/// The most likely token; the lowest id among equals.
pub(crate) fn argmax(logits: &[f32]) -> u32 {
    let best = (0u32..)
        .zip(logits)
        .fold((0, f32::NEG_INFINITY), |best, (id, x)| if *x > best.1 { (id, *x) } else { best });
    best.0
}

/// A row of logits as probabilities.
pub(crate) struct Distribution<'a> {
    logits: &'a [f32],
    max: f64,
    /// Logarithm of the sum of all `exp(logit - max)`.
    ln_sum: f64,
}

impl<'a> Distribution<'a> {
    /// The distribution of `logits: [n_vocab]`.
    pub(crate) fn of(logits: &'a [f32]) -> Self {
        let max = f64::from(maxima(logits).into_iter().fold(f32::NEG_INFINITY, f32::max));
        let mut sum = 0.0;
        let mut weights = [0.0; 4 * LOGITS_PER_PIECE];
        for piece in logits.chunks(weights.len()) {
            let weights = &mut weights[..piece.len()];
            for (weight, x) in weights.iter_mut().zip(piece) {
                *weight = f64::from(*x) - max;
            }
            exps(weights);
            // In the order of the ids: the last bits of a log-probability depend on it.
            weights.iter().for_each(|weight| sum += *weight);
        }
        Self { logits, max, ln_sum: log(sum) }
    }

    /// True if the logits are a distribution: none is NaN, and the greatest is finite.
    pub(crate) fn is_known(&self) -> bool {
        !self.ln_sum.is_nan()
    }

    /// The logits.
    pub(crate) fn logits(&self) -> &'a [f32] {
        self.logits
    }

    /// Natural log-probability of `id`.
    pub(crate) fn logprob(&self, id: u32) -> f32 {
        (f64::from(self.logits[id as usize]) - self.max - self.ln_sum) as f32
    }

    /// Natural log-probability of any of `ids`; duplicates count once.
    pub(crate) fn logprob_of_any(&self, ids: &[u32]) -> f32 {
        let first = |(i, id): &(usize, &u32)| !ids[..*i].contains(id);
        let known = |(_, id): (usize, &u32)| self.logits.get(*id as usize).map(|x| f64::from(*x));
        let logits: Vec<f64> = ids.iter().enumerate().filter(first).filter_map(known).collect();
        let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if top == f64::NEG_INFINITY {
            return f32::NEG_INFINITY;
        }
        let sum: f64 = logits.iter().map(|x| exp(x - top)).sum();
        (log(sum) + top - self.max - self.ln_sum) as f32
    }
}

/// Natural log-probability of `id` under `logits`.
pub(crate) fn logprob(logits: &[f32], id: u32) -> f32 {
    Distribution::of(logits).logprob(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_probabilities_keep_their_bits() {
        for seed in 0..60u64 {
            let number = |i: u64| f32::from(blake3::hash(&(i * 99 + seed).to_le_bytes()).as_bytes()[0]) / 9.0;
            let n = [1, 7, 128, 700, 3000][seed as usize % 5];
            let mut logits: Vec<f32> = (0..n).map(|i| number(i) * number(i + 9) - 30.0).collect();
            logits[n as usize / 2] = [0.0, f32::NEG_INFINITY, 1e4, f32::MIN_POSITIVE][seed as usize % 4];
            // As it is defined: all exponentials by libm, added up by id.
            let max = f64::from(logits.iter().fold(f32::NEG_INFINITY, |m, x| m.max(*x)));
            let sum: f64 = logits.iter().map(|x| exp(f64::from(*x) - max)).sum();
            let found = Distribution::of(&logits);
            for (id, logit) in logits.iter().enumerate() {
                let expected = (f64::from(*logit) - max - log(sum)) as f32;
                assert_eq!(found.logprob(id as u32).to_bits(), expected.to_bits(), "{id} of {seed}");
            }
        }
        assert!(!Distribution::of(&[1.0, f32::NAN]).is_known());
        assert!(!Distribution::of(&[f32::NEG_INFINITY; 2]).is_known());
        assert!(Distribution::of(&[f32::NEG_INFINITY, -3.0]).is_known());
    }
}
