//! What an engine says of itself.

use crate::fixtures::RandomModel;
use crate::*;

#[test]
fn the_status_says_what_is_in_memory_and_at_work() {
    let folder = tempfile::tempdir().unwrap();
    let model = ModelSource::Bundled("tiny", RandomModel::tiny(1).bytes().leak());
    let config = EngineConfig { cache_dir: Some(folder.path().to_owned()), ..EngineConfig::new(model) };
    let engine = Engine::open(config).unwrap();
    let empty = engine.blocking_status().unwrap();
    assert_eq!((empty.active, empty.waiting, empty.sessions.len()), (0, 0, 0));
    assert_eq!(empty.budget_bytes, 1 << 30);
    let request = |agent: &str, retention| Request {
        retention,
        max_tokens: 20,
        min_tokens: 20,
        next_use: Some(7),
        ..Request::new(SessionKey::new("r", agent), Prompt::Ids([65; 260].into()))
    };
    let play = |request| {
        let mut turn = engine.submit(request).unwrap();
        while turn.blocking_next().is_some_and(|event| !matches!(event, Event::Done(_))) {}
        turn
    };
    let a = play(request("a", Retention::Persistent));
    let one = |status: &EngineStatus, agent: &str| {
        status.sessions.iter().find(|session| session.key.agent == agent).cloned().unwrap()
    };
    // Its manifest is not written yet.
    assert!(!one(&engine.blocking_status().unwrap(), "a").is_saved);
    a.blocking_commit().unwrap();
    play(request("b", Retention::Ephemeral)).blocking_commit().unwrap();
    let status = engine.blocking_status().unwrap();
    let (a, b) = (one(&status, "a"), one(&status, "b"));
    assert_eq!((a.tokens, a.tokens_in_memory, a.is_at_work, a.next_use), (280, 280, false, Some(7)));
    assert!(a.is_saved && !b.is_saved);
    assert!(a.bytes_in_memory > 0 && a.bytes_in_memory == b.bytes_in_memory);
    assert!(
        status.memory_bytes >= a.bytes_in_memory && status.memory_bytes < 2 * a.bytes_in_memory,
        "shared once"
    );
    assert!(status.token_ms > 0.0);
    // A session at work, and one that waits for it.
    let long = Request { max_tokens: 1500, min_tokens: 1500, ..request("a", Retention::Persistent) };
    let mut at_work = engine.submit(long).unwrap();
    let waits = engine.submit(request("a", Retention::Persistent)).unwrap();
    while !matches!(at_work.blocking_next(), Some(Event::Text(_))) {}
    let status = engine.blocking_status().unwrap();
    let a = one(&status, "a");
    assert_eq!((status.active, status.waiting, a.is_at_work, a.is_saved), (1, 1, true, false));
    assert!(a.tokens > 260 && a.tokens_in_memory >= 260, "{a:?}");
    drop((at_work, waits));
    engine.forget(&SessionKey::new("r", "b"));
    assert_eq!(engine.blocking_status().unwrap().sessions.iter().filter(|s| s.key.agent == "b").count(), 0);
}
