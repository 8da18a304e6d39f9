//! Figures: estimates, intervals and differences, and how they are shown.

use super::{GAME, figure, only, sample, uniform};
use greenroom::scenario::Share;
use greenroom::statistics::{Cell, Estimate, Figure, IntervalMethod, Run, Sample, plots, summarize, tables};
use greenroom::terminal::statistics;
use greenroom::transcript::{AssertionRecord, VerdictRecord};
use serde_json::{Value, json};

/// Three cells of a game in which runs of equal seed have the same tendency.
fn swept(n: u64) -> Sample {
    let cells: [&[&str]; 3] =
        [&["stakes.temptation=3"], &["stakes.temptation=5"], &["stakes.temptation=7.5"]];
    sample(GAME, &cells, n, |cell, seed| (0.9 - 0.2 * cell as f64) * (0.4 + 0.6 * uniform(seed, 9)), "Yes.")
}

#[test]
fn a_summary_of_one_cell_reads_well() {
    let sample = sample(GAME, &[&[]], 50, |_, seed| 0.3 + 0.5 * uniform(seed, 9), "Yes.");
    let files = ["runs.csv", "runs.parquet", "turns.csv", "turns.parquet", "choices.svg", "joint.svg"];
    let files: Vec<_> = files.iter().map(|name| std::path::Path::new("sweep").join(name)).collect();
    insta::assert_snapshot!(statistics(&summarize(&sample), &files, false));
}

#[test]
fn a_summary_of_three_cells_reads_well() {
    let text = statistics(&summarize(&swept(20)), &[], false);
    let longest = text.lines().map(console::measure_text_width).max();
    assert!(longest <= Some(115), "{longest:?} columns:\n{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn figures_are_those_of_the_transcripts() {
    let sample = swept(12);
    let summary = summarize(&sample);
    for cell in 0..3 {
        let footers = || sample.runs.iter().filter(|run| run.cell == cell).map(|run| &run.transcript.footer);
        let footers = || footers().map(|footer| &footer.as_ref().unwrap().record);
        let total: f64 =
            footers().map(|footer| footer.payoffs.as_ref().unwrap().totals["zoe"].unwrap()).sum();
        let payoff = &figure(&summary, "payoff zoe").cells[cell];
        assert!((payoff.estimate.value.unwrap() - total / 12.0).abs() < 1e-9);
        assert_eq!((payoff.estimate.n, payoff.estimate.method), (12, IntervalMethod::Bootstrap));
        let kind = footers().filter(|footer| footer.outcomes[0].value == json!(true)).count();
        let outcome = &figure(&summary, "outcome kind").cells[cell];
        assert_eq!((outcome.count, outcome.estimate.method), (Some(kind), IntervalMethod::Wilson));
        let shares = &figure(&summary, "choice game/zoe = share").cells[cell];
        assert_eq!((shares.observations, shares.estimate.n), (36, 12));
        assert_eq!(shares.estimate.method, IntervalMethod::Bootstrap);
        // One vote a run, so each is a trial.
        let vote = &figure(&summary, "choice vote/ann.vote = stay").cells[cell];
        assert_eq!((vote.observations, vote.estimate.method), (12, IntervalMethod::Wilson));
        assert_eq!(vote.difference.is_some(), cell > 0);
    }
    let lean: f64 = (0..12).map(|seed| 0.9 * (0.4 + 0.6 * uniform(seed, 9))).sum::<f64>() / 12.0;
    let share = &figure(&summary, "share game/zoe = share").cells[0].estimate;
    assert!((share.value.unwrap() - lean).abs() < 1e-6, "{share:?}");
}

#[test]
fn what_agents_chose_together_adds_up() {
    let summary = summarize(&swept(8));
    for (which, n) in [("last", 8), ("all", 24)] {
        let joint: Vec<&Figure> = summary
            .figures
            .iter()
            .filter(|figure| figure.name.starts_with(&format!("joint game/zoe+ann ({which})")))
            .collect();
        assert_eq!(joint.len(), 4);
        for cell in 0..3 {
            assert_eq!(joint.iter().map(|figure| figure.cells[cell].count.unwrap()).sum::<usize>(), n);
            assert!(joint.iter().all(|figure| figure.cells[cell].observations == n));
        }
    }
}

/// A sample whose only figures are outcomes, by cell and seed.
fn of_outcomes(values: &[&[(u64, serde_json::Value)]]) -> Sample {
    let one = sample(GAME, &[&[]], 1, |_, _| 0.5, "Yes.");
    let mut all = Sample::default();
    for (cell, values) in values.iter().enumerate() {
        all.cells.push(Cell { values: vec![("x".into(), json!(cell))] });
        for (seed, value) in *values {
            let mut run = Run { cell, seed: *seed, ..one.runs[0].clone() };
            run.transcript.turns.clear();
            let footer = &mut run.transcript.footer.as_mut().unwrap().record;
            footer.outcomes.truncate(1);
            footer.outcomes[0].value = value.clone();
            all.runs.push(run);
        }
    }
    all
}

fn estimate(values: &[serde_json::Value]) -> Estimate {
    let values: Vec<_> = values.iter().cloned().enumerate().map(|(seed, v)| (seed as u64, v)).collect();
    only(&summarize(&of_outcomes(&[&values])), "outcome kind").estimate.clone()
}

#[test]
fn where_there_is_no_interval_it_says_why() {
    let bare = |n, value, method| Estimate { n, value: Some(value), low: None, high: None, method };
    assert_eq!(estimate(&[json!(2.5)]), bare(1, 2.5, IntervalMethod::TooFewRuns));
    assert_eq!(estimate(&[json!(true)]), bare(1, 1.0, IntervalMethod::TooFewRuns));
    assert_eq!(estimate(&[json!(1), json!(2), json!(3), json!(4)]), bare(4, 2.5, IntervalMethod::TooFewRuns));
    assert_eq!(estimate(&vec![json!(7); 30]), bare(30, 7.0, IntervalMethod::Alike));
    // A failed outcome is null, and no run of the figure's.
    assert_eq!(estimate(&[json!(1), json!(2), serde_json::Value::Null]).n, 2);
    let sure = estimate(&vec![json!(true); 10]);
    assert_eq!((sure.method, sure.high), (IntervalMethod::Wilson, Some(1.0)));
    assert!((sure.low.unwrap() - 0.7225).abs() < 1e-4);
}

#[test]
fn rounds_that_are_all_alike_do_not_pretend_to_be_many_trials() {
    let summary = summarize(&sample(GAME, &[&[]], 10, |_, _| 1.0 - 1e-9, "Yes."));
    let shares = only(&summary, "choice game/zoe = share");
    assert_eq!((shares.count, shares.observations), (Some(30), 30));
    assert_eq!(shares.estimate.method, IntervalMethod::WilsonByRun);
    // Ten trials, not thirty.
    assert!((shares.estimate.low.unwrap() - 0.7225).abs() < 1e-4, "{shares:?}");
}

#[test]
fn differences_are_between_equal_seeds() {
    // Seeds matter a lot, cells a little: in pairs that can be seen.
    let value = |seed: u64, more: f64| (seed, json!(100.0 * uniform(seed, 1) + more));
    let first: Vec<_> = (0..20).map(|seed| value(seed, uniform(seed, 2))).collect();
    let second: Vec<_> = (5..25).map(|seed| value(seed, 2.0 + uniform(seed, 3))).collect();
    let summary = summarize(&of_outcomes(&[&first, &second]));
    let [_, second] = figure(&summary, "outcome kind").cells.as_slice() else { panic!("two cells") };
    let difference = &second.difference.as_ref().unwrap().estimate;
    assert_eq!((difference.n, second.estimate.n), (15, 20));
    let (low, high) = (difference.low.unwrap(), difference.high.unwrap());
    assert!(1.0 < low && high < 3.0, "{difference:?}");
    assert!(second.estimate.high.unwrap() - second.estimate.low.unwrap() > 10.0, "{second:?}");
}

#[test]
fn equal_runs_give_equal_figures_in_any_order() {
    let mut sample = swept(6);
    let text = |sample: &Sample| serde_json::to_string_pretty(&summarize(sample)).unwrap();
    let first = text(&sample);
    sample.runs.reverse();
    assert_eq!(first, text(&sample));
    // A figure's interval does not depend on what else is estimated.
    let alone: Sample =
        Sample { runs: sample.runs.iter().filter(|run| run.cell == 0).cloned().collect(), ..sample };
    let (alone, all) = (summarize(&alone), first);
    let estimate = &figure(&alone, "payoff zoe").cells[0].estimate;
    assert!(all.contains(&serde_json::to_string(&estimate.low).unwrap()));
}

#[test]
fn nothing_at_all_is_a_summary_too() {
    let summary = summarize(&Sample::default());
    assert!(summary.figures.is_empty());
    statistics(&summary, &[], false);
    let mut sample = swept(2);
    sample.runs.iter_mut().for_each(|run| run.transcript.footer = None);
    sample.runs[0].cell = 9;
    statistics(&summarize(&sample), &[], false);
}

#[test]
fn every_construct_can_be_counted() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let out = tempfile::tempdir().unwrap();
    let mut names = Vec::new();
    for file in std::fs::read_dir(folder).unwrap().flatten() {
        let text = std::fs::read_to_string(file.path()).unwrap();
        // What names other files is not played from its text alone.
        let names_others =
            ["include:", "\ncases:", ".json }", ".csv,"].iter().any(|word| text.contains(word));
        if names_others || !text.contains("phases:") {
            continue;
        }
        let sample = sample(&text, &[&[]], 6, |_, seed| 0.3 + 0.1 * (seed % 4) as f64, "I talk. Yes.");
        let summary = summarize(&sample);
        plots(&sample, &summary, out.path()).unwrap();
        tables(&sample).write(out.path()).unwrap();
        for figure in &summary.figures {
            for cell in &figure.cells {
                let n = cell.observations as f64;
                let Some(value) = cell.estimate.value else {
                    // An outcome that is null in every run.
                    assert_eq!((cell.missing, cell.observations), (6, 0), "{}", figure.name);
                    assert_eq!(cell.estimate.method, IntervalMethod::NoRuns, "{}", figure.name);
                    continue;
                };
                assert!(
                    cell.count.is_none_or(|count| (count as f64 / n - value).abs() < 1e-9),
                    "{}",
                    figure.name
                );
                assert!(cell.estimate.low.is_none_or(|low| low <= value + 1e-9), "{}: {cell:?}", figure.name);
                assert!(
                    cell.estimate.high.is_none_or(|high| value <= high + 1e-9),
                    "{}: {cell:?}",
                    figure.name
                );
            }
            names.push(figure.name.clone());
        }
    }
    for name in ["choice supper/ann.vote-2 = soup", "decision jury = guilty", "choice panel/mod.floor = ann"]
    {
        assert!(names.iter().any(|known| known == name), "{name} is not in {names:#?}");
    }
}

/// A tie has no winner: null in three of six runs.
#[test]
fn runs_without_a_value_are_counted() {
    let winners = [json!("eve"), json!("cas"), Value::Null, json!("eve"), Value::Null, Value::Null];
    let values: Vec<_> = winners.iter().cloned().enumerate().map(|(seed, v)| (seed as u64, v)).collect();
    let none: Vec<_> = (0..6).map(|seed| (seed, Value::Null)).collect();
    let summary = summarize(&of_outcomes(&[&values, &none]));
    for (name, count) in [("outcome kind = cas", 1), ("outcome kind = eve", 2)] {
        let [some, none] = figure(&summary, name).cells.as_slice() else { panic!("{name} is in both cells") };
        assert_eq!((some.missing, some.estimate.n, some.count), (3, 3, Some(count)), "{name}");
        assert_eq!(
            (none.missing, none.estimate.n, none.estimate.method),
            (6, 0, IntervalMethod::NoRuns),
            "{name}"
        );
    }
    let text = statistics(&summary, &[], false);
    for wanted in ["3 of 6", "0 of 6", "the others have no value"] {
        assert!(text.contains(wanted), "{wanted} is not in\n{text}");
    }
    let written = serde_json::to_value(&summary).unwrap();
    let figures = written["figures"].as_array().unwrap();
    let cas = figures.iter().find(|figure| figure["name"] == "outcome kind = cas").unwrap();
    assert_eq!(cas["cells"][0]["missing"], 3);
    // Where no run has a value, that is said, too; numbers are the same.
    let alone = summarize(&of_outcomes(&[&none]));
    assert_eq!(only(&alone, "outcome kind").missing, 6);
    let numbers = [(0, json!(2)), (1, Value::Null), (2, json!(4))];
    let numbers = summarize(&of_outcomes(&[&numbers]));
    let mean = only(&numbers, "outcome kind");
    assert_eq!((mean.missing, mean.estimate.value), (1, Some(3.0)));
    assert!(statistics(&numbers, &[], false).contains("2 of 3"));
}

/// Payoffs that no run has are a figure, too.
#[test]
fn payoffs_that_no_run_has_are_counted() {
    let mut sample = sample(GAME, &[&[]], 6, |_, _| 0.5, "Yes.");
    for run in &mut sample.runs {
        let footer = run.transcript.footer.as_mut().unwrap();
        footer.record.payoffs.as_mut().unwrap().totals.values_mut().for_each(|total| *total = None);
    }
    let summary = summarize(&sample);
    let ann = only(&summary, "payoff ann");
    assert_eq!((ann.missing, ann.estimate.n, ann.estimate.method), (6, 0, IntervalMethod::NoRuns));
    assert!(statistics(&summary, &[], false).contains("0 of 6"));
}

/// The same expression about two judges' verdicts is two assertions.
#[test]
fn assertions_about_two_judges_are_counted_apart() {
    let mut sample = sample(GAME, &[&[]], 10, |_, _| 0.5, "Yes.");
    for run in &mut sample.runs {
        let about = |judge: &str, value: &str| AssertionRecord {
            that: "verdict == 'yes'".into(),
            why: None,
            share: Some(Share { at_least: Some(0.5), at_most: None }),
            holds: value == "yes",
            error: None,
            verdict: Some(VerdictRecord { turn: format!("{judge}/1/{judge}"), value: json!(value) }),
        };
        let footer = run.transcript.footer.as_mut().unwrap();
        footer.record.assertions = vec![about("kept", "yes"), about("fair", "no")];
    }
    let summary = summarize(&sample);
    let [kept, fair] = summary.assertions.as_slice() else { panic!("{:#?}", summary.assertions) };
    assert_eq!(
        (kept.that.as_str(), fair.that.as_str()),
        ("verdict == 'yes' (judge kept)", "verdict == 'yes' (judge fair)")
    );
    let found = [kept, fair].map(|of| (of.cells[0].held, of.cells[0].estimate.value, of.holds()));
    assert_eq!(found, [(10, Some(1.0), true), (0, Some(0.0), false)]);
}

/// A vote that some runs skip, a choice that some replies do not make: each says over what its rates are.
#[test]
fn turns_that_were_skipped_and_replies_that_are_no_choice_are_counted() {
    let text = "
id: game
agents: { zoe: {}, ann: {} }
phases:
  - { name: game, agents: [zoe, ann], order: broadcast, answer: [share, take] }
  - { name: later, agents: [zoe], answer: [stay, leave], when: \"game.choices.zoe == 'share'\" }
payoff: { phase: game, unit: coins, each: \"1 if mine == 'share' else 0\" }
";
    let mut sample = sample(text, &[&[]], 20, |_, _| 0.5, "Yes.");
    let made = sample.runs.iter().filter(|run| run.transcript.turns.len() == 3).count();
    for run in sample.runs.iter_mut().take(5) {
        let ann = run.transcript.turns.iter_mut().find(|turn| turn.record.path == "game/1/ann").unwrap();
        ann.record.constraint.as_mut().unwrap().chosen = Value::Null;
        let footer = &mut run.transcript.footer.as_mut().unwrap().record;
        let payoffs = footer.payoffs.as_mut().unwrap();
        payoffs.rounds[0].values = None;
        payoffs.totals.insert("ann".into(), None);
    }
    let summary = summarize(&sample);
    let later = only(&summary, "choice later/zoe = stay");
    assert_eq!((later.observations, later.missing), (made, 20 - made));
    let invalid = only(&summary, "choice game/ann: invalid");
    assert_eq!((invalid.count, invalid.observations), (Some(5), 20));
    assert!(summary.figures.iter().all(|figure| figure.name != "choice game/zoe: invalid"));
    assert_eq!(only(&summary, "payoff ann").missing, 5);
    assert_eq!(summary.cells[0].rounds_without_payoff, 5);
    let text = statistics(&summary, &[], false);
    let skipped = format!("Asked in only some runs: later/zoe in {made} of 20.");
    for wanted in ["15 of 20", "(invalid)", "5 of 20", &skipped, "5 rounds have no payoff"] {
        assert!(text.contains(wanted), "{wanted} is not in\n{text}");
    }
}
