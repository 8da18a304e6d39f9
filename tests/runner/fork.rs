//! Forks: what comes before is the recording's, what comes after is played again, and the run that they come
//! from stays as it is.

use crate::play::{play, scenario};
use greenroom::backend::{Backend, Scripted};
use greenroom::replay::{brought_along, replay};
use greenroom::run::{Changes, ForkFrom, RunOptions};
use greenroom::scenario::{Scenario, load};
use greenroom::transcript::{Drift, Transcript};
use std::path::Path;
use std::sync::{Arc, Mutex};

const TEXT: &str = "
id: forked
variables: {late: 1}
agents: {a: {display_name: Ann}, b: {display_name: Ben}, c: {display_name: Cas, lifecycle: ephemeral}}
phases:
  - { name: one, agents: [a, b], rounds: 2, prompt: Begin. }
  - name: two
    agents: [a, b]
    order: broadcast
    answer: { one_of: {left: Left, right: Right}, shuffle: true }
  - { name: three, agents: [a, b, c], prompt: 'It is {{ late }} o clock.' }
";

fn fork(run: &Path, at: &str, seed: u64) -> RunOptions {
    let from = ForkFrom { run: run.to_path_buf(), at: Some(at.to_string()), changes: Default::default() };
    RunOptions { fork: Some(from), seed, ..RunOptions::default() }
}

/// Says its seed, so that turns with another one say something else; of options it takes the one that is
/// listed first.
fn seeded() -> Arc<dyn Backend> {
    Arc::new(Scripted::new(|request| {
        let open =
            request.choice.as_ref().map(|options| options.choice.options[options.open[0]].text.clone());
        open.or(Some(format!("{} with {}", request.path, request.sampling.seed)))
    }))
}

fn read(folder: &Path) -> Transcript {
    Transcript::open(&folder.join("transcript.jsonl")).unwrap()
}

fn said(folder: &Path) -> Vec<String> {
    read(folder).turns.iter().map(|turn| turn.record.raw.clone()).collect()
}

fn replays(scenario: &Arc<Scenario>, folder: &Path) {
    let transcript = read(folder);
    let earlier = brought_along(&folder.join("transcript.jsonl"), &transcript.header.record, None).unwrap();
    replay(scenario, &transcript, earlier).unwrap();
}

#[test]
fn a_fork_that_changes_nothing_is_the_same_run_and_asks_only_for_the_rest() {
    let dir = crate::play::checkout();
    let scenario = scenario(TEXT);
    let run = dir.path().join("run");
    play(&scenario, seeded(), &run, &RunOptions::default()).unwrap();
    let original = std::fs::read(run.join("transcript.jsonl")).unwrap();
    let paths: Vec<String> = read(&run).turns.iter().map(|turn| turn.record.path.clone()).collect();
    for (n, at) in paths.iter().enumerate() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (note, answers) = (asked.clone(), said(&run));
        let known = paths.clone();
        let backend = Scripted::new(move |request| {
            note.lock().unwrap().push(request.path.clone());
            known.iter().position(|path| *path == request.path).map(|at| answers[at].clone())
        });
        let folder = dir.path().join(format!("at-{n}"));
        play(&scenario, Arc::new(backend), &folder, &fork(&run, at, 0)).unwrap();
        let mut asked = asked.lock().unwrap().clone();
        asked.sort();
        let mut rest = paths[n..].to_vec();
        rest.sort();
        assert_eq!(asked, rest, "forked at {at}");
        assert_eq!(said(&folder), said(&run));
        assert_eq!(read(&folder).header.record.forked.as_ref().map(|forked| &forked.at), Some(at));
        replays(&scenario, &folder);
    }
    assert!(std::fs::read(run.join("transcript.jsonl")).unwrap() == original);
}

#[test]
fn other_seeds_and_values_count_from_the_fork_on_also_in_forks_of_forks() {
    let dir = crate::play::checkout();
    let scenario = scenario(TEXT);
    let folder = |name: &str| dir.path().join(name);
    play(&scenario, seeded(), &folder("run"), &RunOptions { seed: 1, ..RunOptions::default() }).unwrap();
    play(&scenario, seeded(), &folder("fork"), &fork(&folder("run"), "two", 2)).unwrap();
    play(&scenario, seeded(), &folder("again"), &fork(&folder("fork"), "three/1/b", 3)).unwrap();
    // A fork within the part that a fork has in common with its run has that run's seeds before it.
    play(&scenario, seeded(), &folder("early"), &fork(&folder("fork"), "one/2/a", 2)).unwrap();
    let plain = |seed| {
        let name = format!("plain-{seed}");
        play(&scenario, seeded(), &folder(&name), &RunOptions { seed, ..RunOptions::default() }).unwrap();
        said(&folder(&name))
    };
    let (one, two, three) = (plain(1), plain(2), plain(3));
    assert_eq!(said(&folder("fork")), [&one[..4], &two[4..]].concat());
    assert_eq!(said(&folder("again")), [&one[..4], &two[4..7], &three[7..]].concat());
    assert_eq!(said(&folder("early")), [&one[..2], &two[2..]].concat());
    // What is shared is the same line for line, seeds too.
    let lines = |name: &str, n: usize| {
        read(&folder(name)).turns[..n].iter().map(|turn| turn.record.clone()).collect::<Vec<_>>()
    };
    for (name, of, n) in [("fork", "run", 4), ("again", "fork", 7), ("early", "fork", 2)] {
        assert!(lines(name, n) == lines(of, n), "{name}");
    }
    for name in ["fork", "again", "early"] {
        replays(&scenario, &folder(name));
    }
    let late = load("small.yaml", TEXT, &[("late".into(), 2.into())]).scenario.unwrap();
    play(&late, seeded(), &folder("late"), &fork(&folder("run"), "three", 1)).unwrap();
    assert!(read(&folder("late")).turns[6].record.delta.contains("It is 2 o clock."));
    assert_eq!(said(&folder("late"))[..6], one[..6]);
}

#[test]
fn what_was_read_before_can_not_be_changed() {
    let dir = crate::play::checkout();
    let run = dir.path().join("run");
    play(&scenario(TEXT), echo_left(), &run, &RunOptions::default()).unwrap();
    let changed = scenario(&TEXT.replace("Begin.", "Start."));
    let other = dir.path().join("other");
    let error = play(&changed, seeded(), &other, &fork(&run, "three", 0)).unwrap_err();
    assert!(error.downcast_ref::<Drift>().is_some(), "{error:#}");
    assert!(format!("{error:#}").contains("one/1/a") && !other.exists(), "{error:#}");
    let error = play(&scenario(TEXT), seeded(), &other, &fork(&run, "thre", 0)).unwrap_err();
    assert!(format!("{error:#}").contains("`three`"), "a suggestion: {error:#}");
}

fn echo_left() -> Arc<dyn Backend> {
    Arc::new(Scripted::new(|request| Some(if request.choice.is_some() { "Left" } else { "Yes." }.into())))
}

#[test]
fn an_interrupted_fork_goes_on() {
    let dir = crate::play::checkout();
    let scenario = scenario(TEXT);
    let folder = |name: &str| dir.path().join(name);
    play(&scenario, echo_left(), &folder("run"), &RunOptions::default()).unwrap();
    let whole = play(&scenario, seeded(), &folder("whole"), &fork(&folder("run"), "two", 5)).unwrap();
    let whole = std::fs::read(whole.transcript).unwrap();
    for cut in (0..whole.len()).step_by(211) {
        let part = folder(&format!("cut-{cut}"));
        std::fs::create_dir(&part).unwrap();
        std::fs::write(part.join("transcript.jsonl"), &whole[..cut]).unwrap();
        let options = RunOptions { resume: true, ..fork(&folder("run"), "two", 5) };
        let played = play(&scenario, seeded(), &part, &options).unwrap_or_else(|e| panic!("{cut}: {e:#}"));
        assert!(std::fs::read(played.transcript).unwrap() == whole, "cut at {cut}");
    }
}

#[test]
fn a_fork_of_a_continued_run_remembers_the_earlier_one() {
    let dir = crate::play::checkout();
    let scenario_file = dir.path().join("forked.yaml");
    std::fs::write(&scenario_file, TEXT).unwrap();
    let scenario = load(&scenario_file.display().to_string(), TEXT, &[]).scenario.unwrap();
    let folder = |name: &str| dir.path().join(name);
    play(&scenario, echo_left(), &folder("first"), &RunOptions::default()).unwrap();
    let continued = RunOptions { continues: Some(folder("first")), ..RunOptions::default() };
    play(&scenario, echo_left(), &folder("second"), &continued).unwrap();
    let heard = Arc::new(Mutex::new(0));
    let note = heard.clone();
    let backend = Scripted::new(move |request| {
        if request.path == "three/1/a" {
            *note.lock().unwrap() = request.conversation.exchanges.len();
        }
        Some("Yes.".into())
    });
    play(&scenario, Arc::new(backend), &folder("fork"), &fork(&folder("second"), "three", 0)).unwrap();
    assert_eq!(*heard.lock().unwrap(), 4 + 3, "four turns of the first run, three of the second");
    replays(&scenario, &folder("fork"));
}

#[test]
fn an_unknown_turn_of_a_long_plan_is_an_error_without_an_empty_end() {
    let dir = crate::play::checkout();
    let text = "id: long\nagents: {a: {}, b: {}}\n\
                phases: [{name: talk, agents: [a, b], rounds: 20}, {name: close, agents: [a]}]\n";
    let scenario = scenario(text);
    let run = dir.path().join("run");
    play(&scenario, seeded(), &run, &RunOptions::default()).unwrap();
    let error = play(&scenario, seeded(), &dir.path().join("fork"), &fork(&run, "zed", 0)).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("the plan has no turn or phase `zed`") && error.contains("`talk`"), "{error}");
    assert!(!error.trim_end().ends_with(';'), "{error}");
    let said = greenroom::run::Say { turn: "zed".into(), text: "Hm.".into() };
    let changes = Changes { said: vec![said], tells: Vec::new() };
    let from = ForkFrom { run: run.clone(), at: Some("close".into()), changes };
    let options = RunOptions { fork: Some(from), ..RunOptions::default() };
    let error = play(&scenario, seeded(), &dir.path().join("other"), &options).unwrap_err();
    assert!(format!("{error:#}").ends_with("the plan has no turn `zed`"), "{error:#}");
}
