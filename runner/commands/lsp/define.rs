//! Where a name is defined.

use super::document::{Document, range};
use super::names::{Symbol, phases, referent};
use crate::scenario::{Path, Tree};
use lsp_types::{Location, Range};

/// The place that the name at a byte refers to.
pub(super) fn definition(document: &Document, offset: usize) -> Option<Location> {
    let (tree, _) = Tree::read(&document.source(), 0);
    let key = |field: &str, name: &str| Path::default().key(field).key(name);
    match referent(document, &tree, offset)? {
        Symbol::Agent(name) => at_key(document, &tree, &key("agents", &name)),
        Symbol::Model(name) => at_key(document, &tree, &key("models", &name)),
        Symbol::Tool(name) => at_key(document, &tree, &key("tools", &name)),
        Symbol::Value(field, name) => at_key(document, &tree, &key(field, &name)),
        Symbol::Phase(name) => {
            let phase = phases(&tree).into_iter().find(|phase| phase.text.as_ref() == Some(&name))?;
            Some(document.location(phase.span))
        }
        Symbol::File(name) => Some(Location { uri: document.beside(&name)?, range: Range::default() }),
    }
}

/// The key at a path: in the text, or in a file that the scenario includes.
fn at_key(document: &Document, tree: &Tree, path: &Path) -> Option<Location> {
    if tree.find(path).is_some() {
        return Some(document.location(tree.key(path)));
    }
    let scenario = document.scenario.as_ref()?;
    scenario.tree.find(path)?;
    let span = scenario.tree.key(path);
    let source = scenario.sources.of(span);
    Some(Location { uri: document.beside(&source.name)?, range: range(source, span) })
}
