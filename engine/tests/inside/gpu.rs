//! The GPU by the tests of every device: near the reference, and exact. An adapter that is software serves.

use super::exactness::{self, Bench};
use super::oracle::{self, near};
use crate::device::gpu::{self, Gpu};
use crate::device::{Device, Logits, Pass, measure};
use crate::fixtures::RandomModel;
use crate::model::gguf::Gguf;
use crate::{KvChoice, KvFormat, ModelSource};
use std::sync::Arc;

/// Whether there is a GPU to test on. Where `GREENROOM_TEST_GPU` is set, as in CI, there must be one.
fn is_here(test: &str) -> bool {
    let found = gpu::list();
    if let Some(best) = found.first() {
        eprintln!("{test}: on {} ({})", best.name, best.driver);
        return true;
    }
    assert!(
        std::env::var_os("GREENROOM_TEST_GPU").is_none(),
        "{test}: no adapter; install mesa-vulkan-drivers"
    );
    eprintln!("{test}: skipped, there is no adapter (Debian: mesa-vulkan-drivers)");
    false
}

fn load(model: &RandomModel) -> Gpu {
    let bytes: &'static [u8] = model.bytes().leak();
    let gguf = Arc::new(Gguf::open(&ModelSource::Bundled("random", bytes)).expect("a model"));
    let best = gpu::list().remove(0);
    Gpu::load(&gguf, Some(&best.name), &mut |_, _| {}).expect("a device")
}

#[test]
fn the_gpu_is_near_the_reference() {
    if !is_here("the_gpu_is_near_the_reference") {
        return;
    }
    for (model, name) in oracle::models() {
        let [cpu, reference] = oracle::devices(&model);
        let mut gpu = load(&model);
        let tokens: Vec<u32> = (0..530u32).map(|i| i.wrapping_mul(2_654_435_761) % 260).collect();
        gpu.calibrate(&measure(&*cpu, &tokens).expect("a calibration"));
        let gpu: Arc<dyn Device> = Arc::new(gpu);
        near(name, &gpu, &reference, &model);
    }
}

fn bench(model: &RandomModel, format: KvFormat) -> Bench {
    let best = gpu::list().remove(0);
    let open = |gguf: &Arc<Gguf>| -> Box<dyn Device> {
        Box::new(Gpu::load(gguf, Some(&best.name), &mut |_, _| {}).expect("a device"))
    };
    Bench::on(model, format, open)
}

/// The law, on this adapter: a family in every format, and every family in four bits.
#[test]
fn the_gpu_is_exact() {
    if !is_here("the_gpu_is_exact") {
        return;
    }
    let [first, others @ ..] = exactness::models();
    for format in exactness::FORMATS {
        let bench = bench(&first, format);
        bench.check_chunks(&[37, 300]);
        bench.check_rewound(&[257]);
        bench.check_batches(1..=3);
        bench.check_restored(&[300]);
    }
    for model in &others {
        let bench = bench(model, KvFormat::Q4);
        bench.check_chunks(&[300]);
        bench.check_rewound(&[511]);
        bench.check_batches(1..=1);
        bench.check_restored(&[512]);
    }
}

/// The likeliest tokens of a row are those that all logits say, and what is left out weighs what they say.
#[test]
fn the_likeliest_tokens_are_sorted_out() {
    if !is_here("the_likeliest_tokens_are_sorted_out") {
        return;
    }
    let gpu = load(&RandomModel { n_vocab: 5000, ..RandomModel::tiny(7) });
    let layout = Arc::new(gpu.spec().kv_layout(&KvChoice::Uniform(KvFormat::F16)).expect("a layout"));
    for temperature in [0.0, 0.01, 0.5, 3.0] {
        let mut cache = gpu.cache(layout.clone());
        let mut pass = Pass::alone(&[5, 17, 100], &layout);
        pass.wanted = vec![0, 2];
        pass.best = Some(vec![temperature; 2]);
        let Logits::Best(found) = gpu.run(&pass, &mut *cache, None).expect("a pass") else {
            panic!("the likeliest tokens were wanted");
        };
        for best in found {
            let logits = gpu.logits(best.row).expect("all logits");
            let top = logits.iter().copied().fold(f32::MIN, f32::max);
            let is_in = |id: u32| best.candidates.iter().any(|(other, _)| *other == id);
            assert!(best.candidates.iter().all(|(id, x)| logits[*id as usize] == *x && *x >= best.least));
            let outside = (0..).zip(&logits).filter(|(id, _)| !is_in(*id)).map(|(_, x)| *x);
            let outside: Vec<f32> = outside.collect();
            assert_eq!(outside.len() + best.candidates.len(), logits.len(), "each once");
            assert!(best.candidates.is_empty() || outside.iter().all(|x| *x < best.least));
            let t = f64::from(if temperature > 0.0 { temperature } else { 1.0 });
            let rest: f64 = outside.iter().map(|x| (f64::from(x - top) / t).exp()).sum();
            let off = (f64::from(best.rest) - rest).abs();
            assert!(best.top == top && off <= 1e-3 * rest + 1e-9, "{} is not {rest}", best.rest);
            eprintln!("at {temperature}: {} candidates, {rest:.1e} beside them", best.candidates.len());
        }
    }
}
