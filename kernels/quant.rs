//! The 4- and 8-bit group formats of cached keys and values, and Q8_0 for weights.
//!
//! A group is 64 neighbours along the head dimension (the last one may be shorter). Its values are
//! `scale * level`: in 4 bits a code names one of 16 [`LEVELS`], in 8 bits the level is `code - 128`. Scales
//! are floats of 8 bits, see [`Scale`]; `kernels/seal.rs` fits them. Keys are coded without their block's
//! mean, and the first [`EXACT`] keys and values of a session are also kept in f16.
//!
//! Coded rows are `scale * level`: in 4 bits one of 16 levels, the quantizer of least error for a Gaussian,
//! which rotated rows nearly are; in 8 bits a byte. Scales are floats of 8 bits, one for 64 numbers. Keys are
//! coded around their block's mean, because their common part costs range and does not affect a softmax; a
//! session's first four keys and values, which every later token attends to, are also kept in f16. That is
//! 4.19 bits a number for keys, 4.13 for values.

use half::f16;

/// 32 weights of GGUF type Q8_0: `d * qs[i]`.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockQ8_0 {
    /// Scale, as IEEE half bits.
    pub d: u16,
    /// Codes.
    pub qs: [i8; 32],
}
const _: () = assert!(size_of::<BlockQ8_0>() == 34);

/// Values of a group.
pub const GROUP: usize = 64;

/// First keys and values of a session that are kept as they were: every later token attends to them much, and
/// these keys lie far from all others (Xiao et al. 2023, "attention sinks").
pub const EXACT: usize = 4;

/// Levels of 4-bit codes, for rows that are nearly Gaussian once they are rotated: the quantizer of least
/// squared error of Max (1960), its outermost level at 63.
pub const LEVELS: [i8; 16] = [-63, -48, -37, -29, -22, -15, -9, -3, 3, 9, 15, 22, 29, 37, 48, 63];

/// [`LEVELS`] made positive, as integer products want them: less [`LEVELS_ZERO`] they are levels.
pub const LEVELS_RAISED: [u8; 16] = {
    let mut raised = [0; 16];
    let mut i = 0;
    while i < 16 {
        raised[i] = (LEVELS[i] as i16 + LEVELS_ZERO as i16) as u8;
        i += 1;
    }
    raised
};

/// Index of 0 in [`LEVELS_RAISED`].
pub const LEVELS_ZERO: i32 = 64;

/// The 8-bit code of 0.
pub const BYTES_ZERO: i32 = 128;

/// Outermost level in standard deviations of a Gaussian.
pub const OUTERMOST: f32 = 2.733;

/// A float of 8 bits: 5 of exponent, 3 of mantissa, no sign, no zero; `2^(e - 20) (1 + m / 8)`, so from 1e-6
/// to 3,840.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct Scale(pub u8);

impl Scale {
    /// Number to add to a scale's bits, shifted left by [`Scale::SHIFT`], to get those of the f32.
    pub const BASE: u32 = (127 - 20) << 23;
    /// Position of a scale's lowest bit in an f32.
    pub const SHIFT: u32 = 20;

    /// The nearest scale (in steps of its exponent); `x` is not negative.
    pub fn nearest(x: f32) -> Self {
        Self::of_bits(x.to_bits().saturating_add(1 << (Self::SHIFT - 1)))
    }

    /// The smallest scale that is not below `x`, or the largest of all.
    pub fn at_least(x: f32) -> Self {
        Self::of_bits(x.to_bits().saturating_add((1 << Self::SHIFT) - 1))
    }

    /// 1.
    pub const ONE: Self = Self(20 << 3);

    fn of_bits(bits: u32) -> Self {
        Self((bits.saturating_sub(Self::BASE) >> Self::SHIFT).min(255) as u8)
    }

    /// The number.
    pub fn to_f32(self) -> f32 {
        f32::from_bits((u32::from(self.0) << Self::SHIFT) + Self::BASE)
    }
}

/// Weights as GGUF Q8_0: blocks of 32 with scale `max|x| / 127`. `x.len()` is a multiple of 32.
pub fn q8_0(x: &[f32]) -> Vec<BlockQ8_0> {
    x.chunks_exact(32)
        .map(|x| {
            let d = f16::from_f32(x.iter().fold(0.0f32, |m, v| m.max(v.abs())) / 127.0);
            let inverse = if d.to_f32() == 0.0 { 0.0 } else { 1.0 / d.to_f32() };
            let qs = std::array::from_fn(|i| (x[i] * inverse).round().clamp(-127.0, 127.0) as i8);
            BlockQ8_0 { d: d.to_bits(), qs }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_rounded_as_they_say() {
        let all: Vec<f32> = (0..=255).map(|code| Scale(code).to_f32()).collect();
        assert!(all.is_sorted() && all[0] < 1e-6 && all[255] == 3840.0);
        assert!((0..=255).all(|code| Scale::nearest(Scale(code).to_f32()) == Scale(code)));
        for pair in all.windows(2) {
            let between = pair[0] + 0.6 * (pair[1] - pair[0]);
            assert_eq!(Scale::nearest(between).to_f32(), pair[1]);
            assert_eq!(Scale::at_least(pair[0] + 0.1 * (pair[1] - pair[0])).to_f32(), pair[1]);
            assert_eq!(Scale::at_least(pair[1]).to_f32(), pair[1]);
        }
        assert_eq!(Scale::ONE.to_f32(), 1.0);
        assert_eq!((Scale::nearest(0.0), Scale::at_least(f32::MAX)), (Scale(0), Scale(255)));
    }

    #[test]
    fn levels_are_those_of_least_squared_error() {
        // Each level is the mean of what falls to it, of a Gaussian whose outermost level is at 63.
        let unit = f64::from(OUTERMOST) / 63.0;
        let (mut sums, mut weights) = ([0.0; 16], [0.0; 16]);
        for i in -60_000..60_000 {
            let x = (f64::from(i) + 0.5) / 10_000.0;
            let off = |level: &i8| (x - f64::from(*level) * unit).abs();
            let nearest =
                (0..16).min_by(|a, b| off(&LEVELS[*a]).total_cmp(&off(&LEVELS[*b]))).expect("16 levels");
            let weight = (-x * x / 2.0).exp();
            (sums[nearest], weights[nearest]) = (sums[nearest] + x * weight, weights[nearest] + weight);
        }
        for (i, level) in LEVELS.iter().enumerate() {
            let mean = sums[i] / weights[i] / unit;
            assert!((mean - f64::from(*level)).abs() < 1.0, "level {level}: {mean}");
        }
    }
}
