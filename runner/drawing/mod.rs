//! Pictures as SVG: the plan of a scenario, and what plots and reports draw theirs with.
//!
//! Each is one self-contained text, the same for the same data on every machine, readable on light and on
//! dark paper.

mod axes;
mod ink;
mod layout;
mod paper;
mod plan;
mod series;
mod shapes;
mod sheet;

pub(crate) use axes::Axes;
pub use ink::color;
pub(crate) use ink::{fitted, lines, width};
pub use plan::{MAX_TURNS, svg};
pub(crate) use series::{mark, series};
pub(crate) use shapes::{blank, centred, line, rectangle, round, text, with_title};
pub(crate) use sheet::{MARGIN, Panel, Sheet, WIDTH};
