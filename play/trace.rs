//! The record of how a run was computed: `trace.jsonl`, a line a turn, and `summary.json`, which is counted
//! from it.
//!
//! None of this is in the transcript: it depends on the machine and on what the caches held.

use crate::backend::{CacheSource, MatchKind, Traffic, Usage};
use crate::transcript::{call_of, summary_of};
use anyhow::Context as _;
use greenroom_scenario::Scenario;
use greenroom_scenario::files::{self, FileKind, FileLines};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

/// Name of the file in a run's folder.
pub const FILE: &str = "trace.jsonl";

/// A line of the trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum TraceLine {
    /// The first line: what the run's memories are filed under.
    Run {
        /// Random name of the run.
        run: String,
        /// The model file.
        model: String,
        /// Those that took the place of models which the scenario names, by name.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        models: BTreeMap<String, String>,
        /// Seconds since the epoch.
        started: u64,
    },
    /// Cost of a turn.
    Turn(TurnTrace),
}

/// Cost of a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnTrace {
    /// `phase/round/agent`.
    pub path: String,
    /// The agent's key.
    pub agent: String,
    /// Match between the prompt and the cache; null where nothing is known.
    #[serde(default, rename = "match", with = "crate::words::word_or_null")]
    pub kind: Option<MatchKind>,
    /// Source of the reused tokens.
    #[serde(default, with = "crate::words::word_or_null")]
    pub source: Option<CacheSource>,
    /// Tokens.
    pub tokens: TokenCounts,
    /// Milliseconds to the first token.
    pub ttft_ms: Option<f64>,
    /// Milliseconds of the turn.
    pub total_ms: Option<f64>,
    /// Milliseconds from the beginning of the play to the answer; a resumed run begins at 0 again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered_ms: Option<f64>,
    /// Bytes read from the store.
    pub bytes_read: u64,
    /// Bytes written to the store.
    pub bytes_written: u64,
    /// Milliseconds that the turn waited for its memory to be read.
    #[serde(default)]
    pub waited_ms: f64,
    /// Milliseconds that its memory was read ahead, while others were active.
    #[serde(default, rename = "hidden_ms")]
    pub prefetch_ms: f64,
    /// Milliseconds that the reused tokens would have taken to compute.
    #[serde(default)]
    pub saved_ms: f64,
    /// Bytes that all memories took in RAM at the turn's end.
    #[serde(default)]
    pub memory_bytes: u64,
    /// Reason why the cache was not used, or not wholly.
    pub reason: Option<String>,
    /// Numerics of the devices that computed the first of the reused tokens, where the memory was adopted;
    /// left out elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopted: Option<String>,
}

/// Tokens of a turn or of an agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenCounts {
    /// Reused from the cache.
    pub reused: usize,
    /// New in the prompt.
    pub prefilled: usize,
    /// Known, computed again.
    pub recomputed: usize,
    /// Sampled and fed.
    pub generated: usize,
    /// Rows counted in layer 0.
    pub layer0_rows: usize,
}

impl TurnTrace {
    /// From a backend's account.
    pub fn new(path: &str, agent: &str, usage: Option<&Usage>) -> Self {
        let tokens = usage.map(|usage| TokenCounts {
            reused: usage.reused,
            prefilled: usage.prefilled,
            recomputed: usage.recomputed,
            generated: usage.generated,
            layer0_rows: usage.layer0_rows,
        });
        Self {
            path: path.to_string(),
            agent: agent.to_string(),
            kind: usage.map(|usage| usage.kind),
            source: usage.map(|usage| usage.source),
            tokens: tokens.unwrap_or_default(),
            ttft_ms: usage.map(|usage| usage.ttft_ms),
            total_ms: usage.map(|usage| usage.total_ms),
            answered_ms: None,
            bytes_read: usage.map_or(0, |usage| usage.bytes_read),
            bytes_written: usage.map_or(0, |usage| usage.bytes_written),
            waited_ms: usage.map_or(0.0, |usage| usage.waited_ms),
            prefetch_ms: usage.map_or(0.0, |usage| usage.prefetch_ms),
            saved_ms: usage.map_or(0.0, |usage| usage.saved_ms),
            memory_bytes: usage.map_or(0, |usage| usage.memory_bytes),
            reason: usage.and_then(|usage| usage.reason.clone()),
            adopted: usage.and_then(|usage| usage.adopted.clone()),
        }
    }
}

/// The trace of a run, open for appending.
#[derive(Debug)]
pub struct Trace {
    file: Option<(File, PathBuf)>,
    /// Name of the run: its memories are filed under it.
    pub run: String,
    /// Costs of the turns, as far as they are known, by path.
    pub turns: IndexMap<String, TurnTrace>,
}

impl Trace {
    /// A trace that stays in memory.
    pub fn in_memory(run: &str) -> Self {
        Self { file: None, run: run.to_string(), turns: IndexMap::new() }
    }

    /// Starts the trace of a new run, named after its scenario, with random digits.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn create(path: &Path, scenario: &str, models: &BTreeMap<String, String>) -> anyhow::Result<Self> {
        let file = files::open_to_write(path, OpenOptions::new().write(true).create(true).truncate(true));
        let file = file.with_context(|| format!("can't create {}", path.display()))?;
        let file = Some((file, path.to_path_buf()));
        let mut trace = Self { file, run: format!("{scenario}-{}", random_name()?), turns: IndexMap::new() };
        let started = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let started = started.map_or(0, |since| since.as_secs());
        let mut models = models.clone();
        let model = models.remove("").unwrap_or_default();
        let line = TraceLine::Run { run: trace.run.clone(), model, models, started };
        trace.append(&line)?;
        // The memories are found by this name after a crash, so it must be there before the first of them.
        if let Some((file, path)) = &trace.file {
            file.sync_all().with_context(|| format!("can't sync {}", path.display()))?;
        }
        Ok(trace)
    }

    /// Continues the trace of an interrupted run; a damaged one is started over, with a warning.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn resume(path: &Path, scenario: &str, models: &BTreeMap<String, String>) -> anyhow::Result<Self> {
        let Some(Traced { run, turns, whole_bytes, .. }) = Traced::open(path) else {
            tracing::warn!(
                "{}: the trace can't be read, so the agents' memories can't be found",
                path.display()
            );
            return Self::create(path, scenario, models);
        };
        let can_not = || format!("can't write {}", path.display());
        let file = files::open_to_write(path, OpenOptions::new().append(true)).with_context(can_not)?;
        file.set_len(whole_bytes).with_context(can_not)?;
        Ok(Self { file: Some((file, path.to_path_buf())), run, turns })
    }

    /// Name of a run, from its trace.
    pub fn run_of(path: &Path) -> Option<String> {
        Traced::open(path).map(|traced| traced.run)
    }

    /// The models that a run was played with, as they were found, from its trace: those that took the place
    /// of the scenario's, and its own under the empty name.
    pub fn models_of(path: &Path) -> Option<BTreeMap<String, String>> {
        Traced::open(path).map(|traced| traced.models)
    }

    /// Costs of a run's turns, by path, from its trace.
    pub fn turns_of(path: &Path) -> Option<IndexMap<String, TurnTrace>> {
        Traced::open(path).map(|traced| traced.turns)
    }

    /// The replies of a turn, as far as they are known: a memory's summary and tool calls before its own.
    fn replies_of(&self, path: &str) -> impl Iterator<Item = &TurnTrace> {
        let calls = (1..).map_while(|n| self.turns.get(&call_of(path, n)));
        self.turns.get(&summary_of(path)).into_iter().chain(calls).chain(self.turns.get(path))
    }

    /// Adds a turn.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn turn(&mut self, turn: TurnTrace) -> anyhow::Result<()> {
        self.append(&TraceLine::Turn(turn.clone()))?;
        self.turns.insert(turn.path.clone(), turn);
        Ok(())
    }

    fn append(&mut self, line: &TraceLine) -> anyhow::Result<()> {
        let Some((file, path)) = &mut self.file else { return Ok(()) };
        let text = serde_json::to_string(line)? + "\n";
        file.write_all(text.as_bytes()).with_context(|| format!("can't write {}", path.display()))
    }
}

fn random_name() -> anyhow::Result<String> {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).map_err(|error| anyhow::anyhow!("can't get random numbers: {error}"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A trace as found on disk.
#[derive(Clone, Debug)]
pub struct Traced {
    /// Name of the run.
    pub run: String,
    /// Seconds since the epoch when the run began.
    pub started: u64,
    /// Its models, as [`Trace::models_of`] has them.
    pub models: BTreeMap<String, String>,
    /// Costs of the turns, as far as they are known, by path.
    pub turns: IndexMap<String, TurnTrace>,
    /// Bytes of whole lines.
    whole_bytes: u64,
}

impl Traced {
    /// Reads a trace; damaged lines are passed over with a warning. `None`: no line identifies its run.
    pub fn open(path: &Path) -> Option<Self> {
        let unreadable = |error: std::io::Error| {
            if error.kind() != ErrorKind::NotFound {
                tracing::warn!("can't read {}: {error}", path.display());
            }
        };
        let lines = FileLines::open(path, FileKind::Trace).map_err(unreadable).ok()?;
        let (mut first, mut turns, mut whole_bytes) = (None, IndexMap::new(), 0);
        for text in lines {
            let text = text.map_err(unreadable).ok()?;
            if !text.ends_with(b"\n") {
                break;
            }
            match serde_json::from_slice(&text) {
                Ok(TraceLine::Run { run, model, mut models, started }) => {
                    models.insert(String::new(), model);
                    first = first.or(Some((run, started, models)));
                }
                Ok(TraceLine::Turn(turn)) => {
                    turns.insert(turn.path.clone(), turn);
                }
                Err(error) => tracing::warn!("{}: skipping a damaged line: {error}", path.display()),
            }
            whole_bytes += text.len() as u64;
        }
        first.map(|(run, started, models)| Self { run, started, models, turns, whole_bytes })
    }
}

/// Cost of a run, by agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CostSummary {
    /// The scenario's id.
    pub scenario: String,
    /// Turns played.
    pub turns: usize,
    /// Milliseconds of this process.
    pub wall_ms: f64,
    /// By agent, in the order of the scenario.
    pub agents: IndexMap<String, AgentSummary>,
    /// Savings and costs of the memories.
    #[serde(default)]
    pub cache: CacheSummary,
}

/// Savings and costs of the memories, over all turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CacheSummary {
    /// Tokens that were not computed again.
    pub reused: usize,
    /// Milliseconds that they would have taken.
    pub saved_ms: f64,
    /// Milliseconds that turns waited for memories to be read.
    pub waited_ms: f64,
    /// Milliseconds of reading while others were active.
    #[serde(rename = "hidden_ms")]
    pub prefetch_ms: f64,
    /// Bytes read from disk.
    pub bytes_read: u64,
    /// Bytes written to disk.
    pub bytes_written: u64,
    /// Most bytes in RAM at the end of a turn.
    pub peak_bytes: u64,
    /// Traffic with the object store of the memories while the run was active, including that of other runs
    /// of the process; left out where they are in a folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objects: Option<Traffic>,
    /// Turns that rested on memory of another device; left out where there are none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub adopted_turns: usize,
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

impl CacheSummary {
    fn add(&mut self, turn: &TurnTrace) {
        self.reused = self.reused.saturating_add(turn.tokens.reused);
        self.saved_ms += turn.saved_ms;
        self.waited_ms += turn.waited_ms;
        self.prefetch_ms += turn.prefetch_ms;
        self.bytes_read = self.bytes_read.saturating_add(turn.bytes_read);
        self.bytes_written = self.bytes_written.saturating_add(turn.bytes_written);
        self.peak_bytes = self.peak_bytes.max(turn.memory_bytes);
        self.adopted_turns += usize::from(turn.adopted.is_some());
    }
}

/// Cost of an agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentSummary {
    /// `permanent` or `ephemeral`.
    pub lifecycle: String,
    /// Turns that it spoke.
    pub turns: usize,
    /// Turns by kind of match.
    #[serde(rename = "match")]
    pub kinds: Kinds,
    /// Tokens.
    pub tokens: SummedTokens,
    /// Turns by origin of what was reused.
    pub source: Origins,
    /// Milliseconds to the first token, turn by turn.
    pub ttft_ms: Vec<f64>,
    /// Names of its models, where the scenario gives it any.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub models: BTreeSet<String>,
}

/// Turns by kind of match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "named like the kinds")]
pub struct Kinds {
    pub cold: usize,
    pub prefix: usize,
    pub extend: usize,
    pub exact: usize,
    pub diverge: usize,
}

/// Tokens of all turns of an agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "named like the tokens of a turn")]
pub struct SummedTokens {
    pub reused: usize,
    pub prefilled: usize,
    pub recomputed: usize,
    pub generated: usize,
}

/// Turns by origin of what was reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "named like the origins")]
pub struct Origins {
    pub none: usize,
    pub memory: usize,
    pub disk: usize,
}

impl CostSummary {
    /// Counts the turns that were played, given as (path, agent's key), with what the trace knows of them.
    pub fn count<'a>(
        scenario: &Scenario,
        trace: &Trace,
        played: impl IntoIterator<Item = (&'a str, &'a str)>,
        wall_ms: f64,
    ) -> Self {
        let mut summary = Self { scenario: scenario.id.clone(), wall_ms, ..Self::default() };
        for agent in &scenario.agents {
            let lifecycle = agent.lifecycle.word().to_string();
            summary.agents.insert(agent.key.clone(), AgentSummary { lifecycle, ..AgentSummary::default() });
        }
        for (path, agent) in played {
            summary.turns += 1;
            let mut counted = summary.agents.get_mut(agent);
            counted.iter_mut().for_each(|agent| agent.turns += 1);
            let turn = trace.turns.get(path);
            counted.iter_mut().for_each(|agent| turn.into_iter().for_each(|turn| agent.add(turn)));
            for reply in trace.replies_of(path) {
                counted.iter_mut().for_each(|agent| agent.add_tokens(reply));
                summary.cache.add(reply);
            }
        }
        summary
    }
}

impl AgentSummary {
    fn add(&mut self, turn: &TurnTrace) {
        match turn.kind {
            Some(MatchKind::Cold) => self.kinds.cold += 1,
            Some(MatchKind::Prefix) => self.kinds.prefix += 1,
            Some(MatchKind::Extend) => self.kinds.extend += 1,
            Some(MatchKind::Exact) => self.kinds.exact += 1,
            Some(MatchKind::Diverge) => self.kinds.diverge += 1,
            _ => {}
        }
        match turn.source {
            Some(CacheSource::None) => self.source.none += 1,
            Some(CacheSource::Memory) => self.source.memory += 1,
            Some(CacheSource::Disk) => self.source.disk += 1,
            _ => {}
        }
        self.ttft_ms.extend(turn.ttft_ms);
    }

    fn add_tokens(&mut self, reply: &TurnTrace) {
        let TokenCounts { reused, prefilled, recomputed, generated, layer0_rows: _ } = reply.tokens;
        self.tokens.reused = self.tokens.reused.saturating_add(reused);
        self.tokens.prefilled = self.tokens.prefilled.saturating_add(prefilled);
        self.tokens.recomputed = self.tokens.recomputed.saturating_add(recomputed);
        self.tokens.generated = self.tokens.generated.saturating_add(generated);
    }

    /// The median of the times to the first token.
    pub fn median_ttft_ms(&self) -> Option<f64> {
        let mut times = self.ttft_ms.clone();
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied()
    }
}
