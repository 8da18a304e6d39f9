//! The steps that multiply: which matrices share one, what is normed before and what becomes of the products.

use super::kernels::{CENTER, KernelConstants, NORM, NORMS};
use super::product::{Epilogue, Group, Products, RowsOf, SEGMENTS, Sent};
use super::steps::{BufferRef, Coding, Extent, LayerVectors, PassBuffer, Plan, Planner};
use super::weights::{GpuMatrix, MatrixPart, PANEL};
use crate::model::spec::ExpertSpec;
use crate::model::weights::{DenseAndExperts, Mixture, Mlp};

const NONE: u32 = u32::MAX;

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
            self.product(plan, &products, &group, is_whole);
        }
    }
}
