//! A text read with caches of several formats side by side: what each does to the next token's distribution.
//!
//! The cost of a format is measured on an F32 copy of a model. With coded weights activations are rounded to
//! 8 bits, and any other bit in the cache rounds them otherwise: on SmolLM2 and Gemma 3 270M that alone (an
//! f16 cache, rotated or not) is a mean KL divergence of 0.004 to 0.005 nats, as much as the format.

use crate::device::{Device, divergence};
use crate::kv::layout::KvLayout;
use crate::memory::pass::{Wanted, most_wanted};
use crate::scoring::distribution::argmax;
use crate::scoring::scratch::ScratchSequence;
use crate::{FormatDivergence, Result};
use greenroom_kernels::threads;
use std::sync::Arc;

/// A text that is read with a cache of each layout, the first of which is what the others are compared with.
///
/// All caches take a step before any takes the next, so that only one step's logits are held.
pub(crate) struct Comparison {
    caches: Vec<ScratchSequence>,
    ids: Vec<u32>,
    /// Position that comes next.
    next: usize,
}

impl Comparison {
    /// Nothing read yet.
    pub(crate) fn new(device: &Arc<dyn Device>, layouts: &[Arc<KvLayout>], ids: Vec<u32>) -> Self {
        let caches = layouts.iter().map(|layout| ScratchSequence::new(device, layout.clone())).collect();
        Self { caches, ids, next: 0 }
    }

    /// Reads the tokens before `first`, whose results are not used.
    ///
    /// # Errors
    /// As [`crate::memory::pass::forward`].
    pub(crate) fn skip(&mut self, first: usize) -> Result<()> {
        for scratch in &mut self.caches {
            scratch.read(&self.ids[..first], Wanted::None, &mut |_, _| Ok(()))?;
        }
        self.next = first;
        Ok(())
    }

    /// One pass over each cache; `see` is given positions, each with one figure a layout. `true`: it was the
    /// last one.
    ///
    /// # Errors
    /// As [`crate::memory::pass::forward`]; or what `see` returns.
    pub(crate) fn step(
        &mut self,
        see: &mut dyn FnMut(usize, &[FormatDivergence]) -> Result<()>,
    ) -> Result<bool> {
        let Self { caches, ids, next } = self;
        let (start, Some(device)) = (*next, caches.first().map(|scratch| scratch.arena.device().clone()))
        else {
            return Ok(true);
        };
        if start >= ids.len() {
            return Ok(true);
        }
        let (step, n_vocab) = (most_wanted(&*device), device.n_vocab());
        let end = ((start / step + 1) * step).min(ids.len());
        let mut all = Vec::with_capacity(caches.len());
        for scratch in caches {
            all.push(scratch.advance(ids, end, Wanted::All)?);
        }
        let row = |logits: usize, i: usize| &all[logits][i * n_vocab..][..n_vocab];
        let figures = threads::map(end - start, |i| -> Vec<FormatDivergence> {
            let next = ids.get(start + i + 1).map(|id| *id as usize);
            let figure = |logits: usize| {
                let (reference, row) = (row(0, i), row(logits, i));
                let found = divergence(reference, row);
                let logprob = next.map(|id| f64::from(row[id]) - found.log_sum);
                FormatDivergence { logprob, top: argmax(row), divergence: found.nats }
            };
            (0..all.len()).map(figure).collect()
        });
        for (pos, figures) in (start..end).zip(figures) {
            see(pos, &figures)?;
        }
        *next = end;
        Ok(end == ids.len())
    }
}
