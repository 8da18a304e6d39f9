//! Replies whose tokens are guessed before they are drawn: the same to the bit, and so is what is remembered
//! of them.

use super::{is_deep, some};
use crate::fixtures::RandomModel;
use crate::turns::schedule::Guessing;
use crate::*;
use serde_json::json;
use std::path::Path;
use std::sync::Arc;

fn engine(model: &RandomModel, drafts: bool, cache_dir: Option<&Path>) -> Engine {
    let model = ModelSource::Bundled("tiny", model.bytes().leak());
    let cache_dir = cache_dir.map(Path::to_owned);
    let guessing = Guessing::NEAR_AND_FAR;
    Engine::open(EngineConfig { drafts, guessing, cache_dir, ..EngineConfig::new(model) }).unwrap()
}

/// A reply, and the text that was streamed of it.
fn said(engine: &Engine, request: Request) -> (Completion, String) {
    let mut turn = engine.submit(request).unwrap();
    let mut text = String::new();
    while let Some(event) = turn.blocking_next() {
        match event {
            Event::Failed(error) => panic!("{error}"),
            Event::Done(_) => return (*turn.blocking_commit().unwrap(), text),
            Event::Thought(piece) | Event::Text(piece) | Event::Call(piece) => text += &piece,
            Event::Prefill { .. } | Event::Logprobs(_) => {}
        }
    }
    panic!("the turn did not end");
}

/// What must not depend on guesses.
fn outcome_text((completion, streamed): &(Completion, String)) -> String {
    let Completion {
        ids, text, stop, stop_string, call, call_ends, followed, logprobs, digest, usage, ..
    } = completion;
    let Usage { kind, reused, prefilled, recomputed, generated, layer0_rows, .. } = usage;
    let cost = (kind, reused, prefilled, recomputed, generated, layer0_rows);
    format!(
        "{ids:?} {text:?} {streamed:?} {stop:?} {stop_string:?} {call:?} {call_ends:?} {followed:?} \
         {logprobs:?} {digest} {cost:?}"
    )
}

/// Requests of all kinds, by agents of their own.
fn requests() -> Vec<Request> {
    let schema = json!({
        "type": "object",
        "properties": {
            "the first property": { "enum": ["a long value", "another value"] },
            "the second": { "type": "integer" }
        },
        "required": ["the first property", "the second"],
        "additionalProperties": false,
    });
    let arguments = schema.clone();
    let tool = Tool { name: "look_up".into(), about: "Looks up".into(), arguments };
    let tools = Arc::new(Tools { list: vec![tool], instructions: "Tools.".into() });
    let mut requests = Vec::new();
    for seed in 0..24 {
        let words = ["la ", "abc ", "on and on, ", "so he said: \"so he said: "][seed as usize % 4];
        let base = Request {
            sampling: Sampling {
                temperature: [0.0, 0.02, 0.3, 1.0][seed as usize / 4 % 4],
                repetition_penalty: [1.0, 1.1][seed as usize % 2],
                seed,
                ..Sampling::default()
            },
            max_tokens: [70, 300][seed as usize / 3 % 2],
            retention: Retention::Persistent,
            logprobs: (seed % 5 == 0).then_some(2),
            whole_sentences: seed % 3 == 0,
            stop: if seed % 4 == 1 {
                vec!["zz".into(), "\u{fffd}\u{fffd}".into(), "e".into()]
            } else {
                Vec::new()
            },
            ..Request::new(
                SessionKey::new("r", format!("a{seed}")),
                Conversation { next: words.repeat(30), ..Conversation::default() },
            )
        };
        let grammar = Some(Arc::new(Grammar::json_schema(&schema)));
        let mut calls = Request {
            calls: ToolChoice::Required,
            parallel_tool_calls: true,
            max_call_tokens: 250,
            ..base.clone()
        };
        calls.prompt.conversation_mut().unwrap().tools = Some(tools.clone());
        let kinds = [base.clone(), Request { grammar, ..base }, calls];
        requests.extend(kinds.into_iter().enumerate().map(|(kind, mut request)| {
            request.session.agent += &format!(" {kind}");
            request
        }));
    }
    requests
}

fn next(request: &Request, said: &Completion) -> Request {
    let mut next = request.clone();
    let conversation = next.prompt.conversation_mut().unwrap();
    let user = std::mem::replace(&mut conversation.next, "Go on. ".into());
    conversation.exchanges.push(Exchange::new(user, ReplyContent::Ids(said.ids.clone().into())));
    next
}

#[test]
fn replies_and_memories_are_the_same_with_guesses_and_without() {
    check(&RandomModel::tiny(6));
}

#[test]
fn with_windows_too() {
    // The last layer sees everything, the others 200 tokens.
    check(&RandomModel { n_layers: 6, window: 200, ..RandomModel::tiny_of("gemma3", 3) });
}

#[test]
fn with_states_too() {
    check(&RandomModel { n_layers: 3, ..RandomModel::tiny_of("lfm2", 3) });
}

fn check(model: &RandomModel) {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let engines = [engine(model, false, Some(dirs[0].path())), engine(model, true, Some(dirs[1].path()))];
    let (mut guessed, mut right) = ([0; 3], [0; 3]);
    let mut second = Vec::new();
    let n_requests = match (is_deep() && model.recurrence.is_none(), model.window) {
        (true, 0) => usize::MAX,
        (true, _) => 36,
        (false, 0) => 12,
        (false, _) => 6,
    };
    for (n, request) in requests().into_iter().enumerate().take(n_requests) {
        let [plain, drafted] = engines.each_ref().map(|engine| said(engine, request.clone()));
        assert_eq!(outcome_text(&plain), outcome_text(&drafted), "{request:?}");
        assert_eq!(plain.0.usage.guessed, 0);
        guessed[n % 3] += drafted.0.usage.guessed;
        right[n % 3] += drafted.0.usage.guessed_right;
        let request = next(&request, &plain.0);
        let [plain, drafted] = engines.each_ref().map(|engine| said(engine, request.clone()));
        assert_eq!(outcome_text(&plain), outcome_text(&drafted), "again: {request:?}");
        second.push(next(&request, &plain.0));
    }
    let expected = if n_requests > 36 { 20 } else { 1 };
    let each = if model.recurrence.is_some() { vec![right.iter().sum()] } else { right.to_vec() };
    assert!(each.iter().all(|n| *n > expected), "{right:?} right of {guessed:?}");
    // What was saved is what the other one saved.
    drop(engines);
    let engines = [engine(model, false, Some(dirs[1].path())), engine(model, true, Some(dirs[0].path()))];
    for request in second {
        let [plain, drafted] = engines.each_ref().map(|engine| said(engine, request.clone()));
        assert_eq!(outcome_text(&plain), outcome_text(&drafted), "restored: {request:?}");
    }
}

#[test]
fn turns_side_by_side_are_the_same_with_guesses_and_without() {
    let model = RandomModel::tiny(6);
    let alone = engine(&model, false, None);
    let together = engine(&model, true, None);
    let requests = requests();
    let turns: Vec<Turn> = requests.iter().map(|request| together.submit(request.clone()).unwrap()).collect();
    for (mut turn, request) in turns.into_iter().zip(requests) {
        let done = std::iter::from_fn(|| turn.blocking_next()).find_map(|event| match event {
            Event::Done(done) => Some(*done),
            _ => None,
        });
        let (expected, _) = said(&alone, request);
        let done = done.unwrap();
        assert_eq!((done.ids, done.digest), (expected.ids, expected.digest));
    }
}

/// An engine beside a smaller model that drafts for it.
fn with_draft_model(model: &RandomModel, draft: &RandomModel, cache_memory: u64) -> Result<Engine> {
    let [model, draft] = [model, draft].map(|it| ModelSource::Bundled("tiny", it.bytes().leak()));
    // The draft model's own formats: the same model guesses right wherever there is no grammar.
    let kv = KvChoice::Uniform(KvFormat::F16);
    let (draft_model, guessing) = (Some(draft), Guessing::NEAR_AND_FAR);
    Engine::open(EngineConfig { draft_model, guessing, cache_memory, kv, ..EngineConfig::new(model) })
}

/// By a model that is always right but where the cache's formats differ, by one that seldom is, and by one
/// that soon forgets what it read.
#[test]
fn replies_are_the_same_whatever_a_draft_model_guesses() {
    let windowed = RandomModel { n_layers: 6, window: 200, ..RandomModel::tiny_of("gemma3", 3) };
    for model in some([RandomModel::tiny(6), windowed], 2) {
        let kv = KvChoice::Uniform(KvFormat::F16);
        let source = ModelSource::Bundled("tiny", model.bytes().leak());
        let config = EngineConfig { drafts: false, kv, ..EngineConfig::new(source) };
        let plain = Engine::open(config).unwrap();
        let expected: Vec<_> = requests().into_iter().map(|request| said(&plain, request)).collect();
        let other = RandomModel { seed: model.seed + 1, n_layers: 1, ..model.clone() };
        let mut right = Vec::new();
        for (draft, cache_memory) in [(&model, 1 << 30), (&other, 1 << 30), (&model, 4 << 20)] {
            let drafted = with_draft_model(&model, draft, cache_memory).unwrap();
            let (mut n_right, mut n) = (0, 0);
            let requests = requests().into_iter().zip(&expected).enumerate();
            for (i, (request, expected)) in requests.take(if is_deep() { usize::MAX } else { 12 }) {
                let found = said(&drafted, request.clone());
                let ids = |(done, text): &(Completion, String)| {
                    (done.ids.clone(), done.digest.clone(), text.clone())
                };
                assert_eq!(ids(&found), ids(expected), "{request:?}");
                if i % 3 == 0 {
                    (n_right, n) = (n_right + found.0.usage.guessed_right, n + found.0.usage.guessed);
                }
                // What it guessed wrong at its end is not what the next turn begins after.
                let request = next(&request, &expected.0);
                assert_eq!(said(&drafted, request.clone()).0.ids, said(&plain, request).0.ids);
            }
            right.push((n_right, n));
        }
        // How often it guesses depends on what a guess costs at the time; how often it is right does not.
        let wrong = |of: usize| (right[of].1 - right[of].0) as f64 / right[of].1.max(1) as f64;
        eprintln!("right of all guesses: {right:?}");
        assert!(right[1].1 == 0 || wrong(0) * 1.5 < wrong(1), "right of all guesses: {right:?}");
        assert!(wrong(0) < 0.3, "right of all guesses: {right:?}");
    }
}

#[test]
fn a_draft_model_of_another_vocabulary_is_refused() {
    let [model, other] = ["<|one|>", "<|other|>"]
        .map(|name| RandomModel { control: vec![name.to_owned()], ..RandomModel::tiny(6) });
    let found = with_draft_model(&model, &other, 1 << 30).err().unwrap().to_string();
    assert!(found.contains("can't be the draft model of") && found.contains("its token"), "{found}");
}
