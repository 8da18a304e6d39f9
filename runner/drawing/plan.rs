//! The plan of a scenario as a picture: a lane for each agent, a box for each turn, a band for each phase.
//!
//! Time runs to the right; turns in one column may run at the same time. Solid lines are memories, dashed
//! ones what is heard. The picture shows all turns that are possible, or those of a run.

use super::ink::{color, fitted, plain, width};
use super::layout::{Band, Layout, Link};
use super::paper::paper;
use super::shapes::{centred, line, rectangle, text, with_title};
use crate::scenario::{Plan, Scenario, TurnId};
use std::collections::BTreeSet;
use svg::Document;
use svg::node::element::{Circle, Group, Line, Path, Rectangle};

/// Most turns of a drawing; a picture of more can't be read, and finding its lines takes memory by their
/// square.
pub const MAX_TURNS: usize = 2_000;

const BOX: (f64, f64) = (112.0, 38.0);
/// Between the boxes of two columns.
const GAP: f64 = 46.0;
/// Above a box: where a band has its title.
const STRIP: f64 = 26.0;
/// Below a box: where long dashed lines run.
const CHANNEL: f64 = 16.0;
/// Width of a band beyond its boxes, left and right.
const PAD: f64 = 14.0;
/// Above the lanes, and below.
const HEAD: f64 = 64.0;
const FOOT: f64 = 44.0;
const SIZE: f64 = 12.0;

const LIGHT: &str = "\
.band { fill: #f2f4f8; stroke: #d9dee8; } .halo { stroke: #f2f4f8; stroke-width: 4; paint-order: stroke; }
.hears { stroke: #7d8698; fill: none; stroke-width: 1.4; stroke-dasharray: 5 3; } .knot { fill: #7d8698; }";
const DARK: &str = "\
.band { fill: #1d2129; stroke: #323845; } .halo { stroke: #1d2129; }
.hears { stroke: #98a2b3; } .knot { fill: #98a2b3; }";

/// The picture of all turns that are possible, or of those that were `played`; `None` if there are more than
/// [`MAX_TURNS`].
///
/// ```
/// use greenroom::{drawing, scenario};
///
/// let text = "id: hello\nagents: {ann: {}, ben: {}}\nphases: [{name: talk, agents: [ann, ben]}]";
/// let scenario = scenario::load("hello.yaml", text, &[]).scenario.expect("no mistakes");
/// let svg = drawing::svg(scenario.plan(), &scenario, None).expect("two turns");
/// assert!(svg.starts_with("<svg"));
/// ```
pub fn svg(plan: &Plan, scenario: &Scenario, played: Option<&BTreeSet<TurnId>>) -> Option<String> {
    if played.map_or(plan.n_turns(), BTreeSet::len) > MAX_TURNS {
        return None;
    }
    let turns = played.cloned().unwrap_or_else(|| plan.order().map(|(id, _)| id).collect());
    let layout = Layout::new(plan, &turns);
    let names = layout.agents.iter().map(|id| width(&label(scenario.agent(*id).name.as_str()), SIZE + 1.0));
    let left = 24.0 + names.fold(60.0, f64::max) + 48.0;
    let page = PlanPage { plan, scenario, layout: &layout, xs: xs(&layout, left) };
    Some(page.document().to_string() + "\n")
}

/// A name at the head of a lane.
fn label(name: &str) -> String {
    fitted(name, SIZE + 1.0, 200.0)
}

struct PlanPage<'a> {
    plan: &'a Plan,
    scenario: &'a Scenario,
    layout: &'a Layout,
    /// Left edge of each column's boxes.
    xs: Vec<f64>,
}

/// Left edges of the columns: the further the lines between two of them must go up or down, the wider their
/// gap.
fn xs(layout: &Layout, left: f64) -> Vec<f64> {
    let mut spans = vec![0; layout.n_columns()];
    for link in &layout.links {
        let lanes = || link.from.iter().chain(&link.to).map(|turn| layout.lane(*turn));
        let span = lanes().max().unwrap_or(0) - lanes().min().unwrap_or(0);
        let after = link.from.iter().map(|turn| layout.column(*turn));
        let before = link.to.iter().map(|turn| layout.column(*turn).saturating_sub(1));
        after.chain(before).for_each(|column| spans[column] = spans[column].max(span));
    }
    let gap = |span: usize| (GAP + 14.0 * span.saturating_sub(2) as f64).min(3.0 * GAP);
    let next = |x: &mut f64, span: usize| {
        let here = *x;
        *x += BOX.0 + gap(span);
        Some(here)
    };
    spans.into_iter().scan(left, next).collect()
}

impl PlanPage<'_> {
    fn document(&self) -> Document {
        let title = plain(&self.scenario.title);
        let counted = |n: usize, noun: &str| format!("{n} {noun}{}", if n == 1 { "" } else { "s" });
        let (n_turns, n_possible) = (self.layout.places.len(), self.plan.n_turns());
        let turns = match n_turns < n_possible {
            true => format!("{n_turns} of {} possible", counted(n_possible, "turn")),
            false => counted(n_turns, "turn"),
        };
        let others = [(self.layout.agents.len(), "agent"), (self.layout.bands.len(), "phase")];
        let others = others.map(|(n, noun)| counted(n, noun)).join(", ");
        let counts = format!("{turns}, {others}");
        let end = self.x(self.layout.n_columns().max(1) - 1) + BOX.0 + PAD;
        let right = (end + 20.0).max(width(&title, 18.0) + 40.0).max(520.0);
        let bottom = HEAD + self.layout.agents.len() as f64 * lane_height() + FOOT;
        let picture = paper((right, bottom), &title, [LIGHT, DARK])
            .add(text(&title, 20.0, 30.0, 18.0, "ink").set("font-weight", 700))
            .add(text(&counts, 20.0, 49.0, SIZE, "muted"));
        let layout = self.layout;
        let picture = layout.bands.iter().map(|band| self.band(band)).fold(picture, Document::add);
        let picture = (0..layout.agents.len()).map(|lane| self.lane(lane, end)).fold(picture, Document::add);
        let picture = layout.links.iter().map(|link| self.link(link)).fold(picture, Document::add);
        let memories = layout.memories.iter().map(|(from, to)| self.memory(*from, *to));
        let picture = memories.fold(picture, Document::add);
        let picture = layout.places.keys().map(|id| self.turn(*id)).fold(picture, Document::add);
        let picture = layout.bands.iter().map(|band| self.band_title(band)).fold(picture, Document::add);
        picture.add(legend(bottom - 18.0))
    }

    /// Left edge of a column's boxes.
    fn x(&self, column: usize) -> f64 {
        self.xs.get(column).copied().unwrap_or_default()
    }

    /// Left edge and middle of a turn's box.
    fn place(&self, turn: TurnId) -> (f64, f64) {
        (self.x(self.layout.column(turn)), middle(self.layout.lane(turn)))
    }

    fn color(&self, lane: usize) -> String {
        color(self.scenario.agent(self.layout.agents[lane]).color, lane)
    }

    fn lane(&self, lane: usize, end: f64) -> Group {
        let agent = self.scenario.agent(self.layout.agents[lane]);
        let (y, color) = (middle(lane), self.color(lane));
        let name = text(&label(&agent.name), 38.0, y + 4.5, SIZE + 1.0, "ink").set("font-weight", 600);
        let line = line((self.x(0) - 36.0, y), (end, y)).set("stroke", color.clone());
        let dot = Circle::new().set("cx", 26).set("cy", y).set("r", 6).set("fill", color);
        let group = if agent.role.is_empty() { Group::new() } else { with_title(&agent.role) };
        group.add(line.set("stroke-opacity", 0.25)).add(dot).add(name)
    }

    fn band(&self, band: &Band) -> Rectangle {
        let (x, y) = (self.x(band.columns.0) - PAD, HEAD + band.lanes.0 as f64 * lane_height() + 3.0);
        let n_lanes = (band.lanes.1 - band.lanes.0 + 1) as f64;
        let size = (self.band_width(band), n_lanes * lane_height() - 6.0);
        rectangle((x, y), size).set("class", "band").set("rx", 10)
    }

    fn band_width(&self, band: &Band) -> f64 {
        self.x(band.columns.1) + BOX.0 + 2.0 * PAD - self.x(band.columns.0)
    }

    fn band_title(&self, band: &Band) -> Group {
        let label = &self.scenario.phase(band.phase).label;
        let shown = fitted(label, SIZE - 1.0, self.band_width(band) - 16.0);
        let (x, y) = (self.x(band.columns.0) - PAD + 8.0, HEAD + band.lanes.0 as f64 * lane_height() + 18.0);
        let shown = text(&shown, x, y, SIZE - 1.0, "ink halo").set("font-weight", 600);
        with_title(label).add(shown)
    }

    fn turn(&self, id: TurnId) -> Group {
        let turn = self.plan.turn(id);
        let (x, y) = self.place(id);
        let color = self.color(self.layout.lane(id));
        let rect = || rectangle((x, y - BOX.1 / 2.0), BOX).set("rx", 8);
        let middle = x + BOX.0 / 2.0;
        let name = fitted(&self.scenario.agent(turn.speaker).name, SIZE, BOX.0 - 8.0);
        let tinted = rect().set("class", "turn").set("fill", color.clone()).set("fill-opacity", 0.2);
        with_title(&turn.path)
            .add(rect().set("class", "paper"))
            .add(tinted.set("stroke", color).set("stroke-width", 1.6))
            .add(centred(&name, middle, y - 2.0, SIZE, "ink").set("font-weight", 600))
            .add(centred(&format!("round {}", turn.round), middle, y + 12.0, SIZE - 2.0, "muted"))
    }

    fn memory(&self, from: TurnId, to: TurnId) -> Line {
        let ((x, y), (end, _)) = (self.place(from), self.place(to));
        let color = self.color(self.layout.lane(from));
        line((x + BOX.0, y), (end, y)).set("class", "memory").set("stroke", color).set("stroke-width", 3)
    }

    /// One dashed line, or several that meet in a knot right of those who spoke.
    fn link(&self, link: &Link) -> Group {
        let right = |turn: &TurnId| {
            let (x, y) = self.place(*turn);
            (x + BOX.0, y)
        };
        if let ([from], [to]) = (link.from.as_slice(), link.to.as_slice()) {
            return Group::new().add(self.dashed(right(from), *to, self.layout.column(*from)));
        }
        let column = self.layout.column(link.from[0]);
        let all = || link.from.iter().chain(&link.to).map(|turn| self.layout.lane(*turn));
        let lane = (all().min().unwrap_or(0) + all().max().unwrap_or(0)) / 2;
        // Between two lanes: on one of them it would look like a turn of that agent's.
        let knot = ((self.x(column) + BOX.0 + self.x(column + 1)) / 2.0, channel(lane));
        let into = link.from.iter().map(|from| dashed(curve(right(from), knot)));
        let out = link.to.iter().map(|to| self.dashed(knot, *to, column));
        let group = into.chain(out).fold(Group::new(), Group::add);
        group.add(Circle::new().set("class", "knot").set("cx", knot.0).set("cy", knot.1).set("r", 3.5))
    }

    /// To the next column straight through the gap; further along the channel below the hearer's lane.
    fn dashed(&self, from: (f64, f64), to: TurnId, column: usize) -> Path {
        let end = self.place(to);
        if self.layout.column(to) <= column + 1 {
            return dashed(curve(from, end));
        }
        let channel = channel(self.layout.lane(to));
        let before = self.layout.column(to) - 1;
        let (first, last) = (self.x(column + 1), self.x(before) + BOX.0);
        let down = curve(from, (first, channel));
        let up = curve((last, channel), end);
        dashed(format!("{down} H{last} {}", up.split_once(' ').map_or("", |(_, rest)| rest)))
    }
}

const fn lane_height() -> f64 {
    STRIP + BOX.1 + CHANNEL
}

/// Height of the middle of a lane's boxes.
fn middle(lane: usize) -> f64 {
    HEAD + lane as f64 * lane_height() + STRIP + BOX.1 / 2.0
}

/// Height of the middle of the channel below a lane's boxes.
fn channel(lane: usize) -> f64 {
    middle(lane) + BOX.1 / 2.0 + CHANNEL / 2.0
}

/// `Mx,y Cx,y x,y x,y`, level at both ends.
fn curve(from: (f64, f64), to: (f64, f64)) -> String {
    let half = (from.0 + to.0) / 2.0;
    format!("M{},{} C{half},{} {half},{} {},{}", from.0, from.1, from.1, to.1, to.0, to.1)
}

fn dashed(way: String) -> Path {
    Path::new().set("class", "hears").set("d", way)
}

fn legend(y: f64) -> Group {
    let memory = line((20.0, y), (50.0, y)).set("stroke", "#7d8698").set("stroke-width", 3);
    let words = "turns in one column may run at the same time";
    Group::new()
        .add(memory)
        .add(text("remembers", 57.0, y + 4.0, SIZE - 1.0, "muted"))
        .add(dashed(format!("M{},{y} H{}", 140.0, 170.0)))
        .add(text("hears", 177.0, y + 4.0, SIZE - 1.0, "muted"))
        .add(text(words, 230.0, y + 4.0, SIZE - 1.0, "muted"))
}
