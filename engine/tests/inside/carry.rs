//! Sessions that are exported, imported, removed and listed while the engine runs.

use crate::fixtures::RandomModel;
use crate::*;
use std::path::Path;

fn model(seed: u64) -> ModelSource {
    ModelSource::Bundled("tiny", RandomModel::tiny(seed).bytes().leak())
}

fn open(model: ModelSource, cache_dir: Option<&Path>) -> Engine {
    let config = EngineConfig { cache_dir: cache_dir.map(Path::to_owned), ..EngineConfig::new(model) };
    Engine::open(config).unwrap()
}

fn key(agent: &str) -> SessionKey {
    SessionKey::new("r", agent)
}

fn ask(engine: &Engine, session: SessionKey, conversation: &Conversation) -> Completion {
    let request = Request {
        retention: Retention::Persistent,
        sampling: Sampling { temperature: 2.0, seed: 5, ..Sampling::default() },
        max_tokens: 20,
        min_tokens: 20,
        ..Request::new(session, conversation.clone())
    };
    let mut turn = engine.submit(request).unwrap();
    while let Some(event) = turn.blocking_next() {
        if let Event::Failed(error) = event {
            panic!("{error}");
        }
    }
    *turn.blocking_commit().unwrap()
}

/// A turn of `n` words, and the conversation after it.
fn begin(engine: &Engine, session: SessionKey, n: usize) -> (Conversation, usize) {
    let opening = Conversation { next: "And then? ".repeat(n), ..Conversation::default() };
    let said = ask(engine, session, &opening);
    let total = said.usage.reused + said.usage.prefilled + said.ids.len();
    let exchange = Exchange::new(opening.next, ReplyContent::Ids(said.ids.into()));
    (Conversation { exchanges: vec![exchange], next: "Why?".into(), ..Conversation::default() }, total)
}

fn export(engine: &Engine, session: &SessionKey) -> Vec<u8> {
    let mut file = Vec::new();
    assert_eq!(engine.export(session, &mut file).unwrap(), file.len() as u64);
    file
}

fn import(engine: &Engine, file: &[u8], session: &SessionKey) -> Result<Imported> {
    engine.import(&mut &file[..], session, false)
}

#[test]
fn a_file_goes_on_where_it_was_written() {
    for dir in [None, Some(tempfile::tempdir().unwrap())] {
        let dir = dir.as_ref().map(|dir| dir.path());
        let engine = open(model(1), dir);
        // Whole blocks and rows, and rows alone.
        for (agent, n) in [("a", 60), ("short", 2)] {
            let (opening, total) = begin(&engine, key(agent), n);
            let file = export(&engine, &key(agent));
            let twin = key(&format!("{agent} twin"));
            let imported = import(&engine, &file, &twin).unwrap();
            assert_eq!(imported, Imported { tokens: total, is_verbatim: true, reason: None });
            assert_eq!(export(&engine, &twin), file);
            let next = ask(&engine, twin, &opening);
            assert_eq!(
                (next.usage.kind, next.usage.reused, next.usage.recomputed),
                (MatchKind::Extend, total, 0)
            );
            assert_eq!(next.ids, ask(&engine, key(agent), &opening).ids);
        }
        let Some(dir) = dir else { continue };
        // By another process: from disk, into a session that is on disk then, too.
        let (opening, total) = begin(&engine, key("b"), 60);
        let file = export(&engine, &key("b"));
        drop(engine);
        let engine = open(model(1), Some(dir));
        assert_eq!(export(&engine, &key("b")), file);
        assert!(import(&engine, &file, &key("c")).unwrap().is_verbatim);
        engine.forget(&key("c"));
        let next = ask(&engine, key("c"), &opening);
        assert_eq!((next.usage.reused, next.usage.source), (total, CacheSource::Disk));
        assert_eq!(next.ids, ask(&engine, key("b"), &opening).ids);
        let problems = cache::Folder::new(dir, None).verify().unwrap().problems;
        assert_eq!(problems, [""; 0]);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let secret = std::fs::metadata(dir.join("v4/export.key")).unwrap();
            assert_eq!((secret.len(), secret.permissions().mode() & 0o777), (32, 0o600));
        }
    }
}

#[test]
fn what_has_windows_is_carried_too() {
    for model in crate::tests::exactness::models().into_iter().chain(crate::tests::states::models()) {
        let source = || ModelSource::Bundled("family", model.bytes().leak());
        for dir in [None, Some(tempfile::tempdir().unwrap())] {
            let engine = open(source(), dir.as_ref().map(|dir| dir.path()));
            let (opening, total) = begin(&engine, key("a"), 80);
            let file = export(&engine, &key("a"));
            let imported = import(&engine, &file, &key("b")).unwrap();
            assert_eq!(imported, Imported { tokens: total, is_verbatim: true, reason: None });
            let next = ask(&engine, key("b"), &opening);
            assert_eq!((next.usage.reused, &next.ids), (total, &ask(&engine, key("a"), &opening).ids));
        }
    }
}

/// Where what a file says ends: beginning, head, blocks, rows, mac.
fn frames(file: &[u8]) -> Vec<usize> {
    let mut ends = vec![20];
    while ends[ends.len() - 1] + 32 < file.len() {
        let at = ends[ends.len() - 1];
        let n = u64::from_le_bytes(file[at..at + 8].try_into().unwrap()) as usize;
        ends.push(at + 40 + n);
    }
    ends
}

/// Whatever is altered is refused, or read again: the session then holds what the engine computed.
#[test]
fn no_altered_byte_is_taken_on_trust() {
    let engine = open(model(1), None);
    let (opening, total) = begin(&engine, key("a"), 60);
    let expected = ask(&engine, key("other"), &opening).ids;
    let file = export(&engine, &key("a"));
    let ends = frames(&file);
    assert!(ends.len() >= 4 && ends[ends.len() - 1] + 32 == file.len(), "{ends:?}");
    let (mut n_refused, mut n_read) = (0, 0);
    let mut places: Vec<usize> = (0..20).chain(file.len() - 33..file.len()).collect();
    for end in &ends[..ends.len() - 1] {
        // Length, checksum and the payload's two ends of each frame.
        places.extend([0, 1, 7, 8, 39, 40, 41, 60].map(|at| end + at));
    }
    places.extend(ends.iter().map(|end| end - 1));
    places.extend((0..file.len()).step_by(file.len() / 40));
    places.sort_unstable();
    places.dedup();
    for (i, at) in places.into_iter().enumerate() {
        let mut altered = file.clone();
        altered[at] ^= 1 << (i % 8);
        let session = key(&format!("t{i}"));
        match import(&engine, &altered, &session) {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Request, "byte {at}: {error}");
                n_refused += 1;
            }
            Ok(imported) => {
                assert!(!imported.is_verbatim && imported.reason.is_some(), "byte {at}: {imported:?}");
                assert!(at > ends[1], "byte {at} of the head was taken");
                assert_eq!(imported.tokens, total);
                if n_read % 8 == 0 {
                    let next = ask(&engine, session.clone(), &opening);
                    assert_eq!((next.usage.reused, &next.ids), (total, &expected), "byte {at}");
                }
                n_read += 1;
            }
        }
        engine.forget(&session);
    }
    assert!(n_refused > 30 && n_read > 30, "{n_refused} refused, {n_read} read");
    // Keys and values with the right checksum, which anybody can make: the signature is not.
    for (i, end) in ends[1..ends.len() - 1].iter().enumerate() {
        let mut altered = file.clone();
        altered[end + 40 + 100] ^= 1;
        let n = u64::from_le_bytes(altered[*end..end + 8].try_into().unwrap()) as usize;
        let sum = blake3::hash(&altered[end + 40..][..n]);
        altered[end + 8..end + 40].copy_from_slice(sum.as_bytes());
        let session = key(&format!("s{i}"));
        let imported = import(&engine, &altered, &session).unwrap();
        assert!(!imported.is_verbatim && imported.reason.unwrap().contains("was changed afterwards"));
        assert_eq!(ask(&engine, session, &opening).ids, expected, "frame {i}");
    }
    // Cut off anywhere, or with more after it.
    let lengths = (0..file.len()).step_by(file.len() / 97).chain(ends.clone()).chain(0..70);
    for n in lengths.chain([file.len() - 1]) {
        let error = import(&engine, &file[..n], &key("cut")).unwrap_err();
        assert!(error.to_string().contains("ends too early"), "{n}: {error}");
    }
    let more = [&file[..], b"x"].concat();
    assert!(import(&engine, &more, &key("more")).unwrap_err().to_string().contains("after its end"));
    // Lengths that nobody could have are no reason to ask for memory.
    for (frame, end) in ends[..ends.len() - 1].iter().enumerate() {
        for length in [u64::MAX, 1 << 40, 0] {
            let mut altered = file.clone();
            altered[*end..end + 8].copy_from_slice(&length.to_le_bytes());
            assert!(import(&engine, &altered, &key("long")).is_err(), "frame {frame}: {length}");
        }
    }
    assert!(
        engine
            .blocking_status()
            .unwrap()
            .sessions
            .iter()
            .all(|s| !["cut", "more", "long"].contains(&&*s.key.agent))
    );
}

/// A file with another head, its checksum right.
fn with_head(file: &[u8], change: impl Fn(&mut serde_json::Value)) -> Vec<u8> {
    let end = frames(file)[1];
    let mut head: serde_json::Value = serde_json::from_slice(&file[60..end]).unwrap();
    change(&mut head);
    let head = serde_json::to_vec(&head).unwrap();
    let sum = blake3::hash(&head);
    [&file[..20], &(head.len() as u64).to_le_bytes(), sum.as_bytes(), &head, &file[end..]].concat()
}

#[test]
fn a_head_that_lies_is_found_out() {
    let engine = open(model(1), None);
    let (opening, total) = begin(&engine, key("a"), 60);
    let file = export(&engine, &key("a"));
    assert!(import(&engine, &with_head(&file, |_| ()), &key("same")).is_ok());
    let refused = |what: &str, change: &dyn Fn(&mut serde_json::Value)| {
        let error = import(&engine, &with_head(&file, change), &key("x")).expect_err(what);
        assert_eq!(error.kind(), ErrorKind::Request, "{what}: {error}");
        error.to_string()
    };
    let segment_of = |head: &serde_json::Value, kind: &str| {
        let segments = head["segments"].as_array().unwrap();
        segments.iter().position(|segment| segment["kind"] == kind).unwrap()
    };
    // Texts and ids that don't belong together.
    for kind in ["template", "message", "reply"] {
        let found = refused(kind, &|head| {
            let at = segment_of(head, kind);
            head["segments"][at]["text"] = "something else".into();
        });
        assert!(found.contains("does not belong to this model") || found.contains("texts"), "{found}");
        let ids = refused(kind, &|head| {
            let at = segment_of(head, kind);
            head["segments"][at]["ids"][0] = 77.into();
        });
        assert!(ids.contains("does not belong to this model"), "{ids}");
    }
    let unknown = refused("an unknown id", &|head| {
        let at = segment_of(head, "reply");
        head["segments"][at]["ids"][0] = 4_000_000.into();
    });
    assert!(unknown.contains("4000000"), "{unknown}");
    // Counts.
    refused("more blocks", &|head| head["blocks"] = vec![[true, false]; 5].into());
    refused("more rows", &|head| head["rows"] = 256.into());
    refused("no tokens", &|head| head["segments"] = serde_json::json!([]));
    refused("a hole", &|head| head["blocks"][0] = serde_json::json!([false, false]));
    refused("a window", &|head| head["blocks"][0] = serde_json::json!([true, true]));
    refused("an unknown field", &|head| head["more"] = 1.into());
    let long = refused("too long", &|head| {
        head["segments"] =
            serde_json::json!([{"kind": "raw", "text": "A".repeat(5000), "ids": vec![65; 5000]}]);
        (head["blocks"], head["rows"]) = (serde_json::json!([]), 0.into());
    });
    assert!(
        long.contains("context") || long.contains("segment 0") || long.contains("after its end"),
        "{long}"
    );
    // What computed it.
    for (field, value) in [("model", "other"), ("layout", "other"), ("numerics", "other"), ("salt", "other")]
    {
        let file = with_head(&file, |head| head["identity"][field] = value.into());
        let imported = import(&engine, &file, &key(field)).unwrap();
        let reason = imported.reason.unwrap();
        assert!(!imported.is_verbatim && imported.tokens == total, "{field}: {reason}");
        let next = ask(&engine, key(field), &opening);
        assert_eq!((next.usage.reused, &next.ids), (total, &ask(&engine, key("control"), &opening).ids));
    }
}

#[test]
fn another_engine_another_tenant_and_another_model_read_it_again() {
    let (engine, other) = (open(model(1), None), open(model(1), None));
    let (opening, total) = begin(&engine, key("a"), 60);
    let expected = ask(&engine, key("control"), &opening).ids;
    let file = export(&engine, &key("a"));
    let read_again = |engine: &Engine, session: SessionKey, why: &str| {
        let imported = import(engine, &file, &session).unwrap();
        let reason = imported.reason.unwrap();
        assert!(!imported.is_verbatim && imported.tokens == total && reason.contains(why), "{reason}");
        let next = ask(engine, session, &opening);
        assert_eq!((next.usage.kind, next.usage.reused), (MatchKind::Extend, total));
        next.ids
    };
    assert_eq!(read_again(&other, key("a"), "not exported from this cache folder"), expected);
    let tenant = SessionKey { tenant: "theirs".into(), ..key("a") };
    assert_eq!(read_again(&engine, tenant, "another tenant"), expected);
    // Other weights, the same tokenizer.
    let another = open(model(2), None);
    let ids = read_again(&another, key("a"), "model");
    assert_eq!(ids, ask(&another, key("control"), &opening).ids);
}

/// While the engine runs, the least valuable memories are removed; sessions at work, or used again, give the
/// same replies as before.
#[test]
fn a_running_engine_keeps_its_folder_within_a_bound() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(model(1), Some(dir.path()));
    for n in 0..4 {
        begin(&engine, key(&format!("small {n}")), 3);
    }
    let (opening, total) = begin(&engine, key("large"), 90);
    let expected = ask(&engine, SessionKey::new("other", "twin"), &opening).ids;
    assert_eq!(engine.shrink(u64::MAX).unwrap(), cache::Removed::default());
    let request =
        Request { max_tokens: 2000, min_tokens: 2000, ..Request::new(key("large"), opening.clone()) };
    let mut turn = engine.submit(request).unwrap();
    while !matches!(turn.blocking_next(), Some(Event::Text(_))) {}
    let removed = engine.shrink(0).unwrap();
    assert_eq!(removed.sessions, 5, "all but the one at work: {removed:?}");
    drop(turn);
    let stored = engine.stored("").unwrap();
    assert_eq!(stored.iter().map(|entry| &*entry.session.agent).collect::<Vec<_>>(), ["large"]);
    let said = ask(&engine, key("large"), &opening);
    assert_eq!((said.ids, said.usage.reused >= total, said.usage.recomputed), (expected, true, 0));
    drop(engine);
    assert!(cache::Folder::new(dir.path(), None).verify().unwrap().problems.is_empty());
}

fn agents(engine: &Engine) -> Vec<String> {
    engine.stored("").unwrap().into_iter().map(|entry| entry.session.agent).collect()
}

/// If a file can't be read, what it may need stays, so removing sessions would free next to nothing: none is
/// removed, whether the folder is in use or not.
#[test]
fn nothing_goes_while_something_can_not_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(model(1), Some(dir.path()));
    let names = ["a", "b", "c"];
    let opening = names.map(|agent| begin(&engine, key(agent), if agent == "a" { 60 } else { 70 }));
    begin(&engine, key("packed"), 50);
    let store = engine.inner.store_handle.store.clone().unwrap();
    assert!(store.pack_all() > 0);
    let files = |part: &str| crate::tests::exactness::files_with(dir.path(), part);
    let lost = dir.path().join(format!("v4/manifests/{}.log", store.session_id(&key("packed"))));
    drop(store);
    for unreadable in [lost, files(".pack").remove(0)] {
        fault::let_be_unreadable(&unreadable, true);
        let before = files("");
        for _ in 0..2 {
            let removed = engine.shrink(0).unwrap();
            assert_eq!(
                (removed.sessions, removed.bytes, removed.unread),
                (0, 0, 1),
                "{}",
                unreadable.display()
            );
        }
        assert_eq!(files(""), before);
        fault::let_be_unreadable(&unreadable, false);
    }
    // Each has all that it had.
    for (agent, (opening, total)) in names.iter().zip(opening) {
        engine.forget(&key(agent));
        let next = ask(&engine, key(agent), &opening);
        assert_eq!(
            (next.usage.reused, next.usage.recomputed, next.usage.source),
            (total, 0, CacheSource::Disk)
        );
    }
    drop(engine);
    let folder = cache::Folder::new(dir.path(), None);
    let unreadable = files("/manifests/").remove(0);
    fault::let_be_unreadable(&unreadable, true);
    let removed = folder.shrink(0).unwrap();
    assert_eq!((removed.sessions, removed.unread), (0, 1));
    fault::let_be_unreadable(&unreadable, false);
    assert_eq!(folder.shrink(0).unwrap().sessions, 4);
}

/// A pack in which blocks are damaged is set aside by a removal, as by a sweep: else what is removed would
/// stay in it for ever.
#[test]
fn a_removal_sets_damaged_packs_aside() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(model(1), Some(dir.path()));
    begin(&engine, key("a"), 60);
    let next = Conversation {
        system: Some("You are Bob.".into()),
        next: "Well? ".repeat(120),
        ..Conversation::default()
    };
    ask(&engine, key("b"), &next);
    let store = engine.inner.store_handle.store.clone().unwrap();
    assert!(store.pack_all() >= 2);
    let packs = || {
        let all = crate::tests::exactness::files_with(dir.path(), ".pack");
        all.into_iter().filter(|pack| !pack.to_string_lossy().contains("/damaged/")).collect::<Vec<_>>()
    };
    let pack = packs().remove(0);
    let mut bytes = std::fs::read(&pack).unwrap();
    let images = bytes.len() - 2_000; // the index is after them
    bytes[..images].iter_mut().step_by(500).for_each(|byte| *byte ^= 1);
    std::fs::write(&pack, bytes).unwrap();
    let removed = engine.blocking_remove(&key("a")).unwrap();
    assert_eq!((removed.sessions, removed.unread), (1, 0), "{removed:?}");
    assert!(!pack.exists() && crate::tests::exactness::files_with(dir.path(), "/damaged/").len() == 1);
    assert_eq!(engine.shrink(0).unwrap().sessions, 1);
    assert_eq!(packs().len(), 0);
}

/// What belongs to other keys and versions can't be freed, so no memory is removed for it; only the rest of
/// the bound counts.
#[test]
fn no_memory_goes_for_what_is_not_ours() {
    let dir = tempfile::tempdir().unwrap();
    let foreign = dir.path().join("v9/blocks");
    std::fs::create_dir_all(&foreign).unwrap();
    let large =
        |bytes: u64| std::fs::File::create(foreign.join("large")).and_then(|file| file.set_len(bytes));
    large(1 << 40).unwrap();
    let engine = open(model(1), Some(dir.path()));
    begin(&engine, key("a"), 60);
    begin(&engine, key("b"), 3);
    let own = engine.inner.store_handle.folder().unwrap().own_bytes();
    for limit in [0, own, 1 << 30] {
        assert_eq!(engine.shrink(limit).unwrap(), cache::Removed::default());
    }
    large(1 << 20).unwrap();
    assert_eq!(engine.shrink((1 << 20) + own).unwrap(), cache::Removed::default());
    let removed = engine.shrink((1 << 20) + own / 2).unwrap();
    assert!(removed.bytes * 2 >= own && agents(&engine).len() + removed.sessions == 2, "{removed:?}");
    large(1 << 40).unwrap();
    drop(engine);
    let folder = cache::Folder::new(dir.path(), None);
    let (n, removed) = (folder.list().unwrap().len(), folder.shrink(1 << 30).unwrap());
    assert_eq!((removed.sessions, folder.list().unwrap().len()), (0, n));
}

/// What a killed process left belongs to no session, and is removed when the folder is at rest.
#[test]
fn no_memory_goes_for_what_belongs_to_none() {
    const LEFT: u64 = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let engine = open(model(1), Some(dir.path()));
    begin(&engine, key("a"), 60);
    begin(&engine, key("b"), 3);
    let own = engine.inner.store_handle.folder().unwrap().own_bytes();
    let block = dir.path().join(format!("v4/blocks/ab/{}.safetensors", "ab".repeat(32)));
    std::fs::create_dir_all(block.parent().unwrap()).unwrap();
    std::fs::File::create(&block).and_then(|file| file.set_len(LEFT)).unwrap();
    for limit in [0, own / 2, LEFT - 1] {
        assert_eq!(engine.shrink(limit).unwrap(), cache::Removed::default(), "{limit}");
    }
    // Where memories help, they go.
    let removed = engine.shrink(LEFT + own / 2).unwrap();
    assert!(removed.sessions > 0 && block.exists(), "{removed:?}");
    let left = agents(&engine).len();
    drop(engine);
    let folder = cache::Folder::new(dir.path(), None);
    assert_eq!(folder.shrink(LEFT).unwrap().sessions, 0);
    assert!(!block.exists() && folder.list().unwrap().len() == left);
}

/// A session that becomes known again while it is removed is not known afterwards.
#[test]
fn a_session_that_is_removed_is_not_known_again() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(model(1), Some(dir.path()));
    begin(&engine, key("a"), 60);
    for _ in 0..20 {
        begin(&engine, key("b"), 60);
        let session = key("b");
        let mut removal = std::pin::pin!(engine.remove(&session));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        // Requested first; the second request comes while the files are being removed.
        let mut removed = removal.as_mut().poll(&mut context);
        engine.hint_next_use(&session, 1);
        while removed.is_pending() {
            std::thread::yield_now();
            removed = removal.as_mut().poll(&mut context);
        }
        let std::task::Poll::Ready(Ok(removed)) = removed else { panic!("{removed:?}") };
        assert_eq!(removed.sessions, 1);
        assert_eq!(agents(&engine), ["a"]);
        let begun = ask(&engine, key("b"), &Conversation { next: "Who?".into(), ..Conversation::default() });
        assert_ne!(begun.usage.kind, MatchKind::Diverge);
        engine.blocking_remove(&key("b")).unwrap();
    }
}

/// A turn that has ended is committed whatever was removed meanwhile to make room.
#[test]
fn a_turn_that_waits_for_its_commit_keeps_its_session() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(model(1), Some(dir.path()));
    let (opening, _) = begin(&engine, key("a"), 60);
    begin(&engine, key("b"), 60);
    let request =
        Request { retention: Retention::Persistent, max_tokens: 5, ..Request::new(key("a"), opening) };
    let mut turn = engine.submit(request).unwrap();
    while turn.blocking_next().is_some_and(|event| !matches!(event, Event::Done(_))) {}
    assert_eq!(engine.shrink(0).unwrap().sessions, 1);
    turn.blocking_commit().unwrap();
    assert_eq!((agents(&engine), engine.stored("").unwrap()[0].turns), (vec!["a".to_owned()], 2));
    drop(engine);
    assert_eq!(cache::Folder::new(dir.path(), None).verify().unwrap().problems, [""; 0]);
}

#[test]
fn names_states_and_keys_are_respected() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(model(1), Some(dir.path()));
    let (opening, total) = begin(&engine, key("a"), 60);
    let file = export(&engine, &key("a"));
    begin(&engine, key("b"), 3);
    for known in [true, false] {
        if !known {
            engine.forget(&key("b")); // it is on disk only
        }
        let error = import(&engine, &file, &key("b")).unwrap_err();
        assert!(error.to_string().contains("already has a memory"), "{error}");
    }
    let replaced = engine.import(&mut &file[..], &key("b"), true).unwrap();
    assert_eq!((replaced.tokens, replaced.is_verbatim), (total, true));
    assert_eq!(ask(&engine, key("b"), &opening).ids, ask(&engine, key("a"), &opening).ids);
    let missing = engine.export(&key("nobody"), &mut Vec::new()).unwrap_err();
    assert!(missing.to_string().contains("no memory of agent `nobody`"), "{missing}");
    // At work.
    let request = Request { max_tokens: 2000, min_tokens: 2000, ..Request::new(key("a"), opening.clone()) };
    let mut turn = engine.submit(request).unwrap();
    while !matches!(turn.blocking_next(), Some(Event::Text(_))) {}
    let in_use = [
        engine.export(&key("a"), &mut Vec::new()).unwrap_err(),
        engine.import(&mut &file[..], &key("a"), true).unwrap_err(),
        engine.blocking_remove(&key("a")).unwrap_err(),
    ];
    assert!(in_use.iter().all(|error| error.kind() == ErrorKind::InUse), "{in_use:?}");
    drop(turn);
    // With a key.
    let cache_key = Some(cache::CacheKey::new(&"k".repeat(32)).unwrap());
    let config =
        EngineConfig { cache_dir: Some(dir.path().to_owned()), cache_key, ..EngineConfig::new(model(1)) };
    let engine = Engine::open(config).unwrap();
    let imported = import(&engine, &file, &key("a")).unwrap();
    assert!(!imported.is_verbatim && imported.tokens == total);
    let mut out = Vec::new();
    let error = engine.export(&key("a"), &mut out).unwrap_err();
    assert!(error.to_string().contains("encrypted") && out.is_empty(), "{error}");
}

#[test]
fn what_is_removed_is_gone_and_what_others_need_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, engine) = (cache::Folder::new(dir.path(), None), open(model(1), Some(dir.path())));
    let (opening, total) = begin(&engine, key("a"), 60);
    begin(&engine, key("b"), 60); // the same blocks
    let (other, _) = begin(&engine, key("c"), 59);
    let theirs = SessionKey { tenant: "theirs".into(), ..key("a") };
    begin(&engine, theirs.clone(), 60);
    let names = |tenant: &str| -> Vec<String> {
        engine.stored(tenant).unwrap().into_iter().map(|entry| entry.session.agent).collect()
    };
    assert_eq!(
        (names(""), names("theirs"), names("x")),
        (["a", "b", "c"].map(str::to_owned).to_vec(), vec!["a".to_owned()], vec![])
    );
    let entry = engine.stored("").unwrap().remove(0);
    assert!(
        entry.tokens == total
            && entry.bytes > entry.shared_bytes
            && entry.shared_bytes > 0
            && entry.saved_at > 0
    );
    assert!(entry.worth(entry.saved_at) > entry.worth(entry.saved_at + 36_000));
    let removed = engine.blocking_remove(&key("a")).unwrap();
    assert!(removed.sessions == 1 && removed.bytes > 0 && removed.unread == 0, "{removed:?}");
    assert_eq!((names(""), names("theirs")), (["b", "c"].map(str::to_owned).to_vec(), vec!["a".to_owned()]));
    assert!(engine.blocking_status().unwrap().sessions.iter().all(|s| s.key != key("a")));
    // b has all that it had, in RAM and on disk.
    engine.forget(&key("b"));
    let next = ask(&engine, key("b"), &opening);
    assert_eq!((next.usage.reused, next.usage.recomputed, next.usage.source), (total, 0, CacheSource::Disk));
    // The name starts over, with the blocks of others alone.
    assert_eq!(ask(&engine, key("a"), &other).usage.kind, MatchKind::Prefix);
    for session in [key("a"), key("b"), theirs] {
        assert_eq!(engine.blocking_remove(&session).unwrap().sessions, 1);
    }
    assert_eq!(engine.blocking_remove(&key("a")).unwrap(), cache::Removed::default());
    assert_eq!(folder.verify().unwrap().problems, [""; 0]);
    assert_eq!((engine.blocking_remove(&key("c")).unwrap().sessions, names("")), (1, vec![]));
    drop(engine);
    // Nothing is left that a sweep would find.
    let left = crate::tests::exactness::files_with(dir.path(), "");
    assert!(
        !left.iter().any(|path| [".safetensors", ".log", ".pack"]
            .iter()
            .any(|end| path.to_string_lossy().ends_with(end))),
        "{left:?}"
    );
    assert_eq!(folder.remove(&|_| false).unwrap().bytes, 0);
}

#[test]
fn a_removed_session_takes_its_blocks_out_of_packs() {
    let dir = tempfile::tempdir().unwrap();
    let stored = |engine: &Engine| engine.inner.store_handle.store.clone().unwrap();
    let engine = open(model(1), Some(dir.path()));
    begin(&engine, key("a"), 60);
    let (opening, total) = {
        let opening = Conversation {
            system: Some("You are Bob.".into()),
            next: "Well? ".repeat(80),
            ..Conversation::default()
        };
        let said = ask(&engine, key("b"), &opening);
        let exchange = Exchange::new(opening.next.clone(), ReplyContent::Ids(said.ids.clone().into()));
        let total = said.usage.prefilled + said.ids.len();
        (Conversation { exchanges: vec![exchange], next: "Why?".into(), ..opening }, total)
    };
    assert!(stored(&engine).pack_all() >= 2);
    let packs = || crate::tests::exactness::files_with(dir.path(), ".pack");
    let before = std::fs::metadata(&packs()[0]).unwrap().len();
    assert!(engine.blocking_remove(&key("a")).unwrap().bytes > before / 4);
    assert!(packs().len() == 1 && std::fs::metadata(&packs()[0]).unwrap().len() < before);
    engine.forget(&key("b"));
    let next = ask(&engine, key("b"), &opening);
    assert_eq!((next.usage.reused, next.usage.source, next.usage.recomputed), (total, CacheSource::Disk, 0));
    engine.blocking_remove(&key("b")).unwrap();
    assert_eq!(packs().len(), 0);
}

/// An uncommitted turn does not bring a removed session back, and waiting turns begin when it is gone.
#[test]
fn turns_around_a_removal() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(model(1), Some(dir.path()));
    let opening = Conversation { next: "And then? ".repeat(60), ..Conversation::default() };
    let request = |agent: &str| Request {
        retention: Retention::Persistent,
        max_tokens: 5,
        ..Request::new(key(agent), opening.clone())
    };
    let mut turn = engine.submit(request("a")).unwrap();
    while turn.blocking_next().is_some_and(|event| !matches!(event, Event::Done(_))) {}
    assert_eq!(engine.blocking_remove(&key("a")).unwrap().sessions, 1);
    turn.blocking_commit().unwrap();
    assert_eq!(engine.stored("").unwrap().len(), 0);
    let mut late = engine.submit(request("a")).unwrap();
    while late.blocking_next().is_some_and(|event| !matches!(event, Event::Done(_))) {}
    let usage = late.blocking_commit().unwrap().usage;
    assert_eq!((usage.kind, usage.source), (MatchKind::Cold, CacheSource::None));
    assert_eq!(engine.stored("").unwrap().len(), 1);
}
