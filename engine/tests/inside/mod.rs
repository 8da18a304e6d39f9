//! Tests of several rooms together, from the inside.

mod accounts;
mod adoption;
mod calls;
mod carry;
mod choices;
mod drafting;
mod embedding;
mod endurance;
mod exactness;
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
mod status;
mod texts;
mod unfinished;
mod waiting;

use crate::{Completion, Engine, Event, Request};

/// True where everything is tried, as in CI; else a part of it, every day.
fn is_deep() -> bool {
    std::env::var_os("GREENROOM_DEEP").is_some()
}

/// All of these where everything is tried, else every `n`th.
fn some<T>(cases: impl IntoIterator<Item = T>, n: usize) -> impl Iterator<Item = T> {
    cases.into_iter().step_by(if is_deep() { 1 } else { n })
}

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
