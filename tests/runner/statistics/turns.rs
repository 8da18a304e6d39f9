//! Choices on single turns, in figures and tables.

use super::{sample, uniform};
use greenroom::statistics::{summarize, tables};
use greenroom::terminal::statistics;

/// The output for twelve runs, the names of their figures, and the tables of choices and payoffs.
fn shown(phase: &str, more: &str) -> (String, Vec<String>, Vec<String>) {
    let text = format!(
        "id: game\nagents: {{ ann: {{}}, ben: {{}} }}\n\
         phases:\n  - {{ name: split, agents: [ann, ben], {phase} }}\n{more}"
    );
    let sample = sample(&text, &[&[]], 12, |_, seed| 0.2 + 0.6 * uniform(seed, 3), "Yes.");
    let summary = summarize(&sample);
    let folder = tempfile::tempdir().unwrap();
    let files = tables(&sample).write(folder.path()).unwrap();
    let is_choice =
        |file: &&std::path::PathBuf| file.ends_with("choices.csv") || file.ends_with("payoffs.csv");
    let files = files.iter().filter(is_choice).map(|file| std::fs::read_to_string(file).unwrap());
    let names = summary.figures.iter().map(|figure| figure.name.clone()).collect();
    (statistics(&summary, &[], false), names, files.collect())
}

#[test]
fn a_choice_counts_alike_on_a_phase_and_on_its_turns() {
    let more = "payoff: { phase: split, each: \"1 if mine == 'x' else 0\" }\noutcome: { x: split.votes.x }\n";
    let of_phase = shown("answer: [x, y], turns: [{ agent: ann }, { agent: ben }]", more);
    let of_turns = shown("turns: [{ agent: ann, answer: [x, y] }, { agent: ben, answer: [x, y] }]", more);
    assert_eq!(of_phase.2.len(), 2);
    assert_eq!(of_phase, of_turns);
}

#[test]
fn agents_with_options_of_their_own_choose_together() {
    let turns = "turns: [{ agent: ann, answer: [3, 5] }, { agent: ben, answer: [take, leave] }]";
    let (table, names, _) = shown(
        turns,
        "payoff: { phase: split, matrix: { 3: { take: [7, 3], leave: [0, 0] }, 5: \
         { take: [5, 5], leave: [0, 0] } } }\n",
    );
    for together in ["3 + take", "3 + leave", "5 + take", "5 + leave"] {
        let name = format!("joint split/ann+ben (last) = {together}");
        assert!(names.contains(&name), "{together} is not in\n{table}");
    }
}
