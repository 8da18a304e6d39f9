//! The inference core of Greenroom: everything below the prompt. Text in, tokens out, memory kept.
//!
//! An [`Engine`] owns one model and the attention memory (KV cache) of many sessions. A [`Request`] carries a
//! whole conversation; the engine finds how much of it a session has already read, computes the rest, and
//! streams [`Event`]s back. Resuming is bit-exact: a cold start, a warm one, and any way of batching give
//! the same logits on one machine and build. No tensor type leaves this crate.
//!
//! ```
//! use greenroom_engine::*;
//!
//! # let model: &'static [u8] = fixtures::RandomModel::tiny(1).bytes().leak();
//! let engine = Engine::open(EngineConfig::new(ModelSource::Bundled("tiny", model)), &mut |_| {})?;
//! let mut ada = engine.agent("demo", "ada").system("You are Ada.").stop(["\nRolf:"]).max_tokens(8);
//! for line in ["Rolf: Who are you?", "Rolf: And who am I?"] {
//!     let mut reply = ada.extend(line)?;
//!     for piece in &mut reply {
//!         print!("{}", piece?);
//!     }
//!     let said = reply.finish()?;
//!     println!(" ({} of the prompt's tokens were already read)", said.usage.reused);
//! }
//! let twin = ada.fork("ada-2"); // the same past, read only once
//! # Ok::<(), Error>(())
//! ```
//!
//! An [`Agent`] keeps its conversation and makes the requests; [`Engine::submit`] takes them as plain data, with all that
//! can be asked.
#![deny(unsafe_op_in_unsafe_fn, unsafe_code)]

mod admission;
mod agent;
mod ahead;
mod chat;
#[cfg(test)]
mod choices;
mod compare;
mod constraint;
mod device;
mod dry;
#[cfg(test)]
mod endurance;
mod engine;
mod error;
#[cfg(test)]
mod exactness;
mod fault;
mod files;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
#[cfg(test)]
mod folders;
mod follow;
mod gguf;
mod kv;
mod memory;
mod model;
mod pass;
mod prefix;
#[cfg(feature = "fixtures")]
#[doc(hidden)]
pub mod probes;
mod quant;
#[cfg(test)]
mod replies;
mod reply;
mod request;
mod sampler;
mod schedule;
mod scratch;
mod self_check;
mod sentence;
mod session;
mod suggested;
#[allow(unsafe_code)] // outputs that threads share, each a part of its own
mod team;
#[cfg(test)]
mod texts;
mod tokenizer;
mod turn;
mod worker;

pub use agent::{Agent, Reply};
pub use device::cpu::kernels::Isa;
pub use engine::{Engine, EngineConfig, Loading, Prompter, Turn};
pub use error::{Error, ErrorKind, Result};
pub use request::*;
pub use sampler::draw;

/// A text to try a model on: dialogue by several people, of some 1,500 words.
pub const SAMPLE: &str = include_str!("sample.txt");

/// Lists, shows, removes, bounds and verifies what a cache folder holds.
pub mod cache {
    pub use crate::kv::store::cipher::CacheKey;
    pub use crate::kv::store::inventory::{Details, Entry, Folder};
    pub use crate::kv::store::{Removed, Verdict};
}
