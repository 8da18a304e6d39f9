//! The forward pass: rows of many sequences through all layers.

use super::Cpu;
use super::attention::LayerAttention;
use super::cache::CpuCache;
use crate::device::{Output, Pass};
use crate::model::calibration::Measured;
use crate::model::spec::DecoderSpec;
use crate::model::weights::{Layer, LayerInput, PerLayerInputs};
use crate::{Error, ErrorKind, Result};
use greenroom_kernels::activations::Activations;
use greenroom_kernels::floats::{Floats, reusing};
use greenroom_kernels::linear::{linear, linear_onto};
use greenroom_kernels::panel::Packed;
use greenroom_kernels::pointwise::{gate, rms_norm, rms_norm_in_place, rms_norm_onto, soft_cap};
use std::f32::consts::FRAC_1_SQRT_2;

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
        scale(&mut x, spec.embedding_scale);
        let inputs = self.weights.per_layer.as_ref().map(|per_layer| self.inputs(per_layer, &pass.ids, &x));
        let inputs = inputs.transpose()?;
        for (layer, weights) in self.weights.layers.iter().enumerate() {
            if pass.is_awaited.as_ref().is_some_and(|is_awaited| !is_awaited()) {
                return Err(Error::new(ErrorKind::Closed, "the request was cancelled"));
            }
            let own = spec.layers[layer].attention;
            let attention = LayerAttention {
                isa: self.isa,
                spec,
                own,
                weights: &weights.attention,
                shaping: self.shapings[own.cache].as_ref(),
                layout: cache.layout.layers[own.cache],
                layer: own.cache,
                rope: own.rope.map(|rope| ropes[rope].as_slice()),
                pass,
            };
            x = self.layer(x, weights, &attention, cache, watch.as_deref_mut());
            if let (Some(input), Some(inputs)) = (&weights.input, &inputs) {
                x = self.with_input(x, input, inputs, layer);
            }
            scale(&mut x, weights.scale);
        }
        if pass.wanted.is_empty() {
            return Ok(Output::Logits(Vec::new()));
        }
        let rows: Vec<f32> = pass.wanted.iter().flat_map(|row| &x[row * d..][..d]).copied().collect();
        let hidden = rms_norm(self.isa, &rows, &self.weights.output_norm, spec.norm_eps);
        if pass.hidden {
            return Ok(Output::Hidden(hidden.into_vec()));
        }
        let mut logits = self.linear(&hidden, &self.weights.output);
        scale(&mut logits, spec.logit_scale);
        if let Some(cap) = spec.logit_cap {
            soft_cap(self.isa, &mut logits, cap);
        }
        Ok(Output::Logits(logits.into_vec()))
    }

    /// Each layer's own input, `[n_rows, n_layers, d_per_layer]`, for tokens and their embeddings.
    fn inputs(&self, per_layer: &PerLayerInputs<Packed>, ids: &[u32], x: &[f32]) -> Result<Floats> {
        let DecoderSpec { d_model, d_per_layer, norm_eps, .. } = self.spec;
        let mut inputs = self.linear(x, &per_layer.projection);
        scale(&mut inputs, (1.0 / (d_model as f64).sqrt()) as f32);
        rms_norm_in_place(self.isa, &mut inputs, &per_layer.norm, norm_eps);
        let root = (d_per_layer as f64).sqrt() as f32;
        let known = per_layer.embedding.rows(ids)?;
        inputs.iter_mut().zip(&known).for_each(|(x, known)| *x = known.mul_add(root, *x) * FRAC_1_SQRT_2);
        Ok(inputs)
    }

    /// The stream with a layer's own input mixed in.
    fn with_input(&self, x: Floats, own: &LayerInput<Packed>, inputs: &[f32], layer: usize) -> Floats {
        let DecoderSpec { d_per_layer: width, norm_eps, .. } = self.spec;
        let mut gates = self.linear(&x, &own.gate);
        let rows = inputs.chunks_exact(width * self.spec.layers.len());
        let inputs: Vec<f32> = rows.flat_map(|row| &row[layer * width..][..width]).copied().collect();
        gate(self.isa, self.spec.family.activation, &mut gates, &inputs);
        let mut out = self.linear(&gates, &own.projection);
        rms_norm_onto(self.isa, &mut out, &own.norm, norm_eps, &x);
        out
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
        let isa = self.isa;
        let input: Vec<&Packed> = weights.attention.input.iter().collect();
        let norms = weights.norms.as_ref();
        let projected = linear(isa, &self.activations(&x, norms.map(|norms| &*norms[0]), &input), &input);
        let context = attention.run(projected, cache, watch.as_deref_mut());
        let output = &weights.attention.output;
        let [after_attention, after_feed_forward] = match &weights.post_norms {
            None => [None; 2],
            Some(norms) => norms.each_ref().map(|norm| Some(&**norm)),
        };
        let attended = |context: &[f32]| {
            self.added(after_attention, &x, |residual| match residual {
                Some(residual) => self.linear_onto(context, output, residual),
                None => self.linear(context, output),
            })
        };
        let after = attended(&context);
        if let Some(watch) = watch.filter(|_| attention.own.writes) {
            let noisy: Vec<f32> =
                watch.noise().iter().zip(context.iter()).map(|(noise, x)| noise + x).collect();
            watch.felt(&after, &attended(&noisy), self.spec.d_model);
        }
        let (x, norm) = (after, norms.map(|norms| &*norms[1]));
        self.added(after_feed_forward, &x, |residual| {
            self.feed_forward(&weights.feed_forward, &x, norm, residual)
        })
    }

    /// What a mixer or a feed-forward gives, `[n_rows, d_model]`, normed and scaled where the family has it,
    /// added to the stream `x`. `of` adds to what it is given, if it is given something.
    fn added(&self, norm: Option<&[f32]>, x: &[f32], of: impl Fn(Option<&[f32]>) -> Floats) -> Floats {
        let factor = self.spec.residual_scale;
        if norm.is_none() && factor == 1.0 {
            return of(Some(x));
        }
        let mut out = of(None);
        match norm {
            Some(norm) => rms_norm_onto(self.isa, &mut out, norm, self.spec.norm_eps, x),
            None => out.iter_mut().zip(x).for_each(|(y, x)| *y = y.mul_add(factor, *x)),
        }
        out
    }

    /// Rows `x: [n_rows, d_model]`, normed if there is a norm, for products with `weights`.
    pub(super) fn activations<'a>(
        &self,
        x: &'a [f32],
        norm: Option<&[f32]>,
        weights: &[&Packed],
    ) -> Activations<'a> {
        match norm {
            Some(norm) => Activations::normed(self.isa, x, norm, self.spec.norm_eps, weights),
            None => Activations::new(self.isa, x, self.spec.d_model, weights),
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

/// Multiplies all numbers, unless the factor is 1.
fn scale(x: &mut [f32], factor: f32) {
    if factor != 1.0 {
        x.iter_mut().for_each(|x| *x *= factor);
    }
}
