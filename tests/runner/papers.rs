//! Files of the papers' format: they check, play, replay, and end with their outcome as they say.

use crate::constructs::Noting;
use crate::play::play;
use greenroom::rehearsal::{load, open};
use greenroom::replay::replay;
use greenroom::run::RunOptions;
use greenroom::scenario::parse_cast;
use greenroom::stage::End;
use greenroom::transcript::{Footer, Transcript};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Plays a file of `tests/papers`, replays it, and returns its footer and what is shown of its outcome.
fn played(file: &str) -> (Footer, String) {
    let overrides = if file == "template.yaml" {
        vec![parse_cast("tests/papers/cast.yaml").unwrap()]
    } else {
        Vec::new()
    };
    let loaded = open(std::path::Path::new(&format!("tests/papers/{file}")), &overrides).unwrap();
    assert_eq!(loaded.report.n_errors(), 0, "{}", loaded.report.render(false));
    let scenario = loaded.scenario.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let backend = Arc::new(Noting::new(usize::MAX, |request| {
        let options = request.choice.as_ref();
        let option = options.map(|options| options.choice.options[options.open[0]].text.clone());
        let words = if request.path.ends_with("danny") { "Yes. I will CONFESS." } else { "I stay silent." };
        Some(option.unwrap_or(words.into()))
    }));
    let played = play(&scenario, backend, folder.path(), &RunOptions::default()).unwrap();
    let text = std::fs::read_to_string(&played.transcript).unwrap();
    let transcript = Transcript::parse(&played.transcript, &text).unwrap();
    let End::Complete(footer) = played.end else { panic!("stopped") };
    assert_eq!(replay(&scenario, &transcript, BTreeMap::new()).unwrap().footer, *footer);
    let shown = footer.shown(&scenario).unwrap_or_default();
    (*footer, shown)
}

#[test]
fn an_outcome_is_evaluated_as_the_file_says() {
    let mut all = String::new();
    for file in ["dilemma", "council", "whispers", "panel", "quarrel", "judge", "template"] {
        let (footer, shown) = played(&format!("{file}.yaml"));
        let outcomes =
            footer.outcomes.iter().map(|outcome| format!("{} = {}\n", outcome.name, outcome.value));
        all += &format!("=== {file}: {} turns\n{}{shown}\n", footer.turns, outcomes.collect::<String>());
    }
    insta::assert_snapshot!(all);
}

#[test]
fn memories_are_ephemeral_and_rounds_three_unless_the_file_says_otherwise() {
    let text = "agents: { ann: {}, ben: { lifecycle: permanent } }\n\
                phases: [{ name: p, agents: [ann, ben], debate_format: free_form }]\n";
    let scenario = load("x.yaml", text, &[]).scenario.unwrap();
    let lifecycles: Vec<&str> = scenario.agents.iter().map(|agent| agent.lifecycle.word()).collect();
    assert_eq!((lifecycles, scenario.phases[0].rounds), (vec!["ephemeral", "permanent"], 3));
    // The same file without a mark of that format is one of ours.
    let scenario = load("x.yaml", &text.replace(", debate_format: free_form", ""), &[]).scenario.unwrap();
    assert_eq!((scenario.agents[0].lifecycle.word(), scenario.phases[0].rounds), ("permanent", 1));
}

#[test]
fn a_cast_from_outside_takes_the_place_of_none() {
    let reported = |file: &str, overrides: &[(String, serde_json::Value)]| {
        let report = open(std::path::Path::new(file), overrides).unwrap().report;
        report.diagnostics.iter().map(|found| found.help.clone().unwrap_or_default()).collect::<String>()
    };
    assert!(reported("tests/papers/template.yaml", &[]).contains("--agents FILE"));
    let cast = [parse_cast("tests/papers/cast.yaml").unwrap()];
    assert_eq!(reported("tests/papers/template.yaml", &cast), "");
    assert!(reported("tests/papers/panel.yaml", &cast).contains("leave out `--agents`"));
}
