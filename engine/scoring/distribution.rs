//! The distribution that logits stand for.

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
        let max = f64::from(logits.iter().fold(f32::NEG_INFINITY, |m, x| m.max(*x)));
        let sum: f64 = logits.iter().map(|x| exp(f64::from(*x) - max)).sum();
        Self { logits, max, ln_sum: log(sum) }
    }

    /// Natural log-probability of `id`.
    pub(crate) fn logprob(&self, id: u32) -> f32 {
        (f64::from(self.logits[id as usize]) - self.max - self.ln_sum) as f32
    }

    /// Natural log-probability of any of `ids`; one that stands there twice counts once.
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
