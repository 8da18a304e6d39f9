//! Going back below a block: a session, or one that begins with its memory, to the end of any of its last
//! turns.

use crate::fixtures::RandomModel;
use crate::kv::layout::BLOCK;
use crate::tests::play;
use crate::*;
use std::collections::HashSet;
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
    Engine::open(config).unwrap()
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
        // The past of a session that diverged no longer belongs to its children; what is removed is gone.
        let third = engine(&model, Some(folder.path()), 1 << 30);
        check(&third, asked("a", &rules, &exchanges[..2], "Once more?"), 2, "itself, from disk");
        third.blocking_remove(&SessionKey::new("r", "a")).unwrap();
        drop(third);
        sound("after it was removed");
    }
}

#[test]
fn few_tails_of_sealed_blocks_stay_and_none_of_what_was_removed() {
    let (folder, model) = (tempfile::tempdir().unwrap(), &models()[0]);
    let engine = engine(model, Some(folder.path()), 1 << 30);
    let mut exchanges = Vec::new();
    for turn in 0..30 {
        let text = format!("{turn}: {}", long("Snow"));
        let done = play(&engine, asked("a", "Hm.", &exchanges, &text));
        exchanges.push(Exchange::new(text, ReplyContent::Ids(done.ids.into())));
    }
    let root = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    let n_tails = || std::fs::read_dir(root.join("tails")).unwrap().count();
    assert!((10..=17).contains(&n_tails()), "{}", n_tails());
    engine.blocking_remove(&SessionKey::new("r", "a")).unwrap();
    assert_eq!(n_tails(), 0, "what is removed is gone");
}

/// Where room is needed, rows that only serve to go back are removed first: no memory is lost for them, and
/// what they would have given is computed again.
#[test]
fn rows_to_go_back_go_before_any_memory() {
    for model in models() {
        let (folder, control) = (tempfile::tempdir().unwrap(), engine(&model, None, 1 << 30));
        let first = engine(&model, Some(folder.path()), 1 << 30);
        let (mut exchanges, mut known) = (Vec::new(), 0);
        for turn in 0..6 {
            let text = format!("{turn}: {}", long("Snow"));
            let done = play(&first, asked("a", "Hm.", &exchanges, &text));
            known = done.usage.reused + done.usage.prefilled + done.ids.len();
            exchanges.push(Exchange::new(text, ReplyContent::Ids(done.ids.into())));
        }
        drop(first);
        let place = cache::Folder::new(folder.path(), None);
        let (before, root) = (place.list().unwrap(), folder.path().join("v4/tails"));
        let tails = || std::fs::read_dir(&root).unwrap().count();
        let (n_before, stored) = (tails(), place.bytes().unwrap());
        assert!(n_before > 3, "{n_before}");
        let removed = place.shrink(stored - 1).unwrap();
        assert_eq!((removed.sessions, removed.unread), (0, 0));
        assert!(tails() <= 1 && place.bytes().unwrap() <= stored - removed.bytes, "{removed:?}");
        let after = place.list().unwrap();
        assert_eq!((after.len(), after[0].turns, after[0].tokens), (1, before[0].turns, before[0].tokens));
        // Without them a memory is about as small as its packed blocks and the rows of its open one.
        assert!(after[0].bytes * 4 < before[0].bytes * 3, "{} of {}", after[0].bytes, before[0].bytes);
        assert!(place.verify().unwrap().problems.is_empty());
        let second = engine(&model, Some(folder.path()), 1 << 30);
        let usage = play_beside(&second, &control, asked("a", "Hm.", &exchanges, "And now?"));
        assert_eq!((usage.kind, usage.reused, usage.recomputed), (MatchKind::Extend, known, 0));
        let back = play_beside(&second, &control, asked("a", "Hm.", &exchanges[..3], "And then?"));
        assert!(back.recomputed < BLOCK + 16, "{back:?}");
        drop(second);
        assert!(place.verify().unwrap().problems.is_empty());
        assert_eq!(place.shrink(0).unwrap().sessions, 1);
    }
}

/// The same while an engine runs, whether the memory is in RAM or only on disk: it continues with it, and
/// what it saves then is complete.
#[test]
fn a_running_engine_drops_rows_to_go_back_before_any_memory() {
    for model in models() {
        for is_known in [true, false] {
            let (folder, control) = (tempfile::tempdir().unwrap(), engine(&model, None, 1 << 30));
            let engine = engine(&model, Some(folder.path()), 1 << 30);
            let (mut exchanges, mut known) = (Vec::new(), 0);
            for turn in 0..6 {
                let text = format!("{turn}: {}", long("Snow"));
                let done = play(&engine, asked("a", "Hm.", &exchanges, &text));
                known = done.usage.reused + done.usage.prefilled + done.ids.len();
                exchanges.push(Exchange::new(text, ReplyContent::Ids(done.ids.into())));
            }
            if !is_known {
                engine.forget(&SessionKey::new("r", "a"));
            }
            let place = cache::Folder::new(folder.path(), None);
            let (before, root) = (place.list().unwrap(), folder.path().join("v4/tails"));
            let tails = || std::fs::read_dir(&root).unwrap().count();
            let (n_before, own) = (tails(), place.own_bytes());
            assert!(n_before > 3, "{n_before}");
            let removed = engine.shrink(own - 1).unwrap();
            assert_eq!((removed.sessions, removed.unread), (0, 0));
            assert!(tails() <= 1 && place.own_bytes() == own - removed.bytes, "{removed:?}");
            let after = place.list().unwrap();
            assert_eq!(
                (after.len(), after[0].turns, after[0].tokens),
                (1, before[0].turns, before[0].tokens)
            );
            assert!(place.verify().unwrap().problems.is_empty());
            let usage = play_beside(&engine, &control, asked("a", "Hm.", &exchanges, "And now?"));
            assert_eq!((usage.kind, usage.reused, usage.recomputed), (MatchKind::Extend, known, 0));
            let back = play_beside(&engine, &control, asked("a", "Hm.", &exchanges[..3], "And then?"));
            assert!(back.recomputed < BLOCK + 16, "{back:?}");
            drop(engine);
            assert!(place.verify().unwrap().problems.is_empty());
            assert_eq!(place.list().unwrap()[0].turns, before[0].turns + 2);
        }
    }
}

/// A manifest whose last record is damaged stays as it is, however much room is needed: written again it
/// would be whole, and say an earlier turn.
#[test]
fn rows_of_a_damaged_manifest_stay() {
    let (folder, model) = (tempfile::tempdir().unwrap(), &models()[0]);
    let first = engine(model, Some(folder.path()), 1 << 30);
    let root = folder.path().join("v4/manifests");
    let manifests =
        || -> Vec<_> { std::fs::read_dir(&root).unwrap().map(|file| file.unwrap().path()).collect() };
    let mut damaged = None;
    for agent in ["a", "b"] {
        let mut exchanges = Vec::new();
        for turn in 0..6 {
            let text = format!("{turn}: {}", long(agent));
            let done = play(&first, asked(agent, "Hm.", &exchanges, &text));
            exchanges.push(Exchange::new(text, ReplyContent::Ids(done.ids.into())));
        }
        damaged.get_or_insert_with(|| manifests().remove(0));
    }
    drop(first);
    let damaged = damaged.unwrap();
    let mut bytes = std::fs::read(&damaged).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&damaged, &bytes).unwrap();
    let place = cache::Folder::new(folder.path(), None);
    place.remove(&|_| false).unwrap();
    let running = engine(model, Some(folder.path()), 1 << 30);
    let store = running.inner.store_handle.store.clone().unwrap();
    let lock = store.claim(&SessionKey::new("r", "a")).unwrap();
    let drop_rows =
        |agent: &str| store.drop_rows(&lock, &SessionKey::new("r", agent), &HashSet::new()).unwrap();
    assert!(place.list().unwrap().iter().all(|entry| entry.rows_to_go_back > 0));
    assert_eq!(drop_rows("a"), cache::Removed::default());
    assert!(drop_rows("b").bytes > 0 && std::fs::read(&damaged).unwrap() == bytes);
    drop(lock);
    // Where room is needed, all of it is dropped, or nothing.
    running.shrink(place.own_bytes() - 1).unwrap();
    assert!(!damaged.exists() || std::fs::read(&damaged).unwrap() == bytes);
    drop((store, running));
    std::fs::write(&damaged, &bytes).unwrap();
    place.shrink(place.own_bytes() - 1).unwrap();
    assert!(!damaged.exists() || std::fs::read(&damaged).unwrap() == bytes);
}

/// A memory on disk is read beside those who are at work: they don't wait for it.
#[test]
fn a_session_is_restored_while_another_speaks() {
    for model in models() {
        let folder = tempfile::tempdir().unwrap();
        let (control, engine) = (engine(&model, None, 1 << 30), engine(&model, Some(folder.path()), 1 << 30));
        let rules = long("The town") + &long("The river");
        let done = play(&engine, asked("a", &rules, &[], "So?"));
        let past = [Exchange::new("So?".to_owned(), ReplyContent::Ids(done.ids.into()))];
        engine.forget(&SessionKey::new("r", "a"));
        let long_talk = Request { max_tokens: 1_500, min_tokens: 1_500, ..asked("b", "", &[], "Talk.") };
        let mut speaker = engine.submit(long_talk).unwrap();
        while !matches!(speaker.blocking_next(), Some(Event::Text(_))) {}
        let usage = play_beside(&engine, &control, asked("a", &rules, &past, "And then?"));
        assert_eq!(usage.source, CacheSource::Disk);
        assert!(usage.prefetch_ms > 0.0 && usage.recomputed < 16, "{usage:?}");
        let left = std::iter::from_fn(|| speaker.blocking_next());
        let is_text = |event: &Event| matches!(event, Event::Text(_));
        assert!(left.filter(is_text).count() > 0, "it was still speaking");
    }
}
