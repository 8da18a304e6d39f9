//! The steps that multiply: which matrices share one, what is normed before and what becomes of the products.

use super::kernels::{Constants, NORM, PRODUCT, PRODUCT_FLOATS};
use super::steps::{Extent, LayerVectors, Place, Plan, Planner, Scratch};
use super::weights::{GpuMatrix, OUTS, Piece, Scheme};
use crate::model::spec::Activation;
use crate::model::weights::Mlp;

const NONE: u32 = u32::MAX;

/// What becomes of products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Epilogue {
    Store = 0,
    Add = 1,
    Gate = 2,
}

/// Which rows go through a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowsOf {
    All = 0,
    Wanted = 1,
    Experts = 2,
}

/// Products of rows of one buffer with matrices, into another.
#[derive(Clone)]
pub(super) struct Products<'a> {
    /// Each with the column of its first output.
    pub(super) matrices: Vec<(&'a GpuMatrix, usize)>,
    pub(super) x: Scratch,
    /// Width of a row of x.
    pub(super) x_stride: usize,
    pub(super) y: Scratch,
    pub(super) y_stride: usize,
    pub(super) norm: Option<u32>,
    pub(super) epilogue: Epilogue,
    pub(super) rows_of: RowsOf,
    /// Two matrices whose products are gated.
    pub(super) pair: bool,
    /// Equal matrices of a tensor, of which the first is given: how many go by in one step, and the distance of their columns in x and y.
    pub(super) each: Option<(usize, usize, usize)>,
    /// Experts' results are added up.
    pub(super) mixed: bool,
}

impl<'a> Products<'a> {
    pub(super) fn plain(
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
    /// The gated hidden numbers of a feed-forward.
    pub(super) fn mlp_hidden(
        &self,
        plan: &mut Plan,
        mlp: &Mlp<GpuMatrix>,
        hidden: Scratch,
        vectors: &LayerVectors,
    ) {
        let products =
            Products::plain(vec![], (Scratch::Stream, self.spec.d_model), (hidden, mlp.gate.n_out));
        self.gated(plan, (&mlp.gate, &mlp.up), Products { norm: Some(vectors.ffn_norm), ..products });
    }

    /// `act(gate x) · up x`: in one step where both matrices are of one type and in one slab.
    pub(super) fn gated<'a>(
        &self,
        plan: &mut Plan,
        (gate, up): (&'a GpuMatrix, &'a GpuMatrix),
        products: Products<'a>,
    ) {
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
    pub(super) fn add(&self, plan: &mut Plan, matrix: &GpuMatrix, x: (Scratch, usize), post_norm: u32) {
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
    pub(super) fn by_head(
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
    pub(super) fn products(&self, plan: &mut Plan, products: Products<'_>) {
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
}

impl Constants {
    /// The types of matrices, and which it is.
    fn scheme(self, scheme: Scheme) -> Self {
        let named = |(constants, i): (Self, usize), other: Scheme| (constants.uint(other.name(), i), i + 1);
        let (constants, _) = Scheme::ALL.into_iter().fold((self, 0), named);
        let index = Scheme::ALL.iter().position(|other| *other == scheme).unwrap_or(0);
        constants.uint("SCHEME", index).bytes("TABLE", scheme.table().unwrap_or_default())
    }
}
