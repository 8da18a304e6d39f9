//! A pass through the model: new tokens of many sequences in, logits out. Here it is planned; a device runs it.

use crate::device::{Device, Pass};
use crate::kv::layout::BLOCK;
use crate::memory::arena::Arena;
use crate::memory::sequence::Sequence;
use crate::{Error, Result, fault};

/// New tokens of one sequence.
pub(crate) struct Span<'a> {
    pub(crate) sequence: &'a mut Sequence,
    /// All tokens of the sequence, the new ones included: those from the cache's end to `end` are fed.
    pub(crate) tokens: &'a [u32],
    /// Position at which this pass stops.
    pub(crate) end: usize,
    /// Rows whose logits are wanted.
    pub(crate) logits: Wanted,
}

/// Rows of a span that give logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    None,
    Last,
    All,
}

/// Logits that are in memory at a time, at most (but one row's).
const LOGITS: usize = 1 << 23;

/// Rows of a sequence whose logits may be wanted of one pass.
pub(crate) fn most_wanted(device: &dyn Device) -> usize {
    (LOGITS / device.n_vocab()).clamp(1, BLOCK)
}

/// Runs one pass over spans of an arena's sequences, and returns the wanted logits, span by span: `[rows wanted, n_vocab]`.
///
/// # Errors
/// A token outside the vocabulary, a position outside the context, a failure of the device. The sequences are then as before.
pub(crate) fn forward(spans: Vec<Span<'_>>, arena: &mut Arena) -> Result<Vec<Vec<f32>>> {
    let (n_vocab, most) = (arena.device().n_vocab(), arena.device().spec().context_length);
    let (mut ids, mut wanted, mut n_wanted) = (Vec::new(), Vec::new(), Vec::new());
    for span in &spans {
        if span.end > most {
            let found = span.end;
            return Err(Error::request(format!(
                "{found} tokens do not fit in the model's context of {most}"
            )));
        }
        let first_row = ids.len();
        ids.extend_from_slice(&span.tokens[span.sequence.len()..span.end]);
        let before = wanted.len();
        match span.logits {
            Wanted::None => {}
            Wanted::Last => wanted.push(ids.len() - 1),
            Wanted::All => wanted.extend(first_row..ids.len()),
        }
        n_wanted.push(wanted.len() - before);
    }
    if let Some(id) = ids.iter().find(|id| **id as usize >= n_vocab) {
        return Err(Error::request(format!("token {id} is not in the vocabulary of {n_vocab}")));
    }
    let (mut plans, mut sequences) = (Vec::new(), Vec::new());
    for Span { sequence, tokens, end, .. } in spans {
        plans.push(sequence.plan_pass(end, arena));
        sequences.push((sequence, tokens));
    }
    let pass = Pass { ids, spans: plans, wanted };
    let result = fault::pass().map_err(Error::internal).and_then(|()| arena.run(&pass));
    for ((sequence, tokens), plan) in sequences.into_iter().zip(pass.spans) {
        match &result {
            Ok(_) => sequence.finish_pass(plan, tokens, arena),
            Err(_) => sequence.abort_pass(plan, arena),
        }
    }
    let logits = result.map_err(|e| Error::internal(format!("a pass through the model failed: {e}")))?;
    let mut rest = logits.as_slice();
    let of_span = |n: usize| {
        let (piece, after) = rest.split_at(n * n_vocab);
        rest = after;
        piece.to_vec()
    };
    Ok(n_wanted.into_iter().map(of_span).collect())
}
