//! The mathematics of every family in plain candle tensors: f32, weights dequantized, nothing packed, no step
//! taken for speed.
//!
//! It is written to be read, and other devices are tested against it. [`decoder`] is the forward pass,
//! [`cache`] turns rows into the bytes of a sealed block and back.

mod cache;
mod decoder;
pub(crate) mod numbers;
mod recurrence;

use super::{Cache, Device, Output, Pass, StateSpan, own};
use crate::kv::layout::KvLayout;
use crate::model::calibration::{Calibration, Measured};
use crate::model::gguf::Gguf;
use crate::model::spec::{AttentionSpec, DecoderSpec};
use crate::model::tensors::{Numbers, converted};
use crate::model::weights::{Matrix, Pack, Weights};
use crate::{Error, Result};
use cache::{ReferenceCache, ReferenceShaping};
use candle_core::Tensor;
use std::sync::Arc;

/// The device that holds all tensors.
const HERE: candle_core::Device = candle_core::Device::Cpu;

/// A matrix `[n_out, k]`, and what is added to its products, `[n_out]`.
struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

/// Takes every matrix as numbers.
struct Dequantize;

impl Pack for Dequantize {
    type Matrix = Linear;

    fn pack(&mut self, matrix: Matrix<'_>) -> Result<(Linear, String)> {
        let Matrix { gguf, name, kind, n_out, k, bytes, bias, .. } = matrix;
        let floats = converted(gguf, name, kind, n_out * k, bytes, numbers::numbers)?;
        let weight = Tensor::from_vec(floats, (n_out, k), &HERE).map_err(failed)?;
        let bias = bias.map(|bias| Tensor::from_vec(bias, n_out, &HERE)).transpose().map_err(failed)?;
        Ok((Linear { weight, bias }, kind.to_string()))
    }

    fn numbers(&self) -> Numbers {
        numbers::numbers
    }
}

fn failed(e: candle_core::Error) -> Error {
    Error::internal(e.to_string())
}

/// A model in plain tensors.
pub(crate) struct Reference {
    spec: DecoderSpec,
    weights: Weights<Linear>,
    /// Each layer's constants for coding keys in 4 bits; `None` if they were not measured.
    shapings: Vec<Option<ReferenceShaping>>,
}

impl Reference {
    /// Loads a model's weights.
    ///
    /// # Errors
    /// As [`Weights::load`].
    pub(crate) fn load(gguf: &Arc<Gguf>) -> Result<Self> {
        let spec = DecoderSpec::from_gguf(gguf)?;
        let weights = Weights::load(gguf, &spec, &mut Dequantize, &mut |_, _| {})?;
        let shapings = spec.cached().map(|_| None).collect();
        Ok(Self { spec, weights, shapings })
    }
}

impl Device for Reference {
    fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    fn n_vocab(&self) -> usize {
        self.weights.n_vocab
    }

    fn numerics(&self) -> &str {
        "reference/1"
    }

    fn calibrate(&mut self, calibration: &Calibration) {
        self.spec.calibrate(calibration);
        let shaping = |(l, attention): (usize, &AttentionSpec)| {
            let [queries, keys] = calibration.of_layer(l)?;
            Some(ReferenceShaping::new(&queries, &keys, attention.k_dim))
        };
        self.shapings = self.spec.cached().enumerate().map(shaping).collect();
    }

    fn cache(&self, layout: Arc<KvLayout>) -> Box<dyn Cache> {
        Box::new(ReferenceCache::new(layout))
    }

    fn run(&self, pass: &Pass, cache: &mut dyn Cache, watch: Option<&mut Measured>) -> Result<Output> {
        self.pass(pass, own(cache), watch).map_err(failed)
    }

    fn seal(&self, span: &StateSpan, cache: &mut dyn Cache) -> Result<()> {
        self.seal_state(span, own(cache));
        Ok(())
    }
}
