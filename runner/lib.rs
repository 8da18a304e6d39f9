//! Greenroom plays multi-agent scenarios on a local language model: everything above the prompt.
//!
//! A YAML file becomes a checked [`scenario::Scenario`], which is unrolled into a graph of turns and played
//! turn by turn; what was read and said is recorded and can be replayed without a model.
//!
//! ```
//! use greenroom::{backend::Scripted, run, scenario, stage::Unwatched};
//! use std::sync::Arc;
//!
//! let text = "
//! id: hello
//! agents: {ann: {display_name: Ann}, ben: {display_name: Ben}}
//! phases: [{name: talk, agents: [ann, ben], prompt: Say hello.}]
//! ";
//! let scenario = scenario::load("hello.yaml", text, &[]).scenario.expect("no mistakes");
//! let backend = Scripted::lines([("talk/1/ann", "Hello, Ben."), ("talk/1/ben", "Hello, Ann.")]);
//! let folder = std::env::temp_dir().join(format!("greenroom-hello-{}", std::process::id()));
//! let options = run::RunOptions::default();
//! let mut watch = Unwatched;
//! let playing = run::perform(
//!     &scenario, Arc::new(backend), &folder, &options, &mut watch, std::future::pending(),
//! );
//! let runtime = tokio::runtime::Builder::new_current_thread().build()?;
//! assert_eq!(runtime.block_on(playing)?.n_written, 2);
//! std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod backend;
pub mod commands;
pub mod diff;
pub mod drawing;
pub mod experiment;
pub mod hub;
pub mod import;
pub mod report;
pub mod run;
pub mod server;
pub mod statistics;
pub mod stores;
pub mod terminal;
pub mod verify;

pub use greenroom_play::{
    lookup, outcome, prompt, rehearsal, replay, sampling, stage, timeline, tools, trace, transcript, walk,
};
pub use greenroom_scenario as scenario;
pub use greenroom_scenario::{diagnostic, files};
