//! Files of earlier versions, as `docs/compatibility.md` promises them: a scenario, its recording, and the memory that its run left.

use crate::Stage;
use serde_json::Value;
use std::path::Path;

/// Copies a folder and all that is in it.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (from, to) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            std::fs::copy(from, to).unwrap();
        }
    }
}

#[test]
fn files_of_earlier_versions_are_read() {
    for version in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compat")).unwrap() {
        let (version, stage) = (version.unwrap().path(), Stage::new());
        let place = version.display();
        copy(&version, stage.dir.path());
        let program = |args: &str| {
            let mut command = assert_cmd::Command::cargo_bin("greenroom").unwrap();
            command.current_dir(stage.dir.path()).env("HOME", stage.path("home")).args(args.split(' '));
            let output = command.output().unwrap();
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{place}: {args}: {text}");
        };
        program("check tea.yaml");
        program("replay run");
        program("explain run --agent ada");
        program("run tea.yaml --continue run --cache-dir cache --max-tokens 16 --out next --threads 1");
        let trace = std::fs::read_to_string(stage.path("next/trace.jsonl")).unwrap();
        let turns = trace.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let first = turns.into_iter().find(|line| line["agent"] == "ada").unwrap();
        // What she had read in the earlier version's run.
        assert_eq!(first["source"], "disk", "{place}: {first}");
        assert!(first["tokens"]["reused"].as_u64().unwrap() > 100, "{place}: {first}");
    }
}
