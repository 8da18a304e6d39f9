//! The scalar twin: 16 lanes in plain Rust. The reference that the SIMD variants equal bit for bit.

use super::{Kernel, LANES, Lanes, Words};
use crate::quant::Scale;
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
    type Words = ScalarWords;
    const PANELS: usize = 0;
    const SUMS: usize = 4;

    fn call<K: Kernel>(kernel: K) -> K::Output {
        kernel.run::<Self>()
    }

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
    fn load_bf16(from: &[u16; LANES]) -> Self {
        Self(from.map(|x| f32::from_bits(u32::from(x) << 16)))
    }
    fn load_u4(from: &[u8; LANES]) -> (Self, Self) {
        (Self(from.map(|x| f32::from(x & 15))), Self(from.map(|x| f32::from(x >> 4))))
    }
    fn load_levels(from: &[u8; LANES], table: &[i8; 16]) -> (Self, Self) {
        let level = |code: u8| f32::from(table[usize::from(code)]);
        (Self(from.map(|byte| level(byte & 15))), Self(from.map(|byte| level(byte >> 4))))
    }
    fn load_scales(from: &[Scale; LANES]) -> Self {
        Self(from.map(Scale::to_f32))
    }
    fn load_u8(from: &[u8; LANES]) -> Self {
        Self(from.map(f32::from))
    }
    fn from_words(words: ScalarWords) -> Self {
        Self(words.0.map(|x| x.cast_signed() as f32))
    }
    fn store_i8(self, to: &mut [i8; LANES]) {
        *to = self.0.map(|x| x.round_ties_even() as i8);
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
    fn abs(self) -> Self {
        Self(self.0.map(f32::abs))
    }
    fn above(self, threshold: f32, by: f32) -> Self {
        Self(self.0.map(|x| if x > threshold { by } else { 0.0 }))
    }
    fn keep(self, from: usize, to: usize, other: f32) -> Self {
        Self(std::array::from_fn(|i| if (from..to).contains(&i) { self.0[i] } else { other }))
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
    fn largest(self) -> f32 {
        self.0.into_iter().fold(f32::NEG_INFINITY, |a, b| if a > b { a } else { b })
    }
}

/// Sixteen words in an array.
#[derive(Clone, Copy)]
pub(crate) struct ScalarWords([u32; LANES]);

impl ScalarWords {
    fn zip(self, other: Self, f: impl Fn(u32, u32) -> u32) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

impl Words for ScalarWords {
    const LESS_128: bool = false;

    fn splat(x: i32) -> Self {
        Self([x.cast_unsigned(); LANES])
    }
    fn load(from: &[u8; 64]) -> Self {
        Self(std::array::from_fn(|i| {
            u32::from_le_bytes([from[4 * i], from[4 * i + 1], from[4 * i + 2], from[4 * i + 3]])
        }))
    }
    fn and(self, other: Self) -> Self {
        self.zip(other, |a, b| a & b)
    }
    fn or(self, other: Self) -> Self {
        self.zip(other, |a, b| a | b)
    }
    fn shr(self, n: u32) -> Self {
        Self(self.0.map(|x| x >> n))
    }
    fn shl(self, n: u32) -> Self {
        Self(self.0.map(|x| x << n))
    }
    fn dot(self, codes: Self, x: i32) -> Self {
        let x = x.to_le_bytes().map(|b| i32::from(b.cast_signed()));
        self.zip(codes, |sum, codes| {
            let products = codes.to_le_bytes().into_iter().zip(x).map(|(c, x)| i32::from(c) * x);
            sum.wrapping_add(products.sum::<i32>().cast_unsigned())
        })
    }
    fn look_up(self, table: &[u8; 16]) -> Self {
        Self(self.0.map(|x| u32::from_le_bytes(x.to_le_bytes().map(|b| table[usize::from(b & 15)]))))
    }
    fn dot_wide(self, codes: Self, x: i32) -> Self {
        self.dot(codes, x)
    }
}
