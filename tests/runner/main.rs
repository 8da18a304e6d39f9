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
mod chance;
mod changing;
mod ci;
mod comparison;
mod constructs;
mod copies;
mod data;
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
mod host;
mod hostile;
mod import;
mod languages;
mod lines;
mod messages;
mod migrate;
mod models;
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

use greenroom_engine::fixtures::is_deep;

/// A scenario of an earlier edition in today's language.
fn today(text: &str) -> String {
    let migrated = greenroom::scenario::migrate("older.yaml", text);
    let migrated = migrated.unwrap_or_else(|report| panic!("{text}\n{}", report.render(false)));
    migrated.map_or_else(|| text.to_string(), |migrated| migrated.text)
}
