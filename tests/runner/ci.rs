//! The example for CI: its script passes on what is committed, and fails on each kind of change with cause
//! and line.

use std::path::Path;
use std::process::Command;

/// A copy of the example that can be edited.
fn example() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/ci");
    for entry in walkdir::WalkDir::new(&from) {
        let entry = entry.unwrap();
        let to = folder.path().join(entry.path().strip_prefix(&from).unwrap());
        if entry.file_type().is_dir() {
            std::fs::create_dir_all(to).unwrap();
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
    folder
}

fn edit(folder: &tempfile::TempDir, file: &str, from: &str, to: &str) {
    let file = folder.path().join(file);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains(from), "{from}");
    std::fs::write(file, text.replacen(from, to, 1)).unwrap();
}

/// Exit code and output of the script in CI, and what it wrote as JUnit XML and as a summary.
fn replay(folder: &tempfile::TempDir) -> (i32, String, String, String) {
    let program = assert_cmd::cargo::cargo_bin("greenroom");
    let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let summary = folder.path().join("summary.md");
    let output = Command::new("bash")
        .arg(folder.path().join("replay.sh"))
        .env("PATH", path)
        .env("CI", "true")
        .env("GITHUB_STEP_SUMMARY", &summary)
        .env("GITHUB_WORKSPACE", folder.path())
        .output()
        .unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let read = |file: &Path| std::fs::read_to_string(file).unwrap_or_default();
    let (junit, summary) = (read(&folder.path().join("replay.xml")), read(&summary));
    (output.status.code().unwrap_or(-1), text, junit, summary)
}

#[test]
fn the_example_passes_as_it_is_committed() {
    let folder = example();
    let (code, text, junit, summary) = replay(&folder);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("recordings/two-doors.jsonl: 6 turns, nothing changed"), "{text}");
    assert!(junit.contains("failures=\"0\"") && summary.contains("1 pass"), "{junit}\n{summary}");
}

#[test]
fn the_example_fails_on_each_kind_of_change_with_cause_and_line() {
    let scenario = "scenarios/two-doors.yaml";
    let recording = "recordings/two-doors.jsonl";
    let cases = [
        // A changed prompt: annotated where the scenario says it.
        (scenario, "stand side by side", "stand face to face", 3, scenario, 25, "the phase's prompt changed"),
        (scenario, "prize: 3", "prize: 4", 3, scenario, 10, "the phase's prompt changed"),
        (scenario, "You are Ben.", "You are Benno.", 3, scenario, 18, "an agent changed"),
        // An altered reply: annotated in the recording.
        (recording, "\"spoken\":\"", "\"spoken\":\"Well. ", 3, recording, 2, "the recorded line was altered"),
        // An assertion that does not hold.
        (scenario, "outcome.bags <= 2 * prize", "outcome.bags > 99", 1, scenario, 46, "is false"),
        (scenario, "agents: [ann, ben]", "agents: [ann, bob]", 2, scenario, 22, "bob"),
    ];
    for (file, from, to, expected, place, line, cause) in cases {
        let folder = example();
        edit(&folder, file, from, to);
        let (code, text, junit, summary) = replay(&folder);
        assert_eq!(code, expected, "{to}: {text}");
        let annotation = format!("::error file={place},line={line},");
        assert!(text.contains(&annotation) && text.contains(cause), "{to}, {annotation}: {text}");
        assert!(junit.contains(&cause.replace('\'', "&apos;")), "{to}: {junit}");
        assert!(summary.contains("two-doors") && !summary.contains("1 pass"), "{to}: {summary}");
        assert!(!folder.path().join(format!("{recording}.new")).exists(), "nothing is written in CI");
    }
}
