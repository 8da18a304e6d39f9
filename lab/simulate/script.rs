//! A recorded run from an engine's point of view: growing prompts, replies, and their dependencies.

use anyhow::{Context as _, bail, ensure};
use greenroom::replay::{Search, load_scenario, transcript_file};
use greenroom::scenario::{Input, TimelineId};
use greenroom::trace::{self, Traced};
use greenroom::transcript::{Transcript, TurnRecord};
use std::collections::BTreeMap;
use std::path::Path;

/// A run.
#[derive(Clone, Debug, Default)]
pub(super) struct Script {
    /// Turns, each after those that it waits for: in plan order, or in order of time.
    pub(super) steps: Vec<Step>,
    /// Agents that remember.
    pub(super) n_agents: usize,
    /// Length of the common beginning of two memories' prompts in tokens; for one memory and itself, in runs
    /// with different seeds.
    pub(super) alike: Vec<Vec<usize>>,
}

/// A turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Step {
    /// The memory that it continues.
    pub(super) memory: usize,
    /// Tokens of the prompt.
    pub(super) prompt: usize,
    /// Tokens of it that the memory had read or said before.
    pub(super) known: usize,
    /// Tokens of the reply.
    pub(super) reply: usize,
    /// Turns that come before it.
    pub(super) after: Vec<usize>,
    /// Tokens that the engine reused when it was recorded.
    pub(super) reused: usize,
    /// Milliseconds at which it began and ended when it was recorded; 0 if unknown.
    pub(super) began: f64,
    pub(super) ended: f64,
}

/// Everything that a memory has read and said.
#[derive(Default)]
struct Read {
    text: String,
    tokens: usize,
    /// Bytes of the text that do not depend on the seed, because nobody has spoken before them.
    fixed: usize,
}

impl Script {
    /// Reads a run's folder.
    ///
    /// # Errors
    /// Its transcript, trace or scenario is missing or can't be read, or no turn in it was played by an
    /// engine.
    pub(super) fn open(run: &Path) -> anyhow::Result<Self> {
        let file = transcript_file(run);
        let transcript = Transcript::open(&file)?;
        let beside = file.with_file_name(trace::FILE);
        let traced = Traced::open(&beside).with_context(|| {
            format!("{} has no record of a run, so its tokens can't be counted", beside.display())
        })?;
        let header = &transcript.header.record;
        let loaded = load_scenario(&file, header, &Search::default())?;
        let Some(scenario) = loaded.scenario else {
            bail!("the scenario of {} has errors; see `greenroom check`", file.display());
        };
        let plan = scenario.plan();
        // With messages, a choice is generated as JSON, and read as the option's text.
        let model = traced.models.get("").map_or("", String::as_str);
        let by_messages = ["openai+", "anthropic+"].iter().any(|api| model.starts_with(api));
        let lines = transcript.turns.iter().map(|turn| (turn.record.path.as_str(), &turn.record));
        let lines: BTreeMap<&str, &TurnRecord> = lines.collect();
        let (mut script, mut read) = (Self::default(), Vec::<Read>::new());
        let mut memories: BTreeMap<TimelineId, usize> = BTreeMap::new();
        // For a turn that was not played, the turns that it would have waited for.
        let mut ends: Vec<Vec<usize>> = Vec::new();
        let mut before: Vec<Vec<usize>> = vec![Vec::new(); plan.n_turns()];
        for edge in plan.graph.raw_edges() {
            before[edge.target().index()].push(edge.source().index());
        }
        for (id, turn) in plan.graph.node_weights().enumerate() {
            let mut after: Vec<usize> = before[id].iter().flat_map(|one| ends[*one].clone()).collect();
            after.sort_unstable();
            after.dedup();
            let played = traced.turns.get(&turn.path).filter(|turn| turn.kind.is_some());
            let Some(played) = played else {
                ends.push(after);
                continue;
            };
            let tokens = played.tokens;
            let prompt = tokens.reused + tokens.prefilled + tokens.recomputed;
            let memory = *memories.entry(turn.timeline).or_insert(read.len());
            let (delta, raw) = lines.get(&*turn.path).map_or(("", ""), |line| (&*line.delta, &*line.raw));
            if memory == read.len() {
                let agent = &header.agents[&scenario.agent(turn.speaker).key];
                let hears = turn.inputs.iter().any(|input| matches!(input, Input::Heard(_)));
                let text = format!("{}\n", agent.system);
                let fixed = text.len() + if hears { 0 } else { delta.len() };
                read.push(Read { text, tokens: 0, fixed });
                script.n_agents += usize::from(agent.lifecycle == "permanent");
            }
            let history = &mut read[memory];
            // One that is shorter starts over.
            let known = if history.tokens < prompt { history.tokens } else { 0 };
            let is_choice = lines.get(&*turn.path).is_some_and(|line| line.constraint.is_some());
            let read = if by_messages && is_choice { 0 } else { tokens.generated };
            history.tokens = prompt + read;
            history.text += delta;
            history.text += raw;
            ends.push(vec![script.steps.len()]);
            let (reply, reused) = (tokens.generated, tokens.reused);
            let ended = played.answered_ms.unwrap_or(0.0);
            let began = (ended - played.total_ms.unwrap_or(0.0)).max(0.0);
            script.steps.push(Step { memory, prompt, known, reply, after, reused, began, ended });
        }
        ensure!(!script.steps.is_empty(), "{}: no engine answered in this run", run.display());
        let alike = |one: usize| (0..read.len()).map(|other| alike(&read, one, other)).collect();
        script.alike = (0..read.len()).map(alike).collect();
        Ok(script)
    }

    /// The same run with its turns in the recorded order: a turn that began after another had ended waits for
    /// it here, too. If the trace does not say when turns ended, they stay in plan order.
    pub(super) fn as_played(&self) -> Self {
        if self.steps.iter().any(|step| step.ended == 0.0) {
            return self.clone();
        }
        let mut steps = self.steps.clone();
        steps.sort_by(|one, other| one.began.total_cmp(&other.began));
        // The end is reported a little later than it happens.
        let begun = |step: &Step| step.began + 0.1 * (step.ended - step.began);
        let before = |(at, step): (usize, &Step)| {
            (0..at).filter(|other| steps[*other].ended <= begun(step)).collect::<Vec<usize>>()
        };
        let after: Vec<Vec<usize>> = steps.iter().enumerate().map(before).collect();
        for (step, after) in steps.iter_mut().zip(after) {
            step.after = after;
        }
        Self { steps, ..self.clone() }
    }

    /// Tokens of a memory that are the same in runs with different seeds.
    pub(super) fn shared(&self, memory: usize) -> usize {
        self.alike[memory][memory]
    }
}

/// Length of the common beginning of two memories in tokens, by their share of the text; for one and itself,
/// in runs with different seeds.
fn alike(read: &[Read], one: usize, other: usize) -> usize {
    let (Read { text, tokens, fixed }, with) = (&read[one], &read[other].text);
    let same = text.bytes().zip(with.bytes()).take_while(|(a, b)| a == b).count();
    let same = if one == other { *fixed } else { same };
    tokens * same / text.len().max(1)
}
