//! Recordings judged: what changed is named with cause and line, in every form, and can be accepted or
//! rejected.

use crate::drift::greenroom_with;
use crate::play::{play, without_copy};
use greenroom::backend::Scripted;
use greenroom::replay::Search;
use greenroom::run::RunOptions;
use greenroom::scenario::load;
use greenroom::transcript::Transcript;
use greenroom::verify::forms::{github, json, junit, markdown};
use greenroom::verify::{
    JudgeQuestion, JudgeSettings, ProblemKind, Verdict, What, differences, pending_file, recordings,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Two doors; the line numbers are named by the tests.
pub(crate) const DOORS: &str = "id: doors
variables: {prize: 3, unread: 1}
agents:
  a: {display_name: Ann, system_prompt: You are Ann.}
  b: {display_name: Ben}
phases:
  - name: talk
    agents: [a, b]
    rounds: 2
    prompt: There are two doors. Behind one is {{ prize }} gold.
  - name: door
    agents: [a, b]
    order: broadcast
    answer: { one_of: {left: Left, right: Right} }
payoff:
  phase: door
  matrix:
    left: {left: [prize, prize], right: [0, 1]}
    right: {left: [1, 0], right: [0, 0]}
outcome:
  gold: payoffs.a + payoffs.b
assertions:
  - that: door.invalid == 0
";

fn answer() -> Arc<Scripted> {
    Arc::new(Scripted::new(|request| {
        let said = request.choice.as_ref().map(|_| "Left".to_string());
        said.or(Some(format!("This is {}.", request.path)))
    }))
}

/// A folder with the scenario and a run of it.
pub(crate) fn recorded(overrides: &[(String, serde_json::Value)]) -> tempfile::TempDir {
    let folder = crate::play::checkout();
    write(&folder, DOORS);
    let name = folder.path().join("doors.yaml").display().to_string();
    let scenario = load(&name, DOORS, overrides).scenario.unwrap();
    play(&scenario, answer(), &folder.path().join("run"), &RunOptions::default()).unwrap();
    without_copy(&folder.path().join("run"));
    folder
}

pub(crate) fn write(folder: &tempfile::TempDir, text: &str) {
    std::fs::write(folder.path().join("doors.yaml"), text).unwrap();
}

pub(crate) fn file(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("run/transcript.jsonl")
}

pub(crate) fn judged(folder: &tempfile::TempDir) -> Verdict {
    let judge =
        JudgeSettings { search: Search::default(), question: JudgeQuestion::Nothing, writes_pending: true };
    judge.judge(&folder.path().join("run"))
}

/// The only problem: its kind, where, and the scenario's line that it comes from.
pub(crate) fn problem(folder: &tempfile::TempDir) -> (ProblemKind, String, Option<usize>) {
    let verdict = judged(folder);
    assert_eq!(verdict.problems.len(), 1, "{verdict:#?}");
    let problem = &verdict.problems[0];
    (problem.kind, problem.at.clone(), problem.place.as_ref().map(|place| place.line))
}

#[test]
fn whatever_changes_is_named_with_its_line() {
    let folder = recorded(&[]);
    assert_eq!(judged(&folder).problems, []);
    let edits = [
        ("There are two doors", "There are three doors", ProblemKind::Drift, "talk/1/a", 10),
        ("prize: 3", "prize: 4", ProblemKind::Drift, "talk/1/a", 2),
        ("You are Ann.", "You are Anna.", ProblemKind::Drift, "agents/a", 4),
        ("right: [0, 1]}", "right: [0, 2]}", ProblemKind::Drift, "", 0),
        ("[prize, prize]", "[prize, 5]", ProblemKind::Drift, "payoff", 15),
        ("payoffs.a + payoffs.b", "payoffs.a - payoffs.b", ProblemKind::Drift, "outcome.gold", 21),
        ("door.invalid == 0", "door.invalid == 1", ProblemKind::Assertion, "assertions[0]", 23),
        (
            "agents: [a, b]\n    rounds",
            "agents: [a, z]\n    rounds",
            ProblemKind::Invalid,
            "unknown-agent",
            8,
        ),
    ];
    for (from, to, kind, at, line) in edits {
        assert!(DOORS.contains(from), "{from}");
        write(&folder, &DOORS.replacen(from, to, 1));
        if line == 0 {
            assert_eq!(judged(&folder).problems, [], "{to}: a payoff that nobody got");
        } else {
            assert_eq!(problem(&folder), (kind, at.to_string(), Some(line)), "{to}");
        }
    }
    write(&folder, &DOORS.replace("unread: 1", "unread: 2"));
    let verdict = judged(&folder);
    assert_eq!(verdict.problems, []);
    assert!(
        verdict.notes.iter().any(|note| note.contains("`unread` is 2 (1 before)")),
        "{:?}",
        verdict.notes
    );
}

#[test]
fn what_was_set_from_outside_stays_set_and_the_rest_is_the_files() {
    let folder = recorded(&[("prize".to_string(), 7.into())]);
    assert!(std::fs::read_to_string(file(&folder)).unwrap().contains("Behind one is 7 gold."));
    write(&folder, &DOORS.replace("prize: 3", "prize: 4"));
    assert_eq!(judged(&folder).problems, []);
    write(&folder, &DOORS.replace("prize: 3, unread: 1", "unread: 1").replace("prize", "unread"));
    assert_eq!(problem(&folder).0, ProblemKind::Drift);
}

#[test]
fn an_altered_reply_is_named_by_turn_and_line() {
    let folder = recorded(&[]);
    let text = std::fs::read_to_string(file(&folder)).unwrap();
    let altered = text.replacen("This is talk/1/b.", "This was talk/1/b.", 1);
    std::fs::write(file(&folder), altered).unwrap();
    let verdict = judged(&folder);
    let found = &verdict.problems[0];
    assert_eq!((found.at.as_str(), found.line), ("talk/1/b", Some(3)));
    assert!(found.title.contains("altered"), "{found:?}");
}

/// Paths of a temporary folder, taken out of a text.
fn without(folder: &tempfile::TempDir, text: &str) -> String {
    let text = text.replace(&folder.path().canonicalize().unwrap().display().to_string(), "DIR");
    text.replace(&folder.path().display().to_string(), "DIR")
}

#[test]
fn verdicts_have_forms_for_machines() {
    let folder = recorded(&[]);
    write(&folder, &DOORS.replace("There are two doors.", "There are ``` <script>&]]> %0A | * doors,"));
    let mut verdict = judged(&folder);
    verdict.seconds = 0.25;
    let mut passes = verdict.clone();
    passes.problems.clear();
    let fails = recorded(&[]);
    write(&fails, &DOORS.replace("door.invalid == 0", "door.invalid == 1"));
    let mut failed = judged(&fails);
    failed.seconds = 0.5;
    let all = [passes, verdict, failed];
    let xml = junit(&all).unwrap();
    let parsed = roxmltree::Document::parse(&xml).unwrap();
    let cases: Vec<_> = parsed.descendants().filter(|node| node.has_tag_name("testcase")).collect();
    let failures =
        |case: &roxmltree::Node<'_, '_>| case.children().any(|child| child.has_tag_name("failure"));
    assert_eq!(cases.iter().map(failures).collect::<Vec<_>>(), [false, true, true]);
    let annotations = github(&all, None);
    let n = |kind: &str| annotations.lines().filter(|line| line.starts_with(kind)).count();
    assert_eq!(
        (n("::error file="), n("::notice file=")),
        (2, annotations.lines().count() - 2),
        "{annotations}"
    );
    let inside = github(&all, Some(folder.path()));
    assert!(inside.starts_with("::error file=doors.yaml,line=10,"), "{inside}");
    let parsed: serde_json::Value = serde_json::from_str(&json(&all).unwrap()).unwrap();
    assert_eq!(parsed[1]["problems"][0]["place"]["line"], 10);
    let text = format!("{annotations}\n{}", markdown(&all));
    insta::assert_snapshot!(without(&fails, &without(&folder, &text)));
}

#[test]
fn a_drift_can_be_accepted_or_rejected_but_not_in_ci() {
    let folder = recorded(&[]);
    let (dir, new) = (folder.path(), pending_file(&file(&folder)));
    let good = std::fs::read(file(&folder)).unwrap();
    write(&folder, &DOORS.replace("two doors", "three doors"));
    let in_ci = |args: &[&str]| greenroom_with(dir, args, &[("CI", "true")]);
    let here = |args: &[&str]| greenroom_with(dir, args, &[]);
    let (code, text) = in_ci(&["replay", "run"]);
    assert!(code == 3 && !new.exists() && text.contains("on your machine"), "{text}");
    let (code, text) = here(&["review"]);
    assert!(code == 0 && text.contains("nothing to review"), "{text}");
    let (code, text) = here(&["replay", "run"]);
    assert!(code == 3 && new.exists() && text.contains("greenroom review"), "{text}");
    for args in [&["review"][..], &["review", "--accept"], &["review", "--reject"]] {
        let (code, text) = in_ci(args);
        assert!(code == 4 && text.contains("in CI") && new.exists(), "{text}");
    }
    let (code, text) = here(&["review"]);
    assert!(code == 4 && text.contains("--accept or --reject"), "no terminal to ask at: {text}");
    let (code, text) = here(&["review", "--reject"]);
    assert!(code == 0 && !new.exists() && text.contains("0 accepted, 1 rejected"), "{text}");
    assert!(std::fs::read(file(&folder)).unwrap() == good, "rejected: nothing changed");
    assert_eq!(here(&["replay", "run"]).0, 3);
    let (code, text) = here(&["review", "run", "--accept"]);
    assert_eq!(code, 0, "{text}");
    insta::assert_snapshot!(without(&folder, &text));
    assert!(!new.exists());
    let (code, text) = here(&["replay", "run"]);
    assert!(code == 0, "{text}");
    let accepted = Transcript::open(&file(&folder)).unwrap();
    let before = Transcript::parse(Path::new("x"), &String::from_utf8(good).unwrap()).unwrap();
    assert_eq!(accepted.header.record.carried.as_deref(), Some(before.hash()));
    let said = |of: &Transcript| of.turns.iter().map(|t| t.record.raw.clone()).collect::<Vec<_>>();
    assert_eq!(said(&accepted), said(&before), "the replies are carried over");
}

#[test]
fn what_is_pending_goes_when_the_recording_fits_again() {
    let folder = recorded(&[]);
    let new = pending_file(&file(&folder));
    write(&folder, &DOORS.replace("two doors", "three doors"));
    assert_eq!(judged(&folder).pending, Some(new.display().to_string()));
    write(&folder, DOORS);
    assert_eq!((judged(&folder).problems, new.exists()), (vec![], false));
    // What a model said otherwise waits for its review, whatever a replay without a model finds.
    std::fs::copy(file(&folder), &new).unwrap();
    assert_eq!((judged(&folder).problems, new.exists()), (vec![], true));
    // What is no transcript is not accepted, and keeps nothing else from being reviewed.
    std::fs::write(&new, "{}").unwrap();
    let review = |what| greenroom_with(folder.path(), &["review", what], &[]);
    let (code, text) = review("--accept");
    assert!(code == 0 && text.contains("0 accepted, 0 rejected, 1 left") && new.exists(), "{text}");
    assert!(review("--reject").1.contains("0 accepted, 1 rejected, 0 left") && !new.exists());
    // A turn that nobody recorded can't be carried over: the drift is reported, and why there is nothing to
    // accept.
    write(&folder, &DOORS.replace("rounds: 2", "rounds: 3"));
    let verdict = judged(&folder);
    assert_eq!((verdict.pending, new.exists()), (None, false));
    assert!(verdict.notes.iter().any(|note| note.contains("only a model")), "{:?}", verdict.notes);
    assert_eq!(verdict.problems[0].at, "talk/3/a");
}

#[test]
fn recordings_are_found_below_folders() {
    let folder = recorded(&[]);
    let text = std::fs::read_to_string(file(&folder)).unwrap();
    let put = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    put("z/one.jsonl", &text);
    put("a/two.jsonl", &text);
    put("a/two.jsonl.new", &text);
    put("a/other.jsonl", "{\"type\":\"event\"}\n");
    put("a/transcript.jsonl", "damaged");
    put("empty/readme.txt", "");
    let found = recordings(&[folder.path().to_path_buf()]).unwrap();
    let names: Vec<_> = found.iter().map(|path| path.strip_prefix(folder.path()).unwrap()).collect();
    let expected = ["a/transcript.jsonl", "a/two.jsonl", "run/transcript.jsonl", "z/one.jsonl"];
    assert_eq!(names, expected.map(Path::new));
    let error = recordings(&[folder.path().join("empty")]).unwrap_err();
    assert!(error.to_string().contains("contains no recording"), "{error}");
    let (code, text) = greenroom_with(folder.path(), &["replay", "."], &[("CI", "1")]);
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("4 recordings: 3 pass, 1 drifts"), "{text}");
}

#[test]
fn two_runs_are_compared() {
    let folder = recorded(&[]);
    let scenario = load("doors.yaml", DOORS, &[]).scenario.unwrap();
    let other = Arc::new(Scripted::new(|request| match request.path.as_str() {
        "door/1/b" => Some("Right".into()),
        "door/1/a" => Some("Left".into()),
        "talk/2/a" => Some("Hm.".into()),
        path => Some(format!("This is {path}.")),
    }));
    let options = RunOptions { seed: 3, ..RunOptions::default() };
    play(&scenario, other, &folder.path().join("other"), &options).unwrap();
    let (code, text) = greenroom_with(folder.path(), &["diff", "run", "other"], &[]);
    assert_eq!(code, 3);
    insta::assert_snapshot!(text);
    let (code, text) = greenroom_with(folder.path(), &["diff", "run", "run"], &[]);
    assert_eq!((code, text.as_str()), (0, "  nothing differs\n"));
    let open = |name: &str| Transcript::open(&folder.path().join(name).join("transcript.jsonl")).unwrap();
    let found = differences(&open("run"), &open("other"));
    let first = found.iter().find(|found| found.what == What::Reply).unwrap();
    assert_eq!((first.at.as_str(), first.now.as_str(), first.line), ("talk/2/a", "Hm.", Some(4)));
    let payoff = found.iter().find(|found| found.what == What::Payoff).unwrap();
    assert_eq!((payoff.at.as_str(), payoff.was.as_str(), payoff.now.as_str()), ("a", "3", "0"));
}

#[test]
fn a_recording_without_its_end_is_interrupted_and_nothing_is_pending() {
    let folder = recorded(&[]);
    let text = std::fs::read_to_string(file(&folder)).unwrap();
    let cut: Vec<&str> = text.lines().take(4).collect();
    std::fs::write(file(&folder), cut.join("\n") + "\n").unwrap();
    let verdict = judged(&folder);
    assert!(verdict.problems[0].title.contains("interrupted") && verdict.pending.is_none(), "{verdict:?}");
}
