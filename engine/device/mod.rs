//! The seam between what is planned and what computes it.
//!
//! Above it are ids, hashes, lengths, block tables, the plan of a pass, eviction and the disk; below it
//! weights, rows, sealed blocks and arithmetic. A [`Device`] owns a model's weights and runs [`Pass`]es; a
//! [`Cache`] that it made owns the keys and values of many sequences in one layout, and gives and takes bytes
//! as [`format`](crate::kv::format) has them. Blocks and rows are identified by ids that the layer above
//! assigns.
//!
//! [`cpu`] has the kernels. [`reference`] is the same mathematics in plain tensors: to be read, and to test
//! the others against.

pub(crate) mod cpu;
#[cfg(feature = "gpu")]
pub(crate) mod gpu;
#[cfg(test)]
pub(crate) mod reference;
mod states;

#[cfg(not(feature = "gpu"))]
use crate::ErrorKind;
use crate::kv::format::BlockBytes;
use crate::kv::layout::{BLOCK, KvLayout, Part};
use crate::kv::table::{BlockId, Parts, RowsId, StateId};
use crate::model::calibration::{self, Calibration, Measured};
use crate::model::gguf::Gguf;
use crate::model::spec::DecoderSpec;
use crate::{Error, KvChoice, KvFormat, Result};
use greenroom_kernels::{Isa, divergence, vocabulary};
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

pub(crate) use vocabulary::{Below, ERROR, LOGITS_PER_PIECE};

/// The numerics of the device that an engine opens by itself.
pub(crate) const DEFAULT_NUMERICS: &str = cpu::NUMERICS;

/// The device that computes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceChoice {
    /// The device that answers sooner: a GPU that can hold the model (software is none), or the processor. Both
    /// are timed when a model is first opened with a cache folder, each time without a folder.
    Auto,
    /// The processor.
    #[default]
    Cpu,
    /// The best GPU, or the one whose name contains this text (case-insensitive); a software GPU is used only
    /// if named.
    Gpu(Option<String>),
}

/// Opens a model on a device; [`DeviceChoice::Auto`] stands for the processor here. `on_progress` gets the
/// bytes of the file packed so far, and the total.
///
/// # Errors
/// The model can't be served; the GPU is missing or can't hold it.
pub(crate) fn open(
    choice: &DeviceChoice,
    gguf: &Arc<Gguf>,
    on_progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<Box<dyn Device>> {
    match choice {
        DeviceChoice::Auto | DeviceChoice::Cpu => {
            Ok(Box::new(cpu::Cpu::load(gguf, Isa::detect(), on_progress)?))
        }
        #[cfg(feature = "gpu")]
        DeviceChoice::Gpu(name) => Ok(Box::new(gpu::Gpu::load(gguf, name.as_deref(), on_progress)?)),
        #[cfg(not(feature = "gpu"))]
        DeviceChoice::Gpu(_) => {
            let found = "this program was built without GPU support (the feature `gpu`)";
            Err(Error::new(ErrorKind::Device, found))
        }
    }
}

/// GPUs of this machine, the best first; empty if built without GPU support.
pub fn gpus() -> Vec<GpuInfo> {
    #[cfg(feature = "gpu")]
    return gpu::list();
    #[cfg(not(feature = "gpu"))]
    Vec::new()
}

/// True if the program was built with what GPUs need: the feature `gpu`.
pub const BUILT_WITH_GPUS: bool = cfg!(feature = "gpu");

/// The GPU that [`DeviceChoice::Auto`] compares with the processor: the first hardware GPU that meets all
/// requirements.
pub fn default_gpu(gpus: &[GpuInfo]) -> Option<&GpuInfo> {
    gpus.iter().find(|gpu| !gpu.is_software() && gpu.missing.is_empty())
}

impl GpuInfo {
    /// Name of its arithmetic.
    #[cfg(feature = "gpu")]
    pub(crate) fn numerics(&self) -> String {
        gpu::numerics_of(self)
    }

    /// Name of its arithmetic; there is none without what GPUs need.
    #[cfg(not(feature = "gpu"))]
    pub(crate) fn numerics(&self) -> String {
        String::new()
    }

    /// True for a software implementation such as llvmpipe: it is used only if named.
    pub fn is_software(&self) -> bool {
        self.kind == "software"
    }
}

/// A GPU, or software that does its work, as the system offers it.
#[derive(Clone, Debug)]
pub struct GpuInfo {
    /// Its own name.
    pub name: String,
    /// Graphics API of the adapter: `vulkan`, `metal`, `dx12`.
    pub backend: String,
    /// `discrete`, `integrated`, `virtual`, `software` or `other`.
    pub kind: &'static str,
    /// Name and version of its driver.
    pub driver: String,
    /// Maximum size of a buffer binding, in bytes: matrices are split by it, and the experts of a layer must
    /// fit.
    pub max_binding_bytes: u64,
    /// Maximum bytes that a workgroup shares.
    pub workgroup_bytes: u64,
    /// Required features it lacks; empty if usable.
    pub missing: Vec<String>,
}

/// A model on what computes it.
pub(crate) trait Device: Send + Sync {
    /// The model's shape.
    fn spec(&self) -> &DecoderSpec;

    /// Size of the vocabulary.
    fn n_vocab(&self) -> usize;

    /// Name and version of its arithmetic: devices of one name give the same bits, and share caches.
    fn numerics(&self) -> &str;

    /// Codes keys as a calibration says, from now on.
    fn calibrate(&mut self, calibration: &Calibration);

    /// An empty cache.
    fn cache(&self, layout: Arc<KvLayout>) -> Box<dyn Cache>;

    /// Runs a pass over a cache that the device made: writes the new tokens' keys and values to their rows,
    /// seals the blocks that they complete, and attends. Returns the requested logits, or only the likeliest
    /// tokens where they are enough, or the requested hidden states. `watch` records queries, keys and
    /// values.
    ///
    /// # Errors
    /// Something fails. What was written is undone by [`Cache::free_block`], [`Cache::free_rows`] and
    /// [`Cache::truncate_rows`].
    fn run(&self, pass: &Pass, cache: &mut dyn Cache, watch: Option<&mut Measured>) -> Result<Output>;

    /// Advances a state of a cache that the device made to its last seal, through tokens that it has logged,
    /// without a pass.
    ///
    /// # Errors
    /// The device fails.
    fn seal(&self, span: &StateSpan, cache: &mut dyn Cache) -> Result<()>;

    /// All logits of a wanted row of the last pass, of which it gave the likeliest tokens.
    ///
    /// # Errors
    /// The device fails, or keeps none.
    fn logits(&self, row: usize) -> Result<Vec<f32>> {
        Err(Error::internal(format!("logits of row {row} are not kept")))
    }
}

/// What a pass gives of the rows that were wanted.
pub(crate) enum Output {
    /// Logits, `[wanted, n_vocab]`.
    Logits(Vec<f32>),
    /// Hidden states after the final norm, `[wanted, d_model]`.
    Hidden(Vec<f32>),
    /// The likeliest tokens of each; a device need not sort them out.
    #[cfg_attr(not(feature = "gpu"), allow(dead_code))]
    Best(Vec<Best>),
}

/// The likeliest tokens of a row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Best {
    /// The row among those that were wanted.
    pub(crate) row: usize,
    /// Ids with their logits, in no order: all whose logit is not below `least`. None, if there are too many.
    pub(crate) candidates: Vec<(u32, f32)>,
    pub(crate) least: f32,
    /// The largest logit, and the sum of `exp((x - top) / temperature)` over all other tokens, to a
    /// hundredth.
    pub(crate) top: f32,
    pub(crate) rest: f32,
}

/// Keys and values of many sequences, in blocks of one layout.
pub(crate) trait Cache: Any + Send {
    /// Takes in a part of a sealed block. Where that fails, every later pass does.
    fn import_block(&mut self, id: BlockId, part: Part, bytes: Arc<BlockBytes>);

    /// The bytes of a sealed block.
    ///
    /// # Errors
    /// The device fails.
    fn export_block(&self, id: BlockId) -> Result<Arc<BlockBytes>>;

    /// Forgets a sealed block, if it is there.
    fn free_block(&mut self, id: BlockId);

    /// Adds tokens to rows (which may be new), as bytes.
    fn import_rows(&mut self, id: RowsId, bytes: &[u8]);

    /// Tokens of rows, as bytes.
    ///
    /// # Errors
    /// The device fails.
    fn export_rows(&self, id: RowsId, tokens: Range<usize>) -> Result<Vec<u8>>;

    /// Adds the first `n` tokens of rows to others, which may be new.
    fn copy_rows(&mut self, from: RowsId, to: RowsId, n: usize);

    /// Forgets all but the first `n` tokens of rows, in every layer.
    fn truncate_rows(&mut self, id: RowsId, n: usize);

    /// Forgets rows, if they are there.
    fn free_rows(&mut self, id: RowsId);

    /// Makes a sequence's state (which may be new) stand after its first `at` tokens, as a sealed one says, or
    /// an empty sequence's. What it has logged of later tokens stays.
    fn load_state(&mut self, id: StateId, at: usize, from: Option<BlockId>);

    /// Forgets what a state has logged of tokens after the first `n`, which is not before where it stands.
    fn truncate_state(&mut self, id: StateId, n: usize);

    /// Forgets a state, if it is there.
    fn free_state(&mut self, id: StateId);

    /// Bytes that all rows and states take.
    fn open_bytes(&self) -> u64;
}

/// Input of one pass through the model.
pub(crate) struct Pass {
    /// New tokens, span by span: the rows of the pass.
    pub(crate) ids: Vec<u32>,
    pub(crate) spans: Vec<PassSpan>,
    /// Rows whose logits are wanted, ascending.
    pub(crate) wanted: Vec<usize>,
    /// True if of these rows the hidden states after the final norm are wanted, instead of logits.
    pub(crate) hidden: bool,
    /// Temperatures at which tokens are drawn from each of these rows, if that is all that is done with them.
    #[cfg_attr(not(feature = "gpu"), allow(dead_code))]
    pub(crate) best: Option<Vec<f32>>,
    /// Returns, between layers, whether a caller still waits for the pass; a device may continue
    /// nevertheless. `None`: one does.
    pub(crate) is_awaited: Option<IsAwaited>,
}

/// Returns whether a caller waits for a pass.
pub(crate) type IsAwaited = Box<dyn Fn() -> bool + Send + Sync>;

/// The new tokens of one sequence, at positions `start .. start + n`.
///
/// A row of block b sees the blocks before b sealed, those among them that this pass completes too, and the
/// rows of its own.
pub(crate) struct PassSpan {
    pub(crate) start: usize,
    pub(crate) n: usize,
    /// The sealed blocks, `start / 256` of them; of the windowed part only what the rows see.
    pub(crate) sealed: Vec<Parts>,
    /// Rows of the blocks that the tokens lie in, from block `start / 256` on.
    pub(crate) rows: Vec<RowsId>,
    /// Ids for the blocks that the tokens complete, from block `start / 256` on.
    pub(crate) completed: Vec<Parts>,
    /// What its recurrent layers do; `None`: there are none.
    pub(crate) state: Option<StateSpan>,
}

/// What recurrent layers do with a sequence's state.
#[derive(Clone, Debug)]
pub(crate) struct StateSpan {
    pub(crate) id: StateId,
    /// Where the state stands afterwards. Tokens after that are computed beside it, and logged.
    pub(crate) certain: usize,
    /// Tokens from here on stay logged.
    pub(crate) keep: usize,
    /// Where it is sealed, ascending, after where it stands now.
    pub(crate) seals: Vec<Seal>,
}

/// A place where a state is rounded to what it is sealed as, and goes on from that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seal {
    /// Tokens that it has seen.
    pub(crate) at: usize,
    /// The block that it is kept in; `None`: it is not. None after `certain`.
    pub(crate) to: Option<BlockId>,
}

impl Pass {
    /// All of a text, in a cache that holds nothing else.
    pub(crate) fn alone(ids: &[u32], layout: &KvLayout) -> Self {
        let n = ids.len();
        let mut blocks = (0..).map(BlockId);
        let mut parts = |_| {
            let mut parts = Parts::default();
            layout.parts().for_each(|part| parts[part as usize] = blocks.next());
            parts
        };
        let completed = (0..n / BLOCK).map(&mut parts).collect();
        let rows = (0..n.div_ceil(BLOCK) as u32).map(RowsId).collect();
        let seals = (1..=n / BLOCK).map(|block| Seal { at: block * BLOCK, to: None }).collect();
        let state = StateSpan { id: StateId(0), certain: n, keep: n, seals };
        let state = Some(state).filter(|_| layout.has_states());
        let span = PassSpan { start: 0, n, sealed: Vec::new(), rows, completed, state };
        Self {
            ids: ids.to_vec(),
            spans: vec![span],
            wanted: Vec::new(),
            hidden: false,
            best: None,
            is_awaited: None,
        }
    }

    /// The next token of such a text, of at most a block, at position `at`: its logits are wanted.
    pub(crate) fn next(id: u32, at: usize, layout: &KvLayout) -> Self {
        let state = StateSpan { id: StateId(0), certain: at + 1, keep: at + 1, seals: vec![] };
        let state = Some(state).filter(|_| layout.has_states());
        let rows = vec![RowsId(0)];
        let span = PassSpan { start: at, n: 1, sealed: vec![], rows, completed: vec![], state };
        Self { ids: vec![id], spans: vec![span], wanted: vec![0], ..Self::alone(&[], layout) }
    }

    /// Positions of all rows.
    pub(crate) fn positions(&self) -> impl Iterator<Item = usize> {
        self.spans.iter().flat_map(|span| span.start..span.start + span.n)
    }
}

/// Reads the first tokens of a text on a device, and measures queries, keys and values; nothing where keys
/// are a latent.
///
/// # Errors
/// The pass fails.
pub(crate) fn measure(device: &dyn Device, ids: &[u32]) -> Result<Calibration> {
    let spec = device.spec();
    if spec.is_latent() {
        return Ok(Calibration::default());
    }
    let ids = &ids[..ids.len().min(calibration::MAX_TOKENS).min(spec.context_length)];
    let layout = Arc::new(spec.kv_layout(&KvChoice::Uniform(KvFormat::F16))?);
    let (pass, mut cache) = (Pass::alone(ids, &layout), device.cache(layout));
    let mut measured = Measured::default();
    device.run(&pass, &mut *cache, Some(&mut measured))?;
    Ok(measured.finish())
}

/// A device's own cache, out of the one that it is given.
pub(crate) fn own<C: Cache>(cache: &mut dyn Cache) -> &mut C {
    let cache: &mut dyn Any = cache;
    cache.downcast_mut().expect("a device runs passes over caches that it made")
}

/// Divergence of distribution `q` from `p`, given by their logits, `[n_vocab]` each; on the host, whatever
/// the device.
pub(crate) fn divergence(p: &[f32], q: &[f32]) -> divergence::LogitDivergence {
    divergence::divergence(Isa::of_host(), p, q)
}

/// The greatest logit of each piece of a row ([`LOGITS_PER_PIECE`]), NaN where one of its logits is; on the
/// host, as are the following.
pub(crate) fn maxima(logits: &[f32]) -> Vec<f32> {
    vocabulary::maxima(Isa::of_host(), logits)
}

/// Estimates the sum of weights below a threshold, by piece of a row.
pub(crate) fn weights_below(logits: &[f32], below: Below) -> Vec<f32> {
    vocabulary::weights_below(Isa::of_host(), logits, below)
}

/// Replaces numbers of no more than 0 by their exponentials, the bits of which are those of `libm`.
pub(crate) fn exps(numbers: &mut [f64]) {
    vocabulary::exps(Isa::of_host(), numbers);
}

/// The same with a relative error of 1e-14.
pub(crate) fn near_exps(numbers: &mut [f64]) {
    vocabulary::near_exps(Isa::of_host(), numbers);
}
