//! Reads rows of a CSV or JSONL text, each cell with its place, and all that is wrong with their shape.

use crate::check::types::{Mistyped, exactly};
use crate::text_of;
use greenroom_yaml::{Leaf, plain};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use std::collections::BTreeMap;

/// Rows of a file, and what is wrong with them.
#[derive(Debug, Default)]
pub(in crate::check) struct Rows {
    /// The columns of a table; objects have none.
    pub(in crate::check) columns: Vec<FileColumn>,
    pub(in crate::check) rows: Vec<FileRow>,
    pub(in crate::check) faults: Vec<RowFault>,
}

/// A column of a table, and where it is named.
#[derive(Debug)]
pub(in crate::check) struct FileColumn {
    pub(in crate::check) name: String,
    pub(in crate::check) start: usize,
    pub(in crate::check) end: usize,
}

/// A row: bytes `start..end` of the text.
#[derive(Debug)]
pub(in crate::check) struct FileRow {
    pub(in crate::check) cells: Vec<FileCell>,
    pub(in crate::check) start: usize,
    pub(in crate::check) end: usize,
}

/// A value of a row, and its place; where that is not known, the row's.
#[derive(Debug)]
pub(in crate::check) struct FileCell {
    pub(in crate::check) column: String,
    pub(in crate::check) value: FileValue,
    pub(in crate::check) start: usize,
    pub(in crate::check) end: usize,
}

/// A value as a file has it.
#[derive(Debug)]
pub(in crate::check) enum FileValue {
    /// A text of a table, which has no types.
    Text(String),
    /// A value of JSON.
    Json(Value),
}

/// A mistake of shape.
#[derive(Debug)]
pub(in crate::check) struct RowFault {
    pub(in crate::check) code: &'static str,
    pub(in crate::check) message: String,
    pub(in crate::check) help: &'static str,
    pub(in crate::check) start: usize,
    pub(in crate::check) end: usize,
}

impl FileValue {
    /// The value in the type of one that is declared.
    ///
    /// # Errors
    /// What it is instead, and where in the value.
    pub(in crate::check) fn typed(self, declared: &Value) -> Result<Value, Mistyped> {
        match self {
            Self::Text(text) if declared.is_string() => Ok(text.into()),
            Self::Text(text) => {
                let value = match plain(&text) {
                    Leaf::Null => Value::Null,
                    Leaf::Bool(truth) => truth.into(),
                    Leaf::Number(number) => number.into(),
                    Leaf::Text(text) => text.into(),
                };
                let found = || if text.is_empty() { "empty".into() } else { format!("`{text}`") };
                exactly(declared, value).map_err(|wrong| wrong.written_as(found()))
            }
            Self::Json(value) => exactly(declared, value),
        }
    }

    /// The value as a name.
    pub(in crate::check) fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Json(value) => text_of(value),
        }
    }
}

const EMPTY: &str = "a table begins with a line that names its columns; rows follow";

/// Rows of a table whose first line names the columns, `most` of them.
pub(in crate::check) fn csv(text: &str, most: usize) -> Rows {
    let mut found = Rows::default();
    let mut reader = csv::ReaderBuilder::new().flexible(true).has_headers(false).from_reader(text.as_bytes());
    let mut records = Vec::new();
    for record in reader.records() {
        match record {
            Ok(record) => records.push(record),
            Err(error) => {
                found.fault("csv", (0, 0), format!("invalid CSV: {error}"), EMPTY);
                return found;
            }
        }
    }
    let start = |at: usize| {
        let byte = records.get(at).and_then(|record| record.position()).map(|at| at.byte() as usize);
        let byte = byte.unwrap_or(text.len()).min(text.len());
        byte + text[byte..].len() - text[byte..].trim_start_matches(['\r', '\n']).len()
    };
    let range = |at: usize| {
        let (start, end) = (start(at), start(at + 1));
        (start, start + text[start..end.max(start)].trim_end_matches(['\r', '\n']).len())
    };
    let Some(head) = records.first() else { return found };
    if let Some(separator) = other_separator(head) {
        let message = format!("the columns are separated by {separator}; expected commas");
        let help = "save the table with commas, and put a value with a comma in it in quotes: `\"a, b\"`";
        found.fault("csv", range(0), message, help);
        return found;
    }
    let (columns, places) = (head.clone(), places(text, range(0), head));
    for (at, column) in columns.iter().enumerate() {
        if column.trim().is_empty() {
            found.fault("missing", places[at], format!("column {} has no name", at + 1), EMPTY);
        } else if columns.iter().take(at).any(|other| other == column) {
            let message = format!("two columns are named `{column}`");
            found.fault("duplicate-name", places[at], message, "remove one of them");
        } else {
            let (start, end) = places[at];
            found.columns.push(FileColumn { name: column.trim().to_string(), start, end });
        }
    }
    if records.len() == 1 {
        found.fault("missing", range(0), "the table has no rows".into(), EMPTY);
    }
    for (at, record) in records.iter().enumerate().skip(1) {
        if at > most {
            found.too_many(most, range(at));
            break;
        }
        if record.len() != columns.len() {
            let message =
                format!("this row has {} values, but there are {} columns", record.len(), columns.len());
            let help = "put a value with a comma in quotes, `\"a, b\"`; double a quote within it";
            found.fault("csv", range(at), message, help);
            continue;
        }
        let (start, end) = range(at);
        let places = self::places(text, (start, end), record);
        let cells =
            columns.iter().zip(record).zip(places).filter(|((column, _), _)| !column.trim().is_empty());
        let cells = cells.map(|((column, value), (start, end))| FileCell {
            column: column.trim().to_string(),
            // git may write other line ends into a file; a text is the same with them.
            value: FileValue::Text(value.replace("\r\n", "\n")),
            start,
            end,
        });
        found.rows.push(FileRow { cells: cells.collect(), start, end });
    }
    // A column without a name or a second one of a name has no values that mean anything.
    if found.faults.iter().any(|fault| fault.code == "duplicate-name") {
        found.rows.clear();
    }
    found
}

/// What separates the columns of a table whose first line has no commas, in words, if something else does.
fn other_separator(head: &csv::StringRecord) -> Option<&'static str> {
    let first = head.get(0).filter(|_| head.len() == 1)?;
    let separators = [(';', "semicolons"), ('\t', "tabs")];
    separators.into_iter().find(|(separator, _)| first.contains(*separator)).map(|(_, name)| name)
}

/// Where the fields of a record are in a text: each after the one before; the whole record, where one is
/// written otherwise.
fn places(text: &str, (start, end): (usize, usize), record: &csv::StringRecord) -> Vec<(usize, usize)> {
    let mut from = start;
    let place = |field: &str| match text[from..end].find(field).map(|at| from + at) {
        Some(at) if !field.is_empty() => {
            from = at + field.len();
            (at, from)
        }
        _ => (start, end),
    };
    record.iter().map(place).collect()
}

/// Rows of JSON objects, one a line, `most` of them; empty lines aside.
pub(in crate::check) fn jsonl(text: &str, most: usize) -> Rows {
    let mut found = Rows::default();
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let (begin, line) = (start, line.trim_end_matches(['\r', '\n']));
        start += line.len() + text[start + line.len()..].find('\n').map_or(0, |at| at + 1);
        let line = if begin == 0 { line.trim_start_matches('\u{feff}') } else { line };
        let place = (begin, begin + line.len());
        if line.trim().is_empty() {
            continue;
        }
        if found.rows.len() == most {
            found.too_many(most, place);
            break;
        }
        match serde_json::from_str::<OrderedEntries>(line) {
            Ok(OrderedEntries(entries)) => found.object(entries, place),
            Err(error) => {
                let at = line.char_indices().map(|(at, _)| at).nth(error.column().saturating_sub(1));
                let at = begin + at.unwrap_or(line.len());
                let message = format!("not a JSON object: {}", plain_words(&error));
                found.fault("json", (at, at), message, "write one object per line, e.g. `{\"price\": 3}`");
            }
        }
    }
    found
}

/// An error without its place, which is reported separately.
fn plain_words(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or_default().to_string()
}

impl Rows {
    fn object(&mut self, entries: Vec<(String, Value)>, (start, end): (usize, usize)) {
        let mut cells: BTreeMap<String, usize> = BTreeMap::new();
        let mut row = FileRow { cells: Vec::new(), start, end };
        for (column, value) in entries {
            if cells.insert(column.clone(), row.cells.len()).is_some() {
                let message = format!("`{column}` appears twice in this row");
                self.fault("duplicate-name", (start, end), message, "remove one of them");
                continue;
            }
            row.cells.push(FileCell { column, value: FileValue::Json(value), start, end });
        }
        self.rows.push(row);
    }

    fn too_many(&mut self, most: usize, place: (usize, usize)) {
        let message = format!("more than {most} rows; at most {most} are allowed");
        self.fault("too-many", place, message, "split the file");
    }

    fn fault(
        &mut self,
        code: &'static str,
        (start, end): (usize, usize),
        message: String,
        help: &'static str,
    ) {
        self.faults.push(RowFault { code, message, help, start, end });
    }
}

/// The entries of an object in their order, those of one name included.
struct OrderedEntries(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for OrderedEntries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = OrderedEntries;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object of values by variable")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<OrderedEntries, A::Error> {
        let mut all = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            all.push(entry);
        }
        Ok(OrderedEntries(all))
    }
}
