//! Every mistake that authors make is explained: a file of `broken/` for each, its diagnostics as a snapshot.
//!
//! Files named `warn_*` can be played, and warned of; all others can't be.

use greenroom::diagnostic::{Report, Severity};
use greenroom::rehearsal::open;
use std::path::{Path, PathBuf};

/// The files, by name.
fn files() -> Vec<(String, PathBuf)> {
    // Relative, so that no snapshot names a machine's folders; tests run in the package's.
    let entries = std::fs::read_dir("tests/runner/broken").unwrap().map(|entry| entry.unwrap().path());
    let files = entries.filter(|path| path.extension().is_some_and(|end| end == "yaml"));
    let files = files.filter(|path| !path.ends_with("ten_mistakes.yaml"));
    let mut files: Vec<_> =
        files.map(|path| (path.file_stem().unwrap().to_str().unwrap().to_string(), path)).collect();
    files.sort();
    files
}

fn report(path: &Path) -> Report {
    open(path, &[]).unwrap().report
}

#[test]
fn every_mistake_is_explained() {
    let files = files();
    assert!(files.len() > 100, "{}", files.len());
    for (name, path) in &files {
        let report = report(path);
        insta::with_settings!({ omit_expression => true }, {
            insta::assert_snapshot!(name.as_str(), report.render(false));
        });
    }
}

#[test]
fn each_has_a_place_a_message_and_a_remedy() {
    for (name, path) in files() {
        let report = report(&path);
        let warned = name.starts_with("warn_");
        assert!(!report.diagnostics.is_empty(), "{name} is found to be right");
        assert_eq!(report.n_errors() == 0, warned, "{name}: {}", report.render(false));
        assert_eq!(report.diagnostics.len(), 1, "{name} has one mistake: {}", report.render(false));
        for found in &report.diagnostics {
            assert_eq!(found.severity == Severity::Warning, warned, "{name}: {found:?}");
            let source = report.sources.of(found.span);
            let (_, line, column) = report.sources.place(found.span);
            let text = source.text.lines().nth(line - 1);
            let text = text.unwrap_or_else(|| panic!("{name}: no line {line}"));
            assert!(column <= text.chars().count() + 1, "{name}: line {line} has no column {column}");
            assert!(found.span.start <= found.span.end && found.span.end <= source.text.len(), "{name}");
            assert!(!found.message.trim().is_empty(), "{name}");
            let helped = found.help.as_ref().is_some_and(|help| !help.trim().is_empty());
            assert!(helped, "{name}: no remedy for {}", found.message);
        }
        assert!(report.render(true).lines().count() >= report.diagnostics.len(), "{name}");
    }
}

#[test]
fn six_mistakes_are_six() {
    let text = "
title: 7
varables: { topic: music }
agents:
  ann: { display_name: Ann }
  ben: { display_name: Ben, strategy: { always: stay } }
  mod: { display_name: Mod, role: moderator }
phases:
  - name: talk
    agents: [ann, bne, mod]
    moderator: mod
    to: { ben: ann }
    say: { ben: 'Talk about {{ topic }}.' }
  - name: vote
    agents: [ann, ben]
    vote: { rule: majorty, answer: [stay] }
    prompt: 'Vote on {{ topic }}.'
  - name: after
    agents: [ann]
    when: vote.decision = 'stay'
payoff: { phase: vote, matrix: { stay: [1, 1] } }
outcome: { left: vote.votes.leave }
assertions: [outcome.left == 0]
";
    let report = greenroom::rehearsal::load("six.yaml", text, &[]).report;
    let codes: Vec<_> = report.diagnostics.iter().map(|d| (d.code, report.sources.place(d.span).1)).collect();
    let six = [
        ("type", 2),
        ("unknown-key", 3),
        ("unknown-agent", 10),
        ("unknown-value", 16),
        ("bad-value", 16),
        ("expression", 20),
    ];
    assert_eq!(codes, six, "{}", report.render(false));
}

#[test]
fn what_could_not_be_read_is_not_missing_too() {
    let phases = "phases: [{ name: talk, agents: [ann, ben], prompt: '{{ topic }} {{ ann }}' }]\n";
    let agents = "agents: { ann: {}, ben: {} }\n";
    for (text, codes) in [
        (format!("agents: [ann, ben]\nvariables: {{ topic: x }}\n{phases}"), vec!["type"]),
        (
            format!("agnets: {{ ann: {{}}, ben: {{}} }}\nvariables: {{ topic: x }}\n{phases}"),
            vec!["unknown-key"],
        ),
        (format!("{agents}variables: [topic]\n{phases}"), vec!["type"]),
        (format!("{agents}variables: {{ topic: x }}\nphases: talk\n"), vec!["type"]),
        (format!("{agents}phases: [talk]\n"), vec!["type"]),
        (
            format!("{agents}phases: [{{ nmae: talk, agents: [ann] }}]\noutcome: {{ x: talk.played }}\n"),
            vec!["unknown-key"],
        ),
        (
            format!("{agents}phases: [{{ name: talk, agents: ann, turns: [{{ agent: ben }}] }}]\n"),
            vec!["type"],
        ),
        (
            format!("{agents}phases: [{{ name: talk, agents: [ann], rounds: -1, until: talk.played }}]\n"),
            vec!["type"],
        ),
        (
            format!(
                "{agents}phases: [{{ name: talk, agents: [ann, ben], turns: [{{ who: ann }}, {{ agent: ben \
                 }}] }}]\n"
            ),
            vec!["unknown-key"],
        ),
    ] {
        let report = greenroom::rehearsal::load("x.yaml", &text, &[]).report;
        let found: Vec<_> = report.diagnostics.iter().map(|d| d.code).collect();
        assert_eq!(found, codes, "{text}{}", report.render(false));
    }
}

/// The loader doesn't count tokens; the command does.
#[test]
fn check_warns_of_quotes_that_are_remembered() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("twice.yaml");
    let text = "agents: { ann: {}, ben: {} }
phases:
  - { name: talk, agents: [ann, ben] }
  - name: after
    agents: [ann]
    prompt: |
      It was said:
      ${talk.messages[ann]}
";
    std::fs::write(&file, text).unwrap();
    let mut command = assert_cmd::Command::cargo_bin("greenroom").unwrap();
    let output = command.arg("check").arg(&file).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{printed}");
    let place = format!("{}:8:7: warning[remembered]: `ann` is given a quote of `talk`", file.display());
    assert!(printed.contains(&place) && printed.contains("help: "), "{printed}");
}
