//! Weights × activations: `y[r, o] = Σ_k x[r, k] · w[o, k]`.
//!
//! Panels are given to threads, one or two at a time; in each, all rows are walked over in
//! tiles.

use super::activations::Activations;
use super::amx::Tiles;
use super::panel::{Format, Packed, with_scheme};
use super::pointwise::Gate;
use super::tiles::{CodedProduct, FEW, SEVERAL, Tile, rows};
use super::{Isa, Kernel, LANES, Lanes, lanes, padded};
use crate::floats::Floats;
use crate::pointwise::Activation;
use crate::slab::Slabs;
use crate::threads::{SharedSlice, for_ranges};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Multiply-adds below which a product does not pay for a second thread.
const SERIAL_MACS: usize = 1 << 16;

/// The products with some matrices (biases added), `[n_rows, n_out]` each.
pub fn linear(isa: Isa, x: &Activations<'_>, weights: &[&Packed]) -> Vec<Floats> {
    let mut out: Vec<Floats> = weights.iter().map(|w| Floats::new(x.n_rows * w.n_out)).collect();
    let shared: Vec<SharedSlice<'_, f32>> = out.iter_mut().map(|out| SharedSlice::new(out)).collect();
    for_panels(x, weights, 1, |m, panels, sums| {
        weights[m].multiply(isa, x, &panels, sums);
        weights[m].each_row(&panels, sums, |at, sums| {
            // SAFETY: an output belongs to one panel, a panel to one task.
            let out = unsafe { shared[m].part(at..at + sums.len()) };
            out.copy_from_slice(sums);
        });
    });
    drop(shared);
    out
}

/// The product with a matrix (bias added) and `base`, `[n_rows, n_out]`, added up.
pub fn linear_onto(isa: Isa, x: &Activations<'_>, weights: &Packed, base: &[f32]) -> Floats {
    assert_eq!(base.len(), x.n_rows * weights.n_out, "what is added to is as wide as the product");
    let mut out = Floats::new(base.len());
    let shared = SharedSlice::new(&mut out);
    for_panels(x, &[weights], 1, |_, panels, sums| {
        weights.multiply(isa, x, &panels, sums);
        weights.each_row(&panels, sums, |at, sums| {
            // SAFETY: as in `linear`.
            let out = unsafe { shared.part(at..at + sums.len()) };
            out.iter_mut().zip(&base[at..]).zip(sums).for_each(|((y, base), sum)| *y = base + sum);
        });
    });
    out
}

/// A gated activation of two products (biases added): `[n_rows, n_out]`.
pub fn gated(isa: Isa, activation: Activation, x: &Activations<'_>, gate: &Packed, up: &Packed) -> Floats {
    assert_eq!(gate.n_out, up.n_out, "gate and up have equal widths");
    let mut out = Floats::new(x.n_rows * gate.n_out);
    let shared = SharedSlice::new(&mut out);
    for_panels(x, &[gate], 2, |_, panels, sums| {
        let (gates, ups) = sums.split_at_mut(sums.len() / 2);
        gate.multiply(isa, x, &panels, gates);
        up.multiply(isa, x, &panels, ups);
        isa.run(Gate(activation, gates, ups));
        gate.each_row(&panels, gates, |at, row| {
            // SAFETY: as in `linear`.
            let out = unsafe { shared.part(at..at + row.len()) };
            out.copy_from_slice(row);
        });
    });
    out
}

/// Tells whether a set makes a product of many rows sooner than another does, by the best of a few times each. It
/// takes less than a millisecond.
pub(crate) fn is_faster(set: Isa, than: Isa) -> bool {
    const K: usize = 1024;
    const ROWS: usize = 64;
    let format = Format::Q4_0;
    let weights = vec![0x5a; 2 * LANES * format.row_bytes(K)];
    let Ok(weights) = Packed::pack(&mut Slabs::default(), format, 2 * LANES, K, &weights) else {
        return false;
    };
    let rows = vec![0.5; ROWS * K];
    let x = Activations::new(than, &rows, K, &[&weights]);
    let mut best = [Duration::MAX; 2];
    for _ in 0..4 {
        for (isa, best) in [set, than].into_iter().zip(&mut best) {
            let began = Instant::now();
            std::hint::black_box(linear(isa, &x, &[&weights]));
            *best = began.elapsed().min(*best);
        }
    }
    best[0] < best[1]
}

/// Runs `task` on all panels of some matrices, one or two at a time: the matrix's number, its panels, and
/// places for `n` sums of all rows with each, `[n, n_panels, n_rows, 16]`.
fn for_panels(
    x: &Activations<'_>,
    weights: &[&Packed],
    n: usize,
    task: impl Fn(usize, Range<usize>, &mut [f32]) + Sync,
) {
    let step = if x.n_rows <= SEVERAL { 1 } else { 2 };
    let n_groups = |w: &Packed| w.n_panels().div_ceil(step);
    let macs = step * x.n_rows * x.k * LANES;
    let least = (SERIAL_MACS / macs.max(1)).max(1);
    for_ranges(weights.iter().map(|w| n_groups(w)).sum(), least, |groups| {
        let mut sums = vec![0.0; n * step * x.n_rows * LANES];
        for mut group in groups {
            let mut matrix = 0;
            while group >= n_groups(weights[matrix]) {
                group -= n_groups(weights[matrix]);
                matrix += 1;
            }
            let panels = group * step..weights[matrix].n_panels().min((group + 1) * step);
            let n_sums = n * panels.len() * x.n_rows * LANES;
            task(matrix, panels, &mut sums[..n_sums]);
        }
    });
}

impl Packed {
    /// All rows of `x` against some panels, biases added, into `out: [n_panels, n_rows, 16]`.
    fn multiply(&self, isa: Isa, x: &Activations<'_>, panels: &Range<usize>, out: &mut [f32]) {
        let (first, last) = (self.panel(panels.start), self.panel(panels.end - 1));
        let (format, n_panels, tiles) = (self.format, panels.len(), isa.tiles());
        isa.run(Product { x, format, panels: [first, last], n_panels, tiles, out });
        let Some(bias) = &self.bias else { return };
        for (out, p) in out.chunks_exact_mut(x.n_rows * LANES).zip(panels.clone()) {
            let bias = padded(bias, p * LANES);
            out.chunks_exact_mut(LANES).for_each(|row| row.iter_mut().zip(bias).for_each(|(y, b)| *y += b));
        }
    }

    /// Hands over each row of sums with some panels, `[n_panels, n_rows, 16]`, and its place in
    /// `[n_rows, n_out]`.
    #[inline(always)]
    fn each_row(&self, panels: &Range<usize>, sums: &[f32], put: impl Fn(usize, &[f32])) {
        let n_rows = sums.len() / LANES / panels.len();
        for (sums, p) in sums.chunks_exact(n_rows * LANES).zip(panels.clone()) {
            let n = self.n_out - p * LANES;
            for (r, sums) in sums.chunks_exact(LANES).enumerate() {
                let at = r * self.n_out + p * LANES;
                // Of known length, they are copied by a few instructions.
                if n >= LANES { put(at, lanes::<f32>(sums)) } else { put(at, &sums[..n]) }
            }
        }
    }
}

/// All rows of `x` against one panel or two, into `out: [n_panels, n_rows, 16]`.
struct Product<'a> {
    x: &'a Activations<'a>,
    format: Format,
    panels: [&'a [u8]; 2],
    n_panels: usize,
    tiles: Option<Tiles>,
    out: &'a mut [f32],
}

impl Kernel for Product<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { x, format, panels, n_panels, tiles, out } = self;
        if L::PANELS == 2 && x.n_rows > SEVERAL {
            with_scheme!(format, S => {
                let product = CodedProduct::<S, 2>::new(x, panels, format);
                if n_panels == 2 {
                    return product.many_rows::<L>(tiles, out);
                }
                // A last panel alone is taken twice.
                let mut twice = vec![0.0; 2 * out.len()];
                product.many_rows::<L>(tiles, &mut twice);
                return out.copy_from_slice(&twice[..out.len()]);
            }, _ => ());
        }
        let size = out.len() / n_panels;
        for (panel, out) in panels.into_iter().zip(out.chunks_exact_mut(size)) {
            with_scheme!(format, S => {
                let product = CodedProduct::<S, 1>::new(x, [panel], format);
                if L::PANELS == 1 && x.n_rows > SEVERAL { product.many_rows::<L>(None, out) } else { product.few_rows::<L>(out) }
            }, _ => match format {
                Format::F16 => rows::<L, 1, FEW>(out, &mut F16 { x, panel: bytemuck::cast_slice(panel) }),
                Format::Bf16 => rows::<L, 1, FEW>(out, &mut Bf16 { x, panel: bytemuck::cast_slice(panel) }),
                _ => rows::<L, 1, FEW>(out, &mut F32 { x, panel: bytemuck::cast_slice(panel) }),
            });
        }
    }
}

/// Float weights `[k, 16]`: one k after another.
macro_rules! float_tile {
    ($name:ident, $element:ty, $load:ident) => {
        struct $name<'a> {
            x: &'a Activations<'a>,
            panel: &'a [$element],
        }

        impl<L: Lanes> Tile<L, 1> for $name<'_> {
            #[inline(always)]
            #[allow(clippy::needless_range_loop)] // r indexes two things
            fn tile<const R: usize>(&mut self, first: usize, _: [[L; R]; 1]) -> [[L; R]; 1] {
                let (k, floats) = (self.x.k, self.x.floats());
                let mut rows: [&[f32]; R] = [&[]; R];
                for r in 0..R {
                    rows[r] = &floats[(first + r) * k..][..k];
                }
                let mut out = [L::splat(0.0); R];
                for (i, weights) in self.panel.chunks_exact(LANES).take(k).enumerate() {
                    let weights = L::$load(lanes(weights));
                    for r in 0..R {
                        out[r] = weights.fma(L::splat(rows[r][i]), out[r]);
                    }
                }
                [out]
            }
        }
    };
}
float_tile!(F32, f32, load);
float_tile!(F16, half::f16, load_f16);
float_tile!(Bf16, u16, load_bf16);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::STEP;
    use candle_core::Device;
    use candle_core::quantized::{GgmlDType, QStorage, QTensor};
    use half::{bf16, f16};
    use std::borrow::Cow;

    fn noise(n: usize, seed: u32) -> Vec<f32> {
        (0..n as u32)
            .map(|i| {
                let h = (i ^ seed.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
                (h ^ (h >> 15)).wrapping_mul(0x2c1b_3c6d) as f32 / u32::MAX as f32 - 0.5
            })
            .collect()
    }

    /// Rows of a format as a file would have them, and their values as candle reads them.
    fn weights(format: Format, n_out: usize, k: usize) -> (Vec<u8>, Vec<f32>) {
        let x = noise(n_out * k, 2);
        let dtype = match format {
            Format::F32 => return (bytemuck::cast_slice(&x).to_vec(), x),
            Format::F16 => {
                let x: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
                return (bytemuck::cast_slice(&x).to_vec(), x.iter().map(|x| x.to_f32()).collect());
            }
            Format::Bf16 => {
                let x: Vec<bf16> = x.iter().map(|x| bf16::from_f32(*x)).collect();
                return (bytemuck::cast_slice(&x).to_vec(), x.iter().map(|x| x.to_f32()).collect());
            }
            Format::Q4_0 => GgmlDType::Q4_0,
            Format::Q4_1 => GgmlDType::Q4_1,
            Format::Q5_0 => GgmlDType::Q5_0,
            Format::Q5_1 => GgmlDType::Q5_1,
            Format::Q8_0 => GgmlDType::Q8_0,
            Format::Q2K => GgmlDType::Q2K,
            Format::Q3K => GgmlDType::Q3K,
            Format::Q4K => GgmlDType::Q4K,
            Format::Q5K => GgmlDType::Q5K,
            Format::Q6K => GgmlDType::Q6K,
            Format::Iq4Nl => return iq4(format, n_out * k),
            Format::Iq4Xs => return iq4(format, n_out * k),
            Format::Mxfp4 => return mxfp4(n_out * k),
        };
        // Bytes at random try every bit of a block; halves are kept small.
        let mut bytes: Vec<u8> =
            noise(n_out * format.row_bytes(k), 3).iter().map(|x| (x * 256.0) as i8 as u8).collect();
        let scales: &[usize] = match format {
            Format::Q4_0 | Format::Q5_0 | Format::Q8_0 => &[1],
            Format::Q2K => &[81, 83],
            Format::Q3K => &[109],
            Format::Q6K => &[209],
            _ => &[1, 3],
        };
        for block in bytes.chunks_exact_mut(format.row_bytes(format.block())) {
            scales.iter().for_each(|high| block[*high] = 0x10 | block[*high] & 0x8f);
        }
        let storage = QStorage::from_data(Cow::Borrowed(&bytes), &Device::Cpu, dtype).expect("blocks");
        let tensor =
            QTensor::new(storage, (n_out, k)).and_then(|t| t.dequantize(&Device::Cpu)).expect("numbers");
        let floats = tensor.flatten_all().and_then(|t| t.to_vec1()).expect("numbers");
        (bytes, floats)
    }

    /// Random blocks and their values, by the microscaling standard.
    fn mxfp4(n: usize) -> (Vec<u8>, Vec<f32>) {
        let e2m1 = |code: u8| [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
        let value = |code: u8| if code & 8 == 0 { e2m1(code) } else { -e2m1(code) };
        let mut bytes: Vec<u8> = noise(n / 32 * 17, 3).iter().map(|x| (x * 256.0) as i8 as u8).collect();
        let mut floats = Vec::new();
        for block in bytes.chunks_exact_mut(17) {
            block[0] = 120 + block[0] % 8;
            let scale = f32::from(block[0]) - 127.0;
            let codes = block[1..].iter().map(|b| b & 15).chain(block[1..].iter().map(|b| b >> 4));
            floats.extend(codes.map(|code| value(code) * scale.exp2()));
        }
        (bytes, floats)
    }

    /// Blocks at random and what they stand for.
    fn iq4(format: Format, n: usize) -> (Vec<u8>, Vec<f32>) {
        let mut bytes: Vec<u8> =
            noise(format.row_bytes(n), 3).iter().map(|x| (x * 256.0) as i8 as u8).collect();
        for block in bytes.chunks_exact_mut(format.row_bytes(format.block())) {
            block[1] = 0x10 | block[1] & 0x8f;
        }
        let floats = read_iq4(format, &bytes);
        (bytes, floats)
    }

    /// Numbers that blocks of IQ4_NL or IQ4_XS stand for, by ggml's `dequantize_row_iq4_nl` and
    /// `dequantize_row_iq4_xs`.
    fn read_iq4(format: Format, bytes: &[u8]) -> Vec<f32> {
        let table =
            [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113].map(|x| x as f32);
        let mut floats = Vec::new();
        for block in bytes.chunks_exact(format.row_bytes(format.block())) {
            let d = f16::from_le_bytes([block[0], block[1]]).to_f32();
            let (scales, codes) = if format == Format::Iq4Nl {
                (vec![1.0], &block[2..])
            } else {
                let high = u16::from_le_bytes([block[2], block[3]]);
                let scale =
                    |i: usize| block[4 + i / 2] >> (4 * (i % 2)) & 15 | ((high >> (2 * i) & 3) as u8) << 4;
                ((0..8).map(|i| f32::from(scale(i)) - 32.0).collect(), &block[8..])
            };
            for (scale, codes) in scales.iter().zip(codes.chunks_exact(16)) {
                let codes = codes.iter().map(|b| b & 15).chain(codes.iter().map(|b| b >> 4));
                floats.extend(codes.map(|code| d * scale * table[usize::from(code)]));
            }
        }
        floats
    }

    const FORMATS: [Format; 16] = [
        Format::F32,
        Format::F16,
        Format::Bf16,
        Format::Q4_0,
        Format::Q4_1,
        Format::Q5_0,
        Format::Q5_1,
        Format::Q8_0,
        Format::Q2K,
        Format::Q3K,
        Format::Q4K,
        Format::Q5K,
        Format::Q6K,
        Format::Iq4Nl,
        Format::Iq4Xs,
        Format::Mxfp4,
    ];

    /// Weights are read from a file as candle, or the format's definition, reads them.
    #[test]
    fn numbers_are_those_of_the_format() {
        for format in FORMATS.into_iter().filter(|format| format.coded()) {
            let (bytes, exact) = weights(format, 3, 512);
            let read = format.numbers(&bytes);
            assert_eq!(read.len(), exact.len());
            let same = |(a, b): (&f32, &f32)| a == b;
            assert!(read.iter().zip(&exact).all(same), "{format:?}");
        }
    }

    /// Right against f64, equal on all instruction sets, and independent of the batch.
    #[test]
    fn every_format_is_right_and_row_invariant() {
        const ROWS: usize = 37;
        for format in FORMATS {
            for (k, n_out) in [(format.block().max(32), 5), (512, 67), (768, 32)] {
                let (bytes, exact) = weights(format, n_out, k);
                let packed = Packed::pack(&mut Slabs::default(), format, n_out, k, &bytes).expect("memory");
                let x = noise(ROWS * k, 1);
                let input = Activations::new(Isa::SCALAR, &x, k, &[&packed]);
                // What coded weights are multiplied with: rounded activations, near the true ones.
                let read: Vec<f32> = match &input.coded {
                    None => x.clone(),
                    Some(coded) => (0..x.len())
                        .map(|i| f32::from(coded.codes()[i]) * coded.steps[i / STEP].scale)
                        .collect(),
                };
                assert!(read.iter().zip(&x).all(|(a, b)| (a - b).abs() <= 0.5 / 254.0 + 1e-6), "{format:?}");
                let all = &linear(Isa::SCALAR, &input, &[&packed])[0];
                for r in 0..ROWS {
                    for o in 0..n_out {
                        let pairs = read[r * k..][..k].iter().zip(&exact[o * k..][..k]);
                        let terms = pairs.map(|(a, b)| f64::from(*a) * f64::from(*b));
                        let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), t| (sum + t, size + t.abs()));
                        let off = (f64::from(all[r * n_out + o]) - sum).abs();
                        // Scales and minima may cancel: the bound is on the sizes added up.
                        assert!(
                            off <= 1e-5 * size.max(1e-3) * 4.0,
                            "{format:?} [{r}, {o}]: off by {off} of {size}"
                        );
                    }
                }
                for isa in Isa::available() {
                    for n in (1..=13).chain([16, 17, 31, 32, ROWS]) {
                        let input = Activations::new(isa, &x[..n * k], k, &[&packed]);
                        let some = &linear(isa, &input, &[&packed])[0];
                        assert!(**some == all[..n * n_out], "{format:?} on {} with {n} rows", isa.name());
                        for both in linear(isa, &input, &[&packed, &packed]) {
                            assert!(*both == **some, "{format:?}: two matrices");
                        }
                        let twice = linear_onto(isa, &input, &packed, some);
                        assert!(twice.iter().zip(some.iter()).all(|(twice, some)| *twice == some + some));
                    }
                }
            }
        }
    }
}
