//! Changes that an editor can make: what a diagnostic suggests.

use super::document::{Document, range};
use lsp_types::{CodeAction, CodeActionKind, Range, TextEdit, WorkspaceEdit};
use std::collections::HashMap;

/// Changes for the diagnostics in a range.
pub(super) fn fixes(document: &Document, wanted: Range) -> Vec<CodeAction> {
    let Some(report) = document.report.as_ref() else { return Vec::new() };
    let source = report.sources.main();
    let touches = |at: Range| at.start <= wanted.end && wanted.start <= at.end;
    let found = report.diagnostics.iter().filter(|found| found.span.file == 0);
    let found = found.filter(|found| touches(range(source, found.span)));
    let replacements = found.flat_map(|found| found.replacements(source));
    replacements
        .map(|(span, name)| {
            let edit = TextEdit { range: range(source, span), new_text: name.clone() };
            // A mapping of the protocol, by address.
            #[allow(clippy::mutable_key_type)]
            let changes = HashMap::from([(document.uri().clone(), vec![edit])]);
            CodeAction {
                title: format!("Replace with `{name}`"),
                kind: Some(CodeActionKind::QUICKFIX),
                edit: Some(WorkspaceEdit { changes: Some(changes), ..WorkspaceEdit::default() }),
                ..CodeAction::default()
            }
        })
        .collect()
}
