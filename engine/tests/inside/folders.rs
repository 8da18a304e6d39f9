//! Cache folders as nobody should find them: what `verify` sees, what a sweep spares, and what one process
//! may hold open.

use crate::fault::fail_read;
use crate::fixtures::RandomModel;
use crate::memory::Memory;
use crate::store::inventory::Folder;
use crate::tests::exactness::{Bench, N, files_with, request};
use crate::{
    Completion, Conversation, Engine, EngineConfig, Event, Exchange, KvFormat, MatchKind, ModelSource,
    ReplyContent, Request, SessionKey, Turn,
};
use greenroom_kernels::Isa;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A folder in which there is one of everything: two agents, blocks packed and loose, tails, a verdict.
fn furnish(bench: &Bench, dir: &Path) {
    let mut memory = bench.memory(dir);
    bench.store(&mut memory, 600);
    let store = memory.store.as_ref().expect("a store");
    assert_eq!(store.pack_all(), 2);
    store.write_check(bench.context.root_of(""), "0.0123").expect("a verdict");
    bench.store_as(&mut memory, &SessionKey { agent: "b".to_owned(), ..request().session }, N);
    assert_eq!(files_with(dir, ".safetensors").len(), 1);
}

/// Every file of a folder with its bytes.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let read = |path: PathBuf| {
        let bytes = std::fs::read(&path).expect("a file");
        (path.strip_prefix(dir).expect("inside").to_owned(), bytes)
    };
    files_with(dir, "").into_iter().map(read).collect()
}

/// Makes a folder of what [`contents`] gave.
fn restore(files: &BTreeMap<PathBuf, Vec<u8>>, dir: &Path) {
    for (path, bytes) in files {
        let path = dir.join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, bytes).expect("a file");
    }
}

fn problems(dir: &Path) -> Vec<String> {
    Folder::new(dir, None).verify().expect("a verdict").problems
}

/// A flipped bit anywhere in any file, a file's end, appended bytes: `verify` reports it.
#[test]
fn verify_sees_every_damage() {
    let bench = Bench::new(KvFormat::Q4, Isa::detect());
    let dir = tempfile::tempdir().expect("a folder");
    furnish(&bench, dir.path());
    assert_eq!(problems(dir.path()), [""; 0]);
    for (path, bytes) in contents(dir.path()) {
        let full = dir.path().join(&path);
        let damaged = |what: &str, damage: &[u8]| {
            std::fs::write(&full, damage).expect("a write");
            let found = problems(dir.path());
            assert!(!found.is_empty(), "{what} in {}", path.display());
        };
        let dense = 90;
        let places = (0..bytes.len()).filter(|at| {
            *at < dense || *at + dense > bytes.len() || at.is_multiple_of(bytes.len().div_ceil(60))
        });
        for at in places {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            damaged(&format!("a bit of byte {at}"), &flipped);
        }
        damaged("garbage behind the end", &[&bytes[..], &b"what nobody wrote ".repeat(4)].concat());
        // (A log without its last record is the turn before, as after a crash; a tail must have what its
        // manifest says.)
        if !bytes.is_empty() {
            damaged("nothing left", &[]);
        }
        if !path.starts_with("v4/manifests") && !bytes.is_empty() {
            damaged("half of it", &bytes[..bytes.len() / 2]);
            damaged("all but a byte", &bytes[..bytes.len() - 1]);
        }
        std::fs::write(&full, bytes).expect("a write");
    }
    assert_eq!(problems(dir.path()), [""; 0]);
}

/// The pack of blocks that have whole files of their own too is read all the same, and so is the other way
/// round.
#[test]
fn verify_reads_twins() {
    let bench = Bench::new(KvFormat::Q4, Isa::detect());
    let dir = tempfile::tempdir().expect("a folder");
    bench.store(&mut bench.memory(dir.path()), 600);
    let loose: Vec<_> =
        contents(dir.path()).into_iter().filter(|(p, _)| p.starts_with("v4/blocks")).collect();
    let memory = bench.memory(dir.path());
    memory.store.as_ref().expect("a store").pack_all();
    drop(memory);
    restore(&loose.into_iter().collect(), dir.path());
    assert_eq!(problems(dir.path()), [""; 0]);
    let reference = bench.reference();
    for part in [".pack", ".safetensors"] {
        let path = files_with(dir.path(), part).remove(0);
        let whole = std::fs::read(&path).expect("a file");
        let mut damaged = whole.clone();
        damaged[whole.len() / 3] ^= 4;
        std::fs::write(&path, &damaged).expect("a write");
        assert_eq!(problems(dir.path()).len(), 1, "{part}");
        // And one twin serves for the other.
        assert_eq!(bench.check_recall(dir.path(), 600, &reference).reused, 600, "{part}");
        std::fs::write(&path, &whole).expect("a write");
    }
}

/// Each thing that does not belong into a cache folder is named by `verify`, and no sweep removes it or
/// stumbles over it.
#[cfg(unix)]
#[test]
fn foreign_files_are_reported_and_spared() {
    let bench = Bench::new(KvFormat::Q4, Isa::detect());
    let dir = tempfile::tempdir().expect("a folder");
    furnish(&bench, dir.path());
    let root = dir.path().join("v4");
    let mut strangers = Vec::new();
    for folder in ["", "runs", "blocks", "blocks/00", "windows", "packs", "tails", "manifests", "checks"] {
        std::fs::create_dir_all(root.join(folder)).expect("a folder");
        for name in ["notes.txt", "x.log", "x.pack", "x.safetensors", ".hidden"] {
            strangers.push(root.join(folder).join(name));
            std::fs::write(root.join(folder).join(name), "mine").expect("a file");
        }
        let odd = std::ffi::OsStr::new("caf");
        let odd = [std::os::unix::ffi::OsStrExt::as_bytes(odd), b"\xe9.log"].concat();
        let odd =
            std::ffi::OsString::from(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(&odd));
        strangers.push(root.join(folder).join(&odd));
        std::fs::write(root.join(folder).join(odd), "mine").expect("a file");
    }
    let found = problems(dir.path());
    assert_eq!(found.len(), strangers.len(), "{found:#?}");
    let folder = Folder::new(dir.path(), None);
    assert_eq!(folder.remove(&|_| false).expect("a sweep").unread, 0);
    // However much others put there, no memory is removed for it.
    std::fs::File::create(root.join("notes.txt"))
        .and_then(|file| file.set_len(1 << 40))
        .expect("a large file");
    assert_eq!(folder.shrink(1 << 30).expect("a sweep").sessions, 0);
    folder.remove(&|_| true).expect("a removal");
    assert!(strangers.iter().all(|path| path.exists()));
}

/// A read that fails during a sweep of any kind damages nothing that stays, and removes nothing that was to
/// stay.
#[test]
fn a_read_that_fails_costs_no_memory() {
    let bench = Bench::new(KvFormat::Q4, Isa::detect());
    let reference = bench.reference();
    let dir = tempfile::tempdir().expect("a folder");
    furnish(&bench, dir.path());
    let whole = contents(dir.path());
    let memories = |files: &BTreeMap<PathBuf, Vec<u8>>| {
        let kept = |path: &Path| !path.starts_with("v4/runs");
        files.keys().filter(|path| kept(path)).cloned().collect::<Vec<_>>()
    };
    let bound = whole.values().map(|bytes| bytes.len() as u64).sum::<u64>() / 2;
    type Sweep = fn(&Folder, u64) -> crate::Result<crate::cache::Removed>;
    let sweeps: [(&str, bool, Sweep); 3] = [
        ("gc", false, |folder, _| folder.remove(&|_| false)),
        ("rm", true, |folder, _| folder.remove(&|entry| entry.session.agent == "b")),
        ("bound", true, |folder, bound| folder.shrink(bound)),
    ];
    for (what, removes, sweep) in sweeps {
        let mut failed = 0;
        for n in 1.. {
            let dir = tempfile::tempdir().expect("a folder");
            restore(&whole, dir.path());
            fail_read(n);
            let swept = sweep(&Folder::new(dir.path(), None), bound);
            if fail_read(0) > 0 {
                assert!(swept.is_ok(), "{what}: without a fault");
                break; // there are no more reads
            }
            failed += 1;
            assert_eq!(problems(dir.path()), [""; 0], "{what}, read {n} failed");
            assert!(files_with(dir.path(), "/damaged/").is_empty(), "{what}: read {n}");
            let left = contents(dir.path());
            if !removes {
                assert_eq!(memories(&left), memories(&whole), "{what}, read {n} failed");
            }
            // Each of the two agents is there with all that it had, or is not there at all.
            let manifests = left.keys().filter(|path| path.starts_with("v4/manifests")).count();
            assert!(manifests >= usize::from(!removes), "{what}: read {n}");
        }
        assert!(failed > 20, "{what}: only {failed} reads");
    }
    // A turn whose reads fail is computed, and loses nothing either.
    for n in 1.. {
        let dir = tempfile::tempdir().expect("a folder");
        restore(&whole, dir.path());
        fail_read(n);
        bench.check_recall(dir.path(), 600, &reference);
        if fail_read(0) > 0 {
            break;
        }
        assert!(files_with(dir.path(), "/damaged/").is_empty(), "recall: read {n}");
        assert_eq!(memories(&contents(dir.path())), memories(&whole), "recall: read {n}");
        assert_eq!(bench.check_recall(dir.path(), 600, &reference).reused, 600, "recall: read {n}");
    }
}

/// Damaged files are moved out of the way, and stay there until the next sweep.
#[test]
fn what_is_damaged_is_set_aside_before_it_goes() {
    let bench = Bench::new(KvFormat::Q4, Isa::detect());
    let dir = tempfile::tempdir().expect("a folder");
    furnish(&bench, dir.path());
    let folder = Folder::new(dir.path(), None);
    for part in ["/manifests/", "/packs/"] {
        let path = files_with(dir.path(), part).remove(0);
        let mut bytes = std::fs::read(&path).expect("a file");
        let last = bytes.len() - 60; // in a pack's index, in a manifest's only record
        bytes[last] ^= 1;
        std::fs::write(&path, &bytes).expect("a write");
        folder.remove(&|_| false).expect("a sweep");
        let aside = files_with(dir.path(), "/damaged/");
        assert!(!path.exists() && aside.len() == 1, "{part}: {aside:?}");
        assert_eq!(std::fs::read(&aside[0]).expect("a file"), bytes, "{part}");
        folder.remove(&|_| false).expect("a sweep");
        assert!(files_with(dir.path(), "/damaged/").is_empty(), "{part}");
    }
}

/// A process that plays many runs holds the locks of a few only, and what rested is whole when it is needed
/// again.
#[cfg(target_os = "linux")]
#[test]
fn many_runs_do_not_hold_many_files() {
    let bench = Bench::new(KvFormat::Q4, Isa::detect());
    let dir = tempfile::tempdir().expect("a folder");
    let mut memory = bench.memory(dir.path());
    let key = |i: usize| SessionKey::new(format!("run {i}"), "a");
    let open = || {
        let links = std::fs::read_dir("/proc/self/fd").expect("open files").flatten();
        let targets = links.filter_map(|link| std::fs::read_link(link.path()).ok());
        targets.filter(|target| target.starts_with(dir.path().join("v4/runs"))).count()
    };
    let turn = |memory: &mut Memory, key: &SessionKey, n: usize| {
        let request = Request { session: key.clone(), ..request() };
        let mut recalled = memory.recall(&request, &[bench.segment(0..n)]).expect("a session");
        let (reused, kind) = (recalled.reused, recalled.kind);
        bench.feed(&mut recalled.session.sequence, &mut memory.arena, n, 256);
        recalled.session.sequence.end_turn(&mut memory.arena);
        recalled.session.segments = vec![bench.segment(0..n)];
        let pending = memory.save_now(key, &mut recalled.session).expect("a save").0;
        memory.take_back(key.clone(), recalled.session, None);
        memory.commit_now(pending).expect("a commit");
        (reused, kind)
    };
    let first = turn(&mut memory, &key(0), 20);
    assert_eq!(first.0, 0);
    for i in 1..150 {
        turn(&mut memory, &key(i), 20);
        assert!(open() <= 33, "{} files after {i} runs", open());
    }
    // Twenty tokens: all but the one that is fed again come from disk.
    assert_eq!(turn(&mut memory, &key(0), 20).0, 19);
    // While a session is at work its run stays claimed, however many others come.
    let request = Request { session: key(7), ..request() };
    let recalled = memory.recall(&request, &[bench.segment(0..20)]).expect("a session");
    // Nor does a fork onto it give it up, when an earlier turn of it is committed then.
    turn(&mut memory, &key(199), 20);
    memory.fork(&key(199), None, key(7), false);
    memory.saved(&key(7));
    for i in 200..260 {
        turn(&mut memory, &key(i), 5);
    }
    let another = bench.open_store(dir.path());
    assert!(another.claim(&key(7)).is_err() && another.claim(&key(9)).is_ok());
    memory.take_back(key(7), recalled.session, None);
}

/// Three turns of a session, each ended before any is committed; whatever is committed in whatever order, the
/// manifest says the latest state that was, and it is whole.
#[test]
fn commits_out_of_order_do_not_take_a_manifest_back() {
    let model: &'static [u8] = RandomModel::tiny(5).bytes().leak();
    for order in [&[0, 1, 2][..], &[2, 1, 0], &[1, 0], &[2, 0, 1], &[0, 2, 1], &[2], &[1, 2, 0]] {
        let dir = tempfile::tempdir().expect("a folder");
        let open = || {
            let config = EngineConfig::new(ModelSource::Bundled("tiny", model));
            let cache_dir = Some(dir.path().to_owned());
            Engine::open(EngineConfig { cache_dir, threads: Some(1), ..config }).expect("an engine")
        };
        let engine = open();
        let mut conversation =
            Conversation { next: "Tell me of the mill. ".repeat(9), ..Conversation::default() };
        let mut turns = Vec::new();
        for _ in 0..3 {
            let (turn, completion) = play(&engine, &conversation);
            turns.push((
                Some(turn),
                completion.usage.prefilled + completion.usage.reused + completion.ids.len(),
            ));
            let user = std::mem::replace(&mut conversation.next, "And then what? ".repeat(9));
            conversation.exchanges.push(Exchange::new(user, ReplyContent::Ids(completion.ids.into())));
        }
        for i in order {
            turns[*i].0.take().expect("a turn").blocking_commit().expect("a commit");
        }
        let latest = order.iter().max().expect("a turn");
        let tokens = turns[*latest].1;
        drop(turns);
        drop(engine);
        assert_eq!(problems(dir.path()), [""; 0], "{order:?}");
        let stored = Folder::new(dir.path(), None).list().expect("a folder");
        // The last token of a reply is read with the next turn.
        assert!(
            stored.len() == 1 && stored[0].tokens.abs_diff(tokens) <= 1,
            "{order:?}: {stored:?}, {tokens}"
        );
        conversation.exchanges.truncate(latest + 1);
        let (_, completion) = play(&open(), &conversation);
        assert_eq!((completion.usage.kind, completion.usage.reason), (MatchKind::Extend, None), "{order:?}");
    }
}

/// Plays a turn to its end.
fn play(engine: &Engine, conversation: &Conversation) -> (Turn, Box<Completion>) {
    let request = Request { prompt: conversation.clone().into(), max_tokens: 9, min_tokens: 9, ..request() };
    let mut turn = engine.submit(request).expect("a turn");
    loop {
        match turn.blocking_next().expect("an end") {
            Event::Done(completion) => return (turn, completion),
            Event::Failed(e) => panic!("{e}"),
            _ => {}
        }
    }
}

/// An obstacle in a folder's place costs the memories, not the run; each turn says why.
#[test]
fn a_folder_that_can_not_be_used_costs_time() {
    let model: &'static [u8] = RandomModel::tiny(5).bytes().leak();
    for place in ["v4", "v4/tails", "v4/lock"] {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join(place);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        match place {
            "v4/lock" => std::fs::create_dir(&path).expect("a folder"),
            _ => std::fs::write(&path, "in the way").expect("a file"),
        }
        let config = EngineConfig::new(ModelSource::Bundled("tiny", model));
        let config = EngineConfig { cache_dir: Some(dir.path().to_owned()), threads: Some(1), ..config };
        let engine = Engine::open(config).expect("an engine");
        let mut conversation = Conversation { next: "Hello?".to_owned(), ..Conversation::default() };
        for reused in [false, true] {
            let (turn, completion) = play(&engine, &conversation);
            assert_eq!(completion.usage.reused > 0, reused, "{place}");
            let reason = turn.blocking_commit().expect("a commit").usage.reason.unwrap_or_default();
            assert!(reason.contains("RAM"), "{place}: {reason}");
            let user = std::mem::replace(&mut conversation.next, "And then?".to_owned());
            conversation.exchanges.push(Exchange::new(user, ReplyContent::Ids(completion.ids.into())));
        }
    }
}
