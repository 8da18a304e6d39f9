//! Single parts without the house around them: kernels and draws with arguments at random, for
//! `greenroom-lab bench`, and readers of files, given bytes, for `fuzz/`.

#[cfg(feature = "gpu")]
use crate::ModelSource;
use crate::device::Device;
use crate::device::cpu::Cpu;
use crate::device::cpu::block::{F16Rows, Sealing};
#[cfg(feature = "gpu")]
use crate::device::gpu::{self, Gpu};
#[cfg(feature = "gpu")]
pub use crate::device::gpu::{GpuPass, GpuStep};
use crate::fixtures::Dtype;
use crate::fixtures::pass::{cache_of, write_pass};
use crate::kv::format::{BlockBytes, BlockFormat};
use crate::kv::layout::{BLOCK, KvLayout, LayerLayout, Part, TensorLayout};
use crate::kv::table::BlockHash;
use crate::memory::arena::Arena;
use crate::memory::pass::Wanted;
#[cfg(feature = "gpu")]
use crate::memory::pass::{Span, forward_best};
use crate::memory::sequence::Sequence;
use crate::model::gguf::{FileBytes, Gguf};
use crate::model::spec::{AttentionSpec, DecoderSpec, FeedForwardSpec};
use crate::scoring::distribution::Distribution;
use crate::scoring::scratch::ScratchSequence;
use crate::store::cipher::Cipher;
use crate::store::log::{self, End};
use crate::store::manifest::Identity;
use crate::store::memory_file::{self, SessionExport};
use crate::store::tail::{self, TailRef};
use crate::store::{block, manifest, pack};
use crate::text::chat::Chat;
use crate::text::check::check;
use crate::text::tokenizer::Tokenizer;
use crate::turns::dry::Said;
use crate::turns::logprobs::token_logprob;
use crate::turns::sampler::{self, Row};
use crate::{Error, KvChoice, KvFormat, PromptEncoder, Result, Sampling};
use greenroom_kernels::attention::{AttnParams, Queries, QueryRows, attend};
use greenroom_kernels::panel::{Format, Packed};
use greenroom_kernels::slab::Slabs;
use greenroom_kernels::threads::ThreadPool;
use greenroom_kernels::{Isa, peak, seal};
use greenroom_kernels::{activations::Activations, linear};
use std::io::Cursor;
use std::sync::{Arc, LazyLock};
#[cfg(feature = "gpu")]
use std::time::Duration;

/// Numbers between -0.5 and 0.5.
fn noise(n: usize) -> Vec<f32> {
    let bits = |i: u32| (i.wrapping_mul(0x9e37_79b9) ^ (i >> 7)).wrapping_mul(0x85eb_ca6b) >> 8;
    (0..n as u32).map(|i| bits(i) as f32 / (1 << 24) as f32 - 0.5).collect()
}

/// A product of `n_rows` activations with a matrix `[n_out, k]`, activations quantized again each time; on
/// one thread.
///
/// # Errors
/// There is no memory for it.
pub fn product(dtype: Dtype, n_out: usize, k: usize, n_rows: usize) -> Result<impl FnMut() -> f32> {
    let isa = Isa::detect();
    let format = Format::of(dtype.kind()).ok_or_else(|| Error::internal("no format of its own"))?;
    let rows = vec![0x11; n_out * format.row_bytes(k)];
    let weights = Packed::pack(&mut Slabs::default(), format, n_out, k, &rows)
        .map_err(|e| crate::Error::model(format!("can't allocate a matrix: {e}")))?;
    let x = noise(n_rows * k);
    Ok(move || {
        let x = Activations::new(isa, &x, k, &[&weights]);
        linear::linear(isa, &x, &[&weights])[0][0]
    })
}

/// A device for what has no model.
fn device() -> Result<Arc<dyn Device>> {
    let model = crate::fixtures::RandomModel::tiny(1).bytes();
    Ok(Arc::new(Cpu::load(&Arc::new(parse(&model)?), Isa::detect(), &mut |_, _| {})?))
}

/// Rates of this machine that a pass can't exceed, with all threads.
#[derive(Clone, Copy, Debug)]
pub struct Peaks {
    /// Bytes read from memory a second.
    pub bytes: f64,
    /// Multiply-adds of 8-bit codes a second.
    pub int8_macs: f64,
    /// Multiply-adds of f32 a second.
    pub f32_macs: f64,
}

/// Measures what this machine can do, in about a second.
///
/// # Errors
/// Threads can't be started.
pub fn peaks(threads: usize) -> Result<Peaks> {
    let isa = Isa::detect();
    let mut pool =
        ThreadPool::new(threads).map_err(|e| Error::internal(format!("can't start threads: {e}")))?;
    Ok(pool.install(|| Peaks {
        bytes: peak::bytes_read(),
        int8_macs: peak::int8_macs(isa),
        f32_macs: peak::f32_macs(isa),
    }))
}

/// What a pass has to do at least for one token, by a model's shape.
#[derive(Clone, Debug)]
pub struct TokenWork {
    /// Bytes of the matrices that a decoded token reads, the output's included.
    pub weight_bytes: u64,
    /// Multiply-adds of a prompt's token with them, the output's not included.
    pub weight_macs: u64,
    /// Of each layer's attention: its window, multiply-adds of scores and of values for each token it attends to.
    layers: Vec<(Option<usize>, u64, u64)>,
    cost: crate::KvCost,
}

impl TokenWork {
    /// Reads a model's shape; matrices of experts count as far as they are used.
    ///
    /// # Errors
    /// The model can't be served.
    pub fn of(model: &crate::ModelSource, kv: &KvChoice) -> Result<Self> {
        let gguf = Gguf::open(model)?;
        let spec = DecoderSpec::from_gguf(&gguf)?;
        let experts = spec.layers.iter().find_map(|layer| match layer.feed_forward {
            Some(FeedForwardSpec::Experts(experts) | FeedForwardSpec::Both(_, experts)) => Some(experts),
            _ => None,
        });
        let output = if gguf.has_tensor("output.weight") { "output.weight" } else { "token_embd.weight" };
        let (mut weight_bytes, mut weight_macs) = (0, 0);
        for (name, info) in gguf.tensors().filter(|(_, info)| info.shape.len() > 1) {
            let share = |n: u64| match experts.filter(|_| name.contains("_exps")) {
                Some(experts) => n * experts.used as u64 / experts.n.max(1) as u64,
                None => n,
            };
            let is_of_layer = name.starts_with("blk.");
            if is_of_layer || name == output {
                weight_bytes += share(gguf.tensor(name)?.1.len() as u64);
            }
            if is_of_layer {
                weight_macs += share(info.n_elements());
            }
        }
        let attention = spec.layers.iter().filter_map(|layer| layer.attention);
        let macs = |own: AttentionSpec| {
            (own.window, (own.n_heads * own.k_dim) as u64, (own.n_heads * own.v_dim) as u64)
        };
        let (layers, cost) = (attention.map(macs).collect(), spec.kv_layout(kv)?.cost());
        Ok(Self { weight_bytes, weight_macs, layers, cost })
    }

    /// Seconds that decoding a token after so many takes at least, where everything is read once: reading the
    /// weights, and the cache.
    pub fn decode_seconds(&self, depth: usize, peaks: &Peaks) -> (f64, f64) {
        (self.weight_bytes as f64 / peaks.bytes, self.cost.mean(depth as u64) as f64 / peaks.bytes)
    }

    /// Seconds that a prompt of so many tokens takes at least: of the products with weights, and of attention.
    pub fn prefill_seconds(&self, tokens: usize, peaks: &Peaks) -> (f64, f64) {
        // A token attends to itself and all before it, or to its window.
        let pairs = |window: Option<usize>| {
            let (n, window) = (tokens as f64, window.unwrap_or(tokens).min(tokens) as f64);
            window * (window + 1.0) / 2.0 + (n - window) * window
        };
        let attention = self.layers.iter().map(|(window, scores, values)| {
            let scores = *scores as f64 / peaks.int8_macs;
            pairs(*window) * (scores + *values as f64 / peaks.f32_macs)
        });
        (tokens as f64 * self.weight_macs as f64 / peaks.int8_macs, attention.sum())
    }
}

/// Attention of `n_rows` rows (at most 16) with 4 query heads of width 64 to one KV head, `depth` tokens
/// before them.
///
/// # Errors
/// None.
pub fn attention(kv: KvFormat, depth: usize, n_rows: usize) -> Result<impl FnMut() -> f32> {
    let isa = Isa::detect();
    let layout = Arc::new(KvLayout::uniform(1, 1, 64, kv));
    let mut arena = Arena::new(&device()?, &layout, u64::MAX);
    let mut sequence = Sequence::new(layout.clone(), BlockHash::root("probe"));
    let first = depth.next_multiple_of(BLOCK);
    let end = first + n_rows;
    let (ids, x) = (vec![0; end], noise(end * 64));
    write_pass(isa, &mut sequence, (&ids, end), &mut arena, |_| (x.clone(), x.clone()));
    let q = noise(n_rows * 4 * 64);
    let span = sequence.plan_pass((end, end), end, &mut arena);
    Ok(move || {
        let params = AttnParams { scale: 0.125, window: None, soft_cap: None, sinks: None };
        let view = cache_of(&mut arena).view(&span, 0, 0, first / BLOCK);
        let rows = [QueryRows { first, n: n_rows, tiles: &view }];
        let queries = Queries { q: &q, rows: &rows, n_common: 0, group: 4, k_dim: 64, v_dim: 64, params };
        attend(isa, &queries)[0]
    })
}

/// What the dispatches of a pass cost on a GPU, by their plan: for a model whose weights need not be there.
///
/// # Errors
/// The model can't be served, or has no such cache.
#[cfg(feature = "gpu")]
pub fn count_gpu_steps(model: &ModelSource, kv: &KvChoice, pass: GpuPass) -> Result<Vec<GpuStep>> {
    gpu::count_steps(&Arc::new(Gguf::open(model)?), kv, pass)
}

/// The same, timed on the GPU whose name contains `name`, or the best one; the name of its arithmetic. Each
/// step is the median of `repeats` passes.
///
/// # Errors
/// As [`crate::Engine::open`]; the GPU has no timestamps.
#[cfg(feature = "gpu")]
pub fn time_gpu_steps(
    model: &ModelSource,
    name: Option<&str>,
    kv: &KvChoice,
    pass: GpuPass,
    repeats: usize,
) -> Result<(Vec<GpuStep>, String)> {
    let gpu = Arc::new(Gpu::load(&Arc::new(Gguf::open(model)?), name, &mut |_, _| {})?);
    let device: Arc<dyn Device> = gpu.clone();
    let layout = Arc::new(gpu.spec().kv_layout(kv)?);
    let (n_sequences, depth, n) = match pass {
        GpuPass::Decode { sequences, depth } => (sequences, depth, 1),
        GpuPass::Prefill { tokens, depth } => (1, depth, tokens),
    };
    let n_vocab = device.n_vocab() as u32;
    let ids: Vec<u32> = (0..(depth + n * (repeats + 1)) as u32).map(|i| i % n_vocab).collect();
    let mut arena = Arena::new(&device, &layout, u64::MAX);
    let new = |i| Sequence::new(layout.clone(), BlockHash::root(&format!("probe {i}")));
    let mut sequences: Vec<Sequence> = (0..n_sequences).map(new).collect();
    let mut read = |end: usize| {
        let span = |sequence| Span { sequence, tokens: &ids, end, certain: end, logits: Wanted::Best(1.0) };
        forward_best(sequences.iter_mut().map(span).collect(), None, &mut arena).map(drop)
    };
    for end in (BLOCK..depth).step_by(BLOCK).chain([depth]).filter(|end| *end > 0) {
        read(end)?;
    }
    // The first pass compiles.
    read(depth + n)?;
    let passes = (1..=repeats).map(|i| gpu.timed(pass, || read(depth + (i + 1) * n)));
    let mut passes = passes.collect::<Result<Vec<_>>>()?;
    let mut steps = passes.pop().unwrap_or_default();
    for (i, step) in steps.iter_mut().enumerate() {
        let times = passes.iter().filter_map(|other| other.get(i)?.time).chain(step.time);
        let mut times: Vec<Duration> = times.collect();
        times.sort_unstable();
        step.time = times.get(times.len() / 2).copied();
    }
    Ok((steps, gpu.numerics().to_owned()))
}

/// Quantizing 256 rows of a head of width 64.
pub fn sealing(bits: u32) -> impl FnMut() -> usize {
    let (isa, x) = (Isa::detect(), noise(BLOCK * 64));
    move || seal::quantize(isa, &x, 64, bits).codes.len()
}

fn parse(bytes: &[u8]) -> Result<Gguf> {
    Gguf::parse("model".to_owned(), FileBytes::Held(bytes.to_vec().into()))
}

/// Opens a model that lies in memory, without its weights.
///
/// # Errors
/// As [`PromptEncoder::open`].
pub fn prompter(bytes: &[u8]) -> Result<PromptEncoder> {
    PromptEncoder::read(&Arc::new(parse(bytes)?))
}

/// Loads a model that lies in memory, reads the tokens 0, 1 and 2 with it, and chooses the next one.
///
/// # Errors
/// As [`crate::Engine::open`] and [`crate::Engine::score`].
pub fn next_token(bytes: &[u8]) -> Result<u32> {
    let gguf = Arc::new(parse(bytes)?);
    let device: Arc<dyn Device> = Arc::new(Cpu::load(&gguf, Isa::detect(), &mut |_, _| {})?);
    let mut scratch = ScratchSequence::new(&device, Arc::new(device.spec().kv_layout(&KvChoice::Auto)?));
    let mut logits = Vec::new();
    scratch.read(&[0, 1, 2], Wanted::Last, &mut |_, row| {
        logits = row.to_vec();
        Ok(())
    })?;
    let sampling = Sampling::default();
    let row = Row::new(&logits, &[0, 1, 2], &Said::default(), &sampling);
    sampler::choose(&row, &sampling).ok_or_else(|| Error::internal("no logit is a number"))
}

/// Draws tokens from a row of logits after a reply, one a call, each with another seed.
pub fn sampler(logits: Vec<f32>, reply: Vec<u32>, sampling: Sampling) -> impl FnMut() -> Option<u32> {
    let mut said = Said::default();
    reply.iter().for_each(|id| said.push(*id, b"x", None));
    let mut sampling = sampling;
    move || {
        sampling.seed += 1;
        sampler::choose(&Row::new(&logits, &reply, &said, &sampling), &sampling)
    }
}

/// The same where a grammar forbids what is drawn: every other token is allowed.
pub fn masked_sampler(logits: Vec<f32>, sampling: Sampling) -> impl FnMut() -> Option<u32> {
    let (said, mut sampling) = (Said::default(), sampling);
    move || {
        sampling.seed += 1;
        let row = Row::new(&logits, &[], &said, &sampling);
        sampler::choose(&row, &sampling)?;
        sampler::choose_allowed(&row, &sampling, |id| id % 2 == 0)
    }
}

/// The likeliest token of a row of logits, with its log-probability and those of the `n` likeliest.
pub fn logprobs(logits: Vec<f32>, n: usize) -> impl FnMut() -> usize {
    let (said, greedy) = (Said::default(), Sampling { temperature: 0.0, ..Sampling::default() });
    move || {
        let id = sampler::choose(&Row::new(&logits, &[], &said, &greedy), &greedy).unwrap_or_default();
        token_logprob(id, &Distribution::of(&logits), n, |_| &[]).top.len()
    }
}

/// The layout of [`sealed_block`]: a layer that sees everything, 4-bit keys and 8-bit values, and one with a
/// window, whose values are a view of f16 keys.
fn block_layout() -> KvLayout {
    let tensor = |format, centered| TensorLayout {
        n_heads: 1,
        dim: 16,
        format,
        rotated: format != KvFormat::F16,
        exact: format != KvFormat::F16,
        centered,
    };
    let (k, v, f16) = (tensor(KvFormat::Q4, true), tensor(KvFormat::Q8, false), tensor(KvFormat::F16, false));
    let coded = LayerLayout { k, v, shared: false, window: None };
    let plain = LayerLayout { k: f16, v: f16, shared: true, window: Some(BLOCK) };
    KvLayout { layers: vec![coded, plain], ..KvLayout::uniform(0, 1, 16, KvFormat::Q4) }
}

fn block_hash() -> BlockHash {
    BlockHash::root("probe")
}

/// The file of a sealed block's part, as [`read_block`] expects it: of its layers without a window, or of
/// those with one.
///
/// # Errors
/// None.
pub fn sealed_block(windowed: bool) -> Result<Vec<u8>> {
    let (layout, part) = (block_layout(), if windowed { Part::Windowed } else { Part::Global });
    let (mut rows, format) = (F16Rows::new(&layout), BlockFormat::new(&layout, part));
    let mut block = BlockBytes::zeroed(format.len(true));
    for layer in &format.layers {
        let of = layout.layers[layer.layer];
        let values = of.stored_v().map_or(0, TensorLayout::row);
        rows.push(Isa::detect(), layer.layer, of, &noise(BLOCK * of.k.row()), &noise(BLOCK * values));
        let how = Sealing { isa: Isa::detect(), is_first: true, shaping: None };
        rows.seal(layer.layer, layer, how, block.as_bytes_mut());
    }
    block::encode((block_hash(), part), 0, &block, &layout)
}

/// Reads the file of a block's part of [`sealed_block`]'s layout without asking for its checksum, attends to
/// what it holds, writes it again, checksum and all, and reads that; then checks the file as it is.
///
/// # Errors
/// The file is damaged.
pub fn read_block(bytes: &[u8]) -> Result<(), String> {
    let (layout, hash) = (Arc::new(block_layout()), block_hash());
    let verify = |bytes: &[u8]| block::verify(&mut Cursor::new(bytes), (0, bytes.len() as u64), hash);
    for part in Part::OF_BLOCKS {
        let read = |bytes: &[u8], verify: bool| {
            let span = (0, bytes.len() as u64);
            block::read(&mut Cursor::new(bytes), span, (hash, part), 0, &layout, verify)
        };
        let Ok(block) = read(bytes, false) else { continue };
        let fresh = block::encode((hash, part), 0, &block, &layout).map_err(|e| e.to_string())?;
        let again = read(&fresh, true).and_then(|_| verify(&fresh));
        assert_eq!(again, Ok(()), "what was just written is whole");
        attend_to(block, part, &layout).map_err(|e| e.to_string())?;
    }
    verify(bytes).map_err(|failure| failure.to_string())
}

/// A log with correct checksums whose payloads are in `bytes`, each after its length (u16, little endian);
/// and its end.
fn log_of(bytes: &[u8]) -> Result<(Vec<u8>, End)> {
    let (mut log, mut end, mut rest) = (Vec::new(), End::empty(LOG), bytes);
    while let Some((n, after)) = rest.split_first_chunk::<2>() {
        let (payload, after) = after.split_at(after.len().min(u16::from_le_bytes(*n).into()));
        log.extend(log::record(&mut end, payload.to_vec(), &Cipher::new(None))?);
        rest = after;
    }
    Ok((log, end))
}

/// Name of the logs here.
const LOG: &str = "probe.log";

/// Payloads as the readers of logs take them.
pub fn payloads(payloads: &[&[u8]]) -> Vec<u8> {
    payloads.iter().flat_map(|p| [&(p.len() as u16).to_le_bytes()[..], p].concat()).collect()
}

/// Reads a manifest, given as the payloads of its records; also as it is.
///
/// # Errors
/// It is damaged.
pub fn read_manifest(bytes: &[u8]) -> Result<(), String> {
    let _ = manifest::decode(bytes, LOG, &Cipher::new(None));
    let (log, _) = log_of(bytes).map_err(|e| e.to_string())?;
    let (manifest, _, torn) = manifest::decode(&log, LOG, &Cipher::new(None))?;
    assert_eq!(manifest.n_tokens(), manifest.segments.iter().map(|s| s.ids.len()).sum::<usize>());
    torn.map_or(Ok(()), |broken| Err(broken.reason))
}

/// Payloads of a manifest's records: two turns.
pub fn manifest_payloads() -> Vec<u8> {
    let tail = |rows: usize| {
        format!(
            r#"{{"file":"a.1.log","block":0,"rows":{rows},"end":{{"bytes":9,"sum":"{}"}}}}"#,
            "0".repeat(64)
        )
    };
    let first = format!(
        r#"{{"owner":{{"run":"r","agent":"a","identity":{{"model_name":"m","model":"1","layout":"l","numerics":"n","store":4,"salt":""}}}},"keep_blocks":0,"blocks":[],"tail":{},"keep_segments":0,"segments":[{{"kind":"message","text":"hi","ids":[1,2]}}],"worth":{{"saved_at":1,"turns":1,"token_ms":0.5}}}}"#,
        tail(2)
    );
    let second = format!(
        r#"{{"keep_blocks":0,"blocks":[],"tail":{},"keep_segments":1,"segments":[{{"kind":"reply","text":"h","ids":[7]}}],"worth":{{"saved_at":2,"turns":2,"token_ms":0.5}}}}"#,
        tail(3)
    );
    payloads(&[first.as_bytes(), second.as_bytes()])
}

/// Reads a tail, given as the payloads of its records, for each number of rows that it may have; also as it
/// is.
///
/// # Errors
/// It is damaged.
pub fn read_tail(bytes: &[u8]) -> Result<(), String> {
    let (layout, cipher) = (block_layout(), Cipher::new(None));
    let (log, end) = log_of(bytes).map_err(|e| e.to_string())?;
    let tail = |rows, end| TailRef { file: LOG.to_owned(), block: 0, rows, end };
    let _ = tail::decode(bytes, &tail(1, End { bytes: bytes.len() as u64, ..end.clone() }), &layout, &cipher);
    let n = log.len().saturating_sub(bytes.len() / 2) / layout.row_bytes();
    let rows = (0..=n.max(4))
        .rev()
        .find_map(|rows| tail::decode(&log, &tail(rows, end.clone()), &layout, &cipher).ok());
    rows.map(drop).ok_or_else(|| "no number of rows fits".to_owned())
}

/// Payloads of a tail's records: two rows, then one.
pub fn tail_payloads() -> Vec<u8> {
    let row = vec![0x11; block_layout().row_bytes()];
    payloads(&[&row.repeat(2), &row])
}

/// What computed the memory of [`memory_payloads`].
fn memory_identity() -> Identity {
    let (model_name, model, layout) = ("m".to_owned(), "1".to_owned(), block_layout().describe());
    Identity { model_name, model, layout, numerics: "n".to_owned(), store: 4, salt: String::new() }
}

/// Reads an exported memory, given as the payloads of its frames; also as it is. What is whole is written,
/// and read again.
///
/// # Errors
/// It is damaged.
pub fn read_memory(bytes: &[u8]) -> Result<(), String> {
    static TEXTS: LazyLock<Option<(Chat, Tokenizer)>> = LazyLock::new(|| {
        let model = parse(&crate::fixtures::RandomModel::tiny(1).bytes()).ok()?;
        let tokenizer = Tokenizer::from_gguf(&model).ok()?;
        Some((Chat::new(None, &tokenizer).ok()?, tokenizer))
    });
    let (secret, here, layout) = ([7; 32], memory_identity(), block_layout());
    let read = |bytes: &[u8]| SessionExport::read(&mut &bytes[..], Some(&secret), &here, &layout);
    let _ = read(bytes);
    let (mut frames, mut rest) = (Vec::new(), bytes);
    while let Some((n, after)) = rest.split_first_chunk::<2>() {
        let (payload, after) = after.split_at(after.len().min(u16::from_le_bytes(*n).into()));
        frames.push(payload);
        rest = after;
    }
    let file = memory_file::file_of(&frames, &secret).map_err(|e| e.to_string())?;
    let (memory, reason) = read(&file).map_err(|e| e.to_string())?;
    if let Some((chat, tokenizer)) = &*TEXTS {
        let _ = check(&memory.segments, chat, tokenizer);
    }
    if reason.is_none() {
        let mut again = Vec::new();
        memory.write(&secret, &mut again).map_err(|e| e.to_string())?;
        assert!(read(&again).is_ok_and(|(_, reason)| reason.is_none()), "what was just written is whole");
    }
    Ok(())
}

/// Payloads of an exported memory's frames: a head, both parts of a block, and three rows.
pub fn memory_payloads() -> Vec<u8> {
    let layout = block_layout();
    let identity = serde_json::to_string(&memory_identity()).unwrap_or_default();
    let ids = vec!["65"; BLOCK].join(",");
    let head = format!(
        r#"{{"identity":{identity},"segments":[{{"kind":"message","text":"{}","ids":[{ids}]}},{{"kind":"reply","text":"abcd","ids":[97,98,99,100]}}],"blocks":[[true,true]],"rows":3}}"#,
        "A".repeat(BLOCK)
    );
    let block = |part: Part| vec![0x11; BlockFormat::new(&layout, part).len(true)];
    let rows = vec![0x11; 3 * layout.row_bytes()];
    payloads(&[head.as_bytes(), &block(Part::Global), &block(Part::Windowed), &rows])
}

/// Reads the entries of a pack's index.
///
/// # Errors
/// It is damaged.
pub fn read_pack_index(bytes: &[u8]) -> Result<(), String> {
    pack::decode_entries(bytes, 1 << 20).map(drop)
}

/// Entries of a pack's index: two.
pub fn pack_index() -> Vec<u8> {
    let entry = |part: u8| [&[7; 32][..], &[part], &100u64.to_le_bytes(), &50u64.to_le_bytes()].concat();
    [entry(0), entry(1)].concat()
}

/// Attends from the token after a block to the layers of a part of it.
fn attend_to(block: BlockBytes, part: Part, layout: &Arc<KvLayout>) -> Result<()> {
    let isa = Isa::detect();
    let mut arena = Arena::new(&device()?, layout, u64::MAX);
    let mut sequence = Sequence::new(layout.clone(), block_hash());
    let mut parts = [None; 2];
    parts[part as usize] = Some(arena.insert((block_hash(), part), Arc::new(block)));
    sequence.push_block(block_hash(), parts);
    let x = noise(16);
    let rows = |l: usize| (x.clone(), if layout.layers[l].shared { vec![] } else { x.clone() });
    write_pass(isa, &mut sequence, (&[0; BLOCK + 1], BLOCK + 1), &mut arena, rows);
    let span = sequence.plan_pass((BLOCK + 1, BLOCK + 1), BLOCK + 1, &mut arena);
    for l in layout.layers_of(part) {
        let params = AttnParams { scale: 0.25, window: layout.layers[l].window, soft_cap: None, sinks: None };
        let view = cache_of(&mut arena).view(&span, l, 0, 1);
        let rows = [QueryRows { first: BLOCK, n: 1, tiles: &view }];
        attend(isa, &Queries { q: &x, rows: &rows, n_common: 0, group: 1, k_dim: 16, v_dim: 16, params });
    }
    Ok(())
}
