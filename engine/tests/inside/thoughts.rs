//! Thoughts before replies, by models that say given tokens: what is streamed as what, what limits a thought, and
//! where a reply begins that has a form.

use super::texts::chat_of;
use crate::fixtures::RandomModel;
use crate::text::tokenizer::After;
use crate::*;
use serde_json::json;
use std::path::Path;
use std::sync::Arc;

/// A model with a real template that says these tokens, the first of which its prompts end with.
fn engine(template: &str, control: &str, tokens: &[&str]) -> Engine {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/templates");
    let template = std::fs::read_to_string(root.join(format!("{template}.jinja"))).expect("a template");
    let control = control.split(' ').map(str::to_owned).collect();
    let model = RandomModel { template: Some(template), control, ..RandomModel::tiny(3) };
    let model = ModelSource::Bundled("puppet", model.saying(tokens).leak());
    Engine::open(EngineConfig::new(model)).expect("an engine")
}

const QWEN: (&str, &str) = ("Qwen-Qwen3-0.6B", "<think> </think> <tool_call> </tool_call>");
const DEEPSEEK: (&str, &str) =
    ("deepseek-ai-DeepSeek-V3.1", "<｜User｜> <｜Assistant｜> <｜end▁of▁sentence｜> <think> </think>");
const HARMONY: (&str, &str) =
    ("openai-gpt-oss-120b", "<|start|> <|end|> <|message|> <|channel|> <|return|> <|call|> <|constrain|>");

fn qwen(tokens: &[&str]) -> Engine {
    engine(QWEN.0, QWEN.1, tokens)
}

fn asked(agent: &str, reasoning: Reasoning) -> Request {
    let conversation = Conversation { next: "Go on.".into(), reasoning, ..Conversation::default() };
    Request {
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        max_tokens: 12,
        ..Request::new(SessionKey::new("r", agent), conversation)
    }
}

/// What is said, and what was streamed: of the thought, of the text, of calls.
fn said(engine: &Engine, request: Request) -> (Completion, [String; 3]) {
    let mut turn = engine.submit(request).expect("a turn");
    let mut streamed = [String::new(), String::new(), String::new()];
    while let Some(event) = turn.blocking_next() {
        match event {
            Event::Thought(text) => streamed[0] += &text,
            Event::Text(text) => streamed[1] += &text,
            Event::Call(text) => streamed[2] += &text,
            Event::Failed(error) => panic!("{error}"),
            Event::Done(done) => {
                assert_eq!([done.thought(), done.speech()], [&streamed[0], &streamed[1]], "{:?}", done.text);
                return (*done, streamed);
            }
            _ => {}
        }
    }
    panic!("the turn did not end");
}

#[test]
fn a_thought_is_no_part_of_what_is_said() {
    let engine = qwen(&["\n", "<think>", "h", "m", "</think>", "Y", "o"]);
    let (done, [thought, text, _]) = said(&engine, asked("a", Reasoning::High));
    assert_eq!((&*done.text, &*thought, &*text), ("<think>hm</think>Yo", "hm", "Yo"));
    assert_eq!((done.n_thought, done.ids.len(), done.stop), (4, 6, StopReason::EndOfTurn));
    // Harmony ends each of its messages by the token that ends the others' turns.
    let tokens = ["t", "<|channel|>", "n", "<|message|>", "h", "<|end|>"];
    let harmony = engine_of_harmony(&tokens);
    let (done, _) = said(&harmony, Request { max_tokens: 5, ..asked("b", Reasoning::High) });
    assert!(done.text.starts_with("<|channel|>n<|message|>h"), "{:?}", done.text);
    assert_eq!(done.speech(), "");
}

fn engine_of_harmony(tokens: &[&str]) -> Engine {
    engine(HARMONY.0, HARMONY.1, tokens)
}

#[test]
fn a_thought_that_does_not_end_is_ended_at_its_limit() {
    // One that the template opens, and one that the model opens.
    let opened = engine(DEEPSEEK.0, DEEPSEEK.1, &["<think>", "h", "h", "</think>", "Y", "o"]);
    let own = qwen(&["\n", "<think>", "h", "h"]);
    for (n, thought) in [(3, "hhh"), (1, "h"), (0, "")] {
        let limited = Request { max_thought_tokens: Some(n), ..asked(&format!("a{n}"), Reasoning::High) };
        let (done, _) = said(&opened, limited.clone());
        assert_eq!((done.thought(), done.n_thought > 0), (thought, n > 0), "{:?}", done.text);
        assert!(done.text.contains("</think>") && done.stop == StopReason::EndOfTurn, "{:?}", done.text);
        let (done, _) = said(&own, limited.clone());
        assert_eq!(
            done.text.starts_with("<think>") && done.text.contains("</think>"),
            n > 0,
            "{:?}",
            done.text
        );
        // What ends a thought is no stop string, and a further one is not begun.
        let stop = vec!["\n".to_owned(), "\n\n".to_owned()];
        let limited = Request { stop, session: SessionKey::new("r", format!("s{n}")), ..limited };
        let (done, _) = said(&own, Request { counts_thought: false, ..limited });
        assert_eq!(done.text.matches("<think>").count(), usize::from(n > 0), "{:?}", done.text);
    }
    // Without a limit of its own it has the reply's, and nothing is said.
    let (done, _) = said(&opened, asked("b", Reasoning::High));
    assert_eq!((done.thought(), done.speech(), done.stop), ("hhhhhhhhhhhh", "", StopReason::Length));
    // With one that does not count, the speech has all of the reply's.
    let endless = engine(DEEPSEEK.0, DEEPSEEK.1, &["<think>", "h", "h", "</think>", "Y", "Y"]);
    for counts_thought in [true, false] {
        let name = format!("c{counts_thought}");
        let request =
            Request { max_thought_tokens: Some(5), counts_thought, ..asked(&name, Reasoning::High) };
        let (done, _) = said(&endless, request);
        assert_eq!(done.ids.len() - done.n_thought, if counts_thought { 12 - done.n_thought } else { 12 });
        assert_eq!((done.thought(), done.stop), ("hhhhh", StopReason::Length));
    }
}

#[test]
fn what_has_a_form_stands_after_the_thought() {
    let digit = || Some(Arc::new(Grammar::Regex("[0-9]".into())));
    let opened = engine(DEEPSEEK.0, DEEPSEEK.1, &["<think>", "h", "</think>", "x"]);
    for (max_thought_tokens, thought) in [(None, "h"), (Some(0), "")] {
        let request = Request {
            grammar: digit(),
            max_thought_tokens,
            ..asked(&format!("a{max_thought_tokens:?}"), Reasoning::High)
        };
        let (done, _) = said(&opened, request);
        assert_eq!((done.thought(), done.speech().len()), (thought, 1), "{:?}", done.text);
        assert!(done.speech().parse::<u8>().is_ok(), "{:?}", done.text);
    }
    // A model that may think, and does not.
    let (done, _) = said(&qwen(&["\n", "x"]), Request { grammar: digit(), ..asked("b", Reasoning::High) });
    assert!(done.text.len() == 1 && done.text.parse::<u8>().is_ok(), "{:?}", done.text);
    // And that thinks first.
    let thinks = qwen(&["\n", "<think>", "h", "</think>", "x"]);
    let (done, _) = said(&thinks, Request { grammar: digit(), ..asked("c", Reasoning::High) });
    assert_eq!((done.thought(), done.speech().len()), ("h", 1), "{:?}", done.text);
}

/// A choice of harmony is made in the final channel: the model's own reply has it there.
#[test]
fn a_choice_stands_after_the_header_of_a_reply() {
    let harmony = engine_of_harmony(&["<|message|>", "Y"]);
    let options = ["Y", "N"].map(str::to_owned);
    let request =
        Request { constraint: Some(Constraint::OneOf(options.to_vec())), ..asked("a", Reasoning::None) };
    let conversation = request.prompt.conversation().expect("a conversation").clone();
    let (done, _) = said(&harmony, Request { logprobs: Some(0), ..request });
    let choice = done.choice.as_ref().expect("a choice");
    assert!(choice.chosen == 0 && choice.logprobs[0] > -1e-3, "{choice:?}");
    assert_eq!((&*done.text, done.speech()), ("Y", "Y"));
    assert_eq!(harmony.decode(&done.ids), "<|channel|>final<|message|>Y");
    assert_eq!(done.logprobs.len(), done.ids.len());
    let ranking = harmony.rank(&conversation, &options, None).expect("a ranking");
    for (option, logprob) in ranking.options.iter().zip(&choice.logprobs) {
        assert!((option.logprob - logprob).abs() < 1e-4, "{ranking:?}, {choice:?}");
    }
    // A past reply that is given as text is what was chosen.
    let exchange = |reply| Exchange::new("Go on.".into(), reply);
    let next = |agent: &str, reply| {
        let conversation =
            Conversation { exchanges: vec![exchange(reply)], next: "And?".into(), ..Conversation::default() };
        Request { prompt: conversation.into(), ..asked(agent, Reasoning::None) }
    };
    let (by_text, _) = said(&harmony, next("a", ReplyContent::Text("Y".into())));
    assert_eq!((by_text.usage.kind, by_text.usage.recomputed), (MatchKind::Extend, 0), "{:?}", by_text.usage);
}

fn with_tools(request: Request) -> Request {
    let arguments = json!({ "type": "object", "properties": { "n": { "enum": [7] } }, "required": ["n"], "additionalProperties": false });
    let roll = Tool { name: "roll".into(), about: "Rolls.".into(), arguments };
    let tools = Some(Arc::new(Tools { list: vec![roll], instructions: "Tools.".into() }));
    let conversation = Conversation { tools, ..request.prompt.conversation().expect("one").clone() };
    Request { prompt: conversation.into(), max_call_tokens: 100, calls: ToolChoice::Allowed, ..request }
}

#[test]
fn a_call_may_follow_a_thought_or_a_text() {
    for (agent, tokens, reasoning, thought, text) in [
        ("a", &["\n", "<think>", "h", "</think>", "<tool_call>", "{"][..], Reasoning::High, "h", ""),
        ("b", &["\n", "Y", "o", "<tool_call>", "{"], Reasoning::None, "", "Yo"),
        ("c", &["\n", "<think>", "h", "</think>", "Y", "<tool_call>", "{"], Reasoning::High, "h", "Y"),
    ] {
        let (done, streamed) = said(&qwen(tokens), with_tools(asked(agent, reasoning)));
        let Some(ToolCalls::Complete(calls)) = &done.call else { panic!("{:?}", done.text) };
        assert_eq!((&*calls[0].tool, &calls[0].arguments), ("roll", &json!({ "n": 7 })));
        assert_eq!([&*streamed[0], &streamed[1]], [thought, text], "{:?}", done.text);
        assert!(streamed[2].starts_with("<tool_call>"), "{streamed:?}");
    }
    // A reply that must be a call thinks first where it was told to.
    let thinks = qwen(&["\n", "<think>", "h", "</think>", "Y"]);
    let required = |reasoning| Request {
        calls: ToolChoice::Required,
        ..with_tools(asked(&format!("d{reasoning:?}"), reasoning))
    };
    for (reasoning, thought) in [(Reasoning::High, "h"), (Reasoning::None, "")] {
        let (done, _) = said(&thinks, required(reasoning));
        assert_eq!((done.thought(), done.call.is_some()), (thought, true), "{:?}", done.text);
    }
    // Where none may be made, none is begun, at the beginning or later.
    let calls = qwen(&["\n", "Y", "<tool_call>"]);
    let (done, _) =
        said(&calls, Request { calls: ToolChoice::Forbidden, ..with_tools(asked("e", Reasoning::None)) });
    assert!(done.call.is_none() && !done.text.contains("<tool_call>"), "{:?}", done.text);
}

/// A reply of this text, as if a model with a real template had said it; what was streamed of it.
fn followed(template: (&str, &str), text: &str) -> (Completion, [String; 3]) {
    let (_, tokenizer) = chat_of(template.0, template.1);
    let ids = tokenizer.encode_template(text, After::Text).expect("ids");
    // (A byte that is no character, by its id.)
    let ids: Vec<u32> = ids.into_iter().map(|id| if id == u32::from(b'~') { 0xff } else { id }).collect();
    let follow = Some(Constraint::Follow(ids));
    let request = Request { constraint: follow, max_tokens: 200, ..with_tools(asked("a", Reasoning::High)) };
    said(&engine(template.0, template.1, &["Y", "o"]), Request { max_call_tokens: 200, ..request })
}

/// What models write besides the form of their template.
#[test]
fn a_call_may_have_another_form_than_the_templates_own() {
    let channel = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant";
    for (template, before, call, thought, text) in [
        (
            HARMONY,
            "",
            "<|channel|>commentary to=functions.roll <|constrain|>json<|message|>{\"n\": 7}",
            "",
            "",
        ),
        (HARMONY, channel, "<|channel|>commentary to=functions.roll json<|message|>{\"n\": 7}", "hm", ""),
        (HARMONY, channel, " to=functions.roll<|channel|>commentary<|message|>{\"n\": 7}", "hm", ""),
        (HARMONY, "", " to=functions.roll<|channel|>commentary json<|message|>{\"n\": 7}", "", ""),
        (QWEN, "", "```json\n{\n  \"name\": \"roll\",\n  \"arguments\": {\"n\": 7}\n}\n```", "", ""),
        (QWEN, "Yo.\n\n", "```\n{\"name\": \"roll\", \"arguments\": {\"n\": 7}}\n```", "", "Yo.\n\n"),
        (
            QWEN,
            "a~~~~ ",
            "```\n{\"name\": \"roll\", \"arguments\": {\"n\": 7}}\n```",
            "",
            "a\u{fffd}\u{fffd}\u{fffd}\u{fffd} ",
        ),
        (QWEN, "<think>hm</think>\n", "{\"name\": \"roll\", \"arguments\": {\"n\": 7}}", "hm", ""),
    ] {
        let (done, streamed) = followed(template, &format!("{before}{call}"));
        let Some(ToolCalls::Complete(calls)) = &done.call else { panic!("{:?}: {done:?}", done.text) };
        assert_eq!((&*calls[0].tool, &calls[0].arguments), ("roll", &json!({ "n": 7 })));
        assert_eq!([&*streamed[0], &streamed[1]], [thought, text], "{:?}", done.text);
        assert!(streamed[2].ends_with(call), "{streamed:?}");
    }
    let final_channel = "<|channel|>final<|message|>";
    for (template, before, text) in [
        (HARMONY, &*format!("{}{final_channel}", channel.replace("hm", "to=functions.roll")), "Yo."),
        (QWEN, "", "{\"name\": \"Rolf\", \"arguments\": {\"n\": 7}}"),
        (QWEN, "", "So:\n```json\n{\"name\": \"Rolf\"}\n```\nDone."),
        (QWEN, "", "{\"n\": 7}"),
        (QWEN, "", &format!("{}```", "So it goes. ".repeat(12))),
    ] {
        let (done, streamed) = followed(template, &format!("{before}{text}"));
        assert!(done.call.is_none() && streamed[1] == text, "{streamed:?}, {:?}", done.call);
    }
}

/// A call of harmony has a header of its own, also where a thought before it is ended.
#[test]
fn a_required_call_has_its_own_header() {
    let thinks = engine_of_harmony(&["t", "<|channel|>", "h", "h"]);
    for (limit, thought) in [(3, true), (0, false)] {
        let request = Request {
            calls: ToolChoice::Required,
            max_thought_tokens: Some(limit),
            max_tokens: 60,
            ..with_tools(asked(&format!("a{limit}"), Reasoning::High))
        };
        let (done, _) = said(&thinks, request);
        let Some(ToolCalls::Complete(calls)) = &done.call else { panic!("{:?}", done.text) };
        assert_eq!((&*calls[0].tool, done.n_thought > 0), ("roll", thought), "{:?}", done.text);
        let call = " to=functions.roll<|channel|>commentary json<|message|>{\"n\": 7}";
        assert!(done.text.ends_with(&format!("{}{call}", if thought { "<|start|>assistant" } else { "" })));
    }
}

#[test]
fn a_special_token_is_no_part_of_a_stop_string() {
    let mistral = |tokens: &[&str]| {
        engine("mistralai-Mistral-Nemo-Instruct-2407", "[INST] [/INST] [TOOL_CALLS]", tokens)
    };
    let stop = vec!["\n[".to_owned()];
    let (done, _) = said(
        &mistral(&["[/INST]", "[TOOL_CALLS]", "Y"]),
        Request { stop: stop.clone(), ..asked("a", Reasoning::None) },
    );
    assert_eq!((&*done.text, done.stop), ("[TOOL_CALLS]Y", StopReason::EndOfTurn));
    let (done, _) =
        said(&mistral(&["[/INST]", "Y", "\n", "["]), Request { stop, ..asked("b", Reasoning::None) });
    assert_eq!((&*done.text, done.stop), ("Y", StopReason::StopString));
}

/// A recording with a thought is followed without a surprise, and a cold reading of it is the same.
#[test]
fn a_thought_is_remembered_as_it_was_said() {
    let opened = engine(DEEPSEEK.0, DEEPSEEK.1, &["<think>", "h", "h", "</think>", "Y", "o"]);
    let request = |agent: &str| Request { max_thought_tokens: Some(4), ..asked(agent, Reasoning::High) };
    let (done, _) = said(&opened, request("a"));
    let follow = Some(Constraint::Follow(done.ids.clone()));
    let (again, _) = said(&opened, Request { constraint: follow, ..request("b") });
    assert_eq!((&again.ids, again.stop, &again.parts), (&done.ids, done.stop, &done.parts));
    assert!(again.followed.iter().zip(&done.ids).all(|(found, id)| found.drawn == *id));
    assert_eq!(again.digest, done.digest);
}

/// A thought that ends by the token that ends a turn would leave a form unsaid: it goes on, to its limit.
#[test]
fn a_turn_does_not_end_in_a_thought_before_a_form() {
    let ends = engine(DEEPSEEK.0, DEEPSEEK.1, &["<think>", "h", "<|im_end|>"]);
    let request = Request {
        grammar: Some(Arc::new(Grammar::Regex("[0-9]".into()))),
        max_thought_tokens: Some(4),
        ..asked("a", Reasoning::High)
    };
    let (done, _) = said(&ends, request.clone());
    assert!(done.speech().parse::<u8>().is_ok() && done.n_thought > 4, "{:?}", done.text);
    // Without a form it ends there.
    let (done, _) = said(&ends, Request { grammar: None, session: SessionKey::new("r", "b"), ..request });
    assert_eq!((done.thought(), done.speech(), done.stop), ("h", "", StopReason::EndOfTurn));
}

/// Text and a call after it are one reply: together they have the tokens that were admitted.
#[test]
fn a_reply_has_one_limit_in_all() {
    let talks = qwen(&["\n", "a", "b", "c", "d", "e", "f", "g", "<tool_call>", "{"]);
    let request = with_tools(asked("a", Reasoning::None));
    let (done, _) = said(&talks, Request { max_tokens: 10, max_call_tokens: 12, ..request.clone() });
    assert_eq!(
        (done.ids.len(), done.stop, &done.call),
        (12, StopReason::Length, &Some(ToolCalls::Truncated))
    );
    let (done, _) = said(&talks, Request { session: SessionKey::new("r", "b"), ..request });
    assert!(matches!(done.call, Some(ToolCalls::Complete(_))), "{:?}", done.text);
}

/// A recording that begins with a thought is followed as that where the model would draw none, and the other way
/// round.
#[test]
fn what_was_recorded_decides_whether_a_thought_comes_first() {
    let thinks = qwen(&["\n", "<think>", "h", "</think>", "x"]);
    let speaks = qwen(&["\n", "x"]);
    let request = |agent: &str| Request {
        grammar: Some(Arc::new(Grammar::Regex("[0-9]".into()))),
        ..asked(agent, Reasoning::High)
    };
    for (of, by) in [(&thinks, &speaks), (&speaks, &thinks)] {
        let (recorded, _) = said(of, request("a"));
        assert_eq!(recorded.speech().len(), 1, "{:?}", recorded.text);
        let follow = Some(Constraint::Follow(recorded.ids.clone()));
        let (again, _) = said(by, Request { constraint: follow, ..request("b") });
        assert_eq!((&again.ids, &again.parts, again.stop), (&recorded.ids, &recorded.parts, recorded.stop));
        assert_ne!(again.followed[0].drawn, recorded.ids[0]);
    }
}
