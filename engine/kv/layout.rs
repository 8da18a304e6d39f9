//! Layout of each layer's cache: heads, widths, formats, windows. No bytes here.
//!
//! MLA caches the latent, 16 tokens to a vector as all keys are; values are a view of its first columns,
//! turned around tile by tile. The up-projections are absorbed into queries and contexts. Latent and rotary
//! part are rotated (Hadamard) separately, so that the view can be rotated back.

use crate::{KvCost, KvFormat};
use greenroom_kernels::quant::{EXACT, GROUP};
use greenroom_kernels::recurrence::Sealed;

/// Tokens of a block.
pub(crate) const BLOCK: usize = 256;

/// Tokens of a memory of `len` tokens that a fork with the first `common` of them takes over: a sealed block,
/// which is no longer rows, is taken over whole or not at all.
///
/// ```
/// assert_eq!(greenroom_engine::forkable(300, 300), 300);
/// assert_eq!(greenroom_engine::forkable(300, 310), 300);
/// assert_eq!(greenroom_engine::forkable(300, 600), 256);
/// ```
pub fn forkable(common: usize, len: usize) -> usize {
    if common / BLOCK == len / BLOCK { common } else { common / BLOCK * BLOCK }
}

/// Keys or values of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TensorLayout {
    /// KV heads.
    pub(crate) n_heads: usize,
    /// Width of a head.
    pub(crate) dim: usize,
    /// Format of sealed blocks.
    pub(crate) format: KvFormat,
    /// True if heads are rotated before they are cached.
    pub(crate) rotated: bool,
    /// True if the session's first rows are kept exact in addition to their codes: where rows are coded, and
    /// keys are not read as values.
    pub(crate) exact: bool,
    /// True if codes are offsets from the block's mean: for such keys.
    pub(crate) centered: bool,
}

impl TensorLayout {
    /// Bits of a code; `None` for f16.
    pub(crate) fn bits(self) -> Option<u32> {
        match self.format {
            KvFormat::F16 => None,
            KvFormat::Q8 => Some(8),
            KvFormat::Q4 => Some(4),
        }
    }

    /// Tells whether keys are coded by a [calibration](crate::model::calibration) where the model has it: in
    /// 8 bits nothing is left to be gained.
    pub(crate) fn shaped(self) -> bool {
        self.format == KvFormat::Q4 && self.rotated && self.centered
    }

    /// Elements of a token, all heads.
    pub(crate) fn row(self) -> usize {
        self.n_heads * self.dim
    }

    /// Words of codes of one head's token, as keys.
    pub(crate) fn key_words(self, bits: u32) -> usize {
        self.dim * bits as usize / 32
    }

    /// Words of codes of one head's token, as values: 4-bit codes come 32 at a time.
    pub(crate) fn value_words(self, bits: u32) -> usize {
        if bits == 4 { self.dim.div_ceil(32) * 4 } else { self.dim / 4 }
    }

    /// Groups of one head's token.
    pub(crate) fn n_groups(self) -> usize {
        self.dim.div_ceil(GROUP)
    }

    /// Bytes of a sealed block, all heads, the codes of a token being `words(bits)` long.
    fn block_bytes(self, words: impl Fn(Self, u32) -> usize) -> usize {
        let means = if self.centered { 2 * self.dim } else { 0 };
        let coded = |bits| BLOCK * (4 * words(self, bits) + self.n_groups()) + means;
        self.n_heads * self.bits().map_or(BLOCK * 2 * self.dim, coded)
    }

    /// Bytes of the rows that a session's first block keeps exact, all heads.
    fn exact_bytes(self) -> usize {
        if self.exact { 2 * EXACT * self.row() } else { 0 }
    }
}

/// Keys and values of one layer; they may differ in width and format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LayerLayout {
    pub(crate) k: TensorLayout,
    pub(crate) v: TensorLayout,
    /// Values are the first columns of the keys (the latent of MLA): nothing is stored for them.
    pub(crate) shared: bool,
    /// Number of tokens that a row attends to, itself included; `None`: all before it.
    pub(crate) window: Option<usize>,
}

impl LayerLayout {
    /// Values, where they are stored by themselves.
    pub(crate) fn stored_v(&self) -> Option<TensorLayout> {
        (!self.shared).then_some(self.v)
    }

    /// Widths of the parts of a head's keys that are rotated apart: a latent is read as values, so it stays
    /// by itself.
    pub(crate) fn key_parts(&self) -> Vec<usize> {
        if self.shared { vec![self.v.dim, self.k.dim - self.v.dim] } else { vec![self.k.dim] }
    }

    /// Bytes of a sealed block.
    pub(crate) fn block_bytes(&self) -> usize {
        let values = self.stored_v().map_or(0, |v| v.block_bytes(TensorLayout::value_words));
        self.k.block_bytes(TensorLayout::key_words) + values
    }

    /// Bytes of a token's f16 rows.
    pub(crate) fn row_bytes(&self) -> usize {
        2 * (self.k.row() + self.stored_v().map_or(0, TensorLayout::row))
    }
}

/// What a recurrent layer keeps of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateLayout {
    /// Inputs of its convolution: those of the last so many tokens.
    pub(crate) n_inputs: usize,
    pub(crate) channels: usize,
    /// Matrices, `[k_dim, v_dim]` each.
    pub(crate) n_heads: usize,
    pub(crate) k_dim: usize,
    pub(crate) v_dim: usize,
}

impl StateLayout {
    /// Elements of all matrices.
    pub(crate) fn elements(&self) -> usize {
        self.n_heads * self.k_dim * self.v_dim
    }

    /// Bytes that a sequence at work takes: f32 matrices, and the inputs before its end.
    fn live_bytes(&self) -> u64 {
        (4 * self.elements() + self.inputs_bytes()) as u64
    }

    /// Bytes of the convolution's inputs, sealed or at work.
    pub(crate) fn inputs_bytes(&self) -> usize {
        2 * self.n_inputs * self.channels
    }

    /// Bytes of the sealed matrices.
    pub(crate) fn elements_bytes(&self, sealed: Sealed) -> usize {
        sealed.element() * self.elements()
    }

    /// Bytes of their scales.
    pub(crate) fn scales_bytes(&self, sealed: Sealed) -> usize {
        4 * sealed.n_scales(self.n_heads * self.v_dim)
    }

    /// Bytes of what a token adds, until it is certain that the sequence does not go back: f16 inputs, and a
    /// decay and a strength for each head.
    pub(crate) fn token_bytes(&self) -> u64 {
        (2 * self.channels + 8 * self.n_heads) as u64
    }
}

/// What of a sequence is loaded and evicted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Part {
    /// A block of the layers with full attention: needed for as long as the sequence is in memory.
    Global = 0,
    /// A block of the layers with a window: in memory while a row to come can see it.
    Windowed = 1,
    /// The state of all recurrent layers after a token.
    State = 2,
}

impl Part {
    /// The parts of a block.
    pub(crate) const OF_BLOCKS: [Self; 2] = [Self::Global, Self::Windowed];
    /// All.
    pub(crate) const ALL: [Self; 3] = [Self::Global, Self::Windowed, Self::State];
}

/// All layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KvLayout {
    pub(crate) layers: Vec<LayerLayout>,
    /// Recurrent layers, in order.
    pub(crate) states: Vec<StateLayout>,
    /// Format of their sealed states.
    pub(crate) sealed: Sealed,
}

impl KvLayout {
    /// Equal layers of plain heads.
    #[cfg(any(test, feature = "fixtures"))]
    pub(crate) fn uniform(n_layers: usize, n_heads: usize, dim: usize, format: KvFormat) -> Self {
        let coded = format != KvFormat::F16;
        let tensor = |centered| TensorLayout { n_heads, dim, format, rotated: coded, exact: coded, centered };
        let layer = LayerLayout { k: tensor(coded), v: tensor(false), shared: false, window: None };
        Self { layers: vec![layer; n_layers], states: Vec::new(), sealed: Sealed::Q8 }
    }

    /// The part that a layer belongs to. Where no layer sees everything, all are global: a block is found by
    /// that part.
    pub(crate) fn part_of(&self, layer: usize) -> Part {
        let all_windowed = || self.layers.iter().all(|l| l.window.is_some());
        if self.layers[layer].window.is_none() || all_windowed() { Part::Global } else { Part::Windowed }
    }

    /// The layers of a part, in order.
    pub(crate) fn layers_of(&self, part: Part) -> impl Iterator<Item = usize> {
        (0..self.layers.len()).filter(move |layer| self.part_of(*layer) == part)
    }

    /// The parts of its blocks.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Part> {
        Part::OF_BLOCKS.into_iter().filter(|part| self.layers_of(*part).next().is_some())
    }

    /// True if there are recurrent layers.
    pub(crate) fn has_states(&self) -> bool {
        !self.states.is_empty()
    }

    /// Bytes of a sealed state.
    pub(crate) fn state_bytes(&self) -> u64 {
        let of = |state: &StateLayout| {
            state.inputs_bytes() + state.elements_bytes(self.sealed) + state.scales_bytes(self.sealed)
        };
        self.states.iter().map(|state| of(state) as u64).sum()
    }

    /// The widest window of the windowed part; `None` if it has no layers.
    pub(crate) fn window(&self) -> Option<usize> {
        self.layers_of(Part::Windowed).filter_map(|layer| self.layers[layer].window).max()
    }

    /// Bytes of a sealed block in the layers of a part; a session's first one may have
    /// [`KvLayout::exact_bytes`] more.
    pub(crate) fn block_bytes(&self, part: Part) -> u64 {
        debug_assert_ne!(part, Part::State, "a state is no part of a block");
        self.layers_of(part).map(|layer| self.layers[layer].block_bytes() as u64).sum()
    }

    /// Bytes of what a session's first block keeps exact, in all layers.
    pub(crate) fn exact_bytes(&self) -> u64 {
        let of = |layer: &LayerLayout| {
            layer.k.exact_bytes() + layer.stored_v().map_or(0, TensorLayout::exact_bytes)
        };
        self.layers.iter().map(|layer| of(layer) as u64).sum()
    }

    /// Bytes of a token's f16 rows in all layers.
    pub(crate) fn row_bytes(&self) -> usize {
        self.layers.iter().map(LayerLayout::row_bytes).sum()
    }

    /// Memory that an agent's cache takes. A window holds the blocks that it reaches into, and the one
    /// before, so that a turn can be undone.
    pub(crate) fn cost(&self) -> KvCost {
        let of = |part| self.block_bytes(part).div_ceil(BLOCK as u64);
        let (windowed, exact) = (of(Part::Windowed), self.exact_bytes());
        let window = self.window().map_or(0, |window| (window.div_ceil(BLOCK) + 2) * BLOCK);
        let (global, open) = (of(Part::Global), self.row_bytes() as u64);
        let (most_open, state) = (BLOCK as u64 - 1, self.state_bytes());
        let live = [self.live_bytes(0), self.live_bytes(1) - self.live_bytes(0)];
        KvCost { global, windowed, window: window as u64, exact, open, most_open, state, live }
    }

    /// Bytes of the recurrent layers of a sequence at work, with what its last `tokens` tokens added.
    pub(crate) fn live_bytes(&self, tokens: usize) -> u64 {
        let of = |state: &StateLayout| state.live_bytes() + state.token_bytes() * tokens as u64;
        self.states.iter().map(of).sum()
    }

    /// Maximum memory that an active agent takes until it has `tokens` tokens: besides its cache, f16 rows of
    /// the block in which the turn began and of the last sealed one, as the turn can be undone; `in_rows`
    /// more tokens are in f16 where the sequence moves back and forth. (Working memory of passes is not
    /// included.)
    pub(crate) fn at_work(&self, tokens: usize, in_rows: usize) -> u64 {
        let in_rows = (2 * BLOCK).saturating_add(in_rows).min(tokens);
        let rows = (in_rows as u64).saturating_mul(self.row_bytes() as u64);
        // Besides the sealed state where it began one where the reply does, and one on the way.
        let states = self.live_bytes(in_rows).saturating_add(2 * self.state_bytes());
        self.cost().most(tokens as u64).saturating_add(rows).saturating_add(states)
    }

    /// The formats by a short name: `q4`, `q8/q4` (keys, values), `mixed-` and a hash; `-plain`: codes are
    /// not rotated.
    pub(crate) fn name(&self) -> String {
        let word = |format: KvFormat| format!("{format:?}").to_lowercase();
        let of =
            |layer: &LayerLayout| (layer.k.format, layer.stored_v().map_or(layer.k.format, |v| v.format));
        let Some(first) = self.layers.first().map(of) else { return String::new() };
        if self.layers.iter().any(|layer| of(layer) != first) {
            return format!("mixed-{}", &blake3::hash(self.describe().as_bytes()).to_hex()[..8]);
        }
        let plain = self.layers.iter().any(|layer| layer.k.bits().is_some() && !layer.k.rotated);
        let formats =
            if first.0 == first.1 { word(first.0) } else { format!("{}/{}", word(first.0), word(first.1)) };
        format!("{formats}{}", if plain { "-plain" } else { "" })
    }

    /// The layout as text: part of a cache's identity.
    pub(crate) fn describe(&self) -> String {
        let tensor = |t: TensorLayout| {
            let plain = if t.bits().is_some() && !t.rotated { "!" } else { "" };
            format!("{}x{}:{:?}{plain}", t.n_heads, t.dim, t.format)
        };
        let layer = |l: &LayerLayout| {
            let values = if l.shared { format!("{} of K", l.v.dim) } else { tensor(l.v) };
            let window = l.window.map_or(String::new(), |window| format!("~{window}"));
            format!("{}/{values}{window}", tensor(l.k))
        };
        let mut described = self.layers.iter().map(layer).collect::<Vec<_>>().join(",");
        for StateLayout { n_inputs, channels, n_heads, k_dim, v_dim } in &self.states {
            let sealed = self.sealed;
            let state = format!(";{n_inputs}x{channels}/{n_heads}x{k_dim}x{v_dim}:{sealed:?}");
            described.push_str(&state);
        }
        described
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gemma 3 12B and DeepSeek-V2-Lite by the formulas of the papers: bytes of a token.
    #[test]
    fn real_shapes_take_the_bytes_that_they_should() {
        let tensor = |n_heads, dim, format| TensorLayout {
            n_heads,
            dim,
            format,
            rotated: true,
            exact: format != KvFormat::F16,
            centered: false,
        };
        let layer = |format, window| {
            let t = tensor(8, 256, format);
            let k = TensorLayout { centered: format != KvFormat::F16, ..t };
            LayerLayout { k, v: t, shared: false, window }
        };
        let gemma = |format| KvLayout {
            layers: (0..48).map(|l| layer(format, (l % 6 != 5).then_some(1024))).collect(),
            ..KvLayout::uniform(0, 1, 16, format)
        };
        let (f16, q4) = (gemma(KvFormat::F16), gemma(KvFormat::Q4));
        // 32 MiB a layer at 4,096 tokens; in four bits 8.25 MiB, and 64 KiB of means.
        assert_eq!(f16.block_bytes(Part::Global) * 16, 8 * (32 << 20));
        assert_eq!(q4.block_bytes(Part::Global) * 16, 8 * ((33 << 18) + (64 << 10)));
        assert_eq!(q4.block_bytes(Part::Windowed) * 16, 40 * ((33 << 18) + (64 << 10)));
        assert_eq!((f16.exact_bytes(), q4.exact_bytes()), (0, 2 * 48 * 4 * 2 * 8 * 256));
        assert_eq!(q4.window(), Some(1024));
        for cost in [f16.cost(), q4.cost()] {
            for bytes in [1 << 20, 100 << 20, 1 << 30, 8 << 30] {
                let longest = cost.longest(bytes);
                assert!(
                    cost.most(longest) <= bytes && cost.most(longest + 1) > bytes,
                    "{longest} in {bytes}"
                );
            }
        }
        let (k, v) = (tensor(1, 576, KvFormat::F16), tensor(1, 512, KvFormat::F16));
        let latent = LayerLayout { k, v, shared: true, window: None };
        let deepseek = KvLayout { layers: vec![latent; 27], ..gemma(KvFormat::F16) };
        assert_eq!(deepseek.block_bytes(Part::Global), 256 * 27 * 576 * 2);
        assert_eq!(deepseek.parts().collect::<Vec<_>>(), [Part::Global]);
        assert_eq!(latent.key_parts(), [512, 64]);
        assert_eq!(tensor(1, 80, KvFormat::Q4).value_words(4), 12);
    }
}
