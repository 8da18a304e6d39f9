//! The places of a file's keys and values, for queries by place: an editor's.

use super::path::Path;
use super::scalar::Leaf;
use super::tree::{Data, Tree};
use crate::diagnostic::Span;

/// A key or a value that is in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePlace {
    /// Path of the value; of a key that of its value.
    pub path: Path,
    /// Its place.
    pub span: Span,
    /// True of a key.
    pub is_key: bool,
    /// The text, of a key or of a value that is text.
    pub text: Option<String>,
}

impl Tree {
    /// All keys and values, each after what it is in. What an alias repeats is listed once more, in its first
    /// place.
    pub fn places(&self) -> Vec<NodePlace> {
        let mut places = Vec::new();
        let mut left: Vec<(Path, usize)> =
            self.root().map(|root| (Path::default(), root)).into_iter().collect();
        while let Some((path, node)) = left.pop() {
            let (span, mut text) = (self.span(node), None);
            let mut inner = Vec::new();
            match self.data(node) {
                Data::Leaf(Leaf::Text(leaf)) => text = Some(leaf.clone()),
                Data::Leaf(_) => {}
                Data::Seq(items) => {
                    inner.extend(items.iter().enumerate().map(|(at, node)| (path.index(at), *node)));
                }
                Data::Map(entries) => {
                    let keys = entries.iter().map(|entry| NodePlace {
                        path: path.key(&*entry.key),
                        span: entry.span,
                        is_key: true,
                        text: Some(entry.key.clone()),
                    });
                    places.extend(keys);
                    inner.extend(entries.iter().map(|entry| (path.key(&*entry.key), entry.node)));
                }
            }
            places.push(NodePlace { path, span, is_key: false, text });
            left.extend(inner.into_iter().rev());
        }
        places
    }

    /// The innermost key or value at a byte of the `file`-th source.
    pub fn at(&self, file: usize, byte: usize) -> Option<NodePlace> {
        let holds = |place: &NodePlace| {
            let Span { file: in_file, start, end } = place.span;
            in_file == file && (start..=end).contains(&byte)
        };
        let places = self.places().into_iter().filter(holds);
        // Of two that meet there, the one that begins.
        places.min_by_key(|place| (place.span.end - place.span.start, std::cmp::Reverse(place.span.start)))
    }
}
