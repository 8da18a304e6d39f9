//! Holds a recording against its scenario, without a model: recompiles, renders again, feeds the recorded
//! replies, and reports the first link that broke.

use crate::outcome;
use crate::prompt::Memories;
use crate::scenario::results::Outcome;
use crate::scenario::{Loaded, Overrides, Plan, Scenario, Turn, TurnId, compile, open, turn_seed};
use crate::timeline::Timeline;
use crate::transcript::{
    AgentRecord, Cause, Drift, Footer, Header, Recorded, Recorder, Transcript, TurnRecord, choice_record,
    summary_of,
};
use anyhow::{Context as _, bail};
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// Longest chain of runs that continue each other.
const MAX_CHAIN: usize = 64;

/// A recording that fits.
#[derive(Debug)]
pub struct Replayed {
    /// What everybody remembers at the end.
    pub memories: Memories,
    /// Hash of all lines.
    pub hash: String,
    /// What the run came to, evaluated again.
    pub footer: Footer,
    /// Differences that changed nothing of what was read or said.
    pub notes: Vec<String>,
}

/// What agents bring along from an earlier run.
#[derive(Debug, Default)]
pub struct Earlier {
    /// Timelines of the permanent agents, by key.
    pub timelines: BTreeMap<String, Timeline>,
    /// Hash of the earlier run's footer.
    pub hash: String,
}

/// The transcript in a run's folder, or the file itself.
pub fn transcript_file(run: &Path) -> PathBuf {
    if run.is_dir() { run.join(crate::transcript::FILE) } else { run.to_path_buf() }
}

/// Looks for a file that a transcript names: below its folder, that folder's parents, or the current folder.
pub fn find_named(transcript: &Path, named: &str) -> Option<PathBuf> {
    let named = Path::new(named);
    if named.components().any(|part| !matches!(part, Component::Normal(_))) {
        return None;
    }
    let transcript = transcript.canonicalize().ok()?;
    let folders = transcript.ancestors().skip(1).map(|folder| folder.join(named));
    let here = std::iter::once(named.to_path_buf());
    let found = folders.chain(here).find(|candidate| candidate.is_file())?;
    // Shown to people, a path below the current folder is short.
    let current = std::env::current_dir().and_then(|folder| folder.canonicalize());
    let short = current.ok().and_then(|folder| found.strip_prefix(folder).map(Path::to_path_buf).ok());
    Some(short.unwrap_or(found))
}

/// Finds and loads the scenario of a recording, with the recorded values of its variables.
///
/// # Errors
/// There is no such file, or it can't be read. Mistakes in it are in the report.
pub fn load_scenario(file: &Path, header: &Header, given: Option<&Path>) -> anyhow::Result<Loaded> {
    let path = match given {
        Some(path) => path.to_path_buf(),
        None => find_named(file, &header.scenario.path).with_context(|| {
            format!(
                "the scenario {} of {} is neither near the transcript nor in the current folder; give it with \
                 --scenario FILE",
                header.scenario.path,
                file.display()
            )
        })?,
    };
    let plain = open(&path, &[])?;
    let Some(scenario) = &plain.scenario else { return Ok(plain) };
    let declared = header.variables.iter().filter(|(name, _)| scenario.variables.contains_key(*name));
    let overrides: Overrides = declared
        .filter_map(|(name, value)| Some((name.clone(), serde_yaml::to_value(value).ok()?)))
        .collect();
    open(&path, &overrides)
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
    let plan = Arc::new(compile(scenario));
    let header = &transcript.header;
    let mut memories = Memories::new(scenario.clone(), plan.clone(), earlier, header.record.seed);
    if !header.intact {
        let drift = Drift::new("header", Cause::RecordAltered, "the header does not fit its hash");
        return Err(drift.at_line(1).into());
    }
    cast_differs(&header.record, &memories)?;
    let mut reading = Reading { plan: &plan, transcript, recorder: Recorder::verify(transcript), at: 0 };
    for (id, turn) in plan.order() {
        reading.turn(id, turn, &mut memories)?;
        if *memories.outcome(id) != Outcome::Skipped {
            watch(id, &memories);
        }
    }
    reading.ends()?;
    let footer = outcome::footer(&memories);
    let hash = reading.recorder.footer(footer.clone())?;
    if header.record.plan != plan.hash() {
        let detail = "the turns read the same, but depend on each other in another way";
        return Err(Drift::new("header", Cause::Settings, detail).at_line(1).into());
    }
    Ok(Replayed { memories, hash, footer, notes: notes(scenario, &header.record) })
}

/// What the speaker of a turn had read at that moment: its memory, cue included, the reply not.
///
/// # Errors
/// [`Drift`] before that turn, or there is no such turn in the recording.
pub fn memory_at(
    scenario: &Arc<Scenario>,
    transcript: &Transcript,
    earlier: BTreeMap<String, Timeline>,
    path: &str,
) -> anyhow::Result<Timeline> {
    let plan = Arc::new(compile(scenario));
    let header = &transcript.header.record;
    let mut memories = Memories::new(scenario.clone(), plan.clone(), earlier, header.seed);
    cast_differs(header, &memories)?;
    let mut reading = Reading { plan: &plan, transcript, recorder: Recorder::verify(transcript), at: 0 };
    for (id, turn) in plan.order() {
        if turn.path == path {
            reading.summary(id, turn, &mut memories)?;
            memories.prompt(id)?;
            return memories.look(turn.timeline).cloned().context("a memory that was just read");
        }
        reading.turn(id, turn, &mut memories)?;
    }
    bail!("the scenario has no turn {path}")
}

/// Reads, verifies and replays a run, so that its agents can go on from it.
///
/// # Errors
/// The run is incomplete, drifted, or its files can't be found.
pub fn earlier(run: &Path, scenario: Option<&Path>) -> anyhow::Result<Earlier> {
    earlier_of(run, scenario, 0)
}

/// What the agents of a recording brought along themselves.
///
/// # Errors
/// The run that it continues can't be found, or is not the one that it was.
pub fn brought_along(file: &Path, header: &Header) -> anyhow::Result<BTreeMap<String, Timeline>> {
    brought(file, header, 0)
}

fn earlier_of(run: &Path, scenario: Option<&Path>, depth: usize) -> anyhow::Result<Earlier> {
    if depth > MAX_CHAIN {
        bail!("more than {MAX_CHAIN} runs continue each other");
    }
    let file = transcript_file(run);
    let transcript = Transcript::open(&file)?;
    let loaded = load_scenario(&file, &transcript.header.record, scenario)?;
    let Some(scenario) = loaded.scenario else {
        bail!("the scenario of {} has errors:\n{}", file.display(), loaded.report.render(false));
    };
    let brought = brought(&file, &transcript.header.record, depth)?;
    let replayed = replay(&scenario, &transcript, brought)
        .with_context(|| format!("{} can't be carried on", file.display()))?;
    Ok(Earlier { timelines: replayed.memories.carry_on()?, hash: replayed.hash })
}

fn brought(file: &Path, header: &Header, depth: usize) -> anyhow::Result<BTreeMap<String, Timeline>> {
    let Some(continues) = &header.continues else { return Ok(BTreeMap::new()) };
    let found = find_named(file, &continues.path).with_context(|| {
        format!("{} continues {}, which is not there any more", file.display(), continues.path)
    })?;
    let earlier = earlier_of(&found, None, depth + 1)?;
    if earlier.hash != continues.hash {
        let detail = format!("{} is not the run that this one continues any more", continues.path);
        return Err(Drift::new("header", Cause::Settings, detail)
            .texts(&continues.hash, earlier.hash)
            .into());
    }
    Ok(earlier.timelines)
}

/// What stands in a header about the cast.
pub fn cast(memories: &Memories) -> BTreeMap<String, AgentRecord> {
    let scenario = memories.scenario();
    let record = |id: usize, agent: &crate::scenario::Agent| AgentRecord {
        name: agent.name.clone(),
        lifecycle: agent.lifecycle.word().to_string(),
        system: memories.system(crate::scenario::AgentId(id)).to_string(),
        strategy: agent.strategy.as_ref().map(ToString::to_string),
    };
    scenario.agents.iter().enumerate().map(|(id, agent)| (agent.key.clone(), record(id, agent))).collect()
}

fn cast_differs(header: &Header, memories: &Memories) -> Result<(), Drift> {
    let now = cast(memories);
    for (key, was) in &header.agents {
        let Some(is) = now.get(key) else {
            let detail = format!("there is no agent `{key}` any more");
            return Err(Drift::new(format!("agents/{key}"), Cause::AgentChanged, detail).at_line(1));
        };
        let pairs = [("display_name", &was.name, &is.name), ("lifecycle", &was.lifecycle, &is.lifecycle)];
        let pairs = pairs.into_iter().chain([("system_prompt", &was.system, &is.system)]);
        let none = "the model".to_string();
        let of = |record: &'_ AgentRecord| record.strategy.clone().unwrap_or_else(|| none.clone());
        let (played_by, plays) = (of(was), of(is));
        let mut differing = pairs.chain([("strategy", &played_by, &plays)]).filter(|(_, was, is)| was != is);
        if let Some((field, was, is)) = differing.next() {
            let detail = format!("its {field} differs");
            let drift = Drift::new(format!("agents/{key}"), Cause::AgentChanged, detail);
            return Err(drift.texts(was.as_str(), is.as_str()).at_line(1));
        }
    }
    match now.keys().find(|key| !header.agents.contains_key(*key)) {
        Some(key) => {
            let detail = format!("the agent `{key}` is new");
            Err(Drift::new(format!("agents/{key}"), Cause::AgentChanged, detail).at_line(1))
        }
        None => Ok(()),
    }
}

/// A recording being held against its plan.
struct Reading<'a> {
    plan: &'a Plan,
    transcript: &'a Transcript,
    recorder: Recorder,
    /// The next line's number among the turns.
    at: usize,
}

impl Reading<'_> {
    /// Lets a turn of the plan happen as it is recorded, or be skipped.
    fn turn(&mut self, id: TurnId, turn: &Turn, memories: &mut Memories) -> anyhow::Result<()> {
        if !memories.takes_place(id)? {
            memories.skip(id);
            return Ok(());
        }
        self.summary(id, turn, memories)?;
        let transcript = self.transcript;
        let Some(recorded) = transcript.turns.get(self.at) else { return Err(self.ended_at(turn).into()) };
        self.in_order(turn, recorded)?;
        let prompt = memories.prompt(id)?;
        let was = &recorded.record;
        let (options, delta) = (memories.options(id), prompt.delta);
        let heard = memories.say(id, prompt.conversation, &was.tokens, &was.raw);
        let constraint = options.map(|(choice, open)| {
            let recorded = was.constraint.iter().flat_map(|constraint| &constraint.options);
            let option = |text: &str| choice.options.iter().position(|option| option.text == text);
            let logprobs: Vec<_> =
                recorded.filter_map(|was| Some((option(&was.text)?, was.logprob?))).collect();
            choice_record(&choice, &open, heard.choice, &logprobs)
        });
        self.record(TurnRecord { delta, spoken: heard.spoken, constraint, ..was.clone() }, turn, memories)
    }

    /// Lets a new epoch begin where the recording has a summary.
    fn summary(&mut self, id: TurnId, turn: &Turn, memories: &mut Memories) -> anyhow::Result<()> {
        let summary = summary_of(&turn.path);
        let recorded = self.transcript.turns.get(self.at).filter(|turn| turn.record.path == summary);
        let Some(was) = recorded.map(|recorded| &recorded.record) else { return Ok(()) };
        let delta = memories.summary_prompt(id)?.delta;
        let spoken = memories.begin_epoch(id, &was.raw);
        self.record(TurnRecord { delta, spoken, constraint: None, ..was.clone() }, turn, memories)
    }

    fn record(&mut self, record: TurnRecord, turn: &Turn, memories: &Memories) -> anyhow::Result<()> {
        self.at += 1;
        let agent = memories.scenario().agent(turn.speaker).key.clone();
        let seed = turn_seed(self.transcript.header.record.seed, &record.path);
        self.recorder.turn(TurnRecord { agent, seed, ..record }).map(|_| ())
    }

    /// Says whether a turn's line stands where the plan has it, and if not, what happened to it.
    fn in_order(&self, turn: &Turn, found: &Recorded<TurnRecord>) -> Result<(), Drift> {
        let wanted = &turn.path;
        if found.record.path == *wanted {
            return Ok(());
        }
        let elsewhere = self.transcript.turns.iter().any(|turn| turn.record.path == *wanted);
        let planned = self.plan.order().any(|(_, turn)| turn.path == found.record.path);
        let (cause, detail) = match (elsewhere, planned) {
            (false, _) => (Cause::LineMissing, format!("the recording goes on with {}", found.record.path)),
            (true, false) => (Cause::LineTooMany, format!("the plan has no turn {}", found.record.path)),
            (true, true) => (Cause::Order, format!("the recording has {} here", found.record.path)),
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
                format!("{of}; go on with `greenroom run … --resume`"),
            ),
            Some(_) => Drift::new(&turn.path, Cause::LineMissing, of),
        }
    }

    /// Says whether the recording was torn behind its last turn.
    fn ends(&self) -> Result<(), Drift> {
        match &self.transcript.torn {
            Some(torn) => {
                Err(Drift::new("the last line", Cause::Unreadable, torn.to_string()).at_line(torn.line))
            }
            None => Ok(()),
        }
    }
}

/// Differences that nobody read or heard.
fn notes(scenario: &Scenario, header: &Header) -> Vec<String> {
    let mut notes = Vec::new();
    if scenario.file_hash() != header.scenario.blake3 {
        notes.push("the scenario file changed since, but nothing that was read or said".to_string());
    }
    if scenario.id != header.scenario.id {
        notes.push(format!("the scenario's id was `{}`, it is `{}` now", header.scenario.id, scenario.id));
    }
    notes
}

/// The field and place in the scenario file that a drift comes from, if it comes from there.
pub fn origin(scenario: &Scenario, header: &Header, drift: &Drift) -> Option<(String, usize)> {
    let line = |path: &crate::scenario::Path| scenario.sources.place(scenario.spans.key(path)).1;
    if let Some(key) = drift.path.strip_prefix("agents/") {
        let path = scenario.agent(scenario.agent_by_key(key)?).system_path.clone();
        return Some((path.to_string(), line(&path)));
    }
    if drift.cause != Cause::PromptChanged {
        return None;
    }
    let (phase, step) = (drift.path.split('/').next()?, drift.path.rsplit('/').next()?);
    let here = scenario.phase_by_name(phase)?;
    let agent = scenario.agent_by_key(step.split('.').next()?)?;
    // A prompt can hold the openings of earlier phases in which the agent did not speak, so a text that
    // changed by its hash is the better guess.
    let hashes = scenario.template_hashes();
    let phases = scenario.phases[..=here.0].iter().rev().filter(|phase| phase.agents.contains(&agent));
    let mut read = phases.flat_map(|phase| phase.opening(agent).map(|(_, text)| text).chain(phase.asks()));
    let changed = |path: &str| hashes.get(path) != header.templates.get(path);
    let path =
        read.find(|template| changed(&template.path.to_string())).map(|template| template.path.clone());
    path.map(|path| (path.to_string(), line(&path)))
}
