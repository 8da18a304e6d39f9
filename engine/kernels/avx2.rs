//! AVX2 with FMA and F16C: 16 lanes as two registers of 8.

use super::{Kernel, LANES, Lanes};
use half::f16;
use std::arch::x86_64::*;

/// Lanes 0–7 and 8–15.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256, __m256);

/// Runs a kernel with AVX2 code.
///
/// # Safety
/// The machine has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx2>()
}

/// One expression over both halves.
///
/// SAFETY of all that follows: an `Avx2` method is reached through [`run`] alone, whose caller has detected the
/// features; every pointer comes from an array reference of at least the width that is read or written.
macro_rules! both {
    ($a:ident, $f:expr) => {
        unsafe { Avx2($f($a.0), $f($a.1)) }
    };
    ($a:ident, $b:ident, $f:expr) => {
        unsafe { Avx2($f($a.0, $b.0), $f($a.1, $b.1)) }
    };
}

#[allow(clippy::undocumented_unsafe_blocks)] // the macro's doc holds for each
impl Lanes for Avx2 {
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
    fn load_i8(from: &[i8; LANES]) -> Self {
        unsafe {
            let bytes = _mm_loadu_si128(from.as_ptr().cast());
            let low = _mm256_cvtepi8_epi32(bytes);
            let high = _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes));
            Self(_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
        }
    }
    #[inline(always)]
    fn load_u4(from: &[u32; 2]) -> Self {
        unsafe {
            let shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
            let mask = _mm256_set1_epi32(15);
            let codes = |word: u32| {
                let spread = _mm256_srlv_epi32(_mm256_set1_epi32(word.cast_signed()), shifts);
                _mm256_cvtepi32_ps(_mm256_and_si256(spread, mask))
            };
            Self(codes(from[0]), codes(from[1]))
        }
    }
    #[inline(always)]
    fn load_u8(from: &[u32; 4]) -> Self {
        unsafe {
            let bytes = _mm_loadu_si128(from.as_ptr().cast());
            let low = _mm256_cvtepu8_epi32(bytes);
            let high = _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(bytes));
            Self(_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
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
}
