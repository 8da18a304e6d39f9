//! Replay without a model: silent on an unchanged record, loud on the first thing that changed.

use super::{Stage, edited};

/// Replays a transcript under a scenario file; exit code and what was printed.
fn replay(stage: &Stage, dir: &std::path::Path, more: &[&str]) -> (i32, String) {
    let dir = dir.display().to_string();
    let args: Vec<&str> = ["replay", &dir].iter().chain(more).copied().collect();
    let output = stage.greenroom(&args).output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap_or(-1), text)
}

#[test]
fn an_unchanged_record_passes_and_a_changed_prompt_names_the_first_turn() {
    let stage = Stage::new();
    let run = stage.play("prisoners-dilemma", "run", &[]);
    let (code, text) = replay(&stage, &run.dir, &[]);
    assert_eq!(code, 0, "{text}");
    let copy = edited(&stage, "prisoners-dilemma", |text| {
        text.replacen("The yard, at dusk.", "The courtyard, at dusk.", 1)
    });
    let copy = copy.display().to_string();
    let (code, text) = replay(&stage, &run.dir, &["--scenario", &copy]);
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("yard/1/marco") && text.contains("courtyard, at"), "{text}");
    assert!(!text.contains("yard/1/danny"), "it does not cascade: {text}");
}

#[test]
fn any_altered_reply_is_drift() {
    let stage = Stage::new();
    let run = stage.play("gossip", "run", &[]);
    let lines: Vec<String> = run.transcript().lines().map(str::to_owned).collect();
    let n = lines.len();
    for line in [1, n / 2, n - 2] {
        for key in ["raw", "spoken", "tokens"] {
            let mut turn: serde_json::Value = serde_json::from_str(&lines[line]).unwrap();
            turn[key] = match key {
                "tokens" => serde_json::json!([1]),
                _ => serde_json::json!("something else"),
            };
            let mut altered = lines.clone();
            altered[line] = turn.to_string();
            let dir = stage.path("altered");
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("transcript.jsonl"), altered.join("\n") + "\n").unwrap();
            let (code, text) = replay(&stage, &dir, &["--scenario", "scenarios/gossip.yaml"]);
            assert_eq!(code, 3, "line {line}, {key}: {text}");
            assert!(text.contains(turn["path"].as_str().unwrap()), "line {line}, {key}: {text}");
        }
    }
}
