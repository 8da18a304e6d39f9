//! A pass through the model: new tokens of many sequences in, logits out. Here it is planned; a device runs
//! it.

use crate::device::{Best, Device, IsAwaited, Output, Pass};
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
    /// Position from which on tokens may not stay: guesses, and options that are weighed.
    pub(crate) certain: usize,
    /// Rows whose logits are wanted.
    pub(crate) logits: Wanted,
}

/// Rows of a span that give logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Wanted {
    None,
    /// The last row's, to draw a token at a temperature: the likeliest tokens may be enough.
    Best(f32),
    Last,
    All,
}

/// Logits of a span's rows.
pub(crate) enum SpanLogits {
    /// `[rows wanted, n_vocab]`.
    All(Vec<f32>),
    /// The likeliest tokens of its last row.
    Best(Best),
}

/// Maximum number of logits that are in memory at a time (but one row's).
const LOGITS: usize = 1 << 23;

/// Rows of a sequence whose logits may be wanted of one pass.
pub(crate) fn most_wanted(device: &dyn Device) -> usize {
    (LOGITS / device.n_vocab()).clamp(1, BLOCK)
}

/// Runs one pass over spans of an arena's sequences, none of which wants [`Wanted::Best`]: logits span by
/// span, `[rows wanted, n_vocab]`.
///
/// # Errors
/// As [`forward_best`].
pub(crate) fn forward(spans: Vec<Span<'_>>, arena: &mut Arena) -> Result<Vec<Vec<f32>>> {
    let given = forward_best(spans, None, arena)?;
    let all = given.into_iter().map(|given| match given {
        SpanLogits::All(logits) => Ok(logits),
        SpanLogits::Best(_) => Err(Error::internal("all logits were wanted")),
    });
    all.collect()
}

/// Runs one pass over spans of an arena's sequences, and returns the wanted logits, span by span.
///
/// # Errors
/// A token outside the vocabulary, a position outside the context, a failure of the device; or no
/// caller waits for it any more. The sequences are then as before.
pub(crate) fn forward_best(
    spans: Vec<Span<'_>>,
    is_awaited: Option<IsAwaited>,
    arena: &mut Arena,
) -> Result<Vec<SpanLogits>> {
    let n_vocab = arena.device().n_vocab();
    let (output, n_wanted) = run(spans, false, is_awaited, arena)?;
    match output {
        Output::Logits(logits) => {
            let mut rest = logits.as_slice();
            let of_span = |n: usize| {
                let (piece, after) = rest.split_at(n * n_vocab);
                rest = after;
                SpanLogits::All(piece.to_vec())
            };
            Ok(n_wanted.into_iter().map(of_span).collect())
        }
        Output::Best(best) => {
            let mut best = best.into_iter();
            let of_span = |n: usize| {
                let found = if n > 0 { best.next() } else { None };
                found.map_or(SpanLogits::All(Vec::new()), SpanLogits::Best)
            };
            Ok(n_wanted.into_iter().map(of_span).collect())
        }
        Output::Hidden(_) => Err(Error::internal("logits were wanted")),
    }
}

/// Runs one pass over a span, and returns the hidden states after the final norm of the rows that it wants,
/// `[rows wanted, d_model]`.
///
/// # Errors
/// As [`forward_best`].
pub(crate) fn forward_hidden(span: Span<'_>, arena: &mut Arena) -> Result<Vec<f32>> {
    match run(vec![span], true, None, arena)?.0 {
        Output::Hidden(states) => Ok(states),
        _ => Err(Error::internal("hidden states were wanted")),
    }
}

/// Runs one pass; also returns the number of requested rows of each span.
fn run(
    spans: Vec<Span<'_>>,
    hidden: bool,
    is_awaited: Option<IsAwaited>,
    arena: &mut Arena,
) -> Result<(Output, Vec<usize>)> {
    let (n_vocab, most) = (arena.device().n_vocab(), arena.device().spec().context_length);
    let (mut ids, mut wanted, mut n_wanted) = (Vec::new(), Vec::new(), Vec::new());
    let mut best = Some(Vec::new());
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
            Wanted::Best(temperature) => {
                wanted.push(ids.len() - 1);
                best.iter_mut().for_each(|best: &mut Vec<f32>| best.push(temperature));
            }
            Wanted::Last => wanted.push(ids.len() - 1),
            Wanted::All => wanted.extend(first_row..ids.len()),
        }
        n_wanted.push(wanted.len() - before);
        if matches!(span.logits, Wanted::Last | Wanted::All) {
            best = None;
        }
    }
    if let Some(id) = ids.iter().find(|id| **id as usize >= n_vocab) {
        return Err(Error::request(format!("token {id} is not in the vocabulary of {n_vocab}")));
    }
    let (mut plans, mut sequences) = (Vec::new(), Vec::new());
    for Span { sequence, tokens, end, certain, .. } in spans {
        plans.push(sequence.plan_pass((certain.min(end), end), tokens.len(), arena));
        sequences.push((sequence, tokens));
    }
    let best = best.filter(|best| !best.is_empty());
    let pass = Pass { ids, spans: plans, wanted, hidden, best, is_awaited };
    let result = fault::pass().map_err(Error::internal).and_then(|()| arena.run(&pass));
    for ((sequence, tokens), plan) in sequences.into_iter().zip(pass.spans) {
        match &result {
            Ok(_) => sequence.finish_pass(plan, tokens, arena),
            Err(_) => sequence.abort_pass(plan, arena),
        }
    }
    let output = result.map_err(|e| Error::new(e.kind(), format!("a pass through the model failed: {e}")))?;
    Ok((output, n_wanted))
}
