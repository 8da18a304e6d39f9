//! Every text of a scenario that a reader would take for a template is rendered, or there is an error or a
//! warning at its place.

use greenroom::scenario::schema::json_schema;
use greenroom::scenario::{Content, Scenario, load};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A template in a field.
const HOLE: &str = "{{ v }}-x";
/// The same, rendered.
const RENDERED: &str = "Bo-x";

/// Fields in a language of their own.
const OTHERS: [(&str, &str); 2] = [("Grammar", "lark"), ("Grammar", "regex")];

/// A scenario that has an object of a type, and the place of the object in it.
fn around(of: &str) -> Option<(Value, &'static str)> {
    let talk = || json!({ "name": "talk", "agents": ["ann", "ben"] });
    let mut base =
        json!({ "variables": { "v": "Bo" }, "agents": { "ann": {}, "ben": {} }, "phases": [talk()] });
    let mut phase = |field: &str, value: Value| base["phases"][0][field] = value;
    let place = match of {
        "Scenario" => "",
        "Agent" => "/agents/ann",
        "Phase" => "/phases/0",
        "Block" => {
            base["phases"] = json!([{ "repeat": 2, "phases": [talk()] }]);
            "/phases/0"
        }
        "Turn" => {
            phase("turns", json!([{ "agent": "ann" }]));
            "/phases/0/turns/0"
        }
        "Say" => {
            phase("say", json!([{ "text": "Hush." }]));
            "/phases/0/say/0"
        }
        "Vote" => {
            phase("vote", json!({ "rule": "majority", "answer": ["stay", "leave"] }));
            "/phases/0/vote"
        }
        "Sampling" => {
            base["sampling"] = json!({ "temperature": 1 });
            "/sampling"
        }
        "Route" => {
            base["phases"] =
                json!([talk(), { "name": "asked", "agents": ["ann", "ben"], "route": { "query": "Who?" } }]);
            "/phases/1/route"
        }
        "LongAnswer" => {
            phase("answer", json!({ "one_of": ["stay", "leave"] }));
            "/phases/0/answer"
        }
        "Payoff" => {
            phase("answer", json!(["stay", "leave"]));
            base["payoff"] = json!({ "phase": "talk", "each": 1 });
            "/payoff"
        }
        "LongAssertion" => {
            base["assertions"] = json!([{ "that": "1" }]);
            "/assertions/0"
        }
        "Judge" => {
            let judge = json!({ "ask": "Did they?", "answer": ["did", "did_not"] });
            base["assertions"] = json!([{ "that": "verdict == 'did'", "judge": judge }]);
            "/assertions/0/judge"
        }
        "RemoteModel" => {
            base["models"] = json!({ "m": { "remote": "http://127.0.0.1:1", "api": "greenroom" } });
            base["agents"]["ann"] = json!({ "model": "m" });
            "/models/m"
        }
        "LongTool" => {
            base["tools"] =
                json!({ "t": { "command": ["do"], "about": "Does it.", "arguments": { "type": "object" } } });
            base["agents"]["ann"] = json!({ "tools": ["t"] });
            "/tools/t"
        }
        "Memory" => {
            base["agents"]["ann"] = json!({ "memory": { "keep": "window" } });
            "/agents/ann/memory"
        }
        "Share" => {
            base["assertions"] = json!([{ "that": "1", "share": {} }]);
            "/assertions/0/share"
        }
        _ => return None,
    };
    Some((base, place))
}

fn definitions() -> BTreeMap<String, Value> {
    let root = json_schema().as_value();
    let mut all: BTreeMap<String, Value> =
        root["$defs"].as_object().unwrap().iter().map(|(name, of)| (name.clone(), of.clone())).collect();
    all.insert("Scenario".into(), root.clone());
    all
}

/// Values of a type that hold a template, and whether the type itself is that of templates.
fn holding(
    of: &Value,
    definitions: &BTreeMap<String, Value>,
    is_template: bool,
    found: &mut Vec<(Value, bool)>,
) {
    for forms in ["anyOf", "oneOf"] {
        for form in of[forms].as_array().into_iter().flatten() {
            holding(form, definitions, is_template, found);
        }
    }
    if let Some(name) = of["$ref"].as_str().and_then(|name| name.rsplit('/').next()) {
        let is_object = around(name).is_some();
        if !is_object {
            holding(&definitions[name], definitions, is_template || name == "Template", found);
        }
        return;
    }
    let is =
        |kind: &str| of["type"] == kind || of["type"].as_array().is_some_and(|of| of.contains(&kind.into()));
    if is("string") && of.get("enum").is_none() && of.get("const").is_none() {
        found.push((HOLE.into(), is_template));
    }
    let mut below = |of: &Value, around: &dyn Fn(Value) -> Value| {
        let mut inner = Vec::new();
        // The rules of debates, in the table of a language.
        let about = of["description"].as_str().unwrap_or_default();
        holding(of, definitions, is_template || about.ends_with("a template."), &mut inner);
        found.extend(inner.into_iter().map(|(value, is_template)| (around(value), is_template)));
    };
    if of["items"].is_object() {
        let pair = of["minItems"] == 2;
        below(&of["items"], &|value| if pair { json!([value, "other"]) } else { json!([value]) });
    }
    if of["additionalProperties"].is_object() {
        let pair = of["minProperties"] == 2;
        let key = if pair { "stay" } else { "ann" };
        below(&of["additionalProperties"], &|value| match pair {
            true => json!({ key: value, "other": "other" }),
            false => json!({ key: value }),
        });
    }
    for (name, field) in of["properties"].as_object().into_iter().flatten() {
        below(field, &|value| json!({ name: value }));
    }
}

/// Names the phase or the turn that a strategy is for, where the schema has any name.
fn by_phase(strategy: &mut Value) {
    let Some(fields) = strategy.as_object_mut() else { return };
    if let Some(mut of_phase) = fields.remove("ann") {
        by_phase(&mut of_phase);
        fields.insert("talk".into(), of_phase);
    }
    if let Some(entries) = fields.get_mut("script").and_then(Value::as_object_mut) {
        let text = entries.remove("ann");
        entries.extend(text.map(|text| ("talk/1/ann".into(), text)));
    }
}

/// All that a scenario says, without the text that it was read from.
fn said(scenario: &Scenario) -> String {
    let Content { title, description, agents, phases, payoff, assertions, tools, models, language, .. } =
        &**scenario;
    format!(
        "{title:?} {description:?} {agents:?} {phases:?} {payoff:?} {assertions:?} {tools:?} {models:?} \
         {language:?}"
    )
}

#[test]
fn no_field_keeps_braces_without_a_message() {
    let definitions = definitions();
    let (mut n_rendered, mut n_reported, mut wrong) = (0, 0, Vec::new());
    for (of, definition) in &definitions {
        let Some((base, place)) = around(of) else {
            let has_texts = definition["properties"].as_object().is_some_and(|fields| !fields.is_empty());
            assert!(!has_texts, "the test has no scenario with a `{of}`");
            continue;
        };
        for (field, schema) in definition["properties"].as_object().unwrap() {
            if OTHERS.contains(&(of.as_str(), field.as_str())) {
                continue;
            }
            let mut values = Vec::new();
            holding(schema, &definitions, false, &mut values);
            for free in ["variables", "state", "arguments", "schema"] {
                if field == free {
                    values.push((json!({ "type": "object", "ann": HOLE }), false));
                }
            }
            for (mut value, is_template) in values {
                if field == "strategy" {
                    by_phase(&mut value);
                }
                let mut scenario = base.clone();
                let object = scenario.pointer_mut(place).unwrap();
                match (field.as_str(), value.as_object()) {
                    // What is needed beside it stays.
                    ("variables" | "agents" | "models", Some(more)) => {
                        let known = object[field].as_object().cloned().unwrap_or_default();
                        object[field] = known.into_iter().chain(more.clone()).collect();
                    }
                    _ => object[field] = value.clone(),
                }
                let exclusive =
                    [("before", "after"), ("lark", "regex"), ("each", "matrix"), ("one_of", "some_of")];
                for (other, it) in exclusive {
                    if field == it {
                        object.as_object_mut().unwrap().remove(other);
                    }
                }
                if field == "some_of" {
                    object["size"] = json!(2);
                }
                let text = serde_json::to_string_pretty(&scenario).unwrap();
                let loaded = load("s.yaml", &text, &[]);
                let hole = text.find(HOLE).unwrap();
                let line = text[..hole].matches('\n').count() + 1;
                let is_there = |found: &greenroom::diagnostic::Diagnostic| {
                    let here = found.span.start <= hole && hole <= found.span.end;
                    here || loaded.report.sources.place(found.span).1 == line
                };
                let is_reported = loaded.report.diagnostics.iter().any(is_there);
                let is_rendered = loaded.scenario.as_ref().is_some_and(|scenario| {
                    let said = said(scenario);
                    is_template || said.contains(RENDERED) && !said.contains("{{ v }}")
                });
                n_rendered += usize::from(is_rendered);
                n_reported += usize::from(is_reported);
                if !is_reported && !is_rendered {
                    wrong.push(format!("{of}.{field} as {value}:\n{}", loaded.report.render(false)));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(n_rendered > 20 && n_reported > 40, "{n_rendered} rendered, {n_reported} reported");
}

const SURVEY: &str = "
id: survey
title: 'Asked of {{ p.name }}'
description: About {{ framing }}.
variables: { p: { name: Bo, age: 40 }, framing: gains }
agents:
  person: { display_name: '{{ p.name }}', role: 'a person of {{ p.age }}' }
  other: { strategy: { always: 'I am not {{ p.name }}.' } }
phases:
  - name: talk
    label: '{% if p.age > 30 %}Elders{% else %}Youths{% endif %} talk'
    agents: [person, other]
  - { name: pick, agents: [person], answer: { one_of: { me: '{{ p.name }} it is', no: 'Not me' } } }
payoff: { phase: pick, unit: '{{ framing }}', each: 1 }
assertions: [{ that: pick.invalid == 0, why: '{{ p.name }} chose.' }]
";

#[test]
fn names_and_titles_are_those_of_the_case() {
    let overrides = [("p.name".to_string(), json!("Cas")), ("p.age".to_string(), json!(20))];
    for (overrides, name, title) in [(&[][..], "Bo", "Elders talk"), (&overrides[..], "Cas", "Youths talk")] {
        let loaded = load("s.yaml", SURVEY, overrides);
        let scenario = loaded.scenario.unwrap_or_else(|| panic!("{}", loaded.report.render(false)));
        assert_eq!(scenario.title, format!("Asked of {name}"));
        assert_eq!((scenario.agents[0].name.as_str(), scenario.phases[0].label.as_str()), (name, title));
        assert!(scenario.agents[0].system.contains(name), "{}", scenario.agents[0].system);
        assert_eq!(scenario.phases[1].choice.as_ref().unwrap().options[0].text, format!("{name} it is"));
        let folder = tempfile::tempdir().unwrap();
        crate::play::play(&scenario, crate::case_seeds::first_listed(), folder.path(), &Default::default())
            .unwrap();
        let text = std::fs::read_to_string(folder.path().join("transcript.jsonl")).unwrap();
        assert!(!text.contains("{{") && text.contains(&format!("I am not {name}.")), "{text}");
        assert!(text.contains(&format!("[Your turn, {name}.")), "{text}");
    }
}

/// A scenario whose agent, model, tool and phase have these names, with braces where nothing is rendered, and
/// where something is.
fn named([agent, model, tool, phase]: [&str; 4]) -> String {
    format!(
        "variables: {{ v: Bo }}
state: {{ s: 1 }}
models:
  {model}:
    remote: 'http://127.0.0.1:1'
    api: greenroom
    tokenizer: '{HOLE}'
    key_env: '{HOLE}'
tools:
  {tool}:
    command: [do, '{HOLE}']
    about: '{HOLE}'
    arguments:
      type: object
      description: '{HOLE}'
agents:
  {agent}:
    model: {model}
    color: '{HOLE}'
    role: '{HOLE}'
    tools: [{tool}, '{HOLE}']
  ben:
    model: {model}
    strategy:
      {phase}: {{ always: '{HOLE}' }}
phases:
  - name: {phase}
    agents: [{agent}, ben]
    model: '{HOLE}'
    label: '{HOLE}'
    say:
      {agent}: '{HOLE}'
      '{HOLE}': x
    answer:
      schema:
        type: integer
        description: '{HOLE}'
"
    )
}

#[test]
fn a_name_that_is_that_of_a_field_changes_nothing() {
    const PLAIN: [&str; 4] = ["abc", "def", "ghi", "jkl"];
    let found = |names: [&str; 4]| {
        let report = load("s.yaml", &named(names), &[]).report;
        let plain = |mut text: String| {
            for (name, plain) in names.iter().zip(PLAIN) {
                text = text.replace(&format!("`{name}`"), &format!("`{plain}`"));
            }
            text
        };
        let found = report.diagnostics.iter();
        let found = found.map(|found| {
            let line = report.sources.place(found.span).1;
            (line, found.code, found.severity, plain(found.message.clone()), found.help.clone().map(plain))
        });
        found.collect::<Vec<_>>()
    };
    let expected = found(PLAIN);
    let n_rejected = expected.iter().filter(|found| found.1 == "template").count();
    assert!(n_rejected >= 5, "{expected:#?}");
    for kind in 0..PLAIN.len() {
        for name in ["choice", "parse_choice", "strategy", "schema", "grammar", "arguments", "language", "ui"]
        {
            let mut names = PLAIN;
            names[kind] = name;
            assert_eq!(found(names), expected, "{}", named(names));
        }
    }
}
