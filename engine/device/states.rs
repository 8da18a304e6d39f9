//! States of recurrent layers that sequences at work have, in the host's memory.
//!
//! A state stands at a position: its matrices are those after that many tokens. What later tokens add (inputs
//! of the convolution and gates) is logged, so that the state can still end anywhere there; and from a sealed
//! state before it, it can go back to wherever the log reaches.

use super::StateSpan;
use crate::kv::format::{BlockBytes, StateFormat};
use crate::kv::layout::{KvLayout, StateLayout};
use crate::kv::table::StateId;
use greenroom_kernels::Isa;
use half::f16;
use std::collections::HashMap;
use std::ops::Range;

/// States by their ids.
pub(super) struct LiveStates {
    pub(super) format: StateFormat,
    states: HashMap<StateId, LiveState>,
    /// Bytes of all, kept up to date.
    bytes: u64,
}

/// The state of a sequence.
pub(super) struct LiveState {
    /// Tokens that its matrices have seen.
    pub(super) at: usize,
    /// Position of the first token that is logged.
    first: usize,
    pub(super) layers: Vec<LayerState>,
}

/// The state of one layer.
pub(super) struct LayerState {
    pub(super) layout: StateLayout,
    /// `[n_heads, v_dim / 16, k_dim, 16]`.
    pub(super) matrices: Vec<f32>,
    /// Inputs of the convolution, `[n_inputs + logged tokens, channels]`: the first ones are those before the
    /// first logged token.
    inputs: Vec<f16>,
    /// Decays and strengths of the logged tokens, `[tokens, n_heads, 2]`.
    gates: Vec<f32>,
}

impl LayerState {
    fn new(layout: StateLayout) -> Self {
        let inputs = vec![f16::ZERO; layout.n_inputs * layout.channels];
        Self { layout, matrices: vec![0.0; layout.elements()], inputs, gates: Vec::new() }
    }

    fn bytes(&self) -> u64 {
        (4 * (self.matrices.capacity() + self.gates.capacity()) + 2 * self.inputs.capacity()) as u64
    }

    /// Forgets logged tokens but these.
    fn keep(&mut self, tokens: Range<usize>) {
        let (inputs, gates) = (self.layout.channels, 2 * self.layout.n_heads);
        self.inputs.truncate((tokens.end + self.layout.n_inputs) * inputs);
        self.gates.truncate(tokens.end * gates);
        self.inputs.drain(..tokens.start * inputs);
        self.gates.drain(..tokens.start * gates);
    }
}

impl LiveState {
    fn new(format: &StateFormat) -> Self {
        let layers = format.layers.iter().map(|layer| LayerState::new(layer.layout)).collect();
        Self { at: 0, first: 0, layers }
    }

    fn bytes(&self) -> u64 {
        self.layers.iter().map(LayerState::bytes).sum()
    }

    /// Logs tokens of one layer; all its logged tokens then end at the same place.
    pub(super) fn append(&mut self, layer: usize, inputs: &[f16], gates: &[f32]) {
        let layer = &mut self.layers[layer];
        layer.inputs.extend_from_slice(inputs);
        layer.gates.extend_from_slice(gates);
    }

    /// A layer's matrices; inputs of its convolution for the tokens from where the state stands, with those
    /// before; and these tokens' gates.
    pub(super) fn walked(&mut self, layer: usize) -> (&mut [f32], &[f16], &[f32]) {
        let behind = self.at - self.first;
        let LayerState { layout, matrices, inputs, gates } = &mut self.layers[layer];
        (matrices, &inputs[behind * layout.channels..], &gates[behind * 2 * layout.n_heads..])
    }

    /// Inputs of a layer's convolution before a token.
    pub(super) fn inputs_before(&self, layer: usize, position: usize) -> &[f16] {
        let LayerState { layout, inputs, .. } = &self.layers[layer];
        &inputs[(position - self.first) * layout.channels..][..layout.n_inputs * layout.channels]
    }
}

impl LiveStates {
    /// None yet.
    pub(super) fn new(layout: &KvLayout) -> Self {
        Self { format: StateFormat::new(layout), states: HashMap::new(), bytes: 0 }
    }

    /// Bytes of all of them.
    pub(super) fn bytes(&self) -> u64 {
        debug_assert_eq!(self.bytes, self.states.values().map(LiveState::bytes).sum::<u64>());
        self.bytes
    }

    /// Takes a state out, to be put back.
    pub(super) fn take(&mut self, id: StateId) -> LiveState {
        let state = self.states.remove(&id).unwrap_or_else(|| LiveState::new(&self.format));
        self.bytes = self.bytes.saturating_sub(state.bytes());
        state
    }

    /// Puts a state back, or a new one.
    pub(super) fn put(&mut self, id: StateId, state: LiveState) {
        self.bytes += state.bytes();
        if let Some(before) = self.states.insert(id, state) {
            self.bytes -= before.bytes();
        }
    }

    /// See [`Cache::load_state`](super::Cache::load_state).
    pub(super) fn load(&mut self, isa: Isa, id: StateId, at: usize, from: Option<&BlockBytes>) {
        let mut state = self.states.contains_key(&id).then(|| self.take(id));
        // What is logged from there on stays.
        if let Some(state) = state.take_if(|state| state.first <= at && at <= state.end()) {
            let (first, end) = (at - state.first, state.end() - state.first);
            let mut state = state;
            state.layers.iter_mut().for_each(|layer| layer.keep(first..end));
            (state.first, state.at) = (at, at);
            self.unseal(isa, &mut state, from);
            return self.put(id, state);
        }
        let mut state = LiveState::new(&self.format);
        (state.first, state.at) = (at, at);
        self.unseal(isa, &mut state, from);
        if let Some(bytes) = from {
            for (layer, format) in state.layers.iter_mut().zip(&self.format.layers) {
                layer.inputs.copy_from_slice(bytemuck::cast_slice(&bytes.as_bytes()[format.inputs.clone()]));
            }
        }
        self.put(id, state);
    }

    fn unseal(&self, isa: Isa, state: &mut LiveState, from: Option<&BlockBytes>) {
        for (layer, format) in state.layers.iter_mut().zip(&self.format.layers) {
            let Some(bytes) = from.map(BlockBytes::as_bytes) else {
                layer.matrices.fill(0.0);
                continue;
            };
            let StateLayout { n_heads, k_dim, v_dim, .. } = layer.layout;
            if n_heads == 0 {
                continue;
            }
            let elements = bytes[format.elements.clone()].chunks_exact(format.elements.len() / n_heads);
            let scales: &[f32] = bytemuck::cast_slice(&bytes[format.scales.clone()]);
            for (head, (matrix, elements)) in
                layer.matrices.chunks_exact_mut(k_dim * v_dim).zip(elements).enumerate()
            {
                let n_scales = self.format.sealed.n_scales(v_dim);
                let scales = &scales[head * n_scales..][..n_scales];
                self.format.sealed.unseal(isa, elements, scales, k_dim, matrix);
            }
        }
    }

    /// See [`Cache::truncate_state`](super::Cache::truncate_state).
    pub(super) fn truncate(&mut self, id: StateId, n: usize) {
        if self.states.contains_key(&id) {
            let mut state = self.take(id);
            let end = n.saturating_sub(state.first);
            state.layers.iter_mut().for_each(|layer| layer.keep(0..end));
            self.put(id, state);
        }
    }

    /// Forgets a state, if it is there.
    pub(super) fn free(&mut self, id: StateId) {
        if self.states.contains_key(&id) {
            drop(self.take(id));
        }
    }

    /// All layers have advanced a state: it stands where tokens are certain, and forgets those that are not
    /// kept.
    pub(super) fn finish(&mut self, span: &StateSpan) {
        let mut state = self.take(span.id);
        let end = state.end() - state.first;
        let gone = span.keep.min(span.certain).saturating_sub(state.first);
        state.layers.iter_mut().for_each(|layer| layer.keep(gone..end));
        state.first += gone;
        state.at = span.certain;
        self.put(span.id, state);
    }
}

impl LiveState {
    /// Position after the last logged token.
    fn end(&self) -> usize {
        let tokens = |layer: &LayerState| layer.inputs.len() / layer.layout.channels - layer.layout.n_inputs;
        self.first + self.layers.first().map_or(0, tokens)
    }
}
