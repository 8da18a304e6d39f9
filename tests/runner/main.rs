//! Everything above the prompt, tested without a model: scripted agents stand in for it.
#![allow(clippy::unwrap_used)]

mod broken;
mod constructs;
mod diagnostics;
mod docs;
mod drawing;
mod drift;
mod extend;
mod floors;
mod hostile;
mod import;
mod messages;
mod paths;
mod plans;
mod play;
mod prompts;
mod resume;
mod schema;
mod statistics;
mod terminal;
