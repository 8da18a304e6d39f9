//! Checks a file of cases: its rows, the variables that they name, and the types of their values.
//!
//! Each column is a variable that the scenario declares, or a part of one (`stakes.reward`), and a value has
//! the type of the variable's own. So a misspelt column is reported at its place, and a missing one has the
//! value from the scenario.

pub(super) mod rows;

use super::types::Mistyped;
use super::{Checker, ReadNamed};
use crate::cases::{CASE, Case, CaseId};
use crate::files::FileKind;
use crate::schema::Written;
use greenroom_yaml::Path;
use greenroom_yaml::diagnostic::{Diagnostic, Source, Span};
use rows::{FileCell, FileColumn, FileRow, RowFault, Rows, csv, jsonl};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Maximum number of cases of a scenario.
const MAX_CASES: usize = 10_000;
/// The column that names cases.
const NAME: &str = "case";

impl Checker {
    /// The cases of the file that a scenario names; of those that a run of one case may have, that one alone.
    pub(super) fn read_cases(
        &mut self,
        written: &mut Written,
        overrides: &[(String, Value)],
        read: &ReadNamed<'_>,
    ) {
        let Some(file) = written.cases.take() else { return };
        let path = Path::default().key("cases");
        self.has_cases = true;
        let of = overrides.iter().find(|(name, _)| name == CASE);
        let Some(kind) = CaseFormat::of(&file) else {
            let message =
                format!("`{file}` can't be a file of cases: its name must end in `.csv` or `.jsonl`");
            self.error("bad-value", &path, message).help = Some(
                "use a table whose first line names variables, or a file with one JSON object per line"
                    .into(),
            );
            return;
        };
        let text = match self.named_file(&file, "file of cases", FileKind::Cases, &path, read) {
            Ok(text) => text,
            // What a run takes from its case is recorded: it needs no file.
            Err(_) if of.is_some() => return,
            Err(found) => {
                self.push(*found);
                return;
            }
        };
        if text.trim_start_matches('\u{feff}').trim().is_empty() {
            let message = format!("the file of cases `{file}` is empty");
            self.error("missing", &path, message).help = Some(kind.begins().into());
            return;
        }
        let shown = self.beside(&file);
        let file = self.sources.add(Source { name: shown, text: text.clone() });
        let rows = match kind {
            CaseFormat::Csv => csv(&text, MAX_CASES),
            CaseFormat::Jsonl => jsonl(&text, MAX_CASES),
        };
        let cases = self.rows(rows, written, file);
        self.cases = Some(match of {
            Some((_, name)) => {
                cases.into_iter().filter(|case| Some(case.name.as_str()) == name.as_str()).collect()
            }
            None => cases,
        });
    }

    fn rows(&mut self, rows: Rows, written: &Written, file: usize) -> Vec<Case> {
        let Rows { columns, rows, faults } = rows;
        faults.into_iter().for_each(|fault| self.fault(fault, file));
        let empty = Default::default();
        let variables = written.variables.as_ref().unwrap_or(&empty);
        let (mut cases, mut unknown, mut seen) = (Vec::new(), BTreeSet::new(), BTreeMap::new());
        let mut n_alike: HashMap<String, u64> = HashMap::new();
        for FileColumn { name, start, end } in columns {
            if name != NAME && declared(variables, &name).is_none() {
                self.unknown_column(&name, variables, Span { file, start, end });
                unknown.insert(name);
            }
        }
        for (at, row) in rows.into_iter().enumerate() {
            let FileRow { cells, start, end } = row;
            let span = Span { file, start, end };
            let (mut name, mut values) = ((at + 1).to_string(), Vec::new());
            let mut own_name = None;
            for FileCell { column, value, start, end } in cells {
                let span = Span { file, start, end };
                if column == NAME {
                    name = value.text();
                    own_name = Some(Value::from(name.clone()));
                    self.named_case(&name, span);
                    continue;
                }
                let declared = declared(variables, &column);
                let Some(declared) = declared else {
                    if unknown.insert(column.clone()) {
                        self.unknown_column(&column, variables, span);
                    }
                    continue;
                };
                match value.typed(declared) {
                    Ok(value) => values.push((column, value)),
                    Err(found) => self.mistyped(&column, declared, &found, span),
                }
            }
            if let Some(first) = seen.insert(name.clone(), span) {
                let message = format!("two cases are named `{name}`");
                let found = Diagnostic::error("duplicate-name", "cases", span, message);
                self.push(found.related(first, "first defined here").help("give each case its own name"));
            }
            let columns: Vec<(&str, &Value)> = own_name
                .iter()
                .map(|name| (NAME, name))
                .chain(values.iter().map(|(column, value)| (column.as_str(), value)))
                .collect();
            let content = CaseId::of(&columns, 0);
            let n_before = n_alike.entry(content.blake3.clone()).or_default();
            let id = CaseId { copy: *n_before, ..content };
            *n_before += 1;
            cases.push(Case { name, values, id });
        }
        cases
    }

    fn fault(&mut self, fault: RowFault, file: usize) {
        let span = Span { file, start: fault.start, end: fault.end };
        self.push(Diagnostic::error(fault.code, "cases", span, fault.message).help(fault.help));
    }

    fn named_case(&mut self, name: &str, span: Span) {
        if name.trim().is_empty() || name.chars().any(char::is_control) || name.chars().count() > 80 {
            let message = "a case's name must be one line of 1 to 80 characters";
            let help = "without a column `case`, cases are numbered from 1";
            self.push(Diagnostic::error("bad-name", "cases", span, message).help(help));
        }
    }

    fn unknown_column(&mut self, column: &str, variables: &indexmap::IndexMap<String, Value>, span: Span) {
        let part = |(name, value): (&String, &Value)| {
            let keys = value.as_object().into_iter().flat_map(|fields| fields.keys());
            keys.map(|key| format!("{name}.{key}")).collect::<Vec<_>>()
        };
        let parts: Vec<String> = variables.iter().flat_map(part).collect();
        let known = variables.keys().chain(&parts).map(String::as_str).chain([NAME]);
        let help = self.suggest(column, known);
        let help = help.unwrap_or_else(|| "declare it under `variables:` with a value".into());
        let message = format!("the scenario has no variable `{column}`");
        self.push(Diagnostic::error("unknown-variable", "cases", span, message).help(help));
    }

    fn mistyped(&mut self, column: &str, declared: &Value, found: &Mistyped, span: Span) {
        let message = found.of(column);
        let help = match declared {
            Value::Array(_) | Value::Object(_) => {
                "a table can hold numbers, truth values and texts; a `.jsonl` file can also hold lists and \
                 mappings"
            }
            _ => "a value must have the type of the variable under `variables`",
        };
        self.push(Diagnostic::error("type", "cases", span, message).help(help));
    }
}

/// A format of files of cases.
enum CaseFormat {
    Csv,
    Jsonl,
}

impl CaseFormat {
    fn of(name: &str) -> Option<Self> {
        match std::path::Path::new(name).extension()?.to_str()? {
            "csv" => Some(Self::Csv),
            "jsonl" => Some(Self::Jsonl),
            _ => None,
        }
    }

    fn begins(&self) -> &'static str {
        match self {
            Self::Csv => "its first line must name variables; one row per case follows",
            Self::Jsonl => "write one case per line, e.g. `{\"price\": 3}`",
        }
    }
}

/// The value of a variable, or of a part of one, that the scenario gives.
pub(super) fn declared<'a>(
    variables: &'a indexmap::IndexMap<String, Value>,
    column: &str,
) -> Option<&'a Value> {
    let mut parts = column.split('.');
    let first = variables.get(parts.next()?)?;
    parts.try_fold(first, |at, part| at.as_object()?.get(part))
}
