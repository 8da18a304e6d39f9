//! Calls of tools as a model says them: a random one, in the forms that chat templates give them. A reply
//! that begins as a call is one, or was cut; any other is what it would be without tools.

use crate::grammars::random::{Dice, is_valid, request, said};
use greenroom_engine::fixtures::RandomModel;
use greenroom_engine::{
    Completion, Constraint, Engine, EngineConfig, ModelSource, Request, StopReason, Tool, ToolCalls,
    ToolChoice, Tools,
};
use std::sync::Arc;

/// A template that writes calls after a character that many tokens begin with, and a tool's name.
const AS_TEXT: &str = include_str!("../fixtures/templates/calls-as-text.jinja");
/// One that has markup for calls.
const AS_MARKUP: &str = include_str!("../fixtures/templates/calls-as-markup.jinja");

fn engine(template: Option<&str>) -> Engine {
    let tiny = RandomModel::tiny(5);
    let model = RandomModel {
        template: template.map(str::to_owned).or(tiny.template.clone()),
        control: vec!["<call>".into(), "</call>".into()],
        ..tiny
    };
    Engine::open(EngineConfig::new(ModelSource::Bundled("tiny", model.bytes().leak()))).unwrap()
}

/// Tools with schemas of their own.
fn tools(seed: u64) -> Arc<Tools> {
    let mut dice = Dice(seed);
    let names = ["sums", "roll", "rolls", "look up"];
    let tool = |name: &str| Tool { name: name.to_owned(), about: name.to_owned(), arguments: dice.object(1) };
    Arc::new(Tools { list: names.map(tool).to_vec(), instructions: "Tools.".into() })
}

fn asked(seed: u64, tools: &Arc<Tools>, calls: ToolChoice) -> Request {
    let mut asked = request(&format!("a{seed}{calls:?}"), seed, 3.0, None);
    asked.prompt.conversation_mut().unwrap().tools = Some(tools.clone());
    asked.calls = calls;
    (asked.max_tokens, asked.max_call_tokens) = (120, 300);
    asked
}

/// Plays replies that may be calls, and the same ones that may not; how many were calls, and how many of
/// those were cut.
fn plays(template: Option<&str>, begins: &str) -> (usize, usize) {
    let engine = engine(template);
    let (mut n_calls, mut n_cut) = (0, 0);
    for seed in 0..700 {
        let tools = tools(seed / 10);
        let free = asked(seed, &tools, ToolChoice::Never);
        // Its first token alone says whether it would be a call.
        let first = said(&engine, Request { max_tokens: 1, ..free.clone() });
        let begins_one = first.text.trim_start().starts_with(begins);
        if !begins_one && seed % 50 > 0 {
            continue;
        }
        let over = said(&engine, asked(seed, &tools, ToolChoice::Forbidden));
        assert!(!over.text.trim_start().starts_with(begins) && over.call.is_none(), "{}", over.text);
        follows(&engine, &asked(seed, &tools, ToolChoice::Forbidden), &over);
        let reply = said(&engine, asked(seed, &tools, ToolChoice::Allowed));
        if !begins_one {
            let free = said(&engine, free);
            if begins == "<call>" && free.text.contains(begins) {
                // Markup begins a call wherever it stands; what is said before it is the same.
                let before = |text: &str| text.split(begins).next().unwrap_or_default().to_owned();
                assert!(reply.call.is_some() && !over.text.contains(begins), "{}", reply.text);
                assert_eq!(before(&reply.text), before(&free.text));
                assert!(over.text.starts_with(&before(&free.text)), "{}", over.text);
                follows(&engine, &asked(seed, &tools, ToolChoice::Allowed), &reply);
                continue;
            }
            assert!(reply.call.is_none(), "{}", reply.text);
            assert_eq!(over.ids, free.ids, "nor what it is where calls are over");
            assert_eq!(
                (reply.ids, reply.stop),
                (free.ids, free.stop),
                "no call is what it was without tools"
            );
            continue;
        }
        // What the grammar does not allow is drawn again, but still begins so.
        assert!(reply.text.trim_start().starts_with(begins), "{}", reply.text);
        n_calls += 1;
        match &reply.call {
            Some(ToolCalls::Complete(calls)) => {
                let [call] = &calls[..] else { panic!("{calls:?}") };
                let tool = tools.list.iter().find(|tool| tool.name == call.tool).unwrap();
                is_valid(&tool.arguments, &call.arguments).unwrap_or_else(|e| panic!("{}: {e}", reply.text));
                assert_eq!(reply.stop, StopReason::EndOfTurn, "{}", reply.text);
            }
            Some(ToolCalls::Truncated) => {
                assert_eq!(reply.stop, StopReason::Length, "{}", reply.text);
                n_cut += 1;
            }
            _ => panic!("it begins as a call: {}", reply.text),
        }
        follows(&engine, &asked(seed, &tools, ToolChoice::Allowed), &reply);
    }
    (n_calls, n_cut)
}

/// A recording of a call is drawn again, and is a call again.
fn follows(engine: &Engine, asked: &Request, reply: &Completion) {
    let follow = Some(Constraint::Follow(reply.ids.clone()));
    let followed = said(engine, Request { constraint: follow, ..asked.clone() });
    let drawn: Vec<u32> = followed.followed.iter().map(|token| token.drawn).collect();
    assert_eq!((&drawn, &followed.call, followed.stop), (&reply.ids, &reply.call, reply.stop));
}

#[test]
fn a_reply_that_begins_as_a_call_is_a_valid_one() {
    let forms = [(None, "{"), (Some(AS_MARKUP), "<call>")];
    for (template, begins) in forms.into_iter().take(if crate::is_deep() { 2 } else { 1 }) {
        let (n_calls, n_cut) = plays(template, begins);
        eprintln!("{begins}: {n_calls} calls, {n_cut} of them cut");
        assert!(n_calls > n_cut, "{begins}: {n_calls} calls, {n_cut} of them cut");
    }
}

/// Where a template's calls begin with text, its first character is none yet: the tool's name is missing.
#[test]
fn a_reply_that_begins_with_a_character_of_calls_is_what_it_was() {
    let (engine, tools, mut n) = (engine(Some(AS_TEXT)), tools(0), 0);
    for seed in 0..700 {
        let first = said(&engine, Request { max_tokens: 1, ..asked(seed, &tools, ToolChoice::Never) });
        if !first.text.starts_with('e') {
            continue;
        }
        let [free, open, over] = [ToolChoice::Never, ToolChoice::Allowed, ToolChoice::Forbidden]
            .map(|calls| said(&engine, asked(seed, &tools, calls)));
        assert!(open.call.is_none(), "{}", open.text);
        assert_eq!((&open.ids, open.stop), (&free.ids, free.stop));
        assert_eq!((over.ids, over.stop), (free.ids, free.stop));
        n += 1;
    }
    assert!(n > 0);
}
