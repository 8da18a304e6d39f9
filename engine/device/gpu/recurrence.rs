//! The steps of recurrent layers.

use super::kernels::{CONVOLVE, FINISH, KEEP, KernelConstants, LOG, WALK};
use super::states::log_words;
use super::steps::{BufferRef, Coding, Extent, LayerVectors, PassBuffer, Plan, Planner};
use super::weights::GpuMatrix;
use crate::kv::format::StateFormat;
use crate::model::family::RecurrentMixer;
use crate::model::spec::RecurrenceSpec;
use crate::model::weights::{RecurrenceWeights, StateHeads};
use greenroom_kernels::LANES;
use greenroom_kernels::recurrence::Sealed;

/// Threads that share a column of a head's matrix.
const SLICES: usize = 16;

impl RecurrenceSpec {
    /// Width of what the last matrix is multiplied with.
    pub(super) fn given(&self) -> usize {
        if self.n_heads > 0 { self.inner() } else { self.channels }
    }

    /// Width of the products that it comes from.
    pub(super) fn products(&self) -> usize {
        match self.mixer {
            RecurrentMixer::ShortConvolution => 3 * self.channels,
            RecurrentMixer::Mamba2 => self.inner() + self.channels + self.n_heads,
            RecurrentMixer::Delta { .. } => self.inner() + self.channels + 2 * self.n_heads,
        }
    }

    /// Floats of a token after the convolution: its channels, and two gates a head.
    pub(super) fn mixed_width(&self) -> usize {
        self.channels + 2 * self.n_heads
    }
}

impl Planner<'_> {
    /// From the stream to what the last matrix is multiplied with: `PassBuffer::Recurred`. Only what walks
    /// through tokens runs in a pass that has no rows.
    pub(super) fn recurrence(
        &self,
        plan: &mut Plan,
        l: usize,
        own: &RecurrenceSpec,
        weights: &RecurrenceWeights<GpuMatrix>,
    ) {
        let vectors = &self.vectors[l];
        let width = self.side_by_side(plan, weights.input.iter(), vectors.norms[0]);
        let constants = shape(own, width);
        put_in_log(plan, vectors, own, &constants);
        self.convolve(plan, vectors, own, weights, &constants);
        let of_state = self.state(own, &constants);
        if own.n_heads > 0 {
            self.walk(plan, own, &of_state);
        }
        keep(plan, own, of_state);
        self.finish(plan, vectors, own, weights.heads.as_ref(), constants);
    }

    /// What kernels know of a layer's share of a sealed state.
    fn state(&self, own: &RecurrenceSpec, constants: &KernelConstants) -> KernelConstants {
        let format = &StateFormat::new(self.layout).layers[own.state];
        let word = |byte: usize| (byte - format.inputs.start) / 4;
        let constants = constants.clone().uint("STATE_WORDS", word(format.scales.end));
        constants.uint("ELEMENTS", word(format.elements.start)).uint("SCALES", word(format.scales.start))
    }

    fn convolve(
        &self,
        plan: &mut Plan,
        vectors: &LayerVectors,
        own: &RecurrenceSpec,
        weights: &RecurrenceWeights<GpuMatrix>,
        constants: &KernelConstants,
    ) {
        let n_normed = if is_delta(own) { 2 * own.n_key_heads } else { 0 };
        let constants = constants
            .clone()
            .uint("THREADS", 64)
            .uint("TAPS", own.taps)
            .uint("N_QUERIES", own.n_key_heads)
            .uint("N_NORMED", n_normed)
            .flag("BIASED", weights.convolution_bias.is_some())
            .float("EPS", self.spec.norm_eps);
        let bindings = vec![
            plan.params(bytemuck::cast_slice(&vectors.convolution)),
            BufferRef::Vectors,
            BufferRef::Scratch(PassBuffer::Walked),
            BufferRef::Scratch(PassBuffer::LogPlaces),
            BufferRef::Log(own.state),
            BufferRef::Scratch(PassBuffer::Convolved),
        ];
        let rest = (own.mixed_width() - n_normed * own.k_dim).div_ceil(64);
        plan.push(
            &CONVOLVE,
            constants,
            bindings,
            [Extent::Fixed(n_normed + rest), Extent::Walked, Extent::Fixed(1)],
        );
    }

    fn walk(&self, plan: &mut Plan, own: &RecurrenceSpec, of_state: &KernelConstants) {
        let (queries, keys) = match is_delta(own) {
            true => (0, own.key_width()),
            false => (own.inner() + own.key_width(), own.inner()),
        };
        let format = match self.layout.sealed {
            Sealed::F32 => 0,
            Sealed::F16 => 1,
            Sealed::Q8 => 2,
        };
        let constants = of_state
            .clone()
            .uint("N_KEY_HEADS", own.n_key_heads)
            .flag("GROUPED", own.mixer != RecurrentMixer::Delta { grouped: false })
            .uint("ROWS", own.k_dim.div_ceil(SLICES))
            .uint("QUERIES", queries)
            .uint("KEYS", keys)
            .uint("FORMAT", format);
        let bindings = vec![
            BufferRef::Scratch(PassBuffer::Sequences),
            BufferRef::Scratch(PassBuffer::Seals),
            BufferRef::Scratch(PassBuffer::Convolved),
            BufferRef::Matrices(own.state),
            BufferRef::Sealed(own.state),
            BufferRef::Scratch(PassBuffer::Read),
        ];
        let tiles = Extent::Fixed(own.inner() / LANES);
        plan.push(&WALK, constants, bindings, [tiles, Extent::Sequences, Extent::Fixed(1)]);
    }

    fn finish(
        &self,
        plan: &mut Plan,
        vectors: &LayerVectors,
        own: &RecurrenceSpec,
        heads: Option<&StateHeads>,
        constants: KernelConstants,
    ) {
        let (n_groups, group) = match own.mixer {
            RecurrentMixer::Delta { .. } => (own.n_heads, own.v_dim),
            RecurrentMixer::Mamba2 => (own.n_key_heads, own.inner() / own.n_key_heads),
            RecurrentMixer::ShortConvolution => (1, own.channels),
        };
        let constants = constants
            .uint("THREADS", 256)
            .uint("GROUP", group)
            .uint("OUTER", if own.mixer == RecurrentMixer::Mamba2 { 0 } else { own.channels })
            .uint("OUT_WIDTH", own.given())
            .flag("NORMED", heads.is_some_and(|heads| heads.norm.is_some()))
            .flag("SKIPS", heads.is_some_and(|heads| heads.skip.is_some()))
            .float("EPS", self.spec.norm_eps);
        let params = [vectors.state_norm, vectors.state_heads[2], u32::MAX];
        let params = plan.params(bytemuck::cast_slice(&params));
        let bindings = vec![
            params,
            BufferRef::Vectors,
            BufferRef::Scratch(PassBuffer::Logged),
            BufferRef::Scratch(PassBuffer::Products),
            BufferRef::Scratch(PassBuffer::Convolved),
            BufferRef::Scratch(PassBuffer::Read),
            BufferRef::Scratch(PassBuffer::Recurred),
            BufferRef::Nothing,
        ];
        let groups = [Extent::Fixed(n_groups), Extent::Rows(1), Extent::Fixed(1)];
        plan.push(&FINISH, constants, bindings, groups);
        if group % 16 == 0 {
            let (buffer, norm_at) = (PassBuffer::Recurred, params.offset() + 8);
            plan.can_code(Coding { buffer, width: own.given(), per_row: 1, norm_at });
        }
    }
}

fn is_delta(own: &RecurrenceSpec) -> bool {
    matches!(own.mixer, RecurrentMixer::Delta { .. })
}

/// What all kernels of a layer know of it; `width`: of its products.
fn shape(own: &RecurrenceSpec, width: usize) -> KernelConstants {
    let mixer = match own.mixer {
        RecurrentMixer::Delta { .. } => 0,
        RecurrentMixer::Mamba2 => 1,
        RecurrentMixer::ShortConvolution => 2,
    };
    KernelConstants::default()
        .uint("MIXER", mixer)
        .uint("CHANNELS", own.channels)
        .uint("N_HEADS", own.n_heads)
        .uint("K_DIM", own.k_dim.max(1))
        .uint("V_DIM", own.v_dim.max(1))
        .uint("INNER", own.inner())
        .uint("VALUES", own.values().start)
        .uint("WIDTH", width)
        .uint("LOG_WORDS", log_words(own.layout()))
}

/// Workgroups of 64 threads.
fn by_64(n: usize) -> Extent {
    Extent::Fixed(n.div_ceil(64))
}

fn put_in_log(plan: &mut Plan, vectors: &LayerVectors, own: &RecurrenceSpec, constants: &KernelConstants) {
    let bindings = vec![
        plan.params(bytemuck::cast_slice(&vectors.state_heads)),
        BufferRef::Vectors,
        BufferRef::Scratch(PassBuffer::Products),
        BufferRef::Scratch(PassBuffer::Logged),
        BufferRef::Log(own.state),
    ];
    let groups = [by_64(own.channels / 2 + own.n_heads), Extent::Rows(1), Extent::Fixed(1)];
    plan.push(&LOG, constants.clone(), bindings, groups);
}

fn keep(plan: &mut Plan, own: &RecurrenceSpec, of_state: KernelConstants) {
    let n_inputs = own.taps - 1;
    let bindings = vec![
        BufferRef::Scratch(PassBuffer::Kept),
        BufferRef::Scratch(PassBuffer::LogPlaces),
        BufferRef::Log(own.state),
        BufferRef::Sealed(own.state),
    ];
    let groups = [by_64(n_inputs * own.channels / 2), Extent::Kept, Extent::Fixed(1)];
    plan.push(&KEEP, of_state.uint("N_INPUTS", n_inputs), bindings, groups);
}
