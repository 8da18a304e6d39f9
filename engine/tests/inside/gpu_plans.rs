//! Kernels and plans without a GPU: what every kernel becomes for Metal, and how much a pass hands over and
//! reads.

use super::kernels::{KernelConstants, KernelSource, text};
use super::outline::Outline;
use super::plan::candidate_words;
use super::steps::{Extent, PassShape};
use super::weights::GpuMatrix;
use crate::fixtures::{self, Dtype, Experts, Latent, RandomModel, RandomRecurrence};
use crate::model::gguf::Gguf;
use crate::tests::exactness;
use crate::{KvChoice, KvFormat, ModelSource};
use naga::back::msl;
use naga::valid::{Capabilities, ValidationFlags, Validator};
use std::collections::HashMap;
use std::sync::Arc;

fn outline(model: &RandomModel) -> Outline {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    model.write_empty(file.as_file_mut()).expect("a model");
    let gguf = Gguf::open(&ModelSource::Path(file.path().to_owned())).expect("a model");
    Outline::of(&Arc::new(gguf)).expect("an outline")
}

/// The families, small.
fn families() -> Vec<RandomModel> {
    let family = |name| {
        let tiny = RandomModel::tiny_of(name, 7);
        let n_layers = if tiny.kinds.is_some() || tiny.recurrence.is_some() { tiny.n_layers } else { 2 };
        RandomModel { dtype: Dtype::Q8_0, n_layers, ..tiny }
    };
    let mut all: Vec<RandomModel> = fixtures::families().map(family).collect();
    all.push(RandomModel { n_layers: 6, window: 200, ..family("gemma3") });
    all.push(exactness::mixture_of_gemma4());
    all.push(RandomModel { dtype: Dtype::MXFP4, ..family("gpt-oss") });
    let types = [Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::Q4_0, Dtype::Q4_1, Dtype::Q5_0, Dtype::Q5_1];
    let types = types.into_iter().chain([Dtype::Q4K, Dtype::Q5K, Dtype::Q6K, Dtype::IQ4NL, Dtype::Q4KM]);
    all.extend(types.map(|dtype| RandomModel { dtype, d_model: 256, d_ff: 256, ..RandomModel::tiny(7) }));
    all
}

/// Every kernel with all its constants is valid, becomes Metal's language, and stays within what Apple's GPUs
/// have: 31 buffers, 32 KiB of threadgroup memory, 1,024 threads.
#[test]
fn every_kernel_becomes_metal() {
    let mut kernels: HashMap<(&str, KernelConstants), &'static KernelSource> = HashMap::new();
    for (model, has_dot) in families().into_iter().flat_map(|model| [(model.clone(), false), (model, true)]) {
        let outline = Outline { has_dot, ..outline(&model) };
        for kv in [KvFormat::F16, KvFormat::Q8, KvFormat::Q4] {
            for (rows, lone) in [(1, true), (4, true), (8, false), (16, false), (64, false)] {
                let plan = outline
                    .plan(&KvChoice::Uniform(kv), PassShape::new(rows, rows, lone, lone))
                    .expect("a plan");
                kernels.extend(plan.steps.into_iter().map(|s| ((s.source.name, s.constants), s.source)));
            }
        }
    }
    assert!(kernels.len() > 100, "{} kernels", kernels.len());
    for ((name, constants), source) in &kernels {
        let text = text(source, constants);
        let module = naga::front::wgsl::parse_str(&text);
        let module = module.unwrap_or_else(|e| panic!("{name}: {}", e.emit_to_string(&text)));
        let info =
            Validator::new(ValidationFlags::all(), Capabilities::SHADER_FLOAT16_IN_FLOAT32).validate(&module);
        let info = info.unwrap_or_else(|e| panic!("{name}: {}", e.emit_to_string(&text)));
        let shared = module.global_variables.iter().filter(|(_, v)| v.space == naga::AddressSpace::WorkGroup);
        let mut layouter = naga::proc::Layouter::default();
        layouter.update(module.to_ctx()).expect("sizes");
        let shared: u32 = shared.map(|(_, v)| layouter[v.ty].size.next_multiple_of(16)).sum();
        assert!(shared <= 32 << 10, "{name}: {shared} bytes are shared");
        assert!(source.bindings.len() <= 31, "{name}");
        let threads: u32 = module.entry_points[0].workgroup_size.iter().product();
        assert!(threads <= 1024, "{name}: {threads} threads");
        let options =
            msl::Options { lang_version: (2, 4), fake_missing_bindings: true, ..msl::Options::default() };
        let metal = msl::write_string(&module, &info, &options, &msl::PipelineOptions::default());
        let (metal, _) = metal.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(metal.contains("kernel void"), "{name}");
    }
    eprintln!("{} kernels", kernels.len());
}

/// No kernel has an endless loop: drivers are told so (see `Kernels::compile`). Each loop steps one number towards a
/// bound (a number of tokens is far from the largest there is), or looks for a place below a constant.
#[test]
fn every_loop_ends() {
    let sources = KernelSource::all().into_iter().flat_map(|source| source.files);
    let sources: std::collections::BTreeSet<&str> = sources.copied().collect();
    assert!(sources.len() > 25, "{} sources", sources.len());
    let (mut n_loops, mut odd) = (0, Vec::new());
    for line in sources.iter().flat_map(|source| source.lines()).map(str::trim) {
        let code = line.split("//").next().unwrap_or_default();
        assert!(!code.contains("loop "), "{line}");
        if let Some(condition) = code.strip_prefix("while (") {
            n_loops += 1;
            let has_bound = ["s + 1u < N_SEGMENTS &&", "bin < BINS &&"];
            assert!(has_bound.iter().any(|bound| condition.starts_with(bound)), "{line}");
        }
        let Some(head) = code.strip_prefix("for (") else { continue };
        n_loops += 1;
        let parts: Vec<&str> = head.trim_end_matches(['{', ' ', ')']).split("; ").collect();
        let [first, bound, step] = parts[..] else { panic!("{line}") };
        let name =
            first.strip_prefix("var ").map_or("n", |first| first.split(' ').next().unwrap_or_default());
        let goes_up = step.starts_with(&format!("{name}++")) || step.starts_with(&format!("{name} += "));
        let halves = step == format!("{name} = {name} >> 1u");
        let doubles = step == format!("{name} = {name} << 1u");
        let is_below = bound.starts_with(&format!("{name} < "))
            || bound.starts_with(&format!("{name} * 256u < "))
            || bound.starts_with(&format!("{name} + 1u < "))
            || [" <= 255u", " <= sequence.n"].iter().any(|most| bound == format!("{name}{most}"));
        let ends = (goes_up || doubles) && is_below || halves && bound == format!("{name} > 0u");
        odd.extend((!ends).then_some(line));
    }
    assert!(odd.is_empty(), "{odd:#?}");
    assert!(n_loops > 80, "{n_loops} loops");
}

/// The families in the shapes of real models.
fn shapes() -> Vec<(String, RandomModel)> {
    let mut all = Vec::new();
    for size in ["1b", "3b", "8b"] {
        let plain = RandomModel { dtype: Dtype::Q4KM, ..RandomModel::shape(size, 7).expect("a shape") };
        for name in ["llama", "qwen2", "qwen3"] {
            all.push((format!("{name} {size}"), RandomModel { architecture: name.into(), ..plain.clone() }));
        }
        let window = RandomModel { architecture: "gemma3".into(), window: 1024, ..plain.clone() };
        all.push((format!("gemma3 {size}"), window));
        let experts = |n, used, shared, d_ff, leading_dense| {
            Some(Experts { n, used, shared, d_ff, leading_dense, ..Experts::default() })
        };
        let scale = plain.d_model / 1024;
        let latent = RandomModel {
            latent: Some(Latent { rank: 512, q_rank: 0, nope: 128, rope: 64, value: 128 }),
            experts: experts(64, 6, 2, 256 * scale, 1),
            head_dim: 192,
            n_layers: 27,
            ..plain.clone()
        };
        all.push((format!("deepseek2 {size}"), RandomModel { architecture: "deepseek2".into(), ..latent }));
        let oss = RandomModel {
            dtype: Dtype::MXFP4,
            experts: experts(32, 4, 0, plain.d_model, 0),
            window: 128,
            ..plain.clone()
        };
        all.push((format!("gpt-oss {size}"), RandomModel { architecture: "gpt-oss".into(), ..oss }));
        let (heads, groups) = (16 * scale, 8 * scale);
        let recurrence =
            RandomRecurrence { layers: "rrra".into(), taps: 4, heads, value: 128, groups, key: 128 };
        let hybrid = RandomModel { recurrence: Some(recurrence), ..plain.clone() };
        all.push((format!("qwen35 {size}"), RandomModel { architecture: "qwen35".into(), ..hybrid }));
    }
    all
}

/// What a decoded token costs, by the plan: dispatches and bytes of weights.
#[test]
fn a_token_is_few_dispatches_and_the_weights_once() {
    // What is read back for a token: its likeliest ones.
    assert!(4 * candidate_words(262_144) <= 16 << 10);
    for (name, model) in shapes() {
        let outline = outline(&model);
        let plan =
            outline.plan(&KvChoice::Uniform(KvFormat::Q4), PassShape::new(1, 1, true, true)).expect("a plan");
        // Blocks and states are sealed once in 256 tokens.
        let is_rare = |extent: &Extent| matches!(extent, Extent::Sealed | Extent::Kept);
        let runs = |step: &&super::Dispatch| !step.groups.iter().any(is_rare);
        let n = plan.steps.iter().filter(runs).count();
        let of_layer = |l| plan.steps.iter().filter(|step| runs(step) && step.layer == Some(l)).count();
        let per_layer = (0..outline.spec.layers.len()).map(of_layer).max().unwrap_or(0);
        let read: u64 = plan.steps.iter().map(|step| step.work.weight_bytes).sum();
        // Experts that are not used are not read; nor is the table of embeddings.
        let of_layer = |layer: &crate::model::weights::Layer<GpuMatrix>| {
            let Some(crate::model::weights::FeedForward::Experts(mixture)) = &layer.feed_forward else {
                return 0;
            };
            let one = &mixture.experts[0];
            let matrices = one.inputs().into_iter().chain([&one.down]);
            let of_one: u64 = matrices.map(GpuMatrix::n_bytes).sum();
            of_one * (mixture.spec.n - mixture.spec.used) as u64
        };
        let unused: u64 = outline.weights.layers.iter().map(of_layer).sum();
        let most = outline.bytes[1] - unused;
        eprintln!(
            "{name}: {n} dispatches ({per_layer} a layer), {} MiB of weights in a file of {} MiB, {:.3} of \
             it read",
            most >> 20,
            outline.bytes[0] >> 20,
            read as f64 / most as f64
        );
        assert!(read as f64 <= 1.1 * most as f64, "{name}: {read} bytes of {most}");
        assert!(outline.bytes[1] as f64 <= 1.1 * outline.bytes[0] as f64, "{name}");
        let of_layer = plan.steps.iter().filter(|step| runs(step) && step.layer == Some(1));
        let kernels: Vec<&str> = of_layer.map(|step| step.source.name).collect();
        eprintln!("  {}", kernels.join(", "));
        assert!(per_layer <= 11, "{name}: {per_layer} dispatches a layer");
    }
}
