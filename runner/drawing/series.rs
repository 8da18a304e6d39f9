//! Series of a plot, distinguished by colour and mark.

use super::shapes::{line, rectangle};
use svg::node::element::{Circle, Group, Polygon};

/// Colours: the colour-blind-safe ones of M. Okabe and K. Ito (2008), without yellow, which white paper
/// swallows.
const COLORS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
/// The first of them as they are on a dark background; the others stand out on both.
const DARK: [&str; 2] = ["#3d9fe0", "#f07a28"];

/// The styles on light and on dark paper.
pub(super) fn styles() -> [String; 2] {
    let style = |(n, color): (usize, &&str)| format!(".s{n} {{ fill: {color}; stroke: {color}; }}");
    let styles = |colors: &[&str]| colors.iter().enumerate().map(style).collect::<Vec<_>>().join(" ");
    [styles(&COLORS), styles(&DARK)]
}

/// Class of what belongs to a series.
pub(crate) fn series(n: usize) -> String {
    format!("s{}", n % COLORS.len())
}

/// The mark of a series around a point.
pub(crate) fn mark((x, y): (f64, f64), n: usize) -> Group {
    let group = Group::new().set("class", series(n));
    match n % 4 {
        0 => group.add(Circle::new().set("cx", x).set("cy", y).set("r", 3.5)),
        1 => group.add(rectangle((x - 3.5, y - 3.5), (7.0, 7.0))),
        2 => group.add(
            Polygon::new()
                .set("points", format!("{x},{} {},{} {},{}", y - 5.0, x + 5.0, y + 3.5, x - 5.0, y + 3.5)),
        ),
        _ => {
            let cross = [1.0, -1.0].map(|side| line((x - 3.5, y - 3.5 * side), (x + 3.5, y + 3.5 * side)));
            cross.into_iter().fold(group, |group, line| group.add(line.set("stroke-width", 2)))
        }
    }
}
