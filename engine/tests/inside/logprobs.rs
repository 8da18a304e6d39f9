//! Log-probabilities of a reply's tokens: the model's own, reported as the tokens become certain, without
//! effect on the reply.

use crate::fixtures::RandomModel;
use crate::turns::schedule::Guessing;
use crate::*;
use std::sync::Arc;

fn engine() -> Engine {
    let model = ModelSource::Bundled("tiny", RandomModel::tiny(2).bytes().leak());
    Engine::open(EngineConfig { guessing: Guessing::NEAR_AND_FAR, ..EngineConfig::new(model) }).unwrap()
}

/// Replies that end in several ways: by stop strings, at their limit, after a sentence.
fn asked(seed: u64, logprobs: Option<usize>) -> Request {
    let filtered = Sampling { temperature: 3.0, top_k: 40, top_p: 0.9, min_p: 0.01, ..Sampling::default() };
    let sampling = match seed % 3 {
        0 => Sampling { temperature: f32::MAX, ..Sampling::default() },
        1 => filtered,
        _ => Sampling { temperature: 0.0, repetition_penalty: 1.3, dry: Some(Dry::default()), ..filtered },
    };
    Request {
        sampling: Sampling { seed, ..sampling },
        max_tokens: 120,
        stop: ["\nM", "xy", "q"].map(String::from).to_vec(),
        whole_sentences: seed % 2 == 0,
        logprobs,
        ..Request::new(
            SessionKey::new("r", format!("{seed} {logprobs:?}")),
            Conversation { next: "Go on. ".repeat(9), ..Conversation::default() },
        )
    }
}

/// A reply, and the pieces in which its text and its log-probabilities were streamed.
fn said(engine: &Engine, request: Request) -> (Completion, Vec<(String, Vec<TokenLogprob>)>) {
    let mut turn = engine.submit(request).unwrap();
    let (mut pieces, mut after_text): (Vec<(String, Vec<TokenLogprob>)>, _) = (Vec::new(), false);
    while let Some(event) = turn.blocking_next() {
        match event {
            Event::Thought(text) | Event::Text(text) | Event::Call(text) => {
                pieces.push((text, Vec::new()));
                after_text = true;
            }
            Event::Logprobs(reported) if after_text => {
                pieces.last_mut().unwrap().1 = reported;
                after_text = false;
            }
            Event::Logprobs(reported) => pieces.push((String::new(), reported)),
            Event::Done(done) => return (*done, pieces),
            Event::Failed(error) => panic!("{error}"),
            Event::Prefill { .. } => {}
        }
    }
    panic!("the turn did not end");
}

/// Checks a reply's log-probabilities against those of its ids read from an empty cache.
fn check(engine: &Engine, request: &Request, done: &Completion, n_top: usize) {
    assert_eq!(done.logprobs.iter().map(|token| token.id).collect::<Vec<_>>(), done.ids);
    let text: Vec<u8> = done.logprobs.iter().flat_map(|token| token.bytes.clone()).collect();
    assert_eq!(String::from_utf8_lossy(&text).trim_start(), done.text.trim_start());
    let prompter = engine.prompter();
    let prompt = prompter.chat.prompt(request.prompt.conversation().unwrap(), &prompter.tokenizer).unwrap();
    let prompt = crate::text::prefix::flatten(&prompt);
    let mut expected = Vec::new();
    engine
        .score(&[&prompt[..], &done.ids].concat(), None, &mut |score| {
            if score.pos >= prompt.len() {
                expected.push((score.id, score.logprob.to_bits(), score.top));
            }
        })
        .unwrap();
    let top = |token: &TokenLogprob| token.top.first().map_or(expected[0].2, |top| top.id);
    for (token, expected) in done.logprobs.iter().zip(&expected) {
        assert_eq!((token.id, token.logprob.to_bits()), (expected.0, expected.1));
        assert!(n_top == 0 || top(token) == expected.2);
        assert_eq!(token.top.len(), n_top);
        assert!(token.top.is_sorted_by(|a, b| a.logprob >= b.logprob));
        let own = token.top.iter().find(|top| top.id == token.id);
        assert!(own.is_none_or(|own| own.logprob == token.logprob && own.bytes == token.bytes));
        assert!(own.is_some() || token.top.last().is_none_or(|last| last.logprob >= token.logprob));
    }
}

#[test]
fn they_are_the_models_own_and_change_nothing() {
    let engine = engine();
    let mut ends = std::collections::HashSet::new();
    for seed in 0..24 {
        let n_top = [0, 1, 5, 20][(seed % 4) as usize];
        let (plain, _) = said(&engine, asked(seed, None));
        assert!(plain.logprobs.is_empty());
        let request = asked(seed, Some(n_top));
        let (done, pieces) = said(&engine, request.clone());
        assert_eq!((&done.ids, &done.text, done.stop), (&plain.ids, &plain.text, plain.stop), "{seed}");
        ends.insert(done.stop);
        check(&engine, &request, &done, n_top);
        // Each piece of text comes with its own tokens.
        for (text, reported) in &pieces {
            let spelled: Vec<u8> = reported.iter().flat_map(|token| token.bytes.clone()).collect();
            assert_eq!(String::from_utf8_lossy(&spelled), *text, "{seed}");
        }
        let reported: Vec<TokenLogprob> = pieces.into_iter().flat_map(|(_, reported)| reported).collect();
        assert_eq!(reported, done.logprobs, "{seed}");
        // Beside others the same, and where the reply is followed.
        let session = |name: &str| SessionKey::new("r", format!("{name} {seed}"));
        let beside = engine.submit(Request { session: session("b"), ..asked(seed + 1, None) }).unwrap();
        let again = said(&engine, Request { session: session("c"), ..request.clone() }).0;
        drop(beside);
        assert_eq!(again.logprobs, done.logprobs, "{seed}");
        let follow = Some(Constraint::Follow(done.ids.clone()));
        let followed =
            said(&engine, Request { session: session("d"), constraint: follow, ..request.clone() }).0;
        assert_eq!(followed.logprobs, done.logprobs, "{seed}");
    }
    assert!(ends.len() > 2, "replies end in several ways: {ends:?}");
}

#[test]
fn a_choice_and_a_reply_in_a_grammar_have_them_too() {
    let engine = engine();
    let options = ["I stay.", "I stand by you.", "I go.", "I"].map(String::from).to_vec();
    for seed in 0..6 {
        let constraint = Some(Constraint::OneOf(options.clone()));
        let request = Request { constraint, ..asked(seed, Some(3)) };
        let (done, pieces) = said(&engine, request.clone());
        check(&engine, &request, &done, 3);
        assert_eq!(pieces, [(done.text.clone(), done.logprobs.clone())]);
        let grammar = Some(Arc::new(Grammar::Regex("[a-z]{20}".to_owned())));
        let request = Request { grammar, session: SessionKey::new("r", format!("g{seed}")), ..request };
        let request = Request { constraint: None, ..request };
        let (done, _) = said(&engine, request.clone());
        assert_eq!(done.text.len(), 20);
        check(&engine, &request, &done, 3);
    }
}

#[test]
fn more_likely_tokens_than_the_maximum_are_rejected() {
    let error = engine().submit(asked(0, Some(MAX_TOP_LOGPROBS + 1))).err().unwrap();
    assert!(error.kind() == ErrorKind::Request && error.to_string().contains("21"), "{error}");
}
