//! Everything above the prompt, tested without a model: scripted agents stand in for it.
#![allow(clippy::unwrap_used)]

mod agreement;
mod arithmetic;
mod broken;
mod causes;
mod ci;
mod constructs;
mod diagnostics;
mod docs;
mod doors;
mod drawing;
mod drift;
mod experiment;
mod extend;
mod floors;
mod fork;
mod grammars;
mod hostile;
mod import;
mod messages;
mod odds;
mod paths;
mod plans;
mod play;
mod prompts;
mod report;
mod resume;
mod schema;
mod score;
mod statistics;
mod terminal;
mod turns;
mod verify;
