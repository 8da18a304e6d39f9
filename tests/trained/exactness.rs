//! A long conversation continues with the same log-probabilities and the same tokens, however its memory was
//! built.

use super::{GEMMA3, QWEN05, SMOLLM2, TEXT, Trained, open};
use greenroom_engine::{
    CacheSource, Completion, Constraint, Conversation, Engine, Event, Exchange, KvChoice, MatchKind,
    ReplyContent, Request, Retention, Sampling, SessionKey, Turn,
};

/// Paragraphs of the text that a turn reads.
const N_PARAGRAPHS: usize = 7;
/// Tokens of a reply.
const N_SAID: usize = 64;
/// Tokens that are decoded after the recorded ones of the last reply.
const N_MORE: usize = 32;

fn key(agent: &str) -> SessionKey {
    SessionKey::new("r", agent)
}

/// A turn of the reader, whose reply has `n` tokens.
fn request(conversation: &Conversation, n: usize) -> Request {
    Request {
        retention: Retention::Persistent,
        sampling: Sampling { seed: conversation.exchanges.len() as u64, ..Sampling::default() },
        max_tokens: n,
        min_tokens: n,
        ..Request::new(key("reader"), conversation.clone())
    }
}

fn end(turn: &mut Turn) -> Completion {
    loop {
        match turn.blocking_next().unwrap() {
            Event::Done(completion) => return *completion,
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
}

/// Reads the text turn by turn except its last paragraph, and answers each time. The request after that
/// follows this paragraph as if it had been said, and continues.
fn talk(engine: &Engine) -> Request {
    let paragraphs: Vec<&str> = TEXT.trim_end().split("\n\n").collect();
    let (last, read) = paragraphs.split_last().unwrap();
    let mut conversation = Conversation::default();
    for part in read.chunks(N_PARAGRAPHS) {
        conversation.next = part.join("\n\n");
        let mut turn = engine.submit(request(&conversation, N_SAID)).unwrap();
        let reply = ReplyContent::Ids(end(&mut turn).ids.into());
        turn.blocking_commit().unwrap();
        conversation.exchanges.push(Exchange::new(std::mem::take(&mut conversation.next), reply));
    }
    conversation.next = "And how does the chapter end?".to_owned();
    let recorded = engine.encode(last, false).unwrap();
    let n = recorded.len() + N_MORE;
    Request { constraint: Some(Constraint::Follow(recorded)), ..request(&conversation, n) }
}

/// The reply to a request, not committed: what is stored of the session stays as it is.
fn reply(engine: &Engine, request: Request) -> Completion {
    end(&mut engine.submit(request).unwrap())
}

/// The same while another session decodes.
fn reply_beside_another(engine: &Engine, beside: Request) -> Completion {
    let conversation = Conversation { next: "Tell me a story.".to_owned(), ..Conversation::default() };
    let mut other = engine.submit(Request { session: key("other"), ..request(&conversation, 1000) }).unwrap();
    while !matches!(other.blocking_next(), Some(Event::Text(_))) {}
    reply(engine, beside)
}

fn check(model: &Trained) {
    let Some(path) = model.path() else { return };
    let dir = tempfile::tempdir().unwrap();
    let engine = open(&path, KvChoice::Auto, Some(dir.path()));
    let last = talk(&engine);
    let warm = reply(&engine, last.clone());
    drop(engine);

    let engine = open(&path, KvChoice::Auto, Some(dir.path()));
    let twin = Request { session: key("twin"), parent: Some(key("reader")), ..last.clone() };
    let batched = reply_beside_another(&engine, twin);
    let restored = reply(&engine, last.clone());
    let cold = reply(&engine, Request { session: key("cold"), cold: true, ..last });

    let read = warm.usage.reused;
    let n = read + warm.usage.prefilled + warm.ids.len();
    assert!(n > 1400, "{n} tokens are no long talk");
    for (way, found, expected) in [
        ("warm", &warm, (MatchKind::Extend, CacheSource::Memory, read)),
        ("restored", &restored, (MatchKind::Extend, CacheSource::Disk, read)),
        ("batched", &batched, (MatchKind::Extend, CacheSource::Disk, read)),
        ("cold", &cold, (MatchKind::Cold, CacheSource::None, 0)),
    ] {
        let usage = &found.usage;
        assert_eq!((usage.kind, usage.source, usage.reused), expected, "{way}");
        assert_eq!(found.followed, warm.followed, "{way}: other log-probabilities");
        assert_eq!(found.ids, warm.ids, "{way}: other tokens");
    }
    assert_eq!(warm.ids.len(), warm.followed.len() + N_MORE);
}

#[test]
fn smollm2() {
    check(&SMOLLM2);
}

#[test]
fn gemma3() {
    check(&GEMMA3);
}

#[test]
fn qwen05() {
    check(&QWEN05);
}
