//! The GPU by the tests of every device: near the reference, and exact. An adapter that is software serves.

use super::exactness::{self, Bench};
use super::oracle::{self, near};
use crate::device::gpu::{self, Gpu};
use crate::device::{Device, measure};
use crate::fixtures::RandomModel;
use crate::model::gguf::Gguf;
use crate::{KvFormat, ModelSource};
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
