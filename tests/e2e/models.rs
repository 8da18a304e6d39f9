//! Several models in one run: the bundled one and a random one of another family, within one budget, each
//! with its memories.

use super::{Run, Stage};
use greenroom_engine::fixtures::RandomModel;
use serde_json::Value;
use std::path::PathBuf;

const TEXT: &str = "id: two
models: { qwen: random.gguf, again: ./random.gguf }
agents:
  ann: { display_name: Ann, model: qwen, sampling: { temperature: 0.4 } }
  ben: { display_name: Ben }
  cas: { display_name: Cas, model: again, lifecycle: ephemeral, sampling: { max_tokens: 6 } }
phases:
  - name: talk
    agents: [ann, ben, cas]
    rounds: 2
    prompt: The mill stands empty. Talk.
  - name: doors
    agents: [ann, ben]
    order: broadcast
    sampling: { temperature: 1.2 }
    answer: [left, right]
";

/// A stage with a model of another family and a scenario beside it.
fn stage() -> (Stage, String) {
    let stage = Stage::new();
    let model = RandomModel { n_layers: 2, context_length: 4096, ..RandomModel::tiny_of("qwen2", 5) };
    std::fs::write(stage.path("random.gguf"), model.bytes()).unwrap();
    std::fs::write(stage.path("two.yaml"), TEXT).unwrap();
    let file = stage.path("two.yaml").display().to_string();
    (stage, file)
}

fn run(stage: &Stage, file: &str, out: &str, more: &[&str]) -> Run {
    let (dir, cache) = (stage.path(out), stage.path("cache").display().to_string());
    let shown = dir.display().to_string();
    let fixed =
        ["run", file, "--out", &shown, "--cache-dir", &cache, "--seed", "3", "--threads", "1", "--quiet"];
    stage.greenroom(&[&fixed, more].concat()).assert().success();
    Run { dir }
}

/// Cuts a run off after some of its lines.
fn cut(run: &Run, lines: usize) -> PathBuf {
    let file = run.dir.join("transcript.jsonl");
    let text: String = run.transcript().split_inclusive('\n').take(lines).collect();
    std::fs::write(&file, text).unwrap();
    file
}

fn replay(stage: &Stage, run: &Run, more: &[&str]) {
    let dir = run.dir.display().to_string();
    let output = stage.greenroom(&[&["replay", &dir], more].concat()).output().unwrap();
    assert!(output.status.success(), "{more:?}: {}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn two_families_in_one_budget_are_exact_resumable_and_restored() {
    let (stage, file) = stage();
    let first = run(&stage, &file, "first", &["--max-tokens", "10"]);
    let whole = first.transcript();
    let header: Value = serde_json::from_str(whole.lines().next().unwrap()).unwrap();
    assert_eq!(header["model"]["name"], "understudy");
    assert_eq!(header["models"]["qwen"]["model"]["family"], "qwen2");
    assert_eq!(header["models"]["qwen"]["model"], header["models"]["again"]["model"]);
    assert!(!whole.contains("random.gguf"), "no path in a transcript");
    let summary = first.summary();
    for agent in ["ann", "ben"] {
        assert_eq!(summary["agents"][agent]["match"]["extend"], 2, "{summary}");
        assert_eq!(summary["agents"][agent]["tokens"]["recomputed"], 0, "{summary}");
    }
    assert_eq!(summary["agents"]["ann"]["models"][0], "qwen");
    // Whatever the budget, however small: the same file.
    for budget in ["0", "300K", "1G"] {
        let other = run(&stage, &file, budget, &["--max-tokens", "10", "--cache-memory", budget]);
        assert_eq!(other.transcript(), whole, "with {budget}");
    }
    // Interrupted at any turn it is resumed, and needs no model named; its own memories are read from disk.
    for lines in [2, 4, 7] {
        cut(&first, lines);
        let resumed = run(&stage, &file, "first", &["--max-tokens", "10", "--resume"]);
        assert_eq!(resumed.transcript(), whole, "after {lines} lines");
    }
    replay(&stage, &first, &[]);
    replay(&stage, &first, &["--rerun=exact"]);
    replay(&stage, &first, &["--score"]);
    // A run that carries on: both models' memories come from disk.
    let earlier = first.dir.display().to_string();
    let second = run(&stage, &file, "second", &["--max-tokens", "10", "--continue", &earlier]);
    for agent in ["ann", "ben"] {
        let turn = second.turns("trace.jsonl").into_iter().find(|turn| turn["agent"] == agent).unwrap();
        assert_eq!(
            (turn["match"].as_str(), turn["source"].as_str()),
            (Some("extend"), Some("disk")),
            "{turn}"
        );
    }
    replay(&stage, &second, &["--rerun=exact"]);
    // A fork that changes nothing is what the run was, with its models.
    let out = stage.path("fork").display().to_string();
    let cache = stage.path("cache").display().to_string();
    let fork = [
        "fork",
        &earlier,
        "--at",
        "doors",
        "--out",
        &out,
        "--cache-dir",
        &cache,
        "--threads",
        "1",
        "--quiet",
    ];
    stage.greenroom(&fork).assert().success();
    let forked = Run { dir: stage.path("fork") };
    assert_eq!(forked.turns("transcript.jsonl").last().map(|turn| turn["raw"].clone()), {
        first.turns("transcript.jsonl").last().map(|turn| turn["raw"].clone())
    });
}

#[test]
fn the_command_line_names_models_and_a_run_remembers_them() {
    let (stage, file) = stage();
    std::fs::rename(stage.path("random.gguf"), stage.path("elsewhere.gguf")).unwrap();
    let elsewhere = stage.path("elsewhere.gguf").display().to_string();
    let (qwen, again) = (format!("qwen={elsewhere}"), format!("again={elsewhere}"));
    let models = ["--model", &qwen, "--model", &again, "--model", &elsewhere, "--max-tokens", "6"];
    let first = run(&stage, &file, "first", &models);
    let whole = first.transcript();
    let header: Value = serde_json::from_str(whole.lines().next().unwrap()).unwrap();
    assert_eq!(header["model"]["family"], "qwen2");
    assert_eq!(header["given"][0], "max_tokens");
    // The trace has all three, so that nobody has to name them again.
    cut(&first, 3);
    let resumed = run(&stage, &file, "first", &["--max-tokens", "6", "--resume"]);
    assert_eq!(resumed.transcript(), whole);
    let out = stage.path("x").display().to_string();
    let bad = |model: &str, printed: &str| {
        let output = stage.greenroom(&["run", &file, "--out", &out, "--model", model]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(printed), "{text}");
    };
    bad("qwem=understudy", "the scenario has no model `qwem`; did you mean `qwen`?");
    bad("understudy", "the model `again`: there is no model file ./random.gguf");
}

#[test]
fn one_model_is_remembered_too() {
    let (stage, _) = stage();
    let model = stage.path("random.gguf").display().to_string();
    let more = ["--max-tokens", "4", "--model", &model];
    let first = run(&stage, "scenarios/gossip.yaml", "first", &more);
    let whole = first.transcript();
    cut(&first, 4);
    let resumed = run(&stage, "scenarios/gossip.yaml", "first", &["--max-tokens", "4", "--resume"]);
    assert_eq!(resumed.transcript(), whole);
}

#[test]
fn models_and_settings_are_swept() {
    let (stage, file) = stage();
    let model = format!("model.qwen=understudy,{}", stage.path("random.gguf").display());
    let more = ["--max-tokens", "4", "--sweep", &model, "--sweep", "temperature=0,0.7"];
    let swept = run(&stage, &file, "swept", &more);
    let runs = |swept: &Run| -> Vec<Value> {
        let cells = std::fs::read_dir(&swept.dir).unwrap().map(|entry| entry.unwrap().path());
        let files = cells.map(|cell| cell.join("seed-3/transcript.jsonl")).filter(|file| file.exists());
        let header = |file: PathBuf| {
            let text = std::fs::read_to_string(file).unwrap();
            serde_json::from_str::<Value>(text.lines().next().unwrap()).unwrap()
        };
        files.map(header).collect()
    };
    let headers = runs(&swept);
    let of = |header: &Value| {
        let family = header["models"]["qwen"]["model"]["family"].as_str().unwrap().to_string();
        (family, header["sampling"]["temperature"].to_string())
    };
    let mut cells: Vec<_> = headers.iter().map(of).collect();
    cells.sort();
    let expected = [("llama", "0.0"), ("llama", "0.7"), ("qwen2", "0.0"), ("qwen2", "0.7")];
    assert_eq!(cells, expected.map(|(family, t)| (family.to_string(), t.to_string())));
    // Swept, a temperature counts before the file's: no turn has one of its own.
    assert!(headers.iter().all(|header| header["given"] == serde_json::json!(["max_tokens", "temperature"])));
}
