//! The central invariant as one test matrix: however tokens arrive, the same logits, bit for bit.
//!
//! One prefill = any chunking = hot = rewound = restored from disk = batched with strangers = any number of
//! threads = any instruction set, for every KV format, at every length around the borders of the first
//! blocks.

use super::{some, states};
use crate::device::cpu::Cpu;
use crate::device::{Device, measure};
use crate::fixtures::{Dtype, Experts, LayerKinds, RandomModel};
use crate::kv::layout::{KvLayout, Part};
use crate::memory::Memory;
use crate::memory::arena::Arena;
use crate::memory::pass::{Span, Wanted, forward, forward_best};
use crate::memory::sequence::Sequence;
use crate::memory::session::CacheContext;
use crate::model::gguf::Gguf;
use crate::scoring::self_check::calibration_root;
use crate::store::inventory::Folder;
use crate::store::{Found, Store, StoreLocation};
use crate::text::prefix::{Segment, SegmentKind};
use crate::text::tokenizer::{After, Tokenizer};
use crate::{
    CacheSource, Conversation, Engine, EngineConfig, ErrorKind, KvChoice, KvFormat, MatchKind, ModelSource,
    Request, Retention, SessionKey,
};
use greenroom_kernels::Isa;
use greenroom_kernels::recurrence::Sealed;
use greenroom_kernels::threads::ThreadPool;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

pub(crate) const FORMATS: [KvFormat; 3] = [KvFormat::F16, KvFormat::Q8, KvFormat::Q4];
/// Past the border of the third block.
pub(crate) const N: usize = 780;
/// Around the borders of the first three blocks, and in their middles.
const LENGTHS: [usize; 12] = [1, 100, 255, 256, 257, 400, 511, 512, 513, 767, 768, 769];

/// A model under test, with what its cache is for.
pub(crate) struct Bench {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) context: CacheContext,
    tokens: Vec<u32>,
    format: KvFormat,
    model: RandomModel,
    reference: OnceLock<Vec<f32>>,
}

/// The models of the matrix: a family, a shape or a format of weights more is a line more.
pub(crate) fn models() -> [RandomModel; 15] {
    let tiny = RandomModel::tiny(7);
    let family = |name| RandomModel { dtype: Dtype::Q8_0, n_layers: 2, ..RandomModel::tiny_of(name, 7) };
    [
        RandomModel { dtype: Dtype::Q8_0, ..tiny.clone() },
        RandomModel { dtype: Dtype::Q4KM, d_model: 256, n_heads: 8, ..tiny.clone() },
        RandomModel { dtype: Dtype::F16, n_layers: 1, n_heads: 3, n_kv_heads: 1, head_dim: 96, ..tiny },
        RandomModel { head_dim: 80, ..family("qwen2") },
        family("qwen3"),
        // The last layer sees everything.
        RandomModel { n_layers: 6, window: 200, ..family("gemma3") },
        family("deepseek2"),
        RandomModel { dtype: Dtype::MXFP4, ..family("gpt-oss") },
        // A score gates what is shared; norms over whole rows, after each layer; layers without positions;
        // queries from a latent, experts in groups; soft caps.
        family("qwen2moe"),
        RandomModel { n_layers: 4, window: 200, ..family("olmo2") },
        RandomModel { n_layers: 4, ..family("smollm3") },
        family("mistral4"),
        RandomModel { window: 200, ..family("gemma2") },
        // Layers of two shapes, the last of which read what others wrote; experts beside a feed-forward.
        RandomModel { dtype: Dtype::Q8_0, window: 200, ..RandomModel::tiny_of("gemma4", 7) },
        mixture_of_gemma4(),
    ]
}

/// Gemma 4 with experts, and all layers with keys of their own.
pub(crate) fn mixture_of_gemma4() -> RandomModel {
    let tiny = RandomModel::tiny_of("gemma4", 12);
    let kinds = tiny.kinds.map(|kinds| LayerKinds { shared: 0, per_layer: 0, ..kinds });
    let experts = Some(Experts { n: 4, used: 2, d_ff: 64, ..Experts::default() });
    RandomModel { dtype: Dtype::Q8_0, n_layers: 3, window: 200, kinds, experts, ..tiny }
}

impl Bench {
    pub(crate) fn new(format: KvFormat, isa: Isa) -> Self {
        let [model, ..] = models();
        Self::with(&model, format, isa)
    }

    /// Every model of the matrix with every format of its cache.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        models().into_iter().flat_map(|m| FORMATS.map(|format| Self::with(&m, format, Isa::detect())))
    }

    pub(crate) fn with(model: &RandomModel, format: KvFormat, isa: Isa) -> Self {
        Self::on(model, format, |gguf| Box::new(Cpu::load(gguf, isa, &mut |_, _| {}).expect("a device")))
    }

    /// A model on a device that opens it.
    pub(crate) fn on(
        model: &RandomModel,
        format: KvFormat,
        open: impl FnOnce(&Arc<Gguf>) -> Box<dyn Device>,
    ) -> Self {
        let bytes: &'static [u8] = model.bytes().leak();
        let gguf = Arc::new(Gguf::open(&ModelSource::Bundled("random", bytes)).expect("a model"));
        let tokens = (0..N as u32).map(|i| i.wrapping_mul(2_654_435_761) % 260).collect();
        Self::of(open(&gguf), model.clone(), tokens, format)
    }

    /// A trained model's file, and a text of its own.
    pub(crate) fn of_file(path: &Path, text: &str, format: KvFormat) -> Self {
        let gguf = Arc::new(Gguf::open(&ModelSource::Path(path.to_owned())).expect("a model"));
        let tokenizer = Tokenizer::from_gguf(&gguf).expect("a tokenizer");
        let mut tokens = tokenizer.encode_template(text, After::Special).expect("ids");
        tokens.truncate(N);
        let device = Cpu::load(&gguf, Isa::detect(), &mut |_, _| {}).expect("a device");
        Self::of(Box::new(device), RandomModel::tiny(0), tokens, format)
    }

    fn of(mut device: Box<dyn Device>, model: RandomModel, tokens: Vec<u32>, format: KvFormat) -> Self {
        device.calibrate(&measure(&*device, &tokens).expect("a calibration"));
        let layout = Arc::new(device.spec().kv_layout(&KvChoice::Uniform(format)).expect("a layout"));
        let context = CacheContext::of_test(layout);
        Self { device: Arc::from(device), context, tokens, format, model, reference: OnceLock::new() }
    }

    /// Has its states sealed in another format.
    pub(crate) fn seal_states_in(&mut self, sealed: Sealed) {
        let layout = KvLayout { sealed, ..(*self.context.layout).clone() };
        self.context = CacheContext::of_test(Arc::new(layout));
        self.reference = OnceLock::new();
    }

    pub(crate) fn arena(&self) -> Arena {
        Arena::new(&self.device, &self.context.layout, u64::MAX)
    }

    pub(crate) fn sequence(&self) -> Sequence {
        Sequence::new(self.context.layout.clone(), self.context.root_of(""))
    }

    /// Changes a token of its text.
    pub(crate) fn change(&mut self, token: usize) {
        self.tokens[token] ^= 1;
        self.reference = OnceLock::new();
    }

    /// Feeds tokens up to `end` in chunks and returns the logits of every row fed.
    pub(crate) fn feed(
        &self,
        sequence: &mut Sequence,
        arena: &mut Arena,
        end: usize,
        chunk: usize,
    ) -> Vec<f32> {
        let mut out = Vec::new();
        while sequence.len() < end {
            let end = (sequence.len() + chunk).min(end);
            let span = Span { sequence, tokens: &self.tokens, end, certain: end, logits: Wanted::All };
            let logits = forward(vec![span], arena).expect("a pass");
            out.extend(&logits[0]);
        }
        out
    }

    /// The reference: all tokens in one pass, computed once. `[N, n_vocab]`
    pub(crate) fn reference(&self) -> Vec<f32> {
        let all = || self.feed(&mut self.sequence(), &mut self.arena(), N, N);
        self.reference.get_or_init(all).clone()
    }

    fn rows<'a>(&self, logits: &'a [f32], rows: std::ops::Range<usize>) -> &'a [f32] {
        &logits[rows.start * self.device.n_vocab()..rows.end * self.device.n_vocab()]
    }

    pub(crate) fn memory(&self, dir: &Path) -> Memory {
        Memory::new(&self.device, self.context.clone(), Some(self.open_store(dir)), u64::MAX)
    }

    pub(crate) fn open_store(&self, dir: &Path) -> Store {
        Store::open(&StoreLocation::new(dir.to_owned(), None, None)).expect("a store")
    }

    /// Ids of its text.
    pub(crate) fn ids(&self, range: std::ops::Range<usize>) -> Vec<u32> {
        self.tokens[range].to_vec()
    }

    pub(crate) fn segment(&self, range: std::ops::Range<usize>) -> Segment {
        let ids = self.tokens[range.clone()].into();
        Segment { kind: SegmentKind::Message, text: format!("{range:?}").into(), ids, guessed: false }
    }

    /// Recalls a session for the prompt made of all tokens in two segments, the first one `n` long.
    fn recall(&self, memory: &mut Memory, n: usize) -> crate::memory::Recalled {
        let prompt = [self.segment(0..n), self.segment(n..N)];
        memory.recall(&request(), &prompt).expect("a session")
    }

    /// Computes `n` tokens as a session and writes it to disk.
    pub(crate) fn store(&self, memory: &mut Memory, n: usize) {
        self.store_as(memory, &request().session, n);
    }

    pub(crate) fn store_as(&self, memory: &mut Memory, key: &SessionKey, n: usize) {
        let request = Request { session: key.clone(), ..request() };
        let mut recalled = memory.recall(&request, &[self.segment(0..n)]).expect("a session");
        self.feed(&mut recalled.session.sequence, &mut memory.arena, n, 256);
        recalled.session.sequence.end_turn(&mut memory.arena);
        recalled.session.segments = vec![self.segment(0..n)];
        let saved = memory.save_now(key, &mut recalled.session).expect("a save");
        memory.commit_now(saved.0).expect("a commit");
    }

    /// Checks, after any fault on disk, that the logits of what follows are the reference's, whatever is
    /// recalled.
    pub(crate) fn check_recall(&self, dir: &Path, n: usize, reference: &[f32]) -> crate::memory::Recalled {
        let mut memory = self.memory(dir);
        let mut recalled = self.recall(&mut memory, n);
        let start = recalled.session.sequence.len();
        let logits = self.feed(&mut recalled.session.sequence, &mut memory.arena, N, 100);
        assert_eq!(logits, self.rows(reference, start..N), "{n} tokens, {:?}", recalled.reason);
        recalled
    }

    /// Fed up to a position, then in steps of this many tokens to another: as replies are, over several
    /// blocks.
    #[cfg(feature = "gpu")]
    pub(crate) fn check_steps(&self, steps: &[(usize, usize, usize)]) {
        let reference = self.reference();
        for (from, to, step) in steps.iter().copied() {
            let (mut sequence, mut arena) = (self.sequence(), self.arena());
            self.feed(&mut sequence, &mut arena, from, from);
            let logits = self.feed(&mut sequence, &mut arena, to, step);
            let same = logits == self.rows(&reference, from..to);
            assert!(same, "{:?} by {step} from {from}", self.format);
        }
    }

    /// In chunks of some lengths.
    pub(crate) fn check_chunks(&self, chunks: &[usize]) {
        let reference = self.reference();
        for chunk in chunks {
            let logits = self.feed(&mut self.sequence(), &mut self.arena(), N, *chunk);
            assert_eq!(logits, reference, "{:?} in chunks of {chunk}", self.format);
        }
    }

    /// Hot, taken back and forked at some lengths: the reference's logits.
    pub(crate) fn check_rewound(&self, lengths: &[usize]) {
        let (bench, format) = (self, self.format);
        let reference = bench.reference();
        for n in lengths.iter().copied() {
            let (mut sequence, mut arena) = (bench.sequence(), bench.arena());
            bench.feed(&mut sequence, &mut arena, n, 256);
            sequence.begin_turn();
            bench.feed(&mut sequence, &mut arena, (n + 300).min(N), 64);
            sequence.trim_window(usize::MAX, &mut arena);
            // Back to where the turn began, exactly; then on again.
            assert_eq!(sequence.truncate(n, &mut arena), n, "{format:?}: a turn can be taken back");
            let mut fork = sequence.fork(&mut arena);
            let logits = bench.feed(&mut sequence, &mut arena, N, 256);
            assert_eq!(logits, bench.rows(&reference, n..N), "{format:?} rewound to {n}");
            let logits = bench.feed(&mut fork, &mut arena, N, 33);
            assert_eq!(logits, bench.rows(&reference, n..N), "{format:?} forked at {n}");
            // Deep in the past the f16 rows are gone: back to the border of the block. So are windows, maybe:
            // further back.
            sequence.end_turn(&mut arena);
            sequence.trim_window(usize::MAX, &mut arena);
            let kept = sequence.truncate(n, &mut arena);
            let windowed = bench.context.layout.window().is_some();
            assert!(kept == n || kept == n / 256 * 256 || windowed && kept % 256 == 0, "{kept} of {n}");
            let logits = bench.feed(&mut sequence, &mut arena, N, 256);
            assert_eq!(
                logits,
                bench.rows(&reference, kept..N),
                "{format:?} rewound to the border before {n}"
            );
            sequence.clear(&mut arena);
            fork.clear(&mut arena);
            assert_eq!(arena.bytes(), 0, "all blocks were given back");
        }
    }

    /// Called off after a layer, and begun again.
    pub(crate) fn check_called_off(&self, chunks: &[usize]) {
        let reference = self.reference();
        for chunk in chunks.iter().copied() {
            let (mut sequence, mut arena, mut logits) = (self.sequence(), self.arena(), Vec::new());
            while sequence.len() < N {
                let (begin, end) = (sequence.len(), (sequence.len() + chunk).min(N));
                for layers in 0..self.device.spec().layers.len().min(2) {
                    let left = AtomicUsize::new(layers);
                    let is_awaited = move || left.fetch_sub(1, Ordering::Relaxed) > 0;
                    let sequence = &mut sequence;
                    let span =
                        Span { sequence, tokens: &self.tokens, end, certain: end, logits: Wanted::Last };
                    let called_off = forward_best(vec![span], Some(Box::new(is_awaited)), &mut arena);
                    assert!(called_off.is_err_and(|error| error.kind() == ErrorKind::Closed));
                    assert_eq!(sequence.len(), begin);
                }
                logits.extend(self.feed(&mut sequence, &mut arena, end, chunk));
            }
            assert_eq!(logits, reference, "{:?} called off at every {chunk}", self.format);
            sequence.clear(&mut arena);
            assert_eq!(arena.bytes(), 0, "all blocks were given back");
        }
    }

    /// Beside this many others.
    pub(crate) fn check_batches(&self, strangers: std::ops::RangeInclusive<usize>) {
        let (bench, format) = (self, self.format);
        let reference = bench.reference();
        let other: Vec<u32> = bench.tokens.iter().map(|t| (t + 1) % 260).collect();
        for strangers in strangers {
            let mut arena = bench.arena();
            let mut ours = bench.sequence();
            let mut others: Vec<Sequence> = (0..strangers).map(|_| bench.sequence()).collect();
            let mut logits: Vec<f32> = Vec::new();
            for pass in 0.. {
                let step = [200, 1, 57, 256][pass % 4];
                let end = (ours.len() + step).min(N);
                let mut spans: Vec<Span<'_>> = Vec::new();
                for (i, stranger) in others.iter_mut().enumerate() {
                    let end = (stranger.len() + 1 + 31 * i + pass % 3).min(N);
                    spans.push(Span {
                        sequence: stranger,
                        tokens: &other,
                        end,
                        certain: end,
                        logits: Wanted::Last,
                    });
                }
                spans.insert(
                    pass % (strangers + 1),
                    Span {
                        sequence: &mut ours,
                        tokens: &bench.tokens,
                        end,
                        certain: end,
                        logits: Wanted::All,
                    },
                );
                let results = forward(spans, &mut arena).expect("a pass");
                logits.extend(&results[pass % (strangers + 1)]);
                if end == N {
                    break;
                }
            }
            assert_eq!(logits, reference, "{format:?} with {strangers} strangers");
        }
    }

    /// Beside forks of its own at other positions, a row each in every pass: they share blocks, some more
    /// than others.
    pub(crate) fn check_forks_together(&self) {
        let reference = self.reference();
        for order in 0..4 {
            let (mut arena, mut sequence, mut forks) = (self.arena(), self.sequence(), Vec::new());
            for n in [300, 560, 561, 700] {
                self.feed(&mut sequence, &mut arena, n, 256);
                forks.push(sequence.fork(&mut arena));
            }
            forks.rotate_left(order);
            for _ in 0..75 {
                let places: Vec<usize> = forks.iter().map(Sequence::len).collect();
                let spans = forks.iter_mut().map(|fork| {
                    let end = fork.len() + 1;
                    Span { sequence: fork, tokens: &self.tokens, end, certain: end, logits: Wanted::Last }
                });
                let results = forward(spans.collect(), &mut arena).expect("a pass");
                for (n, logits) in places.into_iter().zip(results) {
                    assert_eq!(logits, self.rows(&reference, n..n + 1), "{:?} at {n}", self.format);
                }
            }
        }
    }

    /// Written to disk at some lengths, and read by another memory.
    pub(crate) fn check_restored(&self, lengths: &[usize]) {
        let (bench, reference) = (self, self.reference());
        for n in lengths.iter().copied() {
            let dir = tempfile::tempdir().expect("a folder");
            bench.store(&mut bench.memory(dir.path()), n);
            let recalled = bench.check_recall(dir.path(), n, &reference);
            assert_eq!((recalled.kind, recalled.reused, recalled.recomputed), (MatchKind::Extend, n, 0));
            assert_eq!((recalled.source, recalled.reason), (CacheSource::Disk, None));
        }
    }
}

pub(crate) fn request() -> Request {
    Request {
        retention: Retention::Persistent,
        max_tokens: 1,
        ..Request::new(SessionKey::new("r", "../a"), Conversation::default())
    }
}

#[test]
fn any_chunking_any_threads_any_instruction_set() {
    for bench in some(Bench::all(), 4) {
        let format = bench.format;
        let short = 300;
        let scalar = Bench::with(&bench.model, format, Isa::SCALAR);
        let reference = scalar.feed(&mut scalar.sequence(), &mut scalar.arena(), short, short);
        for isa in Isa::available() {
            let bench = Bench::with(&bench.model, format, isa);
            let logits = bench.feed(&mut bench.sequence(), &mut bench.arena(), short, 77);
            assert_eq!(logits, reference, "{format:?} on {}", isa.name());
        }
        for (threads, chunks) in [(1, [7, 256, 512]), (2, [1, 64, 300])] {
            let mut pool = ThreadPool::new(threads).expect("threads");
            pool.install(|| bench.check_chunks(&chunks));
        }
    }
}

/// Chunks that end at a border, before one and after one, and on the way.
#[test]
fn recurrent_layers_in_any_chunks_and_batches_on_any_instruction_set() {
    for (model, format) in some(states::models(), 2).zip([KvFormat::Q4, KvFormat::F16].into_iter().cycle()) {
        let reference = Bench::with(&model, format, Isa::SCALAR).reference();
        for isa in Isa::available() {
            let bench = Bench::with(&model, format, isa);
            assert!(bench.reference() == reference, "{}, {format:?} on {}", model.architecture, isa.name());
        }
        let bench = Bench::with(&model, format, Isa::detect());
        for (threads, chunks) in [(1, [7, 256]), (2, [255, 257])] {
            let mut pool = ThreadPool::new(threads).expect("threads");
            pool.install(|| bench.check_chunks(&chunks));
        }
        bench.check_batches(1..=2);
        bench.check_called_off(&[300]);
    }
}

#[test]
fn hot_rewound_and_forked() {
    some(Bench::all(), 4).for_each(|bench| bench.check_rewound(&LENGTHS));
}

/// A sequence that is held goes back exactly to any position since, however far it went.
#[test]
fn held_and_taken_back() {
    for bench in some(Bench::all(), 4) {
        let format = bench.format;
        let reference = bench.reference();
        for n in [200, 255, 256, 257] {
            let (mut sequence, mut arena) = (bench.sequence(), bench.arena());
            sequence.begin_turn();
            bench.feed(&mut sequence, &mut arena, n, 256);
            sequence.hold();
            for back in [769, 768, 600, 513, 511, 400, n + 1, n] {
                bench.feed(&mut sequence, &mut arena, N, 64);
                sequence.trim_window(usize::MAX, &mut arena);
                assert_eq!(sequence.truncate(back, &mut arena), back, "{format:?}, held at {n}");
                let logits = bench.feed(&mut sequence, &mut arena, back + 10, 256);
                assert_eq!(logits, bench.rows(&reference, back..back + 10), "{format:?}: {back} after {n}");
            }
            sequence.end_turn(&mut arena);
            sequence.clear(&mut arena);
            assert_eq!(arena.bytes(), 0, "all was given back");
        }
    }
}

#[test]
fn batched_with_strangers() {
    Bench::all().for_each(|bench| bench.check_batches(1..=3));
}

#[test]
fn forks_side_by_side() {
    some(Bench::all(), 4).for_each(|bench| bench.check_forks_together());
}

#[test]
fn passes_that_were_called_off() {
    some(Bench::all(), 4).for_each(|bench| bench.check_called_off(&[100, 256, N]));
}

#[test]
fn restored_from_disk() {
    some(Bench::all(), 4).for_each(|bench| bench.check_restored(&LENGTHS));
}

/// An agent that has read on is taken back to where another prompt parts from what it read: windows that left
/// memory come back from disk; without a disk they are computed again, with all before them.
#[test]
fn windows_leave_memory_and_come_back() {
    for bench in Bench::all().filter(|bench| bench.context.layout.window().is_some()) {
        let (format, layout) = (bench.format, &bench.context.layout);
        let reference = bench.reference();
        let window = layout.window().expect("a window");
        for (n, on_disk) in [(600, true), (513, true), (256, true), (300, false)] {
            let dir = tempfile::tempdir().expect("a folder");
            let mut memory = bench.memory(dir.path());
            if !on_disk {
                memory.store = None;
            }
            let ephemeral = Request { retention: Retention::Ephemeral, ..request() };
            let request = if on_disk { request() } else { ephemeral };
            let mut session =
                memory.recall(&request, &[bench.segment(0..n), bench.segment(n..N)]).expect("one").session;
            while session.sequence.len() < N {
                let end = (session.sequence.len() + 200).min(N);
                bench.feed(&mut session.sequence, &mut memory.arena, end, 200);
                memory.flush_now(&request, &mut session).expect("a write");
                let in_memory = memory.arena.sealed_bytes() as usize;
                let global = session.sequence.table().len() * layout.block_bytes(Part::Global) as usize;
                let windowed = (window.div_ceil(256) + 2) * layout.block_bytes(Part::Windowed) as usize;
                assert!(
                    in_memory <= global + windowed + layout.exact_bytes() as usize,
                    "{in_memory} bytes at {end}"
                );
            }
            session.segments = vec![bench.segment(0..n), bench.segment(n..N)];
            session.sequence.end_turn(&mut memory.arena);
            memory.flush_now(&request, &mut session).expect("a write");
            assert!(session.sequence.missing(256).next().is_some(), "the first window is still in memory");
            memory.take_back(request.session.clone(), session, None);
            let mut other = bench.segment(n..N);
            other.text = format!("{}!", other.text).into();
            let mut recalled = memory.recall(&request, &[bench.segment(0..n), other]).expect("a session");
            assert_eq!(
                recalled.kind,
                if on_disk { MatchKind::Diverge } else { MatchKind::Cold },
                "{format:?}"
            );
            assert_eq!(recalled.reused, if on_disk { n / 256 * 256 } else { 0 }, "{format:?} at {n}");
            assert_eq!(recalled.recomputed, n - recalled.reused);
            let start = recalled.reused;
            let logits = bench.feed(&mut recalled.session.sequence, &mut memory.arena, N, 100);
            assert_eq!(logits, bench.rows(&reference, start..N), "{format:?} at {n}");
        }
    }
}

#[test]
fn the_same_prompt_again_and_another_of_equal_shape() {
    let bench = Bench::new(KvFormat::Q4, Isa::detect());
    let reference = bench.reference();
    for n in [100, 256, 300, 512] {
        let dir = tempfile::tempdir().expect("a folder");
        bench.store(&mut bench.memory(dir.path()), n);
        let mut memory = bench.memory(dir.path());
        let mut same = memory.recall(&request(), &[bench.segment(0..n)]).expect("a session");
        assert_eq!(same.kind, MatchKind::Exact);
        let kept = same.session.sequence.len();
        assert_eq!((same.reused, same.recomputed), (kept, n - kept));
        let logits = bench.feed(&mut same.session.sequence, &mut memory.arena, n, 256);
        assert_eq!(logits, bench.rows(&reference, kept..n), "exact at {n}");
        let other = Segment { text: "other".into(), ids: vec![9; n].into(), ..bench.segment(0..n) };
        drop(memory);
        let mut memory = bench.memory(dir.path());
        let recalled = memory.recall(&request(), &[other]).expect("a session");
        assert_eq!((recalled.kind, recalled.reused), (MatchKind::Cold, 0), "another prompt reuses nothing");
    }
}

#[test]
fn equal_beginnings_are_shared_between_sessions() {
    let bench = Bench::new(KvFormat::Q4, Isa::detect());
    let reference = bench.reference();
    let dir = tempfile::tempdir().expect("a folder");
    bench.store(&mut bench.memory(dir.path()), 600);
    let mut memory = bench.memory(dir.path());
    let session = SessionKey::new("another", "b");
    let mut recalled =
        memory.recall(&Request { session, ..request() }, &[bench.segment(0..N)]).expect("a session");
    assert_eq!((recalled.kind, recalled.reused, recalled.recomputed), (MatchKind::Prefix, 512, 0));
    let logits = bench.feed(&mut recalled.session.sequence, &mut memory.arena, N, 256);
    assert_eq!(logits, bench.rows(&reference, 512..N));
}

/// The files of a folder whose paths contain `part`.
pub(crate) fn files_with(dir: &Path, part: &str) -> Vec<PathBuf> {
    let mut stack = vec![dir.to_path_buf()];
    let mut found = Vec::new();
    while let Some(dir) = stack.pop() {
        for entry in std::fs::read_dir(dir).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                stack.push(path);
            } else if path.to_string_lossy().contains(part) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn file_with(dir: &Path, part: &str) -> PathBuf {
    files_with(dir, part).into_iter().next().expect("such a file")
}

/// Every kind of file, cut at many places, with a bit flipped at many places, empty, foreign, missing: the
/// answer is right, and every loss has a reason.
#[test]
fn no_damage_to_a_file_gives_a_wrong_answer() {
    let bench = Bench::new(KvFormat::Q4, Isa::detect());
    let reference = bench.reference();
    let n = 600;
    for part in ["blocks", "packs", "tails", "manifests"] {
        let stored = |dir: &Path| {
            let mut memory = bench.memory(dir);
            bench.store(&mut memory, n);
            if part == "packs" {
                memory.store.as_ref().expect("a store").pack_all();
            }
            drop(memory);
            let path = file_with(dir, &format!("/{part}/"));
            (std::fs::read(&path).expect("a file"), path)
        };
        let dir = tempfile::tempdir().expect("a folder");
        let len = stored(dir.path()).0.len();
        let places = |count: usize| some((0..count).map(move |i| i * len / count), 3);
        let mut damaged: Vec<(String, Vec<u8>)> = vec![("empty".to_owned(), Vec::new())];
        let (bytes, _) = stored(tempfile::tempdir().expect("a folder").path());
        damaged.push(("foreign".to_owned(), bytes.iter().map(|b| b.wrapping_mul(7)).collect()));
        damaged.extend(places(14).map(|at| (format!("cut at {at}"), bytes[..at].to_vec())));
        for at in places(14).chain([8, len - 1, len - 9, len - 49]) {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            damaged.push((format!("flipped at {at}"), flipped));
        }
        for (what, damage) in damaged {
            let dir = tempfile::tempdir().expect("a folder");
            let (_, path) = stored(dir.path());
            std::fs::write(&path, damage).expect("a write");
            let recalled = bench.check_recall(dir.path(), n, &reference);
            let whole = recalled.reused == n && recalled.recomputed == 0;
            assert!(whole || recalled.reason.is_some(), "{what} of {part}");
            // The next one finds no trace of it.
            let again = bench.check_recall(dir.path(), n, &reference);
            assert!(again.reused <= recalled.reused.max(512), "{what} of {part}");
        }
        let dir = tempfile::tempdir().expect("a folder");
        let (_, path) = stored(dir.path());
        std::fs::remove_file(path).expect("a removal");
        bench.check_recall(dir.path(), n, &reference);
    }
}

/// Files of two agents of equal shape, each in the other's place.
#[test]
fn swapped_files_are_not_each_others() {
    let bench = Bench::new(KvFormat::Q4, Isa::detect());
    let mut other = Bench::new(KvFormat::Q4, Isa::detect());
    other.tokens.iter_mut().for_each(|id| *id = (*id + 1) % 260);
    let (reference, others_reference) = (bench.reference(), other.reference());
    let key = SessionKey { agent: "b".to_owned(), ..request().session };
    for part in ["blocks", "tails", "manifests"] {
        let dir = tempfile::tempdir().expect("a folder");
        let mut memory = bench.memory(dir.path());
        bench.store(&mut memory, 600);
        let ours = files_with(dir.path(), &format!("/{part}/"));
        other.store_as(&mut memory, &key, 600);
        drop(memory);
        let theirs: Vec<_> = files_with(dir.path(), &format!("/{part}/"));
        let theirs = theirs.into_iter().filter(|path| !ours.contains(path));
        for (one, two) in ours.iter().zip(theirs.collect::<Vec<_>>()) {
            let (a, b) = (std::fs::read(one).expect("a file"), std::fs::read(&two).expect("a file"));
            std::fs::write(one, b).expect("a write");
            std::fs::write(two, a).expect("a write");
        }
        let recalled = bench.check_recall(dir.path(), 600, &reference);
        assert!(recalled.reused < 600 && recalled.reason.is_some(), "{part}: {:?}", recalled.reason);
        let mut memory = other.memory(dir.path());
        let prompt = [other.segment(0..600), other.segment(600..N)];
        let mut recalled =
            memory.recall(&Request { session: key.clone(), ..request() }, &prompt).expect("a session");
        let start = recalled.session.sequence.len();
        let logits = other.feed(&mut recalled.session.sequence, &mut memory.arena, N, 256);
        assert_eq!(logits, other.rows(&others_reference, start..N), "{part}");
    }
}

/// Packed, two processes see the same; a store of an older version is not looked at, and is removed with the
/// next removal.
#[test]
fn packs_and_older_versions() {
    let bench = Bench::new(KvFormat::Q4, Isa::detect());
    let reference = bench.reference();
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::create_dir_all(dir.path().join("v3/blocks")).expect("a folder");
    std::fs::write(dir.path().join("v3/blocks/x"), "of an older version").expect("a write");
    let mut memory = bench.memory(dir.path());
    bench.store(&mut memory, 600);
    drop(memory);
    // This one was open before the other packed.
    let mut early = bench.memory(dir.path());
    assert_eq!(bench.open_store(dir.path()).pack_all(), 2);
    assert_eq!(files_with(dir.path(), "/blocks/").len(), 1, "that of the older version");
    let mut recalled = bench.recall(&mut early, 600);
    assert_eq!((recalled.kind, recalled.reused, recalled.reason), (MatchKind::Extend, 600, None));
    let logits = bench.feed(&mut recalled.session.sequence, &mut early.arena, N, 256);
    assert_eq!(logits, bench.rows(&reference, 600..N));
    drop(early);
    let folder = Folder::new(dir.path(), None);
    assert_eq!(folder.verify().expect("a verdict").problems, Vec::<String>::new());
    assert_eq!(folder.list().expect("entries")[0].tokens, 600);
    folder.remove(&|_| false).expect("a removal");
    assert!(!dir.path().join("v3").exists() && files_with(dir.path(), ".pack").len() == 1);
    folder.remove(&|_| true).expect("a removal");
    assert_eq!(files_with(dir.path(), ".pack").len(), 0);
}

#[test]
fn another_models_cache_is_a_miss_with_a_reason() {
    let bench = Bench::new(KvFormat::Q4, Isa::detect());
    let dir = tempfile::tempdir().expect("a folder");
    bench.store(&mut bench.memory(dir.path()), 600);
    let mut other = Bench::new(KvFormat::Q4, Isa::detect());
    for change in ["model", "numerics"] {
        let identity = &mut other.context.identity;
        *identity = bench.context.identity.clone();
        match change {
            "model" => identity.model = "8".to_owned(),
            _ => identity.numerics = "other".to_owned(),
        }
        let recalled = other.recall(&mut other.memory(dir.path()), 600);
        assert_eq!((recalled.kind, recalled.reused), (MatchKind::Cold, 0), "{change}");
        assert!(recalled.reason.is_some(), "{change}");
    }
}

#[test]
fn a_cache_whose_keys_were_coded_by_other_constants_is_a_miss_with_a_reason() {
    let dir = tempfile::tempdir().expect("a folder");
    let open = || {
        let model = ModelSource::Bundled("tiny", RandomModel::tiny(2).bytes().leak());
        let config = EngineConfig { cache_dir: Some(dir.path().to_owned()), ..EngineConfig::new(model) };
        Engine::open(config).expect("an engine")
    };
    let speak = |engine: &Engine| {
        let mut agent = engine.agent("r", "a").system("Go on. ".repeat(60)).replace();
        let done = agent.extend("Go on.").expect("a turn").blocking_finish().expect("a reply");
        (done.usage.kind, done.usage.reason)
    };
    let engine = open();
    let place = StoreLocation::new(dir.path().to_owned(), None, None);
    let root = calibration_root(&engine.model().identity, &engine.model().numerics);
    assert_eq!(speak(&engine).0, MatchKind::Cold);
    drop(engine);
    assert_ne!(speak(&open()).0, MatchKind::Cold, "the same constants are found again");
    let store = Store::open(&place).expect("a store");
    let Found::Whole(text) = store.read_check(root) else { panic!("no calibration") };
    let other = text.replace('a', "b");
    assert_ne!(other, text);
    store.write_check(root, &other).expect("a file");
    drop(store);
    let (kind, reason) = speak(&open());
    assert_eq!(kind, MatchKind::Cold);
    assert!(reason.is_some_and(|reason| reason.contains("keys by")), "no reason");
}

#[test]
fn a_flipped_nibble_changes_the_logits() {
    let bench = Bench::new(KvFormat::Q4, Isa::detect());
    let reference = bench.reference();
    let (mut sequence, mut arena) = (bench.sequence(), bench.arena());
    bench.feed(&mut sequence, &mut arena, 300, 256);
    let id = sequence.table().parts().find_map(|parts| parts[0]).expect("a sealed block");
    arena.corrupt(id);
    let logits = bench.feed(&mut sequence, &mut arena, N, 256);
    assert_ne!(logits, bench.rows(&reference, 300..N), "the cache is not read");
}

#[test]
fn a_flipped_nibble_on_disk_is_read_only_with_verification_off() {
    let bench = Bench::new(KvFormat::Q4, Isa::detect());
    let reference = bench.reference();
    let dir = tempfile::tempdir().expect("a folder");
    bench.store(&mut bench.memory(dir.path()), 300);
    let path = file_with(dir.path(), "blocks");
    let mut bytes = std::fs::read(&path).expect("a file");
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    bytes[8 + header + 4 * 5] ^= 8; // the first code of the first token that is not exact as well
    std::fs::write(&path, bytes).expect("a write");
    let mut store = bench.open_store(dir.path());
    store.verify = false;
    let mut memory = Memory::new(&bench.device, bench.context.clone(), Some(store), u64::MAX);
    let mut recalled = bench.recall(&mut memory, 300);
    let start = recalled.session.sequence.len();
    let logits = bench.feed(&mut recalled.session.sequence, &mut memory.arena, N, 256);
    assert_ne!(logits, bench.rows(&reference, start..N), "the flipped code is not read");
    drop(memory);
    let recalled = bench.check_recall(dir.path(), 300, &reference);
    assert!(recalled.reason.is_some_and(|r| r.contains("checksum")));
}

#[test]
fn without_its_prefix_an_agent_answers_otherwise() {
    let bench = Bench::new(KvFormat::Q4, Isa::detect());
    let reference = bench.reference();
    let mut late = Bench::new(KvFormat::Q4, Isa::detect());
    late.tokens = bench.tokens[300..].to_vec();
    let logits = late.feed(&mut late.sequence(), &mut late.arena(), N - 300, N);
    assert_ne!(logits, bench.rows(&reference, 300..N), "what was read before does not matter");
}
