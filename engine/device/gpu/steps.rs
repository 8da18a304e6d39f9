//! Steps of a pass as data: buffers, extents, and the plan that they make.

use super::kernels::{Access, KernelConstants, KernelSource};
use super::weights::{GpuMatrix, UNIT};
use crate::kv::layout::KvLayout;
use crate::model::spec::DecoderSpec;
use crate::model::weights::Weights;
use std::collections::HashMap;

/// What is compiled into the kernels of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PassShape {
    /// Rows that share the reading of a matrix.
    pub(super) rows: usize,
    /// The same for rows whose logits are wanted; 0: there are none.
    pub(super) wanted: usize,
    /// True if no sequence has more than one row.
    pub(super) lone: bool,
    /// True if of wanted logits the likeliest tokens are enough.
    pub(super) best: bool,
    /// True if nothing but steps of their own codes rows: buffers may be changed between steps.
    pub(super) apart: bool,
}

impl PassShape {
    /// Passes of this many rows, of which so many have logits that are wanted.
    pub(super) fn new(rows: usize, wanted: usize, lone: bool, best: bool) -> Self {
        let wanted = if wanted == 0 { 0 } else { rows_of(wanted) };
        Self { rows: rows_of(rows), wanted, lone, best, apart: false }
    }
}

/// A pass to count or to time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg(any(test, feature = "fixtures"))]
pub enum GpuPass {
    /// Sequences read a token each.
    Decode {
        /// Number of them.
        sequences: usize,
        /// Tokens that each has read before.
        depth: usize,
    },
    /// A sequence reads tokens; the logits of the last are wanted.
    Prefill {
        /// Number of them.
        tokens: usize,
        /// Tokens that it has read before.
        depth: usize,
    },
}

#[cfg(any(test, feature = "fixtures"))]
impl GpuPass {
    pub(super) fn shape(self) -> PassShape {
        match self {
            Self::Decode { sequences, .. } => PassShape::new(sequences, sequences, true, true),
            Self::Prefill { tokens, .. } => PassShape::new(tokens, 1, tokens == 1, true),
        }
    }
}

/// Rows of a tile.
pub(super) const TILE_ROWS: usize = 64;

/// Rows of a workgroup for a given number in all: a power of two up to 16, else those of a tile.
fn rows_of(n: usize) -> usize {
    if n > 16 { TILE_ROWS } else { n.next_power_of_two() }
}

impl BufferRef {
    /// Where parameters begin among the plan's.
    pub(super) fn offset(self) -> usize {
        match self {
            Self::Params(first, _) => first,
            _ => 0,
        }
    }
}

/// A buffer, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum BufferRef {
    /// A slab of weights.
    Slab(usize),
    /// Norms, biases, sinks, scales, feedback.
    Vectors,
    /// Parameters of a step: bytes of the plan's.
    Params(usize, usize),
    /// Memory of a pass.
    Scratch(PassBuffer),
    /// The same in 8 bits, as `coded.wgsl` has it.
    Coded(PassBuffer),
    /// What is not used.
    Nothing,
    /// A layer's open rows, blocks, and exact rows.
    Rows(usize),
    Blocks(usize),
    Exact(usize),
    /// A recurrent layer's matrices, logged tokens, and sealed states.
    Matrices(usize),
    Log(usize),
    Sealed(usize),
}

/// Memory of a pass, and what is known of it from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum PassBuffer {
    /// Figures.
    Pass,
    /// The residual stream, `[rows, d_model]`, and its rows less their mean.
    Stream,
    Centered,
    /// Products with the matrices before attention.
    Products,
    /// Tokens of recurrent layers after the convolution, `[walked tokens, channels + 2 n_heads]`; what those of
    /// the pass read of matrices, `[rows, inner]`; and that normed and gated.
    Convolved,
    Read,
    Recurred,
    /// Queries brought to a latent.
    Absorbed,
    Queries,
    Partials,
    /// Contexts of all heads, `[rows, heads, v_dim]`.
    Contexts,
    /// The same after the matrices of a latent.
    Expanded,
    /// What is normed before it is added to the stream; what experts give beside that.
    Out,
    Mixed,
    /// Between the matrices of the feed-forward; before that, between those of a latent of queries.
    Hidden,
    /// The same for the shared expert, where it can't be joined to the others.
    Shared,
    /// Each layer's own input, `[rows, n_layers, d_per_layer]`, and what is projected for it.
    Inputs,
    Projected,
    /// Scores of experts, and of what is shared where that has one.
    Scores,
    /// The expert of each slot of each row, with a weight; the slots by expert; and what they gave.
    Sent,
    Sorted,
    Given,
    /// What experts read and give, where that is a latent, `[rows, d_latent]`.
    Latent,
    MixedLatent,
    Logits,
    /// Temperatures of rows that are sampled; of each row the largest logits by piece, numbers of logits by
    /// distance from the largest, and the likeliest tokens.
    Temperatures,
    Surveys,
    Bins,
    Candidates,
    /// Rotary tables, each `[rows, n_rot]`; then factors of queries by position, `[rows]`.
    Ropes,
    /// Slot and token of each row.
    Places,
    Positions,
    Tiles,
    /// Slots of the blocks of all sequences.
    Blocks,
    Sealed,
    /// Rows whose logits are wanted.
    Wanted,
    /// Of recurrent layers: each row's place in the log and number among the walked tokens; places of all
    /// sequences' tokens; the walked ones' entries among these; the sequences; their seals; which of these
    /// are kept.
    Logged,
    LogPlaces,
    Walked,
    Sequences,
    Seals,
    Kept,
}

/// Workgroups along one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    Fixed(usize),
    /// One for each group of this many rows of the pass.
    Rows(usize),
    /// One for each group of this many rows whose logits are wanted.
    Wanted(usize),
    /// This many for each row of the pass.
    Slots(usize),
    /// Tiles of rows that are sorted by expert, at most: slots of a row, experts and what is shared.
    ExpertTiles(usize, usize),
    Tiles,
    /// Pieces of what a query sees.
    Pieces,
    /// Blocks that are completed.
    Sealed,
    /// Tokens that recurrent layers walk through.
    Walked,
    Sequences,
    /// Sealed states that are kept.
    Kept,
}

/// One dispatch.
#[derive(Debug)]
pub(super) struct Dispatch {
    pub(super) source: &'static KernelSource,
    pub(super) constants: KernelConstants,
    pub(super) bindings: Vec<BufferRef>,
    pub(super) groups: [Extent; 3],
    /// Layer that it belongs to; none: the end.
    pub(super) layer: Option<usize>,
    pub(super) work: Work,
    /// What it can code of what it writes, and whether it does: its last binding takes it.
    pub(super) coding: Option<Coding>,
    pub(super) codes: bool,
}

impl Dispatch {
    /// Tells whether it writes to a buffer.
    pub(super) fn writes(&self, buffer: PassBuffer) -> bool {
        let mut bindings = self.bindings.iter().zip(self.source.bindings);
        bindings.any(|(place, access)| *place == BufferRef::Scratch(buffer) && *access == Access::Write)
    }
}

/// Rows that a step can code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Coding {
    pub(super) buffer: PassBuffer,
    /// Numbers of a row, and rows for each of the pass.
    pub(super) width: usize,
    pub(super) per_row: usize,
    /// Place among the plan's parameters of the norm that they are for.
    pub(super) norm_at: usize,
}

/// Rows in 8 bits, as a product needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CodedRows {
    pub(super) x: PassBuffer,
    /// First column, and distance of rows.
    pub(super) first: usize,
    pub(super) stride: usize,
    /// Heads of a row, their distance, and numbers that are coded of each: their units follow one another.
    pub(super) heads: (usize, usize),
    pub(super) width: usize,
    /// Rows for each of the pass.
    pub(super) per_row: usize,
    pub(super) norm: Option<u32>,
}

impl CodedRows {
    /// Bytes for a row of the pass.
    fn n_bytes(&self) -> usize {
        let units = self.heads.0 * self.width / UNIT;
        16 * (3 * units + units.div_ceil(2)) * self.per_row
    }
}

/// What a dispatch reads, as far as its planner knows.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(not(any(test, feature = "fixtures")), allow(dead_code))] // `outline.rs` reads it
pub(super) struct Work {
    /// Bytes of weights that a row reads in it.
    pub(super) weight_bytes: u64,
    /// Of each workgroup: bytes of weights and of rows that it reads, and barriers in its main loop.
    pub(super) group_weights: u64,
    pub(super) group_rows: u64,
    pub(super) group_barriers: u64,
    /// Multiplications of a workgroup.
    pub(super) group_multiplications: u64,
    /// Bytes of a sealed block that a workgroup reads of it.
    pub(super) block_bytes: u64,
}

/// All steps of a pass.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) steps: Vec<Dispatch>,
    pub(super) params: Vec<u8>,
    /// Bytes of coded rows for a row of the pass.
    pub(super) coded_bytes: HashMap<PassBuffer, usize>,
    /// While it is made: what is coded of buffers as they are, and the step that wrote each last.
    coded: HashMap<PassBuffer, CodedRows>,
    writers: HashMap<PassBuffer, usize>,
}

/// Places among the vectors of what belongs to a layer.
#[derive(Clone, Debug, Default)]
pub(super) struct LayerVectors {
    /// Norms before attention and feed-forward, and after them.
    pub(super) norms: [Option<u32>; 2],
    pub(super) post_norms: [Option<u32>; 2],
    pub(super) head_norms: [u32; 2],
    /// Norm of the latent of queries.
    pub(super) query_norm: u32,
    /// What is added to scores where experts are selected, and factors of their weights.
    pub(super) expert_bias: Option<u32>,
    pub(super) expert_scales: Option<u32>,
    /// Norm of values.
    pub(super) value_norm: u32,
    /// Norms of a dense feed-forward beside experts: of the router's rows, of the experts', and of what
    /// either gives.
    pub(super) both_norms: [u32; 4],
    /// Norm of what comes of the layer's own input.
    pub(super) input_norm: u32,
    pub(super) sinks: u32,
    /// Of its recurrence: weights and bias of the convolution; biases, slopes and factors of the heads; norm.
    pub(super) convolution: [u32; 2],
    pub(super) state_heads: [u32; 3],
    pub(super) state_norm: u32,
    /// Factors of keys and queries, and feedback; none before calibration.
    pub(super) shaping: Option<[u32; 3]>,
}

/// What plans are made from.
pub(super) struct Planner<'a> {
    pub(super) spec: &'a DecoderSpec,
    pub(super) weights: &'a Weights<GpuMatrix>,
    pub(super) vectors: &'a [LayerVectors],
    pub(super) output_norm: u32,
    /// Norm of what is projected for layers' own inputs.
    pub(super) projected_norm: u32,
    pub(super) layout: &'a KvLayout,
    pub(super) shape: PassShape,
    /// Whether four products of bytes are an instruction.
    pub(super) has_dot: bool,
}

/// Distance of parameters in their buffer.
const PARAMS: usize = 256;

impl Plan {
    pub(super) fn push(
        &mut self,
        source: &'static KernelSource,
        constants: KernelConstants,
        bindings: Vec<BufferRef>,
        groups: [Extent; 3],
    ) {
        debug_assert_eq!(bindings.len(), source.bindings.len(), "{}", source.name);
        for (place, access) in bindings.iter().zip(source.bindings) {
            if let (BufferRef::Scratch(buffer), Access::Write) = (place, access) {
                self.coded.remove(buffer);
                self.writers.insert(*buffer, self.steps.len());
            }
        }
        let (layer, work, coding, codes) = (None, Work::default(), None, false);
        self.steps.push(Dispatch { source, constants, bindings, groups, layer, work, coding, codes });
    }

    /// The last step can code what it writes.
    pub(super) fn can_code(&mut self, coding: Coding) {
        self.steps.last_mut().into_iter().for_each(|step| step.coding = Some(coding));
    }

    /// The step that wrote a buffer last.
    pub(super) fn writer(&mut self, buffer: PassBuffer) -> Option<&mut Dispatch> {
        let step = self.writers.get(&buffer)?;
        self.steps.get_mut(*step)
    }

    /// Tells whether a buffer was written after another.
    pub(super) fn is_after(&self, buffer: PassBuffer, other: PassBuffer) -> bool {
        self.writers.get(&buffer) > self.writers.get(&other)
    }

    /// Tells whether rows are coded already, as they are now.
    pub(super) fn has_coded(&self, rows: &CodedRows) -> bool {
        self.coded.get(&rows.x) == Some(rows)
    }

    pub(super) fn keep_coded(&mut self, rows: CodedRows) {
        let bytes = self.coded_bytes.entry(rows.x).or_default();
        *bytes = rows.n_bytes().max(*bytes);
        self.coded.insert(rows.x, rows);
    }

    /// Says in the constants of each step that could code whether it does.
    pub(super) fn finish(&mut self) {
        for step in self.steps.iter_mut().filter(|step| step.source.can_code) {
            step.constants = std::mem::take(&mut step.constants).flag("CODES", step.codes);
        }
    }

    /// Takes in a step's parameters.
    pub(super) fn params(&mut self, bytes: &[u8]) -> BufferRef {
        let first = self.params.len().next_multiple_of(PARAMS);
        self.params.resize(first, 0);
        self.params.extend(bytes);
        BufferRef::Params(first, bytes.len())
    }
}
