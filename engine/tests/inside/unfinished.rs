//! Turns that are given up while they read their prompt: nothing of the session changes, and what was read is
//! not read again.

use super::some;
use crate::fixtures::RandomModel;
use crate::kv::layout::BLOCK;
use crate::memory::Memory;
use crate::memory::session::Session;
use crate::tests::exactness::{Bench, N};
use crate::tests::play;
use crate::*;
use std::path::Path;

fn engine(model: &RandomModel, cache_dir: Option<&Path>, cache_memory: u64) -> Engine {
    let model = ModelSource::Bundled("tiny", model.bytes().leak());
    let cache_dir = cache_dir.map(Path::to_owned);
    // Small passes, so that there is time to give up between them.
    let config = EngineConfig { cache_dir, cache_memory, prefill_chunk: 48, ..EngineConfig::new(model) };
    Engine::open(config).unwrap()
}

fn models() -> [RandomModel; 2] {
    // The last layer of the second sees everything, the others 200 tokens.
    let windowed = RandomModel { n_layers: 6, window: 200, ..RandomModel::tiny_of("gemma3", 3) };
    [RandomModel::tiny(3), windowed].map(|model| RandomModel { context_length: 16_384, ..model })
}

fn asked(agent: &str, text: &str, retention: Retention) -> Request {
    Request {
        sampling: Sampling { temperature: 2.0, seed: 5, ..Sampling::default() },
        max_tokens: 12,
        retention,
        ..Request::new(
            SessionKey::new("r", agent),
            Conversation { next: text.into(), ..Conversation::default() },
        )
    }
}

/// Gives up a turn once this many tokens of its prompt are read.
fn give_up(engine: &Engine, request: Request, n: usize) {
    let endless = Request { max_tokens: 1500, min_tokens: 1500, ..request };
    let mut turn = engine.submit(endless).unwrap();
    while let Some(event) = turn.blocking_next() {
        match event {
            Event::Prefill { done, .. } if done >= n => return,
            // The rest of the prompt was read before the engine learned that an earlier turn was given up.
            Event::Text(_) => return,
            Event::Prefill { .. } => {}
            other => panic!("the prompt is longer: {other:?}"),
        }
    }
}

/// A text of more than 900 tokens.
fn long(about: &str) -> String {
    (0..100).map(|n| format!("{about} {n}. ")).collect()
}

/// The request that follows a reply.
fn next(request: &Request, reply: &Completion, text: &str) -> Request {
    let mut request = request.clone();
    let user = std::mem::replace(&mut request.prompt.conversation_mut().unwrap().next, text.into());
    let reply = ReplyContent::Ids(reply.ids.clone().into());
    request.prompt.conversation_mut().unwrap().exchanges.push(Exchange::new(user, reply));
    request
}

fn as_agent(request: &Request, agent: &str) -> Request {
    Request { session: SessionKey::new("r", agent), ..request.clone() }
}

fn check(model: &RandomModel, cache_dir: Option<&Path>, retention: Retention) {
    let (engine, control) = (engine(model, cache_dir, 1 << 30), engine(model, None, 1 << 30));
    let cold = |request: &Request| play(&control, Request { cold: true, ..request.clone() });
    // A session that never ended a turn; then another one with the same prompt.
    let first = asked("a", &long("The harbour"), retention);
    let expected = cold(&first);
    let expect_reuse = |request: &Request, n: usize, expected: &Completion| {
        let found = play(&engine, request.clone());
        let Usage { reused, recomputed, prefilled, kind, .. } = found.usage;
        assert!(reused >= n / BLOCK * BLOCK, "{kind:?}: {reused} of {n} tokens, {cache_dir:?} {retention:?}");
        let all = expected.usage.prefilled + expected.usage.recomputed;
        assert_eq!(reused + prefilled + recomputed, all, "{kind:?}");
        assert_eq!((&found.ids, &found.digest), (&expected.ids, &expected.digest), "{kind:?}");
        found
    };
    if cache_dir.is_none() {
        give_up(&engine, as_agent(&first, "b"), 800);
        let other = expect_reuse(&as_agent(&first, "c"), 800, &expected);
        assert_eq!(other.usage.kind, MatchKind::Prefix);
        engine.forget(&SessionKey::new("r", "b"));
        engine.forget(&SessionKey::new("r", "c"));
        let fresh = play(&engine, as_agent(&first, "d"));
        assert_eq!(fresh.usage.reused, 0, "what is forgotten is gone");
        engine.forget(&SessionKey::new("r", "d"));
    }
    give_up(&engine, first.clone(), 600);
    give_up(&engine, first.clone(), 300); // after what was read before
    let done = expect_reuse(&first, 800, &expected);
    // One that continues: its past stays, and what was read after it is found, by its child too.
    let second = next(&first, &done, &long("The town"));
    let expected = cold(&second);
    let past = done.usage.reused + done.usage.prefilled + done.ids.len();
    give_up(&engine, second.clone(), 600);
    let child = Request { parent: Some(first.session.clone()), ..as_agent(&second, "child") };
    expect_reuse(&child, past + 600, &expected);
    let second_done = expect_reuse(&second, past + 600, &expected);
    assert_eq!(second_done.usage.kind, MatchKind::Extend);
    // Given up, and then something else is said: all of the past is there.
    let (third, other) = (next(&second, &second_done, &long("The sea")), next(&second, &second_done, "So?"));
    let past = second_done.usage.reused + second_done.usage.prefilled + second_done.ids.len();
    let expected = cold(&other);
    give_up(&engine, third.clone(), 600);
    give_up(&engine, third, 48);
    let found = play(&engine, other);
    assert_eq!((found.ids, &found.digest), (expected.ids, &expected.digest));
    assert_eq!(found.usage.kind, MatchKind::Extend);
    assert!(found.usage.reused + BLOCK > past && found.usage.recomputed < BLOCK, "{:?}", found.usage);
    // Another tenant finds nothing.
    let last = asked("e", &long("The rain"), retention);
    give_up(&engine, last.clone(), 600);
    let stranger = SessionKey { tenant: "another".into(), ..last.session.clone() };
    assert_eq!(play(&engine, Request { session: stranger, ..last }).usage.reused, 0);
}

#[test]
fn what_was_read_is_not_read_again() {
    for model in some(models(), 2) {
        check(&model, None, Retention::Ephemeral);
        check(&model, None, Retention::Persistent);
        for retention in [Retention::Ephemeral, Retention::Persistent] {
            check(&model, Some(tempfile::tempdir().unwrap().path()), retention);
        }
    }
}

#[test]
fn the_stored_session_stays_as_it_was() {
    for model in models() {
        let folder = tempfile::tempdir().unwrap();
        let engine = engine(&model, Some(folder.path()), 1 << 30);
        let first = asked("a", &long("The harbour"), Retention::Persistent);
        let done = play(&engine, first.clone());
        give_up(&engine, next(&first, &done, &long("The town")), 600);
        drop(engine);
        let engine = self::engine(&model, Some(folder.path()), 1 << 30);
        let second = next(&first, &done, "So?");
        let found = play(&engine, second.clone());
        let past = done.usage.prefilled + done.ids.len();
        assert_eq!(
            (found.usage.kind, found.usage.reused, found.usage.source),
            (MatchKind::Extend, past, CacheSource::Disk)
        );
        let cold = Request { cold: true, ..as_agent(&second, "cold") };
        assert_eq!(found.digest, play(&engine, cold).digest);
    }
}

#[test]
fn it_makes_room_before_what_would_be_computed_again() {
    const BUDGET: u64 = 1 << 40;
    let bench = Bench::new(KvFormat::Q4, Isa::detect());
    let mut memory = Memory::new(&bench.device, bench.context.clone(), None, BUDGET);
    let read = |memory: &mut Memory, agent: &str, n: usize| {
        let mut session = Session::new(&bench.context, "");
        session.tokens = bench.ids(0..N);
        bench.feed(&mut session.sequence, &mut memory.arena, n, 100);
        memory.give_back(SessionKey::new("r", agent), session, N, None);
        memory.arena.bytes()
    };
    let two = read(&mut memory, "a", 700);
    assert_eq!((two > 0, two), (true, memory.arena.sealed_bytes()), "whole blocks are kept, and no rows");
    let one = read(&mut memory, "a", 300);
    assert!(one > 0 && one < two, "the latest turn's stay: {one}, {two}");
    memory.forget(&SessionKey::new("r", "a"));
    assert_eq!(memory.arena.bytes(), 0, "what is forgotten is gone");
    read(&mut memory, "b", 700);
    let room = |memory: &Memory| BUDGET - memory.arena.bytes();
    // Beside a session at rest, which nothing but computing brings back.
    let mut rests = Session::new(&bench.context, "another");
    rests.tokens = bench.ids(0..N);
    bench.feed(&mut rests.sequence, &mut memory.arena, 300, 300);
    let own = memory.arena.bytes() - two;
    memory.take_back(SessionKey::new("r", "c"), rests, None);
    let all = room(&memory);
    memory.enforce_budget(all - 100_000);
    assert_eq!(memory.arena.bytes(), two + own, "there is room");
    memory.enforce_budget(all + 1);
    assert_eq!(memory.arena.bytes(), one + own, "as much as is needed goes, from the end");
    memory.enforce_budget(all + one + 1);
    assert_eq!(memory.arena.bytes(), own);
    memory.enforce_budget(BUDGET);
    assert_eq!(memory.arena.bytes(), 0);
}

#[test]
fn a_meter_counts_what_was_computed_by_the_time_that_a_turn_is_given_up() {
    let engine = engine(&RandomModel { context_length: 16_384, ..RandomModel::tiny(3) }, None, 1 << 30);
    let metered = |request: Request, meter: &Meter| Request { meter: Some(meter.clone()), ..request };
    // Complete: as its usage says.
    let meter = Meter::default();
    let done = play(&engine, metered(asked("whole", &long("The mill"), Retention::Ephemeral), &meter));
    let computed = done.usage.prefilled + done.usage.recomputed + done.ids.len();
    assert_eq!(meter.total(), computed as u64);
    // What a stop string has cut was generated.
    let text: Vec<char> = done.text.chars().collect();
    let stop: String = text[text.len() / 2..][..4].iter().collect();
    let meter = Meter::default();
    let cut = Request { stop: vec![stop], ..asked("whole", &long("The mill"), Retention::Ephemeral) };
    let cut = play(&engine, metered(cut, &meter));
    assert!(cut.stop == StopReason::StopString && cut.ids.len() + 1 < done.ids.len(), "{cut:?}");
    let n = meter.total() as usize - cut.usage.prefilled - cut.usage.recomputed;
    assert!(n > cut.ids.len() + 1 && n <= done.ids.len(), "{n} of {} and {}", cut.ids.len(), done.ids.len());
    // A prompt that was read in part, then a reply that was begun.
    let meter = Meter::default();
    give_up(&engine, metered(asked("part", &long("The harbour"), Retention::Ephemeral), &meter), 300);
    engine.blocking_status().unwrap();
    let of_part = meter.total();
    assert!(of_part >= 300, "{of_part}");
    let meter = Meter::default();
    give_up(&engine, metered(asked("reply", &long("The town"), Retention::Ephemeral), &meter), usize::MAX);
    engine.blocking_status().unwrap();
    let of_prompt =
        play(&engine, Request { cold: true, ..asked("other", &long("The town"), Retention::Ephemeral) });
    let of_prompt = of_prompt.usage.prefilled + of_prompt.usage.recomputed;
    assert!(meter.total() > of_prompt as u64, "{} of {of_prompt}", meter.total());
    // A choice: its options are read.
    let meter = Meter::default();
    let options = Constraint::OneOf(vec!["left".into(), "to the right".into()]);
    let choice = Request { constraint: Some(options), ..asked("choice", "Where to?", Retention::Ephemeral) };
    let done = play(&engine, metered(choice, &meter));
    assert_eq!(meter.total(), done.usage.layer0_rows as u64);
}
