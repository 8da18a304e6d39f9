//! What would go wrong with states is seen: devices with a fault in how they seal or load them don't give the bits
//! of one without.

use super::exactness::{Bench, N};
use super::states;
use crate::Result;
use crate::device::cpu::Cpu;
use crate::device::{Cache, Device, Output, Pass, PassSpan, StateSpan};
use crate::fixtures::RandomModel;
use crate::kv::format::{BlockBytes, StateFormat};
use crate::kv::layout::{BLOCK, KvLayout, Part};
use crate::kv::table::{BlockId, RowsId, StateId};
use crate::model::calibration::{Calibration, Measured};
use crate::model::spec::DecoderSpec;
use greenroom_kernels::Isa;
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// A border inside a pass is skipped.
    Skipped,
    /// The state loaded before is loaded once more.
    Other,
    /// The convolution lacks the oldest of its inputs.
    FewerInputs,
}

struct Faulty {
    device: Cpu,
    fault: Fault,
}

struct FaultyCache {
    cache: Box<dyn Cache>,
    fault: Fault,
    format: StateFormat,
    /// What is loaded instead of the next.
    last: Option<Arc<BlockBytes>>,
}

fn inner(cache: &mut dyn Cache) -> &mut dyn Cache {
    let cache: &mut dyn Any = cache;
    &mut *cache.downcast_mut::<FaultyCache>().expect("its own cache").cache
}

impl Device for Faulty {
    fn spec(&self) -> &DecoderSpec {
        self.device.spec()
    }

    fn n_vocab(&self) -> usize {
        self.device.n_vocab()
    }

    fn numerics(&self) -> &str {
        self.device.numerics()
    }

    fn calibrate(&mut self, calibration: &Calibration) {
        self.device.calibrate(calibration);
    }

    fn cache(&self, layout: Arc<KvLayout>) -> Box<dyn Cache> {
        let format = StateFormat::new(&layout);
        let cache = self.device.cache(layout);
        Box::new(FaultyCache { cache, fault: self.fault, format, last: None })
    }

    fn run(&self, pass: &Pass, cache: &mut dyn Cache, watch: Option<&mut Measured>) -> Result<Output> {
        if self.fault != Fault::Skipped {
            return self.device.run(pass, inner(cache), watch);
        }
        let spans = pass.spans.iter().map(|span| {
            let end = span.start + span.n;
            let state = span.state.clone().map(|mut state| {
                state.seals.retain(|seal| seal.at == end);
                state
            });
            PassSpan {
                sealed: span.sealed.clone(),
                rows: span.rows.clone(),
                completed: span.completed.clone(),
                state,
                ..*span
            }
        });
        let pass = Pass {
            ids: pass.ids.clone(),
            spans: spans.collect(),
            wanted: pass.wanted.clone(),
            hidden: pass.hidden,
            best: pass.best.clone(),
            is_awaited: None,
        };
        self.device.run(&pass, inner(cache), watch)
    }

    fn seal(&self, span: &StateSpan, cache: &mut dyn Cache) -> Result<()> {
        self.device.seal(span, inner(cache))
    }
}

impl Cache for FaultyCache {
    fn import_block(&mut self, id: BlockId, part: Part, bytes: Arc<BlockBytes>) {
        self.cache.import_block(id, part, bytes);
    }

    fn export_block(&self, id: BlockId) -> Result<Arc<BlockBytes>> {
        self.cache.export_block(id)
    }

    fn free_block(&mut self, id: BlockId) {
        self.cache.free_block(id);
    }

    fn import_rows(&mut self, id: RowsId, bytes: &[u8]) {
        self.cache.import_rows(id, bytes);
    }

    fn export_rows(&self, id: RowsId, tokens: Range<usize>) -> Result<Vec<u8>> {
        self.cache.export_rows(id, tokens)
    }

    fn copy_rows(&mut self, from: RowsId, to: RowsId, n: usize) {
        self.cache.copy_rows(from, to, n);
    }

    fn truncate_rows(&mut self, id: RowsId, n: usize) {
        self.cache.truncate_rows(id, n);
    }

    fn free_rows(&mut self, id: RowsId) {
        self.cache.free_rows(id);
    }

    fn load_state(&mut self, id: StateId, at: usize, from: Option<BlockId>) {
        let loaded = from.map(|from| {
            let bytes = self.cache.export_block(from).expect("a state");
            let loaded = match self.fault {
                Fault::None | Fault::Skipped => return from,
                Fault::Other => self.last.replace(bytes.clone()).unwrap_or(bytes),
                Fault::FewerInputs => {
                    let mut bytes = (*bytes).clone();
                    for layer in &self.format.layers {
                        let row = layer.inputs.len() / layer.layout.n_inputs;
                        bytes.as_bytes_mut()[layer.inputs.clone()][..row].fill(0);
                    }
                    Arc::new(bytes)
                }
            };
            // In a place of its own.
            let id = BlockId(from.0 + 1000);
            self.cache.import_block(id, Part::State, loaded);
            id
        });
        self.cache.load_state(id, at, loaded);
    }

    fn truncate_state(&mut self, id: StateId, n: usize) {
        self.cache.truncate_state(id, n);
    }

    fn free_state(&mut self, id: StateId) {
        self.cache.free_state(id);
    }

    fn open_bytes(&self) -> u64 {
        self.cache.open_bytes()
    }
}

/// True if logits are the reference's in two chunks, and after going back, and in forks.
fn is_exact(model: &RandomModel, fault: Fault) -> bool {
    let bench = Bench::on(model, crate::KvFormat::Q4, |gguf| {
        let device = Cpu::load(gguf, Isa::detect(), &mut |_, _| {}).expect("a device");
        Box::new(Faulty { device, fault })
    });
    let reference = Bench::with(model, crate::KvFormat::Q4, Isa::detect()).reference();
    let n_vocab = reference.len() / N;
    let (mut sequence, mut arena) = (bench.sequence(), bench.arena());
    let mut logits = bench.feed(&mut sequence, &mut arena, 600, 600);
    logits.extend(bench.feed(&mut sequence, &mut arena, N, 100));
    if logits != reference {
        return false;
    }
    [2 * BLOCK, BLOCK].into_iter().all(|n| {
        sequence.begin_turn();
        let kept = sequence.truncate(n, &mut arena);
        assert_eq!(kept, n, "there is a state at the end of a block");
        let mut fork = sequence.fork(&mut arena);
        let logits = bench.feed(&mut fork, &mut arena, N, 256);
        fork.clear(&mut arena);
        logits == reference[n * n_vocab..]
    })
}

#[test]
fn faults_in_sealing_and_loading_are_seen() {
    for model in states::models() {
        let name = model.architecture.clone();
        assert!(is_exact(&model, Fault::None), "{name}");
        assert!(!is_exact(&model, Fault::Other), "{name}: a state of another place");
        assert!(!is_exact(&model, Fault::FewerInputs), "{name}: an input too few");
        // What a convolution alone keeps is f16 wherever it is: no rounding to skip.
        if name != "lfm2" {
            assert!(!is_exact(&model, Fault::Skipped), "{name}: a border skipped");
        }
    }
}
