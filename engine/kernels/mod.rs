//! The kernels' contract: what every instruction set computes, to the bit.
//!
//! Every kernel is written once, over a vector of **16 lanes** of f32 ([`Lanes`]), and instantiated for each
//! instruction set. The contract fixes the order of all arithmetic:
//!
//! - a dot product of length k keeps 16 partial sums, lane i taking elements i, i+16, i+32, … in order by
//!   fused multiply-add (a ragged end is padded with zeros), then adds them in one fixed tree;
//! - `exp` is one polynomial, evaluated with the same operations everywhere;
//! - a row's arithmetic never depends on which rows stand beside it, on chunking, or on the number of
//!   threads: work is split over outputs, heads and rows only, never inside a sum.
//!
//! So the scalar twin gives the same bits as AVX2 and AVX-512, and the [`NUMERICS`] id names the contract, not the
//! machine. Whoever changes the order of any operation must change the id: caches computed before are
//! then missed, never mixed.
//!
//! Nothing here knows models, blocks or sequences; inputs are slices, and tiles of the KV cache come through
//! [`attention::Tiles`]. A device back end implements the same three operations: [`linear`], [`attention`], [`pointwise`].

pub(crate) mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(crate) mod linear;
pub(crate) mod pointwise;
mod scalar;

use half::f16;

/// Name and version of the kernels' contract: part of every cache's identity and of every transcript.
pub(crate) const NUMERICS: &str = "lanes16/1";

/// An instruction set that the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Plain Rust: the reference.
    Scalar,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F and BW.
    Avx512,
}

impl Isa {
    /// The best instruction set of this machine, or the one that `GREENROOM_ISA` names (`scalar`, `avx2`,
    /// `avx512`) where the machine has it.
    pub fn detect() -> Self {
        let wanted = std::env::var("GREENROOM_ISA").ok();
        let available = Self::available();
        match wanted.as_deref() {
            None => available[0],
            Some(name) => available.iter().copied().find(|isa| isa.name() == name).unwrap_or_else(|| {
                tracing::warn!("GREENROOM_ISA={name} is not available here; using {}", available[0].name());
                available[0]
            }),
        }
    }

    /// All instruction sets that can run here, best first; the scalar reference is always the last.
    pub fn available() -> Vec<Self> {
        let mut sets = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
                sets.push(Self::Avx512);
            }
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            if avx2 && is_x86_feature_detected!("f16c") {
                sets.push(Self::Avx2);
            }
        }
        sets.push(Self::Scalar);
        sets
    }

    /// Name as logged and as taken by `GREENROOM_ISA`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// Runs a kernel on this instruction set.
    ///
    /// `self` comes from [`Isa::available`], so its features were detected.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Self::Scalar => kernel.run::<scalar::Scalar>(),
            // SAFETY: `Isa::Avx2` and `Isa::Avx512` are only built where their features were detected.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { avx2::run(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe { avx512::run(kernel) },
            #[cfg(not(target_arch = "x86_64"))]
            _ => kernel.run::<scalar::Scalar>(),
        }
    }
}

/// A kernel: arguments bound, generic over the instruction set. `run` must be `#[inline(always)]`, so that it is
/// compiled with the features of the set that runs it.
pub(crate) trait Kernel {
    /// What the kernel returns.
    type Output;
    /// Computes.
    fn run<L: Lanes>(self) -> Self::Output;
}

/// Number of lanes, the same for every instruction set.
pub(crate) const LANES: usize = 16;

/// A vector of 16 f32 lanes. All operations are IEEE single precision, rounded once.
///
/// The methods are safe to write because only [`Isa::run`] can instantiate a kernel with an instruction set,
/// and it does so only where the set was detected.
pub(crate) trait Lanes: Copy {
    /// All lanes equal.
    fn splat(x: f32) -> Self;
    /// Loads 16 floats.
    fn load(from: &[f32; LANES]) -> Self;
    /// Stores 16 floats.
    fn store(self, to: &mut [f32; LANES]);
    /// Loads 16 half-precision floats, exactly.
    fn load_f16(from: &[f16; LANES]) -> Self;
    /// Loads 16 signed bytes, exactly.
    fn load_i8(from: &[i8; LANES]) -> Self;
    /// Sixteen 4-bit codes from two words, lowest bits first.
    fn load_u4(from: &[u32; 2]) -> Self;
    /// Sixteen 8-bit codes from four words, lowest bits first.
    fn load_u8(from: &[u32; 4]) -> Self;
    /// `self + other`.
    fn add(self, other: Self) -> Self;
    /// `self - other`.
    fn sub(self, other: Self) -> Self;
    /// `self * other`.
    fn mul(self, other: Self) -> Self;
    /// `self / other`.
    fn div(self, other: Self) -> Self;
    /// `self * by + plus`, rounded once.
    fn fma(self, by: Self, plus: Self) -> Self;
    /// The larger of each lane (neither is NaN, or the result is unspecified).
    fn max(self, other: Self) -> Self;
    /// The smaller of each lane (neither is NaN, or the result is unspecified).
    fn min(self, other: Self) -> Self;
    /// 2 to the power of each lane, which holds a whole number in -126..=127.
    fn pow2(self) -> Self;
    /// The sum of all lanes by the contract's tree: halves added, 16 → 8 → 4 → 2 → 1.
    fn sum(self) -> f32;

    /// `e^x` with a relative error under 2e-7; -87 and below give about 1e-38, 88 and above about 1e38.
    ///
    /// Cody–Waite reduction with a degree-6 Taylor polynomial on [-ln2/2, ln2/2].
    #[inline(always)]
    fn exp(self) -> Self {
        let x = self.max(Self::splat(-87.0)).min(Self::splat(88.0));
        // Adding and subtracting 1.5 * 2^23 rounds to the nearest whole number.
        let magic = Self::splat(12_582_912.0);
        let n = x.fma(Self::splat(std::f32::consts::LOG2_E), magic).sub(magic);
        let r = n.fma(Self::splat(-0.693_359_4), x);
        let r = n.fma(Self::splat(2.121_944_4e-4), r);
        let p = Self::splat(1.0 / 720.0).fma(r, Self::splat(1.0 / 120.0));
        let p = p.fma(r, Self::splat(1.0 / 24.0));
        let p = p.fma(r, Self::splat(1.0 / 6.0));
        let p = p.fma(r, Self::splat(0.5));
        let p = p.fma(r, Self::splat(1.0));
        let p = p.fma(r, Self::splat(1.0));
        p.mul(n.pow2())
    }
}

/// Sixteen floats of a slice from `at` on, padded with zeros past its end.
#[inline(always)]
pub(crate) fn padded<T: Copy + Default>(from: &[T], at: usize) -> [T; LANES] {
    let mut out = [T::default(); LANES];
    let n = from.len().saturating_sub(at).min(LANES);
    out[..n].copy_from_slice(&from[at..at + n]);
    out
}

/// A slice of 16 as an array. The slice's length is the caller's invariant.
#[inline(always)]
pub(crate) fn lanes<T>(from: &[T]) -> &[T; LANES] {
    from.try_into().expect("a slice of 16")
}

/// A mutable slice of 16 as an array. The slice's length is the caller's invariant.
#[inline(always)]
pub(crate) fn lanes_mut<T>(from: &mut [T]) -> &mut [T; LANES] {
    from.try_into().expect("a slice of 16")
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Everything([f32; LANES]);
    impl Kernel for Everything {
        type Output = Vec<u32>;
        #[inline(always)]
        fn run<L: Lanes>(self) -> Vec<u32> {
            let x = L::load(&self.0);
            let half = self.0.map(f16::from_f32);
            let bytes: [i8; LANES] = std::array::from_fn(|i| (i as i8 - 8) * 15);
            let words = [0x8421_fedc, 0x0123_4567, 0xdead_beef, 0x8000_0001];
            let results = [
                x.exp(),
                L::load_f16(&half).mul(x),
                L::load_i8(&bytes).add(x),
                L::load_u4(&[words[0], words[1]]).fma(x, L::splat(0.5)),
                L::load_u8(&words).sub(x),
                x.max(L::splat(0.1)).min(L::splat(0.9)).div(L::splat(3.0)),
                L::splat(x.sum()),
            ];
            let mut out = vec![];
            for r in results {
                let mut lanes = [0.0; LANES];
                r.store(&mut lanes);
                out.extend(lanes.map(f32::to_bits));
            }
            out
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let sets = Isa::available();
        for seed in 0..200 {
            let x: [f32; LANES] = std::array::from_fn(|i| ((seed * 16 + i) as f32 * 0.731).sin() * 20.0);
            let expected = Isa::Scalar.run(Everything(x));
            for isa in &sets {
                assert_eq!(isa.run(Everything(x)), expected, "{} differs from scalar", isa.name());
            }
        }
    }

    struct Exp([f32; LANES]);
    impl Kernel for Exp {
        type Output = [f32; LANES];
        #[inline(always)]
        fn run<L: Lanes>(self) -> [f32; LANES] {
            let mut out = [0.0; LANES];
            L::load(&self.0).exp().store(&mut out);
            out
        }
    }

    #[test]
    fn exp_is_close_to_the_exact_one() {
        for step in 0..1000 {
            let x: [f32; LANES] = std::array::from_fn(|i| -86.0 + 0.0107 * (step * 16 + i) as f32);
            let y = Isa::Scalar.run(Exp(x));
            for (x, y) in x.into_iter().zip(y) {
                let exact = f64::from(x).exp();
                assert!((f64::from(y) - exact).abs() <= 3e-7 * exact, "exp({x}) = {y}, exactly {exact}");
            }
        }
    }
}
