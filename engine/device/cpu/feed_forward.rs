//! The feed-forward of a layer: one gated pair of matrices, or a mixture of experts.
//!
//! A row's experts are added in the experts' order, so a row's arithmetic does not depend on the other rows.

use super::Cpu;
use crate::model::spec::{ExpertSpec, Gating};
use crate::model::weights::{FeedForward, Mlp};
use greenroom_kernels::activations::Activations;
use greenroom_kernels::floats::Floats;
use greenroom_kernels::linear::gated;
use greenroom_kernels::panel::Packed;
use greenroom_kernels::pointwise::{rms_norm, softmax};

impl Cpu {
    /// `x: [n_rows, d_model]`, its norm, and what the result is added to.
    pub(super) fn feed_forward(
        &self,
        weights: &FeedForward<Packed>,
        x: &[f32],
        norm: &[f32],
        residual: &[f32],
    ) -> Floats {
        let (isa, eps) = (self.isa, self.spec.norm_eps);
        match weights {
            FeedForward::Dense(mlp) => {
                let x = Activations::normed(isa, x, norm, eps, &[&mlp.gate, &mlp.up]);
                self.linear_onto(&self.hidden(mlp, &x), &mlp.down, residual)
            }
            FeedForward::Experts { router, experts, shared } => {
                let x = rms_norm(isa, x, norm, eps);
                let mut mixed = self.experts(router, experts, &x);
                mixed.iter_mut().zip(residual).for_each(|(x, residual)| *x += residual);
                match shared {
                    None => mixed,
                    Some(shared) => {
                        self.linear_onto(&self.hidden(shared, &self.coded(shared, &x)), &shared.down, &mixed)
                    }
                }
            }
        }
    }

    fn coded<'a>(&self, mlp: &Mlp<Packed>, x: &'a [f32]) -> Activations<'a> {
        Activations::new(self.isa, x, mlp.gate.k, &[&mlp.gate, &mlp.up])
    }

    /// `act(gate x) · up x`, `[n_rows, d_ff]`.
    fn hidden(&self, mlp: &Mlp<Packed>, x: &Activations<'_>) -> Floats {
        gated(self.isa, self.spec.family.activation, x, &mlp.gate, &mlp.up)
    }

    /// The weighted sum of the experts that each row of `x: [n_rows, d_model]` is sent to.
    fn experts(&self, router: &Packed, experts: &[Mlp<Packed>], x: &[f32]) -> Floats {
        let (d, spec) = (self.spec.d_model, self.spec.experts.expect("a mixture has its shape"));
        let scores = self.linear(x, router);
        // Rows of each expert, with their weights.
        let mut visits: Vec<Vec<(usize, f32)>> = vec![Vec::new(); experts.len()];
        for (row, scores) in scores.chunks_exact(experts.len()).enumerate() {
            for (expert, weight) in self.choose(&spec, scores) {
                visits[expert].push((row, weight));
            }
        }
        // A row's experts are added in their own order, whatever other rows are in the pass.
        let mut out = Floats::new(x.len());
        out.fill(0.0);
        for (mlp, visits) in experts.iter().zip(visits).filter(|(_, visits)| !visits.is_empty()) {
            let rows: Vec<f32> = visits.iter().flat_map(|(row, _)| &x[row * d..][..d]).copied().collect();
            let y = self.linear(&self.hidden(mlp, &self.coded(mlp, &rows)), &mlp.down);
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
