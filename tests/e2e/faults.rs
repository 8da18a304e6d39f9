//! Kills, damage and bad input: a clear error or a cold start with its reason, and nothing lost.

use super::Stage;
use greenroom_engine::fixtures::{self, RandomModel};

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

/// A read that fails once, at whatever moment of a run whose folder is swept before and after: the play is
/// the same, and no memory is removed for it.
#[test]
fn a_read_that_fails_once_costs_time_and_nothing_else() {
    let stage = Stage::new();
    let first = stage.play("gossip", "first", &[]).dir.display().to_string();
    let cache = stage.path("cache");
    let copy = |from: &std::path::Path, to: &std::path::Path| {
        let _ = std::fs::remove_dir_all(to);
        assert!(std::process::Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
    };
    let kept = stage.path("kept");
    copy(&cache, &kept);
    let more = ["--continue", &first, "--cache-disk", "1G"];
    let expected = stage.play("gossip", "second", &more).transcript();
    for n in [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233] {
        copy(&kept, &cache);
        let _ = std::fs::remove_dir_all(stage.path("again"));
        let args = stage.args("gossip", "again");
        let args: Vec<&str> = args.iter().map(String::as_str).chain(more).chain(["--threads", "1"]).collect();
        stage.greenroom(&args).env("GREENROOM_FAULT", format!("unread:{n}")).assert().success();
        let transcript = std::fs::read_to_string(stage.path("again/transcript.jsonl")).unwrap();
        assert_eq!(transcript, expected, "read {n} failed");
        let dir = cache.display().to_string();
        stage.greenroom(&["cache", "verify", "--cache-dir", &dir]).assert().success();
        assert!(!cache.join("v4/damaged").exists(), "read {n} failed");
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

/// Anything else in a model's place is named, and nothing waits for it. A link to a model is one.
#[cfg(unix)]
#[test]
fn what_is_no_model_is_refused_whatever_it_is() {
    use greenroom_engine::{ModelSource, PromptEncoder};
    let stage = Stage::new();
    let model = RandomModel::tiny(3).bytes();
    std::fs::write(stage.path("whole.gguf"), &model).unwrap();
    std::fs::write(stage.path("long.gguf"), &model).unwrap();
    std::fs::OpenOptions::new().append(true).open(stage.path("long.gguf")).unwrap().set_len(1 << 40).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(stage.path("pipe.gguf")).status().unwrap().success());
    std::os::unix::fs::symlink("/dev/zero", stage.path("zero.gguf")).unwrap();
    std::os::unix::fs::symlink("whole.gguf", stage.path("link.gguf")).unwrap();
    std::fs::create_dir(stage.path("folder.gguf")).unwrap();
    let cases = [
        ("long.gguf", "after its last tensor"),
        ("pipe.gguf", "is a named pipe"),
        ("zero.gguf", "is a device"),
        ("folder.gguf", "is a folder"),
        ("link.gguf", ""),
    ];
    for (name, refused) in cases {
        let (sender, answer) = std::sync::mpsc::channel();
        let source = ModelSource::Path(stage.path(name));
        std::thread::spawn(move || sender.send(PromptEncoder::open(&source).err().map(|e| e.to_string())));
        let answer = answer.recv_timeout(std::time::Duration::from_secs(30));
        let found = answer.unwrap_or_else(|_| panic!("{name} is waited for")).unwrap_or_default();
        assert!(found.contains(refused) && found.is_empty() == refused.is_empty(), "{name}: {found}");
    }
}

#[test]
fn no_truncation_of_a_model_panics() {
    let model = RandomModel::tiny(1).bytes();
    for n in (0..4000).step_by(7).chain((4000..model.len()).step_by(9973)) {
        let bytes: &'static [u8] = model[..n].to_vec().leak();
        let source = greenroom_engine::ModelSource::Bundled("cut", bytes);
        assert!(greenroom_engine::PromptEncoder::open(&source).is_err(), "{n} bytes of {}", model.len());
    }
}

/// Bytes of each family's header set to extreme values in turn: opening says yes or no, and does neither by a
/// panic.
#[test]
fn no_damage_to_a_models_header_panics() {
    use greenroom_engine::{Engine, EngineConfig, KvChoice, ModelSource, PromptEncoder};
    let step = if crate::is_deep() { 3 } else { 30 };
    for family in crate::some(fixtures::families(), 4) {
        let tiny = RandomModel::tiny_of(family, 1);
        let n_layers = if tiny.kinds.is_some() { tiny.n_layers } else { 2 };
        let model = RandomModel { n_layers, ..tiny }.bytes();
        let position = |what: &[u8]| model.windows(what.len()).position(|w| w == what).unwrap();
        let (metadata, tokens) = (position(b".context_length"), position(b"tokenizer.ggml.tokens"));
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let source = ModelSource::Path(file.path().to_owned());
        let mut refused = 0;
        for at in (0..tokens + 64).step_by(step) {
            for value in [0x00, 0x01, 0x7f, 0xff] {
                let mut bytes = model.clone();
                bytes[at] = value;
                file.as_file_mut().set_len(0).unwrap();
                std::fs::write(file.path(), bytes).unwrap();
                match PromptEncoder::open(&source) {
                    Err(_) => refused += 1,
                    // It must be possible to report it, and it must be loaded or refused.
                    Ok(prompter) if at > metadata => {
                        let cost = prompter.kv_cost(&KvChoice::Auto).unwrap();
                        assert!(cost.longest(cost.most(1000)) >= 999, "{family}: {cost:?}");
                        let config = EngineConfig::new(source.clone()).threads(1);
                        refused += usize::from(Engine::open(config).is_err());
                    }
                    Ok(_) => {}
                }
            }
        }
        assert!(refused * step > 300, "{family}: only {refused} damaged headers were refused");
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

/// Many runs in one process need no more open files than a few.
#[cfg(target_os = "linux")]
#[test]
fn many_runs_do_not_run_out_of_files() {
    use crate::limits::Limits;
    let stage = Stage::new();
    std::fs::write(
        stage.path("hello.yaml"),
        "id: hello\n\
         agents: {ann: {lifecycle: permanent}}\n\
         phases:\n\
         - { name: p, agents: [ann], prompt: Say hello. }\n\
         ",
    )
    .unwrap();
    let [scenario, out, cache] =
        ["hello.yaml", "out", "cache"].map(|name| stage.path(name).display().to_string());
    let limits = Limits { files: 96, time: std::time::Duration::from_secs(120), ..Limits::default() };
    let mut command = limits.greenroom();
    command.env("HOME", stage.dir.path()).args(["run", &scenario, "--out", &out, "--cache-dir", &cache]);
    command.args(["--repeat", "150", "--max-tokens", "3", "--quiet", "--threads", "1"]);
    let ended = limits.wait(&mut command);
    ended.check("150 runs");
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(!ended.stderr.contains("stay in RAM"), "{}", ended.stderr);
}
