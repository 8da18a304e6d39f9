//! Files from outside are read or refused: no panic, no hang, no memory out of proportion.

use greenroom::rehearsal::{load, open};
use greenroom::scenario::render::evaluate;
use std::fmt::Write as _;
use std::sync::Arc;

/// The codes of the diagnostics found in a text; renders these both ways.
fn found(text: &str) -> Vec<&'static str> {
    let loaded = load("x.yaml", text, &[]);
    assert_eq!(loaded.scenario.is_none(), loaded.report.n_errors() > 0, "{text:.80}");
    loaded.report.render(false);
    if text.len() < 10_000 {
        loaded.report.render(true);
    }
    loaded.report.diagnostics.iter().map(|found| found.code).collect()
}

fn agents(n: usize) -> String {
    (0..n).fold("agents:\n".to_string(), |text, i| text + &format!("  a{i}: {{}}\n"))
}

fn cast(n: usize) -> String {
    (0..n).map(|i| format!("a{i},")).collect()
}

/// Two agents in one phase with more fields, and more below.
fn phase(fields: &str, more: &str) -> String {
    format!("{}phases: [{{name: p, agents: [a0, a1], {fields}}}]\n{more}", agents(2))
}

#[test]
fn hostile_yaml_is_an_error_and_no_panic() {
    let deep = "a: ".to_string() + &"[".repeat(5000);
    let laughs = "a: &a [x,x,x,x,x,x,x,x,x]\n".to_string()
        + &('b'..='k').map(|c| {
            let before = char::from(c as u8 - 1);
            format!("{c}: &{c} [*{before},*{before},*{before},*{before},*{before},*{before},*{before},*{before},*{before}]\n")
        }).collect::<String>();
    let nested = |open: &str, close: &str| open.repeat(50) + "x" + &close.repeat(50);
    let odd_keys = ["1", "1.5", "true", "~", "? [1]\n", "? {a: b}\n", "''", "\"\\n\"", "a.b", "'a[0]'"];
    let mut texts: Vec<String> = [
        "",
        "\0",
        "- a",
        "a: b: c",
        "{",
        "&a [*a]",
        "*x",
        "? [1]\n: 2",
        "\u{feff}id: x",
        "a: !tag b",
        "--- 1\n--- 2",
        "phases: [[[]]]",
        "agents: {a: 1}",
        "agents: [1]",
        "phases: {a: 1}",
        "id: \"\\ud800\"",
        "agents: {1: {}}",
        "~: 1",
        "id: &x a\nagents: *x",
        "<<: 1",
        "<<: [1, {a: b}]",
        "agents: {a: {color: '#12é'}}",
        "phases: [{ name: p, agents: [a], rounds: 18446744073709551615 }]",
        deep.as_str(),
        laughs.as_str(),
    ]
    .map(str::to_string)
    .to_vec();
    texts.extend([
        phase(&format!("choice: {}", nested("[", "]")), ""),
        phase(&format!("choice: {}", nested("{a: ", "}")), ""),
        phase(&format!("choice: {{options: {}}}", nested("{options: ", "}")), ""),
        phase("answer: [x, y]", &format!("payoff: {{phase: p, matrix: {}}}\n", nested("{x: ", "}"))),
        phase("answer: [x, y]", &format!("payoff: {{phase: p, matrix: {}}}\n", nested("[", "]"))),
        phase(&format!("turns: {}", nested("[", "]")), ""),
        phase(&format!("when: {}", nested("[", "]")), ""),
        phase(&format!("to: {{a0: {}}}", nested("[", "]")), ""),
        phase("", &format!("assertions: {}\n", nested("[", "]"))),
        phase("", &format!("outcome: {}\n", nested("{a: ", "}"))),
        phase("answer: [a, {b: c}]", ""),
        phase("choice: {options: {x: [y], z: {}}}", ""),
    ]);
    for key in odd_keys {
        let block = |at: &str, rest: &str| {
            format!("{}phases:\n- name: p\n  agents: [a0, a1]\n  {at}:\n    {key}: {rest}\n", agents(2))
        };
        texts.push(format!("{key}: 1\n"));
        texts.push(format!("agents:\n  {key}: 1\n"));
        texts.push(format!("agents:\n  a:\n    {key}: 1\n"));
        texts.push(format!("agents:\n  a:\n    strategy:\n      {key}: [1]\n"));
        texts.push(block("per_agent_prompt_templates", "x"));
        texts.push(block("choice", "x"));
        texts.push(block("turns", "x"));
        texts.push(block("say", "x"));
        texts.push(block("when", "x"));
        texts.push(phase("answer: [x, y]", &format!("payoff:\n  phase: p\n  matrix:\n    {key}: 1\n")));
        texts.push(phase("", &format!("payoff:\n  {key}: 1\n")));
        texts.push(phase("", &format!("assertions:\n-\n  {key}: 1\n")));
        texts.push(phase("", &format!("outcome:\n  {key}: p.nothing\n")));
        texts.push(phase("prompt: '{{ x }}'", &format!("variables:\n  {key}: [{{1: 2}}]\n")));
    }
    for text in texts {
        assert!(!found(&text).is_empty(), "{text:.200}");
    }
}

#[test]
fn what_would_take_all_memory_or_never_end_is_refused() {
    let list = |n: usize, item: &str| vec![item; n].join(",");
    let options = |n: usize| (0..n).map(|i| format!("o{i},")).collect::<String>();
    let chain = |link: &str| format!("1{}", link.repeat(20_000));
    for (text, code) in [
        (phase(&format!("answer: [{}]", options(10_000)), ""), "too-many"),
        (
            phase("answer: [x, y]", "").replacen(
                "a0: {}",
                &format!("a0: {{strategy: {{list: [{}]}}}}", list(100_000, "x")),
                1,
            ),
            "yaml",
        ),
        (
            phase("answer: [x, y]", "").replacen(
                "a0: {}",
                &format!("a0: {{strategy: {{list: [{}]}}}}", options(15_000)),
                1,
            ),
            "unknown-value",
        ),
        (
            format!(
                "{}phases: [{{name: p, agents: [{}], answer: [x, y]}}]\n\
                 payoff: {{phase: p, matrix: {{x: 1}}}}\n",
                agents(40),
                cast(40)
            ),
            "too-many",
        ),
        (
            phase(
                "answer: [x, y]",
                &format!("payoff: {{phase: p, matrix: {{x: {{x: [{}]}}}}}}\n", list(15_000, "1")),
            ),
            "bad-value",
        ),
        (phase("prompt: '{{ range(10 ** 9) }}'", ""), "template"),
        (phase("prompt: \"{{ 'x' * 10 ** 9 }}\"", ""), "template"),
        (phase("prompt: \"{{ ['x'] * 10 ** 9 }}\"", ""), "template"),
        (phase("prompt: '{{ ([1] * 90000000) | list }}'", ""), "template"),
        (phase("prompt: \"{{ 'x' | indent(10 ** 15) }}\"", ""), "template"),
        (
            phase(
                "prompt: \
                 '{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}'",
                "",
            ),
            "template",
        ),
        (phase("prompt: '{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}'", ""), "template"),
        (phase(&format!("prompt: '{{{{ {} }}}}'", chain("+1")), ""), "template"),
        (phase(&format!("prompt: '{{{{ {} }}}}'", chain("|abs")), ""), "template"),
        (phase(&format!("prompt: '{{{{ {} }}}}'", chain(".a")), ""), "template"),
        (phase(&format!("prompt: '{{{{ {}1 }}}}'", "not ".repeat(20_000)), ""), "template"),
        (phase(&format!("prompt: '{{{{ {}1 }}}}'", "(".repeat(20_000)), ""), "template"),
        (phase(&format!("prompt: '{}'", "{% if 1 %}".repeat(20_000)), ""), "template"),
        (phase(&format!("prompt: '{{% if 0 %}}{}'", "{% elif 0 %}".repeat(20_000)), ""), "template"),
        (phase(&format!("when: '{}'", chain("+1")), ""), "expression"),
        (phase(&format!("when: '{}'", chain(" and 1")), ""), "expression"),
        (phase(&format!("when: '{}'", chain(" if 1 else 1")), ""), "expression"),
        (phase(&format!("until: '{}'", chain("[0]")), ""), "expression"),
        (phase("", &format!("outcome: {{x: '{}'}}\n", chain(" ~ 1"))), "expression"),
        (phase("", &format!("assertions: ['{}']\n", chain("(1)"))), "expression"),
    ] {
        let codes = found(&text);
        assert!(codes.contains(&code), "{code}: {codes:.200?} {text:.200}");
    }
}

/// Templates that made minijinja panic, overflow the stack or fill memory, and those that `jinja/tests`
/// refuses in 512 MB.
const HOSTILE: &[&str] = &[
    "5 is divisibleby 0",
    "[5] | select('divisibleby', 0) | list",
    "range(9223372036854775807, -9223372036854775807, -1)",
    "[[1]*99999]*99999",
    "[[1]*9999]*9999 == [[1]*9999]*9999",
    "('a' * 99999) | replace('', 'a' * 99999) | length > 0",
    "'abcdefghi' | replace('', 'a' * 99999) | replace('a', 'a' * 99999) | length > 0",
];

#[test]
fn what_made_minijinja_panic_is_an_error_wherever_it_is() {
    let base = format!("{}phases:\n- {{name: p, agents: [a0, a1]}}\n", agents(2));
    for code in HOSTILE {
        let prompt = format!("{base}- {{name: q, agents: [a0], prompt: \"{{{{ {code} }}}}\"}}\n");
        assert_eq!(found(&prompt), ["template"], "{code}");
        for field in [
            format!("- {{name: q, agents: [a0], when: \"{code}\"}}\n"),
            format!("outcome: {{x: \"{code}\"}}\n"),
            format!("assertions: [\"{code}\"]\n"),
        ] {
            // What `check` does not evaluate is an error once it is evaluated.
            let loaded = load("x.yaml", &format!("{base}{field}"), &[]);
            let Some(scenario) = loaded.scenario else {
                assert!(loaded.report.n_errors() > 0, "{field}");
                continue;
            };
            let outcomes = scenario.outcomes.iter().map(|(_, expression)| expression);
            let conditions = scenario.phases.iter().filter_map(|phase| phase.when.as_ref());
            let assertions = scenario.assertions.iter().map(|assertion| &assertion.that);
            let all: Vec<_> = outcomes.chain(conditions).chain(assertions).collect();
            assert_eq!(all.len(), 1, "{field}");
            assert!(evaluate(&scenario, all[0], &Arc::default()).is_err(), "{field}");
        }
    }
}

#[test]
fn what_is_only_long_ends() {
    let names = |n: usize| (0..n).map(|i| format!("x{i}{},", "y".repeat(90))).collect::<String>();
    let quotes = |text: &str| phase(&format!("prompt: \"{}\"", text.repeat(20_000)), "");
    let votes = |n: usize, when: &str| {
        let mut text =
            format!("{}phases:\n- {{name: v, agents: [{}], answer: [x, y, z]}}\n", agents(6), cast(6));
        for i in 0..n {
            writeln!(text, "- {{name: p{i}, agents: [a0], when: \"{when}\"}}").unwrap();
        }
        text
    };
    let crowd = |n: usize, prompt: &str| {
        let mut text = String::from("agents:\n");
        for i in 0..900 {
            writeln!(text, "  a{i}: {{role: {}}}", if i == 0 { "x" } else { "observer" }).unwrap();
        }
        text += "phases:\n";
        for i in 0..n {
            writeln!(text, "- {{name: p{i}, agents: [{}], prompt: \"{prompt}\"}}", cast(900)).unwrap();
        }
        text
    };
    for text in [
        format!(
            "{}phases: [{{name: p, agents: [{}]}}]\n",
            names(900).replace(',', ": {}\n").replace('x', "  x").replacen("  x", "agents:\n  x", 1),
            names(8000).replace('y', "z")
        ),
        quotes("${a} "),
        quotes("${p.messages[a]} "),
        quotes("{{ p.said.a }} "),
        quotes("{{ a0 }} "),
        quotes("p.said "),
        quotes("{{ "),
        quotes("}} "),
        votes(500, "v.choices.a0 == 'x' and v.choices.a5 == 'y'"),
        votes(1, "range(90000) | sort | length > 0 and v.choices.a0 == 'x'"),
        crowd(18, "{% for i in range(90000) %}{% endfor %}"),
        crowd(18, "{{ me }}"),
        phase("answer: [x, y], rounds: 4000, until: range(90000) | sort | length == p.rounds", ""),
        phase("prompt: '{{ long }}'", &format!("variables: {{long: {}}}\n", "x".repeat(1_000_000))),
    ] {
        found(&text);
    }
}

#[test]
fn what_is_included_may_be_anything() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir(at("folder")).unwrap();
    std::fs::write(at("binary.yaml"), [0xff, 0xfe, 0, 1, 2]).unwrap();
    std::fs::write(at("zeros.yaml"), [0; 1000]).unwrap();
    std::fs::write(at("empty.yaml"), "").unwrap();
    std::fs::write(at("deep.yaml"), "[".repeat(100_000)).unwrap();
    for name in
        ["self.yaml", "folder", "binary.yaml", "zeros.yaml", "empty.yaml", "deep.yaml", "", ".", "..", "\\0"]
    {
        let text = format!("include: [\"{name}\"]\n") + &phase("", "");
        std::fs::write(at("self.yaml"), text).unwrap();
        let loaded = open(&at("self.yaml"), &[]).unwrap();
        assert!(loaded.scenario.is_none(), "{name}");
        assert!(loaded.report.n_errors() > 0, "{name}");
        loaded.report.render(false);
        loaded.report.render(true);
    }
    assert!(open(&at("folder"), &[]).is_err());
    assert!(open(&at("binary.yaml"), &[]).is_err());
}

/// All constructs in one file: each file's agents and phases, renamed, and one payoff, outcomes and
/// assertions.
fn rich() -> String {
    let mut all = serde_json::json!({"agents": {}, "phases": [], "variables": {}});
    for name in [
        "whisper",
        "moderated",
        "majority",
        "ranked",
        "consensus",
        "loops",
        "strategies",
        "debate",
        "interrupt",
    ] {
        let text = std::fs::read_to_string(format!("tests/scenarios/{name}.yaml")).unwrap();
        let mut value: serde_yaml::Value = serde_yaml::from_str(&text).unwrap();
        value.apply_merge().unwrap();
        let value = serde_json::to_value(value).unwrap();
        for (key, agent) in value["agents"].as_object().unwrap() {
            all["agents"][key] = agent.clone();
        }
        all["phases"].as_array_mut().unwrap().extend(value["phases"].as_array().unwrap().clone());
        for part in ["payoff", "outcome", "assertions"] {
            if !value[part].is_null() {
                all[part] = value[part].clone();
            }
        }
    }
    serde_yaml::to_string(&all).unwrap()
}

#[test]
fn a_file_may_end_anywhere() {
    let rich = rich();
    assert!(rich.len() > 3000);
    for at in 0..rich.len() {
        load("x.yaml", &String::from_utf8_lossy(&rich.as_bytes()[..at]), &[]).report.render(false);
    }
}

/// Colours are ours; whatever else steers a terminal came out of a file.
#[test]
fn no_diagnostic_steers_a_terminal() {
    let mut shown = 0;
    for file in std::fs::read_dir("tests/hostile/scenarios").unwrap().map(|entry| entry.unwrap().path()) {
        let Ok(loaded) = open(&file, &[]) else { continue };
        for fancy in [false, true] {
            let text = loaded.report.render(fancy);
            let mut parts = text.split("\u{1b}[");
            let mut plain = parts.next().unwrap_or_default().to_string();
            for part in parts {
                let (style, rest) = part.split_once('m').unwrap_or(("?", ""));
                assert!(fancy && style.chars().all(|c| c.is_ascii_digit() || c == ';'), "{file:?}: {text}");
                plain += rest;
            }
            let steers =
                |c: char| c.is_control() && c != '\n' && c != '\t' || ('\u{202a}'..='\u{202e}').contains(&c);
            assert_eq!(plain.chars().find(|c| steers(*c)), None, "{file:?}: {text}");
            shown += usize::from(!text.is_empty());
        }
    }
    assert!(shown > 60);
}
