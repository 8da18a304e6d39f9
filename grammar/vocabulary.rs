//! A vocabulary as a trie of bytes, and the grammars that were compiled for it.

use crate::bounds;
use crate::error::{Error, Result, plain};
use crate::grammar::{Grammar, Spacing};
use crate::matcher::Matcher;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{ParserFactory, panic_utils};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

/// Grammars that stay compiled.
const MAX_COMPILED: usize = 16;
/// Longest token that a grammar can be made of.
const MAX_TOKEN_BYTES: usize = 1024;

/// Tokens that replies are made of.
pub struct Vocabulary {
    factory: ParserFactory,
    /// Tokens that spell text; the last one is nobody's.
    is_text: Arc<[bool]>,
    /// Latest last.
    compiled: Mutex<Vec<((Grammar, Spacing), Matcher)>>,
}

impl Vocabulary {
    /// Builds the trie: the bytes of each token by id; `None` for what no text is made of (control tokens,
    /// markup).
    ///
    /// # Errors
    /// There are more tokens, or longer ones, than a trie holds.
    pub fn new<'a>(tokens: impl Iterator<Item = Option<&'a [u8]>>) -> Result<Self> {
        let usable = |token: &&[u8]| (1..=MAX_TOKEN_BYTES).contains(&token.len());
        let text: Vec<Option<&[u8]>> = tokens.map(|token| token.filter(usable)).collect();
        let mut words: Vec<Vec<u8>> = text.iter().map(|token| token.unwrap_or_default().to_vec()).collect();
        // The end has no token: the model's own tokenizer knows what ends a turn.
        words.push([&[TokTrie::SPECIAL_TOKEN_MARKER], &b"<end>"[..]].concat());
        let n = u32::try_from(words.len()).map_err(|_| Error("the vocabulary is too large".into()))?;
        let factory = panic_utils::catch_unwind(AssertUnwindSafe(|| {
            let trie = TokTrie::from(&TokRxInfo::new(n, n - 1), &words);
            // Not canonical: a mask says what the grammar allows, not how a tokenizer would cut it.
            let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
            ParserFactory::new_simple(&env)
        }));
        let mut factory = factory.map_err(|e| plain(&e.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = bounds::limits();
        let is_text = text.iter().map(Option::is_some).chain([false]).collect();
        Ok(Self { factory, is_text, compiled: Mutex::default() })
    }

    /// A matcher at the beginning of a reply: its masks enforce all of the grammar ([`Grammar::enforced`]).
    /// What has been matched before has no part in what it costs.
    ///
    /// # Errors
    /// The grammar can't be used.
    pub fn matcher(&self, grammar: &Grammar) -> Result<Matcher> {
        self.cached_matcher(grammar, Spacing::One, || self.compile(&grammar.enforced()?, Spacing::One))
    }

    pub(crate) fn spaced(&self, grammar: &Grammar, spacing: Spacing) -> Result<Matcher> {
        self.cached_matcher(grammar, spacing, || self.compile(grammar, spacing))
    }

    /// The matcher of a grammar, compiled where it is not known.
    fn cached_matcher(
        &self,
        grammar: &Grammar,
        spacing: Spacing,
        compile: impl FnOnce() -> Result<Matcher>,
    ) -> Result<Matcher> {
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        let known = compiled.iter().position(|((known, how), _)| known == grammar && *how == spacing);
        let entry = match known {
            Some(at) => compiled.remove(at),
            None => ((grammar.clone(), spacing), compile()?),
        };
        let matcher = entry.1.fresh();
        compiled.push(entry);
        if compiled.len() > MAX_COMPILED {
            compiled.remove(0);
        }
        Ok(matcher)
    }

    fn compile(&self, grammar: &Grammar, spacing: Spacing) -> Result<Matcher> {
        let form = grammar.compiled_form(spacing)?;
        let parser = self.factory.create_parser(form).map_err(|e| plain(&e.to_string()))?;
        let exact = grammar.exact().map(|exact| (exact, self.factory.tok_env().clone()));
        Ok(Matcher::new(parser, self.is_text.clone(), exact))
    }
}
