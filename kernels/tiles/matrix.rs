//! Products by matrix tiles ([`crate::amx`]): exact, like those in vectors, and scaled by the same code.

use super::{CodedSource, Dots, Tile, UNPACKED, UnpackedStep, n_halves, rows};
use crate::amx::{Configured, TILE_ROWS, TILE_WORDS, Tiles};
use crate::schemes::Form;
use crate::{Kernel, Lanes, STEP, Words};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// All rows times some steps of two panels, added to `out: [2, n_rows, 16]`. A function of its own: the products
/// take a large piece of the stack.
pub(super) struct ByMatrixTiles<'a, F, L: Lanes, const P: usize> {
    pub(super) x: CodedSource<'a>,
    pub(super) steps: &'a [[UnpackedStep<L>; P]],
    pub(super) first: usize,
    pub(super) tiles: Tiles,
    pub(super) form: PhantomData<F>,
    pub(super) out: &'a mut [f32],
}

impl<F: Form, U: Lanes, const P: usize> Kernel for ByMatrixTiles<'_, F, U, P> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { x, steps, first, tiles, out, .. } = self;
        rows::<U, P, 8>(out, &mut MatrixTile::<F, U, P>::new(x, steps, first, tiles));
    }
}

/// Steps of two panels whose products with 16 rows matrix tiles make.
struct MatrixTile<'a, F, L: Lanes, const P: usize> {
    x: CodedSource<'a>,
    steps: &'a [[UnpackedStep<L>; P]],
    first: usize,
    n_rows: usize,
    tiles: Tiles,
    configured: Option<(usize, Configured)>,
    /// Products, `[n_steps, n_halves, P, 16 rows, 16]`.
    dots: MaybeUninit<[[i32; TILE_WORDS]; 4 * UNPACKED]>,
    form: PhantomData<F>,
}

impl<'a, F: Form, L: Lanes, const P: usize> MatrixTile<'a, F, L, P> {
    #[inline(always)]
    fn new(x: CodedSource<'a>, steps: &'a [[UnpackedStep<L>; P]], first: usize, tiles: Tiles) -> Self {
        assert!(steps.len() <= UNPACKED && P == 2, "products have a place");
        let (configured, dots, form) = (None, MaybeUninit::uninit(), PhantomData);
        Self { x, steps, first, n_rows: x.coded.codes().len() / x.k, tiles, configured, dots, form }
    }

    /// Makes the products with 16 rows from `row` on, or with as many as there are.
    #[inline(always)]
    fn multiply(&mut self, row: usize) {
        let n = TILE_ROWS.min(self.n_rows - row);
        let n_halves = const { n_halves::<F>() };
        let tiles = match &self.configured {
            Some((rows, tiles)) if *rows == n => tiles,
            _ => {
                self.configured = None; // released before they are configured for fewer rows
                &self.configured.insert((n, self.tiles.configure(n, 8 / n_halves))).1
            }
        };
        let dots = self.dots.as_mut_ptr().cast::<i32>();
        for (s, steps) in self.steps.iter().enumerate() {
            for half in 0..n_halves {
                let codes =
                    &self.x.coded.codes()[row * self.x.k + (self.first + s) * STEP + half * STEP / 2..];
                let quads = |p: usize| steps[p].quads[8 / n_halves * half..].as_ptr().cast::<u8>();
                // SAFETY: `n` rows of this step lie `k` bytes apart, as the product's shapes say; a half of a step
                // is so many quads of 64 bytes; there is room for the products of each half of each step.
                unsafe {
                    let dots = dots.add((s * n_halves + half) * P * TILE_WORDS);
                    tiles.products(s, (codes.as_ptr(), self.x.k), [quads(0), quads(1)], dots);
                }
            }
        }
    }
}

impl<F: Form, L: Lanes, const P: usize> Tile<L, P> for MatrixTile<'_, F, L, P> {
    #[inline(always)]
    fn tile<const R: usize>(&mut self, first: usize, mut out: [[L; R]; P]) -> [[L; R]; P] {
        if first % TILE_ROWS == 0 {
            self.multiply(first);
        }
        let rows = self.x.rows::<R>(first);
        let dots = MatrixDots { dots: self.dots.as_ptr().cast(), row: first % TILE_ROWS, first: self.first };
        for (s, steps) in (self.first..).zip(self.steps) {
            // SAFETY: steps of a panel are a row's.
            unsafe { rows.add::<L, F, P>(steps, s, &dots, &mut out) };
        }
        out
    }
}

/// Products that matrix tiles made with the steps from `first` on; the first row is `row` of its tile.
struct MatrixDots {
    dots: *const [u8; 64],
    row: usize,
    first: usize,
}

impl<L: Lanes, const R: usize, const P: usize> Dots<L, R, P> for MatrixDots {
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // p and r index several things at once
    unsafe fn of<F: Form>(&self, s: usize, half: usize) -> [[L::Words; R]; P] {
        let mut dots = [[L::Words::splat(0); R]; P];
        let at = ((s - self.first) * n_halves::<F>() + half) * P;
        for p in 0..P {
            for r in 0..R {
                // SAFETY: `MatrixTile::multiply` has made the products of all these rows and steps.
                dots[p][r] = L::Words::load(unsafe { &*self.dots.add((at + p) * TILE_ROWS + self.row + r) });
            }
        }
        dots
    }
}
