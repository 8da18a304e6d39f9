//! The paper of plots: size, letters, colours that suit light and dark, title, legend and caption.
//!
//! plotters writes colours as attributes. A style sheet with selectors of just these attributes gives each its twin on
//! dark paper.
//!
//! plotters writes colours as attributes, so selectors of these give each its twin on dark paper. *parquet without arrow*: its
//! column writer is enough.

use super::super::summary::{CellSummary, Summary};
use super::{Heading, Panel};
use crate::drawing::{fitted, plain};
use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::{
    Cartesian2d, Circle, Cross, DrawingArea, IntoDrawingArea as _, PathElement, Rectangle, SVGBackend, Text,
    TriangleMarker,
};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{BLACK, Color as _, FontStyle, IntoFont as _, RGBColor, ShapeStyle, TextStyle};
use std::ops::Range;

/// A part of the paper, in pixels.
pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// A part of the paper with two axes.
pub(super) type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// A picture.
pub(super) struct Sheet<'a> {
    pub(super) heading: Heading,
    pub(super) panels: Vec<Panel<'a>>,
}

/// A phone shows this at four fifths of its size.
pub(super) const WIDTH: u32 = 480;
const MARGIN: i32 = 16;
/// Height of a line of text.
const LINE: i32 = 17;
/// Height of a panel's title.
const TITLE: u32 = 34;
/// Most columns of a line of the caption.
const CAPTION: usize = 72;

const PAPER: RGBColor = RGBColor(0xff, 0xff, 0xff);
pub(super) const INK: RGBColor = RGBColor(0x1f, 0x24, 0x30);
pub(super) const MUTED: RGBColor = RGBColor(0x66, 0x70, 0x85);
pub(super) const GRID: RGBColor = RGBColor(0xd9, 0xde, 0xe8);

/// Colours of cells: the colour-blind-safe ones of M. Okabe and K. Ito (2008), without yellow, which white paper swallows.
const SERIES: [RGBColor; 6] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
];

/// What each colour is on dark paper. The others stand out on both.
const DARK: [(RGBColor, &str); 6] = [
    (PAPER, "#14161b"),
    (INK, "#eceff4"),
    (MUTED, "#9aa3b2"),
    (GRID, "#323845"),
    (SERIES[0], "#3d9fe0"),
    (SERIES[1], "#f07a28"),
];

impl Sheet<'_> {
    /// The picture.
    pub(super) fn draw(&self, summary: &Summary) -> anyhow::Result<String> {
        let legend: Vec<String> = if self.heading.has_legend && summary.cells.len() > 1 {
            summary.cells.iter().map(label).collect()
        } else {
            Vec::new()
        };
        let caption: Vec<String> = self
            .heading
            .caption
            .iter()
            .flat_map(|text| textwrap::wrap(text, CAPTION))
            .map(Into::into)
            .collect();
        let head = 44 + LINE * legend.len() as i32 + 8;
        let panels: u32 = self.panels.iter().map(|panel| TITLE + panel.height).sum();
        let foot = 12 + LINE * caption.len() as i32 + 10;
        let height = head as u32 + panels + foot as u32;
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
            root.fill(&PAPER)?;
            write(&root, &fitted(&self.heading.title, 16.0, 460.0), (MARGIN, 28), &bold(16.0))?;
            for (at, name) in legend.iter().enumerate() {
                let y = 48 + LINE * at as i32;
                mark(&root, (MARGIN + 5, y), at)?;
                write(&root, &fitted(name, 12.0, 420.0), (MARGIN + 18, y), &letters(12.0, &INK))?;
            }
            let (_, mut rest) = root.split_vertically(head);
            for panel in &self.panels {
                let (here, below) = rest.split_vertically(TITLE + panel.height);
                write(&here, &fitted(&panel.title, 13.0, 440.0), (MARGIN, TITLE as i32 - 14), &bold(13.0))?;
                (panel.draw)(&here.split_vertically(TITLE).1)?;
                rest = below;
            }
            for (at, line) in caption.iter().enumerate() {
                let y = 16 + LINE * at as i32;
                write(&rest, line, (MARGIN, y), &letters(11.5, &MUTED))?;
            }
            root.present()?;
        }
        Ok(dressed(&svg, &self.heading.title))
    }
}

/// Adds what plotters does not write: a name for those who can't see the picture, and the colours of dark paper.
fn dressed(svg: &str, title: &str) -> String {
    let dark = DARK.map(|(RGBColor(r, g, b), twin)| {
        let light = format!("#{r:02X}{g:02X}{b:02X}");
        format!("[fill=\"{light}\"] {{ fill: {twin}; }} [stroke=\"{light}\"] {{ stroke: {twin}; }}")
    });
    let style = format!(
        "text {{ font-family: system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; }}\n\
         @media (prefers-color-scheme: dark) {{\n{}\n}}",
        dark.join("\n")
    );
    let title = plain(title).replace('&', "&amp;").replace('<', "&lt;");
    let inside = format!(" role=\"img\">\n<title>{title}</title>\n<style>\n{style}\n</style>");
    svg.replacen('>', &inside, 1)
}

/// A cell's values in words.
pub(super) fn label(cell: &CellSummary) -> String {
    let values =
        cell.values.iter().map(|(name, value)| format!("{name} = {}", crate::scenario::text_of(value)));
    let values = values.collect::<Vec<_>>().join(", ");
    let values = if values.is_empty() { "all runs".to_string() } else { values };
    format!("{values} ({} runs)", cell.runs)
}

/// A cell's values, as short as an axis wants them.
pub(super) fn short(cell: &CellSummary) -> String {
    let values = cell.values.values().map(crate::scenario::text_of);
    values.collect::<Vec<_>>().join(", ")
}

/// A cell's colour.
pub(super) fn color(cell: usize) -> RGBColor {
    SERIES[cell % SERIES.len()]
}

/// Letters of a size in pixels.
pub(super) fn letters(size: f64, color: &RGBColor) -> TextStyle<'static> {
    // plotters' SVG divides sizes by this.
    let style = ("sans-serif", size * 1.24).into_font().color(color);
    style.pos(Pos::new(HPos::Left, VPos::Center))
}

fn bold(size: f64) -> TextStyle<'static> {
    let style = ("sans-serif", size * 1.24).into_font().style(FontStyle::Bold).color(&INK);
    style.pos(Pos::new(HPos::Left, VPos::Center))
}

/// The same letters around a point.
pub(super) fn centred(style: TextStyle<'static>) -> TextStyle<'static> {
    style.pos(Pos::new(HPos::Center, VPos::Center))
}

/// Writes a text without what XML can't hold.
pub(super) fn write(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    style: &TextStyle<'_>,
) -> anyhow::Result<()> {
    Ok(area.draw(&Text::new(plain(text), at, style.clone()))?)
}

/// The mark of a cell: colour and shape tell it apart.
pub(super) fn mark(area: &Area<'_>, (x, y): (i32, i32), cell: usize) -> anyhow::Result<()> {
    let (color, style) = (color(cell), color(cell).filled());
    match cell % 4 {
        0 => area.draw(&Circle::new((x, y), 4, style))?,
        1 => area.draw(&Rectangle::new([(x - 4, y - 4), (x + 4, y + 4)], style))?,
        2 => area.draw(&TriangleMarker::new((x, y), 6, style))?,
        _ => area.draw(&Cross::new((x, y), 4, color.stroke_width(2)))?,
    }
    Ok(())
}

/// A straight line.
pub(super) fn line(area: &Area<'_>, ends: [(i32, i32); 2], style: ShapeStyle) -> anyhow::Result<()> {
    Ok(area.draw(&PathElement::new(ends, style))?)
}

/// Axes with lines for the values of y, and places of x that have names.
pub(super) fn axes<'a, 'b>(
    area: &'a Area<'b>,
    x: Range<f64>,
    y: Range<f64>,
    y_text: &dyn Fn(&f64) -> String,
    (x_name, places): (&str, &[(f64, String)]),
) -> anyhow::Result<Chart<'a, 'b>> {
    let mut chart = ChartBuilder::on(area)
        .margin_right(12)
        .margin_top(6)
        .x_label_area_size(22)
        .y_label_area_size(52)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .y_labels(5)
        .y_label_formatter(y_text)
        .label_style(letters(11.5, &MUTED))
        .axis_style(GRID)
        .bold_line_style(GRID)
        .light_line_style(BLACK.mix(0.0))
        .draw()?;
    let room = f64::from(WIDTH - 76) / places.len().max(1) as f64;
    let bottom = chart.plotting_area().get_pixel_range().1.end;
    let below = bottom - area.get_pixel_range().1.start + 13;
    write(area, x_name, (MARGIN, below), &letters(11.5, &MUTED))?;
    for (at, name) in places {
        let (across, _) = place(area, &chart, *at, 0.0);
        write(area, &fitted(name, 11.5, room), (across, below), &centred(letters(11.5, &MUTED)))?;
    }
    Ok(chart)
}

/// Where a point of the chart lies in its area.
pub(super) fn place(area: &Area<'_>, chart: &Chart<'_, '_>, x: f64, y: f64) -> (i32, i32) {
    let (across, down) = chart.backend_coord(&(x, y));
    (across - area.get_pixel_range().0.start, down - area.get_pixel_range().1.start)
}
