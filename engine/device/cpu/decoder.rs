//! The forward pass: rows of many sequences through all layers.

use super::Cpu;
use super::attention::LayerAttention;
use super::cache::CpuCache;
use crate::device::{Output, Pass};
use crate::model::calibration::Measured;
use crate::model::weights::Layer;
use crate::{Error, ErrorKind, Result};
use greenroom_kernels::activations::Activations;
use greenroom_kernels::floats::{Floats, reusing};
use greenroom_kernels::linear::{linear, linear_onto};
use greenroom_kernels::panel::Packed;
use greenroom_kernels::pointwise::{rms_norm, rms_norm_onto};

impl Cpu {
    /// Runs a pass, see [`Device::run`](crate::device::Device::run); `watch` records queries, keys and
    /// values.
    pub(super) fn pass(
        &self,
        pass: &Pass,
        cache: &mut CpuCache,
        watch: Option<&mut Measured>,
    ) -> Result<Output> {
        reusing(|| self.layers(pass, cache, watch))
    }

    fn layers(&self, pass: &Pass, cache: &mut CpuCache, mut watch: Option<&mut Measured>) -> Result<Output> {
        let (spec, d) = (&self.spec, self.spec.d_model);
        cache.begin(pass);
        let ropes = spec.ropes.iter().map(|rope| pass.positions().map(|p| rope.table(p)).collect());
        let ropes: Vec<Vec<Vec<f32>>> = ropes.collect();
        let mut x = Floats::from(self.weights.embedding.rows(&pass.ids)?);
        if spec.family.scaled_embedding {
            let scale = (d as f64).sqrt() as f32;
            x.iter_mut().for_each(|x| *x *= scale);
        }
        for (layer, weights) in self.weights.layers.iter().enumerate() {
            if pass.is_awaited.as_ref().is_some_and(|is_awaited| !is_awaited()) {
                return Err(Error::new(ErrorKind::Closed, "the request was cancelled"));
            }
            let layout = cache.layout.layers[layer];
            let (rope, shaping) = (&ropes[spec.layers[layer].rope], self.shapings[layer].as_ref());
            let (isa, weights_of) = (self.isa, &weights.attention);
            let attention =
                LayerAttention { isa, spec, weights: weights_of, shaping, layout, layer, rope, pass };
            x = self.layer(x, weights, &attention, cache, watch.as_deref_mut());
        }
        if pass.wanted.is_empty() {
            return Ok(Output::Logits(Vec::new()));
        }
        let rows: Vec<f32> = pass.wanted.iter().flat_map(|row| &x[row * d..][..d]).copied().collect();
        let hidden = rms_norm(self.isa, &rows, &self.weights.output_norm, spec.norm_eps);
        if pass.hidden {
            return Ok(Output::Hidden(hidden.into_vec()));
        }
        Ok(Output::Logits(self.linear(&hidden, &self.weights.output).into_vec()))
    }

    /// `x: [n_rows, d_model]` through attention and feed-forward, each with its norm before and its residual.
    fn layer(
        &self,
        x: Floats,
        weights: &Layer<Packed>,
        attention: &LayerAttention<'_>,
        cache: &mut CpuCache,
        mut watch: Option<&mut Measured>,
    ) -> Floats {
        let (isa, eps) = (self.isa, self.spec.norm_eps);
        let input: Vec<&Packed> = weights.attention.input.iter().collect();
        let projected = linear(isa, &Activations::normed(isa, &x, &weights.attn_norm, eps, &input), &input);
        let context = attention.run(projected, cache, watch.as_deref_mut());
        let output = &weights.attention.output;
        let attended = |context: &[f32]| match &weights.post_norms {
            None => self.linear_onto(context, output, &x),
            Some([norm, _]) => {
                let mut out = self.linear(context, output);
                rms_norm_onto(isa, &mut out, norm, eps, &x);
                out
            }
        };
        let after = attended(&context);
        if let Some(watch) = watch {
            let noisy: Vec<f32> =
                watch.noise().iter().zip(context.iter()).map(|(noise, x)| noise + x).collect();
            watch.felt(&after, &attended(&noisy), self.spec.d_model);
        }
        let (x, norm) = (after, &weights.ffn_norm);
        match &weights.post_norms {
            None => self.feed_forward(&weights.feed_forward, &x, norm, &x),
            Some([_, post_norm]) => {
                let mut zeros = Floats::new(x.len());
                zeros.fill(0.0);
                let mut out = self.feed_forward(&weights.feed_forward, &x, norm, &zeros);
                rms_norm_onto(isa, &mut out, post_norm, eps, &x);
                out
            }
        }
    }

    /// `x: [n_rows, k]` → `[n_rows, n_out]`.
    pub(super) fn linear(&self, x: &[f32], weights: &Packed) -> Floats {
        let x = Activations::new(self.isa, x, weights.k, &[weights]);
        linear(self.isa, &x, &[weights]).remove(0)
    }

    /// `x: [n_rows, k]` and a residual `[n_rows, n_out]` → the residual with the product added.
    pub(super) fn linear_onto(&self, x: &[f32], weights: &Packed, residual: &[f32]) -> Floats {
        linear_onto(self.isa, &Activations::new(self.isa, x, weights.k, &[weights]), weights, residual)
    }
}
