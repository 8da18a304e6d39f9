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

/// What a token is to grammars.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token<'a> {
    /// A piece of text: its bytes.
    Text(&'a [u8]),
    /// It spells no text, and is in a grammar only where that names it by its id, as `<[ID]>` (Lark).
    Special,
    /// It is in no grammar.
    None,
}

/// Tokens that replies are made of.
pub struct Vocabulary {
    factory: ParserFactory,
    /// Tokens that a reply may hold; the last one is nobody's.
    is_usable: Arc<[bool]>,
    /// Latest last.
    compiled: Mutex<Vec<((Grammar, Spacing), Matcher)>>,
}

impl Vocabulary {
    /// Builds the trie of these tokens, in the order of their ids.
    ///
    /// # Errors
    /// There are more tokens, or longer ones, than a trie holds.
    pub fn new<'a>(tokens: impl Iterator<Item = Token<'a>>) -> Result<Self> {
        let special = |id: usize| [&[TokTrie::SPECIAL_TOKEN_MARKER], format!("[{id}]").as_bytes()].concat();
        let word = |(id, token)| match token {
            Token::Text(bytes) if (1..=MAX_TOKEN_BYTES).contains(&bytes.len()) => bytes.to_vec(),
            Token::Special => special(id),
            Token::Text(_) | Token::None => Vec::new(),
        };
        let mut words: Vec<Vec<u8>> = tokens.enumerate().map(word).collect();
        let is_usable: Vec<bool> = words.iter().map(|word| !word.is_empty()).collect();
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
        let is_usable = is_usable.into_iter().chain([false]).collect();
        Ok(Self { factory, is_usable, compiled: Mutex::default() })
    }

    /// A matcher at the beginning of a reply: its masks enforce all of the grammar ([`Grammar::enforced`]).
    /// What has been matched before has no part in what it costs.
    ///
    /// # Errors
    /// The grammar can't be used.
    pub fn matcher(&self, grammar: &Grammar) -> Result<Matcher> {
        self.cached_matcher(grammar, Spacing::One, || match grammar {
            Grammar::JsonSchema(_) => self.compile(&grammar.enforced()?, Spacing::One),
            // (One that names special tokens is in no other vocabulary.)
            Grammar::Lark(_) | Grammar::Regex(_) => self.compile(grammar, Spacing::One),
        })
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
        Ok(Matcher::new(parser, self.is_usable.clone(), exact))
    }
}
