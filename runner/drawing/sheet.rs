//! Panels below one another, with a title, a legend and a caption; as wide as a phone makes legible.

use super::ink::{lines, plain};
use super::paper::paper;
use super::series::{mark, styles};
use super::shapes::text;
use svg::Node;
use svg::node::Text as Words;
use svg::node::element::{Description, Group};

/// Width of the paper: a phone shows it at four fifths of its size.
pub(crate) const WIDTH: f64 = 480.0;
pub(crate) const MARGIN: f64 = 16.0;
/// Height of a line of text.
const LINE: f64 = 17.0;

const LIGHT: &str = "\
.strong { font-weight: 700; } .mean { fill: #1f2430; stroke: #1f2430; }
.grid { fill: none; stroke: #d9dee8; shape-rendering: crispEdges; } .field { stroke: #d9dee8; }";
const DARK: &str = "\
.mean { fill: #eceff4; stroke: #eceff4; }
.grid { stroke: #323845; } .field { stroke: #323845; }";

/// A picture.
pub(crate) struct Sheet {
    pub(crate) title: String,
    /// Names of the series; empty if they need none.
    pub(crate) legend: Vec<String>,
    pub(crate) panels: Vec<Panel>,
    /// Meaning of the marks, by paragraph.
    pub(crate) caption: Vec<String>,
}

/// A part of a picture, drawn as if it began at the paper's upper edge.
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) height: f64,
    pub(crate) drawing: Group,
}

impl Sheet {
    /// The picture.
    pub(crate) fn draw(self) -> String {
        let mut column = SheetColumn { y: 11.0, drawn: Group::new() };
        column.write(&self.title, MARGIN, 16.0, "ink strong");
        column.y += 4.0;
        for (n, name) in self.legend.iter().enumerate() {
            column.add(mark((MARGIN + 5.0, column.y + LINE - 4.0), n));
            column.write(name, MARGIN + 18.0, 12.0, "ink");
        }
        for panel in self.panels {
            column.y += 16.0;
            column.write(&panel.title, MARGIN, 13.0, "ink strong");
            column.y += 11.0;
            column.add(panel.drawing.set("transform", format!("translate(0 {})", column.y)));
            column.y += panel.height;
        }
        column.y += 8.0;
        self.caption.iter().for_each(|text| column.write(text, MARGIN, 11.5, "muted"));
        let [light, dark] = styles();
        let styles = [format!("{light}\n{LIGHT}"), format!("{dark}\n{DARK}")];
        let picture = paper((WIDTH, column.y + 16.0), &self.title, styles);
        let description = Words::new(plain(&self.caption.join(" ")));
        picture.add(Description::new().add(description)).add(column.drawn).to_string() + "\n"
    }
}

/// A drawing that grows down the paper.
struct SheetColumn {
    /// Height so far.
    y: f64,
    drawn: Group,
}

impl SheetColumn {
    fn add(&mut self, drawing: impl Node) {
        self.drawn = std::mem::take(&mut self.drawn).add(drawing);
    }

    /// Writes a text from `x` to the margin, on as many lines as it needs, but not on more than can be looked
    /// at.
    fn write(&mut self, words: &str, x: f64, size: f64, class: &str) {
        for words in lines(words, size, WIDTH - MARGIN - x, 5) {
            self.y += LINE;
            self.add(text(&words, x, self.y, size, class));
        }
    }
}
