//! Grammars over single bytes: whether one can be used, whether a text is in it, and a text that is. No model
//! is needed.

use crate::error::{Error, Result};
use crate::grammar::{Grammar, Spacing};
use crate::matcher::Matcher;
use crate::vocabulary::{Token, Vocabulary};
use std::sync::LazyLock;

/// The place where a text leaves its grammar.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The text continues in a way that the grammar does not.
    #[error("behind `{before}` the grammar does not go on with `{found}`")]
    Unexpected {
        /// What is before that place; only the end of it, if it is long.
        before: String,
        /// The character that is there.
        found: char,
    },
    /// The text ends too soon.
    #[error("it ends too soon, behind `{before}`")]
    Incomplete {
        /// The end of the text.
        before: String,
    },
    /// The text is complete, but breaks a keyword that no mask enforces.
    #[error("{0}")]
    Invalid(String),
    /// The grammar can't be used.
    #[error(transparent)]
    Grammar(#[from] Error),
}

/// Characters that a [`Mismatch`] quotes.
const QUOTED: usize = 40;
/// Maximum length of the example, in bytes.
const MAX_EXAMPLE: usize = 2_000;

impl Grammar {
    /// Checks that the grammar can be compiled, so that masks enforce all of it ([`Grammar::enforced`]).
    ///
    /// # Errors
    /// What is wrong with it, not supported, or beyond a bound.
    pub fn check(&self) -> Result<()> {
        self.enforced().map(drop)
    }

    /// The grammar in the form in which masks enforce all of it: with exact bounds of integers in addition to
    /// those that masks would round.
    ///
    /// # Errors
    /// As [`Grammar::check`].
    pub fn enforced(&self) -> Result<Self> {
        compiled(self, Spacing::Any)?;
        let relaxed = self.relaxed()?;
        if let Some(left) = relaxed.not_enforced() {
            return Err(Error(format!("{left} can't be enforced while a text is written")));
        }
        if relaxed.grammar != *self {
            compiled(&relaxed.grammar, Spacing::Any)?;
        }
        Ok(relaxed.grammar)
    }

    /// Checks that a whole text is in the grammar. JSON may be spaced as it likes.
    ///
    /// # Errors
    /// The first place where it is not.
    pub fn accepts(&self, text: &str) -> Result<(), Mismatch> {
        let mut matcher = compiled(self, Spacing::Any)?;
        for (at, byte) in text.bytes().enumerate() {
            if !matcher.allows(u32::from(byte))? {
                // Within a character the place is the character's.
                let at = (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
                let found = text[at..].chars().next().unwrap_or_default();
                return Err(Mismatch::Unexpected { before: end_of(&text[..at]), found });
            }
            matcher.take(u32::from(byte))?;
        }
        if matcher.may_end()? { Ok(()) } else { Err(Mismatch::Incomplete { before: end_of(text) }) }
    }

    /// A short text that is in the grammar, if one is found without looking back: what closes something is
    /// taken before what opens or continues; a number ends as soon as it may.
    pub fn example(&self) -> Option<String> {
        let mut matcher = compiled(self, Spacing::Any).ok()?;
        let mut text = Vec::new();
        while !matcher.may_end().ok()? {
            let mask = matcher.mask().ok()?;
            let letters = (b'a'..=b'z').chain(b'!'..=b'~').chain(b' '..=b' ').chain(0..=255);
            let mut bytes = br#""}],1:"#.iter().copied().chain(letters);
            let next = bytes.find(|byte| mask.allows(u32::from(*byte)))?;
            matcher.take(u32::from(next)).ok()?;
            text.push(next);
            if text.len() > MAX_EXAMPLE {
                return None;
            }
        }
        String::from_utf8(text).ok()
    }
}

/// A matcher of a grammar over bytes.
pub(crate) fn compiled(grammar: &Grammar, spacing: Spacing) -> Result<Matcher> {
    bytes()?.spaced(grammar, spacing)
}

/// All bytes as tokens.
fn bytes() -> Result<&'static Vocabulary> {
    static BYTES: LazyLock<Result<Vocabulary>> = LazyLock::new(|| {
        let all: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
        Vocabulary::new(all.iter().map(|byte| Token::Text(&byte[..])))
    });
    BYTES.as_ref().map_err(Clone::clone)
}

fn end_of(text: &str) -> String {
    let n = text.chars().count();
    text.chars().skip(n.saturating_sub(QUOTED)).collect()
}
