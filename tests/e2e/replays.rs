//! Replay without a model: silent on an unchanged record, loud on the first thing that changed.

use super::{Stage, edited};
use greenroom_engine::fixtures::RandomModel;
use serde_json::{Value, json};

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

/// Flags come first, then the model's file, then the defaults; the result is in the header, as replays have
/// no model.
#[test]
fn sampling_that_a_model_suggests_is_recorded() {
    let stage = Stage::new();
    let sampling = [("temp", 0.25), ("top_k", 7.0), ("top_p", 9.0)];
    let model = RandomModel {
        sampling: sampling.map(|(name, number)| (name.to_owned(), number)).into(),
        n_layers: 1,
        context_length: 32_768,
        ..RandomModel::tiny(1)
    };
    let path = stage.path("model.gguf");
    std::fs::write(&path, model.bytes()).unwrap();
    let path = path.display().to_string();
    let of = |out: &str, more: &[&str]| {
        let run = stage.play("gossip", out, &[&["--model", &path], more].concat());
        assert_eq!(replay(&stage, &run.dir, &[]).0, 0);
        let header: Value = serde_json::from_str(run.transcript().lines().next().unwrap()).unwrap();
        header["sampling"].clone()
    };
    let own = of("own", &[]);
    let dry = json!({ "multiplier": own["dry"]["multiplier"], "base": 1.75, "allowed_length": 2 });
    assert_eq!((&own["temperature"], &own["top_k"], &own["dry"]), (&json!(0.25), &json!(7), &dry));
    assert!((own["top_p"].as_f64().unwrap() - 0.95).abs() < 1e-6, "9 is no share: {own}");
    let other = of("other", &["--temperature", "0.5", "--dry-multiplier", "0"]);
    assert_eq!(
        (&other["temperature"], &other["top_k"], &other["dry"]),
        (&json!(0.5), &json!(7), &Value::Null)
    );
    let shown = stage.greenroom(&["models", &path]).output().unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("temperature 0.25, top-k 7"), "{shown}");
}
