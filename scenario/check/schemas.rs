//! Reads schemas of replies that are in files of their own: from here on they are treated as part of the
//! scenario.

use super::{Checker, ReadNamed};
use crate::files::FileKind;
use crate::schema::{LongAnswer, Written, WrittenAnswer, WrittenAssertion, WrittenPart};
use greenroom_yaml::diagnostic::{Diagnostic, Source, Span};
use greenroom_yaml::{Path, repeated_key};
use serde_json::Value;
use std::collections::BTreeMap;

impl Checker {
    /// Replaces names of files by their content; each file is read once.
    pub(super) fn read_schemas(&mut self, written: &mut Written, read: &ReadNamed<'_>) {
        let mut known: BTreeMap<String, Option<Value>> = BTreeMap::new();
        for (answer, path) in answers(written) {
            let path = path.key("schema");
            let Some(Value::String(file)) = &answer.schema else { continue };
            let file = file.clone();
            answer.schema = match known.get(&file) {
                Some(schema) => schema.clone(),
                None => self.schema_of(&file, &path, read),
            };
            known.insert(file, answer.schema.clone());
        }
    }

    fn schema_of(&mut self, file: &str, path: &Path, read: &ReadNamed<'_>) -> Option<Value> {
        if !file.ends_with(".json") {
            let message = format!("expected a schema, or the name of a `.json` file, found `{file}`");
            self.error("type", path, message).help =
                Some("e.g. `schema: { type: integer }` or `schema: price.json`".into());
            return None;
        }
        let text = self.named_file(file, "schema", FileKind::Schema, path, read);
        let text = text.map_err(|found| _ = self.push(*found)).ok()?;
        let name = self.beside(file);
        let source = self.sources.add(Source { name, text: text.clone() });
        let wrong = |at: usize, message: String| {
            let span = Span { file: source, start: at, end: at };
            let help = "write a schema as one JSON object, e.g. `{ \"type\": \"integer\" }`";
            Diagnostic::error("json", path.to_string(), span, message).help(help)
        };
        let found = match serde_json::from_str::<Value>(&text) {
            Ok(schema) if schema.is_object() => match repeated_key(&text) {
                None => return Some(schema),
                Some(twice) => wrong(0, twice),
            },
            Ok(_) => wrong(0, "expected a JSON object".into()),
            Err(error) => {
                let lines = text.split_inclusive('\n').take(error.line().saturating_sub(1));
                let begin: usize = lines.map(str::len).sum();
                let column = text[begin..].char_indices().nth(error.column().saturating_sub(1));
                let at = column.map_or(text.len(), |(at, _)| begin + at);
                let words = error.to_string();
                let words = words.split(" at line ").next().unwrap_or_default();
                wrong(at, format!("invalid JSON: {words}"))
            }
        };
        self.push(found);
        None
    }
}

/// All answers with settings, with their places.
fn answers(written: &mut Written) -> Vec<(&mut LongAnswer, Path)> {
    let mut found = Vec::new();
    let top = Path::default();
    of_parts(written.phases.as_deref_mut().unwrap_or_default(), &top.key("phases"), &mut found);
    for (name, judge) in written.judges.iter_mut().flatten() {
        let path = top.key("judges").key(name.clone());
        found.extend(judge.as_mut().and_then(|judge| long(&mut judge.answer, path)));
    }
    for (at, assertion) in written.assertions.iter_mut().flatten().enumerate() {
        let Some(WrittenAssertion::Long(assertion)) = assertion else { continue };
        let path = top.key("assertions").index(at).key("judge");
        found.extend(assertion.judge.as_mut().and_then(|judge| long(&mut judge.answer, path)));
    }
    found
}

fn of_parts<'w>(
    parts: &'w mut [Option<WrittenPart>],
    path: &Path,
    found: &mut Vec<(&'w mut LongAnswer, Path)>,
) {
    for (at, part) in parts.iter_mut().enumerate() {
        let path = path.index(at);
        match part {
            Some(WrittenPart::Block(block)) => {
                of_parts(block.phases.as_deref_mut().unwrap_or_default(), &path.key("phases"), found);
            }
            Some(WrittenPart::Phase(phase)) => {
                found.extend(long(&mut phase.answer, path.clone()));
                for (n, turn) in phase.turns.iter_mut().flatten().enumerate() {
                    let path = path.key("turns").index(n);
                    found.extend(turn.as_mut().and_then(|turn| long(&mut turn.answer, path)));
                }
            }
            None => {}
        }
    }
}

fn long(answer: &mut Option<WrittenAnswer>, path: Path) -> Option<(&mut LongAnswer, Path)> {
    match answer {
        Some(WrittenAnswer::Long(long)) => Some((long, path.key("answer"))),
        _ => None,
    }
}
