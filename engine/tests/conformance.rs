//! The engine against references that are not ours: log-probabilities by Hugging Face transformers and by
//! llama.cpp.
//!
//! `tests/goldens/make.py` and `tests/goldens/by_llama_cpp.py` wrote the goldens in float32; here the same
//! random models are made again from what the goldens say of them and scored by [`Engine::score`]. Mutants of
//! the models prove that the comparison can fail.

use greenroom_engine::fixtures::{Fact, RandomModel};
#[cfg(feature = "gpu")]
use greenroom_engine::gpus;
use greenroom_engine::{DeviceChoice, Engine, EngineConfig, KvChoice, KvFormat, ModelSource};
use serde_json::Value;
use std::cell::Cell;
use std::io::Write;

#[path = "../../tests/goldens/golden.rs"]
mod golden;
use golden::{Distance, Golden};

macro_rules! goldens {
    ($($name:literal)*) => {
        [$(($name, include_str!(concat!("../../tests/goldens/", $name, ".json")))),*]
    };
}

/// Names and texts, the first of each family first.
const GOLDENS: [(&str, &str); 91] = goldens! {
    "llama-seed1" "llama-seed2" "llama-seed3" "llama-4" "llama-5"
    "qwen2-1" "qwen2-2" "qwen2-3"
    "qwen3-1" "qwen3-2" "qwen3-3"
    "gemma3-1" "gemma3-2" "gemma3-3"
    "deepseek2-1" "deepseek2-2" "deepseek2-3" "deepseek2-4"
    "gpt-oss-1" "gpt-oss-2" "gpt-oss-3"
    "llama-6"
    "qwen2moe-1" "qwen3moe-1" "qwen3vl-1" "qwen3vlmoe-1"
    "gemma2-1" "gemma2-2" "gemma4-1" "gemma4-2"
    "deepseek2-5" "mistral3-1" "mistral4-1"
    "granite-1" "granite-2" "granitemoe-1"
    "smollm3-1" "phi3-1" "phi3-2"
    "glm4-1" "glm4moe-1"
    "olmo2-1" "olmo2-2" "exaone4-1" "exaone4-2"
    "ernie4_5-1" "ernie4_5-moe-1" "seed_oss-1" "hunyuan-dense-1" "minimax-m2-1" "cohere2-1" "cohere2-r"
    "qwen2moe-r" "qwen3moe-r" "qwen3vl-r" "qwen3vlmoe-r" "gemma2-r" "gemma4-r" "deepseek2-r"
    "mistral3-r" "granite-r" "granitemoe-r" "smollm3-r" "phi3-r" "glm4-r" "glm4moe-r" "olmo2-r" "exaone4-r"
    "ernie4_5-r" "ernie4_5-moe-r" "seed_oss-r" "hunyuan-dense-r" "minimax-m2-r"
    "qwen3next-1" "qwen35-1" "qwen35moe-1" "granitehybrid-2" "granitehybrid-1" "nemotron_h-1" "nemotron_h_moe-1"
    "falcon-h1-1" "lfm2-1" "lfm2moe-1"
    "qwen3next-r" "qwen35-r" "qwen35moe-r" "granitehybrid-r" "nemotron_h-r" "falcon-h1-r" "lfm2-r" "lfm2moe-r"
};

/// A model of the formats of gpt-oss's files; the reference had the same numbers as F32.
const MXFP4: [(&str, &str); 1] = goldens! { "gpt-oss-4" };
/// Bound on [`Off::most`] for MXFP4: products round activations to 8 bits. llama.cpp on the file itself is
/// off by 0.022.
const MAX_DIFFERENCE_MXFP4: f64 = 0.06;

/// Largest differences in log-probability that pass with an f16 cache, about twice those measured:
/// [`Off::max`] (0.0028, of `deepseek2-2`; 0.0014 of gemma3, 0.0007 of all others) and [`Off::late`]
/// (0.0013). Most of it comes from the rounding of cached keys and values: llama.cpp with an f16 cache is as
/// far from itself. The least of the mutants below reaches 0.063 and 0.027.
const MAX_F16: f64 = 6e-3;
const LATE_F16: f64 = 3e-3;
/// Bounds on [`Off::most`] with coded caches (measured: at most 0.0088 and 0.14): they bound the formats'
/// loss and prove no conformance. A rounded key can send a token to another expert, so the largest
/// differences say little.
const MAX_DIFFERENCES: [(KvFormat, f64); 2] = [(KvFormat::Q8, 0.03), (KvFormat::Q4, 0.4)];
/// First of the late positions: they read two sealed blocks, and any one token counts for little.
const LATE: usize = 513;

/// Distance of scores from a golden.
#[derive(Debug)]
struct Off {
    /// Largest difference in log-probability.
    max: f64,
    /// The same from position [`LATE`] on.
    late: f64,
    /// Largest difference but for the worst twentieth of positions.
    most: f64,
    /// Largest margin of the reference where the engine has another token on top.
    other_top: f64,
}

fn goldens() -> impl Iterator<Item = Golden> {
    GOLDENS.iter().map(|(name, text)| Golden::read(name, text))
}

/// The first golden of each family.
fn goldens_of_each_family() -> impl Iterator<Item = Golden> {
    let mut before = String::new();
    goldens().filter(move |golden| {
        let family = model(golden).architecture;
        std::mem::replace(&mut before, family.clone()) != family
    })
}

/// The model of a golden, which says what it differs in from [`RandomModel::tiny_of`] its `architecture`
/// (else `llama`) and `seed`.
fn model(golden: &Golden) -> RandomModel {
    let architecture = golden.model.get("architecture").and_then(Value::as_str).unwrap_or("llama");
    let seed = golden.model["seed"].as_u64().expect("a seed");
    let tiny = RandomModel::tiny_of(architecture, seed);
    golden
        .model
        .iter()
        .try_fold(tiny, |model, (field, fact)| model.with(field, fact.clone()))
        .expect("a model's fields")
}

impl Off {
    /// Scores a golden's ids with the model of a GGUF file.
    fn of(golden: &Golden, gguf: &[u8], kv: KvFormat) -> Self {
        Self::with(golden, &golden.ids, gguf, kv, DeviceChoice::Cpu)
    }

    /// Scores ids that may differ from the golden's.
    fn with(golden: &Golden, ids: &[u32], gguf: &[u8], kv: KvFormat, device: DeviceChoice) -> Self {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(gguf).expect("a model is written");
        let config = EngineConfig::new(ModelSource::Path(file.path().to_owned()))
            .kv(KvChoice::Uniform(kv))
            .device(device);
        let engine = Engine::open(config).expect("an engine");
        let Distance { differences, other_tops } = golden.distance(&engine, ids);
        let mut all: Vec<f64> = differences.iter().map(|difference| difference.abs()).collect();
        let late = all[LATE - 1..].iter().copied().fold(0.0, f64::max);
        all.sort_by(f64::total_cmp);
        let n = all.len();
        Self {
            max: all[n - 1],
            late,
            most: all[n - 1 - (n + 1) / 20],
            other_top: other_tops.into_iter().fold(0.0, f64::max),
        }
    }
}

#[test]
fn log_probabilities_are_those_of_the_reference() {
    for golden in goldens() {
        let (name, model) = (golden.name, model(&golden));
        let gguf = model.bytes();
        let off = Off::of(&golden, &gguf, KvFormat::F16);
        eprintln!("{name}, F16: {off:?}");
        assert!(off.max < MAX_F16 && off.late < LATE_F16, "{name}: {off:?}, bounds {MAX_F16} and {LATE_F16}");
        // Two logits that each move by less than the bound can change places only within twice that.
        assert!(off.other_top < 2.0 * MAX_F16, "{name}: another token on top, {off:?}");
        let mut coarser = off.most;
        for (kv, most) in MAX_DIFFERENCES {
            let off = Off::of(&golden, &gguf, kv);
            eprintln!("{name}, {kv:?}: {off:?}");
            assert!(off.most < most, "{name}, {kv:?}: {off:?}, bound {most}");
            // Formats that gave equal scores would be one format: the setting had no effect.
            assert!(off.most > coarser, "{name}, {kv:?} is not coarser than the format before it: {off:?}");
            coarser = off.most;
        }
        let n_clear = golden.margins.iter().filter(|margin| **margin > 2.0 * MAX_F16).count();
        assert!(n_clear > 600, "{name}: only {n_clear} tops say anything");
    }
}

/// Every family on the first GPU of this machine; on software that does its work, one of each kind of cache
/// and those that the engine's own tests leave out.
#[cfg(feature = "gpu")]
#[test]
fn log_probabilities_on_a_gpu_are_those_of_the_reference() {
    let Some(gpu) = gpus().into_iter().next() else {
        assert!(std::env::var_os("GREENROOM_TEST_GPU").is_none(), "no adapter; install mesa-vulkan-drivers");
        eprintln!("skipped: there is no adapter (Debian: mesa-vulkan-drivers)");
        return;
    };
    let is_kind = |family: &str| ["llama", "gemma3", "deepseek2"].contains(&family);
    for golden in goldens_of_each_family() {
        let model = model(&golden);
        let family = model.architecture.as_str();
        let is_same = greenroom_engine::fixtures::SAME_AS_OTHERS.contains(&family);
        let is_elsewhere = !is_kind(family) && (!is_same || golden.name.ends_with("-r"));
        if gpu.is_software() && is_elsewhere {
            continue;
        }
        let device = DeviceChoice::Gpu(Some(gpu.name.clone()));
        let off = Off::with(&golden, &golden.ids, &model.bytes(), KvFormat::F16, device);
        eprintln!("{} on {}: {off:?}", golden.name, gpu.name);
        assert!(off.max < MAX_F16 && off.late < LATE_F16, "{}: {off:?}", golden.name);
    }
}

#[test]
fn experts_of_four_bits_are_read() {
    for golden in MXFP4.map(|(name, text)| Golden::read(name, text)) {
        let off = Off::of(&golden, &model(&golden).bytes(), KvFormat::F16);
        eprintln!("{}: {off:?}", golden.name);
        assert!(off.most < MAX_DIFFERENCE_MXFP4, "{}: {off:?}, bound {MAX_DIFFERENCE_MXFP4}", golden.name);
    }
}

/// Defect of a mutant.
enum Wrong {
    /// A field of the model.
    Field(fn(&mut RandomModel)),
    /// The first tensor of this name in the file, with its layer left out.
    Tensor(&'static str, fn(&RandomModel, &mut [f32])),
}
use Wrong::{Field, Tensor};

/// Defects to try; where a model has nothing of the kind, nothing changes.
const MUTANTS: [(&str, Wrong); 31] = [
    (
        "another number of the family's own",
        Field(|model| {
            // Of a norm that Nemotron doesn't have.
            let facts = model.facts.iter_mut().filter(|(name, _)| *name != "attention.layer_norm_epsilon");
            for (_, fact) in facts {
                if let Fact::Float(x) = fact {
                    *x *= 1.3;
                }
            }
        }),
    ),
    ("the norm of the latent of queries dropped", Tensor("attn_q_a_norm.weight", |_, x| x.fill(1.0))),
    ("another ranking of experts", Tensor("exp_probs_b.bias", |_, x| x.iter_mut().for_each(|x| *x *= -4.0))),
    ("the score of the shared expert dropped", Tensor("ffn_gate_inp_shexp.weight", |_, x| x.fill(0.0))),
    (
        "another rotary base",
        Field(|model| model.rope_base *= if model.architecture.starts_with("nemotron") { 1.0 } else { 1.5 }),
    ),
    (
        "another rotary base in layers with a window",
        Field(|model| {
            if model.architecture == "gemma3" {
                model.rope_base_swa = 15_000.0;
            }
        }),
    ),
    ("a window that is one wider", Field(|model| model.window += u32::from(model.window > 0))),
    (
        "positions stretched further",
        Field(|model| model.rope_scaling.iter_mut().for_each(|scaling| scaling.factor *= 1.5)),
    ),
    (
        "another length before positions were stretched",
        Field(|model| {
            let scaling = model.rope_scaling.iter_mut().filter(|scaling| scaling.kind == "yarn");
            scaling.for_each(|scaling| scaling.original_context_length *= 2);
        }),
    ),
    (
        "attention's share of the temperature halved",
        Field(|model| model.rope_scaling.iter_mut().for_each(|scaling| scaling.yarn_log_multiplier *= 0.5)),
    ),
    ("rotary factors dropped", Tensor("rope_freqs.weight", |_, x| x.fill(1.0))),
    ("a norm dropped", Tensor("attn_norm.weight", |_, x| x.fill(1.0))),
    ("the norm of a head's keys dropped", Tensor("attn_k_norm.weight", |_, x| x.fill(1.0))),
    ("the norm of the latent dropped", Tensor("attn_kv_a_norm.weight", |_, x| x.fill(1.0))),
    ("the norm after attention dropped", Tensor("post_attention_norm.weight", |_, x| x.fill(1.0))),
    ("the norm after the feed-forward dropped", Tensor("post_ffw_norm.weight", |_, x| x.fill(1.0))),
    (
        "a head's key rows swapped",
        Tensor("attn_k.weight", |model, x| {
            let pairs = x[..model.head_dim * model.d_model].chunks_exact_mut(2 * model.d_model);
            pairs.for_each(|pair| pair.rotate_left(model.d_model));
        }),
    ),
    ("the keys of two heads swapped", Tensor("attn_k_b.weight", |model, x| swap(x, model.n_heads))),
    ("the bias of keys dropped", Tensor("attn_k.bias", |_, x| x.fill(0.0))),
    ("sinks dropped", Tensor("attn_sinks.weight", |_, x| x.fill(-1e9))),
    ("the sinks of two heads swapped", Tensor("attn_sinks.weight", |model, x| swap(x, model.n_heads))),
    (
        "two experts swapped",
        Tensor("ffn_down_exps.weight", |model, x| swap(x, model.experts.map_or(2, |experts| experts.n))),
    ),
    ("shared experts dropped", Tensor("ffn_down_shexp.weight", |_, x| x.fill(0.0))),
    ("other decays", Tensor("ssm_a", |_, x| x.iter_mut().for_each(|x| *x *= 1.5))),
    ("no bias of decays", Tensor("ssm_dt.bias", |_, x| x.fill(0.0))),
    ("the convolution of a token before", Tensor("ssm_conv1d.weight", |_, x| x.rotate_left(1))),
    ("the short convolution of a token before", Tensor("shortconv.conv.weight", |_, x| x.rotate_left(1))),
    ("values left out of what is read", Tensor("ssm_d", |_, x| x.fill(0.0))),
    ("the norm of what is read dropped", Tensor("ssm_norm.weight", |_, x| x.fill(1.0))),
    ("strengths and decays swapped", Tensor("ssm_ba.weight", |_, x| swap(x, 2))),
    ("keys of one head for another's", Tensor("attn_qkv.weight", |_, x| swap(x, 4))),
];

/// The first two of `n` parts change places.
fn swap(x: &mut [f32], n: usize) {
    let part = x.len() / n;
    x[..2 * part].rotate_left(part);
}

impl Wrong {
    /// The file of the model with this wrong.
    fn bytes(&self, model: &RandomModel) -> Vec<u8> {
        match self {
            Field(change) => {
                let mut wrong = model.clone();
                change(&mut wrong);
                wrong.bytes()
            }
            Tensor(tensor, change) => {
                let found = Cell::new(false);
                model.bytes_with(&|name, x| {
                    let part = name.strip_prefix("blk.").and_then(|name| name.split_once('.'));
                    if part.map_or(name, |(_, part)| part) == *tensor && !found.replace(true) {
                        change(model, x);
                    }
                })
            }
        }
    }
}

#[test]
fn wrong_models_are_distinguished_from_right_ones() {
    for (what, wrong) in MUTANTS {
        let mut families: Vec<String> = Vec::new();
        for golden in goldens() {
            let (name, model) = (golden.name, model(&golden));
            // Once for each family: the first of its goldens that has it.
            if families.contains(&model.architecture) {
                continue;
            }
            let gguf = wrong.bytes(&model);
            if gguf == model.bytes() {
                continue;
            }
            let off = Off::of(&golden, &gguf, KvFormat::F16);
            eprintln!("{name}, {what}: {off:?}");
            assert!(off.max > MAX_F16 && off.late > LATE_F16, "{name}, {what}: passes for right, {off:?}");
            families.push(model.architecture);
        }
        assert!(!families.is_empty(), "{what}: no golden has it");
    }
}

/// One wrong token out of hundreds, in a sealed block: what a cache that lost or mixed up a row would do.
#[test]
fn a_single_wrong_token_is_noticed_far_away() {
    for golden in goldens_of_each_family() {
        let (name, gguf) = (golden.name, model(&golden).bytes());
        for pos in [10, 200, 300, 500] {
            let mut ids = golden.ids.clone();
            ids[pos] = (ids[pos] + 1) % 256;
            let off = Off::with(&golden, &ids, &gguf, KvFormat::F16, DeviceChoice::Cpu);
            eprintln!("{name}, another token at {pos}: {off:?}");
            assert!(off.late > LATE_F16, "{name}: another token at {pos} goes unnoticed: {off:?}");
        }
    }
}
