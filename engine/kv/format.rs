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

use super::layout::{BLOCK, KvLayout, Part, TensorLayout};
use greenroom_kernels::LANES;
use greenroom_kernels::quant::EXACT;
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
    F16,
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
    /// `.means`, `.exact`.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KvFormat;

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
                        let size = match number {
                            Number::U32 => 4,
                            Number::U8 => 1,
                            Number::F16 => 2,
                        };
                        assert_eq!((place.start, place.len()), (at, size * shape.iter().product::<usize>()));
                        at = place.end;
                    }
                    assert_eq!(at, block.len(is_first));
                }
            }
            assert_eq!(exact as u64, layout.exact_bytes());
        }
    }
}
