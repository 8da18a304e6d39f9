//! A model of which only shapes are known: the plans of its passes, and what their steps cost, without a GPU.

#[cfg(test)]
use super::steps::Plan;
use super::steps::{Dispatch, GpuPass, PassShape, Planner};
use super::tables::Tables;
use super::vectors_of;
use super::weights::{GpuMatrix, Packer};
use crate::kv::layout::KvLayout;
use crate::model::gguf::Gguf;
use crate::model::spec::DecoderSpec;
use crate::model::weights::Weights;
use crate::{KvChoice, Result};
use std::sync::Arc;
use std::time::Duration;

/// Bytes that a kernel can access at a time, where no GPU says it: most have more.
const BINDING: u64 = 4 << 30;

pub(super) struct Outline {
    pub(super) spec: DecoderSpec,
    pub(super) weights: Weights<GpuMatrix>,
    /// Bytes of the file, and of matrices as kernels read them.
    #[cfg(test)]
    pub(super) bytes: [u64; 2],
    /// Whether the GPU multiplies bytes four at a time.
    pub(super) has_dot: bool,
}

impl Outline {
    pub(super) fn of(gguf: &Arc<Gguf>) -> Result<Self> {
        let spec = DecoderSpec::from_gguf(gguf)?;
        let mut packer = Packer::new(None, BINDING, gguf.n_bytes());
        let weights = Weights::load(gguf, &spec, &mut packer, &mut |_, _| {})?;
        Ok(Self {
            spec,
            weights,
            #[cfg(test)]
            bytes: [gguf.n_bytes(), packer.n_bytes],
            has_dot: true,
        })
    }

    /// The plan of passes as after a calibration.
    #[cfg(test)]
    pub(super) fn plan(&self, kv: &KvChoice, shape: PassShape) -> Result<Plan> {
        let layout = self.spec.kv_layout(kv)?;
        self.planned(&layout, shape, |planner| planner.plan())
    }

    fn planned<T>(
        &self,
        layout: &KvLayout,
        shape: PassShape,
        of: impl FnOnce(Planner<'_>) -> T,
    ) -> Result<T> {
        let (mut of_layers, output_norm, projected_norm) = vectors_of(&self.weights, &mut Vec::new());
        of_layers.iter_mut().for_each(|layer| layer.shaping = Some([0; 3]));
        let (spec, weights, vectors) = (&self.spec, &self.weights, of_layers.as_slice());
        let has_dot = self.has_dot;
        Ok(of(Planner { spec, weights, vectors, output_norm, projected_norm, layout, shape, has_dot }))
    }

    /// What the steps of a pass cost.
    pub(super) fn steps(&self, kv: &KvChoice, pass: GpuPass) -> Result<Vec<GpuStep>> {
        let (layout, shape) = (self.spec.kv_layout(kv)?, pass.shape());
        self.planned(&layout, shape, |planner| {
            let (tables, plan) = (Tables::counted(pass, planner.tile_rows()), planner.plan());
            plan.steps.iter().filter_map(|step| GpuStep::of(step, &tables, pass)).collect()
        })
    }
}

/// What a dispatch costs.
#[derive(Clone, Debug)]
pub struct GpuStep {
    /// Name of its kernel.
    pub kernel: &'static str,
    /// Layer that it belongs to; `None`: before or after all of them.
    pub layer: Option<usize>,
    /// Workgroups.
    pub workgroups: u64,
    /// Threads of a workgroup.
    pub threads: u64,
    /// Bytes of weights that it needs.
    pub weight_bytes: u64,
    /// Bytes of weights that all workgroups read together.
    pub weight_reads: u64,
    /// Bytes of the pass's rows that all workgroups read together in products.
    pub row_reads: u64,
    /// Bytes of cached keys and values that all workgroups read together.
    pub cache_reads: u64,
    /// Barriers in the main loop of a product's workgroup.
    pub barriers: u64,
    /// Multiplications by weights.
    pub multiplications: u64,
    /// Time on the GPU, if it was measured.
    pub time: Option<Duration>,
}

impl GpuStep {
    /// None where the pass leaves the step out.
    pub(super) fn of(step: &Dispatch, tables: &Tables, pass: GpuPass) -> Option<Self> {
        let workgroups: u64 = tables.groups(step).map(u64::from).iter().product();
        let (GpuPass::Decode { depth, .. } | GpuPass::Prefill { depth, .. }) = pass;
        let (work, pieces) = (step.work, tables.n_pieces as u64);
        let blocks_of_group = (depth as u64).div_ceil(256).div_ceil(pieces);
        (workgroups > 0).then_some(Self {
            kernel: step.source.name,
            layer: step.layer,
            workgroups,
            threads: step.source.threads(),
            weight_bytes: work.weight_bytes,
            weight_reads: work.group_weights * workgroups,
            row_reads: work.group_rows * workgroups,
            cache_reads: work.block_bytes * blocks_of_group * workgroups,
            barriers: work.group_barriers,
            multiplications: work.group_multiplications * workgroups,
            time: None,
        })
    }
}
