//! Finds recordings below folders.

use crate::files;
use crate::replay::transcript_file;
use crate::trace;
use crate::transcript::FILE;
use anyhow::bail;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use walkdir::WalkDir;

/// Every recording that the given paths name or hold: files as they are; in folders, `transcript.jsonl` and
/// all other `*.jsonl` that begin with a transcript's header. Each once, in order; links are not followed. A
/// run's folder that is given stays a folder.
///
/// # Errors
/// A path does not exist or can't be read, or a folder holds no recording.
pub fn recordings(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in paths {
        if !path.is_dir() {
            found.push(path.clone()); // reading it reports what is wrong with it
            continue;
        }
        let before = found.len();
        for entry in WalkDir::new(path).sort_by_file_name() {
            let entry = entry?;
            if entry.file_type().is_file() && is_recording(entry.path()) {
                let own = entry.path().parent() == Some(path.as_path()) && entry.file_name() == FILE;
                found.push(plain(if own { path } else { entry.path() }));
            }
        }
        if found.len() == before {
            bail!(
                "{} contains no recording; expected {FILE}, or another *.jsonl that begins with a transcript \
                 header",
                path.display()
            );
        }
    }
    let mut seen = std::collections::HashSet::new();
    found.retain(|path| seen.insert(transcript_file(path)));
    Ok(found)
}

/// A path without a `./` in front.
pub fn plain(path: &Path) -> PathBuf {
    path.strip_prefix("./").unwrap_or(path).to_path_buf()
}

fn is_recording(path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(OsStr::to_str) else { return false };
    if name == FILE {
        return true;
    }
    name.ends_with(".jsonl") && name != trace::FILE && begins_with_header(path)
}

fn begins_with_header(path: &Path) -> bool {
    // A header holds all system texts; its type comes first.
    files::head(path, 64).is_ok_and(|start| start.starts_with(br#"{"type":"header""#))
}
