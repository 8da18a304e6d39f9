//! Sources of a report: the recording, and every matching file next to it.
//!
//! The recording alone is enough. A matching scenario adds who heard what and where each text came from, a
//! trace adds what was computed; anything missing or mismatched is a [`Caveat`].
//!
//! A report is made from the transcript alone if need be: a replay adds what each agent read, as far as the
//! recording fits its scenario; what does not fit is reported first, and no graph is drawn. All that its
//! templates print is cleaned and escaped in one formatter, and the markup is well-formed XML.

use crate::diff::diff_lines;
use crate::prompt::{Direction, Directions, Memories};
use crate::replay::{self, Search, brought_along, load_scenario, replay_watched};
use crate::scenario::{Plan, Scenario, TimelineId, TurnId};
use crate::timeline::{Event, Timeline};
use crate::trace::{self, Traced};
use crate::transcript::{Cause, Drift, Transcript, summary_of};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// A run, ready to be reported.
#[derive(Debug)]
pub struct ReportSources {
    /// The recording.
    pub transcript: Transcript,
    /// Found near the recording; it may have changed since.
    pub(super) scenario: Option<Arc<Scenario>>,
    /// The plan that the recording follows as far as it goes; `None` if it does not.
    pub(super) plan: Option<Arc<Plan>>,
    /// Events read at each turn, by path, as far as the recording fits the scenario.
    pub(super) read: BTreeMap<String, ReadEvents>,
    /// What was read in phases in which nobody has a turn, each before a turn of the plan.
    pub(super) silent: Vec<(TurnId, Direction)>,
    /// Timelines that agents have from an earlier run, by key.
    pub(super) brought: BTreeMap<String, Timeline>,
    pub(super) trace: Option<Traced>,
    /// Caveats to show first.
    pub caveats: Vec<Caveat>,
}

/// Events that an agent read before one turn.
#[derive(Debug)]
pub(super) struct ReadEvents {
    /// The turn in the plan.
    pub(super) turn: TurnId,
    /// Everything that it read since its last reply, or in a new epoch.
    pub(super) events: Vec<Event>,
}

/// Reason why a report is incomplete, or not the same as the scenario would give today.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Caveat {
    /// A short title.
    pub title: String,
    /// The details, and what to do.
    pub detail: String,
    /// Lines of a difference: `-` as recorded, `+` now, ` ` both.
    pub difference: Vec<(String, String)>,
}

impl Caveat {
    fn new(title: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { title: title.into(), detail: detail.into(), difference: Vec::new() }
    }

    fn drift(scenario: &Scenario, sources: &Transcript, drift: &Drift) -> Self {
        let header = &sources.header.record;
        let line = drift.line.map_or(String::new(), |line| format!(", line {line} of the transcript"));
        let origin = replay::origin(scenario, header, drift);
        let origin = origin.map_or(String::new(), |place| {
            format!(" It comes from {}, line {} of {}.", place.field, place.line, place.file)
        });
        let detail = format!("At {}{line}: {}.{origin}", drift.path, drift.detail);
        let title = format!("This run no longer matches its scenario: {}", drift.cause.words());
        Self { difference: difference(&drift.recorded, &drift.now), ..Self::new(title, detail) }
    }
}

fn difference(recorded: &str, now: &str) -> Vec<(String, String)> {
    let lines = if recorded == now { Vec::new() } else { diff_lines(recorded, now) };
    lines.into_iter().map(|(sign, text)| (sign.to_string(), text)).collect()
}

impl ReportSources {
    /// The turns of the plan that were played.
    pub(super) fn played(&self) -> BTreeSet<TurnId> {
        let turns = self.transcript.turns.iter().filter(|turn| !turn.record.is_aside());
        turns.filter_map(|turn| Some(self.read.get(&turn.record.path)?.turn)).collect()
    }

    /// Reads a run's transcript, and its scenario (looked for, if it is not given) and trace, if they are
    /// there.
    ///
    /// # Errors
    /// The transcript can't be read, or a scenario that was given.
    pub fn open(run: &Path, search: &Search) -> anyhow::Result<Self> {
        let file = replay::transcript_file(run);
        let transcript = Transcript::open(&file)?;
        let trace = Traced::open(&file.with_file_name(trace::FILE));
        let (plan, read, silent, brought, caveats) = Default::default();
        let mut sources = Self { transcript, scenario: None, plan, read, silent, brought, trace, caveats };
        sources.incomplete();
        sources.carried();
        sources.find_scenario(&file, search)?;
        if let Some(scenario) = sources.scenario.clone() {
            sources.follow(&file, &scenario, search.root.as_deref());
        } else {
            sources.altered();
        }
        Ok(sources)
    }

    fn incomplete(&mut self) {
        let Transcript { turns, footer, torn, .. } = &self.transcript;
        if footer.is_none() {
            let torn = torn.as_ref().map_or("", |_| " Its last line is incomplete.");
            let detail = format!(
                "It was interrupted after {}; there are no outcomes yet.{torn} Continue it with `greenroom \
                 run … --resume`.",
                if turns.len() == 1 { "1 turn".to_string() } else { format!("{} turns", turns.len()) },
            );
            self.caveats.push(Caveat::new("This run is not complete", detail));
        }
    }

    /// Adds the caveat that no model gave these replies to these texts.
    fn carried(&mut self) {
        if self.transcript.header.record.carried.is_some() {
            let detail = "They were recorded before the scenario's texts changed; no model has read the \
                          texts before them as shown here. `greenroom replay --rerun` plays the run again.";
            self.caveats.push(Caveat::new("The replies are carried over from an earlier recording", detail));
        }
    }

    fn find_scenario(&mut self, file: &Path, search: &Search) -> anyhow::Result<()> {
        let header = &self.transcript.header.record;
        let named = &header.scenario.path;
        let missing = "This report is therefore made from the transcript alone: it has no graph and does not \
                       show who heard what.";
        let loaded = match load_scenario(file, header, search) {
            Ok(loaded) => loaded,
            Err(error) if search.scenario.is_some() => return Err(error),
            // The reason may name folders of this machine, but the page is meant to be shared.
            Err(_) => {
                let detail = format!(
                    "{named} was not found near the transcript or in the current folder, or can't be read. \
                     {missing}"
                );
                self.caveats.push(Caveat::new("The scenario was not found", detail));
                return Ok(());
            }
        };
        if loaded.scenario.is_none() {
            let first = loaded.report.diagnostics.first();
            let first = first.map_or(String::new(), |found| {
                format!(" Line {}: {}.", loaded.report.sources.place(found.span).1, found.message)
            });
            let detail = format!("{named} can no longer be played.{first} {missing}");
            self.caveats.push(Caveat::new("The scenario has errors now", detail));
        }
        self.scenario = loaded.scenario;
        Ok(())
    }

    /// Replays the recording to find what everybody read, as far as it matches.
    fn follow(&mut self, file: &Path, scenario: &Arc<Scenario>, root: Option<&Path>) {
        match brought_along(file, &self.transcript.header.record, root) {
            Ok(brought) => self.brought = brought,
            Err(error) => {
                let continued = self.transcript.header.record.continues.as_ref();
                let continued = continued.map_or("", |continues| continues.path.as_str());
                let why = error.downcast_ref::<Drift>().map_or("was not found", |_| "has changed since then");
                let detail = format!("{continued} {why}. What agents remember from it is not shown.");
                self.caveats.push(Caveat::new("The run that this one continues can't be read", detail));
                return;
            }
        }
        let plan = scenario.plan().clone();
        let recorded = self.transcript.turns.iter().map(|turn| turn.record.path.clone()).collect();
        let mut watcher = Watcher::new(&plan, recorded);
        for (key, timeline) in &self.brought {
            let agent = scenario.agent_by_key(key).map(|agent| TimelineId { agent, phase: None });
            watcher.known.extend(agent.map(|id| (id, timeline.events().len())));
        }
        let replayed =
            replay_watched(scenario, &self.transcript, self.brought.clone(), &mut |id, memories| {
                let timeline = memories.look(plan.turn(id).timeline);
                watcher.see(id, timeline.map(Timeline::events).unwrap_or_default());
                watcher.direct(id, memories);
            });
        if let Ok(replayed) = &replayed {
            watcher.direct(plan.end(), &replayed.memories);
        }
        (self.read, self.silent) = (watcher.read, watcher.silent);
        let Err(error) = replayed else {
            self.plan = Some(plan);
            return;
        };
        match error.downcast_ref::<Drift>() {
            // Already reported: there is no footer.
            Some(drift) if self.ends_early(drift) => self.plan = Some(plan),
            Some(drift) => self.caveats.insert(0, Caveat::drift(scenario, &self.transcript, drift)),
            None => {
                let title = "This run no longer matches its scenario";
                self.caveats.insert(0, Caveat::new(title, error.to_string()));
            }
        }
    }

    /// Tells whether a drift means only that the recording ends before the plan.
    fn ends_early(&self, drift: &Drift) -> bool {
        let torn = drift.cause == Cause::Unreadable && self.transcript.torn.is_some();
        self.transcript.footer.is_none() && (drift.cause == Cause::NoFooter || torn)
    }

    /// Without a scenario only the hashes show whether a line is unchanged.
    fn altered(&mut self) {
        let Transcript { header, turns, footer, .. } = &self.transcript;
        let lines = std::iter::once((header.line, header.intact))
            .chain(turns.iter().map(|turn| (turn.line, turn.intact)))
            .chain(footer.iter().map(|footer| (footer.line, footer.intact)));
        if let Some((line, _)) = lines.into_iter().find(|(_, intact)| !intact) {
            let detail = format!("Line {line} of the transcript does not match its hash.");
            self.caveats.insert(0, Caveat::new("This record was altered after it was written", detail));
        }
    }
}

/// Notes what is new in the speaker's memory at each turn.
struct Watcher<'a> {
    plan: &'a Plan,
    /// Paths of all recorded lines.
    recorded: BTreeSet<String>,
    /// Events of each memory that were there before.
    known: BTreeMap<TimelineId, usize>,
    read: BTreeMap<String, ReadEvents>,
    directions: Directions,
    /// The turns up to here were looked at for lines in `silent`.
    n_directed: usize,
    silent: Vec<(TurnId, Direction)>,
}

impl<'a> Watcher<'a> {
    fn new(plan: &'a Plan, recorded: BTreeSet<String>) -> Self {
        let directions = Directions::of_silent_phases(plan);
        let (known, read, n_directed, silent) = Default::default();
        Self { plan, recorded, known, read, directions, n_directed, silent }
    }

    /// Notes what was read in silent phases before a turn.
    fn direct(&mut self, until: TurnId, memories: &Memories) {
        for id in (self.n_directed..=until.0).map(TurnId) {
            let lines = memories.directions(&self.directions, id).into_iter();
            let is_silent = |line: &Direction| self.plan.order().all(|(_, turn)| turn.phase != line.phase);
            self.silent.extend(lines.filter(is_silent).map(|line| (id, line)));
        }
        self.n_directed = self.n_directed.max(until.0 + 1);
    }

    fn see(&mut self, turn: TurnId, events: &[Event]) {
        let here = self.plan.turn(turn);
        let begins_epoch = self.recorded.contains(&summary_of(&here.path));
        let known = self.known.insert(here.timeline, events.len()).filter(|_| !begins_epoch).unwrap_or(0);
        let new = events.get(known..).unwrap_or_default().iter();
        // The system prompt is shown separately, and the reply is in the recording.
        let new = new.filter(|event| !matches!(event, Event::System(_) | Event::Said { .. }));
        self.read.insert(here.path.clone(), ReadEvents { turn, events: new.cloned().collect() });
    }
}
