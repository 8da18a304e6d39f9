//! Greenroom plays multi-agent scenarios on a local language model: everything above the prompt.
//!
//! A YAML file becomes a checked [`scenario::Scenario`], which is unrolled into a graph of turns and played
//! turn by turn; what was read and said is recorded and can be replayed without a model.
#![forbid(unsafe_code)]

pub mod backend;
pub mod commands;
pub mod diagnostic;
pub mod prompt;
pub mod replay;
pub mod run;
pub mod scenario;
pub mod stage;
pub mod terminal;
pub mod timeline;
pub mod trace;
pub mod transcript;
