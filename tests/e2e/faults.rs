//! Kills, damage and bad input: a clear error or a cold start with its reason, and nothing lost.

use super::Stage;
use greenroom_engine::fixtures::RandomModel;

#[test]
fn a_damaged_cache_costs_time_and_nothing_else() {
    let stage = Stage::new();
    let first = stage.play("gossip", "first", &[]);
    let expected =
        stage.play("gossip", "second", &["--continue", &first.dir.display().to_string()]).transcript();
    for (what, part) in [("manifests", "manifests"), ("tails", "tails"), ("blocks", "blocks")] {
        let stage = Stage::new();
        let first = stage.play("gossip", "first", &[]);
        let mut stack = vec![stage.path("cache").join("v4").join(part)];
        while let Some(dir) = stack.pop() {
            for entry in std::fs::read_dir(dir).unwrap().flatten() {
                if entry.path().is_dir() {
                    stack.push(entry.path());
                    continue;
                }
                let mut bytes = std::fs::read(entry.path()).unwrap();
                let middle = bytes.len() * 2 / 3;
                bytes[middle] ^= 0x10;
                std::fs::write(entry.path(), bytes).unwrap();
            }
        }
        let path = first.dir.display().to_string();
        let run = stage.play("gossip", "second", &["--continue", &path]);
        assert_eq!(run.transcript(), expected, "damaged {what}");
        let reasons: Vec<_> = run.turns("trace.jsonl").iter().map(|t| t["reason"].to_string()).collect();
        assert!(reasons.iter().any(|r| r.contains("damaged")), "damaged {what}: {reasons:?}");
    }
}

#[test]
fn bad_models_are_refused_by_name() {
    let stage = Stage::new();
    let model = RandomModel::tiny(1).bytes();
    let unknown = RandomModel { architecture: "mamba".to_owned(), ..RandomModel::tiny(1) }.bytes();
    let cases: [(&str, &[u8], &str); 4] = [
        ("cut.gguf", &model[..model.len() / 2], "reaches past the end of the file"),
        ("header.gguf", &model[..200], "it ends inside"),
        ("family.gguf", &unknown, "family `mamba`"),
        ("text.gguf", b"not a model at all", "does not begin with"),
    ];
    for (name, bytes, message) in cases {
        let path = stage.path(name);
        std::fs::write(&path, bytes).unwrap();
        let mut args = stage.args("gossip", "run");
        args.extend(["--model".to_owned(), path.display().to_string()]);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let output = stage.greenroom(&args).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(4), "{name}: {text}");
        assert!(text.contains(message) && text.contains(name), "{name}: {text}");
        assert!(!text.contains("panicked"), "{name}: {text}");
    }
}

#[test]
fn no_truncation_of_a_model_panics() {
    let model = RandomModel::tiny(1).bytes();
    for n in (0..4000).step_by(7).chain((4000..model.len()).step_by(9973)) {
        let bytes: &'static [u8] = model[..n].to_vec().leak();
        let source = greenroom_engine::ModelSource::Bundled("cut", bytes);
        assert!(greenroom_engine::Prompter::open(&source).is_err(), "{n} bytes of {}", model.len());
    }
}

/// Bytes of each family's header set to extreme values in turn: opening says yes or no, and does neither by a panic.
#[test]
fn no_damage_to_a_models_header_panics() {
    use greenroom_engine::{Engine, EngineConfig, KvChoice, ModelSource, Prompter};
    for family in ["llama", "qwen2", "qwen3", "gemma3", "deepseek2", "gpt-oss"] {
        let model = RandomModel { n_layers: 2, ..RandomModel::tiny_of(family, 1) }.bytes();
        let position = |what: &[u8]| model.windows(what.len()).position(|w| w == what).unwrap();
        let (metadata, tokens) = (position(b".context_length"), position(b"tokenizer.ggml.tokens"));
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let source = ModelSource::Path(file.path().to_owned());
        let mut refused = 0;
        for at in (0..tokens + 64).step_by(3) {
            for value in [0x00, 0x01, 0x7f, 0xff] {
                let mut bytes = model.clone();
                bytes[at] = value;
                file.as_file_mut().set_len(0).unwrap();
                std::fs::write(file.path(), bytes).unwrap();
                match Prompter::open(&source) {
                    Err(_) => refused += 1,
                    // What is said of it must be sayable, and it must be loaded or refused.
                    Ok(prompter) if at > metadata => {
                        let cost = prompter.kv_cost(&KvChoice::Auto).unwrap();
                        assert!(cost.longest(cost.most(1000)) >= 999, "{family}: {cost:?}");
                        let config = EngineConfig { threads: Some(1), ..EngineConfig::new(source.clone()) };
                        refused += usize::from(Engine::open(config, &mut |_, _| {}).is_err());
                    }
                    Ok(_) => {}
                }
            }
        }
        assert!(refused > 100, "{family}: only {refused} damaged headers were refused");
    }
}

#[test]
fn a_cache_folder_that_can_not_be_written_is_said_and_loses_nothing() {
    let stage = Stage::new();
    std::fs::write(stage.path("cache"), "a file in the way").unwrap();
    let args = stage.args("gossip", "run");
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let output = stage.greenroom(&args).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("cache") && !text.contains("panicked"), "{text}");
    // Either it said so and stopped, or it said so and played from memory.
    assert!(output.status.success() || output.status.code() == Some(4), "{text}");
    assert_eq!(std::fs::read(stage.path("cache")).unwrap(), b"a file in the way");
}

#[test]
fn a_random_model_of_any_format_plays() {
    use greenroom_engine::fixtures::Dtype;
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Q8_0] {
        let stage = Stage::new();
        let path = stage.path("random.gguf");
        std::fs::write(&path, RandomModel { dtype, context_length: 16384, ..RandomModel::tiny(3) }.bytes())
            .unwrap();
        let run = stage.play("gossip", "run", &["--model", &path.display().to_string(), "--kv", "q8"]);
        assert_eq!(run.summary()["agents"]["alice"]["match"]["extend"], 8);
    }
}
