//! A GPU: kernels in WGSL, on Vulkan, Metal or DX12 through wgpu.
//!
//! **One submit a pass.** A pass is a list of dispatches ([`plan`]), made once for a model, a layout of its
//! cache and a [`PassShape`] of passes, and bound to buffers until one of these is replaced. The tokens'
//! slots, positions and tiles are uploaded as small tables before it; requested logits are read back after
//! it.
//!
//! **A row's bits are its own.** Every sum has an order that is written in its kernel: threads that share a
//! sum meet in a tree, pieces of a softmax are merged block by block. Neither the other rows nor the size of
//! a subgroup matters. So exactness holds on each adapter separately, and [`Device::numerics`] names it.
//!
//! Embedding rows are read from the file on the host, some KiB a token, so that no table of them takes memory
//! on the GPU.

mod cache;
mod context;
mod kernels;
#[cfg(any(test, feature = "fixtures"))]
mod outline;
mod plan;
#[cfg(test)]
#[path = "../../tests/inside/gpu_plans.rs"]
mod plans;
mod product;
mod products;
mod recurrence;
mod slots;
mod states;
mod steps;
mod tables;
#[cfg(any(test, feature = "fixtures"))]
mod timing;
mod upload;
mod weights;

use super::{Cache, Device, GpuInfo, Output, Pass, PassSpan, StateSpan, own};
use crate::kv::layout::KvLayout;
use crate::model::calibration::{Calibration, Measured};
use crate::model::gguf::Gguf;
use crate::model::spec::{DecoderSpec, LayerSpec};
use crate::model::weights::{FeedForward, Heads, Mixture, Weights};
use crate::{Error, KvChoice, Result};
use cache::{BoundPlan, GpuCache};
use context::Context;
pub(crate) use context::list;
use greenroom_kernels::floats::Floats;
use greenroom_kernels::pointwise::{centered, rms_norm};
use greenroom_kernels::{Isa, shaping::Shaping};
use half::f16;
use kernels::Kernels;
#[cfg(any(test, feature = "fixtures"))]
pub use outline::GpuStep;
#[cfg(feature = "fixtures")]
use outline::Outline;
use plan::{best_of, candidate_words};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
#[cfg(any(test, feature = "fixtures"))]
pub use steps::GpuPass;
use steps::{BufferRef, Dispatch, LayerVectors, PassBuffer, PassShape, Plan, Planner};
use tables::Tables;
use upload::Upload;
use weights::{GpuMatrix, Packer};
use wgpu::{BindGroupDescriptor, BindGroupEntry, Buffer, BufferBinding};

/// Version of the kernels: it changes with the order of any operation.
const VERSION: u32 = 3;

/// A model on a GPU.
pub(crate) struct Gpu {
    spec: DecoderSpec,
    weights: Weights<GpuMatrix>,
    context: Arc<Context>,
    kernels: Kernels,
    numerics: String,
    slabs: Vec<Buffer>,
    /// Bound where a kernel has no use for a buffer.
    nothing: Buffer,
    /// Whether four products of bytes are an instruction.
    has_dot: bool,
    /// Norms, biases and sinks, and what calibration adds.
    vectors: Vec<f32>,
    /// How many of them come from the file.
    n_vectors: usize,
    vectors_buffer: Buffer,
    of_layers: Vec<LayerVectors>,
    output_norm: u32,
    projected_norm: u32,
    scratch: Mutex<ScratchBuffers>,
    /// The reason why no pass may run: constants of a calibration did not fit.
    broken: Option<String>,
    /// Steps of the last pass, while they are timed.
    #[cfg(any(test, feature = "fixtures"))]
    timed: Mutex<Option<(GpuPass, Vec<GpuStep>)>>,
}

/// Memory of passes, and the parameters of their plans.
#[derive(Default)]
struct ScratchBuffers {
    buffers: HashMap<BufferRef, Buffer>,
    /// Rises when one is replaced.
    generation: u64,
}

impl ScratchBuffers {
    /// A buffer of those that a plan has.
    fn buffer(&self, name: PassBuffer) -> &Buffer {
        &self.buffers[&BufferRef::Scratch(name)]
    }
}

impl Gpu {
    /// Loads a model's weights on the GPU whose name holds `name`, or the best one. `on_progress` gets the
    /// bytes of the file packed so far, and the total.
    ///
    /// # Errors
    /// There is no such GPU, it lacks something, or its memory is too small; else as [`Weights::load`].
    pub(crate) fn load(
        gguf: &Arc<Gguf>,
        name: Option<&str>,
        on_progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Self> {
        let spec = DecoderSpec::from_gguf(gguf)?;
        let widths = spec.layers.iter().flat_map(widths);
        if let Some(odd) = widths.chain([spec.d_model, spec.d_per_layer]).find(|n| n % 16 != 0) {
            return Err(Error::device(format!(
                "a width of {odd} is not supported on a GPU; expected a multiple of 16"
            )));
        }
        let context = Context::open(name)?;
        let limit = context.info.max_binding_bytes;
        let mut packer = Packer::new(Some(context.clone()), limit, gguf.n_bytes());
        let weights = Weights::load(gguf, &spec, &mut packer, on_progress)?;
        context.settle();
        let Packer { slabs, mut vectors, n_bytes, .. } = packer;
        let (of_layers, output_norm, projected_norm) = vectors_of(&weights, &mut vectors);
        let info = &context.info;
        tracing::info!(
            "GPU: {} ({}, {}), {} MiB of weights",
            info.name,
            info.backend,
            info.driver,
            n_bytes >> 20
        );
        let numerics = numerics_of(info);
        let vectors_buffer = context.buffer(0);
        let n_vectors = vectors.len();
        let kernels = Kernels::new(&context);
        let slabs = slabs.into_iter().flatten().collect();
        let nothing = context.buffer(0);
        // Metal's language has no such instruction.
        let has_dot = context.info.backend != "metal";
        let mut gpu = Self {
            spec,
            weights,
            context,
            kernels,
            numerics,
            slabs,
            nothing,
            has_dot,
            vectors,
            n_vectors,
            vectors_buffer,
            of_layers,
            output_norm,
            projected_norm,
            scratch: Mutex::default(),
            broken: None,
            #[cfg(any(test, feature = "fixtures"))]
            timed: Mutex::default(),
        };
        gpu.upload_vectors()?;
        if gpu.context.info.kind != "software" {
            gpu.check_rows()?; // tests have software in view
        }
        Ok(gpu)
    }

    /// Tells whether a row gives the same bits alone as among few or many others: their kernels are other
    /// programs to a driver, and all exactness rests on this.
    ///
    /// # Errors
    /// It does not; or a pass fails.
    pub(crate) fn check_rows(&self) -> Result<()> {
        for n in [9, 40] {
            self.check_among(n)?;
        }
        Ok(())
    }

    fn check_among(&self, n: usize) -> Result<()> {
        let ids: Vec<u32> =
            (1..=n as u32).map(|i| i.wrapping_mul(2_654_435_761) % self.n_vocab() as u32).collect();
        let layout = Arc::new(self.spec.kv_layout(&KvChoice::Auto)?);
        let run = |pass: &Pass, cache: &mut dyn Cache| match self.run(pass, cache, None)? {
            Output::Logits(logits) => Ok(logits),
            Output::Best(_) | Output::Hidden(_) => Err(Error::internal("all logits were wanted")),
        };
        let all = Pass { wanted: vec![n - 1], ..Pass::alone(&ids, &layout) };
        let together = run(&all, &mut *self.cache(layout.clone()))?;
        let mut cache = self.cache(layout.clone());
        run(&Pass::alone(&ids[..n - 1], &layout), &mut *cache)?;
        let last = Pass::next(ids[n - 1], n - 1, &layout);
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
        if together.iter().zip(&run(&last, &mut *cache)?).all(same) {
            return Ok(());
        }
        let name = &self.context.info.name;
        Err(Error::device(format!(
            "{name} can't be used: its driver computes different bits for a row alone than among others"
        )))
    }

    fn upload_vectors(&mut self) -> Result<()> {
        let bytes: &[u8] = bytemuck::cast_slice(&self.vectors);
        self.vectors_buffer = self.context.checked("memory for vectors", || {
            let buffer = self.context.buffer(bytes.len() as u64);
            self.context.queue.write_buffer(&buffer, 0, bytes);
            Ok(buffer)
        })?;
        self.scratch.get_mut().unwrap_or_else(PoisonError::into_inner).generation += 1;
        Ok(())
    }

    fn planner<'a>(&'a self, layout: &'a KvLayout, shape: PassShape) -> Planner<'a> {
        let Self { spec, weights, of_layers, output_norm, projected_norm, .. } = self;
        let [output_norm, projected_norm] = [*output_norm, *projected_norm];
        let has_dot = self.has_dot;
        Planner { spec, weights, vectors: of_layers, output_norm, projected_norm, layout, shape, has_dot }
    }

    /// Binds the steps of a plan to buffers.
    fn bind(
        &self,
        plan: &Plan,
        params: &Buffer,
        upload: &Upload,
        scratch: &ScratchBuffers,
        cache: &GpuCache,
    ) -> Result<Vec<(Arc<kernels::Compiled>, wgpu::BindGroup)>> {
        let bind = |step: &Dispatch| {
            let compiled = self.kernels.get(step.source, &step.constants)?;
            let buffer = |place: &BufferRef| -> BufferBinding<'_> {
                let whole = |buffer| BufferBinding { buffer, offset: 0, size: None };
                match place {
                    BufferRef::Slab(i) => whole(&self.slabs[*i]),
                    BufferRef::Vectors => whole(&self.vectors_buffer),
                    BufferRef::Params(first, n) => {
                        let size = std::num::NonZero::new(n.next_multiple_of(16) as u64);
                        BufferBinding { buffer: params, offset: *first as u64, size }
                    }
                    BufferRef::Scratch(name) => {
                        upload.binding(*name).unwrap_or_else(|| whole(&scratch.buffers[place]))
                    }
                    BufferRef::Coded(_) => whole(&scratch.buffers[place]),
                    BufferRef::Nothing => whole(&self.nothing),
                    BufferRef::Rows(l) => whole(cache.rows(*l)),
                    BufferRef::Blocks(l) => whole(cache.blocks(*l)),
                    BufferRef::Exact(l) => whole(cache.exact(*l)),
                    BufferRef::Matrices(l) => whole(&cache.states.layers[*l].matrices),
                    BufferRef::Log(l) => whole(&cache.states.layers[*l].log),
                    BufferRef::Sealed(l) => whole(&cache.states.layers[*l].sealed),
                }
            };
            let entry = |(i, place): (usize, &BufferRef)| BindGroupEntry {
                binding: i as u32,
                resource: wgpu::BindingResource::Buffer(buffer(place)),
            };
            let entries: Vec<BindGroupEntry<'_>> = step.bindings.iter().enumerate().map(entry).collect();
            let layout = &compiled.layout;
            let descriptor = BindGroupDescriptor { label: Some(step.source.name), layout, entries: &entries };
            let group = self.context.device.create_bind_group(&descriptor);
            Ok((compiled, group))
        };
        self.context.checked("binding a plan", || plan.steps.iter().map(bind).collect())
    }

    /// The plan of passes of a shape over a cache, with its parameters, and what was uploaded for the last one.
    fn planned(&self, shape: PassShape, cache: &mut GpuCache) -> Result<BoundPlan> {
        if let Some(bound) = cache.plans.remove(&shape) {
            return Ok(bound);
        }
        let plan = self.planner(&cache.layout, shape).plan();
        self.context.checked("memory for a plan", || {
            let params = self.context.buffer(plan.params.len() as u64);
            self.context.queue.write_buffer(&params, 0, &plan.params);
            let upload = Upload::new(&self.context, &[]);
            Ok(BoundPlan { plan: Arc::new(plan), params, upload, steps: Vec::new(), generations: None })
        })
    }

    /// Makes the memory of a pass large enough, writes what it tells of its tokens, and binds its plan to the
    /// buffers as they are now.
    fn prepare(
        &self,
        shape: PassShape,
        tables: &Tables,
        scratch: &mut ScratchBuffers,
        cache: &mut GpuCache,
    ) -> Result<()> {
        // Calibration changes plans; it comes before all caches but its own.
        let mut bound = self.planned(shape, cache)?;
        let mut needed = self.scratch_bytes(&bound.plan, tables);
        needed.retain(|(place, bytes)| scratch.buffers.get(place).is_none_or(|b| b.size() < *bytes));
        let has_room = bound.upload.has_room(&tables.bytes);
        if !needed.is_empty() || !has_room {
            let grown = self.context.checked("memory for a pass", || {
                if !has_room {
                    bound.upload = Upload::new(&self.context, &tables.bytes);
                    bound.generations = None;
                }
                let grown = needed.into_iter().map(|(place, n)| (place, self.context.buffer(n + n / 4)));
                Ok(grown.collect::<Vec<_>>())
            })?;
            scratch.generation += u64::from(!grown.is_empty());
            scratch.buffers.extend(grown);
        }
        for (name, bytes) in tables.rows.iter().filter(|(_, bytes)| !bytes.is_empty()) {
            self.context.queue.write_buffer(scratch.buffer(*name), 0, bytes);
        }
        bound.upload.write(&self.context, &tables.bytes);
        let generations = Some([cache.generation, scratch.generation]);
        if bound.generations != generations {
            bound.steps = self.bind(&bound.plan, &bound.params, &bound.upload, scratch, cache)?;
            bound.generations = generations;
        }
        cache.plans.insert(shape, bound);
        Ok(())
    }

    /// Encodes steps of a bound plan.
    fn encode(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        bound: &BoundPlan,
        tables: &Tables,
        is_meant: impl Fn(&Dispatch) -> bool,
    ) {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        let steps = bound.plan.steps.iter().enumerate();
        let meant = steps.filter(|(_, step)| is_meant(step));
        meant.for_each(|(i, step)| bound.dispatch(&mut pass, i, tables.groups(step)));
    }

    fn pass(&self, pass: &Pass, cache: &mut GpuCache, watch: Option<&mut Measured>) -> Result<Output> {
        if let Some(why) = &self.broken {
            return Err(Error::device(why));
        }
        cache.check()?;
        let wanted = if pass.hidden { 0 } else { pass.wanted.len() };
        let lone = pass.spans.iter().all(|span| span.n <= 1);
        let shape = PassShape::new(pass.ids.len(), wanted, lone, pass.best.is_some());
        let shape = PassShape { apart: watch.is_some(), ..shape };
        let tables = self.tables(pass, shape, cache)?;
        let output = self.computed(pass, shape, &tables, cache, watch)?;
        pass.spans.iter().filter_map(|span| span.state.as_ref()).for_each(|span| cache.states.finish(span));
        Ok(output)
    }

    fn computed(
        &self,
        pass: &Pass,
        shape: PassShape,
        tables: &Tables,
        cache: &mut GpuCache,
        watch: Option<&mut Measured>,
    ) -> Result<Output> {
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        self.prepare(shape, tables, &mut scratch, cache)?;
        if let Some(watch) = watch {
            self.watched(pass, shape, tables, &scratch, cache, watch)?;
            return Ok(Output::Logits(Vec::new()));
        }
        let mut encoder = self.context.encoder();
        let bound = &cache.plans[&shape];
        #[cfg(any(test, feature = "fixtures"))]
        let is_timed = self.run_timed(bound, tables)?;
        #[cfg(not(any(test, feature = "fixtures")))]
        let is_timed = false;
        if !is_timed {
            self.encode(&mut encoder, bound, tables, |_| true);
        }
        if pass.hidden {
            return self.hidden(pass, encoder, &scratch);
        }
        if shape.best {
            let of_row = candidate_words(self.weights.n_vocab);
            let n_bytes = 4 * (tables.n_wanted * of_row) as u64;
            let found = self.context.read(
                "a pass",
                encoder,
                &[(scratch.buffer(PassBuffer::Candidates), 0, n_bytes)],
            )?;
            let found: Vec<u32> = bytemuck::pod_collect_to_vec(&found);
            let rows = found.chunks_exact(of_row).enumerate();
            return Ok(Output::Best(rows.map(|(row, found)| best_of(row, found)).collect()));
        }
        let n_bytes = 4 * (tables.n_wanted * self.weights.n_vocab) as u64;
        let logits =
            self.context.read("a pass", encoder, &[(scratch.buffer(PassBuffer::Logits), 0, n_bytes)])?;
        Ok(Output::Logits(bytemuck::pod_collect_to_vec(&logits)))
    }

    /// Hidden states of the wanted rows of an encoded pass: the final norm is the host's.
    fn hidden(&self, pass: &Pass, encoder: wgpu::CommandEncoder, scratch: &ScratchBuffers) -> Result<Output> {
        let d = self.spec.d_model;
        let n_bytes = 4 * (pass.ids.len() * d) as u64;
        let stream =
            self.context.read("a pass", encoder, &[(scratch.buffer(PassBuffer::Stream), 0, n_bytes)])?;
        let stream: Vec<f32> = bytemuck::pod_collect_to_vec(&stream);
        let rows: Vec<f32> = pass.wanted.iter().flat_map(|row| &stream[row * d..][..d]).copied().collect();
        let rows = if self.spec.family.parallel { centered(&rows, d) } else { Floats::from(rows) };
        let norm = rms_norm(Isa::detect(), &rows, &self.weights.output_norm, self.spec.norm_eps);
        Ok(Output::Hidden(norm.into_vec()))
    }

    /// A pass whose queries, keys and values are recorded, layer by layer, over rows that are neither coded
    /// nor rotated.
    fn watched(
        &self,
        pass: &Pass,
        shape: PassShape,
        tables: &Tables,
        scratch: &ScratchBuffers,
        cache: &GpuCache,
        watch: &mut Measured,
    ) -> Result<()> {
        let (spec, bound) = (&self.spec, &cache.plans[&shape]);
        let n_before = bound.plan.steps.iter().take_while(|step| step.layer.is_none()).count();
        let read = |encoder, scratch_of: PassBuffer, n: usize| -> Result<Vec<f32>> {
            let bytes =
                self.context.read("a pass", encoder, &[(scratch.buffer(scratch_of), 0, 4 * n as u64)])?;
            Ok(bytemuck::pod_collect_to_vec(&bytes))
        };
        let write = |scratch_of: PassBuffer, x: &[f32]| {
            self.context.queue.write_buffer(scratch.buffer(scratch_of), 0, bytemuck::cast_slice(x));
        };
        let (n, d) = (tables.n_rows, spec.d_model);
        let mut encoder = self.context.encoder();
        let before = &bound.plan.steps[..n_before];
        self.encode(&mut encoder, bound, tables, |step| before.iter().any(|b| std::ptr::eq(b, step)));
        read(encoder, PassBuffer::Stream, 0)?;
        for (l, layer) in spec.layers.iter().enumerate() {
            let steps: Vec<&Dispatch> =
                bound.plan.steps.iter().filter(|step| step.layer == Some(l)).collect();
            let Some(own) = layer.attention.as_ref().filter(|own| own.writes) else {
                let mut encoder = self.context.encoder();
                self.encode(&mut encoder, bound, tables, |step| steps.iter().any(|m| std::ptr::eq(*m, step)));
                read(encoder, PassBuffer::Stream, 0)?;
                continue;
            };
            let (q_row, context_row) = (own.n_heads * own.k_dim, own.n_heads * own.v_dim);
            let combined = steps.iter().position(|step| step.source.name == kernels::COMBINE.name);
            let after = combined.unwrap_or(0) + 1;
            // Up to what is added to the stream.
            let adds = |step: &&Dispatch| step.writes(PassBuffer::Stream);
            let added = after + steps[after..].iter().position(adds).unwrap_or(0) + 1;
            let run = |from: usize, to: usize, scratch_of: PassBuffer, n: usize| {
                let mut encoder = self.context.encoder();
                let meant = &steps[from..to];
                self.encode(&mut encoder, bound, tables, |step| meant.iter().any(|m| std::ptr::eq(*m, step)));
                read(encoder, scratch_of, n)
            };
            let before = read(self.context.encoder(), PassBuffer::Stream, n * d)?;
            let contexts = run(0, after, PassBuffer::Contexts, n * context_row)?;
            let q = read(self.context.encoder(), PassBuffer::Queries, n * q_row)?;
            let (mut k, mut v) = (Vec::new(), Vec::new());
            let side = own.n_kv_heads * own.k_dim;
            for id in &pass.spans[0].rows {
                let rows = cache.export_layer(*id, own.cache)?;
                let rows: Vec<f32> =
                    rows.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect();
                for row in rows.chunks_exact(side + own.n_kv_heads * own.v_dim) {
                    k.extend_from_slice(&row[..side]);
                    v.extend_from_slice(&row[side..]);
                }
            }
            let n_rot = own.rope.map_or(0, |rope| spec.ropes[rope].n_rot());
            watch.add(own, spec.family.pairs, n_rot, [&q, &k, &v]);
            let mut noisy = watch.noise().to_vec();
            noisy.iter_mut().zip(&contexts).for_each(|(x, context)| *x += context);
            write(PassBuffer::Contexts, &noisy);
            let changed = run(after, added, PassBuffer::Stream, n * d)?;
            write(PassBuffer::Stream, &before);
            write(PassBuffer::Contexts, &contexts);
            let attended = run(after, added, PassBuffer::Stream, n * d)?;
            watch.felt(&attended, &changed, d);
            run(added, steps.len(), PassBuffer::Stream, 0)?;
        }
        Ok(())
    }
}

impl Device for Gpu {
    fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    fn n_vocab(&self) -> usize {
        self.weights.n_vocab
    }

    fn numerics(&self) -> &str {
        &self.numerics
    }

    fn calibrate(&mut self, calibration: &Calibration) {
        self.spec.calibrate(calibration);
        self.vectors.truncate(self.n_vectors);
        for (of_layer, layer) in self.of_layers.iter_mut().zip(&self.spec.layers) {
            let Some(own) = &layer.attention else { continue };
            let Some([queries, keys]) = calibration.of_layer(own.cache) else { continue };
            let shaping = Shaping::new(Isa::detect(), &queries, &keys, own.k_dim);
            let mut put = |x: &[f32]| {
                let first = self.vectors.len() as u32;
                self.vectors.extend_from_slice(x);
                first
            };
            of_layer.shaping = Some(shaping.parts().map(&mut put));
        }
        self.broken = self.upload_vectors().err().map(|e| e.to_string());
    }

    fn cache(&self, layout: Arc<KvLayout>) -> Box<dyn Cache> {
        Box::new(GpuCache::new(&self.context, layout))
    }

    fn run(&self, pass: &Pass, cache: &mut dyn Cache, watch: Option<&mut Measured>) -> Result<Output> {
        self.pass(pass, own(cache), watch)
    }

    /// A pass without rows: of its plan, what walks through logged tokens.
    fn seal(&self, span: &StateSpan, cache: &mut dyn Cache) -> Result<()> {
        let (start, state) = (span.certain, Some(span.clone()));
        let span = PassSpan { start, n: 0, sealed: vec![], rows: vec![], completed: vec![], state };
        let pass = Pass {
            ids: vec![],
            spans: vec![span],
            wanted: vec![],
            hidden: false,
            best: None,
            is_awaited: None,
        };
        self.pass(&pass, own(cache), None).map(|_| ())
    }

    fn logits(&self, row: usize) -> Result<Vec<f32>> {
        let scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let n_bytes = 4 * self.weights.n_vocab as u64;
        let logits = (scratch.buffer(PassBuffer::Logits), row as u64 * n_bytes, n_bytes);
        Ok(bytemuck::pod_collect_to_vec(&self.context.read(
            "reading logits",
            self.context.encoder(),
            &[logits],
        )?))
    }
}

/// Name of a GPU's arithmetic: its interface, name and driver, and the version of the kernels.
pub(crate) fn numerics_of(info: &GpuInfo) -> String {
    format!("gpu/{VERSION} {} {} {}", info.backend, info.name, info.driver)
}

/// What the steps of a pass cost, by their plan: of a model whose shapes are those of `gguf`.
///
/// # Errors
/// The model can't be served, or has no such cache.
#[cfg(feature = "fixtures")]
pub(crate) fn count_steps(gguf: &Arc<Gguf>, kv: &KvChoice, pass: GpuPass) -> Result<Vec<GpuStep>> {
    Outline::of(gguf)?.steps(kv, pass)
}

/// Faults of a GPU, for tests.
#[cfg(test)]
impl Gpu {
    /// A kernel that no driver takes.
    pub(crate) fn fails_to_compile(&self) -> Result<()> {
        self.kernels.get(&kernels::NORM, &kernels::KernelConstants::default()).map(|_| ())
    }

    /// More memory than there is.
    pub(crate) fn fails_to_allocate(&self) -> Result<Buffer> {
        self.context.checked("memory", || Ok(self.context.buffer(1 << 50)))
    }

    /// Submits of work so far, and bytes that came back.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        *self.context.traffic.lock().expect("a count")
    }

    /// Puts a fault into all kernels that have the text `right`, those that were compiled before too.
    pub(crate) fn fault(&mut self, right: &'static str, wrong: &'static str) {
        self.kernels = Kernels::new(&self.context);
        self.kernels.fault = Some([right, wrong]);
    }

    /// Multiplies codes of many rows as floats, as on Metal.
    pub(crate) fn without_dot(&mut self) {
        self.has_dot = false;
    }

    pub(crate) fn lose(&self) {
        self.context.device.destroy();
    }
}

/// Widths of a layer that must be multiples of 16.
fn widths(layer: &LayerSpec) -> impl Iterator<Item = usize> {
    let attention = layer
        .attention
        .as_ref()
        .map(|own| [own.k_dim, own.v_dim, own.latent.map_or(0, |latent| latent.q_rank)]);
    let recurrence = layer.recurrence.as_ref().map(|own| [own.channels, own.v_dim, own.inner()]);
    let experts = layer.feed_forward.and_then(|it| it.experts()).map_or(0, |experts| experts.d_latent);
    attention.into_iter().chain(recurrence).flatten().chain([experts])
}

/// Puts norms and sinks among the vectors: places of each layer's, and of the last norm.
fn vectors_of(weights: &Weights<GpuMatrix>, vectors: &mut Vec<f32>) -> (Vec<LayerVectors>, u32, u32) {
    let mut put = |x: &[f32]| {
        let first = vectors.len() as u32;
        vectors.extend_from_slice(x);
        first
    };
    let of_layers = weights.layers.iter().map(|layer| {
        let heads = layer.attention.as_ref().map(|attention| &attention.heads);
        let head_norms = match heads {
            Some(Heads::Plain { norms: Some(norms), .. }) => norms.each_ref().map(|norm| put(norm)),
            Some(Heads::Latent { norm, .. }) => [put(norm); 2],
            _ => [0; 2],
        };
        let query_norm = match heads {
            Some(Heads::Latent { queries: Some((norm, _)), .. }) => put(norm),
            _ => 0,
        };
        let value_norm = match heads {
            Some(Heads::Plain { value_norm: Some(norm), .. }) => put(norm),
            _ => 0,
        };
        let mixture = match &layer.feed_forward {
            Some(FeedForward::Experts(mixture)) => Some(mixture),
            Some(FeedForward::Both(both)) => Some(&both.experts),
            Some(FeedForward::Dense(_)) | None => None,
        };
        let mut of_experts = |of: fn(&Mixture<GpuMatrix>) -> &Option<Vec<f32>>| {
            mixture.and_then(|mixture| of(mixture).as_ref()).map(|numbers| put(numbers))
        };
        let expert_bias = of_experts(|mixture| &mixture.bias);
        let expert_scales = of_experts(|mixture| &mixture.scales);
        let both_norms = match &layer.feed_forward {
            Some(FeedForward::Both(both)) => {
                let [dense, experts] = &both.post_norms;
                [&both.router_norm, &both.norm, dense, experts].map(|norm| put(norm))
            }
            _ => [0; 4],
        };
        let sinks = layer.attention.as_ref().and_then(|attention| attention.sinks.as_ref());
        let sinks = sinks.map_or(0, |sinks| put(sinks));
        let mut optional = |numbers: Option<&Vec<f32>>| numbers.map_or(0, |numbers| put(numbers));
        let recurrence = layer.recurrence.as_ref();
        let convolution = [
            optional(recurrence.map(|recurrence| &recurrence.convolution)),
            optional(recurrence.and_then(|recurrence| recurrence.convolution_bias.as_ref())),
        ];
        let heads = recurrence.and_then(|recurrence| recurrence.heads.as_ref());
        let state_heads = [
            optional(heads.map(|heads| &heads.bias)),
            optional(heads.map(|heads| &heads.slope)),
            optional(heads.and_then(|heads| heads.skip.as_ref())),
        ];
        let state_norm = optional(heads.and_then(|heads| heads.norm.as_ref()));
        let input_norm = layer.input.as_ref().map_or(0, |input| put(&input.norm));
        let mut both =
            |norms: &[Option<Vec<f32>>; 2]| norms.each_ref().map(|norm| norm.as_ref().map(|norm| put(norm)));
        LayerVectors {
            norms: both(&layer.norms),
            post_norms: both(&layer.post_norms),
            head_norms,
            query_norm,
            value_norm,
            expert_bias,
            expert_scales,
            both_norms,
            input_norm,
            sinks,
            convolution,
            state_heads,
            state_norm,
            shaping: None,
        }
    });
    let of_layers = of_layers.collect();
    let projected_norm = weights.per_layer.as_ref().map_or(0, |per_layer| put(&per_layer.norm));
    (of_layers, put(&weights.output_norm), projected_norm)
}
