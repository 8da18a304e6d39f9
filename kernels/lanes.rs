//! Vectors of 16 lanes: the operations that every instruction set has, with the same bits.

use crate::quant::Scale;
use half::f16;

/// A kernel: arguments bound, generic over the instruction set. `run` must be `#[inline(always)]`, so that it
/// is compiled with the features of the set that runs it.
pub(crate) trait Kernel {
    /// Result of the kernel.
    type Output;
    /// Runs the kernel.
    fn run<L: Lanes>(self) -> Self::Output;
}

/// Tokens whose keys stand beside each other.
pub const LANES: usize = 16;

/// k of a step: codes that are multiplied together.
pub const STEP: usize = 32;

/// A vector of 16 f32 lanes. All operations are IEEE single precision, rounded once.
///
/// The methods are safe to call, though they are intrinsics that not every processor has: the types of an
/// instruction set are private to its file, so that only the `unsafe` functions there can name them, and
/// [`Isa::run`](crate::Isa::run) calls these where the set was detected. Code that has an `L` already runs there.
pub(crate) trait Lanes: Copy {
    /// The integers that go with it.
    type Words: Words;
    /// Panels of weights that are unpacked for many rows and meet them together: 2 if there are registers
    /// enough, in tiles of 8 rows instead of 4; 0: panels are unpacked tile by tile.
    const PANELS: usize;
    /// Vectors of sums that an inner loop can keep in registers in addition to the operands.
    const SUMS: usize;

    /// Runs a kernel in a function of its own, so that what several callers use is compiled once.
    fn call<K: Kernel>(kernel: K) -> K::Output;
    /// Asks for the cache line at an address, which need not be valid. A hint: nothing depends on it.
    #[inline(always)]
    fn prefetch(_: *const u8) {}
    /// All lanes equal.
    fn splat(x: f32) -> Self;
    /// Loads 16 floats.
    fn load(from: &[f32; LANES]) -> Self;
    /// Stores 16 floats.
    fn store(self, to: &mut [f32; LANES]);
    /// Loads 16 half-precision floats, exactly.
    fn load_f16(from: &[f16; LANES]) -> Self;
    /// Rounds to half precision (ties to even) and stores; lanes are in its range.
    #[inline(always)]
    fn store_f16(self, to: &mut [f16; LANES]) {
        let mut floats = [0.0; LANES];
        self.store(&mut floats);
        for i in 0..LANES {
            to[i] = f16::from_f32(floats[i]);
        }
    }
    /// Loads 16 bfloats, exactly.
    fn load_bf16(from: &[u16; LANES]) -> Self;
    /// Loads 16 signed bytes, exactly.
    fn load_i8(from: &[i8; LANES]) -> Self;
    /// Sixteen bytes of two 4-bit codes each: the low halves, the high halves.
    fn load_u4(from: &[u8; LANES]) -> (Self, Self);
    /// Sixteen bytes of two 4-bit codes each, as entries of a table: the low halves, the high halves.
    fn load_levels(from: &[u8; LANES], table: &[i8; 16]) -> (Self, Self);
    /// Sixteen unsigned bytes.
    fn load_u8(from: &[u8; LANES]) -> Self;
    /// Sixteen scales ([`Scale`]).
    fn load_scales(from: &[Scale; LANES]) -> Self;
    /// Whole numbers as floats.
    fn from_words(words: Self::Words) -> Self;
    /// Rounds to whole numbers, ties to even, and stores them as bytes. Lanes are within -127..=127.
    fn store_i8(self, to: &mut [i8; LANES]);
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
    /// The absolute value of each lane.
    fn abs(self) -> Self;
    /// `by` where a lane is above `threshold`, else 0 (no lane is NaN).
    fn above(self, threshold: f32, by: f32) -> Self;
    /// Lanes `from..to` as they are, `other` in the rest. `from <= to <= 16`.
    fn keep(self, from: usize, to: usize, other: f32) -> Self;
    /// 2 to the power of each lane, which holds a whole number in -126..=127.
    fn pow2(self) -> Self;
    /// The sum of all lanes by the contract's tree: halves added, 16 → 8 → 4 → 2 → 1.
    fn sum(self) -> f32;
    /// The largest lane (none is NaN).
    fn largest(self) -> f32;

    /// The nearest whole number, ties to even, of lanes within ±2^22.
    #[inline(always)]
    fn round(self) -> Self {
        // Adding and subtracting 1.5 * 2^23 leaves no room for a fraction.
        let magic = Self::splat(12_582_912.0);
        self.add(magic).sub(magic)
    }

    /// `e^x` with a relative error under 2e-7; -87 and below give about 1e-38, 88 and above about 1e38.
    ///
    /// Cody–Waite reduction with a degree-6 Taylor polynomial on [-ln2/2, ln2/2].
    #[inline(always)]
    fn exp(self) -> Self {
        let x = self.max(Self::splat(-87.0)).min(Self::splat(88.0));
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

/// A vector of 16 words of 32 bits, each also seen as 4 bytes.
pub(crate) trait Words: Copy {
    /// The largest number that sums of products hold ([`Words::products`]): those of `n` pairs are exact
    /// while `n * 2 * 127 * code` is no more.
    const LARGEST_SUM: i32 = i32::MAX;
    /// True if [`Words::dot_wide`] takes codes as 128 less than they are.
    const LESS_128: bool;

    /// All words equal.
    fn splat(x: i32) -> Self;
    /// Loads 64 bytes: word i is bytes 4i to 4i + 3, little-endian.
    fn load(from: &[u8; 64]) -> Self;
    /// Bitwise and.
    fn and(self, other: Self) -> Self;
    /// Bitwise or.
    fn or(self, other: Self) -> Self;
    /// Each word shifted right by `n` bits, zeros coming in.
    fn shr(self, n: u32) -> Self;
    /// Each word shifted left by `n` bits.
    fn shl(self, n: u32) -> Self;
    /// `self + Σ_b codes[b] * x[b]` over the 4 bytes of each word; codes are 0 to 127, x (the same for all
    /// words) is -127 to 127.
    fn dot(self, codes: Self, x: i32) -> Self;
    /// Each byte, 0 to 15, replaced by that entry of a table.
    fn look_up(self, table: &[u8; 16]) -> Self;
    /// [`Words::dot`] for codes of 0 to 255, or -128 to 127: see [`Words::LESS_128`].
    fn dot_wide(self, codes: Self, x: i32) -> Self;
    /// Sums of products that `self` is, or will be, added to: words, or pairs of 16 bits.
    #[inline(always)]
    fn begin(self) -> Self {
        self
    }
    /// `sums + Σ_b codes[b] * x[b]`, as in [`Words::dot`].
    #[inline(always)]
    fn products(sums: Self, codes: Self, x: i32) -> Self {
        sums.dot(codes, x)
    }
    /// `self` and the products that were added up since [`Words::begin`].
    #[inline(always)]
    fn end(self, sums: Self) -> Self {
        sums
    }
    /// True of a set that multiplies pairs of rows with pairs of quads: a step that many rows meet is then
    /// arranged for that by [`Words::pair`], once.
    const PAIRS: bool = false;
    /// Arranges the quads of a step for [`Words::pair_products`]; `wide`: their codes are as in
    /// [`Words::dot_wide`].
    #[inline(always)]
    fn pair(_quads: &mut [Self; 8], _wide: bool) {}
    /// Arranges the sums of some rows for [`Words::pair_products`].
    #[inline(always)]
    fn begin_pairs<const R: usize>(_sums: &mut [Self; R]) {}
    /// Adds the products of two quads, as [`Words::pair`] arranged them, with 8 codes of each row.
    #[inline(always)]
    fn pair_products<const R: usize>(_sums: &mut [Self; R], _codes: [Self; 2], _x: [i64; R]) {}
    /// Takes [`Words::begin_pairs`] back.
    #[inline(always)]
    fn end_pairs<const R: usize>(_sums: &mut [Self; R]) {}
    /// True of a set whose machines may have [matrix tiles](crate::amx).
    const TILES: bool = false;
    /// Each byte less `by`: codes as matrix tiles take them. For sets with [`Words::TILES`].
    #[inline(always)]
    fn lowered(self, _by: i32) -> Self {
        self
    }
    /// Tells the compiler that these words are there now, all of them. Without that it adds up one row after
    /// another, and so reads each quad of weights once a row.
    #[inline(always)]
    fn in_order<const R: usize, const P: usize>(_: &mut [[Self; R]; P]) {}
}

/// Sixteen floats of a slice from `at` on, padded with zeros past its end.
#[inline(always)]
pub(crate) fn padded<T: Copy + Default>(from: &[T], at: usize) -> [T; LANES] {
    let mut out = [T::default(); LANES];
    let n = from.len().saturating_sub(at).min(LANES);
    out[..n].copy_from_slice(&from[at..at + n]);
    out
}

/// Vector `i` of some bytes.
#[inline(always)]
pub(crate) fn vector<L: Lanes>(bytes: &[u8], i: usize) -> L::Words {
    L::Words::load(bytes[i * 64..(i + 1) * 64].try_into().expect("64 bytes"))
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
    use crate::Isa;
    use crate::quant::LEVELS;

    #[test]
    fn no_closure_with_vectors_is_handed_over() {
        let of_vectors = |body: &str| ["::<L>(", "L::", "_mm"].iter().any(|op| body.contains(op));
        let handed_over = |line: &&str| {
            let closure = line.split_once("(|").and_then(|(_, rest)| rest.split_once('|'));
            closure.is_some_and(|(_, body)| of_vectors(body))
        };
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let files = ["", "attention", "tiles"].map(|sub| std::fs::read_dir(folder.join(sub)).unwrap());
        let files: Vec<_> = files.into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
        // NEON belongs to its architecture: no function lacks it.
        for file in files.iter().filter(|file| file.is_file() && !file.ends_with("neon.rs")) {
            let text = std::fs::read_to_string(file).unwrap();
            let kernels = text.split("#[cfg(test)]").next().unwrap();
            assert_eq!(kernels.lines().find(handed_over), None, "{}", file.display());
        }
        assert!(handed_over(&"let coded = self.coded.get_or_insert_with(|| CodedQueries::new::<L>(q));"));
        assert!(files.len() > 15);
    }

    /// The safety condition of [`Lanes`]: only a set's own file can name its vectors.
    #[test]
    fn only_the_unsafe_functions_of_a_set_lead_to_its_vectors() {
        for (set, text) in [
            ("avx2", include_str!("avx2.rs")),
            ("avx512", include_str!("avx512.rs")),
            ("neon", include_str!("neon.rs")),
        ] {
            let public: Vec<&str> =
                text.lines().filter(|line| line.trim_start().starts_with("pub")).collect();
            let is_run = |line: &&str| line.starts_with("pub(crate) unsafe fn run");
            assert!(!public.is_empty() && public.iter().all(is_run), "{set}: {public:?}");
        }
    }

    /// Products of codes less 128, whether the set takes that off itself or not.
    #[inline(always)]
    fn wide<L: Lanes>(codes: L::Words, x: i32) -> L::Words {
        let mut sum = 0;
        for byte in x.to_le_bytes() {
            sum += i32::from(byte.cast_signed());
        }
        L::Words::splat(if L::Words::LESS_128 { 0 } else { -128 * sum }).dot_wide(codes, x)
    }

    /// As many products as sums of 16 bits hold.
    #[inline(always)]
    fn summed<L: Lanes>(codes: L::Words, x: i32) -> L::Words {
        let start = L::Words::splat(-77);
        let (mut sums, codes) = (start.begin(), codes.and(L::Words::splat(0x0f0f_0f0f)));
        for _ in 0..8 {
            sums = L::Words::products(sums, codes, x);
        }
        start.end(sums)
    }

    struct Everything([f32; LANES]);
    impl Kernel for Everything {
        type Output = Vec<u32>;
        #[inline(always)]
        fn run<L: Lanes>(self) -> Vec<u32> {
            let x = L::load(&self.0);
            let half = self.0.map(f16::from_f32);
            let mut halves = [f16::ZERO; LANES];
            x.mul(L::splat(0.37)).store_f16(&mut halves);
            let mut rounded = [0i8; LANES];
            x.mul(L::splat(6.0)).store_i8(&mut rounded);
            let bytes: [u8; 64] =
                std::array::from_fn(|i| (self.0[i % LANES].to_bits() >> (i / LANES * 5)) as u8);
            let sixteen: &[u8; LANES] = bytes.first_chunk().expect("64 bytes");
            let words = L::Words::load(&bytes);
            let low = words.and(L::Words::splat(0x7f7f_7f7f));
            let sevens = low.shr(3).or(words.and(L::Words::splat(0x1010_1010)));
            let small = sevens.and(L::Words::splat(0x7f7f_7f7f));
            let x4 = i32::from_le_bytes([127, 129, 3, 255].map(|b: u8| b));
            let results = [
                x.exp(),
                x.round(),
                L::load_f16(&half).mul(x),
                L::load_f16(&halves),
                L::load_bf16(&std::array::from_fn(|i| (self.0[i].to_bits() >> 16) as u16)),
                L::load_i8(&rounded).add(x),
                L::load_u4(sixteen).0.fma(x, L::splat(0.5)),
                L::load_u4(sixteen).1,
                L::load_levels(sixteen, &LEVELS).0.fma(x, L::splat(0.5)),
                L::load_levels(sixteen, &LEVELS).1,
                L::load_scales(&sixteen.map(Scale)).add(x),
                x.above(0.25, 3.0),
                L::load_u8(sixteen).sub(x),
                x.max(L::splat(0.1)).min(L::splat(0.9)).div(L::splat(3.0)).abs(),
                x.keep(3, 11, -7.0),
                L::splat(x.sum()),
                L::splat(x.largest()),
                L::from_words(L::Words::splat(-5).dot(small, x4)),
                L::from_words(wide::<L>(words, x4)),
                L::from_words(summed::<L>(words, x4)),
                L::from_words(words.and(L::Words::splat(255)).shl(2)),
                L::from_words(
                    L::Words::splat(0).dot(
                        words
                            .and(L::Words::splat(0x0f0f_0f0f))
                            .look_up(&[9, 3, 0, 77, 5, 1, 2, 8, 31, 4, 6, 7, 100, 21, 90, 11]),
                        x4,
                    ),
                ),
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
            let expected = Isa::SCALAR.run(Everything(x));
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
            let y = Isa::SCALAR.run(Exp(x));
            for (x, y) in x.into_iter().zip(y) {
                let exact = f64::from(x).exp();
                assert!((f64::from(y) - exact).abs() <= 3e-7 * exact, "exp({x}) = {y}, exactly {exact}");
            }
        }
    }
}
