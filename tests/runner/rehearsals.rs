//! A rehearsal is a run: what `check` says of the course of a run is what runs do, and the reverse. Scenarios
//! are generated over the state, open options, changes after rounds, consensus of several rounds, nested
//! blocks, and conditions on passes.

use crate::play::play;
use greenroom::backend::{Request, Scripted};
use greenroom::diagnostic::Severity;
use greenroom::rehearsal::load;
use greenroom::run::RunOptions;
use greenroom::scenario::{ChoiceMethod, Scenario, turn_seed};
use greenroom::stage::End;
use greenroom::transcript::{Footer, Transcript};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Runs of each scenario.
const N_RUNS: u64 = 16;

/// Chooses by the turns' seeds; every fourth run the same.
fn answer(salt: u64) -> impl Fn(&Request) -> Option<String> + Send + Sync + 'static {
    move |request| {
        let drawn = turn_seed(salt, &request.path) as usize;
        let drawn = if salt % 4 == 0 { salt as usize / 4 } else { drawn };
        let Some(options) = &request.choice else { return Some("Words.".into()) };
        if options.choice.method == ChoiceMethod::Parse && drawn % 5 == 4 {
            return Some("hm".into());
        }
        Some(options.choice.options[options.open[drawn % options.open.len()]].text.clone())
    }
}

/// A run: its results, and the names of the phases that were played.
fn run(scenario: &Arc<Scenario>, salt: u64) -> anyhow::Result<(Footer, BTreeSet<String>)> {
    let folder = tempfile::tempdir()?;
    let played =
        play(scenario, Arc::new(Scripted::new(answer(salt))), folder.path(), &RunOptions::default())?;
    let text = std::fs::read_to_string(&played.transcript)?;
    let transcript = Transcript::parse(&played.transcript, &text)?;
    let name = |path: &str| path.split(['/', '.']).next().unwrap_or_default().to_string();
    let phases = transcript.turns.iter().map(|turn| name(&turn.record.path)).collect();
    let End::Complete(footer) = played.end else { panic!("stopped") };
    Ok((*footer, phases))
}

/// The codes of a scenario's diagnostics.
fn codes(text: &str) -> Vec<&'static str> {
    load("x.yaml", text, &[]).report.diagnostics.iter().map(|found| found.code).collect()
}

/// Conditions: A is a name of the state, P a phase before.
const CONDITIONS: [&str; 16] = [
    "n == 1",
    "n == 3",
    "n > 4",
    "n == passes",
    "pass == passes",
    "pass == 2",
    "pass > passes",
    "outer.pass == 2",
    "outer.pass == pass",
    "day.decision is none",
    "day.choices.ann == day.choices.ben",
    "pick.choices.ann == pick.choices.ben",
    "pick.choices.ann == 'c'",
    "mark == 'b'",
    "not mark and n > 1",
    "6 // (3 - n) > 1",
];
const SETS: [&str; 6] = [
    "n: n + 1",
    "n: n + day.votes.a",
    "mark: day.choices.ann",
    "mark: pick.choices.ben",
    "n: n + pass",
    "n: 6 // (4 - n)",
];
const DAYS: [&str; 5] = [
    "rounds: 1, vote: {rule: consensus, attempts: 3, answer: [a, b]}",
    "rounds: 0, vote: {rule: majority, answer: [a, b]}",
    "rounds: 2, answer: [a, b]",
    "rounds: 3, answer: [a, b], until: day.choices.ann == 'a'",
    "order: broadcast, answer: [a, b]",
];
const OPEN: [&str; 5] = [
    "['a', 'b']",
    "['a', 'b'] | without(pick.choices.ann)",
    "['a', 'b'] | without(day.choices.ann)",
    "['a', 'b', 'c'] | without(mark)",
    "[mark] if mark else ['a', 'c']",
];
const TEXTS: [&str; 5] =
    ["The end.", "{{ 6 // (3 - n) }}", "{{ 12 // (n - 5) }}", "{{ mark + '!' }}", "{{ day.votes.a - n }}"];

/// A scenario in which a block, or a block in a block, is followed by a last phase.
fn scenario_text(parts: &Parts) -> String {
    let Parts { day, open, order, each_round, inside, until, after, text, nested, repeat, .. } = parts;
    let quoted = |text: &str| serde_json::to_string(text).unwrap();
    let set = |set: &str| {
        let (name, value) = set.split_once(": ").unwrap();
        format!("{{{name}: {}}}", quoted(value))
    };
    let in_block = |code: &str| if *nested { code.to_string() } else { code.replace("outer.", "") };
    let indent = if *nested { "    " } else { "" };
    let open = quoted(open);
    let each_round = if each_round.is_empty() {
        String::new()
    } else {
        format!(", set: {{after: round, {}", &set(each_round)[1..])
    };
    let inner = format!(
        "{indent}  - repeat: {repeat}
{indent}    until: {until}
{indent}    phases:
{indent}      - {{name: day, agents: [ann, ben], {day}{each_round}}}
{indent}      - {{name: pick, agents: [ann, ben], {order}answer: {{one_of: [a, b, c], open: {open}}}, set: {set}}}
{indent}      - {{name: maybe, agents: [ben], when: {inside}, prompt: {text}}}
",
        until = quoted(&in_block(until)),
        set = set(parts.set),
        inside = quoted(&in_block(inside)),
        text = quoted(text),
    );
    let outer = if *nested { "  - repeat: 2\n    phases:\n" } else { "" };
    let ben = if parts.is_ruled { "strategy: grim" } else { "" };
    let after = after.replace("outer.", "").replace("passes", "2").replace("pass", "n");
    format!(
        "id: generated
state: {{n: 0, mark: null}}
agents: {{ann: {{}}, ben: {{{ben}}}}}
phases:
{outer}{inner}  - {{name: last, agents: [ann], when: {}, prompt: {}}}
outcome: {{n: n}}
",
        quoted(&after),
        quoted(text),
    )
}

#[derive(Clone, Debug)]
struct Parts {
    day: &'static str,
    open: &'static str,
    order: &'static str,
    each_round: &'static str,
    set: &'static str,
    inside: &'static str,
    until: &'static str,
    after: &'static str,
    text: &'static str,
    nested: bool,
    repeat: usize,
    is_ruled: bool,
}

fn parts() -> impl Strategy<Value = Parts> {
    let one_of = |all: &'static [&'static str]| proptest::sample::select(all.to_vec());
    let each_round = one_of(&["", "n: n + 1", "n: n + rounds", "mark: day.choices.ann"]);
    let first =
        (one_of(&DAYS), one_of(&OPEN), one_of(&["", "order: broadcast, "]), each_round, one_of(&SETS));
    let second = (one_of(&CONDITIONS), one_of(&CONDITIONS), one_of(&CONDITIONS), one_of(&TEXTS));
    (first, second, any::<bool>(), 2..4usize, any::<bool>()).prop_map(
        |((day, open, order, each_round, set), (inside, until, after, text), nested, repeat, is_ruled)| {
            Parts { day, open, order, each_round, set, inside, until, after, text, nested, repeat, is_ruled }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if crate::is_deep() { 192 } else { 24 }, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default() })]
    // The seed is fixed: of a scenario that can go in more than 256 ways a rehearsal is a sample.
    /// What passes plays; what always fails never plays; what is never played is never played.
    #[test]
    fn check_says_what_runs_do(parts in parts(), salt in 0..1_000_000u64) {
        let text = scenario_text(&parts);
        let loaded = load("generated.yaml", &text, &[]);
        let report = loaded.report.render(false);
        let Some(scenario) = loaded.scenario else {
            // It is reported to fail in every run that reaches it: no such run continues.
            let found = &loaded.report.diagnostics;
            let is_of_course = |code| ["template", "expression"].contains(&code);
            prop_assert!(found.iter().any(|found| is_of_course(found.code)), "{report}\n{text}");
            let Some(scenario) = greenroom::scenario::load("generated.yaml", &text, &[]).scenario else {
                return Err(TestCaseError::fail(format!("{report}\n{text}")));
            };
            let at_last = found.iter().all(|found| !is_of_course(found.code) || found.path.starts_with("phases[1]"));
            for salt in salt..salt + N_RUNS {
                if let Ok((_, phases)) = run(&scenario, salt) {
                    prop_assert!(!at_last || !phases.contains("last"), "{report}\n{text}");
                }
            }
            return Ok(());
        };
        let may_fail = loaded.report.diagnostics.iter().any(|found| found.code == "may-fail");
        let never = |name: &str| report.contains(&format!("`{name}` is never played"));
        for salt in salt..salt + N_RUNS {
            match run(&scenario, salt) {
                Ok((footer, phases)) => {
                    prop_assert!(footer.outcomes.iter().all(|outcome| outcome.error.is_none()), "{text}");
                    for name in ["maybe", "last"] {
                        prop_assert!(!never(name) || !phases.contains(name), "{name}: {report}\n{text}");
                    }
                }
                Err(error) => prop_assert!(may_fail, "{error:#}\n{report}\n{text}"),
            }
        }
    }
}

/// The rounds of a consensus after the vote that decides are not played.
#[test]
fn rounds_that_are_not_played_count_for_nothing() {
    let text = |strategy: &str, more: &str| {
        format!(
            "
agents: {{ann: {{{strategy}}}, ben: {{{strategy}}}}}
state: {{n: 0}}
phases:
  - {{name: jury, agents: [ann, ben], rounds: 1, vote: {{rule: consensus, attempts: 3, answer: [guilty, free]}}, set: {{after: round, n: n + 1}}}}
  - {{name: after, agents: [ann, ben], {more}}}
"
        )
    };
    let always = "strategy: {always: guilty}";
    assert_eq!(
        codes(&text(always, "when: jury.decision is not none, prompt: 'Left: {{ 6 // (3 - n) }}.'")),
        [""; 0]
    );
    assert_eq!(codes(&text("", "when: n == 1, prompt: It was quick.")), [""; 0]);
    assert_eq!(codes(&text(always, "when: n == 2, prompt: It was slow.")), ["unreachable"]);
}

/// Those who choose at once have not chosen for each other.
#[test]
fn open_options_do_not_depend_on_simultaneous_choices() {
    let text = |order: &str| {
        format!(
            "
agents: {{ann: {{strategy: {{always: a}}}}, ben: {{strategy: grim}}}}
phases:
  - {{name: pick, agents: [ann, ben], {order}answer: {{one_of: [a, b], open: \"['a', 'b'] | without(pick.choices.ann)\"}}}}
  - {{name: after, agents: [ann, ben], when: pick.choices.ann == pick.choices.ben, prompt: The same.}}
"
        )
    };
    assert_eq!(codes(&text("order: broadcast, ")), [""; 0]);
    assert_eq!(codes(&text("")), ["unreachable"]);
}

/// What only invented words or representative courses have led to is not certain.
#[test]
fn a_strategy_that_words_may_help_is_no_error() {
    let text = |open: &str| {
        format!(
            "
agents: {{ann: {{}}, bob: {{strategy: {{always: leave}}}}}}
phases:
  - {{name: talk, agents: [ann]}}
  - {{ name: go, agents: [bob], answer: {{ one_of: [stay, leave], open: \"{open}\" }} }}
"
        )
    };
    let found = |open: &str| {
        let report = load("s.yaml", &text(open), &[]).report;
        report.diagnostics.iter().map(|found| (found.code, found.severity)).collect::<Vec<_>>()
    };
    let wordy = "['stay', 'leave'] if (talk.said.ann | length) > 500 else ['stay']";
    assert_eq!(found(wordy), [("not-open", Severity::Warning)]);
    assert_eq!(found("['stay']"), [("not-open", Severity::Error)]);
}

/// A phase of a block is never played if it is played in no pass.
#[test]
fn every_pass_counts() {
    let text = |when: &str| {
        format!(
            "
agents: {{ann: {{}}, ben: {{}}}}
phases:
  - repeat: 3
    phases:
      - {{ name: day, agents: [ann, ben], answer: [a, b] }}
      - {{name: last, agents: [ann], when: {when}, prompt: The end.}}
"
        )
    };
    assert_eq!(codes(&text("pass == passes")), [""; 0]);
    assert_eq!(codes(&text("pass == 1")), [""; 0]);
    assert_eq!(codes(&text("pass == 4")), ["unreachable"]);
    let failing = text("pass == 3").replace("The end.", "'{{ 6 // (3 - pass) }}'");
    assert_eq!(codes(&failing), ["template"], "{}", load("x.yaml", &failing, &[]).report.render(false));
}

/// `pass` is known in the conditions of a block, and `outer.pass` in a block inside another.
#[test]
fn conditions_of_blocks_know_the_pass() {
    let text = "
id: passes
agents: {ann: {}}
state: {n: 0}
phases:
  - repeat: 5
    when: pass == 1
    until: pass == 2
    phases:
      - {name: a, agents: [ann], prompt: 'Pass {{ pass }} of {{ passes }}.'}
      - repeat: 4
        when: outer.pass == 2
        until: pass == outer.pass + 1
        phases:
          - {name: b, agents: [ann], prompt: '{{ outer.pass }}.{{ pass }} of {{ outer.passes }}.{{ passes }}', set: {n: n + 10 * outer.pass + pass}}
outcome: {n: n}
";
    let loaded = load("passes.yaml", text, &[]);
    let scenario = loaded.scenario.unwrap_or_else(|| panic!("{}", loaded.report.render(false)));
    assert_eq!(loaded.report.render(false), "");
    let (footer, phases) = run(&scenario, 1).unwrap();
    assert_eq!(footer.turns, 5, "two of `a`, three of `b`");
    assert!(phases.contains("b"));
    assert_eq!(footer.outcomes[0].value, serde_json::json!(66));
    assert_eq!(codes(&text.replace("Pass {{ pass }}", "{{ outer.pass }}")), ["undefined-variable"]);
    assert_eq!(codes(&text.replace("when: pass == 1", "when: outer.pass == 1")), ["undefined-variable"]);
}

/// A text that names the round is tried in more than the first.
#[test]
fn questions_are_tried_in_all_rounds() {
    let text = |rounds: usize| {
        format!(
            "
agents: {{ann: {{}}}}
variables: {{items: [one, two, three]}}
phases: [{{ name: q, agents: [ann], rounds: {rounds}, ask: '{{{{ items[round - 1] | upper }}}}', answer: [a, b] }}]
"
        )
    };
    assert_eq!(codes(&text(3)), [""; 0]);
    assert_eq!(codes(&text(4)), ["template"]);
    assert_eq!(codes(&text(40)), ["template"]);
}
