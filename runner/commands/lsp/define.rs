//! Where a name is defined, and where it is used.

use super::document::{Document, range};
use super::names::Symbol;
use super::occurrences::{Occurrence, Role, at, occurrences};
use crate::scenario::{Path, Tree};
use lsp_types::{DocumentHighlight, DocumentHighlightKind, Location, Range};

/// The place that the name at a byte refers to.
pub(super) fn definition(document: &Document, offset: usize) -> Option<Location> {
    let (tree, _) = Tree::read(&document.source(), 0);
    let symbol = at(document, &tree, offset)?.symbol;
    if let Symbol::File(name) = &symbol {
        return Some(Location { uri: document.beside(name)?, range: Range::default() });
    }
    let mut found = occurrences(document, &tree).into_iter();
    let own = found.find(|found| found.symbol == symbol && found.role == Role::Definition);
    own.map(|own| document.location(own.span)).or_else(|| elsewhere(document, &symbol))
}

/// The definition in a file that the scenario includes.
fn elsewhere(document: &Document, symbol: &Symbol) -> Option<Location> {
    let field = match symbol {
        Symbol::Agent(_) => "agents",
        Symbol::Model(_) => "models",
        Symbol::Value(field, _) => field,
        _ => return None,
    };
    let path = Path::default().key(field).key(symbol.name());
    let scenario = document.scenario.as_ref()?;
    scenario.tree.find(&path)?;
    let span = scenario.tree.key(&path);
    let source = scenario.sources.of(span);
    Some(Location { uri: document.beside(&source.name)?, range: range(source, span) })
}

/// All uses of the name at a byte, with its definition if that is wanted.
pub(super) fn references(document: &Document, offset: usize, with_definition: bool) -> Vec<Location> {
    let wanted = |role: Role| match role {
        Role::Definition => with_definition,
        Role::Use | Role::Escaped => true,
        Role::Possible => false,
    };
    let found = same(document, offset).into_iter().filter(|found| wanted(found.role));
    found.map(|found| document.location(found.span)).collect()
}

/// The places of the name at a byte, to be highlighted; texts that may be an agent's key as texts.
pub(super) fn highlights(document: &Document, offset: usize) -> Vec<DocumentHighlight> {
    let kind = |role: Role| match role {
        Role::Definition => DocumentHighlightKind::WRITE,
        Role::Use | Role::Escaped => DocumentHighlightKind::READ,
        Role::Possible => DocumentHighlightKind::TEXT,
    };
    let found = same(document, offset).into_iter();
    found
        .map(|found| DocumentHighlight {
            range: document.location(found.span).range,
            kind: Some(kind(found.role)),
        })
        .collect()
}

/// The occurrences of the name at a byte.
fn same(document: &Document, offset: usize) -> Vec<Occurrence> {
    let (tree, _) = Tree::read(&document.source(), 0);
    let Some(wanted) = at(document, &tree, offset) else { return Vec::new() };
    let found = occurrences(document, &tree).into_iter();
    found.filter(|found| found.symbol == wanted.symbol).collect()
}
