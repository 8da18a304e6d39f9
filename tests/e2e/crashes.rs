//! Kills at every step of a save and at random moments, a disk that fills up: nothing is lost, nothing is
//! wrong.

use super::{Run, Stage};
use assert_cmd::Command;
use greenroom_engine::fixtures::RandomModel;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Two agents whose first prompts are longer than a block, and two turns for each: blocks, tails and
/// manifests are written.
fn scenario(stage: &Stage) -> PathBuf {
    let story =
        "The old mill by the river has a wheel that turns at night although nobody lives there. ".repeat(14);
    let agent = |name: &str| {
        format!("  {name}:\n    lifecycle: permanent\n    system_prompt: >-\n      You are {name}. {story}\n")
    };
    let text = format!(
        "id: mill\ntitle: The mill\nagents:\n\
         {}{}phases:\n  - name: talk\n    order: round_robin\n    agents: [ada, rolf]\n    rounds: \
         2\n    prompt: Talk about the mill.\n",
        agent("ada"),
        agent("rolf")
    );
    let path = stage.path("mill.yaml");
    std::fs::write(&path, text).unwrap();
    path
}

/// The program on the mill, into `out`.
fn mill(stage: &Stage, out: &str, more: &[&str]) -> Command {
    let (file, out, cache) = (scenario(stage), stage.path(out), stage.path("cache"));
    let paths = [file, out, cache].map(|path| path.display().to_string());
    let fixed = ["--max-tokens", "12", "--seed", "5", "--quiet", "--threads", "1"];
    let mut args = vec!["run", &paths[0], "--out", &paths[1], "--cache-dir", &paths[2]];
    args.extend(fixed.iter().chain(more));
    stage.greenroom(&args)
}

fn play(stage: &Stage, out: &str, more: &[&str]) -> Run {
    mill(stage, out, more).assert().success();
    Run { dir: stage.path(out) }
}

/// Checks that a killed run is resumed to the same transcript, and that every memory is whole or computed
/// again with a reason.
fn check_resumed(stage: &Stage, expected: &str, more: &[&str], what: &str) {
    let resume = stage.path("run/transcript.jsonl").exists().then_some("--resume");
    let run = play(stage, "run", &[more, resume.as_slice()].concat());
    assert_eq!(run.transcript(), expected, "{what}");
    for turn in run.turns("trace.jsonl") {
        let (recomputed, reason) = (turn["tokens"]["recomputed"].as_u64().unwrap(), &turn["reason"]);
        assert!(recomputed <= 256 || reason.is_string(), "{what}: {turn}");
    }
    let cache = stage.path("cache").display().to_string();
    stage.greenroom(&["cache", "verify", "--cache-dir", &cache]).assert().success();
}

#[test]
fn a_kill_at_any_step_of_a_save_loses_nothing() {
    kill_at_each(if crate::is_deep() { 1 } else { 5 }, &[]);
}

/// Of models with recurrent layers states are saved, too.
#[test]
fn a_kill_at_any_step_of_a_save_loses_no_states() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let model = RandomModel { context_length: 8192, ..RandomModel::tiny_of("qwen35", 3) };
    std::fs::write(&path, model.bytes()).unwrap();
    let more = ["--model".to_owned(), path.display().to_string()];
    kill_at_each(if crate::is_deep() { 3 } else { 11 }, &more.each_ref().map(String::as_str));
}

/// Kills a run at every `step`th step of its saves, and resumes it.
fn kill_at_each(step: usize, more: &[&str]) {
    let expected = play(&Stage::new(), "run", more).transcript();
    let mut killed = 0;
    for point in (1..).step_by(step) {
        let stage = Stage::new();
        let fault = format!("kill:{point}");
        let output = mill(&stage, "run", more).env("GREENROOM_FAULT", fault).output().unwrap();
        if output.status.success() {
            break;
        }
        killed += step;
        check_resumed(&stage, &expected, more, &format!("killed at point {point}"));
    }
    assert!(killed > 30, "only {killed} points were passed");
}

#[test]
fn a_full_disk_costs_the_memories_and_nothing_else() {
    let expected = play(&Stage::new(), "run", &[]).transcript();
    for point in [1, 4, 9, 20, 33] {
        let stage = Stage::new();
        let fault = format!("full:{point}");
        mill(&stage, "run", &[]).env("GREENROOM_FAULT", &fault).assert().success();
        let run = Run { dir: stage.path("run") };
        assert_eq!(run.transcript(), expected, "{fault}");
        let reasons = run.turns("trace.jsonl").iter().filter(|turn| turn["reason"].is_string()).count();
        assert!(reasons > 0, "{fault}: nothing was said");
        // With room again, the next run continues from whatever is whole.
        assert_eq!(play(&stage, "again", &[]).transcript(), expected, "{fault}");
    }
}

/// Kills a run of the prisoner's dilemma at moments spread over it, until it ends by itself.
fn kill_at_random(kills: u32) {
    let whole = Stage::new();
    let began = Instant::now();
    let expected = whole.play("prisoners-dilemma", "run", &[]).transcript();
    let length = began.elapsed();
    let mut killed = 0;
    let mut moment = 0u32;
    while killed < kills && moment < 4 * kills {
        let stage = Stage::new();
        let args = stage.args("prisoners-dilemma", "run");
        let mut resume = false;
        // One folder is killed again and again, at moments of the golden ratio: never twice the same stage of
        // a turn.
        for _ in 0..5 {
            moment += 1;
            let share = (f64::from(moment) * 0.618_034).fract();
            let more: &[&str] = if resume { &["--resume"] } else { &[] };
            let all: Vec<&str> = args.iter().map(String::as_str).chain(more.iter().copied()).collect();
            let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin!("greenroom"))
                .current_dir(env!("CARGO_MANIFEST_DIR"))
                .env("HOME", stage.dir.path())
                .args(&all)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            std::thread::sleep(length.mul_f64(share).max(Duration::from_millis(5)));
            killed += u32::from(child.try_wait().unwrap().is_none());
            let _ = child.kill(); // SIGKILL
            child.wait().unwrap();
            resume = stage.path("run/transcript.jsonl").exists();
            let text = std::fs::read_to_string(stage.path("run/transcript.jsonl")).unwrap_or_default();
            if text.contains("\"footer\"") {
                break;
            }
        }
        let text = std::fs::read_to_string(stage.path("run/transcript.jsonl")).unwrap_or_default();
        let run = if text.contains("\"footer\"") {
            Run { dir: stage.path("run") }
        } else {
            stage.play("prisoners-dilemma", "run", if resume { &["--resume"] } else { &[] })
        };
        assert_eq!(run.transcript(), expected, "after {killed} kills");
        // By the trace: one that was killed between its last line and its summary has none.
        let header: Value = serde_json::from_str(run.transcript().lines().next().unwrap()).unwrap();
        let mut recomputed = BTreeMap::<String, u64>::new();
        for turn in run.turns("trace.jsonl") {
            let agent = turn["agent"].as_str().unwrap();
            if header["agents"][agent]["lifecycle"] == "permanent" {
                *recomputed.entry(agent.to_owned()).or_default() +=
                    turn["tokens"]["recomputed"].as_u64().unwrap();
            }
        }
        assert!(recomputed.len() >= 3, "{recomputed:?}");
        assert!(recomputed.values().all(|tokens| *tokens <= 5 * 256), "{recomputed:?}");
        let cache = stage.path("cache").display().to_string();
        stage.greenroom(&["cache", "verify", "--cache-dir", &cache]).assert().success();
    }
    assert!(killed >= kills, "only {killed} runs were still going when they were killed");
}

#[test]
fn killed_runs_resume_to_the_same_transcript() {
    kill_at_random(8);
}

#[test]
#[ignore = "seven minutes: cargo test --test e2e -- --ignored killed"]
fn killed_two_hundred_times() {
    kill_at_random(200);
}
