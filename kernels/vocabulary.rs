//! Passes over a row of logits, for the sampler: the greatest logit of each piece, sums of weights,
//! exponentials.
//!
//! Sums of weights are estimates with a known error ([`ERROR`]); the sampler allows for it, so that no draw
//! depends on their order. Exponentials are those of `libm`, bit for bit.

use super::{Isa, Kernel, LANES, Lanes, padded};

/// Logits of a piece.
pub const LOGITS_PER_PIECE: usize = 128;
/// Maximum relative error of [`weights_below`]: the exponent's roundings, `Lanes::exp` and a piece's sum come
/// to 2e-5. (Weights under 1e-37 count as such.)
pub const ERROR: f64 = 1e-4;

/// The greatest logit of each piece; NaN where one of its logits is.
pub fn maxima(isa: Isa, logits: &[f32]) -> Vec<f32> {
    let mut maxima = vec![f32::NEG_INFINITY; logits.len().div_ceil(LOGITS_PER_PIECE)];
    isa.run(Maxima { logits, maxima: &mut maxima });
    maxima
}

struct Maxima<'a> {
    logits: &'a [f32],
    maxima: &'a mut [f32],
}

impl Kernel for Maxima<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for (max, piece) in self.maxima.iter_mut().zip(self.logits.chunks(LOGITS_PER_PIECE)) {
            let mut lanes = [f32::NEG_INFINITY; LANES];
            let mut nans = [0u32; LANES];
            let (vectors, rest) = piece.as_chunks::<LANES>();
            for vector in vectors {
                for i in 0..LANES {
                    lanes[i] = greater(vector[i], lanes[i]);
                    nans[i] |= u32::from(vector[i].is_nan());
                }
            }
            for x in lanes {
                *max = greater(x, *max);
            }
            let mut has_nan = false;
            for nan in nans {
                has_nan |= nan != 0;
            }
            for x in rest {
                *max = greater(*x, *max);
                has_nan |= x.is_nan();
            }
            if has_nan {
                *max = f32::NAN;
            }
        }
    }
}

/// The greater of two numbers; `y` where `x` is NaN.
#[inline(always)]
fn greater(x: f32, y: f32) -> f32 {
    if x > y { x } else { y }
}

/// Logits whose weights are summed up: those below a threshold. A weight is
/// `exp((logit - top) / temperature)`.
#[derive(Clone, Copy, Debug)]
pub struct Below {
    /// Logits below this one are summed up.
    pub threshold: f32,
    /// The logit whose weight is 1.
    pub top: f32,
    /// Temperature of the weights, above 0.
    pub temperature: f32,
}

/// Estimates the sum of weights below a threshold, by piece. No logit is above `top`, or the threshold is
/// lower than that one.
pub fn weights_below(isa: Isa, logits: &[f32], below: Below) -> Vec<f32> {
    let mut sums = vec![0.0; logits.len().div_ceil(LOGITS_PER_PIECE)];
    isa.run(TokenWeights { logits, below, sums: &mut sums });
    sums
}

struct TokenWeights<'a> {
    logits: &'a [f32],
    below: Below,
    sums: &'a mut [f32],
}

impl Kernel for TokenWeights<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Below { threshold, top, temperature } = self.below;
        let scale = 1.0 / temperature;
        for (to, piece) in self.sums.iter_mut().zip(self.logits.chunks(LOGITS_PER_PIECE)) {
            let mut sum = L::splat(0.0);
            for at in (0..piece.len()).step_by(LANES) {
                let n = LANES.min(piece.len() - at);
                let x = padded(piece, at);
                let mut exponents = [f32::MIN; LANES];
                for i in 0..LANES {
                    exponents[i] = if x[i] < threshold { (x[i] - top) * scale } else { f32::MIN };
                }
                sum = sum.add(L::load(&exponents).exp().keep(0, n, 0.0));
            }
            *to = sum.sum();
        }
    }
}

/// Replaces numbers of no more than 0 by their exponentials, the bits of which are those of [`libm::exp`].
pub fn exps(isa: Isa, numbers: &mut [f64]) {
    isa.run(Exps(numbers));
}

struct Exps<'a>(&'a mut [f64]);

/// ln 2 in two parts, the first of which has zeros at its end.
#[expect(clippy::excessive_precision)] // as they stand in libm
const LN2_HI: f64 = 6.931_471_803_691_238_164_90e-01;
#[expect(clippy::excessive_precision)]
const LN2_LO: f64 = 1.908_214_929_270_587_700_02e-10;

/// Below this, an exponential is near the smallest normal number.
const FAR: f64 = -708.0;

impl Kernel for Exps<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for numbers in self.0.chunks_mut(LOGITS_PER_PIECE) {
            let mut are_near = true;
            for x in numbers.iter() {
                are_near &= *x >= FAR;
            }
            if are_near {
                for x in numbers {
                    *x = exp(*x);
                }
            } else {
                for x in numbers {
                    *x = if *x >= FAR { exp(*x) } else { libm::exp(*x) };
                }
            }
        }
    }
}

/// The algorithm of [`libm::exp`] (FreeBSD's `e_exp.c`) for -708 to 0, with selections in place of its
/// branches: every operation that takes part in a result is the same one.
#[inline(always)]
#[expect(clippy::excessive_precision, clippy::unreadable_literal)] // as they stand there
fn exp(x: f64) -> f64 {
    const P: [f64; 5] = [
        1.66666666666666019037e-01,
        -2.77777777770155933842e-03,
        6.61375632143793436117e-05,
        -1.65339022054652515390e-06,
        4.13813679705723846039e-08,
    ];
    // |x| of 1.5 ln 2, 0.5 ln 2 and 2^-28, by their high words.
    const MANY: f64 = f64::from_bits(0x3ff0_a2b2_0000_0000);
    const ONE: f64 = f64::from_bits(0x3fd6_2e43_0000_0000);
    const TINY: f64 = f64::from_bits(0x3e30_0001_0000_0000);
    let size = -x;
    let many = (std::f64::consts::LOG2_E * x - 0.5).trunc();
    let k = if size >= MANY {
        many
    } else if size >= ONE {
        -1.0
    } else {
        0.0
    };
    let (hi, lo) = (x - k * LN2_HI, k * LN2_LO);
    let r = hi - lo;
    let rr = r * r;
    let c = r - rr * (P[0] + rr * (P[1] + rr * (P[2] + rr * (P[3] + rr * P[4]))));
    let y = 1.0 + (r * c / (2.0 - c) - lo + hi);
    // 2^k, by adding k to an exponent: the lowest bits of this sum are k.
    let bits = (k + 6_755_399_441_055_744.0).to_bits();
    let power = f64::from_bits((bits << 52).wrapping_add(1023 << 52));
    if size >= TINY { y * power } else { 1.0 + x }
}

/// Replaces numbers of no more than 0 by their exponentials, with a relative error of 1e-14; those below -700
/// count as that. In less than half the time of [`exps`], for nothing is divided.
pub fn near_exps(isa: Isa, numbers: &mut [f64]) {
    isa.run(NearExps(numbers));
}

struct NearExps<'a>(&'a mut [f64]);

impl Kernel for NearExps<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for x in self.0 {
            *x = near_exp(*x);
        }
    }
}

/// Cody–Waite reduction with a degree-11 Taylor polynomial on [-ln2/2, ln2/2], in pairs (Estrin's scheme).
#[inline(always)]
fn near_exp(x: f64) -> f64 {
    const MAGIC: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52 leaves no room for a fraction
    let x = if x > -700.0 { x } else { -700.0 };
    let shifted = x * std::f64::consts::LOG2_E + MAGIC;
    let n = shifted - MAGIC;
    let r = x - n * LN2_HI - n * LN2_LO;
    let (rr, rrrr) = (r * r, (r * r) * (r * r));
    let low = (1.0 + r) + rr * (0.5 + r * (1.0 / 6.0));
    let middle = (1.0 / 24.0 + r * (1.0 / 120.0)) + rr * (1.0 / 720.0 + r * (1.0 / 5040.0));
    let high = (1.0 / 40_320.0 + r * (1.0 / 362_880.0)) + rr * (1.0 / 3_628_800.0 + r * (1.0 / 39_916_800.0));
    (low + rrrr * (middle + rrrr * high)) * f64::from_bits((shifted.to_bits() << 52).wrapping_add(1023 << 52))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that look random, from 0 to 1.
    fn number(i: u64) -> f64 {
        let hash = blake3::hash(&i.to_le_bytes());
        (u64::from_le_bytes(hash.as_bytes()[..8].try_into().unwrap()) >> 11) as f64 / (1u64 << 53) as f64
    }

    #[test]
    fn exponentials_are_those_of_libm() {
        let near_edges = [0.0, 0.5, 1.0, 1.5, 2.5, 100.5].map(|n| -n * std::f64::consts::LN_2);
        let near_edges =
            near_edges.into_iter().chain([-2f64.powi(-28), -708.0, -708.4, -745.2]).flat_map(|x| {
                let bits = x.to_bits();
                (0..2000u64)
                    .flat_map(move |step| [bits.wrapping_add(step << 20), bits.saturating_sub(step << 20)])
            });
        let edges = near_edges.map(f64::from_bits).filter(|x| *x <= 0.0);
        let special = [0.0, -0.0, -f64::MIN_POSITIVE, -5e-324, f64::NEG_INFINITY, f64::MIN, f64::NAN];
        let wide = (0..200_000).map(|i| -number(i) * 720.0);
        let narrow = (0..200_000).map(|i| -number(i) * 2f64.powi(-((i % 64) as i32)));
        let numbers: Vec<f64> = edges.chain(special).chain(wide).chain(narrow).collect();
        let expected: Vec<u64> = numbers.iter().map(|x| libm::exp(*x).to_bits()).collect();
        for isa in Isa::available() {
            let mut found = numbers.clone();
            exps(isa, &mut found);
            for ((x, found), expected) in numbers.iter().zip(found).zip(&expected) {
                assert_eq!(found.to_bits(), *expected, "exp({x:e}) on {}", isa.name());
            }
        }
    }

    #[test]
    fn near_exponentials_are_as_near_as_they_say() {
        let numbers: Vec<f64> =
            (0..100_000).map(|i| -number(i) * [1e-9, 0.5, 30.0, 700.0][i as usize % 4]).collect();
        for isa in Isa::available() {
            let mut found = numbers.clone();
            near_exps(isa, &mut found);
            for (x, found) in numbers.iter().zip(found) {
                assert!(
                    (found / libm::exp(*x) - 1.0).abs() < 1e-14,
                    "exp({x:e}) is {found:e} on {}",
                    isa.name()
                );
            }
            let mut far = [-701.0, f64::NEG_INFINITY, f64::MIN, 0.0, -0.0];
            near_exps(isa, &mut far);
            assert!(far[..3].iter().all(|x| *x < 1e-300) && far[3..] == [1.0; 2], "{far:?}");
        }
    }

    #[test]
    fn maxima_say_where_a_logit_is_not_a_number() {
        for (isa, n) in Isa::available().into_iter().flat_map(|isa| [(isa, 1), (isa, 130), (isa, 515)]) {
            let logits: Vec<f32> = (0..n).map(|i| (number(i) * 9.0 - 7.0) as f32).collect();
            let greatest = |piece: &[f32]| piece.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let expected: Vec<f32> = logits.chunks(LOGITS_PER_PIECE).map(greatest).collect();
            assert_eq!(maxima(isa, &logits), expected, "{} of {n}", isa.name());
            for at in [0, n as usize / 2, n as usize - 1] {
                let (mut logits, mut expected) = (logits.clone(), expected.clone());
                (logits[at], expected[at / LOGITS_PER_PIECE]) = (f32::NAN, f32::NAN);
                let found = maxima(isa, &logits);
                let mut pairs = found.iter().zip(&expected);
                let is_same = pairs.all(|(a, b)| a == b || a.is_nan() && b.is_nan());
                assert!(is_same, "{found:?}, not {expected:?}, of {n} on {}", isa.name());
            }
        }
    }

    #[test]
    fn sums_of_weights_are_as_near_as_they_say() {
        for (step, isa) in Isa::available().into_iter().enumerate() {
            for case in 0..40 {
                let n = 1 + (number(case) * 4000.0) as u64;
                let spread = [0.5, 4.0, 30.0, 200.0][case as usize % 4];
                let mut logits: Vec<f32> =
                    (0..n).map(|i| (number(i * 77 + case) * spread - 7.0) as f32).collect();
                logits[n as usize / 3] = [f32::NEG_INFINITY, f32::NAN][step % 2];
                let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let temperature = [0.01, 0.7, 1.0, 3.0][case as usize / 4 % 4];
                let below = Below { threshold: top - 0.1, top, temperature };
                let found: f64 = weights_below(isa, &logits, below).into_iter().map(f64::from).sum();
                let weight = |x: &f32| libm::exp(f64::from(x - top) / f64::from(temperature));
                let expected: f64 = logits.iter().filter(|x| **x < below.threshold).map(weight).sum();
                let error = expected * ERROR / 4.0 + n as f64 * 1e-37;
                assert!((found - expected).abs() <= error, "{found}, not {expected}, of {n}, {below:?}");
            }
        }
    }
}
