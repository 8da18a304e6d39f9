//! Turns beside each other: how they end, whom a failure concerns, who waits for room, what is committed in
//! which order.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use greenroom_engine::fixtures::RandomModel;
use greenroom_engine::*;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

fn model() -> ModelSource {
    ModelSource::Bundled("tiny", RandomModel::tiny(1).bytes().leak())
}

fn engine() -> Engine {
    Engine::open(EngineConfig::new(model())).unwrap()
}

fn with_memory(cache_memory: u64) -> Engine {
    Engine::open(EngineConfig::new(model()).cache_memory(cache_memory)).unwrap()
}

fn on_disk(dir: &Path) -> Engine {
    Engine::open(EngineConfig::new(model()).cache_dir(dir)).unwrap()
}

/// A byte is a token; so are a few more around a message.
fn request(agent: &str, text: &str, max_tokens: usize) -> Request {
    Request {
        sampling: Sampling { seed: 3, ..Sampling::default() },
        max_tokens,
        min_tokens: max_tokens,
        ..Request::new(
            SessionKey::new("r", agent),
            Conversation { next: text.into(), ..Conversation::default() },
        )
    }
}

fn end(turn: &mut Turn) -> Result<Completion> {
    while let Some(event) = turn.blocking_next() {
        match event {
            Event::Done(completion) => return Ok(*completion),
            Event::Failed(error) => return Err(error),
            _ => {}
        }
    }
    panic!("a turn ended without an event");
}

fn play(engine: &Engine, request: Request) -> Completion {
    let mut turn = engine.submit(request).unwrap();
    end(&mut turn).unwrap();
    *turn.blocking_commit().unwrap()
}

/// The request that follows a reply.
fn next(request: &Request, reply: &Completion, text: &str) -> Request {
    let mut request = request.clone();
    let conversation = request.prompt.conversation_mut().unwrap();
    let user = std::mem::replace(&mut conversation.next, text.into());
    let reply = ReplyContent::Ids(reply.ids.clone().into());
    conversation.exchanges.push(Exchange::new(user, reply));
    request
}

/// Fails, instead of hanging, if `body` does not end.
fn ends(what: &str, body: impl FnOnce() + Send + 'static) {
    let (sender, ended) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        body();
        let _ = sender.send(());
    });
    match ended.recv_timeout(Duration::from_secs(60)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs: {what}"),
        _ => thread.join().unwrap(),
    }
}

#[test]
fn an_engine_ends_whatever_turns_there_are() {
    ends("a turn at work", || {
        let engine = engine();
        let mut turn = engine.submit(request("a", "Go on.", 3000)).unwrap();
        drop(engine);
        assert_eq!(end(&mut turn).unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(turn.blocking_commit().unwrap_err().kind(), ErrorKind::Closed);
    });
    ends("a turn that waits for another of its session", || {
        let engine = engine();
        let mut turns = [0, 1].map(|_| engine.submit(request("a", "Go on.", 3000)).unwrap());
        drop(engine);
        turns.iter_mut().for_each(|turn| assert_eq!(end(turn).unwrap_err().kind(), ErrorKind::Closed));
    });
    ends("a turn that has ended and is not committed", || {
        let engine = engine();
        let mut turn = engine.submit(request("a", "Go on.", 3)).unwrap();
        end(&mut turn).unwrap();
        drop(engine);
        assert_eq!(turn.blocking_commit().unwrap_err().kind(), ErrorKind::Closed);
    });
    ends("a turn in another thread", || {
        let engine = engine();
        let mut turn = engine.submit(request("a", "Go on.", 3000)).unwrap();
        let listener = std::thread::spawn(move || end(&mut turn).map(drop));
        drop(engine);
        assert_eq!(listener.join().unwrap().unwrap_err().kind(), ErrorKind::Closed);
    });
}

#[test]
fn a_request_that_can_not_be_served_fails_alone() {
    let alone = play(&engine(), request("good", "Tell me.", 40)).ids;
    let engine = engine();
    let mut good = engine.submit(request("good", "Tell me.", 40)).unwrap();
    let ids = |ids: Vec<u32>| {
        let exchange = Exchange::new("Hello.".into(), ReplyContent::Ids(ids.into()));
        let mut request = request("ids", "Go on.", 3);
        request.prompt.conversation_mut().unwrap().exchanges.push(exchange);
        request
    };
    let bad = [
        request("endless", "Go on.", usize::MAX),
        request("nearly endless", "Go on.", usize::MAX - 12),
        request("long", &"x".repeat(4096), 1),
        ids(vec![u32::MAX]),
        Request { constraint: Some(Constraint::Follow(vec![u32::MAX])), ..request("follow", "Go on.", 3) },
        Request { constraint: Some(Constraint::OneOf(Vec::new())), ..request("none", "Go on.", 3) },
    ];
    for request in bad {
        let agent = request.session.agent.clone();
        let error = end(&mut engine.submit(request).unwrap()).expect_err(&agent);
        assert_eq!(error.kind(), ErrorKind::Request, "{agent}: {error}");
    }
    assert_eq!(end(&mut good).unwrap().ids, alone);
}

#[test]
fn no_tokens_are_none() {
    let engine = engine();
    let fits = |n: usize| end(&mut engine.submit(request("a", &"x".repeat(n), 0)).unwrap());
    let most = (3900..4096).rev().find(|n| fits(*n).is_ok()).expect("a prompt that fits");
    assert!(fits(most + 1).is_err(), "the longest prompt fills the context");
    let mut others = ["b", "c"].map(|agent| engine.submit(request(agent, "Tell me.", 30)).unwrap());
    let read = fits(most).unwrap();
    assert_eq!((read.ids.len(), read.stop), (0, StopReason::Length));
    others.iter_mut().for_each(|turn| assert!(end(turn).unwrap().ids.len() > 20));
    // What was read is there for the next turn.
    let first = request("d", "A long story. ", 0);
    let read = play(&engine, first.clone());
    let after = play(&engine, Request { max_tokens: 5, ..next(&first, &read, "And?") });
    assert_eq!((after.usage.kind, after.usage.reused), (MatchKind::Extend, read.usage.prefilled));
}

/// Many long prompts at once, and memory for a few of them: each says what it says alone, and the others
/// wait.
#[test]
fn turns_wait_for_room() {
    let text = |i: usize| format!("{i}: {}", "The mill stands by the river. ".repeat(20));
    let requests = || (0..12).map(|i| request(&format!("agent {i}"), &text(i), 40));
    let plenty = engine();
    let expected: Vec<_> = requests().map(|request| play(&plenty, request)).collect();
    // A turn's cache, f16 rows of two more blocks; texts and ids of all, for none is committed before the
    // end.
    let cost = PromptEncoder::open(&model()).unwrap().kv_cost(&KvChoice::Auto).unwrap();
    let need = cost.most(720) + 2 * 256 * cost.open + 12 * 10 * 720;
    for budget in [0, need, 3 * need, u64::MAX] {
        let engine = with_memory(budget);
        let mut turns: Vec<_> = requests().map(|request| engine.submit(request).unwrap()).collect();
        for (turn, expected) in turns.iter_mut().zip(&expected) {
            let found = end(turn).unwrap();
            assert_eq!(found.ids, expected.ids, "with {budget} bytes");
            let bytes = found.usage.memory_bytes;
            assert!(bytes <= budget.max(need), "{bytes} bytes, with {budget}");
        }
        turns.into_iter().for_each(|turn| drop(turn.blocking_commit().unwrap()));
    }
}

/// Texts and ids of a session count against the budget, and go when there is no room for them.
#[test]
fn ephemeral_sessions_are_forgotten_under_a_budget() {
    let engine = with_memory(0);
    let last = |n: usize| {
        let played = |i| play(&engine, request(&format!("{n}/{i}"), &"So it was. ".repeat(30), 4));
        (0..n).map(played).map(|done| done.usage.memory_bytes).reduce(|_, last| last).unwrap()
    };
    let (few, many) = (last(2), last(60));
    assert!(many <= few + 1024, "{few} bytes after two sessions, {many} after sixty more");
}

fn persistent(agent: &str, text: &str, max_tokens: usize) -> Request {
    Request { retention: Retention::Persistent, ..request(agent, text, max_tokens) }
}

#[test]
fn a_manifest_does_not_go_back() {
    let dir = tempfile::tempdir().unwrap();
    let first = persistent("a", &"It began so. ".repeat(12), 20);
    let (second, third);
    {
        let engine = on_disk(dir.path());
        let mut one = engine.submit(first.clone()).unwrap();
        second = next(&first, &end(&mut one).unwrap(), &"And then. ".repeat(12));
        let mut two = engine.submit(second.clone()).unwrap();
        third = next(&second, &end(&mut two).unwrap(), "And now?");
        two.blocking_commit().unwrap();
        one.blocking_commit().unwrap();
    }
    let last = play(&on_disk(dir.path()), third);
    assert_eq!((last.usage.kind, last.usage.recomputed), (MatchKind::Extend, 0), "{:?}", last.usage.reason);
}

/// Whatever files the turn that is given up would have let go, the next manifest lets go.
#[test]
fn a_turn_given_up_while_the_next_is_at_work_leaves_no_files() {
    let first = persistent("a", &"It began so. ".repeat(12), 20);
    let goes_on = |begun: &Completion| next(&first, begun, &"And then. ".repeat(20));
    // Its prompt differs within the first turn's block, so the first turn's tail has served.
    let goes_back = |_: &Completion| persistent("a", &"It began. ".repeat(14), 20);
    let ways: [&dyn Fn(&Completion) -> Request; 2] = [&goes_on, &goes_back];
    for (n_named, second) in [3, 2].into_iter().zip(ways) {
        let dir = tempfile::tempdir().unwrap();
        let n_tails = || {
            let version = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap();
            std::fs::read_dir(version.path().join("tails")).unwrap().count()
        };
        let engine = on_disk(dir.path());
        let begun = play(&engine, first.clone());
        assert_eq!(n_tails(), 1);
        let second = second(&begun);
        let mut two = engine.submit(second.clone()).unwrap();
        let third = Request {
            max_tokens: 400,
            min_tokens: 400,
            ..next(&second, &end(&mut two).unwrap(), "And now?")
        };
        let mut three = engine.submit(third).unwrap();
        while !matches!(three.blocking_next(), Some(Event::Text(_))) {}
        drop(two);
        end(&mut three).unwrap();
        three.blocking_commit().unwrap();
        drop(engine);
        // A tail for each block in which a turn ended, all of them named: a sweep finds nothing.
        assert_eq!(n_tails(), n_named);
        let swept = cache::Folder::new(dir.path(), None).remove(&|_| false).unwrap();
        assert_eq!((swept, n_tails()), (cache::Removed::default(), n_named));
    }
}

/// Reading the sample takes a while with a large model, so it is said; a folder knows what came of it.
#[test]
fn a_model_is_measured_once_for_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let opened = |cache_dir: Option<&Path>| {
        let cache_dir = cache_dir.map(Path::to_owned);
        let mut config = EngineConfig::new(model());
        (config.cache_dir, config.self_check) = (cache_dir, true);
        let mut progress = Vec::new();
        Engine::open_with_progress(config, &mut |loading| progress.push(loading)).unwrap();
        let weights = progress
            .iter()
            .filter(|loading| matches!(loading, Loading::Weights { done, total } if done == total));
        assert_eq!(weights.count(), 1, "{progress:?}");
        progress.contains(&Loading::Measuring)
    };
    assert!(opened(Some(dir.path())));
    assert!(!opened(Some(dir.path())));
    assert!(opened(None));
}

/// One engine, one copy of the weights, two tenants: what one has read the other reads from scratch, in RAM
/// and from disk, and neither begins with the other's memory.
#[test]
fn tenants_of_one_engine_share_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let text = "What is on the table? ".repeat(30);
    let of = |tenant: &str, agent: &str| {
        let mut request = Request { retention: Retention::Persistent, ..request(agent, &text, 4) };
        request.session.tenant = tenant.into();
        request
    };
    let reused = |engine: &Engine, request: Request| play(engine, request).usage.reused;
    {
        let engine = on_disk(dir.path());
        assert_eq!(reused(&engine, of("one", "a")), 0);
        assert_eq!(reused(&engine, of("two", "a")), 0, "the same session of another tenant");
        assert!(reused(&engine, of("one", "b")) >= 256, "blocks of one tenant's agents are shared");
        let parent = Some(of("one", "a").session);
        let refused = engine.submit(Request { parent: parent.clone(), ..of("two", "c") });
        assert_eq!(refused.err().map(|e| e.kind()), Some(ErrorKind::Request));
        assert!(reused(&engine, Request { parent, ..of("one", "c") }) > 0);
    }
    let engine = on_disk(dir.path());
    assert_eq!(reused(&engine, of("three", "a")), 0);
    assert!(reused(&engine, of("two", "a")) > 256);
    let entries = cache::Folder::new(dir.path(), None).list().unwrap();
    let mut tenants: Vec<String> = entries.into_iter().map(|entry| entry.session.tenant).collect();
    tenants.sort();
    tenants.dedup();
    assert_eq!(tenants, ["one", "three", "two"]);
}

#[test]
fn a_memory_of_many_blocks_comes_back_from_disk_whole() {
    let dir = tempfile::tempdir().unwrap();
    let text = "A bed of reeds. ".repeat(240); // more than twelve blocks
    let asked = persistent("ann", &text, 4);
    let first = play(&on_disk(dir.path()), asked.clone());
    let again = play(&on_disk(dir.path()), next(&asked, &first, "And then?")).usage;
    assert_eq!((again.source, again.recomputed), (CacheSource::Disk, 0));
    assert!(again.reused > 12 * 256, "{again:?}");
    // A session that reads the same finds it by its content.
    let other = play(&on_disk(dir.path()), persistent("ben", &(text + "Who asks?"), 4)).usage;
    assert_eq!((other.source, other.kind), (CacheSource::Disk, MatchKind::Prefix));
    assert!(other.reused >= 12 * 256, "{other:?}");
}
