//! Each agent's view of the run: everything that it read and said, in order, and at each turn how much of
//! that was in its cache.

use super::cast::{CastIndex, Member};
use super::dialogue::{TurnLine, label};
use super::sources::ReportSources;
use crate::backend::{CacheSource, StopReason};
use crate::scenario::Scenario;
use crate::timeline::{Event, StageKind};
use crate::trace::TurnTrace;
use indexmap::IndexMap;
use serde::Serialize;
use std::collections::HashMap;

/// One memory: an agent's, or that of an ephemeral agent in one phase.
#[derive(Debug, Serialize)]
pub(super) struct AgentView {
    member: Member,
    /// The phase, for an ephemeral agent.
    phase: Option<String>,
    system: String,
    /// The system prompt's field and line.
    origin: String,
    /// Texts that it has from an earlier run.
    brought: Vec<ReadText>,
    turns: Vec<TurnView>,
}

/// The texts that an agent read before one reply, and the reply.
#[derive(Debug, Serialize)]
struct TurnView {
    n: usize,
    is_summary: bool,
    phase: String,
    round: Option<usize>,
    /// The part of the prompt that was in the cache; none without a trace.
    border: Option<Border>,
    read: Vec<ReadText>,
    said: String,
    n_ids: usize,
    is_cut: bool,
}

/// A text that an agent read.
#[derive(Debug, Serialize)]
struct ReadText {
    /// Kind of text.
    kind: &'static str,
    /// The speaker, if the text was heard.
    from: Option<String>,
    /// Number of the turn in which it was said.
    n: Option<usize>,
    /// Field and line in the scenario.
    origin: String,
    text: String,
}

/// The part of a prompt that was in the cache.
#[derive(Debug, Serialize)]
struct Border {
    reused: usize,
    prefilled: usize,
    recomputed: usize,
    /// Source of the reused tokens.
    source: &'static str,
    kind: &'static str,
    /// Devices whose memory was adopted.
    adopted: Option<String>,
}

impl Border {
    fn new(cost: &TurnTrace) -> Option<Self> {
        let kind = cost.kind?.word();
        let source = match cost.source {
            Some(CacheSource::Memory) => "memory",
            Some(CacheSource::Disk) => "disk",
            _ => "",
        };
        let tokens = cost.tokens;
        let (reused, prefilled, recomputed) = (tokens.reused, tokens.prefilled, tokens.recomputed);
        Some(Self { reused, prefilled, recomputed, source, kind, adopted: cost.adopted.clone() })
    }
}

/// The views, in the order of the cast.
pub(super) fn views(sources: &ReportSources, cast: &CastIndex, lines: &[TurnLine<'_>]) -> Vec<AgentView> {
    let numbers: HashMap<&str, usize> =
        lines.iter().map(|line| (line.record.path.as_str(), line.n)).collect();
    let mut views: IndexMap<(usize, Option<&str>), AgentView> = IndexMap::new();
    for line in lines {
        let Some(member) = cast.get(&line.record.agent) else { continue };
        let phase = (!member.is_permanent).then(|| line.phase());
        let view = views.entry((member.place, phase)).or_insert_with(|| born(sources, member, phase));
        view.turns.push(turn(sources, line, &numbers));
    }
    // A stable sort: the phases of an ephemeral agent stay in order.
    views.sort_by(|(one, _), _, (other, _), _| one.cmp(other));
    views.into_values().collect()
}

fn born(sources: &ReportSources, member: &Member, phase: Option<&str>) -> AgentView {
    let scenario = sources.plan.as_ref().and(sources.scenario.as_ref());
    let origin = scenario.and_then(|scenario| {
        let agent = scenario.agent(scenario.agent_by_key(&member.key)?);
        Some(place(sources, scenario, &agent.system_path.to_string()))
    });
    let brought = sources.brought.get(&member.key).filter(|_| phase.is_none());
    let brought = brought.into_iter().flat_map(|timeline| timeline.events());
    AgentView {
        phase: phase.map(|phase| label(sources, phase)),
        system: member.system.trim().to_string(),
        origin: origin.unwrap_or_default(),
        // Lines of that run's scenario may have moved since.
        brought: brought.filter_map(|event| entry(event, None, String::new())).collect(),
        turns: Vec::new(),
        member: member.clone(),
    }
}

fn turn(sources: &ReportSources, line: &TurnLine<'_>, numbers: &HashMap<&str, usize>) -> TurnView {
    let record = line.record;
    let known = sources.read.get(&record.path).zip(sources.scenario.as_ref());
    let read = match known {
        Some((read, scenario)) => {
            let events = read.events.iter().filter_map(|event| match event {
                Event::Heard { origin, .. } => {
                    entry(event, numbers.get(origin.as_str()).copied(), String::new())
                }
                Event::Stage { kind: StageKind::Added, origin, .. } => {
                    entry(event, None, format!("before {origin}"))
                }
                Event::Stage { origin, .. } => entry(event, None, place(sources, scenario, origin)),
                Event::Called { .. } => entry(event, None, String::new()),
                _ => None,
            });
            events.collect()
        }
        None => vec![ReadText {
            kind: "read",
            from: None,
            n: None,
            origin: String::new(),
            text: record.delta.trim().to_string(),
        }],
    };
    let cost = sources.trace.as_ref().and_then(|trace| trace.turns.get(&record.path));
    TurnView {
        n: line.n,
        is_summary: line.is_summary,
        phase: label(sources, line.phase()),
        round: line.round(),
        border: cost.and_then(Border::new),
        read,
        // An agent remembers what it sampled, not what others heard of it.
        said: record.raw.trim().to_string(),
        n_ids: record.tokens.len(),
        is_cut: record.stop == StopReason::Length,
    }
}

fn entry(event: &Event, n: Option<usize>, origin: String) -> Option<ReadText> {
    let (kind, from, text) = match event {
        Event::System(_) => return None,
        Event::Stage { kind, text, .. } => (word(*kind), None, text.clone()),
        Event::Heard { from, text, .. } => ("heard", Some(from.clone()), text.clone()),
        Event::Said { raw, .. } => ("said", None, raw.to_string()),
        Event::Called { call, result, .. } => ("called", None, format!("{call}\n{result}")),
    };
    Some(ReadText { kind, from, n, origin, text: text.trim().to_string() })
}

fn word(kind: StageKind) -> &'static str {
    match kind {
        StageKind::Opening => "opening",
        StageKind::Private => "private opening",
        StageKind::Format => "debate format",
        StageKind::Vote => "vote",
        StageKind::Announcement => "announcement",
        StageKind::Added => "added by the fork",
        StageKind::Summary => "summary",
        StageKind::Note => "note",
        StageKind::Cue => "cue",
    }
}

/// A field with its file and line; without the file's folders, which are useless to other readers.
fn place(sources: &ReportSources, scenario: &Scenario, field: &str) -> String {
    if field.is_empty() {
        return String::new();
    }
    let path = crate::scenario::Path::parse(field);
    let (name, line, _) = scenario.sources.place(scenario.tree.key(&path));
    let is_main = name == scenario.sources.main().name;
    let name = if is_main { &sources.transcript.header.record.scenario.path } else { name };
    let name = std::path::Path::new(name).file_name().map_or(name.into(), |name| name.to_string_lossy());
    format!("{}, {name}:{line}", path)
}
