//! Figures as a table for people or as one JSON object: medians, with minimum and maximum.

use greenroom::terminal::{bytes, table};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

/// One figure.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Figure {
    /// A word.
    Text(String),
    /// A count.
    Count(usize),
    /// A size.
    Bytes(u64),
    /// A value measured once or several times.
    Measured(Vec<f64>),
    /// Ratio of two figures.
    Ratio(f64),
}

/// Figures of one configuration, by name; all rows of a table have the same names.
pub(crate) type Row = Vec<(&'static str, Figure)>;

/// Results of a measurement.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    /// Rows.
    pub(crate) rows: Vec<Row>,
    /// Notes that a reader needs to understand the rows.
    pub(crate) notes: Vec<String>,
}

/// The median of some numbers (the mean of two middle ones); NaN without numbers.
pub(crate) fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

impl Figure {
    fn json(&self) -> Value {
        match self {
            Self::Text(text) => json!(text),
            Self::Count(n) => json!(n),
            Self::Bytes(n) => json!(n),
            Self::Ratio(x) => json!(x),
            Self::Measured(all) => {
                let (least, most) = range(all);
                json!({ "median": median(all), "min": least, "max": most })
            }
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Count(n) => n.to_string(),
            Self::Bytes(n) => bytes(*n),
            Self::Ratio(x) => format!("{x:.2}×"),
            Self::Measured(all) if all.len() < 2 => short(median(all)),
            Self::Measured(all) => {
                let (least, most) = range(all);
                format!("{} ({}–{})", short(median(all)), short(least), short(most))
            }
        }
    }
}

fn range(numbers: &[f64]) -> (f64, f64) {
    numbers.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), x| (least.min(*x), most.max(*x)))
}

/// Three significant digits, or all before the point.
fn short(x: f64) -> String {
    match x.abs() {
        100.0.. => format!("{x:.0}"),
        10.0.. => format!("{x:.1}"),
        _ => format!("{x:.2}"),
    }
}

impl Figures {
    /// One JSON object: the heading's facts, then the rows.
    pub(crate) fn json(&self, mut facts: Map<String, Value>) -> Value {
        let object = |row: &Row| {
            Value::Object(row.iter().map(|(name, cell)| ((*name).to_owned(), cell.json())).collect())
        };
        facts.insert("notes".to_owned(), json!(self.notes));
        facts.insert("rows".to_owned(), self.rows.iter().map(object).collect());
        Value::Object(facts)
    }

    /// Tables for people: rows with different names begin another table.
    pub(crate) fn text(&self) -> String {
        let names = |row: &Row| row.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        let mut text = String::new();
        for rows in self.rows.chunk_by(|a, b| names(a) == names(b)) {
            let names = names(&rows[0]);
            let head: Vec<String> = names.iter().map(|name| name.replace('_', " ")).collect();
            let head: Vec<&str> = head.iter().map(String::as_str).collect();
            let n_words = rows[0].iter().take_while(|(_, cell)| matches!(cell, Figure::Text(_))).count();
            let cells = rows.iter().map(|row| row.iter().map(|(_, cell)| cell.text()).collect());
            let _ = writeln!(text, "\n{}", table(&head, cells.collect(), n_words));
        }
        self.notes.iter().for_each(|note| {
            let _ = writeln!(text, "\n{note}");
        });
        text
    }
}

/// Processor, cores and memory of this machine; unknown facts are left out.
pub(crate) fn machine() -> Value {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let Ok(mut system) = sysinfo::System::new() else { return json!({ "cores": cores }) };
    system.refresh_memory();
    system.refresh_cpu_all();
    let cpu = system.cpus().first().map_or("", |cpu| cpu.brand()).trim();
    json!({ "cpu": cpu, "cores": cores, "memory_bytes": system.total_memory() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_medians_with_their_range() {
        let figures = Figures {
            rows: vec![vec![
                ("depth", Figure::Count(0)),
                ("tokens_per_s", Figure::Measured(vec![3.0, 1.0, 20.0])),
            ]],
            notes: vec!["A note.".to_owned()],
        };
        let text = figures.text();
        let words: Vec<_> = text.lines().nth(2).unwrap().split_whitespace().collect();
        assert_eq!(words, ["0", "3.00", "(1.00–20.0)"], "{text}");
        let json = figures.json(Map::new());
        assert_eq!(json["rows"][0]["tokens_per_s"]["median"], 3.0);
        assert_eq!(json["rows"][0]["depth"], 0);
        assert_eq!(median(&[1.0, 2.0]), 1.5);
    }
}
