//! Words as tokens: with a space before them, and without.

use std::collections::HashMap;

/// The tokens of a vocabulary that differ in a space before them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Words {
    /// Of each token the one without a space, or itself.
    bare: Vec<u32>,
    /// Of each of these the one with a space, or itself.
    spaced: Vec<u32>,
}

impl Words {
    /// Those of a vocabulary, its tokens' bytes given.
    pub(crate) fn of<'a>(pieces: impl ExactSizeIterator<Item = &'a [u8]> + Clone) -> Self {
        let ids = 0..pieces.len() as u32;
        let (mut bare, mut spaced): (Vec<u32>, Vec<u32>) = (ids.clone().collect(), ids.collect());
        let known: HashMap<&[u8], u32> = pieces.clone().zip(0..).collect();
        for (id, piece) in (0..).zip(pieces) {
            let word = piece.strip_prefix(b" ").filter(|word| !word.is_empty());
            if let Some(other) = word.and_then(|word| known.get(word)) {
                (bare[id as usize], spaced[*other as usize]) = (*other, id);
            }
        }
        Self { bare, spaced }
    }

    /// A token without a space before it, and with one; the token itself where the vocabulary has no other one.
    pub(crate) fn spellings(&self, id: u32) -> [u32; 2] {
        let of = |ids: &[u32], id: u32| ids.get(id as usize).copied().unwrap_or(id);
        let bare = of(&self.bare, id);
        [bare, of(&self.spaced, bare)]
    }
}
