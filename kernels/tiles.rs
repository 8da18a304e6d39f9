//! Products in tiles: some rows at a time meet one panel of weights, or two that share what is read of the
//! activations.
//!
//! Products of codes are exact integers. An output adds up its steps (32 k, or one) in order.

mod matrix;

use super::activations::{Activations, CodedActivations, Start, StepOf};
use super::amx::{TILE_ROWS, Tiles};
use super::panel::{Format, codes, scale_bytes};
use super::schemes::{Form, Head, Scales, Scheme, check, is_wide};
use super::{Kernel, LANES, Lanes, STEP, Words, lanes, lanes_mut};
use matrix::ByMatrixTiles;
use std::marker::PhantomData;
use std::ops::Range;

/// `P` panels, or parts of them, that some rows at a time are multiplied with.
pub(super) trait Tile<L: Lanes, const P: usize> {
    /// Rows `first .. first + R`, each to 16 outputs of each panel; parts of panels are added to what the
    /// rows have `so_far`.
    fn tile<const R: usize>(&mut self, first: usize, so_far: [[L; R]; P]) -> [[L; R]; P];
}

/// Walks over the rows of `out: [P, n_rows, 16]` in tiles of `MOST` rows, then of fewer.
#[inline(always)]
pub(super) fn rows<L: Lanes, const P: usize, const MOST: usize>(out: &mut [f32], tile: &mut impl Tile<L, P>) {
    let mut at = 0;
    some_rows::<L, P, MOST>(out, &mut at, tile);
    if MOST > 2 {
        some_rows::<L, P, 2>(out, &mut at, tile);
    }
    some_rows::<L, P, 1>(out, &mut at, tile);
}

#[inline(always)]
#[allow(clippy::needless_range_loop)] // p and r index two things each
fn some_rows<L: Lanes, const P: usize, const R: usize>(
    out: &mut [f32],
    at: &mut usize,
    tile: &mut impl Tile<L, P>,
) {
    let n_rows = out.len() / LANES / P;
    while *at + R <= n_rows {
        let mut sums = [[L::splat(0.0); R]; P];
        for p in 0..P {
            for r in 0..R {
                sums[p][r] = L::load(lanes(&out[(p * n_rows + *at + r) * LANES..][..LANES]));
            }
        }
        sums = tile.tile::<R>(*at, sums);
        for p in 0..P {
            for r in 0..R {
                sums[p][r].store(lanes_mut(&mut out[(p * n_rows + *at + r) * LANES..][..LANES]));
            }
        }
        *at += R;
    }
}

/// Distance in bytes at which weights are prefetched ahead of their use: about what memory delivers during
/// one access.
const PREFETCH: usize = 4096;

/// Rows of a tile that unpacks each step as it meets it.
pub(super) const FEW: usize = 4;

/// Rows up to which nothing is unpacked beforehand: a panel that is read again for each [`FEW`] is in the
/// first-level cache then, and memory is asked for what comes next.
pub(super) const SEVERAL: usize = 12;

/// Steps that are unpacked at once for many rows: they stay in the first-level cache.
const UNPACKED: usize = 8;

/// Activations in 8 bits times `P` panels of codes: one step of 16 outputs × 32 k after another.
pub(super) struct CodedProduct<'a, S, const P: usize> {
    x: CodedSource<'a>,
    codes: [&'a [u8]; P],
    heads: [&'a [u8]; P],
    scheme: PhantomData<S>,
}

/// The activations of a product.
#[derive(Clone, Copy)]
struct CodedSource<'a> {
    coded: &'a CodedActivations,
    /// Empty if codes have no offset.
    starts: &'a [Start],
    k: usize,
}

/// A step of a panel, unpacked.
#[derive(Clone, Copy)]
struct UnpackedStep<L: Lanes> {
    quads: [L::Words; 8],
    scales: Scales<L>,
}

impl<L: Lanes> UnpackedStep<L> {
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

impl<'a, S: Scheme, const P: usize> CodedProduct<'a, S, P> {
    /// Bytes of a step's codes.
    const STEP_BYTES: usize = S::BITS * STEP * LANES / 8;
    /// Steps of a block.
    const STEPS: usize = S::BLOCK / STEP;

    #[inline(always)]
    pub(super) fn new(x: &'a Activations<'a>, panels: [&'a [u8]; P], format: Format) -> Self {
        let coded = x.coded.as_ref().expect("activations are coded for coded weights");
        let (mut codes, mut heads): ([&[u8]; P], [&[u8]; P]) = ([&[]; P], [&[]; P]);
        for p in 0..P {
            (heads[p], codes[p]) = panels[p].split_at(scale_bytes(format, x.k));
        }
        const { check::<S>() };
        let starts = coded.starts(S::OFFSET);
        assert!(
            S::OFFSET == 0 || starts.len() == coded.steps.len(),
            "activations are coded for the weights' offset"
        );
        let x = CodedSource { coded, starts, k: x.k };
        Self { x, codes, heads, scheme: PhantomData }
    }

    /// Codes and scales of block `b` of a panel.
    #[inline(always)]
    fn block(&self, p: usize, b: usize) -> (&'a [u8], &'a [u8]) {
        let bytes = Self::STEP_BYTES * Self::STEPS;
        (&self.codes[p][b * bytes..][..bytes], &self.heads[p][b * S::SCALE_BYTES..][..S::SCALE_BYTES])
    }

    /// Asks memory for step `s` of a panel, and what belongs to it of the scales; past the panel's end, for steps of
    /// the one that is next in its place: panels lie one after another.
    #[inline(always)]
    fn ask_for<L: Lanes>(&self, p: usize, s: usize) {
        let (codes, scales) = (self.codes[p], self.heads[p]);
        let (mut at, mut block) = (s * Self::STEP_BYTES, s / Self::STEPS * S::SCALE_BYTES);
        let mut panel = scales.as_ptr();
        if at >= codes.len() {
            panel = panel.wrapping_add(P * (scales.len() + codes.len()));
            (at, block) = (at - codes.len(), block.saturating_sub(self.x.k / S::BLOCK * S::SCALE_BYTES));
        }
        for line in 0..Self::STEP_BYTES.div_ceil(64) {
            L::prefetch(panel.wrapping_add(scales.len() + at + 64 * line));
        }
        if s % Self::STEPS == 0 {
            for line in 0..S::SCALE_BYTES.div_ceil(64) {
                L::prefetch(panel.wrapping_add(block + 64 * line));
            }
        }
    }

    /// All rows, for so many that unpacking steps beforehand pays, into `out: [P, n_rows, 16]`. If there are
    /// matrix tiles, they make the products.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // s indexes two things
    pub(super) fn many_rows<L: Lanes>(&self, tiles: Option<Tiles>, out: &mut [f32]) {
        let enough = L::Words::TILES && out.len() >= P * TILE_ROWS * LANES;
        let tiles = if enough { tiles } else { None };
        out.fill(0.0);
        let zero = UnpackedStep { quads: [L::Words::splat(0); 8], scales: Scales::plain(L::splat(0.0)) };
        let (mut steps, mut first, mut n) = ([[zero; P]; UNPACKED], 0, 0);
        for b in 0..self.x.k / S::BLOCK {
            for p in 0..P {
                let (block, head) = self.block(p, b);
                let mut head = S::Head::<'_, L>::open(head);
                for s in 0..Self::STEPS {
                    self.ask_for::<L>(p, b * Self::STEPS + s + UNPACKED);
                    let bytes = &block[s * Self::STEP_BYTES..][..Self::STEP_BYTES];
                    let mut step = UnpackedStep::read::<S>(bytes, head.scales(s));
                    if L::Words::PAIRS {
                        L::Words::pair(&mut step.quads, const { is_wide::<S::Form>() });
                    }
                    if S::OFFSET != 0 && tiles.is_some() {
                        for quad in &mut step.quads {
                            *quad = quad.lowered(S::OFFSET);
                        }
                    }
                    steps[n + s][p] = step;
                }
            }
            n += Self::STEPS;
            if n == UNPACKED || (b + 1) * S::BLOCK == self.x.k {
                let (x, form) = (self.x, PhantomData::<S::Form>);
                L::call(Unpacked { x, steps: &steps[..n], first, tiles, form, out: &mut *out });
                (first, n) = (first + n, 0);
            }
        }
    }
}

impl<'a> CodedSource<'a> {
    /// Rows `first .. first + R`.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // r indexes several things at once
    fn rows<const R: usize>(&self, first: usize) -> ActivationRows<'a, R> {
        let mut rows = ActivationRows { codes: [&[]; R], steps: [&[]; R], starts: [&[]; R] };
        let n = self.k / STEP;
        for r in 0..R {
            rows.codes[r] = &self.coded.codes()[(first + r) * self.k..][..self.k];
            rows.steps[r] = &self.coded.steps[(first + r) * n..][..n];
            if !self.starts.is_empty() {
                rows.starts[r] = &self.starts[(first + r) * n..][..n];
            }
        }
        rows
    }
}

/// Some rows of coded activations.
struct ActivationRows<'a, const R: usize> {
    codes: [&'a [i8]; R],
    steps: [&'a [StepOf]; R],
    /// Empty unless codes have an offset.
    starts: [&'a [Start]; R],
}

/// Halves of a step that have scales of their own.
const fn n_halves<F: Form>() -> usize {
    if F::HALVES { 2 } else { 1 }
}

/// Exact products of codes, offsets subtracted.
trait Dots<L: Lanes, const R: usize, const P: usize> {
    /// Those of half `half` of step `s`, or of all of it if halves have no scales of their own.
    ///
    /// # Safety
    /// The rows have more than `s` steps.
    unsafe fn of<F: Form>(&self, s: usize, half: usize) -> [[L::Words; R]; P];
}

/// Products made in vectors.
struct VectorDots<'a, 'b, L: Lanes, const R: usize, const P: usize> {
    rows: &'b ActivationRows<'a, R>,
    steps: &'b [UnpackedStep<L>; P],
    /// The steps' quads are [paired](Words::pair).
    paired: bool,
}

impl<L: Lanes, const R: usize, const P: usize> Dots<L, R, P> for VectorDots<'_, '_, L, R, P> {
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // p and r index several things at once
    unsafe fn of<F: Form>(&self, s: usize, half: usize) -> [[L::Words; R]; P] {
        let mut dots = [[L::Words::splat(0); R]; P];
        if F::OFFSET && !(const { is_wide::<F>() } && L::Words::LESS_128) {
            for r in 0..R {
                // SAFETY: the caller's.
                let start = unsafe { self.rows.starts[r].get_unchecked(s) };
                let start = L::Words::splat(if F::HALVES { start.halves[half] } else { start.whole });
                for p in 0..P {
                    dots[p][r] = start;
                }
            }
        }
        let width = 8 / n_halves::<F>();
        let quads = width * half..width * (half + 1);
        // SAFETY: the caller's.
        unsafe {
            if self.paired {
                self.rows.paired_dots::<L, P>(self.steps, s, quads, &mut dots);
            } else {
                self.rows.dots::<L, F, P>(self.steps, s, quads, &mut dots);
            }
        }
        dots
    }
}

impl<const R: usize> ActivationRows<'_, R> {
    /// Adds the products of step `s` of each panel, whose `scales` these are, to `out`.
    ///
    /// # Safety
    /// The rows have more than `s` steps.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // p and r index several things at once
    unsafe fn add<L: Lanes, F: Form, const P: usize>(
        &self,
        steps: &[UnpackedStep<L>; P],
        s: usize,
        dots: &impl Dots<L, R, P>,
        out: &mut [[L; R]; P],
    ) {
        let mut products = [[L::splat(0.0); R]; P];
        for half in 0..n_halves::<F>() {
            // SAFETY: the caller's.
            let dots = unsafe { dots.of::<F>(s, half) };
            for p in 0..P {
                let scale = if half == 0 { steps[p].scales.first } else { steps[p].scales.last };
                for r in 0..R {
                    let dot = L::from_words(dots[p][r]);
                    products[p][r] = if half == 0 { dot.mul(scale) } else { dot.fma(scale, products[p][r]) };
                }
            }
        }
        for r in 0..R {
            // SAFETY: the caller's.
            let row = unsafe { self.steps[r].get_unchecked(s) };
            for p in 0..P {
                let (bias, product) = (steps[p].scales.bias, &mut products[p][r]);
                if F::BIAS && F::HALVES {
                    *product = bias[0].fma(L::splat(row.halves[0]), *product);
                    *product = bias[1].fma(L::splat(row.halves[1]), *product);
                } else if F::BIAS {
                    *product = bias[0].fma(L::splat(row.sum), *product);
                }
                out[p][r] = product.fma(L::splat(row.scale), out[p][r]);
            }
        }
    }

    /// Adds the products of some quads of step `s` of each panel to `dots`.
    ///
    /// # Safety
    /// The rows have more than `s` steps; `quads` are of the 8.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // p, q and r index several things at once
    unsafe fn dots<L: Lanes, F: Form, const P: usize>(
        &self,
        steps: &[UnpackedStep<L>; P],
        s: usize,
        quads: Range<usize>,
        dots: &mut [[L::Words; R]; P],
    ) {
        let (first, last) = (quads.start, quads.end);
        if const { is_wide::<F>() } {
            for q in first..last {
                for r in 0..R {
                    // SAFETY: the caller's.
                    let x = unsafe { self.quad(r, s, q) };
                    for p in 0..P {
                        dots[p][r] = dots[p][r].dot_wide(steps[p].quads[q], x);
                    }
                }
                L::Words::in_order(dots);
            }
        } else {
            let together = const { together::<F, L::Words>() };
            let mut from = first;
            while from < last {
                let mut sums = [[dots[0][0].begin(); R]; P];
                for p in 0..P {
                    for r in 0..R {
                        sums[p][r] = dots[p][r].begin();
                    }
                }
                let to = if from + together < last { from + together } else { last };
                for q in from..to {
                    for r in 0..R {
                        // SAFETY: the caller's.
                        let x = unsafe { self.quad(r, s, q) };
                        for p in 0..P {
                            sums[p][r] = L::Words::products(sums[p][r], steps[p].quads[q], x);
                        }
                    }
                    L::Words::in_order(&mut sums);
                }
                for p in 0..P {
                    for r in 0..R {
                        dots[p][r] = dots[p][r].end(sums[p][r]);
                    }
                }
                from = to;
            }
        }
    }

    /// The same with [paired](Words::pair) quads.
    ///
    /// # Safety
    /// As above.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // p and r index several things at once
    unsafe fn paired_dots<L: Lanes, const P: usize>(
        &self,
        steps: &[UnpackedStep<L>; P],
        s: usize,
        quads: Range<usize>,
        dots: &mut [[L::Words; R]; P],
    ) {
        for p in 0..P {
            L::Words::begin_pairs(&mut dots[p]);
        }
        for pair in quads.start / 2..quads.end / 2 {
            let mut x = [0; R];
            for r in 0..R {
                // SAFETY: the caller's.
                x[r] = unsafe { self.pair(r, s, pair) };
            }
            for p in 0..P {
                let codes = [steps[p].quads[2 * pair], steps[p].quads[2 * pair + 1]];
                L::Words::pair_products(&mut dots[p], codes, x);
            }
        }
        for p in 0..P {
            L::Words::end_pairs(&mut dots[p]);
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

    /// Codes `8 pair .. 8 pair + 8` of step `s` of row `r`.
    ///
    /// # Safety
    /// The row has more than `s` steps; `pair` is below 4.
    #[inline(always)]
    unsafe fn pair(&self, r: usize, s: usize, pair: usize) -> i64 {
        // SAFETY: the caller's.
        unsafe { self.codes[r].as_ptr().add(s * STEP + 8 * pair).cast::<i64>().read_unaligned() }
    }
}

/// Quads whose products sums hold: all eight, unless sums are narrow.
const fn together<F: Form, W: Words>() -> usize {
    let fit = W::LARGEST_SUM / (2 * 127 * F::LARGEST);
    if fit > 8 { 8 } else { fit as usize }
}

impl<S: Scheme> CodedProduct<'_, S, 1> {
    /// All rows, into `out: [n_rows, 16]`, without unpacking anything beforehand.
    #[inline(always)]
    pub(super) fn few_rows<L: Lanes>(mut self, out: &mut [f32]) {
        rows::<L, 1, FEW>(out, &mut self);
    }
}

impl<S: Scheme, L: Lanes> Tile<L, 1> for CodedProduct<'_, S, 1> {
    #[inline(always)]
    fn tile<const R: usize>(&mut self, first: usize, _: [[L; R]; 1]) -> [[L; R]; 1] {
        // With few rows memory bandwidth is the limit, so the next lines are prefetched. Each step prefetches
        // its share of the panel's lines, a little further ahead than the scales are long.
        let share = S::SCALE_BYTES / Self::STEPS + Self::STEP_BYTES;
        let mut next = self.heads[0].as_ptr().wrapping_add(self.heads[0].len() + PREFETCH);
        let rows = self.x.rows::<R>(first);
        let mut out = [[L::splat(0.0); R]];
        for b in 0..self.x.k / S::BLOCK {
            let (block, head) = self.block(0, b);
            let mut head = S::Head::<'_, L>::open(head);
            for (s, bytes) in block.chunks_exact(Self::STEP_BYTES).enumerate() {
                let scales = head.scales(s);
                for line in 0..share.div_ceil(64) {
                    L::prefetch(next.wrapping_add(64 * line));
                }
                next = next.wrapping_add(share);
                let steps = &[UnpackedStep::read::<S>(bytes, scales)];
                let dots = VectorDots { rows: &rows, steps, paired: false };
                // SAFETY: a row has as many steps as a panel.
                unsafe { rows.add::<L, S::Form, 1>(steps, b * Self::STEPS + s, &dots, &mut out) };
            }
        }
        out
    }
}

/// All rows times some steps of `P` panels from step `first` on, unpacked; added to `out: [P, n_rows, 16]`. A
/// function of its own for each form, not for each scheme: inlined, the kernels would take twice as long to
/// compile.
struct Unpacked<'a, F, L: Lanes, const P: usize> {
    x: CodedSource<'a>,
    steps: &'a [[UnpackedStep<L>; P]],
    first: usize,
    /// Matrix tiles: codes are signed then.
    tiles: Option<Tiles>,
    form: PhantomData<F>,
    out: &'a mut [f32],
}

impl<F: Form, U: Lanes, const P: usize> Kernel for Unpacked<'_, F, U, P> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { x, steps, first, tiles, out, form } = self;
        if U::Words::TILES
            && let Some(tiles) = tiles
        {
            return U::call(ByMatrixTiles { x, steps, first, tiles, form, out });
        }
        let tile = &mut UnpackedTile::<F, U, P> { x, steps, first, form: PhantomData };
        if const { P == 2 } { rows::<U, P, 8>(out, tile) } else { rows::<U, P, 4>(out, tile) }
    }
}

/// See [`Unpacked`].
struct UnpackedTile<'a, F, L: Lanes, const P: usize> {
    x: CodedSource<'a>,
    steps: &'a [[UnpackedStep<L>; P]],
    first: usize,
    form: PhantomData<F>,
}

impl<F: Form, L: Lanes, const P: usize> Tile<L, P> for UnpackedTile<'_, F, L, P> {
    #[inline(always)]
    fn tile<const R: usize>(&mut self, first: usize, mut out: [[L; R]; P]) -> [[L; R]; P] {
        let rows = self.x.rows::<R>(first);
        for (s, steps) in (self.first..).zip(self.steps) {
            let dots = VectorDots { rows: &rows, steps, paired: L::Words::PAIRS };
            // SAFETY: steps of a panel are a row's.
            unsafe { rows.add::<L, F, P>(steps, s, &dots, &mut out) };
        }
        out
    }
}
