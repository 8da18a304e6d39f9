//! Replays: what fits passes, and the first thing that changed is named.

use crate::play::{SMALL, echo, play, without_copy};
use clap::CommandFactory as _;
use greenroom::run::RunOptions;
use greenroom::scenario::load;
use std::path::Path;

/// Records a run of [`SMALL`] beside its scenario file.
fn record(folder: &Path) -> std::path::PathBuf {
    std::fs::write(folder.join("small.yaml"), SMALL).unwrap();
    let name = folder.join("small.yaml").display().to_string();
    let scenario = load(&name, SMALL, &[]).scenario.unwrap();
    let played = play(&scenario, echo(), &folder.join("run"), &RunOptions::default()).unwrap();
    without_copy(&folder.join("run"));
    played.transcript
}

/// Exit code and output of the program.
fn greenroom(folder: &Path, args: &[&str]) -> (i32, String) {
    greenroom_with(folder, args, &[])
}

/// The same, with some variables of the environment; of CI it knows only by these.
pub(crate) fn greenroom_with(folder: &Path, args: &[&str], env: &[(&str, &str)]) -> (i32, String) {
    let mut command = assert_cmd::Command::cargo_bin("greenroom").unwrap();
    command.env_remove("CI").envs(env.iter().copied());
    let output = command.current_dir(folder).args(args).output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap_or(-1), text)
}

fn replay(folder: &Path) -> (i32, String) {
    greenroom(folder, &["replay", "run"])
}

#[test]
fn a_recording_replays() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path());
    assert_eq!(replay(folder.path()), (0, "run/transcript.jsonl: 10 turns, nothing changed\n".into()));
    std::fs::write(folder.path().join("small.yaml"), SMALL.to_string() + "# a remark\n").unwrap();
    let (code, text) = replay(folder.path());
    assert!(code == 0 && text.contains("nothing that was read or said"), "{text}");
}

#[test]
fn a_recorded_reply_is_read_by_the_schema_of_today() {
    let folder = tempfile::tempdir().unwrap();
    let file = "\
agents: { ann: {}, ben: {} }
phases:
  - { name: bid, agents: [ann, ben], answer: { show: false, schema: { type: integer, minimum: 1, maximum: 100 } } }
outcome: { sum: bid.replies.ann + bid.replies.ben }
";
    let path = folder.path().join("bid.yaml");
    std::fs::write(&path, file).unwrap();
    let scenario = load(&path.display().to_string(), file, &[]).scenario.unwrap();
    let backend = std::sync::Arc::new(greenroom::backend::Scripted::new(|_| Some("42".into())));
    let run = play(&scenario, backend, &folder.path().join("run"), &RunOptions::default()).unwrap();
    let text = std::fs::read_to_string(run.transcript).unwrap();
    assert!(text.contains("\"value\":42") && text.contains("\"name\":\"sum\",\"value\":84"), "{text}");
    assert_eq!(replay(folder.path()).0, 0);
    // Without its own copy of the scenario, the recording is held against the file.
    std::fs::remove_dir_all(folder.path().join("run/scenario")).unwrap();
    for (maximum, reason) in [
        (
            "41",
            "the recorded reply does not match the current schema: behind `4` the grammar does not go on \
             with `2`",
        ),
        ("50", "the schema has changed; the recorded reply matches it too"),
    ] {
        std::fs::write(&path, file.replace("100", maximum)).unwrap();
        let (code, text) = replay(folder.path());
        assert!(code == 3 && text.contains(reason) && text.contains("phases[0].answer.schema"), "{text}");
    }
}

#[test]
fn a_changed_prompt_is_shown_as_a_diff_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path());
    let changed = SMALL.replace("All are here.", "Nearly all are here.");
    std::fs::write(folder.path().join("small.yaml"), changed).unwrap();
    let (code, text) = replay(folder.path());
    assert_eq!(code, 3, "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn a_changed_system_prompt_is_drift() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path());
    let changed = SMALL.replace("You are {{ me }}.", "You are {{ me }}!");
    std::fs::write(folder.path().join("small.yaml"), changed).unwrap();
    let (code, text) = replay(folder.path());
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("system_prompt") && text.contains("+ You are Ann!"), "{text}");
}

#[test]
fn any_altered_line_is_drift_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = record(folder.path());
    let good = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = good.lines().collect();
    for at in 1..lines.len() - 1 {
        let path = lines[at].split("\"path\":\"").nth(1).unwrap().split('"').next().unwrap();
        for (from, to) in [
            ("\"raw\":\"This", "\"raw\":\"That"),
            ("\"tokens\":[84,", "\"tokens\":[85,"),
            ("\"spoken\":\"This", "\"spoken\":\"That"),
            ("end_of_turn", "length"),
        ] {
            let mut altered: Vec<String> = lines.iter().map(|line| line.to_string()).collect();
            altered[at] = altered[at].replace(from, to);
            assert_ne!(altered[at], lines[at]);
            std::fs::write(&file, altered.join("\n") + "\n").unwrap();
            let (code, text) = replay(folder.path());
            assert!(code == 3 && text.contains(path), "line {at}, {from}: {code} {text}");
        }
    }
}

#[test]
fn missing_swapped_and_damaged_lines_are_drift() {
    let folder = tempfile::tempdir().unwrap();
    let file = record(folder.path());
    let good = std::fs::read_to_string(&file).unwrap();
    type Edit = fn(&mut Vec<&str>);
    let edits: [(&str, Edit); 7] = [
        ("a line is missing", |lines| _ = lines.remove(3)),
        ("order of turns changed", |lines| lines.swap(3, 4)),
        ("the run was interrupted", |lines| _ = lines.pop()),
        ("the run was interrupted", |lines| lines.truncate(5)),
        ("a line can't be read", |lines| lines[4] = "{\"type\":\"turn\"}"),
        ("a line can't be read", |lines| lines.truncate(0)),
        ("a line is missing", |lines| _ = lines.remove(10)),
    ];
    for (cause, edit) in edits {
        let mut lines: Vec<&str> = good.lines().collect();
        edit(&mut lines);
        std::fs::write(&file, lines.join("\n") + "\n").unwrap();
        let (code, text) = replay(folder.path());
        assert!(code == 3 && text.contains(cause), "expected {cause}: {code} {text}");
    }
}

#[test]
fn trouble_has_its_exit_codes() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path());
    assert_eq!(greenroom(folder.path(), &["replay", "nowhere"]).0, 4);
    assert_eq!(greenroom(folder.path(), &["graph", "nowhere.yaml"]).0, 4);
    assert_eq!(greenroom(folder.path(), &["run", "small.yaml", "--model", "nowhere.gguf"]).0, 4);
    assert_eq!(greenroom(folder.path(), &["run", "small.yaml", "--tempo", "1"]).0, 2);
    std::fs::write(folder.path().join("small.yaml"), "agents: {}").unwrap();
    assert_eq!(greenroom(folder.path(), &["graph", "small.yaml"]).0, 2);
    assert_eq!(replay(folder.path()).0, 2);
    std::fs::remove_file(folder.path().join("small.yaml")).unwrap();
    let (code, text) = replay(folder.path());
    assert!(code == 4 && text.contains("--scenario"), "{text}");
}

#[test]
fn help_fits_a_screen_and_has_an_example() {
    let folder = tempfile::tempdir().unwrap();
    let mut left = vec![(Vec::<String>::new(), greenroom::commands::Cli::command())];
    let mut n = 0;
    while let Some((names, command)) = left.pop() {
        let args: Vec<&str> = names.iter().map(String::as_str).chain(["--help"]).collect();
        let (code, text) = greenroom(folder.path(), &args);
        let example = format!("Example: greenroom {}", names.join(" "));
        assert!(code == 0 && text.contains(&example), "{names:?}: {text}");
        assert!(text.lines().count() <= 52, "{names:?}: {} lines", text.lines().count());
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            let line = format!("\n  {} ", below.get_name());
            assert!(text.contains(&line), "{names:?} does not list {}: {text}", below.get_name());
            let names = names.iter().cloned().chain([below.get_name().to_owned()]).collect();
            left.push((names, below.clone()));
        }
        n += 1;
    }
    assert!(n > 20, "{n} commands");
}

#[test]
fn a_reader_that_goes_away_is_no_reason_to_panic() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("small.yaml"), SMALL).unwrap();
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin("greenroom"));
    command.current_dir(folder.path()).args(["check", "small.yaml", "--dry-run"]);
    let mut child =
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
