//! The scalar twin: 16 lanes in plain Rust. The reference that the SIMD variants equal bit for bit.

use super::{LANES, Lanes};
use half::f16;

/// Sixteen floats in an array.
#[derive(Clone, Copy)]
pub(crate) struct Scalar([f32; LANES]);

impl Scalar {
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

impl Lanes for Scalar {
    fn splat(x: f32) -> Self {
        Self([x; LANES])
    }
    fn load(from: &[f32; LANES]) -> Self {
        Self(*from)
    }
    fn store(self, to: &mut [f32; LANES]) {
        *to = self.0;
    }
    fn load_f16(from: &[f16; LANES]) -> Self {
        Self(from.map(f16::to_f32))
    }
    fn load_i8(from: &[i8; LANES]) -> Self {
        Self(from.map(f32::from))
    }
    fn load_u4(from: &[u32; 2]) -> Self {
        Self(std::array::from_fn(|i| ((from[i / 8] >> (4 * (i % 8))) & 15) as f32))
    }
    fn load_u8(from: &[u32; 4]) -> Self {
        Self(std::array::from_fn(|i| ((from[i / 4] >> (8 * (i % 4))) & 255) as f32))
    }
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }
    fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }
    fn fma(self, by: Self, plus: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i].mul_add(by.0[i], plus.0[i])))
    }
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }
    fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }
    fn pow2(self) -> Self {
        Self(self.0.map(|n| f32::from_bits(((n as i32 + 127) as u32) << 23)))
    }
    fn sum(self) -> f32 {
        let mut lanes = self.0;
        let mut n = LANES / 2;
        while n > 0 {
            for i in 0..n {
                lanes[i] += lanes[i + n];
            }
            n /= 2;
        }
        lanes[0]
    }
}
