//! A run with changes of the state, replies in a form and settings of its own: whatever is done to a line is drift at that line, and
//! cut after any line it is resumed to the same file.

use crate::drift::greenroom_with;
use crate::play::{play, without_copy};
use greenroom::backend::{Backend, Request, Scripted};
use greenroom::run::RunOptions;
use greenroom::scenario::{Scenario, load};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

const FILE: &str = "\
id: ledger
agents: { ann: { temperature: 0.5 }, ben: { top_k: 4 } }
state: { pot: 0, asked: [] }
phases:
  - repeat: 2
    phases:
      - name: bid
        agents: [ann, ben]
        max_tokens: 50
        prompt: \"The pot holds {{ pot }}.\"
        reply: { schema: { type: integer, minimum: 1, maximum: 99 } }
        set_each_round:
          pot: pot + bid.replies.ann + bid.replies.ben
        set: { asked: \"asked + ['bid']\" }
      - name: talk
        agents: [ann, ben]
        turns:
          - agent: ann
            set: { asked: \"asked + [pot]\" }
          - { agent: ben, temperature: 0 }
        set: { pot: pot + 1 }
outcome: { pot: pot }
";

fn backend() -> Arc<dyn Backend> {
    Arc::new(Scripted::new(|request: &Request| {
        let words = format!("words of {}", request.path);
        Some(if request.form.is_some() { (10 + request.index).to_string() } else { words })
    }))
}

/// Records a run beside its file.
fn record(folder: &Path) -> (Arc<Scenario>, Vec<String>) {
    let file = folder.join("ledger.yaml");
    std::fs::write(&file, FILE).unwrap();
    let scenario = load(&file.display().to_string(), FILE, &[]).scenario.unwrap();
    let played = play(&scenario, backend(), &folder.join("run"), &RunOptions::default()).unwrap();
    without_copy(&folder.join("run"));
    let text = std::fs::read_to_string(played.transcript).unwrap();
    (scenario, text.lines().map(str::to_string).collect())
}

/// The lines with hashes that fit.
fn chained(lines: &[String]) -> Vec<String> {
    let mut before = String::new();
    let chain = |line: &String| {
        let end = line.rfind(",\"hash\":\"").unwrap();
        let text = format!("{}}}", &line[..end]);
        before = blake3::hash(format!("{before}\n{text}").as_bytes()).to_hex().to_string();
        format!("{},\"hash\":\"{before}\"}}", &line[..end])
    };
    lines.iter().map(chain).collect()
}

/// Replays these lines: the line of the drift, its path, its cause in words, and the field that it names.
fn drift(folder: &Path, lines: &[String]) -> String {
    std::fs::write(folder.join("run/transcript.jsonl"), lines.join("\n") + "\n").unwrap();
    let (code, text) = greenroom_with(folder, &["replay", "run", "--json"], &[("CI", "true")]);
    assert_eq!(code, 3, "{text}");
    let all: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let found = &all[0]["problems"][0];
    let word = |value: &Value| value.as_str().unwrap_or("nowhere").to_string();
    format!(
        "{} {}: {}, {}",
        found["line"],
        word(&found["at"]),
        word(&found["title"]),
        word(&found["place"]["field"])
    )
}

#[test]
fn lines_of_the_state_are_guarded() {
    let folder = tempfile::tempdir().unwrap();
    let (_, lines) = record(folder.path());
    assert_eq!(chained(&lines), lines, "the hashes are those of the program");
    let states = lines.iter().enumerate().filter(|(_, line)| line.contains("\"type\":\"state\""));
    let states: Vec<usize> = states.map(|(at, _)| at).collect();
    assert_eq!(states, [3, 4, 6, 8, 11, 12, 14, 16]);
    type Edit = fn(&mut Vec<String>);
    // With the hashes as they were the line is altered; with hashes that fit, the state comes to something else.
    let values: [(Edit, &str, &str); 3] = [
        (
            |lines| lines[3] = lines[3].replacen("\"pot\":", "\"pot\":1", 1),
            "4 bid.1/1",
            "phases[0].set_each_round.pot",
        ),
        (
            |lines| lines[6] = lines[6].replacen("[\"bid\"", "[\"bud\"", 1),
            "7 talk.1/1/ann",
            "phases[1].turns[0].set.asked",
        ),
        (
            |lines| lines[16] = lines[16].replacen("\"pot\":", "\"pot\":1", 1),
            "17 talk.2",
            "phases[1].set.pot",
        ),
    ];
    for (edit, at, field) in values {
        let mut altered = lines.clone();
        edit(&mut altered);
        assert_eq!(drift(folder.path(), &altered), format!("{at}: the recorded line was altered, nowhere"));
        let found = drift(folder.path(), &chained(&altered));
        assert_eq!(found, format!("{at}: the results changed, phases[0].{field}"));
    }
    let places: [(Edit, &str); 9] = [
        (|lines| _ = lines.remove(3), "4 bid.1/1: a line is missing"),
        (|lines| _ = lines.remove(4), "5 bid.1: a line is missing"),
        (|lines| _ = lines.remove(6), "7 talk.1/1/ann: a line is missing"),
        (|lines| _ = lines.remove(16), "17 talk.2: a line is missing"),
        (|lines| lines.insert(4, lines[3].clone()), "5 bid.1/1: a line too many"),
        (|lines| lines.insert(2, lines[3].clone()), "3 bid.1/1: a line too many"),
        (|lines| lines.swap(4, 5), "5 bid.1: the order of turns changed"),
        (|lines| lines.swap(5, 6), "6 talk.1/1/ann: a line too many"),
        (|lines| lines.swap(3, 4), "4 bid.1/1: the order of turns changed"),
    ];
    for (edit, expected) in places {
        let mut altered = lines.clone();
        edit(&mut altered);
        for lines in [chained(&altered), altered] {
            assert_eq!(drift(folder.path(), &lines), format!("{expected}, nowhere"));
        }
    }
}

#[test]
fn a_run_is_resumed_behind_any_line() {
    let folder = tempfile::tempdir().unwrap();
    let (scenario, lines) = record(folder.path());
    let whole = lines.join("\n") + "\n";
    let resume = RunOptions { resume: true, ..RunOptions::default() };
    for n in 1..lines.len() {
        let run = folder.path().join(format!("cut-{n}"));
        std::fs::create_dir(&run).unwrap();
        std::fs::write(run.join("transcript.jsonl"), lines[..n].join("\n") + "\n").unwrap();
        let played =
            play(&scenario, backend(), &run, &resume).unwrap_or_else(|error| panic!("line {n}: {error:#}"));
        assert!(std::fs::read_to_string(played.transcript).unwrap() == whole, "cut behind line {n}");
    }
}
