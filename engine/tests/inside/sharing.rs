//! What prompts share below a block: beginnings of first prompts, and the turns that a session or its child goes back to.

use crate::fixtures::RandomModel;
use crate::kv::layout::BLOCK;
use crate::*;
use std::path::Path;

/// Within a family and its window.
fn models() -> [RandomModel; 2] {
    let windowed = RandomModel { n_layers: 6, window: 200, ..RandomModel::tiny_of("gemma3", 3) };
    [RandomModel::tiny(3), windowed].map(|model| RandomModel { context_length: 16_384, ..model })
}

fn engine(model: &RandomModel, cache_dir: Option<&Path>, cache_memory: u64) -> Engine {
    let model = ModelSource::Bundled("tiny", model.bytes().leak());
    let cache_dir = cache_dir.map(Path::to_owned);
    let config = EngineConfig { cache_dir, cache_memory, prefill_chunk: 100, ..EngineConfig::new(model) };
    Engine::open(config, &mut |_| {}).unwrap()
}

fn asked(agent: &str, system: &str, exchanges: &[Exchange], text: &str) -> Request {
    let conversation = Conversation {
        system: Some(system.into()),
        exchanges: exchanges.to_vec(),
        next: text.into(),
        ..Conversation::default()
    };
    Request {
        sampling: Sampling { temperature: 2.0, seed: 5, ..Sampling::default() },
        max_tokens: 20,
        min_tokens: 20,
        retention: Retention::Persistent,
        ..Request::new(SessionKey::new("r", agent), conversation)
    }
}

fn play(engine: &Engine, request: Request) -> Completion {
    let mut turn = engine.submit(request).unwrap();
    while let Some(event) = turn.blocking_next() {
        match event {
            Event::Failed(error) => panic!("{error}"),
            Event::Done(_) => return *turn.blocking_commit().unwrap(),
            _ => {}
        }
    }
    panic!("the turn did not end");
}

/// The same, which must be what the conversation alone would give.
fn play_beside(engine: &Engine, control: &Engine, request: Request) -> Usage {
    let agent = request.session.agent.clone();
    let expected = play(control, Request { cold: true, parent: None, ..request.clone() });
    let found = play(engine, request);
    assert_eq!((found.ids, found.digest), (expected.ids, expected.digest), "{agent}: {:?}", found.usage);
    let read = |usage: &Usage| usage.reused + usage.recomputed + usage.prefilled;
    assert_eq!(read(&found.usage), read(&expected.usage));
    found.usage
}

/// A text of some 300 tokens.
fn long(about: &str) -> String {
    (0..30).map(|n| format!("{about} {n}. ")).collect()
}

/// A text of some 20 tokens.
fn short(about: &str) -> String {
    long(about).chars().take(20).collect()
}

#[test]
fn first_prompts_share_what_they_begin_with() {
    for model in models() {
        let (engine, control) = (engine(&model, None, 1 << 30), engine(&model, None, 1 << 30));
        let rules = long("The harbour");
        let n_ids = |text: &str| engine.encode(text, false).unwrap().len();
        let begin = |agent: &str, text: &str| play_beside(&engine, &control, asked(agent, &rules, &[], text));
        assert_eq!(begin("a", &format!("You are Ada. {}", short("Ice"))).reused, 0);
        // To the token, not to the block.
        let usage = begin("b", &format!("You are Ada. {}", short("Sun")));
        assert!(usage.kind == MatchKind::Prefix && usage.source == Source::Memory, "{usage:?}");
        assert!(usage.reused > n_ids(&rules) && usage.reused % BLOCK > 0, "{usage:?}");
        let usage = begin("c", &format!("You are Bob. {}", short("Sea")));
        assert!(usage.reused >= n_ids(&rules) && usage.reused % BLOCK > 0, "{usage:?}");
        // The same once more: all but the last token, as of any prompt.
        let usage = begin("d", &format!("You are Ada. {}", short("Ice")));
        assert_eq!(usage.prefilled, 1, "{usage:?}");
        // Another tenant finds nothing, and nobody what was removed.
        let stranger = asked("a", &rules, &[], "Who are you?");
        let session = SessionKey { tenant: "another".into(), ..stranger.session.clone() };
        assert_eq!(play_beside(&engine, &control, Request { session, ..stranger }).reused, 0);
        for agent in ["a", "b", "c", "d"] {
            engine.blocking_remove(&SessionKey::new("r", agent)).unwrap();
        }
        assert_eq!(begin("e", "You are Ada.").reused, 0);
    }
}

#[test]
fn sessions_and_their_children_go_back_to_any_of_the_last_turns() {
    for model in models() {
        let folder = tempfile::tempdir().unwrap();
        let control = engine(&model, None, 1 << 30);
        let first = engine(&model, Some(folder.path()), 1 << 30);
        let (rules, mut exchanges, mut ends) = (long("The town"), Vec::new(), Vec::new());
        for turn in 0..12 {
            // Ends of turns at many places in a block, some turns with more than one.
            let text =
                format!("{turn}: {}", if turn % 4 == 3 { long("Rain") } else { "So?".repeat(turn + 9) });
            let done = play(&first, asked("a", &rules, &exchanges, &text));
            let Usage { reused, prefilled, recomputed, .. } = done.usage;
            assert_eq!(recomputed, 0);
            ends.push(reused + prefilled + done.ids.len());
            exchanges.push(Exchange::new(text, ReplyContent::Ids(done.ids.into())));
        }
        let within = ends.iter().filter(|end| **end % BLOCK > 20).count();
        assert!(within > 6 && ends[11] > 6 * BLOCK, "{ends:?}");
        let child = |agent: &str, n: usize| Request {
            parent: Some(SessionKey::new("r", "a")),
            ..asked(agent, &rules, &exchanges[..n], "And what did they say?")
        };
        let check = |engine: &Engine, request: Request, n: usize, place: &str| {
            let usage = play_beside(engine, &control, request);
            // Beyond that turn's end the template's own text is the same.
            assert!(usage.recomputed < 16, "{place}, to turn {n}: {usage:?}, {ends:?}");
            assert!(usage.reused >= ends[n - 1], "{place}, to turn {n}: {usage:?}, {ends:?}");
        };
        for n in 1..=12 {
            check(&first, child(&format!("in memory {n}"), n), n, "in memory");
        }
        drop(first);
        let second = engine(&model, Some(folder.path()), 1 << 30);
        for n in (1..=12).rev() {
            check(&second, child(&format!("from disk {n}"), n), n, "from disk");
        }
        let sound = |what: &str| {
            let verdict = cache::Folder::new(folder.path(), None).verify().unwrap();
            assert!(verdict.problems.is_empty(), "{what}: {:?}", verdict.problems);
        };
        // The session itself, further and further back, each time on another way from there.
        for n in [9, 8, 5, 2] {
            let again = asked("a", &rules, &exchanges[..n], &format!("{n}, again: {}", "no ".repeat(n)));
            check(&second, again, n, "itself");
        }
        drop(second);
        sound("after the session went back");
        // What was the past of a session that went elsewhere is its children's no more; what is removed is gone.
        let third = engine(&model, Some(folder.path()), 1 << 30);
        check(&third, asked("a", &rules, &exchanges[..2], "Once more?"), 2, "itself, from disk");
        third.blocking_remove(&SessionKey::new("r", "a")).unwrap();
        drop(third);
        sound("after it was removed");
    }
}

#[test]
fn few_tails_of_sealed_blocks_stay() {
    let (folder, model) = (tempfile::tempdir().unwrap(), &models()[0]);
    let engine = engine(model, Some(folder.path()), 1 << 30);
    let mut exchanges = Vec::new();
    for turn in 0..30 {
        let text = format!("{turn}: {}", long("Snow"));
        let done = play(&engine, asked("a", "Hm.", &exchanges, &text));
        exchanges.push(Exchange::new(text, ReplyContent::Ids(done.ids.into())));
    }
    drop(engine);
    let root = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    let tails = std::fs::read_dir(root.join("tails")).unwrap().count();
    assert!((10..=17).contains(&tails), "{tails}");
}
