//! The processor: packed kernels, the same bits on every instruction set and for any number of threads.

mod attention;
pub(crate) mod block;
pub(crate) mod cache;
mod decoder;
mod feed_forward;
mod recurrence;
mod weights;

use super::{Cache, Device, Output, Pass, StateSpan, own};
use crate::Result;
use crate::kv::layout::KvLayout;
use crate::model::calibration::{Calibration, Measured};
use crate::model::gguf::Gguf;
use crate::model::spec::DecoderSpec;
use crate::model::weights::Weights;
use cache::CpuCache;
use greenroom_kernels::Isa;
pub(crate) use greenroom_kernels::NUMERICS;
use greenroom_kernels::floats::reusing;
use greenroom_kernels::panel::Packed;
use greenroom_kernels::shaping::Shaping;
use greenroom_kernels::slab::Slabs;
use greenroom_kernels::threads;
use std::sync::Arc;
#[cfg(any(test, feature = "gpu"))]
pub(crate) use weights::numbers;

/// A model on the processor.
pub(crate) struct Cpu {
    spec: DecoderSpec,
    isa: Isa,
    weights: Weights<Packed>,
    /// Each layer's constants for coding keys in 4 bits; `None` if they were not measured.
    shapings: Vec<Option<Shaping>>,
}

impl Cpu {
    /// Loads a model's weights. `on_progress` gets the bytes of the file packed so far, and the total.
    ///
    /// # Errors
    /// As [`Weights::load`].
    pub(crate) fn load(
        gguf: &Arc<Gguf>,
        isa: Isa,
        on_progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Self> {
        let spec = DecoderSpec::from_gguf(gguf)?;
        let weights = Weights::load(gguf, &spec, &mut Slabs::default(), on_progress)?;
        tracing::info!("kernels: {}, {} threads", isa.name(), threads::n_threads());
        let shapings = spec.cached().map(|_| None).collect();
        Ok(Self { spec, isa, weights, shapings })
    }
}

impl Device for Cpu {
    fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    fn n_vocab(&self) -> usize {
        self.weights.n_vocab
    }

    fn numerics(&self) -> &str {
        NUMERICS
    }

    fn calibrate(&mut self, calibration: &Calibration) {
        self.spec.calibrate(calibration);
        let widths: Vec<usize> = self.spec.cached().map(|attention| attention.k_dim).collect();
        let shaping = |l: usize| {
            let [queries, keys] = calibration.of_layer(l)?;
            Some(Shaping::new(self.isa, &queries, &keys, widths[l]))
        };
        self.shapings = threads::map(widths.len(), shaping);
    }

    fn cache(&self, layout: Arc<KvLayout>) -> Box<dyn Cache> {
        Box::new(CpuCache::new(layout))
    }

    fn run(&self, pass: &Pass, cache: &mut dyn Cache, watch: Option<&mut Measured>) -> Result<Output> {
        self.pass(pass, own(cache), watch)
    }

    fn seal(&self, span: &StateSpan, cache: &mut dyn Cache) -> Result<()> {
        reusing(|| self.seal_state(span, own(cache)))
    }
}
