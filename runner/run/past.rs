//! The beginning of a run: nothing, the memories of an earlier run, or the first turns of another one (a
//! fork).
//!
//! A fork keeps the seeds of the turns that it shares with its run: its header lists other roots of seeds
//! with the turn before which they apply.
//!
//! A fork's agents begin with the run's caches, up to whole blocks: f16 rows of sealed blocks no longer
//! exist, so each agent recomputes at most 255 tokens.

use super::changes::{Changes, earlier, last_settings, turn_at};
use super::{RunOptions, Seeding};
use crate::backend::{Sampling, Session};
use crate::files::portable;
use crate::replay;
use crate::scenario::{CaseId, Lifecycle, Plan, Scenario, Seeds, TurnId};
use crate::timeline::Timeline;
use crate::trace::{self, Trace};
use crate::transcript::{Continues, Forked, Header, SeedBefore, SettingsBefore, Transcript};
use anyhow::{Context as _, bail};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The run to fork, and the turn.
#[derive(Clone, Debug)]
pub struct ForkFrom {
    /// Its folder or transcript.
    pub run: PathBuf,
    /// The first turn that is played again: its path, or a phase's name for the phase's first turn; `None`:
    /// the first one with `changes`.
    pub at: Option<String>,
    /// The changes to what is said and read.
    pub changes: Changes,
}

/// The beginning of a run.
#[derive(Default)]
pub(super) struct RunPast {
    /// The agents' memories, by key.
    pub(super) timelines: BTreeMap<String, Timeline>,
    /// The sessions whose caches hold these memories, by key.
    pub(super) parents: BTreeMap<String, Session>,
    pub(super) continues: Option<Continues>,
    pub(super) fork: Option<SharedPast>,
}

/// The part of another run that a fork shares with it.
pub(super) struct SharedPast {
    /// The recording up to the first turn that is played again.
    pub(super) before: Transcript,
    pub(super) record: Forked,
    /// Roots of the seeds before some turns.
    seeds: Vec<(TurnId, u64)>,
}

impl SharedPast {
    /// The origin of the replies taken from it, if no model gave them to these prompts.
    pub(super) fn carried(&self) -> Option<String> {
        let carried = self.before.header.record.carried.clone();
        carried.filter(|_| !self.before.turns.is_empty())
    }
}

impl RunPast {
    /// `sampling`: the settings for the turns that are played now.
    pub(super) fn of(
        scenario: &Arc<Scenario>,
        plan: &Plan,
        options: &RunOptions,
        sampling: &Sampling,
    ) -> anyhow::Result<Self> {
        match (&options.fork, &options.continues) {
            (Some(fork), _) => Self::forked(scenario, plan, fork, options, sampling),
            (None, Some(run)) => Self::continued(run, options.root.as_deref()),
            (None, None) => Ok(Self::default()),
        }
    }

    fn continued(run: &Path, root: Option<&Path>) -> anyhow::Result<Self> {
        let earlier = replay::earlier(run, root)?;
        let file = replay::transcript_file(run);
        let parents = parents(&file, earlier.timelines.keys().cloned());
        let continues = Some(Continues { path: portable(&file, 2), hash: earlier.hash });
        Ok(Self { timelines: earlier.timelines, parents, continues, fork: None })
    }

    fn forked(
        scenario: &Arc<Scenario>,
        plan: &Plan,
        from: &ForkFrom,
        options: &RunOptions,
        sampling: &Sampling,
    ) -> anyhow::Result<Self> {
        let file = replay::transcript_file(&from.run);
        let transcript = Transcript::open(&file)?;
        let header = &transcript.header.record;
        let at = match &from.at {
            Some(at) => turn_at(plan, scenario, at)?,
            None => from.changes.first(plan, scenario)?,
        };
        let (said, tells) = from.changes.records(plan, scenario, at)?;
        let timelines = replay::brought_along(&file, header, options.root.as_deref())?;
        let before = replay::before(scenario, &transcript, timelines.clone(), at);
        let before = before.with_context(|| {
            let at = &plan.turn(at).path;
            format!("everything before {at} must be as in {}; fork at an earlier turn", file.display())
        })?;
        let roots = roots(plan, header, at, options.seed);
        let (mut earlier_said, mut earlier_tells, mut settings) = earlier(header, plan, at);
        let (was, now) = (last_settings(header, plan, at), (sampling.temperature, options.max_tokens));
        if was != now {
            let (temperature, max_tokens) = was;
            let (before, lines) = (plan.turn(at).path.clone(), before.turns.len());
            settings.push(SettingsBefore { before, lines, temperature, max_tokens });
        }
        earlier_said.extend(said);
        earlier_tells.extend(tells);
        let named = |(before, seed): &(TurnId, u64)| SeedBefore {
            before: plan.turn(*before).path.clone(),
            seed: *seed,
        };
        let record = Forked {
            path: portable(&file, 2),
            hash: transcript.hash().to_string(),
            at: plan.turn(at).path.clone(),
            seeds: roots.iter().map(named).collect(),
            settings,
            said: earlier_said,
            told: earlier_tells,
        };
        let lasting = scenario.agents.iter().filter(|agent| agent.lifecycle == Lifecycle::Permanent);
        let parents = parents(&file, lasting.map(|agent| agent.key.clone()));
        let continues = header.continues.clone();
        Ok(Self { timelines, parents, continues, fork: Some(SharedPast { before, record, seeds: roots }) })
    }

    /// The seeds of all turns, if the turns played now have this seed.
    pub(super) fn seeds(&self, root: u64, case: Option<&CaseId>) -> Seeds {
        Seeds::new(root, self.fork.as_ref().map_or(Vec::new(), |fork| fork.seeds.clone())).of_case(case)
    }

    /// The case whose random numbers a run has. A fork keeps its run's, so that it is what the run would have
    /// been.
    ///
    /// # Errors
    /// It is a new run of a case whose row is not known.
    pub(super) fn case(&self, scenario: &Scenario, seeding: &Seeding) -> anyhow::Result<Option<CaseId>> {
        match (&self.fork, seeding) {
            (Some(fork), _) => Ok(fork.before.header.record.case.clone()),
            (None, Seeding::Recorded(case)) => Ok(case.clone()),
            (None, Seeding::ByCase) => {
                let row = scenario.row().map(|case| case.id.clone());
                match scenario.case().filter(|_| row.is_none()) {
                    Some(name) => bail!(
                        "the case `{name}` is in no file of cases that can be read; expected the `cases` of \
                         the scenario to have it"
                    ),
                    None => Ok(row),
                }
            }
        }
    }
}

/// The sessions of a run, by agent, if it has a trace that names it.
fn parents(transcript: &Path, agents: impl Iterator<Item = String>) -> BTreeMap<String, Session> {
    let Some(run) = Trace::run_of(&transcript.with_file_name(trace::FILE)) else { return BTreeMap::new() };
    agents.map(|agent| (agent.clone(), Session { run: run.clone(), agent })).collect()
}

/// The roots of the seeds before `at`, if they differ from the root of what follows.
fn roots(plan: &Plan, header: &Header, at: TurnId, seed: u64) -> Vec<(TurnId, u64)> {
    let earlier = header.forked.iter().flat_map(|forked| &forked.seeds);
    let earlier = earlier.filter_map(|other| Some((plan.find(&other.before)?, other.seed)));
    let (mut roots, later): (Vec<_>, Vec<_>) = earlier.partition(|(before, _)| *before < at);
    let last = later.first().map_or(header.seed, |(_, seed)| *seed);
    if last != seed {
        roots.push((at, last));
    }
    roots
}
