//! Recordings and the model: scored token by token, played again, forked, and many runs counted.

use super::Stage;
use greenroom::transcript::{Line, Transcript, chain};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Exit code and output of `greenroom replay` with one thread.
fn replay(stage: &Stage, run: &Path, more: &[&str]) -> (i32, String) {
    let run = run.display().to_string();
    let mut args = vec!["replay", run.as_str()];
    args.extend(more);
    if more.iter().any(|arg| arg.starts_with("--score") || arg.starts_with("--rerun")) {
        args.extend(["--threads", "1"]);
    }
    let output = stage.greenroom(&args).env("CI", "true").output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap_or(-1), text)
}

#[test]
fn what_is_committed_replays_scores_and_plays_again() {
    let stage = Stage::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (folder, n) in [("scenarios/recordings", 14), ("examples/ci/recordings", 1)] {
        for how in crate::some([&[][..], &["--score"], &["--rerun"]], 2) {
            let (code, text) = replay(&stage, &root.join(folder), how);
            assert_eq!(code, 0, "{folder} {how:?}: {text}");
            assert_eq!(text.matches("nothing changed").count(), n, "{text}");
            assert!(how != ["--score"] || text.matches(", 0 surprises").count() == n, "{text}");
        }
    }
}

#[test]
fn the_model_that_recorded_is_not_surprised() {
    let stage = Stage::new();
    for (name, more) in [
        ("greedy", &["--temperature", "0"][..]),
        ("sampled", &["--temperature", "1.3", "--top-k", "50", "--min-p", "0"]),
        ("f16", &["--kv", "f16"]),
    ] {
        let run = stage.play("prisoners-dilemma", name, more);
        let kv = if name == "f16" { "f16" } else { "auto" };
        for how in ["--score", "--rerun"] {
            let (code, text) = replay(&stage, &run.dir, &[how, "--kv", kv]);
            assert_eq!(code, 0, "{name} {how}: {text}");
        }
    }
}

/// The bundled model with some weights turned.
fn other_weights(stage: &Stage) -> PathBuf {
    let mut bytes =
        std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("models/understudy.gguf")).unwrap();
    let n = bytes.len();
    for at in (n - n / 8..n).step_by(97) {
        bytes[at] ^= 1;
    }
    let file = stage.path("other.gguf");
    std::fs::write(&file, bytes).unwrap();
    file
}

#[test]
fn another_model_is_surprised_and_says_where() {
    let stage = Stage::new();
    let run = stage.play("gossip", "run", &[]);
    let other = other_weights(&stage).display().to_string();
    let (code, text) = replay(&stage, &run.dir, &["--score", "--model", &other]);
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("draws are surprises") && text.contains("the first is token"), "{text}");
    assert!(text.contains("recorded with the model `"), "{text}");
    let (code, text) = replay(&stage, &run.dir, &["--score", "--model", &other, "--tolerance", "1"]);
    assert_eq!(code, 0, "{text}");
    let (code, text) = replay(&stage, &run.dir, &["--rerun", "--model", &other]);
    assert!(code == 4 && text.contains("recorded with the model `"), "{text}");
    let (code, text) = replay(&stage, &run.dir, &["--rerun=assertions", "--model", &other]);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn a_run_of_another_kernel_contract_is_not_played_again_as_if_it_were_the_same() {
    let stage = Stage::new();
    let run = stage.play("gossip", "run", &[]);
    let file = run.dir.join("transcript.jsonl");
    let Transcript { header, turns, footer, .. } = Transcript::open(&file).unwrap();
    let mut header = header.record;
    let here = std::mem::replace(&mut header.numerics, "lanes8/1".into());
    let mut lines = vec![Line::Header(Box::new(header))];
    lines.extend(turns.into_iter().map(|turn| Line::Turn(Box::new(turn.record))));
    lines.extend(footer.map(|footer| Line::Footer(footer.record)));
    std::fs::write(&file, chain(&lines).unwrap()).unwrap();
    let (code, text) = replay(&stage, &run.dir, &["--rerun=exact"]);
    let named = format!("recorded with the numerics `lanes8/1`, but read with `{here}`");
    assert!(code == 4 && text.contains(&named), "{text}");
    let (code, text) = replay(&stage, &run.dir, &["--rerun=choices"]);
    assert!(code == 0 && text.contains(&named) && text.contains("played again"), "{text}");
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = walkdir::WalkDir::new(folder).into_iter().map(|entry| entry.unwrap().into_path());
    let entries = entries.filter(|path| path.is_file());
    let mut files: Vec<_> = entries.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
    files.sort();
    files
}

#[test]
fn a_fork_at_the_last_phase_reads_nothing_again_but_the_end_of_a_block() {
    let stage = Stage::new();
    let run = stage.play("prisoners-dilemma", "run", &[]);
    let before = files(&run.dir);
    let (from, out) = (run.dir.display().to_string(), stage.path("fork").display().to_string());
    let cache = stage.path("cache").display().to_string();
    let args =
        ["fork", &from, "--at", "verdict", "--out", &out, "--cache-dir", &cache, "-q", "--threads", "1"];
    stage.greenroom(&args).assert().success();
    assert!(files(&run.dir) == before, "the original is as it was");
    let fork = super::Run { dir: stage.path("fork") };
    let lines = |run: &super::Run| run.turns("transcript.jsonl");
    let said = |run: &super::Run| lines(run).iter().map(|turn| turn["raw"].clone()).collect::<Vec<_>>();
    assert_eq!(said(&fork), said(&run), "nothing was changed, so the same is said");
    let played = fork.turns("trace.jsonl");
    let original = run.turns("trace.jsonl");
    let mut n = 0;
    for (now, was) in played.iter().zip(&original) {
        let path = now["path"].as_str().unwrap();
        if !path.starts_with("verdict/") {
            assert_eq!(now["match"], Value::Null, "{path} was not played");
            continue;
        }
        let count = |of: &Value, key: &str| of["tokens"][key].as_u64().unwrap();
        // Nothing is changed, so what the run had read at this turn is known too, and counts as such.
        let prompt = |of: &Value| count(of, "reused") + count(of, "recomputed") + count(of, "prefilled");
        assert_eq!(prompt(now), prompt(was), "{now}");
        assert!(count(now, "reused") + 256 > count(was, "reused"), "{now}");
        n += 1;
    }
    assert_eq!(n, 3);
    let (code, text) = replay(&stage, &stage.path("fork"), &["--rerun"]);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn a_killed_experiment_goes_on_and_counts_the_same() {
    let stage = Stage::new();
    let cache = stage.path("cache").display().to_string();
    let play = |out: &str, more: &[&str]| {
        let out = stage.path(out).display().to_string();
        let fixed =
            ["run", "scenarios/prisoners-dilemma.yaml", "--repeat", "3", "--sweep", "only_silent=10,20"];
        let settings = ["--max-tokens", "8", "--threads", "1", "--cache-dir", &cache, "--out", &out];
        let args: Vec<&str> = fixed.iter().chain(&settings).chain(more).copied().collect();
        stage.greenroom(&args)
    };
    play("whole", &["--jobs", "1"]).assert().success();
    // Killed as soon as the third run has begun.
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin!("greenroom"));
    let killed = play("killed", &["--jobs", "2"]);
    command.current_dir(env!("CARGO_MANIFEST_DIR")).args(killed.get_args()).env("HOME", stage.path(""));
    let mut child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    let third = stage.path("killed/0-only_silent=10/seed-1/trace.jsonl");
    while !third.exists() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let unfinished = play("killed", &[]).output().unwrap();
    assert_eq!(unfinished.status.code(), Some(4), "a folder that holds runs is not started over");
    play("killed", &["--resume", "--jobs", "3"]).assert().success();
    let transcripts = |name: &str| {
        let files = walkdir::WalkDir::new(stage.path(name)).sort_by_file_name().into_iter().flatten();
        let wanted = files.filter(|entry| {
            let name = entry.file_name().to_string_lossy();
            name == "transcript.jsonl" || name.ends_with(".csv") || name.ends_with(".svg")
        });
        wanted.map(|entry| std::fs::read_to_string(entry.path()).unwrap()).collect::<Vec<_>>()
    };
    let (whole, killed) = (transcripts("whole"), transcripts("killed"));
    assert!(whole.len() > 6 && whole == killed, "{} and {} files", whole.len(), killed.len());
    let (code, text) = replay(&stage, &stage.path("killed"), &[]);
    assert!(code == 0 && text.contains("6 recordings: 6 pass"), "{text}");
}
