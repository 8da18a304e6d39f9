//! Finds whole tokens in a text, before the text between them is merged.

use crate::Result;
use crate::model::gguf::Gguf;
use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

/// Some tokens, found leftmost first and longest first, as Hugging Face's and Google's tokenizers do.
pub(super) struct Finder {
    texts: AhoCorasick,
    ids: Vec<u32>,
}

/// A stretch of a text.
#[derive(Clone, Copy)]
pub(super) enum Fragment<'t> {
    Token(u32),
    Text(&'t str),
}

impl Finder {
    /// A finder of these tokens.
    ///
    /// # Errors
    /// They are too many to be searched.
    pub(super) fn new<T: AsRef<[u8]>>(
        gguf: &Gguf,
        tokens: impl IntoIterator<Item = (T, u32)>,
    ) -> Result<Self> {
        let (texts, ids): (Vec<T>, Vec<u32>) = tokens.into_iter().unzip();
        // A table of all bytes for each byte of few tokens (`DFA`) would be out of proportion to a long one.
        let texts = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(texts);
        let texts = texts.map_err(|e| gguf.error(format!("can't search for its special tokens: {e}")))?;
        Ok(Self { texts, ids })
    }

    /// Cuts a text at the tokens in it.
    pub(super) fn cut<'t>(&self, text: &'t str) -> Vec<Fragment<'t>> {
        let mut fragments = Vec::new();
        let mut end = 0;
        for found in self.texts.find_iter(text) {
            if end < found.start() {
                fragments.push(Fragment::Text(&text[end..found.start()]));
            }
            fragments.push(Fragment::Token(self.ids[found.pattern().as_usize()]));
            end = found.end();
        }
        if end < text.len() {
            fragments.push(Fragment::Text(&text[end..]));
        }
        fragments
    }
}
