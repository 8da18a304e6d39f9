//! Forms in which figures are written.

use crate::diagnostic::printable;
use crate::statistics::{Estimate, InCell, signed};
use console::truncate_str;

/// Most columns of a name or a text.
const MAX_NAME: usize = 26;

/// The form in which a figure is written.
#[derive(Clone, Copy)]
pub(super) enum FigureStyle {
    Plain,
    Percent,
}

impl FigureStyle {
    pub(super) fn of(cell: &InCell) -> Self {
        if cell.count.is_some() { Self::Percent } else { Self::Plain }
    }

    fn text(self, value: f64) -> String {
        match self {
            Self::Plain => number(value),
            Self::Percent => format!("{:.0}", 100.0 * value),
        }
    }

    pub(super) fn value(self, estimate: &Estimate) -> String {
        let Some(value) = estimate.value else { return "-".to_string() };
        match self {
            Self::Plain => self.text(value),
            Self::Percent => self.text(value) + " %",
        }
    }

    pub(super) fn signed(self, estimate: &Estimate) -> String {
        let Some(value) = estimate.value else { return "-".to_string() };
        signed(value, self.text(value))
    }

    pub(super) fn interval(self, estimate: &Estimate) -> String {
        estimate.interval(|end| self.text(end))
    }
}

/// Three digits, or all before the point, unless they are many.
pub(super) fn number(value: f64) -> String {
    if value.abs() >= 1e9 {
        return format!("{value:.2e}");
    }
    let digits = libm::log10(value.abs().max(1e-9)).floor() as i32;
    let after = (2 - digits).clamp(0, 6) as usize;
    let text = format!("{value:.after$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_string() } else { text }
}

pub(super) fn shortened(text: &str) -> String {
    truncate_str(&printable(text), MAX_NAME, "…").into_owned()
}
