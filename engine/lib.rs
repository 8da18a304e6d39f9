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
//! let engine = Engine::open(EngineConfig::new(ModelSource::Bundled("tiny", model)))?;
//! let mut ada = engine.agent("demo", "ada").system("You are Ada.").stop(["\nRolf:"]).max_tokens(8);
//! for line in ["Rolf: Who are you?", "Rolf: And who am I?"] {
//!     let mut reply = ada.extend(line)?;
//!     for piece in &mut reply {
//!         print!("{}", piece?);
//!     }
//!     let said = reply.blocking_finish()?;
//!     println!(" ({} of the prompt's tokens were already read)", said.usage.reused);
//! }
//! let twin = ada.fork("ada-2"); // the same past, read only once
//! # Ok::<(), Error>(())
//! ```
//!
//! An [`Agent`] keeps its conversation and makes the requests; [`Engine::submit`] takes them as plain data,
//! with all that can be asked.
#![deny(unsafe_op_in_unsafe_fn, unsafe_code)]

mod agent;
mod answer;
mod config;
mod conversation;
mod device;
mod engine;
mod error;
mod fault;
mod files;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
mod header;
mod info;
mod kv;
mod memories;
mod memory;
mod meter;
mod model;
#[cfg(feature = "fixtures")]
#[doc(hidden)]
pub mod probes;
mod prompter;
mod request;
mod scoring;
mod share;
mod store;
#[cfg(test)]
#[path = "tests/inside/mod.rs"]
mod tests;
mod text;
mod turns;

pub use agent::{Agent, Reply};
pub use answer::*;
pub use config::EngineConfig;
pub use conversation::*;
pub use device::{BUILT_WITH_GPUS, DeviceChoice, GpuInfo, default_gpu, gpus};
pub use engine::{Engine, Loading, Turn};
pub use error::{Error, ErrorKind, Remedy, Result};
pub use greenroom_kernels::Isa;
pub use header::ModelHeader;
pub use info::*;
pub use kv::layout::forkable;
pub use meter::Meter;
pub use prompter::{PromptEncoder, StopConditions, cut_reply};
pub use request::*;
pub use share::MemoryBudget;
pub use text::prefix::common_prefix;
pub use turns::reply::StreamedReply;
pub use turns::sampler::{by_length, draw};

/// A text to try a model on: dialogue by several people, of some 1,500 words.
pub const SAMPLE: &str = include_str!("sample.txt");

/// Lists, shows, removes, bounds and verifies what a cache folder holds.
pub mod cache {
    pub use crate::store::cipher::CacheKey;
    pub use crate::store::inventory::{Details, Folder, StoredSession};
    pub use crate::store::medium::Traffic;
    pub use crate::store::objects::ObjectsAddress;
    pub use crate::store::{Removed, Verdict};
}
