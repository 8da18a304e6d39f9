//! What a row of logits says of a token of a reply, for whoever asks ([`Request::logprobs`](crate::Request::logprobs)).

use crate::scoring::distribution::Distribution;
use crate::{TokenLogprob, TopLogprob};

/// The log-probability of a token in `logits: [n_vocab]`, and the `n` most likely ones; `piece` gives the text of a token.
pub(crate) fn token_logprob<'a>(
    id: u32,
    logits: &[f32],
    n: usize,
    piece: impl Fn(u32) -> &'a [u8],
) -> TokenLogprob {
    let distribution = Distribution::of(logits);
    let bytes = |id: u32| piece(id).to_vec();
    let top = likeliest(logits, n).into_iter();
    let top = top.map(|id| TopLogprob { id, bytes: bytes(id), logprob: distribution.logprob(id) });
    TokenLogprob { id, bytes: bytes(id), logprob: distribution.logprob(id), top: top.collect() }
}

/// Ids of the `n` greatest logits, greatest first; the lowest id first among equals. `n` is small.
fn likeliest(logits: &[f32], n: usize) -> Vec<u32> {
    let mut top: Vec<(u32, f32)> = Vec::with_capacity(n + 1);
    for (id, logit) in (0..).zip(logits.iter().copied()).filter(|(_, logit)| !logit.is_nan()) {
        if top.len() == n && top.last().is_none_or(|(_, least)| logit <= *least) {
            continue;
        }
        top.insert(top.partition_point(|(_, other)| *other >= logit), (id, logit));
        top.truncate(n);
    }
    top.into_iter().map(|(id, _)| id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_come_first_and_equals_by_their_ids() {
        let logits = [0.5, 3.0, f32::NAN, -1.0, 3.0, 2.0, 0.5, f32::NEG_INFINITY];
        assert_eq!(likeliest(&logits, 5), [1, 4, 5, 0, 6]);
        assert_eq!(likeliest(&logits, 99), [1, 4, 5, 0, 6, 3, 7]);
        assert_eq!(likeliest(&logits, 0), [0u32; 0]);
    }
}
