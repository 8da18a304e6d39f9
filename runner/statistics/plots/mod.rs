//! Pictures of a sample: choices by round, payoffs, joint choices. One self-contained SVG each, as wide as a phone
//! makes legible, readable on light and on dark paper.

mod choices;
mod joint;
mod paper;
mod payoffs;

use super::{Sample, Summary};
use crate::files;
use anyhow::Context as _;
use paper::Sheet;
use std::path::{Path, PathBuf};

/// Most panels of a picture; what has no panel is in the tables and the summary.
const MAX_PANELS: usize = 24;

/// Draws what there is to draw, as `choices.svg`, `payoffs.svg` and `joint.svg`, into a folder that is made if it is not
/// there, and says which files those are.
///
/// # Errors
/// The folder or a file can't be written.
pub fn plots(sample: &Sample, summary: &Summary, folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let can_not = |path: &Path| format!("can't write {}", path.display());
    std::fs::create_dir_all(folder).with_context(|| can_not(folder))?;
    let sheets = [
        ("choices", choices::sheet(summary)),
        ("payoffs", payoffs::sheet(sample, summary)),
        ("joint", joint::sheet(summary)),
    ];
    let mut written = Vec::new();
    for (name, sheet) in sheets {
        let Some(sheet) = sheet else { continue };
        let path = folder.join(name).with_extension("svg");
        let picture = sheet.draw(summary).with_context(|| format!("can't draw {name}"))?;
        files::write(&path, picture)?;
        written.push(path);
    }
    Ok(written)
}

/// A part of a picture: its height, and what draws it.
struct Panel<'a> {
    title: String,
    height: u32,
    draw: Box<Draw<'a>>,
}

/// Draws on a part of the paper.
type Draw<'a> = dyn Fn(&paper::Area<'_>) -> anyhow::Result<()> + 'a;

/// What stands around the panels.
struct Heading {
    title: String,
    /// What marks mean.
    caption: Vec<String>,
    /// True if cells are told apart by colour and mark, so that a legend must say how.
    has_legend: bool,
}

impl<'a> Sheet<'a> {
    /// Only as many panels as can be looked at; none at all is no picture.
    fn of(mut heading: Heading, mut panels: Vec<Panel<'a>>) -> Option<Self> {
        let more = panels.len().saturating_sub(MAX_PANELS);
        panels.truncate(MAX_PANELS);
        if more > 0 {
            heading.caption.push(format!("{more} more are not drawn; their figures are in summary.json."));
        }
        (!panels.is_empty()).then_some(Self { heading, panels })
    }
}
