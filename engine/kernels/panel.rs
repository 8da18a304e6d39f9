//! Weights as the kernels read them: panels of 16 outputs, one to a lane, in the same bits that the file has.
//!
//! A panel holds the scales of its 16 rows, then their codes for k = 0, 1, 2, … Codes come in *steps* of 32 k: for
//! each quad of 4 k one vector of 16 words, word o holding output o's codes of that quad, one to a byte. Codes of
//! fewer than 8 bits share these vectors:
//!
//! | bits | vectors of a step |
//! |---|---|
//! | 8 | 8: quad q |
//! | 4 | 4: quad 2j in the low halves of the bytes, quad 2j + 1 in the high ones |
//! | 5 | those 4, then 1 of fifth bits: quad q in bit q of the bytes |
//! | 6 | those 4, then 2 of fifth and sixth bits: quad 4h + q in bits 2q and 2q + 1 of vector h |
//!
//! Floats are `[k, 16]`. Rows past the last output are zeros.

use super::slab::{Slab, Slabs};
use super::{LANES, Lanes, Words};
use half::f16;

/// A number format of weights that products are computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q8_0,
    Q4K,
    Q5K,
    Q6K,
    /// OCP microscaling (2023): e2m1 codes in blocks of 32 with an e8m0 scale.
    Mxfp4,
}

/// k of a step.
pub(crate) const STEP: usize = 32;

impl Format {
    /// Bits of a weight, without scales.
    const fn bits(self) -> usize {
        match self {
            Self::F32 => 32,
            Self::F16 | Self::Bf16 => 16,
            Self::Q8_0 => 8,
            Self::Q6K => 6,
            Self::Q5K => 5,
            Self::Q4_0 | Self::Q4K | Self::Mxfp4 => 4,
        }
    }

    /// k that share scales, and the bytes of these for a panel.
    const fn head(self) -> (usize, usize) {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => (1, 0),
            Self::Q4_0 => (Q4_0::BLOCK, Q4_0::HEAD),
            Self::Q8_0 => (Q8_0::BLOCK, Q8_0::HEAD),
            Self::Q4K => (Q4K::BLOCK, Q4K::HEAD),
            Self::Q5K => (Q5K::BLOCK, Q5K::HEAD),
            Self::Q6K => (Q6K::BLOCK, Q6K::HEAD),
            Self::Mxfp4 => (Mxfp4::BLOCK, Mxfp4::HEAD),
        }
    }

    /// k of a block in the file.
    pub(crate) const fn block(self) -> usize {
        self.head().0
    }

    /// Bytes of a row in the file.
    pub(crate) const fn row_bytes(self, k: usize) -> usize {
        (k * self.bits() * LANES / 8 + k / self.block() * self.head().1) / LANES
    }

    /// Whether activations are quantized for it.
    pub(crate) fn coded(self) -> bool {
        !matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }
}

/// A weight matrix `[n_out, k]` in panels, with the bias of its outputs if it has one.
pub(crate) struct Packed {
    pub(crate) format: Format,
    pub(crate) n_out: usize,
    pub(crate) k: usize,
    pub(crate) bias: Option<Vec<f32>>,
    slab: Slab,
}

impl Packed {
    /// Packs rows as the file has them: `rows` is `n_out * format.row_bytes(k)` long, `k` a multiple of
    /// `format.block()`. Each panel is packed by one task.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(crate) fn pack(
        slabs: &mut Slabs,
        format: Format,
        n_out: usize,
        k: usize,
        rows: &[u8],
    ) -> std::io::Result<Self> {
        let row_bytes = format.row_bytes(k);
        assert!(rows.len() == n_out * row_bytes && k % format.block() == 0, "rows are whole blocks");
        let mut slab = slabs.cut(n_out.div_ceil(LANES) * panel_bytes(format, k))?;
        let panels = super::tasks::Shared::new(slab.bytes_mut());
        let size = panel_bytes(format, k);
        super::tasks::for_ranges(n_out.div_ceil(LANES), 1, |range| {
            for p in range {
                // SAFETY: each panel is written by the one task whose range holds it.
                let panel = unsafe { panels.part(p * size..(p + 1) * size) };
                for (o, row) in rows[p * LANES * row_bytes..].chunks_exact(row_bytes).take(LANES).enumerate()
                {
                    pack_row(format, row, o, k, panel);
                }
            }
        });
        Ok(Self { format, n_out, k, bias: None, slab })
    }

    /// Number of panels.
    pub(crate) fn n_panels(&self) -> usize {
        self.n_out.div_ceil(LANES)
    }

    /// Panel `p`: outputs `16 p ..`.
    pub(crate) fn panel(&self, p: usize) -> &[u8] {
        let size = panel_bytes(self.format, self.k);
        &self.slab.bytes()[p * size..(p + 1) * size]
    }
}

/// Bytes of the codes of a panel.
const fn code_bytes(format: Format, k: usize) -> usize {
    k * LANES * format.bits() / 8
}

/// Bytes of the scales of a panel, before its codes: whole cache lines.
pub(crate) const fn head_bytes(format: Format, k: usize) -> usize {
    let (block, head) = format.head();
    (k / block * head).next_multiple_of(64)
}

/// Bytes of a panel: whole cache lines.
const fn panel_bytes(format: Format, k: usize) -> usize {
    (head_bytes(format, k) + code_bytes(format, k)).next_multiple_of(64)
}

/// Puts one row of the file into lane `o` of a panel.
fn pack_row(format: Format, row: &[u8], o: usize, k: usize, panel: &mut [u8]) {
    if !format.coded() {
        let size = format.bits() / 8;
        for (i, x) in row.chunks_exact(size).enumerate() {
            panel[(i * LANES + o) * size..][..size].copy_from_slice(x);
        }
        return;
    }
    let (block, head) = format.head();
    let (heads_out, codes_out) = panel.split_at_mut(head_bytes(format, k));
    let step_bytes = code_bytes(format, STEP);
    let mut codes = [0u8; 256];
    for (b, bytes) in row.chunks_exact(format.row_bytes(block)).enumerate() {
        let head_out = &mut heads_out[b * head..][..head];
        match format {
            Format::Q4_0 => Q4_0::read(bytes, &mut codes, o, head_out),
            Format::Q8_0 => Q8_0::read(bytes, &mut codes, o, head_out),
            Format::Q4K => Q4K::read(bytes, &mut codes, o, head_out),
            Format::Q5K => Q5K::read(bytes, &mut codes, o, head_out),
            Format::Mxfp4 => Mxfp4::read(bytes, &mut codes, o, head_out),
            _ => Q6K::read(bytes, &mut codes, o, head_out),
        }
        let first = b * block / STEP;
        for (s, codes) in codes[..block].chunks_exact(STEP).enumerate() {
            pack_step(format.bits(), codes, o, &mut codes_out[(first + s) * step_bytes..][..step_bytes]);
        }
    }
}

/// Puts the 32 codes of a step into lane `o` of its vectors.
fn pack_step(bits: usize, codes: &[u8], o: usize, out: &mut [u8]) {
    let quad =
        |q: usize| u32::from_le_bytes([codes[4 * q], codes[4 * q + 1], codes[4 * q + 2], codes[4 * q + 3]]);
    let mut put = |vector: usize, word: u32| {
        out[(vector * LANES + o) * 4..][..4].copy_from_slice(&word.to_le_bytes());
    };
    if bits == 8 {
        return (0..8).for_each(|q| put(q, quad(q)));
    }
    let low = |q| quad(q) & 0x0f0f_0f0f;
    let high = |q, mask| quad(q) >> 4 & mask;
    (0..4).for_each(|j| put(j, low(2 * j) | low(2 * j + 1) << 4));
    match bits {
        5 => put(4, (0..8).fold(0, |word, q| word | high(q, 0x0101_0101) << q)),
        6 => (0..2).for_each(|h| {
            put(4 + h, (0..4).fold(0, |word, q| word | high(4 * h + q, 0x0303_0303) << (2 * q)));
        }),
        _ => {}
    }
}

// The functions below run inside of kernels. Closures there would be compiled without the kernel's instruction set, and
// called instead of inlined: loops and `#[inline(always)]` functions stand in their place.

/// The 8 quads of a step as bytes.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // q says more than an iterator
pub(crate) fn codes<L: Lanes, const BITS: usize>(step: &[u8]) -> [L::Words; 8] {
    let mut codes = [L::Words::splat(0); 8];
    if BITS == 8 {
        for q in 0..8 {
            codes[q] = vector::<L>(step, q);
        }
        return codes;
    }
    let nibbles = L::Words::splat(0x0f0f_0f0f);
    for j in 0..4 {
        let pair = vector::<L>(step, j);
        codes[2 * j] = pair.and(nibbles);
        codes[2 * j + 1] = pair.shr(4).and(nibbles);
    }
    for q in 0..8 {
        if BITS == 5 {
            let fifth = vector::<L>(step, 4).shr(q as u32).and(L::Words::splat(0x0101_0101));
            codes[q] = codes[q].or(fifth.shl(4));
        }
        if BITS == 6 {
            let two = vector::<L>(step, 4 + q / 4).shr(2 * (q as u32 % 4)).and(L::Words::splat(0x0303_0303));
            codes[q] = codes[q].or(two.shl(4));
        }
    }
    codes
}

/// Vector `i` of some bytes.
#[inline(always)]
fn vector<L: Lanes>(bytes: &[u8], i: usize) -> L::Words {
    L::Words::load(bytes[i * 64..(i + 1) * 64].try_into().expect("64 bytes"))
}

/// The scales of one step, one output to a lane: a weight is `scale * (code - OFFSET) - min`.
pub(crate) struct Scales<L> {
    /// Of the first 16 k.
    pub(crate) first: L,
    /// Of the last 16 k; equal to the first unless the scheme says [`Scheme::HALVES`].
    pub(crate) last: L,
    /// `-min`; zero unless the scheme says [`Scheme::MIN`].
    pub(crate) bias: L,
}

/// How codes and scales of a quantized format lie, in ggml's blocks and in ours.
pub(crate) trait Scheme {
    /// Bits of a code.
    const BITS: usize;
    /// k of a block.
    const BLOCK: usize;
    /// Bytes of a block's scales for 16 outputs.
    const HEAD: usize;
    /// What a code of zero stands for, negated.
    const OFFSET: i32;
    /// Whether the halves of a step have scales of their own.
    const HALVES: bool = false;
    /// Whether there is a minimum beside the scale.
    const MIN: bool = false;
    /// Whether codes are places in the table of [`look_up`].
    const TABLE: bool = false;

    /// A block's scales, being read.
    type Head<'a, L: Lanes>;

    /// Reads one block of the file: codes in order of k, and scales into lane `o` of a head.
    fn read(block: &[u8], codes: &mut [u8; 256], o: usize, head: &mut [u8]);

    /// Begins to read a head, `Self::HEAD` bytes.
    fn open<L: Lanes>(head: &[u8]) -> Self::Head<'_, L>;

    /// Scales of step `s`; steps are asked for in order.
    fn scales<L: Lanes>(head: &mut Self::Head<'_, L>, s: usize) -> Scales<L>;
}

pub(crate) struct Q4_0;
pub(crate) struct Q8_0;
pub(crate) struct Q4K;
pub(crate) struct Q5K;
pub(crate) struct Q6K;
pub(crate) struct Mxfp4;

/// Sixteen halves from byte `at` of a head on.
#[inline(always)]
fn halves<L: Lanes>(head: &[u8], at: usize) -> L {
    let bytes = &head[at..at + 2 * LANES];
    // SAFETY: 32 bytes at an even address: heads start at even offsets of a panel, and panels at lines of the cache.
    L::load_f16(unsafe { &*bytes.as_ptr().cast::<[f16; LANES]>() })
}

fn put_half(head: &mut [u8], o: usize, bytes: &[u8]) {
    head[2 * o..2 * o + 2].copy_from_slice(&bytes[..2]);
}

impl Scheme for Q4_0 {
    type Head<'a, L: Lanes> = L;
    const BITS: usize = 4;
    const BLOCK: usize = 32;
    const HEAD: usize = 2 * LANES;
    const OFFSET: i32 = 8;

    fn read(block: &[u8], codes: &mut [u8; 256], o: usize, head: &mut [u8]) {
        put_half(head, o, block);
        for (i, byte) in block[2..18].iter().enumerate() {
            (codes[i], codes[16 + i]) = (byte & 15, byte >> 4);
        }
    }
    #[inline(always)]
    fn open<L: Lanes>(head: &[u8]) -> L {
        halves(head, 0)
    }
    #[inline(always)]
    fn scales<L: Lanes>(head: &mut L, _: usize) -> Scales<L> {
        Scales { first: *head, last: *head, bias: L::splat(0.0) }
    }
}

impl Scheme for Q8_0 {
    type Head<'a, L: Lanes> = L;
    const BITS: usize = 8;
    const BLOCK: usize = 32;
    const HEAD: usize = 2 * LANES;
    const OFFSET: i32 = 128;

    fn read(block: &[u8], codes: &mut [u8; 256], o: usize, head: &mut [u8]) {
        put_half(head, o, block);
        codes.iter_mut().zip(&block[2..34]).for_each(|(code, byte)| *code = byte ^ 0x80);
    }
    #[inline(always)]
    fn open<L: Lanes>(head: &[u8]) -> L {
        halves(head, 0)
    }
    #[inline(always)]
    fn scales<L: Lanes>(head: &mut L, _: usize) -> Scales<L> {
        Scales { first: *head, last: *head, bias: L::splat(0.0) }
    }
}

/// A head of Q4_K and Q5_K: three words a lane (the low 4 bits of the 8 scales; of the 8 minima; the high 2 bits of
/// the scales, then of the minima), then the blocks' scales and minima as halves.
const K_WORDS: usize = 3 * 4 * LANES;

fn read_k(block: &[u8], o: usize, head: &mut [u8]) {
    // ggml packs eight 6-bit scales and minima into 12 bytes, the last four of each in spare bits of the first.
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

impl<L: Lanes> HeadK<L> {
    #[inline(always)]
    fn open(head: &[u8]) -> Self {
        let words = [vector::<L>(head, 0), vector::<L>(head, 1), vector::<L>(head, 2)];
        Self { words, scale: halves(head, K_WORDS), min: halves(head, K_WORDS + 2 * LANES) }
    }

    #[inline(always)]
    fn next(&mut self) -> Scales<L> {
        let (low, high) = (L::Words::splat(0x0f), L::Words::splat(0x30));
        let [scales, mins, tops] = self.words;
        let scale = scales.and(low).or(tops.shl(4).and(high));
        let min = mins.and(low).or(tops.shr(12).and(high));
        self.words = [scales.shr(4), mins.shr(4), tops.shr(2)];
        let first = self.scale.mul(L::from_words(scale));
        Scales { first, last: first, bias: L::splat(0.0).sub(self.min.mul(L::from_words(min))) }
    }
}

impl Scheme for Q4K {
    type Head<'a, L: Lanes> = HeadK<L>;
    const BITS: usize = 4;
    const BLOCK: usize = 256;
    const HEAD: usize = K_WORDS + 4 * LANES;
    const OFFSET: i32 = 0;
    const MIN: bool = true;

    fn read(block: &[u8], codes: &mut [u8; 256], o: usize, head: &mut [u8]) {
        read_k(block, o, head);
        for (codes, bytes) in codes.chunks_exact_mut(64).zip(block[16..144].chunks_exact(32)) {
            let (low, high) = codes.split_at_mut(32);
            for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
                (*low, *high) = (byte & 15, byte >> 4);
            }
        }
    }
    #[inline(always)]
    fn open<L: Lanes>(head: &[u8]) -> HeadK<L> {
        HeadK::open(head)
    }
    #[inline(always)]
    fn scales<L: Lanes>(head: &mut HeadK<L>, _: usize) -> Scales<L> {
        head.next()
    }
}

impl Scheme for Q5K {
    type Head<'a, L: Lanes> = HeadK<L>;
    const BITS: usize = 5;
    const BLOCK: usize = 256;
    const HEAD: usize = K_WORDS + 4 * LANES;
    const OFFSET: i32 = 0;
    const MIN: bool = true;

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
    #[inline(always)]
    fn open<L: Lanes>(head: &[u8]) -> HeadK<L> {
        HeadK::open(head)
    }
    #[inline(always)]
    fn scales<L: Lanes>(head: &mut HeadK<L>, _: usize) -> Scales<L> {
        head.next()
    }
}

impl Scheme for Q6K {
    type Head<'a, L: Lanes> = (&'a [u8], L);
    const BITS: usize = 6;
    const BLOCK: usize = 256;
    /// Sixteen signed bytes for each of 16 scales, then the blocks' own as halves.
    const HEAD: usize = 16 * LANES + 2 * LANES;
    const OFFSET: i32 = 32;
    const HALVES: bool = true;

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
    #[inline(always)]
    fn open<L: Lanes>(head: &[u8]) -> (&[u8], L) {
        (head, halves(head, 16 * LANES))
    }
    #[inline(always)]
    fn scales<L: Lanes>((head, d): &mut (&[u8], L), s: usize) -> Scales<L> {
        let (first, last) = (L::load_i8(bytes(head, 2 * s)), L::load_i8(bytes(head, 2 * s + 1)));
        Scales { first: d.mul(first), last: d.mul(last), bias: L::splat(0.0) }
    }
}

/// What the codes of MXFP4 stand for, doubled and moved up by 12 so that none is negative.
const E2M1: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// The quads of a step of MXFP4, from codes to numbers.
#[inline(always)]
pub(crate) fn look_up<L: Lanes>(mut quads: [L::Words; 8]) -> [L::Words; 8] {
    for quad in &mut quads {
        *quad = quad.look_up(&E2M1);
    }
    quads
}

impl Scheme for Mxfp4 {
    type Head<'a, L: Lanes> = L;
    const BITS: usize = 4;
    const BLOCK: usize = 32;
    /// An exponent a row.
    const HEAD: usize = LANES;
    const OFFSET: i32 = 12;
    const TABLE: bool = true;

    fn read(block: &[u8], codes: &mut [u8; 256], o: usize, head: &mut [u8]) {
        head[o] = block[0];
        for (i, byte) in block[1..17].iter().enumerate() {
            (codes[i], codes[16 + i]) = (byte & 15, byte >> 4);
        }
    }
    #[inline(always)]
    fn open<L: Lanes>(head: &[u8]) -> L {
        // 2^(e - 127), halved because the codes are doubled; below 2^-126 there is nothing that counts.
        let exponent = L::load_u8(super::lanes(head)).sub(L::splat(128.0));
        exponent.max(L::splat(-126.0)).pow2()
    }
    #[inline(always)]
    fn scales<L: Lanes>(head: &mut L, _: usize) -> Scales<L> {
        Scales { first: *head, last: *head, bias: L::splat(0.0) }
    }
}

/// Sixteen signed bytes.
#[inline(always)]
fn bytes(head: &[u8], i: usize) -> &[i8; LANES] {
    bytemuck::from_bytes(&head[i * LANES..][..LANES])
}
