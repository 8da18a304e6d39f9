//! Tables: their content, and that both files agree.

use super::{GAME, sample};
use greenroom::statistics::{Sample, Table, Tables, Values, tables};
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::Field;

/// Text that hurts formats made of lines and commas.
const HOSTILE: &str = "=1+1, \"quoted\"\r\nand 'more';\ttab \u{1f3ad} \u{202e} \\ \\N NULL";

fn small() -> Sample {
    let lean = |cell: usize, seed: u64| 0.3 + 0.2 * cell as f64 + 0.1 * seed as f64;
    sample(
        GAME,
        &[&["stakes.temptation=3", "round=1"], &["stakes.temptation=7.5", "round=2"]],
        2,
        lean,
        HOSTILE,
    )
}

fn csv(table: &Table) -> String {
    let mut out = Vec::new();
    table.csv(&mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn every_table_is_tidy() {
    let tables = tables(&small());
    let shown: Vec<String> =
        tables.0.iter().map(|table| format!("{}\n{}", table.name, csv(table).replace('\r', "␍"))).collect();
    insta::assert_snapshot!(shown.join("\n"));
}

#[test]
fn swept_values_are_typed_and_never_hide_a_column() {
    let tables = tables(&small());
    for table in &tables.0 {
        assert!(matches!(table.column("stakes.temptation"), Some(Values::Float(_))), "{}", table.name);
        assert!(matches!(table.column("variable.round"), Some(Values::Int(_))), "{}", table.name);
        let mut names: Vec<_> = table.columns.iter().map(|column| &column.name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), table.columns.len(), "{}: two columns of one name", table.name);
    }
    let runs = tables.get("runs").unwrap();
    assert!(matches!(runs.column("outcome.kind"), Some(Values::Bool(_))));
    assert!(matches!(runs.column("outcome.shares"), Some(Values::Int(_))));
    assert!(matches!(runs.column("outcome.mean"), Some(Values::Float(_))));
    assert!(matches!(runs.column("outcome.odd"), Some(Values::Text(_))));
}

#[test]
fn the_order_in_which_runs_finished_changes_nothing() {
    let sample = small();
    let mut turned = sample.clone();
    turned.runs.reverse();
    assert_eq!(tables(&sample), tables(&turned));
}

/// Reads both files of each table back.
fn assert_read_back(tables: &Tables) {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(tables.write(folder.path()).unwrap().len(), 2 * tables.0.len());
    for table in &tables.0 {
        let path = folder.path().join(table.name);
        let mut reader = csv::Reader::from_path(path.with_extension("csv")).unwrap();
        let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
        assert_eq!(rows.len(), table.n_rows());
        let file = std::fs::File::open(path.with_extension("parquet")).unwrap();
        let parquet = SerializedFileReader::new(file).unwrap();
        let mut n_rows = 0;
        for (row, read) in parquet.get_row_iter(None).unwrap().enumerate() {
            n_rows += 1;
            for (at, (name, field)) in read.unwrap().into_columns().into_iter().enumerate() {
                assert_eq!(name, table.columns[at].name);
                let expected = table.columns[at].values.text(row);
                assert_eq!(rows[row][at], expected.clone().unwrap_or_default(), "{name}");
                let found = match field {
                    Field::Null => None,
                    Field::Bool(value) => Some(value.to_string()),
                    Field::Long(value) => Some(value.to_string()),
                    Field::ULong(value) => Some(value.to_string()),
                    Field::Double(value) => Some(format!("{value:?}")),
                    Field::Str(value) => Some(value),
                    other => panic!("{name} is a {other:?}"),
                };
                assert_eq!(found, expected, "{name}");
            }
        }
        assert_eq!(n_rows, table.n_rows());
    }
}

#[test]
fn both_files_read_back_as_they_were() {
    let mut sample = small();
    sample.runs[0].seed = u64::MAX;
    sample.runs[1].transcript.turns[6].record.spoken = "zero\0, \u{1b}[31m".into();
    sample.runs[2].transcript.turns[6].record.spoken = String::new();
    sample.runs[3].transcript.turns[6].record.spoken = HOSTILE.into();
    let tables = tables(&sample);
    let turns = tables.get("turns").unwrap();
    let Some(Values::Text(spoken)) = turns.column("spoken") else { panic!("no texts") };
    assert!(spoken.contains(&Some(HOSTILE.into())));
    assert_read_back(&tables);
}

#[test]
fn an_unfinished_run_and_no_run_at_all_have_tables_too() {
    let mut sample = small();
    sample.runs[0].transcript.footer = None;
    sample.runs[1].transcript.turns[0].record.path = "elsewhere/1/ann".into();
    sample.runs[2].cell = 99;
    let made = tables(&sample);
    let runs = made.get("runs").unwrap();
    assert_eq!(runs.column("complete").unwrap().text(0).unwrap(), "false");
    assert_eq!(runs.column("turns").unwrap().text(0), None);
    assert_eq!(runs.n_rows(), 4);
    assert_read_back(&made);
    assert_read_back(&tables(&Sample::default()));
}
