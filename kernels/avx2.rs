//! AVX2 with FMA and F16C, and with AVX-VNNI where there is that: 16 lanes as two registers of 8.

use super::{Kernel, LANES, Lanes, Words};
use crate::quant::Scale;
use half::f16;
use std::arch::asm;
use std::arch::x86_64::*;

/// Lanes 0–7 and 8–15.
#[derive(Clone, Copy)]
struct Avx2<const VNNI: bool>(__m256, __m256);

/// Runs a kernel with AVX2 code.
///
/// # Safety
/// The machine has AVX2, FMA and F16C.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx2<false>>()
}

/// Runs a kernel with AVX2 and AVX-VNNI code.
///
/// # Safety
/// The machine has AVX2, FMA, F16C and AVX-VNNI.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub(crate) unsafe fn run_vnni<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx2<true>>()
}

/// One expression over both halves.
///
/// SAFETY of all that follows: an `Avx2` method is reached through [`run`] alone, whose caller has detected
/// the features; every pointer comes from an array reference of at least the width that is read or written.
macro_rules! both {
    ($a:ident, $f:expr) => {
        unsafe { Avx2($f($a.0), $f($a.1)) }
    };
    ($a:ident, $b:ident, $f:expr) => {
        unsafe { Avx2($f($a.0, $b.0), $f($a.1, $b.1)) }
    };
}

#[allow(clippy::undocumented_unsafe_blocks)] // the macro's doc holds for each
impl<const VNNI: bool> Lanes for Avx2<VNNI> {
    type Words = Avx2Words<VNNI>;
    const PANELS: usize = 1;
    const SUMS: usize = 4;

    fn call<K: Kernel>(kernel: K) -> K::Output {
        unsafe { if VNNI { run_vnni(kernel) } else { run(kernel) } }
    }

    #[inline(always)]
    fn prefetch(address: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
    #[inline(always)]
    fn splat(x: f32) -> Self {
        unsafe { Self(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
    }
    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        unsafe { Self(_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))) }
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        unsafe {
            _mm256_storeu_ps(to.as_mut_ptr(), self.0);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), self.1);
        }
    }
    #[inline(always)]
    fn load_f16(from: &[f16; LANES]) -> Self {
        let p = from.as_ptr().cast::<__m128i>();
        unsafe { Self(_mm256_cvtph_ps(_mm_loadu_si128(p)), _mm256_cvtph_ps(_mm_loadu_si128(p.add(1)))) }
    }
    #[inline(always)]
    fn store_f16(self, to: &mut [f16; LANES]) {
        let p = to.as_mut_ptr().cast::<__m128i>();
        unsafe {
            _mm_storeu_si128(p, _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0));
            _mm_storeu_si128(p.add(1), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.1));
        }
    }
    #[inline(always)]
    fn load_i8(from: &[i8; LANES]) -> Self {
        unsafe { from_signed(_mm_loadu_si128(from.as_ptr().cast())) }
    }
    #[inline(always)]
    fn load_bf16(from: &[u16; LANES]) -> Self {
        let p = from.as_ptr().cast::<__m128i>();
        unsafe {
            let wide = |p| {
                let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(p));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
            };
            Self(wide(p), wide(p.add(1)))
        }
    }
    #[inline(always)]
    fn load_u4(from: &[u8; LANES]) -> (Self, Self) {
        unsafe {
            let bytes = _mm_loadu_si128(from.as_ptr().cast());
            let (first, last) =
                (_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(bytes)));
            let nibble = _mm256_set1_epi32(15);
            let low = Self(
                _mm256_cvtepi32_ps(_mm256_and_si256(first, nibble)),
                _mm256_cvtepi32_ps(_mm256_and_si256(last, nibble)),
            );
            let high = Self(
                _mm256_cvtepi32_ps(_mm256_srli_epi32::<4>(first)),
                _mm256_cvtepi32_ps(_mm256_srli_epi32::<4>(last)),
            );
            (low, high)
        }
    }
    #[inline(always)]
    fn load_levels(from: &[u8; LANES], table: &[i8; 16]) -> (Self, Self) {
        unsafe {
            let table = _mm_loadu_si128(table.as_ptr().cast());
            let (bytes, nibbles) = (_mm_loadu_si128(from.as_ptr().cast()), _mm_set1_epi8(15));
            let low = _mm_shuffle_epi8(table, _mm_and_si128(bytes, nibbles));
            let high = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16::<4>(bytes), nibbles));
            (from_signed(low), from_signed(high))
        }
    }
    #[inline(always)]
    fn load_scales(from: &[Scale; LANES]) -> Self {
        unsafe {
            let bytes = _mm_loadu_si128(from.as_ptr().cast());
            let base = _mm256_set1_epi32(Scale::BASE.cast_signed());
            let number = |bytes| {
                let bits = _mm256_slli_epi32::<{ Scale::SHIFT as i32 }>(_mm256_cvtepu8_epi32(bytes));
                _mm256_castsi256_ps(_mm256_add_epi32(bits, base))
            };
            Self(number(bytes), number(_mm_srli_si128::<8>(bytes)))
        }
    }
    #[inline(always)]
    fn load_u8(from: &[u8; LANES]) -> Self {
        unsafe {
            let bytes = _mm_loadu_si128(from.as_ptr().cast());
            let low = _mm256_cvtepu8_epi32(bytes);
            let high = _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(bytes));
            Self(_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
        }
    }
    #[inline(always)]
    fn from_words(words: Avx2Words<VNNI>) -> Self {
        unsafe { Self(_mm256_cvtepi32_ps(words.0), _mm256_cvtepi32_ps(words.1)) }
    }
    #[inline(always)]
    fn store_i8(self, to: &mut [i8; LANES]) {
        unsafe {
            let (low, high) = (_mm256_cvtps_epi32(self.0), _mm256_cvtps_epi32(self.1));
            // Packing works within 128-bit halves: quarters come out as 0, 2, 1, 3.
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(low, high));
            let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(to.as_mut_ptr().cast(), bytes);
        }
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        both!(self, other, |a, b| _mm256_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        both!(self, other, |a, b| _mm256_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        both!(self, other, |a, b| _mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        both!(self, other, |a, b| _mm256_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, by: Self, plus: Self) -> Self {
        unsafe { Self(_mm256_fmadd_ps(self.0, by.0, plus.0), _mm256_fmadd_ps(self.1, by.1, plus.1)) }
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        both!(self, other, |a, b| _mm256_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        both!(self, other, |a, b| _mm256_min_ps(a, b))
    }
    #[inline(always)]
    fn abs(self) -> Self {
        both!(self, |a| _mm256_andnot_ps(_mm256_set1_ps(-0.0), a))
    }
    #[inline(always)]
    fn above(self, threshold: f32, by: f32) -> Self {
        both!(self, |a| {
            let above = _mm256_cmp_ps::<_CMP_GT_OQ>(a, _mm256_set1_ps(threshold));
            _mm256_and_ps(above, _mm256_set1_ps(by))
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
        both!(self, |n| {
            let biased = _mm256_add_epi32(_mm256_cvttps_epi32(n), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        })
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        unsafe {
            let eight = _mm256_add_ps(self.0, self.1);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
    #[inline(always)]
    fn largest(self) -> f32 {
        unsafe {
            let eight = _mm256_max_ps(self.0, self.1);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
}

/// Sixteen signed bytes as floats.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn from_signed<const VNNI: bool>(bytes: __m128i) -> Avx2<VNNI> {
    // SAFETY: the caller's.
    unsafe {
        let low = _mm256_cvtepi8_epi32(bytes);
        let high = _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes));
        Avx2(_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
    }
}

/// Words 0–7 and 8–15.
#[derive(Clone, Copy)]
struct Avx2Words<const VNNI: bool>(__m256i, __m256i);

#[allow(clippy::undocumented_unsafe_blocks)] // the macro's doc holds for each
impl<const VNNI: bool> Words for Avx2Words<VNNI> {
    const LARGEST_SUM: i32 = if VNNI { i32::MAX } else { i16::MAX as i32 };
    const LESS_128: bool = !VNNI;

    #[inline(always)]
    fn splat(x: i32) -> Self {
        unsafe { Self(_mm256_set1_epi32(x), _mm256_set1_epi32(x)) }
    }
    #[inline(always)]
    fn load(from: &[u8; 64]) -> Self {
        let p = from.as_ptr().cast::<__m256i>();
        unsafe { Self(_mm256_loadu_si256(p), _mm256_loadu_si256(p.add(1))) }
    }
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        unsafe { Self(_mm256_and_si256(self.0, other.0), _mm256_and_si256(self.1, other.1)) }
    }
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        unsafe { Self(_mm256_or_si256(self.0, other.0), _mm256_or_si256(self.1, other.1)) }
    }
    #[inline(always)]
    fn shr(self, n: u32) -> Self {
        unsafe {
            let n = _mm_cvtsi32_si128(n.cast_signed());
            Self(_mm256_srl_epi32(self.0, n), _mm256_srl_epi32(self.1, n))
        }
    }
    #[inline(always)]
    fn shl(self, n: u32) -> Self {
        unsafe {
            let n = _mm_cvtsi32_si128(n.cast_signed());
            Self(_mm256_sll_epi32(self.0, n), _mm256_sll_epi32(self.1, n))
        }
    }
    #[inline(always)]
    fn dot(self, codes: Self, x: i32) -> Self {
        self.end(Self::products(self.begin(), codes, x))
    }
    #[inline(always)]
    fn look_up(self, table: &[u8; 16]) -> Self {
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            Self(_mm256_shuffle_epi8(table, self.0), _mm256_shuffle_epi8(table, self.1))
        }
    }
    #[inline(always)]
    fn dot_wide(self, codes: Self, x: i32) -> Self {
        if VNNI {
            return self.dot(codes, x);
        }
        unsafe {
            // |c| * (x with the sign of c): pairs of products fit 16 bits, 2 * 128 * 127 < 2^15.
            let (x, flip) = (_mm256_set1_epi32(x), _mm256_set1_epi8(-128));
            let products = |codes| {
                let codes = _mm256_xor_si256(codes, flip);
                _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes))
            };
            self.end(Self(products(codes.0), products(codes.1)))
        }
    }
    #[inline(always)]
    fn begin(self) -> Self {
        if VNNI { self } else { Self::splat(0) }
    }
    #[inline(always)]
    fn products(sums: Self, codes: Self, x: i32) -> Self {
        unsafe {
            let x = _mm256_set1_epi32(x);
            if VNNI {
                let add = |sums, codes| _mm256_dpbusd_avx_epi32(sums, codes, x);
                Self(add(sums.0, codes.0), add(sums.1, codes.1))
            } else {
                // Pairs of products fit 16 bits: 2 * 127 * 127 < 2^15.
                let add = |sums, codes| _mm256_add_epi16(sums, _mm256_maddubs_epi16(codes, x));
                Self(add(sums.0, codes.0), add(sums.1, codes.1))
            }
        }
    }
    #[inline(always)]
    fn in_order<const R: usize, const P: usize>(words: &mut [[Self; R]; P]) {
        if R != 4 || P != 1 {
            return;
        }
        let [a, b, c, d] = &mut words[0][..] else { return };
        unsafe {
            let there = [a.0, a.1, b.0, b.1, c.0, c.1, d.0, d.1];
            [a.0, a.1, b.0, b.1, c.0, c.1, d.0, d.1] = all_at_once(there);
        }
    }
    #[inline(always)]
    fn end(self, sums: Self) -> Self {
        if VNNI {
            return sums;
        }
        unsafe {
            let ones = _mm256_set1_epi16(1);
            let add = |words, sums| _mm256_add_epi32(words, _mm256_madd_epi16(sums, ones));
            Self(add(self.0, sums.0), add(self.1, sums.1))
        }
    }
}

/// All of them are there before any of them is used: no instruction, but the compiler believes that it
/// changes them.
#[inline]
#[target_feature(enable = "avx2")]
fn all_at_once([mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h]: [__m256i; 8]) -> [__m256i; 8] {
    // SAFETY: nothing is done.
    unsafe {
        asm!(
            "/* {} {} {} {} {} {} {} {} */",
            inout(ymm_reg) a, inout(ymm_reg) b, inout(ymm_reg) c, inout(ymm_reg) d,
            inout(ymm_reg) e, inout(ymm_reg) f, inout(ymm_reg) g, inout(ymm_reg) h,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    [a, b, c, d, e, f, g, h]
}
