//! NEON, with dot products (ARMv8.2 `dotprod`) and products of matrices (ARMv8.6 `i8mm`) where there are
//! such: 16 lanes as four registers of 4.

use super::{Kernel, LANES, Lanes, Words};
use crate::quant::Scale;
use half::f16;
use std::arch::aarch64::*;
use std::arch::asm;

/// Extensions, each with those before it.
const PLAIN: u8 = 0;
const DOT: u8 = 1;
const I8MM: u8 = 2;

/// Lanes 0–3, 4–7, 8–11 and 12–15.
#[derive(Clone, Copy)]
struct Neon<const EXTENSION: u8>(float32x4_t, float32x4_t, float32x4_t, float32x4_t);

/// Runs a kernel with NEON code.
///
/// # Safety
/// The machine has NEON.
#[inline(never)]
#[target_feature(enable = "neon")]
pub(crate) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Neon<PLAIN>>()
}

/// Runs a kernel with NEON code and dot products.
///
/// # Safety
/// The machine has NEON and `dotprod`.
#[inline(never)]
#[target_feature(enable = "neon,dotprod")]
pub(crate) unsafe fn run_dot<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Neon<DOT>>()
}

/// Runs a kernel with NEON code, dot products and products of matrices.
///
/// # Safety
/// The machine has NEON, `dotprod` and `i8mm`.
#[inline(never)]
#[target_feature(enable = "neon,dotprod,i8mm")]
pub(crate) unsafe fn run_i8mm<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Neon<I8MM>>()
}

/// One expression over all four quarters.
///
/// SAFETY of all that follows: a method is reached through [`run`], [`run_dot`] or [`run_i8mm`] alone, whose
/// caller has detected the features; every pointer comes from an array reference of at least the width that
/// is read or written.
macro_rules! quarters {
    ($a:ident, $f:expr) => {
        unsafe { Self($f($a.0), $f($a.1), $f($a.2), $f($a.3)) }
    };
    ($a:ident, $b:ident, $f:expr) => {
        unsafe { Self($f($a.0, $b.0), $f($a.1, $b.1), $f($a.2, $b.2), $f($a.3, $b.3)) }
    };
}

#[allow(clippy::undocumented_unsafe_blocks)] // the macro's doc holds for each
impl<const EXTENSION: u8> Lanes for Neon<EXTENSION> {
    type Words = NeonWords<EXTENSION>;
    const PANELS: usize = 1;
    const SUMS: usize = 4;

    fn call<K: Kernel>(kernel: K) -> K::Output {
        unsafe {
            match EXTENSION {
                I8MM => run_i8mm(kernel),
                DOT => run_dot(kernel),
                _ => run(kernel),
            }
        }
    }

    #[inline(always)]
    fn splat(x: f32) -> Self {
        unsafe { Self(vdupq_n_f32(x), vdupq_n_f32(x), vdupq_n_f32(x), vdupq_n_f32(x)) }
    }
    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        let p = from.as_ptr();
        unsafe { Self(vld1q_f32(p), vld1q_f32(p.add(4)), vld1q_f32(p.add(8)), vld1q_f32(p.add(12))) }
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        let p = to.as_mut_ptr();
        unsafe {
            vst1q_f32(p, self.0);
            vst1q_f32(p.add(4), self.1);
            vst1q_f32(p.add(8), self.2);
            vst1q_f32(p.add(12), self.3);
        }
    }
    #[inline(always)]
    fn load_f16(from: &[f16; LANES]) -> Self {
        let p = from.as_ptr().cast::<u16>();
        unsafe {
            let wide = |p| vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
            Self(wide(p), wide(p.add(4)), wide(p.add(8)), wide(p.add(12)))
        }
    }
    #[inline(always)]
    fn load_i8(from: &[i8; LANES]) -> Self {
        unsafe { from_signed(vld1q_s8(from.as_ptr())) }
    }
    #[inline(always)]
    fn load_bf16(from: &[u16; LANES]) -> Self {
        let p = from.as_ptr();
        unsafe {
            let wide = |p| vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p)));
            Self(wide(p), wide(p.add(4)), wide(p.add(8)), wide(p.add(12)))
        }
    }
    #[inline(always)]
    fn load_u4(from: &[u8; LANES]) -> (Self, Self) {
        unsafe {
            let bytes = vld1q_u8(from.as_ptr());
            (from_bytes(vandq_u8(bytes, vdupq_n_u8(15))), from_bytes(vshrq_n_u8::<4>(bytes)))
        }
    }
    #[inline(always)]
    fn load_levels(from: &[u8; LANES], table: &[i8; 16]) -> (Self, Self) {
        unsafe {
            let (bytes, table) = (vld1q_u8(from.as_ptr()), vld1q_s8(table.as_ptr()));
            let low = vqtbl1q_s8(table, vandq_u8(bytes, vdupq_n_u8(15)));
            (from_signed(low), from_signed(vqtbl1q_s8(table, vshrq_n_u8::<4>(bytes))))
        }
    }
    #[inline(always)]
    fn load_scales(from: &[Scale; LANES]) -> Self {
        unsafe {
            let bytes = vld1q_u8(from.as_ptr().cast());
            let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
            let number = |bytes: uint32x4_t| {
                let bits = vshlq_n_u32::<{ Scale::SHIFT as i32 }>(bytes);
                vreinterpretq_f32_u32(vaddq_u32(bits, vdupq_n_u32(Scale::BASE)))
            };
            Self(
                number(vmovl_u16(vget_low_u16(low))),
                number(vmovl_high_u16(low)),
                number(vmovl_u16(vget_low_u16(high))),
                number(vmovl_high_u16(high)),
            )
        }
    }
    #[inline(always)]
    fn load_u8(from: &[u8; LANES]) -> Self {
        unsafe { from_bytes(vld1q_u8(from.as_ptr())) }
    }
    #[inline(always)]
    fn from_words(words: NeonWords<EXTENSION>) -> Self {
        quarters!(words, |a| vcvtq_f32_s32(a))
    }
    #[inline(always)]
    fn store_i8(self, to: &mut [i8; LANES]) {
        unsafe {
            let narrow = |a, b| vqmovn_high_s32(vqmovn_s32(vcvtnq_s32_f32(a)), vcvtnq_s32_f32(b));
            let (low, high) = (narrow(self.0, self.1), narrow(self.2, self.3));
            vst1q_s8(to.as_mut_ptr(), vqmovn_high_s16(vqmovn_s16(low), high));
        }
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        quarters!(self, other, |a, b| vaddq_f32(a, b))
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        quarters!(self, other, |a, b| vsubq_f32(a, b))
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        quarters!(self, other, |a, b| vmulq_f32(a, b))
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        quarters!(self, other, |a, b| vdivq_f32(a, b))
    }
    #[inline(always)]
    fn fma(self, by: Self, plus: Self) -> Self {
        unsafe {
            // The sum comes first here.
            Self(
                vfmaq_f32(plus.0, self.0, by.0),
                vfmaq_f32(plus.1, self.1, by.1),
                vfmaq_f32(plus.2, self.2, by.2),
                vfmaq_f32(plus.3, self.3, by.3),
            )
        }
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        quarters!(self, other, |a, b| larger(a, b))
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // As in `larger`.
        quarters!(self, other, |a, b| vbslq_f32(vcltq_f32(a, b), a, b))
    }
    #[inline(always)]
    fn abs(self) -> Self {
        quarters!(self, |a| vabsq_f32(a))
    }
    #[inline(always)]
    fn above(self, threshold: f32, by: f32) -> Self {
        quarters!(self, |a| {
            let above = vcgtq_f32(a, vdupq_n_f32(threshold));
            vreinterpretq_f32_u32(vandq_u32(above, vreinterpretq_u32_f32(vdupq_n_f32(by))))
        })
    }
    #[inline(always)]
    fn keep(self, from: usize, to: usize, other: f32) -> Self {
        let mut lanes = [0.0; LANES];
        self.store(&mut lanes);
        lanes[..from].fill(other);
        lanes[to..].fill(other);
        Self::load(&lanes)
    }
    #[inline(always)]
    fn pow2(self) -> Self {
        quarters!(self, |n| {
            let biased = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
            vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased))
        })
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        unsafe {
            let four = vaddq_f32(vaddq_f32(self.0, self.2), vaddq_f32(self.1, self.3));
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        }
    }
    #[inline(always)]
    fn largest(self) -> f32 {
        unsafe { vmaxvq_f32(larger(larger(self.0, self.2), larger(self.1, self.3))) }
    }
}

/// Sixteen signed bytes as floats.
///
/// # Safety
/// The machine has NEON.
#[inline(always)]
unsafe fn from_signed<const EXTENSION: u8>(bytes: int8x16_t) -> Neon<EXTENSION> {
    // SAFETY: the caller's.
    unsafe {
        let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
        Neon(
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
            vcvtq_f32_s32(vmovl_high_s16(low)),
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
            vcvtq_f32_s32(vmovl_high_s16(high)),
        )
    }
}

/// Sixteen unsigned bytes as floats.
///
/// # Safety
/// The machine has NEON.
#[inline(always)]
unsafe fn from_bytes<const EXTENSION: u8>(bytes: uint8x16_t) -> Neon<EXTENSION> {
    // SAFETY: the caller's.
    unsafe {
        let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
        Neon(
            vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))),
            vcvtq_f32_u32(vmovl_high_u16(low)),
            vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))),
            vcvtq_f32_u32(vmovl_high_u16(high)),
        )
    }
}

/// The larger of each lane; of two zeros the second, as in the other sets (`vmaxq_f32` orders them by sign).
///
/// # Safety
/// The machine has NEON.
#[inline(always)]
unsafe fn larger(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: the caller's.
    unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
}

/// Words 0–3, 4–7, 8–11 and 12–15.
#[derive(Clone, Copy)]
struct NeonWords<const EXTENSION: u8>(int32x4_t, int32x4_t, int32x4_t, int32x4_t);

#[allow(clippy::undocumented_unsafe_blocks)] // the macro's doc holds for each
impl<const EXTENSION: u8> Words for NeonWords<EXTENSION> {
    const LESS_128: bool = true;

    #[inline(always)]
    fn splat(x: i32) -> Self {
        unsafe { Self(vdupq_n_s32(x), vdupq_n_s32(x), vdupq_n_s32(x), vdupq_n_s32(x)) }
    }
    #[inline(always)]
    fn load(from: &[u8; 64]) -> Self {
        let p = from.as_ptr();
        unsafe {
            let words = |p| vreinterpretq_s32_u8(vld1q_u8(p));
            Self(words(p), words(p.add(16)), words(p.add(32)), words(p.add(48)))
        }
    }
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        quarters!(self, other, |a, b| vandq_s32(a, b))
    }
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        quarters!(self, other, |a, b| vorrq_s32(a, b))
    }
    #[inline(always)]
    fn shr(self, n: u32) -> Self {
        // There is a shift to the left alone, by a signed number of bits.
        quarters!(self, |a| {
            let bits = vshlq_u32(vreinterpretq_u32_s32(a), vdupq_n_s32(-n.cast_signed()));
            vreinterpretq_s32_u32(bits)
        })
    }
    #[inline(always)]
    fn shl(self, n: u32) -> Self {
        quarters!(self, |a| vshlq_s32(a, vdupq_n_s32(n.cast_signed())))
    }
    #[inline(always)]
    fn dot(self, codes: Self, x: i32) -> Self {
        quarters!(self, codes, |sum, codes| {
            let (codes, x) = (vreinterpretq_s8_s32(codes), vreinterpretq_s8_s32(vdupq_n_s32(x)));
            if EXTENSION >= DOT {
                return add_dot(sum, codes, x);
            }
            // Pairs of products fit 16 bits, even with codes of -128: 2 * 128 * 127 < 2^15.
            let low = vmull_s8(vget_low_s8(codes), vget_low_s8(x));
            vpadalq_s16(sum, vpaddq_s16(low, vmull_high_s8(codes, x)))
        })
    }
    #[inline(always)]
    fn look_up(self, table: &[u8; 16]) -> Self {
        let p = table.as_ptr();
        quarters!(self, |a| vreinterpretq_s32_u8(vqtbl1q_u8(vld1q_u8(p), vreinterpretq_u8_s32(a))))
    }
    #[inline(always)]
    fn dot_wide(self, codes: Self, x: i32) -> Self {
        // Codes less 128 (their top bit flipped) are signed bytes.
        let flip = Self::splat(0x8080_8080u32.cast_signed());
        self.dot(quarters!(codes, flip, |a, b| veorq_s32(a, b)), x)
    }

    // Sums of two rows are tiles of two rows by two outputs, two to each quarter of outputs; codes of two
    // quads are registers of two outputs by eight k.
    const PAIRS: bool = EXTENSION >= I8MM;

    #[inline(always)]
    fn pair(quads: &mut [Self; 8], wide: bool) {
        let flip = Self::splat(0x8080_8080u32.cast_signed());
        for i in (0..8).step_by(2) {
            let (mut a, mut b) = (quads[i], quads[i + 1]);
            if wide {
                (a, b) =
                    (quarters!(a, flip, |a, b| veorq_s32(a, b)), quarters!(b, flip, |a, b| veorq_s32(a, b)));
            }
            unsafe {
                quads[i] = Self(
                    vzip1q_s32(a.0, b.0),
                    vzip2q_s32(a.0, b.0),
                    vzip1q_s32(a.1, b.1),
                    vzip2q_s32(a.1, b.1),
                );
                quads[i + 1] = Self(
                    vzip1q_s32(a.2, b.2),
                    vzip2q_s32(a.2, b.2),
                    vzip1q_s32(a.3, b.3),
                    vzip2q_s32(a.3, b.3),
                );
            }
        }
    }
    #[inline(always)]
    fn begin_pairs<const R: usize>(sums: &mut [Self; R]) {
        for rows in sums.chunks_exact_mut(2) {
            let (a, b) = (rows[0], rows[1]);
            unsafe {
                rows[0] = Self(low(a.0, b.0), high(a.0, b.0), low(a.1, b.1), high(a.1, b.1));
                rows[1] = Self(low(a.2, b.2), high(a.2, b.2), low(a.3, b.3), high(a.3, b.3));
            }
        }
    }
    #[inline(always)]
    fn pair_products<const R: usize>(sums: &mut [Self; R], codes: [Self; 2], x: [i64; R]) {
        let mut r = 0;
        while r + 2 <= R {
            unsafe {
                let x = vreinterpretq_s8_s64(vcombine_s64(
                    vcreate_s64(x[r].cast_unsigned()),
                    vcreate_s64(x[r + 1].cast_unsigned()),
                ));
                for i in 0..2 {
                    let (sums, codes) = (&mut sums[r + i], codes[i]);
                    sums.0 = add_tile(sums.0, x, vreinterpretq_s8_s32(codes.0));
                    sums.1 = add_tile(sums.1, x, vreinterpretq_s8_s32(codes.1));
                    sums.2 = add_tile(sums.2, x, vreinterpretq_s8_s32(codes.2));
                    sums.3 = add_tile(sums.3, x, vreinterpretq_s8_s32(codes.3));
                }
            }
            r += 2;
        }
        if r < R {
            // A row alone: each output's two quads are adjacent.
            unsafe {
                let x = vreinterpretq_s8_s64(vdupq_n_s64(x[r]));
                let zero = vdupq_n_s32(0);
                let dot = |codes| add_dot(zero, vreinterpretq_s8_s32(codes), x);
                let sums = &mut sums[r];
                sums.0 = vaddq_s32(sums.0, vpaddq_s32(dot(codes[0].0), dot(codes[0].1)));
                sums.1 = vaddq_s32(sums.1, vpaddq_s32(dot(codes[0].2), dot(codes[0].3)));
                sums.2 = vaddq_s32(sums.2, vpaddq_s32(dot(codes[1].0), dot(codes[1].1)));
                sums.3 = vaddq_s32(sums.3, vpaddq_s32(dot(codes[1].2), dot(codes[1].3)));
            }
        }
    }
    #[inline(always)]
    fn end_pairs<const R: usize>(sums: &mut [Self; R]) {
        for rows in sums.chunks_exact_mut(2) {
            let (a, b) = (rows[0], rows[1]);
            unsafe {
                rows[0] = Self(low(a.0, a.1), low(a.2, a.3), low(b.0, b.1), low(b.2, b.3));
                rows[1] = Self(high(a.0, a.1), high(a.2, a.3), high(b.0, b.1), high(b.2, b.3));
            }
        }
    }
}

/// The low halves of two registers.
///
/// # Safety
/// The machine has NEON.
#[inline(always)]
unsafe fn low(a: int32x4_t, b: int32x4_t) -> int32x4_t {
    // SAFETY: the caller's.
    unsafe { vreinterpretq_s32_s64(vzip1q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b))) }
}

/// The high halves of two registers.
///
/// # Safety
/// The machine has NEON.
#[inline(always)]
unsafe fn high(a: int32x4_t, b: int32x4_t) -> int32x4_t {
    // SAFETY: the caller's.
    unsafe { vreinterpretq_s32_s64(vzip2q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b))) }
}

/// An instruction that adds products of bytes to four words, whose intrinsic is not stable.
macro_rules! add_products {
    ($(#[$doc:meta])* $name:ident, $extension:literal, $instruction:literal) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// The machine has the extension.
        #[inline(always)]
        unsafe fn $name(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
            let mut sum = sum;
            // SAFETY: the caller's; it reads and writes these registers alone.
            unsafe {
                asm!(
                    concat!(".arch_extension ", $extension),
                    concat!($instruction, " {sum:v}.4s, {a:v}.16b, {b:v}.16b"),
                    sum = inout(vreg) sum, a = in(vreg) a, b = in(vreg) b,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            sum
        }
    };
}
add_products! {
    /// `sum` and, for each of its words, the products of the four bytes there.
    add_dot, "dotprod", "sdot"
}
add_products! {
    /// `sum`, two rows by two outputs, and the products of two rows of eight (`a`) with two outputs' codes of
    /// eight (`b`).
    add_tile, "i8mm", "smmla"
}
