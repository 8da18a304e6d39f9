//! Assertions that need a share of many runs: exit codes, JUnit, single runs, and a threshold that changes
//! after the runs.

use crate::drift::greenroom_with;
use crate::play::checkout;
use std::fs;
use std::path::Path;

/// Ten cases, of which `n_right` are right; nothing in it depends on chance.
fn data_set(share: &str, n_right: usize) -> tempfile::TempDir {
    let folder = checkout();
    let rows: String = (1..=10).map(|case| format!("q{case},{}\n", case <= n_right)).collect();
    fs::write(folder.path().join("rows.csv"), format!("case,right\n{rows}")).unwrap();
    fs::write(folder.path().join("quiz.yaml"), scenario(share)).unwrap();
    folder
}

fn scenario(share: &str) -> String {
    format!(
        "
id: quiz
cases: rows.csv
variables: {{ right: true, bonus: 0 }}
agents: {{ ann: {{ strategy: {{ always: a }} }}, ben: {{ strategy: {{ always: b }} }} }}
phases:
  - {{ name: game, agents: [ann, ben], order: broadcast, answer: [a, b] }}
outcome:
  right: right
  score: none if not right else 2 + bonus
assertions:
  - game.invalid == 0
  - {{ that: outcome.right, share: {share}, why: most questions are easy }}
"
    )
}

fn greenroom(folder: &Path, args: &[&str]) -> (i32, String) {
    greenroom_with(folder, args, &[])
}

fn played(folder: &Path) -> (i32, String) {
    greenroom(folder, &["run", "quiz.yaml", "--repeat", "2", "--out", "out"])
}

#[test]
fn the_exit_code_is_that_of_the_threshold() {
    for (share, n_right, expected) in [
        ("{ at_least: 0.9 }", 10, 0),
        ("{ at_least: 0.9 }", 9, 0),
        ("{ at_least: 0.9 }", 8, 1),
        ("{ at_most: 0.9 }", 9, 0),
        ("{ at_most: 0.9 }", 10, 1),
        ("{ at_least: 0.2, at_most: 0.4 }", 3, 0),
        ("{ at_least: 0.2, at_most: 0.4 }", 5, 1),
        ("{ at_least: 1 }", 10, 0),
        ("{ at_most: 0 }", 0, 0),
    ] {
        let folder = data_set(share, n_right);
        let (code, text) = played(folder.path());
        assert_eq!(code, expected, "{share}, {n_right} of 10:\n{text}");
        let held = format!("{} of 20 runs", 2 * n_right);
        assert!(text.contains(&held), "{held} is not in\n{text}");
        assert_eq!(text.contains("FAILED"), expected == 1, "{text}");
        assert_eq!(greenroom(folder.path(), &["replay", "out"]).0, expected, "{share}, {n_right} of 10");
    }
}

#[test]
fn what_failed_is_said_with_its_counts() {
    let folder = data_set("{ at_least: 0.9 }", 7);
    let (_, text) = played(folder.path());
    assert!(text.contains("10 cases, 20 runs\n"), "{text}");
    let line = "FAILED      outcome.right held in 14 of 20 runs (70 %, 95 % confidence interval ";
    assert!(text.contains(line), "{text}");
    assert!(text.contains("required: at least 90 % (expected: most questions are easy)"), "{text}");
    // Null where the answer is wrong: over what the mean is.
    assert!(text.contains("14 of 20"), "{text}");
    let quiet = greenroom(folder.path(), &["run", "quiz.yaml", "--repeat", "2", "--out", "again", "--quiet"]);
    assert!(quiet.0 == 1 && quiet.1.starts_with("again\n") && quiet.1.contains("FAILED"), "{}", quiet.1);
    let summary = fs::read_to_string(folder.path().join("out/summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    let held = &summary["assertions"][0];
    assert_eq!((&held["that"], &held["share"]["at_least"]), (&"outcome.right".into(), &0.9.into()));
    assert_eq!((&held["cells"][0]["held"], &held["cells"][0]["holds"]), (&14.into(), &false.into()));
    assert_eq!(summary["pooled"]["cells"][0]["cases"], 10);
    for file in ["figures.csv", "figures.parquet", "cases.csv", "cases.parquet"] {
        assert!(folder.path().join("out").join(file).is_file(), "{file}");
    }
}

#[test]
fn each_condition_needs_its_share() {
    let folder = data_set("{ at_least: 0.7 }", 7);
    let text = scenario("{ at_least: 0.7 }").replace("  right: right\n", "  right: right and bonus < 2\n");
    fs::write(folder.path().join("quiz.yaml"), text).unwrap();
    let (code, text) =
        greenroom(folder.path(), &["run", "quiz.yaml", "--sweep", "bonus=1,2", "--out", "out"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("FAILED      bonus=2: outcome.right held in 0 of 10 runs"), "{text}");
    assert!(!text.contains("bonus=1: outcome.right held"), "{text}");
}

#[test]
fn a_single_run_tells_it_and_does_not_fail() {
    let folder = data_set("{ at_least: 0.9 }", 0);
    let (code, text) = greenroom(folder.path(), &["run", "quiz.yaml", "--case", "q1", "--out", "one"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("assertions 1 of 1 hold"), "{text}");
    let line = "outcome.right = false (required in at least 90 % of an experiment's runs)";
    assert!(text.contains(line), "{text}");
    let (code, text) = greenroom(folder.path(), &["replay", "one", "--junit", "one.xml"]);
    assert_eq!((code, text.as_str()), (0, "one/transcript.jsonl: 2 turns, nothing changed\n"));
    greenroom(folder.path(), &["report", "one"]);
    let page = fs::read_to_string(folder.path().join("one/report.html")).unwrap();
    assert!(page.contains("required in at least 90 % of an experiment’s runs"), "{page}");
    assert!(page.contains("1 of 1 assertion held"));
}

#[test]
fn experiments_without_cases_have_thresholds_too() {
    let folder = checkout();
    let text = scenario("{ at_least: 0.9 }").replace("cases: rows.csv\n", "");
    fs::write(folder.path().join("quiz.yaml"), text).unwrap();
    let run = |right: &str, out: &str| {
        let set = format!("right={right}");
        greenroom(folder.path(), &["run", "quiz.yaml", "--repeat", "5", "--set", &set, "--out", out])
    };
    assert_eq!(run("true", "good").0, 0);
    let (code, text) = run("false", "bad");
    assert!(code == 1 && text.contains("held in 0 of 5 runs"), "{text}");
    let files: Vec<String> = fs::read_dir(folder.path().join("bad"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    assert!(!files.contains(&"pooled.csv".to_string()), "{files:?}");
    assert_eq!(greenroom(folder.path(), &["replay", "bad"]).0, 1);
}

#[test]
fn a_threshold_is_a_test_case_and_may_change_after_the_runs() {
    let folder = data_set("{ at_least: 0.9 }", 9);
    assert_eq!(played(folder.path()).0, 0);
    let replay = |args: &[&str]| greenroom(folder.path(), &[&["replay", "out"], args].concat());
    let (code, text) = replay(&["--junit", "replay.xml", "--markdown", "replay.md"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.ends_with("20 recordings: 20 pass\n"), "{text}");
    let junit = |file: &str| {
        let text = fs::read_to_string(folder.path().join(file)).unwrap();
        let mut lines = text.lines().filter(|line| !line.contains("seed-") && !line.contains("</testcase>"));
        let mut out = String::new();
        let is_time = |word: &&str| !word.starts_with("time=") && !word.starts_with("uuid=");
        lines.by_ref().for_each(|line| {
            let words: Vec<&str> = line.split(' ').filter(is_time).collect();
            out += &(words.join(" ") + "\n");
        });
        out
    };
    insta::assert_snapshot!("junit_of_a_data_set", junit("replay.xml"));
    let markdown = fs::read_to_string(folder.path().join("replay.md")).unwrap();
    assert!(markdown.contains("at least 90 %") && markdown.contains("18 of 20 runs"), "{markdown}");
    // A threshold that is raised is evaluated again over the recorded replies.
    fs::write(folder.path().join("quiz.yaml"), scenario("{ at_least: 0.95 }")).unwrap();
    let (code, text) = replay(&["--junit", "raised.xml", "--github"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("assertion failed: `outcome.right` held in 18 of 20 runs (90 %"), "{text}");
    assert!(text.contains("required: at least 95 %"), "{text}");
    assert!(text.contains("20 recordings: 20 pass; 1 assertion over many runs fails\n"), "{text}");
    assert!(text.contains("::error file=quiz.yaml,line=13,"), "{text}");
    assert!(junit("raised.xml").contains("failures=\"1\""), "{}", junit("raised.xml"));
    // A single run of it is judged alone.
    let (code, text) = greenroom(folder.path(), &["replay", "out/9-case=q10/seed-0"]);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn parts_are_judged_when_they_are_merged() {
    let folder = data_set("{ at_least: 0.9 }", 5);
    for part in ["1", "2"] {
        let shard = format!("{part}/2");
        let run = ["run", "quiz.yaml", "--repeat", "2", "--shard", &shard, "--out", part];
        let (code, text) = greenroom(folder.path(), &run);
        assert_eq!(code, 0, "{text}");
        let (code, text) = greenroom(folder.path(), &["replay", part]);
        assert!(code == 0 && text.contains("runs are incomplete"), "{text}");
    }
    let (code, text) = greenroom(folder.path(), &["merge", "1", "2", "--out", "all"]);
    assert!(code == 1 && text.contains("held in 10 of 20 runs"), "{text}");
    let whole = fs::read(folder.path().join("all/summary.json")).unwrap();
    assert_eq!(played(folder.path()).0, 1);
    assert!(fs::read(folder.path().join("out/summary.json")).unwrap() == whole, "equal summaries");
}
