//! Pending recordings: a file next to a recording that drifted has what it would be now, until a person
//! accepts or rejects it.
//!
//! After a replay, that is today's texts with the recorded replies, found by their turns' paths. Its header
//! says so (`carried`), for no model has read these texts. In CI nothing is written.

use super::find::plain;
use crate::files;
use crate::transcript::Transcript;
use anyhow::Context as _;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use walkdir::WalkDir;

/// Ending of such files, after the recording's whole name.
const ENDING: &str = ".new";

/// Returns whether the program runs in CI, where no one would see what it writes: the variable `CI` is set,
/// and not to `false` or 0.
pub fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| !["", "0", "false"].contains(&value.to_lowercase().as_str()))
}

/// Path of the file that holds what a recording would be now.
pub fn pending_file(recording: &Path) -> PathBuf {
    let mut name = recording.as_os_str().to_os_string();
    name.push(ENDING);
    name.into()
}

/// Tells whether a path is that of such a file.
fn is_pending(path: &Path) -> bool {
    path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.ends_with(".jsonl.new"))
}

/// The recordings below folders (or themselves given) that have something pending.
///
/// # Errors
/// A folder can't be read.
pub fn pendings(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in paths {
        if !path.is_dir() {
            let recording = if is_pending(path) { path.with_extension("") } else { path.clone() };
            found.extend(pending_file(&recording).exists().then_some(recording));
            continue;
        }
        for entry in WalkDir::new(path).sort_by_file_name() {
            let entry = entry.with_context(|| format!("can't read {}", path.display()))?;
            if entry.file_type().is_file() && is_pending(entry.path()) {
                found.push(plain(&entry.path().with_extension("")));
            }
        }
    }
    Ok(found)
}

/// Writes what a recording would be now. What can't be known or written is a note: the drift is reported all
/// the same.
pub(super) fn write(
    recording: &Path,
    text: anyhow::Result<String>,
    notes: &mut Vec<String>,
) -> Option<String> {
    let file = pending_file(recording);
    let written = text.and_then(|text| {
        files::replace(&file, text)?;
        Ok(file.display().to_string())
    });
    match written {
        Ok(file) => Some(file),
        Err(error) => {
            clear(recording);
            notes.push(format!("can't show the recording as it would be made now: {error:#}"));
            None
        }
    }
}

/// The recording fits: what was carried over when it did not is of no use any more, and nothing that was
/// played again is if it was `played_again` now. What a model said otherwise stays to be reviewed until then.
pub(super) fn fits(recording: &Path, played_again: bool) {
    let waits = Transcript::open(&pending_file(recording));
    if played_again || !waits.is_ok_and(|waits| waits.header.record.carried.is_none()) {
        clear(recording);
    }
}

/// Nothing is pending any more.
fn clear(recording: &Path) {
    let file = pending_file(recording);
    match std::fs::remove_file(&file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!("can't remove {}: {error}", file.display());
        }
        _ => {}
    }
}

/// Replaces a recording with what it would be now.
///
/// # Errors
/// Nothing is pending, it is not a transcript, or the file can't be replaced.
pub fn accept(recording: &Path) -> anyhow::Result<()> {
    let file = pending_file(recording);
    Transcript::open(&file).with_context(|| format!("{} is not accepted", file.display()))?;
    std::fs::rename(&file, recording).with_context(|| format!("can't replace {}", recording.display()))
}

/// Removes the file that holds what a recording would be now.
///
/// # Errors
/// The file can't be removed.
pub fn reject(recording: &Path) -> anyhow::Result<()> {
    let file = pending_file(recording);
    std::fs::remove_file(&file).with_context(|| format!("can't remove {}", file.display()))
}
