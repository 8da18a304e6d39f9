//! Checks tools: what implements them, how they are described to models, and who may call them.

use super::cases::rows::{FileCell, FileValue, Rows, csv, jsonl};
use super::{Checker, ReadNamed, is_identifier};
use crate::files::FileKind;
use crate::schema::{LongTool, Written, WrittenTool};
use crate::tools::{LookupTable, MAX_CALLS, ToolProgram, too_large};
use crate::{Agent, BuiltIn, Tool, ToolId, ToolKind, ToolSpec};
use greenroom_grammar::{Grammar, MAX_BYTES};
use greenroom_yaml::Path;
use greenroom_yaml::diagnostic::{Diagnostic, Source, Span};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum number of tools of a scenario.
const MAX_TOOLS: usize = 64;
/// Maximum number of rows of a file that is looked up in.
const MAX_ROWS: usize = 10_000;
/// Maximum number of keys of such a file that a model is shown, and their maximum bytes.
const MAX_KEYS_SHOWN: (usize, usize) = (64, 4 << 10);
/// Maximum number of calls that an agent may make in one turn.
const MAX_CALLS_OF_TURN: u64 = 16;
/// Default and maximum seconds of a call of a program.
const TIMEOUT: (u64, u64) = (10, 600);
/// What the calculator can read at all: so a model's calls are arithmetic.
const EXPRESSION: &str = "^([-+*/%^(),. 0-9]|sqrt|abs|round|floor|ceil|min|max){1,100}$";
/// The tools of the program's own, by their names.
const BUILT_IN: &[&str] = &["calculator", "dice", "notes"];

impl Checker {
    /// The tools of a file, with what is in the files that they look up in.
    pub(super) fn read_tools(&mut self, written: &mut Written, read: &ReadNamed<'_>) {
        let path = Path::default().key("tools");
        let written = written.tools.take().unwrap_or_default();
        if written.len() > MAX_TOOLS {
            let message =
                format!("the scenario has {} tools; at most {MAX_TOOLS} are allowed", written.len());
            self.error("too-many", &path, message).help = Some("remove tools that no agent needs".into());
        }
        for (key, tool) in written.into_iter().take(MAX_TOOLS) {
            let path = path.key(key.clone());
            if !is_identifier(&key) || key.len() > 32 {
                let message =
                    format!("`{key}` is not a valid tool name: use at most 32 letters, digits and `_`");
                let help = format!("for example `{}`", super::phases::identifier_from(&key));
                let span = self.tree.key(&path);
                self.push(Diagnostic::error("bad-name", path.to_string(), span, message).help(help));
            }
            let kind = match tool {
                Some(WrittenTool::Text(word)) => self.built_in(&key, &word, None, &path),
                Some(WrittenTool::Long(tool)) => self.tool(&key, *tool, &path, read),
                None => None,
            };
            // One that is wrong keeps its name, so that who may call it is not a second mistake.
            let known = kind.unwrap_or_else(|| calculator(&key, None));
            self.tools.push(Tool { key, path, kind: known });
        }
        self.names_are_apart();
    }

    /// The tools of a server have its name before theirs, so no other tool may have such a name.
    fn names_are_apart(&mut self) {
        let servers = self.tools.iter().filter(|tool| matches!(tool.kind, ToolKind::Server(_)));
        let begins = |tool: &Tool, other: &Tool| {
            other.key.strip_prefix(&tool.key).is_some_and(|rest| rest.starts_with('_'))
        };
        let mixed = |server: &Tool| {
            let other = self.tools.iter().find(|other| begins(server, other))?;
            Some((server.key.clone(), other.key.clone(), other.path.clone()))
        };
        let mixed: Vec<_> = servers.filter_map(mixed).collect();
        for (server, other, path) in mixed {
            let message = format!(
                "`{other}` could be a tool of the server `{server}`, whose tool names begin with `{server}_`"
            );
            self.error("duplicate-name", &path, message).help = Some("give one of them another name".into());
        }
    }

    fn tool(
        &mut self,
        key: &str,
        mut written: LongTool,
        path: &Path,
        read: &ReadNamed<'_>,
    ) -> Option<ToolKind> {
        let about = self.known_text(written.about.take(), &path.key("about"));
        let given = [
            ("built_in", written.built_in.is_some()),
            ("lookup", written.lookup.is_some()),
            ("command", written.command.is_some()),
            ("function", written.function.is_some()),
            ("mcp", written.mcp.is_some()),
        ];
        let mut given = given.iter().filter(|(_, is_there)| *is_there).map(|(field, _)| *field);
        let (kind, second) = (given.next(), given.next());
        let Some(kind) = kind else {
            let broken = ["built_in", "lookup", "command", "function", "mcp"]
                .map(|field| self.is_broken(&path.key(field)));
            if !broken.contains(&true) {
                let message = "a tool needs `built_in`, `lookup`, `command`, `function` or `mcp`";
                self.missing(
                    path,
                    message,
                    "e.g. `sums: calculator` or `prices: { lookup: prices.csv, key: item }`",
                );
            }
            return None;
        };
        if let Some(second) = second {
            let message = format!("`{kind}` and `{second}` exclude each other: they define two tools");
            self.error("contradiction", &path.key(second), message).help =
                Some("give each its own name".into());
            return None;
        }
        for (field, is_there, of) in [
            ("key", written.key.is_some(), &["lookup"][..]),
            ("arguments", written.arguments.is_some(), &["command", "function"]),
            ("only", written.only.is_some(), &["mcp"]),
            ("headers", written.headers.is_some(), &["mcp"]),
        ] {
            if is_there && !of.contains(&kind) {
                let message = format!("`{field}` has no effect here: it belongs to `{}`", of.join("` or `"));
                self.unused(&path.key(field), &message, "remove it");
            }
        }
        if written.timeout.is_some() && !matches!(kind, "command" | "mcp") {
            let message = "`timeout` has no effect here: no program is started";
            self.unused(&path.key("timeout"), message, "remove it");
        }
        match kind {
            "built_in" => {
                let word = written.built_in.take().unwrap_or_default();
                self.built_in(key, &word, about, &path.key("built_in"))
            }
            "lookup" => self.lookup(key, written, about, path, read),
            "command" => {
                let line = self.line(written.command.take(), &path.key("command"));
                let timeout = self.timeout(written.timeout, &path.key("timeout"));
                let spec = self.spec_of(kind, key, written, about, path)?;
                Some(ToolKind::Command(ToolProgram { line: line?, timeout }, spec))
            }
            "function" => {
                let name = written.function.take().unwrap_or_default();
                if !is_identifier(&name) {
                    let message = format!("`{name}` is not the name of a function");
                    self.error("bad-value", &path.key("function"), message).help =
                        Some("use letters, digits and `_`, e.g. `weather`".into());
                }
                let spec = self.spec_of(kind, key, written, about, path)?;
                Some(ToolKind::Function(name, spec))
            }
            _ => self.server(written, about.is_some(), path),
        }
    }

    fn built_in(&mut self, key: &str, word: &str, about: Option<String>, path: &Path) -> Option<ToolKind> {
        match word.trim() {
            "calculator" => Some(calculator(key, about)),
            "dice" => {
                let count = json!({ "type": "integer", "minimum": 1, "maximum": 100 });
                let sides = json!({ "type": "integer", "minimum": 2, "maximum": 1000 });
                let spec = spec(key, about, "Rolls dice.", [("count", count), ("sides", sides)]);
                Some(ToolKind::BuiltIn(BuiltIn::Dice, spec))
            }
            "notes" => {
                let note = json!({ "type": "string", "minLength": 1, "maxLength": 500 });
                let usual = "Writes a note for yourself alone, which you will never forget.";
                Some(ToolKind::BuiltIn(BuiltIn::Notes, spec(key, about, usual, [("note", note)])))
            }
            other => {
                let message = format!("there is no tool `{other}`");
                let known = || {
                    "built-in tools are `calculator`, `dice` and `notes`; other tools need `lookup`, \
                     `command` or `mcp`"
                        .into()
                };
                let help = self.suggest(other, BUILT_IN.iter().copied()).unwrap_or_else(known);
                self.error("bad-value", path, message).help = Some(help);
                None
            }
        }
    }

    fn lookup(
        &mut self,
        key: &str,
        written: LongTool,
        about: Option<String>,
        path: &Path,
        read: &ReadNamed<'_>,
    ) -> Option<ToolKind> {
        let (file, here) = (written.lookup?, path.key("lookup"));
        let is_table = file.ends_with(".csv");
        if !is_table && !file.ends_with(".jsonl") {
            let message = format!("`{file}` can't be a lookup file: its name must end in `.csv` or `.jsonl`");
            self.error("bad-value", &here, message).help = Some(
                "use a table whose first line names columns, or a file with one JSON object per line".into(),
            );
            return None;
        }
        let Some(column) = written.key else {
            let help = "name the column to search, e.g. `key: item`";
            self.missing(path, "a `lookup` needs `key`", help);
            return None;
        };
        let text = self.named_file(&file, "lookup file", FileKind::Cases, &here, read);
        let text = text.map_err(|found| _ = self.push(*found)).ok()?;
        let shown = self.beside(&file);
        let source = self.sources.add(Source { name: shown, text: text.clone() });
        let Rows { rows, faults, .. } = if is_table { csv(&text, MAX_ROWS) } else { jsonl(&text, MAX_ROWS) };
        let is_sound = faults.is_empty();
        for fault in faults {
            let span = Span { file: source, start: fault.start, end: fault.end };
            self.push(Diagnostic::error(fault.code, here.to_string(), span, fault.message).help(fault.help));
        }
        if !is_sound {
            return None;
        }
        if rows.is_empty() {
            self.error("missing", &here, format!("`{file}` has no rows")).help =
                Some("add one row per thing that can be looked up".into());
            return None;
        }
        let mut table = LookupTable { key: column.clone(), rows: BTreeMap::new() };
        for row in rows {
            let mut named = None;
            let mut fields = Map::new();
            for FileCell { column: name, value, .. } in row.cells {
                if name == column {
                    named = Some(value.text());
                }
                fields.insert(name, read_as(value));
            }
            let Some(named) = named else {
                let span = Span { file: source, start: row.start, end: row.end };
                let known: Vec<&str> = fields.keys().map(String::as_str).collect();
                let message = format!("there is no column `{column}` here");
                let help = self.suggest(&column, known.iter().copied());
                let help = help.unwrap_or_else(|| format!("this row has the columns {}", known.join(", ")));
                self.push(
                    Diagnostic::error("unknown-column", path.key("key").to_string(), span, message)
                        .help(help),
                );
                return None;
            };
            table.rows.entry(named).or_default().push(Value::Object(fields));
        }
        let keys: Vec<&String> = table.rows.keys().collect();
        let bytes: usize = keys.iter().map(|key| key.len()).sum();
        let argument = match keys.len() <= MAX_KEYS_SHOWN.0 && bytes <= MAX_KEYS_SHOWN.1 {
            true => json!({ "enum": keys }),
            false => json!({ "type": "string", "minLength": 1, "maxLength": 200 }),
        };
        let usual = format!("Looks up a row by its {column}.");
        let spec = spec(key, about, &usual, [(column.as_str(), argument)]);
        Some(ToolKind::BuiltIn(BuiltIn::Lookup(Arc::new(table)), spec))
    }

    /// How a program or a function is described to models; both must be written.
    fn spec_of(
        &mut self,
        kind: &str,
        key: &str,
        written: LongTool,
        about: Option<String>,
        path: &Path,
    ) -> Option<ToolSpec> {
        let about = about.filter(|about| !about.trim().is_empty());
        if about.is_none() && !self.is_broken(&path.key("about")) {
            self.missing(
                path,
                &format!("a `{kind}` needs `about`"),
                "describe in one sentence what it does: agents read it",
            );
        }
        let Some(arguments) = written.arguments else {
            if !self.is_broken(&path.key("arguments")) {
                let help = "write a JSON Schema, e.g. `arguments: { type: object, properties: { town: \
                            { type: string } }, required: [town] }`";
                self.missing(path, &format!("a `{kind}` needs `arguments`"), help);
            }
            return None;
        };
        let here = path.key("arguments");
        if arguments.get("type").and_then(Value::as_str) != Some("object") {
            let message = "the arguments of a tool must be an object";
            self.error("bad-grammar", &here, message).help =
                Some("e.g. `{ type: object, properties: { town: { type: string } } }`".into());
            return None;
        }
        let relaxed = Grammar::json_schema(&arguments).relaxed();
        match relaxed.and_then(|relaxed| relaxed.grammar.check().map(|()| relaxed)) {
            Ok(relaxed) => self.left_out(&relaxed, &here, "a call that breaks it fails with the reason"),
            Err(error) => {
                self.error("bad-grammar", &here, format!("this schema can't be used: {error}")).help =
                    Some("`docs/patterns.md` lists the supported keywords".into());
                return None;
            }
        }
        Some(ToolSpec { name: key.to_string(), about: about?, arguments })
    }

    /// A program and its arguments.
    pub(super) fn line(&mut self, written: Option<Vec<Option<String>>>, path: &Path) -> Option<Vec<String>> {
        let written = written?;
        let line: Vec<String> = written.iter().flatten().cloned().collect();
        if line.first().is_none_or(|program| program.trim().is_empty()) {
            let message = "expected a program and its arguments";
            self.error("bad-value", path, message).help = Some("e.g. `[python3, weather.py]`".into());
            return None;
        }
        (line.len() == written.len()).then_some(line)
    }

    pub(super) fn timeout(&mut self, written: Option<u64>, path: &Path) -> u64 {
        let (usual, most) = TIMEOUT;
        let seconds = written.unwrap_or(usual);
        if seconds == 0 || seconds > most {
            let message = format!("`timeout` is {seconds}, expected 1 to {most} seconds");
            self.error("bad-value", path, message).help =
                Some(format!("leave it out for the default: {usual}"));
        }
        seconds
    }

    /// The tools that an agent may call, and how many calls it may make in a turn; `path` is the agent's.
    pub(super) fn tools_of(
        &mut self,
        written: Option<Vec<Option<String>>>,
        max_calls: Option<u64>,
        is_played_by_rule: bool,
        path: &Path,
    ) -> (Vec<ToolId>, usize) {
        let here = path.key("tools");
        let mut tools = Vec::new();
        for (at, name) in written.into_iter().flatten().enumerate() {
            let Some(name) = name else { continue };
            match self.tools.iter().position(|tool| tool.key == name).map(ToolId) {
                Some(id) if tools.contains(&id) => {
                    let message = format!("`{name}` appears twice here");
                    self.unused(&here.index(at), &message, "remove one");
                }
                Some(id) => tools.push(id),
                None => {
                    let message = format!("there is no tool `{name}`");
                    let known: Vec<String> = self.tools.iter().map(|tool| tool.key.clone()).collect();
                    let help = self.suggest(&name, known.iter().map(String::as_str));
                    let help = help.unwrap_or_else(|| "declare it under `tools:`".into());
                    self.error("unknown-tool", &here.index(at), message).help = Some(help);
                }
            }
        }
        let specs = tools.iter().filter_map(|id: &ToolId| match &self.tools[id.0].kind {
            ToolKind::BuiltIn(_, spec) | ToolKind::Command(_, spec) | ToolKind::Function(_, spec) => {
                Some(spec)
            }
            ToolKind::Server(_) => None,
        });
        if let Some(bytes) = too_large(specs) {
            let message = format!(
                "the descriptions of these tools take {bytes} bytes in total; at most {MAX_BYTES} are allowed"
            );
            self.error("too-many", &here, message).help =
                Some("shorten the schemas of their arguments, or divide the tools between two agents".into());
        }
        if is_played_by_rule && !tools.is_empty() {
            let message = "an agent with a `strategy` can't call tools";
            self.error("contradiction", &here, message).help = Some("remove `tools` or `strategy`".into());
        }
        let here = path.key("max_calls");
        match max_calls {
            Some(_) if tools.is_empty() => {
                self.unused(&here, "`max_calls` has no effect here: the agent has no tools", "remove it");
            }
            Some(n) if n == 0 || n > MAX_CALLS_OF_TURN => {
                let message =
                    format!("`max_calls` is {n}, expected 1 to {MAX_CALLS_OF_TURN} calls in a turn");
                self.error("bad-value", &here, message).help =
                    Some(format!("leave it out for the default: {MAX_CALLS}, or none without `tools`"));
            }
            _ => {}
        }
        (tools, max_calls.map_or(MAX_CALLS, |n| n.min(MAX_CALLS_OF_TURN) as usize))
    }

    /// Warns of tools that no agent may call.
    pub(super) fn tools_are_used(&mut self, agents: &[Agent]) {
        let called = |at: usize| agents.iter().any(|agent| agent.tools.contains(&ToolId(at)));
        let idle: Vec<(String, Path)> = (0..self.tools.len())
            .filter(|at| !called(*at))
            .map(|at| (self.tools[at].key.clone(), self.tools[at].path.clone()))
            .collect();
        for (key, path) in idle {
            let message = format!("no agent can call `{key}`");
            self.unused(&path, &message, "list it under an agent's `tools`, or remove it");
        }
    }
}

fn calculator(key: &str, about: Option<String>) -> ToolKind {
    let expression = json!({ "type": "string", "pattern": EXPRESSION });
    let usual = "Works out an arithmetic expression, such as (3 + 4) * 2.";
    ToolKind::BuiltIn(BuiltIn::Calculator, spec(key, about, usual, [("expression", expression)]))
}

fn spec<const N: usize>(
    key: &str,
    about: Option<String>,
    usual: &str,
    arguments: [(&str, Value); N],
) -> ToolSpec {
    let required: Vec<&str> = arguments.iter().map(|(name, _)| *name).collect();
    let properties: Map<String, Value> =
        arguments.iter().map(|(name, schema)| ((*name).to_string(), schema.clone())).collect();
    let arguments = json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    });
    ToolSpec { name: key.to_string(), about: about.unwrap_or_else(|| usual.to_string()), arguments }
}

/// A cell as a result shows it: a table's numbers as numbers.
fn read_as(value: FileValue) -> Value {
    let text = value.text();
    value.typed(&Value::Null).unwrap_or(Value::String(text))
}
