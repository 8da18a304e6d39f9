//! AVX-512 (F, BW and VNNI): 16 lanes in one register.

use super::{Kernel, LANES, Lanes, Words};
use crate::quant::Scale;
use half::f16;
use std::arch::asm;
use std::arch::x86_64::*;

/// All 16 lanes.
#[derive(Clone, Copy)]
struct Avx512(__m512);

/// Runs a kernel with AVX-512 code.
///
/// # Safety
/// The machine has AVX-512 F, BW and VNNI (and so AVX2, FMA and F16C).
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
pub(crate) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx512>()
}

// SAFETY of all that follows: an `Avx512` method is reached through `run` alone, whose caller has detected
// the features; every pointer comes from an array reference of at least the width that is read or written.
#[allow(clippy::undocumented_unsafe_blocks)] // the comment above holds for each
impl Lanes for Avx512 {
    type Words = Avx512Words;
    const PANELS: usize = 2;
    const SUMS: usize = 16;

    fn call<K: Kernel>(kernel: K) -> K::Output {
        unsafe { run(kernel) }
    }

    #[inline(always)]
    fn prefetch(address: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
    #[inline(always)]
    fn splat(x: f32) -> Self {
        unsafe { Self(_mm512_set1_ps(x)) }
    }
    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        unsafe { Self(_mm512_loadu_ps(from.as_ptr())) }
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), self.0) }
    }
    #[inline(always)]
    fn load_f16(from: &[f16; LANES]) -> Self {
        unsafe { Self(_mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast()))) }
    }
    #[inline(always)]
    fn store_f16(self, to: &mut [f16; LANES]) {
        unsafe {
            let halves = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0);
            _mm256_storeu_si256(to.as_mut_ptr().cast(), halves);
        }
    }
    #[inline(always)]
    fn load_i8(from: &[i8; LANES]) -> Self {
        unsafe { Self(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.as_ptr().cast())))) }
    }
    #[inline(always)]
    fn load_bf16(from: &[u16; LANES]) -> Self {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
        }
    }
    #[inline(always)]
    fn load_u4(from: &[u8; LANES]) -> (Self, Self) {
        unsafe {
            let wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.as_ptr().cast()));
            let low = _mm512_and_si512(wide, _mm512_set1_epi32(15));
            (Self(_mm512_cvtepi32_ps(low)), Self(_mm512_cvtepi32_ps(_mm512_srli_epi32::<4>(wide))))
        }
    }
    #[inline(always)]
    fn load_levels(from: &[u8; LANES], table: &[i8; 16]) -> (Self, Self) {
        unsafe {
            let table = _mm_loadu_si128(table.as_ptr().cast());
            let (bytes, nibbles) = (_mm_loadu_si128(from.as_ptr().cast()), _mm_set1_epi8(15));
            let low = _mm_shuffle_epi8(table, _mm_and_si128(bytes, nibbles));
            let high = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16::<4>(bytes), nibbles));
            let number = |levels| Self(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(levels)));
            (number(low), number(high))
        }
    }
    #[inline(always)]
    fn load_scales(from: &[Scale; LANES]) -> Self {
        unsafe {
            let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.as_ptr().cast()));
            let bits = _mm512_slli_epi32::<{ Scale::SHIFT }>(bytes);
            let base = _mm512_set1_epi32(Scale::BASE.cast_signed());
            Self(_mm512_castsi512_ps(_mm512_add_epi32(bits, base)))
        }
    }
    #[inline(always)]
    fn load_u8(from: &[u8; LANES]) -> Self {
        unsafe { Self(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.as_ptr().cast())))) }
    }
    #[inline(always)]
    fn from_words(words: Avx512Words) -> Self {
        unsafe { Self(_mm512_cvtepi32_ps(words.0)) }
    }
    #[inline(always)]
    fn store_i8(self, to: &mut [i8; LANES]) {
        unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(self.0))) }
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        unsafe { Self(_mm512_add_ps(self.0, other.0)) }
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        unsafe { Self(_mm512_sub_ps(self.0, other.0)) }
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        unsafe { Self(_mm512_mul_ps(self.0, other.0)) }
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        unsafe { Self(_mm512_div_ps(self.0, other.0)) }
    }
    #[inline(always)]
    fn fma(self, by: Self, plus: Self) -> Self {
        unsafe { Self(_mm512_fmadd_ps(self.0, by.0, plus.0)) }
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        unsafe { Self(_mm512_max_ps(self.0, other.0)) }
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        unsafe { Self(_mm512_min_ps(self.0, other.0)) }
    }
    #[inline(always)]
    fn abs(self) -> Self {
        unsafe { Self(_mm512_abs_ps(self.0)) }
    }
    #[inline(always)]
    fn above(self, threshold: f32, by: f32) -> Self {
        unsafe {
            let above = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(self.0, _mm512_set1_ps(threshold));
            Self(_mm512_maskz_mov_ps(above, _mm512_set1_ps(by)))
        }
    }
    #[inline(always)]
    fn keep(self, from: usize, to: usize, other: f32) -> Self {
        let mask = ((1u32 << to) - (1u32 << from)) as u16;
        unsafe { Self(_mm512_mask_blend_ps(mask, _mm512_set1_ps(other), self.0)) }
    }
    #[inline(always)]
    fn pow2(self) -> Self {
        unsafe {
            let biased = _mm512_add_epi32(_mm512_cvttps_epi32(self.0), _mm512_set1_epi32(127));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased)))
        }
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        unsafe {
            let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(self.0)));
            let eight = _mm256_add_ps(_mm512_castps512_ps256(self.0), high);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
    #[inline(always)]
    fn largest(self) -> f32 {
        unsafe { _mm512_reduce_max_ps(self.0) }
    }
}

/// All 16 words.
#[derive(Clone, Copy)]
struct Avx512Words(__m512i);

#[allow(clippy::undocumented_unsafe_blocks)] // as above
impl Words for Avx512Words {
    const LESS_128: bool = false;
    const TILES: bool = true;

    #[inline(always)]
    fn splat(x: i32) -> Self {
        unsafe { Self(_mm512_set1_epi32(x)) }
    }
    #[inline(always)]
    fn lowered(self, by: i32) -> Self {
        unsafe { Self(_mm512_sub_epi8(self.0, _mm512_set1_epi8(by as i8))) }
    }
    #[inline(always)]
    fn load(from: &[u8; 64]) -> Self {
        unsafe { Self(_mm512_loadu_si512(from.as_ptr().cast())) }
    }
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        unsafe { Self(_mm512_and_si512(self.0, other.0)) }
    }
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        unsafe { Self(_mm512_or_si512(self.0, other.0)) }
    }
    #[inline(always)]
    fn shr(self, n: u32) -> Self {
        unsafe { Self(_mm512_srl_epi32(self.0, _mm_cvtsi32_si128(n.cast_signed()))) }
    }
    #[inline(always)]
    fn shl(self, n: u32) -> Self {
        unsafe { Self(_mm512_sll_epi32(self.0, _mm_cvtsi32_si128(n.cast_signed()))) }
    }
    #[inline(always)]
    fn dot(self, codes: Self, x: i32) -> Self {
        unsafe { Self(_mm512_dpbusd_epi32(self.0, codes.0, _mm512_set1_epi32(x))) }
    }
    #[inline(always)]
    fn look_up(self, table: &[u8; 16]) -> Self {
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            Self(_mm512_shuffle_epi8(table, self.0))
        }
    }
    #[inline(always)]
    fn dot_wide(self, codes: Self, x: i32) -> Self {
        self.dot(codes, x)
    }
    #[inline(always)]
    fn in_order<const R: usize, const P: usize>(words: &mut [[Self; R]; P]) {
        if R != 8 {
            return;
        }
        for panel in words {
            let [a, b, c, d, e, f, g, h] = &mut panel[..] else { return };
            unsafe {
                let there = [a.0, b.0, c.0, d.0, e.0, f.0, g.0, h.0];
                [a.0, b.0, c.0, d.0, e.0, f.0, g.0, h.0] = all_at_once(there);
            }
        }
    }
}

/// All of them are there before any of them is used: no instruction, but the compiler believes that it
/// changes them.
#[inline]
#[target_feature(enable = "avx512f")]
fn all_at_once([mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h]: [__m512i; 8]) -> [__m512i; 8] {
    // SAFETY: nothing is done.
    unsafe {
        asm!(
            "/* {} {} {} {} {} {} {} {} */",
            inout(zmm_reg) a, inout(zmm_reg) b, inout(zmm_reg) c, inout(zmm_reg) d,
            inout(zmm_reg) e, inout(zmm_reg) f, inout(zmm_reg) g, inout(zmm_reg) h,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    [a, b, c, d, e, f, g, h]
}
