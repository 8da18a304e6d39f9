//! Entries that are several agents: one with `from` becomes an agent for each row of a table, one with `count`
//! so many of a kind. The entry's key names the list of their keys.

use super::cases::rows::{FileCell, FileRow, FileValue, RowFault, Rows, csv, jsonl};
use super::phases::identifier_from;
use super::{Checker, ReadNamed};
use crate::files::FileKind;
use crate::schema::{Written, WrittenAgent, WrittenText};
use greenroom_yaml::diagnostic::{Diagnostic, Source, Span};
use greenroom_yaml::{Leaf, Path, Piece, Taken, plain};
use indexmap::IndexMap;
use serde_json::Value;

/// Most agents of one table.
const MAX_ROWS: usize = 1_000;
/// The column with the keys, if no other is named.
const KEY: &str = "key";
/// Columns that name an agent, the first of them that there is.
const NAMES: [&str; 2] = ["display_name", "name"];

/// The column with their roles.
const ROLE: &str = "role";

/// What texts call an agent's number among those of its kind.
const NUMBER: &str = "n";

/// The table of one entry.
struct Table {
    /// What all its agents have.
    agent: WrittenAgent,
    path: Path,
    /// Index of the table among the sources.
    file: usize,
}

impl Checker {
    /// Replaces entries that name a table by the agents of its rows.
    pub(super) fn read_personas(&mut self, written: &mut Written, read: &ReadNamed<'_>) {
        let Some(agents) = written.agents.take() else { return };
        let mut cast: IndexMap<String, Option<WrittenAgent>> = IndexMap::new();
        let top = Path::default().key("agents");
        for (group, agent) in agents {
            let path = top.key(group.clone());
            let (from, count) =
                agent.as_ref().map_or((None, None), |agent| (agent.from.clone(), agent.count));
            if from.is_none() && count.is_none() {
                if agent.as_ref().is_some_and(|agent| agent.key.is_some()) {
                    let message = "`key` has no effect here: it names a column of the table in `from`";
                    self.unused(&path.key("key"), message, "remove it, or name the table");
                }
                cast.insert(group, agent);
                continue;
            }
            let rows = match (from, count) {
                (Some(_), Some(_)) => {
                    let message = "agents come from a table (`from`), or are so many of a kind (`count`)";
                    self.error("contradiction", &path.key("count"), message).help =
                        Some("remove one of the two".into());
                    None
                }
                (Some(from), None) => self.table(&from, &path.key("from"), read),
                (None, count) => self.counted(&group, count.unwrap_or_default(), &path.key("count")),
            };
            let taken = self.tree.take(&top, &group);
            let (Some((rows, file)), Some(taken)) = (rows, taken) else {
                // Nothing is known of its agents.
                self.names.partial = true;
                continue;
            };
            let table = Table { agent: agent.unwrap_or_default(), path, file };
            let keys = self.personas(&table, rows, &taken, &mut cast);
            let variables = written.variables.get_or_insert_default();
            if variables.contains_key(&group) {
                let message = format!("`{group}` is the name of a variable and of a list of agents");
                let found = Diagnostic::error("ambiguous-name", table.path.to_string(), taken.span, message);
                self.push(found.help("rename one"));
            }
            variables.insert(group, keys.into());
        }
        written.agents = Some(cast);
    }

    /// Rows of so many agents of a kind, as if a table had them.
    fn counted(&mut self, group: &str, count: u64, path: &Path) -> Option<(Rows, usize)> {
        if !(1..=MAX_ROWS as u64).contains(&count) {
            let message = format!("`count` is {count}, expected 1 to {MAX_ROWS} agents");
            self.error("bad-value", path, message).help = Some("e.g. `guests: { count: 3 }`".into());
            return None;
        }
        let Span { file, start, end } = self.tree.value(path);
        let cell = |column: &str, value: Value| {
            let (column, value) = (column.to_string(), FileValue::Json(value));
            FileCell { column, value, start, end }
        };
        let row = |n: u64| {
            let name = ("name", format!("{group} {n}").into());
            let cells = [(KEY, format!("{group}_{n}").into()), name, (NUMBER, n.into())];
            let cells = cells.into_iter().map(|(column, value)| cell(column, value)).collect();
            FileRow { cells, start, end }
        };
        Some((Rows { rows: (1..=count).map(row).collect(), columns: Vec::new(), faults: Vec::new() }, file))
    }

    /// The rows of a table, and its index among the sources.
    fn table(&mut self, from: &str, path: &Path, read: &ReadNamed<'_>) -> Option<(Rows, usize)> {
        let parse: fn(&str, usize) -> Rows = match from.rsplit_once('.') {
            Some((_, "csv")) => csv,
            Some((_, "jsonl")) => jsonl,
            _ => {
                let message =
                    format!("`{from}` can't be a table of agents: its name must end in `.csv` or `.jsonl`");
                self.error("bad-value", path, message).help = Some(
                    "use a table whose first line names columns, or a file with one JSON object per line"
                        .into(),
                );
                return None;
            }
        };
        let text = self.named_file(from, "table of agents", FileKind::Cases, path, read);
        let text = text.map_err(|found| _ = self.push(*found)).ok()?;
        let name = self.beside(from);
        let file = self.sources.add(Source { name, text: text.clone() });
        let mut rows = parse(&text, MAX_ROWS);
        let faults = std::mem::take(&mut rows.faults);
        let n_faults = faults.len();
        for RowFault { code, message, help, start, end } in faults {
            self.push(Diagnostic::error(code, "", Span { file, start, end }, message).help(help));
        }
        if rows.rows.is_empty() && n_faults == 0 {
            let message = format!("the table of agents `{from}` is empty");
            self.error("missing", path, message).help =
                Some("its first line names columns; one row per agent follows".into());
        }
        (n_faults == 0 && !rows.rows.is_empty()).then_some((rows, file))
    }

    /// Adds the agents of a table to the cast; their keys.
    fn personas(
        &mut self,
        table: &Table,
        rows: Rows,
        taken: &Taken,
        cast: &mut IndexMap<String, Option<WrittenAgent>>,
    ) -> Vec<String> {
        let column = table.agent.key.clone().unwrap_or_else(|| KEY.into());
        let (mut keys, file) = (Vec::new(), table.file);
        for FileRow { cells, start, end } in rows.rows {
            let span = Span { file, start, end };
            let cell = cells.iter().find(|cell| cell.column == column);
            let Some(cell) = cell else {
                let known: Vec<&str> = cells.iter().map(|cell| cell.column.as_str()).collect();
                let message =
                    format!("there is no column `{column}`, from which the keys of agents are made");
                let help = format!("name one with `key: COLUMN`; there are {}", known.join(", "));
                self.push(Diagnostic::error("missing", table.path.to_string(), span, message).help(help));
                break;
            };
            let key = identifier_from(cell.value.text().trim());
            if cast.contains_key(&key) {
                let message = format!("the key `{key}` stands for another agent already");
                let span = Span { file, start: cell.start, end: cell.end };
                let found = Diagnostic::error("duplicate-name", table.path.to_string(), span, message);
                self.push(found.help("give each row its own value, or name another column with `key`"));
                continue;
            }
            // A value is printed, never rendered.
            let printed = |column: &str| WrittenText(format!("{{{{ me.{column} }}}}"));
            let has = |column: &str| cells.iter().any(|cell| cell.column == column);
            let mut agent = table.agent.clone();
            let name = NAMES.into_iter().find(|name| has(name)).unwrap_or(&column);
            agent.display_name.get_or_insert_with(|| printed(name));
            if agent.role.is_none() && has(ROLE) {
                agent.role = Some(printed(ROLE));
            }
            let traits = agent.traits.get_or_insert_default();
            traits.extend(cells.into_iter().map(|FileCell { column, value, .. }| (column, value_of(value))));
            let top = Path::default().key("agents");
            self.tree.insert(&top, usize::MAX, &key, Piece::Taken(*taken));
            cast.insert(key.clone(), Some(agent));
            keys.push(key);
        }
        if keys.is_empty() {
            self.names.partial = true;
        }
        keys
    }
}

/// A value of a table, typed as YAML types it.
fn value_of(value: FileValue) -> Value {
    match value {
        FileValue::Json(value) => value,
        FileValue::Text(text) => match plain(&text) {
            Leaf::Null => Value::Null,
            Leaf::Bool(truth) => truth.into(),
            Leaf::Number(number) => number.into(),
            Leaf::Text(text) => text.into(),
        },
    }
}
