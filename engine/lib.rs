//! The inference core of Greenroom: everything below the prompt. Text in, tokens out, memory kept.
//!
//! An [`Engine`] owns one model and the attention memory (KV cache) of many sessions. A [`Request`] carries a
//! whole conversation; the engine finds how much of it a session has already read, computes the rest, and
//! streams [`Event`]s back. Resuming is bit-exact: a cold start, a warm one, and any way of batching give
//! the same logits on one machine and build. No tensor type leaves this crate.
#![deny(unsafe_op_in_unsafe_fn)]

mod chat;
mod engine;
mod error;
#[cfg(test)]
mod exactness;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
mod gguf;
mod kernels;
mod kv;
mod memory;
mod model;
mod prefix;
mod quant;
mod reply;
mod request;
mod sampler;
mod schedule;
mod session;
#[cfg(test)]
mod texts;
mod tokenizer;
mod turn;
mod worker;

pub use engine::{Engine, EngineConfig, Prompter, Turn};
pub use error::{Error, ErrorKind, Result};
pub use kernels::Isa;
pub use request::*;

/// Lists, removes and verifies what a cache folder holds.
pub mod cache {
    pub use crate::kv::store::inventory::{Entry, Verdict, list, remove, verify};
}
