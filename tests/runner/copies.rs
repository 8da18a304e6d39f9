//! A run's folder holds its scenario, so that the run can be replayed, explained, forked, reported and
//! resumed anywhere.

use assert_cmd::Command;
use std::fs;
use std::path::{Path, PathBuf};

const WELL: &str = "\
id: well
include: [../cast/people.yaml]
agents: {tom: {strategy: {always: No.}}}
phases: [{ name: talk, agents: [mira, tom], rounds: 2, prompt: 'The {{ thing }} is low.' }]
outcome: {rounds: talk.rounds}
";
const PEOPLE: &str = "variables: {thing: well}\nagents: {mira: {strategy: {list: [Yes., Well.]}}}\n";

/// A checkout with a scenario that includes a file of another folder.
fn checkout() -> tempfile::TempDir {
    let dir = crate::play::checkout();
    for (name, text) in [("plays/well.yaml", WELL), ("cast/people.yaml", PEOPLE)] {
        fs::create_dir_all(dir.path().join(name).parent().unwrap()).unwrap();
        fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

/// Runs the program in a folder; its exit code, and what it says on standard output and error.
fn greenroom(folder: &Path, args: &[&str]) -> (i32, String, String) {
    let mut program = Command::cargo_bin("greenroom").unwrap();
    program.args(args).current_dir(folder).env("HOME", folder).env_remove("XDG_CACHE_HOME").env_remove("CI");
    let out = program.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (out.status.code().unwrap(), text(&out.stdout), text(&out.stderr))
}

/// The same of a command that must succeed.
fn done(folder: &Path, args: &[&str]) -> (String, String) {
    let (code, out, err) = greenroom(folder, args);
    assert_eq!(code, 0, "{args:?}: {out}{err}");
    (out, err)
}

fn transcript(run: PathBuf) -> Vec<u8> {
    fs::read(run.join("transcript.jsonl")).unwrap()
}

#[test]
fn a_run_that_is_taken_elsewhere_has_all_it_needs() {
    let (dir, away) = (checkout(), tempfile::tempdir().unwrap());
    done(dir.path(), &["run", "plays/well.yaml", "--out", "one", "--set", "thing=river", "--quiet"]);
    let copy = |name: &str| fs::read_to_string(dir.path().join("one/scenario").join(name)).unwrap();
    assert_eq!((copy("plays/well.yaml").as_str(), copy("cast/people.yaml").as_str()), (WELL, PEOPLE));
    fs::rename(dir.path().join("one"), away.path().join("moved")).unwrap();
    drop(dir);
    let (out, err) = done(away.path(), &["replay", "moved"]);
    assert!(out.contains("nothing changed") && !out.contains("note:") && err.is_empty(), "{out}{err}");
    let (out, _) = done(away.path(), &["explain", "moved", "--agent", "mira", "--turn", "1"]);
    assert!(out.contains("The river is low.") && out.contains("prompt, plays/well.yaml:4)"), "{out}");
    done(away.path(), &["report", "moved"]);
    let page = fs::read_to_string(away.path().join("moved/report.html")).unwrap();
    assert!(page.contains("Who heard what") && !page.contains("was not found"));
    let args = ["fork", "moved", "--say", "talk/2/mira=Gone.", "--set", "thing=sea", "--quiet"];
    let (code, _, err) = greenroom(away.path(), &[&args[..], &["--out", "bad"]].concat());
    assert!(
        code == 3 && err.contains("talk/1/mira"),
        "what was read before the fork can't be another: {err}"
    );
    done(away.path(), &["fork", "moved", "--say", "talk/2/mira=Gone.", "--out", "fork", "--quiet"]);
    let text = String::from_utf8(transcript(away.path().join("fork"))).unwrap();
    assert!(text.contains(r#""path":"plays/well.yaml""#), "the header names the scenario, no copy: {text}");
    fs::remove_dir_all(away.path().join("moved")).unwrap();
    done(away.path(), &["replay", "fork"]);
}

#[test]
fn a_changed_scenario_is_reported_in_a_line() {
    let dir = checkout();
    done(dir.path(), &["run", "plays/well.yaml", "--out", "one", "--quiet"]);
    let whole = transcript(dir.path().join("one"));
    fs::write(dir.path().join("cast/people.yaml"), PEOPLE.replace("well", "river")).unwrap();
    let (out, _) = done(dir.path(), &["replay", "one"]);
    let note = "plays/well.yaml has changed since then; the run's own copy is used (to use the file: \
                --scenario plays/well.yaml)";
    assert_eq!(out.matches(note).count(), 1, "{out}");
    let (_, err) = done(dir.path(), &["explain", "one", "--agent", "tom"]);
    assert!(err.contains(note), "{err}");
    let (_, err) = done(dir.path(), &["report", "one"]);
    assert!(err.contains(note), "{err}");
    let (_, err) = done(dir.path(), &["fork", "one", "--at", "talk/2/tom", "--out", "fork"]);
    assert!(err.contains(note), "{err}");
    let (code, out, _) = greenroom(dir.path(), &["replay", "one", "--scenario", "plays/well.yaml"]);
    assert!(code == 3 && out.contains("people.yaml") && !out.contains(note), "{out}");
    // A recording that was put somewhere is held against the file, as it always was.
    fs::copy(dir.path().join("one/transcript.jsonl"), dir.path().join("well.jsonl")).unwrap();
    assert_eq!(greenroom(dir.path(), &["replay", "well.jsonl"]).0, 3);
    // What was accepted is another run than the one whose copy is there.
    assert_eq!(greenroom(dir.path(), &["review", "one", "--accept", "--scenario", "plays/well.yaml"]).0, 0);
    let (out, _) = done(dir.path(), &["replay", "one"]);
    assert!(out.contains("the copy of the scenario in one/scenario is not what was played"), "{out}");
    assert!(transcript(dir.path().join("one")) != whole);
}

#[test]
fn a_run_goes_on_with_what_it_began_with() {
    let dir = checkout();
    done(dir.path(), &["run", "plays/well.yaml", "--out", "whole", "--set", "thing=pond", "--quiet"]);
    let whole = transcript(dir.path().join("whole"));
    let cut = |name: &str| {
        let run = dir.path().join(name);
        done(dir.path(), &["run", "plays/well.yaml", "--out", name, "--set", "thing=pond", "--quiet"]);
        fs::write(run.join("transcript.jsonl"), &whole[..whole.len() * 2 / 3]).unwrap();
        run
    };
    let (first, second, third) = (cut("first"), cut("second"), cut("third"));
    fs::write(dir.path().join("plays/well.yaml"), WELL.replace("low", "high")).unwrap();
    let (_, err) = done(dir.path(), &["run", "plays/well.yaml", "--resume", "--out", "first"]);
    assert!(
        err.contains("plays/well.yaml has changed since the run began; the run continues with its own copy"),
        "{err}"
    );
    assert!(transcript(first) == whole);
    fs::remove_dir_all(dir.path().join("plays")).unwrap();
    done(dir.path(), &["run", "second", "--resume", "--quiet"]);
    assert!(transcript(second) == whole);
    // Another scenario resumes no run of this one, nor does a folder without a copy resume by itself.
    fs::write(dir.path().join("other.yaml"), WELL.replace("id: well", "id: other").replace("../", ""))
        .unwrap();
    let (code, _, err) =
        greenroom(dir.path(), &["run", "other.yaml", "--resume", "--out", "third", "--set", "thing=pond"]);
    assert!(code == 3 && err.contains("`scenario` differs from what the run began with"), "{err}");
    fs::remove_file(third.join("scenario.json")).unwrap();
    let (code, _, err) = greenroom(dir.path(), &["run", "third", "--resume"]);
    assert!(code == 4 && err.contains("contains no copy of its scenario"), "{err}");
    let (code, _, err) = greenroom(dir.path(), &["run", "third"]);
    assert!(code == 4 && err.contains("it is a folder; give a scenario file"), "{err}");
}

#[test]
fn a_copy_leads_nowhere_and_takes_nothing_of_others() {
    let dir = checkout();
    done(dir.path(), &["run", "plays/well.yaml", "--out", "one", "--quiet"]);
    let index = dir.path().join("one/scenario.json");
    for main in ["../../plays/well.yaml", "/etc/passwd", "", "plays", "nothing.yaml"] {
        fs::write(&index, format!("{{\"main\":\"{main}\"}}")).unwrap();
        let (out, _) = done(dir.path(), &["replay", "one"]);
        assert!(out.contains("nothing changed"), "without a copy as before: {out}");
    }
    fs::create_dir_all(dir.path().join("two/scenario/plays")).unwrap();
    fs::write(dir.path().join("two/scenario/plays/well.yaml"), "mine").unwrap();
    let (code, _, err) = greenroom(dir.path(), &["run", "plays/well.yaml", "--out", "two"]);
    assert!(code == 4 && err.contains("already exists and differs from the scenario being played"), "{err}");
    assert_eq!(fs::read_to_string(dir.path().join("two/scenario/plays/well.yaml")).unwrap(), "mine");
}
