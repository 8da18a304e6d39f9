//! The copy of its scenario that a run's folder holds: used unless another file is given, if it is what was
//! played.

use super::{Search, find_named};
use crate::transcript::{self, Header};
use greenroom_scenario::{Copied, Loaded, Overrides, Scenario, copied, open_named};
use std::path::Path;

/// The copy next to a transcript in a run's folder; `None`: there is none, or it is not what was played, or
/// it is outside of the folder of everything that may be named.
pub(super) fn own_copy(file: &Path, header: &Header, root: Option<&Path>) -> Option<Copied> {
    let found = beside(file)?;
    let is_inside =
        |root: &Path| Some(found.root.canonicalize().ok()?.starts_with(root.canonicalize().ok()?));
    if root.is_some_and(|root| is_inside(root) != Some(true)) {
        return None;
    }
    let loaded = open_named(&found.main, Some(&found.root), &[]).ok()?;
    (loaded.report.sources.hash() == header.scenario.blake3).then_some(found)
}

/// A transcript of another name is a moved recording, not in a run's folder.
fn beside(file: &Path) -> Option<Copied> {
    let is_run = file.file_name().is_some_and(|name| name == transcript::FILE);
    copied(file.parent().filter(|_| is_run)?)
}

/// Returns whether a scenario was read from the copy next to a transcript.
pub fn is_own_copy(file: &Path, scenario: &Scenario) -> bool {
    beside(file).is_some_and(|found| found.main.display().to_string() == scenario.sources.main().name)
}

/// A line about the scenario's file differing from the copy that is used, and how to use the file; or about a
/// copy that can't be used.
pub fn other_scenario(file: &Path, header: &Header, search: &Search) -> Option<String> {
    let root = search.root.as_deref();
    let found = beside(file).filter(|_| search.scenario.is_none() && !search.file_first)?;
    if own_copy(file, header, root).is_none() {
        return Some(format!(
            "the copy of the scenario in {} is not what was played, so it is not used",
            found.root.display()
        ));
    }
    let original = find_named(file, &header.scenario.path, root).ok()??;
    let is_same =
        open_named(&original, root, &[]).is_ok_and(|now| now.report.sources.hash() == header.scenario.blake3);
    let original = original.display();
    (!is_same).then(|| {
        format!(
            "{original} has changed since then; the run's own copy is used (to use the file: --scenario \
            {original})"
        )
    })
}

/// The scenario in the copy next to a transcript, with these values of variables; `None`: there is no copy of
/// what was played.
///
/// # Errors
/// It can't be read.
pub fn load_copy(
    file: &Path,
    header: &Header,
    overrides: &[(String, serde_json::Value)],
) -> anyhow::Result<Option<Loaded>> {
    let copy = own_copy(file, header, None);
    let overrides: Overrides = header.read_with().into_iter().chain(overrides.iter().cloned()).collect();
    copy.map(|copy| open_named(&copy.main, Some(&copy.root), &overrides)).transpose()
}
