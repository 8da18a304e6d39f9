//! Two trained models of different families in one run and one budget: SmolLM2 and Gemma 3.

use super::{GEMMA3, SMOLLM2};
use assert_cmd::Command;
use std::path::Path;

/// Runs the program with an empty home.
fn greenroom(folder: &Path, args: &[&str]) {
    let mut command = Command::cargo_bin("greenroom").unwrap();
    command.current_dir(env!("CARGO_MANIFEST_DIR")).env("HOME", folder).env_remove("XDG_CACHE_HOME");
    command.args(args).assert().success();
}

#[test]
fn two_families_in_600_megabytes_are_exact_resumable_and_restored() {
    let (Some(smol), Some(gemma)) = (SMOLLM2.path(), GEMMA3.path()) else { return };
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join(".git")).unwrap();
    let text = format!(
        "id: market
models: {{ smol: {smol:?}, gemma: {gemma:?} }}
agents:
  ann: {{ display_name: Ann, model: smol, sampling: {{ temperature: 0.3 }} }}
  ben: {{ display_name: Ben, model: gemma }}
phases:
  - {{ name: haggle, agents: [ann, ben], rounds: 2, prompt: Ann sells melons. Ben wants three. }}
  - {{ name: deal, agents: [ann, ben], order: broadcast, answer: [deal, no deal] }}
"
    );
    let file = folder.path().join("market.yaml");
    std::fs::write(&file, text).unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (file, cache) = (file.display().to_string(), path("cache"));
    let run = |out: &str, more: &[&str]| {
        let out = path(out);
        let fixed = ["run", &file, "--out", &out, "--cache-dir", &cache, "--max-tokens", "12", "--quiet"];
        greenroom(folder.path(), &[&fixed, more].concat());
        std::fs::read_to_string(Path::new(&out).join("transcript.jsonl")).unwrap()
    };
    let whole = run("first", &["--cache-memory", "600M"]);
    assert!(whole.contains("\"family\":\"llama\"") && whole.contains("\"family\":\"gemma3\""));
    assert_eq!(run("tight", &["--cache-memory", "0"]), whole);
    let kept: String = whole.split_inclusive('\n').take(4).collect();
    std::fs::write(Path::new(&path("first")).join("transcript.jsonl"), kept).unwrap();
    assert_eq!(run("first", &["--resume", "--cache-memory", "600M"]), whole);
    greenroom(folder.path(), &["replay", &path("first")]);
    greenroom(folder.path(), &["replay", &path("first"), "--rerun=exact"]);
    // Carried on, both memories come from disk.
    run("second", &["--continue", &path("first"), "--cache-memory", "600M"]);
    let trace = std::fs::read_to_string(Path::new(&path("second")).join("trace.jsonl")).unwrap();
    for agent in ["ann", "ben"] {
        let line = trace.lines().find(|line| line.contains(&format!("\"agent\":\"{agent}\""))).unwrap();
        assert!(line.contains("\"match\":\"extend\"") && line.contains("\"source\":\"disk\""), "{line}");
    }
}
