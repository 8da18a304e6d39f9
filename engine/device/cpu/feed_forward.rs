//! The feed-forward of a layer: one gated pair of matrices, or a mixture of experts.
//!
//! A row's experts are added in the experts' order, so that a row's arithmetic does not depend on the rows beside it.

use super::Cpu;
use super::kernels::linear::{Activations, gated};
use super::kernels::panel::Packed;
use super::kernels::pointwise::softmax;
use crate::model::spec::{ExpertSpec, Gating};
use crate::model::weights::{FeedForward, Mlp};

impl Cpu {
    /// `x: [n_rows, d_model]`, normed, and what the result is added to.
    pub(super) fn add_feed_forward(
        &self,
        weights: &FeedForward<Packed>,
        x: &[f32],
        residual: Vec<f32>,
    ) -> Vec<f32> {
        match weights {
            FeedForward::Dense(mlp) => self.add_linear(&self.hidden(mlp, x), &mlp.down, &residual),
            FeedForward::Experts { router, experts, shared } => {
                let mut mixed = self.experts(router, experts, x);
                mixed.iter_mut().zip(&residual).for_each(|(x, residual)| *x += residual);
                match shared {
                    None => mixed,
                    Some(shared) => self.add_linear(&self.hidden(shared, x), &shared.down, &mixed),
                }
            }
        }
    }

    /// `act(gate x) · up x`, `[n_rows, d_ff]`.
    fn hidden(&self, mlp: &Mlp<Packed>, x: &[f32]) -> Vec<f32> {
        let x = Activations::new(self.isa, x, mlp.gate.k, &[&mlp.gate, &mlp.up]);
        gated(self.isa, self.spec.family.activation, &x, &mlp.gate, &mlp.up)
    }

    /// The weighted sum of the experts that each row of `x: [n_rows, d_model]` is sent to.
    fn experts(&self, router: &Packed, experts: &[Mlp<Packed>], x: &[f32]) -> Vec<f32> {
        let (d, spec) = (self.spec.d_model, self.spec.experts.expect("a mixture has its shape"));
        let scores = self.linear(x, &[router]);
        // Rows of each expert, with their weights.
        let mut visits: Vec<Vec<(usize, f32)>> = vec![Vec::new(); experts.len()];
        for (row, scores) in scores.chunks_exact(experts.len()).enumerate() {
            for (expert, weight) in self.choose(&spec, scores) {
                visits[expert].push((row, weight));
            }
        }
        // A row's experts are added in their own order, whatever rows stand beside it.
        let mut out = vec![0.0; x.len()];
        for (mlp, visits) in experts.iter().zip(visits).filter(|(_, visits)| !visits.is_empty()) {
            let rows: Vec<f32> = visits.iter().flat_map(|(row, _)| &x[row * d..][..d]).copied().collect();
            let y = self.linear(&self.hidden(mlp, &rows), &[&mlp.down]);
            for ((row, weight), y) in visits.iter().zip(y.chunks_exact(d)) {
                out[row * d..][..d].iter_mut().zip(y).for_each(|(out, y)| *out = y.mul_add(*weight, *out));
            }
        }
        out
    }

    /// The experts of a row by its scores, with their weights; of equal scores the first ones win.
    fn choose(&self, spec: &ExpertSpec, scores: &[f32]) -> Vec<(usize, f32)> {
        let ExpertSpec { used, gating, normed, scale, .. } = *spec;
        let mut scores = scores.to_vec();
        if gating == Gating::SoftmaxThenTop {
            softmax(self.isa, &mut scores);
        }
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        order.truncate(used);
        let mut weights: Vec<f32> = order.iter().map(|expert| scores[*expert]).collect();
        if gating == Gating::TopThenSoftmax {
            softmax(self.isa, &mut weights);
        }
        if normed {
            // As the reference has it: never by less than the smallest normal half.
            let sum = weights.iter().sum::<f32>().max(6.103_515_6e-5);
            weights.iter_mut().for_each(|weight| *weight /= sum);
        }
        order.into_iter().zip(weights.into_iter().map(|weight| weight * scale)).collect()
    }
}
