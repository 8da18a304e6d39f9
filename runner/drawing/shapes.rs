//! Elements of a picture.

use super::ink::plain;
use svg::Document;
use svg::node::element::{Group, Line, Rectangle, Text, Title};

/// A picture of a size with nothing on it.
pub(crate) fn blank((width, height): (f64, f64)) -> Document {
    Document::new().set("viewBox", (0, 0, width, height)).set("width", width).set("height", height)
}

/// A straight line.
pub(crate) fn line(from: (f64, f64), to: (f64, f64)) -> Line {
    Line::new().set("x1", from.0).set("y1", from.1).set("x2", to.0).set("y2", to.1)
}

/// A rectangle, by its upper left corner.
pub(crate) fn rectangle((x, y): (f64, f64), (width, height): (f64, f64)) -> Rectangle {
    Rectangle::new().set("x", x).set("y", y).set("width", width).set("height", height)
}

/// A label at a point.
pub(crate) fn text(words: &str, x: f64, y: f64, size: f64, class: &str) -> Text {
    Text::new(plain(words)).set("class", class).set("x", x).set("y", y).set("font-size", size)
}

/// Words whose middle is on a point.
pub(crate) fn centred(words: &str, x: f64, y: f64, size: f64, class: &str) -> Text {
    text(words, x, y, size, class).set("text-anchor", "middle")
}

/// A group with a text that is shown on hovering.
pub(crate) fn with_title(words: &str) -> Group {
    Group::new().add(Title::new(plain(words)))
}

/// A length in tenths of a pixel.
pub(crate) fn round(length: f64) -> f64 {
    (10.0 * length).round() / 10.0
}
