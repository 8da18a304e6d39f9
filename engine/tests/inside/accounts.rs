//! What a completion says of how it came about: where its prompt left what was held, and its digest.

use crate::fixtures::RandomModel;
use crate::tests::play;
use crate::*;
use std::path::Path;

fn engine(cache_dir: Option<&Path>) -> Engine {
    let model = ModelSource::Bundled("tiny", RandomModel::tiny(4).bytes().leak());
    let config = EngineConfig { cache_dir: cache_dir.map(Path::to_owned), ..EngineConfig::new(model) };
    Engine::open(config).unwrap()
}

fn asked(agent: &str, exchanges: Vec<Exchange>, text: &str) -> Request {
    Request {
        sampling: Sampling { temperature: 2.0, seed: 8, ..Sampling::default() },
        max_tokens: 10,
        retention: Retention::Persistent,
        ..Request::new(
            SessionKey::new("r", agent),
            Conversation {
                system: Some("Ü.".into()),
                exchanges,
                next: text.into(),
                ..Conversation::default()
            },
        )
    }
}

fn past(user: &str, reply: &Completion) -> Exchange {
    Exchange::new(user.into(), ReplyContent::Ids(reply.ids.clone().into()))
}

#[test]
fn a_prompt_that_leaves_what_was_held_says_where() {
    let (engine, text) = (engine(None), "Ä long story about a harbour, a town and a lighthouse. ".repeat(4));
    let first = play(&engine, asked("a", Vec::new(), &text));
    assert_eq!(first.usage.divergence, None);
    let second = play(&engine, asked("a", vec![past(&text, &first)], "And then?"));
    assert_eq!((second.usage.divergence, second.usage.kind), (None, MatchKind::Extend));
    let edited = text.replacen("lighthouse", "ship", 1);
    let prompt = |text: &str| {
        engine.prompter().render(asked("", Vec::new(), text).prompt.conversation().unwrap()).unwrap()
    };
    let (held, wanted) = (prompt(&text), prompt(&edited));
    let from = |text: &str, at: usize| text.chars().skip(at).take(Divergence::LENGTH).collect::<String>();
    let character = held.chars().zip(wanted.chars()).take_while(|(a, b)| a == b).count();
    let before = engine.encode(&held[..held.find('Ä').unwrap()], true).unwrap().len();
    let ids = |text: &str| engine.encode(text, false).unwrap();
    let token = before + ids(&text).iter().zip(ids(&edited)).take_while(|(a, b)| **a == *b).count();
    let expected = Divergence {
        token,
        character,
        held: from(&held, character - Divergence::BEFORE),
        asked: from(&wanted, character - Divergence::BEFORE),
    };
    assert!(expected.asked.contains("and a ship."), "{expected:?}");
    // A new session with a parent gets it, too.
    let child = Request { parent: Some(SessionKey::new("r", "a")), ..asked("b", Vec::new(), &edited) };
    for request in [child, asked("a", Vec::new(), &edited)] {
        let found = play(&engine, request);
        assert_eq!(found.usage.divergence.as_ref(), Some(&expected));
        assert_eq!(found.usage.reason, Some(expected.to_string()), "one mechanism");
    }
    let cold = play(&engine, Request { cold: true, ..asked("a", Vec::new(), &text) });
    assert_eq!(cold.usage.divergence, None);
}

#[test]
fn a_prompt_that_ends_before_what_was_held_says_so_too() {
    let engine = engine(None);
    let first = play(&engine, asked("a", Vec::new(), "One."));
    let found = play(&engine, asked("a", Vec::new(), "One.")).usage.divergence.unwrap();
    let request = asked("a", Vec::new(), "One.");
    let prompt = engine.prompter().render(request.prompt.conversation().unwrap()).unwrap();
    let n = engine.prompter().prompt_tokens(request.prompt.conversation().unwrap()).unwrap();
    assert_eq!((found.token, found.character), (n, prompt.chars().count()));
    let end: String = prompt.chars().skip(found.character - Divergence::BEFORE).collect();
    let mut held = end.clone() + &first.text;
    held = held.chars().take(Divergence::LENGTH).collect();
    assert_eq!((found.asked, found.held), (end, held));
}

#[test]
fn the_digest_is_that_of_what_was_said_and_not_of_how() {
    let folder = tempfile::tempdir().unwrap();
    let (long, other) = ("A long story. ".repeat(40), engine(None));
    let engine = engine(Some(folder.path()));
    let first = play(&engine, asked("a", Vec::new(), &long));
    let request = asked("a", vec![past(&long, &first)], "And then?");
    let hot = play(&engine, request.clone());
    assert_ne!(hot.digest, first.digest);
    let as_agent = |agent: &str| Request { session: SessionKey::new("r", agent), ..request.clone() };
    let same = |done: Completion, what: &str| {
        assert_eq!((done.ids, done.digest), (hot.ids.clone(), hot.digest.clone()), "{what}")
    };
    same(play(&engine, request.clone()), "taken back");
    same(play(&engine, Request { cold: true, ..request.clone() }), "cold");
    same(play(&engine, as_agent("b")), "by blocks of another");
    same(play(&engine, Request { parent: Some(SessionKey::new("r", "a")), ..as_agent("c") }), "forked");
    same(play(&other, request.clone()), "another engine");
    let beside = engine.submit(asked("d", Vec::new(), &long)).unwrap();
    same(play(&engine, as_agent("e")), "batched");
    drop(beside);
    let tenant = SessionKey { tenant: "another".into(), ..SessionKey::new("r", "a") };
    same(play(&engine, Request { session: tenant, ..request.clone() }), "another tenant");
    same(
        play(&engine, Request { constraint: Some(Constraint::Follow(hot.ids.clone())), ..as_agent("f") }),
        "followed",
    );
    same(play(&engine, Request { logprobs: Some(3), ..as_agent("g") }), "with log-probabilities");
    engine.forget(&request.session);
    same(play(&engine, request.clone()), "restored");
    let seeded = Sampling { seed: 9, ..request.sampling.clone() };
    assert_ne!(play(&engine, Request { sampling: seeded, ..request.clone() }).digest, hot.digest);
    let read = Request { constraint: Some(Constraint::Follow(vec![40])), max_tokens: 1, ..request };
    assert_ne!(play(&engine, read).digest, hot.digest);
}
