//! Constants for coding a layer's keys in 4 bits with little effect on scores.
//!
//! A key that is off by e changes the score of query q by q·e, so what counts is not e² but eᵀCe, C being the
//! second moment of queries. Two things make it small. Elements of keys are multiplied by scales, and those
//! of queries divided by them, so that no element's variance drowns another's. And the errors of elements
//! that are rounded already are made up for by those that follow (the feedback of GPTQ, Frantar et al. 2022,
//! which has it for weights): with C = BᵀΔB, B lower unitriangular and Δ diagonal, eᵀCe is the sum of Δᵢ
//! (eᵢ + Σⱼ₍ⱼ﹤ᵢ₎ Bᵢⱼ eⱼ)², and each term but the rounding of element i itself can be 0.
//!
//! C is taken as diagonal in the basis in which positions turn keys: over many distances pairs of elements
//! turn by all angles, and different pairs by unrelated ones.

use super::{Isa, pointwise};
use libm::{exp, log};

/// Share of the mean energy of queries that is added to each element's: what a sample says is not all there
/// will be.
pub const DAMPING: f32 = 0.1;

/// The constants of one layer.
#[derive(Debug, PartialEq)]
pub struct Shaping {
    dim: usize,
    /// Factors applied to keys before the rotation, `[n_heads, dim]`.
    scales: Vec<f32>,
    /// Factors applied to a KV head's queries before the rotation, the inverses of `scales`,
    /// `[n_heads, dim]`.
    inverse: Vec<f32>,
    /// B of each head in the rotated basis, `[n_heads, dim, dim]`.
    feedback: Vec<f32>,
}

impl Shaping {
    /// Computes them from the energy of queries (mean squares) and the variance of keys, `[n_heads, dim]`
    /// each, in any unit; all numbers are positive.
    pub fn new(isa: Isa, queries: &[f32], keys: &[f32], dim: usize) -> Self {
        let mut shaping = Self { dim, scales: vec![], inverse: vec![], feedback: vec![] };
        for (queries, keys) in queries.chunks_exact(dim).zip(keys.chunks_exact(dim)) {
            let scales: Vec<f32> = keys.iter().map(|variance| 1.0 / variance.sqrt().sqrt()).collect();
            let mean = scales.iter().sum::<f32>() / dim as f32;
            let scales: Vec<f32> = scales.iter().map(|scale| scale / mean).collect();
            shaping.inverse.extend(scales.iter().map(|scale| 1.0 / scale));
            let energies = queries.iter().zip(&scales).map(|(query, scale)| query / (scale * scale));
            shaping.feedback.extend(feedback(isa, energies.collect()));
            shaping.scales.extend(scales);
        }
        shaping
    }

    /// Scales keys, `[n_rows, n_heads, dim]`.
    pub fn scale_keys(&self, keys: &mut [f32]) {
        for row in keys.chunks_exact_mut(self.scales.len()) {
            row.iter_mut().zip(&self.scales).for_each(|(x, scale)| *x *= scale);
        }
    }

    /// Scales queries to match, `[n_rows, n_heads * group, dim]`: `group` query heads read a KV head.
    pub fn scale_queries(&self, queries: &mut [f32], group: usize) {
        let heads =
            queries.chunks_exact_mut(group * self.dim).zip(self.inverse.chunks_exact(self.dim).cycle());
        for (queries, inverse) in heads {
            for head in queries.chunks_exact_mut(self.dim) {
                head.iter_mut().zip(inverse).for_each(|(x, scale)| *x *= scale);
            }
        }
    }

    /// Factors of keys, of queries, `[n_heads, dim]`, and B, `[n_heads, dim, dim]`: for devices with kernels
    /// of their own.
    pub fn parts(&self) -> [&[f32]; 3] {
        [&self.scales, &self.inverse, &self.feedback]
    }

    /// B of a head, `[dim, dim]`: the part below its diagonal.
    pub fn feedback(&self, head: usize) -> &[f32] {
        &self.feedback[head * self.dim * self.dim..][..self.dim * self.dim]
    }
}

/// B of C = H diag(energies) Hᵀ, H being the rotation.
fn feedback(isa: Isa, mut energies: Vec<f32>) -> Vec<f32> {
    let dim = energies.len();
    let damping = DAMPING * energies.iter().sum::<f32>() / dim as f32;
    energies.iter_mut().for_each(|energy| *energy += damping);
    let mut rotated = vec![0.0; dim * dim];
    (0..dim).for_each(|i| rotated[i * dim + i] = 1.0);
    pointwise::hadamard(isa, &mut rotated, &[dim]);
    // H is symmetric: row i is H's column i too.
    for row in rotated.chunks_exact_mut(dim) {
        row.iter_mut().zip(&energies).for_each(|(x, energy)| *x *= energy);
    }
    pointwise::hadamard(isa, &mut rotated, &[dim]);
    let mut c: Vec<f64> = rotated.iter().map(|x| f64::from(*x)).collect();
    for i in (1..dim).rev() {
        let (above, row) = c.split_at_mut(i * dim);
        let row = &mut row[..i + 1];
        let pivot = row[i];
        for (j, above) in above.chunks_exact_mut(dim).enumerate() {
            let share = row[j] / pivot;
            above[..=j].iter_mut().zip(&*row).for_each(|(x, other)| *x -= share * other);
        }
        row[..i].iter_mut().for_each(|x| *x /= pivot);
    }
    c.iter().map(|x| *x as f32).collect()
}

/// Mean square error of the 4-bit levels for a Gaussian of variance 1 (Max 1960).
const CODING: f64 = 0.0095;

/// Mean square of what 4 bits leave in the products of a head's queries and keys, from the energy of queries
/// and the variance of keys, `[dim]` each: scaled and rotated keys have the mean deviation as their variance,
/// and feedback leaves the geometric mean of Δ.
pub fn noise(queries: &[f64], keys: &[f64]) -> f64 {
    let dim = keys.len() as f64;
    let deviations = keys.iter().map(|variance| variance.sqrt());
    let energies: Vec<f64> =
        queries.iter().zip(deviations.clone()).map(|(query, sigma)| query * sigma).collect();
    let damping = f64::from(DAMPING) * energies.iter().sum::<f64>() / dim;
    let log_mean = energies.iter().map(|energy| log(energy + damping)).sum::<f64>() / dim;
    CODING * deviations.sum::<f64>() * exp(log_mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feedback_makes_a_sum_of_squares_of_the_error() {
        for dim in [64, 96] {
            let energies: Vec<f32> = (0..dim).map(|i| 0.01 + ((i * 37 % 11) as f32).powi(2)).collect();
            let b = feedback(Isa::SCALAR, energies.clone());
            let error: Vec<f32> = (0..dim).map(|i| ((i * i) as f32 * 0.7).sin()).collect();
            let mut turned = error.clone();
            pointwise::hadamard(Isa::SCALAR, &mut turned, &[dim]);
            let damping = DAMPING * energies.iter().sum::<f32>() / dim as f32;
            let wanted: f32 = turned.iter().zip(&energies).map(|(e, w)| e * e * (w + damping)).sum();
            // Δ is found by errors that leave one term alone: e = B⁻¹ uᵢ.
            let mut found = 0.0;
            for i in 0..dim {
                let mut one = vec![0.0; dim];
                one[i] = 1.0;
                for r in i + 1..dim {
                    one[r] = -(i..r).map(|j| b[r * dim + j] * one[j]).sum::<f32>();
                }
                pointwise::hadamard(Isa::SCALAR, &mut one, &[dim]);
                let delta: f32 = one.iter().zip(&energies).map(|(e, w)| e * e * (w + damping)).sum();
                let term = error[i] + (0..i).map(|j| b[i * dim + j] * error[j]).sum::<f32>();
                found += delta * term * term;
            }
            assert!((found / wanted - 1.0).abs() < 1e-3, "{dim}: {found}, {wanted}");
        }
    }

    #[test]
    fn scores_stay_when_keys_and_queries_are_scaled() {
        let (dim, group, n_heads) = (32, 3, 2);
        let noise = |n: usize, seed: usize| -> Vec<f32> {
            (0..n).map(|i| ((i * 7 + seed) as f32 * 0.37).sin()).collect()
        };
        let energies = |seed| noise(n_heads * dim, seed).iter().map(|x| x * x + 0.1).collect::<Vec<_>>();
        let shaping = Shaping::new(Isa::SCALAR, &energies(1), &energies(2), dim);
        let (q, k) = (noise(2 * n_heads * group * dim, 3), noise(2 * n_heads * dim, 4));
        let (mut scaled_q, mut scaled_k) = (q.clone(), k.clone());
        shaping.scale_queries(&mut scaled_q, group);
        shaping.scale_keys(&mut scaled_k);
        let dot = |q: &[f32], k: &[f32]| q.iter().zip(k).map(|(q, k)| q * k).sum::<f32>();
        for (i, (before, after)) in q.chunks_exact(dim).zip(scaled_q.chunks_exact(dim)).enumerate() {
            let at = i / group * dim..(i / group + 1) * dim;
            let (before, after) = (dot(before, &k[at.clone()]), dot(after, &scaled_k[at]));
            assert!((before - after).abs() < 1e-4, "head {i}: {before}, {after}");
        }
        assert_ne!(k, scaled_k);
    }
}
