//! The cache timeline as a picture: a lane for each agent, and a column for each turn with a bar of its
//! tokens; below, the time to first token. All lanes share one scale, so that bars can be compared. Its
//! colours are the page's.

use super::cast::{CastIndex, Member};
use super::cost::CostRow;
use super::dialogue::{TurnLine, label};
use super::sources::ReportSources;
use super::text::{clean, duration, thousands};
use crate::drawing::{blank, centred, fitted, line, rectangle, round, text, with_title};
use minijinja::Value;
use serde::Serialize;
use svg::node::element::Group;

/// Total width of the columns, and the minimum and maximum width of a column.
const WIDTH: f64 = 840.0;
const COLUMN: (f64, f64) = (7.0, 40.0);
/// Height of a lane, and of its tallest bar.
const LANE: f64 = 67.0;
const HEIGHT: f64 = 60.0;
/// Height above the lanes, for the names of phases, and below them, for the numbers of turns.
const HEAD: f64 = 29.0;
const FOOT: f64 = 24.0;
/// Gap between two columns' bars.
const GAP: f64 = 2.0;
/// Size of letters.
const SIZE: f64 = 15.0;

/// The picture and its description.
#[derive(Debug, Serialize)]
pub(super) struct Chart {
    picture: Value,
    /// Heights of its rows: phases, lanes, times, numbers.
    rows: String,
    /// Owners of the lanes, from top to bottom.
    members: Vec<Member>,
    /// Tokens of the tallest bar.
    most_tokens: u64,
    /// The longest time in milliseconds.
    most_ms: f64,
}

/// Draws the turns of a table.
pub(super) fn chart(
    sources: &ReportSources,
    cast: &CastIndex,
    lines: &[TurnLine<'_>],
    rows: &[CostRow],
) -> Chart {
    let column = (WIDTH / lines.len().max(1) as f64).clamp(COLUMN.0, COLUMN.1).floor();
    let tokens = |row: &CostRow| stack(row).iter().fold(0u64, |sum, (_, n)| sum.saturating_add(*n));
    let most_tokens = rows.iter().map(tokens).max().unwrap_or(0);
    let most_ms = rows.iter().filter_map(|row| row.ttft_ms).fold(0.0, f64::max);
    let speaks = |member: &&Member| rows.iter().any(|row| row.key == member.key);
    let members: Vec<Member> = cast.members().filter(speaks).cloned().collect();
    let bottom = |lane: usize| HEAD + LANE * (lane + 1) as f64;
    let (width, end) = (lines.len() as f64 * column, bottom(members.len()));
    let edge = |lane: usize| bottom(lane) - LANE + 0.5;
    let edges = (0..=members.len() + 1).map(|lane| line((0.0, edge(lane)), (width, edge(lane))));
    let mut picture = edges.fold(bands(sources, lines, column), Group::add);
    for row in rows {
        let lane = members.iter().position(|member| member.key == row.key).unwrap_or_default();
        let tokens = stack(row).map(|(kind, n)| (kind, n as f64));
        let place = (row.column as f64 * column, column - GAP);
        picture = picture.add(bar(row, place, bottom(lane), &tokens, most_tokens as f64));
        if let Some(ms) = row.ttft_ms {
            picture = picture.add(bar(row, place, end, &[(row.state, ms)], most_ms));
        }
    }
    let picture = blank((width, end + FOOT)).add(picture).add(numbers(lines, column, end));
    let picture = picture.set("aria-hidden", true);
    let rows = format!("{HEAD}px repeat({}, {LANE}px) {FOOT}px", members.len() + 1);
    Chart { picture: Value::from_safe_string(picture.to_string()), rows, members, most_tokens, most_ms }
}

/// A turn's tokens by kind, from bottom to top.
fn stack(row: &CostRow) -> [(&'static str, u64); 4] {
    [
        (row.state, row.reused),
        ("recomputed", row.recomputed),
        ("prefilled", row.prefilled),
        ("generated", row.generated),
    ]
}

/// A turn: its parts stacked, with the details as a tooltip.
fn bar(row: &CostRow, (x, width): (f64, f64), bottom: f64, stack: &[(&str, f64)], most: f64) -> Group {
    let mut y = bottom;
    let mut group = with_title(&words(row));
    for (kind, amount) in stack {
        let height = round(HEIGHT * (amount / most.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0));
        y = round(y - height);
        if height > 0.0 {
            group = group.add(rectangle((x, y), (width, height)).set("class", format!("k-{kind}")));
        }
    }
    group
}

fn words(row: &CostRow) -> String {
    let [reused, prefilled, recomputed, generated] =
        [row.reused, row.prefilled, row.recomputed, row.generated].map(thousands);
    let CostRow { n, name, state, .. } = row;
    let first = row.ttft_ms.map_or(String::new(), |ms| format!("; {} to the first token", duration(ms)));
    format!(
        "Turn {n}, {}: {reused} reused ({state}), {prefilled} prefilled, {recomputed} recomputed, \
         {generated} generated{first}",
        clean(name)
    )
}

/// The numbers of the turns: as many as fit side by side.
fn numbers(lines: &[TurnLine<'_>], column: f64, top: f64) -> Group {
    let widest = 10.0 * (lines.len().to_string().len() as f64 + 1.0);
    let every = (widest / column).ceil().max(1.0) as usize;
    let shown = lines.iter().enumerate().filter(|(at, line)| at % every == 0 && !line.record.is_aside());
    shown.fold(Group::new(), |group, (at, line)| {
        let x = at as f64 * column + (column - GAP) / 2.0;
        group.add(centred(&line.n.to_string(), x, top + 18.0, SIZE, "muted"))
    })
}

/// The columns of the phases, with their names if there is room.
fn bands(sources: &ReportSources, lines: &[TurnLine<'_>], column: f64) -> Group {
    let (mut x, mut group) = (0.5, Group::new());
    for lines in lines.chunk_by(|one, next| one.phase() == next.phase()) {
        let (label, width) = (clean(&label(sources, lines[0].phase())), lines.len() as f64 * column);
        let area = rectangle((x, 0.0), (width, HEAD)).set("fill-opacity", 0);
        let mut band = with_title(&label).add(area).add(line((x, 0.0), (x, HEAD)).set("class", "edge"));
        if width >= 60.0 {
            band = band.add(text(&fitted(&label, SIZE, width - 8.0), x + 5.0, 18.0, SIZE, "muted"));
        }
        group = group.add(band);
        x += width;
    }
    group
}
