//! Weights as the kernels read them: panels of 16 outputs, one to a lane, in the same bits that the file has.
//!
//! A panel holds the scales of its 16 rows, then their codes for k = 0, 1, 2, … Codes come in *steps* of 32
//! k: for each quad of 4 k one vector of 16 words, word o holding output o's codes of that quad, one to a
//! byte. Codes of fewer than 8 bits share these vectors:
//!
//! Weights are packed once, in the file's own bits: 16 rows interleaved, a byte of four k to a lane. Packed
//! bytes equal the file's bytes; its pages are given back matrix by matrix. They lie on huge pages.
//!
//! | bits | vectors of a step |
//! |---|---|
//! | 2 | 2: quad 4h + q in bits 2q and 2q + 1 of vector h |
//! | 3 | those 2, then 1 of third bits: quad q in bit q of the bytes |
//! | 8 | 8: quad q |
//! | 4 | 4: quad 2j in the low halves of the bytes, quad 2j + 1 in the high ones |
//! | 5 | those 4, then 1 of fifth bits: quad q in bit q of the bytes |
//! | 6 | those 4, then 2 of fifth and sixth bits: quad 4h + q in bits 2q and 2q + 1 of vector h |
//!
//! Floats are `[k, 16]`. Rows past the last output are zeros.

use super::schemes::{Scheme, numbers_of};
use super::slab::{Slab, Slabs};
use super::{LANES, Lanes, STEP, Words, vector};
use crate::ggml::TensorType;

macro_rules! formats {
    ($($(#[$doc:meta])* $name:ident $kind:ident,)*) => {
        /// A number format of weights that products are computed in.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Format {
            $($(#[$doc])* $name,)*
        }

        impl Format {
            /// The format that tensors of a type are packed in as they are.
            pub fn of(kind: TensorType) -> Option<Self> {
                match kind {
                    $(TensorType::$kind => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

formats! {
    /// IEEE single precision.
    F32 F32,
    /// IEEE half precision.
    F16 F16,
    /// bfloat16.
    Bf16 BF16,
    /// 4 bits, a scale for 32 weights.
    Q4_0 Q4_0,
    /// 4 bits, a scale and a minimum for 32 weights.
    Q4_1 Q4_1,
    /// 5 bits, a scale for 32 weights.
    Q5_0 Q5_0,
    /// 5 bits, a scale and a minimum for 32 weights.
    Q5_1 Q5_1,
    /// 8 bits, a scale for 32 weights.
    Q8_0 Q8_0,
    /// 2 bits in blocks of 256, scales and minima of 4 bits for 16 weights.
    Q2K Q2_K,
    /// 3 bits in blocks of 256, scales of 6 bits for 16 weights.
    Q3K Q3_K,
    /// 4 bits in blocks of 256, scales and minima of 6 bits for 32 weights.
    Q4K Q4_K,
    /// 5 bits in blocks of 256, scales and minima of 6 bits for 32 weights.
    Q5K Q5_K,
    /// 6 bits in blocks of 256, scales of 8 bits for 16 weights.
    Q6K Q6_K,
    /// Codes are places in a table of 16 numbers, fitted to what weights look like.
    Iq4Nl IQ4_NL,
    /// The same with scales of 6 bits.
    Iq4Xs IQ4_XS,
    /// OCP microscaling (2023): e2m1 codes in blocks of 32 with an e8m0 scale.
    Mxfp4 MXFP4,
}

/// Does something with the [`Scheme`] of a coded format, or something else for floats.
macro_rules! with_scheme {
    ($format:expr, $scheme:ident => $coded:expr, _ => $floats:expr) => {
        with_scheme!(@ $format, $scheme, $coded, $floats,
            Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2K Q3K Q4K Q5K Q6K Iq4Nl Iq4Xs Mxfp4)
    };
    (@ $format:expr, $scheme:ident, $coded:expr, $floats:expr, $($name:ident)*) => {
        match $format {
            $(Format::$name => {
                type $scheme = $crate::schemes::$name;
                $coded
            })*
            Format::F32 | Format::F16 | Format::Bf16 => $floats,
        }
    };
}
pub(crate) use with_scheme;

impl Format {
    /// Bits of a weight, without scales.
    const fn bits(self) -> usize {
        with_scheme!(self, S => S::BITS, _ => if matches!(self, Self::F32) { 32 } else { 16 })
    }

    /// k that share scales, and the bytes of these for a panel.
    const fn head(self) -> (usize, usize) {
        with_scheme!(self, S => (S::BLOCK, S::SCALE_BYTES), _ => (1, 0))
    }

    /// k of a block in the file.
    pub const fn block(self) -> usize {
        self.head().0
    }

    /// Bytes of a row in the file.
    pub const fn row_bytes(self, k: usize) -> usize {
        with_scheme!(self, S => k / S::BLOCK * S::BYTES, _ => k * self.bits() / 8)
    }

    /// Numbers of whole blocks in the file, of a coded format.
    pub fn numbers(self, bytes: &[u8]) -> Vec<f32> {
        with_scheme!(self, S => numbers_of::<S>(bytes), _ => Vec::new())
    }

    /// What is subtracted from its codes.
    pub fn offset(self) -> i32 {
        with_scheme!(self, S => S::OFFSET, _ => 0)
    }

    /// Tells whether activations are quantized for it.
    pub fn coded(self) -> bool {
        with_scheme!(self, _S => true, _ => false)
    }
}

/// A weight matrix `[n_out, k]` in panels, with the bias of its outputs if it has one.
pub struct Packed {
    /// The format of its weights.
    pub format: Format,
    /// Number of outputs (rows).
    pub n_out: usize,
    /// Number of inputs (columns).
    pub k: usize,
    /// Bias of the outputs, `[n_out]`.
    pub bias: Option<Vec<f32>>,
    slab: Slab,
}

impl Packed {
    /// Packs rows as the file has them: `rows` is `n_out * format.row_bytes(k)` long, `k` a multiple of
    /// `format.block()`. Each panel is packed by one task.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn pack(
        slabs: &mut Slabs,
        format: Format,
        n_out: usize,
        k: usize,
        rows: &[u8],
    ) -> std::io::Result<Self> {
        let row_bytes = format.row_bytes(k);
        assert!(rows.len() == n_out * row_bytes && k % format.block() == 0, "rows are whole blocks");
        let mut slab = slabs.cut(n_out.div_ceil(LANES) * panel_bytes(format, k))?;
        let panels = crate::threads::SharedSlice::new(slab.bytes_mut());
        let size = panel_bytes(format, k);
        crate::threads::for_ranges(n_out.div_ceil(LANES), 1, |range| {
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
    pub fn n_panels(&self) -> usize {
        self.n_out.div_ceil(LANES)
    }

    /// Panel `p`: outputs `16 p ..`.
    pub fn panel(&self, p: usize) -> &[u8] {
        let size = panel_bytes(self.format, self.k);
        &self.slab.bytes()[p * size..(p + 1) * size]
    }
}

/// Bytes of the codes of a panel.
const fn code_bytes(format: Format, k: usize) -> usize {
    k * LANES * format.bits() / 8
}

/// Bytes of the scales of a panel, before its codes: whole cache lines.
pub const fn scale_bytes(format: Format, k: usize) -> usize {
    let (block, head) = format.head();
    (k / block * head).next_multiple_of(64)
}

/// Bytes of a panel: whole cache lines.
const fn panel_bytes(format: Format, k: usize) -> usize {
    (scale_bytes(format, k) + code_bytes(format, k)).next_multiple_of(64)
}

/// Puts one row of the file into lane `o` of a panel.
fn pack_row(format: Format, row: &[u8], o: usize, k: usize, panel: &mut [u8]) {
    with_scheme!(
        format, S => return pack_codes::<S>(row, o, panel.split_at_mut(scale_bytes(format, k))), _ => ()
    );
    let size = format.bits() / 8;
    for (i, x) in row.chunks_exact(size).enumerate() {
        panel[(i * LANES + o) * size..][..size].copy_from_slice(x);
    }
}

fn pack_codes<S: Scheme>(row: &[u8], o: usize, (heads, steps): (&mut [u8], &mut [u8])) {
    let mut codes = [0u8; 256];
    let blocks = row.chunks_exact(S::BYTES).zip(heads.chunks_exact_mut(S::SCALE_BYTES));
    for ((block, head), steps) in blocks.zip(steps.chunks_exact_mut(S::BLOCK * LANES * S::BITS / 8)) {
        S::read(block, &mut codes, o, head);
        let steps = steps.chunks_exact_mut(STEP * LANES * S::BITS / 8);
        codes.chunks_exact(STEP).zip(steps).for_each(|(codes, step)| pack_step(S::BITS, codes, o, step));
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
    // Vector h has two bits of each of four quads.
    let twos = |h: usize, shift: u32| {
        (0..4).fold(0, |word, q| word | (quad(4 * h + q) >> shift & 0x0303_0303) << (2 * q))
    };
    // One bit of each of the eight.
    let ones = |shift: u32| (0..8).fold(0, |word, q| word | (quad(q) >> shift & 0x0101_0101) << q);
    if bits < 4 {
        (0..2).for_each(|h| put(h, twos(h, 0)));
        if bits == 3 {
            put(2, ones(2));
        }
        return;
    }
    let low = |q| quad(q) & 0x0f0f_0f0f;
    (0..4).for_each(|j| put(j, low(2 * j) | low(2 * j + 1) << 4));
    match bits {
        5 => put(4, ones(4)),
        6 => (0..2).for_each(|h| put(4 + h, twos(h, 4))),
        _ => {}
    }
}

// The functions below run inside of kernels. Closures there would be compiled without the kernel's
// instruction set, and called instead of inlined: hence loops and `#[inline(always)]` functions.

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
    if BITS < 4 {
        for q in 0..8 {
            codes[q] = twos::<L>(step, 0, q);
            if BITS == 3 {
                codes[q] = codes[q].or(one::<L>(step, 2, q).shl(2));
            }
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
            codes[q] = codes[q].or(one::<L>(step, 4, q).shl(4));
        }
        if BITS == 6 {
            codes[q] = codes[q].or(twos::<L>(step, 4, q).shl(4));
        }
    }
    codes
}

/// Two bits of each byte of quad `q`, from vectors `at` and the next.
#[inline(always)]
fn twos<L: Lanes>(step: &[u8], at: usize, q: usize) -> L::Words {
    vector::<L>(step, at + q / 4).shr(2 * (q as u32 % 4)).and(L::Words::splat(0x0303_0303))
}

/// One bit of each byte of quad `q`, from vector `at`.
#[inline(always)]
fn one<L: Lanes>(step: &[u8], at: usize, q: usize) -> L::Words {
    vector::<L>(step, at).shr(q as u32).and(L::Words::splat(0x0101_0101))
}
