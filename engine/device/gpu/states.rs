//! States of recurrent layers on the GPU: for each layer a buffer of matrices, one of logged tokens and one of
//! sealed states, in slots of one size; and where each sequence stands.
//!
//! The host has the positions, the GPU all numbers. A logged token has one slot in every layer, so that tokens
//! are kept and forgotten without moving any. A state that is loaded stays in its sealed form until the next
//! pass takes its matrices from there.

use super::context::Context;
use super::slots::Slots;
use crate::device::{Pass, StateSpan};
use crate::kv::format::StateFormat;
use crate::kv::layout::{KvLayout, StateLayout};
use crate::kv::table::{BlockId, StateId};
use std::collections::HashMap;
use wgpu::{Buffer, CommandEncoder};

/// No slot: zeros.
const NONE: u32 = u32::MAX;
/// As `walk.wgsl` has it.
const HERE: u32 = NONE - 1;

/// Words of a logged token: its inputs in halves, and two gates for each head.
pub(super) fn log_words(layout: StateLayout) -> usize {
    layout.channels / 2 + 2 * layout.n_heads
}

/// A layer's buffers, and bytes of a slot in each.
pub(super) struct StateBuffers {
    pub(super) matrices: Buffer,
    pub(super) log: Buffer,
    pub(super) sealed: Buffer,
    matrix_bytes: u64,
    log_bytes: u64,
    pub(super) sealed_bytes: u64,
    input_bytes: u64,
}

/// Where the matrices of a state are taken from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// They are in the state's slot.
    Here,
    /// An empty sequence's.
    Zeros,
    /// A slot of sealed states.
    Sealed(u32),
}

/// The state of a sequence.
struct LiveState {
    slot: u32,
    origin: Origin,
    /// Tokens that its matrices have seen.
    at: usize,
    /// Position of the first token that is logged.
    first: usize,
    /// Slots of logged tokens, those of the convolution's inputs before the first one in front.
    log: Vec<u32>,
}

/// States by their ids.
pub(super) struct GpuStates {
    pub(super) layers: Vec<StateBuffers>,
    format: StateFormat,
    states: HashMap<StateId, LiveState>,
    matrices: Slots,
    log: Slots,
    pub(super) sealed: Slots,
    /// Sealed states that were freed before what was loaded from them was used.
    orphans: Vec<u32>,
}

/// What a pass tells the GPU of its states: see `PassBuffer`.
#[derive(Default)]
pub(super) struct StateTables {
    pub(super) logged: Vec<[u32; 2]>,
    pub(super) places: Vec<u32>,
    pub(super) walked: Vec<u32>,
    pub(super) sequences: Vec<[u32; 9]>,
    pub(super) seals: Vec<[u32; 2]>,
    pub(super) kept: Vec<[u32; 2]>,
}

impl GpuStates {
    /// None yet.
    pub(super) fn new(context: &Context, layout: &KvLayout) -> Self {
        let format = StateFormat::new(layout);
        let layer = |of: &crate::kv::format::StateLayerFormat| StateBuffers {
            matrices: context.buffer(0),
            log: context.buffer(0),
            sealed: context.buffer(0),
            matrix_bytes: 4 * of.layout.elements() as u64,
            log_bytes: 4 * log_words(of.layout) as u64,
            sealed_bytes: (of.scales.end - of.inputs.start) as u64,
            input_bytes: 2 * of.layout.channels as u64,
        };
        Self {
            layers: format.layers.iter().map(layer).collect(),
            format,
            states: HashMap::new(),
            matrices: Slots::default(),
            log: Slots::default(),
            sealed: Slots::default(),
            orphans: Vec::new(),
        }
    }

    /// Inputs of the convolution before a token; the same in all layers.
    fn n_inputs(&self) -> usize {
        self.format.layers.first().map_or(0, |layer| layer.layout.n_inputs)
    }

    /// Bytes of a layer's share of a sealed state.
    pub(super) fn ranges(&self) -> impl Iterator<Item = std::ops::Range<usize>> {
        self.format.layers.iter().map(|layer| layer.inputs.start..layer.scales.end)
    }

    /// Bytes of a sealed state.
    pub(super) fn sealed_len(&self) -> usize {
        self.format.len()
    }

    /// Every buffer, with the bytes of a slot and the slots that it has.
    pub(super) fn buffers(&mut self) -> impl Iterator<Item = (&mut Buffer, u64, &Slots)> {
        let Self { layers, matrices, log, sealed, .. } = self;
        let [matrices, log, sealed] = [&*matrices, &*log, &*sealed];
        layers.iter_mut().flat_map(move |layer| {
            [
                (&mut layer.matrices, layer.matrix_bytes, matrices),
                (&mut layer.log, layer.log_bytes, log),
                (&mut layer.sealed, layer.sealed_bytes, sealed),
            ]
        })
    }

    /// All kinds of slots.
    pub(super) fn slots(&mut self) -> [&mut Slots; 3] {
        [&mut self.matrices, &mut self.log, &mut self.sealed]
    }

    /// Bytes of all states at work.
    pub(super) fn bytes(&self) -> u64 {
        let logged: usize = self.states.values().map(|state| state.log.len()).sum();
        let of = |layer: &StateBuffers| {
            self.states.len() as u64 * layer.matrix_bytes + logged as u64 * layer.log_bytes
        };
        self.layers.iter().map(of).sum()
    }

    fn state(&mut self, id: StateId) -> &mut LiveState {
        let (n_inputs, matrices) = (self.n_inputs(), &mut self.matrices);
        self.states.entry(id).or_insert_with(|| LiveState {
            slot: matrices.take(),
            origin: Origin::Zeros,
            at: 0,
            first: 0,
            log: vec![NONE; n_inputs],
        })
    }

    /// Makes a state stand at `at`, as the sealed one in a slot says. Returns slots of the log that the inputs
    /// before have to be copied to, if they are not logged.
    pub(super) fn load(&mut self, id: StateId, at: usize, from: Option<u32>) -> Vec<u32> {
        let n_inputs = self.n_inputs();
        let state = self.state(id);
        let is_logged = (state.first..=state.end(n_inputs)).contains(&at);
        let forgotten = if is_logged { at - state.first } else { state.log.len() };
        let gone: Vec<u32> = state.log.drain(..forgotten).collect();
        let before = std::mem::replace(&mut state.origin, from.map_or(Origin::Zeros, Origin::Sealed));
        (state.at, state.first) = (at, at);
        self.forget(gone, before);
        if is_logged {
            return Vec::new();
        }
        let inputs: Vec<u32> = match from {
            Some(_) => (0..n_inputs).map(|_| self.log.take()).collect(),
            None => vec![NONE; n_inputs],
        };
        self.state(id).log.clone_from(&inputs);
        inputs.into_iter().filter(|slot| *slot != NONE).collect()
    }

    /// Copies a sealed state's inputs to slots of the log.
    pub(super) fn copy_inputs(&self, encoder: &mut CommandEncoder, from: u32, to: &[u32]) {
        for layer in &self.layers {
            for (i, slot) in (0..).zip(to) {
                let from = u64::from(from) * layer.sealed_bytes + i * layer.input_bytes;
                let to = u64::from(*slot) * layer.log_bytes;
                encoder.copy_buffer_to_buffer(&layer.sealed, from, &layer.log, to, layer.input_bytes);
            }
        }
    }

    /// Gives slots of the log back, and a sealed state that nothing is taken from any more.
    fn forget(&mut self, logged: impl IntoIterator<Item = u32>, origin: Origin) {
        self.log.free.extend(logged.into_iter().filter(|slot| *slot != NONE));
        let Origin::Sealed(slot) = origin else { return };
        if self.orphans.contains(&slot) && !self.is_origin(slot) {
            self.orphans.retain(|orphan| *orphan != slot);
            self.sealed.free.push(slot);
        }
    }

    fn is_origin(&self, slot: u32) -> bool {
        self.states.values().any(|state| state.origin == Origin::Sealed(slot))
    }

    /// Gives the slot of a sealed state back.
    pub(super) fn free_sealed(&mut self, slot: u32) {
        let whose = if self.is_origin(slot) { &mut self.orphans } else { &mut self.sealed.free };
        whose.push(slot);
    }

    /// Forgets what a state has logged of tokens after the first `n`.
    pub(super) fn truncate(&mut self, id: StateId, n: usize) {
        let n_inputs = self.n_inputs();
        let Some(state) = self.states.get_mut(&id) else { return };
        let end = (n_inputs + n.saturating_sub(state.first)).min(state.log.len());
        let gone = state.log.split_off(end);
        self.forget(gone, Origin::Here);
    }

    /// Forgets a state, if it is there.
    pub(super) fn free(&mut self, id: StateId) {
        if let Some(state) = self.states.remove(&id) {
            self.matrices.free.push(state.slot);
            self.forget(state.log, state.origin);
        }
    }

    /// Logs the tokens of a pass, and lists what it does with its states; `slot_of` knows the slots of those
    /// that it seals.
    pub(super) fn tables(&mut self, pass: &Pass, slot_of: impl Fn(BlockId) -> u32) -> StateTables {
        let (mut tables, n_inputs) = (StateTables::default(), self.n_inputs());
        for (span, of) in pass.spans.iter().filter_map(|span| Some((span, span.state.as_ref()?))) {
            let new: Vec<u32> = (0..span.n).map(|_| self.log.take()).collect();
            let state = self.state(of.id);
            let n_before = state.end(n_inputs) - state.at;
            let (row, first) = (tables.logged.len(), tables.walked.len());
            let rows = new.iter().zip(first + n_before..);
            tables.logged.extend(rows.map(|(slot, walked)| [*slot, walked as u32]));
            state.log.extend(new);
            // Entry of a token among the places, by its position.
            let at = tables.places.len() + n_inputs;
            let entry = |position: usize| (at + position - state.at) as u32;
            let n = n_before + span.n;
            tables.walked.extend((state.at..state.at + n).map(entry));
            tables.places.extend(&state.log[state.at - state.first..]);
            let first_seal = tables.seals.len();
            for seal in &of.seals {
                let slot = seal.to.map_or(NONE, &slot_of);
                tables.seals.push([(seal.at - state.at) as u32, slot]);
                tables.kept.extend(seal.to.map(|_| [entry(seal.at), slot]));
            }
            let origin = match state.origin {
                Origin::Here => HERE,
                Origin::Zeros => NONE,
                Origin::Sealed(slot) => slot,
            };
            let n_seals = tables.seals.len() - first_seal;
            let counts = [first, n, of.certain - state.at, n_before, row, first_seal, n_seals];
            let mut sequence = [state.slot, origin, 0, 0, 0, 0, 0, 0, 0];
            sequence[2..].iter_mut().zip(counts).for_each(|(word, n)| *word = n as u32);
            tables.sequences.push(sequence);
        }
        tables
    }

    /// A pass has advanced a state: it stands where tokens are certain, and forgets those that are not kept.
    pub(super) fn finish(&mut self, span: &StateSpan) {
        let state = self.state(span.id);
        let gone = span.keep.min(span.certain).saturating_sub(state.first);
        let gone: Vec<u32> = state.log.drain(..gone).collect();
        state.first += gone.len();
        state.at = span.certain;
        let before = std::mem::replace(&mut state.origin, Origin::Here);
        self.forget(gone, before);
    }
}

impl LiveState {
    /// Position after the last logged token.
    fn end(&self, n_inputs: usize) -> usize {
        self.first + self.log.len() - n_inputs
    }
}
