//! The steps of recurrent layers.

use super::kernels::{CONVOLVE, FINISH, KEEP, KernelConstants, LOG, WALK};
use super::states::log_words;
use super::steps::{BufferRef, Extent, PassBuffer, Plan, Planner};
use super::weights::GpuMatrix;
use crate::kv::format::StateFormat;
use crate::model::family::RecurrentMixer;
use crate::model::spec::RecurrenceSpec;
use crate::model::weights::RecurrenceWeights;
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
        let RecurrenceSpec { mixer, channels, n_heads, n_key_heads, k_dim, v_dim, .. } = *own;
        let width = self.side_by_side(plan, weights.input.iter(), vectors.norms[0]);
        let scratch = BufferRef::Scratch;
        let constants = KernelConstants::default()
            .uint(
                "MIXER",
                match mixer {
                    RecurrentMixer::Delta { .. } => 0,
                    RecurrentMixer::Mamba2 => 1,
                    RecurrentMixer::ShortConvolution => 2,
                },
            )
            .uint("CHANNELS", channels)
            .uint("N_HEADS", n_heads)
            .uint("K_DIM", k_dim.max(1))
            .uint("V_DIM", v_dim.max(1))
            .uint("INNER", own.inner())
            .uint("VALUES", own.values().start)
            .uint("WIDTH", width)
            .uint("LOG_WORDS", log_words(own.layout()));
        let format = &StateFormat::new(self.layout).layers[own.state];
        let word = |byte: usize| (byte - format.inputs.start) / 4;
        let of_state = constants
            .clone()
            .uint("STATE_WORDS", word(format.scales.end))
            .uint("ELEMENTS", word(format.elements.start))
            .uint("SCALES", word(format.scales.start));
        let words = |n: usize| Extent::Fixed(n.div_ceil(64));
        let is_delta = matches!(mixer, RecurrentMixer::Delta { .. });

        let bindings = vec![
            plan.params(bytemuck::cast_slice(&vectors.state_heads)),
            BufferRef::Vectors,
            scratch(PassBuffer::Products),
            scratch(PassBuffer::Logged),
            BufferRef::Log(own.state),
        ];
        let groups = [words(channels / 2 + n_heads), Extent::Rows(1), Extent::Fixed(1)];
        plan.push(&LOG, constants.clone(), bindings, groups);

        let n_normed = if is_delta { 2 * n_key_heads } else { 0 };
        let bindings = vec![
            plan.params(bytemuck::cast_slice(&vectors.convolution)),
            BufferRef::Vectors,
            scratch(PassBuffer::Walked),
            scratch(PassBuffer::LogPlaces),
            BufferRef::Log(own.state),
            scratch(PassBuffer::Convolved),
        ];
        let convolve = constants
            .clone()
            .uint("THREADS", 64)
            .uint("TAPS", own.taps)
            .uint("N_QUERIES", n_key_heads)
            .uint("N_NORMED", n_normed)
            .flag("BIASED", weights.convolution_bias.is_some())
            .float("EPS", self.spec.norm_eps);
        let rest = (own.mixed_width() - n_normed * k_dim).div_ceil(64);
        let groups = [Extent::Fixed(n_normed + rest), Extent::Walked, Extent::Fixed(1)];
        plan.push(&CONVOLVE, convolve, bindings, groups);

        if n_heads > 0 {
            let (queries, keys) =
                if is_delta { (0, own.key_width()) } else { (own.inner() + own.key_width(), own.inner()) };
            let walk = of_state
                .clone()
                .uint("N_KEY_HEADS", n_key_heads)
                .flag("GROUPED", mixer != RecurrentMixer::Delta { grouped: false })
                .uint("ROWS", k_dim.div_ceil(SLICES))
                .uint("QUERIES", queries)
                .uint("KEYS", keys)
                .uint(
                    "FORMAT",
                    match self.layout.sealed {
                        Sealed::F32 => 0,
                        Sealed::F16 => 1,
                        Sealed::Q8 => 2,
                    },
                );
            let bindings = vec![
                scratch(PassBuffer::Sequences),
                scratch(PassBuffer::Seals),
                scratch(PassBuffer::Convolved),
                BufferRef::Matrices(own.state),
                BufferRef::Sealed(own.state),
                scratch(PassBuffer::Read),
            ];
            let tiles = Extent::Fixed(own.inner() / LANES);
            plan.push(&WALK, walk, bindings, [tiles, Extent::Sequences, Extent::Fixed(1)]);
        }

        let n_inputs = own.taps - 1;
        let bindings = vec![
            scratch(PassBuffer::Kept),
            scratch(PassBuffer::LogPlaces),
            BufferRef::Log(own.state),
            BufferRef::Sealed(own.state),
        ];
        let groups = [words(n_inputs * channels / 2), Extent::Kept, Extent::Fixed(1)];
        plan.push(&KEEP, of_state.uint("N_INPUTS", n_inputs), bindings, groups);

        let heads = weights.heads.as_ref();
        let (n_groups, group) = match mixer {
            RecurrentMixer::Delta { .. } => (n_heads, v_dim),
            RecurrentMixer::Mamba2 => (n_key_heads, own.inner() / n_key_heads),
            RecurrentMixer::ShortConvolution => (1, channels),
        };
        let outer = if mixer == RecurrentMixer::Mamba2 { 0 } else { channels };
        let finish = constants
            .uint("THREADS", 256)
            .uint("GROUP", group)
            .uint("OUTER", outer)
            .uint("OUT_WIDTH", own.given())
            .flag("NORMED", heads.is_some_and(|heads| heads.norm.is_some()))
            .flag("SKIPS", heads.is_some_and(|heads| heads.skip.is_some()))
            .float("EPS", self.spec.norm_eps);
        let bindings = vec![
            plan.params(bytemuck::cast_slice(&[vectors.state_norm, vectors.state_heads[2]])),
            BufferRef::Vectors,
            scratch(PassBuffer::Logged),
            scratch(PassBuffer::Products),
            scratch(PassBuffer::Convolved),
            scratch(PassBuffer::Read),
            scratch(PassBuffer::Recurred),
        ];
        plan.push(&FINISH, finish, bindings, [Extent::Fixed(n_groups), Extent::Rows(1), Extent::Fixed(1)]);
    }
}
