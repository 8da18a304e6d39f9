//! Replies under grammars on a random model, whose words are as wild as they come.

#[path = "../grammars/mod.rs"]
pub(crate) mod random;

use greenroom_engine::fixtures::RandomModel;
use greenroom_engine::{Constraint, Engine, EngineConfig, Event, Grammar, ModelSource, Request, StopReason};
use random::{play, request, said};

fn engine() -> Engine {
    let model = ModelSource::Bundled("tiny", RandomModel::tiny(5).bytes().leak());
    Engine::open(EngineConfig::new(model)).unwrap()
}

#[test]
fn replies_under_two_hundred_schemas_are_valid_and_the_seed_says_the_same_under_narrower_ones() {
    let (n_ended, n_narrowed) = play(&engine(), 200, 1.0);
    assert!(n_ended > 150 && n_narrowed > 60, "{n_ended} ended, {n_narrowed} narrowed");
}

#[test]
fn a_reply_under_a_wide_grammar_is_that_under_each_narrower_one_which_allows_it() {
    let engine = engine();
    let (wide, narrow) =
        (Grammar::Regex("[a-e0-4]{1,6}".into()), Grammar::Regex("[a-e]{1,6}|[0-4]{1,6}".into()));
    let mut n_same = 0;
    for seed in 0..60 {
        let reply = said(&engine, request(&format!("f{seed}"), seed, 2.0, Some(wide.clone())));
        if narrow.accepts(&reply.text).is_ok() {
            let again = said(&engine, request(&format!("g{seed}"), seed, 2.0, Some(narrow.clone())));
            assert_eq!((again.ids, again.stop), (reply.ids, reply.stop));
            n_same += 1;
        }
    }
    assert!(n_same > 3, "{n_same} of 60 could be compared");
}

#[test]
fn what_filters_leave_comes_first_and_greedy_is_greedy() {
    let engine = engine();
    let digits = || Some(Grammar::Regex("[0-9]{1,12}".into()));
    for seed in 0..6 {
        let mut asked = request(&format!("h{seed}"), seed, 1.5, digits());
        asked.sampling.top_k = 3;
        asked.sampling.top_p = 0.5;
        assert!(said(&engine, asked).text.bytes().all(|byte| byte.is_ascii_digit()));
    }
    let greedy = |seed| said(&engine, request(&format!("i{seed}"), seed, 0.0, digits())).text;
    assert_eq!(greedy(1), greedy(2), "no number is drawn");
}

#[test]
fn what_can_not_be_used_is_an_error_of_that_turn_alone() {
    let engine = engine();
    let error = |request: Request| {
        let mut turn = engine.submit(request).unwrap();
        loop {
            match turn.blocking_next() {
                Some(Event::Failed(error)) => return error.to_string(),
                Some(Event::Done(done)) => panic!("{}", done.text),
                _ => {}
            }
        }
    };
    let found = error(request("a", 1, 1.0, Some(Grammar::Regex("(a".into()))));
    assert!(found.contains("unclosed group"), "{found}");
    let choice = Some(Constraint::OneOf(vec!["a".into(), "b".into()]));
    let found =
        error(Request { constraint: choice, ..request("b", 1, 1.0, Some(Grammar::Regex("a|b".into()))) });
    assert!(found.contains("choice"), "{found}");
    assert_eq!(
        said(&engine, request("c", 1, 1.0, Some(Grammar::Regex("aa?".into())))).stop,
        StopReason::EndOfTurn
    );
}

#[test]
fn a_reply_that_the_limit_cuts_says_so() {
    let engine = engine();
    let asked = request("a", 1, 1.0, Some(Grammar::Regex("a{400}".into())));
    let cut = said(&engine, Request { max_tokens: 20, ..asked });
    assert_eq!((cut.stop, cut.ids.len()), (StopReason::Length, 20));
}
