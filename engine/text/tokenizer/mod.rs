//! Text to ids and back, from a GGUF's own metadata: byte-level BPE, Gemma 4's BPE of characters, and
//! SentencePiece's BPE.
//!
//! There are two encoders. Template text may name special tokens; in a message nothing is special, so that
//! one which says `<|im_end|>` is seven ordinary characters and more, never an end of turn. User-defined
//! tokens are of both sorts: those that look like structure (`<think>`) are special, plain ones (a run of
//! newlines) are found everywhere.
//!
//! Gemma's markup tokens, user-defined tokens: whitespace runs and HTML element names are plain text, markup
//! is not found in messages.

mod bpe;
mod finder;
mod spm;
mod vocabulary;

use crate::model::gguf::{Gguf, Value};
use crate::{Error, Result};
use bpe::{Alphabet, Bpe, LINES, PreTokenizer};
use finder::{Finder, Fragment};
use greenroom_grammar as grammar;
use spm::{SPACE, Spm};
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;
use vocabulary::{TokenKind, Vocabulary};

/// A model's vocabulary with its two encoders and its decoder.
pub(crate) struct Tokenizer {
    merger: Merger,
    /// Control tokens, markup and the unknown token: found in template text only.
    special: Finder,
    /// Plain user-defined tokens: found in every text.
    plain: Finder,
    /// The bytes of each token; a special token's are its own text.
    pieces: Vec<Box<[u8]>>,
    kinds: Vec<TokenKind>,
    /// Control tokens (`<|im_end|>`) by text.
    control: HashMap<String, u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    adds_bos: bool,
    eog: Vec<u32>,
    goes_on: Option<u32>,
    /// The trie that grammars are matched by, once one is.
    grammars: OnceLock<grammar::Result<grammar::Vocabulary>>,
}

/// Makes ids of text in which no token was found whole.
enum Merger {
    Bpe(Box<Bpe>),
    Spm(Spm),
}

/// Kind of the text before a piece of a prompt.
///
/// Old SentencePiece vocabularies begin a text with an extra space. Here, as in llama.cpp, it is at the start
/// of a prompt and after every special token; after other text there is none, though each is tokenized alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// Nothing, or a special token.
    Special,
    /// Other text.
    Text,
}

/// True if there is a pre-tokenizer of this name.
#[cfg(test)]
pub(crate) fn knows_pre_tokenizer(name: &str) -> bool {
    PreTokenizer::named(name).is_some()
}

/// Kind of a tokenizer, by its name in a model file.
enum Kind {
    /// Byte-level BPE, after a pre-tokenizer.
    Bytes(&'static PreTokenizer),
    /// BPE of characters (Gemma 4).
    Characters,
    SentencePiece,
}

impl Kind {
    fn of(gguf: &Gguf) -> Result<Self> {
        match gguf.text("tokenizer.ggml.model") {
            Some("gpt2") => Ok(Self::Bytes(PreTokenizer::of(gguf)?)),
            Some("gemma4") => Ok(Self::Characters),
            Some("llama") => Ok(Self::SentencePiece),
            Some(other) => Err(gguf.error(format!(
                "its tokenizer is `{other}`; expected byte-level BPE (`gpt2`), SentencePiece (`llama`) or \
                 Gemma 4's (`gemma4`)"
            ))),
            None => Err(gguf.error("it contains no tokenizer (`tokenizer.ggml.model` is missing)")),
        }
    }
}

impl Tokenizer {
    /// Checks that the tokenizer of a model file is of a kind that is served, by its name.
    ///
    /// # Errors
    /// It is not.
    pub(crate) fn check_kind(gguf: &Gguf) -> Result<()> {
        Kind::of(gguf).map(drop)
    }

    /// Reads the tokenizer of a model file.
    ///
    /// # Errors
    /// The file has none, one of a kind that is not served, or one that contradicts itself.
    pub(crate) fn from_gguf(gguf: &Gguf) -> Result<Self> {
        let (vocabulary, merger, adds_bos) = match Kind::of(gguf)? {
            Kind::Bytes(pre) => {
                let vocabulary = Vocabulary::read(gguf, [None; 3])?;
                let bpe = Bpe::new(gguf, &vocabulary, pre, Alphabet::Bytes)?;
                (vocabulary, Merger::Bpe(Box::new(bpe)), pre.adds_bos)
            }
            Kind::Characters => {
                let vocabulary = Vocabulary::read(gguf, [None; 3])?;
                let bpe = Bpe::new(gguf, &vocabulary, &LINES, Alphabet::Characters)?;
                (vocabulary, Merger::Bpe(Box::new(bpe)), LINES.adds_bos)
            }
            Kind::SentencePiece => {
                let vocabulary = Vocabulary::read(gguf, [Some(0), Some(1), Some(2)])?;
                let spm = Spm::new(gguf, &vocabulary)?;
                (vocabulary, Merger::Spm(spm), true)
            }
        };
        let is_special = |kind| matches!(kind, TokenKind::Control | TokenKind::Markup | TokenKind::Unknown);
        let written = |(text, id)| (merger.normalized(text).into_owned(), id);
        let special = Finder::new(gguf, vocabulary.of(is_special).map(written))?;
        let plain = Finder::new(gguf, vocabulary.of(|kind| kind == TokenKind::Plain).map(written))?;
        let pieces =
            vocabulary.tokens.iter().zip(&vocabulary.kinds).map(|(t, k)| merger.piece(t, *k)).collect();
        let control = vocabulary
            .of(|kind| kind == TokenKind::Control)
            .map(|(text, id)| (text.to_owned(), id))
            .collect();
        let adds_bos = match gguf.get("tokenizer.ggml.add_bos_token") {
            Some(Value::Bool(adds)) => *adds,
            _ => adds_bos,
        };
        let Vocabulary { kinds, bos, eos, eog, goes_on, .. } = vocabulary;
        let grammars = OnceLock::new();
        Ok(Self {
            merger,
            special,
            plain,
            pieces,
            kinds,
            control,
            bos,
            eos,
            adds_bos,
            eog,
            goes_on,
            grammars,
        })
    }

    /// Ids with the same meaning in another vocabulary: all of the smaller of the two.
    ///
    /// # Errors
    /// The first id that does not, as text.
    pub(crate) fn shared_with(&self, other: &Self) -> std::result::Result<usize, String> {
        let n = self.n_vocab().min(other.n_vocab());
        let differs =
            |id: &usize| self.pieces[*id] != other.pieces[*id] || self.kinds[*id] != other.kinds[*id];
        match (0..n).find(differs) {
            None => Ok(n),
            Some(id) => {
                let text = |of: &Self| String::from_utf8_lossy(&of.pieces[id]).into_owned();
                Err(format!("its token {id} is {:?}, but there it is {:?}", text(other), text(self)))
            }
        }
    }

    /// Size of the vocabulary.
    pub(crate) fn n_vocab(&self) -> usize {
        self.pieces.len()
    }

    /// Ids of text that a template printed: special tokens are recognised.
    pub(crate) fn encode_template(&self, text: &str, after: After) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        let mut after = after;
        for fragment in self.special.cut(&self.merger.normalized(text)) {
            match fragment {
                Fragment::Token(id) => ids.push(id),
                Fragment::Text(text) => self.encode_text(text, after, &mut ids)?,
            }
            after = if let Fragment::Token(_) = fragment { After::Special } else { After::Text };
        }
        Ok(ids)
    }

    /// Offset in a template's text after the last special token in it.
    pub(crate) fn end_of_special(&self, text: &str) -> usize {
        let written = self.merger.normalized(text);
        match self.special.cut(&written).last() {
            None => 0,
            Some(Fragment::Token(_)) => text.len(),
            // A text is written character by character.
            Some(Fragment::Text(rest)) => {
                let after = text.char_indices().rev().take(rest.chars().count()).last();
                after.map_or(text.len(), |(at, _)| at)
            }
        }
    }

    /// The special tokens in a template's text: where each is, and its id.
    pub(crate) fn special_spans(&self, text: &str) -> Vec<(Range<usize>, u32)> {
        let (written, mut at) = (self.merger.normalized(text), 0);
        let tokens = self.special.cut(&written).into_iter().filter_map(|fragment| match fragment {
            Fragment::Token(id) => Some(id),
            Fragment::Text(_) => None,
        });
        let spans = tokens.filter_map(|id| {
            let token = self.decode(&[id]);
            let begin = at + text.get(at..)?.find(&token)?;
            at = begin + token.len();
            Some((begin..at, id))
        });
        spans.collect()
    }

    /// A template's text in pieces: special tokens by their ids, and the text between them.
    pub(crate) fn fragments(&self, text: &str) -> Vec<(Option<u32>, String)> {
        let (mut pieces, mut at) = (Vec::new(), 0);
        for (span, id) in self.special_spans(text) {
            pieces.push((None, text[at..span.start].to_owned()));
            at = span.end;
            pieces.push((Some(id), text[span].to_owned()));
        }
        pieces.push((None, text[at..].to_owned()));
        pieces.retain(|(_, text)| !text.is_empty());
        pieces
    }

    /// Length of the beginning that two texts of a template have in common, which ends within no special token.
    pub(crate) fn common_length(&self, a: &str, b: &str) -> usize {
        let same = a.chars().zip(b.chars()).take_while(|(a, b)| a == b);
        let mut n = same.map(|(a, _)| a.len_utf8()).sum();
        let spans = [self.special_spans(a), self.special_spans(b)].concat();
        while let Some((span, _)) = spans.iter().find(|(span, _)| span.start < n && n < span.end) {
            n = span.start;
        }
        n
    }

    /// Ids of a message's text: nothing in it is special.
    pub(crate) fn encode_message(&self, text: &str, after: After) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        self.encode_text(&self.merger.normalized(text), after, &mut ids)?;
        Ok(ids)
    }

    fn encode_text(&self, text: &str, after: After, ids: &mut Vec<u32>) -> Result<()> {
        let prefixed;
        let text = match &self.merger {
            Merger::Spm(spm) if spm.adds_space && after == After::Special && !text.is_empty() => {
                prefixed = format!("{SPACE}{text}");
                &prefixed
            }
            _ => text,
        };
        for fragment in self.plain.cut(text) {
            match (fragment, &self.merger) {
                (Fragment::Token(id), _) => ids.push(id),
                (Fragment::Text(text), Merger::Bpe(bpe)) => bpe.encode(text, ids)?,
                (Fragment::Text(text), Merger::Spm(spm)) => spm.encode(text, ids),
            }
        }
        Ok(())
    }

    /// True if the ids of a text's beginning are a beginning of the text's ids, but for what the next token can change:
    /// then a reply can be kept to the ids of its text token by token.
    pub(crate) fn is_canonical_by_beginnings(&self) -> bool {
        match &self.merger {
            Merger::Bpe(bpe) => bpe.keeps_beginnings,
            Merger::Spm(_) => true,
        }
    }

    /// Kind of a text whose last token is `id`; `None`: there is no text.
    pub(crate) fn after(&self, id: Option<u32>) -> After {
        match id.and_then(|id| self.kinds.get(id as usize)) {
            None | Some(TokenKind::Control | TokenKind::Markup) => After::Special,
            Some(TokenKind::Normal | TokenKind::Plain | TokenKind::Byte(_) | TokenKind::Unknown) => {
                After::Text
            }
        }
    }

    /// Kind of the text that a template's text ends with.
    ///
    /// # Errors
    /// It can't be tokenized.
    pub(crate) fn after_template(&self, text: &str) -> Result<After> {
        Ok(self.after(self.encode_template(text, After::Special)?.last().copied()))
    }

    /// True if an id is a special token: no part of a message's text.
    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.after(Some(id)) == After::Special
    }

    /// The bytes of an id (none for an id outside the vocabulary).
    pub(crate) fn piece(&self, id: u32) -> &[u8] {
        self.pieces.get(id as usize).map_or(&[], |p| p)
    }

    /// A matcher for a reply that is in a grammar. Special tokens are in it where it names them (`<[ID]>`).
    ///
    /// # Errors
    /// The grammar can't be used.
    pub(crate) fn matcher(&self, grammar: &grammar::Grammar) -> Result<grammar::Matcher> {
        let is_text =
            |kind: &TokenKind| matches!(kind, TokenKind::Normal | TokenKind::Plain | TokenKind::Byte(_));
        let tokens = || {
            self.pieces.iter().zip(&self.kinds).map(|(piece, kind)| match kind {
                kind if is_text(kind) => grammar::Token::Text(piece),
                TokenKind::Control | TokenKind::Markup => grammar::Token::Special,
                _ => grammar::Token::None,
            })
        };
        let vocabulary = self.grammars.get_or_init(|| grammar::Vocabulary::new(tokens()));
        let matcher = vocabulary.as_ref().map_err(Clone::clone).and_then(|known| known.matcher(grammar));
        matcher.map_err(|e| Error::request(format!("the grammar of a reply can't be used: {e}")))
    }

    /// Text of ids, special tokens included; bytes that are not UTF-8 become U+FFFD.
    pub(crate) fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| self.piece(*id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Text of the begin-of-sequence token, and whether prompts begin with it even if the template does not
    /// say so.
    pub(crate) fn bos(&self) -> (Option<String>, bool) {
        (self.bos.map(|id| self.decode(&[id])), self.adds_bos)
    }

    /// `ids` after the begin-of-sequence token, if the model's texts begin with it and these don't.
    pub(crate) fn begin(&self, ids: &[u32]) -> Vec<u32> {
        let bos = self.bos.filter(|bos| self.adds_bos && ids.first() != Some(bos));
        bos.iter().chain(ids).copied().collect()
    }

    /// Text of the end-of-sequence token, for templates that print it.
    pub(crate) fn eos(&self) -> Option<String> {
        self.eos.map(|id| self.decode(&[id]))
    }

    /// Tokens that end a turn in any template.
    pub(crate) fn eog(&self) -> &[u32] {
        &self.eog
    }

    /// Tells whether a token after a reply ends it: a control token, but for the one that ends only a part of
    /// a turn.
    pub(crate) fn may_end_turn(&self, id: u32) -> bool {
        self.is_control(id) && self.goes_on != Some(id)
    }

    /// The id of a control token, if the vocabulary has it.
    pub(crate) fn control(&self, text: &str) -> Option<u32> {
        self.control.get(text).copied()
    }

    /// A token without a space before it, and with one; the token itself where the vocabulary has no other one.
    pub(crate) fn spellings(&self, id: u32) -> [u32; 2] {
        let (space, text) = match &self.merger {
            Merger::Bpe(bpe) => (bpe.space(), bpe.text(id)),
            Merger::Spm(_) => (SPACE, str::from_utf8(self.piece(id)).ok().map(|it| it.replace(' ', SPACE))),
        };
        let Some(text) = text.filter(|_| self.kinds.get(id as usize) == Some(&TokenKind::Normal)) else {
            return [id; 2];
        };
        let known = |text: &str| match &self.merger {
            Merger::Bpe(bpe) => bpe.id(text),
            Merger::Spm(spm) => spm.id(text),
        };
        match text.strip_prefix(space).filter(|bare| !bare.is_empty()) {
            Some(bare) => [known(bare).unwrap_or(id), id],
            None => [id, known(&format!("{space}{text}")).unwrap_or(id)],
        }
    }

    /// Tells whether an id is a control token.
    pub(crate) fn is_control(&self, id: u32) -> bool {
        self.kinds.get(id as usize) == Some(&TokenKind::Control)
    }
}

impl Merger {
    /// A text as it is searched and merged.
    fn normalized<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match self {
            _ if self.spells_bytes() || !text.contains(' ') => text.into(),
            _ => text.replace(' ', SPACE).into(),
        }
    }

    /// True if tokens spell bytes; else characters, a space as `▁`.
    fn spells_bytes(&self) -> bool {
        matches!(self, Self::Bpe(bpe) if bpe.alphabet == Alphabet::Bytes)
    }

    /// The bytes of a token.
    fn piece(&self, text: &str, kind: TokenKind) -> Box<[u8]> {
        match (self, kind) {
            (_, TokenKind::Byte(byte)) => [byte].into(),
            (merger, TokenKind::Normal) if merger.spells_bytes() => bpe::bytes_of(text),
            (merger, TokenKind::Normal | TokenKind::Plain) if !merger.spells_bytes() => {
                text.replace(SPACE, " ").into_bytes().into()
            }
            _ => text.as_bytes().into(),
        }
    }
}
