//! One reply on its way through a grammar.

use crate::error::{Error, Result, plain};
use crate::schema::Exact;
use llguidance::TokenParser;
use llguidance::toktrie::{SimpleVob, TokEnv};
use std::sync::Arc;

/// Follows a reply, token by token.
pub struct Matcher {
    inner: llguidance::Matcher,
    is_usable: Arc<[bool]>,
    /// Bounds that llguidance would round, and the tokens' bytes.
    exact: Option<(Exact, TokEnv)>,
}

/// Tokens that may come next.
pub struct Mask {
    allowed: SimpleVob,
    is_usable: Arc<[bool]>,
    exact: Option<(Exact, TokEnv)>,
}

/// True if a token stays within exact bounds.
fn is_within(exact: &Option<(Exact, TokEnv)>, id: u32) -> bool {
    exact.as_ref().is_none_or(|(exact, tokens)| exact.allows(tokens.tok_trie().token(id)))
}

impl Matcher {
    pub(crate) fn new(parser: TokenParser, is_usable: Arc<[bool]>, exact: Option<(Exact, TokEnv)>) -> Self {
        Self { inner: llguidance::Matcher::new(Ok(parser)), is_usable, exact }
    }

    /// A copy that shares nothing, so that the steps it counts are its own.
    pub fn fresh(&self) -> Self {
        Self { inner: self.inner.deep_clone(), is_usable: self.is_usable.clone(), exact: self.exact.clone() }
    }

    /// Returns whether a token may come next; one that ends the turn is none of the grammar's
    /// ([`Matcher::may_end`]).
    ///
    /// # Errors
    /// A bound was reached.
    pub fn allows(&mut self, id: u32) -> Result<bool> {
        let is_usable = self.is_usable.get(id as usize).copied().unwrap_or(false);
        if !is_usable || self.inner.is_stopped() || !is_within(&self.exact, id) {
            return Ok(false);
        }
        self.inner.validate_tokens(&[id]).map(|n| n == 1).map_err(|e| plain(&e.to_string()))
    }

    /// All tokens that may come next.
    ///
    /// # Errors
    /// A bound was reached; no token of the vocabulary may.
    pub fn mask(&mut self) -> Result<Mask> {
        let allowed = self.inner.compute_mask().map_err(|e| plain(&e.to_string()))?;
        Ok(Mask { allowed, is_usable: self.is_usable.clone(), exact: self.exact.clone() })
    }

    /// Takes the next token, one that may come.
    ///
    /// # Errors
    /// It may not, or a bound was reached.
    pub fn take(&mut self, id: u32) -> Result<()> {
        if !self.allows(id)? {
            return Err(Error(format!("token {id} is not in the grammar here")));
        }
        self.inner.consume_token(id).map_err(|e| plain(&e.to_string()))?;
        if let Some((exact, tokens)) = &mut self.exact {
            exact.follow(tokens.tok_trie().token(id));
        }
        Ok(())
    }

    /// Returns whether the reply may end here.
    ///
    /// # Errors
    /// A bound was reached.
    pub fn may_end(&mut self) -> Result<bool> {
        if self.exact.as_ref().is_some_and(|(exact, _)| !exact.may_end()) {
            return Ok(false);
        }
        Ok(self.is_over() || self.inner.is_accepting().map_err(|e| plain(&e.to_string()))?)
    }

    /// Returns whether the reply can't continue: it is complete.
    pub fn is_over(&self) -> bool {
        self.inner.stop_reason().is_ok() && self.inner.is_stopped()
    }
}

impl Mask {
    /// Returns whether a token may come next.
    pub fn allows(&self, id: u32) -> bool {
        let is_usable = self.is_usable.get(id as usize).copied().unwrap_or(false);
        is_usable && self.allowed.is_allowed(id) && is_within(&self.exact, id)
    }
}
