//! The paper of a picture that is a file of its own: size, name for those who can't see it, colours by light
//! and dark.

use super::ink::plain;
use super::shapes::{blank, rectangle};
use svg::Document;
use svg::node::element::{Style, Title};

const LIGHT: &str = "\
text { font-family: system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; }
.paper { fill: #ffffff; } .ink { fill: #1f2430; } .muted { fill: #667085; }";
const DARK: &str = ".paper { fill: #14161b; } .ink { fill: #eceff4; } .muted { fill: #9aa3b2; }";

/// Empty paper, with styles of the picture's own classes for light paper and what differs on dark.
pub(super) fn paper(
    (width, height): (f64, f64),
    title: &str,
    [light, dark]: [impl AsRef<str>; 2],
) -> Document {
    let (light, dark) = (light.as_ref(), dark.as_ref());
    let style = format!("{LIGHT}\n{light}\n@media (prefers-color-scheme: dark) {{\n{DARK}\n{dark}\n}}");
    let size = (width.ceil(), height.ceil());
    blank(size)
        .set("role", "img")
        .add(Title::new(plain(title)))
        .add(Style::new(style))
        .add(rectangle((0.0, 0.0), size).set("class", "paper"))
}
