//! Equal runs write equal files, however their caches were used; and nothing is read twice.

use super::Stage;
use std::collections::HashMap;

#[test]
fn plain_cold_restored_and_threaded_runs_write_the_same_transcript() {
    for kv in ["q4", "f16"] {
        let stage = Stage::new();
        let plain = stage.play("prisoners-dilemma", "plain", &["--kv", kv]);
        let expected = plain.transcript();
        for (name, more) in [
            ("cold", &["--cold"][..]),
            ("restored", &["--cache-memory", "0"]),
            ("two-threads", &["--threads", "2"]),
            ("again", &[]),
        ] {
            let args: Vec<&str> = ["--kv", kv].iter().chain(more).copied().collect();
            let run = stage.play("prisoners-dilemma", name, &args);
            assert_eq!(run.transcript(), expected, "{kv}, {name}");
            let agents = &run.summary()["agents"];
            match name {
                "cold" => assert_eq!(agents["marco"]["match"]["cold"], 9, "{agents}"),
                "restored" => assert_eq!(agents["marco"]["source"]["memory"], 0, "{agents}"),
                "again" => assert_eq!(agents["marco"]["match"]["prefix"], 1, "{agents}"),
                _ => {}
            }
        }
    }
}

#[test]
fn a_permanent_agent_extends_and_reads_nothing_twice() {
    for scenario in ["prisoners-dilemma", "gossip", "expert-routing"] {
        let stage = Stage::new();
        let run = stage.play(scenario, "run", &[]);
        let summary = run.summary();
        for (agent, figures) in summary["agents"].as_object().unwrap() {
            if figures["lifecycle"] == "permanent" {
                let turns = figures["turns"].as_u64().unwrap();
                assert_eq!(figures["match"]["extend"], turns - 1, "{scenario}, {agent}: {figures}");
                assert_eq!(figures["tokens"]["recomputed"], 0, "{scenario}, {agent}: {figures}");
            }
        }
        let replies = run.turns("transcript.jsonl");
        let mut held: HashMap<String, u64> = HashMap::new();
        for (turn, line) in run.turns("trace.jsonl").iter().zip(&replies) {
            assert_eq!(turn["path"], line["path"]);
            let tokens = &turn["tokens"];
            let count = |key: &str| tokens[key].as_u64().unwrap();
            assert_eq!(count("layer0_rows"), count("prefilled") + count("recomputed") + count("generated"));
            let agent = turn["agent"].as_str().unwrap().to_owned();
            // What is reused is all that was read and said before: only the delta is prefilled.
            let before = held.entry(agent).or_default();
            assert_eq!(count("reused"), *before, "{scenario}: {turn}");
            *before += count("prefilled") + line["tokens"].as_array().unwrap().len() as u64;
        }
    }
}

#[test]
fn a_continued_run_extends_the_earlier_ones_memories() {
    let stage = Stage::new();
    let first = stage.play("gossip", "first", &[]);
    let path = first.dir.display().to_string();
    let second = stage.play("gossip", "second", &["--continue", &path]);
    for (agent, figures) in second.summary()["agents"].as_object().unwrap() {
        assert_eq!(figures["match"]["extend"], figures["turns"], "{agent}: {figures}");
        assert_eq!(figures["tokens"]["recomputed"], 0, "{agent}: {figures}");
    }
    assert_ne!(first.transcript(), second.transcript());
    stage.greenroom(&["replay", &second.dir.display().to_string()]).assert().success();
}
