//! Plays on a GPU, or on software that does its work: they extend, are the same when warm, and go on
//! elsewhere. Replies are short, for software is slow.

use super::{Run, Stage};
use serde_json::Value;
use std::collections::HashSet;
use std::io::Write as _;
use std::process::Output;

impl Stage {
    /// What `greenroom devices` lists.
    fn devices(&self) -> Value {
        let output = self.on_a_gpu(&["devices", "--json"]);
        assert!(output.status.success(), "{}", said(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The program, with a folder for Mesa, which says something on standard error where it has none.
    fn on_a_gpu(&self, args: &[&str]) -> Output {
        self.greenroom(args).env("XDG_RUNTIME_DIR", self.dir.path()).output().unwrap()
    }

    /// The word for the first GPU that can be used. `None`: there is none, which is said; where
    /// `GREENROOM_TEST_GPU` is set, as in CI, there must be one.
    fn gpu(&self, test: &str) -> Option<String> {
        let devices = self.devices();
        let gpus = devices["gpus"].as_array().unwrap();
        let fit = gpus.iter().find(|gpu| gpu["missing"].as_array().unwrap().is_empty());
        // Not `eprintln!`, which the test harness captures: a passing test would say nothing.
        let mut stderr = std::io::stderr();
        let Some(gpu) = fit else {
            assert!(
                std::env::var_os("GREENROOM_TEST_GPU").is_none(),
                "no adapter; install mesa-vulkan-drivers: {devices}"
            );
            let _ =
                writeln!(stderr, "skipped {test}: there is no adapter (Debian: mesa-vulkan-drivers is one)");
            return None;
        };
        let _ = writeln!(stderr, "{test}: on {} ({})", gpu["name"], gpu["driver"]);
        Some(format!("gpu:{}", gpu["name"].as_str().unwrap()))
    }

    fn try_on(&self, device: &str, scenario: &str, out: &str, more: &[&str]) -> Output {
        let file = format!("scenarios/{scenario}.yaml");
        let [out, cache] = [out, "cache"].map(|name| self.path(name).display().to_string());
        let mut args = vec!["run", &file, "--device", device, "--out", &out, "--cache-dir", &cache];
        args.extend(["--max-tokens", "4", "--seed", "5", "--threads", "1", "--quiet"]);
        args.extend(more);
        self.on_a_gpu(&args)
    }

    fn play_on(&self, device: &str, scenario: &str, out: &str, more: &[&str]) -> Run {
        let output = self.try_on(device, scenario, out, more);
        assert!(output.status.success(), "{device}, {more:?}: {}", said(&output));
        Run { dir: self.path(out) }
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Each later turn of a permanent agent reads nothing twice.
fn extends(run: &Run) {
    let summary = run.summary();
    let mut before = HashSet::new();
    let mut n_later = 0;
    for turn in run.turns("trace.jsonl") {
        let agent = turn["agent"].as_str().unwrap().to_owned();
        let is_permanent = summary["agents"][&agent]["lifecycle"] == "permanent";
        if is_permanent && !before.insert(agent) {
            assert!(turn["match"] == "extend" || turn["match"] == "exact", "{turn}");
            assert_eq!(turn["tokens"]["recomputed"], 0, "{turn}");
            n_later += 1;
        }
    }
    assert!(n_later > 5, "{summary}");
}

#[test]
fn a_run_on_a_gpu_extends_and_goes_on_there_and_elsewhere() {
    let stage = Stage::new();
    let Some(gpu) = stage.gpu("a_run_on_a_gpu_extends_and_goes_on_there_and_elsewhere") else { return };
    let scenario = "prisoners-dilemma";
    let run = stage.play_on(&gpu, scenario, "run", &[]);
    let transcript = run.transcript();
    assert_eq!(run.turns("trace.jsonl").len(), 27);
    extends(&run);
    let header: Value = serde_json::from_str(transcript.lines().next().unwrap()).unwrap();
    let numerics = header["numerics"].as_str().unwrap();
    assert!(numerics.starts_with("gpu/") && numerics.contains(gpu.trim_start_matches("gpu:")), "{numerics}");
    // Warm, and from disk at every turn: what the first run stored is found, and the same is said.
    let again = stage.play_on(&gpu, scenario, "again", &["--cache-memory", "0"]);
    assert_eq!(again.transcript(), transcript);
    extends(&again);
    let marco = &again.summary()["agents"]["marco"];
    assert!(marco["match"]["prefix"] == 1 && marco["source"]["memory"] == 0, "{marco}");
    // Cut off, it is resumed to the same transcript on the device where it began; elsewhere this is refused.
    let lines: Vec<&str> = transcript.lines().collect();
    std::fs::write(run.dir.join("transcript.jsonl"), lines[..lines.len() - 4].join("\n") + "\n").unwrap();
    let elsewhere = stage.try_on("cpu", scenario, "run", &["--resume"]);
    assert_eq!(elsewhere.status.code(), Some(3), "{}", said(&elsewhere));
    assert!(
        said(&elsewhere).contains("`numerics` differs from what the run began with")
            && said(&elsewhere).contains(numerics)
    );
    assert_eq!(stage.play_on(&gpu, scenario, "run", &["--resume"]).transcript(), transcript);
    // A new run may begin with its memories anywhere: they are read again, and the trace says why.
    let path = run.dir.display().to_string();
    let next = stage.play_on("cpu", scenario, "next", &["--continue", &path]);
    assert!(next.transcript().contains("\"type\":\"footer\"") && next.turns("transcript.jsonl").len() == 27);
    extends(&next);
    for agent in ["warden", "marco", "danny"] {
        let turns = next.turns("trace.jsonl");
        let first = turns.iter().find(|turn| turn["agent"] == agent).unwrap();
        assert!(first["match"] == "cold" && first["tokens"]["recomputed"].as_u64().unwrap() > 0, "{first}");
        let reason = first["reason"].as_str().unwrap();
        assert!(reason.contains("was computed with numerics") && reason.contains(numerics), "{reason}");
    }
    let replayed = stage.greenroom(&["replay", &next.dir.display().to_string()]).output().unwrap();
    assert!(replayed.status.success(), "{}", said(&replayed));
}

/// The first turns of the agents that brought memories along.
fn first_turns(run: &Run) -> Vec<Value> {
    let turns = run.turns("trace.jsonl");
    let first = |agent| turns.iter().find(|turn| turn["agent"] == agent).unwrap().clone();
    ["warden", "marco", "danny"].map(first).to_vec()
}

/// From the processor to the GPU and back: nothing is read twice, and each turn that rests on another's
/// memory says so.
#[test]
fn memories_are_adopted_where_that_is_asked_for() {
    let stage = Stage::new();
    let Some(gpu) = stage.gpu("memories_are_adopted_where_that_is_asked_for") else { return };
    let scenario = "prisoners-dilemma";
    let run = stage.play_on("cpu", scenario, "run", &["--adopt"]);
    assert!(run.turns("trace.jsonl").iter().all(|turn| turn.get("adopted").is_none()), "there is nothing");
    let numerics = |run: &Run| {
        let header: Value = serde_json::from_str(run.transcript().lines().next().unwrap()).unwrap();
        header["numerics"].as_str().unwrap().to_owned()
    };
    let cpu = numerics(&run);
    let path = |run: &Run| run.dir.display().to_string();
    let next = stage.play_on(&gpu, scenario, "next", &["--continue", &path(&run), "--adopt"]);
    extends(&next);
    for turn in first_turns(&next) {
        assert!(turn["match"] == "extend" && turn["source"] == "disk", "{turn}");
        assert!(turn["tokens"]["recomputed"] == 0 && turn["reason"].is_null(), "{turn}");
    }
    let adopted = |run: &Run| -> Vec<Value> {
        let turns = run.turns("trace.jsonl").into_iter();
        turns
            .filter(|turn| ["warden", "marco", "danny"].iter().any(|agent| turn["agent"] == *agent))
            .collect()
    };
    assert!(adopted(&next).iter().all(|turn| turn["adopted"] == cpu.as_str()));
    let n = next.turns("trace.jsonl").iter().filter(|turn| turn["adopted"].is_string()).count();
    assert_eq!(next.summary()["cache"]["adopted_turns"], n);
    let on_gpu = numerics(&next);
    assert!(on_gpu.starts_with("gpu/"), "{on_gpu}");
    let explained = stage.greenroom(&["explain", &path(&next), "--agent", "marco"]).output().unwrap();
    let explained = String::from_utf8_lossy(&explained.stdout).into_owned();
    assert!(explained.contains(&format!("adopted from {cpu})")), "{explained}");
    // Cut off, it is resumed to the same transcript; without its constants it would not be, and is refused.
    let transcript = next.transcript();
    let lines: Vec<&str> = transcript.lines().collect();
    std::fs::write(next.dir.join("transcript.jsonl"), lines[..lines.len() - 4].join("\n") + "\n").unwrap();
    let earlier = path(&run);
    let resume = ["--resume", "--continue", &earlier];
    if on_gpu.contains(", keys by ") {
        let alone = stage.try_on(&gpu, scenario, "next", &resume);
        assert!(alone.status.code() == Some(3) && said(&alone).contains("`numerics`"), "{}", said(&alone));
    }
    let resume = [&resume[..], &["--adopt"]].concat();
    assert_eq!(stage.play_on(&gpu, scenario, "next", &resume).transcript(), transcript);
    // Back on the processor: the mark is in the trace alone, and what is played again is not held to be
    // exact.
    let back = stage.play_on("cpu", scenario, "back", &["--continue", &path(&next), "--adopt"]);
    extends(&back);
    assert_eq!(numerics(&back), cpu);
    for turn in first_turns(&back) {
        assert!(turn["match"] == "extend" && turn["tokens"]["recomputed"] == 0, "{turn}");
        let origin = turn["adopted"].as_str().unwrap();
        assert!(origin.starts_with("gpu/") && origin.ends_with(&cpu), "{origin}");
    }
    let recording = path(&back);
    let replay = |how: &[&str]| {
        let args = [&["replay", &recording, "--threads", "1"][..], how].concat();
        let output = stage.greenroom(&args).env("CI", "true").output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned() + &said(&output))
    };
    let (code, printed) = replay(&["--rerun"]);
    assert!(code == Some(4) && printed.contains("based on memory adopted from `gpu/"), "{printed}");
    let (_, printed) = replay(&["--score", "--tolerance", "1"]);
    assert!(printed.contains("based on memory adopted from `gpu/"), "{printed}");
}

#[test]
fn gossip_on_a_gpu_extends() {
    let stage = Stage::new();
    let Some(gpu) = stage.gpu("gossip_on_a_gpu_extends") else { return };
    extends(&stage.play_on(&gpu, "gossip", "run", &[]));
}

#[test]
fn a_missing_device_is_reported_with_those_available() {
    let stage = Stage::new();
    let output = stage.try_on("gpu:nonesuch", "gossip", "out", &[]);
    let printed = said(&output);
    assert_eq!(output.status.code(), Some(4), "{printed}");
    assert!(printed.contains("`nonesuch`") && printed.contains("available: "), "{printed}");
    assert!(printed.contains("--device cpu") && printed.contains("greenroom devices"), "{printed}");
    for gpu in stage.devices()["gpus"].as_array().unwrap() {
        assert!(printed.contains(gpu["name"].as_str().unwrap()), "{printed}");
    }
    assert!(!stage.path("out").exists(), "a run that never began leaves nothing");
    let wrong = stage.try_on("tpu", "gossip", "out", &[]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(said(&wrong).contains("`tpu` is not a device; expected auto, cpu, gpu or gpu:NAME"));
}

/// Software is no GPU for those who name none: on most machines of CI, `auto` is the processor, with its
/// transcripts.
#[test]
fn auto_is_the_processor_where_nothing_is_better() {
    let stage = Stage::new();
    if stage.devices()["auto"] != "cpu" {
        return;
    }
    let run = |device| stage.play_on(device, "gossip", device, &[]).transcript();
    assert_eq!(run("auto"), run("cpu"));
    let text = stage.on_a_gpu(&["devices"]);
    assert!(String::from_utf8_lossy(&text.stdout).contains("--device auto uses the processor: "));
}
