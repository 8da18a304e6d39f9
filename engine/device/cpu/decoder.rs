//! The forward pass: rows of many sequences through all layers.

use super::Cpu;
use super::attention::Attention;
use super::cache::CpuCache;
use super::kernels::linear::{Activations, linear};
use super::kernels::panel::Packed;
use super::kernels::pointwise::rms_norm;
use crate::device::{Output, Pass};
use crate::model::calibration::Measured;
use crate::model::weights::Layer;
use crate::{Error, ErrorKind, Result};

impl Cpu {
    /// Runs a pass, see [`Device::run`](crate::device::Device::run); `watch` takes note of what it says of queries, keys and values.
    pub(super) fn pass(
        &self,
        pass: &Pass,
        cache: &mut CpuCache,
        mut watch: Option<&mut Measured>,
    ) -> Result<Output> {
        let (spec, d) = (&self.spec, self.spec.d_model);
        cache.begin(pass);
        let ropes = spec.ropes.iter().map(|rope| pass.positions().map(|p| rope.table(p)).collect());
        let ropes: Vec<Vec<Vec<f32>>> = ropes.collect();
        let mut x = self.weights.embedding.rows(&pass.ids)?;
        if spec.family.scaled_embedding {
            let scale = (d as f64).sqrt() as f32;
            x.iter_mut().for_each(|x| *x *= scale);
        }
        for (layer, weights) in self.weights.layers.iter().enumerate() {
            if pass.is_awaited.as_ref().is_some_and(|is_awaited| !is_awaited()) {
                return Err(Error::new(ErrorKind::Closed, "nobody waits for it any more"));
            }
            let layout = cache.layout.layers[layer];
            let (rope, shaping) = (&ropes[spec.layers[layer].rope], self.shapings[layer].as_ref());
            let (isa, weights_of) = (self.isa, &weights.attention);
            let attention = Attention { isa, spec, weights: weights_of, shaping, layout, layer, rope, pass };
            x = self.layer(x, weights, &attention, cache, watch.as_deref_mut());
        }
        if pass.wanted.is_empty() {
            return Ok(Output::Logits(Vec::new()));
        }
        let rows: Vec<f32> = pass.wanted.iter().flat_map(|row| &x[row * d..][..d]).copied().collect();
        let hidden = self.norm(&rows, &self.weights.output_norm);
        if pass.hidden {
            return Ok(Output::Hidden(hidden));
        }
        Ok(Output::Logits(self.linear(&hidden, &[&self.weights.output])))
    }

    /// `x: [n_rows, d_model]` through attention and feed-forward, each with its norm before and its residual.
    fn layer(
        &self,
        x: Vec<f32>,
        weights: &Layer<Packed>,
        attention: &Attention<'_>,
        cache: &mut CpuCache,
        mut watch: Option<&mut Measured>,
    ) -> Vec<f32> {
        let input: Vec<&Packed> = weights.attention.input.iter().collect();
        let projected = self.linear(&self.norm(&x, &weights.attn_norm), &input);
        let context = attention.run(&projected, cache, watch.as_deref_mut());
        let output = &weights.attention.output;
        let attended = |context: &[f32]| match &weights.post_norms {
            None => self.add_linear(context, output, &x),
            Some([norm, _]) => added(self.norm(&self.linear(context, &[output]), norm), &x),
        };
        let after = attended(&context);
        if let Some(watch) = watch {
            let noisy = added(watch.noise().to_vec(), &context);
            watch.felt(&after, &attended(&noisy), self.spec.d_model);
        }
        let x = after;
        let normed = self.norm(&x, &weights.ffn_norm);
        match &weights.post_norms {
            None => self.add_feed_forward(&weights.feed_forward, &normed, x),
            Some([_, norm]) => {
                let out = self.add_feed_forward(&weights.feed_forward, &normed, vec![0.0; x.len()]);
                added(self.norm(&out, norm), &x)
            }
        }
    }

    fn norm(&self, x: &[f32], weight: &[f32]) -> Vec<f32> {
        rms_norm(self.isa, x, weight, self.spec.norm_eps)
    }

    /// `x: [n_rows, k]` → the products with each matrix side by side, `[n_rows, Σ n_out]`.
    pub(super) fn linear(&self, x: &[f32], weights: &[&Packed]) -> Vec<f32> {
        let k = weights.first().map_or(1, |w| w.k);
        linear(self.isa, &Activations::new(self.isa, x, k, weights), weights, None)
    }

    /// `x: [n_rows, k]` and a residual `[n_rows, n_out]` → the residual with the product added.
    pub(super) fn add_linear(&self, x: &[f32], weights: &Packed, residual: &[f32]) -> Vec<f32> {
        let x = Activations::new(self.isa, x, weights.k, &[weights]);
        linear(self.isa, &x, &[weights], Some(residual))
    }
}

/// `x + y`, elementwise.
fn added(mut x: Vec<f32>, y: &[f32]) -> Vec<f32> {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
    x
}
