//! Finds what a recording names: its scenario, and the earlier runs whose memories it carries on.

use super::replay;
use crate::scenario::{Loaded, Overrides, open};
use crate::timeline::Timeline;
use crate::transcript::{Cause, Drift, Header, Transcript};
use anyhow::{Context as _, bail};
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// Longest chain of runs that continue each other.
const MAX_CHAIN: usize = 64;

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

/// Finds and loads the scenario of a recording, with the recorded overrides of its variables.
///
/// # Errors
/// There is no such file, or it can't be read. Mistakes in it are in the report.
pub fn load_scenario(file: &Path, header: &Header, given: Option<&Path>) -> anyhow::Result<Loaded> {
    load_with(file, header, given, &[])
}

/// The same, with other values of some variables.
///
/// # Errors
/// There is no such file, or it can't be read. Mistakes in it are in the report.
pub fn load_with(
    file: &Path,
    header: &Header,
    given: Option<&Path>,
    more: &[(String, serde_yaml::Value)],
) -> anyhow::Result<Loaded> {
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
    let is_there = |name: &str| scenario.variables.contains_key(name.split('.').next().unwrap_or_default());
    let recorded = header.overrides.iter().filter(|(name, _)| is_there(name));
    let recorded =
        recorded.filter_map(|(name, value)| Some((name.clone(), serde_yaml::to_value(value).ok()?)));
    let overrides: Overrides = recorded.chain(more.iter().cloned()).collect();
    open(&path, &overrides)
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
