//! Shows what differs between a recording and what would be read now.

use crate::diagnostic::printable;
use crate::transcript::Drift;
use console::Style;
use similar::{ChangeTag, TextDiff};
use std::fmt::Write as _;

/// Lines of a diff, `-` as recorded and `+` as it is now, in colour for a terminal.
pub fn show_diff(recorded: &str, now: &str, fancy: bool) -> String {
    let (recorded, now) = (printable(recorded), printable(now));
    let diff = TextDiff::from_lines(&recorded, &now);
    let mut out = String::new();
    for change in diff.iter_all_changes() {
        let (sign, style) = match change.tag() {
            ChangeTag::Delete => ("-", Style::new().red()),
            ChangeTag::Insert => ("+", Style::new().green()),
            ChangeTag::Equal => (" ", Style::new().dim()),
        };
        let line = format!("{sign} {}", change.value().trim_end_matches('\n'));
        let line = if fancy { style.force_styling(true).apply_to(line).to_string() } else { line };
        // Writing to a String can't fail.
        let _ = writeln!(out, "  {line}");
    }
    out
}

/// A drift in words: which turn, why, from where, and the difference.
pub fn report_drift(file: &str, drift: &Drift, origin: Option<(&str, &str, usize)>, fancy: bool) -> String {
    let mut out = String::new();
    let line = drift.line.map_or(String::new(), |line| format!(":{line}"));
    let _ = writeln!(out, "{file}{line}: drift at {}: {}", drift.path, drift.cause.words());
    let _ = writeln!(out, "  {}", printable(&drift.detail));
    if let Some((scenario, field, line)) = origin {
        let _ = writeln!(out, "  from {scenario}:{line} (`{field}`)");
    }
    if drift.recorded != drift.now {
        out.push_str("  - recorded, + now\n");
        out.push_str(&show_diff(&drift.recorded, &drift.now, fancy));
    }
    out
}
