//! Rows of keys and values in half precision: keys 16 tokens to a vector, values token by token.

use super::{Isa, Kernel, LANES, Lanes, lanes, lanes_mut};
use half::f16;
use std::ops::Range;

/// What is too large for half precision becomes the largest number, so that no infinity spoils a neighbour's
/// sum.
#[inline(always)]
fn within<L: Lanes>(x: L) -> L {
    x.max(L::splat(f16::MIN.to_f32())).min(L::splat(f16::MAX.to_f32()))
}

/// Rounds `x`, a multiple of 16 long.
pub fn round(isa: Isa, x: &[f32], out: &mut [f16]) {
    assert!(x.len() == out.len() && x.len() % LANES == 0, "rows are whole vectors");
    isa.run(Round { x, out });
}

struct Round<'a> {
    x: &'a [f32],
    out: &'a mut [f16],
}

impl Kernel for Round<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for (x, out) in self.x.chunks_exact(LANES).zip(self.out.chunks_exact_mut(LANES)) {
            within(L::load(lanes(x))).store_f16(lanes_mut(out));
        }
    }
}

/// Rounds the rows of some tokens, `[n, row]`, to lanes `first ..` of `vectors: [row, 16]`; other lanes stay.
pub fn interleave(isa: Isa, x: &[f32], row: usize, first: usize, vectors: &mut [f16]) {
    assert!(vectors.len() == row * LANES && first + x.len() / row <= LANES, "tokens share vectors");
    isa.run(Interleave { x, row, first, vectors });
}

struct Interleave<'a> {
    x: &'a [f32],
    row: usize,
    first: usize,
    vectors: &'a mut [f16],
}

impl Kernel for Interleave<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { x, row, first, vectors } = self;
        for (column, vector) in vectors.chunks_exact_mut(LANES).enumerate() {
            let vector = lanes_mut(vector);
            let mut tokens = [0.0; LANES];
            L::load_f16(vector).store(&mut tokens);
            for (token, x) in tokens[first..].iter_mut().zip(x[column..].iter().step_by(row)) {
                *token = *x;
            }
            within(L::load(&tokens)).store_f16(vector);
        }
    }
}

/// Columns of rows, `[n, row]`, as floats: `[n, columns.len()]`.
pub fn columns(isa: Isa, rows: &[f16], row: usize, columns: Range<usize>) -> Vec<f32> {
    assert!(columns.end <= row && columns.len() % LANES == 0, "columns are whole vectors");
    let mut out = vec![0.0; rows.len() / row * columns.len()];
    isa.run(Columns { rows, row, columns, out: &mut out });
    out
}

struct Columns<'a> {
    rows: &'a [f16],
    row: usize,
    columns: Range<usize>,
    out: &'a mut [f32],
}

impl Kernel for Columns<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { rows, row, columns, out } = self;
        for (row, out) in rows.chunks_exact(row).zip(out.chunks_exact_mut(columns.len())) {
            let row = &row[columns.start..columns.end];
            for (halves, out) in row.chunks_exact(LANES).zip(out.chunks_exact_mut(LANES)) {
                L::load_f16(lanes(halves)).store(lanes_mut(out));
            }
        }
    }
}

/// The same of tokens that share vectors, `[n / 16, row, 16]`: `[n, columns.len()]`.
pub fn rows_of_vectors(isa: Isa, vectors: &[f16], row: usize, columns: Range<usize>) -> Vec<f32> {
    assert!(columns.end <= row && vectors.len() % (row * LANES) == 0, "tokens come 16 at a time");
    let mut out = vec![0.0; vectors.len() / row * columns.len()];
    isa.run(RowsOfVectors { vectors, row, columns, out: &mut out });
    out
}

struct RowsOfVectors<'a> {
    vectors: &'a [f16],
    row: usize,
    columns: Range<usize>,
    out: &'a mut [f32],
}

impl Kernel for RowsOfVectors<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { vectors, row, columns, out } = self;
        let width = columns.len();
        for (vectors, out) in vectors.chunks_exact(row * LANES).zip(out.chunks_exact_mut(width * LANES)) {
            let vectors = &vectors[columns.start * LANES..columns.end * LANES];
            for (column, vector) in vectors.chunks_exact(LANES).enumerate() {
                let mut tokens = [0.0; LANES];
                L::load_f16(lanes(vector)).store(&mut tokens);
                for (token, x) in tokens.into_iter().enumerate() {
                    out[token * width + column] = x;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is rounded comes back near, whatever tokens it came with, and large numbers stay finite; all sets
    /// agree.
    #[test]
    fn rows_come_back_as_they_were_put() {
        const ROW: usize = 48;
        let x: Vec<f32> = (0..32 * ROW).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.37).collect();
        let exact: Vec<f32> = x.iter().map(|x| f16::from_f32(*x).to_f32()).collect();
        for isa in Isa::available() {
            for cut in [1, 5, 16] {
                let mut vectors = vec![f16::ZERO; 32 * ROW];
                for (group, vectors) in vectors.chunks_exact_mut(16 * ROW).enumerate() {
                    for first in (0..16).step_by(cut) {
                        let tokens = group * 16 + first..(group * 16 + (first + cut).min(16));
                        interleave(isa, &x[tokens.start * ROW..tokens.end * ROW], ROW, first, vectors);
                    }
                }
                let back = rows_of_vectors(isa, &vectors, ROW, 16..48);
                let part = exact.chunks_exact(ROW).flat_map(|row| &row[16..48]);
                assert!(back.iter().eq(part), "{}, {cut} at a time", isa.name());
            }
            let mut halves = vec![f16::ZERO; x.len()];
            round(isa, &x, &mut halves);
            let back = columns(isa, &halves, ROW, 0..32);
            assert!(back.iter().eq(exact.chunks_exact(ROW).flat_map(|row| &row[..32])));
            let mut largest = [f16::ZERO; LANES];
            round(isa, &[1e9; LANES], &mut largest);
            assert_eq!(largest, [f16::MAX; LANES]);
        }
    }
}
