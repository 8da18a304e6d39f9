//! Figures of a reply's token from its row of logits, if requested
//! ([`Request::logprobs`](crate::Request::logprobs)).

use crate::device::{LOGITS_PER_PIECE, maxima};
use crate::scoring::distribution::Distribution;
use crate::{TokenLogprob, TopLogprob};
use std::cmp::Ordering;

/// The log-probability of a token, and the `n` most likely ones; `piece` gives the text of a token.
pub(crate) fn token_logprob<'a>(
    id: u32,
    distribution: &Distribution<'_>,
    n: usize,
    piece: impl Fn(u32) -> &'a [u8],
) -> TokenLogprob {
    let bytes = |id: u32| piece(id).to_vec();
    let top = likeliest(distribution.logits(), n).into_iter();
    let top = top.map(|id| TopLogprob { id, bytes: bytes(id), logprob: distribution.logprob(id) });
    TokenLogprob { id, bytes: bytes(id), logprob: distribution.logprob(id), top: top.collect() }
}

/// Ids of the `n` greatest logits, greatest first; the lowest id first among equals. `n` is small.
fn likeliest(logits: &[f32], n: usize) -> Vec<u32> {
    if n == 0 {
        return Vec::new();
    }
    let maxima = maxima(logits);
    // Each of n pieces has a logit that is not below this.
    let least = if n < maxima.len() {
        *maxima.clone().select_nth_unstable_by(n - 1, |a, b| b.total_cmp(a)).1
    } else {
        f32::NEG_INFINITY
    };
    let mut top = Vec::new();
    for (i, piece) in logits.chunks(LOGITS_PER_PIECE).enumerate().filter(|(i, _)| maxima[*i] >= least) {
        let ids = (i * LOGITS_PER_PIECE) as u32..;
        top.extend(ids.zip(piece.iter().copied()).filter(|(_, logit)| *logit >= least));
    }
    top.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap_or(Ordering::Equal));
    top.into_iter().take(n).map(|(id, _)| id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_come_first_and_equals_by_their_ids() {
        let logits = [0.5, 3.0, -7.0, -1.0, 3.0, 2.0, 0.5, f32::NEG_INFINITY];
        assert_eq!(likeliest(&logits, 5), [1, 4, 5, 0, 6]);
        assert_eq!(likeliest(&logits, 99), [1, 4, 5, 0, 6, 3, 2, 7]);
        assert_eq!(likeliest(&logits, 0), [0u32; 0]);
        for seed in 0..50u64 {
            let logits: Vec<f32> = (0..2000).map(|i| ((i * 7919 + seed * 31) % 613) as f32 / 7.0).collect();
            let mut all: Vec<u32> = (0..2000).collect();
            all.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
            for n in [1, 5, 15, 16, 20] {
                assert_eq!(likeliest(&logits, n), all[..n], "{n} of {seed}");
            }
        }
    }
}
