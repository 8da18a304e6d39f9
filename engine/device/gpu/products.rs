//! The steps that multiply: which matrices share one, what is normed before and what becomes of the products.

use super::kernels::{
    CENTER, CODE, KernelConstants, MIX, NORM, NORMS, PRODUCT, PRODUCT_FLOATS, SENT, SORT, TILE, TILE_FLOATS,
};
use super::steps::{
    BufferRef, CodedRows, Coding, Extent, LayerVectors, PassBuffer, Plan, Planner, TILE_ROWS, Work,
};
use super::weights::{GpuMatrix, GpuScheme, MatrixPart, PANEL, UNIT};
use crate::model::family::{Activation, Gating};
use crate::model::spec::ExpertSpec;
use crate::model::weights::{DenseAndExperts, Mixture, Mlp};
use bytemuck::{Pod, Zeroable};

const NONE: u32 = u32::MAX;
/// Maximum number of parts of matrices that one step takes.
const SEGMENTS: usize = 4;

/// What becomes of products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Epilogue {
    Store = 0,
    Add = 1,
    Gate = 2,
    Activate = 3,
}

/// Which rows go through a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowsOf {
    All,
    Wanted,
    /// A row of y for each slot of a row of x: its experts, then the parts of the shared expert.
    Experts {
        shared: usize,
    },
    /// A row of y for all slots of a row, which are rows of x: weighed and added up.
    Mixed {
        shared: usize,
    },
}

/// A mixture, and among the vectors the bias of its selection and factors of its weights.
#[derive(Clone, Copy)]
pub(super) struct Sent {
    spec: ExpertSpec,
    bias: Option<u32>,
    scales: Option<u32>,
}

/// Products of rows of one buffer with matrices, into another.
#[derive(Clone)]
pub(super) struct Products<'a> {
    /// Each with the column of its first output. Of experts the first one; after it, or after both that are
    /// gated, what is shared.
    pub(super) matrices: Vec<(&'a GpuMatrix, usize)>,
    pub(super) x: PassBuffer,
    /// Width of a row of x.
    pub(super) x_stride: usize,
    pub(super) y: PassBuffer,
    pub(super) y_stride: usize,
    pub(super) norm: Option<u32>,
    pub(super) epilogue: Epilogue,
    pub(super) rows_of: RowsOf,
    /// Matrices go by two, whose products are gated.
    pub(super) pair: bool,
    /// Matrices by head, of which the first is given: their number, and the distance of what they meet in a
    /// row of x.
    pub(super) heads: (usize, usize),
    /// The experts that rows are sent to, or whose score for what is shared the products are multiplied by;
    /// and the bias of their selection.
    pub(super) mixture: Option<Sent>,
    /// First column of x.
    pub(super) x_first: usize,
    /// What is shared is multiplied by the sigmoid of the mixture's score for it: the products; or among slots of
    /// experts the last ones.
    pub(super) gated: bool,
    /// Factor of the products, and their soft cap.
    pub(super) factor: f32,
    pub(super) cap: Option<f32>,
}

impl<'a> Products<'a> {
    pub(super) fn plain(
        matrices: Vec<(&'a GpuMatrix, usize)>,
        (x, x_stride): (PassBuffer, usize),
        (y, y_stride): (PassBuffer, usize),
    ) -> Self {
        Self {
            matrices,
            x,
            x_stride,
            y,
            y_stride,
            norm: None,
            epilogue: Epilogue::Store,
            rows_of: RowsOf::All,
            pair: false,
            heads: (1, 0),
            mixture: None,
            x_first: 0,
            gated: false,
            factor: 1.0,
            cap: None,
        }
    }
}

/// Parts of matrices that one step takes.
type Group<'a> = Vec<(&'a GpuMatrix, MatrixPart, usize)>;

/// Returns whether one step can take a piece of a matrix together with others: from one slab, coded like
/// them, of no third type.
fn joins(group: &Group<'_>, matrix: &GpuMatrix, piece: &MatrixPart) -> bool {
    let (first, at, _) = &group[0];
    let other = group.iter().map(|(m, ..)| m.scheme).find(|scheme| *scheme != first.scheme);
    group.len() < SEGMENTS
        && at.slab == piece.slab
        && first.scheme.is_coded() == matrix.scheme.is_coded()
        && (matrix.scheme == first.scheme || other.is_none_or(|other| other == matrix.scheme))
}

/// Tells whether one step can take all of these.
fn join(matrices: &[&GpuMatrix]) -> bool {
    let mut group: Group<'_> = vec![(matrices[0], matrices[0].pieces[0], 0)];
    matrices[1..].iter().all(|matrix| {
        let joins = joins(&group, matrix, &matrix.pieces[0]);
        group.push((matrix, matrix.pieces[0], 0));
        joins
    }) && matrices.iter().all(|matrix| matrix.pieces.len() == 1)
}

/// A part of a matrix, as `results.wgsl` has it.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
struct MatrixSegment {
    planes: [u32; 3],
    codes: u32,
    n_out: u32,
    row_units: u32,
    each_units: u32,
    bias: u32,
    each_bias: u32,
    y_first: u32,
    first_group: u32,
    is_other: u32,
}

/// Parameters, as `results.wgsl` has them.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
struct Params {
    x_stride: u32,
    y_stride: u32,
    norm: u32,
    eps: f32,
    each_x: u32,
    each_y: u32,
    x_first: u32,
    expert_bias: u32,
    expert_scales: u32,
    code_norm: u32,
    zero: f32,
    unused: u32,
    segments: [MatrixSegment; SEGMENTS],
}

/// Where a product finds its units in coded rows: units of a row, the first one, and those from head to head.
#[derive(Clone, Copy, Default)]
struct CodedView {
    row: usize,
    first: usize,
    each: usize,
}

/// Outputs of a tile, at most.
const TILE_OUTS: usize = 64;
/// Units that a tile stages at a time, of codes and of floats.
const STEP: usize = 4;

impl LayerVectors {
    /// A mixture of the layer.
    fn sent(&self, spec: ExpertSpec) -> Sent {
        Sent { spec, bias: self.expert_bias, scales: self.expert_scales }
    }
}

impl Planner<'_> {
    /// The rows that mixers, feed-forwards and the last matrix read: of the stream, or what is centered of it.
    pub(super) fn rows(&self) -> (PassBuffer, usize) {
        let rows = if self.spec.family.parallel { PassBuffer::Centered } else { PassBuffer::Stream };
        (rows, self.spec.d_model)
    }

    /// Centers the stream's rows, where the family has it.
    pub(super) fn center(&self, plan: &mut Plan) {
        if self.spec.family.parallel {
            let constants =
                KernelConstants::default().uint("THREADS", 256).uint("D_MODEL", self.spec.d_model);
            let bindings = [PassBuffer::Stream, PassBuffer::Centered].map(BufferRef::Scratch).to_vec();
            plan.push(&CENTER, constants, bindings, [Extent::Fixed(1), Extent::Rows(1), Extent::Fixed(1)]);
        }
    }

    /// The gated hidden numbers of a feed-forward.
    pub(super) fn mlp_hidden(
        &self,
        plan: &mut Plan,
        mlp: &Mlp<GpuMatrix>,
        hidden: PassBuffer,
        vectors: &LayerVectors,
    ) {
        let products = Products::plain(vec![], self.rows(), (hidden, mlp.up.n_out));
        self.hidden(plan, mlp, Products { norm: vectors.norms[1], ..products });
    }

    /// `act(gate x) · up x`, in one step where both matrices can join; without a gate `act(up x)`.
    fn hidden<'a>(&self, plan: &mut Plan, mlp: &'a Mlp<GpuMatrix>, products: Products<'a>) {
        let up = &mlp.up;
        let Some(gate) = &mlp.gate else {
            let epilogue = Epilogue::Activate;
            return self.products(plan, Products { matrices: vec![(up, 0)], epilogue, ..products });
        };
        if join(&[gate, up]) {
            return self
                .products(plan, Products { matrices: vec![(gate, 0), (up, 0)], pair: true, ..products });
        }
        self.products(plan, Products { matrices: vec![(up, 0)], ..products.clone() });
        let matrices = vec![(gate, 0)];
        self.products(plan, Products { matrices, epilogue: Epilogue::Gate, ..products });
    }

    /// The feed-forward of experts, and of the shared expert: as further slots of a row where their matrices
    /// can be joined.
    pub(super) fn experts(&self, plan: &mut Plan, mixture: &Mixture<GpuMatrix>, vectors: &LayerVectors) {
        let (shape, experts, shared) = (mixture.spec, &mixture.experts[0], mixture.shared.as_ref());
        let (stream, norm) = ((PassBuffer::Stream, self.spec.d_model), vectors.norms[1]);
        let factor = self.spec.residual_scale;
        let routers = [Some((&mixture.router, 0)), mixture.shared_gate.as_ref().map(|gate| (gate, shape.n))];
        let routers = routers.into_iter().flatten().collect();
        let scores = Products::plain(routers, stream, (PassBuffer::Scores, shape.n_scores()));
        self.products(plan, Products { norm, ..scores });
        let (down, latent) = (&experts.down, mixture.latent.as_ref());
        let mixture = Some(vectors.sent(shape));
        let slots = shared.filter(|mlp| {
            let inputs = [experts.inputs(), mlp.inputs()].concat();
            latent.is_none()
                && mlp.up.n_out % shape.d_ff == 0
                && shape.d_ff % PANEL == 0
                && mlp.inputs().into_iter().chain([&mlp.down]).all(|matrix| matrix.bias.is_none())
                && join(&inputs)
                && join(&[down, &mlp.down])
        });
        let n_shared = slots.map_or(0, |mlp| mlp.up.n_out / shape.d_ff);
        let hidden = (PassBuffer::Hidden, shape.d_ff);
        let gated = shape.gated_shared && n_shared > 0;
        let of_stream = Products {
            norm,
            rows_of: RowsOf::Experts { shared: n_shared },
            mixture,
            gated,
            ..Products::plain(vec![], stream, hidden)
        };
        let onto_stream = Products {
            epilogue: Epilogue::Add,
            rows_of: RowsOf::Mixed { shared: n_shared },
            mixture,
            gated,
            factor,
            ..Products::plain(vec![(down, 0)], hidden, stream)
        };
        if let Some(mlp) = slots {
            let inputs = [experts.inputs(), mlp.inputs()].concat();
            let matrices = inputs.into_iter().map(|matrix| (matrix, 0)).collect();
            let pair = experts.gate.is_some();
            let epilogue = if pair { Epilogue::Store } else { Epilogue::Activate };
            self.products(plan, Products { matrices, pair, epilogue, ..of_stream });
            let matrices = vec![(down, 0), (&mlp.down, 0)];
            return self.products(plan, Products { matrices, ..onto_stream });
        }
        if let Some([to_latent, _]) = latent {
            let (x, of_latent) = ((PassBuffer::Latent, shape.d_latent), of_stream);
            let products = Products::plain(vec![(to_latent, 0)], stream, x);
            self.products(plan, Products { norm, ..products });
            let (x, x_stride) = x;
            self.hidden(plan, experts, Products { x, x_stride, norm: None, ..of_latent });
        } else {
            self.hidden(plan, experts, of_stream);
        }
        // What is shared reads the stream as the experts do: before they are added.
        if let Some(shared) = shared {
            self.mlp_hidden(plan, shared, PassBuffer::Shared, vectors);
        }
        if let Some([_, from_latent]) = latent {
            let y = (PassBuffer::MixedLatent, shape.d_latent);
            let (epilogue, (y, y_stride)) = (Epilogue::Store, y);
            self.products(plan, Products { y, y_stride, epilogue, factor: 1.0, ..onto_stream });
            let products = Products::plain(vec![(from_latent, 0)], (y, y_stride), stream);
            self.products(plan, Products { epilogue: Epilogue::Add, factor, ..products });
        } else {
            self.products(plan, onto_stream);
        }
        if let Some(shared) = shared {
            let x = (PassBuffer::Shared, shared.up.n_out);
            let products = Products::plain(vec![(&shared.down, 0)], x, stream);
            let (epilogue, gated) = (Epilogue::Add, shape.gated_shared);
            self.products(plan, Products { epilogue, gated, mixture, factor, ..products });
        }
    }

    /// A dense feed-forward beside experts: what comes of either is normed, and both are added up to be
    /// normed once more.
    pub(super) fn both(
        &self,
        plan: &mut Plan,
        both: &DenseAndExperts<GpuMatrix>,
        vectors: &LayerVectors,
        scale: f32,
    ) {
        let d = self.spec.d_model;
        let [router_norm, norm, dense_norm, experts_norm] = vectors.both_norms;
        let (stream, dense, mixture) = ((PassBuffer::Stream, d), &both.dense, &both.experts);
        let shape = mixture.spec;
        let scores = Products::plain(vec![(&mixture.router, 0)], stream, (PassBuffer::Scores, shape.n));
        self.products(plan, Products { norm: Some(router_norm), ..scores });
        // Both sums begin with nothing, in buffers that the attention has left.
        self.mlp_hidden(plan, dense, PassBuffer::Shared, vectors);
        let x = (PassBuffer::Shared, dense.up.n_out);
        self.products(plan, Products::plain(vec![(&dense.down, 0)], x, (PassBuffer::Out, d)));
        let sent = Some(vectors.sent(shape));
        let experts = &mixture.experts[0];
        let hidden = (PassBuffer::Hidden, shape.d_ff);
        let rows_of = RowsOf::Experts { shared: 0 };
        let of_stream = Products::plain(vec![], stream, hidden);
        self.hidden(plan, experts, Products { norm: Some(norm), rows_of, mixture: sent, ..of_stream });
        let mixed = Products::plain(vec![(&experts.down, 0)], hidden, (PassBuffer::Mixed, d));
        self.products(plan, Products { rows_of: RowsOf::Mixed { shared: 0 }, mixture: sent, ..mixed });
        self.norm_both(plan, [dense_norm, experts_norm], vectors.post_norms[1], scale);
    }

    /// Adds the norm of the norms of two buffers' rows, added up, to the stream, which is scaled then.
    fn norm_both(&self, plan: &mut Plan, norms: [u32; 2], post_norm: Option<u32>, scale: f32) {
        let params = [norms[0], norms[1], post_norm.unwrap_or(0), scale.to_bits()];
        let bindings = vec![
            plan.params(bytemuck::cast_slice(&params)),
            BufferRef::Vectors,
            BufferRef::Scratch(PassBuffer::Out),
            BufferRef::Scratch(PassBuffer::Mixed),
            BufferRef::Scratch(PassBuffer::Stream),
        ];
        let d = self.spec.d_model;
        let constants = KernelConstants::default()
            .uint("THREADS", 256)
            .uint("D_MODEL", d)
            .float("EPS", self.spec.norm_eps);
        plan.push(&NORMS, constants, bindings, [Extent::Fixed(1), Extent::Rows(1), Extent::Fixed(1)]);
    }

    /// Products that are added to the stream, normed before where the family has it.
    pub(super) fn add(
        &self,
        plan: &mut Plan,
        matrix: &GpuMatrix,
        x: (PassBuffer, usize),
        post_norm: Option<u32>,
        scale: f32,
    ) {
        let d = self.spec.d_model;
        let Some(post_norm) = post_norm else {
            let products = Products::plain(vec![(matrix, 0)], x, (PassBuffer::Stream, d));
            let factor = self.spec.residual_scale;
            return self.products(plan, Products { epilogue: Epilogue::Add, factor, ..products });
        };
        self.products(plan, Products::plain(vec![(matrix, 0)], x, (PassBuffer::Out, d)));
        self.norm_onto(plan, PassBuffer::Out, PassBuffer::Stream, post_norm, scale);
    }

    /// Adds the norm of one buffer's rows to another's, which are scaled then.
    pub(super) fn norm_onto(
        &self,
        plan: &mut Plan,
        from: PassBuffer,
        onto: PassBuffer,
        norm: u32,
        scale: f32,
    ) {
        let d = self.spec.d_model;
        let params = plan.params(bytemuck::cast_slice(&[norm, scale.to_bits(), NONE]));
        let (from, to) = (BufferRef::Scratch(from), BufferRef::Scratch(onto));
        let bindings = vec![params, BufferRef::Vectors, from, to, BufferRef::Nothing];
        let constants = KernelConstants::default()
            .uint("THREADS", 256)
            .uint("D_MODEL", d)
            .float("EPS", self.spec.norm_eps);
        plan.push(&NORM, constants, bindings, [Extent::Fixed(1), Extent::Rows(1), Extent::Fixed(1)]);
        plan.can_code(Coding { buffer: onto, width: d, per_row: 1, norm_at: params.offset() + 8 });
    }

    /// Each head of rows times its own matrix.
    pub(super) fn by_head(
        &self,
        plan: &mut Plan,
        matrices: &[GpuMatrix],
        x: (PassBuffer, usize),
        y: (PassBuffer, usize),
        x_width: usize,
    ) {
        let plain = Products::plain(vec![(&matrices[0], 0)], x, y);
        self.products(plan, Products { heads: (matrices.len(), x_width), ..plain });
    }

    /// Products: one step for matrices that can join.
    pub(super) fn products(&self, plan: &mut Plan, products: Products<'_>) {
        let mut groups: Vec<Group<'_>> = Vec::new();
        for (matrix, column) in &products.matrices {
            for piece in &matrix.pieces {
                let part = (*matrix, *piece, column + piece.first_out);
                match groups.iter_mut().find(|group| joins(group, matrix, piece)) {
                    Some(group) => group.push(part),
                    None => groups.push(vec![part]),
                }
            }
        }
        let is_whole = groups.len() == 1;
        for group in groups {
            let first = plan.steps.len();
            self.product(plan, &products, &group);
            let first = &mut plan.steps[first..];
            first.iter_mut().filter(|_| !is_whole).for_each(|step| step.coding = None);
        }
    }

    /// Rows in 8 bits, as a product reads them. What wrote the rows last codes all of their columns, if it can:
    /// they need no step of their own then.
    fn code(&self, plan: &mut Plan, rows: CodedRows) -> CodedView {
        let (x, per_row) = (rows.x, rows.per_row);
        let (n_heads, each) = rows.heads;
        let view = CodedView { row: rows.stride / UNIT, first: rows.first / UNIT, each: each / UNIT };
        let is_whole = rows.stride == rows.width;
        let is_view = is_whole || [rows.first, rows.stride, each].iter().all(|n| n % UNIT == 0);
        if is_view && (is_whole || rows.norm.is_none()) {
            let all = CodedRows { first: 0, heads: (1, 0), width: rows.stride, ..rows };
            if plan.has_coded(&all) {
                return view;
            }
            let coding = |norm_at| Coding { buffer: x, width: rows.stride, per_row, norm_at };
            let writer = plan.writer(x).filter(|step| !self.shape.apart && !step.codes);
            let writer = writer.filter(|step| step.coding.is_some_and(|it| it == coding(it.norm_at)));
            if let Some(writer) = writer {
                writer.codes = true;
                writer.bindings.pop();
                writer.bindings.push(BufferRef::Coded(x));
                let at = writer.coding.map_or(0, |coding| coding.norm_at);
                plan.params[at..at + 4].copy_from_slice(&rows.norm.unwrap_or(NONE).to_le_bytes());
                plan.keep_coded(all);
                return view;
            }
        }
        let units = rows.width / UNIT;
        if !plan.has_coded(&rows) {
            let [first, stride, each] = [rows.first, rows.stride, each].map(|n| (n / 4) as u32);
            let params = [first, stride, each, rows.norm.unwrap_or(NONE)];
            let params = plan.params(bytemuck::cast_slice(&params));
            let bindings = vec![params, BufferRef::Vectors, BufferRef::Scratch(x), BufferRef::Coded(x)];
            let constants = KernelConstants::default().uint("UNITS", units).uint("HEADS", n_heads);
            let groups =
                [Extent::Fixed((2 * units).div_ceil(64)), Extent::Slots(per_row), Extent::Fixed(n_heads)];
            plan.push(&CODE, constants, bindings, groups);
            plan.keep_coded(rows);
        }
        CodedView { row: n_heads * units, first: 0, each: units }
    }

    fn product(&self, plan: &mut Plan, products: &Products<'_>, group: &Group<'_>) {
        let (first, at, _) = group[0];
        let is_coded = first.scheme.is_coded();
        let other = group.iter().map(|(m, ..)| m.scheme).find(|scheme| *scheme != first.scheme);
        let used = products.mixture.map_or(1, |sent| sent.spec.used);
        let n_experts = products.mixture.map_or(1, |sent| sent.spec.n);
        let (rows, extent, y_per_row, x_per_row) = match products.rows_of {
            RowsOf::All => (self.shape.rows, Extent::Rows(self.shape.rows), 1, 1),
            RowsOf::Wanted => (self.shape.wanted, Extent::Wanted(self.shape.wanted), 1, 1),
            RowsOf::Experts { shared } => (1, Extent::Slots(used + shared), used + shared, 1),
            RowsOf::Mixed { shared } => (1, Extent::Rows(1), 1, used + shared),
        };
        // Many rows that are sent to experts are sorted by these.
        let (rows, extent, is_sorted) = match products.rows_of {
            RowsOf::Experts { shared } | RowsOf::Mixed { shared } if self.shape.rows == TILE_ROWS => {
                (TILE_ROWS, Extent::ExpertTiles(used + shared, n_experts + shared), true)
            }
            _ => (rows, extent, false),
        };
        let is_tiled = rows == TILE_ROWS;
        let rows_of_x = CodedRows {
            x: products.x,
            first: products.x_first,
            stride: products.x_stride,
            heads: products.heads,
            width: first.k,
            per_row: x_per_row,
            norm: products.norm,
        };
        let view = if is_coded { self.code(plan, rows_of_x) } else { CodedView::default() };
        let mut params = Params {
            x_stride: (products.x_stride / 4) as u32,
            y_stride: products.y_stride as u32,
            norm: products.norm.unwrap_or(NONE),
            eps: self.spec.norm_eps,
            each_x: (products.heads.1 / 4) as u32,
            each_y: first.n_out as u32,
            expert_bias: products.mixture.and_then(|sent| sent.bias).unwrap_or(0),
            expert_scales: products.mixture.and_then(|sent| sent.scales).unwrap_or(NONE),
            x_first: (products.x_first / 4) as u32,
            code_norm: NONE,
            ..Params::default()
        };
        let n_pairs = if products.pair { 2 } else { 1 };
        let outs = if is_tiled { TILE_OUTS / n_pairs } else { PANEL };
        let (mut n_groups, mut weight_bytes, mut n_out_all) = (0, 0, 0);
        for (i, (matrix, piece, column)) in group.iter().enumerate() {
            // After the experts comes the shared expert: parts of one matrix, of its outputs or of its
            // inputs.
            let (parts, shared) = match products.rows_of {
                RowsOf::Experts { shared } if i >= n_pairs => (shared, true),
                RowsOf::Mixed { shared } if i >= n_pairs => (1, shared > 0),
                _ => (1, false),
            };
            let n_out = piece.n_out / parts;
            let is_input = shared && matches!(products.rows_of, RowsOf::Mixed { .. });
            let each_units = if is_input { first.units() } else { matrix.panel_units(n_out) };
            params.segments[i] = MatrixSegment {
                planes: piece.planes,
                codes: piece.codes,
                n_out: n_out as u32,
                row_units: matrix.units() as u32,
                each_units: each_units as u32,
                bias: matrix.bias.map_or(NONE, |bias| bias + piece.first_out as u32),
                each_bias: n_out as u32,
                y_first: *column as u32,
                first_group: n_groups as u32,
                is_other: u32::from(matrix.scheme != first.scheme),
            };
            let goes_along = shared || i % n_pairs > 0;
            n_groups += if goes_along { 0 } else { n_out.div_ceil(outs) };
            n_out_all += if goes_along { 0 } else { n_out };
            let times = match products.rows_of {
                RowsOf::Experts { .. } | RowsOf::Mixed { .. } if !shared => used,
                _ => products.heads.0,
            };
            weight_bytes += matrix.n_bytes() * piece.n_out as u64 / matrix.n_out as u64 * times as u64;
        }
        let is_sent = matches!(products.rows_of, RowsOf::Experts { .. } | RowsOf::Mixed { .. });
        let is_mixed = matches!(products.rows_of, RowsOf::Mixed { .. });
        let n_segments = if products.pair || is_sent { 1 } else { group.len() };
        let constants = match is_tiled {
            true if is_coded && self.has_dot => {
                KernelConstants::default().uint("STEP", STEP).flag("DOT", true)
            }
            true => KernelConstants::default().uint("STEP", 1).flag("DOT", false),
            false => KernelConstants::default().uint("R", rows),
        };
        let is_mixed_later = is_sorted && is_mixed;
        let (epilogue, factor) = (products.epilogue, products.factor);
        let (own_epilogue, own_factor) =
            if is_mixed_later { (Epilogue::Store, 1.0) } else { (epilogue, factor) };
        let constants = constants
            .uint("UNITS", first.units())
            .uint("K", first.k)
            .uint("ROW_UNITS", view.row)
            .uint("FIRST_UNIT", view.first)
            .uint("HEAD_UNITS", view.each)
            .flag("BIASED", group.iter().any(|(matrix, ..)| matrix.scheme.is_biased()))
            .flag("NORM", products.norm.is_some())
            .flag("PAIR", products.pair)
            .uint("N_SEGMENTS", n_segments)
            .schemes(first.scheme, other.unwrap_or(first.scheme))
            .experts(products.mixture, products.rows_of)
            .flag("GATED", products.gated)
            .float("CAP", products.cap.unwrap_or(0.0))
            .uint(
                "ACTIVATION",
                match self.spec.family.activation {
                    Activation::Silu => 0,
                    Activation::Gelu => 1,
                    Activation::Clamped => 2,
                    Activation::SquaredRelu => 3,
                },
            );
        let ends = |epilogue: Epilogue, factor: f32| {
            constants.clone().uint("EPILOGUE", epilogue as usize).float("FACTOR", factor)
        };
        let table = if is_sent || products.gated { PassBuffer::Scores } else { PassBuffer::Wanted };
        let bytes = bytemuck::bytes_of(&params);
        // A kernel of `results.wgsl`, with its own slab, x, y and table.
        let bindings =
            |params: BufferRef, slab: BufferRef, x: BufferRef, [y, table, last]: [BufferRef; 3]| {
                vec![
                    BufferRef::Scratch(PassBuffer::Pass),
                    params,
                    slab,
                    slab,
                    BufferRef::Vectors,
                    x,
                    y,
                    table,
                    last,
                ]
            };
        let (scratch, vectors, nothing) = (BufferRef::Scratch, BufferRef::Vectors, BufferRef::Nothing);
        let [sent, sorted, given] = [PassBuffer::Sent, PassBuffer::Sorted, PassBuffer::Given].map(scratch);
        let slots = y_per_row.max(x_per_row);
        if is_sent && !plan.is_after(PassBuffer::Sent, PassBuffer::Scores) {
            let own = bindings(plan.params(bytes), vectors, vectors, [nothing, scratch(table), sent]);
            let rows = [Extent::Fixed(1), Extent::Rows(1), Extent::Fixed(1)];
            plan.push(&SENT, ends(Epilogue::Store, 1.0), own, rows);
        }
        if is_sorted && !plan.is_after(PassBuffer::Sorted, PassBuffer::Sent) {
            let parts = n_experts + slots - used;
            let constants = KernelConstants::default().uint("N_SLOTS", slots).uint("N_PARTS", parts);
            plan.push(&SORT, constants, vec![scratch(PassBuffer::Pass), sent, sorted], [Extent::Fixed(1); 3]);
        }
        let own = plan.params(bytes);
        let x = if is_coded { BufferRef::Coded(products.x) } else { scratch(products.x) };
        let y = if is_mixed_later { given } else { scratch(products.y) };
        let table = match is_sorted {
            true => sorted,
            false if is_sent => sent,
            false => scratch(table),
        };
        let source = match (is_tiled, is_coded) {
            (false, true) => &PRODUCT,
            (false, false) => &PRODUCT_FLOATS,
            (true, true) => &TILE,
            (true, false) => &TILE_FLOATS,
        };
        let groups = [Extent::Fixed(n_groups), extent, Extent::Fixed(products.heads.0)];
        let bound = bindings(own, BufferRef::Slab(at.slab), x, [y, table, nothing]);
        plan.push(source, ends(own_epilogue, own_factor), bound, groups);
        let (slots, units) = (if is_mixed { used as u64 } else { 1 }, first.units() as u64);
        let (outs, row_bytes) = ((outs * n_pairs) as u64, if is_coded { 56 } else { 128 });
        let step = if is_coded && self.has_dot { STEP as u64 } else { 1 };
        let slots = if is_sorted { 1 } else { slots };
        let work = Work {
            weight_bytes,
            group_weights: first.n_bytes() / first.n_out as u64 * outs * slots,
            group_rows: rows as u64 * units * row_bytes * slots,
            group_barriers: if is_tiled { 2 * units.div_ceil(step) } else { 0 },
            group_multiplications: outs * (first.k * rows) as u64 * slots,
            ..Work::default()
        };
        plan.steps.last_mut().into_iter().for_each(|step| step.work = work);
        let mut params_at = own;
        if is_mixed_later {
            params_at = plan.params(bytes);
            let own = bindings(params_at, vectors, given, [scratch(products.y), sent, nothing]);
            let groups = [Extent::Fixed(n_out_all / PANEL), Extent::Rows(PANEL), Extent::Fixed(1)];
            plan.push(&MIX, ends(epilogue, factor), own, groups);
        }
        let codes_all =
            n_out_all * products.heads.0 == products.y_stride && products.rows_of != RowsOf::Wanted;
        if codes_all {
            let norm_at = params_at.offset() + std::mem::offset_of!(Params, code_norm);
            let (buffer, width) = (products.y, products.y_stride);
            plan.can_code(Coding { buffer, width, per_row: y_per_row, norm_at });
        }
    }
}

impl KernelConstants {
    /// The types of matrices, and which two they are here.
    fn schemes(self, scheme: GpuScheme, other: GpuScheme) -> Self {
        let index = |scheme| GpuScheme::ALL.iter().position(|each| *each == scheme).unwrap_or(0);
        let named = |constants: Self, each: GpuScheme| constants.uint(&each.kind().to_string(), index(each));
        let named = GpuScheme::ALL.iter().copied().fold(self, named);
        let constants = named.uint("SCHEME", index(scheme)).uint("OTHER", index(other));
        let levels =
            [GpuScheme::Iq4Nl, GpuScheme::Mxfp4].into_iter().filter_map(|each| Some((each, each.table()?)));
        levels.fold(constants, |constants, (each, table)| {
            constants.bytes(&format!("{}_LEVELS", each.kind()), table)
        })
    }

    /// Rows, and how experts are chosen for them.
    fn experts(self, mixture: Option<Sent>, rows_of: RowsOf) -> Self {
        let experts = mixture.map(|sent| sent.spec);
        let (index, shared, mixed) = match rows_of {
            RowsOf::All => (0, 0, false),
            RowsOf::Wanted => (1, 0, false),
            RowsOf::Experts { shared } => (2, shared, false),
            RowsOf::Mixed { shared } => (2, shared, true),
        };
        let used = experts.map_or(1, |experts| experts.used);
        self.uint("WANTED", 1)
            .uint("EXPERTS", 2)
            .uint("ROWS_OF", index)
            .flag("MIXED", mixed)
            .uint("N_USED", used)
            .uint("N_SLOTS", used + shared)
            .uint("N_EXPERTS", experts.map_or(1, |experts| experts.n))
            .uint("SCORES", experts.map_or(1, |experts| experts.n_scores()))
            .uint(
                "GATING",
                match experts.map(|experts| experts.gating) {
                    None | Some(Gating::SoftmaxThenTop) => 0,
                    Some(Gating::TopThenSoftmax) => 1,
                    Some(Gating::Sigmoid) => 2,
                },
            )
            .flag("RANKED", mixture.is_some_and(|sent| sent.bias.is_some()))
            .uint("N_GROUPS", experts.map_or(1, |experts| experts.groups.0))
            .uint("USED_GROUPS", experts.map_or(1, |experts| experts.groups.1))
            .flag("NORMED", experts.is_some_and(|experts| experts.normed))
            .float("EXPERT_SCALE", experts.map_or(1.0, |experts| experts.scale))
    }
}
