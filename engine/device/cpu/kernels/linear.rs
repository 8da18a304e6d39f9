//! Weights × activations: `y[r, o] = Σ_k x[r, k] · w[o, k]`.
//!
//! For coded weights the activations are rounded to 8 bits, in groups of 32 with a scale `max|x| / 127`, and products
//! of codes are exact integers; the loss is that of rounding (about 0.5 % of a group's spread, as in llama.cpp's Q8_0).
//! Float weights meet the activations as they are. Either way an output adds up its steps (32 k, or one) in order.
//!
//! Activations meet coded weights in 8 bits, in groups of 32 with a scale each (llama.cpp's k-quants take 256): a third float
//! operation for every eight integer ones, for less loss where activations have outliers. Float weights meet them in f32.

use super::panel::{Format, Packed, codes, scale_bytes, with_scheme};
use super::pointwise::Gate;
use super::schemes::{Scales, Scheme, is_wide, largest_code};
use super::{Isa, Kernel, LANES, Lanes, STEP, Words, lanes, lanes_mut, padded};
use crate::model::spec::Activation;
use crate::threads::{Shared, for_ranges};

/// Activations `[n_rows, k]`, ready for weights of every format.
pub(crate) struct Activations<'a> {
    floats: &'a [f32],
    n_rows: usize,
    k: usize,
    coded: Option<Coded>,
}

/// Activations in 8 bits: `x ≈ scale * code`.
struct Coded {
    /// `[n_rows, k]`.
    codes: Vec<i8>,
    /// `[n_rows, k / 32]`.
    steps: Vec<StepOf>,
    /// What sums of products with weights of a scheme's offset begin with: `-offset * sum of codes`, by offset.
    starts: Vec<(i32, Vec<Start>)>,
}

/// Starts of a step's sums: of all its products, of those of its first and its last 16.
#[derive(Clone, Copy, Debug, Default)]
struct Start {
    whole: i32,
    halves: [i32; 2],
}

/// Scale and sums of 32 codes of a row.
#[derive(Clone, Copy, Default)]
struct StepOf {
    scale: f32,
    /// Sum of the codes.
    sum: f32,
    /// Sums of the first and the last 16.
    halves: [f32; 2],
}

impl<'a> Activations<'a> {
    /// Rows of `k` activations, for products with all of `weights`.
    pub(crate) fn new(isa: Isa, x: &'a [f32], k: usize, weights: &[&Packed]) -> Self {
        let n_rows = x.len() / k;
        assert_eq!(x.len(), n_rows * k, "activations are [n_rows, {k}]");
        assert!(weights.iter().all(|w| w.k == k), "weights are [n_out, {k}]");
        let coded = weights.iter().any(|w| w.format.coded()).then(|| Coded::new(isa, x, k, weights));
        Self { floats: x, n_rows, k, coded }
    }
}

impl Coded {
    fn new(isa: Isa, x: &[f32], k: usize, weights: &[&Packed]) -> Self {
        let (mut codes, mut steps) = (vec![0; x.len()], vec![StepOf::default(); x.len() / STEP]);
        let (shared_codes, shared_steps) = (Shared::new(&mut codes), Shared::new(&mut steps));
        for_ranges(x.len() / k, (1 << 14) / k, |rows| {
            let (start, end) = (rows.start * k, rows.end * k);
            // SAFETY: each row belongs to one range.
            let (codes, steps) =
                unsafe { (shared_codes.part(start..end), shared_steps.part(start / STEP..end / STEP)) };
            isa.run(Encode { x: &x[start..end], codes, steps });
        });
        let mut starts: Vec<(i32, Vec<Start>)> = Vec::new();
        for offset in weights.iter().map(|w| w.format.offset()).filter(|offset| *offset != 0) {
            if starts.iter().all(|(known, _)| *known != offset) {
                starts.push((offset, steps.iter().map(|step| step.start(offset)).collect()));
            }
        }
        Self { codes, steps, starts }
    }

    /// What sums of products with codes of an offset begin with, `[n_rows, k / 32]`; empty: with nothing.
    fn starts(&self, offset: i32) -> &[Start] {
        self.starts.iter().find(|(known, _)| *known == offset).map_or(&[], |(_, starts)| starts)
    }
}

impl StepOf {
    fn start(&self, offset: i32) -> Start {
        // Sums are whole numbers below 2^12.
        Start { whole: -offset * self.sum as i32, halves: self.halves.map(|sum| -offset * sum as i32) }
    }
}

struct Encode<'a> {
    x: &'a [f32],
    codes: &'a mut [i8],
    steps: &'a mut [StepOf],
}

impl Kernel for Encode<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for ((x, codes), step) in
            self.x.chunks_exact(STEP).zip(self.codes.chunks_exact_mut(STEP)).zip(self.steps)
        {
            let (a, b) = (L::load(lanes(&x[..LANES])), L::load(lanes(&x[LANES..])));
            let largest = a.abs().max(b.abs()).largest();
            let inverse = L::splat(if largest > 0.0 { 127.0 / largest } else { 0.0 });
            let (a, b) = (a.mul(inverse).round(), b.mul(inverse).round());
            let (first, last) = codes.split_at_mut(LANES);
            a.store_i8(lanes_mut(first));
            b.store_i8(lanes_mut(last));
            let halves = [a.sum(), b.sum()];
            *step = StepOf { scale: largest / 127.0, sum: halves[0] + halves[1], halves };
        }
    }
}

/// Multiply-adds below which a product is not worth a second thread.
const SERIAL_MACS: usize = 1 << 16;

/// The products with several matrices (biases added), side by side, added to `base` if there is one: `[n_rows, Σ n_out]`.
pub(crate) fn linear(isa: Isa, x: &Activations<'_>, weights: &[&Packed], base: Option<&[f32]>) -> Vec<f32> {
    let width: usize = weights.iter().map(|w| w.n_out).sum();
    let mut out = vec![0.0; x.n_rows * width];
    assert!(base.is_none_or(|base| base.len() == out.len()), "what is added to is as wide as the products");
    let shared = Shared::new(&mut out);
    let n_panels: usize = weights.iter().map(|w| w.n_panels()).sum();
    for_panels(x, n_panels, |panels| {
        let mut sums = vec![0.0; x.n_rows * LANES];
        for mut p in panels {
            let mut first = 0;
            let mut matrices = weights.iter();
            let matrix = loop {
                let matrix = matrices.next().expect("a panel belongs to a matrix");
                if p < matrix.n_panels() {
                    break matrix;
                }
                (p, first) = (p - matrix.n_panels(), first + matrix.n_out);
            };
            matrix.multiply(isa, x, p, &mut sums);
            let n = LANES.min(matrix.n_out - p * LANES);
            for (r, sums) in sums.chunks_exact(LANES).enumerate() {
                let at = r * width + first + p * LANES;
                // SAFETY: an output belongs to one panel, a panel to one range.
                let out = unsafe { shared.part(at..at + n) };
                match base {
                    None => out.copy_from_slice(&sums[..n]),
                    Some(base) => {
                        out.iter_mut()
                            .zip(&base[at..])
                            .zip(sums)
                            .for_each(|((y, base), sum)| *y = base + sum);
                    }
                }
            }
        }
    });
    out
}

/// A gated activation of two products (biases added): `[n_rows, n_out]`.
pub(crate) fn gated(
    isa: Isa,
    activation: Activation,
    x: &Activations<'_>,
    gate: &Packed,
    up: &Packed,
) -> Vec<f32> {
    assert_eq!(gate.n_out, up.n_out, "gate and up have equal widths");
    let width = gate.n_out;
    let mut out = vec![0.0; x.n_rows * width];
    let shared = Shared::new(&mut out);
    for_panels(x, gate.n_panels(), |panels| {
        let (mut gates, mut ups) = (vec![0.0; x.n_rows * LANES], vec![0.0; x.n_rows * LANES]);
        for p in panels {
            gate.multiply(isa, x, p, &mut gates);
            up.multiply(isa, x, p, &mut ups);
            isa.run(Gate(activation, &mut gates, &ups));
            let n = LANES.min(width - p * LANES);
            for (r, row) in gates.chunks_exact(LANES).enumerate() {
                let at = r * width + p * LANES;
                // SAFETY: an output belongs to one panel, a panel to one range.
                unsafe { shared.part(at..at + n) }.copy_from_slice(&row[..n]);
            }
        }
    });
    out
}

fn for_panels(x: &Activations<'_>, n_panels: usize, task: impl Fn(std::ops::Range<usize>) + Sync) {
    let macs = x.n_rows * x.k * LANES;
    for_ranges(n_panels, (SERIAL_MACS / macs.max(1)).max(1), task);
}

impl Packed {
    /// All rows of `x` against panel `p`, biases added, into `out: [n_rows, 16]`.
    fn multiply(&self, isa: Isa, x: &Activations<'_>, p: usize, out: &mut [f32]) {
        isa.run(Panel { x, format: self.format, panel: self.panel(p), out });
        if let Some(bias) = &self.bias {
            let bias = padded(bias, p * LANES);
            out.chunks_exact_mut(LANES).for_each(|row| row.iter_mut().zip(bias).for_each(|(y, b)| *y += b));
        }
    }
}

/// All rows of `x` against one panel, into `out: [n_rows, 16]`.
struct Panel<'a> {
    x: &'a Activations<'a>,
    format: Format,
    panel: &'a [u8],
    out: &'a mut [f32],
}

impl Kernel for Panel<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { x, format, panel, out } = self;
        with_scheme!(format, S => return CodedProduct::<S>::new(x, panel, format).run::<L>(out), _ => ());
        match format {
            Format::F16 => rows::<L>(out, &mut F16 { x, panel: bytemuck::cast_slice(panel) }),
            Format::Bf16 => rows::<L>(out, &mut Bf16 { x, panel: bytemuck::cast_slice(panel) }),
            _ => rows::<L>(out, &mut F32 { x, panel: bytemuck::cast_slice(panel) }),
        }
    }
}

/// A panel, or a part of one, that some rows at a time are multiplied with.
trait Tile<L: Lanes> {
    /// Rows `first .. first + R`, each to 16 outputs; parts of a panel are added to what the rows have `so_far`.
    fn tile<const R: usize>(&mut self, first: usize, so_far: [L; R]) -> [L; R];
}

/// Walks over the rows of `out: [n_rows, 16]` in tiles.
#[inline(always)]
fn rows<L: Lanes>(out: &mut [f32], tile: &mut impl Tile<L>) {
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // r indexes two things
    fn some<L: Lanes, const R: usize>(out: &mut [f32], at: &mut usize, tile: &mut impl Tile<L>) {
        while *at + R <= out.len() / LANES {
            let mut sums = [L::splat(0.0); R];
            for r in 0..R {
                sums[r] = L::load(lanes(&out[(*at + r) * LANES..][..LANES]));
            }
            sums = tile.tile::<R>(*at, sums);
            for r in 0..R {
                sums[r].store(lanes_mut(&mut out[(*at + r) * LANES..][..LANES]));
            }
            *at += R;
        }
    }
    let mut at = 0;
    if L::WIDE {
        some::<L, 8>(out, &mut at, tile);
    }
    some::<L, 4>(out, &mut at, tile);
    some::<L, 2>(out, &mut at, tile);
    some::<L, 1>(out, &mut at, tile);
}

/// Distance in bytes at which weights are prefetched ahead of their use: about what memory delivers during one access.
const PREFETCH: usize = 4096;

/// Steps that are unpacked at once for many rows: they stay in the first-level cache.
const UNPACKED: usize = 8;

/// Activations in 8 bits times a panel of codes: one step of 16 outputs × 32 k after another.
struct CodedProduct<'a, S> {
    x: &'a Coded,
    starts: &'a [Start],
    k: usize,
    codes: &'a [u8],
    heads: &'a [u8],
    scheme: std::marker::PhantomData<S>,
}

/// A step of a panel, unpacked.
#[derive(Clone, Copy)]
struct Step<L: Lanes> {
    quads: [L::Words; 8],
    scales: Scales<L>,
}

impl<L: Lanes> Step<L> {
    #[inline(always)]
    fn read<S: Scheme>(bytes: &[u8], scales: Scales<L>) -> Self {
        let mut quads = match S::BITS {
            2 => codes::<L, 2>(bytes),
            3 => codes::<L, 3>(bytes),
            4 => codes::<L, 4>(bytes),
            5 => codes::<L, 5>(bytes),
            6 => codes::<L, 6>(bytes),
            _ => codes::<L, 8>(bytes),
        };
        if let Some(table) = S::TABLE {
            for quad in &mut quads {
                *quad = quad.look_up(table);
            }
        }
        Self { quads, scales }
    }
}

impl<'a, S: Scheme> CodedProduct<'a, S> {
    #[inline(always)]
    fn new(x: &'a Activations<'a>, panel: &'a [u8], format: Format) -> Self {
        let (heads, codes) = panel.split_at(scale_bytes(format, x.k));
        let coded = x.coded.as_ref().expect("activations are coded for coded weights");
        let starts = coded.starts(S::OFFSET);
        Self { x: coded, starts, k: x.k, codes, heads, scheme: std::marker::PhantomData }
    }

    /// Bytes of a step's codes.
    const STEP_BYTES: usize = S::BITS * STEP * LANES / 8;
    /// Steps of a block.
    const STEPS: usize = S::BLOCK / STEP;

    /// All rows, into `out: [n_rows, 16]`.
    #[inline(always)]
    fn run<L: Lanes>(mut self, out: &mut [f32]) {
        if out.len() / LANES <= if L::WIDE { 8 } else { 4 } {
            rows::<L>(out, &mut self);
        } else {
            self.many_rows::<L>(out);
        }
    }

    /// The same for so many rows that steps are unpacked beforehand.
    #[inline(always)]
    fn many_rows<L: Lanes>(&self, out: &mut [f32]) {
        out.fill(0.0);
        let zero = Step { quads: [L::Words::splat(0); 8], scales: Scales::plain(L::splat(0.0)) };
        let (mut steps, mut first, mut n) = ([zero; UNPACKED], 0, 0);
        for (block, head) in self.blocks() {
            let mut head = S::open::<L>(head);
            for (s, bytes) in block.chunks_exact(Self::STEP_BYTES).enumerate() {
                steps[n] = Step::read::<S>(bytes, S::scales::<L>(&mut head, s));
                n += 1;
                if n == UNPACKED {
                    rows::<L>(out, &mut Unpacked { product: self, steps: &steps, first });
                    (first, n) = (first + n, 0);
                }
            }
        }
        if n > 0 {
            rows::<L>(out, &mut Unpacked { product: self, steps: &steps[..n], first });
        }
    }

    /// Codes and scales of each block.
    #[inline(always)]
    fn blocks(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let codes = self.codes.chunks_exact(Self::STEP_BYTES * Self::STEPS);
        codes.zip(self.heads.chunks_exact(S::SCALE_BYTES)).take(self.k / S::BLOCK)
    }

    /// Rows `first .. first + R`.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // r indexes several things at once
    fn rows<const R: usize>(&self, first: usize) -> CodedRows<'a, R> {
        let mut rows = CodedRows { codes: [&[]; R], steps: [&[]; R], starts: [&[]; R] };
        let n = self.k / STEP;
        for r in 0..R {
            rows.codes[r] = &self.x.codes[(first + r) * self.k..][..self.k];
            rows.steps[r] = &self.x.steps[(first + r) * n..][..n];
            if S::OFFSET != 0 {
                rows.starts[r] = &self.starts[(first + r) * n..][..n];
            }
        }
        rows
    }
}

/// Some rows of coded activations.
struct CodedRows<'a, const R: usize> {
    codes: [&'a [i8]; R],
    steps: [&'a [StepOf]; R],
    /// Empty unless codes have an offset.
    starts: [&'a [Start]; R],
}

impl<const R: usize> CodedRows<'_, R> {
    /// Adds the products of step `s` to `out`.
    ///
    /// # Safety
    /// The rows have more than `s` steps.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // r indexes several things at once
    unsafe fn add<L: Lanes, S: Scheme>(&self, step: &Step<L>, s: usize, out: &mut [L; R]) {
        let Step { quads, scales } = step;
        let mut products = [L::splat(0.0); R];
        let n_halves = if S::HALVES { 2 } else { 1 };
        for half in 0..n_halves {
            let mut dots = [L::Words::splat(0); R];
            if S::OFFSET != 0 && !(const { is_wide::<S>() } && L::Words::LESS_128) {
                for r in 0..R {
                    // SAFETY: the caller's.
                    let start = unsafe { self.starts[r].get_unchecked(s) };
                    dots[r] = L::Words::splat(if S::HALVES { start.halves[half] } else { start.whole });
                }
            }
            let (first, last) = (8 / n_halves * half, 8 / n_halves * (half + 1));
            if const { is_wide::<S>() } {
                for q in first..last {
                    for r in 0..R {
                        // SAFETY: the caller's.
                        dots[r] = dots[r].dot_wide(quads[q], unsafe { self.quad(r, s, q) });
                    }
                }
            } else {
                let together = const { together::<S, L::Words>() };
                let mut from = first;
                while from < last {
                    let mut sums = [dots[0].begin(); R];
                    for r in 0..R {
                        sums[r] = dots[r].begin();
                    }
                    let to = if from + together < last { from + together } else { last };
                    for q in from..to {
                        for r in 0..R {
                            // SAFETY: the caller's.
                            let x = unsafe { self.quad(r, s, q) };
                            sums[r] = L::Words::products(sums[r], quads[q], x);
                        }
                    }
                    for r in 0..R {
                        dots[r] = dots[r].end(sums[r]);
                    }
                    from = to;
                }
            }
            let scale = if half == 0 { scales.first } else { scales.last };
            for r in 0..R {
                let dot = L::from_words(dots[r]);
                products[r] = if half == 0 { dot.mul(scale) } else { dot.fma(scale, products[r]) };
            }
        }
        for r in 0..R {
            // SAFETY: the caller's.
            let step = unsafe { self.steps[r].get_unchecked(s) };
            if S::BIAS && S::HALVES {
                products[r] = scales.bias[0].fma(L::splat(step.halves[0]), products[r]);
                products[r] = scales.bias[1].fma(L::splat(step.halves[1]), products[r]);
            } else if S::BIAS {
                products[r] = scales.bias[0].fma(L::splat(step.sum), products[r]);
            }
            out[r] = products[r].fma(L::splat(step.scale), out[r]);
        }
    }

    /// Codes `4 q .. 4 q + 4` of step `s` of row `r`.
    ///
    /// # Safety
    /// The row has more than `s` steps; `q` is below 8.
    #[inline(always)]
    unsafe fn quad(&self, r: usize, s: usize, q: usize) -> i32 {
        // SAFETY: the caller's.
        unsafe { self.codes[r].as_ptr().add(s * STEP + 4 * q).cast::<i32>().read_unaligned() }
    }
}

/// Quads whose products sums hold: all eight, unless sums are narrow.
const fn together<S: Scheme, W: Words>() -> usize {
    let fit = W::LARGEST_SUM / (2 * 127 * largest_code::<S>());
    if fit > 8 { 8 } else { fit as usize }
}

impl<S: Scheme, L: Lanes> Tile<L> for CodedProduct<'_, S> {
    #[inline(always)]
    fn tile<const R: usize>(&mut self, first: usize, _: [L; R]) -> [L; R] {
        // Few rows wait for memory: its next lines are asked for in time. With each step go the lines of its share of the
        // panel, as far ahead as the scales are long and then some.
        let share = S::SCALE_BYTES / Self::STEPS + Self::STEP_BYTES;
        let mut next = self.heads.as_ptr().wrapping_add(self.heads.len() + PREFETCH);
        let rows = self.rows::<R>(first);
        let mut out = [L::splat(0.0); R];
        for (b, (block, head)) in self.blocks().enumerate() {
            let mut head = S::open::<L>(head);
            for (s, bytes) in block.chunks_exact(Self::STEP_BYTES).enumerate() {
                let scales = S::scales::<L>(&mut head, s);
                if R <= 4 {
                    for line in 0..share.div_ceil(64) {
                        L::prefetch(next.wrapping_add(64 * line));
                    }
                    next = next.wrapping_add(share);
                }
                // SAFETY: a row has as many steps as a panel.
                unsafe { rows.add::<L, S>(&Step::read::<S>(bytes, scales), b * Self::STEPS + s, &mut out) };
            }
        }
        out
    }
}

/// Some steps of a panel from step `first` on, unpacked.
struct Unpacked<'a, S, L: Lanes> {
    product: &'a CodedProduct<'a, S>,
    steps: &'a [Step<L>],
    first: usize,
}

impl<S: Scheme, L: Lanes> Tile<L> for Unpacked<'_, S, L> {
    #[inline(always)]
    fn tile<const R: usize>(&mut self, first: usize, mut out: [L; R]) -> [L; R] {
        let rows = self.product.rows::<R>(first);
        for (s, step) in (self.first..).zip(self.steps) {
            // SAFETY: steps of a panel are a row's.
            unsafe { rows.add::<L, S>(step, s, &mut out) };
        }
        out
    }
}

/// Float weights `[k, 16]`: one k after another.
macro_rules! float_tile {
    ($name:ident, $element:ty, $load:ident) => {
        struct $name<'a> {
            x: &'a Activations<'a>,
            panel: &'a [$element],
        }

        impl<L: Lanes> Tile<L> for $name<'_> {
            #[inline(always)]
            #[allow(clippy::needless_range_loop)] // r indexes two things
            fn tile<const R: usize>(&mut self, first: usize, _: [L; R]) -> [L; R] {
                let k = self.x.k;
                let mut rows: [&[f32]; R] = [&[]; R];
                for r in 0..R {
                    rows[r] = &self.x.floats[(first + r) * k..][..k];
                }
                let mut out = [L::splat(0.0); R];
                for (i, weights) in self.panel.chunks_exact(LANES).take(k).enumerate() {
                    let weights = L::$load(lanes(weights));
                    for r in 0..R {
                        out[r] = weights.fma(L::splat(rows[r][i]), out[r]);
                    }
                }
                out
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
    use crate::device::cpu::kernels::slab::Slabs;
    use crate::fixtures::Dtype;
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

    /// Rows of a format as a file would have them, and what they stand for by candle's own reading.
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
            Format::Iq4Nl => return iq4(Dtype::IQ4NL, format, n_out * k),
            Format::Iq4Xs => return iq4(Dtype::IQ4XS, format, n_out * k),
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

    /// Blocks at random and what they stand for, by the microscaling standard.
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
    fn iq4(dtype: Dtype, format: Format, n: usize) -> (Vec<u8>, Vec<f32>) {
        let mut bytes: Vec<u8> =
            noise(format.row_bytes(n), 3).iter().map(|x| (x * 256.0) as i8 as u8).collect();
        for block in bytes.chunks_exact_mut(format.row_bytes(format.block())) {
            block[1] = 0x10 | block[1] & 0x8f;
        }
        let floats = crate::fixtures::iq4(dtype, &bytes);
        (bytes, floats)
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
        const ROWS: usize = 13;
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
                        .map(|i| f32::from(coded.codes[i]) * coded.steps[i / STEP].scale)
                        .collect(),
                };
                assert!(read.iter().zip(&x).all(|(a, b)| (a - b).abs() <= 0.5 / 254.0 + 1e-6), "{format:?}");
                let all = linear(Isa::SCALAR, &input, &[&packed], None);
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
                    for n in 1..=ROWS {
                        let input = Activations::new(isa, &x[..n * k], k, &[&packed]);
                        let some = linear(isa, &input, &[&packed], None);
                        assert_eq!(some, all[..n * n_out], "{format:?} on {} with {n} rows", isa.name());
                        let both = linear(isa, &input, &[&packed, &packed], None);
                        let second = both.chunks_exact(2 * n_out).flat_map(|row| &row[n_out..]);
                        assert!(second.eq(some.iter()), "{format:?}: matrices side by side");
                    }
                }
            }
        }
    }
}
