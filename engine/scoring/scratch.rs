//! A temporary cache, for scoring, ranking and the self-check.

use crate::Result;
use crate::device::Device;
use crate::kv::layout::{BLOCK, KvLayout};
use crate::kv::table::BlockHash;
use crate::memory::arena::Arena;
use crate::memory::pass::{Span, Wanted, forward, forward_hidden, most_wanted};
use crate::memory::sequence::Sequence;
use std::sync::Arc;

/// Takes a position and its logits, and says whether to go on.
pub(crate) type See<'a> = dyn FnMut(usize, &[f32]) -> Result<()> + 'a;

/// One sequence with an arena of its own.
pub(crate) struct ScratchSequence {
    pub(crate) sequence: Sequence,
    pub(crate) arena: Arena,
}

impl ScratchSequence {
    /// Nothing read yet.
    pub(crate) fn new(device: &Arc<dyn Device>, layout: Arc<KvLayout>) -> Self {
        let arena = Arena::new(device, &layout, u64::MAX);
        Self { sequence: Sequence::new(layout, BlockHash::root("scratch")), arena }
    }

    /// Feeds what the sequence lacks of `ids`; `see` is given positions and logits of the wanted rows
    /// (`Last`: of the last id alone).
    ///
    /// # Errors
    /// As [`ScratchSequence::step`].
    pub(crate) fn read(&mut self, ids: &[u32], wanted: Wanted, see: &mut See<'_>) -> Result<()> {
        while !self.step(ids, wanted, see)? {}
        Ok(())
    }

    /// One pass of [`ScratchSequence::read`], over a block at most; `true`: it was the last one.
    ///
    /// # Errors
    /// As [`forward`]; or what `see` returns.
    pub(crate) fn step(&mut self, ids: &[u32], wanted: Wanted, see: &mut See<'_>) -> Result<bool> {
        if self.sequence.len() >= ids.len() {
            return Ok(true);
        }
        let n_vocab = self.arena.device().n_vocab();
        let step = match wanted {
            Wanted::All => most_wanted(&**self.arena.device()),
            _ => BLOCK,
        };
        let end = ((self.sequence.len() / step + 1) * step).min(ids.len());
        let wanted = if end < ids.len() && wanted == Wanted::Last { Wanted::None } else { wanted };
        let logits = self.advance(ids, end, wanted)?;
        let n = logits.len() / n_vocab;
        for (pos, row) in (end - n..end).zip(logits.chunks_exact(n_vocab)) {
            see(pos, row)?;
        }
        Ok(end == ids.len())
    }

    /// Feeds what the sequence lacks of `ids[..end]` in one pass, and returns the wanted rows' logits,
    /// `[n, n_vocab]`.
    ///
    /// # Errors
    /// As [`forward`].
    pub(crate) fn advance(&mut self, ids: &[u32], end: usize, wanted: Wanted) -> Result<Vec<f32>> {
        let span = Span { sequence: &mut self.sequence, tokens: ids, end, certain: end, logits: wanted };
        let logits = forward(vec![span], &mut self.arena)?.pop().unwrap_or_default();
        self.sequence.trim_window(usize::MAX, &mut self.arena);
        Ok(logits)
    }

    /// The same, and returns the hidden states after the final norm of all rows fed, `[n, d_model]`.
    ///
    /// # Errors
    /// As [`forward_hidden`].
    pub(crate) fn advance_hidden(&mut self, ids: &[u32], end: usize) -> Result<Vec<f32>> {
        let span = Span { sequence: &mut self.sequence, tokens: ids, end, certain: end, logits: Wanted::All };
        let states = forward_hidden(span, &mut self.arena)?;
        self.sequence.trim_window(usize::MAX, &mut self.arena);
        Ok(states)
    }
}
