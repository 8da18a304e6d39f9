//! Raw prompts: compared by ids, and to the bit what a rendered prompt of the same ids is.

use crate::fixtures::RandomModel;
use crate::*;
use std::path::Path;

fn engine(cache_dir: Option<&Path>) -> Engine {
    let model = ModelSource::Bundled("tiny", RandomModel::tiny(4).bytes().leak());
    let config = EngineConfig { cache_dir: cache_dir.map(Path::to_owned), ..EngineConfig::new(model) };
    Engine::open(config).unwrap()
}

fn ask(engine: &Engine, agent: &str, prompt: impl Into<Prompt>) -> Result<Completion> {
    let mut turn = engine.submit(Request {
        retention: Retention::Persistent,
        sampling: Sampling { temperature: 2.0, seed: 5, ..Sampling::default() },
        max_tokens: 30,
        min_tokens: 30,
        ..Request::new(SessionKey::new("r", agent), prompt)
    })?;
    while let Some(event) = turn.blocking_next() {
        if let Event::Failed(error) = event {
            return Err(error);
        }
    }
    turn.blocking_commit().map(|done| *done)
}

fn said(engine: &Engine, agent: &str, prompt: impl Into<Prompt>) -> Completion {
    ask(engine, agent, prompt).unwrap()
}

fn conversation(next: &str) -> Conversation {
    Conversation { system: Some("You are Ada.".into()), next: next.repeat(60), ..Conversation::default() }
}

fn ids(parts: &[&[u32]]) -> Prompt {
    Prompt::Ids(parts.concat().into())
}

#[test]
fn equal_ids_give_equal_replies_however_they_were_given() {
    let engine = engine(None);
    let opening = conversation("Who are you? ");
    let rendered = engine.prompter().prompt_ids(&opening.clone().into()).unwrap();
    assert_eq!(rendered.len(), engine.prompter().prompt_tokens(&opening).unwrap());
    assert_eq!(engine.prompter().decode(&rendered), engine.prompter().render(&opening).unwrap());
    let chat = said(&engine, "chat", opening.clone());
    assert_eq!(said(&engine, "ids", ids(&[&rendered])).ids, chat.ids);
    // As text: tokenized as a whole.
    let text = Prompt::Text(engine.prompter().render(&opening).unwrap());
    let again = engine.prompter().prompt_ids(&text).unwrap();
    let by_text = said(&engine, "text", text);
    assert_eq!(by_text.ids, said(&engine, "text ids", ids(&[&again])).ids);
    // And under a stop string.
    let stopped = |agent: &str, prompt: Prompt, stop: &[String]| {
        let request = Request {
            sampling: Sampling { temperature: 2.0, seed: 5, ..Sampling::default() },
            stop: stop.to_vec(),
            ..Request::new(SessionKey::new("r", agent), prompt)
        };
        let mut turn = engine.submit(request).unwrap();
        while turn.blocking_next().is_some_and(|event| !matches!(event, Event::Done(_))) {}
        let done = turn.blocking_commit().unwrap();
        (done.ids, done.stop, done.text)
    };
    let free = stopped("s0", opening.clone().into(), &[]).2;
    let stop = [free.chars().filter(char::is_ascii_graphic).nth(3).unwrap().to_string()];
    let one = stopped("s1", opening.into(), &stop);
    assert_eq!((one.1, &one), (StopReason::StopString, &stopped("s2", ids(&[&rendered]), &stop)));
}

#[test]
fn a_raw_prompt_extends_what_it_begins_with() {
    let folder = tempfile::tempdir().unwrap();
    let (warm, cold) = (engine(Some(folder.path())), engine(None));
    let start: Vec<u32> = (0..300).map(|i| 40 + i % 60).collect();
    let first = said(&warm, "a", ids(&[&start]));
    assert_eq!((first.usage.kind, first.usage.prefilled), (MatchKind::Cold, 300));
    let known = [&start[..], &first.ids].concat();
    let second = said(&warm, "a", ids(&[&known, &[50, 51, 52]]));
    let usage = &second.usage;
    assert_eq!((usage.kind, usage.reused, usage.prefilled, usage.recomputed), (MatchKind::Extend, 330, 3, 0));
    assert_eq!(second.ids, said(&cold, "b", ids(&[&known, &[50, 51, 52]])).ids);
    // Restored from disk.
    drop(warm);
    let warm = engine(Some(folder.path()));
    let known = [&known[..], &[50, 51, 52], &second.ids].concat();
    let third = said(&warm, "a", ids(&[&known, &[53; 200]]));
    assert_eq!(
        (third.usage.kind, third.usage.reused, third.usage.recomputed),
        (MatchKind::Extend, known.len(), 0)
    );
    assert_eq!(third.ids, said(&cold, "c", ids(&[&known, &[53; 200]])).ids);
    // A difference inside what was one prompt: all before it, which the tail of that block has.
    let other = [&known[..290], &[99; 20]].concat();
    let fourth = said(&warm, "a", ids(&[&other]));
    assert_eq!((fourth.usage.kind, fourth.usage.reused), (MatchKind::Diverge, 290));
    assert_eq!(fourth.ids, said(&cold, "d", ids(&[&other])).ids);
}

#[test]
fn raw_prompts_and_conversations_take_turns_in_one_session() {
    let engine = engine(None);
    let opening = conversation("And then? ");
    let chat = said(&engine, "a", opening.clone());
    let held = [engine.prompter().prompt_ids(&opening.clone().into()).unwrap(), chat.ids.clone()].concat();
    // A raw prompt continues a rendered one.
    let raw = said(&engine, "a", ids(&[&held, &[60; 10]]));
    assert_eq!((raw.usage.kind, raw.usage.reused), (MatchKind::Extend, held.len()));
    assert_eq!(raw.ids, said(&engine, "b", ids(&[&held, &[60; 10]])).ids);
    // The conversation continues, too, where it and the raw prompt were one.
    let exchange = Exchange::new(opening.next.clone(), ReplyContent::Ids(chat.ids.clone().into()));
    let on = Conversation { exchanges: vec![exchange], next: "Why?".into(), ..opening.clone() };
    let back = said(&engine, "a", on.clone());
    assert_eq!(back.usage.kind, MatchKind::Diverge);
    assert!(back.usage.reused >= 256, "{:?}", back.usage);
    assert_eq!(back.ids, said(&engine, "c", on.clone()).ids);
    // On a session that knows raw prompts alone, whole segments of equal ids serve.
    let rendered = engine.prompter().prompt_ids(&opening.clone().into()).unwrap();
    let raw = said(&engine, "d", ids(&[&rendered]));
    assert_eq!(raw.ids, chat.ids);
    let after = said(&engine, "d", on.clone());
    assert_eq!((after.usage.kind, after.usage.reused), (MatchKind::Extend, held.len()));
    assert_eq!(after.ids, back.ids);
    // Another conversation shares no more than its ids do.
    let other = Conversation { system: Some("You are Bob.".into()), ..on };
    said(&engine, "e", ids(&[&rendered]));
    assert_eq!(said(&engine, "e", other.clone()).ids, said(&engine, "f", other).ids);
}

#[test]
fn what_is_no_prompt_is_refused() {
    let engine = engine(None);
    for (prompt, found) in [
        (Prompt::Text(String::new()), "empty"),
        (Prompt::Ids([].into()), "empty"),
        (Prompt::Ids([1, 4_000_000].into()), "token 1 is 4000000"),
        (Prompt::Text("x".repeat(1 << 20)), "context"),
    ] {
        let error = ask(&engine, "a", prompt).unwrap_err();
        assert!(error.kind() == ErrorKind::Request && error.to_string().contains(found), "{error}");
    }
    // Special tokens are recognised in a raw text, and begin it once.
    let ids = |text: &str| engine.prompter().prompt_ids(&Prompt::Text(text.into())).unwrap();
    assert_eq!(engine.begin(&ids("Once")), ids("Once"));
    assert_eq!(ids("Once"), engine.begin(&engine.encode("Once", true).unwrap()));
}
