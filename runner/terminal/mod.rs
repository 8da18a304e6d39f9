//! Output for people, on a terminal or in a pipe: dialogue as it is spoken, tables, diffs.
//!
//! On a terminal: colours, wrapped lines, a bar while a prompt is read. In a pipe: plain lines.

mod contrast;
mod dialogue;
mod diff;
mod differences;
pub mod output;
mod page;
mod pooled;
mod progress;
mod results;
mod scale;
mod statistics;
mod tables;

pub use crate::diagnostic::printable;
pub use dialogue::DialogueOutput;
pub use diff::{show_diff, show_verdict};
pub use differences::show_differences;
pub use page::Page;
pub use results::{failure, results, too_few};
pub use statistics::statistics;
pub use tables::{bytes, costs, counted, savings, table, table_within};

/// Returns whether standard output is a terminal that supports colours.
pub fn is_fancy() -> bool {
    !output::is_captured() && console::Term::stdout().is_term() && console::colors_enabled()
}

/// Columns of standard output, where that is a terminal.
fn width() -> Option<usize> {
    let size = console::Term::stdout().size_checked().filter(|_| is_fancy());
    size.map(|(_, columns)| usize::from(columns).max(20))
}

/// A text wrapped to the terminal, later lines after `indent`; elsewhere as it is.
fn wrapped(text: &str, indent: &str) -> String {
    match width() {
        Some(width) => textwrap::fill(text, textwrap::Options::new(width).subsequent_indent(indent)),
        None => text.to_string(),
    }
}
