//! Colours and widths of a drawing.

use crate::diagnostic::printable;
use crate::scenario::Color;
use console::{measure_text_width, truncate_str};

/// Colours of agents that have none.
const WHEEL: [(u8, u8, u8); 8] = [
    (76, 120, 168),
    (228, 128, 52),
    (84, 162, 75),
    (178, 90, 140),
    (200, 80, 82),
    (66, 150, 150),
    (150, 110, 80),
    (120, 110, 190),
];

/// The colour as `#rrggbb` of an agent in this lane, its own if it has one; kept distinct from white and
/// black, the background of one reader or another.
pub fn color(given: Option<Color>, lane: usize) -> String {
    let (r, g, b) = match given {
        Some(Color::Rgb(r, g, b)) => (r, g, b),
        Some(Color::Indexed(n)) => indexed(n),
        None => WHEEL[lane % WHEEL.len()],
    };
    let light = (0.299 * f64::from(r) + 0.587 * f64::from(g) + 0.114 * f64::from(b)) / 255.0;
    let part = |channel: u8| {
        let channel = f64::from(channel);
        let moved = match light {
            light if light > 0.72 => channel * 0.72 / light,
            light if light < 0.35 => channel + (255.0 - channel) * (0.35 - light) / (1.0 - light),
            _ => channel,
        };
        moved.round() as u8
    };
    format!("#{:02x}{:02x}{:02x}", part(r), part(g), part(b))
}

/// The 256 colours of terminals: 16 by name, a cube of 216, 24 greys.
fn indexed(n: u8) -> (u8, u8, u8) {
    const NAMED: [(u8, u8, u8); 16] = [
        (40, 40, 40),
        (205, 49, 49),
        (46, 160, 67),
        (200, 160, 20),
        (56, 110, 220),
        (188, 63, 188),
        (30, 160, 190),
        (170, 170, 170),
        (118, 118, 118),
        (241, 76, 76),
        (60, 200, 110),
        (225, 190, 50),
        (90, 140, 240),
        (214, 112, 214),
        (50, 190, 210),
        (190, 190, 190),
    ];
    let step = |part: u8| if part == 0 { 0 } else { 55 + 40 * part };
    match n {
        0..=15 => NAMED[usize::from(n)],
        16..=231 => (step((n - 16) / 36), step((n - 16) / 6 % 6), step((n - 16) % 6)),
        grey => (8 + 10 * (grey - 232), 8 + 10 * (grey - 232), 8 + 10 * (grey - 232)),
    }
}

/// Width of a character in sizes of its font: what wide bold fonts take on average, so that narrow ones fit
/// too.
const EM: f64 = 0.65;

/// Width of a text at a size, in pixels.
pub(crate) fn width(text: &str, size: f64) -> f64 {
    measure_text_width(text) as f64 * size * EM
}

/// Characters at a size that have their place in a width.
fn columns(size: f64, most: f64) -> usize {
    (most / (size * EM)).max(1.0) as usize
}

/// A text without what XML can't hold, shortened to a width in pixels.
pub(crate) fn fitted(text: &str, size: f64, most: f64) -> String {
    truncate_str(&plain(text), columns(size, most), "…").into_owned()
}

/// The same over several lines of that width.
pub(crate) fn lines(text: &str, size: f64, most: f64, n: usize) -> Vec<String> {
    let text = plain(text);
    let mut lines: Vec<String> =
        textwrap::wrap(&text, columns(size, most)).into_iter().map(Into::into).collect();
    if lines.len() > n {
        let rest = lines.drain(n - 1..).collect::<Vec<_>>().join(" ");
        lines.push(fitted(&rest, size, most));
    }
    lines
}

/// A text on one line, without characters that XML refuses and without such as turn others' words around.
pub(super) fn plain(text: &str) -> String {
    let is_odd = |c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}');
    let plain: String = text.chars().map(|c| if is_odd(c) { ' ' } else { c }).collect();
    printable(&plain).split_whitespace().collect::<Vec<_>>().join(" ")
}
