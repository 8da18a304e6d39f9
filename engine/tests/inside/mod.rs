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
mod state_faults;
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

/// Numbers by Knuth's 64-bit LCG (MMIX).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}
