//! The feed-forward of a layer: one gated pair of matrices, or a mixture of experts.

use super::ops::{AddLinear, Gated, floats};
use super::spec::{DecoderSpec, ExpertSpec, Gating};
use super::weights::Loader;
use crate::Result;
use crate::kernels::Isa;
use crate::kernels::linear::{Activations, gated, linear};
use crate::kernels::panel::Packed;
use crate::kernels::pointwise::{Activation, softmax};
use candle_core::{CpuStorage, CustomOp1, Layout, Shape, Tensor};

/// One layer's weights.
pub(crate) enum FeedForward {
    Dense(Mlp),
    Experts { router: Packed, experts: Vec<Mlp>, shared: Option<Mlp>, spec: ExpertSpec },
}

/// `down (act(gate x) · up x)`.
pub(crate) struct Mlp {
    gate: Packed,
    up: Packed,
    down: Packed,
}

impl FeedForward {
    /// Loads layer `l`.
    ///
    /// # Errors
    /// As [`Loader::matrix`].
    pub(crate) fn load(loader: &mut Loader<'_>, spec: &DecoderSpec, l: usize) -> Result<Self> {
        let d = spec.d_model;
        let mut mlp = |suffix: &str, d_ff: usize| {
            let name = |part: &str| format!("blk.{l}.ffn_{part}{suffix}");
            Ok::<_, crate::Error>(Mlp {
                gate: loader.matrix(&name("gate"), d_ff, d)?,
                up: loader.matrix(&name("up"), d_ff, d)?,
                down: loader.matrix(&name("down"), d, d_ff)?,
            })
        };
        let experts = match spec.experts {
            Some(experts) if spec.layers[l].experts => experts,
            _ => return Ok(Self::Dense(mlp("", spec.d_ff)?)),
        };
        let ExpertSpec { n, d_ff, shared_ff, .. } = experts;
        let shared = (shared_ff > 0).then(|| mlp("_shexp", shared_ff)).transpose()?;
        let name = |part: &str| format!("blk.{l}.ffn_{part}");
        let router = loader.matrix(&name("gate_inp"), n, d)?;
        let gates = loader.matrices(&name("gate_exps"), n, d_ff, d)?;
        let ups = loader.matrices(&name("up_exps"), n, d_ff, d)?;
        let downs = loader.matrices(&name("down_exps"), n, d, d_ff)?;
        let all = gates.into_iter().zip(ups).zip(downs);
        let all = all.map(|((gate, up), down)| Mlp { gate, up, down }).collect();
        Ok(Self::Experts { router, experts: all, shared, spec: experts })
    }

    /// `x: [n_rows, d_model]`, normed, and what the result is added to.
    pub(crate) fn add(
        &self,
        isa: Isa,
        activation: Activation,
        x: &Tensor,
        residual: &Tensor,
    ) -> candle_core::Result<Tensor> {
        match self {
            Self::Dense(mlp) => mlp.add(isa, activation, x, residual),
            Self::Experts { router, experts, shared, spec } => {
                let op = Experts { isa, activation, router, experts, spec };
                let mixed = (x.apply_op1_no_bwd(&op)? + residual)?;
                shared.as_ref().map_or(Ok(mixed.clone()), |shared| shared.add(isa, activation, x, &mixed))
            }
        }
    }
}

impl Mlp {
    fn add(
        &self,
        isa: Isa,
        activation: Activation,
        x: &Tensor,
        residual: &Tensor,
    ) -> candle_core::Result<Tensor> {
        let hidden = x.apply_op1_no_bwd(&Gated(isa, activation, &self.gate, &self.up))?;
        hidden.apply_op2_no_bwd(residual, &AddLinear(isa, &self.down))
    }
}

/// `x: [n_rows, d_model]` → the weighted sum of the experts that each row is sent to.
struct Experts<'a> {
    isa: Isa,
    activation: Activation,
    router: &'a Packed,
    experts: &'a [Mlp],
    spec: &'a ExpertSpec,
}

impl CustomOp1 for Experts<'_> {
    fn name(&self) -> &'static str {
        "experts"
    }
    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let (n_rows, d) = layout.shape().dims2()?;
        let x = floats(storage, layout)?;
        let input = Activations::new(self.isa, x, d, &[self.router]);
        let scores = linear(self.isa, &input, &[self.router], None);
        // Rows of each expert, with their weights.
        let mut visits: Vec<Vec<(usize, f32)>> = vec![Vec::new(); self.experts.len()];
        for (row, scores) in scores.chunks_exact(self.experts.len()).enumerate() {
            for (expert, weight) in self.choose(scores) {
                visits[expert].push((row, weight));
            }
        }
        // A row's experts are added in their own order, whatever rows stand beside it.
        let mut out = vec![0.0; n_rows * d];
        for (mlp, visits) in self.experts.iter().zip(visits).filter(|(_, visits)| !visits.is_empty()) {
            let rows: Vec<f32> = visits.iter().flat_map(|(row, _)| &x[row * d..][..d]).copied().collect();
            let rows = Activations::new(self.isa, &rows, d, &[&mlp.gate, &mlp.up]);
            let hidden = gated(self.isa, self.activation, &rows, &mlp.gate, &mlp.up);
            let hidden = Activations::new(self.isa, &hidden, mlp.down.k, &[&mlp.down]);
            let y = linear(self.isa, &hidden, &[&mlp.down], None);
            for ((row, weight), y) in visits.iter().zip(y.chunks_exact(d)) {
                out[row * d..][..d].iter_mut().zip(y).for_each(|(out, y)| *out = y.mul_add(*weight, *out));
            }
        }
        Ok((CpuStorage::F32(out), (n_rows, d).into()))
    }
}

impl Experts<'_> {
    /// The experts of a row by its scores, with their weights; of equal scores the first ones win.
    fn choose(&self, scores: &[f32]) -> Vec<(usize, f32)> {
        let ExpertSpec { used, gating, normed, scale, .. } = *self.spec;
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
