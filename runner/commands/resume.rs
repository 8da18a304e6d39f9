//! The scenario of a resumed run: the copy in its folder, with which the run began.

use super::{PathBounds, is_fancy_err};
use crate::diagnostic::printable;
use crate::replay::{load_copy, transcript_file};
use crate::scenario::{CaseId, Overrides, Scenario, open_below};
use crate::terminal::output::is_captured;
use crate::transcript::Transcript;
use anyhow::{bail, ensure};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A resumed run.
pub(super) struct Resumed {
    pub(super) scenario: Arc<Scenario>,
    /// Path of the scenario's file, as the run's record has it.
    pub(super) named: String,
    /// The case whose random numbers the run has.
    pub(super) case: Option<CaseId>,
}

/// How to continue a run (or an experiment) in a folder: the original command line. `names_folder`: it names
/// the folder.
pub(super) fn go_on(folder: &Path, names_folder: bool) -> String {
    if is_captured() {
        return format!("continue {} with --resume", folder.display());
    }
    let mut words: Vec<String> =
        std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    if !words.iter().any(|word| word == "--resume") {
        words.push("--resume".into());
    }
    if !names_folder {
        words.extend(["--out".into(), folder.display().to_string()]);
    }
    let line = shlex::try_join(words.iter().map(String::as_str));
    format!("continue with: {}", line.unwrap_or_else(|_| words.join(" ")))
}

/// The folder given for a run: by `--out`, or in place of the scenario's file when the run is resumed.
pub(super) fn folder(file: &Path, out: Option<&Path>, resume: bool) -> anyhow::Result<Option<PathBuf>> {
    if !file.is_dir() {
        return Ok(out.map(Path::to_path_buf));
    }
    let shown = file.display();
    ensure!(
        resume,
        "can't read the scenario {shown}: it is a folder; give a scenario file, or continue the run in this \
         folder with --resume"
    );
    ensure!(out.is_none(), "{shown} is already the run's folder; remove --out");
    Ok(Some(file.to_path_buf()))
}

/// The run in a folder with the scenario that it began with. `None`: there is none, or no copy, or `file` is
/// another scenario.
///
/// # Errors
/// A file can't be read; `file` is a folder without a run, or without a copy of its scenario.
pub(super) fn resumed(
    run: &Path,
    file: &Path,
    bounds: &PathBounds,
    overrides: &Overrides,
    quiet: bool,
) -> anyhow::Result<Option<Resumed>> {
    let transcript = transcript_file(run);
    let begun = Transcript::open_begun(&transcript)?;
    let Some(begun) = begun else {
        ensure!(!file.is_dir(), "{} contains no run to continue", run.display());
        return Ok(None);
    };
    let header = begun.header.record;
    let overrides = if overrides.is_empty() { &header.overrides } else { overrides };
    let loaded = load_copy(&transcript, &header, overrides)?;
    let Some(loaded) = loaded else {
        ensure!(
            !file.is_dir(),
            "{} contains no copy of its scenario; use greenroom run FILE --resume --out {0}",
            run.display()
        );
        return Ok(None);
    };
    // If a scenario can no longer be read, the run's own copy is used.
    let now = if file.is_file() { open_below(file, bounds.root.as_deref(), overrides).ok() } else { None };
    if now.as_ref().and_then(|now| now.scenario.as_ref()).is_some_and(|now| now.id != header.scenario.id) {
        return Ok(None);
    }
    if !quiet && now.is_some_and(|now| now.report.sources.hash() != header.scenario.blake3) {
        let shown = file.display().to_string();
        eprintln!(
            "note: {} has changed since the run began; the run continues with its own copy. To play the \
             changed file, leave out --resume and choose another --out",
            printable(&shown)
        );
    }
    let Some(scenario) = loaded.scenario else {
        eprint!("{}", loaded.report.render(is_fancy_err()));
        bail!("the copy of the scenario in {} can't be played", run.display());
    };
    Ok(Some(Resumed { scenario, named: header.scenario.path, case: header.case }))
}
