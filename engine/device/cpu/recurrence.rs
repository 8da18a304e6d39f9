//! Recurrent layers: convolution, gates, and the matrices of a sequence's state.
//!
//! A task is some columns of one head of one sequence, and takes them through all of its tokens: what is
//! logged and not yet certain first, then those of the pass. Tokens that are not certain (guesses, options
//! that are weighed) are computed on a copy.

use super::Cpu;
use super::cache::{CpuCache, SealedTile};
use crate::Result;
use crate::device::states::LiveState;
use crate::device::{Pass, Seal, StateSpan};
use crate::model::family::RecurrentMixer;
use crate::model::spec::RecurrenceSpec;
use crate::model::weights::{RecurrenceWeights, StateHeads};
use greenroom_kernels::floats::Floats;
use greenroom_kernels::panel::Packed;
use greenroom_kernels::pointwise::{Activation, gate, rms_norm_in_place, sigmoid};
use greenroom_kernels::recurrence::{Columns, Convolution, Rule, Sealed, Tokens, convolve, decay, walk};
use greenroom_kernels::threads::{for_items, for_rows};
use greenroom_kernels::{LANES, halves};
use half::f16;
use std::ops::Range;

/// Floats of rows that a task prepares together, at least.
const FLOATS_PER_TASK: usize = 1 << 13;

/// A sequence's tokens in a layer.
struct Walked {
    /// What the convolution makes of the tokens from where the state stands: `[n, channels]`; keys and queries
    /// are normed where the rule has them so.
    mixed: Floats,
    gates: Vec<f32>,
}

/// Columns of a head, and what its task makes.
struct Task<'a> {
    of: &'a Walked,
    span: &'a StateSpan,
    format: Sealed,
    /// Where the state stands, and where the tokens of the pass begin and end.
    at: usize,
    new: Range<usize>,
    head: usize,
    first: usize,
    tile: &'a mut [f32],
    /// What the tokens of the pass read, `[n, columns]`.
    out: Vec<f32>,
    /// Elements and scales at each seal that is kept.
    sealed: Vec<(Seal, Vec<u8>, Vec<f32>)>,
}

impl Cpu {
    /// The products with [`RecurrenceWeights::input`], `[n_rows, …]` each → what
    /// [`RecurrenceWeights::output`] is multiplied with, `[n_rows, width]`.
    pub(super) fn recurrence(
        &self,
        products: Vec<Floats>,
        own: &RecurrenceSpec,
        weights: &RecurrenceWeights<Packed>,
        pass: &Pass,
        cache: &mut CpuCache,
    ) -> Floats {
        let (n_rows, format) = (pass.ids.len(), cache.states.format.sealed);
        let (inputs, gates, outer) = self.inputs_of(products, own, weights);
        let width = if own.n_heads > 0 { own.inner() } else { own.channels };
        let (mut read, mut values) = (Floats::new(n_rows * width), Floats::new(n_rows * width));
        let mut first = 0;
        let mut spans = Vec::new();
        for span in &pass.spans {
            let state = span.state.as_ref().expect("a span of a model with recurrent layers has a state");
            let mut live = cache.states.take(state.id);
            let rows = first..first + span.n;
            let (channels, n_gates) = (own.channels, 2 * own.n_heads);
            let of = |width: usize| rows.start * width..rows.end * width;
            live.append(own.state, &inputs[of(channels)], &gates[of(n_gates)]);
            let walked = self.walked(&mut live, own, weights);
            // Values, or what a convolution alone gives, of the pass's own tokens.
            let n_logged = walked.mixed.len() / channels - span.n;
            for (row, mixed) in rows.clone().zip(walked.mixed.chunks_exact(channels).skip(n_logged)) {
                values[row * width..][..width].copy_from_slice(&mixed[own.values()]);
            }
            spans.push((state, live, walked, span.start..span.start + span.n));
            first += span.n;
        }
        let mut tasks = Vec::new();
        for (state, live, walked, new) in &mut spans {
            self.tasks(own, format, live, (state, walked, new.clone()), &mut tasks);
        }
        for_items(&mut tasks, |_, task| self.run_task(own, task));
        let sealed = self.collect(own, pass, tasks, &mut read);
        for ((state, live, ..), sealed) in spans.into_iter().zip(sealed) {
            cache.seal_layer(own, state, &live, sealed);
            cache.states.put(state.id, live);
        }
        self.finished(own, weights, outer, read, values)
    }

    /// Advances a state to its last seal.
    pub(super) fn seal_state(&self, span: &StateSpan, cache: &mut CpuCache) -> Result<()> {
        cache.begin_seals(span);
        for (layer, weights) in self.spec.layers.iter().zip(&self.weights.layers) {
            let (Some(own), Some(weights)) = (&layer.recurrence, &weights.recurrence) else { continue };
            let mut live = cache.states.take(span.id);
            let walked = self.walked(&mut live, own, weights);
            let mut tasks = Vec::new();
            self.tasks(
                own,
                cache.states.format.sealed,
                &mut live,
                (span, &walked, span.certain..span.certain),
                &mut tasks,
            );
            for_items(&mut tasks, |_, task| self.run_task(own, task));
            let sealed = tasks.into_iter().map(|task| (task.head, task.first, task.sealed)).collect();
            cache.seal_layer(own, span, &live, sealed);
            cache.states.put(span.id, live);
        }
        cache.states.finish(span);
        Ok(())
    }

    /// Inputs of the convolution, `[n_rows, channels]`; decays and strengths, `[n_rows, n_heads, 2]`; and the
    /// gates of what comes out.
    fn inputs_of(
        &self,
        products: Vec<Floats>,
        own: &RecurrenceSpec,
        weights: &RecurrenceWeights<Packed>,
    ) -> (Vec<f16>, Vec<f32>, Floats) {
        let mut products = products.into_iter();
        let mut next = || products.next().unwrap_or_else(|| Floats::new(0));
        let (first, second, third) = (next(), next(), next());
        let (mixed, outer, gates) = match own.mixer {
            RecurrentMixer::ShortConvolution => {
                let (mut mixed, inputs) = (first, third);
                mixed.iter_mut().zip(inputs.iter()).for_each(|(gate, x)| *gate *= x);
                (mixed, second, Vec::new())
            }
            RecurrentMixer::Mamba2 => {
                let of = |heads: &StateHeads| {
                    let gates = third.iter().enumerate().map(|(i, x)| {
                        let head = i % own.n_heads;
                        let (step, decay) = decay(*x, heads.bias[head], heads.slope[head]);
                        [decay, step]
                    });
                    gates.flatten().collect()
                };
                (second, first, weights.heads.as_ref().map_or(Vec::new(), of))
            }
            RecurrentMixer::Delta { .. } => {
                let (mut strengths, decays) = (third, next());
                sigmoid(self.isa, &mut strengths);
                let of = |heads: &StateHeads| {
                    let gates = decays.iter().zip(strengths.iter()).enumerate().map(|(i, (x, strength))| {
                        let head = i % own.n_heads;
                        [decay(*x, heads.bias[head], heads.slope[head]).1, *strength]
                    });
                    gates.flatten().collect()
                };
                (first, second, weights.heads.as_ref().map_or(Vec::new(), of))
            }
        };
        let mut inputs = vec![f16::ZERO; mixed.len()];
        halves::round(self.isa, &mixed, &mut inputs);
        (inputs, gates, outer)
    }

    /// The tokens of a layer from where a state stands.
    fn walked(
        &self,
        live: &mut LiveState,
        own: &RecurrenceSpec,
        weights: &RecurrenceWeights<Packed>,
    ) -> Walked {
        let (_, inputs, gates) = live.walked(own.state);
        let n = inputs.len() / own.channels - (own.taps - 1);
        let mut mixed = Floats::new(n * own.channels);
        let of = Convolution {
            weights: &weights.convolution,
            bias: weights.convolution_bias.as_deref(),
            silu: own.n_heads > 0,
            channels: own.channels,
        };
        convolve(self.isa, of, inputs, &mut mixed);
        if matches!(own.mixer, RecurrentMixer::Delta { .. }) {
            // Each head is as long as 1, and queries are shorter by the root of their width.
            let (k_dim, width) = (own.k_dim, own.key_width());
            let root = 1.0 / (k_dim as f64).sqrt();
            let (query, key) = (vec![(root * root) as f32; k_dim], vec![root as f32; k_dim]);
            let eps = self.spec.norm_eps / k_dim as f32;
            for_rows([&mut mixed], n, FLOATS_PER_TASK / own.channels, |_, [rows]| {
                for row in rows.chunks_exact_mut(own.channels) {
                    rms_norm_in_place(self.isa, &mut row[..width], &query, eps);
                    rms_norm_in_place(self.isa, &mut row[width..2 * width], &key, eps);
                }
            });
        }
        Walked { mixed, gates: gates.to_vec() }
    }

    /// Splits a state's matrices over tasks.
    fn tasks<'a>(
        &self,
        own: &RecurrenceSpec,
        format: Sealed,
        live: &'a mut LiveState,
        (span, of, new): (&'a StateSpan, &'a Walked, Range<usize>),
        tasks: &mut Vec<Task<'a>>,
    ) {
        let RecurrenceSpec { k_dim, v_dim, .. } = *own;
        if own.n_heads == 0 {
            return;
        }
        let at = live.at;
        let columns = if v_dim % (2 * LANES) == 0 { 2 * LANES } else { LANES };
        let tiles = live.walked(own.state).0.chunks_exact_mut(columns * k_dim).enumerate();
        tasks.extend(tiles.map(|(i, tile)| {
            let (head, first) = (i * columns / v_dim, i * columns % v_dim);
            let new = new.clone();
            Task { of, span, format, at, new, head, first, tile, out: Vec::new(), sealed: Vec::new() }
        }));
    }

    fn run_task(&self, own: &RecurrenceSpec, task: &mut Task<'_>) {
        let Task { of, span, format, at, new, head, first, tile, out, sealed } = task;
        let (columns, channels) = (tile.len() / own.k_dim, own.channels);
        let (rule, queries, keys) = match own.mixer {
            RecurrentMixer::Delta { .. } => (Rule::Delta, 0, own.key_width()),
            _ => (Rule::Additive, own.inner() + own.key_width(), own.inner()),
        };
        let head_of = |part: usize| Columns {
            rows: &of.mixed,
            width: channels,
            first: part + own.key_head(*head) * own.k_dim,
            n: own.k_dim,
        };
        let values = own.values().start + *head * own.v_dim + *first;
        let tokens = Tokens {
            rule,
            keys: head_of(keys),
            queries: head_of(queries),
            values: Columns { rows: &of.mixed, width: channels, first: values, n: columns },
            gates: Columns { rows: &of.gates, width: 2 * own.n_heads, first: 2 * *head, n: 2 },
        };
        out.resize(new.len() * columns, 0.0);
        let mut copy = Vec::new();
        let mut here = *at;
        // Tokens up to a place: those of the pass are read.
        let mut go = |tile: &mut [f32], to: usize, out: &mut [f32]| {
            let middle = new.start.clamp(here, to.max(here));
            let rows = |range: Range<usize>| range.start - *at..range.end - *at;
            walk(self.isa, tokens, rows(here..middle), tile, &mut []);
            if middle < to {
                let read = &mut out[(middle - new.start) * columns..(to - new.start) * columns];
                walk(self.isa, tokens, rows(middle..to), tile, read);
            }
            here = to.max(here);
        };
        let format = *format;
        let mut seals = span.seals.iter().copied().peekable();
        while let Some(seal) = seals.next_if(|seal| seal.at <= span.certain) {
            go(tile, seal.at, out);
            let kept = usize::from(seal.to.is_some());
            let mut elements = vec![0; kept * tile.len() * format.element()];
            let mut scales = vec![0.0; kept * format.n_scales(columns)];
            format.seal(self.isa, tile, own.k_dim, &mut elements, &mut scales);
            if seal.to.is_some() {
                sealed.push((seal, elements, scales));
            }
        }
        go(tile, span.certain, out);
        if span.certain < new.end {
            copy.extend_from_slice(tile);
            for seal in seals {
                go(&mut copy, seal.at, out);
                format.seal(self.isa, &mut copy, own.k_dim, &mut [], &mut []);
            }
            go(&mut copy, new.end, out);
        }
    }

    /// What all tasks read, at its place in `read: [n_rows, inner]`, and what each span's tasks sealed.
    fn collect(
        &self,
        own: &RecurrenceSpec,
        pass: &Pass,
        tasks: Vec<Task<'_>>,
        read: &mut [f32],
    ) -> Vec<Vec<SealedTile>> {
        let (inner, mut tasks, mut row) = (own.inner(), tasks.into_iter(), 0);
        let n_tiles = tasks.len() / pass.spans.len().max(1);
        let mut sealed = Vec::new();
        for span in &pass.spans {
            let mut of_span = Vec::new();
            for task in tasks.by_ref().take(n_tiles) {
                let columns = task.tile.len() / own.k_dim;
                let first = task.head * own.v_dim + task.first;
                for (i, out) in task.out.chunks_exact(columns).enumerate() {
                    read[(row + i) * inner + first..][..columns].copy_from_slice(out);
                }
                of_span.push((task.head, task.first, task.sealed));
            }
            sealed.push(of_span);
            row += span.n;
        }
        sealed
    }

    /// What was read, normed and gated.
    fn finished(
        &self,
        own: &RecurrenceSpec,
        weights: &RecurrenceWeights<Packed>,
        mut outer: Floats,
        mut read: Floats,
        values: Floats,
    ) -> Floats {
        let Some(heads) = &weights.heads else {
            outer.iter_mut().zip(values.iter()).for_each(|(gate, x)| *gate *= x);
            return outer;
        };
        let eps = self.spec.norm_eps;
        if let Some(skip) = &heads.skip {
            let each = read.chunks_exact_mut(own.v_dim).zip(values.chunks_exact(own.v_dim));
            for ((read, values), skip) in each.zip(skip.iter().cycle()) {
                read.iter_mut().zip(values).for_each(|(y, x)| *y += x * skip);
            }
            gate(self.isa, Activation::Silu, &mut outer, &read);
            if let Some(norm) = &heads.norm {
                let width = own.inner() / own.n_key_heads;
                for row in outer.chunks_exact_mut(own.inner()) {
                    for (group, norm) in row.chunks_exact_mut(width).zip(norm.chunks_exact(width)) {
                        rms_norm_in_place(self.isa, group, norm, eps);
                    }
                }
            }
            return outer;
        }
        if let Some(norm) = &heads.norm {
            rms_norm_in_place(self.isa, &mut read, norm, eps);
        }
        gate(self.isa, Activation::Silu, &mut outer, &read);
        outer
    }
}
