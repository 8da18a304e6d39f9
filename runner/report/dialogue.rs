//! The dialogue, phase by phase: who spoke to whom, and what was chosen with which probabilities.

use super::cast::CastIndex;
use super::sources::ReportSources;
use super::text;
use crate::backend::StopReason;
use crate::prompt::Direction;
use crate::scenario::{AgentId, Audience, Purpose, Scenario, Turn, TurnId};
use crate::timeline::{Event, StageKind};
use crate::transcript::{CallRecord, ChoiceRecord, Odds, Recorded, Transcript, TurnRecord, is_summary};
use serde::Serialize;
use std::collections::BTreeSet;

/// A recorded turn with its number.
#[derive(Clone, Copy, Debug)]
pub(super) struct TurnLine<'a> {
    /// Counted from 1; a summary has the number of the turn that follows it.
    pub(super) n: usize,
    /// True if an agent summarizes its full memory.
    pub(super) is_summary: bool,
    /// True for a tool call, which has the number of its turn.
    pub(super) is_call: bool,
    /// The calls that were made in this turn.
    calls: &'a [Recorded<TurnRecord>],
    pub(super) record: &'a TurnRecord,
    /// The temperature at which it was sampled.
    temperature: f32,
}

impl<'a> TurnLine<'a> {
    /// All lines of a recording.
    pub(super) fn all(transcript: &'a Transcript) -> Vec<Self> {
        let (mut n, mut n_calls) = (1, 0);
        let header = &transcript.header.record;
        let number = |(at, record): (usize, &'a TurnRecord)| {
            let (is_summary, is_call) = (is_summary(&record.path), record.call.is_some());
            let calls = &transcript.turns[at - n_calls..at];
            n_calls = if is_call { n_calls + 1 } else { 0 };
            let temperature = header.sampling_of(record, at).temperature;
            let line = Self { n, is_summary, is_call, calls, record, temperature };
            n += usize::from(!record.is_aside());
            line
        };
        transcript.turns.iter().map(|turn| &turn.record).enumerate().map(number).collect()
    }

    pub(super) fn phase(&self) -> &'a str {
        self.record.path.split('/').next().unwrap_or_default()
    }

    pub(super) fn round(&self) -> Option<usize> {
        self.record.path.split('/').nth(1)?.parse().ok()
    }
}

/// The turns of a phase.
#[derive(Debug, Serialize)]
pub(super) struct PhaseView {
    label: String,
    /// What is read, where nobody has a turn.
    lines: Vec<StageLine>,
    turns: Vec<Spoken>,
}

/// A text of the stage that some read.
#[derive(Debug, Serialize)]
struct StageLine {
    /// Names of its readers; none: everybody who is present.
    to: Vec<String>,
    text: String,
}

/// A turn on the page.
#[derive(Debug, Serialize)]
struct Spoken {
    n: usize,
    is_summary: bool,
    path: String,
    /// The round that begins with it, if there is more than one.
    begins_round: Option<usize>,
    /// Texts of the stage that everybody reads before it.
    directions: Vec<String>,
    place: usize,
    name: String,
    text: String,
    /// The tool calls made before it.
    calls: Vec<CallView>,
    /// `public`, `whisper`, `unheard`; empty: not known.
    heard: &'static str,
    /// Names of a whisper's recipients (`to`), and of those who overhear it (`by`).
    to: Vec<String>,
    by: Vec<String>,
    /// The purpose of the reply, if no agent hears it.
    purpose: &'static str,
    choice: Option<ChoiceView>,
    is_cut: bool,
}

/// A call of a tool.
#[derive(Debug, Serialize)]
struct CallView {
    call: String,
    result: String,
    failed: bool,
}

#[derive(Debug, Serialize)]
struct ChoiceView {
    is_invalid: bool,
    /// Probability that the model would say any of the options; none if no model was asked.
    mass: Option<String>,
    is_low: bool,
    /// The temperature at which one of them was drawn.
    temperature: String,
    options: Vec<OptionView>,
}

#[derive(Debug, Serialize)]
struct OptionView {
    text: String,
    is_chosen: bool,
    /// Per cent, at the run's temperature; none if no model was asked.
    share: Option<f64>,
}

/// The displayed name of a phase.
pub(super) fn label(sources: &ReportSources, phase: &str) -> String {
    let scenario = sources.scenario.as_ref();
    let known = scenario.and_then(|scenario| Some(&scenario.phase(scenario.phase_by_name(phase)?).label));
    known.map_or(phase.to_string(), Clone::clone)
}

/// The dialogue.
pub(super) fn scenes(sources: &ReportSources, cast: &CastIndex, lines: &[TurnLine<'_>]) -> Vec<PhaseView> {
    let mut shown = BTreeSet::new();
    let mut scene = |lines: &[TurnLine<'_>]| {
        let last = lines.iter().filter_map(TurnLine::round).max().unwrap_or(1);
        let mut round = None;
        let turns = lines.iter().map(|line| {
            let mut spoken = spoken(sources, cast, line);
            if round.is_none() {
                let route = sources.transcript.routes().find(|route| route.path == line.phase());
                spoken.directions.extend(route.map(|route| route.told(|key| cast.name(key))));
            }
            spoken.directions.extend(directions(sources, line, &mut shown));
            if line.round() != round && last > 1 {
                spoken.begins_round = line.round();
            }
            round = line.round();
            spoken
        });
        PhaseView {
            lines: Vec::new(),
            turns: turns.collect(),
            label: lines.first().map_or(String::new(), |l| label(sources, l.phase())),
        }
    };
    let mut silent = sources.silent.as_slice();
    let mut scenes = Vec::new();
    for lines in lines.chunk_by(|one, next| one.phase() == next.phase()) {
        let first = lines.iter().find_map(|line| Some(sources.read.get(&line.record.path)?.turn));
        let before = silent.partition_point(|(turn, _)| first.is_some_and(|first| *turn <= first));
        scenes.extend(silent_scenes(sources, &silent[..before]));
        silent = &silent[before..];
        scenes.push(scene(lines));
    }
    scenes.extend(silent_scenes(sources, silent));
    scenes
}

/// Phases in which nobody has a turn.
fn silent_scenes(sources: &ReportSources, silent: &[(TurnId, Direction)]) -> Vec<PhaseView> {
    let Some(scenario) = &sources.scenario else { return Vec::new() };
    let line = |(_, line): &(TurnId, Direction)| StageLine {
        to: line.to.iter().flatten().map(|id| scenario.agent(*id).name.clone()).collect(),
        text: line.text.clone(),
    };
    let phases = silent.chunk_by(|(_, one), (_, next)| one.phase == next.phase);
    let phases = phases.map(|lines| PhaseView {
        label: scenario.phase(lines[0].1.phase).label.clone(),
        lines: lines.iter().map(line).collect(),
        turns: Vec::new(),
    });
    phases.collect()
}

/// Texts of the stage, shown once: openings that all share, results of votes, announcements.
fn directions<'a>(
    sources: &'a ReportSources,
    line: &TurnLine<'_>,
    shown: &mut BTreeSet<(&'a str, &'a str)>,
) -> Vec<String> {
    let is_silent = |origin: &str| {
        let scenario = sources.scenario.as_ref();
        let silent = sources.silent.iter().filter_map(|(_, line)| Some(scenario?.phase(line.phase)));
        silent.into_iter().any(|phase| phase.path.key("prompt").to_string() == origin)
    };
    let read = sources.read.get(&line.record.path);
    let texts = read.into_iter().flat_map(|read| &read.events).filter_map(|event| match event {
        Event::Stage { kind: StageKind::Opening, text, origin, .. }
            if origin.ends_with(".prompt") && !is_silent(origin) =>
        {
            Some((origin.as_str(), text.as_str()))
        }
        Event::Stage {
            kind: StageKind::Vote | StageKind::Announcement | StageKind::Added,
            text,
            origin,
            ..
        } => Some((origin.as_str(), text.as_str())),
        _ => None,
    });
    texts.filter(|text| shown.insert(*text)).map(|(_, text)| text.to_string()).collect()
}

fn spoken(sources: &ReportSources, cast: &CastIndex, line: &TurnLine<'_>) -> Spoken {
    let record = line.record;
    let mut spoken = Spoken {
        n: line.n,
        is_summary: line.is_summary,
        path: record.path.clone(),
        begins_round: None,
        directions: Vec::new(),
        place: cast.place(&record.agent),
        name: cast.name(&record.agent).to_string(),
        text: record.spoken.trim().to_string(),
        calls: line.calls.iter().filter_map(|line| line.record.call.as_ref()).map(call).collect(),
        heard: if line.is_summary { "unheard" } else { "" },
        to: Vec::new(),
        by: Vec::new(),
        purpose: "",
        choice: record.constraint.as_ref().map(|record| choice(record, line.temperature)),
        is_cut: record.stop == StopReason::Length,
    };
    if let Some((scenario, turn)) = planned(sources, &record.path) {
        let names = |ids: &[AgentId]| ids.iter().map(|id| scenario.agent(*id).name.clone()).collect();
        (spoken.heard, spoken.to, spoken.by) = match &turn.audience {
            _ if spoken.text.is_empty() => ("unheard", Vec::new(), Vec::new()),
            Audience::All => ("public", Vec::new(), Vec::new()),
            Audience::Whisper { to, by } => ("whisper", names(to), names(by)),
            Audience::Nobody => ("unheard", Vec::new(), Vec::new()),
        };
        spoken.purpose = match turn.purpose {
            Purpose::Speech => "",
            Purpose::Choice => "chooses",
            Purpose::Ballot { .. } => "votes",
            Purpose::Floor if turn.audience == Audience::Nobody => "is asked whether to cut in",
            Purpose::Floor => "says who speaks next",
        };
    }
    spoken
}

fn call(record: &CallRecord) -> CallView {
    CallView { call: record.quoted(), result: record.result.clone(), failed: record.failed }
}

/// The turn of the plan that matches a recorded turn.
pub(super) fn planned<'a>(sources: &'a ReportSources, path: &str) -> Option<(&'a Scenario, &'a Turn)> {
    let (plan, scenario) = (sources.plan.as_ref()?, sources.scenario.as_ref()?);
    Some((scenario, plan.turn(sources.read.get(path)?.turn)))
}

fn choice(record: &ChoiceRecord, temperature: f32) -> ChoiceView {
    let odds = record.odds(temperature);
    let share = |at: usize| odds.as_ref().and_then(|odds| odds.shares.get(at).copied());
    let option = |(at, option): (usize, &crate::transcript::OptionRecord)| OptionView {
        text: if option.text.is_empty() { text::value(&option.value) } else { option.text.clone() },
        is_chosen: !record.chosen.is_null() && option.value == record.chosen,
        share: share(at).map(|share| (1000.0 * share).round() / 10.0),
    };
    ChoiceView {
        is_invalid: record.chosen.is_null(),
        mass: odds.as_ref().map(|odds| Odds::in_percent(odds.mass)),
        is_low: odds.as_ref().is_some_and(Odds::is_low),
        temperature: temperature.to_string(),
        options: record.options.iter().enumerate().map(option).collect(),
    }
}
