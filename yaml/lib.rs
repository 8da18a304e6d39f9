//! YAML in one reading: a tree of values, each with its place (`tree`), serde's way into it (`deserialize`),
//! and [`diagnostic`]s that point into the text.
//!
//! The events come from saphyr-parser. No reader of its kind does what a scenario's author needs: saphyr's
//! own tree ends at the first key that appears twice, and so does serde-saphyr, which has no tree; here all
//! mistakes of a file are reported at once.
#![forbid(unsafe_code)]

mod deserialize;
pub mod diagnostic;
mod edit;
mod explain;
mod path;
mod place;
mod rewrite;
mod scalar;
mod tree;

pub use deserialize::{ExpectedValue, FoundValue, NodeReader, Wrong};
pub use edit::{Piece, Taken};
pub use path::{Path, PathStep};
pub use place::NodePlace;
pub use scalar::{Leaf, plain};
pub use tree::Tree;

use crate::diagnostic::Source;

/// A key that appears twice in one mapping of a text, JSON included, and where.
pub fn repeated_key(text: &str) -> Option<String> {
    let source = Source { name: String::new(), text: text.to_string() };
    let (_, found) = Tree::read(&source, 0);
    let found = found.into_iter().find(|found| found.code == "duplicate-key")?;
    let (line, column) = source.position(found.span.start);
    Some(format!("{} (line {line}, column {column})", found.message))
}

/// The data of a YAML text that is not a scenario: an override, a file of another program.
///
/// # Errors
/// As text, what is wrong with it.
pub fn parse(text: &str) -> Result<serde_json::Value, String> {
    let source = Source { name: String::new(), text: text.to_string() };
    let (tree, found) = Tree::read(&source, 0);
    if let Some(mistake) = found.first() {
        let (line, column) = source.position(mistake.span.start);
        return Err(format!("{} (line {line}, column {column})", mistake.message));
    }
    let mut value = tree.json();
    value.sort_all_objects();
    Ok(value)
}
