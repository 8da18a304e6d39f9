//! The steps of a pass: which kernel, with which constants, on which buffers, by how many workgroups. Pure
//! data, made once for a model, a layout of its cache and a [`PassShape`](super::steps::PassShape); the
//! extents within one pass come from the figures of that pass.

use super::kernels::{ATTEND, CANDIDATES, COMBINE, HEADS, KernelConstants, SEAL};
use super::products::{Products, RowsOf};
use super::steps::{BufferRef, Extent, PassBuffer, Plan, Planner};
use super::weights::GpuMatrix;
use crate::kv::format::{BlockFormat, SideFormat};
use crate::kv::layout::{LayerLayout, TensorLayout};
use crate::model::spec::RopeLayout;
use crate::model::weights::{FeedForward, Heads, Layer};
use greenroom_kernels::quant::{EXACT, OUTERMOST};
use std::ops::Range;

impl Planner<'_> {
    /// The steps of a pass.
    pub(super) fn plan(&self) -> Plan {
        let mut plan = Plan::default();
        for (l, weights) in self.weights.layers.iter().enumerate() {
            let first = plan.steps.len();
            self.layer(&mut plan, l, weights);
            plan.steps[first..].iter_mut().for_each(|step| step.layer = Some(l));
        }
        if self.shape.wanted > 0 {
            let d = self.spec.d_model;
            let output = &self.weights.output;
            let products = Products::plain(
                vec![(output, 0)],
                (PassBuffer::Stream, d),
                (PassBuffer::Logits, output.n_out),
            );
            let norm = Some(self.output_norm);
            self.products(&mut plan, Products { norm, rows_of: RowsOf::Wanted, ..products });
            if self.shape.best {
                let constants = KernelConstants::default()
                    .uint("N_VOCAB", self.weights.n_vocab)
                    .uint("MOST", CANDIDATES_OF_ROW);
                let scratch = [PassBuffer::Logits, PassBuffer::Temperatures, PassBuffer::Candidates];
                let groups = [Extent::Fixed(1), Extent::Wanted(1), Extent::Fixed(1)];
                plan.push(&CANDIDATES, constants, scratch.map(BufferRef::Scratch).to_vec(), groups);
            }
        }
        plan
    }

    fn layer(&self, plan: &mut Plan, l: usize, weights: &Layer<GpuMatrix>) {
        let (spec, vectors, d) = (self.spec, &self.vectors[l], self.spec.d_model);
        let mut column = 0;
        let input = weights.attention.input.iter().map(|matrix| {
            let first = column;
            column += matrix.n_out;
            (matrix, first)
        });
        let input: Vec<(&GpuMatrix, usize)> = input.collect();
        let width = column;
        let products = Products::plain(input, (PassBuffer::Stream, d), (PassBuffer::Products, width));
        self.products(plan, Products { norm: Some(vectors.attn_norm), ..products });
        let mut contexts = (PassBuffer::Contexts, spec.n_heads * spec.v_dim);
        if let Heads::Latent { spec: latent, k_b, .. } = &weights.attention.heads {
            let (x, y) = ((PassBuffer::Products, width), (PassBuffer::Absorbed, spec.n_heads * latent.rank));
            self.by_head(plan, k_b, x, y, latent.nope + latent.rope);
        }
        self.heads(plan, l, width, weights);
        let block = self.block(l);
        self.seal(plan, l, &block);
        self.attend(plan, l, &block);
        self.combine(plan, l, weights.attention.sinks.is_some());
        if let Heads::Latent { spec: latent, v_b, .. } = &weights.attention.heads {
            let y = (PassBuffer::Expanded, spec.n_heads * latent.value);
            self.by_head(plan, v_b, contexts, y, spec.v_dim);
            contexts = y;
        }
        self.add(plan, &weights.attention.output, contexts, vectors.post_norms[0]);
        match &weights.feed_forward {
            FeedForward::Dense(mlp) => {
                self.mlp_hidden(plan, mlp, PassBuffer::Hidden, vectors);
                self.add(plan, &mlp.down, (PassBuffer::Hidden, mlp.gate.n_out), vectors.post_norms[1]);
            }
            FeedForward::Experts { router, experts, shared } => {
                self.experts(plan, router, &experts[0], shared.as_ref(), vectors);
            }
        }
    }

    fn heads(&self, plan: &mut Plan, l: usize, width: usize, weights: &Layer<GpuMatrix>) {
        let (spec, layout, vectors) = (self.spec, self.layout.layers[l], &self.vectors[l]);
        let n_rot = |rope: usize| spec.ropes[rope].table(0).len();
        let rope = spec.layers[l].rope;
        let latent = spec.latent;
        let [k_scales, q_scales, _] = vectors.shaping.unwrap_or_default();
        let is_normed = matches!(weights.attention.heads, Heads::Plain { norms: Some(_) });
        let constants = KernelConstants::default()
            .uint("N_HEADS", spec.n_heads)
            .uint("N_KV_HEADS", spec.n_kv_heads)
            .uint("K_DIM", spec.k_dim)
            .uint("V_DIM", spec.v_dim)
            .uint("N_ROT", n_rot(rope))
            .uint("ROPE_FIRST", latent.map_or(0, |latent| latent.rank))
            .flag("HALVES", spec.family.pairs == RopeLayout::NeoX)
            .flag("NORMED", is_normed)
            .flag("SHAPED", layout.k.shaped() && vectors.shaping.is_some())
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
            rope as u32,
            (layout.row_bytes() / 4) as u32,
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
            BufferRef::Rows(l),
        ];
        let n_stored = if layout.shared { 1 } else { 2 };
        let heads = spec.n_heads + n_stored * spec.n_kv_heads;
        plan.push(&HEADS, constants, bindings, [Extent::Fixed(heads), Extent::Rows(1), Extent::Fixed(1)]);
    }

    /// The layout of a layer's share of a block.
    fn block(&self, l: usize) -> KernelConstants {
        let layout = self.layout.layers[l];
        let format = BlockFormat::new(self.layout, self.layout.part_of(l));
        let of = format.layers.iter().find(|layer| layer.layer == l);
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

    fn seal(&self, plan: &mut Plan, l: usize, block: &KernelConstants) {
        let layout = self.layout.layers[l];
        let shaping = self.vectors[l].shaping.filter(|_| layout.k.shaped());
        let constants = block
            .clone()
            .flag("SHAPED", shaping.is_some())
            .uint("ERRORS", if shaping.is_some() { layout.k.dim } else { 1 })
            .float("OUTERMOST_LEVEL", OUTERMOST);
        let mut params = self.layer_params(l).to_vec();
        params.push(shaping.map_or(0, |[.., feedback]| feedback));
        let bindings = vec![
            BufferRef::Scratch(PassBuffer::Pass),
            plan.params(bytemuck::cast_slice(&params)),
            BufferRef::Scratch(PassBuffer::Sealed),
            BufferRef::Vectors,
            BufferRef::Rows(l),
            BufferRef::Blocks(l),
            BufferRef::Exact(l),
        ];
        let sides = if layout.shared { 1 } else { 2 };
        let groups = [Extent::Sealed, Extent::Fixed(layout.k.n_heads), Extent::Fixed(sides)];
        plan.push(&SEAL, constants, bindings, groups);
    }

    /// Part of a layer, and words of its blocks, exact rows and open rows.
    fn layer_params(&self, l: usize) -> [u32; 4] {
        let layout = self.layout.layers[l];
        let part = self.layout.part_of(l) as u32;
        let [block, exact] = layer_bytes(layout);
        [part, (block / 4) as u32, (exact / 4) as u32, (layout.row_bytes() / 4) as u32]
    }

    fn attend(&self, plan: &mut Plan, l: usize, block: &KernelConstants) {
        let (spec, layout) = (self.spec, self.layout.layers[l]);
        let group = spec.n_heads / spec.n_kv_heads;
        let (tile_rows, tile_heads) = self.tile();
        // A power of two, for a tree joins them.
        let slices = 1 << (256 / spec.v_dim).clamp(1, 8).ilog2();
        let constants = block
            .clone()
            .uint("N_HEADS", spec.n_heads)
            .uint("GROUP", group)
            .uint("TILE_ROWS", tile_rows)
            .uint("TILE_HEADS", tile_heads)
            .uint("Q", tile_rows * tile_heads)
            .uint("SLICES", slices)
            .float("SCALE", spec.score_scale);
        let bindings = vec![
            BufferRef::Scratch(PassBuffer::Pass),
            plan.params(bytemuck::cast_slice(&self.layer_params(l))),
            BufferRef::Scratch(PassBuffer::Tiles),
            BufferRef::Scratch(PassBuffer::Blocks),
            BufferRef::Scratch(PassBuffer::Queries),
            BufferRef::Rows(l),
            BufferRef::Blocks(l),
            BufferRef::Exact(l),
            BufferRef::Scratch(PassBuffer::Partials),
        ];
        let heads = layout.k.n_heads * group.div_ceil(tile_heads);
        plan.push(&ATTEND, constants, bindings, [Extent::Tiles, Extent::Fixed(heads), Extent::Pieces]);
    }

    /// Rows of a block and heads of a group that attend together.
    pub(super) fn tile(&self) -> (usize, usize) {
        let heads = (self.spec.n_heads / self.spec.n_kv_heads).min(MAX_TILE_QUERIES);
        (if self.shape.lone { 1 } else { MAX_TILE_QUERIES / heads }, heads)
    }

    fn combine(&self, plan: &mut Plan, l: usize, sinks: bool) {
        let (spec, layout) = (self.spec, self.layout.layers[l]);
        let constants = KernelConstants::default()
            .uint("N_HEADS", spec.n_heads)
            .uint("V_DIM", spec.v_dim)
            .uint("WINDOW", layout.window.unwrap_or(0))
            .flag("ROTATED_V", layout.v.rotated)
            .flag("SINKS", sinks);
        let bindings = vec![
            BufferRef::Scratch(PassBuffer::Pass),
            plan.params(bytemuck::bytes_of(&self.vectors[l].sinks)),
            BufferRef::Vectors,
            BufferRef::Scratch(PassBuffer::Positions),
            BufferRef::Scratch(PassBuffer::Partials),
            BufferRef::Scratch(PassBuffer::Contexts),
        ];
        plan.push(
            &COMBINE,
            constants,
            bindings,
            [Extent::Fixed(spec.n_heads), Extent::Rows(1), Extent::Fixed(1)],
        );
    }
}

/// Maximum number of tokens that are sorted out of a row.
pub(super) const CANDIDATES_OF_ROW: usize = 1024;
/// Words that tell of them.
pub(super) const CANDIDATE_WORDS: usize = 4 + 2 * CANDIDATES_OF_ROW;
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
