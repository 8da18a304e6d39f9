//! The steps of a pass: which kernel, with which constants, on which buffers, by how many workgroups. Pure data, made once for a model, a
//! layout of its cache and a [`Shape`] of passes; how far it reaches in one pass say the figures of that pass.

use super::kernels::{
    ATTEND, CANDIDATES, CHOOSE, COMBINE, Constants, HEADS, NORM, PRODUCT, PRODUCT_FLOATS, SEAL, Source,
};
use super::weights::{GpuMatrix, OUTS, Piece, Scheme};
use crate::kv::format::{BlockFormat, SideFormat};
use crate::kv::layout::{KvLayout, LayerLayout, TensorLayout};
use crate::kv::quant::{EXACT, OUTERMOST};
use crate::model::spec::{Activation, DecoderSpec, Gating, Pairs};
use crate::model::weights::{FeedForward, Heads, Layer, Mlp, Weights};
use std::ops::Range;

/// What is compiled into the kernels of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    /// Rows that share the reading of a matrix.
    pub(super) rows: usize,
    /// The same for rows whose logits are wanted; 0: there are none.
    pub(super) wanted: usize,
    /// True if no sequence has more than one row.
    pub(super) lone: bool,
    /// True if of wanted logits the likeliest tokens are enough.
    pub(super) best: bool,
}

/// Rows of a workgroup for so many in all: a power of two.
pub(super) fn rows_of(n: usize) -> usize {
    n.next_power_of_two().min(16)
}

/// A buffer, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// A slab of weights.
    Slab(usize),
    /// Norms, biases, sinks, scales, feedback.
    Vectors,
    /// Parameters of a step: bytes of the plan's.
    Params(usize, usize),
    /// Memory of a pass.
    Scratch(Scratch),
    /// A layer's open rows, blocks, and exact rows.
    Rows(usize),
    Blocks(usize),
    Exact(usize),
}

/// Memory of a pass, and what is known of it from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Scratch {
    /// Figures.
    Pass,
    /// The residual stream, `[rows, d_model]`.
    Stream,
    /// Products with the matrices before attention.
    Products,
    /// Queries brought to a latent.
    Absorbed,
    Queries,
    Partials,
    /// Contexts of all heads, `[rows, heads, v_dim]`.
    Contexts,
    /// The same behind the matrices of a latent.
    Expanded,
    /// What is normed before it is added to the stream.
    Out,
    /// Between the matrices of the feed-forward.
    Hidden,
    /// The same for what every row goes through beside experts.
    Shared,
    /// Scores of experts.
    Scores,
    /// Experts of rows, and weights.
    Experts,
    Logits,
    /// Temperatures of rows that are sampled, and the likeliest tokens of each.
    Temperatures,
    Candidates,
    /// Rotary tables, each `[rows, n_rot]`.
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
}

/// Workgroups along one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    Fixed(usize),
    /// One for so many rows of the pass.
    Rows(usize),
    /// One for so many rows whose logits are wanted.
    Wanted(usize),
    /// One for each expert of each row: so many a row.
    Experts(usize),
    Tiles,
    /// Pieces of what a query sees.
    Pieces,
    /// Blocks that are completed.
    Sealed,
}

/// One dispatch.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) source: &'static Source,
    pub(super) constants: Constants,
    pub(super) bindings: Vec<Place>,
    pub(super) groups: [Extent; 3],
    /// Layer that it belongs to; none: the end.
    pub(super) layer: Option<usize>,
    /// Bytes of weights that a row reads in it.
    pub(super) weight_bytes: u64,
}

/// All steps of a pass.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    pub(super) params: Vec<u8>,
}

/// Places among the vectors of what belongs to a layer.
#[derive(Clone, Debug, Default)]
pub(super) struct LayerVectors {
    pub(super) attn_norm: u32,
    pub(super) ffn_norm: u32,
    pub(super) post_norms: [u32; 2],
    pub(super) head_norms: [u32; 2],
    pub(super) sinks: u32,
    /// Factors of keys and queries, and feedback; none before calibration.
    pub(super) shaping: Option<[u32; 3]>,
}

/// What plans are made from.
pub(super) struct Planner<'a> {
    pub(super) spec: &'a DecoderSpec,
    pub(super) weights: &'a Weights<GpuMatrix>,
    pub(super) vectors: &'a [LayerVectors],
    pub(super) output_norm: u32,
    pub(super) layout: &'a KvLayout,
    pub(super) shape: Shape,
}

/// Distance of parameters in their buffer.
const PARAMS: usize = 256;
const NONE: u32 = u32::MAX;

/// What becomes of products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Epilogue {
    Store = 0,
    Add = 1,
    Gate = 2,
}

/// Which rows go through a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowsOf {
    All = 0,
    Wanted = 1,
    Experts = 2,
}

/// Products of rows of one buffer with matrices, into another.
#[derive(Clone)]
struct Products<'a> {
    /// Each with the column of its first output.
    matrices: Vec<(&'a GpuMatrix, usize)>,
    x: Scratch,
    /// Width of a row of x.
    x_stride: usize,
    y: Scratch,
    y_stride: usize,
    norm: Option<u32>,
    epilogue: Epilogue,
    rows_of: RowsOf,
    /// Two matrices whose products are gated.
    pair: bool,
    /// Equal matrices of a tensor, of which the first is given: how many go by in one step, and the distance of their columns in x and y.
    each: Option<(usize, usize, usize)>,
    /// Experts' results are added up.
    mixed: bool,
}

impl<'a> Products<'a> {
    fn plain(
        matrices: Vec<(&'a GpuMatrix, usize)>,
        (x, x_stride): (Scratch, usize),
        (y, y_stride): (Scratch, usize),
    ) -> Self {
        let (epilogue, rows_of) = (Epilogue::Store, RowsOf::All);
        Self {
            matrices,
            x,
            x_stride,
            y,
            y_stride,
            norm: None,
            epilogue,
            rows_of,
            pair: false,
            each: None,
            mixed: false,
        }
    }
}

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
            let products =
                Products::plain(vec![(output, 0)], (Scratch::Stream, d), (Scratch::Logits, output.n_out));
            let norm = Some(self.output_norm);
            self.products(&mut plan, Products { norm, rows_of: RowsOf::Wanted, ..products });
            if self.shape.best {
                let constants = Constants::default()
                    .uint("N_VOCAB", self.weights.n_vocab)
                    .uint("MOST", CANDIDATES_OF_ROW);
                let scratch = [Scratch::Logits, Scratch::Temperatures, Scratch::Candidates];
                let groups = [Extent::Fixed(1), Extent::Wanted(1), Extent::Fixed(1)];
                plan.push(&CANDIDATES, constants, scratch.map(Place::Scratch).to_vec(), groups);
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
        let products = Products::plain(input, (Scratch::Stream, d), (Scratch::Products, width));
        self.products(plan, Products { norm: Some(vectors.attn_norm), ..products });
        let mut contexts = (Scratch::Contexts, spec.n_heads * spec.v_dim);
        if let Heads::Latent { spec: latent, k_b, .. } = &weights.attention.heads {
            let (x, y) = ((Scratch::Products, width), (Scratch::Absorbed, spec.n_heads * latent.rank));
            self.by_head(plan, k_b, x, y, latent.nope + latent.rope);
        }
        self.heads(plan, l, width, weights);
        let block = self.block(l);
        self.seal(plan, l, &block);
        self.attend(plan, l, &block);
        self.combine(plan, l, weights.attention.sinks.is_some());
        if let Heads::Latent { spec: latent, v_b, .. } = &weights.attention.heads {
            let y = (Scratch::Expanded, spec.n_heads * latent.value);
            self.by_head(plan, v_b, contexts, y, spec.v_dim);
            contexts = y;
        }
        self.add(plan, &weights.attention.output, contexts, vectors.post_norms[0]);
        let stream = (Scratch::Stream, d);
        match &weights.feed_forward {
            FeedForward::Dense(mlp) => {
                self.mlp_hidden(plan, mlp, Scratch::Hidden, vectors);
                self.add(plan, &mlp.down, (Scratch::Hidden, mlp.gate.n_out), vectors.post_norms[1]);
            }
            FeedForward::Experts { router, experts, shared } => {
                let Some(shape) = spec.experts else { return };
                let products = Products::plain(vec![(router, 0)], stream, (Scratch::Scores, shape.n));
                self.products(plan, Products { norm: Some(vectors.ffn_norm), ..products });
                let constants = Constants::default()
                    .uint("N_EXPERTS", shape.n)
                    .uint("N_USED", shape.used)
                    .flag("SOFTMAX_FIRST", shape.gating == Gating::SoftmaxThenTop)
                    .flag("NORMED", shape.normed)
                    .float("EXPERT_SCALE", shape.scale);
                let scratch = [Scratch::Pass, Scratch::Scores, Scratch::Experts].map(Place::Scratch);
                let groups = [Extent::Fixed(1), Extent::Rows(1), Extent::Fixed(1)];
                plan.push(&CHOOSE, constants, scratch.to_vec(), groups);
                let first = &experts[0];
                let hidden = (Scratch::Hidden, shape.d_ff);
                let sent = Products {
                    norm: Some(vectors.ffn_norm),
                    rows_of: RowsOf::Experts,
                    each: Some((1, 0, 0)),
                    ..Products::plain(vec![], stream, hidden)
                };
                self.gated(plan, (&first.gate, &first.up), sent);
                // What every row goes through reads the stream as the experts do: before they are added.
                if let Some(shared) = shared {
                    self.mlp_hidden(plan, shared, Scratch::Shared, vectors);
                }
                self.products(
                    plan,
                    Products {
                        epilogue: Epilogue::Add,
                        rows_of: RowsOf::Experts,
                        each: Some((1, 0, 0)),
                        mixed: true,
                        ..Products::plain(vec![(&first.down, 0)], hidden, stream)
                    },
                );
                if let Some(shared) = shared {
                    self.add(plan, &shared.down, (Scratch::Shared, shared.gate.n_out), vectors.post_norms[1]);
                }
            }
        }
    }

    /// The gated hidden numbers of a feed-forward.
    fn mlp_hidden(&self, plan: &mut Plan, mlp: &Mlp<GpuMatrix>, hidden: Scratch, vectors: &LayerVectors) {
        let products =
            Products::plain(vec![], (Scratch::Stream, self.spec.d_model), (hidden, mlp.gate.n_out));
        self.gated(plan, (&mlp.gate, &mlp.up), Products { norm: Some(vectors.ffn_norm), ..products });
    }

    /// `act(gate x) · up x`: in one step where both matrices are of one type and in one slab.
    fn gated<'a>(&self, plan: &mut Plan, (gate, up): (&'a GpuMatrix, &'a GpuMatrix), products: Products<'a>) {
        let slab = |matrix: &GpuMatrix| (matrix.scheme, matrix.pieces.len(), matrix.pieces[0].slab);
        if slab(gate) == slab(up) && gate.pieces.len() == 1 {
            return self
                .products(plan, Products { matrices: vec![(gate, 0), (up, 0)], pair: true, ..products });
        }
        self.products(plan, Products { matrices: vec![(up, 0)], ..products.clone() });
        let matrices = vec![(gate, 0)];
        self.products(plan, Products { matrices, epilogue: Epilogue::Gate, ..products });
    }

    /// Products that are added to the stream, normed before where the family has it.
    fn add(&self, plan: &mut Plan, matrix: &GpuMatrix, x: (Scratch, usize), post_norm: u32) {
        let d = self.spec.d_model;
        if !self.spec.family.post_norms {
            let products = Products::plain(vec![(matrix, 0)], x, (Scratch::Stream, d));
            return self.products(plan, Products { epilogue: Epilogue::Add, ..products });
        }
        self.products(plan, Products::plain(vec![(matrix, 0)], x, (Scratch::Out, d)));
        let params = plan.params(&[post_norm]);
        let bindings =
            vec![params, Place::Vectors, Place::Scratch(Scratch::Out), Place::Scratch(Scratch::Stream)];
        let constants = Constants::default().uint("D_MODEL", d).float("EPS", self.spec.norm_eps);
        plan.push(&NORM, constants, bindings, [Extent::Fixed(1), Extent::Rows(1), Extent::Fixed(1)]);
    }

    /// Each head of rows through a matrix of its own.
    fn by_head(
        &self,
        plan: &mut Plan,
        matrices: &[GpuMatrix],
        x: (Scratch, usize),
        y: (Scratch, usize),
        x_width: usize,
    ) {
        let first = &matrices[0];
        let each = Some((matrices.len(), x_width, first.n_out));
        self.products(plan, Products { each, ..Products::plain(vec![(first, 0)], x, y) });
    }

    /// Products: one step for matrices of one type in one slab.
    fn products(&self, plan: &mut Plan, products: Products<'_>) {
        let mut groups: Vec<Vec<(&GpuMatrix, Piece, usize)>> = Vec::new();
        for (matrix, column) in &products.matrices {
            for piece in &matrix.pieces {
                let alike = |group: &&mut Vec<(&GpuMatrix, Piece, usize)>| {
                    let (other, at, _) = &group[0];
                    (other.scheme, at.slab) == (matrix.scheme, piece.slab) && group.len() < 3
                };
                let part = (*matrix, *piece, column + piece.first_out);
                match groups.iter_mut().find(alike) {
                    Some(group) => group.push(part),
                    None => groups.push(vec![part]),
                }
            }
        }
        for group in groups {
            self.product(plan, &products, &group);
        }
    }

    fn product(&self, plan: &mut Plan, products: &Products<'_>, group: &[(&GpuMatrix, Piece, usize)]) {
        let (first, at, _) = group[0];
        let used = self.spec.experts.map_or(1, |experts| experts.used);
        let (rows, extent) = match products.rows_of {
            RowsOf::All => (self.shape.rows, Extent::Rows(self.shape.rows)),
            RowsOf::Wanted => (self.shape.wanted, Extent::Wanted(self.shape.wanted)),
            RowsOf::Experts if products.mixed => (1, Extent::Rows(1)),
            RowsOf::Experts => (1, Extent::Experts(used)),
        };
        let scheme = first.scheme;
        let (words, chunk) = if scheme.is_coded() { (8, 64) } else { (32, 32) };
        let constants = Constants::default()
            .uint("R", rows)
            .uint("ROUNDS", rows.div_ceil(8))
            .uint("CHUNK", (chunk / rows).max(8))
            .uint("WORDS", words)
            .flag("CODED", scheme.is_coded())
            .flag("BIASED", scheme.is_biased())
            .flag("NORM", products.norm.is_some())
            .flag("PAIR", products.pair)
            .uint("STORE", 0)
            .uint("ADD", 1)
            .uint("GATE", 2)
            .uint("EPILOGUE", products.epilogue as usize)
            .uint("WANTED", 1)
            .uint("EXPERTS", 2)
            .uint("ROWS_OF", products.rows_of as usize)
            .uint("N_SEGMENTS", if products.pair { 1 } else { group.len() })
            .flag("MIXED", products.mixed)
            .uint("N_USED", if products.mixed { used } else { 1 })
            .scheme(scheme)
            .uint(
                "ACTIVATION",
                match self.spec.family.activation {
                    Activation::Silu => 0,
                    Activation::Gelu => 1,
                    Activation::Clamped => 2,
                },
            );
        let (mut each_codes, mut each_planes, mut each_bias, mut n_each, mut each_x, mut each_y) =
            (0, [0; 3], 0, 1, 0, 0);
        if let Some((n, x, y)) = products.each {
            each_codes = (first.stride / 16) as u32;
            each_planes = [(first.stride / 4) as u32; 3];
            each_bias = first.n_out as u32;
            (n_each, each_x, each_y) = (n, x, y);
        }
        let mut params = vec![
            first.k as u32,
            first.units() as u32,
            (products.x_stride / 4) as u32,
            0,
            products.y_stride as u32,
            products.norm.unwrap_or(NONE),
            self.spec.norm_eps.to_bits(),
            each_codes,
        ];
        params.extend(each_planes);
        params.extend([each_bias, (each_x / 4) as u32, each_y as u32, used as u32]);
        params.push(if products.mixed { 1 } else { used as u32 });
        let mut n_groups = 0;
        let mut weight_bytes = 0;
        for (matrix, piece, column) in group {
            let bias = matrix.bias.map_or(NONE, |bias| bias + piece.first_out as u32);
            params.extend([piece.codes, 0, 0, 0]);
            params.extend(piece.planes);
            params.extend([piece.n_out as u32, *column as u32, bias, n_groups as u32, 0]);
            let is_second = products.pair && n_groups > 0;
            n_groups += if is_second { 0 } else { piece.n_out.div_ceil(OUTS) };
            let times = if products.rows_of == RowsOf::Experts { used } else { n_each };
            weight_bytes += matrix.n_bytes() * piece.n_out as u64 / matrix.n_out as u64 * times as u64;
        }
        params.resize(16 + 3 * 12, 0);
        let table = match products.rows_of {
            RowsOf::Experts => Scratch::Experts,
            RowsOf::All | RowsOf::Wanted => Scratch::Wanted,
        };
        let bindings = vec![
            Place::Scratch(Scratch::Pass),
            plan.params(&params),
            Place::Slab(at.slab),
            Place::Slab(at.slab),
            Place::Vectors,
            Place::Scratch(products.x),
            Place::Scratch(products.y),
            Place::Scratch(table),
        ];
        let source = if scheme.is_coded() { &PRODUCT } else { &PRODUCT_FLOATS };
        let groups = [Extent::Fixed(n_groups), extent, Extent::Fixed(n_each)];
        plan.push(source, constants, bindings, groups);
        plan.steps.last_mut().into_iter().for_each(|step| step.weight_bytes = weight_bytes);
    }

    fn heads(&self, plan: &mut Plan, l: usize, width: usize, weights: &Layer<GpuMatrix>) {
        let (spec, layout, vectors) = (self.spec, self.layout.layers[l], &self.vectors[l]);
        let n_rot = |rope: usize| spec.ropes[rope].table(0).len();
        let rope = spec.layers[l].rope;
        let latent = spec.latent;
        let [k_scales, q_scales, _] = vectors.shaping.unwrap_or_default();
        let is_normed = matches!(weights.attention.heads, Heads::Plain { norms: Some(_) });
        let constants = Constants::default()
            .uint("N_HEADS", spec.n_heads)
            .uint("N_KV_HEADS", spec.n_kv_heads)
            .uint("K_DIM", spec.k_dim)
            .uint("V_DIM", spec.v_dim)
            .uint("N_ROT", n_rot(rope))
            .uint("ROPE_FIRST", latent.map_or(0, |latent| latent.rank))
            .flag("HALVES", spec.family.pairs == Pairs::Halves)
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
        let scratch = |scratch| Place::Scratch(scratch);
        let bindings = vec![
            scratch(Scratch::Pass),
            plan.params(&params),
            Place::Vectors,
            scratch(Scratch::Products),
            scratch(Scratch::Absorbed),
            scratch(Scratch::Ropes),
            scratch(Scratch::Places),
            scratch(Scratch::Queries),
            Place::Rows(l),
        ];
        let n_stored = if layout.shared { 1 } else { 2 };
        let heads = spec.n_heads + n_stored * spec.n_kv_heads;
        plan.push(&HEADS, constants, bindings, [Extent::Fixed(heads), Extent::Rows(1), Extent::Fixed(1)]);
    }

    /// The layout of a layer's share of a block.
    fn block(&self, l: usize) -> Constants {
        let layout = self.layout.layers[l];
        let format = BlockFormat::new(self.layout, self.layout.part_of(l));
        let of = format.layers.iter().find(|layer| layer.layer == l);
        let base = of.map_or(0, |of| of.k.codes.start);
        let means = of.map_or(0, |of| of.k.means.start.saturating_sub(base) / 4);
        Constants::default()
            .side("K", base, of.map(|of| &of.k), layout.k)
            .side("V", base, of.and_then(|of| of.v.as_ref()), layout.v)
            .uint("N_KV_HEADS", layout.k.n_heads)
            .uint("K_MEANS", means)
            .flag("CENTERED", layout.k.centered)
            .flag("SHARED", layout.shared)
            .uint("WINDOW", layout.window.unwrap_or(0))
            .levels()
    }

    fn seal(&self, plan: &mut Plan, l: usize, block: &Constants) {
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
            Place::Scratch(Scratch::Pass),
            plan.params(&params),
            Place::Scratch(Scratch::Sealed),
            Place::Vectors,
            Place::Rows(l),
            Place::Blocks(l),
            Place::Exact(l),
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

    fn attend(&self, plan: &mut Plan, l: usize, block: &Constants) {
        let (spec, layout) = (self.spec, self.layout.layers[l]);
        let group = spec.n_heads / spec.n_kv_heads;
        let (tile_rows, tile_heads) = self.tile();
        let slices = (256 / spec.v_dim).clamp(1, 8).next_power_of_two();
        let slices = if slices * spec.v_dim > 256 { slices / 2 } else { slices }.max(1);
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
            Place::Scratch(Scratch::Pass),
            plan.params(&self.layer_params(l)),
            Place::Scratch(Scratch::Tiles),
            Place::Scratch(Scratch::Blocks),
            Place::Scratch(Scratch::Queries),
            Place::Rows(l),
            Place::Blocks(l),
            Place::Exact(l),
            Place::Scratch(Scratch::Partials),
        ];
        let heads = layout.k.n_heads * group.div_ceil(tile_heads);
        plan.push(&ATTEND, constants, bindings, [Extent::Tiles, Extent::Fixed(heads), Extent::Pieces]);
    }

    /// Rows of a block and heads of a group that attend together.
    pub(super) fn tile(&self) -> (usize, usize) {
        let heads = (self.spec.n_heads / self.spec.n_kv_heads).min(TOGETHER);
        (if self.shape.lone { 1 } else { TOGETHER / heads }, heads)
    }

    fn combine(&self, plan: &mut Plan, l: usize, sinks: bool) {
        let (spec, layout) = (self.spec, self.layout.layers[l]);
        let constants = Constants::default()
            .uint("N_HEADS", spec.n_heads)
            .uint("V_DIM", spec.v_dim)
            .uint("WINDOW", layout.window.unwrap_or(0))
            .flag("ROTATED_V", layout.v.rotated)
            .flag("SINKS", sinks);
        let bindings = vec![
            Place::Scratch(Scratch::Pass),
            plan.params(&[self.vectors[l].sinks]),
            Place::Vectors,
            Place::Scratch(Scratch::Positions),
            Place::Scratch(Scratch::Partials),
            Place::Scratch(Scratch::Contexts),
        ];
        plan.push(
            &COMBINE,
            constants,
            bindings,
            [Extent::Fixed(spec.n_heads), Extent::Rows(1), Extent::Fixed(1)],
        );
    }
}

/// Tokens that are sorted out of a row, at most.
pub(super) const CANDIDATES_OF_ROW: usize = 1024;
/// Words that tell of them.
pub(super) const CANDIDATE_WORDS: usize = 4 + 2 * CANDIDATES_OF_ROW;
/// Queries that attend together, at most.
const TOGETHER: usize = 8;

/// Bytes of a layer's share of a sealed block, and of its exact rows.
pub(super) fn layer_bytes(layout: LayerLayout) -> [usize; 2] {
    let exact = |side: TensorLayout| if side.exact { 2 * EXACT * side.row() } else { 0 };
    [layout.block_bytes(), exact(layout.k) + layout.stored_v().map_or(0, exact)]
}

impl Constants {
    /// The types of matrices, and which it is.
    fn scheme(self, scheme: Scheme) -> Self {
        let named = |(constants, i): (Self, usize), other: Scheme| (constants.uint(other.name(), i), i + 1);
        let (constants, _) = Scheme::ALL.into_iter().fold((self, 0), named);
        let index = Scheme::ALL.iter().position(|other| *other == scheme).unwrap_or(0);
        constants.uint("SCHEME", index).bytes("TABLE", scheme.table().unwrap_or_default())
    }

    /// Keys or values in a block that begins at byte `base`; `view` is their layout where nothing is stored for them.
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

impl Plan {
    fn push(
        &mut self,
        source: &'static Source,
        constants: Constants,
        bindings: Vec<Place>,
        groups: [Extent; 3],
    ) {
        self.steps.push(Step { source, constants, bindings, groups, layer: None, weight_bytes: 0 });
    }

    /// Takes in a step's parameters.
    fn params(&mut self, words: &[u32]) -> Place {
        let first = self.params.len().next_multiple_of(PARAMS);
        self.params.resize(first, 0);
        self.params.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        Place::Params(first, 4 * words.len())
    }
}
