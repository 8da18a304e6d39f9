//! One step that multiplies: its rows, its parts of matrices, its kernel; and before it what codes the rows, or sends
//! them to experts.

use super::kernels::{CODE, KernelConstants, MIX, PRODUCT, PRODUCT_FLOATS, SENT, SORT, TILE, TILE_FLOATS};
use super::steps::{BufferRef, CodedRows, Coding, Extent, PassBuffer, Plan, Planner, TILE_ROWS, Work};
use super::weights::{GpuMatrix, GpuScheme, MatrixPart, PANEL, UNIT};
use crate::model::family::{Activation, Gating};
use crate::model::spec::ExpertSpec;
use bytemuck::{Pod, Zeroable};

const NONE: u32 = u32::MAX;
/// Maximum number of parts of matrices that one step takes.
pub(super) const SEGMENTS: usize = 4;

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
    pub(super) spec: ExpertSpec,
    pub(super) bias: Option<u32>,
    pub(super) scales: Option<u32>,
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
pub(super) type Group<'a> = Vec<(&'a GpuMatrix, MatrixPart, usize)>;

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
/// Units of codes that a tile stages at a time; of floats it is one.
const STEP: usize = 4;

/// The rows of a product.
#[derive(Clone, Copy)]
struct Rows {
    /// Rows of a workgroup, and workgroups.
    each: usize,
    extent: Extent,
    /// Rows of x and of y for each row of the pass.
    x_per_row: usize,
    y_per_row: usize,
    /// Experts that a row is sent to, all experts, and what every row goes through beside them.
    used: usize,
    n_experts: usize,
    shared: usize,
    /// They are sent to experts, whose results are added up, and sorted by expert: many are.
    is_sent: bool,
    is_mixed: bool,
    is_sorted: bool,
}

impl Rows {
    fn is_tiled(&self) -> bool {
        self.each == TILE_ROWS
    }

    fn slots(&self) -> usize {
        self.used + self.shared
    }
}

/// The parts of matrices of a step, in its parameters, and what they come to.
struct Parts {
    params: Params,
    n_groups: usize,
    n_out: usize,
    weight_bytes: u64,
}

/// Buffers of a kernel of `results.wgsl`.
fn bindings(
    params: BufferRef,
    slab: BufferRef,
    x: BufferRef,
    [y, table, last]: [BufferRef; 3],
) -> Vec<BufferRef> {
    vec![BufferRef::Scratch(PassBuffer::Pass), params, slab, slab, BufferRef::Vectors, x, y, table, last]
}

impl Planner<'_> {
    /// A product of parts of matrices that can share a step. If it `is_whole`, it writes all columns of y.
    pub(super) fn product(
        &self,
        plan: &mut Plan,
        products: &Products<'_>,
        group: &Group<'_>,
        is_whole: bool,
    ) {
        let (first, at, _) = group[0];
        let (rows, is_coded) = (self.rows_of(products), first.scheme.is_coded());
        let view = match is_coded {
            true => self.code(plan, rows_of_x(products, first.k, rows.x_per_row)),
            false => CodedView::default(),
        };
        let parts = self.parts(products, group, rows);
        let constants = self.constants(products, group, rows, view);
        let ends = |epilogue: Epilogue, factor: f32| {
            constants.clone().uint("EPILOGUE", epilogue as usize).float("FACTOR", factor)
        };
        let bytes = bytemuck::bytes_of(&parts.params);
        let (scratch, vectors, nothing) = (BufferRef::Scratch, BufferRef::Vectors, BufferRef::Nothing);
        let [sent, sorted, given] = [PassBuffer::Sent, PassBuffer::Sorted, PassBuffer::Given].map(scratch);
        if rows.is_sent {
            send(plan, rows, bytes, ends(Epilogue::Store, 1.0));
        }
        let table = if rows.is_sorted {
            sorted
        } else if rows.is_sent {
            sent
        } else if products.gated {
            scratch(PassBuffer::Scores)
        } else {
            scratch(PassBuffer::Wanted)
        };
        let x = if is_coded { BufferRef::Coded(products.x) } else { scratch(products.x) };
        let source = match (rows.is_tiled(), is_coded) {
            (false, true) => &PRODUCT,
            (false, false) => &PRODUCT_FLOATS,
            (true, true) => &TILE,
            (true, false) => &TILE_FLOATS,
        };
        // What slots gave that are sorted by expert is added up by row in a step of its own.
        let is_mixed_later = rows.is_sorted && rows.is_mixed;
        let (y, ended) = match is_mixed_later {
            true => (given, ends(Epilogue::Store, 1.0)),
            false => (scratch(products.y), ends(products.epilogue, products.factor)),
        };
        let mut params = plan.params(bytes);
        let bound = bindings(params, BufferRef::Slab(at.slab), x, [y, table, nothing]);
        let groups = [Extent::Fixed(parts.n_groups), rows.extent, Extent::Fixed(products.heads.0)];
        plan.push(source, ended, bound, groups);
        let work = self.work(products, group, rows, parts.weight_bytes);
        plan.steps.last_mut().into_iter().for_each(|step| step.work = work);
        if is_mixed_later {
            params = plan.params(bytes);
            let bound = bindings(params, vectors, given, [scratch(products.y), sent, nothing]);
            let groups = [Extent::Fixed(parts.n_out / PANEL), Extent::Rows(PANEL), Extent::Fixed(1)];
            plan.push(&MIX, ends(products.epilogue, products.factor), bound, groups);
        }
        let fits = group.iter().all(|(_, piece, column)| piece.n_out % PANEL == 0 && column % PANEL == 0);
        let is_all = is_whole && parts.n_out * products.heads.0 == products.y_stride;
        if is_all && products.rows_of != RowsOf::Wanted && fits {
            let norm_at = params.offset() + std::mem::offset_of!(Params, code_norm);
            let (buffer, width) = (products.y, products.y_stride);
            plan.can_code(Coding { buffer, width, per_row: rows.y_per_row, norm_at });
        }
    }

    fn rows_of(&self, products: &Products<'_>) -> Rows {
        let spec = products.mixture.map(|sent| sent.spec);
        let (used, n_experts) = spec.map_or((1, 1), |spec| (spec.used, spec.n));
        let is_sorted = self.shape.rows == TILE_ROWS;
        let plain = Rows {
            each: self.shape.rows,
            extent: Extent::Rows(self.shape.rows),
            x_per_row: 1,
            y_per_row: 1,
            used,
            n_experts,
            shared: 0,
            is_sent: false,
            is_mixed: false,
            is_sorted: false,
        };
        let sent = |shared: usize, few: Extent| Rows {
            each: if is_sorted { TILE_ROWS } else { 1 },
            extent: if is_sorted { Extent::ExpertTiles(used + shared, n_experts + shared) } else { few },
            shared,
            is_sent: true,
            is_sorted,
            ..plain
        };
        match products.rows_of {
            RowsOf::All => plain,
            RowsOf::Wanted => {
                let each = self.shape.wanted;
                Rows { each, extent: Extent::Wanted(each), ..plain }
            }
            RowsOf::Experts { shared } => {
                let y_per_row = used + shared;
                Rows { y_per_row, ..sent(shared, Extent::Slots(y_per_row)) }
            }
            RowsOf::Mixed { shared } => {
                Rows { x_per_row: used + shared, is_mixed: true, ..sent(shared, Extent::Rows(1)) }
            }
        }
    }

    fn parts(&self, products: &Products<'_>, group: &Group<'_>, rows: Rows) -> Parts {
        let first = group[0].0;
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
        let outs = if rows.is_tiled() { TILE_OUTS / n_pairs } else { PANEL };
        let (mut n_groups, mut weight_bytes, mut n_out_all) = (0, 0, 0);
        for (i, (matrix, piece, column)) in group.iter().enumerate() {
            // After the experts comes the shared expert: parts of one matrix, of its outputs or of its
            // inputs.
            let is_shared = rows.shared > 0 && i >= n_pairs;
            let parts = if is_shared && !rows.is_mixed { rows.shared } else { 1 };
            let n_out = piece.n_out / parts;
            let is_input = is_shared && rows.is_mixed;
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
            let goes_along = is_shared || i % n_pairs > 0;
            n_groups += if goes_along { 0 } else { n_out.div_ceil(outs) };
            n_out_all += if goes_along { 0 } else { n_out };
            let times = if rows.is_sent && !is_shared { rows.used } else { products.heads.0 };
            weight_bytes += matrix.n_bytes() * piece.n_out as u64 / matrix.n_out as u64 * times as u64;
        }
        Parts { params, n_groups, n_out: n_out_all, weight_bytes }
    }

    /// What a step reads.
    fn work(&self, products: &Products<'_>, group: &Group<'_>, rows: Rows, weight_bytes: u64) -> Work {
        let (first, is_coded) = (group[0].0, group[0].0.scheme.is_coded());
        let outs = match rows.is_tiled() {
            true => TILE_OUTS,
            false if products.pair => 2 * PANEL,
            false => PANEL,
        };
        let (outs, units) = (outs as u64, first.units() as u64);
        let slots = if rows.is_mixed && !rows.is_sorted { rows.used as u64 } else { 1 };
        let step = if is_coded && self.has_dot { STEP as u64 } else { 1 };
        Work {
            weight_bytes,
            group_weights: first.n_bytes() / first.n_out as u64 * outs * slots,
            group_rows: rows.each as u64 * units * if is_coded { 56 } else { 128 } * slots,
            group_barriers: if rows.is_tiled() { 2 * units.div_ceil(step) } else { 0 },
            group_multiplications: outs * (first.k * rows.each) as u64 * slots,
            ..Work::default()
        }
    }

    /// The constants of `results.wgsl`, but for its last two.
    fn constants(
        &self,
        products: &Products<'_>,
        group: &Group<'_>,
        rows: Rows,
        view: CodedView,
    ) -> KernelConstants {
        let first = group[0].0;
        let other = group.iter().map(|(m, ..)| m.scheme).find(|scheme| *scheme != first.scheme);
        let n_segments = if products.pair || rows.is_sent { 1 } else { group.len() };
        let has_dot = first.scheme.is_coded() && self.has_dot;
        let constants = KernelConstants::default();
        let constants = match rows.is_tiled() {
            true => constants.uint("STEP", if has_dot { STEP } else { 1 }).flag("DOT", has_dot),
            false => constants.uint("R", rows.each),
        };
        constants
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
            )
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
}

/// The rows of x of a product with matrices of width `width`.
fn rows_of_x(products: &Products<'_>, width: usize, per_row: usize) -> CodedRows {
    let (x, first, stride) = (products.x, products.x_first, products.x_stride);
    CodedRows { x, first, stride, heads: products.heads, width, per_row, norm: products.norm }
}

/// Finds the expert of each slot, and sorts the slots by expert where that is wanted, unless both was done since
/// the scores were written.
fn send(plan: &mut Plan, rows: Rows, params: &[u8], constants: KernelConstants) {
    let (scratch, vectors) = (BufferRef::Scratch, BufferRef::Vectors);
    let [sent, sorted] = [PassBuffer::Sent, PassBuffer::Sorted].map(scratch);
    if !plan.is_after(PassBuffer::Sent, PassBuffer::Scores) {
        let last = [BufferRef::Nothing, scratch(PassBuffer::Scores), sent];
        let bound = bindings(plan.params(params), vectors, vectors, last);
        plan.push(&SENT, constants, bound, [Extent::Fixed(1), Extent::Rows(1), Extent::Fixed(1)]);
    }
    if rows.is_sorted && !plan.is_after(PassBuffer::Sorted, PassBuffer::Sent) {
        let parts = rows.n_experts + rows.shared;
        let constants = KernelConstants::default().uint("N_SLOTS", rows.slots()).uint("N_PARTS", parts);
        plan.push(&SORT, constants, vec![scratch(PassBuffer::Pass), sent, sorted], [Extent::Fixed(1); 3]);
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
