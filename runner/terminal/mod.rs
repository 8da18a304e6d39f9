//! Output for people, on a terminal or in a pipe: dialogue as it is spoken, tables, diffs.
//!
//! On a terminal: colours, wrapped lines, a bar while a prompt is read. In a pipe: plain lines.

mod dialogue;
mod diff;
mod differences;
pub mod output;
mod page;
mod results;
mod statistics;
mod tables;

pub use crate::diagnostic::printable;
pub use dialogue::Dialogue;
pub use diff::{show_diff, show_verdict};
pub use differences::show_differences;
pub use page::Page;
pub use results::results;
pub use statistics::statistics;
pub use tables::{bytes, counted, summary, table};

/// Tells whether standard output is a terminal that wants colours.
pub fn is_fancy() -> bool {
    console::Term::stdout().is_term() && console::colors_enabled()
}
