//! Replies that must be calls of tools, and calls that come back as text.

use crate::fixtures::RandomModel;
use crate::turns::schedule::Guessing;
use crate::*;
use serde_json::json;
use std::sync::Arc;

/// Templates that write calls as the plain form, after a character of text, and after markup.
fn engines() -> impl Iterator<Item = (&'static str, Engine)> {
    let templates = [None, Some("calls-as-text"), Some("calls-as-markup")];
    templates.into_iter().zip(["{", "e", "<call>"]).map(|(template, begins)| {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/templates");
        let read = |name| std::fs::read_to_string(root.join(format!("{name}.jinja"))).unwrap();
        let tiny = RandomModel::tiny(5);
        let template = template.map(read).or(tiny.template.clone());
        let control = vec!["<call>".into(), "</call>".into()];
        let model = RandomModel { template, control, ..tiny };
        let model = ModelSource::Bundled("tiny", model.bytes().leak());
        (
            begins,
            Engine::open(EngineConfig { guessing: Guessing::NEAR_AND_FAR, ..EngineConfig::new(model) })
                .unwrap(),
        )
    })
}

/// Tools whose arguments have one spelling each, one's name the beginning of another's.
fn tools() -> Arc<Tools> {
    let tool = |name: &str, first: &str| {
        let choice = json!({ "enum": ["red", "dark \"blue\"", "ä ☃", [1, 2], { "a": null, "b": true }] });
        let properties = json!({ first: choice.clone(), "second": choice });
        let arguments = json!({
            "type": "object", "properties": properties, "required": [first, "second"], "additionalProperties": false
        });
        Tool { name: name.into(), about: name.into(), arguments }
    };
    let list = vec![tool("roll", "sides"), tool("rolls", "zeal"), tool("look up", "a b")];
    Arc::new(Tools { list, instructions: "Tools.".into() })
}

fn asked(agent: &str, seed: u64, calls: ToolChoice) -> Request {
    let conversation =
        Conversation { tools: Some(tools()), next: "What is the price?".into(), ..Conversation::default() };
    Request {
        sampling: Sampling { temperature: 3.0, seed, ..Sampling::default() },
        max_tokens: 2,
        max_call_tokens: 300,
        stop: vec!["\"".into(), "e".into(), "<call>".into()],
        whole_sentences: true,
        calls,
        ..Request::new(SessionKey::new("r", format!("{agent}{seed}")), conversation)
    }
}

fn said(engine: &Engine, request: Request) -> Completion {
    let is_joint = request.parallel_tool_calls;
    let mut turn = engine.submit(request).unwrap();
    let mut pieces: Vec<String> = Vec::new();
    while let Some(event) = turn.blocking_next() {
        match event {
            Event::Done(done) => {
                assert!(
                    pieces.concat().starts_with(&done.text) && (is_joint || pieces.concat() == done.text)
                );
                if let Some(ToolCalls::Complete(calls)) = &done.call {
                    are_read_as_they_come(engine, &pieces, calls);
                }
                return *done;
            }
            Event::Failed(error) => panic!("{error}"),
            Event::Text(text) => panic!("a call is no text: {text}"),
            Event::Call(text) => pieces.push(text),
            _ => {}
        }
    }
    panic!("the turn did not end");
}

/// The tools and the arguments of calls are known piece by piece, and what was known is never taken back.
fn are_read_as_they_come(engine: &Engine, pieces: &[String], calls: &[Call]) {
    let (tools, mut text, mut known) = (tools(), String::new(), Vec::<String>::new());
    let mut n_more = 0;
    for piece in pieces {
        text += piece;
        let so_far = engine.prompter().calls_so_far(&tools, &text);
        assert!(so_far.len() >= known.len());
        for (n, CallSoFar { tool, arguments }) in so_far.into_iter().enumerate() {
            if n == known.len() {
                known.push(String::new());
            }
            // (The limit may cut one after the last whole one.)
            assert!(calls.get(n).is_none_or(|call| call.tool == tool));
            assert!(arguments.starts_with(&known[n]), "{} is taken back: {arguments}", known[n]);
            n_more += usize::from(arguments.len() > known[n].len());
            known[n] = arguments;
        }
    }
    for (known, call) in known.iter().zip(calls) {
        assert_eq!(serde_json::from_str::<serde_json::Value>(known).unwrap(), call.arguments);
    }
    // (One that is recorded comes at once.)
    assert!(known.len() >= calls.len() && (n_more > 1 || pieces.len() == 1), "{pieces:?}");
}

fn whole(done: &Completion) -> Call {
    match &done.call {
        Some(ToolCalls::Complete(calls)) if calls.len() == 1 => calls[0].clone(),
        other => panic!("{other:?}: {}", done.text),
    }
}

#[test]
fn a_reply_that_must_be_a_call_is_one() {
    for (begins, engine) in engines() {
        let mut called = std::collections::HashSet::new();
        for seed in 0..20 {
            let request = asked("a", seed, ToolChoice::Required);
            let done = said(&engine, request.clone());
            let call = whole(&done);
            assert!(done.text.starts_with(begins) && done.stop == StopReason::EndOfTurn, "{}", done.text);
            let tool = tools().list.iter().find(|tool| tool.name == call.tool).unwrap().clone();
            let expected = tool.arguments["properties"].as_object().unwrap();
            assert!(call.arguments.as_object().unwrap().keys().eq(expected.keys()), "{}", done.text);
            called.insert(call.tool);
            // It is drawn again where it is followed, and the figures of its tokens are the model's own.
            let follow = Some(Constraint::Follow(done.ids.clone()));
            let again = Request {
                constraint: follow,
                logprobs: Some(1),
                session: SessionKey::new("r", format!("b{seed}")),
                ..request
            };
            let followed = said(&engine, again);
            assert!(followed.followed.iter().map(|token| token.drawn).eq(done.ids.iter().copied()));
            assert_eq!((&followed.call, followed.stop, &followed.ids), (&done.call, done.stop, &done.ids));
            assert!(followed.logprobs.iter().any(|token| token.top[0].id != token.id), "it was forced");
        }
        assert!(called.len() > 1, "{begins}: {called:?}");
        for name in ["roll", "rolls", "look up"] {
            let done = said(&engine, asked(name, 7, ToolChoice::Named(name.into())));
            assert_eq!(whole(&done).tool, name, "{}", done.text);
        }
        let cut = said(&engine, Request { max_call_tokens: 1, ..asked("cut", 0, ToolChoice::Required) });
        assert_eq!((cut.call, cut.stop, cut.ids.len()), (Some(ToolCalls::Truncated), StopReason::Length, 1));
    }
}

fn prompt_tokens(done: &Completion) -> usize {
    done.usage.reused + done.usage.prefilled + done.usage.recomputed
}

#[test]
fn the_prompt_is_the_same_whatever_calls_are_asked_for() {
    for (_, engine) in engines() {
        let first = said(&engine, asked("a", 1, ToolChoice::Required));
        let n = prompt_tokens(&first);
        for calls in
            [ToolChoice::Named("roll".into()), ToolChoice::Allowed, ToolChoice::Forbidden, ToolChoice::Never]
        {
            let mut turn = engine.submit(asked(&format!("{calls:?}"), 1, calls)).unwrap();
            let done = std::iter::from_fn(|| turn.blocking_next()).find_map(|event| match event {
                Event::Done(done) => Some(*done),
                _ => None,
            });
            let done = done.unwrap();
            assert_eq!(
                (prompt_tokens(&done), done.usage.reused),
                (n, (n / 32 * 32).min(n - 1)),
                "{:?}",
                done.usage
            );
        }
    }
}

#[test]
fn a_call_that_comes_back_as_text_is_the_one_that_was_sampled() {
    for (begins, engine) in engines() {
        for seed in 0..8 {
            let request = asked("a", seed, ToolChoice::Required);
            let done = said(&engine, request.clone());
            let read = prompt_tokens(&done) + done.ids.len();
            let next = |reply: ReplyContent, agent: &str| {
                let mut request = Request { calls: ToolChoice::Required, ..request.clone() };
                request.session.agent = format!("{agent}{seed}");
                let user = std::mem::replace(
                    &mut request.prompt.conversation_mut().unwrap().next,
                    "{\"price\": 3}".into(),
                );
                request.prompt.conversation_mut().unwrap().exchanges.push(Exchange::new(user, reply));
                said(&engine, request)
            };
            let expected = next(ReplyContent::Call(done.ids.clone().into()), "b");
            let found = next(ReplyContent::CallText(String::new(), whole(&done)), "a");
            assert_eq!((found.usage.kind, found.usage.reused), (MatchKind::Extend, read), "{begins}");
            assert_eq!(found.ids, expected.ids, "{begins}: its result is read in the same way");
            // Another call than the one that was sampled is another past.
            let mut other = whole(&done);
            other.arguments["second"] = json!("another");
            let past = said(&engine, request.clone());
            assert_eq!(past.ids, done.ids);
            let found = next(ReplyContent::CallText(String::new(), other), "a");
            assert_eq!(found.usage.kind, MatchKind::Diverge, "{begins}");
        }
    }
}

/// After a call the model draws whether another one follows; nothing of that stays after the last one.
#[test]
fn several_calls_are_made_together() {
    for (begins, engine) in engines() {
        let mut counts = std::collections::BTreeMap::new();
        for seed in 0..24 {
            let request = Request { max_call_tokens: 400, ..asked("a", seed, ToolChoice::Required) };
            let one = said(&engine, request.clone());
            let mut joint = Request { parallel_tool_calls: true, ..request.clone() };
            joint.session.agent = format!("joint{seed}");
            let done = said(&engine, joint.clone());
            let Some(ToolCalls::Complete(calls)) = &done.call else { panic!("{:?}", done.call) };
            *counts.entry(calls.len()).or_insert(0) += 1;
            assert_eq!((&calls[0], &done.ids[..done.call_ends[0]]), (&whole(&one), &one.ids[..]), "{begins}");
            assert_eq!((done.call_ends.len(), done.call_ends.last()), (calls.len(), Some(&done.ids.len())));
            assert!(done.stop == StopReason::EndOfTurn || done.ids.len() > 100, "{:?}", done.stop);
            // The memory holds the calls alone: the first one's result follows it.
            let user = "What is the price?".to_owned();
            let mut next = Request { parallel_tool_calls: false, ..joint.clone() };
            let past = [ReplyContent::Call(one.ids.clone().into())].into_iter();
            let past = past
                .chain(calls[1..].iter().cloned().map(|call| ReplyContent::CallText(String::new(), call)));
            let conversation = next.prompt.conversation_mut().unwrap();
            for (n, reply) in past.enumerate() {
                conversation
                    .exchanges
                    .push(Exchange::new(if n == 0 { user.clone() } else { "3".into() }, reply));
            }
            conversation.next = "3".into();
            let read = said(&engine, next.clone());
            let held = prompt_tokens(&done) + one.ids.len();
            assert!(calls.len() > 1 || read.usage.reused == held, "{begins} {:?}", read.usage);
            next.session.agent = format!("anew{seed}");
            assert_eq!(said(&engine, next).ids, read.ids, "{begins}: as if read from scratch");
            // One that was recorded is followed; the limit leaves whole calls.
            let follow = Some(Constraint::Follow(done.ids.clone()));
            let session = SessionKey::new("r", format!("c{seed}"));
            let again = said(&engine, Request { constraint: follow, session, ..joint.clone() });
            assert_eq!((&again.ids, &again.call), (&done.ids, &done.call), "{begins}");
            if calls.len() > 1 {
                let session = SessionKey::new("r", format!("d{seed}"));
                let most = done.call_ends[1] - 1;
                let cut = said(&engine, Request { max_call_tokens: most, session, ..joint });
                assert_eq!((&cut.ids, cut.call_ends.len()), (&one.ids, 1), "{begins}");
            }
        }
        // If nothing comes between calls, there is nothing to draw.
        assert_eq!(counts.len() > 1, begins != "e", "{begins}: {counts:?}");
    }
}

#[test]
fn calls_that_can_not_be_are_refused() {
    let (_, engine) = engines().next().unwrap();
    let refused = |request: Request| {
        let error = engine.submit(request).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Request);
        error.to_string()
    };
    let named = |name: &str| asked("a", 0, ToolChoice::Named(name.into()));
    assert!(
        refused(named("rol")).contains("`rol`, but the conversation's tools are `roll`, `rolls`, `look up`")
    );
    let mut without = named("roll");
    without.prompt.conversation_mut().unwrap().tools = None;
    assert!(refused(without).contains("no tools"));
    let grammar = Some(Arc::new(Grammar::Regex("a".into())));
    assert!(refused(Request { grammar, ..asked("a", 0, ToolChoice::Required) }).contains("grammar"));
}
