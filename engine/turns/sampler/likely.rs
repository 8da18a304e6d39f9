//! Draws among tokens in the order of their logits, if the likeliest of them decide.
//!
//! The rule, which recordings rely on: tokens are ordered by their logits, greatest first, ties by id. Each
//! weighs `exp((logit - top) / temperature)`. `top_k` keeps the first k, `min_p` those before the first one
//! whose weight is less, `top_p` as few of these as have that share of their weight. The draw is a number
//! from 0 to 1 of the kept weight, counted from the first token. Sums are taken in that order, in f64.

use crate::Sampling;
use crate::device::Best;
use libm::exp;

/// The likelier one first. Ties are broken by id, so that the order is the same everywhere.
pub(super) fn likelier(a: &(u32, f32), b: &(u32, f32)) -> std::cmp::Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// The likeliest tokens, in order.
pub(super) struct Likely {
    tokens: Vec<(u32, f32)>,
    /// Weights of those that `top_k` and `min_p` leave.
    weights: Vec<f64>,
    /// True if these leave others, which are not known.
    has_others: bool,
    /// The weight of all that these leave, at least and at most.
    totals: [f64; 2],
    top_p: f64,
}

/// A relative margin above what sums of a whole vocabulary lose in another order.
const MARGIN: f64 = 1e-9;

impl Likely {
    /// Sorts what is known of a row; `error`: that of the others' weight, relative. `None`: `top_k` reaches
    /// farther, or nothing is known.
    pub(super) fn new(best: Best, error: f64, sampling: &Sampling) -> Option<Self> {
        let Best { candidates: mut tokens, least, top: highest, rest, .. } = best;
        let n_all = tokens.len();
        tokens.retain(|(_, x)| *x >= least);
        // What was lowered below the least belongs to the unknown tokens.
        let n_lowered = n_all - tokens.len();
        let n_certain = tokens.len();
        if sampling.top_k > 0 && sampling.top_k <= n_certain {
            if sampling.top_k < n_certain {
                tokens.select_nth_unstable_by(sampling.top_k, likelier);
            }
            tokens.truncate(sampling.top_k);
        }
        tokens.sort_unstable_by(likelier);
        let &(_, top) = tokens.first()?;
        let weight = |x: f32| exp(f64::from(x - top) / f64::from(sampling.temperature));
        let rest = if rest > 0.0 { f64::from(rest) * weight(highest) } else { 0.0 };
        let most = rest * (1.0 + error) + n_lowered as f64 * weight(least);
        let mut others = [rest * (1.0 - error), most];
        if sampling.top_k > 0 && sampling.top_k <= n_certain {
            others = [0.0; 2];
        } else if sampling.top_k > 0 && most > 0.0 {
            return None;
        }
        let likely = |weight: &f64| *weight >= f64::from(sampling.min_p);
        let weights: Vec<f64> = tokens.iter().map(|(_, x)| weight(*x)).take_while(likely).collect();
        if weights.len() < tokens.len() || !likely(&weight(least)) {
            others = [0.0; 2];
        }
        let known: f64 = weights.iter().sum();
        let has_others = others[1] > 0.0;
        let totals = if has_others {
            [(known + others[0]) * (1.0 - MARGIN), (known + others[1]) * (1.0 + MARGIN)]
        } else {
            [known; 2]
        };
        Some(Self { tokens, weights, has_others, totals, top_p: f64::from(sampling.top_p) })
    }

    /// The token that a number from 0 to 1 draws. `None`: that depends on the others.
    pub(super) fn draw(&self, number: f64) -> Option<u32> {
        if self.weights.is_empty() {
            return self.tokens.first().map(|(id, _)| *id); // an infinite logit has no weight
        }
        // A place grows with the total, so that two of them hold all between.
        let [least, most] = [WeightBound::Least, WeightBound::Most].map(|bound| self.place(bound, number));
        let is_known = least == most && least < self.weights.len();
        is_known.then(|| self.tokens[least].0)
    }

    /// The tokens that the filters keep. `None`: that depends on the others.
    pub(super) fn filtered_tokens(&self) -> Option<&[(u32, f32)]> {
        let [least, most] = [WeightBound::Least, WeightBound::Most].map(|bound| self.n_kept(bound));
        let goes_beyond = self.has_others && most.1 < self.top_p * self.totals[1];
        (least.0 == most.0 && !goes_beyond).then(|| &self.tokens[..most.0.max(1)])
    }

    /// Number of known tokens that are kept if the whole weight is at a bound, and their weight.
    fn n_kept(&self, bound: WeightBound) -> (usize, f64) {
        let share = self.top_p * self.totals[bound as usize];
        let (mut kept, mut mass) = (0, 0.0);
        while kept < self.weights.len() && (kept == 0 || mass < share) {
            mass += self.weights[kept];
            kept += 1;
        }
        (kept, mass)
    }

    /// The place of the token drawn if the whole weight is at a bound; the number of known ones if it is none
    /// of them.
    fn place(&self, bound: WeightBound, number: f64) -> usize {
        let (kept, mass) = self.n_kept(bound);
        let goes_beyond = kept == self.weights.len() && self.has_others;
        let total = self.totals[bound as usize];
        // What is kept in the end is `top_p` of the total, and one token more at most.
        let share = self.top_p * total;
        let in_the_end = match bound {
            WeightBound::Least => share,
            WeightBound::Most => total.min(share + self.weights[kept - 1]),
        };
        let mut target = number * if goes_beyond { in_the_end.max(mass) } else { mass };
        for (i, weight) in self.weights[..kept].iter().enumerate() {
            target -= weight;
            if target < 0.0 {
                return i;
            }
        }
        if goes_beyond { kept } else { kept - 1 }
    }
}

/// A bound of the whole weight.
#[derive(Clone, Copy)]
enum WeightBound {
    Least,
    Most,
}
