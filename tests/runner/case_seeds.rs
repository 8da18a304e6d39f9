//! Random numbers of cases: other rows, other draws; the same row, the same draws, whatever the other rows.

use crate::play::{checkout, play};
use greenroom::backend::{Backend, Scripted};
use greenroom::experiment::{
    Design, ExperimentRecord, FILE, Tuning, Variant, play as play_design, shares_seeds,
};
use greenroom::prompt::{Memories, SampledReply};
use greenroom::replay::replay;
use greenroom::run::{ForkFrom, RunOptions, Seeding};
use greenroom::scenario::{CaseId, Plan, Scenario, Seeds, TurnId, open, turn_seed};
use greenroom::transcript::Transcript;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FILE_TEXT: &str = "
id: coin
cases: rows.csv
variables: { word: x, age: 1, stakes: { gain: 1 }, framing: plain }
agents:
  toss: { strategy: { random: 0.5 } }
  ann: { display_name: Ann }
phases:
  - { name: coin, agents: [toss], answer: [heads, tails] }
  - name: pick
    agents: [ann]
    answer: { one_of: [heads, tails], shuffle: true }
    prompt: 'The word is {{ word }}, in {{ framing }} words.'
  - { name: order, agents: [ann], answer: { one_of: [north, east, south], shuffle: true } }
";

fn written(rows: &str) -> tempfile::TempDir {
    let folder = checkout();
    std::fs::write(folder.path().join("coin.yaml"), FILE_TEXT).unwrap();
    std::fs::write(folder.path().join("rows.csv"), rows).unwrap();
    folder
}

fn opened(folder: &Path, overrides: &[(String, Value)]) -> Arc<Scenario> {
    let loaded = open(&folder.join("coin.yaml"), overrides).unwrap();
    loaded.scenario.unwrap_or_else(|| panic!("{}", loaded.report.render(false)))
}

/// Rows of a table: each a list of cells.
type Rows = Vec<Vec<String>>;

/// A data set of any size, some of whose rows may be equal; its columns, and its rows.
fn data_set(number: u64) -> (Vec<&'static str>, Rows) {
    let draw = |at: u64, of: &str| turn_seed(number, &format!("{of} {at}"));
    let n_rows = 2 + draw(0, "rows") % 60;
    let columns = ["word", "age", "stakes.gain"];
    let columns = columns[..1 + (draw(0, "columns") % 3) as usize].to_vec();
    let cell = |row: u64, column: &str| match column {
        "word" => format!("w{}", draw(row, column) % 200),
        _ => (draw(row, column) % 50).to_string(),
    };
    (
        columns.clone(),
        (0..n_rows).map(|row| columns.iter().map(|column| cell(row, column)).collect()).collect(),
    )
}

fn table(columns: &[&str], rows: &Rows) -> String {
    let lines = rows.iter().map(|row| row.join(",") + "\n").collect::<String>();
    columns.join(",") + "\n" + &lines
}

/// Ids of a table's rows, in its order.
fn ids(text: &str) -> Vec<CaseId> {
    let scenario = opened(written(text).path(), &[]);
    scenario.cases.iter().flatten().map(|case| case.id.clone()).collect()
}

/// The option that is listed first in `pick`, and the order in `order`.
fn drawn(scenario: &Arc<Scenario>, plan: &Arc<Plan>, case: &CaseId, seed: u64) -> (usize, usize) {
    let seeds = Seeds::from(seed).of_case(Some(case));
    let mut memories = Memories::new(scenario.clone(), plan.clone(), BTreeMap::new(), seeds);
    let mut listed = |at: usize| {
        memories.hear(TurnId(at)).unwrap();
        let asked = memories.ask(TurnId(at)).unwrap();
        let open = asked.choice.as_ref().unwrap().open.clone();
        memories.say(asked, SampledReply::of_text(if at == 1 { "heads" } else { "north" }));
        open
    };
    let (pick, order) = (listed(1), listed(2));
    (pick[0], order[0] * 2 + usize::from(order[1] > order[2]))
}

/// Pearson's statistic of independence of a table.
fn chi_square(counts: &[Vec<f64>]) -> f64 {
    let total: f64 = counts.iter().flatten().sum();
    let columns: Vec<f64> = (0..counts[0].len()).map(|at| counts.iter().map(|row| row[at]).sum()).collect();
    let of = |row: &Vec<f64>| {
        let in_row: f64 = row.iter().sum();
        let expected = columns.iter().map(move |column| column * in_row / total);
        row.iter().zip(expected).map(|(count, expected)| (count - expected).powi(2) / expected).sum::<f64>()
    };
    counts.iter().map(of).sum()
}

#[test]
fn draws_of_different_cases_are_independent() {
    let (mut pairs, mut orders) = (vec![vec![0.0; 2]; 2], vec![vec![0.0; 6]; 6]);
    let (mut heads, mut n) = (0.0, 0.0);
    for number in 0..40 {
        let (columns, rows) = data_set(number);
        let folder = written(&table(&columns, &rows));
        let scenario = opened(folder.path(), &[]);
        let plan = scenario.plan().clone();
        let cases = scenario.cases.as_ref().unwrap();
        // As many draws from each: ten of each of 25 pairs of cases, and no draw in two pairs.
        for at in 0..25 {
            let (one, other) = (&cases[at % cases.len()].id, &cases[(at + 1) % cases.len()].id);
            for seed in (at as u64 * 10)..(at as u64 * 10 + 10) {
                let (a, b) = (drawn(&scenario, &plan, one, seed), drawn(&scenario, &plan, other, seed));
                pairs[a.0][b.0] += 1.0;
                orders[a.1][b.1] += 1.0;
                (heads, n) = (heads + (a.0 as f64), n + 1.0);
            }
        }
    }
    assert!(n >= 10_000.0, "{n}");
    assert!((heads / n - 0.5_f64).abs() < 0.02, "{heads} of {n}");
    // 99.9 % of independent tables are below these: 1 and 25 degrees of freedom.
    assert!(chi_square(&pairs) < 10.83, "{pairs:?}");
    assert!(chi_square(&orders) < 52.62, "{orders:?}");
}

#[test]
fn a_case_keeps_its_draws_whatever_the_other_rows() {
    for number in 0..40 {
        let (columns, rows) = data_set(number);
        let before = ids(&table(&columns, &rows));
        assert_eq!(
            before.iter().collect::<BTreeSet<_>>().len(),
            rows.len(),
            "no two cases share their draws"
        );
        // Columns the other way round.
        let reversed = |row: &Vec<String>| row.iter().rev().cloned().collect::<Vec<_>>();
        let turned: Vec<&str> = columns.iter().rev().copied().collect();
        assert_eq!(ids(&table(&turned, &rows.iter().map(reversed).collect())), before);
        // Rows in another order; equal rows are the same in any order.
        let by_row = |rows: &Rows, ids: &[CaseId]| {
            rows.iter().cloned().zip(ids.iter().cloned()).collect::<BTreeSet<_>>()
        };
        let mut mixed = rows.clone();
        mixed.sort_by_key(|row| turn_seed(number, &row.join(",")));
        assert_eq!(by_row(&mixed, &ids(&table(&columns, &mixed))), by_row(&rows, &before));
        // More rows among them.
        let mut more = rows.clone();
        more.insert(0, columns.iter().map(|_| "9999".to_string()).collect());
        assert_eq!(ids(&table(&columns, &more))[1..], before);
        // The same in objects.
        let object = |row: &Vec<String>| {
            let value = |column: &str, cell: &String| match column {
                "word" => json!(cell),
                _ => serde_json::from_str(cell).unwrap(),
            };
            let fields =
                columns.iter().zip(row).map(|(column, cell)| (column.to_string(), value(column, cell)));
            Value::Object(fields.collect()).to_string() + "\n"
        };
        let folder = written("");
        std::fs::write(folder.path().join("coin.yaml"), FILE_TEXT.replace("csv", "jsonl")).unwrap();
        std::fs::write(folder.path().join("rows.jsonl"), rows.iter().map(object).collect::<String>())
            .unwrap();
        let scenario = opened(folder.path(), &[]);
        assert!(scenario.cases.iter().flatten().map(|case| &case.id).eq(&before));
    }
}

#[test]
fn what_is_in_a_row_is_its_id_and_its_name_too() {
    let three = ids("case,word\nq0,a\nq1,a\nq2,b\n");
    assert_eq!(three.iter().collect::<BTreeSet<_>>().len(), 3);
    let alike = ids("word\na\nb\na\na\n");
    assert_eq!(alike.iter().map(|id| id.copy).collect::<Vec<_>>(), [0, 0, 1, 2]);
    assert!(alike[0].blake3 == alike[2].blake3 && alike[0].root(7) != alike[2].root(7));
    let typed = ids("age\n16\n0x10\n17\n");
    assert_eq!((typed[0].blake3 == typed[1].blake3, typed[0].blake3 == typed[2].blake3), (true, false));
}

/// Takes what is listed first.
pub(crate) fn first_listed() -> Arc<dyn Backend> {
    Arc::new(Scripted::new(|request| {
        let open = request.choice.as_ref();
        let open = open.map(|options| options.choice.options[options.open[0]].text.clone());
        open.or(Some("Well.".into()))
    }))
}

fn forty() -> String {
    "case,word\n".to_string() + &(0..40).map(|n| format!("q{n},w{n}\n")).collect::<String>()
}

/// The seeds of a run's turns, and what was said in them.
fn turns(run: &Path) -> (Vec<u64>, Vec<String>) {
    let transcript = Transcript::open(&run.join("transcript.jsonl")).unwrap();
    transcript.turns.iter().map(|turn| (turn.record.seed, turn.record.raw.clone())).unzip()
}

/// A design of all cases, each in two conditions.
fn design(folder: &Path, seeding: Seeding) -> Design {
    let plain = opened(folder, &[]);
    let mut cells = Vec::new();
    for case in plain.cases.iter().flatten() {
        for framing in ["plain", "kind"] {
            let swept = ("framing".to_string(), json!(framing));
            let overrides: Vec<_> = case.overrides().into_iter().chain([swept.clone()]).collect();
            let values = vec![("case".to_string(), json!(case.name)), swept];
            cells.push(Variant { values, scenario: opened(folder, &overrides), tuning: Tuning::default() });
        }
    }
    let options = RunOptions { seeding, ..RunOptions::default() };
    Design { cells, seeds: vec![0, 1], options, shard: None }
}

fn played(design: &Design, into: &Path) -> anyhow::Result<usize> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut unseen = |_: &greenroom::experiment::EndedRun| {};
    let playing = play_design(design, first_listed(), into, 8, &mut unseen, std::future::pending());
    runtime.block_on(playing).map(|played| played.n_new)
}

#[test]
fn conditions_of_a_case_are_paired_and_coins_fall_on_both_sides() {
    let folder = written(&forty());
    let (design, into) = (design(folder.path(), Seeding::ByCase), folder.path().join("runs"));
    assert_eq!(played(&design, &into).unwrap(), 160);
    for seed in [0, 1] {
        let run = |cell: usize| turns(&into.join(design.folder(cell, seed)));
        let of_all: Vec<_> = (0..80).map(run).collect();
        let (mut heads, mut seeds) = ([0; 2], BTreeSet::new());
        for pair in of_all.chunks(2) {
            assert_eq!(pair[0], pair[1], "the other condition has the same draws");
            for (at, n) in heads.iter_mut().enumerate() {
                *n += usize::from(pair[0].1[at] == "heads");
            }
            seeds.extend(pair[0].0.clone());
        }
        assert_eq!(seeds.len(), 3 * 40, "no two cases share a seed");
        // A fair coin falls outside of these in 3 of 1,000 experiments.
        assert!(heads.iter().all(|n| (11..=29).contains(n)), "{heads:?}");
    }
    assert!(ExperimentRecord::open(&into).unwrap().seeds_by_case);
}

#[test]
fn a_run_of_a_case_is_the_same_alone_forked_resumed_and_replayed() {
    let folder = written(&forty());
    let case = opened(folder.path(), &[]).case_of("q7").unwrap().clone();
    let scenario = opened(folder.path(), &case.overrides());
    let run = folder.path().join("run");
    let options = RunOptions { seed: 5, ..RunOptions::default() };
    play(&scenario, first_listed(), &run, &options).unwrap();
    let transcript = Transcript::open(&run.join("transcript.jsonl")).unwrap();
    let header = &transcript.header.record;
    assert_eq!((header.seed, header.case.as_ref()), (5, Some(&case.id)));
    let whole = turns(&run);
    assert_eq!(whole.0[0], turn_seed(case.id.root(5), "coin/1/toss"));
    replay(&scenario, &transcript, BTreeMap::new()).unwrap();
    // Another variable changes no seed.
    let more: Vec<_> = case.overrides().into_iter().chain([("framing".to_string(), json!("kind"))]).collect();
    play(&opened(folder.path(), &more), first_listed(), &folder.path().join("kind"), &options).unwrap();
    assert_eq!(turns(&folder.path().join("kind")), whole);
    let text = std::fs::read_to_string(run.join("transcript.jsonl")).unwrap();
    // Continued after its first turn.
    let cut = cut_after_its_first_turn(folder.path(), &text);
    play(&scenario, first_listed(), &cut, &RunOptions { resume: true, ..options.clone() }).unwrap();
    assert_eq!(std::fs::read_to_string(cut.join("transcript.jsonl")).unwrap(), text);
    // Forked, and the fork forked again with another seed.
    let fork = |from: &Path, at: &str, seed: u64, into: &str| {
        let from = ForkFrom { run: from.to_path_buf(), at: Some(at.into()), changes: Default::default() };
        let options = RunOptions { seed, fork: Some(from), ..RunOptions::default() };
        play(&scenario, first_listed(), &folder.path().join(into), &options).unwrap();
        let into = folder.path().join(into);
        let transcript = Transcript::open(&into.join("transcript.jsonl")).unwrap();
        replay(&scenario, &transcript, BTreeMap::new()).unwrap();
        turns(&into)
    };
    assert_eq!(fork(&run, "pick", 5, "fork"), whole);
    let other = fork(&folder.path().join("fork"), "order", 9, "other");
    assert_eq!(other.0[..2], whole.0[..2]);
    assert_eq!(other.0[2], turn_seed(case.id.root(9), "order/1/ann"));
}

/// A run's folder whose transcript ends after the first turn of another one.
fn cut_after_its_first_turn(folder: &Path, transcript: &str) -> PathBuf {
    let cut = folder.join("cut");
    std::fs::create_dir(&cut).unwrap();
    let text: String = transcript.lines().take(2).map(|line| format!("{line}\n")).collect();
    std::fs::write(cut.join("transcript.jsonl"), text).unwrap();
    cut
}

#[test]
fn recordings_of_earlier_versions_keep_their_seeds() {
    let folder = written(&forty());
    let case = opened(folder.path(), &[]).case_of("q7").unwrap().clone();
    let scenario = opened(folder.path(), &case.overrides());
    let (run, earlier) = (folder.path().join("run"), Seeding::Recorded(None));
    let options = RunOptions { seed: 5, seeding: earlier.clone(), ..RunOptions::default() };
    play(&scenario, first_listed(), &run, &options).unwrap();
    let text = std::fs::read_to_string(run.join("transcript.jsonl")).unwrap();
    assert!(!text.lines().next().unwrap().contains("\"case\":"), "the header is that of an earlier version");
    assert_eq!(turns(&run).0[0], turn_seed(5, "coin/1/toss"));
    let transcript = Transcript::open(&run.join("transcript.jsonl")).unwrap();
    replay(&scenario, &transcript, BTreeMap::new()).unwrap();
    let from = ForkFrom { run: run.clone(), at: Some("pick".into()), changes: Default::default() };
    let fork = RunOptions { seed: 5, fork: Some(from), ..RunOptions::default() };
    play(&scenario, first_listed(), &folder.path().join("fork"), &fork).unwrap();
    assert_eq!(turns(&folder.path().join("fork")), turns(&run), "a fork is what the run would have been");
    // An interrupted run is not continued with other random numbers.
    let cut = cut_after_its_first_turn(folder.path(), &text);
    let resume = RunOptions { seed: 5, resume: true, ..RunOptions::default() };
    let error = play(&scenario, first_listed(), &cut, &resume).unwrap_err().to_string();
    assert!(error.contains("random numbers that all cases share"), "{error}");
    play(&scenario, first_listed(), &cut, &RunOptions { seeding: earlier.clone(), ..resume }).unwrap();
    assert_eq!(std::fs::read_to_string(cut.join("transcript.jsonl")).unwrap(), text);
    // Nor is an experiment.
    let into = folder.path().join("runs");
    assert!(!shares_seeds(&into, false).unwrap());
    let old = Design { seeds: vec![0], ..design(folder.path(), earlier) };
    assert_eq!(played(&old, &into).unwrap(), 80);
    assert!(!std::fs::read_to_string(into.join(FILE)).unwrap().contains("seeds_by_case"));
    assert!(shares_seeds(&into, false).unwrap());
    let new = design(folder.path(), Seeding::ByCase);
    let error = played(&new, &into).unwrap_err().to_string();
    assert!(error.contains("its cases share random numbers"), "{error}");
    let grown = Design { seeds: vec![0, 1], ..old };
    assert_eq!(played(&grown, &into).unwrap(), 80, "it can grow by its own rule");
    // Nor one that repeats a single case, in whose record no cell has a name.
    let single = |seeding: Seeding| {
        let options = RunOptions { seeding, ..RunOptions::default() };
        let cells =
            vec![Variant { values: Vec::new(), scenario: scenario.clone(), tuning: Tuning::default() }];
        Design { cells, seeds: vec![0, 1], options, shard: None }
    };
    let into = folder.path().join("single");
    assert_eq!(played(&single(Seeding::Recorded(None)), &into).unwrap(), 2);
    assert!(shares_seeds(&into, true).unwrap() && !shares_seeds(&into, false).unwrap());
    let error = played(&single(Seeding::ByCase), &into).unwrap_err().to_string();
    assert!(error.contains("its cases share random numbers"), "{error}");
}

#[test]
fn a_case_whose_row_is_missing_is_not_played_again() {
    let folder = written(&forty());
    let scenario = opened(folder.path(), &[("cases".into(), json!("q99"))]);
    let error = play(&scenario, first_listed(), &folder.path().join("run"), &RunOptions::default());
    assert!(error.unwrap_err().to_string().contains("`q99`"));
}
