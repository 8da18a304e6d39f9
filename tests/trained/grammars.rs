//! Replies under grammars on models that were trained: valid, the same under narrower schemas, and what they
//! cost.

#[path = "../grammars/mod.rs"]
mod random;

use crate::{SMOLLM2, open};
use greenroom_engine::{Engine, EngineConfig, Grammar, KvChoice, ModelSource, Request};
use random::{play, request, said};
use std::io::Write as _;
use std::time::Instant;

/// `cargo test --test trained -- --ignored smollm2_says`
#[test]
#[ignore = "takes minutes; the understudy says as many"]
fn smollm2_says_what_two_hundred_schemas_allow() {
    let Some(path) = SMOLLM2.path() else { return };
    let (n_ended, n_narrowed) = play(&open(&path, KvChoice::Auto, None), 200, 0.8);
    assert!(n_ended > 120 && n_narrowed > 60, "{n_ended} ended, {n_narrowed} narrowed");
}

#[test]
fn the_understudy_says_what_two_hundred_schemas_allow() {
    let model = ModelSource::Bundled("understudy", include_bytes!("../../models/understudy.gguf"));
    let engine = Engine::open(EngineConfig::new(model)).unwrap();
    // The limit cuts the others: 132 end.
    let (n_ended, n_narrowed) = play(&engine, 200, 0.8);
    assert!(n_ended > 120 && n_narrowed > 60, "{n_ended} ended, {n_narrowed} narrowed");
}

/// Not a test of time: it prints what a token costs with and without a grammar, in one run.
/// `cargo test --release --test trained -- --ignored --nocapture what_a_grammar_costs`
#[test]
#[ignore = "a measurement"]
fn what_a_grammar_costs() {
    let Some(path) = SMOLLM2.path() else { return };
    let engine = open(&path, KvChoice::Auto, None);
    let schema = serde_json::json!({
        "type": "object",
        "properties": { "why": { "type": "string", "minLength": 400 }, "price": { "type": "integer" } },
        "required": ["why", "price"],
    });
    let time = |name: &str, grammar: Option<Grammar>| {
        let (mut tokens, began) = (0, Instant::now());
        for seed in 0..8 {
            let asked = request(&format!("{name}{seed}"), seed, 0.8, grammar.clone());
            tokens += said(&engine, Request { stop: Vec::new(), min_tokens: 160, ..asked }).ids.len();
        }
        tokens as f64 / began.elapsed().as_secs_f64()
    };
    time("warm", Some(Grammar::json_schema(&schema)));
    let (free, bound) = (time("free", None), time("bound", Some(Grammar::json_schema(&schema))));
    let _ = writeln!(
        std::io::stderr(),
        "{free:.1} tokens/s free, {bound:.1} under a schema: {:.2}",
        bound / free
    );
}
