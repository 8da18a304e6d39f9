//! A reply under a grammar: which token is said in place of one that the grammar does not allow.
//!
//! The token is drawn as without a grammar first. One that is allowed is said, and no mask is worked out:
//! that is what most tokens of a model that follows its instructions cost. Else one of those that are allowed
//! is drawn: the greatest of log-weight + Gumbel noise, where the noise belongs to seed, position and id (the
//! Gumbel-max trick: Maddison et al. 2014). Together each token has its probability among those that are
//! allowed (`p + (1 - allowed) * p / allowed = p / allowed`).
//!
//! So what a grammar forbids never moves a draw: with a narrower grammar the same token wins as long as it is
//! allowed.

use crate::text::tokenizer::Tokenizer;
use crate::turns::dry::Said;
use crate::turns::sampler::{self, Row};
use crate::{Error, Result, Sampling};
use greenroom_grammar::{Grammar, Matcher};

/// Maximum number of tokens that are passed over because the reply's ids would not be those of its text.
const MAX_BROKEN: usize = 64;

/// A reply's place in its grammar.
pub(crate) struct GrammarState {
    matcher: Matcher,
    /// True once a recorded reply has left the grammar.
    has_left: bool,
}

impl GrammarState {
    /// At the beginning of a reply.
    ///
    /// # Errors
    /// The grammar can't be used.
    pub(crate) fn new(grammar: &Grammar, tokenizer: &Tokenizer) -> Result<Self> {
        Ok(Self::at(tokenizer.matcher(grammar)?))
    }

    /// Where a matcher is.
    pub(crate) fn at(matcher: Matcher) -> Self {
        Self { matcher, has_left: false }
    }

    /// The token that is said where the sampler drew `drawn` from these logits: one that is allowed and
    /// `fits`, and that `breaks` nothing if there is such a one.
    ///
    /// # Errors
    /// The grammar became too costly, or allows nothing that the vocabulary can say.
    pub(crate) fn choose(
        &mut self,
        drawn: u32,
        logits: &[f32],
        (reply, said): (&[u32], &Said),
        sampling: &Sampling,
        eog: &[u32],
        (fits, breaks): (impl Fn(u32) -> bool, impl Fn(u32) -> bool),
    ) -> Result<u32> {
        if self.allows(drawn, eog)? {
            return Ok(drawn);
        }
        let may_end = self.matcher.may_end().map_err(failed)?;
        let mask = self.matcher.mask().map_err(failed)?;
        let allows = |id: u32| if eog.contains(&id) { may_end } else { mask.allows(id) && fits(id) };
        let row = Row::new(logits, reply, said, sampling);
        let is_whole = |id: &u32| eog.contains(id) || !breaks(*id);
        let mut order = sampler::in_order(&row, sampling, allows).into_iter().flatten();
        let first = order.next().ok_or_else(|| failed("it allows no token of this vocabulary here"))?;
        let whole = if is_whole(&first) { None } else { order.take(MAX_BROKEN).find(is_whole) };
        Ok(whole.unwrap_or(first))
    }

    /// True if a token may be said here.
    ///
    /// # Errors
    /// The grammar became too costly.
    pub(crate) fn allows(&mut self, id: u32, eog: &[u32]) -> Result<bool> {
        if self.has_left {
            return Ok(true);
        }
        if eog.contains(&id) { self.matcher.may_end() } else { self.matcher.allows(id) }.map_err(failed)
    }

    /// Takes a token that is said.
    ///
    /// # Errors
    /// The grammar became too costly.
    pub(crate) fn take(&mut self, id: u32) -> Result<()> {
        if self.has_left { Ok(()) } else { self.matcher.take(id).map_err(failed) }
    }

    /// Takes a token that was recorded, whether the grammar allows it or not.
    ///
    /// # Errors
    /// The grammar became too costly.
    pub(crate) fn follow(&mut self, id: u32) -> Result<()> {
        self.has_left |= !self.allows(id, &[])?;
        self.take(id)
    }

    /// True if nothing can be said any more: the reply is complete.
    pub(crate) fn is_over(&self) -> bool {
        !self.has_left && self.matcher.is_over()
    }
}

fn failed(e: impl std::fmt::Display) -> Error {
    Error::request(format!("the grammar of a reply failed: {e}"))
}
