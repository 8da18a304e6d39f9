//! The steps of a pass: which kernel, with which constants, on which buffers, by how many workgroups. Pure
//! data, made once for a model, a layout of its cache and a [`PassShape`](super::steps::PassShape); the
//! extents within one pass come from the figures of that pass.

use super::kernels::{ATTEND, BINS, CANDIDATES, COMBINE, HEADS, INPUTS, KernelConstants, SEAL, SURVEY};
use super::product::{Epilogue, Products, RowsOf};
use super::steps::{BufferRef, Coding, Extent, LayerVectors, PassBuffer, Plan, Planner};
use super::weights::GpuMatrix;
use crate::device::Best;
use crate::kv::format::{BlockFormat, SideFormat};
use crate::kv::layout::{LayerLayout, TensorLayout};
use crate::model::family::RopeLayout;
use crate::model::rope::RopeSpec;
use crate::model::spec::AttentionSpec;
use crate::model::weights::{AttentionWeights, FeedForward, Heads, Layer, LayerInput};
use greenroom_kernels::quant::{EXACT, OUTERMOST};
use std::ops::Range;

impl Planner<'_> {
    /// The steps of a pass.
    pub(super) fn plan(&self) -> Plan {
        let mut plan = Plan::default();
        self.inputs(&mut plan);
        for (l, weights) in self.weights.layers.iter().enumerate() {
            let first = plan.steps.len();
            self.layer(&mut plan, l, weights);
            plan.steps[first..].iter_mut().for_each(|step| step.layer = Some(l));
        }
        if self.shape.wanted > 0 {
            self.center(&mut plan);
            let output = &self.weights.output;
            let products =
                Products::plain(vec![(output, 0)], self.rows(), (PassBuffer::Logits, output.n_out));
            let norm = Some(self.output_norm);
            let (factor, cap) = (self.spec.logit_scale, self.spec.logit_cap);
            self.products(&mut plan, Products { norm, rows_of: RowsOf::Wanted, factor, cap, ..products });
            if self.shape.best {
                let constants = KernelConstants::default()
                    .uint("N_VOCAB", self.weights.n_vocab)
                    .uint("MOST", CANDIDATES_OF_ROW);
                let scratch =
                    |buffers: &[PassBuffer]| buffers.iter().copied().map(BufferRef::Scratch).collect();
                let pieces = Extent::Fixed(self.weights.n_vocab.div_ceil(LOGITS_OF_PIECE));
                let groups = [pieces, Extent::Wanted(1), Extent::Fixed(1)];
                use PassBuffer::{Bins, Candidates, Logits, Surveys, Temperatures};
                plan.push(&SURVEY, constants.clone(), scratch(&[Logits, Surveys, Bins, Candidates]), groups);
                plan.push(&BINS, constants.clone(), scratch(&[Logits, Temperatures, Surveys, Bins]), groups);
                let last = scratch(&[Logits, Temperatures, Surveys, Bins, Candidates]);
                plan.push(&CANDIDATES, constants, last, groups);
            }
        }
        plan.finish();
        plan
    }

    /// Each layer's own input.
    fn inputs(&self, plan: &mut Plan) {
        let Some(per_layer) = &self.weights.per_layer else { return };
        let (spec, matrix) = (self.spec, &per_layer.projection);
        let stream = (PassBuffer::Stream, spec.d_model);
        let products = Products::plain(vec![(matrix, 0)], stream, (PassBuffer::Projected, matrix.n_out));
        let factor = (1.0 / (spec.d_model as f64).sqrt()) as f32;
        self.products(plan, Products { factor, ..products });
        let constants = KernelConstants::default()
            .uint("THREADS", 64)
            .uint("WIDTH", spec.d_per_layer)
            .uint("N_LAYERS", spec.layers.len())
            .float("EPS", spec.norm_eps);
        let bindings = vec![
            plan.params(bytemuck::bytes_of(&self.projected_norm)),
            BufferRef::Vectors,
            BufferRef::Scratch(PassBuffer::Projected),
            BufferRef::Scratch(PassBuffer::Inputs),
        ];
        let groups = [Extent::Fixed(spec.layers.len()), Extent::Rows(1), Extent::Fixed(1)];
        plan.push(&INPUTS, constants, bindings, groups);
    }

    /// Mixes a layer's own input into the stream: in its place the gated one is computed.
    fn with_input(&self, plan: &mut Plan, l: usize, input: &LayerInput<GpuMatrix>, scale: f32) {
        let (spec, width) = (self.spec, self.spec.d_per_layer);
        let inputs = (PassBuffer::Inputs, spec.layers.len() * width);
        let gate =
            Products::plain(vec![(&input.gate, l * width)], (PassBuffer::Stream, spec.d_model), inputs);
        self.products(plan, Products { epilogue: Epilogue::Gate, ..gate });
        let out = (PassBuffer::Out, spec.d_model);
        let products = Products::plain(vec![(&input.projection, 0)], inputs, out);
        self.products(plan, Products { x_first: l * width, ..products });
        self.norm_onto(plan, PassBuffer::Out, PassBuffer::Stream, self.vectors[l].input_norm, scale);
    }

    fn layer(&self, plan: &mut Plan, l: usize, weights: &Layer<GpuMatrix>) {
        let (vectors, spec) = (&self.vectors[l], &self.spec.layers[l]);
        self.center(plan);
        // Mixers side by side read the stream before either adds to it.
        let recurrence = spec.recurrence.as_ref().zip(weights.recurrence.as_ref());
        if let Some((own, weights)) = recurrence {
            self.recurrence(plan, l, own, weights);
        }
        if let (Some(own), Some(weights)) = (&spec.attention, &weights.attention) {
            let contexts = self.attention(plan, l, own, weights);
            self.add(plan, &weights.output, contexts, vectors.post_norms[0], 1.0);
        }
        if let Some((own, weights)) = recurrence {
            let given = (PassBuffer::Recurred, own.given());
            self.add(plan, &weights.output, given, vectors.post_norms[0], 1.0);
        }
        // The last step of a layer scales the stream.
        let scale = if weights.input.is_some() { 1.0 } else { weights.scale };
        match &weights.feed_forward {
            Some(FeedForward::Dense(mlp)) => {
                self.mlp_hidden(plan, mlp, PassBuffer::Hidden, vectors);
                let hidden = (PassBuffer::Hidden, mlp.up.n_out);
                self.add(plan, &mlp.down, hidden, vectors.post_norms[1], scale);
            }
            Some(FeedForward::Experts(mixture)) => self.experts(plan, mixture, vectors),
            Some(FeedForward::Both(both)) => self.both(plan, both, vectors, scale),
            None => {}
        }
        if let Some(input) = &weights.input {
            self.with_input(plan, l, input, weights.scale);
        }
    }

    /// From the stream to contexts: where these are, and the width of a row.
    fn attention(
        &self,
        plan: &mut Plan,
        l: usize,
        own: &AttentionSpec,
        weights: &AttentionWeights<GpuMatrix>,
    ) -> (PassBuffer, usize) {
        let width = self.input(plan, weights, &self.vectors[l]);
        let contexts = (PassBuffer::Contexts, own.n_heads * own.v_dim);
        if let Heads::Latent { spec: latent, k_b, .. } = &weights.heads {
            let (x, y) = ((PassBuffer::Products, width), (PassBuffer::Absorbed, own.n_heads * latent.rank));
            self.by_head(plan, k_b, x, y, latent.nope + latent.rope);
        }
        self.heads(plan, l, own, width, weights);
        let block = self.block(own);
        if own.writes {
            self.seal(plan, l, own, &block);
        }
        self.attend(plan, own, &block);
        self.combine(plan, l, own, width, weights);
        if let Heads::Latent { spec: latent, v_b, .. } = &weights.heads {
            let y = (PassBuffer::Expanded, own.n_heads * latent.value);
            self.by_head(plan, v_b, contexts, y, own.v_dim);
            return y;
        }
        contexts
    }

    /// Products of the stream with matrices, in `PassBuffer::Products`; width of their rows.
    pub(super) fn side_by_side<'a>(
        &self,
        plan: &mut Plan,
        matrices: impl IntoIterator<Item = &'a GpuMatrix>,
        norm: Option<u32>,
    ) -> usize {
        let mut width = 0;
        let matrices = matrices.into_iter().map(|matrix| {
            width += matrix.n_out;
            (matrix, width - matrix.n_out)
        });
        let matrices: Vec<(&GpuMatrix, usize)> = matrices.collect();
        let products = Products::plain(matrices, self.rows(), (PassBuffer::Products, width));
        self.products(plan, Products { norm, ..products });
        width
    }

    /// The products that queries, keys and values come from, and gates of contexts; width of their rows.
    fn input(&self, plan: &mut Plan, weights: &AttentionWeights<GpuMatrix>, vectors: &LayerVectors) -> usize {
        let stream = (PassBuffer::Stream, self.spec.d_model);
        let input = &weights.input;
        let Heads::Latent { queries: Some((_, matrix)), .. } = &weights.heads else {
            return self.side_by_side(plan, input.iter().chain(&weights.gate), vectors.norms[0]);
        };
        let width = matrix.n_out + input[1].n_out;
        let latent = (PassBuffer::Hidden, input[0].n_out);
        let of_stream =
            |matrix, y| Products { norm: vectors.norms[0], ..Products::plain(vec![matrix], stream, y) };
        self.products(plan, of_stream((&input[0], 0), latent));
        self.products(plan, of_stream((&input[1], matrix.n_out), (PassBuffer::Products, width)));
        let products = Products::plain(vec![(matrix, 0)], latent, (PassBuffer::Products, width));
        self.products(plan, Products { norm: Some(vectors.query_norm), ..products });
        width
    }

    fn heads(
        &self,
        plan: &mut Plan,
        l: usize,
        own: &AttentionSpec,
        width: usize,
        weights: &AttentionWeights<GpuMatrix>,
    ) {
        let (spec, vectors) = (self.spec, &self.vectors[l]);
        let layout = self.layout.layers[own.cache];
        let turned_before = |rope: usize| spec.ropes[..rope].iter().map(RopeSpec::n_rot).sum::<usize>();
        let (n_rot, latent) = (own.rope.map_or(0, |rope| spec.ropes[rope].n_rot()), own.latent);
        let norms = spec.family.head_norms;
        let [k_scales, q_scales, _] = vectors.shaping.unwrap_or_default();
        let is_normed = matches!(weights.heads, Heads::Plain { norms: Some(_), .. });
        let normed_values = matches!(weights.heads, Heads::Plain { value_norm: Some(_), .. });
        let constants = KernelConstants::default()
            .uint("N_HEADS", own.n_heads)
            .uint("N_KV_HEADS", own.n_kv_heads)
            .uint("K_DIM", own.k_dim)
            .uint("V_DIM", own.v_dim)
            .uint("N_ROT", n_rot)
            .uint("THREADS", 64)
            .uint("ROPE_FIRST", latent.map_or(0, |latent| latent.rank))
            .flag("HALVES", spec.family.pairs == RopeLayout::NeoX)
            .flag("NORMED", is_normed)
            .flag("WHOLE_ROW", norms.is_some_and(|norms| norms.whole_row))
            .flag("NORM_LAST", norms.is_some_and(|norms| norms.after_rope))
            .flag("TEMPERED", own.temperature.is_some())
            .flag("SHAPED", layout.k.shaped() && vectors.shaping.is_some())
            .flag("VALUES_OF_KEYS", latent.is_none() && weights.input.len() == 2)
            .flag("NORMED_V", normed_values)
            .flag("ROTATED_K", layout.k.rotated)
            .flag("ROTATED_V", layout.v.rotated)
            .flag("LATENT", latent.is_some())
            .uint("RANK", latent.map_or(0, |latent| latent.rank))
            .uint("NOPE", latent.map_or(0, |latent| latent.nope))
            .uint("WIDTH", width)
            .float("EPS", spec.norm_eps);
        let params = [
            vectors.head_norms[0],
            vectors.head_norms[1],
            k_scales,
            q_scales,
            own.rope.map_or(0, turned_before) as u32,
            (layout.row_bytes() / 4) as u32,
            turned_before(spec.ropes.len()) as u32,
            vectors.value_norm,
        ];
        let scratch = |scratch| BufferRef::Scratch(scratch);
        let bindings = vec![
            scratch(PassBuffer::Pass),
            plan.params(bytemuck::cast_slice(&params)),
            BufferRef::Vectors,
            scratch(PassBuffer::Products),
            scratch(PassBuffer::Absorbed),
            scratch(PassBuffer::Ropes),
            scratch(PassBuffer::Places),
            scratch(PassBuffer::Queries),
            BufferRef::Rows(own.cache),
        ];
        let n_stored = if !own.writes {
            0
        } else if layout.shared {
            1
        } else {
            2
        };
        let heads = own.n_heads + n_stored * own.n_kv_heads;
        plan.push(&HEADS, constants, bindings, [Extent::Fixed(heads), Extent::Rows(1), Extent::Fixed(1)]);
    }

    /// The layout of a layer's share of a block.
    fn block(&self, own: &AttentionSpec) -> KernelConstants {
        let cache = own.cache;
        let layout = self.layout.layers[cache];
        let format = BlockFormat::new(self.layout, self.layout.part_of(cache));
        let of = format.layers.iter().find(|layer| layer.layer == cache);
        let base = of.map_or(0, |of| of.k.codes.start);
        let means = of.map_or(0, |of| of.k.means.start.saturating_sub(base) / 4);
        KernelConstants::default()
            .side("K", base, of.map(|of| &of.k), layout.k)
            .side("V", base, of.and_then(|of| of.v.as_ref()), layout.v)
            .uint("N_KV_HEADS", layout.k.n_heads)
            .uint("K_MEANS", means)
            .flag("CENTERED", layout.k.centered)
            .flag("SHARED", layout.shared)
            .uint("WINDOW", layout.window.unwrap_or(0))
            .levels()
    }

    fn seal(&self, plan: &mut Plan, l: usize, own: &AttentionSpec, block: &KernelConstants) {
        let cache = own.cache;
        let layout = self.layout.layers[cache];
        let shaping = self.vectors[l].shaping.filter(|_| layout.k.shaped());
        let constants = block
            .clone()
            .flag("SHAPED", shaping.is_some())
            .uint("ERRORS", if shaping.is_some() { layout.k.dim } else { 1 })
            .float("OUTERMOST_LEVEL", OUTERMOST);
        let mut params = self.layer_params(own).to_vec();
        params.push(shaping.map_or(0, |[.., feedback]| feedback));
        let bindings = vec![
            BufferRef::Scratch(PassBuffer::Pass),
            plan.params(bytemuck::cast_slice(&params)),
            BufferRef::Scratch(PassBuffer::Sealed),
            BufferRef::Vectors,
            BufferRef::Rows(cache),
            BufferRef::Blocks(cache),
            BufferRef::Exact(cache),
        ];
        let sides = if layout.shared { 1 } else { 2 };
        let groups = [Extent::Sealed, Extent::Fixed(layout.k.n_heads), Extent::Fixed(sides)];
        plan.push(&SEAL, constants, bindings, groups);
    }

    /// Part of a layer, and words of its blocks, exact rows and open rows.
    fn layer_params(&self, own: &AttentionSpec) -> [u32; 4] {
        let cache = own.cache;
        let layout = self.layout.layers[cache];
        let part = self.layout.part_of(cache) as u32;
        let [block, exact] = layer_bytes(layout);
        [part, (block / 4) as u32, (exact / 4) as u32, (layout.row_bytes() / 4) as u32]
    }

    fn attend(&self, plan: &mut Plan, own: &AttentionSpec, block: &KernelConstants) {
        let layout = self.layout.layers[own.cache];
        let group = own.group();
        let tile_rows = self.tile_rows();
        let tile_heads = group.min(MAX_TILE_QUERIES / tile_rows);
        // A power of two, which divides a block's tokens; each has a thread for eight columns.
        let slices = 1 << (256 / (own.v_dim / 8)).clamp(1, 32).ilog2();
        let constants = block
            .clone()
            .uint("N_HEADS", own.n_heads)
            .uint("GROUP", group)
            .uint("TILE_ROWS", tile_rows)
            .uint("TILE_HEADS", tile_heads)
            .uint("Q", tile_rows * tile_heads)
            .uint("SLICES", slices)
            .float("SCALE", own.score_scale)
            .float("CAP", own.soft_cap.unwrap_or(0.0));
        let bindings = vec![
            BufferRef::Scratch(PassBuffer::Pass),
            plan.params(bytemuck::cast_slice(&self.layer_params(own))),
            BufferRef::Scratch(PassBuffer::Tiles),
            BufferRef::Scratch(PassBuffer::Blocks),
            BufferRef::Scratch(PassBuffer::Queries),
            BufferRef::Rows(own.cache),
            BufferRef::Blocks(own.cache),
            BufferRef::Exact(own.cache),
            BufferRef::Scratch(PassBuffer::Partials),
        ];
        let heads = layout.k.n_heads * group.div_ceil(tile_heads);
        plan.push(&ATTEND, constants, bindings, [Extent::Tiles, Extent::Fixed(heads), Extent::Pieces]);
        let block_bytes = (layer_bytes(layout)[0] / layout.k.n_heads) as u64;
        plan.steps.last_mut().into_iter().for_each(|step| step.work.block_bytes = block_bytes);
    }

    /// Rows of a block that attend together, in every layer.
    pub(super) fn tile_rows(&self) -> usize {
        let attention = self.spec.layers.iter().filter_map(|layer| layer.attention.as_ref());
        let heads = attention.map(AttentionSpec::group).max().unwrap_or(1);
        if self.shape.lone { 1 } else { MAX_TILE_QUERIES / heads.min(MAX_TILE_QUERIES) }
    }

    fn combine(
        &self,
        plan: &mut Plan,
        l: usize,
        own: &AttentionSpec,
        width: usize,
        weights: &AttentionWeights<GpuMatrix>,
    ) {
        let layout = self.layout.layers[own.cache];
        let constants = KernelConstants::default()
            .uint("N_HEADS", own.n_heads)
            .uint("V_DIM", own.v_dim)
            .uint("WINDOW", layout.window.unwrap_or(0))
            .flag("ROTATED_V", layout.v.rotated)
            .flag("SINKS", weights.sinks.is_some())
            .flag("GATED", weights.gate.is_some())
            .uint("GATES", width - weights.gate.as_ref().map_or(0, |gate| gate.n_out))
            .uint("WIDTH", width);
        let params = plan.params(bytemuck::cast_slice(&[self.vectors[l].sinks, u32::MAX]));
        let bindings = vec![
            BufferRef::Scratch(PassBuffer::Pass),
            params,
            BufferRef::Vectors,
            BufferRef::Scratch(PassBuffer::Positions),
            BufferRef::Scratch(PassBuffer::Partials),
            BufferRef::Scratch(PassBuffer::Products),
            BufferRef::Scratch(PassBuffer::Contexts),
            BufferRef::Nothing,
        ];
        let groups = [Extent::Fixed(own.n_heads), Extent::Rows(1), Extent::Fixed(1)];
        plan.push(&COMBINE, constants, bindings, groups);
        let width = own.n_heads * own.v_dim;
        let norm_at = params.offset() + 4;
        plan.can_code(Coding { buffer: PassBuffer::Contexts, width, per_row: 1, norm_at });
    }
}

/// Maximum number of tokens that are sorted out of a row.
pub(super) const CANDIDATES_OF_ROW: usize = 1024;
/// Logits that a workgroup of these steps takes.
pub(super) const LOGITS_OF_PIECE: usize = 2048;

/// Words that tell of a row's likeliest tokens.
pub(super) fn candidate_words(n_vocab: usize) -> usize {
    4 + 2 * CANDIDATES_OF_ROW + 2 * n_vocab.div_ceil(LOGITS_OF_PIECE)
}

/// The likeliest tokens of a row, as the kernels tell of them.
pub(super) fn best_of(row: usize, found: &[u32]) -> Best {
    let [n, n_nan, top] = [found[0], found[1], found[2]];
    // One that is no number: the host looks at all of them.
    let n = if n_nan > 0 { 0 } else { n as usize };
    let (candidates, pieces) = found[4..].split_at(2 * CANDIDATES_OF_ROW);
    let candidates = candidates.chunks_exact(2).take(n);
    let candidates = candidates.map(|pair| (pair[0], f32::from_bits(pair[1]))).collect();
    let pieces = pieces.chunks_exact(2).map(|piece| [piece[0], piece[1]].map(f32::from_bits));
    let (rest, least) =
        pieces.fold((0.0, f32::MAX), |(rest, least), [own, own_least]| (rest + own, own_least.min(least)));
    Best { row, candidates, least, top: f32::from_bits(top), rest }
}

/// Maximum number of queries that attend together.
const MAX_TILE_QUERIES: usize = 8;

/// Bytes of a layer's share of a sealed block, and of its exact rows.
pub(super) fn layer_bytes(layout: LayerLayout) -> [usize; 2] {
    let exact = |side: TensorLayout| if side.exact { 2 * EXACT * side.row() } else { 0 };
    [layout.block_bytes(), exact(layout.k) + layout.stored_v().map_or(0, exact)]
}

impl KernelConstants {
    /// Keys or values in a block that begins at byte `base`; `view` is their layout where nothing is stored
    /// for them.
    fn side(self, name: &str, base: usize, of: Option<&SideFormat>, view: TensorLayout) -> Self {
        let bits = view.bits().unwrap_or(0);
        let place = |range: &Range<usize>| range.start.saturating_sub(base) / 4;
        let words = of.filter(|_| bits > 0).map_or(0, |of| of.words(bits));
        self.uint(&format!("{name}_DIM"), view.dim)
            .uint(&format!("{name}_BITS"), bits as usize)
            .uint(&format!("{name}_GROUPS"), view.n_groups())
            .uint(&format!("{name}_WORDS"), words)
            .uint(&format!("{name}_CODES"), of.map_or(0, |of| place(&of.codes)))
            .uint(&format!("{name}_SCALES"), of.map_or(0, |of| place(&of.scales)))
            .flag(&format!("{name}_EXACT"), of.is_some() && view.exact)
    }
}
