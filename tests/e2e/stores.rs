//! Models that other programs have downloaded: runs on them, and the list of all.

use super::Path;
use super::hub::sha256;
use super::{Run, Stage};
use greenroom_engine::fixtures::RandomModel;
use serde_json::{Value, json};

const TEXT: &str = "id: two
models: { qwen: 'ollama:tiny' }
agents: { ann: { display_name: Ann, model: qwen }, ben: { display_name: Ben } }
phases: [{ name: talk, agents: [ann, ben], prompt: The mill stands empty. Talk. }]
";

/// A folder of Ollama's with a model.
fn put(stage: &Stage, name: &str, bytes: &[u8]) {
    let digest = sha256(bytes);
    let layer = |kind: &str, digest: &str, size: usize| json!({ "mediaType": format!("application/vnd.ollama.image.{kind}"), "digest": format!("sha256:{digest}"), "size": size });
    let layers = [layer("model", &digest, bytes.len()), layer("template", &"0".repeat(64), 3)];
    write(stage, &format!("ollama/blobs/sha256-{digest}"), bytes);
    manifest(stage, name, json!({ "schemaVersion": 2, "layers": layers }));
}

fn manifest(stage: &Stage, name: &str, manifest: Value) {
    let path = format!("ollama/manifests/registry.ollama.ai/library/{name}/latest");
    write(stage, &path, manifest.to_string().as_bytes());
}

fn write(stage: &Stage, name: &str, bytes: &[u8]) {
    let path = stage.path(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

fn tiny(seed: u64) -> Vec<u8> {
    RandomModel { n_layers: 2, context_length: 4096, ..RandomModel::tiny_of("qwen2", seed) }.bytes()
}

/// The program with the stage's stores alone.
fn greenroom(stage: &Stage, args: &[&str]) -> assert_cmd::Command {
    let mut command = stage.greenroom(args);
    command.env("OLLAMA_MODELS", stage.path("ollama"));
    for name in ["LLAMA_CACHE", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"] {
        command.env_remove(name);
    }
    command
}

fn run(stage: &Stage, model: &str, out: &str) -> Run {
    let (dir, cache) = (stage.path(out), stage.path("cache").display().to_string());
    let shown = dir.display().to_string();
    let file = stage.path("two.yaml").display().to_string();
    let args = ["run", &file, "--model", model, "--out", &shown, "--cache-dir", &cache, "--seed", "3"];
    let more = ["--max-tokens", "8", "--threads", "1", "--quiet"];
    greenroom(stage, &[&args[..], &more].concat()).assert().success();
    Run { dir }
}

#[test]
fn a_model_of_ollama_plays_and_is_known_by_its_content() {
    let stage = Stage::new();
    put(&stage, "tiny", &tiny(5));
    write(&stage, "tiny.gguf", &tiny(5));
    write(&stage, "two.yaml", TEXT.as_bytes());
    let stored = run(&stage, "ollama:tiny", "stored");
    let path = stage.path("tiny.gguf").display().to_string();
    assert_eq!(stored.transcript(), run(&stage, &path, "path").transcript());
    // It is resumed by the same name, and replayed without the store.
    let dir = stored.dir.display().to_string();
    let transcript = stored.transcript();
    let lines: Vec<&str> = transcript.lines().collect();
    std::fs::write(stored.dir.join("transcript.jsonl"), lines[..lines.len() - 2].join("\n") + "\n").unwrap();
    let cache = stage.path("cache").display().to_string();
    let file = stage.path("two.yaml").display().to_string();
    let args = ["run", &file, "--resume", "--out", &dir, "--cache-dir", &cache, "--seed", "3"];
    let args = [&args[..], &["--max-tokens", "8", "--threads", "1", "--quiet"]].concat();
    greenroom(&stage, &args).assert().success();
    assert_eq!(stored.transcript(), transcript);
    std::fs::remove_dir_all(stage.path("ollama")).unwrap();
    greenroom(&stage, &["replay", &dir]).assert().success();
}

#[test]
fn near_names_are_suggested() {
    let stage = Stage::new();
    put(&stage, "tiny", &tiny(5));
    let said = |model: &str| {
        let output = greenroom(&stage, &["models", model]).output().unwrap();
        assert_eq!(output.status.code(), Some(4));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let near = said("ollama:tinny");
    assert!(near.contains("did you mean `ollama:tiny`?") && near.contains("ollama pull tinny"), "{near}");
    let bare = said("tiny");
    assert!(bare.contains("did you mean `ollama:tiny`?"), "{bare}");
}

#[test]
fn models_on_this_machine_are_listed_with_what_is_wrong_with_some() {
    let stage = Stage::new();
    put(&stage, "tiny", &tiny(5));
    put(&stage, "strange", &RandomModel { architecture: "gemma3n".into(), ..RandomModel::tiny(1) }.bytes());
    put(&stage, "broken", b"no model");
    put(&stage, "half", &tiny(6)[..20_000]);
    manifest(
        &stage,
        "hostile",
        json!({ "layers": [{ "mediaType": "application/vnd.ollama.image.model", "digest": "../../x", "size": 1 }] }),
    );
    manifest(
        &stage,
        "adapter",
        json!({ "layers": [{ "mediaType": "application/vnd.ollama.image.adapter", "digest": "../../x", "size": 1 }] }),
    );
    write(&stage, ".lmstudio/models/org/Repo/m-Q8_0.gguf", &tiny(7));
    write(&stage, ".lmstudio/models/org/Repo/mmproj-m.gguf", b"");
    #[cfg(target_os = "linux")]
    write(&stage, ".cache/llama.cpp/org_Repo_m.gguf", &tiny(8));
    let output = greenroom(&stage, &["models"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    let row = |name: &str, words: &[&str]| {
        let row = said
            .lines()
            .map(str::trim)
            .find(|line| line.starts_with(name))
            .unwrap_or_else(|| panic!("{name}: {said}"));
        words.iter().for_each(|word| assert!(row.contains(word), "`{word}` is not in {row}"));
    };
    row("ollama:tiny:latest", &["Ollama", "qwen2", "F32", "yes", " M ", "MiB"]);
    row("ollama:strange:latest", &["gemma3n", "not supported: gemma3n"]);
    row("ollama:broken:latest", &["does not begin with \"GGUF\""]);
    row("ollama:half:latest", &["the download may be incomplete"]);
    row("ollama:hostile:latest", &["expected sha256: and 64 hexadecimal digits"]);
    row("ollama:adapter:latest", &["it is an adapter (LoRA) alone"]);
    row("lmstudio:org/Repo/m-Q8_0.gguf", &["LM Studio", "qwen2", "yes"]);
    #[cfg(target_os = "linux")]
    row("llama.cpp:org_Repo_m.gguf", &["llama.cpp", "qwen2", "yes"]);
    assert!(!said.contains("mmproj"), "{said}");

    let output = greenroom(&stage, &["models", "--json"]).output().unwrap();
    let listed: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let named = |name: &str| {
        listed.iter().find(|one| one["name"] == name).unwrap_or_else(|| panic!("{name}: {listed:?}"))
    };
    let tiny = named("ollama:tiny:latest");
    assert_eq!((&tiny["family"], &tiny["refusal"]), (&json!("qwen2"), &Value::Null));
    assert!(
        Path::new(tiny["file"].as_str().unwrap()).is_file() && tiny["bytes"].as_u64().unwrap() > 0,
        "{tiny}"
    );
    assert!(named("ollama:strange:latest")["refusal"].as_str().unwrap().contains("gemma3n"));
    let hostile = named("ollama:hostile:latest");
    assert!(hostile["refusal"].is_string() && hostile["file"].is_null(), "{hostile}");
}
