//! Grammars of replies: JSON Schema, Lark and regular expressions, as masks over the tokens of a vocabulary.
//!
//! A [`Grammar`] is plain data. A [`Vocabulary`] compiles it for a model's tokens, and a [`Matcher`] follows
//! one reply through it. [`Grammar::gbnf`] reads llama.cpp's notation. [`Grammar::check`] and [`Grammar::accepts`] work on bytes and need no model. All
//! work is bounded by counted steps (`bounds`): a grammar from a file is compiled or rejected, and equally so
//! on every machine.
//!
//! Some keywords of JSON Schema are no mask's to enforce (`not`, `uniqueItems`). [`Grammar::relaxed`] leaves
//! them out and lists them; [`Relaxed::accepts`] checks a complete text for them (`schema`).
#![forbid(unsafe_code)]

mod bounds;
mod bytes;
mod compile;
mod error;
mod gbnf;
mod grammar;
mod matcher;
mod relaxed;
mod schema;
mod vocabulary;

pub use bounds::MAX_BYTES;
pub use bytes::Mismatch;
pub use error::{Error, Result};
pub use grammar::Grammar;
pub use matcher::{Mask, Matcher};
pub use relaxed::{Left, Relaxed};
pub use vocabulary::{Token, Vocabulary};
