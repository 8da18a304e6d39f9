//! The engine compared with candle's own models: another implementation of four families, with its own
//! formats and kernels.
//!
//! candle 0.11 computes another Gemma 3 (`quantized_gemma3.rs`): its feed-forward has SiLU for GELU (line
//! 60), its windows are one wider (156), there are none where a token is fed alone (447), and what came
//! before several tokens is hidden from them (171). So it is asked within the window, and what enters the
//! feed-forward is so large that both functions are the ramp that they have in common: the norm after it
//! takes the size out again. All else of the family is compared.
//!
//! Its Qwen 3 has angles in f16 (`quantized_qwen3.rs`, 489) unless configured otherwise, as [`Candle`] does.
//! Its llama and qwen2 take a head's width for the model's by the number of heads (`quantized_llama.rs`, 502;
//! `quantized_qwen2.rs`, 201), and its llama reads no `rope_freqs.weight`: no model here needs either.

#[path = "../candle.rs"]
mod peer;

use candle_core::quantized::gguf_file::Content;
use candle_core::{Device, Tensor};
use candle_transformers::models::quantized_qwen3::ModelWeights;
use greenroom_engine::fixtures::{Dtype, RandomModel, some};
use greenroom_engine::{Engine, EngineConfig, KvChoice, KvFormat, ModelSource};
use peer::Candle;
use std::io::Cursor;

const FAMILIES: [&str; 4] = ["llama", "qwen2", "qwen3", "gemma3"];

/// Formats, and largest differences in log-probability that pass: about twice those measured. Quantized
/// formats have activations of 8 bits in both, rounded in other places.
const FORMATS: [(Dtype, f64); 5] =
    [(Dtype::F32, 2e-3), (Dtype::F16, 2e-3), (Dtype::Q8_0, 0.2), (Dtype::Q4K, 0.2), (Dtype::Q6K, 0.2)];

/// Number of ids to read: Gemma's window.
const N: usize = 64;

fn ids(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * i * 31 + i * 7 + i / 5) % 256).collect()
}

/// A model whose rows can have any format, and whose heads are together as wide as it: candle's llama and
/// qwen2 know no other.
fn model(family: &str, seed: u64, dtype: Dtype) -> RandomModel {
    let tiny = RandomModel::tiny_of(family, seed);
    let window = if tiny.window > 0 { N as u32 } else { 0 };
    RandomModel { d_model: 256, n_heads: 4, n_kv_heads: 2, window, dtype, ..tiny }
}

/// The file; what enters a Gemma's feed-forward is large.
fn gguf(model: &RandomModel) -> Vec<u8> {
    model.bytes_with(&|name, x| {
        if model.architecture == "gemma3" && name.ends_with("ffn_norm.weight") {
            x.iter_mut().for_each(|x| *x *= 256.0);
        }
    })
}

/// The engine's log-probabilities of all ids but the first.
fn ours(gguf: &[u8], ids: &[u32]) -> Vec<f64> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), gguf).unwrap();
    let config =
        EngineConfig::new(ModelSource::Path(file.path().to_owned())).kv(KvChoice::Uniform(KvFormat::F16));
    let engine = Engine::open(config).unwrap();
    let mut all = Vec::new();
    engine.score(ids, None, &mut |score| all.push(f64::from(score.logprob))).unwrap();
    all
}

fn candle(gguf: &[u8]) -> Candle {
    Candle::open(&mut Cursor::new(gguf)).unwrap()
}

fn logprob(logits: &[f32], id: u32) -> f64 {
    let most = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from(x - most).exp()).sum();
    f64::from(logits[id as usize] - most) - sum.ln()
}

/// The same by candle, which is fed one id at a time.
fn one_by_one(candle: &mut Candle, ids: &[u32]) -> Vec<f64> {
    candle.forget();
    let next = |pair: &[u32]| logprob(&candle.feed(&pair[..1]).unwrap(), pair[1]);
    ids.windows(2).map(next).collect()
}

/// The same, all that comes before an id read at once; only for every ninth id, as `ours` is cut by
/// [`every_ninth`].
fn at_once(candle: &mut Candle, ids: &[u32]) -> Vec<f64> {
    let next = |n: usize| {
        candle.forget();
        logprob(&candle.feed(&ids[..n]).unwrap(), ids[n])
    };
    (1..ids.len()).step_by(9).map(next).collect()
}

fn every_ninth(all: &[f64]) -> Vec<f64> {
    all.iter().copied().step_by(9).collect()
}

/// The largest difference.
fn off(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, |most, x| if x.is_nan() { f64::INFINITY } else { most.max(x) })
}

/// Differences from what candle says when it is fed one id at a time, and all at once.
fn offs(ours: &[f64], gguf: &[u8], ids: &[u32]) -> [f64; 2] {
    let mut candle = candle(gguf);
    [off(ours, &one_by_one(&mut candle, ids)), off(&every_ninth(ours), &at_once(&mut candle, ids))]
}

/// Families, with types of weights and what log-probabilities may be off by.
fn cases() -> impl Iterator<Item = (&'static str, (Dtype, f64))> {
    some(FAMILIES.into_iter().flat_map(|family| FORMATS.map(|format| (family, format))), 6)
}

#[test]
fn log_probabilities_are_those_of_candle() {
    let ids = ids(N);
    for (family, (dtype, bound)) in cases() {
        let gguf = gguf(&model(family, 1, dtype));
        let offs = offs(&ours(&gguf, &ids), &gguf, &ids);
        eprintln!("{family}, {dtype:?}: {offs:?}");
        assert!(offs.iter().all(|off| *off < bound), "{family}, {dtype:?}: {offs:?}, bound {bound}");
    }
}

type Change = fn(&mut RandomModel);

/// Defects of a model, and whether rounded activations leave them visible; where a model has nothing of the
/// kind, nothing changes.
const MUTANTS: [(&str, bool, Change); 4] = [
    ("other weights", true, |model| model.seed += 1),
    ("another rotary base", false, |model| model.rope_base *= 1.5),
    ("half the window", true, |model| model.window /= 2),
    ("another rotary base in layers with a window", false, |model| {
        if model.window > 0 {
            model.rope_base_swa = 15_000.0;
        }
    }),
];

#[test]
fn wrong_models_are_distinguished_from_those_of_candle() {
    let ids = ids(N);
    for (family, (dtype, bound)) in cases() {
        let right = model(family, 1, dtype);
        let bytes = gguf(&right);
        let theirs = one_by_one(&mut candle(&bytes), &ids);
        for (what, always, change) in MUTANTS {
            let mut wrong = right.clone();
            change(&mut wrong);
            let wrong = gguf(&wrong);
            if wrong == bytes || !(always || matches!(dtype, Dtype::F32 | Dtype::F16)) {
                continue;
            }
            let off = off(&ours(&wrong, &ids), &theirs);
            eprintln!("{family}, {dtype:?}, {what}: {off}");
            assert!(off > 4.0 * bound, "{family}, {dtype:?}, {what}: passes for right, {off}, bound {bound}");
        }
    }
}

/// The errors that the tests above go around. When this fails, candle has been fixed: compare more with it.
#[test]
fn candles_gemma_errs_where_it_is_not_asked() {
    let ids = ids(N);
    let gemma = model("gemma3", 1, Dtype::F32);
    let small = gemma.bytes();
    assert!(
        offs(&ours(&small, &ids), &small, &ids).iter().all(|off| *off > 0.1),
        "its feed-forward has GELU"
    );
    let narrow = gguf(&RandomModel { window: 32, ..gemma });
    assert!(offs(&ours(&narrow, &ids), &narrow, &ids).iter().all(|off| *off > 0.1), "it keeps to windows");
}

/// When this fails, candle needs no `general.dtype` any more.
#[test]
fn candles_qwen3_errs_where_it_is_not_told_a_type() {
    let ids = ids(600);
    let qwen = gguf(&model("qwen3", 1, Dtype::F32));
    let content = Content::read(&mut Cursor::new(&qwen)).unwrap();
    let mut coarse = ModelWeights::from_gguf(content, &mut Cursor::new(&qwen), &Device::Cpu).unwrap();
    let theirs = ids.windows(2).enumerate().map(|(at, pair)| {
        let input = Tensor::new(&[[pair[0]]], &Device::Cpu).unwrap();
        logprob(&coarse.forward(&input, at).unwrap().flatten_all().unwrap().to_vec1().unwrap(), pair[1])
    });
    let ours = ours(&qwen, &ids);
    let [coarse, fine] =
        [theirs.collect::<Vec<_>>(), one_by_one(&mut candle(&qwen), &ids)].map(|theirs| off(&ours, &theirs));
    eprintln!("qwen3 with angles in f16: {coarse}, in f32: {fine}");
    assert!(coarse > FORMATS[0].1 && fine < FORMATS[0].1, "its angles are in f32: {coarse}, {fine}");
}

#[test]
fn what_candle_can_not_do_is_refused() {
    let refusal = |done: anyhow::Result<Vec<f32>>| format!("{:#}", done.unwrap_err());
    let deepseek = RandomModel::tiny_of("deepseek2", 1).bytes();
    let text = Candle::open(&mut Cursor::new(&deepseek)).err().unwrap().to_string();
    assert!(
        text.contains("no quantized deepseek2; use a model of one of llama, qwen2, qwen3, gemma3"),
        "{text}"
    );
    assert!(Candle::open(&mut Cursor::new(b"GGML")).is_err());
    let mut gemma = candle(&gguf(&model("gemma3", 1, Dtype::F32)));
    assert_eq!(gemma.family(), "gemma3");
    gemma.feed(&[1, 2]).unwrap();
    assert!(refusal(gemma.feed(&[3, 4])).contains("one at a time"));
    let mut qwen = candle(&gguf(&model("qwen3", 1, Dtype::F32)));
    qwen.feed(&[1]).unwrap();
    assert!(refusal(qwen.feed(&[3, 4])).contains("forgets single tokens"));
    let mut llama = candle(&gguf(&model("llama", 1, Dtype::F32)));
    assert!(refusal(llama.feed(&[1; 4097])).contains("4096 positions, but 4097 are needed"));
    assert!(refusal(llama.feed(&[])).contains("at least one token"));
}
