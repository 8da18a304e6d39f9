//! Calls of tools as templates write them, and what templates have around replies.

use super::texts::{TEMPLATES, chat_of, fixture, vocabulary};
use crate::fixtures::RandomModel;
use crate::model::gguf::Gguf;
use crate::text::chat::{Chat, Templates};
use crate::text::prefix::{Relation, Segment, SegmentKind, compare};
use crate::text::tokenizer::{After, Tokenizer};
use crate::{Call, Conversation, Exchange, ModelSource, Reasoning, ReplyContent, Tool, Tools};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The ids of a call as a model says it: they are in the grammars of calls, which end with it, and read as it.
fn call_ids(chat: &Chat, tokenizer: &Tokenizer, tools: &Tools, call: &Call) -> Vec<u32> {
    let form = chat.calls().own();
    let text: String = form.pieces(call).into_iter().map(|(_, text)| text).collect();
    let after = if form.opening.is_empty() { After::Text } else { After::Special };
    let ids = tokenizer.encode_template(&text, after).expect("ids");
    for grammar in [form.grammar(tools), form.forced_grammar(tools, Some(&call.tool))] {
        let mut matcher = tokenizer.matcher(&grammar).expect("a grammar");
        for (at, id) in ids.iter().enumerate() {
            let said = tokenizer.decode(&ids[..at]);
            matcher
                .take(*id)
                .unwrap_or_else(|e| panic!("{said:?} goes on with {:?}: {e}", tokenizer.decode(&[*id])));
        }
        assert!(matcher.may_end().expect("an answer"), "{text:?}");
    }
    assert_eq!(form.read(tools, &text).as_ref(), Some(call), "{text:?}");
    // As it comes, its arguments are never taken back.
    let (opening, mut known) = (tokenizer.decode(&form.opening), String::new());
    let whole = format!("{opening}{text}");
    for (at, _) in whole.char_indices().chain([(whole.len(), ' ')]) {
        let now = form.so_far(tools, &opening, &whole[..at]);
        let now = now.into_iter().next().map(|call| call.arguments).unwrap_or_default();
        assert!(now.starts_with(&known), "{known:?} became {now:?}");
        known = now;
    }
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&known).ok(),
        Some(call.arguments.clone()),
        "{whole:?}"
    );
    [&form.opening[..], &ids].concat()
}

/// Arguments of each type, in the forms that models of 2026 have.
#[test]
fn arguments_may_be_written_one_by_one() {
    let loops = |open: &str, value: &str, close: &str, separator: &str| {
        format!(
            "{{% for m in messages %}}<|im_start|>{{{{ m.role }}}}\n{{% if m.tool_calls %}}{{% for c in m.tool_calls %}}\
             <call>{open}{{% for k, v in c.function.arguments|items %}}{value}{{% if not loop.last %}}{separator}{{% endif %}}\
             {{% endfor %}}{close}{{% endfor %}}{{% else %}}{{{{ m.content }}}}{{% endif %}}<|im_end|>\n{{% endfor %}}\
             {{% if tools %}}{{% endif %}}<|im_start|>assistant\n"
        )
    };
    let raw = "{{ v if v is string else v|tojson }}";
    let name = "{{ c.function.name }}";
    let forms = [
        loops(
            &format!("\n<function={name}>\n"),
            &format!("<parameter={{{{ k }}}}>\n{raw}\n</parameter>\n"),
            "</function>\n</call>",
            "",
        ),
        loops(name, &format!("\n<key>{{{{ k }}}}</key>\n<value>{raw}</value>"), "\n</call>", ""),
        loops(name, &format!("<key>{{{{ k }}}}</key><value>{raw}</value>"), "</call>", ""),
        loops(
            &format!("<invoke name=\"{name}\">\n"),
            &format!(
                "<parameter name=\"{{{{ k }}}}\" string=\"{{{{ 'true' if v is string else 'false' }}}}\">{raw}</parameter>\n"
            ),
            "</invoke></call>",
            "",
        ),
        loops(&format!("[{name}("), "{{ k }}={{ v|tojson }}", ")]</call>", ", "),
        loops(&format!("{name}<args>"), "", "{{ c.function.arguments|tojson }}</call>", ""),
        // (Gemma 4.)
        format!(
            "{{%- macro said(v) -%}}{{%- if v is string -%}}<quote>{{{{ v }}}}<quote>{{%- elif v is mapping -%}}\
             {{{{ '{{' }}}}{{%- for k, w in v|dictsort -%}}{{{{ k }}}}:{{{{ said(w) }}}}{{%- if not loop.last -%}},{{%- endif -%}}\
             {{%- endfor -%}}{{{{ '}}' }}}}{{%- elif v is sequence -%}}[{{%- for w in v -%}}{{{{ said(w) }}}}{{%- if not loop.last -%}},\
             {{%- endif -%}}{{%- endfor -%}}]{{%- else -%}}{{{{ v|tojson }}}}{{%- endif -%}}{{%- endmacro -%}}{}",
            loops(&format!("call:{name}"), "", "{{ said(c.function.arguments) }}</call>", "")
        ),
    ];
    let property = |kind: &str| serde_json::json!({ "type": kind });
    let schema = serde_json::json!({
        "type": "object",
        "properties": {
            "text": property("string"), "word": { "enum": ["red", "dark blue"] }, "count": property("integer"),
            "is_so": property("boolean"), "nothing": property("null"),
            "list": { "type": "array", "items": { "type": "integer" } },
            "any": {},
            "deep": {
                "type": "object",
                "properties": { "b": property("string"), "a": { "anyOf": [property("null"), property("number")] } },
                "required": ["b"],
            },
        },
        "required": ["count"],
    });
    let tool = |name: &str| Tool { name: name.to_owned(), about: String::new(), arguments: schema.clone() };
    let tools = Tools { list: vec![tool("dice"), tool("dice_more")], instructions: String::new() };
    for template in forms {
        let control = ["<call>", "</call>", "<key>", "</key>", "<value>", "</value>", "<args>", "<quote>"]
            .map(str::to_owned);
        let model = RandomModel {
            template: Some(template.clone()),
            control: control.to_vec(),
            ..RandomModel::tiny(0)
        };
        let gguf = Gguf::open(&ModelSource::Bundled("random", model.bytes().leak())).expect("a GGUF");
        let tokenizer = Tokenizer::from_gguf(&gguf).expect("a tokenizer");
        let chat = Chat::new(Some(&*template), &tokenizer).expect("a chat template");
        assert_eq!(tokenizer.decode(&chat.calls().own().opening), "<call>", "{template}: {:?}", chat.calls());
        for arguments in [
            serde_json::json!({ "count": 7 }),
            serde_json::json!({ "text": "a \"b\" <c> 'd'\n e, f=1", "count": -3, "is_so": true }),
            serde_json::json!({ "text": "7", "word": "dark blue", "count": 0, "nothing": null, "list": [1, 2] }),
            serde_json::json!({ "word": "red", "count": 1, "is_so": false, "any": "free text" }),
            serde_json::json!({ "count": 1, "list": [], "deep": { "b": "x, {y}: [z]", "a": 1.5 } }),
        ] {
            for tool in ["dice", "dice_more"] {
                call_ids(
                    &chat,
                    &tokenizer,
                    &tools,
                    &Call { tool: tool.to_owned(), arguments: arguments.clone() },
                );
            }
        }
    }
}

/// A value that stands without quotes has the type that its schema allows.
#[test]
fn values_keep_their_types() {
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}{% for c in m.tool_calls %}<call>\
        {{ c.function.name }}{% for k, v in c.function.arguments|items %}<key>{{ k }}</key><value>\
        {{ v if v is string else v|tojson }}</value>{% endfor %}</call>{% endfor %}{% else %}{{ m.content }}{% endif %}\
        <|im_end|>\n{% endfor %}{% if tools %}{% endif %}<|im_start|>assistant\n";
    let control = ["<call>", "</call>", "<key>", "</key>", "<value>", "</value>"].map(str::to_owned).to_vec();
    let model = RandomModel { template: Some(template.to_owned()), control, ..RandomModel::tiny(0) };
    let gguf = Gguf::open(&ModelSource::Bundled("random", model.bytes().leak())).expect("a GGUF");
    let tokenizer = Tokenizer::from_gguf(&gguf).expect("a tokenizer");
    let chat = Chat::new(Some(template), &tokenizer).expect("a chat template");
    let text_or_null = serde_json::json!({ "anyOf": [{ "type": "string" }, { "type": "null" }] });
    for (schema, said, expected) in [
        (serde_json::json!({ "type": "string" }), "null", serde_json::json!("null")),
        (text_or_null.clone(), "None of them", serde_json::json!("None of them")),
        (text_or_null.clone(), "None", serde_json::json!(null)),
        (text_or_null, "12345", serde_json::json!("12345")),
        (serde_json::json!({ "type": ["integer", "string"] }), "12", serde_json::json!(12)),
        (serde_json::json!({}), "true story", serde_json::json!("true story")),
        (serde_json::json!({}), "True", serde_json::json!(true)),
    ] {
        let arguments =
            serde_json::json!({ "type": "object", "properties": { "a": schema }, "required": ["a"] });
        let tool = Tool { name: "dice".to_owned(), about: String::new(), arguments };
        let tools = Tools { list: vec![tool], instructions: String::new() };
        let call = chat.calls().own().read(&tools, &format!("dice<key>a</key><value>{said}</value></call>"));
        assert_eq!(call.expect("a call").arguments["a"], expected, "{said}: {schema}");
    }
}

/// An agent with tools that calls one, reads its result and speaks: what its prompt is, by the template where
/// that knows tools.
fn with_tools(chat: &Chat, tokenizer: &Tokenizer) -> String {
    let arguments = serde_json::json!({ "type": "object", "properties": { "sides": { "type": "integer" } } });
    let dice = Tool { name: "dice".to_owned(), about: "Rolls a die".to_owned(), arguments };
    let tools = Tools { list: vec![dice], instructions: "INSTRUCTIONS".to_owned() };
    let mut conversation = Conversation {
        system: Some("SYSTEM".to_owned()),
        tools: Some(Arc::new(tools.clone())),
        next: "USER".to_owned(),
        ..Conversation::default()
    };
    let arguments = serde_json::json!({ "sides": 6 });
    let call = Call { tool: "dice".to_owned(), arguments };
    let ids = call_ids(chat, tokenizer, &tools, &call);
    let first = chat.prompt(&conversation, tokenizer).expect("a prompt");
    let text = |segments: &[Segment]| segments.iter().map(|s| &*s.text).collect::<String>();
    let user = std::mem::replace(&mut conversation.next, "RESULT".to_owned());
    conversation.exchanges.push(Exchange::new(user, ReplyContent::Call(ids.into())));
    let second = chat.prompt(&conversation, tokenizer).expect("a prompt");
    assert_eq!(compare(&first, &second).relation, Relation::Extend);
    // A call as text is spelled as the template writes it, and is what was sampled where that is the same.
    let ids = [
        &if chat.calls().own().replaces_header {
            chat.replies(Reasoning::None).call_lead.clone()
        } else {
            chat.replies(Reasoning::None).lead.clone()
        }[..],
        &call_ids(chat, tokenizer, &tools, &call),
    ]
    .concat();
    conversation.exchanges[0].reply = ReplyContent::Call(ids.into());
    let held = chat.prompt(&conversation, tokenizer).expect("a prompt");
    conversation.exchanges[0].reply = ReplyContent::CallText(String::new(), call);
    let asked = chat.prompt(&conversation, tokenizer).expect("a prompt");
    assert_eq!(compare(&held, &asked).relation, Relation::Exact, "{:?}, {:?}", text(&held), text(&asked));
    format!("{:?}\n  then {:?}", text(&first), text(&second[first.len()..]))
}

/// A template of a loop over messages.
fn template_of(body: &str) -> String {
    format!(
        "{{% for m in messages %}}<|im_start|>{{{{ m.role }}}}\n{body}<|im_end|>\n{{% endfor %}}<|im_start|>assistant\n"
    )
}

/// What a file's template says of tools, the ids of the control tokens given.
fn chat_with(templates: Templates<'_>, control: &[&str]) -> (Chat, Tokenizer) {
    let control = control.iter().map(|it| (*it).to_owned()).collect();
    let model = RandomModel { control, ..RandomModel::tiny(0) };
    let gguf = Gguf::open(&ModelSource::Bundled("random", model.bytes().leak())).expect("a GGUF");
    let tokenizer = Tokenizer::from_gguf(&gguf).expect("a tokenizer");
    (Chat::new(templates, &tokenizer).expect("templates"), tokenizer)
}

/// LFM2's and Granite's templates describe tools, but print no past calls.
#[test]
fn a_template_that_prints_no_calls_has_the_form_of_its_models() {
    let tools =
        "{% if loop.first and tools %}<|tool_list_start|>{{ tools|tojson }}{% endif %}{{ m.content }}";
    let control = ["<|tool_list_start|>", "<|tool_call_start|>", "<|tool_call_end|>"];
    let template = template_of(tools);
    let (chat, tokenizer) = chat_with(Some(&*template).into(), &control);
    assert!(chat.knows_tools(Reasoning::None), "{:?}", chat.calls());
    let shown = with_tools(&chat, &tokenizer);
    assert!(shown.contains("<|tool_call_start|>[dice(sides=6)]<|tool_call_end|>"), "{shown}");
    // One that does not describe tools has to explain them.
    let silent = template_of("{{ m.content }}{# <|tool_list_start|> #}");
    assert!(!chat_with(Some(&*silent).into(), &control).0.knows_tools(Reasoning::None));
}

/// A file may have another template for conversations with tools; some templates insist on descriptions.
#[test]
fn the_template_tool_use_is_for_conversations_with_tools() {
    let default = template_of("{{ m.content }}");
    let tool_use = template_of(
        "{% if loop.first %}FUNCTIONS {% for t in tools or [] %}{{ t.function.name + ': ' + t.function.description }}\
         {% for k, v in t.function.parameters.properties|items %}{{ k + ' ' + v.description }}{% endfor %}{% endfor %}\
         {% endif %}{% for c in m.tool_calls or [] %}<call>{{ c.function|tojson }}</call>{% endfor %}{{ m.content }}",
    );
    let templates = Templates { default: Some(&default), tool_use: Some(&tool_use) };
    let (chat, tokenizer) = chat_with(templates, &["<call>", "</call>"]);
    let shown = with_tools(&chat, &tokenizer);
    assert!(shown.contains("FUNCTIONS dice: Rolls a die") && shown.contains("<call>"), "{shown}");
    assert!(!first_prompt(&chat, &tokenizer, "system").contains("FUNCTIONS"));
    assert!(chat.audit().iter().any(|line| line.contains("tool_use")));
}

/// A remembered reply is known as a call however long it is.
#[test]
fn a_long_call_in_a_fenced_block_is_known_again() {
    let (chat, _) = chat_of(TEMPLATES[0].0, TEMPLATES[0].1);
    let arguments = serde_json::json!({ "type": "object", "properties": { "text": { "type": "string" } } });
    let tool = Tool { name: "note".to_owned(), about: String::new(), arguments };
    let tools = Tools { list: vec![tool], instructions: String::new() };
    let fenced = |name: &str| {
        let text = "so it is, ".repeat(60);
        format!(
            "See:\n```\nlet x = 1;\n```\n```json\n{{\"name\": \"{name}\", \"arguments\": {{\"text\": \"{text}\"}}}}\n```"
        )
    };
    assert!(chat.calls().are_in(&[], &fenced("note"), &tools));
    assert!(!chat.calls().are_in(&[], &fenced("other"), &tools));
}

/// Llama 3.1 writes a result as a JSON string; read back from memory it is the result.
#[test]
fn a_result_is_written_as_the_template_writes_it() {
    let (name, control) = TEMPLATES[4];
    let (chat, tokenizer) = chat_of(name, control);
    let arguments = serde_json::json!({ "type": "object", "properties": {} });
    let tool = Tool { name: "dice".to_owned(), about: "Rolls a die".to_owned(), arguments };
    let tools = Arc::new(Tools { list: vec![tool], instructions: String::new() });
    let call = Call { tool: "dice".to_owned(), arguments: serde_json::json!({}) };
    let ids = call_ids(&chat, &tokenizer, &tools, &call);
    let past = Exchange::new("Roll.".to_owned(), ReplyContent::Call(ids.into()));
    let result = "a \"six\"\nof ä";
    let conversation = Conversation {
        tools: Some(tools.clone()),
        exchanges: vec![past],
        next: result.to_owned(),
        ..Conversation::default()
    };
    let mut segments = chat.prompt(&conversation, &tokenizer).expect("a prompt");
    let text: String = segments.iter().map(|segment| &*segment.text).collect();
    assert!(text.contains("\"a \\\"six\\\"\\nof ä\"<|eot_id|>"), "{text}");
    segments.push(Segment {
        kind: SegmentKind::Reply,
        text: "six".into(),
        ids: tokenizer.encode_message("six", After::Text).expect("ids").into(),
        guessed: false,
    });
    let read = crate::text::restore::conversation(&segments, Some(&tools), &chat, &tokenizer).expect("one");
    assert_eq!((&*read.exchanges[0].user, &*read.exchanges[1].user), ("Roll.", result));
}

#[test]
fn calls_are_written_as_real_templates_write_them() {
    let mut shown: Vec<String> = TEMPLATES
        .iter()
        .map(|(name, control)| {
            let (chat, tokenizer) = chat_of(name, control);
            format!("{name}: {}", with_tools(&chat, &tokenizer))
        })
        .collect();
    let template = std::fs::read_to_string(fixture("templates/Qwen-Qwen3-0.6B.jinja")).expect("a template");
    let tokenizer = vocabulary("qwen35");
    let chat = Chat::new(Some(&*template), &tokenizer).expect("a chat template");
    shown.push(format!("with a real vocabulary: {}", with_tools(&chat, &tokenizer)));
    insta::assert_snapshot!("calls", shown.join("\n"));
}

/// A table of the templates in a folder: whether first prompts are as Jinja2 renders them (`tests/goldens/by_jinja2.py`),
/// five turns extend, what calls and thoughts look like. A call of each is in the grammars of calls, read, and followed
/// by its result.
#[test]
#[ignore = "other templates: GREENROOM_TEMPLATES=DIR cargo test -p greenroom-engine --lib -- --ignored --nocapture replies_to_templates"]
fn replies_to_templates_in_a_folder() {
    let folder = std::env::var("GREENROOM_TEMPLATES").expect("a folder");
    let expected: serde_json::Value = std::env::var("GREENROOM_PROMPTS").map_or_else(
        |_| serde_json::Value::Null,
        |file| serde_json::from_slice(&std::fs::read(file).expect("prompts")).expect("JSON"),
    );
    let special =
        regex::Regex::new(r"<[|｜][^<>{}' ]{1,40}[|｜]>|\[/?[A-Z_]{3,24}\]|</?[a-z_:]{3,24}>|<[a-z_|]+>|<\|\x22\|>|<[a-z_]+\|>|<\|[a-z_]+>")
            .expect("a pattern");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).expect("a folder").map(|it| it.expect("a file").path()).collect();
    files.sort();
    println!(
        "| template | first prompt: without system text, with, with tools | five turns | calls | two calls | thoughts |"
    );
    println!("|---|---|---|---|---|---|");
    for file in files.iter().filter(|file| file.extension().is_some_and(|it| it == "jinja")) {
        let name = file.file_stem().expect("a name").to_string_lossy();
        let template = std::fs::read_to_string(file).expect("a template");
        let control: BTreeSet<String> =
            special.find_iter(&template).map(|it| it.as_str().to_owned()).collect();
        let control = control.into_iter().filter(|it| !it.starts_with("<|im_")).collect();
        let model = RandomModel { template: Some(template.clone()), control, ..RandomModel::tiny(0) };
        let gguf = Gguf::open(&ModelSource::Bundled("random", model.bytes().leak())).expect("a GGUF");
        let tokenizer = Tokenizer::from_gguf(&gguf).expect("a tokenizer");
        let chat = Chat::new(Some(&*template), &tokenizer).expect("a chat template");
        assert!(
            !chat.audit().iter().any(|line| line.contains("can't be used")),
            "{name}: {:?}",
            chat.audit()
        );
        let knows_tools = chat.knows_tools(Reasoning::None);
        let first = ["plain", "system", "tools"].map(|kind| {
            let expected = expected[&*name][kind].as_str();
            match (expected, kind == "tools" && !knows_tools) {
                (_, true) | (None, _) => "–",
                (Some(expected), _) if expected.trim() == first_prompt(&chat, &tokenizer, kind).trim() => "=",
                (Some(expected), _) => {
                    let found = first_prompt(&chat, &tokenizer, kind);
                    let at = crate::text::prefix::first_difference(&found, expected);
                    let end =
                        |text: &str| text.chars().skip(at.saturating_sub(20)).take(50).collect::<String>();
                    eprintln!("{name}, {kind}: {:?} instead of {:?}", end(&found), end(expected));
                    "differs"
                }
            }
        });
        let turns = (0..4).map(|n| prompt_of(&chat, &tokenizer, n)).collect::<Vec<_>>();
        let extends = turns.windows(2).all(|pair| compare(&pair[0], &pair[1]).relation == Relation::Extend);
        let _ = with_tools(&chat, &tokenizer);
        let own = chat.calls().own();
        let call = Call { tool: "NAME".to_owned(), arguments: serde_json::json!({ "KEY": "VALUE", "n": 1 }) };
        let call: String = own.pieces(&call).into_iter().map(|(_, text)| text).collect();
        let call = format!("{}{call}", tokenizer.decode(&own.opening)).replace('\n', "⏎").replace('|', "\\|");
        let calls = if knows_tools { format!("`{call}`") } else { "plain".to_owned() };
        let thoughts = chat.replies(Reasoning::High).thoughts.open().unwrap_or("–").replace('|', "\\|");
        let two = if own.joint.is_some() { "yes" } else { "no" };
        let turns = if extends { "extend" } else { "differ" };
        println!("| {name} | {} | {turns} | {calls} | {two} | `{thoughts}` |", first.join(" "));
    }
}

/// The first prompt of one of the kinds of `tests/goldens/by_jinja2.py`.
fn first_prompt(chat: &Chat, tokenizer: &Tokenizer, kind: &str) -> String {
    let properties = serde_json::json!({ "sides": { "type": "integer" } });
    let arguments = serde_json::json!({ "type": "object", "properties": properties });
    let dice = Tool { name: "dice".to_owned(), about: "Rolls a die".to_owned(), arguments };
    let tools = Tools { list: vec![dice], instructions: String::new() };
    let conversation = Conversation {
        system: (kind != "plain").then(|| "SYSTEM".to_owned()),
        tools: (kind == "tools").then(|| Arc::new(tools)),
        next: "USER".to_owned(),
        ..Conversation::default()
    };
    let prompt = chat.prompt(&conversation, tokenizer).expect("a prompt");
    prompt.iter().map(|segment| &*segment.text).collect()
}

/// The prompt after some exchanges, with the replies to it given as ids.
fn prompt_of(chat: &Chat, tokenizer: &Tokenizer, n: usize) -> Vec<Segment> {
    let reply = tokenizer.encode_message("Well, yes.", After::Text).expect("ids");
    let exchange = |n| Exchange::new(format!("Line {n}"), ReplyContent::Ids(reply.clone().into()));
    let conversation = Conversation {
        system: Some("SYSTEM".to_owned()),
        exchanges: (0..n).map(exchange).collect(),
        next: format!("Line {n}"),
        ..Conversation::default()
    };
    chat.prompt(&conversation, tokenizer).expect("a prompt")
}
