//! First prompts that part within a block: what they have in common is read once, and the bits are those of
//! each alone.

use crate::fixtures::RandomModel;
use crate::kv::layout::BLOCK;
use crate::tests::play;
use crate::*;

const STEP: usize = 32;

fn models() -> [RandomModel; 2] {
    let windowed = RandomModel { n_layers: 6, window: 200, ..RandomModel::tiny_of("gemma3", 3) };
    [RandomModel::tiny(3), windowed].map(|model| RandomModel { context_length: 8192, ..model })
}

fn engine(model: &RandomModel, cache_memory: u64) -> Engine {
    let model = ModelSource::Bundled("tiny", model.bytes().leak());
    let config = EngineConfig { cache_memory, prefill_chunk: 700, ..EngineConfig::new(model) };
    Engine::open(config).unwrap()
}

/// A first turn of an agent with the reply's seed.
fn first(agent: &str, system: &str, text: &str, seed: u64) -> Request {
    let conversation =
        Conversation { system: Some(system.into()), next: text.into(), ..Conversation::default() };
    Request {
        sampling: Sampling { temperature: 2.0, seed, ..Sampling::default() },
        max_tokens: 12,
        min_tokens: 12,
        ..Request::new(SessionKey::new("r", agent), conversation)
    }
}

/// The same, which must be what it is alone; returns the turn's cost, and the tokens of its prompt.
fn play_beside(engine: &Engine, control: &Engine, request: Request) -> (Usage, usize) {
    let expected = play(control, Request { cold: true, ..request.clone() });
    let found = play(engine, request);
    assert_eq!((found.ids, found.digest), (expected.ids, expected.digest), "{:?}", found.usage);
    let usage = found.usage;
    assert_eq!(usage.recomputed, 0);
    let n = usage.reused + usage.prefilled;
    (usage, n)
}

fn long(about: &str, n: usize) -> String {
    (0..n).map(|n| format!("{about} {n}. ")).collect()
}

#[test]
fn a_system_text_and_a_whole_prompt_are_read_once() {
    for model in models() {
        let (control, engine) = (engine(&model, 1 << 30), engine(&model, 1 << 30));
        for n in [3, 9, 20, 40, 90] {
            let rules = long("The town", n);
            let asked = |agent: &str, about: &str, seed| {
                let mut request = first(agent, &rules, &long(about, 30), seed);
                request.session.run = format!("r{n}");
                request
            };
            let (alone, len) = play_beside(&engine, &control, asked("a", "Rain", 1));
            // Other texts after the same rules: what exceeds them is the template's.
            let (other, _) = play_beside(&engine, &control, asked("b", "Snow", 1));
            let (third, _) = play_beside(&engine, &control, asked("c", "Hail", 1));
            let in_common = third.reused;
            assert!(in_common >= other.reused && other.reused > alone.reused, "{n}: {alone:?} {other:?}");
            assert!(in_common % STEP == 0 && in_common < len, "{n}: {third:?}");
            // The same prompt, another seed: all but the last part of a step.
            let (again, len) = play_beside(&engine, &control, asked("d", "Rain", 2));
            assert!(again.prefilled <= STEP && again.reused + again.prefilled == len, "{n}: {again:?}");
        }
    }
}

#[test]
fn what_parts_early_or_is_another_tenants_or_asked_for_cold_shares_nothing() {
    let model = RandomModel::tiny(3);
    let (control, engine) = (engine(&model, 1 << 30), engine(&model, 1 << 30));
    let rules = long("The town", 9);
    let (alone, _) = play_beside(&engine, &control, first("a", &rules, "So?", 1));
    assert_eq!(alone.reused, 0);
    let (early, _) = play_beside(&engine, &control, first("b", &format!("In {rules}"), "So?", 1));
    assert_eq!(early.reused, 0, "{early:?}");
    let cold = play(&engine, Request { cold: true, ..first("c", &rules, "So?", 1) });
    assert_eq!(cold.usage.reused, 0, "{:?}", cold.usage);
    let mut theirs = first("a", &rules, "So?", 1);
    theirs.session.tenant = "other".to_owned();
    let (theirs, _) = play_beside(&engine, &control, theirs);
    assert_eq!(theirs.reused, 0, "{theirs:?}");
    let (ours, _) = play_beside(&engine, &control, first("d", &rules, "So?", 1));
    assert!(ours.reused > 0 && ours.reused < BLOCK, "{ours:?}");
}

#[test]
fn what_was_removed_is_not_shared() {
    let model = RandomModel::tiny(3);
    let (control, engine) = (engine(&model, 1 << 30), engine(&model, 1 << 30));
    let rules = long("The town", 9);
    play_beside(&engine, &control, first("a", &rules, "So?", 1));
    engine.blocking_remove(&SessionKey::new("r", "a")).unwrap();
    let (after, _) = play_beside(&engine, &control, first("b", &rules, "So?", 1));
    assert_eq!(after.reused, 0, "{after:?}");
}

#[test]
fn copies_keep_to_their_part_of_the_budget() {
    let model = RandomModel::tiny(3);
    let control = engine(&model, 1 << 30);
    let mut held = Vec::new();
    for cache_memory in [200 << 10, 32 << 20, 1 << 30] {
        let engine = engine(&model, cache_memory);
        for agent in 0..40 {
            let (rules, agent) = (format!("{agent} is the town. {}", long("Rain", 12)), format!("a{agent}"));
            play_beside(&engine, &control, first(&agent, &rules, "So?", 1));
        }
        let status = engine.blocking_status().unwrap();
        assert!(status.memory_bytes <= cache_memory, "{status:?}");
        status.sessions.iter().for_each(|session| engine.forget(&session.key));
        held.push(engine.blocking_status().unwrap().memory_bytes); // nothing but copies
        assert!(held[held.len() - 1] <= cache_memory / 16, "{cache_memory}: {held:?}");
    }
    assert!(0 < held[1] && held[1] < held[2], "the test shows little: {held:?}");
}
