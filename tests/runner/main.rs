//! Everything above the prompt, tested without a model: scripted agents stand in for it.
#![allow(clippy::unwrap_used)]

mod agreement;
mod broken;
mod ci;
mod constructs;
mod diagnostics;
mod docs;
mod drawing;
mod drift;
mod experiment;
mod extend;
mod floors;
mod fork;
mod hostile;
mod import;
mod messages;
mod paths;
mod plans;
mod play;
mod prompts;
mod report;
mod resume;
mod schema;
mod statistics;
mod terminal;
mod turns;
mod verify;
