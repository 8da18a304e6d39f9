//! The cache timeline as a figure: a lane for each agent, a column for each turn, in it a bar of its tokens.
//!
//! Only places are worked out here; the template draws. All lanes share one scale, so that bars compare.

use super::cache::Row;
use super::cast::{Cast, Member};
use super::dialogue::{TurnLine, label};
use super::sources::Sources;
use serde::Serialize;

/// Width that the columns share, and the least and the greatest width of a column.
const WIDTH: f64 = 840.0;
const COLUMN: (f64, f64) = (7.0, 40.0);
/// Height of a lane's tallest bar.
const HEIGHT: f64 = 60.0;
/// Between two columns' bars.
const GAP: f64 = 2.0;

/// The figure.
#[derive(Debug, Serialize)]
pub(super) struct Chart {
    width: f64,
    height: f64,
    column: f64,
    bar: f64,
    phases: Vec<Band>,
    /// Columns whose numbers are shown, and their middles.
    numbers: Vec<(usize, f64)>,
    lanes: Vec<Lane>,
    /// Times to the first token.
    times: Vec<Bar>,
    /// Tokens of the tallest bar.
    most_tokens: u64,
    /// Milliseconds of the tallest one of the times.
    most_ms: f64,
}

/// The columns of a phase.
#[derive(Debug, Serialize)]
struct Band {
    label: String,
    x: f64,
    width: f64,
}

/// An agent's turns.
#[derive(Debug, Serialize)]
struct Lane {
    member: Member,
    bars: Vec<Bar>,
}

/// A turn; `row` is its place in the table.
#[derive(Debug, Serialize)]
struct Bar {
    x: f64,
    row: usize,
    parts: Vec<Part>,
}

/// A part of a bar, from below.
#[derive(Debug, Serialize)]
struct Part {
    /// `hot`, `warm`, `prefilled`, `recomputed`, `generated`; for times `hot`, `warm`, `cold`.
    kind: &'static str,
    y: f64,
    height: f64,
}

/// Draws the turns of a table.
pub(super) fn chart(sources: &Sources, cast: &Cast, lines: &[TurnLine<'_>], rows: &[Row]) -> Chart {
    let column = (WIDTH / lines.len().max(1) as f64).clamp(COLUMN.0, COLUMN.1).floor();
    let x = |at: usize| at as f64 * column;
    let tokens = |row: &Row| stack(row).iter().fold(0u64, |sum, (_, n)| sum.saturating_add(*n));
    let most_tokens = rows.iter().map(tokens).max().unwrap_or(0);
    let most_ms = rows.iter().filter_map(|row| row.ttft_ms).fold(0.0, f64::max);
    let lane = |member: &Member| {
        let own = rows.iter().enumerate().filter(|(_, row)| row.key == member.key);
        let bars = own.map(|(at, row)| {
            let parts = parts(&stack(row).map(|(kind, n)| (kind, n as f64)), most_tokens as f64);
            Bar { x: x(row.column), row: at, parts }
        });
        Lane { bars: bars.collect(), member: member.clone() }
    };
    let time = |(at, row): (usize, &Row)| {
        let ms = row.ttft_ms?;
        Some(Bar { x: x(row.column), row: at, parts: parts(&[(row.state, ms)], most_ms) })
    };
    // As wide as the longest number, in the page's smallest letters.
    let label = 10.0 * (lines.len().to_string().len() as f64 + 1.0);
    let every = (label / column).ceil().max(1.0) as usize;
    let numbered = lines.iter().enumerate().filter(|(at, line)| at % every == 0 && !line.is_summary);
    Chart {
        width: x(lines.len()),
        height: HEIGHT,
        column,
        bar: column - GAP,
        phases: bands(sources, lines, column),
        numbers: numbered.map(|(at, line)| (line.n, x(at) + (column - GAP) / 2.0)).collect(),
        lanes: cast.members().map(lane).filter(|lane| !lane.bars.is_empty()).collect(),
        times: rows.iter().enumerate().filter_map(time).collect(),
        most_tokens,
        most_ms,
    }
}

/// A turn's tokens by kind, from below.
fn stack(row: &Row) -> [(&'static str, u64); 4] {
    [
        (row.state, row.reused),
        ("recomputed", row.recomputed),
        ("prefilled", row.prefilled),
        ("generated", row.generated),
    ]
}

fn parts(stack: &[(&'static str, f64)], most: f64) -> Vec<Part> {
    let mut y = HEIGHT;
    let part = |(kind, amount): &(&'static str, f64)| {
        let height = round(HEIGHT * (amount / most.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0));
        y = round(y - height);
        (height > 0.0).then_some(Part { kind, y, height })
    };
    stack.iter().filter_map(part).collect()
}

fn round(length: f64) -> f64 {
    (10.0 * length).round() / 10.0
}

fn bands(sources: &Sources, lines: &[TurnLine<'_>], column: f64) -> Vec<Band> {
    let mut x = 0.0;
    let band = |lines: &[TurnLine<'_>]| {
        let width = lines.len() as f64 * column;
        x += width;
        Band { label: label(sources, lines[0].phase()), x: x - width, width }
    };
    lines.chunk_by(|one, next| one.phase() == next.phase()).map(band).collect()
}
