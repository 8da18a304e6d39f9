//! The diagnostics that authors get for their mistakes.

use greenroom::rehearsal::load;
use greenroom::scenario::parse_override;

const TEN: &str = include_str!("broken/ten_mistakes.yaml");

const SMALL: &str = "
id: small
variables: {topic: music, n: 3}
agents:
  a: {display_name: Ann}
  b: {display_name: Ben}
phases:
  - { name: one, agents: [a, b], prompt: 'Talk about {{ topic }}.' }
";

/// Codes and lines of what is found in a text.
fn codes(text: &str) -> Vec<(&'static str, usize)> {
    let report = load("x.yaml", text, &[]).report;
    report.diagnostics.iter().map(|d| (d.code, report.sources.place(d.span).1)).collect()
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let loaded = load("ten_mistakes.yaml", TEN, &[]);
    assert!(loaded.scenario.is_none());
    assert!(loaded.report.n_errors() >= 10);
    insta::assert_snapshot!(loaded.report.render(false));
}

#[test]
fn a_good_file_has_nothing_to_tell() {
    assert_eq!(codes(SMALL), []);
    for (name, text) in [
        ("prisoners-dilemma", include_str!("../../scenarios/prisoners-dilemma.yaml")),
        ("gossip", include_str!("../../scenarios/gossip.yaml")),
        ("expert-routing", include_str!("../../scenarios/expert-routing.yaml")),
    ] {
        let report = load(name, text, &[]).report;
        assert_eq!(report.n_errors(), 0, "{}", report.render(false));
    }
}

#[test]
fn anchors_and_merges_are_read() {
    let text = "
id: x
agents:
  a: &base {display_name: Ann, role: a clerk}
  b: {<<: *base, display_name: Ben}
phases: [{name: one, agents: [a, b]}]
";
    let loaded = load("x.yaml", text, &[]);
    let scenario = loaded.scenario.unwrap_or_else(|| panic!("{}", loaded.report.render(false)));
    assert_eq!(scenario.agents[1].system, "You are Ben, a clerk.");
}

#[test]
fn a_system_prompt_must_not_vary() {
    for name in ["turn", "round", "phase.name", "one.messages['a']", "messages"] {
        let text =
            SMALL.replace("{display_name: Ann}", &format!("{{system_prompt: \"x {{{{ {name} }}}}\"}}"));
        assert_eq!(codes(&text), [("varying-system-prompt", 5)], "{name}");
    }
    let fine = SMALL.replace("{display_name: Ann}", "{system_prompt: 'I am {{ me }}, I know {{ topic }}.'}");
    assert_eq!(codes(&fine), []);
}

#[test]
fn variables_are_typed_and_can_be_set() {
    let set = [
        parse_override("n=4").unwrap(),
        parse_override("topic=a: b").unwrap_or_else(|e| ("topic".into(), e.into())),
    ];
    let loaded = load("x.yaml", SMALL, &set[..1]);
    assert_eq!(loaded.scenario.unwrap().variables["n"], serde_json::json!(4));
    let wrong = load("x.yaml", SMALL, &[parse_override("topik=1").unwrap()]);
    assert!(wrong.scenario.is_none());
    assert!(wrong.report.render(false).contains("did you mean `topic`?"));
}

#[test]
fn too_many_turns_are_refused_at_once() {
    let text = SMALL.replace("agents: [a, b],", "agents: [a, b], rounds: 99999999999,");
    assert_eq!(codes(&text).iter().map(|(code, _)| *code).collect::<Vec<_>>(), ["too-long"]);
}

#[test]
fn a_small_file_that_means_much_is_refused_at_once() {
    let agents = |n: usize| (0..n).map(|i| format!("  a{i}:\n")).collect::<String>();
    let cast = |n: usize| (0..n).map(|i| format!("a{i},")).collect::<String>();
    let phase = |n: usize, more: &str| format!("phases: [{{name: p, agents: [{}]{more}}}]\n", cast(n));
    let list = format!("variables: {{x: &x [{}], y: [{}]}}\n", "1,".repeat(8000), "*x,".repeat(8000));
    let quoting =
        |i: usize| format!("- {{name: p{i}, agents: [{}], prompt: '{{{{ phases }}}}'}}\n", cast(10));
    let quoting: String = (0..500).map(quoting).collect();
    let long = |c: &str| c.repeat(30_000) + &"ab".repeat(30_000);
    for (text, code) in [
        (format!("agents:\n{}{list}{}", agents(1), phase(1, "")), "yaml"),
        (format!("agents:\n{}{}", agents(5000), phase(5000, "")), "too-many"),
        (format!("agents:\n{}{}", agents(900), phase(900, ", rounds: 11")), "too-long"),
        (format!("agents:\n{}phases:\n{quoting}", agents(10)), "too-long"),
        (format!("agents:\n  ? {}\n  :\n{}", long("x"), phase(1, &format!(",{}", long("y")))), "bad-name"),
    ] {
        let found = codes(&text);
        assert!(found.iter().any(|(found, _)| *found == code), "{code}: {found:.200?}");
    }
}

#[test]
fn a_part_of_a_variable_can_be_set() {
    let text = SMALL.replace("n: 3", "stakes: {high: 9, low: [1, 2]}");
    let set = |name: &str| load("x.yaml", &text, &[parse_override(name).unwrap()]);
    let loaded = set("stakes.high=7").scenario.unwrap();
    assert_eq!(loaded.variables["stakes"], serde_json::json!({"high": 7, "low": [1, 2]}));
    for wrong in ["stakes.hihg=7", "stakes.low.x=1", "topic.x=1", "stakes.=1"] {
        assert!(set(wrong).scenario.is_none(), "{wrong}");
    }
    assert!(set("stakes.hihg=7").report.render(false).contains("did you mean `high`?"));
}

#[test]
fn a_filter_or_test_that_does_not_exist_is_named_first_and_a_remedy_once() {
    let report = |prompt: &str| {
        let text = format!(
            "agents: {{ ann: {{}} }}\nphases: [{{ name: p, agents: [ann], prompt: \"{prompt}\" }}]\n"
        );
        greenroom::scenario::load("x.yaml", &text, &[]).report.render(false)
    };
    let filter = report("{{ nosuch | frobnicate }}");
    assert!(filter.contains("there is no filter `frobnicate`"), "{filter}");
    assert_eq!(filter.matches("error[").count(), 1, "{filter}");
    let unreached = report("{% if false %}{{ 1 | uper }}{% endif %}");
    assert!(unreached.contains("there is no filter `uper`") && unreached.contains("`upper`"), "{unreached}");
    let test = report("{% if ann is devined %}a{% endif %}");
    assert!(test.contains("there is no test `devined`"), "{test}");
    let twice = report("{{ quantity }} and {{ velocity }}");
    assert_eq!(twice.matches("error[undefined-variable]").count(), 2, "{twice}");
    assert_eq!(twice.matches("help: ").count(), 1, "{twice}");
}
