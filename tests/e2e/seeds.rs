//! Readers of files from outside (`fuzz/readers.rs`) with the seeds of their fuzz targets and mutations of
//! these: no panic.

#[allow(dead_code, unreachable_pub)] // the fuzz targets' own library
#[path = "../../fuzz/readers.rs"]
mod readers;

use crate::Stage;
use greenroom::backend::Scripted;
use greenroom::run::{RunOptions, perform};
use greenroom::scenario::load;
use greenroom::stage::Unwatched;
use greenroom_engine::fixtures::{Dtype, Experts, Latent, LayerKinds, RandomModel, RopeScaling};
use greenroom_engine::probes;
use readers::{Meta, READERS, Reader, gguf_file, small_model};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target)
}

/// Names and bytes of a target's seeds.
fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let files = std::fs::read_dir(folder(target)).unwrap().map(|entry| entry.unwrap().path());
    let seed =
        |path: PathBuf| (path.file_name().unwrap().to_string_lossy().into(), std::fs::read(path).unwrap());
    let mut seeds: Vec<_> = files.map(seed).collect();
    seeds.sort();
    assert!(!seeds.is_empty(), "{target} has no seeds");
    seeds
}

/// Mutations of each seed.
fn n_mutations() -> u64 {
    if crate::is_deep() { 300 } else { 60 }
}

/// One mutation, always the same: cut short, some bytes changed, or a piece copied over another one.
fn mutation(seed: &[u8], number: u64) -> Vec<u8> {
    let mut state = number;
    let mut below = |n: usize| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 33) as usize % n.max(1)
    };
    let mut bytes = seed.to_vec();
    // The front determines what the rest means.
    let end = if number % 2 == 0 { bytes.len() } else { bytes.len().min(2048) };
    match number % 3 {
        0 => bytes.truncate(below(end)),
        1 => (0..1 + below(4)).for_each(|_| {
            let new = [0, 1, 0x7f, 0x80, 0xff, below(256) as u8][below(6)];
            if let Some(byte) = bytes.get_mut(below(end)) {
                *byte = new;
            }
        }),
        _ => {
            let n = below(end.min(64));
            let from = below(end - n);
            bytes.copy_within(from..from + n, below(end - n));
        }
    }
    bytes
}

fn check(target: &str, reader: Reader) {
    let run = |what: &str, bytes: &[u8]| {
        let result = catch_unwind(AssertUnwindSafe(|| reader(bytes)));
        result.unwrap_or_else(|_| panic!("{target}: {what} makes the reader panic"))
    };
    for (name, seed) in seeds(target) {
        let result = run(&name, &seed);
        assert!(result.is_ok() || !name.starts_with("whole-"), "{target}: {name} is refused: {result:?}");
        for number in 0..n_mutations() {
            let _ = run(&format!("mutation {number} of {name}"), &mutation(&seed, number));
        }
    }
}

macro_rules! targets {
    ($($target:ident,)*) => {
        $(#[test] fn $target() { check(stringify!($target), readers::$target); })*

        #[test]
        fn every_reader_is_a_target_and_is_tested() {
            let names = [$(stringify!($target)),*];
            assert_eq!(names.as_slice(), READERS.map(|(name, _)| name));
            let manifest = std::fs::read_to_string(folder("../Cargo.toml")).unwrap();
            for name in names {
                assert!(manifest.contains(&format!("path = \"targets/{name}.rs\"")), "{name}");
            }
        }
    };
}

targets! { block, gguf, manifest, memory, pack, scenario, tail, template, transcript, weights, }

/// Families whose files are read each in its own way.
const FAMILIES: [&str; 15] = [
    "llama",
    "qwen2",
    "qwen2moe",
    "qwen3",
    "gemma2",
    "gemma3",
    "gemma4",
    "deepseek2",
    "gpt-oss",
    "granite",
    "smollm3",
    "phi3",
    "glm4",
    "olmo2",
    "minimax-m2",
];

/// A model of a family as small as its layout allows.
fn smallest(family: &str) -> RandomModel {
    let small = RandomModel {
        n_layers: 1,
        d_model: 32,
        n_heads: 2,
        n_kv_heads: 1,
        head_dim: 16,
        d_ff: 32,
        dtype: Dtype::Q4_0,
        ..RandomModel::tiny_of(family, 1)
    };
    let experts = Experts { n: 2, used: 1, d_ff: 32, ..Experts::default() };
    match family {
        "gemma3" => RandomModel { n_layers: 2, ..small },
        "gemma4" => {
            let kinds = small.kinds.map(|kinds| LayerKinds { windowed_head_dim: 16, shared: 0, ..kinds });
            RandomModel { n_layers: 3, kinds, ..small }
        }
        "phi3" | "glm4" => RandomModel { n_rot: 8, ..small },
        "qwen2moe" => RandomModel { experts: Some(Experts { shared: 2, ..experts }), ..small },
        "minimax-m2" => RandomModel { n_rot: 8, experts: Some(Experts { ranked: true, ..experts }), ..small },
        "deepseek2" => RandomModel {
            n_layers: 2,
            latent: Some(Latent { rank: 32, nope: 32, rope: 16, value: 32, ..Latent::default() }),
            experts: Some(Experts { shared: 1, leading_dense: 1, ..experts }),
            ..small
        },
        "gpt-oss" => RandomModel { experts: Some(experts), dtype: Dtype::MXFP4, ..small },
        "qwen3" => RandomModel {
            rope_scaling: Some(RopeScaling {
                kind: "yarn".into(),
                factor: 4.0,
                original_context_length: 1024,
                yarn_log_multiplier: 0.0,
            }),
            rope_factors: true,
            ..small
        },
        _ => small,
    }
}

/// The header of a model's file, without its tensors.
fn without_tensors(model: &[u8]) -> Vec<u8> {
    let first = b"token_embd.weight";
    let name = model.windows(first.len()).position(|bytes| bytes == first).unwrap();
    let mut header = model[..name - 8].to_vec(); // before the name, its length
    header[8..16].fill(0);
    header
}

/// The transcript of the seeds' scenario, played with scripted agents.
fn played() -> Vec<u8> {
    let stage = Stage::new();
    let scenario = load("small.yaml", readers::SCENARIO, &[]).scenario.unwrap();
    let backend = Arc::new(Scripted::new(|request| Some(format!("This is {}.", request.path))));
    let (path, options) = (stage.path("run"), RunOptions::default());
    let mut watch = Unwatched;
    let playing = perform(&scenario, backend, &path, &options, &mut watch, std::future::pending());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    std::fs::read(runtime.block_on(playing).unwrap().transcript).unwrap()
}

/// Remakes the seeds that are made by programs: after a change of a format.
#[test]
#[ignore = "writes fuzz/seeds: cargo test --test e2e -- --ignored seeds::make"]
fn make() {
    let write = |target: &str, name: &str, bytes: &[u8]| {
        std::fs::create_dir_all(folder(target)).unwrap();
        std::fs::write(folder(target).join(name), bytes).unwrap();
    };
    for (name, windowed) in [("lasting", false), ("windowed", true)] {
        write("block", &format!("whole-{name}"), &probes::sealed_block(windowed).unwrap());
    }
    write("manifest", "whole-two-turns", &probes::manifest_payloads());
    write("memory", "whole-block-and-rows", &probes::memory_payloads());
    write("tail", "whole-two-turns", &probes::tail_payloads());
    write("pack", "whole-two-blocks", &probes::pack_index());
    for family in FAMILIES {
        let model = smallest(family).bytes();
        write("gguf", &format!("whole-{family}"), &without_tensors(&model));
        write("weights", &format!("whole-{family}"), &model);
    }
    for dtype in [Dtype::F32, Dtype::BF16] {
        let model = RandomModel { dtype, d_model: 16, d_ff: 16, template: None, ..smallest("llama") };
        write("weights", &format!("whole-{}", dtype.word()), &model.bytes());
    }
    write("gguf", "whole-tensors", &smallest("qwen3").bytes());
    write("gguf", "whole-sentencepiece", &gguf_file(&small_model()));
    for pre in ["default", "llama-bpe", "deepseek-llm", "tekken"] {
        let mut model = small_model();
        model.retain(|(key, _)| !key.starts_with("tokenizer."));
        model.extend([
            ("tokenizer.ggml.model", Meta::Text("gpt2")),
            ("tokenizer.ggml.pre", Meta::Text(pre)),
            ("tokenizer.ggml.tokens", Meta::Texts(&["a", "b", "ab", "<s>", "Ġ", "Ġa"])),
            ("tokenizer.ggml.merges", Meta::Texts(&["a b", "Ġ a"])),
            ("tokenizer.ggml.token_type", Meta::Ints(&[1, 1, 1, 3, 1, 4])),
        ]);
        write("gguf", &format!("whole-{pre}"), &gguf_file(&model));
    }
    for entry in std::fs::read_dir("engine/text/templates").unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        write("template", &format!("whole-{name}"), &std::fs::read(path).unwrap());
    }
    for name in ["meta-llama-Llama-3.1-8B-Instruct", "Qwen-Qwen3-0.6B", "deepseek-ai-DeepSeek-V3.1"] {
        let text = std::fs::read(format!("tests/fixtures/templates/{name}.jinja")).unwrap();
        write("template", &format!("whole-{name}"), &text);
    }
    let transcript = played();
    write("transcript", "whole", &transcript);
    let lines = |n: usize| transcript.split_inclusive(|b| *b == b'\n').take(n).flatten().copied();
    write("transcript", "interrupted", &lines(3).collect::<Vec<u8>>());
    write("transcript", "torn", &lines(4).take(lines(3).count() + 40).collect::<Vec<u8>>());
}
