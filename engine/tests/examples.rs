//! The examples run on the bundled model, and read nothing twice.

#![allow(clippy::unwrap_used, dead_code)] // a test fails by panicking; the examples' own `main` is not called

#[path = "../examples/fork.rs"]
mod fork;
#[path = "../examples/two_agents.rs"]
mod two_agents;

use greenroom_engine::{MatchKind, ModelSource, Usage};

fn understudy() -> ModelSource {
    ModelSource::Path(concat!(env!("CARGO_MANIFEST_DIR"), "/../models/understudy.gguf").into())
}

/// Tokens that an agent knows after a turn.
fn known(usage: &Usage) -> usize {
    usage.reused + usage.prefilled + usage.generated
}

#[test]
fn two_agents() {
    let usages = two_agents::talk(understudy()).unwrap();
    let [ada, rolf] = [0, 1].map(|first| usages.iter().skip(first).step_by(2).collect::<Vec<_>>());
    for turns in [ada, rolf] {
        assert_eq!((turns[0].reused, turns.len()), (0, 4));
        for (before, turn) in turns.iter().zip(&turns[1..]) {
            assert_eq!((turn.kind, turn.reused, turn.recomputed), (MatchKind::Extend, known(before), 0));
        }
    }
}

#[test]
fn fork() {
    let usages = fork::futures(understudy()).unwrap();
    for fork in &usages[1..] {
        assert_eq!((fork.kind, fork.reused, fork.recomputed), (MatchKind::Extend, known(&usages[0]), 0));
    }
    assert_eq!(usages.len(), 3);
}
