//! Forks that change something: a reply, a line of the stage, the settings of sampling. What they change is
//! on record, so that the fork replays without a model, and every prompt extends what its reader had read.

use crate::play::{play, scenario};
use greenroom::backend::{Backend, Scripted};
use greenroom::replay::{asked_at, replay};
use greenroom::run::{Changes, ForkFrom, RunOptions, Say, Tell};
use greenroom::scenario::Scenario;
use greenroom::timeline::{Event, StageKind};
use greenroom::transcript::{Transcript, TurnRecord};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

const TEXT: &str = "
id: edited
agents:
  a: {display_name: Ann}
  b: {display_name: Ben}
  c: {display_name: Cas, lifecycle: ephemeral}
  r: {display_name: Rob, strategy: {always: Left}}
phases:
  - { name: one, agents: [a, b], rounds: 2, prompt: Begin. }
  - { name: two, agents: [a, b, r], order: broadcast, answer: { one_of: {left: Left, right: Right} } }
  - { name: three, agents: [a, b, c], when: two.votes.left >= 2, prompt: 'So it is left.' }
  - { name: four, agents: [a, b, c], prompt: 'The end.' }
outcome: {left: two.votes.left}
";

fn say(turn: &str, text: &str) -> Say {
    Say { turn: turn.into(), text: text.into() }
}

fn tell(to: Option<&str>, before: &str, text: &str) -> Tell {
    Tell { before: before.into(), to: to.map(str::to_string), text: text.into() }
}

fn fork(run: &Path, at: Option<&str>, said: &[Say], tells: &[Tell]) -> RunOptions {
    let changes = Changes { said: said.to_vec(), tells: tells.to_vec() };
    let from = ForkFrom { run: run.to_path_buf(), at: at.map(str::to_string), changes };
    RunOptions { fork: Some(from), ..RunOptions::default() }
}

/// Says its path; chooses the first option.
fn echo() -> Arc<dyn Backend> {
    Arc::new(Scripted::new(|request| {
        let open = request.choice.as_ref().map(|of| of.choice.options[of.open[0]].text.clone());
        open.or(Some(format!("This is {}.", request.path)))
    }))
}

fn read(folder: &Path) -> Transcript {
    Transcript::open(&folder.join("transcript.jsonl")).unwrap()
}

/// Plays it, replays it, and gives its lines by path.
fn played(scenario: &Arc<Scenario>, folder: &Path, options: &RunOptions) -> BTreeMap<String, TurnRecord> {
    play(scenario, echo(), folder, options).unwrap_or_else(|error| panic!("{error:#}"));
    let transcript = read(folder);
    replay(scenario, &transcript, BTreeMap::new()).unwrap_or_else(|error| panic!("{error:#}"));
    transcript.turns.into_iter().map(|turn| (turn.record.path.clone(), turn.record)).collect()
}

#[test]
fn a_given_reply_is_heard_remembered_and_replayed() {
    let dir = crate::play::checkout();
    let (scenario, run) = (scenario(TEXT), dir.path().join("run"));
    let plain = played(&scenario, &run, &RunOptions::default());
    let said = [say("one/2/a", " I take it back. "), say("two/1/b", "right"), say("two/1/r", "Right")];
    let lines = played(&scenario, &dir.path().join("said"), &fork(&run, None, &said, &[]));
    assert_eq!(
        (lines["one/1/b"].clone(), &lines["one/2/a"].raw[..]),
        (plain["one/1/b"].clone(), "I take it back.")
    );
    assert!(lines["one/2/b"].delta.contains("Ann: I take it back."));
    assert_eq!((&lines["two/1/b"].raw[..], &lines["two/1/r"].raw[..]), ("Right", "Right"));
    assert!(lines["two/1/r"].tokens.is_empty(), "a rule's");
    let choice = lines["two/1/b"].constraint.as_ref().unwrap();
    assert_eq!((choice.options.len(), &choice.chosen), (2, &"right".into()));
    assert!(choice.options.iter().all(|option| option.logprob.is_none()), "nobody drew it");
    assert!(!lines.contains_key("three/1/a"), "what follows from it follows");
    let header = read(&dir.path().join("said")).header.record.forked.unwrap();
    assert_eq!((header.at.as_str(), header.said.len()), ("one/2/a", 3));
    // What comes before a fork of the fork is kept, what comes after it is not.
    let again = fork(&dir.path().join("said"), Some("two/1/b"), &[], &[]);
    let lines = played(&scenario, &dir.path().join("again"), &again);
    assert_eq!((&lines["one/2/a"].raw[..], &lines["two/1/b"].raw[..]), ("I take it back.", "Left"));
    assert_eq!(&lines["two/1/r"].raw[..], "Left");
    let kept = read(&dir.path().join("again")).header.record.forked.unwrap().said;
    assert_eq!(kept.iter().map(|said| &said.turn[..]).collect::<Vec<_>>(), ["one/2/a"]);
}

#[test]
fn an_added_line_is_read_once_by_whom_it_is_for() {
    let dir = crate::play::checkout();
    let (scenario, run) = (scenario(TEXT), dir.path().join("run"));
    let plain = played(&scenario, &run, &RunOptions::default());
    let tells = [
        tell(None, "one/2/a", "It rains."),
        tell(Some("b"), "two/1/a", "Ann lies."),
        tell(None, "three", "A bell rings.\nTwice."),
        tell(Some("c"), "four/1/c", "You are late."),
    ];
    let folder = dir.path().join("told");
    let lines = played(&scenario, &folder, &fork(&run, Some("one/2/a"), &[], &tells));
    assert_eq!(lines["one/1/b"], plain["one/1/b"]);
    let readers = |text: &str| {
        let reads = lines.values().filter(|line| line.delta.contains(text));
        reads.map(|line| line.path.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(readers("It rains."), ["one/2/a", "one/2/b"]);
    assert_eq!(readers("Ann lies."), ["two/1/b"]);
    assert_eq!(readers("A bell rings.\nTwice."), ["three/1/a", "three/1/b", "three/1/c"]);
    assert_eq!(readers("You are late."), ["four/1/c"]);
    let (before, after) = ("It rains.", "Ann: This is one/2/a.");
    let order =
        |line: &str| (lines[line].delta.find(before).unwrap(), lines[line].delta.find(after).unwrap());
    let (line, heard) = order("one/2/b");
    assert!(line < heard, "it stands where it was told: {}", lines["one/2/b"].delta);
    let bell = &lines["three/1/b"].delta;
    assert!(bell.find("So it is left.").unwrap() < bell.find("A bell").unwrap(), "{bell}");
    let (memory, _) = asked_at(&scenario, &read(&folder), BTreeMap::new(), "two/1/b").unwrap();
    let added = memory.events().iter().filter_map(|event| match event {
        Event::Stage { kind: StageKind::Added, text, origin, .. } => Some((text.as_str(), origin.as_str())),
        _ => None,
    });
    assert_eq!(added.collect::<Vec<_>>(), [("It rains.", "one/2/a"), ("Ann lies.", "two/1/a")]);
    // A fork of it at the very turn tells it no more; one after that does, also to those who had not read it.
    let lines = played(&scenario, &dir.path().join("at"), &fork(&folder, Some("one/2/a"), &[], &[]));
    assert!(!lines.values().any(|line| line.delta.contains("It rains.")));
    let lines = played(&scenario, &dir.path().join("behind"), &fork(&folder, Some("one/2/b"), &[], &[]));
    assert!(lines["one/2/b"].delta.contains("It rains.") && !lines["two/1/b"].delta.contains("Ann lies."));
}

#[test]
fn a_line_nobody_came_to_read_is_carried_on() {
    let dir = crate::play::checkout();
    let text = TEXT.replace("rounds: 2", "rounds: 2, until: true");
    let file = dir.path().join("edited.yaml");
    std::fs::write(&file, &text).unwrap();
    let scenario = greenroom::scenario::open(&file, &[]).unwrap().scenario.unwrap();
    let (run, tells) =
        (dir.path().join("run"), [tell(Some("r"), "two/1/r", "Now."), tell(None, "four/1/b", "Late.")]);
    played(&scenario, &run, &RunOptions::default());
    let folder = dir.path().join("told");
    played(&scenario, &folder, &fork(&run, None, &[], &tells));
    let next = RunOptions { continues: Some(folder), ..RunOptions::default() };
    play(&scenario, echo(), &dir.path().join("next"), &next).unwrap();
    let first = |key: &str| {
        let turns = read(&dir.path().join("next")).turns.into_iter().map(|turn| turn.record);
        turns.into_iter().find(|turn| turn.agent == key).unwrap().delta
    };
    assert!(first("a").contains("Late.") && !first("b").contains("Late."), "Ann had spoken before it");
}

#[test]
fn temperature_and_limit_change_from_the_fork_on() {
    let dir = crate::play::checkout();
    let (scenario, run) = (scenario(TEXT), dir.path().join("run"));
    played(&scenario, &run, &RunOptions::default());
    let was = read(&run).header.record;
    let seen = Arc::new(Mutex::new(BTreeMap::new()));
    let ask = |from: &Path, at: &str, temperature: f32, limit: usize| {
        let mut options = fork(from, Some(at), &[], &[]);
        (options.sampling.temperature, options.max_tokens) = (Some(temperature), limit);
        let folder = dir.path().join(at.replace('/', "-"));
        let note = seen.clone();
        let backend = Scripted::new(move |request| {
            let settings = (request.sampling.temperature, request.max_tokens);
            note.lock().unwrap().insert(request.path.clone(), settings);
            Some(if request.choice.is_some() { "Left".into() } else { format!("This is {}.", request.path) })
        });
        play(&scenario, Arc::new(backend), &folder, &options).unwrap();
        replay(&scenario, &read(&folder), BTreeMap::new()).unwrap();
        folder
    };
    let one = ask(&run, "two", 0.0, 7);
    let header = read(&one).header.record;
    assert_eq!((header.sampling.temperature, header.max_tokens), (0.0, 7));
    let kept = was.sampling.temperature;
    assert_eq!((header.temperature_at(3), header.temperature_at(4)), (kept, 0.0));
    let two = ask(&one, "four", 1.5, 9);
    let header = read(&two).header.record;
    assert_eq!([3, 4, 9, 10].map(|line| header.temperature_at(line)), [kept, 0.0, 0.0, 1.5]);
    assert_eq!(seen.lock().unwrap()["two/1/a"], (0.0, 7));
    assert_eq!(seen.lock().unwrap()["four/1/c"], (1.5, 9));
    // Back to what it was: nothing to report.
    assert!(
        read(&ask(&two, "one/2/a", kept, was.max_tokens)).header.record.forked.unwrap().settings.is_empty()
    );
}

#[test]
fn every_wrong_change_is_reported() {
    let dir = crate::play::checkout();
    let (scenario, run) = (scenario(TEXT), dir.path().join("run"));
    played(&scenario, &run, &RunOptions::default());
    let none = |at: Option<&str>, said: &[Say], tells: &[Tell]| {
        let folder = dir.path().join("wrong");
        let error = play(&scenario, echo(), &folder, &fork(&run, at, said, tells)).unwrap_err();
        let _ = std::fs::remove_dir_all(&folder);
        format!("{error:#}")
    };
    let all = [
        none(None, &[say("one/3/a", "Hm.")], &[]),
        none(None, &[say("two", "left")], &[]),
        none(Some("two"), &[say("one/2/a", "Hm.")], &[]),
        none(None, &[say("one/2/a", "  ")], &[]),
        none(None, &[say("two/1/a", "middle")], &[]),
        none(None, &[say("one/2/a", "Hm."), say("one/2/a", "Oh.")], &[]),
        none(None, &[say("two/1/a", "right"), say("two/1/b", "right"), say("three/1/a", "Hm.")], &[]),
        none(None, &[], &[tell(None, "five", "Hm.")]),
        none(None, &[], &[tell(None, "two", "\n")]),
        none(None, &[], &[tell(Some("ann"), "two", "Hm.")]),
        none(None, &[], &[tell(Some("r"), "three", "Hm.")]),
        none(Some("four"), &[], &[tell(None, "two", "Hm.")]),
        none(None, &[], &[]),
    ];
    insta::assert_snapshot!(all.join("\n"));
}
