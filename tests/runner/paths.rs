//! Warnings that follow the ways of a run: what can't be reached, can fail, or may not exist; and no false
//! alarms.

use greenroom::rehearsal::{load, open};

/// Code, line and message of what is found where phases follow on a vote and on choices.
fn reported(phases: &str) -> Vec<(&'static str, usize, String)> {
    let text = format!(
        "variables: {{ days: 3 }}
agents: {{ ann: {{}}, ben: {{}}, cas: {{}} }}
phases:
  - {{ name: vote, agents: [ann, ben, cas], rounds: 0, vote: {{ rule: majority, answer: {{ one_of: {{ stay: We stay, go: We go }} }} }} }}
  - {{ name: game, agents: [ann, ben], answer: [1, 2, 3] }}
  - {{ name: loose, agents: [ann, ben], answer: {{ one_of: [1, 2, 3], free_text: true }} }}
  - {{ name: trip, agents: [ann, ben], when: vote.decision == 'go', answer: [1, 2] }}
{phases}"
    );
    let report = load("x.yaml", &text, &[]).report;
    assert_eq!(report.n_errors(), 0, "{}", report.render(false));
    let place = |d: &greenroom::diagnostic::Diagnostic| report.sources.place(d.span).1;
    report.diagnostics.iter().map(|d| (d.code, place(d), d.message.clone())).collect()
}

fn when(condition: &str) -> Vec<(&'static str, usize, String)> {
    reported(&format!("  - {{ name: end, agents: [ann], when: \"{condition}\" }}\n"))
}

fn codes(condition: &str) -> Vec<&'static str> {
    when(condition).into_iter().map(|(code, ..)| code).collect()
}

#[test]
fn unreachable_results_are_reported() {
    for condition in [
        "vote.decision == 'We go'",
        "vote.decision == 'leave'",
        "vote.decision == 'go' and vote.decision == 'stay'",
        "vote.votes.stay > 3",
        "vote.votes.stay + vote.votes.go == 2",
        "game.choices.ann == '1'",
        "game.choices.ann > 3",
        "game.choices.ann + game.choices.ben > 6",
        "game.invalid > 0",
        "trip.played and trip.choices.ann == 3",
        "trip.played and vote.decision == 'stay'",
        "not vote.played",
        "vote.tied", // three voters, two options
        "vote.decision is none",
        "game.history.ann | length == 7", // one round
        "false",
    ] {
        assert_eq!(codes(condition), ["unreachable"], "{condition}");
    }
    let (_, line, message) = when("vote.decision == 'leave'").remove(0);
    assert_eq!(
        (line, message.as_str()),
        (8, "`end` is never played: whatever is chosen, `vote.decision == 'leave'` is false")
    );
}

/// Codes and helps of what is found in an assertion.
fn asserted(that: &str) -> Vec<(&'static str, Option<String>)> {
    let text = format!(
        "agents: {{ ann: {{}}, ben: {{}} }}
phases:
  - {{ name: vote, agents: [ann, ben], order: broadcast, answer: {{ one_of: {{ stay: We stay, go: We go }} }} }}
assertions: [\"{that}\"]
"
    );
    let report = load("x.yaml", &text, &[]).report;
    report.diagnostics.iter().map(|d| (d.code, d.help.clone())).collect()
}

#[test]
fn an_assertion_that_no_choice_fulfils_is_reported() {
    for that in ["vote.choices.ann == 'We go'", "vote.votes.go >= '2'", "vote.choices == 'go'"] {
        let options = "the options of `vote` are `\"stay\"`, `\"go\"`".to_owned();
        assert_eq!(asserted(that), [("unreachable", Some(options))], "{that}");
    }
    for that in ["vote.votes.go == 2", "vote.invalid == 0", "vote.votes.go + vote.votes.stay == 2"] {
        assert_eq!(asserted(that), [], "{that}");
    }
}

#[test]
fn what_is_not_a_number_is_not_compared_with_one() {
    for (that, example) in [
        ("vote.votes >= 2", "compare one of them, e.g. `vote.votes.OPTION >= 2`"),
        ("2 > 1 and vote.choices < 2", "compare one of them, e.g. `vote.choices.AGENT >= 2`"),
    ] {
        assert_eq!(asserted(that), [("expression", Some(example.to_owned()))], "{that}");
    }
    let options = "the options of `vote` are `\"stay\"`, `\"go\"`".to_owned();
    assert_eq!(asserted("vote.votes.leave >= 1"), [("expression", Some(options))]);
}

#[test]
fn what_some_choice_leads_to_is_not() {
    for condition in [
        "vote.decision == 'go'",
        "vote.votes.stay == 2",
        "game.choices.ann == 1 and game.choices.ben == 3",
        "game.choices.ann + game.choices.ben > 5",
        "loose.invalid == 2",
        "loose.choices.ann is none",
        "trip.played and trip.choices.ann + trip.choices.ben == 4",
        "vote.decision == 'go' and trip.choices.ann + 1 == 2",
        "not trip.played",
        "game.said.ann == 'what nobody says'",
        "game.history.ann | length == 1",
        "days > 5",
        "days > 5 and vote.decision == 'go'",
        "true",
    ] {
        assert_eq!(codes(condition), [""; 0], "{condition}");
    }
}

#[test]
fn possible_failures_are_reported_with_the_way_to_them() {
    for (condition, way) in [
        ("loose.choices.ann + 1 > 2", "`loose` has the choices nothing valid, 1"),
        ("trip.choices.ann + 1 > 2", "`trip` is skipped"),
    ] {
        let reported = when(condition);
        assert_eq!(
            reported.iter().map(|(code, line, _)| (*code, *line)).collect::<Vec<_>>(),
            [("may-fail", 8)],
            "{condition}"
        );
        assert!(reported[0].2.contains(way), "{reported:?}");
    }
}

#[test]
fn counts_that_grow_with_rounds_are_not_tried() {
    let phases = |condition: &str| {
        format!(
            "  - {{ name: long, agents: [ann, ben], rounds: 5, answer: [x, y] }}\n  \
               - {{ name: few, agents: [ann, ben], max_turns: 1, answer: [x, y] }}\n  \
               - {{ name: listed, agents: [ann, ben], answer: [x, y], turns: [{{ agent: ben }}] }}\n  \
               - {{ name: end, agents: [ann], when: \"{condition}\" }}\n"
        )
    };
    for condition in ["long.votes.x == 10", "few.choices.ben is none", "listed.choices.ann is none"] {
        assert_eq!(reported(&phases(condition)), [], "{condition}");
    }
    assert_eq!(reported(&phases("long.choices.ann == 'z'")).len(), 1);
}

#[test]
fn possibly_missing_values_are_reported_with_their_condition() {
    let prompt = |when: &str, text: &str| {
        reported(&format!(
            "  - name: end\n    agents: [ann]\n{when}    prompt: |\n      First.\n      {text}\n"
        ))
    };
    let missing = prompt("", "Ann took {{ trip.choices.ann }}.");
    let message = "`trip.choices` may not exist here: if `vote.decision == 'go'` is false, `trip` is \
                   skipped, and `end` is null";
    assert_eq!(missing, [("may-be-missing", 12, message.to_string())]);
    for (when, text) in [
        ("    when: trip.played\n", "Ann took {{ trip.choices.ann }}."),
        ("    when: vote.decision == 'go'\n", "Ann took {{ trip.choices.ann }}."),
        ("    when: \"'go' == vote.decision and vote.votes.go > 2\"\n", "Ann took {{ trip.choices.ann }}."),
        ("", "{% if trip.played %}Ann took {{ trip.choices.ann }}.{% endif %} So it was."),
        ("", "Ann took {{ trip.choices.ann | default(0) }}."),
        ("", "They said {{ trip.said.ann }}, a word on trip.choices."),
        ("", "Ann took {{ game.choices.ann }}."),
    ] {
        assert_eq!(prompt(when, text), [], "{when}{text}");
    }
    assert_eq!(prompt("    when: vote.decision == 'stay'\n", "{{ trip.choices.ann }}").len(), 1);
}

#[test]
fn the_shipped_scenarios_raise_no_alarm() {
    for folder in ["scenarios", "tests/scenarios", "templates/scenarios"] {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.extension().is_some_and(|end| end == "yaml") && !path.ends_with("cast.yaml") {
                let text = std::fs::read_to_string(&path).unwrap();
                let report = if text.contains("id: NAME") {
                    load("x.yaml", &text.replace("NAME", "name"), &[]).report
                } else {
                    open(&path, &[]).unwrap().report
                };
                assert!(report.diagnostics.is_empty(), "{}", report.render(false));
            }
        }
    }
}
