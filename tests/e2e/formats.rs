//! Formats of the cache, as the command line has them, on the bundled model.

use super::Stage;
use serde_json::Value;

/// The output of `greenroom-lab kv-config --target-bits 6 --tokens 600` for the understudy.
const CONFIG: &str = include_str!("kv_config.json");

fn refusal(stage: &Stage, args: &[&str]) -> String {
    let output = stage.greenroom(args).output().unwrap();
    assert!(!output.status.success(), "{args:?} passes");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_kv_configuration_is_taken_and_part_of_the_identity() {
    let stage = Stage::new();
    let path = stage.path("kv_config.json").display().to_string();
    std::fs::write(&path, CONFIG).unwrap();
    let config: Value = serde_json::from_str(CONFIG).unwrap();
    let mixed = stage.play("gossip", "mixed", &["--kv", &path]);
    let header: Value = serde_json::from_str(mixed.transcript().lines().next().unwrap()).unwrap();
    assert!(header["kv"].as_str().unwrap().starts_with("mixed-"), "{header}");
    // Another configuration finds none of its blocks.
    let plain = stage.play("gossip", "plain", &["--kv", "q4"]);
    for (agent, figures) in plain.summary()["agents"].as_object().unwrap() {
        assert_eq!(figures["match"]["prefix"], 0, "{agent}: {figures}");
    }
    let again = stage.play("gossip", "again", &["--kv", &path]);
    assert_eq!(again.transcript(), mixed.transcript());

    let short = stage.path("short.json").display().to_string();
    let layers: Vec<Value> = config["layers"].as_array().unwrap()[1..].to_vec();
    std::fs::write(&short, serde_json::json!({ "model": "m", "bits": 5, "layers": layers }).to_string())
        .unwrap();
    let out = stage.path("no").display().to_string();
    let run = ["run", "scenarios/gossip.yaml", "--quiet", "--out", &out, "--kv"];
    let with = |file: &str| refusal(&stage, &run.iter().copied().chain([file]).collect::<Vec<_>>());
    assert!(with(&short).contains("is for 4 layers, but the model has 5"));
    std::fs::write(&short, CONFIG.replacen('8', "7", 1)).unwrap();
    assert!(with(&short).contains("7"), "{}", with(&short));
    assert!(with("q5").contains("neither one of auto"));
}

#[test]
fn models_says_what_fits() {
    let stage = Stage::new();
    let output = stage.greenroom(&["models", "--memory", "16M", "--agents", "2"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("q4 (default)") && text.contains("665 B") && text.contains("2560 B"), "{text}");
    // 8 MiB in tokens of 2,560 bytes.
    assert!(text.contains("3276"), "{text}");
}
