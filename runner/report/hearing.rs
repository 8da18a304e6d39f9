//! Table of who heard what: agents by turns, or, if there are too many turns, agents by phases with counts.

use super::cast::{CastIndex, Member};
use super::dialogue::{TurnLine, label, planned};
use super::sources::ReportSources;
use crate::timeline::Event;
use serde::Serialize;
use std::collections::HashSet;

/// Maximum number of turns with a separate column.
const MAX_COLUMNS: usize = 120;

/// The table.
#[derive(Debug, Serialize)]
pub(super) struct Hearing {
    phases: Vec<PhaseHearing>,
    /// Numbers of the turns; empty where columns are phases.
    turns: Vec<usize>,
    rows: Vec<HearingRow>,
}

#[derive(Debug, Serialize)]
struct PhaseHearing {
    label: String,
    n_turns: usize,
}

#[derive(Debug, Serialize)]
struct HearingRow {
    member: Member,
    /// By turn: `said`, `heard`, `told` (and did not speak again) or `not`.
    cells: Vec<&'static str>,
    /// By phase.
    counts: Vec<HearingCounts>,
}

#[derive(Debug, Default, Serialize)]
struct HearingCounts {
    said: usize,
    heard: usize,
    told: usize,
    not: usize,
}

/// The table; `None` if the recording alone is not enough.
pub(super) fn hearing(sources: &ReportSources, cast: &CastIndex, lines: &[TurnLine<'_>]) -> Option<Hearing> {
    let lines: Vec<TurnLine<'_>> = lines.iter().filter(|line| !line.is_summary).copied().collect();
    let known = lines.iter().all(|line| planned(sources, &line.record.path).is_some());
    if lines.is_empty() || !known {
        return None;
    }
    let read = read(sources, &lines);
    let phases = lines.chunk_by(|one, next| one.phase() == next.phase());
    let phases =
        phases.map(|lines| PhaseHearing { label: label(sources, lines[0].phase()), n_turns: lines.len() });
    let phases: Vec<PhaseHearing> = phases.collect();
    let by_turn = lines.len() <= MAX_COLUMNS;
    let row = |member: &Member| {
        let cells = lines.iter().map(|line| cell(sources, member, line, &read));
        let cells: Vec<&'static str> = cells.collect();
        let mut counts = Vec::new();
        let mut rest = cells.as_slice();
        for phase in phases.iter().filter(|_| !by_turn) {
            let (here, after) = rest.split_at(phase.n_turns.min(rest.len()));
            counts.push(HearingCounts::of(here));
            rest = after;
        }
        HearingRow { member: member.clone(), cells: if by_turn { cells } else { Vec::new() }, counts }
    };
    let rows = cast.members().map(row).collect();
    let turns = if by_turn { lines.iter().map(|line| line.n).collect() } else { Vec::new() };
    Some(Hearing { phases, turns, rows })
}

/// Pairs of an agent's key and the path of a turn that it heard.
fn read<'a>(sources: &'a ReportSources, lines: &[TurnLine<'a>]) -> HashSet<(&'a str, &'a str)> {
    let mut read = HashSet::new();
    for line in lines {
        let events = sources.read.get(&line.record.path).into_iter().flat_map(|read| &read.events);
        for event in events {
            if let Event::Heard { origin, .. } = event {
                read.insert((line.record.agent.as_str(), origin.as_str()));
            }
        }
    }
    read
}

fn cell(
    sources: &ReportSources,
    member: &Member,
    line: &TurnLine<'_>,
    read: &HashSet<(&str, &str)>,
) -> &'static str {
    if line.record.agent == member.key {
        return "said";
    }
    if read.contains(&(member.key.as_str(), line.record.path.as_str())) {
        return "heard";
    }
    let was_told = planned(sources, &line.record.path).is_some_and(|(scenario, turn)| {
        let agent = scenario.agent_by_key(&member.key);
        let is_there = |agent| scenario.phase(turn.phase).agents.contains(&agent);
        agent.is_some_and(|agent| is_there(agent) && turn.audience.hears(agent))
    });
    if was_told && !line.record.spoken.is_empty() { "told" } else { "not" }
}

impl HearingCounts {
    fn of(cells: &[&str]) -> Self {
        let n = |word: &str| cells.iter().filter(|cell| **cell == word).count();
        Self { said: n("said"), heard: n("heard"), told: n("told"), not: n("not") }
    }
}
