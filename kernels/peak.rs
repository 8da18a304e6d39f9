//! What this machine can do at most: rates that measurements are compared with.

use super::{Isa, Kernel, Lanes, Words};
use crate::threads::{map, n_threads};
use std::time::{Duration, Instant};

/// Operations of one call of a loop, so that the loop's own cost does not count.
const ROUNDS: usize = 4096;
/// Sums that do not wait for each other.
const CHAINS: usize = 12;
/// Bytes that are read: more than any cache holds.
const BYTES: usize = 512 << 20;

/// Multiply-adds of 8-bit codes a second, by all threads of this thread's pool.
pub fn int8_macs(isa: Isa) -> f64 {
    64.0 * rate(|| isa.run(Dots))
}

/// Multiply-adds of f32 a second, by all threads of this thread's pool.
pub fn f32_macs(isa: Isa) -> f64 {
    16.0 * rate(|| isa.run(Fmas))
}

/// Bytes read from memory a second, by all threads of this thread's pool: the best of three times.
pub fn bytes_read() -> f64 {
    let (words, n) = (vec![1u64; BYTES / 8], n_threads());
    let piece = words.len() / n;
    let read = || {
        let began = Instant::now();
        let sums = map(n, |i| words[i * piece..(i + 1) * piece].iter().fold(0u64, |sum, word| sum ^ word));
        std::hint::black_box(sums);
        began.elapsed()
    };
    let best = (0..3).map(|_| read()).min().unwrap_or(Duration::MAX);
    (n * piece * 8) as f64 / best.as_secs_f64()
}

/// Vector operations a second of all threads: the best of some tenths of a second.
fn rate(call: impl Fn() -> i32 + Sync) -> f64 {
    let per_thread = |_| {
        let mut best = f64::INFINITY;
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(200) {
            let one = Instant::now();
            std::hint::black_box((0..16).map(|_| call()).fold(0, i32::wrapping_add));
            best = best.min(one.elapsed().as_secs_f64() / 16.0);
        }
        (ROUNDS * CHAINS) as f64 / best
    };
    map(n_threads(), per_thread).into_iter().sum()
}

/// Products of codes in registers, nothing else.
struct Dots;

impl Kernel for Dots {
    type Output = i32;
    #[inline(always)]
    fn run<L: Lanes>(self) -> i32 {
        let codes = L::Words::splat(std::hint::black_box(0x0102_0304));
        let x = std::hint::black_box(0x0101_ff01);
        let mut sums = [L::Words::splat(0); CHAINS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = sum.dot(codes, x);
            }
        }
        let mut all = L::splat(0.0);
        for sum in sums {
            all = all.add(L::from_words(sum));
        }
        all.sum() as i32
    }
}

/// Fused multiply-adds in registers.
struct Fmas;

impl Kernel for Fmas {
    type Output = i32;
    #[inline(always)]
    fn run<L: Lanes>(self) -> i32 {
        let (by, plus) = (L::splat(std::hint::black_box(0.5)), L::splat(std::hint::black_box(1.0)));
        let mut sums = [L::splat(0.0); CHAINS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = sum.fma(by, plus);
            }
        }
        let mut all = L::splat(0.0);
        for sum in sums {
            all = all.add(sum);
        }
        all.sum() as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_has_a_rate() {
        for isa in Isa::available() {
            assert!(int8_macs(isa) > 1e6 && f32_macs(isa) > 1e6, "{}", isa.name());
        }
    }
}
