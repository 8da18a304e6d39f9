//! An experiment's runs as a matrix: a row for each case (or seed), a column for each condition; each field has
//! the outcome of its runs, with a link to the page of each.

use super::text;
use crate::statistics::{CASE, Run, Sample};
use crate::transcript::Footer;
use indexmap::{IndexMap, IndexSet};
use serde::Serialize;
use serde_json::Value;

/// Most outcomes that have a matrix each.
const MAX_MATRICES: usize = 8;
/// Most characters of a value; its tooltip has all.
const MAX_VALUE: usize = 28;
/// Shades of numbers, from the least to the greatest.
const SHADES: f64 = 4.0;
/// Colours of texts.
const COLOURS: usize = 6;

/// All runs by one outcome.
#[derive(Debug, Serialize)]
pub(super) struct Matrix {
    /// The outcome; null: the scenario has none.
    outcome: Option<String>,
    /// `case`, or `seed` where there are no cases.
    rows_are: &'static str,
    conditions: Vec<String>,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    name: String,
    /// By condition, its runs by seed.
    fields: Vec<Vec<Field>>,
}

/// The outcome of a run.
#[derive(Clone, Debug, Serialize)]
struct Field {
    seed: u64,
    text: String,
    /// The whole value, if the text is only its beginning.
    whole: Option<String>,
    class: String,
    report: String,
}

/// The runs of a field, by its row and its column.
type Fields<'a> = IndexMap<(String, usize), Vec<&'a Run>>;

/// A matrix for each outcome, as far as there are not too many; one of bare links if there is none.
pub(super) fn matrices(sample: &Sample) -> Vec<Matrix> {
    let has_cases = sample.cells.iter().any(|cell| cell.values.first().is_some_and(|(name, _)| name == CASE));
    let conditions: IndexSet<String> = sample.cells.iter().map(|cell| cell.condition()).collect();
    let mut runs: Vec<&Run> = sample.runs.iter().collect();
    runs.sort_by_key(|run| (run.cell, run.seed));
    if !has_cases {
        runs.sort_by_key(|run| run.seed);
    }
    let mut fields = Fields::new();
    for run in &runs {
        let Some(cell) = sample.cells.get(run.cell) else { continue };
        let case = cell.values.first().filter(|_| has_cases).map(|(_, value)| text::value(value));
        let row = case.unwrap_or_else(|| run.seed.to_string());
        let column = conditions.get_index_of(&cell.condition()).unwrap_or_default();
        fields.entry((row, column)).or_default().push(run);
    }
    let outcomes: IndexSet<&String> = runs
        .iter()
        .filter_map(|run| footer(run))
        .flat_map(|f| &f.outcomes)
        .map(|outcome| &outcome.name)
        .collect();
    let shown: Vec<Option<&String>> = match outcomes.is_empty() {
        true => vec![None],
        false => outcomes.into_iter().take(MAX_MATRICES).map(Some).collect(),
    };
    let matrix = |outcome: Option<&String>| {
        let scale = Scale::of(runs.iter().filter_map(|run| value(run, outcome?)));
        let mut rows: IndexMap<&String, Vec<Vec<Field>>> = IndexMap::new();
        for ((row, column), runs) in &fields {
            let row = rows.entry(row).or_insert_with(|| vec![Vec::new(); conditions.len()]);
            row[*column] = runs.iter().map(|run| scale.field(run, outcome)).collect();
        }
        let rows = rows.into_iter().map(|(name, fields)| Row { name: name.clone(), fields });
        Matrix {
            outcome: outcome.cloned(),
            rows_are: if has_cases { "case" } else { "seed" },
            conditions: conditions.iter().cloned().collect(),
            rows: rows.collect(),
        }
    };
    shown.into_iter().map(matrix).collect()
}

/// The path of a run's page, from the experiment's folder.
pub(super) fn page_of(run: &Run) -> String {
    format!("{}/{}", run.folder.replace('\\', "/"), super::FILE)
}

fn footer(run: &Run) -> Option<&Footer> {
    run.transcript.footer.as_ref().map(|footer| &footer.record)
}

/// An outcome of a run.
fn value<'a>(run: &'a Run, outcome: &str) -> Option<&'a Value> {
    let found = footer(run)?.outcomes.iter().find(|found| found.name == outcome)?;
    found.error.is_none().then_some(&found.value)
}

/// How an outcome's values are coloured.
struct Scale<'a> {
    /// The least and the greatest number.
    range: (f64, f64),
    texts: IndexSet<&'a str>,
}

impl<'a> Scale<'a> {
    fn of(values: impl Iterator<Item = &'a Value>) -> Self {
        let mut scale = Self { range: (f64::INFINITY, f64::NEG_INFINITY), texts: IndexSet::new() };
        for value in values {
            if let Some(number) = value.as_f64() {
                scale.range = (scale.range.0.min(number), scale.range.1.max(number));
            } else if let Some(text) = value.as_str() {
                scale.texts.insert(text);
            }
        }
        scale.texts.sort_unstable();
        scale
    }

    fn field(&self, run: &Run, outcome: Option<&String>) -> Field {
        let found = outcome.map(|outcome| value(run, outcome).cloned().unwrap_or_default());
        let text = match &found {
            None => format!("seed {}", run.seed),
            Some(Value::Null) => "–".to_string(),
            Some(value) => text::value(value),
        };
        let short: String = text.chars().take(MAX_VALUE).collect();
        let is_cut = short.len() < text.len();
        Field {
            seed: run.seed,
            class: found.as_ref().map_or(String::new(), |value| self.class(value)),
            text: if is_cut { short + "…" } else { short },
            whole: is_cut.then_some(text),
            report: page_of(run),
        }
    }

    fn class(&self, value: &Value) -> String {
        let (least, most) = self.range;
        match value {
            Value::Bool(true) => "yes".into(),
            Value::Bool(false) => "no".into(),
            Value::Number(number) => {
                let part = (number.as_f64().unwrap_or(least) - least) / (most - least);
                format!("shade{}", if part.is_finite() { (SHADES * part).round() as usize } else { 0 })
            }
            Value::String(text) => {
                format!("text{}", self.texts.get_index_of(text.as_str()).unwrap_or_default() % COLOURS)
            }
            _ => String::new(),
        }
    }
}
