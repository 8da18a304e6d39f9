//! The GPU by the tests of every device: near the reference, and exact. An adapter that is software serves.

use super::exactness::{self, Bench};
use super::oracle::{self, BOUNDS, near};
use super::{Numbers, states};
use crate::device::gpu::{self, Gpu};
use crate::device::reference::Reference;
use crate::device::{Device, Output, Pass, measure};
use crate::fixtures::{Dtype, Experts, RandomModel, SAME_AS_OTHERS};
use crate::model::gguf::Gguf;
use crate::{DeviceChoice, ErrorKind, KvChoice, KvFormat, ModelSource};
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

/// Software is slow: on it what finds most is tried, on a GPU all, where one is demanded.
fn thorough() -> bool {
    std::env::var_os("GREENROOM_TEST_GPU").is_some() && !gpu::list().remove(0).is_software()
}

fn load(model: &RandomModel) -> Gpu {
    let best = gpu::list().remove(0);
    Gpu::load(&gguf_of(model), Some(&best.name), &mut |_, _| {}).expect("a device")
}

#[test]
fn the_gpu_is_near_the_reference() {
    if !is_here("the_gpu_is_near_the_reference") {
        return;
    }
    // Each kind of layer once; the others are those that conformance has on a GPU.
    let models = oracle::models().into_iter().filter(|(_, name)| !SAME_AS_OTHERS.contains(name));
    for (i, (model, name)) in models.enumerate() {
        let [cpu, reference] = oracle::devices(&model);
        let mut gpu = load(&model);
        let tokens: Vec<u32> = (0..530u32).map(|i| i.wrapping_mul(2_654_435_761) % 260).collect();
        gpu.calibrate(&measure(&*cpu, &tokens).expect("a calibration"));
        let gpu: Arc<dyn Device> = Arc::new(gpu);
        near(name, &gpu, &reference, &model, if thorough() && i % 4 == 0 { &BOUNDS } else { &BOUNDS[..1] });
    }
}

fn bench(model: &RandomModel, format: KvFormat) -> Bench {
    let best = gpu::list().remove(0);
    let open = |gguf: &Arc<Gguf>| -> Box<dyn Device> {
        Box::new(Gpu::load(gguf, Some(&best.name), &mut |_, _| {}).expect("a device"))
    };
    Bench::on(model, format, open)
}

/// Around the borders of blocks, for each number of rows that has kernels of its own.
const STEPS: [(usize, usize, usize); 4] = [(250, 262, 1), (505, 519, 1), (505, 519, 2), (498, 519, 7)];

/// The law, on this adapter: in chunks, in steps and restored, every kind of layer, in four bits; those that
/// are cached each in their own way (whole, in a window, as a latent) in every format; taken back, forked and
/// beside others, a family in every format, and those that are cached in their own way in four bits. Or of
/// all this what finds most.
#[test]
fn the_gpu_is_exact() {
    if !is_here("the_gpu_is_exact") {
        return;
    }
    for (i, model) in exactness::models().iter().enumerate() {
        for format in exactness::FORMATS {
            let is_kind = [0, 5, 6].contains(&i);
            if format != KvFormat::Q4 && !(thorough() && is_kind) || !thorough() && ![0, 5].contains(&i) {
                continue;
            }
            let began = std::time::Instant::now();
            let bench = bench(model, format);
            bench.check_chunks(&[300]);
            bench.check_steps(if i == 0 { &STEPS } else { &STEPS[1..3] });
            bench.check_restored(&[512]);
            if i == 0 || format == KvFormat::Q4 && (is_kind || model.kinds.is_some()) {
                bench.check_rewound(&[257]);
                bench.check_batches(if i == 0 { 0..=3 } else { 3..=3 });
            }
            eprintln!("{} in {format:?}: {:.0?}", model.architecture, began.elapsed());
        }
    }
}

/// Codes of many rows that are multiplied as floats, as on Metal, give the bits that bytes give: those of a row
/// alone, in every type, with experts and without.
#[test]
fn floats_of_codes_give_the_same_bits() {
    if !is_here("floats_of_codes_give_the_same_bits") {
        return;
    }
    let plain = |dtype| RandomModel { dtype, n_layers: 1, d_model: 256, d_ff: 256, ..RandomModel::tiny(7) };
    let mut models =
        [Dtype::Q4K, Dtype::Q5K, Dtype::Q6K, Dtype::Q8_0, Dtype::IQ4NL, Dtype::MXFP4].map(plain).to_vec();
    models.push(RandomModel { n_layers: 2, dtype: Dtype::Q8_0, ..RandomModel::tiny_of("deepseek2", 7) });
    for model in models {
        let (bytes, mut floats) = (load(&model), load(&model));
        floats.without_dot();
        floats.check_rows().expect("the bits of a row alone");
        let layout = Arc::new(bytes.spec().kv_layout(&KvChoice::Uniform(KvFormat::F16)).expect("a layout"));
        let ids: Vec<u32> = (0..70).map(|i| i * 37 % 260).collect();
        let pass = Pass { wanted: (0..ids.len()).collect(), ..Pass::alone(&ids, &layout) };
        let read = |gpu: &Gpu| match gpu.run(&pass, &mut *gpu.cache(layout.clone()), None).expect("a pass") {
            Output::Logits(logits) => logits.into_iter().map(f32::to_bits).collect::<Vec<_>>(),
            _ => panic!("all logits were wanted"),
        };
        assert!(read(&bytes) == read(&floats), "{:?}", model.dtype);
    }
}

/// The law where rows are sent to experts: many rows are sorted by these, more slots than are staged at a time.
#[test]
fn experts_on_the_gpu_are_exact() {
    if !is_here("experts_on_the_gpu_are_exact") {
        return;
    }
    for (name, used) in [("deepseek2", 4), ("gpt-oss", 2), ("qwen2moe", 2)] {
        let tiny = RandomModel::tiny_of(name, 7);
        let experts = tiny.experts.map(|experts| Experts { n: 9, used, ..experts });
        let bench = bench(&RandomModel { n_layers: 2, dtype: Dtype::Q8_0, experts, ..tiny }, KvFormat::Q4);
        bench.check_chunks(&[300]);
        bench.check_steps(&[(20, 26, 1), (300, 340, 33)]);
    }
}

/// Recurrent layers: in chunks, in steps and beside others; and, as the engine has them, extended, restored,
/// forked, taken back, with guesses, with memory for some.
#[test]
fn states_on_the_gpu_are_exact() {
    if !is_here("states_on_the_gpu_are_exact") {
        return;
    }
    let device = DeviceChoice::Gpu(Some(gpu::list().remove(0).name));
    for (i, model) in states::models().iter().enumerate() {
        let began = std::time::Instant::now();
        let bench = bench(model, KvFormat::Q4);
        bench.check_chunks(&[if i == 0 { 255 } else { 300 }]);
        bench.check_steps(&STEPS[1..2]);
        bench.check_batches(2..=2);
        if thorough() {
            states::check_turns(model, &device, [true]);
        }
        if thorough() || i == 0 {
            states::check_history(model, &device, Numbers(i as u64), if thorough() { 60 } else { 6 });
        }
        eprintln!("{}: {:.0?}", model.architecture, began.elapsed());
    }
}

/// The likeliest tokens of a row are those that all logits say, and what is left out weighs what they say.
#[test]
fn the_likeliest_tokens_are_sorted_out() {
    if !is_here("the_likeliest_tokens_are_sorted_out") {
        return;
    }
    let gpu = load(&RandomModel { n_vocab: 5000, ..RandomModel::tiny(7) });
    gpu.check_rows().expect("the same bits alone and among others");
    let layout = Arc::new(gpu.spec().kv_layout(&KvChoice::Uniform(KvFormat::F16)).expect("a layout"));
    for temperature in [0.0, 0.01, 0.5, 3.0] {
        let mut cache = gpu.cache(layout.clone());
        let mut pass = Pass::alone(&[5, 17, 100], &layout);
        pass.wanted = vec![0, 2];
        pass.best = Some(vec![temperature; 2]);
        let before = gpu.traffic();
        let Output::Best(found) = gpu.run(&pass, &mut *cache, None).expect("a pass") else {
            panic!("the likeliest tokens were wanted");
        };
        let (submits, bytes) = gpu.traffic();
        assert_eq!(submits - before.0, 1, "submits of a pass");
        assert!(bytes - before.1 <= 2 * (16 << 10), "{bytes} bytes read back for two tokens");
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

/// Where one logit is not a number the host looks at all of them, and refuses the row.
#[test]
fn the_likeliest_tokens_of_a_row_with_a_nan_are_none() {
    if !is_here("the_likeliest_tokens_of_a_row_with_a_nan_are_none") {
        return;
    }
    let model = RandomModel { n_vocab: 5000, ..RandomModel::tiny(7) };
    for (token, temperature) in [(4999, 0.0), (300, 1.0)] {
        let damage = |name: &str, numbers: &mut [f32]| {
            if name == "output.weight" {
                numbers[token * model.d_model..][..model.d_model].fill(f32::NAN);
            }
        };
        let bytes: &'static [u8] = model.bytes_with(&damage).leak();
        let gguf = Gguf::open(&ModelSource::Bundled("damaged", bytes)).expect("a model");
        let best = gpu::list().remove(0);
        let gpu = Gpu::load(&Arc::new(gguf), Some(&best.name), &mut |_, _| {}).expect("a device");
        let layout = Arc::new(gpu.spec().kv_layout(&KvChoice::Uniform(KvFormat::F16)).expect("a layout"));
        let (mut pass, mut cache) = (Pass::alone(&[5, 17, 100], &layout), gpu.cache(layout));
        (pass.wanted, pass.best) = (vec![2], Some(vec![temperature]));
        let Output::Best(found) = gpu.run(&pass, &mut *cache, None).expect("a pass") else {
            panic!("the likeliest tokens were wanted");
        };
        assert!(found[0].candidates.is_empty());
        let logits = gpu.logits(found[0].row).expect("all logits");
        assert_eq!(logits.iter().position(|x| x.is_nan()), Some(token));
    }
}

/// Matrices of every type, for one row and for many, are close to their exact values.
#[test]
fn products_are_those_of_the_numbers() {
    if !is_here("products_are_those_of_the_numbers") {
        return;
    }
    use Dtype::*;
    let all = [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4K, Q5K, Q6K, IQ4NL, MXFP4, Q2K, Q3K, IQ4XS];
    let finds_most = |dtype: &Dtype| matches!(dtype, F16 | Q4K | Q6K | Q8_0 | MXFP4 | Q3K);
    for dtype in all.into_iter().filter(|dtype| thorough() || finds_most(dtype)) {
        let model = RandomModel { dtype, n_layers: 1, d_model: 256, d_ff: 256, ..RandomModel::tiny(7) };
        let (gpu, reference) = (load(&model), Reference::load(&gguf_of(&model)).expect("a device"));
        for n in [1, 21] {
            let off = off(&gpu, &reference, n);
            // Coded matrices meet rows in 8 bits.
            let bound = if matches!(dtype, F32 | F16 | BF16) { 1e-4 } else { 0.03 };
            assert!(off < bound, "{dtype:?}, {n} rows: {off}");
            eprintln!("{dtype:?}, {n} rows: {off:.5}");
        }
    }
}

/// Root mean square of the difference of all logits of `n` rows from the reference's, over that of these.
fn off(gpu: &Gpu, reference: &Reference, n: u32) -> f64 {
    let layout = Arc::new(gpu.spec().kv_layout(&KvChoice::Uniform(KvFormat::F16)).expect("a layout"));
    let ids: Vec<u32> = (0..n).map(|i| i * 37 % 260).collect();
    let mut pass = Pass::alone(&ids, &layout);
    pass.wanted = (0..ids.len()).collect();
    let read = |device: &dyn Device| {
        let logits = device.run(&pass, &mut *device.cache(layout.clone()), None).expect("a pass");
        let Output::Logits(logits) = logits else { panic!("all logits were wanted") };
        logits
    };
    let (found, expected) = (read(gpu), read(reference));
    let square = |x: f32| f64::from(x) * f64::from(x);
    let off: f64 = found.iter().zip(&expected).map(|(a, b)| square(a - b)).sum();
    (off / expected.iter().map(|x| square(*x)).sum::<f64>()).sqrt()
}

/// Faults of kernels are seen: by the distance from the reference.
#[test]
fn faults_are_seen() {
    if !is_here("faults_are_seen") {
        return;
    }
    let [stage, weigh] = [
        "stage(taken, first, thread);\n        workgroupBarrier();",
        "weights[q * 256u + token] = scores[q];\n        }\n        workgroupBarrier();",
    ];
    let faults = [
        ("none", "", ""),
        ("no barrier behind staging", stage, &stage[..stage.len() - "workgroupBarrier();".len()]),
        ("no barrier behind scores", weigh, &weigh[..weigh.len() - "workgroupBarrier();".len()]),
        ("a unit too far", "taken.here.row_units + u;", "taken.here.row_units + u + 1u;"),
        ("the other half's scale", "fma(by.y * own.y", "fma(by.y * own.x"),
        ("squares of half a row", "i < 2u * UNITS; i += OUTS", "i < UNITS; i += OUTS"),
        ("codes without their norm", "x *= vectors[params.code_norm + column + j];", ""),
        (
            "another head's keys",
            "own * GROUP + h) * (K_DIM / 4u)",
            "own * GROUP + GROUP - 1u - h) * (K_DIM / 4u)",
        ),
        ("the worst experts", "u32(n_better < N_USED)", "u32(n_better >= N_EXPERTS - N_USED)"),
        ("experts swapped", "vec2<u32>(chosen[slot],", "vec2<u32>(chosen[N_USED - 1u - slot],"),
        ("what is shared left out", "taken.each -= N_EXPERTS;", "taken.each = 0u;"),
        ("a slot sorted twice", "sorted[at] = first + i;", "sorted[at] = first + (i & 0xfffffffeu);"),
        ("slots that are not weighed", "bitcast<f32>(table[2u * at + 1u])", "1.0"),
    ];
    let model =
        RandomModel { dtype: Dtype::Q8_0, d_model: 512, n_layers: 2, ..RandomModel::tiny_of("deepseek2", 7) };
    check_faults(&model, &faults, [0.03, 0.06]);
}

/// The same in recurrent layers.
#[test]
fn faults_of_recurrent_layers_are_seen() {
    if !is_here("faults_of_recurrent_layers_are_seen") {
        return;
    }
    let faults = [
        ("none", "", ""),
        ("a convolution without its last input", "tap < TAPS; tap++", "tap + 1u < TAPS; tap++"),
        ("inputs of the token before", "places[entry + tap + 1u - TAPS]", "places[entry + tap - TAPS]"),
        ("queries as long as keys", "group.x < N_QUERIES", "false"),
        ("decays and strengths swapped", "CHANNELS + 2u * head + 1u];", "CHANNELS + 2u * head];"),
        ("another head's keys", "head % N_KEY_HEADS,", "(head + 1u) % N_KEY_HEADS,"),
        ("what is there is not taken off", "change -= tree(turn + column);", ""),
        ("gates that are not applied", "y *= silu(products[row * WIDTH + OUTER + first + i]);", ""),
    ];
    let model = RandomModel { dtype: Dtype::F32, ..RandomModel::tiny_of("qwen35", 7) };
    check_faults(&model, &faults, [1e-4, 1e-3]);
}

/// `right`, and `wrong`: what is no fault is nearer to the reference, faults are farther.
fn check_faults(
    model: &RandomModel,
    faults: &[(&'static str, &'static str, &'static str)],
    [right_off, wrong_off]: [f64; 2],
) {
    let reference = Reference::load(&gguf_of(model)).expect("a device");
    const MAX_TRIES: usize = 8;
    let mut unseen = Vec::new();
    for (name, right, wrong) in faults.iter().copied() {
        let mut gpu = load(model);
        // As at the opening of a GPU that is not software.
        gpu.check_rows().expect("the same bits alone and among others");
        if !right.is_empty() {
            gpu.fault(right, wrong);
        }
        let is_wrong = |off: f64| off.is_nan() || off > wrong_off;
        let mut distance = off(&gpu, &reference, 21);
        // A missing barrier shows only where threads happen to run in another order.
        for _ in 0..if right.is_empty() { 0 } else { MAX_TRIES } {
            if is_wrong(distance) {
                break;
            }
            distance = off(&gpu, &reference, 21);
        }
        eprintln!("{name}: {distance:.5}");
        let is_seen = if right.is_empty() { distance < right_off } else { is_wrong(distance) };
        unseen.extend((!is_seen).then_some((name, distance)));
    }
    assert!(unseen.is_empty(), "{unseen:?}");
}

/// Faults that no distance shows, for they only change the order of a sum, are seen by the law.
#[test]
fn an_order_that_depends_on_rows_is_seen() {
    if !is_here("an_order_that_depends_on_rows_is_seen") {
        return;
    }
    // Where pieces are merged, not where they are written.
    let merge = [
        "of_head * pass_.n_partials + piece) * STRIDE;\n            let f",
        "of_head * pass_.n_partials + n - 1u - piece) * STRIDE;\n            let f",
    ];
    // Of many rows alone.
    let lanes = ["(u + 1u) % SHARE == 0u || u + 1u == UNITS", "u + 1u == UNITS"];
    let wide = RandomModel { d_model: 1024, n_layers: 1, dtype: Dtype::Q8_0, ..RandomModel::tiny(7) };
    let best = gpu::list().remove(0);
    for (name, model, fault, step) in [
        ("pieces merged backwards", RandomModel::tiny(7), Some(merge), (516, 519, 1)),
        ("no fault", wide.clone(), None, (20, 40, 1)),
        ("lanes that are not apart", wide, Some(lanes), (20, 40, 1)),
    ] {
        let bench = Bench::on(&model, KvFormat::Q4, |gguf| {
            let mut gpu = Gpu::load(gguf, Some(&best.name), &mut |_, _| {}).expect("a device");
            fault.into_iter().for_each(|[right, wrong]| gpu.fault(right, wrong));
            Box::new(gpu)
        });
        let law = std::panic::AssertUnwindSafe(|| bench.check_steps(&[step]));
        assert_eq!(std::panic::catch_unwind(law).is_err(), fault.is_some(), "{name}");
    }
}

/// A GPU that is lost, out of memory, or given a kernel that it can't take says so; nothing panics, and
/// nothing wrong is read.
#[test]
fn failures_are_reported() {
    if !is_here("failures_are_reported") {
        return;
    }
    let name = gpu::list().remove(0).name;
    let layout =
        |gpu: &Gpu| Arc::new(gpu.spec().kv_layout(&KvChoice::Uniform(KvFormat::Q4)).expect("a layout"));
    let gpu = load(&RandomModel::tiny(7));
    let e = gpu.fails_to_compile().expect_err("no kernel");
    assert!(e.kind() == ErrorKind::Device && e.to_string().contains("compiling the kernel"), "{e}");
    assert!(e.to_string().contains(&name), "{e}");
    let e = gpu.fails_to_allocate().expect_err("no such memory");
    assert!(e.kind() == ErrorKind::Device && e.to_string().contains("memory"), "{e}");
    // It continues after both, but not after the device is lost.
    let layout = layout(&gpu);
    let pass = Pass::alone(&[1, 2, 3], &layout);
    let mut cache = gpu.cache(layout);
    assert!(gpu.run(&pass, &mut *cache, None).is_ok());
    gpu.lose();
    let e = gpu.run(&pass, &mut *cache, None).map(|_| ()).expect_err("it is lost");
    assert!(e.kind() == ErrorKind::Device, "{e}");
    assert!(cache.export_rows(pass.spans[0].rows[0], 0..1).is_err());
    let e = Gpu::load(&gguf_of(&RandomModel::tiny(7)), Some("nonesuch"), &mut |_, _| {}).map(|_| ());
    let e = e.expect_err("no such GPU");
    assert!(e.to_string().contains("nonesuch") && e.to_string().contains(&name), "{e}");
}

fn gguf_of(model: &RandomModel) -> Arc<Gguf> {
    let bytes: &'static [u8] = model.bytes().leak();
    Arc::new(Gguf::open(&ModelSource::Bundled("random", bytes)).expect("a model"))
}
