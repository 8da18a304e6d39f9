//! The feed-forward of a layer: one gated pair of matrices, or a mixture of experts.
//!
//! A row's experts are added in the experts' order, so a row's arithmetic does not depend on the other rows.

use super::Cpu;
use crate::model::family::Gating;
use crate::model::spec::ExpertSpec;
use crate::model::weights::{FeedForward, Mixture, Mlp};
use greenroom_kernels::activations::Activations;
use greenroom_kernels::floats::Floats;
use greenroom_kernels::linear::{gated, linear};
use greenroom_kernels::panel::Packed;
use greenroom_kernels::pointwise::{activate, rms_norm, rms_norm_in_place, rms_norm_onto, sigmoid, softmax};

impl Cpu {
    /// `x: [n_rows, d_model]`, its norm, and what the result is added to.
    pub(super) fn feed_forward(
        &self,
        weights: &FeedForward<Packed>,
        x: &[f32],
        norm: Option<&[f32]>,
        residual: Option<&[f32]>,
    ) -> Floats {
        match weights {
            FeedForward::Dense(mlp) => {
                let hidden = self.hidden(mlp, &self.activations(x, norm, &mlp.inputs()));
                match residual {
                    Some(residual) => self.linear_onto(&hidden, &mlp.down, residual),
                    None => self.linear(&hidden, &mlp.down),
                }
            }
            FeedForward::Both(both) => {
                let [dense_norm, experts_norm] = &both.post_norms;
                let eps = self.spec.norm_eps;
                let hidden = self.hidden(&both.dense, &self.activations(x, norm, &both.dense.inputs()));
                let mut dense = self.linear(&hidden, &both.dense.down);
                rms_norm_in_place(self.isa, &mut dense, dense_norm, eps);
                let scores =
                    self.linear(&rms_norm(self.isa, x, &both.router_norm, eps), &both.experts.router);
                let mut mixed = self.experts(&both.experts, &scores, &rms_norm(self.isa, x, &both.norm, eps));
                rms_norm_onto(self.isa, &mut mixed, experts_norm, eps, &dense);
                if let Some(residual) = residual {
                    mixed.iter_mut().zip(residual).for_each(|(x, residual)| *x += residual);
                }
                mixed
            }
            FeedForward::Experts(mixture) => {
                let x = match norm {
                    Some(norm) => rms_norm(self.isa, x, norm, self.spec.norm_eps),
                    None => Floats::copy(x),
                };
                let scores = self.linear(&x, &mixture.router);
                let mut mixed = match &mixture.latent {
                    None => self.experts(mixture, &scores, &x),
                    Some([down, up]) => {
                        self.linear(&self.experts(mixture, &scores, &self.linear(&x, down)), up)
                    }
                };
                if let Some(residual) = residual {
                    mixed.iter_mut().zip(residual).for_each(|(x, residual)| *x += residual);
                }
                let Some(shared) = &mixture.shared else { return mixed };
                let hidden = self.hidden(shared, &self.coded(shared, &x));
                let Some(gate) = &mixture.shared_gate else {
                    return self.linear_onto(&hidden, &shared.down, &mixed);
                };
                let mut gates = self.linear(&x, gate);
                sigmoid(self.isa, &mut gates);
                let out = self.linear(&hidden, &shared.down);
                let rows = mixed.chunks_exact_mut(self.spec.d_model).zip(out.chunks_exact(self.spec.d_model));
                for ((row, out), gate) in rows.zip(gates.iter()) {
                    row.iter_mut().zip(out).for_each(|(x, y)| *x = y.mul_add(*gate, *x));
                }
                mixed
            }
        }
    }

    fn coded<'a>(&self, mlp: &Mlp<Packed>, x: &'a [f32]) -> Activations<'a> {
        Activations::new(self.isa, x, mlp.up.k, &mlp.inputs())
    }

    /// `act(gate x) · up x`, or `act(up x)`, `[n_rows, d_ff]`.
    fn hidden(&self, mlp: &Mlp<Packed>, x: &Activations<'_>) -> Floats {
        let activation = self.spec.family.activation;
        let Some(gate) = &mlp.gate else {
            let mut hidden = linear(self.isa, x, &[&mlp.up]).remove(0);
            activate(self.isa, activation, &mut hidden);
            return hidden;
        };
        gated(self.isa, activation, x, gate, &mlp.up)
    }

    /// The weighted sum of the experts that each row of `x: [n_rows, d_model]` is sent to by its scores.
    fn experts(&self, mixture: &Mixture<Packed>, scores: &[f32], x: &[f32]) -> Floats {
        let experts = &mixture.experts;
        let d = if mixture.spec.d_latent > 0 { mixture.spec.d_latent } else { self.spec.d_model };
        // Rows of each expert, with their weights.
        let mut visits: Vec<Vec<(usize, f32)>> = vec![Vec::new(); experts.len()];
        for (row, scores) in scores.chunks_exact(experts.len()).enumerate() {
            for (expert, weight) in self.choose(&mixture.spec, scores, mixture.bias.as_deref()) {
                let scale = mixture.scales.as_ref().map_or(1.0, |scales| scales[expert]);
                visits[expert].push((row, weight * scale));
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

    /// The experts of a row by its scores, with their weights; of equal scores the first ones win. `bias` is
    /// added where they are selected.
    fn choose(&self, spec: &ExpertSpec, scores: &[f32], bias: Option<&[f32]>) -> Vec<(usize, f32)> {
        let ExpertSpec { used, gating, normed, scale, .. } = *spec;
        let mut scores = scores.to_vec();
        match gating {
            Gating::SoftmaxThenTop => softmax(self.isa, &mut scores),
            Gating::Sigmoid => sigmoid(self.isa, &mut scores),
            Gating::TopThenSoftmax => {}
        }
        let mut ranks = scores.clone();
        if let Some(bias) = bias {
            ranks.iter_mut().zip(bias).for_each(|(rank, bias)| *rank += bias);
        }
        let mut order = spec.of_best_groups(&ranks);
        order.sort_by(|a, b| ranks[*b].total_cmp(&ranks[*a]));
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
