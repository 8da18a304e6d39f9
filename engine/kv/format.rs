//! The bytes of the cache, as devices and the disk exchange them: the one description of a sealed block and
//! of f16 rows.
//!
//! **A sealed block** (256 tokens, the layers of one [`Part`]) is one run of bytes, little endian, without
//! gaps. Each layer in order has keys, then values (none where these are a view of the keys); each of the two
//! has
//!
//! f16 rows are stored rotated where the sealed format is (4 and 8 bit): one domain for queries, keys and
//! values within a layer. An f16 cache is not rotated at all. A head is rotated in its powers of two, the
//! largest first (96 = 64 + 32).
//!
//! | tensor   | type | shape, keys                                              | shape, values              |
//! |----------|------|----------------------------------------------------------|----------------------------|
//! | codes    | u32  | `[n_heads, 16, words, 16]`: token `16 i + j` at `i`, `j` | `[n_heads, 256, words]`    |
//! | scales   | u8   | `[n_heads, n_groups, 256]`, see [`Scale`](greenroom_kernels::quant::Scale) | the same             |
//! | means    | f16  | `[n_heads, dim]`, if [`TensorLayout::centered`]          | none                       |
//!
//! or, not coded, one tensor of f16: keys `[16, n_heads, dim, 16]`, values `[256, n_heads, dim]`. A word of
//! 4-bit keys holds columns `8 w .. 8 w + 8` of a token: the first four in the low halves of its bytes, the
//! others in the high ones; a word of 8-bit keys columns `4 w .. 4 w + 4`. Bytes of 4-bit values come 16 for
//! 32 columns, the first 16 columns in their low halves; of 8-bit values one for each column.
//! [`quant`](greenroom_kernels::quant) defines the values of codes.
//!
//! All layers of a session's first block are followed, in the same order, by its first rows, not coded: f16,
//! `[n_heads, EXACT, dim]` for each side that has them ([`TensorLayout::exact`]).
//!
//! **f16 rows** are token by token, layer by layer: a token's keys, `[n_heads, dim]`, then its values.
//!
//! **A sealed state** is what all recurrent layers keep of a sequence after one of its tokens, layer by layer:
//!
//! | tensor   | type             | shape                                                                   |
//! |----------|------------------|-------------------------------------------------------------------------|
//! | inputs   | f16              | `[n_inputs, channels]`: the convolution's, of the last tokens           |
//! | elements | i8, f16 or f32   | `[n_heads, v_dim / 16, k_dim, 16]`, as [`recurrence`](greenroom_kernels::recurrence) has them |
//! | scales   | f32              | `[n_heads, v_dim]`, of elements in 8 bits                               |

use super::layout::{BLOCK, KvLayout, Part, StateLayout, TensorLayout};
use greenroom_kernels::LANES;
use greenroom_kernels::quant::EXACT;
use greenroom_kernels::recurrence::Sealed;
use std::ops::Range;

/// The bytes of a sealed block, where u32 and f16 can be read in place.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BlockBytes {
    words: Vec<u32>,
}

impl BlockBytes {
    /// Zeros; `n_bytes` is a multiple of 4.
    pub(crate) fn zeroed(n_bytes: usize) -> Self {
        assert_eq!(n_bytes % 4, 0, "blocks are whole words");
        Self { words: vec![0; n_bytes / 4] }
    }

    /// All bytes.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.words)
    }

    /// All bytes.
    pub(crate) fn as_bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.words)
    }

    /// Number of bytes.
    pub(crate) fn len(&self) -> usize {
        4 * self.words.len()
    }
}

/// Type of a tensor's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    U32,
    U8,
    I8,
    F16,
    F32,
}

impl Number {
    /// Bytes of one.
    #[cfg(test)]
    fn size(self) -> usize {
        match self {
            Self::U32 | Self::F32 => 4,
            Self::U8 | Self::I8 => 1,
            Self::F16 => 2,
        }
    }
}

/// Keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Keys,
    Values,
}

/// One tensor of a block.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BlockTensor {
    /// Suffix of its name, by content: `""` (rows that are not coded), `.weights` (codes), `.scales`,
    /// `.means`, `.exact`; of a state `.inputs`, `.weights`, `.scales`.
    pub(crate) suffix: &'static str,
    pub(crate) number: Number,
    pub(crate) shape: Vec<usize>,
    /// Byte range in the block.
    pub(crate) place: Range<usize>,
}

/// Keys or values of one layer in a block's bytes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SideFormat {
    pub(crate) side: Side,
    pub(crate) layout: TensorLayout,
    /// Codes, or rows that are not coded.
    pub(crate) codes: Range<usize>,
    /// Empty where rows are not coded.
    pub(crate) scales: Range<usize>,
    /// Empty where nothing was taken off the rows.
    pub(crate) means: Range<usize>,
    /// Exact rows, in a session's first block; all others end before.
    pub(crate) exact: Range<usize>,
}

/// One layer in a block's bytes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LayerFormat {
    /// Index of the layer in the model.
    pub(crate) layer: usize,
    pub(crate) k: SideFormat,
    /// None where values are a view of the keys.
    pub(crate) v: Option<SideFormat>,
}

/// The bytes of a block's part.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BlockFormat {
    pub(crate) layers: Vec<LayerFormat>,
    /// Bytes of a block.
    len: usize,
    /// Bytes of a session's first block.
    first_len: usize,
}

impl SideFormat {
    /// Words of a token's codes in one head.
    pub(crate) fn words(&self, bits: u32) -> usize {
        match self.side {
            Side::Keys => self.layout.key_words(bits),
            Side::Values => self.layout.value_words(bits),
        }
    }

    /// Lays its tensors, but the exact rows, at `at` and after.
    fn new(side: Side, layout: TensorLayout, at: &mut usize) -> Self {
        let mut take = |n_bytes: usize| {
            let start = *at;
            *at += n_bytes;
            start..*at
        };
        let mut format = Self { side, layout, codes: 0..0, scales: 0..0, means: 0..0, exact: 0..0 };
        match layout.bits() {
            None => format.codes = take(2 * BLOCK * layout.row()),
            Some(bits) => {
                format.codes = take(4 * layout.n_heads * BLOCK * format.words(bits));
                format.scales = take(layout.n_heads * layout.n_groups() * BLOCK);
                format.means = take(if layout.centered { 2 * layout.row() } else { 0 });
            }
        }
        format
    }

    /// Its tensors in a session's first block, or in any other one.
    pub(crate) fn tensors(&self, is_first: bool) -> Vec<BlockTensor> {
        let TensorLayout { n_heads, dim, .. } = self.layout;
        let tensor = |suffix, number, shape: &[usize], place: &Range<usize>| BlockTensor {
            suffix,
            number,
            shape: shape.to_vec(),
            place: place.clone(),
        };
        let groups = BLOCK / LANES;
        let Some(bits) = self.layout.bits() else {
            let shape = match self.side {
                Side::Keys => vec![groups, n_heads, dim, LANES],
                Side::Values => vec![BLOCK, n_heads, dim],
            };
            return vec![tensor("", Number::F16, &shape, &self.codes)];
        };
        let codes = match self.side {
            Side::Keys => vec![n_heads, groups, self.words(bits), LANES],
            Side::Values => vec![n_heads, BLOCK, self.words(bits)],
        };
        let mut tensors = vec![
            tensor(".weights", Number::U32, &codes, &self.codes),
            tensor(".scales", Number::U8, &[n_heads, self.layout.n_groups(), BLOCK], &self.scales),
        ];
        if !self.means.is_empty() {
            tensors.push(tensor(".means", Number::F16, &[n_heads, dim], &self.means));
        }
        if is_first && !self.exact.is_empty() {
            tensors.push(tensor(".exact", Number::F16, &[n_heads, EXACT, dim], &self.exact));
        }
        tensors
    }
}

impl LayerFormat {
    /// Keys, and values where they are stored.
    pub(crate) fn sides(&self) -> impl Iterator<Item = &SideFormat> {
        std::iter::once(&self.k).chain(&self.v)
    }
}

impl BlockFormat {
    /// The format of a part of a layout's blocks.
    pub(crate) fn new(layout: &KvLayout, part: Part) -> Self {
        let mut len = 0;
        let layer = |layer: usize| {
            let of = layout.layers[layer];
            let k = SideFormat::new(Side::Keys, of.k, &mut len);
            let v = of.stored_v().map(|v| SideFormat::new(Side::Values, v, &mut len));
            LayerFormat { layer, k, v }
        };
        let mut layers: Vec<LayerFormat> = layout.layers_of(part).map(layer).collect();
        let mut first_len = len;
        for side in layers.iter_mut().flat_map(|layer| std::iter::once(&mut layer.k).chain(&mut layer.v)) {
            let n_bytes = if side.layout.exact { 2 * EXACT * side.layout.row() } else { 0 };
            side.exact = first_len..first_len + n_bytes;
            first_len += n_bytes;
        }
        Self { layers, len, first_len }
    }

    /// Bytes of a session's first block, or of any other one.
    pub(crate) fn len(&self, is_first: bool) -> usize {
        if is_first { self.first_len } else { self.len }
    }
}

/// What one recurrent layer keeps, in a state's bytes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StateLayerFormat {
    pub(crate) layout: StateLayout,
    pub(crate) inputs: Range<usize>,
    pub(crate) elements: Range<usize>,
    /// Empty unless elements are in 8 bits.
    pub(crate) scales: Range<usize>,
}

/// The bytes of a sealed state.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StateFormat {
    pub(crate) layers: Vec<StateLayerFormat>,
    pub(crate) sealed: Sealed,
    len: usize,
}

impl StateLayerFormat {
    /// Its tensors.
    pub(crate) fn tensors(&self, sealed: Sealed) -> Vec<BlockTensor> {
        let StateLayout { n_inputs, channels, n_heads, k_dim, v_dim } = self.layout;
        let number = match sealed {
            Sealed::F32 => Number::F32,
            Sealed::F16 => Number::F16,
            Sealed::Q8 => Number::I8,
        };
        let tensor = |suffix, number, shape: &[usize], place: &Range<usize>| BlockTensor {
            suffix,
            number,
            shape: shape.to_vec(),
            place: place.clone(),
        };
        let elements = [n_heads, v_dim / LANES, k_dim, LANES];
        let tensors = [
            tensor(".inputs", Number::F16, &[n_inputs, channels], &self.inputs),
            tensor(".weights", number, &elements, &self.elements),
            tensor(".scales", Number::F32, &[n_heads, v_dim], &self.scales),
        ];
        tensors.into_iter().filter(|tensor| !tensor.place.is_empty()).collect()
    }
}

impl StateFormat {
    /// The format of a layout's states.
    pub(crate) fn new(layout: &KvLayout) -> Self {
        let mut len = 0;
        let mut take = |n_bytes: usize| {
            len += n_bytes;
            len - n_bytes..len
        };
        let layer = |of: &StateLayout| StateLayerFormat {
            layout: *of,
            inputs: take(of.inputs_bytes()),
            elements: take(of.elements_bytes(layout.sealed)),
            scales: take(of.scales_bytes(layout.sealed)),
        };
        let layers = layout.states.iter().map(layer).collect();
        Self { layers, sealed: layout.sealed, len }
    }

    /// Bytes of a state.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KvFormat;

    #[test]
    fn tensors_fill_a_state() {
        for sealed in [Sealed::F32, Sealed::F16, Sealed::Q8] {
            let delta = StateLayout { n_inputs: 3, channels: 96, n_heads: 2, k_dim: 32, v_dim: 16 };
            let convolution = StateLayout { n_inputs: 2, channels: 64, n_heads: 0, k_dim: 0, v_dim: 0 };
            let mut layout = KvLayout::uniform(1, 1, 16, KvFormat::Q4);
            (layout.states, layout.sealed) = (vec![delta, convolution], sealed);
            let format = StateFormat::new(&layout);
            let mut at = 0;
            for tensor in format.layers.iter().flat_map(|layer| layer.tensors(sealed)) {
                let size = tensor.number.size() * tensor.shape.iter().product::<usize>();
                assert_eq!((tensor.place.start, tensor.place.len()), (at, size));
                at = tensor.place.end;
            }
            assert_eq!(at, format.len());
            assert_eq!(
                format.layers.iter().map(|layer| layer.tensors(sealed).len()).sum::<usize>(),
                match sealed {
                    Sealed::Q8 => 4,
                    _ => 3,
                }
            );
        }
    }

    /// Tensors follow one another without gaps, and fill as many bytes as the layout promises.
    #[test]
    fn tensors_fill_a_block() {
        for format in [KvFormat::F16, KvFormat::Q8, KvFormat::Q4] {
            let mut layout = KvLayout::uniform(3, 2, 80, format);
            layout.layers[1].window = Some(300);
            layout.layers[2].shared = true;
            let mut exact = 0;
            for part in layout.parts() {
                let block = BlockFormat::new(&layout, part);
                assert_eq!(block.len(false) as u64, layout.block_bytes(part));
                exact += block.len(true) - block.len(false);
                for is_first in [false, true] {
                    let sides = block.layers.iter().flat_map(LayerFormat::sides);
                    let mut tensors: Vec<BlockTensor> =
                        sides.flat_map(|side| side.tensors(is_first)).collect();
                    tensors.sort_by_key(|tensor| tensor.place.start);
                    let mut at = 0;
                    for BlockTensor { number, shape, place, .. } in tensors {
                        let size = number.size() * shape.iter().product::<usize>();
                        assert_eq!((place.start, place.len()), (at, size));
                        at = place.end;
                    }
                    assert_eq!(at, block.len(is_first));
                }
            }
            assert_eq!(exact as u64, layout.exact_bytes());
        }
    }
}
