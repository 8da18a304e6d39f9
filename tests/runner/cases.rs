//! Cases: what a row gives a scenario, that a run of one replays without the file, and that a row which
//! changed is drift.

use crate::drift::greenroom_with;
use crate::play::{checkout, echo, play, without_copy};
use greenroom::rehearsal::open;
use greenroom::run::RunOptions;
use greenroom::scenario::Scenario;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

const FILE: &str = "
variables: { price: 3, goods: figs, fresh: true, notes: null, stakes: { gain: 1, loss: [2] } }
cases: rows.EXT
agents: { ann: {}, ben: {} }
phases: [{ name: market, agents: [ann, ben], prompt: '{{ goods }} for {{ price }}.' }]
";

/// A checkout with a scenario and its rows; the scenario's file.
fn written(ending: &str, rows: &str) -> tempfile::TempDir {
    let folder = checkout();
    std::fs::write(folder.path().join("market.yaml"), FILE.replace("EXT", ending)).unwrap();
    std::fs::write(folder.path().join(format!("rows.{ending}")), rows).unwrap();
    folder
}

fn opened(folder: &Path, overrides: &[(String, Value)]) -> Arc<Scenario> {
    let loaded = open(&folder.join("market.yaml"), overrides).unwrap();
    loaded.scenario.unwrap_or_else(|| panic!("{}", loaded.report.render(false)))
}

/// The variables of each case.
fn variables(folder: &Path) -> Vec<(String, Value)> {
    let plain = opened(folder, &[]);
    let of = |case: &greenroom::scenario::Case| {
        let scenario = opened(folder, &case.overrides());
        assert_eq!(scenario.case(), Some(case.name.as_str()));
        assert_eq!(scenario.cases.as_ref().map(Vec::len), Some(1), "the others are not kept");
        (case.name.clone(), json!(scenario.variables))
    };
    plain.cases.iter().flatten().map(of).collect()
}

#[test]
fn values_have_the_types_that_are_declared() {
    let rows = "\u{feff}case,goods,price,fresh,notes,stakes.gain\r\n\
                old,007,4.5,false,12,-2\r\n\
                \"with \"\"quotes\"\"\",\"dates, dry\nand sweet\",1e3,true,,0x10\r\n";
    let folder = written("csv", rows);
    let stakes = |gain: i64| json!({ "gain": gain, "loss": [2] });
    assert_eq!(
        variables(folder.path()),
        [
            (
                "old".to_string(),
                json!({"goods": "007", "price": 4.5, "fresh": false, "notes": 12, "stakes": stakes(-2)})
            ),
            (
                "with \"quotes\"".to_string(),
                json!({
                    "goods": "dates, dry\nand sweet", "price": 1000.0, "fresh": true, "notes": null,
                    "stakes": stakes(16)
                })
            ),
        ]
    );
    let rows =
        "{\"stakes\": {\"loss\": [], \"more\": {\"b\": 1, \"a\": 2}}}\n\n{\"case\": 7, \"notes\": [1]}";
    let folder = written("jsonl", rows);
    let defaults = |stakes: Value, notes: Value| {
        json!({
            "goods": "figs", "price": 3, "fresh": true, "notes": notes, "stakes": stakes
        })
    };
    assert_eq!(
        variables(folder.path()),
        [
            ("1".to_string(), defaults(json!({"loss": [], "more": {"a": 2, "b": 1}}), Value::Null)),
            ("7".to_string(), defaults(stakes(1), json!([1]))),
        ]
    );
}

#[test]
fn a_case_is_found_by_its_name_or_its_number() {
    let folder = written("csv", "case,price\nlow,1\n1,5\n");
    let plain = opened(folder.path(), &[]);
    assert_eq!(plain.case_of("low").unwrap().name, "low");
    assert_eq!(plain.case_of("1").unwrap().name, "1", "a name counts before a number");
    assert_eq!(plain.case_of("2").unwrap().name, "1");
    for wrong in ["0", "3", "lo w", "-1", ""] {
        assert!(plain.case_of(wrong).unwrap_err().starts_with("there is no case"), "{wrong}");
    }
}

/// A run of a case, held against the files of its checkout; how a replay ends.
fn replayed(change: impl Fn(&Path)) -> (i32, String) {
    let folder = written("csv", "case,price,goods\nlow,1,figs\nhigh,9,dates\n");
    let case = opened(folder.path(), &[]).case_of("high").unwrap().overrides();
    let run = folder.path().join("run");
    play(&opened(folder.path(), &case), echo(), &run, &RunOptions::default()).unwrap();
    assert!(run.join("scenario/rows.csv").is_file(), "the copy holds the rows");
    without_copy(&run);
    change(folder.path());
    greenroom_with(folder.path(), &["replay", "run", "--scenario", "market.yaml"], &[])
}

#[test]
fn a_run_of_a_case_needs_no_file_and_a_row_that_changed_is_drift() {
    assert_eq!(replayed(|_| {}).0, 0);
    let (code, text) = replayed(|folder| std::fs::remove_file(folder.join("rows.csv")).unwrap());
    assert_eq!(code, 0, "{text}");
    let rows =
        |rows: &'static str| move |folder: &Path| std::fs::write(folder.join("rows.csv"), rows).unwrap();
    let (code, text) = replayed(rows("case,price,goods\nhigh,9,dates\n"));
    assert!(code == 0 && text.contains("changed since"), "other rows are nothing to it: {text}");
    let (code, text) = replayed(rows("case,price,goods\nlow,1,figs\nhigh,8,dates\n"));
    assert!(code == 3 && text.contains("the case that was played has different values now"), "{text}");
    assert!(text.contains("\"price\":9") && text.contains("\"price\":8"), "{text}");
    let (code, text) = replayed(rows("case,price,goods\nlow,1,figs\n"));
    assert!(code == 3 && text.contains("no such case"), "{text}");
}

#[test]
fn many_rows_are_read_soon_and_too_many_are_refused() {
    let rows = |n: usize| "price\n".to_string() + &"7\n".repeat(n);
    let folder = written("csv", &rows(10_000));
    assert_eq!(opened(folder.path(), &[]).cases.as_ref().map(Vec::len), Some(10_000));
    let folder = written("csv", &rows(10_001));
    let report = open(&folder.path().join("market.yaml"), &[]).unwrap().report.render(false);
    assert!(report.contains("rows.csv:10002:1") && report.contains("more than 10000 rows"), "{report}");
}

/// Text of the characters that mean something in tables and objects.
fn rows() -> impl Strategy<Value = String> {
    let piece = proptest::sample::select(vec![
        "price",
        "goods",
        "case",
        "stakes.gain",
        ",",
        ",",
        "\n",
        "\r\n",
        "\"",
        "\"\"",
        "{",
        "}",
        ":",
        "[",
        "]",
        "3",
        "-1.5",
        "é",
        "\u{feff}",
        " ",
        "null",
        "true",
        "\\",
        "\u{1b}",
        ".",
    ]);
    proptest::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_text_is_rows_or_explained(
        rows in rows(), headed in any::<bool>(), ending in prop_oneof![Just("csv"), Just("jsonl")]
    ) {
        let rows = if headed { format!("price,goods\n{rows}") } else { rows };
        let folder = written(ending, &rows);
        let loaded = open(&folder.path().join("market.yaml"), &[]).unwrap();
        prop_assert_eq!(loaded.scenario.is_none(), loaded.report.n_errors() > 0);
        loaded.report.render(true);
        loaded.report.render(false);
        for case in loaded.scenario.iter().flat_map(|scenario| scenario.cases.iter().flatten()) {
            let one = open(&folder.path().join("market.yaml"), &case.overrides()).unwrap();
            let one = one.scenario.unwrap();
            prop_assert_eq!(one.cases.as_deref(), Some(std::slice::from_ref(case)));
        }
    }
}

#[test]
fn types_hold_wherever_a_value_comes_from() {
    let rejection = |overrides: &[(&str, Value)]| {
        let folder = written("csv", "price\n3\n");
        let overrides: Vec<_> =
            overrides.iter().map(|(name, value)| ((*name).to_string(), value.clone())).collect();
        let loaded = open(&folder.path().join("market.yaml"), &overrides).unwrap();
        loaded.scenario.is_none().then(|| loaded.report.render(false))
    };
    // `--set`, `--sweep` and `variables` of a request are the same overrides.
    for (name, value, says) in [
        ("price", json!("abc"), "`price` is a number, but this value is a text: `abc`"),
        ("price", json!(null), "`price` is a number, but this value is null"),
        ("stakes.gain", json!("much"), "`stakes.gain` is a number, but this value is a text: `much`"),
        ("stakes", json!({ "gain": "much" }), "`stakes.gain` is a number, but this value is a text: `much`"),
        (
            "stakes",
            json!({ "loss": [1, "x"] }),
            "`stakes.loss[1]` is a number, but this value is a text: `x`",
        ),
        ("stakes", json!(3), "`stakes` is a mapping, but this value is a number"),
        ("goods", json!(1.5), "`goods` is a text, but this value is a number"),
    ] {
        let rejection = rejection(&[(name, value)]).unwrap_or_else(|| panic!("{name} is accepted: {says}"));
        assert!(rejection.contains(says) && rejection.contains("market.yaml:2:"), "{rejection}");
    }
    for (name, value) in [("price", json!(4.5)), ("goods", json!(7)), ("notes", json!([1]))] {
        assert_eq!(rejection(&[(name, value)]), None, "{name}");
    }
    assert_eq!(rejection(&[("stakes", json!({ "gain": 2, "more": "x" }))]), None);
    let folder = written("csv", "price\n3\n");
    assert_eq!(opened(folder.path(), &[("goods".into(), json!(7))]).variables["goods"], "7");
    // Columns, and their values.
    let folder = written("jsonl", "{\"stakes\": {\"loss\": [\"x\"]}}\n");
    let report = open(&folder.path().join("market.yaml"), &[]).unwrap().report.render(false);
    assert!(report.contains("`stakes.loss[0]` is a number, but this value is a text"), "{report}");
}

#[test]
fn line_ends_that_git_changes_are_no_drift() {
    let quoted = |end: &str| format!("case,price,goods{end}high,9,\"dates{end}and figs\"{end}");
    for (recorded, now) in [("\n", "\r\n"), ("\r\n", "\n")] {
        let folder = written("csv", &quoted(recorded));
        let case = opened(folder.path(), &[]).case_of("high").unwrap().overrides();
        let run = folder.path().join("run");
        play(&opened(folder.path(), &case), echo(), &run, &RunOptions::default()).unwrap();
        without_copy(&run);
        std::fs::write(folder.path().join("rows.csv"), quoted(now)).unwrap();
        let (code, text) =
            greenroom_with(folder.path(), &["replay", "run", "--scenario", "market.yaml"], &[]);
        assert_eq!(code, 0, "{text}");
    }
}
