//! Lines of a diff of two texts.

use crate::diagnostic::printable;
use similar::{ChangeTag, TextDiff};

/// Longest texts that are compared, both together, in bytes: the work grows with the square of what differs.
const MAX_COMPARED: usize = 400_000;

/// The lines of two texts, `-` before those of the first alone, `+` before those of the second alone, a space
/// before common ones, of which three are kept around each difference.
pub fn diff_lines(recorded: &str, now: &str) -> Vec<(char, String)> {
    if recorded.len() + now.len() > MAX_COMPARED {
        let (was, is) = (recorded.len(), now.len());
        return vec![(' ', format!("(texts of {was} and {is} bytes are too long to compare line by line)"))];
    }
    let (recorded, now) = (printable(recorded), printable(now));
    let diff = TextDiff::from_lines(&recorded, &now);
    let mut lines = Vec::new();
    for (at, group) in diff.grouped_ops(3).iter().enumerate() {
        if at > 0 {
            lines.push((' ', "…".to_string()));
        }
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let sign = match change.tag() {
                ChangeTag::Delete => '-',
                ChangeTag::Insert => '+',
                ChangeTag::Equal => ' ',
            };
            lines.push((sign, change.value().trim_end_matches('\n').to_string()));
        }
    }
    lines
}
