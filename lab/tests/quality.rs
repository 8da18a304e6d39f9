//! Cost of a compressed cache: the commands that measure it, on the bundled model.

use super::Stage;
use serde_json::Value;

fn json(stage: &Stage, args: &[&str]) -> Value {
    let output = stage.lab(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn refusal(stage: &Stage, args: &[&str]) -> String {
    let output = stage.lab(args).output().unwrap();
    assert!(!output.status.success(), "{args:?} passes");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn four_bits_cost_the_understudy_less_than_a_hundredth_of_its_perplexity() {
    let stage = Stage::new();
    let args = [
        "perplexity",
        "--ctx",
        "1024",
        "--stride",
        "1000",
        "--json",
        "--text",
        "models/understudy/held-out.txt",
    ];
    let args: Vec<&str> = args.iter().copied().chain(["--special", "--threads", "1"]).collect();
    let answer = json(&stage, &args);
    let row =
        |kv: &str| answer["rows"].as_array().unwrap().iter().find(|row| row["kv"] == kv).unwrap().clone();
    let percent = |kv: &str| row(kv)["percent"].as_f64().unwrap().abs();
    assert!(percent("q4") < 1.0 && percent("q8") < 0.1, "{answer}");
    assert!(percent("q4") != percent("q4-plain"), "{answer}");
    assert!(row("f16")["tokens"].as_u64().unwrap() > 20_000);
}

#[test]
fn recall_tells_right_values_from_wrong_ones() {
    let stage = Stage::new();
    let args = ["recall", "--hops", "1,2", "--distance", "300", "--probes", "12", "--kv", "f16,q4", "--json"];
    let args: Vec<&str> = args.iter().copied().chain(["--threads", "1"]).collect();
    let answer = json(&stage, &args);
    let rows = answer["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    assert!(rows[..2].iter().all(|row| row["ranked_first"].as_f64().unwrap() > 0.6), "{answer}");
    assert!(rows[1]["change_error"].as_f64().unwrap() > 0.0, "q4 answers as f16 does: {answer}");
    assert_eq!(json(&stage, &args), answer, "a seed asks the same questions");
}

#[test]
fn a_kv_configuration_is_made_taken_and_part_of_the_identity() {
    let stage = Stage::new();
    let path = stage.path("kv_config.json").display().to_string();
    let make = ["kv-config", "--target-bits", "6", "--tokens", "600", "--out", &path, "--threads", "1"];
    stage.lab(&make).assert().success();
    let config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let bits = config["bits"].as_f64().unwrap();
    assert!((5.0..=6.0).contains(&bits), "{config}");
    assert_eq!(config["layers"].as_array().unwrap().len(), 5);
    assert!(refusal(&stage, &make).contains("already exists"));
    let wide =
        ["kv-config", "--target-bits", "3", "--out", "/nowhere/x", "--tokens", "300", "--threads", "1"];
    assert!(refusal(&stage, &wide).contains("4.16 to 16"));
}
