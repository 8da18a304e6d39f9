//! Other engines' scenarios: what becomes of them, and that nothing in them is read as a template or lost.

use greenroom::import::{ImportFormat, import};
use greenroom::rehearsal::load;
use proptest::prelude::*;
use std::path::PathBuf;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/import").join(name)
}

/// The YAML that a file becomes; it must load without an error.
fn imported(name: &str) -> String {
    let text = std::fs::read_to_string(fixture(name)).unwrap();
    let yaml = import(name, &text, None).unwrap().yaml;
    let loaded = load("imported.yaml", &yaml, &[]);
    assert!(loaded.scenario.is_some(), "{}\n{yaml}", loaded.report.render(false));
    yaml
}

#[test]
fn arenas_and_tasks_become_scenarios() {
    for name in [
        "chatarena-lighthouse.json",
        "chatarena-auction.json",
        "agentverse-ferry.yaml",
        "agentverse-kiln.yaml",
    ] {
        insta::assert_snapshot!(name, imported(name));
    }
}

#[test]
fn an_agent_reads_what_the_file_says() {
    let text = std::fs::read_to_string(fixture("chatarena-lighthouse.json")).unwrap();
    let yaml = import("x.json", &text, None).unwrap().yaml;
    let scenario = load("x.yaml", &yaml, &[]).scenario.unwrap();
    assert!(scenario.agents[0].system.contains("You write {{ oil }} in the log, and ${price} beside it."));
    assert!(scenario.agents[1].system.ends_with("You say so only when you are asked. {% if asked %}"));
    let text = std::fs::read_to_string(fixture("agentverse-kiln.yaml")).unwrap();
    let yaml = import("x.yaml", &text, None).unwrap().yaml;
    let scenario = load("x.yaml", &yaml, &[]).scenario.unwrap();
    assert!(scenario.agents[0].system.contains("asked to build a kiln: {{ bricks }} and ${clay}"));
}

#[test]
fn a_classroom_is_moderated_by_its_professor() {
    let task = "agents: [{name: Professor A}, {name: Student B}]\n\
                environment: {max_turns: 4, rule: {order: {type: classroom}}}";
    let yaml = import("config.yaml", task, None).unwrap().yaml;
    assert!(yaml.contains("moderator: professor_a\n"), "{yaml}");
}

#[test]
fn every_key_is_used_or_noted() {
    let arena = r#"{"a1": 1, "players": [{"name": "Ann", "role_desc": "", "a2": {"deep": [1]}, "backend": "a3"}],
        "environment": {"env_type": "a4", "a5": true, "moderator": {"role_desc": "", "a6": 1, "terminal_condition": "a7"},
        "moderator_visibility": "a8", "moderator_period": "turn", "player_names": ["a9"]}, "max_steps": 1000000, "max_turns": 77}"#;
    let notes = import("x.json", arena, None).unwrap().notes.join("\n");
    for n in 1..10 {
        assert!(notes.contains(&format!("a{n}")), "a{n} in {notes}");
    }
    assert!(notes.contains("`1000000` is ignored because max_turns is set"), "{notes}");
    let task = "b1: 1\nprompts: {b2: x}\ntools: [b3]\n\
                environment: {env_type: b4, max_turns: 99999999, b5: 1, rule: {order: {type: b6}, \
                visibility: {type: b7}, selector: {type: b8}, updater: {type: b9}, describer: \
                {type: basic, c1: 1}, c2: 3}}\nagents: [{name: A, agent_type: c3, llm: c4, memory: c5, \
                output_parser: c6, tools: [c7], c8: 1, prompt_template: '${solution} ${c9}'}]";
    let notes = import("x.yaml", task, None).unwrap().notes.join("\n");
    for n in 1..10 {
        assert!(notes.contains(&format!("b{n}")) && notes.contains(&format!("c{n}")), "{n} in {notes}");
    }
    assert!(notes.contains("99999999") && notes.contains("${solution}"), "{notes}");
}

#[test]
fn refusals_say_what_was_found_and_expected() {
    let arena =
        |players: &str| format!(r#"{{"players": {players}, "environment": {{"env_type": "conversation"}}}}"#);
    let nested = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let many: Vec<String> = (0..600).map(|n| format!(r#"{{"name": "P{n}", "role_desc": ""}}"#)).collect();
    let bad = [
        ("empty", String::new(), None),
        ("no JSON", "{\"players\": [}".into(), None),
        ("no YAML", "agents: [\n  - : :".into(), None),
        ("YAML for ChatArena", "players: []".into(), Some(ImportFormat::ChatArena)),
        ("neither", "{\"tools\": 1, \"x\\u001b[31m\": 2}".into(), None),
        ("a list", "[1, 2]".into(), None),
        ("ours", "agents: {ann: {}}\nphases: []".into(), None),
        ("no players", arena("[]"), None),
        ("players are a mapping", arena("{\"a\": 1}"), None),
        ("a player without a name", arena(r#"[{"role_desc": "x"}]"#), None),
        ("a player without a role", arena(r#"[{"name": "Ann"}]"#), None),
        ("a role that is a number", arena(r#"[{"name": "Ann", "role_desc": 5}]"#), None),
        ("no environment", r#"{"players": [{"name": "Ann", "role_desc": ""}]}"#.into(), None),
        ("a key twice", r#"{"players": [], "players": []}"#.into(), None),
        ("too many", arena(&format!("[{}]", many.join(","))), None),
        ("too deep", nested, None),
        ("too long", " ".repeat(2 << 20), None),
        ("no agents", "agents: []\nenvironment: {}".into(), None),
        (
            "a prompt that is a mapping",
            "agents: [{name: A, prompt_template: {a: b}}]\nenvironment: {}".into(),
            None,
        ),
        ("an agent that is a word", "agents: [Ann]\nenvironment: {}".into(), None),
        ("turns that are a word", "agents: [{name: A}]\nenvironment: {max_turns: many}".into(), None),
        ("a task read as an arena", "{\"agents\": []}".into(), Some(ImportFormat::ChatArena)),
    ];
    let line = |(what, text, from): &(&str, String, Option<ImportFormat>)| {
        format!("{what}: {}\n", import("x", text, *from).unwrap_err())
    };
    insta::assert_snapshot!(bad.iter().map(line).collect::<String>());
}

#[test]
fn the_command_writes_a_file_that_check_accepts() {
    let folder = tempfile::tempdir().unwrap();
    let greenroom = |args: &[&str]| {
        let mut command = assert_cmd::Command::cargo_bin("greenroom").unwrap();
        let output = command.current_dir(folder.path()).args(args).output().unwrap();
        (
            output.status.code().unwrap(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let file = fixture("agentverse-ferry.yaml").display().to_string();
    let (code, said, notes) = greenroom(&["import", &file, "-o", "ferry.yaml"]);
    assert!(
        code == 0 && said.is_empty() && notes.contains("note: agents[0].receiver"),
        "{code} {said} {notes}"
    );
    assert_eq!(greenroom(&["check", "ferry.yaml"]).0, 0);
    assert_eq!(
        greenroom(&["import", &file]).1,
        std::fs::read_to_string(folder.path().join("ferry.yaml")).unwrap()
    );
    let (code, _, error) = greenroom(&["import", &file, "-o", "ferry.yaml"]);
    assert!(code == 4 && error.contains("can't write ferry.yaml: "), "a file is not written over: {error}");
    std::fs::write(folder.path().join("bad"), b"{\xff}").unwrap();
    assert_eq!(greenroom(&["import", "bad"]).0, 2);
    assert_eq!(greenroom(&["import", "nowhere.json"]).0, 4);
}

/// Characters that YAML, templates or terminals would obey, and some that they would not.
fn hostile() -> impl Strategy<Value = String> {
    let marks = "[{}%#$\\-+a \n\r\t:|>'\"&*!?@`~\\[\\],_\u{85}\u{2028}\u{feff}\u{1b}\u{0}é猫]{0,40}";
    let word = prop_oneof![
        marks.prop_map(|text| text),
        Just("{% endraw %}".to_string()),
        Just("{% raw %}".to_string()),
        Just("{{ x.messages[\"y\"] }}".to_string()),
        Just("${round_1.messages[ann]}".to_string()),
        Just("\n---\n".to_string()),
        Just("\n# x".to_string()),
        Just("{#".to_string()),
        any::<String>(),
    ];
    prop::collection::vec(word, 0..6).prop_map(|words| words.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn hostile_texts_stay_texts(role in hostile(), name in hostile(), extra in hostile()) {
        let arena = serde_json::json!({
            "name": &name, &extra: &extra, "global_prompt": "All.",
            "players": [
                {"name": &name, "role_desc": &role, &extra: &name}, {"name": "Ben", "role_desc": "Mind."}
            ],
            "environment": {"env_type": &extra},
        });
        let yaml = import(&extra, &arena.to_string(), Some(ImportFormat::ChatArena));
        // A user-defined key may be where a field was expected: then it is rejected.
        let Ok(imported) = yaml else { return Ok(()) };
        let loaded = load("x.yaml", &imported.yaml, &[]);
        let Some(scenario) = loaded.scenario else {
            return Err(TestCaseError::fail(format!("{}\n{}", loaded.report.render(false), imported.yaml)));
        };
        prop_assert_eq!(scenario.agents.len(), 2);
        let role_text = role.replace("\r\n", "\n").replace(['\r', '\u{85}', '\u{2028}', '\u{2029}'], "\n");
        let role_text: Vec<&str> = role_text.lines().map(|line| line.trim_end_matches([' ', '\t'])).collect();
        let role_text = role_text.join("\n").trim().to_string();
        let role_text = if role_text.is_empty() { String::new() } else { format!("\n\nYour role: {role_text}") };
        let expected = format!("All.\n\nYour name: {}{role_text}", scenario.agents[0].name);
        prop_assert_eq!(scenario.agents[0].system.clone(), expected.trim());
        prop_assert!(imported.notes.iter().all(|note| !note.contains(char::is_control)));
    }

    #[test]
    fn hostile_tasks_stay_tasks(prompt in hostile(), role in hostile(), task in hostile()) {
        let text = serde_json::json!({
            "task_description": &task,
            "agents": [{"name": "Ann", "role_description": &role, "prompt_template":
                format!("{prompt}${{role_description}}{prompt}${{task_description}}{prompt}")}],
            "environment": {"max_turns": 2, "rule": {"order": "sequential"}},
        });
        let imported = import("x.json", &text.to_string(), Some(ImportFormat::AgentVerse)).unwrap();
        let loaded = load("x.yaml", &imported.yaml, &[]);
        prop_assert!(loaded.scenario.is_some(), "{}\n{}", loaded.report.render(false), imported.yaml);
    }
}

#[test]
fn settings_of_replies_are_taken_over_and_nameless_agents_get_a_name() {
    let task = "agents: [{name: ''}, {name: Bo, llm: \
                {model: gpt-4, temperature: 0.2, top_p: 0.9, max_tokens: 120}}, {name: Cy, llm: \
                {temperature: -1, max_tokens: 0}}]\n\
                environment: {max_turns: 2, rule: {order: {type: sequential}}}";
    let imported = import("x.yaml", task, None).unwrap();
    let scenario = load("x.yaml", &imported.yaml, &[]).scenario.unwrap();
    let agents: Vec<_> = scenario.agents.iter().map(|agent| (agent.name.as_str(), &agent.hints)).collect();
    assert_eq!((agents[0].0, agents[0].1.temperature), ("Agent 1", None));
    assert_eq!(
        (agents[1].1.temperature, agents[1].1.top_p, agents[1].1.max_tokens),
        (Some(0.2), Some(0.9), Some(120))
    );
    let notes = imported.notes.join("\n");
    assert!(notes.contains("`{\"model\":\"gpt-4\"}`") && !notes.contains("120"), "{notes}");
    // What is out of range is noted, not taken over.
    assert!(agents[2].1.is_empty() && notes.contains("`{\"max_tokens\":0,\"temperature\":-1}`"), "{notes}");
    let arena = r#"{"players": [{"name": "Ann", "role_desc": "x", "backend": {"temperature": 0.9, "max_tokens": 40}}],
        "environment": {"env_type": "conversation"}}"#;
    let imported = import("x.json", arena, None).unwrap();
    assert!(imported.yaml.contains("temperature: 0.9") && imported.yaml.contains("max_tokens: 40"));
    assert!(!imported.notes.join("\n").contains("backend"), "{:?}", imported.notes);
}
