//! Quantizing rows of keys and values: groups of up to 64 neighbours, `scale * level`.

use super::{Isa, Kernel, LANES, Lanes, lanes, lanes_mut};
use crate::quant::{BYTES_ZERO, GROUP, LEVELS, OUTERMOST, Scale};
use half::f16;

/// Rows of a head in codes.
#[derive(Debug, PartialEq)]
pub struct CodedRows {
    /// `[n_rows, dim]`, a byte each.
    pub codes: Vec<u8>,
    /// `[n_rows, n_groups]`.
    pub scales: Vec<Scale>,
}

/// Quantizes `x: [n_rows, dim]` to codes of `bits` bits (4 or 8); `dim` is a multiple of 16.
pub fn quantize(isa: Isa, x: &[f32], dim: usize, bits: u32) -> CodedRows {
    assert!(x.len() % dim == 0 && dim % LANES == 0, "rows are whole vectors");
    let n_groups = x.len() / dim * dim.div_ceil(GROUP);
    let (mut codes, mut scales) = (vec![0; x.len()], vec![Scale(0); n_groups]);
    isa.run(Quantize { x, dim, bits, codes: &mut codes, scales: &mut scales });
    CodedRows { codes, scales }
}

/// Quantizes `x: [n_rows, dim]` to codes of 4 bits whose errors make up for each other by `feedback` (see
/// [`super::shaping`]); rows come 64 at a time.
pub fn quantize_shaped(isa: Isa, x: &[f32], dim: usize, feedback: &[f32]) -> CodedRows {
    assert!(
        x.len() % (VECTORS_AT_ONCE * LANES * dim) == 0 && feedback.len() == dim * dim,
        "rows come 64 at a time"
    );
    let n_groups = x.len() / dim * dim.div_ceil(GROUP);
    let (mut codes, mut scales) = (vec![0; x.len()], vec![Scale(0); n_groups]);
    isa.run(QuantizeShaped { x, dim, feedback, codes: &mut codes, scales: &mut scales });
    CodedRows { codes, scales }
}

/// Takes the mean of the rows from `first` on off all rows of `x: [n_rows, dim]`, rounded to half precision,
/// and returns it.
pub fn center(isa: Isa, x: &mut [f32], dim: usize, first: usize) -> Vec<f16> {
    assert!(x.len() > first * dim && dim % LANES == 0, "there are rows, and they are whole vectors");
    isa.run(Center { x, dim, first })
}

struct Center<'a> {
    x: &'a mut [f32],
    dim: usize,
    first: usize,
}

impl Kernel for Center<'_> {
    type Output = Vec<f16>;
    #[inline(always)]
    fn run<L: Lanes>(self) -> Vec<f16> {
        let Self { x, dim, first } = self;
        let share = L::splat(1.0 / (x.len() / dim - first) as f32);
        let mut means = vec![f16::ZERO; dim];
        for (column, means) in (0..dim).step_by(LANES).zip(means.chunks_exact_mut(LANES)) {
            let mut sum = L::splat(0.0);
            for row in x.chunks_exact(dim).skip(first) {
                sum = sum.add(L::load(lanes(&row[column..column + LANES])));
            }
            let mut mean = [0.0; LANES];
            sum.mul(share).store(&mut mean);
            means.iter_mut().zip(mean).for_each(|(half, mean)| *half = f16::from_f32(mean));
            let mean = L::load_f16(lanes(means));
            for row in x.chunks_exact_mut(dim) {
                let piece = lanes_mut(&mut row[column..column + LANES]);
                L::load(piece).sub(mean).store(piece);
            }
        }
        means
    }
}

struct Quantize<'a> {
    x: &'a [f32],
    dim: usize,
    bits: u32,
    codes: &'a mut [u8],
    scales: &'a mut [Scale],
}

impl Kernel for Quantize<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { x, dim, bits, codes, scales } = self;
        let rows = x.chunks_exact(dim).zip(codes.chunks_exact_mut(dim));
        let groups = rows.flat_map(|(x, codes)| x.chunks(GROUP).zip(codes.chunks_mut(GROUP)));
        for ((x, codes), scale) in groups.zip(scales) {
            *scale = if bits == 4 { fit_levels::<L>(x, codes) } else { fit_bytes::<L>(x, codes) };
        }
    }
}

/// 8 bits: the smallest scale that reaches the largest number.
#[inline(always)]
fn fit_bytes<L: Lanes>(x: &[f32], codes: &mut [u8]) -> Scale {
    let mut largest = L::splat(0.0);
    for x in x.chunks_exact(LANES) {
        largest = largest.max(L::load(lanes(x)).abs());
    }
    let scale = Scale::at_least(largest.largest() / 127.0);
    let inverse = L::splat(1.0 / scale.to_f32());
    for (x, codes) in x.chunks_exact(LANES).zip(codes.chunks_exact_mut(LANES)) {
        let mut levels = [0i8; LANES];
        let level = L::load(lanes(x)).mul(inverse).max(L::splat(-127.0)).min(L::splat(127.0));
        level.store_i8(&mut levels);
        codes.iter_mut().zip(levels).for_each(|(code, level)| *code = (i32::from(level) + BYTES_ZERO) as u8);
    }
    scale
}

/// 4 bits: the nearest levels.
#[inline(always)]
fn fit_levels<L: Lanes>(x: &[f32], codes: &mut [u8]) -> Scale {
    let scale = fit_scale::<L>(x);
    let inverse = L::splat(1.0 / scale.to_f32());
    for (x, codes) in x.chunks_exact(LANES).zip(codes.chunks_exact_mut(LANES)) {
        let bytes = store_codes(code_of(L::load(lanes(x)).mul(inverse)));
        codes.copy_from_slice(&bytes);
    }
    scale
}

#[inline(always)]
fn store_codes<L: Lanes>(codes: L) -> [u8; LANES] {
    let mut bytes = [0i8; LANES];
    codes.store_i8(&mut bytes);
    bytes.map(i8::cast_unsigned)
}

/// 4 bits: of the scales around a Gaussian's, that of the least squared error; further up for as long as the
/// error falls (a group may have one large number).
#[inline(always)]
fn fit_scale<L: Lanes>(x: &[f32]) -> Scale {
    let mut squares = L::splat(0.0);
    for x in x.chunks_exact(LANES) {
        let x = L::load(lanes(x));
        squares = x.fma(x, squares);
    }
    let deviation = (squares.sum() / x.len() as f32).sqrt();
    let Scale(middle) = Scale::nearest(deviation * (OUTERMOST / 63.0));
    let (mut best, mut least) = (Scale(middle), f32::INFINITY);
    for scale in middle.saturating_sub(AROUND)..=u8::MAX {
        let error = error::<L>(x, Scale(scale));
        if error < least {
            (best, least) = (Scale(scale), error);
        } else if scale > middle.saturating_add(AROUND) {
            break;
        }
    }
    best
}

/// Scales that are tried below and above a Gaussian's, at least: they reach from about 0.75 to 1.35 of it.
const AROUND: u8 = 3;

/// Vectors of rows that [`QuantizeShaped`] takes at once: as many sums as the processor needs to wait for
/// none.
const VECTORS_AT_ONCE: usize = 4;

struct QuantizeShaped<'a> {
    x: &'a [f32],
    dim: usize,
    feedback: &'a [f32],
    codes: &'a mut [u8],
    scales: &'a mut [Scale],
}

impl Kernel for QuantizeShaped<'_> {
    type Output = ();
    /// A lane is a row.
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { x, dim, feedback, codes, scales } = self;
        const ROWS: usize = VECTORS_AT_ONCE * LANES;
        let n_groups = dim.div_ceil(GROUP);
        // Of 64 rows: elements and their errors, [dim, 64], and scales, [n_groups, 64].
        let mut elements = vec![0.0; dim * ROWS];
        let mut errors = vec![0.0; dim * ROWS];
        let mut of_rows = vec![0.0; n_groups * ROWS];
        let pieces = codes.chunks_exact_mut(ROWS * dim).zip(scales.chunks_exact_mut(ROWS * n_groups));
        for (x, (codes, scales)) in x.chunks_exact(ROWS * dim).zip(pieces) {
            for (row, (x, scales)) in x.chunks_exact(dim).zip(scales.chunks_exact_mut(n_groups)).enumerate() {
                for (group, (x, scale)) in x.chunks(GROUP).zip(scales).enumerate() {
                    *scale = fit_scale::<L>(x);
                    of_rows[group * ROWS + row] = scale.to_f32();
                }
                x.iter().zip(elements[row..].iter_mut().step_by(ROWS)).for_each(|(x, element)| *element = *x);
            }
            for i in 0..dim {
                let element = &elements[i * ROWS..][..ROWS];
                let mut wanted = [L::splat(0.0); VECTORS_AT_ONCE];
                for (wanted, element) in wanted.iter_mut().zip(element.chunks_exact(LANES)) {
                    *wanted = L::load(lanes(element));
                }
                let (before, own) = errors.split_at_mut(i * ROWS);
                for (share, errors) in feedback[i * dim..].iter().zip(before.chunks_exact(ROWS)) {
                    let share = L::splat(-share);
                    for (wanted, error) in wanted.iter_mut().zip(errors.chunks_exact(LANES)) {
                        *wanted = L::load(lanes(error)).fma(share, *wanted);
                    }
                }
                for (v, wanted) in wanted.into_iter().enumerate() {
                    let scale = L::load(lanes(&of_rows[i / GROUP * ROWS + v * LANES..][..LANES]));
                    let wanted = wanted.div(scale);
                    let sign = wanted.above(0.0, 2.0).sub(L::splat(1.0));
                    let coded = level_of(wanted.abs()).mul(sign).mul(scale);
                    let error = coded.sub(L::load(lanes(&element[v * LANES..][..LANES])));
                    error.store(lanes_mut(&mut own[v * LANES..][..LANES]));
                    let column = codes[v * LANES * dim + i..].iter_mut().step_by(dim);
                    column.zip(store_codes(code_of(wanted))).for_each(|(code, byte)| *code = byte);
                }
            }
        }
    }
}

/// The squared error that a scale leaves.
#[inline(always)]
fn error<L: Lanes>(x: &[f32], scale: Scale) -> f32 {
    let (inverse, scale) = (L::splat(1.0 / scale.to_f32()), L::splat(scale.to_f32()));
    let mut error = L::splat(0.0);
    for x in x.chunks_exact(LANES) {
        let size = L::load(lanes(x)).abs();
        let off = size.sub(level_of(size.mul(inverse)).mul(scale));
        error = off.fma(off, error);
    }
    error.sum()
}

/// The level nearest to each lane; none is negative.
#[inline(always)]
fn level_of<L: Lanes>(size: L) -> L {
    let mut level = L::splat(f32::from(LEVELS[8]));
    for pair in LEVELS[8..].windows(2) {
        let (low, high) = (f32::from(pair[0]), f32::from(pair[1]));
        level = level.add(size.above(0.5 * (low + high), high - low));
    }
    level
}

/// The code of the level nearest to each lane.
#[inline(always)]
fn code_of<L: Lanes>(x: L) -> L {
    let size = x.abs();
    let mut code = L::splat(0.5);
    for pair in LEVELS[8..].windows(2) {
        let (low, high) = (f32::from(pair[0]), f32::from(pair[1]));
        code = code.add(size.above(0.5 * (low + high), 1.0));
    }
    code.fma(x.above(0.0, 2.0).sub(L::splat(1.0)), L::splat(7.5))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pointwise;
    use crate::shaping::Shaping;
    use proptest::prelude::*;

    fn roundtrip(x: &[f32], bits: u32) -> Vec<f32> {
        let rows = quantize(Isa::SCALAR, x, x.len(), bits);
        let value = |(i, code): (usize, &u8)| {
            let level =
                if bits == 4 { i32::from(LEVELS[usize::from(*code)]) } else { i32::from(*code) - BYTES_ZERO };
            rows.scales[i / GROUP].to_f32() * level as f32
        };
        rows.codes.iter().enumerate().map(value).collect()
    }

    fn mean_square(x: impl Iterator<Item = f32> + Clone) -> f32 {
        x.clone().map(|x| x * x).sum::<f32>() / x.count() as f32
    }

    proptest! {
        #[test]
        fn errors_are_small_and_all_sets_agree(
            x in proptest::collection::vec(-8.0f32..8.0, 80..=80), bits in prop_oneof![Just(4u32), Just(8)],
        ) {
            let y = roundtrip(&x, bits);
            for (x, y) in x.chunks(GROUP).zip(y.chunks(GROUP)) {
                let off = mean_square(x.iter().zip(y).map(|(x, y)| x - y)).sqrt();
                let size = mean_square(x.iter().copied()).sqrt();
                prop_assert!(off <= size * if bits == 4 { 0.2 } else { 0.012 }, "{off} of {size}");
            }
            for isa in Isa::available() {
                prop_assert_eq!(
                    quantize(isa, &x, 80, bits), quantize(Isa::SCALAR, &x, 80, bits), "{}", isa.name()
                );
            }
        }
    }

    #[test]
    fn a_gaussian_loses_what_the_best_quantizer_loses() {
        // Sums of twelve numbers in [0, 1) less six.
        let mut state = 1u32;
        let mut uniform = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32
        };
        let x: Vec<f32> = (0..64 * 512).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect();
        let lost: f32 = x
            .chunks(64)
            .map(|x| {
                let y = roundtrip(x, 4);
                x.iter().zip(y).map(|(x, y)| (x - y) * (x - y)).sum::<f32>()
            })
            .sum();
        // Max (1960) has 0.0095 of the variance at 16 levels; groups of 64 fit their own scale, and these
        // sums have short tails.
        let share = lost / mean_square(x.iter().copied()) / x.len() as f32;
        assert!((0.006..0.008).contains(&share), "{share}");
    }

    /// Rows that vary much in some elements, read by queries that are strong in others.
    #[test]
    fn shaped_codes_change_scores_less_and_all_sets_agree() {
        for dim in [64, 80] {
            let energies: Vec<f32> = (0..dim).map(|i| if i % 8 < 2 { 10.0 } else { 0.1 }).collect();
            let variances: Vec<f32> = (0..dim).map(|i| if i % 12 < 4 { 4.0 } else { 0.1 }).collect();
            let shaping = Shaping::new(Isa::SCALAR, &energies, &variances, dim);
            let noise = |i: usize| ((i * i % 9_973) as f32 * 0.61).sin() * 1.4;
            let plain: Vec<f32> = (0..128 * dim).map(|i| noise(i) * variances[i % dim].sqrt()).collect();
            // What a score loses: the error in the basis of queries, weighed by their energies.
            let lost = |coded: &CodedRows, given: &[f32], scale: &dyn Fn(&mut [f32])| -> f32 {
                let level = |i: usize| f32::from(LEVELS[usize::from(coded.codes[i])]);
                let n_groups = dim.div_ceil(GROUP);
                let of = |i: usize| coded.scales[i / dim * n_groups + i % dim / GROUP].to_f32();
                let mut errors: Vec<f32> = (0..given.len()).map(|i| of(i) * level(i) - given[i]).collect();
                pointwise::hadamard(Isa::SCALAR, &mut errors, &[dim]);
                scale(&mut errors);
                errors.iter().enumerate().map(|(i, e)| e * e * energies[i % dim]).sum()
            };
            let mut rotated = plain.clone();
            pointwise::hadamard(Isa::SCALAR, &mut rotated, &[dim]);
            let unshaped = lost(&quantize(Isa::SCALAR, &rotated, dim, 4), &rotated, &|_| {});
            let mut scaled = plain;
            shaping.scale_keys(&mut scaled);
            pointwise::hadamard(Isa::SCALAR, &mut scaled, &[dim]);
            let coded = quantize_shaped(Isa::SCALAR, &scaled, dim, shaping.feedback(0));
            // Queries are divided by what keys are multiplied by, so errors are too.
            let shaped = lost(&coded, &scaled, &|errors| shaping.scale_queries(errors, 1));
            assert!(shaped < 0.4 * unshaped, "{dim}: {shaped}, {unshaped}");
            let squares = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
            let expected = 128.0 * crate::shaping::noise(&squares(&energies), &squares(&variances));
            let ratio = f64::from(shaped) / expected;
            assert!((0.5..1.2).contains(&ratio), "{dim}: {ratio} of what was expected");
            for isa in Isa::available() {
                assert_eq!(quantize_shaped(isa, &scaled, dim, shaping.feedback(0)), coded, "{}", isa.name());
                assert_eq!(Shaping::new(isa, &energies, &variances, dim), shaping, "{}", isa.name());
            }
        }
    }

    #[test]
    fn extremes_are_coded() {
        assert_eq!(roundtrip(&[0.0; 64], 8), vec![0.0; 64]);
        assert!(roundtrip(&[0.0; 64], 4).iter().all(|x| x.abs() < 1e-5));
        for bits in [4, 8] {
            for size in [65504.0f32, 1e-4] {
                let x: Vec<f32> = (0..64).map(|i| if i == 9 { size } else { 0.01 * size }).collect();
                let y = roundtrip(&x, bits);
                assert!((y[9] / size - 1.0).abs() < 0.5, "{bits} bits, {size}: {}", y[9]);
            }
        }
    }

    #[test]
    fn what_is_left_has_no_mean() {
        let x: Vec<f32> = (0..40 * 32).map(|i| (i % 32) as f32 - 0.25 + ((i * 37) as f32).sin()).collect();
        for first in [0, 4] {
            let mut y = x.clone();
            let mean = center(Isa::SCALAR, &mut y, 32, first);
            for column in 0..32 {
                let left: f32 = y.chunks_exact(32).skip(first).map(|row| row[column]).sum();
                assert!(left.abs() < 0.5, "column {column}: {left}");
                assert_eq!(y[column] + mean[column].to_f32(), x[column]);
            }
            for isa in Isa::available() {
                let mut same = x.clone();
                assert_eq!(
                    (center(isa, &mut same, 32, first), same),
                    (mean.clone(), y.clone()),
                    "{}",
                    isa.name()
                );
            }
        }
    }
}
