//! The outline of a scenario: its agents, phases and blocks, and what else has a name.

use super::document::{Document, range};
use crate::diagnostic::Source;
use crate::scenario::{Path, Tree};
use lsp_types::{DocumentSymbol, SymbolKind};
use serde_json::Value;

/// Fields whose keys are names, the kind of these, and the field that describes one.
const FIELDS: [(&str, SymbolKind, Option<&str>); 8] = [
    ("variables", SymbolKind::CONSTANT, None),
    ("state", SymbolKind::VARIABLE, None),
    ("let", SymbolKind::FUNCTION, None),
    ("models", SymbolKind::MODULE, None),
    ("tools", SymbolKind::INTERFACE, None),
    ("agents", SymbolKind::OBJECT, Some("display_name")),
    ("judges", SymbolKind::EVENT, Some("ask")),
    ("outcome", SymbolKind::PROPERTY, None),
];
/// Longest detail, in characters.
const DETAIL: usize = 60;

/// The symbols of a document, in the order of its fields.
pub(super) fn outline(document: &Document) -> Vec<DocumentSymbol> {
    let source = document.source();
    let (tree, _) = Tree::read(&source, 0);
    let outline = Outline { tree: &tree, source: &source };
    let fields = tree.keys().into_iter().flatten().filter_map(|field| {
        let path = Path::default().key(field);
        if field == "phases" {
            return outline.symbol(&path, field, SymbolKind::NAMESPACE, String::new(), outline.phases(&path));
        }
        let (_, kind, about) = FIELDS.into_iter().find(|(name, ..)| *name == field)?;
        let below = tree.keys_at(&path).into_iter().filter_map(|key| {
            let path = path.key(&*key);
            let value = about.map_or(tree.json_at(&path), |field| tree.json_at(&path.key(field)));
            outline.symbol(&path, &key, kind, detail(&value), Vec::new())
        });
        outline.symbol(&path, field, SymbolKind::NAMESPACE, String::new(), below.collect())
    });
    fields.collect()
}

struct Outline<'a> {
    tree: &'a Tree,
    source: &'a Source,
}

impl Outline<'_> {
    /// A key, or an item of a list, with its value.
    fn symbol(
        &self,
        path: &Path,
        name: &str,
        kind: SymbolKind,
        detail: String,
        children: Vec<DocumentSymbol>,
    ) -> Option<DocumentSymbol> {
        let extent = self.tree.extent(&self.source.text, path)?;
        let key = self.tree.key(path);
        // An item has no key: it is selected where it begins.
        let selected = if extent.end < key.end { extent } else { key };
        #[allow(deprecated, reason = "the type has the field, without a default")]
        let symbol = DocumentSymbol {
            // The protocol has no symbols without a name.
            name: if name.is_empty() { "?".into() } else { name.to_owned() },
            detail: Some(detail).filter(|detail| !detail.is_empty()),
            kind,
            tags: None,
            deprecated: None,
            range: range(self.source, extent),
            selection_range: range(self.source, selected),
            children: Some(children).filter(|children| !children.is_empty()),
        };
        Some(symbol)
    }

    /// The phases and blocks of a list.
    fn phases(&self, list: &Path) -> Vec<DocumentSymbol> {
        let text = |path: &Path| detail(&self.tree.json_at(path));
        let parts = (0..self.tree.n_items(list)).filter_map(|at| {
            let path = list.index(at);
            let below = path.key("phases");
            if self.tree.find(&below).is_some() {
                let name = format!("repeat {}", text(&path.key("repeat")));
                return self.symbol(
                    &path,
                    name.trim(),
                    SymbolKind::NAMESPACE,
                    String::new(),
                    self.phases(&below),
                );
            }
            let name = text(&path.key("name"));
            let label = text(&path.key("label"));
            let mut symbol = self.symbol(&path, &name, SymbolKind::EVENT, label, Vec::new())?;
            if self.tree.find(&path.key("name")).is_some() {
                symbol.selection_range = range(self.source, self.tree.value(&path.key("name")));
            }
            Some(symbol)
        });
        parts.collect()
    }
}

/// A value on one line; nothing for null.
fn detail(value: &Value) -> String {
    let text = match value {
        Value::Null => String::new(),
        Value::String(text) => text.split_whitespace().collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    };
    match text.char_indices().nth(DETAIL) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
