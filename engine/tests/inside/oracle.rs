//! Devices against the reference: every family and format of the cache, logits and bytes.

use super::some;
use crate::device::cpu::Cpu;
use crate::device::reference::Reference;
use crate::device::{Device, measure};
use crate::fixtures::{self, Dtype, RandomModel};
use crate::kv::layout::{BLOCK, Part};
use crate::kv::table::BlockHash;
use crate::memory::arena::Arena;
use crate::memory::pass::{Span, Wanted, forward};
use crate::memory::sequence::Sequence;
use crate::memory::states::States;
use crate::model::gguf::Gguf;
use crate::{KvChoice, KvFormat, ModelSource};
use greenroom_kernels::Isa;
use std::sync::Arc;

/// Past the border of the second block.
const N: usize = 530;

/// A sequence on a device.
struct Reader {
    arena: Arena,
    sequence: Sequence,
}

impl Reader {
    fn new(device: &Arc<dyn Device>, kv: KvFormat) -> Self {
        let layout = Arc::new(device.spec().kv_layout(&KvChoice::Uniform(kv)).expect("a layout"));
        let arena = Arena::new(device, &layout, u64::MAX);
        Self { arena, sequence: Sequence::new(layout, BlockHash::root("oracle")) }
    }

    /// Feeds tokens up to `end`, and returns the logits of every row fed, `[n, n_vocab]`.
    fn feed(&mut self, tokens: &[u32], end: usize) -> Vec<f32> {
        let span = Span { sequence: &mut self.sequence, tokens, end, certain: end, logits: Wanted::All };
        forward(vec![span], &mut self.arena).expect("a pass").remove(0)
    }

    /// Feeds tokens up to `end` as [`Reader::feed`]; a reply ends there.
    fn feed_reply(&mut self, tokens: &[u32], end: usize) -> Vec<f32> {
        let logits = self.feed(tokens, end);
        self.sequence.end_reply(&tokens[..end], &mut self.arena).expect("a state");
        logits
    }

    /// Takes another device's memory over, as bytes.
    fn take_over(&mut self, other: &Self) {
        let blocks = other.sequence.table().hashes().zip(other.sequence.table().parts());
        for (hash, parts) in blocks {
            let take = |part: Part| {
                let id = parts[part as usize]?;
                Some(self.arena.insert((hash, part), other.arena.export(id).expect("a block")))
            };
            self.sequence.push_block(hash, Part::OF_BLOCKS.map(take));
        }
        if let Some(rows) = other.sequence.open_rows() {
            let n = other.sequence.len() % BLOCK;
            let rows = self.arena.insert_rows(&other.arena.export_rows(rows, 0..n).expect("rows"));
            self.sequence.push_rows(rows, n);
        }
        for (at, hash, id) in other.sequence.states().into_iter().flat_map(States::known) {
            let bytes = other.arena.export(id.expect("a state in memory")).expect("a state");
            let id = self.arena.insert((hash, Part::State), bytes);
            let states = self.sequence.states_mut().expect("states");
            states.add(at, hash, Some(id), false, &mut self.arena);
        }
    }
}

/// Root mean square of the difference of rows of logits over that of `a`: the 90th percentile, for an expert
/// that is chosen by a hair changes a row altogether.
fn distance(a: &[f32], b: &[f32], n_vocab: usize) -> f64 {
    assert_eq!(a.len(), b.len());
    let square = |x: f32| f64::from(x) * f64::from(x);
    let of_row = |(a, b): (&[f32], &[f32])| {
        let off: f64 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
        (off / a.iter().map(|x| square(*x)).sum::<f64>()).sqrt()
    };
    let mut rows: Vec<f64> = a.chunks_exact(n_vocab).zip(b.chunks_exact(n_vocab)).map(of_row).collect();
    rows.sort_by(f64::total_cmp);
    rows[rows.len() * 9 / 10]
}

/// The families, with float weights: what differs is the cache and the order of sums. With coded weights
/// activations are rounded.
pub(crate) fn models() -> Vec<(RandomModel, &'static str)> {
    let tiny = |name| RandomModel { dtype: Dtype::F32, ..RandomModel::tiny_of(name, 7) };
    let of_family = |name: &'static str| {
        let model = tiny(name);
        let model = match name {
            "qwen2" => RandomModel { head_dim: 80, ..model },
            "gemma3" => RandomModel { n_layers: 6, window: 200, ..model },
            "deepseek2" | "gpt-oss" => RandomModel { n_layers: 2, ..model },
            _ => model,
        };
        (model, name)
    };
    let mut all: Vec<(RandomModel, &'static str)> = fixtures::families().map(of_family).collect();
    let mixture = RandomModel { dtype: Dtype::F32, ..super::exactness::mixture_of_gemma4() };
    all.push((mixture, "gemma4 with experts"));
    all.push((RandomModel { dtype: Dtype::Q8_0, ..RandomModel::tiny(7) }, "llama in Q8_0"));
    all
}

pub(crate) fn devices(model: &RandomModel) -> [Arc<dyn Device>; 2] {
    let tokens: Vec<u32> = tokens();
    let bytes: &'static [u8] = model.bytes().leak();
    let gguf = Arc::new(Gguf::open(&ModelSource::Bundled("random", bytes)).expect("a model"));
    let mut cpu = Cpu::load(&gguf, Isa::detect(), &mut |_, _| {}).expect("a device");
    let mut reference = Reference::load(&gguf).expect("a device");
    let calibration = measure(&cpu, &tokens).expect("a calibration");
    cpu.calibrate(&calibration);
    reference.calibrate(&calibration);
    [Arc::new(cpu), Arc::new(reference)]
}

fn tokens() -> Vec<u32> {
    (0..N as u32).map(|i| i.wrapping_mul(2_654_435_761) % 260).collect()
}

/// A device reads the rest of a text on memory that another one wrote, as bytes.
fn on_memory_of(
    writer: &Arc<dyn Device>,
    reader: &Arc<dyn Device>,
    kv: KvFormat,
    tokens: &[u32],
) -> Vec<f32> {
    let (mut before, mut after) = (Reader::new(writer, kv), Reader::new(reader, kv));
    before.feed_reply(tokens, 300);
    after.take_over(&before);
    after.feed(tokens, N)
}

#[test]
fn the_processor_is_near_the_reference() {
    for (model, name) in some(models(), 3) {
        let [cpu, reference] = devices(&model);
        near(name, &cpu, &reference, &model, &BOUNDS);
    }
}

/// How near each format of the cache is.
pub(crate) const BOUNDS: [(KvFormat, f64); 3] =
    [(KvFormat::Q4, 0.03), (KvFormat::Q8, 2e-3), (KvFormat::F16, 2e-4)];

/// Tells whether a device is near the reference: on its own memory, and where one continues what the other
/// wrote.
pub(crate) fn near(
    name: &str,
    ours: &Arc<dyn Device>,
    reference: &Arc<dyn Device>,
    model: &RandomModel,
    bounds: &[(KvFormat, f64)],
) {
    let tokens = tokens();
    // Coded weights meet activations in 8 bits, and queries coded keys.
    let coded = if model.dtype == Dtype::F32 { 0.0 } else { 0.02 };
    for (kv, bound) in bounds.iter().copied() {
        let read = |device: &Arc<dyn Device>| {
            let mut reader = Reader::new(device, kv);
            // In two passes, the second of which continues an open block.
            [reader.feed_reply(&tokens, 300), reader.feed(&tokens, N)].concat()
        };
        let (found, expected) = (read(ours), read(reference));
        let n_vocab = ours.n_vocab();
        let rest = &expected[300 * n_vocab..];
        let found = [
            distance(&expected, &found, n_vocab),
            distance(rest, &on_memory_of(ours, reference, kv, &tokens), n_vocab),
            distance(rest, &on_memory_of(reference, ours, kv, &tokens), n_vocab),
        ];
        eprintln!("{name}, {kv:?}: {found:.5?}");
        assert!(found.iter().all(|off| *off < bound + coded), "{name}, {kv:?}: {found:?}");
    }
}
