//! The examples and the code of docs/library.md run on the bundled model, and read nothing twice.

#![allow(clippy::unwrap_used, dead_code)] // a test fails by panicking; the examples' own `main` is not called

#[path = "../examples/fork.rs"]
mod fork;
#[path = "../examples/two_agents.rs"]
mod two_agents;

use greenroom_engine::{Engine, EngineConfig, ErrorKind, MatchKind, ModelSource, Result, Usage};
use std::process::Command;

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

/// The code of docs/library.md, line by line; it uses a model and a folder of memories in the current folder.
#[rustfmt::skip]
fn guide() -> Result<Usage> {
    let config = EngineConfig::new(ModelSource::Path("model.gguf".into())).cache_dir("memories");
    let engine = Engine::open(config)?;
    let mut ada = match engine.resume("demo", "ada") {
        Ok(ada) => ada, // her memory was stored by an earlier process: none of it is computed again
        Err(error) if error.kind() == ErrorKind::NotFound => engine.agent("demo", "ada").system("You are Ada."),
        Err(error) => return Err(error),
    };
    let said = ada.extend("Rolf: Who are you?")?.blocking_finish()?; // or piece by piece: a reply is an iterator, and a stream
    println!("{} ({} tokens were known, {} are new)", said.text, said.usage.reused, said.usage.prefilled);
    Ok(said.usage)
}

#[test]
#[ignore = "a process of another test: cargo test -p greenroom-engine --test examples the_guide_goes_on"]
fn guide_in_the_current_folder() {
    let usage = guide().unwrap();
    println!("\n{:?} {} {} {}", usage.kind, usage.reused, usage.recomputed, known(&usage));
}

#[test]
fn the_guide_goes_on_after_a_restart() {
    let documented = include_str!("../../docs/library.md").split("```").nth(1).unwrap();
    let documented: Vec<&str> = documented.lines().skip(1).map(str::trim).collect();
    let here: Vec<&str> = include_str!("examples.rs").lines().map(str::trim).collect();
    assert!(
        here.windows(documented.len()).any(|lines| lines == documented),
        "docs/library.md: {documented:#?}"
    );
    let folder = tempfile::tempdir().unwrap();
    let ModelSource::Path(model) = understudy() else { panic!("it is a file") };
    std::fs::copy(model, folder.path().join("model.gguf")).unwrap();
    let run = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "guide_in_the_current_folder", "--ignored", "--nocapture"]);
        let output = command.current_dir(folder.path()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        let line = text.lines().find(|line| line.starts_with("Cold ") || line.starts_with("Extend "));
        let line = line.unwrap_or_else(|| panic!("{text}")).split(' ').map(str::to_owned).collect::<Vec<_>>();
        let numbers = line[1..].iter().map(|number| number.parse().unwrap()).collect::<Vec<usize>>();
        (line[0].clone(), numbers)
    };
    let (kind, mut before) = run();
    assert_eq!((&*kind, before[0]), ("Cold", 0));
    for _ in 0..2 {
        let (kind, found) = run();
        assert_eq!((&*kind, found[0], found[1]), ("Extend", before[2], 0));
        before = found;
    }
}
