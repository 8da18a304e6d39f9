//! What the next pass computes: a row for every turn that decodes, and a bounded chunk of prompts. Pure.

/// What a running turn has to feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// Tokens known but not fed: the rest of a prompt, or one sampled token.
    pub(crate) pending: usize,
    /// Whether the turn has read its prompt.
    pub(crate) decoding: bool,
}

/// Plans one pass: how many tokens each turn feeds.
///
/// Every decoding turn feeds its token. Prompts share at most `chunk` rows, taken in turn order from `cursor` on, so
/// that a long prompt neither stops the others' decoding nor starves a prompt that came after it.
pub(crate) fn plan(loads: &[Load], cursor: usize, chunk: usize) -> Vec<usize> {
    let mut left = chunk.max(1);
    let mut feed: Vec<usize> = loads.iter().map(|l| if l.decoding { l.pending } else { 0 }).collect();
    for i in 0..loads.len() {
        let turn = (cursor + i) % loads.len();
        if !loads[turn].decoding {
            feed[turn] = loads[turn].pending.min(left);
            left -= feed[turn];
        }
    }
    feed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoders_always_step_and_prompts_share_a_chunk_in_turn() {
        let prompt = |pending| Load { pending, decoding: false };
        let token = Load { pending: 1, decoding: true };
        assert_eq!(plan(&[prompt(300), token, prompt(10)], 0, 256), [256, 1, 0]);
        assert_eq!(plan(&[prompt(300), token, prompt(10)], 2, 256), [246, 1, 10]);
        assert_eq!(plan(&[token, token], 1, 256), [1, 1]);
        assert_eq!(plan(&[], 0, 256), [0; 0]);
    }
}
