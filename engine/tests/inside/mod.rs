//! Tests of several rooms together, from the inside.

mod accounts;
mod adoption;
mod call_forms;
mod calls;
mod canonical;
mod carry;
mod choices;
mod drafting;
mod embedding;
mod endurance;
pub(crate) mod exactness;
mod files_of_2026;
mod folders;
mod going_back;
#[cfg(feature = "gpu")]
mod gpu;
mod logprobs;
mod oracle;
mod prefixes;
mod raw;
mod replies;
mod saving;
mod states;
mod status;
mod texts;
mod thoughts;
mod unfinished;
mod waiting;

use crate::fixtures::{is_deep, some};
use crate::{Completion, Engine, Event, Request};

/// Plays a turn to its end, and has it saved.
fn play(engine: &Engine, request: Request) -> Completion {
    let mut turn = engine.submit(request).unwrap();
    while let Some(event) = turn.blocking_next() {
        match event {
            Event::Failed(error) => panic!("{error}"),
            Event::Done(_) => return *turn.blocking_commit().unwrap(),
            _ => {}
        }
    }
    panic!("the turn did not end");
}
