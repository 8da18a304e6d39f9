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
use greenroom_kernels::pointwise::{
    centered, gate, rms_norm, rms_norm_in_place, rms_norm_onto, sigmoid, soft_cap,
};
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
            let shared = spec.family.parallel.then(|| centered(&x, d));
            let input = (x, shared.as_deref());
            x = self.mixers(input, layer, weights, (&ropes, pass), cache, watch.as_deref_mut());
            if let Some(feed_forward) = &weights.feed_forward {
                let [_, norm] = weights.norms.each_ref().map(Option::as_deref);
                x = self.added(weights.post_norms[1].as_deref(), &x, |residual| {
                    self.feed_forward(feed_forward, shared.as_deref().unwrap_or(&x), norm, residual)
                });
            }
            if let (Some(input), Some(inputs)) = (&weights.input, &inputs) {
                x = self.with_input(x, input, inputs, layer);
            }
            scale(&mut x, weights.scale);
        }
        cache.finish_states(pass);
        if pass.wanted.is_empty() {
            return Ok(Output::Logits(Vec::new()));
        }
        let rows: Vec<f32> = pass.wanted.iter().flat_map(|row| &x[row * d..][..d]).copied().collect();
        let rows = if spec.family.parallel { centered(&rows, d) } else { Floats::from(rows) };
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

    /// `x: [n_rows, d_model]` through a layer's mixers, side by side, with the norm before and the residual;
    /// `input`: what they read, if that is not `x`.
    fn mixers(
        &self,
        (x, input): (Floats, Option<&[f32]>),
        layer: usize,
        weights: &Layer<Packed>,
        (ropes, pass): (&[Vec<Vec<f32>>], &Pass),
        cache: &mut CpuCache,
        watch: Option<&mut Measured>,
    ) -> Floats {
        let (isa, spec) = (self.isa, &self.spec.layers[layer]);
        let [norm, _] = weights.norms.each_ref().map(Option::as_deref);
        let after = weights.post_norms[0].as_deref();
        let rows = input.unwrap_or(&x);
        let products = |input: &[&Packed]| linear(isa, &self.activations(rows, norm, input), input);
        let mut out = None;
        if let (Some(own), Some(weights)) = (spec.attention, &weights.attention) {
            let input: Vec<&Packed> = weights.input.iter().chain(&weights.gate).collect();
            let mut projected = products(&input);
            let mut gates = if weights.gate.is_some() { projected.pop() } else { None };
            if let Some(gates) = &mut gates {
                sigmoid(isa, gates);
            }
            let attention = LayerAttention {
                isa,
                spec: &self.spec,
                own,
                weights,
                shaping: self.shapings[own.cache].as_ref(),
                layout: cache.layout.layers[own.cache],
                layer: own.cache,
                rope: own.rope.map(|rope| ropes[rope].as_slice()),
                pass,
            };
            let mut watch = watch;
            let context = attention.run(projected, cache, watch.as_deref_mut());
            let attended = |context: &[f32]| {
                let gated = gates.as_ref().map(|gates| {
                    let mut gated = Floats::copy(context);
                    gated.iter_mut().zip(gates.iter()).for_each(|(x, gate)| *x *= gate);
                    gated
                });
                self.given(after, &x, gated.as_deref().unwrap_or(context), &weights.output)
            };
            let felt = attended(&context);
            if let Some(watch) = watch.filter(|_| own.writes) {
                let noisy: Vec<f32> =
                    watch.noise().iter().zip(context.iter()).map(|(noise, x)| noise + x).collect();
                watch.felt(&felt, &attended(&noisy), self.spec.d_model);
            }
            out = Some(felt);
        }
        if let (Some(own), Some(weights)) = (&spec.recurrence, &weights.recurrence) {
            let input: Vec<&Packed> = weights.input.iter().collect();
            let read = self.recurrence(products(&input), own, weights, pass, cache);
            out = Some(self.given(after, out.as_deref().unwrap_or(&x), &read, &weights.output));
        }
        out.unwrap_or(x)
    }

    /// What a mixer gives, `[n_rows, width]`, times its last matrix, added to the stream `x`.
    fn given(&self, norm: Option<&[f32]>, x: &[f32], given: &[f32], output: &Packed) -> Floats {
        self.added(norm, x, |residual| match residual {
            Some(residual) => self.linear_onto(given, output, residual),
            None => self.linear(given, output),
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
