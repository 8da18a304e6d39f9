//! Data sets: figures over all cases, clustered by case, and cases beside each other.

use super::{figure, only, uniform};
use crate::play::{checkout, play};
use greenroom::backend::Scripted;
use greenroom::report::comparison;
use greenroom::run::RunOptions;
use greenroom::scenario::open;
use greenroom::statistics::{
    CASE, Cell, Grouping, IntervalMethod, Run, Sample, by_case, figure_tables, plots, scripts, summarize,
    summarize_by, tables, tables_by,
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
    assert!(text.lines().count() < 110, "{} lines", text.lines().count());
    assert!(!text.contains("cell 0"), "cases are not compared:\n{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn a_small_data_set_without_conditions_shows_all_its_cases() {
    insta::assert_snapshot!(statistics(&summarize(&played(4, 2, &[false])), &[], false));
}

#[test]
fn figure_tables_are_tidy() {
    let sample = played(3, 2, &[false, true]);
    let made = figure_tables(&summarize(&sample));
    let shown = made.0.iter().map(|table| {
        let mut out = Vec::new();
        table.csv(&mut out).unwrap();
        format!("{}\n{}", table.name, String::from_utf8(out).unwrap().replace('\r', ""))
    });
    insta::assert_snapshot!(shown.collect::<Vec<_>>().join("\n"));
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(made.write(folder.path()).unwrap().len(), 4);
    assert!(figure_tables(&summarize(&Sample::default())).0.is_empty());
}

#[test]
fn the_page_of_a_data_set_has_its_conditions_and_cases() {
    let page = comparison("quiz", &played(5, 2, &[false, true]), &Grouping::default(), 20).unwrap();
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
    assert_eq!((difference.estimate.n, difference.estimate.method), (14, IntervalMethod::Joined));
    let gain = second.estimate.value.unwrap() - first.estimate.value.unwrap();
    assert!((difference.estimate.value.unwrap() - gain).abs() < 1e-12 && gain > 0.0);
    // Cases differ more than conditions do, so pairs say more than two samples would.
    let width = |of: &greenroom::statistics::Estimate| of.high.unwrap() - of.low.unwrap();
    assert!(
        width(&difference.estimate) < width(&first.estimate).hypot(width(&second.estimate)),
        "{difference:?}"
    );
}

#[test]
fn once_played_cases_are_trials() {
    let summary = summarize(&played(10, 1, &[false, true]));
    let pooled = summary.pooled.as_deref().unwrap();
    let solved = figure(pooled, "outcome solved");
    assert_eq!(solved.cells[0].estimate.method, IntervalMethod::Wilson);
    assert_eq!(solved.cells[1].difference.as_ref().unwrap().estimate.method, IntervalMethod::Tango);
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
    assert!(text("choices.svg").contains("hint=true (12 runs of 6 cases)"));
    tables(&sample).write(folder.path()).unwrap();
    assert!(Path::new(&folder.path().join("runs.csv")).is_file());
}

/// Each run is in the group of its condition and of what was chosen in it; conditions are compared within it.
#[test]
fn figures_are_grouped_by_choices_and_columns() {
    let sample = played(8, 3, &[false, true]);
    let grouping = Grouping { by: vec!["answer/ann".into()], ..Grouping::default() };
    let summary = summarize_by(&sample, &grouping);
    let shown = summary.shown();
    let names: Vec<&str> = shown.cells.iter().map(|cell| cell.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "hint=false, answer/ann=right",
            "hint=true, answer/ann=right",
            "hint=false, answer/ann=wrong",
            "hint=true, answer/ann=wrong"
        ]
    );
    assert_eq!(shown.cells.iter().map(|cell| cell.runs).sum::<usize>(), 48);
    let solved = figure(shown, "outcome solved");
    assert!(solved.cells.iter().all(|cell| cell.estimate.value == Some(f64::from(u8::from(cell.cell < 2)))));
    let to: Vec<Option<usize>> =
        solved.cells.iter().map(|cell| cell.difference.as_ref().map(|comparison| comparison.to)).collect();
    assert_eq!(to, [None, Some(0), None, Some(2)]);
    // Tables have the same names, and assertions are judged as without the grouping.
    let runs = tables_by(&sample, &grouping);
    let named = runs.get("runs").unwrap().column("condition").unwrap();
    assert!((0..48).all(|row| names.contains(&named.text(row).unwrap().as_str())));
    assert_eq!(summary.assertions, summarize(&sample).assertions);
    // A column that divides the cases: they are compared as different ones.
    let words = Grouping { by: vec!["word".into()], ..Grouping::default() };
    let sample = played(4, 5, &[false]);
    let by_word = summarize_by(&sample, &words);
    let points = &figure(by_word.shown(), "payoff ann").cells;
    assert_eq!((points.len(), by_word.shown().cells[3].name.as_str()), (4, "word=word3"));
    let apart = points[1].difference.as_ref().unwrap();
    let gap = points[1].estimate.value.unwrap() - points[0].estimate.value.unwrap();
    assert_eq!((apart.pairs, apart.p, apart.estimate.value), (0, None, Some(gap)), "one case each");
}

#[test]
fn only_what_a_scenario_has_can_group_its_figures() {
    let sample = played(30, 1, &[false, true]);
    let check = |name: &str| {
        let grouping = Grouping { by: vec![name.into()], ..Grouping::default() };
        grouping.check(sample.runs.iter().map(|run| &*run.scenario))
    };
    assert!(check("hint").is_ok() && check("rate/ann").is_ok());
    let unknown = check("hnit").unwrap_err();
    assert_eq!(unknown, "`hnit` is not a variable or a choice of the scenario; did you mean `hint`?");
    let many = check("word").unwrap_err();
    assert!(many.starts_with("`word` has 30 different values; expected at most 24"), "{many}");
}

#[test]
fn choices_and_payoffs_are_pooled_over_agents() {
    let sample = played(10, 3, &[false]);
    let each = summarize(&sample);
    let grouping = Grouping { over_agents: true, ..Grouping::default() };
    let all = summarize_by(&sample, &grouping);
    let (each, all) = (each.shown(), all.shown());
    let [ann, ben] = ["ann", "ben"].map(|agent| only(each, &format!("choice answer/{agent} = right")));
    let both = only(all, "choice answer = right");
    assert_eq!(both.observations, ann.observations + ben.observations);
    assert_eq!(both.count, Some(ann.count.unwrap() + ben.count.unwrap()));
    // Agents of one case are not independent: cases are the units.
    assert_eq!((both.estimate.n, both.estimate.method), (10, IntervalMethod::WilsonClustered));
    let mean = |name: &str| only(each, name).estimate.value.unwrap();
    let pooled = only(all, "payoff").estimate.value.unwrap();
    assert!((pooled - (mean("payoff ann") + mean("payoff ben")) / 2.0).abs() < 1e-12);
    assert!(all.figures.iter().all(|figure| !figure.name.starts_with("choice answer/")));
}

#[test]
fn comparisons_are_corrected_for_their_number() {
    let summary = summarize(&played(14, 3, &[false, true]));
    let pooled = summary.shown();
    let all = pooled.figures.iter().flat_map(|figure| &figure.cells);
    let tested: Vec<_> =
        all.filter_map(|cell| cell.difference.as_ref()).filter(|of| of.p.is_some()).collect();
    assert_eq!((tested.len(), pooled.comparisons), (tested.len(), tested.len()));
    assert!(tested.len() > 3);
    for of in &tested {
        let (p, holm, bh) = (of.p.unwrap(), of.p_holm.unwrap(), of.p_bh.unwrap());
        assert!(p <= bh && bh <= holm && holm <= (p * tested.len() as f64).min(1.0) + 1e-12, "{of:?}");
    }
    let text = statistics(&summary, &[], false);
    let count = format!("Holm: corrected for {} comparisons.", tested.len());
    assert!(text.contains("hint=true compared with hint=false") && text.contains(&count), "{text}");
    // The same difference, but for the pairs.
    let solved = figure(pooled, "outcome solved").cells[1].difference.as_ref().unwrap();
    let unpaired = solved.unpaired.as_ref().unwrap();
    assert!((unpaired.value.unwrap() - solved.estimate.value.unwrap()).abs() < 1e-12);
    assert_eq!((unpaired.n, unpaired.method), (28, IntervalMethod::Unpaired));
}

#[test]
fn conditions_have_names_everywhere() {
    let sample = played(5, 2, &[false, true]);
    let summary = summarize(&sample);
    for table in tables(&sample).0.iter().chain(&figure_tables(&summary).0) {
        let names = table.column("condition").unwrap();
        let is_name = |row: usize| ["hint=false", "hint=true"].contains(&names.text(row).unwrap().as_str());
        assert!((0..table.n_rows()).all(is_name), "{}", table.name);
    }
    let page = comparison("quiz", &sample, &Grouping::default(), 20).unwrap();
    let text = statistics(&summary, &[], false);
    for shown in [&page, &text] {
        for number in ["cell 0", "cell 1", "condition 0", "condition 1"] {
            assert!(!shown.contains(number), "{number}: {shown}");
        }
    }
    assert_eq!(serde_json::to_value(&summary).unwrap()["pooled"]["cells"][1]["name"], "hint=true");
}

#[test]
fn the_matrix_leads_to_each_run_of_each_case() {
    let sample = played(40, 2, &[false, true]);
    let page = comparison("quiz", &sample, &Grouping::default(), 160).unwrap();
    assert!(!page.contains("<script"), "a page without scripts");
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let parsed = roxmltree::Document::parse_with_options(&page, options).unwrap();
    let grids: Vec<_> = parsed.descendants().filter(|node| node.attribute("class") == Some("grid")).collect();
    assert_eq!(grids.len(), 3, "an outcome each");
    let rows: Vec<_> = grids[0].descendants().filter(|node| node.has_tag_name("tr")).skip(1).collect();
    assert_eq!(rows.len(), 40);
    for (case, row) in rows.iter().enumerate() {
        let fields: Vec<_> = row.children().filter(|node| node.has_tag_name("td")).collect();
        assert_eq!(fields.len(), 2);
        for (condition, field) in fields.iter().enumerate() {
            let links: Vec<_> = field.children().filter(|node| node.has_tag_name("a")).collect();
            let own: Vec<&Run> = sample.runs.iter().filter(|run| run.cell == 2 * case + condition).collect();
            assert_eq!(links.len(), 2);
            for (link, run) in links.iter().zip(own) {
                assert_eq!(link.attribute("href"), Some(format!("{}/report.html", run.folder).as_str()));
                assert_eq!(link.text(), Some(outcome(run, "solved").to_string().as_str()));
            }
        }
    }
}

/// A script that is there stays as it is.
#[test]
fn scripts_name_the_first_figure_and_are_not_overwritten() {
    let summary = summarize(&played(3, 2, &[false, true]));
    let folder = tempfile::tempdir().unwrap();
    let written = scripts(&summary, folder.path()).unwrap();
    assert_eq!(written.len(), 2);
    let text = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let python = text("analysis.py");
    for wanted in [
        "FIGURE = \"outcome solved\"",
        "CLUSTER = \"case\"",
        "(\"runs\" + \".parquet\")",
        "data[\"outcome.solved\"]",
    ] {
        assert!(python.contains(wanted), "{wanted} is not in\n{python}");
    }
    assert!(text("analysis.R").contains("data[[\"outcome.solved\"]]"));
    assert!(![python, text("analysis.R")].iter().any(|text| text.contains("FIGURE@")));
    std::fs::write(folder.path().join("analysis.py"), "mine").unwrap();
    scripts(&summary, folder.path()).unwrap();
    assert_eq!(text("analysis.py"), "mine");
}
