//! Turns between a runner and `greenroom serve`: the engine's request and its answer as JSON.
//!
//! What one machine asks its own engine, it asks another's in these words (`POST /v1/turns`), so the reply is
//! the same to the bit.

use greenroom_engine::{Completion, Prompt, Request};
use serde::{Deserialize, Serialize};

/// Protocol version.
pub const VERSION: u32 = 3;

/// A turn to answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WireTurn {
    /// [`VERSION`].
    pub version: u32,
    /// Name of the model that is served.
    pub model: String,
    /// The engine's request. Its tenant is the requester's.
    pub request: Request,
}

/// A prompt whose tokens are counted.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counted {
    /// Name of the model that is served.
    pub model: String,
    /// The prompt.
    pub prompt: Prompt,
}

/// A memory that is not needed any more.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Forgotten {
    /// Name of the model that is served.
    pub model: String,
    /// The run.
    pub run: String,
    /// The agent.
    pub agent: String,
}

/// An event of an answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WireEvent {
    /// The prompt is being read.
    Reading {
        /// Tokens read.
        done: usize,
        /// Tokens to read.
        total: usize,
    },
    /// A piece of the reply.
    Text(String),
    /// The reply, once its memory is saved.
    Done(Box<Completion>),
    /// The turn failed.
    Failed {
        /// The reason.
        message: String,
        /// The HTTP status that it would have had before the answer began.
        status: u16,
    },
}
