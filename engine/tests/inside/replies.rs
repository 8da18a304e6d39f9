//! Dropped, refused and penalized parts of replies leave the same memory however they came about.

use crate::fixtures::RandomModel;
use crate::turns::schedule::Guessing;
use crate::turns::sentence::ends_sentence;
use crate::*;
use std::collections::HashMap;
use std::path::Path;

const TURNS: usize = 3;
const MAX_TOKENS: usize = 300;

fn engine(cache_dir: Option<&Path>) -> Engine {
    let model = ModelSource::Bundled("tiny", RandomModel::tiny(2).bytes().leak());
    let config = EngineConfig {
        cache_dir: cache_dir.map(Path::to_owned),
        guessing: Guessing::NEAR_AND_FAR,
        ..EngineConfig::new(model)
    };
    Engine::open(config).unwrap()
}

/// Even seeds speak at random, so that sentences end here and there; odd ones are held by the penalty.
fn asked(seed: u64, exchanges: Vec<Exchange>) -> Request {
    let sampling = match seed % 2 {
        0 => Sampling { temperature: f32::MAX, seed, ..Sampling::default() },
        _ => Sampling { temperature: 0.7, dry: Some(Dry::default()), seed, ..Sampling::default() },
    };
    Request {
        retention: Retention::Persistent,
        sampling,
        max_tokens: MAX_TOKENS,
        min_tokens: MAX_TOKENS,
        stop: ('a'..='w').map(|letter| format!("\n{letter}")).chain(["xyz".into()]).collect(),
        whole_sentences: true,
        ..Request::new(
            SessionKey::new("r", format!("a{seed}")),
            Conversation { exchanges, next: "Go on. ".repeat(9), ..Conversation::default() },
        )
    }
}

fn said(engine: &Engine, request: Request) -> Completion {
    let mut turn = engine.submit(request).unwrap();
    let mut streamed = String::new();
    while let Some(event) = turn.blocking_next() {
        match event {
            Event::Text(text) => streamed += &text,
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    let done = *turn.blocking_commit().unwrap();
    assert_eq!(streamed, done.text);
    done
}

/// A few turns of one agent; `play` gets each request and the number of its turn.
fn turns(seed: u64, mut play: impl FnMut(Request, usize) -> Completion) -> Vec<Completion> {
    let mut past: Vec<Exchange> = Vec::new();
    let mut all = Vec::new();
    for turn in 0..TURNS {
        let request = asked(seed, past.clone());
        let user = request.prompt.conversation().unwrap().next.clone();
        let done = play(request, turn);
        past.push(Exchange::new(user, ReplyContent::Ids(done.ids.clone().into())));
        all.push(done);
    }
    all
}

fn words(all: &[Completion]) -> Vec<(Vec<u32>, StopReason)> {
    all.iter().map(|done| (done.ids.clone(), done.stop)).collect()
}

#[test]
fn replies_are_the_same_warm_cold_restored_and_followed() {
    let (warm, cold, folder) = (engine(None), engine(None), tempfile::tempdir().unwrap());
    let mut ends: HashMap<StopReason, usize> = HashMap::new();
    for seed in 0..10 {
        let first = turns(seed, |request, _| said(&warm, request));
        for (turn, done) in first.iter().enumerate() {
            *ends.entry(done.stop).or_default() += 1;
            assert!(!done.text.trim_start().starts_with(|c| ('a'..='w').contains(&c)), "{:?}", done.text);
            let is_whole = ends_sentence(&done.text, "");
            match done.stop {
                StopReason::Sentence => assert!(is_whole && done.ids.len() <= MAX_TOKENS, "{:?}", done.text),
                // A character that is begun at the limit is cut.
                StopReason::Length => assert!(
                    !is_whole && done.ids.len() + 4 > MAX_TOKENS,
                    "{} tokens, {is_whole}: {:?}",
                    done.ids.len(),
                    done.text
                ),
                _ => assert!(!done.text.trim().is_empty() && done.ids.len() < MAX_TOKENS, "{:?}", done.text),
            }
            let first: &[MatchKind] = &[MatchKind::Cold, MatchKind::Prefix];
            let expected = if turn == 0 { first } else { &[MatchKind::Extend] };
            assert!(
                expected.contains(&done.usage.kind) && done.usage.recomputed == 0,
                "nothing is read twice"
            );
        }
        let again = turns(seed, |request, _| said(&cold, Request { cold: true, ..request }));
        assert_eq!(words(&again), words(&first), "cold, seed {seed}");
        let again = turns(seed, |request, _| said(&engine(Some(folder.path())), request));
        assert_eq!(words(&again), words(&first), "restored, seed {seed}");
        let followed = turns(seed, |request, turn| {
            let agent = format!("f{seed}");
            let constraint = Some(Constraint::Follow(first[turn].ids.clone()));
            let done = said(
                &warm,
                Request { session: SessionKey { agent, ..request.session.clone() }, constraint, ..request },
            );
            let drawn: Vec<u32> = done.followed.iter().map(|token| token.drawn).collect();
            assert_eq!(drawn, first[turn].ids, "no surprise, seed {seed}");
            done
        });
        assert_eq!(words(&followed), words(&first), "followed, seed {seed}");
    }
    assert!(
        ends.len() > 1 && ends.contains_key(&StopReason::Sentence),
        "replies end in several ways: {ends:?}"
    );
}

#[test]
fn the_penalty_counts_what_earlier_replies_said() {
    let engine = engine(None);
    let repeated = |dry: Option<Dry>| {
        let all = turns(1, |request, _| {
            let sampling = Sampling { temperature: 0.0, dry, ..request.sampling.clone() };
            let agent = format!("dry {}", dry.is_some());
            let session = SessionKey { agent, ..request.session.clone() };
            said(&engine, Request { session, sampling, stop: Vec::new(), ..request })
        });
        // Sequences with a breaker in them may come again.
        let counts = |gram: &&[u32]| !engine.decode(gram).contains(['\n', ':', '"', '*']);
        let grams = |done: &Completion| -> Vec<Vec<u32>> {
            done.ids.windows(8).filter(counts).map(<[u32]>::to_vec).collect()
        };
        let before: Vec<Vec<u32>> = all[..TURNS - 1].iter().flat_map(grams).collect();
        grams(&all[TURNS - 1]).iter().filter(|gram| before.contains(gram)).count()
    };
    let (free, held) = (repeated(None), repeated(Some(Dry::default())));
    assert!(free > 0, "a greedy random model repeats itself, or the test shows nothing");
    assert!(held * 10 < free, "{held} of {free}");
}
