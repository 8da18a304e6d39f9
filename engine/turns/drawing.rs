//! Draws the next token of a reply.
//!
//! A token that would leave nothing of a reply is refused, not undone: where a stop string would be complete
//! before anything was said, the token that completes it is drawn again without it, from the same number. So
//! is one that begins a call which is not allowed, and one that would make the reply's ids others than those of
//! its text ([`canonical`](crate::turns::canonical)). The cache never goes back for it, and following a recording
//! makes the same refusals.

use crate::device::Best;
use crate::text::tokenizer::Tokenizer;
use crate::turns::reply::ReplyText;
use crate::turns::sampler::{self, Row};
use crate::{Error, ErrorKind, Request, Result};

/// Maximum number of ids that are refused one after the other; then the next one is said.
const MAX_REFUSED: usize = 512;

/// The id that the sampler draws after a reply; one that would leave nothing of it is not drawn.
///
/// # Errors
/// The logits are not probabilities, or the reply's grammar became too costly.
pub(super) fn drawn(
    all: &[f32],
    reply: &mut ReplyText,
    request: &Request,
    tokenizer: &Tokenizer,
    eog: &[u32],
) -> Result<u32> {
    let id = freely_drawn(all, reply, request, tokenizer, eog)?;
    reply.choose(id, all, &request.sampling, tokenizer, eog)
}

/// True if a reply can't end yet.
fn must_go_on(reply: &ReplyText, request: &Request) -> bool {
    reply.ids().len() < request.min_tokens && !reply.is_guided() || reply.must_go_on()
}

fn freely_drawn(
    logits: &[f32],
    reply: &mut ReplyText,
    request: &Request,
    tokenizer: &Tokenizer,
    eog: &[u32],
) -> Result<u32> {
    let mut row = Row::new(logits, reply.ids(), reply.ids_so_far(), &request.sampling);
    if must_go_on(reply, request) {
        eog.iter().filter(|id| !reply.goes_on_with(**id)).for_each(|id| row.exclude(*id));
    }
    let mut n_refused = 0;
    loop {
        let id = sampler::choose(&row, &request.sampling).ok_or_else(|| no_probabilities(logits))?;
        let is_end = request.end_ids.contains(&id);
        if is_end || n_refused == MAX_REFUSED || !reply.refuses(id, tokenizer) {
            return Ok(id);
        }
        row.exclude(id);
        n_refused += 1;
    }
}

/// The error of a row of logits that are not probabilities.
pub(super) fn no_probabilities(logits: &[f32]) -> Error {
    let count = |is: fn(&f32) -> bool| logits.iter().filter(|x| is(x)).count();
    let (n_nan, n_infinite) = (count(|x| x.is_nan()), count(|x| x.is_infinite()));
    let detail = format!(
        "the model gave no probabilities for the next token: of {} logits, {n_nan} are NaN and {n_infinite} \
         infinite; the model file may be damaged, or its numbers too large for this device: try another file \
         of the model, or another device",
        logits.len()
    );
    Error::new(ErrorKind::Model, detail)
}

/// The same id, if the likeliest tokens say which it is.
pub(super) fn drawn_among(
    best: &Best,
    reply: &mut ReplyText,
    request: &Request,
    tokenizer: &Tokenizer,
    eog: &[u32],
) -> Option<u32> {
    let mut best = best.clone();
    if must_go_on(reply, request) {
        best.candidates.retain(|(id, _)| !eog.contains(id) || reply.goes_on_with(*id));
    }
    for _ in 0..=MAX_REFUSED {
        let id = sampler::choose_among(&best, reply.ids(), reply.ids_so_far(), &request.sampling)?;
        if request.end_ids.contains(&id) || !reply.refuses(id, tokenizer) {
            return Some(id);
        }
        best.candidates.retain(|(other, _)| *other != id);
    }
    None
}
