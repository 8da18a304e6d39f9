//! What weights are multiplied with: rows of activations, rounded to 8 bits for coded weights.
//!
//! Groups of 32 have a scale `max|x| / 127`; the loss is that of rounding (about 0.5 % of a group's spread,
//! as in llama.cpp's Q8_0, while its k-quants take groups of 256): less where activations have outliers.
//! Float weights meet them in f32.

use super::panel::Packed;
use super::pointwise::{RmsNorm, rms_norm};
use super::{Isa, Kernel, LANES, Lanes, STEP, lanes, lanes_mut};
use crate::floats::Floats;
use crate::threads::{SharedSlice, for_ranges};

/// Activations `[n_rows, k]`, ready for weights of every format.
pub struct Activations<'a> {
    floats: ActivationSource<'a>,
    pub(super) n_rows: usize,
    pub(super) k: usize,
    /// What coded weights are multiplied with, if there are such.
    pub(super) coded: Option<CodedActivations>,
}

/// Activations as they are.
enum ActivationSource<'a> {
    /// Not kept: no weights are floats.
    None,
    Given(&'a [f32]),
    Made(Floats),
}

/// Activations in 8 bits: `x ≈ scale * code`.
pub(super) struct CodedActivations {
    /// `[n_rows, k]`, a byte each.
    codes: Floats,
    /// `[n_rows, k / 32]`.
    pub(super) steps: Vec<StepOf>,
    /// What sums of products with weights of a scheme's offset begin with: `-offset * sum of codes`, by
    /// offset.
    starts: Vec<(i32, Vec<Start>)>,
}

/// Starts of a step's sums: of all its products, of those of its first and its last 16.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Start {
    pub(super) whole: i32,
    pub(super) halves: [i32; 2],
}

/// Scale and sums of 32 codes of a row.
#[derive(Clone, Copy, Default)]
pub(super) struct StepOf {
    pub(super) scale: f32,
    /// Sum of the codes.
    pub(super) sum: f32,
    /// Sums of the first and the last 16.
    pub(super) halves: [f32; 2],
}

impl<'a> Activations<'a> {
    /// Rows of `k` activations, for products with all of `weights`.
    pub fn new(isa: Isa, x: &'a [f32], k: usize, weights: &[&Packed]) -> Self {
        assert!(weights.iter().all(|w| w.k == k), "weights are [n_out, {k}]");
        let coded =
            weights.iter().any(|w| w.format.coded()).then(|| CodedActivations::new(isa, x, k, None, weights));
        Self { floats: ActivationSource::Given(x), n_rows: x.len() / k, k, coded }
    }

    /// The RMS norm ([`rms_norm`]) of rows, for products with all of `weights`.
    pub fn normed(isa: Isa, x: &[f32], norm: &[f32], eps: f32, weights: &[&Packed]) -> Self {
        let (k, n_rows) = (norm.len(), x.len() / norm.len());
        assert!(weights.iter().all(|w| w.k == k), "weights are [n_out, {k}]");
        let coded = weights.iter().any(|w| w.format.coded());
        let coded = coded.then(|| CodedActivations::new(isa, x, k, Some((norm, eps)), weights));
        let floats = match weights.iter().all(|w| w.format.coded()) {
            true => ActivationSource::None,
            false => ActivationSource::Made(rms_norm(isa, x, norm, eps)),
        };
        Self { floats, n_rows, k, coded }
    }

    /// `[n_rows, k]`.
    pub(super) fn floats(&self) -> &[f32] {
        match &self.floats {
            ActivationSource::None => &[],
            ActivationSource::Given(x) => x,
            ActivationSource::Made(x) => x,
        }
    }
}

impl CodedActivations {
    fn new(isa: Isa, x: &[f32], k: usize, norm: Option<(&[f32], f32)>, weights: &[&Packed]) -> Self {
        assert_eq!(x.len() % k, 0, "activations are [n_rows, {k}]");
        let (mut codes, mut steps) = (Floats::new(x.len() / 4), vec![StepOf::default(); x.len() / STEP]);
        let shared_codes = SharedSlice::new(bytemuck::cast_slice_mut::<f32, i8>(&mut codes));
        let shared_steps = SharedSlice::new(&mut steps);
        for_ranges(x.len() / k, (1 << 13) / k, |rows| {
            let mut normed = vec![0.0; if norm.is_some() { k } else { 0 }];
            for row in rows {
                let (start, end) = (row * k, (row + 1) * k);
                // SAFETY: each row belongs to one range.
                let (codes, steps) =
                    unsafe { (shared_codes.part(start..end), shared_steps.part(start / STEP..end / STEP)) };
                let mut x = &x[start..end];
                if let Some((weight, eps)) = norm {
                    normed.copy_from_slice(x);
                    isa.run(RmsNorm { rows: &mut normed, weight, eps });
                    x = &normed;
                }
                isa.run(Encode { x, codes, steps });
            }
        });
        let mut starts: Vec<(i32, Vec<Start>)> = Vec::new();
        for offset in weights.iter().map(|w| w.format.offset()).filter(|offset| *offset != 0) {
            if starts.iter().all(|(known, _)| *known != offset) {
                starts.push((offset, steps.iter().map(|step| step.start(offset)).collect()));
            }
        }
        Self { codes, steps, starts }
    }

    /// `[n_rows, k]`.
    pub(super) fn codes(&self) -> &[i8] {
        bytemuck::cast_slice(&self.codes)
    }

    /// What sums of products with codes of an offset begin with, `[n_rows, k / 32]`; empty: with nothing.
    pub(super) fn starts(&self, offset: i32) -> &[Start] {
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
