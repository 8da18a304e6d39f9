//! `check` and a run agree on every text and expression: what `check` accepts plays to its end, and what it
//! rejects could not have been rendered in any play.

use crate::play::{play, scenario};
use greenroom::backend::{Request, Scripted};
use greenroom::rehearsal::load;
use greenroom::replay::replay;
use greenroom::run::RunOptions;
use greenroom::scenario::render::{Reading, evaluate, render_stage};
use greenroom::scenario::results::History;
use greenroom::scenario::template::{Expression, Scope, Template};
use greenroom::scenario::{AgentId, ChoiceMethod, Path, Scenario, turn_seed};
use greenroom::stage::End;
use greenroom::transcript::{Footer, Transcript};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Plays of each scenario.
const N_PLAYS: u64 = 12;

/// A scenario with phases of many kinds, and an expression at one place of the last.
fn text(first: &str, vote: &str, place: usize, code: &str) -> String {
    let quoted = |text: &str| serde_json::to_string(text).unwrap();
    let (mut fields, mut rest) = ("prompt: The end.".to_string(), String::new());
    match place {
        0 => fields = format!("prompt: {}", quoted(&format!("Now {{{{ {code} }}}}."))),
        1 => fields = format!("turns: [{{agent: ann, ask: {}}}]", quoted(&format!("{{{{ {code} }}}}?"))),
        2 => fields = format!("turns: [{{agent: ann}}, {{agent: ben, when: {}}}]", quoted(code)),
        3 => fields = format!("rounds: 3, until: {}", quoted(code)),
        4 => fields = format!("when: {}", quoted(code)),
        5 => rest = format!("outcome: {{x: {}}}\n", quoted(code)),
        6 => fields = format!("when: w.played, prompt: {}", quoted(&format!("{{{{ {code} }}}}"))),
        _ => {
            let guarded =
                format!("{{% if w.played and r.choices.ann is not none %}}{{{{ {code} }}}}{{% endif %}}");
            fields = format!("prompt: {}", quoted(&guarded));
        }
    }
    format!(
        "id: agree
variables: {{table: {{'0': a, '5': b, ann: c}}, five: 5}}
agents: {{ann: {{}}, ben: {{}}, cas: {{}}}}
phases:
  - {{name: r, agents: [ann, ben], {first}}}
  - {{name: v, agents: [ann, ben, cas], rounds: 0, {vote}}}
  - {{name: w, agents: [ann, cas], when: v.decision == 'ann', answer: [1, 2]}}
  - name: t
    agents: [ann, ben]
    rounds: 2
    turns: [{{agent: ann, answer: [1, 3]}}, {{agent: ben, when: t.choices.ann == 3, answer: [x, y]}}]
    until: t.votes.x > 0
  - {{name: end, agents: [ann, ben], {fields}}}
payoff: {{phase: r, each: mine}}
{rest}"
    )
}

const FIRST: [&str; 5] = [
    "answer: [0, 5, 10]",
    "answer: {one_of: [0, 5, 10], free_text: true}",
    "answer: [0, 5], rounds: 3",
    "answer: [0, 5, 10], rounds: 6, order: broadcast",
    "answer: [0, 5], rounds: 3, until: r.choices.ben == 5",
];
const VOTES: [&str; 4] = [
    "vote: {rule: majority, answer: [ann, ben, nobody]}",
    "vote: {rule: majority, answer: [ann, ben]}",
    "vote: {rule: consensus, attempts: 2, answer: [ann, ben]}",
    "vote: {rule: ranked, answer: [ann, ben, cas]}",
];
const VALUES: [&str; 22] = [
    "r.choices.ann",
    "r.choices.ben",
    "r.choices.cas",
    "r.history.ann",
    "r.history.ben",
    "r.votes['5']",
    "r.votes[five]",
    "r.invalid",
    "r.rounds",
    "r.said.ann",
    "v.decision",
    "v.tied",
    "v.votes.ann",
    "w.choices.ann",
    "w.history.cas",
    "w.rounds",
    "t.choices.ben",
    "t.history.ben",
    "t.votes.x",
    "payoffs.ann",
    "payoffs.cas",
    "five",
];

/// Expressions over values: what adds, divides, looks up, sums up, and what guards against null.
fn expression() -> impl Strategy<Value = String> {
    let value = proptest::sample::select(VALUES.to_vec());
    let form = proptest::sample::select(vec![
        "A",
        "10 - A",
        "A + B",
        "A - B",
        "A * B",
        "10 // (A - 3)",
        "7 % A",
        "A > B",
        "A == B",
        "A | sum",
        "A | first",
        "A | last",
        "A | length",
        "A | int",
        "A ~ B",
        "table[A]",
        "table[A ~ '']",
        "agents[A]",
        "agents[A].key",
        "A is none",
        "A | default(0)",
        "(A or 0) + 1",
        "10 - A if A is not none else 0",
        "10 - A if w.played else B",
        "agents[A].display_name if A else 'nobody'",
        "A | max",
        "A in [1, 5]",
        "B in A",
        "A[0]",
        "A.x",
        "(A | string).split('.')[1]",
        "range(A) | length",
        "-A",
        "'%d' | format(A)",
        "A is divisibleby 2",
        "(A, B) | join(' ')",
        "not A and B > 1",
        "A == 5 or B + 1 > 2",
        "10 / (A - 5)",
        "A | upper",
        "A | round",
    ]);
    (form, value.clone(), value).prop_map(|(form, a, b)| form.replace('A', a).replace('B', b))
}

/// Chooses by the turns' seeds, every third play the same, and now and then nothing valid.
fn answer(salt: u64) -> impl Fn(&Request) -> Option<String> + Send + Sync + 'static {
    move |request| {
        let drawn = turn_seed(if salt % 3 == 0 { 0 } else { salt }, &request.path) as usize;
        let drawn = if salt % 3 == 0 { salt as usize / 3 } else { drawn };
        let Some(options) = &request.choice else {
            return Some(["words", "", "12", "a.b"][drawn % 4].into());
        };
        if options.choice.method == ChoiceMethod::Parse && drawn % 5 == 4 {
            return Some("hm".into());
        }
        Some(options.choice.options[options.open[drawn % options.open.len()]].text.clone())
    }
}

fn played(scenario: &Arc<Scenario>, salt: u64) -> anyhow::Result<(Footer, Arc<History>)> {
    let folder = tempfile::tempdir()?;
    let played =
        play(scenario, Arc::new(Scripted::new(answer(salt))), folder.path(), &RunOptions::default())?;
    let text = std::fs::read_to_string(&played.transcript)?;
    let transcript = Transcript::parse(&played.transcript, &text)?;
    let replayed = replay(scenario, &transcript, BTreeMap::new())?;
    let End::Complete(footer) = played.end else { panic!("stopped") };
    Ok((*footer, replayed.memories.history()?))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if crate::is_deep() { 256 } else { 48 }, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn check_and_run_agree(
        first in proptest::sample::select(FIRST.to_vec()),
        vote in proptest::sample::select(VOTES.to_vec()),
        place in 0..8usize,
        code in expression(),
        salt in 0..1_000_000u64,
    ) {
        let written = text(first, vote, place, &code);
        let loaded = load("agree.yaml", &written, &[]);
        let report = loaded.report.render(false);
        if let Some(scenario) = loaded.scenario {
            if !loaded.report.diagnostics.is_empty() {
                return Ok(()); // What may fail was reported.
            }
            for salt in salt..salt + N_PLAYS {
                let footer = played(&scenario, salt);
                prop_assert!(footer.is_ok(), "{:#}\n{}", footer.unwrap_err(), written);
                let (footer, _) = footer.unwrap();
                prop_assert!(
                    footer.outcomes.iter().all(|outcome| outcome.error.is_none()), "{:?}\n{}",
                    footer.outcomes, written
                );
                prop_assert!(footer.payoffs.is_some());
            }
            return Ok(());
        }
        if loaded.report.diagnostics.iter().any(|found| ![
            "template", "expression", "may-fail"
        ].contains(&found.code)) {
            return Ok(()); // A name that expressions don't have.
        }
        // What is rejected could not have been rendered in any play.
        let harmless = scenario(&text(first, vote, place, "five"));
        let end = harmless.phase_by_name("end").unwrap();
        let reading = |round| Reading { phase: end, round, agent: AgentId(0) };
        for salt in salt..salt + N_PLAYS {
            let (_, said) = played(&harmless, salt).unwrap();
            let works = match place {
                0 | 1 => render_stage(&harmless, &template(&code), reading(None), &said).is_ok(),
                6 => said.has(harmless.phase_by_name("w").unwrap())
                    && render_stage(&harmless, &template(&code), reading(Some(1)), &said).is_ok(),
                7 => continue,
                _ => {
                    let phases = (0..harmless.phases.len()).map(greenroom::scenario::PhaseId).collect();
                    let expression = Expression { path: Path::default(), text: code.clone(), phases, scope: Scope::default() };
                    evaluate(&harmless, &expression, &said).is_ok()
                }
            };
            prop_assert!(!works, "{}\nit works with the choices of {}\n{}", report, salt, written);
        }
    }
}

/// None of these may be refused for a null that never comes.
#[test]
fn forced_choices_are_not_null() {
    let scenario = |choice: &str, prompt: &str| {
        format!(
            "variables: {{endow: 10}}
agents: {{ann: {{}}, ben: {{}}, cas: {{}}}}
phases:
  - {{name: r1, agents: [ann, ben], {choice}}}
  - {{name: v, agents: [ann, ben, cas], rounds: 0, vote: {{rule: majority, answer: [ann, ben]}}}}
  - {{name: r2, agents: [ann, ben], prompt: \"{prompt}\"}}
"
        )
    };
    let codes = |choice: &str, prompt: &str| -> Vec<&'static str> {
        let report = load("x.yaml", &scenario(choice, prompt), &[]).report;
        report.diagnostics.iter().map(|found| found.code).collect()
    };
    for prompt in [
        "{{ endow - r1.choices.ann }}",
        "{% if r1.choices.ann is not none %}{{ endow - r1.choices.ann }}{% endif %}",
        "{{ r1.history.ann | sum }}",
        "{{ agents[v.decision] }}",
        "{{ agents[v.decision].display_name }} with {{ v.votes[v.decision] }}",
    ] {
        assert_eq!(codes("answer: [0, 5, 10]", prompt), [""; 0], "{prompt}");
        assert_eq!(codes("answer: [0, 5, 10], rounds: 20", prompt), [""; 0], "{prompt}");
    }
    assert_eq!(
        codes("answer: {one_of: [0, 5, 10], free_text: true}", "{{ endow - r1.choices.ann }}"),
        ["may-fail"]
    );
    assert_eq!(
        codes("answer: {one_of: [0, 5, 10], free_text: true}", "{{ r1.history.ann | sum }}"),
        ["may-fail"]
    );
    assert_eq!(codes("answer: [0, 5, 10]", "{{ endow - r1.choices.cas }}"), ["template"]);
    assert_eq!(codes("answer: [a, b]", "{{ endow - r1.choices.ann }}"), ["template"]);
}

/// The name that is marked is the one in code, not the same word in the prose beside it.
#[test]
fn a_caret_is_under_code() {
    let text = "
agents: {ann: {}, ben: {}}
phases:
  - name: talk
    agents: [ann, ben]
    prompt: 'The pot holds six, and pot.votes too; you have {{ payoffs[me] }}.'
  - { name: pot, agents: [ann, ben], answer: [1, 2] }
payoff: {phase: pot, each: mine}
";
    let report = load("x.yaml", text, &[]).report;
    let found = &report.diagnostics[0];
    assert_eq!((found.code, report.diagnostics.len()), ("forward-reference", 1), "{}", report.render(false));
    assert_eq!(&text[found.span.start..found.span.end], "payoffs", "{}", report.render(false));
}

/// A check that takes too many steps says so, and says the same whatever the machine.
#[test]
fn untried_cases_are_reported() {
    let mut text = String::from(
        "agents: {a: {}, b: {}, c: {}, d: {}, e: {}}\n\
         phases:\n\
         - { name: v, agents: [a, b, c, d, e], answer: [x, y, z] }\n\
         ",
    );
    for at in 0..600 {
        text += &format!("- {{name: p{at}, agents: [a], when: v.votes.x + {at} > v.history.a | length}}\n");
    }
    let report = || load("x.yaml", &text, &[]).report.render(false);
    let first = report();
    assert_eq!(first.matches("warning[not-tried]").count(), 1, "{first:.2000}");
    assert!(first.contains("(step limit)"), "{first:.2000}");
    assert_eq!(first, report());
}

/// A template that prints the value of some code.
fn template(code: &str) -> Template {
    let text = format!("{{{{ {code} }}}}");
    Template { path: Path::default(), text, quotes: Vec::new(), scope: Scope::default() }
}
