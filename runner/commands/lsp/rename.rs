//! Renaming: every place of a name in a file, or a reason why not.
//!
//! The changed text is read and checked before it is offered: the same names must stand in the same places,
//! and `check` must find what it found, and the same turns.

use super::document::{Document, range};
use super::names::Symbol;
use super::occurrences::{Occurrence, Role, at, occurrences};
use crate::diagnostic::{Diagnostic, Report, Severity};
use crate::rehearsal::open_text;
use crate::scenario::{Loaded, Scenario, Tree, is_identifier};
use lsp_types::{PrepareRenameResponse, TextEdit, WorkspaceEdit};
use std::collections::HashMap;
use std::path::Path;

/// The name at a byte, if it can be renamed.
///
/// # Errors
/// Why it can't be.
pub(super) fn prepare(document: &Document, offset: usize) -> Result<PrepareRenameResponse, String> {
    let (tree, _) = Tree::read(&document.source(), 0);
    let (here, _) = renamable(document, &tree, offset)?;
    let range = range(&document.source(), here.span);
    Ok(PrepareRenameResponse::RangeWithPlaceholder { range, placeholder: here.symbol.name().to_owned() })
}

/// The changes that give the name at a byte another one.
///
/// # Errors
/// Why it can't have that name, or none but its own.
pub(super) fn rename(
    document: &Document,
    root: Option<&Path>,
    offset: usize,
    name: &str,
) -> Result<WorkspaceEdit, String> {
    let (tree, _) = Tree::read(&document.source(), 0);
    let (here, places) = renamable(document, &tree, offset)?;
    if here.symbol.name() == name {
        return Ok(WorkspaceEdit::default());
    }
    if !is_identifier(name) {
        return Err(format!(
            "`{name}` is not a valid name: use letters, digits and `_`, and begin with a letter or `_`"
        ));
    }
    let before = occurrences(document, &tree);
    let taken = before.iter().find(|found| {
        found.role == Role::Definition
            && found.symbol.name() == name
            && is_shared(&found.symbol, &here.symbol)
    });
    if let Some(taken) = taken {
        let line = line_of(document, taken);
        return Err(format!("`{name}` is already the name of {} (line {line})", taken.symbol.kind()));
    }
    let text = replaced(&document.text, &places, name);
    let loaded = open_text(&document.path, &text, root, &[]).map_err(|error| format!("{error:#}"))?;
    keeps_plan(document, &loaded, name)?;
    keeps_names(document, &before, &document.with(text, loaded.scenario), &here.symbol, name)?;
    let edits = places
        .iter()
        .map(|place| TextEdit { range: range(&document.source(), place.span), new_text: name.to_owned() });
    // A mapping of the protocol, by address.
    #[allow(clippy::mutable_key_type)]
    let changes = HashMap::from([(document.uri().clone(), edits.collect())]);
    Ok(WorkspaceEdit { changes: Some(changes), ..WorkspaceEdit::default() })
}

/// The occurrence at a byte and all of the same name, if each can be rewritten.
fn renamable(
    document: &Document,
    tree: &Tree,
    offset: usize,
) -> Result<(Occurrence, Vec<Occurrence>), String> {
    let here = at(document, tree, offset).ok_or("there is no name here that can be changed")?;
    let (symbol, name) = (&here.symbol, here.symbol.name());
    if matches!(symbol, Symbol::File(_) | Symbol::Filter(_) | Symbol::Function(_)) {
        return Err(format!("`{name}` is {}, which can't be renamed here", symbol.kind()));
    }
    let report = document.report.as_ref().filter(|report| report.n_errors() == 0);
    let report = report.ok_or("the scenario has errors: correct them first")?;
    if report.diagnostics.iter().any(|found| found.code == "older") {
        return Err("this file is of an earlier edition: rewrite it with `greenroom migrate` first".into());
    }
    let found = occurrences(document, tree).into_iter();
    let places: Vec<Occurrence> = found.filter(|found| found.symbol == *symbol).collect();
    if !places.iter().any(|place| place.role == Role::Definition) {
        return Err(format!(
            "`{name}` is not defined in this file, and other scenarios may use its definition"
        ));
    }
    for place in &places {
        let line = line_of(document, place);
        match place.role {
            Role::Definition | Role::Use => {}
            Role::Possible => {
                return Err(format!(
                    "the text `{name}` in line {line} may mean the agent or something else: rename by hand"
                ));
            }
            Role::Escaped => {
                return Err(format!(
                    "`{name}` is in a text with escapes in line {line}: write the text without them first"
                ));
            }
        }
    }
    Ok((here, places))
}

/// True of names that texts and expressions could not tell apart.
fn is_shared(one: &Symbol, other: &Symbol) -> bool {
    let group = |symbol: &Symbol| match symbol {
        Symbol::Model(_) => 1,
        Symbol::Tool(_) => 2,
        Symbol::Value("outcome", _) => 3,
        _ => 0,
    };
    group(one) == group(other)
}

fn line_of(document: &Document, place: &Occurrence) -> u32 {
    document.location(place.span).range.start.line + 1
}

/// The text with a name at the places.
fn replaced(text: &str, places: &[Occurrence], name: &str) -> String {
    let mut text = text.to_owned();
    for place in places.iter().rev() {
        text.replace_range(place.span.start..place.span.end, name);
    }
    text
}

/// The changed text has the same names in the same order, but for the one.
fn keeps_names(
    document: &Document,
    before: &[Occurrence],
    changed: &Document,
    symbol: &Symbol,
    name: &str,
) -> Result<(), String> {
    let (tree, _) = Tree::read(&changed.source(), 0);
    let after = occurrences(changed, &tree);
    let expected = before.iter().map(|found| match found.symbol == *symbol {
        true => (symbol.renamed(name), found.role),
        false => (found.symbol.clone(), found.role),
    });
    let mut after = after.iter();
    for (found, expected) in before.iter().zip(expected) {
        let same = after.next().is_some_and(|other| (&other.symbol, other.role) == (&expected.0, expected.1));
        if !same {
            let line = line_of(document, found);
            return Err(format!("`{name}` would mean something else in line {line}"));
        }
    }
    match after.next() {
        Some(more) => Err(format!("`{name}` already stands in line {}", line_of(changed, more))),
        None => Ok(()),
    }
}

/// `check` finds nothing in the changed text that it does not find now, and the same turns.
fn keeps_plan(document: &Document, loaded: &Loaded, name: &str) -> Result<(), String> {
    if let Some(found) = document.report.as_ref().and_then(|report| new_finding(report, &loaded.report)) {
        return Err(format!("with the name `{name}`, `check` reports: {}", found.message));
    }
    let (Some(before), Some(after)) = (&document.scenario, &loaded.scenario) else {
        return Err("the scenario can't be played".into());
    };
    if !is_same_plan(before, after) {
        return Err(format!("with the name `{name}`, other turns would be played"));
    }
    Ok(())
}

/// A diagnostic of a kind of which there were fewer.
fn new_finding<'r>(before: &Report, after: &'r Report) -> Option<&'r Diagnostic> {
    let n = |report: &Report, code: &str, severity: Severity| {
        let found = report.diagnostics.iter();
        found.filter(|found| found.code == code && found.severity == severity).count()
    };
    let is_new = |found: &&Diagnostic| {
        let Diagnostic { code, severity, .. } = **found;
        n(after, code, severity) > n(before, code, severity)
    };
    after.diagnostics.iter().find(is_new)
}

/// True of plans with the same turns, whatever the names in them.
fn is_same_plan(one: &Scenario, other: &Scenario) -> bool {
    let names = |scenario: &Scenario| (scenario.agents.len(), scenario.phases.len(), scenario.lets.len());
    let (one_plan, other_plan) = (one.plan(), other.plan());
    names(one) == names(other)
        && one_plan.order().count() == other_plan.order().count()
        && one_plan.order().zip(other_plan.order()).all(|((_, one), (_, other))| {
            (one.phase, one.round, one.speaker, one.timeline, one.known, one.purpose)
                == (other.phase, other.round, other.speaker, other.timeline, other.known, other.purpose)
                && (&one.inputs, &one.audience, one.guard.len())
                    == (&other.inputs, &other.audience, other.guard.len())
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::lsp::document::uri;
    use std::collections::BTreeMap;
    use std::path::PathBuf;
    use std::sync::Mutex;

    fn opened(path: &Path, text: &str) -> Document {
        let mut document = Document::new(&uri(path).unwrap(), text.to_owned()).unwrap();
        document.check(None);
        document
    }

    /// The text after a renaming.
    fn renamed(document: &Document, at: usize, name: &str) -> Result<String, String> {
        let edit = rename(document, None, at, name)?;
        let mut edits = edit.changes.into_iter().flatten().flat_map(|(_, edits)| edits).collect::<Vec<_>>();
        edits.sort_by_key(|edit| std::cmp::Reverse(edit.range.start));
        let mut text = document.text.clone();
        for edit in edits {
            let bytes = document.offset(edit.range.start)..document.offset(edit.range.end);
            text.replace_range(bytes, &edit.new_text);
        }
        Ok(text)
    }

    /// Renames every name of a file and renames it back; the reasons why some can't be.
    fn there_and_back(path: &Path, part: usize) -> Vec<String> {
        let text = crate::files::read_text(path, crate::files::FileKind::Scenario).unwrap();
        let document = opened(path, &text);
        if document.report.is_none() {
            // A part that others include.
            return Vec::new();
        }
        assert_eq!(document.report.as_ref().map(Report::n_errors), Some(0), "{}", path.display());
        let (tree, _) = Tree::read(&document.source(), 0);
        let found = occurrences(&document, &tree).into_iter();
        let defined = found.filter(|found| found.role == Role::Definition).enumerate();
        let mut refused = Vec::new();
        for (_, own) in defined.filter(|(n, _)| n % part == 0) {
            let name = own.symbol.name();
            let there = match renamed(&document, own.span.start, "quite_new_1") {
                Ok(there) => there,
                Err(reason) => {
                    refused.push(format!("{name}: {reason}"));
                    continue;
                }
            };
            // A name that is left over would be an error, or be found by the next reader of the file.
            let there = opened(path, &there);
            let (new, old) = (there.report.as_ref().unwrap(), document.report.as_ref().unwrap());
            assert!(
                new_finding(old, new).is_none(),
                "{}: {name}: {:?}",
                path.display(),
                new_finding(old, new)
            );
            let (tree, _) = Tree::read(&there.source(), 0);
            let symbol = own.symbol.renamed("quite_new_1");
            let place = occurrences(&there, &tree).into_iter().find(|found| found.symbol == symbol);
            let back = renamed(&there, place.unwrap().span.start, name);
            assert!(back.as_ref() == Ok(&text), "{}: {name}: {back:?}", path.display());
        }
        refused
    }

    #[test]
    fn every_name_can_be_renamed_and_renamed_back() {
        let part = if std::env::var_os("GREENROOM_DEEP").is_some() { 1 } else { 16 };
        let mut files = Vec::new();
        for folder in ["scenarios", "tests/scenarios"] {
            let found = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
            let mut found: Vec<PathBuf> =
                found.filter(|path| path.extension().is_some_and(|of| of == "yaml")).collect();
            found.sort();
            files.append(&mut found);
        }
        let (left, refused) = (Mutex::new(files.iter().enumerate()), Mutex::new(BTreeMap::new()));
        let work = || {
            while let Some((at, path)) = { left.lock().unwrap().next() } {
                let file = path.file_name().unwrap().display();
                let reasons =
                    there_and_back(path, part).into_iter().map(|reason| format!("{file}: {reason}"));
                let reasons: Vec<String> = reasons.collect();
                refused.lock().unwrap().insert(at, reasons);
            }
        };
        std::thread::scope(|scope| {
            (0..std::thread::available_parallelism().map_or(1, usize::from))
                .for_each(|_| drop(scope.spawn(work)));
        });
        let refused: Vec<String> = refused.into_inner().unwrap().into_values().flatten().collect();
        if part == 1 {
            insta::assert_snapshot!(refused.join("\n"));
        }
    }

    const SCENARIO: &str = "\
state: { money: 0, next: ann }
variables: { odd: [1], stake: 3 }
agents:
  ann: {}
  ben: { system_prompt: \"You are {{ me }}.\" }
  cas:
phases:
  - name: talk
    agents: [ann, ben]
    prompt: \"{% for one in odd %}{{ one }} {{ stake }}{% endfor %}\"
    ask: Round {{ round }} of {{ rounds }}.
";

    /// The reason why a name, at its first place, can't be another one.
    fn reason(name: &str, new: &str) -> String {
        let text = SCENARIO.to_owned();
        let at = text.find(name).unwrap();
        renamed(&opened(Path::new("pot.yaml"), &text), at, new).expect_err(new)
    }

    #[test]
    fn what_can_not_be_renamed_has_a_reason() {
        for (name, new, expected) in [
            ("money", "a b", "`a b` is not a valid name"),
            ("money", "talk", "`talk` is already the name of a phase (line 8)"),
            ("money", "random", "`random` is"),
            ("stake", "one", "`one` would mean something else in line 10"),
            ("money", "round", "`round` already stands in line 11"),
            ("stake", "true", "`true`"),
            ("ann", "dot", "the text `ann` in line 1 may mean the agent"),
            ("cas", "nobody", "with the name `nobody`, `check` reports"),
            ("prompt", "x", "there is no name here"),
        ] {
            let reason = reason(name, new);
            assert!(reason.contains(expected), "{name} {new}: {reason}");
        }
    }
}
