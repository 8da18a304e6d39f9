//! Embeddings: near the reference in each family, and the same bits however a text is read and whatever is at
//! work beside it.

use super::exactness::{self, Bench};
use super::oracle;
use crate::device::Device;
use crate::fixtures::RandomModel;
use crate::scoring::embedding::Pooling;
use crate::{
    Conversation, Engine, EngineConfig, ErrorKind, Event, KvChoice, KvFormat, ModelSource, Request,
    SessionKey,
};
use greenroom_kernels::Isa;
use greenroom_kernels::threads::ThreadPool;
use std::sync::Arc;

/// Past the border of the second block.
const N: usize = 530;

fn tokens() -> Vec<u32> {
    (0..N as u32).map(|i| i.wrapping_mul(2_654_435_761) % 260).collect()
}

/// The embedding of a text that is read in chunks of `most` tokens.
fn embedded(device: &Arc<dyn Device>, ids: &[u32], most: usize) -> Vec<f32> {
    let layout = device.spec().kv_layout(&KvChoice::Uniform(KvFormat::F16)).unwrap();
    let mut pooling = Pooling::new(device, Arc::new(layout));
    while !pooling.step(ids, most).unwrap() {}
    pooling.finish()
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

#[test]
fn embeddings_are_near_the_reference() {
    for (model, name) in oracle::models() {
        let [cpu, reference] = oracle::devices(&model);
        let [ours, theirs] = [&cpu, &reference].map(|device| embedded(device, &tokens(), N));
        assert_eq!(ours.len(), cpu.spec().d_model);
        let off = 1.0 - cosine(&ours, &theirs);
        eprintln!("{name}: {off:.1e}");
        assert!(off < 1e-4, "{name}: {off}");
    }
}

#[test]
fn chunks_instruction_sets_and_threads_change_no_bit() {
    // Each kind of cache once: what an embedding has of its own is the end of a pass.
    for model in exactness::models().into_iter().step_by(5) {
        let bench = |isa| Bench::with(&model, KvFormat::F16, isa);
        let ids = &tokens()[..300];
        let whole = embedded(&bench(Isa::SCALAR).device, ids, ids.len());
        for isa in Isa::available() {
            let device = bench(isa).device;
            assert_eq!(embedded(&device, ids, 77), whole, "{isa:?}");
            let mut pool = ThreadPool::new(2).unwrap();
            assert_eq!(pool.install(|| embedded(&device, ids, 256)), whole, "{isa:?}");
        }
    }
}

fn engine(cache_memory: u64) -> Engine {
    let model = ModelSource::Bundled("tiny", RandomModel::tiny(3).bytes().leak());
    Engine::open(EngineConfig { cache_memory, ..EngineConfig::new(model) }).unwrap()
}

fn turn(name: &str) -> Request {
    let conversation = Conversation { next: "What is the time? ".repeat(30), ..Conversation::default() };
    Request { max_tokens: 40, min_tokens: 40, ..Request::new(SessionKey::new("r", name), conversation) }
}

fn texts() -> Vec<String> {
    ["The tide comes in.", "A clock.", "The tide comes in.", &"Bees. ".repeat(120)].map(String::from).to_vec()
}

#[test]
fn an_embedding_is_the_same_alone_and_among_others() {
    let alone = engine(1 << 30);
    let one = |text: &String| alone.blocking_embed(vec![text.clone()]).unwrap().remove(0);
    let expected: Vec<Vec<f32>> = texts().iter().map(one).collect();
    assert!(expected.iter().all(|vector| (cosine(vector, vector) - 1.0).abs() < 1e-6));
    assert!(expected[0] == expected[2] && expected[0] != expected[1]);
    // With room for all, and with room for nothing but what is played alone.
    for budget in [1 << 30, 1] {
        let engine = engine(budget);
        let mut turns = ["a", "b"].map(|name| engine.submit(turn(name)).unwrap());
        assert_eq!(engine.blocking_embed(texts()).unwrap(), expected);
        for turn in &mut turns {
            let ended =
                std::iter::from_fn(|| turn.blocking_next()).any(|event| matches!(event, Event::Done(_)));
            assert!(ended);
        }
    }
}

#[test]
fn a_request_that_is_given_up_or_mistaken_stops_nothing() {
    let engine = engine(1 << 30);
    for (text, found) in [("", "an empty text"), ("word ".repeat(9000).as_str(), "the model's context is")] {
        let error = engine.blocking_embed(vec!["Fine.".into(), text.into()]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Request);
        assert!(error.to_string().contains(found), "{error}");
    }
    // Nobody polls it any more.
    let waker = std::task::Waker::noop();
    let mut context = std::task::Context::from_waker(waker);
    let mut given_up = Box::pin(engine.embed(vec!["Bees. ".repeat(120); 50]));
    assert!(given_up.as_mut().poll(&mut context).is_pending());
    drop(given_up);
    assert_eq!(engine.blocking_embed(vec!["Fine.".into()]).unwrap().len(), 1);
}
