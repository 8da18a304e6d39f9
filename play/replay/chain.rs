//! Finds what a recording names: its scenario, and the earlier runs whose memories it carries on.

use super::copy::own_copy;
use super::replay;
use crate::timeline::Timeline;
use crate::transcript::{Cause, Drift, Header, Transcript};
use anyhow::{Context as _, bail};
use greenroom_scenario::files::Root;
use greenroom_scenario::{CASE, CAST, Loaded, Overrides, open_below, open_named};
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// Longest chain of runs that continue each other.
const MAX_CHAIN: usize = 64;

/// Places where the files that a recording names are looked for.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// The scenario, if it is not where the recording says.
    pub scenario: Option<PathBuf>,
    /// The folder that holds all of them; `None`: the recording's checkout, else its own folder, or the
    /// current folder.
    pub root: Option<PathBuf>,
    /// True if the file that the recording names comes before the copy in a run's folder.
    pub file_first: bool,
}

/// Memories that agents bring along from an earlier run.
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

/// Looks for a file that a transcript names: below its folder and that folder's parents, up to the root of
/// its checkout, then below the current folder. With a `root`, only in that folder. A path that leads out of
/// these is not found.
///
/// # Errors
/// There is no such folder.
pub fn find_named(transcript: &Path, named: &str, root: Option<&Path>) -> anyhow::Result<Option<PathBuf>> {
    let named = Path::new(named);
    if named.components().any(|part| !matches!(part, Component::Normal(_))) {
        return Ok(None);
    }
    let current = std::env::current_dir().and_then(|folder| folder.canonicalize()).ok();
    let mut roots = vec![Root::given_or_of(root, transcript)?];
    if root.is_none() {
        roots.extend(current.as_deref().map(|folder| Root::given_or_of(Some(folder), folder)).transpose()?);
    }
    let transcript = transcript.canonicalize()?;
    let above = transcript.ancestors().skip(1);
    let folders = above.chain(roots.iter().map(Root::folder));
    let regular = |candidate: PathBuf| {
        let real = roots.iter().find_map(|root| root.admit(&candidate).ok())?;
        real.is_file().then_some(candidate)
    };
    let inside = |folder: &&Path| roots.iter().any(|root| folder.starts_with(root.folder()));
    let Some(found) = folders.filter(inside).map(|folder| folder.join(named)).find_map(regular) else {
        return Ok(None);
    };
    // Shown to people, a path below the current folder is short.
    let short = current.and_then(|folder| found.strip_prefix(folder).map(Path::to_path_buf).ok());
    Ok(Some(short.unwrap_or(found)))
}

/// Finds and loads the scenario of a recording, with the recorded overrides of its variables: the one that
/// was given, else the copy in the run's folder, else the file that the recording names (or the file before
/// the copy).
///
/// # Errors
/// There is no such file, or it can't be read. Mistakes in it are in the report.
pub fn load_scenario(file: &Path, header: &Header, search: &Search) -> anyhow::Result<Loaded> {
    load_with(file, header, search, &[])
}

/// The same, with other values of some variables.
///
/// # Errors
/// There is no such file, or it can't be read. Mistakes in it are in the report.
pub fn load_with(
    file: &Path,
    header: &Header,
    search: &Search,
    more: &[(String, serde_json::Value)],
) -> anyhow::Result<Loaded> {
    let root = search.root.as_deref();
    let copy = || own_copy(file, header, root);
    let named = || find_named(file, &header.scenario.path, root);
    let (copy, found) = match &search.scenario {
        Some(_) => (None, None),
        None if search.file_first => match named()? {
            Some(found) => (None, Some(found)),
            None => (copy(), None),
        },
        None => match copy() {
            Some(copy) => (Some(copy), None),
            None => (None, named()?),
        },
    };
    let (path, open, root) = match (&search.scenario, &copy) {
        (Some(path), _) => (path.clone(), open_below as OpenScenario, root),
        (None, Some(copy)) => (copy.main.clone(), open_named as OpenScenario, Some(copy.root.as_path())),
        (None, None) => {
            let found = found.with_context(|| {
                format!(
                    "the scenario {} of {} was not found near the transcript (in its checkout or folder) or \
                     in the current folder; give it with --scenario FILE, or a folder that contains both \
                     with --root DIR",
                    header.scenario.path,
                    file.display()
                )
            })?;
            (found, open_named as OpenScenario, root)
        }
    };
    // A scenario without a cast of its own is none without the recorded one, and that of a case needs no file
    // of cases.
    let is_own = |name: &str| [CAST, CASE].contains(&name);
    let cast = header.overrides.iter().filter(|(name, _)| is_own(name)).cloned();
    let cast: Overrides = header.read_with().into_iter().chain(cast).collect();
    let plain = open(&path, root, &cast)?;
    let Some(scenario) = &plain.scenario else { return Ok(plain) };
    let is_there = |name: &str| {
        is_own(name) || scenario.variables.contains_key(name.split('.').next().unwrap_or_default())
    };
    let recorded = header.overrides.iter().filter(|(name, _)| is_there(name));
    let recorded = header.read_with().into_iter().chain(recorded.cloned());
    let overrides: Overrides = recorded.chain(more.iter().cloned()).collect();
    if overrides == cast {
        return Ok(plain);
    }
    open(&path, root, &overrides)
}

/// Reads a scenario.
type OpenScenario = fn(&Path, Option<&Path>, &[(String, serde_json::Value)]) -> anyhow::Result<Loaded>;

/// Reads, verifies and replays a run, so that its agents can go on from it.
///
/// # Errors
/// The run is incomplete, drifted, or its files can't be found.
pub fn earlier(run: &Path, root: Option<&Path>) -> anyhow::Result<Earlier> {
    earlier_of(run, root, 0)
}

/// Timelines that the agents of a recording brought along from the run that it continues.
///
/// # Errors
/// The run that it continues can't be found, or is not the one that it was.
pub fn brought_along(
    file: &Path,
    header: &Header,
    root: Option<&Path>,
) -> anyhow::Result<BTreeMap<String, Timeline>> {
    brought(file, header, root, 0)
}

fn earlier_of(run: &Path, root: Option<&Path>, depth: usize) -> anyhow::Result<Earlier> {
    if depth > MAX_CHAIN {
        bail!("more than {MAX_CHAIN} runs continue each other");
    }
    let file = transcript_file(run);
    let transcript = Transcript::open(&file)?;
    let search = Search { root: root.map(Path::to_path_buf), ..Search::default() };
    let loaded = load_scenario(&file, &transcript.header.record, &search)?;
    let Some(scenario) = loaded.scenario else {
        bail!("the scenario of {} has errors:\n{}", file.display(), loaded.report.render(false));
    };
    let brought = brought(&file, &transcript.header.record, root, depth)?;
    let replayed = replay(&scenario, &transcript, brought)
        .with_context(|| format!("{} can't be continued", file.display()))?;
    Ok(Earlier { timelines: replayed.memories.carry_on()?, hash: replayed.hash })
}

fn brought(
    file: &Path,
    header: &Header,
    root: Option<&Path>,
    depth: usize,
) -> anyhow::Result<BTreeMap<String, Timeline>> {
    let Some(continues) = &header.continues else { return Ok(BTreeMap::new()) };
    let found = find_named(file, &continues.path, root)?.with_context(|| {
        format!(
            "{} continues {}, which no longer exists; if it has moved, give a folder that contains both with \
             --root DIR",
            file.display(),
            continues.path
        )
    })?;
    let earlier = earlier_of(&found, root, depth + 1)?;
    if earlier.hash != continues.hash {
        let detail = format!("{} is no longer the run that this one continues", continues.path);
        return Err(Drift::new("header", Cause::Settings, detail)
            .texts(&continues.hash, earlier.hash)
            .into());
    }
    Ok(earlier.timelines)
}
