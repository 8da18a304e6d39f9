//! Data sets: figures over all cases, clustered by case, and cases beside each other.

use super::{figure, only, uniform};
use crate::play::{checkout, play};
use greenroom::backend::Scripted;
use greenroom::report::comparison;
use greenroom::run::RunOptions;
use greenroom::scenario::open;
use greenroom::statistics::{
    CASE, Cell, IntervalMethod, Run, Sample, by_case, plots, pooled_tables, summarize, tables,
};
use greenroom::terminal::statistics;
use greenroom::transcript::Transcript;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

const QUIZ: &str = "
id: quiz
cases: rows.csv
variables: { word: x, hint: false }
agents: { ann: {}, ben: {} }
phases:
  - { name: answer, agents: [ann, ben], order: broadcast, answer: { one_of: [right, wrong], free_text: true } }
  - { name: rate, agents: [ann], answer: [1, 2, 3], when: answer.choices.ann == 'right' }
payoff: { phase: answer, unit: points, each: \"1 if mine == 'right' else 0\" }
outcome:
  solved: answer.choices.ann == 'right'
  grade: rate.choices.ann
  best: \"none if answer.votes.right != 1 else ('ann' if answer.choices.ann == 'right' else 'ben')\"
assertions:
  - { that: outcome.solved, share: { at_least: 0.5 }, why: Ann knows half of it }
  - { that: answer.votes.right == 2, share: { at_most: 0.2 } }
  - rate.invalid == 0
";

/// Plays each case with seeds 0, 1, …, with and without a hint. Each case has a difficulty, so its runs
/// resemble each other.
fn played(n_cases: u64, seeds: u64, hints: &[bool]) -> Sample {
    let folder = checkout();
    let file = folder.path().join("quiz.yaml");
    std::fs::write(&file, QUIZ).unwrap();
    let rows: String = (0..n_cases).map(|case| format!("q{case},word{case}\n")).collect();
    std::fs::write(folder.path().join("rows.csv"), format!("case,word\n{rows}")).unwrap();
    let mut sample = Sample::default();
    for case in 0..n_cases {
        for hint in hints {
            let swept = (hints.len() > 1).then(|| ("hint".to_string(), json!(hint)));
            let of_case = [
                ("cases".to_string(), json!(format!("q{case}"))),
                ("word".into(), json!(format!("word{case}"))),
            ];
            let overrides: Vec<_> = of_case.into_iter().chain(swept.clone()).collect();
            let loaded = open(&file, &overrides).unwrap();
            let scenario = loaded.scenario.unwrap_or_else(|| panic!("{}", loaded.report.render(false)));
            let name = (CASE.to_string(), json!(format!("q{case}")));
            let cell = sample.cells.len();
            sample.cells.push(Cell { values: std::iter::once(name).chain(swept).collect() });
            for seed in 0..seeds {
                let easy = uniform(case, 1) + if *hint { 0.25 } else { 0.0 };
                let backend = Scripted::new(move |request| {
                    let drawn = uniform(
                        100 * case + seed,
                        request.path.len() as u64 + u64::from(request.path.ends_with("ben")),
                    );
                    Some(match request.path.as_str() {
                        "rate/1/ann" => (1 + (3.0 * drawn) as usize).to_string(),
                        "answer/1/ben" if drawn < 0.1 => "Hmm.".to_string(),
                        _ if drawn < easy => "right".to_string(),
                        _ => "wrong".to_string(),
                    })
                });
                let own = format!("{cell}-case=q{case}/seed-{seed}");
                let options = RunOptions { seed, ..RunOptions::default() };
                let played = play(&scenario, Arc::new(backend), &folder.path().join(&own), &options).unwrap();
                let transcript = Transcript::open(&played.transcript).unwrap();
                sample.runs.push(Run { cell, seed, folder: own, transcript, scenario: scenario.clone() });
            }
        }
    }
    sample
}

/// A run's outcome.
fn outcome(run: &Run, name: &str) -> Value {
    let footer = &run.transcript.footer.as_ref().unwrap().record;
    footer.outcomes.iter().find(|outcome| outcome.name == name).unwrap().value.clone()
}

#[test]
fn a_data_set_reads_well() {
    let sample = played(16, 3, &[false, true]);
    let summary = summarize(&sample);
    let text = statistics(&summary, &[], false);
    let longest = text.lines().map(console::measure_text_width).max();
    assert!(longest <= Some(115), "{longest:?} columns:\n{text}");
    assert!(text.lines().count() < 100, "{} lines", text.lines().count());
    assert!(!text.contains("cell 0"), "cases are not compared:\n{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn a_small_data_set_without_conditions_shows_all_its_cases() {
    insta::assert_snapshot!(statistics(&summarize(&played(4, 2, &[false])), &[], false));
}

#[test]
fn pooled_tables_are_tidy() {
    let sample = played(3, 2, &[false, true]);
    let made = pooled_tables(&summarize(&sample));
    let shown = made.0.iter().map(|table| {
        let mut out = Vec::new();
        table.csv(&mut out).unwrap();
        format!("{}\n{}", table.name, String::from_utf8(out).unwrap().replace('\r', ""))
    });
    insta::assert_snapshot!(shown.collect::<Vec<_>>().join("\n"));
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(made.write(folder.path()).unwrap().len(), 4);
    assert!(pooled_tables(&summarize(&Sample::default())).0.is_empty());
}

#[test]
fn the_page_of_a_data_set_has_its_conditions_and_cases() {
    let page = comparison("quiz", &played(5, 2, &[false, true]), 20).unwrap();
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let parsed = roxmltree::Document::parse_with_options(&page, options).unwrap();
    let row = |row: roxmltree::Node<'_, '_>| {
        let text = |node: roxmltree::Node<'_, '_>| {
            node.descendants()
                .filter_map(|node| node.text().filter(|_| node.is_text()))
                .collect::<String>()
                .trim()
                .to_string()
        };
        row.children().filter(|node| node.is_element()).map(text).collect::<Vec<_>>().join(" | ")
    };
    let shown = parsed.descendants().filter_map(|node| match node.tag_name().name() {
        "h2" => Some(format!("\n{}", node.text().unwrap_or_default())),
        "tr" => Some(row(node)),
        "p" => Some(
            node.descendants().filter_map(|node| node.text().filter(|_| node.is_text())).collect::<String>(),
        ),
        _ => None,
    });
    insta::assert_snapshot!(shown.collect::<Vec<_>>().join("\n"));
}

#[test]
fn figures_over_all_cases_are_those_of_the_transcripts() {
    let sample = played(12, 4, &[false]);
    let summary = summarize(&sample);
    let pooled = summary.pooled.as_deref().unwrap();
    assert_eq!((pooled.cells.len(), pooled.cells[0].cases, pooled.cells[0].runs), (1, Some(12), 48));
    let solved = sample.runs.iter().filter(|run| outcome(run, "solved") == json!(true)).count();
    let figure = only(pooled, "outcome solved");
    assert_eq!((figure.count, figure.observations, figure.estimate.n), (Some(solved), 48, 12));
    assert_eq!((figure.missing, figure.estimate.method), (0, IntervalMethod::WilsonClustered));
    // As if every run were a trial, the interval would be narrower.
    let (low, high) = (figure.estimate.low.unwrap(), figure.estimate.high.unwrap());
    let p = solved as f64 / 48.0;
    assert!(low < p && p < high && high - low > 2.0 * 1.96 * (p * (1.0 - p) / 48.0).sqrt(), "{figure:?}");
    // What some runs have no value of is over the others, and says so.
    let graded: Vec<f64> = sample.runs.iter().filter_map(|run| outcome(run, "grade").as_f64()).collect();
    let grade = only(pooled, "outcome grade");
    assert_eq!((grade.missing, grade.observations), (48 - graded.len(), graded.len()));
    assert!((grade.estimate.value.unwrap() - graded.iter().sum::<f64>() / graded.len() as f64).abs() < 1e-12);
    // The mean of numeric options is that of the numbers that were chosen.
    assert_eq!(only(pooled, "number rate/ann").estimate, grade.estimate);
    // Cases alone have figures, and no comparison with the first of them.
    assert_eq!(summary.cells.len(), 12);
    assert!(summary.figures.iter().flat_map(|figure| &figure.cells).all(|cell| cell.difference.is_none()));
    let sums: usize =
        self::figure(&summary, "outcome solved").cells.iter().filter_map(|cell| cell.count).sum();
    assert_eq!(sums, solved);
    // Rates of a question add up to one, invalid replies included.
    let rate = |name: &str| only(pooled, name).estimate.value.unwrap();
    let all =
        ["choice answer/ben = right", "choice answer/ben = wrong", "choice answer/ben: invalid"].map(rate);
    assert!((all.iter().sum::<f64>() - 1.0).abs() < 1e-12 && all[2] > 0.0, "{all:?}");
}

#[test]
fn conditions_are_compared_case_by_case() {
    let sample = played(14, 3, &[false, true]);
    let summary = summarize(&sample);
    let pooled = summary.pooled.as_deref().unwrap();
    assert_eq!(pooled.cells.len(), 2);
    assert_eq!(pooled.cells[1].values["hint"], json!(true));
    let [first, second] = figure(pooled, "outcome solved").cells.as_slice() else { panic!("two conditions") };
    assert!(first.difference.is_none());
    let difference = second.difference.as_ref().unwrap();
    assert_eq!((difference.n, difference.method), (14, IntervalMethod::Joined));
    let gain = second.estimate.value.unwrap() - first.estimate.value.unwrap();
    assert!((difference.value.unwrap() - gain).abs() < 1e-12 && gain > 0.0);
    // Cases differ more than conditions do, so pairs say more than two samples would.
    let width = |of: &greenroom::statistics::Estimate| of.high.unwrap() - of.low.unwrap();
    assert!(width(difference) < width(&first.estimate).hypot(width(&second.estimate)), "{difference:?}");
}

#[test]
fn once_played_cases_are_trials() {
    let summary = summarize(&played(10, 1, &[false, true]));
    let pooled = summary.pooled.as_deref().unwrap();
    let solved = figure(pooled, "outcome solved");
    assert_eq!(solved.cells[0].estimate.method, IntervalMethod::Wilson);
    assert_eq!(solved.cells[1].difference.as_ref().unwrap().method, IntervalMethod::Tango);
}

#[test]
fn assertions_over_many_runs_hold_by_their_share() {
    let sample = played(12, 4, &[false, true]);
    let summary = summarize(&sample);
    let [solved, both] = summary.assertions.as_slice() else { panic!("{:?}", summary.assertions) };
    assert_eq!((solved.cells.len(), solved.index, both.index), (2, 0, 1));
    for cell in &solved.cells {
        let of_cell = |run: &&Run| sample.cells[run.cell].values[1].1 == json!(cell.cell == 1);
        let own: Vec<&Run> = sample.runs.iter().filter(of_cell).collect();
        let held = own.iter().filter(|run| outcome(run, "solved") == json!(true)).count();
        assert_eq!((cell.runs, cell.held, cell.failed), (own.len(), held, 0));
        assert_eq!(cell.holds, held as f64 / own.len() as f64 >= 0.5);
    }
    assert_eq!(summary.holds(), solved.holds() && both.holds());
}

#[test]
fn an_expression_that_fails_counts_against_either_bound() {
    let mut sample = played(5, 2, &[false]);
    for (at, run) in sample.runs.iter_mut().enumerate() {
        let assertions = &mut run.transcript.footer.as_mut().unwrap().record.assertions;
        for assertion in assertions.iter_mut().take(2) {
            assertion.holds = at < 2;
            assertion.error = (at == 9).then(|| "division by zero".to_string());
        }
    }
    // Two of ten hold; what the last came to is unknown: at least 50 % fails anyway, at most 20 % may be
    // exceeded.
    let summary = summarize(&sample);
    let [least, most] = summary.assertions.as_slice() else { panic!("{:?}", summary.assertions) };
    assert_eq!((most.cells[0].held, most.cells[0].failed, most.cells[0].runs), (2, 1, 10));
    assert!(!least.holds() && !most.holds());
    assert!(
        most.cells[0].words().ends_with("; in 1 of them the expression failed"),
        "{}",
        most.cells[0].words()
    );
}

#[test]
fn the_order_of_rows_and_runs_changes_nothing() {
    let mut sample = played(6, 2, &[false, true]);
    let text = |sample: &Sample| serde_json::to_string(&summarize(sample).pooled).unwrap();
    let first = text(&sample);
    sample.runs.reverse();
    assert_eq!(text(&sample), first);
    // Rows in another order are cells with other numbers.
    let n = sample.cells.len();
    let moved = |cell: usize| (cell + 4) % n;
    let cells = sample.cells.clone();
    (0..n).for_each(|cell| sample.cells[moved(cell)] = cells[cell].clone());
    sample.runs.iter_mut().for_each(|run| run.cell = moved(run.cell));
    let again: Value = serde_json::from_str(&text(&sample)).unwrap();
    assert_eq!(again, serde_json::from_str::<Value>(&first).unwrap());
}

#[test]
fn the_cases_that_differ_most_come_first() {
    let sample = played(10, 3, &[false]);
    let summary = summarize(&sample);
    let by_case = by_case(&summary).unwrap();
    assert_eq!(by_case.rows.len(), 10);
    let furthest = by_case.furthest(4);
    assert!(furthest.windows(2).all(|pair| pair[0].distance >= pair[1].distance));
    assert!(by_case.rows.iter().all(|row| row.distance <= furthest[0].distance));
    assert_eq!(by_case.rows[3].case, "q3");
}

#[test]
fn plots_of_a_data_set_have_a_series_for_each_condition() {
    let sample = played(6, 2, &[false, true]);
    let folder = tempfile::tempdir().unwrap();
    plots(&sample, &summarize(&sample), folder.path()).unwrap();
    let text = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    for picture in ["choices.svg", "payoffs.svg", "joint.svg"] {
        assert!(!text(picture).contains("case = q"), "{picture}");
    }
    assert!(text("choices.svg").contains("hint = true (12 runs of 6 cases)"));
    tables(&sample).write(folder.path()).unwrap();
    assert!(Path::new(&folder.path().join("runs.csv")).is_file());
}
