//! Divergence of one next-token distribution from another.

use super::{Isa, Kernel, LANES, Lanes, padded};

/// Columns whose sums are taken in f32 before they are added up in f64.
const F32_COLUMNS: usize = 1024;

/// Two distributions over a vocabulary, given by their logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitDivergence {
    /// Kullback–Leibler divergence of the second from the first, `Σ p ln(p / q)`, in nats.
    pub nats: f64,
    /// Logarithm of the sum of the exponentials of the second one's logits: what a logit is less to be a
    /// log-probability.
    pub log_sum: f64,
}

/// Compares the distributions of logits `p` and `q`, both `[n_vocab]` and finite.
pub fn divergence(isa: Isa, p: &[f32], q: &[f32]) -> LogitDivergence {
    assert_eq!(p.len(), q.len(), "two rows of one vocabulary");
    let largest = |x: &[f32]| x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let (p_max, q_max) = (largest(p), largest(q));
    let (mut p_sum, mut q_sum, mut weighed) = (0.0, 0.0, 0.0);
    for (p, q) in p.chunks(F32_COLUMNS).zip(q.chunks(F32_COLUMNS)) {
        let sums = isa.run(Sums { p, q, p_max, q_max });
        (p_sum, q_sum, weighed) = (p_sum + sums[0], q_sum + sums[1], weighed + sums[2]);
    }
    let nats = weighed / p_sum + libm::log(q_sum / p_sum);
    LogitDivergence { nats, log_sum: f64::from(q_max) + libm::log(q_sum) }
}

/// `Σ eᵖ`, `Σ e^q` and `Σ eᵖ (p - q)` of a piece, the largest logit of each side taken off.
struct Sums<'a> {
    p: &'a [f32],
    q: &'a [f32],
    p_max: f32,
    q_max: f32,
}

impl Kernel for Sums<'_> {
    type Output = [f64; 3];
    #[inline(always)]
    fn run<L: Lanes>(self) -> [f64; 3] {
        let zero = L::splat(0.0);
        let (mut p_sum, mut q_sum, mut weighed) = (zero, zero, zero);
        for at in (0..self.p.len()).step_by(LANES) {
            let n = LANES.min(self.p.len() - at);
            let p = L::load(&padded(self.p, at)).sub(L::splat(self.p_max));
            let q = L::load(&padded(self.q, at)).sub(L::splat(self.q_max));
            let (p_exp, q_exp) = (p.exp().keep(0, n, 0.0), q.exp().keep(0, n, 0.0));
            (p_sum, q_sum) = (p_sum.add(p_exp), q_sum.add(q_exp));
            weighed = p_exp.fma(p.sub(q), weighed);
        }
        [p_sum, q_sum, weighed].map(|sum| f64::from(sum.sum()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_that_of_the_definition_on_every_instruction_set() {
        for n in [3, 16, 1000, 5003] {
            let p: Vec<f32> = (0..n).map(|i| (i as f32 * 0.37).sin() * 9.0 + 3.0).collect();
            let q: Vec<f32> =
                p.iter().enumerate().map(|(i, x)| x + (i as f32 * 1.7).cos() * 0.2 - 8.0).collect();
            let log_sum = |x: &[f32]| x.iter().map(|x| f64::from(*x).exp()).sum::<f64>().ln();
            let log = |x: &[f32], i: usize| f64::from(x[i]) - log_sum(x);
            let exact: f64 = (0..n).map(|i| log(&p, i).exp() * (log(&p, i) - log(&q, i))).sum();
            let found = divergence(Isa::SCALAR, &p, &q);
            assert!((found.nats - exact).abs() < 1e-6, "{n}: {} is not {exact}", found.nats);
            assert!((found.log_sum - log_sum(&q)).abs() < 1e-6);
            assert!(divergence(Isa::SCALAR, &p, &p).nats.abs() < 1e-9);
            for isa in Isa::available() {
                assert_eq!(divergence(isa, &p, &q), found, "{}", isa.name());
            }
        }
    }
}
