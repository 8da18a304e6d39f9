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
//! let engine = Engine::open(EngineConfig::new(ModelSource::Bundled("tiny", model)), &mut |_, _| {})?;
//! let mut conversation = Conversation { system: Some("You are Ada.".into()), ..Conversation::default() };
//! for line in ["Rolf: Who are you?", "Rolf: And who am I?"] {
//!     conversation.next = line.into();
//!     let mut turn = engine.submit(Request {
//!         session: SessionKey { run: "demo".into(), agent: "ada".into() },
//!         parent: None,
//!         retention: Retention::Persistent,
//!         conversation: conversation.clone(),
//!         sampling: Sampling::default(),
//!         max_tokens: 8,
//!         min_tokens: 0,
//!         stop: vec!["\nRolf:".into()],
//!         constraint: None,
//!         next_use: None,
//!         cold: false,
//!     })?;
//!     while let Some(event) = turn.blocking_next() {
//!         match event {
//!             Event::Text(text) => print!("{text}"),
//!             Event::Failed(error) => return Err(error),
//!             Event::Done(_) | Event::Prefill { .. } => {}
//!         }
//!     }
//!     let done = turn.blocking_commit()?;
//!     let said = Exchange { user: conversation.next.clone(), reply: ReplyContent::Ids(done.ids.into()) };
//!     conversation.exchanges.push(said);
//!     println!(" ({} of the prompt's tokens were already read)", done.usage.reused);
//! }
//! # Ok::<(), Error>(())
//! ```
#![deny(unsafe_op_in_unsafe_fn, unsafe_code)]

mod ahead;
mod chat;
mod constraint;
#[cfg(test)]
mod endurance;
mod engine;
mod error;
#[cfg(test)]
mod exactness;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
mod gguf;
#[allow(unsafe_code)] // intrinsics, each behind a detected instruction set
mod kernels;
mod kv;
mod memory;
mod model;
mod prefix;
#[cfg(feature = "fixtures")]
#[doc(hidden)]
pub mod probes;
mod quant;
mod reply;
mod request;
mod sampler;
mod schedule;
mod scratch;
mod self_check;
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

/// A text to try a model on: dialogue by several people, of some 1,500 words.
pub const SAMPLE: &str = include_str!("sample.txt");

/// Lists, shows, removes, bounds and verifies what a cache folder holds.
pub mod cache {
    pub use crate::kv::store::cipher::CacheKey;
    pub use crate::kv::store::inventory::{Details, Entry, Folder, Removed, Verdict};
}
