//! The quantized formats of weights: how ggml's blocks are read, and how scales lie in a panel's head.
//!
//! MXFP4, IQ4_NL and IQ4_XS are multiplied as they are: a table of 16 bytes maps codes to their values,
//! shifted so that none is negative.

use super::scalar::Scalar;
use super::{LANES, Lanes, STEP, Words, vector};
use crate::ggml::TensorType;
use half::f16;

/// The scales of one step, one output to a lane: a weight is `scale * (code - OFFSET) + bias`.
#[derive(Clone, Copy)]
pub(crate) struct Scales<L> {
    /// Scales of the first 16 k.
    pub first: L,
    /// Scales of the last 16 k; equal to the first unless the scheme says [`Form::HALVES`].
    pub last: L,
    /// Biases of the first and the last 16 k; zero unless the scheme says [`Form::BIAS`].
    pub bias: [L; 2],
}

impl<L: Lanes> Scales<L> {
    /// One scale for all.
    #[inline(always)]
    pub(crate) fn plain(scale: L) -> Self {
        Self::biased(scale, L::splat(0.0))
    }

    /// One scale and one bias for all.
    #[inline(always)]
    fn biased(scale: L, bias: L) -> Self {
        Self { first: scale, last: scale, bias: [bias, bias] }
    }
}

/// What products with unpacked codes are made of. Schemes of one form are multiplied by the same code.
pub(crate) trait Form {
    /// True if something is subtracted from every code: 128 from wide ones.
    const OFFSET: bool;
    /// True if the halves of a step have scales of their own.
    const HALVES: bool;
    /// True if there is a bias in addition to the scale.
    const BIAS: bool;
    /// The largest value of a code, before the offset is subtracted.
    const LARGEST: i32;
}

/// A form by its parts.
pub(crate) struct Of<const OFFSET: bool, const HALVES: bool, const BIAS: bool, const LARGEST: i32>;

impl<const OFFSET: bool, const HALVES: bool, const BIAS: bool, const LARGEST: i32> Form
    for Of<OFFSET, HALVES, BIAS, LARGEST>
{
    const OFFSET: bool = OFFSET;
    const HALVES: bool = HALVES;
    const BIAS: bool = BIAS;
    const LARGEST: i32 = LARGEST;
}

/// A scale alone, and codes that something is subtracted from.
type Offset<const LARGEST: i32> = Of<true, false, false, LARGEST>;
/// A scale and a bias.
type Biased<const LARGEST: i32> = Of<false, false, true, LARGEST>;

/// Layout of a quantized format's codes and scales, in ggml's blocks and in ours.
pub(crate) trait Scheme {
    /// The file's type.
    const TYPE: TensorType;
    /// Bits of a code.
    const BITS: usize;
    /// Value of a code of zero, negated: it is subtracted from every code.
    const OFFSET: i32 = 0;
    /// What products with its codes are made of.
    type Form: Form;
    /// Values of 4-bit codes, before `OFFSET` is subtracted; `None`: the codes themselves.
    const TABLE: Option<&'static [u8; 16]> = None;
    /// The scales of a block for 16 outputs.
    type Head<'a, L: Lanes>: Head<'a, L>;

    /// k of a block.
    const BLOCK: usize = Self::TYPE.block().0;
    /// Bytes of a block in the file.
    const BYTES: usize = Self::TYPE.block().1;
    /// Bytes of a block's scales for 16 outputs.
    const SCALE_BYTES: usize = <Self::Head<'static, Scalar> as Head<'static, Scalar>>::BYTES;

    /// Reads one block of the file: codes in order of k, and scales into lane `o` of a head.
    fn read(block: &[u8], codes: &mut [u8; 256], o: usize, head: &mut [u8]);
}

/// The scales of a block for 16 outputs, being read.
pub(crate) trait Head<'a, L: Lanes> {
    /// Bytes that it is read from.
    const BYTES: usize;

    /// Begins to read [`Head::BYTES`] bytes.
    fn open(head: &'a [u8]) -> Self;

    /// Scales of step `s`; steps are requested in order.
    fn scales(&mut self, s: usize) -> Scales<L>;
}

/// The largest value of a code, before `OFFSET` is subtracted.
const fn largest_code<S: Scheme>() -> i32 {
    let Some(table) = S::TABLE else { return (1 << S::BITS) - 1 };
    let (mut largest, mut i) = (0, 0);
    while i < 16 {
        if table[i] > largest {
            largest = table[i];
        }
        i += 1;
    }
    largest as i32
}

/// Tells whether the values of codes take more than 7 bits.
pub(crate) const fn is_wide<F: Form>() -> bool {
    F::LARGEST >= 128
}

/// What must hold of a scheme and its form.
pub(crate) const fn check<S: Scheme>() {
    assert!(S::Form::OFFSET == (S::OFFSET != 0), "a form says whether there is an offset");
    assert!(S::Form::LARGEST >= largest_code::<S>(), "a form says how large codes are");
    assert!(!is_wide::<S::Form>() || S::OFFSET == 128, "a wide code's offset is half of its range");
}

/// Numbers of whole blocks in the file.
pub(super) fn numbers_of<S: Scheme>(bytes: &[u8]) -> Vec<f32> {
    let (mut numbers, mut codes) = (Vec::with_capacity(bytes.len() / S::BYTES * S::BLOCK), [0u8; 256]);
    // Aligned as a panel's; a block is in lane 0.
    let mut head = vec![0u64; S::SCALE_BYTES / 8];
    for block in bytes.chunks_exact(S::BYTES) {
        S::read(block, &mut codes, 0, bytemuck::cast_slice_mut(&mut head));
        let mut scales = S::Head::<'_, Scalar>::open(bytemuck::cast_slice(&head));
        for (s, codes) in codes[..S::BLOCK].chunks_exact(STEP).enumerate() {
            let Scales { first, last, bias } = scales.scales(s);
            let halves = [(first, bias[0]), (last, bias[1])].map(|(scale, bias)| (lane(scale), lane(bias)));
            numbers.extend(codes.iter().enumerate().map(|(i, code)| {
                let number = S::TABLE.map_or(*code, |table| table[usize::from(*code)]);
                let (scale, bias) = halves[i / 16];
                let product = scale * (i32::from(number) - S::OFFSET) as f32;
                if S::Form::BIAS { product + bias } else { product }
            }));
        }
    }
    numbers
}

fn lane(x: Scalar) -> f32 {
    let mut lanes = [0.0; LANES];
    x.store(&mut lanes);
    lanes[0]
}

/// Sixteen halves from byte `at` of a head on.
#[inline(always)]
fn halves<L: Lanes>(head: &[u8], at: usize) -> L {
    let bytes = &head[at..at + 2 * LANES];
    // SAFETY: 32 bytes at an even address: heads start at even offsets of a panel, and panels at lines of the
    // cache.
    L::load_f16(unsafe { &*bytes.as_ptr().cast::<[f16; LANES]>() })
}

fn put_half(head: &mut [u8], o: usize, bytes: &[u8]) {
    head[2 * o..2 * o + 2].copy_from_slice(&bytes[..2]);
}

/// Codes of 4 bits: the first 16 in the low halves of bytes, the last 16 in the high ones.
fn nibbles(bytes: &[u8], codes: &mut [u8]) {
    for (i, byte) in bytes.iter().enumerate() {
        (codes[i], codes[16 + i]) = (byte & 15, byte >> 4);
    }
}

/// The fifth bits of 32 codes.
fn fifths(bytes: &[u8], codes: &mut [u8; 256]) {
    for (i, code) in codes[..32].iter_mut().enumerate() {
        *code |= (bytes[i / 8] >> (i % 8) & 1) << 4;
    }
}

/// A scale: a half for each output.
pub(crate) struct BlockScale<L>(L);

impl<L: Lanes> Head<'_, L> for BlockScale<L> {
    const BYTES: usize = 2 * LANES;

    #[inline(always)]
    fn open(head: &[u8]) -> Self {
        Self(halves(head, 0))
    }
    #[inline(always)]
    fn scales(&mut self, _: usize) -> Scales<L> {
        Scales::plain(self.0)
    }
}

/// A scale and a bias: halves.
pub(crate) struct ScaleAndBias<L>(L, L);

impl<L: Lanes> Head<'_, L> for ScaleAndBias<L> {
    const BYTES: usize = 4 * LANES;

    #[inline(always)]
    fn open(head: &[u8]) -> Self {
        Self(halves(head, 0), halves(head, 2 * LANES))
    }
    #[inline(always)]
    fn scales(&mut self, _: usize) -> Scales<L> {
        Scales::biased(self.0, self.1)
    }
}

/// Sixteen signed bytes for each of `N` scales (8: one a step, 16: two), then the blocks' own as halves.
pub(crate) struct SignedScales<'a, L, const N: usize> {
    scales: &'a [u8],
    scale: L,
}

impl<L: Lanes, const N: usize> SignedScales<'_, L, N> {
    #[inline(always)]
    fn scale(&self, i: usize) -> L {
        self.scale.mul(L::load_i8(bytemuck::from_bytes(&self.scales[i * LANES..][..LANES])))
    }
}

impl<'a, L: Lanes, const N: usize> Head<'a, L> for SignedScales<'a, L, N> {
    const BYTES: usize = (N + 2) * LANES;

    #[inline(always)]
    fn open(head: &'a [u8]) -> Self {
        Self { scales: head, scale: halves(head, N * LANES) }
    }
    #[inline(always)]
    fn scales(&mut self, s: usize) -> Scales<L> {
        if N == 8 {
            return Scales::plain(self.scale(s));
        }
        Scales { first: self.scale(2 * s), last: self.scale(2 * s + 1), bias: [L::splat(0.0); 2] }
    }
}

/// See [`Format::Q4_0`].
pub(crate) struct Q4_0;

impl Scheme for Q4_0 {
    type Form = Offset<15>;
    type Head<'a, L: Lanes> = BlockScale<L>;
    const TYPE: TensorType = TensorType::Q4_0;
    const BITS: usize = 4;
    const OFFSET: i32 = 8;

    fn read(block: &[u8], codes: &mut [u8; 256], o: usize, head: &mut [u8]) {
        put_half(head, o, block);
        nibbles(&block[2..18], codes);
    }
}

/// See [`Format::Q4_1`].
pub(crate) struct Q4_1;

impl Scheme for Q4_1 {
    type Form = Biased<15>;
    type Head<'a, L: Lanes> = ScaleAndBias<L>;
    const TYPE: TensorType = TensorType::Q4_1;
    const BITS: usize = 4;

    fn read(block: &[u8], codes: &mut [u8; 256], o: usize, head: &mut [u8]) {
        put_half(head, o, block);
        put_half(&mut head[2 * LANES..], o, &block[2..]);
        nibbles(&block[4..20], codes);
    }
}

/// See [`Format::Q5_0`].
pub(crate) struct Q5_0;

impl Scheme for Q5_0 {
    type Form = Offset<31>;
    type Head<'a, L: Lanes> = BlockScale<L>;
    const TYPE: TensorType = TensorType::Q5_0;
    const BITS: usize = 5;
    const OFFSET: i32 = 16;

    fn read(block: &[u8], codes: &mut [u8; 256], o: usize, head: &mut [u8]) {
        put_half(head, o, block);
        nibbles(&block[6..22], codes);
        fifths(&block[2..6], codes);
    }
}

/// See [`Format::Q5_1`].
pub(crate) struct Q5_1;

impl Scheme for Q5_1 {
    type Form = Biased<31>;
    type Head<'a, L: Lanes> = ScaleAndBias<L>;
    const TYPE: TensorType = TensorType::Q5_1;
    const BITS: usize = 5;

    fn read(block: &[u8], codes: &mut [u8; 256], o: usize, head: &mut [u8]) {
        put_half(head, o, block);
        put_half(&mut head[2 * LANES..], o, &block[2..]);
        nibbles(&block[8..24], codes);
        fifths(&block[4..8], codes);
    }
}

/// See [`Format::Q8_0`].
pub(crate) struct Q8_0;

impl Scheme for Q8_0 {
    type Form = Offset<255>;
    type Head<'a, L: Lanes> = BlockScale<L>;
    const TYPE: TensorType = TensorType::Q8_0;
    const BITS: usize = 8;
    const OFFSET: i32 = 128;

    fn read(block: &[u8], codes: &mut [u8; 256], o: usize, head: &mut [u8]) {
        put_half(head, o, block);
        codes.iter_mut().zip(&block[2..34]).for_each(|(code, byte)| *code = byte ^ 0x80);
    }
}

/// Codes of 2 bits: 32 neighbours in bits 0 and 1 of 32 bytes, the next 32 in bits 2 and 3, and so on; then
/// the next 32 bytes.
fn pairs_of_bits(bytes: &[u8], codes: &mut [u8; 256]) {
    for (i, code) in codes.iter_mut().enumerate() {
        *code = bytes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    }
}

/// A head of Q2_K: sixteen bytes for each of 16 pairs (scale in the low half, minimum in the high one), then
/// the blocks' own as halves.
pub(crate) struct Head2<'a, L> {
    pairs: &'a [u8],
    scale: L,
    min: L,
}

impl<'a, L: Lanes> Head<'a, L> for Head2<'a, L> {
    const BYTES: usize = 20 * LANES;

    #[inline(always)]
    fn open(head: &'a [u8]) -> Self {
        Self { pairs: head, scale: halves(head, 16 * LANES), min: halves(head, 18 * LANES) }
    }
    #[inline(always)]
    fn scales(&mut self, s: usize) -> Scales<L> {
        let (first, first_min) = L::load_u4(super::lanes(&self.pairs[2 * s * LANES..][..LANES]));
        let (last, last_min) = L::load_u4(super::lanes(&self.pairs[(2 * s + 1) * LANES..][..LANES]));
        let zero = L::splat(0.0);
        let bias = [zero.sub(self.min.mul(first_min)), zero.sub(self.min.mul(last_min))];
        Scales { first: self.scale.mul(first), last: self.scale.mul(last), bias }
    }
}

/// See [`Format::Q2K`].
pub(crate) struct Q2K;

impl Scheme for Q2K {
    type Form = Of<false, true, true, 3>;
    type Head<'a, L: Lanes> = Head2<'a, L>;
    const TYPE: TensorType = TensorType::Q2_K;
    const BITS: usize = 2;

    fn read(block: &[u8], codes: &mut [u8; 256], o: usize, head: &mut [u8]) {
        block[..16].iter().enumerate().for_each(|(i, pair)| head[i * LANES + o] = *pair);
        put_half(&mut head[16 * LANES..], o, &block[80..]);
        put_half(&mut head[18 * LANES..], o, &block[82..]);
        pairs_of_bits(&block[16..80], codes);
    }
}

/// See [`Format::Q3K`].
pub(crate) struct Q3K;

impl Scheme for Q3K {
    type Form = Of<true, true, false, 63>;
    type Head<'a, L: Lanes> = SignedScales<'a, L, 16>;
    const TYPE: TensorType = TensorType::Q3_K;
    const BITS: usize = 3;
    const OFFSET: i32 = 4;

    fn read(block: &[u8], codes: &mut [u8; 256], o: usize, head: &mut [u8]) {
        // The first eight bytes hold the low 4 bits of each 6-bit scale, the last four the high 2.
        let packed = &block[96..108];
        for i in 0..16 {
            let low = packed[i % 8] >> (i / 8 * 4) & 15;
            let high = packed[8 + i % 4] >> (i / 4 * 2) & 3;
            head[i * LANES + o] = (low | high << 4).wrapping_sub(32);
        }
        put_half(&mut head[16 * LANES..], o, &block[108..]);
        pairs_of_bits(&block[32..96], codes);
        for (i, code) in codes.iter_mut().enumerate() {
            *code |= (block[i % 32] >> (i / 32) & 1) << 2;
        }
    }
}

/// A head of Q4_K and Q5_K: three words a lane (the low 4 bits of the 8 scales; of the 8 minima; the high 2
/// bits of the scales, then of the minima), then the blocks' scales and minima as halves.
const K_WORDS: usize = 3 * 4 * LANES;

fn read_k(block: &[u8], o: usize, head: &mut [u8]) {
    // ggml packs eight 6-bit scales and minima into 12 bytes, the last four of each in spare bits of the
    // first.
    let packed = &block[4..16];
    let pair = |j: usize| match j {
        0..4 => (packed[j] & 63, packed[j + 4] & 63),
        _ => (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4),
    };
    let mut words = [0u32; 3];
    for j in 0..8 {
        let (scale, min) = pair(j);
        words[0] |= u32::from(scale & 15) << (4 * j);
        words[1] |= u32::from(min & 15) << (4 * j);
        words[2] |= u32::from(scale >> 4) << (2 * j) | u32::from(min >> 4) << (16 + 2 * j);
    }
    for (i, word) in words.into_iter().enumerate() {
        head[(i * LANES + o) * 4..][..4].copy_from_slice(&word.to_le_bytes());
    }
    put_half(&mut head[K_WORDS..], o, block);
    put_half(&mut head[K_WORDS + 2 * LANES..], o, &block[2..]);
}

/// A head of Q4_K or Q5_K, shifted so that the next step's bits are the lowest.
pub(crate) struct HeadK<L: Lanes> {
    words: [L::Words; 3],
    scale: L,
    min: L,
}

impl<L: Lanes> Head<'_, L> for HeadK<L> {
    const BYTES: usize = K_WORDS + 4 * LANES;

    #[inline(always)]
    fn open(head: &[u8]) -> Self {
        let words = [vector::<L>(head, 0), vector::<L>(head, 1), vector::<L>(head, 2)];
        Self { words, scale: halves(head, K_WORDS), min: halves(head, K_WORDS + 2 * LANES) }
    }
    #[inline(always)]
    fn scales(&mut self, _: usize) -> Scales<L> {
        let (low, high) = (L::Words::splat(0x0f), L::Words::splat(0x30));
        let [scales, mins, tops] = self.words;
        let scale = scales.and(low).or(tops.shl(4).and(high));
        let min = mins.and(low).or(tops.shr(12).and(high));
        self.words = [scales.shr(4), mins.shr(4), tops.shr(2)];
        let first = self.scale.mul(L::from_words(scale));
        Scales::biased(first, L::splat(0.0).sub(self.min.mul(L::from_words(min))))
    }
}

/// See [`Format::Q4K`].
pub(crate) struct Q4K;

impl Scheme for Q4K {
    type Form = Biased<15>;
    type Head<'a, L: Lanes> = HeadK<L>;
    const TYPE: TensorType = TensorType::Q4_K;
    const BITS: usize = 4;

    fn read(block: &[u8], codes: &mut [u8; 256], o: usize, head: &mut [u8]) {
        read_k(block, o, head);
        for (codes, bytes) in codes.chunks_exact_mut(64).zip(block[16..144].chunks_exact(32)) {
            let (low, high) = codes.split_at_mut(32);
            for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
                (*low, *high) = (byte & 15, byte >> 4);
            }
        }
    }
}

/// See [`Format::Q5K`].
pub(crate) struct Q5K;

impl Scheme for Q5K {
    type Form = Biased<31>;
    type Head<'a, L: Lanes> = HeadK<L>;
    const TYPE: TensorType = TensorType::Q5_K;
    const BITS: usize = 5;

    fn read(block: &[u8], codes: &mut [u8; 256], o: usize, head: &mut [u8]) {
        read_k(block, o, head);
        let fifths = &block[16..48];
        for (j, (codes, bytes)) in codes.chunks_exact_mut(64).zip(block[48..176].chunks_exact(32)).enumerate()
        {
            let (low, high) = codes.split_at_mut(32);
            for (i, (byte, fifth)) in bytes.iter().zip(fifths).enumerate() {
                low[i] = byte & 15 | (fifth >> (2 * j) & 1) << 4;
                high[i] = byte >> 4 | (fifth >> (2 * j + 1) & 1) << 4;
            }
        }
    }
}

/// See [`Format::Q6K`].
pub(crate) struct Q6K;

impl Scheme for Q6K {
    type Form = Of<true, true, false, 63>;
    type Head<'a, L: Lanes> = SignedScales<'a, L, 16>;
    const TYPE: TensorType = TensorType::Q6_K;
    const BITS: usize = 6;
    const OFFSET: i32 = 32;

    fn read(block: &[u8], codes: &mut [u8; 256], o: usize, head: &mut [u8]) {
        for (i, scale) in block[192..208].iter().enumerate() {
            head[i * LANES + o] = *scale;
        }
        put_half(&mut head[16 * LANES..], o, &block[208..]);
        for (h, codes) in codes.chunks_exact_mut(128).enumerate() {
            let (low, high) = (&block[64 * h..64 * h + 64], &block[128 + 32 * h..128 + 32 * h + 32]);
            for i in 0..32 {
                codes[i] = low[i] & 15 | (high[i] & 3) << 4;
                codes[32 + i] = low[32 + i] & 15 | (high[i] >> 2 & 3) << 4;
                codes[64 + i] = low[i] >> 4 | (high[i] >> 4 & 3) << 4;
                codes[96 + i] = low[32 + i] >> 4 | (high[i] >> 6) << 4;
            }
        }
    }
}

/// Values of the codes of IQ4_NL and IQ4_XS (-127 to 113), plus 128.
const IQ4: [u8; 16] = [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241];

/// See [`Format::Iq4Nl`].
pub(crate) struct Iq4Nl;

impl Scheme for Iq4Nl {
    type Form = Offset<255>;
    type Head<'a, L: Lanes> = BlockScale<L>;
    const TYPE: TensorType = TensorType::IQ4_NL;
    const BITS: usize = 4;
    const OFFSET: i32 = 128;
    const TABLE: Option<&'static [u8; 16]> = Some(&IQ4);

    fn read(block: &[u8], codes: &mut [u8; 256], o: usize, head: &mut [u8]) {
        Q4_0::read(block, codes, o, head);
    }
}

/// See [`Format::Iq4Xs`].
pub(crate) struct Iq4Xs;

impl Scheme for Iq4Xs {
    type Form = Offset<255>;
    type Head<'a, L: Lanes> = SignedScales<'a, L, 8>;
    const TYPE: TensorType = TensorType::IQ4_XS;
    const BITS: usize = 4;
    const OFFSET: i32 = 128;
    const TABLE: Option<&'static [u8; 16]> = Some(&IQ4);

    fn read(block: &[u8], codes: &mut [u8; 256], o: usize, head: &mut [u8]) {
        // Two bytes hold the high 2 bits of each 6-bit scale, the next four the low 4.
        for i in 0..8 {
            let low = block[4 + i / 2] >> (i % 2 * 4) & 15;
            let high = block[2 + i / 4] >> (i % 4 * 2) & 3;
            head[i * LANES + o] = (low | high << 4).wrapping_sub(32);
        }
        put_half(&mut head[8 * LANES..], o, block);
        for (codes, bytes) in codes.chunks_exact_mut(32).zip(block[8..].chunks_exact(16)) {
            nibbles(bytes, codes);
        }
    }
}

/// Values of the codes of MXFP4, doubled, plus 12 so that none is negative.
const E2M1: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// A head of MXFP4: an exponent for each output.
pub(crate) struct Exponent<L>(L);

impl<L: Lanes> Head<'_, L> for Exponent<L> {
    const BYTES: usize = LANES;

    #[inline(always)]
    fn open(head: &[u8]) -> Self {
        // 2^(e - 127), halved because the codes are doubled; below 2^-126 there is nothing that counts.
        let exponent = L::load_u8(super::lanes(head)).sub(L::splat(128.0));
        Self(exponent.max(L::splat(-126.0)).pow2())
    }
    #[inline(always)]
    fn scales(&mut self, _: usize) -> Scales<L> {
        Scales::plain(self.0)
    }
}

/// See [`Format::Mxfp4`].
pub(crate) struct Mxfp4;

impl Scheme for Mxfp4 {
    type Form = Offset<31>;
    type Head<'a, L: Lanes> = Exponent<L>;
    const TYPE: TensorType = TensorType::MXFP4;
    const BITS: usize = 4;
    const OFFSET: i32 = 12;
    const TABLE: Option<&'static [u8; 16]> = Some(&E2M1);

    fn read(block: &[u8], codes: &mut [u8; 256], o: usize, head: &mut [u8]) {
        head[o] = block[0];
        nibbles(&block[1..17], codes);
    }
}
