//! Colours of names that can be read on dark and on light terminals, whose background is unknown.
//!
//! A colour keeps its hue and is made lighter or darker until its relative luminance (WCAG 2.2) has a
//! contrast of at least 4 : 1 to black and to white both.

use crate::scenario::Color;
use console::{Color as Ink, Style};

/// Relative luminances with a contrast of 4 : 1 to black, (L + 0.05) / 0.05, and to white, 1.05 / (L + 0.05).
const READABLE: [f64; 2] = [0.15, 0.2125];

/// The style of a name in a scenario's colour. The terminal's own sixteen colours are up to its theme, but
/// for black, greys and white, one of which every theme has as its background: such a name has the colour of
/// the text.
pub(super) fn style(color: Color) -> Style {
    match color {
        Color::Indexed(0 | 7 | 8 | 15) => Style::new(),
        Color::Indexed(n @ 1..16) => Style::new().fg(Ink::Color256(n)),
        Color::Indexed(n) => Style::new().fg(Ink::Color256(nearest(readable(rgb(n))))),
        Color::Rgb(r, g, b) => {
            let [r, g, b] = readable([r, g, b]);
            Style::new().fg(Ink::TrueColor(r, g, b))
        }
    }
}

/// Red, green and blue of a colour of the 256 from the sixteenth on, as xterm has them: a cube of six steps,
/// then greys.
fn rgb(n: u8) -> [u8; 3] {
    const STEPS: [u8; 6] = [0, 95, 135, 175, 215, 255];
    match n.saturating_sub(16) {
        at @ 0..216 => [at / 36, at / 6 % 6, at % 6].map(|step| STEPS[usize::from(step)]),
        grey => [8 + 10 * (grey - 216); 3],
    }
}

/// The one of the 256 colours, but the first sixteen, that is nearest to a colour, of those that are as
/// readable.
fn nearest(wanted: [u8; 3]) -> u8 {
    /// A luminance that has a contrast of 3 : 1 to both: the cube has few colours.
    const LARGE_TEXT: [f64; 2] = [0.1, 0.3];
    let distance =
        |n: &u8| -> u32 { rgb(*n).iter().zip(wanted).map(|(a, b)| u32::from(a.abs_diff(b)).pow(2)).sum() };
    let readable = |n: &u8| (LARGE_TEXT[0]..=LARGE_TEXT[1]).contains(&luminance(rgb(*n)));
    (16..=255).filter(readable).min_by_key(distance).unwrap_or(16)
}

/// A colour of the same hue that is readable on black and on white.
fn readable(color: [u8; 3]) -> [u8; 3] {
    let [least, most] = READABLE;
    let mix = |share: f64| {
        // Darker towards black, lighter towards white, by shares of light.
        let (share, to) = (share.abs(), if share < 0.0 { 0.0 } else { 1.0 });
        color.map(|value| encoded(linear(value) * (1.0 - share) + to * share))
    };
    let (mut low, mut high) = match luminance(color) {
        light if light < least => (0.0, 1.0),
        light if light > most => (-1.0, 0.0),
        _ => return color,
    };
    let middle = f64::midpoint(least, most);
    for _ in 0..20 {
        let share = f64::midpoint(low, high);
        if luminance(mix(share)) < middle { low = share } else { high = share }
    }
    mix(low)
}

/// Relative luminance, from 0 of black to 1 of white.
fn luminance(color: [u8; 3]) -> f64 {
    color.iter().zip([0.2126, 0.7152, 0.0722]).map(|(value, weight)| weight * linear(*value)).sum()
}

/// The light of an sRGB value.
fn linear(value: u8) -> f64 {
    let value = f64::from(value) / 255.0;
    if value <= 0.04045 { value / 12.92 } else { libm::pow((value + 0.055) / 1.055, 2.4) }
}

/// The sRGB value of a light.
fn encoded(light: f64) -> u8 {
    let value =
        if light <= 0.003_130_8 { light * 12.92 } else { 1.055 * libm::pow(light, 1.0 / 2.4) - 0.055 };
    (value * 255.0).round() as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contrasts(color: [u8; 3]) -> [f64; 2] {
        let light = luminance(color) + 0.05;
        [light / 0.05, 1.05 / light]
    }

    #[test]
    fn every_colour_can_be_read_on_black_and_on_white() {
        let steps = [0u8, 1, 40, 90, 127, 128, 200, 254, 255];
        for r in steps {
            for (g, b) in steps.iter().flat_map(|g| steps.iter().map(move |b| (*g, *b))) {
                let shown = readable([r, g, b]);
                assert!(contrasts(shown).iter().all(|contrast| *contrast >= 3.95), "{r} {g} {b}: {shown:?}");
            }
        }
        for n in 16..=255 {
            let shown = rgb(nearest(readable(rgb(n))));
            assert!(contrasts(shown).iter().all(|contrast| *contrast >= 3.0), "{n}: {shown:?}");
        }
    }

    #[test]
    fn a_readable_colour_stays_and_others_keep_their_hue() {
        assert_eq!(readable([0, 128, 128]), [0, 128, 128]);
        let [r, g, b] = readable([255, 230, 0]);
        assert!(r > 100 && g > 90 && b == 0, "{r} {g} {b}");
        let [r, g, b] = readable([0, 0, 90]);
        assert!(b > r && r == g, "{r} {g} {b}");
        assert_eq!(
            (rgb(16), rgb(231), rgb(208), rgb(232), rgb(255)),
            ([0; 3], [255; 3], [255, 135, 0], [8; 3], [238; 3])
        );
    }
}
