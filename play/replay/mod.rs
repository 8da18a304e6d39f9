//! Holds a recording against its scenario, without a model: recompiles, renders again, feeds the recorded
//! replies, and reports the first link that broke.

mod carry;
mod chain;
mod copy;
mod place;

pub use carry::{carry, header_now};
pub use chain::{
    Earlier, Search, brought_along, earlier, find_named, load_scenario, load_with, transcript_file,
};
pub use copy::{is_own_copy, load_copy, other_scenario};
pub use place::{Place, cast, origin, provenance};

use crate::outcome;
use crate::prompt::{Conversation, Edits, Memories};
use crate::timeline::Timeline;
use crate::transcript::{
    Cause, Drift, Footer, Header, InterTurnRecord, PROGRAM, Recorded, Recorder, RouteRecord, Transcript,
    TurnRecord,
};
use crate::walk::{LineSource, call_again, follow, replay_epoch};
use anyhow::Context as _;
use greenroom_scenario::{Plan, Scenario, Seeds, Turn, TurnId};
use place::{case_differs, cast_differs, notes, settings_differ, tools_differ};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A recording that fits.
#[derive(Debug)]
pub struct Replayed {
    /// Everybody's memories at the end.
    pub memories: Memories,
    /// Hash of all lines.
    pub hash: String,
    /// The results of the run, evaluated again.
    pub footer: Footer,
    /// Differences that changed nothing of what was read or said.
    pub notes: Vec<String>,
}

/// Replays a whole recording.
///
/// # Errors
/// [`Drift`] for the first broken link; anything else is trouble with files.
pub fn replay(
    scenario: &Arc<Scenario>,
    transcript: &Transcript,
    earlier: BTreeMap<String, Timeline>,
) -> anyhow::Result<Replayed> {
    replay_watched(scenario, transcript, earlier, &mut |_, _| {})
}

/// As [`replay`]; `watch` sees the memories after each recorded turn that fits, up to the link that broke.
///
/// # Errors
/// As [`replay`].
pub fn replay_watched(
    scenario: &Arc<Scenario>,
    transcript: &Transcript,
    earlier: BTreeMap<String, Timeline>,
    watch: &mut dyn FnMut(TurnId, &Memories),
) -> anyhow::Result<Replayed> {
    let header = &transcript.header;
    if !header.intact {
        let drift = Drift::new("header", Cause::RecordAltered, "the header does not match its hash");
        return Err(drift.at_line(1).into());
    }
    let (mut reading, mut memories) = ReplayReading::begin(scenario, transcript, earlier, watch)?;
    let plan = memories.plan().clone();
    follow(&mut memories, plan.end(), &mut reading).map_err(|error| reading.placed(error))?;
    reading.ends()?;
    let footer = outcome::footer(&memories)?;
    let hash = reading.recorder.footer(footer.clone())?;
    if header.record.plan != plan.hash() {
        let detail = if Plan::can_compare(&header.record.plan) {
            "the turns read the same, but their dependencies differ".to_string()
        } else {
            format!(
                "the turns read the same, but it is unknown whether their dependencies are the same: {} \
                 hashed the plan differently than this {PROGRAM}; accept it, or record it again",
                header.record.engine
            )
        };
        return Err(Drift::new("header", Cause::Settings, detail).at_line(1).into());
    }
    let mut notes = notes(scenario, &header.record);
    let asserted = |footer: &Footer| {
        footer.assertions.iter().map(|that| (that.that.clone(), that.share)).collect::<Vec<_>>()
    };
    if transcript.footer.as_ref().is_some_and(|was| asserted(&was.record) != asserted(&footer)) {
        notes.push("the assertions have changed since then; they were evaluated again".to_string());
    }
    Ok(Replayed { memories, hash, footer, notes })
}

/// The memory of a turn's speaker at that moment (all that it had read, with the cue, without the reply), and
/// what it is asked.
///
/// # Errors
/// [`Drift`] before that turn, or there is no such turn in the recording.
pub fn asked_at(
    scenario: &Arc<Scenario>,
    transcript: &Transcript,
    earlier: BTreeMap<String, Timeline>,
    path: &str,
) -> anyhow::Result<(Timeline, Conversation)> {
    let mut unwatched = |_: TurnId, _: &Memories| {};
    let (mut reading, mut memories) = ReplayReading::begin(scenario, transcript, earlier, &mut unwatched)?;
    let plan = memories.plan().clone();
    let id = plan.find(path).with_context(|| format!("the scenario has no turn {path}"))?;
    follow(&mut memories, id, &mut reading)?;
    replay_epoch(&mut memories, id, &mut reading)?;
    call_again(&mut memories, id, &mut reading)?;
    memories.hear(id)?;
    let timeline = memories.look(plan.turn(id).timeline).cloned().context("a memory that was just read")?;
    Ok((timeline, memories.ask(id)?.conversation))
}

/// The part of a recording before a turn of the plan, if the scenario still reads the same up to there.
///
/// # Errors
/// [`Drift`] before that turn.
pub fn before(
    scenario: &Arc<Scenario>,
    transcript: &Transcript,
    earlier: BTreeMap<String, Timeline>,
    end: TurnId,
) -> anyhow::Result<Transcript> {
    let mut unwatched = |_: TurnId, _: &Memories| {};
    let (mut reading, mut memories) = ReplayReading::begin(scenario, transcript, earlier, &mut unwatched)?;
    follow(&mut memories, end, &mut reading)?;
    let (turns, n_between) = (transcript.turns[..reading.at].to_vec(), reading.n_between);
    let between = transcript.between[..n_between].to_vec();
    Ok(Transcript { turns, between, footer: None, torn: None, ..transcript.clone() })
}

/// The seeds of a recording's turns.
pub fn seeds(header: &Header, plan: &Plan) -> Seeds {
    let before = header.forked.iter().flat_map(|forked| &forked.seeds);
    let before = before.filter_map(|other| Some((plan.find(&other.before)?, other.seed)));
    Seeds::new(header.seed, before.collect()).of_case(header.case.as_ref())
}

/// Other temperatures and limits before some turns of a recording, the earliest first.
pub fn settings_before(header: &Header, plan: &Plan) -> Vec<(TurnId, f32, usize)> {
    let settings = header.forked.iter().flat_map(|forked| &forked.settings);
    settings.filter_map(|of| Some((plan.find(&of.before)?, of.temperature, of.max_tokens))).collect()
}

/// Everybody's memories before the first turn of a recording.
pub fn memories(scenario: &Arc<Scenario>, header: &Header, earlier: BTreeMap<String, Timeline>) -> Memories {
    let plan = scenario.plan().clone();
    let seeds = seeds(header, &plan);
    let edits = header.forked.as_ref().map(|forked| Edits::of(forked, &plan, scenario));
    let given = header.given.clone().unwrap_or_default();
    let memories = Memories::new(scenario.clone(), plan, earlier, seeds).with_given(given);
    memories.with_edits(edits.unwrap_or_default())
}

/// A recording being held against its plan.
struct ReplayReading<'a> {
    plan: Arc<Plan>,
    transcript: &'a Transcript,
    recorder: Recorder,
    watch: &'a mut dyn FnMut(TurnId, &Memories),
    /// The next line's number among the turns.
    at: usize,
    /// Lines between turns so far.
    n_between: usize,
}

impl LineSource for ReplayReading<'_> {
    fn next_auxiliary(&mut self, path: &str) -> Option<TurnRecord> {
        let next = self.transcript.turns.get(self.at).map(|turn| &turn.record);
        next.filter(|line| line.path == path).cloned()
    }

    fn line(&mut self, turn: &Turn) -> anyhow::Result<Option<TurnRecord>> {
        let Some(recorded) = self.transcript.turns.get(self.at) else {
            return Err(self.ended_at(turn).into());
        };
        self.in_order(turn, recorded)?;
        Ok(Some(recorded.record.clone()))
    }

    fn after_reply(&mut self, memories: &Memories, id: TurnId, line: TurnRecord) -> anyhow::Result<()> {
        self.at += 1;
        let is_turn = line.path == self.plan.turn(id).path;
        self.recorder.turn(line)?;
        if is_turn {
            (self.watch)(id, memories);
        }
        Ok(())
    }

    fn route(&mut self, path: &str) -> anyhow::Result<Option<RouteRecord>> {
        let Some(was) = self.transcript.routes().find(|route| route.path == path) else {
            let detail = "the recording has no record of who was picked to speak";
            return Err(Drift::new(path, Cause::LineMissing, detail).into());
        };
        Ok(Some(was.clone()))
    }

    fn between(&mut self, line: InterTurnRecord) -> anyhow::Result<()> {
        self.n_between += 1;
        self.recorder.between(line)
    }
}

impl<'a> ReplayReading<'a> {
    fn begin(
        scenario: &Arc<Scenario>,
        transcript: &'a Transcript,
        earlier: BTreeMap<String, Timeline>,
        watch: &'a mut dyn FnMut(TurnId, &Memories),
    ) -> anyhow::Result<(Self, Memories)> {
        let header = &transcript.header.record;
        let memories = memories(scenario, header, earlier);
        cast_differs(header, &memories)?;
        settings_differ(header, scenario)?;
        case_differs(header, scenario)?;
        tools_differ(header, scenario)?;
        let (plan, recorder) = (memories.plan().clone(), Recorder::verify(transcript));
        Ok((Self { plan, transcript, recorder, watch, at: 0, n_between: 0 }, memories))
    }

    /// Returns whether a turn's line is where the plan has it, and if not, what happened to it.
    fn in_order(&self, turn: &Turn, found: &Recorded<TurnRecord>) -> Result<(), Drift> {
        let wanted = &turn.path;
        if found.record.path == *wanted {
            return Ok(());
        }
        let elsewhere = self.transcript.turns.iter().any(|turn| turn.record.path == *wanted);
        let planned = self.plan.order().any(|(_, turn)| turn.path == found.record.path);
        let (cause, detail) = if !elsewhere {
            (Cause::LineMissing, format!("the recording continues with {}", found.record.path))
        } else if !planned {
            (Cause::LineTooMany, format!("the plan has no turn {}", found.record.path))
        } else {
            (Cause::Order, format!("the recording has {} here", found.record.path))
        };
        let path = if cause == Cause::LineTooMany { &found.record.path } else { wanted };
        Err(Drift::new(path, cause, detail).at_line(found.line).texts(&found.record.path, wanted))
    }

    /// The recording ends before this turn, which the plan still has.
    fn ended_at(&self, turn: &Turn) -> Drift {
        if let Some(torn) = &self.transcript.torn {
            return Drift::new("the last line", Cause::Unreadable, torn.to_string()).at_line(torn.line);
        }
        let of = format!("{} turns are recorded", self.at);
        match self.transcript.footer {
            None => Drift::new(
                &turn.path,
                Cause::NoFooter,
                format!("{of}; continue with `greenroom run … --resume`"),
            ),
            Some(_) => Drift::new(&turn.path, Cause::LineMissing, of),
        }
    }

    /// A drift with its line, where it is about the line that is read.
    fn placed(&self, error: anyhow::Error) -> anyhow::Error {
        let here = self.transcript.turns.get(self.at);
        match error.downcast::<Drift>() {
            Ok(drift) => match here.filter(|here| drift.line.is_none() && here.record.path == *drift.path) {
                Some(here) => drift.at_line(here.line).into(),
                None => drift.into(),
            },
            Err(error) => error,
        }
    }

    /// Returns whether the recording was torn after its last turn.
    fn ends(&self) -> Result<(), Drift> {
        match &self.transcript.torn {
            Some(torn) => {
                Err(Drift::new("the last line", Cause::Unreadable, torn.to_string()).at_line(torn.line))
            }
            None => Ok(()),
        }
    }
}
