//! Everything above the prompt, tested without a model: scripted agents replace it.
#![allow(clippy::unwrap_used)]

mod agreement;
mod arithmetic;
mod braces;
mod broken;
mod calls;
mod case_seeds;
mod cases;
mod causes;
mod changing;
mod ci;
mod comparison;
mod constructs;
mod copies;
mod diagnostics;
mod discreet;
mod docs;
mod doors;
mod drawing;
mod drift;
mod edits;
mod experiment;
mod extend;
mod floors;
mod fork;
mod forms;
mod games;
mod grammars;
mod hostile;
mod import;
mod languages;
mod lines;
mod messages;
mod models;
mod names;
mod odds;
mod papers;
mod paths;
mod plans;
mod play;
mod prompts;
mod rehearsals;
mod report;
mod resume;
mod schema;
mod score;
mod statistics;
mod tampering;
mod terminal;
mod thresholds;
mod tools;
mod turns;
mod verify;

/// True where everything is tried, as in CI; else a part of it, every day.
fn is_deep() -> bool {
    std::env::var_os("GREENROOM_DEEP").is_some()
}
